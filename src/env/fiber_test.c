#include "env/fiber.h"

#include <setjmp.h>
#include <stddef.h>
#include <stdarg.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/check.h"
#include "base/cleanup.h"

#if __has_include(<valgrind/valgrind.h>)
#include <valgrind/valgrind.h>
#else
#define RUNNING_ON_VALGRIND 0
#endif

/* A world in which time passes only when the loop sleeps; with nothing to wait for, the loop ends with -EDEADLK. */
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

/* What fibers tell: names and results, in order. */
static char told[4096];

static void tell(const char *what, int result)
{
	size_t len = strlen(told);

	snprintf(told + len, sizeof(told) - len, "%s=%d ", what, result);
}

static struct loop *loop;
static struct nursery nursery;
static struct waitplace place;

static int setup(void **state)
{
	const struct clockwork clockwork = { .now = clock_now, .poll = clock_poll, .wake = clock_wake };

	now_ns = 1000;
	told[0] = 0;
	loop = loop_new(&clockwork);
	nursery_init(&nursery, loop);
	waitplace_init(&place);
	return loop ? 0 : -1;
}

static int teardown(void **state)
{
	loop_free(loop);
	return 0;
}

static void start(const char *name, int (*fn)(void *arg))
{
	assert_int_equal(fiber_start(&nursery, name, fn, (void *)name), 0);
}

static void run(void)
{
	assert_int_equal(loop_run(loop), -EDEADLK);
}

static int tell_only(void *arg)
{
	tell(arg, 0);
	return 0;
}

static void a_fiber_first_runs_on_the_next_turn_and_in_order(void **state)
{
	start("a", tell_only);
	start("b", tell_only);
	assert_string_equal(told, "");
	assert_int_equal(nursery.n, 2);
	run();
	assert_string_equal(told, "a=0 b=0 ");
	assert_true(nursery_is_empty(&nursery));
}

static int know_oneself(void *arg)
{
	tell(fiber_name(), fiber_running());
	assert_ptr_equal(fiber_loop(), loop);
	return 0;
}

static void a_fiber_knows_its_name_and_the_loop_is_none(void **state)
{
	assert_string_equal(fiber_name(), "loop");
	assert_false(fiber_running());
	assert_false(fiber_cancelled());
	start("me", know_oneself);
	run();
	assert_string_equal(told, "me=1 ");
}

static int sleep_by_letter(void *arg)
{
	uint64_t at_ns = now_ns + 10 * (uint64_t)(*(const char *)arg - 'a');
	int r = fiber_sleep_until(at_ns);

	tell(arg, r);
	return r;
}

static void sleepers_wake_by_time_then_by_order(void **state)
{
	start("c", sleep_by_letter);
	start("b", sleep_by_letter);
	start("a", sleep_by_letter); /* its time is past: wakes after one yield */
	start("b", sleep_by_letter);
	run();
	assert_string_equal(told, "a=0 b=0 b=0 c=0 ");
	assert_int_equal(now_ns, 1020);
}

static int wait_forever(void *arg)
{
	int r = wait_at(&place, FOREVER);

	tell(arg, r);
	return r;
}

static int wait_until_1010(void *arg)
{
	int r = wait_at(&place, 1010);

	tell(arg, r);
	return r;
}

static int wait_until_past(void *arg)
{
	int r = wait_at(&place, 1);

	tell(arg, r);
	return r;
}

static int wake_place(void *arg)
{
	wake_all(&place);
	tell(arg, 0);
	return 0;
}

static void waiters_wake_first_come_first_served(void **state)
{
	start("a", wait_forever);
	start("b", wait_until_1010);
	start("c", wait_forever);
	start("wake", wake_place);
	run();
	assert_string_equal(told, "wake=0 a=0 b=0 c=0 ");
	assert_int_equal(now_ns, 1000); /* b's deadline was taken back */
}

static void a_wait_times_out_at_its_deadline(void **state)
{
	start("a", wait_until_1010);
	run();
	assert_string_equal(told, "a=-110 ");
	assert_int_equal(now_ns, 1010);
	assert_int_equal(nursery.first_error, -ETIMEDOUT);
}

