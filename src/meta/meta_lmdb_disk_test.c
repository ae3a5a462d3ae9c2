/*
 * meta/meta_lmdb_disk_test.c: an index whose disk is full, may not be written, or fails.
 */
#include "meta/lmdb_fixture.h"

#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>

/* ---- a disk that fails: LMDB and this room call these, not those of libc ---- */

enum disk_call { DISK_WRITES = 1, DISK_HEADS = 2, DISK_SYNCS = 4, DISK_RENAMES = 8, DISK_ALL = 15 };

static struct {
	unsigned calls; /* which fail, */
	int after, n;	/* after so many that do not, so many (-1: all that follow) */
	int error;
	unsigned seen; /* calls that could have failed */
} sick_disk;

static bool disk_fails(enum disk_call call)
{
	if (!(sick_disk.calls & call))
		return false;
	sick_disk.seen++;
	if (sick_disk.after > 0) {
		sick_disk.after--;
		return false;
	}
	if (!sick_disk.n)
		return false;
	if (sick_disk.n > 0)
		sick_disk.n--;
	errno = sick_disk.error;
	return true;
}

static void disk_sicken(unsigned calls, int after, int n, int error)
{
	sick_disk.calls = calls;
	sick_disk.after = after;
	sick_disk.n = n;
	sick_disk.error = error;
	sick_disk.seen = 0;
}

static void disk_heal(void)
{
	sick_disk.calls = 0;
}

#define OURS __attribute__((visibility("default")))
OURS int fdatasync(int fd);
OURS int fsync(int fd);
OURS ssize_t pwrite(int fd, const void *p, size_t len, off_t at);
OURS ssize_t pwrite_of_lmdb(int fd, const void *p, size_t len, off_t at) __asm__("pwrite"); /* ours is pwrite64 */
OURS ssize_t writev(int fd, const struct iovec *vec, int n);
OURS int rename(const char *from, const char *to);

int fdatasync(int fd)
{
	return disk_fails(DISK_SYNCS) ? -1 : (int)syscall(SYS_fdatasync, fd);
}

int fsync(int fd)
{
	return disk_fails(DISK_SYNCS) ? -1 : (int)syscall(SYS_fsync, fd);
}

/* Heads are written by a descriptor that syncs by itself. */
ssize_t pwrite(int fd, const void *p, size_t len, off_t at)
{
	bool head = fcntl(fd, F_GETFL) & O_DSYNC;

	return disk_fails(head ? DISK_HEADS : DISK_WRITES) ? -1 : syscall(SYS_pwrite64, fd, p, len, at);
}

ssize_t pwrite_of_lmdb(int fd, const void *p, size_t len, off_t at)
{
	return pwrite(fd, p, len, at);
}

ssize_t writev(int fd, const struct iovec *vec, int n)
{
	return disk_fails(DISK_WRITES) ? -1 : syscall(SYS_writev, fd, vec, n);
}

int rename(const char *from, const char *to)
{
	return disk_fails(DISK_RENAMES) ? -1 : (int)syscall(SYS_rename, from, to);
}

/* ---- space ---- */

/* Puts until it fails: how many went well. The result of the first that did not is in @ret. */
static int fill(struct meta *meta, int *ret)
{
	char *large = calloc(1, META_VALUE_MAX);
	int n = 0;

	CHECK(large);
	memset(large, 'x', META_VALUE_MAX - 1);
	do {
		char key[16];

		(void)snprintf(key, sizeof(key), "%06d", n);
		*ret = meta_suite_put(meta, key, large);
	} while (!*ret && ++n < 10000);
	free(large);
	return n;
}

static void assert_filled(struct meta *meta, int n)
{
	char key[16], text[4];

	for (int i = 0; i < n; i++) {
		(void)snprintf(key, sizeof(key), "%06d", i);
		assert_int_equal(meta_suite_get(meta, key, text, sizeof(text)), 0);
		assert_string_equal(text, "xxx");
	}
	(void)snprintf(key, sizeof(key), "%06d", n);
	assert_int_equal(meta_suite_get(meta, key, text, sizeof(text)), -ENOENT);
}

