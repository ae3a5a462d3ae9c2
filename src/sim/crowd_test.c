/* Stories of groups, each told once in a calm simulated world: more ranks than a history has, and turns that chance seldom takes. */
#include "sim/crowd_suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/daemon.h"
#include "group/inside.h"
#include "sim/inside.h"

#define MIB (1u << 20)

static void noise(uint8_t *bytes, size_t n, uint64_t seed)
{
	uint64_t x = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;

	for (size_t i = 0; i < n; i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		bytes[i] = (uint8_t)x;
	}
}

/* ---- many ranks ---- */

#ifdef __SANITIZE_THREAD__
enum { CROWD_RANKS = 128 }; /* more fibers than these need more maps of TSan's shadow than a process may have */
#else
enum { CROWD_RANKS = 1024 };
#endif
enum { SHARD = 100, REPLICA = 5000 };

static int save_and_load(struct crowd_rank *rank)
{
	uint8_t shard[SHARD], replica[REPLICA], out[SHARD + REPLICA], expected[SHARD];
	uint32_t other = (rank->number + 1) % CROWD_RANKS;
	char own[16];
	uint64_t version;

	noise(shard, SHARD, 1 + rank->number);
	noise(replica, REPLICA, 0);
	noise(expected, SHARD, 1 + other);
	snprintf(own, sizeof(own), "own %u", rank->number);
	const struct crowd_item items[] = {
		{ "replica", REPLICA, 0, REPLICA, replica },
		{ "shards", CROWD_RANKS * SHARD, rank->number * SHARD, SHARD, shard },
		{ own, 4, 0, 4, &rank->number },
	};
	int r = crowd_save(rank, "crowd", 1, NULL, items, ARRAY_LEN(items), NULL);
	if (!r)
		r = crowd_open(rank, "crowd", true, &version);
	const struct crowd_item wanted[] = { { "shards", 0, other * SHARD, SHARD, NULL },
					     { "replica", 0, 0, REPLICA, NULL } };
	if (!r)
		r = crowd_load(rank, version, true, wanted, 2, out);
	if (r)
		return r;
	assert_memory_equal(out, expected, SHARD);
	assert_memory_equal(out + SHARD, replica, REPLICA);
	return 0;
}

static int crowd_story(struct crowd *crowd)
{
	const struct crowd_job job = { "crowd", "0", CROWD_RANKS, .live = save_and_load };

	crowd_work(crowd, &job);
	return 0;
}

static void a_group_of_1024_ranks_saves_and_loads(void **state)
{
	crowd_play(1, 8, 8 * MIB, crowd_story);
}

/* ---- an end that one node does not hear ---- */

#define HEARD_MS 60000 /* in which an end is known to all whom it concerns */

static struct crowd *cut; /* for the listener, which has no argument */

/* What the coordinator says next is lost. Both see a broken connection, dial again, and find each other alive. */
static void cut_at_the_end(enum point point)
{
	if (point != POINT_INDEX_DURABLE)
		return;
	world_cut(cut->world, "n1", "n2");
	world_cut(cut->world, "n2", "n1");
}

/* The saves that the rank's node holds. */
static uint32_t saves_here(struct crowd_rank *rank)
{
	_cleanup_(buf_fini) struct buf body = { 0 }, answer = { 0 };
	struct msg_status_reply reply;

	assert_int_equal(client_call(&rank->client, MSG_STATUS, &body, 0, 10000, &answer), 0);
	assert_int_equal(msg_status_reply_decode(view_buf(&answer), &reply), 0);
	return reply.saves.count;
}

static int save_over_a_cut(struct crowd_rank *rank)
{
	static uint8_t bytes[2][100000];
	const struct crowd_item items[] = { { "own", 200000, rank->number * 100000, 100000, bytes[rank->number] } };
	const struct core_save_options twice = { .copies = 2 };
	struct error ends[CORE_STAGES];
	uint64_t version;

	noise(bytes[rank->number], 100000, rank->number + 1);
	uint64_t begun_ns = env_now(rank->env);
	(void)crowd_save(rank, "cut", 1, &twice, items, 1, ends);
	assert_int_equal(ends[CORE_STAGED].code, 0);
	assert_in_range(env_now(rank->env) - begun_ns, 0, HEARD_MS * NS_PER_MS);
	while (saves_here(rank)) { /* their blocks are pinned as long */
		assert_in_range(env_now(rank->env) - begun_ns, 0, HEARD_MS * NS_PER_MS);
		assert_int_equal(fiber_sleep_until(env_in_ms(rank->env, 500)), 0);
	}
	assert_int_equal(crowd_open(rank, "cut", false, &version), 0);
	return 0;
}

