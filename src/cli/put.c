/*
 * forebay put: files and folders as a new version. It is the save of a group of one rank: each file is a blob under its name, and
 * item "~files" holds the modes and the folders (cli/files.h). Returns when the version is durable, and prints its number.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/check.h"
#include "cli/command.h"
#include "cli/files.h"
#include "cli/names.h"
#include "cli/source.h"
#include "cli/text.h"
#include "cli/tree.h"
#include "cli/verbs.h"

#define JOIN_MS	       10000
#define WAIT_MS	       100
#define ATTRIBUTES_MAX 64

struct put {
	struct command command;
	uint64_t step, copies;
	bool has_step;
	struct forebay_attribute attributes[ATTRIBUTES_MAX];
	size_t n_attributes;

	struct tree tree;
	struct source *sources;
	char *files; /* item "~files" */
	struct forebay_session *session;
	struct forebay_group *group;
	struct forebay_save *save;
};

enum { KEY_STEP = 0x200, KEY_COPIES };

static const struct argp_option options[] = {
	{ "step", KEY_STEP, "N", 0, "the version's step; default: seconds since 1970", 0 },
	{ "copies", KEY_COPIES, "N", 0,
	  "hold it all in the memory of so many nodes until it is durable, 1 to 3; default: 1", 0 },
	{ "attribute", 'a', "KEY=VALUE", 0, "keep this with the version; may be given 64 times", 0 },
	{ 0 },
};

static void take_attribute(struct put *put, char *text, struct argp_state *state)
{
	char *equal = strchr(text, '=');

	if (!equal || equal == text)
		argp_error(state, "--attribute: \"%s\" is not of the form KEY=VALUE", text);
	if (put->n_attributes == ATTRIBUTES_MAX)
		argp_error(state, "--attribute: at most %d", ATTRIBUTES_MAX);
	*equal = 0;
	put->attributes[put->n_attributes++] = (struct forebay_attribute){ text, equal + 1 };
}

static void take_option(struct command *command, int key, char *value, struct argp_state *state)
{
	struct put *put = container_of(command, struct put, command);

	if (key == KEY_STEP) {
		put->step = command_number(state, "--step", value, 0, INT64_MAX);
		put->has_step = true;
	} else if (key == KEY_COPIES) {
		put->copies = command_number(state, "--copies", value, 1, 3);
	} else {
		take_attribute(put, value, state);
	}
}

/* ---- offering -------------------------------------------------------------------------------------------------------- */

/* A group of its own, so that nobody else's ranks are waited for. */
static int join(struct put *put)
{
	uint64_t random = 0;
	char name[32];

	(void)!getrandom(&random, sizeof(random), 0);
	snprintf(name, sizeof(name), "put-%016" PRIx64, random);
	struct forebay_group_options group = { .size = sizeof(group),
					       .name = name,
					       .run = name,
					       .rank = 0,
					       .ranks = 1 };
	int r = forebay_group_join(put->session, &group, JOIN_MS, &put->group);
	return r < 0 ? command_fail_call(r, NULL) : 0;
}

static int offer(struct put *put, const char *name, const void *data, uint64_t len)
{
	_cleanup_(cleanup_mem) char *item_name = *name == '~' && data == put->files ? strdup(name) :
										      names_to_item(name);
	struct forebay_item item = { .size = sizeof(item), .name = item_name, .ndim = 1, .shape = &len, .data = data };

	if (!item_name)
		return command_fail("%s", strerror(ENOMEM));
	int r = forebay_save_add(put->save, &item, 1);
	return r < 0 ? command_fail_call(r, name) : 0;
}

static int offer_all(struct put *put)
{
	int r = offer(put, NAMES_FILES, put->files, strlen(put->files));

	for (size_t i = 0; !r && i < put->tree.n; i++)
		r = offer(put, put->tree.files[i].name, put->sources[i].data, put->sources[i].len);
	return r;
}

/* ---- waiting --------------------------------------------------------------------------------------------------------- */

static void take_figure(void *arg, const char *name, uint64_t value)
{
	if (!strcmp(name, "captured_bytes"))
		progress_set(arg, value);
}

static void show(struct put *put, enum forebay_stage stage, struct progress *progress)
{
	if (stage == FOREBAY_CAPTURED)
		(void)forebay_save_stats(put->save, take_figure, progress);
	else
		progress_wait(progress, "captured; until it is durable");
}