static void a_full_map_is_ENOSPC_and_what_fits_still_goes_in(void **state)
{
	struct meta *meta;
	struct meta_req *req;
	int r, n;

	assert_int_equal(meta_lmdb_open_sized(env, below("index"), 4u << 20, &meta, NULL), 0);
	told = 0;
	n = fill(meta, &r);
	assert_int_equal(r, -ENOSPC);
	assert_int_equal(told, 1);
	assert_true(n > 40);
	assert_filled(meta, n);

	/* A request that does not fit and one that does, together. */
	struct meta_req *large = meta_req_new(META_TXN);
	char *bytes = calloc(1, META_VALUE_MAX);
	assert_int_equal(meta_txn_put(large, view_str("large"), view_of(bytes, META_VALUE_MAX)), 0);
	struct meta_req *first = meta_req_new(META_TXN); /* goes alone, so that the two after it share a batch */
	req = meta_req_new(META_TXN);
	assert_int_equal(meta_txn_put(req, view_str("small"), view_str("fits")), 0);
	meta_suite_start(meta, first);
	meta_suite_start(meta, large);
	meta_suite_start(meta, req);
	assert_int_equal(meta_suite_wait(first), 0);
	assert_int_equal(meta_suite_wait(large), -ENOSPC);
	assert_non_null(strstr(large->error.text, "limit"));
	assert_int_equal(told, 1); /* not again so soon */
	assert_int_equal(meta_suite_wait(req), 0);
	meta_req_free(first);
	meta_req_free(large);
	meta_req_free(req);
	free(bytes);
	meta_free(meta);

	meta = open_index(); /* with the usual limit there is room again */
	assert_filled(meta, n);
	assert_int_equal(meta_suite_put(meta, "more", "x"), 0);
	meta_free(meta);
}

static void mount_or_skip(const char *options)
{
	if (mount("forebay-test", root, "tmpfs", 0, options))
		skip();
}

static void a_full_file_system_is_ENOSPC_and_space_helps(void **state)
{
	int r, n;

	mount_or_skip("size=2m");
	struct meta *meta = open_index();
	told = 0;
	n = fill(meta, &r);
	assert_int_equal(r, -ENOSPC);
	assert_int_equal(told, 1);
	assert_true(n > 10);
	assert_filled(meta, n);
	assert_int_equal(mount("forebay-test", root, "tmpfs", MS_REMOUNT, "size=8m"), 0);
	assert_int_equal(meta_suite_put(meta, "more", "x"), 0);
	meta_free(meta);
	meta = open_index();
	assert_filled(meta, n);
	meta_free(meta);
	assert_int_equal(umount(root), 0);
}

static void a_read_only_file_system_is_EROFS(void **state)
{
	mount_or_skip("size=2m");
	meta_free(open_index());
	assert_int_equal(mount("forebay-test", root, "tmpfs", MS_REMOUNT | MS_RDONLY, "size=2m"), 0);
	assert_refused("index", -EROFS, "index");
	assert_refused("another", -EROFS, "another");
	assert_int_equal(umount(root), 0);
}

/* ---- a disk that fails ---- */

static ino_t index_inode(void)
{
	struct stat st;

	assert_int_equal(stat(below("index/data.mdb"), &st), 0);
	return st.st_ino;
}

static void assert_holds(struct meta *meta, const char *key, const char *expected)
{
	char text[16] = "";

	assert_int_equal(meta_suite_get(meta, key, text, sizeof(text)), expected ? 0 : -ENOENT);
	assert_string_equal(text, expected ? expected : "");
}

static int put_with_words(struct meta *meta, const char *key, char words[ERROR_TEXT_MAX])
{
	struct meta_req *req = meta_req_new(META_TXN);

	assert_int_equal(meta_txn_put(req, view_str(key), view_str("x")), 0);
	meta_suite_start(meta, req);
	int r = meta_suite_wait(req);
	memcpy(words, req->error.text, ERROR_TEXT_MAX);
	meta_req_free(req);
	return r;
}

static void a_file_whose_sync_failed_is_never_believed_again(void **state)
{
	struct meta *meta = open_index();
	ino_t first = index_inode();

	assert_int_equal(meta_suite_put(meta, "a", "1"), 0);
	disk_sicken(DISK_SYNCS, 0, 1, EIO);
	assert_int_equal(meta_suite_put(meta, "b", "2"), -EIO);
	assert_holds(meta, "a", "1");
	assert_int_not_equal(index_inode(), first);
	assert_int_equal(meta_suite_put(meta, "c", "3"), 0); /* in a new file */
	assert_holds(meta, "b", NULL);
	meta_free(meta);
	disk_heal();
	meta = open_index();
	assert_holds(meta, "a", "1");
	assert_holds(meta, "c", "3");
	meta_free(meta);
}

static void a_head_that_could_not_be_written_costs_the_file_but_not_the_index(void **state)
{
	struct meta *meta = open_index();
	ino_t first = index_inode();

	assert_int_equal(meta_suite_put(meta, "a", "1"), 0);
	disk_sicken(DISK_HEADS, 0, 1, EIO);
	assert_int_equal(meta_suite_put(meta, "b", "2"), -EIO);
	assert_holds(meta, "a", "1"); /* though LMDB reads that file no more */
	assert_int_equal(meta_suite_put(meta, "c", "3"), 0);
	assert_int_not_equal(index_inode(), first);
	assert_holds(meta, "c", "3");
	meta_free(meta);
	disk_heal();
}

