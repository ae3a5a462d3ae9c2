/*
 * meta/meta.h: a small transactional key-value store for leases, epochs, slots and the index over the backend.
 *
 * Drivers: lmdb (embedded in the first daemon), remote (the same, reached through a peer), the simulator's model; later
 * postgres. One conformance suite (meta_suite.c) runs over each. Keys and values are bytes: keys of 1..META_KEY_MAX bytes,
 * values up to META_VALUE_MAX. What finished with 0 is durable and seen by every later request anywhere.
 *
 * A request carries its arguments encoded in `in` and its answer in `out`, so that `remote` ships both as they are and a
 * driver's worker parses them (strictly: they may come from a peer). It finishes exactly once, later, on the loop's thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/error.h"
#include "env/env.h"

#define META_KEY_MAX   400		  /* bytes; LMDB allows 511 */
#define META_VALUE_MAX 65536		  /* bytes */
#define META_REQ_MAX   ((1u << 20) - 256) /* bytes of `in` or `out`: fits a frame */
#define META_RANGE_MAX 4096		  /* entries in one answer */

enum meta_op {
	META_GET, /* in: key. out: value. -ENOENT */
	META_RANGE, /* in: prefix, after, limit. out: (key, value)...; fewer than limit: the end, or META_MORE when the answer
			 was cut at META_REQ_MAX */
	META_TXN, /* in: any number of expect, put, delete. All or nothing; META_CONFLICT when an expectation does not hold
			 (out: index of the first such among all steps, u32). Expectations are about what was there before, not
			 about this transaction's own steps; of several steps on one key the last counts */
	META_LEASE, /* in: key, holder (u64, not 0), ttl_ms (1..META_LEASE_MAX_MS), epoch. out: holder u64, epoch u64, of whoever
			 has it now. 0: @holder has it now and for ttl_ms, in an epoch above @epoch: who has it so already keeps
			 his; a new grant raises it by one, from what is recorded or @epoch, whichever is higher; META_HELD:
			 somebody else has it; -EINVAL: what lies under the key is no lease record */
	META_RELEASE, /* in: key, holder, epoch. Ends the lease if @holder has it in @epoch; 0 either way. The epoch stays */
	META_RENEW, /* as META_LEASE, but grants nothing: 0: @holder has it in @epoch, now and for ttl_ms (also when that comes late,
			 if nobody else was granted it meanwhile); META_HELD: he has not, for somebody else has or had it, or
			 nobody (holder 0; epoch 0: the engine has never heard of it) */
};

/* Outcomes beside 0 and negative errno. */
enum { META_CONFLICT = 1, META_HELD = 2, META_MORE = 3 };

/*
 * Leases: record {holder, epoch} is durable under the lease's key (readable by GET as meta_lease_record), expiry lives in
 * the engine's memory: the granter waits 1.1 x ttl; after a restart every recorded holder counts as holding for one
 * META_LEASE_MAX_MS, so nobody else is granted before that (its own renewal is). A TXN may expect a lease record, which
 * fences out an overtaken holder. A released lease's record has holder 0. Only LEASE and RELEASE write these records.
 */
#define META_LEASE_MAX_MS 10000
#define META_EPOCH_MAX	  INT64_MAX /* that a request may name: no grant comes near the end of what 64 bits hold */
struct meta_lease_record {
	uint8_t holder_le[8], epoch_le[8];
};

struct meta_req {
	struct job job; /* the driver's */
	struct list link;
	struct meta *meta;
	enum meta_op op;
	struct buf in, out;
	int result;
	struct error error;
	void (*finish)(struct meta_req *req);
	void *arg; /* the submitter's, for finish */
};

struct meta_driver {
	const char *name;
	void (*submit)(struct meta *meta, struct meta_req *req); /* never calls finish from within */
	void (*free)(struct meta *meta);
};

/*
 * Rows that are not to be believed, nor changed, for a while: a request that touches a key that begins with one of the prefixes, or may, ends
 * with @why. Those of one fiber pass: it makes the rows.
 */
struct meta_gate {
	const char *const *prefixes; /* NULL behind the last */
	const void *passes;	     /* fiber_self(); NULL: nobody's */
	struct error why;
};

