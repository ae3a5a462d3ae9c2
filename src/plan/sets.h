/*
 * plan/sets.h: numbers lists of numbers: equal lists get the same id, ids count from 0 in order of first appearance. So
 * 10^6 tensors that are held by the same nodes become one class, and no result depends on a hash value.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct set {
	const uint32_t *items; /* borrowed */
	uint32_t n;
};

struct sets {
	struct set *list;
	size_t n, n_max;
	uint32_t *slots; /* open addressing: id + 1, or 0 */
	size_t n_slots;	 /* a power of two, at least twice n_max */
};

/* Room for @n_max different lists. 0 or -ENOMEM. */
int sets_init(struct sets *sets, size_t n_max);
void sets_fini(struct sets *sets); /* accepts zeroed */
/* The id of @items, which must outlive @sets. A new one equals the old sets->n. */
uint32_t sets_id(struct sets *sets, const uint32_t *items, uint32_t n);
