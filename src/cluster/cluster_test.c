#include "cluster/cluster_fixture.h"

#define MSG_FAIL MSG_G_LOST /* likewise */
#define MSG_WAIT MSG_G_OFFER
#define MSG_NONE MSG_G_WANT

/* ---- what the nodes serve ---- */

static int refuse(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
		  struct error *e)
{
	EXPECT_INT(buf_append(answer, "dropped", 7), 0);
	return error_set(e, -ERR_EREPLICA, "words of %s for %s", (const char *)arg, from);
}

struct waiting {
	unsigned n, ended;
	uint64_t began_ns, deadline_ns;
	int result;
};

static int wait_long(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
		     struct error *e)
{
	struct waiting *waiting = arg;

	waiting->n++;
	waiting->began_ns = loop_now(fiber_loop());
	waiting->deadline_ns = deadline_ns;
	waiting->result = fiber_sleep_until(deadline_ns);
	waiting->ended++;
	return error_set(e, waiting->result ? waiting->result : -ETIMEDOUT, "waited");
}

static struct waiting waiting; /* of the node that serves MSG_WAIT */

static void serve_all(struct bed *bed, int i)
{
	serve_echo(bed, i);
	cluster_serve(at(bed, i), MSG_FAIL, refuse, bed->nodes[i].name);
	waiting = (struct waiting){ 0 };
	cluster_serve(at(bed, i), MSG_WAIT, wait_long, &waiting);
}

/* ---- calls ---- */

static int answers_story(struct bed *bed)
{
	for (int i = 0; i < BED_NODES; i++)
		serve_all(bed, i);
	for (int from = 0; from < BED_NODES; from++)
		for (int to = 0; to < BED_NODES; to++) {
			expect_echo(bed, from, to, "hello");
			expect_echo(bed, from, to, "");
		}
	return 0;
}

static void a_call_is_answered_by_every_node_the_own_one_among_them(void **state)
{
	bed_run(state, answers_story);
}

static int failure_story(struct bed *bed)
{
	_cleanup_(buf_fini) struct buf answer = { 0 };
	struct error e;

	serve_all(bed, 1);
	for (int from = 0; from < 2; from++) {
		EXPECT_CALL(cluster_call(at(bed, from), "n1", MSG_FAIL, view_str("x"), bed_deadline(bed), &answer, &e),
			    -ERR_EREPLICA, &e);
		EXPECT(!strcmp(e.text, from ? "words of n1 for n1" : "words of n1 for n0"));
		EXPECT_INT(answer.len, 0);
		EXPECT_CALL(cluster_call(at(bed, from), "n1", MSG_NONE, view_str("x"), bed_deadline(bed), &answer, &e),
			    -ENOSYS, &e);
		EXPECT(strstr(e.text, "G_WANT"));
	}
	return 0;
}

static void a_failure_comes_back_with_its_code_and_words(void **state)
{
	bed_run(state, failure_story);
}

static int long_story(struct bed *bed)
{
	/* the last: more than a connection queues */
	const size_t sizes[] = { FRAME_BODY_MAX, FRAME_BODY_MAX + 1, 5 * FRAME_BODY_MAX, NET_SEND_QUEUE_MAX + 77 };
	const size_t most = NET_SEND_QUEUE_MAX + 77;
	uint8_t *bytes = malloc(most);
	struct error e;

	EXPECT(bytes);
	bed_fill(bytes, most, 1);
	serve_all(bed, 0);
	serve_all(bed, 1);
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
		for (int to = 0; to < 2; to++) {
			_cleanup_(buf_fini) struct buf answer = { 0 };

			EXPECT_CALL(cluster_call(at(bed, 0), bed->nodes[to].name, MSG_ECHO, view_of(bytes, sizes[i]),
						 bed_deadline(bed), &answer, &e),
				    0, &e);
			EXPECT_INT(answer.len, sizes[i] + 3);
			EXPECT(!memcmp(answer.ptr, "n0:", 3) && !memcmp(answer.ptr + 3, bytes, sizes[i]));
		}
	free(bytes);
	return 0;
}

