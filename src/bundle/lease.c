/*
 * bundle/lease.c: who is over, and who reads: the two questions that are asked of leases in the meta engine.
 *
 * A coordinator is over when its group's lease has a higher epoch, was given back, or can be taken. To take it raises the epoch, so
 * whoever held it is fenced out from then on, as by a successor.
 *
 * A reader's lease is one for each version and node. A reader takes it and then looks whether the version still lives; a deletion
 * marks the version dying and then looks for leases. So of the two at least one sees the other.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "bundle/inside.h"

#define REBUILT_KEY "x/rebuilt" /* a lease: until it is over nobody knows who reads what */

static struct meta *meta_of(struct bundles *bundles)
{
	return cluster_meta(bundles->cluster);
}

/* In an epoch above *@epoch, where it is put. 0, META_HELD, error. */
static int take(struct bundles *bundles, struct view key, uint64_t holder, uint32_t ttl_ms, uint64_t *epoch,
		uint64_t deadline_ns, struct error *e)
{
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = meta_req_new(META_LEASE);
	uint64_t who;
	int r = req ? meta_put_lease(req, key, holder, ttl_ms, *epoch) : -ENOMEM;

	if (r)
		return error_set(e, r, "cannot ask for a lease");
	r = meta_call_run(meta_of(bundles), &req, deadline_ns, e);
	if (!r && meta_out_lease(view_buf(&req->out), &who, epoch))
		return error_set(e, -EPROTO, "the meta engine's answer is no lease");
	return r;
}

static int give_back(struct bundles *bundles, struct view key, uint64_t holder, uint64_t epoch, uint64_t deadline_ns)
{
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = meta_req_new(META_RELEASE);
	int r = req ? meta_put_lease(req, key, holder, 0, epoch) : -ENOMEM;

	return r ? r : meta_call_run(meta_of(bundles), &req, deadline_ns, NULL);
}

/* Takes a lease that nobody holds any more, and gives it back at once. 0: it was taken; META_HELD; error. */
static int supplant(struct bundles *bundles, struct view key, uint64_t deadline_ns, struct error *e)
{
	uint64_t holder = 0, epoch = 0;

	while (!holder)
		bundles->env->ops->random(bundles->env, &holder, sizeof(holder));
	int r = take(bundles, key, holder, 1, &epoch, deadline_ns, e);
	if (!r)
		(void)give_back(bundles, key, holder, epoch,
				deadline_ns); /* else it ends by itself, after a millisecond */
	return r;
}

/* ---- coordinators ---- */

int lease_is_over(struct bundles *bundles, struct view lease, uint64_t epoch, uint64_t deadline_ns, struct error *e)
{
	_cleanup_(buf_fini) struct buf record = { 0 };
	uint64_t holder, now;

	if (!lease.len)
		return 0; /* of no group: nobody can tell */
	int r = meta_get(meta_of(bundles), lease, &record, deadline_ns, e);
	if (r == -ENOENT)
		return 1; /* of an engine that is gone: its writer cannot record it in this one any more */
	if (r)
		return r;
	if (meta_out_lease(view_buf(&record), &holder, &now))
		return row_damaged(e, "a lease");
	if (now != epoch || !holder)
		return now >= epoch;
	r = supplant(bundles, lease, deadline_ns, e);
	return r < 0 ? r : r == 0;
}

/* ---- readers ---- */

/* The same in each life of the node, so that a daemon that starts again takes its old leases over. */
static uint64_t reader_of(const struct bundles *bundles)
{
	const char *node = cluster_node(bundles->cluster);

	return hash64(node, strlen(node), 0) | 1;
}

/* One that is held goes on as it is. A new one is above each that was given back: a word of that which comes late ends nothing. */
int reader_begin(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t *lease,
		 uint64_t deadline_ns, struct error *e)
{
	const struct row_key key = reader_row_key(place, number, cluster_node(bundles->cluster));
	uint64_t epoch = *lease ? *lease - 1 : bundles->given_back;
	int r = take(bundles, row_key_view(&key), reader_of(bundles), READER_LEASE_MS, &epoch, deadline_ns, e);

	if (!r)
		*lease = epoch;
	return r == META_HELD ? error_set(e, -EBUSY, "a deletion looks at version %" PRIu64, number) : r;
}

