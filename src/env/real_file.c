/*
 * Files below a directory that was opened once. Paths are relative to it and cannot leave it: the kernel resolves them
 * beneath its descriptor (openat2), and where it cannot, ".." is refused here.
 */
#include "env/real.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"

#define LIST_NAMES_MAX (1u << 22) /* in one directory */
/* A store has the bytes of all tenants, and whoever may connect is often of the daemon's group: neither it nor others may read there. */
#define DIR_MODE  0700
#define FILE_MODE 0600

struct dir {
	uint32_t magic;
	int fd;
};

struct file {
	uint32_t magic;
	int fd;
};

/* ---- paths ---- */

/* Relative, not empty, without a ".." that could lead out. */
static bool path_is_sane(const char *path)
{
	if (*path == '/' || !*path)
		return false;
	for (const char *part = path; part; part = strchr(part, '/')) {
		part += *part == '/';
		if (part[0] == '.' && part[1] == '.' && (part[2] == '/' || !part[2]))
			return false;
	}
	return true;
}

static int retry_openat(int dir_fd, const char *path, int flags, mode_t mode)
{
	int fd;

	do
		fd = openat(dir_fd, path, flags, mode);
	while (fd < 0 && errno == EINTR);
	return fd < 0 ? -errno : fd;
}

/* The descriptor, or a negative errno. -EXDEV: a symbolic link leads out of the directory. */
static int open_beneath(const struct dir *dir, const char *path, int flags, mode_t mode)
{
	flags |= flags & O_PATH ? O_CLOEXEC : O_CLOEXEC | O_NOCTTY; /* with O_PATH the kernel wants no idle flags */
	struct open_how how = {
		.flags = (uint64_t)flags,
		.mode = flags & O_CREAT ? mode : 0,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS,
	};
	long fd;

	if (!path_is_sane(path))
		return -EINVAL;
	do
		fd = syscall(SYS_openat2, dir->fd, path, &how, sizeof(how));
	while (fd < 0 && (errno == EINTR || errno == EAGAIN)); /* -EAGAIN: something was renamed on the way */
	if (fd >= 0)
		return (int)fd;
	if (errno != ENOSYS && errno != EPERM) /* before Linux 5.6, or a container's filter that does not know it */
		return -errno;
	return retry_openat(dir->fd, path, flags, mode);
}

/* Where the last part of a path stands: a directory, open, and the name in it. */
struct place {
	int fd; /* to be closed, if it is not the dir's own */
	bool owned;
	const char *name;
};

static void place_fini(struct place *place)
{
	if (place->owned)
		fd_close(&place->fd);
}

static int place_find(const struct dir *dir, const char *path, struct place *ret)
{
	const char *slash = strrchr(path, '/');

	CHECK_MAGIC(dir, DIR_MAGIC);
	if (!path_is_sane(path) || (slash && !slash[1]))
		return -EINVAL;
	if (!slash) {
		*ret = (struct place){ .fd = dir->fd, .name = path };
		return 0;
	}
	_cleanup_(cleanup_mem) char *parent = strndup(path, (size_t)(slash - path));
	if (!parent)
		return -ENOMEM;
	int fd = open_beneath(dir, parent, O_PATH | O_DIRECTORY, 0);
	if (fd < 0)
		return fd;
	*ret = (struct place){ .fd = fd, .owned = true, .name = slash + 1 };
	return 0;
}

static const char *or_dot(const char *path)
{
	return *path ? path : ".";
}

/* fsync cannot be interrupted half-way: after -EINTR it is simply asked again. */
static int sync_fd(int fd)
{
	int r;

	do
		r = fsync(fd) < 0 ? -errno : 0;
	while (r == -EINTR);
	return r;
}

/* ---- directories ---- */

/* Makes @path with its parents. Each directory that gained one is synced, so that the new one survives a crash. */
static int make_with_parents(const char *path)
{
	_cleanup_(cleanup_mem) char *copy = strdup(path);

	if (!copy)
		return -ENOMEM;
	for (char *at = copy + 1; *copy; at++) {
		if (*at && *at != '/')
			continue;
		bool last = !*at;
		*at = 0;
		if (mkdir(copy, DIR_MODE) < 0 && errno != EEXIST)
			return -errno;
		if (last)
			return 0;
		*at = '/';
	}
	return -EINVAL;
}

static int sync_parent_of(int dir_fd)
{
	_cleanup_(fd_close) int parent = retry_openat(dir_fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);

	return parent < 0 ? parent : sync_fd(parent);
}

