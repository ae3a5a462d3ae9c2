#include "group/forgone.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static void what_was_forgone_is_found_by_its_save_and_its_turn(void **state)
{
	struct forgone forgone = { 0 };

	forgone_put(&forgone, &(struct nth){ 7, 1, 1 }, view_str("rank 1 has no memory"));
	assert_string_equal(forgone_find(&forgone, &(struct nth){ 7, 1, 1 }), "rank 1 has no memory");
	assert_null(forgone_find(&forgone, &(struct nth){ 7, 2, 1 }));
	assert_null(forgone_find(&forgone, &(struct nth){ 8, 1, 1 }));
	assert_null(forgone_find(&forgone, &(struct nth){ 0, 0, 1 })); /* what is not there is not found */
}

static void the_first_words_stay(void **state)
{
	struct forgone forgone = { 0 };

	forgone_put(&forgone, &(struct nth){ 7, 1, 1 }, view_str("rank 1"));
	forgone_put(&forgone, &(struct nth){ 7, 1, 1 }, view_str("rank 2"));
	assert_string_equal(forgone_find(&forgone, &(struct nth){ 7, 1, 1 }), "rank 1");
}

static void the_oldest_give_way_and_long_words_are_cut(void **state)
{
	struct forgone forgone = { 0 };
	char words[2 * FORGONE_WORDS_MAX];

	memset(words, 'w', sizeof(words));
	for (uint64_t nth = 1; nth <= FORGONE_MAX + 1; nth++)
		forgone_put(&forgone, &(struct nth){ 7, nth, 1 }, view_of(words, sizeof(words)));
	assert_null(forgone_find(&forgone, &(struct nth){ 7, 1, 1 }));
	assert_int_equal(strlen(forgone_find(&forgone, &(struct nth){ 7, 2, 1 })), FORGONE_WORDS_MAX - 1);
	assert_non_null(forgone_find(&forgone, &(struct nth){ 7, FORGONE_MAX + 1, 1 }));
}

/* A rank forgets the counts of versions: its first load of one may come a second time. */
static void what_was_forgone_long_ago_is_not_what_comes_now(void **state)
{
	struct forgone forgone = { 0 };

	forgone_put(&forgone, &(struct nth){ 7, 1, 1 }, view_str("rank 1 has no memory"));
	assert_non_null(forgone_find(&forgone, &(struct nth){ 7, 1, 3 }));
	assert_null(forgone_find(&forgone, &(struct nth){ 7, 1, 1 + NTH_VERSIONS_MAX }));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_was_forgone_is_found_by_its_save_and_its_turn),
		cmocka_unit_test(what_was_forgone_long_ago_is_not_what_comes_now),
		cmocka_unit_test(the_first_words_stay),
		cmocka_unit_test(the_oldest_give_way_and_long_words_are_cut),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
