#include "base/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <limits.h>
#include <string.h>

static void the_code_comes_back_with_its_text(void **state)
{
	struct error e = { 0 };

	assert_int_equal(error_set(&e, -ENOENT, "bundle %s has no version %d", "run", 7), -ENOENT);
	assert_int_equal(e.code, -ENOENT);
	assert_string_equal(e.text, "bundle run has no version 7");
}

static void a_caller_without_an_error_gets_the_code_alone(void **state)
{
	assert_int_equal(error_set(NULL, -ERR_ESTEP, "unheard"), -ERR_ESTEP);
	assert_true(error_prefix(NULL, "unheard") < 0);
}

static void a_prefix_goes_before_the_text_and_keeps_the_code(void **state)
{
	struct error e = { 0 };

	error_set(&e, -EACCES, "cannot open it");
	assert_int_equal(error_prefix(&e, "pack %d", 3), -EACCES);
	assert_string_equal(e.text, "pack 3: cannot open it");
	assert_int_equal(error_prefix(&e, "save"), -EACCES);
	assert_string_equal(e.text, "save: pack 3: cannot open it");
}

static void a_prefix_alone_is_a_text_and_no_success(void **state)
{
	struct error e = { 0 };

	assert_true(error_prefix(&e, "pack 3") < 0);
	assert_string_equal(e.text, "pack 3");
}

static void a_text_may_be_made_from_itself(void **state)
{
	struct error e = { 0 };

	error_set(&e, -EIO, "inner");
	error_set(&e, -EPROTO, "outer: %s", e.text);
	assert_string_equal(e.text, "outer: inner");
	error_prefix(&e, "%s again", e.text);
	assert_string_equal(e.text, "outer: inner again: outer: inner");
}

static void the_longest_text_fits_and_one_more_byte_is_cut(void **state)
{
	struct error e = { 0 };
	char longest[ERROR_TEXT_MAX + 1];

	memset(longest, 'x', sizeof(longest));
	longest[ERROR_TEXT_MAX - 1] = 0;
	error_set(&e, -EIO, "%s", longest);
	assert_string_equal(e.text, longest);

	longest[ERROR_TEXT_MAX - 1] = 'x';
	longest[ERROR_TEXT_MAX] = 0;
	error_set(&e, -EIO, "%s", longest);
	assert_int_equal(strlen(e.text), ERROR_TEXT_MAX - 1);
	assert_string_equal(e.text + ERROR_TEXT_MAX - 5, "x...");

	error_prefix(&e, "%s", longest);
	assert_int_equal(strlen(e.text), ERROR_TEXT_MAX - 1);
	assert_string_equal(e.text + ERROR_TEXT_MAX - 5, "x...");
}

static void a_cut_leaves_no_half_character(void **state)
{
	struct error e = { 0 };

	for (int shift = 0; shift < 4; shift++) {
		char text[ERROR_TEXT_MAX * 2] = "aaa";
		size_t len;

		for (len = (size_t)shift; len < ERROR_TEXT_MAX + 8; len += 4)
			memcpy(text + len, "\U0001f30a", 5);
		error_set(&e, -EIO, "%s", text);
		len = strlen(e.text);
		assert_string_equal(e.text + len - 3, "...");
		assert_true(len > ERROR_TEXT_MAX - 5);
		assert_int_equal((len - 3 - (size_t)shift) % 4, 0);
		assert_memory_equal(e.text, text, len - 3);
	}
}

static void names_are_those_of_the_table_or_of_errno(void **state)
{
	assert_string_equal(error_name(-ENOENT), "ENOENT");
	assert_string_equal(error_name(ENOENT), "ENOENT");
	assert_string_equal(error_name(-ERR_EREPLICA), "FOREBAY_EREPLICA");
	assert_string_equal(error_name(ERR_EREBUILD), "FOREBAY_EREBUILD");
	assert_string_equal(error_name(0), "OK");
	assert_string_equal(error_name(-99999), "E?");
	assert_string_equal(error_name(INT_MIN), "E?");
}

static void every_code_has_a_meaning(void **state)
{
#define X(name, number, text) assert_string_equal(error_meaning(-number), text);
	ERROR_TABLE(X)
#undef X
	assert_string_equal(error_meaning(-ENOENT), "No such file or directory");
	assert_string_equal(error_meaning(0), "no error");
	assert_string_equal(error_meaning(INT_MIN), "unknown error");
	for (int code = -6000; code < 6000; code++) {
		assert_non_null(error_meaning(code));
		assert_non_null(error_name(code));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_code_comes_back_with_its_text),
		cmocka_unit_test(a_caller_without_an_error_gets_the_code_alone),
		cmocka_unit_test(a_prefix_goes_before_the_text_and_keeps_the_code),
		cmocka_unit_test(a_prefix_alone_is_a_text_and_no_success),
		cmocka_unit_test(a_text_may_be_made_from_itself),
		cmocka_unit_test(the_longest_text_fits_and_one_more_byte_is_cut),
		cmocka_unit_test(a_cut_leaves_no_half_character),
		cmocka_unit_test(names_are_those_of_the_table_or_of_errno),
		cmocka_unit_test(every_code_has_a_meaning),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
