/* bundle/rebuild_shut_test.c: while an index is made again it is there for nobody, and nothing is lost by it; nor when that failed. */
#include "bundle/ends_fixture.h"

#include <unistd.h>

/* A store that keeps the next request of a kind to itself until it is let go, as one that hangs does, or a process that is stopped. */
static const struct backend_driver *quick;
static struct backend_req *held;
static bool (*holding)(const struct backend_req *req);

static void submit_held(struct backend *backend, struct backend_req *req)
{
	if (holding && holding(req)) {
		holding = NULL;
		held = req;
	} else {
		quick->submit(backend, req);
	}
}

static void hold_next(struct backend *backend, bool (*what)(const struct backend_req *req))
{
	static const struct backend_driver driver = { "dir", submit_held, NULL };

	quick = backend->driver;
	backend->driver = &driver;
	holding = what;
	held = NULL;
}

static void let_go(struct backend *backend)
{
	struct backend_req *req = TAKE(held);

	holding = NULL;
	backend->driver = quick;
	if (req)
		quick->submit(backend, req);
}

static bool lists_all(const struct backend_req *req)
{
	return req->op == BACKEND_LIST && !strcmp(req->key, "t/");
}

struct rebuilding {
	struct shelf *shelf;
	struct nursery nursery;
	struct rebuild_counts counts;
	struct error e;
};

static int run_rebuild(void *arg)
{
	struct rebuilding *r = arg;

	return bundles_rebuild(r->shelf->bundles, deadline(r->shelf), &r->counts, &r->e);
}

/* Its rows are shut by now, and stay so until it is let go: it does not come further than to what it reads. */
static void rebuild_begin(struct rebuilding *r, struct shelf *by, struct shelf *engine)
{
	*r = (struct rebuilding){ .shelf = by };
	hold_next(by->bed->backend, lists_all);
	nursery_init(&r->nursery, by->bed->env->loop);
	EXPECT_INT(fiber_start(&r->nursery, "rebuild", run_rebuild, r), 0);
	while (!engine->bundles->half_rebuilt)
		EXPECT_INT(fiber_sleep_until(env_in_ms(by->bed->env, 1)), 0);
}

static void rebuild_end(struct rebuilding *r)
{
	let_go(r->shelf->bed->backend);
	EXPECT_CALL(nursery_wait(&r->nursery, deadline(r->shelf)), 0, &r->e);
}

static void rebuild(struct shelf *shelf)
{
	struct rebuild_counts counts;
	struct error e;

	EXPECT_CALL(bundles_rebuild(shelf->bundles, deadline(shelf), &counts, &e), 0, &e);
}

static int label(struct shelf *shelf, const char *name, uint64_t number, struct error *e)
{
	return label_set(shelf->bundles, tenant(), view_str(bundle), view_str(name), UINT64_MAX, number,
			 deadline(shelf), e);
}

static void expect_refused(int r, const struct error *e, const char *words)
{
	if (r != -EAGAIN || !strstr(e->text, words)) {
		fprintf(stderr, "%d \"%s\", not \"%s\"\n", r, e->text, words);
		abort();
	}
}

/* Whatever says, changes or ends something. */
static void expect_shut(struct shelf *shelf, const char *words)
{
	struct bundle_entry *entries;
	struct collect_counts counts;
	struct slot slot = { 0 };
	struct error e;
	size_t n;
	bool more;

	expect_refused(delete_it(shelf, 1, &e), &e, words);
	expect_refused(label(shelf, "new", 1, &e), &e, words);
	expect_refused(bundle_retain(shelf->bundles, tenant(), view_str(bundle), 1, 0, deadline(shelf), &e), &e, words);
	expect_refused(bundle_list(shelf->bundles, tenant(), view_str(""), view_str(""), 9, deadline(shelf), &entries,
				   &n, &more, &e),
		       &e, words);
	expect_refused(slot_open(shelf->bundles, tenant(), view_str(bundle), 0x9, 0, NULL, deadline(shelf), &slot, &e),
		       &e, words);
	expect_refused(
		bundles_collect(shelf->bundles, tenant(), view_str(bundle), deadline(shelf), NULL, NULL, &counts, &e),
		&e, words);
}

