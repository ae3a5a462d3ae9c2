/* What only a world with faults shows: silence, cuts and deaths, in virtual time. */
#include "cluster/cluster.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "cluster/bed_suite.h"
#include "sim/models.h"

#define NODES	    3
#define LIMIT_NS    (600 * NS_PER_S)
#define POOL_BYTES  (16u << 20)
#define BLOCK_BYTES (8u << 20)
#define NOTICE_NS   (5 * NS_PER_S) /* a silent peer is noticed within it */
#define MSG_HOLD    MSG_G_OFFER
#define MSG_ECHO    MSG_G_JOIN

struct node {
	struct block_source source;
	char name[16];
	struct env *env;
	struct meta *meta;
	struct backend *backend;
	struct pool *pool;
	struct cluster *cluster;
	unsigned holding; /* calls that it serves and does not answer */
};

struct scene {
	struct world *world;
	struct model_records *objects, *rows;
	struct node nodes[NODES];
};

static int hold(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
		struct error *e)
{
	struct node *node = arg;

	node->holding++;
	int r = fiber_sleep_until(deadline_ns);
	node->holding--;
	return error_set(e, r ? r : -ETIMEDOUT, "held");
}

static int echo(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
		struct error *e)
{
	return buf_append(answer, body.ptr, body.len);
}

static int find_block(void *arg, const struct digest *digest, uint32_t wait_ms, struct block **ret)
{
	struct node *node = arg;

	*ret = pool_find(node->pool, digest);
	return *ret ? 0 : -ENOENT;
}

static void node_start(struct scene *s, int i)
{
	struct node *node = &s->nodes[i];
	char listen[40];
	struct error e;

	snprintf(node->name, sizeof(node->name), "n%d", i);
	snprintf(listen, sizeof(listen), "tcp:10.0.0.%d:7000", i + 1);
	node->env = node->env ? world_revive(node->env) : world_env_new(s->world, node->name);
	EXPECT_INT(model_backend_open(node->env, s->objects, &node->backend), 0);
	if (i == 0)
		EXPECT_INT(model_meta_open(node->env, s->rows, &node->meta), 0);
	EXPECT_CALL(pool_new(node->env, POOL_BYTES, POOL_BYTES, &node->pool, &e), 0, &e);
	const struct cluster_options options = {
		.node = node->name,
		.listen = listen,
		.cluster_id = "sim",
		.key = view_str("the simulated key"),
		.meta = node->meta,
		.meta_address = i ? "tcp:10.0.0.1:7000" : NULL,
		.backend = node->backend,
	};
	EXPECT_CALL(cluster_new(node->env, &options, &node->cluster, &e), 0, &e);
	cluster_serve(node->cluster, MSG_HOLD, hold, node);
	cluster_serve(node->cluster, MSG_ECHO, echo, node);
	node->source = (struct block_source){ .tenant = "t", .find = find_block, .arg = node };
	cluster_serve_blocks(node->cluster, &node->source);
	EXPECT_CALL(cluster_join(node->cluster, env_in_ms(node->env, 20000), &e), 0, &e);
}

static void node_stop(struct node *node)
{
	cluster_stop(node->cluster);
	EXPECT_INT(calls_drain(node->backend, node->meta, env_in_ms(node->env, 20000)), 0);
	cluster_free(node->cluster);
	pool_free(node->pool);
	meta_free(node->meta);
	backend_free(node->backend);
	node->meta = NULL;
}

struct play {
	struct scene scene;
	int (*story)(struct scene *s);
};

static int play_run(void *arg)
{
	struct play *play = arg;
	struct scene *s = &play->scene;

	for (int i = 0; i < NODES; i++)
		node_start(s, i);
	int r = play->story(s);
	for (int i = NODES - 1; i >= 0; i--)
		node_stop(&s->nodes[i]);
	return r;
}

