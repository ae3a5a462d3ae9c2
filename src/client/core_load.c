/*
 * client/core_load.c: one client's load, alone or as a rank's part of its group's.
 *
 * The daemon names spans in which verified bytes lie; work copies them to their targets, and their tokens go back when it is done. A
 * load that ends, well or badly, is closed by CANCEL once no work reads from a span any more.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/inside.h"

#define MOVE(phase) (1u << (phase))
static const uint8_t moves[LOAD_PHASES] = {
	[LOAD_NEW] = MOVE(LOAD_ASKED) | MOVE(LOAD_FAILING),
	[LOAD_ASKED] = MOVE(LOAD_SERVED) | MOVE(LOAD_FAILING),
	[LOAD_SERVED] = MOVE(LOAD_FAILING) | MOVE(LOAD_OVER),
	[LOAD_FAILING] = MOVE(LOAD_OVER),
};

static void load_move(struct core_load *load, enum load_phase to)
{
	CHECK(moves[load->phase] & MOVE(to));
	load->phase = to;
}

/* ---- ends --------------------------------------------------------------------------------------------------------------- */

static void load_free(struct trash *trash)
{
	struct core_load *load = container_of(trash, struct core_load, trash);

	for (size_t i = 0; i < load->n_wants; i++)
		free(load->wants[i].name);
	free(load->wants);
	list_buf_fini(&load->encoded);
	list_buf_fini(&load->tokens);
	free(load);
}

static void give_back_tokens(struct core_load *load)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	const struct msg_release m = { .load = load->number, .tokens = list_buf_view(&load->tokens) };

	if (!load->tokens.count)
		return;
	int r = msg_release_encode(&m, &body);
	list_buf_fini(&load->tokens);
	core_tell_encoded(load->core, MSG_RELEASE, &body, r);
}

static void tell_cancel(struct core_load *load)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	const struct msg_cancel m = { .number = load->number };

	load->cancel_due = false;
	int r = msg_cancel_encode(&m, &body);
	if (load->phase == LOAD_SERVED) /* all has come: the next load may take it along */
		core_tell_later(load->core, MSG_CANCEL, &body, r);
	else
		core_tell_encoded(load->core, MSG_CANCEL, &body, r);
}

/* The daemon has served all: is every target filled? */
static void check_filled(struct core_load *load)
{
	for (size_t i = 0; i < load->n_wants; i++) {
		const struct load_want *want = &load->wants[i];

		if (want->filled == want->layout.bytes)
			continue;
		error_set(&load->failure, -ERR_EMISMATCH,
			  "item \"%.200s\": of the wanted box's %" PRIu64 " bytes the version holds %" PRIu64
			  "; the others were offered by no rank",
			  want->name, want->layout.bytes, want->filled);
		return;
	}
}

/* Does what had to wait: for running work, for the reply to LOAD. */
static void load_settle(struct core_load *load)
{
	bool busy = load->queued || load->running;

	if (!busy && load->phase == LOAD_SERVED) {
		check_filled(load);
		list_buf_fini(&load->tokens); /* CANCEL gives all back */
	}
	if (!busy && load->cancel_due && !load->asked)
		tell_cancel(load);
	if (!busy && (load->phase == LOAD_SERVED || load->phase == LOAD_FAILING)) {
		load_move(load, LOAD_OVER);
		if (load->group && load->number)
			group_ended(load->group);
		core_end_futures(&load->futures, load->failure.code ? &load->failure : NULL);
	}
	if (!load->dropped || load->phase != LOAD_OVER || load->asked || load->cancel_due || list_empty(&load->link))
		return;
	list_remove(&load->link);
	if (load->group)
		group_unref(load->group);
	core_discard(load->core, &load->trash, load_free);
}

/* @known: the daemon knows the load and keeps spans for it. */
static void load_fail(struct core_load *load, const struct error *e, bool known)
{
	if (load->phase == LOAD_FAILING || load->phase == LOAD_OVER)
		return;
	load->failure = *e;
	load->queued -= core_work_drop(load->core, load);
	list_buf_fini(&load->tokens); /* CANCEL gives all back */
	load->cancel_due = known;
	load_move(load, LOAD_FAILING);
	load_settle(load);
}

