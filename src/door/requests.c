/*
 * door/requests.c: each request of a client: decoded, checked, handed over, answered.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "door/session.h"

#define DAMAGES_MAX 10000 /* named by one VERIFY */

CLEANUP_OF(struct version *, version_put);

#define MALFORMED(e, name) error_set(e, -EPROTO, "malformed " name)

/* ---- groups and saves --------------------------------------------------------------------------------------------------- */

static int serve_join(struct request *request, struct view body, uint64_t deadline_ns, struct buf *answer,
		      struct error *e)
{
	struct session *session = request->session;
	struct msg_join_reply reply = { 0 };
	struct rank_events events;
	struct msg_join m;
	struct rank *rank;
	int r;

	if (msg_join_decode(body, &m))
		return MALFORMED(e, "JOIN");
	r = group_join(session->door->options.groups, session_tenant(session), &m, session_events(session, &events),
		       deadline_ns, &rank, &reply, e);
	if (r)
		return r;
	r = handle_new(session, &session->ranks, rank, &reply.handle);
	if (r) {
		group_leave(rank, "its session holds too many groups");
		return r;
	}
	return msg_join_reply_encode(&reply, answer);
}

static int serve_leave(struct request *request, struct view body, uint64_t deadline_ns, struct buf *answer,
		       struct error *e)
{
	struct msg_handle m;

	if (msg_handle_decode(body, &m))
		return MALFORMED(e, "LEAVE");
	struct rank *rank = map_remove(&request->session->ranks, number_key(&m.handle));
	if (rank)
		group_leave(rank, "it left the group");
	return 0;
}

static struct rank *find_rank(struct request *request, uint64_t handle, struct error *e)
{
	struct rank *rank = map_get(&request->session->ranks, number_key(&handle));

	if (!rank)
		(void)error_set(e, -EBADF, "group %" PRIu64 " is not open in this session", handle);
	return rank;
}

static int serve_save(struct request *request, struct view body, uint64_t deadline_ns, struct buf *answer,
		      struct error *e)
{
	struct msg_save_reply reply;
	struct msg_save m;

	if (msg_save_decode(body, &m))
		return MALFORMED(e, "SAVE");
	struct rank *rank = find_rank(request, m.group, e);
	int r = rank ? group_save(rank, &m, deadline_ns, &reply, e) : -EBADF;
	return r ? r : msg_save_reply_encode(&reply, answer);
}

static int serve_filled(struct request *request, struct view body, uint64_t deadline_ns, struct buf *answer,
			struct error *e)
{
	struct session *session = request->session;
	struct msg_filled m;

	if (msg_filled_decode(body, &m))
		return MALFORMED(e, "FILLED");
	struct rank *rank = find_rank(request, m.group, e);
	int r = rank ? group_filled(rank, &m, e) : 0; /* it has left: the save fails by that */
	if (r && r != -EPROTO)
		session_end(session, e->code ? e->text : error_meaning(r)); /* what it captured is not what it says */
	return r;
}

static int serve_cancel(struct request *request, struct view body, uint64_t deadline_ns, struct buf *answer,
			struct error *e)
{
	struct msg_cancel m;

	if (msg_cancel_decode(body, &m))
		return MALFORMED(e, "CANCEL");
	struct rank *rank = m.group ? map_get(&request->session->ranks, number_key(&m.group)) : NULL;
	if (rank)
		group_cancel(rank, m.number);
	else if (!m.group)
		load_cancel(request->session, m.number);
	return 0;
}

/* ---- versions ----------------------------------------------------------------------------------------------------------- */

static int serve_open(struct request *request, struct view body, uint64_t deadline_ns, struct buf *answer,
		      struct error *e)
{
	struct session *session = request->session;
	_cleanup_(cleanup_version_put) struct version *version = NULL;
	struct msg_open m;
	int r;

	if (msg_open_decode(body, &m))
		return MALFORMED(e, "OPEN");
	r = bundle_open(session->door->options.bundles, session_tenant(session), m.bundle, m.version, deadline_ns,
			&version, e);
	if (r)
		return r;
	struct msg_open_reply reply = { .number = version->number,
					.step = version->step,
					.n_items = version->n_items,
					.bytes = version->bytes,
					.attributes = { .count = version->n_attributes,
							.bytes = view_buf(&version->attributes) } };
	r = handle_new(session, &session->versions, version, &reply.handle);
	if (r)
		return error_set(e, r, "this session holds too many versions open");
	r = msg_open_reply_encode(&reply, answer);
	TAKE(version);
	return r;
}

static int serve_close(struct request *request, struct view body, uint64_t deadline_ns, struct buf *answer,
		       struct error *e)
{
	struct msg_handle m;

