/*
 * bundle/delete.c: the end of a version: marked dying in the index, a tombstone over its root, its rows gone, its objects gone.
 *
 * It is refused (EBUSY) while a label points to the version, an open save has it as parent, or a node reads it. From the mark on nobody
 * labels it, pins it or begins to read it; from the tombstone on nothing brings it back. Each step may be done again, by anybody:
 * index_mend() takes over from a deleter that died, and collection removes what it has left.
 *
 * Readers are looked for behind the mark, so whoever marked may have to take it back. The mark says whose it is: who takes over from
 * somebody puts a mark of his own, never takes it back, and so may put the tombstone whatever the first one does.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/point.h"
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

/* ---- is it a parent? ---- */

struct children {
	uint64_t number;
	struct error *e;
};

static int check_child(void *arg, struct view key, struct view value)
{
	const struct children *children = arg;
	struct row_slot row;

	if (row_slot_decode(value, &row) != 0)
		return row_damaged(children->e, "a slot");
	return row.parent != children->number ?
		       0 :
		       error_set(children->e, -EBUSY, "version %" PRIu64 " is the parent of a save under way",
				 children->number);
}

static int check_children(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t deadline_ns,
			  struct error *e)
{
	const struct row_key prefix = rows_prefix('s', place);
	struct children children = { .number = number, .e = e };

	return rows_each(bundles, row_key_view(&prefix), (struct view){ 0 }, check_child, &children, deadline_ns, e);
}

/* ---- steps ---- */

static int no_version(const struct place *place, uint64_t number, struct error *e)
{
	return error_set(e, -ENOENT, "bundle %.*s has no version %" PRIu64, (int)place->bundle.len,
			 (const char *)place->bundle.ptr, number);
}

struct marking {
	uint64_t mark;
	uint64_t rule; /* not 0: for this rule, while it is in force */
	bool resume;   /* only if somebody has begun */
};

/* 0: marked; DELETE_TAKEN_OVER: somebody had begun, and it is marked anew; DELETE_NOT_BEGUN; META_CONFLICT. */
static int mark_dying(struct bundles *bundles, const struct place *place, uint64_t number, const struct marking *how,
		      uint64_t deadline_ns, struct error *e)
{
	_cleanup_(change_fini) struct change change = { 0 };
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	const struct row_key key = version_row_key(place, number), slot = slot_row_key(place, number);
	struct row_version row;

	int r = change_begin(bundles, place, NULL, &change, deadline_ns, e);
	if (!r)
		r = row_read_version(bundles, place, number, &bytes, &row, deadline_ns, e);
	if (r == ROW_ABSENT)
		return no_version(place, number, e);
	bool begun = !r && row.state == ROW_DYING;
	if (!r && !begun && (how->resume || (how->rule && how->rule != change.row.rule)))
		return DELETE_NOT_BEGUN;
	if (!r && !begun) /* a move or a slot that comes now changes the bundle's row */
		r = check_labels(bundles, place, number, deadline_ns, e);
	if (!r && !begun)
		r = check_children(bundles, place, number, deadline_ns, e);
	if (r)
		return r;

	const struct row_slot unfinished = { .save_id = row.save_id,
					     .epoch = row.epoch }; /* index_mend() looks there */
	row.state = ROW_DYING;
	row.mark = how->mark;
	r = change_put_version(&change, &key, &row);
	if (!r)
		r = change_put_slot(&change, &slot, &unfinished);
	if (!r)
		r = change_commit(&change, deadline_ns, e);
	return !r && begun ? DELETE_TAKEN_OVER : r;
}

static int begin(struct bundles *bundles, const struct place *place, uint64_t number, const struct marking *how,
		 uint64_t deadline_ns, struct error *e)
{
	int r = META_CONFLICT;

	for (int i = 0; r == META_CONFLICT; i++) {
		r = change_again(bundles, place, i, e);
		if (!r)
			r = mark_dying(bundles, place, number, how, deadline_ns, e);
	}
	return r;
}

int delete_begin(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t mark,
		 uint64_t deadline_ns, struct error *e)
{
	const struct marking how = { .mark = mark };

	return begin(bundles, place, number, &how, deadline_ns, e);
}

/* META_CONFLICT */
static int try_unmark(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t mark,
		      uint64_t deadline_ns, struct error *e)
{
	_cleanup_(change_fini) struct change change = { 0 };
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	const struct row_key key = version_row_key(place, number);
	struct row_version row;
	int r = change_begin(bundles, place, NULL, &change, deadline_ns, e);

	if (!r)
		r = row_read_version(bundles, place, number, &bytes, &row, deadline_ns, e);
	if (r || row.state != ROW_DYING || row.mark != mark)
		return r < 0 ? r : 0;
	row.state = ROW_LIVE;
	row.mark = 0;
	r = change_put_version(&change, &key, &row);
	return r ? r : change_commit(&change, deadline_ns, e);
}

