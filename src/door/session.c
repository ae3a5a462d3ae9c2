/*
 * door/session.c: one connection of one process, from accept to the last thing that it held.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/counter.h"
#include "base/log.h"
#include "door/inside.h"

#define LOOK_MS 60000 /* a session's fiber waits for its end in steps of this */

/* ---- the end ---------------------------------------------------------------------------------------------------------------- */

/* @conn is closed already, or closes when its last words are sent. */
static void session_leave(struct session *session, const char *format, va_list args)
{
	vsnprintf(session->words, sizeof(session->words), format, args);
	logm(LOG_DEBUG, "session.end", "pid=%d words=\"%s\"", (int)session->pid, session->words);
	session->gone = true;
	timer_disarm(session->door->env->loop, &session->timer);
	nursery_cancel(&session->nursery);
	wake_all(&session->changed);
}

void session_end(struct session *session, const char *format, ...)
{
	va_list args;

	if (session->gone)
		return;
	net_close(TAKE(session->conn));
	va_start(args, format);
	session_leave(session, format, args);
	va_end(args);
}

void door_refused(const struct session *session, enum counter reason, const char *words)
{
	count(reason, 1);
	logm(LOG_WARN, "client.refused", "tenant=%s pid=%d uid=%u reason=%s words=\"%s\"", session->door->tenant,
	     (int)session->pid, session->uid, counter_label(reason), words);
}

int session_lacks(const struct session *session, const char *what, uint64_t number, struct error *e)
{
	struct error words;

	error_set(&words, -ENOENT, "this session has no %s %" PRIu64, what, number);
	door_refused(session, COUNT_CLIENT_STRANGE, words.text);
	return error_set(e, -ENOENT, "%s", words.text);
}

int session_is_full(const struct session *session, const char *of_what, unsigned most, struct error *e)
{
	struct error words;

	error_set(&words, -EBUSY, "one session has at most %u %s", most, of_what);
	door_refused(session, COUNT_CLIENT_LIMIT, words.text);
	return error_set(e, -EBUSY, "%s", words.text);
}

void session_expel(struct session *session, enum counter reason, const char *format, ...)
{
	va_list args;

	if (session->gone)
		return;
	net_close(TAKE(session->conn));
	va_start(args, format);
	session_leave(session, format, args);
	va_end(args);
	door_refused(session, reason, session->words);
}

/* After a failed HELLO: the words have to arrive. */
static void session_refuse(struct session *session, const char *format, ...)
{
	va_list args;

	if (session->gone)
		return;
	net_close_when_sent(TAKE(session->conn));
	va_start(args, format);
	session_leave(session, format, args);
	va_end(args);
}

static void user_put(struct door_user *user)
{
	if (!user || --user->n_sessions)
		return;
	list_remove(&user->link);
	free(user);
}

static void session_free(struct session *session)
{
	list_remove(&session->link);
	user_put(session->user);
	session->door->n_sessions--;
	session->door->bytes -= session->joiner.bytes;
	body_joiner_fini(&session->joiner);
	map_fini(&session->ranks.map);
	map_fini(&session->versions.map);
	map_fini(&session->loads.map);
	free(session);
}

/* A session's life, from its end on: requests unwind, then loads, ranks and versions go. */
static int session_run(void *arg)
{
	struct session *session = arg;

	while (!session->gone)
		wait_at_shielded(&session->changed, env_in_ms(session->door->env, LOOK_MS));
	nursery_fini(&session->nursery);
	ranks_fini(session);
	names_fini(session);
	session_free(session);
	return 0;
}

/* ---- what it is sent ---------------------------------------------------------------------------------------------------------- */

struct session *session_largest(struct door_native *door, uint64_t (*holds)(const struct session *session),
				uint64_t *ret_leaving)
{
	struct session *largest = NULL;

	*ret_leaving = 0;
	list_each(node, &door->users)
		list_entry(node, struct door_user, link)->holds = 0;
	list_each(node, &door->sessions) {
		struct session *session = list_entry(node, struct session, link);

		if (session->gone)
			*ret_leaving += holds(session);
		else
			session->user->holds += holds(session);
	}
	list_each(node, &door->sessions) {
		struct session *session = list_entry(node, struct session, link);

		if (session->gone)
			continue;
		if (!largest || session->user->holds > largest->user->holds ||
		    (session->user == largest->user && holds(session) > holds(largest)))
			largest = session;
	}
	return largest;
}

static uint64_t unread_of(const struct session *session)
{
	return session->unread + (session->gone ? 0 : net_queued(session->conn));
}

/* For what those still hold that have ended nobody gives way: they unwind by themselves. */
static void make_them_read(struct door_native *door)
{
	uint64_t leaving;
	struct session *largest = session_largest(door, unread_of, &leaving);

	if (largest && door->unread - leaving > DOOR_ANSWERS_MAX)
		session_expel(largest, COUNT_CLIENT_DEAF,
			      "its process %d had the most that it did not read, and all together had too much",
			      (int)largest->pid);
}

