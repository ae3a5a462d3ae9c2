/*
 * bundle/scan.h: one look at everything that lies under a bundle; for collect.c.
 */
#pragma once

#include "base/map.h"
#include "bundle/inside.h"

#define SCAN_LIVE_MAX	 1000000u /* packs and segments of a bundle that live: they are in memory while it is scanned */
#define SCAN_NUMBERS_MAX (1u << 22) /* of a bundle, with a slot or a root: likewise */

/* How the save that wrote an object has ended. */
enum ended { ENDED_NOT, ENDED_BURNED, ENDED_DELETED, ENDED_PUBLISHED };

struct scan {
	struct bundles *bundles;
	const struct place *place;
	uint64_t deadline_ns;
	struct error *e;
	void (*unclear)(void *arg, const char *key); /* may be NULL */
	void *arg;

	/* what was found */
	struct row_bundle row; /* as it was before; changes: when all that is named was known */
	struct buf dead;       /* objects that may go: a byte enum ended, then the key and its 0 */
	uint64_t n_dead, n_unclear, n_missing, n_burned;
	char missing[KEY_BYTES]; /* one of the packs that a root names and that are not there */
	char absent[KEY_BYTES];	 /* root of a version that the index has, and no list does; "": none */
	uint64_t lowest;	 /* number that lives or is open: below it are tombstones alone */
	uint64_t *folded;	 /* numbers with a tombstone, ascending */
	size_t n_folded;
	uint64_t floor_found; /* the highest floor in the store */

	/* on the way */
	struct map live, saves, parents, roots; /* roots: numbers under whose root key something lies */
	uint32_t numbers_max;			/* SCAN_NUMBERS_MAX; tests take less. No map but `live` has more */
	struct buf segments;			/* of the number at hand */
	size_t prefix;
	uint64_t number;
	bool has_root, has_slot, has_row;
	bool moved, behind; /* behind: it has changed since the lists */
};

void scan_init(struct scan *scan, struct bundles *bundles, const struct place *place, uint64_t deadline_ns,
	       struct error *e);
void scan_fini(struct scan *scan);
/* 0; SCAN_MOVED: the bundle changes too fast, or a list lacks something, SCAN_NO_ROW: the index has no such bundle: nothing may be done by what was found; negative. */
enum { SCAN_MOVED = 1, SCAN_NO_ROW = 2 };
int scan_run(struct scan *scan);
