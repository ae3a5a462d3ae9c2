/*
 * group/keep.c: what a successor of the coordinator needs to finish a captured save (G_KEEP): the ranks' lists, the nodes, and what was
 * captured. From these it makes the same plan again.
 *
 * It lies on as many nodes beside the coordinator's as may be lost, at least on one, before anybody is told `staged`. Lists that are the
 * same as in the save before go by their number alone.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/point.h"
#include "group/member.h"

CLEANUP_OF(struct msave *, msave_put);

/* ---- the coordinator's side ------------------------------------------------------------------------------------------- */

struct keep_lists {
	struct list_buf ranks, places, rank_node, reports;
};

static void keep_lists_fini(struct keep_lists *lists)
{
	list_buf_fini(&lists->ranks);
	list_buf_fini(&lists->places);
	list_buf_fini(&lists->rank_node);
	list_buf_fini(&lists->reports);
}

static int list_ranks(const struct recipe *recipe, struct keep_lists *lists)
{
	int r = 0;

	for (uint32_t rank = 0; !r && rank < recipe->n_ranks; rank++) {
		struct view bytes = view_buf(&recipe->lists[rank]);
		struct elem_rank_offer offer = { .rank = rank, .structure = recipe->structures[rank] };
		struct elem_u32 node = { .v = recipe->rank_node[rank] };

		r = get_list(&bytes, &offer.items);
		offer.n_items = offer.items.count;
		if (!r)
			r = elem_rank_offer_append(&lists->ranks, &offer);
		if (!r)
			r = elem_u32_append(&lists->rank_node, &node);
	}
	for (size_t i = 0; !r && i < recipe->n_nodes; i++) {
		struct elem_place place = { .node = view_str(recipe->nodes[i]),
					    .domain = recipe->plan_nodes[i].domain,
					    .store_rate = recipe->plan_nodes[i].store_rate };

		r = elem_place_append(&lists->places, &place);
	}
	return r;
}

static int list_reports(const struct csave *save, struct list_buf *list)
{
	int r = 0;

	for (size_t b = 0; !r && b < save->recipe->plan.n_blocks; b++) {
		const struct block_report *from = &save->reports[b];
		struct elem_report report = { .digest = from->digest,
					      .crc = from->crc,
					      .flags = from->flags,
					      .rank = from->rank };

		r = elem_report_append(list, &report);
	}
	return r;
}

static int encode_keep(const struct csave *save, const struct keep_lists *lists, bool cached, struct buf *out)
{
	struct msg_g_keep keep = { .save_id = save->save_id,
				   .epoch = save->group->epoch,
				   .tenant = view_str(save->group->tenant),
				   .group = view_str(save->group->name),
				   .incarnation = save->incarnation,
				   .bundle = view_str(save->bundle),
				   .step = save->step,
				   .copies = save->copies,
				   .policy = save->policy,
				   .flags = save->flags,
				   .parent = save->parent,
				   .attributes = { .count = save->n_attributes, .bytes = view_buf(&save->attributes) },
				   .structure = save->recipe->structure,
				   .fingerprint = save->recipe->plan.fingerprint,
				   .cached = cached,
				   .reports = list_buf_view(&lists->reports),
				   .diverged_blocks = save->diverged_blocks,
				   .block_bytes = save->recipe->block_bytes };

	if (!cached) {
		keep.ranks = list_buf_view(&lists->ranks);
		keep.places = list_buf_view(&lists->places);
		keep.rank_node = list_buf_view(&lists->rank_node);
	}
	return msg_g_keep_encode(&keep, out);
}

int save_encode_keep(const struct csave *save, struct buf *out)
{
	_cleanup_(keep_lists_fini) struct keep_lists lists = { 0 };
	int r = list_reports(save, &lists.reports);

	if (!r)
		r = list_ranks(save->recipe, &lists);
	return r ? r : encode_keep(save, &lists, false, out);
}

