/*
 * client/group.c: forebay_group_*: a rank's membership.
 */
#include <errno.h>
#include <stdlib.h>

#include "client/session.h"

static int join(struct forebay_session *session, const struct forebay_group_options *options, int timeout_ms,
		struct forebay_group *group, struct error *e)
{
	_cleanup_(buf_fini) struct buf body = { 0 }, answer = { 0 };
	const struct msg_join m = {
		.group = view_str(options->name),
		.run = view_str(options->run),
		.rank = options->rank,
		.size = options->ranks,
	};
	struct msg_join_reply reply;
	int r = msg_join_encode(&m, &body);

	r = session_call(session, MSG_JOIN, &body, r, timeout_ms < 0 ? -1 : timeout_ms, &answer, e);
	if (r) {
		if (!session_enter(session, NULL)) {
			core_forgo_join(session->core, &m, e);
			session_leave(session);
		}
		return r;
	}
	if (msg_join_reply_decode(view_buf(&answer), &reply))
		return error_set(e, -EPROTO, "the daemon's answer to a join cannot be read");
	r = session_enter(session, e);
	if (r)
		return r;
	r = core_group_new(session->core, &reply, &group->core);
	if (!r)
		session_ref(session);
	session_leave(session);
	group->session = session;
	group->incarnation = reply.incarnation;
	return r;
}

int forebay_group_join(struct forebay_session *session, const struct forebay_group_options *options, int timeout_ms,
		       struct forebay_group **ret)
{
	struct forebay_group_options own;
	struct error e = { 0 };
	int r = api_take(&own, sizeof(own), options, "struct forebay_group_options", &e);

	if (r)
		return api_result(r, &e);
	if (!session || !ret)
		return api_fail(-EINVAL, "group_join: no session, or no place for the group");
	if (!own.name || !*own.name || !own.run || !*own.run)
		return api_fail(-EINVAL, "group_join: a group needs a name and a run");
	if (!own.ranks || own.rank >= own.ranks)
		return api_fail(-EINVAL, "group_join: rank %u of %u ranks", own.rank, own.ranks);
	struct forebay_group *group = calloc(1, sizeof(*group));
	if (!group)
		return api_fail(-ENOMEM, "no memory for a group");
	r = join(session, &own, timeout_ms, group, &e);
	if (r) {
		free(group);
		return api_result(r, &e);
	}
	*ret = group;
	return 0;
}

uint64_t forebay_group_incarnation(const struct forebay_group *group)
{
	return group ? group->incarnation : 0;
}

static bool is_quiet(const void *arg)
{
	return core_group_is_quiet(arg);
}

void forebay_group_leave(struct forebay_group *group)
{
	if (!group || session_enter(group->session, NULL))
		return;
	core_group_cancel(group->core);
	session_wait_quiet(group->session, is_quiet, group->core);
	core_group_leave(group->core);
	session_leave(group->session);
	session_unref(group->session);
	free(group);
}
