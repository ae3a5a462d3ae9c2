/* bundle/version_test.c: the rules of a version, and the way into segments and back. Pure. */
#include "bundle/version.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "bundle/inside.h"

#define BLOCK 1000u

static struct place place(void)
{
	struct place ret;

	assert_int_equal(place_init(view_str("local"), view_str("ckpt"), &ret, NULL), 0);
	return ret;
}

/* @n items "item-%07d" of one piece with one block of BLOCK bytes each, every third a hole; one pack. */
static struct version *make(size_t n)
{
	struct version *v = version_new();
	uint64_t at = PACK_HEAD_BYTES;

	v->number = 7, v->save_id = 0xabc, v->step = 3;
	v->items = calloc(n + 1, sizeof(*v->items));
	v->pieces = calloc(n + 1, sizeof(*v->pieces));
	v->blocks = calloc(n + 1, sizeof(*v->blocks));
	v->packs = calloc(1, sizeof(*v->packs));
	assert_int_equal(buf_reserve(&v->names, n * 32), 0);
	for (size_t i = 0; i < n; i++) {
		struct version_item *item = &v->items[i];
		bool hole = i % 3 == 2;

		item->name = view_of(v->names.ptr + v->names.len, 12);
		assert_int_equal(buf_printf(&v->names, "item-%07zu", i), 0);
		item->dtype = view_of(v->names.ptr + v->names.len, 2);
		assert_int_equal(buf_append(&v->names, "u8", 2), 0);
		item->element_bits = 8;
		item->whole = (struct box){ .ndim = 1, .count = { BLOCK } };
		item->bytes = BLOCK;
		item->first_piece = (uint32_t)i;
		item->n_pieces = 1;
		v->pieces[i] = (struct version_piece){ .box = item->whole, .first_block = i, .n_blocks = 1 };
		v->blocks[i] = (struct version_block){ .bytes = BLOCK, .flags = BLOCK_HOLE, .pack = UINT32_MAX };
		if (!hole) {
			v->blocks[i] = (struct version_block){ .digest = digest_of(&i, sizeof(i)),
							       .bytes = BLOCK,
							       .crc = (uint32_t)i,
							       .pack_offset = at };
			at += 1024;
		}
		v->bytes += BLOCK;
	}
	v->n_items = v->n_pieces = v->n_blocks = n;
	v->packs[0] = (struct version_pack){ .key = strdup("t/local/b/ckpt/p/0000000000000abc-n0-0"),
					     .node = strdup("n0"),
					     .bytes = at + 4096 };
	v->n_packs = 1;
	v->stored_bytes = at + 4096;
	return v;
}

/* Through root and segments into a new version. */
static int round_trip(const struct version *v, struct version **ret, size_t *ret_segments, struct error *e)
{
	_cleanup_(segments_fini) struct segments segments = { 0 };
	_cleanup_(buf_fini) struct buf body = { 0 };
	_cleanup_(cleanup_version_put) struct version *back = version_new();
	const struct record_head head = version_head(v, RECORD_ROOT);
	const struct place at = place();
	struct rec_segment segment;
	struct rec_root root;
	size_t i = 0;

	assert_int_equal(segments_encode(v, &segments, e), 0);
	assert_int_equal(root_encode(&at, v, &segments, &body, e), 0);
	assert_int_equal(rec_root_decode(view_buf(&body), &root), 0);
	int r = version_set_root(back, &at, &head, &root, e);
	while (!r && rec_segment_next(&root.segments, &segment) == 0)
		r = version_add_segment(back, &segment, view_buf(&segments.all[i++].object), e);
	if (!r)
		r = version_finish(back, &root, e);
	*ret_segments = segments.n;
	*ret = r ? NULL : TAKE(back);
	return r;
}

static void assert_same(const struct version *a, const struct version *b)
{
	assert_int_equal(a->n_items, b->n_items);
	assert_int_equal(a->n_pieces, b->n_pieces);
	assert_int_equal(a->n_blocks, b->n_blocks);
	for (size_t i = 0; i < a->n_items; i++) {
		assert_true(view_equal(a->items[i].name, b->items[i].name));
		assert_true(view_equal(a->items[i].dtype, b->items[i].dtype));
		assert_true(box_equal(&a->items[i].whole, &b->items[i].whole));
		assert_true(a->items[i].bytes == b->items[i].bytes &&
			    a->items[i].first_piece == b->items[i].first_piece);
	}
	for (size_t i = 0; i < a->n_blocks; i++) {
		const struct version_block *x = &a->blocks[i], *y = &b->blocks[i];

		assert_true(digest_equal(&x->digest, &y->digest) && x->pack == y->pack &&
			    x->pack_offset == y->pack_offset && x->bytes == y->bytes && x->crc == y->crc &&
			    x->flags == y->flags);
	}
	assert_string_equal(a->packs[0].key, b->packs[0].key);
	assert_string_equal(a->packs[0].node, b->packs[0].node);
	assert_true(a->bytes == b->bytes && a->stored_bytes == b->stored_bytes && a->step == b->step);
}

