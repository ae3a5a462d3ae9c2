/*
 * meta/meta_lmdb_write.c: a batch on its worker. All requests of a batch share one LMDB transaction, yet each has its own
 * outcome: a request first looks whether it can be done (expectations, who has the lease) and only then writes, so that a
 * conflict has nothing to undo. What LMDB itself refuses in the middle (no space) undoes the whole transaction; then each
 * request is tried again in one of its own.
 *
 * A lease's record is in the index, its end in memory. Both change together or not at all: batch.changes undoes the latter.
 */
#include "meta/meta_lmdb.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/log.h"

#define NO_SPACE_BYTES 65536 /* a file system with less to give is full */

/* Requests [from, to) of the batch in one transaction. */
struct attempt {
	struct lmdb *l;
	MDB_txn *txn;
	unsigned from, to;
	struct meta_req *req; /* at hand */
};

/* ---- records ---- */

static int put(struct attempt *a, struct view key, struct view value)
{
	MDB_val k = { .mv_size = key.len, .mv_data = (void *)key.ptr };
	MDB_val data = { .mv_size = LMDB_RECORD_HEAD + value.len };
	int rc = mdb_put(a->txn, a->l->dbi, &k, &data, MDB_RESERVE); /* sets mv_data: room in the page */

	if (rc)
		return rc;
	uint8_t *to = data.mv_data;
	store_le32(to, crc32c(crc32c(0, key.ptr, key.len), value.ptr, value.len));
	if (value.len)
		memcpy(to + LMDB_RECORD_HEAD, value.ptr, value.len);
	return 0;
}

static int remove_key(struct attempt *a, struct view key)
{
	MDB_val k = { .mv_size = key.len, .mv_data = (void *)key.ptr };
	int rc = mdb_del(a->txn, a->l->dbi, &k, NULL);

	return rc == MDB_NOTFOUND ? 0 : rc;
}

/* ---- transactions ---- */

/* 0 or LMDB's error; the answer is in ret_holds. */
static int expectation_holds(struct attempt *a, const struct meta_step *step, bool *ret_holds)
{
	struct view value;
	int rc = lmdb_get(a->l, a->txn, step->key, &value);

	if (rc && rc != MDB_NOTFOUND)
		return rc;
	*ret_holds = step->kind == META_EXPECT_ABSENT ? rc == MDB_NOTFOUND : !rc && view_equal(value, step->value);
	return 0;
}

/* Looks at every step before anything is written: decides req->result, which 0 leaves to txn_apply(). */
static int txn_look(struct attempt *a)
{
	struct view rest = view_buf(&a->req->in);
	struct meta_step step;
	uint32_t index = 0, conflict = UINT32_MAX;
	int r;

	for (; !(r = meta_in_step(&rest, &step)); index++) {
		bool holds = true;

		if (conflict == UINT32_MAX && (step.kind == META_EXPECT_ABSENT || step.kind == META_EXPECT_VALUE)) {
			int rc = expectation_holds(a, &step, &holds);
			if (rc)
				return rc;
		}
		if (!holds)
			conflict = index;
	}
	if (r < 0)
		a->req->result = error_set(&a->req->error, r, "step %u of a meta transaction is malformed", index);
	else if (conflict != UINT32_MAX)
		a->req->result = meta_out_put_conflict(&a->req->out, conflict) ?
					 error_set(&a->req->error, -ENOMEM, "no memory for a conflict's answer") :
					 META_CONFLICT;
	return 0;
}

static int txn_apply(struct attempt *a)
{
	struct view rest = view_buf(&a->req->in);
	struct meta_step step;
	int rc = 0;

	while (!rc && !meta_in_step(&rest, &step)) {
		if (step.kind == META_PUT)
			rc = put(a, step.key, step.value);
		else if (step.kind == META_DELETE)
			rc = remove_key(a, step.key);
	}
	return rc;
}

static int txn(struct attempt *a)
{
	int rc = txn_look(a);

	return rc || a->req->result ? rc : txn_apply(a);
}

/* ---- leases ---- */

/* A recorded holder whose lease's end is not remembered has it from before a restart, or let it run out long ago. */
static uint64_t lease_end(const struct lmdb *l, const struct lease *lease)
{
	return lease ? lease->expires_ns : l->opened_ns + META_LEASE_MAX_MS * NS_PER_MS;
}

/*
 * Forgets ended leases when twice as many are remembered as lived the last time: every version that a node ever read had one, and as many
 * grants share what looking costs. Unless there is no room, not so soon after the opening that a lease which is not remembered counts as
 * held. To be called while no change is noted.
 */
static void leases_sweep(struct lmdb *l)
{
	bool many = l->leases.n > l->sweep_at && l->batch.now_ns >= lease_end(l, NULL);

	CHECK(!l->batch.n_changes);
	if (!many && l->leases.n + l->batch.n <= META_LEASES_MAX)
		return;
	for (struct map_slot *slot = map_first(&l->leases), *next; slot; slot = next) {
		struct lease *lease = map_value(slot);

		next = map_next(slot);
		if (lease->expires_ns <= l->batch.now_ns)
			free(map_remove(&l->leases, map_key(slot)));
	}
	l->sweep_at = 2 * l->leases.n + META_LEASES_FEW;
}

