/*
 * bundle/index.c: makes the index say what the store holds.
 *
 * A transaction on the bundle's row is begun before the root key is read, and everybody who changes what lies under a root key
 * changes the bundle's row before and after. So a row that was decided from an older look is refused (docs/formats.md, 7 and 8).
 */
#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "bundle/inside.h"

/* A version's row as its root has it. */
static struct row_version row_of_root(const struct record_head *head, const struct rec_root *root)
{
	return (struct row_version){
		.step = root->step,
		.n_items = root->n_items,
		.bytes = root->bytes,
		.stored_bytes = root->stored_bytes,
		.save_id = head->save_id,
		.epoch = head->epoch,
		.state = ROW_LIVE,
		.attributes = root->attributes,
	};
}

/*
 * The root is there and has no row yet. In a rebuild nobody knows any more who was its child, nor whose child that was: what lies between
 * a version and one whose packs it names may be deleted, or damaged. So whoever is there then may be named by others.
 */
static int add_version(struct bundles *bundles, struct change *change, const struct place *place,
		       const struct root_object *object)
{
	const uint64_t number = object->head.number;
	const struct row_key key = version_row_key(place, number), before = before_row_key(place, number);
	struct row_version row = row_of_root(&object->head, &object->root);
	int r = bundles->half_rebuilt ? meta_txn_delete(change->req, row_key_view(&before)) : 0;

	row.shared = bundles->half_rebuilt;
	change->row.n_versions++;
	if (number > change->row.latest)
		change->row.latest = number;
	return r ? r : change_put_version(change, &key, &row);
}

struct latest {
	size_t prefix;
	uint64_t but, highest;
};

static int find_latest(void *arg, struct view key, struct view value)
{
	struct latest *latest = arg;
	uint64_t number;

	view_take(&key, latest->prefix);
	if (number_decode(key, 20, &number) == 0 && number != latest->but)
		latest->highest = number; /* they come in ascending order */
	return 0;
}

/* The root is gone for good. */
static int remove_version(struct bundles *bundles, struct change *change, const struct place *place, uint64_t number,
			  uint64_t deadline_ns, struct error *e)
{
	const struct row_key key = version_row_key(place, number), prefix = rows_prefix('v', place);
	struct latest latest = { .prefix = prefix.len, .but = number };
	int r = 0;

	if (change->row.n_versions)
		change->row.n_versions--;
	if (change->row.latest == number) {
		r = rows_each(bundles, row_key_view(&prefix), (struct view){ 0 }, find_latest, &latest, deadline_ns, e);
		change->row.latest = latest.highest;
	}
	if (!r)
		r = readers_forget(bundles, change, place, number, deadline_ns, e);
	return r ? r : meta_txn_delete(change->req, row_key_view(&key));
}

/* Blocks of the parent's packs may be named from here on, so these are not its own any more. */
static int mark_parent(struct bundles *bundles, struct change *change, const struct place *place, uint64_t parent,
		       uint64_t deadline_ns, struct error *e)
{
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	const struct row_key key = version_row_key(place, parent);
	struct row_version row;

	int r = parent ? row_read_version(bundles, place, parent, &bytes, &row, deadline_ns, e) : ROW_ABSENT;
	if (r || row.shared)
		return r < 0 ? r : 0;
	row.shared = 1;
	return change_put_version(change, &key, &row);
}

/* Nothing below the floor exists, whatever lies there. */
static int forget_folded(struct bundles *bundles, struct change *change, const struct place *place, uint64_t number,
			 bool known, uint64_t deadline_ns, struct error *e)
{
	const struct row_key slot = slot_row_key(place, number);
	int r = known ? remove_version(bundles, change, place, number, deadline_ns, e) : 0;

	if (!r)
		r = meta_txn_delete(change->req, row_key_view(&slot));
	return r ? r : change_commit(change, deadline_ns, e);
}

static int try_index(struct bundles *bundles, const struct place *place, uint64_t number, bool settled,
		     enum root_state *ret, uint64_t deadline_ns, struct error *e)
{
	_cleanup_(change_fini) struct change change = { 0 };
	_cleanup_(root_object_fini) struct root_object object = { 0 };
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	const struct row_key slot = slot_row_key(place, number);
	struct row_version row;
	char key[KEY_BYTES];

	int r = change_begin(bundles, place, NULL, &change, deadline_ns, e);
	if (!r)
		r = row_read_version(bundles, place, number, &bytes, &row, deadline_ns, e);
	if (r < 0)
		return r;
	bool known = r == 0;
	if (number < change.row.floor) {
		*ret = ROOT_FOLDED;
		return forget_folded(bundles, &change, place, number, known, deadline_ns, e);
	}
	r = root_read(bundles, place, number, &object, deadline_ns, e);
	if (r)
		return r;
	*ret = object.state;
	bool published = object.state == ROOT_PUBLISHED;
	if (object.state == ROOT_NONE || (published && known && row.state == ROW_DYING))
		return 0; /* not ended yet */

