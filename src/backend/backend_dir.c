/*
 * backend/backend_dir.c: the store in a directory, local or shared by many nodes (NFS).
 *
 * An object is a file whose path is its key. It is written as a private temporary in ".tmp" (whose name says which life of which
 * node it is of), synced, and then given its name:
 * by link(), which fails if the name is taken, or by rename(), which replaces. So a name never stands for a part of an object,
 * and of two writers with if_absent exactly one wins, on NFS too. No locks, no times.
 *
 * A name is durable once the directory that holds it is synced, and so is each directory above it: any of them may have been
 * made a moment ago by somebody who has not synced it yet. settle() does this for every answer that the caller may build upon.
 *
 * Each request is one job, straight-line code over env's file calls, and runs unchanged in the simulator. What the loop and
 * jobs share: a request and its upload, which belong to the job while it runs. The upload's account of parts is kept on the
 * loop alone, so parts may be under way at the same time.
 */
#include "backend/backend.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend_dir.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/hash.h"
#include "base/point.h"

#define PIECE_BYTES (256u << 10) /* copied to private memory, summed and written at a time */
/*
 * Of a read. A file's read-ahead grows with each step, and with it the pages of the kernel's cache; one large read of a file just
 * opened, announced or not, fills it with pages of 4 KiB: from disk 2.3 instead of 1.4 GB/s at 0.2 instead of 0.3 s/GiB (Linux 6.18,
 * ext4). And a step is hashed before it has left the core's cache.
 */
#define READ_STEP_BYTES (256u << 10)
#define SESSION_BYTES	16 /* random: names this process's temporaries apart from all others' */
#define PLACE_TRIES	16 /* to give a name while others remove the directory as empty */
#define UPLOAD_MAGIC	0x70754542
#define NODE_BYTES	64  /* of an env's name in a temporary's */
#define LITTER_MAX	256 /* temporaries that wait to be tried again; beyond it for the next start */

struct backend_dir {
	struct backend backend;
	struct dir *dir;
	char *path; /* for words */
	char session[2 * SESSION_BYTES + 1];
	char node[NODE_BYTES + 1];
	uint64_t serial; /* of the last temporary */
	char *litter[LITTER_MAX];
	unsigned n_litter;
	bool swept; /* of what this node's earlier lives have left */
	unsigned n_uploads;
};

struct backend_upload {
	uint32_t magic;
	struct backend_dir *owner;
	struct file *file; /* the temporary, while it is open */
	bool made;	   /* the temporary has a name, which is ours to remove */
	char temp[sizeof(BACKEND_DIR_TEMP) + NODE_BYTES + 2 * SESSION_BYTES + 48];
	char *litter; /* one of an earlier upload, to be removed in passing */
	bool sweep;   /* this one looks for what earlier lives have left */
	char key[BACKEND_KEY_MAX + 1];
	uint64_t written_bytes, end; /* loop's thread: sum of the parts that are done, end of the farthest */
};

static struct backend_dir *of(struct backend *backend)
{
	return container_of(backend, struct backend_dir, backend);
}

static const struct env_ops *ops_of(const struct backend_req *req)
{
	return req->backend->env->ops;
}

/* ---- words ---- */

static const char *key_of(const struct backend_req *req)
{
	return req->op == BACKEND_PROBE ? "the probe" : req->upload ? req->upload->key : req->key;
}

static int fail(struct backend_req *req, int r, const char *doing)
{
	return error_set(&req->error, r, "%s in %s, %s: %s", key_of(req), of(req->backend)->path, doing,
			 error_meaning(r));
}

/* ---- temporaries and uploads ---- */

static struct backend_upload *upload_new(struct backend_dir *b, const char *key)
{
	struct backend_upload *upload = calloc(1, sizeof(*upload));

