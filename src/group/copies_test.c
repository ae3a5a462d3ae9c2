#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "group/inside.h"
#include "group/sources.h"
#include "sim/strike.h"

enum { NODES = 2, BLOCKS = 3, ANSWERS = 1 /* the node */ };

/* A save of which copies are ordered, as far as an answer to that is concerned. */
struct ordered {
	char names[NODES][NODE_NAME_MAX + 1];
	struct node_state nodes[NODES];
	struct save_block blocks[BLOCKS];
	struct block_report reports[BLOCKS];
	struct recipe recipe;
	struct csave save;
	struct sources sources;
	size_t n_made;
	struct error error;
};

static int take(struct ordered *ordered, struct view answer)
{
	*ordered = (struct ordered){ .names = { "node-0", "node-1" } };
	ordered->recipe = (struct recipe){ .nodes = ordered->names, .n_nodes = NODES };
	ordered->recipe.plan.blocks = ordered->blocks;
	ordered->recipe.plan.n_blocks = BLOCKS;
	ordered->save =
		(struct csave){ .recipe = &ordered->recipe, .reports = ordered->reports, .nodes = ordered->nodes };
	int r = copies_take(&ordered->save, ANSWERS, answer, &ordered->sources, &ordered->n_made, &ordered->error);
	sources_fini(&ordered->sources);
	return r;
}

/* The answer of a node to which @made came from @source. */
static void encode(uint32_t made, uint32_t source, struct buf *ret)
{
	_cleanup_(list_buf_fini) struct list_buf blocks = { 0 };
	_cleanup_(list_buf_fini) struct list_buf sources = { 0 };
	const struct elem_u32 number = { .v = made };
	const struct elem_g_source sender = { .node = source, .bytes = 1, .busy_ns = 1 };

	assert_int_equal(elem_u32_append(&blocks, &number), 0);
	assert_int_equal(elem_g_source_append(&sources, &sender), 0);
	const struct msg_g_copy_reply reply = { .made = list_buf_view(&blocks), .sources = list_buf_view(&sources) };
	assert_int_equal(msg_g_copy_reply_encode(&reply, ret), 0);
}

static void assert_refused(struct view answer)
{
	struct ordered ordered;

	assert_int_equal(take(&ordered, answer), -EPROTO);
	assert_int_equal(ordered.error.code, -EPROTO);
	assert_non_null(strstr(ordered.error.text, "node-1"));
}

static void an_answer_that_cannot_be_true_fails_naming_its_node(void **state)
{
	const struct {
		uint32_t made, source;
	} wrong[] = { { BLOCKS, 0 }, { 0, NODES } };

	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		_cleanup_(buf_fini) struct buf answer = { 0 };

		encode(wrong[i].made, wrong[i].source, &answer);
		assert_refused(view_buf(&answer));
	}
}

static void an_answer_that_ends_too_early_fails_naming_its_node(void **state)
{
	_cleanup_(buf_fini) struct buf answer = { 0 };

	encode(0, 0, &answer);
	assert_refused(view_of(answer.ptr, answer.len - 1));
}

/* Who sent it slowly is judged by what is noted of it, and no copy is lost for that. */
static void copies_count_without_memory_for_who_sent_them(void **state)
{
	_cleanup_(buf_fini) struct buf answer = { 0 };
	struct ordered ordered;

	encode(2, 0, &answer);
	strike_set(STRIKE_MEMORY, 0);
	strike_arm(true);
	int r = take(&ordered, view_buf(&answer));
	strike_arm(false);
	assert_int_equal(r, 0);
	assert_int_equal(strike_seen(), 1);
	assert_int_equal(ordered.n_made, 1);
	assert_int_equal(ordered.reports[2].n_holders, 1);
	assert_int_equal(ordered.reports[2].holders[0], ANSWERS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_answer_that_cannot_be_true_fails_naming_its_node),
		cmocka_unit_test(an_answer_that_ends_too_early_fails_naming_its_node),
		cmocka_unit_test(copies_count_without_memory_for_who_sent_them),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
