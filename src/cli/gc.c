/*
 * forebay gc: collects now, and prints what was found and freed.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "cli/command.h"
#include "cli/text.h"
#include "cli/verbs.h"

struct gc {
	struct command command;
	json_t *root, *unclear;
	uint64_t missing;
};

static void take_figure(void *arg, const char *name, uint64_t value)
{
	struct gc *gc = arg;

	json_object_set_new(gc->root, name, json_u64(value));
	if (strcmp(name, "packs_missing") == 0)
		gc->missing = value;
}

static void take_unclear(void *arg, const char *key)
{
	struct gc *gc = arg;

	json_array_append_new(gc->unclear, json_string(key));
}

static int print_text(const struct gc *gc)
{
	const char *name;
	json_t *value;
	size_t i;

	json_object_foreach(gc->root, name, value)
	{
		if (json_is_integer(value))
			printf("%-20s %" JSON_INTEGER_FORMAT "\n", name, json_integer_value(value));
	}
	json_array_foreach(gc->unclear, i, value)
	{
		printf("not understood, left alone: ");
		text_print(stdout, json_string_value(value));
		putchar('\n');
	}
	return 0;
}

int verb_gc(int argc, char **argv)
{
	struct gc
		gc = { .command = {
			       .args = "[BUNDLE]",
			       .doc = "Applies the rules of `forebay retain`, burns slots of coordinators that died, and frees objects that no "
				      "version needs; in BUNDLE or in all. Daemons do so by themselves every now and then. Prints what "
				      "was found and freed; exits with 1 when packs or the root of a version are missing.",
			       .args_max = 1,
			       .has_session = true,
			       .has_json = true,
		       } };
	const struct forebay_collect_events events = { .size = sizeof(events),
						       .figure = take_figure,
						       .unclear = take_unclear };
	_cleanup_(cleanup_forebay_disconnect) struct forebay_session *session = NULL;
	_cleanup_(cleanup_json_decref) json_t *root = json_object();

	command_parse(&gc.command, argc, argv);
	gc.root = root;
	gc.unclear = json_array();
	json_object_set_new(root, "unclear", gc.unclear);
	if (command_connect(&gc.command, &session))
		return EXIT_FAILURE;
	const char *bundle = gc.command.n_args ? gc.command.arg[0] : NULL;
	int r = forebay_collect(session, bundle, &events, &gc);
	if (r < 0)
		return command_fail_index(r, bundle);
	r = gc.command.json ? json_print(root) : print_text(&gc);
	if (r)
		return command_fail("%s", strerror(-r));
	return gc.missing ?
		       command_fail("%" PRIu64
				    " objects that versions need are missing: see the daemon's log, and forebay verify",
				    gc.missing) :
		       EXIT_SUCCESS;
}
