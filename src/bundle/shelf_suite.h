/*
 * bundle/shelf_suite.h: versions to test with, on cluster/bed_suite.h's small cluster.
 *
 * A version here is made from a number, its seed: four items (a scalar array of 40 bytes, an empty one, a matrix in two pieces of which
 * one has two blocks, and zeros), their bytes in two packs. Its steps of publication can be taken apart.
 */
#pragma once

#include "bundle/inside.h"
#include "cluster/bed_suite.h"

#define SHELF_BLOCKS 5 /* of a version, one of them a hole */
#define SHELF_BUNDLE "ckpt/a b"

struct shelf {
	struct bed *bed;
	struct bundles *bundles;
};
struct shelf shelf_open(struct bed *bed, int node);
void shelf_close(struct shelf *shelf); /* also a _cleanup_ */

/* A save under way. Every step CHECKs that it went well. */
struct save {
	struct shelf *shelf;
	struct slot slot;
	struct version *version;
	struct block *blocks[SHELF_BLOCKS];
	struct segments segments;
	struct place place;
};
void save_begin(struct save *save, struct shelf *shelf, const char *bundle, uint64_t seed); /* the slot */
void save_begin_child(struct save *save, struct shelf *shelf, const char *bundle, uint64_t seed, uint64_t parent);
void save_begin_fenced(struct save *save, struct shelf *shelf, const char *bundle, uint64_t seed,
		       const struct fence *fence); /* under a group's lease */
void save_packs(struct save *save);
void save_segments(struct save *save);
void save_root(struct save *save);
void save_fini(struct save *save);

/* All of it. Returns the number. */
uint64_t shelf_save(struct shelf *shelf, const char *bundle, uint64_t seed);
/* Opens @spec, reads each block from the store and compares with @seed's bytes; the result of bundle_open(). */
int shelf_compare(struct shelf *shelf, const char *bundle, const char *spec, uint64_t seed);

/* What the index says of every bundle, version and label, as text. */
void shelf_listing(struct shelf *shelf, struct buf *ret);

/* The object in the store, to read and to spoil: a descriptor. */
int shelf_open_object(struct shelf *shelf, const char *key);
/* One bit of it, so that it surely is another byte. */
void shelf_flip(struct shelf *shelf, const char *key, off_t at, unsigned bit);

/* A test: @f(shelf on node 0, shelf on node 1, words) in a fiber, on a cluster of its own. */
typedef void (*shelf_story)(struct shelf *shelf, struct shelf *other, struct error *e);
int shelf_setup(void **state);
void shelf_play(void **state);
#define SHELF_STORY(f)                                       \
	{                                                    \
#f, shelf_play, shelf_setup, bed_teardown, f \
	}

static inline struct view tenant(void)
{
	return view_str("local");
}
