/*
 * door/ranks.c: what ranks say: join, leave, save, load.
 *
 * A rank that a request or a load uses does not leave before that has ended; a load that somebody ends is taken out of the table first,
 * so that only one does.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/check.h"
#include "door/inside.h"

#define LOOK_MS 60000 /* what comes for certain is waited for in steps of this */

/* ---- ranks ------------------------------------------------------------------------------------------------------------------ */

int rank_hold(struct session *session, uint64_t handle, struct door_rank **ret, struct error *e)
{
	struct door_rank *rank = handles_get(&session->ranks, handle);

	if (!rank || rank->leaving)
		return session_lacks(session, "group", handle, e);
	rank->users++;
	*ret = rank;
	return 0;
}

void rank_release(struct held_rank *held)
{
	if (held->rank && !--held->rank->users)
		wake_all(&held->session->changed);
	held->rank = NULL;
}

static int rank_take(struct session *session, struct rank *rank, struct door_rank **ret)
{
	struct door_rank *own = calloc(1, sizeof(*own));

	if (!own)
		return -ENOMEM;
	own->rank = rank;
	own->handle = ++session->ranks.last;
	int r = handles_put(&session->ranks, own->handle, own);
	if (r) {
		free(own);
		return r;
	}
	*ret = own;
	return 0;
}

static int join(struct session *session, const struct request *request, const struct msg_join *m, struct buf *answer,
		struct error *e)
{
	const struct rank_events events = { .push = session_push, .arg = session };
	struct door_native *door = session->door;
	struct msg_join_reply reply = { 0 };
	struct door_rank *own = NULL;
	struct rank *rank = NULL;
	int r = group_join(door->options.groups, view_str(door->tenant), m, &events, request->deadline_ns, &rank,
			   &reply, e);

	if (r)
		return r;
	r = rank_take(session, rank, &own);
	if (r) {
		group_leave(rank, "there was no memory for it");
		return r;
	}
	reply.handle = own->handle;
	r = msg_join_reply_encode(&reply, answer);
	if (r) {
		handles_remove(&session->ranks, own->handle);
		group_leave(rank, "there was no memory for it");
		free(own);
	}
	return r;
}

static int on_join(struct session *session, const struct request *request, struct buf *answer, struct error *e)
{
	struct msg_join m;

	if (msg_join_decode(view_buf(&request->body), &m))
		return request_malformed(request, e);
	if (session->ranks.map.n + session->n_joins >= DOOR_RANKS_MAX)
		return session_is_full(session, "ranks", DOOR_RANKS_MAX, e);
	session->n_joins++;
	int r = join(session, request, &m, answer, e);
	session->n_joins--;
	return r;
}

/* ---- loads ------------------------------------------------------------------------------------------------------------------ */

static void load_free(struct session *session, struct door_load *load)
{
	struct held_rank held = { session, load->rank };

	group_load_free(load->reader);
	version_put(load->version);
	rank_release(&held);
	free(load);
}

/* Waits, shielded, until the load's request and fiber have returned. The caller has taken it out of the table. */
static void load_end(struct session *session, struct door_load *load)
{
	while (load->beginning)
		wait_at_shielded(&session->changed, env_in_ms(session->door->env, LOOK_MS));
	nursery_fini(&load->nursery);
	load_free(session, load);
}

/* The fiber of a load: it tells its client how it ended by itself. */
static int load_run(void *arg)
{
	struct door_load *load = arg;
	struct error e = { 0 };

	group_load_run(load->reader, load->deadline_ns, &e);
	return 0;
}

/* Checks what the client names, and puts the load into the table. */
static int load_enter(struct session *session, const struct request *request, const struct msg_load *m,
		      struct door_load *load, struct error *e)
{
	struct version *version = handles_get(&session->versions, m->version);
	int r = 0;

	nursery_init(&load->nursery, session->door->env->loop);
	load->deadline_ns = request->deadline_ns;
	load->number = m->load;
	if (!version)
		return session_lacks(session, "open version", m->version, e);
	if (session->loads.map.n >= DOOR_LOADS_MAX)
		return session_is_full(session, "loads", DOOR_LOADS_MAX, e);
	if (handles_get(&session->loads, m->load))
		return error_set(e, -EEXIST, "load %" PRIu64 " of this session is under way already", m->load);
	load->version = version_get(version);
	if (m->group)
		r = rank_hold(session, m->group, &load->rank, e);
	return r ? r : handles_put(&session->loads, m->load, load);
}

