/* bundle/collect_test.c: collection: what dead saves left is swept, and nothing else. */
#include "bundle/ends_fixture.h"

/* A save under @fence that ends after its packs and segments, as its daemon dies there. */
static uint64_t cut_save(struct shelf *shelf, uint64_t seed, const struct fence *fence)
{
	_cleanup_(save_fini) struct save save;

	save_begin_fenced(&save, shelf, bundle, seed, fence);
	save_packs(&save);
	save_segments(&save);
	return save.slot.number;
}

static void what_dead_saves_left_is_swept_and_nothing_else(struct shelf *shelf, struct shelf *other, struct error *e)
{
	struct fence fence = { 0 };
	_cleanup_(buf_fini) struct buf record = { 0 };

	shelf_save(shelf, bundle, 1);
	take_lease(shelf, &fence, &record, 11, META_LEASE_MAX_MS);
	uint64_t cut = cut_save(shelf, 2, &fence);
	EXPECT_INT(count_keys(shelf).packs, 4);
	EXPECT_INT(collect(other).freed, 0); /* its coordinator lives: it may go on */
	EXPECT_INT(count_keys(shelf).packs, 4);
	give_lease(shelf, 11);
	struct collect_counts counts = collect(other);
	EXPECT(counts.freed >= 4 && counts.freed_bytes > 300000);
	EXPECT_INT(count_keys(shelf).packs, 2);
	EXPECT_INT(root_state(other, cut), ROOT_BURNED); /* above a version that lives: no floor can swallow it */
	EXPECT_INT(shelf_compare(other, bundle, "1", 1), 0);
	EXPECT_INT(collect(other).freed, 0);
}

static int collect_again(void *arg)
{
	(void)collect(arg);
	return 0;
}

static void two_collections_meet_on_a_node(struct shelf *shelf, struct shelf *other, struct error *e)
{
	struct nursery nursery;

	shelf_save(shelf, bundle, 1);
	shelf_save(shelf, bundle, 2);
	EXPECT_INT(delete_it(shelf, 1, e), 0);
	nursery_init(&nursery, shelf->bed->env->loop);
	for (int i = 0; i < 2; i++)
		EXPECT_INT(fiber_start(&nursery, "collect", collect_again, shelf), 0);
	EXPECT_INT(nursery_wait(&nursery, deadline(shelf)), 0);
	EXPECT_INT(count_keys(shelf).packs, 2);
	EXPECT_INT(shelf_compare(shelf, bundle, "2", 2), 0);
}

static void note_key(void *arg, const char *key)
{
	snprintf(arg, 512, "%s", key);
}

static void foreign_objects_are_told_and_stay(struct shelf *shelf, struct shelf *other, struct error *e)
{
	struct place at = place();
	struct collect_counts counts;
	char key[KEY_BYTES], told[512] = "";

	shelf_save(shelf, bundle, 1);
	snprintf(key, sizeof(key), "%sp/notes.txt", at.prefix);
	EXPECT_CALL(backend_write(shelf->bed->backend, key, view_str("mine"), true, deadline(shelf), e), 0, e);
	for (int i = 0; i < 2; i++) {
		EXPECT_CALL(bundles_collect(other->bundles, tenant(), view_str(bundle), deadline(shelf), note_key, told,
					    &counts, e),
			    0, e);
		EXPECT_INT(counts.unclear, 1);
		EXPECT_INT(strcmp(told, key), 0);
	}
	EXPECT_INT(count_keys(shelf).packs, 3);
	EXPECT_CALL(
		bundles_collect(other->bundles, tenant(), view_str("no such"), deadline(shelf), NULL, NULL, &counts, e),
		-ENOENT, e);
}