	if (!upload)
		return NULL;
	upload->magic = UPLOAD_MAGIC;
	upload->owner = b;
	(void)snprintf(upload->temp, sizeof(upload->temp), BACKEND_DIR_TEMP "/%s.%" PRIu64 "-%s-%" PRIx64, b->node,
		       b->backend.incarnation, b->session, ++b->serial);
	if (b->n_litter)
		upload->litter = b->litter[--b->n_litter];
	upload->sweep = b->backend.incarnation && !b->swept;
	b->swept |= upload->sweep;
	(void)snprintf(upload->key, sizeof(upload->key), "%s", key);
	b->n_uploads++;
	return upload;
}

/* A temporary that could not be removed now: on a full disk its bytes are missed. */
static void keep_litter(struct backend_dir *b, char *name)
{
	if (name && b->n_litter < LITTER_MAX)
		b->litter[b->n_litter++] = name;
	else
		free(name);
}

static void upload_free(struct backend_upload *upload)
{
	if (!upload)
		return;
	keep_litter(upload->owner, upload->litter);
	if (upload->made)
		keep_litter(upload->owner, strdup(upload->temp));
	if (upload->file) /* only when the env is shutting down and ran no job: a process's end would do the same */
		upload->owner->backend.env->ops->file_close(upload->file);
	upload->owner->n_uploads--;
	free(upload);
}

/* Of this node, by an earlier life? ".tmp/NODE.INCARNATION-SESSION-SERIAL", without the first five. */
static bool is_left_over(const struct backend_dir *b, const char *name)
{
	size_t len = strlen(b->node);
	char *end;

	if (strncmp(name, b->node, len) != 0 || name[len] != '.')
		return false;
	uint64_t incarnation = strtoull(name + len + 1, &end, 10);
	if (strchr(end, '.')) /* of another node, whose name begins like that */
		return false;
	return end > name + len + 1 && *end == '-' && incarnation < b->backend.incarnation &&
	       !strstr(end, b->session); /* of this life, before it had joined */
}

struct sweeping {
	const struct backend_dir *b;
	char *found[LITTER_MAX];
	unsigned n;
};

static int sweep_one(void *arg, const char *name, bool is_dir)
{
	struct sweeping *sweeping = arg;
	char *path = NULL;

	if (is_dir || !is_left_over(sweeping->b, name))
		return 0;
	if (asprintf(&path, BACKEND_DIR_TEMP "/%s", name) >= 0)
		sweeping->found[sweeping->n++] = path;
	return sweeping->n == LITTER_MAX;
}

/*
 * Once in a life: what this node's earlier lives have left. They are dead, or overtaken: their writer's link will fail, since nothing is
 * there to be linked. Other nodes' are their own affair.
 */
static void sweep(const struct env_ops *ops, const struct backend_dir *b)
{
	struct sweeping *sweeping = calloc(1, sizeof(*sweeping));

	if (!sweeping)
		return;
	sweeping->b = b;
	(void)ops->list(b->dir, BACKEND_DIR_TEMP, sweep_one, sweeping);
	while (sweeping->n) {
		char *path = sweeping->found[--sweeping->n];

		(void)ops->unlink(b->dir, path);
		free(path);
	}
	free(sweeping);
}

static int temp_make(struct backend_req *req, struct backend_upload *upload)
{
	const struct env_ops *ops = ops_of(req);
	struct dir *dir = upload->owner->dir;
	const unsigned flags = FILE_WRITE | FILE_CREATE | FILE_EXCLUSIVE;
	int r = ops->file_open(dir, upload->temp, flags, &upload->file);

	if (r == -ENOENT) {
		r = ops->mkdirs(dir, BACKEND_DIR_TEMP);
		if (!r)
			r = ops->file_open(dir, upload->temp, flags, &upload->file);
	}
	if (r)
		return fail(req, r, "making a temporary in " BACKEND_DIR_TEMP);
	upload->made = true;
	if (upload->sweep)
		sweep(ops, upload->owner);
	return 0;
}

static void temp_close(const struct env_ops *ops, struct backend_upload *upload)
{
	ops->file_close(upload->file);
	upload->file = NULL;
}

