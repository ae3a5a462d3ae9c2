/*
 * net/bulk.c: transfers between spans, in chunks that the mover carries.
 *
 * Sending: transfers leave in the order in which they were given, one after the other; that is simpler than interleaving
 * them, and what ends first can be used first. CHUNKS_AHEAD chunks are with the mover, so it does not wait for the loop.
 *
 * Receiving: one operation takes a chunk's payload, its CRC and the head of the next chunk. After a transfer's last chunk
 * nothing may follow for long, so there the next head is an operation of its own, and the transfer ends without it.
 * A chunk's numbers are the peer's word: bounds and order are checked before they become a pointer. Chunks that nobody
 * expects, or that do not fit their transfer, end in a scratch buffer; only a damaged stream costs the connection.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/hash.h"
#include "net/conn.h"

static_assert(FRAME_CHUNK_MAX <= BULK_CHUNK_BYTES, "a chunk is one operation of the mover");

static struct view id_of(const uint64_t *id)
{
	return view_of(id, sizeof(*id));
}

/* ---- ends of transfers ---- */

static void report_later(struct net_transfer *t, int result)
{
	struct net_conn *conn = t->conn;

	t->result = result;
	conn_get(conn);
	list_append(&conn->ended, &t->link);
	loop_post(conn->env->loop, &conn->report);
}

static void receive_end(struct net_transfer *t, int result)
{
	map_remove(&t->conn->expected, id_of(&t->id));
	report_later(t, result);
}

static void send_end(struct net_transfer *t, int result)
{
	list_remove(&t->link);
	t->conn->n_sends--;
	report_later(t, result);
}

static void report(struct task *task)
{
	struct net_conn *conn = container_of(task, struct net_conn, report);
	struct list *node;

	conn_get(conn);
	while ((node = list_pop(&conn->ended))) {
		struct net_transfer *t = list_entry(node, struct net_transfer, link);

		t->conn = NULL;
		t->done->fn(t->done, t->result); /* may free it */
		conn_put(conn);
	}
	conn_put(conn);
}

void bulk_settle(struct net_conn *conn)
{
	struct map_slot *slot;

	if (conn->n_ops)
		return;
	conn->cut = NULL;
	while (!list_empty(&conn->sends))
		send_end(list_entry(conn->sends.next, struct net_transfer, link), conn->reason);
	while ((slot = map_first(&conn->expected)))
		receive_end(map_value(slot), conn->reason);
}

/* ---- operations ---- */

static void submit(struct net_conn *conn, struct bulk_op *op)
{
	conn_get(conn); /* for the completion, which puts it */
	conn->n_ops++;
	conn->env->ops->bulk(op);
}

static void lose(struct net_conn *conn, int result)
{
	char words[128];

	if (result == -EBADMSG)
		snprintf(words, sizeof(words), "a chunk of transfer %llu arrived damaged",
			 (unsigned long long)conn->head.request);
	else
		snprintf(words, sizeof(words), "the connection broke while it carried bulk: %s", error_meaning(result));
	conn_fail(conn, result == -EPIPE ? -ECONNRESET : result, words);
}

/* An operation came back. True if the connection goes on. */
static bool op_ended(struct net_conn *conn, int result)
{
	conn->n_ops--;
	if (conn->state != CONN_BULK) {
		bulk_settle(conn);
		return false;
	}
	if (result)
		lose(conn, result);
	return !result;
}

/* ---- receiving ---- */

static void receive_head(struct net_conn *conn, size_t have)
{
	conn->head_op = (struct bulk_op){
		.stream = conn->stream,
		.head = conn->raw_head + have,
		.head_len = FRAME_HEAD_BYTES - have,
		.done = &conn->head_done,
	};
	submit(conn, &conn->head_op);
}

/* Is @chunk, by its own numbers, the last of its transfer. They need not be true. */
static bool is_last(const struct frame_head *chunk)
{
	return chunk->group >= chunk->epoch || chunk->epoch - chunk->group <= chunk->payload_bytes;
}

