/*
 * group/capture.c: a node makes room for its part of a save, grants spans to its ranks, and takes in what they report.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/counter.h"
#include "group/member.h"

#define GRANTS_PER_FRAME 16384 /* of at most 44 bytes each: within a frame's body */

CLEANUP_OF(struct msave *, msave_put);
CLEANUP_OF(struct part *, part_put);

/* ---- the node's part ------------------------------------------------------------------------------------------------ */

static int by_rank_and_block(const void *a, const void *b)
{
	const struct part_block *x = a, *y = b;

	if (x->rank != y->rank)
		return x->rank < y->rank ? -1 : 1;
	return (x->block > y->block) - (x->block < y->block);
}

static int by_block(const void *a, const void *b)
{
	const struct part_receive *x = a, *y = b;

	return (x->block > y->block) - (x->block < y->block);
}

static int parse_lists(const struct msg_g_reserve *reserve, struct part *part, struct error *e)
{
	struct list_view blocks = reserve->blocks, receives = reserve->receives;
	struct elem_g_block block;
	struct elem_g_receive receive;
	int r;

	while ((r = elem_g_block_next(&blocks, &block)) == 0) {
		if (!block.bytes || block.bytes > BLOCK_BYTES_MAX || block.mode > CAPTURE_CHECK)
			return error_set(e, -EPROTO, "block %u of %u bytes in mode %u", block.block, block.bytes,
					 block.mode);
		part->blocks[part->n_blocks++] = (struct part_block){ .offset = block.offset,
								      .block = block.block,
								      .rank = block.rank,
								      .item = block.item,
								      .bytes = block.bytes,
								      .mode = block.mode };
	}
	if (r < 0)
		return r;
	while ((r = elem_g_receive_next(&receives, &receive)) == 0) {
		if (!receive.bytes || receive.bytes > BLOCK_BYTES_MAX)
			return error_set(e, -EPROTO, "block %u of %u bytes", receive.block, receive.bytes);
		part->receives[part->n_receives++] =
			(struct part_receive){ .block = receive.block, .bytes = receive.bytes };
	}
	return r < 0 ? r : 0;
}

static int parse_part(const struct msg_g_reserve *reserve, struct part **ret, struct error *e)
{
	_cleanup_(cleanup_part_put) struct part *part = calloc(1, sizeof(*part));
	int r;

	if (!part)
		return -ENOMEM;
	part->refs = 1;
	part->plan = reserve->plan;
	part->blocks =
		calloc(reserve->blocks.count + 1, sizeof(*part->blocks)); /* bounded by the frame: get_list saw to it */
	part->receives = calloc(reserve->receives.count + 1, sizeof(*part->receives));
	if (!part->blocks || !part->receives)
		return -ENOMEM;
	r = parse_lists(reserve, part, e);
	if (r)
		return r;
	qsort(part->blocks, part->n_blocks, sizeof(*part->blocks), by_rank_and_block);
	qsort(part->receives, part->n_receives, sizeof(*part->receives), by_block);
	r = part_order(part);
	if (!r)
		r = part_count_room(part);
	if (!r)
		*ret = TAKE(part);
	return r;
}

/* Each rank's run of blocks in the part; a block of a rank that is not here is a coordinator's error. */
static int find_ranges(struct msave *save, struct error *e)
{
	const struct part *part = save->part;
	size_t at = 0;

	list_each(node, &save->offers) {
		struct moffer *offer = list_entry(node, struct moffer, link);

		offer->first = at;
		for (; at < part->n_blocks && part->blocks[at].rank == offer->number; at++)
			if (part->blocks[at].item >= offer->structure->n_items)
				return error_set(e, -EPROTO, "rank %u has no item %u", offer->number,
						 part->blocks[at].item);
		offer->n = at - offer->first;
	}
	if (at < part->n_blocks)
		return error_set(e, -ERR_ERANK, "rank %u is not on this node any more", part->blocks[at].rank);
	return 0;
}

