/*
 * group/watch.c: while packs are being written: which nodes are slow at it, and what they write is taken back for others.
 *
 * The nodes under way are asked at each look how much the store has taken of theirs (G_PACE); pace.h judges. A slow node is named, once. Its packs
 * are given up if others hold most of what is in them and will be faster, even though they begin anew: a pack is written whole. Who
 * has no other is waited for. The order that is taken back ends with an answer; a pack that was finished all the same counts, if the
 * answer says so, else nothing names it and it is collected.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/point.h"
#include "group/inside.h"
#include "group/pace.h"

struct watch {
	struct csave *save;
	struct fan_call *uploads;
	const bool *may_move; /* per upload */
	size_t n;
	struct pace pace;
	uint64_t *done; /* per node of the recipe */
	bool *asked, *may_give;
};

static void watch_fini(struct watch *watch)
{
	free(watch->pace.nodes);
	free(watch->pace.sorted);
	free(watch->done);
	free(watch->asked);
	free(watch->may_give);
}

static int watch_init(struct watch *watch)
{
	const struct recipe *recipe = watch->save->recipe;
	struct pace *pace = &watch->pace;

	pace->n = recipe->n_nodes;
	pace->begun_ns = env_now(watch->save->group->groups->env);
	pace->nodes = calloc(pace->n + 1, sizeof(*pace->nodes));
	pace->sorted = calloc(pace->n + 1, sizeof(*pace->sorted));
	watch->done = calloc(pace->n + 1, sizeof(*watch->done));
	watch->asked = calloc(pace->n + 1, sizeof(*watch->asked));
	watch->may_give = calloc(pace->n + 1, sizeof(*watch->may_give));
	if (!pace->nodes || !pace->sorted || !watch->done || !watch->asked || !watch->may_give)
		return -ENOMEM;
	for (size_t i = 0; i < watch->n; i++) {
		struct pace_node *node = &pace->nodes[watch->uploads[i].index];

		node->rate = recipe->plan_nodes[watch->uploads[i].index].store_rate;
		node->bytes += watch->uploads[i].bytes;
	}
	return 0;
}

/* Whom to ask, what ended, and who is out: a node that is lost is nobody's measure. */
static void take_ends(struct watch *watch)
{
	for (size_t i = 0; i < watch->pace.n; i++) {
		watch->done[i] = 0;
		watch->asked[i] = false;
		watch->may_give[i] = true;
	}
	for (size_t i = 0; i < watch->n; i++) {
		const struct fan_call *upload = &watch->uploads[i];
		struct pace_node *node = &watch->pace.nodes[upload->index];

		if (!upload->over) {
			watch->asked[upload->index] = true;
			watch->may_give[upload->index] &= watch->may_move[i];
		} else if (upload->result) {
			node->rate = 0;
		} else {
			watch->done[upload->index] += upload->bytes;
		}
	}
	for (size_t i = 0; i < watch->n; i++) { /* of several packs of a node the last counts */
		const struct fan_call *upload = &watch->uploads[i];
		struct pace_node *node = &watch->pace.nodes[upload->index];

		if (!watch->asked[upload->index] && upload->took_ns > node->took_ns)
			node->took_ns = upload->took_ns;
	}
}

/* Who does not answer until the next look is due has written nothing that is known of. */
static int ask(struct watch *watch, const bool *whom, bool give_up, uint64_t limit_ms)
{
	struct csave *save = watch->save;
	struct groups *groups = save->group->groups;
	const struct msg_g_pace msg = { .save_id = save->save_id, .epoch = save->group->epoch, .give_up = give_up };
	struct fan_call *calls = fan_new(watch->pace.n);
	struct msg_g_pace_reply reply;
	size_t n = 0;
	int r = calls ? 0 : -ENOMEM;

	for (size_t i = 0; !r && i < watch->pace.n; i++) {
		if (!whom[i])
			continue;
		calls[n].node = save->recipe->nodes[i];
		calls[n].index = i;
		r = msg_g_pace_encode(&msg, &calls[n++].body);
	}
	if (!r)
		fan_tell(groups, MSG_G_PACE, calls, n, env_in_ms(groups->env, limit_ms));
	for (size_t i = 0; !r && i < n; i++)
		if (calls[i].over && !calls[i].result && !msg_g_pace_reply_decode(view_buf(&calls[i].answer), &reply))
			watch->done[calls[i].index] += reply.bytes;
	fan_free(calls, n);
	return r;
}

static void name_slow(struct csave *save, size_t node, bool gives)
{
	struct node_state *state = &save->nodes[node];

	if (state->slow)
		return;
	state->slow = true;
	save->n_slow++;
	trace_slow(save, save->recipe->nodes[node]);
	point_reached(POINT_NODE_SLOW);
	logm(LOG_WARN, "save.node-slow", "save=%016" PRIx64 " group=%s bundle=%s step=%" PRIu64 " peer=%s words=\"%s\"",
	     save->save_id, save->group->name, save->bundle, save->step, save->recipe->nodes[node],
	     gives ? "others write what it had to write" : "nobody else can write what it has to: it is waited for");
}

/* Names those that are slow, and has given up what others can write sooner. */
static int judge(struct watch *watch)
{
	const struct pace *pace = &watch->pace;
	bool any = false;

	for (size_t i = 0; i < pace->n; i++) {
		bool gives = watch->asked[i] && watch->may_give[i] && pace_is_hopeless(pace, i);

		if (watch->asked[i] && pace_is_slow(pace, i))
			name_slow(watch->save, i, gives);
		watch->asked[i] = gives;
		any |= gives;
	}
	return any ? ask(watch, watch->asked, true, SETTLE_MS) : 0;
}

static int watch_run(void *arg)
{
	struct watch *watch = arg;
	struct env *env = watch->save->group->groups->env;
	int r = fiber_sleep_until(env_in_ms(env, PACE_LOOK_MS));

	while (!r) {
		take_ends(watch);
		r = ask(watch, watch->asked, false, PACE_LOOK_MS);
		if (r)
			break;
		pace_look(&watch->pace, watch->done, env_now(env));
		r = judge(watch);
		if (!r)
			r = fiber_sleep_until(env_in_ms(env, PACE_LOOK_MS));
	}
	return r;
}

/* There is somebody to compare with. */
static bool is_race(const struct watch *watch)
{
	for (size_t i = 1; i < watch->n; i++)
		if (watch->uploads[i].index != watch->uploads[0].index)
			return true;
	return false;
}

int watch_uploads(struct csave *save, struct fan_call *calls, const bool *may_move, size_t n, uint64_t deadline_ns,
		  struct error *e)
{
	_cleanup_(watch_fini) struct watch watch = { .save = save, .uploads = calls, .may_move = may_move, .n = n };
	struct groups *groups = save->group->groups;
	struct nursery nursery;
	int r = watch_init(&watch);

	nursery_init(&nursery, groups->env->loop);
	if (!r && is_race(&watch))
		r = fiber_start(&nursery, "pace", watch_run, &watch);
	if (!r)
		r = fan_survive(groups, MSG_G_UPLOAD, calls, n, deadline_ns, e);
	nursery_fini(&nursery);
	return r;
}
