/*
 * bundle/label.c: labels. A move of a label is an object of its own, l/<label>/<k>; the highest k that counts says where the label points.
 *
 * A move is announced in the label's row, then put if absent, then taken over into the row. So whoever finds a row with a move under
 * way knows the one key to look at; and whoever must know (a deletion, the next move) puts a move of its own under that key,
 * to where the label points now, and of the two exactly one wins.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "bundle/inside.h"

/* What a move's object says. 0, or ROW_ABSENT: it is not there. */
static int read_move(struct bundles *bundles, const struct place *place, struct view label, uint64_t move,
		     uint64_t *ret_number, uint64_t *ret_id, uint64_t deadline_ns, struct error *e)
{
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	struct error missing = { 0 };
	struct record_head head;
	struct rec_label rec;
	struct view body;
	char key[KEY_BYTES];

	label_key(place, label, move, key);
	int r = object_open(bundles, key, RECORD_SMALL_MAX, &bytes, &head, &body, deadline_ns, &missing);
	if (r == -ENOENT)
		return ROW_ABSENT;
	if (r)
		return error_set(e, r, "%s", missing.text);
	if (head.kind != RECORD_LABEL || head.number != move || rec_label_decode(body, &rec) != 0 ||
	    !view_equal(rec.label, label) || !view_equal(rec.bundle, place->bundle) ||
	    !view_equal(rec.tenant, place->tenant))
		return error_set(e, -ERR_EDAMAGED, "%s: it is not the move that its key says", key);
	r = object_settle(bundles, key, view_buf(&bytes), deadline_ns, e);
	if (r)
		return r;
	*ret_number = rec.number;
	*ret_id = head.save_id;
	return 0;
}

/* 0, BACKEND_EXISTS, error. */
static int put_move(struct bundles *bundles, const struct place *place, struct view label, uint64_t move,
		    uint64_t number, uint64_t id, uint64_t deadline_ns, struct error *e)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	const struct rec_label rec = { .tenant = place->tenant,
				       .bundle = place->bundle,
				       .label = label,
				       .number = number };
	const struct record_head head = { .kind = RECORD_LABEL,
					  .save_id = id,
					  .number = move,
					  .generation = cluster_generation(bundles->cluster) };
	char key[KEY_BYTES];

	if (rec_label_encode(&rec, &body))
		return no_memory(e);
	label_key(place, label, move, key);
	return object_put(bundles, key, &head, view_buf(&body), true, deadline_ns, e);
}

/* Is there a version @number to point at? 0, -ENOENT, -ERR_EDELETED, error. */
static int check_target(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t deadline_ns,
			struct error *e)
{
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	struct row_version row;

	if (!number)
		return 0; /* a removal */
	int r = row_read_version(bundles, place, number, &bytes, &row, deadline_ns, e);
	if (r == ROW_ABSENT)
		return error_set(e, -ENOENT, "bundle %.*s has no version %" PRIu64, (int)place->bundle.len,
				 (const char *)place->bundle.ptr, number);
	if (!r && row.state == ROW_DYING)
		return error_set(e, -ERR_EDELETED, "version %" PRIu64 " is being deleted", number);
	return r;
}

static int try_apply(struct bundles *bundles, const struct place *place, struct view label, uint64_t deadline_ns,
		     struct error *e)
{
	_cleanup_(change_fini) struct change change = { 0 };
	const struct row_key key = label_row_key(place, label);
	struct row_label row;
	uint64_t number, id;

	int r = change_begin(bundles, place, NULL, &change, deadline_ns, e);
	if (!r)
		r = row_read_label(bundles, place, label, &row, deadline_ns, e);
	if (r)
		return r == ROW_ABSENT ? 0 : r;
	if (!row.pending_move)
		return 0;
	r = read_move(bundles, place, label, row.pending_move, &number, &id, deadline_ns, e);
	if (r)
		return r == ROW_ABSENT ? 0 : r;

	r = check_target(bundles, place, number, deadline_ns, NULL);
	bool counts = r == 0;
	if (r && r != -ENOENT && r != -ERR_EDELETED)
		return error_set(e, r, "cannot see whether the label's version is there");
	const struct row_label now = { .number = counts ? number : row.number, .move = row.pending_move };
	r = change_put_label(&change, &key, &now);
	return r ? r : change_commit(&change, deadline_ns, e);
}

int label_apply(struct bundles *bundles, const struct place *place, struct view label, uint64_t deadline_ns,
		struct error *e)
{
	int r = META_CONFLICT;

	for (int i = 0; r == META_CONFLICT; i++) {
		r = change_again(bundles, place, i, e);
		if (!r)
			r = try_apply(bundles, place, label, deadline_ns, e);
	}
	return r;
}

static uint64_t random_id(struct bundles *bundles)
{
	uint64_t id;

	bundles->env->ops->random(bundles->env, &id, sizeof(id));
	return id;
}

int label_settle(struct bundles *bundles, const struct place *place, struct view label, uint64_t deadline_ns,
		 struct error *e)
{
	struct row_label row;
	int r = row_read_label(bundles, place, label, &row, deadline_ns, e);

	if (r)
		return r == ROW_ABSENT ? 0 : r;
	if (!row.pending_move)
		return 0;
	r = put_move(bundles, place, label, row.pending_move, row.number, random_id(bundles), deadline_ns, e);
	return r < 0 ? r : label_apply(bundles, place, label, deadline_ns, e);
}

