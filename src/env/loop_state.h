/*
 * env/loop_state.h: what loop.c and fiber.c share and nobody else includes.
 *
 * Fibers are resumed by tasks, so tasks and fibers stand in one queue and run in the order in which they became ready.
 * Every fiber that is alive has room in the timer heap set aside for it: a wait never fails for lack of memory.
 */
#pragma once

#include <pthread.h>

#include "env/loop.h"

#define LOOP_MAGIC UINT32_C(0x706f6f6c)

struct fiber_pool {
	struct list spare; /* finished fibers whose stacks wait to be used again */
	unsigned n_spare, n_alive;
};

struct loop {
	uint32_t magic;
	struct clockwork clockwork;
	bool stopped;
	struct list ready; /* tasks, first come first served */

	struct timer **timers; /* a binary heap by (at_ns, order) */
	uint32_t n_timers, cap_timers;
	uint32_t reserved_timers; /* one for each fiber alive */
	uint64_t timer_order;

	pthread_mutex_t remote_lock;
	struct list remote;  /* posted by other threads, not yet seen by the loop */
	bool remote_pending; /* atomic: remote is not empty */

	struct fiber_pool fibers;
};

int loop_reserve_timer(struct loop *loop); /* 0 or -ENOMEM */
void loop_release_timer(struct loop *loop);
void timer_arm_reserved(struct loop *loop, struct timer *timer, uint64_t at_ns); /* a fiber's: cannot fail */

void fiber_pool_init(struct fiber_pool *pool);
void fiber_pool_fini(struct fiber_pool *pool); /* no fiber may be alive */
