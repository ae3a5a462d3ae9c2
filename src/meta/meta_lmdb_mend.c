/*
 * meta/meta_lmdb_mend.c: a new file for the index, after a write or sync of the old one has failed.
 *
 * The kernel calls pages clean whose write-back failed, so a file whose sync failed once is never believed again: a later sync that
 * succeeds may have lost them all the same. What was acknowledged before is on the disk, and is what LMDB still reads; it is
 * checked, copied, synced, and put in the old file's place. A transaction whose end was not known may be in the copy or not.
 */
#include "meta/meta_lmdb.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"

#define COPY_BYTES (1u << 20) /* at a time */
#define FILE_MODE  0600

static int fail_mend(const struct lmdb *l, int r, const char *doing, struct error *e)
{
	(void)error_set(e, r, "the index in %s, moving it to a new file, %s: %s", l->path, doing, error_meaning(r));
	return -r; /* errno's, as LMDB gives them */
}

static void close_fd(const int *fd)
{
	if (*fd >= 0)
		close(*fd);
}

static int write_whole(int fd, const uint8_t *p, size_t len, off_t at)
{
	while (len) {
		ssize_t n = pwrite(fd, p, len, at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		p += n;
		at += n;
		len -= (size_t)n;
	}
	return 0;
}

/* From @from, to its end, to @to; synced. */
static int copy_file(int from, int to)
{
	_cleanup_(cleanup_mem) uint8_t *bytes = malloc(COPY_BYTES);

	if (!bytes)
		return -ENOMEM;
	for (off_t at = 0;;) {
		ssize_t n = pread(from, bytes, COPY_BYTES, at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (!n)
			break;
		int r = write_whole(to, bytes, (size_t)n, at);
		if (r)
			return r;
		at += n;
	}
	return fsync(to) ? -errno : 0;
}

/* A new file each time: one whose sync has failed is no better than the old one. */
static int make_copy(const char *from_path, const char *to_path)
{
	_cleanup_(close_fd) int from = open(from_path, O_RDONLY | O_CLOEXEC);

	if (from < 0)
		return -errno;
	if (unlink(to_path) && errno != ENOENT)
		return -errno;
	_cleanup_(close_fd) int to = open(to_path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, FILE_MODE);
	if (to < 0)
		return -errno;
	int r = copy_file(from, to);
	if (r)
		(void)unlink(to_path); /* a full disk must not stay full for it */
	return r;
}

/* No read is under way. Whatever happens, reads go on with the file that has the name then, if it can be opened. */
static int swap(struct lmdb *l, const char *from_path, const char *to_path, struct error *e)
{
	if (l->db)
		mdb_env_close(l->db);
	l->db = NULL;
	int renamed = rename(to_path, from_path) ? -errno : 0;
	int synced = renamed ? renamed : lmdb_sync_dir(l);
	int r = lmdb_open_db(l, e);

	if (r)
		return -r;
	if (synced)
		return fail_mend(l, synced, renamed ? "giving it its name" : "syncing its directory", e);
	l->broken = 0;
	return 0;
}

int lmdb_mend(struct lmdb *l, struct error *e)
{
	_cleanup_(cleanup_mem) char *from = NULL;
	_cleanup_(cleanup_mem) char *to = NULL;
	int r = lmdb_check(l, e);

	if (r)
		return -r;
	if (asprintf(&from, "%s/data.mdb", l->path) < 0)
		from = NULL;
	if (asprintf(&to, "%s/moved.mdb", l->path) < 0)
		to = NULL;
	if (!from || !to)
		return fail_mend(l, -ENOMEM, "naming it", e);
	r = make_copy(from, to);
	if (r)
		return fail_mend(l, r, "copying", e);

	(void)pthread_rwlock_wrlock(&l->swap);
	r = swap(l, from, to, e);
	(void)pthread_rwlock_unlock(&l->swap);
	return r;
}
