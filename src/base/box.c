#include "base/box.h"

#include <errno.h>

#define BOX_SIZE_MAX	 (UINT64_C(1) << 63) /* elements or bytes of one box */
#define ELEMENT_BITS_MAX 4096

typedef unsigned __int128 u128; /* bits of a box overflow 64 bits */

static uint64_t min(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

bool box_equal(const struct box *a, const struct box *b)
{
	if (a->ndim != b->ndim || a->ndim > BOX_DIMS_MAX)
		return false;
	for (uint32_t d = 0; d < a->ndim; d++)
		if (a->start[d] != b->start[d] || a->count[d] != b->count[d])
			return false;
	return true;
}

bool box_intersect(const struct box *a, const struct box *b, struct box *ret)
{
	struct box common = { .ndim = a->ndim }; /* apart: @ret may be @a or @b */

	if (a->ndim != b->ndim || a->ndim > BOX_DIMS_MAX)
		return false;
	for (uint32_t d = 0; d < a->ndim; d++) {
		uint64_t start = a->start[d] > b->start[d] ? a->start[d] : b->start[d];
		uint64_t skip_a = start - a->start[d], skip_b = start - b->start[d];

		if (skip_a >= a->count[d] || skip_b >= b->count[d])
			return false;
		common.start[d] = start;
		common.count[d] = min(a->count[d] - skip_a, b->count[d] - skip_b);
	}
	*ret = common;
	return true;
}

bool box_inside(const struct box *box, const uint64_t *shape)
{
	if (box->ndim > BOX_DIMS_MAX)
		return false;
	for (uint32_t d = 0; d < box->ndim; d++)
		if (box->count[d] > shape[d] || box->start[d] > shape[d] - box->count[d])
			return false;
	return true;
}

static bool box_is_empty(const struct box *box)
{
	for (uint32_t d = 0; d < box->ndim; d++)
		if (!box->count[d])
			return true;
	return false;
}

int box_elements(const struct box *box, uint64_t *ret)
{
	uint64_t n = 1;

	if (box->ndim > BOX_DIMS_MAX)
		return -EINVAL;
	if (box_is_empty(box)) { /* first: huge counts beside a 0 are no overflow */
		*ret = 0;
		return 0;
	}
	for (uint32_t d = 0; d < box->ndim; d++)
		if (__builtin_mul_overflow(n, box->count[d], &n) || n > BOX_SIZE_MAX)
			return -EOVERFLOW;
	*ret = n;
	return 0;
}

int box_bytes(const struct box *box, uint32_t element_bits, uint64_t *ret)
{
	uint64_t n;
	int r;

	if (!element_bits || element_bits > ELEMENT_BITS_MAX)
		return -EINVAL;
	r = box_elements(box, &n);
	if (r)
		return r;

	u128 bits = (u128)n * element_bits;
	if (bits % 8)
		return -EINVAL;
	if (bits / 8 > BOX_SIZE_MAX)
		return -EOVERFLOW;
	*ret = (uint64_t)(bits / 8);
	return 0;
}

static bool part_inside(const struct box *part, const struct box *box)
{
	if (part->ndim != box->ndim)
		return false;
	for (uint32_t d = 0; d < box->ndim; d++) {
		if (part->start[d] < box->start[d])
			return false;
		uint64_t skip = part->start[d] - box->start[d];
		if (skip > box->count[d] || part->count[d] > box->count[d] - skip)
			return false;
	}
	return true;
}

/* Where the run at walk->index begins in the box, in bits. */
static u128 run_offset_bits(const struct box_walk *walk)
{
	const struct box *box = walk->box, *part = walk->part;
	u128 elements = 0;

	for (uint32_t d = 0; d < box->ndim; d++)
		elements = elements * box->count[d] + (part->start[d] - box->start[d] + walk->index[d]);
	return elements * walk->element_bits;
}

/* True if every run begins and ends between two bytes: the length, the first start, each distance of starts. */
static bool runs_are_bytes(const struct box_walk *walk, u128 run_bits)
{
	const struct box *box = walk->box;
	u128 stride_bits = walk->element_bits;

	if (run_bits % 8 || run_offset_bits(walk) % 8)
		return false;
	for (uint32_t d = box->ndim; d-- > 0;) {
		if (d < walk->split && walk->part->count[d] > 1 && stride_bits % 8)
			return false;
		stride_bits *= box->count[d];
	}
	return true;
}

int box_walk_init(struct box_walk *walk, const struct box *box, const struct box *part, uint32_t element_bits)
{
	struct box_walk w = { .box = box, .part = part, .element_bits = element_bits };
	uint64_t box_size_bytes;
	u128 run_bits;
	int r;

	r = box_bytes(box, element_bits, &box_size_bytes); /* from here on nothing overflows */
	if (r)
		return r;
	if (!part_inside(part, box))
		return -EINVAL;
	if (box_is_empty(part)) {
		w.finished = true;
		*walk = w;
		return 0;
	}

	/* Whole inner dimensions and the part's stretch of the next one out lie in one run. */
	w.split = box->ndim ? box->ndim - 1 : 0;
	while (w.split && part->count[w.split] == box->count[w.split])
		w.split--;
	run_bits = element_bits;
	for (uint32_t d = w.split; d < box->ndim; d++)
		run_bits *= part->count[d];
	if (!runs_are_bytes(&w, run_bits))
		return -EINVAL;
	w.run_bytes = (uint64_t)(run_bits / 8);
	*walk = w;
	return 0;
}

/* Counts up the outer dimensions like an odometer, the last one fastest. */
static void walk_advance(struct box_walk *walk)
{
	walk->part_offset += walk->run_bytes;
	for (uint32_t d = walk->split; d-- > 0;) {
		if (++walk->index[d] < walk->part->count[d])
			return;
		walk->index[d] = 0;
	}
	walk->finished = true;
}

bool box_walk_next(struct box_walk *walk, uint64_t *ret_box_offset, uint64_t *ret_part_offset, uint64_t *ret_bytes)
{
	if (walk->finished)
		return false;
	*ret_box_offset = (uint64_t)(run_offset_bits(walk) / 8);
	*ret_part_offset = walk->part_offset;
	*ret_bytes = walk->run_bytes;
	walk_advance(walk);
	return true;
}
