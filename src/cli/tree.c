#include "cli/tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "cli/command.h"
#include "cli/names.h"

/* The folders from the outermost to the one at hand. */
struct walk {
	struct tree *tree;
	struct level {
		DIR *dir;
		char *name, *path; /* name "": what is in it has no folder before it */
		dev_t dev;
		ino_t ino;
	} level[TREE_DEPTH_MAX];
	size_t depth;
};

static char *join(const char *a, const char *b)
{
	char *text = NULL;
	const char *slash = *a && a[strlen(a) - 1] != '/' ? "/" : "";

	return asprintf(&text, "%s%s%s", a, slash, b) < 0 ? NULL : text;
}

static const char *kind(mode_t mode)
{
	return S_ISFIFO(mode)		      ? "a FIFO" :
	       S_ISSOCK(mode)		      ? "a socket" :
	       S_ISBLK(mode) || S_ISCHR(mode) ? "a device" :
						"no file";
}

/* ---- one entry ------------------------------------------------------------------------------------------------------- */

static int check_name(const char *name, const char *path, struct error *e)
{
	size_t len = strlen(name);

	if (!view_is_utf8(view_of(name, len)))
		return error_set(e, -EILSEQ, "%s: its name is not UTF-8, which names in a bundle are", path);
	if (len + NAMES_PREFIX_BYTES > NAMES_ITEM_MAX)
		return error_set(e, -ENAMETOOLONG, "%s: its name in the bundle has %zu bytes; at most %d", path, len,
				 NAMES_ITEM_MAX - NAMES_PREFIX_BYTES);
	return 0;
}

static int add_file(struct tree *tree, const char *name, const char *path, const struct stat *st, struct error *e)
{
	int r = check_name(name, path, e);

	if (r)
		return r;
	if (tree->n == tree->cap) {
		size_t cap = tree->cap ? 2 * tree->cap : 64;
		struct tree_file *files = reallocarray(tree->files, cap, sizeof(*files));

		if (!files)
			return -ENOMEM;
		tree->files = files;
		tree->cap = cap;
	}
	struct tree_file *file = &tree->files[tree->n++];
	*file = (struct tree_file){ strdup(name), strdup(path), *st };
	if (!file->name || !file->path)
		return -ENOMEM;
	tree->bytes += (uint64_t)st->st_size;
	return files_add(&tree->list.files, &tree->list.n_files, name, st->st_mode & FILES_MODE);
}

static int enter(struct walk *walk, const char *name, const char *path, const struct stat *st, struct error *e)
{
	for (size_t i = 0; i < walk->depth; i++) {
		const struct level *above = &walk->level[i];

		if (above->dev == st->st_dev && above->ino == st->st_ino)
			return error_set(e, -ELOOP, "%s: a link that leads back to %s, in which it lies", path,
					 above->path);
	}
	if (walk->depth == TREE_DEPTH_MAX)
		return error_set(e, -ELOOP, "%s: more than %d folders in each other", path, TREE_DEPTH_MAX);
	int r = *name ? check_name(name, path, e) : 0;
	if (!r && *name)
		r = files_add(&walk->tree->list.folders, &walk->tree->list.n_folders, name, st->st_mode & FILES_MODE);
	if (r)
		return r;
	struct level level = { .dir = opendir(path),
			       .name = strdup(name),
			       .path = strdup(path),
			       .dev = st->st_dev,
			       .ino = st->st_ino };
	if (!level.dir)
		r = error_set(e, -errno, "%s: %s", path, strerror(errno));
	else if (!level.name || !level.path)
		r = -ENOMEM;
	walk->level[walk->depth++] = level; /* leave() frees it */
	return r;
}

static void leave(struct walk *walk)
{
	struct level *level = &walk->level[--walk->depth];

	if (level->dir)
		closedir(level->dir);
	free(level->name);
	free(level->path);
}

