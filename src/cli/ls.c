/*
 * forebay ls: bundles; with a bundle its versions and labels, with the parts before some "/" of names the bundles below; -r: all of it.
 *
 * What --json prints depends on what is published and labelled alone, and is sorted: before and after `forebay meta rebuild` it is
 * the same, byte for byte. A bundle without a version is not shown.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/check.h"
#include "cli/command.h"
#include "cli/text.h"
#include "cli/verbs.h"

struct ls {
	struct command command;
	bool recursive;
	bool versions; /* to be shown: of a bundle, or of all */
};

static const struct argp_option options[] = {
	{ "recursive", 'r', NULL, 0, "all bundles with their versions and labels", 0 },
	{ 0 },
};

static void take_option(struct command *command, int key, char *value, struct argp_state *state)
{
	container_of(command, struct ls, command)->recursive = true;
}

/* ---- collecting ------------------------------------------------------------------------------------------------------ */

/* "retain": the rule; none where all versions stay. */
static void add_rule(json_t *bundle, const struct forebay_bundle_info *info)
{
	json_t *rule;

	if (!info->keep_last)
		return;
	rule = json_object();
	json_object_set_new(rule, "last", json_u64(info->keep_last));
	json_object_set_new(rule, "every", json_u64(info->keep_every));
	json_object_set_new(bundle, "retain", rule);
}

/* The bundle asked for, among those whose names begin with its. */
static int take_rule(void *arg, const struct forebay_bundle_info *info)
{
	json_t *bundle = arg;

	if (strcmp(info->name, json_string_value(json_object_get(bundle, "name"))) == 0)
		add_rule(bundle, info);
	return 1; /* it comes first, if it is there */
}

static int take_bundle(void *arg, const struct forebay_bundle_info *info)
{
	json_t *bundles = arg;

	if (info->versions) {
		json_t *bundle = json_pack("{s:s}", "name", info->name);

		json_object_set_new(bundle, "latest", json_u64(info->latest));
		json_object_set_new(bundle, "n_versions", json_u64(info->versions));
		add_rule(bundle, info);
		json_array_append_new(bundles, bundle);
	}
	return 0;
}

static int take_version(void *arg, const struct forebay_version_entry *entry)
{
	json_t *versions = arg, *version = json_object(), *attributes = json_object();

	for (size_t i = 0; i < entry->n_attributes; i++)
		json_object_set_new(attributes, entry->attributes[i].key, json_string(entry->attributes[i].value));
	json_object_set_new(version, "number", json_u64(entry->number));
	json_object_set_new(version, "step", json_u64(entry->step));
	json_object_set_new(version, "items", json_u64(entry->items));
	json_object_set_new(version, "bytes", json_u64(entry->bytes));
	json_object_set_new(version, "stored_bytes", json_u64(entry->stored_bytes));
	json_object_set_new(version, "attributes", attributes);
	json_array_append_new(versions, version);
	return 0;
}

static int take_label(void *arg, const char *label, uint64_t number)
{
	json_object_set_new(arg, label, json_u64(number));
	return 0;
}

/* Adds "versions" and "labels". */
static int fill_bundle(struct forebay_session *session, json_t *bundle)
{
	const char *name = json_string_value(json_object_get(bundle, "name"));
	json_t *versions = json_array(), *labels = json_object();

	json_object_set_new(bundle, "versions", versions);
	json_object_set_new(bundle, "labels", labels);
	int r = forebay_list_versions(session, name, take_version, versions);
	if (r >= 0)
		r = forebay_list_labels(session, name, take_label, labels);
	if (r < 0)
		return r;

	size_t n = json_array_size(versions);
	json_t *last = json_array_get(versions, n ? n - 1 : 0);
	json_object_set(bundle, "latest", n ? json_object_get(last, "number") : json_integer(0));
	json_object_set_new(bundle, "n_versions", json_integer((json_int_t)n));
	return 0;
}

/* The bundle of that name. -ENOENT: there is none, and nothing was added. */
static int collect_one(struct forebay_session *session, const char *name, json_t *bundles)
{
	json_t *bundle = json_pack("{s:s}", "name", name);
	int r = fill_bundle(session, bundle);

	if (r >= 0)
		r = forebay_list_bundles(session, name, take_rule, bundle);
	if (r >= 0)
		json_array_append(bundles, bundle);
	json_decref(bundle);
	return r < 0 ? r : 0;
}

/* All whose names begin with @prefix. */
static int collect_below(const struct ls *ls, struct forebay_session *session, const char *prefix, json_t *bundles)
{
	int r = forebay_list_bundles(session, prefix, take_bundle, bundles);

	if (r < 0)
		return command_fail_index(r, *prefix ? prefix : NULL);
	for (size_t i = 0; ls->recursive && i < json_array_size(bundles); i++) {
		r = fill_bundle(session, json_array_get(bundles, i));
		if (r < 0 && r != -ENOENT) /* its last version was deleted meanwhile */
			return command_fail_index(
				r, json_string_value(json_object_get(json_array_get(bundles, i), "name")));
	}
	return 0;
}

