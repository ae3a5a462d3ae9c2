/*
 * Reads from a store that stalls, in the simulated world: a backend of the test's own answers each GET as its script says: when, and
 * with which bytes. What it writes it writes at that time, also for a reader that has gone.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "cluster/bed_suite.h"
#include "sim/models.h"
#include "store/inside.h"

#define BYTES	   100000u
#define POOL_BYTES (4u << 20)
#define LIMIT_NS   (3600 * NS_PER_S)
#define STALL_MS   60000
#define QUICK_MS   10
#define GET_MS	   600000
#define SCRIPT_MAX 512

enum outcome { GOOD, FLIPPED, FAILED };

struct line {
	unsigned ms;
	enum outcome outcome;
};

struct scene {
	struct world *world;
	struct env *env;
	struct model_records *objects, *rows;
	struct meta *meta;
	struct backend *generation; /* the cluster's */
	struct backend slow;	    /* the store's */
	struct pool *pool;
	struct cluster *cluster;
	struct store *store;
	struct line script[SCRIPT_MAX];
	unsigned n_gets, under_way;
	int (*story)(struct scene *s);
};

/* ---- the backend ------------------------------------------------------------------------------------------------------------ */

struct pending {
	struct scene *scene;
	struct timer timer;
	struct backend_req *req;
	enum outcome outcome;
};

/* Objects "1", "2" and so on have the bytes of that seed. */
static void answer(struct timer *timer)
{
	struct pending *pending = container_of(timer, struct pending, timer);
	struct backend_req *req = pending->req;
	uint8_t *dst = req->dst;

	bed_fill(dst, req->len, strtoull(req->key, NULL, 10));
	dst[req->len / 2] ^= pending->outcome == FLIPPED;
	req->got = req->len;
	hasher_update(req->hasher, dst, req->len);
	req->result = pending->outcome == FAILED ? error_set(&req->error, -EIO, "%s: EIO", req->key) : 0;
	pending->scene->under_way--;
	free(pending);
	req->finish(req);
}

static void submit(struct backend *backend, struct backend_req *req)
{
	struct scene *s = container_of(backend, struct scene, slow);
	struct pending *pending = calloc(1, sizeof(*pending));

	CHECK(pending && s->n_gets < SCRIPT_MAX);
	const struct line line = s->script[s->n_gets++];
	*pending = (struct pending){ s, { .fn = answer }, req, line.outcome };
	s->under_way++;
	CHECK(!timer_arm(s->env->loop, &pending->timer, env_in_ms(s->env, line.ms ? line.ms : QUICK_MS)));
}

static const struct backend_driver slow_driver = { "slow", submit, NULL };

/* ---- the scene -------------------------------------------------------------------------------------------------------------- */

static int scene_run(void *arg)
{
	struct scene *s = arg;
	struct error e;

	EXPECT_INT(model_backend_open(s->env, s->objects, &s->generation), 0);
	EXPECT_INT(model_meta_open(s->env, s->rows, &s->meta), 0);
	EXPECT_CALL(pool_new(s->env, POOL_BYTES, POOL_BYTES, &s->pool, &e), 0, &e);
	const struct cluster_options options = {
		.node = "n0",
		.listen = "tcp:10.0.0.1:7000",
		.cluster_id = "sim",
		.meta = s->meta,
		.backend = s->generation,
	};
	EXPECT_CALL(cluster_new(s->env, &options, &s->cluster, &e), 0, &e);
	EXPECT_CALL(cluster_join(s->cluster, env_in_ms(s->env, 20000), &e), 0, &e);
	EXPECT_INT(store_new(s->env, "t", s->pool, s->cluster, &s->slow, &s->store), 0);
	EXPECT_INT(s->story(s), 0);
	cluster_stop(s->cluster);
	store_free(s->store);
	EXPECT_INT(calls_drain(&s->slow, NULL, env_in_ms(s->env, GET_MS)), 0);
	EXPECT_INT(s->under_way, 0);
	EXPECT_INT(calls_drain(s->generation, s->meta, env_in_ms(s->env, 60000)), 0);
	cluster_free(s->cluster);
	pool_free(s->pool); /* nothing is pinned any more */
	meta_free(s->meta);
	backend_free(s->generation);
	return 0;
}

