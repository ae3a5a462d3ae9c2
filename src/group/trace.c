/*
 * group/trace.c: what is measured of saves: counters, and for each save its way through the stations.
 */
#include "group/trace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/counter.h"
#include "group/inside.h"

#define HOPS_FIRST  16
#define WORDS_BYTES 256
#define ENDED_SOON  UINT64_C(5000) /* ms that an ended save still counts as of now */

struct hop {
	enum station station;
	char node[NODE_NAME_MAX + 1];
	uint32_t rank;
	uint64_t took_ns, bytes;
};

struct trace {
	struct list link;
	struct csave *save; /* NULL: it is over, and the figures below are its last */
	char *tenant, *group, *bundle;
	uint64_t save_id, step, version, begun_ns, ended_ns;
	uint64_t offered_bytes, unique_bytes, stored_bytes, bound_ns, planned_ns;
	uint32_t n_ranks, n_nodes, copies;
	enum save_state state;
	int code;
	char words[WORDS_BYTES];

	enum station at;
	uint64_t since_ns; /* at that station */
	struct {
		uint64_t first_ns, took_ns;
		bool seen;
	} stations[STATIONS];
	struct hop *hops;
	size_t n_hops, cap_hops;
};

static const char *const station_names[] = {
#define X(name, text) text,
	STATION_TABLE(X)
#undef X
};

/* ---- counters ------------------------------------------------------------------------------------------------------------ */

/* The station that a save leaves by entering @state, and since when it was there. */
static void count_station(const struct csave *save, enum save_state state)
{
	static const struct {
		enum timing timing;
		enum save_state from;
	} stations[SAVE_STATES] = {
		[SAVE_CAPTURING] = { TIME_SAVE_RESERVE, SAVE_RESERVING },
		[SAVE_CAPTURED] = { TIME_SAVE_CAPTURE, SAVE_CAPTURING },
		[SAVE_STAGED] = { TIME_SAVE_STAGE, SAVE_CAPTURED },
		[SAVE_DURABLE] = { TIME_SAVE_PUBLISH, SAVE_STAGED },
	};
	uint64_t now_ns = save->at_ns[state];

	if (state == SAVE_RESERVING) {
		count_time(TIME_SAVE_GATHER, save->begun_ns - save->at_ns[SAVE_GATHERING]);
		count_time(TIME_SAVE_PLAN, now_ns - save->begun_ns);
	} else if (save->at_ns[stations[state].from]) {
		count_time(stations[state].timing, now_ns - save->at_ns[stations[state].from]);
	}
}

static void count_entered(const struct csave *save, enum save_state state)
{
	static const enum counter reached[SAVE_STATES] = {
		[SAVE_RESERVING] = COUNT_SAVES_PLANNED,
		[SAVE_CAPTURING] = COUNT_SAVES_CAPTURING,
		[SAVE_CAPTURED] = COUNT_SAVES_CAPTURED,
		[SAVE_STAGED] = COUNT_SAVES_STAGED,
	};

	if (state != SAVE_FAILED)
		count_station(save, state);
	if (state <= SAVE_STAGED)
		count(reached[state], 1);
}

static void count_ended(const struct csave *save, int result)
{
	count(!result			 ? COUNT_SAVES_DURABLE :
	      result == -ERR_EUNINDEXED	 ? COUNT_SAVES_UNINDEXED :
	      result == -ERR_ESKIPPED	 ? COUNT_SAVES_SKIPPED :
	      result == -ERR_ESUPERSEDED ? COUNT_SAVES_SUPERSEDED :
					   COUNT_SAVES_FAILED,
	      1);
	if (result)
		return;
	count(COUNT_SAVE_OFFERED_BYTES, save->recipe->catalog.offered_bytes);
	count(COUNT_SAVE_UNIQUE_BYTES, save->recipe->catalog.unique_bytes);
	count(COUNT_SAVE_HOLE_BYTES, save->hole_bytes);
	count(COUNT_SAVE_STORED_BYTES, save->stored_bytes);
}

unsigned groups_coordinated(const struct groups *groups)
{
	return (unsigned)groups->coordinated.n;
}

/* ---- the traces of a node ------------------------------------------------------------------------------------------------ */

static uint64_t now_of(const struct csave *save)
{
	return env_now(save->group->groups->env);
}

static uint64_t bytes_of(const struct trace *trace)
{
	return sizeof(*trace) + strlen(trace->tenant) + strlen(trace->group) + strlen(trace->bundle) +
	       trace->cap_hops * sizeof(*trace->hops);
}