static bool is_removed(const struct env_ops *ops, struct dir *dir, const char *name)
{
	int r = ops->unlink(dir, name);

	return !r || r == -ENOENT;
}

/*
 * Removes the temporary, whatever became of it, and one that could not be removed before. A failure leaves a file that nobody reads,
 * and that is tried again with a later upload.
 */
static void temp_drop(const struct env_ops *ops, struct backend_upload *upload)
{
	struct dir *dir = upload->owner->dir;

	if (upload->file)
		temp_close(ops, upload);
	if (upload->made && is_removed(ops, dir, upload->temp))
		upload->made = false;
	if (upload->litter && is_removed(ops, dir, upload->litter)) {
		free(upload->litter);
		upload->litter = NULL;
	}
}

/*
 * Writes vec number @i at @offset by way of @piece: what is summed is what is written, though an application may be writing
 * to its memory at the same time.
 */
static int write_vec(struct backend_req *req, struct file *file, uint64_t offset, size_t i, uint8_t *piece)
{
	struct backend_gauge *gauge = req->op == BACKEND_PART ? req->gauge : NULL;
	const struct backend_vec *vec = &req->vec[i];
	uint32_t crc = 0;

	for (size_t at = 0; at < vec->len;) {
		size_t n = vec->len - at < PIECE_BYTES ? vec->len - at : PIECE_BYTES;

		memcpy(piece, (const uint8_t *)vec->ptr + at, n);
		crc = crc32c(crc, piece, n);
		int r = ops_of(req)->file_write(file, offset + at, piece, n);
		if (r)
			return fail(req, r, "writing");
		at += n;
		if (gauge)
			atomic_fetch_add_explicit(&gauge->moved, n, memory_order_relaxed);
		if (gauge && atomic_load_explicit(&gauge->stop, memory_order_relaxed))
			return fail(req, -ECANCELED, "writing");
	}
	if (crc != vec->crc)
		return error_set(&req->error, -ERR_ECHANGED,
				 "%s: %zu bytes changed after their CRC had been taken (vec %zu)", key_of(req),
				 vec->len, i);
	return 0;
}

static int write_vecs(struct backend_req *req, struct file *file, uint64_t offset)
{
	_cleanup_(cleanup_mem) uint8_t *piece = malloc(PIECE_BYTES);

	if (!piece)
		return fail(req, -ENOMEM, "writing");
	for (size_t i = 0; i < req->n_vec; i++) {
		int r = write_vec(req, file, offset, i, piece);
		if (r)
			return r;
		offset += req->vec[i].len;
	}
	return 0;
}

/* ---- names ---- */

/* Cuts the last part off @path. False: it was a single part, and "." is left, the store's own directory. */
static bool path_up(char *path)
{
	char *slash = strrchr(path, '/');

	if (slash) {
		*slash = 0;
		return true;
	}
	memcpy(path, ".", 2);
	return false;
}

/*
 * Makes what is seen at @key durable, its absence too: syncs every directory above it. With @gone_is_fine a directory that
 * is not there is passed by (the removal of its name is made durable by the next one).
 */
static int settle(struct backend_req *req, const char *key, bool gone_is_fine)
{
	char path[BACKEND_KEY_MAX + 1];
	bool more = true;

	memcpy(path, key, strlen(key) + 1);
	while (more) {
		more = path_up(path);
		int r = ops_of(req)->sync_dir(of(req->backend)->dir, path);
		if (r && !(gone_is_fine && (r == -ENOENT || r == -ENOTDIR)))
			return fail(req, r == -ENOENT ? -EIO : r,
				    "syncing a directory above it"); /* not "no such key" */
	}
	return 0;
}

static int make_parents(struct backend_req *req, const char *key)
{
	char path[BACKEND_KEY_MAX + 1];

	memcpy(path, key, strlen(key) + 1);
	return path_up(path) ? ops_of(req)->mkdirs(of(req->backend)->dir, path) : 0;
}

