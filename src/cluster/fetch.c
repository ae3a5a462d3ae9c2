/*
 * cluster/fetch.c: blocks from a peer's pool into a span here.
 *
 * The requester opens the bulk connection, names the span by a transfer number and asks by FETCH; the holder pins the block,
 * sends it on that connection, and answers after it has left. Once cluster_fetch() returns nobody writes to the span.
 */
#include "cluster/inside.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#define WITHDRAW_MS 1000 /* for a chunk that is arriving; then the connection is closed */

/* ---- the holder ---- */

/* A block on its way out. The span is read until net says so: whoever stops waiting leaves it to end alone. */
struct sending {
	struct net_transfer transfer;
	struct done over;
	struct await done;
	struct cluster *cluster;
	struct block *block;
	bool abandoned;
};

static void sending_free(struct sending *sending)
{
	block_unpin(sending->block);
	free(sending);
}

static void sending_over(struct done *done, int result)
{
	struct sending *sending = container_of(done, struct sending, over);
	struct cluster *cluster = sending->cluster;

	cluster->n_sendings--;
	wake_all(&cluster->quiet);
	if (sending->abandoned)
		sending_free(sending);
	else
		sending->done.done.fn(&sending->done.done, result);
}

/* Takes the pin over. */
static int block_send(struct cluster *cluster, const char *to, struct block *block, uint64_t transfer,
		      uint64_t deadline_ns, uint32_t *ret_crc, struct error *e)
{
	struct net_conn *conn = incoming_bulk(cluster, to);
	struct sending *sending = conn ? calloc(1, sizeof(*sending)) : NULL;

	if (!sending) {
		block_unpin(block);
		return conn ? error_set(e, -ENOMEM, "no memory to send a block") :
			      error_set(e, -ENOTCONN, "node %s has no bulk connection to node %s", to, cluster->node);
	}
	*sending = (struct sending){
		.transfer = { .id = transfer, .span = block->ptr, .len = block->bytes, .done = &sending->over },
		.over.fn = sending_over,
		.cluster = cluster,
		.block = block,
	};
	await_init(&sending->done);
	int r = net_bulk_send(conn, &sending->transfer);
	if (r) {
		sending_free(sending);
		return error_set(e, r, "a block cannot be sent to node %s: %s", to, error_meaning(r));
	}
	cluster->n_sendings++;

	r = await(&sending->done, deadline_ns);
	if (!sending->done.finished) {
		sending->abandoned = true;
		return error_set(e, r, "a block could not be sent to node %s in time", to);
	}
	*ret_crc = sending->transfer.crc;
	sending_free(sending);
	return r ? error_set(e, -ENOTCONN, "sending to node %s: %s", to, error_meaning(r)) : 0;
}

static const struct block_source *source_of(const struct cluster *cluster, struct view tenant)
{
	list_each(node, (struct list *)&cluster->block_sources) {
		const struct block_source *source = list_entry(node, struct block_source, link);

		if (view_equal(view_str(source->tenant), tenant))
			return source;
	}
	return NULL;
}

/* The block that was asked for, pinned. */
static int block_find(struct cluster *cluster, struct view tenant, const struct digest *digest, uint32_t bytes,
		      uint32_t wait_ms, struct block **ret, struct error *e)
{
	const struct block_source *source = source_of(cluster, tenant);
	struct block *block = NULL;
	char hex[2 * DIGEST_BYTES + 1];
	int r = source ? source->find(source->arg, digest, wait_ms, &block) : -ENOENT;

	hex_encode(hex, digest->b, DIGEST_BYTES);
	if (r)
		return error_set(e, r, "node %s: block %s: %s", cluster->node, hex,
				 r == -ENOENT ? "is not here" : error_meaning(r));
	if (block->bytes != bytes) {
		block_unpin(block);
		return error_set(e, -EINVAL, "block %s has %u bytes, not %u", hex, block->bytes, bytes);
	}
	*ret = block;
	return 0;
}

int fetch_serve(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
		struct error *e)
{
	struct cluster *cluster = arg;
	struct msg_fetch m;
	struct block *block;
	uint32_t crc = 0;

	if (msg_fetch_decode(body, &m))
		return error_set(e, -EPROTO, "FETCH cannot be read");
	int r = block_find(cluster, m.tenant, &m.digest, m.bytes, m.wait_ms, &block, e);
	if (r)
		return r;

	block_pin(block); /* a pin for the sending, one for what is said of it */
	r = block_send(cluster, from, block, m.transfer, deadline_ns, &crc, e);
	if (!r && crc != block->crc) {
		pool_block_forget(block);
		r = error_set(e, -ERR_EDAMAGED, "node %s: a block's bytes have changed since they were checked",
			      cluster->node);
	}
	block_unpin(block);
	if (r)
		return r;
	const struct msg_fetch_reply reply = { .crc = crc };
	return msg_fetch_reply_encode(&reply, answer);
}

/* ---- the requester ---- */

/* The span is free when this returns. */
static void withdraw(struct link *bulk, uint64_t attempt, struct net_transfer *t, struct await *over)
{
	struct cluster *cluster = bulk->peer->cluster;
	uint64_t patience_ns = env_in_ms(cluster->env, WITHDRAW_MS);

	if (over->finished)
		return;
	net_unexpect(t);
	while (!over->finished && wait_at_shielded(&over->place, patience_ns) == 0)
		;
	if (over->finished)
		return;
	if (bulk->attempt == attempt)
		link_end(bulk, -EHOSTDOWN, "a transfer did not end");
	await_shielded(over);
}