int session_send(struct session *session, const struct frame_head *head, struct view body, const struct arena *arena)
{
	if (session->gone)
		return -ENOTCONN;
	int r = net_send(session->conn, head, body, arena);
	if (!r && session->door->unread > DOOR_ANSWERS_MAX)
		make_them_read(session->door);
	return r;
}

void session_push(void *arg, enum msg_type type, uint64_t number, struct view body)
{
	struct session *session = arg;
	struct frame_head head = { .type = (uint16_t)type, .request = number };
	int r = 0;

	if (!body.len) {
		session_end(session, "its session was ended: no memory for what its process is to be told");
		return;
	}
	do {
		struct view piece = body_cut(&head, &body);

		if (!session->gone)
			r = session_send(session, &head, piece, NULL);
	} while (!r && body.len);
	if (r == -ENOBUFS)
		session_expel(session, COUNT_CLIENT_DEAF, "its process %d does not read what it is told",
			      (int)session->pid);
	else if (r && r != -ENOTCONN) /* the connection's end is told by itself */
		session_end(session, "its session was ended: %s", error_meaning(r));
}

static int share_arena(struct session *session, const struct arena *arena, bool writable)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	const struct msg_arena m = { .arena = arena->id, .bytes = arena->size, .writable = writable };
	const struct frame_head head = { .type = MSG_ARENA, .request = arena->id };
	int r = msg_arena_encode(&m, &body);

	return r ? r : session_send(session, &head, view_buf(&body), arena);
}

/* ---- HELLO ---------------------------------------------------------------------------------------------------------------------- */

static bool may_enter(const struct session *session)
{
	const struct door_native_options *options = &session->door->options;

	for (unsigned i = 0; i < options->n_users; i++)
		if (options->users[i] == session->uid)
			return true;
	return !options->n_users;
}

bool session_is_admin(const struct session *session)
{
	const struct door_native_options *options = &session->door->options;

	return options->alone || !session->uid || session->uid == options->admin;
}

static int hello_check(const struct session *session, const struct msg_hello *m, struct error *e)
{
	if (m->major_min > FRAME_MAJOR || m->major_max < FRAME_MAJOR_LEAST)
		return error_set(e, -ERR_EVERSION,
				 "this daemon speaks protocols %d to %d, you speak %" PRIu32 " to %" PRIu32,
				 FRAME_MAJOR_LEAST, FRAME_MAJOR, m->major_min, m->major_max);
	if (!may_enter(session))
		return error_set(e, -EACCES, "user %u is not one of those who may use the socket of tenant %s",
				 session->uid, session->door->tenant);
	if (m->kind)
		return error_set(e, -EPROTO, "HELLO of kind %u: here clients are spoken to", m->kind);
	return 0;
}

static int hello_answer(struct session *session, uint64_t request)
{
	const struct cluster *cluster = session->door->options.cluster;
	struct pool *pool = store_pool(session->door->options.store);
	const struct arena *capture = pool_arena(pool, POOL_CAPTURE), *read = pool_arena(pool, POOL_READ);
	_cleanup_(buf_fini) struct buf body = { 0 };
	const struct msg_hello_reply m = {
		.major = FRAME_MAJOR,
		.cluster = view_str(cluster_id(cluster)),
		.generation = cluster_generation(cluster),
		.node = view_str(cluster_node(cluster)),
		.incarnation = cluster_incarnation(cluster),
	};
	const struct frame_head head = { .type = MSG_HELLO, .flags = FRAME_REPLY, .request = request };
	int r = msg_hello_reply_encode(&m, &body);

	if (!r)
		r = session_send(session, &head, view_buf(&body), NULL);
	if (!r)
		r = share_arena(session, capture, true);
	return r ? r : share_arena(session, read, false);
}

static void on_hello(struct session *session, const struct frame_head *head, struct view body)
{
	struct error e = { 0 };
	struct msg_hello m;
	int r = 0;

	if (head->type != MSG_HELLO || (head->flags & FRAME_MORE) || msg_hello_decode(body, &m))
		r = error_set(&e, -EPROTO, "a session begins with HELLO");
	if (!r)
		r = hello_check(session, &m, &e);
	if (r) {
		door_refused(session,
			     r == -ERR_EVERSION ? COUNT_CLIENT_VERSION :
			     r == -EACCES	? COUNT_CLIENT_USER :
						  COUNT_CLIENT_HELLO,
			     e.text);
		if (serve_failure(session, head, r, e.text))
			session_refuse(session, "its session was refused: %s", e.text);
		return;
	}
	session->greeted = true;
	net_count_queue(session->conn, &session->door->unread);
	net_limit_body(session->conn, FRAME_BODY_MAX);
	timer_disarm(session->door->env->loop, &session->timer);
	r = hello_answer(session, head->request);
	if (r)
		session_end(session, "its session was ended: %s", error_meaning(r));
}

