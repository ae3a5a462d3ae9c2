/*
 * Switching: the first entry into a fresh stack goes through makecontext and setcontext, every later switch through
 * sigsetjmp and siglongjmp without the signal mask, which makes no system call. glibc's fortified longjmp takes a jump to
 * another stack for an attack and aborts, hence the #undef (and the build passes -U_FORTIFY_SOURCE for this file alone).
 *
 * A fiber that has returned parks inside its trampoline, so that its stack and its context are used again as they are.
 */
#undef _FORTIFY_SOURCE

#include "env/fiber.h"

#include <errno.h>
#include <setjmp.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include "base/check.h"
#include "env/loop_state.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif
#if __has_include(<valgrind/valgrind.h>)
#include <valgrind/valgrind.h>
#else
#define VALGRIND_STACK_REGISTER(from, to) 0
#define VALGRIND_STACK_DEREGISTER(id)	  (void)(id)
#endif

#define FIBER_MAGIC	 UINT32_C(0x72626966)
#define FIBERS_SPARE_MAX 256 /* finished fibers kept for use again: 16 MiB of stacks */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STACK_BYTES (4 * FIBER_STACK_BYTES) /* instrumented frames are several times as large */
#else
#define STACK_BYTES FIBER_STACK_BYTES
#endif
#define STACK_USUAL_BYTES (16 << 10) /* what most fibers come to use of it, sooner or later */

/* One side of a switch: a fiber, or the loop that entered it. */
struct context {
	sigjmp_buf env;
	const void *stack; /* lowest byte; for ASan */
	size_t stack_bytes;
	void *fake_stack; /* ASan's, while switched away */
	void *tsan;
};

struct fiber {
	uint32_t magic;
	struct list link; /* in its nursery, or in the pool of spare ones */
	struct nursery *nursery;
	struct loop *loop;
	const char *name;
	int (*fn)(void *arg);
	void *arg;
	int result;
	bool returned;
	struct task resume;

	bool waiting, shielded;
	struct list place; /* in the list that it waits at */
	struct timer timer;
	int wait_result;

	struct context self, caller;
	bool entered;	  /* the trampoline runs on the stack */
	ucontext_t start; /* used once, to get there */
	uint8_t *map;	  /* guard page, then the stack */
	unsigned valgrind_id;
};

static _Thread_local struct fiber *current;

/* ---- switching ---- */

/* Tells the sanitizers that the next jump leaves @from for @to. */
static inline void announce_switch(struct context *from, struct context *to)
{
#if defined(__SANITIZE_ADDRESS__)
	__sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->stack_bytes);
#endif
#if defined(__SANITIZE_THREAD__)
	__tsan_switch_to_fiber(to->tsan, 0);
#endif
}

/* The jump into @self is over; @from is where it came from. */
static inline void finish_switch(struct context *self, struct context *from)
{
#if defined(__SANITIZE_ADDRESS__)
	__sanitizer_finish_switch_fiber(self->fake_stack, &from->stack, &from->stack_bytes);
#endif
}

