/*
 * bundle/bundle_test.c: publication, opening, labels and deletion against the real engine and a real directory, each cut at every
 * step, by another daemon's eyes.
 */
#include "bundle/bundle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "base/point.h"
#include "bundle/shelf_suite.h"

static const char bundle[] = SHELF_BUNDLE;

static int open_it(struct shelf *shelf, const char *spec, struct error *e)
{
	_cleanup_(cleanup_version_put) struct version *version = NULL;

	return bundle_open(shelf->bundles, tenant(), view_str(bundle), view_str(spec), bed_deadline(shelf->bed),
			   &version, e);
}

static int set_label(struct shelf *shelf, const char *label, uint64_t expect, uint64_t number, struct error *e)
{
	return label_set(shelf->bundles, tenant(), view_str(bundle), view_str(label), expect, number,
			 bed_deadline(shelf->bed), e);
}

static int delete_it(struct shelf *shelf, uint64_t number, struct error *e)
{
	return version_delete(shelf->bundles, tenant(), view_str(bundle), number, bed_deadline(shelf->bed), e);
}

static bool exists(struct shelf *shelf, const char *key)
{
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	struct error e;
	int r = object_range(shelf->bundles, key, 0, 1, &bytes, bed_deadline(shelf->bed), &e);

	EXPECT(r == 0 || r == -ENOENT);
	return r == 0;
}

/* ---- publication ---- */

static void a_published_version_is_read_back_whole_by_every_daemon(struct shelf *shelf, struct shelf *other,
								   struct error *e)
{
	EXPECT_INT(shelf_save(shelf, bundle, 1), 1);
	EXPECT_INT(shelf_save(other, bundle, 2), 2);
	EXPECT_INT(shelf_compare(shelf, bundle, "1", 1), 0);
	EXPECT_INT(shelf_compare(other, bundle, "1", 1), 0);
	EXPECT_INT(shelf_compare(shelf, bundle, "latest", 2), 0);
	EXPECT_INT(shelf_compare(shelf, bundle, "00002", 2), 0);
}

static void what_is_not_there_is_named(struct shelf *shelf, struct shelf *other, struct error *e)
{
	EXPECT_CALL(open_it(shelf, "latest", e), -ENOENT, e);
	shelf_save(shelf, bundle, 1);
	EXPECT_CALL(open_it(shelf, "2", e), -ENOENT, e);
	EXPECT(strstr(e->text, "no version 2"));
	EXPECT_CALL(open_it(shelf, "prod", e), -ENOENT, e);
	EXPECT(strstr(e->text, "no label prod"));
	EXPECT_CALL(open_it(shelf, "staged", e), -EINVAL, e);
}

static void an_opened_version_is_shared_and_outlives_the_cache(struct shelf *shelf, struct shelf *other,
							       struct error *e)
{
	struct version *a = NULL;
	struct version *b = NULL;

	shelf_save(shelf, bundle, 1);
	EXPECT_CALL(
		bundle_open(other->bundles, tenant(), view_str(bundle), view_str("1"), bed_deadline(shelf->bed), &a, e),
		0, e);
	EXPECT_CALL(bundle_open(other->bundles, tenant(), view_str(bundle), view_str("latest"),
				bed_deadline(shelf->bed), &b, e),
		    0, e);
	EXPECT(a == b);
	version_put(b);
	for (uint64_t seed = 2; seed < 3 + VERSIONS_CACHED; seed++) {
		shelf_save(shelf, bundle, seed);
		EXPECT_CALL(open_it(other, "latest", e), 0, e);
	}
	EXPECT_CALL(
		bundle_open(other->bundles, tenant(), view_str(bundle), view_str("1"), bed_deadline(shelf->bed), &b, e),
		0, e);
	EXPECT(a == b); /* what is open stays, however many come after it */
	version_put(b);
	version_put(a);
}

/* A save that ends at step @steps (1: the slot ... 4: the root), as its daemon dies there. */
static uint64_t cut_save(struct shelf *shelf, uint64_t seed, int steps)
{
	_cleanup_(save_fini) struct save save;

	save_begin(&save, shelf, bundle, seed);
	if (steps > 1)
		save_packs(&save);
	if (steps > 2)
		save_segments(&save);
	if (steps > 3)
		save_root(&save);
	return save.slot.number;
}

static void a_save_cut_before_its_root_is_not_there_and_the_next_one_works(struct shelf *shelf, struct shelf *other,
									   struct error *e)
{
	uint64_t seed = 10;