static void long_bodies_are_cut_into_frames_and_joined(void **state)
{
	bed_run(state, long_story);
}

/* Memory that nobody touches, since only its length is looked at. */
static int say_too_much(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
			struct error *e)
{
	EXPECT_INT(buf_reserve(answer, CALL_BODY_MAX + 1), 0);
	answer->len = CALL_BODY_MAX + 1;
	return 0;
}

static int too_long_story(struct bed *bed)
{
	_cleanup_(buf_fini) struct buf answer = { 0 };
	struct error e;

	for (int to = 0; to < 2; to++) {
		const char *name = bed->nodes[to].name;

		cluster_serve(at(bed, to), MSG_ECHO, say_too_much, NULL);
		EXPECT_CALL(cluster_call(at(bed, 0), name, MSG_ECHO, view_of("x", CALL_BODY_MAX + 1ull),
					 bed_deadline(bed), &answer, &e),
			    -E2BIG, &e);
		EXPECT_CALL(cluster_call(at(bed, 0), name, MSG_ECHO, view_str("x"), bed_deadline(bed), &answer, &e),
			    -E2BIG, &e);
		EXPECT_INT(answer.len, 0);
	}
	return 0;
}

static void bodies_and_answers_that_are_too_long_are_refused(void **state)
{
	bed_run(state, too_long_story);
}

static int deadline_story(struct bed *bed)
{
	struct error e;

	serve_all(bed, 1);
	for (int from = 0; from < 2; from++) {
		uint64_t ms = 30, deadline_ns;

		waiting = (struct waiting){ 0 };
		do { /* it may be over before the server hears of it */
			ms *= 2;
			EXPECT(ms < BED_CALL_MS);
			deadline_ns = env_in_ms(bed->env, ms);
			EXPECT_CALL(cluster_call(at(bed, from), "n1", MSG_WAIT, view_str("x"), deadline_ns, NULL, &e),
				    -ETIMEDOUT, &e);
			EXPECT(env_now(bed->env) >= deadline_ns);
		} while (waiting.deadline_ns < deadline_ns);
		while (waiting.ended < waiting.n)
			fiber_sleep_until(env_in_ms(bed->env, 1));
		EXPECT(waiting.deadline_ns <= waiting.began_ns + (ms + 1) * NS_PER_MS);
	}
	return 0;
}

static void a_call_ends_at_its_deadline_which_the_server_knows(void **state)
{
	bed_run(state, deadline_story);
}

struct caller {
	struct bed *bed;
	int from;
	int result;
};

static int caller_run(void *arg)
{
	struct caller *caller = arg;
	struct error e;

	caller->result = cluster_call(at(caller->bed, caller->from), "n1", MSG_WAIT, view_str("x"),
				      bed_deadline(caller->bed), NULL, &e);
	return 0;
}

static int cancel_story(struct bed *bed)
{
	serve_all(bed, 1);
	for (int from = 0; from < 2; from++) {
		struct caller caller = { .bed = bed, .from = from };
		struct nursery nursery;

		waiting = (struct waiting){ 0 };
		nursery_init(&nursery, bed->env->loop);
		EXPECT_INT(fiber_start(&nursery, "caller", caller_run, &caller), 0);
		while (!waiting.n)
			fiber_sleep_until(env_in_ms(bed->env, 1));
		nursery_fini(&nursery);
		EXPECT_INT(caller.result, -ECANCELED);
		EXPECT_INT(waiting.ended, 0);
	}
	return 0; /* the served calls end when the node stops */
}

static void a_cancelled_call_ends_at_once(void **state)
{
	bed_run(state, cancel_story);
}

