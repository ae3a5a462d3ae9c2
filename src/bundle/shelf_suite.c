#include "bundle/shelf_suite.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "wire/message.h"

#define ROW_BYTES 160000 /* of the matrix: 2 rows of 40000 f32 */
#define BIG_PART  100000
#define ZEROS	  100000

static const uint32_t block_bytes[SHELF_BLOCKS] = { 40, ROW_BYTES, BIG_PART, ROW_BYTES - BIG_PART, ZEROS };

struct shelf shelf_open(struct bed *bed, int node)
{
	struct shelf shelf = { .bed = bed };

	EXPECT_INT(bundles_new(bed->env, bed->nodes[node].cluster, bed->backend, &shelf.bundles), 0);
	shelf.bundles->grace_ns = NS_PER_MS;	   /* instead of a reader's lease */
	shelf.bundles->round_ns = 3600 * NS_PER_S; /* what a story collects nobody else does, however long it takes */
	EXPECT_INT(bundles_start(shelf.bundles), 0);
	return shelf;
}

void shelf_close(struct shelf *shelf)
{
	bundles_stop(shelf->bundles);
	bundles_free(shelf->bundles);
	shelf->bundles = NULL;
}

/* ---- stories ---- */

static shelf_story current;

int shelf_setup(void **state)
{
	current = *state;
	return bed_setup(state);
}

static int play(struct bed *bed)
{
	_cleanup_(shelf_close) struct shelf shelf = shelf_open(bed, 0);
	_cleanup_(shelf_close) struct shelf other = shelf_open(bed, 1);
	struct error e = { 0 };

	current(&shelf, &other, &e);
	return 0;
}

void shelf_play(void **state)
{
	bed_run(state, play);
}

static uint64_t deadline(const struct shelf *shelf)
{
	return bed_deadline(shelf->bed);
}

/* ---- a version ---- */

static void add_item(struct version *version, const char *name, uint32_t bits, const struct box *whole,
		     uint32_t n_pieces)
{
	static const char dtype[] = "float32";
	struct version_item *item = &version->items[version->n_items++];

	*item = (struct version_item){ .element_bits = bits,
				       .whole = *whole,
				       .first_piece = (uint32_t)version->n_pieces,
				       .n_pieces = n_pieces };
	CHECK(box_bytes(whole, bits, &item->bytes) == 0);
	item->name = view_of(version->names.ptr + version->names.len, strlen(name));
	CHECK(buf_append(&version->names, name, strlen(name)) == 0);
	item->dtype = view_of(version->names.ptr + version->names.len, strlen(dtype));
	CHECK(buf_append(&version->names, dtype, strlen(dtype)) == 0);
	version->bytes += item->bytes;
}

static void add_piece(struct version *version, const struct box *box, uint64_t first_block, uint32_t n_blocks)
{
	version->pieces[version->n_pieces++] =
		(struct version_piece){ .box = *box, .first_block = first_block, .n_blocks = n_blocks };
}

static void fill_items(struct version *version)
{
	const struct box bias = { .ndim = 1, .count = { 10 } }, empty = { .ndim = 2, .count = { 0, 7 } };
	const struct box weight = { .ndim = 2, .count = { 2, ROW_BYTES / 4 } };
	const struct box row0 = { .ndim = 2, .count = { 1, ROW_BYTES / 4 } };
	const struct box row1 = { .ndim = 2, .start = { 1, 0 }, .count = { 1, ROW_BYTES / 4 } };
	const struct box zeros = { .ndim = 1, .count = { ZEROS } };

	version->items = calloc(4, sizeof(*version->items));
	version->pieces = calloc(4, sizeof(*version->pieces));
	CHECK(version->items && version->pieces && buf_reserve(&version->names, 256) == 0);
	add_item(version, "bias", 32, &bias, 1);
	add_piece(version, &bias, 0, 1);
	add_item(version, "empty", 8, &empty, 0);
	add_item(version, "weight", 32, &weight, 2);
	add_piece(version, &row0, 1, 1);
	add_piece(version, &row1, 2, 2);
	add_item(version, "zeros", 8, &zeros, 1);
	add_piece(version, &zeros, 4, 1);
}

static void fill_blocks(struct save *save, uint64_t seed)
{
	struct version *version = save->version;
	struct pool *pool = save->shelf->bed->nodes[0].pool;

	version->blocks = calloc(SHELF_BLOCKS, sizeof(*version->blocks));
	CHECK(version->blocks);
	for (size_t i = 0; i + 1 < SHELF_BLOCKS; i++) {
		save->blocks[i] = bed_block(pool, POOL_CAPTURE, block_bytes[i], seed * SHELF_BLOCKS + i);
		version->blocks[i] = (struct version_block){ .digest = save->blocks[i]->digest,
							     .bytes = block_bytes[i],
							     .crc = save->blocks[i]->crc,
							     .pack = i % 2 };
	}
	version->blocks[SHELF_BLOCKS - 1] =
		(struct version_block){ .bytes = ZEROS, .pack = UINT32_MAX, .flags = BLOCK_HOLE };
	version->n_blocks = SHELF_BLOCKS;
}

