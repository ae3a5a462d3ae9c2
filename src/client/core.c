#include "client/core.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/inside.h"

#define MOVE(state) (1u << (state))
static const uint8_t moves[CORE_STATES] = {
	[CORE_GREETING] = MOVE(CORE_UP) | MOVE(CORE_LOST),
	[CORE_UP] = MOVE(CORE_LOST),
};

static void core_move(struct core *core, enum core_state to)
{
	CHECK(moves[core->state] & MOVE(to));
	core->state = to;
}

/* ---- futures -------------------------------------------------------------------------------------------------------- */

void core_future_init(struct core_future *future, void (*fn)(struct core_future *future))
{
	*future = (struct core_future){ .fn = fn };
	list_init(&future->link);
}

void core_future_forget(struct core_future *future)
{
	list_remove(&future->link);
	future->fn = NULL;
}

void core_end_future(struct core_future *future, const struct error *e)
{
	CHECK(!future->over);
	list_remove(&future->link);
	future->over = true;
	if (e)
		future->error = *e;
	if (future->fn)
		future->fn(future);
}

void core_end_futures(struct list *futures, const struct error *e)
{
	for (struct list *node; (node = list_pop(futures));)
		core_end_future(list_entry(node, struct core_future, link), e);
}

/* ---- sending ---------------------------------------------------------------------------------------------------------- */

int core_check(const struct core *core, struct error *e)
{
	CHECK_MAGIC(core, CORE_MAGIC);
	return core->state == CORE_LOST ? error_set(e, core->lost.code, "%s", core->lost.text) : 0;
}

static int put_frame(struct buf *out, struct frame_head *head, struct view piece)
{
	uint8_t raw[FRAME_HEAD_BYTES];

	head->major = FRAME_MAJOR;
	head->minor = FRAME_MINOR;
	head->body_bytes = (uint32_t)piece.len;
	head->body_crc = crc32c(0, piece.ptr, piece.len);
	frame_encode(head, raw);
	int r = buf_append(out, raw, sizeof(raw));
	return r ? r : buf_append(out, piece.ptr, piece.len);
}

/* Appends the frames of one message, all or none. */
static int put_message(struct core *core, struct frame_head *head, struct view body, struct error *e)
{
	size_t len = core->out.len;
	int r = core_check(core, e);

	if (r)
		return r;
	if (body.len > BODY_MAX)
		return error_set(e, -E2BIG, "%s of %zu bytes; at most %u can be sent", msg_type_name(head->type),
				 body.len, BODY_MAX);
	if (len - core->out_at + body.len > CORE_OUT_MAX)
		return error_set(e, -ENOBUFS, "the daemon does not read: %zu bytes wait to be sent to it",
				 len - core->out_at);
	do {
		r = put_frame(&core->out, head, body_cut(head, &body));
	} while (!r && body.len);
	if (!r) {
		core->urgent = true;
		return 0;
	}
	core->out.len = len;
	return error_set(e, r, "no memory for a message to the daemon");
}

struct view core_output(const struct core *core)
{
	return view_of(core->out.ptr + core->out_at, core->out.len - core->out_at);
}

bool core_is_urgent(const struct core *core)
{
	return core->urgent;
}

void core_sent(struct core *core, size_t len)
{
	core->out_at += len;
	CHECK(core->out_at <= core->out.len);
	if (core->out_at == core->out.len) {
		core->out.len = core->out_at = 0;
		core->urgent = false;
		if (core->out.cap > OUT_KEPT_MAX)
			buf_fini(&core->out);
	} else if (core->out_at > core->out.len / 2) {
		buf_drop(&core->out, core->out_at);
		core->out_at = 0;
	}
}

int core_ask(struct core *core, struct request *request, enum msg_type type, struct view body, uint32_t deadline_ms,
	     struct error *e)
{
	struct frame_head head = {
		.type = (uint16_t)type,
		.request = ++core->last_request,
		.deadline_ms = deadline_ms,
	};
	int r = put_message(core, &head, body, e);

	if (r)
		return r;
	request->number = head.request;
	request->type = type;
	list_append(&core->requests, &request->link);
	return 0;
}

void core_tell(struct core *core, enum msg_type type, struct view body)
{
	struct frame_head head = {
		.type = (uint16_t)type,
		.request = ++core->last_request,
		.deadline_ms = TELL_MS,
	};
	struct error e = { 0 };

	if (core->state != CORE_LOST && put_message(core, &head, body, &e))
		core_lose(core, e.code, e.text);
}

void core_tell_encoded(struct core *core, enum msg_type type, const struct buf *body, int encoded)
{
	if (encoded)
		core_lose(core, encoded, "no memory for a message to the daemon");
	else
		core_tell(core, type, view_buf(body));
}

