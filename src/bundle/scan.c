/*
 * bundle/scan.c: one look at everything that lies under a bundle: what lives, and what nothing needs any more.
 *
 * Alive are the packs and segments that a root names, those of a save whose slot has not ended, and those of a version that an open
 * slot has as its parent. An object may go when it is not among these and the save that wrote it has ended, which the root key of its
 * slot says. What belongs to no slot is not understood, and stays; but a pack says itself under which number it was written, and if that
 * has ended, nobody names it any more: its writer was stopped, and went on when its slot had been burned and folded.
 *
 * The store is looked at, not the index. But the index tells whether anything has changed meanwhile: each slot that opens and each
 * version that dies changes the bundle's row. If the row is the same before and after, nothing that is found dead can have been named.
 * Else what has come since is in the index: versions that no list had, and open slots, whose parents live. When they have been looked
 * at, and the row is the same before and after that, all is known that lives at one moment; and whatever is named later is named by a
 * child of these (catch_up()). So a bundle to which somebody saves all the time is swept, too. And what the index has must have a root,
 * which a list may show late. Without the bundle's row nothing tells, so slots of the dead end, by which a row comes to be, and that is
 * all.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "bundle/scan.h"

#define SAVE_ID_DIGITS 16
#define CATCH_UPS_MAX  16 /* looks at the rows of a bundle that changes all the time */

/* What a map says of a key; never NULL. */
static char mark_seen, mark_named;

/* What is known of a save. */
struct saved {
	enum ended ended;
	uint64_t number;
};

static struct view save_view(const uint64_t *save_id)
{
	return view_of(save_id, sizeof(*save_id));
}

void scan_init(struct scan *scan, struct bundles *bundles, const struct place *place, uint64_t deadline_ns,
	       struct error *e)
{
	*scan = (struct scan){ .bundles = bundles,
			       .place = place,
			       .deadline_ns = deadline_ns,
			       .e = e,
			       .numbers_max = SCAN_NUMBERS_MAX };
	map_init(&scan->live);
	map_init(&scan->saves);
	map_init(&scan->parents);
	map_init(&scan->roots);
}

void scan_fini(struct scan *scan)
{
	for (struct map_slot *at = map_first(&scan->saves); at; at = map_next(at))
		free(map_value(at));
	map_fini(&scan->live);
	map_fini(&scan->saves);
	map_fini(&scan->parents);
	map_fini(&scan->roots);
	buf_fini(&scan->dead);
	buf_fini(&scan->segments);
	free(scan->folded);
}

/* @may_lack: nobody is alarmed if it is missing. */
static int keep(struct scan *scan, struct view part, bool may_lack)
{
	if (scan->live.n >= SCAN_LIVE_MAX)
		return error_set(scan->e, -E2BIG, "bundle %.*s has more than %u packs and segments that live",
				 (int)scan->place->bundle.len, (const char *)scan->place->bundle.ptr, SCAN_LIVE_MAX);
	int r = map_put(&scan->live, part, may_lack ? &mark_seen : &mark_named);
	return r == -ENOMEM ? no_memory(scan->e) : 0;
}

static int keep_all(struct scan *scan, struct list_view packs, struct list_view segments, bool may_lack)
{
	struct rec_segment segment;
	struct rec_pack pack;
	int r = 0;

	while (!r && rec_pack_next(&packs, &pack) == 0)
		r = keep(scan, pack.key, may_lack);
	while (!r && rec_segment_next(&segments, &segment) == 0)
		r = keep(scan, segment.key, may_lack);
	return r;
}

/* 0, or -E2BIG: @map has all that it may have of this bundle's numbers. */
static int check_room(struct scan *scan, const struct map *map)
{
	return map->n < scan->numbers_max ?
		       0 :
		       error_set(scan->e, -E2BIG, "bundle %.*s has more than %u numbers that are not folded",
				 (int)scan->place->bundle.len, (const char *)scan->place->bundle.ptr,
				 scan->numbers_max);
}

