/*
 * client/work.h: the bulk of a save and of a load: memory into a span that was granted, spans into memory.
 *
 * The core makes work and takes its result; in between any thread may run it, many at once: work touches its memory, its span and
 * itself. In the simulator a fiber runs it.
 */
#pragma once

#include "base/list.h"
#include "client/layout.h"
#include "wire/message.h"

enum work_kind { WORK_CAPTURE, WORK_FILL };

/* One want's share of the bytes at hand. */
struct work_part {
	const struct layout *layout; /* of the wanted box in memory */
	const struct box *wanted;
	uint32_t element_bits, want;
	void *base;
	struct box piece;
	uint64_t offset; /* of the bytes in the piece */
	uint64_t filled; /* out: bytes that went to memory */
};

struct work {
	struct list link;
	enum work_kind kind;
	void *owner; /* the core's */
	uint32_t bytes;
	int result; /* out: 0, -ENOMEM, -EINVAL */

	/* Capture: bytes [offset, offset + bytes) of an item in memory go to the span (NULL: are only looked at). */
	const struct layout *layout;
	const void *data;
	uint64_t offset;
	uint8_t *span;
	enum grant_mode mode;
	struct elem_filled filled; /* out; block is set before */

	/* Fill: the span's bytes go to every part. */
	const uint8_t *from; /* NULL: zeros */
	uint64_t token;	     /* 0: nothing to give back */
	uint32_t n_parts;
	struct work_part parts[];
};

struct work *work_new(enum work_kind kind, uint32_t n_parts); /* NULL: no memory */
void work_free(struct work *work);			      /* accepts NULL */
void work_run(struct work *work);			      /* any thread; once */
