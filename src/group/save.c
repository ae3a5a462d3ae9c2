/*
 * group/save.c: a grouped save as its coordinator lives it: gather, plan, reserve, capture, copy, publish.
 *
 * save_run() is the itinerary. It runs in a fiber inside the save's own nursery, so that a lost rank, a newer run or a lost lease
 * stops it at its next wait; save_life() around it then settles: whatever happened, each rank's futures end exactly once.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/point.h"
#include "group/inside.h"

#define ROOM_LOOK_MS  200  /* a save that replaces others looks so often whether one may be dropped */
#define ROOM_FREED_MS 2000 /* what was dropped may still be on its way to the store: its room comes by then */

void csave_put(struct csave *save)
{
	if (!save || --save->refs)
		return;
	recipe_put(save->recipe);
	buf_fini(&save->attributes);
	slot_fini(&save->slot);
	publishing_free(save->publishing);
	free(save->offered);
	free(save->ranks);
	free(save->reports);
	free(save->nodes);
	free(save->bundle);
	cgroup_put(save->group);
	free(save);
}

CLEANUP_OF(struct csave *, csave_put);

struct csave *csave_new(struct cgroup *group, struct view bundle, uint32_t n_ranks)
{
	_cleanup_(cleanup_csave_put) struct csave *save = calloc(1, sizeof(*save));

	if (!save)
		return NULL;
	save->refs = 1;
	list_init(&save->link);
	waitplace_init(&save->changed);
	nursery_init(&save->flow, group->groups->env->loop);
	save->group = cgroup_get(group);
	save->bundle = view_dup(bundle);
	save->recipe = recipe_new(n_ranks);
	save->offered = calloc(n_ranks, sizeof(*save->offered));
	save->ranks = calloc(n_ranks, sizeof(*save->ranks));
	if (!save->bundle || !save->recipe || !save->offered || !save->ranks)
		return NULL;
	return TAKE(save);
}

void save_enter(struct csave *save, enum save_state state)
{
	save_state_move(&save->state, state);
	save->at_ns[state] = env_now(save->group->groups->env);
	trace_entered(save, state);
	logm(LOG_DEBUG, "save.state", "save=%016" PRIx64 " group=%s bundle=%s step=%" PRIu64 " state=%s", save->save_id,
	     save->group->name, save->bundle, save->step, save_state_name(state));
}

uint64_t save_drain_deadline(const struct csave *save)
{
	return env_in_ms(save->group->groups->env, DRAIN_TIMEOUT_MS);
}

/* ---- gather -------------------------------------------------------------------------------------------------------- */

static int late_error(const struct csave *save, struct error *e)
{
	_cleanup_(buf_fini) struct buf names = { 0 };
	uint32_t n_ranks = save->recipe->n_ranks, missing = n_ranks - save->n_offered;

	for (uint32_t i = 0, named = 0; i < n_ranks && named < NAMES_IN_ERROR; i++)
		if (!save->offered[i])
			(void)buf_printf(&names, "%srank %u on node %s", named++ ? ", " : "", i, save->ranks[i].node);
	return error_set(e, -ERR_ERANK, "step %" PRIu64 " of %s: %u of %u ranks did not offer in time: %.*s%s",
			 save->step, save->bundle, missing, n_ranks, (int)names.len, names.ptr,
			 missing > NAMES_IN_ERROR ? ", ..." : "");
}

static int save_gather(struct csave *save, struct error *e)
{
	/* a node that waits for one of its ranks knows better who is late */
	uint64_t deadline_ns = env_in_ms(save->group->groups->env, GATHER_TIMEOUT_MS + SETTLE_MS);

	while (save->n_offered < save->recipe->n_ranks) {
		int r = wait_at(&save->changed, deadline_ns);

		if (r)
			return r == -ETIMEDOUT ? late_error(save, e) : r;
	}
	return 0;
}

/* ---- plan ----------------------------------------------------------------------------------------------------------- */

int save_planned(struct csave *save)
{
	save->reports = calloc(save->recipe->plan.n_blocks + 1, sizeof(*save->reports));
	save->nodes = calloc(save->recipe->n_nodes + 1, sizeof(*save->nodes));
	return save->reports && save->nodes ? 0 : -ENOMEM;
}

