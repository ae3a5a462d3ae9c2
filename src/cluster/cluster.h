/*
 * cluster/cluster.h: who is there, and calls between daemons.
 *
 * Members are records in the meta engine (`n/<name>`: address, failure domain, incarnation); each daemon writes its own when it
 * joins, with an incarnation one higher than before, and reads the others'. To each peer that it calls a daemon keeps one control and
 * one bulk connection of its own; it serves calls on those that peers made to it. A peer that has sent nothing for
 * PEER_SILENT_MS (it is pinged each PEER_PING_MS) is down: its calls end with -EHOSTDOWN, whoever asked to be told is told.
 * A call fails in at most PEER_SILENT_MS plus a second, or at its deadline; calls are never repeated here.
 *
 * The caller's own node is a peer like any other: calls to it take the same path without the network.
 *
 * Fencing: frames carry the cluster's generation; a lower one is answered -ERR_ESTALEEPOCH. Group epochs are checked by group/.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/error.h"
#include "backend/backend.h"
#include "env/env.h"
#include "env/fiber.h"
#include "meta/meta.h"
#include "net/net.h"
#include "pool/pool.h"
#include "wire/message.h"

#define PEER_PING_MS	  1000
#define PEER_SILENT_MS	  4000
#define ENGINE_AWAY_MS	  200		/* between two tries while the meta engine is away */
#define CALL_BODY_MAX	  (1344u << 20) /* bytes of a call or an answer, sent in frames of at most FRAME_BODY_MAX */
#define NODE_NAME_MAX	  63		/* bytes, [A-Za-z0-9._-] */
#define CLUSTER_NODES_MAX 4096

/* The generation's places: a row in the meta engine; objects g/<n> and g/<n>.<k> in the backend (docs/formats.md, sections 3 and 8). */
#define CLUSTER_GENERATION_KEY	  "c/generation"
#define CLUSTER_GENERATION_PREFIX "g/"
#define CLUSTER_ENGINE_KEY	  "c/engine" /* the token of the last claim that the engine began */

struct cluster;

struct cluster_options {
	const char *node, *domain; /* domain NULL: the node's name */
	const char *listen;	   /* "tcp:HOST:PORT"; port 0 picks one */
	const char *cluster_id;
	struct view
		key; /* the cluster's, PROOF_KEY_MIN to PROOF_KEY_MAX bytes: peers prove it; empty: they prove nothing */
	struct meta *meta;	  /* the embedded engine, which this node then serves to its peers; or NULL and: */
	const char *meta_address; /* of the daemon that serves it */
	struct backend *backend;  /* for the generation's put-if-absent */
	uint64_t store_rate; /* bytes per s from this node to the store, as configured; 0: unknown (equal for all) */
};

/* Listens at once. */
int cluster_new(struct env *env, const struct cluster_options *options, struct cluster **ret, struct error *e);
/* Joins: reads or makes the generation, writes the own record, starts the heartbeats. Waits. -ERR_EREBUILD when the engine is
 * empty or older than the store, which another has used since; -ENODEV when the store has not the engine's claim: it is not mounted, another
 * one, or an older copy. On the engine's node it claims the store for this life, and looks each HOLD_LOOK_MS whether it still has it. */
int cluster_join(struct cluster *cluster, uint64_t deadline_ns, struct error *e);
void cluster_stop(
	struct cluster *cluster); /* waits, shielded, for its own fibers: then there are no more calls in or out */
void cluster_free(struct cluster *cluster); /* accepts NULL; stopped, or never joined and never called */

struct meta *cluster_meta(struct cluster *cluster); /* embedded or remote */
/*
 * On the engine's node, before anybody may believe the engine: peers' requests to it wait. Then cluster_meta_open(): they are served, or
 * (@why: not NULL) refused with its words until it is called again.
 */
void cluster_meta_hold(struct cluster *cluster);
void cluster_meta_open(struct cluster *cluster, const struct error *why);
/*
 * On the engine's node: from now on requests that touch rows whose keys begin with one of the @prefixes are refused, whoever asks, on
 * whichever node: -EAGAIN, @words. Those of the calling fiber pass if @passes. Until cluster_rows_open().
 */