static int add_entry(struct walk *walk, const char *name, const char *path, struct error *e)
{
	struct tree *tree = walk->tree;
	struct stat st, link;

	if (tree->n + tree->list.n_folders >= TREE_FILES_MAX)
		return error_set(e, -E2BIG, "%s: more than %u files and folders", path, TREE_FILES_MAX);
	if (stat(path, &st)) {
		int code = errno;
		bool dangling = code == ENOENT && !lstat(path, &link) && S_ISLNK(link.st_mode);

		return error_set(e, -code,
				 dangling      ? "%s: a link that leads nowhere" :
				 code == ELOOP ? "%s: a loop of links" :
						 "%s: %s",
				 path, strerror(code));
	}
	if (S_ISREG(st.st_mode))
		return add_file(tree, name, path, &st, e);
	if (S_ISDIR(st.st_mode))
		return enter(walk, name, path, &st, e);
	return error_set(e, -EINVAL, "%s: %s; only files, folders and links to them can be stored", path,
			 kind(st.st_mode));
}

/* ---- the walk -------------------------------------------------------------------------------------------------------- */

static int walk_folders(struct walk *walk, struct error *e)
{
	int r = 0;

	while (!r && walk->depth) {
		struct level *level = &walk->level[walk->depth - 1];

		errno = 0;
		const struct dirent *entry = readdir(level->dir);
		if (!entry) {
			r = errno ? error_set(e, -errno, "%s: %s", level->path, strerror(errno)) : 0;
			leave(walk);
			continue;
		}
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		_cleanup_(cleanup_mem) char *name = join(level->name, entry->d_name),
					    *path = join(level->path, entry->d_name);
		r = name && path ? add_entry(walk, name, path, e) : -ENOMEM;
	}
	while (walk->depth)
		leave(walk);
	return r;
}

/* The last part of a path that does not end in one such as ".": its real path has. On the heap, or NULL. */
static char *last_part(const char *path)
{
	_cleanup_(cleanup_mem) char *real = NULL;
	size_t len = strlen(path);

	while (len > 1 && path[len - 1] == '/')
		len--;
	_cleanup_(cleanup_mem) char *trimmed = strndup(path, len);
	const char *slash = trimmed ? strrchr(trimmed, '/') : NULL;
	const char *last = slash ? slash + 1 : trimmed;

	if (last && (!*last || !strcmp(last, ".") || !strcmp(last, ".."))) {
		real = realpath(path, NULL);
		slash = real ? strrchr(real, '/') : NULL;
		last = slash ? slash + 1 : NULL;
	}
	return last ? strdup(last) : NULL;
}

static int by_name(const void *a, const void *b)
{
	const struct tree_file *x = a, *y = b;

	return strcmp(x->name, y->name);
}

int tree_read(char *const paths[], size_t n, struct tree *ret, struct error *e)
{
	struct tree tree = { 0 };
	_cleanup_(cleanup_mem) struct walk *walk = calloc(1, sizeof(*walk));
	int r = walk ? 0 : -ENOMEM;

	for (size_t i = 0; !r && i < n; i++) {
		struct stat st;
		bool contents = n == 1 && !stat(paths[i], &st) && S_ISDIR(st.st_mode);
		_cleanup_(cleanup_mem) char *name = contents ? strdup("") : last_part(paths[i]);

		walk->tree = &tree;
		if (!name || (!*name && !contents)) {
			r = error_set(e, -EINVAL, "%s: %s", paths[i],
				      *paths[i] && !access(paths[i], F_OK) ? "it has no name of its own" :
									     strerror(ENOENT));
			break;
		}
		r = add_entry(walk, name, paths[i], e);
		if (!r)
			r = walk_folders(walk, e);
		while (walk->depth)
			leave(walk);
	}
	if (!r)
		r = files_sort(&tree.list, e);
	if (!r && tree.n)
		qsort(tree.files, tree.n, sizeof(*tree.files), by_name);
	if (r)
		tree_fini(&tree);
	else
		*ret = tree;
	return r;
}

void tree_fini(struct tree *tree)
{
	for (size_t i = 0; i < tree->n; i++) {
		free(tree->files[i].name);
		free(tree->files[i].path);
	}
	free(tree->files);
	files_fini(&tree->list);
	*tree = (struct tree){ 0 };
}
