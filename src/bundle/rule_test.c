/* bundle/rule_test.c: rules of what is kept. */
#include "bundle/ends_fixture.h"

static void expect_rule(struct shelf *shelf, uint64_t last, uint64_t every)
{
	const struct place at = place();
	struct row_bundle row;
	struct error e;

	EXPECT_CALL(row_read_bundle(shelf->bundles, &at, &row, deadline(shelf), &e), 0, &e);
	EXPECT_INT(row.keep_last, last);
	EXPECT_INT(row.keep_every, every);
}

static void a_rule_keeps_the_last_each_kth_and_what_is_labelled_or_read(struct shelf *shelf, struct shelf *other,
									struct error *e)
{
	struct version *version = NULL;

	EXPECT_CALL(retain(shelf, 3, 5, e), -ENOENT, e);
	for (uint64_t seed = 1; seed <= 12; seed++)
		shelf_save(shelf, bundle, seed);
	EXPECT_CALL(label_set(shelf->bundles, tenant(), view_str(bundle), view_str("prod"), 0, 2, deadline(shelf), e),
		    0, e);
	EXPECT_CALL(open_it(other, "7", &version, e), 0, e);
	EXPECT_CALL(retain(shelf, 0, 5, e), -EINVAL, e);
	bundles_stop(shelf->bundles); /* no background: what is applied is seen here */
	EXPECT_CALL(retain(shelf, 3, 5, e), 0, e);
	expect_rule(other, 3, 5);
	EXPECT_INT(collect(shelf).rule_versions, 6);
	expect_numbers(other, "2 5 7 10 11 12");
	version_put(version);
	EXPECT_INT(collect(shelf).rule_versions, 1);
	expect_numbers(other, "2 5 10 11 12");
	EXPECT_INT(shelf_compare(shelf, bundle, "prod", 2), 0);
	EXPECT_INT(shelf_compare(shelf, bundle, "5", 5), 0);
}

static uint64_t versions_of(struct shelf *shelf)
{
	struct place at = place();
	struct row_bundle row;
	struct error e;

	EXPECT_CALL(row_read_bundle(shelf->bundles, &at, &row, deadline(shelf), &e), 0, &e);
	return row.n_versions;
}

static void a_rule_is_applied_after_each_publication(struct shelf *shelf, struct shelf *other, struct error *e)
{
	shelf_save(shelf, bundle, 1);
	EXPECT_CALL(retain(shelf, 2, 0, e), 0, e);
	for (uint64_t seed = 2; seed <= 5; seed++)
		shelf_save(shelf, bundle, seed);
	uint64_t limit_ns = deadline(shelf);
	while (versions_of(shelf) > 2) { /* who opened one to see whether it is there would keep it */
		EXPECT(env_now(shelf->bed->env) < limit_ns);
		EXPECT_INT(fiber_sleep_until(env_in_ms(shelf->bed->env, 5)), 0);
	}
	expect_numbers(other, "4 5");
	EXPECT_CALL(retain(shelf, 0, 0, e), 0, e);
	shelf_save(shelf, bundle, 6);
	collect(shelf);
	expect_numbers(other, "4 5 6");
}

/* One node applies it in the background, another one replaces it. */
static void a_rule_that_is_replaced_deletes_nothing_more(struct shelf *shelf, struct shelf *other, struct error *e)
{
	enum { VERSIONS = 20 };
	const uint64_t *deleted = &shelf->bundles->counts.rule_versions; /* counted when it has come to its end */
	uint64_t limit_ns;

	for (uint64_t seed = 1; seed <= VERSIONS; seed++)
		shelf_save(shelf, bundle, seed);
	EXPECT_CALL(retain(shelf, 1, 0, e), 0, e);
	limit_ns = deadline(shelf);
	while (versions_of(shelf) == VERSIONS) {
		EXPECT(env_now(shelf->bed->env) < limit_ns);
		EXPECT_INT(fiber_sleep_until(env_in_ms(shelf->bed->env, 1)), 0);
	}
	EXPECT_CALL(retain(other, 0, 0, e), 0, e);
	uint64_t left = versions_of(shelf);
	while (!*deleted) {
		EXPECT(env_now(shelf->bed->env) < limit_ns);
		EXPECT_INT(fiber_sleep_until(env_in_ms(shelf->bed->env, 1)), 0);
	}
	EXPECT_INT(left - versions_of(shelf) <= 1, 1); /* one was marked before */
	EXPECT_INT(versions_of(shelf), VERSIONS - *deleted);
	EXPECT(*deleted < VERSIONS - 1); /* it was replaced before its end */
}

static void the_highest_rule_is_in_force_after_a_rebuild_too(struct shelf *shelf, struct shelf *other, struct error *e)
{
	struct rebuild_counts counts;

	shelf_save(shelf, bundle, 1);
	EXPECT_CALL(retain(shelf, 9, 0, e), 0, e);
	EXPECT_CALL(retain(other, 4, 7, e), 0, e);
	EXPECT_CALL(bundles_rebuild(shelf->bundles, deadline(shelf), &counts, e), 0, e);
	expect_rule(other, 4, 7);
	EXPECT_CALL(retain(shelf, 5, 0, e), 0, e);
	expect_rule(other, 5, 0);
}

