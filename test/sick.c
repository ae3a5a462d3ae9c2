/*
 * test/sick.c: a library to be preloaded (LD_PRELOAD) into a program whose machine shall be sick: calls of a kind fail or take long,
 * where and how often a control file says; and what reaches a disk is recorded, for a crash disk to be cut from.
 *
 * $SICK: the control file, struct control, mapped, so that a test changes it while the program runs. $SICK_RECORD: where records are
 * appended, of calls on paths that begin with $SICK_PREFIX. test/sick.py is the other side of both.
 *
 * A change is recorded once it is done, a sync before it begins and after it has succeeded. So what a record of a sync's beginning
 * follows is durable at the record of its end.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define PATH_BYTES    1024
#define CONTROL_BYTES 4096
#define FRAMES_MAX    30
#define EXPORT	      __attribute__((visibility("default")))

/* The kinds of calls: a bit each in control.kinds. sick.py has the same list. */
enum kind { MEMORY, OPEN, CREATE, WRITE, READ, SYNC, LINK, RENAME, UNLINK, MKDIR, TRUNCATE, STAT, LIST, SOCKET };

struct control {
	_Atomic uint32_t kinds;	  /* that are meant */
	_Atomic int32_t error;	  /* an errno; 0: none fails */
	_Atomic int32_t after;	  /* so many of those that are meant do not fail, */
	_Atomic int32_t times;	  /* then so many do; -1: all */
	_Atomic uint32_t slow_ms; /* each takes that long, until it is 0 */
	_Atomic uint32_t seen;	  /* of those that are meant */
	_Atomic uint32_t failed;
	uint32_t spare;
	char path[PATH_BYTES]; /* calls on paths that contain it are meant; empty: all */
};

struct record {
	uint32_t kind; /* enum kind; SYNC: with arg 0 before, 1 after; WRITE: arg 1 when it is synced by itself */
	uint32_t arg;
	uint64_t inode, offset, data_bytes;
	uint32_t path_bytes, other_bytes; /* after this: path, the other path, data */
};

static struct control nothing, *control = &nothing;
static int record_fd = -1;
static char prefix[PATH_BYTES];
static size_t prefix_len;

/* ---- the calls that we stand before ---- */

#define REAL(name) ((__typeof__(&name))real_of(#name))

static void *real_of(const char *name)
{
	void *found = dlsym(RTLD_NEXT, name);

	if (!found)
		abort();
	return found;
}

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t size);
void *__libc_memalign(size_t align, size_t size);

static _Thread_local bool inside; /* our own calls are not meant */

/* Where it was, for the test's words; a debugger is seldom there when it happens. */
static void on_crash(int number)
{
	void *frames[FRAMES_MAX];

	inside = true;
	backtrace_symbols_fd(frames, backtrace(frames, FRAMES_MAX), STDERR_FILENO);
	signal(number, SIG_DFL);
	raise(number);
}

__attribute__((constructor)) static void begin(void)
{
	signal(SIGSEGV, on_crash);
	signal(SIGABRT, on_crash);

	const char *path = getenv("SICK"), *record = getenv("SICK_RECORD"), *where = getenv("SICK_PREFIX");
	int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;

	if (fd >= 0) {
		void *map = mmap(NULL, CONTROL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

		close(fd);
		if (map != MAP_FAILED)
			control = map;
	}
	if (record && where) {
		prefix_len = (size_t)snprintf(prefix, sizeof(prefix), "%s", where);
		record_fd = open(record, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
	}
}

/* ---- where a call leads ---- */

static void path_of_fd(int fd, char out[PATH_BYTES])
{
	char link[32];

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	long n = syscall(SYS_readlinkat, AT_FDCWD, link, out, PATH_BYTES - 1);
	out[n > 0 ? n : 0] = 0;
}

static void path_at(int dir, const char *path, char out[PATH_BYTES])
{
	out[0] = 0;
	if (*path == '/' || dir == AT_FDCWD) {
		snprintf(out, PATH_BYTES, "%s", path);
		return;
	}
	path_of_fd(dir, out);
	size_t n = strlen(out);
	if (strcmp(path, ".") != 0 && n < PATH_BYTES - 1)
		snprintf(out + n, PATH_BYTES - n, "/%s", path);
}

static bool is_file(int fd)
{
	struct stat st;

	return syscall(SYS_fstat, fd, &st) == 0 && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode));
}

