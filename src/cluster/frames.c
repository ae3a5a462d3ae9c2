/*
 * cluster/frames.c: bodies of calls and answers as frames, and failures as bodies.
 */
#include "cluster/inside.h"

#include <errno.h>

#include "base/check.h"

#define FAILURE_CODE_MAX 65535

uint32_t deadline_to_ms(struct cluster *cluster, uint64_t deadline_ns)
{
	uint64_t now = env_now(cluster->env);
	uint64_t ms = deadline_ns > now ? (deadline_ns - now + NS_PER_MS - 1) / NS_PER_MS : 1;

	return ms < UINT32_MAX ? (uint32_t)ms : UINT32_MAX;
}

/* One frame, waiting for room in the queue. */
static int frame_send(struct cluster *cluster, struct net_conn *conn, const struct frame_head *head, struct view body,
		      uint64_t deadline_ns, const bool *over)
{
	for (;;) {
		if (*over)
			return -ENOTCONN;
		int r = net_send(conn, head, body, NULL);
		if (r != -ENOBUFS)
			return r;
		uint64_t now = env_now(cluster->env);
		if (now >= deadline_ns)
			return -ETIMEDOUT;
		r = fiber_sleep_until(now + SEND_AGAIN_MS * NS_PER_MS);
		if (r)
			return r;
	}
}

int frames_send(struct cluster *cluster, struct net_conn *conn, const struct frame_head *head, struct view body,
		uint64_t deadline_ns, const bool *over)
{
	struct frame_head part = *head;

	part.generation = cluster->generation;
	do {
		struct view piece = view_take(&body, FRAME_BODY_MAX);

		part.flags = head->flags | (body.len ? FRAME_MORE : 0);
		int r = frame_send(cluster, conn, &part, piece, deadline_ns, over);
		if (r)
			return r;
	} while (body.len);
	return 0;
}

int failure_encode(int code, const char *words, struct buf *ret)
{
	CHECK(code < 0);
	const struct msg_failure m = { .code = (uint32_t)-code, .words = view_str(words) };

	return msg_failure_encode(&m, ret);
}

int failure_decode(struct view body, struct error *e)
{
	struct msg_failure m;

	if (msg_failure_decode(body, &m) || !m.code || m.code > FAILURE_CODE_MAX)
		return error_set(e, -EPROTO, "the peer's failure cannot be read");
	return error_set(e, -(int)m.code, "%.*s", (int)(m.words.len < ERROR_TEXT_MAX ? m.words.len : ERROR_TEXT_MAX),
			 m.words.ptr ? (const char *)m.words.ptr : "");
}
