/*
 * bundle/collect.c: frees what nothing needs: packs and segments of versions that were deleted and of saves that were burned, and
 * tombstones below the floor.
 *
 * What a pass finds dead it condemns; what a pass before had condemned, and is still found dead, goes: at once if no version ever named
 * it, else when a reader's lease has passed. The condemned are kept in memory: who starts anew waits anew. No counts of references.
 *
 * A floor says that no number below it exists. It is put only where all numbers below have ended and nothing of theirs is left, first in
 * the store and then in the bundle's row; from there on their slots and tombstones are dead objects like others, and so is a root
 * that somebody who was overtaken puts there later.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/log.h"
#include "base/point.h"
#include "bundle/scan.h"

#define CONDEMNED_MAX	  65536u /* remembered at a time, over all bundles; the others wait for a later pass */
#define HOLD_FRESH_MS	  1000	 /* so long what was seen of the store's owner counts for deletions */
#define ABSENT_MAX	  1024	 /* roots that are missed, one of a bundle */
#define FOLD_MIN	  8	 /* tombstones that are worth a floor, in the background */
#define SCAN_TRIES	  4 /* of a bundle that changes too fast, or is listed late; then a later round looks again */
#define UNCLEAR_BYTES_MAX 65536u /* of names of a bundle that are told */

struct condemned {
	uint64_t since_ns;
	bool again; /* found dead in this pass, too */
};

void condemned_fini(struct bundles *bundles)
{
	for (struct map_slot *at = map_first(&bundles->condemned); at; at = map_next(at))
		free(map_value(at));
	map_fini(&bundles->condemned);
	map_init(&bundles->condemned);
}

/* ---- deleting ---- */

static int object_size(struct bundles *bundles, const char *key, uint64_t *ret, uint64_t deadline_ns)
{
	_cleanup_(cleanup_backend_call_free) struct backend_call *call = backend_call_new(BACKEND_HEAD, key);
	int r = call ? backend_call_run(bundles->backend, &call, deadline_ns, NULL) : -ENOMEM;

	*ret = r ? 0 : call->req.size;
	return r;
}

/* The store must still be this cluster's while its objects go; so much later than a look they may. */
static int hold(struct collecting *c)
{
	uint64_t now_ns = env_now(c->bundles->env);

	if (c->held_ns && now_ns - c->held_ns < HOLD_FRESH_MS * NS_PER_MS)
		return 0;
	int r = cluster_hold(c->bundles->cluster, c->deadline_ns, c->e);
	if (!r)
		c->held_ns = now_ns;
	return r;
}

static int free_object(struct collecting *c, const char *key)
{
	uint64_t bytes;
	int r = hold(c);

	if (r)
		return r;
	(void)object_size(c->bundles, key, &bytes, c->deadline_ns); /* for words alone */
	r = object_delete(c->bundles, key, c->deadline_ns, c->e);
	if (r)
		return r;
	point_reached(POINT_COLLECT_DELETED);
	logm(LOG_DEBUG, "collect.freed", "key=%s bytes=%" PRIu64, key, bytes);
	c->counts.freed++;
	c->counts.freed_bytes += bytes;
	return c->pause_ns ? fiber_sleep_until(env_now(c->bundles->env) + c->pause_ns) : 0;
}

/* 0: it went, or has to wait; then *ret_wait says how. */
static int judge(struct collecting *c, const char *key, enum ended ended, int *ret_wait)
{
	struct bundles *bundles = c->bundles;
	struct condemned *known = map_get(&bundles->condemned, view_str(key));
	uint64_t now_ns = env_now(bundles->env);

	if (!known) {
		if (bundles->condemned.n >= CONDEMNED_MAX)
			return 0;
		known = malloc(sizeof(*known));
		if (!known || map_put(&bundles->condemned, view_str(key), known)) {
			free(known);
			return no_memory(c->e);
		}
		*known = (struct condemned){ .since_ns = now_ns, .again = true };
		c->counts.found++;
		*ret_wait = ended == ENDED_BURNED || *ret_wait == COLLECT_AGAIN ? COLLECT_AGAIN : COLLECT_LATER;
		return 0;
	}
	known->again = true;
	if (ended != ENDED_BURNED && now_ns - known->since_ns < bundles->grace_ns) {
		*ret_wait = *ret_wait ? *ret_wait : COLLECT_LATER;
		return 0;
	}
	int r = free_object(c, key);
	if (!r) /* not @known: an operator's collection and a round may meet here, and the other one was first */
		free(map_remove(&bundles->condemned, view_str(key)));
	return r;
}

