#include "plan/level.h"

#include <errno.h>
#include <stdbool.h>

#include "base/check.h"
#include "plan/flow.h"

#define NS_PER_S UINT64_C(1000000000)

/*
 * Levels below the highest are refined until the solver has looked at this many edges, and at each edge so many times. Only
 * large networks that are built to be nasty need more; then some pipes below the top are less even than they could be.
 */
#define REFINE_EDGES	     (4u << 20) /* some 20 ms */
#define REFINE_TIMES_AN_EDGE 16

typedef unsigned __int128 u128; /* bytes x nanoseconds overflow 64 bits after 18 GB */

/* What can go to one pipe only is queued there too, which may exceed 64 bits. */
struct pipe {
	uint64_t rate;
	u128 queued;
};

struct part {
	size_t first, n; /* into solver.order */
	bool below;	 /* the flow it has is good enough: may stay */
};

/*
 * The network. Vertices 1 .. 2n - 1 are a binary tree over the n pipes (children of i at 2i and 2i + 1, pipe p at n + p), so
 * that a range of pipes is O(log n) vertices; vertex 2n + i is the i-th class that has a choice.
 */
struct solver {
	const struct level_facts *facts;
	struct pipe *pipes;
	uint32_t *classes; /* those that have a choice */
	size_t n_classes;
	struct flow flow;
	uint64_t *capacity;		 /* by pipe, at its part's level */
	uint32_t *order, *order_scratch; /* the vertices, part by part */
	size_t n_order;
	struct part *parts; /* still to be solved */
	size_t n_parts;
	struct shares shares;
	uint64_t level_ns;
};

static void solver_fini(struct solver *s)
{
	free(s->pipes);
	free(s->classes);
	flow_fini(&s->flow);
	free(s->capacity);
	free(s->order);
	free(s->order_scratch);
	free(s->parts);
	shares_fini(&s->shares);
}

void shares_fini(struct shares *shares)
{
	free(shares->list);
	*shares = (struct shares){ 0 };
}

static void add_share(struct shares *shares, uint32_t class, uint32_t pipe, uint64_t bytes)
{
	CHECK(shares->n < shares->n_max);
	shares->list[shares->n++] = (struct share){ class, pipe, bytes };
}

static uint64_t end_ns(const struct pipe *pipe, uint64_t bytes)
{
	u128 ns = ((pipe->queued + bytes) * NS_PER_S + pipe->rate - 1) / pipe->rate;

	return ns < LEVEL_NS_MAX ? (uint64_t)ns : LEVEL_NS_MAX;
}

uint64_t level_end_ns(const struct level_pipe *pipe, uint64_t bytes)
{
	return end_ns(&(struct pipe){ pipe->rate, pipe->queued }, bytes);
}

/* Bytes that the pipe can take and be idle by @level_ns. At the end of time it takes anything, so that all is feasible. */
static uint64_t capacity_at(const struct pipe *pipe, uint64_t level_ns)
{
	if (!pipe->rate)
		return 0;
	if (level_ns >= LEVEL_NS_MAX)
		return LEVEL_NS_MAX;

	u128 drained = (u128)pipe->rate * level_ns / NS_PER_S;
	if (drained <= pipe->queued)
		return 0;
	drained -= pipe->queued;
	return drained < LEVEL_NS_MAX ? (uint64_t)drained : LEVEL_NS_MAX;
}

/* --- classes without a choice, and the network of the others --- */

/* Pipes with a rate that the class may use; at most 2, which is as good as any more. *ret_only is one of them. */
static uint32_t count_choices(const struct level_facts *facts, const struct level_class *class, const uint32_t *rated,
			      uint32_t *ret_only)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < class->n_pipes && n < 2; i++) {
		if (!facts->pipes[class->pipes[i]].rate)
			continue;
		*ret_only = class->pipes[i];
		n++;
	}
	for (uint32_t i = 0; i < class->n_ranges && n < 2; i++) {
		uint32_t p = rated[class->ranges[i].from], to = class->ranges[i].to;

		if (p >= to)
			continue;
		*ret_only = p;
		n += rated[p + 1] < to ? 2 : 1;
	}
	return n;
}

/* rated[p]: the first pipe at or after p that has a rate; n_pipes if there is none. */
static uint32_t *index_rated(const struct level_facts *facts)
{
	uint32_t *rated = array_new(facts->n_pipes + 1, sizeof(*rated));

	if (!rated)
		return NULL;
	rated[facts->n_pipes] = (uint32_t)facts->n_pipes;
	for (size_t p = facts->n_pipes; p-- > 0;)
		rated[p] = facts->pipes[p].rate ? (uint32_t)p : rated[p + 1];
	return rated;
}

