/*
 * forebay meta rebuild: makes the meta engine's index again from the store alone.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/command.h"
#include "cli/text.h"
#include "cli/verbs.h"

#define READY_MS  30000
#define POLL_MS	  50
#define NS_PER_MS 1000000

static int stop_listing(void *arg, const struct forebay_bundle_info *bundle)
{
	return 1;
}

/* The daemon joins its cluster a moment after the index is there; what comes next should find it at work. */
static int wait_ready(struct forebay_session *session)
{
	uint64_t deadline = now_ns() + (uint64_t)READY_MS * NS_PER_MS;
	int r;

	while ((r = forebay_list_bundles(session, "", stop_listing, NULL)) < 0 && now_ns() < deadline)
		nanosleep(&(struct timespec){ .tv_nsec = POLL_MS * NS_PER_MS }, NULL);
	return r < 0 ? command_fail_call(r, "the index is there, but the daemon does not serve yet") : 0;
}

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
	printf("%" PRIu64 " bundle%s, %" PRIu64 " version%s, %" PRIu64 " label%s\n", bundles, text_s(bundles), versions,
	       text_s(versions), labels, text_s(labels));
	return wait_ready(session);
}
