/*
 * forebay retain: sets which versions of a bundle stay, or shows it.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "cli/command.h"
#include "cli/verbs.h"

#define KEY_LAST  1
#define KEY_EVERY 2
#define KEY_ALL	  3

struct retain {
	struct command command;
	uint64_t last, every;
	bool set, all;
};

static const struct argp_option options[] = {
	{ "last", KEY_LAST, "N", 0, "keep the newest N versions", 0 },
	{ "every", KEY_EVERY, "K", 0, "keep each version whose number is divisible by K, too", 0 },
	{ "all", KEY_ALL, NULL, 0, "keep all versions: no rule any more", 0 },
	{ 0 },
};

static void take_option(struct command *command, int key, char *value, struct argp_state *state)
{
	struct retain *retain = container_of(command, struct retain, command);

	retain->set = true;
	if (key == KEY_LAST)
		retain->last = command_number(state, "--last", value, 1, UINT64_MAX);
	else if (key == KEY_EVERY)
		retain->every = command_number(state, "--every", value, 1, UINT64_MAX);
	else
		retain->all = true;
}

static int show(void *arg, const struct forebay_bundle_info *info)
{
	const struct retain *retain = arg;

	if (strcmp(info->name, retain->command.arg[0]) != 0 || !info->keep_last)
		puts("all");
	else if (info->keep_every)
		printf("--last %" PRIu64 " --every %" PRIu64 "\n", info->keep_last, info->keep_every);
	else
		printf("--last %" PRIu64 "\n", info->keep_last);
	return 1;
}

int verb_retain(int argc, char **argv)
{
	struct retain
		retain = { .command = {
				   .args = "BUNDLE",
				   .doc = "Sets which versions of BUNDLE stay: the newest, each K-th, and always those that have a label or are "
					  "being read. Others are deleted after each publication. Without options prints the rule in force.",
				   .options = options,
				   .option = take_option,
				   .args_min = 1,
				   .args_max = 1,
				   .has_session = true,
			   } };
	_cleanup_(cleanup_forebay_disconnect) struct forebay_session *session = NULL;

	command_parse(&retain.command, argc, argv);
	if (retain.all ? retain.last || retain.every : retain.set && !retain.last) {
		command_fail(retain.all ? "--all is no rule with --last or --every" :
					  "--every keeps some beside the newest: --last N is missing");
		return COMMAND_MISUSED;
	}
	if (command_connect(&retain.command, &session))
		return EXIT_FAILURE;
	int r = retain.set ? forebay_retain(session, retain.command.arg[0], retain.last, retain.every) :
			     forebay_list_bundles(session, retain.command.arg[0], show, &retain);
	return r < 0 ? command_fail_index(r, retain.command.arg[0]) : EXIT_SUCCESS;
}
