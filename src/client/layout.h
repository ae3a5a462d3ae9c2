/*
 * client/layout.h: where the bytes of a box lie in an application's memory.
 *
 * Stations of a copy count in the box's own bytes, row-major and contiguous; memory may have any strides, negative ones too. A
 * layout joins dimensions that follow each other in memory, so that contiguous memory is one run and costs one memcpy.
 *
 * Pure but for the copies.
 */
#pragma once

#include "base/box.h"
#include "base/error.h"

struct layout {
	uint64_t bytes;	    /* of the box */
	uint64_t run_bytes; /* contiguous in memory; 0 only if bytes is 0 */
	uint32_t n;	    /* outer dimensions over runs; 0: one run */
	uint64_t count[BOX_DIMS_MAX];
	int64_t stride[BOX_DIMS_MAX]; /* bytes */
};

/*
 * @strides_bytes: one per dimension of @box; NULL: contiguous. -EINVAL, -EOVERFLOW with words (elements that are not whole bytes can
 * only be contiguous).
 */
int layout_init(struct layout *layout, const struct box *box, uint32_t element_bits, const int64_t *strides_bytes,
		struct error *e);

static inline bool layout_is_contiguous(const struct layout *layout)
{
	return !layout->n;
}

/* Copies bytes [offset, offset + len) of the box from memory at @base to @to; from @from to memory (NULL: zeros). In range. */
void layout_gather(const struct layout *layout, const void *base, uint64_t offset, void *to, size_t len);
void layout_scatter(const struct layout *layout, void *base, uint64_t offset, const void *from, size_t len);

/*
 * Part of a piece into part of a target: of the piece's bytes [offset, offset + len), which lie at @from (NULL: they are zero), those
 * that fall into the box @wanted go to their places in memory at @base, laid out as @layout says for @wanted. Both boxes are
 * of one array. *ret_bytes: how many. 0; -EINVAL: the boxes do not fit together, the piece has no such bytes, or an element smaller than a byte
 * would be cut; -EOVERFLOW.
 */
int layout_fill(const struct layout *layout, const struct box *wanted, uint32_t element_bits, void *base,
		const struct box *piece, uint64_t offset, size_t len, const void *from, uint64_t *ret_bytes);