	EXPECT_INT(shelf_save(shelf, bundle, 1), 1);
	for (int steps = 1; steps <= 3; steps++) {
		uint64_t cut = cut_save(shelf, seed++, steps);
		char spec[24];

		snprintf(spec, sizeof(spec), "%d", (int)cut);
		EXPECT_CALL(open_it(other, spec, e), -ENOENT, e);
		EXPECT_INT(shelf_compare(other, bundle, "latest", seed == 11 ? 1 : seed - 2), 0);
		EXPECT_INT(shelf_save(other, bundle, seed), cut + 1);
		EXPECT_INT(shelf_compare(shelf, bundle, "latest", seed), 0);
		seed++;
	}
}

static void a_save_cut_behind_its_root_is_there_for_whoever_looks(struct shelf *shelf, struct shelf *other,
								  struct error *e)
{
	cut_save(shelf, 1, 4);
	EXPECT_INT(shelf_compare(other, bundle, "latest", 1), 0); /* open mends the index */
	cut_save(shelf, 2, 4);
	_cleanup_(buf_fini) struct buf listing = { 0 };
	shelf_listing(other, &listing); /* so does a list */
	EXPECT(strstr((char *)listing.ptr, "n=2 latest=2"));
	cut_save(shelf, 3, 4);
	EXPECT_CALL(set_label(other, "prod", 0, 3, e), 0, e); /* and a label */
	EXPECT_INT(shelf_compare(shelf, bundle, "prod", 3), 0);
}

static void each_step_of_a_publication_may_be_done_again(struct shelf *shelf, struct shelf *other, struct error *e)
{
	_cleanup_(save_fini) struct save save;

	save_begin(&save, shelf, bundle, 1);
	save_packs(&save);
	save_packs(&save);
	save_segments(&save);
	segments_fini(&save.segments);
	save_segments(&save);
	save_root(&save);
	save_root(&save);
	for (int i = 0; i < 2; i++)
		EXPECT_CALL(slot_publish(shelf->bundles, &save.slot, save.version, NULL, bed_deadline(shelf->bed), e),
			    0, e);
	EXPECT_INT(shelf_compare(other, bundle, "latest", 1), 0);
	_cleanup_(buf_fini) struct buf listing = { 0 };
	shelf_listing(other, &listing);
	EXPECT(strstr((char *)listing.ptr, "n=1 latest=1"));
}

static void other_bytes_under_a_taken_key_are_refused(struct shelf *shelf, struct shelf *other, struct error *e)
{
	_cleanup_(save_fini) struct save save;
	struct pack_put put;

	save_begin(&save, shelf, bundle, 1);
	save_packs(&save);
	put = (struct pack_put){ .block = save.blocks[3], .offset = PACK_HEAD_BYTES };
	EXPECT_CALL(
		pack_write(shelf->bundles, save.version->packs[0].key, 1, &put, 1, NULL, bed_deadline(shelf->bed), e),
		-EEXIST, e);
	save_segments(&save);
	segments_fini(&save.segments);
	save.version->step++;
	save.version->blocks[0].crc++;
	EXPECT_CALL(slot_publish(shelf->bundles, &save.slot, save.version, NULL, bed_deadline(shelf->bed), e), -EEXIST,
		    e);
}

static void a_version_that_breaks_a_rule_is_not_published(struct shelf *shelf, struct shelf *other, struct error *e)
{
	_cleanup_(save_fini) struct save save;
	char key[KEY_BYTES];

	save_begin(&save, shelf, bundle, 1);
	save_packs(&save);
	save.version->blocks[1].bytes--;
	EXPECT_CALL(slot_publish(shelf->bundles, &save.slot, save.version, NULL, bed_deadline(shelf->bed), e), -EINVAL,
		    e);
	EXPECT(strstr(e->text, "weight"));
	root_key(&save.place, 1, key);
	EXPECT(!exists(shelf, key));
}

static void a_block_changed_after_its_capture_fails_the_pack_and_leaves_no_object(struct shelf *shelf,
										  struct shelf *other, struct error *e)
{
	_cleanup_(save_fini) struct save save;

	save_begin(&save, shelf, bundle, 1);
	save.blocks[1]->ptr[77] ^= 1;
	const struct pack_put puts[] = { { .block = save.blocks[1], .offset = PACK_HEAD_BYTES } };
	EXPECT_CALL(
		pack_write(shelf->bundles, save.version->packs[1].key, 1, puts, 1, NULL, bed_deadline(shelf->bed), e),
		-ERR_ECHANGED, e);
	EXPECT(!exists(shelf, save.version->packs[1].key));
}

