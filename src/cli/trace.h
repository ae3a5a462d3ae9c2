/*
 * cli/trace.h: what `why` and `top` read from a save's trace.
 */
#pragma once

#include <jansson.h>

#include "forebay/forebay.h"

const struct forebay_station *trace_slowest_station(const struct forebay_trace *trace); /* NULL: it has been at none */
const struct forebay_station *trace_last_station(const struct forebay_trace *trace);
const struct forebay_hop *trace_slowest_hop(const struct forebay_trace *trace,
					    const char *station); /* NULL: none is known */
/* All at @station, the slowest first; a list on the heap, NULL: none, or no memory. */
const struct forebay_hop **trace_hops_at(const struct forebay_trace *trace, const char *station, size_t *ret_n);
json_t *trace_json(const struct forebay_trace *trace);
