/* bundle/rebuild_test.c: an index made from the store alone says what the lost one said. */
#include "bundle/bundle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "bundle/shelf_suite.h"

static uint64_t deadline(struct shelf *shelf)
{
	return bed_deadline(shelf->bed);
}

static void move_label(struct shelf *shelf, const char *bundle, const char *label, uint64_t number)
{
	struct error e;

	EXPECT_CALL(label_set(shelf->bundles, tenant(), view_str(bundle), view_str(label), UINT64_MAX, number,
			      deadline(shelf), &e),
		    0, &e);
}

static void delete_version(struct shelf *shelf, const char *bundle, uint64_t number)
{
	struct error e;

	EXPECT_CALL(version_delete(shelf->bundles, tenant(), view_str(bundle), number, deadline(shelf), &e), 0, &e);
}

/* A save that goes as far as step @steps: 1 slot, 2 packs, 3 segments, 4 root. */
static void cut_save(struct shelf *shelf, const char *bundle, uint64_t seed, int steps)
{
	_cleanup_(save_fini) struct save save;

	save_begin(&save, shelf, bundle, seed);
	if (steps > 1)
		save_packs(&save);
	if (steps > 2)
		save_segments(&save);
	if (steps > 3)
		save_root(&save);
}

static void cut_deletion(struct shelf *shelf, const char *bundle, uint64_t number, int steps)
{
	struct place place;
	struct error e;

	EXPECT_CALL(place_init(tenant(), view_str(bundle), &place, &e), 0, &e);
	EXPECT_CALL(delete_begin(shelf->bundles, &place, number, 7, deadline(shelf), &e), 0, &e);
	if (steps > 1)
		EXPECT_CALL(delete_root(shelf->bundles, &place, number, deadline(shelf), &e), 0, &e);
}

/* Everything that can lie in a store. */
static void make_history(struct shelf *shelf)
{
	for (uint64_t seed = 1; seed <= 4; seed++)
		shelf_save(shelf, "models/m", seed);
	move_label(shelf, "models/m", "prod", 1);
	move_label(shelf, "models/m", "prod", 3);
	move_label(shelf, "models/m", "best/f1", 2);
	move_label(shelf, "models/m", "old", 1);
	move_label(shelf, "models/m", "old", 0);
	delete_version(shelf, "models/m", 1);
	for (int steps = 1; steps <= 4; steps++)
		cut_save(shelf, "ckpt", 20 + (uint64_t)steps, steps);
	shelf_save(shelf, "ckpt", 30);
	shelf_save(shelf, "ckpt", 31);
	shelf_save(shelf, "ckpt", 32);
	cut_deletion(shelf, "ckpt", 6, 1);
	cut_deletion(shelf, "ckpt", 7, 2);
	shelf_save(shelf, "gone", 40);
	delete_version(shelf, "gone", 1);
	cut_save(shelf, "never", 41, 3);
}

static void expect_same(const struct buf *a, const struct buf *b)
{
	if (!view_equal(view_buf(a), view_buf(b))) {
		fprintf(stderr, "listings differ:\n%s---\n%s", (char *)a->ptr, (char *)b->ptr);
		abort();
	}
}

static void rebuild(struct shelf *shelf, struct rebuild_counts *ret)
{
	struct error e;

	EXPECT_CALL(bundles_rebuild(shelf->bundles, deadline(shelf), ret, &e), 0, &e);
}

