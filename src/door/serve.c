/*
 * door/serve.c: a request from its frame to its answer.
 */
#include <errno.h>
#include <stdlib.h>

#include "base/check.h"
#include "door/inside.h"

#define DEFAULT_MS 60000 /* for a request that names no deadline */

/* ---- answers -------------------------------------------------------------------------------------------------------------- */

/* One frame, waiting for room in the queue until the deadline. */
static int send_frame(struct session *session, const struct frame_head *head, struct view piece, uint64_t deadline_ns)
{
	struct env *env = session->door->env;
	uint64_t patience_ns = env_in_ms(env, ANSWER_SEND_MS);

	if (patience_ns < deadline_ns)
		deadline_ns = patience_ns;

	for (;;) {
		if (session->gone)
			return -ENOTCONN;
		int r = session_send(session, head, piece, NULL);
		if (r != -ENOBUFS)
			return r;
		if (env_now(env) >= deadline_ns)
			return -ETIMEDOUT;
		r = fiber_sleep_until(env_in_ms(env, SEND_AGAIN_MS));
		if (r)
			return r;
	}
}

/* The session ends with an answer that could not be sent, by @r. That of a connection is told by itself. */
static void answer_sent(struct session *session, int r)
{
	if (r == -ENOBUFS || r == -ETIMEDOUT)
		session_expel(session, COUNT_CLIENT_DEAF, "its process %d does not read what it asked for",
			      (int)session->pid);
	else if (r && r != -ENOTCONN && r != -ECANCELED)
		session_end(session, "its session was ended: an answer could not be sent: %s", error_meaning(r));
}

static void answer(struct request *request, int result, const char *words, struct buf *body)
{
	struct session *session = request->session;
	struct frame_head head = {
		.type = (uint16_t)request->type,
		.flags = FRAME_REPLY,
		.request = request->number,
	};
	int r = 0;

	if (result < 0) {
		head.flags |= FRAME_FAILED;
		body->len = 0;
		r = body_put_failure(body, result, *words ? words : error_meaning(result));
	}
	struct view rest = view_buf(body);
	uint64_t unread = rest.len;
	session->unread += unread;
	session->door->unread += unread;
	do {
		struct view piece = body_cut(&head, &rest);

		if (!r)
			r = send_frame(session, &head, piece, request->deadline_ns);
	} while (!r && rest.len);
	session->unread -= unread;
	session->door->unread -= unread;
	answer_sent(session, r);
}

bool serve_failure(struct session *session, const struct frame_head *head, int code, const char *words)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	const struct frame_head reply = {
		.type = head->type,
		.flags = FRAME_REPLY | FRAME_FAILED,
		.request = head->request,
	};
	int r = body_put_failure(&body, code, words);

	if (!r)
		r = session_send(session, &reply, view_buf(&body), NULL);
	answer_sent(session, r);
	return !r;
}

static void answer_ping(struct session *session, uint64_t number)
{
	const struct frame_head head = { .type = MSG_PING, .flags = FRAME_REPLY, .request = number };

	answer_sent(session, session_send(session, &head, (struct view){ 0 }, NULL));
}

/* ---- requests ------------------------------------------------------------------------------------------------------------- */

int request_malformed(const struct request *request, struct error *e)
{
	return error_set(e, -EPROTO, "a malformed %s", msg_type_name(request->type));
}

/* Served also while the daemon is not ready. */
static bool is_early(enum msg_type type)
{
	return type == MSG_STATUS || type == MSG_TRACE || type == MSG_REBUILD;
}

/* Not waited for by a client, which therefore does not notice a refusal. */
static bool is_tell(enum msg_type type)
{
	return type == MSG_CANCEL || type == MSG_LEAVE || type == MSG_CLOSE || type == MSG_FORGO;
}

static handler_fn handler_of(enum msg_type type)
{
	handler_fn handler = ranks_handler(type);

	if (!handler)
		handler = names_handler(type);
	return handler ? handler : seen_handler(type);
}

