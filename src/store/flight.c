/*
 * store/flight.c: one block on its way, whoever wants it.
 *
 * Bytes go straight from their source into a new block of the read arena; there they are summed and hashed, on a worker, and only
 * then does the pool know the block. What does not match is tried at the next source.
 */
#include "store/inside.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/counter.h"

static struct view key_of(const struct digest *digest)
{
	return view_of(digest->b, sizeof(digest->b));
}

static uint64_t later(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* ---- life ---- */

static void flight_unmap(struct flight *flight)
{
	if (!flight->mapped)
		return;
	CHECK(map_remove(&flight->store->flights, key_of(&flight->digest)) == flight);
	flight->mapped = false;
}

int flight_join(struct store *store, const struct digest *digest, struct flight **ret)
{
	struct flight *flight = map_get(&store->flights, key_of(digest));

	if (!flight) {
		flight = calloc(1, sizeof(*flight));
		int r = flight ? map_put(&store->flights, key_of(digest), flight) : -ENOMEM;
		if (r) {
			free(flight);
			return r;
		}
		flight->store = store;
		flight->digest = *digest;
		flight->mapped = true;
		nursery_init(&flight->nursery, store->env->loop);
		waitplace_init(&flight->place);
	}
	flight->n_waiters++;
	*ret = flight;
	return 0;
}

void flight_leave(struct flight *flight)
{
	if (--flight->n_waiters)
		return;
	flight_unmap(flight); /* nobody joins what is being ended */
	nursery_fini(&flight->nursery);
	block_unpin(flight->block);
	block_unpin(flight->captured);
	for (unsigned i = 0; i < flight->n_sources; i++)
		free(flight->sources[i].name);
	free(flight);
}

void flight_give_up(struct flight *flight)
{
	CHECK(!flight->started);
	flight->ended = true;
	flight->result = error_set(&flight->error, -ENOENT, "nobody on this node fetches the block any more");
	flight_unmap(flight);
	wake_all(&flight->place);
}

int flight_wait(struct flight *flight, uint64_t deadline_ns, struct block **ret, struct error *e)
{
	while (!flight->ended) {
		int r = wait_at(&flight->place, deadline_ns);
		if (r && !flight->ended)
			return error_set(e, r, "a block of %" PRIu32 " bytes: %s", flight->bytes,
					 r == -ETIMEDOUT ? "it has not come in time" : "cancelled");
	}
	if (flight->result)
		return error_set(e, flight->result, "%s", flight->error.text);
	block_pin(flight->block);
	*ret = flight->block;
	return 0;
}

/* ---- checking ---- */

int flight_judge(struct flight *flight, const struct digest *digest, uint32_t crc, const char *where, struct error *e)
{
	bool right = digest_equal(digest, &flight->digest);

	if (right && crc == flight->crc) {
		count(COUNT_BLOCKS_VERIFIED, 1);
		return 0;
	}
	flight_count_damaged(flight);
	return error_set(e, -ERR_EDAMAGED, "%s: a block of %" PRIu32 " bytes does not match its %s", where,
			 flight->bytes, right ? "checksum" : "digest");
}

void flight_count_damaged(struct flight *flight)
{
	flight->store->stats.damaged++;
	count(COUNT_BLOCKS_REFUSED, 1);
}

struct checking {
	uint8_t *at;
	const uint8_t *from; /* copied to @at first; or NULL */
	uint32_t bytes, crc;
	struct digest digest;
};

static int check_run(void *arg)
{
	struct checking *c = arg;
	struct hasher hasher;

	hasher_init(&hasher);
	if (c->from)
		hasher_copy(&hasher, c->at, c->from, c->bytes);
	else
		hasher_update(&hasher, c->at, c->bytes);
	c->crc = hasher.crc;
	c->digest = hasher_digest(&hasher);
	return 0;
}

/* The block's bytes, taken from @from if that is not NULL, on a worker. */
static int check(struct flight *flight, struct block *block, const uint8_t *from, const char *where, struct error *e)
{
	struct checking c = { .at = block->ptr, .from = from, .bytes = flight->bytes };
	int r = env_call(flight->store->env, check_run, &c);

	if (r)
		return error_set(e, r, "%s: a block could not be checked: %s", where, error_meaning(r));
	return flight_judge(flight, &c.digest, c.crc, where, e);
}

/* ---- sources ---- */

/* The copy that a rank may have written to since: what is copied over is checked there. */
static int from_captured(struct flight *flight, struct block *block, struct error *e)
{
	struct block *captured = flight->captured;
	int r = check(flight, block, captured->ptr, "the capture arena", e);

	/* doubtful; or a copy too many, unless a save has it as its own: that must be found until it is durable */
	if (r == -ERR_EDAMAGED || (!r && captured->clean && captured->pins == 1))
		pool_block_forget(captured);
	return r;
}

static int from_peer(struct flight *flight, const struct source *source, struct block *block, uint64_t deadline_ns,
		     struct error *e)
{
	struct store *store = flight->store;
	uint32_t crc;
	int r = cluster_fetch(store->cluster, source->name, store->tenant, &flight->digest, flight->bytes,
			      source->wait_ms, block->ptr, &crc, deadline_ns, e);

	if (r == -ERR_EDAMAGED)
		flight_count_damaged(flight);
	if (r)
		return r;
	store->stats.peer_fetches++;
	store->stats.peer_bytes += flight->bytes;
	count(COUNT_READ_PEER_BLOCKS, 1);
	count(COUNT_READ_PEER_BYTES, flight->bytes);
	return check(flight, block, NULL, source->name, e);
}

/* What may come next keeps half of the time. */
static uint64_t share_of_time(const struct flight *flight, unsigned i)
{
	uint64_t now = env_now(flight->store->env);

	if (i + 1 >= flight->n_sources || flight->deadline_ns <= now)
		return flight->deadline_ns;
	return now + (flight->deadline_ns - now) / 2;
}

static bool is_over(const struct flight *flight)
{
	return fiber_cancelled() || env_now(flight->store->env) >= flight->deadline_ns;
}

/* What writes to the block it is given has ended when this returns, or the block is not given back. */
static int from_source(struct flight *flight, unsigned i, struct block **block, struct error *e)
{
	const struct source *source = &flight->sources[i];
	uint64_t deadline_ns = share_of_time(flight, i);
	int r = *block ? 0 : store_block_new(flight->store, POOL_READ, flight->bytes, deadline_ns, block, e);

	if (r)
		return r;
	if (source->kind == SOURCE_PEER)
		return from_peer(flight, source, *block, deadline_ns, e);
	return flight_read(flight, source, block, deadline_ns, e);
}

/* Tries the sources in turn, those too that are added meanwhile. */
static int fill(struct flight *flight, struct block **block, struct error *e)
{
	int r = flight->captured ?
			from_captured(flight, *block, e) :
			error_set(e, -ENOENT, "the block is not in this node's pool, and no source is known");

	for (unsigned i = 0; r && i < flight->n_sources; i++) {
		if (is_over(flight))
			return error_set(e, fiber_cancelled() ? -ECANCELED : -ETIMEDOUT,
					 "%s: no time is left to fetch a block from it", flight->sources[i].name);
		r = from_source(flight, i, block, e);
	}
	return r;
}

/* ---- the flight's fiber ---- */

/* The pool's block with these bytes: @block, or one that came by another way meanwhile. Takes the pin over. */
static int publish(struct flight *flight, struct block *block, struct block **ret, struct error *e)
{
	int r = pool_block_index(block, &flight->digest, flight->crc);

	if (r < 0) {
		block_unpin(block);
		return error_set(e, r, "no memory to index a block");
	}
	if (r == POOL_KNOWN) {
		block_unpin(block);
		block = pool_find(flight->store->pool, &flight->digest);
		CHECK(block && block->kind == POOL_READ);
	}
	pool_block_set_clean(block); /* who must not lose it has it pinned */
	*ret = block;
	return 0;
}

static int attempt(struct flight *flight, struct block **ret, struct error *e)
{
	struct block *block;
	int r = store_block_new(flight->store, POOL_READ, flight->bytes, flight->deadline_ns, &block, e);

	if (r)
		return r;
	r = fill(flight, &block, e);
	if (r) {
		block_unpin(block);
		return r;
	}
	return publish(flight, block, ret, e);
}

static int flight_run(void *arg)
{
	struct flight *flight = arg;
	struct block *block = NULL;
	int r;

	do /* somebody with more time may have come while the time ran out */
		r = attempt(flight, &block, &flight->error);
	while (r == -ETIMEDOUT && !is_over(flight));

	flight->block = block;
	flight->result = r;
	flight->ended = true;
	flight_unmap(flight);
	wake_all(&flight->place);
	return 0;
}

/* ---- adding to a flight ---- */

static int source_add(struct flight *flight, enum source_kind kind, const char *name, uint64_t offset, uint32_t wait_ms)
{
	if (!name)
		return 0;
	for (unsigned i = 0; i < flight->n_sources; i++) {
		const struct source *s = &flight->sources[i];

		if (s->kind == kind && s->offset == offset && !strcmp(s->name, name))
			return 0;
	}
	if (flight->n_sources == SOURCES_MAX)
		return 0;
	char *copy = strdup(name);
	if (!copy)
		return -ENOMEM;
	flight->sources[flight->n_sources++] = (struct source){ kind, copy, offset, wait_ms };
	return 0;
}

int flight_add(struct flight *flight, const struct block_ref *ref, const char *node, uint32_t wait_ms,
	       uint64_t deadline_ns, struct error *e)
{
	if (flight->started && (flight->bytes != ref->bytes || flight->crc != ref->crc))
		return error_set(e, -EINVAL,
				 "a block of %" PRIu32 " bytes is asked for with the digest of one of %" PRIu32,
				 ref->bytes, flight->bytes);
	if (node && !strcmp(node, cluster_node(flight->store->cluster)))
		node = NULL; /* the own pool has been looked at, and the flight would wait for itself */
	int r = source_add(flight, SOURCE_PEER, node, 0, wait_ms);
	if (!r)
		r = source_add(flight, SOURCE_BACKEND, ref->key, ref->pack_offset, 0);
	if (r)
		return error_set(e, r, "no memory to fetch a block");
	flight->deadline_ns = later(flight->deadline_ns, deadline_ns);
	if (flight->started)
		return 0;

	flight->bytes = ref->bytes;
	flight->crc = ref->crc;
	r = fiber_start(&flight->nursery, "flight", flight_run, flight);
	if (r)
		return error_set(e, r, "a block cannot be fetched: %s", error_meaning(r));
	flight->started = true;
	return 0;
}
