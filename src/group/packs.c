/*
 * group/packs.c: which blocks of a version are written, by which node, in which packs.
 *
 * Equal blocks of one save are stored once (content deduplication); holes are recorded and not stored. Each pack is
 * written by the node that the plan named, whole, before the root says that it exists. What a lost or slow node had not written is
 * dealt out to others that hold it as soon as that is known, while they write what they have. Blocks that the parent has are not
 * written again where bundle/share.h says so.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/point.h"
#include "bundle/share.h"
#include "group/inside.h"

#define PACK_BYTES_MAX (UINT64_C(1) << 30)
/* In a pack's number, above its own: */
#define PACK_EPOCH_SHIFT      20 /* the coordinator's epoch */
#define PACK_GENERATION_SHIFT 52 /* and the generation when the slot was opened */

/* A pack in the making: which blocks of the plan it stores, in order. */
struct pack_draft {
	uint32_t node;
	uint32_t *blocks;
	size_t n;
	uint64_t bytes;
	char key[BACKEND_KEY_MAX + 1];
	bool written;
};

struct packs {
	struct csave *save;
	struct version *version;
	struct pack_draft *drafts;
	size_t n, room;
	size_t n_begun;	 /* of these: they are being written, or have been */
	uint32_t *open;	 /* per node: 1 + its draft that is being filled; 0: none */
	uint32_t *named; /* per node: packs that have a name */
	uint64_t *dealt; /* per node: bytes */
	uint32_t *first; /* per block: the one whose place it shares, maybe itself */
	bool *stored;	 /* per block: it lies in a pack, or will */
	uint32_t *pack;	 /* per stored block: 1 + the draft that it is in; 0: it waits to be dealt out */
	bool waiting;	 /* some block does */
	struct map seen; /* blocks of the version by digest */
	uint32_t
		*theirs; /* per block: the parent's block whose place it takes, or SHARE_NOT; NULL: nothing is shared */
	struct version *parent;
};

void packs_free(struct packs *packs)
{
	if (!packs)
		return;
	for (size_t i = 0; i < packs->n; i++)
		free(packs->drafts[i].blocks);
	free(packs->drafts);
	free(packs->open);
	free(packs->named);
	free(packs->dealt);
	free(packs->first);
	free(packs->stored);
	free(packs->pack);
	map_fini(&packs->seen);
	free(packs->theirs);
	version_put(packs->parent);
	free(packs);
}

struct packs *packs_new(struct csave *save, struct version *version)
{
	struct packs *packs = calloc(1, sizeof(*packs));
	size_t n_nodes = save->recipe->n_nodes, n_blocks = save->recipe->plan.n_blocks;

	if (!packs)
		return NULL;
	packs->save = save;
	packs->version = version;
	map_init(&packs->seen);
	packs->open = calloc(n_nodes + 1, sizeof(*packs->open));
	packs->named = calloc(n_nodes + 1, sizeof(*packs->named));
	packs->dealt = calloc(n_nodes + 1, sizeof(*packs->dealt));
	packs->first = calloc(n_blocks + 1, sizeof(*packs->first));
	packs->stored = calloc(n_blocks + 1, sizeof(*packs->stored));
	packs->pack = calloc(n_blocks + 1, sizeof(*packs->pack));
	if (packs->open && packs->named && packs->dealt && packs->first && packs->stored && packs->pack)
		return packs;
	packs_free(packs);
	return NULL;
}

/* ---- what is stored ----------------------------------------------------------------------------------------------------- */

/* Fills version->blocks from @first to before @last but for their places, and finds which of them must be stored: holes need not, and of equal ones the first. */
static int find_stored(struct packs *packs, size_t first, size_t last)
{
	struct csave *save = packs->save;
	const struct save_plan *plan = &save->recipe->plan;
	int r = 0;

	for (size_t b = first; !r && b < last; b++) {
		const struct block_report *report = &save->reports[b];
		struct version_block *block = &packs->version->blocks[b];
		struct view key = view_of(report->digest.b, DIGEST_BYTES);

		*block = (struct version_block){ .digest = report->digest,
						 .bytes = plan->blocks[b].bytes,
						 .crc = report->crc };
		packs->first[b] = (uint32_t)b;
		if (report->flags & FILLED_ZERO) {
			block->flags = BLOCK_HOLE;
			block->pack = UINT32_MAX;
			save->hole_bytes += block->bytes;
			continue;
		}
		const struct version_block *known = map_get(&packs->seen, key);
		if (known)
			packs->first[b] = (uint32_t)(known - packs->version->blocks);
		else
			r = map_put(&packs->seen, key, block);
		packs->stored[b] = !known;
		packs->waiting |= !known;
	}
	return r;
}

