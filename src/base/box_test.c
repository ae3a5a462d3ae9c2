#include "base/box.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <string.h>

#define ELEMENTS_MAX 4096 /* of the boxes drawn here */

/* xorshift64: a fixed seed, so that a failure repeats */
static uint64_t draw(uint64_t *x)
{
	*x ^= *x << 13, *x ^= *x >> 7, *x ^= *x << 17;
	return *x;
}

static uint64_t below(uint64_t *x, uint64_t n)
{
	return (draw(x) >> 16) % n;
}

static struct box draw_box(uint64_t *x, uint32_t ndim, uint64_t side)
{
	struct box box = { .ndim = ndim };

	for (uint32_t d = 0; d < ndim; d++) {
		box.start[d] = below(x, side);
		box.count[d] = below(x, side + 1);
	}
	return box;
}

/* A part of @box; whole dimensions are likely, so that runs span several. */
static struct box draw_part(uint64_t *x, const struct box *box)
{
	struct box part = *box;

	for (uint32_t d = 0; d < box->ndim; d++) {
		if (below(x, 3) == 0)
			continue;
		uint64_t skip = below(x, box->count[d] + 1);
		part.start[d] += skip;
		part.count[d] = below(x, box->count[d] - skip + 1);
	}
	return part;
}

/* Counts @at up through @box in row-major order; false after the last element. */
static bool step(const struct box *box, uint64_t *at)
{
	for (uint32_t d = box->ndim; d-- > 0;) {
		if (++at[d] < box->start[d] + box->count[d])
			return true;
		at[d] = box->start[d];
	}
	return false;
}

static bool holds(const struct box *box, const uint64_t *at)
{
	for (uint32_t d = 0; d < box->ndim; d++)
		if (at[d] < box->start[d] || at[d] >= box->start[d] + box->count[d])
			return false;
	return true;
}

static void boxes_are_equal_in_every_dimension_they_have(void **state)
{
	struct box a = { .ndim = 2, .start = { 1, 2, 99 }, .count = { 3, 4 } };
	struct box b = { .ndim = 2, .start = { 1, 2 }, .count = { 3, 4 } };

	assert_true(box_equal(&a, &b));
	b.count[1] = 5;
	assert_false(box_equal(&a, &b));
	b.count[1] = 4;
	b.ndim = 1;
	assert_false(box_equal(&a, &b));
	assert_true(box_equal(&(struct box){ 0 }, &(struct box){ 0 }));
}

static void an_intersection_holds_just_the_common_elements(void **state)
{
	uint64_t x = 88172645463325252;

	for (int round = 0; round < 20000; round++) {
		uint32_t ndim = (uint32_t)below(&x, 4);
		struct box a = draw_box(&x, ndim, 6), b = draw_box(&x, ndim, 6), common;
		struct box all = { .ndim = ndim, .count = { 12, 12, 12 } };
		uint64_t at[BOX_DIMS_MAX] = { 0 }, expected = 0, n = 0;

		do
			expected += holds(&a, at) && holds(&b, at);
		while (ndim && step(&all, at));

		bool met = box_intersect(&a, &b, &common);
		assert_int_equal(met, expected > 0);
		if (!met)
			continue;
		assert_int_equal(box_elements(&common, &n), 0);
		assert_int_equal(n, expected);
		for (uint32_t d = 0; d < ndim; d++) {
			assert_true(common.start[d] >= a.start[d] && common.start[d] >= b.start[d]);
			assert_true(common.start[d] + common.count[d] <= a.start[d] + a.count[d]);
		}
	}
}

static void an_empty_intersection_leaves_the_result_alone(void **state)
{
	struct box a = { .ndim = 1, .start = { 0 }, .count = { 4 } }, b = { .ndim = 1, .start = { 4 }, .count = { 4 } };
	struct box ret, before;

	memset(&ret, 7, sizeof(ret));
	before = ret;
	assert_false(box_intersect(&a, &b, &ret));
	b.ndim = 0;
	assert_false(box_intersect(&a, &b, &ret));
	assert_memory_equal(&ret, &before, sizeof(ret));
}

static void an_intersection_may_replace_its_operand(void **state)
{
	struct box a = { .ndim = 1, .start = { 2 }, .count = { 6 } }, b = { .ndim = 1, .start = { 4 }, .count = { 9 } };

	assert_true(box_intersect(&a, &b, &a));
	assert_int_equal(a.start[0], 4);
	assert_int_equal(a.count[0], 4);
}

