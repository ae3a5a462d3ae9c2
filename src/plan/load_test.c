#include "plan/load.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MB	 UINT64_C(1000000)
#define GB	 UINT64_C(1000000000)
#define NS_PER_S UINT64_C(1000000000)

#define NODES  8
#define BLOCKS 80

typedef unsigned __int128 u128;

/* --- the k-th allocation fails; the planners allocate with calloc() alone --- */

static size_t allocations, failing_allocation;

__attribute__((visibility("default"))) void *calloc(size_t n, size_t size_bytes)
{
	static void *(*real)(size_t, size_t);

	if (!real)
		real = (void *(*)(size_t, size_t))dlsym(RTLD_NEXT, "calloc");
	allocations++;
	return allocations == failing_allocation ? NULL : real(n, size_bytes);
}

/* --- worlds --- */

struct world {
	struct plan_node nodes[NODES];
	struct load_block blocks[BLOCKS];
	uint32_t nodes_of[2 * BLOCKS * NODES];
	struct load_facts facts;
};

static uint64_t next(uint64_t *x)
{
	*x ^= *x << 13, *x ^= *x >> 7, *x ^= *x << 17; /* xorshift64: a fixed seed, so that a failure repeats */
	return *x;
}

static void world_init(struct world *w, size_t n_nodes, uint64_t rate)
{
	memset(w, 0, sizeof(*w));
	for (uint32_t i = 0; i < n_nodes; i++)
		w->nodes[i] = (struct plan_node){ .domain = i, .store_rate = rate, .network_rate = 10 * GB };
	w->facts = (struct load_facts){ .nodes = w->nodes,
					.n_nodes = n_nodes,
					.blocks = w->blocks,
					.nodes_of = w->nodes_of };
}

static uint32_t add_nodes(struct world *w, uint32_t mask)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < NODES; i++) {
		if (mask >> i & 1)
			w->nodes_of[w->facts.n_nodes_of + n++] = i;
	}
	w->facts.n_nodes_of += n;
	return n;
}

/* A block that the nodes of one bit mask need, and those of the other hold. */
static void add_block(struct world *w, uint32_t bytes, uint32_t needers, uint32_t holders)
{
	struct load_block *block = &w->blocks[w->facts.n_blocks++];

	block->bytes = bytes;
	block->first_needer = (uint32_t)w->facts.n_nodes_of;
	block->n_needers = add_nodes(w, needers);
	block->first_holder = (uint32_t)w->facts.n_nodes_of;
	block->n_holders = add_nodes(w, holders);
}

static void random_world(struct world *w, uint64_t *x)
{
	size_t n_nodes = 1 + next(x) % NODES;
	uint32_t all = (1u << n_nodes) - 1, needers = 0;

	world_init(w, n_nodes, 2 * GB);
	if (next(x) % 2) {
		for (size_t i = 0; i < n_nodes; i++) {
			w->nodes[i].store_rate = next(x) % 5 ? 1 + next(x) % (5 * GB) : 0;
			w->nodes[i].store_queued = next(x) % 3 ? 0 : next(x) % (20 * MB);
		}
	}
	for (size_t n = next(x) % BLOCKS; n > 0; n--) {
		if (next(x) % 2 || !needers)
			needers = (next(x) & all) ? (uint32_t)(next(x) & all) : 1;
		needers = needers ? needers : 1;
		add_block(w, 1 + next(x) % BLOCK_BYTES_MAX, needers,
			  next(x) % 3 ? 0 : (uint32_t)(next(x) & next(x) & all));
	}
}

/* --- what must hold --- */

static uint32_t mask_of(const struct world *w, uint32_t first, uint32_t n)
{
	uint32_t mask = 0;

	for (uint32_t i = 0; i < n; i++)
		mask |= 1u << w->nodes_of[first + i];
	return mask;
}

static uint32_t needers_of(const struct world *w, size_t b)
{
	return mask_of(w, w->blocks[b].first_needer, w->blocks[b].n_needers);
}

static uint32_t holders_of(const struct world *w, size_t b)
{
	return mask_of(w, w->blocks[b].first_holder, w->blocks[b].n_holders);
}