/* "latest", labels and numbers alike, by the store alone. */
static void expect_opens(struct shelf *shelf, const char *spec, uint64_t number)
{
	_cleanup_(cleanup_version_put) struct version *version = NULL;
	struct error e;

	EXPECT_CALL(open_it(shelf, spec, &version, &e), 0, &e);
	EXPECT_INT(version->number, number);
	EXPECT(version->unindexed);
}

static void the_rows_are_there_for_nobody_but_the_rebuild(struct shelf *shelf, struct shelf *other, struct error *e)
{
	_cleanup_(save_fini) struct save save;
	struct rebuilding r;

	shelf_save(shelf, bundle, 1);
	shelf_save(shelf, bundle, 2);
	EXPECT_CALL(label(shelf, "prod", 1, e), 0, e);
	save_begin(&save, shelf, bundle, 3);
	save_packs(&save);
	save_segments(&save);
	save_root(&save);
	rebuild_begin(&r, shelf, shelf);
	expect_shut(shelf, "the index is being rebuilt");
	expect_shut(other, "the index is being rebuilt");
	expect_opens(other, "prod", 1);
	expect_opens(other, "latest", 3);
	expect_opens(other, "2", 2);
	struct rebuild_counts counts;
	EXPECT_CALL(bundles_rebuild(shelf->bundles, deadline(shelf), &counts, e), -EBUSY, e);
	let_go(shelf->bed->backend);
	/* behind its root a publication waits for the rows */
	EXPECT_CALL(publish_index(other->bundles, &save.place, save.slot.number, deadline(shelf), e), 0, e);
	rebuild_end(&r);
	EXPECT_INT(r.counts.versions, 3);
	EXPECT_INT(r.counts.labels, 1);
	EXPECT_CALL(delete_it(other, 1, e), -EBUSY, e);
	EXPECT(strstr(e->text, "label prod"));
	EXPECT_CALL(delete_it(other, 2, e), 0, e);
	EXPECT_INT(shelf_save(other, bundle, 4), 4);
}

static void another_node_asks_the_engines_for_it(struct shelf *shelf, struct shelf *other, struct error *e)
{
	struct rebuilding r;

	shelf_save(shelf, bundle, 1);
	rebuild_begin(&r, other, shelf);
	expect_shut(other, "the index is being rebuilt");
	rebuild_end(&r);
	EXPECT_INT(r.counts.versions, 1);
	EXPECT_INT(r.counts.generation, cluster_generation(shelf->bundles->cluster));
	EXPECT_CALL(delete_it(other, 1, e), 0, e);
}

/* Its asker is interrupted, or cut off: no reason to leave half an index. */
static void a_rebuild_goes_on_when_its_asker_is_gone(struct shelf *shelf, struct shelf *other, struct error *e)
{
	struct rebuilding r;
	struct bundle_entry *entries;
	size_t n;
	bool more;

	shelf_save(shelf, bundle, 1);
	for (int i = 0; i < 2; i++) {
		rebuild_begin(&r, i ? other : shelf, shelf);
		nursery_fini(&r.nursery);
		expect_shut(shelf, "the index is being rebuilt");
		let_go(shelf->bed->backend);
		while (shelf->bundles->rebuilding)
			EXPECT_INT(fiber_sleep_until(env_in_ms(shelf->bed->env, 1)), 0);
		EXPECT(!shelf->bundles->half_rebuilt);
		EXPECT_CALL(bundle_list(other->bundles, tenant(), view_str(""), view_str(""), 9, deadline(other),
					&entries, &n, &more, e),
			    0, e);
		EXPECT_INT(n, 1);
		bundle_entries_free(entries, n);
	}
}