static void a_rebuilt_index_lists_what_the_old_one_did(struct shelf *shelf, struct shelf *other, struct error *e)
{
	_cleanup_(buf_fini) struct buf before = { 0 }, after = { 0 };
	struct rebuild_counts counts = { 0 };
	uint32_t generation = cluster_generation(shelf->bundles->cluster);

	make_history(shelf);
	shelf_listing(other, &before);
	EXPECT(strstr((char *)before.ptr, "ckpt n=2 latest=5\n"));
	EXPECT(strstr((char *)before.ptr, "models/m n=3 latest=4\n"));
	EXPECT(strstr((char *)before.ptr, "  prod=3\n") && strstr((char *)before.ptr, "  best/f1=2\n"));
	EXPECT(!strstr((char *)before.ptr, "old") && !strstr((char *)before.ptr, "gone") &&
	       !strstr((char *)before.ptr, "never"));

	for (uint32_t i = 1; i <= 2; i++) { /* and again */
		rebuild(shelf, &counts);
		EXPECT_INT(counts.bundles, 2);
		EXPECT_INT(counts.versions, 5);
		EXPECT_INT(counts.labels, 2);
		EXPECT_INT(counts.generation, generation + i);
		EXPECT_INT(cluster_generation(shelf->bundles->cluster), generation + i);
		shelf_listing(shelf, &after);
		expect_same(&before, &after);
	}
	EXPECT_INT(shelf_compare(other, "models/m", "prod", 3), 0);
	EXPECT_INT(shelf_compare(shelf, "ckpt", "4", 24), 0);
}

static void numbers_and_moves_go_on_after_a_rebuild(struct shelf *shelf, struct shelf *other, struct error *e)
{
	struct rebuild_counts counts;

	make_history(shelf);
	rebuild(shelf, &counts);
	EXPECT_INT(shelf_save(shelf, "ckpt", 50), 8);
	EXPECT_INT(shelf_save(shelf, "gone", 51), 2);
	EXPECT_INT(shelf_save(shelf, "never", 52), 2);
	move_label(shelf, "models/m", "old", 4);
	move_label(shelf, "models/m", "prod", 2);
	EXPECT_INT(shelf_compare(other, "models/m", "old", 4), 0);
	EXPECT_INT(shelf_compare(other, "models/m", "prod", 2), 0);
}

static void a_save_that_was_open_is_burned_by_a_rebuild(struct shelf *shelf, struct shelf *other, struct error *e)
{
	_cleanup_(save_fini) struct save save;
	struct rebuild_counts counts;

	save_begin(&save, shelf, "ckpt", 1);
	save_packs(&save);
	rebuild(other, &counts);
	EXPECT_CALL(slot_publish(shelf->bundles, &save.slot, save.version, NULL, deadline(shelf), e), -ERR_ESTALEEPOCH,
		    e);
	EXPECT_INT(shelf_save(shelf, "ckpt", 2), 2);
}

static void the_engine_may_be_lost_whole(struct shelf *shelf, struct shelf *other, struct error *e)
{
	_cleanup_(buf_fini) struct buf before = { 0 }, after = { 0 };
	struct bed *bed = shelf->bed;
	struct rebuild_counts counts;
	char path[128];

	make_history(shelf);
	shelf_listing(other, &before);
	shelf_close(shelf);
	shelf_close(other);
	for (int i = BED_NODES - 1; i >= 0; i--)
		bed_stop(bed, i);
	meta_free(bed->meta);
	snprintf(path, sizeof(path), "%s/meta-2", bed->dir);
	EXPECT_CALL(meta_lmdb_open(bed->env, path, &bed->meta, e), 0, e);

	struct bed_node *node = &bed->nodes[0];
	EXPECT_CALL(pool_new(bed->env, BED_POOL_BYTES, BED_POOL_BYTES, &node->pool, e), 0, e);
	node->cluster = bed_new(bed, 0, "bed", e);
	EXPECT_CALL(cluster_join(node->cluster, bed_deadline(bed), e), -ERR_EREBUILD, e);
	*shelf = shelf_open(bed, 0);
	rebuild(shelf, &counts);
	EXPECT_CALL(cluster_join(node->cluster, bed_deadline(bed), e), 0, e);
	shelf_listing(shelf, &after);
	expect_same(&before, &after);
}

