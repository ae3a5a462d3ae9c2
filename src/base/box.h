/*
 * base/box.h: boxes of n-dimensional arrays, in elements. A box is a start and a count in every dimension; its bytes
 * lie contiguous and row-major. Zero counts are legal: a box without elements. A box of more than BOX_DIMS_MAX
 * dimensions is equal to none, inside none and meets none, and calls that can fail answer -EINVAL.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BOX_DIMS_MAX 8

struct box {
	uint32_t ndim; /* 0 is a scalar: one element */
	uint64_t start[BOX_DIMS_MAX], count[BOX_DIMS_MAX];
};

bool box_equal(const struct box *a, const struct box *b);
bool box_intersect(const struct box *a, const struct box *b, struct box *ret); /* false: empty, *ret untouched */
bool box_inside(const struct box *box, const uint64_t *shape);		       /* start + count <= shape, no overflow */
/* Elements of the box; -EOVERFLOW past 2^63. */
int box_elements(const struct box *box, uint64_t *ret);
/*
 * Bytes of the box with elements of @element_bits (1..4096). -EINVAL when the bits do not fill whole bytes (an odd
 * number of 4-bit values), -EOVERFLOW past 2^63.
 */
int box_bytes(const struct box *box, uint32_t element_bits, uint64_t *ret);

/*
 * Walks the part @part of @box (both in the array's coordinates, part inside box) as runs that are contiguous in the
 * box's row-major bytes: offset of the run in the box's bytes, offset of the run in the part's own row-major bytes, and
 * its length, all in bytes. Runs are as long as can be, and come in ascending order. Elements smaller than a byte are
 * fine where every run begins and ends between two bytes, as whole rows often do. Allocation-free.
 *
 * box_walk_init() borrows both boxes until the walk ends. -EINVAL: part is not inside box, or a run would split a byte;
 * else the errors of box_bytes(@box). On failure *walk is untouched.
 */
struct box_walk {
	const struct box *box, *part;
	uint32_t element_bits;
	uint64_t index[BOX_DIMS_MAX];
	uint32_t split; /* dimensions from here on are contiguous */
	uint64_t run_bytes, part_offset;
	bool finished;
};
int box_walk_init(struct box_walk *walk, const struct box *box, const struct box *part, uint32_t element_bits);
bool box_walk_next(struct box_walk *walk, uint64_t *ret_box_offset, uint64_t *ret_part_offset, uint64_t *ret_bytes);
