#include "wire/record.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "wire/message.h"

#define SAVE_ID	  UINT64_C(0x0123456789abcdef)
#define BIG_BYTES (251 * 262)
#define PACK_KEY  "p/0123456789abcdef-node-0-0"
#define V_PREFIX  "v/00000000000000000004/0123456789abcdef-"

static const struct record_head sample = { .save_id = SAVE_ID,
					   .epoch = 3,
					   .incarnation = 2,
					   .number = 4,
					   .generation = 5 };

/* Files of fuzz/corpus/, made from the byte tables by fuzz/corpus.py. */
static struct buf golden(const char *path)
{
	char whole[256];
	struct buf file = { 0 };
	uint8_t piece[4096];
	size_t n;

	snprintf(whole, sizeof(whole), "fuzz/corpus/%s", path);
	FILE *f = fopen(whole, "rb");
	assert_non_null(f);
	while ((n = fread(piece, 1, sizeof(piece), f)) > 0)
		assert_int_equal(buf_append(&file, piece, n), 0);
	fclose(f);
	return file;
}

static void assert_golden(const char *path, enum record_kind kind, struct view body)
{
	_cleanup_(buf_fini) struct buf want = golden(path);
	_cleanup_(buf_fini) struct buf is = { 0 };
	struct record_head head = sample;

	head.kind = kind;
	head.number = kind == RECORD_LABEL	? 9 :
		      kind == RECORD_GENERATION ? 5 :
		      kind == RECORD_RULE	? 2 :
		      kind == RECORD_FLOOR	? 7 :
						  4;
	assert_int_equal(record_seal(&head, body, &is), 0);
	assert_int_equal(is.len, want.len);
	assert_memory_equal(is.ptr, want.ptr, want.len);
}

