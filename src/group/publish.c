/*
 * group/publish.c: from staged to durable: the slot, the packs, and the version that names them.
 *
 * Equal blocks of one save are stored once (content deduplication, design §6); holes are recorded and not stored. Each pack is
 * written by the node that the plan named, whole, before the root says that it exists.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "group/inside.h"

#define PACK_BYTES_MAX (UINT64_C(1) << 30)

CLEANUP_OF(struct version *, version_put);

/* A pack in the making: which blocks of the plan it stores, in order. */
struct pack_draft {
	uint32_t node;
	uint32_t *blocks;
	size_t n;
	uint64_t bytes;
	char key[BACKEND_KEY_MAX + 1];
};

struct drafts {
	struct pack_draft *packs;
	size_t n, room;
	uint32_t *open; /* per node: 1 + its pack that is being filled; 0: none */
};

static void drafts_fini(struct drafts *drafts)
{
	for (size_t i = 0; i < drafts->n; i++)
		free(drafts->packs[i].blocks);
	free(drafts->packs);
	free(drafts->open);
}

static struct pack_draft *open_pack(struct drafts *drafts, uint32_t node, uint32_t bytes)
{
	struct pack_draft *pack = drafts->open[node] ? &drafts->packs[drafts->open[node] - 1] : NULL;

	if (pack && pack->bytes + bytes <= PACK_BYTES_MAX)
		return pack;
	if (drafts->n == drafts->room) {
		size_t room = drafts->room ? 2 * drafts->room : 16;
		void *grown = reallocarray(drafts->packs, room, sizeof(*drafts->packs));

		if (!grown)
			return NULL;
		drafts->packs = grown;
		drafts->room = room;
	}
	drafts->packs[drafts->n] = (struct pack_draft){ .node = node };
	drafts->open[node] = (uint32_t)++drafts->n;
	return &drafts->packs[drafts->n - 1];
}

static int pack_add(struct pack_draft *pack, uint32_t block, uint32_t bytes)
{
	bool grow = !(pack->n & (pack->n - 1)); /* full at powers of two */
	uint32_t *blocks = grow ? reallocarray(pack->blocks, pack->n ? 2 * pack->n : 1, sizeof(*blocks)) : pack->blocks;

	if (!blocks)
		return -ENOMEM;
	pack->blocks = blocks;
	pack->blocks[pack->n++] = block;
	pack->bytes += bytes;
	return 0;
}

/*
 * Fills version->blocks, deals those that must be stored out to packs, and lets equal ones point to the first. @first: for each
 * block the one whose place it shares, maybe itself.
 */
static int deal_out(const struct csave *save, struct version *version, struct drafts *drafts, uint32_t *first)
{
	const struct save_plan *plan = &save->recipe->plan;
	struct map seen;
	int r = 0;

	map_init(&seen);
	for (size_t b = 0; !r && b < plan->n_blocks; b++) {
		const struct block_report *report = &save->reports[b];
		struct version_block *block = &version->blocks[b];

		*block = (struct version_block){ .digest = report->digest,
						 .bytes = plan->blocks[b].bytes,
						 .crc = report->crc };
		first[b] = (uint32_t)b;
		if (report->flags & FILLED_ZERO) {
			block->flags = BLOCK_HOLE;
			block->pack = UINT32_MAX;
			continue;
		}
		struct view key = view_of(report->digest.b, DIGEST_BYTES);
		const struct version_block *known = map_get(&seen, key);
		if (known) {
			first[b] = (uint32_t)(known - version->blocks);
			continue;
		}
		r = map_put(&seen, key, block);
		struct pack_draft *pack = r ? NULL : open_pack(drafts, plan->blocks[b].uploader, block->bytes);
		if (!r)
			r = pack ? pack_add(pack, (uint32_t)b, block->bytes) : -ENOMEM;
		if (!r)
			block->pack = (uint32_t)(pack - drafts->packs);
	}
	map_fini(&seen);
	return r;
}

