/*
 * forebay rm: deletes a version for good. Only numbers are taken: what a label points to may have moved since it was looked at.
 */
#include <errno.h>
#include <stdlib.h>

#include "cli/command.h"
#include "cli/names.h"
#include "cli/verbs.h"

int verb_rm(int argc, char **argv)
{
	struct command command = {
		.args = "BUNDLE@NUMBER",
		.doc = "Deletes a version for good. A labelled version is not deleted; `forebay label --remove` comes first.",
		.args_min = 1,
		.args_max = 1,
		.has_session = true,
	};
	_cleanup_(cleanup_forebay_disconnect) struct forebay_session *session = NULL;
	_cleanup_(cleanup_mem) char *bundle = NULL;
	const char *version = NULL;
	uint64_t number;

	command_parse(&command, argc, argv);
	if (names_split(command.arg[0], &bundle, &version) || !version || !names_is_number(version, &number)) {
		command_fail("%s: not of the form BUNDLE@NUMBER", command.arg[0]);
		return COMMAND_MISUSED;
	}
	if (command_connect(&command, &session))
		return EXIT_FAILURE;
	int r = forebay_delete(session, bundle, number);
	return r < 0 ? command_fail_index(r, command.arg[0]) : EXIT_SUCCESS;
}
