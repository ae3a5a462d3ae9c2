#include "daemon/key.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "net/proof.h"

#define STRANGER 65532 /* a user that nobody is */

struct place {
	char dir[64], path[80];
};

static int place_make(void **state)
{
	static struct place place;

	snprintf(place.dir, sizeof(place.dir), "/tmp/forebay-key-XXXXXX");
	assert_non_null(mkdtemp(place.dir));
	snprintf(place.path, sizeof(place.path), "%s/key", place.dir);
	*state = &place;
	return 0;
}

static int place_end(void **state)
{
	struct place *place = *state;

	unlink(place->path);
	return rmdir(place->dir);
}

static void place_write(const struct place *place, size_t len, const char *end, mode_t mode)
{
	FILE *file = fopen(place->path, "w");

	assert_non_null(file);
	for (size_t i = 0; i < len; i++)
		fputc('a' + (int)(i % 26), file);
	fputs(end, file);
	assert_int_equal(fclose(file), 0);
	assert_int_equal(chmod(place->path, mode), 0);
}

static void a_key_is_the_files_bytes_without_the_line_end(void **state)
{
	const size_t lens[] = { PROOF_KEY_MIN, 64, PROOF_KEY_MAX };
	const char *const ends[] = { "", "\n", "\r\n" };

	for (size_t i = 0; i < ARRAY_LEN(lens); i++) {
		_cleanup_(key_forget) struct buf key = { 0 };
		struct error e;

		place_write(*state, lens[i], ends[i], 0640);
		assert_int_equal(key_read(((struct place *)*state)->path, &key, &e), 0);
		assert_int_equal(key.len, lens[i]);
		assert_memory_equal(key.ptr, "abcdefghijklmnop", 16);
	}
}

static void a_key_that_others_see_or_that_is_none_is_refused_by_name(void **state)
{
	static const struct {
		size_t len;
		mode_t mode;
		int code;
		const char *words;
	} all[] = {
		{ 32, 0644, -EACCES, "its mode is 0644" },
		{ 32, 0602, -EACCES, "its mode is 0602" },
		{ 32, 0660, -EACCES, "its mode is 0660" },
		{ PROOF_KEY_MIN - 1, 0600, -EINVAL, "this one has 15" },
		{ 0, 0600, -EINVAL, "this one has 0" },
		{ PROOF_KEY_MAX + 1, 0600, -EINVAL, "this one has 1025" },
		{ 5000, 0600, -EINVAL, "this one has at least 1027" },
	};
	const struct place *place = *state;

	for (size_t i = 0; i < ARRAY_LEN(all); i++) {
		_cleanup_(key_forget) struct buf key = { 0 };
		struct error e;

		place_write(place, all[i].len, "\n", all[i].mode);
		assert_int_equal(key_read(place->path, &key, &e), all[i].code);
		assert_non_null(strstr(e.text, all[i].words));
		assert_non_null(strstr(e.text, place->path));
		assert_int_equal(key.len, 0);
	}
}

static void a_key_that_is_not_there_is_named(void **state)
{
	const struct place *place = *state;
	struct buf key = { 0 };
	struct error e;

	assert_int_equal(key_read(place->path, &key, &e), -ENOENT);
	assert_non_null(strstr(e.text, place->path));
	assert_int_equal(key_read(place->dir, &key, &e), -EINVAL);
}

static void a_fifo_is_no_key_and_is_not_waited_for(void **state)
{
	const struct place *place = *state;
	struct buf key = { 0 };
	struct error e;

	assert_int_equal(mkfifo(place->path, 0600), 0);
	assert_int_equal(key_read(place->path, &key, &e), -EINVAL);
	assert_non_null(strstr(e.text, "kept in a file"));
}

static void a_key_of_another_user_is_refused_by_name(void **state)
{
	const struct place *place = *state;
	struct buf key = { 0 };
	struct error e;

	place_write(place, 32, "", 0600);
	if (geteuid() || chown(place->path, STRANGER, STRANGER))
		skip(); /* who is not root cannot make one */
	assert_int_equal(key_read(place->path, &key, &e), -EACCES);
	assert_non_null(strstr(e.text, "user 65532 owns it"));
	assert_int_equal(key.len, 0);
}

static void loopback_alone_needs_no_key(void **state)
{
	assert_false(key_is_needed("tcp:127.0.0.1:0"));
	assert_false(key_is_needed("tcp:127.255.0.9:7400"));
	assert_false(key_is_needed("tcp:[::1]:7400"));
	assert_true(key_is_needed("tcp:10.0.0.1:7400"));
	assert_true(key_is_needed("tcp:0.0.0.0:7400"));
	assert_true(key_is_needed("tcp:[::]:7400"));
	assert_true(key_is_needed("tcp:[::10]:7400"));
	assert_true(key_is_needed("tcp:1270.0.0.1:0"));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, place_make, place_end)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_key_is_the_files_bytes_without_the_line_end),
		TEST(a_key_that_others_see_or_that_is_none_is_refused_by_name),
		TEST(a_key_that_is_not_there_is_named),
		TEST(a_fifo_is_no_key_and_is_not_waited_for),
		TEST(a_key_of_another_user_is_refused_by_name),
		cmocka_unit_test(loopback_alone_needs_no_key),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
