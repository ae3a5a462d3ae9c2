#include "group/steps.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>

static const struct view bundle = { .ptr = (const uint8_t *)"b", .len = 1 };
static const struct view other = { .ptr = (const uint8_t *)"c", .len = 1 };

static void a_step_of_a_bundle_is_claimed_once(void **state)
{
	struct steps steps;
	struct error e = { 0 };

	steps_init(&steps);
	assert_int_equal(steps_check(&steps, bundle, 7, NULL), 0);
	assert_int_equal(steps_claim(&steps, bundle, 7, NULL), 0);
	assert_int_equal(steps_claim(&steps, bundle, 7, &e), -ERR_ESTEP);
	assert_string_equal(e.text, "this run has already saved step 7 of b");
	assert_int_equal(steps_claim(&steps, other, 7, NULL), 0);
	assert_int_equal(steps_claim(&steps, bundle, 8, NULL), 0);
	steps_fini(&steps);
}

static void who_comes_late_to_a_failed_step_is_told_the_first_reason(void **state)
{
	struct steps steps;
	struct error e = { 0 };

	steps_init(&steps);
	assert_int_equal(steps_claim(&steps, bundle, 7, NULL), 0);
	steps_fail(&steps, bundle, 7, -ECANCELED, "rank 3 cancelled the save");
	steps_fail(&steps, bundle, 7, -EIO, "and then the rest");
	assert_int_equal(steps_claim(&steps, bundle, 7, &e), -ECANCELED);
	assert_string_equal(e.text, "rank 3 cancelled the save");
	steps_fail(&steps, bundle, 8, -EIO, "before anybody came");
	assert_int_equal(steps_check(&steps, bundle, 8, NULL), -EIO);
	steps_fini(&steps);
}

static void a_step_that_is_forgotten_may_be_claimed_again(void **state)
{
	struct steps steps;

	steps_init(&steps);
	assert_int_equal(steps_claim(&steps, bundle, 7, NULL), 0);
	steps_forget(&steps, bundle, 7);
	steps_forget(&steps, bundle, 8);
	assert_int_equal(steps_claim(&steps, bundle, 7, NULL), 0);
	steps_fini(&steps);
}

static void a_long_run_forgets_its_oldest_steps_alone(void **state)
{
	struct steps steps;

	steps_init(&steps);
	for (uint64_t step = 0; step < STEPS_REMEMBERED_MAX; step++)
		assert_int_equal(steps_claim(&steps, bundle, step, NULL), 0);
	assert_int_equal(steps_check(&steps, bundle, 0, NULL), -ERR_ESTEP);
	for (uint64_t step = STEPS_REMEMBERED_MAX; step < 3 * STEPS_REMEMBERED_MAX; step++) {
		steps_fail(&steps, bundle, step, -EIO, "it failed");
		assert_int_equal(steps.map.n, STEPS_REMEMBERED_MAX);
	}
	assert_int_equal(steps_check(&steps, bundle, 2 * STEPS_REMEMBERED_MAX - 1, NULL), 0);
	assert_int_equal(steps_check(&steps, bundle, 2 * STEPS_REMEMBERED_MAX, NULL), -EIO);
	steps_fini(&steps);
}

static void steps_that_have_moved_are_known_there_alone(void **state)
{
	struct steps from, to;

	steps_init(&from);
	steps_init(&to);
	for (uint64_t step = 1; step <= 3; step++)
		assert_int_equal(steps_claim(&from, bundle, step, NULL), 0);
	steps_move(&from, &to);
	assert_int_equal(steps_check(&from, bundle, 2, NULL), 0);
	assert_int_equal(steps_check(&to, bundle, 2, NULL), -ERR_ESTEP);
	steps_forget(&to, bundle, 1);
	steps_fini(&from);
	steps_fini(&to);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_step_of_a_bundle_is_claimed_once),
		cmocka_unit_test(who_comes_late_to_a_failed_step_is_told_the_first_reason),
		cmocka_unit_test(a_step_that_is_forgotten_may_be_claimed_again),
		cmocka_unit_test(a_long_run_forgets_its_oldest_steps_alone),
		cmocka_unit_test(steps_that_have_moved_are_known_there_alone),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