static void expect_refused(struct shelf *shelf, int expected, const char *words)
{
	_cleanup_(buf_fini) struct buf there = { 0 };
	struct bed *bed = shelf->bed;
	struct rebuild_counts counts;
	struct error e;

	EXPECT_CALL(bundles_rebuild(shelf->bundles, deadline(shelf), &counts, &e), expected, &e);
	EXPECT(strstr(e.text, words));
	for (int i = 1; i <= 2; i++) {
		char key[8];

		snprintf(key, sizeof(key), "g/%d", i);
		int r = backend_read(bed->backend, key, 4096, &there, deadline(shelf), &e);
		EXPECT_INT(r, i == 1 && expected != -ENODEV ? 0 : -ENOENT);
	}
}

static void without_its_engine_a_rebuild_writes_nothing(struct shelf *shelf, struct shelf *other, struct error *e)
{
	shelf_close(shelf);
	bed_stop(shelf->bed, 0);
	expect_refused(other, -EHOSTDOWN, "nothing was rebuilt: ");
}

static void a_node_that_has_not_joined_says_where_to_rebuild(struct shelf *shelf, struct shelf *other, struct error *e)
{
	struct bed *bed = shelf->bed;
	struct bed_node *node = &bed->nodes[1];

	shelf_close(other);
	bed_stop(bed, 1);
	EXPECT_CALL(pool_new(bed->env, BED_POOL_BYTES, BED_POOL_BYTES, &node->pool, e), 0, e);
	node->cluster = bed_new(bed, 1, "bed", e);
	*other = shelf_open(bed, 1);
	expect_refused(other, -EAGAIN, cluster_address(bed->nodes[0].cluster));
}

static void an_index_is_not_rebuilt_from_what_lies_under_the_mount(struct shelf *shelf, struct shelf *other,
								   struct error *e)
{
	_cleanup_(buf_fini) struct buf before = { 0 }, after = { 0 };
	char mounted[96], aside[96];

	shelf_save(shelf, "ckpt", 1);
	shelf_listing(shelf, &before);
	snprintf(mounted, sizeof(mounted), "%s/store/g", shelf->bed->dir);
	snprintf(aside, sizeof(aside), "%s/aside", shelf->bed->dir);
	EXPECT_INT(rename(mounted, aside), 0);
	expect_refused(shelf, -ENODEV, "is it mounted?");
	shelf_listing(shelf, &after);
	expect_same(&before, &after);
}

static void damage(struct shelf *shelf, const char *object)
{
	char key[KEY_BYTES];

	snprintf(key, sizeof(key), "t/local/b/ckpt/%s", object);
	shelf_flip(shelf, key, 100, 0);
}

/* Collects, and looks. */
static void expect_kept(struct shelf *shelf, const char *line)
{
	_cleanup_(buf_fini) struct buf listing = { 0 };
	struct collect_counts counts;
	struct error e;

	EXPECT_CALL(bundles_collect(shelf->bundles, view_str("local"), view_str("ckpt"), deadline(shelf), NULL, NULL,
				    &counts, &e),
		    0, &e);
	shelf_listing(shelf, &listing);
	EXPECT(strstr((char *)listing.ptr, line));
}

static void a_damaged_root_is_named_and_everything_else_is_indexed(struct shelf *shelf, struct shelf *other,
								   struct error *e)
{
	_cleanup_(buf_fini) struct buf listing = { 0 };
	struct rebuild_counts counts;

	for (uint64_t seed = 1; seed <= 3; seed++)
		shelf_save(shelf, "ckpt", seed);
	damage(shelf, "v/00000000000000000002/root");
	EXPECT_CALL(bundles_rebuild(shelf->bundles, deadline(shelf), &counts, e), -ERR_EDAMAGED, e);
	EXPECT(strstr(e->text, "00000000000000000002/root"));
	EXPECT_INT(counts.versions, 2);
	shelf_listing(other, &listing);
	EXPECT(strstr((char *)listing.ptr, "ckpt n=3 latest=3\n"));
}

