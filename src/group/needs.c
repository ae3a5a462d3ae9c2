#include "group/needs.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "plan/meet.h"

struct want {
	uint32_t item, number;
	struct box box;
};

/* A want and a piece that meet: bytes [first, end) of the piece. */
struct hit {
	uint32_t piece, want;
	uint64_t first, end;
};

struct finding {
	const struct version *version;
	struct want *wants; /* by item */
	size_t n_wants;
	struct hit *hits;
	size_t n_hits, hits_room;
	size_t needs_room;
	struct needs *out;
	struct error *e;
};

bool needs_are_few(const struct version *version, struct list_view wants)
{
	struct elem_want want;
	uint64_t sum = wants.count;

	while (sum <= NEEDS_FEW && elem_want_next(&wants, &want) == 0) {
		const struct version_item *item = version_find(version, want.name);

		if (!item || !item->n_pieces)
			continue;
		const struct version_piece *first = &version->pieces[item->first_piece];
		const struct version_piece *last = first + item->n_pieces - 1;
		sum += item->n_pieces + (last->first_block + last->n_blocks - first->first_block);
	}
	return sum <= NEEDS_FEW;
}

static int grow(void *array, size_t n, size_t *room, size_t size)
{
	void *was;

	if (n < *room)
		return 0;
	size_t more = *room ? 2 * *room : 64;
	memcpy(&was, array, sizeof(was));
	void *grown = reallocarray(was, more, size);
	if (!grown)
		return -ENOMEM;
	memcpy(array, &grown, sizeof(grown));
	*room = more;
	return 0;
}

static int too_many(const struct finding *f)
{
	return error_set(f->e, -E2BIG, "the boxes of one load need more than %u blocks, each counted for each box",
			 NEEDS_MAX);
}

/* ---- wants ------------------------------------------------------------------------------------------------------------ */

static int take_want(struct finding *f, const struct elem_want *want)
{
	const struct version *version = f->version;
	const struct version_item *item = version_find(version, want->name);

	if (!item)
		return error_set(f->e, -ENOENT, "version %" PRIu64 " of %s has no item \"%.*s\"", version->number,
				 version->bundle, (int)want->name.len, want->name.ptr);
	if (want->box.ndim != item->whole.ndim || !box_inside(&want->box, item->whole.count))
		return error_set(f->e, -ERR_EMISMATCH,
				 "item \"%.*s\" of version %" PRIu64 " of %s: the wanted box lies outside",
				 (int)want->name.len, want->name.ptr, version->number, version->bundle);
	f->out->names[f->n_wants] = item->name;
	f->wants[f->n_wants] = (struct want){ (uint32_t)(item - version->items), (uint32_t)f->n_wants, want->box };
	f->n_wants++;
	return 0;
}

static int by_item(const void *a, const void *b)
{
	const struct want *x = a, *y = b;

	if (x->item != y->item)
		return x->item < y->item ? -1 : 1;
	return (x->number > y->number) - (x->number < y->number);
}

static int take_wants(struct finding *f, struct list_view list)
{
	struct elem_want want;
	bool sorted = true;
	int r;

	f->wants = calloc(list.count + 1, sizeof(*f->wants));
	f->out->names = calloc(list.count + 1, sizeof(*f->out->names));
	if (!f->wants || !f->out->names)
		return -ENOMEM;
	while ((r = elem_want_next(&list, &want)) == 0) {
		r = take_want(f, &want);
		if (r)
			return r;
		sorted &= f->n_wants < 2 || f->wants[f->n_wants - 1].item >= f->wants[f->n_wants - 2].item;
	}
	if (r != 1)
		return r;
	if (!sorted)
		qsort(f->wants, f->n_wants, sizeof(*f->wants), by_item);
	f->out->n_wants = f->n_wants;
	return 0;
}

/* ---- wants and pieces --------------------------------------------------------------------------------------------------- */

/* Bytes [first, end) of the piece that the part of it lies in: from its first element to its last. */
static int byte_range(const struct box *piece, const struct box *part, uint32_t element_bits, uint64_t *ret_first,
		      uint64_t *ret_end)
{
	uint64_t first = 0, last = 0;

	for (uint32_t i = 0; i < piece->ndim; i++) {
		first = first * piece->count[i] + (part->start[i] - piece->start[i]);
		last = last * piece->count[i] + (part->start[i] - piece->start[i] + part->count[i] - 1);
	}
	int r = box_bytes(piece, element_bits, ret_end);
	if (r)
		return r;
	*ret_first = first * element_bits / 8; /* whole bytes or not: rounding outwards is right for choosing blocks */
	uint64_t end = ((last + 1) * element_bits + 7) / 8;
	*ret_end = end < *ret_end ? end : *ret_end;
	return 0;
}

struct meeting_item {
	struct finding *finding;
	const struct version_item *item;
	const struct want *wants;
};

static int add_hit(void *arg, uint32_t want, uint32_t piece)
{
	const struct meeting_item *m = arg;
	struct finding *f = m->finding;
	const struct box *box = &f->version->pieces[m->item->first_piece + piece].box;
	struct hit hit = { .piece = m->item->first_piece + piece, .want = m->wants[want].number };
	struct box part;

	if (!box_intersect(box, &m->wants[want].box, &part))
		return 0;
	int r = byte_range(box, &part, m->item->element_bits, &hit.first, &hit.end);
	if (!r && f->n_hits >= NEEDS_MAX)
		return too_many(f); /* each needs a block */
	if (!r)
		r = grow(&f->hits, f->n_hits, &f->hits_room, sizeof(*f->hits));
	if (!r)
		f->hits[f->n_hits++] = hit;
	return r;
}

