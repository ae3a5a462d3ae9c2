/*
 * sim/crowd_suite.c: see the header.
 */
#include "sim/crowd_suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "daemon/daemon.h"
#include "sim/inside.h"

#define STORE	 "/store"
#define WORLD_NS (20000 * NS_PER_S)
#define READY_MS 30000
#define JOIN_MS	 60000
#define CALL_MS	 20000

/* ---- nodes ---- */

static void node_start(struct crowd_node *node, unsigned number)
{
	struct crowd *crowd = node->crowd;
	struct error e = { 0 };

	snprintf(node->name, sizeof(node->name), "n%u", number);
	snprintf(node->listen, sizeof(node->listen), "tcp:10.0.0.%u:7000", number);
	snprintf(node->socket, sizeof(node->socket), "unix:/run/n%u", number);
	node->env = world_env_new(crowd->world, node->name);
	const struct daemon_tenant tenant = { .name = TENANT,
					      .socket = node->socket + strlen("unix:"),
					      .pool_bytes = crowd->pool_bytes };
	struct daemon_options options = { .node = node->name,
					  .domain = node->name,
					  .cluster = "sim",
					  .listen = node->listen,
					  .tenants = &tenant,
					  .n_tenants = 1 };

	assert_int_equal(backend_dir_open(node->env, STORE, true, &options.backend, &e), 0);
	if (number)
		options.meta_address = crowd->nodes[0].listen;
	else
		assert_int_equal(model_meta_open(node->env, crowd->engine, &options.meta), 0);
	assert_int_equal(daemon_new(node->env, &options, &node->daemon, &e), 0);
}

static bool all_are_ready(struct crowd *crowd)
{
	for (unsigned i = 0; i < crowd->n_nodes; i++)
		if (daemon_ready(crowd->nodes[i].daemon, NULL))
			return false;
	return true;
}

bool crowd_until(struct crowd *crowd, bool (*yes)(struct crowd *crowd), uint64_t limit_ms)
{
	uint64_t deadline_ns = crowd->world->now_ns + limit_ms * NS_PER_MS;

	while (!yes(crowd)) {
		if (crowd->world->now_ns > deadline_ns)
			return false;
		assert_int_equal(fiber_sleep_until(crowd->world->now_ns + 10 * NS_PER_MS), 0);
	}
	return true;
}

static int live(void *arg)
{
	struct crowd *crowd = arg;

	for (unsigned i = 0; i < crowd->n_nodes; i++)
		node_start(&crowd->nodes[i], i);
	assert_true(crowd_until(crowd, all_are_ready, READY_MS));
	int r = crowd->story(crowd);
	for (unsigned i = crowd->n_nodes; i-- > 0;) {
		daemon_stop(crowd->nodes[i].daemon, STOP_PATIENCE_MS);
		daemon_free(crowd->nodes[i].daemon);
		world_kill(crowd->nodes[i].env, DEATH_PROCESS);
	}
	return r;
}

void crowd_play(uint64_t seed, unsigned n_nodes, uint64_t pool_bytes, int (*story)(struct crowd *crowd))
{
	struct crowd *crowd = must_alloc(sizeof(*crowd));

	*crowd = (struct crowd){ .world = world_new(seed, WEATHER_CALM, NULL),
				 .n_nodes = n_nodes,
				 .pool_bytes = pool_bytes,
				 .story = story };
	crowd->history.world = crowd->world;
	crowd->history.coverage = &crowd->coverage;
	crowd->engine = model_records_new(crowd->world);
	world_share(crowd->world, STORE);
	for (unsigned i = 0; i < n_nodes; i++)
		crowd->nodes[i].crowd = crowd;
	assert_int_equal(world_run(crowd->world, WORLD_NS, live, crowd), 0);
	assert_int_equal(world_leftovers(crowd->world), 0);
	assert_string_equal(crowd->history.failure, "");
	world_free(crowd->world);
	model_records_free(crowd->engine);
	free(crowd);
}

/* ---- ranks ---- */

static int join(struct crowd_rank *rank)
{
	const struct crowd_job *job = rank->job;
	_cleanup_(buf_fini) struct buf body = { 0 }, answer = { 0 };
	struct msg_join m = { view_str(job->group), view_str(job->run), rank->number, job->n_ranks };
	struct msg_join_reply reply;
	int r = client_call(&rank->client, MSG_JOIN, &body, msg_join_encode(&m, &body), JOIN_MS, &answer);

	if (!r)
		r = msg_join_reply_decode(view_buf(&answer), &reply);
	return r ? r : core_group_new(rank->client.core, &reply, &rank->group);
}

static int rank_live(void *arg)
{
	struct crowd_rank *rank = arg;
	const struct crowd_job *job = rank->job;
	struct crowd *crowd = rank->crowd;
	unsigned node = job->first_node + rank->number % (job->n_nodes ? job->n_nodes : crowd->n_nodes);
	int r = client_begin(&rank->client, &crowd->history, rank->env, crowd->nodes[node % crowd->n_nodes].socket);

	if (!r)
		r = join(rank);
	rank->result = r ? r : job->live(rank);
	if (rank->group) {
		core_group_leave(rank->group);
		client_stir(&rank->client);
		(void)fiber_sleep_until(env_in_ms(rank->env, 1)); /* its last words leave */
	}
	client_end(&rank->client);
	world_kill(rank->env, DEATH_PROCESS);
	return 0;
}

