/*
 * bundle/version.h: a version in memory: what root and segments say. Immutable once opened or published; counted.
 *
 * Items are sorted by name (byte order). An item's pieces are boxes; a piece's bytes are the blocks [first_block, first_block +
 * n_blocks) one after the other. A hole (all zero) is a block entry with flag BLOCK_HOLE and no place in a pack.
 */
#pragma once

#include "base/box.h"
#include "base/bytes.h"
#include "base/hash.h"
#include "base/list.h"

#define ITEMS_MAX      1000000 /* in one version */
#define ITEM_NAME_MAX  1024    /* bytes of UTF-8 */
#define DTYPE_NAME_MAX 32      /* bytes */

struct version_piece {
	struct box box;
	uint64_t first_block;
	uint32_t n_blocks;
};

struct version_item {
	struct view name, dtype; /* into names */
	uint32_t element_bits;
	struct box whole;	     /* start 0, count = shape */
	uint64_t bytes, saved_bytes; /* of the whole; of its pieces: what no rank offered is the difference */
	uint32_t first_piece, n_pieces;
};

enum { BLOCK_HOLE = 1 };
struct version_block {
	struct digest digest;
	uint64_t pack_offset;
	uint32_t pack; /* into packs; UINT32_MAX for holes */
	uint32_t bytes, crc;
	uint32_t flags;
};

struct version_pack {
	char *key;
	uint64_t bytes;
	char *node; /* that wrote it */
};

struct version {
	uint32_t magic; /* VERSION_MAGIC */
	uint32_t refs;
	char *tenant, *bundle;
	uint64_t number, step, save_id, epoch, incarnation, parent;
	uint32_t generation;
	struct buf attributes; /* encoded elem_attribute list */
	uint32_t n_attributes;
	uint64_t bytes, stored_bytes; /* of all items; of all packs */
	struct buf names;	      /* bytes that the items' views point into: fill before taking views */
	struct version_item *items;
	struct version_piece *pieces;
	struct version_block *blocks;
	struct version_pack *packs;
	size_t n_items, n_pieces, n_blocks, n_packs;
	bool unindexed; /* when it was last opened the index did not answer: what it would have said is not known */

	struct list cached; /* open.c's */
	uint64_t leased_ns; /* lease.c's: when this node's lease on it was last asked for; 0: there is none */
	uint64_t lease;	    /* and its epoch */
	bool leasing;	    /* one of its requests is under way */

	uint64_t segments_ns, root_ns, index_ns; /* slot_publish(): when each was there; 0: not yet */
};
#define VERSION_MAGIC 0x73725646

struct version *version_new(void); /* one reference; NULL: no memory */
struct version *version_get(struct version *version);
void version_put(struct version *version);						  /* accepts NULL */
const struct version_item *version_find(const struct version *version, struct view name); /* NULL: not there */