/* What was condemned in this bundle and is not found dead any more is forgotten. */
static void forget_reprieved(struct collecting *c)
{
	struct map_slot *next;

	for (struct map_slot *at = map_first(&c->bundles->condemned); at; at = next) {
		struct condemned *known = map_value(at);
		struct view key = map_key(at), prefix = view_str(c->place->prefix);

		next = map_next(at);
		if (key.len < prefix.len || memcmp(key.ptr, prefix.ptr, prefix.len) != 0)
			continue;
		if (!known->again) {
			map_remove(&c->bundles->condemned, key);
			free(known);
		} else {
			known->again = false;
		}
	}
}

static int judge_all(struct collecting *c, const struct scan *scan, int *ret_wait)
{
	const char *end = (const char *)scan->dead.ptr + scan->dead.len;
	int r = 0;

	if (scan->n_dead)
		point_reached(POINT_COLLECT_FOUND);
	for (const char *at = (const char *)scan->dead.ptr; !r && at < end; at += 1 + strlen(at + 1) + 1)
		r = judge(c, at + 1, (enum ended) * at, ret_wait);
	forget_reprieved(c);
	return r;
}

/* ---- floors ---- */

/* Into the row. SCAN_MOVED: the bundle has changed since @changes. */
static int index_floor(struct collecting *c, uint64_t floor, const uint64_t *changes)
{
	_cleanup_(change_fini) struct change change = { 0 };
	int r = change_begin(c->bundles, c->place, NULL, &change, c->deadline_ns, c->e);

	if (r)
		return r;
	if (changes && change.row.changes != *changes)
		return SCAN_MOVED;
	if (floor > change.row.floor)
		change.row.floor = floor;
	if (change.row.last < floor - 1)
		change.row.last = floor - 1;
	r = change_commit(&change, c->deadline_ns, c->e);
	return r == META_CONFLICT ? SCAN_MOVED : r;
}

static int put_floor(struct collecting *c, uint64_t floor)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	const struct rec_floor rec = { .tenant = c->place->tenant, .bundle = c->place->bundle };
	const struct record_head head = { .kind = RECORD_FLOOR,
					  .number = floor,
					  .generation = cluster_generation(c->bundles->cluster) };
	char key[KEY_BYTES];

	if (rec_floor_encode(&rec, &body))
		return no_memory(c->e);
	floor_key(c->place, floor, key);
	int r = object_put(c->bundles, key, &head, view_buf(&body), true, c->deadline_ns, c->e);
	return r < 0 ? r : 0;
}

/* 0: there was nothing to fold; COLLECT_AGAIN. */
static int fold(struct collecting *c, const struct scan *scan)
{
	size_t n = 0;

	if (scan->floor_found > scan->row.floor) { /* whoever put it died before the row said so */
		int r = index_floor(c, scan->floor_found, NULL);

		return r < 0 ? r : COLLECT_AGAIN;
	}
	while (n < scan->n_folded && scan->folded[n] < scan->lowest)
		n++;
	if (scan->lowest <= scan->row.floor || n < (c->thorough ? 1 : FOLD_MIN))
		return 0;
	int r = cluster_hold(c->bundles->cluster, c->deadline_ns, c->e);
	if (!r)
		r = put_floor(c, scan->lowest);
	if (r)
		return r;
	point_reached(POINT_FLOOR_PUT);
	r = index_floor(c, scan->lowest, &scan->row.changes);
	if (r < 0)
		return r;
	point_reached(POINT_FLOOR_INDEXED);
	c->counts.folded += r ? 0 : n;
	return COLLECT_AGAIN;
}

static int highest_floor(void *arg, const char *key, char *after)
{
	uint64_t number, *highest = arg;
	const char *digits = strrchr(key, '/') + 1;

	if (number_decode(view_str(digits), 20, &number) == 0 && number > *highest)
		*highest = number;
	return 0;
}

int floor_read(struct bundles *bundles, const struct place *place, uint64_t deadline_ns, uint64_t *ret, struct error *e)
{
	char prefix[KEY_BYTES];
	uint64_t highest = 0;

	(void)snprintf(prefix, sizeof(prefix), "%sfloor/", place->prefix);
	int r = keys_each(bundles, prefix, highest_floor, &highest, deadline_ns, e);
	if (!r)
		*ret = highest;
	return r;
}

/* ---- a pass ---- */

