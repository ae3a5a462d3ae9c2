/*
 * client/core_save.c: one rank's part of a save, from its items to its last stage.
 *
 * OFFERED lasts from submit until the daemon says that the stage captured is over; in between come grants, whose work is put in the
 * queue and reported when done. A save that fails or is cancelled before it is captured drops the work that nobody has begun, waits
 * for the rest, and only then tells the daemon (CANCEL) and its futures.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/inside.h"

#define MOVE(phase) (1u << (phase))
static const uint8_t moves[PHASES] = {
	[PHASE_NEW] = MOVE(PHASE_OFFERED) | MOVE(PHASE_FAILED),
	[PHASE_OFFERED] = MOVE(PHASE_CAPTURED) | MOVE(PHASE_FAILED),
	[PHASE_CAPTURED] = MOVE(PHASE_STAGED) | MOVE(PHASE_FAILED),
	[PHASE_STAGED] = MOVE(PHASE_DURABLE) | MOVE(PHASE_FAILED),
};

static bool is_ended(const struct core_save *save)
{
	return save->phase == PHASE_DURABLE || save->phase == PHASE_FAILED;
}

/* ---- ends --------------------------------------------------------------------------------------------------------------- */

static void save_free(struct trash *trash)
{
	struct core_save *save = container_of(trash, struct core_save, trash);

	list_buf_fini(&save->attributes);
	list_buf_fini(&save->encoded);
	list_buf_fini(&save->filled);
	free(save->items);
	free(save->bundle);
	free(save);
}

static void tell_cancel(struct core_save *save)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	const struct msg_cancel m = { .group = save->group->handle, .number = save->number };

	save->cancel_due = false;
	core_tell_encoded(save->core, MSG_CANCEL, &body, msg_cancel_encode(&m, &body));
}

/* The other ranks would wait for an offer that never comes. @why: NULL, it was cancelled. */
static void tell_abandoned(struct core_save *save, const struct error *why)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	const struct msg_cancel m = { .group = save->group->handle,
				      .bundle = view_str(save->bundle),
				      .step = save->step,
				      .words = why ? view_str(why->text) : (struct view){ 0 } };

	core_tell_encoded(save->core, MSG_CANCEL, &body, msg_cancel_encode(&m, &body));
}

static void end_stage(struct core_save *save, enum core_stage stage, const struct error *e)
{
	if (save->over[stage])
		return;
	save->over[stage] = true;
	save->bad[stage] = e;
	core_end_futures(&save->futures[stage], e);
}

/* Does what had to wait: for running work, for the reply to SAVE. */
static void save_settle(struct core_save *save)
{
	if (save->running)
		return;
	if (save->cancel_due && !save->asked)
		tell_cancel(save);
	if (save->phase == PHASE_FAILED)
		for (int stage = 0; stage < CORE_STAGES; stage++)
			end_stage(save, (enum core_stage)stage, &save->failure);
	if (!save->dropped || !is_ended(save) || save->asked || save->cancel_due || list_empty(&save->link))
		return;
	list_remove(&save->link);
	group_unref(save->group);
	core_discard(save->core, &save->trash, save_free);
}

/* What nobody has begun, and what nobody has been told: of no use to a save that has failed. */
static void drop_queued(struct core_save *save)
{
	list_buf_fini(&save->filled);
	save->queued -= core_work_drop(save->core, save);
}

static void save_move(struct core_save *save, enum save_phase to)
{
	bool was_active = save->phase != PHASE_NEW && !is_ended(save);

	CHECK(moves[save->phase] & MOVE(to));
	save->phase = to;
	if (to == PHASE_OFFERED)
		group_began(save->group);
	else if (was_active && is_ended(save))
		group_ended(save->group);
}

/* @known: the daemon knows the save and waits to hear that its spans are not touched any more. */
static void save_fail(struct core_save *save, const struct error *e, bool known)
{
	if (is_ended(save))
		return;
	bool held_spans = save->phase == PHASE_OFFERED;
	save->failure = *e;
	drop_queued(save);
	if (known && held_spans && !save->cancelled)
		save->cancel_due = true;
	save_move(save, PHASE_FAILED);
	save_settle(save);
}

void save_lose(struct core_save *save, const struct error *e)
{
	save->cancel_due = false;
	save_fail(save, e, false);
	save_settle(save);
}

/* ---- making ------------------------------------------------------------------------------------------------------------- */