static struct msave *find_offered(struct groups *groups, const struct msg_g_reserve *reserve, struct mgroup **ret_group)
{
	_cleanup_(buf_fini) struct buf key = { 0 };

	*ret_group = NULL;
	if (group_key(&key, reserve->tenant, reserve->group, reserve->incarnation))
		return NULL;
	struct mgroup *group = map_get(&groups->members, view_buf(&key));
	if (!group)
		return NULL;
	*ret_group = group;
	list_each(node, &group->saves) {
		struct msave *save = list_entry(node, struct msave, group_link);

		if (save->state == SAVE_GATHERING && save->sent && save->step == reserve->step &&
		    view_equal(view_str(save->bundle), reserve->bundle))
			return save;
	}
	return NULL;
}

/* The plan by its number alone: the part that the node remembers, if it does. */
static struct part *remembered_part(const struct mgroup *group, const struct msg_g_reserve *reserve)
{
	struct part *part = group ? map_get(&group->parts, reserve->bundle) : NULL;

	if (!part || part->plan != reserve->plan)
		return NULL;
	part->refs++;
	return part;
}

/* No rank here offered anything of it: the node only takes copies. */
static int begin_holder(struct groups *groups, const struct msg_g_reserve *reserve, const struct part *part,
			const char *from, struct msave **ret, struct error *e)
{
	struct share *share;
	int r = groups_open(groups, e);

	if (!r)
		r = groups_share(groups, reserve->tenant, &share, e);
	if (!r && part->n_blocks)
		r = error_set(e, -ENOENT, "no rank of this node waits for step %" PRIu64 " of %.*s", reserve->step,
			      (int)reserve->bundle.len, (const char *)reserve->bundle.ptr);
	if (r)
		return r;
	struct msave *save = msave_new_holder(groups, reserve->tenant, reserve->group, reserve->incarnation,
					      reserve->bundle, reserve->step, from);
	if (!save)
		return -ENOMEM;
	*ret = save;
	return 0;
}

static int begin_reserve(struct msave *save, struct part **part, const struct msg_g_reserve *reserve, struct error *e)
{
	_cleanup_(buf_fini) struct buf key = { 0 };
	int r = group_key(&key, reserve->tenant, reserve->group, 0);

	save->part = TAKE(*part);
	save_state_move(&save->state, SAVE_RESERVING);
	if (!r)
		r = msave_set_id(save, reserve->save_id);
	turn_init(&save->turn, hash64(key.ptr, key.len, 0));
	return r ? r : find_ranges(save, e);
}

/*
 * As often as the coordinator asks, until there is room. What is refused the coordinator tells all ranks, those of this node, too: one that
 * hears of it first and leaves would be what the others are told.
 */
static int serve_room(struct msave *save, const struct msg_g_reserve *reserve, uint64_t deadline_ns, struct buf *answer,
		      struct error *e)
{
	const struct admit_terms terms = { .queue = reserve->queue, .room_ms = reserve->room_ms };
	struct msg_g_reserve_reply reply = { 0 };
	struct error full = { 0 };

	save->asking = true;
	int r = reserve->waves ? msave_begin_waves(save) : msave_admit(save, &terms, deadline_ns, &full);
	save->asking = false;
	if (r < 0)
		return error_set(e, r, "%s", full.code ? full.text : error_meaning(r));
	reply.full = r == ADMIT_FULL;
	reply.words = view_str(full.text);
	return msg_g_reserve_reply_encode(&reply, answer);
}

static int serve_reserve(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
			 struct error *e)
{
	struct groups *groups = arg;
	_cleanup_(cleanup_part_put) struct part *part = NULL;
	struct msg_g_reserve_reply need = { .need_items = 1 };
	struct msg_g_reserve reserve;
	struct mgroup *group;
	int r = msg_g_reserve_decode(body, &reserve);
	struct msave *known = r ? NULL : msave_by_id(groups, reserve.save_id);

