#include "base/cleanup.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>

static int freed;

static void counted_free(int *p)
{
	freed += p != NULL;
	free(p);
}

CLEANUP_OF(int *, counted_free);

static int *make(void)
{
	_cleanup_(cleanup_counted_free) int *p = malloc(sizeof(*p));

	return TAKE(p);
}

static void a_scope_gives_back_what_it_owns_once(void **state)
{
	freed = 0;
	{
		_cleanup_(cleanup_counted_free) int *p = malloc(sizeof(*p));
		_cleanup_(cleanup_mem) char *q = malloc(1);
		_cleanup_(cleanup_mem) char *none = NULL;

		assert_non_null(p);
		assert_non_null(q);
		assert_null(none);
	}
	assert_int_equal(freed, 1);
}

static void what_was_taken_outlives_the_scope(void **state)
{
	freed = 0;
	int *p = make();
	assert_int_equal(freed, 0);

	int *moved = TAKE(p);
	assert_null(p);
	assert_non_null(moved);
	counted_free(moved);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_scope_gives_back_what_it_owns_once),
		cmocka_unit_test(what_was_taken_outlives_the_scope),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
