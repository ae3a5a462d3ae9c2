/*
 * group/member.c: the life of a save on one of its nodes, from the first local rank's offer until its blocks are clean cache or gone.
 *
 * The node merges its ranks' offers into one. Then it does as the coordinator calls: reserve, capture, digest, copy, upload; and
 * passes the stages on. Spans of a failed save stay until each rank that could still write to one has said that it does not, or died.
 */
#include "group/member.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMED_MAX 8 /* ranks that an error names */

CLEANUP_OF(struct msave *, msave_put);

void part_put(struct part *part)
{
	if (!part || --part->refs)
		return;
	free(part->blocks);
	free(part->order);
	free(part->receives);
	for (int kind = 0; kind < POOL_KINDS; kind++) {
		free(part->rooms[kind].bytes);
		free(part->rooms[kind].places);
	}
	free(part);
}

static void structure_put(struct structure *structure)
{
	if (!structure || --structure->refs)
		return;
	buf_fini(&structure->items);
	free(structure);
}

void mgroup_put(struct mgroup *group)
{
	if (!group || --group->refs)
		return;
	for (struct map_slot *s = map_first(&group->structures); s; s = map_next(s))
		structure_put(map_value(s));
	for (struct map_slot *s = map_first(&group->parts); s; s = map_next(s))
		part_put(map_value(s));
	for (struct map_slot *s = map_first(&group->lists); s; s = map_next(s))
		kept_lists_put(map_value(s));
	map_fini(&group->lists);
	map_fini(&group->structures);
	map_fini(&group->parts);
	steps_fini(&group->refused);
	map_remove(&group->groups->members, view_buf(&group->key));
	buf_fini(&group->key);
	free(group->tenant);
	free(group->name);
	free(group);
}

uint32_t mgroup_ranks_due(const struct mgroup *group)
{
	return group->n_expected > group->n_gone ? group->n_expected - group->n_gone : group->n_ranks;
}

/* ---- life ----------------------------------------------------------------------------------------------------------- */

static void drop_blocks(struct msave *save)
{
	for (size_t i = 0; save->blocks && i < save->part->n_blocks; i++)
		block_unpin(save->blocks[i].block);
	for (size_t i = 0; save->received && i < save->part->n_receives; i++)
		block_unpin(save->received[i]);
	for (size_t i = 0; i < save->n_extras; i++)
		block_unpin(save->extras[i].copy);
	free(save->extras);
	save->extras = NULL;
	save->n_extras = 0;
	free(save->blocks);
	free(save->received);
	save->blocks = NULL;
	save->received = NULL;
}

void msave_put(struct msave *save)
{
	if (!save || --save->refs)
		return;
	drop_blocks(save);
	part_put(save->part);
	list_each(node, &save->offers) {
		struct moffer *offer = list_entry(node, struct moffer, link);

		structure_put(offer->structure);
		free(offer);
	}
	mgroup_put(save->group);
	kept_lists_put(save->kept_lists);
	buf_fini(&save->kept);
	buf_fini(&save->attributes);
	free(save->bundle);
	free(save);
}

static struct view id_key(const uint64_t *save_id)
{
	return view_of(save_id, sizeof(*save_id));
}

struct msave *msave_by_id(struct groups *groups, uint64_t save_id)
{
	return map_get(&groups->saves, id_key(&save_id));
}

int msave_set_id(struct msave *save, uint64_t save_id)
{
	save->save_id = save_id;
	return map_put(&save->groups->saves, id_key(&save->save_id), save);
}

/* Leaves the lists once it has ended and no rank can touch its spans. */
void msave_settled(struct msave *save)
{
	if (!save_state_is_over(save->state) || list_empty(&save->link))
		return;
	list_each(node, &save->offers) {
		struct moffer *offer = list_entry(node, struct moffer, link);

		if (offer->rank && offer->outstanding && !offer->quiet)
			return;
	}
	list_remove(&save->link);
	list_remove(&save->group_link);
	if (save->save_id && msave_by_id(save->groups, save->save_id) == save)
		map_remove(&save->groups->saves, id_key(&save->save_id));
	msave_put(save);
}

void msave_fail(struct msave *save, int code, const char *words)
{
	struct msg_g_stage end = { .code = (uint32_t)-code, .words = view_str(words) };

	if (save_state_is_over(save->state))
		return;
	save_state_move(&save->state, SAVE_FAILED);
	(void)error_set(&save->error, code, "%s", words);
	if (code != -ERR_ESKIPPED) /* ranks of this node that come later are told at once, as the coordinator would */
		steps_fail(&save->group->refused, view_str(save->bundle), save->step, code, words);
	msave_end_turn(save);
	msave_push_stage(save, &end);
	wake_all(&save->changed);
	msave_settled(save);
}