/* Somebody sets a root aside before he tries something: under a version that lives, and under one that was deleted. */
static void what_is_not_ours_beside_a_root_is_told_and_stays(struct shelf *shelf, struct shelf *other, struct error *e)
{
	static const char *const names[] = { "root.bak", "notes.txt", "0123456789abcdef-items-", "slot.d/x" };
	struct place at = place();
	struct collect_counts counts;
	char key[KEY_BYTES];

	shelf_save(shelf, bundle, 1);
	shelf_save(shelf, bundle, 2);
	for (uint64_t number = 1; number <= 2; number++)
		for (size_t i = 0; i < ARRAY_LEN(names); i++) {
			snprintf(key, sizeof(key), "%sv/%020" PRIu64 "/%s", at.prefix, number, names[i]);
			EXPECT_CALL(backend_write(shelf->bed->backend, key, view_str("mine"), true, deadline(shelf), e),
				    0, e);
		}
	EXPECT_CALL(delete_it(shelf, 1, e), 0, e);
	for (int pass = 0; pass < 3; pass++)
		EXPECT_CALL(bundles_collect(other->bundles, tenant(), view_str(bundle), deadline(shelf), NULL, NULL,
					    &counts, e),
			    0, e);
	EXPECT_INT(counts.unclear, 2 * ARRAY_LEN(names));
	for (uint64_t number = 1; number <= 2; number++)
		for (size_t i = 0; i < ARRAY_LEN(names); i++) {
			_cleanup_(buf_fini) struct buf bytes = { 0 };

			snprintf(key, sizeof(key), "%sv/%020" PRIu64 "/%s", at.prefix, number, names[i]);
			EXPECT_CALL(backend_read(shelf->bed->backend, key, 64, &bytes, deadline(shelf), e), 0, e);
			EXPECT_INT(bytes.len, 4);
		}
}

static void a_pack_that_is_missing_under_a_version_is_an_alarm(struct shelf *shelf, struct shelf *other,
							       struct error *e)
{
	char pack[BACKEND_KEY_MAX + 1];

	shelf_save(shelf, bundle, 1);
	EXPECT_INT(pack_key(tenant(), view_str(bundle), 0xabc001, "n0", 1, pack), 0);
	EXPECT_CALL(object_delete(shelf->bundles, pack, deadline(shelf), e), 0, e);
	EXPECT_INT(collect(other).missing, 1);
	struct collect_counts sum;
	bundles_counts(other->bundles, &sum);
	EXPECT_INT(sum.missing, 1);
}

/* Once, while a scan is at the packs: the roots have been read. */
struct changing {
	struct shelf *shelf;
	uint64_t deletes; /* 0: another version is saved */
	bool changed;
};

static void change_bundle(void *arg, const char *key)
{
	struct changing *c = arg;
	struct error e;

	if (c->changed)
		return;
	c->changed = true;
	if (c->deletes)
		EXPECT_CALL(delete_it(c->shelf, c->deletes, &e), 0, &e);
	else
		shelf_save(c->shelf, bundle, 3);
}

/* To a bundle that is saved to all the time there is no scan without a change; and what is deleted meanwhile was not lost. */
static void a_pack_that_is_missing_is_an_alarm_in_a_bundle_that_changes_too(struct shelf *shelf, struct shelf *other,
									    struct error *e)
{
	char pack[BACKEND_KEY_MAX + 1], key[KEY_BYTES];
	const struct place at = place();

	shelf_save(shelf, bundle, 1);
	shelf_save(shelf, bundle, 2);
	snprintf(key, sizeof(key), "%sp/-strange", at.prefix);
	EXPECT_CALL(backend_write(shelf->bed->backend, key, view_str("?"), true, deadline(shelf), e), 0, e);
	EXPECT_INT(pack_key(tenant(), view_str(bundle), 0xabc001, "n0", 1, pack), 0);
	EXPECT_CALL(object_delete(shelf->bundles, pack, deadline(shelf), e), 0, e);
	for (uint64_t deletes = 0; deletes < 2; deletes++) {
		struct changing changing = { .shelf = shelf, .deletes = deletes };
		_cleanup_(scan_fini) struct scan scan;

		scan_init(&scan, other->bundles, &at, deadline(shelf), e);
		scan.unclear = change_bundle;
		scan.arg = &changing;
		EXPECT_CALL(scan_run(&scan), 0, e);
		EXPECT(changing.changed);
		EXPECT_INT(scan.n_missing, deletes ? 0 : 1);
		EXPECT(deletes || !strcmp(scan.missing, pack));
	}
}

