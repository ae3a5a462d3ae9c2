/*
 * net/greet.h: how two daemons get to know each other, on each new connection, control and bulk alike.
 *
 *	dialler -> accepter	HELLO   who it is, a nonce
 *	accepter -> dialler	reply   who it is, a nonce
 *	dialler -> accepter	PROVE   HMAC of both, under the cluster's key (net/proof.h)
 *	accepter -> dialler	reply   HMAC of both, in its own role
 *
 * Without a key the last two are left out, and neither side proves anything. One side with a key and one without never meet. Until
 * a side is proven nothing that it said is believed, no other frame of it is served, and its frames are at most GREET_BODY_MAX
 * long. What was sent before is not protected by this, nor is what comes after: a proof says who opened the connection.
 *
 * The greeting owns no connection and no time: its owner passes frames on, closes, and bounds the whole by GREET_MS.
 */
#pragma once

#include "base/counter.h"
#include "net/net.h"
#include "net/proof.h"

#define GREET_MS       4000 /* for the whole, from connecting or accepting on */
#define GREET_BODY_MAX 1024 /* bytes of a frame before the greeting is over */
#define GREET_NODE_MAX 63   /* bytes of a node's name */

enum greet_kind { GREET_CONTROL = 1, GREET_BULK = 2 };

/* Outcomes of greet_frame(). */
enum {
	GREET_MET = 1, /* the peer has said, and proven, who it is: see greeting->peer */
};

struct greet_self {
	const char *cluster, *node;
	uint32_t generation;
	uint64_t incarnation;
	struct view key; /* empty: nobody proves */
};

struct greet_peer {
	char node[GREET_NODE_MAX + 1]; /* so many bytes, whichever */
	uint32_t generation;
	uint64_t incarnation;
};

enum greet_state {
	GREET_LISTENS,	/* accepter: for HELLO */
	GREET_ASKED,	/* dialler: HELLO is out */
	GREET_ANSWERED, /* accepter: its reply is out, PROVE is to come */
	GREET_PROVES,	/* dialler: PROVE is out */
	GREET_KNOWN,	/* the peer is proven; the accepter has yet to welcome it */
	GREET_OVER,
	GREET_STATES,
};

struct greeting {
	enum greet_state state;
	enum greet_kind kind;
	struct net_conn *conn;
	struct env *env;
	uint64_t request;
	uint16_t type;		  /* accepter: of the frame that is to be answered */
	struct digest nonce;	  /* the own */
	struct proof_words words; /* that both have said */
	struct greet_peer peer;	  /* believed from GREET_MET on */
	enum counter reason;	  /* when greet_frame() fails: of peer_refusals_total; the owner counts it */
};

/* Begins on a connection that is up: sends HELLO, as request number @request. 0, or why it cannot be sent. */
int greet_dial(struct greeting *greeting, struct env *env, struct net_conn *conn, const struct greet_self *self,
	       enum greet_kind kind, uint64_t request);
/* Begins on a connection that was accepted. */
void greet_accept(struct greeting *greeting, struct env *env, struct net_conn *conn);
/*
 * The next frame: 0, more is to come; GREET_MET; or negative with words, and greeting->reason: the peer is refused. An accepter has
 * then told it so; both close the connection, when that is sent.
 */
int greet_frame(struct greeting *greeting, const struct greet_self *self, const struct frame_head *head,
		struct view body, struct error *e);
/* The accepter's last words to whom it has met. 0, or why they cannot be sent: net's. */
int greet_welcome(struct greeting *greeting, const struct greet_self *self);
void greet_refuse(struct greeting *greeting, int code, const char *words);
