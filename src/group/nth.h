/*
 * group/nth.h: how many grouped loads of each version a rank has begun or forgone, so that the nth of each rank belong together. Pure.
 *
 * A rank may load versions for months: the one that it came to first is forgotten beyond a limit. Its next load counts as the first one
 * again, on all ranks alike, since all have taken part in the same loads.
 */
#pragma once

#include "base/map.h"

#define NTH_VERSIONS_MAX 4096 /* remembered of one rank */

struct nths {
	struct map counts; /* by save id: uint64_t on the heap */
};

void nths_init(struct nths *nths);
void nths_fini(struct nths *nths);
/* The count of the version that this save became, 0 if it is new: until the next call. NULL: no memory. */
uint64_t *nths_of(struct nths *nths, uint64_t save_id);
