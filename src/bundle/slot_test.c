/* bundle/slot_test.c: slots of dead coordinators: burned, and when. */
#include "base/point.h"
#include "bundle/ends_fixture.h"

enum { SAVE_ID = 0x105 };

static void a_slot_is_burned_once_its_coordinator_is_over_and_never_before(struct shelf *shelf, struct shelf *other,
									   struct error *e)
{
	struct fence fence = { 0 };
	_cleanup_(buf_fini) struct buf record = { 0 };

	shelf_save(shelf, bundle, 1);
	take_lease(shelf, &fence, &record, 11, META_LEASE_MAX_MS);
	uint64_t given_back = open_slot(shelf, 0x100, 0, &fence);
	look_around(other);
	collect(other);
	EXPECT_INT(root_state(other, given_back), ROOT_NONE); /* it lives */
	give_lease(shelf, 11);
	look_around(other);
	EXPECT_INT(root_state(other, given_back), ROOT_BURNED);

	take_lease(shelf, &fence, &record, 12, META_LEASE_MAX_MS);
	uint64_t overtaken = open_slot(shelf, 0x101, 0, &fence);
	give_lease(shelf, 12);
	take_lease(shelf, &fence, &record, 13, META_LEASE_MAX_MS);
	uint64_t successors = open_slot(shelf, 0x102, 0, &fence);
	look_around(other);
	EXPECT_INT(root_state(other, overtaken), ROOT_BURNED);
	EXPECT_INT(root_state(other, successors), ROOT_NONE);
	give_lease(shelf, 13);

	take_lease(shelf, &fence, &record, 14, 1); /* it dies: nobody takes the lease after it */
	uint64_t dead = open_slot(shelf, 0x103, 0, &fence);
	while (root_state(other, dead) == ROOT_NONE)
		look_around(other);
	EXPECT_INT(root_state(other, dead), ROOT_BURNED);
	EXPECT_INT(open_slot(shelf, 0x104, 0, NULL), dead + 1);
	collect(other);
	EXPECT_INT(root_state(other, dead + 1), ROOT_NONE); /* of no group: nobody can tell */
}

/* As if its writer died before the row: number @number of @in. */
static void put_bare_slot_of(struct shelf *shelf, uint64_t save_id, const char *in, uint64_t number, uint64_t epoch,
			     uint32_t generation)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	const struct rec_slot rec = { .tenant = tenant(),
				      .bundle = view_str(in),
				      .node = view_str("n0"),
				      .lease = view_str("g/group") };
	const struct record_head head = { .kind = RECORD_SLOT,
					  .save_id = save_id,
					  .epoch = epoch,
					  .number = number,
					  .generation = generation };
	struct place at;
	char key[KEY_BYTES];
	struct error e;

	EXPECT_CALL(place_init(tenant(), view_str(in), &at, &e), 0, &e);
	EXPECT_INT(rec_slot_encode(&rec, &body), 0);
	slot_key(&at, number, key);
	EXPECT_CALL(object_put(shelf->bundles, key, &head, view_buf(&body), true, deadline(shelf), &e), 0, &e);
}

static void put_bare_slot(struct shelf *shelf, const char *in, uint64_t number, uint64_t epoch, uint32_t generation)
{
	put_bare_slot_of(shelf, SAVE_ID, in, number, epoch, generation);
}

static void sweep(struct shelf *shelf)
{
	shelf->bundles->sweep_ns = 0;
	EXPECT_INT(tend_sweep(shelf->bundles), 0);
}

static void a_slot_that_never_had_a_row_is_burned_in_a_new_bundle_too(struct shelf *shelf, struct shelf *other,
								      struct error *e)
{
	const uint32_t generation = cluster_generation(shelf->bundles->cluster);
	struct fence fence = { 0 };
	_cleanup_(buf_fini) struct buf record = { 0 };
	struct collect_counts counts;

	take_lease(shelf, &fence, &record, 11, META_LEASE_MAX_MS);
	put_bare_slot(shelf, bundle, 1, fence.epoch, generation);
	sweep(other);
	EXPECT_INT(collect(other).slots, 0);
	EXPECT_INT(root_state(other, 1), ROOT_NONE); /* its writer lives */
	give_lease(shelf, 11);
	sweep(other);
	EXPECT_INT(root_state(other, 1), ROOT_BURNED);

	take_lease(shelf, &fence, &record, 12, META_LEASE_MAX_MS);
	give_lease(shelf, 12);
	put_bare_slot(shelf, "a new one", 1, fence.epoch, generation);
	EXPECT_CALL(
		bundles_collect(other->bundles, tenant(), (struct view){ 0 }, deadline(shelf), NULL, NULL, &counts, e),
		0, e);
	EXPECT_INT(counts.slots, 1);
	EXPECT_INT(counts.bundles, 2);
}

/* The engine was lost, and with it all leases; then comes what a writer of before had sent. */
static void a_slot_of_before_a_rebuild_is_burned(struct shelf *shelf, struct shelf *other, struct error *e)
{
	const uint32_t generation = cluster_generation(shelf->bundles->cluster);

	shelf_save(shelf, bundle, 1);
	put_bare_slot(shelf, bundle, 2, 7, generation);
	EXPECT_INT(collect(other).slots, 1); /* its writer had heard of the new engine, and holds no lease there */
	put_bare_slot(shelf, bundle, 3, 7, generation - 1);
	EXPECT_INT(collect(other).slots, 1);
	EXPECT_INT(root_state(other, 2), ROOT_BURNED);
	EXPECT_INT(root_state(other, 3), ROOT_BURNED);
}