/* 0, BACKEND_EXISTS, or an error without words. */
static int place_new(const struct env_ops *ops, struct backend_upload *upload)
{
	struct dir *dir = upload->owner->dir;
	struct file_stat st;
	int r = ops->link(dir, upload->temp, upload->key);

	if (!r)
		point_reached(POINT_OBJECT_LINKED);
	if (!r)
		return 0;
	/* A second name of our own file is our doing, whatever the answer says: NFS may send twice, or lose the answer. */
	int looked = ops->stat(dir, upload->temp, &st);
	if (!looked && st.nlink >= 2)
		return 0;
	if (r != -EEXIST)
		return r;
	if (looked) /* whose object it is cannot be told */
		return looked == -ENOENT ? -EIO : looked;
	return !ops->stat(dir, upload->key, &st) && st.is_dir ? -EISDIR : BACKEND_EXISTS;
}

/* Does the key hold what this PUT wrote? Said of small objects alone: larger ones are never put over others. */
static bool holds_ours(const struct backend_req *req, const char *key)
{
	const struct env_ops *ops = ops_of(req);
	_cleanup_(cleanup_mem) uint8_t *piece = malloc(PIECE_BYTES);
	struct file *file;
	uint64_t at = 0, size;

	if (!piece || ops->file_open(of(req->backend)->dir, key, FILE_READ, &file))
		return false;
	bool ours = !ops->file_size(file, &size);
	for (size_t i = 0; ours && i < req->n_vec; i++) {
		const struct backend_vec *vec = &req->vec[i];

		ours = vec->len <= PIECE_BYTES && ops->file_read(file, at, piece, vec->len) == (ssize_t)vec->len &&
		       crc32c(0, piece, vec->len) == vec->crc;
		at += vec->len;
	}
	ops->file_close(file);
	return ours && at == size;
}

static int place_over(struct backend_req *req, struct backend_upload *upload)
{
	const struct env_ops *ops = ops_of(req);
	struct dir *dir = upload->owner->dir;
	struct file_stat st;
	int r = ops->rename(dir, upload->temp, upload->key);

	/* As above. But if this process was overtaken by a later life of its node, the temporary was swept. */
	if (r && ops->stat(dir, upload->temp, &st) == -ENOENT)
		r = holds_ours(req, upload->key) ? 0 : -EIO;
	if (!r)
		upload->made = false;
	return r;
}

/* Gives the temporary its name. Others may remove a directory as empty just before: then it is made again. */
static int place(struct backend_req *req, struct backend_upload *upload)
{
	int r = -ENOENT;

	for (int i = 0; i < PLACE_TRIES && r == -ENOENT; i++) {
		if (i) {
			r = make_parents(req, upload->key);
			if (r && r != -ENOENT)
				break;
		}
		r = req->if_absent ? place_new(ops_of(req), upload) : place_over(req, upload);
	}
	if (r == -ENOTDIR || r == -EISDIR)
		return error_set(&req->error, r, "%s: one of the two keys is a path prefix of the other", upload->key);
	if (r == -EPERM || r == -EOPNOTSUPP || r == -EMLINK)
		return fail(req, r, "linking; the file system must have hard links");
	return r < 0 ? fail(req, r, "giving it its name") : r;
}

/* From a whole temporary to a durable object. The temporary is left to temp_drop(). */
static int publish(struct backend_req *req, struct backend_upload *upload)
{
	int r = ops_of(req)->file_sync(upload->file);
	if (r)
		return fail(req, r, "syncing its bytes");
	temp_close(ops_of(req), upload);

	/*
	 * Another's object can be gone once more, its directory, too: when its writer's machine died before anybody synced its name,
	 * or when it was deleted meanwhile.
	 */
	for (int i = 0; i < PLACE_TRIES; i++) {
		struct file_stat st;
		int placed = place(req, upload);

		if (placed < 0)
			return placed;
		r = settle(req, upload->key, placed == BACKEND_EXISTS);
		if (r)
			return r;
		if (placed != BACKEND_EXISTS || ops_of(req)->stat(upload->owner->dir, upload->key, &st) != -ENOENT)
			return placed;
	}
	return fail(req, -EIO, "giving it its name, which appears and vanishes");
}

