/*
 * forebay up: a cluster of N daemons on this machine, for trying things out and for tests.
 *
 * Starts what does not run, waits until every node has joined and sees all the others, and ends what it has started if that fails.
 * A daemon that runs already is left alone. See cli/place.h for what lies in the folder.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "cli/command.h"
#include "cli/daemons.h"
#include "cli/place.h"
#include "cli/process.h"
#include "cli/text.h"
#include "cli/verbs.h"

#define READY_MS       60000 /* of all nodes: 30 s, and as much for leases of an earlier life to run out */
#define POLL_MS	       50
#define CONNECT_MS     2000
#define LOG_LINES      12 /* of a daemon that ended, shown */
#define LOG_TAIL_BYTES 8192
#define LOCK_WAIT_MS   1000
#define WORDS_MAX      512
#define NS_PER_MS      1000000
#define HTTP_MAX       128 /* bytes of "ADDRESS:PORT" */

/* How waiting ended. */
enum {
	WAIT_READY,
	WAIT_REBUILD, /* node 0 answers that its index is missing or older than the store */
	WAIT_FAILED,  /* and it is said why */
};

struct up {
	struct command command;
	const char *dir, *store, *meta;
	uint64_t nodes, pool_bytes;
	bool rebuild;
	bool stays; /* whatever is wrong, its daemons run */

	struct place place;
	char daemon[PATH_MAX];
	struct node {
		struct process process;
		int pidfd;	     /* -1: not running */
		bool started, ready; /* started: by us, now */
		off_t log_begin;     /* of what it has said since we started it */
		char http[HTTP_MAX]; /* where it serves metrics, once it is ready */
		uint64_t pool_bytes; /* that it has, once it is ready; 0: not known */
	} node[PLACE_NODES_MAX];
};

enum { KEY_NODES = 'n', KEY_DIR = 'd', KEY_STORE = 0x200, KEY_META, KEY_POOL, KEY_REBUILD };

static const struct argp_option options[] = {
	{ "nodes", KEY_NODES, "N", 0, "how many daemons, 1 to 64; default: as before, else 1", 0 },
	{ "dir", KEY_DIR, "D", 0, "the folder for all of it; made if it is not there", 0 },
	{ "store", KEY_STORE, "URL", 0, "the store, dir:PATH; default: dir:D/store", 0 },
	{ "meta", KEY_META, "URL", 0, "the meta engine, lmdb:PATH or tcp:ADDRESS:PORT; default: lmdb:D/meta, in node 0",
	  0 },
	{ "pool", KEY_POOL, "SIZE", 0,
	  "each node's DRAM, e.g. 256M; default: a quarter of what is available, divided by N, 64M to 1G", 0 },
	{ "rebuild", KEY_REBUILD, NULL, 0, "make the index again from the store first", 0 },
	{ 0 },
};

static void take_option(struct command *command, int key, char *value, struct argp_state *state)
{
	struct up *up = container_of(command, struct up, command);

	if (key == KEY_NODES)
		up->nodes = command_number(state, "--nodes", value, 1, PLACE_NODES_MAX);
	else if (key == KEY_DIR)
		up->dir = value;
	else if (key == KEY_STORE)
		up->store = value;
	else if (key == KEY_META)
		up->meta = value;
	else if (key == KEY_REBUILD)
		up->rebuild = true;
	else if (size_parse(value, &up->pool_bytes) || !up->pool_bytes || up->pool_bytes > INT64_MAX)
		argp_error(state,
			   "--pool: \"%s\" is not allowed; it must be a number of bytes, or one with K, M, G or T",
			   value);
}

/* ---- what is asked for, and what is there ---------------------------------------------------------------------------- */

/* A setting that was fixed when the folder was made. */
static int settle_url(const char *name, const char *given, char **kept, bool is_new)
{
	_cleanup_(cleanup_mem) char *url = given ? place_absolute_url(given) : NULL;

	if (!given)
		return 0;
	if (!url)
		return -ENOMEM;
	if (!is_new && strcmp(url, *kept) != 0)
		return command_fail("%s: this cluster was made with %s; take another --dir for another", name, *kept);
	free(*kept);
	*kept = TAKE(url);
	return 0;
}

static int settle(struct up *up)
{
	struct place *place = &up->place;

	if (!place->is_new && up->nodes && up->nodes != place->nodes)
		return command_fail("%s: a cluster of %" PRIu64 " node%s; it cannot be started with %" PRIu64,
				    place->dir, place->nodes, text_s(place->nodes), up->nodes);
	if (place->is_new)
		place->nodes = up->nodes ? up->nodes : 1;
	if (up->pool_bytes)
		place->pool_bytes = up->pool_bytes;
	int r = settle_url("--store", up->store, &place->store, place->is_new);
	return r ? r : settle_url("--meta", up->meta, &place->meta, place->is_new);
}

