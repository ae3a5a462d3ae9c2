/*
 * group/watch.c: packs that are being written, each by a call in a fiber of its own; which nodes are slow at it, and what they write is
 * taken back for others.
 *
 * The nodes under way are asked at each look how much the store has taken of theirs (G_PACE); pace.h judges. A slow node is named, once. Its packs
 * are given up if others hold most of what is in them and will be faster, even though they begin anew: a pack is written whole. Who
 * has no other is waited for. The order that is taken back ends with an answer; a pack that was finished all the same counts, if the
 * answer says so, else nothing names it and it is collected. What a node is given while it writes counts with what it has; what it is
 * given later is a batch of its own.
 */
#include <errno.h>
#include <stdlib.h>

#include "group/inside.h"
#include "group/pace.h"

struct uploads {
	struct csave *save;
	uint64_t deadline_ns;
	struct upload **all;
	size_t n;
	struct nursery nursery, watching; /* who watches may fail for want of memory, and the packs go on */
	struct waitplace ended;
	bool watched;
	struct pace pace; /* and per node of the recipe: */
	uint64_t *done;
	unsigned *batch; /* the last one */
	bool *asked, *may_give;
};

void upload_free(struct upload *upload)
{
	if (!upload)
		return;
	buf_fini(&upload->call.body);
	buf_fini(&upload->call.answer);
	free(upload);
}

void uploads_free(struct uploads *uploads)
{
	if (!uploads)
		return;
	nursery_fini(&uploads->watching);
	nursery_fini(&uploads->nursery);
	for (size_t i = 0; i < uploads->n; i++)
		upload_free(uploads->all[i]);
	free(uploads->all);
	free(uploads->pace.nodes);
	free(uploads->pace.sorted);
	free(uploads->done);
	free(uploads->batch);
	free(uploads->asked);
	free(uploads->may_give);
	free(uploads);
}

struct uploads *uploads_new(struct csave *save, uint64_t deadline_ns)
{
	struct uploads *uploads = calloc(1, sizeof(*uploads));
	struct env *env = save->group->groups->env;
	size_t n = save->recipe->n_nodes;

	if (!uploads)
		return NULL;
	uploads->save = save;
	uploads->deadline_ns = deadline_ns;
	nursery_init(&uploads->nursery, env->loop);
	nursery_init(&uploads->watching, env->loop);
	waitplace_init(&uploads->ended);
	uploads->pace = (struct pace){ .nodes = calloc(n + 1, sizeof(struct pace_node)),
				       .sorted = calloc(n + 1, sizeof(uint64_t)),
				       .n = n,
				       .begun_ns = env_now(env) };
	uploads->done = calloc(n + 1, sizeof(*uploads->done));
	uploads->batch = calloc(n + 1, sizeof(*uploads->batch));
	uploads->asked = calloc(n + 1, sizeof(*uploads->asked));
	uploads->may_give = calloc(n + 1, sizeof(*uploads->may_give));
	if (!uploads->pace.nodes || !uploads->pace.sorted || !uploads->done || !uploads->batch || !uploads->asked ||
	    !uploads->may_give) {
		uploads_free(uploads);
		return NULL;
	}
	for (size_t i = 0; i < n; i++)
		uploads->pace.nodes[i].rate = save->recipe->plan_nodes[i].store_rate;
	return uploads;
}

/* ---- looks -------------------------------------------------------------------------------------------------------------- */

/* What an upload says of its node: what it has to write, has written, and whether it is to be asked. */
static void take_upload(struct uploads *uploads, const struct upload *upload)
{
	size_t i = upload->call.index;
	struct pace_node *node = &uploads->pace.nodes[i];

	if (upload->call.over && upload->call.result) { /* a node that is lost is nobody's measure */
		node->rate = 0;
		return;
	}
	if (upload->batch != uploads->batch[i] || upload->given_up)
		return;
	node->bytes += upload->call.bytes;
	if (upload->call.over) {
		uint64_t took_ns = upload->begun_ns + upload->call.took_ns - node->begun_ns;

		uploads->done[i] += upload->call.bytes;
		node->took_ns = took_ns > node->took_ns ? took_ns :
							  node->took_ns; /* of several packs the last counts */
		return;
	}
	uploads->asked[i] = true;
	uploads->may_give[i] &= upload->may_move;
}

static void take_uploads(struct uploads *uploads)
{
	for (size_t i = 0; i < uploads->pace.n; i++) {
		uploads->pace.nodes[i].bytes = uploads->pace.nodes[i].took_ns = 0;
		uploads->done[i] = 0;
		uploads->asked[i] = false;
		uploads->may_give[i] = true;
	}
	for (size_t i = 0; i < uploads->n; i++)
		take_upload(uploads, uploads->all[i]);
	for (size_t i = 0; i < uploads->pace.n; i++)
		if (uploads->asked[i])
			uploads->pace.nodes[i].took_ns = 0;
}

