/*
 * bundle/segment.c: a version as segments and root, and back. Pure.
 *
 * Segments are filled in order and begun anew when full, so a version of any size is cut the same way by everybody. Coming back,
 * memory grows with the bytes that came, never with a number that they hold.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "bundle/inside.h"

#define SEGMENT_BODY_MAX (RECORD_SEGMENT_MAX - RECORD_HEAD_BYTES - RECORD_DIGEST_BYTES)
#define LIST_HEAD_BYTES	 8 /* a list's count and bytes */
#define BLOCKS_MAX	 (SEGMENT_BODY_MAX / BLOCK_ENTRY_BYTES)

/* ---- encoding ---- */

void segments_fini(struct segments *segments)
{
	for (size_t i = 0; i < segments->n; i++)
		buf_fini(&segments->all[i].object);
	free(segments->all);
	*segments = (struct segments){ 0 };
}

static int add_segment(struct segments *segments, const struct record_head *head, uint64_t count, struct view body)
{
	struct segment *all = reallocarray(segments->all, segments->n + 1, sizeof(*all));
	struct segment *segment;

	if (!all)
		return -ENOMEM;
	segments->all = all;
	segment = &all[segments->n];
	*segment = (struct segment){ .head = *head, .count = count };
	segment->head.part = segments->n ? all[segments->n - 1].head.part + 1 : 0;
	if (segments->n && all[segments->n - 1].head.kind != head->kind)
		segment->head.part = 0;
	int r = record_seal(&segment->head, body, &segment->object);
	if (!r)
		segments->n++;
	return r;
}

static int append_item(struct list_buf *list, const struct version *version, const struct version_item *item)
{
	_cleanup_(list_buf_fini) struct list_buf pieces = { 0 };
	int r = 0;

	for (uint32_t i = 0; !r && i < item->n_pieces; i++) {
		const struct version_piece *piece = &version->pieces[item->first_piece + i];
		const struct rec_piece rec = { .box = piece->box,
					       .first_block = piece->first_block,
					       .n_blocks = piece->n_blocks };

		r = rec_piece_append(&pieces, &rec);
	}
	const struct rec_item rec = { .name = item->name,
				      .dtype = item->dtype,
				      .element_bits = item->element_bits,
				      .whole = item->whole,
				      .pieces = list_buf_view(&pieces) };
	return r ? r : rec_item_append(list, &rec);
}

static int flush_items(const struct version *version, struct list_buf *list, struct segments *ret)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	const struct record_head head = version_head(version, RECORD_ITEMS);
	const struct rec_items rec = { .items = list_buf_view(list) };
	int r = rec_items_encode(&rec, &body);

	if (!r)
		r = add_segment(ret, &head, list->count, view_buf(&body));
	list->count = 0;
	list->bytes.len = 0;
	return r;
}

static int encode_items(const struct version *version, struct segments *ret, struct error *e)
{
	_cleanup_(list_buf_fini) struct list_buf list = { 0 };
	int r = 0;

	for (size_t i = 0; !r && i < version->n_items; i++) {
		const struct version_item *item = &version->items[i];
		struct list_buf before = list;

		r = append_item(&list, version, item);
		if (r || list.bytes.len <= SEGMENT_BODY_MAX - LIST_HEAD_BYTES)
			continue;
		if (!before.count)
			return error_set(e, -E2BIG, "item %.*s has too many pieces: %" PRIu32, (int)item->name.len,
					 (const char *)item->name.ptr, item->n_pieces);
		list.count = before.count; /* this one begins the next segment */
		list.bytes.len = before.bytes.len;
		r = flush_items(version, &list, ret);
		i--;
	}
	if (!r && list.count)
		r = flush_items(version, &list, ret);
	return r == -ENOMEM ? no_memory(e) : r;
}