static int many_story(struct bed *bed)
{
	enum { N = 500 };
	static struct caller callers[N];
	struct nursery nursery;

	serve_all(bed, 1);
	nursery_init(&nursery, bed->env->loop);
	for (int i = 0; i < N; i++) {
		callers[i] = (struct caller){ .bed = bed };
		EXPECT_INT(fiber_start(&nursery, "caller", caller_run, &callers[i]), 0);
	}
	while (waiting.n < N)
		fiber_sleep_until(env_in_ms(bed->env, 1));
	bed_stop(bed, 1); /* its connections go, and so do the calls in both directions */
	EXPECT_INT(waiting.ended, N);
	EXPECT_INT(waiting.result, -ECANCELED);
	EXPECT_INT(nursery_wait(&nursery, bed_deadline(bed)), 0);
	for (int i = 0; i < N; i++)
		EXPECT_INT(callers[i].result, -EHOSTDOWN);
	return 0;
}

static void when_a_node_stops_all_calls_to_it_end(void **state)
{
	bed_run(state, many_story);
}

static int unknown_story(struct bed *bed)
{
	struct error e;

	EXPECT_CALL(cluster_call(at(bed, 1), "n9", MSG_ECHO, view_str("x"), bed_deadline(bed), NULL, &e), -ENOENT, &e);
	EXPECT(strstr(e.text, "n9"));
	EXPECT_CALL(cluster_call(at(bed, 1), "../x", MSG_ECHO, view_str("x"), bed_deadline(bed), NULL, &e), -EINVAL,
		    &e);
	return 0;
}

static void unknown_nodes_are_named(void **state)
{
	bed_run(state, unknown_story);
}

/* ---- peers that come and go ---- */

struct watcher {
	struct peer_watch watch;
	unsigned n;
	char node[NODE_NAME_MAX + 1];
};

static void watcher_down(struct peer_watch *watch, const char *node)
{
	struct watcher *watcher = container_of(watch, struct watcher, watch);

	watcher->n++;
	snprintf(watcher->node, sizeof(watcher->node), "%s", node);
}

static int restart_story(struct bed *bed)
{
	struct watcher one = { .watch.down = watcher_down }, other = { .watch.down = watcher_down };
	struct node_info info;
	struct error e;

	cluster_watch(at(bed, 0), &one.watch);
	cluster_watch(at(bed, 0), &other.watch);
	serve_all(bed, 1);
	expect_echo(bed, 0, 1, "a");
	bed_stop(bed, 1);
	while (!other.n)
		fiber_sleep_until(env_in_ms(bed->env, 1));
	EXPECT_INT(one.n, 1);
	EXPECT(!strcmp(one.node, "n1") && !strcmp(other.node, "n1"));
	EXPECT_CALL(cluster_call(at(bed, 0), "n1", MSG_ECHO, view_str("x"), bed_deadline(bed), NULL, &e), -EHOSTDOWN,
		    &e);
	EXPECT_CALL(cluster_node_info(at(bed, 0), "n1", bed_deadline(bed), &info, &e), 0, &e);
	EXPECT(!info.up);
	cluster_unwatch(&other.watch);

	bed_start(bed, 1); /* at another address */
	serve_all(bed, 1);
	EXPECT_CALL(cluster_node_info(at(bed, 0), "n1", bed_deadline(bed), &info, &e), 0, &e);
	EXPECT(info.up && info.incarnation == 2); /* though nobody has called it */
	expect_echo(bed, 0, 1, "b");
	EXPECT_CALL(cluster_node_info(at(bed, 0), "n1", bed_deadline(bed), &info, &e), 0, &e);
	EXPECT(info.up && info.incarnation == 2 && !strcmp(info.address, cluster_address(at(bed, 1))));
	EXPECT_INT(one.n, 1); /* told once */
	cluster_unwatch(&one.watch);
	return 0;
}

static void a_node_that_went_is_told_of_once_and_found_again_when_it_is_back(void **state)
{
	bed_run(state, restart_story);
}

static int engine_restart_story(struct bed *bed)
{
	_cleanup_(buf_fini) struct buf value = { 0 };
	struct error e;

	serve_all(bed, 1);
	serve_all(bed, 2);
	expect_echo(bed, 1, 2, "a");
	bed_stop(bed, 0);
	expect_echo(bed, 1, 2, "b"); /* those who know each other need no engine */
	int r = meta_get(cluster_meta(at(bed, 1)), view_str(CLUSTER_GENERATION_KEY), &value, bed_deadline(bed), &e);
	EXPECT_INT(r, -EHOSTDOWN);
	return 0;
}

