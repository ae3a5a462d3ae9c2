#include "client/layout.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/bytes.h"

typedef unsigned __int128 u128;

/* ---- layouts -------------------------------------------------------------------------------------------------------- */

/* One dimension more, further out than those before: joined with the next one in if it follows it in memory. */
static void add_dimension(struct layout *layout, uint64_t count, int64_t stride)
{
	if (count == 1)
		return;
	if (!layout->n && stride > 0 && (uint64_t)stride == layout->run_bytes) {
		layout->run_bytes *= count;
		return;
	}
	if (layout->n) {
		int64_t follows;

		if (!mul_overflows(layout->stride[layout->n - 1], (int64_t)layout->count[layout->n - 1], &follows) &&
		    follows == stride) {
			layout->count[layout->n - 1] *= count;
			return;
		}
	}
	layout->count[layout->n] = count;
	layout->stride[layout->n] = stride;
	layout->n++;
}

/* Dimensions were added from the inside out; walks want the outermost first. */
static void reverse(struct layout *layout)
{
	for (uint32_t i = 0, j = layout->n; i + 1 < j; i++) {
		uint64_t count = layout->count[i];
		int64_t stride = layout->stride[i];

		j--;
		layout->count[i] = layout->count[j];
		layout->stride[i] = layout->stride[j];
		layout->count[j] = count;
		layout->stride[j] = stride;
	}
}

int layout_init(struct layout *layout, const struct box *box, uint32_t element_bits, const int64_t *strides_bytes,
		struct error *e)
{
	uint64_t bytes;
	int r = box_bytes(box, element_bits, &bytes);

	if (r == -EOVERFLOW)
		return error_set(e, r, "the box has more than 2^63 bytes");
	if (r)
		return error_set(e, r, "elements of %" PRIu32 " bits in that number do not fill whole bytes",
				 element_bits);
	if (strides_bytes && element_bits % 8)
		return error_set(e, -EINVAL, "elements of %" PRIu32 " bits have no strides in bytes", element_bits);

	*layout = (struct layout){ .bytes = bytes, .run_bytes = bytes };
	if (!strides_bytes || !bytes)
		return 0;
	layout->run_bytes = element_bits / 8;
	for (uint32_t d = box->ndim; d-- > 0;)
		add_dimension(layout, box->count[d], strides_bytes[d]);
	reverse(layout);
	return 0;
}

/* ---- walks over memory ---------------------------------------------------------------------------------------------- */

/* A place in the box, and where it is in memory. */
struct cursor {
	const struct layout *layout;
	uint64_t index[BOX_DIMS_MAX];
	uint64_t in_run;   /* bytes of the run that lie behind */
	uintptr_t address; /* of the run; unsigned, since strides may be negative and past the end is never touched */
};

static void cursor_seek(struct cursor *cursor, const struct layout *layout, const void *base, uint64_t offset)
{
	cursor->layout = layout;
	cursor->address = (uintptr_t)base;
	cursor->in_run = layout->run_bytes ? offset % layout->run_bytes : 0;
	uint64_t run = layout->run_bytes ? offset / layout->run_bytes : 0;
	for (uint32_t d = layout->n; d-- > 0;) {
		cursor->index[d] = run % layout->count[d];
		run /= layout->count[d];
		cursor->address += cursor->index[d] * (uint64_t)layout->stride[d];
	}
}

static void cursor_next_run(struct cursor *cursor)
{
	const struct layout *layout = cursor->layout;

	cursor->in_run = 0;
	for (uint32_t d = layout->n; d-- > 0;) {
		cursor->address += (uint64_t)layout->stride[d];
		if (++cursor->index[d] < layout->count[d])
			return;
		cursor->address -= layout->count[d] * (uint64_t)layout->stride[d];
		cursor->index[d] = 0;
	}
}

/* The next stretch of contiguous memory, at most @len bytes. */
static uint8_t *cursor_take(struct cursor *cursor, size_t len, size_t *ret_len)
{
	uint8_t *at = (uint8_t *)(cursor->address + cursor->in_run);
	uint64_t left = cursor->layout->run_bytes - cursor->in_run;

	*ret_len = left < len ? (size_t)left : len;
	cursor->in_run += *ret_len;
	if (cursor->in_run == cursor->layout->run_bytes)
		cursor_next_run(cursor);
	return at;
}

void layout_gather(const struct layout *layout, const void *base, uint64_t offset, void *to, size_t len)
{
	struct cursor cursor;
	uint8_t *out = to;

	if (layout_is_contiguous(layout)) {
		memcpy(to, (const uint8_t *)base + offset, len);
		return;
	}
	cursor_seek(&cursor, layout, base, offset);
	for (size_t n; len; out += n, len -= n) {
		const uint8_t *at = cursor_take(&cursor, len, &n);

		memcpy(out, at, n);
	}
}