struct moffer *msave_offer_of(struct msave *save, const struct rank *rank)
{
	list_each(node, &save->offers) {
		struct moffer *offer = list_entry(node, struct moffer, link);

		if (offer->rank == rank)
			return offer;
	}
	return NULL;
}

int msave_wait_while(struct msave *save, bool (*pending)(const struct msave *save), uint64_t timeout_ms)
{
	uint64_t deadline_ns = env_in_ms(save->groups->env, timeout_ms);
	int r = 0;

	while (!r && pending(save))
		r = wait_at(&save->changed, deadline_ns);
	return r;
}

static bool is_gathering_here(const struct msave *save)
{
	return !save->sent && !save_state_is_over(save->state);
}

struct msave *msave_held(struct groups *groups, uint64_t save_id, uint64_t epoch, const char *from, int *ret_code,
			 struct error *e)
{
	struct msave *save = msave_by_id(groups, save_id);

	*ret_code = -ENOENT;
	if (!save || save->state == SAVE_FAILED) {
		(void)error_set(e, -ENOENT, "this node holds nothing of save %016" PRIx64, save_id);
		return NULL;
	}
	if (epoch < save->epoch) {
		*ret_code = error_set(e, -ERR_ESTALEEPOCH, "save %016" PRIx64 " has a newer coordinator, node %s",
				      save_id, save->coordinator);
		return NULL;
	}
	if (epoch > save->epoch)
		msave_adopt(save, from, epoch);
	save->refs++;
	return save;
}

/* Ranks of this node did not come: the coordinator hears from here which, and the other nodes from it. */
static void fail_incomplete(struct msave *save)
{
	_cleanup_(buf_fini) struct buf names = { 0 };
	struct error e = { 0 };
	unsigned missing = 0;

	list_each(node, &save->group->ranks) {
		struct rank *rank = list_entry(node, struct rank, link);

		if (!msave_offer_of(save, rank) && missing++ < NAMED_MAX)
			(void)buf_printf(&names, "%srank %u", missing > 1 ? ", " : "", rank->number);
	}
	(void)error_set(
		&e, -ERR_ERANK, "step %" PRIu64 " of %.128s: %u of %u ranks on node %s did not offer in time: %.*s%s",
		save->step, save->bundle, missing, mgroup_ranks_due(save->group), cluster_node(save->groups->cluster),
		(int)names.len, names.ptr, missing > NAMED_MAX ? ", ..." : "");
	tell_failed(save->group, view_str(save->bundle), save->step, e.code, e.text);
	msave_fail(save, e.code, e.text);
}

/* Ranks that do not come, and a coordinator that nobody hears of again (orphan.c), end a save here, too: its futures and its pins have a limit. */
static int watch_save(void *arg)
{
	_cleanup_(cleanup_msave_put) struct msave *save = arg;
	int r = msave_wait_while(save, is_gathering_here, GATHER_TIMEOUT_MS);

	if (r == -ETIMEDOUT)
		fail_incomplete(save);
	if (r != -ECANCELED)
		(void)orphan_watch(save);
	return 0;
}

struct msave *msave_new(struct mgroup *group, struct view bundle, uint64_t step, const char *coordinator)
{
	struct groups *groups = group->groups;
	struct msave *save = calloc(1, sizeof(*save));

	if (!save)
		return NULL;
	save->refs = 1;
	save->groups = groups;
	save->group = group;
	group->refs++;
	list_init(&save->link);
	list_init(&save->group_link);
	list_init(&save->offers);
	list_init(&save->packings);
	waitplace_init(&save->changed);
	turn_init(&save->turn, 0);
	save->step = step;
	save->epoch = group->epoch;
	save->bundle = view_dup(bundle);
	snprintf(save->coordinator, sizeof(save->coordinator), "%s", coordinator);
	save->refs++;
	if (!save->bundle || fiber_start(&groups->flows, "watch", watch_save, save)) {
		save->refs--;
		msave_put(save);
		return NULL;
	}
	list_append(&groups->msaves, &save->link);
	list_append(&group->saves, &save->group_link);
	return save;
}

struct msave *msave_new_holder(struct groups *groups, struct view tenant, struct view name, uint64_t incarnation,
			       struct view bundle, uint64_t step, const char *coordinator)
{
	struct mgroup *group = mgroup_obtain(groups, tenant, name, incarnation, coordinator);
	struct msave *save = group ? msave_new(group, bundle, step, coordinator) : NULL;

