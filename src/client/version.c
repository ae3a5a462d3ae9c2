/*
 * client/version.c: forebay_open() and what a version says of itself. Items are asked for when they are wanted: by name, remembered
 * from then on, or page by page.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/session.h"

#define PAGE_ITEMS    1000 /* asked for at once */
#define ASKED_AT_ONCE 64   /* names */

/* ---- life --------------------------------------------------------------------------------------------------------------------- */

static void info_fini(struct forebay_item_info *info)
{
	free((char *)info->name);
	free((char *)info->dtype);
}

static void page_clear(struct forebay_version *version)
{
	for (size_t i = 0; i < version->n_page; i++)
		info_fini(&version->page[i]);
	free(version->page);
	version->page = NULL;
	version->n_page = 0;
}

static void version_free(struct forebay_version *version)
{
	for (struct map_slot *s = map_first(&version->found); s; s = map_next(s)) {
		info_fini(map_value(s));
		free(map_value(s));
	}
	map_fini(&version->found);
	page_clear(version);
	attributes_fini(&version->attributes);
	free(version->bundle);
	free(version);
}

void version_ref(struct forebay_version *version)
{
	version->refs++;
}

void version_unref(struct forebay_version *version)
{
	struct forebay_session *session = version->session;
	_cleanup_(buf_fini) struct buf body = { 0 };
	const struct msg_handle m = { .handle = version->handle };

	if (session_enter(session, NULL))
		return;
	bool last = --version->refs == 0;
	if (last && !msg_handle_encode(&m, &body))
		core_tell(session->core, MSG_CLOSE, view_buf(&body));
	session_leave(session);
	if (!last)
		return;
	version_free(version);
	session_unref(session);
}

/* The other ranks do not wait for this one in their next load of it. */
static void forgo(struct forebay_group *group, const char *bundle, const char *spec, const struct error *e)
{
	const struct msg_open m = { .bundle = view_str(bundle), .version = view_str(spec ? spec : "latest") };

	if (!group || session_enter(group->session, NULL))
		return;
	core_forgo_open(group->core, &m, e);
	session_leave(group->session);
}

static int open_version(struct forebay_version *version, struct forebay_group *group, const char *bundle,
			const char *spec, struct error *e)
{
	_cleanup_(buf_fini) struct buf body = { 0 }, answer = { 0 };
	const struct msg_open m = {
		.bundle = view_str(bundle),
		.version = view_str(spec ? spec : "latest"),
		.group = group ? core_group_handle(group->core) : 0,
	};
	struct msg_open_reply reply;
	int r = msg_open_encode(&m, &body);

	version->bundle = strdup(bundle);
	if (!version->bundle)
		r = -ENOMEM;
	r = session_call(version->session, MSG_OPEN, &body, r, CALL_MS, &answer, e);
	if (r) {
		forgo(group, bundle, spec, e);
		return r;
	}
	if (msg_open_reply_decode(view_buf(&answer), &reply))
		return error_set(e, -EPROTO, "the daemon's answer to an open cannot be read");
	version->handle = reply.handle;
	version->number = reply.number;
	version->step = reply.step;
	version->items = reply.n_items;
	version->bytes = reply.bytes;
	version->unindexed = reply.unindexed != 0;
	r = attributes_take(&version->attributes, reply.attributes);
	return r ? error_set(e, r, "the attributes of version %" PRIu64 " of %s: %s", reply.number, bundle,
			     error_meaning(r)) :
		   0;
}

int forebay_open(struct forebay_session *session, struct forebay_group *group, const char *bundle, const char *version,
		 struct forebay_version **ret)
{
	struct error e = { 0 };

