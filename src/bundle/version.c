/*
 * bundle/version.c: a version in memory, and every rule that one obeys. Pure.
 */
#include "bundle/version.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "bundle/inside.h"
#include "wire/message.h"

struct version *version_new(void)
{
	struct version *version = calloc(1, sizeof(*version));

	if (!version)
		return NULL;
	version->magic = VERSION_MAGIC;
	version->refs = 1;
	list_init(&version->cached);
	return version;
}

struct version *version_get(struct version *version)
{
	CHECK_MAGIC(version, VERSION_MAGIC);
	version->refs++;
	return version;
}

void version_put(struct version *version)
{
	if (!version)
		return;
	CHECK_MAGIC(version, VERSION_MAGIC);
	CHECK(version->refs > 0);
	if (--version->refs)
		return;

	CHECK(list_empty(&version->cached)); /* the cache holds a reference */
	for (size_t i = 0; i < version->n_packs; i++) {
		free(version->packs[i].key);
		free(version->packs[i].node);
	}
	free(version->packs);
	free(version->blocks);
	free(version->pieces);
	free(version->items);
	buf_fini(&version->names);
	buf_fini(&version->attributes);
	free(version->tenant);
	free(version->bundle);
	version->magic = 0;
	free(version);
}

const struct version_item *version_find(const struct version *version, struct view name)
{
	size_t low = 0, high = version->n_items;

	while (low < high) {
		size_t middle = low + (high - low) / 2;
		int order = view_compare(version->items[middle].name, name);

		if (!order)
			return &version->items[middle];
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return NULL;
}

struct record_head version_head(const struct version *version, enum record_kind kind)
{
	return (struct record_head){
		.kind = kind,
		.save_id = version->save_id,
		.epoch = version->epoch,
		.incarnation = version->incarnation,
		.number = version->number,
		.generation = version->generation,
	};
}

/* ---- the rules ---- */

struct checking {
	const struct version *version;
	int code;
	struct error *e;
	uint64_t bytes; /* of the items so far */
	uint64_t next_piece,
		next_block; /* pieces lie in the order of items, blocks in that of pieces, none left over */
};

#define BROKEN(c, ...) error_set((c)->e, (c)->code, __VA_ARGS__)
#define NAME(v)	       (int)(v).len, (const char *)(v).ptr

static int check_pack(const struct checking *c, const struct version_pack *pack)
{
	if (!pack->key || !pack->node || !backend_key_is_valid(pack->key) || strlen(pack->node) > NODE_NAME_MAX)
		return BROKEN(c, "a pack has no key or no node");
	if (pack->bytes < PACK_HEAD_BYTES + PACK_TRAILER_BYTES || pack->bytes > RECORD_PACK_MAX)
		return BROKEN(c, "pack %s has %" PRIu64 " bytes, which cannot be", pack->key, pack->bytes);
	return 0;
}

static int check_block(const struct checking *c, const struct version_block *block, size_t number)
{
	if (!block->bytes || block->bytes > BLOCK_LOGICAL_MAX)
		return BROKEN(c, "block %zu has %" PRIu32 " bytes", number, block->bytes);
	if (block->flags & ~(uint32_t)BLOCK_HOLE)
		return BROKEN(c, "block %zu has unknown flags", number);
	if (block->flags & BLOCK_HOLE)
		return block->pack == UINT32_MAX && !block->pack_offset ?
			       0 :
			       BROKEN(c, "block %zu is a hole with a place", number);
	if (block->pack >= c->version->n_packs)
		return BROKEN(c, "block %zu lies in pack %" PRIu32 " of %zu", number, block->pack, c->version->n_packs);

	uint64_t end = c->version->packs[block->pack].bytes - PACK_TRAILER_BYTES;
	if (block->pack_offset < PACK_HEAD_BYTES || block->pack_offset > end || block->bytes > end - block->pack_offset)
		return BROKEN(c, "block %zu lies outside of its pack", number);
	return 0;
}

static int check_piece(struct checking *c, const struct version_item *item, const struct version_piece *piece)
{
	const struct version *v = c->version;
	uint64_t bytes, sum = 0;

	if (piece->box.ndim != item->whole.ndim || !box_inside(&piece->box, item->whole.count) ||
	    box_bytes(&piece->box, item->element_bits, &bytes) != 0)
		return BROKEN(c, "item %.*s has a piece outside of it", NAME(item->name));
	if (piece->first_block != c->next_block || piece->n_blocks > v->n_blocks - c->next_block)
		return BROKEN(c, "item %.*s has a piece whose blocks are not those behind the piece before",
			      NAME(item->name));
	c->next_block += piece->n_blocks;
	for (uint32_t i = 0; i < piece->n_blocks; i++)
		sum += v->blocks[piece->first_block + i].bytes; /* each at most 8 MiB: no overflow */
	if (sum != bytes)
		return BROKEN(c, "item %.*s has a piece of %" PRIu64 " bytes whose blocks have %" PRIu64,
			      NAME(item->name), bytes, sum);
	return 0;
}

static int check_item(struct checking *c, const struct version_item *item, const struct version_item *before)
{
	const struct version *v = c->version;
	uint64_t bytes;

	if (!item->name.len || item->name.len > ITEM_NAME_MAX || !view_is_utf8(item->name))
		return BROKEN(c, "an item's name is empty, longer than %d bytes, or not UTF-8", ITEM_NAME_MAX);
	if (before && view_compare(before->name, item->name) >= 0)
		return BROKEN(c, "items are not sorted, or one comes twice: %.*s", NAME(item->name));
	if (item->dtype.len > DTYPE_NAME_MAX || !view_is_utf8(item->dtype))
		return BROKEN(c, "item %.*s has a dtype longer than %d bytes, or not UTF-8", NAME(item->name),
			      DTYPE_NAME_MAX);
	for (uint32_t i = 0; i < item->whole.ndim && i < BOX_DIMS_MAX; i++) {
		if (item->whole.start[i])
			return BROKEN(c, "item %.*s does not begin at 0", NAME(item->name));
	}
	if (!item->element_bits || box_bytes(&item->whole, item->element_bits, &bytes) != 0 || bytes != item->bytes)
		return BROKEN(c, "item %.*s has a shape that gives not its bytes", NAME(item->name));
	if (item->first_piece != c->next_piece || item->n_pieces > v->n_pieces - c->next_piece)
		return BROKEN(c, "item %.*s has pieces that are not those behind the item before", NAME(item->name));
	c->next_piece += item->n_pieces;
	if (add_overflows(c->bytes, bytes, &c->bytes))
		return BROKEN(c, "the items have too many bytes");

	for (uint32_t i = 0; i < item->n_pieces; i++) {
		int r = check_piece(c, item, &v->pieces[item->first_piece + i]);
		if (r)
			return r;
	}
	return 0;
}

static int check_attributes(const struct checking *c)
{
	const struct version *v = c->version;
	struct list_view list = { .count = v->n_attributes, .bytes = view_buf(&v->attributes) };
	struct elem_attribute attribute;
	int r;

	if (v->attributes.len > ATTRIBUTES_MAX)
		return BROKEN(c, "the attributes have %zu bytes, at most %u are allowed", v->attributes.len,
			      ATTRIBUTES_MAX);
	while ((r = elem_attribute_next(&list, &attribute)) == 0) {
		if (!view_is_utf8(attribute.key) || !view_is_utf8(attribute.value))
			return BROKEN(c, "an attribute is not UTF-8");
	}
	return r == 1 ? 0 : BROKEN(c, "the attributes make no sense");
}

int version_check(const struct version *version, int code, struct error *e)
{
	struct checking c = { .version = version, .code = code, .e = e };
	uint64_t stored = 0;
	int r = version->number ? check_attributes(&c) : BROKEN(&c, "a version's number cannot be 0");

	if (!r && version->n_items > ITEMS_MAX)
		r = BROKEN(&c, "%zu items, at most %d are allowed", version->n_items, ITEMS_MAX);
	for (size_t i = 0; !r && i < version->n_packs; i++) {
		r = check_pack(&c, &version->packs[i]);
		stored += version->packs[i].bytes;
	}
	for (size_t i = 0; !r && i < version->n_blocks; i++)
		r = check_block(&c, &version->blocks[i], i);
	for (size_t i = 0; !r && i < version->n_items; i++)
		r = check_item(&c, &version->items[i], i ? &version->items[i - 1] : NULL);
	if (!r && (c.next_piece != version->n_pieces || c.next_block != version->n_blocks))
		r = BROKEN(&c, "a piece belongs to no item, or a block to no piece");
	if (!r && (c.bytes != version->bytes || stored != version->stored_bytes))
		r = BROKEN(&c, "it says %" PRIu64 " bytes and %" PRIu64 " stored; they are %" PRIu64 " and %" PRIu64,
			   version->bytes, version->stored_bytes, c.bytes, stored);
	return r;
}
