#include "env/loop.h"

#include <errno.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/counter.h"
#include "env/fiber.h"
#include "env/loop_state.h"

#define LOOP_TASKS_PER_TURN 1024 /* then timers and the outside world get their turn, however busy the tasks are */
#define TIMERS_FIRST	    64	 /* room in the heap at the start */

/* ---- the timers' heap ---- */

static bool timer_before(const struct timer *a, const struct timer *b)
{
	return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

static void heap_put(struct loop *loop, uint32_t at, struct timer *timer)
{
	loop->timers[at] = timer;
	timer->slot = at + 1;
}

static void heap_rise(struct loop *loop, uint32_t at, struct timer *timer)
{
	while (at > 0) {
		uint32_t parent = (at - 1) / 2;

		if (!timer_before(timer, loop->timers[parent]))
			break;
		heap_put(loop, at, loop->timers[parent]);
		at = parent;
	}
	heap_put(loop, at, timer);
}

static void heap_sink(struct loop *loop, uint32_t at, struct timer *timer)
{
	for (;;) {
		uint32_t child = 2 * at + 1;

		if (child >= loop->n_timers)
			break;
		if (child + 1 < loop->n_timers && timer_before(loop->timers[child + 1], loop->timers[child]))
			child++;
		if (!timer_before(loop->timers[child], timer))
			break;
		heap_put(loop, at, loop->timers[child]);
		at = child;
	}
	heap_put(loop, at, timer);
}

/* Room for one timer more, besides those set aside for fibers (armed ones among them count twice, on the safe side). */
static int heap_grow(struct loop *loop)
{
	uint64_t need = (uint64_t)loop->n_timers + loop->reserved_timers + 1;

	if (need <= loop->cap_timers)
		return 0;

	uint64_t cap = need < TIMERS_FIRST ? TIMERS_FIRST : 2 * need;
	if (cap >= UINT32_MAX)
		return -ENOMEM;
	struct timer **timers = realloc(loop->timers, cap * sizeof(*timers));
	if (!timers)
		return -ENOMEM;
	loop->timers = timers;
	loop->cap_timers = (uint32_t)cap;
	return 0;
}

int loop_reserve_timer(struct loop *loop)
{
	int r = heap_grow(loop);

	if (r)
		return r;
	loop->reserved_timers++;
	return 0;
}

void loop_release_timer(struct loop *loop)
{
	CHECK(loop->reserved_timers > 0);
	loop->reserved_timers--;
}

void timer_arm_reserved(struct loop *loop, struct timer *timer, uint64_t at_ns)
{
	timer_disarm(loop, timer);
	CHECK(loop->n_timers < loop->cap_timers);
	timer->at_ns = at_ns;
	timer->order = loop->timer_order++;
	heap_rise(loop, loop->n_timers++, timer);
}

int timer_arm(struct loop *loop, struct timer *timer, uint64_t at_ns)
{
	timer_disarm(loop, timer);
	int r = heap_grow(loop);
	if (r)
		return r;
	timer_arm_reserved(loop, timer, at_ns);
	return 0;
}

void timer_disarm(struct loop *loop, struct timer *timer)
{
	if (!timer->slot)
		return;

	uint32_t at = timer->slot - 1;
	CHECK(at < loop->n_timers && loop->timers[at] == timer);
	timer->slot = 0;

	struct timer *last = loop->timers[--loop->n_timers];
	if (last == timer)
		return;
	if (at > 0 && timer_before(last, loop->timers[(at - 1) / 2]))
		heap_rise(loop, at, last);
	else
		heap_sink(loop, at, last);
}

/*
 * Fires what is due. A timer that is armed meanwhile waits for the next turn even if its time is past, so that a timer
 * which arms itself again cannot hold the loop.
 */
static void run_timers(struct loop *loop)
{
	if (!loop->n_timers)
		return;

	uint64_t now_ns = loop_now(loop), first_new = loop->timer_order;
	while (loop->n_timers) {
		struct timer *timer = loop->timers[0];

		if (timer->at_ns > now_ns || timer->order >= first_new)
			break;
		timer_disarm(loop, timer);
		timer->fn(timer);
	}
}

/* ---- tasks ---- */

/*
 * `posted` is exchanged, not tested, because any thread may post. Whoever finds it set knows that the task has not begun
 * to run, and that it will see what was written before the post.
 */
static bool task_claim(struct task *task)
{
	return !__atomic_exchange_n(&task->posted, true, __ATOMIC_ACQ_REL);
}

static void task_unclaim(struct task *task)
{
	(void)__atomic_exchange_n(&task->posted, false, __ATOMIC_ACQ_REL);
}

void loop_post(struct loop *loop, struct task *task)
{
	CHECK_MAGIC(loop, LOOP_MAGIC);
	if (!task_claim(task))
		return;
	list_append(&loop->ready, &task->link);
}

void loop_post_remote(struct loop *loop, struct task *task)
{
	CHECK_MAGIC(loop, LOOP_MAGIC);
	if (!task_claim(task))
		return;

	pthread_mutex_lock(&loop->remote_lock);
	bool first = list_empty(&loop->remote);
	list_append(&loop->remote, &task->link);
	__atomic_store_n(&loop->remote_pending, true, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&loop->remote_lock);

	/* Whoever found the list empty wakes the loop, for all who post until the loop takes the list. */
	if (first)
		loop->clockwork.wake(loop->clockwork.arg);
}

void task_cancel(struct task *task)
{
	if (!__atomic_load_n(&task->posted, __ATOMIC_ACQUIRE))
		return;
	list_remove(&task->link);
	task_unclaim(task);
}

static void take_remote(struct loop *loop)
{
	if (!__atomic_load_n(&loop->remote_pending, __ATOMIC_ACQUIRE))
		return;

	pthread_mutex_lock(&loop->remote_lock);
	list_each(node, &loop->remote) {
		list_remove(node);
		list_append(&loop->ready, node);
	}
	__atomic_store_n(&loop->remote_pending, false, __ATOMIC_RELEASE);
	pthread_mutex_unlock(&loop->remote_lock);
}

static void run_tasks(struct loop *loop)
{
	for (int i = 0; i < LOOP_TASKS_PER_TURN; i++) {
		struct list *node = list_pop(&loop->ready);

		if (!node)
			break;
		struct task *task = list_entry(node, struct task, link);
		task_unclaim(task); /* before it runs: it may post itself again, or be freed */
		task->fn(task);
	}
}

bool loop_is_busy(const struct loop *loop)
{
	CHECK_MAGIC(loop, LOOP_MAGIC);
	return !list_empty(&loop->ready);
}

/* ---- the loop ---- */

struct loop *loop_new(const struct clockwork *clockwork)
{
	struct loop *loop = calloc(1, sizeof(*loop));

	if (!loop)
		return NULL;
	loop->magic = LOOP_MAGIC;
	loop->clockwork = *clockwork;
	list_init(&loop->ready);
	list_init(&loop->remote);
	pthread_mutex_init(&loop->remote_lock, NULL);
	fiber_pool_init(&loop->fibers);
	return loop;
}

void loop_free(struct loop *loop)
{
	if (!loop)
		return;
	CHECK_MAGIC(loop, LOOP_MAGIC);
	fiber_pool_fini(&loop->fibers);
	pthread_mutex_destroy(&loop->remote_lock);
	free(loop->timers);
	loop->magic = 0;
	free(loop);
}

uint64_t loop_now(struct loop *loop)
{
	return loop->clockwork.now(loop->clockwork.arg);
}

static uint64_t sleep_until(const struct loop *loop)
{
	if (!list_empty(&loop->ready) || __atomic_load_n(&loop->remote_pending, __ATOMIC_ACQUIRE))
		return 0;
	return loop->n_timers ? loop->timers[0]->at_ns : FOREVER;
}

int loop_turn(struct loop *loop)
{
	CHECK_MAGIC(loop, LOOP_MAGIC);
	CHECK(!fiber_running());

	uint64_t begun_ns = loop_now(loop);
	take_remote(loop);
	run_tasks(loop);
	run_timers(loop);
	count_time(TIME_LOOP_TURN, loop_now(loop) - begun_ns);
	if (loop->stopped)
		return 0;
	return loop->clockwork.poll(loop->clockwork.arg, sleep_until(loop));
}

int loop_run(struct loop *loop)
{
	int r = 0;

	while (!loop->stopped && !r)
		r = loop_turn(loop);
	loop->stopped = false; /* it may run again */
	return r;
}

void loop_stop(struct loop *loop)
{
	CHECK_MAGIC(loop, LOOP_MAGIC);
	loop->stopped = true;
}
