/*
 * plan/load.h: the load plan: for each block that somebody needs, who reads it from the store, and from whom every other node
 * that needs it receives it.
 *
 * Each block leaves the store at most once, and not at all when some node holds it already. Store reads are spread over the
 * storage NICs of the nodes that need the block, by the same restricted water-filling as saves: finishing within one block of
 * the fluid optimum. Receivers take a block from a holder that is least loaded as a sender (ties: lowest node).
 *
 * Later (room in the interface, no code yet): chains in chunks, `fastest`, link limits.
 */
#pragma once

#include "plan/plan.h"

struct load_block {
	uint32_t bytes;
	uint32_t first_needer, n_needers;   /* into load_facts.nodes_of: nodes that need it, ascending, >= 1 */
	uint32_t first_holder, n_holders; /* nodes that hold it already, ascending, maybe none */
};

struct load_facts {
	const struct plan_node *nodes; /* store_rate: of reading */
	size_t n_nodes;
	const struct load_block *blocks;
	size_t n_blocks;
	const uint32_t *nodes_of;
	size_t n_nodes_of;
};

struct load_step {
	uint32_t block;
	uint32_t node;	 /* that gets it */
	uint32_t source; /* a node, or LOAD_STORE. A needer that already holds it has no step */
};
#define LOAD_STORE UINT32_MAX

struct load_plan {
	struct load_step *steps; /* by node, store reads first, then by block */
	size_t n_steps;
	uint64_t store_bytes, network_bytes;
	uint64_t *node_read_bytes; /* n_nodes */
	struct plan_bound bound;   /* of the store reads */
};

enum { LOAD_NO_RATE = 1 };

int plan_load(const struct load_facts *facts, struct load_plan *ret);
void load_plan_fini(struct load_plan *plan);
