/*
 * bundle/slot.c: the right to publish a number: opened by put-if-absent of the slot, ended by put-if-absent under the root's key,
 * of the root (publish.c) or of a tombstone (here). So of two who want to end it exactly one does.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/point.h"
#include "bundle/inside.h"

void slot_fini(struct slot *slot)
{
	free(slot->tenant);
	free(slot->bundle);
	*slot = (struct slot){ 0 };
}

static struct record_head slot_head(struct bundles *bundles, enum record_kind kind, const struct slot *slot)
{
	return (struct record_head){
		.kind = kind,
		.save_id = slot->save_id,
		.epoch = slot->epoch,
		.number = slot->number,
		.generation = cluster_generation(bundles->cluster),
	};
}

/* The key is taken. 0: by this save at this epoch (a try before, or a store that sends twice); BACKEND_EXISTS: by another. */
static int slot_is_ours(struct bundles *bundles, const char *key, const struct slot *slot, uint64_t deadline_ns,
			struct error *e)
{
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	struct record_head head;
	struct view body;
	int r = object_open(bundles, key, RECORD_SMALL_MAX, &bytes, &head, &body, deadline_ns, e);

	if (r)
		return r == -ERR_EDAMAGED || r == -ENOENT ? BACKEND_EXISTS :
							    r; /* whosever it is, or was: the number is taken */
	return head.kind == RECORD_SLOT && head.save_id == slot->save_id && head.epoch == slot->epoch ? 0 :
													BACKEND_EXISTS;
}

/* Puts the slot's object under its number. 0: there it is; BACKEND_EXISTS: the number is another's; error: it may be there, or come yet. */
static int put_slot(struct bundles *bundles, const struct place *place, const struct slot *slot, struct view lease,
		    uint64_t deadline_ns, struct error *e)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	const struct record_head head = slot_head(bundles, RECORD_SLOT, slot);
	const struct rec_slot rec = { .tenant = place->tenant,
				      .bundle = place->bundle,
				      .parent = slot->parent,
				      .node = view_str(cluster_node(bundles->cluster)),
				      .lease = lease };
	char key[KEY_BYTES];

	if (rec_slot_encode(&rec, &body))
		return no_memory(e);
	slot_key(place, slot->number, key);
	int r = object_put(bundles, key, &head, view_buf(&body), true, deadline_ns, e);
	return r == BACKEND_EXISTS ? slot_is_ours(bundles, key, slot, deadline_ns, e) : r;
}

/* Takes the first number from @number on that is free. */
static int take_number(struct bundles *bundles, const struct place *place, uint64_t number, struct slot *slot,
		       struct view lease, uint64_t deadline_ns, struct error *e)
{
	for (int i = 0; i < SLOT_TRIES_MAX; i++) {
		slot->number = number++;
		int r = put_slot(bundles, place, slot, lease, deadline_ns, e);
		if (r != BACKEND_EXISTS)
			return r;
	}
	slot->number = 0;
	return error_set(e, -EAGAIN,
			 "%d numbers up to %" PRIu64 " are taken in bundle %.*s: the index is behind the store",
			 SLOT_TRIES_MAX, number - 1, (int)place->bundle.len, (const char *)place->bundle.ptr);
}

/* In the transaction that opens the slot: as long as its row stands, the parent is not deleted. A parent that is gone pins nothing. */
static int pin_parent(struct bundles *bundles, const struct place *place, struct change *change, struct slot *slot,
		      uint64_t deadline_ns, struct error *e)
{
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	const struct row_key key = version_row_key(place, slot->parent);
	struct row_version row;

	slot->pinned = false;
	if (!slot->parent)
		return 0;
	int r = row_read_version(bundles, place, slot->parent, &bytes, &row, deadline_ns, e);
	if (r || row.state != ROW_LIVE)
		return r < 0 ? r : 0;
	slot->pinned = true;
	if (row.shared)
		return 0;
	row.shared = 1;
	return change_put_version(change, &key, &row);
}

