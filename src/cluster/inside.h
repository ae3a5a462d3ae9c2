/*
 * cluster/inside.h: the cluster as its own files share it; nobody else includes it.
 *
 * A *link* is a connection that this node made to a peer, one for control and one for bulk; an *incoming* is one that a peer made
 * to this node. Calls go out on links and come in on incomings, never the other way round. Peers are never forgotten, so that
 * pointers to them stay valid over every wait.
 */
#pragma once

#include <assert.h>

#include "base/list.h"
#include "base/map.h"
#include "cluster/cluster.h"
#include "net/greet.h"
#include "wire/body.h"

#define CLUSTER_MAGIC UINT32_C(0x74736c43)

#define CONN_CALLS_MAX	 1024		 /* served at a time for one connection; beyond it -EBUSY */
#define CONN_PARTIAL_MAX (2u * BODY_MAX) /* bytes of bodies that have come in part, on one connection */
#define INCOMING_MAX	 (3 * CLUSTER_NODES_MAX)
#define STRANGERS_MAX	 256   /* of them those that have not proven who they are; one more ends the oldest */
#define MSG_TYPES_MAX	 128   /* numbers of messages are below */
#define META_REMOTE_MS	 30000 /* for one request to a remote engine, whoever still waits for it */
#define ENGINE_MUTE_MS	 1000 /* for the answer to a dial of the engine's node, when it did not answer the one before */
#define RECORD_READ_MS	 2000 /* for a record of which an older reading is at hand */
#define SEND_AGAIN_MS	 5    /* until a queue that was full is tried again */

static_assert(NODE_NAME_MAX == GREET_NODE_MAX && PEER_SILENT_MS == GREET_MS, "what net/ knows of this is so");

/* ---- links and peers (peer.c) ---- */

enum link_state {
	LINK_IDLE,
	LINK_DIALLING, /* the connection is being made */
	LINK_GREETING, /* until the peer has proven who it is */
	LINK_UP,
	LINK_STATES,
};

struct link {
	struct peer *peer;
	enum greet_kind kind;
	enum link_state state;
	struct net_conn *conn; /* NULL when idle */
	struct greeting greeting;
	uint64_t attempt;   /* which dial this is */
	uint64_t since_ns;  /* dialled; then up; or this node was asleep itself until then */
	uint64_t requests;  /* the last number given */
	struct timer timer; /* gives up dialling; pings */
	struct list calls;  /* struct call, under way */
	struct waitplace settled;
	struct error failure; /* how the last attempt ended */
};

struct peer {
	struct cluster *cluster;
	char name[NODE_NAME_MAX + 1]; /* empty: the meta engine's node, which has not said yet who it is */
	char domain[NODE_NAME_MAX + 1];
	char address[128];
	uint64_t incarnation; /* the highest that its record or its HELLO has said */
	uint64_t heard;	      /* the one of its last HELLO; 0: none yet */
	uint64_t store_rate;
	uint64_t heard_ns; /* on the last control connection that has ended; 0: there was none */
	bool known;	   /* the record was read */
	bool stale;	   /* and should be read again */
	bool fixed;	   /* the address is configured */
	bool down, news;   /* news: the watchers are still to be told */
	bool mute;	   /* it is down since nothing came from it, neither an answer nor a refusal */
	struct link control, bulk;
};

/* The peer named @name if this node has met it; NULL. */
struct peer *peer_find(struct cluster *cluster, const char *name);
int peer_new(struct cluster *cluster, const char *name, struct peer **ret); /* 0, -ENOMEM, -ENOSPC */
void peer_free(struct peer *peer);
void peer_close(struct peer *peer, int code, const char *words);		   /* both links; nobody is told */
void peer_refuse(struct cluster *cluster, enum counter reason, const char *words); /* counts it */
/* Another life of that node speaks: its old connections and record are worth nothing. */
void peer_reborn(struct peer *peer);
uint64_t peer_unheard_ms(const struct peer *peer); /* NEVER_HEARD */
void peer_try_again(struct peer *peer);		   /* dials one that is down; waits for nothing */
int peer_call(struct peer *peer, enum msg_type type, struct view body, uint64_t deadline_ns, struct buf *ret_answer,
	      struct error *e);
/* Waits until the link is up, dialling if it must. 0, -EHOSTDOWN, -ETIMEDOUT, -ECANCELED, or why the peer refused. */
int link_ready(struct link *link, uint64_t deadline_ns, struct error *e);
void link_end(struct link *link, int code, const char *words);

/* ---- frames (frames.c) ---- */
/*
 * Sends @body in as many frames as it takes. Waits while the connection's queue is full. @over: set as soon as @conn must not
 * be touched any more. 0, -ETIMEDOUT, -ECANCELED, -ENOTCONN, -ENOMEM.
 */
int frames_send(struct cluster *cluster, struct net_conn *conn, const struct frame_head *head, struct view body,
		uint64_t deadline_ns, const bool *over);
uint32_t deadline_to_ms(struct cluster *cluster, uint64_t deadline_ns); /* at least 1 */

/* ---- greeting ---- */
struct greet_self greet_self_of(const struct cluster *cluster);

/* ---- serving (serve.c) ---- */

struct incoming {
	struct list link;
	struct cluster *cluster;
	struct net_conn *conn; /* NULL once gone */
	struct greeting greeting;
	enum greet_kind kind; /* 0 before the greeting is over; so are the next two */
	bool gone;
	char from[NODE_NAME_MAX + 1];
	uint64_t incarnation; /* of the caller; 0: it was about to join */
	uint64_t since_ns;
	struct nursery nursery;
	unsigned n_calls;
	struct body_joiner joiner; /* calls that have come in part */
	struct timer timer;
	struct task reap;
};