static void a_rebuild_that_fails_leaves_the_rows_shut(struct shelf *shelf, struct shelf *other, struct error *e)
{
	char path[512], aside[600];
	struct rebuild_counts counts;

	for (uint64_t seed = 1; seed <= 3; seed++)
		shelf_save(shelf, bundle, seed);
	EXPECT_CALL(label(shelf, "prod", 1, e), 0, e);
	EXPECT_CALL(bundle_retain(shelf->bundles, tenant(), view_str(bundle), 1, 0, deadline(shelf), e), 0, e);
	snprintf(path, sizeof(path), "%s/store/t/local/b/ckpt%%2Fa%%20b/l/prod/00000000000000000001", shelf->bed->dir);
	snprintf(aside, sizeof(aside), "%s-aside", path);
	EXPECT_INT(rename(path, aside), 0);
	EXPECT_INT(symlink("00000000000000000001", path), 0); /* cannot be read, which is not damage */
	EXPECT_CALL(bundles_rebuild(shelf->bundles, deadline(shelf), &counts, e), -ELOOP, e);
	EXPECT(strstr(e->text, "half rebuilt: run forebay meta rebuild again on"));
	EXPECT(strstr(e->text, "l/prod/00000000000000000001"));
	expect_shut(shelf, "half rebuilt: run forebay meta rebuild again on");
	expect_shut(other, "half rebuilt: run forebay meta rebuild again on");
	expect_opens(other, "latest", 3);
	EXPECT_INT(rename(aside, path), 0);
	rebuild(other);
	EXPECT_CALL(delete_it(other, 1, e), -EBUSY, e);
	EXPECT_INT(shelf_compare(other, bundle, "prod", 1), 0);
}

static void a_rebuild_that_failed_forgets_no_version_whose_root_is_away(struct shelf *shelf, struct shelf *other,
									struct error *e)
{
	char roots[3][512], aside[3][600];
	struct rebuild_counts counts;

	for (uint64_t number = 1; number <= 2; number++) {
		shelf_save(shelf, bundle, number);
		snprintf(roots[number], sizeof(roots[number]),
			 "%s/store/t/local/b/ckpt%%2Fa%%20b/v/%020" PRIu64 "/root", shelf->bed->dir, number);
		snprintf(aside[number], sizeof(aside[number]), "%s-aside", roots[number]);
		EXPECT_INT(rename(roots[number], aside[number]), 0);
	}
	EXPECT_INT(symlink("root", roots[1]), 0);
	EXPECT_CALL(bundles_rebuild(shelf->bundles, deadline(shelf), &counts, e), -ELOOP, e);
	EXPECT_INT(rename(aside[1], roots[1]), 0);
	EXPECT_CALL(bundles_rebuild(shelf->bundles, deadline(shelf), &counts, e), -ERR_EDAMAGED, e);
	EXPECT(strstr(e->text, "and the index had version 2 of ckpt/a b"));
	EXPECT_INT(rename(aside[2], roots[2]), 0);
	EXPECT_INT(shelf_compare(other, bundle, "1", 1), 0);
	EXPECT_INT(shelf_compare(other, bundle, "2", 2), 0);
}

static void what_is_open_at_a_rebuild_is_not_deleted_behind_it(struct shelf *shelf, struct shelf *other,
							       struct error *e)
{
	_cleanup_(cleanup_version_put) struct version *version = NULL;

	shelf_save(shelf, bundle, 1);
	EXPECT_CALL(open_it(other, "1", &version, e), 0, e);
	EXPECT(version->leased_ns);
	shelf->bundles->grace_ns = READER_LEASE_MS / 3 * NS_PER_MS;
	rebuild(shelf);
	EXPECT_CALL(delete_it(shelf, 1, e), -EBUSY, e);
	EXPECT(strstr(e->text, "is being read on node"));
}

/* By the store alone, and so without a lease. */
static void what_is_opened_during_a_rebuild_is_not_deleted_behind_it(struct shelf *shelf, struct shelf *other,
								     struct error *e)
{
	_cleanup_(cleanup_version_put) struct version *version = NULL;
	struct rebuilding r;

	shelf_save(shelf, bundle, 1);
	shelf->bundles->grace_ns = READER_LEASE_MS / 3 * NS_PER_MS;
	rebuild_begin(&r, shelf, shelf);
	EXPECT_CALL(open_it(other, "1", &version, e), 0, e);
	EXPECT(!version->leased_ns);
	rebuild_end(&r);
	while (delete_it(shelf, 1, e) == -EBUSY && strstr(e->text, "was rebuilt a moment ago"))
		EXPECT_INT(fiber_sleep_until(env_in_ms(shelf->bed->env, 100)), 0);
	EXPECT_INT(e->code, -EBUSY);
	EXPECT(strstr(e->text, "is being read on node"));
}

