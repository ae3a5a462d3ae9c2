/*
 * forebay show: a version's facts and its items, page after page, however many there are.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/command.h"
#include "cli/names.h"
#include "cli/text.h"
#include "cli/verbs.h"

#define PAGE_ITEMS 256
#define SHAPE_MAX  (8 * 22)

/* Prints one page of items; @first: it is the first. */
typedef int (*show_page)(const struct forebay_item_info *items, size_t n, bool first);

static void shape_text(const struct forebay_item_info *item, char out[SHAPE_MAX])
{
	size_t used = 1;

	snprintf(out, SHAPE_MAX, "[");
	for (uint32_t d = 0; d < item->ndim; d++)
		used += (size_t)snprintf(out + used, SHAPE_MAX - used, "%s%" PRIu64, d ? "," : "", item->shape[d]);
	snprintf(out + used, SHAPE_MAX - used, "]");
}

/* Columns are as wide as a page needs: a version may have a million items. */
static int print_rows(const struct forebay_item_info *items, size_t n, bool first)
{
	static const char *const heads[] = { "ITEM", "DTYPE", "SHAPE", "BYTES" };
	struct table table;

	table_init(&table, "lllr");
	for (size_t i = 0; first && i < 4; i++)
		table_add(&table, heads[i]);
	for (size_t i = 0; i < n; i++) {
		char shape[SHAPE_MAX];

		shape_text(&items[i], shape);
		table_add(&table, items[i].name);
		table_add(&table, items[i].dtype);
		table_add(&table, shape);
		if (items[i].unsaved_bytes)
			table_addf(&table, "%" PRIu64 " of %" PRIu64, items[i].bytes - items[i].unsaved_bytes,
				   items[i].bytes);
		else
			table_addf(&table, "%" PRIu64, items[i].bytes);
	}
	int r = table_print(&table);
	table_fini(&table);
	return r;
}

static int print_objects(const struct forebay_item_info *items, size_t n, bool first)
{
	for (size_t i = 0; i < n; i++) {
		json_t *shape = json_array(), *object = json_object();

		for (uint32_t d = 0; d < items[i].ndim; d++)
			json_array_append_new(shape, json_u64(items[i].shape[d]));
		json_object_set_new(object, "name", json_string(items[i].name));
		json_object_set_new(object, "dtype", json_string(items[i].dtype));
		json_object_set_new(object, "element_bits", json_integer(items[i].element_bits));
		json_object_set_new(object, "shape", shape);
		json_object_set_new(object, "bytes", json_u64(items[i].bytes));
		json_object_set_new(object, "unsaved_bytes", json_u64(items[i].unsaved_bytes));
		_cleanup_(cleanup_mem) char *text = json_dumps(object, JSON_SORT_KEYS);
		json_decref(object);
		if (!text)
			return -ENOMEM;
		printf("%s\n    %s", first && !i ? "" : ",", text);
	}
	return 0;
}

static int print_items(struct forebay_version *version, show_page page)
{
	struct forebay_item_info items[PAGE_ITEMS] = { 0 };
	_cleanup_(cleanup_mem) char *after = NULL;
	size_t n = PAGE_ITEMS;

	for (bool first = true; n == PAGE_ITEMS; first = false) {
		for (size_t i = 0; i < PAGE_ITEMS; i++)
			items[i].size = sizeof(items[i]);
		int r = forebay_version_items(version, after, items, PAGE_ITEMS, &n);
		if (r < 0)
			return command_fail_call(r, NULL);
		r = page(items, n, first);
		if (r)
			return command_fail("%s", strerror(-r));
		free(after);
		after = n ? strdup(items[n - 1].name) : NULL;
		if (n && !after)
			return command_fail("%s", strerror(ENOMEM));
	}
	return 0;
}

