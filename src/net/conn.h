/*
 * net/conn.h: a connection as tcp.c (control frames, life and death) and bulk.c (chunks) share it; nobody else includes it.
 *
 * Invariants: a connection lives until its owner has closed it, every bulk operation has come back and every transfer was
 * reported: each of these holds a reference, and so does each call-back from here while it runs. Users' call-backs are made
 * from tasks and completions only, never from within a user's call.
 */
#pragma once

#include "base/list.h"
#include "base/map.h"
#include "net/net.h"

enum conn_state {
	CONN_CONNECTING,
	CONN_OPEN,    /* carries control frames */
	CONN_ENDING,  /* closed by its owner; its last words are still being sent */
	CONN_TURNING, /* becomes bulk when its control frames are sent */
	CONN_BULK,
	CONN_DOWN,   /* lost; waits for net_close() */
	CONN_CLOSED, /* its owner is gone; waits for operations and reports */
	CONN_STATES,
};

#define CHUNKS_AHEAD 2 /* given to the mover at once, so that it need not wait for the loop between two */

/* A chunk in the mover's hands. */
struct chunk_send {
	struct bulk_op op;
	struct done done;
	struct net_conn *conn;
	struct net_transfer *transfer; /* NULL: this place is free */
	uint8_t head[FRAME_HEAD_BYTES];
};

struct net_conn {
	uint32_t magic;
	unsigned refs;
	enum conn_state state;
	struct env *env;
	struct stream *stream; /* NULL: closed */
	struct net_events events;
	struct task work;	 /* connects, receives, sends, turns to bulk */
	struct timer linger;	 /* bounds CONN_ENDING */
	bool readable, writable; /* the last recv, send did not answer -EAGAIN */
	int broken;		 /* sending failed with this; what can still be read is read first */
	int reason;		 /* what transfers end with once the connection is down or closed */
	struct net_stats stats;
	uint64_t heard_ns;

	/* The frame that is arriving. As bulk: the next chunk's head. */
	uint8_t raw_head[FRAME_HEAD_BYTES];
	size_t head_have, body_have; /* bytes */
	struct frame_head head;	     /* raw_head decoded, once it is whole */
	uint8_t *body;
	uint32_t body_max; /* bytes that a body may have */
	bool no_bulk;	   /* chunks are refused */
	bool waited;	   /* to send, for tasks that were ready and may have something to say */

	/* Bytes behind the frame that is arriving, where bulk never comes: one call for all of them. */
	bool reads_ahead;
	uint8_t *early;
	size_t early_at, early_len;

	struct list out; /* struct out_frame */
	size_t queued_bytes;
	uint64_t *all_queued; /* or NULL: of several connections, this one among them */

	/* Bulk. */
	unsigned n_ops; /* in the mover's hands */
	struct bulk_op head_op, chunk_op;
	struct done head_done, chunk_done;
	struct map expected;	   /* by transfer id */
	struct net_transfer *into; /* destination of chunk_op; NULL: scratch, or no chunk_op is under way */
	bool into_withdrawn;
	uint8_t *scratch; /* FRAME_CHUNK_MAX bytes in which unwanted chunks end; NULL: there was none so far */

	struct list sends;	  /* transfers not wholly sent, in order */
	struct net_transfer *cut; /* the first that is not wholly cut into chunks, or NULL */
	size_t cut_at;		  /* bytes of it that are */
	unsigned n_sends;
	struct chunk_send ahead[CHUNKS_AHEAD];

	struct list ended;  /* transfers whose done is to be called */
	struct task report; /* calls it */
};

#define CONN_MAGIC UINT32_C(0x6e6e6f43) /* "Conn" */

void conn_get(struct net_conn *conn);
void conn_put(struct net_conn *conn);
void conn_move(struct net_conn *conn, enum conn_state to); /* checked against the table of moves */
/* The connection is lost: tells its owner. Not from within a user's call. */
void conn_fail(struct net_conn *conn, int reason, const char *words);
void conn_heard(struct net_conn *conn, size_t bytes);

void bulk_init(struct net_conn *conn);
void bulk_begin(struct net_conn *conn);	 /* CONN_TURNING, and all control frames are sent */
void bulk_settle(struct net_conn *conn); /* down or closed: ends the transfers once the mover holds none of them */