static void receive_chunk(struct net_conn *conn, uint8_t *span)
{
	bool last = is_last(&conn->head);

	conn->into_withdrawn = false;
	conn->chunk_op = (struct bulk_op){
		.stream = conn->stream,
		.span = span,
		.span_len = conn->head.payload_bytes,
		.head = conn->raw_head,
		.head_len = last ? 0 : FRAME_HEAD_BYTES,
		.done = &conn->chunk_done,
	};
	submit(conn, &conn->chunk_op);
	if (last)
		receive_head(conn, 0);
}

/* The transfer that the announced chunk belongs to. NULL: none, or one that it does not fit and has thereby ended. */
static struct net_transfer *find_destination(struct net_conn *conn)
{
	const struct frame_head *chunk = &conn->head;
	struct net_transfer *t = map_get(&conn->expected, id_of(&chunk->request));

	if (!t)
		return NULL;
	if (chunk->epoch == t->len && chunk->group == t->moved && chunk->payload_bytes <= t->len - t->moved)
		return t;
	receive_end(t, -EPROTO);
	return NULL;
}

/* False: there is no memory for a chunk that nobody wants, and the connection is down. */
static bool drop_into_scratch(struct net_conn *conn)
{
	if (!conn->scratch)
		conn->scratch = malloc(FRAME_CHUNK_MAX);
	if (conn->scratch)
		conn->stats.dropped_chunks++;
	else
		conn_fail(conn, -ENOMEM, "no memory for a chunk that nobody expects");
	return conn->scratch;
}

/* The next chunk's head is in raw_head. */
static void head_is_there(struct net_conn *conn)
{
	struct error e;
	int r = frame_decode(conn->raw_head, &conn->head, &e);

	if (!r && (conn->head.body_bytes || !conn->head.payload_bytes))
		r = error_set(&e, -EPROTO, "a control frame of type %u on a bulk connection", conn->head.type);
	if (r) {
		conn_fail(conn, r, e.text);
		return;
	}
	CHECK(!conn->into); /* operations come back in order */
	conn->into = find_destination(conn);
	if (!conn->into && !drop_into_scratch(conn))
		return;
	receive_chunk(conn, conn->into ? conn->into->span + conn->head.group : conn->scratch);
}

static void head_arrived(struct done *done, int result)
{
	struct net_conn *conn = container_of(done, struct net_conn, head_done);

	if (!result)
		conn_heard(conn, conn->head_op.head_len);
	if (op_ended(conn, result))
		head_is_there(conn);
	conn_put(conn);
}

static void chunk_arrived(struct done *done, int result)
{
	struct net_conn *conn = container_of(done, struct net_conn, chunk_done);
	const struct bulk_op *op = &conn->chunk_op;
	struct net_transfer *t = TAKE(conn->into);

	if (!result)
		conn_heard(conn, op->span_len + FRAME_CRC_BYTES + op->head_len);
	if (t && !result) {
		t->crc = crc32c_combine(t->crc, op->crc, op->span_len);
		t->moved += op->span_len;
	}
	if (t && result == -EBADMSG)
		receive_end(t, -EBADMSG);
	else if (t && t->moved == t->len)
		receive_end(t, 0);
	else if (t && conn->into_withdrawn)
		receive_end(t, -ECANCELED);

	if (op_ended(conn, result) && op->head_len)
		head_is_there(conn);
	conn_put(conn);
}

/* Why a transfer of @len bytes cannot begin on @conn, or 0. */
static int check_start(const struct net_conn *conn, const struct net_transfer *t, size_t n)
{
	CHECK_MAGIC(conn, CONN_MAGIC);
	if (conn->state == CONN_DOWN)
		return -ENOTCONN;
	CHECK(conn->state == CONN_TURNING || conn->state == CONN_BULK);
	if (!t->len || t->len > UINT32_MAX)
		return -EINVAL;
	return n < NET_TRANSFERS_MAX ? 0 : -ENOBUFS;
}

int net_expect(struct net_conn *conn, struct net_transfer *t)
{
	int r = check_start(conn, t, conn->expected.n);

	if (!r)
		r = map_put(&conn->expected, id_of(&t->id), t);
	if (r)
		return r;
	t->conn = conn;
	t->moved = 0;
	t->crc = 0;
	return 0;
}