/* Offsets of a pack's blocks, and its size. */
static int lay_out(struct version *version, struct pack_draft *pack)
{
	_cleanup_(cleanup_mem) uint32_t *bytes = calloc(pack->n + 1, sizeof(*bytes));
	_cleanup_(cleanup_mem) uint64_t *offsets = calloc(pack->n + 1, sizeof(*offsets));
	uint64_t index_offset;

	if (!bytes || !offsets)
		return -ENOMEM;
	for (size_t i = 0; i < pack->n; i++)
		bytes[i] = version->blocks[pack->blocks[i]].bytes;
	pack_layout(bytes, pack->n, offsets, &index_offset);
	for (size_t i = 0; i < pack->n; i++)
		version->blocks[pack->blocks[i]].pack_offset = offsets[i];
	pack->bytes = pack_size(index_offset, pack->n);
	return 0;
}

static int name_packs(const struct csave *save, struct version *version, struct drafts *drafts)
{
	_cleanup_(cleanup_mem) unsigned *count = calloc(save->recipe->n_nodes + 1, sizeof(*count));
	int r = count ? 0 : -ENOMEM;

	version->packs = calloc(drafts->n + 1, sizeof(*version->packs));
	if (!version->packs)
		return -ENOMEM;
	for (size_t i = 0; !r && i < drafts->n; i++) {
		struct pack_draft *draft = &drafts->packs[i];
		const char *node = save->recipe->nodes[draft->node];

		r = lay_out(version, draft);
		if (!r)
			r = pack_key(view_str(save->group->tenant), view_str(save->bundle), save->save_id, node,
				     count[draft->node]++, draft->key);
		if (r)
			return r;
		version->packs[i].key = strdup(draft->key);
		version->packs[i].node = strdup(node);
		version->packs[i].bytes = draft->bytes;
		version->n_packs++;
		version->stored_bytes += draft->bytes;
		if (!version->packs[i].key || !version->packs[i].node)
			r = -ENOMEM;
	}
	return r;
}

/* Items and pieces come straight from the catalog: it is sorted by name, the plan's blocks by unique. */
static int fill_items(const struct recipe *recipe, struct version *version)
{
	const struct catalog *catalog = &recipe->catalog;
	size_t names = 0, piece = 0, block = 0;
	int r;

	version->items = calloc(catalog->n_items + 1, sizeof(*version->items));
	version->pieces = calloc(catalog->n_uniques + 1, sizeof(*version->pieces));
	if (!version->items || !version->pieces)
		return -ENOMEM;
	for (size_t i = 0; i < catalog->n_items; i++)
		names += catalog->items[i].name.len + catalog->items[i].dtype.len;
	r = buf_reserve(&version->names, names); /* the views below must not move */
	for (size_t i = 0; !r && i < catalog->n_items; i++) {
		const struct catalog_item *from = &catalog->items[i];
		struct version_item *item = &version->items[i];

		item->name = view_of(version->names.ptr + version->names.len, from->name.len);
		item->dtype = view_of(version->names.ptr + version->names.len + from->name.len, from->dtype.len);
		r = buf_append(&version->names, from->name.ptr, from->name.len);
		if (!r)
			r = buf_append(&version->names, from->dtype.ptr, from->dtype.len);
		item->element_bits = from->element_bits;
		item->whole = from->whole;
		item->first_piece = (uint32_t)piece;
		if (!r)
			r = box_bytes(&item->whole, item->element_bits, &item->bytes);
		version->bytes += item->bytes;
		for (uint32_t u = from->first_unique; !r && u < from->first_unique + from->n_uniques; u++) {
			size_t begin = block;

			while (block < recipe->plan.n_blocks && recipe->plan.blocks[block].unique == u)
				block++;
			if (!catalog->uniques[u].bytes)
				continue; /* a box without elements: nothing to find there */
			version->pieces[piece++] = (struct version_piece){ .box = catalog->uniques[u].box,
									   .first_block = begin,
									   .n_blocks = (uint32_t)(block - begin) };
			item->n_pieces++;
		}
	}
	version->n_items = catalog->n_items;
	version->n_pieces = piece;
	version->n_blocks = recipe->plan.n_blocks;
	return r;
}

static int describe(struct csave *save, struct version *version)
{
	version->tenant = strdup(save->group->tenant);
	version->bundle = strdup(save->bundle);
	version->number = save->slot.number;
	version->step = save->step;
	version->save_id = save->save_id;
	version->epoch = save->group->epoch;
	version->incarnation = save->incarnation;
	version->parent = save->parent;
	version->generation = cluster_generation(save->group->groups->cluster);
	version->n_attributes = save->n_attributes;
	if (!version->tenant || !version->bundle)
		return -ENOMEM;
	return buf_append(&version->attributes, save->attributes.ptr, save->attributes.len);
}

