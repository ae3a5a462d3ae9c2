#include "cluster/cluster_fixture.h"

#include "base/log.h"
#include "wire/record.h"

static int first_story(struct bed *bed)
{
	_cleanup_(buf_fini) struct buf token = { 0 };
	struct error e;

	bed_start(bed, 0);
	EXPECT_INT(cluster_generation(at(bed, 0)), 1);
	EXPECT_INT(cluster_incarnation(at(bed, 0)), 1);
	EXPECT_CALL(backend_read(bed->backend, "g/1", 4096, &token, bed_deadline(bed), &e), 0, &e);
	bed_stop(bed, 0);
	bed_start(bed, 0);
	EXPECT_INT(cluster_generation(at(bed, 0)), 1);
	EXPECT_INT(cluster_incarnation(at(bed, 0)), 2);
	return 0;
}

static void a_new_cluster_begins_with_generation_1_and_keeps_it(void **state)
{
	bed_run(state, first_story);
}

/* A claim of another cluster's, or what is left of one of this. */
static void put_claim(struct bed *bed, const char *key, uint32_t generation, uint64_t life, const char *token)
{
	_cleanup_(buf_fini) struct buf body = { 0 }, object = { 0 };
	const struct rec_generation rec = { .cluster = view_str("theirs"),
					    .node = view_str("x9"),
					    .life = life,
					    .token = view_str(token) };
	const struct record_head head = { .kind = RECORD_GENERATION, .number = generation, .generation = generation };
	struct error e;

	EXPECT_INT(rec_generation_encode(&rec, &body), 0);
	EXPECT_INT(record_seal(&head, view_buf(&body), &object), 0);
	EXPECT_CALL(backend_write(bed->backend, key, view_buf(&object), false, bed_deadline(bed), &e), 0, &e);
}

static void put_row(struct bed *bed, const char *key, struct view value)
{
	struct meta_req *req = meta_req_new(META_TXN);
	struct error e;

	EXPECT_INT(meta_txn_put(req, view_str(key), value), 0);
	EXPECT_CALL(meta_call_run(bed->meta, &req, bed_deadline(bed), &e), 0, &e);
	meta_req_free(req);
}

/* In the index, as a rebuild leaves it there. */
static void put_mark(struct bed *bed, uint32_t generation, uint64_t life, const char *token)
{
	_cleanup_(buf_fini) struct buf value = { 0 };
	const struct row_generation row = { .generation = generation, .life = life, .token = view_str(token) };

	EXPECT_INT(row_generation_encode(&row, &value), 0);
	put_row(bed, CLUSTER_GENERATION_KEY, view_buf(&value));
}

static int lost_story(struct bed *bed)
{
	struct error e;

	put_claim(bed, "g/1", 1, 0, "another");
	struct cluster *cluster = bed_new(bed, 0, "bed", &e);
	EXPECT_CALL(cluster_join(cluster, bed_deadline(bed), &e), -ERR_EREBUILD, &e);
	EXPECT(strstr(e.text, "forebay meta rebuild"));
	put_claim(bed, "g/12", 12, 0, "another");
	EXPECT_CALL(cluster_join(cluster, bed_deadline(bed), &e), -ERR_EREBUILD, &e);
	EXPECT(strstr(e.text, "generation 12"));
	cluster_stop(cluster);
	cluster_free(cluster);
	return 0;
}

static void an_empty_engine_before_a_store_in_use_must_be_rebuilt(void **state)
{
	bed_run(state, lost_story);
}

static int older_story(struct bed *bed)
{
	struct error e;

	bed_start(bed, 0);
	bed_stop(bed, 0);
	put_claim(bed, "g/2", 2, 0, "another");
	struct cluster *cluster = bed_new(bed, 0, "bed", &e);
	EXPECT_CALL(cluster_join(cluster, bed_deadline(bed), &e), -ERR_EREBUILD, &e);
	EXPECT(strstr(e.text, "generation 1") && strstr(e.text, "of 2"));
	cluster_stop(cluster);
	cluster_free(cluster);
	return 0;
}

static void an_engine_older_than_the_store_must_be_rebuilt(void **state)
{
	bed_run(state, older_story);
}

