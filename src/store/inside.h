/*
 * store/inside.h: the store as its own files share it; nobody else includes it.
 */
#pragma once

#include "base/list.h"
#include "base/map.h"
#include "env/fiber.h"
#include "store/patience.h"
#include "store/store.h"

#define STORE_MAGIC UINT32_C(0x726f7453)
#define SOURCES_MAX 8 /* of one flight; what more requests name is not tried */

enum source_kind { SOURCE_PEER, SOURCE_BACKEND };

struct source {
	enum source_kind kind;
	char *name; /* node, or key */
	uint64_t offset;
	uint32_t wait_ms;
};

/*
 * One block on its way into the read arena, for all who want it: a fiber of its own, so that who wanted it first may leave. It has
 * ended when its fiber has; it lives while somebody waits for it. A *wish* is a flight that has no fiber yet: a peer waits for a
 * block that this node has not begun to fetch.
 */
struct flight {
	struct store *store;
	struct digest digest;
	uint32_t bytes, crc;	/* 0: a wish */
	struct block *captured; /* the capture arena's copy, pinned, or NULL */
	struct source sources[SOURCES_MAX];
	unsigned n_sources;
	uint64_t deadline_ns; /* the latest of those who wait */
	unsigned n_waiters;
	bool mapped, started, ended;
	struct nursery nursery;
	struct waitplace place;
	int result;
	struct error error;
	struct block *block; /* once it ended well: pinned */
};

/* The flight for @digest, joined; made if there is none. 0, -ENOMEM. */
int flight_join(struct store *store, const struct digest *digest, struct flight **ret);
void flight_leave(struct flight *flight); /* the last one ends it: waits, shielded, until it touches nothing any more */
/* What a request adds; starts the flight if it has not been. */
int flight_add(struct flight *flight, const struct block_ref *ref, const char *node, uint32_t wait_ms,
	       uint64_t deadline_ns, struct error *e);
void flight_give_up(struct flight *flight); /* a wish that nobody here is going to fulfil: -ENOENT */
/* 0: bytes with this digest and this sum are the block's. -ERR_EDAMAGED: they are not; it is counted. */
int flight_judge(struct flight *flight, const struct digest *digest, uint32_t crc, const char *where, struct error *e);
void flight_count_damaged(struct flight *flight);
/* From the backend, into *block or another one. On failure *block is NULL: something may still write to what it was. */
int flight_read(struct flight *flight, const struct source *source, struct block **block, uint64_t deadline_ns,
		struct error *e);
/* Waits for its end: 0 and the block, pinned; its failure; -ETIMEDOUT, -ECANCELED. */
int flight_wait(struct flight *flight, uint64_t deadline_ns, struct block **ret, struct error *e);

struct store {
	uint32_t magic;
	struct env *env;
	char *tenant;
	struct pool *pool;
	struct block_source source; /* for peers */
	struct cluster *cluster;
	struct backend *backend;
	struct map flights;		 /* by digest */
	struct list waiting[POOL_KINDS]; /* for room, in order of their coming */
	struct store_stats stats;
	struct patience patience; /* with the backend */
	unsigned n_expecting;	  /* store_expect_begin() */
};

void room_came(void *arg); /* for pool_on_room() */
