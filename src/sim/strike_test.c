/* The harness of `forebay-sim --kth` itself: what is counted, what fails, and that a history in which nothing fails ends well. */
#include "sim/strike.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "sim/kth_suite.h"

static void *spared_allocation(void)
{
	SPARED;
	return malloc(1);
}

static void only_the_kth_allocation_under_test_fails(void **state)
{
	void *got[4];

	strike_set(STRIKE_MEMORY, 2);
	void *before = malloc(1);
	strike_arm(true);
	got[0] = malloc(1);
	void *spared = spared_allocation();
	got[1] = calloc(1, 1);
	got[2] = strdup("x");
	got[3] = realloc(NULL, 1);
	strike_arm(false);

	assert_non_null(before);
	assert_non_null(spared);
	assert_non_null(got[0]);
	assert_non_null(got[1]);
	assert_null(got[2]);
	assert_non_null(got[3]);
	assert_int_equal(strike_seen(), 4);
	free(before);
	free(spared);
	for (int i = 0; i < 4; i++)
		free(got[i]);
}

static void what_is_not_freed_is_counted(void **state)
{
	int64_t before = strike_outstanding();
	char *kept = strdup("kept");

	free(malloc(1));
	assert_int_equal(strike_outstanding(), before + 1);
	free(kept);
	assert_int_equal(strike_outstanding(), before);
}

static void calls_of_another_kind_do_not_count(void **state)
{
	strike_set(STRIKE_FILE, 0);
	strike_arm(true);
	free(malloc(1));
	assert_false(strike_here(STRIKE_SOCKET));
	assert_true(strike_here(STRIKE_FILE));
	assert_false(strike_here(STRIKE_FILE)); /* once */
	strike_arm(false);
	assert_int_equal(strike_seen(), 2);
}

static void a_history_in_which_nothing_fails_ends_well(void **state)
{
	for (int kind = 0; kind < STRIKE_KINDS; kind++) {
		struct kth_result first, again;

		kth_play((enum strike_kind)kind, STRIKE_NONE, NULL, &first);
		kth_play((enum strike_kind)kind, STRIKE_NONE, NULL, &again);
		assert_int_equal(first.end, KTH_WELL);
		assert_false(first.late);
		assert_true(first.seen > 100);
		assert_int_equal(first.seen, again.seen); /* so that k names the same call in each run */
	}
}

static void a_history_with_fewer_calls_than_k_is_wrong(void **state)
{
	struct kth_result result;

	kth_play(STRIKE_FILE, 1000000, NULL, &result);
	assert_int_equal(result.end, KTH_WRONG);
	assert_non_null(strstr(result.words, "there were only"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(only_the_kth_allocation_under_test_fails),
		cmocka_unit_test(what_is_not_freed_is_counted),
		cmocka_unit_test(calls_of_another_kind_do_not_count),
		cmocka_unit_test(a_history_in_which_nothing_fails_ends_well),
		cmocka_unit_test(a_history_with_fewer_calls_than_k_is_wrong),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