/* Its writer is stopped, and goes on when its slot has been burned and folded: nothing but the pack knows of the save. */
static void a_pack_that_comes_when_its_slot_is_folded_is_swept(struct shelf *shelf, struct shelf *other,
							       struct error *e)
{
	_cleanup_(save_fini) struct save zombie;
	struct collect_counts counts;

	fold_zombie(&zombie, shelf, other);
	counts = collect(other);
	EXPECT_INT(counts.unclear, 0);
	EXPECT_INT(counts.freed, 2);
	EXPECT_INT(count_keys(shelf).packs, 2);
	EXPECT_INT(shelf_compare(other, bundle, "2", 2), 0);
}

/* Nobody can tell whose slot that was; only when its number is folded it is clear that its packs may go. */
static void what_only_the_last_pass_understands_is_not_told(struct shelf *shelf, struct shelf *other, struct error *e)
{
	_cleanup_(save_fini) struct save lost;
	struct collect_counts counts;
	struct rebuild_counts rebuilt;
	struct place at = place();
	char key[KEY_BYTES], told[512] = "";

	save_begin(&lost, shelf, bundle, 1);
	save_packs(&lost);
	slot_key(&at, lost.slot.number, key);
	EXPECT_CALL(backend_write(shelf->bed->backend, key, view_str("rot"), false, deadline(shelf), e), 0, e);
	EXPECT_CALL(bundles_rebuild(shelf->bundles, deadline(shelf), &rebuilt, e), 0, e);
	shelf_save(shelf, bundle, 2);
	EXPECT_CALL(bundles_collect(other->bundles, tenant(), view_str(bundle), deadline(shelf), note_key, told,
				    &counts, e),
		    0, e);
	EXPECT_INT(counts.folded, 1);
	EXPECT_INT(counts.unclear, 0);
	EXPECT_INT(told[0], 0);
	EXPECT_INT(count_keys(shelf).packs, 2);
	EXPECT_INT(shelf_compare(other, bundle, "2", 2), 0);
}

/* Nor is it known whose the slot was: a rebuild could not read it. */
static void a_pack_whose_slot_was_burned_without_its_names_is_swept(struct shelf *shelf, struct shelf *other,
								    struct error *e)
{
	_cleanup_(save_fini) struct save zombie;

	shelf_save(shelf, bundle, 1);
	save_begin(&zombie, shelf, bundle, 2);
	save_packs(&zombie);
	zombie.slot.save_id = 0;
	EXPECT_CALL(slot_burn(other->bundles, &zombie.slot, deadline(shelf), e), 0, e);
	struct collect_counts counts = collect(other);
	EXPECT_INT(counts.unclear, 0);
	EXPECT_INT(counts.freed, 2);
	EXPECT_INT(count_keys(shelf).packs, 2);
	EXPECT_INT(shelf_compare(other, bundle, "1", 1), 0);
}

/* The same of packs that say a number that is not below the floor, another save, or nothing that can be read; and of one that lives. */
static void an_unknown_pack_stays_unless_its_number_is_below_the_floor(struct shelf *shelf, struct shelf *other,
								       struct error *e)
{
	_cleanup_(save_fini) struct save zombie, named;
	struct place at = place();
	char key[BACKEND_KEY_MAX + 1];

	save_begin(&zombie, shelf, bundle, 1);
	EXPECT_CALL(slot_burn(other->bundles, &zombie.slot, deadline(shelf), e), 0, e);
	save_begin(&named, shelf, bundle, 2);
	named.slot.number = 1; /* in its packs alone */
	save_packs(&named);
	named.slot.number = 2;
	EXPECT_CALL(slot_publish(shelf->bundles, &named.slot, named.version, NULL, deadline(shelf), e), 0, e);
	EXPECT_INT(collect(other).folded, 1);