/* Queues what has no choice, and keeps the rest for the network. */
static int settle_single(struct solver *s)
{
	const struct level_facts *facts = s->facts;
	_cleanup_(cleanup_mem) uint32_t *rated = index_rated(facts);
	size_t n_single = 0;

	s->shares.list = array_new(facts->n_classes, sizeof(*s->shares.list));
	if (!rated || !s->shares.list)
		return -ENOMEM;
	s->shares.n_max = facts->n_classes;

	for (size_t c = 0; c < facts->n_classes; c++) {
		uint32_t only = 0, n = count_choices(facts, &facts->classes[c], rated, &only);

		if (!facts->classes[c].bytes)
			continue;
		if (!n)
			return LEVEL_NO_RATE;
		if (n > 1) {
			s->classes[s->n_classes++] = (uint32_t)c;
			continue;
		}
		add_share(&s->shares, (uint32_t)c, only, facts->classes[c].bytes);
		s->pipes[only].queued += facts->classes[c].bytes;
		n_single++;
	}
	for (size_t i = 0; i < n_single; i++) {
		uint64_t ns = end_ns(&s->pipes[s->shares.list[i].pipe], 0);

		s->level_ns = ns > s->level_ns ? ns : s->level_ns;
	}
	return 0;
}

/* Writes the tree vertices that make up @range to @edges, as edges from @from; returns how many. NULL: only counts. */
static size_t add_range(size_t n_pipes, struct range range, uint32_t from, struct flow_edge *edges)
{
	size_t n = 0;

	for (size_t l = range.from + n_pipes, r = range.to + n_pipes; l < r; l /= 2, r /= 2) {
		if (l & 1) {
			if (edges)
				edges[n] = (struct flow_edge){ from, (uint32_t)l, 0 };
			n++, l++;
		}
		if (r & 1) {
			--r;
			if (edges)
				edges[n] = (struct flow_edge){ from, (uint32_t)r, 0 };
			n++;
		}
	}
	return n;
}

/* The edges of one class; @edges NULL: only counts. */
static size_t add_class(const struct solver *s, size_t i, struct flow_edge *edges)
{
	const struct level_class *class = &s->facts->classes[s->classes[i]];
	size_t n_pipes = s->facts->n_pipes, n = 0;
	uint32_t from = (uint32_t)(2 * n_pipes + i);

	for (uint32_t k = 0; k < class->n_pipes; k++) {
		if (!s->pipes[class->pipes[k]].rate)
			continue;
		if (edges)
			edges[n] = (struct flow_edge){ from, (uint32_t)n_pipes + class->pipes[k], 0 };
		n++;
	}
	for (uint32_t k = 0; k < class->n_ranges; k++)
		n += add_range(n_pipes, class->ranges[k], from, edges ? edges + n : NULL);
	return n;
}

static int build_network(struct solver *s)
{
	size_t n_pipes = s->facts->n_pipes, n_vertices = 2 * n_pipes + s->n_classes, n_edges = 0, n_ranges = 0;

	for (size_t i = 0; i < s->n_classes; i++) {
		n_ranges += s->facts->classes[s->classes[i]].n_ranges;
		n_edges += add_class(s, i, NULL);
	}
	n_edges += n_ranges ? 2 * (n_pipes - 1) : 0;

	s->capacity = array_new(n_pipes, sizeof(*s->capacity));
	s->order = array_new(n_vertices, sizeof(*s->order));
	s->order_scratch = array_new(n_vertices, sizeof(*s->order_scratch));
	s->parts = array_new(n_pipes + 1, sizeof(*s->parts));
	if (!s->capacity || !s->order || !s->order_scratch || !s->parts)
		return -ENOMEM;
	int r = flow_init(&s->flow, n_vertices, n_edges);
	if (r)
		return r;

	size_t e = 0;
	for (uint32_t v = 1; n_ranges && v < n_pipes; v++) {
		s->flow.edges[e++] = (struct flow_edge){ v, 2 * v, 0 };
		s->flow.edges[e++] = (struct flow_edge){ v, 2 * v + 1, 0 };
	}
	for (size_t i = 0; i < s->n_classes; i++)
		e += add_class(s, i, &s->flow.edges[e]);
	CHECK(e == n_edges);
	flow_index(&s->flow);

	for (size_t v = n_ranges ? 1 : n_pipes; v < n_vertices; v++)
		s->order[s->n_order++] = (uint32_t)v;
	return 0;
}

/* --- levels --- */

static bool is_pipe(const struct solver *s, uint32_t v)
{
	return v >= s->facts->n_pipes && v < 2 * s->facts->n_pipes;
}

static bool is_class(const struct solver *s, uint32_t v)
{
	return v >= 2 * s->facts->n_pipes;
}

