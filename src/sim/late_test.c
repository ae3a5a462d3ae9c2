/* Stories of groups whose coordinator changes, and of words that come late or twice, each told once in a calm simulated world. */
#include "sim/crowd_suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <string.h>

#include "cluster/inside.h"
#include "daemon/daemon.h"
#include "group/member.h"
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

/* ---- a block that is ordered twice ---- */

enum { SAVE_ID = 77, INCARNATION = 9, STEP = 9 };
#define SENDING_RATE UINT64_C(1000000) /* bytes per s: the block is 4 s on its way */
#define COPY_MS	     60000

static int keep_in_memory(struct crowd_rank *rank)
{
	const struct crowd_item item = { "x", BYTES, 0, BYTES, bytes };

	return crowd_save(rank, "source", 1, NULL, &item, 1, NULL);
}

static struct groups *groups_on(struct crowd *crowd, unsigned node)
{
	return daemon_groups(crowd->nodes[node].daemon);
}

/* As a coordinator on n1 says it to n2. */
static int say(struct crowd *crowd, enum msg_type type, struct buf *body, int encoded, struct buf *answer)
{
	struct groups *groups = groups_on(crowd, 1);

	assert_int_equal(encoded, 0);
	int r = cluster_call(groups->cluster, "n2", type, view_buf(body), env_in_ms(groups->env, COPY_MS), answer,
			     NULL);
	buf_fini(body);
	return r;
}

/* How many copies were made. */
static uint32_t order_copy_of(struct crowd *crowd, const uint8_t *content)
{
	_cleanup_(list_buf_fini) struct list_buf nodes = { 0 };
	_cleanup_(list_buf_fini) struct list_buf blocks = { 0 };
	const struct elem_name source = { .name = view_str("n1") };
	const struct elem_g_copy block = { .digest = digest_of(content, BYTES),
					   .bytes = BYTES,
					   .crc = crc32c(0, content, BYTES) };
	struct buf body = { 0 }, answer = { 0 };
	struct msg_g_copy_reply reply;

	assert_int_equal(elem_name_append(&nodes, &source), 0);
	assert_int_equal(elem_g_copy_append(&blocks, &block), 0);
	const struct msg_g_copy copy = { .save_id = SAVE_ID,
					 .nodes = list_buf_view(&nodes),
					 .blocks = list_buf_view(&blocks),
					 .epoch = 1,
					 .tenant = view_str(TENANT),
					 .group = view_str("twice"),
					 .incarnation = INCARNATION,
					 .bundle = view_str("twice"),
					 .step = STEP };
	assert_int_equal(say(crowd, MSG_G_COPY, &body, msg_g_copy_encode(&copy, &body), &answer), 0);
	assert_int_equal(msg_g_copy_reply_decode(view_buf(&answer), &reply), 0);
	buf_fini(&answer);
	return reply.made.count;
}

static int order_copy(void *arg)
{
	assert_int_equal(order_copy_of(arg, bytes), 1);
	return 0;
}

/* The node has room for the copy, as the plan has it. */
static void plan_copy(struct crowd *crowd)
{
	_cleanup_(list_buf_fini) struct list_buf receives = { 0 };
	const struct elem_g_receive receive = { .bytes = BYTES };
	struct buf body = { 0 }, answer = { 0 };

	assert_int_equal(elem_g_receive_append(&receives, &receive), 0);
	const struct msg_g_reserve reserve = { .tenant = view_str(TENANT),
					       .group = view_str("twice"),
					       .incarnation = INCARNATION,
					       .save_id = SAVE_ID,
					       .bundle = view_str("twice"),
					       .step = STEP,
					       .plan = 1,
					       .receives = list_buf_view(&receives),
					       .queue = 1,
					       .room_ms = COPY_MS,
					       .epoch = 1 };
	const struct msg_g_capture capture = { .save_id = SAVE_ID, .epoch = 1 };
	const struct msg_g_stage stage = { .save_id = SAVE_ID, .stage = SAVE_CAPTURED, .epoch = 1 };
	assert_int_equal(say(crowd, MSG_G_RESERVE, &body, msg_g_reserve_encode(&reserve, &body), &answer), 0);
	assert_int_equal(say(crowd, MSG_G_CAPTURE, &body, msg_g_capture_encode(&capture, &body), &answer), 0);
	assert_int_equal(say(crowd, MSG_G_STAGE, &body, msg_g_stage_encode(&stage, &body), NULL), 0);
	buf_fini(&answer);
}

