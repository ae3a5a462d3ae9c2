#include "cli/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static const char *size(uint64_t bytes)
{
	static char text[TEXT_SIZE_MAX];

	text_size(bytes, text);
	return text;
}

static void sizes_are_short(void **state)
{
	assert_string_equal(size(0), "0 B");
	assert_string_equal(size(999), "999 B");
	assert_string_equal(size(1000), "1.0 KiB");
	assert_string_equal(size(1536), "1.5 KiB");
	assert_string_equal(size(90900000), "86.7 MiB");
	assert_string_equal(size(UINT64_C(300) << 30), "300 GiB");
	assert_string_equal(size(UINT64_MAX), "16.0 EiB");
}

static const char *time_text(uint64_t ns)
{
	static char text[TEXT_TIME_MAX];

	text_time(ns, text);
	return text;
}

static void a_rule_says_what_it_keeps(void **state)
{
	char text[TEXT_RULE_MAX];

	assert_string_equal(text_rule(0, 0, text), "all");
	assert_string_equal(text_rule(3, 0, text), "last 3");
	assert_string_equal(text_rule(UINT64_MAX, UINT64_MAX, text),
			    "last 18446744073709551615, each 18446744073709551615");
}

static void times_are_short(void **state)
{
	assert_string_equal(time_text(0), "0 ms");
	assert_string_equal(time_text(1), "0 us");
	assert_string_equal(time_text(352499), "352 us");
	assert_string_equal(time_text(999600), "1.00 ms");
	assert_string_equal(time_text(12000000), "12.0 ms");
	assert_string_equal(time_text(812000000), "812 ms");
	assert_string_equal(time_text(999600000), "1.00 s");
	assert_string_equal(time_text(1320000000), "1.32 s");
	assert_string_equal(time_text(75000000000), "75.0 s");
	assert_string_equal(time_text(420000000000), "420 s");
	assert_string_equal(time_text(1260000000000), "21 min");
	time_text(UINT64_MAX);
}

static void names_cannot_command_a_terminal(void **state)
{
	char *text = NULL;
	size_t len = 0;
	FILE *out = open_memstream(&text, &len);

	assert_int_equal(text_print(out, "a\033[31m\xc2\x9b\xc3\xa4\n"), 1 + 4 + 4 + 4 + 1 + 4);
	fclose(out);
	assert_string_equal(text, "a\\x1b[31m\\x9b\xc3\xa4\\x0a");
	free(text);
}

static void numbers_beyond_a_readers_range_are_strings(void **state)
{
	json_t *large = json_u64(UINT64_MAX), *small = json_u64(12);

	assert_string_equal(json_string_value(large), "18446744073709551615");
	assert_int_equal(json_integer_value(small), 12);
	assert_true(json_u64_value(large) == UINT64_MAX && json_u64_value(small) == 12 && !json_u64_value(NULL));
	json_decref(large);
	json_decref(small);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sizes_are_short),
		cmocka_unit_test(a_rule_says_what_it_keeps),
		cmocka_unit_test(times_are_short),
		cmocka_unit_test(names_cannot_command_a_terminal),
		cmocka_unit_test(numbers_beyond_a_readers_range_are_strings),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
