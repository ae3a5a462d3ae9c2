/*
 * door/session.c: one client's connection from its HELLO to its end.
 */
#include "door/session.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

#define REQUEST_MS 600000 /* for a request that names no deadline */

struct view session_tenant(const struct session *session)
{
	return view_str(session->door->options.tenant);
}

struct view number_key(const uint64_t *number)
{
	return view_of(number, sizeof(*number));
}

int handle_new(struct session *session, struct map *map, void *value, uint64_t *ret)
{
	uint64_t number = *ret ? *ret : ++session->handles;
	int r = map->n < SESSION_HANDLES_MAX ? map_put(map, number_key(&number), value) : -EMFILE;

	if (!r)
		*ret = number;
	return r;
}

/* ---- sending ---------------------------------------------------------------------------------------------------------- */

void session_send(struct session *session, const struct frame_head *head, struct view body)
{
	struct frame_head part = *head;
	bool more = true;

	while (more && session->conn) {
		struct view piece = body_cut(&part, &body);

		more = part.flags & FRAME_MORE;
		if (net_send(session->conn, &part, piece, NULL)) {
			/* later: who sends may be in the middle of telling all ranks */
			loop_post(session->door->env->loop, &session->deaf);
			return;
		}
	}
}

static void on_deaf(struct task *task)
{
	session_end(container_of(task, struct session, deaf), "it did not read what it was sent");
}

static void answer_failure(struct session *session, const struct frame_head *request, int code, const struct error *e)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	struct frame_head head = { .type = request->type,
				   .request = request->request,
				   .flags = FRAME_REPLY | FRAME_FAILED };

	if (request->request && !body_put_failure(&body, code, e && e->code ? e->text : error_meaning(code)))
		session_send(session, &head, view_buf(&body));
}

static void push_event(void *arg, enum msg_type type, uint64_t number, struct view body)
{
	struct session *session = arg;
	struct frame_head head = { .type = type, .request = number };

	session_send(session, &head, body);
}

const struct rank_events *session_events(struct session *session, struct rank_events *events)
{
	*events = (struct rank_events){ .push = push_event, .arg = session };
	return events;
}

static int push_arena(struct session *session, enum pool_kind kind)
{
	const struct arena *arena = pool_arena(store_pool(session->door->options.store), kind);
	_cleanup_(buf_fini) struct buf body = { 0 };
	struct msg_arena m = { .arena = arena->id, .bytes = arena->size, .writable = kind == POOL_CAPTURE };
	struct frame_head head = { .type = MSG_ARENA, .flags = FRAME_ARENA };
	int r = msg_arena_encode(&m, &body);

	return r ? r : net_send(session->conn, &head, view_buf(&body), arena);
}

/* ---- HELLO ------------------------------------------------------------------------------------------------------------- */

static int greet(struct session *session, const struct frame_head *request, struct view body, struct error *e)
{
	const struct door_native_options *options = &session->door->options;
	_cleanup_(buf_fini) struct buf answer = { 0 };
	struct frame_head head = { .type = MSG_HELLO, .request = request->request, .flags = FRAME_REPLY };
	struct msg_hello hello;
	struct pool_stats stats;

	if (request->type != MSG_HELLO || msg_hello_decode(body, &hello) || hello.kind != 0)
		return error_set(e, -EPROTO, "a session begins with a client's HELLO");
	if (hello.major_max < FRAME_MAJOR_LEAST || hello.major_min > FRAME_MAJOR)
		return error_set(e, -ERR_EVERSION, "the client speaks protocol %u to %u, this daemon %d to %d",
				 hello.major_min, hello.major_max, FRAME_MAJOR_LEAST, FRAME_MAJOR);
	pool_stats(store_pool(options->store), &stats);
	struct msg_hello_reply reply = { .major = hello.major_max < FRAME_MAJOR ? hello.major_max : FRAME_MAJOR,
					 .cluster = view_str(cluster_id(options->cluster)),
					 .node = view_str(cluster_node(options->cluster)),
					 .incarnation = cluster_incarnation(options->cluster),
					 .pool_bytes = stats.bytes[POOL_CAPTURE] + stats.bytes[POOL_READ] };
	int r = msg_hello_reply_encode(&reply, &answer);
	if (!r)
		r = net_send(session->conn, &head, view_buf(&answer), NULL);
	if (!r)
		r = push_arena(session, POOL_CAPTURE);
	if (!r)
		r = push_arena(session, POOL_READ);
	session->greeted = !r;
	return r;
}

/* ---- requests ---------------------------------------------------------------------------------------------------------- */

static int serve(struct request *request, struct buf *answer, struct error *e)
{
	const struct door_native_options *options = &request->session->door->options;
	uint64_t ms = request->head.deadline_ms ? request->head.deadline_ms : REQUEST_MS;
	request_fn fn = request_find(request->head.type);
	int r;

	if (!fn)
		return error_set(e, -ENOSYS, "this daemon does not know request %u", request->head.type);
	r = request_is_early(request->head.type) ? 0 : options->ready(options->arg, e);
	if (r)
		return r;
	return fn(request, view_buf(&request->body), env_in_ms(request->session->door->env, ms), answer, e);
}

