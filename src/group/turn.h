/*
 * group/turn.h: in which order the saves of several groups take their room on a node. Pure.
 *
 * One save at a time has the turn: of two that took room at once each could hold a part of what the other waits for. Those that wait
 * go in rounds: each group has one save in a round, in the order in which they came, so that a group that saves all the time delays
 * another one by a save, however many of its own are waiting.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/list.h"

struct turn { /* of one save */
	struct list link;
	uint64_t owner; /* its group, as a number */
	uint64_t round;
};

struct turns {
	struct turn *now; /* who has it; NULL: nobody, and then nobody waits */
	struct list waiting;
	uint64_t round; /* of the last who got it */
};

void turns_init(struct turns *turns);
void turn_init(struct turn *turn, uint64_t owner);
/* True: it has the turn (again). False: it waits, see turns->now. */
bool turn_take(struct turns *turns, struct turn *turn);
/* It has the turn no more, or waits no more; whatever it did. Returns who has the turn now and had not before, or NULL. */
struct turn *turn_leave(struct turns *turns, struct turn *turn);