static void end_copy(struct crowd *crowd)
{
	const struct msg_g_stage stage = { .save_id = SAVE_ID, .stage = SAVE_FAILED, .code = ERR_ENODE, .epoch = 1 };
	struct buf body = { 0 };

	assert_int_equal(say(crowd, MSG_G_STAGE, &body, msg_g_stage_encode(&stage, &body), NULL), 0);
}

/* How many blocks the node says that it holds. */
static uint32_t count_held(struct crowd *crowd)
{
	const struct msg_save_id id = { .save_id = SAVE_ID, .epoch = 1 };
	struct buf body = { 0 }, answer = { 0 };
	struct msg_numbers held;

	assert_int_equal(say(crowd, MSG_G_HELD, &body, msg_save_id_encode(&id, &body), &answer), 0);
	assert_int_equal(msg_numbers_decode(view_buf(&answer), &held), 0);
	buf_fini(&answer);
	return held.numbers.count;
}

/* One order is under way still when the other comes: one coordinator was overtaken by another, and does not know it yet. */
static int twice_story(struct crowd *crowd, bool planned)
{
	const struct crowd_job source = { "source", "0", 1, .first_node = 1, .live = keep_in_memory };
	struct nursery nursery;

	nursery_init(&nursery, crowd->world->loop);
	crowd_work(crowd, &source);
	if (planned)
		plan_copy(crowd);
	sim_env(crowd->nodes[1].env)->rate_bytes_per_s = SENDING_RATE;
	assert_int_equal(fiber_start(&nursery, "first", order_copy, crowd), 0);
	assert_int_equal(fiber_start(&nursery, "second", order_copy, crowd), 0);
	assert_int_equal(nursery_wait(&nursery, FOREVER), 0);
	nursery_fini(&nursery);
	assert_int_equal(count_held(crowd), 1);
	end_copy(crowd);
	return 0;
}

static int twice_planned_story(struct crowd *crowd)
{
	return twice_story(crowd, true);
}

static int twice_unplanned_story(struct crowd *crowd)
{
	return twice_story(crowd, false);
}

static void a_copy_that_two_coordinators_order_at_once_is_made_once(void **state)
{
	crowd_play(1, 3, 32 * MIB, twice_planned_story);
	crowd_play(2, 3, 32 * MIB, twice_unplanned_story);
}

/* The node's replica is another than the one that is saved, and that one cannot be had. */
static int diverged_story(struct crowd *crowd)
{
	const struct crowd_job source = { "source", "0", 1, .first_node = 1, .live = keep_in_memory };
	static const uint8_t others[BYTES];

	crowd_work(crowd, &source);
	plan_copy(crowd);
	assert_int_equal(order_copy_of(crowd, bytes), 1);
	assert_int_equal(count_held(crowd), 1);
	assert_int_equal(order_copy_of(crowd, others), 0);
	assert_int_equal(count_held(crowd), 0);
	end_copy(crowd);
	return 0;
}

static void a_replica_that_diverged_is_not_held_for_what_was_saved(void **state)
{
	crowd_play(1, 3, 32 * MIB, diverged_story);
}

/* ---- a holder that is lost together with the coordinator that it is ---- */

static struct crowd *losing;
static unsigned n_staged;
static bool was_short; /* of copies, when it was staged */

static void lose_at_kept(enum point point)
{
	const struct map *coordinated = &groups_on(losing, 2)->coordinated;

	if (point == POINT_SAVE_KEPT && !coordinated->n)
		cut_off(losing, "n1", true);
	if (point != POINT_SAVE_STAGED || !coordinated->n)
		return;
	const struct cgroup *group = map_value(map_first(coordinated));
	was_short = list_entry(group->saves.next, struct csave, link)->short_of_copies;
	n_staged++;
}