static int send_keep(struct csave *save, struct keep_lists *lists, size_t node, bool cached, bool *ret_need,
		     struct error *e)
{
	struct groups *groups = save->group->groups;
	struct fan_call *call = fan_new(1);
	struct msg_save_reply reply = { 0 };
	int r = call ? 0 : -ENOMEM;

	if (!r && !cached && !lists->places.count)
		r = list_ranks(save->recipe, lists);
	if (!r)
		r = encode_keep(save, lists, cached, &call->body);
	if (!r) {
		call->node = save->recipe->nodes[node];
		call->index = node;
		r = fan_survive(groups, MSG_G_KEEP, call, 1, env_in_ms(groups->env, DRAIN_TIMEOUT_MS), e);
		save_lose_called(save, call, 1);
	}
	if (!r && !call->result)
		r = msg_save_reply_decode(view_buf(&call->answer), &reply);
	*ret_need = reply.need_items;
	fan_free(call, 1);
	return r;
}

static int keep_on(struct csave *save, struct keep_lists *lists, size_t node, struct error *e)
{
	bool need;
	int r = send_keep(save, lists, node, true, &need, e);

	if (!r && need && !save->nodes[node].lost)
		r = send_keep(save, lists, node, false, &need, e);
	save->nodes[node].keeps = !r && !need && !save->nodes[node].lost;
	return r;
}

/* The next node to keep it: one that takes part, not the coordinator's own, in a domain that has none yet if there is one. */
static size_t next_keeper(const struct csave *save)
{
	const struct recipe *recipe = save->recipe;
	const char *own = cluster_node(save->group->groups->cluster);
	size_t best = SIZE_MAX;

	for (size_t node = 0; node < recipe->n_nodes; node++) {
		bool shared = false;

		if (save->nodes[node].lost || save->nodes[node].keeps || !save_takes_part(save, node) ||
		    !strcmp(recipe->nodes[node], own))
			continue;
		for (size_t other = 0; !shared && other < recipe->n_nodes; other++)
			shared = (save->nodes[other].keeps || !strcmp(recipe->nodes[other], own)) &&
				 recipe->plan_nodes[other].domain == recipe->plan_nodes[node].domain;
		if (!shared)
			return node;
		if (best == SIZE_MAX)
			best = node;
	}
	return best;
}

int save_keep(struct csave *save, struct error *e)
{
	_cleanup_(keep_lists_fini) struct keep_lists lists = { 0 };
	uint32_t wanted = save->copies > 2 ? save->copies - 1 : 1, n = 0;
	size_t node;
	int r = 0;

	trace_at(save, STATION_KEEP);
	for (size_t i = 0; i < save->recipe->n_nodes; i++)
		n += save->nodes[i].keeps && !save->nodes[i].lost;
	if (n < wanted && next_keeper(save) != SIZE_MAX)
		r = list_reports(save, &lists.reports);
	while (!r && n < wanted && (node = next_keeper(save)) != SIZE_MAX) {
		r = keep_on(save, &lists, node, e);
		n += save->nodes[node].keeps;
		if (!save->nodes[node].keeps && !save->nodes[node].lost)
			break; /* it has no room for it */
	}
	if (r || n < wanted)
		logm(LOG_WARN, "save.keepers", "save=%016" PRIx64 " group=%s wanted=%u got=%u", save->save_id,
		     save->group->name, wanted, n);
	point_reached(POINT_SAVE_KEPT);
	return r == -ECANCELED || r == -ERR_ESTALEEPOCH ?
		       r :
		       0; /* else a worry: the save goes on while its coordinator lives */
}

