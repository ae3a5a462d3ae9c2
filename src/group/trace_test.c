#include "group/trace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "group/inside.h"

/* Saves that are nothing but what a trace looks at, in a world where time passes when the test says so. */
static uint64_t now_ns;

static uint64_t clock_now(struct env *env)
{
	return now_ns;
}

static const struct env_ops ops = { .now = clock_now };
static struct env env = { .magic = ENV_MAGIC, .ops = &ops };
static struct groups groups = { .env = &env };
static struct cgroup group = { .groups = &groups, .tenant = (char *)"t", .name = (char *)"job", .size = 2 };
static struct crank ranks[2] = { { .node = "a" }, { .node = "b" } };
static struct recipe recipe;

static int setup(void **state)
{
	now_ns = 1000;
	traces_init(&groups.traces);
	return 0;
}

static int teardown(void **state)
{
	traces_fini(&groups.traces);
	return 0;
}

/* In its place: a trace points back to its save. */
static void begin_save(struct csave *save, uint64_t id)
{
	*save = (struct csave){ .group = &group,
				.bundle = (char *)"m",
				.save_id = id,
				.recipe = &recipe,
				.ranks = ranks };
	trace_begin(save);
	assert_non_null(save->trace);
}

static void saves_that_ended_are_forgotten_the_oldest_first(void **state)
{
	for (uint64_t id = 1; id <= TRACES_MAX + 10; id++) {
		struct csave save;

		begin_save(&save, id);
		trace_left(&save);
		assert_null(save.trace);
		assert_true(groups.traces.n <= TRACES_MAX);
	}
	assert_int_equal(groups.traces.n, TRACES_MAX);
}

static void traces_of_many_hops_stay_within_their_memory(void **state)
{
	for (uint64_t id = 1; id <= TRACES_MAX; id++) {
		struct csave save;

		begin_save(&save, id);
		trace_at(&save, STATION_CAPTURE);
		for (uint64_t i = 0; i < 2 * TRACE_HOPS_MAX; i++)
			trace_hop(&save, STATION_CAPTURE, "n", i, 0, TRACE_NO_RANK);
		trace_left(&save);
		assert_true(groups.traces.bytes <= TRACES_BYTES_MAX);
	}
	assert_true(groups.traces.n > 10 && groups.traces.n < TRACES_MAX);
	traces_fini(&groups.traces);
	assert_int_equal(groups.traces.bytes, 0);
}

static void a_save_without_a_trace_goes_on(void **state)
{
	struct csave save = { .group = &group, .bundle = (char *)"m", .recipe = &recipe, .ranks = ranks };
	const struct version version = { 0 };

	trace_at(&save, STATION_PLAN);
	trace_hop(&save, STATION_PLAN, "n", 1, 1, 1);
	trace_offered(&save, 1);
	trace_published(&save, &version);
	trace_left(&save);
	assert_int_equal(groups.traces.n, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(saves_that_ended_are_forgotten_the_oldest_first, setup, teardown),
		cmocka_unit_test_setup_teardown(traces_of_many_hops_stay_within_their_memory, setup, teardown),
		cmocka_unit_test_setup_teardown(a_save_without_a_trace_goes_on, setup, teardown),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
