/*
 * cluster/calls.c: requests to backend and meta as waiting calls, for everyone above.
 *
 * A request cannot be called back. So a call that nobody waits for any more is left to finish alone: it owns all that it touches,
 * and its end frees it.
 */
#include "cluster/cluster.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/counter.h"

#define DRAIN_STEP_MS 2
#define LOOK_AGAIN_MS 200 /* for an object that is known to be there */
/* Of an object that may be larger: hardly one is, so the memory for more is taken when it is seen. */
#define READ_FIRST_BYTES (64u << 10)

static const char *const backend_op_names[] = {
	[BACKEND_GET] = "get",	     [BACKEND_HEAD] = "head",	  [BACKEND_PUT] = "put",     [BACKEND_BEGIN] = "begin",
	[BACKEND_PART] = "part",     [BACKEND_COMMIT] = "commit", [BACKEND_ABORT] = "abort", [BACKEND_LIST] = "list",
	[BACKEND_DELETE] = "delete", [BACKEND_PROBE] = "probe",
};

static const char *const meta_op_names[] = {
	[META_GET] = "get",	[META_RANGE] = "range",	    [META_TXN] = "transaction",
	[META_LEASE] = "lease", [META_RELEASE] = "release", [META_RENEW] = "lease",
};

static const enum timing backend_timings[] = {
	[BACKEND_GET] = TIME_STORE_GET,	    [BACKEND_HEAD] = TIME_STORE_HEAD, [BACKEND_PUT] = TIME_STORE_PUT,
	[BACKEND_BEGIN] = TIME_STORE_BEGIN, [BACKEND_PART] = TIME_STORE_PART, [BACKEND_COMMIT] = TIME_STORE_COMMIT,
	[BACKEND_ABORT] = TIME_STORE_ABORT, [BACKEND_LIST] = TIME_STORE_LIST, [BACKEND_DELETE] = TIME_STORE_DELETE,
	[BACKEND_PROBE] = TIME_STORE_PROBE,
};

static const enum counter meta_counters[] = {
	[META_GET] = COUNT_META_GETS,	  [META_RANGE] = COUNT_META_RANGES,	[META_TXN] = COUNT_META_TXNS,
	[META_LEASE] = COUNT_META_LEASES, [META_RELEASE] = COUNT_META_RELEASES, [META_RENEW] = COUNT_META_LEASES,
};

/* ---- backend ---- */

struct backend_call *backend_call_new(enum backend_op op, const char *key)
{
	struct backend_call *call = calloc(1, sizeof(*call));

	if (!call)
		return NULL;
	call->req.op = op;
	if (strlen(key) <= BACKEND_KEY_MAX) /* a longer one stays empty, which the backend refuses */
		memcpy(call->req.key, key, strlen(key));
	return call;
}

void backend_call_free(struct backend_call *call)
{
	if (!call)
		return;
	if (call->release)
		call->release(call->held);
	buf_fini(&call->req.out);
	free(call);
}

static void backend_call_finish(struct backend_req *req)
{
	struct backend_call *call = container_of(req, struct backend_call, req);

	if (!call->abandoned) {
		call->done.done.fn(&call->done.done, req->result);
		return;
	}
	if (req->op == BACKEND_BEGIN && req->upload) { /* nobody knows of the upload that it began */
		req->op = BACKEND_ABORT;
		backend_submit(req->backend, req);
		return;
	}
	req->backend->n_abandoned--;
	backend_call_free(call);
}

