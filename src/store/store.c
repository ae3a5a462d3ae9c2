#include "store/inside.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/counter.h"

static void leave(struct flight **flight)
{
	if (*flight)
		flight_leave(*flight);
}

/* ---- the one verb ---- */

static int ref_check(const struct block_ref *ref, struct error *e)
{
	if (ref->bytes && ref->bytes <= POOL_BLOCK_MAX_BYTES)
		return 0;
	return error_set(e, -EINVAL, "a block of %" PRIu32 " bytes: it has 1 to %u", ref->bytes, POOL_BLOCK_MAX_BYTES);
}

/* 0: it is there, and it is what is wanted. 1: it must be fetched, or copied from *ret, which is then pinned, to where it is. */
static int look(struct store *store, const struct block_ref *ref, bool readable, struct block **ret, struct error *e)
{
	struct block *block = pool_find(store->pool, &ref->digest);

	*ret = block;
	if (!block)
		return 1;
	if (block->bytes != ref->bytes) {
		uint32_t bytes = block->bytes;

		block_unpin(block);
		return error_set(e, -EINVAL,
				 "a block of %" PRIu32 " bytes is asked for with the digest of one of %" PRIu32,
				 ref->bytes, bytes);
	}
	if (readable && block->kind != POOL_READ)
		return 1;
	store->stats.hits++;
	count(COUNT_READ_POOL_BLOCKS, 1);
	count(COUNT_READ_POOL_BYTES, ref->bytes);
	return 0;
}

int store_get(struct store *store, const struct block_ref *ref, const char *node, uint32_t wait_ms, bool readable,
	      uint64_t deadline_ns, struct block **ret, struct error *e)
{
	struct block *block = NULL;

	CHECK_MAGIC(store, STORE_MAGIC);
	int r = ref_check(ref, e);
	if (!r)
		r = look(store, ref, readable, &block, e);
	if (!r)
		*ret = block;
	if (r <= 0)
		return r;

	_cleanup_(leave) struct flight *flight = NULL;
	r = flight_join(store, &ref->digest, &flight);
	if (r) {
		block_unpin(block);
		return error_set(e, r, "no memory to fetch a block");
	}
	if (!flight->captured)
		flight->captured = block;
	else
		block_unpin(block);
	r = flight_add(flight, ref, node, wait_ms, deadline_ns, e);
	return r ? r : flight_wait(flight, deadline_ns, ret, e);
}

/* For peers. With @wait_ms they wait for a block that is on its way, or that this node has yet to begin with. */
static int find_for_peer(void *arg, const struct digest *digest, uint32_t wait_ms, struct block **ret)
{
	struct store *store = arg;
	struct block *block = pool_find(store->pool, digest);
	_cleanup_(leave) struct flight *flight = NULL;

	if (block) {
		*ret = block;
		return 0;
	}
	if (!wait_ms || (!store->n_expecting && !map_get(&store->flights, view_of(digest->b, sizeof(digest->b)))))
		return -ENOENT;
	int r = flight_join(store, digest, &flight);
	if (!r)
		r = flight_wait(flight, env_in_ms(store->env, wait_ms), ret, NULL);
	return r == -ECANCELED || r == -ENOMEM || !r ? r : -ENOENT;
}

void store_expect_begin(struct store *store)
{
	CHECK_MAGIC(store, STORE_MAGIC);
	store->n_expecting++;
}

void store_expect_end(struct store *store)
{
	CHECK_MAGIC(store, STORE_MAGIC);
	CHECK(store->n_expecting);
	if (--store->n_expecting)
		return;
	for (struct map_slot *slot = map_first(&store->flights), *next; slot; slot = next) {
		struct flight *flight = map_value(slot);

		next = map_next(slot);
		if (!flight->started)
			flight_give_up(flight);
	}
}

/* ---- life ---- */

int store_new(struct env *env, const char *tenant, struct pool *pool, struct cluster *cluster, struct backend *backend,
	      struct store **ret)
{
	struct store *store = calloc(1, sizeof(*store));

	CHECK_MAGIC(env, ENV_MAGIC);
	if (!store)
		return -ENOMEM;
	*store = (struct store){
		.magic = STORE_MAGIC,
		.env = env,
		.tenant = strdup(tenant),
		.pool = pool,
		.cluster = cluster,
		.backend = backend,
	};
	if (!store->tenant) {
		free(store);
		return -ENOMEM;
	}
	map_init(&store->flights);
	patience_init(&store->patience);
	for (int kind = 0; kind < POOL_KINDS; kind++)
		list_init(&store->waiting[kind]);
	pool_on_room(pool, room_came, store);
	store->source = (struct block_source){ .tenant = store->tenant, .find = find_for_peer, .arg = store };
	cluster_serve_blocks(cluster, &store->source);
	*ret = store;
	return 0;
}

void store_free(struct store *store)
{
	if (!store)
		return;
	CHECK_MAGIC(store, STORE_MAGIC);
	CHECK(!store->flights.n);
	for (int kind = 0; kind < POOL_KINDS; kind++)
		CHECK(list_empty(&store->waiting[kind]));
	pool_on_room(store->pool, NULL, NULL);
	cluster_unserve_blocks(&store->source);
	map_fini(&store->flights);
	store->magic = 0;
	free(store->tenant);
	free(store);
}

struct pool *store_pool(struct store *store)
{
	CHECK_MAGIC(store, STORE_MAGIC);
	return store->pool;
}

void store_stats(const struct store *store, struct store_stats *ret)
{
	CHECK_MAGIC(store, STORE_MAGIC);
	*ret = store->stats;
}

const char *store_tenant(const struct store *store)
{
	CHECK_MAGIC(store, STORE_MAGIC);
	return store->tenant;
}