static void play(int (*story)(struct scene *s))
{
	struct scene s = { .world = world_new(1, WEATHER_CALM, NULL), .story = story };

	s.env = world_env_new(s.world, "n0");
	s.slow = (struct backend){ .magic = BACKEND_MAGIC, .driver = &slow_driver, .env = s.env };
	s.objects = model_records_new(s.world);
	s.rows = model_records_new(s.world);
	EXPECT_INT(world_run(s.world, LIMIT_NS, scene_run, &s), 0);
	model_records_free(s.objects);
	model_records_free(s.rows);
	world_free(s.world);
}

static struct block_ref ref_of(uint64_t seed, char key[24])
{
	static uint8_t bytes[BYTES];

	bed_fill(bytes, BYTES, seed);
	snprintf(key, 24, "%" PRIu64, seed);
	return (struct block_ref){ digest_of(bytes, BYTES), BYTES, crc32c(0, bytes, BYTES), key, 0 };
}

static int get(struct scene *s, uint64_t seed, unsigned ms, struct block **ret, struct error *e)
{
	char key[24];
	const struct block_ref ref = ref_of(seed, key);

	return store_get(s->store, &ref, NULL, 0, true, env_in_ms(s->env, ms), ret, e);
}

static void expect_bytes(const struct block *block, uint64_t seed)
{
	static uint8_t bytes[BYTES];

	bed_fill(bytes, BYTES, seed);
	EXPECT(!memcmp(block->ptr, bytes, BYTES));
}

/* The block comes within @most_ms, is right, and is still so when everything that was asked has been answered. */
static void expect_get(struct scene *s, uint64_t seed, unsigned most_ms)
{
	uint64_t began_ns = env_now(s->env);
	struct block *block;
	struct error e;

	EXPECT_CALL(get(s, seed, GET_MS, &block, &e), 0, &e);
	EXPECT(env_now(s->env) - began_ns <= most_ms * NS_PER_MS);
	expect_bytes(block, seed);
	while (s->under_way)
		fiber_sleep_until(env_in_ms(s->env, 100));
	expect_bytes(block, seed);
	block_unpin(block);
}

static void learn(struct scene *s)
{
	uint64_t stalled = s->store->stats.stalled;

	for (uint64_t seed = 1000; seed < 1000 + PATIENCE_FEW; seed++)
		expect_get(s, seed, QUICK_MS + 1);
	EXPECT_INT(s->store->stats.stalled, stalled);
}

static struct line *next(struct scene *s)
{
	return &s->script[s->n_gets];
}

/* ---- the stories ------------------------------------------------------------------------------------------------------------ */

static int stall_story(struct scene *s)
{
	expect_get(s, 1, QUICK_MS + 1);
	*next(s) = (struct line){ STALL_MS, GOOD }; /* nothing is known of the store yet */
	expect_get(s, 2, PATIENCE_FIRST_MS + QUICK_MS + 1);
	learn(s);
	*next(s) = (struct line){ STALL_MS, GOOD };
	expect_get(s, 3, PATIENCE_FLOOR_MS + QUICK_MS + 1);
	EXPECT_INT(s->store->stats.stalled, 2);
	EXPECT_INT(s->store->stats.asked_again, 2);
	EXPECT_INT(s->store->stats.second_won, 2);
	return 0;
}

static void a_read_that_stalls_is_asked_again(void **state)
{
	play(stall_story);
}

static int slow_story(struct scene *s)
{
	for (unsigned i = 0; i < 2 * PATIENCE_SEEN; i++)
		s->script[i].ms = 2000;
	for (uint64_t seed = 1; seed <= PATIENCE_SEEN; seed++)
		expect_get(s, seed, 2001);
	s->script[s->n_gets].ms = 2000 * PATIENCE_TIMES - 1;
	expect_get(s, 100, 2000 * PATIENCE_TIMES);
	EXPECT_INT(s->store->stats.stalled, 0);
	EXPECT_INT(s->n_gets, PATIENCE_SEEN + 1);
	return 0;
}

static void a_store_that_is_slow_as_a_whole_is_waited_for(void **state)
{
	play(slow_story);
}

/* Both answer within a moment of each other, in either order. */
static int both_story(struct scene *s)
{
	learn(s);
	*next(s) = (struct line){ PATIENCE_FLOOR_MS + 5, GOOD }; /* the first one wins all the same */
	expect_get(s, 1, PATIENCE_FLOOR_MS + 6);
	EXPECT_INT(s->store->stats.asked_again, 1);
	EXPECT_INT(s->store->stats.second_won, 0);
	*next(s) = (struct line){ PATIENCE_FLOOR_MS + QUICK_MS, GOOD }; /* both at once */
	expect_get(s, 2, PATIENCE_FLOOR_MS + QUICK_MS + 1);
	EXPECT_INT(s->store->stats.asked_again, 2);
	EXPECT_INT(s->store->stats.damaged, 0);
	struct pool_stats pool;
	pool_stats(s->pool, &pool);
	EXPECT_INT(pool.blocks, PATIENCE_FEW + 2); /* of each block one is left */
	return 0;
}

