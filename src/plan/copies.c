#include "plan/copies.h"

#include <errno.h>
#include <stdbool.h>

#include "plan/order.h"
#include "plan/tally.h"

struct copies {
	const struct offers *offers;
	const struct save_facts *facts;
	struct save_plan *plan;
	struct tally received; /* bytes, by position */
	uint32_t *blocks;      /* those that lack holders, in the order of their turns */
	size_t n_blocks;
	uint64_t *done; /* by offer: bytes; then, of small pieces that stay together */
	uint32_t *run;	/* by offer: the block whose holders they share, or UINT32_MAX */
};

static void copies_fini(struct copies *c)
{
	tally_fini(&c->received);
	free(c->blocks);
	free(c->done);
	free(c->run);
}

static uint32_t count_captures(const struct save_facts *facts, const struct save_block *block)
{
	uint32_t n = 0;

	while (n < facts->copies && block->holder_rank[n] != SAVE_COPIED)
		n++;
	return n;
}

/* Sorts the blocks that lack holders by how much of their offer lies before them. */
static int take_turns(struct copies *c)
{
	size_t n = c->plan->n_blocks;
	_cleanup_(cleanup_mem) uint32_t *turns = array_new(n, sizeof(*turns));

	if (!turns)
		return -ENOMEM;
	for (size_t b = 0; b < n; b++) {
		const struct save_block *block = &c->plan->blocks[b];
		uint32_t offer = c->offers->of_unique[block->unique];

		turns[b] = ORDER_TURNS;
		if (count_captures(c->facts, block) == c->facts->copies)
			continue;
		turns[b] = order_turn(c->done[offer], c->offers->list[offer].bytes);
		c->done[offer] += block->bytes;
		c->n_blocks++;
	}
	c->blocks = array_new(c->n_blocks, sizeof(*c->blocks));
	return c->blocks ? order_by(turns, n, ORDER_TURNS, c->blocks) : -ENOMEM;
}

static void add_holder(struct copies *c, struct save_block *block, uint32_t i, uint32_t position)
{
	block->holder[i] = c->offers->node[position];
	c->plan->node_receive_bytes[block->holder[i]] += block->bytes;
	c->plan->copy_bytes += block->bytes;
	tally_add(&c->received, position, block->bytes);
}

/* Uploaders elsewhere have no choice, so they count from the start. */
static void place_uploaders(struct copies *c)
{
	for (size_t b = 0; b < c->plan->n_blocks; b++) {
		struct save_block *block = &c->plan->blocks[b];
		uint32_t n = count_captures(c->facts, block);
		bool holds = false;

		for (uint32_t i = 0; i < n; i++)
			holds = holds || block->holder[i] == block->uploader;
		if (!holds)
			add_holder(c, block, n, c->offers->position[block->uploader]);
	}
}

/* True if the two lie on the same nodes so far. */
static bool lie_together(const struct save_block *a, const struct save_block *b, uint32_t n_captures)
{
	for (uint32_t i = 0; i < n_captures; i++) {
		if (a->holder[i] != b->holder[i])
			return false;
	}
	return a->uploader == b->uploader;
}

static void place_rest(struct copies *c, uint32_t number)
{
	struct save_block *block = &c->plan->blocks[number];
	uint32_t offer = c->offers->of_unique[block->unique], n = count_captures(c->facts, block);
	const struct save_block *run = c->run[offer] != UINT32_MAX ? &c->plan->blocks[c->run[offer]] : NULL;
	bool small = block->bytes < SAVE_SMALL_BYTES;
	bool follows = small && run && c->done[offer] + block->bytes <= BLOCK_BYTES_MAX && lie_together(run, block, n);
	struct range used[PLAN_COPIES_MAX];

	if (small) {
		c->done[offer] = block->bytes + (follows ? c->done[offer] : 0);
		c->run[offer] = number;
	}
	for (uint32_t i = 0; i < c->facts->copies; i++) {
		bool missing = block->holder[i] == UINT32_MAX;
		uint32_t position;

		if (!missing)
			position = c->offers->position[block->holder[i]];
		else if (follows)
			position = c->offers->position[run->holder[i]];
		else
			position = tally_least_outside(&c->received, used, i);
		if (missing)
			add_holder(c, block, i, position);
		range_insert(used, i, offers_domain(c->offers, position));
	}
}

int copies_place(const struct offers *offers, const struct save_facts *facts, struct save_plan *plan)
{
	_cleanup_(copies_fini) struct copies c = { .offers = offers, .facts = facts, .plan = plan };

	c.done = array_new(offers->n, sizeof(*c.done));
	c.run = array_new(offers->n, sizeof(*c.run));
	if (!c.done || !c.run || tally_init(&c.received, offers->n_positions))
		return -ENOMEM;
	tally_start(&c.received, offers->n_positions);

	int r = take_turns(&c);
	if (r)
		return r;
	for (size_t i = 0; i < offers->n; i++) {
		c.done[i] = 0;
		c.run[i] = UINT32_MAX;
	}
	place_uploaders(&c);
	for (size_t i = 0; i < c.n_blocks; i++) {
		if (i + 16 < c.n_blocks) /* turns lie far apart in memory: twice as fast with this */
			__builtin_prefetch(&plan->blocks[c.blocks[i + 16]], 1);
		place_rest(&c, c.blocks[i]);
	}
	return 0;
}
