/*
 * group/takeover.c: a new coordinator finishes what the last one left.
 *
 * Having won the lease it asks every node which captured saves of the group are under way there; from then on these nodes refuse the
 * last coordinator, should it still live. Who keeps what a successor needs (keep.c) gives it; from that the save goes on where
 * captured saves go on. The slot that the last coordinator opened is settled first: it holds a root, and then the save is
 * published, or a tombstone, and then it never will be under that number. A save that nobody kept fails, on all ranks.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/point.h"
#include "group/member.h"

#define AGAIN_MS 500 /* while the engine or the store is away */

CLEANUP_OF(struct cgroup *, cgroup_put);
CLEANUP_OF(struct csave *, csave_put);

/* ---- a node's side ---------------------------------------------------------------------------------------------------- */

static bool is_of(const struct msave *save, const struct msg_g_recover *recover)
{
	return view_equal(view_str(save->group->name), recover->group) &&
	       view_equal(view_str(save->group->tenant), recover->tenant);
}

/* The save goes on under @from, or ends here when not all had captured it. */
static int hand_over(struct msave *save, const char *from, uint64_t epoch, struct list_buf *list)
{
	if (save_state_is_over(save->state))
		return 0;
	if (save->state < SAVE_CAPTURED && save->epoch == epoch)
		return 0; /* a save of the new coordinator's own */
	if (save->state < SAVE_CAPTURED) {
		msave_fail(save, -ERR_ENODE, "the group has another coordinator, and not all ranks had captured");
		return 0;
	}
	msave_adopt(save, from, epoch);
	struct elem_g_recovered elem = { .save_id = save->save_id,
					 .kept = save->kept.len > 0,
					 .bundle = view_str(save->bundle),
					 .step = save->step };
	return elem_g_recovered_append(list, &elem);
}

static int list_ended(const struct groups *groups, struct list_buf *list)
{
	int r = 0;

	for (size_t i = 0; !r && i < ENDED_MAX; i++) {
		const struct ended_save *ended = &groups->ended[i];
		struct elem_g_ended elem = { .save_id = ended->save_id,
					     .stage = ended->state,
					     .code = (uint32_t)-ended->code,
					     .words = view_str(ended->words),
					     .version = ended->version };

		if (ended->save_id && ended->code != -ERR_ESTALEEPOCH)
			r = elem_g_ended_append(list, &elem);
	}
	/* what a coordinator that died has told some ranks counts for all */
	for (size_t i = 0; !r && i < FAILED_MAX; i++) {
		struct elem_g_ended elem = { .save_id = groups->failed[i].save_id,
					     .stage = SAVE_FAILED,
					     .code = groups->failed[i].code,
					     .words = view_str(
						     "its coordinator had told other ranks so before it was lost") };

		if (elem.save_id && elem.code && elem.code != ERR_ESTALEEPOCH)
			r = elem_g_ended_append(list, &elem);
	}
	return r;
}

static int serve_recover(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
			 struct error *e)
{
	struct groups *groups = arg;
	_cleanup_(list_buf_fini) struct list_buf list = { 0 };
	_cleanup_(list_buf_fini) struct list_buf ended = { 0 };
	struct msg_g_recover recover;
	struct msg_g_recover_reply reply;
	int r = msg_g_recover_decode(body, &recover);

	if (r)
		return error_set(e, -EPROTO, "malformed G_RECOVER from %s", from);
	coordinator_overtaken(groups, recover.tenant, recover.group, recover.epoch);
	list_each(node, &groups->msaves) {
		struct msave *save = list_entry(node, struct msave, link);

		if (r || !is_of(save, &recover) || save->epoch > recover.epoch)
			continue;
		r = hand_over(save, from, recover.epoch, &list);
	}
	if (!r)
		r = list_ended(groups, &ended);
	reply.saves = list_buf_view(&list);
	reply.ended = list_buf_view(&ended);
	return r ? r : msg_g_recover_reply_encode(&reply, answer);
}

/* ---- what is under way ------------------------------------------------------------------------------------------------ */

#define KEEPERS_MAX PLAN_COPIES_MAX /* of one save, that are asked */

struct found {
	struct list link;
	uint64_t save_id, step;
	char *bundle;
	const char *keepers[KEEPERS_MAX]; /* nodes' names in the calls */
	unsigned n_keepers;
	struct elem_g_ended ended; /* save_id 0: it has not; views into an answer */
};

struct takeover {
	struct cgroup *group;
	struct fan_call *calls;
	size_t n_calls;
	struct node_info *infos; /* the calls' names lie here */
	struct list found;
};

