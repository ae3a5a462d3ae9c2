/*
 * env/loop.h: the brain's clockwork: one thread runs tasks, timers and fibers, and all of a daemon's state belongs to it.
 *
 * The loop knows nothing of the operating system: it asks its `struct clockwork` what time it is and to sleep until
 * something may have happened. Real daemons sleep in epoll (env/real.c); the simulator advances virtual time instead, and
 * there one loop carries every node and client (sim/world.c).
 *
 * Times are nanoseconds of a monotonic clock (CLOCK_BOOTTIME or virtual); deadlines are absolute in that clock.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"

#define NS_PER_MS UINT64_C(1000000)
#define NS_PER_S  UINT64_C(1000000000)
#define FOREVER	  UINT64_MAX /* a deadline that never comes: main loops only */

struct loop;

struct clockwork {
	uint64_t (*now)(void *arg);
	/*
	 * Sleeps until @until_ns, or until something happened or loop_wake() was called, whichever comes first; delivers what
	 * happened by calling back into its owner (which posts tasks). Returns 0, or a negative errno that ends the loop.
	 */
	int (*poll)(void *arg, uint64_t until_ns);
	void (*wake)(void *arg); /* any thread: makes poll return soon */
	void *arg;
};

struct loop *loop_new(const struct clockwork *clockwork); /* NULL: no memory. @clockwork is copied */
void loop_free(struct loop *loop);			  /* accepts NULL; no fibers may be left */
uint64_t loop_now(struct loop *loop);
/* Runs until loop_stop(). 0, or poll's error. */
int loop_run(struct loop *loop);
void loop_stop(struct loop *loop);
/* One turn: everything that is ready, due timers, one poll. For drivers that own the outer loop (simulator, tests). */
int loop_turn(struct loop *loop);

/* A thing to do later on the loop's thread. Zero it before first use; posting one that is posted already does nothing. */
struct task {
	struct list link;
	void (*fn)(struct task *task);
	bool posted;
};
void loop_post(struct loop *loop, struct task *task);	     /* loop's thread */
void loop_post_remote(struct loop *loop, struct task *task); /* any thread */
void task_cancel(struct task *task);			     /* loop's thread, tasks of loop_post() only */
bool loop_is_busy(const struct loop *loop);		     /* loop's thread: tasks are ready */

/* A thing to do at a time. Zero it before first use. Equal times fire in the order in which they were armed. */
struct timer {
	uint64_t at_ns, order;
	void (*fn)(struct timer *timer);
	uint32_t slot; /* 1 + place in the heap; 0: not armed */
};
int timer_arm(struct loop *loop, struct timer *timer, uint64_t at_ns); /* re-arms; 0 or -ENOMEM */
void timer_disarm(struct loop *loop, struct timer *timer);

/*
 * The completion of an asynchronous operation: called exactly once, later (never from within the call that started it),
 * on the loop's thread, with 0, a positive outcome or a negative errno.
 */
struct done {
	void (*fn)(struct done *done, int result);
};
