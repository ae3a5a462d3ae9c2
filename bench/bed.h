/*
 * bench/bed.h: what the benches in C have in common: time, threads that run side by side, a cluster of real daemons, ranks of
 * it, and the one form of a line: figure, bound of the same run, ratio. 1.00 is as good as the bound, whichever way it counts.
 *
 * The folder of the cluster is $BENCH_DIR (tools/bench makes it, ends daemons that are left and removes it). A bench that fails
 * aborts.
 */
#pragma once

#include <inttypes.h>
#include <pthread.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "forebay/forebay.h"

#define MIB		(UINT64_C(1) << 20)
#define GIB		(UINT64_C(1) << 30)
#define BED_PATH_MAX	4096
#define BED_DEADLINE_MS 120000
#define BED_THREADS_MAX 128

extern char **environ;

static inline double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* CPU seconds of this process so far. */
static inline double cpu_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static inline void *must(void *p)
{
	CHECK(p);
	return p;
}

/* The number in environment variable @name, or @otherwise. */
static inline uint64_t bed_setting(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

/* Bytes that neither compress nor repeat. */
static inline void bed_noise(void *p, size_t len, uint64_t seed)
{
	uint64_t x = seed * UINT64_C(0x9e3779b97f4a7c15) + 1, *to = p;

	for (size_t i = 0; i < len / sizeof(*to); i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		to[i] = x;
	}
}

/* Written memory: no page fault while it counts. */
static inline uint8_t *bed_memory(size_t len, uint64_t seed)
{
	uint8_t *p = must(aligned_alloc(4096, (len + 4095) / 4096 * 4096));

	bed_noise(p, len, seed);
	return p;
}

/* ---- lines -------------------------------------------------------------------------------------------------------------- */

static inline void bed_head(void)
{
	printf("%-66s %10s %10s %6s\n", "", "figure", "bound", "ratio");
}

/* A rate: the more the better. */
static inline void bed_rate(const char *what, const char *unit, double figure, double bound)
{
	printf("%-58s %7s %10.2f %10.2f %6.2f\n", what, unit, figure, bound, figure / bound);
	fflush(stdout);
}

/* A time: the less the better. Without a bound: 0. */
static inline void bed_time(const char *what, const char *unit, double figure, double bound)
{
	if (bound > 0)
		printf("%-58s %7s %10.2f %10.2f %6.2f\n", what, unit, figure, bound, bound / figure);
	else
		printf("%-58s %7s %10.2f %10s %6s\n", what, unit, figure, "-", "-");
	fflush(stdout);
}

static inline int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Sorts; @share 0.5 is the median, 1 the greatest. */
static inline double bed_quantile(double *all, size_t n, double share)
{
	qsort(all, n, sizeof(*all), by_size);
	size_t at = (size_t)(share * (double)n);

	return all[at < n ? at : n - 1];
}

/* ---- side by side ------------------------------------------------------------------------------------------------------- */

/* Runs @fn on each of @n elements of @stride bytes, on as many threads, and waits for all. */
static inline void bed_parallel(void *(*fn)(void *), void *elements, size_t stride, unsigned n)
{
	pthread_t threads[BED_THREADS_MAX];

	CHECK(n <= BED_THREADS_MAX);
	for (unsigned i = 0; i < n; i++)
		CHECK(pthread_create(&threads[i], NULL, fn, (uint8_t *)elements + i * stride) == 0);
	for (unsigned i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
}

/* ---- a cluster ---------------------------------------------------------------------------------------------------------- */

static inline const char *bed_dir(void)
{
	return must(getenv("BENCH_DIR"));
}

static inline void bed_run(char **argv)
{
	int status = -1;
	pid_t pid;

	CHECK(posix_spawn(&pid, argv[0], NULL, NULL, argv, environ) == 0);
	CHECK(waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* A new cluster in a folder of its own below $BENCH_DIR; @pool_bytes of each node. */
static inline void bed_up(const char *name, unsigned nodes, uint64_t pool_bytes)
{
	char dir[BED_PATH_MAX], count[32], pool[32];
	char *argv[] = { "build/forebay", "up", "--dir", dir, "--nodes", count, "--pool", pool, NULL };

	snprintf(dir, sizeof(dir), "%s/%s", bed_dir(), name);
	snprintf(count, sizeof(count), "%u", nodes);
	snprintf(pool, sizeof(pool), "%" PRIu64, pool_bytes);
	fflush(stdout);
	bed_run(argv);
}

static inline void bed_down(const char *name)
{
	char dir[BED_PATH_MAX];
	char *argv[] = { "build/forebay", "down", "--dir", dir, NULL };

	snprintf(dir, sizeof(dir), "%s/%s", bed_dir(), name);
	fflush(stdout);
	bed_run(argv);
}

/* CPU seconds that a node's daemon has used so far. */
static inline double bed_daemon_cpu_s(const char *cluster, unsigned node)
{
	char path[BED_PATH_MAX];
	struct timespec t;
	clockid_t clock;
	long pid = 0;

	snprintf(path, sizeof(path), "%s/%s/node-%u/pid", bed_dir(), cluster, node);
	FILE *file = must(fopen(path, "re"));
	CHECK(fscanf(file, "%ld", &pid) == 1);
	fclose(file);
	CHECK(clock_getcpuclockid((pid_t)pid, &clock) == 0 && clock_gettime(clock, &t) == 0);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* A call that has to succeed; says its words otherwise. */
#define MUST(call)                                                           \
	do {                                                                 \
		if ((call) < 0) {                                            \
			fprintf(stderr, "%s: %s\n", #call, forebay_error()); \
			abort();                                             \
		}                                                            \
	} while (0)

static inline struct forebay_session *bed_connect(const char *cluster, unsigned node, unsigned threads)
{
	struct forebay_session *session = NULL;
	char path[BED_PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s/node-%u/socket", bed_dir(), cluster, node);
	struct forebay_connect_options options = { .size = sizeof(options), .socket = path, .threads = threads };
	MUST(forebay_connect(&options, &session));
	return session;
}

static inline struct forebay_group *bed_join(struct forebay_session *session, const char *name, uint32_t rank,
					     uint32_t ranks)
{
	struct forebay_group_options options = { .size = sizeof(options), .name = name, .run = "bench" };
	struct forebay_group *group = NULL;

	options.rank = rank;
	options.ranks = ranks;
	MUST(forebay_group_join(session, &options, BED_DEADLINE_MS, &group));
	return group;
}

static inline void bed_wait(struct forebay_save *save, enum forebay_stage stage)
{
	struct forebay_future *future = NULL;

	MUST(forebay_save_future(save, stage, &future));
	if (forebay_wait(future, BED_DEADLINE_MS)) {
		fprintf(stderr, "a save: %s\n", forebay_future_error(future));
		abort();
	}
	forebay_future_free(future);
}
