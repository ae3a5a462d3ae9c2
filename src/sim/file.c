/*
 * sim/file.c: disks of the simulated world, and what they forget.
 *
 * Beside its bytes a file has those of its last sync, and a name what it stood for then. A crash of the writer decides for
 * each file and name alone whether the new is kept, lost or (bytes) torn: new or old in each run of 512. Names changed by
 * one rename share their fate, as in a journaling file system. A failed sync leaves the new bytes visible and doomed: no
 * later sync saves them.
 *
 * A call waits half of its time, acts, and waits the other half: so an env can die before the effect, or after it and
 * before the answer.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/map.h"
#include "sim/inside.h"

#define SECTOR_BYTES   512
#define CALL_NS	       (100 * NS_PER_US) /* of a call at most, without its bytes */
#define SYNC_NS	       (4 * NS_PER_MS)
#define SLOW_NS	       (5 * NS_PER_S)
#define NAME_LATE_NS   (3 * NS_PER_S)
#define DISK_RATE      UINT64_C(2000000000) /* bytes per second */
#define PATH_BYTES     1024
#define LINE_BYTES     512
#define FILE_BYTES_MAX (UINT64_C(1) << 32)

struct disk {
	struct list link;
	char *name; /* an env's name, or the prefix of a shared disk */
	bool shared;
	struct inode *root;
	struct list inodes; /* in the order in which they were made; freed with the disk */
	uint64_t free_ns;   /* when it has moved the bytes that it was given so far */
};

struct inode {
	struct list link;
	bool is_dir;
	uint64_t nlink;
	struct buf now, synced;
	struct sim_env *writer; /* of what now has and synced has not; NULL: they are equal */
	bool doomed;		/* a sync has failed */
	struct map entries;	/* name -> struct entry */
};

struct entry {
	struct inode *now, *synced; /* what the name stands for, NULL: nothing */
	struct sim_env *writer;
	uint64_t made_ns, deed; /* which act changed it: a rename changes two */
};

struct dir {
	struct sim_env *env;
	struct disk *disk;
	struct inode *inode;
	char path[];
};

struct file {
	struct sim_env *env;
	struct disk *disk;
	struct inode *inode;
	unsigned flags;
	char path[];
};

/* Where a path leads: its last name and the directory that has or would have it. The name is empty for the root itself. */
struct spot {
	struct inode *dir;
	struct view name;
	struct entry *entry; /* NULL: nothing has that name */
	struct inode *inode; /* what it stands for, or NULL */
};

/* Env and successor: what one left in its machine's memory, the other's sync saves and its machine's death loses. */
static bool same_name(const struct sim_env *a, const char *name)
{
	return strcmp(a->name, name) == 0;
}

/* ---- disks and what lies on them ---- */

static struct inode *inode_new(struct disk *disk, bool is_dir)
{
	struct inode *inode = must_alloc(sizeof(*inode));

	inode->is_dir = is_dir;
	map_init(&inode->entries);
	list_append(&disk->inodes, &inode->link);
	return inode;
}

static struct disk *disk_new(struct world *w, const char *name, bool shared)
{
	struct disk *disk = must_alloc(sizeof(*disk));

	SPARED;
	disk->name = strdup(name);
	disk->shared = shared;
	list_init(&disk->inodes);
	disk->root = inode_new(disk, true);
	list_append(&w->disks, &disk->link);
	return disk;
}

/* The disk of an env's name, or the shared one that the path @name lies on; or NULL. */
static struct disk *disk_find(struct world *w, const char *name, bool shared)
{
	list_each(node, &w->disks) {
		struct disk *disk = list_entry(node, struct disk, link);
		size_t len = strlen(disk->name);

		if (disk->shared == shared && strncmp(name, disk->name, len) == 0 &&
		    (!name[len] || (shared && name[len] == '/')))
			return disk;
	}
	return NULL;
}

struct disk *disk_of(struct world *w, const char *name)
{
	struct disk *disk = disk_find(w, name, false);

	return disk ? disk : disk_new(w, name, false);
}

void world_share(struct world *w, const char *prefix)
{
	(void)disk_new(w, prefix, true);
}