/* Whoever comes second would hear of LMDB's panic alone, and the first may be nobody who tells. */
static void a_head_that_finds_no_room_is_told_as_such_to_whoever_comes_next(void **state)
{
	char words[ERROR_TEXT_MAX];
	struct meta *meta = open_index();

	assert_int_equal(meta_suite_put(meta, "a", "1"), 0);
	disk_sicken(DISK_HEADS | DISK_RENAMES, 0, -1, ENOSPC);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(put_with_words(meta, "b", words), -ENOSPC);
		assert_non_null(strstr(words, below("index")));
		assert_non_null(strstr(words, strerror(ENOSPC)));
	}
	disk_heal();
	skew_ns += META_MEND_RETRY_MS * NS_PER_MS;
	assert_int_equal(meta_suite_put(meta, "b", "2"), 0);
	assert_holds(meta, "a", "1");
	meta_free(meta);
}

static void while_the_disk_is_sick_reads_go_on_and_writes_are_refused_in_words(void **state)
{
	char words[ERROR_TEXT_MAX];
	struct meta *meta = open_index();

	assert_int_equal(meta_suite_put(meta, "a", "1"), 0);
	disk_sicken(DISK_SYNCS, 0, -1, EIO);
	for (int i = 0; i < 5; i++) {
		assert_int_equal(put_with_words(meta, "b", words), -EIO);
		assert_non_null(strstr(words, below("index")));
		assert_non_null(strstr(words, "not written any more until it can be moved to a new file"));
		assert_holds(meta, "a", "1");
		skew_ns += META_MEND_RETRY_MS * NS_PER_MS;
	}
	assert_int_equal(access(below("index/moved.mdb"), F_OK), -1); /* what a failed try has written is gone */
	disk_heal();
	assert_int_equal(meta_suite_put(meta, "b", "2"), 0); /* the disk works again: no restart */
	assert_holds(meta, "b", "2");
	meta_free(meta);
}

/* Ten puts, while one call of the disk, or all from one on, fail. False: that call was not reached. */
static bool puts_on_a_sick_disk(int after, int n, int error)
{
	struct meta *meta = open_index();
	char key[16];
	bool acknowledged[10];

	disk_sicken(DISK_ALL, after, n, error);
	for (int i = 0; i < 10; i++) {
		(void)snprintf(key, sizeof(key), "k%d", i);
		acknowledged[i] = !meta_suite_put(meta, key, key);
		skew_ns += META_MEND_RETRY_MS * NS_PER_MS;
	}
	bool reached = sick_disk.seen > (unsigned)after;
	for (int opened = 0; opened < 2; opened++) {
		disk_heal();
		assert_int_equal(meta_suite_put(meta, "after", "x"), 0);
		for (int i = 0; i < 10; i++) {
			(void)snprintf(key, sizeof(key), "k%d", i);
			if (acknowledged[i])
				assert_holds(meta, key, key);
		}
		meta_free(meta);
		meta = opened ? NULL : open_index();
	}
	return reached;
}

static void whichever_call_of_the_disk_fails_what_was_acknowledged_is_there(void **state)
{
	const int errors[] = { EIO, ENOSPC, EROFS };

	for (int kind = 0; kind < 6; kind++) {
		int after = 0;

		while (puts_on_a_sick_disk(after, kind & 1 ? -1 : 1, errors[kind / 2]) && after < 100)
			after++;
		assert_in_range(after, 20, 99);
	}
}

/* The disk gives no more pages than these: what reads them through the map is sent a signal. */
static void a_page_that_the_disk_does_not_give_is_EIO_and_the_process_lives(void **state)
{
	struct meta *meta = open_index();
	char text[16];
	int r = 0, lost = 0;

	int n = 0;
	for (char key[16]; n < 300; n++) {
		(void)snprintf(key, sizeof(key), "%06d", n);
		assert_int_equal(meta_suite_put(meta, key, "some text to fill a page with"), 0);
	}
	assert_int_equal(truncate(below("index/data.mdb"), 8192), 0);
	for (char key[16]; n--;) {
		(void)snprintf(key, sizeof(key), "%06d", n);
		r = meta_suite_get(meta, key, text, sizeof(text));
		lost += r == -EIO;
	}
	assert_in_range(lost, 1, 300);
	assert_int_not_equal(meta_suite_put(meta, "new", "x"), 0);
	meta_free(meta);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		claim(a_full_map_is_ENOSPC_and_what_fits_still_goes_in),
		claim(a_full_file_system_is_ENOSPC_and_space_helps),
		claim(a_read_only_file_system_is_EROFS),
		claim(a_file_whose_sync_failed_is_never_believed_again),
		claim(a_head_that_could_not_be_written_costs_the_file_but_not_the_index),
		claim(a_head_that_finds_no_room_is_told_as_such_to_whoever_comes_next),
		claim(while_the_disk_is_sick_reads_go_on_and_writes_are_refused_in_words),
		claim(whichever_call_of_the_disk_fails_what_was_acknowledged_is_there),
		claim(a_page_that_the_disk_does_not_give_is_EIO_and_the_process_lives),
	};
	log_setup(LOG_ERROR, count_told, NULL); /* disks fail here all the time */
	return cmocka_run_group_tests_name("meta_lmdb on disks", tests, NULL, NULL);
}