static bool holds_at(const struct solver *s, const struct part *part, uint64_t bytes, uint64_t level_ns)
{
	for (size_t i = part->first; i < part->first + part->n; i++) {
		uint32_t v = s->order[i];
		uint64_t capacity = is_pipe(s, v) ? capacity_at(&s->pipes[v - s->facts->n_pipes], level_ns) : 0;

		if (capacity >= bytes)
			return true;
		bytes -= capacity;
	}
	return false;
}

/*
 * The level at which the part's pipes hold @bytes if every byte may go to every pipe: the smallest number of nanoseconds. What a
 * pipe can take is a convex function of the level, so Newton's method comes down to the level from above in few steps; the
 * last nanoseconds, which rounding down of each pipe costs, are bisected.
 */
static uint64_t water_level(const struct solver *s, const struct part *part, uint64_t bytes)
{
	u128 level = LEVEL_NS_MAX, before, top = 0;

	do {
		u128 work = bytes, rate = 0;
		size_t n_wet = 0;

		before = level;
		for (size_t i = part->first; i < part->first + part->n; i++) {
			uint32_t v = s->order[i];
			const struct pipe *pipe = is_pipe(s, v) ? &s->pipes[v - s->facts->n_pipes] : NULL;

			if (!pipe || pipe->rate * level <= pipe->queued * NS_PER_S)
				continue;
			work += pipe->queued;
			rate += pipe->rate;
			n_wet++;
		}
		if (!rate)
			break; /* none is idle before the end of time */
		level = (work * NS_PER_S + rate - 1) / rate;
		top = ((work + n_wet) * NS_PER_S + rate - 1) / rate;
		level = level < before ? level : before;
	} while (level < before);

	uint64_t from = (uint64_t)level, to = top < LEVEL_NS_MAX ? (uint64_t)top : LEVEL_NS_MAX;
	if (from && holds_at(s, part, bytes, from - 1)) {
		/* A fast pipe that falls idle within the last nanosecond held it up. */
		to = from - 1;
		from = 0;
	}
	while (from < to) {
		uint64_t middle = from + (to - from) / 2;

		if (holds_at(s, part, bytes, middle))
			to = middle;
		else
			from = middle + 1;
	}
	return from;
}

/* Sets the part's level. What already flows may stay when the level only rises. */
static uint64_t raise_level(struct solver *s, const struct part *part)
{
	struct flow *flow = &s->flow;
	uint64_t bytes = 0;

	for (size_t i = part->first; i < part->first + part->n; i++) {
		uint32_t v = s->order[i];

		flow->work += 1 + flow->first_out[v + 1] - flow->first_out[v];
		bytes += is_class(s, v) ? s->facts->classes[s->classes[v - 2 * s->facts->n_pipes]].bytes : 0;
	}
	if (!bytes)
		return 0;

	uint64_t level_ns = water_level(s, part, bytes);
	for (size_t i = part->first; i < part->first + part->n; i++) {
		uint32_t v = s->order[i];

		if (part->below) {
			for (uint32_t e = flow->first_out[v]; e < flow->first_out[v + 1]; e++)
				flow->edges[e].bytes = 0;
		}
		if (is_class(s, v) && part->below)
			flow->left[v] = s->facts->classes[s->classes[v - 2 * s->facts->n_pipes]].bytes;
		if (!is_pipe(s, v))
			continue;

		size_t p = v - s->facts->n_pipes;
		uint64_t carried = part->below ? 0 : s->capacity[p] - flow->room[v];
		s->capacity[p] = capacity_at(&s->pipes[p], level_ns);
		flow->room[v] = s->capacity[p] - carried;
	}
	return level_ns;
}

/* Parts what must lie above the level from what lies below it, which takes away the edges between them. */
static void cut(struct solver *s, const struct part *part)
{
	uint32_t *order = s->order + part->first;
	size_t n_above = 0, n_below = 0;

	for (size_t i = 0; i < part->n; i++) {
		if (s->flow.depth[order[i]] != FLOW_UNREACHED)
			order[n_above++] = order[i];
		else
			s->order_scratch[n_below++] = order[i];
	}
	CHECK(n_above && n_below);
	for (size_t i = 0; i < n_below; i++) {
		order[n_above + i] = s->order_scratch[i];
		s->flow.part[order[n_above + i]] = (uint32_t)(part->first + n_above);
	}
	struct part above = { part->first, n_above, false }, below = { part->first + n_above, n_below, true };
	s->parts[s->n_parts++] = below;
	s->parts[s->n_parts++] = above; /* is solved next: it decides the level */
}

/*
 * Every cut takes at least one pipe away from the upper part, so this ends; on the way up it is Newton's method on the
 * parametric cut, as in Gallo, Grigoriadis and Tarjan (1989).
 */
