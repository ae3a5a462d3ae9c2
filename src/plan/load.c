#include "plan/load.h"

#include <errno.h>
#include <stdbool.h>

#include "base/check.h"
#include "plan/array.h"
#include "plan/deal.h"
#include "plan/level.h"
#include "plan/order.h"
#include "plan/sets.h"

#define NONE UINT32_MAX

struct loader {
	const struct load_facts *facts;
	struct sets sets;   /* of needers, of the blocks that must be read: a class each */
	uint32_t *class_of; /* by block, or NONE */
	uint32_t *reader;   /* by block, or NONE: some node holds it */
	struct deal deal;
	size_t *next_read, *next_receive; /* by node: its next step of either kind, into plan.steps */
	size_t *first_source;		  /* by block, into sources */
	uint32_t *sources;		  /* by needer: a node, LOAD_STORE, or the needer itself: it holds the block */
	struct sender *heap;
	struct load_plan plan;
};

/* A node that can send the block at hand. */
struct sender {
	uint64_t
		cost_bytes; /* what it has sent of all blocks, plus LOAD_HOP_BYTES for each hop from the first holder */
	uint32_t node;
	uint32_t hops;
};

static void loader_fini(struct loader *l)
{
	sets_fini(&l->sets);
	free(l->class_of);
	free(l->reader);
	deal_fini(&l->deal);
	free(l->next_read);
	free(l->next_receive);
	free(l->first_source);
	free(l->sources);
	free(l->heap);
	load_plan_fini(&l->plan);
}

void load_plan_fini(struct load_plan *plan)
{
	free(plan->steps);
	free(plan->node_read_bytes);
	free(plan->node_send_bytes);
	*plan = (struct load_plan){ 0 };
}

/* --- facts --- */

/* A slice of nodes_of, ascending. */
static bool slice_is_good(const struct load_facts *facts, uint32_t first, uint32_t n)
{
	if ((size_t)first + n > facts->n_nodes_of)
		return false;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t node = facts->nodes_of[first + i];

		if (node >= facts->n_nodes || (i && node <= facts->nodes_of[first + i - 1]))
			return false;
	}
	return true;
}

static int check_facts(const struct load_facts *facts)
{
	if (facts->n_nodes > PLAN_NODES_MAX || facts->n_blocks > PLAN_BLOCKS_MAX)
		return -EINVAL;
	for (size_t b = 0; b < facts->n_blocks; b++) {
		const struct load_block *block = &facts->blocks[b];

		if (!block->bytes || block->bytes > BLOCK_BYTES_MAX || !block->n_needers ||
		    !slice_is_good(facts, block->first_needer, block->n_needers) ||
		    !slice_is_good(facts, block->first_holder, block->n_holders))
			return -EINVAL;
	}
	return 0;
}

static int make_room(struct loader *l)
{
	const struct load_facts *facts = l->facts;
	size_t n_sources = 0;

	for (size_t b = 0; b < facts->n_blocks; b++)
		n_sources += facts->blocks[b].n_needers;
	l->first_source = array_new(facts->n_blocks, sizeof(*l->first_source));
	l->sources = array_new(n_sources, sizeof(*l->sources));
	l->class_of = array_new(facts->n_blocks, sizeof(*l->class_of));
	l->reader = array_new(facts->n_blocks, sizeof(*l->reader));
	l->next_read = array_new(facts->n_nodes, sizeof(*l->next_read));
	l->next_receive = array_new(facts->n_nodes, sizeof(*l->next_receive));
	l->heap = array_new(facts->n_nodes, sizeof(*l->heap));
	l->plan.node_read_bytes = array_new(facts->n_nodes, sizeof(uint64_t));
	l->plan.node_send_bytes = array_new(facts->n_nodes, sizeof(uint64_t));
	if (!l->first_source || !l->sources || !l->class_of || !l->reader || !l->next_read || !l->next_receive ||
	    !l->heap || !l->plan.node_read_bytes || !l->plan.node_send_bytes)
		return -ENOMEM;
	n_sources = 0;
	for (size_t b = 0; b < facts->n_blocks; b++) {
		l->first_source[b] = n_sources;
		n_sources += facts->blocks[b].n_needers;
	}
	return sets_init(&l->sets, facts->n_blocks);
}

/* --- who reads from the store --- */

