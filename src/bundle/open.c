/*
 * bundle/open.c: opening versions: which number a name means, its root and segments read and checked, and a small cache of what was
 * opened. A version never changes, so the cache is right as long as the version was not deleted, which the index tells, a lease that is
 * held, or the root.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "bundle/inside.h"

int bundles_new(struct env *env, struct cluster *cluster, struct backend *backend, struct bundles **ret)
{
	struct bundles *bundles = calloc(1, sizeof(*bundles));

	if (!bundles)
		return -ENOMEM;
	*bundles = (struct bundles){ .magic = BUNDLES_MAGIC, .env = env, .cluster = cluster, .backend = backend };
	nursery_init(&bundles->rebuilds, env->loop);
	list_init(&bundles->cached);
	list_init(&bundles->openings);
	list_init(&bundles->stirring);
	waitplace_init(&bundles->stirred);
	map_init(&bundles->condemned);
	map_init(&bundles->absent);
	(void)snprintf(bundles->sweep.prefix, sizeof(bundles->sweep.prefix), "t/");
	bundles->grace_ns = READER_LEASE_MS / 10 * 11 * NS_PER_MS;
	bundles->round_ns = COLLECT_ROUND_MS * NS_PER_MS;
	rebuild_serve(bundles);
	*ret = bundles;
	return 0;
}

/* ---- cache ---- */

static void cache_remove(struct bundles *bundles, struct version *version)
{
	list_remove(&version->cached);
	bundles->n_cached--;
	version_put(version);
}

void bundles_free(struct bundles *bundles)
{
	if (!bundles)
		return;
	CHECK_MAGIC(bundles, BUNDLES_MAGIC);
	list_each(node, &bundles->cached)
		cache_remove(bundles, list_entry(node, struct version, cached));
	tend_fini(bundles);
	bundles->magic = 0;
	free(bundles);
}

static struct version *cached(struct bundles *bundles, const struct place *place, uint64_t number)
{
	list_each(node, &bundles->cached) {
		struct version *version = list_entry(node, struct version, cached);

		if (version->number == number && view_equal(view_str(version->bundle), place->bundle) &&
		    view_equal(view_str(version->tenant), place->tenant))
			return version;
	}
	return NULL;
}

/* A reference, or NULL. */
static struct version *cache_find(struct bundles *bundles, const struct place *place, uint64_t number)
{
	struct version *version = cached(bundles, place, number);

	if (!version)
		return NULL;
	list_remove(&version->cached);
	list_insert(bundles->cached.next, &version->cached);
	return version_get(version);
}

/* What somebody has open stays: it is in memory anyway, and the leases are kept by this list. */
static void cache_trim(struct bundles *bundles)
{
	for (struct list *at = bundles->cached.prev; at != &bundles->cached && bundles->n_cached > VERSIONS_CACHED;) {
		struct version *version = list_entry(at, struct version, cached);

		at = at->prev;
		if (version->refs == 1 && !version->leased_ns)
			cache_remove(bundles, version);
	}
}

void cache_add(struct bundles *bundles, struct version *version)
{
	if (!list_empty(&version->cached))
		return;
	list_insert(bundles->cached.next, &version_get(version)->cached);
	bundles->n_cached++;
	cache_trim(bundles);
}

void cache_drop(struct bundles *bundles, const struct place *place, uint64_t number)
{
	struct version *version = cached(bundles, place, number);

	if (version)
		cache_remove(bundles, version);
}

void opening_begin(struct bundles *bundles, const struct place *place, uint64_t number, struct opening *opening)
{
	*opening = (struct opening){ .place = place, .number = number };
	list_append(&bundles->openings, &opening->link);
}

void opening_end(struct opening *opening)
{
	list_remove(&opening->link);
}

bool is_opening(const struct bundles *bundles, const struct place *place, uint64_t number)
{
	list_each(node, &bundles->openings) {
		const struct opening *opening = list_entry(node, struct opening, link);

		if (opening->number == number && view_equal(opening->place->bundle, place->bundle) &&
		    view_equal(opening->place->tenant, place->tenant))
			return true;
	}
	return false;
}

/* ---- loading ---- */

struct decoding {
	struct version *version;
	const struct rec_segment *segment; /* NULL: finish */
	const struct rec_root *root;
	struct view object;
	struct error *e;
};

static int decode_job(void *arg)
{
	struct decoding *job = arg;

	if (job->segment)
		return version_add_segment(job->version, job->segment, job->object, job->e);
	return version_finish(job->version, job->root, job->e);
}

