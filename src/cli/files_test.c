#include "cli/files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

static int decode(const char *text, struct files *ret, struct error *e)
{
	return files_decode(text, strlen(text), ret, e);
}

static void files_and_folders_come_back_sorted(void **state)
{
	struct files files = { 0 }, back = { 0 };
	struct error e = { 0 };

	assert_int_equal(files_add(&files.files, &files.n_files, "b", 0644), 0);
	assert_int_equal(files_add(&files.files, &files.n_files, "a/x \"y\"\n", 0755), 0);
	assert_int_equal(files_add(&files.folders, &files.n_folders, "a", 0700), 0);
	assert_int_equal(files_sort(&files, &e), 0);
	_cleanup_(cleanup_mem) char *text = files_encode(&files);
	assert_non_null(text);
	assert_int_equal(decode(text, &back, &e), 0);
	assert_int_equal(back.n_files, 2);
	assert_string_equal(back.files[0].name, "a/x \"y\"\n");
	assert_int_equal(back.files[0].mode, 0755);
	assert_string_equal(back.files[1].name, "b");
	assert_int_equal(back.n_folders, 1);
	assert_int_equal(back.folders[0].mode, 0700);
	files_fini(&files);
	files_fini(&back);
}

static void no_files_at_all_are_fine(void **state)
{
	struct files none = { 0 }, back = { 0 };
	struct error e = { 0 };
	_cleanup_(cleanup_mem) char *text = files_encode(&none);

	assert_string_equal(text, "{\"files\":{},\"folders\":{},\"format\":1}");
	assert_int_equal(decode(text, &back, &e), 0);
	assert_int_equal(back.n_files, 0);
	files_fini(&back);
}

static void what_would_be_two_things_under_one_name_is_refused(void **state)
{
	static const char *const texts[] = {
		"{\"format\":1,\"files\":{\"a\":420},\"folders\":{\"a\":493}}",
		"{\"format\":1,\"files\":{\"a\":420,\"a/b\":420},\"folders\":{}}",
		"{\"format\":1,\"files\":{\"a\":420},\"folders\":{\"a/b/c\":493}}",
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
		struct files files = { 0 };
		struct error e = { 0 };

		assert_int_equal(decode(texts[i], &files, &e), -EEXIST);
		assert_non_null(strstr(e.text, "a: a file and a folder"));
		assert_null(files.files);
	}
}

static void two_files_of_one_name_are_refused(void **state)
{
	struct files files = { 0 };
	struct error e = { 0 };

	assert_int_equal(files_add(&files.files, &files.n_files, "x", 0644), 0);
	assert_int_equal(files_add(&files.files, &files.n_files, "x", 0644), 0);
	assert_int_equal(files_sort(&files, &e), -EEXIST);
	assert_string_equal(e.text, "x: two files would have this name");
	files_fini(&files);
}

static void names_that_lead_outside_are_refused(void **state)
{
	static const char *const texts[] = {
		"{\"format\":1,\"files\":{\"../a\":420},\"folders\":{}}",
		"{\"format\":1,\"files\":{\"/etc/passwd\":420},\"folders\":{}}",
		"{\"format\":1,\"files\":{},\"folders\":{\"a/..\":493}}",
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
		struct files files = { 0 };
		struct error e = { 0 };

		assert_int_equal(decode(texts[i], &files, &e), -EINVAL);
	}
}

static void what_is_not_of_the_form_is_refused(void **state)
{
	static const char *const texts[] = {
		"",
		"[]",
		"{}",
		"{\"format\":2,\"files\":{},\"folders\":{}}",
		"{\"format\":1,\"files\":[],\"folders\":{}}",
		"{\"format\":1,\"files\":{\"a\":\"rw\"},\"folders\":{}}",
		"{\"format\":1,\"files\":{\"a\":2541},\"folders\":{}}", /* set-user-id */
		"{\"format\":1,\"files\":{\"a\":-1},\"folders\":{}}",
		"{\"format\":1,\"files\":{\"a\":1,\"a\":2},\"folders\":{}}",
	};

	for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++) {
		struct files files = { 0 };
		struct error e = { 0 };

		assert_int_equal(decode(texts[i], &files, &e), -EINVAL);
		assert_null(files.files);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(files_and_folders_come_back_sorted),
		cmocka_unit_test(no_files_at_all_are_fine),
		cmocka_unit_test(what_would_be_two_things_under_one_name_is_refused),
		cmocka_unit_test(two_files_of_one_name_are_refused),
		cmocka_unit_test(names_that_lead_outside_are_refused),
		cmocka_unit_test(what_is_not_of_the_form_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
