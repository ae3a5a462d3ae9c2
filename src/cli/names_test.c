#include "cli/names.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

static void a_version_stands_behind_the_last_at(void **state)
{
	_cleanup_(cleanup_mem) char *bundle = NULL;
	const char *version;

	assert_int_equal(names_split("team@home/m@prod", &bundle, &version), 0);
	assert_string_equal(bundle, "team@home/m");
	assert_string_equal(version, "prod");
}

static void a_bundle_alone_has_no_version(void **state)
{
	_cleanup_(cleanup_mem) char *bundle = NULL;
	const char *version = "untouched";

	assert_int_equal(names_split("ckpt/llama", &bundle, &version), 0);
	assert_string_equal(bundle, "ckpt/llama");
	assert_null(version);
}

static void empty_bundles_and_versions_are_refused(void **state)
{
	char *bundle = NULL;
	const char *version;

	assert_int_equal(names_split("", &bundle, &version), -EINVAL);
	assert_int_equal(names_split("@3", &bundle, &version), -EINVAL);
	assert_int_equal(names_split("b@", &bundle, &version), -EINVAL);
	assert_null(bundle);
}

static void users_names_and_items_names_map_both_ways(void **state)
{
	static const char *const names[] = { "a", "a/~b", "", "~", "~files", "~=x", "=x", "\xc3\xa4" };

	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		_cleanup_(cleanup_mem) char *item = names_to_item(names[i]);

		assert_non_null(item);
		assert_false(names_is_internal(item));
		assert_string_equal(names_of_item(item), names[i]);
	}
	assert_true(names_is_internal("~files"));
	assert_true(names_is_internal("~planner/0"));
}

static void paths_that_could_lead_outside_are_none(void **state)
{
	static const char *const bad[] = { "",	   "/", "/etc/passwd", "..",	"../x", "a/../b",
					   "a/..", ".", "./a",	       "a/./b", "a//b", "a/" };
	static const char *const good[] = { "a", "a/b", "..a", "a..", "...", ".hidden", "a/.b/c", "a\\b" };

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		assert_false(names_is_path(bad[i]));
	for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++)
		assert_true(names_is_path(good[i]));
}

static void a_part_longer_than_a_file_name_is_no_path(void **state)
{
	char name[NAMES_PART_MAX + 4];

	memset(name, 'x', sizeof(name));
	memcpy(name, "a/", 2);
	name[NAMES_PART_MAX + 2] = 0;
	assert_true(names_is_path(name));
	name[NAMES_PART_MAX + 2] = 'x';
	name[NAMES_PART_MAX + 3] = 0;
	assert_false(names_is_path(name));
}

static void numbers_of_versions_are_decimal_and_above_zero(void **state)
{
	uint64_t number = 7;

	assert_true(names_is_number("12", &number));
	assert_int_equal(number, 12);
	assert_false(names_is_number("0", &number));
	assert_false(names_is_number("-1", &number));
	assert_false(names_is_number("0x10", &number));
	assert_false(names_is_number("1.0", &number));
	assert_false(names_is_number("99999999999999999999", &number));
	assert_false(names_is_number("", &number));
	assert_int_equal(number, 12);
}

static void file_names_are_made_harmless_and_short(void **state)
{
	char out[8];

	names_to_file("../a b/\xc3\xa4", out, sizeof(out));
	assert_string_equal(out, ".._a_b_");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_version_stands_behind_the_last_at),
		cmocka_unit_test(a_bundle_alone_has_no_version),
		cmocka_unit_test(empty_bundles_and_versions_are_refused),
		cmocka_unit_test(users_names_and_items_names_map_both_ways),
		cmocka_unit_test(paths_that_could_lead_outside_are_none),
		cmocka_unit_test(a_part_longer_than_a_file_name_is_no_path),
		cmocka_unit_test(numbers_of_versions_are_decimal_and_above_zero),
		cmocka_unit_test(file_names_are_made_harmless_and_short),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
