/*
 * The loop's clock and sleep in the real world, and the table that ties the other real_*.c files together.
 */
#include "env/real.h"

#include <errno.h>
#include <linux/time_types.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EVENTS_PER_POLL 128

/* ---- small things that the other files use ---- */

void fd_close(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

uint64_t boottime_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_BOOTTIME, &t);
	return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

void event_raise(int event_fd)
{
	uint64_t one = 1;
	ssize_t n;

	do
		n = write(event_fd, &one, sizeof(one));
	while (n < 0 && errno == EINTR);
}

int thread_start(pthread_t *ret, const char *name, void *(*run)(void *arg), void *arg)
{
	sigset_t all, before;

	sigfillset(&all);
	sigdelset(&all, SIGBUS); /* the thread's own: a mapped page that its disk does not give (meta/) */
	pthread_sigmask(SIG_SETMASK, &all, &before);
	int r = pthread_create(ret, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (r)
		return -r;
	pthread_setname_np(*ret, name);
	return 0;
}

/* ---- the loop's clockwork ---- */

static uint64_t real_now(void *arg)
{
	return boottime_ns();
}

/*
 * epoll_pwait2 sleeps to the nanosecond. It came with Linux 5.11 and its wrapper with glibc 2.35; before that sleeps are
 * rounded up to milliseconds.
 */
static int epoll_sleep(int epoll_fd, struct epoll_event *events, int n, uint64_t until_ns)
{
	static bool coarse; /* the system call is missing; written by whichever loop finds out, to the same value */
	uint64_t now_ns = until_ns && until_ns != FOREVER ? boottime_ns() : 0;
	uint64_t left_ns = until_ns > now_ns ? until_ns - now_ns : 0;
	struct __kernel_timespec timeout = { .tv_sec = (int64_t)(left_ns / NS_PER_S),
					     .tv_nsec = (int64_t)(left_ns % NS_PER_S) };

	if (!__atomic_load_n(&coarse, __ATOMIC_RELAXED)) {
		int r = (int)syscall(SYS_epoll_pwait2, epoll_fd, events, n, until_ns == FOREVER ? NULL : &timeout, NULL,
				     0);
		if (r >= 0 ||
		    (errno != ENOSYS && errno != EPERM)) /* EPERM: a container's filter that does not know it */
			return r;
		__atomic_store_n(&coarse, true, __ATOMIC_RELAXED);
	}
	uint64_t left_ms = left_ns / NS_PER_MS + (left_ns % NS_PER_MS != 0);
	return epoll_wait(epoll_fd, events, n,
			  until_ns == FOREVER ? -1 :
			  left_ms > INT32_MAX ? INT32_MAX :
						(int)left_ms);
}

/*
 * Watches only post tasks, so no owner's code runs between the events of one batch, and none of them can be about
 * something that has just been freed.
 */
static int real_poll(void *arg, uint64_t until_ns)
{
	struct real *real = arg;
	struct epoll_event events[EVENTS_PER_POLL];
	int n = epoll_sleep(real->epoll_fd, events, EVENTS_PER_POLL, until_ns);

	if (n < 0)
		return errno == EINTR ? 0 : -errno;
	for (int i = 0; i < n; i++) {
		struct watch *watch = events[i].data.ptr;

		watch->fn(watch, events[i].events);
	}
	return 0;
}

static void real_wake(void *arg)
{
	struct real *real = arg;

	event_raise(real->wake_fd);
}

static void woken(struct watch *watch, uint32_t events)
{
	/* Nothing to do: waking was the purpose. */
}

/* ---- the table ---- */

static uint64_t real_env_now(struct env *env)
{
	return boottime_ns();
}

static void real_random(struct env *env, void *p, size_t len)
{
	uint8_t *at = p;

	while (len > 0) {
		ssize_t n = getrandom(at, len, 0);

		CHECK(n > 0 || errno == EINTR); /* the kernel's source fails for wrong arguments only */
		if (n > 0) {
			at += n;
			len -= (size_t)n;
		}
	}
}

static const struct env_ops real_ops = {
	.now = real_env_now,
	.random = real_random,
	.offload = real_offload,

	.listen = real_listen,
	.accept = real_accept,
	.connect = real_connect,
	.stream_status = real_stream_status,
	.recv = real_recv,
	.send = real_send,
	.peer = real_peer,
	.peer_watch = real_peer_watch,
	.address = real_address,
	.close = real_close,
	.bulk = real_bulk,

	.dir_open = real_dir_open,
	.dir_close = real_dir_close,
	.file_open = real_file_open,
	.file_read = real_file_read,
	.file_write = real_file_write,
	.file_sync = real_file_sync,
	.file_size = real_file_size,
	.file_close = real_file_close,
	.mkdirs = real_mkdirs,
	.link = real_link,
	.rename = real_rename,
	.unlink = real_unlink,
	.stat = real_stat,
	.list = real_list,
	.sync_dir = real_sync_dir,

	.arena_new = real_arena_new,
	.arena_free = real_arena_free,
};

/* Everything that env_real_new() needs to have, in the order in which env_real_free() gives it back. */
static int real_init(struct real *real, const char *name, unsigned workers)
{
	const struct clockwork clockwork = { .now = real_now, .poll = real_poll, .wake = real_wake, .arg = real };
	struct epoll_event event = { .events = EPOLLIN | EPOLLET, .data.ptr = &real->wake_watch };

	real->env = (struct env){ .magic = ENV_MAGIC, .ops = &real_ops };
	real->epoll_fd = real->wake_fd = real->mover.epoll_fd = real->mover.wake_fd = -1;
	real->wake_watch.fn = woken;
	real->env.name = real->name = strdup(name);
	real->env.loop = loop_new(&clockwork);
	if (!real->name || !real->env.loop)
		return -ENOMEM;

	real->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	if (real->epoll_fd < 0)
		return -errno;
	real->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (real->wake_fd < 0)
		return -errno;
	if (epoll_ctl(real->epoll_fd, EPOLL_CTL_ADD, real->wake_fd, &event) < 0)
		return -errno;

	int r = workers_start(&real->workers[LANE_WORK], "worker", workers);
	if (!r)
		r = workers_start(&real->workers[LANE_STORE], "store", workers);
	if (r)
		return r;
	return mover_start(&real->mover, real->env.loop);
}

int env_real_new(const char *name, unsigned workers, struct env **ret, struct error *e)
{
	if (workers < 1 || workers > WORKERS_MAX)
		return error_set(e, -EINVAL, "%s: %u worker threads are not between 1 and %d", name, workers,
				 WORKERS_MAX);

	struct real *real = calloc(1, sizeof(*real));
	int r = real ? real_init(real, name, workers) : -ENOMEM;
	if (r) {
		if (real)
			env_real_free(&real->env);
		return error_set(e, r, "%s: cannot set up the loop and %u worker threads: %s", name, workers,
				 strerror(-r));
	}
	*ret = &real->env;
	return 0;
}

struct last_task {
	struct task task;
	struct real *real;
};

static void stop_when_drained(struct task *task)
{
	struct real *real = container_of(task, struct last_task, task)->real;

	if (real->mover.n_undelivered)
		loop_post(real->env.loop, task);
	else
		loop_stop(real->env.loop);
}

/*
 * Bulk operations on closed streams come back by themselves, but later; what they belong to is freed by their completions,
 * and nobody else knows when that is. So they get their turns here, and so do the tasks that they post.
 */
static void drain(struct real *real)
{
	struct last_task last = { .task.fn = stop_when_drained, .real = real };

	loop_post(real->env.loop, &last.task);
	loop_run(real->env.loop);
}

void env_real_free(struct env *env)
{
	if (!env)
		return;

	struct real *real = real_of(env);
	CHECK(real->n_streams == 0);
	if (env->loop)
		drain(real);
	for (unsigned lane = 0; lane < LANES; lane++)
		workers_stop(&real->workers[lane]);
	mover_stop(&real->mover);
	loop_free(env->loop);
	fd_close(&real->wake_fd);
	fd_close(&real->epoll_fd);
	free(real->name);
	env->magic = 0;
	free(real);
}