static size_t page_bytes(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

static void trampoline(void)
{
	struct fiber *fiber = current;

	finish_switch(&fiber->self, &fiber->caller);
	for (;;) {
		fiber->result = fiber->fn(fiber->arg);
		fiber->returned = true;
		if (!sigsetjmp(fiber->self.env, 0)) {
			announce_switch(&fiber->self, &fiber->caller);
			siglongjmp(fiber->caller.env, 1);
		}
		finish_switch(&fiber->self, &fiber->caller);
	}
}

/* The frame is left by siglongjmp from another stack, of which ASan knows nothing: it must hold no locals in memory. */
static _Noreturn void jump_to_trampoline(struct fiber *fiber)
{
	ucontext_t *start = &fiber->start;

	CHECK(getcontext(start) == 0);
	start->uc_stack.ss_sp = fiber->map + page_bytes();
	start->uc_stack.ss_size = STACK_BYTES;
	start->uc_link = NULL;
	makecontext(start, trampoline, 0);
	fiber->entered = true;
	announce_switch(&fiber->caller, &fiber->self);
	setcontext(start);
	check_failed(__FILE__, __LINE__, "setcontext");
}

/* From the loop into @fiber, until it waits or returns. */
static __attribute__((noinline)) void switch_in(struct fiber *fiber)
{
#if defined(__SANITIZE_THREAD__)
	fiber->caller.tsan = __tsan_get_current_fiber();
#endif
	if (!sigsetjmp(fiber->caller.env, 0)) {
		if (!fiber->entered)
			jump_to_trampoline(fiber);
		announce_switch(&fiber->caller, &fiber->self);
		siglongjmp(fiber->self.env, 1);
	}
	finish_switch(&fiber->caller, &fiber->self);
}

/* From @fiber back to the loop, until it is entered again. */
static __attribute__((noinline)) void switch_out(struct fiber *fiber)
{
	if (!sigsetjmp(fiber->self.env, 0)) {
		announce_switch(&fiber->self, &fiber->caller);
		siglongjmp(fiber->caller.env, 1);
	}
	finish_switch(&fiber->self, &fiber->caller);
}

/* ---- fibers and their stacks ---- */

static void fiber_free(struct fiber *fiber)
{
	CHECK_MAGIC(fiber, FIBER_MAGIC);
#if defined(__SANITIZE_THREAD__)
	__tsan_destroy_fiber(fiber->self.tsan);
#endif
	VALGRIND_STACK_DEREGISTER(fiber->valgrind_id);
	munmap(fiber->map, page_bytes() + STACK_BYTES);
	fiber->magic = 0;
	free(fiber);
}

/* Takes the part of the stack that will be used anyway: else a process grows for hours by a page now and then. */
static void stack_touch(uint8_t *map)
{
	for (size_t at = 0; at < STACK_USUAL_BYTES; at += page_bytes())
		*(volatile uint8_t *)(map + page_bytes() + STACK_BYTES - 1 - at) = 0;
}

static struct fiber *fiber_new(void)
{
	struct fiber *fiber = calloc(1, sizeof(*fiber));

	if (!fiber)
		return NULL;

	uint8_t *map = mmap(NULL, page_bytes() + STACK_BYTES, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
	if (map == MAP_FAILED) {
		free(fiber);
		return NULL;
	}
	if (mprotect(map, page_bytes(), PROT_NONE) < 0) { /* no room for one mapping more: vm.max_map_count */
		munmap(map, page_bytes() + STACK_BYTES);
		free(fiber);
		return NULL;
	}
	stack_touch(map);
	fiber->magic = FIBER_MAGIC;
	fiber->map = map;
	fiber->self.stack = map + page_bytes();
	fiber->self.stack_bytes = STACK_BYTES;
	fiber->valgrind_id = VALGRIND_STACK_REGISTER(map + page_bytes(), map + page_bytes() + STACK_BYTES);
#if defined(__SANITIZE_THREAD__)
	fiber->self.tsan = __tsan_create_fiber(0);
#endif
	list_init(&fiber->link);
	list_init(&fiber->place);
	return fiber;
}

void fiber_pool_init(struct fiber_pool *pool)
{
	list_init(&pool->spare);
}

void fiber_pool_fini(struct fiber_pool *pool)
{
	struct list *node;

	CHECK(pool->n_alive == 0);
	while ((node = list_pop(&pool->spare)))
		fiber_free(list_entry(node, struct fiber, link));
	pool->n_spare = 0;
}

static struct fiber *pool_take(struct fiber_pool *pool)
{
	struct list *node = list_pop(&pool->spare);

	if (!node)
		return fiber_new();
	pool->n_spare--;
	return list_entry(node, struct fiber, link);
}

/* The last one back is the first one out: its stack is warm. */
static void pool_give(struct fiber_pool *pool, struct fiber *fiber)
{
	if (pool->n_spare >= FIBERS_SPARE_MAX) {
		fiber_free(fiber);
		return;
	}
	list_insert(pool->spare.next, &fiber->link);
	pool->n_spare++;
}

void fibers_prepare(struct loop *loop, unsigned n)
{
	CHECK_MAGIC(loop, LOOP_MAGIC);
	CHECK(n <= FIBERS_SPARE_MAX);
	while (loop->fibers.n_spare < n) {
		struct fiber *fiber = fiber_new();

		if (!fiber)
			return;
		pool_give(&loop->fibers, fiber);
	}
}

static void wake_list(struct list *fibers);

/* @fiber has returned: its nursery learns the result. The nursery may be gone as soon as its waiters run. */
static void fiber_retire(struct fiber *fiber)
{
	struct nursery *nursery = fiber->nursery;
	struct loop *loop = fiber->loop;

	list_remove(&fiber->link);
	if (fiber->result < 0 && fiber->result != -ECANCELED && !nursery->first_error)
		nursery->first_error = fiber->result;
	CHECK(nursery->n > 0);
	if (--nursery->n == 0)
		wake_list(&nursery->waiters);

	loop_release_timer(loop);
	loop->fibers.n_alive--;
	pool_give(&loop->fibers, fiber);
}

static void fiber_resume(struct task *task)
{
	struct fiber *fiber = container_of(task, struct fiber, resume);

	CHECK_MAGIC(fiber, FIBER_MAGIC);
	CHECK(!current);
	current = fiber;
	switch_in(fiber);
	current = NULL;
	if (fiber->returned)
		fiber_retire(fiber);
}

int fiber_start(struct nursery *nursery, const char *name, int (*fn)(void *arg), void *arg)
{
	struct loop *loop = nursery->loop;

	CHECK_MAGIC(loop, LOOP_MAGIC);
	if (nursery->cancelled)
		return -ECANCELED;
	if (loop->fibers.n_alive >= FIBERS_MAX)
		return -EAGAIN;
	int r = loop_reserve_timer(loop);
	if (r)
		return r;
	struct fiber *fiber = pool_take(&loop->fibers);
	if (!fiber) {
		loop_release_timer(loop);
		return -ENOMEM;
	}

	loop->fibers.n_alive++;
	fiber->nursery = nursery;
	fiber->loop = loop;
	fiber->name = name;
	fiber->fn = fn;
	fiber->arg = arg;
	fiber->returned = false;
	fiber->resume.fn = fiber_resume;
	list_append(&nursery->fibers, &fiber->link);
	nursery->n++;
	loop_post(loop, &fiber->resume);
	return 0;
}

unsigned fibers_alive(const struct loop *loop)
{
	return loop->fibers.n_alive;
}

bool fiber_running(void)
{
	return current;
}

const void *fiber_self(void)
{
	return current;
}

const char *fiber_name(void)
{
	return current ? current->name : "loop";
}

bool fiber_cancelled(void)
{
	return current && current->nursery->cancelled;
}

struct loop *fiber_loop(void)
{
	CHECK(current);
	return current->loop;
}

/* ---- waiting ---- */

/* Ends @fiber's wait with @result, once: who comes second (a wake after the time-out, say) finds it no longer waiting. */
static void fiber_wake(struct fiber *fiber, int result)
{
	if (!fiber->waiting)
		return;
	fiber->waiting = false;
	fiber->wait_result = result;
	list_remove(&fiber->place);
	timer_disarm(fiber->loop, &fiber->timer);
	loop_post(fiber->loop, &fiber->resume);
}

static void fiber_timed_out(struct timer *timer)
{
	fiber_wake(container_of(timer, struct fiber, timer), -ETIMEDOUT);
}

static void wake_list(struct list *fibers)
{
	while (!list_empty(fibers))
		fiber_wake(list_entry(fibers->next, struct fiber, place), 0);
}

/* Waits at @fibers (NULL: nobody wakes it). A deadline in the past times out after the others have had their turn. */
static int fiber_wait(struct list *fibers, uint64_t deadline_ns, bool shielded)
{
	struct fiber *fiber = current;

	CHECK(fiber);
	if (!shielded && fiber->nursery->cancelled)
		return -ECANCELED;

	if (deadline_ns != FOREVER) {
		fiber->timer.fn = fiber_timed_out;
		timer_arm_reserved(fiber->loop, &fiber->timer, deadline_ns);
	}
	if (fibers)
		list_append(fibers, &fiber->place);
	fiber->shielded = shielded;
	fiber->waiting = true;
	switch_out(fiber);
	return fiber->wait_result;
}

void waitplace_init(struct waitplace *place)
{
	list_init(&place->fibers);
}

int wait_at(struct waitplace *place, uint64_t deadline_ns)
{
	return fiber_wait(&place->fibers, deadline_ns, false);
}

int wait_at_shielded(struct waitplace *place, uint64_t deadline_ns)
{
	return fiber_wait(&place->fibers, deadline_ns, true);
}

void wake_all(struct waitplace *place)
{
	wake_list(&place->fibers);
}

int fiber_sleep_until(uint64_t at_ns)
{
	int r = fiber_wait(NULL, at_ns, false);

	return r == -ETIMEDOUT ? 0 : r;
}

/* ---- nurseries ---- */

void nursery_init(struct nursery *nursery, struct loop *loop)
{
	*nursery = (struct nursery){ .loop = loop };
	list_init(&nursery->fibers);
	list_init(&nursery->waiters);
}

void nursery_cancel(struct nursery *nursery)
{
	nursery->cancelled = true;
	list_each(node, &nursery->fibers) {
		struct fiber *fiber = list_entry(node, struct fiber, link);

		if (!fiber->shielded)
			fiber_wake(fiber, -ECANCELED);
	}
}

static int nursery_wait_for(struct nursery *nursery, uint64_t deadline_ns, bool shielded)
{
	while (nursery->n > 0) {
		CHECK(current && current->nursery != nursery); /* a child would wait for itself */
		int r = fiber_wait(&nursery->waiters, deadline_ns, shielded);
		if (r)
			return r;
	}
	return nursery->first_error;
}

int nursery_wait(struct nursery *nursery, uint64_t deadline_ns)
{
	return nursery_wait_for(nursery, deadline_ns, false);
}

void nursery_fini(struct nursery *nursery)
{
	if (!nursery->loop)
		return;
	nursery_cancel(nursery);
	nursery_wait_for(nursery, FOREVER, true);
}

bool nursery_is_empty(const struct nursery *nursery)
{
	return nursery->n == 0;
}

/* ---- await ---- */

static void await_done(struct done *done, int result)
{
	struct await *a = container_of(done, struct await, done);

	CHECK(!a->finished);
	a->finished = true;
	a->result = result;
	wake_all(&a->place);
}

void await_init(struct await *a)
{
	*a = (struct await){ .done.fn = await_done };
	waitplace_init(&a->place);
}

/* A result that has come is returned even to a fiber that is cancelled or late: nothing is under way any more. */
int await(struct await *a, uint64_t deadline_ns)
{
	while (!a->finished) {
		int r = wait_at(&a->place, deadline_ns);
		if (r && !a->finished)
			return r;
	}
	return a->result;
}

int await_shielded(struct await *a)
{
	while (!a->finished)
		wait_at_shielded(&a->place, FOREVER);
	return a->result;
}
