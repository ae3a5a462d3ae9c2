/*
 * backend/backend.h: the store behind (T3), which alone is the authority: a flat name space of immutable objects.
 *
 * Drivers: dir (a directory), the simulator's model store, later s3. One conformance suite (backend_suite.c) runs over each.
 * Drivers hold no policy: deadlines, retries and who may write what belong to the callers.
 *
 * A request is one heap object that owns or pins all that it touches: once submitted it cannot be called back, it finishes
 * exactly once, later, on the loop's thread, and is its owner's again. Whoever stops waiting lets finish() free it.
 *
 * Keys are relative paths: parts of [A-Za-z0-9._%-] separated by '/', no empty part, no part "." or "..", none that begins
 * with ".", at most BACKEND_KEY_MAX bytes; a driver answers -EINVAL to others. No key is a proper path prefix of another.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/error.h"
#include "env/env.h"

#define BACKEND_KEY_MAX 1024

enum backend_op {
	BACKEND_GET,	/* [offset, offset+len) into dst; got < len only at the object's end; -ENOENT */
	BACKEND_HEAD,	/* size; -ENOENT */
	BACKEND_PUT,	/* the object whole, durable when it finishes; if_absent: BACKEND_EXISTS when the key is taken,
			   the present object untouched. Without if_absent the last writer wins whole */
	BACKEND_BEGIN,	/* starts an upload for key; the handle is left in `upload` */
	BACKEND_PART,	/* vec at offset of upload; parts do not overlap, in any order, holes are an error at commit */
	BACKEND_COMMIT, /* durable under its key, as PUT; `len` is the whole size; if_absent honoured. Consumes the upload */
	BACKEND_ABORT,	/* gives the upload back */
	BACKEND_LIST,	/* keys with prefix `key`, greater than `after`, in byte order, at most `len` of them, into `out` as
			   0-terminated strings; got = how many; fewer than len: the end. Prefix is a whole path "a/b/" */
	BACKEND_DELETE, /* 0 also when it was not there */
	BACKEND_PROBE,	/* does the store work: writes, reads and deletes a private object; -EROFS, -ENOSPC, ... */
};

/* Outcomes beside 0 and negative errno. */
enum { BACKEND_EXISTS = 1 };

/*
 * Bytes to store. A span may be written by an application at any time: the driver copies each piece to private memory,
 * sums that copy and stores it; if the sum is not crc, the request fails with -ERR_ECHANGED and nothing is published.
 */
struct backend_vec {
	const void *ptr;
	size_t len;
	uint32_t crc; /* CRC32C of the bytes */
};

struct backend_upload; /* the driver's */

struct backend_req {
	struct job job; /* the driver's */
	struct backend *backend;
	enum backend_op op;
	char key[BACKEND_KEY_MAX + 1];
	char after[BACKEND_KEY_MAX + 1]; /* LIST: "" from the start */
	uint64_t offset;
	size_t len;
	void *dst; /* GET */
	const struct backend_vec *vec;
	size_t n_vec;
	bool if_absent;
	struct backend_upload *upload;

	int result; /* 0, BACKEND_EXISTS, negative */
	size_t got;
	uint64_t size;
	struct buf out;
	struct error error; /* words for a negative result */

	void (*finish)(struct backend_req *req);
};

struct backend_driver {
	const char *name;
	/* Never calls finish from within. Any number may be under way; those of one upload are the caller's to order. */
	void (*submit)(struct backend *backend, struct backend_req *req);
	void (*free)(struct backend *backend); /* no request is under way */
};

struct backend {
	uint32_t magic; /* BACKEND_MAGIC */
	const struct backend_driver *driver;
	struct env *env;
};
#define BACKEND_MAGIC 0x646e4542

void backend_submit(struct backend *backend, struct backend_req *req); /* checks the key, then the driver */
void backend_free(struct backend *backend);			       /* accepts NULL */
bool backend_key_is_valid(const char *key);

/*
 * A directory, local or shared (NFS). Objects are files below it; private temporaries lie in ".tmp" of the same file
 * system. PUT: write, fsync, link() (if_absent; EEXIST with our own inode behind it is success: NFS may send twice) or
 * rename, fsync of the directory. No locks, no mtimes; a failed fsync abandons the file. The directory must exist unless
 * @create.
 */
int backend_dir_open(struct env *env, const char *path, bool create, struct backend **ret, struct error *e);