static int cut_story(struct crowd *crowd)
{
	const struct crowd_job job = { "cut", "0", 2, .first_node = 1, .n_nodes = 2, .live = save_over_a_cut };

	cut = crowd;
	point_listen(cut_at_the_end);
	crowd_work(crowd, &job);
	point_listen(NULL);
	return 0;
}

static void a_node_that_missed_the_end_of_a_save_asks_for_it(void **state)
{
	for (uint64_t seed = 1; seed <= 5; seed++)
		crowd_play(seed, 3, 4 * MIB, cut_story);
}

/* ---- room on several nodes ---- */

enum { GROUPS = 4, GROUP_STEPS = 3, PART = 3 * MIB / 2 }; /* of the 2 MiB of each node that take captures */

#define ROOM_MS 60000 /* for all saves, one after the other */

static int save_half(struct crowd_rank *rank)
{
	uint8_t *bytes = must_alloc(PART);
	const struct crowd_item items[] = { { "part", 2 * PART, (uint64_t)rank->number * PART, PART, bytes } };
	int r = 0;

	for (uint64_t step = 0; !r && step < GROUP_STEPS; step++) {
		noise(bytes, PART, 100 * step + rank->number + (uint64_t)*rank->job->group * 1000);
		r = crowd_save(rank, rank->job->group, step, NULL, items, 1, NULL);
	}
	free(bytes);
	return r;
}

static int work_on(void *arg)
{
	struct crowd_job *job = arg;

	crowd_work(job->arg, job);
	return 0;
}

/* Each group has a rank on both nodes; which of them coordinates differs, and with it whose calls come first. */
static int circle_story(struct crowd *crowd)
{
	static const char *const names[GROUPS] = { "a", "b", "c", "d" };
	struct crowd_job jobs[GROUPS];
	struct nursery nursery;

	nursery_init(&nursery, crowd->world->loop);
	uint64_t begun_ns = crowd->world->now_ns;
	for (unsigned i = 0; i < GROUPS; i++) {
		jobs[i] = (struct crowd_job){ names[i], "0", 2, .first_node = i % 2, .live = save_half, .arg = crowd };
		assert_int_equal(fiber_start(&nursery, "job", work_on, &jobs[i]), 0);
	}
	assert_int_equal(nursery_wait(&nursery, FOREVER), 0);
	nursery_fini(&nursery);
	assert_in_range(crowd->world->now_ns - begun_ns, 0, ROOM_MS * NS_PER_MS);
	return 0;
}

static void groups_never_wait_for_each_others_room_in_a_circle(void **state)
{
	for (uint64_t seed = 1; seed <= 10; seed++)
		crowd_play(seed, 2, 4 * MIB, circle_story);
}

/* ---- a rank that leaves before it asks ---- */

static int load_without_one(struct crowd_rank *rank)
{
	static const uint8_t bytes[3000];
	const struct crowd_item item = { "x", 3000, 0, 3000, bytes };
	uint8_t out[3000];
	uint64_t version;
	int r = crowd_save(rank, "left", 1, NULL, &item, 1, NULL);

	if (!r)
		r = crowd_open(rank, "left", true, &version);
	if (r || rank->number == 2)
		return r;
	uint64_t begun_ns = env_now(rank->env);
	assert_int_equal(crowd_load(rank, version, true, &item, 1, out), -ERR_ERANK);
	assert_in_range(env_now(rank->env) - begun_ns, 0, HEARD_MS * NS_PER_MS);
	return crowd_load(rank, version, false, &item, 1, out); /* alone it can */
}

static int leaver_story(struct crowd *crowd)
{
	const struct crowd_job job = { "left", "0", 3, .live = load_without_one };

	crowd_work(crowd, &job);
	return 0;
}

/* On a node of its own, and beside others of its group. */
static void a_load_for_which_a_rank_does_not_come_any_more_fails(void **state)
{
	crowd_play(1, 3, 4 * MIB, leaver_story);
	crowd_play(2, 2, 4 * MIB, leaver_story);
	crowd_play(3, 1, 4 * MIB, leaver_story);
}

/* ---- a rank that stays and does not ask ---- */

static unsigned n_asked;