	if (msg_handle_decode(body, &m))
		return MALFORMED(e, "CLOSE");
	version_put(map_remove(&request->session->versions, number_key(&m.handle))); /* loads hold it themselves */
	return 0;
}

static int append_item(const struct version_item *item, struct list_buf *items)
{
	struct elem_item_info info = { .name = item->name,
				       .dtype = item->dtype,
				       .element_bits = item->element_bits,
				       .whole = item->whole,
				       .bytes = item->bytes,
				       .n_pieces = item->n_pieces };

	return elem_item_info_append(items, &info);
}

/* The first item with a name greater than @after: items are sorted. */
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

static int serve_items(struct request *request, struct view body, uint64_t deadline_ns, struct buf *answer,
		       struct error *e)
{
	struct msg_items_reply reply = { 0 };
	struct list_buf items = { 0 };
	struct msg_items m;
	int r = 0;

	if (msg_items_decode(body, &m))
		return MALFORMED(e, "ITEMS");
	const struct version *version = map_get(&request->session->versions, number_key(&m.version));
	if (!version)
		return error_set(e, -EBADF, "version handle %" PRIu64 " is not open in this session", m.version);
	if (m.name.len) {
		const struct version_item *item = version_find(version, m.name);

		if (!item)
			return error_set(e, -ENOENT, "version %" PRIu64 " of %s has no item \"%.*s\"", version->number,
					 version->bundle, (int)m.name.len, m.name.ptr);
		r = append_item(item, &items);
	} else {
		size_t at = first_after(version, m.after);

		while (!r && at < version->n_items && items.count < m.limit && items.bytes.len < ITEMS_BYTES_MAX)
			r = append_item(&version->items[at++], &items);
		reply.more = at < version->n_items;
	}
	reply.items = list_buf_view(&items);
	if (!r)
		r = msg_items_reply_encode(&reply, answer);
	list_buf_fini(&items);
	return r;
}

/* ---- names -------------------------------------------------------------------------------------------------------------- */

static uint32_t page(uint32_t limit)
{
	return limit && limit < PAGE_MAX ? limit : PAGE_MAX;
}

static int list_bundles(struct request *request, const struct msg_list *m, uint64_t deadline_ns, struct buf *answer,
			struct error *e)
{
	struct bundle_entry *entries = NULL;
	struct list_buf list = { 0 };
	struct msg_list_reply reply = { 0 };
	size_t n = 0;
	bool more = false;
	int r = bundle_list(request->session->door->options.bundles, session_tenant(request->session), m->prefix,
			    m->after, page(m->limit), deadline_ns, &entries, &n, &more, e);

	for (size_t i = 0; !r && i < n; i++) {
		struct elem_bundle bundle = { .name = view_str(entries[i].name),
					      .n_versions = entries[i].n_versions,
					      .latest = entries[i].latest };

		r = elem_bundle_append(&list, &bundle);
	}
	reply.bundles = list_buf_view(&list);
	reply.more = more;
	if (!r)
		r = msg_list_reply_encode(&reply, answer);
	bundle_entries_free(entries, n);
	list_buf_fini(&list);
	return r;
}

static int list_labels(struct request *request, const struct msg_list *m, uint64_t deadline_ns, struct list_buf *list,
		       struct error *e)
{
	struct label_entry *entries = NULL;
	size_t n = 0;
	int r = label_list(request->session->door->options.bundles, session_tenant(request->session), m->bundle,
			   deadline_ns, &entries, &n, e);

	for (size_t i = 0; !r && i < n; i++) {
		struct elem_label label = { .label = view_str(entries[i].label), .number = entries[i].number };

		r = elem_label_append(list, &label);
	}
	label_entries_free(entries, n);
	return r;
}

static int list_versions(struct request *request, const struct msg_list *m, uint64_t deadline_ns, struct buf *answer,
			 struct error *e)
{
	struct version_entry *entries = NULL;
	struct list_buf list = { 0 }, labels = { 0 };
	struct msg_list_reply reply = { 0 };
	size_t n = 0;
	bool more = false;
	int r = version_list(request->session->door->options.bundles, session_tenant(request->session), m->bundle,
			     m->after_number, page(m->limit), deadline_ns, &entries, &n, &more, e);

	for (size_t i = 0; !r && i < n; i++) {
		struct elem_version version = { .number = entries[i].number,
						.step = entries[i].step,
						.n_items = entries[i].n_items,
						.bytes = entries[i].bytes,
						.stored_bytes = entries[i].stored_bytes,
						.attributes = { .count = entries[i].n_attributes,
								.bytes = view_buf(&entries[i].attributes) } };

		r = elem_version_append(&list, &version);
	}
	if (!r)
		r = list_labels(request, m, deadline_ns, &labels, e);
	reply.versions = list_buf_view(&list);
	reply.labels = list_buf_view(&labels);
	reply.more = more;
	if (!r)
		r = msg_list_reply_encode(&reply, answer);
	version_entries_free(entries, n);
	list_buf_fini(&list);
	list_buf_fini(&labels);
	return r;
}