static void announce_rule(struct shelf *shelf, uint64_t k)
{
	_cleanup_(change_fini) struct change change = { 0 };
	struct place at = place();
	struct error e;

	EXPECT_CALL(change_begin(shelf->bundles, &at, NULL, &change, deadline(shelf), &e), 0, &e);
	change.row.pending_rule = k;
	EXPECT_CALL(change_commit(&change, deadline(shelf), &e), 0, &e);
}

static void a_rule_cut_at_any_step_is_in_force_or_never_was(struct shelf *shelf, struct shelf *other, struct error *e)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	const struct rec_rule rec = { .tenant = tenant(), .bundle = view_str(bundle), .keep_last = 8 };
	const struct record_head head = { .kind = RECORD_RULE, .number = 3, .save_id = 77 };
	struct place at = place();
	char key[KEY_BYTES];

	shelf_save(shelf, bundle, 1);
	EXPECT_CALL(retain(shelf, 9, 0, e), 0, e);
	announce_rule(shelf, 2); /* its object never comes */
	EXPECT_CALL(retain(other, 6, 0, e), 0, e);
	expect_rule(shelf, 6, 0);
	announce_rule(shelf, 3); /* its object is there */
	rule_key(&at, 3, key);
	EXPECT_INT(rec_rule_encode(&rec, &body), 0);
	EXPECT_CALL(object_put(shelf->bundles, key, &head, view_buf(&body), true, deadline(shelf), e), 0, e);
	look_around(other);
	EXPECT(opens(other, "1")); /* mends it */
	expect_rule(shelf, 8, 0);
}

static void a_rule_passes_by_a_version_whose_root_is_damaged(struct shelf *shelf, struct shelf *other, struct error *e)
{
	const struct place at = place();
	char key[KEY_BYTES];
	uint64_t deleted;

	for (uint64_t seed = 1; seed <= 4; seed++)
		shelf_save(shelf, bundle, seed);
	bundles_stop(shelf->bundles);
	root_key(&at, 1, key);
	EXPECT_CALL(backend_write(shelf->bundles->backend, key, view_str("rot"), false, deadline(shelf), e), 0, e);
	EXPECT_CALL(retain(shelf, 1, 0, e), 0, e);
	EXPECT_CALL(rule_apply(shelf->bundles, &at, &deleted, deadline(shelf), e), -ERR_EDAMAGED, e);
	EXPECT_INT(deleted, 2);
	EXPECT(strstr(e->text, key));
	expect_numbers(other, "1 4");
}

/* A store that is a copy lacks the newest ones: what it has would go for what nobody can read. */
static void a_rule_rests_while_a_version_that_it_keeps_has_no_root(struct shelf *shelf, struct shelf *other,
								   struct error *e)
{
	const struct place at = place();
	_cleanup_(buf_fini) struct buf root = { 0 };
	char key[KEY_BYTES];
	uint64_t deleted;

	for (uint64_t seed = 1; seed <= 4; seed++)
		shelf_save(shelf, bundle, seed);
	bundles_stop(shelf->bundles);
	root_key(&at, 4, key);
	EXPECT_CALL(backend_read(shelf->bundles->backend, key, RECORD_ROOT_MAX, &root, deadline(shelf), e), 0, e);
	EXPECT_CALL(object_delete(shelf->bundles, key, deadline(shelf), e), 0, e);
	EXPECT_CALL(retain(shelf, 1, 0, e), 0, e);
	EXPECT_CALL(rule_apply(shelf->bundles, &at, &deleted, deadline(shelf), e), 0, e);
	EXPECT_INT(deleted, 0);
	EXPECT_CALL(backend_write(shelf->bundles->backend, key, view_buf(&root), true, deadline(shelf), e), 0, e);
	EXPECT_CALL(rule_apply(shelf->bundles, &at, &deleted, deadline(shelf), e), 0, e);
	EXPECT_INT(deleted, 3);
	expect_numbers(other, "4");
}

static void a_rule_rests_while_a_version_that_it_keeps_has_a_damaged_root(struct shelf *shelf, struct shelf *other,
									  struct error *e)
{
	const struct place at = place();
	char key[KEY_BYTES];
	uint64_t deleted;

	for (uint64_t seed = 1; seed <= 3; seed++)
		shelf_save(shelf, bundle, seed);
	bundles_stop(shelf->bundles);
	root_key(&at, 3, key);
	shelf_flip(shelf, key, 100, 0);
	EXPECT_CALL(retain(shelf, 1, 0, e), 0, e);
	EXPECT_CALL(rule_apply(shelf->bundles, &at, &deleted, deadline(shelf), e), -ERR_EDAMAGED, e);
	EXPECT(strstr(e->text, key));
	expect_numbers(other, "1 2 3");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		SHELF_STORY(a_rule_keeps_the_last_each_kth_and_what_is_labelled_or_read),
		SHELF_STORY(a_rule_is_applied_after_each_publication),
		SHELF_STORY(a_rule_that_is_replaced_deletes_nothing_more),
		SHELF_STORY(the_highest_rule_is_in_force_after_a_rebuild_too),
		SHELF_STORY(a_rule_cut_at_any_step_is_in_force_or_never_was),
		SHELF_STORY(a_rule_passes_by_a_version_whose_root_is_damaged),
		SHELF_STORY(a_rule_rests_while_a_version_that_it_keeps_has_no_root),
		SHELF_STORY(a_rule_rests_while_a_version_that_it_keeps_has_a_damaged_root),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
