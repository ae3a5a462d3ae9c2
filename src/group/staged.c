/*
 * group/staged.c: a version that is staged and not yet durable, opened by a rank of the group that saves it: a job that was restarted loads
 * from the nodes' memory at once, while the save of the run before still drains.
 *
 * Such a version has no number. In the place of its packs stand the nodes that hold the blocks, without a key: there is nothing of it in
 * the store that anybody could name.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "group/member.h"

CLEANUP_OF(struct version *, version_put);
CLEANUP_OF(struct recipe *, recipe_put);

/* ---- the coordinator's side ------------------------------------------------------------------------------------------- */

static const struct csave *newest_staged(const struct cgroup *group, struct view bundle)
{
	const struct csave *found = NULL;

	list_each(node, &group->saves) {
		const struct csave *save = list_entry(node, struct csave, link);

		if (save->state == SAVE_STAGED && !save->failed && view_equal(view_str(save->bundle), bundle))
			found = save;
	}
	return found;
}

static int list_holders(const struct csave *save, struct list_buf *list)
{
	int r = 0;

	for (size_t b = 0; !r && b < save->recipe->plan.n_blocks; b++) {
		const struct block_report *report = &save->reports[b];
		struct elem_u32 holder = { .v = report->n_holders ? report->holders[0] : UINT32_MAX };

		r = elem_u32_append(list, &holder);
	}
	return r;
}

static int serve_staged(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
			struct error *e)
{
	_cleanup_(buf_fini) struct buf keep = { 0 };
	_cleanup_(list_buf_fini) struct list_buf holders = { 0 };
	struct msg_g_staged staged;
	int r = msg_g_staged_decode(body, &staged);

	if (r)
		return error_set(e, r, "malformed G_STAGED from %s", from);
	const struct cgroup *group = coordinator_of(arg, staged.tenant, staged.group);
	const struct csave *save = group ? newest_staged(group, staged.bundle) : NULL;
	if (!save)
		return error_set(e, -ENOENT, "group %.*s has nothing of %.*s that is staged and not durable",
				 (int)staged.group.len, staged.group.ptr, (int)staged.bundle.len, staged.bundle.ptr);
	r = save_encode_keep(save, &keep);
	if (!r)
		r = list_holders(save, &holders);
	struct msg_g_staged_reply reply = { .keep = view_buf(&keep), .holders = list_buf_view(&holders) };
	return r ? r : msg_g_staged_reply_encode(&reply, answer);
}

int staged_find(struct cgroup *group, uint64_t save_id, struct version **ret, uint64_t *ret_number)
{
	_cleanup_(cleanup_version_put) struct version *version = version_new();
	const struct csave *save = coordinator_save(group, save_id);
	const struct ended_save *ended = save ? NULL : coordinator_ended(group->groups, save_id);

	if (!save) {
		*ret_number = ended && ended->state == SAVE_DURABLE ? ended->version : 0;
		return *ret_number ? 0 : -ENOENT;
	}
	if (!version || !save->reports)
		return version ? -ENOENT : -ENOMEM;
	version->n_blocks = save->recipe->plan.n_blocks;
	version->blocks = calloc(version->n_blocks + 1, sizeof(*version->blocks));
	if (!version->blocks)
		return -ENOMEM;
	for (size_t b = 0; b < version->n_blocks; b++)
		version->blocks[b].bytes = save->recipe->plan.blocks[b].bytes;
	*ret = TAKE(version);
	return 0;
}

void staged_serve(struct groups *groups)
{
	cluster_serve(groups->cluster, MSG_G_STAGED, serve_staged, groups);
}

/* ---- the rank's side -------------------------------------------------------------------------------------------------- */

static int describe(const struct rank *rank, const struct msg_g_keep *keep, struct version *version)
{
	version->tenant = strdup(rank->group->tenant);
	version->bundle = view_dup(keep->bundle);
	version->step = keep->step;
	version->save_id = keep->save_id;
	version->epoch = keep->epoch;
	version->incarnation = keep->incarnation;
	version->parent = keep->parent;
	version->generation = cluster_generation(rank->group->groups->cluster);
	version->n_attributes = keep->attributes.count;
	if (!version->tenant || !version->bundle)
		return -ENOMEM;
	return buf_append(&version->attributes, keep->attributes.bytes.ptr, keep->attributes.bytes.len);
}

