#include "plan/meet.h"

#include <errno.h>

#include "plan/array.h"

#define PAIRS_FEW 64 /* so many are compared each with each: halving would take longer */

struct side {
	const struct meet_boxes *boxes;
	uint32_t *order; /* which of them: sorted in place by whoever looks at them */
	size_t n;
	bool is_a;
};

struct meeting {
	uint64_t *steps;
	meet_fn met;
	void *arg;
};

static const struct box *box_at(const struct meet_boxes *boxes, size_t i)
{
	return (const void *)((const char *)boxes->first + i * boxes->stride_bytes);
}

static const struct box *box_of(const struct side *side, size_t i)
{
	return box_at(side->boxes, side->order[i]);
}

static int take_steps(struct meeting *m, uint64_t n)
{
	if (n > *m->steps) {
		*m->steps = 0;
		return MEET_TOO_LONG;
	}
	*m->steps -= n;
	return 0;
}

/* Of two that begin at the same place only the first list's counts as the interval, so that each pair is found once. */
static bool contains(const struct side *intervals, const struct box *interval, uint64_t point, uint32_t dim)
{
	uint64_t start = interval->start[dim];

	return point >= start && point - start < interval->count[dim] && (intervals->is_a || point != start);
}

static int tell(const struct meeting *m, const struct side *intervals, size_t i, const struct side *points, size_t p)
{
	uint32_t interval = intervals->order[i], point = points->order[p];

	return intervals->is_a ? m->met(m->arg, interval, point) : m->met(m->arg, point, interval);
}

/* Dimensions above @dim have been seen to; in @dim the interval has to contain the point. */
static bool pair_meets(const struct side *intervals, const struct box *x, const struct box *y, uint32_t dim)
{
	if (!contains(intervals, x, y->start[dim], dim))
		return false;
	for (uint32_t d = 0; d < dim; d++)
		if (x->start[d] >= y->start[d] ? x->start[d] - y->start[d] >= y->count[d] :
						 y->start[d] - x->start[d] >= x->count[d])
			return false;
	return true;
}

static int each_with_each(struct meeting *m, const struct side *intervals, const struct side *points, uint32_t dim)
{
	int r = take_steps(m, intervals->n * points->n);

	for (size_t i = 0; !r && i < intervals->n; i++)
		for (size_t p = 0; !r && p < points->n; p++)
			if (pair_meets(intervals, box_of(intervals, i), box_of(points, p), dim))
				r = tell(m, intervals, i, points, p);
	return r;
}

static int all_meet(struct meeting *m, const struct side *intervals, const struct side *points)
{
	int r = intervals->n ? take_steps(m, intervals->n * points->n) : 0;

	for (size_t i = 0; !r && i < intervals->n; i++)
		for (size_t p = 0; !r && p < points->n; p++)
			r = tell(m, intervals, i, points, p);
	return r;
}

static void swap(uint32_t *a, uint32_t *b)
{
	uint32_t was = *a;

	*a = *b;
	*b = was;
}

/* Where the points begin that lie at @middle or beyond, which come last. */
static size_t split_points(const struct side *points, uint32_t dim, uint64_t middle)
{
	size_t below = 0;

	for (size_t p = 0; p < points->n; p++)
		if (box_of(points, p)->start[dim] < middle)
			swap(&points->order[below++], &points->order[p]);
	return below;
}

/* First come those that contain [first, last], then those that contain a part of it: *ret_all and *ret_some; then the others. */
static void split_intervals(const struct side *intervals, uint32_t dim, uint64_t first, uint64_t last, size_t *ret_all,
			    size_t *ret_some)
{
	size_t all = 0, some = 0; /* [all, some) contain a part */

	for (size_t i = 0; i < intervals->n; i++) {
		const struct box *box = box_of(intervals, i);
		uint64_t start = box->start[dim];

		if (start > last || (start < first && first - start >= box->count[dim]))
			continue;
		swap(&intervals->order[some++], &intervals->order[i]);
		if (contains(intervals, box, first, dim) && contains(intervals, box, last, dim))
			swap(&intervals->order[all++], &intervals->order[some - 1]);
	}
	*ret_all = all;
	*ret_some = some - all;
}

static void range_of(const struct side *points, uint32_t dim, uint64_t *ret_first, uint64_t *ret_last)
{
	uint64_t first = UINT64_MAX, last = 0;

	for (size_t p = 0; p < points->n; p++) {
		uint64_t start = box_of(points, p)->start[dim];

		first = start < first ? start : first;
		last = start > last ? start : last;
	}
	*ret_first = first;
	*ret_last = last;
}

/* The pairs of which the interval contains the point in @dim, and that meet in all dimensions below it. */
static int search(struct meeting *m, struct side intervals, struct side points, uint32_t dim)
{
	uint64_t first, last;
	size_t n_all, n_some;

	if (!intervals.n || !points.n)
		return 0;
	if (intervals.n <= PAIRS_FEW / points.n)
		return each_with_each(m, &intervals, &points, dim);
	int r = take_steps(m, intervals.n + points.n);
	if (r)
		return r;
	range_of(&points, dim, &first, &last);
	split_intervals(&intervals, dim, first, last, &n_all, &n_some);
	struct side all = intervals, some = intervals, low = points, high = points;
	all.n = n_all;
	some.order += n_all;
	some.n = n_some;
	if (dim == 0) {
		r = all_meet(m, &all, &points);
	} else {
		r = search(m, all, points, dim - 1);
		if (!r)
			r = search(m, points, all, dim - 1);
	}
	if (r || first == last)
		return r;
	low.n = split_points(&points, dim, first + (last - first) / 2 + 1);
	high.order += low.n;
	high.n -= low.n;
	r = search(m, some, low, dim);
	return r ? r : search(m, some, high, dim);
}

/* Numbers those that have elements: the others meet nobody. */
static int number(const struct meet_boxes *boxes, bool is_a, struct side *ret)
{
	*ret = (struct side){ .boxes = boxes, .order = array_new(boxes->n, sizeof(*ret->order)), .is_a = is_a };

	for (size_t i = 0; ret->order && i < boxes->n; i++) {
		uint64_t elements;

		if (box_elements(box_at(boxes, i), &elements) || elements)
			ret->order[ret->n++] = (uint32_t)i;
	}
	return ret->order ? 0 : -ENOMEM;
}

int meet(const struct meet_boxes *a, const struct meet_boxes *b, uint64_t *steps, meet_fn met, void *arg)
{
	struct meeting m = { .steps = steps, .met = met, .arg = arg };
	struct side as = { 0 }, bs = { 0 };
	uint32_t ndim = a->n ? a->first->ndim : 0;
	int r = number(a, true, &as);

	if (!r)
		r = number(b, false, &bs);
	if (!r && !ndim)
		r = all_meet(&m, &as, &bs);
	else if (!r)
		r = search(&m, as, bs, ndim - 1);
	if (!r && ndim)
		r = search(&m, bs, as, ndim - 1);
	free(as.order);
	free(bs.order);
	return r;
}