/* Blocks 0 and 2 go to pack 0, 1 and 3 to pack 1. */
static void lay_out(struct save *save, unsigned pack)
{
	struct version *version = save->version;
	const uint32_t bytes[2] = { block_bytes[pack], block_bytes[pack + 2] };
	struct version_pack *p = &version->packs[version->n_packs++];
	uint64_t offsets[2], index_offset;
	char key[BACKEND_KEY_MAX + 1];

	pack_layout(bytes, 2, offsets, &index_offset);
	version->blocks[pack].pack_offset = offsets[0];
	version->blocks[pack + 2].pack_offset = offsets[1];
	EXPECT_INT(pack_key(save->place.tenant, save->place.bundle, save->slot.save_id, "n0", pack, key), 0);
	*p = (struct version_pack){ .key = strdup(key), .bytes = pack_size(index_offset, 2), .node = strdup("n0") };
	CHECK(p->key && p->node);
	version->stored_bytes += p->bytes;
}

static void add_attribute(struct version *version, const char *key, const char *value)
{
	struct list_buf list = { 0 };
	const struct elem_attribute attribute = { .key = view_str(key), .value = view_str(value) };

	CHECK(elem_attribute_append(&list, &attribute) == 0);
	version->attributes = list.bytes;
	version->n_attributes = list.count;
}

/* ---- steps ---- */

static void begin(struct save *save, struct shelf *shelf, const char *bundle, uint64_t seed, uint64_t parent,
		  const struct fence *fence)
{
	struct error e;

	*save = (struct save){ .shelf = shelf };
	EXPECT_CALL(slot_open(shelf->bundles, tenant(), view_str(bundle), 0xabc000 + seed, parent, fence,
			      deadline(shelf), &save->slot, &e),
		    0, &e);
	EXPECT_CALL(place_init(view_str(save->slot.tenant), view_str(save->slot.bundle), &save->place, &e), 0, &e);
	save->version = version_new();
	CHECK(save->version);
	save->version->packs = calloc(2, sizeof(*save->version->packs));
	CHECK(save->version->packs);
	fill_items(save->version);
	fill_blocks(save, seed);
	lay_out(save, 0);
	lay_out(save, 1);
	add_attribute(save->version, "seed", bundle);

	save->version->step = 100 * seed;
	save->version->number = save->slot.number;
	save->version->save_id = save->slot.save_id;
	save->version->generation = cluster_generation(shelf->bundles->cluster);
}

void save_begin(struct save *save, struct shelf *shelf, const char *bundle, uint64_t seed)
{
	begin(save, shelf, bundle, seed, 0, NULL);
}

void save_begin_child(struct save *save, struct shelf *shelf, const char *bundle, uint64_t seed, uint64_t parent)
{
	begin(save, shelf, bundle, seed, parent, NULL);
}

void save_begin_fenced(struct save *save, struct shelf *shelf, const char *bundle, uint64_t seed,
		       const struct fence *fence)
{
	begin(save, shelf, bundle, seed, 0, fence);
}

void save_packs(struct save *save)
{
	struct error e;

	for (unsigned pack = 0; pack < 2; pack++) {
		const struct pack_put puts[2] = {
			{ .block = save->blocks[pack], .offset = save->version->blocks[pack].pack_offset },
			{ .block = save->blocks[pack + 2], .offset = save->version->blocks[pack + 2].pack_offset },
		};

		EXPECT_CALL(pack_write(save->shelf->bundles, save->version->packs[pack].key, save->slot.number, puts, 2,
				       NULL, deadline(save->shelf), &e),
			    0, &e);
	}
}

void save_segments(struct save *save)
{
	struct error e;

	EXPECT_CALL(version_check(save->version, -EINVAL, &e), 0, &e);
	EXPECT_CALL(segments_encode(save->version, &save->segments, &e), 0, &e);
	EXPECT_CALL(publish_segments(save->shelf->bundles, &save->place, &save->segments, deadline(save->shelf), &e), 0,
		    &e);
}

void save_root(struct save *save)
{
	struct error e;

	EXPECT_CALL(publish_root(save->shelf->bundles, &save->place, save->version, &save->segments,
				 deadline(save->shelf), &e),
		    0, &e);
}

void save_fini(struct save *save)
{
	for (size_t i = 0; i < SHELF_BLOCKS; i++)
		block_unpin(save->blocks[i]);
	segments_fini(&save->segments);
	version_put(save->version);
	slot_fini(&save->slot);
	*save = (struct save){ 0 };
}

