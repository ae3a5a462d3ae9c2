/*
 * net/tcp.c: connections over the environment's streams, and control frames on them.
 *
 * All I/O happens in one task per connection, which ready events and senders post. So frames that are queued in one go leave
 * in one call, and nothing calls back into a user who is calling. A frame is read head first and its body exactly, never
 * beyond, but where bulk never comes: a body is allocated only after its head was checked, and what follows the last control
 * frame stays in the stream for bulk.c.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/counter.h"
#include "base/hash.h"
#include "base/log.h"
#include "net/conn.h"

#define LISTENER_MAGIC	UINT32_C(0x6574734c) /* "Lste" */
#define FRAMES_A_TURN	16		     /* read from one connection before others get their turn */
#define FRAMES_A_SEND	16		     /* gathered into one call */
#define EARLY_BYTES	4096		     /* read ahead of frames */
#define ACCEPTS_A_TURN	64
#define ACCEPT_AGAIN_MS 100   /* after a failure such as EMFILE */
#define ACCEPT_TOLD_MS	10000 /* between two lines in the log that say so */
#define LINGER_MS	2000  /* how long last words may take */

struct out_frame {
	struct list link;
	bool has_arena;
	struct arena arena;
	size_t len, sent; /* bytes */
	uint8_t bytes[];
};

/* ---- life and death ---- */

#define MOVE(state) (1u << (state))
static const uint8_t moves[CONN_STATES] = {
	[CONN_CONNECTING] = MOVE(CONN_OPEN) | MOVE(CONN_DOWN) | MOVE(CONN_CLOSED),
	[CONN_OPEN] = MOVE(CONN_ENDING) | MOVE(CONN_TURNING) | MOVE(CONN_DOWN) | MOVE(CONN_CLOSED),
	[CONN_ENDING] = MOVE(CONN_CLOSED),
	[CONN_TURNING] = MOVE(CONN_BULK) | MOVE(CONN_DOWN) | MOVE(CONN_CLOSED),
	[CONN_BULK] = MOVE(CONN_DOWN) | MOVE(CONN_CLOSED),
	[CONN_DOWN] = MOVE(CONN_CLOSED),
};
static_assert(CONN_STATES <= 8, "moves are bits of a byte");

void conn_move(struct net_conn *conn, enum conn_state to)
{
	CHECK(moves[conn->state] & MOVE(to));
	conn->state = to;
}

void conn_get(struct net_conn *conn)
{
	CHECK_MAGIC(conn, CONN_MAGIC);
	conn->refs++;
}

static void count_queued(struct net_conn *conn, size_t more, size_t less)
{
	conn->queued_bytes += more - less;
	if (conn->all_queued)
		*conn->all_queued += more - less;
}

static void drop_queue(struct net_conn *conn)
{
	struct list *node;

	while ((node = list_pop(&conn->out)))
		free(list_entry(node, struct out_frame, link));
	count_queued(conn, 0, conn->queued_bytes);
}

void conn_put(struct net_conn *conn)
{
	CHECK_MAGIC(conn, CONN_MAGIC);
	if (--conn->refs)
		return;

	CHECK(!conn->stream && !conn->n_ops && list_empty(&conn->sends) && !conn->expected.n);
	task_cancel(&conn->work);
	task_cancel(&conn->report);
	timer_disarm(conn->env->loop, &conn->linger);
	drop_queue(conn);
	map_fini(&conn->expected);
	free(conn->body);
	free(conn->early);
	free(conn->scratch);
	conn->magic = 0;
	free(conn);
}

static void post_work(struct net_conn *conn)
{
	loop_post(conn->env->loop, &conn->work);
}

static void on_ready(void *arg)
{
	struct net_conn *conn = arg;

	conn->readable = conn->writable = true;
	post_work(conn);
}

static void close_stream(struct net_conn *conn)
{
	struct stream *stream = TAKE(conn->stream);

	conn->env->ops->close(stream);
}

/*
 * The stream of a control connection stays open, unused, until its owner closes it: a watch on the peer's process must
 * outlive the connection's end. The mover's operations come back only when the stream is closed.
 */