int segment_decode(struct bundles *bundles, struct version *version, const struct rec_segment *segment,
		   struct view object, struct error *e)
{
	struct decoding job = { .version = version, .segment = segment, .object = object, .e = e };

	return env_call(bundles->env, decode_job, &job);
}

int version_complete(struct bundles *bundles, struct version *version, const struct rec_root *root, struct error *e)
{
	struct decoding job = { .version = version, .root = root, .e = e };

	return env_call(bundles->env, decode_job, &job);
}

static int load_segment(struct bundles *bundles, const struct place *place, struct version *version,
			const struct rec_segment *segment, uint64_t deadline_ns, struct error *e)
{
	_cleanup_(buf_fini) struct buf object = { 0 };
	char key[KEY_BYTES];
	int len = snprintf(key, sizeof(key), "%s%.*s", place->prefix, (int)segment->key.len,
			   (const char *)segment->key.ptr);

	if (len < 0 || (size_t)len >= sizeof(key) || segment->bytes > RECORD_SEGMENT_MAX)
		return error_set(e, -ERR_EDAMAGED, "the root names a segment that cannot be");
	int r = backend_read_known(bundles->backend, key, (size_t)segment->bytes, &object, deadline_ns, e);
	if (r == -ENOENT || r == -EFBIG)
		return error_set(e, -ERR_EDAMAGED, "%s is %s", key, r == -ENOENT ? "missing" : "too long");
	if (r)
		return r;
	r = segment_decode(bundles, version, segment, view_buf(&object), e);
	if (r)
		(void)error_prefix(e, "%s", key);
	return r;
}

/* The version that @object, a root, makes; everything that it names but packs is read. */
static int load_version(struct bundles *bundles, const struct place *place, const struct root_object *object,
			struct version **ret, uint64_t deadline_ns, struct error *e)
{
	_cleanup_(cleanup_version_put) struct version *version = version_new();
	struct list_view segments = object->root.segments;
	struct rec_segment segment;
	int r = version ? version_set_root(version, place, &object->head, &object->root, e) : no_memory(e);

	while (!r && (r = rec_segment_next(&segments, &segment)) == 0)
		r = load_segment(bundles, place, version, &segment, deadline_ns, e);
	if (r == -EPROTO)
		return error_set(e, -ERR_EDAMAGED, "its list of segments makes no sense");
	if (r != 1)
		return r;
	r = version_complete(bundles, version, &object->root, e);
	if (r)
		return r;
	*ret = TAKE(version);
	return 0;
}

static int was_deleted(const struct place *place, uint64_t number, struct error *e)
{
	return error_set(e, -ERR_EDELETED, "version %" PRIu64 " of %.*s was deleted", number, (int)place->bundle.len,
			 (const char *)place->bundle.ptr);
}

static int no_number(const struct place *place, uint64_t number, struct error *e)
{
	return error_set(e, -ENOENT, "bundle %.*s has no version %" PRIu64, (int)place->bundle.len,
			 (const char *)place->bundle.ptr, number);
}

/* @indexed: there is a root, or may be one, even if the store does not show it yet. @settled: it is there to stay. */
static int open_root(struct bundles *bundles, const struct place *place, uint64_t number, bool indexed, bool settled,
		     struct version **ret, uint64_t deadline_ns, struct error *e)
{
	_cleanup_(root_object_fini) struct root_object object = { 0 };
	int r = (indexed ? root_read_known : root_read)(bundles, place, number, &object, deadline_ns, e);

	if (r)
		return r;
	if (object.state == ROOT_DELETED)
		return was_deleted(place, number, e);
	if (object.state == ROOT_PUBLISHED &&
	    !settled) { /* what is seen may not last yet, and nobody is there who would know */
		char key[KEY_BYTES];

		root_key(place, number, key);
		r = object_settle(bundles, key, view_buf(&object.bytes), deadline_ns, e);
		if (r)
			return r;
	}
	if (object.state != ROOT_PUBLISHED)
		return no_number(place, number, e);
	r = load_version(bundles, place, &object, ret, deadline_ns, e);
	if (r != -ERR_EDAMAGED)
		return r;

	/* Segments go when a version is deleted: maybe that is all the damage. */
	_cleanup_(root_object_fini) struct root_object again = { 0 };
	if (root_read(bundles, place, number, &again, deadline_ns, NULL) == 0 && again.state == ROOT_DELETED)
		return was_deleted(place, number, e);
	return r;
}

/* ---- names ---- */

static int no_latest(const struct place *place, struct error *e)
{
	return error_set(e, -ENOENT, "there is no bundle %.*s, or it has no version", (int)place->bundle.len,
			 (const char *)place->bundle.ptr);
}

