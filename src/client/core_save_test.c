#include "client/inside.h"
#include "client/script_suite.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void stage(struct script *s, uint64_t number, uint32_t which, int code, const char *words)
{
	SAY(s, MSG_STAGE, number, stage, .stage = which, .code = (uint32_t)-code, .words = view_str(words),
	    .version = which == 2 ? 5 : 0);
}

static void grant_at(struct script *s, uint64_t number, enum grant_mode mode, struct elem_grant grant)
{
	_cleanup_(list_buf_fini) struct list_buf list = { 0 };

	assert_int_equal(elem_grant_append(&list, &grant), 0);
	SAY(s, MSG_GRANT, number, grant, .mode = mode, .last = 1, .grants = list_buf_view(&list));
}

/* Block @block: 16 bytes of item 0 from 16 * block on, into the arena at the same place. */
static void grant(struct script *s, uint64_t number, enum grant_mode mode, uint32_t block)
{
	grant_at(s, number, mode,
		 (struct elem_grant){ .item = 0,
				      .block = block,
				      .offset = 16 * (uint64_t)block,
				      .bytes = 16,
				      .arena = CAPTURE,
				      .arena_offset = 16 * (uint64_t)block });
}

struct saving {
	struct core_group *group;
	struct core_save *save;
	struct watched captured, staged, durable;
	uint8_t data[64];
	uint64_t number;
};

static void begin(struct script *s, struct saving *v, bool same_structure)
{
	const struct core_save_options options = { .bundle = view_str("ckpt"),
						   .step = 9,
						   .copies = 1,
						   .same_structure = same_structure };
	struct core_item item = {
		.name = view_str("w.0"),
		.dtype = view_str("uint8"),
		.element_bits = 8,
		.whole = { .ndim = 1, .count = { 64 } },
		.box = { .ndim = 1, .count = { 64 } },
		.data = v->data,
	};
	struct watched *all[] = { &v->captured, &v->staged, &v->durable };

	*v = (struct saving){ .group = script_join(s) };
	for (unsigned i = 0; i < 64; i++)
		v->data[i] = (uint8_t)(i + 1);
	item.data = v->data;
	assert_int_equal(core_save_new(v->group, &options, &v->save, NULL), 0);
	for (int i = 0; i < CORE_STAGES; i++) {
		core_future_init(&all[i]->future, script_on_end);
		core_save_attach(v->save, (enum core_stage)i, &all[i]->future);
	}
	assert_int_equal(core_save_add(v->save, &item, NULL), 0);
}

/* Submitted, and taken in by the daemon. */
static void offer(struct script *s, struct saving *v)
{
	struct msg_save m;

	begin(s, v, false);
	assert_int_equal(core_save_submit(v->save, NULL), 0);
	script_expect(s, MSG_SAVE);
	assert_int_equal(msg_save_decode(view_buf(&s->body), &m), 0);
	assert_int_equal(m.items.count, 1);
	assert_int_equal(m.group, 31);
	v->number = m.save;
	REPLY(s, save_reply, .save_id = 77);
}

static void end(struct script *s, struct saving *v)
{
	core_save_drop(v->save);
	core_future_forget(&v->captured.future);
	core_future_forget(&v->staged.future);
	core_future_forget(&v->durable.future);
	core_group_leave(v->group);
	(void)s;
}

static void check_ends(const struct saving *v, int captured, int staged, int durable)
{
	assert_int_equal(v->captured.ends, captured);
	assert_int_equal(v->staged.ends, staged);
	assert_int_equal(v->durable.ends, durable);
}

/* ---- saves ------------------------------------------------------------------------------------------------------------------------ */

