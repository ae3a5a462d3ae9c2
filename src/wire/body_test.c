#include "wire/body.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <errno.h>
#include <string.h>

static int feed(struct body_joiner *joiner, uint64_t request, unsigned flags, const char *text, struct buf *ret)
{
	const struct frame_head head = { .type = 18, .request = request, .flags = flags };

	return body_join(joiner, &head, BODY_FOREVER, view_str(text), ret);
}

static void pieces_of_two_bodies_may_come_mixed(void **state)
{
	_cleanup_(body_joiner_fini) struct body_joiner joiner;
	_cleanup_(buf_fini) struct buf first = { 0 }, second = { 0 };

	body_joiner_init(&joiner, 100);
	assert_int_equal(feed(&joiner, 1, FRAME_MORE, "ab", &first), 1);
	assert_int_equal(feed(&joiner, 2, FRAME_MORE, "xy", &second), 1);
	assert_int_equal(feed(&joiner, 1, 0, "cd", &first), 0);
	assert_int_equal(feed(&joiner, 2, 0, "z", &second), 0);
	assert_true(view_equal(view_buf(&first), view_str("abcd")));
	assert_true(view_equal(view_buf(&second), view_str("xyz")));
	assert_int_equal(joiner.bytes, 0);
}

static void a_body_beyond_the_limit_is_refused_once_and_swallowed(void **state)
{
	_cleanup_(body_joiner_fini) struct body_joiner joiner;
	_cleanup_(buf_fini) struct buf body = { 0 };

	body_joiner_init(&joiner, 4);
	assert_int_equal(feed(&joiner, 1, FRAME_MORE, "abc", &body), 1);
	assert_int_equal(feed(&joiner, 1, FRAME_MORE, "de", &body), -EBUSY);
	assert_int_equal(feed(&joiner, 1, FRAME_MORE, "f", &body), 1);
	assert_int_equal(feed(&joiner, 1, 0, "g", &body), 1);
	assert_int_equal(feed(&joiner, 1, 0, "next", &body), 0);
	assert_true(view_equal(view_buf(&body), view_str("next")));
}

static void too_many_bodies_in_part_end_the_conversation(void **state)
{
	_cleanup_(body_joiner_fini) struct body_joiner joiner;
	_cleanup_(buf_fini) struct buf body = { 0 };

	body_joiner_init(&joiner, 1u << 20);
	for (uint64_t i = 0; i < BODY_PARTS_MAX; i++)
		assert_int_equal(feed(&joiner, i, FRAME_MORE, "a", &body), 1);
	assert_int_equal(feed(&joiner, BODY_PARTS_MAX, FRAME_MORE, "a", &body), -EPROTO);
}

static void a_body_whose_rest_does_not_come_in_time_is_forgotten(void **state)
{
	const struct frame_head head = { .type = 18, .request = 1, .flags = FRAME_MORE };
	_cleanup_(body_joiner_fini) struct body_joiner joiner;
	_cleanup_(buf_fini) struct buf body = { 0 };

	body_joiner_init(&joiner, 100);
	assert_int_equal(body_join(&joiner, &head, 10, view_str("late"), &body), 1);
	assert_int_equal(feed(&joiner, 2, FRAME_MORE, "ab", &body), 1);
	body_joiner_expire(&joiner, 10);
	assert_int_equal(joiner.bytes, 6);
	body_joiner_expire(&joiner, 11);
	assert_int_equal(joiner.bytes, 2);
	assert_int_equal(feed(&joiner, 2, 0, "c", &body), 0);
	assert_true(view_equal(view_buf(&body), view_str("abc")));
}

static void what_comes_of_a_forgotten_body_is_swallowed(void **state)
{
	const struct frame_head head = { .type = 18, .request = 1, .flags = FRAME_MORE };
	_cleanup_(body_joiner_fini) struct body_joiner joiner;
	_cleanup_(buf_fini) struct buf body = { 0 };

	body_joiner_init(&joiner, 100);
	assert_int_equal(body_join(&joiner, &head, 10, view_str("begins"), &body), 1);
	body_joiner_expire(&joiner, 11);
	assert_int_equal(joiner.bytes, 0);
	assert_int_equal(feed(&joiner, 1, FRAME_MORE, " goes on", &body), 1);
	assert_int_equal(feed(&joiner, 1, 0, " and ends", &body), 1); /* else the end would be taken for the whole */
	assert_int_equal(body.len, 0);
	assert_int_equal(joiner.n_parts, 0);
}

static void forgotten_bodies_give_way_to_others(void **state)
{
	const struct frame_head head = { .type = 18, .request = BODY_PARTS_MAX, .flags = FRAME_MORE };
	_cleanup_(body_joiner_fini) struct body_joiner joiner;
	_cleanup_(buf_fini) struct buf body = { 0 };

	body_joiner_init(&joiner, 1u << 20);
	assert_int_equal(body_join(&joiner, &head, 10, view_str("late"), &body), 1);
	for (uint64_t i = 0; i < BODY_PARTS_MAX - 1; i++)
		assert_int_equal(feed(&joiner, i, FRAME_MORE, "a", &body), 1);
	body_joiner_expire(&joiner, 11);
	assert_int_equal(feed(&joiner, BODY_PARTS_MAX - 1, FRAME_MORE, "a", &body), 1);
	assert_int_equal(feed(&joiner, BODY_PARTS_MAX + 1, FRAME_MORE, "a", &body), -EPROTO);
}

static void cutting_says_more_until_the_last(void **state)
{
	static const uint8_t bytes[FRAME_BODY_MAX + 1];
	struct view body = view_of(bytes, sizeof(bytes));
	struct frame_head head = { 0 };

	assert_int_equal(body_cut(&head, &body).len, FRAME_BODY_MAX);
	assert_int_equal(head.flags, FRAME_MORE);
	assert_int_equal(body_cut(&head, &body).len, 1);
	assert_int_equal(head.flags, 0);
	assert_int_equal(body.len, 0);
}

static void a_failure_comes_back_with_its_words(void **state)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	struct error e = { 0 };

	assert_int_equal(body_put_failure(&body, -ENOENT, "no such thing"), 0);
	assert_int_equal(body_get_failure(view_buf(&body), &e), -ENOENT);
	assert_string_equal(e.text, "no such thing");
	assert_int_equal(body_get_failure((struct view){ 0 }, &e), -EPROTO);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pieces_of_two_bodies_may_come_mixed),
		cmocka_unit_test(a_body_beyond_the_limit_is_refused_once_and_swallowed),
		cmocka_unit_test(too_many_bodies_in_part_end_the_conversation),
		cmocka_unit_test(a_body_whose_rest_does_not_come_in_time_is_forgotten),
		cmocka_unit_test(what_comes_of_a_forgotten_body_is_swallowed),
		cmocka_unit_test(forgotten_bodies_give_way_to_others),
		cmocka_unit_test(cutting_says_more_until_the_last),
		cmocka_unit_test(a_failure_comes_back_with_its_words),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
