#include "client/layout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static uint64_t dice = 88172645463325252; /* xorshift64: a fixed seed, so that a failure repeats */

static uint64_t roll(uint64_t below)
{
	dice ^= dice << 13, dice ^= dice >> 7, dice ^= dice << 17;
	return dice % below;
}

static void contiguous_strides_are_one_run(void **state)
{
	const struct box box = { .ndim = 3, .count = { 4, 5, 6 } };
	const int64_t strides[] = { 120, 24, 4 };
	struct layout layout;

	assert_int_equal(layout_init(&layout, &box, 32, strides, NULL), 0);
	assert_int_equal(layout.n, 0);
	assert_int_equal(layout.run_bytes, 480);
}

static void strides_of_single_elements_do_not_matter(void **state)
{
	const struct box box = { .ndim = 3, .count = { 1, 5, 1 } };
	const int64_t strides[] = { -7, 8, 12345 };
	struct layout layout;

	assert_int_equal(layout_init(&layout, &box, 64, strides, NULL), 0);
	assert_true(layout_is_contiguous(&layout));
}

static void rows_at_a_distance_are_runs(void **state)
{
	const struct box box = { .ndim = 3, .count = { 4, 5, 6 } };
	const int64_t strides[] = { 5 * 48, 48, 4 }; /* every second row of a wider array */
	struct layout layout;

	assert_int_equal(layout_init(&layout, &box, 32, strides, NULL), 0);
	assert_int_equal(layout.n, 1); /* the two outer dimensions follow each other */
	assert_int_equal(layout.count[0], 20);
	assert_int_equal(layout.run_bytes, 24);
}

static void elements_under_a_byte_have_no_strides(void **state)
{
	const struct box box = { .ndim = 1, .count = { 4 } };
	const struct box odd = { .ndim = 1, .count = { 3 } };
	const int64_t strides[] = { 1 };
	struct layout layout;
	struct error e;

	assert_int_equal(layout_init(&layout, &box, 4, strides, &e), -EINVAL);
	assert_int_equal(layout_init(&layout, &odd, 4, NULL, &e), -EINVAL);
	assert_int_equal(layout_init(&layout, &box, 4, NULL, &e), 0);
	assert_int_equal(layout.bytes, 2);
}

/* A transposed, reversed array: element (i, j) lies at base + 4 * (j * rows + i), with i counted backwards. */
static void negative_strides_gather_and_scatter(void **state)
{
	enum { ROWS = 7, COLUMNS = 5 };
	const struct box box = { .ndim = 2, .count = { ROWS, COLUMNS } };
	const int64_t strides[] = { -4, 4 * ROWS };
	uint32_t memory[ROWS * COLUMNS], back[ROWS * COLUMNS] = { 0 }, out[ROWS * COLUMNS];
	struct layout layout;

	for (uint32_t i = 0; i < ROWS * COLUMNS; i++)
		memory[i] = i;
	assert_int_equal(layout_init(&layout, &box, 32, strides, NULL), 0);
	for (size_t cut = 0; cut <= sizeof(out); cut++) {
		layout_gather(&layout, memory + ROWS - 1, 0, out, cut);
		layout_gather(&layout, memory + ROWS - 1, cut, (uint8_t *)out + cut, sizeof(out) - cut);
		for (uint32_t i = 0; i < ROWS; i++)
			for (uint32_t j = 0; j < COLUMNS; j++)
				assert_int_equal(out[i * COLUMNS + j], j * ROWS + (ROWS - 1 - i));
		layout_scatter(&layout, back + ROWS - 1, 0, out, cut);
		layout_scatter(&layout, back + ROWS - 1, cut, (uint8_t *)out + cut, sizeof(out) - cut);
		assert_memory_equal(memory, back, sizeof(memory));
	}
}

#define SIDE 6

static void random_box(struct box *box, uint32_t ndim)
{
	box->ndim = ndim;
	for (uint32_t d = 0; d < ndim; d++) {
		box->start[d] = roll(SIDE);
		box->count[d] = 1 + roll(SIDE - box->start[d]);
	}
}

/* The number of an element in the whole array, SIDE in every dimension: the value that it has in these tests. */
static uint16_t value_of(const struct box *box, uint64_t element)
{
	uint64_t n = 0, scale = 1;

	for (uint32_t d = box->ndim; d-- > 0;) {
		n += scale * (box->start[d] + element % box->count[d]);
		element /= box->count[d];
		scale *= SIDE;
	}
	return (uint16_t)n;
}

