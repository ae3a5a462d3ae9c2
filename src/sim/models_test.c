/*
 * sim/models_test.c: the model drivers keep the same contracts as the drivers for which they stand in, and the real drivers that
 * run over any env keep them in the simulated world, too.
 */
#include "sim/models.h"

#include "backend/backend_suite.h"
#include "base/check.h"
#include "meta/meta_suite.h"

#define SEED 7

static struct world *world;
static struct model_records *records;

static int backend_open(struct backend_suite *suite, struct backend **ret)
{
	world = world_new(SEED, WEATHER_CALM, NULL);
	records = model_records_new(world);
	return model_backend_open(world_env_new(world, "n1"), records, ret);
}

static void backend_close(struct backend_suite *suite, struct backend *backend)
{
	backend_free(backend);
	model_records_free(records);
	world_free(world);
}

static int dir_open(struct backend_suite *suite, struct backend **ret)
{
	world = world_new(SEED, WEATHER_CALM, NULL);
	world_share(world, "/store");
	return backend_dir_open(world_env_new(world, "n1"), "/store", true, ret, NULL);
}

static void dir_close(struct backend_suite *suite, struct backend *backend)
{
	backend_free(backend);
	world_free(world);
}

static int meta_open(struct meta_suite *suite, struct meta **ret)
{
	world = world_new(SEED, WEATHER_CALM, NULL);
	records = model_records_new(world);
	return model_meta_open(world_env_new(world, "n1"), records, ret);
}

static void meta_close(struct meta_suite *suite, struct meta *meta)
{
	meta_free(meta);
	model_records_free(records);
	world_free(world);
}

static int meta_restart(struct meta_suite *suite, struct meta **pmeta)
{
	struct env *env = (*pmeta)->env;

	meta_free(*pmeta);
	return model_meta_open(env, records, pmeta);
}

static int sleep_until(void *arg)
{
	return fiber_sleep_until(*(uint64_t *)arg);
}

static void meta_pass(struct meta_suite *suite, struct meta *meta, uint64_t ms)
{
	uint64_t until_ns = env_in_ms(meta->env, ms);

	CHECK(world_run(world, (ms + 1) * NS_PER_MS, sleep_until, &until_ns) == 0);
}

int main(void)
{
	struct backend_suite model = { "model backend", backend_open, backend_close };
	struct backend_suite dir = { "dir in the simulated world", dir_open, dir_close };
	struct meta_suite meta = { "model engine", meta_open, meta_close, meta_restart, meta_pass };

	return backend_suite_run(&model) + backend_suite_run(&dir) + meta_suite_run(&meta);
}
