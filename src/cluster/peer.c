/*
 * cluster/peer.c: links to peers and the calls on them.
 *
 * A link is dialled by the first call that needs it, greets, and stays, pinged, until it ends; its end finishes all calls on it. How a
 * peer is noticed to be down: it was silent; or it could not be dialled. A control connection that broke is dialled once
 * more before anybody is told, since a cut connection is no dead node.
 */
#include "cluster/inside.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/counter.h"
#include "base/log.h"

struct call {
	struct list link;
	uint64_t request;
	enum msg_type type;
	struct buf *answer; /* NULL: not wanted */
	size_t answer_bytes;
	struct error *e;
	struct await done;
};

static void link_dial(struct link *link, uint64_t until_ns);

/* ---- states ---- */

#define MOVE(state) (1u << (state))
static const uint8_t moves[LINK_STATES] = {
	[LINK_IDLE] = MOVE(LINK_DIALLING),
	[LINK_DIALLING] = MOVE(LINK_GREETING) | MOVE(LINK_IDLE),
	[LINK_GREETING] = MOVE(LINK_UP) | MOVE(LINK_IDLE),
	[LINK_UP] = MOVE(LINK_IDLE),
};

static void link_move(struct link *link, enum link_state to)
{
	CHECK(moves[link->state] & MOVE(to));
	CHECK((to == LINK_IDLE) == !link->conn);
	link->state = to;
}

static const char *peer_label(const struct peer *peer)
{
	return *peer->name ? peer->name : peer->address;
}

/* ---- news ---- */

/* The watchers are told of @peer, from a task: whoever noticed may be in the middle of something. */
static void peer_tell(struct peer *peer)
{
	struct cluster *cluster = peer->cluster;

	if (!*peer->name || cluster->stopping)
		return;
	peer->news = true;
	loop_post(cluster->env->loop, &cluster->news);
}

static void peer_is_down(struct peer *peer)
{
	peer->stale = true;
	if (peer->down)
		return;
	peer->down = true;
	count(COUNT_PEERS_LOST, peer->heard != 0);
	logm(peer->heard ? LOG_WARN : LOG_DEBUG, "peer.down", "peer=%s words=\"%s\"", peer_label(peer),
	     peer->control.failure.text);
	peer_tell(peer);
}

static uint64_t link_heard_ns(const struct link *link)
{
	uint64_t heard = net_last_heard_ns(link->conn);

	return heard < link->since_ns ? link->since_ns : heard;
}

uint64_t peer_unheard_ms(const struct peer *peer)
{
	const struct link *link = &peer->control;
	uint64_t heard_ns = link->state == LINK_UP ? link_heard_ns(link) : peer->heard_ns;
	uint64_t now_ns = env_now(peer->cluster->env);

	return !heard_ns ? NEVER_HEARD : now_ns > heard_ns ? (now_ns - heard_ns) / NS_PER_MS : 0;
}

/* ---- ends ---- */

static void call_finish(struct call *call, int result)
{
	list_remove(&call->link);
	call->done.done.fn(&call->done.done, result);
}

/* Everything on the link ends with @code; the words are for the calls, and for those who waited for it to be up. */
void link_end(struct link *link, int code, const char *words)
{
	struct peer *peer = link->peer;

	if (link->state == LINK_IDLE)
		return;
	if (link->state == LINK_UP && link->kind == GREET_CONTROL)
		peer->heard_ns = link_heard_ns(link);
	struct net_conn *conn = TAKE(link->conn);
	error_set(&link->failure, code, "node %s: %s", peer_label(peer), words);
	timer_disarm(peer->cluster->env->loop, &link->timer);
	link_move(link, LINK_IDLE);
	net_close(conn);
	while (!list_empty(&link->calls)) {
		struct call *call = list_entry(link->calls.next, struct call, link);

		error_set(call->e, code, "%s to node %s: %s", msg_type_name(call->type), peer_label(peer), words);
		call_finish(call, code);
	}
	wake_all(&link->settled);
	if (link->kind == GREET_CONTROL)
		link_end(&peer->bulk, code, words);
}

void peer_close(struct peer *peer, int code, const char *words)
{
	link_end(&peer->control, code, words);
	link_end(&peer->bulk, code, words);
}

/* The link ended by itself: what that says of the peer. What is dialled once more counts as silent since it was heard last. */
static void link_lost(struct link *link, int code, const char *words)
{
	struct peer *peer = link->peer;
	bool was_up = link->state == LINK_UP;
	uint64_t silent_at = was_up ? link_heard_ns(link) + PEER_SILENT_MS * NS_PER_MS : 0;
	uint64_t soon = env_in_ms(peer->cluster->env, PEER_PING_MS);

	link_end(link, code, words);
	if (link->kind != GREET_CONTROL || peer->cluster->stopping)
		return;
	if (was_up)
		link_dial(link, silent_at > soon ? silent_at : soon);
	else
		peer_is_down(peer);
}

