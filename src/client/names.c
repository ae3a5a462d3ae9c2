/*
 * client/names.c: bundles, versions and labels by name, and administration: one request each, lists page by page.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/session.h"

#define PAGE 1000 /* entries asked for at once */

static int malformed(const char *what, struct error *e)
{
	return error_set(e, -EPROTO, "the daemon's %s cannot be read", what);
}

static int ask_list(struct forebay_session *session, const struct msg_list *m, struct buf *answer,
		    struct msg_list_reply *reply, struct error *e)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	int r = msg_list_encode(m, &body);

	r = session_call(session, MSG_LIST, &body, r, CALL_MS, answer, e);
	if (r)
		return r;
	return msg_list_reply_decode(view_buf(answer), reply) ? malformed("list", e) : 0;
}

/* ---- bundles -------------------------------------------------------------------------------------------------------------------- */

/* Tells of one page: 0, 1 when the application wants no more. @last: the last name told of. */
static int tell_bundles(struct list_view bundles, int (*each)(void *arg, const struct forebay_bundle_info *info),
			void *arg, struct buf *last, struct error *e)
{
	struct elem_bundle elem;
	int r;

	while (!(r = elem_bundle_next(&bundles, &elem))) {
		last->len = 0;
		if (buf_append(last, elem.name.ptr, elem.name.len) || buf_append_zero(last, 1))
			return error_set(e, -ENOMEM, "no memory for a name");
		const struct forebay_bundle_info info = {
			.size = sizeof(info),
			.name = (const char *)last->ptr,
			.versions = elem.n_versions,
			.latest = elem.latest,
			.keep_last = elem.keep_last,
			.keep_every = elem.keep_every,
		};
		if (each(arg, &info))
			return 1;
	}
	return r == 1 ? 0 : malformed("list of bundles", e);
}

int forebay_list_bundles(struct forebay_session *session, const char *prefix,
			 int (*each)(void *arg, const struct forebay_bundle_info *info), void *arg)
{
	_cleanup_(buf_fini) struct buf last = { 0 };
	struct error e = { 0 };
	bool more = true;
	int r = 0;

	if (!session || !each)
		return api_fail(-EINVAL, "list_bundles: no session, or nobody to tell");
	while (!r && more) {
		_cleanup_(buf_fini) struct buf answer = { 0 };
		const struct msg_list m = {
			.prefix = view_str(prefix),
			.after = view_of(last.ptr, last.len ? last.len - 1 : 0),
			.limit = PAGE,
		};
		struct msg_list_reply reply;

		r = ask_list(session, &m, &answer, &reply, &e);
		if (!r) {
			more = reply.more && reply.bundles.count;
			r = tell_bundles(reply.bundles, each, arg, &last, &e);
		}
	}
	return r == 1 ? 0 : api_result(r, &e);
}

/* ---- versions and labels ---------------------------------------------------------------------------------------------------------- */

static int tell_versions(struct list_view versions, int (*each)(void *arg, const struct forebay_version_entry *entry),
			 void *arg, uint64_t *last, struct error *e)
{
	struct elem_version elem;
	int r;

	while (!(r = elem_version_next(&versions, &elem))) {
		struct attributes attributes;

		r = attributes_take(&attributes, elem.attributes);
		if (r)
			return error_set(e, r, "the attributes of version %" PRIu64 ": %s", elem.number,
					 error_meaning(r));
		const struct forebay_version_entry entry = {
			.size = sizeof(entry),
			.number = elem.number,
			.step = elem.step,
			.items = elem.n_items,
			.bytes = elem.bytes,
			.stored_bytes = elem.stored_bytes,
			.attributes = attributes.list,
			.n_attributes = attributes.n,
		};
		*last = elem.number;
		int stop = each(arg, &entry);
		attributes_fini(&attributes);
		if (stop)
			return 1;
	}
	return r == 1 ? 0 : malformed("list of versions", e);
}