static void play(int (*story)(struct scene *s))
{
	struct play play = { .story = story };
	struct scene *s = &play.scene;

	s->world = world_new(7, WEATHER_CALM, NULL);
	s->objects = model_records_new(s->world);
	s->rows = model_records_new(s->world);
	EXPECT_INT(world_run(s->world, LIMIT_NS, play_run, &play), 0);
	EXPECT_INT(world_leftovers(s->world), 0);
	model_records_free(s->objects);
	model_records_free(s->rows);
	world_free(s->world);
}

static void pause_ms(struct scene *s, uint64_t ms)
{
	EXPECT_INT(fiber_sleep_until(s->world->now_ns + ms * NS_PER_MS), 0);
}

static int call(struct scene *s, int from, int to, enum msg_type type, uint64_t ms)
{
	struct node *node = &s->nodes[from];

	return cluster_call(node->cluster, s->nodes[to].name, type, view_str("x"), env_in_ms(node->env, ms), NULL,
			    NULL);
}

static void silence(struct scene *s, const char *a, const char *b, bool on)
{
	world_silence(s->world, a, b, on);
	world_silence(s->world, b, a, on);
}

struct watcher {
	struct peer_watch watch;
	unsigned n;
};

static void watcher_down(struct peer_watch *watch, const char *node)
{
	EXPECT(!strcmp(node, "n1"));
	container_of(watch, struct watcher, watch)->n++;
}

struct caller {
	struct scene *s;
	uint64_t ended_ns;
	int result;
};

static int caller_run(void *arg)
{
	struct caller *caller = arg;

	caller->result = call(caller->s, 0, 1, MSG_HOLD, 60000);
	caller->ended_ns = caller->s->world->now_ns;
	return 0;
}

static void start_caller(struct scene *s, struct caller *caller, struct nursery *nursery)
{
	*caller = (struct caller){ .s = s };
	nursery_init(nursery, s->world->loop);
	EXPECT_INT(fiber_start(nursery, "caller", caller_run, caller), 0);
	pause_ms(s, 1500);
	EXPECT_INT(s->nodes[1].holding, 1);
}

/* ---- names ---- */

struct renamed {
	struct scene *s;
	char name[16];
	int result;
};

static int call_renamed(void *arg)
{
	struct renamed *renamed = arg;
	struct node *node = &renamed->s->nodes[1];

	renamed->result = cluster_call(node->cluster, renamed->name, MSG_ECHO, view_str("x"),
				       env_in_ms(node->env, 10000), NULL, NULL);
	return 0;
}

static int renaming_story(struct scene *s)
{
	struct renamed renamed = { .s = s, .name = "n2" };
	struct nursery nursery;

	nursery_init(&nursery, s->world->loop);
	silence(s, "n0", "n1", true); /* where the record of n2 is to be read */
	EXPECT_INT(fiber_start(&nursery, "renamed", call_renamed, &renamed), 0);
	pause_ms(s, 100);
	memcpy(renamed.name, "xx", 3);
	silence(s, "n0", "n1", false);
	EXPECT_INT(nursery_wait(&nursery, s->world->now_ns + 20 * NS_PER_S), 0);
	nursery_fini(&nursery);
	EXPECT_INT(renamed.result, 0);
	return 0;
}

static void the_name_of_whom_it_calls_need_not_outlast_the_call(void **state)
{
	play(renaming_story);
}

/* ---- silence ---- */

