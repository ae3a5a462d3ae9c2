#include "client/inside.h"
#include "client/script_suite.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- loads ------------------------------------------------------------------------------------------------------------------------ */

struct loading {
	struct core_load *load;
	struct watched done;
	uint8_t data[32];
	uint64_t number;
};

static const struct box piece32 = { .ndim = 1, .count = { 32 } };

static void ask(struct script *s, struct loading *v)
{
	const struct core_want want = { .name = view_str("w.0"),
					.element_bits = 8,
					.box = { .ndim = 1, .count = { 32 } },
					.data = v->data };
	struct msg_load m;

	memset(v, 0, sizeof(*v));
	memset(v->data, 0xee, sizeof(v->data));
	assert_int_equal(core_load_new(s->core, NULL, 17, &v->load), 0);
	assert_int_equal(core_load_add(v->load, &want, NULL), 0);
	core_future_init(&v->done.future, script_on_end);
	core_load_attach(v->load, &v->done.future);
	assert_int_equal(core_load_submit(v->load, NULL), 0);
	script_expect(s, MSG_LOAD);
	assert_int_equal(msg_load_decode(view_buf(&s->body), &m), 0);
	assert_true(m.version == 17 && m.wants.count == 1 && !m.group);
	v->number = m.load;
	script_reply(s, (struct view){ 0 });
}

static void bring(struct script *s, const struct loading *v, const struct elem_block *blocks, size_t n)
{
	_cleanup_(list_buf_fini) struct list_buf list = { 0 };

	for (size_t i = 0; i < n; i++)
		assert_int_equal(elem_block_append(&list, &blocks[i]), 0);
	SAY(s, MSG_BLOCKS, v->number, blocks, .blocks = list_buf_view(&list));
}

/* 16 bytes of the piece from @offset on, at the same place in the read arena. */
static struct elem_block block_at(uint64_t offset, uint64_t token)
{
	return (struct elem_block){ .piece = piece32,
				    .offset = offset,
				    .bytes = 16,
				    .arena = READ,
				    .arena_offset = offset,
				    .token = token };
}

static void load_ends(struct script *s, const struct loading *v, int code, const char *words)
{
	SAY(s, MSG_LOAD_END, v->number, load_end, .code = (uint32_t)-code, .words = view_str(words));
}

static void a_load_fills_its_target_and_gives_everything_back(void **state)
{
	struct script *s = *state;
	struct msg_release m;
	struct elem_token token;
	struct loading v;

	for (unsigned i = 0; i < 32; i++)
		s->read[i] = (uint8_t)i;
	ask(s, &v);
	const struct elem_block blocks[] = { block_at(16, 5), block_at(0, 6) };
	bring(s, &v, blocks, 2);
	assert_int_equal(script_run_all(s), 2);
	script_expect(s, MSG_RELEASE);
	assert_int_equal(msg_release_decode(view_buf(&s->body), &m), 0);
	assert_true(m.load == v.number && m.tokens.count == 2);
	assert_int_equal(elem_token_next(&m.tokens, &token), 0);
	assert_int_equal(token.token, 5);
	assert_int_equal(v.done.ends, 0);
	load_ends(s, &v, 0, "");
	assert_int_equal(v.done.ends, 1);
	assert_int_equal(v.done.future.error.code, 0);
	assert_memory_equal(v.data, s->read, 32);
	assert_false(core_is_urgent(s->core)); /* the daemon may hear of it with the next request */
	script_expect(s, MSG_CANCEL);
	script_silence(s);
	core_load_drop(v.load);
	assert_false(core_is_urgent(s->core));
}

static void a_load_is_over_only_when_its_last_work_is(void **state)
{
	struct script *s = *state;
	struct loading v;

	ask(s, &v);
	const struct elem_block blocks[] = { block_at(0, 1), block_at(16, 2) };
	bring(s, &v, blocks, 2);
	load_ends(s, &v, 0, "");
	struct work *first = script_take_work(s), *second = script_take_work(s);
	work_run(first);
	core_work_done(s->core, first);
	assert_int_equal(v.done.ends, 0);
	script_silence(s);
	work_run(second);
	core_work_done(s->core, second);
	assert_int_equal(v.done.ends, 1);
	script_expect(s, MSG_CANCEL); /* which gives all back */
	script_silence(s);
	core_load_drop(v.load);
}