static void a_pack_of_many_parts_is_written_whole(struct shelf *shelf, struct shelf *other, struct error *e)
{
	struct block *blocks[24];
	struct pack_put puts[24];
	uint32_t bytes[24];
	uint64_t offsets[24];
	uint64_t index_offset;
	char key[BACKEND_KEY_MAX + 1];
	_cleanup_(buf_fini) struct buf ends = { 0 };
	struct pack_trailer trailer;

	for (int i = 0; i < 24; i++) {
		bytes[i] = i % 3 ? 900000 + (uint32_t)i : 100 + (uint32_t)i;
		blocks[i] = bed_block(shelf->bed->nodes[0].pool, POOL_CAPTURE, bytes[i], 5000 + (uint64_t)i);
	}
	pack_layout(bytes, 24, offsets, &index_offset);
	for (int i = 0; i < 24; i++)
		puts[i] = (struct pack_put){ .block = blocks[i], .offset = offsets[i] };
	EXPECT_INT(pack_key(tenant(), view_str(bundle), 77, "n0", 0, key), 0);
	EXPECT_CALL(pack_write(shelf->bundles, key, 1, puts, 24, NULL, bed_deadline(shelf->bed), e), 0, e);

	const uint64_t size = pack_size(index_offset, 24);
	EXPECT_CALL(object_range(shelf->bundles, key, size - 64, 65, &ends, bed_deadline(shelf->bed), e), 0, e);
	EXPECT_INT(ends.len, 64);
	EXPECT_CALL(pack_trailer_decode(ends.ptr, size, &trailer, e), 0, e);
	for (int i = 0; i < 24; i++) {
		EXPECT_CALL(object_range(shelf->bundles, key, offsets[i], bytes[i], &ends, bed_deadline(shelf->bed), e),
			    0, e);
		EXPECT(view_equal(view_buf(&ends), view_of(blocks[i]->ptr, bytes[i])));
		block_unpin(blocks[i]);
	}
}

/* Temporaries of the store: what was begun and has not ended. */
static unsigned count_begun(struct shelf *shelf)
{
	char path[128];
	unsigned n = 0;

	snprintf(path, sizeof(path), "%s/store/.tmp", shelf->bed->dir);
	DIR *dir = opendir(path);
	if (!dir)
		return 0;
	while (readdir(dir))
		n++;
	closedir(dir);
	return n - 2; /* . and .. */
}

static void a_pack_whose_time_is_up_leaves_nothing_and_gives_its_pins_back(struct shelf *shelf, struct shelf *other,
									   struct error *e)
{
	struct block *block = bed_block(shelf->bed->nodes[0].pool, POOL_CAPTURE, 500000, 6000);
	const struct pack_put put = { .block = block, .offset = PACK_HEAD_BYTES };
	char key[BACKEND_KEY_MAX + 1];

	EXPECT_INT(pack_key(tenant(), view_str(bundle), 78, "n0", 0, key), 0);
	for (uint64_t us = 0; us < 3000; us += 100) { /* in its beginning, its parts, its end */
		int r = pack_write(shelf->bundles, key, 1, &put, 1, NULL, env_now(shelf->bed->env) + us * 1000, e);

		EXPECT(r == 0 || r == -ETIMEDOUT);
		while (block->pins > 1 || count_begun(shelf))
			EXPECT_INT(fiber_sleep_until(env_in_ms(shelf->bed->env, 1)), 0);
		EXPECT(us > 0 || !exists(shelf, key));
	}
	EXPECT_CALL(pack_write(shelf->bundles, key, 1, &put, 1, NULL, bed_deadline(shelf->bed), e), 0, e);
	EXPECT(exists(shelf, key));
	block_unpin(block);
}

/* ---- slots, fences, tombstones ---- */

static int with_lease(struct bed *bed, struct fence *ret, struct buf *record, uint64_t holder)
{
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = meta_req_new(META_LEASE);
	struct meta *meta = cluster_meta(bed->nodes[0].cluster);
	struct error e;
	uint64_t who;

	EXPECT_INT(meta_put_lease(req, view_str("lease"), holder, META_LEASE_MAX_MS, 0), 0);
	EXPECT_CALL(meta_call_run(meta, &req, bed_deadline(bed), &e), 0, &e);
	EXPECT_INT(meta_out_lease(view_buf(&req->out), &who, &ret->epoch), 0);
	EXPECT_CALL(meta_get(meta, view_str("lease"), record, bed_deadline(bed), &e), 0, &e);
	ret->key = view_str("lease");
	ret->record = view_buf(record);
	return 0;
}

