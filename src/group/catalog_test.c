#include "group/catalog.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static struct elem_item item(const char *name, uint64_t rows, uint64_t start, uint64_t count)
{
	return (struct elem_item){ .name = view_str(name),
				   .dtype = view_str("float32"),
				   .element_bits = 32,
				   .whole = { .ndim = 2, .count = { rows, 3 } },
				   .box = { .ndim = 2, .start = { start }, .count = { count, 3 } } };
}

static void offer(struct list_buf *list, struct elem_item elem)
{
	assert_int_equal(elem_item_append(list, &elem), 0);
}

/* A catalog of ranks' lists; what went wrong is in *e. */
static int merge(struct catalog *catalog, struct list_buf *lists, uint32_t n, struct error *e)
{
	int r = catalog_begin(catalog);

	for (uint32_t rank = 0; !r && rank < n; rank++)
		r = catalog_add(catalog, rank, list_buf_view(&lists[rank]), e);
	return r ? r : catalog_finish(catalog, e);
}

static void done(struct catalog *catalog, struct list_buf *lists, uint32_t n)
{
	catalog_fini(catalog);
	for (uint32_t i = 0; i < n; i++)
		list_buf_fini(&lists[i]);
}

static void equal_boxes_are_one_unique_offered_by_each_rank(void **state)
{
	struct list_buf lists[3] = { 0 };
	struct catalog catalog;
	struct error e = { 0 };

	for (int rank = 0; rank < 3; rank++)
		offer(&lists[rank], item("w", 8, 0, 8));
	assert_int_equal(merge(&catalog, lists, 3, &e), 0);
	assert_int_equal(catalog.n_uniques, 1);
	assert_int_equal(catalog.uniques[0].n_offers, 3);
	assert_int_equal(catalog.offers[2].rank, 2);
	assert_int_equal(catalog.unique_bytes, 8 * 3 * 4);
	assert_int_equal(catalog.offered_bytes, 3 * 8 * 3 * 4);
	done(&catalog, lists, 3);
}

static void shards_are_uniques_of_one_item_in_order_of_their_starts(void **state)
{
	struct list_buf lists[3] = { 0 };
	struct catalog catalog;
	struct error e = { 0 };

	offer(&lists[0], item("w", 8, 5, 3));
	offer(&lists[1], item("w", 8, 0, 5));
	offer(&lists[2], item("w", 8, 8, 0)); /* a rank that owns nothing of it */
	assert_int_equal(merge(&catalog, lists, 3, &e), 0);
	assert_int_equal(catalog.n_items, 1);
	assert_int_equal(catalog.items[0].n_uniques, 3);
	assert_int_equal(catalog.uniques[0].box.start[0], 0);
	assert_int_equal(catalog.uniques[1].box.start[0], 5);
	assert_int_equal(catalog.uniques[2].bytes, 0);
	done(&catalog, lists, 3);
}

static void items_are_sorted_by_name(void **state)
{
	struct list_buf lists[1] = { 0 };
	struct catalog catalog;
	struct error e = { 0 };

	offer(&lists[0], item("b", 1, 0, 1));
	offer(&lists[0], item("a.b", 1, 0, 1));
	offer(&lists[0], item("a", 1, 0, 1));
	assert_int_equal(merge(&catalog, lists, 1, &e), 0);
	assert_true(view_equal(catalog.items[0].name, view_str("a")));
	assert_true(view_equal(catalog.items[1].name, view_str("a.b")));
	assert_int_equal(catalog.uniques[catalog.items[2].first_unique].item, 2);
	assert_int_equal(catalog.offers[catalog.uniques[2].first_offer].item, 0);
	done(&catalog, lists, 1);
}

static void overlapping_boxes_are_refused_naming_both_ranks(void **state)
{
	struct list_buf lists[3] = { 0 };
	struct catalog catalog;
	struct error e = { 0 };

	offer(&lists[0], item("w", 8, 0, 2));
	offer(&lists[1], item("w", 8, 2, 4));
	offer(&lists[2], item("w", 8, 5, 3));
	assert_int_equal(merge(&catalog, lists, 3, &e), -ERR_EOVERLAP);
	assert_non_null(strstr(e.text, "\"w\""));
	assert_non_null(strstr(e.text, "rank 1"));
	assert_non_null(strstr(e.text, "rank 2"));
	done(&catalog, lists, 3);
}

