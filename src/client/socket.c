/*
 * client/socket.c: the daemon's unix socket, and the arenas whose descriptors come through it.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/session.h"

/* A path longer than sockaddr_un has room for is reached through its directory's descriptor. */
static int set_address(const char *path, struct sockaddr_un *address, int *ret_dir)
{
	const char *slash = strrchr(path, '/');
	int n;

	*ret_dir = -1;
	address->sun_family = AF_UNIX;
	if (strlen(path) < sizeof(address->sun_path)) {
		memcpy(address->sun_path, path, strlen(path) + 1);
		return 0;
	}
	if (!slash)
		return -ENAMETOOLONG;
	_cleanup_(cleanup_mem) char *dir = strndup(path, (size_t)(slash - path) + 1);
	if (!dir)
		return -ENOMEM;
	*ret_dir = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (*ret_dir < 0)
		return -errno;
	n = snprintf(address->sun_path, sizeof(address->sun_path), "/proc/self/fd/%d/%s", *ret_dir, slash + 1);
	return n < (int)sizeof(address->sun_path) ? 0 : -ENAMETOOLONG;
}

static int connect_to(int fd, const char *path, int timeout_ms)
{
	struct timeval timeout = { .tv_sec = timeout_ms / 1000, .tv_usec = timeout_ms % 1000 * 1000 };
	struct sockaddr_un address = { 0 };
	int dir = -1;
	int r = set_address(path, &address, &dir);

	if (!r && setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout))) /* bounds connect() as well */
		r = -errno;
	if (!r && connect(fd, (const struct sockaddr *)&address, sizeof(address)))
		r = errno == EAGAIN ? -ETIMEDOUT : -errno;
	if (!r && fcntl(fd, F_SETFL, O_NONBLOCK))
		r = -errno;
	if (dir >= 0)
		close(dir);
	return r;
}

int socket_connect(const char *path, int timeout_ms, int *ret_fd, struct error *e)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return error_set(e, -errno, "no socket: %s", error_meaning(errno));
	int r = connect_to(fd, path, timeout_ms);
	if (!r) {
		*ret_fd = fd;
		return 0;
	}
	close(fd);
	if (r == -ENOENT)
		return error_set(e, r, "no daemon at %s: there is no such socket", path);
	if (r == -ECONNREFUSED)
		return error_set(e, r, "no daemon at %s: nobody listens there", path);
	if (r == -ETIMEDOUT)
		return error_set(e, r, "the daemon at %s does not take the connection", path);
	return error_set(e, r, "cannot connect to the daemon at %s: %s", path, error_meaning(r));
}

ssize_t socket_recv(int fd, uint8_t *bytes, int *ret_descriptors, unsigned *ret_n_descriptors)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(DESCRIPTORS_MAX * sizeof(int))];
	struct iovec iov = { bytes, RECV_BYTES };
	struct msghdr message = { .msg_iov = &iov,
				  .msg_iovlen = 1,
				  .msg_control = control,
				  .msg_controllen = sizeof(control) };

	*ret_n_descriptors = 0;
	ssize_t n = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0)
		return -errno;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		*ret_n_descriptors = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		memcpy(ret_descriptors, CMSG_DATA(c), *ret_n_descriptors * sizeof(int));
	}
	return n;
}

/* ---- arenas ---------------------------------------------------------------------------------------------------------------- */

static int map(int fd, uint64_t bytes, bool writable, void **ret, struct error *e)
{
	struct stat st;

	if (fstat(fd, &st))
		return error_set(e, -errno, "the daemon's arena: %s", error_meaning(errno));
	if (st.st_size < 0 || (uint64_t)st.st_size < bytes)
		return error_set(e, -EPROTO, "the daemon's arena has %jd bytes, not %" PRIu64, (intmax_t)st.st_size,
				 bytes);
	void *ptr = mmap(NULL, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED, fd, 0);
	if (ptr == MAP_FAILED)
		return error_set(e, -errno, "cannot map the daemon's arena of %" PRIu64 " bytes: %s", bytes,
				 error_meaning(errno));
	madvise(ptr, bytes, MADV_DONTFORK); /* a forked process has no session */
	*ret = ptr;
	return 0;
}

int socket_map_arena(void *arg, uint64_t id, uint64_t bytes, bool writable, uint8_t **ret_ptr, struct error *e)
{
	struct forebay_session *session = arg;
	void *ptr = NULL;

	if (!session->n_descriptors || session->n_maps == MAPS_MAX)
		return error_set(e, -EPROTO, "the daemon announces arena %" PRIu64 " and sends no descriptor", id);
	int fd = session->descriptors[0];
	session->n_descriptors--;
	memmove(session->descriptors, session->descriptors + 1, session->n_descriptors * sizeof(int));
	int r = map(fd, bytes, writable, &ptr, e);
	close(fd);
	if (r)
		return r;
	session->maps[session->n_maps].ptr = ptr;
	session->maps[session->n_maps].len = bytes;
	session->n_maps++;
	*ret_ptr = ptr;
	return 0;
}

void socket_unmap_arenas(struct forebay_session *session)
{
	while (session->n_maps) {
		session->n_maps--;
		munmap(session->maps[session->n_maps].ptr, session->maps[session->n_maps].len);
	}
	while (session->n_descriptors)
		close(session->descriptors[--session->n_descriptors]);
}