int real_dir_open(struct env *env, const char *path, bool create, struct dir **ret, struct error *e)
{
	int r = 0;
	_cleanup_(fd_close) int fd = retry_openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);

	if (fd == -ENOENT && create) {
		r = make_with_parents(path);
		if (r)
			return error_set(e, r, "%s: cannot make the directory: %s", path, strerror(-r));
		fd = retry_openat(AT_FDCWD, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
		if (fd >= 0)
			r = sync_parent_of(fd);
	}
	if (fd < 0 || r)
		return error_set(e, r ? r : fd, "%s: cannot open the directory: %s", path, strerror(r ? -r : -fd));

	struct dir *dir = malloc(sizeof(*dir));
	if (!dir)
		return error_set(e, -ENOMEM, "%s: no memory", path);
	*dir = (struct dir){ .magic = DIR_MAGIC, .fd = fd };
	fd = -1;
	*ret = dir;
	return 0;
}

void real_dir_close(struct dir *dir)
{
	if (!dir)
		return;
	CHECK_MAGIC(dir, DIR_MAGIC);
	fd_close(&dir->fd);
	dir->magic = 0;
	free(dir);
}

/*
 * Syncs each parent even if the directory was there: whoever made it may not have come to that yet, and what we store in
 * it must not hang on that.
 */