static int silence_story(struct scene *s)
{
	struct watcher watcher = { .watch.down = watcher_down };
	struct caller caller;
	struct nursery nursery;

	cluster_watch(s->nodes[0].cluster, &watcher.watch);
	start_caller(s, &caller, &nursery);
	uint64_t since_ns = s->world->now_ns;
	silence(s, "n0", "n1", true);
	EXPECT_INT(nursery_wait(&nursery, since_ns + 2 * NOTICE_NS), 0);
	EXPECT_INT(caller.result, -EHOSTDOWN);
	EXPECT(caller.ended_ns >= since_ns + 3 * NS_PER_S && caller.ended_ns <= since_ns + NOTICE_NS);
	pause_ms(s, 2000);
	EXPECT_INT(watcher.n, 1);
	EXPECT_INT(s->nodes[1].holding, 0); /* the server noticed as well */

	uint64_t began_ns = s->world->now_ns;
	EXPECT_INT(call(s, 0, 1, MSG_ECHO, 60000), -EHOSTDOWN); /* cannot be dialled */
	EXPECT(s->world->now_ns <= began_ns + NOTICE_NS);
	EXPECT_INT(call(s, 2, 1, MSG_ECHO, 5000), 0); /* others can */
	silence(s, "n0", "n1", false);
	EXPECT_INT(call(s, 0, 1, MSG_ECHO, 5000), 0);
	EXPECT_INT(watcher.n, 1);
	cluster_unwatch(&watcher.watch);
	return 0;
}

static void a_silent_peer_is_noticed_in_time_and_told_of_once(void **state)
{
	play(silence_story);
}

static int broken_silence_story(struct scene *s)
{
	struct watcher watcher = { .watch.down = watcher_down };

	cluster_watch(s->nodes[0].cluster, &watcher.watch);
	EXPECT_INT(call(s, 0, 1, MSG_ECHO, 5000), 0);
	uint64_t since_ns = s->world->now_ns;
	world_silence(s->world, "n0", "n1", true); /* n1 is heard, and hears nothing */
	pause_ms(s, 3500);
	world_cut(s->world, "n0", "n1"); /* it is dialled once more, but not for as long again */
	pause_ms(s, (since_ns + NOTICE_NS - s->world->now_ns) / 1000000);
	EXPECT_INT(watcher.n, 1);
	world_silence(s->world, "n0", "n1", false);
	cluster_unwatch(&watcher.watch);
	return 0;
}

static void a_silent_peer_whose_connection_breaks_is_noticed_as_soon(void **state)
{
	play(broken_silence_story);
}

/* What a list of the nodes at @s's first node says of "n1". */
static bool listed_up(struct scene *s)
{
	_cleanup_(cleanup_mem) struct node_info *infos = NULL;
	size_t n = 0;

	EXPECT_INT(cluster_nodes(s->nodes[0].cluster, env_in_ms(s->nodes[0].env, 5000), &infos, &n, NULL), 0);
	EXPECT(n >= 2 && !strcmp(infos[1].name, "n1"));
	return infos[1].up;
}

static int one_way_story(struct scene *s)
{
	struct caller caller;
	struct nursery nursery;

	start_caller(s, &caller, &nursery);
	uint64_t since_ns = s->world->now_ns;
	world_silence(s->world, "n1", "n0", true); /* n1 hears all, but is not heard */
	EXPECT_INT(nursery_wait(&nursery, since_ns + 2 * NOTICE_NS), 0);
	EXPECT_INT(caller.result, -EHOSTDOWN);
	EXPECT(caller.ended_ns <= since_ns + NOTICE_NS);
	EXPECT(!listed_up(s));
	pause_ms(s, 5000); /* the list has dialled it, in vain */
	world_silence(s->world, "n1", "n0", false);
	EXPECT(listed_up(
		s)); /* the list dials it once more and waits a moment: it is found, though nobody has called it */
	EXPECT_INT(call(s, 0, 1, MSG_ECHO, 5000), 0);
	return 0;
}

static void silence_in_one_direction_is_noticed_too(void **state)
{
	play(one_way_story);
}

static int idle_story(struct scene *s)
{
	struct watcher watcher = { .watch.down = watcher_down };

	cluster_watch(s->nodes[0].cluster, &watcher.watch);
	EXPECT_INT(call(s, 0, 1, MSG_ECHO, 5000), 0);
	pause_ms(s, 60000);
	EXPECT_INT(watcher.n, 0);
	cluster_unwatch(&watcher.watch);
	return 0;
}

static void idle_peers_stay_up(void **state)
{
	play(idle_story);
}