/* ---- events ----------------------------------------------------------------------------------------------------------------------- */

static void on_frame(void *arg, const struct frame_head *head, struct view body)
{
	struct session *session = arg;

	if (head->flags & FRAME_REPLY)
		session_expel(session, COUNT_CLIENT_ORDER, "its process %d sent an answer that nobody asked for",
			      (int)session->pid);
	else if (!session->greeted)
		on_hello(session, head, body);
	else
		serve_frame(session, head, body);
}

static void on_process_end(void *arg)
{
	struct session *session = arg;

	session_end(session, "its process %d ended", (int)session->pid);
}

/* The connection ended. A moment's patience tells whether the process did: its files are closed before its end shows. */
static void on_down(void *arg, int reason, const char *words)
{
	struct session *session = arg;
	struct env *env = session->door->env;

	session->hung_up = true;
	nursery_cancel(&session->nursery);
	if (reason == -ERR_EVERSION)
		session_expel(session, COUNT_CLIENT_VERSION, "its session was ended: %s", words);
	else if (reason == -EPROTO || reason == -EBADMSG)
		session_expel(session, COUNT_CLIENT_GARBAGE, "its session was ended: %s", words);
	else if (reason != -ECONNRESET)
		session_end(session, "its session was ended: %s", words);
	else if (timer_arm(env->loop, &session->timer, env_in_ms(env, LAST_SIGN_MS)))
		session_end(session, "it closed its session");
}

static void on_timer(struct timer *timer)
{
	struct session *session = container_of(timer, struct session, timer);

	if (session->hung_up)
		session_end(session, "it closed its session");
	else
		session_expel(session, COUNT_CLIENT_SILENT, "its process %d did not say HELLO", (int)session->pid);
}

/* ---- the beginning ------------------------------------------------------------------------------------------------------------------ */

static struct door_user *user_find(struct door_native *door, uint32_t uid)
{
	list_each(node, &door->users) {
		struct door_user *user = list_entry(node, struct door_user, link);

		if (user->uid == uid)
			return user;
	}
	return NULL;
}

/* Counts one session more. NULL: no memory. */
static struct door_user *user_get(struct door_native *door, uint32_t uid)
{
	struct door_user *user = user_find(door, uid);

	if (!user) {
		user = calloc(1, sizeof(*user));
		if (!user)
			return NULL;
		user->uid = uid;
		list_append(&door->users, &user->link);
	}
	user->n_sessions++;
	return user;
}

/* A place, too, is kept for those who have few, so that no crowd of one user keeps another's clients out. */
static bool has_place(struct door_native *door, struct net_conn *conn)
{
	uint32_t uid;
	int32_t pid;

	net_peer(conn, &uid, &pid);
	const struct door_user *user = user_find(door, uid);
	if (door->stopping || door->n_sessions >= DOOR_SESSIONS_MAX)
		return false;
	return door->n_sessions < DOOR_SESSIONS_SHARED_MAX || !user || user->n_sessions < DOOR_SESSIONS_FEW;
}

static struct session *session_new(struct door_native *door, struct net_conn *conn)
{
	struct session *session = calloc(1, sizeof(*session));

	if (!session)
		return NULL;
	session->door = door;
	session->conn = conn;
	session->timer.fn = on_timer;
	waitplace_init(&session->changed);
	nursery_init(&session->nursery, door->env->loop);
	body_joiner_init(&session->joiner, PARTIAL_MAX);
	map_init(&session->ranks.map);
	map_init(&session->versions.map);
	map_init(&session->loads.map);
	net_peer(conn, &session->uid, &session->pid);
	session->user = user_get(door, session->uid);
	list_append(&door->sessions, &session->link);
	door->n_sessions++;
	if (session->user && !fiber_start(&door->nursery, "session", session_run, session))
		return session;
	session_free(session);
	return NULL;
}

void session_accepted(void *arg, struct net_conn *conn)
{
	struct door_native *door = arg;
	struct session *session = NULL;

	if (has_place(door, conn))
		session = session_new(door, conn);
	if (!session) {
		count(COUNT_CLIENT_LIMIT, 1);
		net_close(conn);
		return;
	}
	const struct net_events events = { .frame = on_frame, .down = on_down, .arg = session };
	net_limit_body(conn, HELLO_BODY_MAX);
	net_refuse_bulk(conn);
	net_read_ahead(conn);
	net_adopt(conn, &events);
	int r = net_peer_watch(conn, on_process_end, session);
	if (!r)
		r = timer_arm(door->env->loop, &session->timer, env_in_ms(door->env, HELLO_MS));
	if (r)
		session_end(session, "its session was ended: %s", error_meaning(r));
}