/*
 * Removes the directories above @key that are empty now, also those that somebody else has left. Any failure just ends it;
 * so does somebody's new object. env's unlink would take an object as well, hence the look before; that one comes to stand
 * there in between is what "no key is ever a path prefix of another" rules out.
 */
static void prune(struct backend_req *req, const char *key)
{
	const struct env_ops *ops = ops_of(req);
	struct dir *dir = of(req->backend)->dir;
	char path[BACKEND_KEY_MAX + 1];
	struct file_stat st;

	memcpy(path, key, strlen(key) + 1);
	while (path_up(path)) {
		int r = ops->stat(dir, path, &st);

		if (!r)
			r = st.is_dir ? ops->unlink(dir, path) : -ENOTDIR;
		if (r && r != -ENOENT)
			return;
	}
}

/* ---- the requests, each on a worker ---- */

/* A path that leads through a file, or to a directory, is as absent as one that leads nowhere. */
static int as_absent(int r)
{
	return r == -ENOTDIR || r == -EISDIR ? -ENOENT : r;
}

/* What it read, or a failure. */
static ssize_t get_step(struct backend_req *req, struct file *file)
{
	size_t left = req->len - req->got, len = left < READ_STEP_BYTES ? left : READ_STEP_BYTES;
	uint8_t *to = (uint8_t *)req->dst + req->got;
	ssize_t n = ops_of(req)->file_read(file, req->offset + req->got, to, len);

	if (n > 0 && req->hasher)
		hasher_update(req->hasher, to, (size_t)n);
	if (n > 0)
		req->got += (size_t)n;
	return n;
}

static int run_get(struct backend_req *req)
{
	const struct env_ops *ops = ops_of(req);
	struct file *file;
	int r = as_absent(ops->file_open(of(req->backend)->dir, req->key, FILE_READ, &file));

	if (r)
		return fail(req, r, "opening");
	ssize_t n;
	do
		n = get_step(req, file);
	while (n == READ_STEP_BYTES && req->got < req->len);
	ops->file_close(file);
	return n < 0 ? fail(req, as_absent((int)n), "reading") : 0;
}

static int run_head(struct backend_req *req)
{
	struct file_stat st;
	int r = as_absent(ops_of(req)->stat(of(req->backend)->dir, req->key, &st));

	if (!r && st.is_dir)
		r = -ENOENT;
	if (r)
		return fail(req, r, "looking for it");
	req->size = st.size;
	return 0;
}

static int run_put(struct backend_req *req)
{
	int r = temp_make(req, req->upload);

	if (!r)
		r = write_vecs(req, req->upload->file, 0);
	if (!r)
		r = publish(req, req->upload);
	temp_drop(ops_of(req), req->upload);
	return r;
}

static int commit(struct backend_req *req)
{
	struct backend_upload *upload = req->upload;
	uint64_t size;
	int r = ops_of(req)->file_size(upload->file, &size);

	if (r)
		return fail(req, r, "asking for its size");
	if (size != req->len || upload->end != req->len || upload->written_bytes != req->len)
		return error_set(&req->error, -EINVAL,
				 "%s: committed with %zu bytes, but its parts have %" PRIu64 " and end at %" PRIu64
				 " of %" PRIu64,
				 upload->key, req->len, upload->written_bytes, upload->end, size);
	return publish(req, upload);
}

static int run_commit(struct backend_req *req)
{
	int r = commit(req);

	temp_drop(ops_of(req), req->upload);
	return r;
}

/* 0: @req's key is no object now, -ENOENT: nor was it before. */
static int unlink_object(struct backend_req *req)
{
	struct dir *dir = of(req->backend)->dir;
	struct file_stat st;
	int r = as_absent(ops_of(req)->stat(dir, req->key, &st));

	if (!r)
		r = st.is_dir ? -ENOENT : ops_of(req)->unlink(dir, req->key);
	return r;
}