static void when_both_answer_the_first_one_counts(void **state)
{
	play(both_story);
}

static int late_damage_story(struct scene *s)
{
	learn(s);
	*next(s) = (struct line){ STALL_MS, FLIPPED }; /* comes when the reader has long had the second one's bytes */
	expect_get(s, 1, PATIENCE_FLOOR_MS + QUICK_MS + 1);
	EXPECT_INT(s->store->stats.damaged, 0);
	*next(s) = (struct line){ PATIENCE_FLOOR_MS + 5, GOOD };
	next(s)[1] = (struct line){ STALL_MS, FLIPPED }; /* it is the second one that is late */
	expect_get(s, 2, PATIENCE_FLOOR_MS + 6);
	EXPECT_INT(s->store->stats.asked_again, 2);
	return 0;
}

static void the_damaged_bytes_of_the_late_one_are_seen_by_nobody(void **state)
{
	play(late_damage_story);
}

static int damage_story(struct scene *s)
{
	learn(s);
	*next(s) = (struct line){ PATIENCE_FLOOR_MS + 5, FLIPPED }; /* the first to answer, and wrong */
	expect_get(s, 1, PATIENCE_FLOOR_MS + QUICK_MS + 1);
	EXPECT_INT(s->store->stats.damaged, 1);
	*next(s) = (struct line){ 2000, GOOD };
	next(s)[1] = (struct line){ QUICK_MS, FAILED }; /* the second fails: the first is still waited for */
	expect_get(s, 2, 2001);

	struct block *block;
	struct error e;
	for (uint64_t seed = 0; seed < AGAIN_EVERY; seed++) /* earns another */
		expect_get(s, 2000 + seed, QUICK_MS + 1);
	*next(s) = (struct line){ 2000, FLIPPED };
	next(s)[1] = (struct line){ QUICK_MS, FAILED };
	EXPECT_CALL(get(s, 3, GET_MS, &block, &e), -ERR_EDAMAGED, &e);
	EXPECT(strstr(e.text, "3: a block of 100000 bytes"));
	EXPECT_INT(s->store->stats.asked_again, 3);
	return 0;
}

static void the_first_right_answer_counts_and_only_when_both_fail_the_read_does(void **state)
{
	play(damage_story);
}

static int budget_story(struct scene *s)
{
	learn(s);
	for (unsigned i = 0; i < AGAIN_AT_START; i++) {
		*next(s) = (struct line){ STALL_MS, GOOD };
		expect_get(s, i, PATIENCE_FLOOR_MS + QUICK_MS + 1);
	}
	unsigned before = s->n_gets;
	*next(s) = (struct line){ STALL_MS, GOOD };
	expect_get(s, 100, STALL_MS + 1); /* it comes when it comes */
	EXPECT_INT(s->n_gets, before + 1);
	EXPECT_INT(s->store->stats.stalled, AGAIN_AT_START + 1);
	EXPECT_INT(s->store->stats.asked_again, AGAIN_AT_START);

	for (uint64_t seed = 0; seed < AGAIN_EVERY; seed++)
		expect_get(s, 2000 + seed, QUICK_MS + 1);
	*next(s) = (struct line){ STALL_MS, GOOD };
	expect_get(s, 101, PATIENCE_FLOOR_MS + QUICK_MS + 1);
	return 0;
}

static void no_more_is_asked_again_than_the_budget_allows(void **state)
{
	play(budget_story);
}

static int no_room_story(struct scene *s)
{
	struct block *full[POOL_BYTES / BYTES];
	unsigned n = 0;

	learn(s);
	while (!pool_block_new(s->pool, POOL_READ, BYTES, &full[n])) /* cached blocks give way */
		CHECK(++n < ARRAY_LEN(full));
	block_unpin(full[--n]);
	unsigned before = s->n_gets;
	*next(s) = (struct line){ 20000, GOOD };
	expect_get(s, 1, 20001);
	EXPECT_INT(s->n_gets, before + 1);
	EXPECT_INT(s->store->stats.stalled, 1);
	EXPECT_INT(s->store->stats.asked_again, 0);
	while (n)
		block_unpin(full[--n]);
	return 0;
}