	zombie.slot.number = 2;
	save_packs(&zombie);
	EXPECT_INT(pack_key(at.tenant, at.bundle, 0xdead, "n0", 0, key), 0);
	EXPECT_CALL(backend_write(shelf->bed->backend, key, view_str("no pack"), true, deadline(shelf), e), 0, e);
	struct collect_counts counts = collect(other);
	EXPECT_INT(counts.unclear, 3);
	EXPECT_INT(counts.freed, 0);
	EXPECT_INT(shelf_compare(other, bundle, "2", 2), 0);

	/* a rebuild that is under way has no floor yet, or no row at all */
	EXPECT_CALL(object_delete(shelf->bundles, zombie.version->packs[0].key, deadline(shelf), e), 0, e);
	EXPECT_CALL(object_delete(shelf->bundles, zombie.version->packs[1].key, deadline(shelf), e), 0, e);
	zombie.slot.number = 1;
	save_packs(&zombie);
	struct row_bundle row, old;
	EXPECT_INT(row_read_bundle(shelf->bundles, &at, &row, deadline(shelf), e), 0);
	old = row;
	old.floor = 0;
	set_row(shelf, &old);
	_cleanup_(scan_fini) struct scan scan;
	scan_init(&scan, other->bundles, &at, deadline(shelf), e);
	EXPECT_CALL(scan_run(&scan), 0, e);
	EXPECT_INT(scan.n_dead, 0);
	EXPECT_INT(scan.n_unclear, 3);
	EXPECT_INT(collect(other).freed, 2); /* the floor is taken over from the store first */
	EXPECT_INT(shelf_compare(other, bundle, "2", 2), 0);
}

/* Once, when a scan that is under way meets the object that it does not understand: behind the slots' rows, before it reads roots. */
struct meddling {
	struct shelf *shelf;
	uint64_t child;
};

/* The only version that names a pack of 1 has a child that names it, too, and is deleted. */
static void meddle(void *arg, const char *key)
{
	struct meddling *m = arg;
	struct error e;

	if (m->child)
		return;
	m->child = save_child_of(m->shelf, 4, 3);
	EXPECT_CALL(delete_it(m->shelf, 3, &e), 0, &e);
}

static void a_bundle_that_changes_meanwhile_is_swept_and_what_came_is_kept(struct shelf *shelf, struct shelf *other,
									   struct error *e)
{
	_cleanup_(save_fini) struct save zombie;
	struct meddling m = { .shelf = shelf };
	uint64_t blocks, bytes;
	struct place at = place();
	_cleanup_(scan_fini) struct scan scan;
	char key[KEY_BYTES];

	shelf_save(shelf, bundle, 1);
	save_begin(&zombie, shelf, bundle, 2);
	save_packs(&zombie);
	EXPECT_CALL(slot_burn(other->bundles, &zombie.slot, deadline(shelf), e), 0, e);
	EXPECT_INT(save_child_of(shelf, 3, 1), 3);
	EXPECT_CALL(delete_it(shelf, 1, e), 0, e);
	snprintf(key, sizeof(key), "%sv/-strange", at.prefix);
	EXPECT_CALL(backend_write(shelf->bed->backend, key, view_str("?"), true, deadline(shelf), e), 0, e);

	scan_init(&scan, other->bundles, &at, deadline(shelf), e);
	scan.unclear = meddle;
	scan.arg = &m;
	EXPECT_CALL(scan_run(&scan), 0, e);
	EXPECT_INT(m.child, 4);
	EXPECT_INT(scan.n_unclear, 0); /* of what came meanwhile nothing is said */
	/* two packs of the zombie's, two of 3 and its segments, and the first one of 1, but not the second, which 4 names */
	EXPECT_INT(scan.n_dead, 7);
	EXPECT_INT(scan.lowest, 1); /* their tombstones stay as long */
	EXPECT_CALL(object_delete(shelf->bundles, key, deadline(shelf), e), 0, e);
	collect(other);
	EXPECT_INT(count_keys(shelf).packs, 2);
	EXPECT_CALL(bundle_verify(other->bundles, tenant(), view_str(bundle), 4, deadline(shelf), no_damage, NULL,
				  &blocks, &bytes, e),
		    0, e);
}