static int save_replica(struct crowd_rank *rank)
{
	const struct crowd_item item = { "x", BYTES, 0, BYTES, bytes };
	const struct core_save_options options = { .copies = rank->job->n_ranks };
	int r = crowd_save(rank, "held", 1, &options, &item, 1, NULL);

	if (rank->number) /* the other one hears nothing, as long as its node is cut off */
		cut_off(losing, "n1", false);
	return rank->number ? r : 0;
}

static int lose_coordinator(struct crowd *crowd, uint32_t n_ranks)
{
	const struct crowd_job before = { "held", "before", 1, .first_node = 1, .live = do_nothing };
	const struct crowd_job job = {
		"held", "0", n_ranks, .first_node = 1, .n_nodes = n_ranks, .live = save_replica
	};

	losing = crowd;
	n_staged = 0;
	crowd_work(crowd, &before); /* n1 coordinates */
	point_listen(lose_at_kept);
	crowd_work(crowd, &job);
	point_listen(NULL);
	return 0;
}

static int held_story(struct crowd *crowd)
{
	int r = lose_coordinator(crowd, 2);

	assert_int_equal(n_staged, 1);
	assert_false(was_short);
	return r;
}

static void a_successor_has_copies_made_on_nodes_that_had_no_part_in_the_save(void **state)
{
	crowd_play(1, 4, 32 * MIB, held_story);
}

static int refuse_kept(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
		       struct error *e)
{
	++*(unsigned *)arg;
	return error_set(e, -ENOMEM, "no memory for what was kept");
}

static int keepers_story(struct crowd *crowd)
{
	unsigned n_refused = 0;

	/* of the two keepers it is asked first */
	groups_on(crowd, 2)->cluster->handlers[MSG_G_KEPT] = (struct handler){ refuse_kept, &n_refused };
	int r = lose_coordinator(crowd, 3);
	assert_int_equal(n_refused, 1);
	return r;
}

static void a_successor_asks_each_node_that_keeps_what_it_needs(void **state)
{
	crowd_play(1, 4, 32 * MIB, keepers_story);
}

/* ---- a node that slept while others went on ---- */

#define ASLEEP_MS  10000 /* longer than a peer may be silent */
#define LET_GO_MS  15000 /* a save of which nothing is heard is asked for after 10 s */
#define COPIES_ALL 3

static struct crowd *late;
static unsigned coordinating = 1; /* node */

static struct handler reserve_handler;

/* As a node that is stopped, and goes on when its caller has given it up and closed the connection. */
static int make_room_late(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
			  struct error *e)
{
	world_silence(late->world, "n2", "n1", true);
	assert_int_equal(fiber_sleep_until(deadline_ns), -ECANCELED);
	return reserve_handler.serve(arg, from, body, deadline_ns, answer, e);
}

static const struct csave *coordinated_save(void)
{
	const struct map *coordinated = &groups_on(late, coordinating)->coordinated;
	const struct cgroup *group = coordinated->n ? map_value(map_first(coordinated)) : NULL;

	return !group || list_empty(&group->saves) ? NULL : list_entry(group->saves.next, struct csave, link);
}

static const struct msave *held_late(void)
{
	const struct list *msaves = &groups_on(late, 2)->msaves;

	return list_empty(msaves) ? NULL : list_entry(msaves->next, struct msave, link);
}

static bool holds_late(struct crowd *crowd)
{
	return held_late() && held_late()->admitted;
}

static bool holds_nothing(struct crowd *crowd)
{
	struct pool_stats stats;

	pool_stats(store_pool(groups_on(crowd, 2)->shares->store), &stats);
	return !held_late() && !groups_on(crowd, 2)->shares->turns.now && !stats.used_bytes[POOL_READ];
}

static int save_copied(struct crowd_rank *rank)
{
	const struct crowd_item item = { "x", BYTES, 0, BYTES, bytes };
	const struct core_save_options options = { .copies = COPIES_ALL };

	return crowd_save(rank, "late", 1, &options, &item, 1, NULL);
}

static int late_life(void *arg)
{
	const struct crowd_job job = { "late", "0", 1, .first_node = 1, .live = save_copied };

	crowd_work(arg, &job);
	return 0;
}