/* Sets @name to @inode in @dir, unsynced. */
static void entry_set(struct sim_env *e, struct inode *dir, struct view name, struct inode *inode, uint64_t deed)
{
	SPARED;
	struct entry *entry = map_get(&dir->entries, name);

	if (!entry) {
		entry = must_alloc(sizeof(*entry));
		CHECK(map_put(&dir->entries, name, entry) == 0);
	}
	if (entry->now)
		entry->now->nlink--;
	if (inode)
		inode->nlink++;
	entry->now = inode;
	entry->writer = e;
	entry->made_ns = e->world->now_ns;
	entry->deed = deed;
}

static uint64_t new_deed(struct sim_env *e)
{
	return ++e->world->serial;
}

/* 0, -ENOENT or -ENOTDIR (of what lies above the last name). */
static int walk(struct inode *dir, const char *path, struct spot *ret)
{
	struct spot at = { .dir = dir, .inode = dir };

	for (size_t n; *path; path += n) {
		n = strcspn(path, "/");
		if (!n || (n == 1 && path[0] == '.')) {
			n += path[n] == '/';
			continue;
		}
		if (!at.inode || !at.inode->is_dir)
			return at.inode ? -ENOTDIR : -ENOENT;
		at.dir = at.inode;
		at.name = view_of(path, n);
		at.entry = map_get(&at.dir->entries, at.name);
		at.inode = at.entry ? at.entry->now : NULL;
	}
	*ret = at;
	return 0;
}

/* Makes every directory of @path, synced: 0 or -ENOTDIR. */
static int make_dirs(struct sim_env *e, struct disk *disk, struct inode *dir, const char *path, struct inode **ret)
{
	while (*(path += strspn(path, "/"))) {
		struct view name = view_of(path, strcspn(path, "/"));
		struct entry *entry = map_get(&dir->entries, name);

		if (!entry || !entry->now) {
			entry_set(e, dir, name, inode_new(disk, true), new_deed(e));
			entry = map_get(&dir->entries, name);
		}
		entry->synced = entry->now;
		dir = entry->now;
		if (!dir->is_dir)
			return -ENOTDIR;
		path += name.len;
	}
	*ret = dir;
	return 0;
}

static void write_bytes(struct sim_env *e, struct inode *inode, uint64_t offset, const void *p, size_t len)
{
	SPARED;

	if (!len)
		return;
	if (offset + len > inode->now.len)
		CHECK(buf_append_zero(&inode->now, offset + len - inode->now.len) == 0);
	memcpy(inode->now.ptr + offset, p, len);
	inode->writer = e;
}

static void bytes_copy(struct buf *to, const struct buf *from)
{
	SPARED;
	to->len = 0;
	CHECK(buf_append(to, from->ptr, from->len) == 0);
}

/* ---- crashes ---- */

enum fate { FATE_KEPT, FATE_LOST, FATE_DRAWN };

static bool is_meant(const struct sim_env *e, const char *writer)
{
	return !writer || same_name(e, writer);
}

static void forget_bytes(struct world *w, struct inode *inode, const char *writer, enum fate fate)
{
	struct buf *now = &inode->now, *old = &inode->synced;

	if (!inode->writer || !is_meant(inode->writer, writer))
		return;
	fate = inode->doomed ? FATE_LOST : fate;
	for (size_t at = 0; at < now->len && fate == FATE_DRAWN; at += SECTOR_BYTES) {
		size_t n = now->len - at < SECTOR_BYTES ? now->len - at : SECTOR_BYTES;
		size_t there = old->len <= at ? 0 : old->len - at < n ? old->len - at : n;

		if (world_random(w, 2))
			continue;
		memset(now->ptr + at, 0, n);
		if (there)
			memcpy(now->ptr + at, old->ptr + at, there);
	}
	if (fate == FATE_DRAWN && world_random(w, 2))
		now->len = old->len;
	if (fate == FATE_LOST)
		bytes_copy(now, old);
	if (fate != FATE_KEPT) {
		w->faults.injected[fate == FATE_DRAWN ? FAULT_BYTES_TORN : FAULT_BYTES_LOST]++;
		world_tell(w, &inode->writer->env, "FAULT unsynced bytes %s", fate == FATE_DRAWN ? "torn" : "lost");
	}
	bytes_copy(old, now);
	inode->writer = NULL;
	inode->doomed = false;
}