static void save_with_attributes(struct shelf *shelf, uint64_t seed, size_t bytes)
{
	_cleanup_(save_fini) struct save save;
	_cleanup_(cleanup_mem) char *value = calloc(1, bytes + 1);
	struct list_buf list = { 0 };
	struct error e;

	CHECK(value);
	memset(value, 'a', bytes);
	const struct elem_attribute attribute = { .key = view_str("config"), .value = view_str(value) };
	CHECK(elem_attribute_append(&list, &attribute) == 0);
	save_begin(&save, shelf, "ckpt", seed);
	buf_fini(&save.version->attributes);
	save.version->attributes = list.bytes;
	save_packs(&save);
	EXPECT_CALL(slot_publish(shelf->bundles, &save.slot, save.version, NULL, deadline(shelf), &e), 0, &e);
}

/* Their rows are more bytes than one transaction may have. */
static void versions_with_long_attributes_are_indexed_again(struct shelf *shelf, struct shelf *other, struct error *e)
{
	enum { VERSIONS = 2 + META_REQ_MAX / 32000 };
	struct rebuild_counts counts;

	for (uint64_t seed = 1; seed <= VERSIONS; seed++)
		save_with_attributes(shelf, seed, 32000);
	rebuild(shelf, &counts);
	EXPECT_INT(counts.versions, VERSIONS);
	EXPECT_INT(shelf_compare(other, "ckpt", "latest", VERSIONS), 0);
}

/* @what of bundle ckpt out of the store, or back. */
static void move_aside(struct shelf *shelf, const char *what, bool back)
{
	char there[256], aside[128];

	snprintf(there, sizeof(there), "%s/store/t/local/b/%s", shelf->bed->dir, what);
	snprintf(aside, sizeof(aside), "%s/aside", shelf->bed->dir);
	EXPECT_INT(rename(back ? aside : there, back ? there : aside), 0);
}

/* Three versions, the second one labelled; @what is away while the index is made again. */
static void rebuild_without(struct shelf *shelf, const char *what, const char *named)
{
	struct rebuild_counts counts;
	struct error e;

	for (uint64_t seed = 1; seed <= 3; seed++)
		shelf_save(shelf, "ckpt", seed);
	move_label(shelf, "ckpt", "prod", 2);
	move_aside(shelf, what, false);
	EXPECT_CALL(bundles_rebuild(shelf->bundles, deadline(shelf), &counts, &e), -ERR_EDAMAGED, &e);
	EXPECT(strstr(e.text, named));
}

static void expect_all_three(struct shelf *shelf)
{
	char spec[2] = "";

	for (uint64_t seed = 1; seed <= 3; seed++) {
		spec[0] = (char)('0' + seed);
		EXPECT_INT(shelf_compare(shelf, "ckpt", spec, seed), 0);
	}
	EXPECT_INT(shelf_compare(shelf, "ckpt", "prod", 2), 0);
}

static void a_version_whose_root_was_away_is_there_when_it_is_back(struct shelf *shelf, struct shelf *other,
								   struct error *e)
{
	static const char root[] = "ckpt/v/00000000000000000002/root";
	struct rebuild_counts counts;

	rebuild_without(shelf, root, root + strlen("ckpt"));
	EXPECT_INT(shelf_compare(other, "ckpt", "2", 2), -ERR_EDAMAGED);
	expect_kept(other, "ckpt n=3 latest=3\n");
	expect_kept(other, "  prod=2\n");
	EXPECT_CALL(bundles_rebuild(shelf->bundles, deadline(shelf), &counts, e), -ERR_EDAMAGED, e); /* as it was */
	move_aside(shelf, root, true);
	expect_all_three(other);
	rebuild(shelf, &counts);
	expect_all_three(other);
}

/* As whoever mends a disk does: what cannot be read goes first, and something is looked at before the copy is there. */
static void a_version_whose_root_was_damaged_is_there_when_a_copy_of_it_is_put_back(struct shelf *shelf,
										    struct shelf *other,
										    struct error *e)
{
	static const char root[] = "ckpt/v/00000000000000000002/root";
	struct rebuild_counts counts;