/* Each node in the place of a pack. */
static int name_holders(const struct recipe *recipe, struct version *version)
{
	version->packs = calloc(recipe->n_nodes + 1, sizeof(*version->packs));
	if (!version->packs)
		return -ENOMEM;
	for (; version->n_packs < recipe->n_nodes; version->n_packs++) {
		version->packs[version->n_packs].node = strdup(recipe->nodes[version->n_packs]);
		if (!version->packs[version->n_packs].node)
			return -ENOMEM;
	}
	return 0;
}

static int place_blocks(const struct recipe *recipe, const struct block_report *reports, struct list_view holders,
			struct version *version)
{
	struct elem_u32 holder;
	size_t b = 0;
	int r;

	version->blocks = calloc(recipe->plan.n_blocks + 1, sizeof(*version->blocks));
	if (!version->blocks)
		return -ENOMEM;
	while ((r = elem_u32_next(&holders, &holder)) == 0) {
		bool hole = b < recipe->plan.n_blocks && (reports[b].flags & FILLED_ZERO);

		if (b >= recipe->plan.n_blocks || (!hole && holder.v >= recipe->n_nodes))
			return -EPROTO;
		version->blocks[b] = (struct version_block){ .digest = reports[b].digest,
							     .bytes = recipe->plan.blocks[b].bytes,
							     .crc = reports[b].crc,
							     .flags = hole ? BLOCK_HOLE : 0,
							     .pack = hole ? UINT32_MAX : holder.v };
		b++;
	}
	return r != 1 ? r : b == recipe->plan.n_blocks ? 0 : -EPROTO;
}

static int make_version(struct rank *rank, const struct msg_g_staged_reply *reply, struct version **ret,
			struct error *e)
{
	_cleanup_(cleanup_version_put) struct version *version = version_new();
	_cleanup_(cleanup_recipe_put) struct recipe *recipe = NULL;
	_cleanup_(cleanup_mem) struct block_report *reports = NULL;
	struct msg_g_keep keep;
	int r = version ? msg_g_keep_decode(reply->keep, &keep) : -ENOMEM;

	if (!r)
		r = keep.ranks.count && keep.ranks.count <= GROUP_RANKS_MAX ? 0 : -EPROTO;
	if (!r)
		recipe = recipe_new(keep.ranks.count);
	if (!r)
		r = recipe ? keep_take_recipe(rank->group->groups->env, &keep, recipe, e) : -ENOMEM;
	if (!r)
		reports = calloc(recipe->plan.n_blocks + 1, sizeof(*reports));
	if (!r)
		r = reports ? keep_take_reports(&keep, recipe, reports) : -ENOMEM;
	if (!r)
		r = describe(rank, &keep, version);
	if (!r)
		r = name_holders(recipe, version);
	if (!r)
		r = publish_fill_items(recipe, version);
	if (!r)
		r = place_blocks(recipe, reports, reply->holders, version);
	if (!r)
		*ret = TAKE(version);
	return r;
}

int group_open_staged(struct rank *rank, struct view bundle, uint64_t deadline_ns, struct version **ret,
		      struct error *e)
{
	struct groups *groups = rank->group->groups;
	_cleanup_(buf_fini) struct buf body = { 0 }, answer = { 0 };
	struct msg_g_staged ask = { .tenant = view_str(rank->group->tenant),
				    .group = view_str(rank->group->name),
				    .bundle = bundle };
	struct msg_g_staged_reply reply;
	int r = bundle_name_check(bundle, e);

	if (!r)
		r = msg_g_staged_encode(&ask, &body);
	if (!r)
		r = cluster_call(groups->cluster, rank->group->coordinator, MSG_G_STAGED, view_buf(&body), deadline_ns,
				 &answer, e);
	if (!r)
		r = msg_g_staged_reply_decode(view_buf(&answer), &reply);
	return r ? r : make_version(rank, &reply, ret, e);
}
