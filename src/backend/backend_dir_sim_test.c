/*
 * backend/backend_dir_sim_test.c: the directory driver over simulated disks: the suite, and histories in which nodes die, power
 * fails and calls err. What has been promised must be there afterwards, and nothing else but whole objects.
 */
#include "backend/backend_suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "sim/world.h"

#define STORE	  "/store"
#define NODES	  3
#define KEYS	  4
#define WRITERS	  12 /* puts under way together: NODES for each of KEYS */
#define TEXT_LEN  3000
#define HISTORIES 300
#define TURNS_MAX 1000000

/* ---- the suite ---- */

static struct world *world;

static int suite_open(struct backend_suite *suite, struct backend **ret)
{
	world = world_new(1, WEATHER_CALM, NULL);
	world_share(world, STORE);
	return backend_dir_open(world_env_new(world, "n1"), STORE, true, ret, NULL);
}

static void suite_close(struct backend_suite *suite, struct backend *backend)
{
	backend_free(backend);
	assert_int_equal(world_leftovers(world), 0);
	world_free(world);
}

/* ---- histories ---- */

struct writer {
	struct backend_req req;
	struct backend_vec vec;
	char text[TEXT_LEN];
	bool finished;
};

static void writer_finished(struct backend_req *req)
{
	container_of(req, struct writer, req)->finished = true;
}

/* Turns the loop until every writer is done. */
static void turn_until_done(struct writer *writers)
{
	for (int turns = 0; turns < TURNS_MAX; turns++) {
		int left = 0;

		for (int i = 0; i < WRITERS; i++)
			left += !writers[i].finished;
		if (!left)
			return;
		(void)loop_turn(world->loop); /* -EDEADLK after the last: nothing else is going on */
	}
	fail_msg("writers that never finish");
}

static void writer_start(struct writer *w, struct backend *backend, int i)
{
	memset(w->text, 'a' + i, sizeof(w->text));
	w->vec = (struct backend_vec){ .ptr = w->text,
				       .len = sizeof(w->text),
				       .crc = crc32c(0, w->text, sizeof(w->text)) };
	w->req.op = BACKEND_PUT;
	(void)snprintf(w->req.key, sizeof(w->req.key), "t/x/v/%d/root", i % KEYS);
	w->req.vec = &w->vec;
	w->req.n_vec = 1;
	w->req.if_absent = true;
	w->req.finish = writer_finished;
	w->finished = false;
	backend_submit(backend, &w->req);
}

static void calm(void)
{
	memset(world->faults.per_million, 0, sizeof(world->faults.per_million));
}

/* The object under the key number @k as a fresh node sees it: whose it is, -1: none. It is whole, or the test fails. */
static int owner_of(struct backend *backend, int k)
{
	char back[TEXT_LEN + 1];
	struct backend_req req = { .op = BACKEND_GET, .dst = back, .len = sizeof(back) };

	(void)snprintf(req.key, sizeof(req.key), "t/x/v/%d/root", k);
	int r = backend_suite_call(backend, &req);
	if (r == -ENOENT)
		return -1;
	assert_int_equal(r, 0);
	assert_int_equal(req.got, TEXT_LEN);
	for (int i = 1; i < TEXT_LEN; i++)
		assert_int_equal(back[i], back[0]);
	return back[0] - 'a';
}

static void assert_promises(struct backend *fresh, const struct writer *writers)
{
	for (int k = 0; k < KEYS; k++) {
		int owner = owner_of(fresh, k), winners = 0;

		for (int i = k; i < WRITERS; i += KEYS) {
			if (writers[i].req.result == 0)
				assert_int_equal(owner, i);
			if (writers[i].req.result == BACKEND_EXISTS)
				assert_true(owner >= 0 && owner != i);
			winners += writers[i].req.result == 0;
		}
		assert_true(winners <= 1);
		assert_true(owner < 0 || owner % KEYS == k);
	}
}

