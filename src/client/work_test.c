#include "client/work.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 300, COLUMNS = 200 };

struct array {
	uint8_t *memory, *transposed, *span;
	struct layout layout, layout_transposed;
};

static int set_up(void **state)
{
	const struct box box = { .ndim = 2, .count = { ROWS, COLUMNS } };
	const int64_t strides[] = { 1, ROWS };
	struct array *a = calloc(1, sizeof(*a));

	a->memory = malloc(ROWS * COLUMNS);
	a->transposed = malloc(ROWS * COLUMNS);
	a->span = calloc(1, ROWS * COLUMNS);
	for (int i = 0; i < ROWS; i++)
		for (int j = 0; j < COLUMNS; j++)
			a->memory[i * COLUMNS + j] = a->transposed[j * ROWS + i] = (uint8_t)(i * 7 + j * 31);
	*state = a;
	return layout_init(&a->layout, &box, 8, NULL, NULL) ||
	       layout_init(&a->layout_transposed, &box, 8, strides, NULL);
}

static int tear_down(void **state)
{
	struct array *a = *state;

	free(a->memory);
	free(a->transposed);
	free(a->span);
	free(a);
	return 0;
}

static struct elem_filled capture(struct array *a, bool transposed, uint8_t *span, enum grant_mode mode,
				  uint32_t offset, uint32_t bytes)
{
	struct work *work = work_new(WORK_CAPTURE, 0);

	work->layout = transposed ? &a->layout_transposed : &a->layout;
	work->data = transposed ? a->transposed : a->memory;
	work->offset = offset;
	work->bytes = bytes;
	work->span = span;
	work->mode = mode;
	work_run(work);
	assert_int_equal(work->result, 0);
	struct elem_filled filled = work->filled;
	work_free(work);
	return filled;
}

static void check(struct array *a, const struct elem_filled *filled, uint32_t offset, uint32_t bytes)
{
	struct digest digest = digest_of(a->memory + offset, bytes);

	assert_true(digest_equal(&filled->digest, &digest));
	assert_int_equal(filled->crc, crc32c(0, a->memory + offset, bytes));
	assert_int_equal(filled->flags, 0);
}

static void a_full_capture_copies_and_hashes_whatever_the_strides(void **state)
{
	struct array *a = *state;

	for (int transposed = 0; transposed < 2; transposed++) {
		memset(a->span, 0, ROWS * COLUMNS);
		struct elem_filled filled = capture(a, transposed, a->span, GRANT_FULL, 77, 50000);

		check(a, &filled, 77, 50000);
		assert_memory_equal(a->span, a->memory + 77, 50000);
		assert_int_equal(a->span[50000], 0);
	}
}

static void a_check_hashes_without_a_span(void **state)
{
	struct array *a = *state;

	for (int transposed = 0; transposed < 2; transposed++) {
		struct elem_filled filled = capture(a, transposed, NULL, GRANT_FULL, 3, 40001);

		check(a, &filled, 3, 40001);
	}
}

static void a_hinted_capture_samples_what_it_copied(void **state)
{
	struct array *a = *state;
	uint64_t sample = sample_fingerprint(a->memory + 5, 59990);

	for (int transposed = 0; transposed < 2; transposed++) {
		struct elem_filled filled = capture(a, transposed, a->span, GRANT_HINTED, 5, 59990);

		assert_true(filled.sample == sample);
		assert_memory_equal(a->span, a->memory + 5, 59990);
		filled = capture(a, transposed, NULL, GRANT_HINTED, 5, 59990);
		assert_true(filled.sample == sample);
	}
}

static void zeros_are_noticed(void **state)
{
	struct array *a = *state;

	memset(a->memory, 0, 100);
	assert_int_equal(capture(a, false, a->span, GRANT_FULL, 0, 100).flags, FILLED_ZERO);
	assert_int_equal(capture(a, false, a->span, GRANT_FULL, 0, 101).flags, 0);
}

static void zeros_are_not_written_anywhere(void **state)
{
	struct array *a = *state;
	const struct digest digest = { 0 };

	memset(a->memory, 0, 5000);
	memset(a->span, 0xaa, 5000);
	struct elem_filled filled = capture(a, false, a->span, GRANT_FULL, 0, 5000);
	assert_int_equal(filled.flags, FILLED_ZERO);
	assert_int_equal(filled.crc, crc32c(0, a->memory, 5000));
	assert_false(digest_equal(&filled.digest, &digest));
	for (int i = 0; i < 5000; i++)
		assert_int_equal(a->span[i], 0xaa);
	a->memory[4999] = 1; /* now all of it is */
	assert_int_equal(capture(a, false, a->span, GRANT_FULL, 0, 5000).flags, 0);
	assert_memory_equal(a->span, a->memory, 5000);
}

static void one_span_fills_several_targets(void **state)
{
	struct array *a = *state;
	const struct box piece = { .ndim = 2, .count = { ROWS, COLUMNS } };
	struct work *work = work_new(WORK_FILL, 2);
	uint8_t *first = calloc(1, ROWS * COLUMNS), *second = calloc(1, ROWS * COLUMNS);

	work->from = a->memory;
	work->bytes = ROWS * COLUMNS;
	work->parts[0] = (struct work_part){ .layout = &a->layout,
					     .wanted = &piece,
					     .element_bits = 8,
					     .base = first,
					     .piece = piece };
	work->parts[1] = (struct work_part){ .layout = &a->layout_transposed,
					     .wanted = &piece,
					     .element_bits = 8,
					     .base = second,
					     .piece = piece };
	work_run(work);
	assert_int_equal(work->result, 0);
	assert_int_equal(work->parts[0].filled, ROWS * COLUMNS);
	assert_memory_equal(first, a->memory, ROWS * COLUMNS);
	assert_memory_equal(second, a->transposed, ROWS * COLUMNS);
	work_free(work);
	free(first);
	free(second);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_full_capture_copies_and_hashes_whatever_the_strides, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(a_check_hashes_without_a_span, set_up, tear_down),
		cmocka_unit_test_setup_teardown(a_hinted_capture_samples_what_it_copied, set_up, tear_down),
		cmocka_unit_test_setup_teardown(zeros_are_noticed, set_up, tear_down),
		cmocka_unit_test_setup_teardown(zeros_are_not_written_anywhere, set_up, tear_down),
		cmocka_unit_test_setup_teardown(one_span_fills_several_targets, set_up, tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