static void ends_past_the_last_number_do_not_wrap(void **state)
{
	struct box far = { .ndim = 1, .start = { UINT64_MAX - 1 }, .count = { UINT64_MAX } };
	struct box near = { .ndim = 1, .start = { 0 }, .count = { 10 } }, common;
	uint64_t shape[] = { UINT64_MAX };

	assert_false(box_inside(&far, shape));
	assert_false(box_intersect(&far, &near, &common));
	assert_true(box_intersect(&far, &far, &common));
	assert_true(box_equal(&far, &common));
}

static void a_box_is_inside_up_to_the_last_element(void **state)
{
	struct box box = { .ndim = 2, .start = { 1, 2 }, .count = { 3, 4 } };

	assert_true(box_inside(&box, (uint64_t[]){ 4, 6 }));
	assert_false(box_inside(&box, (uint64_t[]){ 3, 6 }));
	assert_false(box_inside(&box, (uint64_t[]){ 4, 5 }));
	box.count[0] = 0;
	box.start[0] = 4;
	assert_true(box_inside(&box, (uint64_t[]){ 4, 6 }));
	box.start[0] = 5;
	assert_false(box_inside(&box, (uint64_t[]){ 4, 6 }));
	assert_true(box_inside(&(struct box){ 0 }, NULL));
}

static void sizes_are_exact_up_to_their_limit(void **state)
{
	struct box scalar = { 0 }, box = { .ndim = 3, .count = { UINT64_C(1) << 31, UINT64_C(1) << 31, 2 } };
	uint64_t n = 9;

	assert_int_equal(box_elements(&scalar, &n), 0);
	assert_int_equal(n, 1);
	assert_int_equal(box_bytes(&scalar, 32, &n), 0);
	assert_int_equal(n, 4);
	assert_int_equal(box_elements(&box, &n), 0);
	assert_true(n == UINT64_C(1) << 63);
	assert_int_equal(box_bytes(&box, 4, &n), 0);
	assert_true(n == UINT64_C(1) << 62);

	n = 9;
	assert_int_equal(box_bytes(&box, 16, &n), -EOVERFLOW);
	box.count[2] = 3;
	assert_int_equal(box_elements(&box, &n), -EOVERFLOW);
	assert_int_equal(n, 9);
	box.count[0] = UINT64_MAX;
	box.count[1] = UINT64_MAX;
	assert_int_equal(box_elements(&box, &n), -EOVERFLOW);
	box.count[2] = 0;
	assert_int_equal(box_elements(&box, &n), 0);
	assert_int_equal(n, 0);
}

static void bits_that_fill_no_whole_bytes_are_refused(void **state)
{
	struct box box = { .ndim = 1, .count = { 3 } };
	uint64_t n = 9;

	assert_int_equal(box_bytes(&box, 4, &n), -EINVAL);
	assert_int_equal(box_bytes(&box, 0, &n), -EINVAL);
	assert_int_equal(box_bytes(&box, 4097, &n), -EINVAL);
	assert_int_equal(n, 9);
	assert_int_equal(box_bytes(&box, 4096, &n), 0);
	assert_int_equal(n, 3 * 512);
	box.count[0] = 4;
	assert_int_equal(box_bytes(&box, 4, &n), 0);
	assert_int_equal(n, 2);
}

static void too_many_dimensions_are_refused(void **state)
{
	struct box box = { .ndim = BOX_DIMS_MAX + 1 }, ret;
	struct box_walk walk;
	uint64_t n;

	assert_false(box_equal(&box, &box));
	assert_false(box_intersect(&box, &box, &ret));
	assert_false(box_inside(&box, (uint64_t[BOX_DIMS_MAX + 1]){ 0 }));
	assert_int_equal(box_elements(&box, &n), -EINVAL);
	assert_int_equal(box_walk_init(&walk, &box, &box, 8), -EINVAL);
}

/* For each bit of @box, which bit of @part it is, or -1: by looking at every element. */
static void map_bits(const struct box *box, const struct box *part, uint32_t bits, int32_t *ret)
{
	uint64_t at[BOX_DIMS_MAX], n = 0, n_part = 0;

	memcpy(at, box->start, sizeof(at));
	if (box_elements(box, &n) || !n)
		return;
	do {
		bool in = holds(part, at);

		for (uint32_t b = 0; b < bits; b++)
			*ret++ = in ? (int32_t)n_part++ : -1;
	} while (box->ndim && step(box, at));
}

/* True if the part's bits lie in whole bytes: each byte of the box is part or is not, and so is each of the part. */
static bool is_bytes(const int32_t *map, uint64_t box_bytes)
{
	for (uint64_t i = 0; i < box_bytes; i++, map += 8)
		for (int b = 0; b < 8; b++)
			if ((map[0] < 0 || map[0] % 8) ? map[b] >= 0 : map[b] != map[0] + b)
				return false;
	return true;
}

