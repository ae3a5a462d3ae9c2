#include "cluster/cluster.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "cluster/bed_suite.h"

/* Drivers that hold every request until the test lets it go, in a world where time passes only when nothing else does. */
static uint64_t now_ns;

static uint64_t clock_now(void *arg)
{
	return now_ns;
}

static int clock_poll(void *arg, uint64_t until_ns)
{
	if (until_ns == FOREVER)
		return -EDEADLK;
	if (until_ns > now_ns)
		now_ns = until_ns;
	return 0;
}

static void clock_wake(void *arg)
{
}

static struct backend_req *backend_held; /* the last one submitted */
static struct meta_req *meta_held;
static unsigned n_aborts;

static void backend_hold(struct backend *backend, struct backend_req *req)
{
	n_aborts += req->op == BACKEND_ABORT;
	backend_held = req;
}

static void meta_hold(struct meta *meta, struct meta_req *req)
{
	meta_held = req;
}

static const struct backend_driver backend_driver = { .name = "held", .submit = backend_hold };
static const struct meta_driver meta_driver = { .name = "held", .submit = meta_hold };
static struct env env;
static struct backend backend;
static struct meta meta;
static unsigned released;

static int setup(void **state)
{
	const struct clockwork clockwork = { .now = clock_now, .poll = clock_poll, .wake = clock_wake };

	now_ns = 1000;
	released = n_aborts = 0;
	backend_held = NULL;
	meta_held = NULL;
	env = (struct env){ .magic = ENV_MAGIC, .loop = loop_new(&clockwork), .name = "test" };
	backend = (struct backend){ .magic = BACKEND_MAGIC, .driver = &backend_driver, .env = &env };
	meta = (struct meta){ .magic = META_MAGIC, .driver = &meta_driver, .env = &env };
	return 0;
}

static int teardown(void **state)
{
	loop_free(env.loop);
	return 0;
}

static void release(void *held)
{
	released++;
	free(held);
}

/* Runs @fn to its end, or until nothing happens any more: then the nursery is cancelled. */
static void run(int (*fn)(void *arg), void *arg)
{
	struct nursery nursery;

	nursery_init(&nursery, env.loop);
	EXPECT_INT(fiber_start(&nursery, "test", fn, arg), 0);
	while (!nursery_is_empty(&nursery))
		if (loop_turn(env.loop))
			nursery_cancel(&nursery);
}

static void let_backend_go(int result)
{
	backend_held->result = result;
	backend_held->finish(backend_held);
}

static void let_meta_go(int result)
{
	meta_held->result = result;
	meta_held->finish(meta_held);
}

/* ---- backend ---- */

static int get_until_100(void *arg)
{
	struct backend_call *call = backend_call_new(BACKEND_GET, "a/b");
	struct error e;

	call->release = release;
	call->held = malloc(10);
	EXPECT_CALL(backend_call_run(&backend, &call, *(uint64_t *)arg, &e), -ETIMEDOUT, &e);
	EXPECT(!call && strstr(e.text, "a/b"));
	return 0;
}

static void a_call_that_timed_out_ends_alone_and_gives_back_what_it_holds(void **state)
{
	uint64_t deadline_ns = now_ns + 100;

	run(get_until_100, &deadline_ns);
	assert_int_equal(backend.n_abandoned, 1);
	assert_int_equal(released, 0);
	let_backend_go(0);
	assert_int_equal(backend.n_abandoned, 0);
	assert_int_equal(released, 1);
}

static int begin_for_ever(void *arg)
{
	struct backend_call *call = backend_call_new(BACKEND_BEGIN, "a/b");
	struct error e;

	EXPECT_CALL(backend_call_run(&backend, &call, FOREVER, &e), -ECANCELED, &e);
	EXPECT(!call);
	return 0;
}

static void an_upload_that_nobody_waits_for_is_aborted(void **state)
{
	run(begin_for_ever, NULL);
	assert_int_equal(backend.n_abandoned, 1);
	backend_held->upload = (struct backend_upload *)&backend; /* a driver's handle */
	let_backend_go(0);
	assert_int_equal(n_aborts, 1);
	assert_int_equal(backend_held->op, BACKEND_ABORT);
	let_backend_go(0);
	assert_int_equal(backend.n_abandoned, 0);
}

struct letting {
	struct task task;
	int result;
};

static void let_go(struct task *task)
{
	let_backend_go(container_of(task, struct letting, task)->result);
}

static int run_again(void *arg)
{
	_cleanup_(cleanup_backend_call_free) struct backend_call *call = backend_call_new(BACKEND_PUT, "a/b");
	struct letting letting = { .task.fn = let_go };
	struct error e;
	const int results[] = { 0, BACKEND_EXISTS, -EIO };

	for (size_t i = 0; i < ARRAY_LEN(results); i++) {
		letting.result = results[i];
		loop_post(env.loop, &letting.task);
		EXPECT_CALL(backend_call_run(&backend, &call, now_ns + 100, &e), results[i], &e);
		EXPECT(call);
	}
	EXPECT(strstr(e.text, "put of a/b"));
	return 0;
}

static void a_call_can_run_again_and_outcomes_are_passed_on(void **state)
{
	run(run_again, NULL);
	assert_int_equal(backend.n_abandoned, 0);
}

