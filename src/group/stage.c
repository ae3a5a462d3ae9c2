/*
 * group/stage.c: what a node is told of a save (G_STAGE, from tell.c at its coordinator's), and what its ranks hear of it: the stages in their
 * order, each once, and how it ended.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "group/member.h"

static int encode_stage(const struct msave *save, const struct msg_g_stage *from, struct buf *out)
{
	struct msg_stage stage = { .code = from->code,
				   .words = from->words,
				   .version = from->version,
				   .save_id = save->save_id,
				   .stats = from->stats };

	stage.stage = save->state == SAVE_CAPTURED ? 0 : save->state == SAVE_STAGED ? 1 : 2;
	return msg_stage_encode(&stage, out);
}

void msave_push_stage(struct msave *save, const struct msg_g_stage *from)
{
	_cleanup_(buf_fini) struct buf body = { 0 };

	bool told = !encode_stage(save, from, &body);
	list_each(node, &save->offers) {
		struct moffer *offer = list_entry(node, struct moffer, link);

		if (offer->rank)
			offer->rank->events.push(offer->rank->events.arg, MSG_STAGE, offer->client_save,
						 told ? view_buf(&body) : (struct view){ 0 });
	}
}

static struct msave *find_for_stage(struct groups *groups, const struct msg_g_stage *stage)
{
	struct msave *save = msave_by_id(groups, stage->save_id);

	if (save)
		return save;
	list_each(node, &groups->msaves) { /* it failed before a span was reserved: only its names are known here */
		save = list_entry(node, struct msave, link);
		if (!save->save_id && save->step == stage->step && save->sent && !save_state_is_over(save->state) &&
		    save->group->incarnation == stage->incarnation &&
		    view_equal(view_str(save->bundle), stage->bundle) &&
		    view_equal(view_str(save->group->name), stage->group) &&
		    view_equal(view_str(save->group->tenant), stage->tenant))
			return save;
	}
	return NULL;
}

static void remember_part(struct msave *save)
{
	struct map *parts;

	if (!save->part)
		return;
	parts = &save->group->parts;
	if (map_get(parts, view_str(save->bundle)) == save->part)
		return;
	part_put(map_remove(parts, view_str(save->bundle)));
	while (parts->n >= REMEMBERED_MAX)
		part_put(map_remove(parts, map_key(map_first(parts))));
	if (!map_put(parts, view_str(save->bundle), save->part))
		save->part->refs++;
}

void msave_reach(struct msave *save, enum save_state state, const struct msg_g_stage *from)
{
	save_state_move(&save->state, state);
	if (state == SAVE_CAPTURED)
		remember_part(save);
	wake_all(&save->changed);
	msave_push_stage(save, from);
}

static void become_clean(struct msave *save)
{
	for (size_t i = 0; save->blocks && i < save->part->n_blocks; i++)
		if (save->blocks[i].block && save->blocks[i].block->indexed)
			pool_block_set_clean(save->blocks[i].block);
	for (size_t i = 0; save->received && i < save->part->n_receives; i++)
		if (save->received[i] && save->received[i]->indexed)
			pool_block_set_clean(save->received[i]);
	for (size_t i = 0; i < save->n_extras; i++)
		pool_block_set_clean(save->extras[i].copy);
}

/* Captured or staged. Ranks hear each stage, in order. */
void msave_end_durable(struct msave *save, const struct msg_g_stage *stage)
{
	if (save->state == SAVE_CAPTURED)
		msave_reach(save, SAVE_STAGED, &(struct msg_g_stage){ 0 });
	save_state_move(&save->state, SAVE_DURABLE);
	become_clean(save);
	wake_all(&save->changed);
	msave_push_stage(save, stage);
	msave_settled(save);
}

/* A failure that is told twice must not hit the next save of its step. */
static bool is_told(struct groups *groups, uint64_t save_id, uint32_t code)
{
	for (unsigned i = 0; i < FAILED_MAX; i++)
		if (groups->failed[i].save_id == save_id)
			return true;
	unsigned at = groups->n_failed++ % FAILED_MAX;
	groups->failed[at].save_id = save_id;
	groups->failed[at].code = code;
	return false;
}

static int serve_stage(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
		       struct error *e)
{
	struct groups *groups = arg;
	struct msg_g_stage stage;
	int r = msg_g_stage_decode(body, &stage);

	if (r || stage.stage >= SAVE_STATES || stage.code > INT32_MAX)
		return error_set(e, -EPROTO, "malformed G_STAGE from %s", from);
	struct msave *save = msave_by_id(groups, stage.save_id);
	if (save && stage.epoch < save->epoch)
		return error_set(e, -ERR_ESTALEEPOCH, "save %016" PRIx64 " has a newer coordinator, node %s",
				 stage.save_id, save->coordinator);
	if (stage.stage == SAVE_FAILED && is_told(groups, stage.save_id, stage.code))
		return 0;
	save = find_for_stage(groups, &stage);
	if (!save)
		return stage.stage == SAVE_FAILED || stage.stage == SAVE_DURABLE ? 0 : /* told before */
			       error_set(e, -ENOENT, "no save %016" PRIx64 " here", stage.save_id);
	if (stage.epoch > save->epoch)
		msave_adopt(save, from, stage.epoch);
	if (stage.stage == SAVE_FAILED) {
		_cleanup_(cleanup_mem) char *words = view_dup(stage.words);

		msave_fail(save, stage.code ? -(int)stage.code : -EIO, words ? words : "the save failed");
		return 0;
	}
	if (save->state == (enum save_state)stage.stage)
		return 0; /* told twice */
	if (stage.stage == SAVE_DURABLE && save_state_is_captured(save->state)) {
		msave_end_durable(save, &stage);
		return 0;
	}
	if (!save_state_may_move(save->state, stage.stage))
		return error_set(e, -EPROTO, "save %016" PRIx64 ": from %s to %s", stage.save_id,
				 save_state_name(save->state), save_state_name(stage.stage));
	msave_reach(save, stage.stage, &stage);
	return 0;
}

void stage_serve(struct groups *groups)
{
	cluster_serve(groups->cluster, MSG_G_STAGE, serve_stage, groups);
}
