/* bundle/floor_test.c: tombstones that are folded into floors, and what is told of a list that lacks something. */
#include "bundle/ends_fixture.h"

#include <unistd.h>

static void tombstones_are_folded_into_a_floor_below_which_nothing_exists(struct shelf *shelf, struct shelf *other,
									  struct error *e)
{
	_cleanup_(buf_fini) struct buf before = { 0 }, after = { 0 };
	_cleanup_(save_fini) struct save zombie;
	struct version *version = NULL;
	struct rebuild_counts counts;

	for (uint64_t seed = 1; seed <= 4; seed++)
		shelf_save(shelf, bundle, seed);
	save_begin(&zombie, shelf, bundle, 5);
	EXPECT_CALL(slot_burn(other->bundles, &zombie.slot, deadline(shelf), e), 0, e);
	shelf_save(shelf, bundle, 6);
	for (uint64_t number = 1; number <= 3; number++)
		EXPECT_CALL(delete_it(shelf, number, e), 0, e);
	EXPECT_INT(collect(other).folded, 3); /* 4 lives: 5 is above it */
	EXPECT_INT(count_keys(shelf).tombs, 3);
	EXPECT_CALL(open_it(other, "2", &version, e), -ERR_EDELETED, e);
	EXPECT_CALL(delete_it(other, 2, e), 0, e); /* again */
	EXPECT_CALL(delete_it(shelf, 4, e), 0, e);
	EXPECT_INT(collect(other).folded, 2);
	EXPECT_INT(count_keys(shelf).tombs, 1);

	save_segments(&zombie); /* whoever was overtaken finds no tombstone any more */
	save_root(&zombie);
	EXPECT_CALL(publish_index(shelf->bundles, &zombie.place, 5, deadline(shelf), e), -ERR_ESTALEEPOCH, e);
	EXPECT_CALL(open_it(other, "5", &version, e), -ERR_EDELETED, e);
	shelf_listing(other, &before);
	EXPECT(strstr((char *)before.ptr, "n=1 latest=6"));
	EXPECT_CALL(bundles_rebuild(shelf->bundles, deadline(shelf), &counts, e), 0, e);
	shelf_listing(other, &after);
	EXPECT(view_equal(view_buf(&before), view_buf(&after)));
	EXPECT_INT(counts.versions, 1);
	collect(other); /* sweeps what the zombie put */
	EXPECT_INT(count_keys(shelf).tombs, 1);
	EXPECT_INT(shelf_save(shelf, bundle, 7), 7);
}

static void more_numbers_than_are_looked_at_are_told_in_words(struct shelf *shelf, struct shelf *other, struct error *e)
{
	const struct place at = place();

	for (uint64_t seed = 1; seed <= 3; seed++)
		shelf_save(shelf, bundle, seed);
	for (uint32_t max = 2; max <= 3; max++) {
		_cleanup_(scan_fini) struct scan scan;

		scan_init(&scan, other->bundles, &at, deadline(shelf), e);
		scan.numbers_max = max;
		EXPECT_CALL(scan_run(&scan), max < 3 ? -E2BIG : 0, e);
		EXPECT(max == 3 || (strstr(e->text, bundle) && strstr(e->text, "more than 2 numbers")));
		EXPECT_INT(scan.n_dead, 0);
	}
}

/* Its coordinator is slow to see that its root is there; a rule takes the version, and its number is folded. */
static void a_version_that_is_folded_before_its_writer_knows_was_published(struct shelf *shelf, struct shelf *other,
									   struct error *e)
{
	_cleanup_(save_fini) struct save slow, zombie;
	_cleanup_(buf_fini) struct buf record = { 0 };
	struct fence fence = { 0 };

	take_lease(shelf, &fence, &record, 11, META_LEASE_MAX_MS);
	save_begin_fenced(&slow, shelf, bundle, 1, &fence);
	save_packs(&slow);
	save_segments(&slow);
	save_root(&slow);
	shelf_save(shelf, bundle, 2);
	EXPECT_CALL(delete_it(other, 1, e), 0, e);
	EXPECT_INT(collect(other).folded, 1);
	EXPECT_CALL(slot_publish(shelf->bundles, &slow.slot, slow.version, &fence, deadline(shelf), e), 0, e);
	EXPECT_INT(e->code, 0);
	expect_numbers(other, "2");

	save_begin_fenced(&zombie, shelf, bundle, 3, &fence);
	save_packs(&zombie);
	zombie.slot.generation--; /* a rebuild burns it, whoever has the lease */
	EXPECT_CALL(slot_burn(other->bundles, &zombie.slot, deadline(shelf), e), 0, e);
	shelf_save(shelf, bundle, 4);
	EXPECT_CALL(delete_it(other, 2, e), 0, e);
	EXPECT_INT(collect(other).folded, 2);
	EXPECT_CALL(slot_publish(shelf->bundles, &zombie.slot, zombie.version, &fence, deadline(shelf), e),
		    -ERR_ESTALEEPOCH, e);
}

/* Its coordinator dies before it is told; others see the version and delete it; the successor comes while its tombstone is being folded. */
static void a_version_that_is_folded_while_a_successor_burns_its_slot_was_published(struct shelf *shelf,
										    struct shelf *other,
										    struct error *e)
{
	_cleanup_(save_fini) struct save lost;
	struct row_bundle row;
	struct place at = place();