static int engine_missed(const struct csave *save, struct error *e)
{
	char place[ENGINE_PLACE_MAX];

	engine_place(save->group->groups, place);
	return error_set(e, -ETIMEDOUT,
			 "step %" PRIu64 " of %.100s: the index has not answered in time: its engine is %s (%.160s)",
			 save->step, save->bundle, place, e->text);
}

/* Who is there, by the index. While its engine is away the save waits for it, as long as it would have waited for a rank. */
static int find_nodes(const struct csave *save, struct node_info **ret, size_t *ret_n, struct error *e)
{
	struct groups *groups = save->group->groups;
	uint64_t least_ns = env_in_ms(groups->env, SETTLE_MS);
	uint64_t deadline_ns = save->at_ns[SAVE_GATHERING] + GATHER_TIMEOUT_MS * NS_PER_MS;

	deadline_ns = deadline_ns > least_ns ? deadline_ns : least_ns;
	for (;;) {
		*e = (struct error){ 0 };
		int r = cluster_nodes(groups->cluster, deadline_ns, ret, ret_n, e);
		if (!cluster_is_away(r) && r != -ETIMEDOUT)
			return r;
		if (env_now(groups->env) >= deadline_ns)
			return engine_missed(save, e);
		r = fiber_sleep_until(env_in_ms(groups->env, ENGINE_AWAY_MS));
		if (r)
			return r;
	}
}

/* A planner knows no step and no bundle. */
static int planned_or_named(const struct csave *save, int r, struct error *e)
{
	if (!r)
		return 0;
	if (!e->code)
		(void)error_set(e, r, "it cannot be planned: %s", error_meaning(r));
	return error_prefix(e, "step %" PRIu64 " of %.100s", save->step, save->bundle);
}

static int save_make_plan(struct csave *save, struct error *e)
{
	struct groups *groups = save->group->groups;
	struct recipe *recipe = save->recipe;
	struct node_info *infos = NULL;
	size_t n = 0;
	int r = find_nodes(save, &infos, &n, e);

	recipe->copies = save->policy == POLICY_THROUGH ? 1 : save->copies; /* nothing stays in memory */
	recipe->block_bytes = save_block_bytes(save);
	recipe->room_bytes = save->policy == POLICY_THROUGH ? 0 : save->arenas_bytes;
	if (!r)
		r = planned_or_named(save, recipe_set_nodes(recipe, save->ranks, infos, n, e), e);
	free(infos);
	if (r)
		return r;
	recipe->structure = recipe_structure(recipe);

	struct recipe *known = map_get(&save->group->remembered, view_str(save->bundle));
	if (known && known->structure == recipe->structure) {
		known->refs++;
		recipe_put(save->recipe);
		save->recipe = known;
		save->remembered = true;
	} else {
		r = planned_or_named(save, recipe_make(groups->env, recipe, e), e);
		if (r)
			return r;
	}
	return save_planned(save);
}

/* The plan was good for a whole capture: the next save of the same structure starts from it. */
void save_remember(struct csave *save)
{
	struct recipe *known = map_get(&save->group->remembered, view_str(save->bundle));

	if (known == save->recipe || save->group->incarnation != save->incarnation)
		return;
	recipe_put(map_remove(&save->group->remembered, view_str(save->bundle)));
	while (save->group->remembered.n >= REMEMBERED_MAX)
		recipe_put(map_remove(&save->group->remembered, map_key(map_first(&save->group->remembered))));
	if (!map_put(&save->group->remembered, view_str(save->bundle), save->recipe))
		save->recipe->refs++;
}

/* ---- reserve -------------------------------------------------------------------------------------------------------- */

static bool captures(const struct save_block *block, uint32_t rank, uint32_t copies)
{
	if (block->rank == rank)
		return true;
	for (uint32_t k = 1; k < copies; k++)
		if (block->holder_rank[k] == rank)
			return true;
	return false;
}

/* Each node's part of the plan, as lists: what its ranks capture or check, what it receives. */
struct node_part {
	struct list_buf blocks, receives;
};