int forebay_list_versions(struct forebay_session *session, const char *bundle,
			  int (*each)(void *arg, const struct forebay_version_entry *entry), void *arg)
{
	struct error e = { 0 };
	uint64_t last = 0;
	bool more = true;
	int r = 0;

	if (!session || !each || !bundle || !*bundle)
		return api_fail(-EINVAL, "list_versions: it needs a session, a bundle's name and somebody to tell");
	while (!r && more) {
		_cleanup_(buf_fini) struct buf answer = { 0 };
		const struct msg_list m = { .bundle = view_str(bundle), .after_number = last, .limit = PAGE };
		struct msg_list_reply reply;

		r = ask_list(session, &m, &answer, &reply, &e);
		if (!r) {
			more = reply.more && reply.versions.count;
			r = tell_versions(reply.versions, each, arg, &last, &e);
		}
	}
	return r == 1 ? 0 : api_result(r, &e);
}

int forebay_list_labels(struct forebay_session *session, const char *bundle,
			int (*each)(void *arg, const char *label, uint64_t number), void *arg)
{
	_cleanup_(buf_fini) struct buf answer = { 0 };
	struct error e = { 0 };

	if (!session || !each || !bundle || !*bundle)
		return api_fail(-EINVAL, "list_labels: it needs a session, a bundle's name and somebody to tell");
	const struct msg_list m = { .bundle = view_str(bundle), .limit = 1 };
	struct msg_list_reply reply;
	struct elem_label elem;
	int r = ask_list(session, &m, &answer, &reply, &e);
	if (r)
		return api_result(r, &e);
	while (!(r = elem_label_next(&reply.labels, &elem))) {
		_cleanup_(cleanup_mem) char *label = view_dup(elem.label);

		if (!label)
			return api_fail(-ENOMEM, "no memory for a label");
		if (each(arg, label, elem.number))
			return 0;
	}
	return r == 1 ? 0 : api_result(malformed("list of labels", &e), &e);
}

static int simple_call(struct forebay_session *session, enum msg_type type, const struct buf *body, int encoded)
{
	_cleanup_(buf_fini) struct buf answer = { 0 };
	struct error e = { 0 };

	return api_result(session_call(session, type, body, encoded, CALL_MS, &answer, &e), &e);
}

int forebay_label(struct forebay_session *session, const char *bundle, const char *label, uint64_t expect,
		  uint64_t number)
{
	_cleanup_(buf_fini) struct buf body = { 0 };

	if (!session || !bundle || !*bundle || !label || !*label)
		return api_fail(-EINVAL, "label: it needs a session, a bundle's name and a label");
	const struct msg_label m = { .bundle = view_str(bundle),
				     .label = view_str(label),
				     .expect = expect,
				     .number = number };
	int r = msg_label_encode(&m, &body);
	return simple_call(session, MSG_LABEL, &body, r);
}

int forebay_delete(struct forebay_session *session, const char *bundle, uint64_t number)
{
	_cleanup_(buf_fini) struct buf body = { 0 };

	if (!session || !bundle || !*bundle || !number)
		return api_fail(-EINVAL, "delete: it needs a session, a bundle's name and a version's number");
	const struct msg_delete m = { .bundle = view_str(bundle), .number = number };
	int r = msg_delete_encode(&m, &body);
	return simple_call(session, MSG_DELETE, &body, r);
}

int forebay_retain(struct forebay_session *session, const char *bundle, uint64_t keep_last, uint64_t keep_every)
{
	_cleanup_(buf_fini) struct buf body = { 0 };

	if (!session || !bundle || !*bundle)
		return api_fail(-EINVAL, "retain: it needs a session and a bundle's name");
	const struct msg_retain m = { .bundle = view_str(bundle), .keep_last = keep_last, .keep_every = keep_every };
	int r = msg_retain_encode(&m, &body);
	return simple_call(session, MSG_RETAIN, &body, r);
}

/* ---- administration ----------------------------------------------------------------------------------------------------------------- */

/* How many damages were told of, or negative. */
static int tell_damages(struct list_view damages, void (*each)(void *arg, const struct forebay_damage *damage),
			void *arg, struct error *e)
{
	struct elem_damage elem;
	int r, n = 0;

	while (!(r = elem_damage_next(&damages, &elem))) {
		_cleanup_(cleanup_mem) char *object = view_dup(elem.object);
		_cleanup_(cleanup_mem) char *item = view_dup(elem.item);
		_cleanup_(cleanup_mem) char *words = view_dup(elem.words);
		const struct forebay_damage damage = { .size = sizeof(damage),
						       .object = object,
						       .item = item,
						       .words = words,
						       .block = elem.block };

		if (!object || !item || !words)
			return error_set(e, -ENOMEM, "no memory for a damage's words");
		if (each)
			each(arg, &damage);
		n++;
	}
	return r == 1 ? n : malformed("report of a verification", e);
}

