#include "group/turn.h"

#include "base/check.h"

void turns_init(struct turns *turns)
{
	*turns = (struct turns){ 0 };
	list_init(&turns->waiting);
}

void turn_init(struct turn *turn, uint64_t owner)
{
	*turn = (struct turn){ .owner = owner };
	list_init(&turn->link);
}

static void give(struct turns *turns, struct turn *turn)
{
	turns->now = turn;
	turns->round = turn->round;
}

/* Behind all of its round and of earlier ones. A newcomer's round is never one that has begun: else it could come again and again. */
static void line_up(struct turns *turns, struct turn *turn)
{
	struct list *at = &turns->waiting;

	turn->round = turns->round + 1;
	list_each(node, &turns->waiting) {
		const struct turn *other = list_entry(node, struct turn, link);

		if (other->owner == turn->owner)
			turn->round = other->round + 1; /* they are sorted: at last that of the latest */
	}
	list_each(node, &turns->waiting) {
		if (list_entry(node, struct turn, link)->round > turn->round) {
			at = node;
			break;
		}
	}
	list_insert(at, &turn->link);
}

bool turn_take(struct turns *turns, struct turn *turn)
{
	if (turns->now == turn)
		return true;
	if (!list_empty(&turn->link))
		return false;
	if (turns->now) {
		line_up(turns, turn);
		return false;
	}
	CHECK(list_empty(&turns->waiting));
	turn->round = turns->round + 1;
	give(turns, turn);
	return true;
}

struct turn *turn_leave(struct turns *turns, struct turn *turn)
{
	list_remove(&turn->link);
	if (turns->now != turn)
		return NULL;
	turns->now = NULL;
	if (list_empty(&turns->waiting))
		return NULL;
	struct turn *next = list_entry(turns->waiting.next, struct turn, link);
	list_remove(&next->link);
	give(turns, next);
	return next;
}