static uint64_t capacity(const struct plan_node *node, uint64_t ns)
{
	u128 drained = (u128)node->store_rate * ns / NS_PER_S;

	return drained > node->store_queued ? (uint64_t)(drained - node->store_queued) : 0;
}

/* The fluid optimum from its dual, over all sets of nodes: what only these can read takes them at least so long. */
static uint64_t optimum_ns(const struct world *w)
{
	uint32_t rated = 0;
	uint64_t worst = 0;

	for (uint32_t i = 0; i < w->facts.n_nodes; i++)
		rated |= (uint32_t)(w->nodes[i].store_rate > 0) << i;
	for (uint32_t set = 1; set < 1u << w->facts.n_nodes; set++) {
		uint64_t bytes = 0, from = worst, to = UINT64_C(1) << 60;

		for (size_t b = 0; b < w->facts.n_blocks; b++)
			bytes += w->blocks[b].n_holders || (needers_of(w, b) & rated & ~set) ? 0 : w->blocks[b].bytes;
		while (bytes && from < to) {
			uint64_t middle = from + (to - from) / 2;
			u128 room = 0;

			for (uint32_t i = 0; i < w->facts.n_nodes; i++)
				room += set >> i & 1 ? capacity(&w->nodes[i], middle) : 0;
			if (room >= bytes)
				to = middle;
			else
				from = middle + 1;
		}
		worst = from;
	}
	return worst;
}

static void over_random_worlds(void (*claim)(const struct world *, const struct load_plan *), int rounds)
{
	uint64_t x = 88172645463325252;
	int planned = 0;

	for (int round = 0; round < rounds; round++) {
		struct load_plan plan = { 0 };
		struct world w;

		random_world(&w, &x);
		int r = plan_load(&w.facts, &plan);
		assert_in_range(r, 0, LOAD_NO_RATE);
		if (r)
			continue;
		claim(&w, &plan);
		planned++;
		load_plan_fini(&plan);
	}
	assert_true(planned > rounds / 4);
}

static void claim_once(const struct world *w, const struct load_plan *plan)
{
	uint32_t got[BLOCKS] = { 0 }, reads[BLOCKS] = { 0 };

	for (size_t i = 0; i < plan->n_steps; i++) {
		const struct load_step *step = &plan->steps[i];

		assert_false(got[step->block] >> step->node & 1);
		got[step->block] |= 1u << step->node;
		reads[step->block] += step->source == LOAD_STORE;
	}
	for (size_t b = 0; b < w->facts.n_blocks; b++) {
		assert_int_equal(got[b], needers_of(w, b) & ~holders_of(w, b));
		assert_int_equal(reads[b], !w->blocks[b].n_holders);
	}
}

/* Carries the steps out in any order that is possible, until nothing moves: then all must be done. */
static void claim_no_circle(const struct world *w, const struct load_plan *plan)
{
	uint32_t has[BLOCKS];
	size_t n_done = 0, before;
	bool *done = calloc(plan->n_steps + 1, sizeof(*done));

	for (size_t b = 0; b < w->facts.n_blocks; b++)
		has[b] = holders_of(w, b);
	do {
		before = n_done;
		for (size_t i = 0; i < plan->n_steps; i++) {
			const struct load_step *step = &plan->steps[i];

			if (done[i] || (step->source != LOAD_STORE && !(has[step->block] >> step->source & 1)))
				continue;
			has[step->block] |= 1u << step->node;
			done[i] = true;
			n_done++;
		}
	} while (n_done > before);
	assert_int_equal(n_done, plan->n_steps);
	free(done);
}

static void claim_order(const struct world *w, const struct load_plan *plan)
{
	for (size_t i = 1; i < plan->n_steps; i++) {
		const struct load_step *a = &plan->steps[i - 1], *b = &plan->steps[i];
		bool a_sent = a->source != LOAD_STORE, b_sent = b->source != LOAD_STORE;

		assert_true(a->node < b->node ||
			    (a->node == b->node && (a_sent < b_sent || (a_sent == b_sent && a->block < b->block))));
	}
}

