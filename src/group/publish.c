/*
 * group/publish.c: from staged to durable: the slot, the packs (packs.c), and the version that names them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "group/inside.h"

#define NUMBER_WAIT_MS 10000 /* for the versions of earlier saves to have their numbers */

/* A version in the making. */
struct publishing {
	struct version *version;
	struct packs *packs;
	struct fence fence;
};

/* Items and pieces come straight from the catalog: it is sorted by name, the plan's blocks by unique. */
int publish_fill_items(const struct recipe *recipe, struct version *version)
{
	const struct catalog *catalog = &recipe->catalog;
	size_t names = 0, piece = 0, block = 0;
	int r;

	version->items = calloc(catalog->n_items + 1, sizeof(*version->items));
	version->pieces = calloc(catalog->n_uniques + 1, sizeof(*version->pieces));
	if (!version->items || !version->pieces)
		return -ENOMEM;
	for (size_t i = 0; i < catalog->n_items; i++)
		names += catalog->items[i].name.len + catalog->items[i].dtype.len;
	r = buf_reserve(&version->names, names); /* the views below must not move */
	for (size_t i = 0; !r && i < catalog->n_items; i++) {
		const struct catalog_item *from = &catalog->items[i];
		struct version_item *item = &version->items[i];

		item->name = view_of(version->names.ptr + version->names.len, from->name.len);
		item->dtype = view_of(version->names.ptr + version->names.len + from->name.len, from->dtype.len);
		r = buf_append(&version->names, from->name.ptr, from->name.len);
		if (!r)
			r = buf_append(&version->names, from->dtype.ptr, from->dtype.len);
		item->element_bits = from->element_bits;
		item->whole = from->whole;
		item->first_piece = (uint32_t)piece;
		if (!r)
			r = box_bytes(&item->whole, item->element_bits, &item->bytes);
		version->bytes += item->bytes;
		for (uint32_t u = from->first_unique; !r && u < from->first_unique + from->n_uniques; u++) {
			size_t begin = block;

			while (block < recipe->plan.n_blocks && recipe->plan.blocks[block].unique == u)
				block++;
			if (!catalog->uniques[u].bytes)
				continue; /* a box without elements: nothing to find there */
			version->pieces[piece++] = (struct version_piece){ .box = catalog->uniques[u].box,
									   .first_block = begin,
									   .n_blocks = (uint32_t)(block - begin) };
			item->n_pieces++;
			item->saved_bytes += catalog->uniques[u].bytes;
		}
	}
	version->n_items = catalog->n_items;
	version->n_pieces = piece;
	version->n_blocks = recipe->plan.n_blocks;
	return r;
}

static int describe(struct csave *save, struct version *version)
{
	version->tenant = strdup(save->group->tenant);
	version->bundle = strdup(save->bundle);
	version->number = save->slot.number;
	version->step = save->step;
	version->save_id = save->save_id;
	version->epoch = save->group->epoch;
	version->incarnation = save->incarnation;
	version->parent = save->parent;
	version->generation = cluster_generation(save->group->groups->cluster);
	version->n_attributes = save->n_attributes;
	if (!version->tenant || !version->bundle)
		return -ENOMEM;
	return buf_append(&version->attributes, save->attributes.ptr, save->attributes.len);
}

static int draft_version(struct csave *save, struct version *version)
{
	int r = describe(save, version);

	version->blocks = calloc(save->recipe->plan.n_blocks + 1, sizeof(*version->blocks));
	if (!version->blocks)
		return -ENOMEM;
	return r ? r : publish_fill_items(save->recipe, version);
}

/* What the coordinator itself writes fails on the coordinator's node: ranks elsewhere must be told which. */
static int fail_here(const struct csave *save, int r, struct error *e)
{
	if (e && e->code)
		(void)error_prefix(e, "node %s", cluster_node(save->group->groups->cluster));
	return r;
}

static int pause_for_engine(struct csave *save, uint64_t deadline_ns)
{
	struct env *env = save->group->groups->env;

	if (env_now(env) >= deadline_ns)
		return -ETIMEDOUT;
	return fiber_sleep_until(env_in_ms(env, ENGINE_AWAY_MS));
}

static bool is_number_due(const struct csave *other, const struct csave *save)
{
	bool before = other->incarnation != save->incarnation ? other->incarnation < save->incarnation :
								other->step < save->step;
	bool waits = other->state == SAVE_CAPTURED || other->state == SAVE_STAGED;

	return before && waits && !other->slot_open && !other->ending && !strcmp(other->bundle, save->bundle);
}

/*
 * Versions are numbered in the order of runs and steps: else `latest` could go back, and a rule keep the older one. So a save waits for the
 * numbers of those before it that are captured, and a successor's until it knows all that there are. Not for ever: one that
 * cannot go on (it may wait for the room that this one has) must not hold this one up.
 */
