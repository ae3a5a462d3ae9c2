/*
 * group/holder.c: what a node does with blocks that it holds: hashes them after a hinted capture, receives copies, writes packs.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/counter.h"
#include "base/log.h"
#include "group/member.h"

#define HASH_FIBERS   2	   /* at once on the workers, for one save */
#define COPY_FIBERS   8	   /* blocks under way from peers, for one save */
#define EXTRA_ROOM_MS 2000 /* that a copy which the plan did not name waits for room */

CLEANUP_OF(struct msave *, msave_put);

/* Several fibers take work by number until it is used up or one fails. */
struct crew {
	struct msave *save;
	int (*one)(struct crew *crew, size_t i);
	size_t next, n;
	uint64_t deadline_ns;
	struct nursery nursery;
	int result; /* of the first that failed: a nursery takes -ECANCELED for no failure */
	struct error error;
	void *work;		      /* struct copy, for copies */
	struct source *sources;	      /* of these, by the order's nodes; NULL: there was no memory to look at them */
	char slow[NODE_NAME_MAX + 1]; /* of which a block did not come as soon as blocks do */
};

static int crew_member(void *arg)
{
	struct crew *crew = arg;
	int r = 0;

	while (!r && crew->next < crew->n && crew->save->state != SAVE_FAILED)
		r = crew->one(crew, crew->next++);
	if (!r)
		return 0;
	if (!crew->result)
		crew->result = r;
	nursery_cancel(&crew->nursery);
	return r;
}

static int crew_run(struct crew *crew, const char *name, unsigned fibers, struct error *e)
{
	int r = 0;

	nursery_init(&crew->nursery, crew->save->groups->env->loop);
	for (unsigned i = 0; !r && i < fibers && i < crew->n; i++)
		r = fiber_start(&crew->nursery, name, crew_member, crew);
	if (!r)
		r = nursery_wait(&crew->nursery, crew->deadline_ns);
	nursery_fini(&crew->nursery);
	if (!r)
		r = crew->result;
	if (!r && crew->save->state == SAVE_FAILED)
		return error_set(e, crew->save->error.code, "%s", crew->save->error.text);
	if (r && crew->error.code)
		return error_set(e, r, "%s", crew->error.text);
	return r;
}

/* ---- digests after a hinted capture ----------------------------------------------------------------------------------- */

static int hash_on_worker(void *arg)
{
	struct mblock *block = arg;
	struct hasher hasher;

	hasher_init(&hasher);
	hasher_update(&hasher, block->block->ptr, block->block->bytes);
	block->digest = hasher_digest(&hasher);
	block->crc = hasher.crc;
	block->flags = hasher.zero ? FILLED_ZERO : 0;
	return 0;
}

static int hash_one(struct crew *crew, size_t i)
{
	struct mblock *block = &crew->save->blocks[i];

	block->filled = block->block != NULL; /* the answer lists what this node captured, not what its ranks sampled */
	if (!block->block)
		return 0;
	int r = env_call(crew->save->groups->env, hash_on_worker, block);
	if (r || crew->save->state == SAVE_FAILED)
		return r;
	if (block->flags & FILLED_ZERO) {
		block_unpin(block->block);
		block->block = NULL;
		return 0;
	}
	return msave_index(&block->block, &block->digest, block->crc);
}

static int serve_digest(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
			struct error *e)
{
	struct msg_save_id id = { 0 };
	int r = msg_save_id_decode(body, &id);
	int code = r;
	_cleanup_(cleanup_msave_put) struct msave *save = r ? NULL :
							      msave_held(arg, id.save_id, id.epoch, from, &code, e);

	if (!save)
		return code;
	if (save->state != SAVE_CAPTURED || !save->hinted)
		return error_set(e, -ENOENT, "no hinted save %016" PRIx64 " to hash here", id.save_id);
	struct crew crew = { .save = save, .one = hash_one, .n = save->part->n_blocks, .deadline_ns = deadline_ns };
	r = crew_run(&crew, "hash", HASH_FIBERS, e);
	return r ? r : report_answer(save, 0, UINT32_MAX, answer);
}

