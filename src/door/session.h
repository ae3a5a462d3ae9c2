/*
 * door/session.h: one client's connection; shared by native.c, session.c, requests.c and loads.c.
 */
#pragma once

#include "base/map.h"
#include "door/native.h"
#include "env/fiber.h"
#include "net/net.h"
#include "wire/body.h"

#define SESSION_REQUESTS_MAX 256  /* under way at once */
#define SESSION_HANDLES_MAX  4096 /* ranks, versions, loads: each */
#define SESSIONS_MAX	     4096
#define PAGE_MAX	     1000	  /* entries of a list in one answer */
#define ITEMS_BYTES_MAX	     (512u << 10) /* of items in one answer, about */

struct door_native {
	struct env *env;
	struct door_native_options options;
	struct net_listener *listener;
	struct list sessions;
	unsigned n_sessions;
	struct nursery burials; /* sessions that end */
};

struct session {
	struct list link;
	struct door_native *door;
	struct net_conn *conn; /* NULL: it has ended */
	struct body_joiner joiner;
	bool greeted;
	uint64_t handles;		   /* given so far */
	struct map ranks, versions, loads; /* by number, as 8 bytes */
	struct nursery requests;
	struct task deaf; /* ends it: it does not read */
	int32_t pid;
};

/* One request; its fiber owns it. */
struct request {
	struct session *session;
	struct frame_head head;
	struct buf body;
};

/* Serves one request: appends the answer. Waits. */
typedef int (*request_fn)(struct request *request, struct view body, uint64_t deadline_ns, struct buf *answer,
			  struct error *e);
request_fn request_find(unsigned type); /* NULL: unknown */
bool request_is_early(unsigned type);	/* served before the node has joined */

int session_new(struct door_native *door, struct net_conn *conn);
void session_end(struct session *session, const char *words);
/* Queues a frame; a client that does not read costs its own session. */
void session_send(struct session *session, const struct frame_head *head, struct view body);
struct view session_tenant(const struct session *session);

struct view number_key(const uint64_t *number);
/* Keeps @value under a new handle, or under @number if that is not 0. -EMFILE, -EEXIST. */
int handle_new(struct session *session, struct map *map, void *value, uint64_t *ret);

/* loads.c */
int serve_load(struct request *request, struct view body, uint64_t deadline_ns, struct buf *answer, struct error *e);
int serve_release(struct request *request, struct view body, uint64_t deadline_ns, struct buf *answer, struct error *e);
void load_cancel(struct session *session, uint64_t number);
const struct rank_events *session_events(struct session *session, struct rank_events *events);