static void claim_sums(const struct world *w, const struct load_plan *plan)
{
	uint64_t read[NODES] = { 0 }, sent[NODES] = { 0 }, store = 0, network = 0;

	for (size_t i = 0; i < plan->n_steps; i++) {
		const struct load_step *step = &plan->steps[i];
		uint64_t bytes = w->blocks[step->block].bytes;

		if (step->source == LOAD_STORE) {
			read[step->node] += bytes;
			store += bytes;
		} else {
			sent[step->source] += bytes;
			network += bytes;
		}
	}
	assert_int_equal(store, plan->store_bytes);
	assert_int_equal(network, plan->network_bytes);
	assert_memory_equal(read, plan->node_read_bytes, w->facts.n_nodes * sizeof(*read));
	assert_memory_equal(sent, plan->node_send_bytes, w->facts.n_nodes * sizeof(*sent));
}

static void claim_bound(const struct world *w, const struct load_plan *plan)
{
	uint64_t level_ns = optimum_ns(w), largest = 0;

	for (size_t b = 0; b < w->facts.n_blocks; b++)
		largest = w->blocks[b].bytes > largest ? w->blocks[b].bytes : largest;
	assert_int_equal(plan->bound.bound_ns, level_ns);
	assert_true(plan->bound.planned_ns >= level_ns);
	for (size_t i = 0; i < w->facts.n_nodes; i++) {
		if (plan->node_read_bytes[i])
			assert_true(plan->node_read_bytes[i] < capacity(&w->nodes[i], level_ns) + largest);
	}
}

static void claim_repeats(const struct world *w, const struct load_plan *plan)
{
	struct load_plan again = { 0 };

	assert_int_equal(plan_load(&w->facts, &again), 0);
	assert_int_equal(again.n_steps, plan->n_steps);
	assert_memory_equal(again.steps, plan->steps, plan->n_steps * sizeof(*plan->steps));
	load_plan_fini(&again);
}

/* --- the tests --- */

static void a_block_leaves_the_store_once_at_most_and_reaches_each_needer_once(void **state)
{
	over_random_worlds(claim_once, 3000);
}

static void no_step_waits_for_itself(void **state)
{
	over_random_worlds(claim_no_circle, 2000);
}

static void steps_are_sorted_by_node_then_source_then_block(void **state)
{
	over_random_worlds(claim_order, 2000);
}

static void the_sums_of_a_plan_are_those_of_its_steps(void **state)
{
	over_random_worlds(claim_sums, 2000);
}

static void the_bound_is_the_fluid_optimum_and_no_read_exceeds_it_by_a_block(void **state)
{
	over_random_worlds(claim_bound, 1000);
}

static void equal_facts_give_equal_plans(void **state)
{
	over_random_worlds(claim_repeats, 1000);
}

static void nothing_to_load_is_an_empty_plan(void **state)
{
	struct load_plan plan = { 0 };

	assert_int_equal(plan_load(&(struct load_facts){ 0 }, &plan), 0);
	assert_int_equal(plan.n_steps, 0);
	load_plan_fini(&plan);
}

static void what_all_need_is_read_by_all_and_sent_without_hops(void **state)
{
	struct load_plan plan = { 0 };
	struct world w;

	world_init(&w, 8, GB);
	for (int i = 0; i < 80; i++)
		add_block(&w, BLOCK_BYTES_MAX, 0xff, 0);
	assert_int_equal(plan_load(&w.facts, &plan), 0);
	uint32_t reader[BLOCKS];
	for (size_t i = 0; i < plan.n_steps; i++) {
		if (plan.steps[i].source == LOAD_STORE)
			reader[plan.steps[i].block] = plan.steps[i].node;
	}
	for (int i = 0; i < 8; i++)
		assert_int_equal(plan.node_read_bytes[i], 10 * BLOCK_BYTES_MAX);
	for (size_t i = 0; i < plan.n_steps; i++) {
		if (plan.steps[i].source != LOAD_STORE)
			assert_int_equal(plan.steps[i].source, reader[plan.steps[i].block]);
	}
	load_plan_fini(&plan);
}

