/*
 * client/core_call.c: requests whose answers the application's shell reads itself, and memberships of groups.
 */
#include <errno.h>
#include <stdlib.h>

#include "client/inside.h"

/* ---- calls -------------------------------------------------------------------------------------------------------------- */

struct held_call {
	struct request request;
	struct core_call call;
};

static void call_free(struct core_call *call)
{
	list_remove(&call->link);
	buf_fini(&call->answer);
	free(container_of(call, struct held_call, call));
}

static void tell_handle(struct core *core, enum msg_type type, uint64_t handle)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	const struct msg_handle m = { .handle = handle };

	core_tell_encoded(core, type, &body, msg_handle_encode(&m, &body));
}

/* Nobody waited for it any more: what it brought is given back. */
static void give_back(struct core_call *call, struct view body)
{
	struct msg_join_reply join;
	struct msg_open_reply open;

	if (call->type == MSG_JOIN && !msg_join_reply_decode(body, &join))
		tell_handle(call->core, MSG_LEAVE, join.handle);
	if (call->type == MSG_OPEN && !msg_open_reply_decode(body, &open))
		tell_handle(call->core, MSG_CLOSE, open.handle);
}

static void on_reply(struct request *request, const struct error *e, struct view body)
{
	struct core_call *call = &container_of(request, struct held_call, request)->call;
	struct error failure = { 0 };

	if (call->dropped) {
		if (!e)
			give_back(call, body);
		call_free(call);
		return;
	}
	if (!e && buf_append(&call->answer, body.ptr, body.len)) {
		error_set(&failure, -ENOMEM, "no memory for an answer of %zu bytes", body.len);
		give_back(call, body);
		e = &failure;
	}
	core_end_future(&call->future, e);
}

int core_call_start(struct core *core, enum msg_type type, struct view body, uint32_t deadline_ms,
		    void (*fn)(struct core_future *), struct core_call **ret, struct error *e)
{
	struct held_call *held = calloc(1, sizeof(*held));

	if (!held)
		return error_set(e, -ENOMEM, "no memory for a request");
	held->request.done = on_reply;
	held->call.core = core;
	held->call.type = type;
	core_future_init(&held->call.future, fn);
	list_append(&core->calls, &held->call.link);
	int r = core_ask(core, &held->request, type, body, deadline_ms, e);
	if (r) {
		call_free(&held->call);
		return r;
	}
	*ret = &held->call;
	return 0;
}

void core_call_drop(struct core_call *call)
{
	if (!call)
		return;
	core_future_forget(&call->future);
	if (call->future.over)
		call_free(call);
	else
		call->dropped = true;
}

/* ---- what is not done after all --------------------------------------------------------------------------------------------- */

bool core_is_shortage(int code)
{
	return code == -ENOMEM || code == -ENOBUFS || code == -EBUSY;
}

void core_tell_forgone(struct core *core, const struct msg_forgo *m)
{
	_cleanup_(buf_fini) struct buf body = { 0 };

	core_tell_encoded(core, MSG_FORGO, &body, msg_forgo_encode(m, &body));
}

void core_forgo_join(struct core *core, const struct msg_join *join, const struct error *e)
{
	const struct msg_forgo m = { .name = join->group,
				     .run = join->run,
				     .rank = join->rank,
				     .words = view_str(e->text) };

	if (core_is_shortage(e->code))
		core_tell_forgone(core, &m);
}

void core_forgo_open(struct core_group *group, const struct msg_open *open, const struct error *e)
{
	const struct msg_forgo m = { .group = group->handle,
				     .bundle = open->bundle,
				     .spec = open->version,
				     .words = view_str(e->text) };

	if (core_is_shortage(e->code))
		core_tell_forgone(group->core, &m);
}

void core_forgo_load(struct core_group *group, uint64_t version_handle, const struct error *e)
{
	const struct msg_forgo m = { .group = group->handle, .version = version_handle, .words = view_str(e->text) };

	if (core_is_shortage(e->code))
		core_tell_forgone(group->core, &m);
}

void core_forgo_save(struct core_group *group, struct view bundle, uint64_t step, const struct error *e)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	const struct msg_cancel m = { .group = group->handle,
				      .bundle = bundle,
				      .step = step,
				      .words = view_str(e->text) };

	if (core_is_shortage(e->code))
		core_tell_encoded(group->core, MSG_CANCEL, &body, msg_cancel_encode(&m, &body));
}

/* ---- groups --------------------------------------------------------------------------------------------------------------- */

int core_group_new(struct core *core, const struct msg_join_reply *reply, struct core_group **ret)
{
	struct core_group *group = calloc(1, sizeof(*group));

	if (!group) {
		tell_handle(core, MSG_LEAVE, reply->handle);
		return -ENOMEM;
	}
	group->core = core;
	group->handle = reply->handle;
	group->incarnation = reply->incarnation;
	list_append(&core->groups, &group->link);
	*ret = group;
	return 0;
}

uint64_t core_group_handle(const struct core_group *group)
{
	return group->handle;
}

static void group_free(struct trash *trash)
{
	free(container_of(trash, struct core_group, trash));
}

static void group_settle(struct core_group *group)
{
	if (!group->left)
		return;
	if (!group->n_active && !group->told) {
		group->told = true;
		tell_handle(group->core, MSG_LEAVE, group->handle);
	}
	if (!group->refs && group->told) {
		list_remove(&group->link);
		core_discard(group->core, &group->trash, group_free);
	}
}

void group_ref(struct core_group *group)
{
	group->refs++;
}

void group_unref(struct core_group *group)
{
	group->refs--;
	group_settle(group);
}

void group_began(struct core_group *group)
{
	group->n_active++;
}

void group_ended(struct core_group *group)
{
	CHECK(group->n_active);
	group->n_active--;
	group_settle(group);
}

/* One after the other, from the start each time: an end can bring others with it. */
void core_group_cancel(struct core_group *group)
{
	struct core_save *save;
	struct core_load *load;

	while ((save = save_to_cancel(group)))
		core_save_cancel(save);
	while ((load = load_to_cancel(group)))
		core_load_cancel(load);
}

bool core_group_is_quiet(const struct core_group *group)
{
	const struct core *core = group->core;

	list_each(node, &core->saves) {
		const struct core_save *save = list_entry(node, struct core_save, link);

		if (save->group == group && !core_save_is_quiet(save))
			return false;
	}
	list_each(node, &core->loads) {
		const struct core_load *load = list_entry(node, struct core_load, link);

		if (load->group == group && !core_load_is_quiet(load))
			return false;
	}
	return true;
}

void core_group_leave(struct core_group *group)
{
	core_group_cancel(group);
	group->left = true;
	group_settle(group);
}