static int share_reads(struct loader *l)
{
	const struct load_facts *facts = l->facts;
	_cleanup_(cleanup_mem) struct level_pipe *pipes = array_new(facts->n_nodes, sizeof(*pipes));
	_cleanup_(cleanup_mem) struct level_class *classes = array_new(facts->n_blocks, sizeof(*classes));
	_cleanup_(shares_fini) struct shares shares = { 0 };

	if (!pipes || !classes)
		return -ENOMEM;
	for (size_t i = 0; i < facts->n_nodes; i++)
		pipes[i] = (struct level_pipe){ facts->nodes[i].store_rate, facts->nodes[i].store_queued };
	for (size_t b = 0; b < facts->n_blocks; b++) {
		const struct load_block *block = &facts->blocks[b];

		l->class_of[b] = NONE;
		if (block->n_holders)
			continue;
		l->class_of[b] = sets_id(&l->sets, facts->nodes_of + block->first_needer, block->n_needers);
		classes[l->class_of[b]].bytes += block->bytes;
	}
	for (size_t c = 0; c < l->sets.n; c++) {
		classes[c].pipes = l->sets.list[c].items;
		classes[c].n_pipes = l->sets.list[c].n;
	}

	struct level_facts level = { pipes, facts->n_nodes, classes, l->sets.n };
	int r = level_fill(&level, &shares, &l->plan.bound.bound_ns);
	if (r)
		return r == LEVEL_NO_RATE ? LOAD_NO_RATE : r;
	return deal_init(&l->deal, &shares, l->sets.n, facts->n_nodes);
}

static void choose_readers(struct loader *l)
{
	const struct load_facts *facts = l->facts;
	struct load_plan *plan = &l->plan;

	for (size_t b = 0; b < facts->n_blocks; b++) {
		uint32_t bytes = facts->blocks[b].bytes;

		l->reader[b] = NONE;
		if (l->class_of[b] == NONE)
			continue;
		l->reader[b] = deal_next(&l->deal, l->class_of[b], bytes);
		plan->node_read_bytes[l->reader[b]] += bytes;
		plan->store_bytes += bytes;
	}
	for (size_t i = 0; i < facts->n_nodes; i++) {
		struct level_pipe pipe = { facts->nodes[i].store_rate, facts->nodes[i].store_queued };
		uint64_t end_ns = plan->node_read_bytes[i] ? level_end_ns(&pipe, plan->node_read_bytes[i]) : 0;

		if (end_ns > plan->bound.planned_ns)
			plan->bound.planned_ns = end_ns;
	}
	CHECK(plan->bound.planned_ns >= plan->bound.bound_ns);
}

/* --- who sends to whom --- */

static bool is_before(const struct sender *a, const struct sender *b)
{
	return a->cost_bytes != b->cost_bytes ? a->cost_bytes < b->cost_bytes : a->node < b->node;
}

/* A binary heap, the best sender first. */
static void sift_down(struct sender *heap, size_t n, size_t i)
{
	struct sender moving = heap[i];

	for (size_t child; (child = 2 * i + 1) < n; i = child) {
		child += child + 1 < n && is_before(&heap[child + 1], &heap[child]);
		if (!is_before(&heap[child], &moving))
			break;
		heap[i] = heap[child];
	}
	heap[i] = moving;
}

static void sift_up(struct sender *heap, size_t i)
{
	struct sender moving = heap[i];

	for (; i && is_before(&moving, &heap[(i - 1) / 2]); i = (i - 1) / 2)
		heap[i] = heap[(i - 1) / 2];
	heap[i] = moving;
}

/* The first holders of a block become its senders; needers among them are their own source. Returns how many senders. */
static size_t start_heap(struct loader *l, uint32_t b, uint32_t *sources)
{
	const struct load_facts *facts = l->facts;
	const struct load_block *block = &facts->blocks[b];
	const uint32_t *needers = facts->nodes_of + block->first_needer,
		       *holders = facts->nodes_of + block->first_holder;
	const uint64_t *sent = l->plan.node_send_bytes;
	size_t n = 0;

	for (uint32_t i = 0, h = 0; i < block->n_needers; i++) {
		while (h < block->n_holders && holders[h] < needers[i])
			h++;
		sources[i] = LOAD_STORE; /* the reader's stays so, the others get a sender */
		if (h < block->n_holders && holders[h] == needers[i])
			sources[i] = needers[i];
	}
	if (l->reader[b] != NONE)
		l->heap[n++] = (struct sender){ sent[l->reader[b]], l->reader[b], 0 };
	for (uint32_t h = 0; h < block->n_holders; h++) {
		l->heap[n] = (struct sender){ sent[holders[h]], holders[h], 0 };
		sift_up(l->heap, n++);
	}
	return n;
}