void serve_accepted(void *arg, struct net_conn *conn);
void incoming_end(struct incoming *in);
/* The bulk connection that @node has made to this node, or NULL. */
struct net_conn *incoming_bulk(struct cluster *cluster, const char *node);
/* Takes the bytes of @body over. */
int serve_self(struct cluster *cluster, enum msg_type type, struct buf *body, uint64_t deadline_ns,
	       struct buf *ret_answer, struct error *e);
/* May a request of @type with that generation be served here? 0, or negative with words. Takes a higher one over. */
int fence_check(struct cluster *cluster, unsigned type, uint32_t generation, struct error *e);
void generation_seen(struct cluster *cluster, uint32_t generation);

/* ---- members (member.c) ---- */
bool node_name_is_valid(const char *name);
/* The peer, its record read. Waits. */
int peer_get(struct cluster *cluster, const char *name, uint64_t deadline_ns, struct peer **ret, struct error *e);
/* Writes the own record with the next incarnation. */
int member_join(struct cluster *cluster, uint64_t deadline_ns, struct error *e);
/* The generation may have been raised: an index that was made again has no record of who has not joined since. Waits for nothing. */
void member_announce(struct cluster *cluster);

/* ---- to whom the store belongs (claim.c) ---- */
#define CLAIM_KEY_BYTES	  40
#define CLAIM_TOKEN_BYTES 33 /* 16 random bytes in hex, and the final 0; "" is nobody's */

struct claim_at { /* which claim; generation 0: none */
	uint32_t generation;
	uint64_t life;
};
struct claim_name {
	char key[CLAIM_KEY_BYTES];
};
struct claim { /* as it stands in the store */
	struct claim_at at;
	char token[CLAIM_TOKEN_BYTES];
	char by[2 * NODE_NAME_MAX + 24]; /* words: whose */
};
struct mark { /* as the engine has it */
	struct claim_at at;
	char token[CLAIM_TOKEN_BYTES];	/* the claim's that the index is of */
	char engine[CLAIM_TOKEN_BYTES]; /* of the last one that this engine began: the same, unless it is under way */
};

struct claim_name claim_name(struct claim_at at);
int claim_compare(struct claim_at a, struct claim_at b);
int claim_highest(struct cluster *cluster, struct claim_at *ret, uint64_t deadline_ns, struct error *e);
/* One that is known to be there: -ENOENT comes late. */
int claim_read(struct cluster *cluster, struct claim_at at, struct claim *ret, uint64_t deadline_ns, struct error *e);
/* 0: it is there with @token; BACKEND_EXISTS: with another. */
int claim_put(struct cluster *cluster, struct claim_at at, const char *token, uint64_t deadline_ns, struct error *e);
int mark_read(struct cluster *cluster, struct mark *ret, uint64_t deadline_ns, struct error *e);
bool mark_owns(const struct mark *mark, const struct claim *claim);
int mark_write(struct cluster *cluster, struct claim_at at, const char *token, uint64_t deadline_ns, struct error *e);
/* Makes a token and keeps it as the engine's last. */
int mark_new_token(struct cluster *cluster, char ret[CLAIM_TOKEN_BYTES], uint64_t deadline_ns, struct error *e);

/* ---- generation (generation.c) ---- */
enum { HOLD_TAKEN = 1, HOLD_MISSING = 2 };
int generation_join(struct cluster *cluster, uint64_t deadline_ns, struct error *e);
int hold_keep(void *arg); /* a fiber of the engine's node: the cluster */

/* ---- meta through a peer (meta_peer.c) ---- */
int meta_peer_open(struct cluster *cluster, const char *address, struct error *e);
void meta_peer_stop(struct cluster *cluster); /* answers what could not be sent */
int meta_serve(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
	       struct error *e);

/* ---- bulk (fetch.c) ---- */
int fetch_serve(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
		struct error *e);

/* ---- the cluster ---- */

struct handler {
	cluster_serve_fn serve;
	void *arg;
};

struct cluster {
	uint32_t magic;
	struct env *env;
	char node[NODE_NAME_MAX + 1], domain[NODE_NAME_MAX + 1], id[NODE_NAME_MAX + 1];
	struct buf key;
	uint64_t store_rate;
	struct meta *meta;
	bool meta_is_remote;
	struct backend *backend;
	struct net_listener *listener;
	char address[128];

	bool joined, stopping;
	uint32_t generation;
	uint32_t announced; /* the generation in which the index was last seen to have the own record */
	bool announcing;    /* a fiber looks */
	uint64_t incarnation;
	struct claim_at held;		/* the highest claim on the store that was seen to be the engine's */
	bool claimed;			/* by this life of the engine */
	char raised[CLAIM_TOKEN_BYTES]; /* the token of the generation that a rebuild has begun */
	struct error taken;		/* the store is another's now: the engine here is not to be believed any more */

	struct map peers;	/* by name */
	struct peer *meta_peer; /* with a remote engine; in no map */
	struct list watches;
	struct task news; /* tells them */
	struct handler handlers[MSG_TYPES_MAX];
	struct list incoming; /* in the order of their coming */
	unsigned n_incoming, n_strangers;
	struct nursery nursery; /* calls of this node to itself, requests to a remote engine */
	struct list unsent;	/* requests to a remote engine for which there was no fiber */
	struct task unsent_task;

	struct list block_sources; /* one of each tenant */
	uint64_t transfers;	   /* the last number given */
	unsigned n_sendings;	   /* blocks being sent to peers */
	struct waitplace quiet;	   /* an incoming or a sending has ended */

	bool meta_held; /* peers' requests to the engine here wait, */
	struct waitplace meta_opened;
	struct error meta_refusal; /* or are refused with this */
	struct meta_gate gate;	   /* of the engine here, while it is shut */
};
