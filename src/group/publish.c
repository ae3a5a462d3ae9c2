/*
 * group/publish.c: from staged to durable: the slot, the packs, and the version that names them.
 *
 * Equal blocks of one save are stored once (content deduplication); holes are recorded and not stored. Each pack is
 * written by the node that the plan named, whole, before the root says that it exists. In rounds: what a lost or slow node had not
 * written is dealt out to others that hold it. Blocks that the parent has are not written again where bundle/share.h says so.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/point.h"
#include "bundle/share.h"
#include "group/inside.h"

#define PACK_BYTES_MAX	 (UINT64_C(1) << 30)
#define PACK_EPOCH_SHIFT 20    /* of the coordinator's epoch in a pack's number */
#define ENGINE_AWAY_MS	 200   /* between two tries while the meta engine is away */
#define NUMBER_WAIT_MS	 10000 /* for the versions of earlier saves to have their numbers */

CLEANUP_OF(struct version *, version_put);

/* A pack in the making: which blocks of the plan it stores, in order. */
struct pack_draft {
	uint32_t node;
	uint32_t *blocks;
	size_t n;
	uint64_t bytes;
	char key[BACKEND_KEY_MAX + 1];
	bool written;
};

struct drafts {
	struct pack_draft *packs;
	size_t n, room;
	size_t n_before; /* of earlier rounds */
	uint32_t *open;	 /* per node: 1 + its pack that is being filled; 0: none */
	uint32_t *named; /* per node: packs that have a name */
	uint64_t *dealt; /* per node: bytes */
	uint32_t *first; /* per block: the one whose place it shares, maybe itself */
	bool *stored;	 /* per block: it lies in a pack, or will */
	uint32_t *pack;	 /* per stored block: 1 + the draft that it is in; 0: it waits to be dealt out */
	struct map seen; /* blocks of the version by digest */
	uint32_t
		*theirs; /* per block: the parent's block whose place it takes, or SHARE_NOT; NULL: nothing is shared */
	struct version *parent;
};

/* A version in the making. */
struct publishing {
	struct version *version;
	struct drafts drafts;
	struct fence fence;
};

static void drafts_fini(struct drafts *drafts)
{
	for (size_t i = 0; i < drafts->n; i++)
		free(drafts->packs[i].blocks);
	free(drafts->packs);
	free(drafts->open);
	free(drafts->named);
	free(drafts->dealt);
	free(drafts->first);
	free(drafts->stored);
	free(drafts->pack);
	map_fini(&drafts->seen);
	free(drafts->theirs);
	version_put(drafts->parent);
}