/* Where the highest of @moves that counts points. */
static int find_counting(struct bundles *bundles, const struct place *place, struct view label, const uint64_t *moves,
			 size_t n, uint64_t *ret_number, uint64_t deadline_ns, struct error *e)
{
	for (size_t i = n; i > 0; i--) {
		struct error why = { 0 };
		uint64_t number, id;
		int r = read_move(bundles, place, label, moves[i - 1], &number, &id, deadline_ns, e);

		if (r < 0)
			return r;
		if (!r)
			r = check_target(bundles, place, number, deadline_ns, &why);
		if (!r) {
			*ret_number = number;
			return 0;
		}
		if (r < 0 && r != -ENOENT)
			return error_set(e, r, "%s", why.text);
	}
	*ret_number = 0;
	return 0;
}

int label_rebuild(struct bundles *bundles, const struct place *place, struct view label, const uint64_t *moves,
		  size_t n, bool *ret_set, uint64_t deadline_ns, struct error *e)
{
	const struct row_key key = label_row_key(place, label);
	struct row_label row = { .move = moves[n - 1] };
	int found = find_counting(bundles, place, label, moves, n, &row.number, deadline_ns, e);
	int r = found && found != -ERR_EDAMAGED ? found : META_CONFLICT;

	/* Damaged: where it pointed is not known. It is not set then, and its next move comes after the damaged one. */
	for (int i = 0; r == META_CONFLICT; i++) {
		_cleanup_(change_fini) struct change change = { 0 };

		r = change_again(bundles, place, i, e);
		if (!r)
			r = change_begin(bundles, place, NULL, &change, deadline_ns, e);
		if (!r)
			r = change_put_label(&change, &key, &row);
		if (!r)
			r = change_commit(&change, deadline_ns, e);
	}
	if (!r)
		*ret_set = row.number != 0;
	return r ? r : found;
}

struct move {
	struct view label;
	uint64_t expect, number, id;
	uint64_t k; /* out: of announce() */
};

enum { MOVE_NOTHING = 2 }; /* of announce(): the label points there already */

/* Writes into the label's row which move is coming. 0, META_CONFLICT, MOVE_NOTHING, error. */
static int announce(struct bundles *bundles, const struct place *place, struct move *move, uint64_t deadline_ns,
		    struct error *e)
{
	_cleanup_(change_fini) struct change change = { 0 };
	const struct row_key key = label_row_key(place, move->label);
	struct row_label row;

	int r = change_begin(bundles, place, NULL, &change, deadline_ns, e);
	if (!r)
		r = row_read_label(bundles, place, move->label, &row, deadline_ns, e);
	if (r < 0)
		return r;
	if (row.pending_move) {
		r = label_settle(bundles, place, move->label, deadline_ns, e);
		return r ? r : META_CONFLICT; /* and look again */
	}
	if (move->expect != UINT64_MAX && row.number != move->expect)
		return error_set(e, -EAGAIN, "label %.*s of %.*s is at %" PRIu64 ", not at %" PRIu64 " (0: not set)",
				 (int)move->label.len, (const char *)move->label.ptr, (int)place->bundle.len,
				 (const char *)place->bundle.ptr, row.number, move->expect);
	r = check_target(bundles, place, move->number, deadline_ns, e);
	if (r)
		return r;
	if (row.number == move->number)
		return MOVE_NOTHING;

	move->k = row.pending_move = row.move + 1;
	row.pending_number = move->number;
	r = change_put_label(&change, &key, &row);
	return r ? r : change_commit(&change, deadline_ns, e);
}

/* One try. META_CONFLICT: another move came first. */
static int try_move(struct bundles *bundles, const struct place *place, struct move *move, uint64_t deadline_ns,
		    struct error *e)
{
	uint32_t generation = cluster_generation(bundles->cluster);
	uint64_t number, id;
	int r = announce(bundles, place, move, deadline_ns, e);

	if (r)
		return r;
	r = put_move(bundles, place, move->label, move->k, move->number, move->id, deadline_ns, e);
	if (r < 0)
		return r; /* it may be there or not: the row says where to look */
	r = label_apply(bundles, place, move->label, deadline_ns, e);
	if (r)
		return r;
	if (generation !=
	    cluster_generation(bundles->cluster)) /* a rebuild may have come before the object: announce it again */
		return META_CONFLICT;
	r = read_move(bundles, place, move->label, move->k, &number, &id, deadline_ns, e);
	if (r)
		return r;
	return id == move->id ? check_target(bundles, place, move->number, deadline_ns, e) : META_CONFLICT;
}

int label_set(struct bundles *bundles, struct view tenant, struct view bundle, struct view label, uint64_t expect,
	      uint64_t number, uint64_t deadline_ns, struct error *e)
{
	CHECK_MAGIC(bundles, BUNDLES_MAGIC);
	struct move move = { .label = label, .expect = expect, .number = number, .id = random_id(bundles) };
	struct place place;

	int r = place_init(tenant, bundle, &place, e);
	if (!r)
		r = label_name_check(label, e);
	if (r)
		return r;
	index_mend(bundles, &place, deadline_ns);
	r = META_CONFLICT;
	for (int i = 0; r == META_CONFLICT; i++) {
		r = change_again(bundles, &place, i, e);
		if (!r)
			r = try_move(bundles, &place, &move, deadline_ns, e);
	}
	return r == MOVE_NOTHING ? 0 : r;
}
