/*
 * group/catalog.h: what all ranks of a group offer, merged: items by name, and the unique boxes of each. Pure.
 *
 * Equal boxes of an item from several ranks are replicas: one *unique*. Boxes that overlap without being equal, and items whose
 * dtype or shape differ between ranks, are refused in words that name both ranks. Built from the ranks' lists in rising order
 * of ranks, so equal offers give equal catalogs. Cost: n log n in boxes.
 */
#pragma once

#include "base/box.h"
#include "base/bytes.h"
#include "base/error.h"
#include "plan/save.h"
#include "wire/message.h"

struct catalog_item {
	struct view name, dtype; /* into the ranks' lists */
	uint32_t element_bits, flags;
	uint32_t rank; /* that named it first */
	struct box whole;
	uint32_t first_unique, n_uniques; /* after catalog_finish(): into uniques */
};

struct catalog_unique {
	struct box box;
	uint32_t item;
	uint64_t bytes;
	uint32_t first_offer, n_offers; /* into offers */
};

/* One rank's offer of a unique: which of its items it is. */
struct catalog_offer {
	uint32_t rank, item; /* item: index in the rank's list */
};

struct catalog {
	struct catalog_item *items;	/* sorted by name once finished */
	struct catalog_unique *uniques; /* by item, then box */
	struct catalog_offer *offers;
	size_t n_items, n_uniques, n_offers;
	uint64_t offered_bytes, unique_bytes;
	uint64_t steps;		     /* that catalog_finish() took to compare boxes */
	struct catalog_build *build; /* NULL once finished */
};

#define CATALOG_ITEMS_MAX 1000000      /* in one save */
#define CATALOG_BOXES_MAX 16777216     /* offers of all ranks together */
#define CATALOG_STEPS_MAX (1ull << 32) /* some ten seconds of a worker; a grid of so many boxes takes a half */

int catalog_begin(struct catalog *catalog);
/* Takes in the list of @rank; ranks come in rising order. The bytes of @items must live as long as the catalog. */
int catalog_add(struct catalog *catalog, uint32_t rank, struct list_view items, struct error *e);
/* Sorts, and refuses overlaps. */
int catalog_finish(struct catalog *catalog, struct error *e);
void catalog_fini(struct catalog *catalog); /* accepts zeroed */
