#include "cli/cut.h"

#include <string.h>

#include "base/check.h"

void cut_init(struct cut *cut, uint32_t ndim, const uint64_t *shape, uint32_t element_bits, uint64_t bytes,
	      uint64_t max_bytes)
{
	uint64_t step = element_bits / 8;
	uint32_t dim = ndim;

	CHECK(ndim <= CUT_DIMS && max_bytes);
	*cut = (struct cut){ .ndim = ndim, .bytes = bytes };
	memcpy(cut->shape, shape, ndim * sizeof(*shape));
	cut->whole = bytes <= max_bytes || element_bits % 8 || step > max_bytes || !ndim;
	if (cut->whole)
		return;
	/* From the last dimension outwards, as long as the indices inside fit: step is the bytes of one index of dim. */
	for (dim = ndim - 1; dim > 0 && step * shape[dim] <= max_bytes; dim--)
		step *= shape[dim];
	cut->dim = dim;
	cut->step_bytes = step;
	cut->run = max_bytes / step;
}

/* Moves @at behind the run of @count indices of dim, carrying into the outer dimensions. */
static void advance(struct cut *cut, uint64_t count)
{
	cut->at[cut->dim] += count;
	for (uint32_t d = cut->dim; cut->at[d] == cut->shape[d]; d--) {
		if (!d) {
			cut->end = true;
			return;
		}
		cut->at[d] = 0;
		cut->at[d - 1]++;
	}
}

bool cut_next(struct cut *cut, struct cut_box *ret)
{
	struct cut_box box = { .offset = cut->offset };

	if (cut->end)
		return false;
	if (cut->whole) {
		memcpy(box.count, cut->shape, sizeof(box.count));
		box.bytes = cut->bytes;
		cut->end = true;
		*ret = box;
		return true;
	}
	uint64_t left = cut->shape[cut->dim] - cut->at[cut->dim], count = left < cut->run ? left : cut->run;

	for (uint32_t d = 0; d < cut->ndim; d++) {
		box.start[d] = d <= cut->dim ? cut->at[d] : 0;
		box.count[d] = d < cut->dim ? 1 : d == cut->dim ? count : cut->shape[d];
	}
	box.bytes = count * cut->step_bytes;
	cut->offset += box.bytes;
	advance(cut, count);
	*ret = box;
	return true;
}