static void a_deadline_in_the_past_times_out_after_one_yield(void **state)
{
	start("past", wait_until_past);
	start("other", tell_only);
	run();
	assert_string_equal(told, "other=0 past=-110 ");
	assert_int_equal(now_ns, 1000);
}

static int sleep_then_wake(void *arg)
{
	fiber_sleep_until(1010);
	wake_all(&place);
	return 0;
}

static int wait_twice(void *arg)
{
	tell(arg, wait_at(&place, 1010));
	tell(arg, wait_at(&place, 2000));
	return 0;
}

/* Both timers fire in one turn, then the sleeper runs and wakes a waiter that has its result already. */
static void a_waiter_woken_and_timed_out_in_one_turn_gets_one_result(void **state)
{
	start("s", sleep_then_wake);
	start("w", wait_twice);
	run();
	assert_string_equal(told, "w=-110 w=-110 ");
}

static int wake_then_time_out(void *arg)
{
	wake_all(&place); /* in the turn in whose timer phase the deadline of 1000 would fire */
	return 0;
}

static int wait_until_now(void *arg)
{
	tell(arg, wait_at(&place, now_ns));
	tell(arg, wait_at(&place, now_ns + 5));
	return 0;
}

static void a_wake_before_the_time_out_of_the_same_turn_wins(void **state)
{
	start("w", wait_until_now);
	start("s", wake_then_time_out);
	run();
	assert_string_equal(told, "w=0 w=-110 ");
}

static int cancel_all(void *arg)
{
	nursery_cancel(&nursery);
	tell("cancel", 0);
	return 0;
}

static int wait_and_clean_up(void *arg)
{
	int r = wait_at(&place, FOREVER);
	tell(arg, r);
	tell("sleep", fiber_sleep_until(5000));
	tell("cancelled", fiber_cancelled());
	tell("shielded", wait_at_shielded(&place, 1005));
	return r;
}

static void cancelling_fails_this_wait_and_all_later_ones_but_shielded_ones(void **state)
{
	start("a", wait_and_clean_up);
	start("x", cancel_all);
	run();
	assert_string_equal(told, "cancel=0 a=-125 sleep=-125 cancelled=1 shielded=-110 ");
	assert_int_equal(nursery.first_error, 0); /* being cancelled is no error */
	assert_int_equal(fiber_start(&nursery, "late", tell_only, NULL), -ECANCELED);
}

static int wait_shielded(void *arg)
{
	tell(arg, wait_at_shielded(&place, 1500));
	tell(arg, wait_at(&place, 1600));
	return -EIO;
}

static void a_shielded_wait_is_not_cut_short(void **state)
{
	start("s", wait_shielded);
	start("x", cancel_all);
	run();
	assert_string_equal(told, "cancel=0 s=-110 s=-125 ");
	assert_int_equal(now_ns, 1500);
	assert_int_equal(nursery.first_error, -EIO);
}

static int wake_then_cancel(void *arg)
{
	wake_all(&place);
	nursery_cancel(&nursery);
	return 0;
}

static void a_wake_before_the_cancel_is_not_lost(void **state)
{
	start("a", wait_and_clean_up);
	start("x", wake_then_cancel);
	run();
	assert_string_equal(told, "a=0 sleep=-125 cancelled=1 shielded=-110 ");
}

/* ---- nurseries ---- */

static int fail_with_letter(void *arg)
{
	fiber_sleep_until(now_ns + 10 * (uint64_t)(*(const char *)arg - 'a'));
	return -(*(const char *)arg);
}

static int parent_waits(void *arg)
{
	_cleanup_(nursery_fini) struct nursery children = { 0 };

	nursery_init(&children, fiber_loop());
	assert_int_equal(nursery_wait(&children, 0), 0); /* nobody to wait for */
	assert_int_equal(fiber_start(&children, "c", fail_with_letter, (void *)"c"), 0);
	assert_int_equal(fiber_start(&children, "b", fail_with_letter, (void *)"b"), 0);
	tell("early", nursery_wait(&children, now_ns + 1));
	tell("wait", nursery_wait(&children, FOREVER));
	tell("empty", nursery_is_empty(&children));
	return 0;
}