static void an_overtaken_coordinator_opens_no_slot_and_publishes_nothing(struct shelf *shelf, struct shelf *other,
									 struct error *e)
{
	struct fence fence = { 0 };
	struct fence newer = { 0 };
	_cleanup_(buf_fini) struct buf record = { 0 };
	_cleanup_(buf_fini) struct buf record2 = { 0 };
	_cleanup_(slot_fini) struct slot slot = { 0 };
	_cleanup_(save_fini) struct save save;
	_cleanup_(cleanup_meta_req_free) struct meta_req *release = meta_req_new(META_RELEASE);

	with_lease(shelf->bed, &fence, &record, 1);
	save_begin(&save, shelf, bundle, 1);
	save_packs(&save);
	EXPECT_INT(meta_put_lease(release, view_str("lease"), 1, 0, fence.epoch), 0);
	EXPECT_CALL(meta_call_run(cluster_meta(shelf->bed->nodes[0].cluster), &release, bed_deadline(shelf->bed), e), 0,
		    e);
	with_lease(shelf->bed, &newer, &record2, 2);
	EXPECT(newer.epoch > fence.epoch);

	EXPECT_CALL(
		slot_open(shelf->bundles, tenant(), view_str(bundle), 7, 0, &fence, bed_deadline(shelf->bed), &slot, e),
		-ERR_ESTALEEPOCH, e);
	EXPECT_CALL(slot_publish(shelf->bundles, &save.slot, save.version, &fence, bed_deadline(shelf->bed), e),
		    -ERR_ESTALEEPOCH, e);
	EXPECT_CALL(
		slot_open(shelf->bundles, tenant(), view_str(bundle), 8, 0, &newer, bed_deadline(shelf->bed), &slot, e),
		0, e);
	EXPECT_INT(slot.number, 3); /* 2 was taken, and burned */
	EXPECT_INT(slot.epoch, newer.epoch);
}

/* While a coordinator waits for its root to be in the index, somebody sees that version, deletes it, and the tombstone is folded. */
static struct hasty {
	struct shelf *shelf;
	uint64_t number;
} * hasty;

static void delete_at_root_durable(enum point point)
{
	struct hasty *now = hasty;
	struct collect_counts counts = { 0 };
	struct error e;

	if (point != POINT_ROOT_DURABLE || !now)
		return;
	hasty = NULL; /* once */
	struct bundles *bundles = now->shelf->bundles;
	uint64_t deadline_ns = bed_deadline(now->shelf->bed);
	if (version_delete(bundles, tenant(), view_str(bundle), now->number, deadline_ns, &e) == 0)
		(void)bundles_collect(bundles, tenant(), view_str(bundle), deadline_ns, NULL, NULL, &counts, &e);
	now->number = counts.folded;
}

static void a_version_that_is_deleted_before_it_is_indexed_was_published(struct shelf *shelf, struct shelf *other,
									 struct error *e)
{
	_cleanup_(buf_fini) struct buf record = { 0 };
	struct fence fence = { 0 };

	with_lease(shelf->bed, &fence, &record, 1);
	point_listen(delete_at_root_durable);
	for (uint64_t i = 0; i < 2; i++) {
		_cleanup_(save_fini) struct save save;
		struct hasty now = { .shelf = other };

		save_begin(&save, shelf, bundle, i);
		save_packs(&save);
		now.number = save.slot.number;
		hasty = &now;
		EXPECT_CALL(slot_publish(shelf->bundles, &save.slot, save.version, i ? NULL : &fence,
					 bed_deadline(shelf->bed), e),
			    i ? -ERR_ESTALEEPOCH : 0, e);
		EXPECT_INT(now.number, 1);
		EXPECT(!hasty);
	}
	point_listen(NULL);
}

static void of_a_root_and_a_tombstone_the_first_wins_for_good(struct shelf *shelf, struct shelf *other, struct error *e)
{
	_cleanup_(save_fini) struct save burned;
	_cleanup_(save_fini) struct save published;

	save_begin(&burned, shelf, bundle, 1);
	save_packs(&burned);
	EXPECT_CALL(slot_burn(other->bundles, &burned.slot, bed_deadline(shelf->bed), e), 0, e);
	EXPECT_CALL(slot_burn(shelf->bundles, &burned.slot, bed_deadline(shelf->bed), e), 0, e);
	EXPECT_CALL(slot_publish(shelf->bundles, &burned.slot, burned.version, NULL, bed_deadline(shelf->bed), e),
		    -ERR_ESTALEEPOCH, e);
	EXPECT_CALL(open_it(shelf, "1", e), -ENOENT, e);

	save_begin(&published, shelf, bundle, 2);
	save_packs(&published);
	save_segments(&published);
	save_root(&published);
	EXPECT_CALL(slot_burn(other->bundles, &published.slot, bed_deadline(shelf->bed), e), -EEXIST, e);
	EXPECT_INT(shelf_compare(shelf, bundle, "2", 2), 0); /* and is in the index by now */
}

