/*
 * forebay get: the files of a version that `forebay put` made, as they were: names, modes, folders, holes. They appear in the folder
 * all at once, or not at all (cli/outdir.h).
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "cli/command.h"
#include "cli/fetch.h"
#include "cli/files.h"
#include "cli/names.h"
#include "cli/outdir.h"
#include "cli/text.h"
#include "cli/verbs.h"

#define FILES_BYTES_MAX (UINT64_C(2) << 30) /* of item "~files" */
#define LANES		FETCH_LANES

_Static_assert(LANES <= OUTDIR_LANES, "a file at hand for each lane");

struct get {
	struct command command;
	bool force;

	struct forebay_version_info info;
	struct buf files_text;
	struct files files;
	struct fetch_item *items; /* files.files, as they are asked for */
	struct outdir *out;
	pthread_mutex_t lock; /* around progress */
	struct progress progress;
};

static const struct argp_option options[] = {
	{ "force", 'F', NULL, 0, "replace files that are there", 0 },
	{ 0 },
};

static void take_option(struct command *command, int key, char *value, struct argp_state *state)
{
	container_of(command, struct get, command)->force = true;
}

static int append_text(void *arg, unsigned lane, size_t item, uint64_t offset, const uint8_t *data, size_t len,
		       struct error *e)
{
	struct get *get = arg;

	return buf_append(&get->files_text, data, len);
}

static int find_item(struct forebay_version *version, const char *name, struct fetch_item *ret, struct error *e)
{
	struct forebay_item_info info = { .size = sizeof(info) };
	int r = forebay_version_find(version, name, &info);

	if (r < 0)
		return error_set(e, r, "%s: %s", name, forebay_error());
	*ret = (struct fetch_item){ .name = info.name,
				    .dtype = info.dtype,
				    .element_bits = info.element_bits,
				    .ndim = info.ndim,
				    .bytes = info.bytes };
	memcpy(ret->shape, info.shape, sizeof(ret->shape));
	return 0;
}

/* What the version says of its files. */
static int read_files(struct get *get, struct forebay_version *version, struct error *e)
{
	struct fetch_item item;
	int r = find_item(version, NAMES_FILES, &item, e);

	if (r == -ENOENT)
		return error_set(e, r,
				 "%s@%" PRIu64
				 ": not made by `forebay put`; `forebay export --format raw` writes its items",
				 get->info.bundle, get->info.number);
	if (!r && item.bytes > FILES_BYTES_MAX)
		r = error_set(e, -EFBIG, "%s: %" PRIu64 " bytes", NAMES_FILES, item.bytes);
	if (!r)
		r = fetch(version, &item, 1, 1, append_text, get, e);
	return r ? r : files_decode((const char *)get->files_text.ptr, get->files_text.len, &get->files, e);
}

static void items_free(struct fetch_item *items, size_t n)
{
	for (size_t i = 0; items && i < n; i++)
		free((char *)items[i].name);
	free(items);
}

/* Every file of the list has to be an item: they are asked for one by one, since the version may hold others. */
static int find_items(struct get *get, struct forebay_version *version, struct error *e)
{
	get->items = calloc(get->files.n_files + 1, sizeof(*get->items));
	if (!get->items)
		return -ENOMEM;
	struct fetch_list all = { 0 };
	int r = fetch_list_read(version, &all, e);
	size_t at = 0;

	for (size_t i = 0; !r && i < get->files.n_files; i++) {
		_cleanup_(cleanup_mem) char *name = names_to_item(get->files.files[i].name);

		if (!name) {
			r = -ENOMEM;
			break;
		}
		/* Both are sorted, but for names with "~=" in front, which lie elsewhere. */
		if (at < all.n && strcmp(all.items[at].name, name) > 0)
			at = 0;
		while (at < all.n && strcmp(all.items[at].name, name) < 0)
			at++;
		if (at == all.n || strcmp(all.items[at].name, name) != 0)
			r = error_set(e, -ENOENT, "%s: listed in %s, but not in the version", name, NAMES_FILES);
		else if (strcmp(all.items[at].dtype, "blob") != 0 || all.items[at].ndim != 1)
			r = error_set(e, -EINVAL, "%s: listed in %s, but no blob", name, NAMES_FILES);
		else {
			get->items[i] = all.items[at];
			get->items[i].name = TAKE(name);
			get->items[i].dtype = "blob";
		}
	}
	fetch_list_fini(&all);
	return r;
}

static int write_part(void *arg, unsigned lane, size_t item, uint64_t offset, const uint8_t *data, size_t len,
		      struct error *e)
{
	struct get *get = arg;
	const struct files_entry *file = &get->files.files[item];
	int r = offset ? 0 : outdir_file(get->out, lane, file->name, file->mode, get->items[item].bytes, e);

	if (!r)
		r = outdir_write(get->out, lane, offset, data, len, e);
	pthread_mutex_lock(&get->lock);
	progress_add(&get->progress, len);
	pthread_mutex_unlock(&get->lock);
	return r;
}

static int write_files(struct get *get, struct forebay_version *version, struct error *e)
{
	int r = outdir_open(get->command.arg[1], get->force, &get->out, e);

	/* Before anything is written, everything is looked at. */
	for (size_t i = 0; !r && i < get->files.n_files; i++)
		r = outdir_check(get->out, get->files.files[i].name, e);
	for (size_t i = 0; !r && i < get->files.n_folders; i++)
		r = outdir_folder(get->out, get->files.folders[i].name, get->files.folders[i].mode, e);
	if (r)
		return r;
	progress_begin(&get->progress, "get", get->info.bytes);
	r = fetch(version, get->items, get->files.n_files, LANES, write_part, get, e);
	progress_end(&get->progress);
	return r ? r : outdir_finish(get->out, e);
}

static int run(struct get *get)
{
	_cleanup_(cleanup_forebay_disconnect) struct forebay_session *session = NULL;
	_cleanup_(cleanup_forebay_close) struct forebay_version *version = NULL;
	struct error e = { 0 };

	if (command_connect(&get->command, &session) || names_open(session, get->command.arg[0], &version))
		return EXIT_FAILURE;
	get->info.size = sizeof(get->info);
	int r = forebay_version_info(version, &get->info);
	if (r < 0)
		return command_fail_call(r, get->command.arg[0]);
	command_catch_signals();
	r = read_files(get, version, &e);
	if (!r)
		r = find_items(get, version, &e);
	if (!r)
		r = write_files(get, version, &e);
	outdir_free(get->out); /* takes everything back if it is not finished */
	if (r)
		return command_fail("%s", e.code ? e.text : strerror(-r));
	printf("%s@%" PRIu64 ": %zu file%s\n", get->info.bundle, get->info.number, get->files.n_files,
	       text_s(get->files.n_files));
	return EXIT_SUCCESS;
}

int verb_get(int argc, char **argv)
{
	struct get get = {
		.lock = PTHREAD_MUTEX_INITIALIZER,
		.command = {
			.args = "BUNDLE[@VERSION] DIR",
			.doc = "Writes the files of a version that `forebay put` made into DIR, as they were. All of them appear, or none.",
			.options = options,
			.option = take_option,
			.args_min = 2,
			.args_max = 2,
			.has_session = true,
		},
	};

	command_parse(&get.command, argc, argv);
	int status = run(&get);
	items_free(get.items, get.files.n_files);
	files_fini(&get.files);
	buf_fini(&get.files_text);
	return status;
}