static int serve_list(struct request *request, struct view body, uint64_t deadline_ns, struct buf *answer,
		      struct error *e)
{
	struct msg_list m;

	if (msg_list_decode(body, &m))
		return MALFORMED(e, "LIST");
	return m.bundle.len ? list_versions(request, &m, deadline_ns, answer, e) :
			      list_bundles(request, &m, deadline_ns, answer, e);
}

static int serve_label(struct request *request, struct view body, uint64_t deadline_ns, struct buf *answer,
		       struct error *e)
{
	struct msg_label m;

	if (msg_label_decode(body, &m))
		return MALFORMED(e, "LABEL");
	return label_set(request->session->door->options.bundles, session_tenant(request->session), m.bundle, m.label,
			 m.expect, m.number, deadline_ns, e);
}

static int serve_delete(struct request *request, struct view body, uint64_t deadline_ns, struct buf *answer,
			struct error *e)
{
	struct msg_delete m;

	if (msg_delete_decode(body, &m))
		return MALFORMED(e, "DELETE");
	return version_delete(request->session->door->options.bundles, session_tenant(request->session), m.bundle,
			      m.number, deadline_ns, e);
}

/* ---- administration ----------------------------------------------------------------------------------------------------- */

static int append_nodes(struct request *request, uint64_t deadline_ns, struct list_buf *nodes)
{
	const struct door_native_options *options = &request->session->door->options;
	struct node_info *infos = NULL;
	struct pool_stats pool;
	size_t n = 0;
	int r = options->ready(options->arg, NULL) ? 0 : cluster_nodes(options->cluster, deadline_ns, &infos, &n, NULL);

	pool_stats(store_pool(options->store), &pool);
	for (size_t i = 0; !r && i < n; i++) {
		bool own = view_equal(view_str(infos[i].name), view_str(cluster_node(options->cluster)));
		struct elem_node node = { .name = view_str(infos[i].name),
					  .address = view_str(infos[i].address),
					  .domain = view_str(infos[i].domain),
					  .incarnation = infos[i].incarnation,
					  .up = infos[i].up };

		if (own) { /* each daemon knows its own pool */
			node.pool_bytes = pool.bytes[POOL_CAPTURE] + pool.bytes[POOL_READ];
			node.pool_used_bytes = pool.used_bytes[POOL_CAPTURE] + pool.used_bytes[POOL_READ];
		}
		r = elem_node_append(nodes, &node);
	}
	free(infos);
	return r;
}

static int append_counters(struct request *request, struct list_buf *counters)
{
	struct store_stats store;
	struct pool_stats pool;
	int r = 0;

	store_stats(request->session->door->options.store, &store);
	pool_stats(store_pool(request->session->door->options.store), &pool);
	const struct {
		const char *name;
		uint64_t value;
	} list[] = {
		{ "clients", request->session->door->n_sessions },
		{ "pool_blocks", pool.blocks },
		{ "pool_evictions", pool.evictions },
		{ "pool_capture_used_bytes", pool.used_bytes[POOL_CAPTURE] },
		{ "pool_capture_clean_bytes", pool.clean_bytes[POOL_CAPTURE] },
		{ "pool_read_used_bytes", pool.used_bytes[POOL_READ] },
		{ "pool_read_clean_bytes", pool.clean_bytes[POOL_READ] },
		{ "store_hits", store.hits },
		{ "store_peer_fetches", store.peer_fetches },
		{ "store_peer_bytes", store.peer_bytes },
		{ "store_backend_reads", store.backend_reads },
		{ "store_backend_bytes", store.backend_bytes },
		{ "store_damaged", store.damaged },
	};

	for (size_t i = 0; !r && i < ARRAY_LEN(list); i++) {
		struct elem_stat stat = { .name = view_str(list[i].name), .value = list[i].value };

		r = elem_stat_append(counters, &stat);
	}
	return r;
}

static int serve_status(struct request *request, struct view body, uint64_t deadline_ns, struct buf *answer,
			struct error *e)
{
	const struct door_native_options *options = &request->session->door->options;
	struct list_buf nodes = { 0 }, saves = { 0 }, counters = { 0 };
	struct msg_status_reply reply = { .node = view_str(cluster_node(options->cluster)),
					  .cluster = view_str(cluster_id(options->cluster)),
					  .generation = cluster_generation(options->cluster) };
	int r = append_nodes(request, deadline_ns, &nodes);

