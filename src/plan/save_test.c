#include "plan/save.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#define MB	 UINT64_C(1000000)
#define GB	 UINT64_C(1000000000)
#define NS_PER_S UINT64_C(1000000000)

#define NODES	8
#define RANKS	24
#define UNIQUES 60

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
	uint32_t rank_node[RANKS];
	struct save_unique uniques[UNIQUES];
	uint32_t offers[UNIQUES * RANKS];
	struct save_facts facts;
};

static uint64_t next(uint64_t *x)
{
	*x ^= *x << 13, *x ^= *x >> 7, *x ^= *x << 17; /* xorshift64: a fixed seed, so that a failure repeats */
	return *x;
}

/* Nodes of @rate in domains of their own, ranks dealt to them in turn, no uniques. */
static void world_init(struct world *w, size_t n_nodes, size_t n_ranks, uint32_t copies, uint64_t rate)
{
	memset(w, 0, sizeof(*w));
	for (uint32_t i = 0; i < n_nodes; i++)
		w->nodes[i] = (struct plan_node){ .domain = i, .store_rate = rate, .network_rate = 10 * GB };
	for (uint32_t i = 0; i < n_ranks; i++)
		w->rank_node[i] = i * (uint32_t)n_nodes / (uint32_t)n_ranks;
	w->facts = (struct save_facts){ .nodes = w->nodes,
					.n_nodes = n_nodes,
					.rank_node = w->rank_node,
					.n_ranks = n_ranks,
					.uniques = w->uniques,
					.offers = w->offers,
					.copies = copies };
}

/* A unique that the ranks of the bit mask offer. */
static void add_unique(struct world *w, uint64_t bytes, uint32_t ranks)
{
	struct save_unique *unique = &w->uniques[w->facts.n_uniques++];

	*unique = (struct save_unique){ .bytes = bytes, .first_rank = (uint32_t)w->facts.n_offers };
	for (uint32_t i = 0; i < RANKS; i++) {
		if (!(ranks >> i & 1))
			continue;
		w->offers[w->facts.n_offers++] = i;
		unique->n_ranks++;
	}
}

/* Anything goes: rates of 0, queues, domains of several nodes, sizes from nothing to many blocks, few and many replicas. */
static void random_world(struct world *w, uint64_t *x)
{
	size_t n_nodes = 1 + next(x) % NODES, n_ranks = 1 + next(x) % RANKS;
	uint32_t n_domains = 1 + next(x) % n_nodes, shared = 0;
	bool even = next(x) % 2;

	world_init(w, n_nodes, n_ranks, 1 + next(x) % PLAN_COPIES_MAX, 2 * GB);
	for (size_t i = 0; i < n_nodes; i++) {
		w->nodes[i].domain = next(x) % 3 ? next(x) % n_domains : (uint32_t)i;
		if (even)
			continue;
		w->nodes[i].store_rate = next(x) % 4 ? 1 + next(x) % (5 * GB) : 0;
		w->nodes[i].store_queued = next(x) % 3 ? 0 : next(x) % (200 * MB);
	}
	for (size_t i = 0; i < n_ranks; i++)
		w->rank_node[i] = next(x) % n_nodes;
	for (size_t n = next(x) % UNIQUES; n > 0; n--) {
		uint32_t ranks = (uint32_t)(next(x) & next(x)) % (1u << n_ranks);
		unsigned size_bits = next(x) % 27;

		if (next(x) % 2 || !shared)
			shared = ranks ? ranks : 1;
		add_unique(w, next(x) % (UINT64_C(1) << size_bits), shared);
	}
}

/* --- what must hold --- */

static uint32_t nodes_offering(const struct world *w, const struct save_unique *unique)
{
	uint32_t nodes = 0;

	for (uint32_t i = 0; i < unique->n_ranks; i++)
		nodes |= 1u << w->rank_node[w->offers[unique->first_rank + i]];
	return nodes;
}

static uint32_t count_domains(const struct world *w, uint32_t nodes)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < w->facts.n_nodes; i++) {
		bool first = nodes >> i & 1;

		for (uint32_t k = 0; k < i; k++)
			first = first && !((nodes >> k & 1) && w->nodes[k].domain == w->nodes[i].domain);
		n += first;
	}
	return n;
}