/* @ms: for the join, doubled as long as it is too short to see anything. Above BACKEND_NAME_LATE_MS a name that may come late is waited for. */
static void expect_unmounted(struct bed *bed, struct cluster *cluster, unsigned ms, const char *what)
{
	char path[96];
	struct error e = { 0 };
	int r;

	snprintf(path, sizeof(path), "%s/store", bed->dir);
	while ((r = cluster_join(cluster, env_in_ms(bed->env, ms), &e)) == -ETIMEDOUT && ms < BED_CALL_MS)
		ms *= 2;
	EXPECT_INT(r, -ENODEV);
	EXPECT(strstr(e.text, path) && strstr(e.text, "is it mounted?") && strstr(e.text, what));
}

static void move_store(struct bed *bed, const char *from, const char *to)
{
	char a[96], b[96];

	snprintf(a, sizeof(a), "%s/%s", bed->dir, from);
	snprintf(b, sizeof(b), "%s/%s", bed->dir, to);
	EXPECT_INT(rename(a, b), 0);
}

/* An empty folder where the store's disk was: what is put there would lie beside the store. */
static int unmounted_story(struct bed *bed)
{
	struct error e;

	bed_start(bed, 0);
	for (int i = 0; i < 2; i++) { /* the engine's own node, and another */
		if (!i)
			bed_stop(bed, 0);
		struct cluster *cluster = bed_new(bed, i, "bed", &e);
		move_store(bed, "store/g", "aside");
		expect_unmounted(bed, cluster, i ? 100 : BED_CALL_MS, i ? "no object g/1.2:" : "no object g/1:");
		move_store(bed, "aside", "store/g");
		EXPECT_CALL(cluster_join(cluster, bed_deadline(bed), &e), 0, &e); /* mounted meanwhile */
		cluster_stop(cluster);
		cluster_free(cluster);
		if (!i)
			bed_start(bed, 0);
	}
	return 0;
}

static void a_store_without_the_generation_of_the_index_is_not_joined(void **state)
{
	bed_run(state, unmounted_story);
}

/* Another disk, which was this store's once: a copy from before a rebuild. */
static int old_store_story(struct bed *bed)
{
	struct error e;

	bed_start(bed, 0);
	bed_stop(bed, 0);
	put_mark(bed, 2, 0, "rebuilt");
	struct cluster *cluster = bed_new(bed, 0, "bed", &e);
	expect_unmounted(bed, cluster, 100, "has no object g/2, only g/1:");
	cluster_stop(cluster);
	cluster_free(cluster);
	return 0;
}

static void a_store_of_an_older_generation_than_the_index_is_not_joined(void **state)
{
	bed_run(state, old_store_story);
}

/* Equal numbers: another cluster's store lies there, or a copy from before the last start. */
static int other_store_story(struct bed *bed)
{
	struct error e;

	bed_start(bed, 0);
	bed_stop(bed, 0);
	move_store(bed, "store/g/1", "own");
	put_claim(bed, "g/1", 1, 0, "another");
	struct cluster *cluster = bed_new(bed, 0, "bed", &e);
	EXPECT_CALL(cluster_join(cluster, bed_deadline(bed), &e), -ENODEV, &e);
	EXPECT(strstr(e.text, "another store") && strstr(e.text, "g/1 is of cluster theirs, node x9"));
	move_store(bed, "own", "store/g/1");
	EXPECT_CALL(cluster_join(cluster, bed_deadline(bed), &e), 0, &e); /* the right one, and from now on g/1.1 */
	cluster_stop(cluster);
	cluster_free(cluster);

	move_store(bed, "store/g/1.1", "newer");
	cluster = bed_new(bed, 0, "bed", &e);
	expect_unmounted(bed, cluster, 100, "has no object g/1.1, only g/1:");
	move_store(bed, "newer", "store/g/1.1");
	cluster_stop(cluster);
	cluster_free(cluster);
	return 0;
}

static void a_store_of_others_or_an_older_copy_is_not_joined_however_equal_the_numbers(void **state)
{
	bed_run(state, other_store_story);
}

/* A copy of the index was started elsewhere, and then this one. */
static int copied_story(struct bed *bed)
{
	struct error e;

	bed_start(bed, 0);
	bed_stop(bed, 0);
	put_claim(bed, "g/1.1", 1, 1, "the copy's");
	struct cluster *cluster = bed_new(bed, 0, "bed", &e);
	EXPECT_CALL(cluster_join(cluster, bed_deadline(bed), &e), -ERR_EREBUILD, &e);
	EXPECT(strstr(e.text, "another engine has used since: of cluster theirs, node x9") && strstr(e.text, "g/1.1"));
	cluster_stop(cluster);
	cluster_free(cluster);
	return 0;
}

