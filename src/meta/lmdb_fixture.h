/*
 * meta/lmdb_fixture.h: what the tests of the embedded engine share: an index in a folder of its own, in an env whose clock can be put
 * forward, and stands still else: a lease lasts as long as the test says, however slow the machine is.
 */
#pragma once

#include "meta/meta_lmdb.h"
#include "meta/meta_suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/log.h"

#define WORKERS 4

static struct env *env;
static char root[64]; /* a fresh directory for each test; the index is in "index" below it */

static struct env_ops skewed_ops;
static uint64_t begun_ns, skew_ns;

static inline uint64_t skewed_now(struct env *of)
{
	return begun_ns + skew_ns;
}

static atomic_uint told; /* lines in the log that the index was not written */

static inline void count_told(void *arg, enum log_level level, const char *line)
{
	told += !strncmp(line, "meta.index-not-written ", 23);
}

static inline int env_start(void)
{
	int r = env_real_new("test", WORKERS, &env, NULL);

	if (r)
		return r;
	begun_ns = env_now(env);
	skewed_ops = *env->ops;
	skewed_ops.now = skewed_now;
	env->ops = &skewed_ops;
	return 0;
}

static inline int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	return remove(path);
}

static inline int setup_alone(void **state) /* without an env, thus without threads: for tests that fork */
{
	memcpy(root, "/tmp/forebay-meta-XXXXXX", sizeof("/tmp/forebay-meta-XXXXXX"));
	return mkdtemp(root) ? 0 : -1;
}

static inline int setup(void **state)
{
	int r = setup_alone(state);

	return r ? r : env_start();
}

static inline int teardown(void **state)
{
	env_real_free(env);
	env = NULL;
	return nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static inline const char *below(const char *name)
{
	static char path[sizeof(root) + 128];

	(void)snprintf(path, sizeof(path), "%s/%s", root, name);
	return path;
}

static inline struct meta *open_index(void)
{
	struct meta *meta;
	struct error e = { 0 };
	int r = meta_lmdb_open(env, below("index"), &meta, &e);

	if (r)
		print_message("%s\n", e.text);
	assert_int_equal(r, 0);
	return meta;
}

static inline void assert_refused(const char *name, int expected, const char *words)
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

#define claim(f)       cmocka_unit_test_setup_teardown(f, setup, teardown)
#define claim_alone(f) cmocka_unit_test_setup_teardown(f, setup_alone, teardown)
