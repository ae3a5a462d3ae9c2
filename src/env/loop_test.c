#include "env/loop.h"

#include <setjmp.h>
#include <stddef.h>
#include <stdarg.h>
#include <cmocka.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#include "base/check.h"

#define LOG_MAX 4096

/* A world in which time passes only when the loop sleeps; with nothing to wait for, the loop ends with -EDEADLK. */
struct clock {
	uint64_t now_ns;
	atomic_int wakes;
	unsigned polls;
	uint64_t last_until_ns;
};

static uint64_t clock_now(void *arg)
{
	return ((struct clock *)arg)->now_ns;
}

static int clock_poll(void *arg, uint64_t until_ns)
{
	struct clock *clock = arg;

	clock->polls++;
	clock->last_until_ns = until_ns;
	if (until_ns == FOREVER)
		return clock->wakes ? 0 : -EDEADLK;
	if (until_ns > clock->now_ns)
		clock->now_ns = until_ns;
	return 0;
}

static void clock_wake(void *arg)
{
	((struct clock *)arg)->wakes++;
}

static struct loop *loop_of(struct clock *clock)
{
	struct clockwork clockwork = { .now = clock_now, .poll = clock_poll, .wake = clock_wake, .arg = clock };
	struct loop *loop = loop_new(&clockwork);

	assert_non_null(loop);
	return loop;
}

static int order[LOG_MAX], n_order;

struct note {
	struct task task;
	struct timer timer;
	struct loop *loop;
	int id;
	int again; /* how many times it posts or arms itself anew */
};

static void note_task(struct task *task)
{
	struct note *note = container_of(task, struct note, task);

	order[n_order++] = note->id;
	if (note->again-- > 0)
		loop_post(note->loop, &note->task);
}

static void note_timer(struct timer *timer)
{
	struct note *note = container_of(timer, struct note, timer);

	order[n_order++] = note->id;
	if (note->again-- > 0)
		assert_int_equal(timer_arm(note->loop, timer, 0), 0);
}

static void notes_init(struct loop *loop, struct note *notes, int n)
{
	n_order = 0;
	for (int i = 0; i < n; i++)
		notes[i] = (struct note){ .task.fn = note_task, .timer.fn = note_timer, .loop = loop, .id = i };
}

static void assert_order(int n, const int *ids)
{
	assert_int_equal(n_order, n);
	for (int i = 0; i < n; i++)
		assert_int_equal(order[i], ids[i]);
}

static void tasks_run_in_the_order_in_which_they_were_posted(void **state)
{
	struct clock clock = { 0 };
	struct loop *loop = loop_of(&clock);
	struct note notes[3];

	notes_init(loop, notes, 3);
	loop_post(loop, &notes[2].task);
	loop_post(loop, &notes[0].task);
	loop_post(loop, &notes[1].task);
	assert_int_equal(n_order, 0); /* later, never from within the call */
	assert_int_equal(loop_run(loop), -EDEADLK);
	assert_order(3, (int[]){ 2, 0, 1 });
	loop_free(loop);
}

static void a_posted_task_is_not_posted_twice(void **state)
{
	struct clock clock = { 0 };
	struct loop *loop = loop_of(&clock);
	struct note notes[2];

	notes_init(loop, notes, 2);
	loop_post(loop, &notes[0].task);
	loop_post(loop, &notes[1].task);
	loop_post(loop, &notes[0].task);
	assert_int_equal(loop_run(loop), -EDEADLK);
	assert_order(2, (int[]){ 0, 1 });
	loop_free(loop);
}

static void a_cancelled_task_does_not_run_and_may_be_posted_again(void **state)
{
	struct clock clock = { 0 };
	struct loop *loop = loop_of(&clock);
	struct note notes[2];

	notes_init(loop, notes, 2);
	task_cancel(&notes[0].task); /* never posted: nothing happens */
	loop_post(loop, &notes[0].task);
	loop_post(loop, &notes[1].task);
	task_cancel(&notes[0].task);
	loop_post(loop, &notes[0].task);
	assert_int_equal(loop_run(loop), -EDEADLK);
	assert_order(2, (int[]){ 1, 0 });
	loop_free(loop);
}