/* ---- copies ----------------------------------------------------------------------------------------------------------- */

struct copy {
	struct elem_g_copy block;
	char from[NODE_NAME_MAX + 1], other[NODE_NAME_MAX + 1]; /* other: "" or who has it, too */
	bool made;
};

/* What came from a node, and how long something was on its way. */
struct source {
	uint64_t bytes, busy_ns, since_ns;
	unsigned asked; /* blocks that are on their way */
};

struct digesting {
	const struct block *block;
	struct digest digest;
};

static int digest_on_worker(void *arg)
{
	struct digesting *digesting = arg;

	digesting->digest = digest_of(digesting->block->ptr, digesting->block->bytes);
	return 0;
}

static int by_block(const void *a, const void *b)
{
	const struct part_receive *x = a, *y = b;

	return (x->block > y->block) - (x->block < y->block);
}

static struct extra *find_extra(const struct msave *save, uint32_t block)
{
	for (size_t i = 0; i < save->n_extras; i++)
		if (save->extras[i].block == block)
			return &save->extras[i];
	return NULL;
}

/* The span that was reserved for it, or the block that this node captured of a replica that diverged. NULL: neither. */
static struct block **planned_place(struct msave *save, const struct elem_g_copy *copy)
{
	const struct part *part = save->part;
	struct part_receive key = { .block = copy->block };
	const struct part_receive *at = part ? bsearch(&key, part->receives, part->n_receives, sizeof(key), by_block) :
					       NULL;

	if (at)
		return at->bytes == copy->bytes && save->received ? &save->received[at - part->receives] : NULL;
	for (size_t i = 0; part && save->blocks && i < part->n_blocks; i++)
		if (part->blocks[i].block == copy->block && part->blocks[i].bytes == copy->bytes &&
		    part->blocks[i].mode == CAPTURE_COPY)
			return &save->blocks[i].block;
	return NULL;
}

/* A copy that the plan did not name: for another node that is lost. */
static int add_extra(struct msave *save, uint32_t number, struct block **copy)
{
	bool grow = !(save->n_extras & (save->n_extras - 1)); /* full at powers of two */
	size_t room = save->n_extras ? 2 * save->n_extras : 1;
	struct extra *extras = grow ? reallocarray(save->extras, room, sizeof(*extras)) : save->extras;

	if (!extras)
		return -ENOMEM;
	save->extras = extras;
	save->extras[save->n_extras++] = (struct extra){ .block = number, .copy = TAKE(*copy) };
	return 0;
}

static int fetch_timed(struct crew *crew, const struct copy *copy, const char *node, struct source *source,
		       struct block *target, uint32_t *ret_crc, uint64_t deadline_ns, struct error *e)
{
	struct groups *groups = crew->save->groups;
	uint64_t begun_ns = env_now(groups->env);

	if (!source->asked++)
		source->since_ns = begun_ns;
	int r = cluster_fetch(groups->cluster, node, crew->save->group->tenant, &copy->block.digest, copy->block.bytes,
			      0, target->ptr, ret_crc, deadline_ns, e);
	uint64_t now_ns = env_now(groups->env);

	if (!r)
		patience_saw(&groups->copying, now_ns - begun_ns);
	source->bytes += r ? 0 : copy->block.bytes;
	if (!--source->asked)
		source->busy_ns += now_ns - source->since_ns;
	return r;
}

static int fetch_from(struct crew *crew, const struct copy *copy, bool other, struct block *target,
		      uint64_t deadline_ns, struct error *e)
{
	struct groups *groups = crew->save->groups;
	struct digesting digesting = { .block = target };
	const char *node = other ? copy->other : copy->from;
	uint32_t crc, number = other ? copy->block.other - 1 : copy->block.from;
	struct source unseen = { 0 };
	int r = fetch_timed(crew, copy, node, crew->sources ? &crew->sources[number] : &unseen, target, &crc,
			    deadline_ns, e);

	if (!r)
		r = env_call(groups->env, digest_on_worker, &digesting);
	if (!r)
		count(COUNT_COPIED_BYTES, copy->block.bytes);
	if (!r && (crc != copy->block.crc || !digest_equal(&digesting.digest, &copy->block.digest)))
		r = error_set(e, -ERR_ECHANGED, "block %u from node %s is not what was captured there: it was changed",
			      copy->block.block, node);
	return r;
}