	if (!session || !bundle || !*bundle || !ret)
		return api_fail(-EINVAL, "open: it needs a session, a bundle's name and a place for the version");
	if (group && group->session != session)
		return api_fail(-EINVAL, "open: the group is of another session");
	struct forebay_version *own = calloc(1, sizeof(*own));
	if (!own) {
		int none = error_set(&e, -ENOMEM, "no memory for a version");
		forgo(group, bundle, version, &e);
		return api_result(none, &e);
	}
	own->session = session;
	own->refs = 1;
	map_init(&own->found);
	int r = session_enter(session, &e);
	if (r) {
		version_free(own);
		return api_result(r, &e);
	}
	session_ref(session);
	session_leave(session);
	r = open_version(own, group, bundle, version, &e);
	if (r && own->handle) {
		version_unref(own); /* CLOSE */
	} else if (r) {
		version_free(own);
		session_unref(session);
	}
	if (r)
		return api_result(r, &e);
	*ret = own;
	return 0;
}

void forebay_close(struct forebay_version *version)
{
	if (version)
		version_unref(version);
}

int forebay_version_info(const struct forebay_version *version, struct forebay_version_info *ret)
{
	if (!version || !ret)
		return api_fail(-EINVAL, "version_info: no version, or no place for the answer");
	const struct forebay_version_info info = {
		.bundle = version->bundle,
		.number = version->number,
		.step = version->step,
		.items = version->items,
		.bytes = version->bytes,
		.attributes = version->attributes.list,
		.n_attributes = version->attributes.n,
		.unindexed = version->unindexed,
	};
	api_give(ret, &info, sizeof(info));
	return 0;
}

/* ---- items ---------------------------------------------------------------------------------------------------------------------- */

static int info_take(struct forebay_item_info *info, const struct elem_item_info *elem)
{
	*info = (struct forebay_item_info){
		.size = sizeof(*info),
		.name = view_dup(elem->name),
		.dtype = view_dup(elem->dtype),
		.element_bits = elem->element_bits,
		.ndim = elem->whole.ndim,
		.bytes = elem->bytes,
		.unsaved_bytes = elem->unsaved_bytes,
	};
	memcpy(info->shape, elem->whole.count, sizeof(info->shape));
	if (info->name && info->dtype)
		return 0;
	info_fini(info);
	return -ENOMEM;
}

const struct forebay_item_info *version_known(const struct forebay_version *version, const char *name)
{
	return map_get(&version->found, view_str(name));
}

static int remember(struct forebay_version *version, struct view answer, struct error *e)
{
	struct forebay_item_info *info = calloc(1, sizeof(*info));
	struct msg_items_reply reply;
	struct elem_item_info elem;

	if (!info || msg_items_reply_decode(answer, &reply) || elem_item_info_next(&reply.items, &elem) ||
	    elem.whole.ndim > BOX_DIMS_MAX) {
		free(info);
		return error_set(e, -EPROTO, "the daemon's answer about an item cannot be read");
	}
	int r = info_take(info, &elem);
	if (r) {
		free(info);
		return error_set(e, r, "no memory for an item");
	}
	r = map_put(&version->found, view_str(info->name), info);
	if (r) {
		info_fini(info);
		free(info);
	}
	return r == -EEXIST || !r ? 0 : error_set(e, r, "no memory for an item");
}

static int ask_for(struct forebay_version *version, const char *name, struct core_call **ret, struct error *e)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	const struct msg_items m = { .version = version->handle, .name = view_str(name), .limit = 1 };
	int r = msg_items_encode(&m, &body);

	if (r)
		return error_set(e, r, "no memory for a request");
	r = core_call_start(version->session->core, MSG_ITEMS, view_buf(&body), CALL_MS, session_future_over, ret, e);
	if (!r)
		(*ret)->future.arg = version->session;
	return r;
}

/* Under the lock. Waits for all, whatever becomes of the first. */
static int ask_for_some(struct forebay_version *version, const char *const *names, size_t n, struct error *e)
{
	struct core_call *calls[ASKED_AT_ONCE] = { 0 };
	int r = 0;

	for (size_t i = 0; !r && i < n; i++)
		r = ask_for(version, names[i], &calls[i], e);
	for (size_t i = 0; i < n && calls[i]; i++) {
		if (!r && session_wait(version->session, &calls[i]->future, CALL_MS + GRACE_MS))
			r = error_set(e, -ETIMEDOUT, "item \"%.200s\": the daemon has not answered in time", names[i]);
		if (!r && calls[i]->future.error.code) {
			*e = calls[i]->future.error;
			r = e->code;
		}
		if (!r)
			r = remember(version, view_buf(&calls[i]->answer), e);
		core_call_drop(calls[i]);
	}
	return r;
}

