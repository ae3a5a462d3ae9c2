/*
 * backend/backend_dir_list.c: keys in byte order, out of directories that are in the byte order of their own names.
 *
 * The two orders differ: "a-b" comes before "a/b", though the directory "a" comes before "a-b" ('%', '-' and '.' sort before
 * '/'). So within one directory an entry sorts by its name, a directory by its name and a '/'. Then a walk in depth, always
 * into the first entry that is left, meets the keys in order.
 *
 * The walk holds one frame per level: the next entries of that directory, at most FRAME_ENTRIES_MAX. Of a larger one the rest
 * is read when those are used up. Directories and entries that end before `after` are never opened.
 */
#include "backend/backend_dir.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"

#define FRAME_ENTRIES_MAX 1024
#define FRAMES_MAX	  (BACKEND_KEY_MAX / 2 + 1) /* "a/a/a/..." */
#define NAME_MAX_BYTES	  255			    /* of a file's name, in the file systems that we know */

/* Part of a directory: names in their order, each 0-terminated, those of directories with a '/'. */
struct frame {
	size_t path_len; /* of walk->path that leads here: "" or ending in '/' */
	struct buf names;
	size_t next;   /* offset in names */
	size_t last;   /* offset of the last name */
	unsigned n;    /* names */
	bool has_more; /* the directory has more after the last one */
};

struct walk {
	struct backend_req *req;
	struct dir *dir;
	char path[BACKEND_KEY_MAX + 2]; /* of the frame at hand */
	struct frame *frames;
	size_t n_frames, cap_frames;
};

/* One reading of one directory. Directories wait in `held` while names may still come that sort before name + '/'. */
struct reading {
	struct walk *walk;
	struct frame *frame;		  /* its names so far */
	const char *after;		  /* last name of the reading before, "" at first */
	char held[NAME_MAX_BYTES + 1];	  /* the longest name that waits; the others are heads of it */
	uint8_t held_len[NAME_MAX_BYTES]; /* of those that wait, rising */
	size_t n_held;
	int result;
};

static void walk_fini(struct walk *walk)
{
	for (size_t i = 0; i < walk->n_frames; i++)
		buf_fini(&walk->frames[i].names);
	free(walk->frames);
	walk->frames = NULL;
	walk->n_frames = 0;
}

/* Does all that is at or below @path (a key, or a directory with its '/') come at or before the request's `after`? */
static bool is_over(const struct backend_req *req, const char *path, size_t len)
{
	if (strcmp(path, req->after) > 0)
		return false;
	return path[len - 1] != '/' || strncmp(req->after, path, len) != 0;
}

/* Appends a name to the frame. 0: go on; 1: the reading is over. */
static int take(struct reading *reading, const char *name, size_t len, bool is_dir)
{
	struct walk *walk = reading->walk;
	struct frame *frame = reading->frame;
	char *path = walk->path + frame->path_len; /* room is checked: the frame's path stays, its end is rewritten */
	size_t path_len = frame->path_len + len + is_dir;

	if (path_len > BACKEND_KEY_MAX)
		return 0; /* no key, nor does any lie below */
	memcpy(path, name, len);
	memcpy(path + len, is_dir ? "/" : "", 2 - !is_dir);
	if (strcmp(path, reading->after) <= 0 || is_over(walk->req, walk->path, path_len))
		return 0;
	if (frame->n == FRAME_ENTRIES_MAX) {
		frame->has_more = true;
		return 1;
	}
	size_t at = frame->names.len;
	reading->result = buf_append(&frame->names, path, len + is_dir + 1);
	if (reading->result)
		return 1;
	frame->last = at;
	frame->n++;
	return 0;
}

/* Takes the directories that wait and that @name (NULL: the end) does not come before. */
static int release_held(struct reading *reading, const char *name)
{
	while (reading->n_held) {
		size_t len = reading->held_len[reading->n_held - 1];

		if (name && strncmp(name, reading->held, len) == 0 && name[len] < '/')
			return 0;
		reading->n_held--;
		if (take(reading, reading->held, len, true))
			return 1;
	}
	return 0;
}

