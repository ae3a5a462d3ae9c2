/*
 * plan/save.h: the save plan: for each block of each unique piece, which rank's node captures it, which further nodes hold
 * copies, and which node uploads it.
 *
 * A *unique* is a box of an item offered by one or more ranks (equal boxes are replicas). The planner cuts it into blocks of at
 * most block_bytes. Decisions fall per block, so that a large replicated tensor is shared out over all that have it.
 *
 * Aim, in this order: (1) R holders in R different failure domains; nodes of ranks that offer the block cost no network and are
 * taken first, as many of them as R asks; (2) the time at which the last storage NIC has written its uploads is minimal: each
 * block is uploaded by one of its holders. Blocks with equal sets of candidate nodes form a class; fluid shares of classes
 * over nodes by parametric max-flow; then blocks are dealt out along the shares, in order, so that neighbours and small pieces
 * stay together. So every node's load exceeds the fluid optimum by less than one block, the largest of the plan.
 *
 * A block offered in fewer than R domains gets copies on other nodes; any node outside its domains may get one and upload it.
 * Within these bounds capture is even over the nodes that offer a block and over the ranks of a node, and copies are even over
 * the nodes that receive them. Nodes without a storage rate hold copies, but upload nothing. docs/planner.md has the maths.
 *
 * Later (room in the interface, no code yet): moving bytes to idle NICs before upload, chains, link limits.
 */
#pragma once

#include <stdbool.h>

#include "plan/plan.h"

#define SAVE_SMALL_BYTES (64u << 10) /* pieces under this share slabs: consecutive ones of the same ranks go together */

struct save_unique {
	uint64_t bytes;	     /* 0 is legal: no blocks */
	uint32_t first_rank; /* into save_facts.offers: the ranks that offer it, ascending */
	uint32_t n_ranks;    /* >= 1; slices of equal uniques may be one and the same */
};

struct save_facts {
	const struct plan_node *nodes;
	size_t n_nodes;
	const uint32_t *rank_node; /* node of each rank */
	size_t n_ranks;
	const struct save_unique *uniques;
	size_t n_uniques;
	const uint32_t *offers; /* rank numbers; uniques point into it */
	size_t n_offers;
	uint32_t copies;      /* R: 1..PLAN_COPIES_MAX */
	uint32_t block_bytes; /* what pieces are cut into, at most BLOCK_BYTES_MAX; 0: that */
};

struct save_block {
	uint32_t unique;
	uint32_t bytes;			  /* 1..BLOCK_BYTES_MAX */
	uint64_t offset;		  /* in the unique's bytes */
	uint32_t rank;			  /* captures it, into the pool of its own node = holder[0] */
	uint32_t uploader;		  /* a node, one of holder[] */
	uint32_t holder[PLAN_COPIES_MAX]; /* nodes, distinct domains, capturing ones first; UINT32_MAX past R */
	uint32_t holder_rank
		[PLAN_COPIES_MAX]; /* the rank that captures there too, or SAVE_COPIED: sent from holder[0] */
};
#define SAVE_COPIED UINT32_MAX

struct save_plan {
	struct save_block *blocks; /* ordered by unique, then offset */
	size_t n_blocks;
	uint64_t *node_upload_bytes, *node_capture_bytes, *node_receive_bytes; /* n_nodes each */
	uint64_t unique_bytes, copy_bytes; /* copy_bytes: over the compute network */
	struct plan_bound bound;	   /* of the upload */
	uint64_t fingerprint;		   /* XXH3 of the plan's decisions: equal plans on equal facts */
};

/* Outcomes beside 0 and negative errno. */
enum {
	SAVE_NO_DOMAINS = 1, /* there are bytes, and fewer failure domains than copies */
	SAVE_NO_RATE = 2,    /* bytes to upload and no node with a storage rate among the possible holders */
};

/* 0, an outcome, -ENOMEM, -E2BIG (more than PLAN_BLOCKS_MAX), -EINVAL (inconsistent facts). On anything but 0 @ret is untouched. */
int plan_save(const struct save_facts *facts, struct save_plan *ret);
void save_plan_fini(struct save_plan *plan); /* accepts zeroed */
