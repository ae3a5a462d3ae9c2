/*
 * client/inside.h: the core as its own files share it; nobody else includes it.
 */
#pragma once

#include "base/check.h"
#include "client/core.h"
#include "wire/body.h"

#define CORE_MAGIC    UINT32_C(0x65726f43)
#define ARENAS_MAX    16	   /* that a daemon may share */
#define PARTIAL_MAX   (128u << 20) /* bytes of messages that have come in part; answers to clients come in pages */
#define OUT_KEPT_MAX  (4u << 20)   /* bytes of the buffer of what is to be sent, when all was sent */
#define TELL_MS	      60000	   /* deadline of messages whose reply nobody waits for */
#define BATCH	      1024	   /* reports of captured blocks in one message, unless nothing more is under way */
#define BATCH_MOST    16384	   /* and while REPORTS_MAX messages are under way: about 1 MiB */
#define REPORTS_MAX   16	  /* of one save: a daemon serves so many requests of a session at a time and no more */
#define BATCH_BYTES   (16u << 20) /* and so many that they stand for: the daemon sums them while the next are captured */
#define TOKENS_MAX    32	  /* of filled targets that are given back in one message, likewise: they hold room */
#define SPARE_MAX     1024	  /* pieces of work that are kept for the next save: 200 KiB */
#define BLOCK_MAX     (8u << 20)  /* bytes */
#define ITEM_NAME_MAX 1024	  /* bytes of UTF-8 */
#define DTYPE_MAX     32

/* ---- core.c ---- */

enum core_state {
	CORE_GREETING, /* HELLO is out */
	CORE_UP,
	CORE_LOST,
	CORE_STATES,
};

/* What waits for a reply. @e is NULL on success. The request is in no list any more; body is valid during the call. */
struct request {
	struct list link;
	uint64_t number;
	enum msg_type type;
	void (*done)(struct request *request, const struct error *e, struct view body);
};

/* At the head of what may come to its end in the middle of a call that still looks at it. */
struct trash {
	struct list link;
	void (*free)(struct trash *trash);
};

struct shared_arena {
	uint64_t id, bytes;
	bool writable;
	uint8_t *ptr;
};

struct core {
	uint32_t magic;
	enum core_state state;
	struct core_events events;
	struct error lost;
	char node[CORE_NODE_MAX + 1];
	struct list greeted; /* futures */
	struct request hello;

	struct buf in, out;
	size_t out_at; /* bytes of out that were sent */
	bool urgent;   /* some of the rest shall go at once */
	struct body_joiner joiner;

	uint64_t last_request, last_number; /* number: of saves and loads */
	struct list requests, calls, saves, loads, groups;
	struct list trash; /* struct trash: freed once no call into the core is under way */
	unsigned n_arenas;
	struct shared_arena arenas[ARENAS_MAX];

	struct list work; /* to be taken */
	uint64_t work_bytes;
	unsigned n_running, n_spare;
	struct list spare; /* work of earlier saves, to be used again */
};

/* Sends a request and registers @request for its reply. */
int core_ask(struct core *core, struct request *request, enum msg_type type, struct view body, uint32_t deadline_ms,
	     struct error *e);
/* As core_tell(), of a body whose encoder answered @encoded. Who cannot send is lost. */
void core_tell_encoded(struct core *core, enum msg_type type, const struct buf *body, int encoded);
/* Of memory or room, in this process or its daemon, just now: no other rank meets it. */
bool core_is_shortage(int code);
void core_tell_forgone(struct core *core, const struct msg_forgo *m);
/* Likewise, of what may wait a moment. */
void core_tell_later(struct core *core, enum msg_type type, const struct buf *body, int encoded);
/* The bytes [offset, offset + bytes) of an arena; NULL: there are none such. */
uint8_t *core_span(const struct core *core, uint64_t arena, uint64_t offset, uint64_t bytes, bool writable);
void core_end_future(struct core_future *future, const struct error *e); /* NULL: success */
void core_end_futures(struct list *futures, const struct error *e);
void core_discard(struct core *core, struct trash *trash, void (*free)(struct trash *trash)); /* again: does nothing */
struct work *core_capture_new(struct core *core); /* zeroed; NULL: no memory */
/* Puts work in the queue; drops from it what @owner has not begun and says how much that was. */
void core_work_put(struct core *core, struct work *work);
unsigned core_work_drop(struct core *core, const void *owner);
/* Adds or updates; malformed or too many ones are left out. */
void core_stats_take(struct core_stats *stats, struct list_view list);
void core_stats_set(struct core_stats *stats, const char *name, uint64_t value);

