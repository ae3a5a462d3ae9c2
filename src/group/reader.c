/*
 * group/reader.c: one rank's load, grouped or alone: which blocks its boxes need, verified, one after the other into its hands.
 *
 * At most READ_WINDOW_BYTES are pinned for a reader at once: a client that stops reading holds that much of the pool and no more.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "group/load.h"

#define READ_WINDOW_BYTES (64u << 20)
#define READ_FIBERS	  8
#define PEER_WAIT_MS	  30000 /* how long a peer may wait for a block that it is itself reading from the store */
#define WANTS_MAX	  1000000
#define NEEDS_MAX	  (1u << 22) /* blocks of one load, each counted for each box that needs it: 128 MiB of memory */

struct need { /* some bytes of a block for one want */
	uint32_t block, want, piece;
	uint64_t offset; /* of the block in the piece's bytes */
};

struct reader {
	struct groups *groups;
	struct store *store; /* of the version's tenant */
	struct rank_events events;
	struct version *version;
	struct mload *load; /* NULL: ungrouped */
	uint64_t number;    /* the client's */
	struct view *names; /* the wants' items, into the version */
	size_t n_wants;
	struct need *needs; /* by place in the store, then block */
	size_t n_needs, next;
	struct block **pinned; /* by need: the first of a block holds it, until it is released */
	size_t n_pinned;
	uint64_t pinned_bytes, read_bytes, hole_bytes;
	struct waitplace changed;
	struct nursery nursery;
	int result; /* of the first read that failed: a nursery takes -ECANCELED for no failure */
	struct error error;
	uint64_t deadline_ns;
};

/* ---- which blocks ----------------------------------------------------------------------------------------------------- */

struct need_list {
	struct need *needs;
	size_t n, room;
};

static int add_need(struct need_list *list, struct need need)
{
	if (list->n >= NEEDS_MAX)
		return -E2BIG;
	if (list->n == list->room) {
		size_t room = list->room ? 2 * list->room : 64;
		void *grown = reallocarray(list->needs, room, sizeof(*list->needs));

		if (!grown)
			return -ENOMEM;
		list->needs = grown;
		list->room = room;
	}
	list->needs[list->n++] = need;
	return 0;
}

/* Bytes [first, end) of the piece that the part of it lies in: from its first element to its last. */
static int byte_range(const struct box *piece, const struct box *part, uint32_t element_bits, uint64_t *ret_first,
		      uint64_t *ret_end)
{
	struct box whole = *piece;
	uint64_t first = 0, last = 0;

	for (uint32_t i = 0; i < piece->ndim; i++) {
		first = first * piece->count[i] + (part->start[i] - piece->start[i]);
		last = last * piece->count[i] + (part->start[i] - piece->start[i] + part->count[i] - 1);
	}
	int r = box_bytes(&whole, element_bits, ret_end);
	if (r)
		return r;
	*ret_first = first * element_bits / 8; /* whole bytes or not: rounding outwards is right for choosing blocks */
	uint64_t end = ((last + 1) * element_bits + 7) / 8;
	*ret_end = end < *ret_end ? end : *ret_end;
	return 0;
}

static int need_piece(const struct reader *reader, struct need_list *list, const struct version_item *item,
		      uint32_t piece_number, uint32_t want, const struct box *wanted)
{
	const struct version_piece *piece = &reader->version->pieces[piece_number];
	struct box part;
	uint64_t first, end, offset = 0;
	int r = 0;

	if (!box_intersect(&piece->box, wanted, &part))
		return 0;
	r = byte_range(&piece->box, &part, item->element_bits, &first, &end);
	for (uint64_t b = piece->first_block; !r && b < piece->first_block + piece->n_blocks; b++) {
		uint64_t bytes = reader->version->blocks[b].bytes;

		if (offset < end && offset + bytes > first)
			r = add_need(list, (struct need){ .block = (uint32_t)b,
							  .want = want,
							  .piece = piece_number,
							  .offset = offset });
		offset += bytes;
	}
	return r;
}

static int need_want(struct reader *reader, struct need_list *list, const struct elem_want *want, uint32_t number,
		     struct error *e)
{
	const struct version_item *item = version_find(reader->version, want->name);
	int r = 0;

