#include "cli/place.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <string.h>

#include "base/cleanup.h"

#define MIB (UINT64_C(1) << 20)

static void quoting_survives_a_shell(void **state)
{
	_cleanup_(cleanup_mem) char *plain = place_shell_quote("/a b/$x"), *quote = place_shell_quote("it's");

	assert_string_equal(plain, "'/a b/$x'");
	assert_string_equal(quote, "'it'\\''s'");
}

static void pools_fit_the_machine(void **state)
{
	assert_int_equal(place_fit_pool(32768 * MIB, 1), 1024 * MIB);
	assert_int_equal(place_fit_pool(16384 * MIB, 8), 512 * MIB);
	assert_int_equal(place_fit_pool(1000 * MIB, 8), 64 * MIB);
	assert_int_equal(place_fit_pool(0, 1), 64 * MIB);
	assert_int_equal(place_fit_pool(4 * 100 * MIB + 5, 1), 100 * MIB);
}

static void what_a_configuration_cannot_hold_is_refused(void **state)
{
	static const char *const bad[] = { "dir:/a ;b", "dir:/a\nb", " dir:/a", "dir:/a " };
	char longer[300];

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		assert_int_equal(place_check_value("store", bad[i], NULL), -EINVAL);
	memset(longer, 'x', sizeof(longer) - 1);
	longer[sizeof(longer) - 1] = 0;
	assert_int_equal(place_check_value("store", longer, NULL), -ENAMETOOLONG);
	assert_int_equal(place_check_value("store", "dir:/a b;c", NULL), 0);
}

static void urls_of_paths_become_absolute(void **state)
{
	_cleanup_(cleanup_mem) char *kept = place_absolute_url("dir:/a/b"),
				    *other = place_absolute_url("tcp:10.0.0.1:7");
	_cleanup_(cleanup_mem) char *made = place_absolute_url("lmdb:x");

	assert_string_equal(kept, "dir:/a/b");
	assert_string_equal(other, "tcp:10.0.0.1:7");
	assert_memory_equal(made, "lmdb:/", 6);
	assert_string_equal(made + strlen(made) - 2, "/x");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(quoting_survives_a_shell),
		cmocka_unit_test(pools_fit_the_machine),
		cmocka_unit_test(what_a_configuration_cannot_hold_is_refused),
		cmocka_unit_test(urls_of_paths_become_absolute),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