/* That a slot of it is open counts; else the last of its slots: a successor opens one more for the same save. */
static int note_save(struct scan *scan, uint64_t save_id, uint64_t number, enum ended ended)
{
	struct saved *saved = map_get(&scan->saves, save_view(&save_id));

	if (saved && (ended == ENDED_NOT || (saved->ended != ENDED_NOT && number > saved->number)))
		*saved = (struct saved){ .ended = ended, .number = number };
	if (saved)
		return 0;
	int r = check_room(scan, &scan->saves);
	if (r)
		return r;
	saved = malloc(sizeof(*saved));
	r = saved ? map_put(&scan->saves, save_view(&save_id), saved) : -ENOMEM;

	if (r)
		free(saved);
	else
		*saved = (struct saved){ .ended = ended, .number = number };
	return r == -ENOMEM ? no_memory(scan->e) : 0;
}

/* ---- open slots, by their rows ---- */

static int take_slot_row(void *arg, struct view key, struct view value)
{
	struct scan *scan = arg;
	struct row_slot row;
	uint64_t number;

	view_take(&key, scan->prefix);
	if (number_decode(key, 20, &number) != 0 || row_slot_decode(value, &row) != 0)
		return row_damaged(scan->e, "a slot");
	if (number < scan->lowest)
		scan->lowest = number;
	int r = note_save(scan, row.save_id, number, ENDED_NOT);
	if (!r && row.parent) {
		r = map_put(&scan->parents, save_view(&row.parent), &mark_named);
		r = r == -EEXIST ? 0 : r;
		if (row.parent < scan->lowest)
			scan->lowest = row.parent;
	}
	return r;
}

static int look_at_slot_rows(struct scan *scan)
{
	const struct row_key slots = rows_prefix('s', scan->place);

	scan->prefix = slots.len;
	return rows_each(scan->bundles, row_key_view(&slots), (struct view){ 0 }, take_slot_row, scan,
			 scan->deadline_ns, scan->e);
}

/* ---- numbers ---- */

static int append_key(struct buf *keys, const char *key, struct error *e)
{
	return buf_append(keys, key, strlen(key) + 1) ? no_memory(e) : 0;
}

static int add_dead(struct scan *scan, const char *key, enum ended ended)
{
	uint8_t how = (uint8_t)ended;

	scan->n_dead++;
	return buf_append(&scan->dead, &how, 1) ? no_memory(scan->e) : append_key(&scan->dead, key, scan->e);
}

static void not_understood(struct scan *scan, const char *key)
{
	scan->n_unclear++;
	if (scan->unclear)
		scan->unclear(scan->arg, key);
}

/* A slot without an end whose row is not there: its writer died between the two, or is about to write it. */
static int look_at_slot(struct scan *scan, uint64_t number)
{
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	struct record_head head;
	struct rec_slot rec;
	struct view body;
	char key[KEY_BYTES];

	if (number < scan->lowest)
		scan->lowest = number;
	slot_key(scan->place, number, key);
	int r = object_open(scan->bundles, key, RECORD_SMALL_MAX, &bytes, &head, &body, scan->deadline_ns, scan->e);
	if (r == -ERR_EDAMAGED)
		return 0; /* nothing can be said of it: a rebuild burns it */
	if (!r && (head.kind != RECORD_SLOT || rec_slot_decode(body, &rec) != 0))
		return 0;
	if (r)
		return r;
	const struct row_slot row = { .save_id = head.save_id, .epoch = head.epoch, .lease = rec.lease };
	r = note_save(scan, head.save_id, number, ENDED_NOT);
	if (!r &&
	    head.generation < cluster_generation(scan->bundles->cluster)) /* late: the rebuild has burned the others */
		r = slot_end(scan->bundles, scan->place, number, &row, scan->deadline_ns, scan->e);
	else if (!r)
		r = slot_settle_dead(scan->bundles, scan->place, number, &row, scan->deadline_ns, scan->e);
	scan->n_burned += r == 1;
	return r < 0 ? r : 0;
}

static int add_folded(struct scan *scan, uint64_t number)
{
	if (!(scan->n_folded & (scan->n_folded - 1))) {
		uint64_t *more = reallocarray(scan->folded, scan->n_folded ? 2 * scan->n_folded : 1, sizeof(*more));

		if (!more)
			return no_memory(scan->e);
		scan->folded = more;
	}
	scan->folded[scan->n_folded++] = number;
	return 0;
}

