/*
 * Control streams. Each is watched once, edge-triggered, for everything: an answer of -EAGAIN promises an event when it
 * may be worth repeating, and no call needs epoll_ctl.
 */
#include "env/real.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"

/* ---- making and watching ---- */

static void stream_ready(struct task *task)
{
	struct stream *stream = container_of(task, struct stream, ready);

	if (stream->events.ready)
		stream->events.ready(stream->events.arg);
}

static void stream_stirred(struct watch *watch, uint32_t events)
{
	struct stream *stream = container_of(watch, struct stream, watch);

	if (stream->status == -EINPROGRESS && (events & (EPOLLOUT | EPOLLERR | EPOLLHUP))) {
		int error = 0;
		socklen_t len = sizeof(error);

		getsockopt(stream->fd, SOL_SOCKET, SO_ERROR, &error, &len);
		stream->status = -error;
	}
	loop_post(stream->real->env.loop, &stream->ready);
}

static void stream_free(struct stream *stream)
{
	if (!stream)
		return;
	fd_close(&stream->fd);
	fd_close(&stream->pid_fd);
	fd_close(&stream->socket_dir_fd);
	free(stream->socket_name);
	free(stream->address);
	stream->magic = 0;
	free(stream);
}
CLEANUP_OF(struct stream *, stream_free);

/* Owns *@fd from here on, also when it fails. */
static struct stream *stream_new(struct real *real, int *fd, bool is_unix, const struct stream_events *events)
{
	struct stream *stream = calloc(1, sizeof(*stream));

	if (!stream) {
		fd_close(fd);
		return NULL;
	}
	stream->magic = STREAM_MAGIC;
	stream->real = real;
	stream->fd = *fd;
	*fd = -1;
	stream->is_unix = is_unix;
	stream->since_ns = boottime_ns();
	stream->pid_fd = stream->socket_dir_fd = -1;
	stream->watch.fn = stream_stirred;
	stream->ready.fn = stream_ready;
	if (events)
		stream->events = *events;
	return stream;
}

static int stream_watch(struct stream *stream)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = &stream->watch };

	if (epoll_ctl(stream->real->epoll_fd, EPOLL_CTL_ADD, stream->fd, &event) < 0)
		return -errno;
	stream->real->n_streams++;
	return 0;
}

/* Small messages must not wait for the acknowledgement of earlier ones. */
static void set_nodelay(int fd, bool is_unix)
{
	int one = 1;

	if (!is_unix)
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
}

/* ---- listening ---- */

static int listen_tcp(struct stream *stream, const char *text, const struct socket_address *address, struct error *e)
{
	int one = 1;

	setsockopt(stream->fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(stream->fd, &address->any, address->len) < 0 || listen(stream->fd, LISTEN_BACKLOG) < 0)
		return error_set(e, -errno, "%s: cannot listen: %s", text, strerror(errno));
	stream->address = socket_address_text(stream->fd);
	return stream->address ? 0 : error_set(e, -ENOMEM, "%s: no memory", text);
}

