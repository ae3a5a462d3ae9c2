#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "bundle/inside.h"

static void a_name_has_one_encoding_and_comes_back(void **state)
{
	const struct {
		const char *name, *encoded;
	} cases[] = {
		{ "ckpt/llama", "ckpt%2Fllama" },
		{ ".hidden", "%2Ehidden" },
		{ "a.b-c_D9", "a.b-c_D9" },
		{ "a b", "a%20b" },
		{ "\xc3\xa4rger", "%C3%A4rger" },
		{ "50%", "50%25" },
		{ "..x", "%2E.x" },
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		_cleanup_(buf_fini) struct buf back = { 0 };
		char encoded[BUNDLE_NAME_MAX + 1];

		assert_int_equal(name_encode(view_str(cases[i].name), BUNDLE_NAME_MAX, encoded),
				 strlen(cases[i].encoded));
		assert_string_equal(encoded, cases[i].encoded);
		assert_true(backend_part_is_valid(encoded));
		assert_int_equal(name_decode(view_str(encoded), &back), 0);
		assert_true(view_equal(view_buf(&back), view_str(cases[i].name)));
	}
}

static void every_byte_is_encoded_so_that_it_comes_back(void **state)
{
	for (unsigned c = 0; c < 256; c++) {
		const uint8_t name[2] = { (uint8_t)c, (uint8_t)c };
		_cleanup_(buf_fini) struct buf back = { 0 };
		char encoded[BUNDLE_NAME_MAX + 1];

		assert_true(name_encode(view_of(name, 2), BUNDLE_NAME_MAX, encoded) > 0);
		assert_true(backend_part_is_valid(encoded));
		assert_int_equal(name_decode(view_str(encoded), &back), 0);
		assert_true(view_equal(view_buf(&back), view_of(name, 2)));
	}
}

static void other_spellings_are_no_keys_of_ours(void **state)
{
	const char *const spellings[] = { "", ".a", "a%2f", "%41", "a%", "a%2", "a%GG", "a b", "a/b", "a%2E" };

	for (size_t i = 0; i < ARRAY_LEN(spellings); i++) {
		_cleanup_(buf_fini) struct buf back = { 0 };

		assert_int_equal(name_decode(view_str(spellings[i]), &back), -EINVAL);
		assert_int_equal(back.len, 0);
	}
}

static void bad_bundle_names_are_refused_with_the_reason(void **state)
{
	char longest[BUNDLE_NAME_MAX + 2];
	const struct {
		const char *name, *words;
	} cases[] = {
		{ "", "empty" },      { "/a", "empty part" },	  { "a//b", "empty part" },   { "a/", "empty part" },
		{ "a/./b", "\".\"" }, { "..", "\"..\"" },	  { "a\nb", "control" },      { "a\x7f", "control" },
		{ "\xff", "UTF-8" },  { longest, "longer than" }, { "a\xc2\x9b", "control" },
	};

	memset(longest, 'a', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = 0;
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		struct error e = { 0 };

		assert_int_equal(bundle_name_check(view_str(cases[i].name), &e), -EINVAL);
		assert_non_null(strstr(e.text, cases[i].words));
	}
	longest[BUNDLE_NAME_MAX] = 0;
	assert_int_equal(bundle_name_check(view_str(longest), NULL), 0);
	assert_int_equal(bundle_name_check(view_str("a/...b/.c"), NULL), 0);
	assert_int_equal(bundle_name_check(view_str("a\xc2\xa0"), NULL), 0);
}

static void labels_are_neither_numbers_nor_reserved(void **state)
{
	const char *const bad[] = { "", "7", "007", "latest", "staged", "a\tb" };

	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		assert_int_equal(label_name_check(view_str(bad[i]), NULL), -EINVAL);
	assert_int_equal(label_name_check(view_str("prod"), NULL), 0);
	assert_int_equal(label_name_check(view_str("7b"), NULL), 0);
	assert_int_equal(label_name_check(view_str("best/f1 \xc3\xa4"), NULL), 0);
}

static void keys_are_those_of_the_page(void **state)
{
	const struct record_head head = { .kind = RECORD_BLOCKS, .number = 42, .save_id = 0xabc, .part = 3 };
	struct place place;
	char key[KEY_BYTES], pack[BACKEND_KEY_MAX + 1];

	assert_int_equal(place_init(view_str("local"), view_str("ckpt/llama"), &place, NULL), 0);
	slot_key(&place, 42, key);
	assert_string_equal(key, "t/local/b/ckpt%2Fllama/v/00000000000000000042/slot");
	root_key(&place, 42, key);
	assert_string_equal(key, "t/local/b/ckpt%2Fllama/v/00000000000000000042/root");
	segment_key(&place, &head, key);
	assert_string_equal(key, "t/local/b/ckpt%2Fllama/v/00000000000000000042/0000000000000abc-blocks-3");
	label_key(&place, view_str("best/f1"), 7, key);
	assert_string_equal(key, "t/local/b/ckpt%2Fllama/l/best%2Ff1/00000000000000000007");
	assert_int_equal(pack_key(view_str("local"), view_str("ckpt/llama"), 0xabc, "node-3", 12, pack), 0);
	assert_string_equal(pack, "t/local/b/ckpt%2Fllama/p/0000000000000abc-node-3-12");
	assert_int_equal(pack_key(view_str("local"), view_str("x"), 1, "no/de", 0, pack), -EINVAL);
}

static void rows_sort_as_names_do(void **state)
{
	struct row_key a = bundle_row_key(view_str("t"), view_str("a/b")),
		       b = bundle_row_key(view_str("t"), view_str("a0"));
	struct place place;

	assert_true(view_compare(row_key_view(&a), row_key_view(&b)) < 0);
	assert_int_equal(place_init(view_str("t"), view_str("a"), &place, NULL), 0);
	struct row_key nine = version_row_key(&place, 9), ten = version_row_key(&place, 10),
		       all = rows_prefix('v', &place);
	assert_true(view_compare(row_key_view(&nine), row_key_view(&ten)) < 0);
	assert_memory_equal(nine.bytes, all.bytes, all.len);
	assert_int_equal(nine.len, all.len + 20);
}

static void numbers_are_read_strictly(void **state)
{
	uint64_t n;

	assert_int_equal(number_decode(view_str("00000000000000000042"), 20, &n), 0);
	assert_true(n == 42);
	assert_int_equal(number_decode(view_str("18446744073709551615"), 20, &n), 0);
	assert_true(n == UINT64_MAX);
	assert_int_equal(number_decode(view_str("18446744073709551616"), 20, &n), -EINVAL);
	assert_int_equal(number_decode(view_str("42"), 20, &n), -EINVAL);
	assert_int_equal(number_decode(view_str("42"), 0, &n), 0);
	assert_int_equal(number_decode(view_str("4x"), 0, &n), -EINVAL);
	assert_int_equal(number_decode(view_str(""), 0, &n), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_name_has_one_encoding_and_comes_back),
		cmocka_unit_test(every_byte_is_encoded_so_that_it_comes_back),
		cmocka_unit_test(other_spellings_are_no_keys_of_ours),
		cmocka_unit_test(bad_bundle_names_are_refused_with_the_reason),
		cmocka_unit_test(labels_are_neither_numbers_nor_reserved),
		cmocka_unit_test(keys_are_those_of_the_page),
		cmocka_unit_test(rows_sort_as_names_do),
		cmocka_unit_test(numbers_are_read_strictly),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