/* Of a deletion that died, say. Else they would lie below the floor, where nobody waits for readers. */
static void a_tombstone_stays_as_long_as_segments_of_its_save(struct shelf *shelf, struct shelf *other, struct error *e)
{
	struct place at = place();
	_cleanup_(scan_fini) struct scan scan;
	char key[KEY_BYTES];

	shelf_save(shelf, bundle, 1);
	shelf_save(shelf, bundle, 2);
	EXPECT_CALL(delete_it(shelf, 1, e), 0, e);
	snprintf(key, sizeof(key), "%sv/%020d/%016x-items-0", at.prefix, 1, 0xabc001);
	EXPECT_CALL(backend_write(shelf->bed->backend, key, view_str("?"), true, deadline(shelf), e), 0, e);
	scan_init(&scan, other->bundles, &at, deadline(shelf), e);
	EXPECT_CALL(scan_run(&scan), 0, e);
	EXPECT_INT(scan.n_dead, 1);
	EXPECT_INT(scan.lowest, 1);
}

/* One pass, as a round in the background makes it. */
static uint64_t missing_in(struct shelf *shelf, const char *name)
{
	struct place at;
	struct error e = { 0 };

	EXPECT_CALL(place_init(tenant(), view_str(name), &at, &e), 0, &e);
	struct collecting c = { .bundles = shelf->bundles, .place = &at, .deadline_ns = deadline(shelf), .e = &e };
	EXPECT_INT(collect_pass(&c) >= 0, 1);
	buf_fini(&c.unclear);
	return c.counts.missing;
}

static void lose_root(struct shelf *shelf, const char *name)
{
	char key[KEY_BYTES];
	struct place at;
	struct error e;

	shelf_save(shelf, name, 1);
	EXPECT_CALL(place_init(tenant(), view_str(name), &at, &e), 0, &e);
	root_key(&at, 1, key);
	EXPECT_CALL(object_delete(shelf->bundles, key, deadline(shelf), &e), 0, &e);
}

static void roots_that_are_missing_in_two_bundles_are_both_told_once(struct shelf *shelf, struct shelf *other,
								     struct error *e)
{
	bundles_stop(other->bundles);
	lose_root(shelf, "a");
	lose_root(shelf, "b");
	for (uint64_t round = 0; round < 3; round++) {
		EXPECT_INT(missing_in(other, "a"), round == 1);
		EXPECT_INT(missing_in(other, "b"), round == 1);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		SHELF_STORY(a_bundle_that_changes_meanwhile_is_swept_and_what_came_is_kept),
		SHELF_STORY(a_tombstone_stays_as_long_as_segments_of_its_save),
		SHELF_STORY(what_dead_saves_left_is_swept_and_nothing_else),
		SHELF_STORY(two_collections_meet_on_a_node),
		SHELF_STORY(foreign_objects_are_told_and_stay),
		SHELF_STORY(what_is_not_ours_beside_a_root_is_told_and_stays),
		SHELF_STORY(a_pack_that_is_missing_under_a_version_is_an_alarm),
		SHELF_STORY(a_pack_that_is_missing_is_an_alarm_in_a_bundle_that_changes_too),
		SHELF_STORY(a_pack_that_comes_when_its_slot_is_folded_is_swept),
		SHELF_STORY(what_only_the_last_pass_understands_is_not_told),
		SHELF_STORY(a_pack_whose_slot_was_burned_without_its_names_is_swept),
		SHELF_STORY(an_unknown_pack_stays_unless_its_number_is_below_the_floor),
		SHELF_STORY(roots_that_are_missing_in_two_bundles_are_both_told_once),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