static int draft_version(struct csave *save, struct version *version, struct drafts *drafts)
{
	_cleanup_(cleanup_mem) uint32_t *first = calloc(save->recipe->plan.n_blocks + 1, sizeof(*first));
	int r = describe(save, version);

	version->blocks = calloc(save->recipe->plan.n_blocks + 1, sizeof(*version->blocks));
	drafts->open = calloc(save->recipe->n_nodes + 1, sizeof(*drafts->open));
	if (!first || !version->blocks || !drafts->open)
		return -ENOMEM;
	if (!r)
		r = fill_items(save->recipe, version);
	if (!r)
		r = deal_out(save, version, drafts, first);
	if (!r)
		r = name_packs(save, version, drafts);
	for (size_t b = 0; !r && b < version->n_blocks; b++) {
		struct version_block *block = &version->blocks[b];

		if (block->flags & BLOCK_HOLE)
			save->hole_bytes += block->bytes;
		else if (first[b] != b)
			block->pack = version->blocks[first[b]].pack,
			block->pack_offset = version->blocks[first[b]].pack_offset;
	}
	return r;
}

static int encode_upload(const struct csave *save, const struct version *version, const struct pack_draft *pack,
			 struct buf *out)
{
	struct list_buf blocks = { 0 };
	struct msg_g_upload upload = { .save_id = save->save_id, .key = view_str(pack->key) };
	int r = 0;

	for (size_t i = 0; !r && i < pack->n; i++) {
		const struct version_block *block = &version->blocks[pack->blocks[i]];
		struct elem_g_put put = { .digest = block->digest,
					  .pack_offset = block->pack_offset,
					  .bytes = block->bytes,
					  .crc = block->crc };

		r = elem_g_put_append(&blocks, &put);
	}
	upload.blocks = list_buf_view(&blocks);
	if (!r)
		r = msg_g_upload_encode(&upload, out);
	list_buf_fini(&blocks);
	return r;
}

static int upload(struct csave *save, const struct version *version, const struct drafts *drafts, uint64_t deadline_ns,
		  struct error *e)
{
	struct fan_call *calls = fan_new(drafts->n);
	int r = calls ? 0 : -ENOMEM;

	for (size_t i = 0; !r && i < drafts->n; i++) {
		calls[i].node = save->recipe->nodes[drafts->packs[i].node];
		r = encode_upload(save, version, &drafts->packs[i], &calls[i].body);
	}
	if (!r)
		r = fan_out(save->group->groups, MSG_G_UPLOAD, calls, drafts->n, deadline_ns, e);
	fan_free(calls, drafts->n);
	return r;
}

/* What the coordinator itself writes fails on the coordinator's node: ranks elsewhere must be told which. */
static int fail_here(const struct csave *save, int r, struct error *e)
{
	if (e && e->code)
		(void)error_prefix(e, "node %s", cluster_node(save->group->groups->cluster));
	return r;
}

int save_publish(struct csave *save, uint64_t deadline_ns, struct error *e)
{
	struct cgroup *group = save->group;
	struct bundles *bundles = group->groups->bundles;
	_cleanup_(cleanup_version_put) struct version *version = version_new();
	_cleanup_(drafts_fini) struct drafts drafts = { 0 };
	struct fence fence = { .key = view_buf(&group->lease_key),
			       .record = view_buf(&group->lease_record),
			       .epoch = group->epoch };
	int r;

	if (!version)
		return -ENOMEM;
	r = slot_open(bundles, view_str(group->tenant), view_str(save->bundle), save->save_id, save->parent, &fence,
		      deadline_ns, &save->slot, e);
	if (r)
		return fail_here(save, r, e);
	save->slot_open = true;
	r = draft_version(save, version, &drafts);
	if (r)
		return r;
	r = upload(save, version, &drafts, deadline_ns, e);
	if (r)
		return r;
	save->publishing = true;
	r = slot_publish(bundles, &save->slot, version, &fence, deadline_ns, e);
	if (!r || r == -ERR_EUNINDEXED) {
		save->version = version->number;
		save->stored_bytes = version->stored_bytes;
	}
	return r ? fail_here(save, r, e) : 0;
}
