#include "store/patience.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define MS UINT64_C(1000000)

static void see(struct patience *patience, unsigned n, uint64_t took_ns)
{
	for (unsigned i = 0; i < n; i++)
		patience_saw(patience, took_ns);
}

static void little_is_concluded_from_few_reads(void **state)
{
	struct patience patience;

	patience_init(&patience);
	assert_int_equal(patience_limit_ns(&patience), PATIENCE_FIRST_MS * MS);
	see(&patience, PATIENCE_FEW - 1, 1);
	assert_int_equal(patience_limit_ns(&patience), PATIENCE_FIRST_MS * MS);
	see(&patience, 1, 1);
	assert_int_equal(patience_limit_ns(&patience), PATIENCE_FLOOR_MS * MS);
}

static void the_limit_follows_what_reads_take(void **state)
{
	struct patience patience;

	patience_init(&patience);
	see(&patience, PATIENCE_SEEN, 300 * MS);
	assert_int_equal(patience_limit_ns(&patience), PATIENCE_TIMES * 300 * MS);
	see(&patience, PATIENCE_SEEN, 1000 * MS);
	assert_int_equal(patience_limit_ns(&patience), PATIENCE_TIMES * 1000 * MS);
	see(&patience, PATIENCE_SEEN, MS);
	assert_int_equal(patience_limit_ns(&patience), PATIENCE_FLOOR_MS * MS);
	see(&patience, PATIENCE_SEEN, UINT64_MAX);
	assert_true(patience_limit_ns(&patience) == UINT64_MAX);
}

static void a_few_reads_that_took_for_ever_do_not_move_it(void **state)
{
	struct patience patience;

	patience_init(&patience);
	see(&patience, PATIENCE_SEEN - 7, 200 * MS);
	see(&patience, 7, 60000 * MS);
	assert_int_equal(patience_limit_ns(&patience), PATIENCE_TIMES * 200 * MS);
	see(&patience, 1, 60000 * MS);
	assert_int_equal(patience_limit_ns(&patience), PATIENCE_TIMES * 60000 * MS);
}

static void one_read_in_twenty_may_be_asked_again(void **state)
{
	struct patience patience;
	unsigned again = 0;

	patience_init(&patience);
	for (unsigned i = 1; i <= 10000; i++) {
		patience_asked(&patience);
		again += patience_again(&patience);
		assert_true(again <= AGAIN_AT_START + i / AGAIN_EVERY);
	}
	assert_int_equal(again, AGAIN_AT_START + 10000 / AGAIN_EVERY);
}

static void no_more_than_a_few_second_reads_are_saved_up(void **state)
{
	struct patience patience;
	unsigned again = 0;

	patience_init(&patience);
	for (unsigned i = 0; i < 10000; i++)
		patience_asked(&patience);
	while (patience_again(&patience))
		again++;
	assert_int_equal(again, AGAIN_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(little_is_concluded_from_few_reads),
		cmocka_unit_test(the_limit_follows_what_reads_take),
		cmocka_unit_test(a_few_reads_that_took_for_ever_do_not_move_it),
		cmocka_unit_test(one_read_in_twenty_may_be_asked_again),
		cmocka_unit_test(no_more_than_a_few_second_reads_are_saved_up),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
