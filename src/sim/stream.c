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
#include "sim/inside.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

#define STREAM_MAGIC   UINT32_C(0x6d727473)
#define PIECE_BYTES    (64u << 10) /* what one chunk carries at most */
#define WINDOW_LEAST   (16u << 10) /* of a stream: drawn from here to 16 times as much */
#define TCP_DELAY_NS   (20 * NS_PER_US)
#define UNIX_DELAY_NS  (4 * NS_PER_US) /* the least; up to 5 times as much is drawn */
#define LATE_NS	       (3 * NS_PER_S)
#define UNIX_RATE      UINT64_C(8000000000) /* bytes per second */
#define SYN_AGAIN_NS   NS_PER_S
#define SYN_GIVE_UP_NS (127 * NS_PER_S) /* as Linux does with 6 retries */
#define FIRST_PORT     40000
#define SCRIBBLE       0xdb /* what a cancelled receive may still write into its span */

enum kind { CHUNK_BYTES, CHUNK_END, CHUNK_RESET };

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
	struct list link; /* world's */
	struct sim_env *env;
	struct world *world;
	uint64_t id;
	bool tcp, listening, closed;
	char *address;
	int status; /* -EINPROGRESS, 0, or why no byte passes any more */
	struct stream *peer;
	struct stream_events events;
	struct task ready;
	struct timer timer; /* connecting; closing with bulk under way */
	uint64_t connect_since_ns;
	struct list backlog, pending; /* a listener's; a place in one */

	struct list flying, arrived, arenas; /* towards this end; arenas: chunks without bytes */
	size_t held, window;		     /* bytes in flying and arrived; most of them */
	uint64_t last_at_ns;
	struct timer arrival;
	bool ended, starved; /* no more bytes will come; the other end waits for room here */

	struct list bulk_send, bulk_recv;
	uint8_t trailer[4]; /* the CRC that the receive under way has got so far */

	void (*gone)(void *arg);
	void *gone_arg;
	struct timer gone_timer;
};

static struct stream *check(struct stream *s)
{
	CHECK_MAGIC(s, STREAM_MAGIC);
	CHECK(!s->closed && !in_job());
	return s;
}

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

static void bulk_fail(struct stream *s, int result)
{
	struct list *both[] = { &s->bulk_send, &s->bulk_recv };

	for (int i = 0; i < 2; i++)
		while (!list_empty(both[i]))
			bulk_finish(s, list_entry(both[i]->next, struct bulk_op, link), result);
}

/*
 * The part of @op that its progress has reached: head, span and CRC (its 4 bytes at @trailer) as they lie in the stream.
 * Empty: it is complete.
 */
static size_t bulk_part(struct bulk_op *op, uint8_t *trailer, uint8_t **ret)
{
	struct part {
		uint8_t *ptr;
		size_t len;
	} head = { op->head, op->head_len }, span = { op->span, op->span_len }, crc = { trailer, op->span_len ? 4 : 0 };
	struct part sent[] = { head, span, crc }, received[] = { span, crc, head };
	const struct part *parts = op->send ? sent : received;
	size_t at = op->progress;

	for (int i = 0; i < 3; i++) {
		if (at < parts[i].len) {
			*ret = parts[i].ptr + at;
			return parts[i].len - at;
		}
		at -= parts[i].len;
	}
	return 0;
}

static bool in_span(const struct bulk_op *op, const uint8_t *p)
{
	return op->span_len && p >= op->span && p < op->span + op->span_len;
}

/* ---- flight ---- */

/* Puts a chunk on its way to @to. It is never refused: who calls has looked at the window. */
static struct chunk *launch(struct stream *to, enum kind kind, const struct iovec *iov, size_t len)
{
	struct stream *from = to->peer;
	struct world *w = to->world;
	struct chunk *c = must_alloc(sizeof(*c) + len);
	uint64_t start_ns = w->now_ns;