	mgroup_put(group); /* the save holds it */
	if (save)
		save->sent = true;
	return save;
}

int msave_index(struct block **block, const struct digest *digest, uint32_t crc)
{
	int r = pool_block_index(*block, digest, crc);
	struct block *known = r == POOL_KNOWN ? pool_find((*block)->pool, digest) : NULL;

	if (!known)
		return r < 0 ? r : 0;
	block_unpin(*block);
	*block = known;
	return 0;
}

/* ---- offers --------------------------------------------------------------------------------------------------------- */

static int structure_key(struct buf *out, struct view bundle, uint32_t rank)
{
	uint8_t le[4];
	int r = buf_append(out, bundle.ptr, bundle.len);

	store_le32(le, rank);
	if (!r)
		r = buf_append_zero(out, 1);
	return r ? r : buf_append(out, le, sizeof(le));
}

/* The list that came, remembered for the next save; or the remembered one: 1 when the client must send it. */
static int take_structure(struct rank *rank, const struct msg_save *save, struct structure **ret, struct error *e)
{
	struct map *map = &rank->group->structures;
	_cleanup_(buf_fini) struct buf key = { 0 };
	int r = structure_key(&key, save->bundle, rank->number);
	struct structure *known = r ? NULL : map_get(map, view_buf(&key));

	if (r)
		return r;
	if (!save->items.count && save->n_items) {
		if (!known || known->hash != save->structure || known->n_items != save->n_items)
			return 1;
		known->refs++;
		*ret = known;
		return 0;
	}
	if (save->items.count != save->n_items)
		return error_set(e, -EPROTO, "%u items were announced, %u came", save->n_items, save->items.count);

	struct structure *structure = calloc(1, sizeof(*structure));
	if (!structure)
		return -ENOMEM;
	structure->refs = 1;
	structure->n_items = save->n_items;
	structure->hash = hash64(save->items.bytes.ptr, save->items.bytes.len, 0);
	r = put_list(&structure->items, &save->items);
	if (!r && known)
		structure_put(map_remove(map, view_buf(&key)));
	while (!r && map->n >= (size_t)rank->group->n_ranks * REMEMBERED_MAX)
		structure_put(map_remove(map, map_key(map_first(map))));
	if (!r)
		r = map_put(map, view_buf(&key), structure);
	if (r) {
		structure_put(structure);
		return r;
	}
	structure->refs++;
	*ret = structure;
	return 0;
}

static int encode_offer(const struct msave *save, bool with_items, struct buf *out)
{
	const struct mgroup *group = save->group;
	struct list_buf ranks = { 0 };
	struct msg_g_offer offer = {
		.tenant = view_str(group->tenant),
		.group = view_str(group->name),
		.incarnation = group->incarnation,
		.node = view_str(cluster_node(save->groups->cluster)),
		.bundle = view_str(save->bundle),
		.step = save->step,
		.copies = save->copies,
		.policy = save->policy,
		.flags = save->flags,
		.parent = save->parent,
		.arena_bytes = pool_arena(store_pool(save->group->share->store), POOL_CAPTURE)->size,
		.attributes = { .count = save->n_attributes, .bytes = view_buf(&save->attributes) }
	};
	int r = 0;

	list_each(node, &save->offers) {
		const struct structure *structure = list_entry(node, struct moffer, link)->structure;
		struct view bytes = view_buf(&structure->items);
		struct elem_rank_offer rank = { .rank = list_entry(node, struct moffer, link)->number,
						.structure = structure->hash,
						.n_items = structure->n_items };

		if (!r && with_items)
			r = get_list(&bytes, &rank.items);
		if (!r)
			r = elem_rank_offer_append(&ranks, &rank);
	}
	offer.ranks = list_buf_view(&ranks);
	if (!r)
		r = msg_g_offer_encode(&offer, out);
	list_buf_fini(&ranks);
	return r;
}

static int offer_once(struct msave *save, bool with_items, bool *ret_need, struct error *e)
{
	_cleanup_(buf_fini) struct buf body = { 0 }, answer = { 0 };
	struct msg_save_reply reply = { 0 };
	int r = encode_offer(save, with_items, &body);

	if (!r)
		r = cluster_call_take(save->groups->cluster, save->coordinator, MSG_G_OFFER, &body,
				      env_in_ms(save->groups->env, DRAIN_TIMEOUT_MS), &answer, e);
	if (!r)
		r = msg_save_reply_decode(view_buf(&answer), &reply);
	*ret_need = reply.need_items;
	return r;
}

