#include "plan/flow.h"

#include <errno.h>
#include <stdbool.h>

#include "base/check.h"
#include "plan/array.h"

int flow_init(struct flow *flow, size_t n_vertices, size_t n_edges)
{
	*flow = (struct flow){ .n_vertices = n_vertices, .n_edges = n_edges };
	if (n_vertices >= UINT32_MAX || n_edges >= UINT32_MAX)
		return -ENOMEM; /* the numbers are 32 bits wide; so many would take 200 GiB anyway */

	flow->edges = array_new(n_edges, sizeof(*flow->edges));
	flow->in_edges = array_new(n_edges, sizeof(*flow->in_edges));
	flow->first_out = array_new(n_vertices + 1, sizeof(*flow->first_out));
	flow->first_in = array_new(n_vertices + 1, sizeof(*flow->first_in));
	flow->left = array_new(n_vertices, sizeof(*flow->left));
	flow->room = array_new(n_vertices, sizeof(*flow->room));
	flow->part = array_new(n_vertices, sizeof(*flow->part));
	flow->depth = array_new(n_vertices, sizeof(*flow->depth));
	flow->cursor = array_new(n_vertices, sizeof(*flow->cursor));
	flow->queue = array_new(n_vertices, sizeof(*flow->queue));
	flow->path = array_new(n_vertices, sizeof(*flow->path));
	if (!flow->edges || !flow->in_edges || !flow->first_out || !flow->first_in || !flow->left || !flow->room ||
	    !flow->part || !flow->depth || !flow->cursor || !flow->queue || !flow->path)
		return -ENOMEM;
	return 0;
}

void flow_fini(struct flow *flow)
{
	void *arrays[] = { flow->edges, flow->in_edges, flow->first_out, flow->first_in, flow->left, flow->room,
			   flow->part,	flow->depth,	flow->cursor,	 flow->queue,	 flow->path };

	for (size_t i = 0; i < ARRAY_LEN(arrays); i++)
		free(arrays[i]);
	*flow = (struct flow){ 0 };
}

void flow_index(struct flow *flow)
{
	for (size_t e = 0; e < flow->n_edges; e++) {
		flow->first_out[flow->edges[e].from + 1]++;
		flow->first_in[flow->edges[e].to + 1]++;
	}
	for (size_t v = 0; v < flow->n_vertices; v++) {
		flow->first_out[v + 1] += flow->first_out[v];
		flow->first_in[v + 1] += flow->first_in[v];
		flow->cursor[v] = flow->first_in[v];
	}
	for (size_t e = 0; e < flow->n_edges; e++)
		flow->in_edges[flow->cursor[flow->edges[e].to]++] = (uint32_t)e;
}

static uint32_t edge_count(const struct flow *flow, uint32_t v)
{
	return flow->first_out[v + 1] - flow->first_out[v] + flow->first_in[v + 1] - flow->first_in[v];
}

/*
 * The @i-th edge at @v, those that leave it first, and in *ret_to the vertex at its other end, or FLOW_UNREACHED when nothing
 * can move that way: bytes go forward without limit, and back as many as flow.
 */
static uint32_t edge_at(const struct flow *flow, uint32_t v, uint32_t i, uint32_t *ret_to)
{
	uint32_t n_out = flow->first_out[v + 1] - flow->first_out[v];
	uint32_t e = i < n_out ? flow->first_out[v] + i : flow->in_edges[flow->first_in[v] + i - n_out];
	uint32_t to = i < n_out ? flow->edges[e].to : flow->edges[e].from;
	bool open = i < n_out || flow->edges[e].bytes;

	*ret_to = open && flow->part[to] == flow->part[v] ? to : FLOW_UNREACHED;
	return e;
}

/* Lays the layers; returns the depth of the nearest vertex with room, or FLOW_UNREACHED. */
static uint32_t find_layers(struct flow *flow, const uint32_t *vertices, size_t n, size_t *ret_sources)
{
	uint32_t nearest = FLOW_UNREACHED;
	size_t head = 0, tail = 0;

	for (size_t i = 0; i < n; i++) {
		uint32_t v = vertices[i];

		flow->cursor[v] = 0;
		flow->depth[v] = flow->left[v] ? 0 : FLOW_UNREACHED;
		if (flow->left[v])
			flow->queue[tail++] = v;
	}
	*ret_sources = tail;

	while (head < tail) {
		uint32_t v = flow->queue[head++], n_edges = edge_count(flow, v);

		if (flow->depth[v] >= nearest)
			break;
		flow->work += n_edges;
		for (uint32_t i = 0, to; i < n_edges; i++) {
			edge_at(flow, v, i, &to);
			if (to == FLOW_UNREACHED || flow->depth[to] != FLOW_UNREACHED)
				continue;
			flow->depth[to] = flow->depth[v] + 1;
			flow->queue[tail++] = to;
			if (flow->room[to])
				nearest = flow->depth[to];
		}
	}
	return nearest;
}

/* Moves as many bytes along the path to @end as the source has, every edge back allows, and @end takes. */
static void push(struct flow *flow, uint32_t source, size_t n_path, uint32_t end)
{
	uint64_t bytes = flow->left[source] < flow->room[end] ? flow->left[source] : flow->room[end];
	uint32_t v = source;

	for (size_t i = 0; i < n_path; i++) {
		const struct flow_edge *edge = &flow->edges[flow->path[i]];
		bool forward = edge->from == v;

		if (!forward && edge->bytes < bytes)
			bytes = edge->bytes;
		v = forward ? edge->to : edge->from;
	}
	v = source;
	for (size_t i = 0; i < n_path; i++) {
		struct flow_edge *edge = &flow->edges[flow->path[i]];
		bool forward = edge->from == v;

		edge->bytes += forward ? bytes : -bytes;
		v = forward ? edge->to : edge->from;
	}
	flow->left[source] -= bytes;
	flow->room[end] -= bytes;
}

/* Places what @source has left along paths that go down one layer at every step. */
static void push_from(struct flow *flow, uint32_t source, uint32_t last)
{
	uint32_t v = source;
	size_t n_path = 0;

	while (flow->left[source]) {
		uint32_t n_edges = edge_count(flow, v), to = FLOW_UNREACHED, e = 0;

		if (flow->depth[v] == last && flow->room[v]) {
			push(flow, source, n_path, v);
			n_path = 0;
			v = source;
			continue;
		}
		for (; flow->cursor[v] < n_edges; flow->cursor[v]++) {
			e = edge_at(flow, v, flow->cursor[v], &to);
			if (to != FLOW_UNREACHED && flow->depth[to] == flow->depth[v] + 1)
				break;
		}
		if (flow->cursor[v] < n_edges) {
			flow->path[n_path++] = e;
			v = to;
		} else if (n_path) { /* a dead end: step back and look no more at this edge */
			const struct flow_edge *edge = &flow->edges[flow->path[--n_path]];

			v = edge->from == v ? edge->to : edge->from;
			flow->cursor[v]++;
		} else {
			return;
		}
	}
}

void flow_run(struct flow *flow, const uint32_t *vertices, size_t n)
{
	size_t n_sources;
	uint32_t last;

	while ((last = find_layers(flow, vertices, n, &n_sources)) != FLOW_UNREACHED) {
		for (size_t i = 0; i < n_sources; i++)
			push_from(flow, flow->queue[i], last);
	}
}