struct meta {
	uint32_t magic; /* META_MAGIC */
	const struct meta_driver *driver;
	struct env *env;
	const struct meta_gate *gate; /* NULL: everything is served */
	unsigned n_abandoned; /* requests under way that nobody waits for any more: cluster/calls.c counts them */
	const struct error *refusal; /* not NULL: what every request fails with, for the engine is not to be believed */
};
#define META_MAGIC 0x4154454d

/* Clears the answer and hands the request to the driver; `in` stays as it is. A refusal, too, comes by finish, later. */
void meta_submit(struct meta *meta, struct meta_req *req);
void meta_free(struct meta *meta);		/* accepts NULL; no request is under way */
struct meta_req *meta_req_new(enum meta_op op); /* NULL: no memory */
void meta_req_free(struct meta_req *req);

/*
 * Encoding of `in`; each returns 0, -ENOMEM or -EINVAL (sizes), then `in` is as it was. meta_put_* replace what `in` holds,
 * meta_txn_* add a step. Values of view {NULL, 0} in expect mean "absent"; {"", 0} is the empty value.
 */
int meta_put_get(struct meta_req *req, struct view key);
int meta_put_range(struct meta_req *req, struct view prefix, struct view after, uint32_t limit);
int meta_txn_expect(struct meta_req *req, struct view key, struct view value);
int meta_txn_put(struct meta_req *req, struct view key, struct view value);
int meta_txn_delete(struct meta_req *req, struct view key);
int meta_put_lease(struct meta_req *req, struct view key, uint64_t holder, uint32_t ttl_ms,
		   uint64_t epoch); /* also for RENEW, and for RELEASE (ttl 0) */

/* Decoding: of `out` for callers, of `in` for drivers. Strict; -EPROTO on malformed bytes. */
int meta_out_entry(struct view *rest, struct view *ret_key,
		   struct view *ret_value); /* META_RANGE; 0, or 1 at the end */
int meta_out_lease(struct view out, uint64_t *ret_holder, uint64_t *ret_epoch);
enum meta_step_kind { META_EXPECT_ABSENT = 1, META_EXPECT_VALUE, META_PUT, META_DELETE };
struct meta_step {
	enum meta_step_kind kind;
	struct view key, value;
};
int meta_in_step(struct view *rest, struct meta_step *ret); /* META_TXN; 0, or 1 at the end */
int meta_in_range(struct view in, struct view *ret_prefix, struct view *ret_after, uint32_t *ret_limit);
struct meta_lease {
	struct view key;
	uint64_t holder, epoch;
	uint32_t ttl_ms;
};
int meta_in_lease(struct view in, struct meta_lease *ret);
int meta_in_key(struct view in, struct view *ret_key); /* META_GET */

/* Encoding of `out`, for drivers: 0, -ENOMEM, or META_MORE when an entry does not fit into META_REQ_MAX any more. */
int meta_out_put_entry(struct buf *out, struct view key, struct view value);
int meta_out_put_lease(struct buf *out, uint64_t holder, uint64_t epoch);
int meta_out_put_conflict(struct buf *out, uint32_t index);
int meta_out_conflict(struct view out, uint32_t *ret_index); /* and its decoding: 0 or -EPROTO */
/* For drivers: finishes @req with @result on the loop's next turn. Its job must not be under way. */
void meta_finish_later(struct meta_req *req, int result);

/*
 * LMDB in the directory @path, which is made if only its parent is there. One batching writer: transactions that arrive while a
 * commit is under way share the next one. Values carry a CRC32C, so a flipped byte is -ERR_EDAMAGED, never a wrong value.
 * Waits for the disk: it reads the index once and checks it. -EBUSY: another process has it open; -ERR_EDAMAGED; -ENOENT,
 * -ENOTDIR, -EROFS, -EACCES, ... as the file system says.
 */
int meta_lmdb_open(struct env *env, const char *path, struct meta **ret, struct error *e);

/*
 * A meta engine reached by calling @call: ships op, in; answers result, out. Used with cluster's peer calls; written
 * against this call-back so that meta does not know the cluster.
 */
struct meta_remote_call {
	/* Sends the request somewhere; calls meta_remote_answer() exactly once, later. */
	void (*send)(void *arg, struct meta_req *req);
	void *arg;
};
int meta_remote_new(struct env *env, const struct meta_remote_call *call, struct meta **ret);
void meta_remote_answer(struct meta_req *req, int result, struct view out);
