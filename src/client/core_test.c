#include "client/script_suite.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- greeting ------------------------------------------------------------------------------------------------------------------ */

static void a_core_greets_and_is_answered(void **state)
{
	struct script *s = *state;
	struct watched greeted = { 0 };
	struct msg_hello m;

	core_future_init(&greeted.future, script_on_end);
	core_attach_greeted(s->core, &greeted.future);
	script_expect(s, MSG_HELLO);
	assert_int_equal(msg_hello_decode(view_buf(&s->body), &m), 0);
	assert_int_equal(m.kind, 0);
	assert_int_equal(m.major_max, FRAME_MAJOR);
	REPLY(s, hello_reply, .major = FRAME_MAJOR, .node = view_str("n3"));
	assert_int_equal(s->fed, 0);
	assert_int_equal(greeted.ends, 1);
	assert_int_equal(greeted.future.error.code, 0);
	assert_string_equal(core_node(s->core), "n3");
}

static void a_refusal_is_passed_on_with_its_words(void **state)
{
	struct script *s = *state;
	struct watched greeted = { 0 };

	core_future_init(&greeted.future, script_on_end);
	core_attach_greeted(s->core, &greeted.future);
	script_expect(s, MSG_HELLO);
	script_fail(s, -ERR_EVERSION, "this daemon speaks protocols 3 to 4, you speak 1 to 1");
	assert_int_equal(s->fed, -ERR_EVERSION);
	assert_int_equal(greeted.ends, 1);
	assert_string_equal(greeted.future.error.text, "this daemon speaks protocols 3 to 4, you speak 1 to 1");
}

static void a_daemon_of_another_major_is_named(void **state)
{
	struct script *s = *state;

	script_expect(s, MSG_HELLO);
	REPLY(s, hello_reply, .major = 9);
	assert_int_equal(s->fed, -ERR_EVERSION);
	assert_non_null(strstr(s->error.text, "9"));
}

static void anything_before_the_greeting_ends_the_conversation(void **state)
{
	struct script *s = *state;

	SAY(s, MSG_STAGE, 1, stage, .stage = 0);
	assert_int_equal(s->fed, -EPROTO);
	assert_int_equal(core_check(s->core, NULL), -EPROTO);
}

static void garbage_ends_the_conversation(void **state)
{
	struct script *s = *state;
	uint8_t junk[FRAME_HEAD_BYTES];

	memset(junk, 0x5a, sizeof(junk));
	assert_int_equal(core_feed(s->core, junk, sizeof(junk), &s->error), -EPROTO);
	assert_int_equal(core_feed(s->core, junk, 1, &s->error), -EPROTO); /* and stays so */
}

static void an_arena_that_cannot_be_mapped_ends_the_conversation(void **state)
{
	struct script *s = *state;

	s->no_arena = true;
	SAY(s, MSG_ARENA, 0, arena, .arena = 9, .bytes = ARENA_BYTES, .writable = 1);
	assert_int_equal(s->fed, -ENOMEM);
}

static void a_damaged_body_ends_the_conversation(void **state)
{
	struct script *s = *state;
	const struct frame_head head = { .major = FRAME_MAJOR, .type = MSG_PING, .body_bytes = 1, .body_crc = 1 };
	uint8_t raw[FRAME_HEAD_BYTES + 1] = { 0 };

	frame_encode(&head, raw);
	assert_int_equal(core_feed(s->core, raw, sizeof(raw), NULL), -EPROTO);
}

static void a_ping_is_answered_and_news_of_a_newer_daemon_ignored(void **state)
{
	struct script *s = *state;

	script_say(s, MSG_PING, 5, 0, (struct view){ 0 });
	script_expect(s, MSG_PING);
	assert_int_equal(s->head.flags, FRAME_REPLY);
	assert_int_equal(s->head.request, 5);
	script_say(s, (enum msg_type)63, 5, 0, view_str("news"));
	assert_int_equal(s->fed, 0);
}

/* ---- calls ------------------------------------------------------------------------------------------------------------------------ */