/* The order to make room arrives when the save goes on without that node: @slow while it is on its way to the store, or when it is durable. */
static int late_story(struct crowd *crowd, bool slow)
{
	struct nursery nursery;

	late = crowd;
	nursery_init(&nursery, crowd->world->loop);
	struct handler *handler = &groups_on(crowd, 2)->cluster->handlers[MSG_G_RESERVE];
	reserve_handler = *handler;
	handler->serve = make_room_late;
	if (slow)
		for (unsigned i = 0; i < crowd->n_nodes; i++)
			sim_env(crowd->nodes[i].env)->file_rate = SLOW_RATE;
	assert_int_equal(fiber_start(&nursery, "late", late_life, crowd), 0);
	assert_true(crowd_until(crowd, holds_late, ASLEEP_MS));
	world_silence(crowd->world, "n2", "n1", false);
	if (!slow)
		assert_int_equal(nursery_wait(&nursery, FOREVER), 0);
	assert_true(crowd_until(crowd, holds_nothing, LET_GO_MS));
	assert_int_equal(slow, coordinated_save() != NULL);
	assert_int_equal(nursery_wait(&nursery, FOREVER), 0);
	nursery_fini(&nursery);
	return 0;
}

static int late_durable_story(struct crowd *crowd)
{
	return late_story(crowd, false);
}

static int late_draining_story(struct crowd *crowd)
{
	return late_story(crowd, true);
}

static void room_that_is_asked_of_a_node_too_late_is_given_back_soon(void **state)
{
	crowd_play(1, 3, 32 * MIB, late_durable_story);
	crowd_play(2, 3, 32 * MIB, late_draining_story);
}

/* An order of before to make room for @n blocks of 8 MiB, as the coordinator says it with the policy `replace`: full or not. */
static bool order_room(struct crowd *crowd, const struct ended_save *ended, uint64_t step, unsigned n)
{
	_cleanup_(list_buf_fini) struct list_buf receives = { 0 };
	struct buf body = { 0 }, answer = { 0 };
	struct msg_g_reserve_reply reply;

	for (unsigned i = 0; i < n; i++) {
		const struct elem_g_receive receive = { .block = i, .bytes = BLOCK_BYTES_MAX };

		assert_int_equal(elem_g_receive_append(&receives, &receive), 0);
	}
	const struct msg_g_reserve reserve = { .tenant = view_str(TENANT),
					       .group = view_str("turn"),
					       .incarnation = 1,
					       .save_id = ended->save_id,
					       .bundle = view_str("turn"),
					       .step = step,
					       .plan = step,
					       .receives = list_buf_view(&receives),
					       .queue = 1,
					       .epoch = UINT64_MAX };
	assert_int_equal(say(crowd, MSG_G_RESERVE, &body, msg_g_reserve_encode(&reserve, &body), &answer), 0);
	assert_int_equal(msg_g_reserve_reply_decode(view_buf(&answer), &reply), 0);
	buf_fini(&answer);
	return reply.full;
}

static int save_two(struct crowd_rank *rank)
{
	const struct crowd_item item = { "x", BYTES, 0, BYTES, bytes };
	int r = crowd_save(rank, "turn", 1, NULL, &item, 1, NULL);

	return r ? r : crowd_save(rank, "turn", 2, NULL, &item, 1, NULL);
}

/* One holds the room, the other the turn; and both saves are over. */
static int turn_story(struct crowd *crowd)
{
	const struct crowd_job job = { "turn", "0", 1, .first_node = 1, .live = save_two };
	const struct ended_save *ended = groups_on(crowd, 1)->ended;
	const struct share *share = groups_on(crowd, 2)->shares;
	unsigned n;

	late = crowd;
	crowd_work(crowd, &job);
	n = (unsigned)(pool_arena(store_pool(share->store), POOL_READ)->size / BLOCK_BYTES_MAX);
	assert_false(order_room(crowd, &ended[0], 1, n - 1));
	assert_true(order_room(crowd, &ended[1], 2, n - 1));
	assert_non_null(share->turns.now);
	assert_true(crowd_until(crowd, holds_nothing, LET_GO_MS));
	return 0;
}

