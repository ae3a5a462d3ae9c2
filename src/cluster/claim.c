/*
 * cluster/claim.c: to whom a store belongs, as it stands there and in the index.
 *
 * In the store, objects that are put if absent: g/<n> begins generation n (its life 0), g/<n>.<k> the k-th life of an engine in it. The
 * highest in order of (n, k) has the store. Each holds a random token. In the engine, c/generation is the claim that its index is of, and
 * c/engine the token of the last claim that it began: written before the object, so that one that was cut short is still known as its own.
 */
#include "cluster/inside.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "wire/record.h"

#define LIST_PAGE 256

/* ---- names ---- */

static void claim_key(struct claim_at at, char ret[CLAIM_KEY_BYTES])
{
	if (at.life)
		(void)snprintf(ret, CLAIM_KEY_BYTES, CLUSTER_GENERATION_PREFIX "%" PRIu32 ".%" PRIu64, at.generation,
			       at.life);
	else
		(void)snprintf(ret, CLAIM_KEY_BYTES, CLUSTER_GENERATION_PREFIX "%" PRIu32, at.generation);
}

struct claim_name claim_name(struct claim_at at)
{
	struct claim_name name;

	claim_key(at, name.key);
	return name;
}

/* A number without a leading zero, up to @end; 0: that is none. */
static uint64_t parse_number(const char *digits, size_t len)
{
	uint64_t n = 0;

	if (!len || len > 18 || *digits == '0')
		return 0;
	for (size_t i = 0; i < len; i++) {
		if (digits[i] < '0' || digits[i] > '9')
			return 0;
		n = 10 * n + (uint64_t)(digits[i] - '0');
	}
	return n;
}

/* Generation 0: @key is no claim. */
static struct claim_at claim_parse(const char *key)
{
	const char *number = key + strlen(CLUSTER_GENERATION_PREFIX);
	const char *dot = strchr(number, '.');
	uint64_t n = parse_number(number, dot ? (size_t)(dot - number) : strlen(number));
	uint64_t life = dot ? parse_number(dot + 1, strlen(dot + 1)) : 0;

	if (n > UINT32_MAX || (dot && !life))
		return (struct claim_at){ 0 };
	return (struct claim_at){ (uint32_t)n, life };
}

int claim_compare(struct claim_at a, struct claim_at b)
{
	if (a.generation != b.generation)
		return a.generation < b.generation ? -1 : 1;
	return (a.life > b.life) - (a.life < b.life);
}

/* ---- in the store ---- */

int claim_highest(struct cluster *cluster, struct claim_at *ret, uint64_t deadline_ns, struct error *e)
{
	struct claim_at highest = { 0 };
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
			struct claim_at at = claim_parse(key);

			if (at.generation && claim_compare(at, highest) > 0)
				highest = at;
			(void)snprintf(call->req.after, sizeof(call->req.after), "%s", key);
		}
	}
	*ret = highest;
	return 0;
}

static int take_token(struct view token, char ret[CLAIM_TOKEN_BYTES])
{
	if (token.len >= CLAIM_TOKEN_BYTES)
		return -EPROTO;
	memset(ret, 0, CLAIM_TOKEN_BYTES);
	if (token.len)
		memcpy(ret, token.ptr, token.len);
	return 0;
}

int claim_read(struct cluster *cluster, struct claim_at at, struct claim *ret, uint64_t deadline_ns, struct error *e)
{
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	const struct claim_name name = claim_name(at);
	struct claim claim = { .at = at };
	struct rec_generation rec;
	struct record_head head;
	struct view body;
	int r = backend_read_known(cluster->backend, name.key, RECORD_SMALL_MAX, &bytes, deadline_ns, e);

	if (r)
		return r;
	r = record_open_as(view_buf(&bytes), RECORD_GENERATION, &head, &body, e);
	if (!r && (rec_generation_decode(body, &rec) || take_token(rec.token, claim.token) ||
		   rec.cluster.len > NODE_NAME_MAX || rec.node.len > NODE_NAME_MAX))
		r = error_set(e, -ERR_EDAMAGED, "it is no generation's object");
	if (r) {
		const char *where = cluster->backend->where;

		(void)error_prefix(e, "%s%s%s", name.key, where ? " in " : "", where ? where : "");
		return r;
	}
	(void)snprintf(claim.by, sizeof(claim.by), "%.*s, node %.*s", (int)rec.cluster.len,
		       (const char *)rec.cluster.ptr, (int)rec.node.len, (const char *)rec.node.ptr);
	*ret = claim;
	return 0;
}