void peer_reborn(struct peer *peer)
{
	bool told = peer->down;

	peer->stale = true;
	link_end(&peer->control, -EHOSTDOWN, "it has been started anew");
	link_end(&peer->bulk, -EHOSTDOWN, "it has been started anew");
	if (!told && peer->heard)
		peer_tell(peer);
	peer->down = false; /* its new life has not been tried */
}

void peer_try_again(struct peer *peer)
{
	if (peer->down && peer->control.state == LINK_IDLE && !peer->cluster->stopping)
		link_dial(&peer->control, env_in_ms(peer->cluster->env, PEER_SILENT_MS));
}

/* ---- greeting ---- */

/* 0; or why the peer, which has proven that it belongs to the cluster, is not the one that was dialled. */
static int check_dialled(const struct link *link, struct error *e)
{
	const struct peer *peer = link->peer;
	const struct greet_peer *met = &link->greeting.peer;

	if (*peer->name && strcmp(met->node, peer->name) != 0)
		return error_set(e, -EHOSTDOWN, "at %s answers node %s", peer->address, met->node);
	if (met->incarnation && met->incarnation < peer->incarnation)
		return error_set(e, -EHOSTDOWN,
				 "at %s answers its incarnation %" PRIu64 ", but there has been %" PRIu64,
				 peer->address, met->incarnation, peer->incarnation);
	return 0;
}

/* The node that serves the meta engine says who it is. */
static int peer_learn_name(struct peer *peer, const char *name, struct error *e)
{
	if (!node_name_is_valid(name) || !strcmp(name, peer->cluster->node))
		return error_set(e, -EHOSTDOWN, "at %s answers a node that calls itself \"%s\"", peer->address, name);
	snprintf(peer->name, sizeof(peer->name), "%s", name);
	return 0;
}

static void on_pulse(struct timer *timer);

static int link_start(struct link *link, struct error *e)
{
	struct peer *peer = link->peer;
	struct env *env = peer->cluster->env;
	const struct greet_peer *met = &link->greeting.peer;
	int r = check_dialled(link, e);

	if (!r && !*peer->name)
		r = peer_learn_name(peer, met->node, e);
	if (!r && link->kind == GREET_BULK)
		r = net_bulk_start(link->conn);
	if (!r && link->kind == GREET_CONTROL) {
		net_read_ahead(link->conn);
		link->timer.fn = on_pulse;
		r = timer_arm(env->loop, &link->timer, env_in_ms(env, PEER_PING_MS));
	} else if (!r) {
		timer_disarm(env->loop, &link->timer);
	}
	if (r)
		return r;

	generation_seen(peer->cluster, met->generation);
	bool another = peer->heard && met->incarnation != peer->heard; /* 0: started anew, and about to join */
	if (another && !peer->down)
		peer_tell(peer);
	peer->heard = met->incarnation;
	if (met->incarnation)
		peer->incarnation = met->incarnation;
	if (link->kind == GREET_CONTROL && peer->down && peer->heard)
		logm(LOG_INFO, "peer.up", "peer=%s incarnation=%" PRIu64, peer_label(peer), peer->heard);
	if (link->kind == GREET_CONTROL)
		peer->down = peer->mute = false;
	link->since_ns = env_now(env);
	link_move(link, LINK_UP);
	wake_all(&link->settled);
	return 0;
}

static void on_greeting(struct link *link, const struct frame_head *head, struct view body)
{
	struct cluster *cluster = link->peer->cluster;
	const struct greet_self self = greet_self_of(cluster);
	struct error e = { 0 };
	int r = greet_frame(&link->greeting, &self, head, body, &e);

	if (r < 0 && !(head->flags & FRAME_FAILED)) {
		struct error words;

		error_set(&words, r, "node %s at %s: %s", peer_label(link->peer), link->peer->address, e.text);
		peer_refuse(cluster, link->greeting.reason, words.text);
	}
	if (r == GREET_MET)
		r = link_start(link, &e);
	if (r)
		link_lost(link, r, *e.text ? e.text : error_meaning(r));
}

/* ---- answers ---- */

static struct call *call_find(struct link *link, uint64_t request)
{
	list_each(node, &link->calls) {
		struct call *call = list_entry(node, struct call, link);

		if (call->request == request)
			return call;
	}
	return NULL;
}

