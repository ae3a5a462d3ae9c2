#include "plan/save.h"

#include <errno.h>

#include "base/check.h"
#include "base/hash.h"
#include "plan/copies.h"
#include "plan/deal.h"
#include "plan/level.h"
#include "plan/offers.h"
#include "plan/order.h"
#include "plan/tally.h"
#include "plan/uploads.h"

#define NONE UINT32_MAX

_Static_assert(sizeof(struct save_block) == 48, "the fingerprint hashes blocks as they lie: no padding");

/* The nodes that capture a block: which of the offer's nodes, and which of its ranks. */
struct capture {
	uint32_t n;
	uint32_t node_index[PLAN_COPIES_MAX], rank_index[PLAN_COPIES_MAX];
};

struct saver {
	const struct save_facts *facts;
	struct offers offers;
	struct deal deal;
	uint32_t *uniques;	/* sorted by offer */
	uint64_t *first_block;	/* by unique */
	uint64_t *rank_capture; /* bytes, by rank */
	struct tally nodes;	/* capture bytes of the nodes of the offer at hand */
	struct tally ranks;	/* capture bytes of its ranks */
	struct save_plan plan;
};

static void saver_fini(struct saver *s)
{
	offers_fini(&s->offers);
	deal_fini(&s->deal);
	free(s->uniques);
	free(s->first_block);
	free(s->rank_capture);
	tally_fini(&s->nodes);
	tally_fini(&s->ranks);
	save_plan_fini(&s->plan);
}

void save_plan_fini(struct save_plan *plan)
{
	free(plan->blocks);
	free(plan->node_upload_bytes);
	free(plan->node_capture_bytes);
	free(plan->node_receive_bytes);
	*plan = (struct save_plan){ 0 };
}

/* --- facts --- */

static uint32_t block_bytes(const struct save_facts *facts)
{
	return facts->block_bytes ? facts->block_bytes : BLOCK_BYTES_MAX;
}

static int check_facts(const struct save_facts *facts, size_t *ret_blocks)
{
	const uint32_t cut = block_bytes(facts);
	uint64_t n_blocks = 0;

	if (facts->block_bytes > BLOCK_BYTES_MAX || !facts->copies || facts->copies > PLAN_COPIES_MAX ||
	    facts->n_nodes > PLAN_NODES_MAX || facts->n_ranks > PLAN_RANKS_MAX || facts->n_uniques >= UINT32_MAX)
		return -EINVAL;
	for (size_t i = 0; i < facts->n_ranks; i++) {
		if (facts->rank_node[i] >= facts->n_nodes)
			return -EINVAL;
	}
	for (size_t i = 0; i < facts->n_uniques; i++) {
		const struct save_unique *unique = &facts->uniques[i];

		if (!unique->n_ranks || (size_t)unique->first_rank + unique->n_ranks > facts->n_offers)
			return -EINVAL;
		n_blocks += unique->bytes / cut + (unique->bytes % cut != 0);
		if (n_blocks > PLAN_BLOCKS_MAX)
			return -E2BIG;
	}
	*ret_blocks = n_blocks;
	return 0;
}

static int make_room(struct saver *s, size_t n_blocks)
{
	const struct save_facts *facts = s->facts;
	struct save_plan *plan = &s->plan;

	s->uniques = array_new(facts->n_uniques, sizeof(*s->uniques));
	s->first_block = array_new(facts->n_uniques, sizeof(*s->first_block));
	s->rank_capture = array_new(facts->n_ranks, sizeof(*s->rank_capture));
	plan->blocks = array_new(n_blocks, sizeof(*plan->blocks));
	plan->node_upload_bytes = array_new(facts->n_nodes, sizeof(uint64_t));
	plan->node_capture_bytes = array_new(facts->n_nodes, sizeof(uint64_t));
	plan->node_receive_bytes = array_new(facts->n_nodes, sizeof(uint64_t));
	plan->n_blocks = n_blocks;
	if (!s->uniques || !s->first_block || !s->rank_capture || !plan->blocks || !plan->node_upload_bytes ||
	    !plan->node_capture_bytes || !plan->node_receive_bytes)
		return -ENOMEM;

	return tally_init(&s->nodes, facts->n_nodes) || tally_init(&s->ranks, facts->n_ranks) ? -ENOMEM : 0;
}

/* --- blocks --- */

