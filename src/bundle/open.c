/*
 * bundle/open.c: opening versions: which number a name means, its root and segments read and checked, and a small cache of what was
 * opened. A version never changes, so the cache is right as long as the version was not deleted, which the index tells.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "bundle/inside.h"

int bundles_new(struct env *env, struct cluster *cluster, struct store *store, struct backend *backend,
		struct bundles **ret)
{
	struct bundles *bundles = calloc(1, sizeof(*bundles));

	if (!bundles)
		return -ENOMEM;
	*bundles = (struct bundles){ .magic = BUNDLES_MAGIC,
				     .env = env,
				     .cluster = cluster,
				     .store = store,
				     .backend = backend };
	list_init(&bundles->cached);
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

void cache_add(struct bundles *bundles, struct version *version)
{
	if (!list_empty(&version->cached))
		return;
	if (bundles->n_cached == VERSIONS_CACHED)
		cache_remove(bundles, list_entry(bundles->cached.prev, struct version, cached));
	list_insert(bundles->cached.next, &version_get(version)->cached);
	bundles->n_cached++;
}

void cache_drop(struct bundles *bundles, const struct place *place, uint64_t number)
{
	struct version *version = cached(bundles, place, number);

	if (version)
		cache_remove(bundles, version);
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

/* @indexed: there is a root, or may be one, even if the store does not show it yet. */
static int open_root(struct bundles *bundles, const struct place *place, uint64_t number, bool indexed,
		     struct version **ret, uint64_t deadline_ns, struct error *e)
{
	_cleanup_(root_object_fini) struct root_object object = { 0 };
	int r = (indexed ? root_read_known : root_read)(bundles, place, number, &object, deadline_ns, e);

	if (r)
		return r;
	if (object.state == ROOT_DELETED)
		return error_set(e, -ERR_EDELETED, "version %" PRIu64 " of %.*s was deleted", number,
				 (int)place->bundle.len, (const char *)place->bundle.ptr);
	if (object.state != ROOT_PUBLISHED)
		return error_set(e, -ENOENT, "bundle %.*s has no version %" PRIu64, (int)place->bundle.len,
				 (const char *)place->bundle.ptr, number);
	r = load_version(bundles, place, &object, ret, deadline_ns, e);
	if (r != -ERR_EDAMAGED)
		return r;

	/* Segments go when a version is deleted: maybe that is all the damage. */
	_cleanup_(root_object_fini) struct root_object again = { 0 };
	if (root_read(bundles, place, number, &again, deadline_ns, NULL) == 0 && again.state == ROOT_DELETED)
		return error_set(e, -ERR_EDELETED, "version %" PRIu64 " of %.*s was deleted", number,
				 (int)place->bundle.len, (const char *)place->bundle.ptr);
	return r;
}

/* ---- names ---- */

static int resolve_latest(struct bundles *bundles, const struct place *place, uint64_t *ret, uint64_t deadline_ns,
			  struct error *e)
{
	struct row_bundle row;
	int r = row_read_bundle(bundles, place, &row, deadline_ns, e);

	if (r < 0)
		return r;
	if (!row.latest)
		return error_set(e, -ENOENT, "there is no bundle %.*s, or it has no version", (int)place->bundle.len,
				 (const char *)place->bundle.ptr);
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
		return error_set(e, -ENOENT, "bundle %.*s has no label %.*s", (int)place->bundle.len,
				 (const char *)place->bundle.ptr, (int)spec.len, (const char *)spec.ptr);
	if (!r)
		*ret = row.number;
	return r;
}

/* The cache may answer for a version that the index has, alive. Without an index the root decides. */
enum indexed { INDEXED_NOT, INDEXED_LIVE, INDEXED_UNKNOWN };

static enum indexed look_up(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t deadline_ns)
{
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	struct row_version row;
	int r = row_read_version(bundles, place, number, &bytes, &row, deadline_ns, NULL);

	return r < 0 ? INDEXED_UNKNOWN : !r && row.state == ROW_LIVE ? INDEXED_LIVE : INDEXED_NOT;
}

/* A row is written when its root is there to stay, and a deletion puts a tombstone over that: this was nobody of ours. */
static int root_missing(const struct place *place, uint64_t number, struct error *e)
{
	char key[KEY_BYTES];

	root_key(place, number, key);
	return error_set(e, -ERR_EDAMAGED, "%s is missing", key);
}

int bundle_open(struct bundles *bundles, struct view tenant, struct view bundle, struct view spec, uint64_t deadline_ns,
		struct version **ret, struct error *e)
{
	CHECK_MAGIC(bundles, BUNDLES_MAGIC);
	struct version *version = NULL, *other;
	struct place place;
	uint64_t number;

	int r = place_init(tenant, bundle, &place, e);
	if (r)
		return r;
	index_mend(bundles, &place, deadline_ns);
	r = resolve(bundles, &place, spec, &number, deadline_ns, e);
	if (r)
		return r;
	enum indexed indexed = look_up(bundles, &place, number, deadline_ns);
	if (indexed == INDEXED_LIVE)
		version = cache_find(bundles, &place, number);
	if (!version) {
		r = open_root(bundles, &place, number, indexed != INDEXED_NOT, &version, deadline_ns, e);
		if (r == -ENOENT && indexed == INDEXED_LIVE)
			r = root_missing(&place, number, e);
		if (r == -ERR_EDAMAGED)
			(void)error_prefix(e, "%.*s version %" PRIu64, (int)bundle.len, (const char *)bundle.ptr,
					   number);
		if (r)
			return r;
		other = cache_find(bundles, &place, number); /* somebody was faster: share theirs */
		if (other) {
			version_put(version);
			version = other;
		}
		cache_add(bundles, version);
	}
	*ret = version;
	return 0;
}