static int encode_blocks(const struct version *version, struct segments *ret, struct error *e)
{
	const struct record_head head = version_head(version, RECORD_BLOCKS);
	size_t room = version->n_blocks < BLOCKS_MAX ? version->n_blocks : BLOCKS_MAX;
	_cleanup_(cleanup_mem) struct block_rec *recs = calloc(room + 1, sizeof(*recs));
	int r = recs ? 0 : -ENOMEM;

	for (size_t done = 0, n; !r && done < version->n_blocks; done += n) {
		n = version->n_blocks - done < BLOCKS_MAX ? version->n_blocks - done : BLOCKS_MAX;
		for (size_t i = 0; i < n; i++) {
			const struct version_block *block = &version->blocks[done + i];
			const struct block_entry entry = { .digest = block->digest,
							   .offset = block->pack_offset,
							   .pack = block->pack,
							   .bytes = block->bytes,
							   .crc = block->crc,
							   .hole = block->flags & BLOCK_HOLE };

			block_entry_encode(&entry, &recs[i]);
		}
		r = add_segment(ret, &head, n, view_of(recs, n * sizeof(*recs)));
	}
	return r == -ENOMEM ? no_memory(e) : r;
}

int segments_encode(const struct version *version, struct segments *ret, struct error *e)
{
	_cleanup_(segments_fini) struct segments segments = { 0 };
	int r = encode_items(version, &segments, e);

	if (!r)
		r = encode_blocks(version, &segments, e);
	if (r)
		return r;
	*ret = segments;
	segments = (struct segments){ 0 };
	return 0;
}

static int encode_pack(const struct place *place, const struct version_pack *pack, struct list_buf *list,
		       struct error *e)
{
	size_t prefix = strlen(place->prefix);

	if (strncmp(pack->key, place->prefix, prefix) != 0 || strncmp(pack->key + prefix, "p/", 2) != 0)
		return error_set(e, -EINVAL, "pack %s is not one of this bundle's", pack->key);
	const struct rec_pack rec = { .key = view_str(pack->key + prefix),
				      .bytes = pack->bytes,
				      .node = view_str(pack->node) };
	return rec_pack_append(list, &rec);
}

static int encode_segment(const struct place *place, const struct segment *segment, struct list_buf *list)
{
	char key[KEY_BYTES];

	segment_key(place, &segment->head, key);
	const struct rec_segment rec = { .key = view_str(key + strlen(place->prefix)),
					 .kind = segment->head.kind,
					 .bytes = segment->object.len,
					 .count = segment->count,
					 .digest = record_digest(view_buf(&segment->object)) };
	return rec_segment_append(list, &rec);
}

int root_encode(const struct place *place, const struct version *version, const struct segments *segments,
		struct buf *ret, struct error *e)
{
	_cleanup_(list_buf_fini) struct list_buf packs = { 0 };
	_cleanup_(list_buf_fini) struct list_buf segs = { 0 };
	int r = 0;

	for (size_t i = 0; !r && i < version->n_packs; i++)
		r = encode_pack(place, &version->packs[i], &packs, e);
	for (size_t i = 0; !r && i < segments->n; i++)
		r = encode_segment(place, &segments->all[i], &segs);
	const struct rec_root root = {
		.tenant = place->tenant,
		.bundle = place->bundle,
		.step = version->step,
		.parent = version->parent,
		.n_items = version->n_items,
		.n_pieces = version->n_pieces,
		.n_blocks = version->n_blocks,
		.bytes = version->bytes,
		.stored_bytes = version->stored_bytes,
		.attributes = { .count = version->n_attributes, .bytes = view_buf(&version->attributes) },
		.packs = list_buf_view(&packs),
		.segments = list_buf_view(&segs),
	};
	if (!r)
		r = rec_root_encode(&root, ret);
	return r == -ENOMEM ? no_memory(e) : r;
}

/* ---- decoding ---- */

#define DAMAGED(e, ...) error_set(e, -ERR_EDAMAGED, __VA_ARGS__)

/* Room for one more of @n: doubled at powers of two. */
static int grow(void *array, size_t n, size_t size)
{
	void **at = array;

	if (n & (n - 1))
		return 0;
	void *more = reallocarray(*at, n ? 2 * n : 1, size);
	if (!more)
		return -ENOMEM;
	*at = more;
	return 0;
}

