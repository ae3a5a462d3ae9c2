/*
 * sim/stream.c: streams of the simulated world, tcp and unix.
 *
 * Each end owns what flies towards it: a list of chunks, each with the time at which it arrives, never before the one
 * sent earlier. Between streams nothing is ordered. A chunk leaves when the sender's NIC has moved all that it was given
 * before, and needs a drawn delay; the receiver's NIC is a rate of its own. What flies or lies unread is bounded by the
 * stream's window; beyond it send answers -EAGAIN and bulk waits.
 *
 * A dead env's ends stay: what arrives there is answered with a reset, or with nothing while the env is silent. Streams
 * are freed with the world, so that a call on a closed one is caught, not undefined.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "sim/inside.h"
#include "wire/frame.h"
#include "wire/message.h"

#define STREAM_MAGIC   UINT32_C(0x6d727473)
#define PIECE_BYTES    (64u << 10) /* what one chunk carries at most */
#define WINDOW_LEAST   (16u << 10) /* of a stream: drawn from here to 16 times as much */
#define TCP_DELAY_NS   (20 * NS_PER_US)
#define UNIX_DELAY_NS  (4 * NS_PER_US) /* the least; up to 5 times as much is drawn */
#define LATE_NS	       (3 * NS_PER_S)
#define RESEND_NS      (NS_PER_S / 2)	    /* after a silence, at most */
#define UNIX_RATE      UINT64_C(8000000000) /* bytes per second */
#define SYN_AGAIN_NS   NS_PER_S
#define SYN_GIVE_UP_NS (127 * NS_PER_S) /* as Linux does with 6 retries */
#define FIRST_PORT     40000
#define SCRIBBLE       0xdb /* what a cancelled receive may still write into its span */

enum kind { CHUNK_BYTES, CHUNK_OPEN, CHUNK_END, CHUNK_RESET, CHUNK_GONE };

struct chunk {
	struct list link;
	enum kind kind;
	uint64_t at_ns;
	struct sim_arena *arena;
	size_t len, taken;
	uint8_t bytes[];
};

struct stream {
	uint32_t magic;
	struct list link; /* the world's */
	struct sim_env *env;
	struct world *world;
	uint64_t id;
	char *address;
	bool tcp, listening, closed;
	bool ended, starved; /* no more bytes will come; the other end waits for room here */
	int status;	     /* -EINPROGRESS, 0, or why no byte passes any more */
	struct stream *peer;
	struct stream_events events;
	struct task ready;
	struct timer timer; /* connecting; closing with bulk under way */
	uint64_t connect_since_ns;
	struct list backlog, pending; /* a listener's; a place in one */

	struct list flying, arrived, arenas; /* towards this end; arenas: of bytes taken already */
	size_t held, window;		     /* bytes in flying and arrived; most of them */
	uint64_t last_at_ns;
	struct timer arrival;

	struct list bulk_send, bulk_recv;
	uint8_t trailer[4]; /* the CRC that the receive under way has got so far */
	void (*gone)(void *arg);
	void *gone_arg;
};

static bool is_broken(const struct stream *s)
{
	return s->status < 0 && s->status != -EINPROGRESS;
}

static const char *peer_name(const struct stream *s)
{
	return s->peer ? s->peer->env->name : "?";
}

static void arm(struct stream *s, struct timer *timer, uint64_t at_ns)
{
	SPARED;
	CHECK(timer_arm(s->world->loop, timer, at_ns) == 0);
}

static void post_ready(struct stream *s)
{
	if (!s->closed && !s->env->dead)
		loop_post(s->world->loop, &s->ready);
}

static uint64_t draw_delay(struct stream *s)
{
	uint64_t least = s->tcp ? TCP_DELAY_NS : UNIX_DELAY_NS;

	return least + world_random(s->world, 4 * least);
}

/* ---- bulk operations ---- */

static void bulk_completed(struct task *task)
{
	struct bulk_op *op = container_of(task, struct bulk_op, task);

	op->done->fn(op->done, op->result);
}

static void bulk_finish(struct stream *s, struct bulk_op *op, int result)
{
	list_remove(&op->link);
	op->result = result;
	op->task = (struct task){ .fn = bulk_completed };
	loop_post(s->world->loop, &op->task);
}