/* ---- cuts and deaths ---- */

static int cut_story(struct scene *s)
{
	struct watcher watcher = { .watch.down = watcher_down };
	struct caller caller;
	struct nursery nursery;

	cluster_watch(s->nodes[0].cluster, &watcher.watch);
	start_caller(s, &caller, &nursery);
	world_cut(s->world, "n0", "n1");
	EXPECT_INT(nursery_wait(&nursery, s->world->now_ns + NS_PER_S), 0);
	EXPECT_INT(caller.result, -EHOSTDOWN);
	pause_ms(s, 6000);
	EXPECT_INT(watcher.n, 0); /* it lives, after all */
	EXPECT_INT(s->nodes[1].holding, 0);
	EXPECT_INT(call(s, 0, 1, MSG_ECHO, 5000), 0);
	cluster_unwatch(&watcher.watch);
	return 0;
}

static void a_cut_connection_ends_its_calls_but_is_no_dead_node(void **state)
{
	play(cut_story);
}

static int death_story(struct scene *s)
{
	for (int how = DEATH_PROCESS; how <= DEATH_MACHINE; how++) {
		struct watcher watcher = { .watch.down = watcher_down };
		struct caller caller;
		struct nursery nursery;
		struct node_info info;

		cluster_watch(s->nodes[0].cluster, &watcher.watch);
		start_caller(s, &caller, &nursery);
		uint64_t since_ns = s->world->now_ns;
		world_kill(s->nodes[1].env, (enum death)how);
		EXPECT_INT(nursery_wait(&nursery, since_ns + 2 * NOTICE_NS), 0);
		EXPECT_INT(caller.result, -EHOSTDOWN);
		EXPECT(caller.ended_ns <= since_ns + NOTICE_NS);
		pause_ms(s, 5000);
		EXPECT_INT(watcher.n, 1);
		node_stop(&s->nodes[1]);
		node_start(s, 1);
		EXPECT_INT(call(s, 0, 1, MSG_ECHO, 5000), 0);
		EXPECT_INT(cluster_node_info(s->nodes[0].cluster, "n1", env_in_ms(s->nodes[0].env, 5000), &info, NULL),
			   0);
		EXPECT(info.up && info.incarnation == cluster_incarnation(s->nodes[1].cluster));
		cluster_unwatch(&watcher.watch);
	}
	return 0;
}

static void a_dead_peer_is_told_of_and_its_next_life_is_found(void **state)
{
	play(death_story);
}

static int engine_death_story(struct scene *s)
{
	_cleanup_(buf_fini) struct buf value = { 0 };
	struct node *node = &s->nodes[1];

	EXPECT_INT(call(s, 1, 2, MSG_ECHO, 5000), 0);
	world_kill(s->nodes[0].env, DEATH_MACHINE);
	uint64_t since_ns = s->world->now_ns;
	EXPECT_INT(meta_get(cluster_meta(node->cluster), view_str(CLUSTER_GENERATION_KEY), &value,
			    since_ns + 20 * NS_PER_S, NULL),
		   -EHOSTDOWN);
	EXPECT(s->world->now_ns <= since_ns + NOTICE_NS);
	EXPECT_INT(call(s, 1, 2, MSG_ECHO, 5000), 0);
	node_stop(&s->nodes[0]);
	node_start(s, 0);
	EXPECT_INT(meta_get(cluster_meta(node->cluster), view_str(CLUSTER_GENERATION_KEY), &value,
			    s->world->now_ns + 5 * NS_PER_S, NULL),
		   0);
	return 0;
}

static void the_engine_may_die_and_return(void **state)
{
	play(engine_death_story);
}

