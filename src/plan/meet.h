/*
 * plan/meet.h: which boxes of two lists have an element in common, without comparing each with each.
 *
 * Two intervals have a point in common if one of them contains the other's begin. So in each dimension boxes are taken once as the
 * intervals and once as the points. A range of points is halved until an interval contains all of what is left, or none: those that
 * contain all need not be looked at in this dimension any more. Source: Zomorodian and Edelsbrunner, "Fast software for box
 * intersections", 2000, with halves of the range instead of a segment tree over medians: its depth is bounded by the 64 bits of
 * a number, whatever the boxes are.
 *
 * Pure. It recurses, at most 64 times for each dimension: for a thread's stack, not for a fiber's.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/box.h"

/* Boxes that lie in an array of something, @stride_bytes apart; all of as many dimensions, and none that ends past 2^64. */
struct meet_boxes {
	const struct box *first;
	size_t stride_bytes, n;
};

/* Box @a of the first list and box @b of the second meet. Anything but 0 ends the search. */
typedef int (*meet_fn)(void *arg, uint32_t a, uint32_t b);

/* Outcomes of meet(). */
enum {
	MEET_TOO_LONG = 1, /* more steps were needed than there were */
};

/*
 * Calls @met once for each pair that meets, in no order that means anything. A list may be given twice: then each box meets itself.
 * Takes as many steps off *steps as boxes were looked at. 0, MEET_TOO_LONG, -ENOMEM, or what @met returned.
 */
int meet(const struct meet_boxes *a, const struct meet_boxes *b, uint64_t *steps, meet_fn met, void *arg);