static struct bulk_op *bulk_first(const struct list *ops)
{
	return list_empty(ops) ? NULL : list_entry(ops->next, struct bulk_op, link);
}

static void bulk_fail(struct stream *s, int result)
{
	struct bulk_op *op;

	while ((op = bulk_first(&s->bulk_send)) || (op = bulk_first(&s->bulk_recv)))
		bulk_finish(s, op, result);
}

/*
 * The part of @op that its progress has reached: head, span and CRC (its 4 bytes at @trailer) as they lie in the stream.
 * Empty: it is complete.
 */
static struct iovec bulk_part(const struct bulk_op *op, uint8_t *trailer)
{
	struct iovec head = { op->head, op->head_len }, span = { op->span, op->span_len };
	struct iovec crc = { trailer, op->span_len ? 4 : 0 };
	struct iovec parts[] = { op->send ? head : span, op->send ? span : crc, op->send ? crc : head };
	size_t at = op->progress;

	for (int i = 0; i < 3; i++) {
		if (at < parts[i].iov_len)
			return (struct iovec){ (uint8_t *)parts[i].iov_base + at, parts[i].iov_len - at };
		at -= parts[i].iov_len;
	}
	return (struct iovec){ 0 };
}

/* @n bytes of the part at @p went, and looked like @bytes. */
static void bulk_moved(struct bulk_op *op, const uint8_t *p, const uint8_t *bytes, size_t n)
{
	if (op->span_len && p >= op->span && p < op->span + op->span_len)
		op->crc = crc32c(op->crc, bytes, n);
	op->progress += n;
}

/* ---- flight ---- */

/* When @len bytes that are sent now leave both NICs. What a slow sender has still to send takes no time of the receiver's. */
static uint64_t wire_ns(struct sim_env *from, struct sim_env *to, size_t len)
{
	uint64_t now_ns = from->world->now_ns, begin_ns = now_ns > from->out_free_ns ? now_ns : from->out_free_ns;

	from->out_free_ns = begin_ns + len * NS_PER_S / from->rate_bytes_per_s;
	to->in_free_ns = (now_ns > to->in_free_ns ? now_ns : to->in_free_ns) + len * NS_PER_S / to->rate_bytes_per_s;
	return from->out_free_ns > to->in_free_ns ? from->out_free_ns : to->in_free_ns;
}

/* Puts a chunk on its way to @to. It is never refused: who calls has looked at the window. */
static struct chunk *launch(struct stream *to, enum kind kind, const struct iovec *iov, size_t len)
{
	struct sim_env *from = to->peer->env;
	struct chunk *c = must_alloc(sizeof(*c) + len);

	c->kind = kind;
	c->len = len;
	for (size_t at = 0, n; at < len; at += n, iov++) {
		n = iov->iov_len < len - at ? iov->iov_len : len - at;
		memcpy(c->bytes + at, iov->iov_base, n);
	}
	c->at_ns = draw_delay(to) +
		   (to->tcp ? wire_ns(from, to->env, len) : from->world->now_ns + len * NS_PER_S / UNIX_RATE);
	if (len && to->tcp && fault_here(from, FAULT_LATE, "send to", to->env->name))
		c->at_ns += world_random(from->world, LATE_NS);
	if (c->at_ns < to->last_at_ns)
		c->at_ns = to->last_at_ns;
	to->last_at_ns = c->at_ns;
	to->held += len;
	list_append(&to->flying, &c->link);
	if (to->flying.next == &c->link)
		arm(to, &to->arrival, c->at_ns);
	return c;
}

static void chunk_free(struct chunk *c)
{
	list_remove(&c->link);
	arena_put(c->arena);
	free(c);
}

static void chunks_free(struct list *chunks)
{
	while (!list_empty(chunks))
		chunk_free(list_entry(chunks->next, struct chunk, link));
}

/* Loses what would arrive at @s from @after_ns on. */
static void drop_flying(struct stream *s, uint64_t after_ns)
{
	list_each(node, &s->flying) {
		struct chunk *c = list_entry(node, struct chunk, link);

		if (c->at_ns < after_ns || c->kind == CHUNK_GONE)
			continue;
		s->held -= c->len;
		chunk_free(c);
	}
}