int save_keep_slot(struct csave *save, struct error *e)
{
	struct groups *groups = save->group->groups;
	struct msg_g_keep keep = { .save_id = save->save_id, .epoch = save->group->epoch, .slot = save->slot.number };
	struct fan_call *calls = fan_new(save->recipe->n_nodes);
	size_t n = 0;
	int r = calls ? 0 : -ENOMEM;

	for (size_t node = 0; !r && node < save->recipe->n_nodes; node++) {
		if (!save->nodes[node].keeps || save->nodes[node].lost)
			continue;
		calls[n].node = save->recipe->nodes[node];
		calls[n].index = node;
		r = msg_g_keep_encode(&keep, &calls[n++].body);
	}
	if (!r)
		r = fan_survive(groups, MSG_G_KEEP, calls, n, env_in_ms(groups->env, DRAIN_TIMEOUT_MS), e);
	save_lose_called(save, calls, n);
	fan_free(calls, n);
	return r;
}

/* ---- the keeper's side ------------------------------------------------------------------------------------------------ */

void kept_lists_put(struct kept_lists *lists)
{
	if (!lists || --lists->refs)
		return;
	buf_fini(&lists->ranks);
	buf_fini(&lists->places);
	buf_fini(&lists->rank_node);
	free(lists);
}

static struct kept_lists *copy_lists(const struct msg_g_keep *keep)
{
	struct kept_lists *lists = calloc(1, sizeof(*lists));

	if (!lists)
		return NULL;
	lists->refs = 1;
	lists->structure = keep->structure ^ keep->fingerprint;
	if (!put_list(&lists->ranks, &keep->ranks) && !put_list(&lists->places, &keep->places) &&
	    !put_list(&lists->rank_node, &keep->rank_node))
		return lists;
	kept_lists_put(lists);
	return NULL;
}

/* The lists as they came, remembered for the next save of the bundle; or those remembered. One reference more; NULL: neither. */
static struct kept_lists *obtain_lists(struct mgroup *group, const struct msg_g_keep *keep)
{
	struct kept_lists *lists = map_get(&group->lists, keep->bundle);

	if (lists && lists->structure == (keep->structure ^ keep->fingerprint)) {
		lists->refs++;
		return lists;
	}
	lists = keep->cached ? NULL : copy_lists(keep);
	if (!lists)
		return NULL;
	kept_lists_put(map_remove(&group->lists, keep->bundle));
	while (group->lists.n >= REMEMBERED_MAX)
		kept_lists_put(map_remove(&group->lists, map_key(map_first(&group->lists))));
	if (!map_put(&group->lists, keep->bundle, lists))
		lists->refs++;
	return lists;
}

static int serve_keep(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
		      struct error *e)
{
	struct msg_save_reply reply = { 0 };
	struct msg_g_keep keep = { 0 };
	int r = msg_g_keep_decode(body, &keep);

	if (r)
		return error_set(e, r, "malformed G_KEEP from %s", from);
	_cleanup_(cleanup_msave_put) struct msave *save = msave_held(arg, keep.save_id, keep.epoch, from, &r, e);
	if (!save)
		return r;
	reply.save_id = save->save_id;
	if (keep.slot)
		save->kept_slot = keep.slot;
	if (!keep.fingerprint)
		return msg_save_reply_encode(&reply, answer);
	struct kept_lists *lists = obtain_lists(save->group, &keep);
	reply.need_items = !lists;
	if (!lists)
		return keep.cached ? msg_save_reply_encode(&reply, answer) : -ENOMEM;
	kept_lists_put(save->kept_lists);
	save->kept_lists = lists;
	keep.ranks = keep.places = keep.rank_node = (struct list_view){ 0 };
	buf_fini(&save->kept);
	r = msg_g_keep_encode(&keep, &save->kept);
	return r ? r : msg_save_reply_encode(&reply, answer);
}

static int keep_answer(const struct msave *save, struct buf *answer)
{
	struct view ranks, places, rank_node;
	struct msg_g_keep keep;

	if (!save->kept_lists)
		return -ENOENT;
	ranks = view_buf(&save->kept_lists->ranks);
	places = view_buf(&save->kept_lists->places);
	rank_node = view_buf(&save->kept_lists->rank_node);
	int r = msg_g_keep_decode(view_buf(&save->kept), &keep);
	if (!r)
		r = get_list(&ranks, &keep.ranks);
	if (!r)
		r = get_list(&places, &keep.places);
	if (!r)
		r = get_list(&rank_node, &keep.rank_node);
	keep.cached = 0;
	keep.slot = save->kept_slot;
	return r ? r : msg_g_keep_encode(&keep, answer);
}