static void without_room_for_a_second_block_nothing_is_asked_again(void **state)
{
	play(no_room_story);
}

static int deadline_story(struct scene *s)
{
	struct block *block;
	struct error e;

	learn(s);
	*next(s) = (struct line){ STALL_MS, FLIPPED };
	next(s)[1] = (struct line){ STALL_MS, FLIPPED };
	uint64_t began_ns = env_now(s->env);
	EXPECT_CALL(get(s, 1, 5000, &block, &e), -ETIMEDOUT, &e);
	EXPECT_INT(env_now(s->env) - began_ns, 5000 * NS_PER_MS);
	EXPECT_INT(s->under_way, 2);
	expect_get(s, 1, QUICK_MS + 1); /* into a block of its own: the late answers change nothing of it */
	return 0;
}

static void a_deadline_ends_both(void **state)
{
	play(deadline_story);
}

struct getter {
	struct scene *scene;
	uint64_t seed;
	const char *key;
	int result;
	struct block *block;
	struct error e;
};

static int getter_run(void *arg)
{
	struct getter *g = arg;
	char key[24];
	struct block_ref ref = ref_of(g->seed, key);

	ref.key = g->key ? g->key : key;
	g->result = store_get(g->scene->store, &ref, NULL, 0, true, env_in_ms(g->scene->env, 30000), &g->block, &g->e);
	return 0;
}

/* The object at the first place does not answer in its half of the time; the block comes from the second. */
static int places_story(struct scene *s)
{
	struct getter first = { .scene = s, .seed = 7 }, second = { .scene = s, .seed = 7, .key = "07" };
	struct nursery nursery;

	s->store->patience.earned = 0;
	*next(s) = (struct line){ STALL_MS, FLIPPED };
	nursery_init(&nursery, s->env->loop);
	EXPECT_INT(fiber_start(&nursery, "first", getter_run, &first), 0);
	EXPECT_INT(fiber_start(&nursery, "second", getter_run, &second), 0);
	EXPECT_INT(nursery_wait(&nursery, env_in_ms(s->env, GET_MS)), 0);
	EXPECT_CALL(first.result, 0, &first.e);
	EXPECT_CALL(second.result, 0, &second.e);
	EXPECT(first.block == second.block);
	EXPECT_INT(s->under_way, 1); /* and damaged, when it comes */
	while (s->under_way)
		fiber_sleep_until(env_in_ms(s->env, 100));
	expect_bytes(first.block, 7);
	block_unpin(first.block);
	block_unpin(second.block);
	return 0;
}

static void what_is_left_of_one_source_does_not_write_over_the_next_ones_bytes(void **state)
{
	play(places_story);
}

static int cancel_story(struct scene *s)
{
	struct getter g = { .scene = s, .seed = 1 };
	struct nursery nursery;

	learn(s);
	*next(s) = (struct line){ STALL_MS, GOOD };
	next(s)[1] = (struct line){ STALL_MS, GOOD };
	nursery_init(&nursery, s->env->loop);
	EXPECT_INT(fiber_start(&nursery, "getter", getter_run, &g), 0);
	EXPECT_INT(nursery_wait(&nursery, env_in_ms(s->env, 2 * PATIENCE_FLOOR_MS)), -ETIMEDOUT);
	EXPECT_INT(s->under_way, 2);
	nursery_fini(&nursery);
	EXPECT_INT(g.result, -ECANCELED);
	expect_get(s, 1, QUICK_MS + 1);
	return 0;
}

static void who_leaves_leaves_both(void **state)
{
	play(cancel_story);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_read_that_stalls_is_asked_again),
		cmocka_unit_test(a_store_that_is_slow_as_a_whole_is_waited_for),
		cmocka_unit_test(when_both_answer_the_first_one_counts),
		cmocka_unit_test(the_damaged_bytes_of_the_late_one_are_seen_by_nobody),
		cmocka_unit_test(the_first_right_answer_counts_and_only_when_both_fail_the_read_does),
		cmocka_unit_test(no_more_is_asked_again_than_the_budget_allows),
		cmocka_unit_test(without_room_for_a_second_block_nothing_is_asked_again),
		cmocka_unit_test(a_deadline_ends_both),
		cmocka_unit_test(what_is_left_of_one_source_does_not_write_over_the_next_ones_bytes),
		cmocka_unit_test(who_leaves_leaves_both),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