static int no_label(const struct place *place, struct view label, struct error *e)
{
	return error_set(e, -ENOENT, "bundle %.*s has no label %.*s", (int)place->bundle.len,
			 (const char *)place->bundle.ptr, (int)label.len, (const char *)label.ptr);
}

static int resolve_latest(struct bundles *bundles, const struct place *place, uint64_t *ret, uint64_t deadline_ns,
			  struct error *e)
{
	struct row_bundle row;
	int r = row_read_bundle(bundles, place, &row, deadline_ns, e);

	if (r < 0)
		return r;
	if (!row.latest)
		return no_latest(place, e);
	*ret = row.latest;
	return 0;
}

static int resolve(struct bundles *bundles, const struct place *place, struct view spec, uint64_t *ret,
		   uint64_t deadline_ns, struct error *e)
{
	struct row_label row;

	if (number_decode(spec, 0, ret) == 0)
		return 0;
	if (view_equal(spec, view_str("latest")))
		return resolve_latest(bundles, place, ret, deadline_ns, e);
	int r = label_name_check(spec, e);
	if (r)
		return r;
	r = row_read_label(bundles, place, spec, &row, deadline_ns, e);
	if (r == ROW_ABSENT || (!r && !row.number))
		return no_label(place, spec, e);
	if (!r)
		*ret = row.number;
	return r;
}

/* What the index says of a number, and, of a version, that this node has a lease on it. */
enum indexed { INDEXED_NOT, INDEXED_LIVE, INDEXED_DYING, INDEXED_FOLDED, INDEXED_UNKNOWN };

struct lease {
	uint64_t asked_ns, epoch; /* 0: there is none, go on without */
};

struct found {
	enum indexed indexed;
	uint64_t save_id; /* of the row; 0: none */
	struct lease lease;
};

/* A version that its row, where there is one, is of. */
static bool is_of_row(const struct version *version, const struct found *found)
{
	return found->indexed != INDEXED_LIVE || version->save_id == found->save_id;
}

static enum indexed look_up(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t *ret_save_id,
			    uint64_t deadline_ns)
{
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	struct row_bundle bundle;
	struct row_version row;
	int r = row_read_version(bundles, place, number, &bytes, &row, deadline_ns, NULL);

	if (r == ROW_ABSENT) {
		r = row_read_bundle(bundles, place, &bundle, deadline_ns, NULL);
		return r < 0 ? INDEXED_UNKNOWN : number < bundle.floor ? INDEXED_FOLDED : INDEXED_NOT;
	}
	if (r < 0)
		return INDEXED_UNKNOWN;
	*ret_save_id = row.save_id;
	return row.state == ROW_LIVE ? INDEXED_LIVE : INDEXED_DYING;
}

/* So that no deletion takes it away under the reader. */
static void lease(struct bundles *bundles, const struct place *place, uint64_t number, struct lease *ret,
		  uint64_t deadline_ns)
{
	struct version *version = cached(bundles, place, number);
	uint64_t now_ns = env_now(bundles->env);

	while (version && version->leasing && fiber_sleep_until(env_in_ms(bundles->env, 1)) == 0)
		version = cached(bundles, place, number);
	if (version && version->leased_ns && now_ns - version->leased_ns < READER_LEASE_MS / 2 * NS_PER_MS) {
		*ret = (struct lease){ version->leased_ns, version->lease };
		return;
	}
	uint64_t epoch = version ? version->lease : ret->epoch;
	int r = reader_begin(bundles, place, number, &epoch, deadline_ns, NULL);
	*ret = r ? (struct lease){ 0 } : (struct lease){ now_ns, epoch };
}

/* Looks a number up, and takes the lease if it is a version's. A deletion that has begun may yet be refused: it is waited for. */
static void look_up_leased(struct bundles *bundles, const struct place *place, uint64_t number, struct found *found,
			   uint64_t deadline_ns)
{
	uint64_t until_ns = env_in_ms(bundles->env, DYING_WAIT_MS);

	found->indexed = look_up(bundles, place, number, &found->save_id, deadline_ns);
	for (int i = 0;; i++) {
		if (found->indexed == INDEXED_LIVE) {
			lease(bundles, place, number, &found->lease, deadline_ns);
			found->indexed = look_up(bundles, place, number, &found->save_id, deadline_ns);
		}
		if (found->indexed != INDEXED_DYING || env_now(bundles->env) > until_ns || change_pause(bundles, i))
			return;
		index_mend(bundles, place, deadline_ns);
		found->indexed = look_up(bundles, place, number, &found->save_id, deadline_ns);
	}
}