static int serve_kept(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
		      struct error *e)
{
	struct msg_save_id id = { 0 };
	int r = msg_save_id_decode(body, &id);
	_cleanup_(cleanup_msave_put) struct msave *save = r ? NULL : msave_held(arg, id.save_id, id.epoch, from, &r, e);

	return save ? keep_answer(save, answer) : r;
}

/* ---- reading one ------------------------------------------------------------------------------------------------------- */

static int take_places(struct list_view places, struct recipe *recipe)
{
	struct elem_place place;
	int r;

	recipe->nodes = calloc(places.count + 1, sizeof(*recipe->nodes));
	recipe->plan_nodes = calloc(places.count + 1, sizeof(*recipe->plan_nodes));
	if (!recipe->nodes || !recipe->plan_nodes)
		return -ENOMEM;
	while ((r = elem_place_next(&places, &place)) == 0) {
		if (place.node.len > NODE_NAME_MAX)
			return -EPROTO;
		memcpy(recipe->nodes[recipe->n_nodes], place.node.ptr, place.node.len);
		recipe->plan_nodes[recipe->n_nodes].domain = place.domain;
		recipe->plan_nodes[recipe->n_nodes++].store_rate = place.store_rate;
	}
	return r == 1 ? 0 : r;
}

static int take_ranks(struct list_view ranks, struct list_view rank_node, struct recipe *recipe)
{
	struct elem_rank_offer rank;
	struct elem_u32 node;
	uint32_t n = 0;
	int r;

	while ((r = elem_rank_offer_next(&ranks, &rank)) == 0) {
		if (rank.rank >= recipe->n_ranks || recipe->lists[rank.rank].len)
			return -EPROTO;
		recipe->structures[rank.rank] = rank.structure;
		r = put_list(&recipe->lists[rank.rank], &rank.items);
		if (r)
			return r;
	}
	while (r == 1 && (r = elem_u32_next(&rank_node, &node)) == 0) {
		if (n >= recipe->n_ranks || node.v >= recipe->n_nodes)
			return -EPROTO;
		recipe->rank_node[n++] = node.v;
		r = 1;
	}
	return r != 1 ? r : n == recipe->n_ranks ? 0 : -EPROTO;
}

int keep_take_recipe(struct env *env, const struct msg_g_keep *keep, struct recipe *recipe, struct error *e)
{
	int r;

	recipe->copies = keep->copies;
	recipe->structure = keep->structure;
	recipe->block_bytes = keep->block_bytes;
	r = take_places(keep->places, recipe);
	if (!r)
		r = take_ranks(keep->ranks, keep->rank_node, recipe);
	if (!r)
		r = recipe_make(env, recipe, e);
	if (!r && recipe->plan.fingerprint != keep->fingerprint)
		r = error_set(e, -EPROTO, "the plan comes out differently here");
	return r;
}

int keep_take_reports(const struct msg_g_keep *keep, const struct recipe *recipe, struct block_report *reports)
{
	struct list_view list = keep->reports;
	struct elem_report report;
	size_t b = 0;
	int r;

	while ((r = elem_report_next(&list, &report)) == 0) {
		if (b >= recipe->plan.n_blocks || report.rank >= recipe->n_ranks)
			return -EPROTO;
		reports[b++] = (struct block_report){ .digest = report.digest,
						      .crc = report.crc,
						      .flags = report.flags,
						      .rank = report.rank,
						      .reported = true };
	}
	return r != 1 ? r : b == recipe->plan.n_blocks ? 0 : -EPROTO;
}

void keep_serve(struct groups *groups)
{
	cluster_serve(groups->cluster, MSG_G_KEEP, serve_keep, groups);
	cluster_serve(groups->cluster, MSG_G_KEPT, serve_kept, groups);
}
