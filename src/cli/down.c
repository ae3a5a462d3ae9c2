/*
 * forebay down: ends the daemons that `forebay up` started below a folder, and nothing else.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "cli/command.h"
#include "cli/daemons.h"
#include "cli/place.h"
#include "cli/process.h"
#include "cli/verbs.h"

#define LOCK_WAIT_MS 5000

struct down {
	struct command command;
	const char *dir;
	struct place place;
};

static const struct argp_option options[] = {
	{ "dir", 'd', "D", 0, "the folder that `forebay up` was given", 0 },
	{ 0 },
};

static void take_option(struct command *command, int key, char *value, struct argp_state *state)
{
	container_of(command, struct down, command)->dir = value;
}

static void find(const struct place *place, struct daemons *ret)
{
	for (uint64_t i = 0; i < place->nodes; i++) {
		_cleanup_(cleanup_mem) char *folder = place_node_path(place, i, "");
		struct process process;

		if (!folder || process_recall(folder, &process))
			continue;
		int fd = process_open(&process, DAEMON_NAME);
		if (fd >= 0)
			ret->pidfd[ret->n++] = fd;
		else
			printf("node-%" PRIu64 ": process %d has ended before\n", i, process.pid);
	}
}

static int run(struct down *down)
{
	struct daemons daemons = { 0 };
	struct error e = { 0 };
	int r = place_open(down->dir, false, LOCK_WAIT_MS, &down->place, &e);

	if (r)
		return command_fail("%s", e.code ? e.text : strerror(-r));
	if (down->place.is_new)
		return command_fail("%s: not made by `forebay up`: there is no cluster.json", down->place.dir);
	find(&down->place, &daemons);
	int killed = daemons_end(&daemons);
	if (killed < 0)
		return command_fail("%s: a daemon is there even after SIGKILL; see its log", down->place.dir);
	for (uint64_t i = 0; i < down->place.nodes; i++) {
		_cleanup_(cleanup_mem) char *folder = place_node_path(&down->place, i, "");

		if (folder)
			process_forget(folder);
	}
	if (!daemons.n)
		printf("%s: nothing was running\n", down->place.dir);
	else if (killed)
		printf("%s: ended %zu daemons, %d of them with SIGKILL\n", down->place.dir, daemons.n, killed);
	else
		printf("%s: ended %zu daemons\n", down->place.dir, daemons.n);
	return EXIT_SUCCESS;
}

int verb_down(int argc, char **argv)
{
	struct down down = {
		.command = {
			.args = "--dir D",
			.doc = "Ends the daemons that `forebay up --dir D` started, and no other process. What is stored stays.",
			.options = options,
			.option = take_option,
		},
		.place = { .lock_fd = -1 },
	};

	command_parse(&down.command, argc, argv);
	if (!down.dir) {
		command_fail("--dir is needed");
		return COMMAND_MISUSED;
	}
	int status = run(&down);
	place_fini(&down.place);
	return status;
}