/* Two fibers race for a slot's end. */
struct race {
	struct save save;
	struct shelf *burner;
	int published, burned;
};

static int race_publish(void *arg)
{
	struct race *race = arg;
	struct error e;

	race->published = publish_root(race->save.shelf->bundles, &race->save.place, race->save.version,
				       &race->save.segments, bed_deadline(race->save.shelf->bed), &e);
	return 0;
}

static int race_burn(void *arg)
{
	struct race *race = arg;
	struct error e;

	race->burned = slot_burn(race->burner->bundles, &race->save.slot, bed_deadline(race->burner->bed), &e);
	return 0;
}

static void in_a_race_for_a_slot_exactly_one_wins(struct shelf *shelf, struct shelf *other, struct error *e)
{
	for (uint64_t seed = 1; seed <= 8; seed++) {
		struct race race = { .burner = other };
		struct nursery nursery;

		save_begin(&race.save, shelf, bundle, seed);
		save_packs(&race.save);
		save_segments(&race.save);
		nursery_init(&nursery, shelf->bed->env->loop);
		EXPECT_INT(fiber_start(&nursery, "one", seed % 2 ? race_publish : race_burn, &race), 0);
		EXPECT_INT(fiber_start(&nursery, "two", seed % 2 ? race_burn : race_publish, &race), 0);
		EXPECT_INT(nursery_wait(&nursery, bed_deadline(shelf->bed)), 0);
		EXPECT((race.published == 0 && race.burned == -EEXIST) ||
		       (race.published == -ERR_ESTALEEPOCH && race.burned == 0));
		char spec[24];
		snprintf(spec, sizeof(spec), "%d", (int)seed);
		EXPECT_INT(open_it(shelf, spec, e), race.published == 0 ? 0 : -ENOENT);
		save_fini(&race.save);
	}
}

struct opener {
	struct shelf *shelf;
	uint64_t id, number;
};

static int open_slot(void *arg)
{
	struct opener *opener = arg;
	struct slot slot = { 0 };
	struct error e;

	EXPECT_CALL(slot_open(opener->shelf->bundles, tenant(), view_str(bundle), opener->id, 0, NULL,
			      bed_deadline(opener->shelf->bed), &slot, &e),
		    0, &e);
	opener->number = slot.number;
	slot_fini(&slot);
	return 0;
}

static void slots_opened_at_the_same_time_have_different_numbers(struct shelf *shelf, struct shelf *other,
								 struct error *e)
{
	struct opener openers[8];
	struct nursery nursery;
	unsigned seen = 0;

	nursery_init(&nursery, shelf->bed->env->loop);
	for (unsigned i = 0; i < 8; i++) {
		openers[i] = (struct opener){ .shelf = i % 2 ? shelf : other, .id = 100 + i };
		EXPECT_INT(fiber_start(&nursery, "opener", open_slot, &openers[i]), 0);
	}
	EXPECT_INT(nursery_wait(&nursery, bed_deadline(shelf->bed)), 0);
	for (unsigned i = 0; i < 8; i++) {
		EXPECT(openers[i].number >= 1 && openers[i].number <= 8);
		seen |= 1u << openers[i].number;
	}
	EXPECT_INT(seen, 0x1fe);
}

/* ---- labels ---- */

static void a_label_points_where_it_was_last_moved(struct shelf *shelf, struct shelf *other, struct error *e)
{
	for (uint64_t seed = 1; seed <= 3; seed++)
		shelf_save(shelf, bundle, seed);
	EXPECT_CALL(set_label(shelf, "prod", 0, 1, e), 0, e);
	EXPECT_INT(shelf_compare(other, bundle, "prod", 1), 0);
	EXPECT_CALL(set_label(other, "prod", 1, 3, e), 0, e);
	EXPECT_INT(shelf_compare(shelf, bundle, "prod", 3), 0);
	EXPECT_CALL(set_label(shelf, "prod", 1, 2, e), -EAGAIN, e);
	EXPECT(strstr(e->text, "is at 3"));
	EXPECT_CALL(set_label(shelf, "prod", 0, 2, e), -EAGAIN, e);
	EXPECT_CALL(set_label(shelf, "prod", UINT64_MAX, 2, e), 0, e);
	EXPECT_INT(shelf_compare(shelf, bundle, "prod", 2), 0);
	EXPECT_CALL(set_label(shelf, "prod", 2, 2, e), 0, e); /* where it is already */
	EXPECT_CALL(set_label(shelf, "prod", 2, 9, e), -ENOENT, e);
	EXPECT_CALL(set_label(shelf, "prod", 2, 0, e), 0, e);
	EXPECT_CALL(open_it(shelf, "prod", e), -ENOENT, e);
	EXPECT_CALL(set_label(shelf, "prod", 0, 3, e), 0, e);
	EXPECT_INT(shelf_compare(other, bundle, "prod", 3), 0);
}