void load_lose(struct core_load *load, const struct error *e)
{
	load->cancel_due = false;
	load_fail(load, e, false);
	load_settle(load);
}

/* ---- making ------------------------------------------------------------------------------------------------------------- */

int core_load_new(struct core *core, struct core_group *group, uint64_t version_handle, struct core_load **ret)
{
	struct core_load *load = calloc(1, sizeof(*load));
	struct error none = { 0 };

	if (!load) {
		int r = error_set(&none, -ENOMEM, "no memory for a load");
		if (group)
			core_forgo_load(group, version_handle, &none);
		return r;
	}
	load->core = core;
	load->group = group;
	load->version = version_handle;
	list_init(&load->futures);
	list_append(&core->loads, &load->link);
	if (group)
		group_ref(group);
	*ret = load;
	return 0;
}

static int grow_wants(struct core_load *load)
{
	if (load->n_wants < load->room)
		return 0;
	size_t room = load->room ? 2 * load->room : 16;
	void *grown = reallocarray(load->wants, room, sizeof(load->wants[0]));
	if (!grown)
		return -ENOMEM;
	load->wants = grown;
	load->room = room;
	return 0;
}

/* It may be tried again; if it is not, the other ranks are told when the load is dropped. */
static int refused(struct core_load *load, int code, const char *words, struct error *e)
{
	(void)error_set(&load->refusal, code, "%s", words);
	return error_set(e, code, "%s", words);
}

void core_load_refused(struct core_load *load, const struct error *e)
{
	if (core_is_shortage(e->code))
		load->refusal = *e;
}

/* Good while targets may be added and the load may be submitted: neither was it, nor has it ended without. */
static int check_new(const struct core_load *load, struct error *e)
{
	if (load->phase != LOAD_NEW && !load->number)
		return error_set(e, load->failure.code, "%s", load->failure.text);
	if (load->phase != LOAD_NEW)
		return error_set(e, -EINVAL, "the load is submitted already");
	return 0;
}

int core_load_add(struct core_load *load, const struct core_want *want, struct error *e)
{
	const struct elem_want elem = { .name = want->name, .box = want->box };
	struct load_want own = {
		.box = want->box,
		.element_bits = want->element_bits,
		.base = want->data,
	};

	int r = check_new(load, e);
	if (r)
		return r;
	if (load->n_wants == CORE_ITEMS_MAX || load->encoded.bytes.len > BODY_MAX - 4 * ITEM_NAME_MAX)
		return error_set(e, -E2BIG, "a load has at most %d targets with names and boxes of %u bytes",
				 CORE_ITEMS_MAX, BODY_MAX - 4 * ITEM_NAME_MAX);
	r = layout_init(&own.layout, &want->box, want->element_bits, want->strides_bytes, e);
	if (!r && own.layout.bytes && !want->data)
		r = error_set(e, -EINVAL, "the wanted box has %" PRIu64 " bytes, and data is NULL", own.layout.bytes);
	if (r)
		return r;
	own.name = view_dup(want->name);
	if (!own.name || grow_wants(load) || elem_want_append(&load->encoded, &elem)) {
		free(own.name);
		return refused(load, -ENOMEM, "no memory for one target more", e);
	}
	load->wants[load->n_wants++] = own;
	load->refusal.code = 0;
	return 0;
}

static void on_reply(struct request *request, const struct error *e, struct view body)
{
	struct core_load *load = container_of(request, struct core_load, request);

	load->asked = false;
	if (e) {
		load->cancel_due = false; /* the daemon knows of no such load */
		if (load->group && load->core->state != CORE_LOST)
			core_tell_forgone(load->core, &(struct msg_forgo){ .group = load->group->handle,
									   .version = load->version,
									   .words = view_str(e->text) });
		load_fail(load, e, false);
	}
	load_settle(load);
}