/* Each box reaches to the end of all rows but lies in a column of its own: a sweep along the rows has all of them open. */
static void offer_stairs(struct list_buf *list, size_t n)
{
	for (uint64_t i = 0; i < n; i++) {
		struct elem_item step = { .name = view_str("w"),
					  .dtype = view_str("uint8"),
					  .element_bits = 8,
					  .whole = { 2, { 0 }, { n, n } },
					  .box = { 2, { i, i }, { n - i, 1 } } };

		offer(list, step);
	}
}

static void boxes_that_are_all_open_take_steps_by_their_number(void **state)
{
	enum { N = 20000 };
	struct list_buf lists[1] = { 0 };
	struct catalog catalog;
	struct error e = { 0 };

	offer_stairs(&lists[0], N);
	assert_int_equal(merge(&catalog, lists, 1, &e), 0);
	print_message("%d boxes: %llu steps\n", N, (unsigned long long)catalog.steps);
	assert_in_range(catalog.steps, N, 400 * N); /* not N x N */
	done(&catalog, lists, 1);
}

static void an_overlap_among_boxes_that_are_all_open_is_refused(void **state)
{
	enum { N = 2000 };
	struct list_buf lists[2] = { 0 };
	struct catalog catalog;
	struct error e = { 0 };
	struct elem_item other = { .name = view_str("w"),
				   .dtype = view_str("uint8"),
				   .element_bits = 8,
				   .whole = { 2, { 0 }, { N, N } },
				   .box = { 2, { N - 1, 7 }, { 1, 1 } } };

	offer_stairs(&lists[0], N);
	offer(&lists[1], other);
	assert_int_equal(merge(&catalog, lists, 2, &e), -ERR_EOVERLAP);
	assert_non_null(strstr(e.text, "rank 0"));
	assert_non_null(strstr(e.text, "rank 1"));
	done(&catalog, lists, 2);
}

static void a_shape_that_differs_is_refused_naming_both_ranks(void **state)
{
	struct list_buf lists[2] = { 0 };
	struct catalog catalog;
	struct error e = { 0 };

	offer(&lists[0], item("w", 8, 0, 4));
	offer(&lists[1], item("w", 9, 4, 4));
	assert_int_equal(merge(&catalog, lists, 2, &e), -ERR_EMISMATCH);
	assert_non_null(strstr(e.text, "shape"));
	assert_non_null(strstr(e.text, "rank 0 and rank 1"));
	done(&catalog, lists, 2);
}

static void a_dtype_that_differs_is_refused(void **state)
{
	struct list_buf lists[2] = { 0 };
	struct catalog catalog;
	struct error e = { 0 };
	struct elem_item other = item("w", 8, 4, 4);

	other.dtype = view_str("int32");
	offer(&lists[0], item("w", 8, 0, 4));
	offer(&lists[1], other);
	assert_int_equal(merge(&catalog, lists, 2, &e), -ERR_EMISMATCH);
	assert_non_null(strstr(e.text, "dtype"));
	done(&catalog, lists, 2);
}

static void a_box_outside_of_its_shape_is_refused(void **state)
{
	struct list_buf lists[1] = { 0 };
	struct catalog catalog;
	struct error e = { 0 };

	offer(&lists[0], item("w", 8, UINT64_MAX, 2));
	assert_int_equal(merge(&catalog, lists, 1, &e), -ERANGE);
	assert_non_null(strstr(e.text, "outside"));
	done(&catalog, lists, 1);
}

static void odd_four_bit_elements_are_refused_not_rounded(void **state)
{
	struct list_buf lists[1] = { 0 };
	struct catalog catalog;
	struct error e = { 0 };
	struct elem_item odd = item("w", 1, 0, 1);

	odd.element_bits = 4;
	offer(&lists[0], odd);
	assert_true(merge(&catalog, lists, 1, &e) < 0);
	done(&catalog, lists, 1);
}

