/*
 * cluster/serve.c: connections that peers made to this node, and the calls that come in on them.
 *
 * Each call is a fiber in its connection's nursery. When the connection goes, its fibers are cancelled, and the last of them lets
 * go of it. An incarnation of a peer has one control and one bulk connection here: a newer one takes the place of the older.
 */
#include "cluster/inside.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

/* A call being served. */
struct served {
	struct incoming *in;
	uint64_t request, deadline_ns;
	enum msg_type type;
	struct buf body;
};

/* ---- ends ---- */

static void incoming_reap(struct task *task)
{
	struct incoming *in = container_of(task, struct incoming, reap);
	struct cluster *cluster = in->cluster;

	if (!nursery_is_empty(&in->nursery))
		return;
	list_remove(&in->link);
	cluster->n_incoming--;
	free(in);
	wake_all(&cluster->quiet);
}

static void incoming_leave(struct incoming *in)
{
	struct loop *loop = in->cluster->env->loop;

	in->gone = true;
	if (!in->kind)
		in->cluster->n_strangers--;
	timer_disarm(loop, &in->timer);
	body_joiner_fini(&in->joiner);
	nursery_cancel(&in->nursery);
	loop_post(loop, &in->reap);
}

struct net_conn *incoming_bulk(struct cluster *cluster, const char *from)
{
	list_each(node, &cluster->incoming) {
		struct incoming *in = list_entry(node, struct incoming, link);

		if (!in->gone && in->kind == GREET_BULK && !strcmp(in->from, from))
			return in->conn;
	}
	return NULL;
}

/* Connections of that kind from a life of @from up to @incarnation. */
static void incoming_end_all(struct cluster *cluster, const char *from, enum greet_kind kind, uint64_t incarnation)
{
	list_each(node, &cluster->incoming) {
		struct incoming *in = list_entry(node, struct incoming, link);
		bool joining = !in->incarnation &&
			       incarnation; /* an older life may still be there, or a newer one come */

		if (in->kind == kind && !strcmp(in->from, from) && in->incarnation <= incarnation && !joining)
			incoming_end(in);
	}
}

void incoming_end(struct incoming *in)
{
	if (in->gone)
		return;
	net_close(TAKE(in->conn));
	incoming_leave(in);
	if (in->kind == GREET_CONTROL)
		incoming_end_all(in->cluster, in->from, GREET_BULK, in->incarnation);
}

/* ---- answers that need no fiber ---- */

static void reply(struct incoming *in, unsigned type, uint64_t request, unsigned flags, struct view body)
{
	const struct frame_head head = {
		.type = (uint16_t)type,
		.flags = FRAME_REPLY | flags,
		.request = request,
		.generation = in->cluster->generation,
	};

	if (net_send(in->conn, &head, body, NULL))
		incoming_end(in); /* the caller learns more from the end than from silence */
}

static void reply_failure(struct incoming *in, unsigned type, uint64_t request, int code, const char *words)
{
	_cleanup_(buf_fini) struct buf body = { 0 };

	if (body_put_failure(&body, code, words))
		incoming_end(in);
	else
		reply(in, type, request, FRAME_FAILED, view_buf(&body));
}

/* ---- greeting ---- */

/* It has broken the rules: there are no last words. */
static void incoming_expel(struct incoming *in, enum counter reason, const char *what)
{
	struct error words;

	error_set(&words, -EPROTO, "%s: %s", *in->from ? in->from : "a stranger", what);
	peer_refuse(in->cluster, reason, words.text);
	incoming_end(in);
}

/* Many who knock and say nothing do not keep others out. */
static void make_room_for_stranger(struct cluster *cluster)
{
	list_each(node, &cluster->incoming) {
		struct incoming *in = list_entry(node, struct incoming, link);

		if (cluster->n_strangers < STRANGERS_MAX)
			return;
		if (!in->gone && !in->kind)
			incoming_expel(in, COUNT_PEER_LIMIT, "gives way: too many have not said who they are");
	}
}

/* Last words are out; the connection goes when they have left. */
static void incoming_refuse(struct incoming *in, enum counter reason, const char *words)
{
	peer_refuse(in->cluster, reason, words);
	if (in->gone)
		return;
	net_close_when_sent(TAKE(in->conn));
	incoming_leave(in);
}