int core_load_submit(struct core_load *load, struct error *e)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	struct msg_load m = {
		.load = load->core->last_number + 1,
		.group = load->group ? load->group->handle : 0,
		.version = load->version,
		.wants = list_buf_view(&load->encoded),
	};
	int r = core_check(load->core, e);

	if (!r)
		r = check_new(load, e);
	if (r)
		return r;
	if (load->group && load->group->left)
		return error_set(e, -EINVAL, "the rank has left the group");
	struct error why = { 0 };
	load->request.done = on_reply;
	if (msg_load_encode(&m, &body))
		r = error_set(&why, -ENOMEM, "no memory to ask for %zu targets", load->n_wants);
	else
		r = core_ask(load->core, &load->request, MSG_LOAD, view_buf(&body), UINT32_MAX, &why);
	if (r)
		return refused(load, r, why.text, e);
	load->refusal.code = 0;
	load->number = ++load->core->last_number;
	load->asked = true;
	load_move(load, LOAD_ASKED);
	if (load->group)
		group_began(load->group);
	return 0;
}

/* ---- blocks --------------------------------------------------------------------------------------------------------------- */

static struct core_load *find_load(struct core *core, uint64_t number)
{
	list_each(node, &core->loads) {
		struct core_load *load = list_entry(node, struct core_load, link);

		if (load->number == number && number)
			return load;
	}
	return NULL;
}

/* How many of the blocks at the head of @list share a span: up to and with the one whose token gives it back. */
static int count_shares(struct list_view list, uint32_t *ret)
{
	struct elem_block block;
	int r;

	*ret = 0;
	while (!(r = elem_block_next(&list, &block))) {
		++*ret;
		if (block.token)
			return 0;
	}
	return r == 1 ? 0 : r;
}

static int set_part(struct core_load *load, struct work *work, uint32_t i, const struct elem_block *block,
		    struct error *e)
{
	struct load_want *want = block->want < load->n_wants ? &load->wants[block->want] : NULL;
	uint64_t piece_bytes;

	if (!want || block->piece.ndim != want->box.ndim ||
	    box_bytes(&block->piece, want->element_bits, &piece_bytes) || block->offset > piece_bytes ||
	    block->bytes > piece_bytes - block->offset)
		return error_set(e, -EPROTO,
				 "the daemon brings bytes %" PRIu64 "+%" PRIu32
				 " of a piece that cannot be (target %" PRIu32 ")",
				 block->offset, block->bytes, block->want);
	if (!block->bytes || block->bytes > BLOCK_MAX || (i && block->bytes != work->bytes))
		return error_set(e, -EPROTO, "the daemon brings a block of %" PRIu32 " bytes", block->bytes);
	const uint8_t *from =
		block->arena ? core_span(load->core, block->arena, block->arena_offset, block->bytes, false) : NULL;
	if ((block->arena && !from) || (i && from != work->from))
		return error_set(e, -EPROTO,
				 "the daemon names a span outside of its arenas (%" PRIu64 ": %" PRIu64 "+%" PRIu32 ")",
				 block->arena, block->arena_offset, block->bytes);
	work->from = from;
	work->bytes = block->bytes;
	work->token = block->token;
	work->parts[i] = (struct work_part){
		.layout = &want->layout,
		.wanted = &want->box,
		.element_bits = want->element_bits,
		.want = block->want,
		.base = want->base,
		.piece = block->piece,
		.offset = block->offset,
	};
	return 0;
}

/* The next span of the list, as one piece of work: its token goes back when all its shares are copied. */
static int put_fill(struct core_load *load, struct list_view *list, struct error *e)
{
	struct elem_block block;
	uint32_t n;
	int r = count_shares(*list, &n);

	if (r || !n)
		return r;
	struct work *work = work_new(WORK_FILL, n);
	if (!work)
		return error_set(e, -ENOMEM, "no memory to copy a block");
	work->owner = load;
	for (uint32_t i = 0; !r && i < n; i++) {
		r = elem_block_next(list, &block);
		if (!r)
			r = set_part(load, work, i, &block, e);
	}
	if (r) {
		work_free(work);
		return r;
	}
	core_work_put(load->core, work);
	load->queued++;
	return 0;
}

int load_take_blocks(struct core *core, uint64_t number, struct view body, struct error *e)
{
	struct core_load *load = find_load(core, number);
	struct msg_blocks m;
	int r = msg_blocks_decode(body, &m);

	if (r)
		return error_set(e, r, "the daemon's blocks cannot be read");
	if (!load || load->phase == LOAD_FAILING || load->phase == LOAD_OVER)
		return 0;
	if (load->phase != LOAD_ASKED)
		return error_set(e, -EPROTO, "the daemon brings blocks of a load that it has ended");
	while (!r && m.blocks.count)
		r = put_fill(load, &m.blocks, e);
	if (r == -EPROTO && !e->code)
		error_set(e, r, "the daemon's blocks cannot be read");
	return r;
}

