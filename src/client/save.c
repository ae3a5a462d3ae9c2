/*
 * client/save.c: forebay_save_*: checks what can be checked without the daemon, and hands over to the core.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/future.h"

struct forebay_save {
	struct forebay_session *session;
	struct core_save *core;
};

static int put_attributes(struct list_buf *list, const struct forebay_attribute *attributes, size_t n, struct error *e)
{
	if (n && !attributes)
		return error_set(e, -EINVAL, "save_begin: %zu attributes, and the list is NULL", n);
	for (size_t i = 0; i < n; i++) {
		const struct elem_attribute elem = { .key = view_str(attributes[i].key),
						     .value = view_str(attributes[i].value) };

		if (!elem.key.len || !view_is_utf8(elem.key) || !view_is_utf8(elem.value))
			return error_set(e, -EINVAL, "save_begin: attribute %zu has no key, or is no UTF-8", i);
		if (elem_attribute_append(list, &elem))
			return error_set(e, -ENOMEM, "no memory for attributes");
	}
	return 0;
}

static const char *const policies[POLICIES] = { "wait", "skip", "replace", "through" };

/* POLICIES: there is no such. */
static unsigned find_policy(const char *name)
{
	unsigned policy = 0;

	while (name && policy < POLICIES && strcmp(name, policies[policy]) != 0)
		policy++;
	return policy;
}

/* The other ranks do not wait for this one's offer. */
static void forgo(struct forebay_group *group, const char *bundle, uint64_t step, const struct error *e)
{
	if (session_enter(group->session, NULL))
		return;
	core_forgo_save(group->core, view_str(bundle), step, e);
	session_leave(group->session);
}

static int begin(struct forebay_group *group, const char *bundle, uint64_t step, const struct forebay_save_options *own,
		 struct forebay_save *save, struct error *e)
{
	_cleanup_(list_buf_fini) struct list_buf attributes = { 0 };
	int r = put_attributes(&attributes, own->attributes, own->n_attributes, e);

	if (r) {
		forgo(group, bundle, step, e);
		return r;
	}
	const struct core_save_options options = {
		.bundle = view_str(bundle),
		.step = step,
		.parent = own->parent,
		.copies = own->copies ? own->copies : 1,
		.policy = find_policy(own->policy),
		.same_structure = own->same_structure,
		.attributes = list_buf_view(&attributes),
	};
	save->session = group->session;
	r = session_enter(save->session, e);
	if (r)
		return r;
	r = core_check(save->session->core, e);
	if (!r)
		r = core_save_new(group->core, &options, &save->core, e);
	if (!r)
		session_ref(save->session);
	session_leave(save->session);
	return r;
}

int forebay_save_begin(struct forebay_group *group, const char *bundle, uint64_t step,
		       const struct forebay_save_options *options, struct forebay_save **ret)
{
	struct forebay_save_options own;
	struct error e = { 0 };
	int r = api_take(&own, sizeof(own), options, "struct forebay_save_options", &e);

	if (r)
		return api_result(r, &e);
	if (!group || !ret || !bundle || !*bundle || !view_is_utf8(view_str(bundle)))
		return api_fail(-EINVAL,
				"save_begin: it needs a group, a bundle's name in UTF-8 and a place for the save");
	if (own.copies > 3)
		return api_fail(-EINVAL, "save_begin: %u copies; 1 to 3 are possible", own.copies);
	if (find_policy(own.policy) == POLICIES)
		return api_fail(
			-EINVAL,
			"save_begin: policy \"%.100s\" is not known; there are \"wait\", \"skip\", \"replace\" and \"through\"",
			own.policy);
	struct forebay_save *save = calloc(1, sizeof(*save));
	if (!save) {
		r = error_set(&e, -ENOMEM, "no memory for a save");
		forgo(group, bundle, step, &e);
		return api_result(r, &e);
	}
	r = begin(group, bundle, step, &own, save, &e);
	if (r) {
		free(save);
		return api_result(r, &e);
	}
	*ret = save;
	return 0;
}

/* ---- items ------------------------------------------------------------------------------------------------------------------ */