static void a_nursery_yields_the_error_of_the_child_that_failed_first(void **state)
{
	start("p", parent_waits);
	run();
	assert_string_equal(told, "early=-110 wait=-98 empty=1 ");
}

static int tell_on_cancel(void *arg)
{
	int r = wait_at(&place, FOREVER);

	assert_int_equal(wait_at_shielded(&place, now_ns + 100), -ETIMEDOUT); /* it takes time to clean up */
	tell(arg, r);
	return r;
}

static int parent_leaves(void *arg)
{
	_cleanup_(nursery_fini) struct nursery children = { 0 };

	nursery_init(&children, fiber_loop());
	assert_int_equal(fiber_start(&children, "c1", tell_on_cancel, (void *)"c1"), 0);
	assert_int_equal(fiber_start(&children, "c2", tell_on_cancel, (void *)"c2"), 0);
	int r = wait_at(&place, now_ns + 10);
	tell("parent", r);
	return r;
}

static int grandparent(void *arg)
{
	int r = parent_leaves(arg);

	tell("left", (int)now_ns);
	return r;
}

static void a_nursery_s_scope_ends_after_its_fibers(void **state)
{
	start("g", grandparent);
	run();
	assert_string_equal(told, "parent=-110 c1=-125 c2=-125 left=1110 ");
}

static void cancelling_a_parent_reaches_the_children_through_its_scope(void **state)
{
	start("g", grandparent);
	start("x", cancel_all);
	run();
	assert_string_equal(told, "cancel=0 parent=-125 c1=-125 c2=-125 left=1100 ");
}

static void a_zeroed_nursery_may_be_finished(void **state)
{
	struct nursery zero = { 0 };

	nursery_fini(&zero);
	nursery_fini(&nursery); /* outside of fibers, without children */
}

/* ---- await ---- */

static struct await awaited;

static int await_it(void *arg)
{
	int r = await(&awaited, 1010);

	tell(arg, r);
	if (r == -ETIMEDOUT || r == -ECANCELED)
		tell("again", await_shielded(&awaited));
	return 0;
}

static int finish_it(void *arg)
{
	assert_int_equal(wait_at_shielded(&place, 1005), -ETIMEDOUT);
	awaited.done.fn(&awaited.done, 42);
	return 0;
}

static int finish_it_late(void *arg)
{
	assert_int_equal(wait_at_shielded(&place, 1015), -ETIMEDOUT);
	awaited.done.fn(&awaited.done, 43);
	return 0;
}

static void await_returns_the_result(void **state)
{
	await_init(&awaited);
	start("a", await_it);
	start("f", finish_it);
	run();
	assert_string_equal(told, "a=42 ");
}

static void await_that_timed_out_can_be_taken_up_again(void **state)
{
	await_init(&awaited);
	start("a", await_it);
	start("f", finish_it_late);
	run();
	assert_string_equal(told, "a=-110 again=43 ");
}

static void await_is_cancelled_and_then_shielded(void **state)
{
	await_init(&awaited);
	start("a", await_it);
	start("f", finish_it);
	start("x", cancel_all);
	run();
	assert_string_equal(told, "cancel=0 a=-125 again=42 ");
}

static void await_of_a_finished_operation_does_not_wait(void **state)
{
	await_init(&awaited);
	awaited.done.fn(&awaited.done, 7);
	start("x", cancel_all); /* even in a fiber that is cancelled: nothing is under way */
	start("a", await_it);
	run();
	assert_string_equal(told, "cancel=0 a=7 ");
}

/* ---- stacks ---- */

static int use_stack(void *arg)
{
	volatile char bytes[FIBER_STACK_BYTES / 2];

	for (size_t i = 0; i < sizeof(bytes); i += 512)
		bytes[i] = (char)i;
	fiber_sleep_until(now_ns);
	for (size_t i = 0; i < sizeof(bytes); i += 512)
		assert_int_equal(bytes[i], (char)i);
	return 0;
}

