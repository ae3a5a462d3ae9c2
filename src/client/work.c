#include "client/work.h"

#include <errno.h>
#include <stdlib.h>

#define GATHER_BYTES \
	32768 /* gathered before it is hashed: as hasher_copy() steps, so that it is still in the core's cache */
#define FAULT_BYTES \
	65536 /* that Linux maps at a read of one of them (fault_around_bytes); a write maps one page, at the same cost */

struct work *work_new(enum work_kind kind, uint32_t n_parts)
{
	struct work *work = calloc(1, sizeof(*work) + n_parts * sizeof(work->parts[0]));

	if (!work)
		return NULL;
	work->kind = kind;
	work->n_parts = n_parts;
	list_init(&work->link);
	return work;
}

void work_free(struct work *work)
{
	free(work);
}

/* A span that this process has not touched yet is mapped by reading it here and there: 0.3 instead of 1.4 us a page. */
static void map_span(const uint8_t *span, uint32_t bytes)
{
	for (uint32_t at = 0; span && at < bytes; at += FAULT_BYTES)
		(void)*(const volatile uint8_t *)(span + at);
}

/* In steps that stay in the core's cache: some 5 % faster than a block at once. */
static void copy_block(const struct work *work, uint8_t *to)
{
	for (uint32_t at = 0, n; at < work->bytes; at += n) {
		n = work->bytes - at < GATHER_BYTES ? work->bytes - at : GATHER_BYTES;
		layout_gather(work->layout, work->data, work->offset + at, to + at, n);
	}
}

/* Short rows are put together first: BLAKE3 is slow on less than some KiB. */
static int hash_gathered(const struct work *work, struct hasher *hasher)
{
	_cleanup_(cleanup_mem) uint8_t *scratch = NULL;

	map_span(work->span, work->bytes);
	if (!work->span) {
		scratch = malloc(GATHER_BYTES);
		if (!scratch)
			return -ENOMEM;
	}
	for (uint32_t at = 0, n; at < work->bytes; at += n) {
		uint8_t *to = work->span ? work->span + at : scratch;

		n = work->bytes - at < GATHER_BYTES ? work->bytes - at : GATHER_BYTES;
		layout_gather(work->layout, work->data, work->offset + at, to, n);
		hasher_update(hasher, to, n);
	}
	return 0;
}

/* Zeros become a hole, so nothing is written. False: others, of which mostly the first few were looked at. */
static bool hash_zeros(const uint8_t *data, uint32_t bytes, struct hasher *hasher)
{
	if (!bytes_are_zero(data, bytes))
		return false;
	hasher_update(hasher, data, bytes);
	if (hasher->zero)
		return true;
	hasher_init(hasher); /* somebody writes there: the copy decides */
	return false;
}

static void copy_and_hash(const struct work *work, const uint8_t *data, struct hasher *hasher)
{
	map_span(work->span, work->bytes);
	hasher_copy(hasher, work->span, data, work->bytes);
}

static int capture_full(struct work *work)
{
	const uint8_t *data = (const uint8_t *)work->data + work->offset;
	struct hasher hasher;
	int r = 0;

	hasher_init(&hasher);
	if (!layout_is_contiguous(work->layout))
		r = hash_gathered(work, &hasher);
	else if (!work->span)
		hasher_update(&hasher, data, work->bytes);
	else if (!hash_zeros(data, work->bytes, &hasher))
		copy_and_hash(work, data, &hasher);
	if (r)
		return r;
	work->filled.digest = hasher_digest(&hasher);
	work->filled.crc = hasher.crc;
	work->filled.flags = hasher.zero ? FILLED_ZERO : 0;
	return 0;
}

/* No digest, but the sample by which replicas are compared. */
static int capture_hinted(struct work *work)
{
	const uint8_t *data = (const uint8_t *)work->data + work->offset;
	_cleanup_(cleanup_mem) uint8_t *scratch = NULL;
	uint8_t *to = work->span;

	if (!to && layout_is_contiguous(work->layout)) {
		work->filled.sample = sample_fingerprint(data, work->bytes);
		return 0;
	}
	if (!to)
		to = scratch = malloc(work->bytes);
	if (!to)
		return -ENOMEM;
	map_span(work->span, work->bytes);
	copy_block(work, to);
	work->filled.sample = sample_fingerprint(to, work->bytes);
	return 0;
}

static int fill(struct work *work)
{
	int r = 0;

	for (uint32_t i = 0; !r && i < work->n_parts; i++) {
		struct work_part *part = &work->parts[i];

		r = layout_fill(part->layout, part->wanted, part->element_bits, part->base, &part->piece, part->offset,
				work->bytes, work->from, &part->filled);
	}
	return r;
}

void work_run(struct work *work)
{
	if (work->kind == WORK_FILL) {
		work->result = fill(work);
		return;
	}
	work->result = work->mode == GRANT_HINTED ? capture_hinted(work) : capture_full(work);
}
