/*
 * store/store.h: digest -> bytes, pinned. Finds a block in the pool, at a peer or in the backend, and verifies it on the way.
 *
 * Its one verb is lookup-and-pin. Requests for a block that is already on its way share that transfer. Whatever comes from
 * a peer or the backend is checked against its digest before anybody sees it: a doubtful block is tried at the next source, and
 * is -ERR_EDAMAGED when none is left. Waits in fibers, always with a deadline.
 */
#pragma once

#include "cluster/cluster.h"
#include "pool/pool.h"

struct store;

/* Of one tenant: @pool is that one's alone, and so is what peers are given from it. */
int store_new(struct env *env, const char *tenant, struct pool *pool, struct cluster *cluster, struct backend *backend,
	      struct store **ret);
const char *store_tenant(const struct store *store);
void store_free(
	struct store
		*store); /* accepts NULL; after cluster_stop(), before cluster_free(); nobody waits in it any more */
struct pool *store_pool(struct store *store);

/* Where a block is: its identity, and its place in the backend. */
struct block_ref {
	struct digest digest;
	uint32_t bytes, crc;
	const char *key; /* of the pack; NULL: not in the backend (yet) */
	uint64_t pack_offset;
};

/*
 * The block, pinned, in the read arena if @readable (a copy in the capture arena is copied over, checked, and replaced), else
 * anywhere. Sources in order: pool; transfer under way; peer @node (may be NULL); backend. With @wait_ms the peer may wait for
 * a block that it is itself fetching. 0; -ERR_EDAMAGED, -ENOENT, -ETIMEDOUT, -ECANCELED, the backend's error: with the object's key
 * in the words.
 */
int store_get(struct store *store, const struct block_ref *ref, const char *node, uint32_t wait_ms, bool readable,
	      uint64_t deadline_ns, struct block **ret, struct error *e);

/*
 * Between these two calls, which nest, this node is going to fetch blocks that peers may have been told to get from here: they may
 * wait for what is not on its way yet. With the last end those who still wait are sent on to their next source.
 */
void store_expect_begin(struct store *store);
void store_expect_end(struct store *store);

/* A new block for @bytes, waiting for room. -ETIMEDOUT: there was none; -ERR_EPOOL: it can never fit. */
int store_block_new(struct store *store, enum pool_kind kind, uint32_t bytes, uint64_t deadline_ns, struct block **ret,
		    struct error *e);

/* What a save asks of one arena. */
struct room_ask {
	enum pool_kind kind;
	const uint32_t *bytes; /* sizes of its blocks, the largest first */
	size_t n;
	bool first; /* before all who wait: they may wait for the end of who asks, which has room already and needs this to end */
	/* Looked at from time to time: not true any more, and it ends with -ECANCELED. NULL: it is always wanted. */
	bool (*wanted)(const void *arg);
	const void *arg;
};
/* All of them or none, see pool_blocks_new(). What pool_room_of() says fits gets its room: while it waits at the head of its queue
 * nobody else takes any, until all that was taken before has been given back. -ETIMEDOUT, -ECANCELED; a past deadline: now or never. */
int store_blocks_new(struct store *store, const struct room_ask *ask, uint64_t deadline_ns, struct block **ret,
		     struct error *e);

struct store_stats {
	uint64_t hits, peer_fetches, backend_reads, backend_bytes, peer_bytes, damaged;
	uint64_t stalled; /* reads from the backend that took longer than their like */
	uint64_t
		asked_again; /* those of them that were asked a second time: as far as the budget and the pool's room went */
	uint64_t second_won; /* and the second one's bytes were the first right ones */
};
void store_stats(const struct store *store, struct store_stats *ret);
