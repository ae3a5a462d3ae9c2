#include "cli/cut.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <string.h>

static void a_small_item_is_one_box(void **state)
{
	const uint64_t shape[] = { 3, 5 };
	struct cut cut;
	struct cut_box box;

	cut_init(&cut, 2, shape, 32, 60, 60);
	assert_true(cut_next(&cut, &box));
	assert_int_equal(box.bytes, 60);
	assert_int_equal(box.start[0], 0);
	assert_int_equal(box.count[0], 3);
	assert_int_equal(box.count[1], 5);
	assert_false(cut_next(&cut, &box));
}

static void an_item_without_bytes_is_one_box(void **state)
{
	const uint64_t shape[] = { 4, 0 };
	struct cut cut;
	struct cut_box box;

	cut_init(&cut, 2, shape, 32, 0, 8);
	assert_true(cut_next(&cut, &box));
	assert_int_equal(box.bytes, 0);
	assert_false(cut_next(&cut, &box));
}

static void a_scalar_is_one_box(void **state)
{
	struct cut cut;
	struct cut_box box;

	cut_init(&cut, 0, (const uint64_t[]){ 0 }, 64, 8, 8);
	assert_true(cut_next(&cut, &box));
	assert_int_equal(box.bytes, 8);
	assert_false(cut_next(&cut, &box));
}

static void elements_that_are_no_whole_bytes_are_never_cut(void **state)
{
	const uint64_t shape[] = { 100 };
	struct cut cut;
	struct cut_box box;

	cut_init(&cut, 1, shape, 4, 50, 8);
	assert_true(cut_next(&cut, &box));
	assert_int_equal(box.bytes, 50);
	assert_false(cut_next(&cut, &box));
}

/* The offset of a box's first element, and that its elements follow each other, from first principles. */
static void check_box(const struct cut_box *box, uint32_t ndim, const uint64_t *shape, uint64_t element_bytes)
{
	uint64_t offset = 0, elements = 1;
	int inner_whole = 1;

	for (uint32_t d = 0; d < ndim; d++) {
		offset = offset * shape[d] + box->start[d];
		elements *= box->count[d];
		assert_true(box->start[d] + box->count[d] <= shape[d]);
	}
	for (uint32_t d = ndim; d-- > 0;) {
		assert_true(inner_whole || box->count[d] == 1);
		inner_whole = inner_whole && box->count[d] == shape[d];
	}
	assert_true(box->offset == offset * element_bytes);
	assert_true(box->bytes == elements * element_bytes);
}

static void boxes_are_bounded_contiguous_and_cover_the_item_in_order(void **state)
{
	uint64_t x = 88172645463325252; /* xorshift64: a fixed seed, so that a failure repeats */

	for (int round = 0; round < 3000; round++) {
		uint64_t shape[CUT_DIMS], elements = 1, element_bytes, at = 0;
		struct cut cut;
		struct cut_box box;

		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		uint32_t ndim = 1 + x % 5;
		element_bytes = UINT64_C(1) << (x >> 20) % 4;
		for (uint32_t d = 0; d < ndim; d++) {
			shape[d] = 1 + (x >> (8 * d + 3)) % 7;
			elements *= shape[d];
		}
		uint64_t max = element_bytes + (x >> 40) % 100;

		cut_init(&cut, ndim, shape, (uint32_t)(8 * element_bytes), elements * element_bytes, max);
		while (cut_next(&cut, &box)) {
			assert_true(box.bytes && box.bytes <= max);
			assert_true(box.offset == at);
			check_box(&box, ndim, shape, element_bytes);
			at += box.bytes;
		}
		assert_true(at == elements * element_bytes);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_small_item_is_one_box),
		cmocka_unit_test(an_item_without_bytes_is_one_box),
		cmocka_unit_test(a_scalar_is_one_box),
		cmocka_unit_test(elements_that_are_no_whole_bytes_are_never_cut),
		cmocka_unit_test(boxes_are_bounded_contiguous_and_cover_the_item_in_order),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