	if (r || !reserve.save_id || (known && (known->state != SAVE_RESERVING || known->admitted || known->asking)))
		return error_set(e, -EPROTO, "malformed or repeated G_RESERVE from %s", from);
	if (known) {
		known->refs++;
		_cleanup_(cleanup_msave_put) struct msave *again = known;
		return serve_room(again, &reserve, deadline_ns, answer, e);
	}
	struct msave *found = find_offered(groups, &reserve, &group);
	if (reserve.cached)
		part = remembered_part(group, &reserve);
	else
		r = parse_part(&reserve, &part, e);
	if (r)
		return r;
	if (!part)
		return msg_g_reserve_reply_encode(&need, answer);
	if (!found)
		r = begin_holder(groups, &reserve, part, from, &found, e);
	if (r)
		return r;
	if (reserve.epoch < found->epoch)
		return error_set(e, -ERR_ESTALEEPOCH, "group %s has a newer coordinator, node %s", found->group->name,
				 found->group->coordinator);
	found->epoch = reserve.epoch;

	found->refs++;
	_cleanup_(cleanup_msave_put) struct msave *save = found;
	r = begin_reserve(save, &part, &reserve, e);
	return r ? r : serve_room(save, &reserve, deadline_ns, answer, e);
}

/* ---- grants --------------------------------------------------------------------------------------------------------- */

static int push_grants(struct msave *save, struct moffer *offer, size_t first, size_t n, bool last)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	struct list_buf grants = { 0 };
	struct msg_grant grant = { .mode = save->hinted ? GRANT_HINTED : GRANT_FULL, .last = last };
	const struct arena *arena = pool_arena(store_pool(save->group->share->store), POOL_CAPTURE);
	int r = 0;

	for (size_t i = first; !r && i < first + n; i++) {
		const struct part_block *part = &save->part->blocks[i];
		const struct block *block = save->blocks[i].block;
		struct elem_grant elem = { .item = part->item,
					   .block = part->block,
					   .offset = part->offset,
					   .bytes = part->bytes,
					   .arena = block ? arena->id : 0,
					   .arena_offset = block ? block->offset : 0 };

		r = elem_grant_append(&grants, &elem);
	}
	grant.grants = list_buf_view(&grants);
	if (!r)
		r = msg_grant_encode(&grant, &body);
	list_buf_fini(&grants);
	if (!r && offer->rank)
		offer->rank->events.push(offer->rank->events.arg, MSG_GRANT, offer->client_save, view_buf(&body));
	return r;
}

static int grant_all(struct msave *save, uint32_t first, uint32_t last)
{
	size_t at, end;
	int r = 0;

	list_each(node, &save->offers) {
		struct moffer *offer = list_entry(node, struct moffer, link);

		moffer_range(save, offer, first, last, &at, &end);
		offer->outstanding = end - at;
		for (size_t i = at; i < end; i++)
			save->blocks[i].filled = false;
		for (size_t n; !r && at < end; at += n) {
			n = end - at < GRANTS_PER_FRAME ? end - at : GRANTS_PER_FRAME;
			r = push_grants(save, offer, at, n, at + n == end);
		}
	}
	return r;
}

static size_t outstanding(const struct msave *save)
{
	size_t n = 0;

	list_each(node, &save->offers)
		n += list_entry(node, struct moffer, link)->outstanding;
	return n;
}

static int serve_capture(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
			 struct error *e)
{
	struct groups *groups = arg;
	struct msg_g_capture capture = { 0 };
	int r = msg_g_capture_decode(body, &capture);
	int code = r;
	_cleanup_(cleanup_msave_put) struct msave *save =
		r ? NULL : msave_held(groups, capture.save_id, capture.epoch, from, &code, e);

