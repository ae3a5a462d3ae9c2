/*
 * bundle/object.c: records in the store, read and written whole, and walks over keys.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "bundle/inside.h"

static int object_open_once(struct bundles *bundles, const char *key, size_t max, struct buf *bytes,
			    struct record_head *ret_head, struct view *ret_body, uint64_t deadline_ns, struct error *e)
{
	bytes->len = 0;
	int r = backend_read(bundles->backend, key, max, bytes, deadline_ns, e);
	if (r == -EFBIG)
		return error_set(e, -ERR_EDAMAGED, "%s: it has more than the %zu bytes that it may have", key, max);
	if (r)
		return r;
	r = record_open(view_buf(bytes), ret_head, ret_body, e);
	if (r)
		(void)error_prefix(e, "%s", key);
	return r;
}

/* A bit that flipped on its way from the store is no damage: a rebuild would leave a durable version out of the index for it. */
int object_open(struct bundles *bundles, const char *key, size_t max, struct buf *bytes, struct record_head *ret_head,
		struct view *ret_body, uint64_t deadline_ns, struct error *e)
{
	struct error once = { 0 };
	int r = object_open_once(bundles, key, max, bytes, ret_head, ret_body, deadline_ns, &once);

	if (r == -ERR_EDAMAGED)
		return object_open_once(bundles, key, max, bytes, ret_head, ret_body, deadline_ns, e);
	return r ? error_set(e, r, "%s", once.text) : 0;
}

int object_put(struct bundles *bundles, const char *key, const struct record_head *head, struct view body,
	       bool if_absent, uint64_t deadline_ns, struct error *e)
{
	_cleanup_(buf_fini) struct buf object = { 0 };
	int r = record_seal(head, body, &object);

	if (r == -E2BIG)
		return error_set(e, r, "%s would have %zu bytes more than such an object may have", key, body.len);
	if (r)
		return no_memory(e);
	return backend_write(bundles->backend, key, view_buf(&object), if_absent, deadline_ns, e);
}

int object_settle(struct bundles *bundles, const char *key, struct view bytes, uint64_t deadline_ns, struct error *e)
{
	int r = backend_write(bundles->backend, key, bytes, true, deadline_ns, e);

	return r == BACKEND_EXISTS ? 0 : r;
}

int object_delete(struct bundles *bundles, const char *key, uint64_t deadline_ns, struct error *e)
{
	_cleanup_(cleanup_backend_call_free) struct backend_call *call = backend_call_new(BACKEND_DELETE, key);

	return call ? backend_call_run(bundles->backend, &call, deadline_ns, e) : no_memory(e);
}

int object_range(struct bundles *bundles, const char *key, uint64_t offset, size_t len, struct buf *ret,
		 uint64_t deadline_ns, struct error *e)
{
	_cleanup_(cleanup_backend_call_free) struct backend_call *call = backend_call_new(BACKEND_GET, key);

	if (!call)
		return no_memory(e);
	call->release = free;
	call->held = call->req.dst = malloc(len + 1);
	if (!call->held)
		return no_memory(e);
	call->known = true; /* a root names it */
	call->req.offset = offset;
	call->req.len = len;
	int r = backend_call_run(bundles->backend, &call, deadline_ns, e);
	if (r)
		return r;

	buf_fini(ret);
	*ret = (struct buf){ .ptr = TAKE(call->held), .len = call->req.got, .cap = len };
	return 0;
}

/* ---- walks ---- */

/* One page: hands its keys to @each; *ret_n: how many there were. */
static int keys_page(struct bundles *bundles, const char *prefix, char *after, keys_fn each, void *arg, size_t *ret_n,
		     uint64_t deadline_ns, struct error *e)
{
	_cleanup_(cleanup_backend_call_free) struct backend_call *call = backend_call_new(BACKEND_LIST, prefix);

	if (!call)
		return no_memory(e);
	memcpy(call->req.after, after, strlen(after) + 1);
	call->req.len = LIST_PAGE;
	int r = backend_call_run(bundles->backend, &call, deadline_ns, e);
	if (r)
		return r;

	*ret_n = call->req.got;
	const char *key = (const char *)call->req.out.ptr;
	for (size_t i = 0; i < call->req.got; i++, key += strlen(key) + 1) {
		if (strcmp(key, after) <= 0)
			continue; /* leapt over */
		memcpy(after, key, strlen(key) + 1);
		r = each(arg, key, after);
		if (r && r != KEYS_LEAP)
			return r;
	}
	return 0;
}

int keys_each(struct bundles *bundles, const char *prefix, keys_fn each, void *arg, uint64_t deadline_ns,
	      struct error *e)
{
	char after[BACKEND_KEY_MAX + 1] = "";
	size_t n = LIST_PAGE;
	int r = 0;

	while (!r && n == LIST_PAGE)
		r = keys_page(bundles, prefix, after, each, arg, &n, deadline_ns, e);
	return r;
}

