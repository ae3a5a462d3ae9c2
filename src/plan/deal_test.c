#include "plan/deal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdbool.h>

#define PIPES	10
#define CLASSES 20

static uint64_t next(uint64_t *x)
{
	*x ^= *x << 13, *x ^= *x >> 7, *x ^= *x << 17; /* xorshift64: a fixed seed, so that a failure repeats */
	return *x;
}

/* Shares full of cycles: every class on most pipes. */
static void random_shares(struct shares *shares, uint64_t *of_class, uint64_t *of_pipe, uint64_t *x)
{
	uint64_t one_in = 1 + next(x) % 4, bytes_max = next(x) % 2 ? 8 : 1000000;

	*shares =
		(struct shares){ .list = array_new(CLASSES * PIPES, sizeof(*shares->list)), .n_max = CLASSES * PIPES };
	assert_non_null(shares->list);
	for (uint32_t c = 0; c < CLASSES; c++) {
		of_class[c] = 0;
		for (uint32_t p = 0; p < PIPES; p++) {
			uint64_t bytes = 1 + next(x) % bytes_max;

			if (next(x) % one_in)
				continue;
			shares->list[shares->n++] = (struct share){ c, p, bytes };
			of_class[c] += bytes;
			of_pipe[p] += bytes;
		}
	}
}

static void no_pipe_gets_a_block_more_than_its_shares(void **state)
{
	uint64_t x = 88172645463325252;

	for (int round = 0; round < 5000; round++) {
		uint64_t of_class[CLASSES], of_pipe[PIPES] = { 0 }, dealt[PIPES] = { 0 }, largest = 0;
		uint64_t block_max = 1 + next(&x) % 100000;
		struct shares shares;
		struct deal deal;

		random_shares(&shares, of_class, of_pipe, &x);
		assert_int_equal(deal_init(&deal, &shares, CLASSES, PIPES), 0);
		for (uint32_t c = 0; c < CLASSES; c++) {
			for (uint64_t left = of_class[c], bytes; left; left -= bytes) {
				bytes = 1 + next(&x) % block_max;
				bytes = bytes < left ? bytes : left;
				largest = bytes > largest ? bytes : largest;
				dealt[deal_next(&deal, c, bytes)] += bytes;
			}
		}
		for (uint32_t p = 0; p < PIPES; p++)
			assert_true(dealt[p] < of_pipe[p] + (largest ? largest : 1));
		deal_fini(&deal);
		shares_fini(&shares);
	}
}

static void what_is_left_of_the_shares_is_a_forest(void **state)
{
	uint64_t x = 7;

	for (int round = 0; round < 2000; round++) {
		uint64_t of_class[CLASSES], of_pipe[PIPES] = { 0 }, sum = 0, after = 0;
		uint32_t tree[CLASSES + PIPES];
		struct shares shares;
		struct deal deal;

		random_shares(&shares, of_class, of_pipe, &x);
		assert_int_equal(deal_init(&deal, &shares, CLASSES, PIPES), 0);
		for (uint32_t v = 0; v < CLASSES + PIPES; v++)
			tree[v] = v;
		for (size_t i = 0; i < deal.n_shares; i++) {
			uint32_t a = tree[deal.shares[i].class], b = tree[CLASSES + deal.shares[i].pipe];

			assert_true(a != b);
			for (uint32_t v = 0; v < CLASSES + PIPES; v++)
				tree[v] = tree[v] == a ? b : tree[v];
			after += deal.shares[i].bytes;
		}
		for (uint32_t p = 0; p < PIPES; p++)
			sum += of_pipe[p];
		assert_int_equal(after, sum);
		deal_fini(&deal);
		shares_fini(&shares);
	}
}

static void blocks_of_one_class_are_dealt_in_order(void **state)
{
	struct share list[] = { { 0, 2, 100 }, { 0, 0, 50 }, { 0, 1, 50 } };
	struct shares shares = { list, 3, 3 };
	bool left[3] = { false };
	struct deal deal;
	uint32_t last = 3;

	assert_int_equal(deal_init(&deal, &shares, 1, 3), 0);
	for (int i = 0; i < 20; i++) {
		uint32_t pipe = deal_next(&deal, 0, 10);

		if (last != 3 && pipe != last)
			left[last] = true;
		assert_false(left[pipe]); /* it does not come back */
		last = pipe;
	}
	deal_fini(&deal);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_pipe_gets_a_block_more_than_its_shares),
		cmocka_unit_test(what_is_left_of_the_shares_is_a_forest),
		cmocka_unit_test(blocks_of_one_class_are_dealt_in_order),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