void cluster_rows_shut(struct cluster *cluster, const char *const *prefixes, bool passes, const char *words);
void cluster_rows_open(struct cluster *cluster);
const char *cluster_node(const struct cluster *cluster);
const char *cluster_address(const struct cluster *cluster);
const char *cluster_id(const struct cluster *cluster);
uint32_t cluster_generation(const struct cluster *cluster);
uint64_t cluster_incarnation(const struct cluster *cluster); /* of this node */
/*
 * Above which what the engine counts begins in this generation: incarnations, epochs. An index that was made again knows no earlier ones, but
 * the other nodes do, so each generation counts from a number that none before it has reached.
 */
uint64_t cluster_counts_above(const struct cluster *cluster);
bool cluster_has_key(const struct cluster *cluster); /* peers have proven the cluster's key */
/* The engine's (0: it has none yet) and the store's highest. Waits. -ENODEV: the store has not the engine's claim, as in cluster_join(). */
int cluster_generations(struct cluster *cluster, uint64_t deadline_ns, uint32_t *ret_engine, uint32_t *ret_backend,
			struct error *e);
/*
 * A rebuild (bundle/): raises the generation in the store, by which the store becomes this engine's, whosever it was; takes the new one over and
 * tells the peers with their next frames; and at its end marks the index as being of it. Raise and mark wait.
 */
int cluster_raise_generation(struct cluster *cluster, uint64_t deadline_ns, uint32_t *ret, struct error *e);
void cluster_set_generation(struct cluster *cluster, uint32_t generation);
int cluster_mark_generation(struct cluster *cluster, uint32_t generation, uint64_t deadline_ns, struct error *e);
/*
 * Before anything is published or destroyed: is the store still this cluster's? One list of a few names, where it is. Waits. -ERR_EREBUILD:
 * another has taken it over, and on the engine's node nothing of the index is served from then on; -ENODEV: it is not mounted any more.
 */
int cluster_hold(struct cluster *cluster, uint64_t deadline_ns, struct error *e);
int cluster_taken(const struct cluster *cluster, struct error *e); /* the same as far as it is known; does not wait */

/* ---- members ---- */
struct node_info {
	char name[NODE_NAME_MAX + 1], domain[NODE_NAME_MAX + 1];
	char address[128];
	uint64_t incarnation, store_rate;
	bool up;	     /* heard within PEER_SILENT_MS, or never tried in this life of it */
	uint64_t unheard_ms; /* since anything came from it; NEVER_HEARD. Only of one that this node calls */
};
#define NEVER_HEARD UINT64_MAX
/* Waits (reads the engine). Sorted by name. -ENOENT when @name is unknown. */
int cluster_node_info(struct cluster *cluster, const char *name, uint64_t deadline_ns, struct node_info *ret,
		      struct error *e);
int cluster_nodes(struct cluster *cluster, uint64_t deadline_ns, struct node_info **ret, size_t *ret_n,
		  struct error *e);

/* The same without the engine, and without waiting: those that this node knows from before; their records may be older. */
int cluster_known_nodes(struct cluster *cluster, struct node_info **ret, size_t *ret_n, struct error *e);
/* The node with the meta engine, as far as this one knows it: its name is "" until it has been met. */
void cluster_engine(const struct cluster *cluster, struct node_info *ret);

/* How many of the nodes that this one has called answer, and how many are down. */
void cluster_peers(const struct cluster *cluster, unsigned *ret_up, unsigned *ret_down);

/*
 * Told once, on the loop, when a peer is noticed to be down or to be another incarnation. Noticed are peers that this node has
 * called: it keeps a connection to them from then on. One that broke is dialled again first, so a cut is not told.
 */
struct peer_watch {
	struct list link;
	void (*down)(struct peer_watch *watch, const char *node);
};
void cluster_watch(struct cluster *cluster, struct peer_watch *watch);
void cluster_unwatch(struct peer_watch *watch);

/* ---- calls ---- */
/*
 * Calls @node: sends @body, waits for the answer, appends it to @ret_answer (may be NULL when there is none). 0; the other side's
 * failure (negative, with its words); -ETIMEDOUT, -EHOSTDOWN, -ECANCELED, -E2BIG. When it returns nothing of it is under way
 * here; whether the other side did it is unknown after -ETIMEDOUT and -EHOSTDOWN.
 */
int cluster_call(struct cluster *cluster, const char *node, enum msg_type type, struct view body, uint64_t deadline_ns,
		 struct buf *ret_answer, struct error *e);

