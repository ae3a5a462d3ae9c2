#include "group/sources.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "base/check.h"
#include "sim/strike.h"

#define MB   UINT64_C(1000000)
#define NS_S UINT64_C(1000000000)

enum { NODES = 4 };

/* What each of a list says; the slow ones as bits. */
static unsigned judge(const struct sighting *seen, size_t n)
{
	struct sources sources = { 0 };
	bool slow[NODES];
	unsigned bits = 0;

	for (size_t i = 0; i < n; i++)
		sources_saw(&sources, &seen[i]);
	sources_judge(&sources, NODES, slow);
	for (unsigned i = 0; i < NODES; i++)
		bits |= (unsigned)slow[i] << i;
	sources_fini(&sources);
	return bits;
}

static void who_sends_far_less_than_others_is_slow(void **state)
{
	const struct sighting seen[] = {
		{ .by = 1, .of = 0, .bytes = 100 * MB, .busy_ns = NS_S },
		{ .by = 2, .of = 1, .bytes = 100 * MB, .busy_ns = 9 * NS_S },
		{ .by = 3, .of = 2, .bytes = 100 * MB, .busy_ns = NS_S },
		{ .by = 0, .of = 3, .bytes = 100 * MB, .busy_ns = 2 * NS_S },
	};

	assert_int_equal(judge(seen, 4), 1u << 1);
}

static void who_never_sent_what_was_asked_of_it_is_slow(void **state)
{
	const struct sighting seen[] = {
		{ .by = 1, .of = 0, .bytes = 100 * MB, .busy_ns = NS_S },
		{ .by = 0, .of = 2, .bytes = 0, .busy_ns = 3 * NS_S },
		{ .by = 2, .of = 1, .bytes = 100 * MB, .busy_ns = NS_S },
	};

	assert_int_equal(judge(seen, 3), 1u << 2);
}

/* 1 is slow at all that it does: what comes to it from 0 comes late, because it was asked for late. */
static void what_a_slow_one_says_of_its_source_does_not_count(void **state)
{
	const struct sighting seen[] = {
		{ .by = 1, .of = 0, .bytes = 100 * MB, .busy_ns = 10 * NS_S },
		{ .by = 0, .of = 1, .bytes = 100 * MB, .busy_ns = 9 * NS_S },
		{ .by = 0, .of = 2, .bytes = 100 * MB, .busy_ns = NS_S },
		{ .by = 2, .of = 3, .bytes = 100 * MB, .busy_ns = NS_S },
	};

	assert_int_equal(judge(seen, 4), 1u << 1);
}

/* But it is believed when others reached it in time. */
static void two_that_are_slow_are_both_named(void **state)
{
	const struct sighting seen[] = {
		{ .by = 1, .of = 0, .bytes = 100 * MB, .busy_ns = 10 * NS_S },
		{ .by = 0, .of = 1, .bytes = 100 * MB, .busy_ns = 9 * NS_S },
		{ .by = 0, .of = 2, .bytes = 100 * MB, .busy_ns = NS_S },
		{ .by = 1, .of = 3, .bytes = 100 * MB, .busy_ns = NS_S },
	};

	assert_int_equal(judge(seen, 4), 3);
}

static void a_network_that_is_slow_makes_nobody_slow(void **state)
{
	const struct sighting seen[] = {
		{ .by = 1, .of = 0, .bytes = 10 * MB, .busy_ns = 10 * NS_S },
		{ .by = 2, .of = 1, .bytes = 10 * MB, .busy_ns = 19 * NS_S },
		{ .by = 0, .of = 2, .bytes = 10 * MB, .busy_ns = 10 * NS_S },
	};

	assert_int_equal(judge(seen, 3), 0);
}

static void nobody_is_slow_alone_or_for_less_than_two_seconds(void **state)
{
	const struct sighting seen[] = {
		{ .by = 1, .of = 0, .bytes = MB, .busy_ns = 10 * NS_S },
		{ .by = 2, .of = 1, .bytes = 100 * MB, .busy_ns = NS_S / 100 },
		{ .by = 0, .of = 2, .bytes = 100 * MB, .busy_ns = NS_S * 19 / 10 },
	};

	assert_int_equal(judge(seen, 1), 0);
	assert_int_equal(judge(seen + 1, 2), 0);
	assert_int_equal(judge(seen, 0), 0);
}

/* What is said of the others only makes them seem slower, or faster, than they are. */
static void without_memory_nobody_is_judged(void **state)
{
	const struct sighting seen[] = {
		{ .by = 1, .of = 0, .bytes = 100 * MB, .busy_ns = NS_S },
		{ .by = 2, .of = 1, .bytes = 100 * MB, .busy_ns = 9 * NS_S },
		{ .by = 3, .of = 2, .bytes = 100 * MB, .busy_ns = NS_S },
	};
	uint64_t k = 0, n;

	do {
		strike_set(STRIKE_MEMORY, k);
		strike_arm(true);
		unsigned slow = judge(seen, ARRAY_LEN(seen));
		strike_arm(false);
		n = strike_seen();
		assert_int_equal(slow, k < n ? 0 : 1u << 1);
	} while (k++ < n);
	assert_true(n > 5);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(who_sends_far_less_than_others_is_slow),
		cmocka_unit_test(who_never_sent_what_was_asked_of_it_is_slow),
		cmocka_unit_test(what_a_slow_one_says_of_its_source_does_not_count),
		cmocka_unit_test(two_that_are_slow_are_both_named),
		cmocka_unit_test(a_network_that_is_slow_makes_nobody_slow),
		cmocka_unit_test(nobody_is_slow_alone_or_for_less_than_two_seconds),
		cmocka_unit_test(without_memory_nobody_is_judged),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