/* Sends the merged offer: by numbers alone when it is hinted and the coordinator remembers, else whole. */
static int send_offer(void *arg)
{
	_cleanup_(cleanup_msave_put) struct msave *save = arg;
	struct error e = { 0 };
	bool need = true;
	int r = 0;

	if (save->flags & SAVE_SAME_STRUCTURE)
		r = offer_once(save, false, &need, &e);
	if (!r && need)
		r = offer_once(save, true, &need, &e);
	if (r) {
		tell_failed(save->group, view_str(save->bundle), save->step, r, e.code ? e.text : error_meaning(r));
		msave_fail(save, r, e.code ? e.text : error_meaning(r));
	}
	return 0;
}

static struct msave *find_gathering(struct mgroup *group, struct view bundle, uint64_t step)
{
	list_each(node, &group->saves) {
		struct msave *save = list_entry(node, struct msave, group_link);

		if (save->step == step && save->state == SAVE_GATHERING && view_equal(view_str(save->bundle), bundle))
			return save;
	}
	return NULL;
}

static int add_offer(struct msave *save, struct rank *rank, uint64_t client_save, struct structure *structure)
{
	struct moffer *offer = calloc(1, sizeof(*offer));
	struct list *at = &save->offers;

	if (!offer)
		return -ENOMEM;
	*offer = (struct moffer){ .rank = rank,
				  .number = rank->number,
				  .client_save = client_save,
				  .structure = structure };
	list_each(node, &save->offers) {
		if (list_entry(node, struct moffer, link)->number > rank->number) {
			at = node;
			break;
		}
	}
	list_insert(at, &offer->link);
	save->n_offers++;
	return 0;
}

void tell_failed(const struct mgroup *group, struct view bundle, uint64_t step, int code, const char *words)
{
	struct buf body = { 0 };
	struct msg_g_stage fail = { .tenant = view_str(group->tenant),
				    .group = view_str(group->name),
				    .incarnation = group->incarnation,
				    .bundle = bundle,
				    .step = step,
				    .code = (uint32_t)-code,
				    .words = view_str(words) };

	if (msg_g_stage_encode(&fail, &body))
		buf_fini(&body); /* the save then ends at its deadline */
	else
		(void)tell_coordinator(group->groups, group->coordinator, MSG_G_FAIL, &body);
}

/* A rank that wants it otherwise than the others of its node: nobody's save goes on, or all would wait for it in vain. */
static int fail_differing(struct msave *save, const struct rank *rank, struct error *e)
{
	struct error words = { 0 };
	int r = error_set(&words, -ERR_EMISMATCH, "rank %u: copies, policy, hint or parent differ from another rank's",
			  rank->number);

	tell_failed(save->group, view_str(save->bundle), save->step, r, words.text);
	msave_fail(save, r, words.text);
	return error_set(e, r, "%s", words.text);
}

/* A rank of which there is no offer: no stage could tell it, and the others, here and elsewhere, would wait for it. */
static int fail_unoffered(struct msave *save, const struct rank *rank, int r, struct error *e)
{
	struct error words = { 0 };

	(void)error_set(&words, r, "the offer of rank %u: %s", rank->number, error_meaning(r));
	tell_failed(save->group, view_str(save->bundle), save->step, r, words.text);
	msave_fail(save, r, words.text);
	return error_set(e, r, "%s", words.text);
}

/* All ranks of this node have offered. */
static void begin_offer(struct msave *save)
{
	save->sent = true;
	wake_all(&save->changed);
	save->refs++;
	int r = fiber_start(&save->groups->flows, "offer", send_offer, save);
	if (!r)
		return;
	tell_failed(save->group, view_str(save->bundle), save->step, r, error_meaning(r));
	msave_fail(save, r, error_meaning(r));
	msave_put(save);
}

static int join_save(struct rank *rank, const struct msg_save *from, struct structure *structure, struct error *e)
{
	struct mgroup *group = rank->group;
	struct msave *save = find_gathering(group, from->bundle, from->step);
	bool is_new = !save;
	int r = steps_check(&group->refused, from->bundle, from->step, e);

	if (r) {
		error_prefix(e, "step %" PRIu64 " of %.*s", from->step, (int)from->bundle.len, from->bundle.ptr);
		return r;
	}

	if (is_new)
		save = msave_new(group, from->bundle, from->step, group->coordinator);
	if (!save)
		return -ENOMEM;
	if (is_new) {
		save->copies = from->copies ? from->copies : 1;
		save->policy = from->policy;
		save->flags = from->flags;
		save->parent = from->parent;
		save->n_attributes = from->attributes.count;
		r = buf_append(&save->attributes, from->attributes.bytes.ptr, from->attributes.bytes.len);
	} else if (save->copies != (from->copies ? from->copies : 1) || save->policy != from->policy ||
		   save->flags != from->flags || save->parent != from->parent) {
		return fail_differing(save, rank, e);
	} else if (msave_offer_of(save, rank)) {
		return error_set(e, -ERR_ESTEP, "rank %u has already offered step %" PRIu64 " of %s", rank->number,
				 from->step, save->bundle);
	}
	if (!r)
		r = add_offer(save, rank, from->save, structure);
	if (r)
		return fail_unoffered(save, rank, r, e);
	if (save->n_offers >= mgroup_ranks_due(group))
		begin_offer(save);
	return 0; /* a failure comes as a stage, to every rank alike */
}