int real_mkdirs(struct dir *dir, const char *path)
{
	_cleanup_(cleanup_mem) char *copy = strdup(path);

	CHECK_MAGIC(dir, DIR_MAGIC);
	if (!copy)
		return -ENOMEM;
	if (!path_is_sane(path))
		return -EINVAL;

	_cleanup_(fd_close) int parent = retry_openat(dir->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
	for (char *name = copy; name && *name;) {
		if (parent < 0)
			return parent;
		char *slash = strchr(name, '/');
		if (slash)
			*slash = 0;
		if (mkdirat(parent, name, DIR_MODE) < 0 && errno != EEXIST)
			return -errno;
		int r = sync_fd(parent);
		if (r)
			return r;
		fd_close(&parent);
		parent = open_beneath(dir, copy, O_RDONLY | O_DIRECTORY, 0);
		if (slash)
			*slash = '/';
		name = slash ? slash + 1 : NULL;
	}
	return parent < 0 ? parent : 0;
}

int real_sync_dir(struct dir *dir, const char *path)
{
	CHECK_MAGIC(dir, DIR_MAGIC);
	_cleanup_(fd_close) int fd = open_beneath(dir, or_dot(path), O_RDONLY | O_DIRECTORY, 0);

	return fd < 0 ? fd : sync_fd(fd);
}

int real_link(struct dir *dir, const char *from, const char *to)
{
	_cleanup_(place_fini) struct place source = { .fd = -1 };
	_cleanup_(place_fini) struct place target = { .fd = -1 };
	int r = place_find(dir, from, &source);

	if (!r)
		r = place_find(dir, to, &target);
	if (r)
		return r;
	return linkat(source.fd, source.name, target.fd, target.name, 0) < 0 ? -errno : 0;
}

int real_rename(struct dir *dir, const char *from, const char *to)
{
	_cleanup_(place_fini) struct place source = { .fd = -1 };
	_cleanup_(place_fini) struct place target = { .fd = -1 };
	int r = place_find(dir, from, &source);

	if (!r)
		r = place_find(dir, to, &target);
	if (r)
		return r;
	return renameat(source.fd, source.name, target.fd, target.name) < 0 ? -errno : 0;
}

int real_unlink(struct dir *dir, const char *path)
{
	_cleanup_(place_fini) struct place place = { .fd = -1 };
	int r = place_find(dir, path, &place);

	if (r)
		return r;
	if (unlinkat(place.fd, place.name, 0) == 0)
		return 0;
	if (errno != EISDIR)
		return -errno;
	return unlinkat(place.fd, place.name, AT_REMOVEDIR) < 0 ? -errno : 0;
}

int real_stat(struct dir *dir, const char *path, struct file_stat *ret)
{
	_cleanup_(place_fini) struct place place = { .fd = -1 };
	struct stat st;
	int r = place_find(dir, or_dot(path), &place);

	if (r)
		return r;
	if (fstatat(place.fd, place.name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	*ret = (struct file_stat){ .size = (uint64_t)st.st_size, .is_dir = S_ISDIR(st.st_mode), .nlink = st.st_nlink };
	return 0;
}

/* ---- listing ---- */

struct names {
	char **all; /* each is 'd' or 'f' and then the name */
	size_t n, cap;
};

static void names_fini(struct names *names)
{
	for (size_t i = 0; i < names->n; i++)
		free(names->all[i]);
	free(names->all);
}

static int names_add(struct names *names, const char *name, bool is_dir)
{
	if (names->n == LIST_NAMES_MAX)
		return -EOVERFLOW;
	if (names->n == names->cap) {
		size_t cap = names->cap ? 2 * names->cap : 64;
		char **all = realloc(names->all, cap * sizeof(*all));

		if (!all)
			return -ENOMEM;
		names->all = all;
		names->cap = cap;
	}
	if (asprintf(&names->all[names->n], "%c%s", is_dir ? 'd' : 'f', name) < 0)
		return -ENOMEM;
	names->n++;
	return 0;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a + 1, *(char *const *)b + 1);
}

static bool entry_is_dir(int dir_fd, const struct dirent *entry)
{
	struct stat st;

	if (entry->d_type != DT_UNKNOWN)
		return entry->d_type == DT_DIR;
	return fstatat(dir_fd, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

static void stream_of_dir_close(DIR **stream)
{
	if (*stream)
		closedir(*stream);
}

static int names_read(struct names *names, const struct dir *dir, const char *path)
{
	int fd = open_beneath(dir, or_dot(path), O_RDONLY | O_DIRECTORY, 0);
	if (fd < 0)
		return fd;
	_cleanup_(stream_of_dir_close) DIR *stream = fdopendir(fd);
	if (!stream) {
		fd_close(&fd);
		return -ENOMEM;
	}

	for (;;) {
		errno = 0;
		const struct dirent *entry = readdir(stream);
		if (!entry)
			return -errno;
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		int r = names_add(names, entry->d_name, entry_is_dir(fd, entry));
		if (r)
			return r;
	}
}

int real_list(struct dir *dir, const char *path, int (*each)(void *arg, const char *name, bool is_dir), void *arg)
{
	_cleanup_(names_fini) struct names names = { 0 };

	CHECK_MAGIC(dir, DIR_MAGIC);
	int r = names_read(&names, dir, path);
	if (r)
		return r;
	if (names.n)
		qsort(names.all, names.n, sizeof(*names.all), by_name);
	for (size_t i = 0; i < names.n; i++)
		if (each(arg, names.all[i] + 1, names.all[i][0] == 'd'))
			break;
	return 0;
}

/* ---- files ---- */

/* What is in the way of a file may be anything: a FIFO would be waited for without an end, at its opening and at each read. */
static int check_is_file(int fd)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return -errno;
	return S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode) ? -ENXIO : 0;
}

int real_file_open(struct dir *dir, const char *path, unsigned flags, struct file **ret)
{
	int how = flags & FILE_WRITE ? (flags & FILE_READ ? O_RDWR : O_WRONLY) : O_RDONLY;

	CHECK_MAGIC(dir, DIR_MAGIC);
	CHECK(flags & (FILE_READ | FILE_WRITE));
	how |= flags & FILE_CREATE ? O_CREAT : 0;
	how |= flags & FILE_EXCLUSIVE ? O_EXCL : 0;
	_cleanup_(fd_close) int fd = open_beneath(dir, path, how | O_NONBLOCK, FILE_MODE);
	if (fd < 0)
		return fd;
	int r = check_is_file(fd);
	if (r)
		return r;
	struct file *file = malloc(sizeof(*file));
	if (!file)
		return -ENOMEM;
	*file = (struct file){ .magic = FILE_MAGIC, .fd = fd };
	fd = -1;
	*ret = file;
	return 0;
}

ssize_t real_file_read(struct file *file, uint64_t offset, void *p, size_t len)
{
	size_t got = 0;

	CHECK_MAGIC(file, FILE_MAGIC);
	while (got < len) {
		ssize_t n = pread(file->fd, (uint8_t *)p + got, len - got, (off_t)(offset + got));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		got += (size_t)n;
	}
	return (ssize_t)got;
}

int real_file_write(struct file *file, uint64_t offset, const void *p, size_t len)
{
	size_t put = 0;

	CHECK_MAGIC(file, FILE_MAGIC);
	while (put < len) {
		ssize_t n = pwrite(file->fd, (const uint8_t *)p + put, len - put, (off_t)(offset + put));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		put += (size_t)n;
	}
	return 0;
}

int real_file_sync(struct file *file)
{
	CHECK_MAGIC(file, FILE_MAGIC);
	return sync_fd(file->fd);
}

int real_file_size(struct file *file, uint64_t *ret)
{
	struct stat st;

	CHECK_MAGIC(file, FILE_MAGIC);
	if (fstat(file->fd, &st) < 0)
		return -errno;
	*ret = (uint64_t)st.st_size;
	return 0;
}

void real_file_close(struct file *file)
{
	if (!file)
		return;
	CHECK_MAGIC(file, FILE_MAGIC);
	fd_close(&file->fd);
	file->magic = 0;
	free(file);
}