static int try_record(struct bundles *bundles, const struct place *place, struct slot *slot, const struct fence *fence,
		      uint64_t deadline_ns, struct error *e)
{
	_cleanup_(change_fini) struct change change = { 0 };
	const struct row_key key = slot_row_key(place, slot->number);
	int r = change_begin(bundles, place, fence, &change, deadline_ns, e);

	if (!r && slot->number < change.row.floor)
		return error_set(e, -EAGAIN, "number %" PRIu64 " was folded before it could be used", slot->number);
	if (!r)
		r = pin_parent(bundles, place, &change, slot, deadline_ns, e);
	if (r)
		return r;
	const struct row_slot row = { .save_id = slot->save_id,
				      .epoch = slot->epoch,
				      .parent = slot->pinned ? slot->parent : 0,
				      .lease = fence ? fence->key : (struct view){ 0 } };
	if (slot->number > change.row.last)
		change.row.last = slot->number;
	r = change_put_slot(&change, &key, &row);
	return r ? r : change_commit(&change, deadline_ns, e);
}

/* The slot's row, under the fence: from here on everybody finds what its writer may leave behind. */
static int record_slot(struct bundles *bundles, const struct place *place, struct slot *slot, const struct fence *fence,
		       uint64_t deadline_ns, struct error *e)
{
	int r = META_CONFLICT;

	for (int i = 0; r == META_CONFLICT; i++) {
		r = change_again(bundles, place, i, e);
		if (!r)
			r = try_record(bundles, place, slot, fence, deadline_ns, e);
	}
	return r;
}

int slot_parent_check(struct bundles *bundles, struct view tenant, struct view bundle, uint64_t parent,
		      uint64_t deadline_ns, struct error *e)
{
	CHECK_MAGIC(bundles, BUNDLES_MAGIC);
	struct row_bundle row;
	struct place place;

	int r = place_init(tenant, bundle, &place, e);
	if (!r)
		r = row_read_bundle(bundles, &place, &row, deadline_ns, e);
	if (r < 0 || parent <= row.last)
		return r < 0 ? r : 0;
	return error_set(e, -ENOENT, "bundle %.*s has no version %" PRIu64 ", which was named as the parent",
			 (int)bundle.len, (const char *)bundle.ptr, parent);
}

/* Of a try before this one: what it may have put is under a number that this one does not take. */
static void leave_behind(struct bundles *bundles, struct slot *slot, uint64_t next, const struct fence *fence,
			 uint64_t deadline_ns)
{
	if (slot->number && slot->number < next)
		(void)slot_give_up(bundles, slot, fence, deadline_ns, NULL);
	slot_fini(slot);
}

int slot_open(struct bundles *bundles, struct view tenant, struct view bundle, uint64_t save_id, uint64_t parent,
	      const struct fence *fence, uint64_t deadline_ns, struct slot *slot, struct error *e)
{
	CHECK_MAGIC(bundles, BUNDLES_MAGIC);
	struct row_bundle row;
	struct place place;

	int r = place_init(tenant, bundle, &place, e);
	if (r)
		return r;
	r = row_read_bundle(bundles, &place, &row, deadline_ns, e);
	if (r < 0)
		return r;
	leave_behind(bundles, slot, row.last + 1, fence, deadline_ns);
	*slot = (struct slot){ .tenant = view_dup(tenant),
			       .bundle = view_dup(bundle),
			       .save_id = save_id,
			       .epoch = fence ? fence->epoch : 0,
			       .parent = parent,
			       .generation = cluster_generation(bundles->cluster) };
	if (!slot->tenant || !slot->bundle)
		return no_memory(e);

	r = take_number(bundles, &place, row.last + 1, slot, fence ? fence->key : (struct view){ 0 }, deadline_ns, e);
	if (r)
		return r;
	point_reached(POINT_SLOT_PUT);
	r = record_slot(bundles, &place, slot, fence, deadline_ns, e);
	if ((r == -ERR_ESTALEEPOCH || r == -EAGAIN) && !slot_burn(bundles, slot, deadline_ns, NULL))
		slot->number = 0; /* nobody will use it; a rebuild would burn it, too */
	if (r)
		return r;
	point_reached(POINT_SLOT_OPEN);
	return 0;
}