static void note_slow(struct crew *crew, const char *node, const char *words)
{
	if (!strcmp(crew->slow, node))
		return;
	memcpy(crew->slow, node, strlen(node) + 1);
	logm(LOG_WARN, "save.source-slow", "save=%016" PRIx64 " group=%s peer=%s words=\"%s\"", crew->save->save_id,
	     crew->save->group->name, node, words);
}

/* A source that takes many times as long as others, or fails, is left for another one, if there is one; else it is waited for. */
static int fetch_into(struct crew *crew, const struct copy *copy, struct block *target, struct error *e)
{
	struct groups *groups = crew->save->groups;
	uint64_t limit_ns = env_now(groups->env) + patience_limit_ns(&groups->copying);
	bool is_slow = !strcmp(copy->from, crew->slow);
	int r;

	if (!*copy->other)
		return fetch_from(crew, copy, false, target, crew->deadline_ns, e);
	if (!is_slow) {
		struct error words = { 0 };

		r = fetch_from(crew, copy, false, target, limit_ns < crew->deadline_ns ? limit_ns : crew->deadline_ns,
			       &words);
		if (r == -ETIMEDOUT)
			note_slow(crew, copy->from, words.text);
		if (!r || r == -ECANCELED || r == -ENOMEM || r == -ERR_ECHANGED)
			return r ? error_set(e, r, "%s", words.text) : 0;
	}
	return fetch_from(crew, copy, true, target, crew->deadline_ns, e);
}

/* Before saves that wait: those may wait for the end of this one. */
static int extra_block(struct msave *save, uint32_t bytes, struct block **ret, struct error *e)
{
	struct room_ask ask = { .kind = POOL_READ, .bytes = &bytes, .n = 1, .first = true };

	return store_blocks_new(save->group->share->store, &ask, env_in_ms(save->groups->env, EXTRA_ROOM_MS), ret, e);
}

/* It came before: it is ordered again, by a coordinator that did not hear of it, or by two at once. */
static bool is_made(const struct msave *save, struct block *const *place, const struct elem_g_copy *copy)
{
	const struct block *block = place ? *place : NULL;

	return find_extra(save, copy->block) ||
	       (block && block->indexed && digest_equal(&block->digest, &copy->digest));
}

/* What has arrived in @fresh, or in the place itself, is the block. */
static int take_copy(struct msave *save, const struct elem_g_copy *copy, struct block **place, struct block **fresh)
{
	if (save->state == SAVE_FAILED)
		return -ECANCELED;
	if (is_made(save, place, copy))
		return 0;
	if (*fresh && place) {
		block_unpin(*place);
		*place = TAKE(*fresh);
	}
	int r = msave_index(place ? place : fresh, &copy->digest, copy->crc);
	return r || place ? r : add_extra(save, copy->block, fresh);
}

/* Where nothing was reserved for the block, it takes room now if there is any. */
static int make_copy(struct crew *crew, const struct copy *copy, struct error *e)
{
	struct msave *save = crew->save;
	struct block **place = planned_place(save, &copy->block), *fresh = NULL;
	int r = 0;

	if (is_made(save, place, &copy->block))
		return 0;
	bool diverged = place && *place && (*place)->indexed;
	if (diverged) { /* nobody shall take it for what was saved */
		block_unpin(*place);
		*place = NULL;
	}
	if (!place || !*place)
		r = extra_block(save, copy->block.bytes, &fresh, e);
	if (r)
		return r;
	struct block *target = fresh ? fresh : *place;
	block_pin(target); /* the save may fail and drop its own pin while bytes arrive */
	r = fetch_into(crew, copy, target, e);
	if (!r)
		r = take_copy(save, &copy->block, place, &fresh);
	block_unpin(target);
	block_unpin(fresh);
	return r;
}

