/*
 * env/fiber.h: straight-line code that waits.
 *
 * A fiber belongs to a nursery, and a nursery's scope does not end before its fibers did. Every wait has a deadline.
 * Cancelling makes each wait of the fiber, now and from then on, return -ECANCELED, so that a flow unwinds through its own
 * scope cleanup. Only cleanup itself may use the *_shielded waits, which cancellation does not cut short.
 *
 * Stacks are 64 KiB with a guard page and are recycled. Method: makecontext once, then sigsetjmp/siglongjmp, as in QEMU's
 * block layer; sanitizers and valgrind are told of each switch.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "env/loop.h"

#define FIBER_STACK_BYTES 65536
#define FIBERS_MAX	  16384 /* alive in one loop */

struct fiber;

struct nursery {
	struct loop *loop;
	struct list fibers;
	unsigned n;
	int first_error; /* of the first fiber that returned a negative value other than -ECANCELED; 0: none */
	bool cancelled;
	struct list waiters; /* who waits for n to fall to 0 */
};

void nursery_init(struct nursery *nursery, struct loop *loop);
/* Starts @fn(@arg) as a fiber, which first runs on the loop's next turn. 0, -ENOMEM, -EAGAIN (FIBERS_MAX), -ECANCELED. */
int fiber_start(struct nursery *nursery, const char *name, int (*fn)(void *arg), void *arg);
void nursery_cancel(struct nursery *nursery);
/* Waits until every fiber has returned: 0 or first_error; -ETIMEDOUT, -ECANCELED: some still run. */
int nursery_wait(struct nursery *nursery, uint64_t deadline_ns);
/* Cancels and waits, shielded. Legal in a _cleanup_; accepts a zeroed nursery. Must run in a fiber if any child lives. */
void nursery_fini(struct nursery *nursery);
bool nursery_is_empty(const struct nursery *nursery);

unsigned fibers_alive(const struct loop *loop);
/* Makes fibers until @n wait to be started, the usual part of their stacks in memory. Without memory for all of them: fewer. */
void fibers_prepare(struct loop *loop, unsigned n);
bool fiber_running(void);      /* is the caller in a fiber */
const void *fiber_self(void);  /* which fiber runs, as long as it does; NULL outside */
const char *fiber_name(void);  /* of the running fiber; "loop" outside */
bool fiber_cancelled(void);    /* would a wait return -ECANCELED */
struct loop *fiber_loop(void); /* of the running fiber */

/* A place to wait at: a condition without state. Zero-initialised is NOT valid; waitplace_init() it. */
struct waitplace {
	struct list fibers;
};
void waitplace_init(struct waitplace *place);
/* Waits until woken: 0, -ETIMEDOUT, -ECANCELED. Wakes can be for somebody else: check your condition in a loop. */
int wait_at(struct waitplace *place, uint64_t deadline_ns);
int wait_at_shielded(struct waitplace *place, uint64_t deadline_ns); /* 0 or -ETIMEDOUT */
void wake_all(struct waitplace *place);
int fiber_sleep_until(uint64_t at_ns); /* 0 or -ECANCELED */

/*
 * Waits for one struct done. Usage:
 *	struct await a; await_init(&a); start(..., &a.done); r = await(&a, deadline);
 * On -ETIMEDOUT or -ECANCELED the operation is still under way: cancel it and call await_shielded(), or arrange that the
 * operation owns all that it touches and `a` outlives it.
 */
struct await {
	struct done done;
	struct waitplace place;
	bool finished;
	int result;
};
void await_init(struct await *a);
int await(struct await *a, uint64_t deadline_ns);
int await_shielded(struct await *a);