static int look_at_root(struct scan *scan, uint64_t number, enum ended *ret)
{
	_cleanup_(root_object_fini) struct root_object object = { 0 };
	bool pinned = map_get(&scan->parents, save_view(&number)) != NULL;
	int r = root_read(scan->bundles, scan->place, number, &object, scan->deadline_ns, scan->e);

	if (r)
		return r;
	if (object.state == ROOT_NONE) { /* listed, and not shown now */
		*ret = ENDED_NOT;
		scan->moved = true;
		return 0;
	}
	*ret = object.state == ROOT_PUBLISHED ? ENDED_PUBLISHED :
	       object.state == ROOT_DELETED   ? ENDED_DELETED :
						ENDED_BURNED;
	r = check_room(scan, &scan->roots);
	if (r)
		return r;
	if (map_put(&scan->roots, save_view(&number), &mark_seen) == -ENOMEM)
		return no_memory(scan->e);
	r = note_save(scan, object.head.save_id, number, *ret);
	if (object.state == ROOT_PUBLISHED && number < scan->lowest)
		scan->lowest = number;
	if (!r && object.state == ROOT_PUBLISHED)
		return keep_all(scan, object.root.packs, object.root.segments, false);
	if (!r && pinned)
		r = keep_all(scan, object.tomb.packs, object.tomb.segments, true);
	return r ? r : add_folded(scan, number);
}

static int sort_segments(struct scan *scan, enum ended ended, bool has_slot)
{
	const char *end = (const char *)scan->segments.ptr + scan->segments.len;
	int r = 0;

	for (const char *key = (const char *)scan->segments.ptr; !r && key < end; key += strlen(key) + 1) {
		if (map_get(&scan->live, view_str(key + strlen(scan->place->prefix))))
			continue;
		if (ended != ENDED_NOT)
			r = add_dead(scan, key, ended);
		else if (!has_slot)
			not_understood(scan, key);
	}
	scan->segments.len = 0;
	return r;
}

static int finish_number(struct scan *scan)
{
	enum ended ended = ENDED_NOT;
	uint64_t number = scan->number;
	char key[KEY_BYTES];
	int r = 0;

	scan->number = 0;
	if (!number)
		return 0;
	if (number < scan->row.floor) { /* nothing below it exists: late words of somebody who was overtaken */
		ended = ENDED_BURNED;
		root_key(scan->place, number, key);
		if (scan->has_root)
			r = add_dead(scan, key, ended);
		slot_key(scan->place, number, key);
		if (!r && scan->has_slot)
			r = add_dead(scan, key, ended);
	} else if (scan->has_root) {
		r = look_at_root(scan, number, &ended);
	} else if (scan->has_slot) {
		r = look_at_slot(scan, number);
	}
	return r ? r : sort_segments(scan, ended, scan->has_slot);
}

/* SAVE-items-K or SAVE-blocks-K: all that is ours beside a root and a slot. A copy of a root that somebody has put there is not. */
static bool is_segment(const char *name)
{
	const char *kind = name + SAVE_ID_DIGITS;

	if (strspn(name, "0123456789abcdef") != SAVE_ID_DIGITS)
		return false;
	size_t len = !strncmp(kind, "-items-", 7) ? 7 : !strncmp(kind, "-blocks-", 8) ? 8 : 0;
	const char *part = kind + len;
	return len && *part && !part[strspn(part, "0123456789")];
}

static int take_version_key(void *arg, const char *key, char *after)
{
	struct scan *scan = arg;
	struct view rest = view_str(key + scan->prefix), digits = view_take(&rest, 20);
	uint64_t number;

	if (number_decode(digits, 20, &number) != 0 || !number || !view_equal(view_take(&rest, 1), view_str("/"))) {
		not_understood(scan, key);
		return 0;
	}
	if (number != scan->number) {
		int r = finish_number(scan);
		if (r)
			return r;
		scan->number = number;
		scan->has_root = scan->has_slot = false;
	}
	if (view_equal(rest, view_str("root")))
		scan->has_root = true;
	else if (view_equal(rest, view_str("slot")))
		scan->has_slot = true;
	else if (is_segment((const char *)rest.ptr))
		return append_key(&scan->segments, key, scan->e);
	else
		not_understood(scan, key);
	return 0;
}

/* ---- packs, and the rest ---- */

