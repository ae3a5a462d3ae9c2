/*
 * group/save.c: a grouped save as its coordinator lives it (design §7): gather, plan, reserve, capture, copy, publish.
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

#define TELL_ATTEMPTS 3

CLEANUP_OF(struct cgroup *, cgroup_put);

static void csave_put(struct csave *save)
{
	if (!save || --save->refs)
		return;
	recipe_put(save->recipe);
	buf_fini(&save->attributes);
	slot_fini(&save->slot);
	free(save->offered);
	free(save->ranks);
	free(save->reports);
	free(save->bundle);
	cgroup_put(save->group);
	free(save);
}

static void enter(struct csave *save, enum save_state state)
{
	save_state_move(&save->state, state);
	save->at_ns[state] = env_now(save->group->groups->env);
	logm(LOG_DEBUG, "save.state", "save=%016" PRIx64 " group=%s bundle=%s step=%" PRIu64 " state=%s", save->save_id,
	     save->group->name, save->bundle, save->step, save_state_name(state));
}

static uint64_t drain_deadline(const struct csave *save)
{
	return env_in_ms(save->group->groups->env, DRAIN_TIMEOUT_MS);
}

/* ---- gather -------------------------------------------------------------------------------------------------------- */

static int save_gather(struct csave *save, struct error *e)
{
	_cleanup_(buf_fini) struct buf names = { 0 };
	uint64_t deadline_ns = env_in_ms(save->group->groups->env, GATHER_TIMEOUT_MS);
	uint32_t missing = save->recipe->n_ranks - save->n_offered;

	while (save->n_offered < save->recipe->n_ranks) {
		int r = wait_at(&save->changed, deadline_ns);

		if (r != -ETIMEDOUT) {
			if (r)
				return r;
			continue;
		}
		missing = save->recipe->n_ranks - save->n_offered;
		for (uint32_t i = 0, named = 0; i < save->recipe->n_ranks && named < 8; i++)
			if (!save->offered[i])
				(void)buf_printf(&names, "%s%u", named++ ? ", " : "", i);
		return error_set(e, -ERR_ERANK, "step %" PRIu64 " of %s: %u of %u ranks did not offer in time: %.*s%s",
				 save->step, save->bundle, missing, save->recipe->n_ranks, (int)names.len, names.ptr,
				 missing > 8 ? ", ..." : "");
	}
	return 0;
}

/* ---- plan ----------------------------------------------------------------------------------------------------------- */

static int save_make_plan(struct csave *save, struct error *e)
{
	struct groups *groups = save->group->groups;
	struct recipe *recipe = save->recipe;
	struct node_info *infos = NULL;
	size_t n = 0;
	int r = cluster_nodes(groups->cluster, env_in_ms(groups->env, SETTLE_MS), &infos, &n, e);

	recipe->copies = save->copies;
	if (!r)
		r = recipe_set_nodes(recipe, save->ranks, infos, n, e);
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
		r = recipe_make(groups->env, recipe, e);
		if (r)
			return r;
	}
	save->reports = calloc(save->recipe->plan.n_blocks + 1, sizeof(*save->reports));
	return save->reports ? 0 : -ENOMEM;
}

/* The plan was good for a whole capture: the next save of the same structure starts from it. */
static void remember(struct csave *save)
{
	struct recipe *known = map_get(&save->group->remembered, view_str(save->bundle));

	if (known == save->recipe || save->group->incarnation != save->incarnation)
		return;
	recipe_put(map_remove(&save->group->remembered, view_str(save->bundle)));
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

/* The nodes that have ranks or hold something: the others never hear of the save. */
static bool takes_part(const struct csave *save, size_t node)
{
	const struct recipe *recipe = save->recipe;

	if (recipe->plan.node_receive_bytes[node])
		return true;
	for (uint32_t rank = 0; rank < recipe->n_ranks; rank++)
		if (recipe->rank_node[rank] == node)
			return true;
	return false;
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
	};
}

/* Asks the nodes in @wanted (NULL: all that take part); with @parts NULL by the plan's number alone. Sets @ret_again for nodes that
 * did not know it. */