/* What label_set() does first, and no more. */
static void announce_move(struct shelf *shelf, const char *label, uint64_t move, uint64_t number)
{
	_cleanup_(change_fini) struct change change = { 0 };
	struct place place;
	struct row_label row;
	struct error e;

	EXPECT_CALL(place_init(tenant(), view_str(bundle), &place, &e), 0, &e);
	const struct row_key key = label_row_key(&place, view_str(label));
	EXPECT_CALL(change_begin(shelf->bundles, &place, NULL, &change, bed_deadline(shelf->bed), &e), 0, &e);
	EXPECT(row_read_label(shelf->bundles, &place, view_str(label), &row, bed_deadline(shelf->bed), &e) >= 0);
	row.pending_move = move;
	row.pending_number = number;
	EXPECT_INT(change_put_label(&change, &key, &row), 0);
	EXPECT_CALL(change_commit(&change, bed_deadline(shelf->bed), &e), 0, &e);
}

/* What it does second. */
static void put_move_object(struct shelf *shelf, const char *label, uint64_t move, uint64_t number)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	const struct record_head head = { .kind = RECORD_LABEL, .save_id = 99, .number = move };
	const struct rec_label rec = { .tenant = tenant(),
				       .bundle = view_str(bundle),
				       .label = view_str(label),
				       .number = number };
	struct place place;
	struct error e;
	char key[KEY_BYTES];

	EXPECT_CALL(place_init(tenant(), view_str(bundle), &place, &e), 0, &e);
	label_key(&place, view_str(label), move, key);
	EXPECT_INT(rec_label_encode(&rec, &body), 0);
	EXPECT_CALL(object_put(shelf->bundles, key, &head, view_buf(&body), true, bed_deadline(shelf->bed), &e), 0, &e);
}

static void a_move_cut_before_its_object_has_not_happened_and_the_next_one_works(struct shelf *shelf,
										 struct shelf *other, struct error *e)
{
	shelf_save(shelf, bundle, 1);
	shelf_save(shelf, bundle, 2);
	EXPECT_CALL(set_label(shelf, "prod", 0, 1, e), 0, e);
	announce_move(shelf, "prod", 2, 2);
	EXPECT_INT(shelf_compare(other, bundle, "prod", 1), 0);
	EXPECT_CALL(set_label(other, "prod", 1, 2, e), 0, e);
	EXPECT_INT(shelf_compare(shelf, bundle, "prod", 2), 0);
}

static void a_move_cut_behind_its_object_has_happened_for_whoever_looks(struct shelf *shelf, struct shelf *other,
									struct error *e)
{
	shelf_save(shelf, bundle, 1);
	shelf_save(shelf, bundle, 2);
	EXPECT_CALL(set_label(shelf, "prod", 0, 1, e), 0, e);
	announce_move(shelf, "prod", 2, 2);
	put_move_object(shelf, "prod", 2, 2);
	EXPECT_INT(shelf_compare(other, bundle, "prod", 2), 0);
	EXPECT_CALL(set_label(shelf, "prod", 2, 1, e), 0, e);
}

/* ---- deletion ---- */

static void a_deleted_version_is_gone_with_its_objects_and_its_number_is_not_used_again(struct shelf *shelf,
											struct shelf *other,
											struct error *e)
{
	struct place place;
	char key[KEY_BYTES];
	char pack[BACKEND_KEY_MAX + 1];
	const struct record_head items = { .kind = RECORD_ITEMS, .number = 2, .save_id = 0xabc002 };

	for (uint64_t seed = 1; seed <= 2; seed++)
		shelf_save(shelf, bundle, seed);
	EXPECT_CALL(place_init(tenant(), view_str(bundle), &place, e), 0, e);
	segment_key(&place, &items, key);
	EXPECT_INT(pack_key(tenant(), view_str(bundle), 0xabc002, "n0", 0, pack), 0);
	EXPECT(exists(shelf, key) && exists(shelf, pack));

