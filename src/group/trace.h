/*
 * group/trace.h: how long a save waited and worked, station by station, as its coordinator saw it; told by `forebay why`.
 *
 * A save is at one station at a time: the one that it waits for, where several go on at once, as storing one wave and capturing the next.
 * A *hop* is what one node did at a station. The coordinator keeps the saves in flight and the last ones
 * that ended, within TRACES_MAX and TRACES_BYTES_MAX. A save whose trace found no memory goes on without one.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/list.h"
#include "group/state.h"

#define TRACES_MAX	 64 /* ended saves that are remembered: 2 to 3 KiB each, so a hundred saves reach its full size */
#define TRACES_BYTES_MAX (4u << 20) /* and the memory of all of them */
#define TRACE_HOPS_MAX	 1024	    /* of one save; then the slowest are kept */
#define TRACES_TOLD_MAX	 16	    /* in one answer */

#define STATION_TABLE(X)                                                                                    \
	X(GATHER, "gather")	/* ranks offer what they will save */                                       \
	X(PLAN, "plan")		/* lists are merged and planned, or the plan of the save before is taken */ \
	X(RESERVE, "reserve")	/* nodes make room, each in its turn */                                     \
	X(CAPTURE, "capture")	/* ranks copy and hash */                                                   \
	X(VERDICT, "verdict")	/* equal boxes are compared; `captured` is told */                          \
	X(DIGEST, "digest")	/* after a hinted capture: daemons hash */                                  \
	X(TAKEOVER, "takeover") /* a successor asks who holds what, and settles what was opened */          \
	X(COPY, "copy")		/* nodes fetch copies */                                                    \
	X(KEEP, "keep")		/* other nodes take what a successor would need */                          \
	X(STAGED, "staged")	/* that is told */                                                          \
	X(SLOT, "slot")		/* the version's number is taken */                                         \
	X(PACKS, "packs")	/* nodes write to the store */                                              \
	X(SEGMENTS, "segments") /* lists of items and blocks */                                             \
	X(ROOT, "root")		/* the commit point */                                                      \
	X(INDEX, "index")	/* the index's rows */                                                      \
	X(TOLD, "told")		/* how it ended is told */

enum station {
#define X(name, text) STATION_##name,
	STATION_TABLE(X)
#undef X
		STATIONS
};

#define TRACE_NO_RANK UINT32_MAX

struct csave;
struct groups;
struct trace;
struct version;

/* All of these take a save without a trace, too. */
void trace_begin(struct csave *save);
void trace_offered(struct csave *save, uint32_t rank);	 /* so far the last to offer */
void trace_at(struct csave *save, enum station station); /* leaves the one before */
/* What @node did at @station: so long, so many bytes, @rank the last one to be done. */
void trace_hop(struct csave *save, enum station station, const char *node, uint64_t took_ns, uint64_t bytes,
	       uint32_t rank);
void trace_slow(struct csave *save, const char *node); /* it was far behind the others */
struct fan_call;
void trace_calls(struct csave *save, enum station station, const struct fan_call *calls,
		 size_t n); /* a hop each; bytes as the calls have them */
void trace_reports(struct csave *save, enum station station, const struct fan_call *calls,
		   size_t n); /* likewise; bytes and ranks as the nodes say */
void trace_published(struct csave *save,
		     const struct version *version);	       /* segments, root, index: when each was there */
void trace_entered(struct csave *save, enum save_state state); /* counts, too (base/counter.h) */
void trace_ended(struct csave *save, int result);	       /* before the ranks are told */
void trace_left(struct csave *save);			       /* they were told, and the save is freed */

struct traces {
	struct list all; /* struct trace, oldest first */
	uint32_t n;
	uint64_t bytes;
};
void traces_init(struct traces *traces);
void traces_fini(struct traces *traces);
void trace_serve(struct groups *groups); /* registers the call of other nodes */