/* Something lies under the root's key already: *ret says what. */
static int burn_lost(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t deadline_ns,
		     enum root_state *ret, struct error *e)
{
	_cleanup_(root_object_fini) struct root_object object = { 0 };
	int r = root_read_known(bundles, place, number, &object, deadline_ns, e);

	*ret = object.state;
	if (r || object.state == ROOT_BURNED)
		return r;
	if (object.state == ROOT_NONE) /* not "published": that could be a tombstone, and then a save was lost */
		return error_set(e, -EAGAIN, "the root of version %" PRIu64 " is taken, and the store does not show it",
				 number);
	return error_set(e, -EEXIST, "version %" PRIu64 " is published", number);
}

int slot_burn(struct bundles *bundles, const struct slot *slot, uint64_t deadline_ns, struct error *e)
{
	CHECK_MAGIC(bundles, BUNDLES_MAGIC);
	_cleanup_(buf_fini) struct buf body = { 0 };
	struct place place;
	char key[KEY_BYTES];
	enum root_state found = ROOT_NONE, state;

	int r = place_init(view_str(slot->tenant), view_str(slot->bundle), &place, e);
	if (r)
		return r;
	const struct rec_tombstone rec = { .tenant = place.tenant, .bundle = place.bundle, .reason = TOMBSTONE_BURNED };
	if (rec_tombstone_encode(&rec, &body))
		return no_memory(e);

	const struct record_head head = slot_head(bundles, RECORD_TOMBSTONE, slot);
	root_key(&place, slot->number, key);
	r = object_put(bundles, key, &head, view_buf(&body), true, deadline_ns, e);
	if (r < 0)
		return r;
	if (r == BACKEND_EXISTS)
		r = burn_lost(bundles, &place, slot->number, deadline_ns, &found, e);
	if (index_version(bundles, &place, slot->number, true, &state, deadline_ns,
			  NULL)) /* else the next who looks does it */
		return r;
	/* Folded: burned long ago, whatever was put there since. But only what was published is deleted. */
	return state == ROOT_FOLDED && found != ROOT_DELETED ? 0 : r;
}

int slot_give_up(struct bundles *bundles, const struct slot *slot, const struct fence *fence, uint64_t deadline_ns,
		 struct error *e)
{
	CHECK_MAGIC(bundles, BUNDLES_MAGIC);
	struct place place;
	int r = place_init(view_str(slot->tenant), view_str(slot->bundle), &place, e);

	if (!r)
		r = put_slot(bundles, &place, slot, fence ? fence->key : (struct view){ 0 }, deadline_ns, e);
	return r == BACKEND_EXISTS ? 0 : r ? r : slot_burn(bundles, slot, deadline_ns, e);
}

int slot_end(struct bundles *bundles, const struct place *place, uint64_t number, const struct row_slot *row,
	     uint64_t deadline_ns, struct error *e)
{
	_cleanup_(slot_fini) struct slot slot = { .tenant = view_dup(place->tenant),
						  .bundle = view_dup(place->bundle),
						  .number = number,
						  .save_id = row->save_id,
						  .epoch = row->epoch };
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	struct row_version version;

	if (!slot.tenant || !slot.bundle)
		return no_memory(e);
	int r = row_read_version(bundles, place, number, &bytes, &version, deadline_ns, e);
	if (r < 0)
		return r;
	if (r != ROW_ABSENT)
		return 0; /* published; if its root is missing now, a tombstone would cost what a copy of it reaches */
	r = slot_burn(bundles, &slot, deadline_ns, e);
	return r == -EEXIST ? 0 : r ? r : 1; /* its root had come: indexed */
}