void reader_end(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t lease,
		uint64_t deadline_ns)
{
	const struct row_key key = reader_row_key(place, number, cluster_node(bundles->cluster));

	bundles->given_back = lease > bundles->given_back ? lease : bundles->given_back;
	(void)give_back(bundles, row_key_view(&key), reader_of(bundles), lease, deadline_ns);
}

/* ---- a rebuild ---- */

int rebuilt_begin(struct bundles *bundles, uint64_t deadline_ns, struct error *e)
{
	uint64_t ms = bundles->grace_ns / NS_PER_MS * 10 / 11; /* the engine adds a tenth */
	int r = lease_hold(bundles, REBUILT_KEY, ms ? (uint32_t)ms : 1, deadline_ns, e);

	return r < 0 ? r : 0;
}

static int rebuilt_check(struct bundles *bundles, uint64_t deadline_ns, struct error *e)
{
	_cleanup_(buf_fini) struct buf record = { 0 };
	struct error why = { 0 };
	uint64_t holder, epoch;
	int r = meta_get(meta_of(bundles), view_str(REBUILT_KEY), &record, deadline_ns, &why);

	if (r == -ENOENT)
		return 0;
	if (r)
		return error_set(e, r, "%s", why.text);
	if (meta_out_lease(view_buf(&record), &holder, &epoch))
		return row_damaged(e, "the last rebuild");
	r = holder ? supplant(bundles, view_str(REBUILT_KEY), deadline_ns, e) : 0;
	return r == META_HELD ? error_set(e, -EBUSY,
					  "the index was rebuilt a moment ago, and who reads is not known again yet: "
					  "nothing is deleted for %d seconds",
					  READER_LEASE_MS / 1000 + 1) :
				r;
}

int rebuilt_await(struct bundles *bundles, uint64_t deadline_ns, struct error *e)
{
	for (;;) {
		uint64_t again_ns = env_in_ms(bundles->env, READER_TICK_MS);
		int r = rebuilt_check(bundles, deadline_ns, e);

		if (r != -EBUSY || again_ns >= deadline_ns)
			return r;
		r = fiber_sleep_until(again_ns);
		if (r)
			return error_set(e, r, "cancelled");
	}
}

/* ---- who reads ---- */

struct looking {
	struct bundles *bundles;
	struct change *change; /* takes the rows away; NULL: looks who holds them */
	size_t prefix;
	uint64_t number, deadline_ns;
	struct error *e;
};

static int look_at_reader(void *arg, struct view key, struct view value)
{
	const struct looking *l = arg;
	struct view node = key;
	uint64_t holder, epoch;

	if (l->change)
		return meta_txn_delete(l->change->req, key);
	if (meta_out_lease(value, &holder, &epoch))
		return row_damaged(l->e, "a reader");
	if (!holder)
		return 0;
	int r = supplant(l->bundles, key, l->deadline_ns, l->e);
	view_take(&node, l->prefix);
	return r == META_HELD ? error_set(l->e, -EBUSY, "version %" PRIu64 " is being read on node %.*s", l->number,
					  (int)node.len, (const char *)node.ptr) :
				r;
}

static int walk_readers(struct looking *l, const struct place *place)
{
	const struct row_key prefix = readers_prefix(place, l->number);

	l->prefix = prefix.len;
	return rows_each(l->bundles, row_key_view(&prefix), (struct view){ 0 }, look_at_reader, l, l->deadline_ns,
			 l->e);
}

int readers_check(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t deadline_ns,
		  struct error *e)
{
	struct looking l = { .bundles = bundles, .number = number, .deadline_ns = deadline_ns, .e = e };
	int r = rebuilt_check(bundles, deadline_ns, e);

	return r ? r : walk_readers(&l, place);
}

int readers_forget(struct bundles *bundles, struct change *change, const struct place *place, uint64_t number,
		   uint64_t deadline_ns, struct error *e)
{
	struct looking l = { .bundles = bundles,
			     .change = change,
			     .number = number,
			     .deadline_ns = deadline_ns,
			     .e = e };

	return walk_readers(&l, place);
}

int lease_hold(struct bundles *bundles, const char *key, uint32_t ttl_ms, uint64_t deadline_ns, struct error *e)
{
	uint64_t epoch = 0;

	return take(bundles, view_str(key), reader_of(bundles), ttl_ms, &epoch, deadline_ns, e);
}