void conn_fail(struct net_conn *conn, int reason, const char *words)
{
	bool bulk = conn->state == CONN_BULK;

	conn_move(conn, CONN_DOWN);
	conn->reason = -ECONNRESET;
	drop_queue(conn);
	if (bulk)
		close_stream(conn);
	bulk_settle(conn);
	conn->events.down(conn->events.arg, reason, words);
}

void conn_heard(struct net_conn *conn, size_t bytes)
{
	conn->stats.received_bytes += bytes;
	conn->heard_ns = env_now(conn->env);
}

void net_close(struct net_conn *conn)
{
	if (!conn)
		return;
	CHECK_MAGIC(conn, CONN_MAGIC);
	conn_move(conn, CONN_CLOSED);
	if (!conn->reason)
		conn->reason = -ECANCELED;
	drop_queue(conn);
	conn->all_queued = NULL;
	close_stream(conn);
	bulk_settle(conn);
	conn_put(conn);
}

static void linger_ended(struct timer *timer)
{
	net_close(container_of(timer, struct net_conn, linger));
}

void net_close_when_sent(struct net_conn *conn)
{
	if (!conn)
		return;
	CHECK_MAGIC(conn, CONN_MAGIC);

	bool has_words = conn->state == CONN_OPEN && !list_empty(&conn->out);
	if (!has_words || timer_arm(conn->env->loop, &conn->linger, env_in_ms(conn->env, LINGER_MS))) {
		net_close(conn);
		return;
	}
	conn_move(conn, CONN_ENDING);
	post_work(conn);
}

/* ---- sending ---- */

static int queue_frame(struct net_conn *conn, const struct frame_head *head, struct view body,
		       const struct arena *arena)
{
	size_t len = FRAME_HEAD_BYTES + body.len;
	size_t cost = sizeof(struct out_frame) + len;

	if (conn->queued_bytes + cost > NET_SEND_QUEUE_MAX)
		return -ENOBUFS;
	struct out_frame *frame = malloc(cost);
	if (!frame)
		return -ENOMEM;

	struct frame_head full = *head;
	full.major = FRAME_MAJOR;
	full.minor = FRAME_MINOR;
	full.flags |= arena ? FRAME_ARENA : 0;
	full.body_bytes = (uint32_t)body.len;
	full.payload_bytes = 0;
	full.body_crc = crc32c(0, body.ptr, body.len);
	*frame = (struct out_frame){ .has_arena = arena != NULL, .len = len };
	if (arena)
		frame->arena = *arena;
	frame_encode(&full, frame->bytes);
	if (body.len)
		memcpy(frame->bytes + FRAME_HEAD_BYTES, body.ptr, body.len);
	list_append(&conn->out, &frame->link);
	count_queued(conn, cost, 0);
	return 0;
}

int net_send(struct net_conn *conn, const struct frame_head *head, struct view body, const struct arena *arena)
{
	CHECK_MAGIC(conn, CONN_MAGIC);
	CHECK(body.len <= FRAME_BODY_MAX);
	if (conn->state == CONN_DOWN || conn->broken)
		return -ENOTCONN;
	CHECK(conn->state == CONN_CONNECTING || conn->state == CONN_OPEN);

	int r = queue_frame(conn, head, body, arena);
	if (!r)
		post_work(conn);
	return r;
}

/* What one call can send: an arena goes with the call's first byte, so a frame that brings one begins a call. */
static int gather(const struct net_conn *conn, struct iovec *iov, const struct arena **ret_arena)
{
	int n = 0;

	*ret_arena = NULL;
	list_each(node, &conn->out) {
		struct out_frame *frame = list_entry(node, struct out_frame, link);
		bool brings_arena = frame->has_arena && !frame->sent;

		if (n == FRAMES_A_SEND || (n && brings_arena))
			break;
		if (brings_arena)
			*ret_arena = &frame->arena;
		iov[n++] = (struct iovec){ frame->bytes + frame->sent, frame->len - frame->sent };
	}
	return n;
}