static void forget_names(struct world *w, struct inode *dir, const char *writer, enum fate fate, uint64_t salt)
{
	for (struct map_slot *slot = map_first(&dir->entries); slot; slot = map_next(slot)) {
		struct entry *entry = map_value(slot);
		struct view name = map_key(slot);

		if (entry->now == entry->synced || !is_meant(entry->writer, writer))
			continue;
		if (fate == FATE_LOST || (fate == FATE_DRAWN && hash64(&entry->deed, sizeof(entry->deed), salt) % 2)) {
			w->faults.injected[FAULT_NAME_LOST]++;
			world_tell(w, &entry->writer->env, "FAULT unsynced name %.*s is %s again", (int)name.len,
				   (const char *)name.ptr, entry->synced ? "what it was" : "gone");
			if (entry->now)
				entry->now->nlink--;
			if (entry->synced)
				entry->synced->nlink++;
			entry->now = entry->synced;
		}
		entry->synced = entry->now;
	}
}

/* A machine lost power: what @writer (NULL: anybody) has not synced on @disk (NULL: any) is kept, lost, or drawn one by one. */
void disk_forget(struct world *w, const char *writer, const struct disk *only)
{
	enum fate fate = (enum fate)world_random(w, 3);
	uint64_t salt = world_random(w, UINT64_MAX);

	list_each(at, &w->disks) {
		struct disk *disk = list_entry(at, struct disk, link);

		list_each(node, &disk->inodes) {
			if (only && only != disk)
				break;
			forget_bytes(w, list_entry(node, struct inode, link), writer, fate);
			forget_names(w, list_entry(node, struct inode, link), writer, fate, salt);
		}
	}
}

void world_power_loss(struct world *w, const char *prefix)
{
	struct disk *disk = disk_find(w, prefix, true);

	CHECK(disk);
	world_tell(w, NULL, "%s loses power", prefix);
	disk_forget(w, NULL, disk);
}

int world_rot(struct env *env, const char *path, uint64_t offset)
{
	struct sim_env *e = sim_env(env);
	struct disk *disk = disk_find(e->world, path, true);
	struct spot at;

	if (walk((disk ? disk : e->disk)->root, path, &at) || !at.inode)
		return -ENOENT;
	if (offset >= at.inode->now.len)
		return -ERANGE;
	at.inode->now.ptr[offset] ^= 1;
	e->world->faults.injected[FAULT_ROT]++;
	world_tell(e->world, env, "FAULT a bit of %s flips at %" PRIu64, path, offset);
	return 0;
}

/* ---- the two halves of a call ---- */

static int failure(struct sim_env *e, enum fault fault, const char *what, const char *path)
{
	if (!fault_here(e, fault, what, path))
		return 0;
	return fault == FAULT_NO_SPACE	 ? -ENOSPC :
	       fault == FAULT_LINK_TWICE ? -EEXIST :
	       fault == FAULT_NAME_LATE	 ? -ENOENT :
					   -EIO;
}

/* The first half of a call on @bytes: 0, or without effect -ESHUTDOWN or what @fault does. */
static int begin(struct sim_env *e, struct disk *disk, uint64_t bytes, uint64_t most_ns, const char *what,
		 const char *path, enum fault fault)
{
	struct world *w = e->world;

	CHECK(in_job());
	if (e->dead)
		return -ESHUTDOWN;
	disk->free_ns = (disk->free_ns > w->now_ns ? disk->free_ns : w->now_ns) + bytes * NS_PER_S / DISK_RATE;
	uint64_t at_ns = disk->free_ns + world_random(w, most_ns);
	if (e->file_rate) {
		e->file_free_ns =
			(e->file_free_ns > w->now_ns ? e->file_free_ns : w->now_ns) + bytes * NS_PER_S / e->file_rate;
		at_ns = e->file_free_ns > at_ns ? e->file_free_ns : at_ns;
	}
	if (fault_here(e, FAULT_SLOW, what, path))
		at_ns += world_random(w, SLOW_NS);
	(void)fiber_sleep_until(at_ns); /* workers are never cancelled */
	(void)fiber_sleep_until(e->dead ? 0 : e->stopped_until_ns);
	if (!e->dead && strike_here(STRIKE_FILE))
		return fault == FAULT_NO_SPACE ? -ENOSPC : -EIO;
	return e->dead ? -ESHUTDOWN : failure(e, fault, what, path);
}

/* The second half: the effect is there, the answer is on its way. */
static int __attribute__((format(printf, 3, 4))) leave(struct sim_env *e, int r, const char *format, ...)
{
	char line[LINE_BYTES];
	va_list ap;

	if (e->dead)
		return -ESHUTDOWN;
	va_start(ap, format);
	vsnprintf(line, sizeof(line), format, ap);
	va_end(ap);
	world_tell(e->world, &e->env, "%s%s%s", line, r ? ": " : "", r ? error_name(r) : "");
	(void)fiber_sleep_until(e->world->now_ns + world_random(e->world, CALL_NS));
	return e->dead ? -ESHUTDOWN : r;
}

