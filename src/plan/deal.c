#include "plan/deal.h"

#include <errno.h>
#include <stdbool.h>

#include "base/check.h"

#define NONE UINT32_MAX

/* Classes, then pipes, as vertices of rooted trees. */
struct forest {
	struct share *shares;
	size_t n_classes;
	uint32_t *above; /* by vertex: its parent, or NONE */
	uint32_t *edge;	 /* by vertex: the share between it and its parent */
	uint32_t *seen;	 /* by vertex: the last share whose search came by */
};

static void forest_fini(struct forest *f)
{
	free(f->above);
	free(f->edge);
	free(f->seen);
}

static int forest_init(struct forest *f, struct share *shares, size_t n_classes, size_t n_pipes)
{
	size_t n = n_classes + n_pipes;

	*f = (struct forest){ .shares = shares, .n_classes = n_classes };
	f->above = array_new(n, sizeof(*f->above));
	f->edge = array_new(n, sizeof(*f->edge));
	f->seen = array_new(n, sizeof(*f->seen));
	if (!f->above || !f->edge || !f->seen)
		return -ENOMEM;
	for (size_t v = 0; v < n; v++)
		f->above[v] = f->edge[v] = f->seen[v] = NONE;
	return 0;
}

/* Makes @v the root of its tree. */
static void make_root(struct forest *f, uint32_t v)
{
	uint32_t above = NONE, edge = NONE;

	while (v != NONE) {
		uint32_t next_above = f->above[v], next_edge = f->edge[v];

		f->above[v] = above;
		f->edge[v] = edge;
		above = v;
		edge = next_edge;
		v = next_above;
	}
}

/* The lowest vertex above both or NONE; *ret_shorter is the one of the two that is nearer to its root, if it is NONE. */
static uint32_t meet(struct forest *f, uint32_t a, uint32_t b, uint32_t search, uint32_t *ret_shorter)
{
	size_t length_a = 0, length_b = 0;

	for (uint32_t v = a; v != NONE; v = f->above[v], length_a++)
		f->seen[v] = search;
	for (uint32_t v = b; v != NONE; v = f->above[v], length_b++) {
		if (f->seen[v] == search)
			return v;
	}
	*ret_shorter = length_a < length_b ? a : b;
	return NONE;
}

/* On the way up from @v to @top every second share gives bytes: the smallest of these, by the vertex below it. */
static void find_smallest(const struct forest *f, uint32_t v, uint32_t top, uint64_t *bytes, uint32_t *ret_below)
{
	for (bool gives = false; v != top; v = f->above[v], gives = !gives) {
		if (!gives || f->shares[f->edge[v]].bytes >= *bytes)
			continue;
		*bytes = f->shares[f->edge[v]].bytes;
		*ret_below = v;
	}
}

static void move_bytes(struct forest *f, uint32_t v, uint32_t top, uint64_t bytes)
{
	for (bool gives = false; v != top; v = f->above[v], gives = !gives)
		f->shares[f->edge[v]].bytes += gives ? -bytes : bytes;
}

/* Adds share @i to the forest. If that closes a cycle, moves bytes around it until one share in it is empty, and leaves it out. */
static void add_edge(struct forest *f, uint32_t i)
{
	struct share *share = &f->shares[i];
	uint32_t class = share->class, pipe = (uint32_t)f->n_classes + share->pipe, lower = NONE;
	uint32_t top = meet(f, class, pipe, i, &lower);

	if (top != NONE) {
		uint64_t bytes = share->bytes;
		uint32_t below_class = NONE, below_pipe = NONE;

		find_smallest(f, class, top, &bytes, &below_class);
		find_smallest(f, pipe, top, &bytes, &below_pipe);
		move_bytes(f, class, top, bytes);
		move_bytes(f, pipe, top, bytes);
		share->bytes -= bytes;
		if (below_class == NONE && below_pipe == NONE)
			return; /* it is the new one that is empty */

		uint32_t cut = below_pipe != NONE ? below_pipe : below_class;
		f->above[cut] = f->edge[cut] = NONE;
		lower = below_pipe != NONE ? pipe : class;
	}
	make_root(f, lower);
	f->above[lower] = lower == class ? pipe : class;
	f->edge[lower] = i;
}

/* Sorts shares by class, the one above the class in its tree last, without the empty ones. */
static int arrange(struct deal *deal, const struct forest *f, const struct shares *shares)
{
	size_t n_classes = f->n_classes;
	_cleanup_(cleanup_mem) uint32_t *last = array_new(n_classes, sizeof(*last));

	deal->shares = array_new(shares->n, sizeof(*deal->shares));
	deal->first = array_new(n_classes + 1, sizeof(*deal->first));
	deal->taken = array_new(n_classes, sizeof(*deal->taken));
	if (!last || !deal->shares || !deal->first || !deal->taken)
		return -ENOMEM;

	for (size_t i = 0; i < shares->n; i++)
		deal->first[shares->list[i].class + 1] += shares->list[i].bytes != 0;
	for (size_t c = 0; c < n_classes; c++) {
		deal->first[c + 1] += deal->first[c];
		last[c] = deal->first[c];
	}
	deal->n_shares = deal->first[n_classes];
	for (int above = 0; above < 2; above++) {
		for (size_t i = 0; i < shares->n; i++) {
			const struct share *share = &shares->list[i];

			if (share->bytes && (f->edge[share->class] == i) == above)
				deal->shares[last[share->class]++] = *share;
		}
	}
	return 0;
}

int deal_init(struct deal *deal, struct shares *shares, size_t n_classes, size_t n_pipes)
{
	_cleanup_(forest_fini) struct forest f = { 0 };
	_cleanup_(cleanup_mem) uint32_t *n_of = array_new(n_classes, sizeof(*n_of));

	*deal = (struct deal){ 0 };
	if (!n_of || shares->n >= NONE)
		return -ENOMEM;
	int r = forest_init(&f, shares->list, n_classes, n_pipes);
	if (r)
		return r;

	for (size_t i = 0; i < shares->n; i++)
		n_of[shares->list[i].class] += n_of[shares->list[i].class] < 2;
	for (size_t i = 0; i < shares->n; i++) {
		if (n_of[shares->list[i].class] > 1) /* one share needs no rounding: leaves change nothing */
			add_edge(&f, (uint32_t)i);
	}
	return arrange(deal, &f, shares);
}

void deal_fini(struct deal *deal)
{
	free(deal->shares);
	free(deal->first);
	free(deal->taken);
	*deal = (struct deal){ 0 };
}

uint32_t deal_next(struct deal *deal, uint32_t class, uint64_t bytes)
{
	uint32_t *at = &deal->first[class];

	while (*at < deal->n_shares && deal->taken[class] >= deal->shares[*at].bytes)
		deal->taken[class] -= deal->shares[(*at)++].bytes;
	CHECK(*at < deal->n_shares && deal->shares[*at].class == class);
	deal->taken[class] += bytes;
	return deal->shares[*at].pipe;
}
