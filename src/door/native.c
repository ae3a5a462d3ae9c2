#include "door/native.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "door/inside.h"

int door_native_new(struct env *env, const struct door_native_options *options, struct door_native **ret,
		    struct error *e)
{
	_cleanup_(buf_fini) struct buf address = { 0 };
	struct door_native *door = calloc(1, sizeof(*door));

	if (!door)
		return error_set(e, -ENOMEM, "no memory for a door");
	door->magic = DOOR_MAGIC;
	door->env = env;
	door->options = *options;
	door->options.socket = NULL; /* the caller's */
	nursery_init(&door->nursery, env->loop);
	list_init(&door->sessions);
	list_init(&door->users);
	list_init(&door->siblings);
	list_init(&door->sibling);
	door->tenant = strdup(options->tenant);
	int r = door->tenant ? buf_printf(&address, "unix:%s", options->socket) : -ENOMEM;
	if (!r)
		r = buf_append_zero(&address, 1);
	if (r)
		error_set(e, r, "no memory for a door");
	else
		r = net_listen(env, (const char *)address.ptr, session_accepted, door, &door->listener, e);
	if (r) {
		door_native_free(door);
		return r;
	}
	list_append(&(options->first ? options->first : door)->siblings, &door->sibling);
	if (!options->first)
		seen_serve_peers(door);
	*ret = door;
	return 0;
}

void door_native_stop(struct door_native *door)
{
	CHECK_MAGIC(door, DOOR_MAGIC);
	door->stopping = true;
	net_listener_close(TAKE(door->listener));
	list_each(node, &door->sessions)
		session_end(list_entry(node, struct session, link), "the daemon of its node shut down");
	nursery_fini(&door->nursery);
}

void door_native_free(struct door_native *door)
{
	if (!door)
		return;
	CHECK_MAGIC(door, DOOR_MAGIC);
	CHECK(list_empty(&door->sessions) && nursery_is_empty(&door->nursery));
	net_listener_close(TAKE(door->listener));
	list_remove(&door->sibling);
	door->magic = 0;
	free(door->tenant);
	free(door);
}

unsigned door_native_stopped(const struct door_native *door)
{
	unsigned n = 0;

	list_each(node, &door->sessions) {
		const struct session *session = list_entry(node, struct session, link);

		n += door->options.is_stopped && !session->gone && door->options.is_stopped(session->pid);
	}
	return n;
}

unsigned door_native_clients(const struct door_native *first)
{
	unsigned n = 0;

	list_each(node, (struct list *)&first->siblings)
		n += list_entry(node, struct door_native, sibling)->n_sessions;
	return n;
}

void door_native_tell_http(struct door_native *first, const char *address)
{
	list_each(node, &first->siblings)
		list_entry(node, struct door_native, sibling)->http = address;
}

static unsigned add_pids(const struct door_native *door, int32_t *pids, unsigned n)
{
	list_each(node, (struct list *)&door->sessions) {
		const struct session *session = list_entry(node, struct session, link);

		if (n < DOOR_SESSIONS_MAX && !session->gone)
			pids[n++] = session->pid;
	}
	return n;
}

unsigned door_native_pids(const struct door_native *first, int32_t pids[DOOR_SESSIONS_MAX])
{
	unsigned n = 0;

	list_each(node, (struct list *)&first->siblings)
		n = add_pids(list_entry(node, struct door_native, sibling), pids, n);
	return n;
}

/* ---- handles ---------------------------------------------------------------------------------------------------------------- */

static struct view key_of(const uint64_t *number)
{
	return view_of(number, sizeof(*number));
}

int handles_put(struct handles *handles, uint64_t number, void *value)
{
	return map_put(&handles->map, key_of(&number), value);
}

void *handles_get(const struct handles *handles, uint64_t number)
{
	return map_get(&handles->map, key_of(&number));
}

void *handles_remove(struct handles *handles, uint64_t number)
{
	return map_remove(&handles->map, key_of(&number));
}

void *handles_first(const struct handles *handles, uint64_t *ret_number)
{
	const struct map_slot *slot = map_first(&handles->map);

	if (!slot)
		return NULL;
	memcpy(ret_number, map_key(slot).ptr, sizeof(*ret_number));
	return map_value(slot);
}