static int load_beside_one_that_stays(struct crowd_rank *rank)
{
	static const uint8_t bytes[3000];
	const struct crowd_item item = { "x", 3000, 0, 3000, bytes };
	uint8_t out[3000];
	uint64_t version;
	int r = crowd_save(rank, "stays", 1, NULL, &item, 1, NULL);

	if (!r)
		r = crowd_open(rank, "stays", true, &version);
	while (!r && rank->number == 2 && n_asked < 2)
		r = fiber_sleep_until(env_in_ms(rank->env, 1000));
	if (r || rank->number == 2)
		return r;
	uint64_t begun_ns = env_now(rank->env);
	assert_int_equal(crowd_load(rank, version, true, &item, 1, out), -ERR_ERANK);
	assert_in_range(env_now(rank->env) - begun_ns, 0, (GATHER_TIMEOUT_MS + SETTLE_MS) * NS_PER_MS);
	n_asked++;
	return 0;
}

static int stayer_story(struct crowd *crowd)
{
	const struct crowd_job job = { "stays", "0", 3, .live = load_beside_one_that_stays };

	n_asked = 0;
	crowd_work(crowd, &job);
	return 0;
}

/* On a node of its own, and beside others of its group, whose node asks for nobody before all have come. */
static void a_load_for_which_a_rank_does_not_ask_ends_in_time(void **state)
{
	crowd_play(1, 3, 4 * MIB, stayer_story);
	crowd_play(2, 2, 4 * MIB, stayer_story);
	crowd_play(3, 1, 4 * MIB, stayer_story);
}

/* ---- words of a join that come late ---- */

static const char *coordinator_in(struct crowd *crowd)
{
	for (unsigned i = 0; i < crowd->n_nodes; i++)
		if (daemon_groups(crowd->nodes[i].daemon)->coordinated.n)
			return crowd->nodes[i].name;
	fail_msg("nobody coordinates");
	return NULL;
}

/* As the rank's node says it; it was held up on its way. */
static void say_late(struct crowd_rank *rank, bool forgone, uint64_t joiner)
{
	struct crowd *crowd = rank->crowd;
	struct groups *groups = daemon_groups(crowd->nodes[rank->number % crowd->n_nodes].daemon);
	_cleanup_(buf_fini) struct buf body = { 0 };
	const struct msg_g_lost lost = { .tenant = view_str(TENANT),
					 .group = view_str(rank->job->group),
					 .run = view_str(rank->job->run),
					 .rank = rank->number,
					 .words = view_str("it had no memory"),
					 .forgone = forgone,
					 .joiner = joiner };

	assert_int_equal(msg_g_lost_encode(&lost, &body), 0);
	assert_int_equal(cluster_call(groups->cluster, coordinator_in(crowd), MSG_G_LOST, view_buf(&body),
				      env_in_ms(groups->env, 10000), NULL, NULL),
			 0);
}

static int save_in_spite_of_late_words(struct crowd_rank *rank)
{
	static const uint8_t bytes[3000] = { 1 };
	const struct crowd_item item = { "x", 3000, 0, 3000, bytes };

	if (rank->number == 1) {
		say_late(rank, true, 0);   /* its client: it was refused, before it joined at last */
		say_late(rank, true, 77);  /* its node: a join of before failed when it was counted already */
		say_late(rank, false, 77); /* that one's process ended */
	}
	return crowd_save(rank, "late", 1, NULL, &item, 1, NULL);
}

static int late_words_story(struct crowd *crowd)
{
	const struct crowd_job job = { "late", "0", 2, .live = save_in_spite_of_late_words };

	crowd_work(crowd, &job);
	return 0;
}

static void what_is_said_of_a_join_of_before_does_not_end_the_one_that_worked(void **state)
{
	crowd_play(1, 2, 4 * MIB, late_words_story);
	crowd_play(2, 1, 4 * MIB, late_words_story);
}

/* ---- an engine whose commits take long ---- */

#define COMMIT_MS 3000 /* each; a join needs two, one after the other */

static struct { /* in front of the engine's driver */
	struct meta_driver slow;
	const struct meta_driver *quick;
	unsigned n_txns;
	struct world *cut; /* the answer to the first is lost, once */
} commits;

struct held_txn {
	struct timer timer;
	struct meta_req *req;
};

static void submit_held(struct timer *timer)
{
	struct held_txn *held = container_of(timer, struct held_txn, timer);

	commits.quick->submit(held->req->meta, held->req);
	free(held);
	if (commits.cut) {
		world_cut(commits.cut, "n0", "n1");
		world_cut(commits.cut, "n1", "n0");
		commits.cut = NULL;
	}
}