/*
 * A rank's loads, also those that it forgoes, are counted in the order in which they came, though a large one takes a while to begin.
 * No wait may lie between the lookups of such a request and turn_wait().
 */
static void turn_wait(struct session *session)
{
	uint64_t own = session->turns_given++;

	while (session->turn != own)
		wait_at_shielded(&session->changed, env_in_ms(session->door->env, LOOK_MS));
}

static void turn_end(struct session *session)
{
	session->turn++;
	wake_all(&session->changed);
}

/* The last that may fail: once it has joined its group's load, that ends by LOAD_END. */
static int load_begin(struct session *session, const struct msg_load *m, struct door_load *load, struct error *e)
{
	const struct rank_events events = { .push = session_push, .arg = session };

	load->beginning = true;
	turn_wait(session);
	int r = group_load_new(session->door->options.groups, load->rank ? load->rank->rank : NULL, &events,
			       load->version, m, load->deadline_ns, &load->reader, e);
	load->beginning = false;
	turn_end(session);
	return r;
}

static int on_load(struct session *session, const struct request *request, struct buf *answer, struct error *e)
{
	struct door_load *load = calloc(1, sizeof(*load));
	struct msg_load m;

	if (!load)
		return -ENOMEM;
	if (msg_load_decode(view_buf(&request->body), &m)) {
		free(load);
		return request_malformed(request, e);
	}
	int r = load_enter(session, request, &m, load, e);
	if (r) {
		load_free(session, load);
		return r;
	}
	r = load_begin(session, &m, load, e);
	if (handles_get(&session->loads, m.load) != load)
		return r; /* who took it out meanwhile frees it */
	if (r) {
		handles_remove(&session->loads, m.load);
		load_free(session, load);
		return r;
	}
	r = fiber_start(&load->nursery, "load", load_run, load);
	if (r)
		group_load_refuse(load->reader, r); /* the client's CANCEL frees it, as any other */
	return 0;
}

void ranks_release(struct session *session, struct view body)
{
	struct msg_release m;
	struct door_load *load = msg_release_decode(body, &m) ? NULL : handles_get(&session->loads, m.load);

	if (load)
		group_load_release(load->reader, m.tokens);
}

/* ---- leaving ------------------------------------------------------------------------------------------------------------------ */

/* The next load of the rank, out of the table, or NULL. */
static struct door_load *take_load_of(struct session *session, const struct door_rank *rank)
{
	for (struct map_slot *s = map_first(&session->loads.map); s; s = map_next(s)) {
		const struct door_load *load = map_value(s);

		if (load->rank == rank)
			return handles_remove(&session->loads, load->number);
	}
	return NULL;
}

static int on_leave(struct session *session, const struct request *request, struct buf *answer, struct error *e)
{
	struct door_load *load;
	struct door_rank *rank;
	struct msg_handle m;
	int r = 0;

	if (msg_handle_decode(view_buf(&request->body), &m))
		return request_malformed(request, e);
	rank = handles_get(&session->ranks, m.handle);
	if (!rank || rank->leaving)
		return session_lacks(session, "group", m.handle, e);
	rank->leaving = true;
	while ((load = take_load_of(session, rank)))
		load_end(session, load);
	while (!r && rank->users)
		r = wait_at(&session->changed, request->deadline_ns);
	if (r) {
		rank->leaving = false; /* it leaves with the session, if not before */
		return error_set(e, r, "requests of the group are still under way");
	}
	handles_remove(&session->ranks, m.handle);
	group_leave(rank->rank, "it left the group");
	free(rank);
	return 0;
}

void ranks_fini(struct session *session)
{
	uint64_t number;

	for (struct door_load *load; (load = handles_first(&session->loads, &number));) {
		handles_remove(&session->loads, number);
		load_end(session, load);
	}
	for (struct door_rank *rank; (rank = handles_first(&session->ranks, &number));) {
		CHECK(!rank->users);
		handles_remove(&session->ranks, number);
		group_leave(rank->rank, session->words);
		free(rank);
	}
}

/* ---- saves ---------------------------------------------------------------------------------------------------------------------- */