#define assert_golden_body(path, kind, name, ...)                     \
	do {                                                          \
		_cleanup_(buf_fini) struct buf _body = { 0 };         \
		struct name _fields = { __VA_ARGS__ };                \
                                                                      \
		assert_int_equal(name##_encode(&_fields, &_body), 0); \
		assert_golden(path, kind, view_buf(&_body));          \
	} while (0)

static void small_records_have_the_bytes_of_the_tables(void **state)
{
	const struct view tenant = view_str("local"), bundle = view_str("ckpt/llama");

	assert_golden_body("record/golden-slot", RECORD_SLOT, rec_slot, .tenant = tenant, .bundle = bundle, .parent = 3,
			   .node = view_str("node-0"), .lease = view_of("g/local\0job", 11));
	assert_golden_body("record/golden-label", RECORD_LABEL, rec_label, .tenant = tenant, .bundle = bundle,
			   .label = view_str("prod"), .number = 4);
	assert_golden_body("record/golden-burned", RECORD_TOMBSTONE, rec_tombstone, .tenant = tenant, .bundle = bundle,
			   .reason = TOMBSTONE_BURNED);
	assert_golden_body("record/golden-generation", RECORD_GENERATION, rec_generation,
			   .cluster = view_str("cluster-1"), .node = view_str("node-0"), .life = 3,
			   .token = view_str("00112233445566778899aabbccddeeff"));
	assert_golden_body("record/golden-rule", RECORD_RULE, rec_rule, .tenant = tenant, .bundle = bundle,
			   .keep_last = 3, .keep_every = 10);
	assert_golden_body("record/golden-floor", RECORD_FLOOR, rec_floor, .tenant = tenant, .bundle = bundle);
}

static struct digest golden_digest(const char *path)
{
	_cleanup_(buf_fini) struct buf file = golden(path);

	return record_digest(view_buf(&file));
}

static void a_root_and_a_deleted_ones_tombstone_have_the_bytes_of_the_tables(void **state)
{
	_cleanup_(list_buf_fini) struct list_buf attributes = { 0 };
	_cleanup_(list_buf_fini) struct list_buf packs = { 0 };
	_cleanup_(list_buf_fini) struct list_buf segments = { 0 };
	_cleanup_(buf_fini) struct buf pack = golden("pack/golden-pack");
	const struct elem_attribute attribute = { .key = view_str("torch.dcp"), .value = view_str("1") };
	const struct rec_pack p = { .key = view_str(PACK_KEY), .bytes = pack.len, .node = view_str("node-0") };
	const struct rec_segment items = { .key = view_str(V_PREFIX "items-0"),
					   .kind = RECORD_ITEMS,
					   .bytes = 369,
					   .count = 2,
					   .digest = golden_digest("record/golden-items") };
	const struct rec_segment blocks = { .key = view_str(V_PREFIX "blocks-0"),
					    .kind = RECORD_BLOCKS,
					    .bytes = 288,
					    .count = 3,
					    .digest = golden_digest("record/golden-blocks") };

	assert_int_equal(elem_attribute_append(&attributes, &attribute), 0);
	assert_int_equal(rec_pack_append(&packs, &p), 0);
	assert_int_equal(rec_segment_append(&segments, &items), 0);
	assert_int_equal(rec_segment_append(&segments, &blocks), 0);
	assert_golden_body("record/golden-root", RECORD_ROOT, rec_root, .tenant = view_str("local"),
			   .bundle = view_str("ckpt/llama"), .step = 1200, .parent = 3, .n_items = 2, .n_pieces = 3,
			   .n_blocks = 3, .bytes = 7 + 2 * BIG_BYTES, .stored_bytes = pack.len,
			   .attributes = list_buf_view(&attributes), .packs = list_buf_view(&packs),
			   .segments = list_buf_view(&segments));
	assert_golden_body("record/golden-deleted", RECORD_TOMBSTONE, rec_tombstone, .tenant = view_str("local"),
			   .bundle = view_str("ckpt/llama"), .reason = TOMBSTONE_DELETED,
			   .packs = list_buf_view(&packs), .segments = list_buf_view(&segments), .shared = 1);
}

static void append_item(struct list_buf *items, const char *name, const char *dtype, uint32_t bits,
			const struct box *whole, const struct rec_piece *pieces, size_t n)
{
	_cleanup_(list_buf_fini) struct list_buf list = { 0 };

	for (size_t i = 0; i < n; i++)
		assert_int_equal(rec_piece_append(&list, &pieces[i]), 0);
	const struct rec_item item = { .name = view_str(name),
				       .dtype = view_str(dtype),
				       .element_bits = bits,
				       .whole = *whole,
				       .pieces = list_buf_view(&list) };
	assert_int_equal(rec_item_append(items, &item), 0);
}

static void an_items_segment_has_the_bytes_of_the_table(void **state)
{
	_cleanup_(list_buf_fini) struct list_buf items = { 0 };
	const struct box seven = { .ndim = 1, .count = { 7 } };
	const struct box whole = { .ndim = 2, .count = { 2, BIG_BYTES / 2 } };
	const struct rec_piece loader = { .box = seven, .first_block = 0, .n_blocks = 1 };
	const struct rec_piece rows[] = {
		{ .box = { .ndim = 2, .count = { 1, BIG_BYTES / 2 } }, .first_block = 1, .n_blocks = 1 },
		{ .box = { .ndim = 2, .start = { 1, 0 }, .count = { 1, BIG_BYTES / 2 } },
		  .first_block = 2,
		  .n_blocks = 1 },
	};

	append_item(&items, "loader", "bytes", 8, &seven, &loader, 1);
	append_item(&items, "w.0", "float16", 16, &whole, rows, 2);
	assert_golden_body("record/golden-items", RECORD_ITEMS, rec_items, .items = list_buf_view(&items));
}

static uint8_t *big_bytes(void)
{
	uint8_t *big = malloc(BIG_BYTES);

	assert_non_null(big);
	for (size_t i = 0; i < BIG_BYTES; i++)
		big[i] = (uint8_t)(i % 251);
	return big;
}

static void a_blocks_segment_has_the_bytes_of_the_table(void **state)
{
	_cleanup_(cleanup_mem) uint8_t *big = big_bytes();
	const struct block_entry entries[] = {
		{ .digest = digest_of("forebay", 7),
		  .offset = 4096 + (BIG_BYTES + 63) / 64 * 64,
		  .bytes = 7,
		  .crc = crc32c(0, "forebay", 7) },
		{ .digest = digest_of(big, BIG_BYTES),
		  .offset = 4096,
		  .bytes = BIG_BYTES,
		  .crc = crc32c(0, big, BIG_BYTES) },
		{ .digest = digest_of(big, 1),
		  .bytes = BIG_BYTES,
		  .hole = true,
		  .crc = 7 }, /* digest and CRC are not written */
	};
	struct block_rec recs[3];

	for (size_t i = 0; i < ARRAY_LEN(recs); i++)
		block_entry_encode(&entries[i], &recs[i]);
	assert_golden("record/golden-blocks", RECORD_BLOCKS, view_of(recs, sizeof(recs)));

	for (size_t i = 0; i < ARRAY_LEN(recs); i++) {
		struct block_entry entry;

		assert_int_equal(block_entry_decode(&recs[i], &entry, NULL), 0);
		assert_int_equal(entry.bytes, entries[i].bytes);
		assert_int_equal(entry.hole, entries[i].hole);
		assert_int_equal(entry.pack, entry.hole ? BLOCK_ENTRY_NO_PACK : 0);
		assert_true(entry.offset == entries[i].offset && entry.crc == (entry.hole ? 0 : entries[i].crc));
	}
}

static void block_entries_that_cannot_be_are_refused(void **state)
{
	const struct {
		size_t at;
		uint8_t value;
		bool hole;
		int result;
	} cases[] = {
		{ 56, 1, false, -ERR_EVERSION }, { 57, 2, false, -ERR_EVERSION }, { 59, 1, false, -ERR_EVERSION },
		{ 63, 1, false, -ERR_EDAMAGED }, { 47, 1, false, -ERR_EDAMAGED }, { 48, 1, false, -ERR_EDAMAGED },
		{ 0, 1, true, -ERR_EDAMAGED },	 { 32, 0, true, -ERR_EDAMAGED },  { 36, 1, true, -ERR_EDAMAGED },
		{ 48, 1, true, -ERR_EDAMAGED },	 { 52, 1, true, -ERR_EDAMAGED },
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		const struct block_entry entry = { .bytes = 7, .hole = cases[i].hole };
		struct block_rec rec;
		struct block_entry out = { .bytes = 77 };

		block_entry_encode(&entry, &rec);
		((uint8_t *)&rec)[cases[i].at] = cases[i].value;
		assert_int_equal(block_entry_decode(&rec, &out, NULL), cases[i].result);
		assert_int_equal(out.bytes, 77);
	}
	struct block_rec none = { 0 };
	struct block_entry out;
	assert_int_equal(block_entry_decode(&none, &out, NULL), -ERR_EDAMAGED); /* no bytes */
}

static void every_bit_flip_in_a_record_is_refused_and_changes_nothing(void **state)
{
	_cleanup_(buf_fini) struct buf file = golden("record/golden-root");
	struct record_head head = { .number = 77 };
	struct view body = { 0 };

	for (size_t bit = 0; bit < 8 * file.len; bit++) {
		struct error e = { 0 };

		file.ptr[bit / 8] ^= (uint8_t)(1u << bit % 8);
		assert_int_equal(record_open(view_buf(&file), &head, &body, &e), -ERR_EDAMAGED);
		assert_int_equal(e.code, -ERR_EDAMAGED);
		assert_true(head.number == 77 && !body.ptr);
		file.ptr[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
	assert_int_equal(record_open(view_buf(&file), &head, &body, NULL), 0);
}

static void every_length_but_the_right_one_is_refused(void **state)
{
	_cleanup_(buf_fini) struct buf file = golden("record/golden-slot");
	struct record_head head;
	struct view body;

	for (size_t len = 0; len < file.len; len++)
		assert_int_equal(record_open(view_of(file.ptr, len), &head, &body, NULL), -ERR_EDAMAGED);
	assert_int_equal(buf_append_zero(&file, 1), 0);
	assert_int_equal(record_open(view_buf(&file), &head, &body, NULL), -ERR_EDAMAGED);
}

static void a_record_of_another_kind_or_a_later_major_is_refused_by_name(void **state)
{
	_cleanup_(buf_fini) struct buf file = golden("record/golden-slot");
	struct record_head head;
	struct view body;
	struct error e = { 0 };

	assert_int_equal(record_open_as(view_buf(&file), RECORD_SLOT, &head, &body, NULL), 0);
	assert_int_equal(record_open_as(view_buf(&file), RECORD_LABEL, &head, &body, &e), -ERR_EDAMAGED);
	assert_string_equal(e.text, "it is a SLOT, not a LABEL");

	file.ptr[4] = 2;
	store_le32(file.ptr + 60, crc32c(0, file.ptr, 60));
	assert_int_equal(record_open(view_buf(&file), &head, &body, &e), -ERR_EVERSION);
	assert_non_null(strstr(e.text, "2.0"));
}

static void a_record_beyond_its_kinds_size_is_not_made(void **state)
{
	_cleanup_(cleanup_mem) uint8_t *body = calloc(1, RECORD_ROOT_MAX);
	_cleanup_(buf_fini) struct buf out = { 0 };
	struct record_head head = { .kind = RECORD_ROOT };
	const size_t most = RECORD_ROOT_MAX - RECORD_HEAD_BYTES - RECORD_DIGEST_BYTES;

	assert_int_equal(record_seal(&head, view_of(body, most + 1), &out), -E2BIG);
	assert_int_equal(out.len, 0);
	assert_int_equal(record_seal(&head, view_of(body, most), &out), 0);
	assert_int_equal(out.len, RECORD_ROOT_MAX);
}

static void a_packs_ends_have_the_bytes_of_the_tables(void **state)
{
	_cleanup_(buf_fini) struct buf file = golden("pack/golden-pack");
	struct record_head head = sample;
	uint8_t first[PACK_HEAD_BYTES], last[PACK_TRAILER_BYTES];
	const size_t index_offset = file.len - PACK_TRAILER_BYTES - 2 * BLOCK_ENTRY_BYTES;
	const struct pack_trailer trailer = {
		.index = digest_of(file.ptr + index_offset, 2 * BLOCK_ENTRY_BYTES),
		.index_offset = index_offset,
		.pack_bytes = file.len,
		.n = 2,
	};

	head.kind = RECORD_PACK;
	head.number = 0;
	head.body_bytes = pack_body_bytes(file.len);
	pack_head_encode(&head, "node-0", first);
	assert_memory_equal(first, file.ptr, sizeof(first));
	pack_trailer_encode(&trailer, last);
	assert_memory_equal(last, file.ptr + file.len - sizeof(last), sizeof(last));
}

static int check_ends(const struct buf *pack)
{
	struct record_head head;
	char node[PACK_NODE_BYTES];
	struct pack_trailer trailer;

	int r = pack_head_decode(pack->ptr, &head, node, NULL);
	if (!r)
		r = pack_trailer_decode(pack->ptr + pack->len - PACK_TRAILER_BYTES, pack->len, &trailer, NULL);
	if (!r)
		r = pack_index_check(view_of(pack->ptr + trailer.index_offset, (size_t)trailer.n * BLOCK_ENTRY_BYTES),
				     &trailer, NULL);
	return r;
}

static void every_bit_flip_in_a_packs_head_index_and_trailer_is_refused(void **state)
{
	_cleanup_(buf_fini) struct buf file = golden("pack/golden-pack");
	const size_t index_offset = file.len - PACK_TRAILER_BYTES - 2 * BLOCK_ENTRY_BYTES;

	assert_int_equal(check_ends(&file), 0);
	for (size_t at = 0; at < file.len; at++) {
		if (at == PACK_HEAD_BYTES)
			at = index_offset; /* blocks and gaps are their reader's */
		for (int bit = 0; bit < 8; bit++) {
			file.ptr[at] ^= (uint8_t)(1u << bit);
			assert_int_equal(check_ends(&file), -ERR_EDAMAGED);
			file.ptr[at] ^= (uint8_t)(1u << bit);
		}
	}
}

/* An index of two blocks whose second lies at @offset with @bytes; digest and sizes are right. */
static int check_second_block(uint64_t offset, uint32_t bytes, uint64_t index_offset)
{
	struct block_rec recs[2];
	const struct block_entry first = { .offset = 4096, .bytes = 100 },
				 second = { .offset = offset, .bytes = bytes };

	block_entry_encode(&first, &recs[0]);
	block_entry_encode(&second, &recs[1]);
	const struct pack_trailer trailer = { .index = digest_of(recs, sizeof(recs)),
					      .index_offset = index_offset,
					      .pack_bytes = index_offset + 192,
					      .n = 2 };
	return pack_index_check(view_of(recs, sizeof(recs)), &trailer, NULL);
}

static void blocks_of_a_pack_must_not_overlap_nor_lie_askew(void **state)
{
	assert_int_equal(check_second_block(4096 + 128, 64, 4096 + 192), 0);
	assert_int_equal(check_second_block(4096 + 64, 64, 4096 + 192), -ERR_EDAMAGED);	 /* inside the first */
	assert_int_equal(check_second_block(4096 + 130, 62, 4096 + 192), -ERR_EDAMAGED); /* askew */
	assert_int_equal(check_second_block(4096 + 128, 65, 4096 + 192), -ERR_EDAMAGED); /* into the index */
	assert_int_equal(check_second_block(UINT64_MAX - 63, 64, 4096 + 192), -ERR_EDAMAGED);
	assert_int_equal(check_second_block(4096 + 128, 65536, 1 << 20), -ERR_EDAMAGED); /* a big one off 4 KiB */
	assert_int_equal(check_second_block(8192, 65536, 1 << 20), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(small_records_have_the_bytes_of_the_tables),
		cmocka_unit_test(a_root_and_a_deleted_ones_tombstone_have_the_bytes_of_the_tables),
		cmocka_unit_test(an_items_segment_has_the_bytes_of_the_table),
		cmocka_unit_test(a_blocks_segment_has_the_bytes_of_the_table),
		cmocka_unit_test(block_entries_that_cannot_be_are_refused),
		cmocka_unit_test(every_bit_flip_in_a_record_is_refused_and_changes_nothing),
		cmocka_unit_test(every_length_but_the_right_one_is_refused),
		cmocka_unit_test(a_record_of_another_kind_or_a_later_major_is_refused_by_name),
		cmocka_unit_test(a_record_beyond_its_kinds_size_is_not_made),
		cmocka_unit_test(a_packs_ends_have_the_bytes_of_the_tables),
		cmocka_unit_test(every_bit_flip_in_a_packs_head_index_and_trailer_is_refused),
		cmocka_unit_test(blocks_of_a_pack_must_not_overlap_nor_lie_askew),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
