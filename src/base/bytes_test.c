#include "base/bytes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* xorshift64: a fixed seed, so that a failure repeats */
static uint64_t draw(uint64_t *x)
{
	*x ^= *x << 13, *x ^= *x >> 7, *x ^= *x << 17;
	return *x;
}

static void equal_views_hold_equal_bytes(void **state)
{
	assert_true(view_equal(view_str("abc"), view_of("abcd", 3)));
	assert_false(view_equal(view_str("abc"), view_str("abd")));
	assert_false(view_equal(view_str("abc"), view_str("ab")));
	assert_true(view_equal(view_str(NULL), view_str("")));
}

static void views_sort_by_bytes_then_by_length(void **state)
{
	assert_int_equal(view_compare(view_str("ab"), view_str("b")), -1);
	assert_int_equal(view_compare(view_str("ab"), view_str("abc")), -1);
	assert_int_equal(view_compare(view_str("\xff"), view_str("a")), 1);
	assert_int_equal(view_compare(view_str("x"), view_str("x")), 0);
	assert_int_equal(view_compare(view_str(NULL), view_str("")), 0);
	assert_int_equal(view_compare(view_str(""), view_str("a")), -1);
}

static void taking_moves_the_front_and_stops_at_the_end(void **state)
{
	struct view v = view_str("abcde");

	assert_true(view_equal(view_take(&v, 2), view_str("ab")));
	assert_true(view_equal(v, view_str("cde")));
	assert_true(view_equal(view_take(&v, 9), view_str("cde")));
	assert_int_equal(v.len, 0);
	assert_int_equal(view_take(&v, SIZE_MAX).len, 0);

	struct view empty = view_str(NULL);
	assert_int_equal(view_take(&empty, 4).len, 0);
}

static void a_copied_view_ends_in_a_zero(void **state)
{
	_cleanup_(cleanup_mem) char *abc = view_dup(view_of("abcd", 3));
	_cleanup_(cleanup_mem) char *empty = view_dup(view_str(NULL));

	assert_string_equal(abc, "abc");
	assert_string_equal(empty, "");
	assert_null(view_dup(view_of("", SIZE_MAX)));
}

static void utf8_is_taken_at_its_limits_and_not_beyond(void **state)
{
	static const char *const good[] = { "",
					    "abc",
					    "\x7f",
					    "\xc2\x80",
					    "\xdf\xbf",
					    "\xe0\xa0\x80",
					    "\xed\x9f\xbf",
					    "\xee\x80\x80",
					    "\xef\xbf\xbf",
					    "\xf0\x90\x80\x80",
					    "\xf4\x8f\xbf\xbf" };
	static const char *const bad[] = { "\x80",
					   "a\xbf",
					   "\xc0\x80",
					   "\xc1\xbf",
					   "\xc2",
					   "\xc2"
					   "a",
					   "\xe0\x9f\xbf",
					   "\xe0\xa0",
					   "\xed\xa0\x80",
					   "\xed\xbf\xbf",
					   "\xf0\x8f\xbf\xbf",
					   "\xf0\x90\x80",
					   "\xf4\x90\x80\x80",
					   "\xf5\x80\x80\x80",
					   "\xff",
					   "\xe1\x80\xc0" };

	for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++)
		assert_true(view_is_utf8(view_str(good[i])));
	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		assert_false(view_is_utf8(view_str(bad[i])));
	assert_true(view_is_utf8(view_of("a\0b", 3)));
}

static size_t encode_utf8(uint32_t c, uint8_t out[4])
{
	size_t len = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;

	for (size_t i = len - 1; i > 0; i--, c >>= 6)
		out[i] = (uint8_t)(0x80 | (c & 0x3f));
	out[0] = (uint8_t)(len == 1 ? c : ((0xf00u >> len) & 0xff) | c);
	return len;
}

static void every_code_point_but_the_surrogates_is_utf8(void **state)
{
	for (uint32_t c = 0; c < 0x1fffff; c++) {
		uint8_t b[4];
		size_t len = encode_utf8(c, b);
		bool legal = c <= 0x10ffff && (c < 0xd800 || c > 0xdfff);

		if (view_is_utf8(view_of(b, len)) != legal)
			fail_msg("U+%04x", c);
		if (len > 1 && view_is_utf8(view_of(b, len - 1)))
			fail_msg("U+%04x, cut", c);
	}
}

static void a_buffer_holds_what_was_appended(void **state)
{
	_cleanup_(buf_fini) struct buf buf = { 0 };
	_cleanup_(cleanup_mem) uint8_t *model = malloc(1 << 20);
	size_t len = 0;
	uint64_t x = 88172645463325252;

	for (int round = 0; round < 3000; round++) {
		uint8_t piece[200];
		size_t n = draw(&x) % sizeof(piece);

		for (size_t i = 0; i < n; i++)
			piece[i] = (uint8_t)draw(&x);
		if (round % 5 == 4) {
			n = n > len ? len : n;
			buf_drop(&buf, n);
			memmove(model, model + n, len - n);
			len -= n;
		} else if (round % 7 == 6) {
			assert_int_equal(buf_append_zero(&buf, n), 0);
			memset(model + len, 0, n);
			len += n;
		} else {
			assert_int_equal(buf_append(&buf, piece, n), 0);
			memcpy(model + len, piece, n);
			len += n;
		}
		assert_int_equal(buf.len, len);
		assert_true(buf.cap >= buf.len);
	}
	assert_true(view_equal(view_buf(&buf), view_of(model, len)));
}

