/*
 * cli/cut.h: cuts an item into boxes of bounded size that lie one after the other in its row-major bytes.
 *
 * A box takes single indices of the outer dimensions, a run of one, and the inner ones whole: so its bytes are contiguous in the
 * item's, and boxes come in the order of their bytes. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CUT_DIMS 8

struct cut {
	uint32_t ndim, dim; /* dim: the one that is cut into runs */
	uint64_t shape[CUT_DIMS], at[CUT_DIMS];
	uint64_t run, step_bytes; /* indices of dim in a box, and the bytes of one of them */
	uint64_t bytes, offset;
	bool whole, end;
};

struct cut_box {
	uint64_t start[CUT_DIMS], count[CUT_DIMS];
	uint64_t offset, bytes; /* in the item's bytes */
};

/* Boxes of at most @max_bytes. An item whose elements are no whole bytes is one box, however large. */
void cut_init(struct cut *cut, uint32_t ndim, const uint64_t *shape, uint32_t element_bits, uint64_t bytes,
	      uint64_t max_bytes);
/* The next box; false: there is none. An item without bytes has one box. */
bool cut_next(struct cut *cut, struct cut_box *ret);