static void an_index_whose_copy_has_used_the_store_since_is_refused(void **state)
{
	bed_run(state, copied_story);
}

/* Killed between the claim of its life and the mark. */
static int cut_claim_story(struct bed *bed)
{
	struct error e;

	bed_start(bed, 0);
	bed_stop(bed, 0);
	put_row(bed, CLUSTER_ENGINE_KEY, view_str("under way")); /* before the object: */
	for (int i = 0; i < 2; i++) {
		if (i)
			put_claim(bed, "g/1.2", 1, 2, "under way"); /* behind it */
		bed_start(bed, 0);
		bed_stop(bed, 0);
		put_row(bed, CLUSTER_ENGINE_KEY, view_str("under way"));
	}
	_cleanup_(buf_fini) struct buf there = { 0 };
	EXPECT_CALL(backend_read(bed->backend, "g/1.3", 4096, &there, bed_deadline(bed), &e), 0, &e);
	return 0;
}

static void a_start_that_was_cut_while_it_claimed_the_store_is_gone_on_with(void **state)
{
	bed_run(state, cut_claim_story);
}

static void expect_hold(struct bed *bed, int i, int expected, const char *words)
{
	struct error e = { 0 };

	EXPECT_CALL(cluster_hold(at(bed, i), bed_deadline(bed), &e), expected, &e);
	EXPECT(!*words || strstr(e.text, words));
}

/* Another engine comes, on the same store; then nobody publishes or deletes here, and the index is not believed any more. */
static int taken_story(struct bed *bed)
{
	_cleanup_(buf_fini) struct buf value = { 0 };
	uint64_t limit_ns = bed_deadline(bed);
	struct error e = { 0 };

	expect_hold(bed, 0, 0, "");
	expect_hold(bed, 1, 0, "");
	put_claim(bed, "g/2", 2, 0, "another");
	expect_hold(bed, 1, -ERR_EREBUILD, "has been taken over by cluster theirs, node x9: its object g/2");
	while (!cluster_taken(at(bed, 0), &e) && env_now(bed->env) < limit_ns) /* nobody asked this one */
		EXPECT_INT(fiber_sleep_until(env_in_ms(bed->env, 20)), 0);
	EXPECT(strstr(e.text, "taken over by cluster theirs"));
	expect_hold(bed, 0, -ERR_EREBUILD, "taken over");
	for (int i = 0; i < 2; i++) {
		EXPECT_CALL(meta_get(cluster_meta(at(bed, i)), view_str("n/n0"), &value, bed_deadline(bed), &e),
			    -ERR_EREBUILD, &e);
		EXPECT(strstr(e.text, "taken over by cluster theirs"));
	}
	return 0;
}

static void a_store_that_another_engine_claims_is_given_up_at_once(void **state)
{
	bed_run(state, taken_story);
}

/* The own engine's next life, and its own rebuild, are no others: also while the rebuild goes on. */
static int own_claims_story(struct bed *bed)
{
	uint32_t generation;
	struct error e;

	put_row(bed, CLUSTER_ENGINE_KEY, view_str("next"));
	put_claim(bed, "g/1.1", 1, 1, "next");
	for (int i = 0; i < BED_NODES; i++)
		expect_hold(bed, i, 0, "");
	put_mark(bed, 1, 1, "next");
	EXPECT_CALL(cluster_raise_generation(at(bed, 1), bed_deadline(bed), &generation, &e), 0, &e);
	EXPECT_INT(generation, 2);
	for (int i = 0; i < BED_NODES; i++)
		expect_hold(bed, i, 0, "");
	EXPECT_CALL(cluster_mark_generation(at(bed, 1), generation, bed_deadline(bed), &e), 0, &e);
	expect_hold(bed, 0, 0, "");
	return 0;
}

static void an_engine_s_next_life_and_its_own_rebuild_are_no_others(void **state)
{
	bed_run(state, own_claims_story);
}

static int gone_story(struct bed *bed)
{
	move_store(bed, "store/g", "aside");
	expect_hold(bed, 1, -ENODEV, "has no object g/1 any more: is it still mounted?");
	move_store(bed, "aside", "store/g");
	expect_hold(bed, 1, 0, "");
	return 0;
}

