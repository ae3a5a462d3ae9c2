#include "door/native.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "door/session.h"

static void accepted(void *arg, struct net_conn *conn)
{
	struct door_native *door = arg;

	if (door->n_sessions >= SESSIONS_MAX || session_new(door, conn))
		net_close(conn);
}

int door_native_new(struct env *env, const struct door_native_options *options, struct door_native **ret,
		    struct error *e)
{
	_cleanup_(buf_fini) struct buf address = { 0 };
	struct door_native *door = calloc(1, sizeof(*door));
	int r = door ? buf_printf(&address, "unix:%s", options->socket) : -ENOMEM;

	if (!r)
		r = buf_append_zero(&address, 1);
	if (r) {
		free(door);
		return r;
	}
	door->env = env;
	door->options = *options;
	list_init(&door->sessions);
	nursery_init(&door->burials, env->loop);
	r = net_listen(env, (const char *)address.ptr, accepted, door, &door->listener, e);
	if (r) {
		free(door);
		return r;
	}
	*ret = door;
	return 0;
}

void door_native_stop(struct door_native *door)
{
	net_listener_close(door->listener);
	door->listener = NULL;
	while (!list_empty(&door->sessions))
		session_end(list_entry(door->sessions.next, struct session, link), "the daemon shuts down");
	/* they end by themselves, each once its fibers have: cancelling would leave them half-buried */
	(void)nursery_wait(&door->burials, env_in_ms(door->env, 60000));
	nursery_fini(&door->burials);
}

void door_native_free(struct door_native *door)
{
	if (!door)
		return;
	CHECK(list_empty(&door->sessions));
	free(door);
}

unsigned door_native_clients(const struct door_native *door)
{
	return door->n_sessions;
}