static void a_mark_that_a_rebuild_forgot_ends_nothing(struct shelf *shelf, struct shelf *other, struct error *e)
{
	struct place at = place();

	shelf_save(shelf, bundle, 1);
	EXPECT_CALL(delete_begin(other->bundles, &at, 1, 7, deadline(shelf), e), 0, e);
	rebuild(shelf);
	EXPECT_CALL(label(shelf, "prod", 1, e), 0, e);
	expect_refused(delete_root(other->bundles, &at, 1, deadline(shelf), e), e, "rebuilt meanwhile");
	EXPECT_INT(shelf_compare(shelf, bundle, "prod", 1), 0);
}

static void no_row_of_before_comes_again(struct shelf *shelf, struct shelf *other, struct error *e)
{
	struct row_bundle before, after;
	struct place at = place();

	for (int i = 0; i < 2; i++) {
		shelf_save(shelf, bundle, 1);
		EXPECT_CALL(row_read_bundle(other->bundles, &at, &before, deadline(shelf), e), 0, e);
		rebuild(shelf);
		EXPECT_CALL(row_read_bundle(other->bundles, &at, &after, deadline(shelf), e), 0, e);
		EXPECT(after.changes > before.changes);
	}
}

/* Version 1 lends its packs, for all that anybody can know, to the one whose root cannot be read. */
static void a_root_that_cannot_be_read_keeps_all_packs_before_it(struct shelf *shelf, struct shelf *other,
								 struct error *e)
{
	struct rebuild_counts counts;

	for (uint64_t seed = 1; seed <= 3; seed++)
		shelf_save(shelf, bundle, seed);
	unsigned packs = count_keys(shelf).packs;
	shelf_flip(shelf, "t/local/b/ckpt%2Fa%20b/v/00000000000000000002/root", 100, 0);
	EXPECT_CALL(bundles_rebuild(shelf->bundles, deadline(shelf), &counts, e), -ERR_EDAMAGED, e);
	EXPECT_CALL(delete_it(other, 1, e), 0, e);
	EXPECT_INT(count_keys(shelf).packs, packs);
}

/* ---- a tombstone that comes late ---- */

#define GIVES_UP_MS 1000 /* for a deletion that nobody waits for any more */

static bool is_tombstone(const struct backend_req *req)
{
	size_t len = strlen(req->key);

	return req->op == BACKEND_PUT && !req->if_absent && len > 5 && !strcmp(req->key + len - 5, "/root");
}

struct deleting {
	struct shelf *shelf;
	uint64_t number, deadline_ns;
	int result;
	struct nursery nursery;
};

static int run_delete(void *arg)
{
	struct deleting *d = arg;

	d->result = version_delete(d->shelf->bundles, tenant(), view_str(bundle), d->number, d->deadline_ns, NULL);
	return 0;
}

/* @ms: after which it is given up; more if that is too short to come to the tombstone. */
static void delete_begin_held(struct deleting *d, struct shelf *shelf, uint64_t number, uint64_t ms)
{
	hold_next(shelf->bed->backend, is_tombstone);
	for (; !held; ms *= 2) {
		EXPECT(ms <= BED_CALL_MS);
		*d = (struct deleting){ .shelf = shelf,
					.number = number,
					.deadline_ns = env_in_ms(shelf->bed->env, ms),
					.result = 1 };
		nursery_init(&d->nursery, shelf->bed->env->loop);
		EXPECT_INT(fiber_start(&d->nursery, "delete", run_delete, d), 0);
		while (!held && !nursery_is_empty(&d->nursery))
			EXPECT_INT(fiber_sleep_until(env_in_ms(shelf->bed->env, 1)), 0);
	}
}

static void delete_let_go(struct deleting *d)
{
	let_go(d->shelf->bed->backend);
	EXPECT_INT(nursery_wait(&d->nursery, deadline(d->shelf)), 0);
}

