/*
 * client/script_suite.h: a scripted daemon for tests of the core: every frame by hand, work run by hand, so that any order can be had.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "base/check.h"
#include "client/core.h"
#include "wire/body.h"

#define ARENA_BYTES 65536
#define CAPTURE	    7 /* ids of the arenas */
#define READ	    8

struct script {
	struct core *core;
	uint8_t capture[ARENA_BYTES], read[ARENA_BYTES];
	bool no_arena;
	struct frame_head head; /* of the frame taken last */
	struct buf body;
	struct error error; /* of the last feed */
	int fed;
};

/* ---- the daemon's side ---- */
/* Takes the next frame that the core sends: head and body. */
void script_expect(struct script *s, enum msg_type type);
void script_silence(struct script *s);
void script_say(struct script *s, enum msg_type type, uint64_t number, unsigned flags, struct view body);
/* To the frame taken last. */
void script_reply(struct script *s, struct view body);
void script_fail(struct script *s, int code, const char *words);

#define SAY(s, type, number, name, ...)                                \
	do {                                                           \
		_cleanup_(buf_fini) struct buf _said = { 0 };          \
		const struct msg_##name _m = { __VA_ARGS__ };          \
		assert_int_equal(msg_##name##_encode(&_m, &_said), 0); \
		script_say(s, type, number, 0, view_buf(&_said));      \
	} while (0)

#define REPLY(s, name, ...)                                            \
	do {                                                           \
		_cleanup_(buf_fini) struct buf _said = { 0 };          \
		const struct msg_##name _m = { __VA_ARGS__ };          \
		assert_int_equal(msg_##name##_encode(&_m, &_said), 0); \
		script_reply(s, view_buf(&_said));                     \
	} while (0)

/* ---- the application's side ---- */
int script_set_up_ungreeted(void **state); /* HELLO is not answered yet */
int script_set_up(void **state);
int script_tear_down(void **state);
struct core_group *script_join(struct script *s); /* handle 31 */
void script_leave(struct script *s, struct core_group *group);

/* A future, and how often it ended. */
struct watched {
	struct core_future future;
	int ends;
};
void script_on_end(struct core_future *future); /* its fn */

struct work *script_take_work(struct script *s); /* there is some */
unsigned script_run_all(struct script *s);	 /* how much there was */
