#include "cluster/bed_suite.h"

#include <errno.h>
#include <ftw.h>
#include <string.h>

#include "base/check.h"

struct story {
	struct bed *bed;
	int (*run)(struct bed *bed);
	bool ended;
	struct timer tick; /* bounds a turn's sleep, so that the story's end is noticed */
};

static void ticked(struct timer *timer)
{
	struct bed *bed = container_of(timer, struct story, tick)->bed;

	CHECK(timer_arm(bed->env->loop, timer, env_in_ms(bed->env, 1)) == 0);
}

static int story_run(void *arg)
{
	struct story *story = arg;
	int r = story->run(story->bed);

	story->ended = true;
	return r;
}

static int run(struct bed *bed, int (*fn)(struct bed *bed))
{
	struct story story = { .bed = bed, .run = fn, .tick.fn = ticked };
	uint64_t limit_ns = env_in_ms(bed->env, BED_LIMIT_MS);
	struct nursery nursery;

	nursery_init(&nursery, bed->env->loop);
	CHECK(fiber_start(&nursery, "story", story_run, &story) == 0);
	ticked(&story.tick);
	while (!nursery_is_empty(&nursery)) {
		CHECK(loop_turn(bed->env->loop) == 0);
		EXPECT(env_now(bed->env) < limit_ns);
	}
	timer_disarm(bed->env->loop, &story.tick);
	CHECK(story.ended);
	return nursery.first_error;
}

void bed_run(void **state, int (*story)(struct bed *bed))
{
	EXPECT_INT(run(*state, story), 0);
}

uint64_t bed_deadline(struct bed *bed)
{
	return env_in_ms(bed->env, BED_CALL_MS);
}

struct cluster *bed_new(struct bed *bed, int i, const char *cluster_id, struct error *e)
{
	struct bed_node *node = &bed->nodes[i];
	struct cluster *cluster = NULL;
	const struct cluster_options options = {
		.node = node->name,
		.domain = node->domain,
		.listen = bed->listen ? bed->listen : "tcp:127.0.0.1:0",
		.cluster_id = cluster_id,
		.key = view_str(bed->key),
		.meta = i ? NULL : bed->meta,
		.meta_address = i ? cluster_address(bed->nodes[0].cluster) : NULL,
		.backend = bed->backend,
		.store_rate = 1000 * (uint64_t)(i + 1),
	};

	EXPECT_CALL(cluster_new(bed->env, &options, &cluster, e), 0, e);
	return cluster;
}

void bed_start(struct bed *bed, int i)
{
	struct bed_node *node = &bed->nodes[i];
	struct error e;

	EXPECT_CALL(pool_new(bed->env, BED_POOL_BYTES, BED_POOL_BYTES, &node->pool, &e), 0, &e);
	node->cluster = bed_new(bed, i, "bed", &e);
	EXPECT_CALL(cluster_join(node->cluster, bed_deadline(bed), &e), 0, &e);
}

void bed_stop(struct bed *bed, int i)
{
	struct bed_node *node = &bed->nodes[i];

	if (!node->cluster)
		return;
	cluster_stop(node->cluster);
	cluster_free(node->cluster);
	pool_free(node->pool);
	node->cluster = NULL;
	node->pool = NULL;
}

static int start_all(struct bed *bed)
{
	for (int i = 0; i < BED_NODES; i++)
		bed_start(bed, i);
	return 0;
}

static int stop_all(struct bed *bed)
{
	for (int i = BED_NODES - 1; i >= 0; i--)
		bed_stop(bed, i);
	return calls_drain(bed->backend, bed->meta, bed_deadline(bed));
}

int bed_setup_new(void **state)
{
	struct bed *bed = calloc(1, sizeof(*bed));
	char path[96];
	struct error e;

	CHECK(bed);
	bed->key = "the key of this bed alone";
	snprintf(bed->dir, sizeof(bed->dir), "/tmp/forebay-bed-XXXXXX");
	CHECK(mkdtemp(bed->dir));
	EXPECT_CALL(env_real_new("bed", 2, &bed->env, &e), 0, &e);
	snprintf(path, sizeof(path), "%s/meta", bed->dir);
	EXPECT_CALL(meta_lmdb_open(bed->env, path, &bed->meta, &e), 0, &e);
	snprintf(path, sizeof(path), "%s/store", bed->dir);
	EXPECT_CALL(backend_dir_open(bed->env, path, true, &bed->backend, &e), 0, &e);
	for (int i = 0; i < BED_NODES; i++) {
		snprintf(bed->nodes[i].name, sizeof(bed->nodes[i].name), "n%d", i);
		snprintf(bed->nodes[i].domain, sizeof(bed->nodes[i].domain), "rack%d", i);
	}
	*state = bed;
	return 0;
}

int bed_setup(void **state)
{
	bed_setup_new(state);
	return run(*state, start_all);
}

static int remove_one(const char *path, const struct stat *stat, int kind, struct FTW *ftw)
{
	return remove(path);
}

int bed_teardown(void **state)
{
	struct bed *bed = *state;
	int r = run(bed, stop_all);

	meta_free(bed->meta);
	backend_free(bed->backend);
	env_real_free(bed->env);
	nftw(bed->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	free(bed);
	return r;
}

void bed_fill(uint8_t *p, size_t len, uint64_t seed)
{
	uint64_t x = seed * 0x9e3779b97f4a7c15 + 1;

	for (size_t i = 0; i < len; i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		p[i] = (uint8_t)x;
	}
}

struct block *bed_block(struct pool *pool, enum pool_kind kind, uint32_t bytes, uint64_t seed)
{
	struct block *block;

	EXPECT_INT(pool_block_new(pool, kind, bytes, &block), 0);
	bed_fill(block->ptr, bytes, seed);
	struct digest digest = digest_of(block->ptr, bytes);
	EXPECT_INT(pool_block_index(block, &digest, crc32c(0, block->ptr, bytes)), 0);
	return block;
}
