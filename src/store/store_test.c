#include "store/store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "cluster/bed_suite.h"

#define KIB   1024u
#define MIB   (1024u * KIB)
#define BYTES (300 * KIB) /* of a block, where its size does not matter */

static struct store *stores[BED_NODES];

static int setup(void **state)
{
	int r = bed_setup(state);
	struct bed *bed = *state;

	for (int i = 0; !r && i < BED_NODES; i++)
		r = store_new(bed->env, "t", bed->nodes[i].pool, bed->nodes[i].cluster, bed->backend, &stores[i]);
	return r;
}

static void stop(struct bed *bed, int i)
{
	if (!stores[i])
		return;
	cluster_stop(bed->nodes[i].cluster);
	store_free(stores[i]);
	stores[i] = NULL;
	EXPECT_INT(calls_drain(bed->backend, NULL, bed_deadline(bed)), 0);
	cluster_free(bed->nodes[i].cluster);
	pool_free(bed->nodes[i].pool);
	bed->nodes[i].cluster = NULL;
}

static int stop_story(struct bed *bed)
{
	for (int i = BED_NODES - 1; i >= 0; i--)
		stop(bed, i);
	return 0;
}

static int teardown(void **state)
{
	bed_run(state, stop_story);
	return bed_teardown(state);
}

static struct store_stats stats(int i)
{
	struct store_stats s;

	store_stats(stores[i], &s);
	return s;
}

static struct pool *pool(struct bed *bed, int i)
{
	return bed->nodes[i].pool;
}

/* What bytes of @seed are called. */
static struct block_ref ref_of(uint32_t bytes, uint64_t seed)
{
	uint8_t *p = malloc(bytes);

	EXPECT(p);
	bed_fill(p, bytes, seed);
	struct block_ref ref = { .digest = digest_of(p, bytes), .bytes = bytes, .crc = crc32c(0, p, bytes) };
	free(p);
	return ref;
}

/* An object with 100 bytes of something, then the block; @flip changes one byte of it. */
static void write_object(struct bed *bed, const char *key, struct block_ref *ref, uint64_t seed, bool flip)
{
	uint8_t *p = malloc(100 + ref->bytes);
	struct error e;

	EXPECT(p);
	bed_fill(p, 100, 99);
	bed_fill(p + 100, ref->bytes, seed);
	p[100 + ref->bytes / 2] ^= flip;
	EXPECT_CALL(backend_write(bed->backend, key, view_of(p, 100 + ref->bytes), true, bed_deadline(bed), &e), 0, &e);
	free(p);
	ref->key = key;
	ref->pack_offset = 100;
}

static void expect_bytes(const struct block *block, uint64_t seed)
{
	uint8_t *p = malloc(block->bytes);

	EXPECT(p);
	bed_fill(p, block->bytes, seed);
	EXPECT(!memcmp(p, block->ptr, block->bytes));
	free(p);
}

/* Gets the block at node @i and looks at it: the pin is given back. */
static void expect_get(struct bed *bed, int i, const struct block_ref *ref, const char *node, uint64_t seed)
{
	struct block *block;
	struct error e;

	EXPECT_CALL(store_get(stores[i], ref, node, 0, true, bed_deadline(bed), &block, &e), 0, &e);
	EXPECT_INT(block->kind, POOL_READ);
	expect_bytes(block, seed);
	block_unpin(block);
}

/* ---- sources ---- */

static int backend_story(struct bed *bed)
{
	const uint32_t sizes[] = { 1, 64, 65535, 65536, MIB + 1, 8 * MIB };

	for (uint64_t i = 0; i < ARRAY_LEN(sizes); i++) {
		struct block_ref ref = ref_of(sizes[i], i);
		char key[20];

		snprintf(key, sizeof(key), "pack-%d", (int)i);
		write_object(bed, key, &ref, i, false);
		expect_get(bed, 0, &ref, NULL, i);
		expect_get(bed, 0, &ref, NULL, i); /* from the cache */
	}
	EXPECT_INT(stats(0).backend_reads, ARRAY_LEN(sizes));
	EXPECT_INT(stats(0).hits, ARRAY_LEN(sizes));
	return 0;
}

