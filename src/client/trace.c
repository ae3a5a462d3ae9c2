/*
 * client/trace.c: how saves went, as their coordinators tell it.
 */
#include <errno.h>
#include <stdlib.h>

#include "client/session.h"
#include "forebay/forebay.h"
#include "wire/message.h"

/* What a trace's pointers point to. */
struct telling {
	char *coordinator, *group, *bundle, *state, *words;
	struct forebay_station *stations;
	struct forebay_hop *hops;
	size_t n_stations, n_hops;
	char **names; /* of stations and nodes */
	size_t n_names;
};

static void telling_fini(struct telling *telling)
{
	for (size_t i = 0; i < telling->n_names; i++)
		free(telling->names[i]);
	free(telling->names);
	free(telling->stations);
	free(telling->hops);
	free(telling->coordinator);
	free(telling->group);
	free(telling->bundle);
	free(telling->state);
	free(telling->words);
}

static const char *keep_name(struct telling *telling, struct view name)
{
	return telling->names[telling->n_names++] = view_dup(name);
}

static int take_stations(struct telling *telling, struct list_view list)
{
	struct elem_station elem;
	int r;

	while (!(r = elem_station_next(&list, &elem))) {
		struct forebay_station *station = &telling->stations[telling->n_stations++];

		*station = (struct forebay_station){ .name = keep_name(telling, elem.name),
						     .at_ns = elem.at_ns,
						     .took_ns = elem.took_ns };
		if (!station->name)
			return -ENOMEM;
	}
	return r == 1 ? 0 : r;
}

static int take_hops(struct telling *telling, struct list_view list)
{
	struct elem_hop elem;
	int r;

	while (!(r = elem_hop_next(&list, &elem))) {
		struct forebay_hop *hop = &telling->hops[telling->n_hops++];

		*hop = (struct forebay_hop){ .station = keep_name(telling, elem.station),
					     .node = keep_name(telling, elem.node),
					     .took_ns = elem.took_ns,
					     .bytes = elem.bytes,
					     .rank = elem.rank };
		if (!hop->station || !hop->node)
			return -ENOMEM;
	}
	return r == 1 ? 0 : r;
}

static int take_texts(struct telling *telling, const struct elem_trace *elem)
{
	telling->coordinator = view_dup(elem->node);
	telling->group = view_dup(elem->group);
	telling->bundle = view_dup(elem->bundle);
	telling->state = view_dup(elem->state);
	telling->words = view_dup(elem->words);
	telling->stations = calloc((size_t)elem->stations.count + 1, sizeof(*telling->stations));
	telling->hops = calloc((size_t)elem->hops.count + 1, sizeof(*telling->hops));
	telling->names = calloc(elem->stations.count + 2 * (size_t)elem->hops.count + 1, sizeof(*telling->names));
	bool all = telling->coordinator && telling->group && telling->bundle && telling->state && telling->words &&
		   telling->stations && telling->hops && telling->names;
	return all ? 0 : -ENOMEM;
}

static int tell_trace(const struct elem_trace *elem, void (*each)(void *arg, const struct forebay_trace *trace),
		      void *arg)
{
	_cleanup_(telling_fini) struct telling telling = { 0 };
	int r = take_texts(&telling, elem);

	if (!r)
		r = take_stations(&telling, elem->stations);
	if (!r)
		r = take_hops(&telling, elem->hops);
	const struct forebay_trace trace = {
		.size = sizeof(trace),
		.save = elem->save_id,
		.coordinator = telling.coordinator,
		.group = telling.group,
		.bundle = telling.bundle,
		.state = telling.state,
		.words = telling.words,
		.step = elem->step,
		.version = elem->version,
		.code = -(int)elem->code,
		.ended = (int)elem->ended,
		.ranks = elem->n_ranks,
		.nodes = elem->n_nodes,
		.copies = elem->copies,
		.offered_bytes = elem->offered_bytes,
		.unique_bytes = elem->unique_bytes,
		.stored_bytes = elem->stored_bytes,
		.took_ns = elem->took_ns,
		.bound_ns = elem->bound_ns,
		.planned_ns = elem->planned_ns,
		.stations = telling.stations,
		.n_stations = telling.n_stations,
		.hops = telling.hops,
		.n_hops = telling.n_hops,
	};
	if (!r && each)
		each(arg, &trace);
	return r;
}

static int tell_silent(struct list_view names, void (*silent)(void *arg, const char *node), void *arg)
{
	struct elem_name elem;
	int r;

	while (!(r = elem_name_next(&names, &elem))) {
		_cleanup_(cleanup_mem) char *name = view_dup(elem.name);

		if (!name)
			return -ENOMEM;
		if (silent)
			silent(arg, name);
	}
	return r == 1 ? 0 : r;
}

/* How many there were, or negative. */
static int tell_all(const struct msg_trace_reply *reply, void (*each)(void *arg, const struct forebay_trace *trace),
		    void (*silent)(void *arg, const char *node), void *arg)
{
	struct list_view list = reply->traces;
	struct elem_trace elem;
	int r, n = 0;

	while (!(r = elem_trace_next(&list, &elem))) {
		r = tell_trace(&elem, each, arg);
		if (r)
			return r;
		n++;
	}
	if (r == 1)
		r = tell_silent(reply->silent, silent, arg);
	return r ? r : n;
}

int forebay_trace(struct forebay_session *session, uint64_t save, const char *bundle, uint64_t number,
		  void (*each)(void *arg, const struct forebay_trace *trace),
		  void (*silent)(void *arg, const char *node), void *arg)
{
	_cleanup_(buf_fini) struct buf body = { 0 }, answer = { 0 };
	struct msg_trace_reply reply;
	struct error e = { 0 };

	if (!session)
		return api_fail(-EINVAL, "trace: no session");
	const struct msg_trace m = { .save_id = save, .bundle = view_str(bundle), .version = number };
	int r = msg_trace_encode(&m, &body);
	r = session_call(session, MSG_TRACE, &body, r, SEEN_CALL_MS, &answer, &e);
	if (r)
		return api_result(r, &e);
	r = msg_trace_reply_decode(view_buf(&answer), &reply);
	if (!r)
		r = tell_all(&reply, each, silent, arg);
	return r >= 0 ? r : api_fail(r, "the daemon's traces: %s", error_meaning(r));
}