/* Who does not answer until the next look is due has written nothing that is known of. */
static int ask(struct uploads *uploads, const bool *whom, bool give_up, uint64_t limit_ms)
{
	struct csave *save = uploads->save;
	struct groups *groups = save->group->groups;
	const struct msg_g_pace msg = { .save_id = save->save_id, .epoch = save->group->epoch, .give_up = give_up };
	struct fan_call *calls = fan_new(uploads->pace.n);
	struct msg_g_pace_reply reply;
	size_t n = 0;
	int r = calls ? 0 : -ENOMEM;

	for (size_t i = 0; !r && i < uploads->pace.n; i++) {
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
			uploads->done[calls[i].index] += reply.bytes;
	fan_free(calls, n);
	return r;
}

static void name_slow(struct csave *save, size_t node, bool gives)
{
	save_name_slow(save, node, SLOW_WRITES,
		       gives ? "others write what it had to write" :
			       "nobody else can write what it has to: it is waited for");
}

/* Names those that are slow, and has given up what others can write sooner. */
static int judge(struct uploads *uploads)
{
	const struct pace *pace = &uploads->pace;
	bool any = false;

	for (size_t i = 0; i < pace->n; i++) {
		bool gives = uploads->asked[i] && uploads->may_give[i] && pace_is_hopeless(pace, i);

		if (uploads->asked[i] && pace_is_slow(pace, i))
			name_slow(uploads->save, i, gives);
		uploads->asked[i] = gives;
		any |= gives;
	}
	return any ? ask(uploads, uploads->asked, true, SETTLE_MS) : 0;
}

static int watch(void *arg)
{
	struct uploads *uploads = arg;
	struct env *env = uploads->save->group->groups->env;
	int r = fiber_sleep_until(env_in_ms(env, PACE_LOOK_MS));

	while (!r) {
		take_uploads(uploads);
		r = ask(uploads, uploads->asked, false, PACE_LOOK_MS);
		if (r)
			break;
		pace_look(&uploads->pace, uploads->done, env_now(env));
		r = judge(uploads);
		if (!r)
			r = fiber_sleep_until(env_in_ms(env, PACE_LOOK_MS));
	}
	return r;
}

/* ---- uploads ------------------------------------------------------------------------------------------------------------ */

static int upload_run(void *arg)
{
	struct upload *upload = arg;
	struct uploads *uploads = upload->all;
	struct csave *save = uploads->save;
	struct fan_call *call = &upload->call;
	struct msg_g_pace_reply reply = { 0 };

	fan_one(save->group->groups, MSG_G_UPLOAD, call, uploads->deadline_ns);
	if (!call->result)
		call->result = msg_g_pace_reply_decode(view_buf(&call->answer), &reply);
	upload->given_up = !call->result && reply.given_up;
	trace_calls(save, STATION_PACKS, call, 1);
	wake_all(&uploads->ended);
	return 0;
}

static bool is_under_way(const struct uploads *uploads, size_t node)
{
	for (size_t i = 0; i < uploads->n; i++)
		if (uploads->all[i]->call.index == node && !uploads->all[i]->call.over)
			return true;
	return false;
}

/* The pace of one node alone says nothing. And nothing fails because it cannot be looked at. */
static void watch_race(struct uploads *uploads)
{
	if (!uploads->watched && uploads->all[uploads->n - 1]->call.index != uploads->all[0]->call.index)
		uploads->watched = !fiber_start(&uploads->watching, "pace", watch, uploads);
}

static int keep_upload(struct uploads *uploads, struct upload *upload)
{
	bool grow = !(uploads->n & (uploads->n - 1)); /* full at powers of two */
	void *all = grow ? reallocarray(uploads->all, uploads->n ? 2 * uploads->n : 1, sizeof(*uploads->all)) :
			   uploads->all;

	if (!all)
		return -ENOMEM;
	uploads->all = all;
	uploads->all[uploads->n++] = upload;
	return 0;
}

int uploads_begin(struct uploads *uploads, struct upload **upload)
{
	struct upload *begun = TAKE(*upload);
	size_t node = begun->call.index;

	begun->all = uploads;
	begun->begun_ns = env_now(uploads->save->group->groups->env);
	if (!is_under_way(uploads, node)) {
		uploads->batch[node]++;
		pace_begin(&uploads->pace, node, begun->begun_ns);
	}
	begun->batch = uploads->batch[node];
	int r = keep_upload(uploads, begun);
	if (r) {
		upload_free(begun);
		return r;
	}
	r = fiber_start(&uploads->nursery, "upload", upload_run, begun);
	if (!r)
		watch_race(uploads);
	return r;
}

int uploads_next(struct uploads *uploads, struct upload **ret, struct error *e)
{
	for (;;) {
		bool some = false;

		for (size_t i = 0; i < uploads->n; i++) {
			struct upload *upload = uploads->all[i];

			some |= !upload->call.over;
			if (!upload->call.over || upload->told)
				continue;
			upload->told = true;
			*ret = upload;
			return upload->call.result && !fan_lost(&upload->call) ? fan_failed(&upload->call, e) : 0;
		}
		*ret = NULL;
		int r = some ? wait_at(&uploads->ended, uploads->deadline_ns + NS_PER_S) : 0;
		if (r || !some)
			return r;
	}
}