static void submit_slowly(struct meta *meta, struct meta_req *req)
{
	if (req->op != META_TXN) {
		commits.quick->submit(meta, req);
		return;
	}
	struct held_txn *held = must_alloc(sizeof(*held));
	*held = (struct held_txn){ .timer.fn = submit_held, .req = req };
	commits.n_txns++;
	assert_int_equal(timer_arm(meta->env->loop, &held->timer, env_in_ms(meta->env, COMMIT_MS)), 0);
}

static int only_join(struct crowd_rank *rank)
{
	return 0;
}

static struct meta *slow_down(struct crowd *crowd)
{
	struct meta *engine = cluster_meta(daemon_groups(crowd->nodes[0].daemon)->cluster);

	commits.quick = engine->driver;
	commits.slow = (struct meta_driver){ "slow", submit_slowly, engine->driver->free };
	commits.n_txns = 0;
	engine->driver = &commits.slow;
	return engine;
}

static int slow_commits_story(struct crowd *crowd)
{
	const struct crowd_job job = { "slow", "0", 1, .first_node = 1, .live = only_join };
	struct meta *engine = slow_down(crowd);
	uint64_t begun_ns = crowd->world->now_ns;

	crowd_work(crowd, &job);
	engine->driver = commits.quick;
	assert_in_range(crowd->world->now_ns - begun_ns, 2 * COMMIT_MS * NS_PER_MS, 3 * COMMIT_MS * NS_PER_MS);
	assert_int_equal(commits.n_txns, 2); /* what has been asked is not asked again */
	return 0;
}

static void a_join_waits_for_an_engine_whose_commits_take_long(void **state)
{
	crowd_play(1, 2, 4 * MIB, slow_commits_story);
}

/* Its row is there when the coordinator looks again: it is its own, and nobody was before it who left something. */
static int look_back(struct crowd_rank *rank)
{
	const struct groups *groups = daemon_groups(rank->crowd->nodes[1].daemon);
	const struct cgroup *group = map_value(map_first(&groups->coordinated));

	assert_string_equal(group->before, "");
	assert_false(group->recovering);
	return 0;
}

static int lost_answer_story(struct crowd *crowd)
{
	const struct crowd_job job = { "slow", "0", 1, .first_node = 1, .live = look_back };
	struct meta *engine = slow_down(crowd);

	commits.cut = crowd->world;
	crowd_work(crowd, &job);
	engine->driver = commits.quick;
	assert_null(commits.cut);
	assert_int_equal(commits.n_txns, 3);
	return 0;
}

static void a_coordinator_whose_row_was_written_without_an_answer_takes_nothing_over(void **state)
{
	crowd_play(1, 2, 4 * MIB, lost_answer_story);
}

static bool is_leaving(struct crowd *crowd)
{
	return commits.n_txns;
}

/* The lease is being given back, since the group was idle, when a rank comes. */
static int returning_story(struct crowd *crowd)
{
	const struct crowd_job first = { "back", "0", 1, .first_node = 1, .live = only_join };
	const struct crowd_job second = { "back", "1", 1, .first_node = 1, .live = only_join };

	crowd_work(crowd, &first);
	struct meta *engine = slow_down(crowd);
	assert_true(crowd_until(crowd, is_leaving, CROWD_WAIT_MS));
	crowd_work(crowd, &second);
	engine->driver = commits.quick;
	return 0;
}

static void a_join_may_come_while_the_lease_is_given_back(void **state)
{
	crowd_play(1, 2, 4 * MIB, returning_story);
}

/* ---- a rank that never offers ---- */

#define ABSENT_MS 700000 /* it is waited for 600 s */

static int save_without_one(struct crowd_rank *rank)
{
	static const uint8_t bytes[3000] = { 1 };
	const struct crowd_item item = { "x", 3000, 0, 3000, bytes };
	struct error ends[CORE_STAGES];

	if (rank->number == 2)
		return fiber_sleep_until(env_in_ms(rank->env, ABSENT_MS));
	uint64_t begun_ns = env_now(rank->env);
	(void)crowd_save(rank, "absent", 1, NULL, &item, 1, ends);
	assert_in_range(env_now(rank->env) - begun_ns, 0, ABSENT_MS * NS_PER_MS);
	for (int stage = 0; stage < CORE_STAGES; stage++) {
		assert_int_equal(ends[stage].code, -ERR_ERANK);
		assert_non_null(strstr(ends[stage].text, "rank 2"));
		assert_non_null(strstr(ends[stage].text, "step 1 of absent"));
	}
	return 0;
}

