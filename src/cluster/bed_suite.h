/*
 * cluster/bed_suite.h: a small cluster for tests: daemons' worth of objects in one process, on one loop, over the real
 * world: n0 with an embedded engine, n1 and n2 that reach it through n0, one store, all in a folder of their own.
 *
 * A test's story runs in a fiber. Assertions there abort: cmocka's jump does not lead out of a fiber.
 */
#pragma once

#include <stdio.h>
#include <stdlib.h>

#include "cluster/cluster.h"

#define BED_NODES 3
#define BED_LIMIT_MS \
	240000 /* for a whole story; a call in it waits BED_CALL_MS. Both are for what hangs, not for what is slow */
#define BED_CALL_MS    60000
#define BED_POOL_BYTES (24u << 20) /* of each arena */

struct bed_node {
	char name[16], domain[16];
	struct pool *pool;
	struct cluster *cluster; /* NULL: not running */
};

struct bed {
	struct env *env;
	char dir[64];
	const char *key;    /* of the clusters that are made next; NULL: none */
	const char *listen; /* where those listen; NULL: at any port */
	struct meta *meta;
	struct backend *backend;
	struct bed_node nodes[BED_NODES];
};

int bed_setup(void **state);	 /* everybody has joined */
int bed_setup_new(void **state); /* nobody runs */
int bed_teardown(void **state);

/* Runs @story(@bed) in a fiber until it returns 0. */
void bed_run(void **state, int (*story)(struct bed *bed));

/* In a story. Node @i's cluster as the bed sets it up, not joined. */
struct cluster *bed_new(struct bed *bed, int i, const char *cluster_id, struct error *e);
void bed_start(struct bed *bed, int i);
void bed_stop(struct bed *bed, int i);
uint64_t bed_deadline(struct bed *bed);
/* An indexed block with that many bytes, made from @seed, pinned. */
struct block *bed_block(struct pool *pool, enum pool_kind kind, uint32_t bytes, uint64_t seed);
void bed_fill(uint8_t *p, size_t len, uint64_t seed);

#define EXPECT(condition)                                                                       \
	do {                                                                                    \
		if (!(condition)) {                                                             \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
			abort();                                                                \
		}                                                                               \
	} while (0)

#define EXPECT_INT(actual, expected)                                                                           \
	do {                                                                                                   \
		long long _actual = (long long)(actual), _expected = (long long)(expected);                    \
		if (_actual != _expected) {                                                                    \
			fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #actual, _actual, \
				_expected);                                                                    \
			abort();                                                                               \
		}                                                                                              \
	} while (0)

/* @call returns @expected; if not, the words of @e say why. */
#define EXPECT_CALL(call, expected, e)                                                                  \
	do {                                                                                            \
		(e)->text[0] = 0;                                                                       \
		int _r = (call);                                                                        \
		if (_r != (expected)) {                                                                 \
			fprintf(stderr, "%s:%d: %s is %d, not %d: %s\n", __FILE__, __LINE__, #call, _r, \
				(int)(expected), (e)->text);                                            \
			abort();                                                                        \
		}                                                                                       \
	} while (0)