static void a_turn_that_is_kept_for_a_save_that_is_over_is_given_on_soon(void **state)
{
	crowd_play(1, 3, 64 * MIB, turn_story);
}

/* As a node that is stopped: nobody waits for its answer any more. */
static int answer_too_late(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
			   struct error *e)
{
	return fiber_sleep_until(deadline_ns + NS_PER_S);
}

static int save_and_hear(struct crowd_rank *rank)
{
	const struct crowd_item item = { "x", BYTES, 0, BYTES, bytes };
	uint64_t begin_ns = rank->crowd->world->now_ns;
	int r = crowd_save(rank, "missed", 1, NULL, &item, 1, NULL);

	assert_true(rank->crowd->world->now_ns - begin_ns < (SETTLE_MS + LET_GO_MS) * NS_PER_MS);
	return r;
}

static int missed_story(struct crowd *crowd)
{
	const struct crowd_job before = { "missed", "before", 1, .first_node = 1, .live = do_nothing };
	const struct crowd_job job = { "missed", "0", 2, .first_node = 1, .live = save_and_hear };

	crowd_work(crowd, &before); /* n1 coordinates */
	groups_on(crowd, 2)->cluster->handlers[MSG_G_STAGE] = (struct handler){ answer_too_late, NULL };
	crowd_work(crowd, &job);
	return 0;
}

static void ranks_whose_node_missed_all_words_of_a_durable_save_are_told_soon(void **state)
{
	crowd_play(1, 3, 32 * MIB, missed_story);
}

/* ---- a rebuild beside a save ---- */

static struct crowd *rebuilding;
static struct nursery rebuild_flow;
#define REBUILD_MS 30000

static int run_rebuild(void *arg)
{
	struct env *env = world_env_new(rebuilding->world, "asker");
	struct buf body = { 0 };
	struct client c;

	assert_int_equal(client_begin(&c, &rebuilding->history, env, rebuilding->nodes[0].socket), 0);
	assert_int_equal(client_call(&c, MSG_REBUILD, &body, 0, REBUILD_MS, NULL), 0);
	client_end(&c);
	world_kill(env, DEATH_PROCESS);
	return 0;
}

/* The node stands still until the rebuild has burned its slot. It has the group's lease, before and after. */
static void rebuild_at_slot(enum point point)
{
	if (point != POINT_SLOT_OPEN)
		return;
	point_listen(NULL);
	sim_env(rebuilding->nodes[1].env)->stopped_until_ns = rebuilding->world->now_ns + 6000 * NS_PER_MS;
	assert_int_equal(fiber_start(&rebuild_flow, "rebuild", run_rebuild, NULL), 0);
}

static int save_beside(struct crowd_rank *rank)
{
	const struct crowd_item item = { "x", BYTES, 0, BYTES, bytes };
	struct error ends[CORE_STAGES];
	uint64_t begin_ns = rank->crowd->world->now_ns;

	point_listen(rebuild_at_slot);
	int r = crowd_save(rank, "beside", 1, NULL, &item, 1, ends);
	assert_int_equal(r, -EAGAIN);
	assert_int_equal(ends[CORE_CAPTURED].code, 0);
	assert_non_null(strstr(ends[CORE_DURABLE].text, "the index was made again"));
	assert_true(rank->crowd->world->now_ns - begin_ns < 10000 * NS_PER_MS);
	return crowd_save(rank, "beside", 2, NULL, &item, 1, NULL);
}

static int beside_story(struct crowd *crowd)
{
	const struct crowd_job job = { "beside", "0", 1, .first_node = 1, .live = save_beside };

	rebuilding = crowd;
	nursery_init(&rebuild_flow, crowd->world->loop);
	crowd_work(crowd, &job);
	nursery_fini(&rebuild_flow);
	return 0;
}

static void ranks_are_told_that_a_rebuild_has_burned_the_slot_of_their_save(void **state)
{
	crowd_play(1, 2, 32 * MIB, beside_story);
}

#define SHORTLY_MS 300 /* a rebuild has raised the generation by then, and nobody has told n1 */