static void takeover_fini(struct takeover *t)
{
	list_each(node, &t->found) {
		struct found *found = list_entry(node, struct found, link);

		list_remove(&found->link);
		free(found->bundle);
		free(found);
	}
	fan_free(t->calls, t->n_calls);
	free(t->infos);
}

static struct found *obtain_found(struct takeover *t, const struct elem_g_recovered *elem)
{
	list_each(node, &t->found) {
		struct found *found = list_entry(node, struct found, link);

		if (found->save_id == elem->save_id)
			return found;
	}
	struct found *found = calloc(1, sizeof(*found));
	if (!found)
		return NULL;
	found->save_id = elem->save_id;
	found->step = elem->step;
	found->bundle = view_dup(elem->bundle);
	list_init(&found->link);
	list_append(&t->found, &found->link);
	return found;
}

static int take_found(struct takeover *t, const struct fan_call *call)
{
	struct msg_g_recover_reply reply;
	struct elem_g_recovered elem;
	int r = msg_g_recover_reply_decode(view_buf(&call->answer), &reply);

	while (!r && (r = elem_g_recovered_next(&reply.saves, &elem)) == 0) {
		struct found *found = obtain_found(t, &elem);

		if (!found || !found->bundle)
			return -ENOMEM;
		if (elem.kept && found->n_keepers < KEEPERS_MAX)
			found->keepers[found->n_keepers++] = call->node;
	}
	return r == 1 ? 0 : r;
}

static int take_ended(struct takeover *t, const struct fan_call *call)
{
	struct msg_g_recover_reply reply;
	struct elem_g_ended elem;
	int r = msg_g_recover_reply_decode(view_buf(&call->answer), &reply);

	while (!r && (r = elem_g_ended_next(&reply.ended, &elem)) == 0) {
		list_each(node, &t->found) {
			struct found *found = list_entry(node, struct found, link);

			if (found->save_id == elem.save_id && found->ended.stage != SAVE_DURABLE)
				found->ended = elem;
		}
	}
	return r == 1 ? 0 : r;
}

/* Asks every node that is up. One that is silent is lost to the saves, as any that was lost before. */
static int look(struct takeover *t, struct error *e)
{
	struct cgroup *group = t->group;
	struct groups *groups = group->groups;
	struct msg_g_recover recover = { .tenant = view_str(group->tenant),
					 .group = view_str(group->name),
					 .epoch = group->epoch };
	size_t n = 0;
	int r = cluster_nodes(groups->cluster, env_in_ms(groups->env, SETTLE_MS), &t->infos, &n, e);

	t->calls = r ? NULL : fan_new(n);
	if (!r && !t->calls)
		r = -ENOMEM;
	for (size_t i = 0; !r && i < n; i++) {
		if (!t->infos[i].up)
			continue;
		t->calls[t->n_calls].node = t->infos[i].name;
		r = msg_g_recover_encode(&recover, &t->calls[t->n_calls++].body);
	}
	if (!r)
		fan_tell(groups, MSG_G_RECOVER, t->calls, t->n_calls, env_in_ms(groups->env, SETTLE_MS));
	for (size_t i = 0; !r && i < t->n_calls; i++)
		if (!t->calls[i].result)
			r = take_found(t, &t->calls[i]);
	for (size_t i = 0; !r && i < t->n_calls; i++)
		if (!t->calls[i].result)
			r = take_ended(t, &t->calls[i]);
	return r;
}

/* ---- a save goes on --------------------------------------------------------------------------------------------------- */

static int fill_save(struct csave *save, const struct msg_g_keep *keep)
{
	save->save_id = keep->save_id;
	save->step = keep->step;
	save->parent = keep->parent;
	save->incarnation = keep->incarnation;
	save->copies = keep->copies;
	save->policy = keep->policy;
	save->flags = keep->flags;
	save->diverged_blocks = keep->diverged_blocks;
	save->state = SAVE_CAPTURED;
	save->resumed = true;
	save->begun_ns = env_now(save->group->groups->env);
	save->n_attributes = keep->attributes.count;
	save->kept_slot = keep->slot;
	return buf_append(&save->attributes, keep->attributes.bytes.ptr, keep->attributes.bytes.len);
}