int forebay_verify(struct forebay_session *session, const char *bundle, uint64_t number,
		   void (*each)(void *arg, const struct forebay_damage *damage), void *arg, uint64_t *ret_bytes)
{
	_cleanup_(buf_fini) struct buf body = { 0 }, answer = { 0 };
	struct msg_verify_reply reply;
	struct error e = { 0 };

	if (!session || !bundle || !*bundle)
		return api_fail(-EINVAL, "verify: it needs a session and a bundle's name");
	const struct msg_verify m = { .bundle = view_str(bundle), .number = number };
	int r = msg_verify_encode(&m, &body);
	r = session_call(session, MSG_VERIFY, &body, r, LONG_CALL_MS, &answer, &e);
	if (!r && msg_verify_reply_decode(view_buf(&answer), &reply))
		r = malformed("report of a verification", &e);
	if (r)
		return api_result(r, &e);
	r = tell_damages(reply.damages, each, arg, &e);
	if (r >= 0 && ret_bytes)
		*ret_bytes = reply.bytes;
	return api_result(r, &e);
}

static int tell_nodes(struct list_view nodes, const struct forebay_status_events *events, void *arg)
{
	struct elem_node elem;
	int r;

	while (!(r = elem_node_next(&nodes, &elem))) {
		_cleanup_(cleanup_mem) char *name = view_dup(elem.name);
		_cleanup_(cleanup_mem) char *address = view_dup(elem.address);
		_cleanup_(cleanup_mem) char *domain = view_dup(elem.domain);
		_cleanup_(cleanup_mem) char *http = view_dup(elem.http);
		const struct forebay_node_info info = {
			.size = sizeof(info),
			.name = name,
			.address = address,
			.domain = domain,
			.incarnation = elem.incarnation,
			.pool_bytes = elem.pool_bytes,
			.pool_used_bytes = elem.pool_used_bytes,
			.up = (int)elem.up,
			.http = http,
			.clients = elem.clients,
			.captured_bytes = elem.captured_bytes,
			.copied_bytes = elem.copied_bytes,
			.uploaded_bytes = elem.uploaded_bytes,
			.read_bytes = elem.read_bytes,
			.clients_stopped = elem.clients_stopped,
			.silent = (int)elem.silent,
			.unheard_ms = elem.unheard_ms,
		};

		if (!name || !address || !domain || !http)
			return -ENOMEM;
		if (events->node)
			events->node(arg, &info);
	}
	return r == 1 ? 0 : r;
}

static int tell_saves(struct list_view saves, const struct forebay_status_events *events, void *arg)
{
	struct elem_save_status elem;
	int r;

	while (!(r = elem_save_status_next(&saves, &elem))) {
		_cleanup_(cleanup_mem) char *group = view_dup(elem.group);
		_cleanup_(cleanup_mem) char *bundle = view_dup(elem.bundle);
		_cleanup_(cleanup_mem) char *state = view_dup(elem.state);
		const struct forebay_save_info info = {
			.size = sizeof(info),
			.save = elem.save_id,
			.group = group,
			.bundle = bundle,
			.state = state,
			.step = elem.step,
			.bytes = elem.bytes,
		};

		if (!group || !bundle || !state)
			return -ENOMEM;
		if (events->save)
			events->save(arg, &info);
	}
	return r == 1 ? 0 : r;
}

static int tell_counters(struct list_view counters, const struct forebay_status_events *events, void *arg)
{
	struct elem_stat elem;
	int r;

	while (!(r = elem_stat_next(&counters, &elem))) {
		_cleanup_(cleanup_mem) char *name = view_dup(elem.name);

		if (!name)
			return -ENOMEM;
		if (events->counter)
			events->counter(arg, name, elem.value);
	}
	return r == 1 ? 0 : r;
}

