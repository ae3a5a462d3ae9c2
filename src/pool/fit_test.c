#include "pool/fit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <string.h>

/* Compiled in, so that its allocations can fail in this program alone. */
static int allocations_left = -1; /* -1: no limit */
#include <stdlib.h>
static void *failing_realloc(void *p, size_t size)
{
	if (!allocations_left)
		return NULL;
	allocations_left -= allocations_left > 0;
	return realloc(p, size);
}
#define realloc failing_realloc
#include "pool/fit.c"
#undef realloc

#define UNITS 5000
#define RUNS  400

/* xorshift64: a fixed seed, so that a failure repeats */
static uint64_t draw(uint64_t *x)
{
	*x ^= *x << 13, *x ^= *x >> 7, *x ^= *x << 17;
	return *x;
}

static void a_whole_range_is_taken_and_then_full(void **state)
{
	const uint64_t sizes[] = {
		1, 2, 31, 32, 33, 63, 64, 65, 1000, 4096, 4097, UINT64_C(1) << 35, FIT_UNITS_MAX - 1
	};

	for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
		struct fit fit;
		uint32_t node, none;

		fit_init(&fit);
		assert_int_equal(fit_add(&fit, 77, sizes[i], 5), 0);
		assert_int_equal(fit_take(&fit, sizes[i] + 1, &node), FIT_FULL);
		assert_int_equal(fit_take(&fit, sizes[i], &node), 0);
		assert_int_equal(fit_start(&fit, node), 77);
		assert_int_equal(fit_tag(&fit, node), 5);
		assert_int_equal(fit.free_units, 0);
		assert_int_equal(fit_take(&fit, 1, &none), FIT_FULL);
		assert_true(fit_is_whole(&fit, fit_give(&fit, node)));
		fit_fini(&fit);
	}
}

static void ranges_of_no_unit_or_too_many_are_refused(void **state)
{
	struct fit fit;

	fit_init(&fit);
	assert_int_equal(fit_add(&fit, 0, 0, 0), -EINVAL);
	assert_int_equal(fit_add(&fit, 0, FIT_UNITS_MAX, 0), -EINVAL);
	fit_fini(&fit);
}

static void ranges_never_join_though_they_touch(void **state)
{
	struct fit fit;
	uint32_t a, b, c;

	fit_init(&fit);
	assert_int_equal(fit_add(&fit, 0, 64, 1), 0);
	assert_int_equal(fit_add(&fit, 64, 64, 2), 0);
	assert_int_equal(fit_take(&fit, 65, &c), FIT_FULL);
	assert_int_equal(fit_take(&fit, 64, &a), 0);
	assert_int_equal(fit_take(&fit, 64, &b), 0);
	assert_int_not_equal(fit_tag(&fit, a), fit_tag(&fit, b));

	uint32_t node = fit_give(&fit, a);
	assert_true(fit_is_whole(&fit, node));
	fit_remove(&fit, node);
	assert_int_equal(fit.free_units, 0);
	fit_give(&fit, b);
	assert_int_equal(fit.free_units, 64);
	fit_fini(&fit);
}

static void without_memory_nothing_changes(void **state)
{
	struct fit fit;
	uint32_t node;

	fit_init(&fit);
	allocations_left = 0;
	assert_int_equal(fit_add(&fit, 0, 1000, 0), -ENOMEM);
	allocations_left = 1;
	assert_int_equal(fit_add(&fit, 0, 1000, 0), 0);
	for (int i = 1; i < FIT_NODES_STEP; i++)
		assert_int_equal(fit_take(&fit, 1, &node), 0);
	assert_int_equal(fit_take(&fit, 1, &node), -ENOMEM);
	assert_int_equal(fit.free_units, 1000 - (FIT_NODES_STEP - 1));
	allocations_left = -1;
	assert_int_equal(fit_take(&fit, 1, &node), 0);
	fit_fini(&fit);
}

/* Against a map of single units: runs never overlap, and an answer of "full" is true within a class's width (1/32). */
static void random_histories_keep_runs_apart_and_lose_nothing(void **state)
{
	static bool taken[UNITS];
	uint64_t x = 88172645463325252;
	struct run {
		uint32_t node;
		uint64_t units;
	} runs[RUNS];
	size_t n = 0;
	struct fit fit;

	fit_init(&fit);
	memset(taken, 0, sizeof(taken));
	assert_int_equal(fit_add(&fit, 0, UNITS, 0), 0);
	for (int round = 0; round < 60000; round++) {
		if (n < RUNS && draw(&x) % 100 < 55) {
			uint64_t units = 1 + draw(&x) % (1u << draw(&x) % 9);
			int r = fit_take(&fit, units, &runs[n].node);

			if (r == FIT_FULL) {
				uint64_t longest = 0, length = 0;
				for (size_t i = 0; i < UNITS; i++) {
					length = taken[i] ? 0 : length + 1;
					longest = length > longest ? length : longest;
				}
				assert_true(longest < units + units / 32 + 1);
				continue;
			}
			assert_int_equal(r, 0);
			runs[n].units = units;
			uint64_t start = fit_start(&fit, runs[n].node);
			for (uint64_t i = start; i < start + units; i++) {
				assert_true(i < UNITS && !taken[i]);
				taken[i] = true;
			}
			n++;
		} else if (n) {
			size_t k = draw(&x) % n;
			uint64_t start = fit_start(&fit, runs[k].node);

			memset(taken + start, 0, runs[k].units);
			fit_give(&fit, runs[k].node);
			runs[k] = runs[--n];
		}
		uint64_t used = 0;
		for (size_t k = 0; k < n; k++)
			used += runs[k].units;
		assert_int_equal(fit.free_units, UNITS - used);
	}
	while (n > 1)
		fit_give(&fit, runs[--n].node);
	assert_true(n == 1 && fit_is_whole(&fit, fit_give(&fit, runs[0].node)));
	fit_fini(&fit);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_whole_range_is_taken_and_then_full),
		cmocka_unit_test(ranges_of_no_unit_or_too_many_are_refused),
		cmocka_unit_test(ranges_never_join_though_they_touch),
		cmocka_unit_test(without_memory_nothing_changes),
		cmocka_unit_test(random_histories_keep_runs_apart_and_lose_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