static void a_block_comes_from_the_backend_once_and_stays_as_cache(void **state)
{
	bed_run(state, backend_story);
}

static int peer_story(struct bed *bed)
{
	const uint32_t sizes[] = { 1, 65535, MIB, 8 * MIB };

	for (uint64_t i = 0; i < ARRAY_LEN(sizes); i++) {
		struct block *block = bed_block(pool(bed, 1), i % 2 ? POOL_READ : POOL_CAPTURE, sizes[i], i);
		struct block_ref ref = { .digest = block->digest, .bytes = sizes[i], .crc = block->crc };

		expect_get(bed, 0, &ref, "n1", i);
		expect_get(bed, 0, &ref, "n1", i);
		expect_get(bed, 2, &ref, "n0", i); /* who got it can give it */
		block_unpin(block);
	}
	EXPECT_INT(stats(0).peer_fetches, ARRAY_LEN(sizes));
	EXPECT_INT(stats(0).hits, ARRAY_LEN(sizes));
	EXPECT_INT(stats(0).backend_reads, 0);
	return 0;
}

static void a_block_comes_from_the_peer_that_holds_it(void **state)
{
	bed_run(state, peer_story);
}

static int next_story(struct bed *bed)
{
	struct block_ref ref = ref_of(BYTES, 1);

	write_object(bed, "pack", &ref, 1, false);
	expect_get(bed, 0, &ref, "n1", 1); /* has not got it */
	ref = ref_of(BYTES, 2);
	write_object(bed, "pack2", &ref, 2, false);
	expect_get(bed, 0, &ref, "n9", 2); /* nobody */
	stop(bed, 2);
	ref = ref_of(BYTES, 3);
	write_object(bed, "pack3", &ref, 3, false);
	expect_get(bed, 0, &ref, "n2", 3); /* gone */
	EXPECT_INT(stats(0).backend_reads, 3);
	return 0;
}

static void what_the_peer_has_not_got_comes_from_the_backend(void **state)
{
	bed_run(state, next_story);
}

/* Another tenant of the same node has the very block: it is not this one's, neither from a peer nor here. */
static int tenants_story(struct bed *bed)
{
	struct block *block = bed_block(pool(bed, 1), POOL_READ, BYTES, 4), *none = NULL;
	struct block_ref ref = ref_of(BYTES, 4);
	struct pool *other_pool;
	struct store *other;
	static uint8_t span[BYTES]; /* too large for the stack of a fiber */
	uint32_t crc;
	struct error e;

	EXPECT_CALL(pool_new(bed->env, MIB, MIB, &other_pool, &e), 0, &e);
	EXPECT_INT(store_new(bed->env, "u", other_pool, bed->nodes[0].cluster, bed->backend, &other), 0);
	EXPECT_CALL(store_get(other, &ref, "n1", 0, true, bed_deadline(bed), &none, &e), -ENOENT, &e);
	EXPECT_CALL(cluster_fetch(bed->nodes[0].cluster, "n1", "u", &ref.digest, BYTES, 0, span, &crc,
				  bed_deadline(bed), &e),
		    -ENOENT, &e);
	expect_get(bed, 0, &ref, "n1", 4);
	EXPECT_CALL(store_get(other, &ref, NULL, 0, true, bed_deadline(bed), &none, &e), -ENOENT, &e);
	block_unpin(block);
	store_free(other);
	pool_free(other_pool);
	return 0;
}

static void what_another_tenant_has_is_nowhere(void **state)
{
	bed_run(state, tenants_story);
}