	if (!item)
		return error_set(e, -ENOENT, "version %" PRIu64 " of %s has no item \"%.*s\"", reader->version->number,
				 reader->version->bundle, (int)want->name.len, want->name.ptr);
	if (want->box.ndim != item->whole.ndim || !box_inside(&want->box, item->whole.count))
		return error_set(e, -ERR_EMISMATCH,
				 "item \"%.*s\" of version %" PRIu64 " of %s: the wanted box lies outside",
				 (int)want->name.len, want->name.ptr, reader->version->number, reader->version->bundle);
	reader->names[number] = item->name;
	for (uint32_t p = item->first_piece; !r && p < item->first_piece + item->n_pieces; p++)
		r = need_piece(reader, list, item, p, number, &want->box);
	if (r == -E2BIG)
		return error_set(e, r, "the boxes of one load need more than %u blocks, each counted for each box",
				 NEEDS_MAX);
	return r;
}

/* In the order of the store, so that packs are read from front to back; equal blocks together. */
static int by_place(const void *a, const void *b, void *arg)
{
	const struct version_block *blocks = arg;
	const struct need *x = a, *y = b;
	const struct version_block *p = &blocks[x->block], *q = &blocks[y->block];

	if (p->pack != q->pack)
		return p->pack < q->pack ? -1 : 1;
	if (p->pack_offset != q->pack_offset)
		return p->pack_offset < q->pack_offset ? -1 : 1;
	if (x->block != y->block)
		return x->block < y->block ? -1 : 1;
	return (x->want > y->want) - (x->want < y->want);
}

static int join_group(struct reader *reader, struct rank *rank, struct error *e)
{
	_cleanup_(cleanup_mem) uint32_t *blocks = calloc(reader->n_needs + 1, sizeof(*blocks));

	if (!blocks)
		return -ENOMEM;
	for (size_t i = 0; i < reader->n_needs; i++)
		blocks[i] = reader->needs[i].block;
	return mload_join(rank, reader->version, blocks, reader->n_needs, &reader->load, e);
}

static int list_needs(struct reader *reader, struct list_view wants, struct error *e)
{
	struct need_list list = { 0 };
	struct elem_want want;
	int r;

	while ((r = elem_want_next(&wants, &want)) == 0) {
		r = need_want(reader, &list, &want, (uint32_t)reader->n_wants++, e);
		if (r)
			break;
	}
	reader->needs = list.needs;
	reader->n_needs = list.n;
	if (r != 1)
		return r;
	if (list.n)
		qsort_r(list.needs, list.n, sizeof(*list.needs), by_place, reader->version->blocks);
	reader->pinned = calloc(list.n + 1, sizeof(struct block *));
	return reader->pinned ? 0 : -ENOMEM;
}

CLEANUP_OF(struct reader *, group_load_free);
CLEANUP_OF(struct version *, version_put);

int group_load_new(struct groups *groups, struct rank *rank, const struct rank_events *events, struct version *version,
		   const struct msg_load *load, struct reader **ret, struct error *e)
{
	_cleanup_(cleanup_group_load_free) struct reader *reader = calloc(1, sizeof(*reader));
	int r;

	if (!reader)
		return -ENOMEM;
	if (load->wants.count > WANTS_MAX)
		return error_set(e, -E2BIG, "more than %d boxes in one load", WANTS_MAX);
	struct share *share;
	r = groups_share(groups, view_str(version->tenant), &share, e);
	if (r)
		return r;
	reader->store = share->store;
	reader->groups = groups;
	reader->events = rank ? rank->events : *events;
	reader->version = version_get(version);
	reader->number = load->load;
	waitplace_init(&reader->changed);
	nursery_init(&reader->nursery, groups->env->loop);
	reader->names = calloc(load->wants.count + 1, sizeof(*reader->names));
	if (!reader->names)
		return -ENOMEM;
	r = list_needs(reader, load->wants, e);
	if (!r && rank)
		r = join_group(reader, rank, e);
	if (r)
		return r;
	*ret = TAKE(reader);
	return 0;
}