static int wait_stage(struct put *put, enum forebay_stage stage, struct progress *progress)
{
	_cleanup_(cleanup_forebay_future_free) struct forebay_future *future = NULL;
	int r = forebay_save_future(put->save, stage, &future);

	if (r < 0)
		return command_fail_call(r, put->command.arg[0]);
	while ((r = forebay_wait(future, WAIT_MS)) == -ETIMEDOUT)
		show(put, stage, progress);
	if (r < 0) {
		progress_end(progress);
		return command_fail("%s: %s", put->command.arg[0], forebay_future_error(future));
	}
	return 0;
}

/* A mapped file that was written to meanwhile: what was captured may be a mixture, so it must not stay. The daemons finish what they
 * have captured, so it is deleted once they have. */
static int take_back(struct put *put, const struct error *why, struct progress *progress)
{
	int r = wait_stage(put, FOREBAY_DURABLE, progress);
	uint64_t number = r ? 0 : forebay_save_version(put->save);

	progress_end(progress);
	if (number && forebay_delete(put->session, put->command.arg[0], number) < 0)
		return command_fail("%s; version %" PRIu64 " was published meanwhile and could not be deleted: %s",
				    why->text, number, forebay_error());
	return command_fail("%s; nothing is kept of it", why->text);
}

static int wait_durable(struct put *put)
{
	struct progress progress;
	struct error e = { 0 };

	progress_begin(&progress, "put", put->tree.bytes);
	int r = wait_stage(put, FOREBAY_CAPTURED, &progress);
	if (r)
		return r;
	if (sources_check(put->sources, put->tree.n, &e))
		return take_back(put, &e, &progress);
	r = wait_stage(put, FOREBAY_DURABLE, &progress);
	progress_end(&progress);
	return r;
}

/* ---- the whole ------------------------------------------------------------------------------------------------------- */

static int read_all(struct put *put)
{
	struct progress progress;
	struct error e = { 0 };
	int r = tree_read(put->command.arg + 1, (size_t)put->command.n_args - 1, &put->tree, &e);

	if (r)
		return command_fail("%s", e.code ? e.text : strerror(-r));
	put->files = files_encode(&put->tree.list);
	if (!put->files)
		return command_fail("%s", strerror(ENOMEM));
	progress_begin(&progress, "read", put->tree.bytes);
	r = sources_open(&put->tree, &progress, &put->sources, &e);
	progress_end(&progress);
	return r ? command_fail("%s", e.code ? e.text : strerror(-r)) : 0;
}

static int run(struct put *put)
{
	const char *bundle = put->command.arg[0];

	if (strchr(bundle, '@'))
		return command_fail("%s: a bundle's name has no '@' here: BUNDLE@V names a version", bundle);
	if (read_all(put) || command_connect(&put->command, &put->session) || join(put))
		return EXIT_FAILURE;
	struct forebay_save_options save = { .size = sizeof(save),
					     .copies = (uint32_t)put->copies,
					     .policy = put->copies > 1 ? "wait" : "through",
					     .attributes = put->attributes,
					     .n_attributes = put->n_attributes };
	int r = forebay_save_begin(put->group, bundle, put->has_step ? put->step : (uint64_t)time(NULL), &save,
				   &put->save);
	if (r < 0)
		return command_fail_call(r, bundle);
	if (offer_all(put))
		return EXIT_FAILURE;
	r = forebay_save_submit(put->save);
	if (r < 0)
		return command_fail_call(r, bundle);
	if (wait_durable(put))
		return EXIT_FAILURE;
	uint64_t number = forebay_save_version(put->save);
	if (put->command.json)
		printf("{\"version\": %" PRIu64 "}\n", number);
	else
		printf("%" PRIu64 "\n", number);
	return EXIT_SUCCESS;
}

int verb_put(int argc, char **argv)
{
	struct put put = {
		.command = {
			.args = "BUNDLE PATH...",
			.doc = "Stores files and folders as a new version of BUNDLE, and prints its number once it is durable.\v"
			       "One PATH that is a folder gives what is in it; several, and files, keep the last part of their names. "
			       "Symbolic links are followed.",
			.options = options,
			.option = take_option,
			.args_min = 2,
			.args_max = INT32_MAX,
			.has_session = true,
			.has_json = true,
		},
	};

	command_parse(&put.command, argc, argv);
	int status = run(&put);
	forebay_save_free(put.save); /* first: it may still read the files */
	forebay_group_leave(put.group);
	forebay_disconnect(put.session);
	sources_free(put.sources, put.tree.n);
	free(put.files);
	tree_fini(&put.tree);
	return status;
}