/* What is on its way to @s is lost, and after a while it learns that the stream is no more. */
static void cut(struct stream *s)
{
	if (s->closed || s->env->dead || !s->peer)
		return;
	drop_flying(s, 0);
	s->last_at_ns = 0;
	(void)launch(s, CHUNK_RESET, NULL, 0);
}

static bool cut_here(struct stream *s, const char *what)
{
	if (!fault_here(s->env, FAULT_CUT, what, peer_name(s)))
		return false;
	cut(s->peer);
	cut(s);
	return true;
}

static void stream_fail(struct stream *s, int status)
{
	s->status = status;
	bulk_fail(s, status);
	post_ready(s);
}

/* The bytes that @s may send now. If none, it will hear of room. */
static size_t send_room(struct stream *s)
{
	struct stream *to = s->peer;

	to->starved = to->held >= to->window;
	return to->starved ? 0 : to->window - to->held;
}

static void pump_send(struct stream *s)
{
	struct bulk_op *op;

	while (s->status == 0 && (op = bulk_first(&s->bulk_send))) {
		uint8_t trailer[4];

		store_le32(trailer, op->crc);
		struct iovec part = bulk_part(op, trailer);
		if (!part.iov_len) {
			bulk_finish(s, op, 0);
			continue;
		}
		size_t room = send_room(s);
		if (!room)
			break;
		room = room < PIECE_BYTES ? room : PIECE_BYTES;
		size_t n = part.iov_len < room ? part.iov_len : room;
		bulk_moved(op, part.iov_base, launch(s->peer, CHUNK_BYTES, &part, n)->bytes, n);
	}
}

/* Takes up to @len bytes that have arrived; stops before bytes that came with another arena, as recvmsg does. */
static size_t take(struct stream *s, uint8_t *p, size_t len)
{
	size_t got = 0;

	while (got < len && !list_empty(&s->arrived)) {
		struct chunk *c = list_entry(s->arrived.next, struct chunk, link);
		size_t n = c->len - c->taken < len - got ? c->len - c->taken : len - got;

		if (c->arena && !c->taken && got)
			break;
		memcpy(p + got, c->bytes + c->taken, n);
		got += n;
		c->taken += n;
		if (c->taken < c->len)
			break;
		list_remove(&c->link);
		if (c->arena)
			list_append(&s->arenas, &c->link);
		else
			chunk_free(c);
	}
	s->held -= got;
	return got;
}

static void room_was_made(struct stream *s)
{
	if (!s->starved || s->held >= s->window)
		return;
	s->starved = false;
	post_ready(s->peer);
	pump_send(s->peer);
}

static void pump_recv(struct stream *s)
{
	struct bulk_op *op;

	while ((op = bulk_first(&s->bulk_recv))) {
		struct iovec part = bulk_part(op, s->trailer);

		if (!part.iov_len) {
			bulk_finish(s, op, op->span_len && load_le32(s->trailer) != op->crc ? -EBADMSG : 0);
			continue;
		}
		size_t n = take(s, part.iov_base, part.iov_len);
		if (!n)
			break;
		bulk_moved(op, part.iov_base, part.iov_base, n);
	}
	if (op && s->ended)
		bulk_fail(s, is_broken(s) ? s->status : -ECONNRESET);
	room_was_made(s);
}

/* ---- arrival ---- */

static void deliver(struct stream *s, struct chunk *c)
{
	static const char *const said[] = { "gets",
					    "is connected:", "gets the end:", "gets a reset:", "learns of the death:" };
	bool there = !s->closed && !s->env->dead;

	list_remove(&c->link);
	if (!there || is_broken(s)) {
		if (there && c->kind == CHUNK_GONE)
			s->gone(s->gone_arg);
		else if (!there && c->kind == CHUNK_BYTES && !s->env->silent) /* else the window fills */
			cut(s->peer);
		chunk_free(c);
		return;
	}
	world_tell(s->world, &s->env->env, "%s %zu bytes on s%" PRIu64 " from %s x=%016" PRIx64 "%s", said[c->kind],
		   c->len, s->id, peer_name(s), hash64(c->bytes, c->len, 0), c->arena ? " with an arena" : "");
	if (c->kind == CHUNK_BYTES) {
		if (s->tcp && fault_here(s->env, FAULT_WIRE_FLIP, "recv from", peer_name(s)))
			c->bytes[world_random(s->world, c->len)] ^= (uint8_t)(1u << world_random(s->world, 8));
		list_append(&s->arrived, &c->link);
	} else if (c->kind == CHUNK_OPEN) {
		s->status = 0;
		pump_send(s);
	} else if (c->kind == CHUNK_GONE) {
		s->gone(s->gone_arg);
	} else {
		s->ended = true;
	}
	if (c->kind == CHUNK_RESET)
		stream_fail(s, -ECONNRESET);
	if (c->kind != CHUNK_BYTES)
		chunk_free(c);
	pump_recv(s);
	post_ready(s);
}