/* A tombstone stays as long as packs of its save do, which others name: without it nobody would know that they may go one day. */
static void keep_tombstone(struct scan *scan, const struct saved *saved)
{
	if (saved && saved->ended != ENDED_PUBLISHED && saved->number < scan->lowest)
		scan->lowest = saved->number;
}

/* Is it below the floor, or under a tombstone? */
static bool has_ended(const struct scan *scan, uint64_t number)
{
	bool ended = number < scan->row.floor;

	for (size_t i = 0; !ended && i < scan->n_folded; i++)
		ended = scan->folded[i] == number;
	return ended;
}

/*
 * Of a save that nobody knows: 1 if it was written under a number that has ended without a version: it was folded, or a rebuild burned it
 * that could not read whose slot it was; 0: it does not say so.
 */
static int is_late(struct scan *scan, const char *key, uint64_t save_id)
{
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	char node[PACK_NODE_BYTES];
	struct record_head head;
	int r = object_range(scan->bundles, key, 0, PACK_HEAD_BYTES, &bytes, scan->deadline_ns, scan->e);

	if (r)
		return r == -ENOENT ? 0 : r;
	if (bytes.len < PACK_HEAD_BYTES || pack_head_decode(bytes.ptr, &head, node, NULL))
		return 0;
	return head.save_id == save_id && head.number && has_ended(scan, head.number);
}

static int take_pack_key(void *arg, const char *key, char *after)
{
	struct scan *scan = arg;
	const struct view part = view_str(key + strlen(scan->place->prefix));
	uint64_t save_id;
	const struct saved *saved = save_of_key(key, &save_id) ? NULL : map_get(&scan->saves, save_view(&save_id));

	if (map_remove(&scan->live, part)) {
		keep_tombstone(scan, saved);
		return map_put(&scan->live, part, &mark_seen) ? no_memory(scan->e) : 0;
	}
	if (saved)
		return saved->ended != ENDED_NOT ? add_dead(scan, key, saved->ended) : 0;
	int late = save_of_key(key, &save_id) ? 0 : is_late(scan, key, save_id);
	if (late > 0)
		return add_dead(scan, key, ENDED_DELETED); /* not at once: a wrong guess would cost a version */
	if (!late)
		not_understood(scan, key);
	return late;
}

/* Keys beside v/ and p/: floors, labels' moves and rules are ours. */
static int take_other_key(void *arg, const char *key, char *after)
{
	struct scan *scan = arg;
	struct view rest = view_str(key + strlen(scan->place->prefix));
	uint64_t number;

	if (rest.len > 2 && rest.ptr[1] == '/' && (rest.ptr[0] == 'v' || rest.ptr[0] == 'p')) {
		(void)snprintf(after, BACKEND_KEY_MAX + 1, "%s%c0", scan->place->prefix, rest.ptr[0]);
		return KEYS_LEAP;
	}
	if (rest.len > 2 && memcmp(rest.ptr, "l/", 2) == 0)
		return 0;
	if (rest.len == 22 && memcmp(rest.ptr, "r/", 2) == 0)
		return 0;
	if (rest.len == 26 && memcmp(rest.ptr, "floor/", 6) == 0) {
		view_take(&rest, 6);
		if (number_decode(rest, 20, &number) == 0) {
			if (number < scan->row.floor)
				return add_dead(scan, key, ENDED_BURNED);
			scan->floor_found = number > scan->floor_found ? number : scan->floor_found;
			return 0;
		}
	}
	not_understood(scan, key);
	return 0;
}

/* ---- packs that are missing ---- */

/* 1: version @number lives, and names pack @part; 0. Who deletes it marks its row, and puts a tombstone, before a pack goes. */
static int names_pack(struct scan *scan, uint64_t number, struct view part)
{
	_cleanup_(root_object_fini) struct root_object object = { 0 };
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	struct row_version row = { 0 };
	struct rec_pack pack;
	int r = row_read_version(scan->bundles, scan->place, number, &bytes, &row, scan->deadline_ns, scan->e);

	if (r < 0 || row.state == ROW_DYING)
		return r < 0 ? r : 0;
	r = root_read(scan->bundles, scan->place, number, &object, scan->deadline_ns, scan->e);
	if (r || object.state != ROOT_PUBLISHED)
		return r;
	for (struct list_view packs = object.root.packs; rec_pack_next(&packs, &pack) == 0;)
		if (view_equal(pack.key, part))
			return 1;
	return 0;
}