static int run_once(struct backend *backend, struct backend_call **pcall, uint64_t deadline_ns, struct error *e)
{
	struct backend_call *call = *pcall;
	struct backend_req *req = &call->req;

	CHECK(!call->abandoned);
	await_init(&call->done);
	req->finish = backend_call_finish;
	uint64_t begun_ns = loop_now(backend->env->loop);
	backend_submit(backend, req);
	int r = await(&call->done, deadline_ns);
	count_time(backend_timings[req->op], loop_now(backend->env->loop) - begun_ns);
	if (r < 0 && r != -ENOENT && r != -ECANCELED)
		count(COUNT_STORE_ERRORS, 1);
	if (!call->done.finished) {
		error_set(e, r, "%s of %s: %s", backend_op_names[req->op], req->key,
			  r == -ETIMEDOUT ? "the store has not answered in time" : "cancelled");
		call->abandoned = true;
		backend->n_abandoned++;
		*pcall = NULL;
		return r;
	}
	if (r >= 0)
		return r;
	if (*req->error.text)
		return error_set(e, r, "%s", req->error.text);
	return error_set(e, r, "%s of %s: %s", backend_op_names[req->op], req->key, error_meaning(r));
}

/* The object is there, and the store has said that it is not. */
static int look_again(struct backend *backend, struct backend_call **pcall, uint64_t deadline_ns, struct error *e)
{
	uint64_t seen_ns = env_in_ms(backend->env, BACKEND_NAME_LATE_MS);
	int r = -ENOENT;

	while (r == -ENOENT && *pcall && env_now(backend->env) < seen_ns) {
		uint64_t again_ns = env_in_ms(backend->env, LOOK_AGAIN_MS);

		if (again_ns >= deadline_ns)
			break;
		int slept = fiber_sleep_until(again_ns);
		if (slept)
			return error_set(e, slept, "%s: cancelled", (*pcall)->req.key);
		count(COUNT_STORE_RETRIES, 1);
		r = run_once(backend, pcall, deadline_ns, e);
	}
	return r;
}

int backend_call_run(struct backend *backend, struct backend_call **pcall, uint64_t deadline_ns, struct error *e)
{
	int r = run_once(backend, pcall, deadline_ns, e);

	return r == -ENOENT && (*pcall)->known ? look_again(backend, pcall, deadline_ns, e) : r;
}

/* The object's first @len bytes, or all that it has; the call owns them. */
static int read_first(struct backend *backend, const char *key, size_t len, bool known, struct backend_call **ret,
		      uint64_t deadline_ns, struct error *e)
{
	_cleanup_(cleanup_backend_call_free) struct backend_call *call = backend_call_new(BACKEND_GET, key);

	if (!call)
		return error_set(e, -ENOMEM, "no memory to read %s", key);
	call->release = free;
	call->held = call->req.dst = malloc(len);
	if (!call->held)
		return error_set(e, -ENOMEM, "no memory to read %s", key);
	call->known = known;
	call->req.len = len;
	int r = backend_call_run(backend, &call, deadline_ns, e);
	if (!r)
		*ret = TAKE(call);
	return r;
}

static int read_whole(struct backend *backend, const char *key, size_t max, bool known, struct buf *ret,
		      uint64_t deadline_ns, struct error *e)
{
	_cleanup_(cleanup_backend_call_free) struct backend_call *first = NULL;
	_cleanup_(cleanup_backend_call_free) struct backend_call *whole = NULL;
	size_t few = max < READ_FIRST_BYTES ? max : READ_FIRST_BYTES;

	int r = read_first(backend, key, few + 1, known, &first, deadline_ns,
			   e); /* one more shows that there is more */
	if (!r && first->req.got > few && few < max)
		r = read_first(backend, key, max + 1, known, &whole, deadline_ns,
			       e); /* all of it: it may be another by now */
	if (r)
		return r;
	const struct backend_req *req = whole ? &whole->req : &first->req;
	if (req->got > max)
		return error_set(e, -EFBIG, "%s has more than the %zu bytes that such an object may have", key, max);
	if (buf_append(ret, req->dst, req->got))
		return error_set(e, -ENOMEM, "no memory for %s", key);
	return 0;
}

int backend_read(struct backend *backend, const char *key, size_t max, struct buf *ret, uint64_t deadline_ns,
		 struct error *e)
{
	return read_whole(backend, key, max, false, ret, deadline_ns, e);
}

int backend_read_known(struct backend *backend, const char *key, size_t max, struct buf *ret, uint64_t deadline_ns,
		       struct error *e)
{
	return read_whole(backend, key, max, true, ret, deadline_ns, e);
}