/* ---- directories and names ---- */

/* A call on a name, under way. */
struct call {
	struct sim_env *e;
	int r;
	struct spot at;
	char path[PATH_BYTES];
};

static struct call enter(struct dir *d, const char *what, const char *path, uint64_t most_ns, enum fault fault)
{
	struct call c = { .e = d->env };

	snprintf(c.path, sizeof(c.path), "%s/%s", d->path, path);
	c.r = begin(d->env, d->disk, 0, most_ns, what, c.path, fault);
	if (!c.r)
		c.r = walk(d->inode, path, &c.at);
	return c;
}

/* Is something there, as far as this env can see? The call fails if not. */
static bool is_seen(struct call *c)
{
	const struct entry *entry = c->at.entry;

	if (c->r)
		return false;
	if (!c->at.inode)
		c->r = -ENOENT;
	else if (entry && !same_name(entry->writer, c->e->name) && c->e->world->now_ns - entry->made_ns < NAME_LATE_NS)
		c->r = failure(c->e, FAULT_NAME_LATE, "find", c->path);
	return !c->r;
}

/* Does a change of a name happen? The call may fail, either way. */
static bool takes_effect(struct call *c, const char *what)
{
	if (c->r)
		return false;
	c->r = failure(c->e, FAULT_NAME_EIO, what, c->path);
	return !c->r || world_random(c->e->world, 2);
}

static int op_dir_open(struct env *env, const char *path, bool create, struct dir **ret, struct error *err)
{
	struct sim_env *e = sim_env(env);
	struct disk *shared = disk_find(e->world, path, true), *disk = shared ? shared : e->disk;
	struct spot at = { 0 };

	if (e->dead)
		return error_set(err, -ESHUTDOWN, "%s is shut down", e->name);
	if (strike_here(STRIKE_FILE))
		return error_set(err, -EIO, "%s: %s", path, error_meaning(-EIO));
	int r = create ? make_dirs(e, disk, disk->root, path, &at.inode) : walk(disk->root, path, &at);
	if (!r)
		r = !at.inode ? -ENOENT : at.inode->is_dir ? 0 : -ENOTDIR;
	if (r)
		return error_set(err, r, "%s: %s", path, error_meaning(r));

	struct dir *dir = must_alloc(sizeof(*dir) + strlen(path) + 1);
	*dir = (struct dir){ e, disk, at.inode };
	memcpy(dir->path, path, strlen(path));
	e->open++;
	*ret = dir;
	return 0;
}

static void op_dir_close(struct dir *dir)
{
	if (dir)
		dir->env->open--;
	free(dir);
}

static int op_mkdirs(struct dir *d, const char *path)
{
	struct call c = enter(d, "mkdirs", "", SYNC_NS, FAULT_NO_SPACE);

	if (!c.r)
		c.r = make_dirs(d->env, d->disk, d->inode, path, &c.at.inode);
	return leave(d->env, c.r, "mkdirs %s%s", c.path, path);
}

static int op_link(struct dir *d, const char *from, const char *to)
{
	struct call c = enter(d, "link", to, CALL_NS, FAULT_NO_SPACE);
	struct spot source = { 0 };

	if (!c.r)
		c.r = walk(d->inode, from, &source);
	if (!c.r)
		c.r = !source.inode || !c.at.name.len ? -ENOENT :
		      source.inode->is_dir	      ? -EPERM :
		      c.at.inode		      ? -EEXIST :
							0;
	if (takes_effect(&c, "link"))
		entry_set(d->env, c.at.dir, c.at.name, source.inode, new_deed(d->env));
	if (!c.r)
		c.r = failure(d->env, FAULT_LINK_TWICE, "link", c.path);
	return leave(d->env, c.r, "link %s to %s", from, c.path);
}