static void a_save_goes_through_its_stages(void **state)
{
	struct script *s = *state;
	struct saving v;
	struct msg_filled m;
	struct elem_filled filled;

	offer(s, &v);
	grant(s, v.number, GRANT_FULL, 0);
	grant(s, v.number, GRANT_FULL, 3);
	assert_int_equal(script_run_all(s), 2);
	assert_memory_equal(s->capture, v.data, 16);
	assert_memory_equal(s->capture + 48, v.data + 48, 16);

	script_expect(s, MSG_FILLED);
	assert_int_equal(msg_filled_decode(view_buf(&s->body), &m), 0);
	assert_int_equal(m.save, v.number);
	assert_int_equal(m.group, 31);
	assert_int_equal(m.filled.count, 2); /* one message for both */
	assert_int_equal(elem_filled_next(&m.filled, &filled), 0);
	struct digest digest = digest_of(v.data, 16);
	assert_true(filled.block == 0 && digest_equal(&filled.digest, &digest) && filled.crc == crc32c(0, v.data, 16));

	check_ends(&v, 0, 0, 0);
	stage(s, v.number, 0, 0, "");
	check_ends(&v, 1, 0, 0);
	stage(s, v.number, 1, 0, "");
	check_ends(&v, 1, 1, 0);
	assert_int_equal(core_save_version(v.save), 0);
	stage(s, v.number, 2, 0, "");
	check_ends(&v, 1, 1, 1);
	assert_int_equal(v.durable.future.error.code, 0);
	assert_int_equal(core_save_version(v.save), 5);
	script_silence(s); /* nothing is owed to the daemon */
	core_save_drop(v.save);
	script_leave(s, v.group);
}

static void many_small_blocks_are_one_report(void **state)
{
	struct script *s = *state;
	struct saving v;
	struct msg_filled m;

	offer(s, &v);
	for (uint32_t i = 0; i < 100; i++)
		grant(s, v.number, GRANT_HINTED, i % 4);
	assert_int_equal(script_run_all(s), 100);
	script_expect(s, MSG_FILLED);
	assert_int_equal(msg_filled_decode(view_buf(&s->body), &m), 0);
	assert_int_equal(m.filled.count, 100);
	script_silence(s);
	end(s, &v);
}

static void a_future_of_a_stage_that_is_over_is_over_at_once(void **state)
{
	struct script *s = *state;
	struct watched late = { 0 };
	struct saving v;

	offer(s, &v);
	stage(s, v.number, 0, 0, "");
	core_future_init(&late.future, script_on_end);
	core_save_attach(v.save, CORE_CAPTURED, &late.future);
	assert_int_equal(late.ends, 1);
	end(s, &v);
}

static void a_forgotten_future_is_not_told(void **state)
{
	struct script *s = *state;
	struct saving v;

	offer(s, &v);
	core_future_forget(&v.captured.future);
	stage(s, v.number, 0, 0, "");
	check_ends(&v, 0, 0, 0);
	end(s, &v);
}

static void a_hint_sends_the_number_alone_and_the_list_when_asked(void **state)
{
	struct script *s = *state;
	struct msg_save hinted, whole;
	struct saving v;

	begin(s, &v, true);
	assert_int_equal(core_save_submit(v.save, NULL), 0);
	script_expect(s, MSG_SAVE);
	assert_int_equal(msg_save_decode(view_buf(&s->body), &hinted), 0);
	assert_int_equal(hinted.items.count, 0);
	assert_int_equal(hinted.n_items, 1);
	assert_int_equal(hinted.flags, SAVE_SAME_STRUCTURE);
	uint64_t structure = hinted.structure;
	REPLY(s, save_reply, .need_items = 1);
	script_expect(s, MSG_SAVE);
	assert_int_equal(msg_save_decode(view_buf(&s->body), &whole), 0);
	assert_int_equal(whole.items.count, 1);
	assert_true(whole.structure == structure &&
		    structure == hash64(whole.items.bytes.ptr, whole.items.bytes.len, 0));
	REPLY(s, save_reply, .save_id = 1);
	stage(s, whole.save, 0, 0, "");
	check_ends(&v, 1, 0, 0);
	end(s, &v);
}

static void asking_twice_for_the_list_makes_no_sense(void **state)
{
	struct script *s = *state;
	struct saving v;

	begin(s, &v, false);
	assert_int_equal(core_save_submit(v.save, NULL), 0);
	script_expect(s, MSG_SAVE);
	REPLY(s, save_reply, .need_items = 1);
	assert_int_equal(core_check(s->core, NULL), -EPROTO);
	check_ends(&v, 1, 1, 1);
	end(s, &v);
}