	for (uint64_t seed = 1; seed <= 3; seed++)
		shelf_save(shelf, "ckpt", seed);
	move_label(shelf, "ckpt", "prod", 1);
	move_label(shelf, "ckpt", "prod", 2);
	damage(shelf, "v/00000000000000000002/root");
	EXPECT_CALL(bundles_rebuild(shelf->bundles, deadline(shelf), &counts, e), -ERR_EDAMAGED, e);
	EXPECT_INT(shelf_compare(other, "ckpt", "prod", 2), -ERR_EDAMAGED); /* not what it pointed to before */
	move_aside(shelf, root, false);
	expect_kept(other, "ckpt n=3 latest=3\n");
	EXPECT_CALL(bundles_rebuild(shelf->bundles, deadline(shelf), &counts, e), -ERR_EDAMAGED, e);
	move_aside(shelf, root, true);
	damage(shelf, "v/00000000000000000002/root"); /* the same bit again */
	expect_all_three(other);
}

static void the_newest_number_is_not_given_again_while_all_of_it_is_away(struct shelf *shelf, struct shelf *other,
									 struct error *e)
{
	rebuild_without(shelf, "ckpt/v/00000000000000000003", "/v/00000000000000000003/root");
	EXPECT_INT(shelf_save(other, "ckpt", 4), 4);
	move_aside(shelf, "ckpt/v/00000000000000000003", true);
	expect_all_three(other);
	EXPECT_INT(shelf_compare(other, "ckpt", "latest", 4), 0);
}

static void a_bundle_that_was_away_is_there_when_it_is_back(struct shelf *shelf, struct shelf *other, struct error *e)
{
	struct rebuild_counts counts;

	rebuild_without(shelf, "ckpt", "/v/00000000000000000001/root");
	move_aside(shelf, "ckpt", true);
	rebuild(other, &counts);
	EXPECT_INT(counts.versions, 3);
	expect_all_three(other);
}

static void a_version_without_its_root_can_be_deleted(struct shelf *shelf, struct shelf *other, struct error *e)
{
	struct rebuild_counts counts;

	rebuild_without(shelf, "ckpt/v/00000000000000000003/root", "/v/00000000000000000003/root");
	delete_version(other, "ckpt", 3);
	EXPECT_INT(shelf_compare(other, "ckpt", "3", 3), -ERR_EDELETED);
	expect_kept(shelf, "ckpt n=2 latest=2\n");
	rebuild(shelf, &counts);
	EXPECT_INT(counts.versions, 2);
	EXPECT_INT(shelf_compare(other, "ckpt", "latest", 2), 0);
}

/* Versions 1, 4 and 5 are there: a label keeps the first, rule 1 kept the others. */
static void shelve_labelled(struct shelf *shelf, struct error *e)
{
	const struct view tenant = view_str("local"), ckpt = view_str("ckpt");

	for (uint64_t seed = 1; seed <= 5; seed++)
		shelf_save(shelf, "ckpt", seed);
	EXPECT_CALL(label_set(shelf->bundles, tenant, ckpt, view_str("prod"), 0, 1, deadline(shelf), e), 0, e);
	EXPECT_CALL(bundle_retain(shelf->bundles, tenant, ckpt, 2, 0, deadline(shelf), e), 0, e);
	expect_kept(shelf, "ckpt n=3 latest=5\n");
}

static void a_label_whose_moves_were_away_keeps_its_version(struct shelf *shelf, struct shelf *other, struct error *e)
{
	struct rebuild_counts counts;

	shelve_labelled(shelf, e);
	move_label(shelf, "ckpt", "old", 4);
	move_label(shelf, "ckpt", "old", 0);
	move_aside(shelf, "ckpt/l", false);
	EXPECT_CALL(bundles_rebuild(shelf->bundles, deadline(shelf), &counts, e), -ERR_EDAMAGED, e);
	EXPECT(strstr(e->text, "is not there, and the index had it"));
	expect_kept(other, "ckpt n=3 latest=5\n");
	expect_kept(other, "  prod=1\n");
	move_aside(shelf, "ckpt/l", true);
	move_label(shelf, "ckpt", "prod", 4); /* its moves go on behind the last */
	rebuild(shelf, &counts);
	EXPECT_INT(counts.labels, 1);
	EXPECT_INT(shelf_compare(other, "ckpt", "prod", 4), 0);
}

