#include "cli/trace.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/text.h"

const struct forebay_station *trace_slowest_station(const struct forebay_trace *trace)
{
	const struct forebay_station *slowest = NULL;

	for (size_t i = 0; i < trace->n_stations; i++)
		if (!slowest || trace->stations[i].took_ns > slowest->took_ns)
			slowest = &trace->stations[i];
	return slowest;
}

const struct forebay_station *trace_last_station(const struct forebay_trace *trace)
{
	return trace->n_stations ? &trace->stations[trace->n_stations - 1] : NULL;
}

const struct forebay_hop *trace_slowest_hop(const struct forebay_trace *trace, const char *station)
{
	const struct forebay_hop *slowest = NULL;

	for (size_t i = 0; i < trace->n_hops; i++)
		if (!strcmp(trace->hops[i].station, station) && (!slowest || trace->hops[i].took_ns > slowest->took_ns))
			slowest = &trace->hops[i];
	return slowest;
}

static int by_slowness(const void *a, const void *b)
{
	const struct forebay_hop *x = *(const struct forebay_hop *const *)a, *y = *(const struct forebay_hop *const *)b;

	if (x->took_ns != y->took_ns)
		return x->took_ns < y->took_ns ? 1 : -1;
	return strcmp(x->node, y->node);
}

const struct forebay_hop **trace_hops_at(const struct forebay_trace *trace, const char *station, size_t *ret_n)
{
	const struct forebay_hop **hops = calloc(trace->n_hops + 1, sizeof(*hops));
	size_t n = 0;

	for (size_t i = 0; hops && i < trace->n_hops; i++)
		if (!strcmp(trace->hops[i].station, station))
			hops[n++] = &trace->hops[i];
	if (hops)
		qsort(hops, n, sizeof(*hops), by_slowness);
	*ret_n = n;
	return hops;
}

static json_t *hops_json(const struct forebay_trace *trace, const char *station)
{
	json_t *list = json_array();
	size_t n;
	const struct forebay_hop **hops = trace_hops_at(trace, station, &n);

	for (size_t i = 0; i < n; i++) {
		json_t *object = json_pack("{s:s}", "node", hops[i]->node);

		json_object_set_new(object, "took_ns", json_u64(hops[i]->took_ns));
		json_object_set_new(object, "bytes", json_u64(hops[i]->bytes));
		if (hops[i]->rank != UINT32_MAX)
			json_object_set_new(object, "last_rank", json_u64(hops[i]->rank));
		json_array_append_new(list, object);
	}
	free(hops);
	return list;
}

static json_t *stations_json(const struct forebay_trace *trace)
{
	json_t *list = json_array();

	for (size_t i = 0; i < trace->n_stations; i++) {
		const struct forebay_station *station = &trace->stations[i];
		json_t *object = json_pack("{s:s}", "station", station->name);

		json_object_set_new(object, "at_ns", json_u64(station->at_ns));
		json_object_set_new(object, "took_ns", json_u64(station->took_ns));
		json_object_set_new(object, "nodes", hops_json(trace, station->name));
		json_array_append_new(list, object);
	}
	return list;
}

json_t *trace_json(const struct forebay_trace *trace)
{
	const struct forebay_station *slowest = trace_slowest_station(trace);
	char id[20];

	snprintf(id, sizeof(id), "%016" PRIx64, trace->save);
	json_t *object = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:b, s:s}", "save", id, "group", trace->group,
				   "bundle", trace->bundle, "state", trace->state, "coordinator", trace->coordinator,
				   "words", trace->words, "ended", trace->ended, "slowest",
				   slowest ? slowest->name : "");
	const struct {
		const char *name;
		uint64_t value;
	} figures[] = {
		{ "step", trace->step },
		{ "version", trace->version },
		{ "ranks", trace->ranks },
		{ "nodes", trace->nodes },
		{ "copies", trace->copies },
		{ "offered_bytes", trace->offered_bytes },
		{ "unique_bytes", trace->unique_bytes },
		{ "stored_bytes", trace->stored_bytes },
		{ "took_ns", trace->took_ns },
		{ "upload_bound_ns", trace->bound_ns },
		{ "upload_planned_ns", trace->planned_ns },
	};

	for (size_t i = 0; i < sizeof(figures) / sizeof(*figures); i++)
		json_object_set_new(object, figures[i].name, json_u64(figures[i].value));
	json_object_set_new(object, "stations", stations_json(trace));
	return object;
}