static int add_item(struct core_save *core, const struct forebay_item *item, struct error *e)
{
	struct core_item own = {
		.name = view_str(item->name),
		.dtype = view_str(item->dtype ? item->dtype : "blob"),
		.element_bits = item->element_bits ? item->element_bits : 8,
		.flags = item->flags,
		.data = item->data,
		.strides_bytes = item->strides_bytes,
	};
	int r = api_boxes(item->ndim, item->shape, item->start, item->count, &own.whole, &own.box, e);

	if (!r && item->flags & ~FOREBAY_LOWEST_RANK)
		r = error_set(e, -EINVAL, "flags 0x%x are not known", item->flags & ~FOREBAY_LOWEST_RANK);
	if (!r)
		return core_save_add(core, &own, e);
	error_prefix(e, "item \"%.200s\"", item->name ? item->name : "");
	return r;
}

int forebay_save_add(struct forebay_save *save, const struct forebay_item *items, size_t n)
{
	struct forebay_item own;
	struct error e = { 0 };

	if (!save || (n && !items))
		return api_fail(-EINVAL, "save_add: no save, or no items");
	int r = session_enter(save->session, &e);
	if (r)
		return api_result(r, &e);
	for (size_t i = 0; !r && i < n; i++) {
		r = api_take(&own, sizeof(own), api_element(items, i), "struct forebay_item", &e);
		if (!r)
			r = add_item(save->core, &own, &e);
	}
	session_leave(save->session);
	return api_result(r, &e);
}

int forebay_save_submit(struct forebay_save *save)
{
	struct error e = { 0 };

	if (!save)
		return api_fail(-EINVAL, "save_submit: no save");
	int r = session_enter(save->session, &e);
	if (r)
		return api_result(r, &e);
	r = core_save_submit(save->core, &e);
	session_leave(save->session);
	return api_result(r, &e);
}

/* ---- what becomes of it ------------------------------------------------------------------------------------------------------- */

int forebay_save_future(struct forebay_save *save, enum forebay_stage stage, struct forebay_future **ret)
{
	struct error e = { 0 };

	if (!save || !ret || (unsigned)stage > FOREBAY_DURABLE)
		return api_fail(-EINVAL, "save_future: no save, no such stage, or no place for the future");
	int r = session_enter(save->session, &e);
	if (r)
		return api_result(r, &e);
	struct forebay_future *future = future_new(save->session);
	if (future)
		core_save_attach(save->core, (enum core_stage)stage, &future->core);
	session_leave(save->session);
	if (!future)
		return api_fail(-ENOMEM, "no memory for a future");
	*ret = future;
	return 0;
}

uint64_t forebay_save_version(const struct forebay_save *save)
{
	if (!save || session_enter(save->session, NULL))
		return 0;
	uint64_t version = core_save_version(save->core);
	session_leave(save->session);
	return version;
}

int forebay_save_stats(struct forebay_save *save, void (*each)(void *arg, const char *name, uint64_t value), void *arg)
{
	struct error e = { 0 };

	if (!save || !each)
		return api_fail(-EINVAL, "save_stats: no save, or nobody to tell");
	_cleanup_(cleanup_mem) struct core_stats *stats = malloc(sizeof(*stats));
	if (!stats)
		return api_fail(-ENOMEM, "no memory for figures");
	int r = session_enter(save->session, &e);
	if (r)
		return api_result(r, &e);
	*stats = *core_save_stats(save->core);
	session_leave(save->session);
	for (size_t i = 0; i < stats->n; i++)
		each(arg, stats->stats[i].name, stats->stats[i].value);
	return 0;
}

int forebay_save_cancel(struct forebay_save *save)
{
	struct error e = { 0 };

	if (!save)
		return api_fail(-EINVAL, "save_cancel: no save");
	int r = session_enter(save->session, &e);
	if (r)
		return api_result(r, &e);
	core_save_cancel(save->core);
	session_leave(save->session);
	return 0;
}

static bool is_quiet(const void *arg)
{
	return core_save_is_quiet(arg);
}

void forebay_save_free(struct forebay_save *save)
{
	if (!save || session_enter(save->session, NULL))
		return;
	core_save_cancel(save->core);
	session_wait_quiet(save->session, is_quiet, save->core);
	core_save_drop(save->core);
	session_leave(save->session);
	session_unref(save->session);
	free(save);
}
