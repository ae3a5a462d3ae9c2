/*
 * cluster/generation.c: the cluster's generation, which says which life of the meta engine counts.
 *
 * It stands in the engine (c/generation, u32 of the codec) and, for the case that the engine is lost, in the backend as objects
 * g/<n>. Both empty: a new cluster; the node with the engine begins it. It first writes a token into the engine (c/engine), then
 * g/1 with that token, then c/generation: so a start that was cut in the middle is told from an engine that was lost.
 */
#include "cluster/inside.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#define TOKEN_BYTES	      16
#define LIST_PAGE	      64
#define AGAIN_MS	      250 /* a node without an engine waits for the one that has it */
#define LOOK_AGAIN_MS	      200 /* for an object that the store does not show yet */
#define GENERATION_OBJECT_MAX 4096

/* ---- reading ---- */

static int read_engine(struct cluster *cluster, uint64_t deadline_ns, uint32_t *ret, struct error *e)
{
	_cleanup_(buf_fini) struct buf value = { 0 };
	int r = meta_get(cluster->meta, view_str(CLUSTER_GENERATION_KEY), &value, deadline_ns, e);
	struct view in = view_buf(&value);

	if (r == -ENOENT) {
		*ret = 0;
		return 0;
	}
	if (!r && get_u32(&in, ret))
		r = error_set(e, -EPROTO, "the meta engine's " CLUSTER_GENERATION_KEY " cannot be read");
	return r;
}

/* The number in "g/<n>"; 0: that is none. */
static uint32_t parse_generation(const char *key)
{
	uint64_t n = 0;

	key += strlen(CLUSTER_GENERATION_PREFIX);
	if (!*key)
		return 0;
	for (; *key; key++) {
		if (*key < '0' || *key > '9' || n > UINT32_MAX / 10)
			return 0;
		n = 10 * n + (uint64_t)(*key - '0');
	}
	return n <= UINT32_MAX ? (uint32_t)n : 0;
}

static int read_backend(struct cluster *cluster, uint64_t deadline_ns, uint32_t *ret, struct error *e)
{
	uint32_t highest = 0;
	size_t got = LIST_PAGE;
	_cleanup_(cleanup_backend_call_free) struct backend_call *call =
		backend_call_new(BACKEND_LIST, CLUSTER_GENERATION_PREFIX);

	if (!call)
		return error_set(e, -ENOMEM, "no memory to list generations");
	while (got == LIST_PAGE) {
		call->req.len = LIST_PAGE;
		int r = backend_call_run(cluster->backend, &call, deadline_ns, e);
		if (r)
			return r;
		const char *key = (const char *)call->req.out.ptr;
		got = call->req.got;
		for (size_t i = 0; i < got; i++, key += strlen(key) + 1) {
			uint32_t n = parse_generation(key);

			highest = n > highest ? n : highest;
			snprintf(call->req.after, sizeof(call->req.after), "%s", key);
		}
	}
	*ret = highest;
	return 0;
}

/* The object of a generation is durable before the engine has it: without it, this is not the store that the index is of. */
static int no_such_store(struct cluster *cluster, uint32_t engine, uint32_t backend, struct error *e)
{
	const char *where = cluster->backend->where;
	char only[64] = "";

	if (backend)
		snprintf(only, sizeof(only), ", only " CLUSTER_GENERATION_PREFIX "%" PRIu32, backend);
	return error_set(e, -ENODEV,
			 "the index is of generation %" PRIu32
			 ", but the store%s%s has no object " CLUSTER_GENERATION_PREFIX "%" PRIu32
			 "%s: is it mounted? Mount it, then start this node again",
			 engine, where ? " " : "", where ? where : "", engine, only);
}

int cluster_generations(struct cluster *cluster, uint64_t deadline_ns, uint32_t *ret_engine, uint32_t *ret_backend,
			struct error *e)
{
	CHECK_MAGIC(cluster, CLUSTER_MAGIC);
	uint32_t engine = 0, backend = 0;
	uint64_t shown_ns = env_in_ms(cluster->env, BACKEND_NAME_LATE_MS);
	int r = read_engine(cluster, deadline_ns, &engine, e);

	if (!r)
		r = read_backend(cluster, deadline_ns, &backend, e);
	while (!r && backend < engine) {
		uint64_t again_ns = env_in_ms(cluster->env, LOOK_AGAIN_MS);

		if (env_now(cluster->env) >= shown_ns || again_ns >= deadline_ns)
			return no_such_store(cluster, engine, backend, e);
		r = fiber_sleep_until(again_ns);
		if (r)
			return error_set(e, r, "the store's generation: cancelled");
		r = read_backend(cluster, deadline_ns, &backend, e);
	}
	if (r)
		return r;
	*ret_engine = engine;
	*ret_backend = backend;
	return 0;
}