static int list_parts(const struct recipe *recipe, struct node_part *parts)
{
	int r = 0;

	for (size_t b = 0; !r && b < recipe->plan.n_blocks; b++) {
		const struct save_block *block = &recipe->plan.blocks[b];
		const struct catalog_unique *unique = &recipe->catalog.uniques[block->unique];

		for (uint32_t i = 0; !r && i < unique->n_offers; i++) {
			const struct catalog_offer *offer = &recipe->catalog.offers[unique->first_offer + i];
			struct elem_g_block elem = { .block = (uint32_t)b,
						     .rank = offer->rank,
						     .item = offer->item,
						     .offset = block->offset,
						     .bytes = block->bytes,
						     .mode = captures(block, offer->rank, recipe->copies) ?
								     CAPTURE_COPY :
								     CAPTURE_CHECK };

			r = elem_g_block_append(&parts[recipe->rank_node[offer->rank]].blocks, &elem);
		}
		for (uint32_t k = 1; !r && k < recipe->copies; k++) {
			struct elem_g_receive receive = { .block = (uint32_t)b, .bytes = block->bytes };

			if (block->holder_rank[k] == SAVE_COPIED)
				r = elem_g_receive_append(&parts[block->holder[k]].receives, &receive);
		}
	}
	return r;
}

static bool has_ranks(const struct csave *save, size_t node)
{
	for (uint32_t rank = 0; rank < save->recipe->n_ranks; rank++)
		if (save->recipe->rank_node[rank] == node)
			return true;
	return false;
}

bool save_takes_part(const struct csave *save, size_t node)
{
	return save->recipe->plan.node_receive_bytes[node] || save->nodes[node].joined || has_ranks(save, node);
}

static struct msg_g_reserve reserve_head(const struct csave *save)
{
	return (struct msg_g_reserve){
		.tenant = view_str(save->group->tenant),
		.group = view_str(save->group->name),
		.incarnation = save->incarnation,
		.save_id = save->save_id,
		.bundle = view_str(save->bundle),
		.step = save->step,
		.plan = save->recipe->structure ^ save->recipe->plan.fingerprint,
		.epoch = save->group->epoch,
	};
}

enum { ROOM_FULL = 1 }; /* outcome of ask_room() */

static int read_room(const struct csave *save, const struct fan_call *call, bool *ret_need, struct error *e)
{
	struct msg_g_reserve_reply reply;
	int r = msg_g_reserve_reply_decode(view_buf(&call->answer), &reply);

	if (r)
		return r;
	*ret_need = reply.need_items;
	if (!reply.full)
		return 0;
	(void)error_set(e, -ERR_ESKIPPED, "step %" PRIu64 " of %s was skipped: node %s has no room for it now: %.*s",
			save->step, save->bundle, call->node, (int)reply.words.len, reply.words.ptr);
	return ROOM_FULL;
}

/* Asks one node to make room; with @part NULL by the plan's number alone, which it may not remember: *ret_need. 0, ROOM_FULL. */
static int ask_room(struct csave *save, size_t node, const struct node_part *part, uint32_t room_ms, bool *ret_need,
		    struct error *e)
{
	struct fan_call *call = fan_new(1);
	struct msg_g_reserve reserve = reserve_head(save);

	if (!call)
		return -ENOMEM;
	reserve.cached = !part;
	reserve.queue = save->policy != POLICY_SKIP;
	reserve.room_ms = room_ms;
	reserve.waves = save->policy == POLICY_THROUGH;
	if (part) {
		reserve.blocks = list_buf_view(&part->blocks);
		reserve.receives = list_buf_view(&part->receives);
	}
	call->node = save->recipe->nodes[node];
	int r = msg_g_reserve_encode(&reserve, &call->body);
	if (!r)
		r = fan_out(save->group->groups, MSG_G_RESERVE, call, 1, save_drain_deadline(save), e);
	trace_calls(save, STATION_RESERVE, call, 1);
	if (!r)
		r = read_room(save, call, ret_need, e);
	fan_free(call, 1);
	return r;
}

static void parts_free(struct node_part *parts, size_t n)
{
	for (size_t i = 0; parts && i < n; i++) {
		list_buf_fini(&parts[i].blocks);
		list_buf_fini(&parts[i].receives);
	}
	free(parts);
}

/* The node says that it is full: drops saves of the group, or waits for one that may be dropped, until it is not. */
static int replace_others(struct csave *save, size_t node, struct error *e)
{
	const char *name = save->recipe->nodes[node];
	uint64_t deadline_ns = save_drain_deadline(save);
	bool dropped, need = false;
	int r = ROOM_FULL;

	while (r == ROOM_FULL && env_now(save->group->groups->env) < deadline_ns) {
		r = save_make_way(save, name, &dropped, e);
		if (!r)
			r = ask_room(save, node, NULL, dropped ? ROOM_FREED_MS : ROOM_LOOK_MS, &need, e);
	}
	if (r == ROOM_FULL)
		r = error_set(e, -ETIMEDOUT, "node %s had no room for step %" PRIu64 " of %s in time", name, save->step,
			      save->bundle);
	return r;
}

