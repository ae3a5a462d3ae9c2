/*
 * group/admit.c: a node makes room for its part of a save, in turn, or says that it has none.
 *
 * A save gets all of its room in an arena or none, and one save at a time has the turn (turn.h). Who has it waits for saves alone that
 * hold all of theirs and drain; so a share that an empty arena holds gets its room, whatever has been before. Captures come first: for
 * that arena nobody but saves asks.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "group/member.h"

/* ---- what it takes ---------------------------------------------------------------------------------------------------- */

static int larger_first(const void *a, const void *b)
{
	const struct part_want *x = a, *y = b;

	if (x->bytes != y->bytes)
		return x->bytes > y->bytes ? -1 : 1;
	return (x->place > y->place) - (x->place < y->place);
}

/* From @wants, which it sorts. */
static int list_room(struct part_want *wants, size_t n, struct part_room *room)
{
	qsort(wants, n, sizeof(*wants), larger_first);
	room->bytes = calloc(n + 1, sizeof(*room->bytes));
	room->places = calloc(n + 1, sizeof(*room->places));
	if (!room->bytes || !room->places)
		return -ENOMEM;
	for (room->n = 0; room->n < n; room->n++) {
		room->bytes[room->n] = wants[room->n].bytes;
		room->places[room->n] = wants[room->n].place;
		room->sum_bytes += wants[room->n].bytes;
	}
	return pool_room_of(room->bytes, n, &room->room_bytes);
}

int part_count_room(struct part *part)
{
	size_t most = part->n_blocks > part->n_receives ? part->n_blocks : part->n_receives, n = 0;
	_cleanup_(cleanup_mem) struct part_want *wants = calloc(most + 1, sizeof(*wants));

	if (!wants)
		return -ENOMEM;
	for (size_t i = 0; i < part->n_blocks; i++)
		if (part->blocks[i].mode == CAPTURE_COPY)
			wants[n++] = (struct part_want){ part->blocks[i].bytes, (uint32_t)i };
	int r = list_room(wants, n, &part->rooms[POOL_CAPTURE]);
	for (size_t i = 0; i < part->n_receives; i++)
		wants[i] = (struct part_want){ part->receives[i].bytes, (uint32_t)i };
	return r ? r : list_room(wants, part->n_receives, &part->rooms[POOL_READ]);
}

/* What can never fit is refused at once: waiting for room would not end. */
static int check_room(const struct msave *save, const struct part_room *rooms, struct error *e)
{
	for (int kind = 0; kind < POOL_KINDS; kind++) {
		const struct part_room *room = &rooms[kind];
		uint64_t most = pool_arena(store_pool(save->group->share->store), kind)->size;

		if (room->room_bytes > most)
			return error_set(e, -ERR_EPOOL,
					 "the share of node %s in step %" PRIu64 " of %s is %" PRIu64
					 " bytes to %s, which take %" PRIu64 "; its pool has %" PRIu64 " for that",
					 cluster_node(save->groups->cluster), save->step, save->bundle, room->sum_bytes,
					 kind == POOL_CAPTURE ? "capture" : "receive", room->room_bytes, most);
	}
	return 0;
}

/* ---- the turn --------------------------------------------------------------------------------------------------------- */

void msave_end_turn(struct msave *save)
{
	struct turn *next = turn_leave(&save->group->share->turns, &save->turn);

	if (next)
		wake_all(&container_of(next, struct msave, turn)->changed);
}

static bool is_admitting(const struct msave *save)
{
	return save->state == SAVE_RESERVING || (save->waves && save->state == SAVE_CAPTURING);
}

static int wait_turn(struct msave *save, uint64_t deadline_ns, struct error *e)
{
	int r = 0;

	while (!r && is_admitting(save) && !turn_take(&save->group->share->turns, &save->turn))
		r = wait_at(&save->changed, deadline_ns);
	if (r)
		return error_set(e, r, "step %" PRIu64 " of %s: the saves before it have not got their room in time",
				 save->step, save->bundle);
	return 0;
}

/* ---- the room --------------------------------------------------------------------------------------------------------- */

static bool is_wanted(const void *arg)
{
	return is_admitting(arg);
}

static void drop_room(struct block **blocks, size_t n)
{
	for (size_t i = 0; blocks && i < n; i++)
		block_unpin(blocks[i]);
	free(blocks);
}

static int take_kind(struct msave *save, enum pool_kind kind, const struct part_room *room, uint64_t until_ns,
		     struct block ***ret, struct error *e)
{
	struct room_ask ask = { .kind = kind, .bytes = room->bytes, .n = room->n, .wanted = is_wanted, .arg = save };
	struct block **blocks = calloc(room->n + 1, sizeof(*blocks));
	int r = blocks ? 0 : -ENOMEM;

	if (!r && room->n)
		r = store_blocks_new(save->group->share->store, &ask, until_ns, blocks, e);
	if (r)
		free(blocks);
	else
		*ret = blocks;
	return r;
}

static int make_places(struct msave *save)
{
	if (!save->blocks)
		save->blocks = calloc(save->part->n_blocks + 1, sizeof(*save->blocks));
	if (!save->received)
		save->received = calloc(save->part->n_receives + 1, sizeof(struct block *));
	return save->blocks && save->received ? 0 : -ENOMEM;
}