static int ask_room(struct csave *save, const struct node_part *parts, const bool *wanted, bool *ret_again,
		    struct error *e)
{
	const struct recipe *recipe = save->recipe;
	struct fan_call *calls = fan_new(recipe->n_nodes);
	size_t n = 0;
	int r = calls ? 0 : -ENOMEM;

	for (size_t node = 0; !r && node < recipe->n_nodes; node++) {
		struct msg_g_reserve reserve = reserve_head(save);

		if (wanted ? !wanted[node] : !takes_part(save, node))
			continue;
		reserve.cached = !parts;
		if (parts) {
			reserve.blocks = list_buf_view(&parts[node].blocks);
			reserve.receives = list_buf_view(&parts[node].receives);
		}
		calls[n].node = recipe->nodes[node];
		r = msg_g_reserve_encode(&reserve, &calls[n++].body);
	}
	if (!r)
		r = fan_out(save->group->groups, MSG_G_RESERVE, calls, n, drain_deadline(save), e);
	for (size_t i = 0; !r && i < n; i++) {
		struct msg_save_reply reply;

		r = msg_save_reply_decode(view_buf(&calls[i].answer), &reply);
		if (!r && reply.need_items)
			ret_again[(calls[i].node - recipe->nodes[0]) / (ptrdiff_t)sizeof(*recipe->nodes)] = true;
	}
	fan_free(calls, n);
	return r;
}

