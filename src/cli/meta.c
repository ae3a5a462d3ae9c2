/*
 * forebay meta rebuild: makes the meta engine's index again from the store alone.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/command.h"
#include "cli/text.h"
#include "cli/verbs.h"

int verb_meta(int argc, char **argv)
{
	struct command command = {
		.args = "rebuild",
		.doc = "Makes the index again from the store alone: when the meta engine's folder was lost, or is older than the store. "
		       "Raises the cluster's generation and ends what other daemons had under way.",
		.args_min = 1,
		.args_max = 1,
		.has_session = true,
	};
	_cleanup_(cleanup_forebay_disconnect) struct forebay_session *session = NULL;
	uint64_t bundles, versions, labels;

	command_parse(&command, argc, argv);
	if (strcmp(command.arg[0], "rebuild") != 0) {
		command_fail("there is no \"%s\"; there is `forebay meta rebuild`", command.arg[0]);
		return COMMAND_MISUSED;
	}
	if (command_connect(&command, &session))
		return EXIT_FAILURE;
	int r = forebay_meta_rebuild(session, &bundles, &versions, &labels);
	if (r < 0)
		return command_fail_call(r, NULL);
	printf("%" PRIu64 " bundles, %" PRIu64 " versions, %" PRIu64 " labels\n", bundles, versions, labels);
	return EXIT_SUCCESS;
}
