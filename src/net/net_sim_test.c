/* The transport in the simulated world: two machines, streams that split and delay what passes. */
#include "net/net_suite.h"
#include "sim/world.h"

#define SEED 11

static struct world *world;

static void world_open(struct net_suite *suite)
{
	world = world_new(SEED, WEATHER_CALM, NULL);
	world->faults.per_million[FAULT_SPLIT] = 200000;
	suite->server = world_env_new(world, "server");
	suite->client = world_env_new(world, "client");
}

static void world_close(struct net_suite *suite)
{
	assert_int_equal(world_leftovers(world), 0);
	world_free(world);
}

int main(void)
{
	struct net_suite suite = { .open = world_open, .close = world_close, .address = "tcp:10.0.0.1:7000" };

	return net_suite_run("net in the simulated world", &suite, NULL, 0);
}