/* A row is written when its root is there to stay, and a deletion puts a tombstone over that: this was nobody of ours. */
static int root_missing(const struct place *place, uint64_t number, struct error *e)
{
	char key[KEY_BYTES];

	root_key(place, number, key);
	return error_set(e, -ERR_EDAMAGED, "%s is missing", key);
}

/* Nor was this: a number is one save's for good. Whose bytes are the ones that were promised is not for us to guess. */
static int root_of_another(const struct place *place, const struct version *version, uint64_t save_id, struct error *e)
{
	char key[KEY_BYTES];

	root_key(place, version->number, key);
	return error_set(e, -ERR_EDAMAGED,
			 "%s is of save %016" PRIx64 ", but the index has save %016" PRIx64
			 " under that number: another store's object, or an older copy, lies in its place",
			 key, version->save_id, save_id);
}

/* ---- without an index ---- */

struct highest_root {
	struct bundles *bundles;
	const struct place *place;
	uint64_t number, deadline_ns;
	struct view label; /* empty: the latest version */
	size_t prefix;
	struct error *e;
};

/* Of the keys in ascending order the last one that counts wins. */
static int take_if_published(void *arg, const char *key, char *after)
{
	struct highest_root *h = arg;
	_cleanup_(root_object_fini) struct root_object object = { 0 };
	struct view rest = view_str(key + h->prefix);
	uint64_t number;

	if (h->label.len) {
		_cleanup_(buf_fini) struct buf bytes = { 0 };
		struct record_head head;
		struct rec_label rec;
		struct view body;

		if (number_decode(rest, 20, &number) != 0)
			return 0;
		int r = object_open(h->bundles, key, RECORD_SMALL_MAX, &bytes, &head, &body, h->deadline_ns, h->e);
		if (r || head.kind != RECORD_LABEL || rec_label_decode(body, &rec) != 0)
			return r;
		number = rec.number;
		if (!number)
			h->number = 0; /* a removal always counts */
	} else if (number_decode(view_take(&rest, 20), 20, &number) != 0 || !view_equal(rest, view_str("/root"))) {
		return 0;
	}
	int r = number ? root_read(h->bundles, h->place, number, &object, h->deadline_ns, h->e) : 0;
	if (!r && object.state == ROOT_PUBLISHED)
		h->number = number;
	return r;
}

/* What @spec, no number, means by the store alone: all keys are looked at, so this is slow; most when there is nothing. */
static int resolve_from_store(struct bundles *bundles, const struct place *place, struct view spec, uint64_t *ret,
			      uint64_t deadline_ns, struct error *e)
{
	struct highest_root h = { .bundles = bundles, .place = place, .deadline_ns = deadline_ns, .e = e };
	char prefix[KEY_BYTES];

	if (view_equal(spec, view_str("latest"))) {
		(void)snprintf(prefix, sizeof(prefix), "%sv/", place->prefix);
	} else {
		h.label = spec;
		label_key(place, spec, 0, prefix);
		prefix[strlen(prefix) - 20] = 0;
	}
	h.prefix = strlen(prefix);
	uint64_t shown_ns = env_in_ms(bundles->env, BACKEND_NAME_LATE_MS);
	int r = keys_each(bundles, prefix, take_if_published, &h, deadline_ns, e);
	while (!r && !h.number && env_now(bundles->env) < shown_ns) { /* maybe the store shows a name late */
		r = fiber_sleep_until(env_in_ms(bundles->env, LOOK_AGAIN_MS));
		if (!r)
			r = keys_each(bundles, prefix, take_if_published, &h, deadline_ns, e);
	}
	if (r)
		return r;
	if (!h.number)
		return h.label.len ? no_label(place, spec, e) : no_latest(place, e);
	*ret = h.number;
	return 0;
}

/* Did a call fail because the index cannot be had, and not because of what it says? */
static bool is_no_answer(int r)
{
	return cluster_is_away(r) || r == -ETIMEDOUT || r == -EIO || r == -ENOTCONN || r == -ESHUTDOWN;
}

/* ---- opening ---- */

/* As long as the node's lease on it lasts nobody deletes it. */
static bool is_held(const struct bundles *bundles, const struct version *version)
{
	return version->leased_ns && env_now(bundles->env) - version->leased_ns < READER_LEASE_MS / 3 * 2 * NS_PER_MS;
}

/* The index cannot say whether what the cache has was deleted meanwhile: its root can. */
static int check_root(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t deadline_ns,
		      struct error *e)
{
	_cleanup_(root_object_fini) struct root_object object = { 0 };
	int r = root_read_known(bundles, place, number, &object, deadline_ns, e);

