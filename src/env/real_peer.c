/*
 * Who is at the other end of a unix stream, and when that process ends. An end of file does not tell: a forked child may
 * hold the socket open. A pidfd does.
 */
#include "env/real.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5; younger than the headers we build with */
#endif

#define STAT_TEXT_MAX	 1024
#define STAT_START_FIELD 22 /* of /proc/PID/stat: when it started, in ticks since boot */

static bool peer_cred(int fd, struct ucred *ret)
{
	socklen_t len = sizeof(*ret);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, ret, &len) == 0;
}

void real_peer(struct stream *stream, uint32_t *ret_uid, int32_t *ret_pid)
{
	struct ucred cred;
	bool known;

	CHECK_MAGIC(stream, STREAM_MAGIC);
	known = stream->is_unix && peer_cred(stream->fd, &cred);
	*ret_uid = known ? cred.uid : UINT32_MAX;
	*ret_pid = known ? cred.pid : 0;
}

/* ---- a pidfd of the peer ---- */

/* When process @pid started, on CLOCK_BOOTTIME, rounded down to a tick; -ESRCH if there is none. */
static int start_time_ns(pid_t pid, uint64_t *ret)
{
	char path[32], text[STAT_TEXT_MAX];

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	_cleanup_(fd_close) int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? -ESRCH : -errno;
	ssize_t n = read(fd, text, sizeof(text) - 1);
	if (n <= 0)
		return -ESRCH;
	text[n] = 0;

	/* The second field is the command in parentheses, which may itself hold spaces and parentheses. */
	char *at = strrchr(text, ')');
	for (int field = 2; at && field < STAT_START_FIELD; field++)
		at = strchr(at + 1, ' ');
	if (!at)
		return -EIO;
	*ret = strtoull(at + 1, NULL, 10) * (NS_PER_S / (uint64_t)sysconf(_SC_CLK_TCK));
	return 0;
}

static bool has_ended(int pid_fd)
{
	struct pollfd fd = { .fd = pid_fd, .events = POLLIN };

	return poll(&fd, 1, 0) == 1;
}

/*
 * Before Linux 6.5 the kernel tells a number only, and by now it may be another process's. The one that we open is the
 * peer if it started before the connection was made; and what we read about it is about the one that we opened if that
 * one has not ended since.
 */
int peer_pidfd_by_number(const struct stream *stream, int *ret)
{
	struct ucred cred;
	uint64_t started_ns;

	if (!peer_cred(stream->fd, &cred))
		return -errno;
	if (cred.pid <= 0)
		return -EOPNOTSUPP; /* of another pid namespace: nameless here */

	_cleanup_(fd_close) int fd = (int)syscall(SYS_pidfd_open, cred.pid, 0);
	if (fd < 0)
		return -errno;
	int r = start_time_ns(cred.pid, &started_ns);
	if (r)
		return r;
	if (has_ended(fd) || started_ns > stream->since_ns)
		return -ESRCH;
	*ret = fd;
	fd = -1;
	return 0;
}

/* -ESRCH: the peer has ended already. */
static int peer_pidfd(const struct stream *stream, int *ret)
{
	int fd = -1;
	socklen_t len = sizeof(fd);

	if (getsockopt(stream->fd, SOL_SOCKET, SO_PEERPIDFD, &fd, &len) == 0) {
		*ret = fd;
		return 0;
	}
	if (errno == ENOPROTOOPT)
		return peer_pidfd_by_number(stream, ret);
	return errno == EINVAL ? -ESRCH : -errno; /* which of the two an ended process yields depends on the version */
}

/* ---- watching it ---- */

static void peer_gone(struct task *task)
{
	struct stream *stream = container_of(task, struct stream, gone);

	stream->gone_fn(stream->gone_arg);
}

static void pidfd_stirred(struct watch *watch, uint32_t events)
{
	struct stream *stream = container_of(watch, struct stream, pid_watch);

	loop_post(stream->real->env.loop, &stream->gone);
}

int real_peer_watch(struct stream *stream, void (*gone)(void *arg), void *arg)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLONESHOT, .data.ptr = &stream->pid_watch };

	CHECK_MAGIC(stream, STREAM_MAGIC);
	CHECK(!stream->gone_fn);
	if (!stream->is_unix || stream->listening)
		return -EOPNOTSUPP;
	int r = peer_pidfd(stream, &stream->pid_fd);
	if (r && r != -ESRCH)
		return r;

	stream->pid_watch.fn = pidfd_stirred;
	stream->gone.fn = peer_gone;
	if (r == -ESRCH) {
		loop_post(stream->real->env.loop, &stream->gone);
	} else if (epoll_ctl(stream->real->epoll_fd, EPOLL_CTL_ADD, stream->pid_fd, &event) < 0) {
		r = -errno;
		fd_close(&stream->pid_fd);
		return r;
	}
	stream->gone_fn = gone;
	stream->gone_arg = arg;
	return 0;
}

void peer_unwatch(struct stream *stream)
{
	task_cancel(&stream->gone);
	if (stream->pid_fd < 0)
		return;
	epoll_ctl(stream->real->epoll_fd, EPOLL_CTL_DEL, stream->pid_fd, NULL);
	fd_close(&stream->pid_fd);
}
