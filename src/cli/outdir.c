#include "cli/outdir.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/hash.h"

#define FOLDER_MODE 0777 /* less the umask */
#define PAGE_BYTES  4096
#define TEMP_MAX    48

enum state { TEMPORARY, PLACED };

struct entry {
	char *name;	     /* path in the folder */
	char temp[TEMP_MAX]; /* name beside it */
	enum state state;
};

struct made {
	char *name;
	mode_t mode;
	bool made, set_mode;
};

struct at_hand {
	int fd;		  /* -1: none */
	const char *name; /* its entry's */
	mode_t mode;
};

struct outdir {
	char *path;
	int fd; /* of the folder */
	struct at_hand files[OUTDIR_LANES];
	pthread_mutex_t lock; /* around what follows, while files are begun */
	bool force, finished;
	uint32_t random;
	size_t made_roots; /* folders above and at path that were made: so many last parts of it */
	struct entry *entries;
	size_t n_entries, cap_entries;
	struct made *folders;
	size_t n_folders, cap_folders;
};

static int fail(const struct outdir *out, const char *name, int code, struct error *e)
{
	return error_set(e, -code, "%s/%s: %s", out->path, name, strerror(code));
}

static void *grow(void *array, size_t n, size_t *cap, size_t size)
{
	if (n < *cap)
		return array;
	size_t more = *cap ? 2 * *cap : 64;
	void *bigger = reallocarray(array, more, size);

	if (bigger)
		*cap = more;
	return bigger;
}

/* ---- opening --------------------------------------------------------------------------------------------------------- */

/* mkdir -p; counts the parts that were not there. */
static int make_path(struct outdir *out, struct error *e)
{
	_cleanup_(cleanup_mem) char *path = strdup(out->path);

	if (!path)
		return -ENOMEM;
	for (char *at = path + 1;; at++) {
		char end = *at;

		if (end != '/' && end)
			continue;
		*at = 0;
		if (!mkdir(path, FOLDER_MODE))
			out->made_roots++;
		else if (errno != EEXIST)
			return error_set(e, -errno, "%s: %s", path, strerror(errno));
		*at = end;
		if (!end)
			return 0;
	}
}