/* Takes the mark back if it still is ours. The slot's row stays: whoever mends sees that all is well, and removes it. */
static int unmark(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t mark,
		  uint64_t deadline_ns, struct error *e)
{
	int r = META_CONFLICT;

	for (int i = 0; r == META_CONFLICT; i++) {
		r = change_again(bundles, place, i, e);
		if (!r)
			r = try_unmark(bundles, place, number, mark, deadline_ns, e);
	}
	return r;
}

/* Nobody reads it, or not any more after a short while. */
static int await_readers(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t deadline_ns,
			 struct error *e)
{
	int rebuilt = rebuilt_await(bundles, deadline_ns, e);
	uint64_t until_ns = env_in_ms(bundles->env, READER_WAIT_MS);

	if (rebuilt)
		return rebuilt;
	for (int i = 3;; i++) { /* a version that was closed a moment ago is given back at the next tick */
		int r = readers_check(bundles, place, number, deadline_ns, e);

		if (r != -EBUSY || env_now(bundles->env) > until_ns)
			return r;
		r = change_pause(bundles, i);
		if (r)
			return r;
	}
}

/* 0, BACKEND_EXISTS: the root was missing, and something is there by now. */
static int put_tombstone(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t deadline_ns,
			 struct error *e)
{
	_cleanup_(root_object_fini) struct root_object object = { 0 };
	_cleanup_(buf_fini) struct buf body = { 0 }, bytes = { 0 };
	uint32_t generation = cluster_generation(bundles->cluster);
	struct row_version row;
	char key[KEY_BYTES];
	int r = row_read_version(bundles, place, number, &bytes, &row, deadline_ns, e);

	if (!r &&
	    row.state != ROW_DYING) /* a rebuild has forgotten the mark: it may be labelled, read or a parent by now */
		return error_set(e, -EAGAIN, "version %" PRIu64 " is not deleted: the index was rebuilt meanwhile",
				 number);
	bool indexed = r == 0;
	if (r >= 0)
		r = (indexed ? root_read_known : root_read)(bundles, place, number, &object, deadline_ns, e);
	bool missing = !r && object.state == ROOT_NONE;
	if (r || (missing ? !indexed : object.state != ROOT_PUBLISHED))
		return r;
	r = cluster_hold(bundles->cluster, deadline_ns,
			 e); /* only now: one that is missing was looked for for seconds */
	if (r)
		return r;
	struct rec_tombstone rec = { .tenant = place->tenant,
				     .bundle = place->bundle,
				     .reason = TOMBSTONE_DELETED,
				     .shared = row.shared };
	if (!missing) {
		rec.packs = object.root.packs;
		rec.segments = object.root.segments;
	} else { /* what it named is left to collection */
		object.head = (struct record_head){ .save_id = row.save_id, .epoch = row.epoch, .number = number };
	}
	if (rec_tombstone_encode(&rec, &body))
		return no_memory(e);

	if (generation != cluster_generation(bundles->cluster)) /* the row may say something else by now */
		return error_set(e, -EAGAIN, "version %" PRIu64 " is not deleted: the index is being rebuilt", number);
	struct record_head head = object.head;
	head.kind = RECORD_TOMBSTONE;
	head.generation = cluster_generation(bundles->cluster);
	root_key(place, number, key);
	r = object_put(bundles, key, &head, view_buf(&body), missing, deadline_ns, e);
	cache_drop(bundles, place, number);
	if (!r)
		point_reached(POINT_DELETE_TOMBSTONE);
	return r;
}

int delete_root(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t deadline_ns,
		struct error *e)
{
	int r = put_tombstone(bundles, place, number, deadline_ns, e);

	if (r == BACKEND_EXISTS) /* another's tombstone; or the root has come back, and goes */
		r = put_tombstone(bundles, place, number, deadline_ns, e);
	return r == BACKEND_EXISTS ?
		       error_set(e, -EAGAIN, "the root of version %" PRIu64 " is taken, and the store does not show it",
				 number) :
		       r;
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

/* Packs that other versions may name, too, are left to collection, which looks at all of them. */
void delete_objects(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t deadline_ns)
{
	_cleanup_(root_object_fini) struct root_object object = { 0 };
	char own[2 + 16 + 1 + 1];
	struct rec_pack pack;
	struct rec_segment segment;

	if (root_read(bundles, place, number, &object, deadline_ns, NULL) || object.state != ROOT_DELETED)
		return;
	/* One from before a rebuild, which came so late that the version was there again: it may have been a parent by then. */
	bool late = object.head.generation != cluster_generation(bundles->cluster);

	(void)snprintf(own, sizeof(own), "p/%016" PRIx64 "-", object.head.save_id);
	while (!object.tomb.shared && !late && rec_pack_next(&object.tomb.packs, &pack) == 0)
		if (pack.key.len > strlen(own) && memcmp(pack.key.ptr, own, strlen(own)) == 0)
			delete_part(bundles, place, pack.key, deadline_ns);
	while (rec_segment_next(&object.tomb.segments, &segment) == 0)
		delete_part(bundles, place, segment.key, deadline_ns);
}

/* Behind the mark. */
static int delete_rest(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t deadline_ns,
		       struct error *e)
{
	enum root_state state;
	int r = delete_root(bundles, place, number, deadline_ns, e);