/* n1 stands still while it stores its part of the wave. The other part is there: so the next that it says is in the generation before. */
static void rebuild_beside_wave(enum point point)
{
	if (point == POINT_SAVE_CAPTURED)
		sim_env(rebuilding->nodes[1].env)->stopped_until_ns =
			rebuilding->world->now_ns + SHORTLY_MS * NS_PER_MS;
	if (point != POINT_PACK_DURABLE)
		return;
	point_listen(NULL);
	assert_int_equal(fiber_start(&rebuild_flow, "rebuild", run_rebuild, NULL), 0);
}

static int save_through(struct crowd_rank *rank)
{
	const struct core_save_options through = { .policy = POLICY_THROUGH };
	const uint64_t half = BYTES / 2;
	const struct crowd_item item = { "x", BYTES, rank->number * half, half, bytes + rank->number * half };
	struct error ends[CORE_STAGES];
	uint64_t begin_ns = rank->crowd->world->now_ns;

	point_listen(rebuild_beside_wave);
	int r = crowd_save(rank, "through", 1, &through, &item, 1, ends);
	assert_int_equal(r, -EAGAIN);
	assert_int_equal(ends[CORE_CAPTURED].code, 0);
	assert_non_null(strstr(ends[CORE_STAGED].text, "the index was made again"));
	assert_true(rank->crowd->world->now_ns - begin_ns < 20000 * NS_PER_MS);
	return crowd_save(rank, "through", 2, &through, &item, 1, NULL);
}

static int through_story(struct crowd *crowd)
{
	const struct crowd_job before = { "through", "before", 1, .first_node = 1, .live = do_nothing };
	const struct crowd_job job = { "through", "0", 2, .first_node = 1, .live = save_through };

	rebuilding = crowd;
	nursery_init(&rebuild_flow, crowd->world->loop);
	crowd_work(crowd, &before); /* n1 coordinates */
	crowd_work(crowd, &job);
	nursery_fini(&rebuild_flow);
	return 0;
}

static void ranks_are_told_that_a_rebuild_has_stopped_their_save_on_its_way_through(void **state)
{
	crowd_play(1, 2, 32 * MIB, through_story);
}

static bool is_offered(struct crowd *crowd)
{
	return coordinated_save() && coordinated_save()->n_offered == 1;
}

static bool knows_first(struct crowd *crowd)
{
	return cluster_generation(groups_on(crowd, 0)->cluster) > cluster_generation(groups_on(crowd, 1)->cluster);
}

/* The rank beside the coordinator offers when the other one's node knows of the rebuild: it refuses the word that the save has failed. */
static int offer_otherwise(struct crowd_rank *rank)
{
	const struct crowd_item item = { "x", BYTES, 0, BYTES, bytes };
	const struct core_save_options options = { .copies = 1 + rank->number }; /* which is a mistake */
	uint64_t begin_ns = rank->crowd->world->now_ns;

	if (!rank->number) {
		assert_true(crowd_until(rank->crowd, is_offered, CROWD_WAIT_MS));
		assert_int_equal(fiber_start(&rebuild_flow, "rebuild", run_rebuild, NULL), 0);
		assert_true(crowd_until(rank->crowd, knows_first, CROWD_WAIT_MS));
	}
	assert_int_equal(crowd_save(rank, "otherwise", 1, &options, &item, 1, NULL), -ERR_EMISMATCH);
	assert_true(rank->crowd->world->now_ns - begin_ns < 10000 * NS_PER_MS);
	return 0;
}

static int otherwise_story(struct crowd *crowd)
{
	const struct crowd_job before = { "otherwise", "before", 1, .first_node = 1, .live = do_nothing };
	const struct crowd_job job = { "otherwise", "0", 2, .first_node = 1, .live = offer_otherwise };

	late = rebuilding = crowd;
	coordinating = 1;
	nursery_init(&rebuild_flow, crowd->world->loop);
	crowd_work(crowd, &before); /* n1 coordinates */
	crowd_work(crowd, &job);
	assert_int_equal(nursery_wait(&rebuild_flow, FOREVER), 0);
	nursery_fini(&rebuild_flow);
	return 0;
}

static void a_rank_hears_that_its_save_has_failed_though_its_node_knew_of_a_rebuild_first(void **state)
{
	crowd_play(1, 2, 32 * MIB, otherwise_story);
}