static void a_void_hint_is_captured_again_in_full(void **state)
{
	struct script *s = *state;
	struct msg_filled m;
	struct elem_filled filled;
	struct saving v;

	offer(s, &v);
	grant(s, v.number, GRANT_HINTED, 1);
	assert_int_equal(script_run_all(s), 1);
	script_expect(s, MSG_FILLED);
	assert_int_equal(msg_filled_decode(view_buf(&s->body), &m), 0);
	assert_int_equal(elem_filled_next(&m.filled, &filled), 0);
	assert_true(filled.sample == sample_fingerprint(v.data + 16, 16) && !filled.crc);
	grant(s, v.number, GRANT_FULL, 1);
	assert_int_equal(script_run_all(s), 1);
	script_expect(s, MSG_FILLED);
	assert_int_equal(msg_filled_decode(view_buf(&s->body), &m), 0);
	assert_int_equal(elem_filled_next(&m.filled, &filled), 0);
	assert_int_equal(filled.crc, crc32c(0, v.data + 16, 16));
	end(s, &v);
}

static void grants_and_stages_may_come_before_the_answer_to_the_offer(void **state)
{
	struct script *s = *state;
	struct saving v;

	begin(s, &v, false);
	assert_int_equal(core_save_submit(v.save, NULL), 0);
	script_expect(s, MSG_SAVE);
	struct frame_head asked = s->head;
	grant(s, 1, GRANT_FULL, 0);
	assert_int_equal(script_run_all(s), 1);
	script_expect(s, MSG_FILLED);
	stage(s, 1, 0, 0, "");
	check_ends(&v, 1, 0, 0);
	s->head = asked;
	REPLY(s, save_reply, .save_id = 1);
	assert_int_equal(s->fed, 0);
	end(s, &v);
}

static void a_failed_save_is_quiet_before_anybody_is_told(void **state)
{
	struct script *s = *state;
	struct msg_cancel m;
	struct saving v;

	offer(s, &v);
	grant(s, v.number, GRANT_FULL, 0);
	grant(s, v.number, GRANT_FULL, 1);
	struct work *work = script_take_work(s);
	stage(s, v.number, 2, -ERR_ERANK, "rank 3 died");
	assert_false(core_has_work(s->core)); /* what nobody had begun is gone */
	check_ends(&v, 0, 0, 0);
	script_silence(s);
	work_run(work);
	core_work_done(s->core, work);
	check_ends(&v, 1, 1, 1);
	assert_int_equal(v.captured.future.error.code, -ERR_ERANK);
	assert_string_equal(v.durable.future.error.text, "rank 3 died");
	script_expect(s, MSG_CANCEL); /* no FILLED */
	assert_int_equal(msg_cancel_decode(view_buf(&s->body), &m), 0);
	assert_true(m.number == v.number && m.group == 31);
	script_silence(s);
	grant(s, v.number, GRANT_FULL, 2); /* was on its way */
	assert_false(core_has_work(s->core));
	end(s, &v);
}

static void a_save_that_fails_after_it_was_captured_owes_nothing(void **state)
{
	struct script *s = *state;
	struct saving v;

	offer(s, &v);
	stage(s, v.number, 0, 0, "");
	stage(s, v.number, 2, -ERR_ENODE, "node n2 was lost");
	check_ends(&v, 1, 1, 1);
	assert_int_equal(v.captured.future.error.code, 0);
	assert_int_equal(v.staged.future.error.code, -ERR_ENODE);
	script_silence(s);
	stage(s, v.number, 2, -ERR_ENODE, "told twice");
	assert_int_equal(s->fed, 0);
	end(s, &v);
}

static void refuse_offer(struct script *s, struct saving *v, int code, const char *words)
{
	begin(s, v, false);
	assert_int_equal(core_save_submit(v->save, NULL), 0);
	script_expect(s, MSG_SAVE);
	script_fail(s, code, words);
	check_ends(v, 1, 1, 1);
}

static void a_refused_offer_fails_without_a_cancel(void **state)
{
	struct script *s = *state;
	struct saving v;

	refuse_offer(s, &v, -EINVAL, "no such bundle's name");
	assert_string_equal(v.captured.future.error.text, "no such bundle's name");
	script_silence(s);
	end(s, &v);
}

static void a_refused_report_fails_the_save_and_lets_the_others_know(void **state)
{
	struct script *s = *state;
	struct saving v;

	offer(s, &v);
	grant(s, v.number, GRANT_FULL, 0);
	script_run_all(s);
	script_expect(s, MSG_FILLED);
	script_fail(s, -ERR_ECHANGED, "bytes were changed");
	check_ends(&v, 1, 1, 1);
	assert_int_equal(v.captured.future.error.code, -ERR_ECHANGED);
	script_expect(s, MSG_CANCEL);
	end(s, &v);
}

