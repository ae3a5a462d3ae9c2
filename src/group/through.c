/*
 * group/through.c: a save that goes straight to the store, whatever its size: in waves of blocks, of which a node has room for some.
 *
 * A wave gets its room, node by node as for any save, is captured, and replicas are compared; then it is stored and gives its room
 * back, while the next one is captured. So nothing of it stays in memory: `captured` is over when the last wave is captured,
 * `staged` together with `durable`. The slot is opened first: what is stored belongs to it from the first byte on.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/point.h"
#include "group/inside.h"

#define WAVES_IN_ARENA \
	4 /* one is captured, one is stored; what is rounded up and small blocks in slabs take their part, too */
#define PAGE_BYTES 4096 /* that the pool counts in */
#define SLAB_UNIT  64

uint32_t save_block_bytes(const struct csave *save)
{
	uint64_t wave = save->arena_bytes / WAVES_IN_ARENA / PAGE_BYTES * PAGE_BYTES;

	return save->policy == POLICY_THROUGH && wave && wave < BLOCK_BYTES_MAX ? (uint32_t)wave : BLOCK_BYTES_MAX;
}

struct wave {
	struct csave *save;
	uint32_t first, last; /* blocks of the plan */
};

static uint64_t room_of(uint32_t bytes)
{
	uint64_t step = bytes < SAVE_SMALL_BYTES ? SLAB_UNIT : PAGE_BYTES;

	return (bytes + step - 1) / step * step;
}

/* As many blocks from @wave->first on as have room on each node; at least one. @load: zeroed, per node. */
static void find_end(struct wave *wave, uint64_t *load)
{
	const struct csave *save = wave->save;
	const struct save_plan *plan = &save->recipe->plan;
	uint64_t most = save->arena_bytes / WAVES_IN_ARENA;

	wave->last = wave->first;
	while (wave->last < plan->n_blocks) {
		const struct save_block *block = &plan->blocks[wave->last];

		load[block->holder[0]] += room_of(block->bytes);
		if (wave->last > wave->first && load[block->holder[0]] > most)
			return;
		wave->last++;
	}
}

/* Says the same of a wave to the nodes, one by one in the order of their names, or all at once. */
static int tell_wave(const struct wave *wave, enum msg_type type, bool one_by_one, struct error *e)
{
	struct csave *save = wave->save;
	const struct recipe *recipe = save->recipe;
	struct msg_g_wave msg = { .save_id = save->save_id,
				  .epoch = save->group->epoch,
				  .first = wave->first,
				  .last = wave->last };
	struct fan_call *calls = fan_new(recipe->n_nodes);
	size_t n = 0;
	int r = calls ? 0 : -ENOMEM;

	for (size_t node = 0; !r && node < recipe->n_nodes; node++) {
		if (!save_takes_part(save, node))
			continue;
		calls[n].node = recipe->nodes[node];
		r = msg_g_wave_encode(&msg, &calls[n++].body);
	}
	for (size_t i = 0; one_by_one && !r && i < n; i++)
		r = fan_out(save->group->groups, type, &calls[i], 1, save_drain_deadline(save), e);
	if (!r && !one_by_one)
		r = fan_out(save->group->groups, type, calls, n, save_drain_deadline(save), e);
	fan_free(calls, n);
	return r;
}

static int capture_wave(struct wave *wave, struct error *e)
{
	trace_at(wave->save, STATION_RESERVE);
	int r = tell_wave(wave, MSG_G_WAVE, true, e);

	trace_at(wave->save, STATION_CAPTURE);
	if (!r)
		r = save_capture_blocks(wave->save, wave->first, wave->last, e);
	if (!r)
		save_begin_holders(wave->save);
	return r;
}

/* A fiber beside the capture of the next wave. A failure stops the save. */
static int store_wave(void *arg)
{
	struct wave *wave = arg;
	struct csave *save = wave->save;
	struct error e = { 0 };
	int r = save_publish_blocks(save, wave->first, wave->last, save_drain_deadline(save), &e);

	if (!r)
		r = tell_wave(wave, MSG_G_RELEASE, false, &e);
	free(wave);
	if (r && r != -ECANCELED)
		save_stop(save, r, e.code ? e.text : error_meaning(r));
	return r;
}

static int capture_all(struct csave *save, struct nursery *storing, struct error *e)
{
	_cleanup_(cleanup_mem) uint64_t *load = calloc(save->recipe->n_nodes + 1, sizeof(*load));
	struct wave next = { .save = save };
	int r = load ? 0 : -ENOMEM;

	while (!r) { /* once also if there is no block at all */
		memset(load, 0, (save->recipe->n_nodes + 1) * sizeof(*load));
		find_end(&next, load);
		r = capture_wave(&next, e);
		if (!r && next.first)
			trace_at(save, STATION_PACKS);
		if (!r)
			r = nursery_wait(storing, save_drain_deadline(save)); /* the wave before has room no more */
		struct wave *wave = r ? NULL : malloc(sizeof(*wave));
		if (!r && !wave)
			r = -ENOMEM;
		if (r)
			break;
		*wave = next;
		r = fiber_start(storing, "wave", store_wave, wave);
		if (r)
			free(wave);
		next.first = next.last;
		if (next.first == save->recipe->plan.n_blocks)
			break;
	}
	return r;
}

int save_go_through(struct csave *save, struct error *e)
{
	_cleanup_(nursery_fini) struct nursery storing = { 0 };
	int r;

	nursery_init(&storing, save->group->groups->env->loop);
	save_enter(save, SAVE_CAPTURING);
	r = save_publish_begin(save, save_drain_deadline(save), e);
	if (!r)
		r = capture_all(save, &storing, e);
	if (r)
		return r;
	save_remember(save);
	point_reached(POINT_SAVE_CAPTURED);
	r = save_reach(save, SAVE_CAPTURED, e); /* from here on the job may die */
	trace_at(save, STATION_PACKS);
	if (!r)
		r = nursery_wait(&storing, save_drain_deadline(save));
	if (r)
		return r;
	return save_publish_end(save, save_drain_deadline(save), e);
}
