#include "group/pace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

#include "base/cleanup.h"
#include "env/loop.h"

enum { NODES = 4, RATE = 1000000000 };
#define MB	UINT64_C(1000000)
#define LOOK_NS (PACE_LOOK_MS * NS_PER_MS)

struct race {
	struct pace_node nodes[NODES];
	uint64_t done[NODES], sorted[NODES];
	struct pace pace;
};

static void race_begin(struct race *race, uint64_t bytes)
{
	memset(race, 0, sizeof(*race));
	race->pace =
		(struct pace){ .nodes = race->nodes, .sorted = race->sorted, .n = NODES, .begun_ns = 77 * NS_PER_S };
	for (size_t i = 0; i < NODES; i++) {
		race->nodes[i].rate = RATE;
		pace_begin(&race->pace, i, race->pace.begun_ns);
		race->nodes[i].bytes = bytes;
	}
}

/* So many looks, between which the nodes write so many bytes. */
static void race_on(struct race *race, unsigned looks, const uint64_t per_look[NODES])
{
	while (looks--) {
		for (size_t i = 0; i < NODES; i++)
			race->done[i] += per_look[i];
		pace_look(&race->pace, race->done, race->pace.begun_ns + (race->pace.looks + 1) * LOOK_NS);
	}
}

static unsigned n_slow(const struct race *race)
{
	unsigned n = 0;

	for (size_t i = 0; i < NODES; i++)
		n += pace_is_slow(&race->pace, i);
	return n;
}

static void a_node_at_a_twentieth_is_slow_after_two_seconds(void **state)
{
	const uint64_t steps[NODES] = { 40 * MB, 40 * MB, 2 * MB, 40 * MB };
	struct race race;

	race_begin(&race, 1000 * MB);
	race_on(&race, PACE_LOOKS - 1, steps);
	assert_int_equal(n_slow(&race), 0);
	race_on(&race, 1, steps);
	assert_int_equal(n_slow(&race), 1);
	assert_true(pace_is_slow(&race.pace, 2));
	assert_true(pace_is_hopeless(&race.pace, 2));
}

static void a_node_at_a_third_is_not_slow(void **state)
{
	const uint64_t steps[NODES] = { 30 * MB, 30 * MB, 10 * MB, 30 * MB };
	struct race race;

	race_begin(&race, 1000 * MB);
	race_on(&race, 3 * PACE_LOOKS, steps);
	assert_int_equal(n_slow(&race), 0);
}

static void a_store_that_is_slow_for_all_makes_no_node_slow(void **state)
{
	const uint64_t steps[NODES] = { 2 * MB, 2 * MB, 3 * MB, 2 * MB }, none[NODES] = { 0 };
	struct race race;

	race_begin(&race, 1000 * MB);
	race_on(&race, 3 * PACE_LOOKS, steps);
	assert_int_equal(n_slow(&race), 0);
	race_on(&race, 2 * PACE_LOOKS, none);
	assert_int_equal(n_slow(&race), 0);
}

static void a_second_of_nothing_is_forgiven(void **state)
{
	const uint64_t steps[NODES] = { 40 * MB, 40 * MB, 40 * MB, 40 * MB },
		       stall[NODES] = { 40 * MB, 0, 40 * MB, 40 * MB };
	struct race race;

	race_begin(&race, 1000 * MB);
	race_on(&race, PACE_LOOKS, steps);
	for (int i = 0; i < 2; i++) {
		race_on(&race, 1, stall);
		assert_int_equal(n_slow(&race), 0);
	}
	for (int i = 0; i < PACE_LOOKS; i++) {
		race_on(&race, 1, steps);
		assert_int_equal(n_slow(&race), 0);
	}
}

/* Its share of the plan, and so its rate, is a tenth: it is right on time. */
static void planned_rates_count(void **state)
{
	const uint64_t steps[NODES] = { 40 * MB, 40 * MB, 4 * MB, 40 * MB };
	struct race race;

	race_begin(&race, 1000 * MB);
	race.nodes[2].rate = RATE / 10;
	race_on(&race, 2 * PACE_LOOKS, steps);
	assert_int_equal(n_slow(&race), 0);
	race.nodes[2].rate = 0; /* nothing was planned for it */
	race_on(&race, 2 * PACE_LOOKS, steps);
	assert_int_equal(n_slow(&race), 0);
}

/* Faster than planned is no duty. */
static void a_node_at_its_planned_rate_is_not_slow(void **state)
{
	const uint64_t steps[NODES] = { 4000 * MB, 4000 * MB, 450 * MB, 4000 * MB };
	struct race race;

	race_begin(&race, 1000000 * MB);
	race_on(&race, 2 * PACE_LOOKS, steps);
	assert_int_equal(n_slow(&race), 0);
}