static void a_version_comes_back_from_its_segments(void **state)
{
	const size_t counts[] = { 0, 1, 100 };

	for (size_t i = 0; i < ARRAY_LEN(counts); i++) {
		_cleanup_(cleanup_version_put) struct version *v = make(counts[i]);
		_cleanup_(cleanup_version_put) struct version *back = NULL;
		struct error e = { 0 };
		size_t n;

		assert_int_equal(version_check(v, -EINVAL, &e), 0);
		assert_int_equal(round_trip(v, &back, &n, &e), 0);
		assert_int_equal(n, counts[i] ? 2 : 0);
		assert_same(v, back);
	}
}

static void a_large_version_is_cut_into_segments_of_16_mib(void **state)
{
	_cleanup_(cleanup_version_put) struct version *v = make(300000);
	_cleanup_(cleanup_version_put) struct version *back = NULL;
	struct error e = { 0 };
	size_t n;

	assert_int_equal(round_trip(v, &back, &n, &e), 0);
	assert_int_equal(n, 4); /* 300000 items of 104 bytes, 300000 blocks of 64 */
	assert_same(v, back);
	assert_ptr_equal(version_find(back, view_str("item-0123456")), &back->items[123456]);
	assert_null(version_find(back, view_str("item-0300000")));
	assert_null(version_find(back, view_str("")));
}

static void an_item_with_more_pieces_than_a_segment_holds_is_refused(void **state)
{
	_cleanup_(cleanup_version_put) struct version *v = make(500000);
	_cleanup_(segments_fini) struct segments segments = { 0 };
	struct error e = { 0 };

	v->items[0].n_pieces = 500000;
	v->n_items = 1;
	assert_int_equal(segments_encode(v, &segments, &e), -E2BIG);
	assert_non_null(strstr(e.text, "item-0000000"));
}

static struct buf golden(const char *name)
{
	char path[128];
	struct buf file = { 0 };
	uint8_t bytes[4096];

	snprintf(path, sizeof(path), "fuzz/corpus/record/golden-%s", name);
	FILE *f = fopen(path, "rb");
	assert_non_null(f);
	size_t n = fread(bytes, 1, sizeof(bytes), f);
	fclose(f);
	assert_int_equal(buf_append(&file, bytes, n), 0);
	return file;
}

static void the_pages_example_is_a_version(void **state)
{
	_cleanup_(buf_fini) struct buf object = golden("root"), items = golden("items"), blocks = golden("blocks");
	_cleanup_(cleanup_version_put) struct version *v = version_new();
	struct rec_segment segment;
	struct record_head head;
	struct rec_root root;
	struct place at;
	struct view body;

	assert_int_equal(place_init(view_str("local"), view_str("ckpt/llama"), &at, NULL), 0);
	assert_int_equal(record_open_as(view_buf(&object), RECORD_ROOT, &head, &body, NULL), 0);
	assert_int_equal(rec_root_decode(body, &root), 0);
	assert_int_equal(version_set_root(v, &at, &head, &root, NULL), 0);
	assert_int_equal(rec_segment_next(&root.segments, &segment), 0);
	assert_int_equal(version_add_segment(v, &segment, view_buf(&items), NULL), 0);
	assert_int_equal(rec_segment_next(&root.segments, &segment), 0);
	assert_int_equal(version_add_segment(v, &segment, view_buf(&blocks), NULL), 0);
	assert_int_equal(version_finish(v, &root, NULL), 0);
	assert_true(v->number == 4 && v->step == 1200 && v->n_items == 2);
	assert_true(view_equal(v->items[1].dtype, view_str("float16")));
}

/* ---- rules: each breaks one ---- */

static void shift_first_block(struct version *v)
{
	v->pieces[4].first_block++;
}
static void lose_a_piece(struct version *v)
{
	v->items[9].n_pieces = 0;
}
static void shorten_a_block(struct version *v)
{
	v->blocks[4].bytes--;
}
static void swap_items(struct version *v)
{
	struct view name = v->items[3].name;

	v->items[3].name = v->items[4].name;
	v->items[4].name = name;
}
static void repeat_a_name(struct version *v)
{
	v->items[4].name = v->items[3].name;
}
static void break_utf8(struct version *v)
{
	v->items[4].name = view_str("\xff\xfe");
}
static void lengthen_a_dtype(struct version *v)
{
	v->items[4].dtype = view_str("a dtype of more than thirty-two bytes");
}
static void move_an_item(struct version *v)
{
	v->items[4].whole.start[0] = 1;
}
static void move_a_piece(struct version *v)
{
	v->pieces[4].box.start[0] = 1;
}
static void leave_the_packs(struct version *v)
{
	v->blocks[4].pack = 1;
}
static void leave_the_pack(struct version *v)
{
	v->blocks[4].pack_offset = v->packs[0].bytes;
}
static void lie_in_the_head(struct version *v)
{
	v->blocks[4].pack_offset = PACK_HEAD_BYTES - 64;
}
static void place_a_hole(struct version *v)
{
	v->blocks[2].pack = 0;
}
static void forget_bytes(struct version *v)
{
	v->bytes--;
}
static void forget_stored_bytes(struct version *v)
{
	v->stored_bytes--;
}
static void spoil_attributes(struct version *v)
{
	v->n_attributes = 1;
}
static void take_number_zero(struct version *v)
{
	v->number = 0;
}