/* ---- failing ---- */

static int errno_of(enum kind kind)
{
	int own = atomic_load(&control->error);

	return own > 0 ? own : kind == MEMORY ? ENOMEM : kind == SOCKET ? ECONNRESET : EIO;
}

/* So long, or until it is healed. */
static void dawdle(uint32_t ms)
{
	for (; ms && atomic_load(&control->slow_ms); ms -= ms < 10 ? ms : 10) {
		struct timespec left = { .tv_nsec = (long)(ms < 10 ? ms : 10) * 1000000 };

		while (nanosleep(&left, &left) && errno == EINTR)
			;
	}
}

/* One of what is left; never below 0. */
static bool takes_one(_Atomic int32_t *left)
{
	int32_t n = atomic_load(left);

	while (n > 0 && !atomic_compare_exchange_weak(left, &n, n - 1))
		;
	return n > 0;
}

static bool counts_down(void)
{
	if (!atomic_load(&control->error))
		return false;
	return !takes_one(&control->after) && (atomic_load(&control->times) < 0 || takes_one(&control->times));
}

/* Does this call fail? Then errno is set. @path may be NULL: a call that leads nowhere. */
static bool fails(enum kind kind, const char *path)
{
	if (inside || !(atomic_load(&control->kinds) >> kind & 1))
		return false;
	if (path && control->path[0] && !strstr(path, control->path))
		return false;
	atomic_fetch_add(&control->seen, 1);
	uint32_t slow_ms = atomic_load(&control->slow_ms);
	if (slow_ms)
		dawdle(slow_ms);
	if (!counts_down())
		return false;
	atomic_fetch_add(&control->failed, 1);
	errno = errno_of(kind);
	return true;
}

static bool is_watched(enum kind kind)
{
	return record_fd >= 0 || (!inside && atomic_load(&control->kinds) >> kind & 1);
}

/* A call on @fd. Its path is looked up only where somebody wants to know; sockets and pipes have none of these kinds. */
static bool fd_fails(enum kind kind, int fd, char path[PATH_BYTES])
{
	path[0] = 0;
	if (!is_watched(kind) || !is_file(fd))
		return false;
	path_of_fd(fd, path);
	return fails(kind, path);
}

static bool path_fails(enum kind kind, int dir, const char *name, char path[PATH_BYTES])
{
	path[0] = 0;
	if (!is_watched(kind))
		return false;
	path_at(dir, name, path);
	return fails(kind, path);
}

/* ---- recording ---- */

static bool is_recorded(const char *path)
{
	return record_fd >= 0 && prefix_len && !strncmp(path, prefix, prefix_len);
}

static void record(enum kind kind, uint32_t arg, int fd, uint64_t offset, const char *path, const char *other,
		   struct iovec data)
{
	int before = errno;
	struct stat st = { 0 };

	if (!is_recorded(path))
		return;
	if (fd >= 0)
		(void)syscall(SYS_fstat, fd, &st);
	struct record head = { .kind = kind,
			       .arg = arg,
			       .inode = st.st_ino,
			       .offset = offset,
			       .data_bytes = data.iov_len,
			       .path_bytes = (uint32_t)strlen(path),
			       .other_bytes = other ? (uint32_t)strlen(other) : 0 };
	const struct iovec all[] = { { &head, sizeof(head) },
				     { (void *)path, head.path_bytes },
				     { (void *)other, head.other_bytes },
				     data };
	if (syscall(SYS_writev, record_fd, all, 4) < 0)
		abort(); /* a record with a hole proves nothing */
	errno = before;
}

static const struct iovec no_data;

/* ---- memory ---- */

EXPORT void *malloc(size_t size)
{
	return fails(MEMORY, NULL) ? NULL : __libc_malloc(size);
}