static int take_room(struct msave *save, const struct part_room *rooms, uint64_t until_ns, struct error *e)
{
	struct block **taken[POOL_KINDS] = { NULL };
	int r = take_kind(save, POOL_CAPTURE, &rooms[POOL_CAPTURE], until_ns, &taken[POOL_CAPTURE], e);

	if (!r)
		r = take_kind(save, POOL_READ, &rooms[POOL_READ], until_ns, &taken[POOL_READ], e);
	if (!r)
		r = make_places(save);
	for (size_t i = 0; !r && i < rooms[POOL_CAPTURE].n; i++)
		save->blocks[rooms[POOL_CAPTURE].places[i]].block = TAKE(taken[POOL_CAPTURE][i]);
	for (size_t i = 0; !r && i < rooms[POOL_READ].n; i++)
		save->received[rooms[POOL_READ].places[i]] = TAKE(taken[POOL_READ][i]);
	for (int kind = 0; kind < POOL_KINDS; kind++)
		drop_room(taken[kind], taken[kind] ? rooms[kind].n : 0);
	save->admitted |= !r;
	return r;
}

/* 0; ADMIT_FULL. A failure of the save, which its end has told the ranks, is returned as it is. */
static int try_room(struct msave *save, const struct part_room *rooms, const struct admit_terms *terms,
		    uint64_t deadline_ns, struct error *e)
{
	uint64_t until_ns = terms->room_ms ? env_in_ms(save->groups->env, terms->room_ms) : 0;
	int r = 0;

	if (!terms->queue && save->group->share->turns.now) {
		(void)error_set(e, -ETIMEDOUT, "other saves wait for room");
		return ADMIT_FULL;
	}
	r = wait_turn(save, deadline_ns, e);
	if (!r && is_admitting(save))
		r = take_room(save, rooms, until_ns < deadline_ns ? until_ns : deadline_ns, e);
	if (!is_admitting(save))
		return error_set(e, save->error.code, "%s", save->error.text);
	return r == -ETIMEDOUT && until_ns < deadline_ns ? ADMIT_FULL : r;
}

static int admit(struct msave *save, const struct part_room *rooms, const struct admit_terms *terms,
		 uint64_t deadline_ns, struct error *e)
{
	int r = check_room(save, rooms, e);

	if (!r)
		r = try_room(save, rooms, terms, deadline_ns, e);
	if (r != ADMIT_FULL || !terms->queue)
		msave_end_turn(save);
	return r;
}

int msave_admit(struct msave *save, const struct admit_terms *terms, uint64_t deadline_ns, struct error *e)
{
	return admit(save, save->part->rooms, terms, deadline_ns, e);
}

/* ---- waves ------------------------------------------------------------------------------------------------------------ */

int msave_begin_waves(struct msave *save)
{
	save->waves = true;
	save->admitted = true;
	return make_places(save);
}

static size_t first_not_below(const struct part *part, const struct moffer *offer, uint32_t block)
{
	size_t low = offer->first, high = offer->first + offer->n;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (part->blocks[middle].block < block)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

void moffer_range(const struct msave *save, const struct moffer *offer, uint32_t first, uint32_t last,
		  size_t *ret_begin, size_t *ret_end)
{
	*ret_begin = first_not_below(save->part, offer, first);
	*ret_end = first_not_below(save->part, offer, last);
}

/* What the blocks of a wave take here. */
static int wave_room(const struct msave *save, uint32_t first, uint32_t last, struct part_room *room)
{
	size_t begin, end, most = 0, n = 0;

	list_each(node, &save->offers) {
		moffer_range(save, list_entry(node, struct moffer, link), first, last, &begin, &end);
		most += end - begin;
	}
	_cleanup_(cleanup_mem) struct part_want *wants = calloc(most + 1, sizeof(*wants));
	if (!wants)
		return -ENOMEM;
	list_each(node, &save->offers) {
		moffer_range(save, list_entry(node, struct moffer, link), first, last, &begin, &end);
		for (; begin < end; begin++)
			if (save->part->blocks[begin].mode == CAPTURE_COPY && !save->blocks[begin].block)
				wants[n++] = (struct part_want){ save->part->blocks[begin].bytes, (uint32_t)begin };
	}
	return list_room(wants, n, room);
}

int msave_admit_wave(struct msave *save, uint32_t first, uint32_t last, uint64_t deadline_ns, struct error *e)
{
	const struct admit_terms terms = { .queue = true, .room_ms = UINT32_MAX };
	struct part_room rooms[POOL_KINDS] = { 0 };
	int r = wave_room(save, first, last, &rooms[POOL_CAPTURE]);

	if (!r)
		r = admit(save, rooms, &terms, deadline_ns, e);
	free(rooms[POOL_CAPTURE].bytes);
	free(rooms[POOL_CAPTURE].places);
	return r;
}

void msave_release_wave(struct msave *save, uint32_t first, uint32_t last)
{
	size_t at, end;

	list_each(node, &save->offers) {
		moffer_range(save, list_entry(node, struct moffer, link), first, last, &at, &end);
		for (; at < end; at++) {
			struct block *block = TAKE(save->blocks[at].block);

			if (block && block->indexed)
				pool_block_set_clean(block);
			block_unpin(block);
		}
	}
}
