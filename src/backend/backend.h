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
 * with ".", at most BACKEND_KEY_MAX bytes; others are answered -EINVAL. No key is ever a proper path prefix of another.
 *
 * What a request has put or deleted is durable when it finishes with 0, and so is the object that BACKEND_EXISTS speaks of.
 * GET, HEAD and LIST promise less: they may show what its writer has not made durable yet. So a failed PUT or COMMIT, whose
 * outcome is unknown, is settled by another PUT with if_absent and, after BACKEND_EXISTS, by reading what is there.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"
#include "base/error.h"
#include "base/hash.h"
#include "env/env.h"

#define BACKEND_KEY_MAX	 1024  /* bytes, without the final 0 */
#define BACKEND_LIST_MAX 65536 /* keys in one answer to LIST */

/*
 * So long may a reader be told that there is no object which another node has put already: NFS looks for names that it has not found
 * again when its attribute cache ends. Whoever knows that the object is there asks again until then.
 */
#define BACKEND_NAME_LATE_MS 4000

enum backend_op {
	BACKEND_GET,   /* [offset, offset+len) into dst; got < len only at the object's end; -ENOENT */
	BACKEND_HEAD,  /* size; -ENOENT */
	BACKEND_PUT,   /* the object whole, durable when it finishes; if_absent: BACKEND_EXISTS when the key is taken,
			   the present object untouched. Without if_absent the last writer wins whole */
	BACKEND_BEGIN, /* starts an upload for key; the handle is left in `upload` */
	BACKEND_PART, /* vec at offset of upload; parts do not overlap, in any order, holes are an error at commit. A part
			   that failed may be sent again */
	BACKEND_COMMIT, /* durable under its key, as PUT; `len` is the whole size, else -EINVAL; if_absent honoured. Consumes
			   the upload, whatever the result, and clears `upload` */
	BACKEND_ABORT, /* gives the upload back, whatever the result, and clears `upload` */
	BACKEND_LIST, /* keys with prefix `key`, greater than `after`, in byte order, at most `len` of them, into `out` as
			   0-terminated strings; got = how many; fewer than len: the end. Prefix is a whole path "a/b/", or
			   "" for all. len is 1..BACKEND_LIST_MAX */
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

/* Of parts under way, between their requester and the driver's threads. */
struct backend_gauge {
	_Atomic uint64_t moved; /* bytes that the driver has handed over so far */
	_Atomic bool stop;	/* what is left of them is not wanted: a part may end soon, with -ECANCELED */
};

struct backend_req {
	struct job job; /* the driver's */
	struct backend *backend;
	enum backend_op op;
	char key[BACKEND_KEY_MAX + 1];
	char after[BACKEND_KEY_MAX + 1]; /* LIST: "" from the start */
	uint64_t offset;
	size_t len;
	void *dst;	       /* GET */
	struct hasher *hasher; /* GET: fed what arrives in dst, in order, while it is in the core's cache; or NULL */
	const struct backend_vec *vec;
	size_t n_vec;
	bool if_absent;
	struct backend_upload *upload;
	struct backend_gauge *gauge; /* PART, or NULL */

	int result; /* 0, BACKEND_EXISTS, negative */
	size_t got;
	uint64_t size;
	struct buf out;
	struct error error; /* words for a negative result */

	void (*finish)(struct backend_req *req);
};

struct backend_driver {
	const char *name;
	/* Never calls finish from within. Any number may be under way; of one upload, parts may be, other requests only alone. */
	void (*submit)(struct backend *backend, struct backend_req *req);
	void (*free)(struct backend *backend); /* no request is under way, no upload open */
};

struct backend {
	uint32_t magic; /* BACKEND_MAGIC */
	const struct backend_driver *driver;
	const char *where; /* for words: the driver's, such as the directory's path; NULL: it has none */
	struct env *env;
	unsigned n_abandoned; /* requests under way that nobody waits for any more: cluster/calls.c counts them */
	uint64_t
		incarnation; /* of this node, once it has joined its cluster: nobody with its name and a lower one writes here */
};
#define BACKEND_MAGIC 0x646e4542

/* Checks the arguments, clears the answer, and hands the request to the driver. A refusal, too, comes by finish, later. */
void backend_submit(struct backend *backend, struct backend_req *req);
void backend_free(struct backend *backend); /* accepts NULL */
bool backend_key_is_valid(const char *key);
bool backend_part_is_valid(const char *part); /* one part of a key, "/" not among it */
/* For drivers: finishes @req with @result on the loop's next turn. Its job must not be under way. */
void backend_finish_later(struct backend_req *req, int result);

/*
 * A directory, local or shared (NFS). Objects are files below it; private temporaries lie in ".tmp" of the same file
 * system. PUT: write, fsync, link() (if_absent; EEXIST with our own inode behind it is success: NFS may send twice) or
 * rename, fsync of the directory. No locks, no mtimes; a failed fsync abandons the file. The directory must exist unless
 * @create.
 */
int backend_dir_open(struct env *env, const char *path, bool create, struct backend **ret, struct error *e);