static void cancelling_waits_for_the_work_and_then_for_the_daemon(void **state)
{
	struct script *s = *state;
	struct saving v;

	offer(s, &v);
	grant(s, v.number, GRANT_FULL, 0);
	grant(s, v.number, GRANT_FULL, 1);
	struct work *work = script_take_work(s);
	core_save_cancel(v.save);
	assert_false(core_save_is_quiet(v.save));
	assert_false(core_has_work(s->core));
	script_silence(s);
	work_run(work);
	core_work_done(s->core, work);
	assert_true(core_save_is_quiet(v.save));
	script_expect(s, MSG_CANCEL);
	check_ends(&v, 0, 0, 0);
	stage(s, v.number, 2, -ECANCELED, "rank 0 cancelled the save");
	check_ends(&v, 1, 1, 1);
	script_silence(s); /* once is enough */
	end(s, &v);
}

static void cancelling_before_the_answer_waits_for_it(void **state)
{
	struct script *s = *state;
	struct saving v;

	begin(s, &v, false);
	assert_int_equal(core_save_submit(v.save, NULL), 0);
	script_expect(s, MSG_SAVE);
	core_save_cancel(v.save);
	assert_true(core_save_is_quiet(v.save));
	script_silence(s);
	REPLY(s, save_reply, .save_id = 1);
	script_expect(s, MSG_CANCEL);
	end(s, &v);
}

static void cancelling_a_hint_that_needs_the_list_ends_it_here(void **state)
{
	struct script *s = *state;
	struct saving v;

	begin(s, &v, true);
	assert_int_equal(core_save_submit(v.save, NULL), 0);
	script_expect(s, MSG_SAVE);
	core_save_cancel(v.save);
	REPLY(s, save_reply, .need_items = 1);
	check_ends(&v, 1, 1, 1);
	assert_int_equal(v.captured.future.error.code, -ECANCELED);
	script_expect(s, MSG_CANCEL); /* the others shall not wait for the list */
	end(s, &v);
}

static void cancelling_too_late_changes_nothing(void **state)
{
	struct script *s = *state;
	struct saving v;

	offer(s, &v);
	stage(s, v.number, 0, 0, "");
	core_save_cancel(v.save);
	script_silence(s);
	stage(s, v.number, 1, 0, "");
	stage(s, v.number, 2, 0, "");
	check_ends(&v, 1, 1, 1);
	assert_int_equal(v.durable.future.error.code, 0);
	end(s, &v);
}

static void an_offer_for_which_the_daemon_has_no_room_is_told_to_the_other_ranks(void **state)
{
	struct script *s = *state;
	struct msg_cancel m;
	struct saving v;

	refuse_offer(s, &v, -EBUSY, "256 requests are under way");
	script_expect(s, MSG_CANCEL);
	assert_int_equal(msg_cancel_decode(view_buf(&s->body), &m), 0);
	assert_true(!m.number && m.group == 31 && view_equal(m.words, view_str("256 requests are under way")));
	end(s, &v);
}

/* An item for which there was no memory, tried again: the cause is over, and not told when the save is given up for another. */
static void what_an_item_met_is_forgotten_once_one_is_taken(void **state)
{
	static const uint8_t byte;
	const struct core_item item = { .name = view_str("w.1"),
					.dtype = view_str("uint8"),
					.element_bits = 8,
					.whole = { .ndim = 1, .count = { 1 } },
					.box = { .ndim = 1, .count = { 1 } },
					.data = &byte };
	struct script *s = *state;
	struct msg_cancel m;
	struct saving v;

	begin(s, &v, false);
	(void)error_set(&v.save->refusal, -ENOMEM, "no memory for one item more"); /* as core_save_add() does */
	assert_int_equal(core_save_add(v.save, &item, NULL), 0);
	core_save_cancel(v.save);
	script_expect(s, MSG_CANCEL);
	assert_int_equal(msg_cancel_decode(view_buf(&s->body), &m), 0);
	assert_true(!m.words.len);
	end(s, &v);
}