static void without_the_engine_nodes_that_know_each_other_go_on(void **state)
{
	bed_run(state, engine_restart_story);
}

/* ---- who is who ---- */

static int foreign_story(struct bed *bed)
{
	struct error e;
	struct cluster *foreign = bed_new(bed, 2, "another", &e);

	EXPECT_CALL(cluster_join(foreign, bed_deadline(bed), &e), -EPERM, &e);
	EXPECT(strstr(e.text, "cluster bed") && strstr(e.text, "another"));
	cluster_stop(foreign);
	cluster_free(foreign);
	return 0;
}

static void a_node_of_another_cluster_is_refused(void **state)
{
	bed_run(state, foreign_story);
}

static void write_ghost(struct bed *bed, const char *address);

static int key_story(struct bed *bed)
{
	const char *const keys[] = { "a key that is another one", NULL };
	const enum counter reasons[] = { COUNT_PEER_PROOF, COUNT_PEER_UNPROVEN };
	struct error e;

	for (int i = 0; i < 2; i++) {
		uint64_t before = count_value(reasons[i]);

		bed->key = keys[i];
		struct cluster *stranger = bed_new(bed, 2, "bed", &e);
		EXPECT_CALL(cluster_join(stranger, bed_deadline(bed), &e), -EACCES, &e);
		EXPECT(strstr(e.text, "key"));
		EXPECT_INT(cluster_has_key(stranger), i == 0);
		EXPECT(count_value(reasons[i]) > before);

		/* and it lets nobody in that knows it by its address: neither kind of connection comes up */
		write_ghost(bed, cluster_address(stranger));
		struct digest digest = { { 1 } };
		uint8_t span[8];
		uint32_t crc;
		EXPECT_CALL(cluster_call(at(bed, 1), "ghost", MSG_ECHO, view_str("x"), bed_deadline(bed), NULL, &e),
			    -EACCES, &e);
		EXPECT_CALL(cluster_fetch(at(bed, 1), "ghost", "t", &digest, 8, 0, span, &crc, bed_deadline(bed), &e),
			    -EACCES, &e);
		cluster_stop(stranger);
		cluster_free(stranger);
	}
	EXPECT_CALL(cluster_call(at(bed, 1), "n0", MSG_PING, view_str(""), bed_deadline(bed), NULL, &e), 0, &e);
	return 0;
}

static void a_node_without_the_key_neither_comes_in_nor_lets_in(void **state)
{
	bed_run(state, key_story);
}

static void nothing(void *arg)
{
}

static void no_frame(void *arg, const struct frame_head *head, struct view body)
{
}

static void note_down(void *arg, int reason, const char *words)
{
	struct net_conn **conn = arg;

	net_close(TAKE(*conn));
}

static int strangers_story(struct bed *bed)
{
	enum { KNOCKS = STRANGERS_MAX + 9 };
	struct net_conn *conns[KNOCKS];
	struct error e;

	uint64_t before = count_value(COUNT_PEER_LIMIT);

	serve_all(bed, 0);
	for (int i = 0; i < KNOCKS; i++) {
		const struct net_events events = { .up = nothing,
						   .frame = no_frame,
						   .down = note_down,
						   .arg = &conns[i] };

		EXPECT_INT(net_connect(bed->env, cluster_address(at(bed, 0)), &events, &conns[i]), 0);
	}
	while (count_value(COUNT_PEER_LIMIT) - before < KNOCKS - STRANGERS_MAX)
		EXPECT_INT(fiber_sleep_until(env_in_ms(bed->env, 1)), 0);
	for (int i = 0; i < KNOCKS - STRANGERS_MAX; i++)
		while (conns[i]) /* the oldest */
			EXPECT_INT(fiber_sleep_until(env_in_ms(bed->env, 1)), 0);
	EXPECT(conns[KNOCKS - 1]);
	expect_echo(bed, 1, 0, "still heard");
	EXPECT_CALL(cluster_call(at(bed, 2), "n0", MSG_ECHO, view_str("x"), bed_deadline(bed), NULL, &e), 0, &e);
	for (int i = 0; i < KNOCKS; i++)
		net_close(TAKE(conns[i]));
	return 0;
}