static int nowhere_story(struct bed *bed)
{
	struct block_ref ref = ref_of(BYTES, 1);
	struct block *block;
	struct error e;

	EXPECT_CALL(store_get(stores[0], &ref, NULL, 0, true, bed_deadline(bed), &block, &e), -ENOENT, &e);
	EXPECT_CALL(store_get(stores[0], &ref, "n1", 0, true, bed_deadline(bed), &block, &e), -ENOENT, &e);
	ref.key = "no/such/pack";
	EXPECT_CALL(store_get(stores[0], &ref, "n1", 0, true, bed_deadline(bed), &block, &e), -ENOENT, &e);
	EXPECT(strstr(e.text, "no/such/pack"));
	ref.bytes = 0;
	EXPECT_CALL(store_get(stores[0], &ref, NULL, 0, true, bed_deadline(bed), &block, &e), -EINVAL, &e);
	return 0;
}

static void a_block_that_is_nowhere_is_said_to_be(void **state)
{
	bed_run(state, nowhere_story);
}

/* ---- damage ---- */

static int damaged_peer_story(struct bed *bed)
{
	struct block_ref ref = ref_of(BYTES, 1);
	struct block *block = bed_block(pool(bed, 1), POOL_CAPTURE, BYTES, 1);

	block->ptr[7] ^= 1; /* a rank wrote to it after its capture */
	write_object(bed, "pack", &ref, 1, false);
	expect_get(bed, 0, &ref, "n1", 1);
	EXPECT_INT(stats(0).damaged, 1);
	EXPECT_INT(stats(0).backend_reads, 1);
	block_unpin(block);
	return 0;
}

static void a_damaged_copy_of_a_peer_is_counted_and_the_backend_asked(void **state)
{
	bed_run(state, damaged_peer_story);
}

static int damaged_pack_story(struct bed *bed)
{
	struct block_ref ref = ref_of(BYTES, 1);
	struct block *block;
	struct error e;

	write_object(bed, "t/x/pack", &ref, 1, true);
	EXPECT_CALL(store_get(stores[0], &ref, NULL, 0, true, bed_deadline(bed), &block, &e), -ERR_EDAMAGED, &e);
	EXPECT(strstr(e.text, "t/x/pack"));
	ref.pack_offset = 101; /* the object ends before the block does */
	EXPECT_CALL(store_get(stores[0], &ref, NULL, 0, true, bed_deadline(bed), &block, &e), -ERR_EDAMAGED, &e);
	EXPECT(strstr(e.text, "t/x/pack"));
	EXPECT_INT(stats(0).damaged, 2);
	EXPECT(!pool_find(pool(bed, 0), &ref.digest));
	struct pool_stats s;
	pool_stats(pool(bed, 0), &s);
	EXPECT_INT(s.blocks, 0);
	return 0;
}

static void a_damaged_pack_is_named_and_its_bytes_are_seen_by_nobody(void **state)
{
	bed_run(state, damaged_pack_story);
}

/* ---- captured copies ---- */

static int captured_story(struct bed *bed)
{
	struct block *captured = bed_block(pool(bed, 0), POOL_CAPTURE, BYTES, 1), *block;
	struct block_ref ref = { .digest = captured->digest, .bytes = BYTES, .crc = captured->crc };
	struct error e;

	EXPECT_CALL(store_get(stores[0], &ref, NULL, 0, false, bed_deadline(bed), &block, &e), 0, &e);
	EXPECT(block == captured);
	block_unpin(block);
	expect_get(bed, 0, &ref, NULL, 1); /* a copy for readers */
	block = pool_find(pool(bed, 0), &ref.digest);
	EXPECT_INT(block->kind, POOL_READ);
	EXPECT(captured->indexed); /* not durable yet: it stays */
	block_unpin(block);
	block_unpin(captured);
	return 0;
}

static void readers_get_a_copy_of_a_captured_block(void **state)
{
	bed_run(state, captured_story);
}

