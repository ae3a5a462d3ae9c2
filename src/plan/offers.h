/*
 * plan/offers.h: who has what to save. Nodes get *positions*, sorted by failure domain, so that a domain is a range of
 * positions; uniques that the same ranks offer share one *offer*, so that planning costs classes, not tensors.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "plan/array.h"
#include "plan/save.h"
#include "plan/sets.h"

struct offer_node {
	uint32_t position;
	uint32_t first_rank; /* into offers.ranks: its ranks that offer, up to the next node's */
};

/* One set of ranks, and what only these offer. */
struct offer {
	uint64_t bytes;		      /* of all its uniques */
	uint32_t first_node, n_nodes; /* into offers.nodes, ascending by position */
	uint32_t n_ranks, n_domains;
};

struct offers {
	uint32_t *node;		/* by position */
	uint32_t *position;	/* by node */
	uint32_t *domain;	/* by position: domains without gaps */
	uint32_t *domain_first; /* by domain, n_domains + 1: its first position */
	size_t n_positions, n_domains;

	struct offer *list;
	size_t n;
	uint32_t *of_unique;	  /* the offer of each unique */
	struct offer_node *nodes; /* one more than there are, as an end for the last */
	uint32_t *ranks;
};

/* 0, -ENOMEM, or -EINVAL when ranks are not ascending or out of range. The facts' numbers and slices have been checked. */
int offers_init(struct offers *offers, const struct save_facts *facts);
void offers_fini(struct offers *offers); /* accepts zeroed */

struct range offers_domain(const struct offers *offers, uint32_t position); /* the positions of its domain */
/* The first of the offer's nodes that is at @position or after it; offer->n_nodes if there is none. */
uint32_t offers_find(const struct offers *offers, const struct offer *offer, uint32_t position);