	save_begin(&lost, shelf, bundle, 1);
	save_packs(&lost);
	save_segments(&lost);
	save_root(&lost);
	shelf_save(other, bundle, 2);
	EXPECT_CALL(delete_it(other, 1, e), 0, e);
	EXPECT_INT(row_read_bundle(other->bundles, &at, &row, deadline(other), e), 0);
	row.floor = 2; /* the tombstones below it go next */
	set_row(other, &row);
	EXPECT_INT(root_state(other, 1), ROOT_DELETED);
	EXPECT_CALL(slot_burn(other->bundles, &lost.slot, deadline(other), e), -EEXIST, e);
}

static void a_bundle_whose_versions_are_all_gone_is_a_floor_and_its_numbers_go_on(struct shelf *shelf,
										  struct shelf *other, struct error *e)
{
	struct rebuild_counts counts;

	for (uint64_t seed = 1; seed <= 2; seed++)
		shelf_save(shelf, bundle, seed);
	for (uint64_t number = 1; number <= 2; number++)
		EXPECT_CALL(delete_it(shelf, number, e), 0, e);
	collect(other);
	EXPECT_INT(count_keys(shelf).n, 1);
	EXPECT_CALL(bundles_rebuild(shelf->bundles, deadline(shelf), &counts, e), 0, e);
	EXPECT_INT(shelf_save(shelf, bundle, 3), 3);
}

static void a_floor_cut_before_the_index_is_taken_over(struct shelf *shelf, struct shelf *other, struct error *e)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	const struct rec_floor rec = { .tenant = tenant(), .bundle = view_str(bundle) };
	const struct record_head head = { .kind = RECORD_FLOOR, .number = 2 };
	struct place at = place();
	char key[KEY_BYTES];

	for (uint64_t seed = 1; seed <= 2; seed++)
		shelf_save(shelf, bundle, seed);
	EXPECT_CALL(delete_it(shelf, 1, e), 0, e);
	floor_key(&at, 2, key);
	EXPECT_INT(rec_floor_encode(&rec, &body), 0);
	EXPECT_CALL(object_put(shelf->bundles, key, &head, view_buf(&body), true, deadline(shelf), e), 0, e);
	collect(other);
	EXPECT_INT(count_keys(shelf).tombs, 1);
	EXPECT_INT(shelf_compare(other, bundle, "2", 2), 0);
}

/* By a restore that was not whole, say. Whoever finds the root puts it back, and nothing is gone. */
static void a_version_whose_root_is_missing_is_an_alarm_and_keeps_all(struct shelf *shelf, struct shelf *other,
								      struct error *e)
{
	char path[256], away[256];

	for (uint64_t seed = 1; seed <= 2; seed++)
		shelf_save(shelf, bundle, seed);
	snprintf(path, sizeof(path), "%s/store/t/local/b/ckpt%%2Fa%%20b/v/00000000000000000001/root", shelf->bed->dir);
	snprintf(away, sizeof(away), "%s/away", shelf->bed->dir);
	EXPECT_INT(rename(path, away), 0);
	struct collect_counts counts = collect(other);
	EXPECT_INT(counts.missing, 1);
	EXPECT(counts.slots == 0 && counts.freed == 0 && counts.folded == 0);
	EXPECT_INT(access(path, F_OK), -1);
	EXPECT_INT(rename(away, path), 0);
	EXPECT_INT(shelf_compare(other, bundle, "1", 1), 0);
	EXPECT_INT(collect(other).missing, 0);
	EXPECT_INT(shelf_compare(shelf, bundle, "1", 1), 0);
}

/* As a shared file system that does not list another node's names yet. */
static void nothing_is_concluded_from_a_list_without_a_version_that_the_index_has(struct shelf *shelf,
										  struct shelf *other, struct error *e)
{
	char path[256], away[256];

	for (uint64_t seed = 1; seed <= 2; seed++)
		shelf_save(shelf, bundle, seed);
	EXPECT_CALL(delete_it(shelf, 1, e), 0, e);
	snprintf(path, sizeof(path), "%s/store/t/local/b/ckpt%%2Fa%%20b/v/00000000000000000002", shelf->bed->dir);
	snprintf(away, sizeof(away), "%s/away", shelf->bed->dir);
	EXPECT_INT(rename(path, away), 0);
	struct collect_counts counts = collect(other);
	EXPECT(counts.folded == 0 && counts.freed == 0);
	EXPECT_INT(rename(away, path), 0);
	EXPECT_INT(shelf_compare(other, bundle, "2", 2), 0);
	EXPECT_INT(collect(other).folded, 1);
	EXPECT_INT(shelf_compare(other, bundle, "2", 2), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		SHELF_STORY(a_version_whose_root_is_missing_is_an_alarm_and_keeps_all),
		SHELF_STORY(tombstones_are_folded_into_a_floor_below_which_nothing_exists),
		SHELF_STORY(a_version_that_is_folded_before_its_writer_knows_was_published),
		SHELF_STORY(a_version_that_is_folded_while_a_successor_burns_its_slot_was_published),
		SHELF_STORY(more_numbers_than_are_looked_at_are_told_in_words),
		SHELF_STORY(a_bundle_whose_versions_are_all_gone_is_a_floor_and_its_numbers_go_on),
		SHELF_STORY(a_floor_cut_before_the_index_is_taken_over),
		SHELF_STORY(nothing_is_concluded_from_a_list_without_a_version_that_the_index_has),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