static void cut_blocks(struct saver *s)
{
	const uint32_t cut = block_bytes(s->facts);
	struct save_block *block = s->plan.blocks;

	for (size_t u = 0; u < s->facts->n_uniques; u++) {
		uint64_t bytes = s->facts->uniques[u].bytes;

		s->first_block[u] = (uint64_t)(block - s->plan.blocks);
		s->plan.unique_bytes += bytes;
		for (uint64_t offset = 0; offset < bytes; offset += cut, block++) {
			uint64_t rest = bytes - offset;

			block->unique = (uint32_t)u;
			block->offset = offset;
			block->bytes = rest < cut ? (uint32_t)rest : cut;
		}
	}
	CHECK((size_t)(block - s->plan.blocks) == s->plan.n_blocks);
}

/* --- captures --- */

static struct range ranks_of(const struct offers *o, const struct offer *offer, uint32_t node_index)
{
	const struct offer_node *node = &o->nodes[offer->first_node + node_index];
	uint32_t first = o->nodes[offer->first_node].first_rank;

	return (struct range){ node[0].first_rank - first, node[1].first_rank - first };
}

/* Which of the offer's nodes are in the failure domain of the @i-th. */
static struct range domain_of(const struct offers *o, const struct offer *offer, uint32_t i)
{
	struct range domain = offers_domain(o, o->nodes[offer->first_node + i].position);

	return (struct range){ offers_find(o, offer, domain.from), offers_find(o, offer, domain.to) };
}

/*
 * Nodes of ranks that offer the block, in different domains: the uploader if it is one of them, then those that have captured
 * least; on each the rank that has.
 */
static struct capture choose_capture(const struct saver *s, const struct offer *offer, uint32_t uploader)
{
	const struct offers *o = &s->offers;
	uint32_t n_wanted = offer->n_domains < s->facts->copies ? offer->n_domains : s->facts->copies;
	uint32_t i = offers_find(o, offer, uploader);
	struct range used[PLAN_COPIES_MAX];
	struct capture capture = { 0 };

	if (i == offer->n_nodes || o->nodes[offer->first_node + i].position != uploader)
		i = tally_least_outside(&s->nodes, NULL, 0);
	for (uint32_t n = 0;;) {
		struct range ranks = ranks_of(o, offer, i);

		capture.node_index[n] = i;
		capture.rank_index[n] = ranks.to - ranks.from > 1 ? tally_least(&s->ranks, ranks) : ranks.from;
		capture.n = n + 1;
		if (capture.n == n_wanted)
			return capture;
		range_insert(used, n++, domain_of(o, offer, i));
		i = tally_least_outside(&s->nodes, used, n);
	}
}

static void note_capture(struct saver *s, const struct offer *offer, const struct capture *capture,
			 struct save_block *block)
{
	const struct offer_node *nodes = &s->offers.nodes[offer->first_node];

	for (uint32_t i = 0; i < PLAN_COPIES_MAX; i++) {
		block->holder[i] = UINT32_MAX;
		block->holder_rank[i] = SAVE_COPIED;
	}
	for (uint32_t i = 0; i < capture->n; i++) {
		block->holder[i] = s->offers.node[nodes[capture->node_index[i]].position];
		block->holder_rank[i] = s->offers.ranks[nodes[0].first_rank + capture->rank_index[i]];
		s->plan.node_capture_bytes[block->holder[i]] += block->bytes;
		tally_add(&s->nodes, capture->node_index[i], block->bytes);
		tally_add(&s->ranks, capture->rank_index[i], block->bytes);
	}
	block->rank = block->holder_rank[0];
}

/* The tallies of one offer: what its nodes and ranks have captured of the offers before it. */
static void start_tallies(struct saver *s, const struct offer *offer)
{
	const struct offer_node *nodes = &s->offers.nodes[offer->first_node];
	const uint32_t *ranks = &s->offers.ranks[nodes[0].first_rank];

	for (uint32_t i = 0; i < offer->n_nodes; i++)
		s->nodes.load[i] = s->plan.node_capture_bytes[s->offers.node[nodes[i].position]];
	for (uint32_t i = 0; i < offer->n_ranks; i++)
		s->ranks.load[i] = s->rank_capture[ranks[i]];
	tally_start(&s->nodes, offer->n_nodes);
	tally_start(&s->ranks, offer->n_ranks);
}

static void end_tallies(struct saver *s, const struct offer *offer)
{
	const uint32_t *ranks = &s->offers.ranks[s->offers.nodes[offer->first_node].first_rank];

	for (uint32_t i = 0; i < offer->n_ranks; i++)
		s->rank_capture[ranks[i]] = s->ranks.load[i];
}

/* An offer's uniques lie far apart in memory: asking for them early makes 10^6 uniques of 64 offers three times as fast. */
static void look_ahead(const struct saver *s, const uint32_t *uniques, size_t n)
{
	if (n > 16) {
		__builtin_prefetch(&s->first_block[uniques[16]]);
		__builtin_prefetch(&s->facts->uniques[uniques[16]]);
	}
	if (n > 8)
		__builtin_prefetch(&s->plan.blocks[s->first_block[uniques[8]]], 1);
}

