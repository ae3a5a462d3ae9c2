/*
 * client/load.c: forebay_load_*: compares targets with what the version holds, and hands over to the core.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/future.h"

struct forebay_load {
	struct forebay_session *session;
	struct forebay_version *version;
	struct core_load *core;
};

int forebay_load_begin(struct forebay_version *version, struct forebay_group *group, struct forebay_load **ret)
{
	struct error e = { 0 };

	if (!version || !ret)
		return api_fail(-EINVAL, "load_begin: no version, or no place for the load");
	if (group && group->session != version->session)
		return api_fail(-EINVAL, "load_begin: the group is of another session than the version");
	struct forebay_load *load = calloc(1, sizeof(*load));
	if (!load) {
		int r = error_set(&e, -ENOMEM, "no memory for a load");
		if (group && !session_enter(group->session, NULL)) {
			core_forgo_load(group->core, version->handle, &e);
			session_leave(group->session);
		}
		return api_result(r, &e);
	}
	load->session = version->session;
	load->version = version;
	int r = session_enter(load->session, &e);
	if (!r) {
		r = core_check(load->session->core, &e);
		if (!r)
			r = core_load_new(load->session->core, group ? group->core : NULL, version->handle,
					  &load->core);
		if (!r) {
			version_ref(version);
			session_ref(load->session);
		}
		session_leave(load->session);
	}
	if (r) {
		free(load);
		return api_result(r, &e);
	}
	*ret = load;
	return 0;
}

/* ---- targets ---------------------------------------------------------------------------------------------------------------------- */

static int compare(const struct forebay_target *target, const struct forebay_item_info *info, struct error *e)
{
	if (target->dtype && strcmp(target->dtype, info->dtype) != 0)
		return error_set(e, -ERR_EMISMATCH, "it is of dtype %s, not %.40s", info->dtype, target->dtype);
	if (target->element_bits && target->element_bits != info->element_bits)
		return error_set(e, -ERR_EMISMATCH, "its elements have %" PRIu32 " bits, not %" PRIu32,
				 info->element_bits, target->element_bits);
	bool compares_dimensions = target->shape || target->start || target->count || target->strides_bytes;
	if (compares_dimensions && target->ndim != info->ndim)
		return error_set(e, -ERR_EMISMATCH, "it has %" PRIu32 " dimensions, not %" PRIu32, info->ndim,
				 target->ndim);
	for (uint32_t d = 0; target->shape && d < info->ndim; d++)
		if (target->shape[d] != info->shape[d])
			return error_set(e, -ERR_EMISMATCH,
					 "dimension %" PRIu32 " has %" PRIu64 " elements, not %" PRIu64, d,
					 info->shape[d], target->shape[d]);
	return 0;
}

static int add_target(struct forebay_load *load, const struct forebay_target *target, bool only_check, struct error *e)
{
	const struct forebay_item_info *info = version_known(load->version, target->name);
	struct box whole;

	if (!info)
		return error_set(e, -EPROTO, "asked for it, the daemon told of another item");
	struct core_want want = {
		.name = view_str(target->name),
		.element_bits = info->element_bits,
		.data = target->data,
		.strides_bytes = target->strides_bytes,
	};
	int r = compare(target, info, e);
	if (!r)
		r = api_boxes(info->ndim, info->shape, target->start, target->count, &whole, &want.box, e);
	if (r || only_check)
		return r;
	return core_load_add(load->core, &want, e);
}

static int take_target(struct forebay_target *own, const struct forebay_target *targets, size_t i, struct error *e)
{
	int r = api_take(own, sizeof(*own), api_element(targets, i), "struct forebay_target", e);

	if (!r && (!own->name || !*own->name))
		r = error_set(e, -EINVAL, "load_into: target %zu has no name", i);
	return r;
}

/* All are checked before the first is added. */
static int add_targets(struct forebay_load *load, const struct forebay_target *targets, size_t n, struct error *e)
{
	struct forebay_target own;
	int r = session_enter(load->session, e);

	if (r)
		return r;
	for (int only_check = 1; only_check >= 0; only_check--) {
		for (size_t i = 0; !r && i < n; i++) {
			r = take_target(&own, targets, i, e);
			if (!r)
				r = add_target(load, &own, only_check, e);
			if (r)
				error_prefix(e, "item \"%.200s\" of version %" PRIu64 " of %s",
					     own.name ? own.name : "", load->version->number, load->version->bundle);
		}
	}
	session_leave(load->session);
	return r;
}

/* It may be tried again; else the other ranks must not wait for this one's part. */
static int refuse(struct forebay_load *load, int code, const struct error *e)
{
	if (code && !session_enter(load->session, NULL)) {
		core_load_refused(load->core, e);
		session_leave(load->session);
	}
	return api_result(code, e);
}

int forebay_load_into(struct forebay_load *load, const struct forebay_target *targets, size_t n)
{
	struct forebay_target own;
	struct error e = { 0 };
	int r = 0;

	if (!load || (n && !targets) || n > CORE_ITEMS_MAX)
		return api_fail(-EINVAL, "load_into: no load, no targets, or more than %d", CORE_ITEMS_MAX);
	_cleanup_(cleanup_mem) const char **names = calloc(n + 1, sizeof(*names));
	if (!names)
		return refuse(load, error_set(&e, -ENOMEM, "no memory for %zu targets", n), &e);
	for (size_t i = 0; !r && i < n; i++) {
		r = take_target(&own, targets, i, &e);
		names[i] = own.name;
	}
	if (!r)
		r = version_find_all(load->version, names, n, &e);
	if (!r)
		r = add_targets(load, targets, n, &e);
	return refuse(load, r, &e);
}

/* ---- what becomes of it ----------------------------------------------------------------------------------------------------------- */

int forebay_load_submit(struct forebay_load *load, struct forebay_future **ret)
{
	struct error e = { 0 };

	if (!load || !ret)
		return api_fail(-EINVAL, "load_submit: no load, or no place for the future");
	int r = session_enter(load->session, &e);
	if (r)
		return api_result(r, &e);
	struct forebay_future *future = future_new(load->session);
	r = future ? core_load_submit(load->core, &e) : error_set(&e, -ENOMEM, "no memory for a future");
	if (!r)
		core_load_attach(load->core, &future->core);
	session_leave(load->session);
	if (r) {
		forebay_future_free(future);
		return refuse(load, r, &e);
	}
	*ret = future;
	return 0;
}

int forebay_load_stats(struct forebay_load *load, void (*each)(void *arg, const char *name, uint64_t value), void *arg)
{
	struct error e = { 0 };

	if (!load || !each)
		return api_fail(-EINVAL, "load_stats: no load, or nobody to tell");
	_cleanup_(cleanup_mem) struct core_stats *stats = malloc(sizeof(*stats));
	if (!stats)
		return api_fail(-ENOMEM, "no memory for figures");
	int r = session_enter(load->session, &e);
	if (r)
		return api_result(r, &e);
	*stats = *core_load_stats(load->core);
	session_leave(load->session);
	for (size_t i = 0; i < stats->n; i++)
		each(arg, stats->stats[i].name, stats->stats[i].value);
	return 0;
}

static bool is_quiet(const void *arg)
{
	return core_load_is_quiet(arg);
}

void forebay_load_free(struct forebay_load *load)
{
	if (!load || session_enter(load->session, NULL))
		return;
	core_load_cancel(load->core);
	session_wait_quiet(load->session, is_quiet, load->core);
	core_load_drop(load->core);
	session_leave(load->session);
	version_unref(load->version);
	session_unref(load->session);
	free(load);
}