static int resume_from(struct cgroup *group, const struct msg_g_keep *keep, struct error *e)
{
	uint32_t n_ranks = keep->ranks.count;

	if (!n_ranks || n_ranks > GROUP_RANKS_MAX)
		return error_set(e, -EPROTO, "what was kept of it is of %u ranks", n_ranks);
	_cleanup_(cleanup_csave_put) struct csave *save = csave_new(group, keep->bundle, n_ranks);
	struct groups *groups = group->groups;
	int r = save ? fill_save(save, keep) : -ENOMEM;

	if (!r)
		r = keep_take_recipe(groups->env, keep, save->recipe, e);
	for (uint32_t rank = 0; !r && rank < save->recipe->n_ranks; rank++)
		memcpy(save->ranks[rank].node, save->recipe->nodes[save->recipe->rank_node[rank]],
		       sizeof(save->ranks[rank].node));
	if (!r)
		r = save_planned(save);
	if (!r)
		r = keep_take_reports(keep, save->recipe, save->reports);
	if (!r)
		r = fiber_start(&groups->flows, "save-life", save_life, save);
	if (r)
		return r;
	logm(LOG_INFO, "save.resumed", "save=%016" PRIx64 " group=%s bundle=%s step=%" PRIu64 " epoch=%" PRIu64,
	     save->save_id, group->name, save->bundle, save->step, group->epoch);
	struct csave *started = TAKE(save);
	list_append(&group->saves, &started->link);
	trace_begin(started);
	return 0;
}

static int resume_by(struct takeover *t, const struct found *found, const char *keeper, struct error *e)
{
	struct groups *groups = t->group->groups;
	struct msg_save_id id = { .save_id = found->save_id, .epoch = t->group->epoch };
	_cleanup_(buf_fini) struct buf body = { 0 }, answer = { 0 };
	struct msg_g_keep keep;
	int r = msg_save_id_encode(&id, &body);

	*e = (struct error){ 0 };
	if (!r)
		r = cluster_call(groups->cluster, keeper, MSG_G_KEPT, view_buf(&body),
				 env_in_ms(groups->env, DRAIN_TIMEOUT_MS), &answer, e);
	if (!r)
		r = msg_g_keep_decode(view_buf(&answer), &keep);
	return r ? r : resume_from(t->group, &keep, e);
}

/* By one keeper after the other: one may have been lost since it was asked. */
static int resume(struct takeover *t, const struct found *found, struct error *e)
{
	int r = -ENOENT;

	for (unsigned i = 0; r && r != -ECANCELED && i < found->n_keepers; i++)
		r = resume_by(t, found, found->keepers[i], e);
	return r;
}

/* Tells the nodes that know of the save how it ended. */
static void tell_end(struct takeover *t, const struct found *found, const struct elem_g_ended *end)
{
	struct groups *groups = t->group->groups;
	struct fan_call *calls = fan_new(t->n_calls);
	struct msg_g_stage stage = { .tenant = view_str(t->group->tenant),
				     .group = view_str(t->group->name),
				     .save_id = found->save_id,
				     .bundle = view_str(found->bundle),
				     .step = found->step,
				     .stage = end->stage,
				     .code = end->code,
				     .words = end->words,
				     .version = end->version,
				     .epoch = t->group->epoch };

	for (size_t i = 0; calls && i < t->n_calls; i++) {
		calls[i].node = t->calls[i].node;
		(void)msg_g_stage_encode(&stage, &calls[i].body);
	}
	if (calls)
		fan_tell(groups, MSG_G_STAGE, calls, t->n_calls, env_in_ms(groups->env, SETTLE_MS));
	fan_free(calls, t->n_calls);
}

/* Nobody can finish it: its ranks are told so. */
static void give_up(struct takeover *t, const struct found *found, const char *why)
{
	struct elem_g_ended end = { .stage = SAVE_FAILED, .code = ERR_ENODE };
	struct error words = { 0 };

	(void)error_set(&words, -ERR_ENODE,
			"step %" PRIu64
			" of %s: node %s, which coordinated it, was lost, and its successor cannot finish it: %s",
			found->step, found->bundle, t->group->before, why);
	end.words = view_str(words.text);
	logm(LOG_WARN, "save.given-up", "save=%016" PRIx64 " group=%s words=\"%s\"", found->save_id, t->group->name,
	     why);
	tell_end(t, found, &end);
}

static void end_or_resume(struct takeover *t, const struct found *found)
{
	struct error why = { 0 };

	if (found->ended.save_id) {
		tell_end(t, found, &found->ended);
		return;
	}
	if (coordinator_knows(t->group, found->save_id))
		return; /* one of its own, or the second look at it */
	int r = resume(t, found, &why);
	if (r && r != -ECANCELED)
		give_up(t, found,
			!found->n_keepers ? "nobody keeps what it needs for that" :
			why.code	  ? why.text :
					    error_meaning(r));
}