int claim_put(struct cluster *cluster, struct claim_at at, const char *token, uint64_t deadline_ns, struct error *e)
{
	_cleanup_(buf_fini) struct buf body = { 0 }, object = { 0 };
	const struct claim_name name = claim_name(at);
	const struct rec_generation rec = { .cluster = view_str(cluster->id),
					    .node = view_str(cluster->node),
					    .life = at.life,
					    .token = view_str(token) };
	struct record_head head = { .kind = RECORD_GENERATION, .number = at.generation, .generation = at.generation };

	cluster->env->ops->random(cluster->env, &head.save_id, sizeof(head.save_id));
	if (rec_generation_encode(&rec, &body) || record_seal(&head, view_buf(&body), &object))
		return error_set(e, -ENOMEM, "no memory for %s", name.key);
	int r = backend_write(cluster->backend, name.key, view_buf(&object), true, deadline_ns, e);
	if (r != BACKEND_EXISTS)
		return r;

	struct claim there = { 0 };
	r = claim_read(cluster, at, &there, deadline_ns, e);
	return r ? r : strcmp(there.token, token) == 0 ? 0 : BACKEND_EXISTS;
}

/* ---- in the engine ---- */

static int read_row(struct cluster *cluster, const char *key, struct buf *ret, uint64_t deadline_ns, struct error *e)
{
	struct error why = { 0 };
	int r = meta_get(cluster->meta, view_str(key), ret, deadline_ns, &why);

	return r && r != -ENOENT ? error_set(e, r, "%s", why.text) : 0;
}

/* The claim first: one that is marked between the two reads is then known by c/engine. */
int mark_read(struct cluster *cluster, struct mark *ret, uint64_t deadline_ns, struct error *e)
{
	_cleanup_(buf_fini) struct buf claim = { 0 }, engine = { 0 };
	struct mark mark = { 0 };
	struct row_generation row = { 0 };
	int r = read_row(cluster, CLUSTER_GENERATION_KEY, &claim, deadline_ns, e);

	if (!r)
		r = read_row(cluster, CLUSTER_ENGINE_KEY, &engine, deadline_ns, e);
	if (r)
		return r;
	if ((claim.len && row_generation_decode(view_buf(&claim), &row)) || take_token(row.token, mark.token) ||
	    take_token(view_buf(&engine), mark.engine))
		return error_set(e, -EPROTO, "the meta engine's " CLUSTER_GENERATION_KEY " cannot be read");
	mark.at = (struct claim_at){ row.generation, row.life };
	*ret = mark;
	return 0;
}

bool mark_owns(const struct mark *mark, const struct claim *claim)
{
	return *claim->token && (!strcmp(claim->token, mark->token) || !strcmp(claim->token, mark->engine));
}

static int put_row(struct cluster *cluster, const char *key, struct view value, uint64_t deadline_ns, struct error *e)
{
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = meta_req_new(META_TXN);
	int r = req ? meta_txn_put(req, view_str(key), value) : -ENOMEM;

	return r ? error_set(e, r, "%s cannot be written: %s", key, error_meaning(r)) :
		   meta_call_run(cluster->meta, &req, deadline_ns, e);
}

int mark_write(struct cluster *cluster, struct claim_at at, const char *token, uint64_t deadline_ns, struct error *e)
{
	_cleanup_(buf_fini) struct buf value = { 0 };
	const struct row_generation row = { .generation = at.generation, .life = at.life, .token = view_str(token) };

	if (row_generation_encode(&row, &value))
		return error_set(e, -ENOMEM, "no memory for " CLUSTER_GENERATION_KEY);
	return put_row(cluster, CLUSTER_GENERATION_KEY, view_buf(&value), deadline_ns, e);
}

int mark_new_token(struct cluster *cluster, char ret[CLAIM_TOKEN_BYTES], uint64_t deadline_ns, struct error *e)
{
	uint8_t token[CLAIM_TOKEN_BYTES / 2];
	char hex[CLAIM_TOKEN_BYTES] = { 0 };

	cluster->env->ops->random(cluster->env, token, sizeof(token));
	hex_encode(hex, token, sizeof(token));
	int r = put_row(cluster, CLUSTER_ENGINE_KEY, view_str(hex), deadline_ns, e);
	if (!r)
		memcpy(ret, hex, sizeof(hex));
	return r;
}
