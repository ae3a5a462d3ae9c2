#include "plan/meet.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#define BOXES  60
#define MANY   100000
#define PLENTY UINT64_MAX
#define A_BOX  300 /* steps that a box may take where none meet; with each it would be as many as there are boxes */

static uint64_t next(uint64_t *x)
{
	*x ^= *x << 13, *x ^= *x >> 7, *x ^= *x << 17; /* xorshift64: a fixed seed, so that a failure repeats */
	return *x;
}

struct found {
	unsigned times[BOXES][BOXES];
};

static int note(void *arg, uint32_t a, uint32_t b)
{
	struct found *found = arg;

	found->times[a][b]++;
	return 0;
}

static int count(void *arg, uint32_t a, uint32_t b)
{
	++*(uint64_t *)arg;
	return 0;
}

static int stop_at_another(void *arg, uint32_t a, uint32_t b)
{
	return a == b ? 0 : -EEXIST;
}

static struct meet_boxes list(const struct box *boxes, size_t n)
{
	return (struct meet_boxes){ .first = boxes, .stride_bytes = sizeof(*boxes), .n = n };
}

static void random_boxes(struct box *boxes, size_t n, uint32_t ndim, uint64_t *x)
{
	for (size_t i = 0; i < n; i++) {
		boxes[i].ndim = ndim;
		for (uint32_t d = 0; d < ndim; d++) {
			boxes[i].start[d] = next(x) % 12;
			boxes[i].count[d] = next(x) % 7; /* 0: no element */
		}
	}
}

static void every_pair_that_meets_is_found_once_and_no_other(void **state)
{
	static struct box a[BOXES], b[BOXES];
	uint64_t x = 88172645463325252;
	struct box common;

	for (int round = 0; round < 400; round++) {
		size_t n_a = next(&x) % (BOXES + 1), n_b = next(&x) % (BOXES + 1);
		uint32_t ndim = (uint32_t)(next(&x) % 5);
		struct found found = { 0 };
		uint64_t steps = PLENTY;

		random_boxes(a, n_a, ndim, &x);
		random_boxes(b, n_b, ndim, &x);
		struct meet_boxes as = list(a, n_a), bs = list(b, n_b);
		assert_int_equal(meet(&as, &bs, &steps, note, &found), 0);
		for (size_t i = 0; i < n_a; i++)
			for (size_t k = 0; k < n_b; k++)
				assert_int_equal(found.times[i][k], box_intersect(&a[i], &b[k], &common));
	}
}

/* Each reaches from its own place to the end in all dimensions but the last, in which it has a row for itself. */
static void stairs(struct box *boxes, size_t n, uint32_t ndim, uint32_t apart)
{
	for (size_t i = 0; i < n; i++) {
		boxes[i].ndim = ndim;
		for (uint32_t d = 0; d < ndim; d++) {
			boxes[i].start[d] = i;
			boxes[i].count[d] = d == apart ? 1 : n - i;
		}
	}
}

static uint64_t steps_of(const struct box *boxes, size_t n)
{
	struct meet_boxes all = list(boxes, n);
	uint64_t steps = PLENTY, found = 0;

	assert_int_equal(meet(&all, &all, &steps, count, &found), 0);
	assert_int_equal(found, n); /* each itself */
	return PLENTY - steps;
}

static void boxes_that_are_apart_in_one_dimension_alone_take_steps_by_their_number(void **state)
{
	struct box *boxes = calloc(MANY, sizeof(*boxes));

	assert_non_null(boxes);
	for (uint32_t apart = 0; apart < 3; apart++) {
		stairs(boxes, MANY, 3, apart);
		uint64_t steps = steps_of(boxes, MANY);
		print_message("%d boxes apart in dimension %u: %llu steps\n", MANY, apart, (unsigned long long)steps);
		assert_in_range(steps, MANY, (uint64_t)MANY * A_BOX);
	}
	free(boxes);
}

static void a_grid_takes_steps_by_the_number_of_its_boxes(void **state)
{
	const size_t edge = 40, n = edge * edge * edge;
	struct box *boxes = calloc(n, sizeof(*boxes));

	assert_non_null(boxes);
	for (size_t i = 0; i < n; i++)
		boxes[i] = (struct box){ .ndim = 3,
					 .start = { i % edge * 8, i / edge % edge * 8, i / edge / edge * 8 },
					 .count = { 8, 8, 8 } };
	uint64_t steps = steps_of(boxes, n);
	print_message("a grid of %zu boxes: %llu steps\n", n, (unsigned long long)steps);
	assert_in_range(steps, n, n * A_BOX);
	free(boxes);
}

static void who_has_seen_enough_ends_it(void **state)
{
	struct box boxes[] = { { 1, { 0 }, { 4 } }, { 1, { 4 }, { 4 } }, { 1, { 7 }, { 4 } } };
	struct meet_boxes two = list(boxes, 2), three = list(boxes, 3);
	uint64_t steps = PLENTY;

	assert_int_equal(meet(&two, &two, &steps, stop_at_another, NULL), 0);
	assert_int_equal(meet(&three, &three, &steps, stop_at_another, NULL), -EEXIST);
}

static void it_takes_no_more_steps_than_it_may(void **state)
{
	static struct box boxes[BOXES];
	struct meet_boxes all = list(boxes, BOXES);
	uint64_t steps = 1000, found = 0;

	stairs(boxes, BOXES, 1, 1); /* each meets each */
	assert_int_equal(meet(&all, &all, &steps, count, &found), MEET_TOO_LONG);
	assert_in_range(found, 0, 1000);
	steps = 100000;
	assert_int_equal(meet(&all, &all, &steps, count, &found), 0);
}

static void places_at_the_end_of_the_numbers_are_places(void **state)
{
	struct box boxes[] = { { 1, { UINT64_MAX - 1 }, { 1 } }, { 1, { 0 }, { UINT64_MAX } }, { 1, { 5 }, { 0 } } };
	struct meet_boxes all = list(boxes, 3);
	uint64_t steps = PLENTY, found = 0;

	assert_int_equal(meet(&all, &all, &steps, count, &found), 0);
	assert_int_equal(found, 4);
}

#define TEST(name) cmocka_unit_test(name)

int main(void)
{
	static const struct CMUnitTest tests[] = {
		TEST(every_pair_that_meets_is_found_once_and_no_other),
		TEST(boxes_that_are_apart_in_one_dimension_alone_take_steps_by_their_number),
		TEST(a_grid_takes_steps_by_the_number_of_its_boxes),
		TEST(who_has_seen_enough_ends_it),
		TEST(it_takes_no_more_steps_than_it_may),
		TEST(places_at_the_end_of_the_numbers_are_places),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
