/*
 * sim/crowd_suite.h: a cluster in a calm world, and jobs on it whose ranks do what a test says; for stories about groups that chance
 * would not tell, or with more ranks than a history has.
 */
#pragma once

#include "sim/history_suite.h"

#define CROWD_NODES_MAX 8
#define CROWD_WAIT_MS	3000000 /* longer than anything may take: the test fails then */

struct crowd_node {
	struct crowd *crowd;
	char name[SIM_NAME_BYTES], listen[32], socket[32];
	struct env *env;
	struct daemon *daemon;
};

struct crowd {
	struct world *world;
	struct history history; /* only what a client needs of one */
	struct coverage coverage;
	uint64_t pool_bytes;
	unsigned n_nodes, n_jobs;
	struct crowd_node nodes[CROWD_NODES_MAX];
	struct model_records *engine;
	int (*story)(struct crowd *crowd);
};

/* Starts @n_nodes daemons with a directory for a store, tells the story in a fiber, and ends all. Fails the test if anything is left. */
void crowd_play(uint64_t seed, unsigned n_nodes, uint64_t pool_bytes, int (*story)(struct crowd *crowd));

struct crowd_rank {
	struct crowd *crowd;
	const struct crowd_job *job;
	uint32_t number;
	struct env *env;
	struct client client;
	struct core_group *group;
	int result;		 /* of live() */
	struct core_stats stats; /* of its last save */
};

struct crowd_job {
	const char *group, *run;
	uint32_t n_ranks;
	unsigned first_node; /* rank i is on node first_node + i, modulo n_nodes */
	unsigned n_nodes;    /* 0: all */
	int (*live)(struct crowd_rank *rank);
	void *arg;
};

/* Ranks join, live and leave, each in a fiber of its own; waits for all. The ranks' results are checked to be 0. */
void crowd_work(struct crowd *crowd, const struct crowd_job *job);

struct crowd_item {
	const char *name;
	uint64_t whole, start, count; /* bytes */
	const void *data;
};
/* Offers these items and waits for all stages; *ret_ends (may be NULL): how each stage ended. The last stage's end. */
int crowd_save(struct crowd_rank *rank, const char *bundle, uint64_t step, const struct core_save_options *more,
	       const struct crowd_item *items, size_t n, struct error ret_ends[CORE_STAGES]);
/* Opens the newest version for the rank's group, or for itself alone. */
int crowd_open(struct crowd_rank *rank, const char *bundle, bool grouped, uint64_t *ret_handle);
/* Loads those bytes of the items into @out, which has room for one after the other. */
int crowd_load(struct crowd_rank *rank, uint64_t version, bool grouped, const struct crowd_item *items, size_t n,
	       uint8_t *out);
/* Waits until @yes or for @limit_ms: whether it came to be. */
bool crowd_until(struct crowd *crowd, bool (*yes)(struct crowd *crowd), uint64_t limit_ms);