static uint64_t rows_of(struct shelf *shelf, uint64_t *ret_latest)
{
	struct place at = place();
	struct row_bundle row;
	struct error e;

	EXPECT_CALL(row_read_bundle(shelf->bundles, &at, &row, deadline(shelf), &e), 0, &e);
	*ret_latest = row.latest;
	return row.n_versions;
}

static void expect_deleted(struct shelf *shelf, const char *spec)
{
	struct version *version = NULL;
	struct error e;

	EXPECT_CALL(open_it(shelf, spec, &version, &e), -ERR_EDELETED, &e);
}

/* Who has become its child since keeps what it names: the tombstone does not know of it. */
static void a_tombstone_that_comes_after_a_rebuild_takes_no_pack_of_a_child(struct shelf *shelf, struct shelf *other,
									    struct error *e)
{
	struct deleting d;

	shelf_save(shelf, bundle, 1);
	delete_begin_held(&d, other, 1, BED_CALL_MS);
	rebuild(shelf);
	EXPECT_INT(shelf_compare(other, bundle, "1", 1), 0); /* it is listed again */
	EXPECT_INT(save_child(shelf, 2), 2);
	delete_let_go(&d);
	EXPECT_INT(d.result, 0);
	expect_deleted(other, "1");
	expect_deleted(shelf, "1");
	for (int i = 0; i < 2; i++) {
		uint64_t blocks, bytes;

		EXPECT_CALL(bundle_verify(other->bundles, tenant(), view_str(bundle), 2, deadline(shelf), no_damage,
					  NULL, &blocks, &bytes, e),
			    0, e);
		EXPECT_INT(collect(other).missing, 0);
	}
}

/*
 * What was asked for, and not acknowledged, happens late and whole: each reader has the version or hears that it was deleted, also who asks by
 * name; and its row goes with the first who looks, be it a reader or collection.
 */
static void a_tombstone_that_comes_after_a_rebuild_deletes_late_and_whole(struct shelf *shelf, struct shelf *other,
									  struct error *e)
{
	struct deleting d;
	uint64_t latest;

	shelf_save(shelf, bundle, 1);
	for (int by_collection = 0; by_collection < 2; by_collection++) {
		uint64_t number = shelf_save(shelf, bundle, 2);

		delete_begin_held(&d, other, number, GIVES_UP_MS);
		EXPECT_INT(nursery_wait(&d.nursery, deadline(shelf)), 0);
		EXPECT_INT(d.result, -ETIMEDOUT);
		rebuild(shelf);
		EXPECT_CALL(label(shelf, "prod", number, e), 0, e);
		EXPECT_INT(shelf_compare(shelf, bundle, "latest", 2), 0);
		delete_let_go(&d);
		EXPECT_INT(calls_drain(shelf->bed->backend, NULL, deadline(shelf)), 0);
		EXPECT_INT(rows_of(shelf, &latest), 2);
		if (by_collection)
			collect(other);
		else
			EXPECT_INT(shelf_compare(other, bundle, "latest", 1), 0);
		EXPECT_INT(rows_of(shelf, &latest), 1);
		EXPECT_INT(latest, 1);
		expect_deleted(shelf, "prod");
		expect_deleted(other, "prod");
		EXPECT_INT(shelf_compare(shelf, bundle, "latest", 1), 0);
		EXPECT_CALL(label(shelf, "prod", 1, e), 0, e);
	}
}

/* ---- a tombstone where a root is missing ---- */

static void move_root(struct shelf *shelf, bool back)
{
	char there[256], away[128];

	snprintf(there, sizeof(there), "%s/store/t/local/b/ckpt%%2Fa%%20b/v/00000000000000000001/root",
		 shelf->bed->dir);
	snprintf(away, sizeof(away), "%s/away", shelf->bed->dir);
	EXPECT_INT(rename(back ? away : there, back ? there : away), 0);
}

static bool is_tombstone_for_none(const struct backend_req *req)
{
	size_t len = strlen(req->key);

	return req->op == BACKEND_PUT && req->if_absent && len > 5 && !strcmp(req->key + len - 5, "/root");
}

/* Of a root: the first is whether there is one at all. */
static bool is_another_look(const struct backend_req *req)
{
	static int looks;
	size_t len = strlen(req->key);

	return req->op == BACKEND_GET && len > 5 && !strcmp(req->key + len - 5, "/root") && ++looks == 4;
}