struct sharing {
	struct packs *packs;
	struct share_block *blocks;
	size_t n;
};

static int share_job(void *arg)
{
	struct sharing *job = arg;

	return share_with_parent(job->packs->parent, job->blocks, job->n, job->packs->theirs);
}

/* What the pinned parent has need not be written. Without the parent at hand all is written: that is never wrong. */
static int share(struct packs *packs, uint64_t deadline_ns)
{
	struct csave *save = packs->save;
	struct groups *groups = save->group->groups;
	const struct version *version = packs->version;
	_cleanup_(cleanup_mem) struct share_block *blocks = calloc(version->n_blocks + 1, sizeof(*blocks));
	struct sharing job = { .packs = packs, .blocks = blocks, .n = version->n_blocks };
	char number[24];

	if (!save->slot.pinned)
		return 0;
	snprintf(number, sizeof(number), "%" PRIu64, save->parent);
	if (bundle_open(groups->bundles, view_str(save->group->tenant), view_str(save->bundle), view_str(number),
			deadline_ns, &packs->parent, NULL) != 0)
		return fiber_cancelled() ? -ECANCELED : 0;
	packs->theirs = calloc(version->n_blocks + 1, sizeof(*packs->theirs));
	if (!blocks || !packs->theirs)
		return -ENOMEM;
	for (size_t b = 0; b < version->n_blocks; b++)
		blocks[b] = (struct share_block){ .digest = version->blocks[b].digest,
						  .bytes = version->blocks[b].bytes,
						  .hole = version->blocks[b].flags & BLOCK_HOLE };
	int r = env_call(groups->env, share_job, &job);
	bool some = false;
	for (size_t b = 0; !r && b < version->n_blocks; b++) {
		packs->stored[b] &= packs->theirs[b] == SHARE_NOT;
		some |= packs->theirs[b] != SHARE_NOT;
	}
	if (some)
		point_reached(POINT_PARENT_SHARED);
	return r;
}

/* ---- who writes it ------------------------------------------------------------------------------------------------------ */

static struct pack_draft *open_draft(struct packs *packs, uint32_t node, uint32_t bytes)
{
	struct pack_draft *draft = packs->open[node] ? &packs->drafts[packs->open[node] - 1] : NULL;

	if (draft && draft->bytes + bytes <= PACK_BYTES_MAX)
		return draft;
	if (packs->n == packs->room) {
		size_t room = packs->room ? 2 * packs->room : 16;
		void *grown = reallocarray(packs->drafts, room, sizeof(*packs->drafts));

		if (!grown)
			return NULL;
		packs->drafts = grown;
		packs->room = room;
	}
	packs->drafts[packs->n] = (struct pack_draft){ .node = node };
	packs->open[node] = (uint32_t)++packs->n;
	return &packs->drafts[packs->n - 1];
}

static int draft_add(struct pack_draft *draft, uint32_t block, uint32_t bytes)
{
	bool grow = !(draft->n & (draft->n - 1)); /* full at powers of two */
	uint32_t *blocks = grow ? reallocarray(draft->blocks, draft->n ? 2 * draft->n : 1, sizeof(*blocks)) :
				  draft->blocks;

	if (!blocks)
		return -ENOMEM;
	draft->blocks = blocks;
	draft->blocks[draft->n++] = block;
	draft->bytes += bytes;
	return 0;
}

/* Whom a slow node's part is given to: with a way to the store that is not known to be slow. */
static bool is_brisk(const struct csave *save, uint32_t node)
{
	return !(save->nodes[node].slow & SLOW_WRITES) && !save->nodes[node].lost &&
	       save->recipe->plan_nodes[node].store_rate;
}

/* The planned uploader; when it is lost, slow, or was not made a holder, the brisk holder that has been dealt the least; or any. */
static uint32_t pick_uploader(const struct packs *packs, size_t b)
{
	const struct csave *save = packs->save;
	const struct block_report *report = &save->reports[b];
	uint32_t planned = save->recipe->plan.blocks[b].uploader, best = report->holders[0];
	bool holds = false;

	for (uint32_t i = 0; i < report->n_holders; i++) {
		uint32_t node = report->holders[i];
		bool brisk = is_brisk(save, node), best_brisk = is_brisk(save, best);

		holds |= node == planned;
		if (brisk > best_brisk || (brisk == best_brisk && packs->dealt[node] < packs->dealt[best]))
			best = node;
	}
	return holds && (is_brisk(save, planned) || !is_brisk(save, best)) ? planned : best;
}