/* One node's room. @parts: of all nodes, made when one of them does not remember its part. */
static int reserve_node(struct csave *save, size_t node, struct node_part **parts, struct error *e)
{
	const struct recipe *recipe = save->recipe;
	uint32_t room_ms = save->policy == POLICY_WAIT ? UINT32_MAX : 0;
	bool need = !save->remembered;
	int r = need ? 0 : ask_room(save, node, NULL, room_ms, &need, e);

	if (!r && need && !*parts) {
		*parts = calloc(recipe->n_nodes + 1, sizeof(**parts));
		r = *parts ? list_parts(recipe, *parts) : -ENOMEM;
	}
	if (!r && need)
		r = ask_room(save, node, &(*parts)[node], room_ms, &need, e);
	if (!r && need)
		r = error_set(e, -EPROTO, "node %s does not take its part of the plan", recipe->nodes[node]);
	if (r != ROOM_FULL)
		return r;
	return save->policy == POLICY_REPLACE ? replace_others(save, node, e) : -ERR_ESKIPPED;
}

/* A node that was to hold copies alone is lost, or about to end: others will have them. Which does not stop the save, before captured either. */
static int do_without(struct csave *save, size_t node, int r, struct error *e)
{
	if ((r != -ERR_ENODE && r != -ESHUTDOWN) || has_ranks(save, node))
		return r;
	save_lose_node(save, node, e->text);
	*e = (struct error){ 0 };
	return 0;
}

/* Node by node in the order of their names, as every save does: two groups that share nodes never wait for each other in a circle. */
static int save_reserve(struct csave *save, struct error *e)
{
	struct node_part *parts = NULL;
	int r = 0;

	for (size_t node = 0; !r && node < save->recipe->n_nodes; node++)
		if (save_takes_part(save, node) && !save->nodes[node].lost)
			r = do_without(save, node, reserve_node(save, node, &parts, e), e);
	parts_free(parts, save->recipe->n_nodes);
	return r;
}

/* ---- capture -------------------------------------------------------------------------------------------------------- */

/* Takes in what one node's ranks reported. Replicas of a block must agree: in their digests, or when hinted in their samples. */
static int take_reports(struct csave *save, const char *node, struct view answer, bool hinted, struct error *e)
{
	struct msg_g_capture_reply reply;
	struct elem_g_filled filled;
	int r = msg_g_capture_reply_decode(answer, &reply);

	while (!r && (r = elem_g_filled_next(&reply.filled, &filled)) == 0) {
		if (filled.block >= save->recipe->plan.n_blocks)
			return error_set(e, -EPROTO, "node %s reported block %u of %zu", node, filled.block,
					 save->recipe->plan.n_blocks);
		struct block_report *report = &save->reports[filled.block];
		bool chosen = filled.rank == save->recipe->plan.blocks[filled.block].rank;
		bool equal = hinted ? report->sample == filled.sample : digest_equal(&report->digest, &filled.digest);

		if (report->reported && !equal && !report->conflict) {
			report->conflict = true;
			report->other = filled.rank;
		}
		if (chosen || !report->reported) {
			if (report->conflict && chosen)
				report->other = report->rank;
			report->digest = filled.digest;
			report->crc = filled.crc;
			report->flags = filled.flags;
			report->sample = filled.sample;
			report->rank = filled.rank;
		}
		report->reported = true;
	}
	return r == 1 ? 0 : r;
}

/* Each block was reported: by the rank that captures it, or, when its node is lost, by another that did, too. */
static int check_reported(const struct csave *save, uint32_t first, uint32_t last, struct error *e)
{
	const struct save_plan *plan = &save->recipe->plan;

	for (size_t b = first; b < last; b++) {
		const struct block_report *report = &save->reports[b];
		bool lost = save->nodes[plan->blocks[b].holder[0]].lost;

		if (report->reported && (lost || report->rank == plan->blocks[b].rank))
			continue;
		if (lost)
			return save_block_lost(save, b, e);
		return error_set(e, -EPROTO, "block %zu was not reported by rank %u that captures it", b,
				 plan->blocks[b].rank);
	}
	return 0;
}