static int absent_story(struct crowd *crowd)
{
	const struct crowd_job job = { "absent", "0", 3, .live = save_without_one };

	crowd_work(crowd, &job);
	return 0;
}

/* On a node of its own, beside one that has offered, and where nobody has offered to another node yet. */
static void a_rank_that_never_offers_is_named(void **state)
{
	crowd_play(1, 3, 4 * MIB, absent_story);
	crowd_play(2, 2, 4 * MIB, absent_story);
	crowd_play(3, 1, 4 * MIB, absent_story);
}

/* ---- a node that is slow ---- */

enum { SLOW_RANKS = 3, SLOW_PART = 16 * MIB };
#define BRISK_RATE UINT64_C(8000000) /* bytes per s of each node's way to the store: a part in 2.1 s */
#define LAZY_RATE  (BRISK_RATE / 20) /* 42 s */
#define BRISK_NS   (6 * NS_PER_S)    /* 2.1 s, in which it is found out; then others write half of its part each */
#define LAZY_NS	   (40 * NS_PER_S)
#define TIRED_RATE (BRISK_RATE / 10) /* the pieces that are being written when it ends last 1.3 s */
#define CALM_RATE  (BRISK_RATE / 3)  /* 6.3 s: not slow, and long at it */
#define TAKEN_NS   (4 * NS_PER_S)    /* by then what is taken from a slow node has gone elsewhere */

static struct laziness {
	uint32_t copies;
	bool lazy[SLOW_RANKS];	/* nodes */
	bool calm[SLOW_RANKS];	/* nodes */
	bool briefly;		/* just the first pieces */
	uint64_t part;		/* bytes of a rank */
	uint64_t took_ns, slow; /* out: from captured on; how many nodes were named */
	unsigned begun;		/* packs */
	uint64_t first_begun_ns, last_begun_ns;
} laziness;

static struct crowd *lazy_crowd;

static uint64_t stat_of(const struct core_stats *stats, const char *name)
{
	for (size_t i = 0; i < stats->n; i++)
		if (!strcmp(stats->stats[i].name, name))
			return stats->stats[i].value;
	fail_msg("no figure %s", name);
	return 0;
}

static int save_and_look(struct crowd_rank *rank)
{
	const uint64_t part = laziness.part;
	uint8_t *bytes = must_alloc(part), *again = must_alloc(part);
	const struct crowd_item item = { "parts", SLOW_RANKS * part, rank->number * part, part, bytes };
	const struct core_save_options options = { .copies = laziness.copies };
	uint64_t version;

	noise(bytes, part, rank->number + 1);
	int r = crowd_save(rank, "slow", 1, &options, &item, 1, NULL);
	laziness.took_ns = stat_of(&rank->stats, "durable_ns") - stat_of(&rank->stats, "captured_ns");
	laziness.slow = stat_of(&rank->stats, "slow_nodes");
	if (!r)
		r = crowd_open(rank, "slow", true, &version);
	if (!r)
		r = crowd_load(rank, version, true, &item, 1, again);
	assert_memory_equal(again, bytes, part);
	free(bytes);
	free(again);
	return r;
}

static void note_pack(enum point point)
{
	if (point != POINT_PACK_BEGUN)
		return;
	laziness.last_begun_ns = env_now(lazy_crowd->nodes[0].env);
	if (!laziness.begun++)
		laziness.first_begun_ns = laziness.last_begun_ns;
}

static bool has_begun(struct crowd *crowd)
{
	return laziness.begun;
}

static void set_rates(struct crowd *crowd, bool all_brisk)
{
	for (unsigned i = 0; i < SLOW_RANKS; i++)
		sim_env(crowd->nodes[i].env)->file_rate = laziness.calm[i]		 ? CALM_RATE :
							  !laziness.lazy[i] || all_brisk ? BRISK_RATE :
							  laziness.briefly		 ? TIRED_RATE :
											   LAZY_RATE;
}

static int wake_up(void *arg)
{
	struct crowd *crowd = arg;

	assert_true(crowd_until(crowd, has_begun, CROWD_WAIT_MS));
	set_rates(crowd, true);
	return 0;
}

static int lazy_story(struct crowd *crowd)
{
	const struct crowd_job job = { "slow", "0", SLOW_RANKS, .live = save_and_look };
	struct nursery nursery;

	nursery_init(&nursery, crowd->world->loop);
	lazy_crowd = crowd;
	set_rates(crowd, false);
	point_listen(note_pack);
	if (laziness.briefly)
		assert_int_equal(fiber_start(&nursery, "wake", wake_up, crowd), 0);
	crowd_work(crowd, &job);
	point_listen(NULL);
	nursery_fini(&nursery);
	return 0;
}