int key_next(struct bundles *bundles, const char *prefix, const char *after, char ret[BACKEND_KEY_MAX + 1],
	     uint64_t deadline_ns, struct error *e)
{
	_cleanup_(cleanup_backend_call_free) struct backend_call *call = backend_call_new(BACKEND_LIST, prefix);

	if (!call)
		return no_memory(e);
	(void)snprintf(call->req.after, sizeof(call->req.after), "%s", after);
	call->req.len = 1;
	int r = backend_call_run(bundles->backend, &call, deadline_ns, e);
	if (!r)
		(void)snprintf(ret, BACKEND_KEY_MAX + 1, "%s", call->req.got ? (const char *)call->req.out.ptr : "");
	return r;
}

/* ---- bundles that the store has ---- */

void bundle_walk_fini(struct bundle_walk *walk)
{
	buf_fini(&walk->tenant);
	buf_fini(&walk->bundle);
}

/* "t/<tenant>/b/<bundle>/" at the beginning of the walk's key: its length, and the names; 0: it has none. */
static size_t take_names(struct bundle_walk *walk)
{
	struct view parts[4];
	const char *at = walk->key;

	for (int i = 0; i < 4; i++) {
		const char *slash = strchr(at, '/');

		if (!slash)
			return 0;
		parts[i] = view_of(at, (size_t)(slash - at));
		at = slash + 1;
	}
	walk->tenant.len = walk->bundle.len = 0;
	if (!view_equal(parts[0], view_str("t")) || !view_equal(parts[2], view_str("b")) ||
	    name_decode(parts[1], &walk->tenant) || name_decode(parts[3], &walk->bundle))
		walk->bundle.len = 0; /* no bundle of ours */
	return (size_t)(at - walk->key);
}

int bundle_walk_next(struct bundles *bundles, struct bundle_walk *walk, uint64_t deadline_ns, struct error *e)
{
	for (;;) {
		int r = key_next(bundles, walk->prefix, walk->key, walk->key, deadline_ns, e);

		if (r || !*walk->key)
			return r ? r : WALK_ENDED;
		size_t prefix = take_names(walk);
		if (!prefix)
			continue;
		(void)snprintf(walk->key + prefix, sizeof(walk->key) - prefix, "~"); /* behind all of that bundle */
		if (place_init(view_buf(&walk->tenant), view_buf(&walk->bundle), &walk->place, NULL) == 0)
			return 0;
	}
}

/* ---- what lies under a root key ---- */

void root_object_fini(struct root_object *object)
{
	buf_fini(&object->bytes);
}

static int decode_root(struct root_object *object, const struct place *place, uint64_t number, struct view body,
		       struct error *e)
{
	bool tomb = object->head.kind == RECORD_TOMBSTONE;
	int r = 0;

	if (object->head.number != number || (!tomb && object->head.kind != RECORD_ROOT))
		return error_set(e, -ERR_EDAMAGED, "it is the %s of version %" PRIu64,
				 record_kind_name(object->head.kind), object->head.number);
	r = tomb ? rec_tombstone_decode(body, &object->tomb) : rec_root_decode(body, &object->root);
	struct view tenant = tomb ? object->tomb.tenant : object->root.tenant;
	struct view bundle = tomb ? object->tomb.bundle : object->root.bundle;
	if (r || !view_equal(tenant, place->tenant) || !view_equal(bundle, place->bundle))
		return error_set(e, -ERR_EDAMAGED, "it makes no sense, or belongs to another bundle");
	if (!tomb)
		object->state = ROOT_PUBLISHED;
	else
		object->state = object->tomb.reason == TOMBSTONE_BURNED ? ROOT_BURNED : ROOT_DELETED;
	return 0;
}

int root_read(struct bundles *bundles, const struct place *place, uint64_t number, struct root_object *ret,
	      uint64_t deadline_ns, struct error *e)
{
	char key[KEY_BYTES];
	struct error missing = { 0 };
	struct view body;

	ret->state = ROOT_NONE;
	root_key(place, number, key);
	int r = object_open(bundles, key, RECORD_ROOT_MAX, &ret->bytes, &ret->head, &body, deadline_ns, &missing);
	if (r == -ENOENT)
		return 0;
	if (r)
		return error_set(e, r, "%s", missing.text);
	r = decode_root(ret, place, number, body, e);
	if (r)
		(void)error_prefix(e, "%s", key);
	return r;
}

int root_read_known(struct bundles *bundles, const struct place *place, uint64_t number, struct root_object *ret,
		    uint64_t deadline_ns, struct error *e)
{
	uint64_t shown_ns = env_in_ms(bundles->env, BACKEND_NAME_LATE_MS);
	int r = root_read(bundles, place, number, ret, deadline_ns, e);

	while (!r && ret->state == ROOT_NONE && env_now(bundles->env) < shown_ns) {
		r = fiber_sleep_until(env_in_ms(bundles->env, LOOK_AGAIN_MS));
		if (!r)
			r = root_read(bundles, place, number, ret, deadline_ns, e);
	}
	return r;
}