/* One call to every node that takes part, whose answers are reports. Before `captured` the loss of one that has ranks is one too many. */
static int ask_reports(struct csave *save, enum msg_type type, bool hinted, uint32_t first, uint32_t last,
		       struct error *e)
{
	const struct recipe *recipe = save->recipe;
	struct groups *groups = save->group->groups;
	struct fan_call *calls = fan_new(recipe->n_nodes);
	size_t n = 0;
	int r = calls ? 0 : -ENOMEM;

	memset(save->reports + first, 0, (last - first) * sizeof(*save->reports));
	for (size_t node = 0; !r && node < recipe->n_nodes; node++) {
		struct msg_g_capture capture = { .save_id = save->save_id,
						 .hinted = hinted,
						 .epoch = save->group->epoch,
						 .first = first,
						 .last = last };
		struct msg_save_id id = { .save_id = save->save_id, .epoch = save->group->epoch };

		if (!save_takes_part(save, node) || save->nodes[node].lost)
			continue;
		calls[n].node = recipe->nodes[node];
		calls[n].index = node;
		calls[n].spare = !has_ranks(save, node);
		r = type == MSG_G_CAPTURE ? msg_g_capture_encode(&capture, &calls[n].body) :
					    msg_save_id_encode(&id, &calls[n].body);
		n++;
	}
	if (!r && type == MSG_G_CAPTURE)
		r = fan_out(groups, type, calls, n, save_drain_deadline(save), e);
	else if (!r)
		r = fan_survive(groups, type, calls, n, save_drain_deadline(save), e);
	trace_reports(save, type == MSG_G_CAPTURE ? STATION_CAPTURE : STATION_DIGEST, calls, n);
	save_lose_called(save, calls, n);
	for (size_t i = 0; !r && i < n; i++)
		if (!calls[i].result)
			r = take_reports(save, calls[i].node, view_buf(&calls[i].answer), hinted, e);
	fan_free(calls, n);
	return r ? r : check_reported(save, first, last, e);
}

static const struct block_report *first_conflict(const struct csave *save, size_t first, size_t last, size_t *ret_block)
{
	for (size_t b = first; b < last; b++) {
		if (save->reports[b].conflict) {
			*ret_block = b;
			return &save->reports[b];
		}
	}
	return NULL;
}

static int replica_error(const struct csave *save, const struct block_report *report, size_t block, struct error *e)
{
	const struct catalog *catalog = &save->recipe->catalog;
	const struct view *name = &catalog->items[catalog->uniques[save->recipe->plan.blocks[block].unique].item].name;
	uint32_t a = report->rank < report->other ? report->rank : report->other;
	uint32_t b = report->rank < report->other ? report->other : report->rank;

	return error_set(e, -ERR_EREPLICA, "item \"%.*s\": rank %u and rank %u hold different bytes for the same box",
			 (int)name->len, name->ptr, a, b);
}

int save_capture_blocks(struct csave *save, uint32_t first, uint32_t last, struct error *e)
{
	size_t block;
	int r = ask_reports(save, MSG_G_CAPTURE, false, first, last, e);

	if (!r)
		trace_at(save, STATION_VERDICT);
	const struct block_report *conflict = r ? NULL : first_conflict(save, first, last, &block);

	return conflict ? replica_error(save, conflict, block, e) : r;
}

/*
 * Full: every rank hashes what it offers, equal boxes must have equal digests. Hinted: ranks copy and sample alone; samples that
 * differ void the hint, and all capture again in full before anybody is told `captured`.
 */
static int save_capture(struct csave *save, bool *ret_hinted, struct error *e)
{
	const uint32_t n = (uint32_t)save->recipe->plan.n_blocks;
	size_t block;

	*ret_hinted = (save->flags & SAVE_SAME_STRUCTURE) && save->remembered;
	if (!*ret_hinted)
		return save_capture_blocks(save, 0, n, e);
	int r = ask_reports(save, MSG_G_CAPTURE, true, 0, n, e);
	if (!r)
		trace_at(save, STATION_VERDICT);
	if (r || !first_conflict(save, 0, n, &block))
		return r;
	*ret_hinted = false;
	save_state_move(&save->state, SAVE_CAPTURING);
	trace_at(save, STATION_CAPTURE);
	return save_capture_blocks(save, 0, n, e);
}