static void an_empty_buffer_takes_nothing_from_nowhere(void **state)
{
	struct buf buf = { 0 };

	assert_int_equal(buf_append(&buf, NULL, 0), 0);
	assert_int_equal(buf_append_zero(&buf, 0), 0);
	assert_int_equal(view_buf(&buf).len, 0);
	buf_drop(&buf, 0);
	buf_fini(&buf);
	buf_fini(&buf);
	buf_fini(NULL);
}

static void printing_keeps_no_final_zero(void **state)
{
	_cleanup_(buf_fini) struct buf buf = { 0 };

	assert_int_equal(buf_printf(&buf, "%d,", 12), 0);
	assert_int_equal(buf_printf(&buf, "%s", ""), 0);
	assert_int_equal(buf_printf(&buf, "%0200d", 3), 0);
	assert_int_equal(buf.len, 203);
	assert_memory_equal(buf.ptr, "12,0", 4);
	assert_int_equal(buf.ptr[202], '3');
}

static void a_size_past_all_memory_is_refused_and_changes_nothing(void **state)
{
	_cleanup_(buf_fini) struct buf buf = { 0 };

	assert_int_equal(buf_append(&buf, "abc", 3), 0);
	struct buf before = buf;
	assert_int_equal(buf_reserve(&buf, SIZE_MAX), -ENOMEM);
	assert_int_equal(buf_append_zero(&buf, SIZE_MAX - 2), -ENOMEM);
	assert_int_equal(buf_append_zero(&buf, PTRDIFF_MAX), -ENOMEM);
	assert_memory_equal(&before, &buf, sizeof(buf));
	assert_memory_equal(buf.ptr, "abc", 3);
}

static void numbers_lie_little_endian_at_any_address(void **state)
{
	uint8_t b[16] = { 0 };

	store_le16(b + 1, 0x0201);
	store_le32(b + 3, 0x06050403);
	store_le64(b + 7, UINT64_C(0xfedcba9876543210));
	static const uint8_t expected[16] = { 0, 1, 2, 3, 4, 5, 6, 0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe, 0 };
	assert_memory_equal(b, expected, sizeof(b));
	assert_int_equal(load_le16(b + 1), 0x0201);
	assert_int_equal(load_le32(b + 3), 0x06050403);
	assert_true(load_le64(b + 7) == UINT64_C(0xfedcba9876543210));
	assert_int_equal(load_le16("\xff\xff"), 0xffff);
	assert_true(load_le32("\xff\xff\xff\xff") == UINT32_MAX);
}

static void hex_comes_back_as_it_went(void **state)
{
	uint8_t bytes[256], back[256];
	char hex[513];

	for (int i = 0; i < 256; i++)
		bytes[i] = (uint8_t)i;
	hex_encode(hex, bytes, sizeof(bytes));
	assert_int_equal(strlen(hex), 512);
	assert_memory_equal(hex + 2 * 0xa9, "a9", 2);
	assert_int_equal(hex_decode(back, sizeof(back), hex), 0);
	assert_memory_equal(back, bytes, sizeof(bytes));
	hex_encode(hex, NULL, 0);
	assert_string_equal(hex, "");
}

static void what_is_not_lower_case_hex_is_refused_and_changes_nothing(void **state)
{
	static const char *const bad[] = { "00g0",
					   "0",
					   "",
					   "000",
					   "00 0",
					   "00AB",
					   "-000",
					   "00\xff"
					   "0",
					   "0x00" };
	uint8_t out[2] = { 7, 7 };

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		assert_int_equal(hex_decode(out, 2, bad[i]), -EINVAL);
	assert_int_equal(out[0], 7);
	assert_int_equal(out[1], 7);
	assert_int_equal(hex_decode(out, 2, "0a1b.pack"), 0);
	assert_int_equal(out[1], 0x1b);
}

static void sizes_are_read_with_units(void **state)
{
	uint64_t value = 5;

	assert_int_equal(size_parse("64M", &value), 0);
	assert_int_equal(value, 64 << 20);
	assert_int_equal(size_parse("100", &value), 0);
	assert_int_equal(value, 100);
	assert_int_equal(size_parse("1x", &value), -EINVAL);
	assert_int_equal(size_parse("-1", &value), -EINVAL);
	assert_int_equal(size_parse("", &value), -EINVAL);
	assert_int_equal(size_parse("99999999T", &value), -EINVAL);
	assert_int_equal(size_parse("1MB", &value), -EINVAL);
	assert_int_equal(value, 100);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(equal_views_hold_equal_bytes),
		cmocka_unit_test(views_sort_by_bytes_then_by_length),
		cmocka_unit_test(taking_moves_the_front_and_stops_at_the_end),
		cmocka_unit_test(a_copied_view_ends_in_a_zero),
		cmocka_unit_test(utf8_is_taken_at_its_limits_and_not_beyond),
		cmocka_unit_test(every_code_point_but_the_surrogates_is_utf8),
		cmocka_unit_test(a_buffer_holds_what_was_appended),
		cmocka_unit_test(an_empty_buffer_takes_nothing_from_nowhere),
		cmocka_unit_test(printing_keeps_no_final_zero),
		cmocka_unit_test(a_size_past_all_memory_is_refused_and_changes_nothing),
		cmocka_unit_test(numbers_lie_little_endian_at_any_address),
		cmocka_unit_test(hex_comes_back_as_it_went),
		cmocka_unit_test(what_is_not_lower_case_hex_is_refused_and_changes_nothing),
		cmocka_unit_test(sizes_are_read_with_units),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