static void the_lowest_ranks_value_counts_whatever_its_size_elsewhere(void **state)
{
	struct list_buf lists[2] = { 0 };
	struct catalog catalog;
	struct error e = { 0 };
	struct elem_item a = item("rng", 8, 0, 8), b = item("rng", 5, 0, 5);

	a.flags = b.flags = ITEM_LOWEST_WINS;
	offer(&lists[0], a);
	offer(&lists[1], b);
	assert_int_equal(merge(&catalog, lists, 2, &e), 0);
	assert_int_equal(catalog.n_uniques, 1);
	assert_int_equal(catalog.uniques[0].n_offers, 1);
	assert_int_equal(catalog.offers[0].rank, 0);
	assert_int_equal(catalog.items[0].whole.count[0], 8);
	done(&catalog, lists, 2);
}

static void names_must_be_utf8_of_up_to_1024_bytes(void **state)
{
	char name[1026];

	memset(name, 'a', sizeof(name));
	name[1025] = 0;
	for (int good = 0; good < 2; good++) {
		struct list_buf lists[1] = { 0 };
		struct catalog catalog;
		struct error e = { 0 };

		offer(&lists[0], item(name + good, 1, 0, 1));
		assert_int_equal(merge(&catalog, lists, 1, &e), good ? 0 : -EINVAL);
		done(&catalog, lists, 1);
	}
}

static void a_truncated_list_is_refused(void **state)
{
	struct list_buf list = { 0 };
	struct catalog catalog;
	struct error e = { 0 };

	offer(&list, item("w", 8, 0, 8));
	struct list_view cut = list_buf_view(&list);
	cut.bytes.len -= 3;
	assert_int_equal(catalog_begin(&catalog), 0);
	assert_int_equal(catalog_add(&catalog, 0, cut, &e), -EPROTO);
	done(&catalog, &list, 1);
}

/* A grid of boxes over many ranks: as many uniques as cells, each with its replicas, whatever the order of the cells. */
static void a_grid_with_replicas_merges_completely(void **state)
{
	enum { CELLS = 50, RANKS = 100 };
	static struct list_buf lists[RANKS];
	struct catalog catalog;
	struct error e = { 0 };

	memset(lists, 0, sizeof(lists));
	for (uint32_t rank = 0; rank < RANKS; rank++) {
		for (int i = 0; i < 7; i++) {
			char name[16];

			snprintf(name, sizeof(name), "layer.%d", (i * 5) % 7);
			offer(&lists[rank], item(name, CELLS * 2, (rank * 37 % CELLS) * 2, 2));
		}
	}
	assert_int_equal(merge(&catalog, lists, RANKS, &e), 0);
	assert_int_equal(catalog.n_items, 7);
	assert_int_equal(catalog.n_uniques, 7 * CELLS);
	for (size_t u = 0; u < catalog.n_uniques; u++)
		assert_int_equal(catalog.uniques[u].n_offers, RANKS / CELLS);
	done(&catalog, lists, RANKS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(equal_boxes_are_one_unique_offered_by_each_rank),
		cmocka_unit_test(shards_are_uniques_of_one_item_in_order_of_their_starts),
		cmocka_unit_test(items_are_sorted_by_name),
		cmocka_unit_test(overlapping_boxes_are_refused_naming_both_ranks),
		cmocka_unit_test(boxes_that_are_all_open_take_steps_by_their_number),
		cmocka_unit_test(an_overlap_among_boxes_that_are_all_open_is_refused),
		cmocka_unit_test(a_shape_that_differs_is_refused_naming_both_ranks),
		cmocka_unit_test(a_dtype_that_differs_is_refused),
		cmocka_unit_test(a_box_outside_of_its_shape_is_refused),
		cmocka_unit_test(odd_four_bit_elements_are_refused_not_rounded),
		cmocka_unit_test(the_lowest_ranks_value_counts_whatever_its_size_elsewhere),
		cmocka_unit_test(names_must_be_utf8_of_up_to_1024_bytes),
		cmocka_unit_test(a_truncated_list_is_refused),
		cmocka_unit_test(a_grid_with_replicas_merges_completely),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
