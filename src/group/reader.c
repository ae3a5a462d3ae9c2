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
#include "group/needs.h"

#define READ_WINDOW_BYTES (64u << 20)
#define READ_FIBERS	  8
#define PEER_WAIT_MS	  30000	     /* how long a peer may wait for a block that it is itself reading from the store */
#define TOLD_MAX	  (1u << 15) /* needs that a client has been told of and not answered yet: 6 MiB of messages */
#define TOLD_AT_ONCE	  (1u << 12) /* in one message */
#define TOLD_UNASKED	  256	     /* until an answer is asked for where nothing has to be given back */
#define TURN_PUSHES	  256	     /* before others have their turn */

struct reader {
	struct groups *groups;
	struct store *store; /* of the version's tenant */
	struct rank_events events;
	struct version *version;
	struct mload *load; /* NULL: ungrouped */
	uint64_t number;    /* the client's */
	struct needs needs;
	size_t next;
	struct block **pinned; /* by need: the first of a message holds its block, until it is released */
	size_t n_pinned;
	uint32_t *told;	 /* by need, likewise: for how many needs the client's answer stands */
	uint32_t n_told; /* all that it has not answered */
	uint32_t n_unasked, n_pushes;
	uint64_t pinned_bytes, read_bytes, hole_bytes;
	struct waitplace changed;
	struct nursery nursery;
	int result; /* of the first read that failed: a nursery takes -ECANCELED for no failure */
	struct error error;
	uint64_t deadline_ns;
};

/* ---- which blocks ----------------------------------------------------------------------------------------------------- */

static int join_group(struct reader *reader, struct rank *rank, struct error *e)
{
	const struct needs *needs = &reader->needs;
	_cleanup_(cleanup_mem) uint32_t *blocks = calloc(needs->n + 1, sizeof(*blocks));

	if (!blocks)
		return -ENOMEM;
	for (size_t i = 0; i < needs->n; i++)
		blocks[i] = needs->list[i].block;
	return mload_join(rank, reader->version, blocks, needs->n, &reader->load, e);
}

struct listing {
	const struct version *version;
	struct list_view wants;
	struct needs *needs;
	struct error *e;
};

static int list_on_worker(void *arg)
{
	struct listing *listing = arg;

	return needs_find(listing->version, listing->wants, listing->needs, listing->e);
}

/* One after the other: each takes a worker for up to some seconds, and memory for a million wants. */
static int list_many(struct reader *reader, struct listing *listing, uint64_t deadline_ns)
{
	struct groups *groups = reader->groups;
	int r = 0;

	while (!r && groups->listing)
		r = wait_at(&groups->listed, deadline_ns);
	if (r)
		return r;
	groups->listing = true;
	r = env_call(groups->env, list_on_worker, listing);
	groups->listing = false;
	wake_all(&groups->listed);
	return r;
}

static int list_needs(struct reader *reader, struct list_view wants, uint64_t deadline_ns, struct error *e)
{
	struct listing listing = { reader->version, wants, &reader->needs, e };
	int r = needs_are_few(reader->version, wants) ? list_on_worker(&listing) :
							list_many(reader, &listing, deadline_ns);

	if (r)
		return r;
	reader->pinned = calloc(reader->needs.n + 1, sizeof(*reader->pinned));
	reader->told = calloc(reader->needs.n + 1, sizeof(*reader->told));
	return reader->pinned && reader->told ? 0 : -ENOMEM;
}

CLEANUP_OF(struct reader *, group_load_free);
CLEANUP_OF(struct version *, version_put);