void layout_scatter(const struct layout *layout, void *base, uint64_t offset, const void *from, size_t len)
{
	struct cursor cursor;
	const uint8_t *in = from;

	cursor_seek(&cursor, layout, base, offset);
	for (size_t n; len; len -= n) {
		uint8_t *at = cursor_take(&cursor, len, &n);

		if (!in) {
			memset(at, 0, n);
			continue;
		}
		memcpy(at, in, n);
		in += n;
	}
}

/* ---- pieces into targets ---------------------------------------------------------------------------------------------- */

/*
 * Narrows @part, which is inside @piece, to the rows of the piece in which its bytes [first, end) lie, so that a walk for one block
 * does not pass over the whole piece. Rows of the outermost dimension that varies; the block may begin or end within one.
 */
static bool narrow(const struct box *piece, uint32_t element_bits, uint64_t first, uint64_t end, struct box *part)
{
	u128 first_bit = (u128)first * 8, end_bit = (u128)end * 8;
	struct box rows = *piece;

	if (element_bits % 8) /* rows may begin within a byte: rather walk too much */
		return true;
	for (uint32_t d = 0; d < piece->ndim; d++) {
		u128 row_bits = element_bits;

		for (uint32_t i = d + 1; i < piece->ndim; i++)
			row_bits *= piece->count[i];
		uint64_t from = (uint64_t)(first_bit / row_bits);
		uint64_t to = (uint64_t)((end_bit + row_bits - 1) / row_bits);
		rows.start[d] = piece->start[d] + from;
		rows.count[d] = to - from;
		if (to - from != 1)
			break;
		first_bit -= row_bits * from;
		end_bit -= row_bits * from;
	}
	return box_intersect(part, &rows, part);
}

/* Bytes [offset, offset + len) of a piece, at @from, on their way to a target. */
struct filling {
	const struct layout *layout;
	void *base;
	uint64_t offset, len;
	const uint8_t *from;
	uint64_t filled;
};

/* @len bytes at @piece_at in the piece, @target_at in the target: those that are in the block. */
static void fill_run(struct filling *filling, uint64_t piece_at, uint64_t target_at, uint64_t len)
{
	uint64_t begin = piece_at > filling->offset ? piece_at : filling->offset;
	uint64_t end = piece_at + len;

	if (end > filling->offset + filling->len)
		end = filling->offset + filling->len;
	if (begin >= end)
		return;
	layout_scatter(filling->layout, filling->base, target_at + (begin - piece_at),
		       filling->from ? filling->from + (begin - filling->offset) : NULL, end - begin);
	filling->filled += end - begin;
}

int layout_fill(const struct layout *layout, const struct box *wanted, uint32_t element_bits, void *base,
		const struct box *piece, uint64_t offset, size_t len, const void *from, uint64_t *ret_bytes)
{
	struct filling filling = { .layout = layout, .base = base, .offset = offset, .len = len, .from = from };
	uint64_t piece_bytes, piece_at, piece_part, piece_left, target_at, target_part, target_left;
	struct box_walk in_piece, in_target;
	struct box part;

	*ret_bytes = 0;
	int r = box_bytes(piece, element_bits, &piece_bytes); /* from here on nothing overflows */
	if (r)
		return r;
	if (piece->ndim != wanted->ndim || offset > piece_bytes || len > piece_bytes - offset)
		return -EINVAL;
	if (!len || !box_intersect(piece, wanted, &part) || !narrow(piece, element_bits, offset, offset + len, &part))
		return 0;
	r = box_walk_init(&in_piece, piece, &part, element_bits);
	if (!r)
		r = box_walk_init(&in_target, wanted, &part, element_bits);
	if (r)
		return r;

	/* Both walks go over the part's bytes in order, each in runs of its own: what is common to two runs is copied at once. */
	bool more = box_walk_next(&in_piece, &piece_at, &piece_part, &piece_left) &&
		    box_walk_next(&in_target, &target_at, &target_part, &target_left);
	while (more) {
		uint64_t n = piece_left < target_left ? piece_left : target_left;

		fill_run(&filling, piece_at, target_at, n);
		piece_at += n;
		piece_left -= n;
		target_at += n;
		target_left -= n;
		if (!piece_left)
			more = box_walk_next(&in_piece, &piece_at, &piece_part, &piece_left);
		if (more && !target_left)
			more = box_walk_next(&in_target, &target_at, &target_part, &target_left);
	}
	*ret_bytes = filling.filled;
	return 0;
}