EXPORT void *calloc(size_t n, size_t size)
{
	return fails(MEMORY, NULL) ? NULL : __libc_calloc(n, size);
}

EXPORT void *realloc(void *p, size_t size)
{
	return fails(MEMORY, NULL) ? NULL : __libc_realloc(p, size);
}

EXPORT void *aligned_alloc(size_t align, size_t size)
{
	return fails(MEMORY, NULL) ? NULL : __libc_memalign(align, size);
}

EXPORT int posix_memalign(void **ret, size_t align, size_t size)
{
	if (fails(MEMORY, NULL))
		return ENOMEM;
	*ret = __libc_memalign(align, size);
	return *ret ? 0 : ENOMEM;
}

/* ---- files ---- */

/* What the kernel does for openat and openat2 alike. */
static int opened(long fd, int flags, const char *path)
{
	if (fd >= 0 && flags & O_CREAT)
		record(CREATE, 0, (int)fd, 0, path, NULL, no_data);
	if (fd >= 0 && flags & O_TRUNC)
		record(TRUNCATE, 0, (int)fd, 0, path, NULL, no_data);
	return (int)fd;
}

static int open_at(int dir, const char *name, int flags, mode_t mode)
{
	char path[PATH_BYTES];

	if (path_fails(flags & O_CREAT ? CREATE : OPEN, dir, name, path))
		return -1;
	return opened(syscall(SYS_openat, dir, name, flags, mode), flags, path);
}

static mode_t mode_arg(int flags, va_list ap)
{
	return flags & (O_CREAT | __O_TMPFILE) ? va_arg(ap, mode_t) : 0;
}

#define OPEN_AT(name)                                               \
	EXPORT int name(int dir, const char *path, int flags, ...); \
	EXPORT int name(int dir, const char *path, int flags, ...)  \
	{                                                           \
		va_list ap;                                         \
		va_start(ap, flags);                                \
		mode_t mode = mode_arg(flags, ap);                  \
		va_end(ap);                                         \
		return open_at(dir, path, flags, mode);             \
	}
#define OPEN_HERE(name)                                      \
	EXPORT int name(const char *path, int flags, ...);   \
	EXPORT int name(const char *path, int flags, ...)    \
	{                                                    \
		va_list ap;                                  \
		va_start(ap, flags);                         \
		mode_t mode = mode_arg(flags, ap);           \
		va_end(ap);                                  \
		return open_at(AT_FDCWD, path, flags, mode); \
	}
OPEN_AT(openat)
OPEN_AT(openat64)
OPEN_HERE(open)
OPEN_HERE(open64)

/* openat2 has no wrapper in libc. Every other number goes on as it came. */
EXPORT long syscall(long number, ...)
{
	static long (*real)(long, ...);
	char path[PATH_BYTES];
	long arg[6];
	va_list ap;

	va_start(ap, number);
	for (int i = 0; i < 6; i++)
		arg[i] = va_arg(ap, long);
	va_end(ap);
	if (!real)
		real = REAL(syscall);
	const struct open_how *how = number == SYS_openat2 ? (const struct open_how *)arg[2] : NULL;
	if (how && path_fails(how->flags & O_CREAT ? CREATE : OPEN, (int)arg[0], (const char *)arg[1], path))
		return -1;
	long r = real(number, arg[0], arg[1], arg[2], arg[3], arg[4], arg[5]);
	return how ? opened(r, (int)how->flags, path) : r;
}

static bool is_synced_by_itself(int fd)
{
	return fcntl(fd, F_GETFL) & O_DSYNC;
}

static ssize_t wrote(ssize_t n, int fd, const void *p, off_t at, const char *path)
{
	if (n > 0)
		record(WRITE, is_synced_by_itself(fd), fd, (uint64_t)at, path, NULL,
		       (struct iovec){ (void *)p, (size_t)n });
	return n;
}

#define PWRITE(name)                                                                  \
	EXPORT ssize_t name(int fd, const void *p, size_t len, off_t at);             \
	EXPORT ssize_t name(int fd, const void *p, size_t len, off_t at)              \
	{                                                                             \
		char path[PATH_BYTES];                                                \
		if (fd_fails(WRITE, fd, path))                                        \
			return -1;                                                    \
		return wrote(syscall(SYS_pwrite64, fd, p, len, at), fd, p, at, path); \
	}
