/*
 * Addresses, and unix sockets as files.
 *
 * A socket file outlives its owner. Whoever finds one asks it: a connection that is refused means that nobody listens any
 * more. Two daemons that start together could both find the same dead socket, and the second would remove the first one's
 * new one; so asking, removing, binding and listening happen under a lock on the directory, which leaves no file behind.
 */
#include "env/real.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"

#define SOCKET_MODE    0660
#define DIR_LOCK_TRIES 1000 /* of a millisecond: who holds the lock is about to listen */
#define TCP_TEXT_MAX   64   /* "tcp:[...]:65535" */

/* ---- parsing ---- */

/* "HOST:PORT", HOST an IPv4 address, or an IPv6 address in brackets. */
static int parse_tcp(struct socket_address *address, const char *text)
{
	const char *colon = strrchr(text, ':');
	char host[INET6_ADDRSTRLEN + 2];
	char *end;

	if (!colon || colon == text || (size_t)(colon - text) >= sizeof(host))
		return -EINVAL;
	memcpy(host, text, (size_t)(colon - text));
	host[colon - text] = 0;
	if (colon[1] < '0' || colon[1] > '9')
		return -EINVAL;
	unsigned long port = strtoul(colon + 1, &end, 10);
	if (*end || port > UINT16_MAX)
		return -EINVAL;

	size_t len = strlen(host);
	if (host[0] == '[' && host[len - 1] == ']') {
		struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&address->storage;

		host[len - 1] = 0;
		*in6 = (struct sockaddr_in6){ .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port) };
		address->len = sizeof(*in6);
		return inet_pton(AF_INET6, host + 1, &in6->sin6_addr) == 1 ? 0 : -EINVAL;
	}
	struct sockaddr_in *in = (struct sockaddr_in *)&address->storage;

	*in = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
	address->len = sizeof(*in);
	return inet_pton(AF_INET, host, &in->sin_addr) == 1 ? 0 : -EINVAL;
}

static int open_parent(const char *path, const char *name)
{
	_cleanup_(cleanup_mem) char *parent = name == path ? strdup(".") : strndup(path, (size_t)(name - path));

	if (!parent)
		return -ENOMEM;
	int fd = open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 && errno == EACCES) /* a client may pass through a directory that it cannot list */
		fd = open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

static int parse_unix(struct socket_address *address, const char *path)
{
	struct sockaddr_un *un = &address->un;

	address->is_unix = true;
	address->path = strdup(path);
	if (!address->path)
		return -ENOMEM;
	char *slash = strrchr(address->path, '/');
	address->name = slash ? slash + 1 : address->path;
	if (!*address->name)
		return -EINVAL;
	address->dir_fd = open_parent(address->path, address->name);
	if (address->dir_fd < 0)
		return address->dir_fd;

	*un = (struct sockaddr_un){ .sun_family = AF_UNIX };
	address->len = sizeof(*un);
	if (strlen(path) < sizeof(un->sun_path)) {
		memcpy(un->sun_path, path, strlen(path));
		return 0;
	}
	int n = snprintf(un->sun_path, sizeof(un->sun_path), "/proc/self/fd/%d/%s", address->dir_fd, address->name);
	return n < (int)sizeof(un->sun_path) ? 0 : -ENAMETOOLONG;
}

int socket_address_parse(struct socket_address *address, const char *text)
{
	int r = -EINVAL;

	memset(address, 0, sizeof(*address));
	address->dir_fd = -1;
	if (!strncmp(text, "tcp:", 4))
		r = parse_tcp(address, text + 4);
	else if (!strncmp(text, "unix:", 5))
		r = parse_unix(address, text + 5);
	if (r)
		socket_address_fini(address);
	return r;
}

void socket_address_fini(struct socket_address *address)
{
	fd_close(&address->dir_fd);
	free(address->path);
	address->path = address->name = NULL;
}