static int replaced_story(struct bed *bed)
{
	struct block *captured = bed_block(pool(bed, 0), POOL_CAPTURE, BYTES, 1);
	struct block_ref ref = { .digest = captured->digest, .bytes = BYTES, .crc = captured->crc };
	struct pool_stats s;

	pool_block_set_clean(captured);
	block_unpin(captured);
	expect_get(bed, 0, &ref, NULL, 1);
	pool_stats(pool(bed, 0), &s);
	EXPECT_INT(s.blocks, 1);
	EXPECT_INT(s.clean_bytes[POOL_CAPTURE], 0);
	return 0;
}

static int held_story(struct bed *bed)
{
	struct block *captured = bed_block(pool(bed, 0), POOL_CAPTURE, BYTES, 1);
	struct block_ref ref = { .digest = captured->digest, .bytes = BYTES, .crc = captured->crc };
	struct block *block;
	struct error e;

	pool_block_set_clean(
		captured); /* of a version that is durable; and the next save has captured the same bytes: its pin */
	EXPECT_CALL(store_get(stores[0], &ref, NULL, 0, true, bed_deadline(bed), &block, &e), 0, &e);
	EXPECT(block != captured && captured->indexed);
	block_unpin(block);
	block_unpin(captured);
	return 0;
}

static void the_copy_takes_the_place_of_a_durable_captured_block(void **state)
{
	bed_run(state, replaced_story);
}

static int doubtful_story(struct bed *bed)
{
	struct block *captured = bed_block(pool(bed, 0), POOL_CAPTURE, BYTES, 1), *block;
	struct block_ref ref = ref_of(BYTES, 1);
	struct error e;

	captured->ptr[0] ^= 1;
	EXPECT_CALL(store_get(stores[0], &ref, NULL, 0, true, bed_deadline(bed), &block, &e), -ERR_EDAMAGED, &e);
	EXPECT(!pool_find(pool(bed, 0), &ref.digest));
	write_object(bed, "pack", &ref, 1, false);
	expect_get(bed, 0, &ref, NULL, 1);
	block_unpin(captured);
	return 0;
}

static void a_durable_captured_block_that_a_save_holds_stays(void **state)
{
	bed_run(state, held_story);
}

static void a_captured_block_that_was_written_to_is_forgotten(void **state)
{
	bed_run(state, doubtful_story);
}

/* ---- many at once ---- */

struct getter {
	struct bed *bed;
	int at;
	struct block_ref ref;
	const char *node;
	uint32_t wait_ms;
	uint64_t deadline_ns;
	int result;
	struct block *block;
	struct error e;
};

static int get_run(void *arg)
{
	struct getter *g = arg;

	g->result = store_get(stores[g->at], &g->ref, g->node, g->wait_ms, true, g->deadline_ns, &g->block, &g->e);
	return 0;
}

static void start_get(struct nursery *nursery, struct getter *g)
{
	EXPECT_INT(fiber_start(nursery, "getter", get_run, g), 0);
}

static int shared_story(struct bed *bed)
{
	enum { N = 40 };
	static struct getter getters[N];
	struct block_ref ref = ref_of(MIB, 1);
	struct nursery nursery;

	write_object(bed, "pack", &ref, 1, false);
	nursery_init(&nursery, bed->env->loop);
	for (int i = 0; i < N; i++) {
		getters[i] = (struct getter){ .bed = bed, .ref = ref, .deadline_ns = bed_deadline(bed) };
		start_get(&nursery, &getters[i]);
	}
	EXPECT_INT(nursery_wait(&nursery, bed_deadline(bed)), 0);
	for (int i = 0; i < N; i++) {
		EXPECT_INT(getters[i].result, 0);
		EXPECT(getters[i].block == getters[0].block);
	}
	EXPECT_INT(getters[0].block->pins, N);
	EXPECT_INT(stats(0).backend_reads, 1);
	for (int i = 0; i < N; i++)
		block_unpin(getters[i].block);
	return 0;
}

static void who_wants_the_same_block_shares_one_transfer(void **state)
{
	bed_run(state, shared_story);
}

/* A backend that keeps a read to itself until it is let go. */
static const struct backend_driver *quick;
static struct backend_req *kept;