#define PREAD(name)                                                 \
	EXPORT ssize_t name(int fd, void *p, size_t len, off_t at); \
	EXPORT ssize_t name(int fd, void *p, size_t len, off_t at)  \
	{                                                           \
		char path[PATH_BYTES];                              \
		if (fd_fails(READ, fd, path))                       \
			return -1;                                  \
		return syscall(SYS_pread64, fd, p, len, at);        \
	}
PWRITE(pwrite)
PWRITE(pwrite64)
PREAD(pread)
PREAD(pread64)

EXPORT ssize_t write(int fd, const void *p, size_t len)
{
	char path[PATH_BYTES];
	off_t at = 0;

	if (fd_fails(WRITE, fd, path))
		return -1;
	if (is_recorded(path))
		at = lseek(fd, 0, SEEK_CUR);
	return wrote(syscall(SYS_write, fd, p, len), fd, p, at, path);
}

EXPORT ssize_t writev(int fd, const struct iovec *vec, int n)
{
	char path[PATH_BYTES];
	off_t at = 0;

	if (fd_fails(WRITE, fd, path))
		return -1;
	if (is_recorded(path))
		at = lseek(fd, 0, SEEK_CUR);
	ssize_t done = syscall(SYS_writev, fd, vec, n), left = done;
	for (int i = 0; i < n && left > 0; i++) {
		ssize_t part = left < (ssize_t)vec[i].iov_len ? left : (ssize_t)vec[i].iov_len;

		wrote(part, fd, vec[i].iov_base, at, path);
		at += part;
		left -= part;
	}
	return done;
}

EXPORT ssize_t read(int fd, void *p, size_t len)
{
	char path[PATH_BYTES];

	return fd_fails(READ, fd, path) ? -1 : syscall(SYS_read, fd, p, len);
}

static int sync_fd(int fd, long number)
{
	char path[PATH_BYTES];

	if (fd_fails(SYNC, fd, path))
		return -1;
	record(SYNC, 0, fd, 0, path, NULL, no_data);
	int r = (int)syscall(number, fd);
	if (!r)
		record(SYNC, 1, fd, 0, path, NULL, no_data);
	return r;
}

EXPORT int fsync(int fd)
{
	return sync_fd(fd, SYS_fsync);
}

EXPORT int fdatasync(int fd)
{
	return sync_fd(fd, SYS_fdatasync);
}

EXPORT int msync(void *p, size_t len, int flags)
{
	return fails(SYNC, NULL) ? -1 : (int)syscall(SYS_msync, p, len, flags);
}

static int truncate_fd(int fd, off_t size)
{
	char path[PATH_BYTES];

	if (fd_fails(TRUNCATE, fd, path))
		return -1;
	int r = (int)syscall(SYS_ftruncate, fd, size);
	if (!r)
		record(TRUNCATE, 0, fd, (uint64_t)size, path, NULL, no_data);
	return r;
}

EXPORT int ftruncate(int fd, off_t size);
EXPORT int ftruncate64(int fd, off_t size);

int ftruncate(int fd, off_t size)
{
	return truncate_fd(fd, size);
}

int ftruncate64(int fd, off_t size)
{
	return truncate_fd(fd, size);
}

EXPORT int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags)
{
	char path[PATH_BYTES], other[PATH_BYTES] = "";

	if (path_fails(LINK, to_dir, to, other))
		return -1;
	int r = (int)syscall(SYS_linkat, from_dir, from, to_dir, to, flags);
	if (!r && record_fd >= 0) {
		path_at(from_dir, from, path);
		record(LINK, 0, -1, 0, path, other, no_data);
	}
	return r;
}

static int rename_at(int from_dir, const char *from, int to_dir, const char *to)
{
	char path[PATH_BYTES], other[PATH_BYTES] = "";

	if (path_fails(RENAME, to_dir, to, other))
		return -1;
	int r = (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, 0);
	if (!r && record_fd >= 0) {
		path_at(from_dir, from, path);
		record(RENAME, 0, -1, 0, path, other, no_data);
	}
	return r;
}