static void a_save_that_was_cancelled_says_so_and_one_that_is_submitted_too(void **state)
{
	const struct core_item item = { .name = view_str("w"), .dtype = view_str("uint8"), .element_bits = 8 };
	struct script *s = *state;
	struct saving v;
	struct error e;

	begin(s, &v, false);
	core_save_cancel(v.save);
	script_expect(s, MSG_CANCEL);
	assert_int_equal(core_save_add(v.save, &item, &e), -ECANCELED);
	assert_string_equal(e.text, "the save of step 9 of ckpt was cancelled before it was submitted");
	assert_int_equal(core_save_submit(v.save, &e), -ECANCELED);
	end(s, &v);
	script_expect(s, MSG_LEAVE);
	offer(s, &v);
	assert_int_equal(core_save_add(v.save, &item, &e), -EINVAL);
	assert_string_equal(e.text, "the save of step 9 of ckpt is submitted already");
	assert_int_equal(core_save_submit(v.save, &e), -EINVAL);
	core_save_cancel(v.save);
	script_expect(s, MSG_CANCEL);
	end(s, &v);
}

static void an_unsubmitted_save_fails_when_it_is_dropped(void **state)
{
	struct script *s = *state;
	struct saving v;

	begin(s, &v, false);
	core_save_drop(v.save);
	check_ends(&v, 1, 1, 1);
	assert_int_equal(v.captured.future.error.code, -ECANCELED);
	script_expect(s, MSG_CANCEL); /* the others shall not wait for its offer */
	script_leave(s, v.group);
}

static void a_dropped_save_that_is_captured_goes_on_and_the_rank_stays_until_it_is_over(void **state)
{
	struct script *s = *state;
	struct saving v;

	offer(s, &v);
	stage(s, v.number, 0, 0, "");
	core_save_drop(v.save);
	core_group_leave(v.group);
	script_silence(s);
	stage(s, v.number, 1, 0, "");
	check_ends(&v, 1, 1, 0);
	stage(s, v.number, 2, 0, "");
	check_ends(&v, 1, 1, 1);
	script_expect(s, MSG_LEAVE);
}

static void the_daemons_end_waits_for_running_work_too(void **state)
{
	struct script *s = *state;
	struct saving v;

	offer(s, &v);
	grant(s, v.number, GRANT_FULL, 0);
	struct work *work = script_take_work(s);
	core_lose(s->core, -ECONNRESET, "gone");
	check_ends(&v, 0, 0, 0);
	work_run(work);
	core_work_done(s->core, work);
	check_ends(&v, 1, 1, 1);
	end(s, &v);
}

static void stages_out_of_order_end_the_conversation(void **state)
{
	struct script *s = *state;
	struct saving v;

	offer(s, &v);
	stage(s, v.number, 1, 0, "");
	assert_int_equal(s->fed, -EPROTO);
	check_ends(&v, 1, 1, 1);
	end(s, &v);
}

static void captured_while_blocks_are_missing_ends_the_conversation(void **state)
{
	struct script *s = *state;
	struct saving v;

	offer(s, &v);
	grant(s, v.number, GRANT_FULL, 0);
	stage(s, v.number, 0, 0, "");
	assert_int_equal(s->fed, -EPROTO);
	end(s, &v);
}

static void check_bad_grant(struct script *s, struct elem_grant bad)
{
	struct saving v;

	offer(s, &v);
	grant_at(s, v.number, GRANT_FULL, bad);
	assert_int_equal(s->fed, -EPROTO);
	assert_false(core_has_work(s->core));
	end(s, &v);
}

#define BAD_GRANT(name, field, value)                                      \
	static void name(void **state)                                     \
	{                                                                  \
		struct elem_grant bad = { .bytes = 16, .arena = CAPTURE }; \
                                                                           \
		bad.field = value;                                         \
		check_bad_grant(*state, bad);                              \
	}
BAD_GRANT(a_grant_of_an_unknown_item_is_refused, item, 1)
BAD_GRANT(a_grant_past_the_item_is_refused, offset, 49)
BAD_GRANT(a_grant_at_an_offset_that_wraps_is_refused, offset, UINT64_MAX)
BAD_GRANT(a_grant_past_the_arena_is_refused, arena_offset, ARENA_BYTES - 15)
BAD_GRANT(a_grant_in_the_read_arena_is_refused, arena, READ)
BAD_GRANT(a_grant_in_an_unknown_arena_is_refused, arena, 99)
BAD_GRANT(an_empty_grant_is_refused, bytes, 0)

