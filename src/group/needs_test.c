#include "group/needs.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define PIECES 30000

/* A version of item "x": @n pieces of one row of @width bytes each, cut into blocks of @block bytes. */
static struct version rows(size_t n, uint32_t width, uint32_t block)
{
	uint32_t each = width / block;
	struct version version = { .bundle = "b", .number = 1, .n_items = 1, .n_pieces = n, .n_blocks = n * each };

	version.items = calloc(1, sizeof(*version.items));
	version.pieces = calloc(n, sizeof(*version.pieces));
	version.blocks = calloc(n * each, sizeof(*version.blocks));
	assert_true(version.items && version.pieces && version.blocks);
	version.items[0] = (struct version_item){ .name = view_str("x"),
						  .element_bits = 8,
						  .whole = { 2, { 0 }, { n, width } },
						  .n_pieces = (uint32_t)n };
	for (size_t i = 0; i < n; i++)
		version.pieces[i] = (struct version_piece){ .box = { 2, { i, 0 }, { 1, width } },
							    .first_block = i * each,
							    .n_blocks = each };
	for (size_t b = 0; b < n * each; b++)
		version.blocks[b] = (struct version_block){ .bytes = block, .pack_offset = 4096 + b * block };
	return version;
}

static void done(struct version *version, struct list_buf *wants, struct needs *needs)
{
	free(version->items);
	free(version->pieces);
	free(version->blocks);
	list_buf_fini(wants);
	needs_fini(needs);
}

static void want(struct list_buf *wants, const char *name, struct box box)
{
	const struct elem_want elem = { .name = view_str(name), .box = box };

	assert_int_equal(elem_want_append(wants, &elem), 0);
}

static void a_box_needs_the_blocks_that_its_bytes_lie_in(void **state)
{
	struct version version = rows(4, 64, 16);
	struct list_buf wants = { 0 };
	struct needs needs = { 0 };
	struct error e = { 0 };

	want(&wants, "x",
	     (struct box){ 2, { 1, 20 }, { 2, 20 } }); /* bytes 20..39 of rows 1 and 2: blocks 1 and 2 of each */
	want(&wants, "x", (struct box){ 2, { 2, 63 }, { 1, 1 } });
	want(&wants, "x", (struct box){ 2, { 0, 0 }, { 0, 64 } }); /* nothing */
	assert_true(needs_are_few(&version, list_buf_view(&wants)));
	assert_int_equal(needs_find(&version, list_buf_view(&wants), &needs, &e), 0);
	static const struct need expected[] = {
		{ 5, 0, 1, 16 }, { 6, 0, 1, 32 }, { 9, 0, 2, 16 }, { 10, 0, 2, 32 }, { 11, 1, 2, 48 },
	};
	assert_int_equal(needs.n, 5);
	for (size_t i = 0; i < needs.n; i++) {
		assert_int_equal(needs.list[i].block, expected[i].block);
		assert_int_equal(needs.list[i].want, expected[i].want);
		assert_int_equal(needs.list[i].piece, expected[i].piece);
		assert_int_equal(needs.list[i].offset, expected[i].offset);
	}
	done(&version, &wants, &needs);
}

/* UBSan looks at the pieces that are not there. */
static void an_item_of_no_bytes_needs_nothing(void **state)
{
	struct version_item item = { .name = view_str("x"), .element_bits = 8, .whole = { 2, { 0 }, { 0, 8 } } };
	const struct version version = { .bundle = "b", .number = 1, .n_items = 1, .items = &item };
	struct list_buf wants = { 0 };
	struct needs needs = { 0 };
	struct error e = { 0 };

	want(&wants, "x", (struct box){ 2, { 0, 0 }, { 0, 8 } });
	assert_int_equal(needs_find(&version, list_buf_view(&wants), &needs, &e), 0);
	assert_int_equal(needs.n, 0);
	list_buf_fini(&wants);
	needs_fini(&needs);
}

static void each_of_many_boxes_is_compared_with_few_of_many_pieces(void **state)
{
	struct version version = rows(PIECES, 8, 8);
	struct list_buf wants = { 0 };
	struct needs needs = { 0 };
	struct error e = { 0 };

	for (uint64_t i = 0; i < PIECES; i++)
		want(&wants, "x", (struct box){ 2, { PIECES - 1 - i, 3 }, { 1, 2 } });
	assert_false(needs_are_few(&version, list_buf_view(&wants)));
	assert_int_equal(needs_find(&version, list_buf_view(&wants), &needs, &e), 0);
	assert_int_equal(needs.n, PIECES);
	for (uint32_t i = 0; i < PIECES; i++)
		assert_true(needs.list[i].block == i && needs.list[i].want == PIECES - 1 - i);
	print_message("%d boxes of %d pieces: %llu steps\n", PIECES, PIECES, (unsigned long long)needs.steps);
	assert_in_range(needs.steps, PIECES, 300 * PIECES); /* not PIECES x PIECES */
	done(&version, &wants, &needs);
}

static void many_boxes_at_the_end_of_many_pieces_are_few_steps(void **state)
{
	struct version version = rows(PIECES, 8, 8);
	struct list_buf wants = { 0 };
	struct needs needs = { 0 };
	struct error e = { 0 };

	for (uint64_t i = 0; i < PIECES; i++)
		want(&wants, "x", (struct box){ 2, { PIECES - 1, 7 }, { 1, 1 } });
	assert_int_equal(needs_find(&version, list_buf_view(&wants), &needs, &e), 0);
	assert_int_equal(needs.n, PIECES);
	assert_in_range(needs.steps, PIECES, 300 * PIECES);
	done(&version, &wants, &needs);
}

static void more_needs_than_there_may_be_are_refused(void **state)
{
	struct version version = rows(4096, 8, 8);
	struct list_buf wants = { 0 };
	struct needs needs = { 0 };
	struct error e = { 0 };

	for (int i = 0; i < 1025; i++)
		want(&wants, "x", (struct box){ 2, { 0, 0 }, { 4096, 8 } });
	assert_int_equal(needs_find(&version, list_buf_view(&wants), &needs, &e), -E2BIG);
	assert_non_null(strstr(e.text, "4194304"));
	assert_null(needs.list);
	done(&version, &wants, &needs);
}

static void what_does_not_fit_the_version_is_refused_by_name(void **state)
{
	struct version version = rows(4, 8, 8);
	struct list_buf stranger = { 0 }, outside = { 0 };
	struct needs needs = { 0 };
	struct error e = { 0 };

	want(&stranger, "y", (struct box){ 2, { 0, 0 }, { 1, 1 } });
	assert_int_equal(needs_find(&version, list_buf_view(&stranger), &needs, &e), -ENOENT);
	assert_non_null(strstr(e.text, "\"y\""));
	want(&outside, "x", (struct box){ 2, { 4, 0 }, { 1, 1 } });
	assert_int_equal(needs_find(&version, list_buf_view(&outside), &needs, &e), -ERR_EMISMATCH);
	assert_non_null(strstr(e.text, "outside"));
	list_buf_fini(&stranger);
	done(&version, &outside, &needs);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_box_needs_the_blocks_that_its_bytes_lie_in),
		cmocka_unit_test(an_item_of_no_bytes_needs_nothing),
		cmocka_unit_test(each_of_many_boxes_is_compared_with_few_of_many_pieces),
		cmocka_unit_test(many_boxes_at_the_end_of_many_pieces_are_few_steps),
		cmocka_unit_test(more_needs_than_there_may_be_are_refused),
		cmocka_unit_test(what_does_not_fit_the_version_is_refused_by_name),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