static void a_store_that_is_not_mounted_any_more_is_neither_published_to_nor_deleted_from(void **state)
{
	bed_run(state, gone_story);
}

/* A try to join that failed half-way has left a generation, which a rebuild has overtaken since. */
static int overtaken_story(struct bed *bed)
{
	const uint32_t rebuilt = 3;
	struct error e;

	bed_start(bed, 0);
	struct cluster *cluster = bed_new(bed, 1, "bed", &e);
	cluster_set_generation(cluster, 1);
	put_mark(bed, rebuilt, 0, "rebuilt");
	put_claim(bed, "g/3", rebuilt, 0, "rebuilt");
	cluster_set_generation(at(bed, 0), rebuilt);
	EXPECT_CALL(cluster_join(cluster, bed_deadline(bed), &e), 0, &e);
	EXPECT_INT(cluster_generation(cluster), rebuilt);
	cluster_stop(cluster);
	cluster_free(cluster);
	return 0;
}

static void a_node_that_tries_to_join_again_asks_for_the_generation_anew(void **state)
{
	bed_run(state, overtaken_story);
}

/* The engine's disk is lost, its node starts with an empty one and rebuilds it; the others have gone on. */
static int reborn_engine_story(struct bed *bed)
{
	const uint32_t rebuilt = 2;
	struct node_info info;
	char path[96], address[128];
	struct error e;

	snprintf(address, sizeof(address), "%s", cluster_address(at(bed, 0)));
	bed->listen = address;
	bed_stop(bed, 0);
	bed_start(bed, 0); /* in its second life */
	serve_echo(bed, 0);
	serve_echo(bed, 1);
	expect_echo(bed, 1, 0, "a");
	bed_stop(bed, 0);
	EXPECT_INT(calls_drain(NULL, bed->meta, bed_deadline(bed)), 0);
	meta_free(bed->meta);
	snprintf(path, sizeof(path), "%s/meta2", bed->dir);
	EXPECT_CALL(meta_lmdb_open(bed->env, path, &bed->meta, &e), 0, &e);
	put_mark(bed, rebuilt, 0, "rebuilt");
	put_claim(bed, "g/2", rebuilt, 0, "rebuilt");
	bed_start(bed, 0);
	serve_echo(bed, 0);
	expect_echo(bed, 1, 0, "b"); /* it is no older life of itself */
	while (cluster_node_info(at(bed, 0), "n1", bed_deadline(bed), &info, &e))
		EXPECT_INT(fiber_sleep_until(env_in_ms(bed->env, 10)), 0); /* n1 says again who it is */
	EXPECT_INT(info.incarnation, 1);
	bed->listen = NULL;
	expect_echo(bed, 0, 1, "c");
	return 0;
}

static void a_cluster_goes_on_with_an_engine_that_was_lost_and_rebuilt(void **state)
{
	bed_run(state, reborn_engine_story);
}

/* The first start wrote the token and g/1, and was killed before it wrote the generation. */
static int cut_story(struct bed *bed)
{
	put_row(bed, CLUSTER_ENGINE_KEY, view_str("token"));
	put_claim(bed, "g/1", 1, 0, "token");
	bed_start(bed, 0);
	EXPECT_INT(cluster_generation(at(bed, 0)), 1);
	return 0;
}

static void a_first_start_that_was_cut_short_is_gone_on_with(void **state)
{
	bed_run(state, cut_story);
}

/* ---- a store that cannot be written ---- */

static unsigned unclaimed; /* lines in the log that a life of an engine goes on under the claim of the last one */

static void count_unclaimed(void *arg, enum log_level level, const char *line)
{
	unclaimed += level == LOG_WARN && !strncmp(line, "cluster.unclaimed ", 18) && strstr(line, "cannot write");
}

static const struct backend_driver *writable;
static int no_puts; /* why */

static void submit_no_puts(struct backend *backend, struct backend_req *req)
{
	if (req->op != BACKEND_PUT)
		writable->submit(backend, req);
	else
		backend_finish_later(req, error_set(&req->error, no_puts, "%s: cannot write", req->key));
}