static void calls_end_in_any_order_each_with_its_own_answer(void **state)
{
	struct script *s = *state;
	struct core_call *first, *second;
	uint64_t first_number;

	assert_int_equal(core_call_start(s->core, MSG_LIST, (struct view){ 0 }, 1000, NULL, &first, NULL), 0);
	assert_int_equal(core_call_start(s->core, MSG_STATUS, (struct view){ 0 }, 1000, NULL, &second, NULL), 0);
	script_expect(s, MSG_LIST);
	first_number = s->head.request;
	assert_int_equal(s->head.deadline_ms, 1000);
	script_expect(s, MSG_STATUS);
	script_reply(s, view_str("second"));
	assert_true(second->future.over && !first->future.over);
	assert_true(view_equal(view_buf(&second->answer), view_str("second")));
	script_say(s, MSG_LIST, first_number, FRAME_REPLY | FRAME_MORE, view_str("in two "));
	script_say(s, MSG_LIST, first_number, FRAME_REPLY, view_str("parts"));
	assert_true(view_equal(view_buf(&first->answer), view_str("in two parts")));
	core_call_drop(first);
	core_call_drop(second);
}

static void an_answer_to_nothing_is_ignored_and_one_of_another_type_is_not(void **state)
{
	struct script *s = *state;
	struct core_call *call;

	script_say(s, MSG_LIST, 999, FRAME_REPLY, (struct view){ 0 });
	assert_int_equal(s->fed, 0);
	assert_int_equal(core_call_start(s->core, MSG_LIST, (struct view){ 0 }, 1000, NULL, &call, NULL), 0);
	script_expect(s, MSG_LIST);
	script_say(s, MSG_OPEN, s->head.request, FRAME_REPLY, (struct view){ 0 });
	assert_int_equal(s->fed, -EPROTO);
	assert_int_equal(call->future.error.code, -EPROTO);
	core_call_drop(call);
}

static void what_a_late_answer_brings_is_given_back(void **state)
{
	struct script *s = *state;
	struct core_call *call;
	struct msg_handle m;

	assert_int_equal(core_call_start(s->core, MSG_JOIN, (struct view){ 0 }, 1000, NULL, &call, NULL), 0);
	script_expect(s, MSG_JOIN);
	core_call_drop(call);
	REPLY(s, join_reply, .handle = 12);
	script_expect(s, MSG_LEAVE);
	assert_int_equal(msg_handle_decode(view_buf(&s->body), &m), 0);
	assert_int_equal(m.handle, 12);

	assert_int_equal(core_call_start(s->core, MSG_OPEN, (struct view){ 0 }, 1000, NULL, &call, NULL), 0);
	script_expect(s, MSG_OPEN);
	core_call_drop(call);
	REPLY(s, open_reply, .handle = 13);
	script_expect(s, MSG_CLOSE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_core_greets_and_is_answered, script_set_up_ungreeted,
						script_tear_down),
		cmocka_unit_test_setup_teardown(a_refusal_is_passed_on_with_its_words, script_set_up_ungreeted,
						script_tear_down),
		cmocka_unit_test_setup_teardown(a_daemon_of_another_major_is_named, script_set_up_ungreeted,
						script_tear_down),
		cmocka_unit_test_setup_teardown(anything_before_the_greeting_ends_the_conversation,
						script_set_up_ungreeted, script_tear_down),
		cmocka_unit_test_setup_teardown(garbage_ends_the_conversation, script_set_up_ungreeted,
						script_tear_down),
		cmocka_unit_test_setup_teardown(an_arena_that_cannot_be_mapped_ends_the_conversation, script_set_up,
						script_tear_down),
		cmocka_unit_test_setup_teardown(a_damaged_body_ends_the_conversation, script_set_up, script_tear_down),
		cmocka_unit_test_setup_teardown(a_ping_is_answered_and_news_of_a_newer_daemon_ignored, script_set_up,
						script_tear_down),
		cmocka_unit_test_setup_teardown(calls_end_in_any_order_each_with_its_own_answer, script_set_up,
						script_tear_down),
		cmocka_unit_test_setup_teardown(an_answer_to_nothing_is_ignored_and_one_of_another_type_is_not,
						script_set_up, script_tear_down),
		cmocka_unit_test_setup_teardown(what_a_late_answer_brings_is_given_back, script_set_up,
						script_tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
