/*
 * plan/plan.h: what the planners see of the world: nodes and pipes as numbers. Pure: no I/O, no clock; equal input gives equal
 * output. Amounts are bytes, rates bytes per second, times nanoseconds.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define PLAN_NODES_MAX	4096
#define PLAN_RANKS_MAX	65536
#define PLAN_COPIES_MAX 3
#define BLOCK_BYTES_MAX (8u << 20)
#define PLAN_BLOCKS_MAX (1u << 25) /* in one plan: 256 TiB in full blocks */

struct plan_node {
	uint32_t domain;       /* failure domains numbered from 0 by their names' order */
	uint64_t store_rate;   /* leased share of its storage NIC; 0: takes no upload */
	uint64_t store_queued; /* bytes that pipe drains before new work */
	uint64_t network_rate; /* compute NIC, each way; unused until links bind in plans */
};

/* What every plan says of itself: its own finishing time against the fluid optimum for the same facts. */
struct plan_bound {
	uint64_t planned_ns, bound_ns; /* planned >= bound; ratio = planned / bound */
};
