/*
 * door/names.c: what needs no group: versions and their items, lists, labels, administration.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/counter.h"
#include "door/inside.h"

#define UNCLEAR_MAX 1000  /* keys that are told one by one; more are counted */
#define DAMAGES_MAX 10000 /* told one by one; the last says that there are more */

static struct view tenant_of(const struct session *session)
{
	return view_str(session->door->tenant);
}

static uint32_t page_of(uint32_t limit)
{
	return limit && limit < PAGE_MAX ? limit : PAGE_MAX;
}

/* ---- versions --------------------------------------------------------------------------------------------------------------- */

static int version_take(struct session *session, struct version *version, struct msg_open_reply *reply)
{
	uint64_t handle = session->versions.last + 1;
	int r = handles_put(&session->versions, handle, version);

	if (r)
		return r;
	session->versions.last = handle;
	*reply = (struct msg_open_reply){
		.handle = handle,
		.number = version->number,
		.step = version->step,
		.n_items = version->n_items,
		.bytes = version->bytes,
		.unindexed = version->unindexed,
		.attributes = { .count = version->n_attributes, .bytes = view_buf(&version->attributes) },
	};
	return 0;
}

/* The newest that is staged; when none is between staged and durable, the newest that is durable. */
static int open_staged(struct session *session, const struct msg_open *m, uint64_t deadline_ns, struct version **ret,
		       struct error *e)
{
	_cleanup_(rank_release) struct held_rank held = { .session = session };
	struct error none = { 0 };

	if (!m->group)
		return error_set(e, -EINVAL, "a staged version is opened by a rank of the group that saves it");
	int r = rank_hold(session, m->group, &held.rank, e);
	if (r)
		return r;
	r = group_open_staged(held.rank->rank, m->bundle, deadline_ns, ret, &none);
	if (r != -ENOENT)
		return r ? error_set(e, r, "%s", none.code ? none.text : error_meaning(r)) : 0;
	return bundle_open(session->door->options.bundles, tenant_of(session), m->bundle, view_str("latest"),
			   deadline_ns, ret, e);
}

int names_open(struct session *session, const struct msg_open *m, uint64_t deadline_ns, struct version **ret,
	       struct error *e)
{
	if (view_equal(m->version, view_str("staged")))
		return open_staged(session, m, deadline_ns, ret, e);
	return bundle_open(session->door->options.bundles, tenant_of(session), m->bundle, m->version, deadline_ns, ret,
			   e);
}

static int on_open(struct session *session, const struct request *request, struct buf *answer, struct error *e)
{
	struct version *version = NULL;
	struct msg_open_reply reply;
	struct msg_open m;

	if (msg_open_decode(view_buf(&request->body), &m))
		return request_malformed(request, e);
	if (m.group && !handles_get(&session->ranks, m.group))
		return session_lacks(session, "group", m.group, e);
	int r = names_open(session, &m, request->deadline_ns, &version, e);
	if (r)
		return r;
	if (session->versions.map.n >= DOOR_VERSIONS_MAX)
		r = session_is_full(session, "open versions", DOOR_VERSIONS_MAX, e);
	if (!r)
		r = version_take(session, version, &reply);
	if (r) {
		version_put(version);
		return r;
	}
	return msg_open_reply_encode(&reply, answer); /* without memory for that it is closed when the session ends */
}

static int on_close(struct session *session, const struct request *request, struct buf *answer, struct error *e)
{
	struct msg_handle m;

	if (msg_handle_decode(view_buf(&request->body), &m))
		return request_malformed(request, e);
	version_put(handles_remove(&session->versions, m.handle));
	return 0;
}

void names_fini(struct session *session)
{
	uint64_t number;

	for (struct version *version; (version = handles_first(&session->versions, &number));) {
		handles_remove(&session->versions, number);
		version_put(version);
	}
}

static int item_append(struct list_buf *list, const struct version *version, const struct version_item *item)
{
	const struct elem_item_info elem = {
		.name = item->name,
		.dtype = item->dtype,
		.element_bits = item->element_bits,
		.whole = item->whole,
		.bytes = item->bytes,
		.n_pieces = item->n_pieces,
		.unsaved_bytes = item->bytes > item->saved_bytes ? item->bytes - item->saved_bytes : 0,
	};

	return elem_item_info_append(list, &elem);
}