static void play_lazily(struct laziness how)
{
	for (uint64_t seed = 1; seed <= 2; seed++) {
		laziness = how;
		laziness.part = laziness.part ? laziness.part : SLOW_PART;
		crowd_play(seed, SLOW_RANKS, 96 * MIB, lazy_story);
	}
}

static void what_a_slow_node_has_to_write_is_written_by_others(void **state)
{
	play_lazily((struct laziness){ .copies = 2, .lazy = { [1] = true } });
	assert_in_range(laziness.took_ns, 0, BRISK_NS);
	assert_int_equal(laziness.slow, 1);
	play_lazily((struct laziness){ .copies = 2, .lazy = { [0] = true } }); /* it has the index, too */
	assert_in_range(laziness.took_ns, 0, BRISK_NS);
	assert_int_equal(laziness.slow, 1);
}

/* A third node is long at its own pack. Nobody waits for that before the others begin with what was taken back. */
static void what_is_taken_from_a_slow_node_goes_elsewhere_at_once(void **state)
{
	play_lazily((struct laziness){ .copies = 2, .lazy = { [1] = true }, .calm = { [2] = true } });
	assert_int_equal(laziness.slow, 1);
	assert_in_range(laziness.begun, SLOW_RANKS + 1, SLOW_RANKS + 2);
	assert_in_range(laziness.last_begun_ns - laziness.first_begun_ns, 2 * NS_PER_S, TAKEN_NS);
}

static void a_slow_node_whose_blocks_nobody_else_has_is_waited_for(void **state)
{
	play_lazily((struct laziness){ .copies = 1, .lazy = { [1] = true } });
	assert_in_range(laziness.took_ns, LAZY_NS, 2 * LAZY_NS);
	assert_int_equal(laziness.slow, 1);
}

static void a_store_that_is_slow_makes_no_node_slow(void **state)
{
	play_lazily((struct laziness){ .copies = 2, .lazy = { true, true, true } });
	assert_in_range(laziness.took_ns, LAZY_NS, 2 * LAZY_NS);
	assert_int_equal(laziness.slow, 0);
}

static void a_node_that_is_slow_for_a_second_is_not_named(void **state)
{
	play_lazily(
		(struct laziness){ .copies = 2, .lazy = { [1] = true }, .briefly = true, .part = SLOW_PART / 2 * 3 });
	assert_in_range(laziness.took_ns, 3 * NS_PER_S, BRISK_NS);
	assert_int_equal(laziness.slow, 0);
}

/* ---- a node that sends slowly ---- */

enum { REPLICAS = 2, REPLICA_BYTES = 32 * MIB };
#define SENDING_RATE UINT64_C(1000000) /* bytes per s: half of the replica in 17 s */
#define SENT_PART    (4 * MIB)	       /* 4.2 s */
#define SENT_NS	     (8 * NS_PER_S)    /* it is given 3 s, and a moment to stop; all others need 50 ms */

static int save_to_be_sent(struct crowd_rank *rank, const struct crowd_item *item, uint32_t copies)
{
	const struct core_save_options options = { .copies = copies };
	int r = crowd_save(rank, "sent", 1, &options, item, 1, NULL);

	laziness.took_ns = stat_of(&rank->stats, "staged_ns") - stat_of(&rank->stats, "captured_ns");
	laziness.slow = stat_of(&rank->stats, "slow_nodes");
	return r;
}

static int save_replicas(struct crowd_rank *rank)
{
	uint8_t *bytes = must_alloc(REPLICA_BYTES);
	const struct crowd_item item = { "replica", REPLICA_BYTES, 0, REPLICA_BYTES, bytes };

	noise(bytes, REPLICA_BYTES, 1);
	int r = save_to_be_sent(rank, &item, 3);
	free(bytes);
	return r;
}

/* Nobody but its node can send a rank's part. */
static int save_parts(struct crowd_rank *rank)
{
	uint8_t *bytes = must_alloc(SENT_PART);
	const struct crowd_item item = { "parts", SLOW_RANKS * SENT_PART, rank->number * SENT_PART, SENT_PART, bytes };

	noise(bytes, SENT_PART, rank->number + 1);
	int r = save_to_be_sent(rank, &item, 2);
	free(bytes);
	return r;
}