static int drafts_init(struct drafts *drafts, const struct recipe *recipe)
{
	map_init(&drafts->seen);
	drafts->open = calloc(recipe->n_nodes + 1, sizeof(*drafts->open));
	drafts->named = calloc(recipe->n_nodes + 1, sizeof(*drafts->named));
	drafts->dealt = calloc(recipe->n_nodes + 1, sizeof(*drafts->dealt));
	drafts->first = calloc(recipe->plan.n_blocks + 1, sizeof(*drafts->first));
	drafts->stored = calloc(recipe->plan.n_blocks + 1, sizeof(*drafts->stored));
	drafts->pack = calloc(recipe->plan.n_blocks + 1, sizeof(*drafts->pack));
	return drafts->open && drafts->named && drafts->dealt && drafts->first && drafts->stored && drafts->pack ?
		       0 :
		       -ENOMEM;
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

/* Fills version->blocks from @first to before @last but for their places, and finds which of them must be stored: holes need not, and of equal ones the first. */
static int find_stored(struct csave *save, struct version *version, struct drafts *drafts, size_t first, size_t last)
{
	const struct save_plan *plan = &save->recipe->plan;
	int r = 0;

	for (size_t b = first; !r && b < last; b++) {
		const struct block_report *report = &save->reports[b];
		struct version_block *block = &version->blocks[b];
		struct view key = view_of(report->digest.b, DIGEST_BYTES);

		*block = (struct version_block){ .digest = report->digest,
						 .bytes = plan->blocks[b].bytes,
						 .crc = report->crc };
		drafts->first[b] = (uint32_t)b;
		if (report->flags & FILLED_ZERO) {
			block->flags = BLOCK_HOLE;
			block->pack = UINT32_MAX;
			save->hole_bytes += block->bytes;
			continue;
		}
		const struct version_block *known = map_get(&drafts->seen, key);
		if (known)
			drafts->first[b] = (uint32_t)(known - version->blocks);
		else
			r = map_put(&drafts->seen, key, block);
		drafts->stored[b] = !known;
	}
	return r;
}

struct sharing {
	struct drafts *drafts;
	struct share_block *blocks;
	size_t n;
};

static int share_job(void *arg)
{
	struct sharing *job = arg;

	return share_with_parent(job->drafts->parent, job->blocks, job->n, job->drafts->theirs);
}

/* What the pinned parent has need not be written. Without the parent at hand all is written: that is never wrong. */
static int share(struct csave *save, const struct version *version, struct drafts *drafts, uint64_t deadline_ns)
{
	struct groups *groups = save->group->groups;
	_cleanup_(cleanup_mem) struct share_block *blocks = calloc(version->n_blocks + 1, sizeof(*blocks));
	struct sharing job = { .drafts = drafts, .blocks = blocks, .n = version->n_blocks };
	char number[24];

	if (!save->slot.pinned)
		return 0;
	snprintf(number, sizeof(number), "%" PRIu64, save->parent);
	if (bundle_open(groups->bundles, view_str(save->group->tenant), view_str(save->bundle), view_str(number),
			deadline_ns, &drafts->parent, NULL) != 0)
		return fiber_cancelled() ? -ECANCELED : 0;
	drafts->theirs = calloc(version->n_blocks + 1, sizeof(*drafts->theirs));
	if (!blocks || !drafts->theirs)
		return -ENOMEM;
	for (size_t b = 0; b < version->n_blocks; b++)
		blocks[b] = (struct share_block){ .digest = version->blocks[b].digest,
						  .bytes = version->blocks[b].bytes,
						  .hole = version->blocks[b].flags & BLOCK_HOLE };
	int r = env_call(groups->env, share_job, &job);
	bool some = false;
	for (size_t b = 0; !r && b < version->n_blocks; b++) {
		drafts->stored[b] &= drafts->theirs[b] == SHARE_NOT;
		some |= drafts->theirs[b] != SHARE_NOT;
	}
	if (some)
		point_reached(POINT_PARENT_SHARED);
	return r;
}

/* Whom a slow node's part is given to: with a way to the store that is not known to be slow. */
static bool is_brisk(const struct csave *save, uint32_t node)
{
	return !save->nodes[node].slow && !save->nodes[node].lost && save->recipe->plan_nodes[node].store_rate;
}

/* The planned uploader; when it is lost, slow, or was not made a holder, the brisk holder that has been dealt the least; or any. */
static uint32_t pick_uploader(const struct csave *save, const struct drafts *drafts, size_t b)
{
	const struct block_report *report = &save->reports[b];
	uint32_t planned = save->recipe->plan.blocks[b].uploader, best = report->holders[0];
	bool holds = false;

	for (uint32_t i = 0; i < report->n_holders; i++) {
		uint32_t node = report->holders[i];
		bool brisk = is_brisk(save, node), best_brisk = is_brisk(save, best);

		holds |= node == planned;
		if (brisk > best_brisk || (brisk == best_brisk && drafts->dealt[node] < drafts->dealt[best]))
			best = node;
	}
	return holds && (is_brisk(save, planned) || !is_brisk(save, best)) ? planned : best;
}

/* Could others write most of what the pack has? The rest is then written anew by the node that is slow. */
static bool may_move(const struct csave *save, const struct version *version, const struct pack_draft *pack)
{
	uint64_t movable = 0, bytes = 0;

	for (size_t i = 0; i < pack->n; i++) {
		const struct block_report *report = &save->reports[pack->blocks[i]];
		bool others = false;

		for (uint32_t k = 0; !others && k < report->n_holders; k++)
			others = report->holders[k] != pack->node && is_brisk(save, report->holders[k]);
		bytes += version->blocks[pack->blocks[i]].bytes;
		movable += others ? version->blocks[pack->blocks[i]].bytes : 0;
	}
	return 2 * movable > bytes;
}

/* Deals the blocks that wait out to new packs. */
static int deal_out(struct csave *save, struct version *version, struct drafts *drafts)
{
	int r = 0;

	memset(drafts->open, 0, (save->recipe->n_nodes + 1) * sizeof(*drafts->open));
	drafts->n_before = drafts->n;
	for (size_t b = 0; !r && b < version->n_blocks; b++) {
		if (!drafts->stored[b] || drafts->pack[b])
			continue;
		uint32_t node = pick_uploader(save, drafts, b);
		struct pack_draft *pack = open_pack(drafts, node, version->blocks[b].bytes);

		r = pack ? pack_add(pack, (uint32_t)b, version->blocks[b].bytes) : -ENOMEM;
		if (r)
			break;
		drafts->dealt[node] += version->blocks[b].bytes;
		drafts->pack[b] = (uint32_t)(pack - drafts->packs) + 1;
	}
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

/* The epoch is part of the name: a successor writes the same blocks, but maybe other packs of them. */
static int name_pack(const struct csave *save, struct drafts *drafts, struct pack_draft *pack)
{
	uint64_t k = (save->group->epoch << PACK_EPOCH_SHIFT) | drafts->named[pack->node]++;

	return pack_key(view_str(save->group->tenant), view_str(save->bundle), save->save_id,
			save->recipe->nodes[pack->node], k, pack->key);
}

static int add_pack(struct version *version, const char *key, const char *node, uint64_t bytes)
{
	struct version_pack *pack = &version->packs[version->n_packs++];

	pack->key = strdup(key);
	pack->node = strdup(node);
	pack->bytes = bytes;
	version->stored_bytes += bytes;
	return pack->key && pack->node ? 0 : -ENOMEM;
}

/* The parent's packs of which blocks are taken, and their places in them. */
static int list_shared(struct version *version, const struct drafts *drafts)
{
	const struct version *parent = drafts->parent;
	_cleanup_(cleanup_mem) uint32_t *named = calloc(parent->n_packs + 1, sizeof(*named)); /* 1 + its number here */
	int r = named ? 0 : -ENOMEM;

	for (size_t b = 0; !r && b < version->n_blocks; b++) {
		if (drafts->theirs[b] == SHARE_NOT)
			continue;
		const struct version_block *block = &parent->blocks[drafts->theirs[b]];
		const struct version_pack *pack = &parent->packs[block->pack];

		if (!named[block->pack]) {
			r = add_pack(version, pack->key, pack->node, pack->bytes);
			named[block->pack] = (uint32_t)version->n_packs;
		}
		version->blocks[b].pack = named[block->pack] - 1;
		version->blocks[b].pack_offset = block->pack_offset;
	}
	return r;
}

/* What was written, as the version says it. */
static int list_packs(const struct csave *save, struct version *version, const struct drafts *drafts)
{
	int r = 0;

	version->packs =
		calloc(drafts->n + (drafts->theirs ? drafts->parent->n_packs : 0) + 1, sizeof(*version->packs));
	if (!version->packs)
		return -ENOMEM;
	for (size_t i = 0; !r && i < drafts->n; i++) {
		const struct pack_draft *draft = &drafts->packs[i];

		if (!draft->written)
			continue;
		for (size_t k = 0; k < draft->n; k++)
			version->blocks[draft->blocks[k]].pack = (uint32_t)version->n_packs;
		r = add_pack(version, draft->key, save->recipe->nodes[draft->node], draft->bytes);
	}
	if (!r && drafts->theirs)
		r = list_shared(version, drafts);
	if (r)
		return r;
	for (size_t b = 0; b < version->n_blocks; b++) {
		const struct version_block *first = &version->blocks[drafts->first[b]];

		if (version->blocks[b].flags & BLOCK_HOLE)
			continue;
		version->blocks[b].pack = first->pack;
		version->blocks[b].pack_offset = first->pack_offset;
	}
	return 0;
}

/* Items and pieces come straight from the catalog: it is sorted by name, the plan's blocks by unique. */
int publish_fill_items(const struct recipe *recipe, struct version *version)
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
	int r = describe(save, version);

	version->blocks = calloc(save->recipe->plan.n_blocks + 1, sizeof(*version->blocks));
	if (!version->blocks)
		return -ENOMEM;
	if (!r)
		r = drafts_init(drafts, save->recipe);
	return r ? r : publish_fill_items(save->recipe, version);
}

static int encode_upload(const struct csave *save, const struct version *version, const struct pack_draft *pack,
			 struct buf *out)
{
	struct list_buf blocks = { 0 };
	struct msg_g_upload upload = { .save_id = save->save_id,
				       .key = view_str(pack->key),
				       .epoch = save->group->epoch,
				       .number = save->slot.number };
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

/* What a lost or slow node had to write waits again. */
static void take_back(struct drafts *drafts, const struct pack_draft *pack)
{
	for (size_t i = 0; i < pack->n; i++)
		drafts->pack[pack->blocks[i]] = 0;
}

static int note_written(const struct fan_call *call, struct pack_draft *pack)
{
	struct msg_g_pace_reply reply = { 0 };
	int r = call->result ? 0 : msg_g_pace_reply_decode(view_buf(&call->answer), &reply);

	pack->written = !r && !call->result && !reply.given_up;
	return r;
}

static int upload_round(struct csave *save, struct version *version, struct drafts *drafts, uint64_t deadline_ns,
			struct error *e)
{
	int r = deal_out(save, version, drafts);
	size_t n = drafts->n - drafts->n_before;
	struct pack_draft *packs = drafts->packs + drafts->n_before;
	_cleanup_(cleanup_mem) bool *movable = calloc(n + 1, sizeof(*movable));
	struct fan_call *calls = fan_new(n);

	if (r || !calls || !movable) {
		fan_free(calls, n);
		return r ? r : -ENOMEM;
	}
	for (size_t i = 0; !r && i < n; i++) {
		movable[i] = may_move(save, version, &packs[i]);
		calls[i].node = save->recipe->nodes[packs[i].node];
		calls[i].index = packs[i].node;
		calls[i].bytes = packs[i].bytes;
		r = lay_out(version, &packs[i]);
		if (!r)
			r = name_pack(save, drafts, &packs[i]);
		if (!r)
			r = encode_upload(save, version, &packs[i], &calls[i].body);
	}
	if (!r)
		r = watch_uploads(save, calls, movable, n, deadline_ns, e);
	trace_calls(save, STATION_PACKS, calls, n);
	save_lose_called(save, calls, n);
	for (size_t i = 0; !r && i < n; i++) {
		r = note_written(&calls[i], &packs[i]);
		if (!packs[i].written)
			take_back(drafts, &packs[i]);
	}
	fan_free(calls, n);
	return r;
}

/* What the coordinator itself writes fails on the coordinator's node: ranks elsewhere must be told which. */
static int fail_here(const struct csave *save, int r, struct error *e)
{
	if (e && e->code)
		(void)error_prefix(e, "node %s", cluster_node(save->group->groups->cluster));
	return r;
}

static bool all_written(const struct drafts *drafts, size_t n_blocks)
{
	for (size_t b = 0; b < n_blocks; b++)
		if (drafts->stored[b] && !drafts->pack[b])
			return false;
	return true;
}

/* What waits to be written must have a holder that lives. What is written needs none any more. */
static int check_waiting(struct csave *save, const struct drafts *drafts, struct error *e)
{
	save_forget_lost(save);
	for (size_t b = 0; b < save->recipe->plan.n_blocks; b++)
		if (drafts->stored[b] && !drafts->pack[b] && !save->reports[b].n_holders)
			return save_block_lost(save, b, e);
	return 0;
}

/* Each round loses a node, finds one to be slow, or is the last. */
static int upload(struct csave *save, struct version *version, struct drafts *drafts, uint64_t deadline_ns,
		  struct error *e)
{
	int r;

	do {
		r = check_waiting(save, drafts, e);
		if (!r)
			r = upload_round(save, version, drafts, deadline_ns, e);
	} while (!r && !all_written(drafts, version->n_blocks));
	return r;
}

/* The meta engine's node is down, or just coming up: it will be back, and then whoever waits goes on. */
static bool is_away(int r)
{
	return r == -EHOSTDOWN || r == -ECONNREFUSED || r == -EAGAIN;
}

static int pause_for_engine(struct csave *save, uint64_t deadline_ns)
{
	struct env *env = save->group->groups->env;

	if (env_now(env) >= deadline_ns)
		return -ETIMEDOUT;
	return fiber_sleep_until(env_in_ms(env, ENGINE_AWAY_MS));
}

static bool is_number_due(const struct csave *other, const struct csave *save)
{
	bool before = other->incarnation != save->incarnation ? other->incarnation < save->incarnation :
								other->step < save->step;
	bool waits = other->state == SAVE_CAPTURED || other->state == SAVE_STAGED;

	return before && waits && !other->slot_open && !other->ending && !strcmp(other->bundle, save->bundle);
}

/*
 * Versions are numbered in the order of runs and steps: else `latest` could go back, and a rule keep the older one. So a save waits for the
 * numbers of those before it that are captured, and a successor's until it knows all that there are. Not for ever: one that
 * cannot go on (it may wait for the room that this one has) must not hold this one up.
 */
static int wait_for_number(struct csave *save)
{
	struct cgroup *group = save->group;
	uint64_t deadline_ns = env_in_ms(group->groups->env, NUMBER_WAIT_MS);
	bool due = true;
	int r = 0;

	while (due && !r) {
		due = group->recovering;
		list_each(node, &group->saves)
			due |= is_number_due(list_entry(node, struct csave, link), save);
		r = due ? wait_at(&group->changed, deadline_ns) : 0;
	}
	return r == -ETIMEDOUT ? 0 : r;
}

static int open_slot(struct csave *save, const struct fence *fence, uint64_t deadline_ns, struct error *e)
{
	struct cgroup *group = save->group;

	trace_at(save, STATION_SLOT);
	int r = wait_for_number(save);
	if (r)
		return r;
	for (;;) {
		r = slot_open(group->groups->bundles, view_str(group->tenant), view_str(save->bundle), save->save_id,
			      save->parent, fence, deadline_ns, &save->slot, e);
		if (!is_away(r))
			break;
		int paused = pause_for_engine(save, deadline_ns);
		if (paused)
			return paused == -ETIMEDOUT ? r : paused;
	}
	save->slot_open = !r;
	wake_all(&group->changed);
	return r ? fail_here(save, r, e) : save_keep_slot(save, e);
}

static int publish(struct csave *save, struct version *version, const struct fence *fence, uint64_t deadline_ns,
		   struct error *e)
{
	int r;

	save->root_due = true;
	trace_at(save, STATION_SEGMENTS);
	for (;;) {
		r = slot_publish(save->group->groups->bundles, &save->slot, version, fence, deadline_ns, e);
		if (!is_away(r))
			return r ? fail_here(save, r, e) : 0;
		int paused = pause_for_engine(save, deadline_ns);
		if (paused)
			return paused == -ETIMEDOUT ? r : paused;
	}
}

void publishing_free(struct publishing *publishing)
{
	if (!publishing)
		return;
	version_put(publishing->version);
	drafts_fini(&publishing->drafts);
	free(publishing);
}

int save_publish_begin(struct csave *save, uint64_t deadline_ns, struct error *e)
{
	struct cgroup *group = save->group;
	struct publishing *publishing = calloc(1, sizeof(*publishing));

	save->publishing = publishing;
	if (publishing)
		publishing->version = version_new();
	if (!publishing || !publishing->version)
		return -ENOMEM;
	publishing->fence = (struct fence){ .key = view_buf(&group->lease_key),
					    .record = view_buf(&group->lease_record),
					    .epoch = group->epoch };
	int r = open_slot(save, &publishing->fence, deadline_ns, e);

	return r ? r : draft_version(save, publishing->version, &publishing->drafts);
}

int save_publish_blocks(struct csave *save, size_t first, size_t last, uint64_t deadline_ns, struct error *e)
{
	struct publishing *publishing = save->publishing;
	int r = find_stored(save, publishing->version, &publishing->drafts, first, last);

	if (!r && !first &&
	    last == publishing->version->n_blocks) /* of parts nobody knows how much of a pack the whole uses */
		r = share(save, publishing->version, &publishing->drafts, deadline_ns);
	return r ? r : upload(save, publishing->version, &publishing->drafts, deadline_ns, e);
}

int save_publish_end(struct csave *save, uint64_t deadline_ns, struct error *e)
{
	struct publishing *publishing = save->publishing;
	struct version *version = publishing->version;
	int r = list_packs(save, version, &publishing->drafts);

	if (!r)
		r = publish(save, version, &publishing->fence, deadline_ns, e);
	trace_published(save, version); /* if it came so far */
	if (!r || r == -ERR_EUNINDEXED) {
		save->version = version->number;
		save->stored_bytes = version->stored_bytes;
	}
	return r;
}

int save_publish(struct csave *save, uint64_t deadline_ns, struct error *e)
{
	int r = save_publish_begin(save, deadline_ns, e);

	if (r)
		return r;
	trace_at(save, STATION_PACKS);
	r = save_publish_blocks(save, 0, save->recipe->plan.n_blocks, deadline_ns, e);
	return r ? r : save_publish_end(save, deadline_ns, e);
}