static void what_one_node_holds_fans_out_over_those_that_need_it(void **state)
{
	struct load_plan plan = { 0 };
	struct world w;

	world_init(&w, 8, 0); /* nothing is read, so no rate is missed */
	for (int i = 0; i < 80; i++)
		add_block(&w, BLOCK_BYTES_MAX, 0xfe, 1);
	assert_int_equal(plan_load(&w.facts, &plan), 0);
	assert_int_equal(plan.store_bytes, 0);
	assert_int_equal(plan.network_bytes, 560 * (uint64_t)BLOCK_BYTES_MAX);
	for (int i = 0; i < 8; i++) /* the holder must send each of the 80 once; then it is some hops ahead */
		assert_in_range(plan.node_send_bytes[i], 60 * BLOCK_BYTES_MAX, 96 * BLOCK_BYTES_MAX);
	load_plan_fini(&plan);
}

static void bytes_that_no_needer_can_read_are_an_outcome_and_ret_stays(void **state)
{
	struct load_plan plan = { .n_steps = 7 };
	struct world w;

	world_init(&w, 2, GB);
	w.nodes[1].store_rate = 0;
	add_block(&w, 1, 2, 0);
	assert_int_equal(plan_load(&w.facts, &plan), LOAD_NO_RATE);
	assert_int_equal(plan.n_steps, 7);
}

static int plan_of(const struct world *w)
{
	struct load_plan plan = { .n_steps = 7 };
	int r = plan_load(&w->facts, &plan);

	if (r)
		assert_int_equal(plan.n_steps, 7);
	else
		load_plan_fini(&plan);
	return r;
}

static void inconsistent_facts_are_refused(void **state)
{
	static const struct load_block bad[] = {
		{ .bytes = 0, .n_needers = 1 },
		{ .bytes = BLOCK_BYTES_MAX + 1, .n_needers = 1 },
		{ .bytes = 1, .n_needers = 0 },
		{ .bytes = 1, .first_needer = 2, .n_needers = 2 },
		{ .bytes = 1, .first_needer = UINT32_MAX, .n_needers = 2 },
		{ .bytes = 1, .first_needer = 1, .n_needers = 2 },
		{ .bytes = 1, .n_needers = 1, .first_holder = 1, .n_holders = 2 },
		{ .bytes = 1, .first_needer = 2, .n_needers = 1 },
	};
	struct world w;

	world_init(&w, 2, GB);
	w.facts.n_blocks = 1;
	w.facts.n_nodes_of = 3;
	w.nodes_of[0] = 0, w.nodes_of[1] = 1, w.nodes_of[2] = 1;
	w.blocks[0] = (struct load_block){ .bytes = 1, .n_needers = 2 };
	assert_int_equal(plan_of(&w), 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		w.blocks[0] = bad[i];
		w.nodes_of[2] = i == 7 ? 2 : 1;
		assert_int_equal(plan_of(&w), -EINVAL);
	}
}

static void every_failing_allocation_is_reported_and_leaks_nothing(void **state)
{
	uint64_t x = 3;

	for (int round = 0; round < 20; round++) {
		struct world w;
		int r = 0;

		random_world(&w, &x);
		for (size_t k = 1; k == 1 || r == -ENOMEM; k++) {
			allocations = 0;
			failing_allocation = k;
			r = plan_of(&w);
			failing_allocation = 0;
			assert_true(r == -ENOMEM || allocations < k);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_block_leaves_the_store_once_at_most_and_reaches_each_needer_once),
		cmocka_unit_test(no_step_waits_for_itself),
		cmocka_unit_test(steps_are_sorted_by_node_then_source_then_block),
		cmocka_unit_test(the_sums_of_a_plan_are_those_of_its_steps),
		cmocka_unit_test(the_bound_is_the_fluid_optimum_and_no_read_exceeds_it_by_a_block),
		cmocka_unit_test(equal_facts_give_equal_plans),
		cmocka_unit_test(nothing_to_load_is_an_empty_plan),
		cmocka_unit_test(what_all_need_is_read_by_all_and_sent_without_hops),
		cmocka_unit_test(what_one_node_holds_fans_out_over_those_that_need_it),
		cmocka_unit_test(bytes_that_no_needer_can_read_are_an_outcome_and_ret_stays),
		cmocka_unit_test(inconsistent_facts_are_refused),
		cmocka_unit_test(every_failing_allocation_is_reported_and_leaks_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
