/*
 * plan/flow.h: maximum flow from the vertices that have bytes left to those that have room, over edges without a limit.
 *
 * Dinic's algorithm (1970): breadth-first layers, then a blocking flow inside them, until no vertex with room can be reached.
 * The first round is a plain greedy pouring, which places nearly everything; later rounds move what lies in the way.
 *
 * Vertices belong to parts, and flow stays inside one part: level.c cuts a network in two and solves both halves in place.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define FLOW_UNREACHED UINT32_MAX

struct flow_edge {
	uint32_t from, to; /* vertices */
	uint64_t bytes;	   /* that flow */
};

struct flow {
	size_t n_vertices, n_edges;
	struct flow_edge *edges;	 /* by from */
	uint32_t *first_out;		 /* n_vertices + 1, into edges */
	uint32_t *in_edges, *first_in;	 /* the same by to: numbers of edges, n_vertices + 1 into in_edges */
	uint64_t *left, *room;		 /* bytes, by vertex: to be placed; that it can still take */
	uint32_t *part;			 /* by vertex */
	uint32_t *depth;		 /* by vertex: layers from what is left, or FLOW_UNREACHED */
	uint32_t *cursor, *queue, *path; /* scratch */
	uint64_t work;			 /* edges looked at so far */
};

/* @n_edges edges are filled in by the caller, ascending by from; then flow_index(). 0 or -ENOMEM. */
int flow_init(struct flow *flow, size_t n_vertices, size_t n_edges);
void flow_index(struct flow *flow);
void flow_fini(struct flow *flow); /* accepts zeroed */

/*
 * Adds to the flow between @vertices, which are one whole part, until it is maximal; lowers left[] and room[] by it.
 * Afterwards the vertices with a depth are the source side of the minimum cut: the smallest set that holds all of what is
 * left and has no room.
 */
void flow_run(struct flow *flow, const uint32_t *vertices, size_t n);