static void wants_that_share_a_span_give_it_back_together(void **state)
{
	struct script *s = *state;
	struct msg_release m;
	struct loading v;

	ask(s, &v);
	struct elem_block blocks[] = { block_at(0, 0), block_at(0, 9), block_at(16, 0), block_at(16, 4) };
	bring(s, &v, blocks, 4);
	struct work *work = script_take_work(s);
	assert_int_equal(work->n_parts, 2);
	work_run(work);
	core_work_done(s->core, work);
	assert_int_equal(script_run_all(s), 1);
	script_expect(s, MSG_RELEASE);
	assert_int_equal(msg_release_decode(view_buf(&s->body), &m), 0);
	assert_int_equal(m.tokens.count, 2);
	core_load_drop(v.load);
	assert_true(core_is_urgent(s->core)); /* the daemon still reads for it */
	script_expect(s, MSG_CANCEL);
}

static void holes_are_zeros(void **state)
{
	struct script *s = *state;
	static const uint8_t zeros[32];
	struct loading v;

	ask(s, &v);
	struct elem_block hole = { .piece = piece32, .bytes = 32, .token = 1 };
	bring(s, &v, &hole, 1);
	script_run_all(s);
	load_ends(s, &v, 0, "");
	assert_memory_equal(v.data, zeros, 32);
	assert_int_equal(v.done.future.error.code, 0);
	core_load_drop(v.load);
}

static void a_load_whose_bytes_are_missing_fails_naming_the_item(void **state)
{
	struct script *s = *state;
	struct loading v;

	ask(s, &v);
	const struct elem_block block = block_at(0, 1);
	bring(s, &v, &block, 1);
	script_run_all(s);
	load_ends(s, &v, 0, "");
	assert_int_equal(v.done.ends, 1);
	assert_int_equal(v.done.future.error.code, -ERR_EMISMATCH);
	assert_non_null(strstr(v.done.future.error.text, "w.0"));
	core_load_drop(v.load);
}

static void a_failed_load_is_quiet_before_anybody_is_told(void **state)
{
	struct script *s = *state;
	struct loading v;

	ask(s, &v);
	const struct elem_block blocks[] = { block_at(0, 1), block_at(16, 2) };
	bring(s, &v, blocks, 2);
	struct work *work = script_take_work(s);
	load_ends(s, &v, -ERR_EDAMAGED, "block 3 is damaged");
	assert_int_equal(v.done.ends, 0);
	script_silence(s);
	work_run(work);
	core_work_done(s->core, work);
	assert_int_equal(v.done.ends, 1);
	assert_int_equal(v.done.future.error.code, -ERR_EDAMAGED);
	script_expect(s, MSG_CANCEL);
	assert_false(core_has_work(s->core));
	core_load_drop(v.load);
}

static void a_cancelled_load_waits_for_its_work_and_for_the_answer(void **state)
{
	struct script *s = *state;
	struct loading v = { 0 };

	assert_int_equal(core_load_new(s->core, NULL, 17, &v.load), 0);
	assert_int_equal(core_load_submit(v.load, NULL), 0);
	script_expect(s, MSG_LOAD);
	core_load_cancel(v.load);
	assert_true(core_load_is_quiet(v.load));
	core_load_drop(v.load);
	script_silence(s);
	script_reply(s, (struct view){ 0 });
	script_expect(s, MSG_CANCEL);
}