	if (!save)
		return code;
	if (!save->admitted || !save_state_may_move(save->state, SAVE_CAPTURING))
		return error_set(e, -ENOENT, "no save %016" PRIx64 " to capture here", capture.save_id);
	save_state_move(&save->state, SAVE_CAPTURING);
	save->hinted = capture.hinted;
	save->reported = false;
	const uint32_t last = capture.last ? capture.last : UINT32_MAX;
	r = grant_all(save, capture.first, last);
	while (!r && save->state == SAVE_CAPTURING && outstanding(save))
		r = wait_at(&save->changed, deadline_ns);
	if (r == -ETIMEDOUT)
		return error_set(e, r, "%zu blocks were not captured in time", outstanding(save));
	if (!r && save->state != SAVE_CAPTURING)
		return error_set(e, save->error.code ? save->error.code : -ECANCELED, "%s", save->error.text);
	if (!r)
		r = report_answer(save, capture.first, last, answer);
	save->reported = !r && !save->waves;
	return r;
}

/* ---- waves ---------------------------------------------------------------------------------------------------------- */

static struct msave *find_wave(struct groups *groups, const struct msg_g_wave *wave, const char *from, int *ret_code,
			       struct error *e)
{
	_cleanup_(cleanup_msave_put) struct msave *save =
		msave_held(groups, wave->save_id, wave->epoch, from, ret_code, e);

	if (!save || save->waves)
		return TAKE(save);
	*ret_code = error_set(e, -ENOENT, "save %016" PRIx64 " does not go through here", wave->save_id);
	return NULL;
}

static int serve_wave(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
		      struct error *e)
{
	struct msg_g_wave wave = { 0 };
	int r = msg_g_wave_decode(body, &wave);
	_cleanup_(cleanup_msave_put) struct msave *save = r ? NULL : find_wave(arg, &wave, from, &r, e);

	if (!save)
		return r;
	r = msave_admit_wave(save, wave.first, wave.last, deadline_ns, e);
	if (r)
		msave_fail(save, r, e->code ? e->text : error_meaning(r));
	return r;
}

static int serve_release(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
			 struct error *e)
{
	struct msg_g_wave wave = { 0 };
	int r = msg_g_wave_decode(body, &wave);
	_cleanup_(cleanup_msave_put) struct msave *save = r ? NULL : find_wave(arg, &wave, from, &r, e);

	if (!save)
		return r;
	msave_release_wave(save, wave.first, wave.last);
	return 0;
}

/* ---- what ranks report ---------------------------------------------------------------------------------------------- */

struct filling { /* one FILLED message, checked on a worker */
	struct msave *save;
	size_t *places; /* into the part */
	size_t n;
	struct elem_filled *filled;
};

/*
 * The place of a block among those of the rank: SIZE_MAX when it has none such, or reported it before. @next: where it mostly is,
 * since ranks report in the order in which they were granted.
 */
static size_t find_place(const struct msave *save, const struct moffer *offer, uint32_t block, size_t next)
{
	const struct part_block *blocks = save->part->blocks, *at = blocks + next;

	if (next >= offer->first + offer->n || at->block != block) {
		const struct part_block key = { .rank = offer->number, .block = block };

		at = bsearch(&key, blocks + offer->first, offer->n, sizeof(key), by_rank_and_block);
	}
	return at && !save->blocks[at - blocks].filled ? (size_t)(at - blocks) : SIZE_MAX;
}

static int parse_filled(struct filling *filling, const struct moffer *offer, struct list_view list, struct error *e)
{
	struct msave *save = filling->save;
	size_t next = offer->first;
	int r;

	filling->places = malloc((list.count + 1) * sizeof(*filling->places));
	filling->filled = malloc((list.count + 1) * sizeof(*filling->filled));
	if (!filling->places || !filling->filled)
		return -ENOMEM;
	while ((r = elem_filled_next(&list, &filling->filled[filling->n])) == 0) {
		size_t place = find_place(save, offer, filling->filled[filling->n].block, next);

		if (place == SIZE_MAX)
			return error_set(e, -EPROTO,
					 "rank %u reported block %u, which it was not granted or has reported",
					 offer->number, filling->filled[filling->n].block);
		save->last_rank = offer->number;
		save->blocks[place].filled = true; /* a second report of it is refused from here on */
		filling->places[filling->n++] = place;
		next = place + 1;
	}
	return r == 1 ? 0 : r;
}

