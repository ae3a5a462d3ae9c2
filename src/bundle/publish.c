/*
 * bundle/publish.c: segments, root, index: the last steps of publication, and the one that counts.
 *
 * Between the steps: before the root nothing exists for a reader, whatever lies there; once the root is put the version is
 * published, whatever happens to its writer. Each step may be done again.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/point.h"
#include "bundle/inside.h"

/* What the slot says, the version must say. */
static int adopt(struct bundles *bundles, const struct slot *slot, struct version *version)
{
	version->number = slot->number;
	version->save_id = slot->save_id;
	version->epoch = slot->epoch;
	version->parent = slot->parent;
	version->generation = cluster_generation(bundles->cluster);
	if (!version->tenant)
		version->tenant = strdup(slot->tenant);
	if (!version->bundle)
		version->bundle = strdup(slot->bundle);
	return version->tenant && version->bundle ? 0 : -ENOMEM;
}

/* A hint, not a lock: a coordinator that was overtaken should not go on. What it does all the same is harmless. */
static int check_fence(struct bundles *bundles, const struct fence *fence, uint64_t deadline_ns, struct error *e)
{
	_cleanup_(buf_fini) struct buf record = { 0 };

	if (!fence || !fence->key.len)
		return 0;
	int r = meta_get(cluster_meta(bundles->cluster), fence->key, &record, deadline_ns, e);
	if (r && r != -ENOENT)
		return r;
	if (r || !view_equal(view_buf(&record), fence->record))
		return error_set(e, -ERR_ESTALEEPOCH, "the group has a newer coordinator");
	return 0;
}

static int put_segment(struct bundles *bundles, const char *key, const struct segment *segment, uint64_t deadline_ns,
		       struct error *e)
{
	_cleanup_(buf_fini) struct buf there = { 0 };
	int r = backend_write(bundles->backend, key, view_buf(&segment->object), true, deadline_ns, e);

	if (r != BACKEND_EXISTS)
		return r;
	r = backend_read_known(bundles->backend, key, RECORD_SEGMENT_MAX, &there, deadline_ns, e); /* of a try before */
	if (r)
		return r;
	if (!view_equal(view_buf(&there), view_buf(&segment->object)))
		return error_set(e, -EEXIST, "%s is there with other contents", key);
	return 0;
}

int publish_segments(struct bundles *bundles, const struct place *place, struct segments *segments,
		     uint64_t deadline_ns, struct error *e)
{
	int r = 0;

	for (size_t i = 0; !r && i < segments->n; i++) {
		char key[KEY_BYTES];

		segment_key(place, &segments->all[i].head, key);
		r = put_segment(bundles, key, &segments->all[i], deadline_ns, e);
	}
	return r;
}

/* Something lies under the root's key: is it this save's root? */
static int settle_root(struct bundles *bundles, const struct place *place, const struct version *version,
		       uint64_t deadline_ns, struct error *e)
{
	_cleanup_(root_object_fini) struct root_object object = { 0 };
	int r = root_read_known(bundles, place, version->number, &object, deadline_ns, e);

	if (r)
		return r;
	if (object.state == ROOT_NONE)
		return error_set(e, -EAGAIN, "the root of version %" PRIu64 " is taken, and the store does not show it",
				 version->number);
	if (object.head.save_id == version->save_id && object.head.epoch == version->epoch &&
	    (object.state == ROOT_PUBLISHED || object.state == ROOT_DELETED))
		return 0; /* deleted: it was published, and then somebody deleted it */
	return error_set(e, -ERR_ESTALEEPOCH, "another coordinator has %s version %" PRIu64,
			 object.state == ROOT_PUBLISHED ? "published" : "burned", version->number);
}

int publish_root(struct bundles *bundles, const struct place *place, const struct version *version,
		 const struct segments *segments, uint64_t deadline_ns, struct error *e)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	_cleanup_(buf_fini) struct buf object = { 0 };
	const struct record_head head = version_head(version, RECORD_ROOT);
	struct error first = { 0 };
	char key[KEY_BYTES];

	int r = root_encode(place, version, segments, &body, e);
	if (!r)
		r = record_seal(&head, view_buf(&body), &object);
	if (r == -E2BIG)
		return error_set(e, r, "the root would have %zu bytes: too many packs or segments", body.len);
	if (r)
		return r == -ENOMEM ? no_memory(e) : r;

	root_key(place, version->number, key);
	r = backend_write(bundles->backend, key, view_buf(&object), true, deadline_ns, &first);
	if (r >= 0)
		return r == BACKEND_EXISTS ? settle_root(bundles, place, version, deadline_ns, e) : 0;

	/* Nobody knows how it ended. The same put again tells: it either makes the root or finds what is there. */
	uint64_t grace_ns = env_in_ms(bundles->env, SETTLE_MS);
	int again = backend_write(bundles->backend, key, view_buf(&object), true, grace_ns, NULL);
	if (again < 0)
		return error_set(e, r, "%s", first.text);
	return again == BACKEND_EXISTS ? settle_root(bundles, place, version, grace_ns, e) : 0;
}

