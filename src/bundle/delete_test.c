/* bundle/delete_test.c: deletions, and who holds them up: readers, parents and children. */
#include "bundle/ends_fixture.h"

static void a_version_that_a_node_reads_is_not_deleted(struct shelf *shelf, struct shelf *other, struct error *e)
{
	struct version *version = NULL;

	shelf_save(shelf, bundle, 1);
	EXPECT_CALL(open_it(other, "1", &version, e), 0, e);
	EXPECT_CALL(delete_it(shelf, 1, e), -EBUSY, e);
	EXPECT(strstr(e->text, "read on node n1"));
	EXPECT(opens(shelf, "1")); /* all is as it was */
	version_put(version);
	EXPECT_CALL(delete_it(shelf, 1, e), 0, e); /* it waits for the closing to be told */
	EXPECT_CALL(open_it(other, "1", &version, e), -ERR_EDELETED, e);
}

static void a_reader_whose_lease_is_over_learns_that_its_version_was_deleted(struct shelf *shelf, struct shelf *other,
									     struct error *e)
{
	struct version *version = NULL, *again = NULL;
	struct place at = place();

	shelf_save(shelf, bundle, 1);
	EXPECT_CALL(open_it(other, "1", &version, e), 0, e);
	version->leasing = true; /* as if its daemon slept for longer than the lease */
	version->leased_ns = 0;
	reader_end(other->bundles, &at, 1, version->lease, deadline(other));
	EXPECT_CALL(delete_it(shelf, 1, e), 0, e);
	version->leasing = false;
	while (version->refs > 1) /* when it asks again it hears of it, and forgets the version */
		EXPECT_INT(fiber_sleep_until(env_in_ms(other->bed->env, 1)), 0);
	EXPECT_CALL(open_it(other, "1", &again, e), -ERR_EDELETED, e);
	EXPECT(strstr(e->text, "was deleted"));
	version_put(version);
}

/* A node that is cut off from the index has the version in its cache, and no lease on it any more. */
static void without_an_index_the_root_says_what_was_deleted(struct shelf *shelf, struct shelf *other, struct error *e)
{
	struct version *version = NULL;

	shelf_save(shelf, bundle, 1);
	shelf_save(shelf, bundle, 2);
	EXPECT_CALL(open_it(other, "1", &version, e), 0, e);
	version_put(version);
	EXPECT_CALL(open_it(other, "2", &version, e), 0, e);
	version_put(version);
	EXPECT_CALL(delete_it(shelf, 1, e), 0, e);
	shelf_close(shelf);
	bed_stop(other->bed, 0);
	EXPECT_CALL(open_it(other, "1", &version, e), -ERR_EDELETED, e);
	EXPECT(strstr(e->text, "version 1 of " SHELF_BUNDLE " was deleted"));
	EXPECT_CALL(open_it(other, "2", &version, e), 0, e);
	EXPECT(version->unindexed);
	version_put(version);
}

static void a_deletion_that_was_taken_over_is_not_taken_back(struct shelf *shelf, struct shelf *other, struct error *e)
{
	struct place at = place();

	shelf_save(shelf, bundle, 1);
	EXPECT_CALL(delete_begin(shelf->bundles, &at, 1, 5, deadline(shelf), e), 0, e);
	EXPECT_CALL(delete_begin(other->bundles, &at, 1, 6, deadline(shelf), e), DELETE_TAKEN_OVER, e);
	EXPECT_CALL(delete_resume(shelf->bundles, &at, 1, deadline(shelf), e), 0, e);
	EXPECT_INT(root_state(other, 1), ROOT_DELETED);
}

/* Whoever mends has seen the mark, and comes to take over when it is gone. */
static void a_deletion_that_was_taken_back_is_not_gone_on_with(struct shelf *shelf, struct shelf *other,
							       struct error *e)
{
	struct version *version = NULL;
	struct place at = place();

	shelf_save(shelf, bundle, 1);
	EXPECT_CALL(open_it(other, "1", &version, e), 0, e);
	EXPECT_CALL(delete_it(shelf, 1, e), -EBUSY, e);
	EXPECT_CALL(delete_resume(shelf->bundles, &at, 1, deadline(shelf), e), 0, e);
	EXPECT_INT(root_state(other, 1), ROOT_PUBLISHED);
	EXPECT(opens(shelf, "1"));
	version_put(version);
}

static void who_cannot_delete_what_another_node_deletes_is_not_told_that_it_stays(struct shelf *shelf,
										  struct shelf *other, struct error *e)
{
	struct version *version = NULL;
	struct place at = place();