int core_save_new(struct core_group *group, const struct core_save_options *options, struct core_save **ret,
		  struct error *e)
{
	struct core_save *save = calloc(1, sizeof(*save));

	if (save && options->attributes.bytes.len)
		save->attributes.count = options->attributes.count;
	if (save)
		save->bundle = view_dup(options->bundle);
	if (!save || !save->bundle ||
	    buf_append(&save->attributes.bytes, options->attributes.bytes.ptr, options->attributes.bytes.len)) {
		struct error none;

		if (save)
			save_free(&save->trash);
		int r = error_set(&none, -ENOMEM, "no memory for a save");
		core_forgo_save(group, options->bundle, options->step, &none);
		return error_set(e, r, "%s", none.text);
	}
	save->core = group->core;
	save->group = group;
	save->step = options->step;
	save->parent = options->parent;
	save->copies = options->copies;
	save->policy = options->policy;
	save->same_structure = options->same_structure;
	for (int stage = 0; stage < CORE_STAGES; stage++)
		list_init(&save->futures[stage]);
	list_append(&save->core->saves, &save->link);
	group_ref(group);
	*ret = save;
	return 0;
}

/* As elem_item_append() puts it: its length, two strings, two numbers, two boxes. So a list never outgrows a message. */
#define ITEM_ENCODED_MAX (4 + (4 + ITEM_NAME_MAX) + (4 + DTYPE_MAX) + 2 * 4 + 2 * (4 + 16 * BOX_DIMS_MAX))
#define REST_BYTES	 (1u << 20) /* of the same message: bundle, attributes */
static_assert((uint64_t)CORE_ITEMS_MAX * ITEM_ENCODED_MAX + REST_BYTES <= BODY_MAX, "a list fits into a message");

static int check_item(const struct core_item *item, struct error *e)
{
	const int len = (int)(item->name.len < 200 ? item->name.len : 200);
	const char *name = (const char *)item->name.ptr;

	if (!item->name.len || item->name.len > ITEM_NAME_MAX || !view_is_utf8(item->name))
		return error_set(e, -EINVAL, "an item's name must be 1 to %d bytes of UTF-8; \"%.*s\" is not",
				 ITEM_NAME_MAX, len, name);
	if (!item->dtype.len || item->dtype.len > DTYPE_MAX || !view_is_utf8(item->dtype))
		return error_set(e, -EINVAL, "item \"%.*s\": a dtype must be 1 to %d bytes of UTF-8", len, name,
				 DTYPE_MAX);
	if (item->box.ndim != item->whole.ndim || !box_inside(&item->box, item->whole.count))
		return error_set(e, -EINVAL, "item \"%.*s\": the box reaches out of the shape", len, name);
	return 0;
}

static int grow_items(struct core_save *save)
{
	if (save->n_items < save->room)
		return 0;
	size_t room = save->room ? 2 * save->room : 16;
	void *grown = reallocarray(save->items, room, sizeof(save->items[0]));
	if (!grown)
		return -ENOMEM;
	save->items = grown;
	save->room = room;
	return 0;
}

/* Good while items may be added and the save may be submitted: neither was it, nor has it ended without. */
static int check_new(const struct core_save *save, struct error *e)
{
	if (save->phase == PHASE_FAILED && !save->number)
		return error_set(e, save->failure.code, "%s", save->failure.text);
	if (save->phase != PHASE_NEW)
		return error_set(e, -EINVAL, "the save of step %" PRIu64 " of %s is submitted already", save->step,
				 save->bundle);
	return 0;
}

int core_save_add(struct core_save *save, const struct core_item *item, struct error *e)
{
	const struct elem_item elem = {
		.name = item->name,
		.dtype = item->dtype,
		.element_bits = item->element_bits,
		.flags = item->flags,
		.whole = item->whole,
		.box = item->box,
	};
	struct layout layout;

	int r = check_new(save, e);
	if (r)
		return r;
	if (save->n_items == CORE_ITEMS_MAX)
		return error_set(e, -E2BIG, "a save has at most %d items", CORE_ITEMS_MAX);
	r = check_item(item, e);
	if (r)
		return r;
	r = layout_init(&layout, &item->box, item->element_bits, item->strides_bytes, e);
	if (!r && layout.bytes && !item->data)
		r = error_set(e, -EINVAL, "its box has %" PRIu64 " bytes, and data is NULL", layout.bytes);
	if (!r && (grow_items(save) || elem_item_append(&save->encoded, &elem)))
		r = error_set(e, -ENOMEM, "no memory for one item more");
	if (r == -ENOMEM) /* it may be tried again; if it is not, the others are told why */
		(void)error_set(&save->refusal, r, "no memory for one item more");
	if (r) {
		error_prefix(e, "item \"%.*s\"", (int)(item->name.len < 200 ? item->name.len : 200),
			     (const char *)item->name.ptr);
		return r;
	}
	save->items[save->n_items++] = (struct save_item){ .data = item->data, .layout = layout };
	save->offered_bytes += layout.bytes;
	core_stats_set(&save->stats, "offered_bytes", save->offered_bytes);
	save->refusal.code = 0;
	return 0;
}