/* Small pieces one after the other stay together while they fit into one block, so that they can share a slab. */
static void place_offer(struct saver *s, uint32_t number, const uint32_t *uniques, size_t n)
{
	const struct offer *offer = &s->offers.list[number];
	struct capture run = { 0 };
	uint32_t run_uploader = NONE;
	uint64_t run_bytes = 0;

	start_tallies(s, offer);
	for (size_t i = 0; i < n; i++) {
		struct save_block *block = &s->plan.blocks[s->first_block[uniques[i]]];

		look_ahead(s, uniques + i, n - i);
		for (uint64_t left = s->facts->uniques[uniques[i]].bytes; left; left -= block->bytes, block++) {
			uint32_t uploader = deal_next(&s->deal, number, block->bytes);
			bool small = block->bytes < SAVE_SMALL_BYTES;
			bool follows = small && uploader == run_uploader && run_bytes + block->bytes <= BLOCK_BYTES_MAX;
			struct capture capture = follows ? run : choose_capture(s, offer, uploader);

			block->uploader = s->offers.node[uploader];
			s->plan.node_upload_bytes[block->uploader] += block->bytes;
			note_capture(s, offer, &capture, block);
			if (small) {
				run = capture;
				run_uploader = uploader;
				run_bytes = block->bytes + (follows ? run_bytes : 0);
			}
		}
	}
	end_tallies(s, offer);
}

/* Offers with few nodes first: those with many can then make up for what these did to the balance. */
static int place_all(struct saver *s)
{
	size_t n = s->offers.n, at = 0;
	_cleanup_(cleanup_mem) uint32_t *keys = array_new(n, sizeof(*keys));
	_cleanup_(cleanup_mem) uint32_t *order = array_new(n, sizeof(*order));
	_cleanup_(cleanup_mem) size_t *first = array_new(n + 1, sizeof(*first));

	if (!keys || !order || !first)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		keys[i] = s->offers.list[i].n_nodes;
	if (order_by(keys, n, PLAN_NODES_MAX + 1, order) ||
	    order_by(s->offers.of_unique, s->facts->n_uniques, n, s->uniques))
		return -ENOMEM;

	for (size_t i = 0; i < n; i++) {
		first[i] = at;
		while (at < s->facts->n_uniques && s->offers.of_unique[s->uniques[at]] == i)
			at++;
	}
	first[n] = at;
	for (size_t i = 0; i < n; i++) {
		uint32_t offer = order[i];

		if (s->offers.list[offer].bytes)
			place_offer(s, offer, s->uniques + first[offer], first[offer + 1] - first[offer]);
	}
	return 0;
}

/* --- the plan --- */

static void sum_up(struct saver *s)
{
	struct save_plan *plan = &s->plan;

	for (size_t i = 0; i < s->facts->n_nodes; i++) {
		const struct plan_node *node = &s->facts->nodes[i];
		struct level_pipe pipe = { node->store_rate, node->store_queued };

		if (!plan->node_upload_bytes[i])
			continue;
		uint64_t end_ns = level_end_ns(&pipe, plan->node_upload_bytes[i]);
		if (end_ns > plan->bound.planned_ns)
			plan->bound.planned_ns = end_ns;
	}
	CHECK(plan->bound.planned_ns >= plan->bound.bound_ns);
	plan->fingerprint = hash64(plan->blocks, plan->n_blocks * sizeof(*plan->blocks), s->facts->copies);
}

int plan_save(const struct save_facts *facts, struct save_plan *ret)
{
	_cleanup_(saver_fini) struct saver s = { .facts = facts };
	size_t n_blocks;

	int r = check_facts(facts, &n_blocks);
	if (r)
		return r;
	r = offers_init(&s.offers, facts);
	if (r)
		return r;
	if (n_blocks && s.offers.n_domains < facts->copies)
		return SAVE_NO_DOMAINS;

	r = make_room(&s, n_blocks);
	if (r)
		return r;
	r = uploads_share(&s.offers, facts, &s.deal, &s.plan.bound.bound_ns);
	if (r)
		return r == LEVEL_NO_RATE ? SAVE_NO_RATE : r;

	cut_blocks(&s);
	r = place_all(&s);
	if (r)
		return r;
	r = copies_place(&s.offers, facts, &s.plan);
	if (r)
		return r;
	sum_up(&s);

	*ret = s.plan;
	s.plan = (struct save_plan){ 0 };
	return 0;
}
