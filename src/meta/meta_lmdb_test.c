/*
 * meta/meta_lmdb_test.c: the suite over LMDB, directly and through a remote; and what disks and other processes do to an index.
 */
#include "meta/meta_lmdb.h"
#include "meta/meta_suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/log.h"

#define WORKERS 4

static struct env *env;
static char root[64]; /* a fresh directory for each test; the index is in "index" below it */

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

/* ---- a real env whose clock can be put forward ---- */

static const struct env_ops *real_ops;
static struct env_ops skewed_ops;
static uint64_t skew_ns;

static uint64_t skewed_now(struct env *of)
{
	return real_ops->now(of) + skew_ns;
}

static atomic_uint told; /* lines in the log that the index was not written */

static void count_told(void *arg, enum log_level level, const char *line)
{
	told += !strncmp(line, "meta.index-not-written ", 23);
}

static int env_start(void)
{
	int r = env_real_new("test", WORKERS, &env, NULL);

	if (r)
		return r;
	real_ops = env->ops;
	skewed_ops = *real_ops;
	skewed_ops.now = skewed_now;
	env->ops = &skewed_ops;
	return 0;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

static int setup_alone(void **state) /* without an env, thus without threads: for tests that fork */
{
	memcpy(root, "/tmp/forebay-meta-XXXXXX", sizeof("/tmp/forebay-meta-XXXXXX"));
	return mkdtemp(root) ? 0 : -1;
}

static int setup(void **state)
{
	int r = setup_alone(state);

	return r ? r : env_start();
}

static int teardown(void **state)
{
	env_real_free(env);
	env = NULL;
	return nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static const char *below(const char *name)
{
	static char path[sizeof(root) + 128];

	(void)snprintf(path, sizeof(path), "%s/%s", root, name);
	return path;
}

static struct meta *open_index(void)
{
	struct meta *meta;
	struct error e = { 0 };
	int r = meta_lmdb_open(env, below("index"), &meta, &e);

	if (r)
		print_message("%s\n", e.text);
	assert_int_equal(r, 0);
	return meta;
}

/* ---- the suite, directly ---- */

static int suite_open(struct meta_suite *suite, struct meta **ret)
{
	if (setup(NULL))
		return -EIO;
	return meta_lmdb_open(env, below("index"), ret, NULL);
}

static void suite_close(struct meta_suite *suite, struct meta *meta)
{
	meta_free(meta);
	assert_int_equal(teardown(NULL), 0);
}

static int suite_restart(struct meta_suite *suite, struct meta **pmeta)
{
	meta_free(*pmeta);
	*pmeta = NULL;
	return meta_lmdb_open(env, below("index"), pmeta, NULL);
}

static void suite_pass(struct meta_suite *suite, struct meta *meta, uint64_t ms)
{
	skew_ns += ms * NS_PER_MS;
}

/* ---- the suite, through a remote: every request is copied to the engine, and its answer back ---- */

static struct meta *served;

static void served_finished(struct meta_req *inner)
{
	struct meta_req *outer = inner->arg;

	meta_remote_answer(outer, inner->result, view_buf(&inner->out));
	meta_req_free(inner);
}

static void serve(void *arg, struct meta_req *outer)
{
	struct meta_req *inner = meta_req_new(outer->op);

	CHECK(inner && buf_append(&inner->in, outer->in.ptr, outer->in.len) == 0);
	inner->arg = outer;
	inner->finish = served_finished;
	meta_submit(served, inner);
}

static int remote_open(struct meta_suite *suite, struct meta **ret)
{
	const struct meta_remote_call call = { .send = serve };
	int r = suite_open(suite, &served);

	return r ? r : meta_remote_new(env, &call, ret);
}

static void remote_close(struct meta_suite *suite, struct meta *meta)
{
	meta_free(meta);
	suite_close(suite, served);
}

static int remote_restart(struct meta_suite *suite, struct meta **pmeta)
{
	return suite_restart(suite, &served);
}

/* ---- batches ---- */

static size_t commits_so_far(struct meta *meta)
{
	MDB_envinfo info;

	assert_int_equal(mdb_env_info(container_of(meta, struct lmdb, meta)->db, &info), 0);
	return info.me_last_txnid;
}

static void many_requests_share_few_commits(void **state)
{
	struct meta *meta = open_index();
	struct meta_req *reqs[3 * META_BATCH_MAX];
	size_t before = commits_so_far(meta);

	for (size_t i = 0; i < ARRAY_LEN(reqs); i++) {
		reqs[i] = meta_req_new(META_TXN);
		assert_int_equal(meta_txn_put(reqs[i], view_of(&i, sizeof(i)), view_str("x")), 0);
		meta_suite_start(meta, reqs[i]);
	}
	for (size_t i = 0; i < ARRAY_LEN(reqs); i++) {
		assert_int_equal(meta_suite_wait(reqs[i]), 0);
		meta_req_free(reqs[i]);
	}
	assert_true(commits_so_far(meta) - before <= 4); /* the first went alone, the others in full batches */
	meta_free(meta);
}

static void a_renewed_lease_costs_no_commit(void **state)
{
	struct meta *meta = open_index();
	struct meta_req *req = meta_req_new(META_LEASE);

	assert_int_equal(meta_put_lease(req, view_str("l"), 7, 1000, 0), 0);
	meta_suite_start(meta, req);
	assert_int_equal(meta_suite_wait(req), 0);
	size_t before = commits_so_far(meta);
	meta_suite_start(meta, req);
	assert_int_equal(meta_suite_wait(req), 0);
	assert_int_equal(commits_so_far(meta), before);
	meta_req_free(req);
	meta_free(meta);
}

/* The outcome, for a lease of a second. */
static int ask_for_lease(struct meta *meta, const char *key, uint64_t asker)
{
	struct meta_req *req = meta_req_new(META_LEASE);

	assert_int_equal(meta_put_lease(req, view_str(key), asker, 1000, 0), 0);
	meta_suite_start(meta, req);
	int r = meta_suite_wait(req);
	meta_req_free(req);
	return r;
}

static size_t leases_remembered(struct meta *meta)
{
	return container_of(meta, struct lmdb, meta)->leases.n;
}

static void leases_that_have_ended_are_forgotten_and_no_others(void **state)
{
	enum { LIVING = 100, ENDED = 1000, AT_A_TIME = 20 };
	struct meta *meta = open_index();
	char key[32];

	skew_ns += META_LEASE_MAX_MS * NS_PER_MS;
	for (int i = 0; i < ENDED; i++) {
		(void)snprintf(key, sizeof(key), "version/%d", i);
		assert_int_equal(ask_for_lease(meta, key, 1), 0);
		if (i % AT_A_TIME)
			continue;
		skew_ns += 600 * NS_PER_MS;
		for (int k = 0; k < LIVING; k++) { /* renewed before they end */
			(void)snprintf(key, sizeof(key), "group/%d", k);
			assert_int_equal(ask_for_lease(meta, key, 1), 0);
		}
		assert_true(leases_remembered(meta) <= 2 * (LIVING + 2 * AT_A_TIME) + META_LEASES_FEW + 1);
	}
	for (int k = 0; k < LIVING; k++) {
		(void)snprintf(key, sizeof(key), "group/%d", k);
		assert_int_equal(ask_for_lease(meta, key, 2), META_HELD);
	}
	assert_int_equal(ask_for_lease(meta, "version/0", 2), 0);
	meta_free(meta);
}

static void an_ended_lease_is_free_soon_after_the_opening_too(void **state)
{
	struct meta *meta = open_index();
	char key[32];

	for (int i = 0; i < 3 * META_LEASES_FEW; i++) {
		(void)snprintf(key, sizeof(key), "version/%d", i);
		assert_int_equal(ask_for_lease(meta, key, 1), 0);
	}
	skew_ns += 1200 * NS_PER_MS;
	for (int i = 0; i < 3 * META_LEASES_FEW; i++) {
		(void)snprintf(key, sizeof(key), "another/%d", i);
		assert_int_equal(ask_for_lease(meta, key, 1), 0);
	}
	for (int i = 0; i < 3 * META_LEASES_FEW; i++) {
		(void)snprintf(key, sizeof(key), "version/%d", i);
		assert_int_equal(ask_for_lease(meta, key, 2),
				 0); /* forgotten, it would count as held for ten seconds */
	}
	meta_free(meta);
}

/* ---- opening ---- */

static void assert_refused(const char *name, int expected, const char *words)
{
	struct meta *meta = NULL;
	struct error e = { 0 };
	int r = meta_lmdb_open(env, below(name), &meta, &e);

	if (r != expected)
		print_message("%d: %s\n", r, e.text);
	assert_int_equal(r, expected);
	assert_int_equal(e.code, expected);
	assert_null(meta);
	assert_non_null(strstr(e.text, root));
	assert_non_null(strstr(e.text, words));
}

static void a_missing_parent_or_a_file_in_the_way_is_refused_by_name(void **state)
{
	int fd = open(below("file"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	close(fd);
	assert_refused("no/index", -ENOENT, "no/index");
	assert_refused("file", -ENOTDIR, "file");
	assert_refused("file/index", -ENOTDIR, "file/index");
}

static void an_index_has_one_owner_and_is_free_when_it_has_gone(void **state)
{
	struct meta *meta = open_index();
	char pid[32];

	(void)snprintf(pid, sizeof(pid), "pid %ld", (long)getpid());
	assert_refused("index", -EBUSY, pid);
	assert_int_equal(meta_suite_put(meta, "a", "1"), 0);
	meta_free(meta);
	meta_free(open_index());
}

/* Commits, says so, and waits to be killed, which is how a daemon may end at any time. */
static void child_commits(int say_fd)
{
	if (env_start() || meta_suite_put(open_index(), "a", "from a process that was killed") ||
	    write(say_fd, "x", 1) != 1)
		_exit(1);
	pause();
}

static void what_a_killed_process_committed_is_there_and_its_index_was_its_own(void **state)
{
	int fds[2], status;
	char c, text[64];

	assert_int_equal(pipe(fds), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (!pid)
		child_commits(fds[1]);
	assert_int_equal(read(fds[0], &c, 1), 1);
	assert_int_equal(env_start(), 0);
	assert_refused("index", -EBUSY, "pid ");
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	close(fds[0]);
	close(fds[1]);

	struct meta *meta = open_index();
	assert_int_equal(meta_suite_get(meta, "a", text, sizeof(text)), 0);
	assert_string_equal(text, "from a process that was killed");
	assert_int_equal(meta_suite_put(meta, "b", "goes on"), 0);
	meta_free(meta);
}

static void as_nobody(int (*fn)(void))
{
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (!pid) {
		if (!geteuid() && (setgid(65534) || setuid(65534)))
			_exit(2);
		_exit(fn());
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

static int open_is_EACCES(void)
{
	struct meta *meta;
	struct error e = { 0 };
	int r = env_start();

	if (r || meta_lmdb_open(env, below("index"), &meta, &e) != -EACCES || !strstr(e.text, root))
		return 3;
	env_real_free(env);
	return 0;
}

static void a_directory_that_may_not_be_written_is_EACCES(void **state)
{
	assert_int_equal(chmod(root, 0555), 0);
	as_nobody(open_is_EACCES);
	assert_int_equal(chmod(root, 0755), 0);
	assert_int_equal(mkdir(below("index"), 0555), 0);
	as_nobody(open_is_EACCES);
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

/* ---- damage ---- */

#define RECORDS	    300
#define LIFE_ROUNDS 100

/* An index with small and large values, on more than one level, with a list of free pages. Its file is returned. */
static struct buf good_index(void)
{
	struct meta *meta = open_index();
	struct buf file = { 0 };
	char key[16], text[4000];

	for (int round = 0; round < 3; round++)
		for (int i = 0; i < RECORDS; i += 10) {
			struct meta_req *req = meta_req_new(META_TXN);

			for (int k = i; k < i + 10; k++) {
				(void)snprintf(key, sizeof(key), "key-%06d", k);
				memset(text, 'a' + k % 26, sizeof(text));
				size_t len = k % 10 == 5 ? sizeof(text) : 20;
				assert_int_equal(meta_txn_put(req, view_str(key), view_of(text, len)), 0);
			}
			meta_suite_start(meta, req);
			assert_int_equal(meta_suite_wait(req), 0);
			meta_req_free(req);
		}
	meta_free(meta);

	int fd = open(below("index/data.mdb"), O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(buf_append_zero(&file, 1u << 20), 0);
	ssize_t n = pread(fd, file.ptr, file.len, 0);
	assert_true(n > 100000);
	file.len = (size_t)n;
	close(fd);
	return file;
}

static void write_index(const struct buf *file, size_t len)
{
	int fd = open(below("index/data.mdb"), O_WRONLY | O_TRUNC | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, file->ptr, len, 0), len);
	close(fd);
}

static uint8_t *find(struct buf *file, const char *text)
{
	uint8_t *at = memmem(file->ptr, file->len, text, strlen(text));

	assert_non_null(at);
	return at;
}

static void a_file_that_is_no_index_or_has_no_head_is_EDAMAGED(void **state)
{
	struct buf file = good_index();
	struct buf other = { 0 };

	assert_int_equal(buf_append_zero(&other, 100000), 0);
	write_index(&other, other.len);
	assert_refused("index", -ERR_EDAMAGED, "head");
	write_index(&file, 100);
	assert_refused("index", -ERR_EDAMAGED, "head");
	write_index(&file, 4096 + 100);
	assert_refused("index", -ERR_EDAMAGED, "head");
	memset(file.ptr + 40, 0, 4); /* the page size, by which LMDB divides */
	write_index(&file, file.len);
	assert_refused("index", -ERR_EDAMAGED, "head");
	buf_fini(&file);
	buf_fini(&other);
}

static void a_file_that_was_cut_is_EDAMAGED_and_nobody_crashes(void **state)
{
	struct buf file = good_index();

	for (size_t len = 3 * 4096; len < 100000; len += 4096 * 3 + 512) {
		write_index(&file, len);
		assert_refused("index", -ERR_EDAMAGED, "index");
	}
	buf_fini(&file);
}

static void a_flipped_byte_in_a_value_is_found_when_the_index_is_opened(void **state)
{
	struct buf file = good_index();
	size_t flipped = 0;

	/* Copies of the record lie on pages that were replaced since; all of them are flipped. */
	for (uint8_t *at = file.ptr; (at = memmem(at, file.len - (size_t)(at - file.ptr), "key-000123", 10));
	     at += 10, flipped++)
		at[18] ^= 4;
	assert_true(flipped > 0);
	write_index(&file, file.len);
	assert_refused("index", -ERR_EDAMAGED, "its records");
	buf_fini(&file);
}

static void a_byte_that_flips_under_an_open_index_is_EDAMAGED_for_its_key_alone(void **state)
{
	struct meta *meta = open_index();
	char text[64];

	assert_int_equal(meta_suite_put(meta, "a", "good"), 0);
	assert_int_equal(meta_suite_put(meta, "b", "will be flipped"), 0);
	struct buf file = { 0 };
	int fd = open(below("index/data.mdb"), O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(buf_append_zero(&file, 1u << 20), 0);
	assert_true(pread(fd, file.ptr, file.len, 0) > 0);
	off_t at = find(&file, "will be flipped") - file.ptr;
	assert_int_equal(pwrite(fd, "W", 1, at), 1);
	close(fd);
	buf_fini(&file);

	assert_int_equal(meta_suite_get(meta, "b", text, sizeof(text)), -ERR_EDAMAGED);
	assert_int_equal(meta_suite_get(meta, "a", text, sizeof(text)), 0);
	struct meta_req *req = meta_req_new(META_TXN);
	assert_int_equal(meta_txn_expect(req, view_str("b"), view_str("will be flipped")), 0);
	meta_suite_start(meta, req);
	assert_int_equal(meta_suite_wait(req), -ERR_EDAMAGED);
	meta_req_free(req);
	assert_int_equal(meta_suite_put(meta, "b", "mended"), 0);
	assert_int_equal(meta_suite_get(meta, "b", text, sizeof(text)), 0);
	assert_string_equal(text, "mended");
	meta_free(meta);
}

/* Reads everything: each value is right or the answer is EDAMAGED. */
static void assert_never_wrong(struct meta *meta)
{
	char key[16], text[64];

	for (int k = 0; k < RECORDS; k++) {
		(void)snprintf(key, sizeof(key), "key-%06d", k);
		int r = meta_suite_get(meta, key, text, sizeof(text));
		if (r == -ERR_EDAMAGED)
			continue;
		assert_int_equal(r, 0);
		for (int i = 0; i < 20; i++)
			assert_int_equal(text[i], 'a' + k % 26);
	}
}

static void random_damage_is_never_a_crash_nor_a_wrong_answer(void **state)
{
	struct buf good = good_index();
	uint64_t x = 88172645463325252;
	int refused = 0;

	for (int round = 0; round < 1000; round++) {
		struct buf bad = { 0 };
		struct meta *meta;
		struct error e;

		assert_int_equal(buf_append(&bad, good.ptr, good.len), 0);
		for (int i = 0; i < 1 + round % 50; i++) {
			x ^= x << 13, x ^= x >> 7, x ^= x << 17;
			/* Past both heads. Often near the beginning of a page, where LMDB keeps its own. */
			size_t at = 2 * 4096 + (x >> 8) % (bad.len - 2 * 4096);
			if (x & 1)
				at = at / 4096 * 4096 + at % 64;
			bad.ptr[at] ^= (uint8_t)(1u << (x >> 60 & 7));
		}
		write_index(&bad, bad.len);
		buf_fini(&bad);
		int r = meta_lmdb_open(env, below("index"), &meta, &e);
		assert_true(r == 0 || r == -ERR_EDAMAGED);
		refused += r != 0;
		if (r)
			continue;
		assert_never_wrong(meta);
		meta_free(meta);
	}
	assert_true(refused > 50);
	buf_fini(&good);
}

static void an_index_that_lived_long_is_found_whole_each_time(void **state)
{
	_cleanup_(cleanup_mem) uint8_t *bytes = calloc(1, META_VALUE_MAX);
	struct meta *meta = open_index();
	uint64_t x = 88172645463325252;

	for (int round = 0; round < LIFE_ROUNDS; round++) {
		struct meta_req *req = meta_req_new(META_TXN);
		int r = 0;

		for (int i = 0; i < 60 && !r; i++) {
			char key[META_KEY_MAX + 1];

			x ^= x << 13, x ^= x >> 7, x ^= x << 17;
			(void)snprintf(key, sizeof(key), "%0*d", 3 + (int)(x % 7 * 50), (int)(x >> 8 & 1023));
			if (x >> 20 & 1)
				r = meta_txn_delete(req, view_str(key));
			else /* some fill pages of their own, which -EINVAL may say is too much for one request */
				r = meta_txn_put(req, view_str(key),
						 view_of(bytes, (x >> 30) % (x >> 21 & 7 ? 300 : META_VALUE_MAX)));
		}
		meta_suite_start(meta, req);
		assert_int_equal(meta_suite_wait(req), 0);
		meta_req_free(req);
		if (round % 10 == 9) {
			meta_free(meta);
			meta = open_index();
		}
	}
	meta_free(meta);
}

#define claim(f)       cmocka_unit_test_setup_teardown(f, setup, teardown)
#define claim_alone(f) cmocka_unit_test_setup_teardown(f, setup_alone, teardown)

int main(void)
{
	struct meta_suite direct = {
		.name = "meta_lmdb over the suite",
		.open = suite_open,
		.close = suite_close,
		.restart = suite_restart,
		.pass = suite_pass,
	};
	struct meta_suite remote = {
		.name = "meta_remote over the suite",
		.open = remote_open,
		.close = remote_close,
		.restart = remote_restart,
		.pass = suite_pass,
	};
	const struct CMUnitTest tests[] = {
		claim(many_requests_share_few_commits),
		claim(a_renewed_lease_costs_no_commit),
		claim(leases_that_have_ended_are_forgotten_and_no_others),
		claim(an_ended_lease_is_free_soon_after_the_opening_too),
		claim(a_missing_parent_or_a_file_in_the_way_is_refused_by_name),
		claim(an_index_has_one_owner_and_is_free_when_it_has_gone),
		claim_alone(what_a_killed_process_committed_is_there_and_its_index_was_its_own),
		claim_alone(a_directory_that_may_not_be_written_is_EACCES),
		claim(a_full_map_is_ENOSPC_and_what_fits_still_goes_in),
		claim(a_full_file_system_is_ENOSPC_and_space_helps),
		claim(a_read_only_file_system_is_EROFS),
		claim(a_file_whose_sync_failed_is_never_believed_again),
		claim(a_head_that_could_not_be_written_costs_the_file_but_not_the_index),
		claim(while_the_disk_is_sick_reads_go_on_and_writes_are_refused_in_words),
		claim(whichever_call_of_the_disk_fails_what_was_acknowledged_is_there),
		claim(a_page_that_the_disk_does_not_give_is_EIO_and_the_process_lives),
		claim(a_file_that_is_no_index_or_has_no_head_is_EDAMAGED),
		claim(a_file_that_was_cut_is_EDAMAGED_and_nobody_crashes),
		claim(a_flipped_byte_in_a_value_is_found_when_the_index_is_opened),
		claim(a_byte_that_flips_under_an_open_index_is_EDAMAGED_for_its_key_alone),
		claim(an_index_that_lived_long_is_found_whole_each_time),
		claim(random_damage_is_never_a_crash_nor_a_wrong_answer),
	};
	log_setup(LOG_ERROR, count_told, NULL); /* disks fail here all the time */
	int failed = meta_suite_run(&direct) + meta_suite_run(&remote);

	return failed + cmocka_run_group_tests_name("meta_lmdb", tests, NULL, NULL);
}