/* What waits to be written must have a holder that lives. What is written needs none any more. */
static int check_waiting(struct packs *packs, struct error *e)
{
	struct csave *save = packs->save;

	save_forget_lost(save);
	for (size_t b = 0; b < save->recipe->plan.n_blocks; b++)
		if (packs->stored[b] && !packs->pack[b] && !save->reports[b].n_holders)
			return save_block_lost(save, b, e);
	return 0;
}

/* Deals the blocks that wait out to new packs. */
static int deal_out(struct packs *packs)
{
	const struct version *version = packs->version;
	int r = 0;

	memset(packs->open, 0, (packs->save->recipe->n_nodes + 1) * sizeof(*packs->open));
	for (size_t b = 0; !r && b < version->n_blocks; b++) {
		if (!packs->stored[b] || packs->pack[b])
			continue;
		uint32_t node = pick_uploader(packs, b);
		struct pack_draft *draft = open_draft(packs, node, version->blocks[b].bytes);

		r = draft ? draft_add(draft, (uint32_t)b, version->blocks[b].bytes) : -ENOMEM;
		if (r)
			break;
		packs->dealt[node] += version->blocks[b].bytes;
		packs->pack[b] = (uint32_t)(draft - packs->drafts) + 1;
	}
	packs->waiting = r != 0;
	return r;
}

/* Could others write most of what it has? The rest is then written anew by the node that is slow. */
static bool may_move(const struct packs *packs, const struct pack_draft *draft)
{
	const struct csave *save = packs->save;
	uint64_t movable = 0, bytes = 0;

	for (size_t i = 0; i < draft->n; i++) {
		const struct block_report *report = &save->reports[draft->blocks[i]];
		uint32_t block_bytes = packs->version->blocks[draft->blocks[i]].bytes;
		bool others = false;

		for (uint32_t k = 0; !others && k < report->n_holders; k++)
			others = report->holders[k] != draft->node && is_brisk(save, report->holders[k]);
		bytes += block_bytes;
		movable += others ? block_bytes : 0;
	}
	return 2 * movable > bytes;
}

/* ---- writing ------------------------------------------------------------------------------------------------------------ */

/* Offsets of a pack's blocks, and its size. */
static int lay_out(struct version *version, struct pack_draft *draft)
{
	_cleanup_(cleanup_mem) uint32_t *bytes = calloc(draft->n + 1, sizeof(*bytes));
	_cleanup_(cleanup_mem) uint64_t *offsets = calloc(draft->n + 1, sizeof(*offsets));
	uint64_t index_offset;

	if (!bytes || !offsets)
		return -ENOMEM;
	for (size_t i = 0; i < draft->n; i++)
		bytes[i] = version->blocks[draft->blocks[i]].bytes;
	pack_layout(bytes, draft->n, offsets, &index_offset);
	for (size_t i = 0; i < draft->n; i++)
		version->blocks[draft->blocks[i]].pack_offset = offsets[i];
	draft->bytes = pack_size(index_offset, draft->n);
	return 0;
}

/* Epoch and generation are part of the name: a successor writes the same blocks, but maybe other packs of them. */
static int name_pack(struct packs *packs, struct pack_draft *draft)
{
	const struct csave *save = packs->save;
	const uint64_t epoch_mask = (UINT64_C(1) << (PACK_GENERATION_SHIFT - PACK_EPOCH_SHIFT)) - 1;
	uint64_t k = (uint64_t)save->slot.generation << PACK_GENERATION_SHIFT |
		     (save->group->epoch & epoch_mask) << PACK_EPOCH_SHIFT | packs->named[draft->node]++;

	return pack_key(view_str(save->group->tenant), view_str(save->bundle), save->save_id,
			save->recipe->nodes[draft->node], k, draft->key);
}