/* The other way round: the coordinator's node knows of the rebuild, and refuses the word that a rank is gone. */
static int leave_or_save(struct crowd_rank *rank)
{
	const struct crowd_item item = { "x", BYTES, 0, BYTES, bytes };
	uint64_t begin_ns = rank->crowd->world->now_ns;

	if (rank->number) {
		assert_true(crowd_until(rank->crowd, is_offered, CROWD_WAIT_MS));
		assert_int_equal(fiber_start(&rebuild_flow, "rebuild", run_rebuild, NULL), 0);
		assert_true(crowd_until(rank->crowd, knows_first, CROWD_WAIT_MS));
		return 0;
	}
	assert_int_equal(crowd_save(rank, "leaving", 1, NULL, &item, 1, NULL), -ERR_ERANK);
	assert_true(rank->crowd->world->now_ns - begin_ns < 10000 * NS_PER_MS);
	return 0;
}

static int leaving_story(struct crowd *crowd)
{
	const struct crowd_job before = { "leaving", "before", 1, .live = do_nothing };
	const struct crowd_job job = { "leaving", "0", 2, .live = leave_or_save };

	late = rebuilding = crowd;
	coordinating = 0;
	nursery_init(&rebuild_flow, crowd->world->loop);
	crowd_work(crowd, &before); /* n0 coordinates */
	crowd_work(crowd, &job);
	assert_int_equal(nursery_wait(&rebuild_flow, FOREVER), 0);
	nursery_fini(&rebuild_flow);
	return 0;
}

static void a_coordinator_hears_that_a_rank_is_gone_though_it_knew_of_a_rebuild_first(void **state)
{
	crowd_play(1, 2, 32 * MIB, leaving_story);
}

/* ---- a bit that flips on its way ---- */

static int rebuild_alone(struct crowd_rank *rank)
{
	struct buf body = { 0 };
	int r = keep_in_memory(rank);

	assert_int_equal(r, 0);
	world_inject(rank->crowd->world, FAULT_READ_FLIP, "/root");
	return client_call(&rank->client, MSG_REBUILD, &body, 0, REBUILD_MS, NULL);
}

static int flip_story(struct crowd *crowd)
{
	const struct crowd_job job = { "source", "0", 1, .live = rebuild_alone };
	const uint64_t before = crowd->world->faults.injected[FAULT_READ_FLIP];

	crowd_work(crowd, &job);
	assert_true(crowd->world->faults.injected[FAULT_READ_FLIP] > before);
	return 0;
}

static void a_root_that_is_read_wrong_once_is_not_left_out_of_a_rebuilt_index(void **state)
{
	crowd_play(1, 1, 32 * MIB, flip_story);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ranks_that_join_the_same_run_again_speak_to_the_coordinator_of_now),
		cmocka_unit_test(a_copy_that_two_coordinators_order_at_once_is_made_once),
		cmocka_unit_test(a_replica_that_diverged_is_not_held_for_what_was_saved),
		cmocka_unit_test(a_successor_has_copies_made_on_nodes_that_had_no_part_in_the_save),
		cmocka_unit_test(a_successor_asks_each_node_that_keeps_what_it_needs),
		cmocka_unit_test(room_that_is_asked_of_a_node_too_late_is_given_back_soon),
		cmocka_unit_test(a_turn_that_is_kept_for_a_save_that_is_over_is_given_on_soon),
		cmocka_unit_test(ranks_whose_node_missed_all_words_of_a_durable_save_are_told_soon),
		cmocka_unit_test(ranks_are_told_that_a_rebuild_has_burned_the_slot_of_their_save),
		cmocka_unit_test(ranks_are_told_that_a_rebuild_has_stopped_their_save_on_its_way_through),
		cmocka_unit_test(a_rank_hears_that_its_save_has_failed_though_its_node_knew_of_a_rebuild_first),
		cmocka_unit_test(a_coordinator_hears_that_a_rank_is_gone_though_it_knew_of_a_rebuild_first),
		cmocka_unit_test(a_root_that_is_read_wrong_once_is_not_left_out_of_a_rebuilt_index),
	};
	fill_bytes();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
