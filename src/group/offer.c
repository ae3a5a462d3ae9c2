/*
 * group/offer.c: how a save begins, with the first offer of any rank, and what stops it before it has ended.
 *
 * A step is saved once in a run: it is claimed when its save begins, and the mark stays, so that a rank which comes late to a save that
 * has failed is told why.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/counter.h"
#include "group/inside.h"

void save_mark_failed(const struct csave *save, int code)
{
	if (save->incarnation != save->group->incarnation)
		return;
	if (code == -ERR_ESKIPPED)
		steps_forget(&save->group->steps, view_str(save->bundle), save->step);
	else
		steps_fail(&save->group->steps, view_str(save->bundle), save->step, save->error.code, save->error.text);
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

	if (!r)
		r = groups_open(group->groups, e);
	if (r)
		return r;
	if (!offer->copies || offer->copies > PLAN_COPIES_MAX)
		return error_set(e, -EINVAL, "%u copies: 1 to %d are possible", offer->copies, PLAN_COPIES_MAX);
	if (offer->policy >= POLICIES)
		return error_set(e, -EINVAL, "policy %u is not known", offer->policy);
	return coordinator_whole(group, e);
}

/* Of a step that it has claimed: given back, if its life cannot begin. */
static int start_life(struct csave *save)
{
	int r = fiber_start(&save->group->groups->flows, "save-life", save_life, save);

	if (r)
		steps_forget(&save->group->steps, view_str(save->bundle), save->step);
	return r;
}

static int begin_save(struct cgroup *group, const struct msg_g_offer *offer, struct csave **ret, struct error *e)
{
	struct groups *groups = group->groups;
	struct csave *save = csave_new(group, offer->bundle, group->size);

	if (!save)
		return -ENOMEM;
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
	int r = steps_claim(&group->steps, offer->bundle, offer->step, e);
	if (!r)
		r = start_life(save);
	if (r) {
		csave_put(save);
		return r;
	}
	memcpy(save->ranks, group->ranks, group->size * sizeof(*save->ranks));
	list_append(&group->saves, &save->link);
	count(COUNT_SAVES_BEGUN, 1);
	trace_begin(save);
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

void save_stop(struct csave *save, int code, const char *words)
{
	if (save->failed || save->ending)
		return;
	save->failed = code;
	memset(&save->error, 0, sizeof(save->error));
	error_set(&save->error, code, "%s", words);
	if (save->state < SAVE_CAPTURED)
		save_mark_failed(save, code); /* now: a rank may come to it before it has settled */
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
		trace_offered(save, rank.rank);
		if (rank.rank || save->attributes.len)
			continue;
		r = buf_append(&save->attributes, offer->attributes.bytes.ptr, offer->attributes.bytes.len);
		save->n_attributes = r ? 0 : offer->attributes.count;
	}
	if (!save->arena_bytes || offer->arena_bytes < save->arena_bytes)
		save->arena_bytes = offer->arena_bytes;
	save->arenas_bytes += offer->arena_bytes;
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
	save_stop(save, r, words.text); /* or the others would wait for this node until the deadline */
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
		save_stop(save, -ERR_ERANK, text);
	}
}

int save_fail(struct cgroup *group, struct view bundle, uint64_t step, int code, const char *words)
{
	list_each(node, &group->saves) {
		struct csave *save = list_entry(node, struct csave, link);

		if (save->step != step || !view_equal(view_str(save->bundle), bundle) ||
		    save->incarnation != group->incarnation)
			continue;
		if (save->state >= SAVE_CAPTURED)
			return -EALREADY;
		save_stop(save, code, words);
		return 0;
	}
	if (!steps_claim(&group->steps, bundle, step, NULL))
		steps_fail(&group->steps, bundle, step, code, words);
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
				save_stop(save, -ERR_ENODE, text);
			for (size_t i = 0; save->nodes && i < save->recipe->n_nodes; i++)
				if (!strcmp(save->recipe->nodes[i], node))
					save_lose_node(save, i, "it went down");
		}
	}
}

/* ---- replacing ------------------------------------------------------------------------------------------------------ */

static bool holds_on(const struct csave *save, const char *node)
{
	for (size_t i = 0; i < save->recipe->n_nodes; i++)
		if (!strcmp(save->recipe->nodes[i], node))
			return save_takes_part(save, i);
	return false;
}

/* Saves stand in the order in which they began: one that came later is not dropped, though it may be captured first. */
static struct csave *oldest_undurable(const struct csave *save, const char *node)
{
	list_each(link, &save->group->saves) {
		struct csave *other = list_entry(link, struct csave, link);

		if (other == save)
			break;
		if (save_state_is_captured(other->state) && !other->failed && !other->root_due && !other->ending &&
		    holds_on(other, node))
			return other;
	}
	return NULL;
}

int save_make_way(struct csave *save, const char *node, bool *ret_dropped, struct error *e)
{
	struct csave *victim = oldest_undurable(save, node);
	uint64_t deadline_ns = env_in_ms(save->group->groups->env, DRAIN_TIMEOUT_MS);
	char words[ERROR_TEXT_MAX];
	int r = 0;

	*ret_dropped = victim;
	if (!victim)
		return 0;
	snprintf(words, sizeof(words), "step %" PRIu64 " of %.200s was dropped for step %" PRIu64 " of %.200s",
		 victim->step, victim->bundle, save->step, save->bundle);
	victim->refs++;
	save_stop(victim, -ERR_ESUPERSEDED, words);
	while (!r && !list_empty(&victim->link))
		r = wait_at(&victim->changed, deadline_ns);
	csave_put(victim);
	return r ? error_set(e, r, "the save that was dropped for it has not ended in time") : 0;
}

void save_abandon_all(struct cgroup *group, int code, const char *words, bool captured_too)
{
	list_each(node, &group->saves) {
		struct csave *save = list_entry(node, struct csave, link);

		if (captured_too || save->state < SAVE_CAPTURED)
			save_stop(save, code, words);
	}
}
