/*
 * group/drain.c: a node that will end lets what is captured become durable, and takes nothing new.
 *
 * Not captured is not ours yet: such a save fails at once, here and, by its coordinator, on all ranks, which can save again elsewhere or
 * later. Captured is promised as far as memory goes: it has until the deadline. Groups that this node coordinates keep their lease
 * meanwhile; groups_stop() gives it back.
 */
#include <errno.h>
#include <inttypes.h>

#include "base/log.h"
#include "group/member.h"

#define LOOK_MS 20 /* between two looks whether all is durable */

int groups_open(const struct groups *groups, struct error *e)
{
	if (!groups->draining)
		return 0;
	return error_set(e, -ESHUTDOWN, "node %s shuts down and takes nothing new", cluster_node(groups->cluster));
}

/*
 * Also while other nodes are told `captured` already: what has been reported may be promised by now. And where this node is to hold copies of
 * others' ranks alone: these do not end here, and need not notice.
 */
static bool is_held(const struct msave *save)
{
	if ((save->state == SAVE_RESERVING || save->state == SAVE_CAPTURING) && list_empty(&save->offers))
		return true;
	return save->state == SAVE_CAPTURED || save->state == SAVE_STAGED ||
	       (save->state == SAVE_CAPTURING && save->reported);
}

/* The coordinator must not wait for what this node does not bring any more. */
static void refuse_offer(struct msave *save, int code, const char *words)
{
	list_each(node, &save->offers) {
		const struct moffer *offer = list_entry(node, struct moffer, link);

		if (offer->rank) {
			tell_failed(save->group, view_str(save->bundle), save->step, code, words);
			break;
		}
	}
	msave_fail(save, code, words);
}

static void end_what_is_not_captured(struct groups *groups)
{
	struct error e = { 0 };
	int code = groups_open(groups, &e);

	for (struct map_slot *s = map_first(&groups->coordinated); s; s = map_next(s))
		save_abandon_all(map_value(s), code, e.text, false);
	list_each(node, &groups->msaves) {
		struct msave *save = list_entry(node, struct msave, link);

		if (save->state < SAVE_CAPTURED && !is_held(save))
			refuse_offer(save, code, e.text);
	}
}

static bool is_drained(struct groups *groups)
{
	for (struct map_slot *s = map_first(&groups->coordinated); s; s = map_next(s))
		if (!list_empty(&((struct cgroup *)map_value(s))->saves))
			return false;
	list_each(node, &groups->msaves)
		if (is_held(list_entry(node, struct msave, link)))
			return false;
	return true;
}

static unsigned leave(const char *group, const char *bundle, uint64_t step, uint64_t save_id, enum save_state state)
{
	logm(LOG_WARN, "save.left", "save=%016" PRIx64 " group=%s bundle=%s step=%" PRIu64 " state=%s", save_id, group,
	     bundle, step, save_state_name(state));
	return 1;
}

/* Names what is not durable, each save once. */
static unsigned list_left(struct groups *groups)
{
	unsigned n = 0;

	list_each(node, &groups->msaves) {
		const struct msave *save = list_entry(node, struct msave, link);

		if (is_held(save))
			n += leave(save->group->name, save->bundle, save->step, save->save_id, save->state);
	}
	for (struct map_slot *s = map_first(&groups->coordinated); s; s = map_next(s)) {
		struct cgroup *group = map_value(s);

		list_each(node, &group->saves) {
			const struct csave *save = list_entry(node, struct csave, link);

			if (save_state_is_captured(save->state) && !msave_by_id(groups, save->save_id))
				n += leave(group->name, save->bundle, save->step, save->save_id, save->state);
		}
	}
	return n;
}

unsigned groups_drain(struct groups *groups, uint64_t deadline_ns)
{
	int r = 0;

	groups->draining = true;
	end_what_is_not_captured(groups);
	while (!r && !is_drained(groups) && env_now(groups->env) < deadline_ns)
		r = fiber_sleep_until(env_in_ms(groups->env, LOOK_MS));
	return list_left(groups);
}