static void drop_sent(struct net_conn *conn, size_t bytes)
{
	conn->stats.sent_bytes += bytes;
	while (bytes) {
		struct out_frame *frame = list_entry(conn->out.next, struct out_frame, link);
		size_t n = bytes < frame->len - frame->sent ? bytes : frame->len - frame->sent;

		frame->sent += n;
		bytes -= n;
		if (frame->sent < frame->len)
			return;
		list_remove(&frame->link);
		count_queued(conn, 0, sizeof(*frame) + frame->len);
		free(frame);
	}
}

/* A peer that hangs up may have said why: what it sent is read before the connection goes down. */
static void sending_failed(struct net_conn *conn, int r)
{
	conn->broken = r == -EPIPE ? -ECONNRESET : r;
	conn->readable = true;
	drop_queue(conn);
	post_work(conn);
}

static void flush(struct net_conn *conn)
{
	while (conn->writable && !list_empty(&conn->out)) {
		struct iovec iov[FRAMES_A_SEND];
		const struct arena *arena;
		int n = gather(conn, iov, &arena);
		ssize_t sent = conn->env->ops->send(conn->stream, iov, n, arena);

		if (sent == -EAGAIN)
			conn->writable = false;
		else if (sent < 0)
			sending_failed(conn, (int)sent);
		else
			drop_sent(conn, (size_t)sent);
	}
}

/* ---- receiving ---- */

static int stream_ended(const struct net_conn *conn, ssize_t r, struct error *e)
{
	const char *where = conn->head_have ? " in the middle of a frame" : "";

	if (r == 0)
		return error_set(e, -ECONNRESET, "the peer closed the connection%s", where);
	return error_set(e, (int)r, "the connection broke%s: %s", where, error_meaning((int)r));
}

/* Takes up to @want bytes, as recv does, from what was read ahead or from the stream. */
static ssize_t take(struct net_conn *conn, uint8_t *p, size_t want)
{
	const struct env_ops *ops = conn->env->ops;

	if (conn->early_at == conn->early_len) {
		bool ahead = conn->reads_ahead && want < EARLY_BYTES;

		if (!conn->readable)
			return -EAGAIN;
		if (ahead && !conn->early)
			conn->early = malloc(EARLY_BYTES);
		ahead = ahead && conn->early;
		ssize_t n = ahead ? ops->recv(conn->stream, conn->early, EARLY_BYTES) :
				    ops->recv(conn->stream, p, want);
		if (n > 0)
			conn_heard(conn, (size_t)n);
		if (n <= 0 || !ahead)
			return n;
		conn->early_at = 0;
		conn->early_len = (size_t)n;
	}
	size_t left = conn->early_len - conn->early_at, n = want < left ? want : left;
	memcpy(p, conn->early + conn->early_at, n);
	conn->early_at += n;
	return (ssize_t)n;
}

/* Reads on until @p has @want bytes: 0. Else -EAGAIN, or why the connection is lost. */
static int fill(struct net_conn *conn, uint8_t *p, size_t want, size_t *have, struct error *e)
{
	while (*have < want) {
		ssize_t n = take(conn, p + *have, want - *have);

		if (n > 0) {
			*have += (size_t)n;
			continue;
		}
		if (n != -EAGAIN || conn->broken)
			return stream_ended(conn, n == -EAGAIN ? conn->broken : n, e);
		conn->readable = false;
		return -EAGAIN;
	}
	return 0;
}

static int check_head(struct net_conn *conn, struct error *e)
{
	int r = frame_decode(conn->raw_head, &conn->head, e);

	if (r)
		return r;
	if (conn->no_bulk && conn->head.payload_bytes)
		return error_set(e, -EPROTO, "a chunk of %u bytes on a control connection", conn->head.payload_bytes);
	if (!conn->head.body_bytes)
		return 0;
	if (conn->head.payload_bytes)
		return error_set(e, -EPROTO, "frame of type %u has both a body and a chunk", conn->head.type);
	if (conn->head.body_bytes > conn->body_max)
		return error_set(e, -EPROTO, "frame of type %u announces a body of %u bytes, so far %u are allowed",
				 conn->head.type, conn->head.body_bytes, conn->body_max);
	conn->body = malloc(conn->head.body_bytes);
	if (!conn->body)
		return error_set(e, -ENOMEM, "no memory for a frame's body of %u bytes", conn->head.body_bytes);
	return 0;
}