/* The holder sums what it holds: a copy that is not what the rank says that it copied never gets further. */
static int check_on_worker(void *arg)
{
	struct filling *filling = arg;

	for (size_t i = 0; i < filling->n; i++) {
		const struct block *block = filling->save->blocks[filling->places[i]].block;
		const struct elem_filled *filled = &filling->filled[i];

		if (!block || (filled->flags & FILLED_ZERO)) /* of zeros nothing is held, nor was anything written */
			continue;
		if (crc32c(0, block->ptr, block->bytes) != filled->crc)
			return -ERR_ECHANGED;
	}
	return 0;
}

static int accept_filled(struct filling *filling)
{
	struct msave *save = filling->save;
	uint64_t bytes = 0;
	int r = 0;

	for (size_t i = 0; !r && i < filling->n; i++) {
		struct mblock *block = &save->blocks[filling->places[i]];
		const struct elem_filled *filled = &filling->filled[i];

		block->digest = filled->digest;
		block->crc = filled->crc;
		block->flags = filled->flags;
		block->sample = filled->sample;
		bytes += block->block && !(filled->flags & FILLED_ZERO) ? block->block->bytes : 0;
		if (save->hinted || !block->block)
			continue;
		if (filled->flags & FILLED_ZERO) {
			block_unpin(block->block); /* a hole takes no room */
			block->block = NULL;
			continue;
		}
		r = msave_index(&block->block, &block->digest, block->crc);
	}
	count(COUNT_CAPTURED_BYTES, bytes);
	return r;
}

static struct msave *find_by_number(struct rank *rank, uint64_t number, struct moffer **ret)
{
	list_each(node, &rank->group->saves) {
		struct msave *save = list_entry(node, struct msave, group_link);
		struct moffer *offer = msave_offer_of(save, rank);

		if (offer && offer->client_save == number) {
			*ret = offer;
			return save;
		}
	}
	return NULL;
}

int group_filled(struct rank *rank, const struct msg_filled *filled, struct error *e)
{
	struct filling filling = { 0 };
	struct moffer *offer;
	struct msave *found = find_by_number(rank, filled->save, &offer);
	int r;

	if (!found || found->state != SAVE_CAPTURING)
		return 0; /* it has failed meanwhile, and the rank will hear of it */
	found->refs++;
	_cleanup_(cleanup_msave_put) struct msave *save = found;
	filling.save = save;
	r = parse_filled(&filling, offer, filled->filled, e);
	if (!r && !save->hinted)
		r = env_call(save->groups->env, check_on_worker, &filling);
	if (r == -ERR_ECHANGED)
		(void)error_set(
			e, r, "rank %u: captured bytes of step %" PRIu64 " of %s were changed before they were checked",
			offer->number, save->step, save->bundle);
	if (!r && save->state == SAVE_CAPTURING)
		r = accept_filled(&filling);
	if (r) /* what it refused stays outstanding: this capture does not end well any more */
		tell_failed(save->group, view_str(save->bundle), save->step, r, e->code ? e->text : error_meaning(r));
	else
		offer->outstanding -= filling.n < offer->outstanding ? filling.n : offer->outstanding;
	if (!outstanding(save))
		wake_all(&save->changed);
	msave_settled(save);
	free(filling.places);
	free(filling.filled);
	return r;
}

void capture_serve(struct groups *groups)
{
	cluster_serve(groups->cluster, MSG_G_RESERVE, serve_reserve, groups);
	cluster_serve(groups->cluster, MSG_G_CAPTURE, serve_capture, groups);
	cluster_serve(groups->cluster, MSG_G_WAVE, serve_wave, groups);
	cluster_serve(groups->cluster, MSG_G_RELEASE, serve_release, groups);
}