/* Sets the end of the lease under @key, so that it can be undone. 0, -ENOSPC, -ENOMEM. */
static int lease_set_end(struct lmdb *l, struct view key, uint64_t expires_ns)
{
	struct lease *lease = map_get(&l->leases, key);

	if (!lease) {
		if (l->leases.n >= META_LEASES_MAX)
			return -ENOSPC;
		lease = calloc(1, sizeof(*lease));
		if (!lease)
			return -ENOMEM;
		lease->expires_ns = lease_end(l, NULL);
		if (map_put(&l->leases, key, lease)) {
			free(lease);
			return -ENOMEM;
		}
	}
	CHECK(l->batch.n_changes < META_BATCH_MAX);
	l->batch.changes[l->batch.n_changes++] = (struct lease_change){ lease, lease->expires_ns };
	lease->expires_ns = expires_ns;
	return 0;
}

static void leases_undo(struct batch *batch)
{
	while (batch->n_changes) {
		struct lease_change *change = &batch->changes[--batch->n_changes];

		change->lease->expires_ns = change->before_ns;
	}
}

/* Who has the lease under @key, 0: nobody. 0, or LMDB's error; req->result is set if something else lies there. */
static int lease_read(struct attempt *a, struct view key, uint64_t *ret_holder, uint64_t *ret_epoch)
{
	struct view value;
	int rc = lmdb_get(a->l, a->txn, key, &value);

	*ret_holder = *ret_epoch = 0;
	if (rc)
		return rc == MDB_NOTFOUND ? 0 : rc;
	if (meta_out_lease(value, ret_holder, ret_epoch)) /* the record has the answer's layout */
		a->req->result = error_set(&a->req->error, -EINVAL,
					   "%.*s: %zu bytes lie under this key, which are no lease", (int)key.len,
					   (const char *)key.ptr, value.len);
	return 0;
}

static int lease_write(struct attempt *a, struct view key, uint64_t holder, uint64_t epoch)
{
	struct meta_lease_record record;

	store_le64(record.holder_le, holder);
	store_le64(record.epoch_le, epoch);
	return put(a, key, view_of(&record, sizeof(record)));
}

static int lease_answer(struct meta_req *req, int result, uint64_t holder, uint64_t epoch)
{
	int r = meta_out_put_lease(&req->out, holder, epoch);

	req->result = r ? error_set(&req->error, r, "no memory for a lease's answer") : result;
	return 0;
}

/* Grants or renews @want, of which @holder and @epoch are what is recorded. */
static int lease_give(struct attempt *a, const struct meta_lease *want, uint64_t holder, uint64_t epoch)
{
	struct lmdb *l = a->l;
	bool renewal = a->req->op == META_RENEW;
	bool has = holder == want->holder && (renewal ? epoch == want->epoch : epoch > want->epoch);
	bool others = holder && holder != want->holder &&
		      l->batch.now_ns < lease_end(l, map_get(&l->leases, want->key));

	if (!has && (renewal || others))
		return lease_answer(a->req, META_HELD, holder, epoch);

	/* The granter waits 1.1 of it, from now on, which is after the holder asked. */
	int r = lease_set_end(l, want->key, l->batch.now_ns + want->ttl_ms * NS_PER_MS / 10 * 11);
	if (r) {
		a->req->result = error_set(&a->req->error, r, "%.*s: cannot remember one more lease: %s",
					   (int)want->key.len, (const char *)want->key.ptr, error_meaning(r));
		return 0;
	}
	if (!has) {
		epoch = (epoch > want->epoch ? epoch : want->epoch) + 1;
		int rc = lease_write(a, want->key, want->holder, epoch);
		if (rc)
			return rc;
	}
	return lease_answer(a->req, 0, want->holder, epoch);
}

static int lease(struct attempt *a)
{
	bool release = a->req->op == META_RELEASE;
	struct meta_lease want;
	uint64_t holder, epoch;
	int r = meta_in_lease(view_buf(&a->req->in), &want);

	if (!r && release == (want.ttl_ms != 0))
		r = -EINVAL;
	if (r) {
		a->req->result = error_set(&a->req->error, r, "a malformed request for a lease");
		return 0;
	}
	int rc = lease_read(a, want.key, &holder, &epoch);
	if (rc || a->req->result)
		return rc;
	if (!release)
		return lease_give(a, &want, holder, epoch);
	return holder == want.holder && epoch == want.epoch ? lease_write(a, want.key, 0, epoch) : 0;
}

/* ---- a transaction of LMDB for some requests ---- */

