/*
 * group/tell.c: what the ranks of a save are told: a stage that is over, or how the save ended, by way of their nodes; and the figures
 * that go along.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "group/inside.h"

#define TELL_ATTEMPTS 3

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
		r = add_stat(stats, "slow_nodes", save->n_slow);
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
static size_t list_nodes(const struct csave *save, struct fan_call *calls)
{
	const struct recipe *recipe = save->recipe;
	size_t n = 0;

	bool planned = save->nodes && recipe->plan.node_receive_bytes;
	for (size_t node = 0; planned && node < recipe->n_nodes; node++)
		if (save_takes_part(save, node) && !save->nodes[node].lost)
			calls[n++] = (struct fan_call){ .index = node, .node = recipe->nodes[node] };
	if (n)
		return n;
	for (uint32_t rank = 0; rank < recipe->n_ranks; rank++) {
		bool skip = !save->offered[rank];

		for (size_t i = 0; !skip && i < n; i++)
			skip = !strcmp(calls[i].node, save->ranks[rank].node);
		if (!skip)
			calls[n++].node = save->ranks[rank].node;
	}
	return n;
}

/* Tells those that have not answered yet: the first *@left of @calls, in whatever order. */
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

int save_tell(struct csave *save, enum save_state stage, int code, const char *words, bool must, struct error *e)
{
	struct groups *groups = save->group->groups;
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
				    .version = save->version,
				    .epoch = save->group->epoch };
	struct fan_call *calls = fan_new(save->recipe->n_nodes + save->recipe->n_ranks);
	size_t n = calls ? list_nodes(save, calls) : 0, left = n;
	int r = calls ? collect_stats(save, &stats) : -ENOMEM;

	tell.stats = list_buf_view(&stats);
	for (size_t i = 0; !r && i < n; i++)
		r = msg_g_stage_encode(&tell, &calls[i].body);
	if (!r && must) {
		r = fan_survive(groups, MSG_G_STAGE, calls, n, env_in_ms(groups->env, SETTLE_MS), e);
		save_lose_called(save, calls, n);
	}
	for (int attempt = 0; !r && !must && left && attempt < TELL_ATTEMPTS; attempt++)
		tell_once(groups, calls, &left);
	fan_free(calls, n);
	list_buf_fini(&stats);
	return r;
}