int takeover_run(void *arg)
{
	_cleanup_(cleanup_cgroup_put) struct cgroup *group = arg;
	struct env *env = group->groups->env;
	int r = -EAGAIN;

	while (r && r != -ECANCELED && !group->lost) {
		struct takeover t = { .group = group };
		struct error e = { 0 };

		list_init(&t.found);
		r = look(&t, &e);
		list_each(node, &t.found)
			if (!r)
				end_or_resume(&t, list_entry(node, struct found, link));
		takeover_fini(&t);
		if (r && r != -ECANCELED)
			(void)fiber_sleep_until(env_in_ms(env, AGAIN_MS));
	}
	group->recovering = false;
	wake_all(&group->changed);
	return 0;
}

/* ---- where its blocks are, and its slot ------------------------------------------------------------------------------- */

static int take_held(struct csave *save, size_t node, struct view answer)
{
	struct msg_numbers held;
	struct elem_u32 number;
	int r = msg_numbers_decode(answer, &held);

	while (!r && (r = elem_u32_next(&held.numbers, &number)) == 0) {
		if (number.v >= save->recipe->plan.n_blocks)
			return -EPROTO;
		save_add_holder(save, &save->reports[number.v], node);
	}
	return r == 1 ? 0 : r;
}

/* Nodes that are known to be down, as the last coordinator's mostly is, are not waited for. */
static void lose_silent(struct csave *save)
{
	struct groups *groups = save->group->groups;
	const struct recipe *recipe = save->recipe;
	_cleanup_(cleanup_mem) struct node_info *infos = NULL;
	size_t n = 0;

	if (cluster_nodes(groups->cluster, env_in_ms(groups->env, SETTLE_MS), &infos, &n, NULL))
		return;
	for (size_t i = 0; i < n; i++)
		for (size_t node = 0; !infos[i].up && node < recipe->n_nodes; node++)
			if (!strcmp(recipe->nodes[node], infos[i].name))
				save_lose_node(save, node, "it is down");
}

/* A node that has no part in the save and holds nothing of it may hold copies from now on. */
static int take_answer(struct csave *save, const struct fan_call *call)
{
	size_t node = call->index;
	bool has_part = save_takes_part(save, node);

	if (call->result == -ENOENT && has_part)
		save_lose_node(save, node, "it was started anew");
	else if (call->result && call->result != -ENOENT)
		save_lose_node(save, node, call->error.text);
	save->nodes[node].joined = !call->result && !has_part;
	return call->result ? 0 : take_held(save, node, view_buf(&call->answer));
}

static int ask_holders(struct csave *save)
{
	const struct recipe *recipe = save->recipe;
	struct groups *groups = save->group->groups;
	struct msg_save_id id = { .save_id = save->save_id, .epoch = save->group->epoch };
	struct fan_call *calls = fan_new(recipe->n_nodes);
	size_t n = 0;
	int r = calls ? 0 : -ENOMEM;

	lose_silent(save);
	for (size_t node = 0; !r && node < recipe->n_nodes; node++) {
		if (save->nodes[node].lost)
			continue;
		calls[n].node = recipe->nodes[node];
		calls[n].index = node;
		r = msg_save_id_encode(&id, &calls[n++].body);
	}
	if (!r)
		fan_tell(groups, MSG_G_HELD, calls, n, env_in_ms(groups->env, SETTLE_MS));
	for (size_t i = 0; !r && i < n; i++)
		r = take_answer(save, &calls[i]);
	fan_free(calls, recipe->n_nodes);
	return r;
}

/* Of the last coordinator's root and our tombstone exactly one is under the slot's number. */
static int settle_slots(struct csave *save, bool *ret_published, struct error *e)
{
	struct groups *groups = save->group->groups;
	uint64_t deadline_ns = env_in_ms(groups->env, DRAIN_TIMEOUT_MS), number = 0;
	int r;

	for (;;) {
		r = slot_settle(groups->bundles, view_str(save->group->tenant), view_str(save->bundle), save->save_id,
				save->kept_slot, env_in_ms(groups->env, SETTLE_MS), &number, e);
		if (!r || r == -ECANCELED || r == -ERR_EDELETED || env_now(groups->env) >= deadline_ns)
			break;
		r = fiber_sleep_until(env_in_ms(groups->env, AGAIN_MS)); /* the engine is away, or the store */
		if (r)
			break;
	}
	*ret_published = !r && number;
	if (*ret_published)
		save->version = number;
	return r;
}

int takeover_find_holders(struct csave *save, bool *ret_published, struct error *e)
{
	int r = ask_holders(save);

	point_reached(POINT_SAVE_RESUMED);
	return r ? r : settle_slots(save, ret_published, e);
}

void takeover_serve(struct groups *groups)
{
	cluster_serve(groups->cluster, MSG_G_RECOVER, serve_recover, groups);
}