static int parting_story(struct crowd *crowd)
{
	const struct crowd_job job = { "sent", "0", SLOW_RANKS, .live = save_parts };

	for (unsigned i = 0; i < SLOW_RANKS; i++)
		if (laziness.lazy[i])
			sim_env(crowd->nodes[i].env)->rate_bytes_per_s = SENDING_RATE;
	crowd_work(crowd, &job);
	return 0;
}

static int sending_story(struct crowd *crowd)
{
	const struct crowd_job job = { "sent", "0", REPLICAS, .first_node = 1, .live = save_replicas };

	sim_env(crowd->nodes[1].env)->rate_bytes_per_s = SENDING_RATE;
	crowd_work(crowd, &job);
	return 0;
}

static void a_copy_that_its_source_sends_slowly_comes_from_another(void **state)
{
	for (uint64_t seed = 1; seed <= 3; seed++) {
		crowd_play(seed, 3, 96 * MIB, sending_story);
		assert_in_range(laziness.took_ns, 0, SENT_NS);
		assert_int_equal(laziness.slow, 1);
	}
}

static void a_node_that_sends_its_copies_slowly_is_named_to_the_ranks(void **state)
{
	laziness = (struct laziness){ .lazy = { [1] = true } };
	crowd_play(1, SLOW_RANKS, 96 * MIB, parting_story);
	assert_in_range(laziness.took_ns, 4 * NS_PER_S, SENT_NS);
	assert_int_equal(laziness.slow, 1);
	laziness = (struct laziness){ .lazy = { true, true, true } }; /* that is how they are */
	crowd_play(2, SLOW_RANKS, 96 * MIB, parting_story);
	assert_in_range(laziness.took_ns, 4 * NS_PER_S, 2 * SENT_NS);
	assert_int_equal(laziness.slow, 0);
}

/* ---- a node that is lost while copies are made ---- */

static bool lost_captured;

static int save_and_lose(struct crowd_rank *rank)
{
	uint8_t *bytes = must_alloc(REPLICA_BYTES);
	const struct crowd_item item = { "replica", REPLICA_BYTES, 0, REPLICA_BYTES, bytes };
	const struct core_save_options options = { .copies = 3 };
	struct error ends[CORE_STAGES];

	noise(bytes, REPLICA_BYTES, 1);
	int r = crowd_save(rank, "lost", 1, &options, &item, 1, ends);
	if (rank->number) { /* what the other one hears is its node's, which hears nothing */
		laziness.slow = stat_of(&rank->stats, "slow_nodes");
		world_silence(rank->crowd->world, "n1", "*", false);
		world_silence(rank->crowd->world, "*", "n1", false);
	}
	free(bytes);
	return rank->number ? r : 0;
}

static void note_captured(enum point point)
{
	lost_captured |= point == POINT_SAVE_CAPTURED;
}

static bool is_captured(struct crowd *crowd)
{
	return lost_captured;
}

/* Silent before a block of its replica has come to the third node, and known to be lost before the others have. */
static int lose_sender(void *arg)
{
	struct crowd *crowd = arg;

	assert_true(crowd_until(crowd, is_captured, CROWD_WAIT_MS));
	assert_int_equal(fiber_sleep_until(crowd->world->now_ns + 100 * NS_PER_MS), 0);
	world_silence(crowd->world, "n1", "*", true);
	world_silence(crowd->world, "*", "n1", true);
	return 0;
}

static int do_nothing(struct crowd_rank *rank)
{
	return 0;
}

static int losing_story(struct crowd *crowd)
{
	const struct crowd_job first = { "lost", "0", 1, .first_node = 2,
					 .live = do_nothing }; /* this node coordinates */
	const struct crowd_job job = { "lost", "1", REPLICAS, .first_node = 1, .n_nodes = 2, .live = save_and_lose };
	struct nursery nursery;

	nursery_init(&nursery, crowd->world->loop);
	lost_captured = false;
	for (unsigned i = 1; i <= REPLICAS; i++)
		sim_env(crowd->nodes[i].env)->rate_bytes_per_s = SENDING_RATE;
	crowd_work(crowd, &first);
	point_listen(note_captured);
	assert_int_equal(fiber_start(&nursery, "lose", lose_sender, crowd), 0);
	crowd_work(crowd, &job);
	point_listen(NULL);
	nursery_fini(&nursery);
	return 0;
}

static void a_node_that_is_lost_is_not_named_slow(void **state)
{
	for (uint64_t seed = 1; seed <= 2; seed++) {
		crowd_play(seed, 3, 96 * MIB, losing_story);
		assert_int_equal(laziness.slow, 0);
	}
}