static void messages_about_unknown_saves_are_ignored(void **state)
{
	struct script *s = *state;

	grant(s, 1234, GRANT_FULL, 0);
	assert_int_equal(s->fed, 0);
	stage(s, 1234, 0, 0, "");
	assert_int_equal(s->fed, 0);
	assert_false(core_has_work(s->core));
}

static void items_are_checked_before_anything_is_sent(void **state)
{
	struct script *s = *state;
	struct core_item item = {
		.name = view_str("x"),
		.dtype = view_str("t"),
		.element_bits = 8,
		.whole = { .ndim = 1, .count = { 8 } },
		.box = { .ndim = 1, .start = { 4 }, .count = { 5 } },
		.data = s,
	};
	struct error e;
	struct saving v;

	begin(s, &v, false);
	assert_int_equal(core_save_add(v.save, &item, &e), -EINVAL); /* out of the shape */
	assert_non_null(strstr(e.text, "\"x\""));
	item.box.count[0] = 4;
	item.data = NULL;
	assert_int_equal(core_save_add(v.save, &item, &e), -EINVAL);
	item.data = s;
	item.name = view_str("bad \xff");
	assert_int_equal(core_save_add(v.save, &item, &e), -EINVAL);
	item.name = view_str("");
	assert_int_equal(core_save_add(v.save, &item, &e), -EINVAL);
	item.name = view_str("x");
	item.element_bits = 3;
	assert_int_equal(core_save_add(v.save, &item, &e), -EINVAL); /* 12 bits */
	item.element_bits = 8;
	item.box.count[0] = 0;
	item.data = NULL;
	assert_int_equal(core_save_add(v.save, &item, &e), 0); /* nothing of it is legal */
	assert_int_equal(core_save_submit(v.save, &e), 0);
	assert_int_equal(core_save_add(v.save, &item, &e), -EINVAL); /* too late */
	assert_int_equal(core_save_submit(v.save, &e), -EINVAL);
	end(s, &v);
}

static void frames_may_come_byte_by_byte(void **state)
{
	struct script *s = *state;
	struct saving v;
	_cleanup_(buf_fini) struct buf body = { 0 };
	const struct msg_stage m = { .stage = 0 };
	uint8_t raw[FRAME_HEAD_BYTES];

	offer(s, &v);
	assert_int_equal(msg_stage_encode(&m, &body), 0);
	const struct frame_head head = {
		.major = FRAME_MAJOR,
		.type = MSG_STAGE,
		.request = v.number,
		.body_bytes = (uint32_t)body.len,
		.body_crc = crc32c(0, body.ptr, body.len),
	};
	frame_encode(&head, raw);
	for (size_t i = 0; i < sizeof(raw); i++)
		assert_int_equal(core_feed(s->core, raw + i, 1, NULL), 0);
	for (size_t i = 0; i < body.len; i++) {
		check_ends(&v, 0, 0, 0);
		assert_int_equal(core_feed(s->core, body.ptr + i, 1, NULL), 0);
	}
	check_ends(&v, 1, 0, 0);
	end(s, &v);
}

