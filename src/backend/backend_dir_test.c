/*
 * backend/backend_dir_test.c: the suite over a real directory, and what only a real directory can do to us.
 */
#include "backend/backend_suite.h"
#include "backend/backend_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <errno.h>
#include <stdatomic.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "base/hash.h"

#define WORKERS 4

static struct env *env;
static char root[64]; /* a fresh directory for each test */

/* What the driver calls, not that of libc: fails as often as this says. */
static atomic_int unlinks_that_fail;

__attribute__((visibility("default"))) int unlinkat(int dir, const char *name, int flags);

int unlinkat(int dir, const char *name, int flags)
{
	if (atomic_load(&unlinks_that_fail) > 0 && atomic_fetch_sub(&unlinks_that_fail, 1) > 0) {
		errno = EIO;
		return -1;
	}
	return (int)syscall(SYS_unlinkat, dir, name, flags);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

static int setup_alone(void **state) /* without an env, thus without threads: for tests that fork */
{
	memcpy(root, "/tmp/forebay-dir-XXXXXX", sizeof("/tmp/forebay-dir-XXXXXX"));
	return mkdtemp(root) ? 0 : -1;
}

static int setup(void **state)
{
	int r = setup_alone(state);

	return r ? r : env_real_new("test", WORKERS, &env, NULL);
}

static int teardown(void **state)
{
	env_real_free(env);
	env = NULL;
	return nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static int suite_open(struct backend_suite *suite, struct backend **ret)
{
	if (setup(NULL))
		return -EIO;
	return backend_dir_open(env, root, false, ret, NULL);
}

static void suite_close(struct backend_suite *suite, struct backend *backend)
{
	backend_free(backend);
	assert_int_equal(teardown(NULL), 0);
}

/* ---- helpers ---- */

static const char *below(const char *name)
{
	static char path[sizeof(root) + 128];

	(void)snprintf(path, sizeof(path), "%s/%s", root, name);
	return path;
}

static struct backend *open_root(void)
{
	struct backend *backend;

	assert_int_equal(backend_dir_open(env, root, false, &backend, NULL), 0);
	return backend;
}

static int call(struct backend *backend, enum backend_op op, const char *key, struct error *ret_error)
{
	struct backend_req req = { .op = op, .len = 100 };

	(void)snprintf(req.key, sizeof(req.key), "%s", key);
	int r = backend_suite_call(backend, &req);
	buf_fini(&req.out);
	if (ret_error)
		*ret_error = req.error;
	return r;
}

static int n_counted;

static int count_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	n_counted += type == FTW_F;
	return 0;
}

static int files_below(const char *path)
{
	n_counted = 0;
	assert_int_equal(nftw(path, count_one, 16, FTW_PHYS), 0);
	return n_counted;
}

static void write_file(const char *name, const char *text)
{
	FILE *file = fopen(below(name), "we");

	assert_non_null(file);
	assert_true(fputs(text, file) >= 0);
	assert_int_equal(fclose(file), 0);
}

/* ---- opening ---- */

static void a_missing_directory_is_refused_by_name_unless_it_may_be_made(void **state)
{
	struct backend *backend = NULL;
	struct error e = { 0 };

	assert_int_equal(backend_dir_open(env, below("new/store"), false, &backend, &e), -ENOENT);
	assert_non_null(strstr(e.text, "new/store"));
	assert_null(backend);
	assert_int_equal(backend_dir_open(env, below("new/store"), true, &backend, NULL), 0);
	assert_int_equal(backend_suite_put(backend, "a/b", "x", true), 0);
	backend_free(backend);
	assert_int_equal(access(below("new/store/a/b"), F_OK), 0);
}

static void a_file_is_no_store(void **state)
{
	struct backend *backend;
	struct error e = { 0 };

	write_file("file", "x");
	assert_int_equal(backend_dir_open(env, below("file"), true, &backend, &e), -ENOTDIR);
	assert_non_null(strstr(e.text, "file"));
}

/* ---- what lies in the directory ---- */

static void an_object_is_a_file_with_one_name_and_no_temporary_stays(void **state)
{
	struct backend *backend = open_root();
	struct stat st;

	assert_int_equal(backend_suite_put(backend, "t/x/root", "hello", true), 0);
	assert_int_equal(backend_suite_put(backend, "t/x/root", "again", true), BACKEND_EXISTS);
	assert_int_equal(backend_suite_put(backend, "t/x/over", "hello", false), 0);
	assert_int_equal(stat(below("t/x/root"), &st), 0);
	assert_int_equal(st.st_nlink, 1);
	assert_int_equal(st.st_size, 5);
	assert_int_equal(files_below(root), 2);
	backend_free(backend);
}

static void what_others_left_there_is_no_key_and_stays(void **state)
{
	struct backend *backend = open_root();
	struct backend_req req = { .op = BACKEND_LIST, .len = 100 };

	write_file(".nfs0001", "x");
	write_file("with blank", "x");
	assert_int_equal(mkdir(below("empty"), 0700), 0);
	assert_int_equal(mkdir(below(BACKEND_DIR_TEMP), 0700), 0);
	write_file(BACKEND_DIR_TEMP "/of-another-process", "x");
	write_file("foreign", "x");
	assert_int_equal(backend_suite_call(backend, &req), 0);
	assert_int_equal(req.got, 1);
	assert_string_equal((char *)req.out.ptr, "foreign");
	buf_fini(&req.out);
	assert_int_equal(call(backend, BACKEND_PROBE, "", NULL), 0);
	assert_int_equal(files_below(root), 4);
	backend_free(backend);
}

static void a_temporary_that_could_not_be_removed_is_removed_later(void **state)
{
	struct backend *backend = open_root();

	atomic_store(&unlinks_that_fail, 2);
	assert_int_equal(backend_suite_put(backend, "a", "x", true), 0);
	assert_int_equal(files_below(root), 2);
	assert_int_equal(backend_suite_put(backend, "b", "x", true), 0); /* its own cannot be removed either */
	assert_int_equal(files_below(root), 3);
	assert_int_equal(backend_suite_put(backend, "c", "x", true), 0);
	assert_int_equal(files_below(root), 3);
	backend_free(backend);
}

static void what_this_node_s_earlier_lives_left_is_swept_once_it_has_joined(void **state)
{
	struct backend *backend = open_root();

	assert_int_equal(mkdir(below(BACKEND_DIR_TEMP), 0700), 0);
	write_file(BACKEND_DIR_TEMP "/test.6-0123-1", "x");
	write_file(BACKEND_DIR_TEMP "/test.0-0123-1", "x");
	write_file(BACKEND_DIR_TEMP "/test.7-0123-1", "of this life");
	write_file(BACKEND_DIR_TEMP "/test.12-0123-1", "of a later one");
	write_file(BACKEND_DIR_TEMP "/test2.6-0123-1", "of another node");
	write_file(BACKEND_DIR_TEMP "/test.x.6-0123-1", "of another node, too");
	write_file(BACKEND_DIR_TEMP "/test.3-x.6-0123-1", "of a third");
	assert_int_equal(backend_suite_put(backend, "a", "x", true), 0);
	assert_int_equal(files_below(root), 8); /* not yet */
	backend->incarnation = 7;
	assert_int_equal(backend_suite_put(backend, "b", "x", true), 0);
	assert_int_equal(files_below(root), 7);
	assert_int_equal(access(below(BACKEND_DIR_TEMP "/test.6-0123-1"), F_OK), -1);
	assert_int_equal(access(below(BACKEND_DIR_TEMP "/test.0-0123-1"), F_OK), -1);
	backend_free(backend);
}

static void the_last_delete_takes_the_empty_directories_with_it(void **state)
{
	struct backend *backend = open_root();

	assert_int_equal(backend_suite_put(backend, "t/x/v/1/root", "1", true), 0);
	assert_int_equal(backend_suite_put(backend, "t/x/v/2/root", "2", true), 0);
	assert_int_equal(call(backend, BACKEND_DELETE, "t/x/v/1/root", NULL), 0);
	assert_int_equal(access(below("t/x/v/1"), F_OK), -1);
	assert_int_equal(access(below("t/x/v/2"), F_OK), 0);
	assert_int_equal(call(backend, BACKEND_DELETE, "t/x/v/2/root", NULL), 0);
	assert_int_equal(access(below("t"), F_OK), -1);
	backend_free(backend);
}

static void a_key_below_an_object_is_refused_with_words(void **state)
{
	struct backend *backend = open_root();
	struct backend_vec vec = { .ptr = "x", .len = 1, .crc = crc32c(0, "x", 1) };
	struct backend_req req = { .op = BACKEND_PUT, .key = "a/b/c", .vec = &vec, .n_vec = 1, .if_absent = true };

	assert_int_equal(backend_suite_put(backend, "a/b", "x", true), 0);
	assert_int_equal(backend_suite_call(backend, &req), -ENOTDIR);
	assert_non_null(strstr(req.error.text, "path prefix"));
	memcpy(req.key, "a", 2);
	assert_int_equal(backend_suite_call(backend, &req), -EISDIR);
	req.if_absent = false;
	assert_int_equal(backend_suite_call(backend, &req), -EISDIR);
	assert_int_equal(files_below(root), 1);
	backend_free(backend);
}

/* ---- trouble ---- */

/* Runs @fn in a process without root's power to ignore permission bits. True if it returned so. */
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

static int put_is_refused(void)
{
	struct env *own;
	struct backend *backend;
	struct error e = { 0 };

	if (env_real_new("nobody", 1, &own, NULL) || backend_dir_open(own, root, false, &backend, NULL))
		return 3;
	if (backend_suite_put(backend, "k", "x", true) != -EACCES || call(backend, BACKEND_PROBE, "", &e) != -EACCES)
		return 4;
	if (!strstr(e.text, BACKEND_DIR_TEMP) || !strstr(e.text, root))
		return 5;
	backend_free(backend);
	env_real_free(own);
	return 0;
}

static void a_directory_that_may_not_be_written_is_EACCES_and_the_probe_says_so(void **state)
{
	assert_int_equal(chmod(root, 0555), 0);
	as_nobody(put_is_refused);
	assert_int_equal(chmod(root, 0755), 0);
	assert_int_equal(files_below(root), 0);
}

/* A file system of its own, or no test: only root may mount. */
static void mount_or_skip(const char *options, unsigned long flags)
{
	if (mount("forebay-test", root, "tmpfs", flags, options))
		skip();
}

static void a_full_file_system_is_ENOSPC_and_nothing_stays_behind(void **state)
{
	mount_or_skip("size=1m", 0);
	struct backend *backend = open_root();
	const size_t len = 2u << 20;
	uint8_t *zeros = calloc(1, len);
	struct backend_vec vec = { .ptr = zeros, .len = len, .crc = crc32c(0, zeros, len) };
	struct backend_req req = { .op = BACKEND_PUT, .key = "a/big", .vec = &vec, .n_vec = 1 };

	assert_int_equal(backend_suite_call(backend, &req), -ENOSPC);
	assert_non_null(strstr(req.error.text, "a/big"));
	assert_int_equal(files_below(root), 0);

	req = (struct backend_req){ .op = BACKEND_BEGIN, .key = "a/pack" };
	assert_int_equal(backend_suite_call(backend, &req), 0);
	req.op = BACKEND_PART;
	req.vec = &vec;
	req.n_vec = 1;
	assert_int_equal(backend_suite_call(backend, &req), -ENOSPC);
	req.op = BACKEND_ABORT;
	assert_int_equal(backend_suite_call(backend, &req), 0);
	assert_int_equal(files_below(root), 0);

	assert_int_equal(backend_suite_put(backend, "a/small", "fits", true), 0);
	free(zeros);
	backend_free(backend);
	assert_int_equal(umount(root), 0);
}

static void a_read_only_file_system_is_EROFS_and_still_readable(void **state)
{
	mount_or_skip("size=1m", 0);
	struct backend *backend = open_root();
	struct error e;

	assert_int_equal(backend_suite_put(backend, "k", "x", true), 0);
	assert_int_equal(mount("forebay-test", root, "tmpfs", MS_REMOUNT | MS_RDONLY, "size=1m"), 0);
	assert_int_equal(backend_suite_put(backend, "other", "x", true), -EROFS);
	assert_int_equal(call(backend, BACKEND_DELETE, "k", NULL), -EROFS);
	assert_int_equal(call(backend, BACKEND_PROBE, "", &e), -EROFS);
	assert_int_equal(call(backend, BACKEND_HEAD, "k", NULL), 0);
	backend_free(backend);
	assert_int_equal(umount(root), 0);
}

static void a_store_that_was_removed_under_us_fails_with_words(void **state)
{
	struct backend *backend = open_root();
	struct error e;

	assert_int_equal(rmdir(root), 0);
	assert_int_equal(backend_suite_put(backend, "k", "x", true), -ENOENT);
	assert_int_equal(call(backend, BACKEND_PROBE, "", &e), -ENOENT);
	assert_non_null(strstr(e.text, root));
	assert_int_equal(mkdir(root, 0700), 0);
	backend_free(backend);
}

static int other_process_puts(void)
{
	struct env *own;
	struct backend *backend;

	if (env_real_new("other", 1, &own, NULL) || backend_dir_open(own, root, false, &backend, NULL))
		return 3;
	int won = 0;
	for (int i = 0; i < 50; i++) {
		char key[32];
		(void)snprintf(key, sizeof(key), "v/%d/root", i);
		int r = backend_suite_put(backend, key, "other", true);
		if (r < 0)
			return 4;
		won += r == 0;
	}
	backend_free(backend);
	env_real_free(own);
	return won + 10;
}

static void of_two_processes_that_put_each_key_has_one_winner(void **state)
{
	int status, won = 0;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (!pid)
		_exit(other_process_puts());

	assert_int_equal(env_real_new("test", WORKERS, &env, NULL), 0);
	struct backend *backend = open_root();
	for (int i = 0; i < 50; i++) {
		char key[32];
		(void)snprintf(key, sizeof(key), "v/%d/root", i);
		int r = backend_suite_put(backend, key, "this", true);
		assert_true(r >= 0);
		won += r == 0;
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) >= 10);
	assert_int_equal(won + WEXITSTATUS(status) - 10, 50);
	assert_int_equal(files_below(root), 50);
	backend_free(backend);
}