static void a_version_that_breaks_a_rule_is_refused_with_the_reason(void **state)
{
	static const struct {
		void (*spoil)(struct version *v);
		const char *words;
	} cases[] = {
		{ shift_first_block, "item-0000004" },
		{ lose_a_piece, "belongs to no" },
		{ shorten_a_block, "whose blocks have 999" },
		{ swap_items, "not sorted" },
		{ repeat_a_name, "comes twice" },
		{ break_utf8, "UTF-8" },
		{ lengthen_a_dtype, "dtype" },
		{ move_an_item, "begin at 0" },
		{ move_a_piece, "outside" },
		{ leave_the_packs, "pack 1 of 1" },
		{ leave_the_pack, "outside of its pack" },
		{ lie_in_the_head, "outside of its pack" },
		{ place_a_hole, "hole" },
		{ forget_bytes, "they are" },
		{ forget_stored_bytes, "they are" },
		{ spoil_attributes, "attributes" },
		{ take_number_zero, "number" },
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		_cleanup_(cleanup_version_put) struct version *v = make(10);
		struct error e = { 0 };

		cases[i].spoil(v);
		assert_int_equal(version_check(v, -EINVAL, &e), -EINVAL);
		assert_non_null(strstr(e.text, cases[i].words));
	}
}

/* ---- packs ---- */

static void big_blocks_come_first_at_4_kib_and_small_ones_at_64_bytes(void **state)
{
	const uint32_t bytes[] = { 10, 70000, 65535, 65536, 1 };
	uint64_t offsets[5], index;

	pack_layout(bytes, 5, offsets, &index);
	assert_int_equal(offsets[1], 4096);
	assert_int_equal(offsets[3], 4096 + 73728); /* 70000 up to 18 pages */
	assert_int_equal(offsets[0], offsets[3] + 65536);
	assert_int_equal(offsets[2], offsets[0] + 64);
	assert_int_equal(offsets[4], offsets[2] + 65536);
	assert_int_equal(index, offsets[4] + 64);
	assert_int_equal(pack_size(index, 5), index + 5 * 64 + 64);
	pack_layout(NULL, 0, NULL, &index);
	assert_int_equal(index, 4096);
}

static void layouts_never_overlap_and_waste_little(void **state)
{
	uint64_t x = 88172645463325252;

	for (int round = 0; round < 2000; round++) {
		uint32_t bytes[40];
		uint64_t offsets[40], index, sum = 0;
		size_t n = 1 + x % 40;

		for (size_t i = 0; i < n; i++) {
			x ^= x << 13, x ^= x >> 7, x ^= x << 17;
			bytes[i] = x % 3 ? 1 + (uint32_t)(x >> 8) % (8u << 20) : 1 + (uint32_t)(x >> 8) % 70000;
			sum += bytes[i];
		}
		pack_layout(bytes, n, offsets, &index);
		for (size_t i = 0; i < n; i++) {
			assert_int_equal(offsets[i] % (bytes[i] >= PACK_BIG_BYTES ? 4096 : 64), 0);
			assert_true(offsets[i] >= 4096 && offsets[i] + bytes[i] <= index);
			for (size_t j = 0; j < i; j++)
				assert_true(offsets[i] + bytes[i] <= offsets[j] || offsets[j] + bytes[j] <= offsets[i]);
		}
		assert_true(index <= 4096 + sum + 4096 * n);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_version_comes_back_from_its_segments),
		cmocka_unit_test(a_large_version_is_cut_into_segments_of_16_mib),
		cmocka_unit_test(an_item_with_more_pieces_than_a_segment_holds_is_refused),
		cmocka_unit_test(the_pages_example_is_a_version),
		cmocka_unit_test(a_version_that_breaks_a_rule_is_refused_with_the_reason),
		cmocka_unit_test(big_blocks_come_first_at_4_kib_and_small_ones_at_64_bytes),
		cmocka_unit_test(layouts_never_overlap_and_waste_little),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