/* 0: a whole, checked frame is there. Else -EAGAIN, or why the connection is lost. */
static int read_frame(struct net_conn *conn, struct error *e)
{
	int r;

	if (conn->head_have < FRAME_HEAD_BYTES) {
		r = fill(conn, conn->raw_head, FRAME_HEAD_BYTES, &conn->head_have, e);
		if (!r)
			r = check_head(conn, e);
		if (r)
			return r;
	}
	if (conn->head.payload_bytes)
		return -EAGAIN; /* the peer's first chunk waits for net_bulk_start() here */

	r = fill(conn, conn->body, conn->head.body_bytes, &conn->body_have, e);
	if (r)
		return r;
	uint32_t crc = crc32c(0, conn->body, conn->head.body_bytes);
	if (crc != conn->head.body_crc)
		return error_set(e, -EBADMSG, "damaged body of a frame of type %u: its CRC is %08x, the head says %08x",
				 conn->head.type, crc, conn->head.body_crc);
	return 0;
}

static void deliver(struct net_conn *conn)
{
	_cleanup_(cleanup_mem) uint8_t *body = TAKE(conn->body); /* outlives a net_close() in the call */
	struct frame_head head = conn->head;

	conn->head_have = conn->body_have = 0;
	conn->events.frame(conn->events.arg, &head, view_of(body, head.body_bytes));
}

/*
 * A peer of a foreign major gets a failed reply without a body, whose head shows it our major; it refuses that in turn,
 * naming both. As much as one call can send; a reply is never answered, so two strangers do not answer each other for ever.
 */
static void refuse(struct net_conn *conn)
{
	struct frame_head reply = {
		.type = conn->head.type,
		.flags = FRAME_REPLY | FRAME_FAILED,
		.request = conn->head.request,
	};

	if (!(conn->head.flags & FRAME_REPLY) && queue_frame(conn, &reply, (struct view){ 0 }, NULL) == 0)
		flush(conn);
}

/* A frame that cannot be believed; a stream that ended is none. */
static void count_refusal(int why)
{
	if (why == -EPROTO)
		count(COUNT_FRAMES_MALFORMED, 1);
	else if (why == -EBADMSG)
		count(COUNT_FRAMES_DAMAGED, 1);
	else if (why == -ERR_EVERSION)
		count(COUNT_FRAMES_VERSION, 1);
}

static void receive(struct net_conn *conn)
{
	struct error e = { 0 };

	for (int i = 0; i < FRAMES_A_TURN; i++) {
		int r = read_frame(conn, &e);

		if (r == -EAGAIN)
			return;
		if (r == -ERR_EVERSION)
			refuse(conn);
		if (r) {
			count_refusal(r);
			conn_fail(conn, r, e.text);
			return;
		}
		deliver(conn);
		if (conn->state != CONN_OPEN)
			return;
	}
	post_work(conn);
}

void net_limit_body(struct net_conn *conn, uint32_t bytes_max)
{
	CHECK_MAGIC(conn, CONN_MAGIC);
	CHECK(bytes_max <= FRAME_BODY_MAX);
	conn->body_max = bytes_max;
}

void net_count_queue(struct net_conn *conn, uint64_t *all)
{
	CHECK_MAGIC(conn, CONN_MAGIC);
	CHECK(!conn->queued_bytes);
	conn->all_queued = all;
}

uint64_t net_queued(const struct net_conn *conn)
{
	CHECK_MAGIC(conn, CONN_MAGIC);
	return conn->queued_bytes;
}

void net_refuse_bulk(struct net_conn *conn)
{
	CHECK_MAGIC(conn, CONN_MAGIC);
	conn->no_bulk = true;
}

void net_read_ahead(struct net_conn *conn)
{
	CHECK_MAGIC(conn, CONN_MAGIC);
	CHECK(conn->no_bulk);
	conn->reads_ahead = true;
}

/* ---- the task ---- */