static void it_is_compared_with_those_who_have_ended(void **state)
{
	const uint64_t steps[NODES] = { 0, 0, 2 * MB, 0 };
	struct race race;

	race_begin(&race, 100 * MB);
	for (size_t i = 0; i < NODES; i++)
		race.nodes[i].took_ns = i == 2 ? 0 : NS_PER_S;
	race_on(&race, PACE_LOOKS, steps);
	assert_int_equal(n_slow(&race), 1);
	assert_true(pace_is_hopeless(&race.pace, 2));
}

static void alone_nobody_is_slow(void **state)
{
	const uint64_t steps[NODES] = { MB, 0, 0, 0 };
	struct race race;

	race_begin(&race, 100 * MB);
	race.pace.n = 1;
	race_on(&race, 2 * PACE_LOOKS, steps);
	assert_false(pace_is_slow(&race.pace, 0));
}

/* All bytes are with the store, and it does not say that they are durable: the time counts. */
static void a_sync_that_does_not_end_is_slow(void **state)
{
	const uint64_t first[NODES] = { 10 * MB, 10 * MB, 10 * MB, 10 * MB }, none[NODES] = { 0 };
	struct race race;

	race_begin(&race, 10 * MB);
	race_on(&race, 1, first);
	for (size_t i = 1; i < NODES; i++)
		race.nodes[i].took_ns = NS_PER_S;
	race_on(&race, PACE_LOOKS, none); /* 2.5 s */
	assert_int_equal(n_slow(&race), 0);
	race_on(&race, PACE_LOOKS, none); /* 4.5 s */
	assert_int_equal(n_slow(&race), 1);
	assert_true(pace_is_hopeless(&race.pace, 0));
}

static void what_is_nearly_done_is_waited_for(void **state)
{
	const uint64_t steps[NODES] = { 40 * MB, 40 * MB, 40 * MB, 40 * MB },
		       late[NODES] = { 40 * MB, 40 * MB, 5 * MB, 40 * MB };
	struct race race;

	race_begin(&race, 1000 * MB);
	race_on(&race, 20, steps);
	race_on(&race, PACE_LOOKS, late);
	assert_true(
		pace_is_slow(&race.pace, 2)); /* 820 MB are done, and the rest takes 9 s more, as all does elsewhere */
	assert_true(pace_is_hopeless(&race.pace, 2));
	race_begin(&race, 1000 * MB);
	race_on(&race, 23, steps);
	race_on(&race, PACE_LOOKS, late);
	assert_true(pace_is_slow(&race.pace, 2));
	assert_false(pace_is_hopeless(&race.pace, 2)); /* 60 MB are left */
}

static void half_of_the_nodes_may_be_slow(void **state)
{
	const uint64_t steps[NODES] = { 40 * MB, 2 * MB, 2 * MB, 40 * MB };
	struct race race;

	race_begin(&race, 1000 * MB);
	race_on(&race, PACE_LOOKS, steps);
	assert_int_equal(n_slow(&race), 2);
}

static void what_a_node_says_never_falls(void **state)
{
	const uint64_t steps[NODES] = { 40 * MB, 40 * MB, 40 * MB, 40 * MB };
	struct race race;

	race_begin(&race, 1000 * MB);
	race_on(&race, PACE_LOOKS, steps);
	race.done[1] = 0; /* it has not answered */
	race_on(&race, 1, (const uint64_t[NODES]){ 40 * MB, 0, 40 * MB, 40 * MB });
	assert_int_equal(n_slow(&race), 0);
}

/* It had ended, waited, and is given what others did not write: neither its rest nor its first second is held against it. */
static void who_is_given_more_begins_anew(void **state)
{
	const uint64_t steps[NODES] = { 40 * MB, 40 * MB, 40 * MB, 40 * MB },
		       others[NODES] = { 40 * MB, 0, 40 * MB, 40 * MB };
	struct race race;

	race_begin(&race, 1000 * MB);
	race.nodes[1].bytes = 40 * MB;
	race_on(&race, 1, steps);
	race.nodes[1].took_ns = LOOK_NS;
	race_on(&race, 10, others);
	pace_begin(&race.pace, 1, race.pace.begun_ns + 11 * LOOK_NS + LOOK_NS / 2);
	race.nodes[1].bytes = 200 * MB;
	race.done[1] = 0;
	race_on(&race, PACE_LOOKS - 1, others);
	assert_int_equal(n_slow(&race), 0);
	assert_true(race.nodes[1].pace > 0);
	race_on(&race, 1, others); /* but two of nothing are */
	assert_int_equal(n_slow(&race), 1);
	assert_true(pace_is_slow(&race.pace, 1) && pace_is_hopeless(&race.pace, 1));
	race_on(&race, 4, steps);
	assert_int_equal(n_slow(&race), 0);
}

