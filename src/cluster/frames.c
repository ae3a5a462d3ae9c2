/*
 * cluster/frames.c: bodies of calls and answers as frames.
 */
#include "cluster/inside.h"

#include <assert.h>
#include <errno.h>

static_assert(CALL_BODY_MAX == BODY_MAX, "what may be sent can be joined");

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
		struct view piece = body_cut(&part, &body);
		int r = frame_send(cluster, conn, &part, piece, deadline_ns, over);
		if (r)
			return r;
	} while (body.len);
	return 0;
}