	if (!r)
		r = groups_status(options->groups, &saves);
	if (!r)
		r = append_counters(request, &counters);
	reply.nodes = list_buf_view(&nodes);
	reply.saves = list_buf_view(&saves);
	reply.counters = list_buf_view(&counters);
	if (!r)
		r = msg_status_reply_encode(&reply, answer);
	list_buf_fini(&nodes);
	list_buf_fini(&saves);
	list_buf_fini(&counters);
	return r;
}

static int take_damage(void *arg, const char *object, struct view item, uint64_t block, const char *words)
{
	struct list_buf *damages = arg;
	struct elem_damage damage = { .object = view_str(object),
				      .item = item,
				      .block = block,
				      .words = view_str(words) };

	return damages->count < DAMAGES_MAX ? elem_damage_append(damages, &damage) : -E2BIG;
}

/* The number that "latest" means, from the index alone: the version itself may be damaged. */
static int latest_number(struct request *request, struct view bundle, uint64_t deadline_ns, uint64_t *ret,
			 struct error *e)
{
	struct bundle_entry *entries = NULL;
	size_t n = 0;
	bool more;
	int r = bundle_list(request->session->door->options.bundles, session_tenant(request->session), bundle,
			    (struct view){ 0 }, 1, deadline_ns, &entries, &n, &more, e);

	if (!r && (!n || !view_equal(view_str(entries[0].name), bundle) || !entries[0].latest))
		r = error_set(e, -ENOENT, "there is no version of bundle %.*s", (int)bundle.len, bundle.ptr);
	if (!r)
		*ret = entries[0].latest;
	bundle_entries_free(entries, n);
	return r;
}

static int serve_verify(struct request *request, struct view body, uint64_t deadline_ns, struct buf *answer,
			struct error *e)
{
	struct list_buf damages = { 0 };
	struct msg_verify_reply reply = { 0 };
	struct msg_verify m;
	int r = 0;

	if (msg_verify_decode(body, &m))
		return MALFORMED(e, "VERIFY");
	reply.number = m.number;
	if (!m.number)
		r = latest_number(request, m.bundle, deadline_ns, &reply.number, e);
	if (!r)
		r = bundle_verify(request->session->door->options.bundles, session_tenant(request->session), m.bundle,
				  reply.number, deadline_ns, take_damage, &damages, &reply.blocks, &reply.bytes, e);
	reply.damages = list_buf_view(&damages);
	if (!r)
		r = msg_verify_reply_encode(&reply, answer);
	list_buf_fini(&damages);
	return r;
}

static int serve_rebuild(struct request *request, struct view body, uint64_t deadline_ns, struct buf *answer,
			 struct error *e)
{
	struct rebuild_counts counts;
	int r = bundles_rebuild(request->session->door->options.bundles, deadline_ns, &counts, e);

	if (r)
		return r;
	struct msg_rebuild_reply reply = { .bundles = counts.bundles,
					   .versions = counts.versions,
					   .labels = counts.labels,
					   .generation = counts.generation };
	return msg_rebuild_reply_encode(&reply, answer);
}

static int serve_ping(struct request *request, struct view body, uint64_t deadline_ns, struct buf *answer,
		      struct error *e)
{
	return 0;
}

/* ---- the table ---------------------------------------------------------------------------------------------------------- */

static const struct {
	enum msg_type type;
	request_fn fn;
	bool early;
} table[] = {
	{ MSG_PING, serve_ping, true },	     { MSG_JOIN, serve_join, false },	    { MSG_LEAVE, serve_leave, false },
	{ MSG_SAVE, serve_save, false },     { MSG_FILLED, serve_filled, false },   { MSG_CANCEL, serve_cancel, false },
	{ MSG_OPEN, serve_open, false },     { MSG_ITEMS, serve_items, false },	    { MSG_CLOSE, serve_close, false },
	{ MSG_LOAD, serve_load, false },     { MSG_RELEASE, serve_release, false }, { MSG_LIST, serve_list, false },
	{ MSG_LABEL, serve_label, false },   { MSG_DELETE, serve_delete, false },   { MSG_STATUS, serve_status, true },
	{ MSG_VERIFY, serve_verify, false }, { MSG_REBUILD, serve_rebuild, true },
};

request_fn request_find(unsigned type)
{
	for (size_t i = 0; i < ARRAY_LEN(table); i++)
		if (table[i].type == type)
			return table[i].fn;
	return NULL;
}

bool request_is_early(unsigned type)
{
	for (size_t i = 0; i < ARRAY_LEN(table); i++)
		if (table[i].type == type)
			return table[i].early;
	return false;
}