static int wait_for_number(struct csave *save)
{
	struct cgroup *group = save->group;
	uint64_t deadline_ns = env_in_ms(group->groups->env, NUMBER_WAIT_MS);
	bool due = true;
	int r = 0;

	while (due && !r) {
		due = group->recovering;
		list_each(node, &group->saves)
			due |= is_number_due(list_entry(node, struct csave, link), save);
		r = due ? wait_at(&group->changed, deadline_ns) : 0;
	}
	return r == -ETIMEDOUT ? 0 : r;
}

static int open_slot(struct csave *save, const struct fence *fence, uint64_t deadline_ns, struct error *e)
{
	struct cgroup *group = save->group;

	trace_at(save, STATION_SLOT);
	int r = wait_for_number(save);
	if (r)
		return r;
	for (;;) {
		r = slot_open(group->groups->bundles, view_str(group->tenant), view_str(save->bundle), save->save_id,
			      save->parent, fence, deadline_ns, &save->slot, e);
		if (!cluster_is_away(r))
			break;
		int paused = pause_for_engine(save, deadline_ns);
		if (paused)
			return paused == -ETIMEDOUT ? r : paused;
	}
	save->slot_open = !r;
	wake_all(&group->changed);
	return r ? fail_here(save, r, e) : save_keep_slot(save, e);
}

/* It was stopped while it opened one. What is left of a coordinator whose lease is over is found by others. */
void save_give_up_slot(const struct csave *save)
{
	struct groups *groups = save->group->groups;

	if (save->slot.number && !save->slot_open && !save->group->lost)
		(void)slot_give_up(groups->bundles, &save->slot, &save->publishing->fence,
				   env_in_ms(groups->env, SETTLE_MS), NULL);
}

static int publish(struct csave *save, struct version *version, const struct fence *fence, uint64_t deadline_ns,
		   struct error *e)
{
	int r;

	save->root_due = true;
	trace_at(save, STATION_SEGMENTS);
	for (;;) {
		r = slot_publish(save->group->groups->bundles, &save->slot, version, fence, deadline_ns, e);
		if (!cluster_is_away(r))
			return r ? fail_here(save, r, e) : 0;
		int paused = pause_for_engine(save, deadline_ns);
		if (paused)
			return paused == -ETIMEDOUT ? r : paused;
	}
}

void publishing_free(struct publishing *publishing)
{
	if (!publishing)
		return;
	packs_free(publishing->packs);
	version_put(publishing->version);
	free(publishing);
}

/*
 * Without this they stay until the next collection, and a store that is full stays full. Safe, since names are of this save, generation
 * and epoch: a successor never publishes, or writes, under them. And no root of this coordinator can come: its slot is burned, or it had not
 * begun to put one. What a node still writes, in spite of being told, is collection's; so is all when another one coordinates by now.
 */
void save_forget_packs(const struct csave *save)
{
	struct groups *groups = save->group->groups;
	uint64_t deadline_ns = env_in_ms(groups->env, SETTLE_MS);
	struct packs *packs = save->publishing ? save->publishing->packs : NULL;

	if (save->state != SAVE_FAILED || save->group->lost || !save->slot_open ||
	    (save->root_due && !save->slot_burned))
		return;
	int r = packs ? packs_forget(packs, deadline_ns) : 0;
	if (!r && !save->slot_burned) /* there may be room for the tombstone now */
		(void)slot_burn(groups->bundles, &save->slot, deadline_ns, NULL);
}

int save_publish_begin(struct csave *save, uint64_t deadline_ns, struct error *e)
{
	struct cgroup *group = save->group;
	struct publishing *publishing = calloc(1, sizeof(*publishing));

	save->publishing = publishing;
	if (publishing)
		publishing->version = version_new();
	if (!publishing || !publishing->version)
		return -ENOMEM;
	publishing->fence = (struct fence){ .key = view_buf(&group->lease_key),
					    .record = view_buf(&group->lease_record),
					    .epoch = group->epoch };
	int r = open_slot(save, &publishing->fence, deadline_ns, e);

	if (!r)
		r = draft_version(save, publishing->version);
	if (r)
		return r;
	publishing->packs = packs_new(save, publishing->version);
	return publishing->packs ? 0 : -ENOMEM;
}

int save_publish_blocks(struct csave *save, size_t first, size_t last, uint64_t deadline_ns, struct error *e)
{
	return packs_write(save->publishing->packs, first, last, deadline_ns, e);
}

int save_publish_end(struct csave *save, uint64_t deadline_ns, struct error *e)
{
	struct publishing *publishing = save->publishing;
	struct version *version = publishing->version;
	int r = packs_list(publishing->packs);

	if (!r)
		r = publish(save, version, &publishing->fence, deadline_ns, e);
	trace_published(save, version); /* if it came so far */
	if (!r || r == -ERR_EUNINDEXED) {
		save->version = version->number;
		save->stored_bytes = version->stored_bytes;
	}
	return r;
}

int save_publish(struct csave *save, uint64_t deadline_ns, struct error *e)
{
	int r = save_publish_begin(save, deadline_ns, e);

	if (r)
		return r;
	trace_at(save, STATION_PACKS);
	r = save_publish_blocks(save, 0, save->recipe->plan.n_blocks, deadline_ns, e);
	return r ? r : save_publish_end(save, deadline_ns, e);
}