int group_load_new(struct groups *groups, struct rank *rank, const struct rank_events *events, struct version *version,
		   const struct msg_load *load, uint64_t deadline_ns, struct reader **ret, struct error *e)
{
	_cleanup_(cleanup_group_load_free) struct reader *reader = calloc(1, sizeof(*reader));
	int r;

	if (!reader)
		return -ENOMEM;
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
	r = list_needs(reader, load->wants, deadline_ns, e);
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
	for (size_t i = 0; reader->pinned && i < reader->needs.n; i++)
		block_unpin(reader->pinned[i]);
	mload_put(reader->load);
	version_put(reader->version);
	free(reader->pinned);
	free(reader->told);
	needs_fini(&reader->needs);
	free(reader);
}

/* ---- reading ---------------------------------------------------------------------------------------------------------- */

/* Tells the client where the bytes of needs [first, end) are, which are all of one block; with @token it is to answer. */
static int push_needs(struct reader *reader, size_t first, size_t end, const struct block *block, uint64_t token)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	struct list_buf list = { 0 };
	const struct arena *arena = pool_arena(store_pool(reader->store), POOL_READ);
	struct msg_blocks blocks;
	int r = 0;

	for (size_t i = first; !r && i < end; i++) {
		const struct need *need = &reader->needs.list[i];
		struct elem_block elem = { .want = need->want,
					   .piece = reader->version->pieces[need->piece].box,
					   .offset = need->offset,
					   .bytes = reader->version->blocks[need->block].bytes,
					   .arena = block ? arena->id : 0,
					   .arena_offset = block ? block->offset : 0,
					   .token = i + 1 == end ? token : 0 }; /* the last copy lets it go */

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

/* A client's answers are waited for, so that what it has not read stays small; and others have their turn. */
static int wait_to_push(struct reader *reader)
{
	int r = 0;

	if (++reader->n_pushes % TURN_PUSHES == 0)
		r = fiber_sleep_until(env_now(reader->groups->env));
	while (!r && reader->n_told >= TOLD_MAX)
		r = wait_at(&reader->changed, reader->deadline_ns);
	return r;
}

/* Of one block, for needs [first, end). Pinned it is by the last message, until that is answered; NULL is a hole. */
static int push_block(struct reader *reader, size_t first, size_t end, struct block *block)
{
	size_t last = end - 1 - (end - 1 - first) % TOLD_AT_ONCE;
	int r = 0;

	reader->pinned[last] = block;
	reader->n_pinned += block != NULL;
	for (size_t at = first, next; !r && at < end; at = next) {
		next = at == last ? end : at + TOLD_AT_ONCE;
		r = wait_to_push(reader);
		if (r)
			return r;
		reader->n_told += (uint32_t)(next - at);
		reader->n_unasked += (uint32_t)(next - at);
		bool asked = reader->pinned[at] || reader->n_unasked >= TOLD_UNASKED;
		if (asked) {
			reader->told[at] = reader->n_unasked;
			reader->n_unasked = 0;
		}
		r = push_needs(reader, at, next, block, asked ? at + 1 : 0);
	}
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
	const struct view *name = &reader->needs.names[need->want];

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
	const struct need *need = &reader->needs.list[first];
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
	reader->read_bytes += entry->bytes;
	return push_block(reader, first, end, block);
}

static int read_some(void *arg)
{
	struct reader *reader = arg;
	int r = 0;

	const struct needs *needs = &reader->needs;
	while (!r && reader->next < needs->n) {
		size_t first = reader->next, end = first + 1;

		while (end < needs->n && needs->list[end].block == needs->list[first].block)
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

	if (reader->needs.n == 1) /* one block: it leaves together with the load's end */
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
		size_t at = token.token - 1;

		if (!token.token || token.token > reader->needs.n || !reader->told[at])
			continue; /* nonsense costs nobody anything */
		reader->n_told -= reader->told[at];
		reader->told[at] = 0;
		if (!reader->pinned[at])
			continue;
		reader->pinned_bytes -= reader->pinned[at]->bytes;
		block_unpin(reader->pinned[at]);
		reader->pinned[at] = NULL;
		reader->n_pinned--;
	}
	wake_all(&reader->changed);
}
