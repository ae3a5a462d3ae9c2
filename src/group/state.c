#include "group/state.h"

#include <assert.h>
#include <stddef.h>

#include "base/check.h"

static const char *const names[] = { "gathering", "reserving", "capturing", "captured", "staged", "durable", "failed" };

static_assert(ARRAY_LEN(names) == SAVE_STATES, "a name for each state");

/* A save goes forward one state at a time, and fails from wherever it is. A hinted capture that was wrong is repeated. */
static const bool allowed[SAVE_STATES][SAVE_STATES] = {
	[SAVE_GATHERING] = { [SAVE_RESERVING] = true, [SAVE_FAILED] = true },
	[SAVE_RESERVING] = { [SAVE_CAPTURING] = true, [SAVE_FAILED] = true },
	[SAVE_CAPTURING] = { [SAVE_CAPTURING] = true, [SAVE_CAPTURED] = true, [SAVE_FAILED] = true },
	[SAVE_CAPTURED] = { [SAVE_STAGED] = true, [SAVE_FAILED] = true },
	[SAVE_STAGED] = { [SAVE_DURABLE] = true, [SAVE_FAILED] = true },
};

static void (*on_move)(enum save_state from, enum save_state to);

const char *save_state_name(enum save_state state)
{
	return state < SAVE_STATES ? names[state] : "?";
}

bool save_state_is_captured(enum save_state state)
{
	return state == SAVE_CAPTURED || state == SAVE_STAGED;
}

bool save_state_is_over(enum save_state state)
{
	return state == SAVE_DURABLE || state == SAVE_FAILED;
}

bool save_state_may_move(enum save_state from, enum save_state to)
{
	return from < SAVE_STATES && to < SAVE_STATES && allowed[from][to];
}

void save_state_move(enum save_state *state, enum save_state to)
{
	CHECK(save_state_may_move(*state, to));
	if (on_move)
		on_move(*state, to);
	*state = to;
}

void save_state_on_move(void (*moved)(enum save_state from, enum save_state to))
{
	on_move = moved;
}