/* After a hinted capture the daemons hash what they hold; replicas that turn out to differ are replaced by copies. */
static int save_digest(struct csave *save, struct error *e)
{
	trace_at(save, STATION_DIGEST);
	int r = ask_reports(save, MSG_G_DIGEST, false, 0, (uint32_t)save->recipe->plan.n_blocks, e);

	for (size_t b = 0; !r && b < save->recipe->plan.n_blocks; b++)
		save->diverged_blocks += save->reports[b].conflict;
	return r;
}

/* ---- nodes that are lost ------------------------------------------------------------------------------------------- */

int save_list_nodes(const struct csave *save, struct list_buf *names)
{
	int r = 0;

	for (size_t node = 0; !r && node < save->recipe->n_nodes; node++) {
		struct elem_name name = { .name = view_str(save->recipe->nodes[node]) };

		r = elem_name_append(names, &name);
	}
	return r;
}

void save_lose_node(struct csave *save, size_t node, const char *why)
{
	if (save->nodes[node].lost)
		return;
	save->nodes[node].lost = true;
	save->n_lost++;
	snprintf(save->nodes[node].why, sizeof(save->nodes[node].why), "%.150s", why);
	logm(LOG_WARN, "save.node-lost", "save=%016" PRIx64 " group=%s bundle=%s step=%" PRIu64 " peer=%s words=\"%s\"",
	     save->save_id, save->group->name, save->bundle, save->step, save->recipe->nodes[node], why);
}

void save_lose_called(struct csave *save, const struct fan_call *calls, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (fan_lost(&calls[i]))
			save_lose_node(save, calls[i].index, calls[i].error.text);
}

void save_name_slow(struct csave *save, size_t node, enum slow_way way, const char *words)
{
	struct node_state *state = &save->nodes[node];

	if (state->lost || state->slow & way)
		return;
	if (!state->slow) {
		save->n_slow++;
		trace_slow(save, save->recipe->nodes[node]);
	}
	state->slow |= way;
	if (way == SLOW_WRITES)
		point_reached(POINT_NODE_SLOW);
	logm(LOG_WARN, "save.node-slow", "save=%016" PRIx64 " group=%s bundle=%s step=%" PRIu64 " peer=%s words=\"%s\"",
	     save->save_id, save->group->name, save->bundle, save->step, save->recipe->nodes[node], words);
}

int save_block_lost(const struct csave *save, size_t block, struct error *e)
{
	const struct recipe *recipe = save->recipe;
	const struct save_block *planned = &recipe->plan.blocks[block];
	const struct view *name = &recipe->catalog.items[recipe->catalog.uniques[planned->unique].item].name;
	size_t node = planned->holder[0];

	for (uint32_t k = 1; k < recipe->copies && !save->nodes[node].lost; k++)
		node = planned->holder[k];
	return error_set(e, -ERR_ENODE, "item \"%.*s\" of step %" PRIu64 " is lost: its last copy was on node %s: %s",
			 (int)name->len, name->ptr, save->step, recipe->nodes[node], save->nodes[node].why);
}

/* ---- the itinerary -------------------------------------------------------------------------------------------------- */

int save_reach(struct csave *save, enum save_state state, struct error *e)
{
	save_enter(save, state);
	return save_tell(save, state, 0, "", true, e);
}

/* What is durable is more than staged: with too few copies, or a root that was found, the one comes with the other. */
static void end_durable(struct csave *save)
{
	if (save->state == SAVE_CAPTURED)
		save_enter(save, SAVE_STAGED);
	save_enter(save, SAVE_DURABLE);
}

/* From captured to durable: what survives nodes, ranks and, by a successor who begins here, the coordinator. */
static int save_finish(struct csave *save, struct error *e)
{
	unsigned seen;
	int r;

	do {
		seen = save->n_lost;
		trace_at(save, STATION_COPY);
		r = save_copy(save, e); /* until every block has its R verified holders */
		if (!r)
			r = save_keep(save, e); /* what a successor needs */
	} while (!r && save->n_lost != seen);
	if (r)
		return r;
	point_reached(POINT_SAVE_STAGED);
	trace_at(save, STATION_STAGED);
	r = save->short_of_copies ? 0 : save_reach(save, SAVE_STAGED, e);
	if (!r)
		r = save_publish(save, save_drain_deadline(save), e); /* slot, packs, segments, root, index */
	if (r)
		return r;
	end_durable(save);
	return 0;
}