static int save_reserve(struct csave *save, struct error *e)
{
	const struct recipe *recipe = save->recipe;
	_cleanup_(cleanup_mem) bool *again = calloc(recipe->n_nodes + 1, sizeof(*again));
	struct node_part *parts = NULL;
	bool any = !save->remembered;
	int r = again ? 0 : -ENOMEM;

	if (!r && save->remembered)
		r = ask_room(save, NULL, NULL, again, e);
	for (size_t i = 0; !r && i < recipe->n_nodes; i++)
		any |= again[i];
	if (r || !any)
		return r;

	parts = calloc(recipe->n_nodes + 1, sizeof(*parts));
	r = parts ? list_parts(recipe, parts) : -ENOMEM;
	if (!r)
		r = ask_room(save, parts, save->remembered ? again : NULL, again, e);
	for (size_t i = 0; parts && i < recipe->n_nodes; i++) {
		list_buf_fini(&parts[i].blocks);
		list_buf_fini(&parts[i].receives);
	}
	free(parts);
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

/* One call to every node that has ranks, whose answers are reports. */
static int ask_reports(struct csave *save, enum msg_type type, bool hinted, struct error *e)
{
	const struct recipe *recipe = save->recipe;
	struct fan_call *calls = fan_new(recipe->n_nodes);
	size_t n = 0;
	int r = calls ? 0 : -ENOMEM;

	memset(save->reports, 0, (recipe->plan.n_blocks + 1) * sizeof(*save->reports));
	for (size_t node = 0; !r && node < recipe->n_nodes; node++) {
		struct msg_g_capture capture = { .save_id = save->save_id, .hinted = hinted };

		if (!takes_part(save, node))
			continue;
		calls[n].node = recipe->nodes[node];
		r = msg_g_capture_encode(&capture, &calls[n++].body); /* MSG_G_DIGEST reads the id alone */
	}
	if (!r)
		r = fan_out(save->group->groups, type, calls, n, drain_deadline(save), e);
	for (size_t i = 0; !r && i < n; i++)
		r = take_reports(save, calls[i].node, view_buf(&calls[i].answer), hinted, e);
	fan_free(calls, n);

	for (size_t b = 0; !r && b < recipe->plan.n_blocks; b++)
		if (!save->reports[b].reported || save->reports[b].rank != recipe->plan.blocks[b].rank)
			r = error_set(e, -EPROTO, "block %zu was not reported by rank %u that captures it", b,
				      recipe->plan.blocks[b].rank);
	return r;
}

static const struct block_report *first_conflict(const struct csave *save, size_t *ret_block)
{
	for (size_t b = 0; b < save->recipe->plan.n_blocks; b++) {
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

/*
 * Full: every rank hashes what it offers, equal boxes must have equal digests. Hinted: ranks copy and sample alone; samples that
 * differ void the hint, and all capture again in full before anybody is told `captured`.
 */
static int save_capture(struct csave *save, bool *ret_hinted, struct error *e)
{
	bool hinted = (save->flags & SAVE_SAME_STRUCTURE) && save->remembered;
	size_t block;
	int r = ask_reports(save, MSG_G_CAPTURE, hinted, e);

	if (!r && hinted && first_conflict(save, &block)) {
		hinted = false;
		save_state_move(&save->state, SAVE_CAPTURING);
		r = ask_reports(save, MSG_G_CAPTURE, false, e);
	}
	const struct block_report *conflict = r ? NULL : first_conflict(save, &block);
	if (conflict)
		r = replica_error(save, conflict, block, e);
	*ret_hinted = hinted;
	return r;
}

/* After a hinted capture the daemons hash what they hold; replicas that turn out to differ are replaced by copies. */
static int save_digest(struct csave *save, struct error *e)
{
	int r = ask_reports(save, MSG_G_DIGEST, false, e);

	for (size_t b = 0; !r && b < save->recipe->plan.n_blocks; b++)
		save->diverged_blocks += save->reports[b].conflict;
	return r;
}

/* ---- copies --------------------------------------------------------------------------------------------------------- */

static bool needs_copy(const struct csave *save, size_t b, uint32_t k)
{
	if (save->reports[b].flags & FILLED_ZERO)
		return false;
	return save->recipe->plan.blocks[b].holder_rank[k] == SAVE_COPIED || save->reports[b].conflict;
}

static int list_copies(struct csave *save, struct list_buf *lists)
{
	const struct save_plan *plan = &save->recipe->plan;
	int r = 0;

	for (size_t b = 0; !r && b < plan->n_blocks; b++) {
		for (uint32_t k = 1; !r && k < save->recipe->copies; k++) {
			struct elem_g_copy copy = { .block = (uint32_t)b,
						    .digest = save->reports[b].digest,
						    .bytes = plan->blocks[b].bytes,
						    .crc = save->reports[b].crc,
						    .from = plan->blocks[b].holder[0] };

			if (!needs_copy(save, b, k))
				continue;
			r = elem_g_copy_append(&lists[plan->blocks[b].holder[k]], &copy);
			save->sent_bytes += copy.bytes;
		}
	}
	return r;
}

static int save_copy(struct csave *save, struct error *e)
{
	const struct recipe *recipe = save->recipe;
	struct list_buf *lists = calloc(recipe->n_nodes + 1, sizeof(*lists)), names = { 0 };
	struct fan_call *calls = fan_new(recipe->n_nodes);
	size_t n = 0;
	int r = lists && calls ? list_copies(save, lists) : -ENOMEM;

	for (size_t node = 0; !r && node < recipe->n_nodes; node++) {
		struct elem_name name = { .name = view_str(recipe->nodes[node]) };

		r = elem_name_append(&names, &name);
	}
	for (size_t node = 0; !r && node < recipe->n_nodes; node++) {
		struct msg_g_copy copy = { .save_id = save->save_id,
					   .nodes = list_buf_view(&names),
					   .blocks = list_buf_view(&lists[node]) };

		if (!lists[node].count)
			continue;
		calls[n].node = recipe->nodes[node];
		r = msg_g_copy_encode(&copy, &calls[n++].body);
	}
	if (!r)
		r = fan_out(save->group->groups, MSG_G_COPY, calls, n, drain_deadline(save), e);
	for (size_t node = 0; lists && node < recipe->n_nodes; node++)
		list_buf_fini(&lists[node]);
	list_buf_fini(&names);
	free(lists);
	fan_free(calls, n);
	return r;
}

/* ---- telling the ranks ---------------------------------------------------------------------------------------------- */

static int add_stat(struct list_buf *stats, const char *name, uint64_t value)
{
	struct elem_stat stat = { .name = view_str(name), .value = value };

	return elem_stat_append(stats, &stat);
}

static int add_time(struct list_buf *stats, const struct csave *save, const char *name, enum save_state state)
{
	return save->at_ns[state] ? add_stat(stats, name, save->at_ns[state] - save->begun_ns) : 0;
}

static int collect_stats(const struct csave *save, struct list_buf *stats)
{
	const struct recipe *recipe = save->recipe;
	int r = add_stat(stats, "unique_bytes", recipe->catalog.unique_bytes);

	if (!r)
		r = add_stat(stats, "offered_bytes", recipe->catalog.offered_bytes);
	if (!r)
		r = add_stat(stats, "hole_bytes", save->hole_bytes);
	if (!r)
		r = add_stat(stats, "sent_bytes", save->sent_bytes);
	if (!r)
		r = add_stat(stats, "stored_bytes", save->stored_bytes);
	if (!r)
		r = add_stat(stats, "diverged_blocks", save->diverged_blocks);
	if (!r)
		r = add_stat(stats, "plan_reused", save->remembered);
	if (!r)
		r = add_stat(stats, "upload_planned_ns", recipe->plan.bound.planned_ns);
	if (!r)
		r = add_stat(stats, "upload_bound_ns", recipe->plan.bound.bound_ns);
	if (!r)
		r = add_time(stats, save, "planned_ns", SAVE_RESERVING);
	if (!r)
		r = add_time(stats, save, "reserved_ns", SAVE_CAPTURING);
	if (!r)
		r = add_time(stats, save, "captured_ns", SAVE_CAPTURED);
	if (!r)
		r = add_time(stats, save, "staged_ns", SAVE_STAGED);
	if (!r)
		r = add_time(stats, save, "durable_ns", SAVE_DURABLE);
	return r;
}

/* The nodes to tell: those of the plan, or those that have offered when there is no plan yet. */
static size_t list_nodes(const struct csave *save, const char **names)
{
	const struct recipe *recipe = save->recipe;
	size_t n = 0;

	for (size_t node = 0; recipe->n_nodes && recipe->plan.node_receive_bytes && node < recipe->n_nodes; node++)
		if (takes_part(save, node))
			names[n++] = recipe->nodes[node];
	if (n)
		return n;
	for (uint32_t rank = 0; rank < recipe->n_ranks; rank++) {
		bool skip = !save->offered[rank];

		for (size_t i = 0; !skip && i < n; i++)
			skip = !strcmp(names[i], save->ranks[rank].node);
		if (!skip)
			names[n++] = save->ranks[rank].node;
	}
	return n;
}

/* Tells those that have not answered yet: the first *@left of @calls, in which order ever. */
static void tell_once(struct groups *groups, struct fan_call *calls, size_t *left)
{
	size_t silent = 0;

	fan_tell(groups, MSG_G_STAGE, calls, *left, env_in_ms(groups->env, SETTLE_MS));
	for (size_t i = 0; i < *left; i++) {
		struct fan_call call = calls[i];

		if (call.result != -ETIMEDOUT)
			continue;
		calls[i] = calls[silent];
		calls[silent++] = call;
	}
	*left = silent;
}

static int tell_stage(struct csave *save, enum save_state stage, int code, const char *words, bool must,
		      struct error *e)
{
	struct groups *groups = save->group->groups;
	_cleanup_(cleanup_mem)
		const char **names = calloc(save->recipe->n_nodes + save->recipe->n_ranks + 1, sizeof(*names));
	struct list_buf stats = { 0 };
	struct msg_g_stage tell = { .tenant = view_str(save->group->tenant),
				    .group = view_str(save->group->name),
				    .incarnation = save->incarnation,
				    .save_id = save->save_id,
				    .bundle = view_str(save->bundle),
				    .step = save->step,
				    .stage = stage,
				    .code = (uint32_t)-code,
				    .words = view_str(words),
				    .version = save->version };
	size_t n = names ? list_nodes(save, names) : 0, left = n;
	struct fan_call *calls = fan_new(n);
	int r = names && calls ? collect_stats(save, &stats) : -ENOMEM;

	tell.stats = list_buf_view(&stats);
	for (size_t i = 0; !r && i < n; i++) {
		calls[i].node = names[i];
		r = msg_g_stage_encode(&tell, &calls[i].body);
	}
	if (!r && must)
		r = fan_out(groups, MSG_G_STAGE, calls, n, env_in_ms(groups->env, SETTLE_MS), e);
	for (int attempt = 0; !r && !must && left && attempt < TELL_ATTEMPTS; attempt++)
		tell_once(groups, calls, &left);
	fan_free(calls, n);
	list_buf_fini(&stats);
	return r;
}

static int reach(struct csave *save, enum save_state state, struct error *e)
{
	enter(save, state);
	return tell_stage(save, state, 0, "", true, e);
}

/* ---- the itinerary -------------------------------------------------------------------------------------------------- */

static int save_run(void *arg)
{
	struct csave *save = arg;
	struct error *e = &save->run_error;
	bool hinted;
	int r;

	r = save_gather(save, e); /* who offers which boxes; equal boxes become replicas */
	if (r)
		return r;
	save->begun_ns = env_now(save->group->groups->env);
	r = save_make_plan(save, e); /* pure: holders, copies, uploaders; or the plan of the save before */
	if (r)
		return r;
	point_reached(POINT_SAVE_PLANNED);
	enter(save, SAVE_RESERVING);
	r = save_reserve(save, e); /* the group's bytes on every node, before any byte moves */
	if (r)
		return r;

	enter(save, SAVE_CAPTURING);
	r = save_capture(save, &hinted, e); /* returns when the named holders have every block and replicas agree */
	if (r)
		return r;
	remember(save);
	point_reached(POINT_SAVE_CAPTURED);
	r = reach(save, SAVE_CAPTURED, e); /* from here on the job may die: the daemons finish alone */
	if (r)
		return r;

	r = hinted ? save_digest(save, e) : 0;
	if (r)
		return r;
	r = save_copy(save, e); /* until every block has its R verified holders */
	if (r)
		return r;
	point_reached(POINT_SAVE_STAGED);
	r = reach(save, SAVE_STAGED, e);
	if (r)
		return r;

	r = save_publish(save, drain_deadline(save), e); /* slot, packs, segments, root, index */
	if (r)
		return r;
	enter(save, SAVE_DURABLE);
	return 0;
}

static void mark_failed(const struct csave *save);

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
	if (r)
		logm(LOG_WARN, "save.slot-left", "save=%016" PRIx64 " bundle=%s version=%" PRIu64 " why=\"%s\"",
		     save->save_id, save->bundle, save->slot.number, words.text);
	return result;
}

/* Says how it ended, to everybody who still waits; gives the slot back if nothing was published. */
static void save_settle(struct csave *save, int result)
{
	if (save->failed && save->state != SAVE_DURABLE)
		result = save->failed;
	else
		save->error = save->run_error;
	if (result && !save->error.code)
		(void)error_set(&save->error, result, "%s", error_meaning(result));
	if (result && result != -ERR_EUNINDEXED && save->slot_open)
		result = save_give_slot_back(save, result);
	if (result == -ERR_EUNINDEXED)
		enter(save, SAVE_DURABLE);
	else if (result)
		enter(save, SAVE_FAILED), mark_failed(save);
	logm(result ? LOG_WARN : LOG_INFO, "save.end",
	     "save=%016" PRIx64 " group=%s bundle=%s step=%" PRIu64 " state=%s version=%" PRIu64 " words=\"%s\"",
	     save->save_id, save->group->name, save->bundle, save->step, save_state_name(save->state), save->version,
	     result ? save->error.text : "");
	(void)tell_stage(save, save->state, result, save->error.text, false, NULL);
	if (!result)
		point_reached(POINT_SAVE_TOLD);
}

static int save_life(void *arg)
{
	struct csave *save = arg;
	struct groups *groups = save->group->groups;
	int r;

	nursery_init(&save->flow, groups->env->loop);
	r = fiber_start(&save->flow, "save", save_run, save);
	if (!r && save->failed)
		nursery_cancel(&save->flow); /* stopped before it began */
	if (!r)
		r = nursery_wait(&save->flow, env_in_ms(groups->env, GATHER_TIMEOUT_MS + 3 * DRAIN_TIMEOUT_MS));
	nursery_fini(&save->flow);
	if (!r && save->state != SAVE_DURABLE)
		r = -ECANCELED;
	save_settle(save, r);
	list_remove(&save->link);
	csave_put(save);
	return 0;
}

/* ---- offers --------------------------------------------------------------------------------------------------------- */

int step_key(struct buf *out, struct view bundle, uint64_t step)
{
	uint8_t le[8];
	int r = buf_append(out, bundle.ptr, bundle.len);

	store_le64(le, step);
	if (!r)
		r = buf_append_zero(out, 1);
	return r ? r : buf_append(out, le, sizeof(le));
}

/* A step is saved once in a run. One that failed stays failed: a rank that comes late to it is told why. */
static int claim_step(struct cgroup *group, struct view bundle, uint64_t step, struct error *e)
{
	_cleanup_(buf_fini) struct buf key = { 0 };
	int r = step_key(&key, bundle, step);
	const struct step_mark *known = r ? NULL : map_get(&group->steps, view_buf(&key));

	if (r)
		return r;
	if (known && known->code)
		return error_set(e, known->code, "%s", known->words);
	if (known)
		return error_set(e, -ERR_ESTEP, "this run has already saved step %" PRIu64 " of %.*s", step,
				 (int)bundle.len, bundle.ptr);
	struct step_mark *mark = calloc(1, sizeof(*mark));
	r = mark ? map_put(&group->steps, view_buf(&key), mark) : -ENOMEM;
	if (r)
		free(mark);
	return r;
}

/* Ranks that come to that step later are told why it failed. */
static void mark_step(struct cgroup *group, struct view bundle, uint64_t step, const struct error *why)
{
	_cleanup_(buf_fini) struct buf key = { 0 };
	struct step_mark *mark = step_key(&key, bundle, step) ? NULL : map_get(&group->steps, view_buf(&key));

	if (!mark || mark->code)
		return;
	mark->words = strdup(why->text);
	mark->code = mark->words ? why->code : 0;
}

static void mark_failed(const struct csave *save)
{
	if (save->incarnation == save->group->incarnation)
		mark_step(save->group, view_str(save->bundle), save->step, &save->error);
}

void steps_fini(struct map *steps)
{
	for (struct map_slot *s = map_first(steps); s; s = map_next(s)) {
		struct step_mark *mark = map_value(s);

		free(mark->words);
		free(mark);
	}
	map_fini(steps);
}

static struct csave *find_save(struct cgroup *group, const struct msg_g_offer *offer)
{
	list_each(node, &group->saves) {
		struct csave *save = list_entry(node, struct csave, link);

		if (save->incarnation == offer->incarnation && save->step == offer->step &&
		    save->state == SAVE_GATHERING && !save->failed && view_equal(view_str(save->bundle), offer->bundle))
			return save;
	}
	return NULL;
}

static int check_offer(const struct cgroup *group, const struct msg_g_offer *offer, struct error *e)
{
	int r = bundle_name_check(offer->bundle, e);

	if (r)
		return r;
	if (!offer->copies || offer->copies > PLAN_COPIES_MAX)
		return error_set(e, -EINVAL, "%u copies: 1 to %d are possible", offer->copies, PLAN_COPIES_MAX);
	if (offer->policy != POLICY_WAIT)
		return error_set(e, -EINVAL, "policy %u is not known; this version has only \"wait\"", offer->policy);
	return coordinator_whole(group, e);
}

static int begin_save(struct cgroup *group, const struct msg_g_offer *offer, struct csave **ret, struct error *e)
{
	struct groups *groups = group->groups;
	struct csave *save = calloc(1, sizeof(*save));
	int r;

	if (!save)
		return -ENOMEM;
	save->refs = 1;
	list_init(&save->link);
	waitplace_init(&save->changed);
	nursery_init(&save->flow, groups->env->loop);
	save->group = cgroup_get(group);
	save->bundle = view_dup(offer->bundle);
	save->recipe = recipe_new(group->size);
	save->offered = calloc(group->size, sizeof(*save->offered));
	save->ranks = calloc(group->size, sizeof(*save->ranks));
	save->step = offer->step;
	save->parent = offer->parent;
	save->incarnation = group->incarnation;
	save->copies = offer->copies;
	save->policy = offer->policy;
	save->flags = offer->flags;
	do {
		groups->env->ops->random(groups->env, &save->save_id, sizeof(save->save_id));
	} while (!save->save_id);
	save->at_ns[SAVE_GATHERING] = save->begun_ns = env_now(groups->env);
	r = save->bundle && save->recipe && save->offered && save->ranks ? 0 : -ENOMEM;
	if (!r)
		r = claim_step(group, offer->bundle, offer->step, e);
	if (!r)
		r = fiber_start(&groups->flows, "save-life", save_life, save);
	if (r) {
		csave_put(save);
		return r;
	}
	memcpy(save->ranks, group->ranks, group->size * sizeof(*save->ranks));
	list_append(&group->saves, &save->link);
	*ret = save;
	return 0;
}

/* The rank's list: as it came, or the remembered one. 0; 1 when it is not known and must be sent. */
static int take_list(struct csave *save, const struct elem_rank_offer *rank)
{
	const struct recipe *known = map_get(&save->group->remembered, view_str(save->bundle));
	struct recipe *recipe = save->recipe;

	recipe->structures[rank->rank] = rank->structure;
	if (rank->items.count || !rank->n_items)
		return put_list(&recipe->lists[rank->rank], &rank->items);
	if (!known || known->n_ranks != recipe->n_ranks || known->structures[rank->rank] != rank->structure)
		return 1;
	return buf_append(&recipe->lists[rank->rank], known->lists[rank->rank].ptr, known->lists[rank->rank].len);
}

static int take_ranks(struct csave *save, const struct msg_g_offer *offer, bool *ret_need, struct error *e)
{
	struct list_view ranks = offer->ranks;
	struct elem_rank_offer rank;
	int r;

	while ((r = elem_rank_offer_next(&ranks, &rank)) == 0) {
		if (rank.rank >= save->recipe->n_ranks)
			return error_set(e, -EPROTO, "rank %u does not exist", rank.rank);
		if (save->offered[rank.rank])
			return error_set(e, -ERR_ESTEP, "rank %u has already offered step %" PRIu64, rank.rank,
					 save->step);
		buf_fini(&save->recipe->lists[rank.rank]);
		r = take_list(save, &rank);
		if (r < 0)
			return r;
		*ret_need |= r == 1;
	}
	return r == 1 ? 0 : r;
}

static void stop(struct csave *save, int code, const char *words)
{
	if (save->failed)
		return;
	save->failed = code;
	memset(&save->error, 0, sizeof(save->error));
	error_set(&save->error, code, "%s", words);
	if (save->state < SAVE_CAPTURED)
		mark_failed(save); /* now: a rank may come to it before it has settled */
	nursery_cancel(&save->flow);
}

/* The ranks of a list that take_ranks() has taken whole have offered. The version's attributes are those of rank 0. */
static int count_ranks(struct csave *save, const struct msg_g_offer *offer)
{
	struct list_view ranks = offer->ranks;
	struct elem_rank_offer rank;
	int r = 0;

	while (!r && elem_rank_offer_next(&ranks, &rank) == 0) {
		save->n_offered += !save->offered[rank.rank];
		save->offered[rank.rank] = true;
		if (rank.rank || save->attributes.len)
			continue;
		r = buf_append(&save->attributes, offer->attributes.bytes.ptr, offer->attributes.bytes.len);
		save->n_attributes = r ? 0 : offer->attributes.count;
	}
	wake_all(&save->changed);
	return r;
}

static int take_offer(struct csave *save, const struct msg_g_offer *offer, struct msg_save_reply *ret, struct error *e)
{
	bool need = false;

	if (save->copies != offer->copies || save->policy != offer->policy || save->flags != offer->flags ||
	    save->parent != offer->parent)
		return error_set(e, -ERR_EMISMATCH,
				 "node %.*s: copies, policy, hint or parent differ from those of other ranks",
				 (int)offer->node.len, offer->node.ptr);
	int r = take_ranks(save, offer, &need, e);
	if (r)
		return r;
	ret->save_id = save->save_id;
	ret->need_items = need;
	return need ? 0 : count_ranks(save, offer);
}

int save_offer(struct cgroup *group, const struct msg_g_offer *offer, struct msg_save_reply *ret, struct error *e)
{
	struct csave *save = find_save(group, offer);
	struct error words = { 0 };
	int r = check_offer(group, offer, e);

	if (!r && !save)
		r = begin_save(group, offer, &save, e);
	if (r)
		return r;
	r = take_offer(save, offer, ret, &words);
	if (!r)
		return 0;
	if (!words.code)
		(void)error_set(&words, r, "node %.*s: its offer: %s", (int)offer->node.len, offer->node.ptr,
				error_meaning(r));
	stop(save, r, words.text); /* or the others would wait for this node until the deadline */
	return error_set(e, r, "%s", words.text);
}

/* ---- stopping ------------------------------------------------------------------------------------------------------- */

void save_rank_lost(struct cgroup *group, uint32_t rank, const char *words)
{
	char text[ERROR_TEXT_MAX];

	list_each(node, &group->saves) {
		struct csave *save = list_entry(node, struct csave, link);

		if (save->state >= SAVE_CAPTURED || save->incarnation != group->incarnation)
			continue;
		snprintf(text, sizeof(text), "rank %u on node %s: %.300s; step %" PRIu64 " of %.100s was not captured",
			 rank, group->ranks[rank].node, words, save->step, save->bundle);
		stop(save, -ERR_ERANK, text);
	}
}

/* A rank cancelled it, maybe before anybody offered. Too late once all have captured: -EALREADY. */
int save_fail(struct cgroup *group, struct view bundle, uint64_t step, int code, const char *words)
{
	list_each(node, &group->saves) {
		struct csave *save = list_entry(node, struct csave, link);

		if (save->step != step || !view_equal(view_str(save->bundle), bundle) ||
		    save->incarnation != group->incarnation)
			continue;
		if (save->state >= SAVE_CAPTURED)
			return -EALREADY;
		stop(save, code, words);
		return 0;
	}
	struct error e = { 0 };
	(void)error_set(&e, code, "%s", words);
	if (!claim_step(group, bundle, step, NULL))
		mark_step(group, bundle, step, &e);
	return 0;
}

static bool has_rank_on(const struct csave *save, const char *node)
{
	for (uint32_t rank = 0; rank < save->recipe->n_ranks; rank++)
		if (!strcmp(save->ranks[rank].node, node))
			return true;
	return false;
}

void save_node_lost(struct groups *groups, const char *node)
{
	char text[ERROR_TEXT_MAX];

	snprintf(text, sizeof(text), "node %s was lost before all of its ranks had captured", node);
	for (struct map_slot *s = map_first(&groups->coordinated); s; s = map_next(s)) {
		struct cgroup *group = map_value(s);

		list_each(link, &group->saves) {
			struct csave *save = list_entry(link, struct csave, link);

			if (save->state < SAVE_CAPTURED && has_rank_on(save, node))
				stop(save, -ERR_ENODE, text);
		}
	}
}

void save_abandon_all(struct cgroup *group, int code, const char *words, bool captured_too)
{
	list_each(node, &group->saves) {
		struct csave *save = list_entry(node, struct csave, link);

		if (captured_too || save->state < SAVE_CAPTURED)
			stop(save, code, words);
	}
}