static int add_pack(struct version *version, const struct place *place, const struct rec_pack *rec, struct error *e)
{
	size_t prefix = strlen(place->prefix);
	int r = grow(&version->packs, version->n_packs, sizeof(*version->packs));

	if (r)
		return no_memory(e);
	if (rec->key.len < 2 || memcmp(rec->key.ptr, "p/", 2) != 0 || rec->key.len > KEY_BYTES - PREFIX_BYTES ||
	    memchr(rec->key.ptr, 0, rec->key.len) ||
	    memchr(rec->node.ptr ? rec->node.ptr : rec->key.ptr, 0, rec->node.len))
		return DAMAGED(e, "a pack has a key that cannot be");

	struct version_pack *pack = &version->packs[version->n_packs];
	*pack = (struct version_pack){ .key = malloc(prefix + rec->key.len + 1),
				       .bytes = rec->bytes,
				       .node = view_dup(rec->node) };
	version->n_packs++;
	if (!pack->key || !pack->node)
		return no_memory(e);
	(void)snprintf(pack->key, prefix + rec->key.len + 1, "%s%.*s", place->prefix, (int)rec->key.len,
		       (const char *)rec->key.ptr);
	return 0;
}

int version_set_root(struct version *version, const struct place *place, const struct record_head *head,
		     const struct rec_root *root, struct error *e)
{
	struct list_view packs = root->packs;
	struct rec_pack pack;
	int r;

	if (!view_equal(root->tenant, place->tenant) || !view_equal(root->bundle, place->bundle))
		return DAMAGED(e, "it belongs to bundle %.*s", (int)root->bundle.len, (const char *)root->bundle.ptr);
	version->number = head->number;
	version->step = root->step;
	version->save_id = head->save_id;
	version->epoch = head->epoch;
	version->incarnation = head->incarnation;
	version->generation = head->generation;
	version->parent = root->parent;
	version->bytes = root->bytes;
	version->stored_bytes = root->stored_bytes;
	version->n_attributes = root->attributes.count;
	version->tenant = view_dup(place->tenant);
	version->bundle = view_dup(place->bundle);
	if (!version->tenant || !version->bundle ||
	    buf_append(&version->attributes, root->attributes.bytes.ptr, root->attributes.bytes.len))
		return no_memory(e);

	while ((r = rec_pack_next(&packs, &pack)) == 0) {
		r = add_pack(version, place, &pack, e);
		if (r)
			return r;
	}
	return r == 1 ? 0 : DAMAGED(e, "its list of packs makes no sense");
}

static int add_pieces(struct version *version, struct list_view list, struct version_item *item, struct error *e)
{
	struct rec_piece rec;
	uint64_t bytes;
	int r;

	item->n_pieces = list.count;
	while ((r = rec_piece_next(&list, &rec)) == 0) {
		if (grow(&version->pieces, version->n_pieces, sizeof(*version->pieces)))
			return no_memory(e);
		if (!box_bytes(&rec.box, item->element_bits, &bytes)) /* else version_check() refuses it */
			item->saved_bytes += bytes;
		version->pieces[version->n_pieces++] = (struct version_piece){ .box = rec.box,
									       .first_block = rec.first_block,
									       .n_blocks = rec.n_blocks };
	}
	return r == 1 ? 0 : DAMAGED(e, "an item's list of pieces makes no sense");
}

