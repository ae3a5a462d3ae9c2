/*
 * group/nth.h: how many grouped loads of each version a rank has begun or forgone, so that the nth of each rank belong together. Pure.
 *
 * A rank may load versions for months: the one that it came to first is forgotten beyond a limit. Its next load counts as the first one
 * again, on all ranks alike, since all have taken part in the same loads. By its turn it is told from the first one of before.
 */
#pragma once

#include <stdbool.h>

#include "base/map.h"

#define NTH_VERSIONS_MAX 4096 /* remembered of one rank */

struct nth {
	uint64_t save_id; /* that the version came from */
	uint64_t count;	  /* of its loads */
	uint64_t turn;	  /* it is the how-manieth version that the rank came to, since when it is counted */
};

struct nths {
	struct map counts; /* by save id: struct nth on the heap */
	uint64_t turn;	   /* of the newest */
};

void nths_init(struct nths *nths);
void nths_fini(struct nths *nths);
/* That of the version that this save became, with count 0 if it is new: until the next call. NULL: no memory. */
struct nth *nths_of(struct nths *nths, uint64_t save_id);
/* Are they the same load? Ranks may have come to versions in somewhat other orders. */
bool nth_equal(const struct nth *a, const struct nth *b);