/* Strides of a random order of dimensions, in places twice as wide as they need be, some backwards; *base: element 0's offset. */
static void random_strides(const struct box *box, int64_t *strides, int64_t *base)
{
	int64_t stride = (int64_t)sizeof(uint16_t) * (int64_t)(1 + roll(2));
	uint32_t order[BOX_DIMS_MAX];

	*base = 0;
	for (uint32_t i = 0; i < box->ndim; i++)
		order[i] = i;
	for (uint32_t i = box->ndim; i-- > 0;) {
		uint32_t j = (uint32_t)roll(i + 1), d = order[j];

		order[j] = order[i];
		strides[d] = stride;
		stride *= (int64_t)(box->count[d] + roll(2));
		if (roll(3) == 0) {
			*base += strides[d] * (int64_t)(box->count[d] - 1);
			strides[d] = -strides[d];
		}
	}
}

static void check_target(const struct box *wanted, const struct box *piece, const int64_t *strides, const uint8_t *base)
{
	uint64_t n;

	assert_int_equal(box_elements(wanted, &n), 0);
	for (uint64_t i = 0; i < n; i++) {
		int64_t at = 0;
		uint64_t rest = i;
		bool in_piece = true;
		uint16_t value;

		for (uint32_t d = wanted->ndim; d-- > 0;) {
			uint64_t place = rest % wanted->count[d];

			at += (int64_t)place * strides[d];
			place += wanted->start[d];
			in_piece = in_piece && place >= piece->start[d] && place < piece->start[d] + piece->count[d];
			rest /= wanted->count[d];
		}
		memcpy(&value, base + at, sizeof(value));
		assert_int_equal(value, in_piece ? value_of(wanted, i) : 0xffff);
	}
}

static void any_piece_in_any_blocks_fills_its_part_of_any_target(void **state)
{
	for (int round = 0; round < 3000; round++) {
		uint32_t ndim = (uint32_t)roll(5);
		struct box piece, wanted, part;
		int64_t strides[BOX_DIMS_MAX], base;
		uint64_t elements, expected = 0, filled = 0;
		struct layout layout;
		uint16_t *bytes;
		uint8_t *memory;

		random_box(&piece, ndim);
		random_box(&wanted, ndim);
		random_strides(&wanted, strides, &base);
		assert_int_equal(box_elements(&piece, &elements), 0);
		bytes = malloc(elements * sizeof(*bytes));
		memory = malloc(1u << 17);
		memset(memory, 0xff, 1u << 17);
		for (uint64_t i = 0; i < elements; i++)
			bytes[i] = value_of(&piece, i);
		assert_int_equal(layout_init(&layout, &wanted, 16, strides, NULL), 0);
		for (uint64_t at = 0, n; at < elements * 2; at += n) {
			uint64_t now;

			n = 1 + roll(elements * 2 - at);
			assert_int_equal(layout_fill(&layout, &wanted, 16, memory + base, &piece, at, n,
						     (uint8_t *)bytes + at, &now),
					 0);
			filled += now;
		}
		check_target(&wanted, &piece, strides, memory + base);
		if (box_intersect(&piece, &wanted, &part))
			assert_int_equal(box_bytes(&part, 16, &expected), 0);
		assert_int_equal(filled, expected);
		free(bytes);
		free(memory);
	}
}

static void holes_are_zeroed_where_the_piece_is_and_nowhere_else(void **state)
{
	const struct box piece = { .ndim = 2, .start = { 0, 2 }, .count = { 4, 2 } };
	const struct box wanted = { .ndim = 2, .start = { 1, 0 }, .count = { 2, 4 } };
	uint8_t memory[8];
	struct layout layout;
	uint64_t filled;

	memset(memory, 9, sizeof(memory));
	assert_int_equal(layout_init(&layout, &wanted, 8, NULL, NULL), 0);
	assert_int_equal(layout_fill(&layout, &wanted, 8, memory, &piece, 0, 8, NULL, &filled), 0);
	assert_memory_equal(memory, "\x09\x09\0\0\x09\x09\0\0", 8);
	assert_int_equal(filled, 4);
}

static void a_piece_of_other_dimensions_is_refused(void **state)
{
	const struct box piece = { .ndim = 1, .count = { 4 } };
	const struct box wanted = { .ndim = 2, .count = { 2, 2 } };
	struct layout layout;
	uint8_t memory[4];
	uint64_t filled;

	assert_int_equal(layout_init(&layout, &wanted, 8, NULL, NULL), 0);
	assert_int_equal(layout_fill(&layout, &wanted, 8, memory, &piece, 0, 4, "abcd", &filled), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(contiguous_strides_are_one_run),
		cmocka_unit_test(strides_of_single_elements_do_not_matter),
		cmocka_unit_test(rows_at_a_distance_are_runs),
		cmocka_unit_test(elements_under_a_byte_have_no_strides),
		cmocka_unit_test(negative_strides_gather_and_scatter),
		cmocka_unit_test(any_piece_in_any_blocks_fills_its_part_of_any_target),
		cmocka_unit_test(holes_are_zeroed_where_the_piece_is_and_nowhere_else),
		cmocka_unit_test(a_piece_of_other_dimensions_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
