/*
 * door/inside.h: the native door as its own files share it; nobody else includes it.
 *
 * A session is a fiber (session_run in session.c), which waits for the session's end and then gives everything back. Each request is a
 * fiber of the session's nursery, each load a fiber of its own nursery. So what a request holds (a rank, a version) stays until it
 * returns.
 */
#pragma once

#include "base/counter.h"
#include "base/map.h"
#include "door/native.h"
#include "env/fiber.h"
#include "wire/body.h"

#define DOOR_MAGIC	  UINT32_C(0x726f6f44)
#define HELLO_MS	  10000		  /* to say it */
#define HELLO_BODY_MAX	  1024		  /* bytes of a frame before it has been said */
#define LAST_SIGN_MS	  500		  /* between the end of a connection and that of its process, if both end */
#define SEND_AGAIN_MS	  5		  /* until a queue that was full is tried again */
#define PARTIAL_MAX	  BODY_MAX	  /* bytes that have come in part: a client sends one message after the other */
#define REQUEST_BYTES_MAX (1408u << 20)	  /* of all requests of a session that are under way; beyond it -EBUSY */
#define DOOR_BYTES_MAX	  (2688ull << 20) /* of all sessions' requests, partial ones too: two BODY_MAX */
#define DOOR_ANSWERS_MAX  (4ull << 30)	  /* bytes that wait to be read by all sessions: 64 full queues */
#define ANSWER_SEND_MS	  60000		  /* for a client to make room for an answer */
#define ANSWER_PAGE_BYTES (512u << 10)	  /* of a list; then the page ends */
#define PAGE_MAX	  10000		  /* entries of a list in one answer */

/* Of the FIBERS_MAX of the loop. What is left beyond these is the daemon's own. */
#define FIBERS_SHARED_MAX 12288 /* three quarters: until then a session may hold a share of what is left */
#define FIBERS_CROWD_MAX  14336 /* and a few until then */
#define FIBERS_CLIENT_MAX 15360 /* and a few for each user until then */
#define FIBERS_SHARE	  4	/* a quarter */
#define FIBERS_FEW	  8
#define REQUEST_FIBERS	  4 /* that one may come to take: a join, its call to this same node, its group's lease */
#define LOAD_FIBERS	  9 /* a load's own, and those that read */

struct door_native {
	uint32_t magic;
	struct env *env;
	struct door_native_options options;
	char *tenant;
	const char *http;     /* address of the HTTP door, or NULL */
	struct list sibling;  /* in the first door's */
	struct list siblings; /* the first door's: all doors, with itself */
	struct net_listener *listener;
	struct nursery nursery; /* of sessions */
	struct list sessions;
	struct list users; /* struct door_user */
	unsigned n_sessions;
	uint64_t bytes;	     /* of all requests under way, and of what has come of others */
	uint64_t unread;     /* of all answers and pushes: queued, or waiting for room in the queue */
	unsigned n_requests; /* the first door's: under way in all doors */
	bool stopping;
};

/* A client's numbers for what it holds, and what they stand for. */
struct handles {
	struct map map;
	uint64_t last;
};
int handles_put(struct handles *handles, uint64_t number, void *value); /* 0, -EEXIST, -ENOMEM */
void *handles_get(const struct handles *handles, uint64_t number);	/* NULL: none */
void *handles_remove(struct handles *handles, uint64_t number);
void *handles_first(const struct handles *handles, uint64_t *ret_number); /* NULL: empty */

struct door_rank {
	struct rank *rank;
	uint64_t handle;
	unsigned users; /* requests and loads */
	bool leaving;	/* takes no new ones */
};

/* A rank that a request works with: rank_hold() fills it, rank_release() is its _cleanup_. */
struct held_rank {
	struct session *session;
	struct door_rank *rank; /* or NULL */
};

struct door_load {
	struct door_rank *rank; /* NULL: alone */
	struct version *version;
	struct reader *reader;
	struct nursery nursery; /* its one fiber */
	uint64_t number, deadline_ns;
	bool beginning; /* its request still works with it: who takes it out of the table waits */
};

/* Whose processes its sessions are. What is too much for all is taken from the user who has the most. */
struct door_user {
	struct list link;
	uint32_t uid;
	unsigned n_sessions;
	uint64_t holds; /* session_largest()'s */
};