/* Name and dtype go to version->names; their views get a place only in bind_names(), since names may still move. */
static int add_item(struct version *version, const struct rec_item *rec, struct error *e)
{
	struct version_item item = { .name = { .len = rec->name.len },
				     .dtype = { .len = rec->dtype.len },
				     .element_bits = rec->element_bits,
				     .whole = rec->whole,
				     .first_piece = (uint32_t)version->n_pieces };

	if (version->n_items == ITEMS_MAX || version->n_pieces > UINT32_MAX - rec->pieces.count)
		return DAMAGED(e, "it has more items or pieces than are allowed");
	if (box_bytes(&item.whole, item.element_bits, &item.bytes) != 0)
		return DAMAGED(e, "item %.*s has a shape that cannot be", (int)rec->name.len,
			       (const char *)rec->name.ptr);
	if (grow(&version->items, version->n_items, sizeof(*version->items)) ||
	    buf_append(&version->names, rec->name.ptr, rec->name.len) ||
	    buf_append(&version->names, rec->dtype.ptr, rec->dtype.len))
		return no_memory(e);
	int r = add_pieces(version, rec->pieces, &item, e);
	if (!r)
		version->items[version->n_items++] = item;
	return r;
}

static int add_items(struct version *version, struct view body, uint64_t count, struct error *e)
{
	struct rec_items rec;
	struct rec_item item;
	int r = rec_items_decode(body, &rec);

	if (r || rec.items.count != count)
		return DAMAGED(e, "its list of items makes no sense");
	while ((r = rec_item_next(&rec.items, &item)) == 0) {
		r = add_item(version, &item, e);
		if (r)
			return r;
	}
	return r == 1 ? 0 : DAMAGED(e, "its list of items makes no sense");
}

static int add_blocks(struct version *version, struct view body, uint64_t count, struct error *e)
{
	size_t n = body.len / BLOCK_ENTRY_BYTES;

	if (body.len % BLOCK_ENTRY_BYTES || n != count)
		return DAMAGED(e, "it has %zu bytes for %" PRIu64 " blocks", body.len, count);
	void *more = reallocarray(version->blocks, version->n_blocks + n + 1, sizeof(*version->blocks));
	if (!more)
		return no_memory(e);
	version->blocks = more;
	for (size_t i = 0; i < n; i++) {
		struct block_entry entry;
		int r = block_entry_decode((const struct block_rec *)(body.ptr + i * BLOCK_ENTRY_BYTES), &entry, e);

		if (r)
			return r;
		version->blocks[version->n_blocks++] = (struct version_block){ .digest = entry.digest,
									       .pack_offset = entry.offset,
									       .pack = entry.pack,
									       .bytes = entry.bytes,
									       .crc = entry.crc,
									       .flags = entry.hole ? BLOCK_HOLE : 0 };
	}
	return 0;
}

int version_add_segment(struct version *version, const struct rec_segment *segment, struct view object, struct error *e)
{
	struct record_head head;
	struct view body;

	if (segment->kind != RECORD_ITEMS && segment->kind != RECORD_BLOCKS)
		return DAMAGED(e, "it is named as a segment and said to be a %s", record_kind_name(segment->kind));
	int r = record_open_as(object, (enum record_kind)segment->kind, &head, &body, e);
	if (r)
		return r;
	struct digest digest = record_digest(object);
	if (!digest_equal(&digest, &segment->digest) || head.save_id != version->save_id ||
	    head.number != version->number)
		return DAMAGED(e, "it is a sound segment, but not the one that the root names");
	if (segment->kind == RECORD_BLOCKS)
		return add_blocks(version, body, segment->count, e);
	return add_items(version, body, segment->count, e);
}

static void bind_names(struct version *version)
{
	const uint8_t *at = version->names.ptr;

	for (size_t i = 0; i < version->n_items; i++) {
		struct version_item *item = &version->items[i];

		item->name.ptr = at;
		item->dtype.ptr = at + item->name.len;
		at += item->name.len + item->dtype.len;
	}
}

int version_finish(struct version *version, const struct rec_root *root, struct error *e)
{
	bind_names(version);
	if (version->n_items != root->n_items || version->n_pieces != root->n_pieces ||
	    version->n_blocks != root->n_blocks)
		return DAMAGED(e,
			       "it says %" PRIu64 " items, %" PRIu64 " pieces, %" PRIu64
			       " blocks; the segments have %zu, %zu, %zu",
			       root->n_items, root->n_pieces, root->n_blocks, version->n_items, version->n_pieces,
			       version->n_blocks);
	return version_check(version, -ERR_EDAMAGED, e);
}
