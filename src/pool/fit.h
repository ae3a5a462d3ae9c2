/*
 * pool/fit.h: finds room in a stretch of units (pages, or 64-byte pieces) that it never touches.
 *
 * Two-level segregated fit (Masmano, Ripoll, Crespo, Real: "TLSF: a new dynamic memory allocator for real-time systems", 2004):
 * free runs lie in classes by size, 32 to each power of two, with bitmaps over them; take and give cost the same however full it is,
 * and a run that is given back joins its free neighbours at once. All bookkeeping lies in an array of nodes outside.
 *
 * A space may consist of several ranges, which never join each other; each carries a tag for its owner.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define FIT_UNITS_MAX (UINT64_C(1) << 36) /* in one range */
#define FIT_FIRST     32		  /* first-level classes: powers of two */
#define FIT_SECOND    32		  /* second-level classes in each */

enum {
	FIT_FULL = 1, /* no free run is long enough */
};

struct fit_node; /* a run of units, free or taken; named by its index */

struct fit {
	struct fit_node *nodes;
	uint32_t n_nodes, cap_nodes, spare; /* spare: list of nodes without a run */
	uint64_t free_units;
	uint32_t first_map;
	uint32_t second_map[FIT_FIRST];
	uint32_t heads[FIT_FIRST][FIT_SECOND];
};

void fit_init(struct fit *fit);
void fit_fini(struct fit *fit);

/* The free range [start, start + units) joins the space. Ranges do not overlap. 0, -ENOMEM, -EINVAL (no unit, too many). */
int fit_add(struct fit *fit, uint64_t start, uint64_t units, uint32_t tag);

/* A run of @units, at least 1. 0, FIT_FULL, -ENOMEM. */
int fit_take(struct fit *fit, uint64_t units, uint32_t *ret_node);
uint64_t fit_start(const struct fit *fit, uint32_t node);
uint32_t fit_tag(const struct fit *fit, uint32_t node);

/*
 * Gives the run back; @node is not the caller's any more. Returns the free node that it has become part of, which
 * is valid until the next call. Never fails.
 */
uint32_t fit_give(struct fit *fit, uint32_t node);
bool fit_is_whole(const struct fit *fit, uint32_t node); /* the free @node is all of its range */
void fit_remove(struct fit *fit, uint32_t node);	 /* such a range leaves the space */
