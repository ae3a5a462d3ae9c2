/*
 * forebay down: ends the daemons that `forebay up` started below a folder, and nothing else.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/check.h"
#include "cli/command.h"
#include "cli/daemons.h"
#include "cli/place.h"
#include "cli/process.h"
#include "cli/text.h"
#include "cli/verbs.h"

#define LOCK_WAIT_MS 5000
#define LINE_BYTES   2048 /* of a log; a longer line is read in parts */

struct down {
	struct command command;
	const char *dir;
	struct place place;
	off_t log_bytes[PLACE_NODES_MAX]; /* before they were asked to end */
};

struct ended {
	size_t daemons;
	int killed;
	bool there; /* one is, even now */
	unsigned left;
};

static const struct argp_option options[] = {
	{ "dir", 'd', "D", 0, "the folder that `forebay up` was given", 0 },
	{ 0 },
};

static void take_option(struct command *command, int key, char *value, struct argp_state *state)
{
	container_of(command, struct down, command)->dir = value;
}

static off_t log_size(const struct place *place, uint64_t node)
{
	_cleanup_(cleanup_mem) char *path = place_node_path(place, node, "log");
	struct stat st;

	return path && !stat(path, &st) ? st.st_size : 0;
}

/* Nodes [from, to): those that run. */
static void find(struct down *down, uint64_t from, uint64_t to, struct daemons *ret)
{
	for (uint64_t i = from; i < to; i++) {
		_cleanup_(cleanup_mem) char *folder = place_node_path(&down->place, i, "");
		struct process process;

		down->log_bytes[i] = log_size(&down->place, i);
		if (!folder || process_recall(folder, &process))
			continue;
		int fd = process_open(&process, DAEMON_NAME);
		if (fd >= 0)
			ret->pidfd[ret->n++] = fd;
		else
			printf("node-%" PRIu64 ": process %d has ended before\n", i, process.pid);
	}
}

/* What a daemon said of saves that it had to leave: they are lost with its memory. How many there are. */
static unsigned show_left(const struct down *down, uint64_t node)
{
	_cleanup_(cleanup_mem) char *path = place_node_path(&down->place, node, "log");
	FILE *f = path ? fopen(path, "re") : NULL;
	char line[LINE_BYTES];
	unsigned n = 0;

	if (!f)
		return 0;
	if (!fseeko(f, down->log_bytes[node], SEEK_SET)) {
		while (fgets(line, sizeof(line), f)) {
			const char *left = strstr(line, " save.left ");

			if (!left)
				continue;
			printf("node-%" PRIu64 ": not durable:%s", node, left + strlen(" save.left"));
			n++;
		}
	}
	fclose(f);
	return n;
}

static void count_end(struct daemons *daemons, struct ended *ended)
{
	int killed = daemons_end(daemons, DAEMONS_TERM_MS);

	ended->daemons += daemons->n;
	ended->killed += killed > 0 ? killed : 0;
	ended->there |= killed < 0;
}

/* The node with the index last: the others need it for what they still make durable. */
static void end_all(struct down *down, struct ended *ret)
{
	struct daemons others = { 0 }, first = { 0 };

	find(down, 1, down->place.nodes, &others);
	count_end(&others, ret);
	find(down, 0, 1, &first);
	count_end(&first, ret);
	for (uint64_t i = 0; i < down->place.nodes; i++)
		ret->left += show_left(down, i);
}

static int run(struct down *down)
{
	struct ended ended = { 0 };
	struct error e = { 0 };
	int r = place_open(down->dir, false, LOCK_WAIT_MS, &down->place, &e);

	if (r)
		return command_fail("%s", e.code ? e.text : strerror(-r));
	if (down->place.is_new)
		return command_fail("%s: not made by `forebay up`: there is no cluster.json", down->place.dir);
	end_all(down, &ended);
	if (ended.there)
		return command_fail("%s: a daemon is there even after SIGKILL; see its log", down->place.dir);
	for (uint64_t i = 0; i < down->place.nodes; i++) {
		_cleanup_(cleanup_mem) char *folder = place_node_path(&down->place, i, "");

		if (folder)
			process_forget(folder);
	}
	if (!ended.daemons)
		printf("%s: nothing was running\n", down->place.dir);
	else if (ended.killed)
		printf("%s: ended %zu daemon%s, %d of them with SIGKILL\n", down->place.dir, ended.daemons,
		       text_s(ended.daemons), ended.killed);
	else
		printf("%s: ended %zu daemon%s\n", down->place.dir, ended.daemons, text_s(ended.daemons));
	if (ended.left)
		return command_fail("%s: %u saves were captured and are not durable; they are lost", down->place.dir,
				    ended.left);
	return EXIT_SUCCESS;
}

int verb_down(int argc, char **argv)
{
	static struct down down = {
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
