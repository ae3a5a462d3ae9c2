/*
 * forebay label: shows, moves or removes a label. A move is one step: readers see the old version or the new one.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "cli/command.h"
#include "cli/names.h"
#include "cli/text.h"
#include "cli/verbs.h"

struct label {
	struct command command;
	bool remove;
	const char *expect;
	uint64_t found; /* where it points now */
};

enum { KEY_REMOVE = 0x200, KEY_EXPECT };

static const struct argp_option options[] = {
	{ "remove", KEY_REMOVE, NULL, 0, "remove the label; the version stays", 0 },
	{ "expect", KEY_EXPECT, "N", 0, "only if the label points to version N now; 0: only if there is none", 0 },
	{ 0 },
};

static void take_option(struct command *command, int key, char *value, struct argp_state *state)
{
	struct label *label = container_of(command, struct label, command);

	if (key == KEY_REMOVE) {
		label->remove = true;
		return;
	}
	(void)command_number(state, "--expect", value, 0, UINT64_MAX - 1);
	label->expect = value;
}

static int find(void *arg, const char *name, uint64_t number)
{
	struct label *label = arg;

	if (!strcmp(name, label->command.arg[1]))
		label->found = number;
	return label->found != 0;
}

static int show(struct label *label, struct forebay_session *session)
{
	char **arg = label->command.arg;
	int r = forebay_list_labels(session, arg[0], find, label);

	if (r < 0)
		return command_fail_index(r, arg[0]);
	if (!label->found)
		return command_fail("%s: there is no label \"%s\"", arg[0], arg[1]);
	printf("%" PRIu64 "\n", label->found);
	return EXIT_SUCCESS;
}

static int run(struct label *label)
{
	_cleanup_(cleanup_forebay_disconnect) struct forebay_session *session = NULL;
	char **arg = label->command.arg;
	uint64_t number = 0, expect = label->expect ? strtoull(label->expect, NULL, 10) : FOREBAY_LABEL_ANY;
	bool set = label->command.n_args == 3;

	if (set && label->remove) {
		command_fail("a version and --remove do not go together");
		return COMMAND_MISUSED;
	}
	if (set && !names_is_number(arg[2], &number)) {
		command_fail("\"%s\": not the number of a version", arg[2]);
		return COMMAND_MISUSED;
	}
	if (command_connect(&label->command, &session))
		return EXIT_FAILURE;
	if (!set && !label->remove)
		return show(label, session);
	int r = forebay_label(session, arg[0], arg[1], expect, number);
	return r < 0 ? command_fail_index(r, arg[0]) : EXIT_SUCCESS;
}

int verb_label(int argc, char **argv)
{
	struct label label = {
		.command = {
			.args = "BUNDLE LABEL [NUMBER]",
			.doc = "Points LABEL to version NUMBER, or removes it; without either prints the number that it points to.",
			.options = options,
			.option = take_option,
			.args_min = 2,
			.args_max = 3,
			.has_session = true,
		},
	};

	command_parse(&label.command, argc, argv);
	return run(&label);
}