static int fetch_ask(struct peer *peer, const struct msg_fetch *m, uint64_t deadline_ns, uint32_t *ret_crc,
		     struct error *e)
{
	_cleanup_(buf_fini) struct buf body = { 0 }, answer = { 0 };
	struct msg_fetch_reply reply;
	int r = msg_fetch_encode(m, &body);

	if (r)
		return error_set(e, r, "no memory to ask for a block");
	r = peer_call(peer, MSG_FETCH, view_buf(&body), deadline_ns, &answer, e);
	if (r)
		return r;
	if (msg_fetch_reply_decode(view_buf(&answer), &reply))
		return error_set(e, -EPROTO, "node %s: its answer to FETCH cannot be read", peer->name);
	*ret_crc = reply.crc;
	return 0;
}

static int fetch_from_peer(struct peer *peer, const char *tenant, const struct digest *digest, uint32_t bytes,
			   uint32_t wait_ms, uint8_t *span, uint32_t *ret_crc, uint64_t deadline_ns, struct error *e)
{
	struct link *bulk = &peer->bulk;
	uint32_t sent_crc = 0;
	int r = link_ready(&peer->control, deadline_ns, e); /* first: when it ends, it takes bulk along */

	if (!r)
		r = link_ready(bulk, deadline_ns, e);
	if (r)
		return r;

	struct await over;
	struct net_transfer t = { .id = ++peer->cluster->transfers, .span = span, .len = bytes, .done = &over.done };
	await_init(&over);
	uint64_t attempt = bulk->attempt;
	r = net_expect(bulk->conn, &t);
	if (r)
		return error_set(e, r == -ENOTCONN ? -EHOSTDOWN : r, "node %s: no transfer: %s", peer->name,
				 error_meaning(r));

	const struct msg_fetch m = { .digest = *digest,
				     .bytes = bytes,
				     .transfer = t.id,
				     .wait_ms = wait_ms,
				     .tenant = view_str(tenant) };
	r = fetch_ask(peer, &m, deadline_ns, &sent_crc, e);
	if (!r)
		r = await(&over, deadline_ns);
	bool ended = over.finished;
	withdraw(bulk, attempt, &t, &over);
	if (!r && t.crc != sent_crc)
		r = error_set(e, -EBADMSG, "node %s: a block arrived with another CRC than it was sent with",
			      peer->name);
	else if (r && ended && r == over.result) /* the transfer's own end */
		r = error_set(e, r == -EBADMSG ? r : -EHOSTDOWN, "node %s: a block did not arrive whole: %s",
			      peer->name, error_meaning(r));
	else if (r == -ETIMEDOUT || r == -ECANCELED)
		error_set(e, r, "node %s: a block did not arrive in time", peer->name);
	if (!r)
		*ret_crc = t.crc;
	return r;
}

struct copying {
	const struct block *block;
	uint8_t *span;
	uint32_t crc;
};

static int copy_run(void *arg)
{
	struct copying *c = arg;

	memcpy(c->span, c->block->ptr, c->block->bytes);
	c->crc = crc32c(0, c->span, c->block->bytes);
	return 0;
}

static int fetch_from_self(struct cluster *cluster, const char *tenant, const struct digest *digest, uint32_t bytes,
			   uint32_t wait_ms, uint8_t *span, uint32_t *ret_crc, struct error *e)
{
	struct block *block;
	int r = block_find(cluster, view_str(tenant), digest, bytes, wait_ms, &block, e);

	if (r)
		return r;
	struct copying c = { .block = block, .span = span };
	r = env_call(cluster->env, copy_run, &c);
	if (!r && c.crc != block->crc) {
		pool_block_forget(block);
		r = error_set(e, -ERR_EDAMAGED, "node %s: a block's bytes have changed since they were checked",
			      cluster->node);
	}
	block_unpin(block);
	if (!r)
		*ret_crc = c.crc;
	return r;
}

int cluster_fetch(struct cluster *cluster, const char *node, const char *tenant, const struct digest *digest,
		  uint32_t bytes, uint32_t wait_ms, uint8_t *span, uint32_t *ret_crc, uint64_t deadline_ns,
		  struct error *e)
{
	struct peer *peer;

	CHECK_MAGIC(cluster, CLUSTER_MAGIC);
	if (cluster->stopping)
		return error_set(e, -ESHUTDOWN, "this node is stopping");
	if (!strcmp(node, cluster->node))
		return fetch_from_self(cluster, tenant, digest, bytes, wait_ms, span, ret_crc, e);
	int r = peer_get(cluster, node, deadline_ns, &peer, e);
	return r ? r : fetch_from_peer(peer, tenant, digest, bytes, wait_ms, span, ret_crc, deadline_ns, e);
}

void cluster_serve_blocks(struct cluster *cluster, struct block_source *source)
{
	CHECK_MAGIC(cluster, CLUSTER_MAGIC);
	CHECK(!source_of(cluster, view_str(source->tenant)));
	list_append(&cluster->block_sources, &source->link);
}

void cluster_unserve_blocks(struct block_source *source)
{
	list_remove(&source->link);
}