static int handle(struct request *request, struct buf *body, struct error *e)
{
	struct session *session = request->session;
	const struct door_native_options *options = &session->door->options;
	int r = 0;

	if (options->ready && !is_early(request->type))
		r = options->ready(options->arg, e);
	if (!r)
		r = handler_of(request->type)(session, request, body, e);
	if (!r && body->len > BODY_MAX)
		r = error_set(e, -E2BIG, "an answer of %zu bytes to %s", body->len, msg_type_name(request->type));
	CHECK(r <= 0);
	return r;
}

static struct door_native *first_of(struct door_native *door)
{
	return door->options.first ? door->options.first : door;
}

static int request_run(void *arg)
{
	struct request *request = arg;
	struct session *session = request->session;
	_cleanup_(buf_fini) struct buf body = { 0 };
	struct error e = { 0 };

	int r = handle(request, &body, &e);
	if (r == -EPROTO)
		door_refused(session, COUNT_CLIENT_BODY, e.text);
	answer(request, r, e.text, &body);
	session->n_requests--;
	first_of(session->door)->n_requests--;
	session->request_bytes -= request->body.len;
	session->door->bytes -= request->body.len;
	buf_fini(&request->body);
	free(request);
	return 0;
}

/* ---- room -------------------------------------------------------------------------------------------------------------------- */

static uint64_t bytes_of(const struct session *session)
{
	return session->request_bytes + session->joiner.bytes;
}

/*
 * Whoever holds the most gives way, so that one client alone cannot keep the others from being heard. For what those hold that have
 * ended nobody else does: they unwind by themselves. They may hold as much again as those who are there, and no more.
 */
static void make_room(struct door_native *door, size_t bytes)
{
	uint64_t leaving;
	struct session *largest = session_largest(door, bytes_of, &leaving);

	leaving = leaving < DOOR_BYTES_MAX ? leaving : DOOR_BYTES_MAX;
	if (largest && door->bytes - leaving + bytes > DOOR_BYTES_MAX)
		session_expel(largest, COUNT_CLIENT_LIMIT,
			      "its process %d had the most bytes of requests under way, and all together were too many",
			      (int)largest->pid);
}

/* Such a request ends by itself, or ends what others have begun. */
static bool is_short(enum msg_type type)
{
	return type == MSG_FILLED || type == MSG_ITEMS || type == MSG_CANCEL || type == MSG_LEAVE || type == MSG_CLOSE;
}

static uint64_t fibers_of(const struct session *session)
{
	return session->n_requests + session->ranks.map.n + LOAD_FIBERS * session->loads.map.n;
}

static uint64_t fibers_of_user(const struct door_native *first, uint32_t uid)
{
	uint64_t n = 0;

	list_each(sibling, (struct list *)&first->siblings) {
		const struct door_native *door = list_entry(sibling, struct door_native, sibling);

		list_each(node, (struct list *)&door->sessions) {
			const struct session *session = list_entry(node, struct session, link);

			n += session->uid == uid ? fibers_of(session) : 0;
		}
	}
	return n;
}

/*
 * A crowd that waits for what never comes must not take all fibers of the loop: nobody could connect, nor the daemon itself go on. A
 * session may hold a share of those that are left, and a few as long as there are any for crowds; a user who has but a few
 * as long as there are any for clients. A rank is counted for its group's lease, which may be kept here.
 */
static bool may_take_fibers(const struct session *session)
{
	const struct door_native *first = first_of(session->door);
	uint64_t alive = fibers_alive(first->env->loop), soon = (uint64_t)REQUEST_FIBERS * first->n_requests;
	uint64_t taken = alive > soon ? alive : soon;
	uint64_t left = taken < FIBERS_SHARED_MAX ? FIBERS_SHARED_MAX - taken : 0;

	if (fibers_of(session) < left / FIBERS_SHARE)
		return true;
	if (fibers_of(session) >= FIBERS_FEW)
		return false;
	return taken < FIBERS_CROWD_MAX ||
	       (alive < FIBERS_CLIENT_MAX && fibers_of_user(first, session->uid) < FIBERS_FEW);
}