static void busy_tasks_do_not_keep_timers_from_firing(void **state)
{
	struct clock clock = { .now_ns = 5 };
	struct loop *loop = loop_of(&clock);
	struct note notes[2];

	notes_init(loop, notes, 2);
	notes[0].again = 2000;
	loop_post(loop, &notes[0].task);
	assert_int_equal(timer_arm(loop, &notes[1].timer, 1), 0);
	assert_int_equal(loop_run(loop), -EDEADLK);
	assert_int_equal(n_order, 2002);
	assert_int_equal(order[2001], 0);
	loop_free(loop);
}

static void timers_fire_by_time_and_then_by_order_of_arming(void **state)
{
	struct clock clock = { 0 };
	struct loop *loop = loop_of(&clock);
	struct note notes[5];

	notes_init(loop, notes, 5);
	assert_int_equal(timer_arm(loop, &notes[0].timer, 30), 0);
	assert_int_equal(timer_arm(loop, &notes[1].timer, 10), 0);
	assert_int_equal(timer_arm(loop, &notes[2].timer, 20), 0);
	assert_int_equal(timer_arm(loop, &notes[3].timer, 10), 0);
	assert_int_equal(timer_arm(loop, &notes[4].timer, 20), 0);
	assert_int_equal(timer_arm(loop, &notes[1].timer, 10), 0); /* armed anew: behind 3 */
	timer_disarm(loop, &notes[4].timer);
	timer_disarm(loop, &notes[4].timer);
	assert_int_equal(loop_run(loop), -EDEADLK);
	assert_order(4, (int[]){ 3, 1, 2, 0 });
	assert_int_equal(clock.now_ns, 30);
	loop_free(loop);
}

static void a_timer_that_rearms_itself_in_the_past_fires_once_a_turn(void **state)
{
	struct clock clock = { .now_ns = 5 };
	struct loop *loop = loop_of(&clock);
	struct note notes[1];

	notes_init(loop, notes, 1);
	notes[0].again = 3;
	assert_int_equal(timer_arm(loop, &notes[0].timer, 0), 0);
	assert_int_equal(loop_turn(loop), 0);
	assert_int_equal(n_order, 1);
	assert_int_equal(loop_turn(loop), 0);
	assert_int_equal(n_order, 2);
	assert_int_equal(loop_run(loop), -EDEADLK);
	assert_int_equal(n_order, 4);
	loop_free(loop);
}

static void many_timers_armed_and_disarmed_at_random_fire_in_order(void **state)
{
	enum { N = 1000 };
	struct clock clock = { 0 };
	struct loop *loop = loop_of(&clock);
	static struct note notes[N];
	uint64_t x = 88172645463325252;
	int armed = 0;

	notes_init(loop, notes, N);
	for (int i = 0; i < 3 * N; i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		struct timer *timer = &notes[x % N].timer;

		if ((x >> 32) % 4 == 0)
			timer_disarm(loop, timer);
		else
			assert_int_equal(timer_arm(loop, timer, (x >> 34) % 100), 0);
	}
	for (int i = 0; i < N; i++)
		armed += notes[i].timer.slot != 0;
	assert_int_equal(loop_run(loop), -EDEADLK);
	assert_int_equal(n_order, armed);
	for (int i = 1; i < n_order; i++) {
		const struct timer *a = &notes[order[i - 1]].timer, *b = &notes[order[i]].timer;
		assert_true(a->at_ns < b->at_ns || (a->at_ns == b->at_ns && a->order < b->order));
	}
	loop_free(loop);
}