static void expect_all_stay_beside(struct shelf *shelf, struct shelf *other, const char *damaged, struct error *e)
{
	struct rebuild_counts counts;

	shelve_labelled(shelf, e);
	damage(shelf, damaged);
	EXPECT_CALL(bundles_rebuild(shelf->bundles, deadline(shelf), &counts, e), -ERR_EDAMAGED, e);
	EXPECT(strstr(e->text, damaged));
	expect_kept(other, "ckpt n=3 latest=5\n");
	shelf_save(shelf, "ckpt", 6);
	expect_kept(other, "ckpt n=4 latest=6\n");
}

static void beside_a_damaged_label_all_versions_stay(struct shelf *shelf, struct shelf *other, struct error *e)
{
	expect_all_stay_beside(shelf, other, "l/prod/00000000000000000001", e);
}

static void beside_a_damaged_rule_all_versions_stay(struct shelf *shelf, struct shelf *other, struct error *e)
{
	expect_all_stay_beside(shelf, other, "r/00000000000000000001", e);
}

static int rebuild_beside(struct shelf *shelf, struct error *e)
{
	struct rebuild_counts counts;

	return bundles_rebuild(shelf->bundles, deadline(shelf), &counts, e);
}

static void set_label(struct shelf *shelf, uint64_t number, struct error *e)
{
	EXPECT_CALL(label_set(shelf->bundles, view_str("local"), view_str("ckpt"), view_str("prod"), UINT64_MAX, number,
			      deadline(shelf), e),
		    0, e);
}

static void set_rule(struct shelf *shelf, uint64_t keep_last, struct error *e)
{
	EXPECT_CALL(
		bundle_retain(shelf->bundles, view_str("local"), view_str("ckpt"), keep_last, 0, deadline(shelf), e), 0,
		e);
}

/* A label's own move says what it keeps from then on, but not what the damaged one kept. */
static void a_label_that_is_set_or_removed_lets_nothing_go_beside(struct shelf *shelf, struct shelf *other,
								  const char *damaged, struct error *e)
{
	shelve_labelled(shelf, e);
	damage(shelf, damaged);
	EXPECT_CALL(rebuild_beside(shelf, e), -ERR_EDAMAGED, e);
	set_label(shelf, 4, e);
	expect_kept(other, "ckpt n=3 latest=5\n");
	expect_kept(other, "  prod=4\n");
	set_label(shelf, 0, e);
	expect_kept(other, "ckpt n=3 latest=5\n");
	shelf_save(shelf, "ckpt", 6);
	expect_kept(other, "ckpt n=4 latest=6\n");
}

static void a_label_set_or_removed_after_a_damaged_one_lets_nothing_go(struct shelf *shelf, struct shelf *other,
								       struct error *e)
{
	a_label_that_is_set_or_removed_lets_nothing_go_beside(shelf, other, "l/prod/00000000000000000001", e);
}

static void a_label_set_or_removed_after_a_damaged_rule_lets_nothing_go(struct shelf *shelf, struct shelf *other,
									struct error *e)
{
	a_label_that_is_set_or_removed_lets_nothing_go_beside(shelf, other, "r/00000000000000000001", e);
}

/* The rule that is set next is in force; what it needs to know of labels is the administrator's by then. */
static void a_rule_set_after_a_damaged_label_is_in_force(struct shelf *shelf, struct shelf *other, struct error *e)
{
	shelve_labelled(shelf, e);
	damage(shelf, "l/prod/00000000000000000001");
	EXPECT_CALL(rebuild_beside(shelf, e), -ERR_EDAMAGED, e);
	set_rule(shelf, 0, e); /* removed: all stay, as before */
	expect_kept(other, "ckpt n=3 latest=5\n");
	set_label(shelf, 1, e); /* as it was */
	set_rule(shelf, 1, e);
	expect_kept(other, "ckpt n=2 latest=5\n");
	expect_kept(other, "  prod=1\n");
	set_label(shelf, 0, e);
	expect_kept(other, "ckpt n=1 latest=5\n");
}

