/* Stories of groups whose coordinator changes, and of words that come late or twice, each told once in a calm simulated world. */
#include "sim/crowd_suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <string.h>

#include "daemon/daemon.h"
#include "group/inside.h"
#include "sim/inside.h"

#define MIB	  (1u << 20)
#define SLOW_RATE UINT64_C(200000) /* bytes per s of a node's way to the store */

enum { BYTES = 4 * MIB };
static uint8_t bytes[BYTES]; /* what all save */

static void fill_bytes(void)
{
	uint64_t x = 88172645463325252;

	for (size_t i = 0; i < BYTES; i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		bytes[i] = (uint8_t)x;
	}
}

static int do_nothing(struct crowd_rank *rank)
{
	return 0;
}

static void cut_off(struct crowd *crowd, const char *node, bool on)
{
	world_silence(crowd->world, node, "*", on);
	world_silence(crowd->world, "*", node, on);
}

/* ---- a run whose ranks join again while the save of before drains ---- */

static struct crowd_rank *saving;

/* The node of the coordinator is lost together with the process, as soon as all is captured. */
static void lose_both(enum point point)
{
	if (point != POINT_SAVE_STAGED)
		return;
	cut_off(saving->crowd, "n1", true);
	world_kill(saving->env, DEATH_PROCESS);
	point_listen(NULL);
}

static int save_and_die(struct crowd_rank *rank)
{
	const struct crowd_item item = { "x", BYTES, 0, BYTES, bytes };

	saving = rank;
	point_listen(lose_both);
	(void)crowd_save(rank, "again", 1, NULL, &item, 1, NULL);
	return 0;
}

static int save_again(struct crowd_rank *rank)
{
	static const uint8_t few[3000] = { 1 };
	const struct crowd_item item = { "x", 3000, 0, 3000, few };

	return crowd_save(rank, "again", 2, NULL, &item, 1, NULL);
}

static int first_life(void *arg)
{
	const struct crowd_job first = { "again", "0", 1, .first_node = 2, .live = save_and_die };

	crowd_work(arg, &first);
	return 0;
}

static bool is_dead(struct crowd *crowd)
{
	return saving && sim_env(saving->env)->dead;
}

static int again_story(struct crowd *crowd)
{
	const struct crowd_job before = { "again", "before", 1, .first_node = 1, .live = do_nothing };
	const struct crowd_job second = { "again", "0", 1, .first_node = 2, .live = save_again };
	struct nursery nursery;

	nursery_init(&nursery, crowd->world->loop);
	saving = NULL;
	sim_env(crowd->nodes[2].env)->file_rate = SLOW_RATE;
	crowd_work(crowd, &before); /* n1 coordinates */
	assert_int_equal(fiber_start(&nursery, "first", first_life, crowd), 0);
	assert_true(crowd_until(crowd, is_dead, CROWD_WAIT_MS));
	crowd_work(crowd, &second);
	assert_int_equal(nursery_wait(&nursery, FOREVER), 0);
	nursery_fini(&nursery);
	cut_off(crowd, "n1", false);
	return 0;
}

static void ranks_that_join_the_same_run_again_speak_to_the_coordinator_of_now(void **state)
{
	crowd_play(1, 3, 16 * MIB, again_story);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ranks_that_join_the_same_run_again_speak_to_the_coordinator_of_now),
	};
	fill_bytes();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