/* The first item with a name greater than @after. */
static size_t first_after(const struct version *version, struct view after)
{
	size_t low = 0, high = after.len ? version->n_items : 0;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (view_compare(version->items[middle].name, after) <= 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static int list_items(const struct version *version, const struct msg_items *m, struct list_buf *list,
		      uint32_t *ret_more, struct error *e)
{
	const struct version_item *item = m->name.len ? version_find(version, m->name) : NULL;
	size_t at = first_after(version, m->after);
	int r = 0;

	if (item)
		return item_append(list, version, item);
	if (m->name.len)
		return error_set(e, -ENOENT, "version %" PRIu64 " of %s has no item \"%.*s\"", version->number,
				 version->bundle, (int)(m->name.len < 200 ? m->name.len : 200),
				 (const char *)m->name.ptr);
	while (!r && at < version->n_items && list->count < page_of(m->limit) && list->bytes.len < ANSWER_PAGE_BYTES)
		r = item_append(list, version, &version->items[at++]);
	*ret_more = at < version->n_items;
	return r;
}

static int on_items(struct session *session, const struct request *request, struct buf *answer, struct error *e)
{
	_cleanup_(list_buf_fini) struct list_buf list = { 0 };
	struct msg_items_reply reply = { 0 };
	struct msg_items m;

	if (msg_items_decode(view_buf(&request->body), &m))
		return request_malformed(request, e);
	const struct version *version = handles_get(&session->versions, m.version);
	if (!version)
		return session_lacks(session, "open version", m.version, e);
	int r = list_items(version, &m, &list, &reply.more, e);
	reply.items = list_buf_view(&list);
	return r ? r : msg_items_reply_encode(&reply, answer);
}

/* ---- lists ------------------------------------------------------------------------------------------------------------------ */

static int list_bundles(struct session *session, const struct request *request, const struct msg_list *m,
			struct list_buf *list, bool *ret_more, struct error *e)
{
	struct bundle_entry *entries = NULL;
	size_t n = 0;
	int r = bundle_list(session->door->options.bundles, tenant_of(session), m->prefix, m->after, page_of(m->limit),
			    request->deadline_ns, &entries, &n, ret_more, e);

	for (size_t i = 0; !r && i < n; i++) {
		const struct elem_bundle elem = {
			.name = view_str(entries[i].name),
			.n_versions = entries[i].n_versions,
			.latest = entries[i].latest,
			.keep_last = entries[i].keep_last,
			.keep_every = entries[i].keep_every,
		};

		r = elem_bundle_append(list, &elem);
	}
	bundle_entries_free(entries, n);
	return r;
}

static int list_versions(struct session *session, const struct request *request, const struct msg_list *m,
			 struct list_buf *list, bool *ret_more, struct error *e)
{
	struct version_entry *entries = NULL;
	size_t n = 0;
	int r = version_list(session->door->options.bundles, tenant_of(session), m->bundle, m->after_number,
			     page_of(m->limit), request->deadline_ns, &entries, &n, ret_more, e);

	for (size_t i = 0; !r && i < n; i++) {
		const struct version_entry *entry = &entries[i];
		const struct elem_version elem = {
			.number = entry->number,
			.step = entry->step,
			.n_items = entry->n_items,
			.bytes = entry->bytes,
			.stored_bytes = entry->stored_bytes,
			.attributes = { .count = entry->n_attributes, .bytes = view_buf(&entry->attributes) },
		};

		r = elem_version_append(list, &elem);
	}
	version_entries_free(entries, n);
	return r;
}

static int list_labels(struct session *session, const struct request *request, const struct msg_list *m,
		       struct list_buf *list, struct error *e)
{
	struct label_entry *entries = NULL;
	size_t n = 0;
	int r = label_list(session->door->options.bundles, tenant_of(session), m->bundle, request->deadline_ns,
			   &entries, &n, e);

	for (size_t i = 0; !r && i < n; i++) {
		const struct elem_label elem = { .label = view_str(entries[i].label), .number = entries[i].number };

		r = elem_label_append(list, &elem);
	}
	label_entries_free(entries, n);
	return r;
}

static int on_list(struct session *session, const struct request *request, struct buf *answer, struct error *e)
{
	_cleanup_(list_buf_fini) struct list_buf bundles = { 0 };
	_cleanup_(list_buf_fini) struct list_buf versions = { 0 };
	_cleanup_(list_buf_fini) struct list_buf labels = { 0 };
	struct msg_list m;
	bool more = false;
	int r;

	if (msg_list_decode(view_buf(&request->body), &m))
		return request_malformed(request, e);
	if (!m.bundle.len) {
		r = list_bundles(session, request, &m, &bundles, &more, e);
	} else {
		r = bundle_name_check(m.bundle, e);
		if (!r)
			r = list_versions(session, request, &m, &versions, &more, e);
		if (!r && !m.after_number)
			r = list_labels(session, request, &m, &labels, e);
		if (!r && !m.after_number && !versions.count && !labels.count)
			r = error_set(e, -ENOENT, "there is no bundle %.*s", (int)m.bundle.len, m.bundle.ptr);
	}
	const struct msg_list_reply reply = {
		.bundles = list_buf_view(&bundles),
		.versions = list_buf_view(&versions),
		.labels = list_buf_view(&labels),
		.more = more,
	};
	return r ? r : msg_list_reply_encode(&reply, answer);
}

/* ---- names ------------------------------------------------------------------------------------------------------------------ */

static int on_label(struct session *session, const struct request *request, struct buf *answer, struct error *e)
{
	struct msg_label m;

	if (msg_label_decode(view_buf(&request->body), &m))
		return request_malformed(request, e);
	int r = bundle_name_check(m.bundle, e);
	if (!r)
		r = label_name_check(m.label, e);
	return r ? r :
		   label_set(session->door->options.bundles, tenant_of(session), m.bundle, m.label, m.expect, m.number,
			     request->deadline_ns, e);
}

static int on_delete(struct session *session, const struct request *request, struct buf *answer, struct error *e)
{
	struct msg_delete m;

	if (msg_delete_decode(view_buf(&request->body), &m))
		return request_malformed(request, e);
	int r = bundle_name_check(m.bundle, e);
	return r ? r :
		   version_delete(session->door->options.bundles, tenant_of(session), m.bundle, m.number,
				  request->deadline_ns, e);
}

static int on_retain(struct session *session, const struct request *request, struct buf *answer, struct error *e)
{
	struct msg_retain m;

	if (msg_retain_decode(view_buf(&request->body), &m))
		return request_malformed(request, e);
	return bundle_retain(session->door->options.bundles, tenant_of(session), m.bundle, m.keep_last, m.keep_every,
			     request->deadline_ns, e);
}

static void add_unclear(void *arg, const char *key)
{
	struct list_buf *list = arg;
	const struct elem_name elem = { .name = view_str(key) };

	if (list->count < UNCLEAR_MAX)
		(void)elem_name_append(list, &elem); /* without memory for one it is counted all the same */
}

static int append_collected(const struct collect_counts *counts, struct list_buf *list)
{
	const struct elem_stat all[] = {
		{ view_str("bundles"), counts->bundles },
		{ view_str("versions_deleted"), counts->rule_versions },
		{ view_str("slots_burned"), counts->slots },
		{ view_str("objects_found"), counts->found },
		{ view_str("objects_freed"), counts->freed },
		{ view_str("bytes_freed"), counts->freed_bytes },
		{ view_str("tombstones_folded"), counts->folded },
		{ view_str("objects_unclear"), counts->unclear },
		{ view_str("packs_missing"), counts->missing },
	};
	int r = 0;

	for (size_t i = 0; !r && i < sizeof(all) / sizeof(all[0]); i++)
		r = elem_stat_append(list, &all[i]);
	return r;
}

static int on_collect(struct session *session, const struct request *request, struct buf *answer, struct error *e)
{
	_cleanup_(list_buf_fini) struct list_buf counts = { 0 };
	_cleanup_(list_buf_fini) struct list_buf unclear = { 0 };
	struct collect_counts found = { 0 };
	struct msg_collect m;

	if (msg_collect_decode(view_buf(&request->body), &m))
		return request_malformed(request, e);
	int r = bundles_collect(session->door->options.bundles, tenant_of(session), m.bundle, request->deadline_ns,
				add_unclear, &unclear, &found, e);
	if (!r)
		r = append_collected(&found, &counts);
	const struct msg_collect_reply reply = { .counts = list_buf_view(&counts), .unclear = list_buf_view(&unclear) };
	return r ? r : msg_collect_reply_encode(&reply, answer);
}

/* ---- administration --------------------------------------------------------------------------------------------------------- */

/* The number of the latest version, which need not be whole. */
static int find_latest(struct session *session, const struct request *request, struct view bundle, uint64_t *ret,
		       struct error *e)
{
	struct bundle_entry *entries = NULL;
	size_t n = 0;
	bool more;
	int r = bundle_list(session->door->options.bundles, tenant_of(session), bundle, (struct view){ 0 }, 1,
			    request->deadline_ns, &entries, &n, &more, e);

	*ret = !r && n && view_equal(view_str(entries[0].name), bundle) ? entries[0].latest : 0;
	bundle_entries_free(entries, n);
	if (r)
		return r;
	return *ret ? 0 : error_set(e, -ENOENT, "%.*s has no version", (int)bundle.len, (const char *)bundle.ptr);
}

static int on_damage(void *arg, const char *object, struct view item, uint64_t block, const char *words)
{
	struct list_buf *damages = arg;
	const struct elem_damage elem = { .object = view_str(object),
					  .item = item,
					  .block = block,
					  .words = view_str(words) };
	const struct elem_damage last = { .block = UINT64_MAX,
					  .words = view_str("there is more damage than can be told here") };

	if (damages->count > DAMAGES_MAX)
		return 0; /* said already */
	return elem_damage_append(damages, damages->count < DAMAGES_MAX ? &elem : &last);
}

static int on_verify(struct session *session, const struct request *request, struct buf *answer, struct error *e)
{
	_cleanup_(list_buf_fini) struct list_buf damages = { 0 };
	struct msg_verify_reply reply = { 0 };
	struct msg_verify m;

	if (msg_verify_decode(view_buf(&request->body), &m))
		return request_malformed(request, e);
	int r = bundle_name_check(m.bundle, e);
	if (!r && !m.number)
		r = find_latest(session, request, m.bundle, &m.number, e);
	if (!r)
		r = bundle_verify(session->door->options.bundles, tenant_of(session), m.bundle, m.number,
				  request->deadline_ns, on_damage, &damages, &reply.blocks, &reply.bytes, e);
	if (r < 0)
		return r;
	reply.number = m.number;
	reply.damages = list_buf_view(&damages);
	return msg_verify_reply_encode(&reply, answer);
}

static int on_rebuild(struct session *session, const struct request *request, struct buf *answer, struct error *e)
{
	struct rebuild_counts counts;

	if (!session_is_admin(session))
		return error_set(
			e, -EACCES,
			"a rebuild concerns all tenants of this cluster: only root and the daemon's own user may ask for "
			"it");
	int r = bundles_rebuild(session->door->options.bundles, request->deadline_ns, &counts, e);

	return r ? r : rebuild_counts_encode(&counts, answer);
}

handler_fn names_handler(enum msg_type type)
{
	switch (type) {
	case MSG_OPEN:
		return on_open;
	case MSG_ITEMS:
		return on_items;
	case MSG_CLOSE:
		return on_close;
	case MSG_LIST:
		return on_list;
	case MSG_LABEL:
		return on_label;
	case MSG_DELETE:
		return on_delete;
	case MSG_VERIFY:
		return on_verify;
	case MSG_REBUILD:
		return on_rebuild;
	case MSG_RETAIN:
		return on_retain;
	case MSG_COLLECT:
		return on_collect;
	default:
		return NULL;
	}
}