void load_work_begun(struct core_load *load)
{
	load->queued--;
	load->running++;
}

static int take_result(struct core_load *load, const struct work *work)
{
	const struct elem_token token = { .token = work->token };

	if (work->result)
		return work->result;
	for (uint32_t i = 0; i < work->n_parts; i++)
		load->wants[work->parts[i].want].filled += work->parts[i].filled;
	return work->token ? elem_token_append(&load->tokens, &token) : 0;
}

void load_work_done(struct core_load *load, struct work *work)
{
	struct error failure = { 0 };

	load->running--;
	if (load->phase == LOAD_ASKED || load->phase == LOAD_SERVED) {
		int r = take_result(load, work);

		if (r) {
			error_set(&failure, r, "item \"%.200s\": its pieces cannot be copied into the target: %s",
				  load->wants[work->parts[0].want].name, error_meaning(r));
			load_fail(load, &failure, true);
		} else if (load->tokens.count >= TOKENS_MAX ||
			   (load->phase == LOAD_ASKED && !(load->queued + load->running))) {
			give_back_tokens(load);
		}
	}
	load_settle(load);
}

int load_take_end(struct core *core, uint64_t number, struct view body, struct error *e)
{
	struct core_load *load = find_load(core, number);
	struct error failure = { 0 };
	struct msg_load_end m;

	if (msg_load_end_decode(body, &m) || m.code > FAILURE_CODE_MAX)
		return error_set(e, -EPROTO, "the daemon's end of a load cannot be read");
	if (!load || load->phase == LOAD_FAILING || load->phase == LOAD_OVER)
		return 0;
	if (load->phase != LOAD_ASKED)
		return error_set(e, -EPROTO, "the daemon ends a load twice");
	core_stats_take(&load->stats, m.stats);
	if (m.code) {
		size_t len = m.words.len < ERROR_TEXT_MAX ? m.words.len : ERROR_TEXT_MAX;
		const char *words = len ? (const char *)m.words.ptr : error_meaning(-(int)m.code);

		error_set(&failure, -(int)m.code, "%.*s", len ? (int)len : ERROR_TEXT_MAX, words);
		load_fail(load, &failure, true);
		return 0;
	}
	load->cancel_due = true;
	load_move(load, LOAD_SERVED);
	load_settle(load);
	return 0;
}

/* ---- the handle ------------------------------------------------------------------------------------------------------------- */

void core_load_attach(struct core_load *load, struct core_future *future)
{
	if (load->phase != LOAD_OVER)
		list_append(&load->futures, &future->link);
	else
		core_end_future(future, load->failure.code ? &load->failure : NULL);
}

void core_load_cancel(struct core_load *load)
{
	struct error failure = { 0 };

	error_set(&failure, -ECANCELED, "the load was cancelled");
	if (load->phase == LOAD_NEW && load->group && !load->group->left && load->core->state != CORE_LOST)
		core_tell_forgone(load->core,
				  &(struct msg_forgo){
					  .group = load->group->handle,
					  .version = load->version,
					  .words = view_str(load->refusal.code ? load->refusal.text : failure.text) });
	load_fail(load, &failure, load->phase != LOAD_NEW);
}

struct core_load *load_to_cancel(const struct core_group *group)
{
	list_each(node, &group->core->loads) {
		struct core_load *load = list_entry(node, struct core_load, link);

		if (load->group == group && load->phase != LOAD_FAILING && load->phase != LOAD_OVER)
			return load;
	}
	return NULL;
}

bool core_load_is_quiet(const struct core_load *load)
{
	return load->phase == LOAD_OVER || (load->phase == LOAD_FAILING && !load->running);
}

void core_load_drop(struct core_load *load)
{
	if (!load)
		return;
	core_load_cancel(load);
	load->dropped = true;
	load_settle(load);
}

const struct core_stats *core_load_stats(const struct core_load *load)
{
	return &load->stats;
}