/* So that a round passes by what has not changed since. A row that has changed meanwhile is looked at again. */
static int mark_collected(struct collecting *c, const struct scan *scan)
{
	_cleanup_(change_fini) struct change change = { 0 };
	int r = scan->row.collected == scan->row.changes ?
			1 :
			change_begin(c->bundles, c->place, NULL, &change, c->deadline_ns, c->e);

	if (r)
		return r < 0 ? r : 0;
	if (!change.exists || change.row.changes != scan->row.changes)
		return 0;
	change.row.collected = change.row.changes + 1; /* which is what this change makes it */
	r = change_commit(&change, c->deadline_ns, c->e);
	return r < 0 ? r : 0;
}

/* @packs 0: it is a root. */
static void log_lost(const struct collecting *c, uint64_t packs, const char *one)
{
	logm(LOG_ERROR, "bundle.data-lost", "bundle=%.*s packs=%" PRIu64 " one=%s", (int)c->place->bundle.len,
	     (const char *)c->place->bundle.ptr, packs, one);
}

static void alarm_missing(struct collecting *c, const struct scan *scan)
{
	if (!scan->n_missing)
		return;
	c->counts.missing += scan->n_missing;
	log_lost(c, scan->n_missing, scan->missing);
}

static void note_unclear(void *arg, const char *key)
{
	struct buf *keys = arg;

	if (keys->len < UNCLEAR_BYTES_MAX) /* more are counted and not named; so is one for which there is no memory */
		(void)buf_append(keys, key, strlen(key) + 1);
}

/* What a map says of a root that was missed; never NULL. */
static char mark_missed, mark_told;

/* All of the bundle's but @but. */
static void forget_absent(struct collecting *c, const char *but)
{
	struct map_slot *next;

	for (struct map_slot *at = map_first(&c->bundles->absent); at; at = next) {
		struct view key = map_key(at), prefix = view_str(c->place->prefix);

		next = map_next(at);
		if (key.len > prefix.len && memcmp(key.ptr, prefix.ptr, prefix.len) == 0 &&
		    !view_equal(key, view_str(but)))
			(void)map_remove(&c->bundles->absent, key);
	}
}

/* Whether the store just shows that root late is known at the second look, which comes seconds later. True: it is missing. */
static bool is_lost(struct collecting *c)
{
	struct map *absent = &c->bundles->absent;
	const char *known = map_get(absent, view_str(c->absent));

	forget_absent(c, c->absent);
	if (!known) {
		if (absent->n < ABSENT_MAX)
			(void)map_put(absent, view_str(c->absent), &mark_missed);
		return false;
	}
	if (known != &mark_told || c->thorough) {
		c->counts.missing++;
		log_lost(c, 0, c->absent);
	}
	map_remove(absent, view_str(c->absent));
	(void)map_put(absent, view_str(c->absent), &mark_told); /* no memory: it is told once more */
	return true;
}

static int scan_and_judge(struct collecting *c, bool *ret_moved)
{
	_cleanup_(scan_fini) struct scan scan;
	int wait = 0;

	scan_init(&scan, c->bundles, c->place, c->deadline_ns, c->e);
	scan.unclear = note_unclear;
	scan.arg = &c->unclear;
	c->unclear.len = 0;
	int r = scan_run(&scan);
	c->counts.slots += scan.n_burned;
	*ret_moved = r == SCAN_MOVED;
	memcpy(c->absent, scan.absent, sizeof(c->absent));
	if (r < 0 || r == SCAN_MOVED)
		return r < 0 ? r : COLLECT_AGAIN;
	c->counts.unclear = scan.n_unclear;
	c->unclear.len = scan.n_unclear ? c->unclear.len : 0;
	if (r == SCAN_NO_ROW)
		return scan.n_burned ? COLLECT_AGAIN : 0; /* that made the row */
	alarm_missing(c, &scan);
	r = judge_all(c, &scan, &wait);
	if (!r)
		r = fold(c, &scan);
	if (r || scan.n_dead || scan.n_burned) /* what a save has left is dead when its last slot has ended */
		return r ? r : wait ? wait : COLLECT_AGAIN;
	return mark_collected(c, &scan);
}

int collect_pass(struct collecting *c)
{
	bool moved = true;
	int r = COLLECT_AGAIN;

	index_mend(c->bundles, c->place, c->deadline_ns);
	for (int i = 0; moved && i < SCAN_TRIES; i++)
		r = scan_and_judge(c, &moved);
	if (!moved && r >= 0)
		forget_absent(c, "");
	if (!moved || r != COLLECT_AGAIN)
		return r;
	return c->absent[0] && is_lost(c) ? 0 : COLLECT_LATER;
}