static int unwritable_story(struct bed *bed)
{
	static const struct backend_driver driver = { "dir", submit_no_puts, NULL };
	const int reasons[] = { -EROFS, -ENOSPC, -EDQUOT };
	_cleanup_(buf_fini) struct buf there = { 0 };
	struct error e;

	bed_start(bed, 0);
	bed_stop(bed, 0);
	log_setup(LOG_WARN, count_unclaimed, NULL);
	writable = bed->backend->driver;
	bed->backend->driver = &driver;
	for (unsigned i = 0; i < 3; i++) {
		no_puts = reasons[i];
		bed_start(bed, 0); /* it can be read, and room made in it */
		EXPECT_INT(unclaimed, i + 1);
		EXPECT_INT(cluster_generation(at(bed, 0)), 1);
		expect_hold(bed, 0, 0, "");
		bed_stop(bed, 0);
	}
	no_puts = -EIO; /* nobody knows what that is: it is no life of the engine's */
	struct cluster *cluster = bed_new(bed, 0, "bed", &e);
	EXPECT_CALL(cluster_join(cluster, bed_deadline(bed), &e), -EIO, &e);
	bed->backend->driver = writable;
	EXPECT_CALL(cluster_join(cluster, bed_deadline(bed), &e), 0,
		    &e); /* by and by it can: this life has a claim again */
	EXPECT_CALL(backend_read(bed->backend, "g/1.1", 4096, &there, bed_deadline(bed), &e), 0, &e);
	EXPECT_INT(unclaimed, 3);
	cluster_stop(cluster);
	cluster_free(cluster);
	log_setup(LOG_WARN, NULL, NULL);
	return 0;
}

static void an_engine_whose_store_cannot_be_written_goes_on_under_the_claim_of_its_last_life(void **state)
{
	bed_run(state, unwritable_story);
}

/* Its object is there, and nobody knows whether it is durable: power lost may take it along. */
static int unsettled_story(struct bed *bed)
{
	static const struct backend_driver driver = { "dir", submit_no_puts, NULL };
	const unsigned before = unclaimed;

	bed_start(bed, 0);
	bed_stop(bed, 0);
	put_row(bed, CLUSTER_ENGINE_KEY, view_str("under way"));
	put_claim(bed, "g/1.1", 1, 1, "under way");
	log_setup(LOG_WARN, count_unclaimed, NULL);
	writable = bed->backend->driver;
	bed->backend->driver = &driver;
	no_puts = -ENOSPC;
	bed_start(bed, 0);
	EXPECT_INT(unclaimed, before + 1);
	bed_stop(bed, 0);
	bed->backend->driver = writable;
	log_setup(LOG_WARN, NULL, NULL);
	move_store(bed, "store/g/1.1", "lost");
	bed_start(bed, 0);
	EXPECT_INT(cluster_generation(at(bed, 0)), 1);
	return 0;
}

static void a_claim_of_a_start_that_was_cut_counts_only_when_it_is_known_to_last(void **state)
{
	bed_run(state, unsettled_story);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST_NEW(a_new_cluster_begins_with_generation_1_and_keeps_it),
		TEST_NEW(an_empty_engine_before_a_store_in_use_must_be_rebuilt),
		TEST_NEW(an_engine_older_than_the_store_must_be_rebuilt),
		TEST_NEW(a_node_that_tries_to_join_again_asks_for_the_generation_anew),
		TEST(a_cluster_goes_on_with_an_engine_that_was_lost_and_rebuilt),
		TEST_NEW(a_store_without_the_generation_of_the_index_is_not_joined),
		TEST_NEW(a_store_of_an_older_generation_than_the_index_is_not_joined),
		TEST_NEW(a_first_start_that_was_cut_short_is_gone_on_with),
		TEST_NEW(a_store_of_others_or_an_older_copy_is_not_joined_however_equal_the_numbers),
		TEST_NEW(an_index_whose_copy_has_used_the_store_since_is_refused),
		TEST_NEW(a_start_that_was_cut_while_it_claimed_the_store_is_gone_on_with),
		TEST(a_store_that_another_engine_claims_is_given_up_at_once),
		TEST(an_engine_s_next_life_and_its_own_rebuild_are_no_others),
		TEST(a_store_that_is_not_mounted_any_more_is_neither_published_to_nor_deleted_from),
		TEST_NEW(an_engine_whose_store_cannot_be_written_goes_on_under_the_claim_of_its_last_life),
		TEST_NEW(a_claim_of_a_start_that_was_cut_counts_only_when_it_is_known_to_last),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