static int mute_engine_story(struct scene *s)
{
	_cleanup_(buf_fini) struct buf value = { 0 };
	struct meta *meta = cluster_meta(s->nodes[1].cluster);
	struct view key = view_str(CLUSTER_GENERATION_KEY);
	struct error e = { 0 };

	silence(s, "n0", "n1", true);
	uint64_t since_ns = s->world->now_ns;
	EXPECT_CALL(meta_get(meta, key, &value, since_ns + 60 * NS_PER_S, &e), -EHOSTDOWN, &e);
	EXPECT(s->world->now_ns <= since_ns + NOTICE_NS);
	since_ns = s->world->now_ns;
	for (int i = 0; i < 4; i++)
		EXPECT_CALL(meta_get(meta, key, &value, since_ns + 60 * NS_PER_S, &e), -EHOSTDOWN, &e);
	EXPECT(s->world->now_ns <= since_ns + 2 * NS_PER_S); /* one dial is waited for, not four */
	EXPECT(strstr(e.text, "the node that serves the index cannot be reached: node n0: "));

	silence(s, "n0", "n1", false);
	pause_ms(s, PEER_SILENT_MS); /* the dial that fell silent is over */
	EXPECT_CALL(meta_get(meta, key, &value, s->world->now_ns + 5 * NS_PER_S, &e), 0, &e);
	return 0;
}

static void an_engine_that_does_not_answer_keeps_nobody_long(void **state)
{
	play(mute_engine_story);
}

/* ---- bulk ---- */

struct fetch {
	struct scene *s;
	struct digest digest;
	uint8_t *span;
	uint64_t ms, ended_ns;
	int result;
};

static int fetch_run(void *arg)
{
	struct fetch *fetch = arg;
	struct node *node = &fetch->s->nodes[0];
	uint32_t crc = 0;

	fetch->result = cluster_fetch(node->cluster, "n1", "t", &fetch->digest, BLOCK_BYTES, 0, fetch->span, &crc,
				      env_in_ms(node->env, fetch->ms), NULL);
	if (!fetch->result)
		EXPECT_INT(crc, crc32c(0, fetch->span, BLOCK_BYTES));
	fetch->ended_ns = fetch->s->world->now_ns;
	memset(fetch->span, 0xee, BLOCK_BYTES); /* the span is ours again */
	return 0;
}

/* Nobody has written to it since. */
static void expect_untouched(const struct fetch *fetch)
{
	for (size_t i = 0; i < BLOCK_BYTES; i += 64)
		EXPECT_INT(fetch->span[i], 0xee);
}

static struct fetch fetch_of(struct scene *s, struct block *block, uint64_t ms)
{
	struct fetch fetch = { .s = s, .digest = block->digest, .span = malloc(BLOCK_BYTES), .ms = ms };

	EXPECT(fetch.span);
	return fetch;
}

/* @trouble strikes in the middle of a transfer that takes 80 ms. */
static void disturb_fetch(struct scene *s, void (*trouble)(struct scene *s, bool on), uint64_t ms, int expected)
{
	struct block *block = bed_block(s->nodes[1].pool, POOL_CAPTURE, BLOCK_BYTES, 5);
	struct fetch fetch = fetch_of(s, block, ms);
	struct nursery nursery;

	sim_env(s->nodes[1].env)->rate_bytes_per_s = 100000000;
	EXPECT_INT(call(s, 0, 1, MSG_ECHO, 5000), 0);
	nursery_init(&nursery, s->world->loop);
	uint64_t began_ns = s->world->now_ns;
	EXPECT_INT(fiber_start(&nursery, "fetch", fetch_run, &fetch), 0);
	pause_ms(s, 40);
	trouble(s, true);
	EXPECT_INT(nursery_wait(&nursery, began_ns + 60 * NS_PER_S), 0);
	EXPECT_INT(fetch.result, expected);
	uint64_t most_ns = ms * NS_PER_MS < NOTICE_NS ? ms * NS_PER_MS : NOTICE_NS;
	EXPECT(fetch.ended_ns <= began_ns + most_ns + 1200 * NS_PER_MS);
	expect_untouched(&fetch);
	trouble(s, false);
	pause_ms(s, 10000);
	expect_untouched(&fetch);

	fetch.ms = 20000; /* and now it comes */
	EXPECT_INT(fetch_run(&fetch), 0);
	EXPECT_INT(fetch.result, 0);
	free(fetch.span);
	EXPECT_INT(block->pins, 1);
	block_unpin(block);
}