	if (r || object.state == ROOT_PUBLISHED)
		return r;
	cache_drop(bundles, place, number);
	return object.state == ROOT_DELETED ? was_deleted(place, number, e) : no_number(place, number, e);
}

/* Out of the cache, or from the store. */
static int open_number(struct bundles *bundles, const struct place *place, uint64_t number, const struct found *found,
		       struct version **ret, uint64_t deadline_ns, struct error *e)
{
	const enum indexed indexed = found->indexed;
	struct version *version = NULL;
	bool known = indexed == INDEXED_LIVE || indexed == INDEXED_UNKNOWN;
	int r = 0;

	if (known)
		version = cache_find(bundles, place, number);
	if (version && !is_of_row(version, found)) {
		version_put(TAKE(version));
		cache_drop(bundles, place, number);
	}
	if (version && indexed == INDEXED_UNKNOWN && !is_held(bundles, version))
		r = check_root(bundles, place, number, deadline_ns, e);
	if (r) {
		version_put(version);
		return r;
	}
	if (!version) {
		r = open_root(bundles, place, number, known, indexed == INDEXED_LIVE, &version, deadline_ns, e);
		if (r == -ENOENT && indexed == INDEXED_LIVE)
			r = root_missing(place, number, e);
		if (!r && !is_of_row(version, found)) {
			r = root_of_another(place, version, found->save_id, e);
			version_put(version);
		}
		if (r == -ERR_EDAMAGED)
			(void)error_prefix(e, "%.*s version %" PRIu64, (int)place->bundle.len,
					   (const char *)place->bundle.ptr, number);
		if (r)
			return r;
		struct version *other = cache_find(bundles, place, number); /* somebody was faster: share theirs */
		if (other) {
			version_put(version);
			version = other;
		}
		cache_add(bundles, version);
	}
	*ret = version;
	return 0;
}

/* @index_ns: how long the index is waited for; 0: it does not answer, so there is no lease. */
static int open_leased(struct bundles *bundles, const struct place *place, uint64_t number, struct version **ret,
		       uint64_t index_ns, uint64_t deadline_ns, struct error *e)
{
	struct found found = { .indexed = INDEXED_UNKNOWN };
	struct opening opening;
	enum root_state state;

	opening_begin(bundles, place, number, &opening);
	if (index_ns)
		look_up_leased(bundles, place, number, &found, index_ns);
	int r = found.indexed == INDEXED_FOLDED || found.indexed == INDEXED_DYING ?
			was_deleted(place, number, e) :
			open_number(bundles, place, number, &found, ret, deadline_ns, e);
	opening_end(&opening);
	if (r == -ERR_EDELETED && found.indexed == INDEXED_LIVE) /* a tombstone that came late: the row goes, too */
		(void)index_version(bundles, place, number, false, &state, index_ns, NULL);
	if (r) {
		if (found.lease.asked_ns && !cached(bundles, place, number) && !is_opening(bundles, place, number))
			reader_end(bundles, place, number, found.lease.epoch, env_in_ms(bundles->env, SETTLE_MS));
		return r;
	}
	(*ret)->unindexed = found.indexed == INDEXED_UNKNOWN;
	if (found.lease.asked_ns > (*ret)->leased_ns)
		(*ret)->leased_ns = found.lease.asked_ns;
	if (found.lease.epoch > (*ret)->lease)
		(*ret)->lease = found.lease.epoch;
	wake_all(&bundles->stirred);
	return 0;
}

int bundle_open(struct bundles *bundles, struct view tenant, struct view bundle, struct view spec, uint64_t deadline_ns,
		struct version **ret, struct error *e)
{
	CHECK_MAGIC(bundles, BUNDLES_MAGIC);
	uint64_t number, index_ns = env_in_ms(bundles->env, INDEX_WAIT_MS);
	struct place place;

	int r = place_init(tenant, bundle, &place, e);
	if (r)
		return r;
	index_ns = index_ns < deadline_ns ? index_ns : deadline_ns;
	index_mend(bundles, &place, index_ns);
	r = resolve(bundles, &place, spec, &number, index_ns, e);
	if (r && is_no_answer(r) && !fiber_cancelled()) {
		index_ns = 0;
		r = resolve_from_store(bundles, &place, spec, &number, deadline_ns, e);
	}
	if (!r)
		r = open_leased(bundles, &place, number, ret, index_ns, deadline_ns, e);
	uint64_t before = number;
	if (r != -ERR_EDELETED || !index_ns || resolve(bundles, &place, spec, &number, index_ns, NULL) ||
	    number == before)
		return r;
	return open_leased(bundles, &place, number, ret, index_ns, deadline_ns, e); /* "latest" is another by now */
}