/* Version 1, which has no root; it comes as far as @what. */
static void delete_begin_without_root(struct deleting *d, struct shelf *shelf, bool (*what)(const struct backend_req *))
{
	shelf_save(shelf, bundle, 1);
	move_root(shelf, false);
	hold_next(shelf->bed->backend, what);
	*d = (struct deleting){ .shelf = shelf, .number = 1, .deadline_ns = deadline(shelf), .result = 1 };
	nursery_init(&d->nursery, shelf->bed->env->loop);
	EXPECT_INT(fiber_start(&d->nursery, "delete", run_delete, d), 0);
	while (!held)
		EXPECT_INT(fiber_sleep_until(env_in_ms(shelf->bed->env, 1)), 0);
}

/* Whoever lists a bundle goes on with a deletion that somebody has begun. */
static void of_two_who_delete_a_version_without_its_root_both_hear_that_it_is_deleted(struct shelf *shelf,
										      struct shelf *other,
										      struct error *e)
{
	struct deleting d;

	delete_begin_without_root(&d, other, is_tombstone_for_none);
	look_around(shelf);
	expect_deleted(shelf, "1");
	delete_let_go(&d);
	EXPECT_INT(d.result, 0);
}

/* It was to go, and goes: nobody hears that it is back, and loses it a moment later. */
static void a_root_that_comes_back_under_its_deletion_is_deleted(struct shelf *shelf, struct shelf *other,
								 struct error *e)
{
	struct deleting d;

	delete_begin_without_root(&d, other, is_tombstone_for_none);
	move_root(shelf, true);
	delete_let_go(&d);
	EXPECT_INT(d.result, 0);
	expect_deleted(shelf, "1");
	EXPECT_INT(count_keys(shelf).packs, 0); /* as its root named them */
}

static void move_claims(struct shelf *shelf, bool back)
{
	char there[128], away[128];

	snprintf(there, sizeof(there), "%s/store/g", shelf->bed->dir);
	snprintf(away, sizeof(away), "%s/claims", shelf->bed->dir);
	EXPECT_INT(rename(back ? away : there, back ? there : away), 0);
}

/* A root that is missing is looked for for seconds. */
static void a_store_that_goes_while_a_root_is_looked_for_gets_no_tombstone(struct shelf *shelf, struct shelf *other,
									   struct error *e)
{
	struct deleting d;

	delete_begin_without_root(&d, other, is_another_look);
	move_claims(shelf, false);
	delete_let_go(&d);
	move_claims(shelf, true);
	EXPECT_INT(d.result, -ENODEV);
	EXPECT_INT(root_state(shelf, 1), ROOT_NONE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		SHELF_STORY(the_rows_are_there_for_nobody_but_the_rebuild),
		SHELF_STORY(another_node_asks_the_engines_for_it),
		SHELF_STORY(a_rebuild_goes_on_when_its_asker_is_gone),
		SHELF_STORY(a_rebuild_that_fails_leaves_the_rows_shut),
		SHELF_STORY(a_rebuild_that_failed_forgets_no_version_whose_root_is_away),
		SHELF_STORY(what_is_open_at_a_rebuild_is_not_deleted_behind_it),
		SHELF_STORY(what_is_opened_during_a_rebuild_is_not_deleted_behind_it),
		SHELF_STORY(a_mark_that_a_rebuild_forgot_ends_nothing),
		SHELF_STORY(no_row_of_before_comes_again),
		SHELF_STORY(a_root_that_cannot_be_read_keeps_all_packs_before_it),
		SHELF_STORY(a_tombstone_that_comes_after_a_rebuild_takes_no_pack_of_a_child),
		SHELF_STORY(a_tombstone_that_comes_after_a_rebuild_deletes_late_and_whole),
		SHELF_STORY(of_two_who_delete_a_version_without_its_root_both_hear_that_it_is_deleted),
		SHELF_STORY(a_root_that_comes_back_under_its_deletion_is_deleted),
		SHELF_STORY(a_store_that_goes_while_a_root_is_looked_for_gets_no_tombstone),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