static void a_refused_load_fails_without_a_cancel(void **state)
{
	struct script *s = *state;
	struct watched done = { 0 };
	struct core_load *load;

	assert_int_equal(core_load_new(s->core, NULL, 17, &load), 0);
	core_future_init(&done.future, script_on_end);
	core_load_attach(load, &done.future);
	assert_int_equal(core_load_submit(load, NULL), 0);
	script_expect(s, MSG_LOAD);
	script_fail(s, -ENOENT, "no such item");
	assert_int_equal(done.ends, 1);
	assert_int_equal(done.future.error.code, -ENOENT);
	script_silence(s);
	core_load_drop(load);
}

static void check_bad_block(struct script *s, struct elem_block bad)
{
	struct loading v;

	ask(s, &v);
	bring(s, &v, &bad, 1);
	assert_int_equal(s->fed, -EPROTO);
	assert_int_equal(v.done.ends, 1);
	assert_int_equal(v.data[0], 0xee);
	core_load_drop(v.load);
}

#define BAD_BLOCK(name, field, value)                                                                 \
	static void name(void **state)                                                                \
	{                                                                                             \
		struct elem_block bad = { .piece = piece32, .bytes = 16, .arena = READ, .token = 1 }; \
                                                                                                      \
		bad.field = value;                                                                    \
		check_bad_block(*state, bad);                                                         \
	}
BAD_BLOCK(a_block_for_an_unknown_target_is_refused, want, 1)
BAD_BLOCK(a_block_past_its_piece_is_refused, offset, 17)
BAD_BLOCK(a_block_past_the_arena_is_refused, arena_offset, ARENA_BYTES)
BAD_BLOCK(a_block_in_an_unknown_arena_is_refused, arena, 3)
BAD_BLOCK(a_piece_of_other_dimensions_ends_the_conversation, piece.ndim, 2)

/* Of version 17, without a box. */
static struct core_load *submit_grouped(struct script *s, struct core_group *group)
{
	struct core_load *load;

	assert_int_equal(core_load_new(s->core, group, 17, &load), 0);
	assert_int_equal(core_load_submit(load, NULL), 0);
	script_expect(s, MSG_LOAD);
	return load;
}

static void ranks_loads_end_when_they_leave(void **state)
{
	struct script *s = *state;
	struct core_group *group = script_join(s);
	struct core_load *load = submit_grouped(s, group);

	script_reply(s, (struct view){ 0 });
	core_group_cancel(group);
	assert_true(core_group_is_quiet(group));
	core_group_leave(group);
	script_expect(s, MSG_CANCEL);
	script_expect(s, MSG_LEAVE);
	core_load_drop(load);
}

static void expect_forgone(struct script *s, uint64_t version, const char *words)
{
	struct msg_forgo m;

	script_expect(s, MSG_FORGO);
	assert_int_equal(msg_forgo_decode(view_buf(&s->body), &m), 0);
	assert_true(m.group == 31 && m.version == version && !m.name.len);
	assert_true(view_equal(m.words, view_str(words)));
}

static void a_refused_part_of_a_grouped_load_is_told_to_the_other_ranks(void **state)
{
	struct script *s = *state;
	struct core_group *group = script_join(s);
	struct core_load *load = submit_grouped(s, group);

	script_fail(s, -ENOMEM, "no memory to serve a request");
	expect_forgone(s, 17, "no memory to serve a request");
	core_load_drop(load);
	script_silence(s);
	script_leave(s, group);
}

static void a_shortage_of_one_rank_is_told_and_what_all_meet_is_not(void **state)
{
	struct script *s = *state;
	struct core_group *group = script_join(s);
	const struct msg_join join = { view_str("job"), view_str("1"), 1, 2 };
	const struct msg_open open = { view_str("b"), view_str("latest"), 31 };
	struct error none = { 0 }, absent = { 0 };
	struct msg_forgo m;

	(void)error_set(&none, -ENOMEM, "no memory");
	(void)error_set(&absent, -ENOENT, "there is no bundle b");
	core_forgo_join(s->core, &join, &absent);
	core_forgo_open(group, &open, &absent);
	core_forgo_save(group, view_str("b"), 7, &absent);
	script_silence(s);
	core_forgo_open(group, &open, &none);
	expect_forgone(s, 0, "no memory");
	core_forgo_join(s->core, &join, &none);
	script_expect(s, MSG_FORGO);
	assert_int_equal(msg_forgo_decode(view_buf(&s->body), &m), 0);
	assert_true(view_equal(m.name, view_str("job")) && view_equal(m.run, view_str("1")) && m.rank == 1);
	core_forgo_save(group, view_str("b"), 7, &none);
	script_expect(s, MSG_CANCEL);
	script_leave(s, group);
}

