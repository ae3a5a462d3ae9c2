#include "plan/tally.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "plan/order.h"
#include "plan/sets.h"

#define PLACES 23

static uint64_t next(uint64_t *x)
{
	*x ^= *x << 13, *x ^= *x >> 7, *x ^= *x << 17; /* xorshift64: a fixed seed, so that a failure repeats */
	return *x;
}

static uint32_t slowly(const struct tally *tally, const struct range *excluded, size_t n)
{
	uint32_t best = TALLY_NONE;

	for (uint32_t i = 0; i < tally->n; i++) {
		int out = 0;

		for (size_t k = 0; k < n; k++)
			out |= excluded[k].from <= i && i < excluded[k].to;
		if (!out && (best == TALLY_NONE || tally->load[i] < tally->load[best]))
			best = i;
	}
	return best;
}

static void the_least_loaded_place_is_found_and_ties_fall_to_the_lowest(void **state)
{
	uint64_t x = 88172645463325252;
	struct tally tally;

	assert_int_equal(tally_init(&tally, PLACES), 0);
	for (int round = 0; round < 500; round++) {
		for (int i = 0; i < PLACES; i++)
			tally.load[i] = next(&x) % 4;
		tally_start(&tally, next(&x) % (PLACES + 1));
		for (int step = 0; step < 50 && tally.n; step++) {
			uint32_t cut[4];
			struct range excluded[2];

			tally_add(&tally, next(&x) % tally.n, next(&x) % 3);
			for (int i = 0; i < 4; i++)
				cut[i] = (i ? cut[i - 1] : 0) + next(&x) % (tally.n / 4 + 1);
			excluded[0] = (struct range){ cut[0], cut[1] };
			excluded[1] = (struct range){ cut[2], cut[3] };
			for (size_t n = 0; n < 3; n++)
				assert_int_equal(tally_least_outside(&tally, excluded, n), slowly(&tally, excluded, n));
		}
	}
	tally_fini(&tally);
}

static void nobody_is_the_least_of_none(void **state)
{
	struct tally tally;

	assert_int_equal(tally_init(&tally, 4), 0);
	tally_start(&tally, 4);
	assert_int_equal(tally_least(&tally, (struct range){ 2, 2 }), TALLY_NONE);
	assert_int_equal(tally_least_outside(&tally, &(struct range){ 0, 4 }, 1), TALLY_NONE);
	tally_fini(&tally);
}

static void equal_lists_get_the_same_id_in_order_of_appearance(void **state)
{
	static const uint32_t lists[] = { 1, 2, 3, 1, 2, 3, 1, 2 };
	struct sets sets;

	assert_int_equal(sets_init(&sets, 4), 0);
	assert_int_equal(sets_id(&sets, lists, 3), 0);
	assert_int_equal(sets_id(&sets, lists, 2), 1);
	assert_int_equal(sets_id(&sets, lists + 3, 3), 0);
	assert_int_equal(sets_id(&sets, lists, 0), 2);
	assert_int_equal(sets_id(&sets, lists + 6, 2), 1);
	assert_int_equal(sets_id(&sets, lists + 1, 2), 3);
	assert_int_equal(sets.n, 4);
	sets_fini(&sets);
}

static void numbers_are_sorted_by_key_and_keep_their_order_within_one(void **state)
{
	static const uint32_t keys[] = { 2, 0, 5, 2, 1, 0 };
	uint32_t order[5] = { 0 };
	static const uint32_t expected[5] = { 1, 5, 4, 0, 3 };

	assert_int_equal(order_by(keys, 6, 3, order), 0); /* 5 is no key: it stays out */
	assert_memory_equal(order, expected, sizeof(expected));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_least_loaded_place_is_found_and_ties_fall_to_the_lowest),
		cmocka_unit_test(nobody_is_the_least_of_none),
		cmocka_unit_test(equal_lists_get_the_same_id_in_order_of_appearance),
		cmocka_unit_test(numbers_are_sorted_by_key_and_keep_their_order_within_one),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