/* The rule of the version's bundle: it comes first among those whose names begin with its. */
static int take_rule(void *arg, const struct forebay_bundle_info *info)
{
	struct forebay_bundle_info *rule = arg;

	if (!strcmp(info->name, rule->name)) {
		rule->keep_last = info->keep_last;
		rule->keep_every = info->keep_every;
	}
	return 1;
}

static void print_rule(const struct forebay_bundle_info *rule)
{
	char text[TEXT_RULE_MAX];

	if (rule->keep_last)
		printf("kept: %s\n", text_rule(rule->keep_last, rule->keep_every, text));
}

static int print_text(struct forebay_version *version, const struct forebay_version_info *info,
		      const struct forebay_bundle_info *rule)
{
	char size[TEXT_SIZE_MAX];

	text_size(info->bytes, size);
	text_print(stdout, info->bundle);
	printf("@%" PRIu64 "  step %" PRIu64 "  %" PRIu64 " items  %s\n", info->number, info->step, info->items, size);
	for (size_t i = 0; i < info->n_attributes; i++) {
		text_print(stdout, info->attributes[i].key);
		printf(" = ");
		text_print(stdout, info->attributes[i].value);
		putchar('\n');
	}
	print_rule(rule);
	if (info->unindexed)
		printf("(the index is unavailable: this is what the store says)\n");
	putchar('\n');
	return print_items(version, print_rows);
}

static int print_json(struct forebay_version *version, const struct forebay_version_info *info,
		      const struct forebay_bundle_info *rule)
{
	_cleanup_(cleanup_json_decref) json_t *attributes = json_object(), *bundle = json_string(info->bundle);
	_cleanup_(cleanup_mem) char *attributes_text = NULL, *bundle_text = NULL;

	for (size_t i = 0; i < info->n_attributes; i++)
		json_object_set_new(attributes, info->attributes[i].key, json_string(info->attributes[i].value));
	attributes_text = json_dumps(attributes, JSON_SORT_KEYS);
	bundle_text = json_dumps(bundle, JSON_ENCODE_ANY);
	if (!attributes_text || !bundle_text)
		return command_fail("%s", strerror(ENOMEM));
	printf("{\n  \"attributes\": %s,\n  \"bundle\": %s,\n  \"bytes\": %" PRIu64 ",\n  \"items\": [",
	       attributes_text, bundle_text, info->bytes);
	int r = print_items(version, print_objects);
	if (!r)
		printf("\n  ],\n  \"number\": %" PRIu64, info->number);
	if (!r && rule->keep_last)
		printf(",\n  \"retain\": {\"every\": %" PRIu64 ", \"last\": %" PRIu64 "}", rule->keep_every,
		       rule->keep_last);
	if (!r)
		printf(",\n  \"step\": %" PRIu64 ",\n  \"unindexed\": %s\n}\n", info->step,
		       info->unindexed ? "true" : "false");
	return r;
}

int verb_show(int argc, char **argv)
{
	struct command command = {
		.args = "BUNDLE[@VERSION]",
		.doc = "Shows a version: step, attributes, and its items with dtype, shape and bytes. VERSION is a number, a label or "
		       "\"latest\", which is the default.",
		.args_min = 1,
		.args_max = 1,
		.has_session = true,
		.has_json = true,
	};
	_cleanup_(cleanup_forebay_disconnect) struct forebay_session *session = NULL;
	_cleanup_(cleanup_forebay_close) struct forebay_version *version = NULL;
	struct forebay_version_info info = { .size = sizeof(info) };

	command_parse(&command, argc, argv);
	if (command_connect(&command, &session) || names_open(session, command.arg[0], &version))
		return EXIT_FAILURE;
	int r = forebay_version_info(version, &info);
	if (r < 0)
		return command_fail_call(r, command.arg[0]);
	struct forebay_bundle_info rule = { .name = info.bundle };
	(void)forebay_list_bundles(session, info.bundle, take_rule, &rule); /* without an index it is not known */
	return command.json ? print_json(version, &info, &rule) : print_text(version, &info, &rule);
}
