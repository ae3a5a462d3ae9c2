#include "wire/codec.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <errno.h>
#include <string.h>

/* One of each field, as the page has them. */
static const uint8_t golden[] = {
	0x01,						/* u8 */
	0x05, 0x04, 0x03, 0x02,				/* u32 */
	0x0d, 0x0c, 0x0b, 0x0a, 0x09, 0x08, 0x07, 0x06, /* u64 */
	0x02, 0x00, 0x00, 0x00, 'h',  'i',		/* str */
	0x01, 0x00, 0x00, 0x00,				/* box: ndim 1 */
	0x03, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, /* start */
	0x04, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, /* count */
	0x01, 0x00, 0x00, 0x00, 0x05, 0x00, 0x00, 0x00, /* list: 1 element, 5 bytes */
	0x01, 0x00, 0x00, 0x00, 0xee,
};

struct all {
	uint8_t a;
	uint32_t b;
	uint64_t c;
	struct view s;
	struct box box;
	struct list_view list;
};

static int get_all(struct view in, struct all *ret)
{
	int r = get_u8(&in, &ret->a);

	r = r ? r : get_u32(&in, &ret->b);
	r = r ? r : get_u64(&in, &ret->c);
	r = r ? r : get_str(&in, &ret->s);
	r = r ? r : get_box(&in, &ret->box);
	return r ? r : get_list(&in, &ret->list);
}

static void fields_have_the_bytes_of_the_page(void **state)
{
	_cleanup_(buf_fini) struct buf out = { 0 };
	_cleanup_(list_buf_fini) struct list_buf list = { .count = 1 };
	const uint8_t a = 1, element[] = { 1, 0, 0, 0, 0xee };
	const uint32_t b = 0x02030405;
	const uint64_t c = UINT64_C(0x060708090a0b0c0d);
	const struct view s = view_str("hi");
	const struct box box = { .ndim = 1, .start = { 3 }, .count = { 4 } };

	assert_int_equal(buf_append(&list.bytes, element, sizeof(element)), 0);
	const struct list_view view = list_buf_view(&list);
	assert_int_equal(put_u8(&out, &a) | put_u32(&out, &b) | put_u64(&out, &c) | put_str(&out, &s) |
				 put_box(&out, &box) | put_list(&out, &view),
			 0);
	assert_int_equal(out.len, sizeof(golden));
	assert_memory_equal(out.ptr, golden, sizeof(golden));
}

static void fields_come_back(void **state)
{
	struct all all;
	struct view element = { 0 };

	assert_int_equal(get_all(view_of(golden, sizeof(golden)), &all), 0);
	assert_true(all.a == 1 && all.b == 0x02030405 && all.c == UINT64_C(0x060708090a0b0c0d));
	assert_true(view_equal(all.s, view_str("hi")));
	assert_true(all.box.ndim == 1 && all.box.start[0] == 3 && all.box.count[0] == 4);
	assert_int_equal(list_view_next(&all.list, &element), 0);
	assert_true(element.len == 1 && element.ptr[0] == 0xee);
	assert_int_equal(list_view_next(&all.list, &element), 1);
}

static void a_body_may_end_between_fields_but_not_within_one(void **state)
{
	const size_t borders[] = { 0, 1, 5, 13, 19, 39, sizeof(golden) };
	size_t next = 0;

	for (size_t len = 0; len <= sizeof(golden); len++) {
		struct all all;
		int r = get_all(view_of(golden, len), &all);

		if (len == borders[next]) {
			assert_int_equal(r, 0);
			next++;
		} else {
			assert_int_equal(r, -EPROTO);
		}
	}
}

static void a_box_of_nine_dimensions_is_refused(void **state)
{
	uint8_t raw[4 + 9 * 16] = { 9 };
	struct view in = view_of(raw, sizeof(raw));
	struct box box;

	assert_int_equal(get_box(&in, &box), -EPROTO);
	assert_int_equal(box.ndim, 0);
}

static void a_list_cannot_promise_more_elements_than_its_bytes_hold(void **state)
{
	const uint8_t raw[] = { 0xff, 0xff, 0xff, 0xff, 4, 0, 0, 0, 0, 0, 0, 0 };
	struct view in = view_of(raw, sizeof(raw));
	struct list_view list;

	assert_int_equal(get_list(&in, &list), -EPROTO);
	assert_int_equal(list.count, 0);
}

static void a_list_with_bytes_left_over_is_refused_at_its_end(void **state)
{
	const uint8_t raw[] = { 1, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5 };
	struct view in = view_of(raw, sizeof(raw)), element;
	struct list_view list;

	assert_int_equal(get_list(&in, &list), 0);
	assert_int_equal(list_view_next(&list, &element), 0);
	assert_int_equal(list_view_next(&list, &element), -EPROTO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fields_have_the_bytes_of_the_page),
		cmocka_unit_test(fields_come_back),
		cmocka_unit_test(a_body_may_end_between_fields_but_not_within_one),
		cmocka_unit_test(a_box_of_nine_dimensions_is_refused),
		cmocka_unit_test(a_list_cannot_promise_more_elements_than_its_bytes_hold),
		cmocka_unit_test(a_list_with_bytes_left_over_is_refused_at_its_end),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