static void submit_kept(struct backend *backend, struct backend_req *req)
{
	if (!kept && req->op == BACKEND_GET)
		kept = req;
	else
		quick->submit(backend, req);
}

static void await_kept(struct bed *bed)
{
	while (!kept)
		EXPECT_INT(fiber_sleep_until(env_in_ms(bed->env, 1)), 0);
}

static void let_go(struct bed *bed)
{
	bed->backend->driver = quick;
	quick->submit(bed->backend, TAKE(kept));
}

/* The first one leaves, the second one still gets it. */
static int leaver_story(struct bed *bed)
{
	struct getter first = { .bed = bed, .ref = ref_of(8 * MIB, 1) }, second;
	static const struct backend_driver driver = { "kept", submit_kept, NULL };
	struct nursery one, other;

	write_object(bed, "pack", &first.ref, 1, false);
	first.deadline_ns = bed_deadline(bed);
	second = first;
	quick = bed->backend->driver;
	bed->backend->driver = &driver;
	nursery_init(&one, bed->env->loop);
	nursery_init(&other, bed->env->loop);
	start_get(&one, &first);
	start_get(&other, &second);
	await_kept(bed);
	nursery_fini(&one);
	EXPECT_INT(first.result, -ECANCELED);
	let_go(bed);
	EXPECT_INT(nursery_wait(&other, bed_deadline(bed)), 0);
	EXPECT_INT(second.result, 0);
	block_unpin(second.block);

	/* Now all leave: the transfer ends, and the next one begins anew. */
	pool_block_forget(second.block);
	first.result = second.result = 0;
	bed->backend->driver = &driver;
	nursery_init(&one, bed->env->loop);
	start_get(&one, &first);
	start_get(&one, &second);
	await_kept(bed);
	nursery_fini(&one);
	EXPECT_INT(first.result, -ECANCELED);
	EXPECT_INT(second.result, -ECANCELED);
	expect_get(bed, 0, &first.ref, NULL, 1);
	let_go(bed);
	return 0;
}

static void a_transfer_goes_on_while_anybody_waits_for_it(void **state)
{
	bed_run(state, leaver_story);
}

/* n2 waits at n1 for a block that n1 begins to fetch only later. */
static int chain_story(struct bed *bed)
{
	struct getter last = { .bed = bed, .at = 2, .ref = ref_of(MIB, 1), .node = "n1", .wait_ms = BED_CALL_MS };
	struct block_ref full = last.ref;
	struct nursery nursery;

	write_object(bed, "pack", &full, 1, false);
	last.deadline_ns = bed_deadline(bed);
	nursery_init(&nursery, bed->env->loop);
	store_expect_begin(stores[1]);
	start_get(&nursery, &last);
	EXPECT_INT(nursery_wait(&nursery, env_in_ms(bed->env, 50)), -ETIMEDOUT);
	expect_get(bed, 1, &full, NULL, 1);
	EXPECT_INT(nursery_wait(&nursery, bed_deadline(bed)), 0);
	EXPECT_INT(last.result, 0);
	expect_bytes(last.block, 1);
	block_unpin(last.block);
	EXPECT_INT(stats(1).backend_reads, 1);
	EXPECT_INT(stats(2).backend_reads, 0);

	last.ref = ref_of(MIB, 2);
	last.wait_ms = 30; /* and now nothing comes */
	start_get(&nursery, &last);
	EXPECT_INT(nursery_wait(&nursery, bed_deadline(bed)), 0);
	EXPECT_INT(last.result, -ENOENT);
	store_expect_end(stores[1]);
	return 0;
}

static void a_peer_waits_for_a_block_that_is_on_its_way(void **state)
{
	bed_run(state, chain_story);
}

