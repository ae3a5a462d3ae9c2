#include "base/map.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * The map is compiled in here, so that its k-th allocation can fail in this program alone: the linker then leaves the
 * library's own out.
 */
static int allocations_left = -1; /* -1: no limit */

static void *failing_calloc(size_t n, size_t size)
{
	if (!allocations_left)
		return NULL;
	allocations_left -= allocations_left > 0;
	return calloc(n, size);
}

#define calloc failing_calloc
#include "base/map.c"
#undef calloc

#define KEYS 500

/* xorshift64: a fixed seed, so that a failure repeats */
static uint64_t draw(uint64_t *x)
{
	*x ^= *x << 13, *x ^= *x >> 7, *x ^= *x << 17;
	return *x;
}

static int values[KEYS];

static struct view key_of(int i, char text[16])
{
	snprintf(text, 16, "key %d", i);
	return view_str(text);
}

static void an_empty_map_holds_nothing(void **state)
{
	struct map map;

	map_init(&map);
	assert_null(map_get(&map, view_str("a")));
	assert_null(map_remove(&map, view_str("a")));
	assert_null(map_first(&map));
	map_fini(&map);
	map_fini(&map);
	map_fini(NULL);
}

static void a_key_is_copied_and_found_again(void **state)
{
	_cleanup_(map_fini) struct map map = { 0 };
	char text[] = "ab";

	assert_int_equal(map_put(&map, view_str(text), &values[1]), 0);
	text[0] = 'x';
	assert_ptr_equal(map_get(&map, view_str("ab")), &values[1]);
	assert_null(map_get(&map, view_str("xb")));
	assert_null(map_get(&map, view_str("a")));
}

static void keys_may_be_empty_or_hold_zeros(void **state)
{
	_cleanup_(map_fini) struct map map = { 0 };

	assert_int_equal(map_put(&map, view_str(NULL), &values[0]), 0);
	assert_int_equal(map_put(&map, view_of("\0", 1), &values[1]), 0);
	assert_int_equal(map_put(&map, view_of("\0\0", 2), &values[2]), 0);
	assert_ptr_equal(map_get(&map, view_str("")), &values[0]);
	assert_ptr_equal(map_get(&map, view_of("\0", 1)), &values[1]);
	assert_ptr_equal(map_get(&map, view_of("\0\0", 2)), &values[2]);
}

static void a_second_put_is_refused_and_changes_nothing(void **state)
{
	_cleanup_(map_fini) struct map map = { 0 };

	assert_int_equal(map_put(&map, view_str("a"), &values[0]), 0);
	assert_int_equal(map_put(&map, view_str("a"), &values[1]), -EEXIST);
	assert_ptr_equal(map_get(&map, view_str("a")), &values[0]);
	assert_int_equal(map.n, 1);
}

static void entries_come_in_order_of_insertion_through_growth_and_removal(void **state)
{
	_cleanup_(map_fini) struct map map = { 0 };
	char text[16];
	int i = 1;

	for (int k = 0; k < KEYS; k++)
		assert_int_equal(map_put(&map, key_of(k, text), &values[k]), 0);
	for (int k = 0; k < KEYS; k += 3)
		assert_ptr_equal(map_remove(&map, key_of(k, text)), &values[k]);
	for (struct map_slot *s = map_first(&map); s; s = map_next(s)) {
		assert_ptr_equal(map_value(s), &values[i]);
		assert_true(view_equal(map_key(s), key_of(i, text)));
		i += i % 3 == 2 ? 2 : 1;
	}
	assert_true(i >= KEYS);
	assert_int_equal(map_put(&map, key_of(0, text), &values[0]), 0);
	assert_ptr_equal(map_value(map.last), &values[0]);
}

static void all_entries_may_leave_during_a_walk(void **state)
{
	_cleanup_(map_fini) struct map map = { 0 };
	char text[16];

	for (int k = 0; k < KEYS; k++)
		assert_int_equal(map_put(&map, key_of(k, text), &values[k]), 0);
	int n = 0;
	for (struct map_slot *s = map_first(&map), *next; s; s = next) {
		next = map_next(s);
		assert_ptr_equal(map_remove(&map, map_key(s)), &values[n++]);
	}
	assert_int_equal(map.n, 0);
	assert_null(map_first(&map));
}

static void a_map_does_what_an_array_does(void **state)
{
	_cleanup_(map_fini) struct map map = { 0 };
	bool model[KEYS] = { false };
	size_t n = 0;
	uint64_t x = 88172645463325252;

	for (int round = 0; round < 100000; round++) {
		int k = (int)(draw(&x) % KEYS);
		char text[16];
		struct view key = key_of(k, text);

		assert_ptr_equal(map_get(&map, key), model[k] ? &values[k] : NULL);
		if (x >> 63) {
			assert_int_equal(map_put(&map, key, &values[k]), model[k] ? -EEXIST : 0);
			n += !model[k];
			model[k] = true;
		} else {
			assert_ptr_equal(map_remove(&map, key), model[k] ? &values[k] : NULL);
			n -= model[k];
			model[k] = false;
		}
		assert_int_equal(map.n, n);
	}
}

static void a_failed_allocation_changes_nothing(void **state)
{
	for (int limit = 0; limit < 60; limit++) {
		_cleanup_(map_fini) struct map map = { 0 };
		char text[16];
		size_t i = 0, n = 0;
		int r = 0;

		allocations_left = limit;
		for (; !r; n += !r)
			r = map_put(&map, key_of((int)n, text), &values[n]);
		assert_int_equal(r, -ENOMEM);
		assert_int_equal(map.n, n);
		for (struct map_slot *s = map_first(&map); s; s = map_next(s))
			assert_ptr_equal(map_value(s), &values[i++]);
		assert_int_equal(i, n);
		assert_null(map_get(&map, key_of((int)n, text)));

		allocations_left = -1;
		assert_int_equal(map_put(&map, key_of((int)n, text), &values[n]), 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_empty_map_holds_nothing),
		cmocka_unit_test(a_key_is_copied_and_found_again),
		cmocka_unit_test(keys_may_be_empty_or_hold_zeros),
		cmocka_unit_test(a_second_put_is_refused_and_changes_nothing),
		cmocka_unit_test(entries_come_in_order_of_insertion_through_growth_and_removal),
		cmocka_unit_test(all_entries_may_leave_during_a_walk),
		cmocka_unit_test(a_map_does_what_an_array_does),
		cmocka_unit_test(a_failed_allocation_changes_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
