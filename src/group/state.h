/*
 * group/state.h: the states of a save, for coordinator and members alike, and the moves that are allowed.
 */
#pragma once

#include <stdbool.h>

#define SAVE_STATE_TABLE(X)                                                    \
	X(GATHERING) /* not every rank has offered */                          \
	X(RESERVING) /* planned; nodes make room */                            \
	X(CAPTURING) /* ranks copy and hash */                                 \
	X(CAPTURED)  /* every named holder has every block; the job may die */ \
	X(STAGED)    /* R copies */                                            \
	X(DURABLE)   /* published */                                           \
	X(FAILED)

enum save_state {
#define X(name) SAVE_##name,
	SAVE_STATE_TABLE(X)
#undef X
		SAVE_STATES
};

const char *save_state_name(enum save_state state); /* "captured" */
bool save_state_is_captured(enum save_state state); /* and not over: it is promised as far as memory goes */
bool save_state_is_over(enum save_state state);
bool save_state_may_move(enum save_state from, enum save_state to);
/* Checks and makes the move; reports it to the counter hook, which the simulator sets to see what was reached. */
void save_state_move(enum save_state *state, enum save_state to);
void save_state_on_move(void (*moved)(enum save_state from, enum save_state to));
