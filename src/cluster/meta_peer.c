/*
 * cluster/meta_peer.c: the meta engine of another node, reached by calls, and the own engine served to others.
 */
#include "cluster/inside.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

struct remote {
	struct cluster *cluster;
	struct meta_req *req;
};

/* ---- asking ---- */

static int remote_call(struct cluster *cluster, struct meta_req *req, struct msg_meta_reply *ret, struct buf *answer)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	const struct msg_meta m = { .op = (uint8_t)req->op, .in = view_buf(&req->in) };
	int r = msg_meta_encode(&m, &body);

	if (r)
		return error_set(&req->error, r, "no memory to ask the meta engine");
	r = peer_call(cluster->meta_peer, MSG_META, view_buf(&body), env_in_ms(cluster->env, META_REMOTE_MS), answer,
		      &req->error);
	if (r == -EHOSTDOWN || r == -ECONNREFUSED)
		(void)error_prefix(&req->error, "the node that serves the index cannot be reached");
	if (r)
		return r;
	if (msg_meta_reply_decode(view_buf(answer), ret) || ret->outcome > INT32_MAX)
		return error_set(&req->error, -EPROTO, "the meta engine's answer cannot be read");
	return (int)ret->outcome;
}

static int remote_run(void *arg)
{
	struct remote remote = *(struct remote *)arg;
	_cleanup_(buf_fini) struct buf answer = { 0 };
	struct msg_meta_reply reply = { 0 };

	free(arg);
	int r = remote_call(remote.cluster, remote.req, &reply, &answer);
	meta_remote_answer(remote.req, r, reply.out);
	return 0;
}

void meta_peer_stop(struct cluster *cluster)
{
	struct list *node;

	while ((node = list_pop(&cluster->unsent))) {
		struct meta_req *req = list_entry(node, struct meta_req, link);
		int r = cluster->stopping ? -ESHUTDOWN : -ENOMEM;

		error_set(&req->error, r, "the meta engine cannot be asked: %s", error_meaning(r));
		meta_remote_answer(req, r, (struct view){ 0 });
	}
}

static void unsent_answer(struct task *task)
{
	meta_peer_stop(container_of(task, struct cluster, unsent_task));
}

static void remote_send(void *arg, struct meta_req *req)
{
	struct cluster *cluster = arg;
	struct remote *remote = cluster->stopping ? NULL : malloc(sizeof(*remote));

	if (remote) {
		*remote = (struct remote){ cluster, req };
		if (fiber_start(&cluster->nursery, "META", remote_run, remote) == 0)
			return;
		free(remote);
	}
	cluster->unsent_task.fn = unsent_answer;
	list_append(&cluster->unsent, &req->link);
	loop_post(cluster->env->loop, &cluster->unsent_task);
}

int meta_peer_open(struct cluster *cluster, const char *address, struct error *e)
{
	const struct meta_remote_call call = { .send = remote_send, .arg = cluster };
	int r = peer_new(cluster, "", &cluster->meta_peer);

	if (r)
		return error_set(e, r, "no memory for the meta engine's node");
	struct peer *peer = cluster->meta_peer;
	if ((size_t)snprintf(peer->address, sizeof(peer->address), "%s", address) >= sizeof(peer->address))
		return error_set(e, -EINVAL, "the address of the meta engine's node is too long: %.60s...", address);
	peer->fixed = true;
	r = meta_remote_new(cluster->env, &call, &cluster->meta);
	if (r)
		return error_set(e, r, "no memory for the meta engine's driver");
	cluster->meta_is_remote = true;
	return 0;
}

/* ---- serving ---- */

void cluster_meta_hold(struct cluster *cluster)
{
	CHECK_MAGIC(cluster, CLUSTER_MAGIC);
	cluster->meta_held = true;
}

void cluster_meta_open(struct cluster *cluster, const struct error *why)
{
	CHECK_MAGIC(cluster, CLUSTER_MAGIC);
	cluster->meta_held = false;
	cluster->meta_refusal = why ? *why : (struct error){ 0 };
	wake_all(&cluster->meta_opened);
}

void cluster_rows_shut(struct cluster *cluster, const char *const *prefixes, bool passes, const char *words)
{
	CHECK_MAGIC(cluster, CLUSTER_MAGIC);
	CHECK(!cluster->meta_is_remote);
	cluster->gate = (struct meta_gate){ .prefixes = prefixes, .passes = passes ? fiber_self() : NULL };
	(void)error_set(&cluster->gate.why, -EAGAIN, "%s", words);
	cluster->meta->gate = &cluster->gate;
}

void cluster_rows_open(struct cluster *cluster)
{
	CHECK_MAGIC(cluster, CLUSTER_MAGIC);
	cluster->meta->gate = NULL;
}

/* 0, or why the engine here must not be believed. */
static int await_meta(struct cluster *cluster, uint64_t deadline_ns, struct error *e)
{
	while (cluster->meta_held) {
		int r = wait_at(&cluster->meta_opened, deadline_ns);

		if (r)
			return error_set(e, r, "the index is still being looked at");
	}
	return cluster->meta_refusal.code ? error_set(e, cluster->meta_refusal.code, "%s", cluster->meta_refusal.text) :
					    0;
}

int meta_serve(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer, struct error *e)
{
	struct cluster *cluster = arg;
	struct msg_meta m;

	if (msg_meta_decode(body, &m) || m.op > META_RENEW || m.in.len > META_REQ_MAX)
		return error_set(e, -EPROTO, "META cannot be read");
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = meta_req_new((enum meta_op)m.op);
	if (!req || buf_append(&req->in, m.in.ptr, m.in.len))
		return error_set(e, -ENOMEM, "no memory for a request to the meta engine");
	int r = await_meta(cluster, deadline_ns, e);
	if (!r)
		r = meta_call_run(cluster->meta, &req, deadline_ns, e);
	if (r < 0) {
		(void)error_prefix(e, "node %s", cluster->node); /* the path of an index says nothing on another node */
		return r;
	}
	const struct msg_meta_reply reply = { .outcome = (uint32_t)r, .out = view_buf(&req->out) };
	return msg_meta_reply_encode(&reply, answer);
}