static void a_rule_set_after_a_damaged_rule_is_in_force_after_a_rebuild_too(struct shelf *shelf, struct shelf *other,
									    struct error *e)
{
	shelve_labelled(shelf, e);
	damage(shelf, "r/00000000000000000001");
	EXPECT_CALL(rebuild_beside(shelf, e), -ERR_EDAMAGED, e);
	set_rule(shelf, 1, e); /* the label is known: version 4 alone goes */
	expect_kept(other, "ckpt n=2 latest=5\n");
	EXPECT_CALL(rebuild_beside(shelf, e), 0, e); /* a lower rule that is damaged does not matter */
	shelf_save(shelf, "ckpt", 6);
	expect_kept(other, "ckpt n=2 latest=6\n");
	set_rule(shelf, 0, e);
	shelf_save(shelf, "ckpt", 7);
	expect_kept(other, "ckpt n=3 latest=7\n");
}

/* The rule stands in the store; the rebuild that sees the damaged label again puts it to rest again. */
static void a_rebuild_beside_a_damaged_label_rests_the_rule_that_was_set_since(struct shelf *shelf, struct shelf *other,
									       struct error *e)
{
	shelve_labelled(shelf, e);
	damage(shelf, "l/prod/00000000000000000001");
	EXPECT_CALL(rebuild_beside(shelf, e), -ERR_EDAMAGED, e);
	set_rule(shelf, 3, e);
	EXPECT_CALL(rebuild_beside(shelf, e), -ERR_EDAMAGED, e);
	shelf_save(shelf, "ckpt", 6);
	expect_kept(other, "ckpt n=4 latest=6\n");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		SHELF_STORY(a_rebuilt_index_lists_what_the_old_one_did),
		SHELF_STORY(numbers_and_moves_go_on_after_a_rebuild),
		SHELF_STORY(a_save_that_was_open_is_burned_by_a_rebuild),
		SHELF_STORY(the_engine_may_be_lost_whole),
		SHELF_STORY(without_its_engine_a_rebuild_writes_nothing),
		SHELF_STORY(a_node_that_has_not_joined_says_where_to_rebuild),
		SHELF_STORY(an_index_is_not_rebuilt_from_what_lies_under_the_mount),
		SHELF_STORY(a_damaged_root_is_named_and_everything_else_is_indexed),
		SHELF_STORY(a_version_whose_root_was_damaged_is_there_when_a_copy_of_it_is_put_back),
		SHELF_STORY(versions_with_long_attributes_are_indexed_again),
		SHELF_STORY(a_version_whose_root_was_away_is_there_when_it_is_back),
		SHELF_STORY(the_newest_number_is_not_given_again_while_all_of_it_is_away),
		SHELF_STORY(a_bundle_that_was_away_is_there_when_it_is_back),
		SHELF_STORY(a_version_without_its_root_can_be_deleted),
		SHELF_STORY(a_label_whose_moves_were_away_keeps_its_version),
		SHELF_STORY(beside_a_damaged_label_all_versions_stay),
		SHELF_STORY(beside_a_damaged_rule_all_versions_stay),
		SHELF_STORY(a_label_set_or_removed_after_a_damaged_one_lets_nothing_go),
		SHELF_STORY(a_label_set_or_removed_after_a_damaged_rule_lets_nothing_go),
		SHELF_STORY(a_rule_set_after_a_damaged_label_is_in_force),
		SHELF_STORY(a_rule_set_after_a_damaged_rule_is_in_force_after_a_rebuild_too),
		SHELF_STORY(a_rebuild_beside_a_damaged_label_rests_the_rule_that_was_set_since),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