static void chunk_arrives(struct timer *timer)
{
	struct stream *s = container_of(timer, struct stream, arrival);

	while (!list_empty(&s->flying)) {
		struct chunk *c = list_entry(s->flying.next, struct chunk, link);

		if (s->tcp && is_silent(s->world, s->peer->env, s->env))
			return; /* until stream_silence_ended() */
		if (c->at_ns > s->world->now_ns) {
			arm(s, &s->arrival, c->at_ns);
			return;
		}
		deliver(s, c);
	}
}

/* TCP sends again what was lost: soon after the silence, each stream in its own time. */
void stream_silence_ended(struct world *w)
{
	list_each(node, &w->streams) {
		struct stream *s = list_entry(node, struct stream, link);

		if (s->tcp && !list_empty(&s->flying) && !s->arrival.slot)
			arm(s, &s->arrival, w->now_ns + world_random(w, RESEND_NS));
	}
}

/* ---- connecting ---- */

static void call_ready(struct task *task)
{
	struct stream *s = container_of(task, struct stream, ready);

	if (s->events.ready)
		s->events.ready(s->events.arg);
}

static struct stream *stream_new(struct sim_env *e, const char *address, const struct stream_events *events)
{
	SPARED;
	struct stream *s = must_alloc(sizeof(*s));
	struct list *heads[] = { &s->backlog, &s->pending,   &s->flying,   &s->arrived,
				 &s->arenas,  &s->bulk_send, &s->bulk_recv };

	s->magic = STREAM_MAGIC;
	s->env = e;
	s->world = e->world;
	s->id = ++e->world->serial;
	s->tcp = address[0] == 't';
	s->address = strdup(address);
	s->events = events ? *events : (struct stream_events){ 0 };
	s->ready.fn = call_ready;
	s->arrival.fn = chunk_arrives;
	s->window = (size_t)(WINDOW_LEAST << world_random(e->world, 5));
	for (size_t i = 0; i < ARRAY_LEN(heads); i++)
		list_init(heads[i]);
	list_append(&e->world->streams, &s->link);
	return s;
}

static bool is_address(const char *address)
{
	return strncmp(address, "tcp:", 4) == 0 || strncmp(address, "unix:", 5) == 0;
}

/* The listener at @address: a living one, else that of a dead machine which does not answer. */
static struct stream *find_listener(struct world *w, const char *address)
{
	struct stream *silent = NULL;

	list_each(node, &w->streams) {
		struct stream *s = list_entry(node, struct stream, link);

		if (!s->listening || s->closed || strcmp(s->address, address) != 0)
			continue;
		if (!s->env->dead)
			return s;
		silent = s->env->silent ? s : silent;
	}
	return silent;
}

static int op_listen(struct env *env, const char *address, const struct stream_events *events, struct stream **ret,
		     struct error *err)
{
	struct sim_env *e = sim_env(env);
	char chosen[256];
	int len = (int)strlen(address);

	CHECK(!in_job());
	if (e->dead)
		return error_set(err, -ESHUTDOWN, "%s is shut down", e->name);
	if (!is_address(address) || len >= 240)
		return error_set(err, -EINVAL, "%s: not an address", address);
	if (address[0] == 't' && strcmp(address + len - 2, ":0") == 0)
		snprintf(chosen, sizeof(chosen), "%.*s%" PRIu64, len - 1, address, FIRST_PORT + ++e->world->serial);
	else
		snprintf(chosen, sizeof(chosen), "%s", address);
	if (strike_here(STRIKE_SOCKET))
		return error_set(err, -EMFILE, "%s: %s", chosen, error_meaning(-EMFILE));
	struct stream *there = find_listener(e->world, chosen);
	if (there && !there->env->dead)
		return error_set(err, -EADDRINUSE, "%s: %s listens there", chosen, there->env->name);