static int encode_upload(const struct packs *packs, const struct pack_draft *draft, struct buf *out)
{
	const struct csave *save = packs->save;
	struct list_buf blocks = { 0 };
	struct msg_g_upload upload = { .save_id = save->save_id,
				       .key = view_str(draft->key),
				       .epoch = save->group->epoch,
				       .number = save->slot.number };
	int r = 0;

	for (size_t i = 0; !r && i < draft->n; i++) {
		const struct version_block *block = &packs->version->blocks[draft->blocks[i]];
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

static int begin_upload(struct packs *packs, size_t number, struct uploads *uploads)
{
	struct pack_draft *draft = &packs->drafts[number];
	struct upload *upload = calloc(1, sizeof(*upload));
	int r = upload ? lay_out(packs->version, draft) : -ENOMEM;

	if (!r)
		r = name_pack(packs, draft);
	if (!r)
		r = encode_upload(packs, draft, &upload->call.body);
	if (r) {
		upload_free(upload);
		return r;
	}
	upload->call.node = packs->save->recipe->nodes[draft->node];
	upload->call.index = draft->node;
	upload->call.bytes = draft->bytes;
	upload->pack = number;
	upload->may_move = may_move(packs, draft);
	return uploads_begin(uploads, &upload);
}

/* Everything that waits is on its way then. */
static int begin_waiting(struct packs *packs, struct uploads *uploads, struct error *e)
{
	int r = packs->waiting ? check_waiting(packs, e) : 0;

	if (!r && packs->waiting)
		r = deal_out(packs);
	while (!r && packs->n_begun < packs->n)
		r = begin_upload(packs, packs->n_begun++, uploads);
	return r;
}

/* What a lost or slow node had to write waits again. */
static void settle(struct packs *packs, struct upload *upload)
{
	struct pack_draft *draft = &packs->drafts[upload->pack];

	save_lose_called(packs->save, &upload->call, 1);
	draft->written = !upload->call.result && !upload->given_up;
	packs->waiting |= !draft->written;
	for (size_t i = 0; !draft->written && i < draft->n; i++)
		packs->pack[draft->blocks[i]] = 0;
}

int packs_write(struct packs *packs, size_t first, size_t last, uint64_t deadline_ns, struct error *e)
{
	int r = find_stored(packs, first, last);

	if (!r && !first && last == packs->version->n_blocks) /* of parts, nobody knows how much of a pack all use */
		r = share(packs, deadline_ns);
	if (r)
		return r;
	struct uploads *uploads = uploads_new(packs->save, deadline_ns);
	struct upload *ended = NULL;
	if (!uploads)
		return -ENOMEM;
	do {
		r = begin_waiting(packs, uploads, e);
		if (!r)
			r = uploads_next(uploads, &ended, e);
		if (!r && ended)
			settle(packs, ended);
	} while (!r && ended);
	uploads_free(uploads);
	return r;
}

/* ---- as the version says it --------------------------------------------------------------------------------------------- */

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
static int list_shared(struct packs *packs)
{
	struct version *version = packs->version;
	const struct version *parent = packs->parent;
	_cleanup_(cleanup_mem) uint32_t *named = calloc(parent->n_packs + 1, sizeof(*named)); /* 1 + its number here */
	int r = named ? 0 : -ENOMEM;

	for (size_t b = 0; !r && b < version->n_blocks; b++) {
		if (packs->theirs[b] == SHARE_NOT)
			continue;
		const struct version_block *block = &parent->blocks[packs->theirs[b]];
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

int packs_list(struct packs *packs)
{
	struct version *version = packs->version;
	int r = 0;

	version->packs = calloc(packs->n + (packs->theirs ? packs->parent->n_packs : 0) + 1, sizeof(*version->packs));
	if (!version->packs)
		return -ENOMEM;
	for (size_t i = 0; !r && i < packs->n; i++) {
		const struct pack_draft *draft = &packs->drafts[i];

		if (!draft->written)
			continue;
		for (size_t k = 0; k < draft->n; k++)
			version->blocks[draft->blocks[k]].pack = (uint32_t)version->n_packs;
		r = add_pack(version, draft->key, packs->save->recipe->nodes[draft->node], draft->bytes);
	}
	if (!r && packs->theirs)
		r = list_shared(packs);
	if (r)
		return r;
	for (size_t b = 0; b < version->n_blocks; b++) {
		const struct version_block *first = &version->blocks[packs->first[b]];

		if (version->blocks[b].flags & BLOCK_HOLE)
			continue;
		version->blocks[b].pack = first->pack;
		version->blocks[b].pack_offset = first->pack_offset;
	}
	return 0;
}

int packs_forget(struct packs *packs, uint64_t deadline_ns)
{
	int r = 0;

	for (size_t i = 0; r != -ECANCELED && i < packs->n; i++)
		if (packs->drafts[i].key[0])
			r = pack_forget(packs->save->group->groups->bundles, packs->drafts[i].key, deadline_ns, NULL);
	return r == -ECANCELED ? r : 0;
}
