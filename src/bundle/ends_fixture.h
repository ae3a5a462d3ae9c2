/*
 * bundle/ends_fixture.h: what the tests of what ends and what stays share: one bundle, and short words for what is done with it and
 * looked at. Each against the real engine and a real directory, by another daemon's eyes.
 */
#pragma once

#include "bundle/bundle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "bundle/scan.h"
#include "bundle/shelf_suite.h"

static const char bundle[] = SHELF_BUNDLE;

static inline uint64_t deadline(struct shelf *shelf)
{
	return bed_deadline(shelf->bed);
}

static inline struct place place(void)
{
	struct place place;
	struct error e;

	EXPECT_CALL(place_init(tenant(), view_str(bundle), &place, &e), 0, &e);
	return place;
}

static inline int delete_it(struct shelf *shelf, uint64_t number, struct error *e)
{
	return version_delete(shelf->bundles, tenant(), view_str(bundle), number, deadline(shelf), e);
}

static inline int open_it(struct shelf *shelf, const char *spec, struct version **ret, struct error *e)
{
	return bundle_open(shelf->bundles, tenant(), view_str(bundle), view_str(spec), deadline(shelf), ret, e);
}

static inline bool opens(struct shelf *shelf, const char *spec)
{
	_cleanup_(cleanup_version_put) struct version *version = NULL;
	struct error e;

	return open_it(shelf, spec, &version, &e) == 0;
}

static inline struct collect_counts collect(struct shelf *shelf)
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

static inline int count_key(void *arg, const char *key, char *after)
{
	struct keys *keys = arg;

	keys->n++;
	keys->packs += strstr(key, "/p/") != NULL;
	keys->tombs += strstr(key, "/root") != NULL;
	return 0;
}

static inline struct keys count_keys(struct shelf *shelf)
{
	struct keys keys = { 0 };
	struct place at = place();
	struct error e;

	EXPECT_CALL(keys_each(shelf->bundles, at.prefix, count_key, &keys, deadline(shelf), &e), 0, &e);
	return keys;
}

static inline enum root_state root_state(struct shelf *shelf, uint64_t number)
{
	_cleanup_(root_object_fini) struct root_object object = { 0 };
	struct place at = place();
	struct error e;

	EXPECT_CALL(root_read(shelf->bundles, &at, number, &object, deadline(shelf), &e), 0, &e);
	return object.state;
}

/* Puts the bundle's row back to what it was: as far as the check of an index goes, an older copy of it. */
static inline void set_row(struct shelf *shelf, const struct row_bundle *row)
{
	_cleanup_(change_fini) struct change change = { 0 };
	struct place at = place();
	struct error e;

	EXPECT_CALL(change_begin(shelf->bundles, &at, NULL, &change, deadline(shelf), &e), 0, &e);
	change.row = *row;
	EXPECT_CALL(change_commit(&change, deadline(shelf), &e), 0, &e);
}

static inline void take_lease(struct shelf *shelf, struct fence *ret, struct buf *record, uint64_t holder,
			      uint32_t ttl_ms)
{
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = meta_req_new(META_LEASE);
	struct meta *meta = cluster_meta(shelf->bundles->cluster);
	struct error e;
	uint64_t who;

	record->len = 0;
	EXPECT_INT(meta_put_lease(req, view_str("g/group"), holder, ttl_ms, 0), 0);
	EXPECT_CALL(meta_call_run(meta, &req, deadline(shelf), &e), 0, &e);
	EXPECT_INT(meta_out_lease(view_buf(&req->out), &who, &ret->epoch), 0);
	EXPECT_CALL(meta_get(meta, view_str("g/group"), record, deadline(shelf), &e), 0, &e);
	ret->key = view_str("g/group");
	ret->record = view_buf(record);
}

static inline void give_lease(struct shelf *shelf, uint64_t holder)
{
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = meta_req_new(META_RELEASE);
	struct meta *meta = cluster_meta(shelf->bundles->cluster);
	_cleanup_(buf_fini) struct buf record = { 0 };
	uint64_t who, epoch;
	struct error e;

	EXPECT_CALL(meta_get(meta, view_str("g/group"), &record, deadline(shelf), &e), 0, &e);
	EXPECT_INT(meta_out_lease(view_buf(&record), &who, &epoch), 0);
	EXPECT_INT(meta_put_lease(req, view_str("g/group"), holder, 0, epoch), 0);
	EXPECT_CALL(meta_call_run(meta, &req, deadline(shelf), &e), 0, &e);
}

static inline uint64_t open_slot(struct shelf *shelf, uint64_t save_id, uint64_t parent, const struct fence *fence)
{
	_cleanup_(slot_fini) struct slot slot = { 0 };
	struct error e;

	EXPECT_CALL(slot_open(shelf->bundles, tenant(), view_str(bundle), save_id, parent, fence, deadline(shelf),
			      &slot, &e),
		    0, &e);
	return slot.number;
}

static inline void look_around(struct shelf *shelf)
{
	_cleanup_(buf_fini) struct buf listing = { 0 };

	shelf_listing(shelf, &listing);
}

static inline int retain(struct shelf *shelf, uint64_t last, uint64_t every, struct error *e)
{
	return bundle_retain(shelf->bundles, tenant(), view_str(bundle), last, every, deadline(shelf), e);
}

static inline void expect_numbers(struct shelf *shelf, const char *want)
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

/* A save that was overtaken writes its two packs when its slot is folded already, beside a version. */
static inline void fold_zombie(struct save *ret, struct shelf *shelf, struct shelf *other)
{
	struct error e;

	save_begin(ret, shelf, bundle, 1);
	EXPECT_CALL(slot_burn(other->bundles, &ret->slot, deadline(shelf), &e), 0, &e);
	shelf_save(shelf, bundle, 2);
	EXPECT_INT(collect(other).folded, 1);
	save_packs(ret);
	EXPECT_INT(count_keys(shelf).packs, 4);
}

/* A child of @number whose second pack is its parent's. */
static inline uint64_t save_child_of(struct shelf *shelf, uint64_t seed, uint64_t number)
{
	char spec[24];
	_cleanup_(save_fini) struct save save;
	_cleanup_(cleanup_version_put) struct version *parent = NULL;
	struct error e;

	snprintf(spec, sizeof(spec), "%" PRIu64, number);
	EXPECT_CALL(open_it(shelf, spec, &parent, &e), 0, &e);
	save_begin_child(&save, shelf, bundle, seed, number);
	EXPECT(save.slot.pinned);
	save_packs(&save);
	free(save.version->packs[1].key);
	save.version->packs[1].key = strdup(parent->packs[1].key);
	for (size_t i = 1; i < 4; i += 2)
		save.version->blocks[i] = parent->blocks[i];
	EXPECT_CALL(slot_publish(shelf->bundles, &save.slot, save.version, NULL, deadline(shelf), &e), 0, &e);
	return save.slot.number;
}

static inline uint64_t save_child(struct shelf *shelf, uint64_t seed)
{
	return save_child_of(shelf, seed, 1);
}

static inline int no_damage(void *arg, const char *object, struct view item, uint64_t block, const char *words)
{
	fprintf(stderr, "%s: %s\n", object, words);
	abort();
}