	struct stream *s = stream_new(e, chosen, events);
	s->listening = true;
	e->open++;
	world_tell(e->world, env, "listens on %s", chosen);
	*ret = s;
	return 0;
}

static void connect_arrives(struct timer *timer)
{
	struct stream *s = container_of(timer, struct stream, timer);
	struct world *w = s->world;
	struct stream *l = find_listener(w, s->address);
	bool lost = s->tcp && l && (l->env->silent || is_silent(w, s->env, l->env) || is_silent(w, l->env, s->env));

	if (s->closed || s->env->dead)
		return;
	if (lost && w->now_ns - s->connect_since_ns < SYN_GIVE_UP_NS) {
		arm(s, &s->timer, w->now_ns + SYN_AGAIN_NS);
		return;
	}
	int r = lost ? -ETIMEDOUT : l && !l->env->dead ? 0 : s->tcp ? -ECONNREFUSED : -ENOENT;
	if (!r && fault_here(s->env, FAULT_REFUSE, "connect to", s->address))
		r = -ECONNREFUSED;
	if (r) {
		world_tell(w, &s->env->env, "cannot connect to %s: %s", s->address, error_name(r));
		stream_fail(s, r);
		return;
	}
	s->peer = stream_new(l->env, s->address, NULL);
	s->peer->peer = s;
	list_append(&l->backlog, &s->peer->pending);
	post_ready(l);
	(void)launch(s, CHUNK_OPEN, NULL, 0);
}

static int op_connect(struct env *env, const char *address, const struct stream_events *events, struct stream **ret)
{
	struct sim_env *e = sim_env(env);

	CHECK(!in_job());
	if (e->dead || !is_address(address))
		return e->dead ? -ESHUTDOWN : -EINVAL;
	if (strike_here(STRIKE_SOCKET))
		return -EMFILE;
	struct stream *s = stream_new(e, address, events);
	s->status = -EINPROGRESS;
	s->connect_since_ns = e->world->now_ns;
	s->timer.fn = connect_arrives;
	arm(s, &s->timer, e->world->now_ns + draw_delay(s));
	e->open++;
	world_tell(e->world, env, "connects to %s: s%" PRIu64, address, s->id);
	*ret = s;
	return 0;
}

/* ---- calls on a stream ---- */

/* 0, or -ESHUTDOWN: the env is dead. */
static int enter(const struct stream *s)
{
	CHECK_MAGIC(s, STREAM_MAGIC);
	CHECK(!s->closed && !in_job());
	return s->env->dead ? -ESHUTDOWN : 0;
}

static int op_accept(struct stream *l, const struct stream_events *events, struct stream **ret)
{
	int r = enter(l);

	CHECK(l->listening);
	if (r || list_empty(&l->backlog))
		return r ? r : -EAGAIN;
	if (strike_here(STRIKE_SOCKET))
		return -EMFILE;
	struct list *node = list_pop(&l->backlog);
	struct stream *s = list_entry(node, struct stream, pending);
	s->events = *events;
	s->env->open++;
	post_ready(s);
	world_tell(l->world, &l->env->env, "accepts s%" PRIu64 " from %s", s->id, peer_name(s));
	*ret = s;
	return 0;
}

static int op_status(struct stream *s)
{
	int r = enter(s);

	return r ? r : s->status;
}

/* 0, or the connection is broken from here on, on both ends. */
static int strike(struct stream *s)
{
	if (s->status || !s->peer || !strike_here(STRIKE_SOCKET))
		return 0;
	world_tell(s->world, &s->env->env, "s%" PRIu64 " breaks", s->id);
	cut(s->peer);
	s->ended = true;
	stream_fail(s, -ECONNRESET);
	return -ECONNRESET;
}

static size_t split_here(struct stream *s, const char *what, size_t len)
{
	return len > 1 && fault_here(s->env, FAULT_SPLIT, what, peer_name(s)) ? 1 + world_random(s->world, len - 1) :
										len;
}