/* Others were being asked when it was given more: that look knows of what it had before alone. */
static void a_look_under_way_says_nothing_of_who_begins_anew(void **state)
{
	const uint64_t steps[NODES] = { 5 * MB, 5 * MB, 5 * MB, 5 * MB }, others[NODES] = { 5 * MB, 0, 5 * MB, 5 * MB };
	struct race race;

	race_begin(&race, 1000 * MB);
	race.nodes[1].bytes = 40 * MB;
	race_on(&race, 8, steps);
	race.nodes[1].took_ns = 8 * LOOK_NS;
	race_on(&race, 1, others);
	pace_begin(&race.pace, 1, race.pace.begun_ns + 10 * LOOK_NS);
	race_on(&race, 1, others); /* with the 40 MB that it had done */
	race.nodes[1].bytes = 200 * MB;
	race.done[1] = 0;
	for (int i = 0; i < 3 * PACE_LOOKS; i++) {
		race_on(&race, 1, steps);
		assert_int_equal(n_slow(&race), 0);
	}
}

/* Half of what it had to write is taken from it. */
static void who_is_relieved_has_less_to_write(void **state)
{
	const uint64_t steps[NODES] = { 40 * MB, 40 * MB, 40 * MB, 40 * MB };
	struct race race;

	race_begin(&race, 1000 * MB);
	race_on(&race, 5, steps);
	race.nodes[1].bytes = 100 * MB;
	race.done[1] = 100 * MB;
	race_on(&race, 1, (const uint64_t[NODES]){ 40 * MB, 0, 40 * MB, 40 * MB });
	assert_int_equal(n_slow(&race), 0);
	assert_false(pace_is_hopeless(&race.pace, 1));
}

/* Before it is known what it comes to nobody is compared with it. */
static void who_comes_later_is_no_measure_at_first(void **state)
{
	const uint64_t steps[NODES] = { 3 * MB, 3 * MB, 40 * MB, 0 };
	struct race race;

	race_begin(&race, 1000 * MB);
	race.nodes[0].rate = race.nodes[1].rate =
		RATE / 13; /* on time, as is the third; the fourth begins two seconds later */
	race.nodes[3].bytes = 0;
	race_on(&race, PACE_LOOKS, steps);
	assert_int_equal(n_slow(&race), 0);
	pace_begin(&race.pace, 3, race.pace.begun_ns + PACE_LOOKS * LOOK_NS);
	race.nodes[3].bytes = 1000 * MB;
	race_on(&race, 1, steps);
	assert_int_equal(race.pace.n_sorted, 3);
	race_on(&race, PACE_LOOKS - 1, steps);
	assert_int_equal(race.pace.n_sorted, 4);
	assert_true(pace_is_slow(&race.pace, 3));
}

/* What each has done is over, as when nodes have sent copies. */
static void of_those_that_have_ended_who_took_far_longer_was_slow(void **state)
{
	struct race race;

	race_begin(&race, 100 * MB);
	for (size_t i = 0; i < NODES; i++)
		race.nodes[i].took_ns = i == 1 ? 9 * NS_PER_S : 2 * NS_PER_S;
	race_on(&race, 1, (const uint64_t[NODES]){ 0 });
	for (size_t i = 0; i < NODES; i++)
		assert_int_equal(pace_was_slow(&race.pace, i), i == 1);
	race_begin(&race, 100 * MB);
	for (size_t i = 0; i < NODES; i++) /* as far behind, and nobody has waited for it */
		race.nodes[i].took_ns = i == 1 ? NS_PER_S : NS_PER_S / 10;
	race_on(&race, 1, (const uint64_t[NODES]){ 0 });
	assert_false(pace_was_slow(&race.pace, 1));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_node_at_a_twentieth_is_slow_after_two_seconds),
		cmocka_unit_test(a_node_at_a_third_is_not_slow),
		cmocka_unit_test(a_store_that_is_slow_for_all_makes_no_node_slow),
		cmocka_unit_test(a_second_of_nothing_is_forgiven),
		cmocka_unit_test(planned_rates_count),
		cmocka_unit_test(a_node_at_its_planned_rate_is_not_slow),
		cmocka_unit_test(it_is_compared_with_those_who_have_ended),
		cmocka_unit_test(alone_nobody_is_slow),
		cmocka_unit_test(a_sync_that_does_not_end_is_slow),
		cmocka_unit_test(what_is_nearly_done_is_waited_for),
		cmocka_unit_test(half_of_the_nodes_may_be_slow),
		cmocka_unit_test(what_a_node_says_never_falls),
		cmocka_unit_test(who_is_given_more_begins_anew),
		cmocka_unit_test(a_look_under_way_says_nothing_of_who_begins_anew),
		cmocka_unit_test(who_is_relieved_has_less_to_write),
		cmocka_unit_test(of_those_that_have_ended_who_took_far_longer_was_slow),
		cmocka_unit_test(who_comes_later_is_no_measure_at_first),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