EXPORT int renameat(int from_dir, const char *from, int to_dir, const char *to)
{
	return rename_at(from_dir, from, to_dir, to);
}

EXPORT int rename(const char *from, const char *to)
{
	return rename_at(AT_FDCWD, from, AT_FDCWD, to);
}

static int unlink_at(int dir, const char *name, int flags)
{
	char path[PATH_BYTES];

	if (path_fails(UNLINK, dir, name, path))
		return -1;
	int r = (int)syscall(SYS_unlinkat, dir, name, flags);
	if (!r)
		record(UNLINK, 0, -1, 0, path, NULL, no_data);
	return r;
}

EXPORT int unlinkat(int dir, const char *name, int flags)
{
	return unlink_at(dir, name, flags);
}

EXPORT int unlink(const char *name)
{
	return unlink_at(AT_FDCWD, name, 0);
}

static int mkdir_at(int dir, const char *name, mode_t mode)
{
	char path[PATH_BYTES];

	if (path_fails(MKDIR, dir, name, path))
		return -1;
	int r = (int)syscall(SYS_mkdirat, dir, name, mode);
	if (!r)
		record(MKDIR, 0, -1, 0, path, NULL, no_data);
	return r;
}

EXPORT int mkdirat(int dir, const char *name, mode_t mode)
{
	return mkdir_at(dir, name, mode);
}

EXPORT int mkdir(const char *name, mode_t mode)
{
	return mkdir_at(AT_FDCWD, name, mode);
}

static int stat_at(int dir, const char *name, void *st, int flags)
{
	char path[PATH_BYTES];

	return path_fails(STAT, dir, name, path) ? -1 : (int)syscall(SYS_newfstatat, dir, name, st, flags);
}

EXPORT int fstatat(int dir, const char *name, struct stat *st, int flags)
{
	return stat_at(dir, name, st, flags);
}

EXPORT int fstatat64(int dir, const char *name, struct stat64 *st, int flags)
{
	return stat_at(dir, name, st, flags);
}

EXPORT DIR *fdopendir(int fd)
{
	char path[PATH_BYTES];

	return fd_fails(LIST, fd, path) ? NULL : REAL(fdopendir)(fd);
}

/* ---- sockets ---- */

#define SOCKET_CALL(type, name, params, args)                      \
	EXPORT type name params                                    \
	{                                                          \
		static __typeof__(&name) real;                     \
		if (!real)                                         \
			real = REAL(name);                         \
		return fails(SOCKET, NULL) ? (type)-1 : real args; \
	}
SOCKET_CALL(int, socket, (int domain, int type, int protocol), (domain, type, protocol))
SOCKET_CALL(int, bind, (int fd, const struct sockaddr *addr, socklen_t len), (fd, addr, len))
SOCKET_CALL(int, listen, (int fd, int n), (fd, n))
SOCKET_CALL(int, connect, (int fd, const struct sockaddr *addr, socklen_t len), (fd, addr, len))
SOCKET_CALL(int, accept4, (int fd, struct sockaddr *addr, socklen_t *len, int flags), (fd, addr, len, flags))
SOCKET_CALL(ssize_t, send, (int fd, const void *p, size_t len, int flags), (fd, p, len, flags))
SOCKET_CALL(ssize_t, recv, (int fd, void *p, size_t len, int flags), (fd, p, len, flags))
SOCKET_CALL(ssize_t, sendmsg, (int fd, const struct msghdr *msg, int flags), (fd, msg, flags))
SOCKET_CALL(ssize_t, recvmsg, (int fd, struct msghdr *msg, int flags), (fd, msg, flags))
SOCKET_CALL(int, setsockopt, (int fd, int level, int name_, const void *p, socklen_t len), (fd, level, name_, p, len))
SOCKET_CALL(int, epoll_ctl, (int fd, int op, int on, struct epoll_event *event), (fd, op, on, event))