	root_key(place, number, key);
	if (number > change.row.last)
		change.row.last = number;
	r = settled ? 0 : object_settle(bundles, key, view_buf(&object.bytes), deadline_ns, e);
	if (!r && published && !known)
		r = add_version(bundles, &change, place, &object);
	if (!r && published && !known)
		r = mark_parent(bundles, &change, place, object.root.parent, deadline_ns, e);
	if (!r && !published && known)
		r = remove_version(bundles, &change, place, number, deadline_ns, e);
	if (!r)
		r = meta_txn_delete(change.req, row_key_view(&slot));
	return r ? r : change_commit(&change, deadline_ns, e);
}

int index_version(struct bundles *bundles, const struct place *place, uint64_t number, bool settled,
		  enum root_state *ret, uint64_t deadline_ns, struct error *e)
{
	int r = META_CONFLICT;

	for (int i = 0; r == META_CONFLICT; i++) {
		r = change_again(bundles, place, i, e);
		if (!r)
			r = try_index(bundles, place, number, settled, ret, deadline_ns, e);
	}
	return r;
}

struct mending {
	struct bundles *bundles;
	const struct place *place;
	size_t prefix;
	uint64_t deadline_ns;
};

/* One number with a slot's row: open, or published and not indexed, or a deletion that somebody began. */
static void mend_number(struct bundles *bundles, const struct place *place, uint64_t number,
			const struct row_slot *slot, uint64_t deadline_ns)
{
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	enum root_state state;
	struct row_version row;

	if (index_version(bundles, place, number, false, &state, deadline_ns, NULL))
		return;
	if (state == ROOT_NONE)
		(void)slot_settle_dead(bundles, place, number, slot, deadline_ns, NULL);
	if ((state != ROOT_PUBLISHED && state != ROOT_NONE) ||
	    row_read_version(bundles, place, number, &bytes, &row, deadline_ns, NULL) || row.state != ROW_DYING)
		return;
	(void)delete_resume(bundles, place, number, deadline_ns, NULL);
}

static int mend_slot(void *arg, struct view key, struct view value)
{
	const struct mending *m = arg;
	struct row_slot row;
	uint64_t number;

	view_take(&key, m->prefix);
	if (number_decode(key, 20, &number) == 0 && row_slot_decode(value, &row) == 0)
		mend_number(m->bundles, m->place, number, &row, m->deadline_ns);
	return 0;
}

static void mend_rule(struct bundles *bundles, const struct place *place, uint64_t deadline_ns)
{
	struct row_bundle row;

	if (row_read_bundle(bundles, place, &row, deadline_ns, NULL) == 0 && row.pending_rule)
		(void)rule_take(bundles, place, row.pending_rule, deadline_ns, NULL);
}

static int mend_label(void *arg, struct view key, struct view value)
{
	const struct mending *m = arg;
	struct row_label row;

	view_take(&key, m->prefix);
	if (row_label_decode(value, &row) == 0 && row.pending_move)
		(void)label_apply(m->bundles, m->place, key, m->deadline_ns, NULL);
	return 0;
}

void index_mend(struct bundles *bundles, const struct place *place, uint64_t deadline_ns)
{
	const struct row_key slots = rows_prefix('s', place), labels = rows_prefix('l', place);
	struct mending m = { .bundles = bundles, .place = place, .prefix = slots.len, .deadline_ns = deadline_ns };

	(void)rows_each(bundles, row_key_view(&slots), (struct view){ 0 }, mend_slot, &m, deadline_ns, NULL);
	(void)rows_each(bundles, row_key_view(&labels), (struct view){ 0 }, mend_label, &m, deadline_ns, NULL);
	mend_rule(bundles, place, deadline_ns);
}

struct tenant_mending {
	struct bundles *bundles;
	struct view tenant;
	size_t prefix;
	uint64_t deadline_ns;
};

static int mend_tenants_slot(void *arg, struct view key, struct view value)
{
	const struct tenant_mending *m = arg;
	struct row_slot row;
	struct place place;
	uint64_t number;

	view_take(&key, m->prefix);
	const uint8_t *end = memchr(key.ptr, 0, key.len);
	if (!end)
		return 0;
	struct view bundle = view_take(&key, (size_t)(end - key.ptr));
	view_take(&key, 1);
	if (number_decode(key, 20, &number) == 0 && row_slot_decode(value, &row) == 0 &&
	    place_init(m->tenant, bundle, &place, NULL) == 0)
		mend_number(m->bundles, &place, number, &row, m->deadline_ns);
	return 0;
}

void index_mend_tenant(struct bundles *bundles, struct view tenant, uint64_t deadline_ns)
{
	const struct row_key prefix = tenant_prefix('s', tenant);
	struct tenant_mending m = { .bundles = bundles,
				    .tenant = tenant,
				    .prefix = prefix.len,
				    .deadline_ns = deadline_ns };

	(void)rows_each(bundles, row_key_view(&prefix), (struct view){ 0 }, mend_tenants_slot, &m, deadline_ns, NULL);
}
