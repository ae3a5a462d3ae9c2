/*
 * meta/meta_lmdb.c: the embedded engine. This file opens an index and directs requests: each read is a job of its own in a
 * read transaction; everything else waits in a queue, and one job at a time takes what has gathered there and commits it as
 * one LMDB transaction, so that many requests share one sync of the disk.
 *
 * An index has one owner: leases lie in the owner's memory. It holds a lock on the file "owner.lock" while it is open.
 */
#include "meta/meta_lmdb.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"

#define FILE_MODE 0600
#define DIR_MODE  0700

static struct lmdb *of(struct meta *meta)
{
	return container_of(meta, struct lmdb, meta);
}

/* ---- errors ---- */

static int lmdb_errno(int rc)
{
	if (rc >= 0)
		return -rc;
	switch (rc) {
	case MDB_NOTFOUND:
		return -ENOENT;
	case MDB_MAP_FULL:
	case MDB_DBS_FULL:
	case MDB_TXN_FULL:
		return -ENOSPC;
	case MDB_READERS_FULL:
		return -EAGAIN;
	case MDB_BAD_VALSIZE:
		return -EINVAL;
	case MDB_PANIC: /* the write of a head has failed: this file is not used any more */
	case LMDB_UNREADABLE:
		return -EIO;
	default: /* pages that are not what they should be */
		return -ERR_EDAMAGED;
	}
}

int lmdb_fail(struct lmdb *l, struct error *e, int rc, const char *doing)
{
	if (rc == MDB_MAP_FULL)
		return error_set(e, -ENOSPC, "the index in %s, %s: it has reached its limit", l->path, doing);
	return error_set(e, lmdb_errno(rc), "the index in %s, %s: %s", l->path, doing,
			 rc == LMDB_ASSERTED   ? "what it holds makes no sense" :
			 rc == LMDB_UNREADABLE ? "the disk does not give a page" :
						 mdb_strerror(rc));
}

static _Thread_local sigjmp_buf *escape; /* out of LMDB, while lmdb_guarded() runs on this thread */

static void lmdb_asserted(MDB_env *db, const char *text)
{
	if (escape)
		siglongjmp(*escape, LMDB_ASSERTED); /* else LMDB aborts, as it would have without us */
}

/* A mapped page that the disk does not give is a signal at whoever touches it. Anybody else's is what it would have been. */
static void on_bus_error(int number)
{
	if (escape)
		siglongjmp(*escape, LMDB_UNREADABLE);
	signal(number, SIG_DFL);
	raise(number);
}

static void catch_bus_errors(void)
{
	const struct sigaction action = { .sa_handler = on_bus_error };

	(void)sigaction(SIGBUS, &action, NULL); /* cannot fail: the number is one that may be caught */
}

int lmdb_guarded(int (*fn)(void *arg), void *arg)
{
	sigjmp_buf here;
	int r;

	CHECK(!escape);
	escape = &here;
	r = sigsetjmp(here, true);
	if (!r)
		r = fn(arg);
	escape = NULL;
	return r;
}

/* ---- opening ---- */

/* Syncs the directory @path: names in it survive a crash. 0 or negative errno. */
static int sync_path(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int r = fd < 0 || fsync(fd) ? -errno : 0;

	if (fd >= 0)
		close(fd);
	return r;
}

static int make_dir(struct lmdb *l, struct error *e)
{
	_cleanup_(cleanup_mem) char *parent = NULL;
	int r = 0;

	if (mkdir(l->path, DIR_MODE) == 0) {
		if (asprintf(&parent, "%s/..", l->path) < 0) {
			parent = NULL;
			return error_set(e, -ENOMEM, "the index in %s: no memory", l->path);
		}
		r = sync_path(parent);
	} else if (errno != EEXIST) {
		r = -errno;
	}
	return r ? error_set(e, r, "the index in %s: making its directory: %s", l->path, error_meaning(r)) : 0;
}

static int lock_refused(struct lmdb *l, int err, struct error *e)
{
	char text[32];

	if (err != EWOULDBLOCK)
		return error_set(e, -err, "the index in %s: owner.lock: %s", l->path, error_meaning(-err));
	ssize_t n = pread(l->owner_fd, text, sizeof(text) - 1, 0);
	text[n > 0 ? n : 0] = 0;
	text[strcspn(text, "\n")] = 0;
	return error_set(e, -EBUSY, "the index in %s is open elsewhere (%s)", l->path, *text ? text : "no pid known");
}