/* Finds a sender for every needer, beginning with another needer each time: only those that come early can pass it on. */
static void choose_senders(struct loader *l, uint32_t b, uint32_t round)
{
	const struct load_block *block = &l->facts->blocks[b];
	const uint32_t *needers = l->facts->nodes_of + block->first_needer;
	uint32_t *sources = l->sources + l->first_source[b];
	size_t n = start_heap(l, b, sources);

	for (uint32_t k = 0, i = round % block->n_needers; k < block->n_needers; k++, i = (i + 1) % block->n_needers) {
		struct sender *best = &l->heap[0];
		uint32_t hops = best->hops + 1;

		if (needers[i] == l->reader[b] || sources[i] == needers[i])
			continue;
		sources[i] = best->node;
		l->plan.node_send_bytes[best->node] += block->bytes;
		l->plan.network_bytes += block->bytes;
		best->cost_bytes += block->bytes;
		sift_down(l->heap, n, 0);

		uint64_t cost_bytes = l->plan.node_send_bytes[needers[i]] + hops * LOAD_HOP_BYTES;
		l->heap[n] = (struct sender){ cost_bytes, needers[i], hops };
		sift_up(l->heap, n++);
	}
}

/*
 * Blocks take turns as if all readers worked at the same time, which they will: so a node is not taken for overloaded only
 * because its run of blocks comes first.
 */
static int choose_all_senders(struct loader *l)
{
	const struct load_facts *facts = l->facts;
	size_t n = facts->n_blocks;
	uint64_t held = 0, held_bytes = 0;
	_cleanup_(cleanup_mem) uint64_t *done = array_new(facts->n_nodes, sizeof(*done));
	_cleanup_(cleanup_mem) uint32_t *turns = array_new(n, sizeof(*turns));
	_cleanup_(cleanup_mem) uint32_t *order = array_new(n, sizeof(*order));

	if (!done || !turns || !order)
		return -ENOMEM;
	for (size_t b = 0; b < n; b++)
		held_bytes += l->reader[b] == NONE ? facts->blocks[b].bytes : 0;
	for (size_t b = 0; b < n; b++) {
		uint32_t reader = l->reader[b];
		uint64_t *before = reader == NONE ? &held : &done[reader];

		turns[b] = order_turn(*before, reader == NONE ? held_bytes : l->plan.node_read_bytes[reader]);
		*before += facts->blocks[b].bytes;
	}
	if (order_by(turns, n, ORDER_TURNS, order))
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		choose_senders(l, order[i], (uint32_t)i);
	return 0;
}

/* Goes through all steps by block; writes them at the places that next_read and next_receive say, or only counts there. */
static void walk_steps(struct loader *l, bool write)
{
	const struct load_facts *facts = l->facts;

	for (size_t b = 0; b < facts->n_blocks; b++) {
		const uint32_t *needers = facts->nodes_of + facts->blocks[b].first_needer;
		const uint32_t *sources = l->sources + l->first_source[b];

		for (uint32_t i = 0; i < facts->blocks[b].n_needers; i++) {
			size_t *next = sources[i] == LOAD_STORE ? l->next_read : l->next_receive;

			if (sources[i] == needers[i])
				continue;
			if (write)
				l->plan.steps[next[needers[i]]] =
					(struct load_step){ (uint32_t)b, needers[i], sources[i] };
			next[needers[i]]++;
		}
	}
}

/* By node, store reads first, then by block. */
static int write_steps(struct loader *l)
{
	size_t at = 0;

	walk_steps(l, false);
	for (size_t i = 0; i < l->facts->n_nodes; i++) {
		size_t n_reads = l->next_read[i], n_receives = l->next_receive[i];

		l->next_read[i] = at;
		l->next_receive[i] = at + n_reads;
		at += n_reads + n_receives;
	}
	l->plan.steps = array_new(at, sizeof(*l->plan.steps));
	if (!l->plan.steps)
		return -ENOMEM;
	l->plan.n_steps = at;
	walk_steps(l, true);
	return 0;
}

int plan_load(const struct load_facts *facts, struct load_plan *ret)
{
	_cleanup_(loader_fini) struct loader l = { .facts = facts };

	int r = check_facts(facts);
	if (r)
		return r;
	r = make_room(&l);
	if (r)
		return r;
	r = share_reads(&l);
	if (r)
		return r;

	choose_readers(&l);
	r = choose_all_senders(&l);
	if (r)
		return r;
	r = write_steps(&l);
	if (r)
		return r;

	*ret = l.plan;
	l.plan = (struct load_plan){ 0 };
	return 0;
}