static int op_rename(struct dir *d, const char *from, const char *to)
{
	struct call c = enter(d, "rename", to, CALL_NS, FAULT_NO_SPACE);
	struct spot source = { 0 };

	if (!c.r)
		c.r = walk(d->inode, from, &source);
	if (!c.r)
		c.r = !source.entry || !source.inode || !c.at.name.len ? -ENOENT :
		      c.at.inode && c.at.inode->is_dir		       ? -EEXIST :
									 0;
	if (takes_effect(&c, "rename") && source.inode != c.at.inode) {
		bool again = source.entry->now != source.entry->synced; /* one fate with what is unsynced already */
		uint64_t deed = again ? source.entry->deed : new_deed(d->env);

		entry_set(d->env, c.at.dir, c.at.name, source.inode, deed);
		entry_set(d->env, source.dir, source.name, NULL, deed);
	}
	return leave(d->env, c.r, "rename %s to %s", from, c.path);
}

static bool is_empty(const struct inode *dir)
{
	for (struct map_slot *slot = map_first(&dir->entries); slot; slot = map_next(slot))
		if (((struct entry *)map_value(slot))->now)
			return false;
	return true;
}

static int op_unlink(struct dir *d, const char *path)
{
	struct call c = enter(d, "unlink", path, CALL_NS, FAULT_NAME_EIO);

	if (!c.r)
		c.r = !c.at.inode || !c.at.name.len ? -ENOENT : is_empty(c.at.inode) ? 0 : -ENOTEMPTY;
	if (takes_effect(&c, "unlink"))
		entry_set(d->env, c.at.dir, c.at.name, NULL, new_deed(d->env));
	return leave(d->env, c.r, "unlink %s", c.path);
}

static int op_stat(struct dir *d, const char *path, struct file_stat *ret)
{
	struct call c = enter(d, "stat", path, CALL_NS, FAULT_READ_EIO);

	if (is_seen(&c))
		*ret = (struct file_stat){ c.at.inode->now.len, c.at.inode->is_dir, c.at.inode->nlink };
	return leave(d->env, c.r, "stat %s", c.path);
}

static int by_name(const void *a, const void *b)
{
	return view_compare(map_key(*(struct map_slot *const *)a), map_key(*(struct map_slot *const *)b));
}

static char *dup_name(const struct map_slot *slot)
{
	SPARED;
	char *name = view_dup(map_key(slot));

	CHECK(name);
	return name;
}

static int op_list(struct dir *d, const char *path, int (*each)(void *arg, const char *name, bool is_dir), void *arg)
{
	struct call c = enter(d, "list", path, CALL_NS, FAULT_READ_EIO);
	size_t n = 0;

	if (is_seen(&c) && !c.at.inode->is_dir)
		c.r = -ENOTDIR;
	if (c.r)
		return leave(d->env, c.r, "list %s", c.path);

	struct map_slot **slots = must_alloc(c.at.inode->entries.n * sizeof(struct map_slot *));
	for (struct map_slot *slot = map_first(&c.at.inode->entries); slot; slot = map_next(slot))
		if (((struct entry *)map_value(slot))->now)
			slots[n++] = slot;
	qsort(slots, n, sizeof(struct map_slot *), by_name);
	for (size_t i = 0, stopped = 0; i < n && !stopped; i++) {
		char *name = dup_name(slots[i]);

		stopped = each(arg, name, ((struct entry *)map_value(slots[i]))->now->is_dir) != 0;
		free(name);
	}
	free(slots);
	return leave(d->env, 0, "list %s: %zu names", c.path, n);
}

static int op_sync_dir(struct dir *d, const char *path)
{
	struct call c = enter(d, "sync", path, SYNC_NS, FAULT_SYNC_EIO);

	if (is_seen(&c) && !c.at.inode->is_dir)
		c.r = -ENOTDIR;
	for (struct map_slot *slot = c.r ? NULL : map_first(&c.at.inode->entries); slot; slot = map_next(slot)) {
		struct entry *entry = map_value(slot);

		entry->synced = entry->now;
	}
	return leave(d->env, c.r, "sync directory %s", c.path);
}

/* ---- files ---- */

static int op_open(struct dir *d, const char *path, unsigned flags, struct file **ret)
{
	struct call c = enter(d, "open", path, CALL_NS, flags & FILE_CREATE ? FAULT_NO_SPACE : FAULT_READ_EIO);

	if (!c.r && c.at.inode && flags & FILE_EXCLUSIVE) {
		c.r = -EEXIST;
	} else if (!c.r && !c.at.inode && flags & FILE_CREATE) {
		c.at.inode = inode_new(d->disk, false);
		entry_set(d->env, c.at.dir, c.at.name, c.at.inode, new_deed(d->env));
	} else if (is_seen(&c) && c.at.inode->is_dir) {
		c.r = -EISDIR;
	}
	int r = leave(d->env, c.r, "open %s%s", c.path, flags & FILE_CREATE ? " or create it" : "");
	if (r)
		return r;

	struct file *file = must_alloc(sizeof(*file) + strlen(c.path) + 1);
	*file = (struct file){ d->env, d->disk, c.at.inode, flags };
	memcpy(file->path, c.path, strlen(c.path));
	d->env->open++;
	*ret = file;
	return 0;
}