/*
 * What was not there is settled like what we removed: the unlink may have been another's, a moment ago. And if its machine died
 * before anybody synced that, the object is back; hence the look after the sync.
 */
static int run_delete(struct backend_req *req)
{
	bool settled = false;
	int r = 0;

	for (int i = 0; i < PLACE_TRIES && !r; i++) {
		r = unlink_object(req);
		if (r == -ENOENT && settled) {
			prune(req, req->key);
			return 0;
		}
		if (r && r != -ENOENT)
			return fail(req, r, "deleting");
		r = settle(req, req->key, true);
		settled = true;
	}
	return r ? r : fail(req, -EIO, "deleting what comes back again and again");
}

static int probe_read(struct backend_req *req, const char *name, const char *text, size_t len)
{
	const struct env_ops *ops = ops_of(req);
	char back[sizeof(req->upload->temp)];
	struct file *file;
	int r = ops->file_open(of(req->backend)->dir, name, FILE_READ, &file);

	if (r)
		return fail(req, r, "opening what was written");
	ssize_t n = ops->file_read(file, 0, back, len);
	ops->file_close(file);
	if (n < 0)
		return fail(req, (int)n, "reading what was written");
	if ((size_t)n != len || memcmp(back, text, len) != 0)
		return error_set(&req->error, -ERR_EDAMAGED, "the probe: what was read is not what had been written");
	return 0;
}

/* What publishing needs: a write that lasts, a link that works, and one that refuses a name that is taken. */
static int probe(struct backend_req *req, const char *second)
{
	const struct env_ops *ops = ops_of(req);
	struct backend_upload *upload = req->upload;
	struct dir *dir = upload->owner->dir;
	size_t len = strlen(second);
	int r = ops->file_write(upload->file, 0, second, len);

	if (r)
		return fail(req, r, "writing");
	r = ops->file_sync(upload->file);
	if (r)
		return fail(req, r, "syncing a file");
	r = ops->link(dir, upload->temp, second);
	if (r)
		return fail(req, r, "linking; the file system must have hard links");
	r = probe_read(req, second, second, len);
	if (!r && ops->link(dir, upload->temp, second) != -EEXIST)
		r = error_set(&req->error, -EIO, "the probe: a link to a name that is taken was not refused");
	if (ops->unlink(dir, second) && !r)
		r = error_set(&req->error, -EIO, "the probe: cannot be removed again from " BACKEND_DIR_TEMP);
	if (r)
		return r;
	r = ops->sync_dir(dir, BACKEND_DIR_TEMP);
	return r ? fail(req, r, "syncing a directory") : 0;
}

static int run_probe(struct backend_req *req)
{
	char second[sizeof(req->upload->temp) + 2];
	int r = temp_make(req, req->upload);

	(void)snprintf(second, sizeof(second), "%s.2", req->upload->temp);
	if (!r)
		r = probe(req, second);
	temp_drop(ops_of(req), req->upload);
	return r;
}

static int run_list(struct backend_req *req)
{
	return backend_dir_list(req, of(req->backend)->dir);
}

static void run(struct job *job)
{
	struct backend_req *req = container_of(job, struct backend_req, job);

	switch (req->op) {
	case BACKEND_GET:
		req->result = run_get(req);
		break;
	case BACKEND_HEAD:
		req->result = run_head(req);
		break;
	case BACKEND_PUT:
		req->result = run_put(req);
		break;
	case BACKEND_BEGIN:
		req->result = temp_make(req, req->upload);
		break;
	case BACKEND_PART:
		req->result = write_vecs(req, req->upload->file, req->offset);
		break;
	case BACKEND_COMMIT:
		req->result = run_commit(req);
		break;
	case BACKEND_ABORT:
		temp_drop(ops_of(req), req->upload);
		break;
	case BACKEND_LIST:
		req->result = run_list(req);
		break;
	case BACKEND_DELETE:
		req->result = run_delete(req);
		break;
	case BACKEND_PROBE:
		req->result = run_probe(req);
		break;
	}
}