/* The same of any version: first of its own save's, which most often is the one. */
static int is_named_still(struct scan *scan, const char *key, struct view part)
{
	uint64_t save_id, number;
	const struct saved *own = save_of_key(key, &save_id) ? NULL : map_get(&scan->saves, save_view(&save_id));
	int r = own ? names_pack(scan, own->number, part) : 0;

	for (struct map_slot *at = map_first(&scan->roots); !r && at; at = map_next(at)) {
		memcpy(&number, map_key(at).ptr, sizeof(number));
		if (!has_ended(scan, number) && (!own || number != own->number))
			r = names_pack(scan, number, part);
	}
	return r;
}

/* 1: no list had it, the store does not show it, and a version that lives names it; 0. Only for what is named a late name is waited for. */
static int is_pack_lost(struct scan *scan, const char *key, struct view part)
{
	_cleanup_(cleanup_backend_call_free) struct backend_call *call = backend_call_new(BACKEND_HEAD, key);

	if (!call)
		return no_memory(scan->e);
	for (int i = 0; i < 2; i++) {
		int r = backend_call_run(scan->bundles->backend, &call, scan->deadline_ns, NULL);
		if (r != -ENOENT)
			return r ? error_set(scan->e, r, "cannot look for %s", key) : 0;
		r = is_named_still(scan, key, part);
		if (r <= 0)
			return r;
		call->known = true; /* it is asked for until it must be shown */
	}
	return 1;
}

/* Also in a bundle that changes all the time: what was deleted meanwhile is told from what was lost by who names it. */
static int look_for_missing(struct scan *scan)
{
	for (struct map_slot *at = map_first(&scan->live); at; at = map_next(at)) {
		struct view part = map_key(at);
		char key[KEY_BYTES];

		if (map_value(at) == &mark_seen || part.len < 2 || part.ptr[0] != 'p')
			continue;
		if ((size_t)snprintf(key, sizeof(key), "%s%.*s", scan->place->prefix, (int)part.len,
				     (const char *)part.ptr) >= sizeof(key))
			continue;
		int r = is_pack_lost(scan, key, part);
		if (r < 0)
			return r;
		if (r) {
			scan->n_missing++;
			(void)snprintf(scan->missing, sizeof(scan->missing), "%s", key);
		}
	}
	return 0;
}

/* ---- rows ---- */

/*
 * A version that was in no list. It came meanwhile; or a shared file system lists its name some seconds after another node has made it: if
 * it does not show the root either, nothing may be concluded from what else a list was without.
 */
static int meet_version(struct scan *scan, uint64_t number)
{
	_cleanup_(root_object_fini) struct root_object object = { 0 };
	int r = root_read(scan->bundles, scan->place, number, &object, scan->deadline_ns, scan->e);

	if (r)
		return r;
	scan->behind = true;
	if (object.state == ROOT_NONE) {
		scan->moved = true;
		root_key(scan->place, number, scan->absent);
	}
	if (object.state != ROOT_PUBLISHED) /* it is being deleted */
		return 0;
	if (number < scan->lowest)
		scan->lowest = number;
	r = check_room(scan, &scan->roots);
	if (!r && map_put(&scan->roots, save_view(&number), &mark_seen) == -ENOMEM)
		r = no_memory(scan->e);
	if (!r)
		r = note_save(scan, object.head.save_id, number, ENDED_PUBLISHED);
	return r ? r : keep_all(scan, object.root.packs, object.root.segments, false);
}

/* Whoever has a row in the index has a root. */
static int look_for_row(void *arg, struct view key, struct view value)
{
	struct scan *scan = arg;
	uint64_t number;

	view_take(&key, scan->prefix);
	if (number_decode(key, 20, &number) != 0)
		return 0;
	if (!map_get(&scan->roots, save_view(&number)))
		return meet_version(scan, number);
	if (has_ended(scan, number)) { /* a tombstone that came late: the row goes, too */
		enum root_state state;

		scan->moved = true;
		return index_version(scan->bundles, scan->place, number, false, &state, scan->deadline_ns, scan->e);
	}
	return 0;
}