/* ---- core_group.c ---- */

struct core_group {
	struct trash trash;
	struct list link;
	struct core *core;
	uint64_t handle, incarnation;
	unsigned refs;	   /* saves and loads that exist */
	unsigned n_active; /* of them, those that the daemon knows and that are not over */
	bool left, told;
};
void group_ref(struct core_group *group);
void group_unref(struct core_group *group);
void group_began(struct core_group *group);
void group_ended(struct core_group *group); /* may say LEAVE */

/* ---- core_save.c ---- */

enum save_phase { PHASE_NEW, PHASE_OFFERED, PHASE_CAPTURED, PHASE_STAGED, PHASE_DURABLE, PHASE_FAILED, PHASES };

struct save_item {
	const void *data;
	struct layout layout;
};

struct core_save {
	struct trash trash;
	struct list link; /* in core.saves */
	struct core *core;
	struct core_group *group;
	uint64_t number; /* 0 before submit */
	enum save_phase phase;

	char *bundle;
	uint64_t step, parent;
	uint32_t copies, policy;
	bool same_structure;
	struct list_buf attributes, encoded; /* encoded: the items, as they are offered */
	struct save_item *items;
	size_t n_items, room;

	struct request request; /* SAVE */
	bool asked;		/* its reply has not come */
	bool whole;		/* the list of items went along */

	unsigned queued, running;
	struct list_buf filled; /* not yet reported */
	uint64_t filled_bytes;	/* that they stand for */
	unsigned n_reports;	/* under way */
	bool cancelled;		/* by this side */
	bool cancel_due, dropped;
	struct error refusal; /* what kept it from being submitted; code 0: nothing */
	struct error failure;
	struct list futures[CORE_STAGES];
	bool over[CORE_STAGES], bad[CORE_STAGES];
	uint64_t version;
	struct core_stats stats;
	uint64_t offered_bytes, captured_bytes;
};

/* Each takes a message for the save of that number; an unknown number is no failure. -EPROTO, -ENOMEM end the conversation. */
int save_take_grant(struct core *core, uint64_t number, struct view body, struct error *e);
int save_take_stage(struct core *core, uint64_t number, struct view body, struct error *e);
void save_work_begun(struct core_save *save);
void save_work_done(struct core_save *save, struct work *work);
struct core_save *save_to_cancel(const struct core_group *group); /* the group's next, or NULL */
void save_lose(struct core_save *save, const struct error *e);

/* ---- core_load.c ---- */

enum load_phase {
	LOAD_NEW,
	LOAD_ASKED,   /* blocks come */
	LOAD_SERVED,  /* all have come; the last work is under way */
	LOAD_FAILING, /* work is still under way */
	LOAD_OVER,
	LOAD_PHASES,
};

struct load_want {
	char *name;
	struct layout layout;
	struct box box;
	uint32_t element_bits;
	void *base;
	uint64_t filled; /* bytes */
};

struct core_load {
	struct trash trash;
	struct list link; /* in core.loads */
	struct core *core;
	struct core_group *group; /* NULL: alone */
	uint64_t number, version;
	enum load_phase phase;
	struct load_want *wants; /* fixed once submitted */
	size_t n_wants, room;
	struct list_buf encoded;

	struct request request; /* LOAD */
	bool asked;
	unsigned queued, running;
	struct list_buf tokens; /* not yet given back */
	bool cancel_due, dropped;
	struct error refusal; /* what kept it from being submitted; code 0: nothing */
	struct error failure; /* code 0: none */
	struct list futures;
	struct core_stats stats;
};
int load_take_blocks(struct core *core, uint64_t number, struct view body, struct error *e);
int load_take_end(struct core *core, uint64_t number, struct view body, struct error *e);
void load_work_begun(struct core_load *load);
void load_work_done(struct core_load *load, struct work *work);
struct core_load *load_to_cancel(const struct core_group *group);
void load_lose(struct core_load *load, const struct error *e);
