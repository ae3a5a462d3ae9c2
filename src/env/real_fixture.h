/*
 * env/real_fixture.h: what the tests of the real world share: an env, a directory of one's own, and turning the loop
 * until something holds, with a deadline instead of a hang.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "env/env.h"
#include "env/fiber.h"

#define TEST_DEADLINE_MS 60000

struct fixture {
	struct env *env;
	struct timer tick; /* ends a turn's sleep, so that UNTIL looks again */
	uint64_t deadline_ns;
	char dir[64];
};

static inline void fixture_tick(struct timer *timer)
{
	struct fixture *fixture = container_of(timer, struct fixture, tick);

	assert_int_equal(timer_arm(fixture->env->loop, timer, env_in_ms(fixture->env, 1)), 0);
}

static inline int fixture_setup(void **state)
{
	struct fixture *fixture = calloc(1, sizeof(*fixture));
	struct error e;

	if (!fixture)
		return -1;
	snprintf(fixture->dir, sizeof(fixture->dir), "/tmp/forebay-env-XXXXXX");
	if (!mkdtemp(fixture->dir))
		return -1;
	fixture->tick.fn = fixture_tick;
	*state = fixture;
	return env_real_new("test", 2, &fixture->env, &e);
}

static inline int fixture_remove(const char *path, const struct stat *st, int type, struct FTW *where)
{
	return remove(path);
}

static inline int fixture_teardown(void **state)
{
	struct fixture *fixture = *state;
	timer_disarm(fixture->env->loop, &fixture->tick);
	env_real_free(fixture->env);
	int r = nftw(fixture->dir, fixture_remove, 16, FTW_DEPTH | FTW_PHYS);
	free(fixture);
	return r;
}

/* Turns the loop until @condition holds. A turn ends with a sleep, hence the tick. */
#define UNTIL(fixture, condition)                                                                       \
	do {                                                                                            \
		(fixture)->deadline_ns = env_in_ms((fixture)->env, TEST_DEADLINE_MS);                   \
		fixture_tick(&(fixture)->tick);                                                         \
		while (!(condition)) {                                                                  \
			assert_int_equal(loop_turn((fixture)->env->loop), 0);                           \
			if (env_now((fixture)->env) > (fixture)->deadline_ns)                           \
				fail_msg("%s: still not so after %d ms", #condition, TEST_DEADLINE_MS); \
		}                                                                                       \
		timer_disarm((fixture)->env->loop, &(fixture)->tick);                                   \
	} while (0)

#define WITH_FIXTURE(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

/* Counts readiness, for streams whose test polls them. */
static inline void count_ready(void *arg)
{
	++*(int *)arg;
}

/* Two ends of one connection through @address, and the listener. */
struct pair {
	struct stream *listener, *near, *far;
	int listener_ready, near_ready, far_ready;
};

static inline void pair_open(struct fixture *fixture, const char *address, struct pair *pair)
{
	const struct env_ops *ops = fixture->env->ops;
	struct error e = { 0 };

	*pair = (struct pair){ 0 };
	struct stream_events for_listener = { count_ready, &pair->listener_ready };
	struct stream_events for_near = { count_ready, &pair->near_ready };
	struct stream_events for_far = { count_ready, &pair->far_ready };

	if (ops->listen(fixture->env, address, &for_listener, &pair->listener, &e))
		fail_msg("%s", e.text);
	assert_int_equal(ops->connect(fixture->env, ops->address(pair->listener), &for_near, &pair->near), 0);
	UNTIL(fixture, pair->listener_ready && pair->near_ready);
	assert_int_equal(ops->stream_status(pair->near), 0);
	assert_int_equal(ops->accept(pair->listener, &for_far, &pair->far), 0);
}

static inline void pair_close(struct fixture *fixture, struct pair *pair)
{
	fixture->env->ops->close(pair->near);
	fixture->env->ops->close(pair->far);
	fixture->env->ops->close(pair->listener);
}