static void trace_free(struct trace *trace)
{
	if (!trace)
		return;
	free(trace->tenant);
	free(trace->group);
	free(trace->bundle);
	free(trace->hops);
	free(trace);
}

void traces_init(struct traces *traces)
{
	*traces = (struct traces){ 0 };
	list_init(&traces->all);
}

/* Takes it out, with its bytes. */
static void drop(struct traces *traces, struct trace *trace)
{
	list_remove(&trace->link);
	traces->bytes -= bytes_of(trace);
	traces->n--;
	trace_free(trace);
}

void traces_fini(struct traces *traces)
{
	list_each(node, &traces->all)
		drop(traces, list_entry(node, struct trace, link));
}

/* Ended ones only count: how many saves may be under way is bounded elsewhere. */
static void keep_within_bounds(struct traces *traces)
{
	while (traces->n > TRACES_MAX || traces->bytes > TRACES_BYTES_MAX)
		drop(traces, list_entry(traces->all.next, struct trace, link));
}

/* ---- a save's way --------------------------------------------------------------------------------------------------------- */

void trace_begin(struct csave *save)
{
	struct trace *trace = calloc(1, sizeof(*trace));

	if (!trace)
		return;
	trace->tenant = strdup(save->group->tenant);
	trace->group = strdup(save->group->name);
	trace->bundle = strdup(save->bundle);
	if (!trace->tenant || !trace->group || !trace->bundle) {
		trace_free(trace);
		return;
	}
	trace->save = save;
	trace->save_id = save->save_id;
	trace->step = save->step;
	trace->copies = save->copies;
	trace->n_ranks = save->recipe->n_ranks;
	trace->begun_ns = trace->since_ns = now_of(save);
	trace->at = STATIONS;
	save->trace = trace;
	trace_at(save, save->resumed ? STATION_TAKEOVER : STATION_GATHER);
}

static void leave_station(struct trace *trace, uint64_t now_ns)
{
	if (trace->at < STATIONS)
		trace->stations[trace->at].took_ns += now_ns - trace->since_ns;
	trace->since_ns = now_ns;
}

static void enter_station(struct trace *trace, enum station station, uint64_t now_ns)
{
	leave_station(trace, now_ns);
	trace->at = station;
	if (trace->stations[station].seen)
		return;
	trace->stations[station].seen = true;
	trace->stations[station].first_ns = now_ns;
}

void trace_at(struct csave *save, enum station station)
{
	if (save->trace)
		enter_station(save->trace, station, now_of(save));
}

static int by_slowness(const struct hop *a, const struct hop *b)
{
	return (a->took_ns > b->took_ns) - (a->took_ns < b->took_ns);
}

/* Where the next hop goes: a new place, or that of the fastest when there are too many; NULL: it is faster than all. */
static struct hop *place_of_hop(struct trace *trace, uint64_t took_ns)
{
	if (trace->n_hops == trace->cap_hops && trace->cap_hops < TRACE_HOPS_MAX) {
		size_t cap = trace->cap_hops ? 2 * trace->cap_hops : HOPS_FIRST;
		struct hop *hops = realloc(trace->hops, cap * sizeof(*hops));

		if (!hops)
			return NULL;
		trace->hops = hops;
		trace->cap_hops = cap;
	}
	if (trace->n_hops < trace->cap_hops)
		return &trace->hops[trace->n_hops++];
	struct hop *fastest = trace->hops;
	for (size_t i = 1; i < trace->n_hops; i++)
		if (by_slowness(&trace->hops[i], fastest) < 0)
			fastest = &trace->hops[i];
	return took_ns > fastest->took_ns ? fastest : NULL;
}

void trace_hop(struct csave *save, enum station station, const char *node, uint64_t took_ns, uint64_t bytes,
	       uint32_t rank)
{
	struct trace *trace = save->trace;
	struct hop *hop = trace ? place_of_hop(trace, took_ns) : NULL;

	if (!hop)
		return;
	*hop = (struct hop){ .station = station, .took_ns = took_ns, .bytes = bytes, .rank = rank };
	memcpy(hop->node, node, strnlen(node, NODE_NAME_MAX));
}

void trace_calls(struct csave *save, enum station station, const struct fan_call *calls, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (calls[i].node) /* else it was never made: something failed while they were prepared */
			trace_hop(save, station, calls[i].node, calls[i].took_ns, calls[i].bytes, TRACE_NO_RANK);
}