/* Who may upload it: its own nodes; if it is offered in too few domains, also those of other domains. Only with a rate. */
static uint32_t candidates(const struct world *w, const struct save_unique *unique)
{
	uint32_t own = nodes_offering(w, unique), nodes = own;

	for (uint32_t i = 0; i < w->facts.n_nodes; i++) {
		bool foreign = count_domains(w, own) < w->facts.copies;

		for (uint32_t k = 0; k < w->facts.n_nodes; k++)
			foreign = foreign && !((own >> k & 1) && w->nodes[k].domain == w->nodes[i].domain);
		nodes |= (uint32_t)foreign << i;
		nodes &= ~((uint32_t)!w->nodes[i].store_rate << i);
	}
	return nodes;
}

static uint64_t capacity(const struct plan_node *node, uint64_t ns)
{
	u128 drained = (u128)node->store_rate * ns / NS_PER_S;

	return drained > node->store_queued ? (uint64_t)(drained - node->store_queued) : 0;
}

/* The fluid optimum from its dual, over all sets of nodes: what can go to these only takes them at least so long. */
static uint64_t optimum_ns(const struct world *w)
{
	uint32_t of[UNIQUES];
	uint64_t worst = 0;

	for (size_t u = 0; u < w->facts.n_uniques; u++)
		of[u] = candidates(w, &w->uniques[u]);
	for (uint32_t set = 1; set < 1u << w->facts.n_nodes; set++) {
		uint64_t bytes = 0, from = worst, to = UINT64_C(1) << 60;

		for (size_t u = 0; u < w->facts.n_uniques; u++)
			bytes += of[u] & ~set ? 0 : w->uniques[u].bytes;
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

static void check_every_byte_once(const struct world *w, const struct save_plan *plan)
{
	size_t b = 0;

	for (uint32_t u = 0; u < w->facts.n_uniques; u++) {
		for (uint64_t offset = 0; offset < w->uniques[u].bytes; offset += plan->blocks[b++].bytes) {
			assert_true(b < plan->n_blocks);
			assert_int_equal(plan->blocks[b].unique, u);
			assert_int_equal(plan->blocks[b].offset, offset);
			assert_in_range(plan->blocks[b].bytes, 1, BLOCK_BYTES_MAX);
			assert_true(plan->blocks[b].bytes <= w->uniques[u].bytes - offset);
		}
	}
	assert_int_equal(b, plan->n_blocks);
}

static bool offers(const struct world *w, uint32_t unique, uint32_t rank)
{
	for (uint32_t i = 0; i < w->uniques[unique].n_ranks; i++) {
		if (w->offers[w->uniques[unique].first_rank + i] == rank)
			return true;
	}
	return false;
}

static void check_holders(const struct world *w, const struct save_plan *plan)
{
	for (size_t b = 0; b < plan->n_blocks; b++) {
		const struct save_block *block = &plan->blocks[b];
		uint32_t domains = count_domains(w, nodes_offering(w, &w->uniques[block->unique]));
		uint32_t captures = 0, uploaders = 0, holders = 0;

		for (uint32_t i = 0; i < w->facts.copies; i++) {
			assert_true(block->holder[i] < w->facts.n_nodes);
			holders |= 1u << block->holder[i];
			uploaders += block->holder[i] == block->uploader;
			if (block->holder_rank[i] == SAVE_COPIED)
				continue;
			assert_int_equal(captures, i); /* capturing holders come first */
			assert_true(offers(w, block->unique, block->holder_rank[i]));
			assert_int_equal(w->rank_node[block->holder_rank[i]], block->holder[i]);
			captures++;
		}
		assert_int_equal(count_domains(w, holders), w->facts.copies);
		assert_int_equal(captures, domains < w->facts.copies ? domains : w->facts.copies);
		assert_int_equal(block->rank, block->holder_rank[0]);
		assert_int_equal(uploaders, 1);
		assert_true(w->nodes[block->uploader].store_rate > 0);
		for (uint32_t i = w->facts.copies; i < PLAN_COPIES_MAX; i++)
			assert_int_equal(block->holder[i], UINT32_MAX);
	}
}

static void check_sums(const struct world *w, const struct save_plan *plan)
{
	uint64_t upload[NODES] = { 0 }, capture[NODES] = { 0 }, receive[NODES] = { 0 }, unique = 0, copy = 0;

	for (size_t b = 0; b < plan->n_blocks; b++) {
		const struct save_block *block = &plan->blocks[b];

		upload[block->uploader] += block->bytes;
		unique += block->bytes;
		for (uint32_t i = 0; i < w->facts.copies; i++) {
			bool copied = block->holder_rank[i] == SAVE_COPIED;

			(copied ? receive : capture)[block->holder[i]] += block->bytes;
			copy += copied ? block->bytes : 0;
		}
	}
	assert_memory_equal(upload, plan->node_upload_bytes, w->facts.n_nodes * sizeof(*upload));
	assert_memory_equal(capture, plan->node_capture_bytes, w->facts.n_nodes * sizeof(*capture));
	assert_memory_equal(receive, plan->node_receive_bytes, w->facts.n_nodes * sizeof(*receive));
	assert_int_equal(unique, plan->unique_bytes);
	assert_int_equal(copy, plan->copy_bytes);
}

static void check_load(const struct world *w, const struct save_plan *plan, uint64_t level_ns)
{
	uint64_t largest = 0;

	for (size_t b = 0; b < plan->n_blocks; b++)
		largest = plan->blocks[b].bytes > largest ? plan->blocks[b].bytes : largest;
	for (size_t i = 0; i < w->facts.n_nodes; i++) {
		if (plan->node_upload_bytes[i])
			assert_true(plan->node_upload_bytes[i] < capacity(&w->nodes[i], level_ns) + largest);
	}
}

static void over_random_worlds(void (*claim)(const struct world *, const struct save_plan *), int rounds)
{
	uint64_t x = 88172645463325252;
	int planned = 0;

	for (int round = 0; round < rounds; round++) {
		struct save_plan plan = { 0 };
		struct world w;

		random_world(&w, &x);
		int r = plan_save(&w.facts, &plan);
		assert_in_range(r, 0, SAVE_NO_RATE);
		if (r)
			continue;
		claim(&w, &plan);
		planned++;
		save_plan_fini(&plan);
	}
	assert_true(planned > rounds / 4);
}

/* --- the tests --- */

static void every_byte_of_every_unique_is_in_exactly_one_block(void **state)
{
	over_random_worlds(check_every_byte_once, 3000);
}

static void holders_lie_in_distinct_domains_and_offering_nodes_come_first(void **state)
{
	over_random_worlds(check_holders, 3000);
}

static void the_sums_of_a_plan_are_those_of_its_blocks(void **state)
{
	over_random_worlds(check_sums, 3000);
}

static void claim_bound(const struct world *w, const struct save_plan *plan)
{
	uint64_t level_ns = optimum_ns(w);

	assert_int_equal(plan->bound.bound_ns, level_ns);
	assert_true(plan->bound.planned_ns >= level_ns);
	check_load(w, plan, level_ns);
}

static void the_bound_is_the_fluid_optimum_and_no_load_exceeds_it_by_a_block(void **state)
{
	over_random_worlds(claim_bound, 1000);
}

static void claim_repeats(const struct world *w, const struct save_plan *plan)
{
	struct save_plan again = { 0 };

	assert_int_equal(plan_save(&w->facts, &again), 0);
	assert_int_equal(again.n_blocks, plan->n_blocks);
	assert_memory_equal(again.blocks, plan->blocks, plan->n_blocks * sizeof(*plan->blocks));
	assert_true(again.fingerprint == plan->fingerprint);
	save_plan_fini(&again);
}

static void equal_facts_give_equal_plans(void **state)
{
	over_random_worlds(claim_repeats, 1000);
}

static void different_plans_have_different_fingerprints(void **state)
{
	struct save_plan a = { 0 }, b = { 0 };
	struct world w;

	world_init(&w, 2, 2, 1, GB);
	add_unique(&w, 100, 1);
	assert_int_equal(plan_save(&w.facts, &a), 0);
	w.offers[0] = 1;
	assert_int_equal(plan_save(&w.facts, &b), 0);
	assert_true(a.fingerprint != b.fingerprint);
	save_plan_fini(&a);
	save_plan_fini(&b);
}

/* The same job with its ranks numbered the other way round. */
static void claim_bound_of_permuted(const struct world *w, const struct save_plan *plan)
{
	struct save_plan other = { 0 };
	struct world p = *w;
	uint32_t last = (uint32_t)w->facts.n_ranks - 1;

	p.facts.nodes = p.nodes, p.facts.rank_node = p.rank_node, p.facts.uniques = p.uniques,
	p.facts.offers = p.offers;
	for (uint32_t i = 0; i <= last; i++)
		p.rank_node[i] = w->rank_node[last - i];
	for (uint32_t u = 0; u < w->facts.n_uniques; u++) {
		const struct save_unique *unique = &w->uniques[u];

		for (uint32_t i = 0; i < unique->n_ranks; i++)
			p.offers[unique->first_rank + i] =
				last - w->offers[unique->first_rank + unique->n_ranks - 1 - i];
	}
	assert_int_equal(plan_save(&p.facts, &other), 0);
	assert_int_equal(other.bound.bound_ns, plan->bound.bound_ns);
	check_load(&p, &other, plan->bound.bound_ns);
	save_plan_fini(&other);
}

static void permuting_ranks_keeps_the_bound(void **state)
{
	over_random_worlds(claim_bound_of_permuted, 1000);
}

static void nothing_to_save_is_an_empty_plan(void **state)
{
	struct save_plan plan = { 0 };
	struct world w;

	world_init(&w, 2, 4, 3, 0); /* neither domains nor rates are missed */
	assert_int_equal(plan_save(&w.facts, &plan), 0);
	save_plan_fini(&plan);
	add_unique(&w, 0, 1);
	assert_int_equal(plan_save(&w.facts, &plan), 0);
	assert_int_equal(plan.n_blocks, 0);
	assert_int_equal(plan.bound.planned_ns, 0);
	save_plan_fini(&plan);
	assert_int_equal(plan_save(&(struct save_facts){ .copies = 1 }, &plan), 0);
	save_plan_fini(&plan);
}

static void a_replicated_tensor_of_many_gigabytes_is_shared_out(void **state)
{
	struct save_plan plan = { 0 };
	struct world w;

	world_init(&w, 4, 16, 1, GB);
	add_unique(&w, 40 * GB + 1, 0xffff); /* over 2^32 bytes */
	assert_int_equal(plan_save(&w.facts, &plan), 0);
	check_every_byte_once(&w, &plan);
	check_load(&w, &plan, 10 * NS_PER_S + 1);
	for (int i = 0; i < 4; i++)
		assert_true(plan.node_upload_bytes[i] > 10 * GB - 2 * BLOCK_BYTES_MAX);
	save_plan_fini(&plan);
}

static void a_node_busy_beyond_the_level_uploads_nothing(void **state)
{
	struct save_plan plan = { 0 };
	struct world w;

	world_init(&w, 2, 2, 1, GB);
	w.nodes[0].store_queued = 10 * GB;
	add_unique(&w, GB, 3);
	assert_int_equal(plan_save(&w.facts, &plan), 0);
	assert_int_equal(plan.node_upload_bytes[0], 0);
	assert_int_equal(plan.bound.bound_ns, NS_PER_S);
	save_plan_fini(&plan);
}

static void nodes_below_the_top_level_are_even_too(void **state)
{
	struct save_plan plan = { 0 };
	struct world w;

	world_init(&w, 4, 4, 1, GB);
	add_unique(&w, 8 * GB, 1u << 0);
	add_unique(&w, 2 * GB, 1u << 1 | 1u << 2 | 1u << 3);
	add_unique(&w, GB, 1u << 2 | 1u << 3);
	assert_int_equal(plan_save(&w.facts, &plan), 0);
	for (int i = 1; i < 4; i++)
		assert_in_range(plan.node_upload_bytes[i], GB - BLOCK_BYTES_MAX, GB + BLOCK_BYTES_MAX);
	save_plan_fini(&plan);
}

static void a_node_without_a_rate_captures_and_its_copy_uploads(void **state)
{
	struct save_plan plan = { 0 };
	struct world w;

	world_init(&w, 2, 2, 2, GB);
	w.nodes[0].store_rate = 0;
	add_unique(&w, 100 * MB, 1);
	assert_int_equal(plan_save(&w.facts, &plan), 0);
	check_holders(&w, &plan);
	assert_int_equal(plan.node_upload_bytes[1], 100 * MB);
	assert_int_equal(plan.node_capture_bytes[0], 100 * MB);
	assert_int_equal(plan.node_receive_bytes[1], 100 * MB);
	save_plan_fini(&plan);
}

/* Every rank its own shard, two copies: the most common of all jobs. */
static void copies_of_shards_are_even_over_nodes_and_uploads_stay_at_home(void **state)
{
	struct save_plan plan = { 0 };
	struct world w;

	world_init(&w, 8, 16, 2, GB);
	for (uint32_t i = 0; i < 16; i++)
		add_unique(&w, 100 * MB, 1u << i);
	assert_int_equal(plan_save(&w.facts, &plan), 0);
	check_holders(&w, &plan);
	assert_int_equal(plan.copy_bytes, 1600 * MB);
	for (size_t b = 0; b < plan.n_blocks; b++)
		assert_int_equal(plan.blocks[b].uploader, plan.blocks[b].holder[0]);
	for (int i = 0; i < 8; i++) {
		assert_int_equal(plan.node_upload_bytes[i], 200 * MB);
		assert_in_range(plan.node_receive_bytes[i], 200 * MB - BLOCK_BYTES_MAX, 200 * MB + BLOCK_BYTES_MAX);
	}
	save_plan_fini(&plan);
}

static void the_ranks_of_a_node_share_its_captures(void **state)
{
	uint64_t capture[16] = { 0 };
	struct save_plan plan = { 0 };
	struct world w;

	world_init(&w, 2, 16, 2, GB);
	for (int i = 0; i < 20; i++)
		add_unique(&w, 80 * MB, 0xffff);
	assert_int_equal(plan_save(&w.facts, &plan), 0);
	for (size_t b = 0; b < plan.n_blocks; b++) {
		capture[plan.blocks[b].holder_rank[0]] += plan.blocks[b].bytes;
		capture[plan.blocks[b].holder_rank[1]] += plan.blocks[b].bytes;
	}
	for (int i = 0; i < 16; i++)
		assert_in_range(capture[i], 200 * MB - BLOCK_BYTES_MAX, 200 * MB + BLOCK_BYTES_MAX);
	save_plan_fini(&plan);
}

static void small_pieces_of_the_same_ranks_go_together(void **state)
{
	struct save_plan plan = { 0 };
	struct world w;
	int moves = 0;

	world_init(&w, 4, 8, 2, GB);
	for (int i = 0; i < UNIQUES; i++)
		add_unique(&w, 1000, 0xff);
	assert_int_equal(plan_save(&w.facts, &plan), 0);
	for (size_t b = 1; b < plan.n_blocks; b++)
		moves += memcmp(plan.blocks[b].holder, plan.blocks[b - 1].holder, sizeof(plan.blocks[b].holder)) != 0;
	assert_int_equal(moves, 3); /* from each of the four nodes to the next */
	save_plan_fini(&plan);
}

static void too_few_domains_are_an_outcome_and_ret_stays(void **state)
{
	struct save_plan plan = { .unique_bytes = 7 };
	struct world w;

	world_init(&w, 3, 3, 2, GB);
	for (int i = 0; i < 3; i++)
		w.nodes[i].domain = 5;
	add_unique(&w, 1, 7);
	assert_int_equal(plan_save(&w.facts, &plan), SAVE_NO_DOMAINS);
	assert_int_equal(plan.unique_bytes, 7);
}

static void bytes_that_no_node_can_upload_are_an_outcome_and_ret_stays(void **state)
{
	struct save_plan plan = { .unique_bytes = 7 };
	struct world w;

	world_init(&w, 3, 3, 1, GB);
	w.nodes[1].store_rate = 0;
	add_unique(&w, 1, 1u << 1);
	assert_int_equal(plan_save(&w.facts, &plan), SAVE_NO_RATE);
	assert_int_equal(plan.unique_bytes, 7);
}

static int plan_of(const struct world *w)
{
	struct save_plan plan = { .unique_bytes = 7 };
	int r = plan_save(&w->facts, &plan);

	if (r)
		assert_int_equal(plan.unique_bytes, 7);
	else
		save_plan_fini(&plan);
	return r;
}

static void inconsistent_facts_are_refused(void **state)
{
	struct world good, w;

	world_init(&good, 2, 4, 1, GB);
	add_unique(&good, 10, 3);
	assert_int_equal(plan_of(&good), 0);
#define REFUSED(change)                  \
	w = good;                        \
	w.facts.nodes = w.nodes;         \
	w.facts.rank_node = w.rank_node; \
	w.facts.uniques = w.uniques;     \
	w.facts.offers = w.offers;       \
	change;                          \
	assert_int_equal(plan_of(&w), -EINVAL)

	REFUSED(w.facts.copies = 0);
	REFUSED(w.facts.copies = PLAN_COPIES_MAX + 1);
	REFUSED(w.rank_node[3] = 2);
	REFUSED(w.offers[1] = 4);
	REFUSED(w.offers[1] = w.offers[0]);
	REFUSED(w.uniques[0].n_ranks = 0);
	REFUSED(w.uniques[0].n_ranks = 3);
	REFUSED(w.uniques[0].first_rank = UINT32_MAX);
	REFUSED(w.facts.n_nodes = PLAN_NODES_MAX + 1);
	REFUSED(w.facts.n_ranks = PLAN_RANKS_MAX + 1);
#undef REFUSED
	w.facts.n_ranks = good.facts.n_ranks;
	w.uniques[0].bytes = UINT64_MAX;
	assert_int_equal(plan_of(&w), -E2BIG);
}

static void extreme_rates_and_queues_neither_overflow_nor_hang(void **state)
{
	static const uint64_t values[] = { 0, 1, 2, NS_PER_S - 1, UINT64_MAX / 2, UINT64_MAX };
	uint64_t x = 1;

	for (int round = 0; round < 2000; round++) {
		struct save_plan plan = { 0 };
		struct world w;

		random_world(&w, &x);
		for (size_t i = 0; i < w.facts.n_nodes; i++) {
			w.nodes[i].store_rate = values[next(&x) % 6];
			w.nodes[i].store_queued = values[next(&x) % 6];
		}
		if (plan_save(&w.facts, &plan))
			continue;
		check_every_byte_once(&w, &plan);
		check_holders(&w, &plan);
		assert_true(plan.bound.planned_ns >= plan.bound.bound_ns);
		save_plan_fini(&plan);
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
		cmocka_unit_test(every_byte_of_every_unique_is_in_exactly_one_block),
		cmocka_unit_test(holders_lie_in_distinct_domains_and_offering_nodes_come_first),
		cmocka_unit_test(the_sums_of_a_plan_are_those_of_its_blocks),
		cmocka_unit_test(the_bound_is_the_fluid_optimum_and_no_load_exceeds_it_by_a_block),
		cmocka_unit_test(equal_facts_give_equal_plans),
		cmocka_unit_test(different_plans_have_different_fingerprints),
		cmocka_unit_test(permuting_ranks_keeps_the_bound),
		cmocka_unit_test(nothing_to_save_is_an_empty_plan),
		cmocka_unit_test(a_replicated_tensor_of_many_gigabytes_is_shared_out),
		cmocka_unit_test(a_node_busy_beyond_the_level_uploads_nothing),
		cmocka_unit_test(nodes_below_the_top_level_are_even_too),
		cmocka_unit_test(a_node_without_a_rate_captures_and_its_copy_uploads),
		cmocka_unit_test(copies_of_shards_are_even_over_nodes_and_uploads_stay_at_home),
		cmocka_unit_test(the_ranks_of_a_node_share_its_captures),
		cmocka_unit_test(small_pieces_of_the_same_ranks_go_together),
		cmocka_unit_test(too_few_domains_are_an_outcome_and_ret_stays),
		cmocka_unit_test(bytes_that_no_node_can_upload_are_an_outcome_and_ret_stays),
		cmocka_unit_test(inconsistent_facts_are_refused),
		cmocka_unit_test(extreme_rates_and_queues_neither_overflow_nor_hang),
		cmocka_unit_test(every_failing_allocation_is_reported_and_leaks_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