/* In a calm world a fresh node settles every key: it finds an object, or its own is the first. */
static void assert_settles(struct backend *fresh)
{
	for (int k = 0; k < KEYS; k++) {
		char key[64], text[TEXT_LEN + 1];
		int owner = owner_of(fresh, k);

		memset(text, 'a' + WRITERS + k, TEXT_LEN);
		text[TEXT_LEN] = 0;
		(void)snprintf(key, sizeof(key), "t/x/v/%d/root", k);
		assert_int_equal(backend_suite_put(fresh, key, text, true), owner < 0 ? 0 : BACKEND_EXISTS);
	}
}

static void history(uint64_t seed)
{
	struct env *envs[NODES];
	struct backend *backends[NODES], *fresh;
	struct writer *writers = calloc(WRITERS, sizeof(*writers));

	CHECK(writers);
	world = world_new(seed, WEATHER_DRAWN, NULL);
	world_share(world, STORE);
	for (int n = 0; n < NODES; n++) {
		char name[16];

		(void)snprintf(name, sizeof(name), "n%d", n);
		envs[n] = world_env_new(world, name);
		CHECK(backend_dir_open(envs[n], STORE, true, &backends[n], NULL) == 0);
	}
	for (int i = 0; i < WRITERS; i++)
		writer_start(&writers[i], backends[i % NODES], i);
	if (world_chance(world, 700000)) {
		uint64_t turns = world_random(world, 1500);

		for (uint64_t t = 0; t < turns; t++)
			(void)loop_turn(world->loop);
		world_kill(envs[world_random(world, NODES)], DEATH_DRAWN);
	}
	turn_until_done(writers);

	bool all_died = world_chance(world, 500000);
	for (int n = 0; n < NODES; n++) {
		backend_free(backends[n]);
		if (all_died)
			world_kill(envs[n], DEATH_MACHINE);
	}
	if (all_died)
		world_power_loss(world, STORE);
	calm();
	CHECK(backend_dir_open(world_env_new(world, "fresh"), STORE, true, &fresh, NULL) == 0);
	assert_promises(fresh, writers);
	assert_settles(fresh);
	world_power_loss(world, STORE);
	assert_promises(fresh, writers);
	backend_free(fresh);
	assert_int_equal(world_leftovers(world), 0);
	world_free(world);
	free(writers);
}

static void what_was_promised_outlives_deaths_and_power_loss(void **state)
{
	for (uint64_t seed = 1; seed <= HISTORIES; seed++)
		history(seed);
}

static void a_deleted_object_stays_deleted(void **state)
{
	for (uint64_t seed = 1; seed <= HISTORIES / 10; seed++) {
		struct backend *backend;
		struct backend_req req = { .op = BACKEND_DELETE, .key = "a/b/c" };

		assert_int_equal(suite_open(NULL, &backend), 0);
		assert_int_equal(backend_suite_put(backend, "a/b/c", "x", true), 0);
		assert_int_equal(backend_suite_call(backend, &req), 0);
		world->dice += seed;
		world_power_loss(world, STORE);
		req.op = BACKEND_HEAD;
		assert_int_equal(backend_suite_call(backend, &req), -ENOENT);
		assert_int_equal(backend_suite_put(backend, "a/b/c", "y", true), 0);
		suite_close(NULL, backend);
	}
}

struct deletion {
	struct timer timer;
	struct backend *backend;
	struct backend_req req;
	bool finished;
};

static void deletion_finished(struct backend_req *req)
{
	container_of(req, struct deletion, req)->finished = true;
}

static void delete_now(struct timer *timer)
{
	struct deletion *deletion = container_of(timer, struct deletion, timer);

	backend_submit(deletion->backend, &deletion->req);
}

