/*
 * plan/tally.h: who has the least so far? Loads of n places, with the least loaded one of any run of places in O(log n):
 * a tree of minima over the places, its leaves at n .. 2n - 1, the children of i at 2i and 2i + 1. Ties fall to the lowest
 * place, so that equal input gives equal plans.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "plan/array.h"

#define TALLY_NONE UINT32_MAX

struct tally {
	size_t n, n_max;
	uint64_t *load;	 /* bytes, by place */
	uint32_t *least; /* by tree vertex: the place below it with the least load */
};

/* Room for @n_max places; none are there yet. 0 or -ENOMEM. */
int tally_init(struct tally *tally, size_t n_max);
void tally_fini(struct tally *tally); /* accepts zeroed */
/* Takes the first @n entries of load[], which the caller has set, as the loads to start from. */
void tally_start(struct tally *tally, size_t n);
void tally_add(struct tally *tally, uint32_t place, uint64_t bytes);
uint32_t tally_least(const struct tally *tally, struct range places); /* TALLY_NONE: there is no place in @places */
/* The least loaded place that lies in none of @excluded, which are disjoint and ascending. */
uint32_t tally_least_outside(const struct tally *tally, const struct range *excluded, size_t n);