static int save_check(const struct msg_save *m, struct error *e)
{
	if (m->copies > 3)
		return error_set(e, -EINVAL, "%" PRIu32 " copies; 1 to 3 are possible", m->copies);
	if (m->policy >= POLICIES)
		return error_set(e, -EINVAL, "policy %" PRIu32 " is not known", m->policy);
	if (m->flags & ~(uint32_t)SAVE_SAME_STRUCTURE)
		return error_set(e, -EINVAL, "flags 0x%" PRIx32 " are not known", m->flags);
	if (m->n_items > ITEMS_MAX)
		return error_set(e, -E2BIG, "%" PRIu32 " items; a version has at most %d", m->n_items, ITEMS_MAX);
	return 0;
}

static int on_save(struct session *session, const struct request *request, struct buf *answer, struct error *e)
{
	_cleanup_(rank_release) struct held_rank held = { session, NULL };
	struct msg_save_reply reply = { 0 };
	struct msg_save m;

	if (msg_save_decode(view_buf(&request->body), &m))
		return request_malformed(request, e);
	int r = save_check(&m, e);
	if (!r)
		r = rank_hold(session, m.group, &held.rank, e);
	if (!r)
		r = group_save(held.rank->rank, &m, request->deadline_ns, &reply, e);
	return r ? r : msg_save_reply_encode(&reply, answer);
}

static int on_filled(struct session *session, const struct request *request, struct buf *answer, struct error *e)
{
	_cleanup_(rank_release) struct held_rank held = { session, NULL };
	struct msg_filled m;

	if (msg_filled_decode(view_buf(&request->body), &m))
		return request_malformed(request, e);
	int r = rank_hold(session, m.group, &held.rank, e);
	return r ? r : group_filled(held.rank->rank, &m, e);
}

/* What is not there any more is cancelled, too. */
static int on_cancel(struct session *session, const struct request *request, struct buf *answer, struct error *e)
{
	_cleanup_(rank_release) struct held_rank held = { session, NULL };
	struct msg_cancel m;

	if (msg_cancel_decode(view_buf(&request->body), &m))
		return request_malformed(request, e);
	if (!m.group) {
		struct door_load *load = handles_remove(&session->loads, m.number);

		if (load)
			load_end(session, load);
		return 0;
	}
	int r = rank_hold(session, m.group, &held.rank, e);
	if (!r && m.number)
		group_cancel(held.rank->rank, m.number);
	else if (!r)
		group_abandon(held.rank->rank, m.bundle, m.step, m.words);
	return r;
}

/* The next load of a version that the rank has open, or would have by now. */
static int forgo_load(struct session *session, const struct request *request, const struct msg_forgo *m,
		      struct error *e)
{
	_cleanup_(rank_release) struct held_rank held = { session, NULL };
	const struct msg_open open = { .bundle = m->bundle, .version = m->spec, .group = m->group };
	struct version *known = handles_get(&session->versions, m->version);
	struct version *version = known ? version_get(known) : NULL;
	int r = rank_hold(session, m->group, &held.rank, e);

	if (!r && m->version && !version)
		r = session_lacks(session, "open version", m->version, e);
	if (!r && !version)
		r = names_open(session, &open, request->deadline_ns, &version, e);
	if (!r) {
		turn_wait(session);
		r = group_forgo_load(held.rank->rank, version, m->words);
		turn_end(session);
	}
	version_put(version);
	return r;
}

/* Whom the others wait for, and who cannot tell them by this, tells them by going. */
static int on_forgo(struct session *session, const struct request *request, struct buf *answer, struct error *e)
{
	struct msg_forgo m;

	if (msg_forgo_decode(view_buf(&request->body), &m))
		return request_malformed(request, e);
	int r = m.name.len ? group_forgo_join(session->door->options.groups, view_str(session->door->tenant), m.name,
					      m.run, m.rank, m.words, request->deadline_ns, e) :
			     forgo_load(session, request, &m, e);
	if (r == -ENOMEM || r == -EBUSY)
		session_end(session, "its session was ended: a refusal cannot be told to its group: %s",
			    e && e->code ? e->text : error_meaning(r));
	return r;
}

handler_fn ranks_handler(enum msg_type type)
{
	switch (type) {
	case MSG_JOIN:
		return on_join;
	case MSG_LEAVE:
		return on_leave;
	case MSG_SAVE:
		return on_save;
	case MSG_FILLED:
		return on_filled;
	case MSG_CANCEL:
		return on_cancel;
	case MSG_FORGO:
		return on_forgo;
	case MSG_LOAD:
		return on_load;
	default:
		return NULL;
	}
}
