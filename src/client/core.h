/*
 * client/core.h: a client's side of the native door (wire/message.h), pure: bytes and arenas in, bytes and work out.
 *
 * No thread, no socket, no clock. Under it the application's shell (session.c) moves the bytes, runs the work on its threads and
 * keeps one lock around everything here; the simulator does the same with its streams and fibers. Whatever is asked completes
 * exactly once, as a future; `fn` is called from within the call that brought the end (core_feed, core_work_done, core_lose, ...)
 * and must not call back into the core.
 *
 * Promise to the application: a save's captured future, and a load's, are over only when no work touches its memory. Promise to
 * the daemon: CANCEL goes out only when no work touches a span of that save or load.
 */
#pragma once

#include <stdbool.h>

#include "base/list.h"
#include "client/work.h"
#include "wire/message.h"

#define CORE_OUT_MAX   (1408u << 20) /* bytes waiting to be sent; beyond it new requests answer -ENOBUFS */
#define CORE_ITEMS_MAX 1000000	     /* in one save or load */
#define CORE_NODE_MAX  63	     /* bytes of the daemon's node name; longer ones are cut */

struct core;
struct core_group;
struct core_save;
struct core_load;

/* ---- futures -------------------------------------------------------------------------------------------------------- */

struct core_future {
	struct list link; /* the core's; empty once it is over or forgotten */
	bool over;
	struct error error;			/* code 0: success */
	void (*fn)(struct core_future *future); /* or NULL */
	void *arg;				/* for fn; set it after core_future_init() or core_call_start() */
	unsigned waiters;			/* the shell's */
};
void core_future_init(struct core_future *future, void (*fn)(struct core_future *future));
void core_future_forget(struct core_future *future); /* fn is not called any more */

/* ---- the conversation ------------------------------------------------------------------------------------------------- */

struct core_events {
	/* The daemon shares an arena, whose descriptor came along with the bytes that are being fed: maps it. */
	int (*arena)(void *arg, uint64_t id, uint64_t bytes, bool writable, uint8_t **ret_ptr, struct error *e);
	void *arg;
};
int core_new(const struct core_events *events, struct core **ret); /* HELLO is in its output */
/* No work may be under way, no call, save, load or group be held. Accepts NULL. */
void core_free(struct core *core);

/* Bytes from the daemon. 0; negative: the conversation is over, as after core_lose(), and the stream is to be closed. */
int core_feed(struct core *core, const void *bytes, size_t len, struct error *e);
struct view core_output(const struct core *core); /* what is to be sent now; valid until the next call */
bool core_is_urgent(const struct core *core);	  /* false: it may wait a moment, for a message that goes at once */
void core_sent(struct core *core, size_t len);	  /* so many bytes of it were */
/* The stream ended, or the session does: everything fails with this, now and later. The first one counts. */
void core_lose(struct core *core, int code, const char *words);
int core_check(const struct core *core, struct error *e);		 /* 0, or why it was lost */
void core_attach_greeted(struct core *core, struct core_future *future); /* over when the daemon has answered HELLO */
const char *core_node(const struct core *core);				 /* the daemon's node; "" before */

/* ---- work --------------------------------------------------------------------------------------------------------------- */

struct work *core_work_take(struct core *core);		   /* NULL: none now */
void core_work_done(struct core *core, struct work *work); /* after work_run(); frees it */
bool core_has_work(const struct core *core);
uint64_t core_work_bytes(const struct core *core); /* of the blocks that wait to be taken */
unsigned core_n_running(const struct core *core);  /* taken and not done */

/* ---- plain calls: OPEN, ITEMS, LIST, ... ------------------------------------------------------------------------------- */

struct core_call {
	struct list link;
	struct core *core;
	uint64_t number;
	enum msg_type type;
	bool dropped;
	struct core_future future;
	struct buf answer; /* the reply's body, once the future is over without failure */
};
/* @deadline_ms: how long the daemon may take. 0, -ENOBUFS, -ENOMEM, or why the core was lost. */
int core_call_start(struct core *core, enum msg_type type, struct view body, uint32_t deadline_ms,
		    void (*fn)(struct core_future *), struct core_call **ret, struct error *e);
/* Frees it, now or when its reply has come; what a late JOIN or OPEN brings is given back. Accepts NULL. */
void core_call_drop(struct core_call *call);
/*
 * The other ranks of a group must not wait for what a call that was refused would have led to: @e, its failure, is told to them through the
 * daemon when it is one of memory or room, which they did not meet. (Any other they meet as well, or it may be mended in time.) Where
 * no memory is left to tell it, the session is lost, and that tells them.
 */