static void the_loop_sleeps_until_the_earliest_timer_or_not_at_all(void **state)
{
	struct clock clock = { 0 };
	struct loop *loop = loop_of(&clock);
	struct note notes[2];

	notes_init(loop, notes, 2);
	assert_int_equal(timer_arm(loop, &notes[0].timer, 77), 0);
	assert_int_equal(loop_turn(loop), 0);
	assert_int_equal(clock.last_until_ns, 77);
	clock.now_ns = 80;
	notes[0].again = 1; /* due again at once */
	assert_int_equal(loop_turn(loop), 0);
	assert_int_equal(clock.last_until_ns, 0);
	assert_int_equal(loop_turn(loop), -EDEADLK);
	assert_true(clock.last_until_ns == FOREVER);
	loop_free(loop);
}

static void stop_task(struct task *task)
{
	struct note *note = container_of(task, struct note, task);

	loop_stop(note->loop);
}

static void a_stopped_loop_does_not_poll_and_can_run_again(void **state)
{
	struct clock clock = { 0 };
	struct loop *loop = loop_of(&clock);
	struct note notes[1];

	notes_init(loop, notes, 1);
	notes[0].task.fn = stop_task;
	for (int i = 0; i < 2; i++) {
		loop_post(loop, &notes[0].task);
		assert_int_equal(loop_run(loop), 0);
		assert_int_equal(clock.polls, 0);
	}
	loop_free(loop);
}

static atomic_int n_remote_runs;

static void remote_task(struct task *task)
{
	n_remote_runs++;
}

#define REMOTE_TASKS 500

struct poster {
	struct loop *loop;
	struct task tasks[REMOTE_TASKS];
};

static void *poster_run(void *arg)
{
	struct poster *poster = arg;

	for (int i = 0; i < REMOTE_TASKS; i++) {
		poster->tasks[i].fn = remote_task;
		loop_post_remote(poster->loop, &poster->tasks[i]);
	}
	return NULL;
}

static void tasks_from_other_threads_each_run_once(void **state)
{
	static struct poster posters[2];
	struct clock clock = { .wakes = 1 }; /* polls return at once while threads may still post */
	struct loop *loop = loop_of(&clock);
	pthread_t threads[2];

	n_remote_runs = 0;
	for (int i = 0; i < 2; i++) {
		posters[i].loop = loop;
		assert_int_equal(pthread_create(&threads[i], NULL, poster_run, &posters[i]), 0);
	}
	while (n_remote_runs < 2 * REMOTE_TASKS)
		assert_int_equal(loop_turn(loop), 0);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(n_remote_runs, 2 * REMOTE_TASKS);
	loop_free(loop);
}

static void many_remote_posts_before_a_turn_cost_one_wake(void **state)
{
	static struct poster poster;
	struct clock clock = { 0 };
	struct loop *loop = loop_of(&clock);

	n_remote_runs = 0;
	poster.loop = loop;
	poster_run(&poster);
	assert_int_equal(clock.wakes, 1);
	assert_int_equal(loop_turn(loop), 0);
	assert_int_equal(n_remote_runs, REMOTE_TASKS);
	loop_free(loop);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tasks_run_in_the_order_in_which_they_were_posted),
		cmocka_unit_test(a_posted_task_is_not_posted_twice),
		cmocka_unit_test(a_cancelled_task_does_not_run_and_may_be_posted_again),
		cmocka_unit_test(busy_tasks_do_not_keep_timers_from_firing),
		cmocka_unit_test(timers_fire_by_time_and_then_by_order_of_arming),
		cmocka_unit_test(a_timer_that_rearms_itself_in_the_past_fires_once_a_turn),
		cmocka_unit_test(many_timers_armed_and_disarmed_at_random_fire_in_order),
		cmocka_unit_test(the_loop_sleeps_until_the_earliest_timer_or_not_at_all),
		cmocka_unit_test(a_stopped_loop_does_not_poll_and_can_run_again),
		cmocka_unit_test(tasks_from_other_threads_each_run_once),
		cmocka_unit_test(many_remote_posts_before_a_turn_cost_one_wake),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