#define claim(f)       cmocka_unit_test_setup_teardown(f, setup, teardown)
#define claim_alone(f) cmocka_unit_test_setup_teardown(f, setup_alone, teardown)

int main(void)
{
	struct backend_suite suite = { .name = "backend_dir over the suite", .open = suite_open, .close = suite_close };
	const struct CMUnitTest tests[] = {
		claim(a_missing_directory_is_refused_by_name_unless_it_may_be_made),
		claim(a_file_is_no_store),
		claim(an_object_is_a_file_with_one_name_and_no_temporary_stays),
		claim(what_others_left_there_is_no_key_and_stays),
		claim(a_temporary_that_could_not_be_removed_is_removed_later),
		claim(what_this_node_s_earlier_lives_left_is_swept_once_it_has_joined),
		claim(the_last_delete_takes_the_empty_directories_with_it),
		claim(a_key_below_an_object_is_refused_with_words),
		claim_alone(a_directory_that_may_not_be_written_is_EACCES_and_the_probe_says_so),
		claim(a_full_file_system_is_ENOSPC_and_nothing_stays_behind),
		claim(a_read_only_file_system_is_EROFS_and_still_readable),
		claim(a_store_that_was_removed_under_us_fails_with_words),
		claim_alone(of_two_processes_that_put_each_key_has_one_winner),
	};
	int failed = backend_suite_run(&suite);

	return failed + cmocka_run_group_tests_name("backend_dir", tests, NULL, NULL);
}