/* n2 waits at n1, where a load that was to fetch the block fails; then n2 asks for another that nobody there will fetch. */
static int given_up_story(struct bed *bed)
{
	struct getter g = { .bed = bed, .at = 2, .ref = ref_of(BYTES, 1), .node = "n1", .wait_ms = UINT32_MAX };
	struct nursery nursery;

	g.deadline_ns = bed_deadline(bed);
	write_object(bed, "pack", &g.ref, 1, false);
	nursery_init(&nursery, bed->env->loop);
	store_expect_begin(stores[1]);
	store_expect_begin(stores[1]);
	start_get(&nursery, &g);
	store_expect_end(stores[1]);
	EXPECT_INT(nursery_wait(&nursery, env_in_ms(bed->env, 50)), -ETIMEDOUT);
	store_expect_end(stores[1]);
	EXPECT_INT(nursery_wait(&nursery, bed_deadline(bed)), 0);
	EXPECT_INT(g.result, 0);
	expect_bytes(g.block, 1);
	block_unpin(g.block);
	EXPECT_INT(stats(2).backend_reads, 1);

	g.ref = ref_of(BYTES, 2);
	write_object(bed, "other", &g.ref, 2, false);
	start_get(&nursery, &g);
	EXPECT_INT(nursery_wait(&nursery, bed_deadline(bed)), 0);
	EXPECT_INT(g.result, 0);
	block_unpin(g.block);
	return 0;
}

static void nobody_waits_for_a_block_that_nobody_fetches(void **state)
{
	bed_run(state, given_up_story);
}

static int deadline_story(struct bed *bed)
{
	struct getter g = { .bed = bed, .at = 2, .ref = ref_of(MIB, 1), .node = "n1", .wait_ms = 5000 };
	uint64_t deadline_ns = env_in_ms(bed->env, 50);

	g.deadline_ns = deadline_ns;
	store_expect_begin(stores[1]);
	get_run(&g);
	store_expect_end(stores[1]);
	EXPECT_INT(g.result, -ETIMEDOUT);
	EXPECT(env_now(bed->env) >= deadline_ns);
	return 0;
}

static void a_get_ends_at_its_deadline(void **state)
{
	bed_run(state, deadline_story);
}

/* ---- room ---- */

struct taker {
	struct bed *bed;
	uint32_t bytes;
	uint64_t deadline_ns;
	int result;
	struct block *block;
	unsigned *turn, place;
	struct error e;
};

static int take_run(void *arg)
{
	struct taker *t = arg;

	t->result = store_block_new(stores[0], POOL_CAPTURE, t->bytes, t->deadline_ns, &t->block, &t->e);
	t->place = ++*t->turn;
	return 0;
}

static int room_story(struct bed *bed)
{
	enum { N = 3 };
	struct block *full[N], *none;
	struct taker takers[N];
	struct nursery nursery;
	unsigned turn = 0;
	struct error e;

	for (int i = 0; i < N; i++)
		EXPECT_INT(pool_block_new(pool(bed, 0), POOL_CAPTURE, BED_POOL_BYTES / N, &full[i]), 0);
	EXPECT_CALL(store_block_new(stores[0], POOL_CAPTURE, 1, env_in_ms(bed->env, 10), &none, &e), -ETIMEDOUT, &e);
	EXPECT(strstr(e.text, "25165824 of the 25165824"));

	nursery_init(&nursery, bed->env->loop);
	for (int i = 0; i < N; i++) { /* the first one needs more than what comes free first */
		takers[i] = (struct taker){ .bed = bed, .bytes = i ? KIB : BED_POOL_BYTES / N, .turn = &turn };
		takers[i].deadline_ns = bed_deadline(bed);
		EXPECT_INT(fiber_start(&nursery, "taker", take_run, &takers[i]), 0);
	}
	EXPECT_INT(nursery_wait(&nursery, env_in_ms(bed->env, 20)), -ETIMEDOUT);
	EXPECT_INT(turn, 0);
	block_unpin(full[0]);
	while (!turn)
		EXPECT_INT(fiber_sleep_until(env_in_ms(bed->env, 1)), 0);
	EXPECT_INT(nursery_wait(&nursery, env_in_ms(bed->env, 20)), -ETIMEDOUT);
	EXPECT_INT(turn, 1);
	EXPECT_INT(takers[0].place, 1);
	block_unpin(full[1]);
	EXPECT_INT(nursery_wait(&nursery, bed_deadline(bed)), 0);
	for (int i = 0; i < N; i++) {
		EXPECT_INT(takers[i].result, 0);
		EXPECT_INT(takers[i].place, i + 1);
		block_unpin(takers[i].block);
	}
	block_unpin(full[2]);
	return 0;
}