	shelf_save(shelf, bundle, 1);
	EXPECT_CALL(open_it(other, "1", &version, e), 0, e);
	EXPECT_CALL(delete_begin(shelf->bundles, &at, 1, 5, deadline(shelf), e), 0, e);
	EXPECT_CALL(delete_it(shelf, 1, e), -EAGAIN, e);
	EXPECT(strstr(e->text, "being deleted"));
	version_put(version);
	EXPECT_CALL(delete_it(shelf, 1, e), 0, e);
}

static void the_parent_of_an_open_save_is_not_deleted(struct shelf *shelf, struct shelf *other, struct error *e)
{
	struct fence fence = { 0 };
	_cleanup_(buf_fini) struct buf record = { 0 };

	shelf_save(shelf, bundle, 1);
	take_lease(shelf, &fence, &record, 11, META_LEASE_MAX_MS);
	open_slot(shelf, 0x100, 1, &fence);
	EXPECT_CALL(delete_it(other, 1, e), -EBUSY, e);
	EXPECT(strstr(e->text, "parent of a save"));
	give_lease(shelf, 11);
	EXPECT_CALL(delete_it(other, 1, e), 0, e); /* its coordinator is over: that slot was burned first */

	_cleanup_(slot_fini) struct slot slot = { 0 };
	EXPECT_CALL(slot_open(shelf->bundles, tenant(), view_str(bundle), 0x101, 1, NULL, deadline(shelf), &slot, e), 0,
		    e);
	EXPECT(!slot.pinned); /* a parent that is gone pins nothing */
}

static void packs_of_a_deleted_parent_stay_as_long_as_a_child_names_them(struct shelf *shelf, struct shelf *other,
									 struct error *e)
{
	shelf_save(shelf, bundle, 1);
	uint64_t child = save_child(shelf, 2);
	EXPECT_INT(count_keys(shelf).packs, 4);
	collect(other);
	EXPECT_INT(count_keys(shelf).packs, 3); /* the child's own second one was never named */
	EXPECT_CALL(delete_it(other, 1, e), 0, e);
	struct collect_counts counts = collect(other);
	EXPECT_INT(counts.missing, 0);
	EXPECT_INT(counts.freed >= 1, 1);
	EXPECT_INT(count_keys(shelf).packs, 2); /* the parent's first one is gone */
	char spec[24];
	snprintf(spec, sizeof(spec), "%" PRIu64, child);
	EXPECT(opens(other, spec));
	uint64_t blocks, bytes;
	EXPECT_CALL(bundle_verify(other->bundles, tenant(), view_str(bundle), child, deadline(shelf), no_damage, NULL,
				  &blocks, &bytes, e),
		    0, e);
	EXPECT_CALL(delete_it(other, child, e), 0, e);
	collect(other);
	EXPECT_INT(count_keys(shelf).packs, 0);
}

static int drop_second(void *arg)
{
	struct shelf *shelf = arg;
	const struct place at = place();

	cache_drop(shelf->bundles, &at, 1);
	return 0;
}

/* Nobody opens a version any more, but what was begun before may end. */
static void leases_are_given_back_though_the_cache_changes_meanwhile(struct shelf *shelf, struct shelf *other,
								     struct error *e)
{
	struct version *first, *second;
	struct nursery nursery;

	nursery_init(&nursery, shelf->bed->env->loop);
	shelf_save(shelf, bundle, 1);
	shelf_save(shelf, bundle, 2);
	EXPECT_CALL(open_it(shelf, "1", &second, e), 0, e);
	EXPECT_CALL(open_it(shelf, "2", &first, e), 0, e);
	EXPECT_INT(fiber_start(&nursery, "drop", drop_second, shelf), 0);
	readers_stop(shelf->bundles);
	EXPECT_INT(nursery_wait(&nursery, deadline(shelf)), 0);
	nursery_fini(&nursery);
	EXPECT_CALL(delete_it(other, 2, e), 0, e);
	version_put(first);
	version_put(second);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		SHELF_STORY(a_version_that_a_node_reads_is_not_deleted),
		SHELF_STORY(a_reader_whose_lease_is_over_learns_that_its_version_was_deleted),
		SHELF_STORY(without_an_index_the_root_says_what_was_deleted),
		SHELF_STORY(a_deletion_that_was_taken_over_is_not_taken_back),
		SHELF_STORY(a_deletion_that_was_taken_back_is_not_gone_on_with),
		SHELF_STORY(who_cannot_delete_what_another_node_deletes_is_not_told_that_it_stays),
		SHELF_STORY(the_parent_of_an_open_save_is_not_deleted),
		SHELF_STORY(packs_of_a_deleted_parent_stay_as_long_as_a_child_names_them),
		SHELF_STORY(leases_are_given_back_though_the_cache_changes_meanwhile),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