static void settle_connect(struct net_conn *conn)
{
	int r = conn->env->ops->stream_status(conn->stream);
	struct error e;

	if (r == -EINPROGRESS)
		return;
	if (r) {
		error_set(&e, r, "cannot connect: %s", error_meaning(r));
		conn_fail(conn, r, e.text);
		return;
	}
	conn_move(conn, CONN_OPEN);
	conn->heard_ns = env_now(conn->env);
	conn->events.up(conn->events.arg);
}

/* Whoever is ready to run may have more to send: that goes in the same call. Once, so that nobody waits long. */
static bool waits_for_others(struct net_conn *conn)
{
	conn->waited = !conn->waited && conn->state == CONN_OPEN && !list_empty(&conn->out) &&
		       loop_is_busy(conn->env->loop);
	return conn->waited;
}

static void work(struct task *task)
{
	struct net_conn *conn = container_of(task, struct net_conn, work);

	conn_get(conn);
	if (conn->state == CONN_CONNECTING)
		settle_connect(conn);
	if (conn->state == CONN_OPEN)
		receive(conn);
	if (waits_for_others(conn))
		post_work(conn);
	else if (conn->state == CONN_OPEN || conn->state == CONN_ENDING || conn->state == CONN_TURNING)
		flush(conn);

	bool all_sent = list_empty(&conn->out);
	if (conn->state == CONN_ENDING && all_sent)
		net_close(conn);
	else if (conn->state == CONN_TURNING && conn->broken)
		conn_fail(conn, conn->broken, "the connection broke before it could carry bulk");
	else if (conn->state == CONN_TURNING && all_sent)
		bulk_begin(conn);
	conn_put(conn);
}

/* ---- connecting and accepting ---- */

static struct net_conn *conn_new(struct env *env)
{
	struct net_conn *conn = calloc(1, sizeof(*conn));

	if (!conn)
		return NULL;
	conn->magic = CONN_MAGIC;
	conn->refs = 1;
	conn->env = env;
	conn->body_max = FRAME_BODY_MAX;
	conn->work.fn = work;
	conn->linger.fn = linger_ended;
	conn->readable = conn->writable = true;
	conn->heard_ns = env_now(env);
	list_init(&conn->out);
	bulk_init(conn);
	return conn;
}

int net_connect(struct env *env, const char *address, const struct net_events *events, struct net_conn **ret)
{
	CHECK_MAGIC(env, ENV_MAGIC);
	CHECK(events->up && events->frame && events->down);
	struct net_conn *conn = conn_new(env);
	if (!conn)
		return -ENOMEM;

	conn->events = *events;
	const struct stream_events ready = { .ready = on_ready, .arg = conn };
	int r = env->ops->connect(env, address, &ready, &conn->stream);
	if (r) {
		conn->stream = NULL;
		conn_put(conn);
		return r;
	}
	post_work(conn); /* it may have settled at once */
	*ret = conn;
	return 0;
}

void net_adopt(struct net_conn *conn, const struct net_events *events)
{
	CHECK_MAGIC(conn, CONN_MAGIC);
	CHECK(events->frame && events->down);
	conn->events = *events;
	post_work(conn);
}

struct net_listener {
	uint32_t magic;
	struct env *env;
	struct stream *stream; /* NULL: closed */
	void (*accepted)(void *arg, struct net_conn *conn);
	void *arg;
	bool accepting; /* accept_all() runs, and frees a listener that is closed meanwhile */
	struct task work;
	struct timer again;
	uint64_t told_ns; /* when the log was told last that nobody can be accepted; 0: never */
};

static void listener_free(struct net_listener *listener)
{
	task_cancel(&listener->work);
	timer_disarm(listener->env->loop, &listener->again);
	listener->magic = 0;
	free(listener);
}

static int accept_one(struct net_listener *listener)
{
	struct net_conn *conn = conn_new(listener->env);
	if (!conn)
		return -ENOMEM;

	const struct stream_events ready = { .ready = on_ready, .arg = conn };
	int r = listener->env->ops->accept(listener->stream, &ready, &conn->stream);
	if (r) {
		conn->stream = NULL;
		conn_put(conn);
		return r;
	}
	conn->state = CONN_OPEN;
	conn_get(conn);
	listener->accepted(listener->arg, conn);
	CHECK(conn->state == CONN_CLOSED || conn->events.frame); /* adopted at once, or closed */
	conn_put(conn);
	return 0;
}