/* "a/b" is the bundle of that name, or else the folder of names below it; "a/b/" is that folder. */
static int collect(struct ls *ls, struct forebay_session *session, json_t *bundles)
{
	const char *what = ls->command.n_args ? ls->command.arg[0] : "";
	size_t len = strlen(what);
	bool is_folder = !len || what[len - 1] == '/';
	_cleanup_(cleanup_mem) char *prefix = calloc(1, len + 2);
	int r = -ENOENT;

	if (!prefix)
		return command_fail("%s", strerror(ENOMEM));
	if (!view_is_utf8(view_str(what)))
		return command_fail("%s: not valid UTF-8", what);
	if (!is_folder)
		r = collect_one(session, what, bundles);
	ls->versions = ls->recursive || !r;
	if (r != -ENOENT)
		return r ? command_fail_index(r, what) : 0;
	memcpy(prefix, what, len);
	if (!is_folder)
		prefix[len] = '/';
	r = collect_below(ls, session, prefix, bundles);
	if (!r && len && !json_array_size(bundles))
		return command_fail("there is no bundle %s, and none below it", what);
	return r;
}

/* ---- printing -------------------------------------------------------------------------------------------------------- */

static uint64_t number_of(json_t *object, const char *key)
{
	return json_u64_value(json_object_get(object, key));
}

/* The labels that point to a version, as "prod, best". */
static void add_labels(struct table *table, json_t *labels, uint64_t number)
{
	char text[512] = "";
	size_t used = 0;
	const char *label;
	json_t *value;

	json_object_foreach(labels, label, value)
	{
		if (json_u64_value(value) == number && used < sizeof(text))
			used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s", used ? ", " : "", label);
	}
	table_add(table, text);
}

static void add_versions(struct table *table, json_t *bundle)
{
	const char *name = json_string_value(json_object_get(bundle, "name"));
	size_t i;
	json_t *version;

	json_array_foreach(json_object_get(bundle, "versions"), i, version)
	{
		uint64_t number = number_of(version, "number");

		table_addf(table, "%s@%" PRIu64, name, number);
		table_addf(table, "%" PRIu64, number_of(version, "step"));
		table_addf(table, "%" PRIu64, number_of(version, "items"));
		table_add_size(table, number_of(version, "bytes"));
		table_add_size(table, number_of(version, "stored_bytes"));
		add_labels(table, json_object_get(bundle, "labels"), number);
	}
}

static const char *rule_text(json_t *rule, char out[TEXT_RULE_MAX])
{
	return text_rule(number_of(rule, "last"), number_of(rule, "every"), out);
}

static bool has_rules(json_t *bundles)
{
	json_t *bundle;
	size_t i;

	json_array_foreach(bundles, i, bundle)
	{
		if (json_object_get(bundle, "retain"))
			return true;
	}
	return false;
}

static int print_table(json_t *bundles, bool versions)
{
	static const char *const heads[2][7] = { { "BUNDLE", "VERSIONS", "LATEST" },
						 { "VERSION", "STEP", "ITEMS", "BYTES", "STORED", "LABELS" } };
	struct table table;
	bool rules = !versions && has_rules(bundles);
	char rule[TEXT_RULE_MAX];
	json_t *bundle;
	size_t i;

	table_init(&table, versions ? "lrrrrl" : rules ? "lrrl" : "lrr");
	for (const char *const *head = heads[versions]; *head; head++)
		table_add(&table, *head);
	if (rules)
		table_add(&table, "KEPT");
	json_array_foreach(bundles, i, bundle)
	{
		if (versions) {
			add_versions(&table, bundle);
			continue;
		}
		table_add(&table, json_string_value(json_object_get(bundle, "name")));
		table_addf(&table, "%" PRIu64, number_of(bundle, "n_versions"));
		table_addf(&table, "%" PRIu64, number_of(bundle, "latest"));
		if (rules)
			table_add(&table, rule_text(json_object_get(bundle, "retain"), rule));
	}
	int r = table_print(&table);
	table_fini(&table);
	bundle = json_array_get(bundles, 0);
	if (versions && json_array_size(bundles) == 1 && json_object_get(bundle, "retain"))
		printf("kept: %s\n", rule_text(json_object_get(bundle, "retain"), rule));
	return r;
}

static int run(struct ls *ls)
{
	_cleanup_(cleanup_forebay_disconnect) struct forebay_session *session = NULL;
	_cleanup_(cleanup_json_decref) json_t *root = json_object();
	json_t *bundles = json_array();

	json_object_set_new(root, "bundles", bundles);
	if (command_connect(&ls->command, &session) || collect(ls, session, bundles))
		return EXIT_FAILURE;
	int r = ls->command.json ? json_print(root) : print_table(bundles, ls->versions);
	return r ? command_fail("%s", strerror(-r)) : EXIT_SUCCESS;
}

int verb_ls(int argc, char **argv)
{
	struct ls ls = {
		.command = {
			.args = "[BUNDLE|PREFIX]",
			.doc = "Lists bundles; with BUNDLE its versions and labels, with PREFIX the bundles whose names begin with "
			       "\"PREFIX/\".",
			.options = options,
			.option = take_option,
			.args_max = 1,
			.has_session = true,
			.has_json = true,
		},
	};

	command_parse(&ls.command, argc, argv);
	return run(&ls);
}
