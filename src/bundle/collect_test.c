/*
 * bundle/collect_test.c: what ends and what stays: slots of dead coordinators, readers, rules, collection, floors, and an index that is
 * older than the store. Each against the real engine and a real directory, by another daemon's eyes.
 */
#include "bundle/bundle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <stdlib.h>

#include "base/check.h"
#include "bundle/scan.h"
#include "bundle/shelf_suite.h"

static const char bundle[] = SHELF_BUNDLE;

static uint64_t deadline(struct shelf *shelf)
{
	return bed_deadline(shelf->bed);
}

static struct place place(void)
{
	struct place place;
	struct error e;

	EXPECT_CALL(place_init(tenant(), view_str(bundle), &place, &e), 0, &e);
	return place;
}

static int delete_it(struct shelf *shelf, uint64_t number, struct error *e)
{
	return version_delete(shelf->bundles, tenant(), view_str(bundle), number, deadline(shelf), e);
}

static int open_it(struct shelf *shelf, const char *spec, struct version **ret, struct error *e)
{
	return bundle_open(shelf->bundles, tenant(), view_str(bundle), view_str(spec), deadline(shelf), ret, e);
}

static bool opens(struct shelf *shelf, const char *spec)
{
	_cleanup_(cleanup_version_put) struct version *version = NULL;
	struct error e;

	return open_it(shelf, spec, &version, &e) == 0;
}

static struct collect_counts collect(struct shelf *shelf)
{
	struct collect_counts counts = { 0 };
	struct error e;

	EXPECT_CALL(
		bundles_collect(shelf->bundles, tenant(), view_str(bundle), deadline(shelf), NULL, NULL, &counts, &e),
		0, &e);
	return counts;
}

struct keys {
	unsigned n, packs, tombs;
};

static int count_key(void *arg, const char *key, char *after)
{
	struct keys *keys = arg;

	keys->n++;
	keys->packs += strstr(key, "/p/") != NULL;
	keys->tombs += strstr(key, "/root") != NULL;
	return 0;
}

static struct keys count_keys(struct shelf *shelf)
{
	struct keys keys = { 0 };
	struct place at = place();
	struct error e;

	EXPECT_CALL(keys_each(shelf->bundles, at.prefix, count_key, &keys, deadline(shelf), &e), 0, &e);
	return keys;
}

static enum root_state root_state(struct shelf *shelf, uint64_t number)
{
	_cleanup_(root_object_fini) struct root_object object = { 0 };
	struct place at = place();
	struct error e;

	EXPECT_CALL(root_read(shelf->bundles, &at, number, &object, deadline(shelf), &e), 0, &e);
	return object.state;
}

/* Puts the bundle's row back to what it was: as far as the check of an index goes, an older copy of it. */
static void set_row(struct shelf *shelf, const struct row_bundle *row)
{
	_cleanup_(change_fini) struct change change = { 0 };
	struct place at = place();
	struct error e;

	EXPECT_CALL(change_begin(shelf->bundles, &at, NULL, &change, deadline(shelf), &e), 0, &e);
	change.row = *row;
	EXPECT_CALL(change_commit(&change, deadline(shelf), &e), 0, &e);
}

/* ---- slots of dead coordinators ---- */

static void take_lease(struct shelf *shelf, struct fence *ret, struct buf *record, uint64_t holder, uint32_t ttl_ms)
{
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = meta_req_new(META_LEASE);
	struct meta *meta = cluster_meta(shelf->bundles->cluster);
	struct error e;
	uint64_t who;

	record->len = 0;
	EXPECT_INT(meta_put_lease(req, view_str("g/group"), holder, ttl_ms), 0);
	EXPECT_CALL(meta_call_run(meta, &req, deadline(shelf), &e), 0, &e);
	EXPECT_INT(meta_out_lease(view_buf(&req->out), &who, &ret->epoch), 0);
	EXPECT_CALL(meta_get(meta, view_str("g/group"), record, deadline(shelf), &e), 0, &e);
	ret->key = view_str("g/group");
	ret->record = view_buf(record);
}

static void give_lease(struct shelf *shelf, uint64_t holder)
{
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = meta_req_new(META_RELEASE);
	struct error e;

	EXPECT_INT(meta_put_lease(req, view_str("g/group"), holder, 0), 0);
	EXPECT_CALL(meta_call_run(cluster_meta(shelf->bundles->cluster), &req, deadline(shelf), &e), 0, &e);
}

static void look_around(struct shelf *shelf)
{
	_cleanup_(buf_fini) struct buf listing = { 0 };

	shelf_listing(shelf, &listing);
}