static void what_is_deleted_while_a_put_takes_it_for_there_is_made_again(void **state)
{
	struct deletion gone = { .timer.fn = delete_now,
				 .req = { .op = BACKEND_DELETE, .key = "t/x/v/0/root", .finish = deletion_finished } };
	struct writer *writer = calloc(1, sizeof(*writer));

	CHECK(writer);
	assert_int_equal(suite_open(NULL, &gone.backend), 0);
	assert_int_equal(backend_suite_put(gone.backend, gone.req.key, "another's", true), 0);
	world_inject(world, FAULT_SLOW, "sync /store/t/x/v/0");
	writer_start(writer, gone.backend, 0);
	assert_int_equal(timer_arm(world->loop, &gone.timer, world->now_ns + 100 * NS_PER_MS),
			 0); /* is amid that sync */
	while (!gone.finished && !writer->finished)
		(void)loop_turn(world->loop);
	assert_false(writer->finished);
	while (!writer->finished)
		(void)loop_turn(world->loop);
	assert_int_equal(writer->req.result, 0);
	assert_int_equal(owner_of(gone.backend, 0), 0);
	suite_close(NULL, gone.backend);
	free(writer);
}

static void a_link_that_was_sent_twice_is_a_success(void **state)
{
	struct backend *backend;

	assert_int_equal(suite_open(NULL, &backend), 0);
	world_inject(world, FAULT_LINK_TWICE, NULL);
	assert_int_equal(backend_suite_put(backend, "a/b", "x", true), 0);
	assert_int_equal(world->faults.injected[FAULT_LINK_TWICE], 1);
	suite_close(NULL, backend);
}

static void a_failed_sync_publishes_nothing_and_the_next_attempt_is_a_new_file(void **state)
{
	struct backend *backend;
	struct backend_req req = { .op = BACKEND_HEAD, .key = "a/b" };

	assert_int_equal(suite_open(NULL, &backend), 0);
	world_inject(world, FAULT_SYNC_EIO, ".tmp/");
	assert_int_equal(backend_suite_put(backend, "a/b", "x", true), -EIO);
	assert_int_equal(world->faults.injected[FAULT_SYNC_EIO], 1);
	assert_int_equal(backend_suite_call(backend, &req), -ENOENT);
	assert_int_equal(backend_suite_put(backend, "a/b", "x", true), 0);
	world_power_loss(world, STORE);
	assert_int_equal(backend_suite_call(backend, &req), 0);
	assert_int_equal(req.size, 1);
	suite_close(NULL, backend);
}

static void a_dead_node_finishes_its_requests_with_ESHUTDOWN(void **state)
{
	struct backend *backend;
	struct backend_req req = { .op = BACKEND_BEGIN, .key = "a/b" };

	assert_int_equal(suite_open(NULL, &backend), 0);
	assert_int_equal(backend_suite_call(backend, &req), 0);
	world_kill(backend->env, DEATH_PROCESS);
	assert_int_equal(backend_suite_put(backend, "k", "x", true), -ESHUTDOWN);
	req.op = BACKEND_COMMIT;
	assert_int_equal(backend_suite_call(backend, &req), -ESHUTDOWN);
	assert_null(req.upload);
	suite_close(NULL, backend);
}

int main(void)
{
	struct backend_suite suite = { .name = "backend_dir over the suite, simulated",
				       .open = suite_open,
				       .close = suite_close };
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_deleted_while_a_put_takes_it_for_there_is_made_again),
		cmocka_unit_test(a_link_that_was_sent_twice_is_a_success),
		cmocka_unit_test(a_failed_sync_publishes_nothing_and_the_next_attempt_is_a_new_file),
		cmocka_unit_test(a_deleted_object_stays_deleted),
		cmocka_unit_test(a_dead_node_finishes_its_requests_with_ESHUTDOWN),
		cmocka_unit_test(what_was_promised_outlives_deaths_and_power_loss),
	};
	int failed = backend_suite_run(&suite);

	return failed + cmocka_run_group_tests_name("backend_dir, simulated", tests, NULL, NULL);
}