static int run_request(void *arg)
{
	struct request *request = arg;
	struct session *session = request->session;
	_cleanup_(buf_fini) struct buf answer = { 0 };
	struct frame_head head = { .type = request->head.type, .request = request->head.request, .flags = FRAME_REPLY };
	struct error e = { 0 };
	int r = serve(request, &answer, &e);

	if (r && session->conn)
		answer_failure(session, &request->head, r, &e);
	else if (session->conn && request->head.request)
		session_send(session, &head, view_buf(&answer));
	bool broken = r == -EPROTO && session->conn; /* what cannot be read costs the session */
	if (broken)
		session_end(session, e.code ? e.text : "it sent a malformed request");
	buf_fini(&request->body);
	free(request);
	return 0;
}

static int start_request(struct session *session, const struct frame_head *head, struct buf *body)
{
	struct request *request = calloc(1, sizeof(*request));
	int r = request ? 0 : -ENOMEM;

	if (!r && session->requests.n >= SESSION_REQUESTS_MAX)
		r = -EBUSY;
	if (!r) {
		*request = (struct request){ .session = session, .head = *head, .body = *body };
		r = fiber_start(&session->requests, msg_type_name(head->type), run_request, request);
	}
	if (r)
		free(request);
	else
		*body = (struct buf){ 0 };
	return r;
}

static void on_frame(void *arg, const struct frame_head *head, struct view piece)
{
	struct session *session = arg;
	_cleanup_(buf_fini) struct buf body = { 0 };
	struct error e = { 0 };
	int r;

	if (!session->greeted) {
		r = greet(session, head, piece, &e);
		if (r) {
			answer_failure(session, head, r, &e);
			session_end(session, e.code ? e.text : error_meaning(r));
		}
		return;
	}
	r = body_join(&session->joiner, head, piece, &body);
	if (r == 1)
		return;
	if (!r)
		r = start_request(session, head, &body);
	if (r == -EPROTO)
		session_end(session, "it sent too many unfinished requests");
	else if (r)
		answer_failure(session, head, r, NULL);
}

/* ---- the end ------------------------------------------------------------------------------------------------------------ */

static int bury(void *arg)
{
	struct session *session = arg;

	task_cancel(&session->deaf);
	nursery_fini(&session->requests); /* each load's fiber frees its reader */
	for (struct map_slot *s = map_first(&session->versions); s; s = map_next(s))
		version_put(map_value(s));
	/* a rank that was joining when the session ended came too late for session_end() */
	for (struct map_slot *s = map_first(&session->ranks); s; s = map_next(s))
		group_leave(map_value(s), "its session ended while it joined");
	map_fini(&session->versions);
	map_fini(&session->ranks);
	map_fini(&session->loads);
	body_joiner_fini(&session->joiner);
	free(session);
	return 0;
}

void session_end(struct session *session, const char *words)
{
	struct net_conn *conn = session->conn;

	if (!conn)
		return;
	logm(LOG_DEBUG, "session.end", "pid=%" PRIi32 " words=\"%s\"", session->pid, words);
	session->conn = NULL;
	net_close_when_sent(conn);
	for (struct map_slot *s; (s = map_first(&session->ranks));)
		group_leave(map_remove(&session->ranks, map_key(s)), words);
	list_remove(&session->link);
	session->door->n_sessions--;
	nursery_cancel(&session->requests);
	int r = fiber_start(&session->door->burials, "bury", bury, session);
	if (r) /* the memory is lost, nothing else */
		logm(LOG_ERROR, "session.unburied", "pid=%" PRIi32, session->pid);
}

static void on_down(void *arg, int reason, const char *words)
{
	struct session *session = arg;
	char text[128];

	snprintf(text, sizeof(text), "its process %" PRIi32 " closed its session", session->pid);
	session_end(session, text);
}

static void on_gone(void *arg)
{
	struct session *session = arg;
	char text[64];

	snprintf(text, sizeof(text), "its process %" PRIi32 " ended", session->pid);
	session_end(session, text);
}

int session_new(struct door_native *door, struct net_conn *conn)
{
	struct session *session = calloc(1, sizeof(*session));
	struct net_events events = { .frame = on_frame, .down = on_down, .arg = session };
	uint32_t uid;

	if (!session)
		return -ENOMEM;
	session->door = door;
	session->deaf.fn = on_deaf;
	session->conn = conn;
	body_joiner_init(&session->joiner, BODY_MAX);
	map_init(&session->ranks);
	map_init(&session->versions);
	map_init(&session->loads);
	nursery_init(&session->requests, door->env->loop);
	net_peer(conn, &uid, &session->pid);
	int r = net_peer_watch(conn, on_gone, session);
	if (r) {
		free(session);
		return r;
	}
	list_append(&door->sessions, &session->link);
	door->n_sessions++;
	net_adopt(conn, &events);
	return 0;
}
