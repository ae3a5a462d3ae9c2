#include "group/turn.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

enum { A = 1, B, C };

static void the_first_has_the_turn_and_others_wait(void **state)
{
	struct turns turns;
	struct turn a, b;

	turns_init(&turns);
	turn_init(&a, A);
	turn_init(&b, B);
	assert_true(turn_take(&turns, &a));
	assert_true(turn_take(&turns, &a));
	assert_false(turn_take(&turns, &b));
	assert_false(turn_take(&turns, &b));
	assert_ptr_equal(turn_leave(&turns, &a), &b);
	assert_true(turn_take(&turns, &b));
	assert_null(turn_leave(&turns, &b));
	assert_null(turn_leave(&turns, &b));
}

static void who_stops_waiting_gives_nobody_the_turn(void **state)
{
	struct turns turns;
	struct turn a, b, c;

	turns_init(&turns);
	turn_init(&a, A);
	turn_init(&b, B);
	turn_init(&c, C);
	assert_true(turn_take(&turns, &a));
	assert_false(turn_take(&turns, &b));
	assert_false(turn_take(&turns, &c));
	assert_null(turn_leave(&turns, &b));
	assert_ptr_equal(turn_leave(&turns, &a), &c);
}

static void groups_take_turns_however_many_saves_one_has(void **state)
{
	struct turns turns;
	struct turn a[4], b[2];
	struct turn *order[] = { &a[0], &a[1], &b[0], &a[2], &b[1], &a[3] };

	turns_init(&turns);
	for (int i = 0; i < 4; i++) {
		turn_init(&a[i], A);
		assert_int_equal(turn_take(&turns, &a[i]), i == 0);
	}
	for (int i = 0; i < 2; i++) {
		turn_init(&b[i], B);
		assert_false(turn_take(&turns, &b[i]));
	}
	for (int i = 0; i < 5; i++)
		assert_ptr_equal(turn_leave(&turns, order[i]), order[i + 1]);
	assert_null(turn_leave(&turns, order[5]));
}

/* ---- property: whoever waits behind k of its own group waits for at most (k + 1) turns of each other group, and one more ---- */

#define GROUPS 5
#define LIVE   60

static uint64_t draw(uint64_t *x)
{
	*x ^= *x << 13, *x ^= *x >> 7, *x ^= *x << 17;
	return *x;
}

struct live {
	struct turn turn;
	bool used;
	unsigned ahead, served[GROUPS]; /* of its own group when it came; turns that others got since then */
};

static void note_turn(struct live *live, const struct turn *next)
{
	const struct live *winner = container_of(next, struct live, turn);

	assert_int_equal(winner->served[next->owner], winner->ahead); /* first come first served within a group */
	for (unsigned g = 0; g < GROUPS; g++)
		assert_true(g == next->owner || winner->served[g] <= winner->ahead + 2);
	for (unsigned i = 0; i < LIVE; i++)
		live[i].served[next->owner] += live[i].used;
}

static void nobody_starves_at_random(void **state)
{
	uint64_t x = 88172645463325252;
	struct live live[LIVE] = { 0 };
	struct turns turns;

	turns_init(&turns);
	for (int round = 0; round < 100000; round++) {
		struct live *l = &live[draw(&x) % LIVE];
		uint64_t owner = draw(&x) % 3 ? 0 : draw(&x) % GROUPS; /* the first saves all the time */

		if (!l->used) {
			unsigned ahead = 0;

			for (unsigned i = 0; i < LIVE; i++)
				ahead += live[i].used && live[i].turn.owner == owner && turns.now != &live[i].turn;
			*l = (struct live){ .used = true, .ahead = ahead };
			turn_init(&l->turn, owner);
			(void)turn_take(&turns, &l->turn);
			continue;
		}
		if (turns.now == &l->turn || draw(&x) % 4 == 0) {
			l = container_of(turns.now, struct live, turn);
			l->used = false;
			struct turn *next = turn_leave(&turns, &l->turn);
			if (next)
				note_turn(live, next);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_first_has_the_turn_and_others_wait),
		cmocka_unit_test(who_stops_waiting_gives_nobody_the_turn),
		cmocka_unit_test(groups_take_turns_however_many_saves_one_has),
		cmocka_unit_test(nobody_starves_at_random),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