static ssize_t op_recv(struct stream *s, void *p, size_t len)
{
	int r = enter(s);

	CHECK(!s->listening && list_empty(&s->bulk_recv));
	if (r || !len || (r = strike(s)))
		return r;
	size_t n = list_empty(&s->arrived) ? 0 : take(s, p, split_here(s, "recv from", len));
	if (!n)
		return is_broken(s) ? s->status : s->ended ? 0 : -EAGAIN;
	room_was_made(s);
	return (ssize_t)n;
}

static ssize_t op_send(struct stream *s, const struct iovec *iov, int n, const struct arena *arena)
{
	int r = enter(s);
	size_t len = 0;

	CHECK(!s->listening && list_empty(&s->bulk_send) && !(arena && s->tcp));
	for (int i = 0; i < n; i++)
		len += iov[i].iov_len;
	if (r || s->status < 0 || !len)
		return r ? r : s->status == -EINPROGRESS ? -EAGAIN : s->status;
	r = strike(s);
	if (r)
		return r;
	size_t room = send_room(s);
	if (!room || cut_here(s, "send to"))
		return -EAGAIN;
	len = len < room ? len : room;
	len = split_here(s, "send to", len < PIECE_BYTES ? len : PIECE_BYTES);
	struct chunk *c = launch(s->peer, CHUNK_BYTES, iov, len);
	if (arena) {
		c->arena = arena_find(s->world, arena->id);
		CHECK(c->arena);
		c->arena->refs++;
	}
	struct frame_head head;
	bool is_frame = len >= FRAME_HEAD_BYTES && frame_decode(c->bytes, &head, NULL) == 0;
	world_tell(s->world, &s->env->env, "sends %zu bytes on s%" PRIu64 " to %s x=%016" PRIx64 " %s%s", len, s->id,
		   peer_name(s), hash64(c->bytes, len, 0), is_frame ? msg_type_name(head.type) : "",
		   is_frame && head.flags & FRAME_REPLY ? " reply" : "");
	return (ssize_t)len;
}

static void op_bulk(struct bulk_op *op)
{
	struct stream *s = op->stream;
	int r = enter(s);

	CHECK(!s->listening && op->span_len <= BULK_CHUNK_BYTES);
	op->progress = 0;
	op->crc = 0;
	if (!r)
		(void)strike(s);
	list_append(op->send ? &s->bulk_send : &s->bulk_recv, &op->link);
	if (r || (is_broken(s) && (op->send || list_empty(&s->arrived)))) {
		bulk_finish(s, op, r ? r : s->status);
		return;
	}
	world_tell(s->world, &s->env->env, "bulk %s of %zu+%zu bytes on s%" PRIu64, op->send ? "send" : "receive",
		   op->head_len, op->span_len, s->id);
	if (op->send && s->peer && !cut_here(s, "bulk to"))
		pump_send(s);
	if (!op->send)
		pump_recv(s);
}

static void op_peer(struct stream *s, uint32_t *ret_uid, int32_t *ret_pid)
{
	bool known = enter(s) == 0 && !s->tcp && s->peer;

	*ret_uid = known ? s->peer->env->uid : UINT32_MAX;
	*ret_pid = known ? s->peer->env->pid : 0;
}

static int op_peer_watch(struct stream *s, void (*gone)(void *arg), void *arg)
{
	int r = enter(s);

	if (r || s->tcp || !s->peer)
		return r ? r : -ENOTSUP;
	CHECK(!s->gone);
	if (strike_here(STRIKE_SOCKET))
		return -EMFILE;
	s->gone = gone;
	s->gone_arg = arg;
	if (s->peer->env->dead)
		(void)launch(s, CHUNK_GONE, NULL, 0);
	return 0;
}

static const char *op_address(struct stream *s)
{
	CHECK_MAGIC(s, STREAM_MAGIC);
	return s->address;
}

int sim_take_arena(struct stream *s, struct arena *ret)
{
	if (enter(s) || list_empty(&s->arenas))
		return -EAGAIN;
	struct chunk *c = list_entry(s->arenas.next, struct chunk, link);

	*ret = (struct arena){ c->arena->ptr, c->arena->size, c->arena->id, -1 };
	s->env->open++;
	c->arena = NULL; /* its reference is the caller's now */
	chunk_free(c);
	return 0;
}

