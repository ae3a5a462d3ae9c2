/*
 * group/orphan.c: a save on one of its nodes whose coordinator is silent, or gone.
 *
 * A save of which nothing is heard asks its coordinator how it is. One that all have captured and that has lost it is an orphan: its
 * node looks who has the group's lease by now, maybe this node, and that one finishes it (takeover.c). One that not all have captured
 * ends here.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "group/member.h"

#define ASK_MS	    10000 /* without a word of a save: then its coordinator is asked */
#define SEEK_ASK_MS 1000  /* for who may be gone to answer */
#define SEEK_MS	    500	  /* between two looks for the successor of a coordinator that is gone */

static bool is_undisturbed(const struct msave *save)
{
	return !save_state_is_over(save->state) && !save->orphan;
}

void msave_adopt(struct msave *save, const char *node, uint64_t epoch)
{
	snprintf(save->coordinator, sizeof(save->coordinator), "%s", node);
	save->epoch = epoch;
	save->orphan = false;
}

/* A save that all have captured outlives its coordinator: a successor finishes it. Any other ends here. */
static void lose_coordinator(struct msave *save)
{
	char words[160];

	if (save_state_is_over(save->state))
		return;
	snprintf(words, sizeof(words), "node %s, which coordinated the save, was lost before all had captured",
		 save->coordinator);
	if (save_state_is_captured(save->state)) {
		save->orphan = true;
		wake_all(&save->changed);
	} else {
		msave_fail(save, -ERR_ENODE, words);
	}
}

/* It went on without what this node was to hold: a G_RESERVE may have come when nobody waited for its answer any more. */
static bool is_left_out(const struct msave *save, const struct msg_g_end *end)
{
	return !save->n_offers && save->state < SAVE_CAPTURED && (end->code == ERR_ENODE || end->stage == SAVE_DURABLE);
}

/* How the save is, by its coordinator's answer. What ranks here have captured is counted, though the word of it was not heard. */
static void take_end(struct msave *save, const struct msg_g_end *end)
{
	_cleanup_(cleanup_mem) char *words = view_dup(end->words);
	struct msg_g_stage stage = { .code = end->code, .words = end->words, .version = end->version };

	if (save_state_is_over(save->state))
		return;
	if (end->code == ERR_ESTALEEPOCH) {
		lose_coordinator(save);
	} else if (end->stage == SAVE_FAILED) {
		msave_fail(save, end->code ? -(int)end->code : -EIO, words ? words : "the save failed");
	} else if (is_left_out(save, end)) {
		msave_fail(save, -ERR_ENODE, "the save went on without this node, which had not answered in time");
	} else if (end->stage >= SAVE_CAPTURED) {
		if (save->state == SAVE_CAPTURING)
			msave_reach(save, SAVE_CAPTURED, &(struct msg_g_stage){ 0 });
		if (end->stage == SAVE_DURABLE && save_state_is_captured(save->state))
			msave_end_durable(save, &stage);
	}
}

/* A node that was not heard for a while may have missed the end of a save: its blocks shall not stay pinned for that. */
static int ask_coordinator_of(struct msave *save, uint64_t limit_ms)
{
	_cleanup_(buf_fini) struct buf body = { 0 }, answer = { 0 };
	struct msg_g_ask ask = { .save_id = save->save_id,
				 .tenant = view_str(save->group->tenant),
				 .group = view_str(save->group->name) };
	struct msg_g_end end;
	int r = save->save_id ? msg_g_ask_encode(&ask, &body) : -ENODATA;

	if (!r)
		r = cluster_call(save->groups->cluster, save->coordinator, MSG_G_ASK, view_buf(&body),
				 env_in_ms(save->groups->env, limit_ms), &answer, NULL);
	if (!r && !msg_g_end_decode(view_buf(&answer), &end))
		take_end(save, &end);
	else if (r == -ENOENT)
		msave_fail(save, -ERR_ENODE,
			   "its coordinator does not know the save any more; how it ended was not heard here");
	else if (r == -EHOSTDOWN || r == -EAGAIN || r == -ETIMEDOUT)
		lose_coordinator(save);
	return r == -ECANCELED ? r : 0;
}

/* Finds who holds the group's lease by now, maybe this node: that one finishes what the last coordinator left. */
static int seek_coordinator(struct msave *save)
{
	struct groups *groups = save->groups;
	char node[NODE_NAME_MAX + 1];
	uint64_t epoch;
	int r = coordinator_locate(groups, view_str(save->group->tenant), view_str(save->group->name),
				   env_in_ms(groups->env, SETTLE_MS), node, &epoch, NULL);

	if (r == -ECANCELED)
		return r;
	if (!r && epoch >= save->epoch) {
		msave_adopt(save, node, epoch);
		/* the one that was lost may hold the lease still: nobody waits for it longer than that lasts */
		r = ask_coordinator_of(save, SEEK_ASK_MS);
	}
	if (r == -ECANCELED || !save->orphan)
		return r == -ECANCELED ? r : 0;
	return fiber_sleep_until(
		env_in_ms(groups->env, SEEK_MS)); /* the lease has not run out, or the engine is away */
}

int orphan_watch(struct msave *save)
{
	struct env *env = save->groups->env;
	uint64_t begun_ns = env_now(env);
	int r = 0;

	while (r != -ECANCELED && !save_state_is_over(save->state)) {
		r = msave_wait_while(save, is_undisturbed, ASK_MS);
		if (save_state_is_over(save->state) || r == -ECANCELED)
			break;
		r = save->orphan ? seek_coordinator(save) : r == -ETIMEDOUT ? ask_coordinator_of(save, SETTLE_MS) : 0;
		if (env_now(env) - begun_ns > (save->waves ? THROUGH_TIMEOUT_MS : LIFE_TIMEOUT_MS) * NS_PER_MS)
			msave_fail(save, -ETIMEDOUT, "nobody said in time how the save ended");
	}
	return r == -ECANCELED ? r : 0;
}

void orphan_coordinator_lost(struct groups *groups, const char *node)
{
	list_each(link, &groups->msaves) {
		struct msave *save = list_entry(link, struct msave, link);

		if (!strcmp(save->coordinator, node))
			lose_coordinator(save);
	}
}

bool orphan_any(const struct groups *groups, struct view tenant, struct view name)
{
	list_each(node, &groups->msaves) {
		const struct msave *save = list_entry(node, struct msave, link);

		if (save->orphan && view_equal(view_str(save->group->name), name) &&
		    view_equal(view_str(save->group->tenant), tenant))
			return true;
	}
	return false;
}

void orphan_overtaken(struct groups *groups, uint64_t save_id)
{
	struct msave *save = msave_by_id(groups, save_id);

	if (save && !strcmp(save->coordinator, cluster_node(groups->cluster)))
		lose_coordinator(save);
}