/* ---- the loop's side ---- */

static void account_part(struct backend_req *req)
{
	uint64_t at = req->offset;

	for (size_t i = 0; i < req->n_vec; i++)
		at += req->vec[i].len;
	req->upload->written_bytes += at - req->offset;
	if (at > req->upload->end && at > req->offset)
		req->upload->end = at;
}

/* The job is over, or never was: the upload is the caller's again, or gone. */
static void conclude(struct backend_req *req)
{
	bool over = req->op == BACKEND_PUT || req->op == BACKEND_COMMIT || req->op == BACKEND_ABORT ||
		    req->op == BACKEND_PROBE;

	if (req->op == BACKEND_PART && !req->result)
		account_part(req);
	if (over || (req->op == BACKEND_BEGIN && req->result)) {
		upload_free(req->upload);
		req->upload = NULL;
	}
}

static void finish(struct job *job)
{
	struct backend_req *req = container_of(job, struct backend_req, job);

	conclude(req);
	req->finish(req);
}

static void submit(struct backend *backend, struct backend_req *req)
{
	struct backend_dir *b = of(backend);
	int r = 0;

	if (req->op == BACKEND_PUT || req->op == BACKEND_BEGIN || req->op == BACKEND_PROBE) {
		req->upload = upload_new(b, req->key);
		r = req->upload ? 0 : -ENOMEM;
	} else if (req->op == BACKEND_PART || req->op == BACKEND_COMMIT || req->op == BACKEND_ABORT) {
		CHECK_MAGIC(req->upload, UPLOAD_MAGIC);
		CHECK(req->upload->owner == b);
	}

	req->job.lane = LANE_STORE;
	req->job.run = run;
	req->job.finish = finish;
	if (!r)
		r = backend->env->ops->offload(backend->env, &req->job);
	if (r) {
		(void)error_set(&req->error, r, "%s: %s", key_of(req), error_meaning(r));
		req->result = r;
		conclude(req);
		backend_finish_later(req, r);
	}
}

static void dir_free(struct backend *backend)
{
	struct backend_dir *b = of(backend);

	CHECK(b->n_uploads == 0);
	while (b->n_litter)
		free(b->litter[--b->n_litter]);
	if (b->dir)
		backend->env->ops->dir_close(b->dir);
	free(b->path);
	free(b);
}

CLEANUP_OF(struct backend *, backend_free);

static const struct backend_driver driver = { .name = "dir", .submit = submit, .free = dir_free };

/* The env's name is its node's. A test's may be anything. */
static void name_node(struct backend_dir *b)
{
	(void)snprintf(b->node, sizeof(b->node), "%s", b->backend.env->name);
	for (char *at = b->node; *at; at++)
		if (!isalnum((unsigned char)*at) && !strchr("._-", *at))
			*at = '_';
}

int backend_dir_open(struct env *env, const char *path, bool create, struct backend **ret, struct error *e)
{
	_cleanup_(cleanup_backend_free) struct backend *backend = NULL;
	struct backend_dir *b = calloc(1, sizeof(*b));
	uint8_t session[SESSION_BYTES];

	if (!b)
		return error_set(e, -ENOMEM, "%s: no memory", path);
	backend = &b->backend;
	*backend = (struct backend){ .magic = BACKEND_MAGIC, .driver = &driver, .env = env };
	b->path = strdup(path);
	if (!b->path)
		return error_set(e, -ENOMEM, "%s: no memory", path);
	backend->where = b->path;

	int r = env->ops->dir_open(env, path, create, &b->dir, e);
	if (r)
		return r;
	env->ops->random(env, session, sizeof(session));
	hex_encode(b->session, session, sizeof(session));
	name_node(b);
	*ret = TAKE(backend);
	return 0;
}