/* Who calls is remembered by its incarnation: an older one than has been seen is refused. */
static int hello_peer(struct incoming *in, uint64_t incarnation, struct error *e)
{
	struct cluster *cluster = in->cluster;
	struct peer *peer = peer_find(cluster, in->from);

	if (!incarnation) /* it is about to join */
		return 0;
	if (!peer) {
		int r = peer_new(cluster, in->from, &peer);
		if (r)
			return error_set(e, r, "no room for one peer more");
	}
	if (incarnation < peer->incarnation)
		return error_set(e, -ERR_ESTALEEPOCH,
				 "node %s has been started again since: it is in incarnation %" PRIu64
				 ", you are in %" PRIu64,
				 in->from, peer->incarnation, incarnation);
	if (peer->heard && incarnation > peer->heard)
		peer_reborn(peer);
	else if (incarnation > peer->incarnation) /* never heard of: what this node dials meanwhile is no older one */
		peer->stale = true;
	peer->incarnation = peer->heard = incarnation;
	return 0;
}

/* What it has proven is taken over. 0, or why it cannot come in, though it belongs to the cluster. */
static int meet(struct incoming *in, enum counter *ret_reason, struct error *e)
{
	struct cluster *cluster = in->cluster;
	const struct greet_peer *met = &in->greeting.peer;

	*ret_reason = COUNT_PEER_NAME;
	if (!node_name_is_valid(met->node) || !strcmp(met->node, cluster->node))
		return error_set(e, -EPROTO, "\"%s\" is no name for a peer of node %s", met->node, cluster->node);
	memcpy(in->from, met->node, sizeof(in->from));
	*ret_reason = COUNT_PEER_STALE;
	int r = hello_peer(in, met->incarnation, e);
	if (r)
		return r;
	incoming_end_all(cluster, in->from, in->greeting.kind, met->incarnation);
	generation_seen(cluster, met->generation);
	return 0;
}

static void on_greeting(struct incoming *in, const struct frame_head *head, struct view body)
{
	struct cluster *cluster = in->cluster;
	const struct greet_self self = greet_self_of(cluster);
	struct error e = { 0 };
	enum counter reason;
	int r = greet_frame(&in->greeting, &self, head, body, &e);

	if (!r)
		return;
	if (r < 0) {
		incoming_refuse(in, in->greeting.reason, e.text);
		return;
	}
	r = meet(in, &reason, &e);
	if (r) {
		greet_refuse(&in->greeting, r, e.text);
		incoming_refuse(in, reason, e.text);
		return;
	}
	cluster->n_strangers--;
	in->kind = in->greeting.kind;
	in->incarnation = in->greeting.peer.incarnation;
	const struct greet_self now = greet_self_of(cluster); /* the generation may be another since */
	r = greet_welcome(&in->greeting, &now);
	if (!r && in->kind == GREET_BULK)
		r = net_bulk_start(in->conn);
	else if (!r)
		net_read_ahead(in->conn);
	if (r)
		incoming_end(in);
}

/* ---- calls ---- */

static void no_answer(struct cluster *cluster, unsigned type, struct error *e)
{
	error_set(e, -ENOSYS, "node %s does not serve messages of type %u (%s)", cluster->node, type,
		  msg_type_name(type));
}

static int handle(struct cluster *cluster, unsigned type, const char *from, struct view body, uint64_t deadline_ns,
		  struct buf *answer, struct error *e)
{
	const struct handler *handler = type < MSG_TYPES_MAX ? &cluster->handlers[type] : NULL;

	if (!handler || !handler->serve) {
		no_answer(cluster, type, e);
		peer_refuse(cluster, COUNT_PEER_TYPE, e->text);
		return -ENOSYS;
	}
	int r = handler->serve(handler->arg, from, body, deadline_ns, answer, e);
	CHECK(r <= 0);
	if (!r && answer->len > CALL_BODY_MAX)
		return error_set(e, -E2BIG, "an answer of %zu bytes to %s", answer->len, msg_type_name(type));
	return r;
}

static void serve_answer(struct served *served, int result, const char *words, struct buf *answer)
{
	struct incoming *in = served->in;
	struct frame_head head = { .type = (uint16_t)served->type, .flags = FRAME_REPLY, .request = served->request };

	if (in->gone)
		return;
	if (result < 0) {
		head.flags |= FRAME_FAILED;
		answer->len = 0;
		if (body_put_failure(answer, result, *words ? words : error_meaning(result))) {
			incoming_end(in);
			return;
		}
	}
	int r = frames_send(in->cluster, in->conn, &head, view_buf(answer), served->deadline_ns, &in->gone);
	if (r && r != -ETIMEDOUT) /* in time nobody waits any more */
		incoming_end(in);
}

