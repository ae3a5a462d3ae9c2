/*
 * bundle/delete.c: the end of a version: marked dying in the index, a tombstone over its root, its rows gone, its objects gone.
 *
 * From the mark on nobody labels it; from the tombstone on nobody opens it, and nothing brings it back. Each step may be done again,
 * by anybody: index_mend() finishes the first two for a deleter that died; its objects go when the deletion is called again.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "bundle/inside.h"

/* ---- is it labelled? ---- */

struct labels {
	struct bundles *bundles;
	const struct place *place;
	size_t prefix;
	uint64_t number, deadline_ns;
	struct error *e;
};

static int check_label(void *arg, struct view key, struct view value)
{
	const struct labels *labels = arg;
	struct row_label row;

	view_take(&key, labels->prefix);
	if (row_label_decode(value, &row) != 0)
		return row_damaged(labels->e, "a label");
	if (row.pending_move) { /* it may come to point here: make sure that it did, or never will */
		int r = label_settle(labels->bundles, labels->place, key, labels->deadline_ns, labels->e);

		if (!r)
			r = row_read_label(labels->bundles, labels->place, key, &row, labels->deadline_ns, labels->e);
		if (r < 0)
			return r;
	}
	if (row.number == labels->number)
		return error_set(labels->e, -EBUSY, "version %" PRIu64 " has the label %.*s", labels->number,
				 (int)key.len, (const char *)key.ptr);
	return 0;
}

static int check_labels(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t deadline_ns,
			struct error *e)
{
	const struct row_key prefix = rows_prefix('l', place);
	struct labels labels = { .bundles = bundles,
				 .place = place,
				 .prefix = prefix.len,
				 .number = number,
				 .deadline_ns = deadline_ns,
				 .e = e };

	return rows_each(bundles, row_key_view(&prefix), (struct view){ 0 }, check_label, &labels, deadline_ns, e);
}

/* ---- steps ---- */

static int mark_dying(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t deadline_ns,
		      struct error *e)
{
	_cleanup_(change_fini) struct change change = { 0 };
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	const struct row_key key = version_row_key(place, number), slot = slot_row_key(place, number);
	struct row_version row;

	int r = change_begin(bundles, place, NULL, &change, deadline_ns, e);
	if (!r)
		r = row_read_version(bundles, place, number, &bytes, &row, deadline_ns, e);
	if (r == ROW_ABSENT)
		return error_set(e, -ENOENT, "bundle %.*s has no version %" PRIu64, (int)place->bundle.len,
				 (const char *)place->bundle.ptr, number);
	if (r || row.state == ROW_DYING)
		return r;
	r = check_labels(bundles, place, number, deadline_ns, e); /* a move that comes now changes the bundle's row */
	if (r)
		return r;

	const struct row_slot unfinished = { .save_id = row.save_id,
					     .epoch = row.epoch }; /* index_mend() looks there */
	row.state = ROW_DYING;
	r = change_put_version(&change, &key, &row);
	if (!r)
		r = change_put_slot(&change, &slot, &unfinished);
	return r ? r : change_commit(&change, deadline_ns, e);
}

int delete_begin(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t deadline_ns,
		 struct error *e)
{
	for (int i = 0; i < CHANGE_TRIES_MAX; i++) {
		int r = mark_dying(bundles, place, number, deadline_ns, e);

		if (r != META_CONFLICT)
			return r;
	}
	return change_failed(e, place);
}

int delete_root(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t deadline_ns,
		struct error *e)
{
	_cleanup_(root_object_fini) struct root_object object = { 0 };
	_cleanup_(buf_fini) struct buf body = { 0 };
	char key[KEY_BYTES];
	int r = root_read(bundles, place, number, &object, deadline_ns, e);

	if (r || object.state != ROOT_PUBLISHED)
		return r;
	const struct rec_tombstone rec = { .tenant = place->tenant,
					   .bundle = place->bundle,
					   .reason = TOMBSTONE_DELETED,
					   .packs = object.root.packs,
					   .segments = object.root.segments };
	if (rec_tombstone_encode(&rec, &body))
		return no_memory(e);

	struct record_head head = object.head;
	head.kind = RECORD_TOMBSTONE;
	head.generation = cluster_generation(bundles->cluster);
	root_key(place, number, key);
	r = object_put(bundles, key, &head, view_buf(&body), false, deadline_ns, e);
	cache_drop(bundles, place, number);
	return r;
}

/* @part is a key from "p/" or "v/" on, as a tombstone names it. */
static void delete_part(struct bundles *bundles, const struct place *place, struct view part, uint64_t deadline_ns)
{
	_cleanup_(buf_fini) struct buf key = { 0 };

	if (part.len > 2 && !memchr(part.ptr, 0, part.len) && (part.ptr[0] == 'p' || part.ptr[0] == 'v') &&
	    part.ptr[1] == '/' &&
	    buf_printf(&key, "%s%.*s", place->prefix, (int)part.len, (const char *)part.ptr) == 0 &&
	    buf_append_zero(&key, 1) == 0)
		(void)object_delete(bundles, (const char *)key.ptr, deadline_ns, NULL);
}

void delete_objects(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t deadline_ns)
{
	_cleanup_(root_object_fini) struct root_object object = { 0 };
	struct rec_pack pack;
	struct rec_segment segment;

	if (root_read(bundles, place, number, &object, deadline_ns, NULL) || object.state != ROOT_DELETED)
		return;
	while (rec_pack_next(&object.tomb.packs, &pack) == 0)
		delete_part(bundles, place, pack.key, deadline_ns);
	while (rec_segment_next(&object.tomb.segments, &segment) == 0)
		delete_part(bundles, place, segment.key, deadline_ns);
}

int version_delete(struct bundles *bundles, struct view tenant, struct view bundle, uint64_t number,
		   uint64_t deadline_ns, struct error *e)
{
	CHECK_MAGIC(bundles, BUNDLES_MAGIC);
	enum root_state state;
	struct place place;

	int r = place_init(tenant, bundle, &place, e);
	if (r)
		return r;
	index_mend(bundles, &place, deadline_ns);
	r = index_version(bundles, &place, number, false, &state, deadline_ns, e);
	if (r)
		return r;
	if (state == ROOT_NONE || state == ROOT_BURNED)
		return error_set(e, -ENOENT, "bundle %.*s has no version %" PRIu64, (int)bundle.len,
				 (const char *)bundle.ptr, number);
	if (state == ROOT_PUBLISHED) {
		r = delete_begin(bundles, &place, number, deadline_ns, e);
		if (!r)
			r = delete_root(bundles, &place, number, deadline_ns, e);
		if (!r)
			r = index_version(bundles, &place, number, true, &state, deadline_ns, e);
		if (r)
			return r;
	}
	delete_objects(bundles, &place, number, deadline_ns);
	return 0;
}