int group_save(struct rank *rank, const struct msg_save *save, uint64_t deadline_ns, struct msg_save_reply *ret_reply,
	       struct error *e)
{
	struct structure *structure = NULL;
	int r = bundle_name_check(save->bundle, e);

	if (!r)
		r = groups_open(rank->group->groups, e);
	if (!r)
		r = take_structure(rank, save, &structure, e);
	if (r < 0)
		return r;
	*ret_reply = (struct msg_save_reply){ .need_items = r == 1 };
	if (r == 1)
		return 0;
	r = join_save(rank, save, structure, e);
	if (r)
		structure_put(structure);
	return r;
}

/* ---- stages and ends -------------------------------------------------------------------------------------------------- */

void group_abandon(struct rank *rank, struct view bundle, uint64_t step, struct view why)
{
	struct msave *save = find_gathering(rank->group, bundle, step);
	int code = why.len ? -ERR_ERANK : -ECANCELED;
	char words[256];

	if (why.len)
		snprintf(words, sizeof(words), "rank %u on node %s cannot take part: %.*s", rank->number,
			 cluster_node(rank->group->groups->cluster), (int)(why.len < 160 ? why.len : 160),
			 (const char *)why.ptr);
	else
		snprintf(words, sizeof(words), "rank %u cancelled the save", rank->number);
	steps_fail(&rank->group->refused, bundle, step, code, words);
	tell_failed(rank->group, bundle, step, code, words);
	if (save)
		msave_fail(save, code, words);
}

/* Also how a client says, after a failure, that it touches no span any more. */
void group_cancel(struct rank *rank, uint64_t number)
{
	char words[64];

	snprintf(words, sizeof(words), "rank %u cancelled the save", rank->number);
	list_each(node, &rank->group->saves) {
		struct msave *save = list_entry(node, struct msave, group_link);
		struct moffer *offer = msave_offer_of(save, rank);

		if (!offer || offer->client_save != number)
			continue;
		offer->quiet = true;
		if (save_state_is_over(save->state))
			msave_settled(save);
		else if (!save->sent)
			group_abandon(rank, view_str(save->bundle), save->step, (struct view){ 0 });
		else if (save->state < SAVE_CAPTURED)
			tell_failed(save->group, view_str(save->bundle), save->step, -ECANCELED, words);
		return;
	}
}

void member_rank_left(struct rank *rank, const char *words)
{
	list_each(node, &rank->group->saves) {
		struct msave *save = list_entry(node, struct msave, group_link);
		struct moffer *offer = msave_offer_of(save, rank);

		if (offer)
			offer->rank = NULL; /* dead or done: it cannot write any more */
		if (!save_state_is_over(save->state) && !save->sent)
			msave_fail(save, -ERR_ERANK, words);
		else
			msave_settled(save);
	}
}

void member_stop(struct groups *groups)
{
	list_each(node, &groups->msaves)
		msave_fail(list_entry(node, struct msave, link), -ESHUTDOWN, "the daemon of this node shuts down");
}

int groups_status(struct groups *groups, struct view tenant, struct list_buf *saves)
{
	int r = 0;

	list_each(node, &groups->msaves) {
		const struct msave *save = list_entry(node, struct msave, link);
		struct elem_save_status status = { .save_id = save->save_id,
						   .group = view_str(save->group->name),
						   .bundle = view_str(save->bundle),
						   .step = save->step,
						   .state = view_str(save_state_name(save->state)) };

		if (!view_equal(view_str(store_tenant(save->group->share->store)), tenant))
			continue;
		for (size_t i = 0; save->part && i < save->part->n_blocks; i++)
			if (save->part->blocks[i].mode == CAPTURE_COPY)
				status.bytes += save->part->blocks[i].bytes;
		if (!r)
			r = elem_save_status_append(saves, &status);
	}
	return r;
}

void member_serve(struct groups *groups)
{
	stage_serve(groups);
	capture_serve(groups);
	holder_serve(groups);
	keep_serve(groups);
}