struct session {
	struct list link;
	struct door_user *user;
	struct door_native *door;
	struct net_conn *conn; /* NULL once gone */
	bool gone, greeted, hung_up;
	uint32_t uid;
	int32_t pid;
	char words[160];	  /* why it ended */
	struct timer timer;	  /* HELLO; the process's last sign */
	struct waitplace changed; /* gone; a rank is not used any more; a load has begun; the next has its turn */
	struct nursery nursery;	  /* of requests */
	unsigned n_requests;
	unsigned n_joins;     /* among them */
	size_t request_bytes; /* of their bodies */
	uint64_t unread;      /* of answers that wait for room in the queue */
	struct body_joiner joiner;
	struct handles ranks, versions, loads; /* struct door_rank, version, door_load */
	uint64_t turns_given, turn;	       /* of LOAD and FORGO, which count: one after the other, as they came */
};

struct request {
	struct session *session;
	enum msg_type type;
	uint64_t number, deadline_ns;
	struct buf body;
};

/* ---- session.c ---- */
void session_accepted(void *arg, struct net_conn *conn);
void session_end(struct session *session, const char *format, ...) __attribute__((format(printf, 2, 3)));
/*
 * Who holds the most of those that are there, of the user who holds the most; NULL: nobody is. And what those that have ended still
 * hold, who unwind by themselves.
 */
struct session *session_largest(struct door_native *door, uint64_t (*holds)(const struct session *session),
				uint64_t *ret_leaving);
/* As session_end(), of one that breaks the rules: it is counted and logged. */
void session_expel(struct session *session, enum counter reason, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* Counts and logs what a client did that was refused; its session may go on. */
void door_refused(const struct session *session, enum counter reason, const char *words);
/* May it do, and see, what concerns all tenants. */
bool session_is_admin(const struct session *session);
/* rank_events.push, with the session as arg. */
void session_push(void *arg, enum msg_type type, uint64_t number, struct view body);

/* As net_send(); who has the most unread gives way, if all together have too much. -ENOTCONN: this one did, or is gone. */
int session_send(struct session *session, const struct frame_head *head, struct view body, const struct arena *arena);

/* -ENOENT: the client names what its session does not hold. */
int session_lacks(const struct session *session, const char *what, uint64_t number, struct error *e);
/* -EBUSY: it holds as many as it may. */
int session_is_full(const struct session *session, const char *of_what, unsigned most, struct error *e);

/* ---- serve.c: requests, from frame to answer ---- */
void serve_frame(struct session *session, const struct frame_head *head, struct view body);
/* A failed answer, from wherever. False: it could not be sent; the session has ended, or will with its connection. */
bool serve_failure(struct session *session, const struct frame_head *head, int code, const char *words);
int request_malformed(const struct request *request, struct error *e); /* -EPROTO */

/*
 * A handler runs in a fiber of its own and may wait. It appends its answer and returns 0, or fails with a negative code and words. The
 * body is valid until it returns.
 */
typedef int (*handler_fn)(struct session *session, const struct request *request, struct buf *answer, struct error *e);

/* ---- ranks.c: groups, saves, loads ---- */
handler_fn ranks_handler(enum msg_type type);		       /* NULL: not among these */
void ranks_release(struct session *session, struct view body); /* RELEASE: needs no fiber */
/* Gives back loads and ranks; in the session's fiber, when no request runs any more. */
void ranks_fini(struct session *session);
/* The session's rank with that handle, which does not leave while it is held. -ENOENT naming it. */
int rank_hold(struct session *session, uint64_t handle, struct door_rank **ret, struct error *e);
void rank_release(struct held_rank *held);

/* ---- names.c: versions, lists, administration ---- */
handler_fn names_handler(enum msg_type type);
/* What OPEN opens: a reference for the caller. Waits. */
int names_open(struct session *session, const struct msg_open *m, uint64_t deadline_ns, struct version **ret,
	       struct error *e);
void names_fini(struct session *session);

/* ---- seen.c: what those who watch ask for ---- */
handler_fn seen_handler(enum msg_type type);
void seen_serve_peers(struct door_native *first); /* what other nodes' doors ask */