static int compare_rows(struct scan *scan)
{
	const struct row_key versions = rows_prefix('v', scan->place);

	scan->prefix = versions.len;
	return rows_each(scan->bundles, row_key_view(&versions), (struct view){ 0 }, look_for_row, scan,
			 scan->deadline_ns, scan->e);
}

/* ---- what came meanwhile ---- */

/* A version may be deleted below a slot that has it as its parent: what it named stays. */
static int keep_parent(struct scan *scan, uint64_t number)
{
	_cleanup_(root_object_fini) struct root_object object = { 0 };
	int r = root_read(scan->bundles, scan->place, number, &object, scan->deadline_ns, scan->e);

	if (!r && object.state == ROOT_PUBLISHED)
		r = keep_all(scan, object.root.packs, object.root.segments, true);
	if (!r && object.state == ROOT_DELETED)
		r = keep_all(scan, object.tomb.packs, object.tomb.segments, true);
	return r;
}

static int look_at_rows(struct scan *scan)
{
	int r = look_at_slot_rows(scan);

	for (struct map_slot *at = map_first(&scan->parents); !r && at; at = map_next(at)) {
		uint64_t number;

		memcpy(&number, map_key(at).ptr, sizeof(number));
		r = keep_parent(scan, number);
	}
	return r ? r : compare_rows(scan);
}

/* Takes from the dead what is named by now, and what was written by a save that goes on under another number. What stays keeps its number. */
static void spare_named(struct scan *scan)
{
	const char *at = (const char *)scan->dead.ptr, *end = at + scan->dead.len;
	size_t prefix = strlen(scan->place->prefix), kept = 0;

	for (size_t len; at < end; at += len) {
		const char *key = at + 1;
		uint64_t save_id;
		const struct saved *saved = save_of_key(key, &save_id) ? NULL :
									 map_get(&scan->saves, save_view(&save_id));

		len = 1 + strlen(key) + 1;
		if (map_get(&scan->live, view_str(key + prefix))) {
			keep_tombstone(scan, saved);
			scan->n_dead--;
		} else if (saved && saved->ended == ENDED_NOT) {
			scan->n_dead--;
		} else {
			keep_tombstone(scan, saved);
			memmove(scan->dead.ptr + kept, at, len);
			kept += len;
		}
	}
	scan->dead.len = kept;
}

/* Until what is known to live is all that lived at one moment. What was not understood beside changes may be of those. */
static int catch_up(struct scan *scan)
{
	struct row_bundle row;

	for (int i = 0; i < CATCH_UPS_MAX; i++) {
		int r = row_read_bundle(scan->bundles, scan->place, &row, scan->deadline_ns, scan->e);

		if (r < 0)
			return r;
		if (row.changes == scan->row.changes || scan->moved) {
			spare_named(scan);
			scan->n_unclear = scan->behind ? 0 : scan->n_unclear;
			return 0;
		}
		scan->moved = !scan->has_row;
		scan->behind = true;
		scan->row.changes = row.changes;
		r = look_at_rows(scan);
		if (r)
			return r;
	}
	scan->moved = true;
	return 0;
}

/* ---- the whole ---- */

static int walk(struct scan *scan, const char *below, keys_fn each)
{
	char prefix[KEY_BYTES];

	(void)snprintf(prefix, sizeof(prefix), "%s%s", scan->place->prefix, below);
	scan->prefix = strlen(prefix);
	return keys_each(scan->bundles, prefix, each, scan, scan->deadline_ns, scan->e);
}

int scan_run(struct scan *scan)
{
	int r = row_read_bundle(scan->bundles, scan->place, &scan->row, scan->deadline_ns, scan->e);
	if (r < 0)
		return r;
	scan->has_row = r == 0;
	scan->lowest = scan->row.last + 1;
	r = look_at_slot_rows(scan);
	if (!r)
		r = walk(scan, "v/", take_version_key);
	if (!r)
		r = finish_number(scan);
	if (!r)
		r = walk(scan, "p/", take_pack_key);
	if (!r)
		r = walk(scan, "", take_other_key);
	if (!r)
		r = compare_rows(scan);
	if (!r)
		r = catch_up(scan);
	if (!r && !scan->moved)
		r = look_for_missing(scan);
	if (r < 0)
		return r;
	if (scan->moved)
		return SCAN_MOVED;
	return scan->has_row ? 0 : SCAN_NO_ROW;
}