void group_load_free(struct reader *reader)
{
	if (!reader)
		return;
	for (size_t i = 0; reader->pinned && i < reader->n_needs; i++)
		block_unpin(reader->pinned[i]);
	mload_put(reader->load);
	version_put(reader->version);
	free(reader->pinned);
	free(reader->needs);
	free(reader->names);
	free(reader);
}

/* ---- reading ---------------------------------------------------------------------------------------------------------- */

/* Tells the client where the bytes of needs [first, end) are, which are all of one block. */
static int push_block(struct reader *reader, size_t first, size_t end, const struct block *block)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	struct list_buf list = { 0 };
	const struct arena *arena = pool_arena(store_pool(reader->store), POOL_READ);
	struct msg_blocks blocks;
	int r = 0;

	for (size_t i = first; !r && i < end; i++) {
		const struct need *need = &reader->needs[i];
		struct elem_block elem = { .want = need->want,
					   .piece = reader->version->pieces[need->piece].box,
					   .offset = need->offset,
					   .bytes = reader->version->blocks[need->block].bytes,
					   .arena = block ? arena->id : 0,
					   .arena_offset = block ? block->offset : 0,
					   .token = i + 1 == end ? first + 1 : 0 }; /* the last copy lets it go */

		r = elem_block_append(&list, &elem);
	}
	blocks.blocks = list_buf_view(&list);
	if (!r)
		r = msg_blocks_encode(&blocks, &body);
	list_buf_fini(&list);
	if (!r)
		reader->events.push(reader->events.arg, MSG_BLOCKS, reader->number, view_buf(&body));
	return r;
}

/* A pack that is not there is damage, if it is not that the version has been deleted since it was opened. */
static int judge_missing(const struct reader *reader, int code, struct error *why)
{
	_cleanup_(cleanup_version_put) struct version *again = NULL;
	const struct version *version = reader->version;
	struct error e = { 0 };
	char spec[24];

	if (code != -ENOENT)
		return code;
	snprintf(spec, sizeof(spec), "%" PRIu64, version->number);
	if (bundle_open(reader->groups->bundles, view_str(version->tenant), view_str(version->bundle), view_str(spec),
			reader->deadline_ns, &again, &e) == -ERR_EDELETED)
		return error_set(why, e.code, "%s", e.text);
	why->code = -ERR_EDAMAGED;
	return why->code;
}

/* The first failure counts: it cancels the other fibers, and what these then say is nobody's concern. */
static int block_failed(struct reader *reader, const struct need *need, int code, struct error *why)
{
	const struct version *version = reader->version;
	const struct view *name = &reader->names[need->want];

	code = judge_missing(reader, code, why);
	if (code == -ECANCELED || reader->error.code)
		return code;
	reader->error = *why;
	return error_prefix(&reader->error, "%s version %" PRIu64 " item \"%.*s\" block %u", version->bundle,
			    version->number, (int)name->len, name->ptr, need->block);
}

static int read_block(struct reader *reader, size_t first, size_t end)
{
	const struct version *version = reader->version;
	const struct need *need = &reader->needs[first];
	const struct version_block *entry = &version->blocks[need->block];
	struct block_ref ref = { .digest = entry->digest, .bytes = entry->bytes, .crc = entry->crc };
	const char *node = reader->load ? mload_source(reader->load, need->block) : NULL;
	struct block *block = NULL;
	int r = 0;

	if (entry->flags & BLOCK_HOLE) {
		reader->hole_bytes += entry->bytes;
		return push_block(reader, first, end, NULL);
	}
	while (!r && reader->pinned_bytes && reader->pinned_bytes + entry->bytes > READ_WINDOW_BYTES)
		r = wait_at(&reader->changed, reader->deadline_ns);
	if (r)
		return r;
	reader->pinned_bytes += entry->bytes;
	ref.key = version->packs[entry->pack].key;
	if (!ref.key && !node)
		node = version->packs[entry->pack].node; /* staged: it lies in that node's memory */
	ref.pack_offset = entry->pack_offset;
	struct error why = { 0 };
	r = store_get(reader->store, &ref, node, PEER_WAIT_MS, true, reader->deadline_ns, &block, &why);
	if (r) {
		reader->pinned_bytes -= entry->bytes;
		return block_failed(reader, need, r, &why);
	}
	reader->pinned[first] = block;
	reader->n_pinned++;
	reader->read_bytes += entry->bytes;
	return push_block(reader, first, end, block);
}

