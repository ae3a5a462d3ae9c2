#include "client/script_suite.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- the daemon's side ------------------------------------------------------------------------------------------------------ */

static int on_arena(void *arg, uint64_t id, uint64_t bytes, bool writable, uint8_t **ret_ptr, struct error *e)
{
	struct script *s = arg;

	if (s->no_arena)
		return error_set(e, -ENOMEM, "no room for an arena");
	assert_int_equal(bytes, ARENA_BYTES);
	assert_int_equal(writable, id == CAPTURE);
	*ret_ptr = id == CAPTURE ? s->capture : s->read;
	return 0;
}

/* The next frame that the core sends; false: there is none. */
static bool take(struct script *s)
{
	struct view out = core_output(s->core);
	struct error e;

	if (!out.len)
		return false;
	assert_true(out.len >= FRAME_HEAD_BYTES);
	assert_int_equal(frame_decode(out.ptr, &s->head, &e), 0);
	s->body.len = 0;
	assert_int_equal(buf_append(&s->body, out.ptr + FRAME_HEAD_BYTES, s->head.body_bytes), 0);
	assert_int_equal(s->head.body_crc, crc32c(0, s->body.ptr, s->body.len));
	core_sent(s->core, FRAME_HEAD_BYTES + s->head.body_bytes);
	return true;
}

void script_expect(struct script *s, enum msg_type type)
{
	if (!take(s))
		fail_msg("%s expected, and nothing comes", msg_type_name(type));
	if (s->head.type != type)
		fail_msg("%s expected, and %s comes", msg_type_name(type), msg_type_name(s->head.type));
}

void script_silence(struct script *s)
{
	if (take(s))
		fail_msg("nothing expected, and %s comes", msg_type_name(s->head.type));
}

void script_say(struct script *s, enum msg_type type, uint64_t number, unsigned flags, struct view body)
{
	struct frame_head head = {
		.major = FRAME_MAJOR,
		.type = (uint16_t)type,
		.flags = flags,
		.request = number,
		.body_bytes = (uint32_t)body.len,
		.body_crc = crc32c(0, body.ptr, body.len),
	};
	uint8_t raw[FRAME_HEAD_BYTES];

	frame_encode(&head, raw);
	s->error = (struct error){ 0 };
	s->fed = core_feed(s->core, raw, sizeof(raw), &s->error);
	if (!s->fed && body.len)
		s->fed = core_feed(s->core, body.ptr, body.len, &s->error);
}

void script_reply(struct script *s, struct view body)
{
	script_say(s, s->head.type, s->head.request, FRAME_REPLY, body);
}

void script_fail(struct script *s, int code, const char *words)
{
	_cleanup_(buf_fini) struct buf body = { 0 };

	assert_int_equal(body_put_failure(&body, code, words), 0);
	script_say(s, s->head.type, s->head.request, FRAME_REPLY | FRAME_FAILED, view_buf(&body));
}

/* ---- the application's side ---------------------------------------------------------------------------------------------------- */

int script_set_up_ungreeted(void **state)
{
	struct script *s = calloc(1, sizeof(*s));
	const struct core_events events = { .arena = on_arena, .arg = s };

	*state = s;
	return core_new(&events, &s->core);
}

int script_set_up(void **state)
{
	script_set_up_ungreeted(state);
	struct script *s = *state;
	script_expect(s, MSG_HELLO);
	REPLY(s, hello_reply, .major = FRAME_MAJOR, .node = view_str("n3"));
	SAY(s, MSG_ARENA, 0, arena, .arena = CAPTURE, .bytes = ARENA_BYTES, .writable = 1);
	SAY(s, MSG_ARENA, 0, arena, .arena = READ, .bytes = ARENA_BYTES, .writable = 0);
	return s->fed;
}

int script_tear_down(void **state)
{
	struct script *s = *state;

	core_free(s->core);
	buf_fini(&s->body);
	free(s);
	return 0;
}

struct core_group *script_join(struct script *s)
{
	const struct msg_join_reply reply = { .handle = 31, .incarnation = 4 };
	struct core_group *group;

	assert_int_equal(core_group_new(s->core, &reply, &group), 0);
	return group;
}

void script_leave(struct script *s, struct core_group *group)
{
	core_group_leave(group);
	script_expect(s, MSG_LEAVE);
}

void script_on_end(struct core_future *future)
{
	struct watched *w = container_of(future, struct watched, future);

	w->ends++;
}

struct work *script_take_work(struct script *s)
{
	struct work *work = core_work_take(s->core);

	assert_non_null(work);
	return work;
}

unsigned script_run_all(struct script *s)
{
	unsigned n = 0;

	for (struct work *work; (work = core_work_take(s->core)); n++) {
		work_run(work);
		core_work_done(s->core, work);
	}
	return n;
}