uint64_t shelf_save(struct shelf *shelf, const char *bundle, uint64_t seed)
{
	_cleanup_(save_fini) struct save save;
	struct error e;

	save_begin(&save, shelf, bundle, seed);
	save_packs(&save);
	EXPECT_CALL(slot_publish(shelf->bundles, &save.slot, save.version, NULL, deadline(shelf), &e), 0, &e);
	return save.slot.number;
}

/* ---- looking ---- */

int shelf_compare(struct shelf *shelf, const char *bundle, const char *spec, uint64_t seed)
{
	_cleanup_(cleanup_version_put) struct version *version = NULL;
	struct error e;
	int r = bundle_open(shelf->bundles, tenant(), view_str(bundle), view_str(spec), deadline(shelf), &version, &e);

	if (r)
		return r;
	EXPECT_INT(version->step, 100 * seed);
	EXPECT_INT(version->n_items, 4);
	EXPECT(version_find(version, view_str("weight")) == &version->items[2]);
	EXPECT(!version_find(version, view_str("wei")));
	EXPECT_INT(version->n_blocks, SHELF_BLOCKS);
	for (size_t i = 0; i + 1 < SHELF_BLOCKS; i++) {
		const struct version_block *block = &version->blocks[i];
		_cleanup_(buf_fini) struct buf is = { 0 };
		_cleanup_(cleanup_mem) uint8_t *want = malloc(block->bytes);

		CHECK(want);
		bed_fill(want, block->bytes, seed * SHELF_BLOCKS + i);
		EXPECT_CALL(object_range(shelf->bundles, version->packs[block->pack].key, block->pack_offset,
					 block->bytes, &is, deadline(shelf), &e),
			    0, &e);
		EXPECT(view_equal(view_buf(&is), view_of(want, block->bytes)));
		struct digest digest = digest_of(want, block->bytes);
		EXPECT(digest_equal(&digest, &block->digest));
	}
	EXPECT_INT(version->blocks[SHELF_BLOCKS - 1].flags, BLOCK_HOLE);
	return 0;
}

static void list_bundle(struct shelf *shelf, const struct bundle_entry *bundle, struct buf *ret)
{
	struct version_entry *versions = NULL;
	struct label_entry *labels = NULL;
	size_t n_versions, n_labels;
	bool more;
	struct error e;

	EXPECT_CALL(version_list(shelf->bundles, tenant(), view_str(bundle->name), 0, 1000, deadline(shelf), &versions,
				 &n_versions, &more, &e),
		    0, &e);
	EXPECT(!more);
	for (size_t i = 0; i < n_versions; i++)
		CHECK(buf_printf(ret,
				 "  %" PRIu64 " step=%" PRIu64 " items=%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIx64
				 " %u %zu\n",
				 versions[i].number, versions[i].step, versions[i].n_items, versions[i].bytes,
				 versions[i].stored_bytes, versions[i].save_id, versions[i].n_attributes,
				 versions[i].attributes.len) == 0);
	EXPECT_CALL(
		label_list(shelf->bundles, tenant(), view_str(bundle->name), deadline(shelf), &labels, &n_labels, &e),
		0, &e);
	for (size_t i = 0; i < n_labels; i++)
		CHECK(buf_printf(ret, "  %s=%" PRIu64 "\n", labels[i].label, labels[i].number) == 0);
	version_entries_free(versions, n_versions);
	label_entries_free(labels, n_labels);
}

void shelf_listing(struct shelf *shelf, struct buf *ret)
{
	struct bundle_entry *bundles = NULL;
	struct error e;
	size_t n;
	bool more;

	ret->len = 0;
	EXPECT_CALL(bundle_list(shelf->bundles, tenant(), (struct view){ 0 }, (struct view){ 0 }, 1000, deadline(shelf),
				&bundles, &n, &more, &e),
		    0, &e);
	EXPECT(!more);
	for (size_t i = 0; i < n; i++) {
		CHECK(buf_printf(ret, "%s n=%" PRIu64 " latest=%" PRIu64 "\n", bundles[i].name, bundles[i].n_versions,
				 bundles[i].latest) == 0);
		list_bundle(shelf, &bundles[i], ret);
	}
	CHECK(buf_append_zero(ret, 1) == 0);
	ret->len--;
	bundle_entries_free(bundles, n);
}

int shelf_open_object(struct shelf *shelf, const char *key)
{
	char path[KEY_BYTES + 100];

	snprintf(path, sizeof(path), "%s/store/%s", shelf->bed->dir, key);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	EXPECT(fd >= 0);
	return fd;
}

void shelf_flip(struct shelf *shelf, const char *key, off_t at, unsigned bit)
{
	int fd = shelf_open_object(shelf, key);
	uint8_t byte;

	EXPECT(pread(fd, &byte, 1, at) == 1);
	byte ^= (uint8_t)(1u << bit);
	EXPECT(pwrite(fd, &byte, 1, at) == 1);
	close(fd);
}