static int read_some(void *arg)
{
	struct reader *reader = arg;
	int r = 0;

	while (!r && reader->next < reader->n_needs) {
		size_t first = reader->next, end = first + 1;

		while (end < reader->n_needs && reader->needs[end].block == reader->needs[first].block)
			end++;
		reader->next = end;
		r = read_block(reader, first, end);
	}
	if (!r)
		return 0;
	if (!reader->result)
		reader->result = r;
	nursery_cancel(&reader->nursery);
	return r;
}

static int read_all(struct reader *reader)
{
	int r = 0;

	if (reader->n_needs == 1) /* one block: it leaves together with the load's end */
		return read_some(reader);
	for (int i = 0; !r && i < READ_FIBERS; i++)
		r = fiber_start(&reader->nursery, "read", read_some, reader);
	if (!r)
		r = nursery_wait(&reader->nursery, reader->deadline_ns);
	nursery_fini(&reader->nursery);
	return r ? r : reader->result;
}

static int push_end(struct reader *reader, int code, const char *words)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	struct list_buf stats = { 0 };
	struct elem_stat read = { .name = view_str("read_bytes"), .value = reader->read_bytes };
	struct elem_stat hole = { .name = view_str("hole_bytes"), .value = reader->hole_bytes };
	struct msg_load_end end = { .code = (uint32_t)-code, .words = view_str(words) };
	int r = elem_stat_append(&stats, &read);

	if (!r)
		r = elem_stat_append(&stats, &hole);
	end.stats = list_buf_view(&stats);
	if (!r)
		r = msg_load_end_encode(&end, &body);
	list_buf_fini(&stats);
	reader->events.push(reader->events.arg, MSG_LOAD_END, reader->number, r ? (struct view){ 0 } : view_buf(&body));
	return r;
}

void group_load_refuse(struct reader *reader, int code)
{
	(void)push_end(reader, code, error_meaning(code));
}

/* A client names no deadline of its own for the others' part: they have as long as for a save's. */
static int wait_for_plan(struct reader *reader)
{
	uint64_t gathered_ns = env_in_ms(reader->groups->env, GATHER_TIMEOUT_MS);

	return mload_wait(reader->load, gathered_ns < reader->deadline_ns ? gathered_ns : reader->deadline_ns,
			  &reader->error);
}

int group_load_run(struct reader *reader, uint64_t deadline_ns, struct error *e)
{
	int r = 0;

	reader->deadline_ns = deadline_ns;
	if (reader->load)
		r = wait_for_plan(reader);
	if (!r)
		r = read_all(reader);
	if (r && !reader->error.code)
		(void)error_set(&reader->error, r, "load of version %" PRIu64 " of %s: %s", reader->version->number,
				reader->version->bundle, error_meaning(r));
	if (r == -ECANCELED && fiber_cancelled())
		return r;
	int pushed = push_end(reader, r, r ? reader->error.text : "");
	if (pushed)
		return pushed;
	while (reader->n_pinned) { /* the client still copies */
		int waited = wait_at(&reader->changed, r ? env_in_ms(reader->groups->env, SETTLE_MS) : deadline_ns);

		if (waited)
			return r ? r : waited;
	}
	return r ? error_set(e, r, "%s", reader->error.text) : 0;
}

void group_load_release(struct reader *reader, struct list_view tokens)
{
	struct elem_token token;

	while (elem_token_next(&tokens, &token) == 0) {
		if (!token.token || token.token > reader->n_needs || !reader->pinned[token.token - 1])
			continue; /* nonsense costs nobody anything */
		reader->pinned_bytes -= reader->pinned[token.token - 1]->bytes;
		block_unpin(reader->pinned[token.token - 1]);
		reader->pinned[token.token - 1] = NULL;
		reader->n_pinned--;
	}
	wake_all(&reader->changed);
}