static void solve(struct solver *s)
{
	uint64_t work_max = REFINE_EDGES + REFINE_TIMES_AN_EDGE * (uint64_t)s->flow.n_edges;

	s->parts[s->n_parts++] = (struct part){ 0, s->n_order, true };
	while (s->n_parts) {
		struct part part = s->parts[--s->n_parts];
		bool first = part.n == s->n_order;

		if (part.below && !first && s->flow.work > work_max)
			continue; /* fits at its old level */

		uint64_t level_ns = raise_level(s, &part);
		if (!level_ns)
			continue; /* pipes that nobody needs */
		flow_run(&s->flow, s->order + part.first, part.n);

		bool fits = true;
		for (size_t i = part.first; i < part.first + part.n; i++)
			fits = fits && !s->flow.left[s->order[i]];
		if (!fits)
			cut(s, &part);
		else if (level_ns > s->level_ns)
			s->level_ns = level_ns;
	}
}

/* --- from flows back to shares --- */

struct piece {
	uint32_t class;
	uint32_t next; /* in the same vertex's list, or 0 */
	uint64_t bytes;
};

/*
 * Bytes that reached a pipe through the tree: sends each tree vertex's pieces down to its children, the left one first. Any
 * byte that got to a vertex may go to every pipe below it, so it does not matter which.
 */
static int unfold_tree(struct solver *s)
{
	const struct flow *flow = &s->flow;
	size_t n_pipes = s->facts->n_pipes, n_pieces = 1, n_max = n_pipes + flow->n_edges + 1;
	_cleanup_(cleanup_mem) struct piece *pieces = array_new(n_max, sizeof(*pieces));
	_cleanup_(cleanup_mem) uint32_t *lists = array_new(2 * n_pipes, sizeof(*lists));

	if (!pieces || !lists)
		return -ENOMEM;
	for (size_t e = flow->first_out[2 * n_pipes]; e < flow->n_edges; e++) {
		const struct flow_edge *edge = &flow->edges[e];
		uint32_t class = s->classes[edge->from - 2 * n_pipes];

		if (!edge->bytes)
			continue;
		pieces[n_pieces] = (struct piece){ class, lists[edge->to], edge->bytes };
		lists[edge->to] = (uint32_t)n_pieces++;
	}
	for (size_t v = 1; v < n_pipes && flow->first_out[v] < flow->first_out[v + 1]; v++) {
		uint64_t left = flow->edges[flow->first_out[v]].bytes;

		for (uint32_t i = lists[v], next; i; i = next) {
			uint64_t rest = pieces[i].bytes > left ? pieces[i].bytes - left : 0;
			size_t to = left ? 2 * v : 2 * v + 1;

			next = pieces[i].next;
			if (left && rest) {
				pieces[n_pieces] = (struct piece){ pieces[i].class, lists[2 * v + 1], rest };
				lists[2 * v + 1] = (uint32_t)n_pieces++;
				pieces[i].bytes = left;
			}
			left -= left ? pieces[i].bytes : 0;
			pieces[i].next = lists[to];
			lists[to] = i;
		}
	}

	size_t n_shares = s->shares.n + n_pieces;
	struct share *list = array_new(n_shares, sizeof(*list));
	if (!list)
		return -ENOMEM;
	for (size_t i = 0; i < s->shares.n; i++)
		list[i] = s->shares.list[i];
	free(s->shares.list);
	s->shares.list = list;
	s->shares.n_max = n_shares;
	for (size_t p = 0; p < n_pipes; p++) {
		for (uint32_t i = lists[n_pipes + p]; i; i = pieces[i].next)
			add_share(&s->shares, pieces[i].class, (uint32_t)p, pieces[i].bytes);
	}
	return 0;
}

int level_fill(const struct level_facts *facts, struct shares *ret, uint64_t *ret_level_ns)
{
	_cleanup_(solver_fini) struct solver s = { .facts = facts };

	s.pipes = array_new(facts->n_pipes, sizeof(*s.pipes));
	s.classes = array_new(facts->n_classes, sizeof(*s.classes));
	if (!s.pipes || !s.classes)
		return -ENOMEM;
	for (size_t p = 0; p < facts->n_pipes; p++)
		s.pipes[p] = (struct pipe){ facts->pipes[p].rate, facts->pipes[p].queued };

	int r = settle_single(&s);
	if (r)
		return r;
	if (s.n_classes) {
		r = build_network(&s);
		if (r)
			return r;
		solve(&s);
		r = unfold_tree(&s);
		if (r)
			return r;
	}
	*ret = s.shares;
	s.shares = (struct shares){ 0 };
	*ret_level_ns = s.level_ns;
	return 0;
}
