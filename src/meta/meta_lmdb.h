/*
 * meta/meta_lmdb.h: what the files of the LMDB driver share.
 *
 * meta_lmdb.c       opening, and the loop's side: who waits, one batch at a time
 * meta_lmdb_check.c reads an index through before LMDB does
 * meta_lmdb_read.c  answers to GET and RANGE
 * meta_lmdb_write.c a batch on its worker: one transaction, every request its own outcome
 * meta_lmdb_mend.c  a new file for the index, after a write or sync of the old one has failed
 */
#pragma once

#include <lmdb.h>
#include <pthread.h>

#include "base/map.h"
#include "meta/meta.h"

#define META_LMDB_MAP_BYTES   (UINT64_C(16) << 30) /* the most that an index can take; the file grows to it as needed */
#define META_LMDB_READERS_MAX 512		   /* reads at the same time: more than an env has workers */
#define META_BATCH_MAX	      256		   /* requests in one commit */
#define META_BATCH_BYTES_MAX  (4u << 20)	   /* of their `in`, in one commit */
#define META_QUEUE_MAX	      65536		   /* requests that wait for the writer */
#define META_LEASES_MAX	      65536		   /* leases whose end is remembered */
#define META_LEASES_FEW	      64		   /* among so many no ended ones are looked for */
#define META_MEND_RETRY_MS    1000		   /* between two attempts to move the index to a new file */
#define META_TOLD_MS	      10000		   /* between two lines in the log that it cannot be written */

#define LMDB_RECORD_HEAD 4 /* CRC32C of key and value, before the value */

/* The end of a lease. Who has it stands in its record; what holds without an entry here, see lease_end(). */
struct lease {
	uint64_t expires_ns;
};

/* What one batch did to `leases`, so that it can be undone when the commit fails. */
struct lease_change {
	struct lease *lease;
	uint64_t before_ns;
};

/* Requests that share a commit. Belongs to the loop while !lmdb.writing, to the worker while it is. */
struct batch {
	struct job job;
	struct meta_req *reqs[META_BATCH_MAX];
	unsigned n;
	uint64_t now_ns; /* when it set out */
	struct lease_change changes[META_BATCH_MAX];
	unsigned n_changes;
};

struct lmdb {
	struct meta meta;
	char *path;
	int owner_fd; /* -1, or locked: no other process has the index open */
	MDB_env *db;
	MDB_dbi dbi;
	uint64_t opened_ns;
	struct list queue; /* of meta_req.link */
	unsigned n_queued, n_reads;
	bool writing;
	struct batch batch;
	struct map leases; /* the batch's: key -> struct lease */
	size_t sweep_at;   /* the batch's: when there are more, those that have ended are forgotten */
	int broken;	   /* the batch's: 0, or LMDB's error after which nothing is written to this file any more */
	int failed; /* the batch's: with what the last commit that failed did so; of a head LMDB says MDB_PANIC from then on */
	bool stuck; /* the batch's: LMDB was left in the middle of a write: nothing is written until the process ends */
	uint64_t mended_ns;    /* the batch's: when that was tried last; 0: never */
	uint64_t told_ns;      /* the batch's: when the log was told last that a write has failed; 0: never */
	pthread_rwlock_t swap; /* held for reading while a read uses `db`, for writing while another takes its place */
	bool swappable;	       /* `swap` is initialised */
	uint64_t map_bytes;
};

/* What LMDB's own codes have no word for: */
#define LMDB_ASSERTED	(-40001) /* an assertion in it failed, which only damage explains */
#define LMDB_UNREADABLE (-40002) /* the disk did not give a page of the map */
static inline bool lmdb_was_left(int rc)
{
	return rc == LMDB_ASSERTED || rc == LMDB_UNREADABLE;
}

/* For tests: as meta_lmdb_open(), with another size of the map. */
int meta_lmdb_open_sized(struct env *env, const char *path, uint64_t map_bytes, struct meta **ret, struct error *e);

/* ---- errors (meta_lmdb.c) ---- */

/* Words for LMDB's @rc. Returns a negative errno, -ERR_EDAMAGED for what only a damaged file explains. */
int lmdb_fail(struct lmdb *l, struct error *e, int rc, const char *doing);

/*
 * Runs @fn(@arg) so that what would end the process becomes an error: an assertion inside LMDB is LMDB_ASSERTED, a page that the disk
 * does not give is LMDB_UNREADABLE. What @fn had opened in LMDB is still open then; a transaction that writes must not even be
 * aborted, since LMDB keeps cursors of its own on the stack that is gone. Not nested.
 */
int lmdb_guarded(int (*fn)(void *arg), void *arg);

/* ---- opening (meta_lmdb.c) ---- */

int lmdb_open_db(struct lmdb *l, struct error *e); /* data.mdb, which has been checked; l->db is NULL when it fails */
int lmdb_sync_dir(struct lmdb *l); /* names in the index's directory survive a crash. 0 or negative errno */

/* ---- checking (meta_lmdb_check.c) ---- */

/* The whole of data.mdb, before it is opened; one that is not there is fine. 0, -ERR_EDAMAGED, or why it cannot be read. */
int lmdb_check(struct lmdb *l, struct error *e);

/* ---- reading (meta_lmdb_read.c) ---- */

/* The value in the record that lies under @key: 0 or MDB_CORRUPTED. */
int lmdb_record_value(struct view key, struct view record, struct view *ret);
/* The value under @key, valid until the transaction writes or ends: 0, MDB_NOTFOUND, MDB_CORRUPTED, ... */
int lmdb_get(struct lmdb *l, MDB_txn *txn, struct view key, struct view *ret);
int lmdb_answer_get(struct lmdb *l, struct meta_req *req);
int lmdb_answer_range(struct lmdb *l, struct meta_req *req);

/* ---- mending (meta_lmdb_mend.c) ---- */

/*
 * Copies what the index holds into a new file, which takes the place of the old one. On the writer's worker. 0: `broken` is 0 again;
 * else why not, in LMDB's codes or errno's, with words in @e; reads go on with what there is.
 */
int lmdb_mend(struct lmdb *l, struct error *e);

/* ---- writing (meta_lmdb_write.c) ---- */

void lmdb_batch_run(struct job *job);
