#include "cli/files.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "cli/names.h"
#include "cli/text.h"

static void list_fini(struct files_entry *list, size_t n)
{
	for (size_t i = 0; i < n; i++)
		free(list[i].name);
	free(list);
}

void files_fini(struct files *files)
{
	list_fini(files->files, files->n_files);
	list_fini(files->folders, files->n_folders);
	*files = (struct files){ 0 };
}

int files_add(struct files_entry **list, size_t *n, const char *name, uint32_t mode)
{
	bool full = !(*n & (*n - 1)); /* 0, 1, 2, 4, ... */
	struct files_entry *more = full ? reallocarray(*list, *n ? 2 * *n : 1, sizeof(*more)) : *list;

	if (!more)
		return -ENOMEM;
	*list = more;
	more[*n] = (struct files_entry){ strdup(name), mode };
	if (!more[*n].name)
		return -ENOMEM;
	++*n;
	return 0;
}

/* ---- order ----------------------------------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
	const struct files_entry *x = a, *y = b;

	return strcmp(x->name, y->name);
}

static const struct files_entry *find(const struct files_entry *list, size_t n, const char *name)
{
	const struct files_entry key = { .name = (char *)name };

	return n ? bsearch(&key, list, n, sizeof(*list), by_name) : NULL;
}

static int sort_list(struct files_entry *list, size_t n, struct error *e)
{
	if (n)
		qsort(list, n, sizeof(*list), by_name);
	for (size_t i = 1; i < n; i++) {
		if (!strcmp(list[i - 1].name, list[i].name))
			return error_set(e, -EEXIST, "%s: two files would have this name", list[i].name);
	}
	return 0;
}

/* No file is a folder, too, or stands in the path of @name. */
static int check_parents(const struct files *files, const char *name, struct error *e)
{
	char path[NAMES_ITEM_MAX + 1];
	size_t len = strlen(name);

	if (len > NAMES_ITEM_MAX)
		return error_set(e, -ENAMETOOLONG, "%s: a name has at most %d bytes", name, NAMES_ITEM_MAX);
	memcpy(path, name, len + 1);
	for (char *slash = strrchr(path, '/'); slash; slash = strrchr(path, '/')) {
		*slash = 0;
		if (find(files->files, files->n_files, path))
			return error_set(e, -EEXIST, "%s: a file and a folder would have this name", path);
	}
	return 0;
}

int files_sort(struct files *files, struct error *e)
{
	int r = sort_list(files->files, files->n_files, e);

	if (!r)
		r = sort_list(files->folders, files->n_folders, e);
	for (size_t i = 0; !r && i < files->n_files; i++)
		r = check_parents(files, files->files[i].name, e);
	for (size_t i = 0; !r && i < files->n_folders; i++) {
		const char *name = files->folders[i].name;

		r = find(files->files, files->n_files, name) ?
			    error_set(e, -EEXIST, "%s: a file and a folder would have this name", name) :
			    check_parents(files, name, e);
	}
	return r;
}

/* ---- JSON ------------------------------------------------------------------------------------------------------------ */

static json_t *encode_list(const struct files_entry *list, size_t n)
{
	json_t *object = json_object();

	for (size_t i = 0; object && i < n; i++) {
		if (json_object_set_new(object, list[i].name, json_integer(list[i].mode))) {
			json_decref(object);
			return NULL;
		}
	}
	return object;
}

char *files_encode(const struct files *files)
{
	_cleanup_(cleanup_json_decref) json_t *root = json_object();
	json_t *list = encode_list(files->files, files->n_files),
	       *folders = encode_list(files->folders, files->n_folders);
	bool bad = json_object_set_new(root, "format", json_integer(FILES_FORMAT)) != 0;

	bad |= json_object_set_new(root, "files", list) != 0;
	bad |= json_object_set_new(root, "folders", folders) != 0;
	return bad ? NULL : json_dumps(root, JSON_COMPACT | JSON_SORT_KEYS);
}

static int decode_list(json_t *object, struct files_entry **list, size_t *n, struct error *e)
{
	const char *name;
	json_t *mode;

	if (!json_is_object(object))
		return error_set(e, -EINVAL, "%s: not as `forebay put` writes it", NAMES_FILES);
	json_object_foreach(object, name, mode)
	{
		json_int_t value = json_integer_value(mode);

		if (!names_is_path(name))
			return error_set(e, -EINVAL, "\"%s\": not a path inside a folder; nothing is written", name);
		if (!json_is_integer(mode) || value < 0 || value > FILES_MODE)
			return error_set(e, -EINVAL, "%s: its mode makes no sense", name);
		int r = files_add(list, n, name, (uint32_t)value);
		if (r)
			return r;
	}
	return 0;
}

int files_decode(const char *text, size_t len, struct files *ret, struct error *e)
{
	_cleanup_(cleanup_json_decref) json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
	struct files files = { 0 };

	if (json_integer_value(json_object_get(root, "format")) != FILES_FORMAT)
		return error_set(e, -EINVAL, "%s: not of format %d, which is all that this program knows", NAMES_FILES,
				 FILES_FORMAT);
	int r = decode_list(json_object_get(root, "files"), &files.files, &files.n_files, e);
	if (!r)
		r = decode_list(json_object_get(root, "folders"), &files.folders, &files.n_folders, e);
	if (!r)
		r = files_sort(&files, e);
	if (r)
		files_fini(&files);
	else
		*ret = files;
	return r;
}