/* Remembers which socket file is ours, so that closing never removes a successor's. */
static int listen_unix(struct stream *stream, const char *text, struct socket_address *address, struct error *e)
{
	struct stat st;

	stream->address = strdup(text);
	stream->socket_name = strdup(address->name);
	if (!stream->address || !stream->socket_name)
		return error_set(e, -ENOMEM, "%s: no memory", text);
	int r = socket_listen_unix(stream->fd, address, e);
	if (r)
		return r;
	if (fstatat(address->dir_fd, address->name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return error_set(e, -errno, "%s: removed while it was made: %s", text, strerror(errno));
	stream->socket_dev = st.st_dev;
	stream->socket_ino = st.st_ino;
	stream->socket_dir_fd = address->dir_fd;
	address->dir_fd = -1;
	return 0;
}

int real_listen(struct env *env, const char *text, const struct stream_events *events, struct stream **ret,
		struct error *e)
{
	_cleanup_(socket_address_fini) struct socket_address address;
	int r = socket_address_parse(&address, text);
	if (r)
		return error_set(e, r, "%s: not an address to listen at: %s", text, strerror(-r));

	int fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return error_set(e, -errno, "%s: socket: %s", text, strerror(errno));
	_cleanup_(cleanup_stream_free) struct stream *stream = stream_new(real_of(env), &fd, address.is_unix, events);
	if (!stream)
		return error_set(e, -ENOMEM, "%s: no memory", text);

	stream->listening = true;
	r = address.is_unix ? listen_unix(stream, text, &address, e) : listen_tcp(stream, text, &address, e);
	if (r)
		return r;
	r = stream_watch(stream);
	if (r)
		return error_set(e, r, "%s: epoll: %s", text, strerror(-r));
	*ret = TAKE(stream);
	return 0;
}

int real_accept(struct stream *listener, const struct stream_events *events, struct stream **ret)
{
	int fd;

	CHECK_MAGIC(listener, STREAM_MAGIC);
	CHECK(listener->listening);
	do /* a connection that died while it waited is not ours to report */
		fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	while (fd < 0 && (errno == EINTR || errno == ECONNABORTED || errno == EPROTO));
	if (fd < 0)
		return -errno;

	set_nodelay(fd, listener->is_unix);
	_cleanup_(cleanup_stream_free) struct stream *stream =
		stream_new(listener->real, &fd, listener->is_unix, events);
	if (!stream)
		return -ENOMEM;
	int r = stream_watch(stream);
	if (r)
		return r;
	*ret = TAKE(stream);
	return 0;
}

/* Only a socket file that is still ours is removed, and before we stop listening, so that nobody takes it for dead. */
static void remove_socket_file(const struct stream *stream)
{
	struct stat st;

	if (stream->socket_dir_fd < 0)
		return;
	if (fstatat(stream->socket_dir_fd, stream->socket_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return;
	if (st.st_dev == stream->socket_dev && st.st_ino == stream->socket_ino)
		unlinkat(stream->socket_dir_fd, stream->socket_name, 0);
}

/* ---- connecting ---- */

int real_connect(struct env *env, const char *text, const struct stream_events *events, struct stream **ret)
{
	_cleanup_(socket_address_fini) struct socket_address address;
	int r = socket_address_parse(&address, text);
	if (r)
		return r;

	int fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	set_nodelay(fd, address.is_unix);
	_cleanup_(cleanup_stream_free) struct stream *stream = stream_new(real_of(env), &fd, address.is_unix, events);
	if (!stream)
		return -ENOMEM;

	do
		stream->status = connect(stream->fd, &address.any, address.len) < 0 ? -errno : 0;
	while (stream->status == -EINTR);
	r = stream_watch(stream); /* which stirs also for a connection that stands or has failed already */
	if (r)
		return r;
	*ret = TAKE(stream);
	return 0;
}

int real_stream_status(struct stream *stream)
{
	CHECK_MAGIC(stream, STREAM_MAGIC);
	return stream->status;
}

const char *real_address(struct stream *stream)
{
	CHECK_MAGIC(stream, STREAM_MAGIC);
	return stream->address;
}

/* ---- moving bytes ---- */

/* 0: bytes may pass. */
static int check_open(const struct stream *stream)
{
	CHECK_MAGIC(stream, STREAM_MAGIC);
	CHECK(!stream->bulk && !stream->listening);
	return stream->status == -EINPROGRESS ? -EAGAIN : stream->status;
}

ssize_t real_recv(struct stream *stream, void *p, size_t len)
{
	ssize_t n = check_open(stream);

	if (n)
		return n;
	do
		n = recv(stream->fd, p, len, MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n;
}

ssize_t real_send(struct stream *stream, const struct iovec *iov, int n, const struct arena *arena)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = { 0 };
	struct msghdr message = { .msg_iov = (struct iovec *)iov, .msg_iovlen = (size_t)(n < IOV_MAX ? n : IOV_MAX) };
	ssize_t sent = check_open(stream);

	if (sent)
		return sent;
	if (arena) {
		if (!stream->is_unix)
			return -EOPNOTSUPP;
		message.msg_control = &control;
		message.msg_controllen = sizeof(control);
		struct cmsghdr *head = CMSG_FIRSTHDR(&message);
		head->cmsg_level = SOL_SOCKET;
		head->cmsg_type = SCM_RIGHTS;
		head->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(head), &arena->fd, sizeof(int));
	}
	do
		sent = sendmsg(stream->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (sent < 0 && errno == EINTR);
	return sent < 0 ? -errno : sent;
}

/* ---- the end ---- */

void real_close(struct stream *stream)
{
	if (!stream)
		return;
	CHECK_MAGIC(stream, STREAM_MAGIC);

	struct real *real = stream->real;
	peer_unwatch(stream);
	task_cancel(&stream->ready);
	remove_socket_file(stream);
	if (stream->bulk) {
		stream->fd = -1; /* the mover's */
		bulk_close(&real->mover, stream->bulk);
	} else {
		epoll_ctl(real->epoll_fd, EPOLL_CTL_DEL, stream->fd, NULL);
	}
	CHECK(real->n_streams > 0);
	real->n_streams--;
	stream_free(stream);
}
