/*
 * net/net.h: frames and bulk over streams. The contract of a transport; tcp.c is its driver (also over unix sockets, for the
 * native door), a UCX driver comes later.
 *
 * A connection carries either control frames (wire/frame.h: a head of 64 bytes, a body of at most 1 MiB) or bulk chunks,
 * never both. Control: whole frames in, whole frames out, in order, checked (magic, sizes, CRCs) before anybody sees them;
 * garbage costs the connection. Bulk: a span that its receiver named by a transfer id is filled in chunks of at most 1 MiB,
 * each with a CRC32C; chunks for an unknown transfer are drained and dropped.
 *
 * Nothing here waits; everything completes by call-back on the loop. Who is at the other end, HELLO, deadlines, heartbeats
 * and repeats belong to cluster/ and door/.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/error.h"
#include "env/env.h"
#include "wire/frame.h"

#define NET_SEND_QUEUE_MAX (64u << 20) /* bytes queued on one connection; beyond it net_send answers -ENOBUFS */
#define NET_TRANSFERS_MAX  65536       /* expected on one connection, and as many sent; beyond it -ENOBUFS */

struct net_conn;

struct net_events {
	/* The connection is up (connect succeeded). Not called for accepted ones, which are: may then be NULL. */
	void (*up)(void *arg);
	/* A whole, checked control frame; @body is valid during the call. */
	void (*frame)(void *arg, const struct frame_head *head, struct view body);
	/*
	 * The connection ended; called once, also when it never came up. After it net_close() is due; what else may be called
	 * answers -ENOTCONN. A watch on the peer's process goes on until then. -ECONNRESET: the peer closed or died; -EPROTO,
	 * -EBADMSG: it sent garbage; -ERR_EVERSION: it speaks another major (and was sent a failed reply that shows ours); else
	 * what the stream says.
	 */
	void (*down)(void *arg, int reason, const char *words);
	void *arg;
};

/* Accepting: each new connection is handed over; its owner sets events and kind at once by net_adopt. */
struct net_listener;
int net_listen(struct env *env, const char *address, void (*accepted)(void *arg, struct net_conn *conn), void *arg,
	       struct net_listener **ret, struct error *e);
const char *net_listener_address(const struct net_listener *listener); /* with the port that it got */
void net_listener_close(struct net_listener *listener);		       /* accepts NULL */

/* 0: up() or down() follows, later. Else why it cannot even be tried (-EINVAL, -ENOMEM, ...), and nothing follows. */
int net_connect(struct env *env, const char *address, const struct net_events *events, struct net_conn **ret);
/* Of an accepted connection. Called again, it hands the connection to a new owner. */
void net_adopt(struct net_conn *conn, const struct net_events *events);

/* Queues a frame: fills in magic, sizes, version and CRCs of @head. 0, -ENOBUFS, -ENOMEM, -ENOTCONN. @arena: a descriptor
 * that goes with it (unix sockets; sets FRAME_ARENA), or NULL; it must stay open until it is sent or the connection closed.
 * Legal before up(). */
int net_send(struct net_conn *conn, const struct frame_head *head, struct view body, const struct arena *arena);
/* From the next frame on a body of more than @bytes_max (at most FRAME_BODY_MAX, which it is at first) costs the connection: for
 * as long as nobody knows who is at the other end. */
void net_limit_body(struct net_conn *conn, uint32_t bytes_max);
/* Until net_close() the bytes that are queued on it count in *@all, too. Nothing is queued yet. */
void net_count_queue(struct net_conn *conn, uint64_t *all);
uint64_t net_queued(const struct net_conn *conn);
/* A bulk chunk costs the connection, too, until net_bulk_start(): else the first one waits for that. */
void net_refuse_bulk(struct net_conn *conn);
/* It never turns to bulk: what comes behind a frame may be read in the same call. */
void net_read_ahead(struct net_conn *conn);
/* Accepts NULL. No events after it; what was queued may be lost; transfers on it complete with -ECANCELED, later. */
void net_close(struct net_conn *conn);
/* As net_close once the queue is empty, or after 2 s: for last words. No events after this call either. */
void net_close_when_sent(struct net_conn *conn);
void net_peer(struct net_conn *conn, uint32_t *ret_uid, int32_t *ret_pid);
int net_peer_watch(struct net_conn *conn, void (*gone)(void *arg), void *arg);
uint64_t net_last_heard_ns(const struct net_conn *conn); /* when bytes last came in, for heartbeats */

/*
 * Bulk. Both ends call net_bulk_start() on the connection after the control frames that introduced it (HELLO with the flag
 * "bulk" and its answer); from then on it carries chunks in both directions. Control frames queued before go out first; a peer's
 * chunk that comes before the call waits. 0, -ENOTCONN.
 *
 * Sending keeps the order of the calls: a transfer's first chunk follows the last one of the transfer before it.
 */
int net_bulk_start(struct net_conn *conn);

struct net_transfer {
	struct list link;
	uint64_t id; /* receiver's choice, unique among the transfers that it expects */
	uint8_t *span;
	size_t len;   /* 1..2^32-1 */
	size_t moved; /* out: bytes so far */
	uint32_t crc; /* out: CRC32C of the whole */
	/* 0, -ECANCELED, -EBADMSG (a chunk's sum), -ECONNRESET, -EPROTO (chunk out of bounds or order). May free the struct. */
	struct done *done;
	struct net_conn *conn; /* net's own: where it is expected or sent; NULL before and from done on */
	int result;	       /* net's own */
};
/* Registers @t as a destination on @conn. The span is written until done is called. 0, -EINVAL (len), -EEXIST (id), -ENOBUFS,
 * -ENOMEM, -ENOTCONN; else than 0: done is not called. */
int net_expect(struct net_conn *conn, struct net_transfer *t);
/* Withdraws it: done is called, later, with -ECANCELED (or its result, if that came first), once the span is not touched. A
 * chunk that is arriving is waited for; net_close() is the stronger means. */
void net_unexpect(struct net_transfer *t);
/* Sends the span as transfer t->id. The span is read until done is called; 0 then says that the stream has taken all, not that
 * it has arrived. 0, -EINVAL (len), -ENOBUFS, -ENOTCONN; else than 0: done is not called. */
int net_bulk_send(struct net_conn *conn, struct net_transfer *t);
struct net_stats {
	uint64_t sent_bytes, received_bytes; /* with heads and CRCs */
	uint64_t dropped_chunks;	     /* of unknown or withdrawn transfers, or that did not fit theirs */
};
void net_stats(const struct net_conn *conn, struct net_stats *ret);