/* All wants [first, end) of one item. */
static int meet_item(struct finding *f, size_t first, size_t end, uint64_t *left)
{
	const struct version_item *item = &f->version->items[f->wants[first].item];
	struct meeting_item m = { .finding = f, .item = item, .wants = &f->wants[first] };

	if (!item->n_pieces)
		return 0;
	const struct version_piece *pieces = &f->version->pieces[item->first_piece];
	const struct meet_boxes wanted = { &f->wants[first].box, sizeof(*f->wants), end - first };
	const struct meet_boxes there = { &pieces->box, sizeof(*pieces), item->n_pieces };
	int r = meet(&wanted, &there, left, add_hit, &m);
	if (r != MEET_TOO_LONG)
		return r;
	return error_set(f->e, -E2BIG,
			 "item \"%.*s\": the %zu boxes that are wanted lie so that comparing them with its %" PRIu32
			 " pieces takes more than %llu steps",
			 (int)item->name.len, item->name.ptr, end - first, item->n_pieces, NEEDS_STEPS_MAX);
}

static int meet_items(struct finding *f)
{
	uint64_t left = NEEDS_STEPS_MAX;
	size_t end;
	int r = 0;

	for (size_t first = 0; !r && first < f->n_wants; first = end) {
		for (end = first + 1; end < f->n_wants && f->wants[end].item == f->wants[first].item;)
			end++;
		r = meet_item(f, first, end, &left);
	}
	f->out->steps = NEEDS_STEPS_MAX - left;
	return r;
}

/* ---- pieces and blocks -------------------------------------------------------------------------------------------------- */

static int by_first(const void *a, const void *b)
{
	const struct hit *x = a, *y = b;

	if (x->piece != y->piece)
		return x->piece < y->piece ? -1 : 1;
	return (x->first > y->first) - (x->first < y->first);
}

static int add_need(struct finding *f, struct need need)
{
	if (f->out->n >= NEEDS_MAX)
		return too_many(f);
	int r = grow(&f->out->list, f->out->n, &f->needs_room, sizeof(*f->out->list));
	if (!r)
		f->out->list[f->out->n++] = need;
	return r;
}

/* The blocks of a piece, for its hits [first, end): they begin further and further back, so no block is passed by twice. */
static int cut_piece(struct finding *f, size_t first, size_t end)
{
	const struct version_piece *piece = &f->version->pieces[f->hits[first].piece];
	const struct version_block *blocks = &f->version->blocks[piece->first_block];
	uint64_t from = 0; /* of block @b in the piece's bytes */
	uint32_t b = 0;
	int r = 0;

	for (size_t h = first; !r && h < end; h++) {
		const struct hit *hit = &f->hits[h];

		for (; b < piece->n_blocks && from + blocks[b].bytes <= hit->first; b++)
			from += blocks[b].bytes;
		uint64_t offset = from;
		for (uint32_t k = b; !r && k < piece->n_blocks && offset < hit->end; k++) {
			r = add_need(f, (struct need){ .block = (uint32_t)piece->first_block + k,
						       .want = hit->want,
						       .piece = hit->piece,
						       .offset = offset });
			offset += blocks[k].bytes;
		}
	}
	return r;
}

static int cut_pieces(struct finding *f)
{
	size_t end;
	int r = 0;

	if (f->n_hits)
		qsort(f->hits, f->n_hits, sizeof(*f->hits), by_first);
	for (size_t first = 0; !r && first < f->n_hits; first = end) {
		for (end = first + 1; end < f->n_hits && f->hits[end].piece == f->hits[first].piece;)
			end++;
		r = cut_piece(f, first, end);
	}
	return r;
}

/* In the order of the store, so that packs are read from front to back; equal blocks together. */
static int by_place(const void *a, const void *b, void *arg)
{
	const struct version_block *blocks = arg;
	const struct need *x = a, *y = b;
	const struct version_block *p = &blocks[x->block], *q = &blocks[y->block];

	if (p->pack != q->pack)
		return p->pack < q->pack ? -1 : 1;
	if (p->pack_offset != q->pack_offset)
		return p->pack_offset < q->pack_offset ? -1 : 1;
	if (x->block != y->block)
		return x->block < y->block ? -1 : 1;
	return (x->want > y->want) - (x->want < y->want);
}

int needs_find(const struct version *version, struct list_view wants, struct needs *ret, struct error *e)
{
	struct needs found = { 0 };
	struct finding f = { .version = version, .out = &found, .e = e };
	int r = 0;

	if (wants.count > WANTS_MAX)
		return error_set(e, -E2BIG, "more than %d boxes in one load", WANTS_MAX);
	r = take_wants(&f, wants);
	if (!r)
		r = meet_items(&f);
	free(f.wants);
	if (!r)
		r = cut_pieces(&f);
	free(f.hits);
	if (!r && found.n)
		qsort_r(found.list, found.n, sizeof(*found.list), by_place, version->blocks);
	if (r)
		needs_fini(&found);
	else
		*ret = found;
	return r;
}

void needs_fini(struct needs *needs)
{
	free(needs->list);
	free(needs->names);
	*needs = (struct needs){ 0 };
}
