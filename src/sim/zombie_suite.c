/*
 * sim/zombie_suite.c: nodes that are taken for dead and go on later, and what such a coordinator says when it wakes: it is overtaken, and
 * nobody obeys it any more.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "daemon/daemon.h"
#include "group/member.h"
#include "sim/history_suite.h"

#define CUT_OFF_MS 20000 /* until then a successor has taken over */
#define CALL_MS	   2000

/* ---- nodes ---- */

static int end_cut(void *arg)
{
	struct node *n = arg;
	struct world *w = n->h->world;
	int r = fiber_sleep_until(w->now_ns + CUT_OFF_MS * NS_PER_MS);

	world_silence(w, n->name, "*", false);
	world_silence(w, "*", n->name, false);
	return r;
}

void zombie_begin(struct node *n, bool still)
{
	struct history *h = n->h;

	if (!n->up || h->world->n_silences + 2 > SIM_SILENCES_MAX)
		return;
	world_silence(h->world, n->name, "*", true);
	world_silence(h->world, "*", n->name, true);
	if (still) {
		history_deed(h, DEED_NODE_STOOD_STILL);
		world_tell(h->world, n->env, "is stopped");
		sim_env(n->env)->stopped_until_ns = h->world->now_ns + CUT_OFF_MS * NS_PER_MS;
	}
	CHECK(!fiber_start(&h->flows, "cut", end_cut, n));
}

const struct node *zombie_coordinator(struct history *h)
{
	for (unsigned i = 0; i < h->n_nodes; i++) {
		const struct groups *groups = h->nodes[i].up ? daemon_groups(h->nodes[i].daemon) : NULL;

		if (groups && groups->coordinated.n)
			return &h->nodes[i];
	}
	return NULL;
}

/* ---- calls ---- */

struct call {
	struct node *from;
	const char *to;
	enum msg_type type;
	uint64_t save_id, epoch; /* epoch: the last that is over */
};

static int encode(const struct call *call, struct buf *body)
{
	struct msg_g_capture capture = { .save_id = call->save_id, .epoch = call->epoch };
	struct msg_g_copy copy = { .save_id = call->save_id, .epoch = call->epoch };

	return call->type == MSG_G_CAPTURE ? msg_g_capture_encode(&capture, body) : msg_g_copy_encode(&copy, body);
}

static int call_run(void *arg)
{
	struct call *call = arg;
	struct history *h = call->from->h;
	struct groups *groups = daemon_groups(call->from->daemon);
	_cleanup_(buf_fini) struct buf body = { 0 }, answer = { 0 };

	CHECK(!encode(call, &body));
	int r = cluster_call(groups->cluster, call->to, call->type, view_buf(&body), env_in_ms(groups->env, CALL_MS),
			     &answer, NULL);
	if (!r)
		history_fail(h, "%s obeys %s in save %016" PRIx64 ", whose epoch %" PRIu64 " is over", call->to,
			     msg_type_name(call->type), call->save_id, call->epoch);
	if (r == -ERR_ESTALEEPOCH)
		history_deed(h, DEED_ZOMBIE_REFUSED);
	free(call);
	return 0;
}

static bool is_ready(const struct node *n)
{
	return n->up && daemon_groups(n->daemon) && !daemon_ready(n->daemon, NULL);
}

static const struct msave *pick_save(struct history *h, const struct node *n, enum msg_type *ret_type)
{
	const struct msave *found = NULL;
	uint64_t seen = 0;

	list_each(at, &daemon_groups(n->daemon)->msaves) {
		const struct msave *save = list_entry(at, struct msave, link);
		bool capturing = save->state == SAVE_CAPTURING;

		if (!save->save_id || !save->epoch ||
		    (!capturing && save->state != SAVE_CAPTURED && save->state != SAVE_STAGED) ||
		    world_random(h->world, ++seen))
			continue;
		found = save;
		*ret_type = capturing ? MSG_G_CAPTURE : MSG_G_COPY;
	}
	return found;
}

void zombie_call(struct history *h)
{
	struct node *from = &h->nodes[world_random(h->world, h->n_nodes)],
		    *to = &h->nodes[world_random(h->world, h->n_nodes)];
	enum msg_type type;
	const struct msave *save = is_ready(from) && is_ready(to) ? pick_save(h, to, &type) : NULL;

	if (!save)
		return;
	struct call *call = malloc(sizeof(*call));
	CHECK(call);
	*call = (struct call){ from, to->name, type, save->save_id, save->epoch - 1 };
	CHECK(!fiber_start(&from->calls, "zombie", call_run, call));
}