/* ---- closing ---- */

/* The mover lets go of the spans: until now it may have written into them. */
static void closed_at_last(struct timer *timer)
{
	struct stream *s = container_of(timer, struct stream, timer);

	list_each(node, &s->bulk_recv) {
		struct bulk_op *op = list_entry(node, struct bulk_op, link);

		if (op->progress < op->span_len)
			op->span[op->progress] = SCRIBBLE;
	}
	bulk_fail(s, -ECANCELED);
}

/* Nobody reads at this end any more: the other one learns it, after what was sent before. */
static void hang_up(struct stream *s)
{
	if (s->peer && !is_broken(s))
		(void)launch(s->peer, list_empty(&s->arrived) ? CHUNK_END : CHUNK_RESET, NULL, 0);
	chunks_free(&s->arrived);
	s->held = 0;
	room_was_made(s);
}

static void op_close(struct stream *s)
{
	struct list *node;

	if (!s)
		return;
	int dead = enter(s);
	s->env->open--;
	task_cancel(&s->ready);
	timer_disarm(s->world->loop, &s->timer);
	if (!dead) {
		world_tell(s->world, &s->env->env, "closes s%" PRIu64, s->id);
		while ((node = list_pop(&s->backlog))) {
			hang_up(list_entry(node, struct stream, pending));
			list_entry(node, struct stream, pending)->closed = true;
		}
		hang_up(s);
	}
	s->closed = true;
	chunks_free(&s->arenas);
	if (bulk_first(&s->bulk_send) || bulk_first(&s->bulk_recv)) {
		s->timer.fn = closed_at_last;
		arm(s, &s->timer, s->world->now_ns + draw_delay(s));
	}
}

/* @orderly: the machine lives on and closes what its process had open. Streams to other machines may else hear nothing. */
void stream_env_died(struct sim_env *e, bool orderly)
{
	list_each(node, &e->world->streams) {
		struct stream *s = list_entry(node, struct stream, link);

		if (s->env != e)
			continue;
		bulk_fail(s, -ESHUTDOWN);
		task_cancel(&s->ready);
		if (s->peer && s->peer->gone)
			(void)launch(s->peer, CHUNK_GONE, NULL, 0);
		if (!s->peer || s->closed)
			continue;
		if (orderly || !s->tcp)
			hang_up(s);
		else if (e->silent)
			drop_flying(s->peer, e->world->now_ns + TCP_DELAY_NS); /* what had not left the machine */
		else
			cut(s->peer);
	}
}

/* The machine is up again and knows nothing of its streams: whoever sent to it in vain hears so. */
void stream_env_returned(struct sim_env *e)
{
	e->silent = false;
	list_each(node, &e->world->streams) {
		struct stream *s = list_entry(node, struct stream, link);

		if (s->env == e && s->held)
			cut(s->peer);
	}
}

void world_cut(struct world *w, const char *a, const char *b)
{
	world_tell(w, NULL, "what connects %s and %s is cut", a, b);
	list_each(node, &w->streams) {
		struct stream *s = list_entry(node, struct stream, link);
		bool meant = s->peer && !s->closed && (a[0] == '*' || strcmp(a, s->env->name) == 0) &&
			     (b[0] == '*' || strcmp(b, s->peer->env->name) == 0);

		if (!meant)
			continue;
		w->faults.injected[FAULT_CUT]++;
		cut(s->peer);
		cut(s);
	}
}

void stream_free_all(struct world *w)
{
	list_each(node, &w->streams) {
		struct stream *s = list_entry(node, struct stream, link);

		chunks_free(&s->flying);
		chunks_free(&s->arrived);
		chunks_free(&s->arenas);
		free(s->address);
		free(s);
	}
}

void stream_ops(struct env_ops *ops)
{
	ops->listen = op_listen;
	ops->accept = op_accept;
	ops->connect = op_connect;
	ops->stream_status = op_status;
	ops->recv = op_recv;
	ops->send = op_send;
	ops->peer = op_peer;
	ops->peer_watch = op_peer_watch;
	ops->address = op_address;
	ops->close = op_close;
	ops->bulk = op_bulk;
}