void core_forgo_join(struct core *core, const struct msg_join *join, const struct error *e);
void core_forgo_open(struct core_group *group, const struct msg_open *open, const struct error *e);
void core_forgo_load(struct core_group *group, uint64_t version_handle, const struct error *e);
void core_forgo_save(struct core_group *group, struct view bundle, uint64_t step, const struct error *e);
/* A message whose reply says nothing of interest: CLOSE. */
void core_tell(struct core *core, enum msg_type type, struct view body);

/* ---- groups --------------------------------------------------------------------------------------------------------------- */

/* A rank's membership, from a JOIN call's answer. -ENOMEM: the rank leaves again. */
int core_group_new(struct core *core, const struct msg_join_reply *reply, struct core_group **ret);
uint64_t core_group_handle(const struct core_group *group);
/*
 * Cancels what is not captured, and the loads; says LEAVE once the captured saves are over, too, so that their futures still end
 * as they should. Frees @group then. core_group_is_quiet() before tells when nothing touches memory any more.
 */
void core_group_leave(struct core_group *group);
void core_group_cancel(struct core_group *group); /* the first half of it */
bool core_group_is_quiet(const struct core_group *group);

/* ---- saves ---------------------------------------------------------------------------------------------------------------- */

enum core_stage { CORE_CAPTURED, CORE_STAGED, CORE_DURABLE, CORE_STAGES };

struct core_save_options {
	struct view bundle;
	uint64_t step, parent;
	uint32_t copies, policy;
	bool same_structure;
	struct list_view attributes; /* elem_attribute */
};
int core_save_new(struct core_group *group, const struct core_save_options *options, struct core_save **ret,
		  struct error *e);

struct core_item {
	struct view name, dtype;
	uint32_t element_bits, flags;
	struct box whole, box;
	const void *data;
	const int64_t *strides_bytes; /* NULL: contiguous */
};
/* -EINVAL, -EOVERFLOW, -E2BIG in words. Data is borrowed until captured is over. */
int core_save_add(struct core_save *save, const struct core_item *item, struct error *e);
int core_save_submit(struct core_save *save, struct error *e);
/* @future is over with the stage; at once if that is over already. */
void core_save_attach(struct core_save *save, enum core_stage stage, struct core_future *future);
bool core_save_is_over(const struct core_save *save, enum core_stage stage);
uint64_t core_save_version(const struct core_save *save);
/* Cancels unless captured: no new work, and CANCEL when the running work has ended; the stages fail when the daemon says so. */
void core_save_cancel(struct core_save *save);
bool core_save_is_quiet(const struct core_save *save); /* cancelled or over: no work touches it */
/* Gives the handle back; cancels as above. The save lives on by itself until its last stage is over. Accepts NULL. */
void core_save_drop(struct core_save *save);

/* ---- loads ---------------------------------------------------------------------------------------------------------------- */

int core_load_new(struct core *core, struct core_group *group, uint64_t version_handle, struct core_load **ret);

struct core_want {
	struct view name; /* of an item that the version has */
	uint32_t element_bits;
	struct box box;
	void *data;
	const int64_t *strides_bytes;
};
int core_load_add(struct core_load *load, const struct core_want *want, struct error *e);
int core_load_submit(struct core_load *load, struct error *e);
/* The shell refused one of these, with @e: what the other ranks are told if the load is dropped before it was submitted. */
void core_load_refused(struct core_load *load, const struct error *e);
/* Over when every target is filled, or at the first failure and once nothing is touched any more. */
void core_load_attach(struct core_load *load, struct core_future *future);
void core_load_cancel(struct core_load *load);
bool core_load_is_quiet(const struct core_load *load);
void core_load_drop(struct core_load *load); /* cancels what is not over. Accepts NULL */

/* ---- figures of saves and loads ------------------------------------------------------------------------------------------ */

#define CORE_STATS_MAX	     64
#define CORE_STAT_NAME_BYTES 48 /* with the final 0 */

struct core_stats { /* in order of their first coming */
	size_t n;
	struct core_stat {
		char name[CORE_STAT_NAME_BYTES];
		uint64_t value;
	} stats[CORE_STATS_MAX];
};
const struct core_stats *core_save_stats(const struct core_save *save);
const struct core_stats *core_load_stats(const struct core_load *load);
