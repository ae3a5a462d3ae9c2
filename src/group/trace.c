/*
 * group/trace.c: what is measured of saves: how long they stay at each station, and how they end.
 */
#include <errno.h>

#include "base/counter.h"
#include "group/inside.h"

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

void trace_entered(const struct csave *save, enum save_state state)
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

void trace_ended(const struct csave *save, int result)
{
	count(!result			? COUNT_SAVES_DURABLE :
	      result == -ERR_EUNINDEXED ? COUNT_SAVES_UNINDEXED :
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