static uint64_t open_slot(struct shelf *shelf, uint64_t save_id, uint64_t parent, const struct fence *fence)
{
	_cleanup_(slot_fini) struct slot slot = { 0 };
	struct error e;

	EXPECT_CALL(slot_open(shelf->bundles, tenant(), view_str(bundle), save_id, parent, fence, deadline(shelf),
			      &slot, &e),
		    0, &e);
	return slot.number;
}

static void a_slot_is_burned_once_its_coordinator_is_over_and_never_before(struct shelf *shelf, struct shelf *other,
									   struct error *e)
{
	struct fence fence = { 0 };
	_cleanup_(buf_fini) struct buf record = { 0 };

	shelf_save(shelf, bundle, 1);
	take_lease(shelf, &fence, &record, 11, 8000);
	uint64_t given_back = open_slot(shelf, 0x100, 0, &fence);
	look_around(other);
	collect(other);
	EXPECT_INT(root_state(other, given_back), ROOT_NONE); /* it lives */
	give_lease(shelf, 11);
	look_around(other);
	EXPECT_INT(root_state(other, given_back), ROOT_BURNED);

	take_lease(shelf, &fence, &record, 12, 8000);
	uint64_t overtaken = open_slot(shelf, 0x101, 0, &fence);
	give_lease(shelf, 12);
	take_lease(shelf, &fence, &record, 13, 8000);
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
static void put_bare_slot(struct shelf *shelf, const char *in, uint64_t number, uint64_t epoch, uint32_t generation)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	const struct rec_slot rec = { .tenant = tenant(),
				      .bundle = view_str(in),
				      .node = view_str("n0"),
				      .lease = view_str("g/group") };
	const struct record_head head = { .kind = RECORD_SLOT,
					  .save_id = 0x105,
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

	take_lease(shelf, &fence, &record, 11, 8000);
	put_bare_slot(shelf, bundle, 1, fence.epoch, generation);
	sweep(other);
	EXPECT_INT(collect(other).slots, 0);
	EXPECT_INT(root_state(other, 1), ROOT_NONE); /* its writer lives */
	give_lease(shelf, 11);
	sweep(other);
	EXPECT_INT(root_state(other, 1), ROOT_BURNED);

	take_lease(shelf, &fence, &record, 12, 8000);
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

static void what_comes_late_to_a_quiet_bundle_is_swept(struct shelf *shelf, struct shelf *other, struct error *e)
{
	_cleanup_(save_fini) struct save zombie;

	save_begin(&zombie, shelf, bundle, 1);
	EXPECT_CALL(slot_burn(other->bundles, &zombie.slot, deadline(shelf), e), 0, e);
	shelf_save(shelf, bundle, 2);
	EXPECT_INT(collect(other).folded, 1);
	save_packs(&zombie);
	EXPECT_INT(count_keys(shelf).packs, 4);
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

/* ---- readers and children ---- */

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
	version->leased_ns = 0; /* as if its daemon slept for longer than the lease */
	reader_end(other->bundles, &at, 1, deadline(other));
	EXPECT_CALL(delete_it(shelf, 1, e), 0, e);
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
	take_lease(shelf, &fence, &record, 11, 8000);
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

/* A child of version 1 whose second pack is its parent's. */
static uint64_t save_child(struct shelf *shelf, uint64_t seed)
{
	_cleanup_(save_fini) struct save save;
	_cleanup_(cleanup_version_put) struct version *parent = NULL;
	struct error e;

	EXPECT_CALL(open_it(shelf, "1", &parent, &e), 0, &e);
	save_begin_child(&save, shelf, bundle, seed, 1);
	EXPECT(save.slot.pinned);
	save_packs(&save);
	free(save.version->packs[1].key);
	save.version->packs[1].key = strdup(parent->packs[1].key);
	for (size_t i = 1; i < 4; i += 2)
		save.version->blocks[i] = parent->blocks[i];
	EXPECT_CALL(slot_publish(shelf->bundles, &save.slot, save.version, NULL, deadline(shelf), &e), 0, &e);
	return save.slot.number;
}

static int no_damage(void *arg, const char *object, struct view item, uint64_t block, const char *words)
{
	fprintf(stderr, "%s: %s\n", object, words);
	abort();
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

/* ---- rules ---- */

static int retain(struct shelf *shelf, uint64_t last, uint64_t every, struct error *e)
{
	return bundle_retain(shelf->bundles, tenant(), view_str(bundle), last, every, deadline(shelf), e);
}

static void expect_rule(struct shelf *shelf, uint64_t last, uint64_t every)
{
	const struct place at = place();
	struct row_bundle row;
	struct error e;

	EXPECT_CALL(row_read_bundle(shelf->bundles, &at, &row, deadline(shelf), &e), 0, &e);
	EXPECT_INT(row.keep_last, last);
	EXPECT_INT(row.keep_every, every);
}

static void expect_numbers(struct shelf *shelf, const char *want)
{
	struct version_entry *versions = NULL;
	_cleanup_(buf_fini) struct buf is = { 0 };
	struct error e;
	size_t n;
	bool more;

	EXPECT_CALL(version_list(shelf->bundles, tenant(), view_str(bundle), 0, 1000, deadline(shelf), &versions, &n,
				 &more, &e),
		    0, &e);
	for (size_t i = 0; i < n; i++)
		CHECK(buf_printf(&is, "%s%" PRIu64, i ? " " : "", versions[i].number) == 0);
	CHECK(buf_append_zero(&is, 1) == 0);
	version_entries_free(versions, n);
	if (strcmp((char *)is.ptr, want) != 0) {
		fprintf(stderr, "there are versions %s, not %s\n", (char *)is.ptr, want);
		abort();
	}
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

static void a_rule_is_applied_after_each_publication(struct shelf *shelf, struct shelf *other, struct error *e)
{
	shelf_save(shelf, bundle, 1);
	EXPECT_CALL(retain(shelf, 2, 0, e), 0, e);
	for (uint64_t seed = 2; seed <= 5; seed++)
		shelf_save(shelf, bundle, seed);
	while (opens(other, "3"))
		EXPECT_INT(fiber_sleep_until(env_in_ms(shelf->bed->env, 5)), 0);
	expect_numbers(other, "4 5");
	EXPECT_CALL(retain(shelf, 0, 0, e), 0, e);
	shelf_save(shelf, bundle, 6);
	collect(shelf);
	expect_numbers(other, "4 5 6");
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

/* ---- collection ---- */

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
	take_lease(shelf, &fence, &record, 11, 8000);
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

/* Its writer is stopped, and goes on when its slot has been burned and folded: nothing but the pack knows of the save. */
static void a_pack_that_comes_when_its_slot_is_folded_is_swept(struct shelf *shelf, struct shelf *other,
							       struct error *e)
{
	_cleanup_(save_fini) struct save zombie;
	struct collect_counts counts;

	save_begin(&zombie, shelf, bundle, 1);
	EXPECT_CALL(slot_burn(other->bundles, &zombie.slot, deadline(shelf), e), 0, e);
	shelf_save(shelf, bundle, 2);
	EXPECT_INT(collect(other).folded, 1);
	save_packs(&zombie);
	EXPECT_INT(count_keys(shelf).packs, 4);
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

/* ---- floors ---- */

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

	take_lease(shelf, &fence, &record, 11, 8000);
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

/* ---- an index that is older than the store ---- */

static void expect_index(struct shelf *shelf, int want, struct error *e)
{
	EXPECT_CALL(bundles_check_index(shelf->bundles, deadline(shelf), e), want, e);
	EXPECT(!want || strstr(e->text, "older than the store"));
}

static void an_index_older_than_the_store_is_noticed(struct shelf *shelf, struct shelf *other, struct error *e)
{
	struct place at = place();
	struct row_bundle old, now;

	expect_index(shelf, 0, e);
	shelf_save(shelf, bundle, 1);
	EXPECT_CALL(label_set(shelf->bundles, tenant(), view_str(bundle), view_str("prod"), 0, 1, deadline(shelf), e),
		    0, e);
	EXPECT_INT(row_read_bundle(shelf->bundles, &at, &old, deadline(shelf), e), 0);
	shelf_save(shelf, bundle, 2);
	expect_index(shelf, 0, e);
	EXPECT_INT(row_read_bundle(shelf->bundles, &at, &now, deadline(shelf), e), 0);
	set_row(shelf, &old); /* version 2 is not known */
	expect_index(shelf, -ERR_EREBUILD, e);
	EXPECT(strstr(e->text, "00000000000000000002/root"));
	set_row(shelf, &now);
	expect_index(shelf, 0, e);

	EXPECT_CALL(retain(shelf, 4, 0, e), 0, e);
	expect_index(shelf, 0, e);
	EXPECT_INT(row_read_bundle(shelf->bundles, &at, &now, deadline(shelf), e), 0);
	old = now;
	old.rule = 0;
	set_row(shelf, &old); /* nor the rule */
	expect_index(shelf, -ERR_EREBUILD, e);
	set_row(shelf, &now);
	expect_index(shelf, 0, e);

	_cleanup_(change_fini) struct change change = { 0 };
	const struct row_key label = label_row_key(&at, view_str("prod"));
	EXPECT_CALL(change_begin(shelf->bundles, &at, NULL, &change, deadline(shelf), e), 0, e);
	EXPECT_INT(meta_txn_delete(change.req, row_key_view(&label)), 0);
	EXPECT_CALL(change_commit(&change, deadline(shelf), e), 0, e);
	expect_index(shelf, -ERR_EREBUILD, e); /* nor the label's move */
	EXPECT(strstr(e->text, "/l/prod/"));
}

static void a_slot_that_was_never_recorded_is_not_an_older_index(struct shelf *shelf, struct shelf *other,
								 struct error *e)
{
	struct place at = place();
	struct row_bundle old;

	shelf_save(shelf, bundle, 1);
	EXPECT_INT(row_read_bundle(shelf->bundles, &at, &old, deadline(shelf), e), 0);
	open_slot(shelf, 0x100, 0, NULL);
	set_row(shelf, &old);
	expect_index(shelf, 0, e);
	_cleanup_(slot_fini) struct slot slot = { .tenant = view_dup(at.tenant),
						  .bundle = view_dup(at.bundle),
						  .number = old.last + 1,
						  .save_id = 0x100 };
	EXPECT_CALL(slot_burn(shelf->bundles, &slot, deadline(shelf), e), 0, e);
	set_row(shelf, &old); /* its writer could not record it, and burned it */
	expect_index(shelf, 0, e);
	shelf_save(shelf, "a/new one", 1);
	shelf_save(shelf, "zz", 1);
	expect_index(other, 0, e);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		SHELF_STORY(a_slot_is_burned_once_its_coordinator_is_over_and_never_before),
		SHELF_STORY(a_slot_that_never_had_a_row_is_burned_in_a_new_bundle_too),
		SHELF_STORY(a_slot_of_before_a_rebuild_is_burned),
		SHELF_STORY(what_comes_late_to_a_quiet_bundle_is_swept),
		SHELF_STORY(a_version_that_a_node_reads_is_not_deleted),
		SHELF_STORY(a_reader_whose_lease_is_over_learns_that_its_version_was_deleted),
		SHELF_STORY(without_an_index_the_root_says_what_was_deleted),
		SHELF_STORY(a_deletion_that_was_taken_over_is_not_taken_back),
		SHELF_STORY(a_deletion_that_was_taken_back_is_not_gone_on_with),
		SHELF_STORY(who_cannot_delete_what_another_node_deletes_is_not_told_that_it_stays),
		SHELF_STORY(the_parent_of_an_open_save_is_not_deleted),
		SHELF_STORY(packs_of_a_deleted_parent_stay_as_long_as_a_child_names_them),
		SHELF_STORY(a_rule_keeps_the_last_each_kth_and_what_is_labelled_or_read),
		SHELF_STORY(a_rule_is_applied_after_each_publication),
		SHELF_STORY(the_highest_rule_is_in_force_after_a_rebuild_too),
		SHELF_STORY(a_rule_cut_at_any_step_is_in_force_or_never_was),
		SHELF_STORY(what_dead_saves_left_is_swept_and_nothing_else),
		SHELF_STORY(two_collections_meet_on_a_node),
		SHELF_STORY(foreign_objects_are_told_and_stay),
		SHELF_STORY(a_pack_that_is_missing_under_a_version_is_an_alarm),
		SHELF_STORY(a_pack_that_comes_when_its_slot_is_folded_is_swept),
		SHELF_STORY(what_only_the_last_pass_understands_is_not_told),
		SHELF_STORY(a_version_whose_root_is_missing_is_an_alarm_and_keeps_all),
		SHELF_STORY(a_pack_whose_slot_was_burned_without_its_names_is_swept),
		SHELF_STORY(an_unknown_pack_stays_unless_its_number_is_below_the_floor),
		SHELF_STORY(tombstones_are_folded_into_a_floor_below_which_nothing_exists),
		SHELF_STORY(a_version_that_is_folded_before_its_writer_knows_was_published),
		SHELF_STORY(more_numbers_than_are_looked_at_are_told_in_words),
		SHELF_STORY(a_bundle_whose_versions_are_all_gone_is_a_floor_and_its_numbers_go_on),
		SHELF_STORY(a_floor_cut_before_the_index_is_taken_over),
		SHELF_STORY(nothing_is_concluded_from_a_list_without_a_version_that_the_index_has),
		SHELF_STORY(an_index_older_than_the_store_is_noticed),
		SHELF_STORY(a_slot_that_was_never_recorded_is_not_an_older_index),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