/*
 * The number is below the floor. Nobody but a successor, or a rebuild, burns the slot of a coordinator that has kept its lease: so if there
 * was none, it was published, deleted since, as a rule may want it, and folded before its writer knew: 0. -ERR_ESTALEEPOCH; errors of the
 * engine.
 */
static int settle_folded(struct bundles *bundles, const struct slot *slot, const struct fence *fence,
			 uint64_t deadline_ns, struct error *e)
{
	struct error why = { 0 };

	if (!fence || !fence->key.len || slot->generation != cluster_generation(bundles->cluster))
		return -ERR_ESTALEEPOCH;
	int r = check_fence(bundles, fence, deadline_ns, &why);
	if (e)
		*e = why;
	return r;
}

/* The slot was burned long ago, and its tombstone with others folded into the floor: the root that was put there is none. */
static int folded(uint64_t number, struct error *e)
{
	return error_set(e, -ERR_ESTALEEPOCH, "another coordinator has burned version %" PRIu64, number);
}

/*
 * The engine's node may be down, or just come up: it returns, by itself or started again, and until the deadline it is waited for: then nobody
 * need be told that a version is published and not indexed. What the engine refuses, as on a full disk, is not tried again.
 */
static int index_in_time(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t deadline_ns,
			 enum root_state *ret, struct error *e)
{
	for (;;) {
		int r = index_version(bundles, place, number, true, ret, deadline_ns, e);

		if (!cluster_is_away(r) || env_now(bundles->env) >= deadline_ns ||
		    fiber_sleep_until(env_in_ms(bundles->env, ENGINE_AWAY_MS)))
			return r;
	}
}

int publish_index(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t deadline_ns,
		  struct error *e)
{
	uint64_t grace_ns = env_in_ms(bundles->env, SETTLE_MS);
	struct error why = { 0 };
	enum root_state state;
	uint64_t floor;
	int r = index_in_time(bundles, place, number, deadline_ns > grace_ns ? deadline_ns : grace_ns, &state, &why);

	if (!r && state == ROOT_FOLDED)
		return folded(number, e);
	if (r && floor_read(bundles, place, grace_ns, &floor, NULL) == 0 && number < floor)
		return folded(number, e);
	if (r)
		return error_set(e, -ERR_EUNINDEXED, "version %" PRIu64 " is published, but not in the index yet: %s",
				 number, why.code ? why.text : error_meaning(r));
	return 0;
}

struct encoding {
	const struct version *version;
	struct segments *segments;
	struct error *e;
};

/* On a worker: a large version is seconds of hashing. */
static int encode_job(void *arg)
{
	struct encoding *job = arg;
	int r = version_check(job->version, -EINVAL, job->e);

	return r ? r : segments_encode(job->version, job->segments, job->e);
}

int slot_publish(struct bundles *bundles, const struct slot *slot, struct version *version, const struct fence *fence,
		 uint64_t deadline_ns, struct error *e)
{
	CHECK_MAGIC(bundles, BUNDLES_MAGIC);
	_cleanup_(segments_fini) struct segments segments = { 0 };
	struct encoding job = { .version = version, .segments = &segments, .e = e };
	struct place place;

	int r = place_init(view_str(slot->tenant), view_str(slot->bundle), &place, e);
	if (r)
		return r;
	if (adopt(bundles, slot, version))
		return no_memory(e);
	r = check_fence(bundles, fence, deadline_ns, e);
	if (r)
		return r;
	r = env_call(bundles->env, encode_job, &job);
	if (r)
		return r;

	r = publish_segments(bundles, &place, &segments, deadline_ns, e);
	if (r)
		return r;
	version->segments_ns = env_now(bundles->env);
	point_reached(POINT_SEGMENTS_DURABLE);
	point_reached(POINT_ROOT_NEXT);
	r = cluster_hold(bundles->cluster, deadline_ns, e);
	if (!r)
		r = publish_root(bundles, &place, version, &segments, deadline_ns, e);
	if (r)
		return r;
	version->root_ns = env_now(bundles->env);
	point_reached(POINT_ROOT_DURABLE);
	r = publish_index(bundles, &place, version->number, deadline_ns, e);
	if (r == -ERR_ESTALEEPOCH)
		return settle_folded(bundles, slot, fence, deadline_ns, e);
	cache_add(bundles, version);
	version->index_ns = r ? 0 : env_now(bundles->env);
	if (!r)
		point_reached(POINT_INDEX_DURABLE);
	bundles_stir(bundles, &place); /* its rule may now be for others to go */
	return r;
}