/* ---- offering ------------------------------------------------------------------------------------------------------------- */

static int send_offer(struct core_save *save, struct error *e)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	const struct msg_save m = {
		.group = save->group->handle,
		.save = save->number,
		.bundle = view_str(save->bundle),
		.step = save->step,
		.copies = save->copies,
		.policy = save->policy,
		.flags = save->same_structure ? SAVE_SAME_STRUCTURE : 0,
		.parent = save->parent,
		.attributes = list_buf_view(&save->attributes),
		.structure = hash64(save->encoded.bytes.ptr, save->encoded.bytes.len, 0),
		.n_items = (uint32_t)save->n_items,
		.items = save->whole ? list_buf_view(&save->encoded) : (struct list_view){ 0 },
	};
	int r = msg_save_encode(&m, &body);

	if (r)
		return error_set(e, r, "no memory for an offer of %zu items", save->n_items);
	r = core_ask(save->core, &save->request, MSG_SAVE, view_buf(&body), UINT32_MAX, e);
	if (r)
		return r;
	save->asked = true;
	if (save->whole) /* it goes out once, and may have a gigabyte */
		list_buf_fini(&save->encoded);
	return 0;
}

static void on_offered(struct request *request, const struct error *e, struct view body)
{
	struct core_save *save = container_of(request, struct core_save, request);
	struct error failure = { 0 };
	struct msg_save_reply m = { 0 };

	save->asked = false;
	if (e) {
		save->cancel_due = false;      /* the daemon knows of no such save */
		if (core_is_shortage(e->code)) /* maybe nor does the part of it that would tell the other ranks */
			tell_abandoned(save, e);
		save_fail(save, e, false);
		save_settle(save);
		return;
	}
	if (msg_save_reply_decode(body, &m) || (m.need_items && save->whole)) {
		core_lose(save->core, -EPROTO, "the daemon's answer to an offer makes no sense");
		return;
	}
	if (m.need_items && (save->cancelled || save->phase != PHASE_OFFERED)) {
		save->cancel_due = false; /* it was not taken in, and now it never will be */
		if (save->cancelled)
			error_set(&failure, -ECANCELED, "the save was cancelled");
		tell_abandoned(save, NULL);
		save_fail(save, &failure, false);
	} else if (m.need_items) {
		save->whole = true;
		if (send_offer(save, &failure)) {
			tell_abandoned(save, &failure);
			save_fail(save, &failure, false);
		}
	}
	save_settle(save);
}

int core_save_submit(struct core_save *save, struct error *e)
{
	int r = core_check(save->core, e);

	if (!r)
		r = check_new(save, e);
	if (r)
		return r;
	if (save->group->left)
		return error_set(e, -EINVAL, "the rank has left the group");
	save->number = save->core->last_number + 1;
	save->whole = !save->same_structure;
	save->request.done = on_offered;
	r = send_offer(save, &save->refusal);
	if (r) {
		save->number = 0; /* the next save's, which is to be found by it */
		return error_set(e, r, "%s", save->refusal.text);
	}
	save->core->last_number++;
	save_move(save, PHASE_OFFERED);
	return 0;
}

/* ---- capturing ------------------------------------------------------------------------------------------------------------ */

static struct core_save *find_save(struct core *core, uint64_t number)
{
	list_each(node, &core->saves) {
		struct core_save *save = list_entry(node, struct core_save, link);

		if (save->number == number && number)
			return save;
	}
	return NULL;
}