/* A source that is gone, or no room here, is no failure: the coordinator hears which copies were made. Changed bytes are one. */
static int copy_one(struct crew *crew, size_t i)
{
	struct copy *copy = &((struct copy *)crew->work)[i];
	struct error e = { 0 };
	int r = make_copy(crew, copy, &e);

	copy->made = !r;
	if (r != -ERR_ECHANGED && r != -ECANCELED && r != -ENOMEM)
		return 0;
	crew->error = e;
	return r;
}

static int parse_names(struct list_view names, struct elem_name **ret, size_t *ret_n)
{
	struct elem_name *nodes = calloc(names.count + 1, sizeof(*nodes));
	size_t n = 0;
	int r = nodes ? 0 : -ENOMEM;

	while (!r && (r = elem_name_next(&names, &nodes[n])) == 0)
		if (nodes[n++].name.len > NODE_NAME_MAX)
			r = -EPROTO;
	*ret = nodes;
	*ret_n = n;
	return r == 1 ? 0 : r;
}

static int parse_copies(const struct msg_g_copy *msg, struct copy **ret, size_t *ret_n)
{
	_cleanup_(cleanup_mem) struct elem_name *nodes = NULL;
	struct list_view blocks = msg->blocks;
	size_t n_nodes, n = 0;
	struct copy *copies = calloc(blocks.count + 1, sizeof(*copies));
	int r = parse_names(msg->nodes, &nodes, &n_nodes);

	*ret = copies;
	if (!r && !copies)
		r = -ENOMEM;
	while (!r && (r = elem_g_copy_next(&blocks, &copies[n].block)) == 0) {
		const struct elem_g_copy *block = &copies[n].block;

		if (block->from >= n_nodes || block->other > n_nodes || !block->bytes || block->bytes > BLOCK_BYTES_MAX)
			return -EPROTO;
		const struct view *name = &nodes[block->from].name;
		memcpy(copies[n].from, name->ptr, name->len);
		if (block->other)
			memcpy(copies[n].other, nodes[block->other - 1].name.ptr, nodes[block->other - 1].name.len);
		n++;
	}
	*ret_n = n;
	return r == 1 ? 0 : r;
}

/* A node that had no part in the save so far takes over copies of one that is lost. */
static int begin_holding(struct groups *groups, const struct msg_g_copy *msg, const char *from)
{
	struct msave *save;

	if (!msg->group.len || !msg->save_id || msave_by_id(groups, msg->save_id))
		return 0;
	save = msave_new_holder(groups, msg->tenant, msg->group, msg->incarnation, msg->bundle, msg->step, from);
	if (!save)
		return -ENOMEM;
	save->epoch = msg->epoch;
	save_state_move(&save->state, SAVE_RESERVING);
	save_state_move(&save->state, SAVE_CAPTURING);
	save_state_move(&save->state, SAVE_CAPTURED);
	int r = msave_set_id(save, msg->save_id);
	if (r)
		msave_fail(save, r, error_meaning(r));
	return r;
}

/* They are there to be judged, and no copy fails for want of that: all of them, or none. */
static void add_sources(const struct source *sources, size_t n, struct list_buf *list)
{
	int r = 0;

	for (size_t i = 0; sources && !r && i < n; i++) {
		const struct elem_g_source elem = { .node = (uint32_t)i,
						    .bytes = sources[i].bytes,
						    .busy_ns = sources[i].busy_ns };

		if (elem.busy_ns)
			r = elem_g_source_append(list, &elem);
	}
	if (r)
		list_buf_fini(list);
}

static int answer_made(const struct crew *crew, size_t n_nodes, struct buf *answer)
{
	_cleanup_(list_buf_fini) struct list_buf list = { 0 };
	_cleanup_(list_buf_fini) struct list_buf sources = { 0 };
	const struct copy *copies = crew->work;
	size_t n = crew->n;
	int r = 0;

	add_sources(crew->sources, n_nodes, &sources);
	for (size_t i = 0; !r && i < n; i++) {
		struct elem_u32 number = { .v = copies[i].block.block };

		if (copies[i].made)
			r = elem_u32_append(&list, &number);
	}
	const struct msg_g_copy_reply reply = { .made = list_buf_view(&list), .sources = list_buf_view(&sources) };
	return r ? r : msg_g_copy_reply_encode(&reply, answer);
}