void core_tell_later(struct core *core, enum msg_type type, const struct buf *body, int encoded)
{
	bool urgent = core->urgent;

	core_tell_encoded(core, type, body, encoded);
	core->urgent = urgent;
}

/* ---- ends ------------------------------------------------------------------------------------------------------------- */

void core_lose(struct core *core, int code, const char *words)
{
	if (core->state == CORE_LOST)
		return;
	error_set(&core->lost, code, "%s", words);
	core_move(core, CORE_LOST);
	core_end_futures(&core->greeted, &core->lost);
	for (struct list *node; (node = list_pop(&core->requests));) {
		struct request *request = list_entry(node, struct request, link);

		request->done(request, &core->lost, (struct view){ 0 });
	}
	list_each(node, &core->saves)
		save_lose(list_entry(node, struct core_save, link), &core->lost);
	list_each(node, &core->loads)
		load_lose(list_entry(node, struct core_load, link), &core->lost);
}

void core_discard(struct core *core, struct trash *trash, void (*release)(struct trash *trash))
{
	if (trash->free)
		return;
	trash->free = release;
	list_append(&core->trash, &trash->link);
}

static void empty_trash(struct core *core)
{
	for (struct list *node; (node = list_pop(&core->trash));) {
		struct trash *trash = list_entry(node, struct trash, link);

		trash->free(trash);
	}
}

/* ---- receiving ---------------------------------------------------------------------------------------------------------- */

static void on_hello(struct request *request, const struct error *e, struct view body)
{
	struct core *core = container_of(request, struct core, hello);
	struct error failure = { 0 };
	struct msg_hello_reply m;

	if (core->state == CORE_LOST)
		return;
	if (e) {
		core_lose(core, e->code, e->text);
		return;
	}
	if (msg_hello_reply_decode(body, &m)) {
		core_lose(core, -EPROTO, "the daemon's greeting cannot be read");
		return;
	}
	if (m.major < FRAME_MAJOR_LEAST || m.major > FRAME_MAJOR) {
		error_set(&failure, -ERR_EVERSION, "the daemon speaks protocol %" PRIu32 ", this library %d to %d",
			  m.major, FRAME_MAJOR_LEAST, FRAME_MAJOR);
		core_lose(core, failure.code, failure.text);
		return;
	}
	struct view node = view_take(&m.node, CORE_NODE_MAX);
	memcpy(core->node, node.ptr, node.len);
	core->node[node.len] = 0;
	core_move(core, CORE_UP);
	core_end_futures(&core->greeted, NULL);
}

static int take_arena(struct core *core, struct view body, struct error *e)
{
	struct msg_arena m;
	uint8_t *ptr = NULL;

	if (msg_arena_decode(body, &m) || !m.arena || !m.bytes)
		return error_set(e, -EPROTO, "the daemon shares an arena that cannot be read");
	for (unsigned i = 0; i < core->n_arenas; i++)
		if (core->arenas[i].id == m.arena)
			return error_set(e, -EPROTO, "the daemon shares arena %" PRIu64 " twice", m.arena);
	if (core->n_arenas == ARENAS_MAX)
		return error_set(e, -EPROTO, "the daemon shares more than %d arenas", ARENAS_MAX);
	int r = core->events.arena(core->events.arg, m.arena, m.bytes, m.writable, &ptr, e);
	if (r)
		return r;
	core->arenas[core->n_arenas++] =
		(struct shared_arena){ .id = m.arena, .bytes = m.bytes, .writable = m.writable, .ptr = ptr };
	return 0;
}

uint8_t *core_span(const struct core *core, uint64_t arena, uint64_t offset, uint64_t bytes, bool writable)
{
	for (unsigned i = 0; i < core->n_arenas; i++) {
		const struct shared_arena *a = &core->arenas[i];

		if (a->id != arena)
			continue;
		if (offset > a->bytes || bytes > a->bytes - offset || (writable && !a->writable))
			return NULL;
		return a->ptr + offset;
	}
	return NULL;
}

static void answer_ping(struct core *core, uint64_t number)
{
	struct frame_head head = { .type = MSG_PING, .flags = FRAME_REPLY, .request = number };
	struct error e = { 0 };

	if (put_message(core, &head, (struct view){ 0 }, &e))
		core_lose(core, e.code, e.text);
}

static struct request *find_request(struct core *core, uint64_t number)
{
	list_each(node, &core->requests) { /* answers mostly come in order, so it is among the first */
		struct request *request = list_entry(node, struct request, link);

		if (request->number == number)
			return request;
	}
	return NULL;
}

