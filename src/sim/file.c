/*
 * sim/file.c: disks of the simulated world, and what they forget.
 *
 * Every write keeps what it replaced, and every name what it stood for, until a sync; a crash of the writer then decides for
 * each unsynced change alone whether it is kept, lost or (a write) torn at 512 bytes. Names changed by one rename share their
 * fate, as in a journaling file system. A failed sync leaves its writes visible and doomed: no later sync saves them.
 *
 * A call waits half of its time, acts, and waits the other half: so an env can die before the effect, or after it and
 * before the answer.
 */
#include "sim/inside.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"

#define SECTOR_BYTES   512
#define CALL_NS	       (100 * NS_PER_US) /* of a call at most, without its bytes */
#define SYNC_NS	       (4 * NS_PER_MS)
#define SLOW_NS	       (5 * NS_PER_S)
#define NAME_LATE_NS   (3 * NS_PER_S)
#define DISK_RATE      UINT64_C(2000000000) /* bytes per second */
#define PATH_BYTES     1024
#define LINE_BYTES     512
#define FILE_BYTES_MAX (UINT64_C(1) << 32)

struct change { /* one unsynced write */
	struct list link;
	const struct sim_env *writer;
	bool doomed;
	uint64_t offset, old_size;
	size_t len;
	uint8_t old[]; /* zeros where the file ended */
};

struct inode {
	struct list link; /* its disk's; freed with it */
	bool is_dir;
	uint64_t nlink, size, cap;
	uint8_t *data;
	struct list changes;
	struct map entries; /* name -> struct entry */
};

struct entry {
	struct inode *now, *synced; /* what the name stands for, NULL: nothing */
	const struct sim_env *writer;
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

/* ---- waiting, failing, telling ---- */

/* The first half of a call on @bytes: 0, or -ESHUTDOWN without effect. */
static int enter(struct sim_env *e, struct disk *disk, const char *what, const char *path, uint64_t bytes,
		 uint64_t most_ns)
{
	struct world *w = e->world;

	CHECK(in_job());
	if (e->dead)
		return -ESHUTDOWN;
	uint64_t at_ns = disk->free_ns > w->now_ns ? disk->free_ns : w->now_ns;
	disk->free_ns = at_ns + bytes * NS_PER_S / DISK_RATE;
	at_ns = disk->free_ns + world_random(w, most_ns);
	if (fault_here(e, FAULT_SLOW, what, path))
		at_ns += world_random(w, SLOW_NS);
	(void)fiber_sleep_until(at_ns); /* workers are never cancelled */
	return e->dead ? -ESHUTDOWN : 0;
}

/* The second half: the effect is there, the answer is on its way. */
static int __attribute__((format(printf, 3, 4))) leave(struct sim_env *e, int r, const char *format, ...)
{
	char line[LINE_BYTES];
	va_list ap;

	va_start(ap, format);
	vsnprintf(line, sizeof(line), format, ap);
	va_end(ap);
	world_tell(e->world, &e->env, "%s%s%s", line, r ? ": " : "", r ? error_name(r) : "");
	(void)fiber_sleep_until(e->world->now_ns + world_random(e->world, CALL_NS));
	return e->dead ? -ESHUTDOWN : r;
}

static int fault_or_0(struct sim_env *e, enum fault fault, const char *what, const char *path, int r)
{
	return fault_here(e, fault, what, path) ? r : 0;
}

/* Env and successor: what one left in its machine's memory, the other's sync saves and its machine's death loses. */
static bool same_name(const struct sim_env *a, const struct sim_env *b)
{
	return strcmp(a->name, b->name) == 0;
}

/* ---- inodes ---- */

static struct inode *inode_new(struct disk *disk, bool is_dir)
{
	struct inode *inode = must_alloc(sizeof(*inode));

	inode->is_dir = is_dir;
	list_init(&inode->changes);
	map_init(&inode->entries);
	list_append(&disk->inodes, &inode->link);
	return inode;
}

struct disk *disk_new(struct world *w, const char *name, bool shared)
{
	struct disk *disk = must_alloc(sizeof(*disk));

