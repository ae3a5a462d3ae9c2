#include "plan/sets.h"

#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "plan/array.h"

int sets_init(struct sets *sets, size_t n_max)
{
	size_t n_slots = 2;

	while (n_slots / 2 < n_max)
		n_slots *= 2;
	*sets = (struct sets){ .n_max = n_max, .n_slots = n_slots };
	sets->list = array_new(n_max, sizeof(*sets->list));
	sets->slots = array_new(n_slots, sizeof(*sets->slots));
	return sets->list && sets->slots ? 0 : -ENOMEM;
}

void sets_fini(struct sets *sets)
{
	free(sets->list);
	free(sets->slots);
	*sets = (struct sets){ 0 };
}

uint32_t sets_id(struct sets *sets, const uint32_t *items, uint32_t n)
{
	size_t bytes = n * sizeof(*items);
	size_t slot = hash64(items, bytes, 0) & (sets->n_slots - 1);

	for (; sets->slots[slot]; slot = (slot + 1) & (sets->n_slots - 1)) {
		const struct set *set = &sets->list[sets->slots[slot] - 1];

		if (set->n == n && (set->items == items || !memcmp(set->items, items, bytes)))
			return sets->slots[slot] - 1;
	}
	CHECK(sets->n < sets->n_max);
	sets->list[sets->n] = (struct set){ items, n };
	sets->slots[slot] = (uint32_t)++sets->n;
	return (uint32_t)(sets->n - 1);
}
