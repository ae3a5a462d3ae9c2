/*
 * env/real.h: what the files of the real world share and nobody else includes.
 *
 * Three kinds of threads. The loop's thread owns every stream and sleeps in the loop's epoll. The mover owns the `struct
 * bulk` of each stream that carries bulk, with the socket, from the first bulk operation on. Workers own the job that they
 * run. Work crosses by lists under a lock; results come back through loop_post_remote(), many for one wake.
 */
#pragma once

#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/check.h"
#include "env/env.h"

#define STREAM_MAGIC UINT32_C(0x6d727473)
#define DIR_MAGIC    UINT32_C(0x20726964)
#define FILE_MAGIC   UINT32_C(0x656c6966)

struct bulk;
struct real;

/* What the loop's epoll calls when a descriptor stirs. It may post tasks, and nothing else: see real_poll(). */
struct watch {
	void (*fn)(struct watch *watch, uint32_t events);
};

/* ---- real_worker.c ---- */

#define WORKERS_MAX 256

struct workers {
	pthread_t threads[WORKERS_MAX];
	unsigned n;
	pthread_mutex_t lock;
	pthread_cond_t more;
	struct list queue; /* jobs that wait for a thread */
	bool stop;
	unsigned n_jobs; /* the loop's: offloaded and not finished */
};

int workers_start(struct workers *workers, const char *name, unsigned n);
void workers_stop(struct workers *workers); /* joins; accepts one that never started */
int real_offload(struct env *env, struct job *job);

/* ---- real_bulk.c ---- */

struct mover {
	pthread_t thread;
	bool started;
	int epoll_fd, wake_fd;
	struct loop *loop;

	pthread_mutex_t lock;
	struct list signalled; /* struct bulk with new operations, or to be closed */
	bool pending;	       /* atomic: signalled is not empty */
	bool asleep, stop;
	struct list completed; /* operations, on their way to the loop */
	struct task deliver;

	struct list active;	/* mover's own: struct bulk that can go on right now */
	struct list finished;	/* mover's own: operations completed in this round */
	unsigned n_ops;		/* mover's own: operations taken and not completed */
	unsigned n_undelivered; /* the loop's: operations submitted whose done has not been called */
};

int mover_start(struct mover *mover, struct loop *loop);
void mover_stop(struct mover *mover); /* joins; accepts one that never started */
void real_bulk(struct bulk_op *op);
/* The mover cancels what is under way, then closes the socket and frees @bulk. */
void bulk_close(struct mover *mover, struct bulk *bulk);

/* ---- real_stream.c ---- */

struct stream {
	uint32_t magic;
	struct real *real;
	int fd;
	bool is_unix, listening;
	int status; /* as stream_status() tells */
	char *address;
	uint64_t since_ns; /* when it was accepted or connected: what started later is not its peer */

	struct watch watch;
	struct task ready;
	struct stream_events events;

	int pid_fd; /* of the peer, once watched; else -1 */
	struct watch pid_watch;
	struct task gone;
	void (*gone_fn)(void *arg);
	void *gone_arg;

	int socket_dir_fd; /* unix listeners: where the socket lies, to remove it again; else -1 */
	char *socket_name;
	dev_t socket_dev;
	ino_t socket_ino;

	struct bulk *bulk; /* from the first bulk operation on */
};

int real_listen(struct env *env, const char *address, const struct stream_events *events, struct stream **ret,
		struct error *e);
int real_accept(struct stream *listener, const struct stream_events *events, struct stream **ret);
int real_connect(struct env *env, const char *address, const struct stream_events *events, struct stream **ret);
int real_stream_status(struct stream *stream);
ssize_t real_recv(struct stream *stream, void *p, size_t len);
ssize_t real_send(struct stream *stream, const struct iovec *iov, int n, const struct arena *arena);
const char *real_address(struct stream *stream);
void real_close(struct stream *stream);

/* ---- real_peer.c ---- */

void real_peer(struct stream *stream, uint32_t *ret_uid, int32_t *ret_pid);
int real_peer_watch(struct stream *stream, void (*gone)(void *arg), void *arg);
void peer_unwatch(struct stream *stream);
int peer_pidfd_by_number(const struct stream *stream, int *ret); /* as kernels before 6.5 need it */

/* ---- real_socket.c: addresses, and unix sockets as files ---- */

#define LISTEN_BACKLOG 4096 /* connections that nobody has accepted yet */

/* An address as the kernel wants it. A long unix path is reached through @dir_fd, which must stay open meanwhile. */
struct socket_address {
	union {
		struct sockaddr any;
		struct sockaddr_un un;
		struct sockaddr_storage storage;
	};
	socklen_t len;
	bool is_unix;
	char *path; /* unix: as given */
	char *name; /* unix: its last part, inside path */
	int dir_fd; /* unix: the directory that holds it; else -1 */
};
int socket_address_parse(struct socket_address *address, const char *text); /* -EINVAL, -ENOENT, ... */
void socket_address_fini(struct socket_address *address);
char *socket_address_text(int fd); /* of a bound tcp socket: "tcp:HOST:PORT" on the heap, or NULL */
/* Binds @fd to a unix address and listens, taking the place of a dead owner's socket but never of a live one's. */
int socket_listen_unix(int fd, const struct socket_address *address, struct error *e);

/* ---- real_file.c, real_arena.c ---- */

int real_dir_open(struct env *env, const char *path, bool create, struct dir **ret, struct error *e);
void real_dir_close(struct dir *dir);
int real_file_open(struct dir *dir, const char *path, unsigned flags, struct file **ret);
ssize_t real_file_read(struct file *file, uint64_t offset, void *p, size_t len);
int real_file_write(struct file *file, uint64_t offset, const void *p, size_t len);
int real_file_sync(struct file *file);
int real_file_size(struct file *file, uint64_t *ret);
void real_file_close(struct file *file);
int real_mkdirs(struct dir *dir, const char *path);
int real_link(struct dir *dir, const char *from, const char *to);
int real_rename(struct dir *dir, const char *from, const char *to);
int real_unlink(struct dir *dir, const char *path);
int real_stat(struct dir *dir, const char *path, struct file_stat *ret);
int real_list(struct dir *dir, const char *path, int (*each)(void *arg, const char *name, bool is_dir), void *arg);
int real_sync_dir(struct dir *dir, const char *path);

int real_arena_new(struct env *env, size_t size, bool shared_read, struct arena *ret, struct error *e);
void real_arena_free(struct env *env, struct arena *arena);

/* ---- real.c ---- */

struct real {
	struct env env;
	char *name;
	int epoll_fd, wake_fd;
	struct watch wake_watch;
	struct workers workers[LANES];
	struct mover mover;
	uint64_t last_arena_id;
	unsigned n_streams;
};

static inline struct real *real_of(struct env *env)
{
	CHECK_MAGIC(env, ENV_MAGIC);
	return container_of(env, struct real, env);
}

/* Starts a thread that takes no signals: those are for the thread that the daemon chose. */
int thread_start(pthread_t *ret, const char *name, void *(*run)(void *arg), void *arg);
uint64_t boottime_ns(void);
void event_raise(int event_fd); /* an eventfd, watched edge-triggered, so that it is never read */

/* For descriptors: closes and sets -1, so that closing twice is harmless. */
void fd_close(int *fd);
