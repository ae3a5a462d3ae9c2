/*
 * env/env.h: the world behind one table (docs/architecture.md, "Two worlds, one code"). Real: env/real.c (epoll, threads, Linux). Simulated:
 * sim/world.c. Everything that a node or a client does to the outside goes through its own `struct env`.
 *
 * In the simulator a killed node's env fails every call with -ESHUTDOWN and completes everything under way with it, without
 * any effect on the world; the node's code then unwinds by itself.
 *
 * Threads: everything here belongs to the loop's thread, except the file calls, which block and may be made only in a job
 * (a worker thread; in the simulator a fiber that waits in virtual time).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "base/bytes.h"
#include "base/error.h"
#include "env/loop.h"

struct env;
struct stream;
struct file;

/* ---- workers ------------------------------------------------------------------------------------------------------
 * A job runs once on a worker (run), then finishes once on the loop (finish), which may free it. It cannot be cancelled
 * under way, so it owns (or pins) everything that it touches; whoever started it may stop caring, not stop it.
 * Each lane has workers of its own: what a store that hangs holds up (LANE_STORE) are calls on that store, and neither hashes nor
 * the index.
 */
enum lane { LANE_WORK, LANE_STORE, LANES };

struct job { /* zero but for lane, run and finish */
	struct list link;
	struct task task;
	struct env *env;
	enum lane lane;			 /* whose workers run it */
	void (*run)(struct job *job);	 /* may block; may call file functions; must not touch the loop's state */
	void (*finish)(struct job *job); /* loop's thread */
};

/* ---- streams ------------------------------------------------------------------------------------------------------
 * Addresses: "tcp:HOST:PORT" (numeric host; port 0 picks one; "tcp:IF%eth1:PORT" is not supported yet) or "unix:PATH"
 * (PATH may exceed the 107 bytes of sockaddr_un: it is reached through its directory).
 *
 * Control streams are non-blocking: recv and send move what they can. `ready` is called (from the loop) when a call that
 * answered -EAGAIN may be worth repeating, when a connect has settled, and on hang-up; spurious calls are legal.
 */
struct stream_events {
	void (*ready)(void *arg);
	void *arg;
};

/* ---- bulk ---------------------------------------------------------------------------------------------------------
 * A descriptor that the mover executes whole. Sending: head_len bytes of head, then span_len bytes of the span, then the
 * CRC32C (4 bytes, little-endian) of the span's bytes exactly as they were sent: each piece is copied to private memory,
 * summed and sent from there, since a client may still write to the span. Receiving: span_len bytes into the span, the
 * 4-byte CRC (compared: -EBADMSG if it differs), then head_len bytes of the NEXT head, so that one hop carries a chunk
 * and the announcement of what follows. With span_len 0 there is neither span nor CRC. At most BULK_CHUNK bytes a span.
 * A stream executes its operations in order, one direction independent of the other. After -EBADMSG it is still in step and
 * goes on; after any other error all later operations of that direction end with the same. Cancelling is per stream: see close.
 */
#define BULK_CHUNK_BYTES (1u << 20)
struct bulk_op {
	struct list link;
	struct task task;
	struct stream *stream;
	bool send;
	uint8_t *head;
	size_t head_len;
	uint8_t *span;
	size_t span_len;
	uint32_t crc;	   /* out: of the span as it went */
	struct done *done; /* 0, -EBADMSG, -EPIPE/-ECONNRESET/0-length: -ECONNRESET, -ECANCELED after close */
	int result;
	size_t progress; /* the mover's own */
};

/* ---- files --------------------------------------------------------------------------------------------------------
 * Paths are relative to the directory that dir_open gave and cannot leave it: no "..", no link that leads out. "." is the
 * directory itself (stat, list, sync_dir). Flags for file_open.
 */
enum { FILE_READ = 1, FILE_WRITE = 2, FILE_CREATE = 4, FILE_EXCLUSIVE = 8 };
struct dir; /* an open directory */
struct file_stat {
	uint64_t size;
	bool is_dir;
	uint64_t nlink;
};

/* Memory that processes share. ptr is the daemon's own mapping (read-write always). */
struct arena {
	uint8_t *ptr;
	size_t size;
	uint64_t id; /* unique in this env */
	int fd;	     /* -1 in the simulator */
};

struct env_ops {
	uint64_t (*now)(struct env *env);
	void (*random)(struct env *env, void *p, size_t len);
	int (*offload)(struct env *env, struct job *job); /* 0 or -ESHUTDOWN (then finish is not called) */

