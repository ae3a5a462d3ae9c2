/*
 * forebay export: a version's tensors as safetensors, or all of its items as raw files with a manifest.
 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "cli/command.h"
#include "cli/fetch.h"
#include "cli/names.h"
#include "cli/outdir.h"
#include "cli/safetensors.h"
#include "cli/text.h"
#include "cli/verbs.h"

#define FILE_MODE     0644
#define RAW_NAME_MAX  100 /* bytes of an item's name that are kept in its file's */
#define NUMBER_MAX    24
#define FILE_NAME_MAX (RAW_NAME_MAX + NUMBER_MAX)

CLEANUP_OF(struct outdir *, outdir_free);

struct export
{
	struct command command;
	const char *format;
	bool force;

	struct forebay_version_info info;
	struct fetch_list list;
	struct outdir *out;
	struct progress progress;
	uint64_t base;	   /* where the data begin in the safetensors file at hand */
	uint64_t offset;   /* of the item at hand in them */
	size_t at;	   /* item at hand, in the list from `first` on */
	size_t first;	   /* of the file at hand */
	uint64_t left_out; /* blobs and internal items */
};

static const struct argp_option options[] = {
	{ "format", 'f', "FORMAT", 0, "safetensors (the default) or raw", 0 },
	{ "force", 'F', NULL, 0, "replace files that are there", 0 },
	{ 0 },
};

static void take_option(struct command *command, int key, char *value, struct argp_state *state)
{
	struct export *export = container_of(command, struct export, command);

	if (key == 'F')
		export->force = true;
	else if (strcmp(value, "safetensors") != 0 && strcmp(value, "raw") != 0)
		argp_error(state, "--format: \"%s\" is not known; there are safetensors and raw", value);
	else
		export->format = value;
}

/* ---- safetensors ----------------------------------------------------------------------------------------------------- */

static int is_tensor(void *arg, const struct fetch_item *item)
{
	struct export *export = arg;
	bool tensor = strcmp(item->dtype, "blob") != 0 && !names_is_internal(item->name);

	export->left_out += !tensor;
	return tensor;
}

static struct safetensors_tensor tensor_of(const struct fetch_item *item)
{
	return (struct safetensors_tensor){ .name = names_of_item(item->name),
					    .dtype = item->dtype,
					    .element_bits = item->element_bits,
					    .ndim = item->ndim,
					    .shape = item->shape,
					    .bytes = item->bytes };
}

static int compare_items(const void *a, const void *b)
{
	struct safetensors_tensor x = tensor_of(a), y = tensor_of(b);

	return safetensors_compare(&x, &y);
}

/* How many items from @first on one file takes, and what comes before their data. */
static int plan_file(const struct export *export, size_t first, struct safetensors_header *header, size_t *ret_n,
		     struct error *e)
{
	char number[NUMBER_MAX], step[NUMBER_MAX];
	const struct safetensors_metadata metadata[] = {
		{ "format", "pt" }, /* what transformers asks for */
		{ "forebay.bundle", export->info.bundle },
		{ "forebay.version", number },
		{ "forebay.step", step },
	};
	size_t n = 0;

	snprintf(number, sizeof(number), "%" PRIu64, export->info.number);
	snprintf(step, sizeof(step), "%" PRIu64, export->info.step);
	int r = safetensors_begin(header, metadata, ARRAY_LEN(metadata));
	for (; r >= 0 && first + n < export->list.n; n++) {
		struct safetensors_tensor tensor = tensor_of(&export->list.items[first + n]);

		r = safetensors_add(header, &tensor);
		if (!r)
			break;
	}
	if (r >= 0)
		r = safetensors_end(header);
	if (r < 0)
		return error_set(e, r, "no memory for the header");
	*ret_n = n;
	return 0;
}

static void name_file(size_t i, size_t files, char out[FILE_NAME_MAX])
{
	if (files == 1)
		snprintf(out, FILE_NAME_MAX, "model.safetensors");
	else
		snprintf(out, FILE_NAME_MAX, "model-%05zu-of-%05zu.safetensors", i + 1, files);
}

static int write_tensor(void *arg, unsigned lane, size_t item, uint64_t offset, const uint8_t *data, size_t len,
			struct error *e)
{
	struct export *export = arg;