static void both_silent(struct scene *s, bool on)
{
	silence(s, "n0", "n1", on);
}

static void cut(struct scene *s, bool on)
{
	if (on)
		world_cut(s->world, "n0", "n1");
}

static void nothing(struct scene *s, bool on)
{
}

static int silent_fetch_story(struct scene *s)
{
	disturb_fetch(s, both_silent, 60000, -EHOSTDOWN);
	return 0;
}

static int late_fetch_story(struct scene *s)
{
	disturb_fetch(s, both_silent, 500, -ETIMEDOUT);
	return 0;
}

static int short_fetch_story(struct scene *s)
{
	disturb_fetch(s, nothing, 60, -ETIMEDOUT);
	return 0;
}

static int cut_fetch_story(struct scene *s)
{
	disturb_fetch(s, cut, 60000, -EHOSTDOWN);
	return 0;
}

static void a_fetch_from_a_peer_that_falls_silent_ends_and_frees_its_span(void **state)
{
	play(silent_fetch_story);
}

static void a_fetch_ends_at_its_deadline_and_frees_its_span(void **state)
{
	play(late_fetch_story);
	play(short_fetch_story);
}

static void a_fetch_whose_connection_is_cut_ends_and_the_next_one_succeeds(void **state)
{
	play(cut_fetch_story);
}

static int dead_fetch_story(struct scene *s)
{
	struct block *block = bed_block(s->nodes[1].pool, POOL_CAPTURE, BLOCK_BYTES, 5);
	struct fetch fetch = fetch_of(s, block, 60000);
	struct nursery nursery;

	sim_env(s->nodes[1].env)->rate_bytes_per_s = 100000000;
	nursery_init(&nursery, s->world->loop);
	EXPECT_INT(fiber_start(&nursery, "fetch", fetch_run, &fetch), 0);
	pause_ms(s, 40);
	world_kill(s->nodes[1].env, DEATH_MACHINE);
	uint64_t since_ns = s->world->now_ns;
	EXPECT_INT(nursery_wait(&nursery, since_ns + 60 * NS_PER_S), 0);
	EXPECT_INT(fetch.result, -EHOSTDOWN);
	EXPECT(fetch.ended_ns <= since_ns + NOTICE_NS);
	block_unpin(block); /* the holder's end lets go of its own pin when it stops */
	free(fetch.span);
	return 0;
}

static void the_holder_may_die_in_the_middle_of_a_fetch(void **state)
{
	play(dead_fetch_story);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_name_of_whom_it_calls_need_not_outlast_the_call),
		cmocka_unit_test(a_silent_peer_is_noticed_in_time_and_told_of_once),
		cmocka_unit_test(a_silent_peer_whose_connection_breaks_is_noticed_as_soon),
		cmocka_unit_test(silence_in_one_direction_is_noticed_too),
		cmocka_unit_test(idle_peers_stay_up),
		cmocka_unit_test(a_cut_connection_ends_its_calls_but_is_no_dead_node),
		cmocka_unit_test(a_dead_peer_is_told_of_and_its_next_life_is_found),
		cmocka_unit_test(the_engine_may_die_and_return),
		cmocka_unit_test(an_engine_that_does_not_answer_keeps_nobody_long),
		cmocka_unit_test(a_fetch_from_a_peer_that_falls_silent_ends_and_frees_its_span),
		cmocka_unit_test(a_fetch_ends_at_its_deadline_and_frees_its_span),
		cmocka_unit_test(a_fetch_whose_connection_is_cut_ends_and_the_next_one_succeeds),
		cmocka_unit_test(the_holder_may_die_in_the_middle_of_a_fetch),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
