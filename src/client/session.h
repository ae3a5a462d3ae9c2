/*
 * client/session.h: the thread shell around the core, as its own files share it; nobody else includes it.
 *
 * One thread moves bytes unless a caller that waits does, N threads run work, and the application's threads make calls; `lock` guards
 * the core and everything here.
 * The session is counted, because handles and futures outlive forebay_disconnect(): the last one frees it. In a process that was
 * forked off nothing is touched, not even the lock, whose owner may not exist there.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "base/check.h"
#include "base/map.h"
#include "client/core.h"
#include "forebay/forebay.h"

#define SESSION_MAGIC	 UINT32_C(0x73736553)
#define DEFAULT_SOCKET	 "/run/forebay/socket"
#define CONNECT_MS	 10000
#define CALL_MS		 120000		     /* for calls that have no time-out of their own */
#define LONG_CALL_MS	 (24u * 3600 * 1000) /* verify, rebuild */
#define SEEN_CALL_MS	 15000		     /* status, why: the daemon needs 11 s at most, whatever is down */
#define GRACE_MS	 2000 /* after which an answer that is due is not waited for any more: the daemon is stuck */
#define LAST_WORDS_MS	 2000 /* for what is still to be sent when a session ends */
#define COPY_THREADS	 4    /* by default at most */
#define COPY_THREADS_MAX 64
#define THREAD_STACK	 (512u << 10) /* bytes */
#define RECV_BYTES	 (256u << 10)
#define INLINE_BYTES \
	(1u << 20) /* blocks up to this, all together, are copied by who reads of them: waking others costs more */
#define LITTLE_MOST	64  /* of these blocks at a time without the lock: a cancelled save or load waits for them */
#define LINGER_US	200 /* so long the byte thread leaves the socket to the next caller */
#define DESCRIPTORS_MAX 16  /* that have come and were not asked for */
#define MAPS_MAX	16

struct forebay_session {
	uint32_t magic;
	unsigned refs;
	unsigned fork_number; /* of the process that connected */
	pthread_mutex_t lock;
	pthread_cond_t changed; /* a future is over; work that somebody waits for has ended */
	pthread_cond_t more_work;
	struct core *core;
	char *path;
	int socket, wake; /* wake: an eventfd that rouses the byte thread; -1: closed */
	bool stopping;	  /* threads are to return */
	bool send_broken; /* what is still to be read says why */
	bool hung_up;	  /* it was lost, and the daemon has been told by the connection's end */
	unsigned quiet_waiters;

	/*
	 * Who reads from the socket, the *pump*: the byte thread, or a caller that waits, which is woken once less. One at a time; it
	 * alone touches `bytes`. The byte thread is not asked to stop: it leaves the socket alone for a moment when somebody has got
	 * what it waited for, since who calls once may call again.
	 */
	bool pumped;	   /* somebody does */
	bool caller_pumps; /* and it is a caller: `pump` */
	bool ended;	   /* there is nothing to be read any more */
	bool byte_thread_sleeps;
	pthread_t pump;
	uint64_t turns;	    /* times that a caller has become the pump, or has got what it waited for */
	unsigned n_waiting; /* callers at `changed` whose future is not over */
	pthread_cond_t idle;
	uint8_t *bytes;

	pthread_t byte_thread, copy_threads[COPY_THREADS_MAX];
	bool byte_thread_runs;
	unsigned n_copy_threads;

	int descriptors[DESCRIPTORS_MAX];
	unsigned n_descriptors;
	struct {
		void *ptr;
		size_t len;
	} maps[MAPS_MAX];
	unsigned n_maps;
};