/* ---- keeping ---- */

static void reader_drop(struct bundles *bundles, const struct place *place, struct version *version,
			uint64_t deadline_ns)
{
	uint64_t lease = version->lease;

	version->leased_ns = version->lease = 0;
	reader_end(bundles, place, version->number, lease, deadline_ns);
}

/* Does it have to be asked for, or asked for again? */
static bool is_due(const struct bundles *bundles, const struct version *version)
{
	return env_now(bundles->env) - version->leased_ns > READER_LEASE_MS / 3 * NS_PER_MS;
}

/*
 * It was opened while the index gave no answer, and nothing kept it since. 0: it is there, and our lease with it; 1: it is gone, and nobody
 * shall have it from the cache any more; -EAGAIN: whoever deletes it has not come to an end; negative: that is not known.
 */
static int check_late(struct bundles *bundles, const struct place *place, struct version *version, uint64_t deadline_ns)
{
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	struct row_version row;
	int r = row_read_version(bundles, place, version->number, &bytes, &row, deadline_ns, NULL);

	if (r < 0)
		return r;
	if (r != ROW_ABSENT && row.save_id == version->save_id)
		return row.state == ROW_LIVE ? 0 : -EAGAIN;
	reader_drop(bundles, place, version, deadline_ns);
	cache_drop(bundles, place, version->number);
	return 1;
}

static int renew(struct bundles *bundles, const struct place *place, struct version *version)
{
	uint64_t asked_ns = env_now(bundles->env), deadline_ns = env_in_ms(bundles->env, READER_LEASE_MS / 3);
	int r = reader_begin(bundles, place, version->number, &version->lease, deadline_ns, NULL);

	if (!r && !version->leased_ns)
		r = check_late(bundles, place, version, deadline_ns);
	if (!r)
		version->leased_ns = asked_ns;
	return r;
}

/* 0: it needs nothing now; 1: it was asked for or given back, so the list may be another; negative: that failed. */
static int keep_one(struct bundles *bundles, struct version *version)
{
	_cleanup_(cleanup_version_put) struct version *held = NULL;
	struct place place;
	int r = 0;

	if (version->leasing || place_init(view_str(version->tenant), view_str(version->bundle), &place, NULL))
		return 0;
	bool idle = version->refs == 1 && !is_opening(bundles, &place, version->number);
	if (idle ? !version->leased_ns : !is_due(bundles, version))
		return 0;
	held = version_get(version);
	version->leasing = true;
	if (idle)
		reader_drop(bundles, &place, version, env_in_ms(bundles->env, READER_LEASE_MS / 3));
	else
		r = renew(bundles, &place, version);
	version->leasing = false;
	return r ? r : 1;
}

int readers_keep(void *arg)
{
	struct bundles *bundles = arg;
	int r = 0;

	while (!r) {
		bool busy = false;
		int kept = 0;

		list_each(node, &bundles->cached) {
			struct version *version = list_entry(node, struct version, cached);

			busy |= version->leased_ns || version->refs > 1;
			kept = keep_one(bundles, version);
			if (kept)
				break;
		}
		if (kept <= 0)
			r = busy ? fiber_sleep_until(env_in_ms(bundles->env, READER_TICK_MS)) :
				   wait_at(&bundles->stirred, env_in_ms(bundles->env, IDLE_MS));
		r = r == -ETIMEDOUT ? 0 : r;
	}
	return 0;
}

static struct version *first_leased(const struct bundles *bundles)
{
	list_each(node, &bundles->cached)
		if (list_entry(node, struct version, cached)->leased_ns)
			return list_entry(node, struct version, cached);
	return NULL;
}

/* One after the other from the front: while one is given back the list may become another. */
void readers_stop(struct bundles *bundles)
{
	uint64_t deadline_ns = env_in_ms(bundles->env, READER_TICK_MS);
	struct version *version;
	struct place place;

	while ((version = first_leased(bundles))) {
		_cleanup_(cleanup_version_put) struct version *held = version_get(version);

		if (!place_init(view_str(held->tenant), view_str(held->bundle), &place, NULL))
			reader_drop(bundles, &place, held, deadline_ns);
		held->leased_ns = 0;
	}
}