/* Everything but the commit. */
static int attempt_apply(void *arg)
{
	struct attempt *a = arg;

	for (unsigned i = a->from; i < a->to; i++) {
		a->req = a->l->batch.reqs[i];
		a->req->result = 0;
		a->req->out.len = 0;
		a->req->error.code = 0;
		int rc = a->req->op == META_TXN ? txn(a) : lease(a);
		if (rc)
			return rc;
	}
	return 0;
}

static int attempt_commit(void *arg)
{
	struct attempt *a = arg;
	MDB_txn *t = a->txn;

	a->txn = NULL; /* consumed, whatever the outcome */
	return mdb_txn_commit(t);
}

/*
 * LMDB 0.9 calls a write that the disk had no room for, but in part, EIO. It happens to pages that no head names yet, so
 * nothing is lost but the transaction.
 */
static int is_it_space(const struct lmdb *l, int rc)
{
	struct statvfs fs;

	if (rc != EIO || statvfs(l->path, &fs))
		return rc;
	return (uint64_t)fs.f_bavail * fs.f_frsize < NO_SPACE_BYTES ? ENOSPC : rc;
}

/*
 * After these nothing more is written to this file: what the failed call has left, in LMDB or on the disk, is not known, and a later
 * sync that succeeds says nothing of what this one lost. A lack of memory, and a damaged page that one request has met, are not of
 * this kind. Nor is a lack of space, whether a write tells it or the sync: what is lost then are pages that no head names, which
 * the next transaction writes anew, all of them. (Where a head itself cannot be written, LMDB says MDB_PANIC from then on.)
 */
static bool is_fatal(int rc, bool committing)
{
	if (rc == MDB_PANIC || lmdb_was_left(rc))
		return true;
	return committing && rc != ENOSPC && rc != ENOMEM && rc != EDQUOT && rc != MDB_MAP_FULL && rc != MDB_TXN_FULL;
}

/* 0: each request has its outcome and all is durable. Else nothing happened to any, and LMDB's error is returned. */
static int attempt_run(struct lmdb *l, unsigned from, unsigned to)
{
	struct attempt a = { .l = l, .from = from, .to = to };
	bool committing = false;
	int rc = mdb_txn_begin(l->db, NULL, 0, &a.txn);

	if (!rc)
		rc = lmdb_guarded(attempt_apply, &a);
	if (!rc) {
		committing = true;
		rc = is_it_space(l, lmdb_guarded(attempt_commit, &a));
	}
	if (rc) {
		l->stuck |= lmdb_was_left(rc);
		if (a.txn && !lmdb_was_left(rc))
			mdb_txn_abort(a.txn);
		leases_undo(&l->batch);
		if (is_fatal(rc, committing))
			l->broken = rc == MDB_PANIC && l->failed ? l->failed : rc;
		if (committing)
			l->failed = rc;
	}
	l->batch.n_changes = 0;
	return rc;
}

static void fail(struct lmdb *l, struct meta_req *req, int rc)
{
	req->out.len = 0;
	req->result = lmdb_fail(l, &req->error, rc,
				l->stuck  ? "which is not written any more until the daemon is started anew" :
				l->broken ? "which is not written any more until it can be moved to a new file" :
					    "writing");
}

static void tell_not_written(const struct error *e)
{
	logm(LOG_ERROR, "meta.index-not-written", "words=\"%s\"", e->text);
}

/* 0: the index may be written. Tried now and then, since it reads and writes all of it. */
static int mend(struct lmdb *l)
{
	struct error e = { 0 };
	int was = l->broken;

	if (!was || l->stuck || (l->mended_ns && l->batch.now_ns - l->mended_ns < META_MEND_RETRY_MS * NS_PER_MS))
		return was;
	l->mended_ns = l->batch.now_ns;
	int rc = lmdb_mend(l, &e);
	if (rc)
		tell_not_written(&e);
	else
		logm(LOG_WARN, "meta.index-moved", "index=%s words=\"%s\"", l->path, mdb_strerror(was));
	return rc ? was : 0;
}

/* Of a write that may succeed the next time; most often there is no space. What breaks the file is mend()'s to tell. */
static void tell_of_write(struct lmdb *l, const struct meta_req *req)
{
	if (l->broken || (l->told_ns && l->batch.now_ns - l->told_ns < META_TOLD_MS * NS_PER_MS))
		return;
	l->told_ns = l->batch.now_ns;
	tell_not_written(&req->error);
}

void lmdb_batch_run(struct job *job)
{
	struct batch *batch = container_of(job, struct batch, job);
	struct lmdb *l = container_of(batch, struct lmdb, batch);

	batch->n_changes = 0;
	leases_sweep(l);
	int rc = mend(l);
	if (!rc)
		rc = attempt_run(l, 0, batch->n);
	for (unsigned i = 0; rc && i < batch->n; i++) {
		int own = l->broken ? l->broken : batch->n == 1 ? rc : attempt_run(l, i, i + 1);

		if (!own)
			continue;
		fail(l, batch->reqs[i], own);
		tell_of_write(l, batch->reqs[i]);
	}
	if (rc)
		(void)mend(l); /* without it reads fail, too, once a head could not be written */
}