/* ---- session.c ---- */
/* Locks, unless this process was forked off (-ERR_EFORKED, with words). */
int session_enter(struct forebay_session *session, struct error *e);
bool session_is_foreign(const struct forebay_session *session); /* in a forked process: touch nothing */
void session_leave(struct forebay_session *session);		/* sends what is urgent, rouses copiers, unlocks */
void session_flush(struct forebay_session *session);		/* the first two of these */
void session_ref(struct forebay_session *session);
void session_unref(struct forebay_session *session); /* not under the lock */
/* Under the lock. Waits until @quiet(@arg): at most as long as blocks under way take. */
void session_wait_quiet(struct forebay_session *session, bool (*quiet)(const void *arg), const void *arg);
/* Waits under the lock until the future is over or @timeout_ms (-1: for ever) have passed: 0, -ETIMEDOUT. */
int session_wait(struct forebay_session *session, struct core_future *future, int64_t timeout_ms);
void session_changed(struct forebay_session *session); /* under the lock: tells all who wait */
void session_tell_over(struct forebay_session *session, struct core_future *future); /* the same, when it is over */
void session_future_over(struct core_future *future); /* fn of futures for session_wait(); their arg is the session */

/* A request and its answer, waited for. Locks. @encoded: what the encoder of @body answered. @timeout_ms: -1 waits. */
int session_call(struct forebay_session *session, enum msg_type type, const struct buf *body, int encoded,
		 int64_t timeout_ms, struct buf *ret_answer, struct error *e);

/* ---- socket.c ---- */
int socket_connect(const char *path, int timeout_ms, int *ret_fd, struct error *e);
/* Takes in up to RECV_BYTES and the descriptors with them: bytes, 0 at the end, negative errno. Not under the lock. */
ssize_t socket_recv(int fd, uint8_t *bytes, int *ret_descriptors, unsigned *ret_n_descriptors);
/* core_events.arena: maps what the next descriptor leads to. */
int socket_map_arena(void *arg, uint64_t id, uint64_t bytes, bool writable, uint8_t **ret_ptr, struct error *e);
void socket_unmap_arenas(struct forebay_session *session);

/* ---- error.c ---- */
/* Remembers the words as this thread's last failure and returns @code; 0 and positive pass through untouched. */
int api_result(int code, const struct error *e);
int api_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/*
 * Takes a struct of the application's over into one of this library's, which may be longer (the rest is zero: defaults) or shorter
 * (-EINVAL unless the rest is zero). NULL: all zero. Both begin with their size.
 */
int api_take(void *to, size_t to_size, const void *from, const char *what, struct error *e);
/* Fills the application's struct, which begins with its size, from one of ours. */
void api_give(void *to, const void *from, size_t from_size);
/* Element @i of an application's array, whose elements all begin with their size. */
const void *api_element(const void *array, size_t i);
/* ndim, shape, start, count as boxes; words name what is wrong. */
int api_boxes(uint32_t ndim, const uint64_t *shape, const uint64_t *start, const uint64_t *count, struct box *ret_whole,
	      struct box *ret_box, struct error *e);

/* ---- handles ---- */
struct forebay_group {
	struct forebay_session *session;
	struct core_group *core;
	uint64_t incarnation;
};

struct attributes { /* decoded, owned */
	struct forebay_attribute *list;
	size_t n;
};
int attributes_take(struct attributes *attributes, struct list_view list); /* -ENOMEM, -EPROTO; empty then */
void attributes_fini(struct attributes *attributes);

struct forebay_version {
	struct forebay_session *session;
	unsigned refs; /* the application's, and loads'; under the lock */
	uint64_t handle, number, step, items, bytes;
	bool unindexed;
	char *bundle;
	struct attributes attributes;
	struct map found;		/* struct forebay_item_info by name: what was asked for by name */
	struct forebay_item_info *page; /* what was listed last */
	size_t n_page;
};
/* Asks for those of the names that are not known yet, many at a time. 0, or the first that failed, in words. */
int version_find_all(struct forebay_version *version, const char *const *names, size_t n, struct error *e);
const struct forebay_item_info *version_known(const struct forebay_version *version, const char *name);
void version_ref(struct forebay_version *version);   /* under the lock */
void version_unref(struct forebay_version *version); /* not under the lock */