	c->kind = kind;
	c->len = len;
	for (size_t at = 0; at < len; iov++) {
		size_t n = iov->iov_len < len - at ? iov->iov_len : len - at;

		if (n)
			memcpy(c->bytes + at, iov->iov_base, n);
		at += n;
	}
	if (to->tcp) {
		struct sim_env *a = from->env, *b = to->env;
		uint64_t began_ns = start_ns > a->out_free_ns ? start_ns : a->out_free_ns;

		a->out_free_ns = began_ns + len * NS_PER_S / a->rate_bytes_per_s;
		b->in_free_ns =
			(began_ns > b->in_free_ns ? began_ns : b->in_free_ns) + len * NS_PER_S / b->rate_bytes_per_s;
		start_ns = a->out_free_ns > b->in_free_ns ? a->out_free_ns : b->in_free_ns;
	} else {
		start_ns += len * NS_PER_S / UNIX_RATE;
	}
	c->at_ns = start_ns + draw_delay(to);
	if (len && to->tcp && fault_here(from->env, FAULT_LATE, "send to", to->env->name))
		c->at_ns += world_random(w, LATE_NS);
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

static void stream_fail(struct stream *s, int status)
{
	if (is_broken(s))
		return;
	s->status = status;
	bulk_fail(s, status);
	post_ready(s);
}

static void drop_flying(struct stream *s, uint64_t after_ns)
{
	list_each(node, &s->flying) {
		struct chunk *c = list_entry(node, struct chunk, link);

		if (c->at_ns < after_ns)
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

static size_t send_room(const struct stream *s)
{
	const struct stream *to = s->peer;

	return to->held < to->window ? to->window - to->held : 0;
}

static void pump_send(struct stream *s)
{
	while (!list_empty(&s->bulk_send) && s->status == 0) {
		struct bulk_op *op = list_entry(s->bulk_send.next, struct bulk_op, link);
		size_t room = send_room(s);
		uint8_t trailer[4], *p;

		store_le32(trailer, op->crc);
		size_t n = bulk_part(op, trailer, &p);
		if (!n) {
			bulk_finish(s, op, 0);
			continue;
		}
		if (!room) {
			s->peer->starved = true;
			return;
		}
		n = n < room ? n : room;
		n = n < PIECE_BYTES ? n : PIECE_BYTES;
		struct iovec iov = { p, n };
		struct chunk *c = launch(s->peer, CHUNK_BYTES, &iov, n);
		if (in_span(op, p))
			op->crc = crc32c(op->crc, c->bytes, n);
		op->progress += n;
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
		if (c->arena) {
			list_remove(&c->link);
			list_append(&s->arenas, &c->link);
		} else {
			chunk_free(c);
		}
	}
	s->held -= got;
	return got;
}

static void room_was_made(struct stream *s)
{
	if (!s->starved || s->held >= s->window)
		return;
	s->starved = false;
	if (list_empty(&s->peer->bulk_send))
		post_ready(s->peer);
	else
		pump_send(s->peer);
}

static void pump_recv(struct stream *s)
{
	while (!list_empty(&s->bulk_recv)) {
		struct bulk_op *op = list_entry(s->bulk_recv.next, struct bulk_op, link);
		uint8_t *p;
		size_t n = bulk_part(op, s->trailer, &p);

		if (!n) {
			bulk_finish(s, op, op->span_len && load_le32(s->trailer) != op->crc ? -EBADMSG : 0);
			continue;
		}
		n = take(s, p, n);
		if (!n)
			break;
		if (in_span(op, p))
			op->crc = crc32c(op->crc, p, n);
		op->progress += n;
	}
	if (!list_empty(&s->bulk_recv) && list_empty(&s->arrived) && s->ended)
		bulk_fail(s, s->status < 0 ? s->status : -ECONNRESET);
	room_was_made(s);
}

/* ---- arrival ---- */

static void deliver(struct stream *s, struct chunk *c)
{
	static const char *const said[] = { "gets", "gets the end from", "gets a reset from" };

	if (s->closed || s->env->dead || is_broken(s)) {
		bool answers = !s->env->silent; /* with a reset, if it is for nobody; else the window fills */

		s->held -= answers ? c->len : 0;
		if (c->kind == CHUNK_BYTES && answers && !is_broken(s))
			cut(s->peer);
		chunk_free(c);
		return;
	}
	if (c->len && s->tcp && fault_here(s->env, FAULT_WIRE_FLIP, "recv from", peer_name(s)))
		c->bytes[world_random(s->world, c->len)] ^= (uint8_t)(1u << world_random(s->world, 8));
	world_tell(s->world, &s->env->env, "%s %zu bytes on s%" PRIu64 " from %s x=%016" PRIx64 "%s", said[c->kind],
		   c->len, s->id, peer_name(s), hash64(c->bytes, c->len, 0), c->arena ? " with an arena" : "");
	if (c->kind == CHUNK_BYTES) {
		list_append(&s->arrived, &c->link);
	} else {
		s->ended = true;
		if (c->kind == CHUNK_RESET)
			stream_fail(s, -ECONNRESET);
		chunk_free(c);
	}
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
		list_remove(&c->link);
		deliver(s, c);
	}
}

/* TCP sends again what was lost: soon after the silence, each stream in its own time. */
void stream_silence_ended(struct world *w)
{
	list_each(node, &w->streams) {
		struct stream *s = list_entry(node, struct stream, link);

		if (s->tcp && !list_empty(&s->flying) && !s->arrival.slot)
			arm(s, &s->arrival, w->now_ns + world_random(w, NS_PER_S / 2));
	}
}

/* ---- connecting ---- */

static void call_ready(struct task *task)
{
	struct stream *s = container_of(task, struct stream, ready);

	if (!s->closed && s->events.ready)
		s->events.ready(s->events.arg);
}

static struct stream *stream_new(struct sim_env *e, const char *address, const struct stream_events *events)
{
	struct stream *s = must_alloc(sizeof(*s));
	struct list *heads[] = { &s->backlog, &s->pending,   &s->flying,   &s->arrived,
				 &s->arenas,  &s->bulk_send, &s->bulk_recv };

	s->magic = STREAM_MAGIC;
	s->env = e;
	s->world = e->world;
	s->id = ++e->world->serial;
	s->tcp = strncmp(address, "tcp:", 4) == 0;
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

/* The listener at @address, a living one first; a dead env's shows that its machine is silent. */
static struct stream *find_listener(struct world *w, const char *address)
{
	struct stream *dead = NULL;

	list_each(node, &w->streams) {
		struct stream *s = list_entry(node, struct stream, link);

		if (!s->listening || s->closed || strcmp(s->address, address) != 0)
			continue;
		if (!s->env->dead)
			return s;
		dead = s->env->silent ? s : dead;
	}
	return dead;
}

static int op_listen(struct env *env, const char *address, const struct stream_events *events, struct stream **ret,
		     struct error *err)
{
	struct sim_env *e = sim_env(env);
	char chosen[256];
	size_t len = strlen(address);

	CHECK(!in_job());
	if (e->dead)
		return error_set(err, -ESHUTDOWN, "%s is shut down", e->name);
	if ((strncmp(address, "tcp:", 4) && strncmp(address, "unix:", 5)) || len >= sizeof(chosen) - 8)
		return error_set(err, -EINVAL, "%s: not an address", address);
	memcpy(chosen, address, len + 1);
	if (len > 6 && chosen[0] == 't' && strcmp(chosen + len - 2, ":0") == 0)
		snprintf(chosen + len - 1, 8, "%" PRIu64, FIRST_PORT + ++e->world->serial);
	struct stream *there = find_listener(e->world, chosen);
	if (there && !there->env->dead)
		return error_set(err, -EADDRINUSE, "%s: %s listens there", chosen, there->env->name);

	struct stream *s = stream_new(e, chosen, events);
	s->listening = true;
	world_tell(e->world, env, "listens on %s", chosen);
	*ret = s;
	return 0;
}

static void connected(struct timer *timer)
{
	struct stream *s = container_of(timer, struct stream, timer);

	if (s->closed || s->env->dead || s->status != -EINPROGRESS)
		return;
	s->status = 0;
	world_tell(s->world, &s->env->env, "is connected to %s on s%" PRIu64, peer_name(s), s->id);
	pump_send(s);
	post_ready(s);
}

static void connect_arrives(struct timer *timer)
{
	struct stream *s = container_of(timer, struct stream, timer);
	struct world *w = s->world;
	struct stream *listener = find_listener(w, s->address);
	bool lost =
		s->tcp && listener &&
		(listener->env->silent || is_silent(w, s->env, listener->env) || is_silent(w, listener->env, s->env));

	if (s->closed || s->env->dead)
		return;
	if (lost && w->now_ns - s->connect_since_ns < SYN_GIVE_UP_NS) {
		arm(s, &s->timer, w->now_ns + SYN_AGAIN_NS);
		return;
	}
	int r = lost ? -ETIMEDOUT : listener && !listener->env->dead ? 0 : s->tcp ? -ECONNREFUSED : -ENOENT;
	if (!r && fault_here(s->env, FAULT_REFUSE, "connect to", s->address))
		r = -ECONNREFUSED;
	if (r) {
		world_tell(w, &s->env->env, "cannot connect to %s: %s", s->address, error_name(r));
		stream_fail(s, r);
		return;
	}
	struct stream *other = stream_new(listener->env, s->address, NULL);
	other->peer = s;
	s->peer = other;
	list_append(&listener->backlog, &other->pending);
	post_ready(listener);
	s->timer.fn = connected;
	arm(s, &s->timer, w->now_ns + draw_delay(s));
}

static int op_connect(struct env *env, const char *address, const struct stream_events *events, struct stream **ret)
{
	struct sim_env *e = sim_env(env);

	CHECK(!in_job());
	if (e->dead)
		return -ESHUTDOWN;
	if (strncmp(address, "tcp:", 4) && strncmp(address, "unix:", 5))
		return -EINVAL;
	struct stream *s = stream_new(e, address, events);
	s->status = -EINPROGRESS;
	s->connect_since_ns = e->world->now_ns;
	s->timer.fn = connect_arrives;
	arm(s, &s->timer, e->world->now_ns + draw_delay(s));
	world_tell(e->world, env, "connects to %s: s%" PRIu64, address, s->id);
	*ret = s;
	return 0;
}

static int op_accept(struct stream *listener, const struct stream_events *events, struct stream **ret)
{
	struct stream *l = check(listener);
	struct list *node = NULL;

	CHECK(l->listening);
	if (l->env->dead)
		return -ESHUTDOWN;
	if (!(node = list_pop(&l->backlog)))
		return -EAGAIN;
	struct stream *s = list_entry(node, struct stream, pending);
	s->events = *events;
	if (!list_empty(&s->arrived) || s->ended)
		post_ready(s);
	world_tell(l->world, &l->env->env, "accepts s%" PRIu64 " from %s", s->id, peer_name(s));
	*ret = s;
	return 0;
}

/* ---- calls on a stream ---- */

static int op_status(struct stream *s)
{
	return check(s)->env->dead ? -ESHUTDOWN : s->status;
}

static ssize_t op_recv(struct stream *s, void *p, size_t len)
{
	if (check(s)->env->dead)
		return -ESHUTDOWN;
	CHECK(!s->listening && list_empty(&s->bulk_recv));
	if (len > 1 && !list_empty(&s->arrived) && fault_here(s->env, FAULT_SPLIT, "recv from", peer_name(s)))
		len = 1 + world_random(s->world, len - 1);
	size_t n = take(s, p, len);
	if (n || !len) {
		room_was_made(s);
		return (ssize_t)n;
	}
	if (s->status < 0)
		return s->status == -EINPROGRESS ? -EAGAIN : s->status;
	return s->ended ? 0 : -EAGAIN;
}

static ssize_t op_send(struct stream *s, const struct iovec *iov, int n, const struct arena *arena)
{
	size_t len = 0;

	if (check(s)->env->dead)
		return -ESHUTDOWN;
	CHECK(!s->listening && list_empty(&s->bulk_send) && !(arena && s->tcp));
	if (s->status < 0)
		return s->status == -EINPROGRESS ? -EAGAIN : s->status;
	for (int i = 0; i < n; i++)
		len += iov[i].iov_len;
	if (!len)
		return 0;
	size_t room = send_room(s);
	if (!room) {
		s->peer->starved = true;
		return -EAGAIN;
	}
	if (fault_here(s->env, FAULT_CUT, "send to", peer_name(s))) {
		cut(s->peer);
		cut(s);
		return -EAGAIN;
	}
	len = len < room ? len : room;
	len = len < PIECE_BYTES ? len : PIECE_BYTES;
	if (len > 1 && fault_here(s->env, FAULT_SPLIT, "send to", peer_name(s)))
		len = 1 + world_random(s->world, len - 1);
	struct chunk *c = launch(s->peer, CHUNK_BYTES, iov, len);
	if (arena) {
		c->arena = arena_find(s->world, arena->id);
		CHECK(c->arena);
		c->arena->refs++;
	}
	world_tell(s->world, &s->env->env, "sends %zu bytes on s%" PRIu64 " to %s x=%016" PRIx64, len, s->id,
		   peer_name(s), hash64(c->bytes, len, 0));
	return (ssize_t)len;
}

static void op_bulk(struct bulk_op *op)
{
	struct stream *s = check(op->stream);

	CHECK(!s->listening && op->span_len <= BULK_CHUNK_BYTES);
	op->progress = 0;
	op->crc = 0;
	list_append(op->send ? &s->bulk_send : &s->bulk_recv, &op->link);
	int r = s->env->dead ? -ESHUTDOWN : s->status == -EINPROGRESS ? 0 : s->status;
	if (!r && op->send && fault_here(s->env, FAULT_CUT, "bulk to", peer_name(s))) {
		cut(s->peer);
		cut(s);
	}
	if (r && (op->send || list_empty(&s->arrived))) {
		bulk_finish(s, op, r);
		return;
	}
	world_tell(s->world, &s->env->env, "bulk %s of %zu+%zu bytes on s%" PRIu64, op->send ? "send" : "receive",
		   op->head_len, op->span_len, s->id);
	if (op->send)
		pump_send(s);
	else
		pump_recv(s);
}

static void op_peer(struct stream *s, uint32_t *ret_uid, int32_t *ret_pid)
{
	bool known = !check(s)->tcp && s->peer;

	*ret_uid = known ? s->peer->env->uid : UINT32_MAX;
	*ret_pid = known ? s->peer->env->pid : 0;
}

static void peer_is_gone(struct timer *timer)
{
	struct stream *s = container_of(timer, struct stream, gone_timer);

	if (s->closed || s->env->dead)
		return;
	world_tell(s->world, &s->env->env, "learns that %s has ended", peer_name(s));
	s->gone(s->gone_arg);
}

static int op_peer_watch(struct stream *s, void (*gone)(void *arg), void *arg)
{
	if (check(s)->env->dead)
		return -ESHUTDOWN;
	if (s->tcp || !s->peer)
		return -ENOTSUP;
	CHECK(!s->gone);
	s->gone = gone;
	s->gone_arg = arg;
	s->gone_timer.fn = peer_is_gone;
	if (s->peer->env->dead)
		arm(s, &s->gone_timer, s->world->now_ns + draw_delay(s));
	return 0;
}

static const char *op_address(struct stream *s)
{
	return check(s)->address;
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

static void drop_received(struct stream *s)
{
	chunks_free(&s->arrived);
	chunks_free(&s->arenas);
	s->held = 0;
	list_each(node, &s->flying)
		s->held += list_entry(node, struct chunk, link)->len;
	if (s->peer)
		room_was_made(s);
}

/* Nobody reads at this end any more: the other one learns it, after what was sent before. */
static void hang_up(struct stream *s)
{
	struct list *node;

	while ((node = list_pop(&s->backlog)))
		hang_up(list_entry(node, struct stream, pending));
	if (s->peer && s->status == 0 && !s->peer->ended)
		(void)launch(s->peer, list_empty(&s->arrived) ? CHUNK_END : CHUNK_RESET, NULL, 0);
}

static void op_close(struct stream *s)
{
	if (!s)
		return;
	check(s);
	task_cancel(&s->ready);
	timer_disarm(s->world->loop, &s->gone_timer);
	timer_disarm(s->world->loop, &s->timer);
	if (!s->env->dead) {
		world_tell(s->world, &s->env->env, "closes s%" PRIu64, s->id);
		list_each(node, &s->backlog)
			list_entry(node, struct stream, pending)->closed = true;
		hang_up(s);
	}
	s->closed = true;
	if (!list_empty(&s->bulk_send) || !list_empty(&s->bulk_recv)) {
		s->timer.fn = closed_at_last;
		arm(s, &s->timer, s->world->now_ns + draw_delay(s));
	}
	drop_received(s);
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
		if (!s->peer || s->closed)
			continue;
		if (orderly || !s->tcp)
			hang_up(s);
		else if (!e->silent)
			cut(s->peer);
		else
			drop_flying(s->peer, e->world->now_ns + TCP_DELAY_NS); /* what had not left the machine */
		if (s->peer->gone && !s->peer->closed)
			arm(s->peer, &s->peer->gone_timer, e->world->now_ns + draw_delay(s));
	}
}

/* The machine is up again and knows nothing of its streams: whoever sent to it in vain hears so. */
void stream_env_returned(struct sim_env *e)
{
	list_each(node, &e->world->streams) {
		struct stream *s = list_entry(node, struct stream, link);

		if (s->env == e && s->peer && s->held)
			cut(s->peer);
	}
}

void world_cut(struct world *w, const char *a, const char *b)
{
	world_tell(w, NULL, "what connects %s and %s is cut", a, b);
	list_each(node, &w->streams) {
		struct stream *s = list_entry(node, struct stream, link);

		if (!s->peer || s->closed || (strcmp(a, "*") && strcmp(a, s->env->name)) ||
		    (strcmp(b, "*") && strcmp(b, s->peer->env->name)))
			continue;
		fault_count(w, FAULT_CUT);
		cut(s->peer);
		cut(s);
	}
}

int sim_take_arena(struct stream *s, struct arena *ret)
{
	if (list_empty(&check(s)->arenas))
		return -EAGAIN;
	struct chunk *c = list_entry(s->arenas.next, struct chunk, link);
	struct sim_arena *a = c->arena;

	c->arena = NULL;
	chunk_free(c);
	*ret = (struct arena){ a->ptr, a->size, a->id, -1 };
	return 0;
}

unsigned stream_count(const struct world *w, const struct sim_env *env)
{
	unsigned n = 0;

	list_each(node, &w->streams) {
		struct stream *s = list_entry(node, struct stream, link);

		n += !s->closed && list_empty(&s->pending) && (!env || s->env == env);
	}
	return n;
}

void stream_free_all(struct world *w)
{
	list_each(node, &w->streams) {
		struct stream *s = list_entry(node, struct stream, link);

		bulk_fail(s, -ESHUTDOWN);
		timer_disarm(w->loop, &s->timer);
		timer_disarm(w->loop, &s->arrival);
		timer_disarm(w->loop, &s->gone_timer);
		task_cancel(&s->ready);
		chunks_free(&s->flying);
		chunks_free(&s->arrived);
		chunks_free(&s->arenas);
		free(s->address);
		free(s);
	}
	list_init(&w->streams);
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