char *socket_address_text(int fd)
{
	struct sockaddr_storage storage;
	socklen_t len = sizeof(storage);
	char host[INET6_ADDRSTRLEN], text[TCP_TEXT_MAX];

	if (getsockname(fd, (struct sockaddr *)&storage, &len) < 0)
		return NULL;
	if (storage.ss_family == AF_INET) {
		const struct sockaddr_in *in = (struct sockaddr_in *)&storage;

		inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host));
		snprintf(text, sizeof(text), "tcp:%s:%u", host, ntohs(in->sin_port));
	} else {
		const struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&storage;

		inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof(host));
		snprintf(text, sizeof(text), "tcp:[%s]:%u", host, ntohs(in6->sin6_port));
	}
	return strdup(text);
}

/* ---- listening at a unix path ---- */

static int lock_directory(const struct socket_address *address, struct error *e)
{
	const struct timespec pause = { .tv_nsec = NS_PER_MS };

	for (int i = 0; i < DIR_LOCK_TRIES; i++) {
		if (flock(address->dir_fd, LOCK_EX | LOCK_NB) == 0)
			return 0;
		if (errno != EWOULDBLOCK && errno != EINTR)
			return 0; /* a file system without locks, or an O_PATH descriptor: go on without */
		nanosleep(&pause, NULL);
	}
	return error_set(e, -EADDRINUSE,
			 "unix:%s: its directory is locked by another process that is about to listen there",
			 address->path);
}

static void unlock_directory(const int *dir_fd)
{
	flock(*dir_fd, LOCK_UN);
}

/* 0: there is nothing, or a socket that nobody listens at, which is removed. */
static int make_room(const struct socket_address *address, struct error *e)
{
	struct stat st;

	if (fstatat(address->dir_fd, address->name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT ? 0 : error_set(e, -errno, "unix:%s: %s", address->path, strerror(errno));
	if (!S_ISSOCK(st.st_mode))
		return error_set(e, -EEXIST, "unix:%s: there is something else than a socket, which is left alone",
				 address->path);

	_cleanup_(fd_close) int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return error_set(e, -errno, "unix:%s: socket: %s", address->path, strerror(errno));
	if (connect(fd, &address->any, address->len) == 0) {
		struct ucred owner = { 0 };
		socklen_t len = sizeof(owner);

		getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &owner, &len);
		return error_set(e, -EADDRINUSE, "unix:%s: process %d listens there", address->path, owner.pid);
	}
	if (errno == EAGAIN || errno == EPROTOTYPE)
		return error_set(e, -EADDRINUSE, "unix:%s: another process listens there", address->path);
	if (errno != ECONNREFUSED)
		return error_set(e, -errno, "unix:%s: cannot find out whether anybody listens there: %s", address->path,
				 strerror(errno));
	if (unlinkat(address->dir_fd, address->name, 0) < 0 && errno != ENOENT)
		return error_set(e, -errno, "unix:%s: cannot remove the socket that a dead process left: %s",
				 address->path, strerror(errno));
	return 0;
}

int socket_listen_unix(int fd, const struct socket_address *address, struct error *e)
{
	int r = lock_directory(address, e);
	if (r)
		return r;
	_cleanup_(unlock_directory) int locked = address->dir_fd;

	r = make_room(address, e);
	if (r)
		return r;
	/* The mode before the bind keeps it from being wider for a moment; after it, the umask has had its way. */
	if (fchmod(fd, SOCKET_MODE) < 0 || bind(fd, &address->any, address->len) < 0)
		return error_set(e, -errno, "unix:%s: cannot bind: %s", address->path, strerror(errno));
	if (fchmodat(locked, address->name, SOCKET_MODE, 0) < 0 || listen(fd, LISTEN_BACKLOG) < 0) {
		r = error_set(e, -errno, "unix:%s: cannot listen: %s", address->path, strerror(errno));
		unlinkat(locked, address->name, 0);
		return r;
	}
	return 0;
}