static void on_answer(struct link *link, const struct frame_head *head, struct view body)
{
	struct call *call = call_find(link, head->request);

	if (!call) /* a ping's, or too late */
		return;
	if (head->flags & FRAME_FAILED) {
		call_finish(call, body_get_failure(body, call->e));
		return;
	}
	call->answer_bytes += body.len;
	if (head->type != call->type || call->answer_bytes > CALL_BODY_MAX) {
		call_finish(call, error_set(call->e, -EPROTO, "node %s answers %s with %s of %zu bytes",
					    peer_label(link->peer), msg_type_name(call->type),
					    msg_type_name(head->type), call->answer_bytes));
		return;
	}
	if (call->answer && buf_append(call->answer, body.ptr, body.len)) {
		call_finish(call,
			    error_set(call->e, -ENOMEM, "no memory for an answer of %zu bytes", call->answer_bytes));
		return;
	}
	if (!(head->flags & FRAME_MORE))
		call_finish(call, 0);
}

static void on_frame(void *arg, const struct frame_head *head, struct view body)
{
	struct link *link = arg;

	if (!(head->flags & FRAME_REPLY)) {
		link_lost(link, -EPROTO, "it sent a request where only answers belong");
		return;
	}
	if (link->state == LINK_GREETING) {
		on_greeting(link, head, body);
		return;
	}
	generation_seen(link->peer->cluster, head->generation);
	on_answer(link, head, body);
}

static void on_down(void *arg, int reason, const char *words)
{
	struct link *link = arg;

	link->peer->mute = false;
	link_lost(link, reason == -ERR_EVERSION ? reason : -EHOSTDOWN, words);
}

/* ---- dialling ---- */

static void on_up(void *arg)
{
	struct link *link = arg;

	struct cluster *cluster = link->peer->cluster;
	const struct greet_self self = greet_self_of(cluster);

	link_move(link, LINK_GREETING);
	int r = greet_dial(&link->greeting, cluster->env, link->conn, &self, link->kind, ++link->requests);
	if (r)
		link_lost(link, -EHOSTDOWN, error_meaning(r));
}

static void on_no_answer(struct timer *timer)
{
	struct link *link = container_of(timer, struct link, timer);

	link->peer->mute = true;
	link_lost(link, -EHOSTDOWN,
		  link->state == LINK_DIALLING ? "cannot be reached" : "takes connections, but answers nothing");
}

static void link_dial(struct link *link, uint64_t until_ns)
{
	struct peer *peer = link->peer;
	struct env *env = peer->cluster->env;
	const struct net_events events = { .up = on_up, .frame = on_frame, .down = on_down, .arg = link };

	CHECK(link->state == LINK_IDLE);
	link->attempt++;
	link->since_ns = env_now(env);
	link->timer.fn = on_no_answer;
	int r = net_connect(env, peer->address, &events, &link->conn);
	if (!r) {
		link_move(link, LINK_DIALLING);
		r = timer_arm(env->loop, &link->timer, until_ns);
		if (!r)
			return;
		link_lost(link, -EHOSTDOWN, error_meaning(r));
		return;
	}
	error_set(&link->failure, -EHOSTDOWN, "node %s: cannot be dialled at %s: %s", peer_label(peer), peer->address,
		  error_meaning(r));
	if (link->kind == GREET_CONTROL)
		peer_is_down(peer);
}

/*
 * Whoever needs the engine asks it several things, one after the other. So when its node did not answer the dial before, this one is
 * waited for by all of them together ENGINE_MUTE_MS; it goes on for PEER_SILENT_MS like any other.
 */
static uint64_t link_patience_ns(const struct link *link, uint64_t deadline_ns)
{
	uint64_t until_ns = link->since_ns + ENGINE_MUTE_MS * NS_PER_MS;

	return link->peer->fixed && link->peer->mute && until_ns < deadline_ns ? until_ns : deadline_ns;
}

int link_ready(struct link *link, uint64_t deadline_ns, struct error *e)
{
	if (link->state == LINK_UP)
		return 0;
	if (link->peer->cluster->stopping)
		return error_set(e, -ESHUTDOWN, "this node is stopping");
	if (link->state == LINK_IDLE)
		link_dial(link, env_in_ms(link->peer->cluster->env, PEER_SILENT_MS));

	uint64_t attempt = link->attempt, until_ns = link_patience_ns(link, deadline_ns);
	while (link->attempt == attempt && (link->state == LINK_DIALLING || link->state == LINK_GREETING)) {
		int r = wait_at(&link->settled, until_ns);
		if (r == -ETIMEDOUT && until_ns < deadline_ns)
			return error_set(e, link->failure.code, "%s", link->failure.text);
		if (r)
			return error_set(e, r, "node %s: %s", peer_label(link->peer),
					 r == -ETIMEDOUT ? "not connected in time" : "cancelled");
	}
	if (link->attempt == attempt && link->state == LINK_UP)
		return 0;
	return error_set(e, link->failure.code, "%s", link->failure.text);
}