void trace_reports(struct csave *save, enum station station, const struct fan_call *calls, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct msg_g_capture_reply reply;

		if (!calls[i].result && !msg_g_capture_reply_decode(view_buf(&calls[i].answer), &reply))
			trace_hop(save, station, calls[i].node, calls[i].took_ns, reply.bytes, reply.last_rank);
	}
}

/* In the words, until it fails. */
void trace_slow(struct csave *save, const char *node)
{
	struct trace *trace = save->trace;
	size_t len = trace ? strlen(trace->words) : 0;

	if (trace && len + strlen(node) + 16 < sizeof(trace->words))
		snprintf(trace->words + len, sizeof(trace->words) - len, "%s%s", len ? ", " : "slow: node ", node);
}

/* The last rank's node alone is a hop: that is whom the others waited for. */
void trace_offered(struct csave *save, uint32_t rank)
{
	struct trace *trace = save->trace;

	if (!trace || trace->at != STATION_GATHER)
		return;
	trace->n_hops = 0;
	trace_hop(save, STATION_GATHER, save->ranks[rank].node, now_of(save) - trace->begun_ns, 0, rank);
}

void trace_published(struct csave *save, const struct version *version)
{
	const struct {
		enum station station;
		uint64_t until_ns;
	} ways[] = { { STATION_SEGMENTS, version->segments_ns },
		     { STATION_ROOT, version->root_ns },
		     { STATION_INDEX, version->index_ns } };
	struct trace *trace = save->trace;

	if (!trace || trace->at != STATION_SEGMENTS)
		return;
	for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
		if (trace->at != ways[i].station)
			enter_station(trace, ways[i].station, trace->since_ns);
		if (!ways[i].until_ns) /* it did not come so far: it is there still */
			break;
		leave_station(trace, ways[i].until_ns);
	}
}

/* A bound counts where all rates that it was made of are configured. */
static bool is_bound_known(const struct recipe *recipe)
{
	for (size_t i = 0; i < recipe->n_nodes; i++)
		if (recipe->plan_nodes[i].store_rate == RATE_UNKNOWN)
			return false;
	return true;
}

/* The save's own figures, as far as it has them. */
static void take_figures(struct trace *trace)
{
	const struct csave *save = trace->save;

	trace->state = save->state;
	trace->version = save->version;
	trace->stored_bytes = save->stored_bytes;
	trace->offered_bytes = save->recipe->catalog.offered_bytes;
	trace->unique_bytes = save->recipe->catalog.unique_bytes;
	trace->bound_ns = is_bound_known(save->recipe) ? save->recipe->plan.bound.bound_ns : 0;
	trace->planned_ns = trace->bound_ns ? save->recipe->plan.bound.planned_ns : 0;
	trace->n_nodes = (uint32_t)save->recipe->n_nodes;
}

void trace_entered(struct csave *save, enum save_state state)
{
	count_entered(save, state);
}

void trace_ended(struct csave *save, int result)
{
	struct trace *trace = save->trace;

	count_ended(save, result);
	if (!trace)
		return;
	if (!result) /* one that failed shows where: at the station that it did not leave */
		trace_at(save, STATION_TOLD);
	trace->code = -result;
	if (result)
		snprintf(trace->words, sizeof(trace->words), "%.200s", save->error.text);
}

void trace_left(struct csave *save)
{
	struct trace *trace = TAKE(save->trace);
	struct traces *traces = &save->group->groups->traces;

	if (!trace)
		return;
	trace->ended_ns = now_of(save);
	leave_station(trace, trace->ended_ns);
	take_figures(trace);
	trace->save = NULL;
	list_append(&traces->all, &trace->link);
	traces->bytes += bytes_of(trace);
	traces->n++;
	keep_within_bounds(traces);
}

/* ---- telling -------------------------------------------------------------------------------------------------------------- */

/* The stations that it has come to, in the order in which it did: one that goes through has its slot before it captures. */
static size_t order_stations(const struct trace *trace, enum station order[STATIONS])
{
	size_t n = 0;

	for (enum station station = 0; station < STATIONS; station++) {
		size_t at = n;

		if (!trace->stations[station].seen)
			continue;
		for (; at && trace->stations[order[at - 1]].first_ns > trace->stations[station].first_ns; at--)
			order[at] = order[at - 1];
		order[at] = station;
		n++;
	}
	return n;
}

