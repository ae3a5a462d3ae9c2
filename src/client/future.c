/*
 * client/future.c: futures as applications wait for them, by call or by descriptor.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "client/future.h"

static void on_over(struct core_future *core)
{
	struct forebay_future *future = container_of(core, struct forebay_future, core);
	const uint64_t one = 1;

	session_tell_over(future->session, core);
	if (future->event >= 0 && write(future->event, &one, sizeof(one)) < 0)
		return; /* cannot be: it was never raised before */
}

struct forebay_future *future_new(struct forebay_session *session)
{
	struct forebay_future *future = calloc(1, sizeof(*future));

	if (!future)
		return NULL;
	core_future_init(&future->core, on_over);
	future->session = session;
	future->event = -1;
	session_ref(session);
	return future;
}

int forebay_wait(struct forebay_future *future, int timeout_ms)
{
	struct error e = { 0 };

	if (!future)
		return api_fail(-EINVAL, "wait: no future");
	int r = session_enter(future->session, &e);
	if (r)
		return api_result(r, &e);
	r = session_wait(future->session, &future->core, timeout_ms);
	if (r)
		error_set(&e, r, "not over after %d ms", timeout_ms);
	else
		e = future->core.error;
	if (!r && e.code == -ETIMEDOUT)
		e.code = -ETIME; /* it is over, and must not look as if it were not */
	session_leave(future->session);
	return api_result(r ? r : e.code, &e);
}

int forebay_future_fd(struct forebay_future *future)
{
	struct error e = { 0 };

	if (!future)
		return api_fail(-EINVAL, "future_fd: no future");
	int r = session_enter(future->session, &e);
	if (r)
		return api_result(r, &e);
	if (future->event < 0)
		future->event = eventfd(future->core.over, EFD_CLOEXEC | EFD_NONBLOCK);
	r = future->event < 0 ? error_set(&e, -errno, "no descriptor for a future: %s", error_meaning(errno)) :
				future->event;
	session_leave(future->session);
	return api_result(r, &e);
}

const char *forebay_future_error(struct forebay_future *future)
{
	const char *text = "";

	if (!future || session_enter(future->session, NULL))
		return text;
	if (future->core.over && future->core.error.code)
		text = future->core.error.text; /* it does not change any more */
	session_leave(future->session);
	return text;
}

void forebay_future_free(struct forebay_future *future)
{
	if (!future || session_enter(future->session, NULL))
		return;
	core_future_forget(&future->core);
	session_leave(future->session);
	if (future->event >= 0)
		close(future->event);
	session_unref(future->session);
	free(future);
}