static int serve_copy(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
		      struct error *e)
{
	_cleanup_(cleanup_mem) struct copy *copies = NULL;
	struct msg_g_copy msg = { 0 };
	size_t n = 0;
	int r = msg_g_copy_decode(body, &msg);

	if (!r)
		r = parse_copies(&msg, &copies, &n);
	if (r)
		return error_set(e, r, "%s G_COPY from %s", r == -ENOMEM ? "no memory for" : "malformed", from);
	r = begin_holding(arg, &msg, from);
	if (r)
		return r;
	_cleanup_(cleanup_msave_put) struct msave *save = msave_held(arg, msg.save_id, msg.epoch, from, &r, e);
	if (!save)
		return r;
	_cleanup_(cleanup_mem) struct source *sources = calloc(msg.nodes.count + 1, sizeof(*sources));
	struct crew crew = { .save = save,
			     .one = copy_one,
			     .n = n,
			     .deadline_ns = deadline_ns,
			     .work = copies,
			     .sources = sources };
	r = crew_run(&crew, "copy", COPY_FIBERS, e);
	return r ? r : answer_made(&crew, msg.nodes.count, answer);
}

/* ---- what this node holds, for a successor of the coordinator --------------------------------------------------------- */

static int add_held(struct list_buf *list, uint32_t number, const struct block *block)
{
	struct elem_u32 elem = { .v = number };

	return block && block->indexed ? elem_u32_append(list, &elem) : 0;
}

static int serve_held(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
		      struct error *e)
{
	struct msg_save_id id = { 0 };
	_cleanup_(list_buf_fini) struct list_buf list = { 0 };
	struct msg_numbers numbers;
	int r = msg_save_id_decode(body, &id);
	_cleanup_(cleanup_msave_put) struct msave *save = r ? NULL : msave_held(arg, id.save_id, id.epoch, from, &r, e);

	if (!save)
		return r;
	r = 0;
	for (size_t i = 0; !r && save->blocks && i < save->part->n_blocks; i++)
		r = add_held(&list, save->part->blocks[i].block, save->blocks[i].block);
	for (size_t i = 0; !r && save->received && i < save->part->n_receives; i++)
		r = add_held(&list, save->part->receives[i].block, save->received[i]);
	for (size_t i = 0; !r && i < save->n_extras; i++)
		r = add_held(&list, save->extras[i].block, save->extras[i].copy);
	numbers.numbers = list_buf_view(&list);
	return r ? r : msg_numbers_encode(&numbers, answer);
}

/* ---- packs ------------------------------------------------------------------------------------------------------------ */

static int find_puts(struct store *store, struct list_view blocks, struct pack_put *puts, size_t *ret_n,
		     struct error *e)
{
	struct elem_g_put put;
	size_t n = 0;
	int r;

	while ((r = elem_g_put_next(&blocks, &put)) == 0) {
		struct block *block = pool_find(store_pool(store), &put.digest);

		if (!block)
			return error_set(e, -ENOENT, "a block of the pack is not here");
		puts[n] = (struct pack_put){ .block = block, .offset = put.pack_offset };
		*ret_n = ++n; /* the caller unpins them in any case */
		if (block->bytes != put.bytes || block->crc != put.crc)
			return error_set(e, -ENOENT, "a block of the pack is not what was captured");
	}
	return r == 1 ? 0 : r;
}

struct packing {
	struct list link; /* in save->packings */
	struct msave *save;
	const char *key;
	uint64_t number;
	const struct pack_put *puts;
	size_t n;
	uint64_t deadline_ns;
	struct pack_watch watch;
	bool over, unwanted; /* unwanted: others write it */
	int result;
	struct error error;
};