static int take_reply(struct core *core, const struct frame_head *head, struct view piece, struct error *e)
{
	struct request *request = find_request(core, head->request);
	_cleanup_(buf_fini) struct buf body = { 0 };
	struct error failure = { 0 };

	if (!request) /* nobody waits for it */
		return 0;
	if (head->type != request->type)
		return error_set(e, -EPROTO, "the daemon answers %s with %s", msg_type_name(request->type),
				 msg_type_name(head->type));
	int r = body_join(&core->joiner, head, BODY_FOREVER, piece, &body);
	if (r == 1)
		return 0;
	if (r)
		return error_set(e, r, "an answer to %s: %s", msg_type_name(head->type), error_meaning(r));
	list_remove(&request->link);
	if (head->flags & FRAME_FAILED) {
		body_get_failure(view_buf(&body), &failure);
		request->done(request, &failure, (struct view){ 0 });
	} else {
		request->done(request, NULL, view_buf(&body));
	}
	return 0;
}

static int take_push(struct core *core, const struct frame_head *head, struct view piece, struct error *e)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	int r = body_join(&core->joiner, head, BODY_FOREVER, piece, &body);

	if (r == 1)
		return 0;
	if (r)
		return error_set(e, r, "%s: %s", msg_type_name(head->type), error_meaning(r));
	switch (head->type) {
	case MSG_PING:
		answer_ping(core, head->request);
		return 0;
	case MSG_ARENA:
		return take_arena(core, view_buf(&body), e);
	case MSG_GRANT:
		return save_take_grant(core, head->request, view_buf(&body), e);
	case MSG_STAGE:
		return save_take_stage(core, head->request, view_buf(&body), e);
	case MSG_BLOCKS:
		return load_take_blocks(core, head->request, view_buf(&body), e);
	case MSG_LOAD_END:
		return load_take_end(core, head->request, view_buf(&body), e);
	default: /* a newer daemon's news */
		return 0;
	}
}

static int take_frame(struct core *core, const struct frame_head *head, struct view body, struct error *e)
{
	if (crc32c(0, body.ptr, body.len) != head->body_crc)
		return error_set(e, -EPROTO, "the daemon's %s is damaged", msg_type_name(head->type));
	if (core->state == CORE_GREETING && head->type != MSG_HELLO && head->type != MSG_PING)
		return error_set(e, -EPROTO, "the daemon answers HELLO with %s", msg_type_name(head->type));
	if (head->flags & FRAME_REPLY)
		return take_reply(core, head, body, e);
	return take_push(core, head, body, e);
}

/* The frame at the head of @in: 1 when it is not whole yet. */
static int take_next(struct core *core, struct view *in, struct error *e)
{
	struct frame_head head;

	if (in->len < FRAME_HEAD_BYTES)
		return 1;
	int r = frame_decode(in->ptr, &head, e);
	if (r)
		return r;
	if (head.payload_bytes)
		return error_set(e, -EPROTO, "the daemon sends a bulk chunk to a client");
	if (in->len - FRAME_HEAD_BYTES < head.body_bytes)
		return 1;
	view_take(in, FRAME_HEAD_BYTES);
	return take_frame(core, &head, view_take(in, head.body_bytes), e);
}

int core_feed(struct core *core, const void *bytes, size_t len, struct error *e)
{
	struct error failure = { 0 };
	int r = core_check(core, e);

	empty_trash(core);
	if (r)
		return r;
	r = buf_append(&core->in, bytes, len);
	if (r)
		error_set(&failure, r, "no memory for what the daemon says");
	struct view in = view_buf(&core->in);
	while (!r && core->state != CORE_LOST)
		r = take_next(core, &in, &failure);
	if (r < 0)
		core_lose(core, r, failure.text);
	if (core->state == CORE_LOST)
		return core_check(core, e);
	buf_drop(&core->in, core->in.len - in.len);
	return 0;
}

/* ---- work --------------------------------------------------------------------------------------------------------------- */

struct work *core_capture_new(struct core *core)
{
	struct list *node = list_pop(&core->spare);
	struct work *work = node ? list_entry(node, struct work, link) : NULL;

	if (!work)
		return work_new(WORK_CAPTURE, 0);
	core->n_spare--;
	memset(work, 0, sizeof(*work));
	list_init(&work->link);
	return work;
}

/* Some of a save's stay for the next: of small blocks it has many. */
static void core_work_free(struct core *core, struct work *work)
{
	if (work->kind == WORK_CAPTURE && core->n_spare < SPARE_MAX) {
		list_append(&core->spare, &work->link);
		core->n_spare++;
	} else {
		work_free(work);
	}
}