	/* ready: accept may succeed. -EADDRINUSE when a live owner holds the address. */
	int (*listen)(struct env *env, const char *address, const struct stream_events *events, struct stream **ret,
		      struct error *e);
	/* 0; -EAGAIN: nobody waits; else no connection is lost, but try again by a timer: no event says when it may help. */
	int (*accept)(struct stream *listener, const struct stream_events *events, struct stream **ret);
	/* 0, or what is wrong with the address or this machine; how the connection went is stream_status()'s to tell. */
	int (*connect)(struct env *env, const char *address, const struct stream_events *events, struct stream **ret);
	int (*stream_status)(struct stream *stream);		     /* -EINPROGRESS, 0 connected, or why it failed */
	ssize_t (*recv)(struct stream *stream, void *p, size_t len); /* bytes, 0 at the end, -EAGAIN, error */
	/*
	 * Bytes taken, or -EAGAIN, error. @arena (unix streams only; else NULL) is sent along with the first byte as a
	 * descriptor.
	 */
	ssize_t (*send)(struct stream *stream, const struct iovec *iov, int n, const struct arena *arena);
	void (*peer)(struct stream *stream, uint32_t *ret_uid, int32_t *ret_pid); /* unix streams; else uid -1, pid 0 */
	/* Calls gone(arg) once when the process at the other end has ended, whoever else holds the socket (pidfd). */
	int (*peer_watch)(struct stream *stream, void (*gone)(void *arg), void *arg);
	const char *(*address)(struct stream *stream); /* of a listener: with the port that it got */
	/*
	 * NULL is accepted; no events after it. Bulk operations complete, later, with -ECANCELED (or as they ended, if they
	 * just did), once the mover touches nothing of theirs any more.
	 */
	void (*close)(struct stream *stream);
	/* After the first bulk on a stream, recv and send are not called on it again. */
	void (*bulk)(struct bulk_op *op);

	/* Any thread. */
	int (*dir_open)(struct env *env, const char *path, bool create, struct dir **ret, struct error *e);
	void (*dir_close)(struct dir *dir);
	int (*file_open)(struct dir *dir, const char *path, unsigned flags, struct file **ret);
	ssize_t (*file_read)(struct file *file, uint64_t offset, void *p, size_t len);	  /* short only at the end */
	int (*file_write)(struct file *file, uint64_t offset, const void *p, size_t len); /* all, or an error */
	int (*file_sync)(struct file *file);
	int (*file_size)(struct file *file, uint64_t *ret);
	void (*file_close)(struct file *file);
	int (*mkdirs)(struct dir *dir, const char *path); /* with parents, each parent synced; present is 0 */
	int (*link)(struct dir *dir, const char *from, const char *to);
	int (*rename)(struct dir *dir, const char *from, const char *to);
	int (*unlink)(struct dir *dir, const char *path); /* also an empty directory */
	int (*stat)(struct dir *dir, const char *path, struct file_stat *ret);
	/* Calls each(arg, name) in byte order of the names; each returns non-zero to stop, and list then returns 0. */
	int (*list)(struct dir *dir, const char *path, int (*each)(void *arg, const char *name, bool is_dir),
		    void *arg);
	int (*sync_dir)(struct dir *dir, const char *path);

	/* @shared_read: clients get a descriptor that can be mapped read-only and never written (F_SEAL_FUTURE_WRITE); else
	 * a writable one. Sealed against growing, shrinking and further seals; faulted in before it returns. */
	int (*arena_new)(struct env *env, size_t size, bool shared_read, struct arena *ret, struct error *e);
	void (*arena_free)(struct env *env, struct arena *arena);
};

struct env {
	uint32_t magic; /* ENV_MAGIC */
	const struct env_ops *ops;
	struct loop *loop;
	const char *name; /* for logs and traces: the node's or the client's */
};
#define ENV_MAGIC 0x766e4546

/* The real world: epoll, @workers worker threads for each lane, one mover thread. loop is made and owned by it. */
int env_real_new(const char *name, unsigned workers, struct env **ret, struct error *e);
/* Delivers the last bulk completions of closed streams and joins its threads; no jobs or streams may be left. */
void env_real_free(struct env *env);

/* Convenience: thin calls through the table, so that users read env_now(env) and the like. */
static inline uint64_t env_now(struct env *env)
{
	return env->ops->now(env);
}

static inline uint64_t env_in_ms(struct env *env, uint64_t ms) /* a deadline @ms from now */
{
	return env_now(env) + ms * NS_PER_MS;
}

/* Runs @run(@arg) on a worker and waits for it in the calling fiber, shielded: @arg may live on the stack. For jobs that are
 * bounded by CPU time, not by disks. Returns what @run returns. */
int env_call(struct env *env, int (*run)(void *arg), void *arg);