static int add_stations(const struct trace *trace, uint64_t now_ns, struct list_buf *out)
{
	enum station order[STATIONS];
	size_t n = order_stations(trace, order);
	int r = 0;

	for (size_t i = 0; !r && i < n; i++) {
		bool is_there = trace->save && trace->at == order[i];
		const struct elem_station elem = {
			.name = view_str(station_names[order[i]]),
			.at_ns = trace->stations[order[i]].first_ns - trace->begun_ns,
			.took_ns = trace->stations[order[i]].took_ns + (is_there ? now_ns - trace->since_ns : 0),
		};

		r = elem_station_append(out, &elem);
	}
	return r;
}

static int add_hops(const struct trace *trace, struct list_buf *out)
{
	int r = 0;

	for (size_t i = 0; !r && i < trace->n_hops; i++) {
		const struct hop *hop = &trace->hops[i];
		const struct elem_hop elem = {
			.station = view_str(station_names[hop->station]),
			.node = view_str(hop->node),
			.took_ns = hop->took_ns,
			.bytes = hop->bytes,
			.rank = hop->rank,
		};

		r = elem_hop_append(out, &elem);
	}
	return r;
}

static int add_trace(struct groups *groups, struct trace *trace, struct list_buf *out)
{
	_cleanup_(list_buf_fini) struct list_buf stations = { 0 };
	_cleanup_(list_buf_fini) struct list_buf hops = { 0 };
	uint64_t now_ns = env_now(groups->env);

	if (trace->save)
		take_figures(trace);
	int r = add_stations(trace, now_ns, &stations);
	if (!r)
		r = add_hops(trace, &hops);
	const struct elem_trace elem = {
		.save_id = trace->save_id,
		.node = view_str(cluster_node(groups->cluster)),
		.group = view_str(trace->group),
		.bundle = view_str(trace->bundle),
		.step = trace->step,
		.version = trace->version,
		.state = view_str(save_state_name(trace->state)),
		.code = (uint32_t)trace->code,
		.words = view_str(trace->words),
		.ended = !trace->save,
		.n_ranks = trace->n_ranks,
		.n_nodes = trace->n_nodes,
		.copies = trace->copies,
		.offered_bytes = trace->offered_bytes,
		.unique_bytes = trace->unique_bytes,
		.stored_bytes = trace->stored_bytes,
		.took_ns = (trace->save ? now_ns : trace->ended_ns) - trace->begun_ns,
		.bound_ns = trace->bound_ns,
		.planned_ns = trace->planned_ns,
		.stations = list_buf_view(&stations),
		.hops = list_buf_view(&hops),
	};
	return r ? r : elem_trace_append(out, &elem);
}

/* Is it asked for: by its id, by what it published, or as one of now? */
static bool is_wanted(const struct groups *groups, const struct trace *trace, const struct msg_g_trace *m)
{
	if (!view_equal(view_str(trace->tenant), m->tenant))
		return false;
	if (m->save_id)
		return trace->save_id == m->save_id;
	if (m->bundle.len)
		return view_equal(view_str(trace->bundle), m->bundle) && m->version && trace->version == m->version;
	return trace->save || env_now(groups->env) - trace->ended_ns < ENDED_SOON * NS_PER_MS;
}

static int tell_under_way(struct groups *groups, const struct msg_g_trace *m, struct list_buf *out)
{
	int r = 0;

	for (struct map_slot *s = map_first(&groups->coordinated); !r && s; s = map_next(s)) {
		struct cgroup *group = map_value(s);

		list_each(link, &group->saves) {
			struct csave *save = list_entry(link, struct csave, link);

			if (!r && save->trace && is_wanted(groups, save->trace, m) && out->count < TRACES_TOLD_MAX)
				r = add_trace(groups, save->trace, out);
		}
	}
	return r;
}

/* Those under way, then those that ended, the newest first. */
static int serve_trace(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
		       struct error *e)
{
	_cleanup_(list_buf_fini) struct list_buf list = { 0 };
	struct groups *groups = arg;
	struct msg_g_trace m;

	if (msg_g_trace_decode(body, &m))
		return error_set(e, -EPROTO, "malformed G_TRACE from %s", from);
	int r = tell_under_way(groups, &m, &list);
	for (struct list *node = groups->traces.all.prev; !r && node != &groups->traces.all; node = node->prev) {
		struct trace *trace = list_entry(node, struct trace, link);

		if (list.count < TRACES_TOLD_MAX && is_wanted(groups, trace, &m))
			r = add_trace(groups, trace, &list);
	}
	const struct msg_trace_reply reply = { .traces = list_buf_view(&list) };
	return r ? r : msg_trace_reply_encode(&reply, answer);
}

void trace_serve(struct groups *groups)
{
	cluster_serve(groups->cluster, MSG_G_TRACE, serve_trace, groups);
}