	for (; export->at < item; export->at++)
		export->offset += export->list.items[export->first + export->at].bytes;
	progress_add(&export->progress, len);
	return outdir_write(export->out, 0, export->base + export->offset + offset, data, len, e);
}

static int write_file(struct export *export, struct forebay_version *version, const char *name, size_t first,
		      struct safetensors_header *header, size_t n, struct error *e)
{
	int r = outdir_file(export->out, 0, name, FILE_MODE, header->json.len + header->offset, e);

	if (!r)
		r = outdir_write(export->out, 0, 0, header->json.ptr, header->json.len, e);
	export->base = header->json.len;
	export->first = first;
	export->at = 0;
	export->offset = 0;
	return r ? r : fetch(version, export->list.items + first, n, 1, write_tensor, export, e);
}

/* What tells readers of several files which tensor lies in which. */
static int write_index(struct export *export, json_t *weight_map, struct error *e)
{
	_cleanup_(cleanup_mem) char *text = NULL;
	uint64_t total = 0;

	for (size_t i = 0; i < export->list.n; i++)
		total += export->list.items[i].bytes;
	_cleanup_(cleanup_json_decref) json_t *root =
		json_pack("{s:{s:o}, s:O}", "metadata", "total_size", json_u64(total), "weight_map", weight_map);
	text = root ? json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
	if (!text)
		return error_set(e, -ENOMEM, "no memory for the index");
	int r = outdir_file(export->out, 0, "model.safetensors.index.json", FILE_MODE, strlen(text), e);
	return r ? r : outdir_write(export->out, 0, 0, text, strlen(text), e);
}

static int count_files(const struct export *export, size_t *ret, struct error *e)
{
	size_t files = 0, n = 0;
	int r = 0;

	for (size_t first = 0; !r && (first < export->list.n || !files); first += n, files++) {
		struct safetensors_header header;

		r = plan_file(export, first, &header, &n, e);
		buf_fini(&header.json);
		if (!r && !n && export->list.n)
			return error_set(e, -EINVAL, "%s: its entry alone is longer than a header may be",
					 export->list.items[first].name);
	}
	*ret = files;
	return r;
}

static int export_safetensors(struct export *export, struct forebay_version *version, struct error *e)
{
	_cleanup_(cleanup_json_decref) json_t *weight_map = json_object();
	size_t files = 0, n = 0, first = 0;

	fetch_list_filter(&export->list, is_tensor, export);
	if (export->list.n)
		qsort(export->list.items, export->list.n, sizeof(*export->list.items), compare_items);
	int r = 0;
	for (size_t i = 0; !r && i < export->list.n; i++) {
		struct safetensors_tensor tensor = tensor_of(&export->list.items[i]);
		r = safetensors_check(&tensor, e);
	}
	if (!r)
		r = count_files(export, &files, e);
	for (size_t i = 0; !r && i < files; i++, first += n) {
		struct safetensors_header header;
		char name[FILE_NAME_MAX];

		name_file(i, files, name);
		r = plan_file(export, first, &header, &n, e);
		if (!r)
			r = write_file(export, version, name, first, &header, n, e);
		buf_fini(&header.json);
		for (size_t k = 0; !r && files > 1 && k < n; k++)
			json_object_set_new(weight_map, names_of_item(export->list.items[first + k].name),
					    json_string(name));
	}
	return !r && files > 1 ? write_index(export, weight_map, e) : r;
}

/* ---- raw ------------------------------------------------------------------------------------------------------------- */

static void name_raw(const struct fetch_item *item, size_t i, char out[FILE_NAME_MAX])
{
	char readable[RAW_NAME_MAX];

	names_to_file(item->name, readable, sizeof(readable));
	snprintf(out, FILE_NAME_MAX, "%06zu-%s", i, readable);
}

static int write_raw(void *arg, unsigned lane, size_t item, uint64_t offset, const uint8_t *data, size_t len,
		     struct error *e)
{
	struct export *export = arg;
	int r = 0;