static void stacks_are_whole_and_used_again(void **state)
{
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < 300; i++) /* more than are kept */
			assert_int_equal(fiber_start(&nursery, "deep", use_stack, NULL), 0);
		run();
	}
	assert_int_equal(nursery.first_error, 0);
}

static int use_a_little_stack(void *arg)
{
	volatile char bytes[2 * 4096]; /* beside what a start takes, below what is usual */

	for (size_t i = 0; i < sizeof(bytes); i += 512)
		bytes[i] = (char)i;
	return fiber_sleep_until(now_ns);
}

static long faults_so_far(void)
{
	struct rusage usage;

	assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
	return usage.ru_minflt;
}

static void fibers_that_were_prepared_take_no_memory_when_they_run(void **state)
{
	enum { N = 200 };

	fibers_prepare(loop, N);
	long before = faults_so_far();
	for (int i = 0; i < N; i++)
		assert_int_equal(fiber_start(&nursery, "one", use_a_little_stack, NULL), 0);
	run();
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* whose shadows are memory, too */
	if (!RUNNING_ON_VALGRIND)
		assert_true(faults_so_far() - before < N / 2);
#else
	(void)before;
#endif
}

static int yield_often(void *arg)
{
	for (int i = 0; i < 1000; i++)
		fiber_sleep_until(0);
	return 0;
}

static void fibers_switch_back_and_forth(void **state)
{
	for (int i = 0; i < 10; i++)
		assert_int_equal(fiber_start(&nursery, "busy", yield_often, NULL), 0);
	run();
	assert_true(nursery_is_empty(&nursery));
}

#ifndef __SANITIZE_THREAD__ /* whose shadow of so many fibers does not fit into memory */
static void there_is_a_limit_of_fibers_and_it_is_an_answer(void **state)
{
	int r = 0, n = 0;

	if (RUNNING_ON_VALGRIND)
		return; /* which has no room for so many mappings */
	while (!(r = fiber_start(&nursery, "one", wait_until_past, (void *)"")))
		n++;
	/* -ENOMEM where the system allows fewer mappings than that */
	assert_true((r == -EAGAIN && n == FIBERS_MAX) || r == -ENOMEM);
	nursery_cancel(&nursery);
	run();
	assert_true(nursery_is_empty(&nursery));
}
#endif

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_fiber_first_runs_on_the_next_turn_and_in_order),
		TEST(a_fiber_knows_its_name_and_the_loop_is_none),
		TEST(sleepers_wake_by_time_then_by_order),
		TEST(waiters_wake_first_come_first_served),
		TEST(a_wait_times_out_at_its_deadline),
		TEST(a_deadline_in_the_past_times_out_after_one_yield),
		TEST(a_waiter_woken_and_timed_out_in_one_turn_gets_one_result),
		TEST(a_wake_before_the_time_out_of_the_same_turn_wins),
		TEST(cancelling_fails_this_wait_and_all_later_ones_but_shielded_ones),
		TEST(a_shielded_wait_is_not_cut_short),
		TEST(a_wake_before_the_cancel_is_not_lost),
		TEST(a_nursery_yields_the_error_of_the_child_that_failed_first),
		TEST(a_nursery_s_scope_ends_after_its_fibers),
		TEST(cancelling_a_parent_reaches_the_children_through_its_scope),
		TEST(a_zeroed_nursery_may_be_finished),
		TEST(await_returns_the_result),
		TEST(await_that_timed_out_can_be_taken_up_again),
		TEST(await_is_cancelled_and_then_shielded),
		TEST(await_of_a_finished_operation_does_not_wait),
		TEST(stacks_are_whole_and_used_again),
		TEST(fibers_that_were_prepared_take_no_memory_when_they_run),
		TEST(fibers_switch_back_and_forth),
#ifndef __SANITIZE_THREAD__
		TEST(there_is_a_limit_of_fibers_and_it_is_an_answer),
#endif
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