static void follow(struct box_walk *walk, const int32_t *map, uint64_t part_bytes)
{
	uint64_t box_offset, part_offset, bytes, done = 0, end = UINT64_MAX;

	while (box_walk_next(walk, &box_offset, &part_offset, &bytes)) {
		assert_true(bytes > 0);
		assert_int_equal(part_offset, done);
		assert_true(end == UINT64_MAX || box_offset > end); /* touching runs would have been one */
		for (uint64_t i = 0; i < bytes; i++)
			assert_true(map[8 * (box_offset + i)] == (int32_t)(8 * (part_offset + i)));
		done += bytes;
		end = box_offset + bytes;
	}
	assert_int_equal(done, part_bytes);
	assert_false(box_walk_next(walk, &box_offset, &part_offset, &bytes));
}

static void a_walk_visits_each_byte_of_the_part_once_in_the_longest_runs(void **state)
{
	static const uint32_t widths[] = { 1, 2, 4, 8, 16, 24 };
	static int32_t map[ELEMENTS_MAX * 24];
	uint64_t x = 88172645463325252;
	int walked = 0, refused = 0;

	for (int round = 0; round < 20000; round++) {
		struct box box = draw_box(&x, (uint32_t)below(&x, 5), 4), part = draw_part(&x, &box);
		uint32_t bits = widths[below(&x, 6)];
		uint64_t bytes, n;
		struct box_walk walk;
		int r = box_walk_init(&walk, &box, &part, bits);

		if (box_bytes(&box, bits, &bytes)) {
			assert_int_equal(r, -EINVAL);
			continue;
		}
		map_bits(&box, &part, bits, map);
		bool fits = is_bytes(map, bytes);
		assert_int_equal(r, fits ? 0 : -EINVAL);
		refused += !fits;
		if (!fits)
			continue;
		assert_int_equal(box_elements(&part, &n), 0);
		follow(&walk, map, n * bits / 8);
		walked++;
	}
	assert_true(walked > 10000 && refused > 200);
}

static void a_part_that_sticks_out_is_refused_and_the_walk_untouched(void **state)
{
	struct box box = { .ndim = 1, .start = { 4 }, .count = { 4 } };
	struct box_walk walk, before;

	memset(&walk, 7, sizeof(walk));
	before = walk;
	for (uint64_t start = 0; start < 10; start++) {
		struct box part = { .ndim = 1, .start = { start }, .count = { 3 } };

		if (start < 4 || start > 5)
			assert_int_equal(box_walk_init(&walk, &box, &part, 8), -EINVAL);
	}
	assert_int_equal(box_walk_init(&walk, &box, &(struct box){ 0 }, 8), -EINVAL);
	assert_memory_equal(&walk, &before, sizeof(walk));
}

static void a_walk_through_a_huge_box_computes_its_offsets_exactly(void **state)
{
	struct box box = { .ndim = 2, .count = { UINT64_C(1) << 40, UINT64_C(1) << 20 } };
	struct box part = { .ndim = 2, .start = { (UINT64_C(1) << 40) - 1, 5 }, .count = { 1, 7 } };
	uint64_t box_offset, part_offset, bytes;
	struct box_walk walk;

	assert_int_equal(box_walk_init(&walk, &box, &part, 64), 0);
	assert_true(box_walk_next(&walk, &box_offset, &part_offset, &bytes));
	assert_true(box_offset == (UINT64_C(1) << 63) - (UINT64_C(1) << 23) + 40);
	assert_int_equal(part_offset, 0);
	assert_int_equal(bytes, 56);
	assert_false(box_walk_next(&walk, &box_offset, &part_offset, &bytes));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(boxes_are_equal_in_every_dimension_they_have),
		cmocka_unit_test(an_intersection_holds_just_the_common_elements),
		cmocka_unit_test(an_empty_intersection_leaves_the_result_alone),
		cmocka_unit_test(an_intersection_may_replace_its_operand),
		cmocka_unit_test(ends_past_the_last_number_do_not_wrap),
		cmocka_unit_test(a_box_is_inside_up_to_the_last_element),
		cmocka_unit_test(sizes_are_exact_up_to_their_limit),
		cmocka_unit_test(bits_that_fill_no_whole_bytes_are_refused),
		cmocka_unit_test(too_many_dimensions_are_refused),
		cmocka_unit_test(a_walk_visits_each_byte_of_the_part_once_in_the_longest_runs),
		cmocka_unit_test(a_part_that_sticks_out_is_refused_and_the_walk_untouched),
		cmocka_unit_test(a_walk_through_a_huge_box_computes_its_offsets_exactly),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