static void many_who_knock_and_say_nothing_keep_nobody_out(void **state)
{
	bed_run(state, strangers_story);
}

/* A record that names the address of somebody else. */
static void write_ghost(struct bed *bed, const char *address)
{
	struct meta_req *req = meta_req_new(META_TXN);
	_cleanup_(buf_fini) struct buf value = { 0 };
	const struct view fields[] = { view_str(address), view_str("rack9") };
	const uint64_t one = 1;
	struct error e;

	EXPECT(!put_str(&value, &fields[0]) && !put_str(&value, &fields[1]) && !put_u64(&value, &one) &&
	       !put_u64(&value, &one));
	EXPECT_INT(meta_txn_put(req, view_str("n/ghost"), view_buf(&value)), 0);
	EXPECT_CALL(meta_call_run(bed->meta, &req, bed_deadline(bed), &e), 0, &e);
	meta_req_free(req);
}

static int ghost_story(struct bed *bed)
{
	struct error e;

	write_ghost(bed, cluster_address(at(bed, 1)));
	EXPECT_CALL(cluster_call(at(bed, 0), "ghost", MSG_ECHO, view_str("x"), bed_deadline(bed), NULL, &e), -EHOSTDOWN,
		    &e);
	EXPECT(strstr(e.text, "node n1"));
	return 0;
}

static void an_answer_from_another_node_than_was_dialled_is_refused(void **state)
{
	bed_run(state, ghost_story);
}

static int zombie_story(struct bed *bed)
{
	struct error e;
	struct watcher watcher = { .watch.down = watcher_down };

	for (int i = 0; i < BED_NODES; i++)
		serve_all(bed, i);
	expect_echo(bed, 1, 2, "a");
	expect_echo(bed, 2, 1, "a");
	cluster_watch(at(bed, 2), &watcher.watch);
	struct cluster *first = at(bed, 1);
	struct pool *pool = bed->nodes[1].pool;
	bed_start(bed, 1); /* while the first still runs */
	EXPECT_INT(cluster_incarnation(at(bed, 1)), 2);
	serve_all(bed, 1);
	expect_echo(bed, 1, 2, "b");
	EXPECT_INT(watcher.n, 1); /* another incarnation */
	expect_echo(bed, 2, 1, "b");
	int r;
	do /* the first may not know yet that its connection was closed */
		r = cluster_call(first, "n2", MSG_ECHO, view_str("x"), bed_deadline(bed), NULL, &e);
	while (r == -EHOSTDOWN);
	EXPECT_INT(r, -ERR_ESTALEEPOCH);
	cluster_unwatch(&watcher.watch);
	cluster_stop(first);
	cluster_free(first);
	pool_free(pool);
	return 0;
}

static void an_older_incarnation_is_shut_out_once_the_newer_has_spoken(void **state)
{
	bed_run(state, zombie_story);
}

/* ---- generations ---- */

static int fence_story(struct bed *bed)
{
	struct error e;

	for (int i = 0; i < BED_NODES; i++) {
		serve_all(bed, i);
		EXPECT_INT(cluster_generation(at(bed, i)), 1);
	}
	expect_echo(bed, 1, 0, "a");
	cluster_set_generation(at(bed, 0), 3);
	EXPECT_CALL(cluster_call(at(bed, 1), "n0", MSG_ECHO, view_str("x"), bed_deadline(bed), NULL, &e),
		    -ERR_ESTALEEPOCH, &e);
	expect_echo(bed, 1, 0, "b"); /* the refusal told it of the new one */
	EXPECT_INT(cluster_generation(at(bed, 1)), 3);
	expect_echo(bed, 1, 2, "c"); /* and it tells others */
	EXPECT_INT(cluster_generation(at(bed, 2)), 3);
	return 0;
}