static int put_capture(struct core_save *save, const struct elem_grant *grant, enum grant_mode mode, struct error *e)
{
	const struct save_item *item = grant->item < save->n_items ? &save->items[grant->item] : NULL;
	uint8_t *span = NULL;

	if (!item || !grant->bytes || grant->bytes > BLOCK_MAX || grant->offset > item->layout.bytes ||
	    grant->bytes > item->layout.bytes - grant->offset)
		return error_set(e, -EPROTO,
				 "the daemon asks for bytes %" PRIu64 "+%" PRIu32 " of item %" PRIu32
				 ", which it has not got",
				 grant->offset, grant->bytes, grant->item);
	if (grant->arena)
		span = core_span(save->core, grant->arena, grant->arena_offset, grant->bytes, true);
	if (grant->arena && !span)
		return error_set(e, -EPROTO,
				 "the daemon grants a span outside of its arenas (%" PRIu64 ": %" PRIu64 "+%" PRIu32
				 ")",
				 grant->arena, grant->arena_offset, grant->bytes);
	struct work *work = core_capture_new(save->core);
	if (!work)
		return error_set(e, -ENOMEM, "no memory to capture a block");
	work->owner = save;
	work->layout = &item->layout;
	work->data = item->data;
	work->offset = grant->offset;
	work->bytes = grant->bytes;
	work->span = span;
	work->mode = mode;
	work->filled.block = grant->block;
	core_work_put(save->core, work);
	save->queued++;
	return 0;
}

int save_take_grant(struct core *core, uint64_t number, struct view body, struct error *e)
{
	struct core_save *save = find_save(core, number);
	struct elem_grant grant;
	struct msg_grant m;
	int r = msg_grant_decode(body, &m);

	if (r || m.mode > GRANT_HINTED)
		return error_set(e, -EPROTO, "the daemon's grant cannot be read");
	if (!save || save->cancelled || save->phase == PHASE_FAILED)
		return 0;
	if (save->phase != PHASE_OFFERED)
		return error_set(e, -EPROTO, "the daemon grants spans for a save that is captured");
	while (!(r = elem_grant_next(&m.grants, &grant))) {
		r = put_capture(save, &grant, (enum grant_mode)m.mode, e);
		if (r)
			return r;
	}
	return r == 1 ? 0 : error_set(e, r, "the daemon's grant cannot be read");
}

struct report {
	struct request request;
	struct core *core;
	uint64_t number; /* the save's */
};

static void report_when_due(struct core_save *save);

/* Refused: for this save there is nothing more to be had. */
static void on_reported(struct request *request, const struct error *e, struct view body)
{
	struct report *own = container_of(request, struct report, request);
	struct core_save *save = find_save(own->core, own->number);

	free(own);
	if (!save)
		return;
	save->n_reports--;
	if (e)
		save_fail(save, e, true);
	else if (save->phase == PHASE_OFFERED && !save->cancelled)
		report_when_due(save);
}

static void report(struct core_save *save)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	struct error e = { 0 };
	struct report *own = malloc(sizeof(*own));
	const struct msg_filled m = {
		.group = save->group->handle,
		.save = save->number,
		.filled = list_buf_view(&save->filled),
	};
	int r = msg_filled_encode(&m, &body);

	list_buf_fini(&save->filled);
	save->filled_bytes = 0;
	core_stats_set(&save->stats, "captured_bytes", save->captured_bytes);
	if (r || !own) {
		free(own);
		core_lose(save->core, -ENOMEM, "no memory for a message to the daemon");
		return;
	}
	*own = (struct report){ .request.done = on_reported, .core = save->core, .number = save->number };
	r = core_ask(save->core, &own->request, MSG_FILLED, view_buf(&body), TELL_MS, &e);
	if (r) {
		free(own);
		core_lose(save->core, r, e.text);
		return;
	}
	save->n_reports++;
}

static void report_when_due(struct core_save *save)
{
	unsigned n = save->filled.count;
	bool due = n >= BATCH || save->filled_bytes >= BATCH_BYTES || !(save->queued + save->running);

	if (n && due && (save->n_reports < REPORTS_MAX || n >= BATCH_MOST))
		report(save);
}

void save_work_begun(struct core_save *save)
{
	save->queued--;
	save->running++;
}