void crowd_work(struct crowd *crowd, const struct crowd_job *job)
{
	struct crowd_rank *ranks = must_alloc(job->n_ranks * sizeof(*ranks));
	unsigned number = ++crowd->n_jobs;
	struct nursery nursery;
	char name[SIM_NAME_BYTES];

	nursery_init(&nursery, crowd->world->loop);
	for (uint32_t i = 0; i < job->n_ranks; i++) {
		snprintf(name, sizeof(name), "j%u-%u", number, i);
		ranks[i] = (struct crowd_rank){ .crowd = crowd,
						.job = job,
						.number = i,
						.env = world_env_new(crowd->world, name) };
		assert_int_equal(fiber_start(&nursery, "rank", rank_live, &ranks[i]), 0);
	}
	assert_int_equal(nursery_wait(&nursery, FOREVER), 0);
	nursery_fini(&nursery);
	for (uint32_t i = 0; i < job->n_ranks; i++)
		assert_int_equal(ranks[i].result, 0);
	free(ranks);
}

/* ---- what they do ---- */

static struct box line(uint64_t start, uint64_t count)
{
	return (struct box){ .ndim = 1, .start = { start }, .count = { count } };
}

int crowd_save(struct crowd_rank *rank, const char *bundle, uint64_t step, const struct core_save_options *more,
	       const struct crowd_item *items, size_t n, struct error ret_ends[CORE_STAGES])
{
	struct core_save_options options = more ? *more : (struct core_save_options){ .copies = 1 };
	struct core_future stages[CORE_STAGES];
	struct core_save *save = NULL;
	struct error e = { 0 };
	int r;

	options.bundle = view_str(bundle);
	options.step = step;
	assert_int_equal(core_save_new(rank->group, &options, &save, &e), 0);
	for (size_t i = 0; i < n; i++) {
		struct core_item item = { .name = view_str(items[i].name),
					  .dtype = view_str("u8"),
					  .element_bits = 8,
					  .whole = line(0, items[i].whole),
					  .box = line(items[i].start, items[i].count),
					  .data = items[i].data };

		assert_int_equal(core_save_add(save, &item, &e), 0);
	}
	r = core_save_submit(save, &e);
	for (int stage = 0; stage < CORE_STAGES; stage++) {
		core_future_init(&stages[stage], NULL);
		core_save_attach(save, (enum core_stage)stage, &stages[stage]);
	}
	for (int stage = 0; stage < CORE_STAGES && (!r || ret_ends); stage++) {
		r = client_await(&rank->client, &stages[stage], CROWD_WAIT_MS, "a stage");
		if (ret_ends)
			ret_ends[stage] = stages[stage].error;
	}
	for (int stage = 0; stage < CORE_STAGES; stage++)
		core_future_forget(&stages[stage]);
	rank->stats = *core_save_stats(save);
	core_save_drop(save);
	client_stir(&rank->client);
	return r;
}

int crowd_open(struct crowd_rank *rank, const char *bundle, bool grouped, uint64_t *ret_handle)
{
	_cleanup_(buf_fini) struct buf body = { 0 }, answer = { 0 };
	struct msg_open open = { view_str(bundle), view_str("latest"), grouped ? core_group_handle(rank->group) : 0 };
	struct msg_open_reply reply;
	int r = client_call(&rank->client, MSG_OPEN, &body, msg_open_encode(&open, &body), CALL_MS, &answer);

	if (!r)
		r = msg_open_reply_decode(view_buf(&answer), &reply);
	if (!r)
		*ret_handle = reply.handle;
	return r;
}

int crowd_load(struct crowd_rank *rank, uint64_t version, bool grouped, const struct crowd_item *items, size_t n,
	       uint8_t *out)
{
	struct core_load *load = NULL;
	struct core_future future;
	struct error e = { 0 };

	assert_int_equal(core_load_new(rank->client.core, grouped ? rank->group : NULL, version, &load), 0);
	for (size_t i = 0; i < n; i++) {
		struct core_want want = { view_str(items[i].name), 8, line(items[i].start, items[i].count), out, NULL };

		assert_int_equal(core_load_add(load, &want, &e), 0);
		out += items[i].count;
	}
	core_future_init(&future, NULL);
	core_load_attach(load, &future);
	int r = core_load_submit(load, &e);
	if (!r)
		r = client_await(&rank->client, &future, CROWD_WAIT_MS, "a load");
	core_future_forget(&future);
	core_load_cancel(load);
	while (!core_load_is_quiet(load))
		(void)wait_at_shielded(&rank->client.place, env_in_ms(rank->env, 1));
	core_load_drop(load);
	client_stir(&rank->client);
	return r;
}