/* How many of the nodes run. */
static uint64_t find_running(struct up *up)
{
	uint64_t running = 0;

	for (uint64_t i = 0; i < up->place.nodes; i++) {
		struct node *node = &up->node[i];
		_cleanup_(cleanup_mem) char *folder = place_node_path(&up->place, i, "");

		node->pidfd = -1;
		if (folder && !process_recall(folder, &node->process))
			node->pidfd = process_open(&node->process, DAEMON_NAME);
		if (node->pidfd >= 0)
			running++;
	}
	return running;
}

/* ---- starting -------------------------------------------------------------------------------------------------------- */

/* Beside this program, as in a build folder, or in PATH. */
static int find_daemon(char out[PATH_MAX])
{
	char self[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	if (n > 0) {
		self[n] = 0;
		if (snprintf(out, PATH_MAX, "%s/%s", dirname(self), DAEMON_NAME) < PATH_MAX && !access(out, X_OK))
			return 0;
	}
	const char *path = getenv("PATH");
	while (path && *path) {
		int len = (int)strcspn(path, ":");

		if (snprintf(out, PATH_MAX, "%.*s/%s", len, path, DAEMON_NAME) < PATH_MAX && len && !access(out, X_OK))
			return 0;
		path += len + (path[len] == ':');
	}
	return -ENOENT;
}

static int start_node(struct up *up, uint64_t i)
{
	struct node *node = &up->node[i];
	_cleanup_(cleanup_mem) char *config = place_node_path(&up->place, i, "config"),
				    *log = place_node_path(&up->place, i, "log");
	_cleanup_(cleanup_mem) char *folder = place_node_path(&up->place, i, "");
	char *argv[] = { up->daemon, "--config", config, up->rebuild && !i ? "--rebuild" : NULL, NULL };
	struct stat st;

	if (!config || !log || !folder)
		return -ENOMEM;
	node->log_begin = stat(log, &st) ? 0 : st.st_size;
	int r = process_start(argv, log, &node->process);
	if (r)
		return command_fail("%s: %s", up->daemon, strerror(-r));
	node->started = true;
	node->pidfd = pidfd_open(node->process.pid, 0);
	if (node->pidfd < 0)
		return command_fail("node-%" PRIu64 ": %s", i, strerror(errno));
	r = process_remember(folder, &node->process);
	return r ? command_fail("%s/pid: %s", folder, strerror(-r)) : 0;
}

/* ---- waiting --------------------------------------------------------------------------------------------------------- */

struct sight {
	uint64_t up;
	char self[256];
	char http[HTTP_MAX];
	uint64_t pool_bytes;
};

static void note_self(void *arg, const char *cluster, const char *this_node, uint32_t generation)
{
	struct sight *sight = arg;

	snprintf(sight->self, sizeof(sight->self), "%s", this_node);
}

static void count_node(void *arg, const struct forebay_node_info *node)
{
	struct sight *sight = arg;

	sight->up += node->up != 0;
	if (!strcmp(node->name, sight->self)) {
		snprintf(sight->http, sizeof(sight->http), "%s", node->http);
		sight->pool_bytes = node->pool_bytes;
	}
}

static int stop_listing(void *arg, const struct forebay_bundle_info *bundle)
{
	return 1;
}

/* Whether the node at @path serves and sees @nodes nodes. 0; -FOREBAY_EREBUILD; -ENODEV: it never will, before the store that it has
 * opened; another failure: not yet. Why in @words. */
static int probe(struct node *node, const char *path, uint64_t nodes, char words[WORDS_MAX])
{
	struct forebay_connect_options connect = { .size = sizeof(connect),
						   .socket = path,
						   .timeout_ms = CONNECT_MS,
						   .threads = 1 };
	struct forebay_status_events events = { .size = sizeof(events), .cluster = note_self, .node = count_node };
	_cleanup_(cleanup_forebay_disconnect) struct forebay_session *session = NULL;
	struct sight sight = { 0 };
	int r = forebay_connect(&connect, &session);

	if (!r)
		r = forebay_list_bundles(session, "", stop_listing, NULL);
	if (r >= 0)
		r = forebay_status(session, &events, &sight);
	if (r < 0) {
		snprintf(words, WORDS_MAX, "%s", forebay_error());
		return r;
	}
	if (sight.up >= nodes) {
		memcpy(node->http, sight.http, HTTP_MAX);
		node->pool_bytes = sight.pool_bytes;
		return 0;
	}
	snprintf(words, WORDS_MAX, "it sees %" PRIu64 " of %" PRIu64 " nodes", sight.up, nodes);
	return -EAGAIN;
}

static bool has_ended(const struct node *node)
{
	struct pollfd fd = { .fd = node->pidfd, .events = POLLIN };

	return poll(&fd, 1, 0) > 0;
}

/* The last lines of the node's log, so that nobody has to look for it: of this start, if it is ours, and not of an earlier one. */
static void show_log(const struct up *up, uint64_t i)
{
	_cleanup_(cleanup_mem) char *path = place_node_path(&up->place, i, "log");
	_cleanup_(cleanup_mem) char *text = calloc(1, LOG_TAIL_BYTES + 1);
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	struct stat st;

	if (fd < 0 || !text || fstat(fd, &st))
		return;
	off_t from = up->node[i].log_begin;
	if (st.st_size - from > LOG_TAIL_BYTES)
		from = st.st_size - LOG_TAIL_BYTES;
	ssize_t n = pread(fd, text, LOG_TAIL_BYTES, from);
	close(fd);
	if (n <= 0)
		return;
	char *begin = text + n;
	for (int lines = 0; begin > text; begin--) {
		if (begin[-1] == '\n' && begin[0] && ++lines == LOG_LINES)
			break;
	}
	fprintf(stderr, "forebay: the end of %s:\n%s%s", path, begin, *begin && text[n - 1] != '\n' ? "\n" : "");
}

static int fail_node(const struct up *up, uint64_t i, const char *what)
{
	command_fail("node-%" PRIu64 ": %s", i, what);
	show_log(up, i);
	return EXIT_FAILURE;
}

static void show_wait(const struct up *up, uint64_t ready)
{
	static uint64_t shown = UINT64_MAX;

	if (ready != shown && isatty(STDERR_FILENO))
		fprintf(stderr, "\r%" PRIu64 " of %" PRIu64 " nodes are ready\033[K", ready, up->place.nodes);
	shown = ready;
}

static void hide_wait(void)
{
	if (isatty(STDERR_FILENO))
		fprintf(stderr, "\r\033[K");
}

/* One look at every node. The number of ready ones, -1 after saying what failed. */
static int look(struct up *up, char words[WORDS_MAX], uint64_t *ret_waiting, bool *ret_rebuild)
{
	int ready = 0;

	for (uint64_t i = 0; i < up->place.nodes; i++) {
		struct node *node = &up->node[i];
		_cleanup_(cleanup_mem) char *path = place_node_path(&up->place, i, "socket");

		/* one that ran when we came, and ended since, was being killed: it is to be started like the others */
		bool gone = has_ended(node);
		if (gone && !node->started) {
			close(node->pidfd);
			node->ready = false;
			if (start_node(up, i))
				return -1;
		} else if (gone) {
			hide_wait();
			fail_node(up, i, "the daemon has ended");
			return -1;
		}
		int r = node->ready || !path ? 0 : probe(node, path, up->place.nodes, words);
		if (r == -ENODEV) {
			hide_wait();
			fail_node(up, i, words);
			return -1;
		}
		node->ready = !r;
		ready += !r;
		if (r)
			*ret_waiting = i;
		if (r == -FOREBAY_EREBUILD && !i) { /* others may say so until the first has begun its index */
			*ret_rebuild = true;
			break;
		}
	}
	return ready;
}

static int wait_ready(struct up *up)
{
	uint64_t deadline = now_ns() + (uint64_t)READY_MS * NS_PER_MS, waiting = 0;
	char words[WORDS_MAX] = "", text[WORDS_MAX + 64];
	bool rebuild = false;

	for (;;) {
		int ready = look(up, words, &waiting, &rebuild);

		if (ready < 0)
			return WAIT_FAILED;
		if (ready == (int)up->place.nodes || rebuild) {
			hide_wait();
			if (!rebuild)
				return WAIT_READY;
			command_fail("%s: the nodes run, but their index is missing or older than the store; make it "
				     "again by `forebay meta rebuild --socket %s/node-0/socket`: %s",
				     up->place.dir, up->place.dir, words);
			return WAIT_REBUILD;
		}
		show_wait(up, (uint64_t)ready);
		if (command_interrupted()) {
			hide_wait();
			command_fail("interrupted");
			return WAIT_FAILED;
		}
		if (now_ns() > deadline) {
			hide_wait();
			snprintf(text, sizeof(text), "not ready after %d s: %s", READY_MS / 1000, words);
			fail_node(up, waiting, text);
			return WAIT_FAILED;
		}
		nanosleep(&(struct timespec){ .tv_nsec = POLL_MS * NS_PER_MS }, NULL);
	}
}

/* ---- the whole ------------------------------------------------------------------------------------------------------- */

static void end_started(struct up *up)
{
	struct daemons daemons = { 0 };

	for (uint64_t i = 0; i < up->place.nodes; i++) {
		if (up->node[i].started && up->node[i].pidfd >= 0)
			daemons.pidfd[daemons.n++] = up->node[i].pidfd;
	}
	daemons_end(&daemons, DAEMONS_TERM_MS);
	for (uint64_t i = 0; i < up->place.nodes; i++) {
		_cleanup_(cleanup_mem) char *folder = place_node_path(&up->place, i, "");

		if (up->node[i].started && folder)
			process_forget(folder);
	}
}

static bool started_any(const struct up *up)
{
	for (uint64_t i = 0; i < up->place.nodes; i++)
		if (up->node[i].started)
			return true;
	return false;
}

/* A pool is taken at a start: who asks for another one shall not believe that the nodes which ran already have it. */
static void warn_of_pool(const struct up *up)
{
	char has[TEXT_SIZE_MAX];

	for (uint64_t i = 0; up->pool_bytes && i < up->place.nodes; i++) {
		const struct node *node = &up->node[i];

		if (node->started || !node->pool_bytes || node->pool_bytes == up->pool_bytes)
			continue;
		text_size(node->pool_bytes, has);
		fprintf(stderr,
			"forebay: --pool has no effect on nodes that run: node-%" PRIu64
			"'s pool stays %s until it is started anew\n",
			i, has);
	}
}

static int bring_up(struct up *up)
{
	struct place *place = &up->place;
	uint64_t running = find_running(up);
	struct error e = { 0 };
	int r = place_prepare(place, running > 0, &e);

	if (r)
		return command_fail("%s", e.code ? e.text : strerror(-r));
	for (uint64_t i = 0; !r && i < place->nodes; i++)
		r = up->node[i].pidfd < 0 ? start_node(up, i) : 0;
	int outcome = r ? WAIT_FAILED : wait_ready(up);
	for (uint64_t i = 0; outcome == WAIT_READY && i < place->nodes; i++)
		if (*up->node[i].http && place_tell_http(place, i, up->node[i].http, &e))
			command_fail("%s", e.code ? e.text : "no memory"); /* they run all the same */
	switch (outcome) {
	case WAIT_READY:
		warn_of_pool(up);
		if (started_any(up))
			printf("%s: %" PRIu64 " node%s ready\n", place->dir, place->nodes,
			       place->nodes == 1 ? " is" : "s are");
		else
			printf("%s: %" PRIu64 " node%s already\n", place->dir, place->nodes,
			       place->nodes == 1 ? " runs" : "s run");
		return EXIT_SUCCESS;
	case WAIT_REBUILD:
		up->stays = true;
		return EXIT_FAILURE;
	default:
		end_started(up);
		return EXIT_FAILURE;
	}
}

/* A first `up` that was refused is none. */
static void take_back(struct up *up)
{
	char begun[PATH_MAX];

	place_undo(&up->place, begun);
	if (*begun)
		fprintf(stderr,
			"forebay: %s has what was begun: the same `up` goes on with it; remove it, and %s, to begin anew\n",
			up->place.dir, begun);
}

static int run(struct up *up)
{
	struct error e = { 0 };
	int r = place_open(up->dir, true, LOCK_WAIT_MS, &up->place, &e);

	if (r)
		return command_fail("%s", e.code ? e.text : strerror(-r));
	if (settle(up))
		return EXIT_FAILURE;
	command_catch_signals();
	if (find_daemon(up->daemon))
		r = command_fail("%s: found neither beside this program nor in $PATH", DAEMON_NAME);
	else
		r = bring_up(up);
	if (r == EXIT_FAILURE && up->place.is_new && !up->stays)
		take_back(up);
	return r;
}

int verb_up(int argc, char **argv)
{
	static struct up up;

	up.command = (struct command){
		.args = "--dir D [--nodes N]",
		.doc = "Starts a cluster of N daemons on this machine, all of it below folder D, and waits until they are ready.\v"
		       "`. D/env` gives a shell the socket of node 0; each node's socket is D/node-I/socket. A second `up` "
		       "starts again what does not run. `forebay down --dir D` ends it.",
		.options = options,
		.option = take_option,
	};
	up.place.lock_fd = -1;
	command_parse(&up.command, argc, argv);
	if (!up.dir) {
		command_fail("--dir is needed");
		return COMMAND_MISUSED;
	}
	int status = run(&up);
	place_fini(&up.place);
	return status;
}