void save_work_done(struct core_save *save, struct work *work)
{
	struct error failure = { 0 };

	save->running--;
	if (save->phase == PHASE_OFFERED && !save->cancelled) {
		int r = work->result ? work->result : elem_filled_append(&save->filled, &work->filled);

		if (r) { /* for the daemon it is a rank that cancels */
			error_set(&failure, r, "no memory to capture a block of step %" PRIu64 " of %s", save->step,
				  save->bundle);
			save_fail(save, &failure, true);
		} else {
			save->captured_bytes += work->span ? work->bytes : 0;
			save->filled_bytes += work->bytes;
			report_when_due(save);
		}
	}
	save_settle(save);
}

/* ---- stages ----------------------------------------------------------------------------------------------------------------- */

static int take_success(struct core_save *save, const struct msg_stage *m, struct error *e)
{
	static const enum save_phase phase_of[CORE_STAGES] = { PHASE_CAPTURED, PHASE_STAGED, PHASE_DURABLE };

	if (m->stage >= CORE_STAGES || !(moves[save->phase] & MOVE(phase_of[m->stage])))
		return error_set(e, -EPROTO, "the daemon says that stage %" PRIu32 " is over, out of order", m->stage);
	if (save->queued || save->running || save->filled.count)
		return error_set(e, -EPROTO, "the daemon says that all is captured, and %u blocks are not",
				 save->queued + save->running + save->filled.count);
	if (m->stage == CORE_CAPTURED)
		save->cancel_due = false; /* it came too late */
	if (m->stage == CORE_DURABLE)
		save->version = m->version;
	save_move(save, phase_of[m->stage]);
	end_stage(save, (enum core_stage)m->stage, NULL);
	return 0;
}

int save_take_stage(struct core *core, uint64_t number, struct view body, struct error *e)
{
	struct core_save *save = find_save(core, number);
	struct error failure = { 0 };
	struct msg_stage m;

	if (msg_stage_decode(body, &m) || m.code > FAILURE_CODE_MAX)
		return error_set(e, -EPROTO, "the daemon's stage cannot be read");
	if (!save || is_ended(save))
		return 0;
	core_stats_take(&save->stats, m.stats);
	if (m.code) {
		size_t len = m.words.len < ERROR_TEXT_MAX ? m.words.len : ERROR_TEXT_MAX;

		if (len)
			error_set(&failure, -(int)m.code, "%.*s", (int)len, (const char *)m.words.ptr);
		else
			error_set(&failure, -(int)m.code, "%s", error_meaning(-(int)m.code));
		save->version = m.version;
		save_fail(save, &failure, true);
		return 0;
	}
	int r = take_success(save, &m, e);
	if (!r)
		save_settle(save);
	return r;
}

/* ---- the handle ------------------------------------------------------------------------------------------------------------- */

void core_save_attach(struct core_save *save, enum core_stage stage, struct core_future *future)
{
	if (!save->over[stage])
		list_append(&save->futures[stage], &future->link);
	else
		core_end_future(future, save->bad[stage] ? &save->failure : NULL);
}

bool core_save_is_over(const struct core_save *save, enum core_stage stage)
{
	return save->over[stage];
}

uint64_t core_save_version(const struct core_save *save)
{
	return save->version;
}

void core_save_cancel(struct core_save *save)
{
	struct error failure = { 0 };

	if (save->phase == PHASE_NEW) {
		error_set(&failure, -ECANCELED,
			  "the save of step %" PRIu64 " of %s was cancelled before it was submitted", save->step,
			  save->bundle);
		tell_abandoned(save, save->refusal.code ? &save->refusal : NULL);
		save_fail(save, &failure, false);
	}
	if (save->phase != PHASE_OFFERED || save->cancelled)
		return;
	save->cancelled = true;
	save->cancel_due = true;
	drop_queued(save);
	save_settle(save);
}

struct core_save *save_to_cancel(const struct core_group *group)
{
	list_each(node, &group->core->saves) {
		struct core_save *save = list_entry(node, struct core_save, link);

		if (save->group == group &&
		    (save->phase == PHASE_NEW || (save->phase == PHASE_OFFERED && !save->cancelled)))
			return save;
	}
	return NULL;
}

bool core_save_is_quiet(const struct core_save *save)
{
	return !save->running && (save->phase != PHASE_OFFERED || save->cancelled);
}

void core_save_drop(struct core_save *save)
{
	if (!save)
		return;
	core_save_cancel(save);
	save->dropped = true;
	save_settle(save);
}

const struct core_stats *core_save_stats(const struct core_save *save)
{
	return &save->stats;
}