/* A successor, as a rule, opens one more slot for the same save. */
static void what_a_save_has_left_goes_with_its_last_slot(struct shelf *shelf, struct shelf *other, struct error *e)
{
	const uint32_t generation = cluster_generation(shelf->bundles->cluster);
	_cleanup_(save_fini) struct save save;

	shelf_save(shelf, bundle, 1); /* it stays: nothing can be folded */
	save_begin(&save, shelf, bundle, 2);
	save_packs(&save);
	EXPECT_CALL(slot_burn(shelf->bundles, &save.slot, deadline(shelf), e), 0, e);
	put_bare_slot_of(shelf, save.slot.save_id, bundle, 3, 7, generation);
	EXPECT_INT(count_keys(shelf).packs, 4);
	EXPECT_INT(collect(other).slots, 1);
	EXPECT_INT(count_keys(shelf).packs, 2);
}

static struct nursery opening;

static void stop_at_slot(enum point point)
{
	if (point == POINT_SLOT_PUT)
		nursery_cancel(&opening);
}

struct opener {
	struct shelf *shelf;
	const struct fence *fence;
	struct slot slot;
};

static int open_and_stop(void *arg)
{
	struct opener *o = arg;
	struct error e;

	EXPECT_CALL(slot_open(o->shelf->bundles, tenant(), view_str(bundle), SAVE_ID, 0, o->fence, deadline(o->shelf),
			      &o->slot, &e),
		    -ECANCELED, &e);
	return 0;
}

static void give_up(const struct opener *o, struct error *e)
{
	EXPECT_CALL(slot_give_up(o->shelf->bundles, &o->slot, o->fence, deadline(o->shelf), e), 0, e);
}

/* Its coordinator lives: nobody else would end it. */
static void a_slot_that_was_being_opened_is_given_up(struct shelf *shelf, struct shelf *other, struct error *e)
{
	struct fence fence = { 0 };
	_cleanup_(buf_fini) struct buf record = { 0 };
	struct opener opener = { .shelf = shelf, .fence = &fence };

	take_lease(shelf, &fence, &record, 11, 8000);
	nursery_init(&opening, shelf->bed->env->loop);
	point_listen(stop_at_slot);
	EXPECT_INT(fiber_start(&opening, "opener", open_and_stop, &opener), 0);
	EXPECT_INT(nursery_wait(&opening, deadline(shelf)), 0);
	point_listen(NULL);
	nursery_fini(&opening);
	EXPECT_INT(opener.slot.number, 1);
	collect(other);
	EXPECT_INT(root_state(other, 1), ROOT_NONE);
	give_up(&opener, e);
	EXPECT_INT(root_state(other, 1), ROOT_BURNED);
	give_up(&opener, e);

	opener.slot.number = 2; /* as if it had been stopped before it was put: it may come yet */
	give_up(&opener, e);
	EXPECT_INT(root_state(other, 2), ROOT_BURNED);

	opener.slot.number = open_slot(other, SAVE_ID + 1, 0, NULL);
	give_up(&opener, e);
	EXPECT_INT(root_state(other, 3), ROOT_NONE); /* somebody else's */
	slot_fini(&opener.slot);
}

static void a_successor_burns_no_version_whose_root_is_away(struct shelf *shelf, struct shelf *other, struct error *e)
{
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	const struct place at = place();
	struct row_version row;
	char key[KEY_BYTES], root[KEY_BYTES + 128], aside[128];
	uint64_t number;

	shelf_save(shelf, bundle, 1);
	EXPECT_CALL(row_read_version(shelf->bundles, &at, 1, &bytes, &row, deadline(shelf), e), 0, e);
	root_key(&at, 1, key);
	snprintf(root, sizeof(root), "%s/store/%s", shelf->bed->dir, key);
	snprintf(aside, sizeof(aside), "%s/aside", shelf->bed->dir);
	EXPECT_INT(rename(root, aside), 0);
	EXPECT_CALL(
		slot_settle(other->bundles, tenant(), view_str(bundle), row.save_id, 1, deadline(other), &number, e), 0,
		e);
	EXPECT_INT(number, 1);
	EXPECT_INT(root_state(other, 1), ROOT_NONE);
	EXPECT_INT(rename(aside, root), 0);
	EXPECT_INT(shelf_compare(other, bundle, "1", 1), 0);
}

static void what_comes_late_to_a_quiet_bundle_is_swept(struct shelf *shelf, struct shelf *other, struct error *e)
{
	_cleanup_(save_fini) struct save zombie;

	fold_zombie(&zombie, shelf, other);
	for (int i = 0; i < 2; i++) {
		sweep(other);
		EXPECT_INT(fiber_sleep_until(env_now(shelf->bed->env) + other->bundles->grace_ns), 0);
	}
	EXPECT_INT(count_keys(shelf).packs, 2);
	EXPECT_INT(shelf_compare(other, bundle, "2", 2), 0);
	EXPECT_INT(tend_sweep(other->bundles), 0); /* the next one is not due */
	EXPECT_INT(other->bundles->sweep.key[0], 0);
	EXPECT(other->bundles->sweep_ns > env_now(shelf->bed->env));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		SHELF_STORY(a_slot_is_burned_once_its_coordinator_is_over_and_never_before),
		SHELF_STORY(a_slot_that_never_had_a_row_is_burned_in_a_new_bundle_too),
		SHELF_STORY(a_slot_of_before_a_rebuild_is_burned),
		SHELF_STORY(what_a_save_has_left_goes_with_its_last_slot),
		SHELF_STORY(a_slot_that_was_being_opened_is_given_up),
		SHELF_STORY(a_successor_burns_no_version_whose_root_is_away),
		SHELF_STORY(what_comes_late_to_a_quiet_bundle_is_swept),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
