#include "group/state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void a_save_goes_forward_one_state_at_a_time(void **state)
{
	for (int from = 0; from < SAVE_STATES; from++)
		for (int to = 0; to < SAVE_FAILED; to++)
			if (to != from + 1 && !(from == SAVE_CAPTURING && to == SAVE_CAPTURING))
				assert_false(save_state_may_move(from, to));
}

static void it_fails_from_every_state_that_is_not_an_end(void **state)
{
	for (int from = 0; from < SAVE_STATES; from++)
		assert_int_equal(save_state_may_move(from, SAVE_FAILED), from < SAVE_DURABLE);
}

static void nothing_leaves_an_end(void **state)
{
	for (int to = 0; to < SAVE_STATES; to++) {
		assert_false(save_state_may_move(SAVE_DURABLE, to));
		assert_false(save_state_may_move(SAVE_FAILED, to));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_save_goes_forward_one_state_at_a_time),
		cmocka_unit_test(it_fails_from_every_state_that_is_not_an_end),
		cmocka_unit_test(nothing_leaves_an_end),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