static void a_grouped_load_that_is_dropped_unsubmitted_is_told_to_the_other_ranks(void **state)
{
	struct script *s = *state;
	struct core_group *group = script_join(s);
	uint8_t byte;
	const struct core_want want = { view_str("w.0"), 8, { .ndim = 1, .count = { 1 } }, &byte, NULL };
	struct core_load *load;

	assert_int_equal(core_load_new(s->core, group, 17, &load), 0);
	(void)error_set(&load->refusal, -ENOMEM, "no memory for one target more"); /* as core_load_add() does */
	core_load_drop(load);
	expect_forgone(s, 17, "no memory for one target more");
	assert_int_equal(core_load_new(s->core, group, 17, &load), 0);
	(void)error_set(&load->refusal, -ENOMEM, "no memory for one target more");
	assert_int_equal(core_load_add(load, &want, NULL), 0); /* tried again, and taken */
	core_load_drop(load);
	expect_forgone(s, 17, "the load was cancelled");
	assert_int_equal(core_load_new(s->core, NULL, 17, &load), 0);
	core_load_drop(load);
	script_silence(s);
	script_leave(s, group);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_grouped_load_that_is_dropped_unsubmitted_is_told_to_the_other_ranks,
						script_set_up, script_tear_down),
		cmocka_unit_test_setup_teardown(a_refused_part_of_a_grouped_load_is_told_to_the_other_ranks,
						script_set_up, script_tear_down),
		cmocka_unit_test_setup_teardown(a_shortage_of_one_rank_is_told_and_what_all_meet_is_not, script_set_up,
						script_tear_down),
		cmocka_unit_test_setup_teardown(a_load_fills_its_target_and_gives_everything_back, script_set_up,
						script_tear_down),
		cmocka_unit_test_setup_teardown(a_load_is_over_only_when_its_last_work_is, script_set_up,
						script_tear_down),
		cmocka_unit_test_setup_teardown(wants_that_share_a_span_give_it_back_together, script_set_up,
						script_tear_down),
		cmocka_unit_test_setup_teardown(holes_are_zeros, script_set_up, script_tear_down),
		cmocka_unit_test_setup_teardown(a_load_whose_bytes_are_missing_fails_naming_the_item, script_set_up,
						script_tear_down),
		cmocka_unit_test_setup_teardown(a_failed_load_is_quiet_before_anybody_is_told, script_set_up,
						script_tear_down),
		cmocka_unit_test_setup_teardown(a_cancelled_load_waits_for_its_work_and_for_the_answer, script_set_up,
						script_tear_down),
		cmocka_unit_test_setup_teardown(a_refused_load_fails_without_a_cancel, script_set_up, script_tear_down),
		cmocka_unit_test_setup_teardown(a_block_for_an_unknown_target_is_refused, script_set_up,
						script_tear_down),
		cmocka_unit_test_setup_teardown(a_block_past_its_piece_is_refused, script_set_up, script_tear_down),
		cmocka_unit_test_setup_teardown(a_block_past_the_arena_is_refused, script_set_up, script_tear_down),
		cmocka_unit_test_setup_teardown(a_block_in_an_unknown_arena_is_refused, script_set_up,
						script_tear_down),
		cmocka_unit_test_setup_teardown(a_piece_of_other_dimensions_ends_the_conversation, script_set_up,
						script_tear_down),
		cmocka_unit_test_setup_teardown(ranks_loads_end_when_they_leave, script_set_up, script_tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