static ssize_t op_read(struct file *f, uint64_t offset, void *p, size_t len)
{
	uint64_t cost = len < f->inode->now.len ? len : f->inode->now.len;
	int r = begin(f->env, f->disk, cost, CALL_NS, "read", f->path, FAULT_READ_EIO);
	uint64_t left = offset < f->inode->now.len ? f->inode->now.len - offset : 0;
	size_t n = left < len ? (size_t)left : len;

	CHECK(f->flags & FILE_READ);
	if (!r && n) {
		memcpy(p, f->inode->now.ptr + offset, n);
		if (fault_here(f->env, FAULT_READ_FLIP, "read", f->path))
			((uint8_t *)p)[world_random(f->env->world, n)] ^=
				(uint8_t)(1u << world_random(f->env->world, 8));
	}
	r = leave(f->env, r, "read %s: %zu bytes at %" PRIu64 " x=%016" PRIx64, f->path, n, offset,
		  r ? 0 : hash64(p, n, 0));
	return r ? r : (ssize_t)n;
}

static int op_write(struct file *f, uint64_t offset, const void *p, size_t len)
{
	struct sim_env *e = f->env;
	int r = begin(e, f->disk, len, CALL_NS, "write", f->path, FAULT_NO_SPACE);

	CHECK(f->flags & FILE_WRITE);
	if (offset > FILE_BYTES_MAX || len > FILE_BYTES_MAX - offset)
		r = -EFBIG;
	if (!r)
		r = failure(e, FAULT_WRITE_EIO, "write", f->path);
	if (!e->dead && r != -EFBIG)
		write_bytes(e, f->inode, offset, p, r ? world_random(e->world, len) : len);
	return leave(e, r, "write %s: %zu bytes at %" PRIu64 " x=%016" PRIx64, f->path, len, offset, hash64(p, len, 0));
}

static int op_sync(struct file *f)
{
	int r = begin(f->env, f->disk, 0, SYNC_NS, "sync", f->path, FAULT_SYNC_EIO);

	if (!f->env->dead && f->inode->writer && same_name(f->inode->writer, f->env->name)) {
		f->inode->doomed |= r != 0;
		if (!f->inode->doomed) {
			bytes_copy(&f->inode->synced, &f->inode->now);
			f->inode->writer = NULL;
		}
	}
	return leave(f->env, r, "sync %s", f->path);
}

static int op_size(struct file *f, uint64_t *ret)
{
	int r = begin(f->env, f->disk, 0, CALL_NS, "size", f->path, FAULT_READ_EIO);
	uint64_t size = f->inode->now.len;

	r = leave(f->env, r, "size of %s: %" PRIu64, f->path, size);
	if (!r)
		*ret = size;
	return r;
}

static void op_close(struct file *f)
{
	if (f)
		f->env->open--;
	free(f);
}

/* ---- the end ---- */

static void inode_free(struct inode *inode)
{
	for (struct map_slot *slot = map_first(&inode->entries); slot; slot = map_next(slot))
		free(map_value(slot));
	map_fini(&inode->entries);
	buf_fini(&inode->now);
	buf_fini(&inode->synced);
	free(inode);
}

void file_free_all(struct world *w)
{
	list_each(at, &w->disks) {
		struct disk *disk = list_entry(at, struct disk, link);

		list_each(node, &disk->inodes)
			inode_free(list_entry(node, struct inode, link));
		free(disk->name);
		free(disk);
	}
}

void file_ops(struct env_ops *ops)
{
	ops->dir_open = op_dir_open;
	ops->dir_close = op_dir_close;
	ops->file_open = op_open;
	ops->file_read = op_read;
	ops->file_write = op_write;
	ops->file_sync = op_sync;
	ops->file_size = op_size;
	ops->file_close = op_close;
	ops->mkdirs = op_mkdirs;
	ops->link = op_link;
	ops->rename = op_rename;
	ops->unlink = op_unlink;
	ops->stat = op_stat;
	ops->list = op_list;
	ops->sync_dir = op_sync_dir;
}