static int serve_run(void *arg)
{
	struct served *served = arg;
	struct incoming *in = served->in;
	_cleanup_(buf_fini) struct buf answer = { 0 };
	struct error e = { 0 };

	int r = handle(in->cluster, served->type, in->from, view_buf(&served->body), served->deadline_ns, &answer, &e);
	if (r == -EPROTO)
		peer_refuse(in->cluster, COUNT_PEER_BODY, e.text);
	serve_answer(served, r, e.text, &answer);
	in->n_calls--;
	if (in->gone)
		loop_post(in->cluster->env->loop, &in->reap);
	buf_fini(&served->body);
	free(served);
	return 0;
}

/* Takes the bytes of @body over. */
static int serve_start(struct incoming *in, const struct frame_head *head, uint64_t deadline_ns, struct buf *body,
		       struct error *e)
{
	if (in->n_calls >= CONN_CALLS_MAX)
		return error_set(e, -EBUSY, "node %s serves %d calls of node %s already", in->cluster->node,
				 CONN_CALLS_MAX, in->from);
	struct served *served = malloc(sizeof(*served));
	if (!served)
		return error_set(e, -ENOMEM, "no memory to serve a call");
	*served = (struct served){
		.in = in,
		.request = head->request,
		.deadline_ns = deadline_ns,
		.type = head->type,
		.body = *body,
	};
	int r = fiber_start(&in->nursery, msg_type_name(head->type), serve_run, served);
	if (r) {
		free(served);
		return error_set(e, r == -EAGAIN ? -EBUSY : r, "node %s cannot serve one call more: %s",
				 in->cluster->node, error_meaning(r));
	}
	in->n_calls++;
	*body = (struct buf){ 0 };
	return 0;
}

static int refuse_body(const struct incoming *in, int r, struct error *e)
{
	if (r == -E2BIG)
		return error_set(e, r, "a call has at most %u bytes", CALL_BODY_MAX);
	if (r == -EBUSY)
		return error_set(e, r, "the calls of node %s have more than %u bytes under way", in->from,
				 CONN_PARTIAL_MAX);
	return error_set(e, r, "no memory for a call's body");
}

static void on_request(struct incoming *in, const struct frame_head *head, struct view piece)
{
	uint64_t deadline_ns = env_in_ms(in->cluster->env, head->deadline_ms);
	_cleanup_(buf_fini) struct buf body = { 0 };
	struct error e = { 0 };
	int r = body_join(&in->joiner, head, deadline_ns, piece, &body);

	if (r == 1)
		return;
	if (r == -EPROTO) {
		incoming_expel(in, COUNT_PEER_ORDER, "sent more bodies at once than anybody sends");
		return;
	}
	enum counter reason = COUNT_PEER_LIMIT;
	if (r)
		r = refuse_body(in, r, &e);
	if (!r) {
		r = fence_check(in->cluster, head->type, head->generation, &e);
		reason = r == -ERR_ESTALEEPOCH ? COUNT_PEER_STALE :
						 COUNTERS; /* not to have joined yet is nobody's fault */
	}
	if (!r) {
		r = serve_start(in, head, deadline_ns, &body, &e);
		reason = COUNT_PEER_LIMIT;
	}
	if (r && reason != COUNTERS)
		peer_refuse(in->cluster, reason, e.text);
	if (r)
		reply_failure(in, head->type, head->request, r, e.text);
}

/* ---- events ---- */

static void on_frame(void *arg, const struct frame_head *head, struct view body)
{
	struct incoming *in = arg;

	if (!in->kind)
		on_greeting(in, head, body);
	else if (head->flags & FRAME_REPLY)
		incoming_expel(in, COUNT_PEER_ORDER, "sent an answer where only requests come");
	else if (head->type == MSG_PING)
		reply(in, MSG_PING, head->request, 0, (struct view){ 0 });
	else
		on_request(in, head, body);
}

static void on_down(void *arg, int reason, const char *words)
{
	struct incoming *in = arg;

	if (reason == -ERR_EVERSION)
		incoming_expel(in, COUNT_PEER_VERSION, words);
	else if (reason == -EPROTO || reason == -EBADMSG)
		incoming_expel(in, COUNT_PEER_GARBAGE, words);
	else
		incoming_end(in);
}