/* Those who connect hear nothing of it: they wait. */
static void tell_not_accepted(struct net_listener *listener, int r)
{
	uint64_t now_ns = env_now(listener->env);

	if (listener->told_ns && now_ns - listener->told_ns < ACCEPT_TOLD_MS * NS_PER_MS)
		return;
	listener->told_ns = now_ns;
	logm(LOG_WARN, "net.not-accepted", "address=%s words=\"%s\"", net_listener_address(listener), error_meaning(r));
}

/* Nothing else would wake the listener. */
static void accept_later(struct net_listener *listener, int r)
{
	tell_not_accepted(listener, r);
	if (timer_arm(listener->env->loop, &listener->again, env_in_ms(listener->env, ACCEPT_AGAIN_MS)))
		loop_post(listener->env->loop, &listener->work);
}

static void accept_all(struct task *task)
{
	struct net_listener *listener = container_of(task, struct net_listener, work);
	struct loop *loop = listener->env->loop;
	int r = 0;

	listener->accepting = true;
	for (int i = 0; i < ACCEPTS_A_TURN && !r && listener->stream; i++)
		r = accept_one(listener);
	listener->accepting = false;

	if (!listener->stream)
		listener_free(listener);
	else if (!r)
		loop_post(loop, &listener->work);
	else if (r != -EAGAIN && r != -ESHUTDOWN)
		accept_later(listener, r);
}

static void accept_ready(void *arg)
{
	struct net_listener *listener = arg;

	loop_post(listener->env->loop, &listener->work);
}

static void accept_again(struct timer *timer)
{
	accept_ready(container_of(timer, struct net_listener, again));
}

int net_listen(struct env *env, const char *address, void (*accepted)(void *arg, struct net_conn *conn), void *arg,
	       struct net_listener **ret, struct error *e)
{
	CHECK_MAGIC(env, ENV_MAGIC);
	struct net_listener *listener = calloc(1, sizeof(*listener));
	if (!listener)
		return error_set(e, -ENOMEM, "%s: no memory to listen", address);

	*listener = (struct net_listener){
		.magic = LISTENER_MAGIC,
		.env = env,
		.accepted = accepted,
		.arg = arg,
		.work.fn = accept_all,
		.again.fn = accept_again,
	};
	const struct stream_events ready = { .ready = accept_ready, .arg = listener };
	int r = env->ops->listen(env, address, &ready, &listener->stream, e);
	if (r) {
		listener_free(listener);
		return r;
	}
	loop_post(env->loop, &listener->work);
	*ret = listener;
	return 0;
}

const char *net_listener_address(const struct net_listener *listener)
{
	CHECK_MAGIC(listener, LISTENER_MAGIC);
	return listener->env->ops->address(listener->stream);
}

void net_listener_close(struct net_listener *listener)
{
	if (!listener)
		return;
	CHECK_MAGIC(listener, LISTENER_MAGIC);
	struct stream *stream = TAKE(listener->stream);
	listener->env->ops->close(stream);
	if (!listener->accepting)
		listener_free(listener);
}

/* ---- questions ---- */

void net_peer(struct net_conn *conn, uint32_t *ret_uid, int32_t *ret_pid)
{
	CHECK_MAGIC(conn, CONN_MAGIC);
	*ret_uid = UINT32_MAX;
	*ret_pid = 0;
	if (conn->stream)
		conn->env->ops->peer(conn->stream, ret_uid, ret_pid);
}

int net_peer_watch(struct net_conn *conn, void (*gone)(void *arg), void *arg)
{
	CHECK_MAGIC(conn, CONN_MAGIC);
	return conn->stream ? conn->env->ops->peer_watch(conn->stream, gone, arg) : -ENOTCONN;
}

uint64_t net_last_heard_ns(const struct net_conn *conn)
{
	CHECK_MAGIC(conn, CONN_MAGIC);
	return conn->heard_ns;
}

void net_stats(const struct net_conn *conn, struct net_stats *ret)
{
	CHECK_MAGIC(conn, CONN_MAGIC);
	*ret = conn->stats;
}
