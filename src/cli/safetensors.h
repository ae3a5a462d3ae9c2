/*
 * cli/safetensors.h: the layout of a safetensors file: 8 bytes length of the header, the header (JSON, padded with spaces so that the
 * data begin at a multiple of 8), then the tensors without gaps.
 *
 * Tensors lie in order of falling element size, then by name, so that each begins at a multiple of its element size. Pure.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/error.h"

#define SAFETENSORS_HEADER_MAX 100000000 /* bytes; the safetensors library reads no longer ones */

struct safetensors_tensor {
	const char *name, *dtype; /* dtype: Forebay's tag, torch's name without "torch." */
	uint32_t element_bits, ndim;
	const uint64_t *shape;
	uint64_t bytes;
};

struct safetensors_metadata {
	const char *key, *value;
};

/* The format's name for a dtype, or NULL if it has none. */
const char *safetensors_dtype(const char *dtype, uint32_t element_bits);
/* Whether the format can hold the tensor; -EINVAL with words. */
int safetensors_check(const struct safetensors_tensor *tensor, struct error *e);
/* The order in which tensors lie in a file, for qsort(). */
int safetensors_compare(const struct safetensors_tensor *a, const struct safetensors_tensor *b);

/* A header under way. */
struct safetensors_header {
	struct buf json;
	uint64_t offset; /* of the next tensor in the data */
};
int safetensors_begin(struct safetensors_header *header, const struct safetensors_metadata *metadata, size_t n);
/* Whether a file with this tensor on top has a header that is not too long: 1, 0, or -ENOMEM. 1: it was added. */
int safetensors_add(struct safetensors_header *header, const struct safetensors_tensor *tensor);
/* Ends it: json is then what comes before the data, its length and padding included. */
int safetensors_end(struct safetensors_header *header);