/* A parent that never was is a mistake, told before anything is taken. Where the index does not answer, the slot's opening sees to the parent. */
static int save_check_parent(const struct csave *save, struct error *e)
{
	struct groups *groups = save->group->groups;
	struct error words = { 0 };

	if (!save->parent)
		return 0;
	int r = slot_parent_check(groups->bundles, view_str(save->group->tenant), view_str(save->bundle), save->parent,
				  env_in_ms(groups->env, SETTLE_MS), &words);
	return r == -ENOENT || r == -ECANCELED ? error_set(e, r, "%s", words.text) : 0;
}

/* From the first offer until every node has its part of the plan and, unless the save goes through, the room for it. */
static int save_admit(struct csave *save, struct error *e)
{
	int r = save_gather(save, e); /* who offers which boxes; equal boxes become replicas */

	if (r)
		return r;
	save->begun_ns = env_now(save->group->groups->env);
	trace_at(save, STATION_PLAN);
	r = save_make_plan(save, e); /* pure: holders, copies, uploaders; or the plan of the save before */
	if (!r)
		r = save_check_parent(save, e);
	if (r)
		return r;
	point_reached(POINT_SAVE_PLANNED);
	save_enter(save, SAVE_RESERVING);
	trace_at(save, STATION_RESERVE);
	return save_reserve(save, e); /* the group's bytes on every node, before any byte moves */
}

static int save_capture_all(struct csave *save, struct error *e)
{
	bool hinted;
	int r;

	save_enter(save, SAVE_CAPTURING);
	trace_at(save, STATION_CAPTURE);
	r = save_capture(save, &hinted, e); /* returns when the named holders have every block and replicas agree */
	if (r)
		return r;
	save_remember(save);
	point_reached(POINT_SAVE_CAPTURED);
	r = save_reach(save, SAVE_CAPTURED, e); /* from here on the job may die: the daemons finish alone */
	if (!r && hinted)
		r = save_digest(save, e);
	if (!r)
		save_begin_holders(save);
	return r;
}

static int save_run(void *arg)
{
	struct csave *save = arg;
	struct error *e = &save->run_error;
	bool published = false;
	int r = save->resumed ? takeover_find_holders(save, &published, e) : save_admit(save, e);

	if (!r && !save->resumed && save->policy == POLICY_THROUGH) {
		r = save_go_through(save, e);
		published = true;
	} else if (!r && !save->resumed) {
		r = save_capture_all(save, e);
	}
	if (r)
		return r;
	if (!published)
		return save_finish(save, e);
	end_durable(save);
	return 0;
}

/* Burns the slot of a save that failed; a root that stands there already says that it was published after all. */
static int save_give_slot_back(struct csave *save, int result)
{
	struct groups *groups = save->group->groups;
	struct error words = { 0 };
	int r = slot_burn(groups->bundles, &save->slot, env_in_ms(groups->env, SETTLE_MS), &words);

	if (r == -EEXIST) {
		save->version = save->slot.number;
		memset(&save->error, 0, sizeof(save->error));
		return error_set(&save->error, -ERR_EUNINDEXED,
				 "version %" PRIu64 " of %s is published; its index entry is not sure", save->version,
				 save->bundle);
	}
	save->slot_burned = r == 0;
	if (r) /* the root's put may still be under way */
		(void)error_prefix(&save->error,
				   "not published yet, and whether version %" PRIu64 " of %s will be is not known",
				   save->slot.number, save->bundle);
	if (r)
		logm(LOG_WARN, "save.slot-left",
		     "save=%016" PRIx64 " group=%s bundle=%s version=%" PRIu64 " words=\"%s\"", save->save_id,
		     save->group->name, save->bundle, save->slot.number, words.text);
	return result;
}

/* For members that ask later. */
static void remember_end(const struct csave *save, int result)
{
	struct groups *groups = save->group->groups;
	struct ended_save *ended = &groups->ended[groups->n_ended++ % ENDED_MAX];

	*ended = (struct ended_save){ .save_id = save->save_id,
				      .version = save->version,
				      .epoch = save->group->epoch,
				      .state = save->state,
				      .code = result };
	snprintf(ended->words, sizeof(ended->words), "%.150s", result ? save->error.text : "");
}