/* Peers ping: who does not is gone. */
static void on_pulse(struct timer *timer)
{
	struct incoming *in = container_of(timer, struct incoming, timer);
	struct env *env = in->cluster->env;
	uint64_t now = env_now(env);

	if (now > timer->at_ns + PEER_PING_MS * NS_PER_MS)
		in->since_ns = now; /* this node was asleep itself */
	uint64_t heard = net_last_heard_ns(in->conn);
	if (heard < in->since_ns || !in->kind)
		heard = in->since_ns;
	if (in->kind != GREET_BULK && now >= heard + PEER_SILENT_MS * NS_PER_MS) {
		if (in->kind)
			incoming_end(in);
		else
			incoming_expel(in, COUNT_PEER_SILENT, "did not say in time who it is");
		return;
	}
	body_joiner_expire(&in->joiner, now);
	if (timer_arm(env->loop, timer, now + PEER_PING_MS * NS_PER_MS))
		incoming_end(in);
}

void serve_accepted(void *arg, struct net_conn *conn)
{
	struct cluster *cluster = arg;
	struct env *env = cluster->env;
	struct incoming *in = NULL;

	make_room_for_stranger(cluster);
	if (cluster->n_incoming < INCOMING_MAX)
		in = calloc(1, sizeof(*in));
	if (!in) {
		peer_refuse(cluster, COUNT_PEER_LIMIT, "there is no room for one connection more");
		net_close(conn);
		return;
	}
	*in = (struct incoming){
		.cluster = cluster,
		.conn = conn,
		.since_ns = env_now(env),
		.timer.fn = on_pulse,
		.reap.fn = incoming_reap,
	};
	nursery_init(&in->nursery, env->loop);
	body_joiner_init(&in->joiner, CONN_PARTIAL_MAX);
	list_append(&cluster->incoming, &in->link);
	cluster->n_incoming++;
	cluster->n_strangers++;
	greet_accept(&in->greeting, env, conn);
	const struct net_events events = { .frame = on_frame, .down = on_down, .arg = in };
	net_adopt(conn, &events);
	if (timer_arm(env->loop, &in->timer, env_in_ms(env, PEER_PING_MS)))
		incoming_end(in);
}

/* ---- calls of this node to itself ---- */

struct self_call {
	struct cluster *cluster;
	enum msg_type type;
	uint64_t deadline_ns;
	struct buf body, answer;
	struct error error;
	struct await done;
	bool abandoned;
};

static void self_call_free(struct self_call *call)
{
	if (!call)
		return;
	buf_fini(&call->body);
	buf_fini(&call->answer);
	free(call);
}
CLEANUP_OF(struct self_call *, self_call_free);

static int self_call_run(void *arg)
{
	struct self_call *call = arg;
	struct cluster *cluster = call->cluster;
	int r = handle(cluster, call->type, cluster->node, view_buf(&call->body), call->deadline_ns, &call->answer,
		       &call->error);

	if (r && !*call->error.text)
		error_set(&call->error, r, "%s: %s", msg_type_name(call->type), error_meaning(r));
	if (call->abandoned)
		self_call_free(call);
	else
		call->done.done.fn(&call->done.done, r);
	return 0;
}

int serve_self(struct cluster *cluster, enum msg_type type, struct buf *body, uint64_t deadline_ns,
	       struct buf *ret_answer, struct error *e)
{
	_cleanup_(cleanup_self_call_free) struct self_call *call = calloc(1, sizeof(*call));

	if (!call)
		return error_set(e, -ENOMEM, "no memory for a call");
	call->body = *body;
	*body = (struct buf){ 0 };
	call->cluster = cluster;
	call->type = type;
	call->deadline_ns = deadline_ns;
	await_init(&call->done);
	int r = fiber_start(&cluster->nursery, msg_type_name(type), self_call_run, call);
	if (r)
		return error_set(e, r == -EAGAIN ? -EBUSY : r, "cannot serve one call more: %s", error_meaning(r));

	r = await(&call->done, deadline_ns);
	if (!call->done.finished) {
		call->abandoned = true; /* it frees itself */
		call = NULL;
		return error_set(e, r, "%s to node %s: %s", msg_type_name(type), cluster->node,
				 r == -ETIMEDOUT ? "no answer in time" : "cancelled");
	}
	if (r)
		return error_set(e, r, "%s", call->error.text);
	if (ret_answer && buf_append(ret_answer, call->answer.ptr, call->answer.len))
		return error_set(e, -ENOMEM, "no memory for an answer");
	return 0;
}
