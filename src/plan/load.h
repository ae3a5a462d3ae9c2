/*
 * plan/load.h: the load plan: for each block that somebody needs, who reads it from the store, and from whom every other node
 * that needs it receives it.
 *
 * Each block leaves the store at most once, and not at all when some node holds it already. Store reads are spread over the
 * storage NICs of the nodes that need the block, by the same restricted water-filling as saves: finishing within one block of
 * the fluid optimum. Receivers take a block from the holder that is least loaded as a sender (ties: lowest node). Whoever has
 * received a block holds it too and may pass it on, but only when the first holders are LOAD_HOP_BYTES behind with sending: so
 * a block that lies on one node fans out over all that need it, and one that is read by a node in its turn is sent directly.
 * A block's steps form a tree whose roots are holders and the store; nobody waits for himself.
 *
 * Later (room in the interface, no code yet): chains in chunks, `fastest`, link limits.
 */
#pragma once

#include "plan/plan.h"

#define LOAD_HOP_BYTES (8 * (uint64_t)BLOCK_BYTES_MAX)

struct load_block {
	uint32_t bytes;			  /* 1..BLOCK_BYTES_MAX */
	uint32_t first_needer, n_needers; /* into load_facts.nodes_of: nodes that need it, ascending, >= 1 */
	uint32_t first_holder, n_holders; /* nodes that hold it already, ascending, maybe none */
};

struct load_facts {
	const struct plan_node *nodes; /* store_rate and store_queued: of reading */
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
	uint64_t *node_read_bytes; /* n_nodes: from the store */
	uint64_t *node_send_bytes; /* n_nodes: to other nodes */
	struct plan_bound bound;   /* of the store reads */
};

/* Outcomes beside 0 and negative errno. */
enum {
	LOAD_NO_RATE = 1, /* a block lies in the store only, and no node that needs it has a rate to read it */
};

/* 0, an outcome, -ENOMEM, -EINVAL (inconsistent facts). On anything but 0 @ret is untouched. */
int plan_load(const struct load_facts *facts, struct load_plan *ret);
void load_plan_fini(struct load_plan *plan); /* accepts zeroed */