int version_find_all(struct forebay_version *version, const char *const *names, size_t n, struct error *e)
{
	const char *unknown[ASKED_AT_ONCE];
	size_t n_unknown = 0;
	int r = session_enter(version->session, e);

	if (r)
		return r;
	for (size_t i = 0; !r && i < n; i++) {
		if (!version_known(version, names[i]))
			unknown[n_unknown++] = names[i];
		if (n_unknown == ASKED_AT_ONCE || (i + 1 == n && n_unknown)) {
			r = ask_for_some(version, unknown, n_unknown, e);
			n_unknown = 0;
		}
	}
	session_leave(version->session);
	return r;
}

int forebay_version_find(struct forebay_version *version, const char *name, struct forebay_item_info *ret)
{
	struct error e = { 0 };

	if (!version || !name || !*name || !ret)
		return api_fail(-EINVAL, "version_find: it needs a version, a name and a place for the answer");
	int r = version_find_all(version, &name, 1, &e);
	if (r)
		return api_result(r, &e);
	const struct forebay_item_info *info = version_known(version, name);
	if (!info)
		return api_fail(-EPROTO, "asked for item \"%.200s\", the daemon told of another", name);
	api_give(ret, info, sizeof(*info));
	return 0;
}

/* Up to @limit more items behind @after, into the version's page. */
static int next_page(struct forebay_version *version, const char *after, size_t limit, bool *ret_more, struct error *e)
{
	_cleanup_(buf_fini) struct buf body = { 0 }, answer = { 0 };
	const struct msg_items m = {
		.version = version->handle,
		.after = view_str(after),
		.limit = limit < PAGE_ITEMS ? (uint32_t)limit : PAGE_ITEMS,
	};
	struct msg_items_reply reply;
	struct elem_item_info elem;
	int r = msg_items_encode(&m, &body);

	r = session_call(version->session, MSG_ITEMS, &body, r, CALL_MS, &answer, e);
	if (r)
		return r;
	if (msg_items_reply_decode(view_buf(&answer), &reply) || reply.items.count > limit)
		return error_set(e, -EPROTO, "the daemon's list of items cannot be read");
	while (!(r = elem_item_info_next(&reply.items, &elem))) {
		if (elem.whole.ndim > BOX_DIMS_MAX)
			return error_set(e, -EPROTO, "the daemon tells of an item with %" PRIu32 " dimensions",
					 elem.whole.ndim);
		r = info_take(&version->page[version->n_page], &elem);
		if (r)
			return error_set(e, r, "no memory for a list of items");
		version->n_page++;
	}
	*ret_more = reply.more && m.limit;
	return r == 1 ? 0 : error_set(e, r, "the daemon's list of items cannot be read");
}

int forebay_version_items(struct forebay_version *version, const char *after, struct forebay_item_info *items, size_t n,
			  size_t *ret_n)
{
	struct error e = { 0 };
	bool more = true;
	int r = 0;

	if (!version || !ret_n || (n && !items) || n > CORE_ITEMS_MAX)
		return api_fail(-EINVAL, "version_items: no version, no place for the answer, or more than %d items",
				CORE_ITEMS_MAX);
	struct forebay_item_info *page = calloc(n + 1, sizeof(*page));
	_cleanup_(cleanup_mem) char *first = strdup(after ? after : "");
	if (!page || !first) {
		free(page);
		return api_fail(-ENOMEM, "no memory for a list of items");
	}
	page_clear(version); /* @after may have been one of its names */
	version->page = page;
	while (!r && more && version->n_page < n) {
		size_t had = version->n_page;

		r = next_page(version, had ? page[had - 1].name : first, n - had, &more, &e);
		more = more && version->n_page > had;
	}
	if (r)
		return api_result(r, &e);
	for (size_t i = 0; i < version->n_page; i++)
		api_give((void *)api_element(items, i), &page[i], sizeof(page[i]));
	*ret_n = version->n_page;
	return 0;
}
