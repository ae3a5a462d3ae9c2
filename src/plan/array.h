/*
 * plan/array.h: arrays of the planners, and ranges of their places.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/cleanup.h"

/* Numbers @from .. @to - 1. */
struct range {
	uint32_t from, to;
};

/* Puts @range among the @n disjoint ascending ones, which have room for one more. */
static inline void range_insert(struct range *ranges, size_t n, struct range range)
{
	for (; n && ranges[n - 1].from > range.from; n--)
		ranges[n] = ranges[n - 1];
	ranges[n] = range;
}

/* Zeroed, and NULL only for want of memory: an empty array is one too. */
static inline void *array_new(size_t n, size_t size_bytes)
{
	return calloc(n ? n : 1, size_bytes);
}
