/*
 * bench/plan.c: how long the planners take at the sizes of real jobs. Prints the time, what comes out, and
 * how far the plan is from its own bound.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/check.h"
#include "plan/load.h"
#include "plan/save.h"

#define RANKS_PER_NODE 8
#define GB	       UINT64_C(1000000000)

struct job {
	const char *name;
	uint32_t n_ranks;
	size_t n_uniques;
	uint32_t n_replicas; /* of each unique: so many ranks offer it */
	uint32_t copies;
	enum { STRIDED, SCATTERED } placing; /* replicas of a rank lie n_ranks / n_replicas apart; or anywhere */
};

static const struct job JOBS[] = {
	/* name                                        ranks  uniques replicas copies */
	{ "64 ranks x 12,000 boxes, all their own", 64, 768000, 1, 1, STRIDED },
	{ "64 ranks x 12,000 boxes, all their own, 2 copies", 64, 768000, 1, 2, STRIDED },
	{ "64 ranks x 12,000 boxes, 8 replicas", 64, 96000, 8, 2, STRIDED },
	{ "64 ranks x 12,000 boxes, the same on all", 64, 12000, 64, 2, STRIDED },
	{ "1,024 ranks, 10^4 uniques", 1024, 10000, 16, 2, STRIDED },
	{ "1,024 ranks, 10^5 uniques", 1024, 100000, 16, 2, STRIDED },
	{ "1,024 ranks, 10^6 uniques", 1024, 1000000, 16, 2, STRIDED },
	{ "1,024 ranks, 10^6 uniques of one rank, 3 copies", 1024, 1000000, 1, 3, STRIDED },
	{ "1,024 ranks, 10^5 uniques, each on other ranks", 1024, 100000, 8, 2, SCATTERED },
	{ "32,768 ranks, 10^6 uniques of 8 ranks", 32768, 1000000, 8, 2, STRIDED },
	{ "32,768 ranks, 10^6 uniques, each on other ranks", 32768, 1000000, 4, 2, SCATTERED },
};

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static uint64_t next(uint64_t *x)
{
	*x ^= *x << 13, *x ^= *x >> 7, *x ^= *x << 17;
	return *x;
}

static int by_number(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

/* The ranks of one unique, ascending and distinct. */
static void place(const struct job *job, size_t u, uint32_t *ranks, uint64_t *x)
{
	uint32_t stride = job->n_ranks / job->n_replicas;

	for (uint32_t i = 0; i < job->n_replicas; i++)
		ranks[i] = i * stride + (uint32_t)((job->placing == SCATTERED ? next(x) : u) % stride);
}

static uint64_t size_of(uint64_t *x)
{
	uint64_t kind = next(x) % 16;

	if (kind < 8)
		return next(x) % 16384; /* norms, biases */
	return kind < 15 ? next(x) % (2 << 20) : next(x) % (64 << 20);
}

static void make_nodes(struct plan_node *nodes, size_t n)
{
	for (uint32_t i = 0; i < n; i++)
		nodes[i] = (struct plan_node){ .domain = i, .store_rate = 2 * GB, .network_rate = 50 * GB };
}

static void bench_save(const struct job *job)
{
	size_t n_nodes = job->n_ranks / RANKS_PER_NODE, n_offers = job->n_uniques * job->n_replicas;
	struct plan_node *nodes = calloc(n_nodes, sizeof(*nodes));
	uint32_t *rank_node = calloc(job->n_ranks, sizeof(*rank_node)), *offers = calloc(n_offers, sizeof(*offers));
	struct save_unique *uniques = calloc(job->n_uniques, sizeof(*uniques));
	struct save_facts facts = { nodes,	    n_nodes, rank_node, job->n_ranks, uniques,
				    job->n_uniques, offers,  n_offers,	job->copies,  0 };
	struct save_plan plan = { 0 };
	uint64_t x = 88172645463325252;

	CHECK(nodes && rank_node && offers && uniques);
	make_nodes(nodes, n_nodes);
	for (uint32_t i = 0; i < job->n_ranks; i++)
		rank_node[i] = i / RANKS_PER_NODE;
	for (size_t u = 0; u < job->n_uniques; u++) {
		uint32_t first = (uint32_t)(u * job->n_replicas);

		uniques[u] = (struct save_unique){ size_of(&x), first, job->n_replicas };
		place(job, u, offers + first, &x);
		qsort(offers + first, job->n_replicas, sizeof(*offers), by_number);
	}

	double start = now_s();
	int r = plan_save(&facts, &plan);
	double took = now_s() - start;
	CHECK(!r);
	printf("save  %7.1f ms  %8zu blocks  %6.0f GB  ratio %.4f  %s\n", took * 1e3, plan.n_blocks,
	       (double)plan.unique_bytes / 1e9, (double)plan.bound.planned_ns / (double)plan.bound.bound_ns, job->name);
	save_plan_fini(&plan);
	free(nodes);
	free(rank_node);
	free(offers);
	free(uniques);
}

/* Every block is needed by @n_needers nodes, a stride apart. */
static void bench_load(size_t n_nodes, size_t n_blocks, uint32_t n_needers)
{
	struct plan_node *nodes = calloc(n_nodes, sizeof(*nodes));
	struct load_block *blocks = calloc(n_blocks, sizeof(*blocks));
	uint32_t *nodes_of = calloc(n_nodes * n_needers, sizeof(*nodes_of));
	struct load_facts facts = { nodes, n_nodes, blocks, n_blocks, nodes_of, n_nodes };
	struct load_plan plan = { 0 };
	size_t stride = n_nodes / n_needers;
	uint64_t x = 1;

	CHECK(nodes && blocks && nodes_of);
	make_nodes(nodes, n_nodes);
	for (size_t i = 0; i < n_nodes; i++)
		nodes_of[i] = (uint32_t)(i / n_needers + i % n_needers * stride);
	for (size_t b = 0; b < n_blocks; b++)
		blocks[b] = (struct load_block){ 1 + next(&x) % BLOCK_BYTES_MAX, (uint32_t)(b % stride) * n_needers,
						 n_needers, 0, 0 };

	double start = now_s();
	int r = plan_load(&facts, &plan);
	double took = now_s() - start;
	CHECK(!r);
	printf("load  %7.1f ms  %8zu steps   %6.0f GB  ratio %.4f  %zu nodes, %zu blocks, each for %u nodes\n",
	       took * 1e3, plan.n_steps, (double)plan.store_bytes / 1e9,
	       (double)plan.bound.planned_ns / (double)plan.bound.bound_ns, n_nodes, n_blocks, n_needers);
	load_plan_fini(&plan);
	free(nodes);
	free(blocks);
	free(nodes_of);
}

int main(void)
{
	for (size_t i = 0; i < ARRAY_LEN(JOBS); i++)
		bench_save(&JOBS[i]);
	bench_load(8, 100000, 8);
	bench_load(128, 100000, 128);
	bench_load(128, 1000000, 4);
	return 0;
}
