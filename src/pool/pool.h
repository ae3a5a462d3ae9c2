/*
 * pool/pool.h: a node's DRAM tier (T1): blocks in two sealed, pre-faulted arenas, counted per tenant against a fixed budget.
 *
 * The *capture* arena is writable by the ranks of its tenant (they copy into spans that they were granted); the *read* arena is
 * mapped read-only by clients and filled by the daemon alone (fetched blocks, copies from peers). A block is bytes in one
 * of them. Its life: new (one pin, dirty) -> indexed under its digest once that is known and checked -> clean once durable.
 * The last unpin frees a dirty block, and keeps an indexed, clean one as cache; the oldest of those leave when room is needed.
 * A full pool is an ordinary outcome: POOL_FULL.
 *
 * Nothing here waits or does I/O; all calls on the loop's thread. Blocks of 64 KiB and more take whole 4 KiB pages; smaller ones
 * share slabs of 256 KiB at 64-byte granularity. Room is found by two-level segregated fit (Masmano et al. 2004), metadata
 * outside of the arenas, since nothing in shared memory is parsed.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/list.h"
#include "env/env.h"

#define POOL_ARENA_MIN_BYTES (1u << 20)
#define POOL_ARENA_MAX_BYTES (UINT64_C(1) << 41)
#define POOL_BLOCK_MAX_BYTES (8u << 20)

enum pool_kind { POOL_CAPTURE, POOL_READ, POOL_KINDS };

/* Outcomes beside 0 and negative errno. */
enum {
	POOL_FULL = 1,	/* no room now, even without the clean cache; see pool_on_room() */
	POOL_KNOWN = 2, /* another block of the same kind has that digest already */
};

struct pool;

struct block {
	uint32_t magic; /* BLOCK_MAGIC */
	struct pool *pool;
	enum pool_kind kind;
	uint32_t bytes; /* 1..8 MiB */
	uint8_t *ptr;
	uint64_t offset;      /* in the arena of its kind */
	uint32_t crc;	      /* CRC32C, valid once indexed */
	struct digest digest; /* valid once indexed */
	bool indexed, clean;
	uint32_t pins;
	struct list lru; /* while clean and unpinned */
	uint32_t place;	 /* the allocator's */
};
#define BLOCK_MAGIC 0x6b6c4246

int pool_new(struct env *env, uint64_t capture_bytes, uint64_t read_bytes, struct pool **ret, struct error *e);
void pool_free(struct pool *pool); /* accepts NULL; no block may be pinned */
const struct arena *pool_arena(const struct pool *pool, enum pool_kind kind);

/* A new block with one pin; evicts as much clean cache of that kind as it takes. 0, POOL_FULL, -ENOMEM, -EINVAL (size). */
int pool_block_new(struct pool *pool, enum pool_kind kind, uint32_t bytes, struct block **ret);
/*
 * As many blocks as there are sizes, each with one pin, or none; best with the largest first. What pool_room_of() says of the same
 * sizes in the same order decides: if it is not more than the arena has, they get their room once nothing in the arena is pinned,
 * however fragmented it was before.
 */
int pool_blocks_new(struct pool *pool, enum pool_kind kind, const uint32_t *bytes, size_t n, struct block **ret);
/* What blocks of these sizes take of an arena that has nothing else: whole pages and whole slabs. 0, -ENOMEM, -EINVAL (a size). */
int pool_room_of(const uint32_t *bytes, size_t n, uint64_t *ret_room_bytes);
/* The block has these checked contents; found by pool_find() from now on. 0, or
 * POOL_KNOWN or -ENOMEM (@block is as before). Once in a block's life. */
int pool_block_index(struct block *block, const struct digest *digest, uint32_t crc);
void pool_block_set_clean(struct block *block); /* it is durable (in the store): may be evicted when unpinned */
/* The indexed block with that digest and one pin more; NULL. Where both kinds have it, the read arena's is given. */
struct block *pool_find(struct pool *pool, const struct digest *digest);
void block_pin(struct block *block);
void block_unpin(struct block *block); /* accepts NULL; may free it */
/* Takes an unpinned or last-pinned block out of the index, so that the next reader fetches it anew: for doubtful bytes. */
void pool_block_forget(struct block *block);

/* @room is called, later on the loop, whenever room may have come free. One listener (store/); NULL: nobody any more. */
void pool_on_room(struct pool *pool, void (*room)(void *arg), void *arg);

struct pool_stats {
	/* Of room, so blocks count rounded up to pages or 64 bytes; what neither counts is free, or the rest of a slab. */
	uint64_t bytes[POOL_KINDS], used_bytes[POOL_KINDS]; /* used: dirty or pinned */
	uint64_t clean_bytes[POOL_KINDS];		    /* cache that could leave */
	uint64_t blocks, evictions;
};
void pool_stats(const struct pool *pool, struct pool_stats *ret);