static void the_daemons_end_fails_everything_now_and_later(void **state)
{
	struct script *s = *state;
	struct core_call *call, *later;
	struct saving v;
	struct error e = { 0 };

	offer(s, &v);
	assert_int_equal(core_call_start(s->core, MSG_LIST, (struct view){ 0 }, 1000, NULL, &call, NULL), 0);
	core_lose(s->core, -ECONNRESET, "the daemon is gone");
	assert_int_equal(call->future.error.code, -ECONNRESET);
	check_ends(&v, 1, 1, 1);
	assert_int_equal(v.captured.future.error.code, -ECONNRESET);
	assert_string_equal(v.durable.future.error.text, "the daemon is gone");
	assert_int_equal(core_call_start(s->core, MSG_LIST, (struct view){ 0 }, 1000, NULL, &later, &e), -ECONNRESET);
	assert_string_equal(e.text, "the daemon is gone");
	core_call_drop(call);
	end(s, &v);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(frames_may_come_byte_by_byte, script_set_up, script_tear_down),
		cmocka_unit_test_setup_teardown(the_daemons_end_fails_everything_now_and_later, script_set_up,
						script_tear_down),
		cmocka_unit_test_setup_teardown(a_save_goes_through_its_stages, script_set_up, script_tear_down),
		cmocka_unit_test_setup_teardown(many_small_blocks_are_one_report, script_set_up, script_tear_down),
		cmocka_unit_test_setup_teardown(a_future_of_a_stage_that_is_over_is_over_at_once, script_set_up,
						script_tear_down),
		cmocka_unit_test_setup_teardown(a_forgotten_future_is_not_told, script_set_up, script_tear_down),
		cmocka_unit_test_setup_teardown(a_hint_sends_the_number_alone_and_the_list_when_asked, script_set_up,
						script_tear_down),
		cmocka_unit_test_setup_teardown(asking_twice_for_the_list_makes_no_sense, script_set_up,
						script_tear_down),
		cmocka_unit_test_setup_teardown(a_void_hint_is_captured_again_in_full, script_set_up, script_tear_down),
		cmocka_unit_test_setup_teardown(grants_and_stages_may_come_before_the_answer_to_the_offer,
						script_set_up, script_tear_down),
		cmocka_unit_test_setup_teardown(a_failed_save_is_quiet_before_anybody_is_told, script_set_up,
						script_tear_down),
		cmocka_unit_test_setup_teardown(a_save_that_fails_after_it_was_captured_owes_nothing, script_set_up,
						script_tear_down),
		cmocka_unit_test_setup_teardown(a_refused_offer_fails_without_a_cancel, script_set_up,
						script_tear_down),
		cmocka_unit_test_setup_teardown(a_refused_report_fails_the_save_and_lets_the_others_know, script_set_up,
						script_tear_down),
		cmocka_unit_test_setup_teardown(cancelling_waits_for_the_work_and_then_for_the_daemon, script_set_up,
						script_tear_down),
		cmocka_unit_test_setup_teardown(cancelling_before_the_answer_waits_for_it, script_set_up,
						script_tear_down),
		cmocka_unit_test_setup_teardown(cancelling_a_hint_that_needs_the_list_ends_it_here, script_set_up,
						script_tear_down),
		cmocka_unit_test_setup_teardown(what_an_item_met_is_forgotten_once_one_is_taken, script_set_up,
						script_tear_down),
		cmocka_unit_test_setup_teardown(cancelling_too_late_changes_nothing, script_set_up, script_tear_down),
		cmocka_unit_test_setup_teardown(an_offer_for_which_the_daemon_has_no_room_is_told_to_the_other_ranks,
						script_set_up, script_tear_down),
		cmocka_unit_test_setup_teardown(a_save_that_was_cancelled_says_so_and_one_that_is_submitted_too,
						script_set_up, script_tear_down),
		cmocka_unit_test_setup_teardown(an_unsubmitted_save_fails_when_it_is_dropped, script_set_up,
						script_tear_down),
		cmocka_unit_test_setup_teardown(
			a_dropped_save_that_is_captured_goes_on_and_the_rank_stays_until_it_is_over, script_set_up,
			script_tear_down),
		cmocka_unit_test_setup_teardown(the_daemons_end_waits_for_running_work_too, script_set_up,
						script_tear_down),
		cmocka_unit_test_setup_teardown(stages_out_of_order_end_the_conversation, script_set_up,
						script_tear_down),
		cmocka_unit_test_setup_teardown(captured_while_blocks_are_missing_ends_the_conversation, script_set_up,
						script_tear_down),
		cmocka_unit_test_setup_teardown(a_grant_of_an_unknown_item_is_refused, script_set_up, script_tear_down),
		cmocka_unit_test_setup_teardown(a_grant_past_the_item_is_refused, script_set_up, script_tear_down),
		cmocka_unit_test_setup_teardown(a_grant_at_an_offset_that_wraps_is_refused, script_set_up,
						script_tear_down),
		cmocka_unit_test_setup_teardown(a_grant_past_the_arena_is_refused, script_set_up, script_tear_down),
		cmocka_unit_test_setup_teardown(a_grant_in_the_read_arena_is_refused, script_set_up, script_tear_down),
		cmocka_unit_test_setup_teardown(a_grant_in_an_unknown_arena_is_refused, script_set_up,
						script_tear_down),
		cmocka_unit_test_setup_teardown(an_empty_grant_is_refused, script_set_up, script_tear_down),
		cmocka_unit_test_setup_teardown(messages_about_unknown_saves_are_ignored, script_set_up,
						script_tear_down),
		cmocka_unit_test_setup_teardown(items_are_checked_before_anything_is_sent, script_set_up,
						script_tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