	EXPECT_INT(shelf_compare(other, bundle, "2", 2), 0); /* in the other's cache */
	EXPECT_CALL(delete_it(shelf, 2, e), 0, e);
	EXPECT(!exists(shelf, key) && !exists(shelf, pack));
	EXPECT_CALL(open_it(other, "2", e), -ERR_EDELETED, e);
	EXPECT_CALL(open_it(shelf, "2", e), -ERR_EDELETED, e);
	EXPECT_INT(shelf_compare(other, bundle, "latest", 1), 0);
	EXPECT_CALL(delete_it(other, 2, e), 0, e); /* again */
	EXPECT_CALL(delete_it(other, 3, e), -ENOENT, e);
	EXPECT_INT(shelf_save(shelf, bundle, 3), 3);
}

static void a_labelled_version_is_not_deleted(struct shelf *shelf, struct shelf *other, struct error *e)
{
	for (uint64_t seed = 1; seed <= 2; seed++)
		shelf_save(shelf, bundle, seed);
	EXPECT_CALL(set_label(shelf, "prod", 0, 1, e), 0, e);
	EXPECT_CALL(delete_it(other, 1, e), -EBUSY, e);
	EXPECT(strstr(e->text, "prod"));
	EXPECT_INT(shelf_compare(other, bundle, "1", 1), 0);
	EXPECT_CALL(set_label(shelf, "prod", 1, 2, e), 0, e);
	EXPECT_CALL(delete_it(other, 1, e), 0, e);
}

static void a_lease_stays_while_somebody_is_about_to_open_the_version(struct shelf *shelf, struct shelf *other,
								      struct error *e)
{
	struct opening opening;
	struct place place;

	shelf_save(shelf, bundle, 1);
	EXPECT_CALL(place_init(tenant(), view_str(bundle), &place, e), 0, e);
	EXPECT_CALL(open_it(shelf, "1", e), 0, e); /* and is closed: its lease is given back soon */
	opening_begin(shelf->bundles, &place, 1, &opening);
	EXPECT_CALL(delete_it(other, 1, e), -EBUSY, e);
	opening_end(&opening);
	EXPECT_CALL(delete_it(other, 1, e), 0, e);
}

static void a_move_under_way_is_settled_before_a_deletion(struct shelf *shelf, struct shelf *other, struct error *e)
{
	for (uint64_t seed = 1; seed <= 3; seed++)
		shelf_save(shelf, bundle, seed);
	EXPECT_CALL(set_label(shelf, "prod", 0, 1, e), 0, e);
	announce_move(shelf, "prod", 2, 2); /* its object never comes */
	EXPECT_CALL(delete_it(other, 2, e), 0, e);
	EXPECT_INT(shelf_compare(shelf, bundle, "prod", 1), 0);
	announce_move(shelf, "prod", 3, 3); /* its object is there */
	put_move_object(shelf, "prod", 3, 3);
	EXPECT_CALL(delete_it(other, 3, e), -EBUSY, e);
	EXPECT_CALL(delete_it(other, 1, e), 0, e);
}

static void a_deletion_cut_at_any_step_is_finished_by_whoever_looks(struct shelf *shelf, struct shelf *other,
								    struct error *e)
{
	struct place place;
	struct root_object root = { 0 };
	_cleanup_(buf_fini) struct buf listing = { 0 };

	for (uint64_t seed = 1; seed <= 3; seed++)
		shelf_save(shelf, bundle, seed);
	EXPECT_CALL(place_init(tenant(), view_str(bundle), &place, e), 0, e);
	EXPECT_CALL(delete_begin(shelf->bundles, &place, 3, 7, bed_deadline(shelf->bed), e), 0, e);
	EXPECT_CALL(set_label(other, "prod", 0, 3, e), -ENOENT, e); /* mended before it looked */
	EXPECT_CALL(delete_begin(shelf->bundles, &place, 2, 8, bed_deadline(shelf->bed), e), 0, e);
	EXPECT_CALL(delete_root(shelf->bundles, &place, 2, bed_deadline(shelf->bed), e), 0, e);
	shelf_listing(other, &listing);
	EXPECT(strstr((char *)listing.ptr, "n=1 latest=1"));
	EXPECT_CALL(root_read(other->bundles, &place, 3, &root, bed_deadline(shelf->bed), e), 0, e);
	EXPECT_INT(root.state, ROOT_DELETED);
	root_object_fini(&root);
	EXPECT_CALL(delete_it(other, 3, e), 0, e);
	EXPECT_CALL(delete_it(other, 2, e), 0, e);
}

