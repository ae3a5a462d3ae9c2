#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "group/member.h"

#define N 6

/* Ranks 0, 1 and 2 of a node; blocks 3 and 4 of a plan. Rank 1 captures block 3; another node's rank captures block 4. */
struct node {
	struct part_block planned[N];
	struct part part;
	struct mblock blocks[N];
	struct msave save;
};

static void node_init(struct node *node)
{
	memset(node, 0, sizeof(*node));
	for (uint32_t i = 0; i < N; i++) {
		node->planned[i] =
			(struct part_block){ .rank = i / 2, .block = 3 + i % 2, .bytes = 100, .mode = CAPTURE_CHECK };
		node->blocks[i] = (struct mblock){ .sample = 70 + i % 2, .crc = i, .filled = true };
	}
	node->planned[2].mode = CAPTURE_COPY;
	node->part = (struct part){ .blocks = node->planned, .n_blocks = N };
	node->save = (struct msave){ .part = &node->part, .blocks = node->blocks, .last_rank = 2 };
	assert_int_equal(part_order(&node->part), 0);
}

static void node_fini(struct node *node)
{
	free(node->part.order);
}

struct told {
	unsigned n;
	uint64_t bytes;
	struct elem_g_filled reports[N];
};

static struct told ask(struct node *node, uint32_t first, uint32_t last)
{
	_cleanup_(buf_fini) struct buf answer = { 0 };
	struct msg_g_capture_reply reply;
	struct told told = { 0 };

	assert_int_equal(report_answer(&node->save, first, last, &answer), 0);
	assert_int_equal(msg_g_capture_reply_decode(view_buf(&answer), &reply), 0);
	assert_int_equal(reply.last_rank, 2);
	told.bytes = reply.bytes;
	while (told.n < N && elem_g_filled_next(&reply.filled, &told.reports[told.n]) == 0)
		told.n++;
	assert_int_equal(reply.filled.count, 0);
	return told;
}

static void assert_report(const struct told *told, unsigned i, uint32_t block, uint32_t rank)
{
	assert_true(i < told->n);
	assert_int_equal(told->reports[i].block, block);
	assert_int_equal(told->reports[i].rank, rank);
}

static void ranks_that_agree_are_one_report_by_the_one_that_captures(void **state)
{
	struct node node;

	node_init(&node);
	struct told told = ask(&node, 0, UINT32_MAX);
	assert_int_equal(told.n, 2);
	assert_report(&told, 0, 3, 1);
	assert_report(&told, 1, 4, 0);
	assert_int_equal(told.reports[0].crc, 2);
	assert_int_equal(told.bytes, 100);
	node_fini(&node);
}

static void each_rank_that_says_something_else_is_reported(void **state)
{
	struct node node;

	node_init(&node);
	node.blocks[4].sample++;	  /* block 3 of rank 2 */
	node.blocks[3].digest.b[31] ^= 1; /* block 4 of rank 1 */
	struct told told = ask(&node, 0, UINT32_MAX);
	assert_int_equal(told.n, 4);
	assert_report(&told, 0, 3, 1);
	assert_report(&told, 1, 3, 2);
	assert_report(&told, 2, 4, 0);
	assert_report(&told, 3, 4, 1);
	node_fini(&node);
}

static void who_captures_is_reported_even_when_others_do_as_well(void **state)
{
	struct node node;

	node_init(&node);
	node.planned[4].mode = CAPTURE_COPY;
	struct told told = ask(&node, 3, 4);
	assert_int_equal(told.n, 2);
	assert_report(&told, 0, 3, 1);
	assert_report(&told, 1, 3, 2);
	assert_int_equal(told.bytes, 200);
	node_fini(&node);
}

static void only_what_was_reported_here_and_asked_for_is_told(void **state)
{
	struct node node;

	node_init(&node);
	node.blocks[1].filled = false; /* block 4 of rank 0 */
	struct told told = ask(&node, 4, UINT32_MAX);
	assert_int_equal(told.n, 1);
	assert_report(&told, 0, 4, 1);
	assert_int_equal(told.bytes, 0);
	assert_int_equal(ask(&node, 5, UINT32_MAX).n, 0);
	assert_int_equal(ask(&node, 0, 3).n, 0);
	node_fini(&node);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ranks_that_agree_are_one_report_by_the_one_that_captures),
		cmocka_unit_test(each_rank_that_says_something_else_is_reported),
		cmocka_unit_test(who_captures_is_reported_even_when_others_do_as_well),
		cmocka_unit_test(only_what_was_reported_here_and_asked_for_is_told),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