static int tell_status(const struct msg_status_reply *m, const struct forebay_status_events *events, void *arg)
{
	_cleanup_(cleanup_mem) char *cluster = view_dup(m->cluster);
	_cleanup_(cleanup_mem) char *node = view_dup(m->node);
	_cleanup_(cleanup_mem) char *words = view_dup(m->index_words);
	_cleanup_(cleanup_mem) char *engine = view_dup(m->index_node);
	_cleanup_(cleanup_mem) char *address = view_dup(m->index_address);
	_cleanup_(cleanup_mem) char *not_joined = view_dup(m->not_joined);

	if (!cluster || !node || !words || !engine || !address || !not_joined)
		return -ENOMEM;
	if (events->cluster)
		events->cluster(arg, cluster, node, m->generation);
	if (events->index_lost && *words)
		events->index_lost(arg, engine, address, m->index_unheard_ms, words);
	if (events->not_joined && *not_joined)
		events->not_joined(arg, not_joined);
	int r = tell_nodes(m->nodes, events, arg);
	if (!r)
		r = tell_saves(m->saves, events, arg);
	return r ? r : tell_counters(m->counters, events, arg);
}

int forebay_status(struct forebay_session *session, const struct forebay_status_events *events, void *arg)
{
	_cleanup_(buf_fini) struct buf answer = { 0 };
	const struct buf body = { 0 };
	struct forebay_status_events own;
	struct msg_status_reply reply;
	struct error e = { 0 };

	if (!session)
		return api_fail(-EINVAL, "status: no session");
	int r = api_take(&own, sizeof(own), events, "struct forebay_status_events", &e);
	if (!r)
		r = session_call(session, MSG_STATUS, &body, 0, SEEN_CALL_MS, &answer, &e);
	if (r)
		return api_result(r, &e);
	r = msg_status_reply_decode(view_buf(&answer), &reply);
	if (!r)
		r = tell_status(&reply, &own, arg);
	return r ? api_fail(r, "the daemon's status: %s", error_meaning(r)) : 0;
}

static int tell_unclear(struct list_view keys, const struct forebay_collect_events *events, void *arg)
{
	struct elem_name elem;
	int r;

	while (!(r = elem_name_next(&keys, &elem))) {
		_cleanup_(cleanup_mem) char *key = view_dup(elem.name);

		if (!key)
			return -ENOMEM;
		if (events->unclear)
			events->unclear(arg, key);
	}
	return r == 1 ? 0 : r;
}

int forebay_collect(struct forebay_session *session, const char *bundle, const struct forebay_collect_events *events,
		    void *arg)
{
	_cleanup_(buf_fini) struct buf body = { 0 }, answer = { 0 };
	struct forebay_collect_events own;
	struct msg_collect_reply reply;
	struct error e = { 0 };

	if (!session)
		return api_fail(-EINVAL, "collect: no session");
	int r = api_take(&own, sizeof(own), events, "struct forebay_collect_events", &e);
	if (r)
		return api_result(r, &e);
	const struct msg_collect m = { .bundle = bundle ? view_str(bundle) : (struct view){ 0 } };
	const struct forebay_status_events figures = { .size = sizeof(figures), .counter = own.figure };
	r = msg_collect_encode(&m, &body);
	r = session_call(session, MSG_COLLECT, &body, r, LONG_CALL_MS, &answer, &e);
	if (!r && msg_collect_reply_decode(view_buf(&answer), &reply))
		r = malformed("answer to a collection", &e);
	if (r)
		return api_result(r, &e);
	r = tell_counters(reply.counts, &figures, arg);
	if (!r)
		r = tell_unclear(reply.unclear, &own, arg);
	return r ? api_fail(r, "the daemon's figures: %s", error_meaning(r)) : 0;
}

int forebay_meta_rebuild(struct forebay_session *session, uint64_t *ret_bundles, uint64_t *ret_versions,
			 uint64_t *ret_labels)
{
	_cleanup_(buf_fini) struct buf answer = { 0 };
	const struct buf body = { 0 };
	struct msg_rebuild_reply reply;
	struct error e = { 0 };

	if (!session)
		return api_fail(-EINVAL, "meta_rebuild: no session");
	int r = session_call(session, MSG_REBUILD, &body, 0, LONG_CALL_MS, &answer, &e);
	if (!r && msg_rebuild_reply_decode(view_buf(&answer), &reply))
		r = malformed("answer to a rebuild", &e);
	if (r)
		return api_result(r, &e);
	if (ret_bundles)
		*ret_bundles = reply.bundles;
	if (ret_versions)
		*ret_versions = reply.versions;
	if (ret_labels)
		*ret_labels = reply.labels;
	return 0;
}