/* The same for a large body, which the call consumes: a node that calls itself then does not hold it twice. */
int cluster_call_take(struct cluster *cluster, const char *node, enum msg_type type, struct buf *body,
		      uint64_t deadline_ns, struct buf *ret_answer, struct error *e);

/* How a call, or a request to the meta engine, ends when that node is down or just comes up: it will be back, and whoever waits tries again. */
bool cluster_is_away(int result);

/*
 * Serving: @serve runs in a fiber of its own for each call and may wait. @from is the caller's node; @body is valid until it
 * returns. It appends its answer to @answer and returns 0, or fails with a negative code and words.
 */
typedef int (*cluster_serve_fn)(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
				struct error *e);
void cluster_serve(struct cluster *cluster, enum msg_type type, cluster_serve_fn serve, void *arg);

/* ---- bulk ---- */
/*
 * Fetches the block @digest of @bytes bytes from @node into @span: the holder pins it and sends it (FETCH, served by cluster
 * from what was given to cluster_serve_blocks). Waits; when it returns the span is not touched any more. Checks CRC and length,
 * not the digest. @wait_ms: how long the holder may wait for a block that is on its way to it. -ENOENT: it has not got it.
 */
int cluster_fetch(struct cluster *cluster, const char *node, const char *tenant, const struct digest *digest,
		  uint32_t bytes, uint32_t wait_ms, uint8_t *span, uint32_t *ret_crc, uint64_t deadline_ns,
		  struct error *e);
/*
 * Where a tenant's blocks are found for peers: find() gives it pinned, or fails (-ENOENT); it may wait up to @wait_ms for one under
 * way. Given by store/, one for each tenant. Tenants share no block, however equal: who asks names whose it is.
 */
struct block_source {
	struct list link;
	const char *tenant; /* kept */
	int (*find)(void *arg, const struct digest *digest, uint32_t wait_ms, struct block **ret);
	void *arg;
};
void cluster_serve_blocks(struct cluster *cluster, struct block_source *source);
void cluster_unserve_blocks(struct block_source *source);

/* ---- convenience for everyone above: requests to backend and meta as waiting calls ---- */
/*
 * Submits and waits; *pcall stays the caller's when it returns 0, an outcome or an error, and may run again. At the deadline
 * (-ETIMEDOUT) or on cancellation the call is left to finish alone and is then freed: *pcall is NULL afterwards (an upload that it
 * began is aborted). Buffers and pins that the request uses are given back by @release(@held), when the call is freed.
 */
struct backend_call {
	struct backend_req req;
	void (*release)(void *held); /* called once when the request is over and the call is freed */
	void *held;
	bool known; /* a reader's: the object is there, so -ENOENT is believed after BACKEND_NAME_LATE_MS only */
	struct await done;
	bool abandoned;
};
struct backend_call *backend_call_new(enum backend_op op, const char *key); /* NULL: no memory */
void backend_call_free(struct backend_call *call);			    /* accepts NULL; not while under way */
CLEANUP_OF(struct backend_call *, backend_call_free);
int backend_call_run(struct backend *backend, struct backend_call **pcall, uint64_t deadline_ns, struct error *e);
/* As backend_call_run, for meta: runs *preq. */
CLEANUP_OF(struct meta_req *, meta_req_free);
int meta_call_run(struct meta *meta, struct meta_req **preq, uint64_t deadline_ns, struct error *e);
/*
 * Waits, shielded, until no abandoned request is under way any more; for the end, before what they pin is freed. NULL: none of that
 * kind. 0 or -ETIMEDOUT.
 */
int calls_drain(struct backend *backend, struct meta *meta, uint64_t deadline_ns);
/* Small objects and values, whole; the bytes are appended. -EFBIG: more than @max. */
int backend_read(struct backend *backend, const char *key, size_t max, struct buf *ret, uint64_t deadline_ns,
		 struct error *e);
int backend_read_known(struct backend *backend, const char *key, size_t max, struct buf *ret, uint64_t deadline_ns,
		       struct error *e); /* of an object that is there */
int backend_write(struct backend *backend, const char *key, struct view bytes, bool if_absent, uint64_t deadline_ns,
		  struct error *e); /* 0, BACKEND_EXISTS, error */
int meta_get(struct meta *meta, struct view key, struct buf *ret, uint64_t deadline_ns, struct error *e);