/* ---- a rank that says that it has more than there is ---- */

static int offer_too_much(struct crowd_rank *rank)
{
	static const uint8_t bytes[1];
	const uint64_t much = UINT64_C(1) << 52;
	const struct crowd_item item = { "x", much, 0, much, bytes };
	const struct core_save_options through = { .copies = 1, .policy = POLICY_THROUGH };
	struct error ends[CORE_STAGES];

	assert_int_equal(crowd_save(rank, "much", 1, NULL, &item, 1, ends), -ERR_EPOOL);
	assert_non_null(strstr(ends[0].text, "4503599627370496 bytes to capture"));
	assert_int_equal(crowd_save(rank, "much", 2, &through, &item, 1, ends), -E2BIG);
	assert_non_null(strstr(ends[0].text, "at most 33554432 blocks"));
	return 0;
}

static int too_much_story(struct crowd *crowd)
{
	const struct crowd_job job = { "much", "0", 1, .live = offer_too_much };

	crowd_work(crowd, &job);
	return 0;
}

static void what_can_never_fit_is_refused_before_it_is_planned(void **state)
{
	crowd_play(1, 1, 4 * MIB, too_much_story);
}

enum { PIECES = 256, GREEDY = (1 << 22) / PIECES + 1 };

static int want_too_often(struct crowd_rank *rank)
{
	static const uint8_t bytes[PIECES] = { 1 };
	struct crowd_item *items = must_alloc(GREEDY * sizeof(*items));
	uint8_t *out = must_alloc((size_t)GREEDY * PIECES);
	uint64_t version;

	for (unsigned i = 0; i < PIECES; i++)
		items[i] = (struct crowd_item){ "x", PIECES, i, 1, bytes };
	assert_int_equal(crowd_save(rank, "greed", 1, NULL, items, PIECES, NULL), 0);
	assert_int_equal(crowd_open(rank, "greed", false, &version), 0);
	for (unsigned i = 0; i < GREEDY; i++)
		items[i] = (struct crowd_item){ "x", PIECES, 0, PIECES, NULL };
	assert_int_equal(crowd_load(rank, version, false, items, GREEDY, out), -E2BIG);
	assert_int_equal(crowd_load(rank, version, false, items, 1, out), 0);
	free(items);
	free(out);
	return 0;
}

static int greedy_story(struct crowd *crowd)
{
	const struct crowd_job job = { "greed", "0", 1, .live = want_too_often };

	crowd_work(crowd, &job);
	return 0;
}

static void a_load_that_wants_the_same_blocks_millions_of_times_is_refused(void **state)
{
	crowd_play(1, 1, 4 * MIB, greedy_story);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_group_of_1024_ranks_saves_and_loads),
		cmocka_unit_test(a_node_that_missed_the_end_of_a_save_asks_for_it),
		cmocka_unit_test(groups_never_wait_for_each_others_room_in_a_circle),
		cmocka_unit_test(a_join_waits_for_an_engine_whose_commits_take_long),
		cmocka_unit_test(a_coordinator_whose_row_was_written_without_an_answer_takes_nothing_over),
		cmocka_unit_test(a_join_may_come_while_the_lease_is_given_back),
		cmocka_unit_test(a_rank_that_never_offers_is_named),
		cmocka_unit_test(what_is_said_of_a_join_of_before_does_not_end_the_one_that_worked),
		cmocka_unit_test(a_load_for_which_a_rank_does_not_come_any_more_fails),
		cmocka_unit_test(a_load_for_which_a_rank_does_not_ask_ends_in_time),
		cmocka_unit_test(what_a_slow_node_has_to_write_is_written_by_others),
		cmocka_unit_test(what_is_taken_from_a_slow_node_goes_elsewhere_at_once),
		cmocka_unit_test(a_slow_node_whose_blocks_nobody_else_has_is_waited_for),
		cmocka_unit_test(a_store_that_is_slow_makes_no_node_slow),
		cmocka_unit_test(a_node_that_is_slow_for_a_second_is_not_named),
		cmocka_unit_test(a_copy_that_its_source_sends_slowly_comes_from_another),
		cmocka_unit_test(a_node_that_sends_its_copies_slowly_is_named_to_the_ranks),
		cmocka_unit_test(a_node_that_is_lost_is_not_named_slow),
		cmocka_unit_test(what_can_never_fit_is_refused_before_it_is_planned),
		cmocka_unit_test(a_load_that_wants_the_same_blocks_millions_of_times_is_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