/* Takes the bytes of @body over. */
static int request_start(struct session *session, const struct frame_head *head, struct buf *body, struct error *e)
{
	unsigned most = is_tell(head->type) ? DOOR_TELLS_MAX : DOOR_CALLS_MAX;

	if (session->n_requests >= most || session->request_bytes + body->len > REQUEST_BYTES_MAX)
		return error_set(e, -EBUSY, "%u requests of this session are under way already", session->n_requests);
	if (!is_short(head->type) && !may_take_fibers(session))
		return error_set(
			e, -EBUSY,
			"this daemon serves so much that %u requests, %zu ranks and %zu loads of one session are too many",
			session->n_requests, session->ranks.map.n, session->loads.map.n);
	struct request *request = malloc(sizeof(*request));
	if (!request)
		return error_set(e, -ENOMEM, "no memory to serve a request");
	*request = (struct request){
		.session = session,
		.type = head->type,
		.number = head->request,
		.deadline_ns = env_in_ms(session->door->env, head->deadline_ms ? head->deadline_ms : DEFAULT_MS),
		.body = *body,
	};
	int r = fiber_start(&session->nursery, msg_type_name(head->type), request_run, request);
	if (r) {
		free(request);
		return error_set(e, r == -EAGAIN ? -EBUSY : r, "cannot serve one request more: %s", error_meaning(r));
	}
	session->n_requests++;
	first_of(session->door)->n_requests++;
	session->request_bytes += body->len;
	session->door->bytes += body->len;
	*body = (struct buf){ 0 };
	return 0;
}

/* As body_join(), with the bytes of all sessions bounded. -ENOTCONN: this one gave way. */
static int take_piece(struct session *session, const struct frame_head *head, struct view piece, struct buf *body)
{
	struct door_native *door = session->door;
	size_t before = session->joiner.bytes;

	if (door->bytes + piece.len > DOOR_BYTES_MAX)
		make_room(door, piece.len);
	if (session->gone)
		return -ENOTCONN;
	int r = body_join(&session->joiner, head, BODY_FOREVER, piece, body);
	door->bytes += session->joiner.bytes;
	door->bytes -= before;
	return r;
}

/* It answers, unless its sender does not look: then the session is over. */
static void refuse_request(struct session *session, const struct frame_head *head, int r, const struct error *e)
{
	enum counter reason = r == -ENOSYS ? COUNT_CLIENT_TYPE : COUNT_CLIENT_LIMIT;

	if (is_tell(head->type)) {
		session_expel(session, reason, "its session was ended: %s", e->text);
		return;
	}
	door_refused(session, reason, e->text);
	serve_failure(session, head, r, e->text);
}

void serve_frame(struct session *session, const struct frame_head *head, struct view piece)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	struct error e = { 0 };

	if (head->type == MSG_PING) {
		answer_ping(session, head->request);
		return;
	}
	int r = take_piece(session, head, piece, &body);
	if (r == 1 || r == -ENOTCONN)
		return;
	if (r == -EPROTO) {
		session_expel(session, COUNT_CLIENT_ORDER, "its process %d sent too many messages in parts",
			      (int)session->pid);
		return;
	}
	if (r)
		error_set(&e, r, "a %s in parts: %s", msg_type_name(head->type), error_meaning(r));
	else if (head->type == MSG_RELEASE)
		ranks_release(session, view_buf(&body));
	else if (!handler_of(head->type))
		r = error_set(&e, -ENOSYS, "this daemon does not serve messages of type %u (%s) from clients",
			      head->type, msg_type_name(head->type));
	else
		r = request_start(session, head, &body, &e);
	if (r)
		refuse_request(session, head, r, &e);
}
