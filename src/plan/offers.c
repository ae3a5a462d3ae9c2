#include "plan/offers.h"

#include <errno.h>
#include <stdbool.h>

#include "base/check.h"

static int by_number(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* Often the numbers are in order already: ranks are placed node by node. */
static void sort_numbers(uint64_t *numbers, size_t n)
{
	bool sorted = true;

	for (size_t i = 1; i < n && sorted; i++)
		sorted = numbers[i - 1] <= numbers[i];
	if (!sorted)
		qsort(numbers, n, sizeof(*numbers), by_number);
}

static int place_nodes(struct offers *o, const struct save_facts *facts)
{
	_cleanup_(cleanup_mem) uint64_t *keys = array_new(facts->n_nodes, sizeof(*keys));

	o->n_positions = facts->n_nodes;
	o->node = array_new(facts->n_nodes, sizeof(*o->node));
	o->position = array_new(facts->n_nodes, sizeof(*o->position));
	o->domain = array_new(facts->n_nodes, sizeof(*o->domain));
	o->domain_first = array_new(facts->n_nodes + 1, sizeof(*o->domain_first));
	if (!keys || !o->node || !o->position || !o->domain || !o->domain_first)
		return -ENOMEM;

	for (size_t i = 0; i < facts->n_nodes; i++)
		keys[i] = (uint64_t)facts->nodes[i].domain << 32 | i;
	sort_numbers(keys, facts->n_nodes);
	for (uint32_t p = 0; p < facts->n_nodes; p++) {
		o->node[p] = (uint32_t)keys[p];
		o->position[o->node[p]] = p;
		if (!p || keys[p] >> 32 != keys[p - 1] >> 32)
			o->domain_first[o->n_domains++] = p;
		o->domain[p] = (uint32_t)o->n_domains - 1;
	}
	o->domain_first[o->n_domains] = (uint32_t)facts->n_nodes;
	return 0;
}

static int find_sets(struct offers *o, const struct save_facts *facts, struct sets *sets)
{
	int r = sets_init(sets, facts->n_uniques);
	if (r)
		return r;

	o->list = array_new(facts->n_uniques, sizeof(*o->list));
	o->of_unique = array_new(facts->n_uniques, sizeof(*o->of_unique));
	if (!o->list || !o->of_unique)
		return -ENOMEM;
	for (size_t u = 0; u < facts->n_uniques; u++) {
		const struct save_unique *unique = &facts->uniques[u];

		o->of_unique[u] = sets_id(sets, facts->offers + unique->first_rank, unique->n_ranks);
		o->list[o->of_unique[u]].bytes += unique->bytes;
	}
	o->n = sets->n;
	return 0;
}

/* Sorts one set of ranks by position and groups it by node. */
static int group_ranks(struct offers *o, const struct save_facts *facts, const struct set *set, struct offer *offer,
		       uint64_t *keys, size_t *n_nodes, size_t *n_ranks)
{
	uint32_t last = UINT32_MAX;

	for (uint32_t i = 0; i < set->n; i++) {
		uint32_t rank = set->items[i];

		if (rank >= facts->n_ranks || (i && rank <= set->items[i - 1]))
			return -EINVAL;
		keys[i] = (uint64_t)o->position[facts->rank_node[rank]] << 32 | rank;
	}
	sort_numbers(keys, set->n);

	offer->first_node = (uint32_t)*n_nodes;
	offer->n_ranks = set->n;
	for (uint32_t i = 0; i < set->n; i++) {
		uint32_t position = (uint32_t)(keys[i] >> 32);

		if (position != last) {
			offer->n_domains += last == UINT32_MAX || o->domain[position] != o->domain[last];
			o->nodes[(*n_nodes)++] = (struct offer_node){ position, (uint32_t)*n_ranks };
			last = position;
		}
		o->ranks[(*n_ranks)++] = (uint32_t)keys[i];
	}
	offer->n_nodes = (uint32_t)*n_nodes - offer->first_node;
	return 0;
}

int offers_init(struct offers *o, const struct save_facts *facts)
{
	_cleanup_(sets_fini) struct sets sets = { 0 };
	size_t n_items = 0, n_nodes = 0, n_ranks = 0;

	*o = (struct offers){ 0 };
	int r = place_nodes(o, facts);
	if (r)
		return r;
	r = find_sets(o, facts, &sets);
	if (r)
		return r;
	for (size_t i = 0; i < sets.n; i++)
		n_items += sets.list[i].n;
	if (n_items >= UINT32_MAX)
		return -EINVAL;

	_cleanup_(cleanup_mem) uint64_t *keys = array_new(facts->n_ranks, sizeof(*keys));
	o->nodes = array_new(n_items + 1, sizeof(*o->nodes));
	o->ranks = array_new(n_items, sizeof(*o->ranks));
	if (!keys || !o->nodes || !o->ranks)
		return -ENOMEM;
	for (size_t i = 0; i < sets.n; i++) {
		if (sets.list[i].n > facts->n_ranks)
			return -EINVAL; /* cannot be ascending */
		r = group_ranks(o, facts, &sets.list[i], &o->list[i], keys, &n_nodes, &n_ranks);
		if (r)
			return r;
	}
	o->nodes[n_nodes].first_rank = (uint32_t)n_ranks;
	return 0;
}

void offers_fini(struct offers *o)
{
	free(o->node);
	free(o->position);
	free(o->domain);
	free(o->domain_first);
	free(o->list);
	free(o->of_unique);
	free(o->nodes);
	free(o->ranks);
	*o = (struct offers){ 0 };
}

struct range offers_domain(const struct offers *o, uint32_t position)
{
	uint32_t d = o->domain[position];

	return (struct range){ o->domain_first[d], o->domain_first[d + 1] };
}

uint32_t offers_find(const struct offers *o, const struct offer *offer, uint32_t position)
{
	uint32_t from = 0, to = offer->n_nodes;

	while (from < to) {
		uint32_t middle = from + (to - from) / 2;

		if (o->nodes[offer->first_node + middle].position < position)
			from = middle + 1;
		else
			to = middle;
	}
	return from;
}