/* ---- lists ---- */

static void lists_come_in_order_and_in_pages(struct shelf *shelf, struct shelf *other, struct error *e)
{
	const char *const names[] = { "a", "a/b", "a0", "b" };
	struct bundle_entry *bundles = NULL;
	struct version_entry *versions = NULL;
	size_t n;
	bool more;

	for (int i = 3; i >= 0; i--)
		shelf_save(shelf, names[i], (uint64_t)i + 1);
	for (int i = 0; i < 4; i++) {
		EXPECT_CALL(bundle_list(other->bundles, tenant(), (struct view){ 0 },
					i ? view_str(names[i - 1]) : (struct view){ 0 }, 1, bed_deadline(shelf->bed),
					&bundles, &n, &more, e),
			    0, e);
		EXPECT_INT(n, 1);
		EXPECT_INT(more, i < 3);
		EXPECT_INT(strcmp(bundles[0].name, names[i]), 0);
		bundle_entries_free(bundles, n);
	}
	EXPECT_CALL(bundle_list(other->bundles, tenant(), view_str("a"), (struct view){ 0 }, 10,
				bed_deadline(shelf->bed), &bundles, &n, &more, e),
		    0, e);
	EXPECT_INT(n, 3);
	bundle_entries_free(bundles, n);
	EXPECT_CALL(bundle_list(other->bundles, view_str("stranger"), (struct view){ 0 }, (struct view){ 0 }, 10,
				bed_deadline(shelf->bed), &bundles, &n, &more, e),
		    0, e);
	EXPECT_INT(n, 0);
	bundle_entries_free(bundles, n);

	for (uint64_t seed = 10; seed < 13; seed++)
		shelf_save(shelf, "a", seed);
	EXPECT_CALL(version_list(other->bundles, tenant(), view_str("a"), 1, 2, bed_deadline(shelf->bed), &versions, &n,
				 &more, e),
		    0, e);
	EXPECT(n == 2 && more && versions[0].number == 2 && versions[1].number == 3 && versions[1].step == 1100);
	EXPECT_INT(versions[0].n_attributes, 1);
	version_entries_free(versions, n);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		SHELF_STORY(a_published_version_is_read_back_whole_by_every_daemon),
		SHELF_STORY(what_is_not_there_is_named),
		SHELF_STORY(an_opened_version_is_shared_and_outlives_the_cache),
		SHELF_STORY(a_save_cut_before_its_root_is_not_there_and_the_next_one_works),
		SHELF_STORY(a_save_cut_behind_its_root_is_there_for_whoever_looks),
		SHELF_STORY(each_step_of_a_publication_may_be_done_again),
		SHELF_STORY(other_bytes_under_a_taken_key_are_refused),
		SHELF_STORY(a_version_that_breaks_a_rule_is_not_published),
		SHELF_STORY(a_block_changed_after_its_capture_fails_the_pack_and_leaves_no_object),
		SHELF_STORY(a_pack_of_many_parts_is_written_whole),
		SHELF_STORY(a_pack_whose_time_is_up_leaves_nothing_and_gives_its_pins_back),
		SHELF_STORY(an_overtaken_coordinator_opens_no_slot_and_publishes_nothing),
		SHELF_STORY(a_version_that_is_deleted_before_it_is_indexed_was_published),
		SHELF_STORY(of_a_root_and_a_tombstone_the_first_wins_for_good),
		SHELF_STORY(in_a_race_for_a_slot_exactly_one_wins),
		SHELF_STORY(slots_opened_at_the_same_time_have_different_numbers),
		SHELF_STORY(a_label_points_where_it_was_last_moved),
		SHELF_STORY(a_move_cut_before_its_object_has_not_happened_and_the_next_one_works),
		SHELF_STORY(a_move_cut_behind_its_object_has_happened_for_whoever_looks),
		SHELF_STORY(a_deleted_version_is_gone_with_its_objects_and_its_number_is_not_used_again),
		SHELF_STORY(a_labelled_version_is_not_deleted),
		SHELF_STORY(a_lease_stays_while_somebody_is_about_to_open_the_version),
		SHELF_STORY(a_move_under_way_is_settled_before_a_deletion),
		SHELF_STORY(a_deletion_cut_at_any_step_is_finished_by_whoever_looks),
		SHELF_STORY(lists_come_in_order_and_in_pages),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
