/*
 * plan/level.h: the fluid optimum. Classes of bytes, each with the pipes that may carry it, are poured over the pipes so that the
 * last one falls idle as early as possible: restricted water-filling (docs/planner.md, section 2).
 *
 * Every pipe first drains what it has queued. The level is the time at which the last pipe that got bytes falls idle. The
 * optimum is found by cutting, not by searching: pour everything at the level of the average; if that does not fit, the
 * minimum cut parts the classes and pipes that must lie above the level from those that can lie below it; solve both alone.
 * So not only the highest level is minimal, but in turn the one below it (Megiddo 1974): no pipe is filled to the brim only
 * because another one has to be.
 *
 * Pure. Amounts are bytes, rates bytes per second, times nanoseconds; all arithmetic is exact in 128-bit integers.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "plan/array.h"

#define LEVEL_RANGES_MAX 4		     /* of one class */
#define LEVEL_NS_MAX	 (UINT64_C(1) << 62) /* 146 years; later times are shown as this one */

struct level_pipe {
	uint64_t rate;	 /* 0: takes no bytes */
	uint64_t queued; /* bytes */
};

/* Pipes may be named one by one, by ranges, or both; none may be named twice. Ranges cost O(log n) each. */
struct level_class {
	uint64_t bytes;
	const uint32_t *pipes;
	uint32_t n_pipes, n_ranges;
	struct range ranges[LEVEL_RANGES_MAX];
};

struct level_facts {
	const struct level_pipe *pipes;
	size_t n_pipes;
	const struct level_class *classes; /* their bytes together: under 2^62 */
	size_t n_classes;
};

/* So many bytes of the class go to the pipe. */
struct share {
	uint32_t class, pipe;
	uint64_t bytes;
};

struct shares {
	struct share *list; /* in no special order; each pair at most once, all above 0 */
	size_t n, n_max;
};

/* Outcomes of level_fill() that its caller must handle. */
enum {
	LEVEL_NO_RATE = 1, /* a class has bytes, and none of its pipes a rate */
};

/*
 * Pipes' shares of classes: each class's add up to its bytes exactly, and every pipe with a share is idle by *ret_level_ns,
 * which is the smallest such number. Named pipes are preferred to those in ranges where that costs no time.
 *
 * 0, LEVEL_NO_RATE, or -ENOMEM; on anything but 0 the outputs are untouched.
 */
int level_fill(const struct level_facts *facts, struct shares *ret, uint64_t *ret_level_ns);
void shares_fini(struct shares *shares); /* accepts zeroed */

/* When the pipe is idle if it gets @bytes, rounded up; at most LEVEL_NS_MAX. It has a rate. */
uint64_t level_end_ns(const struct level_pipe *pipe, uint64_t bytes);