/* ---- beginning ---- */

/* The engine's token: what is there, or a new one. */
static int read_token(struct cluster *cluster, uint64_t deadline_ns, struct buf *ret, struct error *e)
{
	int r = meta_get(cluster->meta, view_str(CLUSTER_ENGINE_KEY), ret, deadline_ns, e);
	uint8_t token[TOKEN_BYTES];
	char hex[2 * TOKEN_BYTES + 1];

	if (r != -ENOENT)
		return r;
	cluster->env->ops->random(cluster->env, token, sizeof(token));
	hex_encode(hex, token, sizeof(token));
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = meta_req_new(META_TXN);
	r = req ? meta_txn_expect(req, view_str(CLUSTER_ENGINE_KEY), (struct view){ 0 }) : -ENOMEM;
	if (!r)
		r = meta_txn_put(req, view_str(CLUSTER_ENGINE_KEY), view_str(hex));
	if (!r)
		r = buf_append(ret, hex, 2 * TOKEN_BYTES);
	if (r)
		return error_set(e, r, "the cluster cannot be begun: %s", error_meaning(r));
	r = meta_call_run(cluster->meta, &req, deadline_ns, e);
	return r > 0 ? error_set(e, -EBUSY, "two daemons use the same meta engine") : r;
}

/* 0: g/1 is of this engine, written now or before. -ERR_EREBUILD: another engine began this store. */
static int claim_backend(struct cluster *cluster, struct view token, uint64_t deadline_ns, struct error *e)
{
	static const char first[] = CLUSTER_GENERATION_PREFIX "1";
	_cleanup_(buf_fini) struct buf there = { 0 };
	int r = backend_write(cluster->backend, first, token, true, deadline_ns, e);

	if (r != BACKEND_EXISTS)
		return r;
	r = backend_read(cluster->backend, first, GENERATION_OBJECT_MAX, &there, deadline_ns, e);
	if (r)
		return r;
	if (view_equal(view_buf(&there), token))
		return 0;
	return error_set(
		e, -ERR_EREBUILD,
		"the meta engine is empty, but the store has generation 1 of another: run forebay meta rebuild on %s",
		cluster->node);
}

static int begin(struct cluster *cluster, uint64_t deadline_ns, struct error *e)
{
	_cleanup_(buf_fini) struct buf token = { 0 }, value = { 0 };
	const uint32_t first = 1;
	int r = read_token(cluster, deadline_ns, &token, e);

	if (!r)
		r = claim_backend(cluster, view_buf(&token), deadline_ns, e);
	if (r)
		return r;
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = meta_req_new(META_TXN);
	r = req ? put_u32(&value, &first) : -ENOMEM;
	if (!r)
		r = meta_txn_put(req, view_str(CLUSTER_GENERATION_KEY), view_buf(&value));
	if (r)
		return error_set(e, r, "the cluster cannot be begun: %s", error_meaning(r));
	r = meta_call_run(cluster->meta, &req, deadline_ns, e);
	if (!r)
		cluster->generation = first;
	return r;
}

/* ---- joining ---- */

static int compare(struct cluster *cluster, uint32_t engine, uint32_t backend, uint64_t deadline_ns, struct error *e)
{
	if (engine && engine == backend) {
		cluster->generation = engine;
		return 0;
	}
	if (!engine && backend <= 1 && !cluster->meta_is_remote)
		return begin(cluster, deadline_ns, e);
	struct node_info at; /* it has just answered, so that its name is known */
	cluster_engine(cluster, &at);
	if (!engine)
		return error_set(e, -ERR_EREBUILD,
				 "the meta engine is empty, but the store has generation %" PRIu32
				 ": run forebay meta rebuild on %s",
				 backend, at.name);
	return error_set(e, -ERR_EREBUILD,
			 "the meta engine is of generation %" PRIu32 ", but the store of %" PRIu32
			 ": run forebay meta rebuild on %s",
			 engine, backend, at.name);
}

int generation_join(struct cluster *cluster, uint64_t deadline_ns, struct error *e)
{
	cluster->generation =
		0; /* one that a try before has read may be overtaken: calls with it would be fenced for ever */
	for (;;) {
		uint32_t engine = 0, backend = 0;
		int r = cluster_generations(cluster, deadline_ns, &engine, &backend, e);

		if (!r)
			r = compare(cluster, engine, backend, deadline_ns, e);
		if (r != -ERR_EREBUILD || !cluster->meta_is_remote)
			return r;
		uint64_t again_ns = env_in_ms(cluster->env, AGAIN_MS); /* the engine's node may be about to begin */
		if (again_ns >= deadline_ns || fiber_sleep_until(again_ns))
			return r;
	}
}