void core_work_put(struct core *core, struct work *work)
{
	list_append(&core->work, &work->link);
	core->work_bytes += work->bytes;
}

unsigned core_work_drop(struct core *core, const void *owner)
{
	unsigned n = 0;

	list_each(node, &core->work) {
		struct work *work = list_entry(node, struct work, link);

		if (work->owner != owner)
			continue;
		list_remove(&work->link);
		core->work_bytes -= work->bytes;
		core_work_free(core, work);
		n++;
	}
	return n;
}

bool core_has_work(const struct core *core)
{
	return !list_empty(&core->work);
}

uint64_t core_work_bytes(const struct core *core)
{
	return core->work_bytes;
}

unsigned core_n_running(const struct core *core)
{
	return core->n_running;
}

struct work *core_work_take(struct core *core)
{
	empty_trash(core);
	struct list *node = list_pop(&core->work);
	if (!node)
		return NULL;

	struct work *work = list_entry(node, struct work, link);
	core->work_bytes -= work->bytes;
	if (work->kind == WORK_CAPTURE)
		save_work_begun(work->owner);
	else
		load_work_begun(work->owner);
	core->n_running++;
	return work;
}

void core_work_done(struct core *core, struct work *work)
{
	CHECK(core->n_running);
	core->n_running--;
	if (work->kind == WORK_CAPTURE)
		save_work_done(work->owner, work);
	else
		load_work_done(work->owner, work);
	core_work_free(core, work);
}

/* ---- figures ---------------------------------------------------------------------------------------------------------- */

static void stats_put(struct core_stats *stats, struct view name, uint64_t value)
{
	size_t i = 0;

	if (!name.len || name.len >= CORE_STAT_NAME_BYTES || memchr(name.ptr, 0, name.len))
		return;
	while (i < stats->n && !view_equal(view_str(stats->stats[i].name), name))
		i++;
	if (i == CORE_STATS_MAX)
		return;
	memcpy(stats->stats[i].name, name.ptr, name.len);
	stats->stats[i].name[name.len] = 0;
	stats->stats[i].value = value;
	if (i == stats->n)
		stats->n++;
}

void core_stats_set(struct core_stats *stats, const char *name, uint64_t value)
{
	stats_put(stats, view_str(name), value);
}

void core_stats_take(struct core_stats *stats, struct list_view list)
{
	struct elem_stat stat;

	while (!elem_stat_next(&list, &stat))
		stats_put(stats, stat.name, stat.value);
}

/* ---- life --------------------------------------------------------------------------------------------------------------- */

static int greet(struct core *core)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	const struct msg_hello m = { .kind = 0, .major_min = FRAME_MAJOR_LEAST, .major_max = FRAME_MAJOR };
	int r = msg_hello_encode(&m, &body);

	core->hello.done = on_hello;
	return r ? r : core_ask(core, &core->hello, MSG_HELLO, view_buf(&body), TELL_MS, NULL);
}

int core_new(const struct core_events *events, struct core **ret)
{
	struct core *core = calloc(1, sizeof(*core));

	if (!core)
		return -ENOMEM;
	core->magic = CORE_MAGIC;
	core->events = *events;
	struct list *const lists[] = { &core->greeted, &core->requests, &core->calls, &core->saves, &core->loads,
				       &core->groups,  &core->trash,	&core->work,  &core->spare };
	for (size_t i = 0; i < ARRAY_LEN(lists); i++)
		list_init(lists[i]);
	body_joiner_init(&core->joiner, PARTIAL_MAX);
	int r = greet(core);
	if (r) {
		core_free(core);
		return r;
	}
	*ret = core;
	return 0;
}

void core_free(struct core *core)
{
	if (!core)
		return;
	CHECK_MAGIC(core, CORE_MAGIC);
	core_lose(core, -ECONNABORTED, "the session is over");
	empty_trash(core);
	CHECK(!core->n_running && list_empty(&core->calls) && list_empty(&core->saves) && list_empty(&core->loads) &&
	      list_empty(&core->groups));
	for (struct list *node; (node = list_pop(&core->spare));)
		work_free(list_entry(node, struct work, link));
	body_joiner_fini(&core->joiner);
	buf_fini(&core->in);
	buf_fini(&core->out);
	core->magic = 0;
	free(core);
}

void core_attach_greeted(struct core *core, struct core_future *future)
{
	if (core->state == CORE_GREETING)
		list_append(&core->greeted, &future->link);
	else
		core_end_future(future, core->state == CORE_LOST ? &core->lost : NULL);
}

const char *core_node(const struct core *core)
{
	return core->node;
}