static int lock(struct lmdb *l, struct error *e)
{
	_cleanup_(cleanup_mem) char *path = NULL;
	char text[32];

	if (asprintf(&path, "%s/owner.lock", l->path) < 0) {
		path = NULL;
		return error_set(e, -ENOMEM, "the index in %s: no memory", l->path);
	}
	l->owner_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, FILE_MODE);
	if (l->owner_fd < 0)
		return error_set(e, -errno, "the index in %s: owner.lock: %s", l->path, error_meaning(-errno));
	if (flock(l->owner_fd, LOCK_EX | LOCK_NB))
		return lock_refused(l, errno, e);
	int n = snprintf(text, sizeof(text), "pid %ld\n", (long)getpid());
	if (ftruncate(l->owner_fd, 0) ||
	    pwrite(l->owner_fd, text, (size_t)n, 0) < n) /* for words only, yet it tells early */
		return error_set(e, -errno, "the index in %s: owner.lock: %s", l->path, error_meaning(-errno));
	return 0;
}

int lmdb_sync_dir(struct lmdb *l)
{
	return sync_path(l->path);
}

static int open_db(struct lmdb *l, struct error *e)
{
	/* No read-ahead: keys are looked up one by one, and memory belongs to the jobs on this node. */
	const unsigned flags = MDB_NOTLS | MDB_NORDAHEAD;
	MDB_txn *txn;
	int rc = mdb_env_create(&l->db);

	if (rc)
		return lmdb_fail(l, e, rc, "starting");
	rc = mdb_env_set_mapsize(l->db, l->map_bytes);
	if (!rc)
		rc = mdb_env_set_maxreaders(l->db, META_LMDB_READERS_MAX);
	if (!rc)
		rc = mdb_env_set_assert(l->db, lmdb_asserted);
	if (!rc)
		rc = mdb_env_open(l->db, l->path, flags, FILE_MODE);
	if (rc)
		return lmdb_fail(l, e, rc, "opening");

	rc = mdb_txn_begin(l->db, NULL, MDB_RDONLY, &txn);
	if (rc)
		return lmdb_fail(l, e, rc, "opening");
	rc = mdb_dbi_open(txn, NULL, 0, &l->dbi);
	if (rc) {
		mdb_txn_abort(txn);
		return lmdb_fail(l, e, rc, "opening");
	}
	rc = mdb_txn_commit(txn);
	return rc ? lmdb_fail(l, e, rc, "opening") : 0;
}

int lmdb_open_db(struct lmdb *l, struct error *e)
{
	int r = open_db(l, e);

	if (r && l->db) {
		mdb_env_close(l->db);
		l->db = NULL;
	}
	return r;
}

static int open_all(struct lmdb *l, struct error *e)
{
	int r = make_dir(l, e);

	if (!r)
		r = lock(l, e);
	if (!r)
		r = lmdb_check(l, e);
	if (!r)
		r = lmdb_open_db(l, e);
	if (r)
		return r;
	r = lmdb_sync_dir(l); /* data.mdb may be new */
	return r ? error_set(e, r, "the index in %s: syncing its directory: %s", l->path, error_meaning(r)) : 0;
}

/* ---- the loop's side ---- */

static void write_next(struct lmdb *l);

static void read_run(struct job *job)
{
	struct meta_req *req = container_of(job, struct meta_req, job);
	struct lmdb *l = of(req->meta);

	req->result = req->op == META_GET ? lmdb_answer_get(l, req) : lmdb_answer_range(l, req);
}

static void read_finish(struct job *job)
{
	struct meta_req *req = container_of(job, struct meta_req, job);

	of(req->meta)->n_reads--;
	req->finish(req);
}

/* Hands what the batch holds back to its owners, who may submit more meanwhile. */
static void batch_finish(struct job *job)
{
	struct batch *batch = container_of(job, struct batch, job);
	struct lmdb *l = container_of(batch, struct lmdb, batch);
	struct list done;

	list_init(&done);
	for (unsigned i = 0; i < batch->n; i++)
		list_append(&done, &batch->reqs[i]->link);
	l->writing = false;
	write_next(l);
	for (struct list *node; (node = list_pop(&done));) {
		struct meta_req *req = list_entry(node, struct meta_req, link);

		req->finish(req);
	}
}

static void fill_batch(struct lmdb *l)
{
	size_t bytes = 0;

	l->batch.n = 0;
	while (l->batch.n < META_BATCH_MAX && !list_empty(&l->queue)) {
		struct meta_req *req = list_entry(l->queue.next, struct meta_req, link);

		bytes += req->in.len;
		if (l->batch.n && bytes > META_BATCH_BYTES_MAX)
			return;
		list_remove(&req->link);
		l->n_queued--;
		l->batch.reqs[l->batch.n++] = req;
	}
}