static void calls_of_an_older_generation_are_refused_and_the_newer_spreads(void **state)
{
	bed_run(state, fence_story);
}

/* ---- members ---- */

static int members_story(struct bed *bed)
{
	struct node_info *nodes, info;
	struct error e;
	size_t n;

	for (int i = 0; i < BED_NODES; i++) {
		EXPECT_CALL(cluster_nodes(at(bed, i), bed_deadline(bed), &nodes, &n, &e), 0, &e);
		EXPECT_INT(n, BED_NODES);
		for (int k = 0; k < BED_NODES; k++) {
			EXPECT(!strcmp(nodes[k].name, bed->nodes[k].name) &&
			       !strcmp(nodes[k].domain, bed->nodes[k].domain));
			EXPECT(!strcmp(nodes[k].address, cluster_address(at(bed, k))));
			EXPECT_INT(nodes[k].store_rate, 1000 * (k + 1));
			EXPECT_INT(nodes[k].incarnation, 1);
			EXPECT(nodes[k].up);
			EXPECT_CALL(cluster_node_info(at(bed, i), nodes[k].name, bed_deadline(bed), &info, &e), 0, &e);
			EXPECT(!memcmp(&info, &nodes[k], sizeof(info)));
		}
		free(nodes);
	}
	EXPECT_CALL(cluster_node_info(at(bed, 1), "n9", bed_deadline(bed), &info, &e), -ENOENT, &e);
	return 0;
}

static void every_node_knows_all_members_sorted_by_name(void **state)
{
	bed_run(state, members_story);
}

static int domain_story(struct bed *bed)
{
	const struct cluster_options options = {
		.node = "alone",
		.listen = "tcp:127.0.0.1:0",
		.cluster_id = "bed",
		.meta = bed->meta,
		.backend = bed->backend,
	};
	struct cluster_options bad = options;
	struct cluster *cluster;
	struct node_info info;
	struct error e;

	EXPECT_CALL(cluster_new(bed->env, &options, &cluster, &e), 0, &e);
	EXPECT_CALL(cluster_node_info(cluster, "alone", bed_deadline(bed), &info, &e), 0, &e);
	EXPECT(!strcmp(info.domain, "alone"));
	bad.node = "a b";
	EXPECT_CALL(cluster_new(bed->env, &bad, &bed->nodes[1].cluster, &e), -EINVAL, &e);
	bad = options;
	bad.listen = cluster_address(cluster);
	EXPECT_CALL(cluster_new(bed->env, &bad, &bed->nodes[1].cluster, &e), -EADDRINUSE, &e);
	cluster_stop(cluster);
	cluster_free(cluster);
	return 0;
}

static void a_node_is_its_own_failure_domain_unless_told_otherwise(void **state)
{
	bed_run(state, domain_story);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_call_is_answered_by_every_node_the_own_one_among_them),
		TEST(a_failure_comes_back_with_its_code_and_words),
		TEST(long_bodies_are_cut_into_frames_and_joined),
		TEST(bodies_and_answers_that_are_too_long_are_refused),
		TEST(a_call_ends_at_its_deadline_which_the_server_knows),
		TEST(a_cancelled_call_ends_at_once),
		TEST(when_a_node_stops_all_calls_to_it_end),
		TEST(unknown_nodes_are_named),
		TEST(a_node_that_went_is_told_of_once_and_found_again_when_it_is_back),
		TEST(without_the_engine_nodes_that_know_each_other_go_on),
		TEST(a_node_of_another_cluster_is_refused),
		TEST(a_node_without_the_key_neither_comes_in_nor_lets_in),
		TEST(many_who_knock_and_say_nothing_keep_nobody_out),
		TEST(an_answer_from_another_node_than_was_dialled_is_refused),
		TEST(an_older_incarnation_is_shut_out_once_the_newer_has_spoken),
		TEST(calls_of_an_older_generation_are_refused_and_the_newer_spreads),
		TEST(every_node_knows_all_members_sorted_by_name),
		TEST_NEW(a_node_is_its_own_failure_domain_unless_told_otherwise),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