int outdir_open(const char *path, bool force, struct outdir **ret, struct error *e)
{
	struct outdir *out = calloc(1, sizeof(*out));
	size_t len = strlen(path);

	if (!out)
		return -ENOMEM;
	while (len > 1 && path[len - 1] == '/')
		len--;
	*out = (struct outdir){ .path = strndup(path, len), .fd = -1, .force = force };
	pthread_mutex_init(&out->lock, NULL);
	for (unsigned lane = 0; lane < OUTDIR_LANES; lane++)
		out->files[lane].fd = -1;
	(void)!getrandom(&out->random, sizeof(out->random), 0);
	int r = !out->path  ? -ENOMEM :
		!*out->path ? error_set(e, -ENOENT, "the folder's name is empty") :
			      make_path(out, e);
	if (!r) {
		out->fd = open(out->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		r = out->fd < 0 ? error_set(e, -errno, "%s: %s", out->path, strerror(errno)) : 0;
	}
	if (r)
		outdir_free(out);
	else
		*ret = out;
	return r;
}

/* ---- paths inside ---------------------------------------------------------------------------------------------------- */

static int note_folder(struct outdir *out, const char *name, size_t len, bool made)
{
	struct made *folders = grow(out->folders, out->n_folders, &out->cap_folders, sizeof(*folders));

	if (!folders)
		return -ENOMEM;
	out->folders = folders;
	folders[out->n_folders] = (struct made){ .name = strndup(name, len), .made = made };
	if (!folders[out->n_folders].name)
		return -ENOMEM;
	out->n_folders++;
	return 0;
}

/* Opens the folder in which @name lies, and finds its last part. With @make, missing ones are made. A descriptor or -errno. */
static int open_parent(struct outdir *out, const char *name, bool make, const char **ret_last)
{
	int fd = fcntl(out->fd, F_DUPFD_CLOEXEC, 0);
	const char *part = name, *slash;
	char text[NAME_MAX + 1];

	for (; fd >= 0 && (slash = strchr(part, '/')); part = slash + 1) {
		size_t len = (size_t)(slash - part);
		int r = len <= NAME_MAX ? 0 : -ENAMETOOLONG;

		memcpy(text, part, r ? 0 : len);
		text[r ? 0 : len] = 0;
		if (!r && make) {
			bool made = !mkdirat(fd, text, FOLDER_MODE);

			r = !made && errno != EEXIST ? -errno : 0;
			if (made)
				r = note_folder(out, name, (size_t)(slash - name), true);
		}
		int next = r ? -1 : openat(fd, text, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		r = !r && next < 0 ? -errno : r;
		close(fd);
		fd = r ? r : next;
	}
	*ret_last = part;
	return fd;
}

int outdir_folder(struct outdir *out, const char *name, mode_t mode, struct error *e)
{
	const char *last;
	int parent = open_parent(out, name, true, &last);
	struct stat st;

	if (parent < 0)
		return fail(out, name, -parent, e);
	bool made = !mkdirat(parent, last, FOLDER_MODE);
	int r = made || errno == EEXIST ? 0 : -errno;
	if (!r && (fstatat(parent, last, &st, AT_SYMLINK_NOFOLLOW) || !S_ISDIR(st.st_mode)))
		r = -ENOTDIR;
	close(parent);
	if (!r)
		r = note_folder(out, name, strlen(name), made);
	if (r)
		return fail(out, name, -r, e);
	out->folders[out->n_folders - 1].mode = mode;
	out->folders[out->n_folders - 1].set_mode = true;
	return 0;
}

int outdir_check(struct outdir *out, const char *name, struct error *e)
{
	const char *last;
	int parent = open_parent(out, name, false, &last);
	struct stat st;

	if (parent == -ENOENT)
		return 0;
	if (parent == -ELOOP || parent == -ENOTDIR)
		return error_set(e, -ENOTDIR, "%s/%s: a part of this path is there and is no folder", out->path, name);
	if (parent < 0)
		return fail(out, name, -parent, e);
	int r = fstatat(parent, last, &st, AT_SYMLINK_NOFOLLOW) ? -errno : 0;
	close(parent);
	if (r == -ENOENT)
		return 0;
	if (r)
		return fail(out, name, -r, e);
	if (S_ISDIR(st.st_mode))
		return error_set(e, -EISDIR, "%s/%s: there is a folder of that name", out->path, name);
	return out->force ? 0 :
			    error_set(e, -EEXIST, "%s/%s: the file exists; --force replaces files", out->path, name);
}

/* ---- files ----------------------------------------------------------------------------------------------------------- */

static int close_file(const struct outdir *out, struct at_hand *file, struct error *e)
{
	int fd = file->fd;

	file->fd = -1;
	if (fd < 0)
		return 0;
	int r = fchmod(fd, file->mode) ? -errno : 0;
	if (close(fd) && !r)
		r = -errno; /* a quota on NFS may show only here */
	return r ? fail(out, file->name, -r, e) : 0;
}

/* Under the lock. */
static int make_file(struct outdir *out, const char *name, struct at_hand *file, struct error *e)
{
	const char *last;
	struct entry *entries = grow(out->entries, out->n_entries, &out->cap_entries, sizeof(*entries));

	if (!entries)
		return -ENOMEM;
	out->entries = entries;
	int r = outdir_check(out, name, e);
	if (r)
		return r;
	int parent = open_parent(out, name, true, &last);
	if (parent < 0)
		return fail(out, name, -parent, e);
	struct entry entry = { .name = strdup(name) };
	snprintf(entry.temp, sizeof(entry.temp), ".forebay-%08x-%zu", out->random, out->n_entries);
	file->fd = entry.name ? openat(parent, entry.temp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
	r = entry.name ? file->fd < 0 ? -errno : 0 : -ENOMEM;
	close(parent);
	if (r) {
		free(entry.name);
		return fail(out, name, -r, e);
	}
	entries[out->n_entries++] = entry;
	file->name = entry.name;
	return 0;
}

int outdir_file(struct outdir *out, unsigned lane, const char *name, mode_t mode, uint64_t bytes, struct error *e)
{
	CHECK(lane < OUTDIR_LANES);
	struct at_hand *file = &out->files[lane];
	int r = close_file(out, file, e);

	if (r)
		return r;
	pthread_mutex_lock(&out->lock);
	r = make_file(out, name, file, e);
	pthread_mutex_unlock(&out->lock);
	if (r)
		return r;
	file->mode = mode;
	if (ftruncate(file->fd, (off_t)bytes) || bytes > INT64_MAX)
		return fail(out, name, errno, e);
	return 0;
}

static int write_all(int fd, const uint8_t *data, size_t len, uint64_t offset)
{
	while (len) {
		ssize_t n = pwrite(fd, data, len, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n ? -errno : -EIO;
		data += n;
		len -= (size_t)n;
		offset += (uint64_t)n;
	}
	return 0;
}

int outdir_write(struct outdir *out, unsigned lane, uint64_t offset, const void *data, size_t len, struct error *e)
{
	const uint8_t *bytes = data;
	size_t from = 0; /* begin of what is not written yet */

	CHECK(lane < OUTDIR_LANES && out->files[lane].fd >= 0);
	const struct at_hand *file = &out->files[lane];
	for (size_t at = 0; at < len;) {
		size_t page = PAGE_BYTES - (offset + at) % PAGE_BYTES;
		size_t n = page < len - at ? page : len - at;

		if (!bytes_are_zero(bytes + at, n)) {
			at += n;
			continue;
		}
		int r = write_all(file->fd, bytes + from, at - from, offset + from);
		if (r)
			return fail(out, file->name, -r, e);
		at += n;
		from = at;
	}
	int r = write_all(file->fd, bytes + from, len - from, offset + from);
	return r ? fail(out, file->name, -r, e) : 0;
}

/* ---- the end --------------------------------------------------------------------------------------------------------- */

static int place(struct outdir *out, struct entry *entry, struct error *e)
{
	const char *last;
	int parent = open_parent(out, entry->name, false, &last);

	if (parent < 0)
		return fail(out, entry->name, -parent, e);
	int r = renameat2(parent, entry->temp, parent, last, out->force ? 0 : RENAME_NOREPLACE) ? -errno : 0;
	if (r == -EINVAL && !out->force) /* a file system without that flag: it was checked at the beginning */
		r = renameat(parent, entry->temp, parent, last) ? -errno : 0;
	close(parent);
	if (r)
		return fail(out, entry->name, -r, e);
	entry->state = PLACED;
	return 0;
}

static int by_name_descending(const void *a, const void *b)
{
	const struct made *x = a, *y = b;

	return strcmp(y->name, x->name);
}

/* The inner ones first: one that forbids writing must not stand in the way. */
static int set_modes(struct outdir *out, struct error *e)
{
	if (out->n_folders)
		qsort(out->folders, out->n_folders, sizeof(*out->folders), by_name_descending);
	for (size_t i = 0; i < out->n_folders; i++) {
		const struct made *folder = &out->folders[i];
		const char *last;

		if (!folder->set_mode || !(folder->made || out->force))
			continue;
		int parent = open_parent(out, folder->name, false, &last);
		int r = parent < 0 ? parent : fchmodat(parent, last, folder->mode, 0) ? -errno : 0;
		if (parent >= 0)
			close(parent);
		if (r)
			return fail(out, folder->name, -r, e);
	}
	return 0;
}

int outdir_finish(struct outdir *out, struct error *e)
{
	int r = 0;

	for (unsigned lane = 0; !r && lane < OUTDIR_LANES; lane++)
		r = close_file(out, &out->files[lane], e);
	for (size_t i = 0; !r && i < out->n_entries; i++)
		r = place(out, &out->entries[i], e);
	if (!r)
		r = set_modes(out, e);
	out->finished = !r;
	return r;
}

/* Takes back what was made. What replaced an older file stays: that one is gone. */
static void remove_all(struct outdir *out)
{
	for (size_t i = 0; i < out->n_entries; i++) {
		const struct entry *entry = &out->entries[i];
		const char *last;

		if (entry->state == PLACED && out->force)
			continue;
		int parent = open_parent(out, entry->name, false, &last);
		if (parent < 0)
			continue;
		unlinkat(parent, entry->state == PLACED ? last : entry->temp, 0);
		close(parent);
	}
	if (out->n_folders)
		qsort(out->folders, out->n_folders, sizeof(*out->folders), by_name_descending);
	for (size_t i = 0; i < out->n_folders; i++) {
		if (out->folders[i].made)
			unlinkat(out->fd, out->folders[i].name, AT_REMOVEDIR);
	}
	for (; out->made_roots; out->made_roots--) {
		char *slash = strrchr(out->path, '/');

		if (rmdir(out->path) || !slash || slash == out->path)
			break;
		*slash = 0;
	}
}

void outdir_free(struct outdir *out)
{
	if (!out)
		return;
	for (unsigned lane = 0; lane < OUTDIR_LANES; lane++)
		if (out->files[lane].fd >= 0)
			close(out->files[lane].fd);
	if (!out->finished)
		remove_all(out);
	if (out->fd >= 0)
		close(out->fd);
	for (size_t i = 0; i < out->n_entries; i++)
		free(out->entries[i].name);
	for (size_t i = 0; i < out->n_folders; i++)
		free(out->folders[i].name);
	free(out->entries);
	free(out->folders);
	free(out->path);
	pthread_mutex_destroy(&out->lock);
	free(out);
}