	disk->name = strdup(name);
	disk->shared = shared;
	list_init(&disk->inodes);
	disk->root = inode_new(disk, true);
	list_append(&w->disks, &disk->link);
	return disk;
}

static struct disk *shared_disk(struct world *w, const char *path)
{
	list_each(node, &w->disks) {
		struct disk *disk = list_entry(node, struct disk, link);
		size_t len = strlen(disk->name);

		if (disk->shared && strncmp(path, disk->name, len) == 0 && (!path[len] || path[len] == '/'))
			return disk;
	}
	return NULL;
}

void world_share(struct world *w, const char *prefix)
{
	(void)disk_new(w, prefix, true);
}

/* Sets @name to @inode in @dir, unsynced. */
static void entry_set(struct sim_env *e, struct inode *dir, struct view name, struct inode *inode, uint64_t deed)
{
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

static bool is_unsynced(const struct entry *entry)
{
	return entry->now != entry->synced;
}

/*
 * Walks @path from @root to its last name. 0, -ENOENT, -ENOTDIR (of what lies above the last name). ret_entry: NULL when
 * nothing has that name; ret_name is empty for the root itself ("" or ".").
 */
static int walk(struct inode *root, const char *path, struct inode **ret_dir, struct view *ret_name,
		struct entry **ret_entry)
{
	struct inode *dir = root;
	struct view left = view_str(path), name = { 0 };
	struct entry *entry = NULL;

	while (left.len) {
		size_t n = 0;

		while (n < left.len && left.ptr[n] != '/')
			n++;
		struct view part = view_take(&left, n);
		(void)view_take(&left, 1);
		if (!part.len || view_equal(part, view_str(".")))
			continue;
		if (name.len) {
			if (!entry || !entry->now)
				return -ENOENT;
			dir = entry->now;
		}
		if (!dir->is_dir)
			return -ENOTDIR;
		name = part;
		entry = map_get(&dir->entries, name);
	}
	*ret_dir = dir;
	*ret_name = name;
	*ret_entry = entry && entry->now ? entry : NULL;
	return 0;
}

static int find(struct sim_env *e, struct inode *root, const char *path, struct inode **ret)
{
	struct inode *dir;
	struct view name;
	struct entry *entry;
	int r = walk(root, path, &dir, &name, &entry);

	if (r)
		return r;
	if (name.len && !entry)
		return -ENOENT;
	if (entry && !same_name(entry->writer, e) && e->world->now_ns - entry->made_ns < NAME_LATE_NS &&
	    fault_here(e, FAULT_NAME_LATE, "find", path))
		return -ENOENT;
	*ret = name.len ? entry->now : dir;
	return 0;
}

/* Makes every directory of @path and keeps them: 0 or -ENOTDIR. */
static int make_dirs(struct sim_env *e, struct disk *disk, struct inode *dir, const char *path, struct inode **ret)
{
	for (const char *end = path; *path; path = end) {
		while (*path == '/')
			path++;
		end = path + strcspn(path, "/");
		if (end == path)
			break;
		struct view name = view_of(path, (size_t)(end - path));
		struct entry *entry = map_get(&dir->entries, name);
		if (!entry || !entry->now) {
			entry_set(e, dir, name, inode_new(disk, true), new_deed(e));
			entry = map_get(&dir->entries, name);
		}
		if (!entry->now->is_dir)
			return -ENOTDIR;
		entry->synced = entry->now;
		dir = entry->now;
	}
	*ret = dir;
	return 0;
}

static void resize(struct inode *inode, uint64_t size)
{
	CHECK(size <= FILE_BYTES_MAX);
	if (size > inode->cap) {
		uint64_t cap = size > 2 * inode->cap ? size : 2 * inode->cap;

		inode->data = realloc(inode->data, cap);
		CHECK(inode->data);
		inode->cap = cap;
	}
	if (size > inode->size)
		memset(inode->data + inode->size, 0, size - inode->size);
	inode->size = size;
}

static void write_bytes(struct sim_env *e, struct inode *inode, uint64_t offset, const void *p, size_t len)
{
	struct change *c = must_alloc(sizeof(*c) + len);
	uint64_t old_end = inode->size > offset ? inode->size - offset : 0;

	if (!len) {
		free(c);
		return;
	}
	c->writer = e;
	c->offset = offset;
	c->len = len;
	c->old_size = inode->size;
	if (old_end)
		memcpy(c->old, inode->data + offset, old_end < len ? old_end : len);
	list_append(&inode->changes, &c->link);
	if (offset + len > inode->size)
		resize(inode, offset + len);
	memcpy(inode->data + offset, p, len);
}

/* ---- crashes ---- */

enum fate { FATE_KEPT, FATE_LOST, FATE_DRAWN };

/* Undoes @c: all of it, or sector by sector as the dice fall. */
static void change_undo(struct world *w, struct inode *inode, struct change *c, bool torn)
{
	fault_count(w, torn ? FAULT_BYTES_TORN : FAULT_BYTES_LOST);
	world_tell(w, &c->writer->env, "FAULT unsynced bytes %s: %zu at %" PRIu64, torn ? "torn" : "lost", c->len,
		   c->offset);
	for (size_t at = 0; at < c->len; at += SECTOR_BYTES) {
		size_t n = c->len - at < SECTOR_BYTES ? c->len - at : SECTOR_BYTES;

		if (c->offset + at + n <= inode->size && (!torn || world_random(w, 2)))
			memcpy(inode->data + c->offset + at, c->old + at, n);
	}
	if (c->offset + c->len == inode->size && c->old_size < inode->size && (!torn || world_random(w, 2)))
		resize(inode, c->old_size);
}

static void forget_bytes(struct world *w, struct inode *inode, const struct sim_env *writer, enum fate fate)
{
	for (struct list *node = inode->changes.prev, *prev; node != &inode->changes; node = prev) {
		struct change *c = list_entry(node, struct change, link);
		uint64_t drawn = fate == FATE_DRAWN ? world_random(w, 3) : fate;

		prev = node->prev; /* the latest first, as they lie over one another */
		if (writer && !same_name(c->writer, writer))
			continue;
		if (c->doomed || drawn != FATE_KEPT)
			change_undo(w, inode, c, !c->doomed && drawn == FATE_DRAWN);
		list_remove(node);
		free(c);
	}
}

static void forget_names(struct world *w, struct inode *dir, const struct sim_env *writer, enum fate fate,
			 uint64_t salt)
{
	for (struct map_slot *slot = map_first(&dir->entries); slot; slot = map_next(slot)) {
		struct entry *entry = map_value(slot);
		struct view name = map_key(slot);

		if (!is_unsynced(entry) || (writer && !same_name(entry->writer, writer)))
			continue;
		if (fate == FATE_LOST || (fate == FATE_DRAWN && hash64(&entry->deed, sizeof(entry->deed), salt) % 2)) {
			fault_count(w, FAULT_NAME_LOST);
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
void disk_forget(struct world *w, const struct sim_env *writer, const struct disk *only)
{
	enum fate fate = (enum fate)world_random(w, 3);
	uint64_t salt = world_random(w, UINT64_MAX);

	list_each(at, &w->disks) {
		struct disk *disk = list_entry(at, struct disk, link);

		list_each(node, &disk->inodes) {
			struct inode *inode = list_entry(node, struct inode, link);

			if (only && only != disk)
				break;
			forget_bytes(w, inode, writer, fate);
			forget_names(w, inode, writer, fate, salt);
		}
	}
}

void world_power_loss(struct world *w, const char *prefix)
{
	struct disk *disk = shared_disk(w, prefix);

	CHECK(disk);
	world_tell(w, NULL, "%s loses power", prefix);
	disk_forget(w, NULL, disk);
}

/* ---- directories and names ---- */

static const char *full_path(const struct dir *dir, const char *path, char out[PATH_BYTES])
{
	snprintf(out, PATH_BYTES, "%s/%s", dir->path, path);
	return out;
}

static int op_dir_open(struct env *env, const char *path, bool create, struct dir **ret, struct error *err)
{
	struct sim_env *e = sim_env(env);
	struct disk *disk = shared_disk(e->world, path);
	struct inode *inode = NULL;
	size_t len = strlen(path) + 1;

	if (e->dead)
		return error_set(err, -ESHUTDOWN, "%s is shut down", e->name);
	disk = disk ? disk : e->disk;
	int r = create ? make_dirs(e, disk, disk->root, path, &inode) : find(e, disk->root, path, &inode);
	if (!r && !inode->is_dir)
		r = -ENOTDIR;
	if (r)
		return error_set(err, r, "%s: %s", path, error_meaning(r));

	struct dir *dir = must_alloc(sizeof(*dir) + len);
	*dir = (struct dir){ e, disk, inode };
	memcpy(dir->path, path, len);
	e->open++;
	*ret = dir;
	return 0;
}

static void op_dir_close(struct dir *dir)
{
	if (!dir)
		return;
	dir->env->open--;
	free(dir);
}

static int op_mkdirs(struct dir *d, const char *path)
{
	char full[PATH_BYTES];
	struct inode *inode;
	int r = enter(d->env, d->disk, "mkdirs", full_path(d, path, full), 0, SYNC_NS);

	if (r)
		return r;
	r = fault_or_0(d->env, FAULT_NO_SPACE, "mkdirs", full, -ENOSPC);
	if (!r)
		r = make_dirs(d->env, d->disk, d->inode, path, &inode);
	return leave(d->env, r, "mkdirs %s", full);
}

/* link and rename up to the effect: what @from is, where @to goes. */
static int two_names(struct dir *d, const char *from, const char *to, struct inode **ret_from_dir,
		     struct view *ret_from, struct entry **ret_source, struct inode **ret_to_dir, struct view *ret_to,
		     struct entry **ret_target)
{
	int r = walk(d->inode, from, ret_from_dir, ret_from, ret_source);

	if (!r)
		r = walk(d->inode, to, ret_to_dir, ret_to, ret_target);
	if (!r && (!*ret_source || !ret_to->len))
		r = -ENOENT;
	return r;
}

static int op_link(struct dir *d, const char *from, const char *to)
{
	char full[PATH_BYTES];
	struct inode *from_dir, *to_dir;
	struct view from_name, to_name;
	struct entry *source, *target;
	int r = enter(d->env, d->disk, "link", full_path(d, to, full), 0, CALL_NS);

	if (r)
		return r;
	r = two_names(d, from, to, &from_dir, &from_name, &source, &to_dir, &to_name, &target);
	if (!r)
		r = source->now->is_dir ? -EPERM :
		    target		? -EEXIST :
					  fault_or_0(d->env, FAULT_NO_SPACE, "link", full, -ENOSPC);
	if (!r) {
		bool failed = fault_here(d->env, FAULT_NAME_EIO, "link", full);

		if (!failed || world_random(d->env->world, 2))
			entry_set(d->env, to_dir, to_name, source->now, new_deed(d->env));
		r = failed ? -EIO : fault_or_0(d->env, FAULT_LINK_TWICE, "link", full, -EEXIST);
	}
	return leave(d->env, r, "link %s to %s", from, full);
}

static int op_rename(struct dir *d, const char *from, const char *to)
{
	char full[PATH_BYTES];
	struct inode *from_dir, *to_dir;
	struct view from_name, to_name;
	struct entry *source, *target;
	int r = enter(d->env, d->disk, "rename", full_path(d, to, full), 0, CALL_NS);

	if (r)
		return r;
	r = two_names(d, from, to, &from_dir, &from_name, &source, &to_dir, &to_name, &target);
	if (!r && target && target->now->is_dir)
		r = -EEXIST;
	if (!r) {
		bool failed = fault_here(d->env, FAULT_NAME_EIO, "rename", full);
		uint64_t deed = is_unsynced(source) ? source->deed : new_deed(d->env);
		struct inode *inode = source->now;

		if ((!failed || world_random(d->env->world, 2)) && !(target && target->now == inode)) {
			entry_set(d->env, to_dir, to_name, inode, deed);
			entry_set(d->env, from_dir, from_name, NULL, deed);
		}
		r = failed ? -EIO : 0;
	}
	return leave(d->env, r, "rename %s to %s", from, full);
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
	char full[PATH_BYTES];
	struct inode *dir;
	struct view name;
	struct entry *entry;
	int r = enter(d->env, d->disk, "unlink", full_path(d, path, full), 0, CALL_NS);

	if (r)
		return r;
	r = walk(d->inode, path, &dir, &name, &entry);
	if (!r)
		r = !entry ? -ENOENT : entry->now->is_dir && !is_empty(entry->now) ? -ENOTEMPTY : 0;
	if (!r) {
		r = fault_or_0(d->env, FAULT_NAME_EIO, "unlink", full, -EIO);
		if (!r || world_random(d->env->world, 2))
			entry_set(d->env, dir, name, NULL, new_deed(d->env));
	}
	return leave(d->env, r, "unlink %s", full);
}

static int op_stat(struct dir *d, const char *path, struct file_stat *ret)
{
	char full[PATH_BYTES];
	struct inode *inode;
	int r = enter(d->env, d->disk, "stat", full_path(d, path, full), 0, CALL_NS);

	if (r)
		return r;
	r = fault_or_0(d->env, FAULT_READ_EIO, "stat", full, -EIO);
	if (!r)
		r = find(d->env, d->inode, path, &inode);
	if (!r)
		*ret = (struct file_stat){ inode->size, inode->is_dir, inode->nlink };
	return leave(d->env, r, "stat %s", full);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static int op_list(struct dir *d, const char *path, int (*each)(void *arg, const char *name, bool is_dir), void *arg)
{
	char full[PATH_BYTES];
	struct inode *dir;
	size_t n = 0;
	int r = enter(d->env, d->disk, "list", full_path(d, path, full), 0, CALL_NS);

	if (r)
		return r;
	r = fault_or_0(d->env, FAULT_READ_EIO, "list", full, -EIO);
	if (!r)
		r = find(d->env, d->inode, path, &dir);
	if (!r && !dir->is_dir)
		r = -ENOTDIR;
	if (r)
		return leave(d->env, r, "list %s", full);

	char **names = must_alloc((dir->entries.n + 1) * sizeof(*names)); /* a byte after the final 0: is_dir */
	for (struct map_slot *slot = map_first(&dir->entries); slot; slot = map_next(slot)) {
		struct entry *entry = map_value(slot);
		struct view key = map_key(slot);

		if (!entry->now)
			continue;
		names[n] = must_alloc(key.len + 2);
		memcpy(names[n], key.ptr, key.len);
		names[n++][key.len + 1] = entry->now->is_dir;
	}
	qsort(names, n, sizeof(*names), by_name);
	r = leave(d->env, 0, "list %s: %zu names", full, n);
	for (size_t i = 0, stopped = 0; i < n; i++) {
		if (!r && !stopped)
			stopped = each(arg, names[i], names[i][strlen(names[i]) + 1]) != 0;
		free(names[i]);
	}
	free(names);
	return r;
}

static int op_sync_dir(struct dir *d, const char *path)
{
	char full[PATH_BYTES];
	struct inode *dir;
	int r = enter(d->env, d->disk, "sync", full_path(d, path, full), 0, SYNC_NS);

	if (r)
		return r;
	r = find(d->env, d->inode, path, &dir);
	if (!r)
		r = !dir->is_dir ? -ENOTDIR : fault_or_0(d->env, FAULT_SYNC_EIO, "sync", full, -EIO);
	for (struct map_slot *slot = r ? NULL : map_first(&dir->entries); slot; slot = map_next(slot)) {
		struct entry *entry = map_value(slot);

		entry->synced = entry->now;
	}
	return leave(d->env, r, "sync directory %s", full);
}

/* ---- files ---- */

static int op_open(struct dir *d, const char *path, unsigned flags, struct file **ret)
{
	char full[PATH_BYTES];
	struct inode *dir, *inode = NULL;
	struct view name;
	struct entry *entry;
	int r = enter(d->env, d->disk, "open", full_path(d, path, full), 0, CALL_NS);

	if (r)
		return r;
	r = walk(d->inode, path, &dir, &name, &entry);
	if (!r && flags & FILE_CREATE && !entry && name.len) {
		r = fault_or_0(d->env, FAULT_NO_SPACE, "create", full, -ENOSPC);
		if (!r) {
			inode = inode_new(d->disk, false);
			entry_set(d->env, dir, name, inode, new_deed(d->env));
		}
	} else if (!r && flags & FILE_EXCLUSIVE) {
		r = -EEXIST;
	} else if (!r) {
		r = find(d->env, d->inode, path, &inode);
	}
	if (!r && inode->is_dir)
		r = -EISDIR;
	r = leave(d->env, r, "open %s%s", full, flags & FILE_CREATE ? " or create it" : "");
	if (r)
		return r;

	size_t len = strlen(full) + 1;
	struct file *file = must_alloc(sizeof(*file) + len);
	*file = (struct file){ d->env, d->disk, inode, flags };
	memcpy(file->path, full, len);
	d->env->open++;
	*ret = file;
	return 0;
}

static ssize_t op_read(struct file *f, uint64_t offset, void *p, size_t len)
{
	int r = enter(f->env, f->disk, "read", f->path, len, CALL_NS);
	uint64_t left = offset < f->inode->size ? f->inode->size - offset : 0;
	size_t n = left < len ? (size_t)left : len;

	if (r)
		return r;
	r = f->flags & FILE_READ ? fault_or_0(f->env, FAULT_READ_EIO, "read", f->path, -EIO) : -EBADF;
	if (!r && n) {
		memcpy(p, f->inode->data + offset, n);
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
	int r = enter(e, f->disk, "write", f->path, len, CALL_NS);

	if (r)
		return r;
	if (!(f->flags & FILE_WRITE))
		r = -EBADF;
	else if (add_overflows(offset, len, &(uint64_t){ 0 }) || offset + len > FILE_BYTES_MAX)
		r = -EFBIG;
	if (r)
		return leave(e, r, "write %s", f->path);
	r = fault_or_0(e, FAULT_NO_SPACE, "write", f->path, -ENOSPC);
	r = r ? r : fault_or_0(e, FAULT_WRITE_EIO, "write", f->path, -EIO);
	write_bytes(e, f->inode, offset, p, r ? world_random(e->world, len) : len);
	return leave(e, r, "write %s: %zu bytes at %" PRIu64 " x=%016" PRIx64, f->path, len, offset, hash64(p, len, 0));
}

static int op_sync(struct file *f)
{
	int r = enter(f->env, f->disk, "sync", f->path, 0, SYNC_NS);

	if (r)
		return r;
	r = fault_or_0(f->env, FAULT_SYNC_EIO, "sync", f->path, -EIO);
	list_each(node, &f->inode->changes) {
		struct change *c = list_entry(node, struct change, link);

		if (!same_name(c->writer, f->env) || c->doomed)
			continue;
		if (r) {
			c->doomed = true;
			continue;
		}
		list_remove(node);
		free(c);
	}
	return leave(f->env, r, "sync %s", f->path);
}

static int op_size(struct file *f, uint64_t *ret)
{
	int r = enter(f->env, f->disk, "size", f->path, 0, CALL_NS);
	uint64_t size = f->inode->size;

	if (r)
		return r;
	r = leave(f->env, 0, "size of %s: %" PRIu64, f->path, size);
	if (!r)
		*ret = size;
	return r;
}

static void op_close(struct file *f)
{
	if (!f)
		return;
	f->env->open--;
	free(f);
}

int world_rot(struct env *env, const char *path, uint64_t offset)
{
	struct sim_env *e = sim_env(env);
	struct disk *disk = shared_disk(e->world, path);
	struct inode *inode;
	int r = find(e, disk ? disk->root : e->disk->root, path, &inode);

	if (r)
		return r;
	if (offset >= inode->size)
		return -ERANGE;
	inode->data[offset] ^= 1;
	fault_count(e->world, FAULT_ROT);
	world_tell(e->world, env, "FAULT a bit of %s flips at %" PRIu64, path, offset);
	return 0;
}

static void inode_free(struct inode *inode)
{
	while (!list_empty(&inode->changes))
		free(list_entry(list_pop(&inode->changes), struct change, link));
	for (struct map_slot *slot = map_first(&inode->entries); slot; slot = map_next(slot))
		free(map_value(slot));
	map_fini(&inode->entries);
	free(inode->data);
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
	list_init(&w->disks);
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