/*
 * That a save was dropped is told by who may still decide it: a successor that takes over meanwhile has not heard of it, and publishes the save.
 * Then, or when nobody can tell, this coordinator counts as overtaken.
 */
static int save_confirm_drop(struct csave *save)
{
	struct error words = { 0 };
	int r = coordinator_confirm(save->group, env_in_ms(save->group->groups->env, DRAIN_TIMEOUT_MS), &words);

	if (r != -ERR_ESTALEEPOCH && r != -ETIMEDOUT && !cluster_is_away(r))
		return -ERR_ESUPERSEDED;
	return error_set(&save->error, -ERR_ESTALEEPOCH, "%s", words.text);
}

/* A captured save whose coordinator was overtaken is the successor's: it goes on there, and nobody is told that it failed. */
static bool is_overtaken(const struct csave *save, int result)
{
	return result == -ERR_ESTALEEPOCH && save_state_is_captured(save->state);
}

/*
 * Its slot was burned, or a call was of the generation before. If this coordinator has the group's lease all the same it was no successor,
 * but a rebuild of the index: nobody goes on with the save, and all must be told.
 */
static int save_confirm_overtaken(struct csave *save)
{
	struct error words = { 0 };

	if (save->group->lost ||
	    coordinator_confirm(save->group, env_in_ms(save->group->groups->env, DRAIN_TIMEOUT_MS), &words))
		return -ERR_ESTALEEPOCH;
	return error_set(&save->error, -EAGAIN, "the index was made again while the save was under way: %.200s",
			 save->error.text);
}

/* Says how it ended, to everybody who still waits; gives the slot back if nothing was published. */
static void save_settle(struct csave *save, int result)
{
	save->ending = true;
	if (save->failed && save->state != SAVE_DURABLE)
		result = save->failed;
	else
		save->error = save->run_error;
	if (result && !save->error.code)
		(void)error_set(&save->error, result, "%s", error_meaning(result));
	if (result && result != -ERR_EUNINDEXED && save->slot_open)
		result = save_give_slot_back(save, result);
	else if (result)
		save_give_up_slot(save);
	if (result == -ERR_ESUPERSEDED)
		result = save_confirm_drop(save);
	if (is_overtaken(save, result))
		result = save_confirm_overtaken(save);
	bool overtaken = is_overtaken(save, result);
	if (result == -ERR_EUNINDEXED) {
		end_durable(save);
	} else if (result) {
		save_enter(save, SAVE_FAILED);
		save_mark_failed(save, result);
	}
	logm(result ? LOG_WARN : LOG_INFO, "save.end",
	     "save=%016" PRIx64 " group=%s bundle=%s step=%" PRIu64 " state=%s version=%" PRIu64 " words=\"%s\"",
	     save->save_id, save->group->name, save->bundle, save->step, save_state_name(save->state), save->version,
	     result ? save->error.text : "");
	trace_ended(save, result);
	remember_end(save, result);
	if (overtaken)
		orphan_overtaken(save->group->groups, save->save_id);
	else
		(void)save_tell(save, save->state, result, save->error.text, false, NULL);
	if (!result)
		point_reached(POINT_SAVE_TOLD);
}

/* What goes through takes as long as the store takes; each of its waits has a deadline. */
static uint64_t life_deadline(const struct csave *save)
{
	return env_in_ms(save->group->groups->env,
			 save->policy == POLICY_THROUGH ? THROUGH_TIMEOUT_MS : LIFE_TIMEOUT_MS);
}

int save_life(void *arg)
{
	struct csave *save = arg;
	struct groups *groups = save->group->groups;
	int r;

	nursery_init(&save->flow, groups->env->loop);
	r = fiber_start(&save->flow, "save", save_run, save);
	if (!r && save->failed)
		nursery_cancel(&save->flow); /* stopped before it began */
	if (!r)
		r = nursery_wait(&save->flow, life_deadline(save));
	nursery_fini(&save->flow);
	if (!r && save->state != SAVE_DURABLE)
		r = -ECANCELED;
	save_settle(save, r);
	list_remove(&save->link);
	wake_all(&save->changed);
	wake_all(&save->group->changed);
	save_forget_packs(save);
	trace_left(save);
	csave_put(save);
	return 0;
}