static int pack_run(void *arg)
{
	struct packing *packing = arg;
	struct groups *groups = packing->save->groups;

	packing->result = pack_write(groups->bundles, packing->key, packing->number, packing->puts, packing->n,
				     &packing->watch, packing->deadline_ns, &packing->error);
	packing->over = true;
	wake_all(&packing->save->changed);
	return 0;
}

/* Writes the pack, unless the save fails meanwhile, or its coordinator takes it back: then the store shall not take all of it first. */
static int pack_while_wanted(struct packing *packing, struct error *e)
{
	struct msave *save = packing->save;
	struct nursery nursery;

	nursery_init(&nursery, save->groups->env->loop);
	list_append(&save->packings, &packing->link);
	int r = fiber_start(&nursery, "pack", pack_run, packing);
	while (!r && !packing->over && !packing->unwanted && save->state != SAVE_FAILED)
		r = wait_at(&save->changed, packing->deadline_ns);
	nursery_fini(&nursery);
	list_remove(&packing->link);
	packing->unwanted &= !packing->over || packing->result;
	if (packing->unwanted && save->state != SAVE_FAILED)
		return 0;
	if (save->state == SAVE_FAILED)
		return error_set(e, save->error.code, "%s", save->error.text);
	if (packing->over && packing->result && packing->error.code)
		return error_set(e, packing->result, "%s", packing->error.text);
	return packing->over ? packing->result : r;
}

static int serve_upload(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
			struct error *e)
{
	struct groups *groups = arg;
	struct msg_g_upload msg = { 0 };
	size_t n = 0;
	int r = msg_g_upload_decode(body, &msg);

	if (r)
		return error_set(e, r, "malformed G_UPLOAD from %s", from);
	_cleanup_(cleanup_msave_put) struct msave *save = msave_held(groups, msg.save_id, msg.epoch, from, &r, e);
	_cleanup_(cleanup_mem) char *key = view_dup(msg.key);
	_cleanup_(cleanup_mem) struct pack_put *puts = calloc(msg.blocks.count + 1, sizeof(*puts));
	if (!save)
		return r;
	if (!puts || !key)
		return -ENOMEM;
	struct packing packing = { .save = save,
				   .key = key,
				   .number = msg.number,
				   .puts = puts,
				   .deadline_ns = deadline_ns };
	r = find_puts(save->group->share->store, msg.blocks, puts, &n, e);
	packing.n = n;
	if (!r)
		r = pack_while_wanted(&packing, e);
	for (size_t i = 0; i < n; i++)
		block_unpin(puts[i].block);
	const struct msg_g_pace_reply reply = { .given_up = packing.unwanted };
	return r ? r : msg_g_pace_reply_encode(&reply, answer);
}

/* How far the save's packs are. */
static int serve_pace(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
		      struct error *e)
{
	struct msg_g_pace_reply reply = { 0 };
	struct msg_g_pace msg = { 0 };
	int r = msg_g_pace_decode(body, &msg);

	if (r)
		return error_set(e, r, "malformed G_PACE from %s", from);
	_cleanup_(cleanup_msave_put) struct msave *save = msave_held(arg, msg.save_id, msg.epoch, from, &r, e);
	if (!save)
		return r;
	list_each(link, &save->packings) {
		struct packing *packing = list_entry(link, struct packing, link);

		packing->unwanted |= msg.give_up != 0;
		reply.bytes += pack_watch_bytes(&packing->watch);
	}
	if (msg.give_up)
		wake_all(&save->changed);
	return msg_g_pace_reply_encode(&reply, answer);
}

void holder_serve(struct groups *groups)
{
	cluster_serve(groups->cluster, MSG_G_DIGEST, serve_digest, groups);
	cluster_serve(groups->cluster, MSG_G_COPY, serve_copy, groups);
	cluster_serve(groups->cluster, MSG_G_HELD, serve_held, groups);
	cluster_serve(groups->cluster, MSG_G_UPLOAD, serve_upload, groups);
	cluster_serve(groups->cluster, MSG_G_PACE, serve_pace, groups);
}
