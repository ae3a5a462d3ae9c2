#include "group/nth.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static void each_version_has_a_count_of_its_own(void **state)
{
	struct nths nths;

	nths_init(&nths);
	++*nths_of(&nths, 7);
	++*nths_of(&nths, 7);
	++*nths_of(&nths, 8);
	assert_int_equal(*nths_of(&nths, 7), 2);
	assert_int_equal(*nths_of(&nths, 8), 1);
	assert_int_equal(*nths_of(&nths, 9), 0);
	nths_fini(&nths);
}

static void beyond_the_limit_the_first_is_forgotten_and_memory_stays(void **state)
{
	struct nths nths;

	nths_init(&nths);
	for (uint64_t id = 1; id <= 3 * NTH_VERSIONS_MAX; id++) {
		++*nths_of(&nths, id);
		assert_true(nths.counts.n <= NTH_VERSIONS_MAX);
	}
	assert_int_equal(*nths_of(&nths, 3 * NTH_VERSIONS_MAX), 1);
	assert_int_equal(*nths_of(&nths, 2 * NTH_VERSIONS_MAX + 1), 1); /* the oldest that is left */
	assert_int_equal(*nths_of(&nths, 2 * NTH_VERSIONS_MAX), 0);
	nths_fini(&nths);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_version_has_a_count_of_its_own),
		cmocka_unit_test(beyond_the_limit_the_first_is_forgotten_and_memory_stays),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