static int long_key(void *arg)
{
	char key[BACKEND_KEY_MAX + 2];
	struct error e;

	memset(key, 'x', sizeof(key) - 1);
	key[sizeof(key) - 1] = 0;
	EXPECT_CALL(backend_write(&backend, key, view_str("bytes"), true, now_ns + 100, &e), -EINVAL, &e);
	EXPECT(!backend_held); /* no driver sees it */
	return 0;
}

static void a_key_that_is_too_long_is_refused(void **state)
{
	run(long_key, NULL);
}

/* A driver with one object of so many bytes, which answers on the next turn. */
static struct {
	struct task task;
	size_t bytes;
	size_t asked[4]; /* bytes of each read */
	unsigned n_reads;
} stored;

static void stored_answer(struct task *task)
{
	backend_held->got = backend_held->len < stored.bytes ? backend_held->len : stored.bytes;
	for (size_t i = 0; i < backend_held->got; i++)
		((uint8_t *)backend_held->dst)[i] = (uint8_t)(i * 31 >> 3);
	let_backend_go(0);
}

static void stored_submit(struct backend *of, struct backend_req *req)
{
	EXPECT(req->op == BACKEND_GET && !req->offset && stored.n_reads < ARRAY_LEN(stored.asked));
	stored.asked[stored.n_reads++] = req->len;
	backend_held = req;
	stored.task.fn = stored_answer;
	loop_post(env.loop, &stored.task);
}

static const struct backend_driver stored_driver = { .name = "stored", .submit = stored_submit };

static int read_all_sizes(void *arg)
{
	static const struct {
		size_t bytes, max;
		int result;
		unsigned n_reads;
		size_t most; /* bytes of the largest read */
	} cases[] = {
		{ 0, 1 << 20, 0, 1, 65537 },
		{ 1000, 1 << 20, 0, 1, 65537 },
		{ 65536, 1 << 20, 0, 1, 65537 },
		{ 65537, 1 << 20, 0, 2, (1 << 20) + 1 },
		{ 1 << 20, 1 << 20, 0, 2, (1 << 20) + 1 },
		{ (1 << 20) + 1, 1 << 20, -EFBIG, 2, (1 << 20) + 1 },
		{ 4096, 4096, 0, 1, 4097 },
		{ 4097, 4096, -EFBIG, 1, 4097 },
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		_cleanup_(buf_fini) struct buf bytes = { 0 };
		struct error e = { 0 };

		stored.bytes = cases[i].bytes;
		stored.n_reads = 0;
		EXPECT_CALL(backend_read(&backend, "a/b", cases[i].max, &bytes, FOREVER, &e), cases[i].result, &e);
		EXPECT(stored.n_reads == cases[i].n_reads && stored.asked[stored.n_reads - 1] == cases[i].most);
		EXPECT(bytes.len == (cases[i].result ? 0 : cases[i].bytes));
		for (size_t k = 0; k < bytes.len; k++)
			EXPECT(bytes.ptr[k] == (uint8_t)(k * 31 >> 3));
	}
	return 0;
}

static void only_a_large_object_is_given_the_memory_of_the_largest(void **state)
{
	backend.driver = &stored_driver;
	run(read_all_sizes, NULL);
}

/* ---- meta ---- */

static int get_for_ever(void *arg)
{
	_cleanup_(buf_fini) struct buf value = { 0 };
	struct error e;

	EXPECT_CALL(meta_get(&meta, view_str("key"), &value, FOREVER, &e), -ECANCELED, &e);
	return 0;
}

static void a_meta_request_that_nobody_waits_for_frees_itself(void **state)
{
	run(get_for_ever, NULL);
	assert_int_equal(meta.n_abandoned, 1);
	let_meta_go(-EIO);
	assert_int_equal(meta.n_abandoned, 0);
}

/* ---- the end ---- */

static int drain(void *arg)
{
	uint64_t deadline_ns = now_ns + NS_PER_S;

	EXPECT_INT(calls_drain(&backend, &meta, deadline_ns), -ETIMEDOUT);
	EXPECT(now_ns >= deadline_ns);
	let_backend_go(0);
	EXPECT_INT(calls_drain(&backend, NULL, now_ns), 0);
	EXPECT_INT(calls_drain(&backend, &meta, now_ns), -ETIMEDOUT);
	let_meta_go(0);
	EXPECT_INT(calls_drain(&backend, &meta, now_ns), 0);
	return 0;
}

static void draining_waits_for_what_was_abandoned(void **state)
{
	uint64_t deadline_ns = now_ns + 100;

	run(get_until_100, &deadline_ns);
	run(get_for_ever, NULL);
	run(drain, NULL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_call_that_timed_out_ends_alone_and_gives_back_what_it_holds),
		TEST(an_upload_that_nobody_waits_for_is_aborted),
		TEST(a_call_can_run_again_and_outcomes_are_passed_on),
		TEST(a_key_that_is_too_long_is_refused),
		TEST(only_a_large_object_is_given_the_memory_of_the_largest),
		TEST(a_meta_request_that_nobody_waits_for_frees_itself),
		TEST(draining_waits_for_what_was_abandoned),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