void net_unexpect(struct net_transfer *t)
{
	struct net_conn *conn = t->conn;

	if (!conn || map_get(&conn->expected, id_of(&t->id)) != t)
		return; /* its end is reported, or about to be */
	if (conn->into == t)
		conn->into_withdrawn = true;
	else
		receive_end(t, -ECANCELED);
}

/* ---- sending ---- */

static struct net_transfer *next_send(struct net_conn *conn, struct net_transfer *t)
{
	struct list *next = t->link.next;

	return next == &conn->sends ? NULL : list_entry(next, struct net_transfer, link);
}

static void send_chunk(struct net_conn *conn, struct chunk_send *chunk)
{
	struct net_transfer *t = conn->cut;
	size_t left = t->len - conn->cut_at;
	size_t len = left < FRAME_CHUNK_MAX ? left : FRAME_CHUNK_MAX;
	const struct frame_head head = {
		.major = FRAME_MAJOR,
		.minor = FRAME_MINOR,
		.request = t->id,
		.group = conn->cut_at,
		.epoch = t->len,
		.payload_bytes = (uint32_t)len,
	};

	frame_encode(&head, chunk->head);
	chunk->transfer = t;
	chunk->op = (struct bulk_op){
		.stream = conn->stream,
		.send = true,
		.head = chunk->head,
		.head_len = FRAME_HEAD_BYTES,
		.span = t->span + conn->cut_at,
		.span_len = len,
		.done = &chunk->done,
	};
	conn->cut_at += len;
	if (len == left) {
		conn->cut = next_send(conn, t);
		conn->cut_at = 0;
	}
	submit(conn, &chunk->op);
}

static void send_more(struct net_conn *conn)
{
	for (int i = 0; i < CHUNKS_AHEAD && conn->cut; i++)
		if (!conn->ahead[i].transfer)
			send_chunk(conn, &conn->ahead[i]);
}

static void chunk_sent(struct done *done, int result)
{
	struct chunk_send *chunk = container_of(done, struct chunk_send, done);
	struct net_conn *conn = chunk->conn;
	struct net_transfer *t = TAKE(chunk->transfer);

	if (!result) {
		conn->stats.sent_bytes += chunk->op.head_len + chunk->op.span_len + FRAME_CRC_BYTES;
		t->crc = crc32c_combine(t->crc, chunk->op.crc, chunk->op.span_len);
		t->moved += chunk->op.span_len;
		if (t->moved == t->len)
			send_end(t, 0);
	}
	if (op_ended(conn, result))
		send_more(conn);
	conn_put(conn);
}

int net_bulk_send(struct net_conn *conn, struct net_transfer *t)
{
	int r = check_start(conn, t, conn->n_sends);

	if (r)
		return r;
	t->conn = conn;
	t->moved = 0;
	t->crc = 0;
	list_append(&conn->sends, &t->link);
	conn->n_sends++;
	if (!conn->cut)
		conn->cut = t;
	if (conn->state == CONN_BULK)
		send_more(conn);
	return 0;
}

/* ---- beginning ---- */

void bulk_init(struct net_conn *conn)
{
	conn->head_done.fn = head_arrived;
	conn->chunk_done.fn = chunk_arrived;
	conn->report.fn = report;
	map_init(&conn->expected);
	list_init(&conn->sends);
	list_init(&conn->ended);
	for (int i = 0; i < CHUNKS_AHEAD; i++) {
		conn->ahead[i].conn = conn;
		conn->ahead[i].done.fn = chunk_sent;
	}
}

int net_bulk_start(struct net_conn *conn)
{
	CHECK_MAGIC(conn, CONN_MAGIC);
	if (conn->state == CONN_DOWN)
		return -ENOTCONN;
	CHECK(conn->state == CONN_OPEN && !conn->reads_ahead);
	conn_move(conn, CONN_TURNING);
	loop_post(conn->env->loop, &conn->work);
	return 0;
}

/* The control reader may have got hold of a chunk's head, or of a part of it. */
void bulk_begin(struct net_conn *conn)
{
	conn_move(conn, CONN_BULK);
	if (conn->head_have == FRAME_HEAD_BYTES)
		head_is_there(conn);
	else
		receive_head(conn, conn->head_have);
	if (conn->state == CONN_BULK)
		send_more(conn);
}