int slot_settle_dead(struct bundles *bundles, const struct place *place, uint64_t number, const struct row_slot *row,
		     uint64_t deadline_ns, struct error *e)
{
	int over = lease_is_over(bundles, row->lease, row->epoch, deadline_ns, e);

	return over > 0 ? slot_end(bundles, place, number, row, deadline_ns, e) : over;
}

struct settling {
	struct bundles *bundles;
	const struct place *place;
	uint64_t save_id, number, deadline_ns; /* number: published under it */
	size_t prefix;
	struct error *e;
};

/* A version that has a row was published: if its root is missing now, a tombstone would cost it. */
static int settle_number(struct settling *s, uint64_t number)
{
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	struct row_version row;
	int r = row_read_version(s->bundles, s->place, number, &bytes, &row, s->deadline_ns, s->e);

	if (r < 0)
		return r;
	if (r != ROW_ABSENT && row.save_id == s->save_id) {
		s->number = number;
		return 0;
	}
	_cleanup_(slot_fini) struct slot slot = { .tenant = view_dup(s->place->tenant),
						  .bundle = view_dup(s->place->bundle),
						  .number = number,
						  .save_id = s->save_id };

	if (!slot.tenant || !slot.bundle)
		return no_memory(s->e);
	r = slot_burn(s->bundles, &slot, s->deadline_ns, s->e);
	if (r == -EEXIST)
		s->number = number;
	return r == -EEXIST ? 0 : r;
}

static int settle_row(void *arg, struct view key, struct view value)
{
	struct settling *s = arg;
	struct row_slot row;
	uint64_t number;

	view_take(&key, s->prefix);
	if (number_decode(key, 20, &number) || row_slot_decode(value, &row))
		return row_damaged(s->e, "a slot");
	return row.save_id == s->save_id ? settle_number(s, number) : 0;
}

enum { SETTLE_FOUND = 1 };

static int find_published(void *arg, struct view key, struct view value)
{
	struct settling *s = arg;
	struct row_version row;
	uint64_t number;

	view_take(&key, s->prefix);
	if (number_decode(key, 20, &number) || row_version_decode(value, &row))
		return row_damaged(s->e, "a version");
	if (row.save_id != s->save_id)
		return 0;
	s->number = number;
	return SETTLE_FOUND;
}

int slot_settle(struct bundles *bundles, struct view tenant, struct view bundle, uint64_t save_id, uint64_t kept,
		uint64_t deadline_ns, uint64_t *ret_number, struct error *e)
{
	CHECK_MAGIC(bundles, BUNDLES_MAGIC);
	struct place place;
	int r = place_init(tenant, bundle, &place, e);

	if (r)
		return r;
	const struct row_key rows = rows_prefix('s', &place);
	struct settling s = { .bundles = bundles,
			      .place = &place,
			      .save_id = save_id,
			      .deadline_ns = deadline_ns,
			      .prefix = rows.len,
			      .e = e };
	const struct row_key versions = rows_prefix('v', &place);
	struct row_bundle row;

	r = row_read_bundle(bundles, &place, &row, deadline_ns, e);
	if (r >= 0 && kept && kept < row.floor) /* put there a tombstone, and it would look as if it had been burned */
		return error_set(e, -ERR_EDELETED,
				 "number %" PRIu64 " of %s was settled and deleted before a successor came", kept,
				 place.prefix);
	r = r < 0 ? r : kept ? settle_number(&s, kept) : 0;
	if (!r && !s.number)
		r = rows_each(bundles, row_key_view(&rows), (struct view){ 0 }, settle_row, &s, deadline_ns, e);
	if (!r && !s.number) /* who asks may have missed that it was published, and under which number */
		r = rows_each(bundles, row_key_view(&versions), (struct view){ 0 }, find_published, &s, deadline_ns, e);
	if (r == SETTLE_FOUND)
		r = 0;
	if (!r)
		*ret_number = s.number;
	return r;
}