	if (!r)
		r = index_version(bundles, place, number, true, &state, deadline_ns, e);
	if (!r)
		point_reached(POINT_DELETE_UNINDEXED);
	return r;
}

static uint64_t new_mark(struct bundles *bundles)
{
	uint64_t mark;

	bundles->env->ops->random(bundles->env, &mark, sizeof(mark));
	return mark | 1;
}

int delete_resume(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t deadline_ns,
		  struct error *e)
{
	const struct marking how = { .mark = new_mark(bundles), .resume = true };
	int r = begin(bundles, place, number, &how, deadline_ns, e);

	if (r == DELETE_NOT_BEGUN) /* whoever had begun has just taken his mark back: it is read, and stays */
		return 0;
	if (r ==
	    DELETE_TAKEN_OVER) /* no new reader comes; the old ones are waited for, if need be by the next who mends */
		r = readers_check(bundles, place, number, deadline_ns, e);
	return r ? r : delete_rest(bundles, place, number, deadline_ns, e);
}

static int delete_live(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t rule,
		       uint64_t deadline_ns, struct error *e)
{
	const struct marking how = { .mark = new_mark(bundles), .rule = rule };
	int r = await_readers(bundles, place, number, deadline_ns, e);

	if (!r)
		r = begin(bundles, place, number, &how, deadline_ns, e);
	bool ours = r == 0;
	if (r < 0 || r == DELETE_NOT_BEGUN)
		return r;
	point_reached(POINT_DELETE_MARKED);
	r = readers_check(bundles, place, number, deadline_ns, e);
	if (r && ours)
		(void)unmark(bundles, place, number, how.mark, env_in_ms(bundles->env, SETTLE_MS), NULL);
	return r ? r : delete_rest(bundles, place, number, deadline_ns, e);
}

/* "Busy" says that it stays. When somebody else has begun to delete it, or has taken over from us, it does not: it goes with its readers. */
static int busy(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t deadline_ns,
		struct error *e)
{
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	struct row_version row;
	int r = row_read_version(bundles, place, number, &bytes, &row, deadline_ns, NULL);

	if (r < 0 || (!r && row.state != ROW_DYING))
		return -EBUSY;
	return error_set(e, -EAGAIN,
			 "version %" PRIu64 " is being deleted by another node, when nobody reads it any more", number);
}

/* Whoever deletes to make room must hear why he cannot, and what would help. */
static int needs_room(int r, struct error *e)
{
	if (!e || (r != -ENOSPC && r != -EDQUOT))
		return r;
	return error_set(e, r,
			 "%.300s; to delete a version some 4 KiB have to be written first: make that room there (other "
			 "files, forebay gc), and then the version gives back its own",
			 e->text);
}

int delete_for_rule(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t rule,
		    uint64_t deadline_ns, struct error *e)
{
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	struct row_version row;
	enum root_state state;
	int r;

	index_mend(bundles, place, deadline_ns);
	r = index_version(bundles, place, number, false, &state, deadline_ns, e);
	if (!r && state == ROOT_NONE) { /* that its root is missing is no reason for a rule */
		r = row_read_version(bundles, place, number, &bytes, &row, deadline_ns, e);
		r = r == ROW_ABSENT || (!r && rule) ? no_version(place, number, e) : r;
	}
	if (!r && state == ROOT_BURNED)
		r = no_version(place, number, e);
	if (!r && (state == ROOT_PUBLISHED || state == ROOT_NONE))
		r = delete_live(bundles, place, number, rule, deadline_ns, e);
	if (r == -EBUSY)
		r = busy(bundles, place, number, deadline_ns, e);
	if (!r)
		delete_objects(bundles, place, number, deadline_ns);
	return needs_room(r, e);
}

int version_delete(struct bundles *bundles, struct view tenant, struct view bundle, uint64_t number,
		   uint64_t deadline_ns, struct error *e)
{
	CHECK_MAGIC(bundles, BUNDLES_MAGIC);
	struct place place;
	int r = place_init(tenant, bundle, &place, e);

	return r ? r : delete_for_rule(bundles, &place, number, 0, deadline_ns, e);
}