struct asker {
	struct room_ask ask;
	uint64_t deadline_ns;
	bool dropped;
	int result;
	struct block *blocks[2];
};

static bool still_wanted(const void *arg)
{
	return !((const struct asker *)arg)->dropped;
}

static int ask_run(void *arg)
{
	struct asker *a = arg;

	a->result = store_blocks_new(stores[0], &a->ask, a->deadline_ns, a->blocks, NULL);
	return 0;
}

static int ask_story(struct bed *bed)
{
	static const uint32_t both[] = { 6u << 20, 6u << 20 }, one = MIB;
	struct block *full[4], *none[2];
	struct asker large = { .ask = { .kind = POOL_CAPTURE, .bytes = both, .n = 2, .wanted = still_wanted },
			       .deadline_ns = bed_deadline(bed) };
	struct asker admitted = { .ask = { .kind = POOL_CAPTURE, .bytes = &one, .n = 1, .first = true },
				  .deadline_ns = bed_deadline(bed) };
	struct nursery nursery;

	large.ask.arg = &large;
	for (int i = 0; i < 4; i++)
		EXPECT_INT(pool_block_new(pool(bed, 0), POOL_CAPTURE, (i == 3 ? 5u : 6u) << 20, &full[i]), 0);
	EXPECT_INT(store_blocks_new(stores[0], &large.ask, 0, none, NULL), -ETIMEDOUT);

	nursery_init(&nursery, bed->env->loop);
	EXPECT_INT(fiber_start(&nursery, "large", ask_run, &large), 0);
	EXPECT_INT(nursery_wait(&nursery, env_in_ms(bed->env, 1)), -ETIMEDOUT);
	block_unpin(full[0]); /* half of what it wants: it takes nothing, and nobody else takes that */
	EXPECT_INT(nursery_wait(&nursery, env_in_ms(bed->env, 1)), -ETIMEDOUT);
	EXPECT_INT(store_blocks_new(stores[0], &(struct room_ask){ .kind = POOL_CAPTURE, .bytes = &one, .n = 1 }, 0,
				    none, NULL),
		   -ETIMEDOUT);
	EXPECT_INT(fiber_start(&nursery, "admitted", ask_run, &admitted), 0); /* but for whom it waits itself */
	while (!admitted.blocks[0])
		EXPECT_INT(fiber_sleep_until(env_in_ms(bed->env, 1)), 0);
	EXPECT_INT(admitted.result, 0);
	EXPECT(!large.blocks[0]);
	large.dropped = true; /* it is not wanted any more: it leaves with nothing */
	EXPECT_INT(nursery_wait(&nursery, bed_deadline(bed)), 0);
	EXPECT_INT(large.result, -ECANCELED);
	block_unpin(admitted.blocks[0]);
	for (int i = 1; i < 4; i++)
		block_unpin(full[i]);
	return 0;
}

static void blocks_are_waited_for_all_or_none(void **state)
{
	bed_run(state, ask_story);
}

static void who_waits_for_room_is_served_in_turn(void **state)
{
	bed_run(state, room_story);
}