static int refuse(struct lmdb *l, struct meta_req *req, int r)
{
	return error_set(&req->error, r, "the index in %s takes no requests: %s", l->path, error_meaning(r));
}

/* Starts the writer if it rests and somebody waits. */
static void write_next(struct lmdb *l)
{
	while (!l->writing && !list_empty(&l->queue)) {
		fill_batch(l);
		l->batch.now_ns = env_now(l->meta.env);
		l->batch.job = (struct job){ .run = lmdb_batch_run, .finish = batch_finish };
		int r = l->meta.env->ops->offload(l->meta.env, &l->batch.job);
		l->writing = !r;
		for (unsigned i = 0; r && i < l->batch.n; i++)
			meta_finish_later(l->batch.reqs[i], refuse(l, l->batch.reqs[i], r));
	}
}

static void submit_read(struct lmdb *l, struct meta_req *req)
{
	req->job.run = read_run;
	req->job.finish = read_finish;
	int r = l->meta.env->ops->offload(l->meta.env, &req->job);
	if (r)
		meta_finish_later(req, refuse(l, req, r));
	else
		l->n_reads++;
}

static void submit(struct meta *meta, struct meta_req *req)
{
	struct lmdb *l = of(meta);

	switch (req->op) {
	case META_GET:
	case META_RANGE:
		submit_read(l, req);
		return;
	case META_TXN:
	case META_LEASE:
	case META_RELEASE:
	case META_RENEW:
		if (l->n_queued >= META_QUEUE_MAX) {
			meta_finish_later(req, refuse(l, req, -EAGAIN));
			return;
		}
		list_append(&l->queue, &req->link);
		l->n_queued++;
		write_next(l);
		return;
	}
	meta_finish_later(req, refuse(l, req, -ENOSYS)); /* from a newer peer */
}

static MDB_env *volatile left_open; /* so that what it holds is not called lost */

static void lmdb_free(struct meta *meta)
{
	struct lmdb *l = of(meta);

	CHECK(!l->writing && !l->n_queued && !l->n_reads);
	if (l->stuck)
		left_open = l->db; /* its lock is still this process's */
	else if (l->db)
		mdb_env_close(l->db);
	if (l->owner_fd >= 0)
		close(l->owner_fd); /* and with it the lock */
	for (struct map_slot *slot = map_first(&l->leases); slot; slot = map_next(slot))
		free(map_value(slot));
	map_fini(&l->leases);
	if (l->swappable)
		pthread_rwlock_destroy(&l->swap);
	free(l->path);
	free(l);
}

static const struct meta_driver driver = { .name = "lmdb", .submit = submit, .free = lmdb_free };

CLEANUP_OF(struct meta *, meta_free);

/* A writer of the lock comes once in a disk's life, and must not wait for an end of reads that never comes. */
static int make_swappable(struct lmdb *l)
{
	pthread_rwlockattr_t attr;
	int r = pthread_rwlockattr_init(&attr);

	if (r)
		return -r;
	(void)pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	r = pthread_rwlock_init(&l->swap, &attr);
	(void)pthread_rwlockattr_destroy(&attr);
	l->swappable = !r;
	return -r;
}

int meta_lmdb_open_sized(struct env *env, const char *path, uint64_t map_bytes, struct meta **ret, struct error *e)
{
	_cleanup_(cleanup_meta_free) struct meta *meta = NULL;
	struct lmdb *l = calloc(1, sizeof(*l));

	if (!l)
		return error_set(e, -ENOMEM, "the index in %s: no memory", path);
	meta = &l->meta;
	*meta = (struct meta){ .magic = META_MAGIC, .driver = &driver, .env = env };
	l->owner_fd = -1;
	l->opened_ns = env_now(env);
	list_init(&l->queue);
	map_init(&l->leases);
	l->sweep_at = META_LEASES_FEW;
	l->path = strdup(path);
	if (!l->path)
		return error_set(e, -ENOMEM, "the index in %s: no memory", path);
	int r = make_swappable(l);
	if (r)
		return error_set(e, r, "the index in %s: %s", path, error_meaning(r));
	l->map_bytes = map_bytes;
	catch_bus_errors();
	r = open_all(l, e);
	if (r)
		return r;
	*ret = TAKE(meta);
	return 0;
}

int meta_lmdb_open(struct env *env, const char *path, struct meta **ret, struct error *e)
{
	return meta_lmdb_open_sized(env, path, META_LMDB_MAP_BYTES, ret, e);
}