static int each(void *arg, const char *name, bool is_dir)
{
	struct reading *reading = arg;
	size_t len = strlen(name);

	if (len > NAME_MAX_BYTES || !backend_part_is_valid(name))
		return 0; /* temporaries, and what others have left here */
	if (release_held(reading, name))
		return 1;
	if (!is_dir)
		return take(reading, name, len, false);
	/* All that still waits is a head of this name, so its lengths are shorter, and different. */
	CHECK(reading->n_held < NAME_MAX_BYTES);
	memcpy(reading->held, name, len + 1);
	reading->held_len[reading->n_held++] = (uint8_t)len;
	return 0;
}

/* Fills the top frame with what comes after the names that it has. */
static int frame_read(struct walk *walk)
{
	struct frame *frame = &walk->frames[walk->n_frames - 1];
	struct frame next = { .path_len = frame->path_len };
	char path[sizeof(walk->path)];
	size_t len = frame->path_len;
	struct reading reading = {
		.walk = walk,
		.frame = &next,
		.after = frame->n ? (const char *)frame->names.ptr + frame->last : "",
	};

	memcpy(path, len ? walk->path : ".", len ? len - 1 : 1); /* without its '/' */
	path[len ? len - 1 : 1] = 0;
	int r = walk->req->backend->env->ops->list(walk->dir, path, each, &reading);
	if (r >= 0 && !next.has_more && !reading.result)
		(void)release_held(&reading, NULL);
	if (r >= 0)
		r = reading.result;
	if (r == -ENOENT || r == -ENOTDIR) /* removed as empty meanwhile, or a prefix under which nothing is */
		r = 0;

	buf_fini(&frame->names);
	*frame = next;
	if (r)
		return error_set(&walk->req->error, r, "listing %.400s: %s", path, error_meaning(r));
	return 0;
}

/* Enters the directory walk->path[0..@path_len). */
static int frame_push(struct walk *walk, size_t path_len)
{
	CHECK(walk->n_frames < FRAMES_MAX);
	if (walk->n_frames == walk->cap_frames) {
		size_t cap = walk->cap_frames + walk->cap_frames / 2 + 8;
		struct frame *frames = realloc(walk->frames, cap * sizeof(*frames));

		if (!frames)
			return error_set(&walk->req->error, -ENOMEM, "listing: no memory");
		walk->frames = frames;
		walk->cap_frames = cap;
	}
	walk->frames[walk->n_frames++] = (struct frame){ .path_len = path_len };
	return frame_read(walk);
}

/* What to do when the top frame's names are used up. */
static int frame_refill(struct walk *walk)
{
	struct frame *frame = &walk->frames[walk->n_frames - 1];

	if (frame->has_more)
		return frame_read(walk);
	buf_fini(&frame->names);
	walk->n_frames--;
	return 0;
}

static int step(struct walk *walk)
{
	struct frame *frame = &walk->frames[walk->n_frames - 1];
	struct backend_req *req = walk->req;

	if (frame->next == frame->names.len)
		return frame_refill(walk);

	const char *name = (const char *)frame->names.ptr + frame->next;
	size_t len = strlen(name), path_len = frame->path_len + len;
	frame->next += len + 1;
	memcpy(walk->path + frame->path_len, name, len + 1);
	if (walk->path[path_len - 1] == '/')
		return frame_push(walk, path_len);
	if (buf_append(&req->out, walk->path, path_len + 1))
		return error_set(&req->error, -ENOMEM, "listing: no memory");
	req->got++;
	return 0;
}

int backend_dir_list(struct backend_req *req, struct dir *dir)
{
	_cleanup_(walk_fini) struct walk walk = { .req = req, .dir = dir };
	size_t len = strlen(req->key);

	memcpy(walk.path, req->key, len + 1);
	int r = frame_push(&walk, len);
	while (!r && walk.n_frames && req->got < req->len)
		r = step(&walk);
	return r;
}