static int head_story(struct bed *bed)
{
	struct block *full;
	struct taker large = { .bed = bed, .bytes = 8 * MIB }, small = { .bed = bed, .bytes = KIB };
	struct nursery one, other;
	unsigned turn = 0;

	EXPECT_INT(pool_block_new(pool(bed, 0), POOL_CAPTURE, 8 * MIB, &full), 0);
	struct block *rest[16];
	for (int i = 0; i < 16; i++)
		EXPECT_INT(pool_block_new(pool(bed, 0), POOL_CAPTURE, MIB, &rest[i]), 0);
	large.turn = small.turn = &turn;
	large.deadline_ns = small.deadline_ns = bed_deadline(bed);
	nursery_init(&one, bed->env->loop);
	nursery_init(&other, bed->env->loop);
	EXPECT_INT(fiber_start(&one, "large", take_run, &large), 0);
	EXPECT_INT(fiber_start(&other, "small", take_run, &small), 0);
	block_unpin(rest[0]);
	EXPECT_INT(nursery_wait(&other, env_in_ms(bed->env, 20)), -ETIMEDOUT); /* its turn has not come */
	nursery_fini(&one);						       /* the head gives up */
	EXPECT_INT(large.result, -ECANCELED);
	EXPECT_INT(nursery_wait(&other, bed_deadline(bed)), 0);
	EXPECT_INT(small.result, 0);
	block_unpin(small.block);
	for (int i = 1; i < 16; i++)
		block_unpin(rest[i]);
	block_unpin(full);
	return 0;
}

static void when_the_head_gives_up_the_next_one_is_asked(void **state)
{
	bed_run(state, head_story);
}

static int never_story(struct bed *bed)
{
	struct pool *small;
	struct store *store;
	struct block *block;
	struct error e;

	pool_on_room(pool(bed, 0), NULL, NULL);
	store_free(stores[0]);
	EXPECT_CALL(pool_new(bed->env, MIB, MIB, &small, &e), 0, &e);
	EXPECT_INT(store_new(bed->env, "t", small, bed->nodes[0].cluster, bed->backend, &store), 0);
	EXPECT_CALL(store_block_new(store, POOL_READ, MIB + 1, bed_deadline(bed), &block, &e), -ERR_EPOOL, &e);
	EXPECT(strstr(e.text, "1048577") && strstr(e.text, "1048576"));
	EXPECT_CALL(store_block_new(store, POOL_READ, 8 * MIB + 1, bed_deadline(bed), &block, &e), -EINVAL, &e);
	EXPECT_CALL(store_block_new(store, POOL_READ, MIB, bed_deadline(bed), &block, &e), 0, &e);
	block_unpin(block);
	store_free(store);
	pool_free(small);
	EXPECT_INT(store_new(bed->env, "t", pool(bed, 0), bed->nodes[0].cluster, bed->backend, &stores[0]), 0);
	return 0;
}

static void a_block_that_can_never_fit_is_refused_at_once(void **state)
{
	bed_run(state, never_story);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_block_comes_from_the_backend_once_and_stays_as_cache),
		TEST(a_block_comes_from_the_peer_that_holds_it),
		TEST(what_the_peer_has_not_got_comes_from_the_backend),
		TEST(a_block_that_is_nowhere_is_said_to_be),
		TEST(what_another_tenant_has_is_nowhere),
		TEST(a_damaged_copy_of_a_peer_is_counted_and_the_backend_asked),
		TEST(a_damaged_pack_is_named_and_its_bytes_are_seen_by_nobody),
		TEST(readers_get_a_copy_of_a_captured_block),
		TEST(the_copy_takes_the_place_of_a_durable_captured_block),
		TEST(a_durable_captured_block_that_a_save_holds_stays),
		TEST(a_captured_block_that_was_written_to_is_forgotten),
		TEST(who_wants_the_same_block_shares_one_transfer),
		TEST(a_transfer_goes_on_while_anybody_waits_for_it),
		TEST(a_peer_waits_for_a_block_that_is_on_its_way),
		TEST(nobody_waits_for_a_block_that_nobody_fetches),
		TEST(a_get_ends_at_its_deadline),
		TEST(blocks_are_waited_for_all_or_none),
		TEST(who_waits_for_room_is_served_in_turn),
		TEST(when_the_head_gives_up_the_next_one_is_asked),
		TEST(a_block_that_can_never_fit_is_refused_at_once),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
