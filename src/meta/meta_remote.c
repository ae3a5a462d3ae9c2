/*
 * meta/meta_remote.c: the meta engine of another node, behind a call-back that ships requests. Nothing is kept here: what a
 * request asks lies in its `in`, encoded, and what comes back is checked before the caller sees it.
 */
#include "meta/meta.h"

#include <errno.h>
#include <stdlib.h>

#include "base/check.h"

struct meta_remote {
	struct meta meta;
	struct meta_remote_call call;
	unsigned n_under_way;
};

static struct meta_remote *of(struct meta *meta)
{
	return container_of(meta, struct meta_remote, meta);
}

/* May the engine answer @op with @result and these bytes? Entries are left to meta_out_entry(), which is as strict. */
static bool is_sane(enum meta_op op, int result, struct view out)
{
	uint64_t holder, epoch;
	uint32_t index;

	if (result < 0)
		return true;
	switch (op) {
	case META_GET:
		return result == 0 && out.len <= META_VALUE_MAX;
	case META_RANGE:
		return (result == 0 || result == META_MORE) && out.len <= META_REQ_MAX;
	case META_TXN:
		return result == META_CONFLICT ? !meta_out_conflict(out, &index) : result == 0 && !out.len;
	case META_LEASE:
	case META_RENEW:
		return (result == 0 || result == META_HELD) && !meta_out_lease(out, &holder, &epoch);
	case META_RELEASE:
		return result == 0 && !out.len;
	}
	return false;
}

void meta_remote_answer(struct meta_req *req, int result, struct view out)
{
	of(req->meta)->n_under_way--;
	if (!is_sane(req->op, result, out))
		result = error_set(&req->error, -EPROTO,
				   "the node with the meta engine answered %d and %zu bytes, which is no "
				   "answer to request %d",
				   result, out.len, (int)req->op);
	if (result >= 0 && buf_append(&req->out, out.ptr, out.len))
		result = error_set(&req->error, -ENOMEM, "no memory for the answer of the meta engine");
	if (result < 0 && !req->error.code)
		(void)error_set(&req->error, result, "the meta engine, on another node: %s", error_meaning(result));
	req->result = result;
	req->finish(req);
}

static void submit(struct meta *meta, struct meta_req *req)
{
	struct meta_remote *m = of(meta);

	m->n_under_way++;
	m->call.send(m->call.arg, req);
}

static void remote_free(struct meta *meta)
{
	CHECK(of(meta)->n_under_way == 0);
	free(of(meta));
}

static const struct meta_driver driver = { .name = "remote", .submit = submit, .free = remote_free };

int meta_remote_new(struct env *env, const struct meta_remote_call *call, struct meta **ret)
{
	struct meta_remote *m = calloc(1, sizeof(*m));

	if (!m)
		return -ENOMEM;
	m->meta = (struct meta){ .magic = META_MAGIC, .driver = &driver, .env = env };
	m->call = *call;
	*ret = &m->meta;
	return 0;
}
