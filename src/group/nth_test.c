#include "group/nth.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static void each_version_has_a_count_of_its_own(void **state)
{
	struct nths nths;

	nths_init(&nths);
	nths_of(&nths, 7)->count++;
	nths_of(&nths, 7)->count++;
	nths_of(&nths, 8)->count++;
	assert_int_equal(nths_of(&nths, 7)->count, 2);
	assert_int_equal(nths_of(&nths, 8)->count, 1);
	assert_int_equal(nths_of(&nths, 9)->count, 0);
	nths_fini(&nths);
}

static void beyond_the_limit_the_first_is_forgotten_and_memory_stays(void **state)
{
	struct nths nths;

	nths_init(&nths);
	for (uint64_t id = 1; id <= 3 * NTH_VERSIONS_MAX; id++) {
		nths_of(&nths, id)->count++;
		assert_true(nths.counts.n <= NTH_VERSIONS_MAX);
	}
	assert_int_equal(nths_of(&nths, 3 * NTH_VERSIONS_MAX)->count, 1);
	assert_int_equal(nths_of(&nths, 2 * NTH_VERSIONS_MAX + 1)->count, 1); /* the oldest that is left */
	assert_int_equal(nths_of(&nths, 2 * NTH_VERSIONS_MAX)->count, 0);
	nths_fini(&nths);
}

static void the_first_load_after_a_version_was_forgotten_is_not_that_of_before(void **state)
{
	struct nths nths, other;

	nths_init(&nths);
	nths_init(&other);
	nths_of(&other, 8); /* came to two versions in the other order */
	const struct nth before = *nths_of(&nths, 7), same = *nths_of(&other, 7);
	assert_true(nth_equal(&before, &same));
	for (uint64_t id = 100; id < 100 + NTH_VERSIONS_MAX; id++)
		nths_of(&nths, id);
	const struct nth again = *nths_of(&nths, 7);
	assert_int_equal(again.count, before.count);
	assert_false(nth_equal(&before, &again));
	nths_fini(&nths);
	nths_fini(&other);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_version_has_a_count_of_its_own),
		cmocka_unit_test(the_first_load_after_a_version_was_forgotten_is_not_that_of_before),
		cmocka_unit_test(beyond_the_limit_the_first_is_forgotten_and_memory_stays),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