struct copy {
	struct backend_vec vec;
	uint8_t bytes[];
};

int backend_write(struct backend *backend, const char *key, struct view bytes, bool if_absent, uint64_t deadline_ns,
		  struct error *e)
{
	_cleanup_(cleanup_backend_call_free) struct backend_call *call = backend_call_new(BACKEND_PUT, key);
	struct copy *copy = call ? malloc(sizeof(*copy) + bytes.len) : NULL;

	if (!copy)
		return error_set(e, -ENOMEM, "no memory to write %s", key);
	call->release = free;
	call->held = copy;
	if (bytes.len)
		memcpy(copy->bytes, bytes.ptr, bytes.len);
	copy->vec = (struct backend_vec){ copy->bytes, bytes.len, crc32c(0, copy->bytes, bytes.len) };
	call->req.vec = &copy->vec;
	call->req.n_vec = 1;
	call->req.len = bytes.len;
	call->req.if_absent = if_absent;
	return backend_call_run(backend, &call, deadline_ns, e);
}

/* ---- meta ---- */

static void count_meta(enum meta_op op, int result)
{
	count(meta_counters[op], 1);
	if (result == META_CONFLICT)
		count(COUNT_META_CONFLICTS, 1);
	else if (result < 0 && result != -ENOENT && result != -ECANCELED)
		count(COUNT_META_ERRORS, 1);
}

static void meta_call_finish(struct meta_req *req)
{
	struct await *done = req->arg;

	if (done) {
		done->done.fn(&done->done, req->result);
		return;
	}
	req->meta->n_abandoned--;
	meta_req_free(req);
}

int meta_call_run(struct meta *meta, struct meta_req **preq, uint64_t deadline_ns, struct error *e)
{
	struct meta_req *req = *preq;
	struct await done;

	await_init(&done);
	req->arg = &done;
	req->finish = meta_call_finish;
	meta_submit(meta, req);
	int r = await(&done, deadline_ns);
	count_meta(req->op, r);
	if (!done.finished) {
		error_set(e, r, "meta %s: %s", meta_op_names[req->op],
			  r == -ETIMEDOUT ? "the engine has not answered in time" : "cancelled");
		req->arg = NULL;
		meta->n_abandoned++;
		*preq = NULL;
		return r;
	}
	req->arg = NULL;
	if (r >= 0)
		return r;
	if (*req->error.text)
		return error_set(e, r, "%s", req->error.text);
	return error_set(e, r, "meta %s: %s", meta_op_names[req->op], error_meaning(r));
}

bool cluster_is_away(int result)
{
	return result == -EHOSTDOWN || result == -ECONNREFUSED || result == -EAGAIN;
}

/* ---- the end ---- */

int calls_drain(struct backend *backend, struct meta *meta, uint64_t deadline_ns)
{
	struct waitplace nowhere; /* requests end without a word to anybody: look again and again */
	struct loop *loop = fiber_loop();

	waitplace_init(&nowhere);
	while ((backend && backend->n_abandoned) || (meta && meta->n_abandoned)) {
		if (loop_now(loop) >= deadline_ns)
			return -ETIMEDOUT;
		wait_at_shielded(&nowhere, loop_now(loop) + DRAIN_STEP_MS * NS_PER_MS);
	}
	return 0;
}

int meta_get(struct meta *meta, struct view key, struct buf *ret, uint64_t deadline_ns, struct error *e)
{
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = meta_req_new(META_GET);

	int r = req ? meta_put_get(req, key) : -ENOMEM;

	if (r)
		return error_set(e, r, "cannot ask for %.*s: %s", (int)key.len, (const char *)key.ptr,
				 error_meaning(r));
	r = meta_call_run(meta, &req, deadline_ns, e);
	if (r)
		return r;
	if (buf_append(ret, req->out.ptr, req->out.len))
		return error_set(e, -ENOMEM, "no memory for %.*s", (int)key.len, (const char *)key.ptr);
	return 0;
}