/* ---- heartbeats ---- */

static void ping(struct link *link)
{
	struct cluster *cluster = link->peer->cluster;
	const struct frame_head head = {
		.type = MSG_PING,
		.request = ++link->requests,
		.deadline_ms = PEER_SILENT_MS,
		.generation = cluster->generation,
	};

	net_send(link->conn, &head, (struct view){ 0 },
		 NULL); /* a full queue says enough by itself: nothing comes back */
}

static void on_pulse(struct timer *timer)
{
	struct link *link = container_of(timer, struct link, timer);
	struct env *env = link->peer->cluster->env;
	uint64_t now = env_now(env);

	if (now > timer->at_ns + PEER_PING_MS * NS_PER_MS)
		link->since_ns = now; /* this node was asleep itself: what came meanwhile has not been read yet */
	uint64_t heard = link_heard_ns(link);
	uint64_t silent_at = heard + PEER_SILENT_MS * NS_PER_MS;
	if (now >= silent_at) {
		link->peer->mute = true;
		link_end(link, -EHOSTDOWN, "has been silent for too long");
		peer_is_down(link->peer);
		return;
	}
	if (now >= heard + 2 * PEER_PING_MS * NS_PER_MS)
		count(COUNT_HEARTBEATS_MISSED, 1);
	ping(link);
	uint64_t next = now + PEER_PING_MS * NS_PER_MS;
	if (timer_arm(env->loop, timer, next < silent_at ? next : silent_at))
		link_lost(link, -EHOSTDOWN, "no memory for its timer");
}

/* ---- calls ---- */

static void call_drop(struct call *call)
{
	list_remove(&call->link);
}

static int call_run(struct link *link, struct call *call, struct view body, uint64_t deadline_ns)
{
	struct cluster *cluster = link->peer->cluster;
	const struct frame_head head = {
		.type = (uint16_t)call->type,
		.request = call->request,
		.deadline_ms = deadline_to_ms(cluster, deadline_ns),
	};
	int r = frames_send(cluster, link->conn, &head, body, deadline_ns, &call->done.finished);

	if (call->done.finished)
		return call->done.result;
	if (r == -ENOTCONN) /* it broke, and its end will be told in a moment */
		r = 0;
	if (!r)
		r = await(&call->done, deadline_ns);
	if (!call->done.finished)
		error_set(call->e, r, "%s to node %s: %s", msg_type_name(call->type), peer_label(link->peer),
			  r == -ETIMEDOUT ? "no answer in time" :
			  r == -ECANCELED ? "cancelled" :
					    error_meaning(r));
	return r;
}

int peer_call(struct peer *peer, enum msg_type type, struct view body, uint64_t deadline_ns, struct buf *ret_answer,
	      struct error *e)
{
	struct link *link = &peer->control;
	int r = link_ready(link, deadline_ns, e);

	if (r)
		return r;
	_cleanup_(call_drop) struct call call = {
		.request = ++link->requests,
		.type = type,
		.answer = ret_answer,
		.e = e,
	};
	size_t len = ret_answer ? ret_answer->len : 0;
	await_init(&call.done);
	list_append(&link->calls, &call.link);
	r = call_run(link, &call, body, deadline_ns);
	if (r && ret_answer)
		ret_answer->len = len;
	return r;
}

/* ---- peers ---- */

struct peer *peer_find(struct cluster *cluster, const char *name)
{
	struct peer *meta = cluster->meta_peer;

	if (meta && !strcmp(meta->name, name))
		return meta;
	return map_get(&cluster->peers, view_str(name));
}

static void link_init(struct link *link, struct peer *peer, enum greet_kind kind)
{
	link->peer = peer;
	link->kind = kind;
	list_init(&link->calls);
	waitplace_init(&link->settled);
}

int peer_new(struct cluster *cluster, const char *name, struct peer **ret)
{
	if (cluster->peers.n >= CLUSTER_NODES_MAX)
		return -ENOSPC;
	struct peer *peer = calloc(1, sizeof(*peer));
	if (!peer)
		return -ENOMEM;

	peer->cluster = cluster;
	snprintf(peer->name, sizeof(peer->name), "%s", name);
	link_init(&peer->control, peer, GREET_CONTROL);
	link_init(&peer->bulk, peer, GREET_BULK);
	if (*name) {
		int r = map_put(&cluster->peers, view_str(name), peer);
		if (r) {
			free(peer);
			return r;
		}
	}
	*ret = peer;
	return 0;
}

void peer_free(struct peer *peer)
{
	if (!peer)
		return;
	CHECK(peer->control.state == LINK_IDLE && peer->bulk.state == LINK_IDLE);
	free(peer);
}