	if (!offset) {
		char name[FILE_NAME_MAX];

		name_raw(&export->list.items[item], item, name);
		r = outdir_file(export->out, 0, name, FILE_MODE, export->list.items[item].bytes, e);
	}
	progress_add(&export->progress, len);
	return r ? r : outdir_write(export->out, 0, offset, data, len, e);
}

static json_t *manifest(const struct export *export)
{
	json_t *root = json_object(), *items = json_array();

	for (size_t i = 0; i < export->list.n; i++) {
		const struct fetch_item *item = &export->list.items[i];
		json_t *object = json_object(), *shape = json_array();
		char name[FILE_NAME_MAX];

		name_raw(item, i, name);
		for (uint32_t d = 0; d < item->ndim; d++)
			json_array_append_new(shape, json_u64(item->shape[d]));
		json_object_set_new(object, "name", json_string(item->name));
		json_object_set_new(object, "dtype", json_string(item->dtype));
		json_object_set_new(object, "element_bits", json_integer(item->element_bits));
		json_object_set_new(object, "shape", shape);
		json_object_set_new(object, "bytes", json_u64(item->bytes));
		json_object_set_new(object, "file", json_string(name));
		json_array_append_new(items, object);
	}
	json_object_set_new(root, "bundle", json_string(export->info.bundle));
	json_object_set_new(root, "version", json_u64(export->info.number));
	json_object_set_new(root, "step", json_u64(export->info.step));
	json_object_set_new(root, "items", items);
	return root;
}

static int export_raw(struct export *export, struct forebay_version *version, struct error *e)
{
	_cleanup_(cleanup_json_decref) json_t *root = manifest(export);
	_cleanup_(cleanup_mem) char *text = root ? json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
	int r = text ? 0 : error_set(e, -ENOMEM, "no memory for the manifest");

	if (!r)
		r = outdir_file(export->out, 0, "manifest.json", FILE_MODE, strlen(text), e);
	if (!r)
		r = outdir_write(export->out, 0, 0, text, strlen(text), e);
	return r ? r : fetch(version, export->list.items, export->list.n, 1, write_raw, export, e);
}

/* ---- the whole ------------------------------------------------------------------------------------------------------- */

static int write_all(struct export *export, struct forebay_version *version, struct error *e)
{
	bool raw = export->format && !strcmp(export->format, "raw");
	int r = fetch_list_read(version, &export->list, e);

	if (!r)
		r = outdir_open(export->command.arg[1], export->force, &export->out, e);
	if (r)
		return r;
	progress_begin(&export->progress, "export", export->info.bytes);
	r = raw ? export_raw(export, version, e) : export_safetensors(export, version, e);
	progress_end(&export->progress);
	return r ? r : outdir_finish(export->out, e);
}

static int run(struct export *export)
{
	_cleanup_(cleanup_forebay_disconnect) struct forebay_session *session = NULL;
	_cleanup_(cleanup_forebay_close) struct forebay_version *version = NULL;
	struct error e = { 0 };

	if (command_connect(&export->command, &session) || names_open(session, export->command.arg[0], &version))
		return EXIT_FAILURE;
	export->info.size = sizeof(export->info);
	int r = forebay_version_info(version, &export->info);
	if (r < 0)
		return command_fail_call(r, export->command.arg[0]);
	command_catch_signals();
	r = write_all(export, version, &e);
	outdir_free(export->out); /* takes everything back if it is not finished */
	if (r)
		return command_fail("%s", e.code ? e.text : strerror(-r));
	printf("%s@%" PRIu64 ": %zu item%s", export->info.bundle, export->info.number, export->list.n,
	       text_s(export->list.n));
	if (export->left_out)
		printf(", %" PRIu64 " that are no tensors left out", export->left_out);
	putchar('\n');
	return EXIT_SUCCESS;
}

int verb_export(int argc, char **argv)
{
	struct export export = {
		.command = {
			.args = "BUNDLE[@VERSION] DIR",
			.doc = "Writes a version's tensors into DIR/model.safetensors, or with --format raw each item into a file of "
			       "its own beside a manifest.json.",
			.options = options,
			.option = take_option,
			.args_min = 2,
			.args_max = 2,
			.has_session = true,
		},
	};

	command_parse(&export.command, argc, argv);
	int status = run(&export);
	fetch_list_fini(&export.list);
	return status;
}
