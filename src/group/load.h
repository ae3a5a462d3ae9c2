/*
 * group/load.h: what reader.c (one rank's load) and gather.c (the group's plan for it) share.
 */
#pragma once

#include "group/inside.h"

/*
 * One grouped load of a version as a node sees it: the union of what its ranks need, and, once the coordinator has answered, from
 * where each block comes. Counted: each reader holds it.
 */
struct mload {
	uint32_t refs;
	struct list link; /* in mgroup.loads */
	struct mgroup *group;
	struct version *version;
	struct nth nth;
	uint32_t n_ranks; /* that have said what they need */
	bool *needed;	  /* per block of the version */
	uint32_t *source; /* per block: into nodes, or LOAD_STORE */
	char (*nodes)[NODE_NAME_MAX + 1];
	size_t n_nodes;
	bool asked;	    /* all local ranks have said it, the coordinator is asked */
	bool answered;	    /* or it failed */
	struct error error; /* code 0: none */
	struct waitplace changed;
};

/* Adds a rank's needs; the last local rank's call sends them to the coordinator. */
int mload_join(struct rank *rank, struct version *version, const uint32_t *blocks, size_t n, struct mload **ret,
	       struct error *e);
/* Loads that @rank's node has not asked for yet will never be complete: they fail, naming it. */
void mload_rank_left(const struct rank *rank, const char *words);
/* Waits for the coordinator's answer. */
int mload_wait(struct mload *load, uint64_t deadline_ns, struct error *e);
/* The node to ask for the block, NULL: the store. */
const char *mload_source(const struct mload *load, uint32_t block);
void mload_put(struct mload *load); /* accepts NULL */
