/*
 * wire/body.h: bodies that are longer than a frame, and failures as bodies. Pure.
 *
 * A long body goes in frames of the same request and type, all but the last with FRAME_MORE; frames of other requests may come
 * between them.
 */
#pragma once

#include "base/error.h"
#include "base/list.h"
#include "wire/frame.h"

/* Bytes of one joined body: a million items, each with the longest name and 8 dimensions. */
#define BODY_MAX	 (1344u << 20)
#define BODY_PARTS_MAX	 256 /* bodies that have come in part, on one connection */
#define FAILURE_CODE_MAX 65535

#define BODY_FOREVER UINT64_MAX /* a deadline that never comes */

/* Bodies that have come in part, on one connection. */
struct body_joiner {
	struct list parts;
	size_t n_parts, bytes; /* of all parts */
	size_t bytes_max;
};
void body_joiner_init(struct body_joiner *joiner, size_t bytes_max);
void body_joiner_fini(struct body_joiner *joiner); /* accepts a zeroed one */

/*
 * Takes the frame's piece; with the first of a body comes the @deadline_ns until which the rest is waited for. 0: the body is whole, and the caller's in @ret_body (zeroed before). 1: more is to come. -E2BIG, -EBUSY
 * (all parts together), -ENOMEM: the body is refused, once, and its rest swallowed, which answers 1. -EPROTO: too many bodies at
 * once; nothing more can be read.
 */
int body_join(struct body_joiner *joiner, const struct frame_head *head, uint64_t deadline_ns, struct view piece,
	      struct buf *ret_body);
/* Forgets the bytes of bodies whose rest has not come in time: their sender has given up. What still comes of them is swallowed. */
void body_joiner_expire(struct body_joiner *joiner, uint64_t now_ns);

/* The next frame's piece of @body: at most FRAME_BODY_MAX bytes leave it. Sets or clears FRAME_MORE in @head. */
struct view body_cut(struct frame_head *head, struct view *body);

/* A msg_failure; @code is negative. 0, -ENOMEM. */
int body_put_failure(struct buf *body, int code, const char *words);
/* The code that the body holds, with its words in @e; -EPROTO when it cannot be read. Never 0. */
int body_get_failure(struct view body, struct error *e);
