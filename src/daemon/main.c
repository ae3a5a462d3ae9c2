/*
 * forebayd: the daemon of a node. Reads its settings, opens the real world, runs one daemon until SIGTERM or SIGINT, lets it
 * drain, and ends; a second signal ends it at once.
 */
#include <argp.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "base/point.h"
#include "daemon/config.h"
#include "daemon/daemon.h"
#include "daemon/watch.h"
#include "daemon/key.h"
#include "env/fiber.h"

#define LARGE_BYTES \
	(4 << 20) /* lists of a million items: freed, they go back to the system instead of staying in the heap */
#define TOP_PAD_BYTES \
	(1 << 20) /* steps in which the heap grows; up to LARGE_BYTES stay, else each save faults its pages in anew */
/* Of the heap, taken at the start; more would be trimmed at once. */
#define HEAP_READY_BYTES (LARGE_BYTES - TOP_PAD_BYTES - (256 << 10))
#define FIBERS_READY	 64 /* taken at the start */

#define CALLS_MS 10000 /* for store and index, at the end, to answer what nobody waits for any more */

#define KEY_CONFIG   'c'
#define KEY_REBUILD  1
#define EXIT_MISUSED 2	  /* a setting or the command line is wrong, as with `forebay` */
#define EXIT_LEFT    3	  /* it ended in order, but saves that were captured are not durable */
#define KEY_SETTING  1000 /* + number in config_entries */

struct run {
	struct config config;
	bool rebuild;
	const char *file;
	struct error error; /* of the command line */

	struct env *env;
	struct daemon *daemon;
	struct waitplace stop;
	struct task stop_task;
	bool stopping;
	int result;
	struct nursery nursery;
};

/* To standard error. A file that is no configuration may be quoted: what could command a terminal, or is no UTF-8, as \xNN. */
static void complain(const char *text)
{
	bool plain = view_is_utf8(view_str(text));

	fputs("forebayd: ", stderr);
	for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
		bool c1 = plain && *c == 0xc2 && c[1] < 0xa0;

		if (c1)
			fprintf(stderr, "\\x%02x\\x%02x", c[0], c[1]);
		else if (*c < 0x20 || *c == 0x7f || (*c >= 0x80 && !plain))
			fprintf(stderr, "\\x%02x", *c);
		else
			fputc(*c, stderr);
		c += c1;
	}
	fputc('\n', stderr);
}

/* ---- command line ------------------------------------------------------------------------------------------------------- */

/* Two passes: the file first, then flags over it. */
static error_t parse_config(int key, char *arg, struct argp_state *state)
{
	struct run *run = state->input;

	if (key == KEY_CONFIG)
		run->file = arg;
	if (key == ARGP_KEY_ARG)
		argp_error(state, "there are no arguments, only settings");
	return 0;
}

static error_t parse_flags(int key, char *arg, struct argp_state *state)
{
	struct run *run = state->input;

	if (key == KEY_REBUILD)
		run->rebuild = true;
	if (key >= KEY_SETTING && key < 0x1000000 && !run->error.code)
		(void)config_set(&run->config, config_entries[key - KEY_SETTING].name, arg, &run->error);
	return 0;
}

static int read_settings(struct run *run, int argc, char **argv)
{
	static struct argp_option options[64] = {
		/* static: they are large, and argp keeps pointers */
		{ "config", KEY_CONFIG, "FILE", 0, "settings, one \"name = value\" a line; flags win over it", 0 },
		{ "rebuild", KEY_REBUILD, NULL, 0, "make the index again from the store before anything else", 0 },
	};
	static char help[32][256];
	struct argp argp = { options, parse_config, NULL, "Forebay's daemon: one on each node.", NULL, NULL, NULL };
	int n = 2;

	for (int i = 0; config_entries[i].name; i++) {
		const struct config_entry *entry = &config_entries[i];

		CHECK(i < 32);
		snprintf(help[i], sizeof(help[i]), "%s%s%s%s", entry->help, *entry->value ? " (default " : "",
			 entry->value, *entry->value ? ")" : "");
		options[n++] = (struct argp_option){ .name = entry->name,
						     .key = KEY_SETTING + i,
						     .arg = "VALUE",
						     .doc = help[i] };
	}
	int r = config_init(&run->config);
	if (r)
		return error_set(&run->error, r, "%s", strerror(-r));
	argp_err_exit_status = EXIT_MISUSED;
	argp_parse(&argp, argc, argv, 0, NULL, run);
	if (run->file)
		r = config_read(&run->config, run->file, &run->error);
	argp.parser = parse_flags;
	if (!r)
		argp_parse(&argp, argc, argv, ARGP_SILENT, NULL, run);
	if (!r)
		r = run->error.code;
	return r ? r : config_check(&run->config, &run->error);
}

/* ---- the run ------------------------------------------------------------------------------------------------------------ */

static void *watch_signals(void *arg)
{
	struct run *run = arg;
	sigset_t set;
	int number;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	if (!sigwait(&set, &number))
		loop_post_remote(run->env->loop, &run->stop_task);
	if (!sigwait(&set, &number))
		_exit(128 + number); /* a second one ends at once */
	return NULL;
}

static void on_stop(struct task *task)
{
	struct run *run = container_of(task, struct run, stop_task);

	run->stopping = true;
	wake_all(&run->stop);
}

static int open_daemon(struct run *run, struct error *e)
{
	const struct config *config = &run->config;
	struct daemon_tenant tenants[1 + CONFIG_TENANTS_MAX] = { { .name = config->tenant,
								   .socket = config->socket,
								   .users = config->users.ids,
								   .n_users = config->users.n,
								   .pool_bytes = config->pool } };
	bool embedded = !strncmp(config->meta, "lmdb:", 5);
	struct daemon_options options = { .node = config->node,
					  .domain = config->domain,
					  .cluster = config->cluster,
					  .listen = config->listen,
					  .tenants = tenants,
					  .n_tenants = 1 + config->n_tenants,
					  .admin = geteuid(),
					  .http = config->http,
					  .is_stopped = watch_is_stopped,
					  .meta_address = embedded ? NULL : config->meta,
					  .store_rate = config->store_rate,
					  .rebuild = run->rebuild };
	_cleanup_(key_forget) struct buf key = { 0 };
	for (unsigned i = 0; i < config->n_tenants; i++)
		tenants[1 + i] = (struct daemon_tenant){ .name = config->tenants[i].name,
							 .socket = config->tenants[i].socket,
							 .users = config->tenants[i].users.ids,
							 .n_users = config->tenants[i].users.n,
							 .pool_bytes = config->tenants[i].pool };
	int r = *config->key ? key_read(config->key, &key, e) : 0;

	if (r)
		return error_prefix(e, "key");
	options.key = view_buf(&key);
	r = backend_dir_open(run->env, config->store + strlen("dir:"), false, &options.backend, e);

	if (r)
		return error_prefix(e, "store");
	if (embedded)
		r = meta_lmdb_open(run->env, config->meta + strlen("lmdb:"), &options.meta, e);
	if (r) {
		backend_free(options.backend);
		return error_prefix(e, "meta");
	}
	return daemon_new(run->env, &options, &run->daemon, e);
}

/*
 * What saves will take of heap and stacks sooner or later: threads cache freed blocks, buffers come to lie elsewhere. Taken at the start,
 * so that who watches a daemon sees growth only where there is some.
 */
static void take_memory(struct run *run)
{
	void *bytes = malloc(HEAP_READY_BYTES);

	if (bytes)
		explicit_bzero(bytes, HEAP_READY_BYTES); /* which a compiler does not leave out */
	free(bytes);
	fibers_prepare(run->env->loop, FIBERS_READY);
}

static int live(void *arg)
{
	struct run *run = arg;
	struct error e = { 0 };
	int r = open_daemon(run, &e);

	if (r) {
		complain(e.code ? e.text : strerror(-r));
		run->result = 1;
	} else {
		take_memory(run);
		logm(LOG_INFO, "daemon.ready", "socket=%s address=%s http=%s pool=%lu", run->config.socket,
		     daemon_address(run->daemon), daemon_http_address(run->daemon), (unsigned long)run->config.pool);
		if (!*run->config.key)
			logm(LOG_WARN, "peers.unproven", "words=\"no key is set: whoever reaches %s is a peer\"",
			     daemon_address(run->daemon));
		while (!run->stopping)
			(void)wait_at(&run->stop, FOREVER);
		logm(LOG_INFO, "daemon.stopping", "drain_ms=%lu", (unsigned long)run->config.drain_ms);
		unsigned left = daemon_drain(run->daemon, env_in_ms(run->env, run->config.drain_ms));
		logm(left ? LOG_WARN : LOG_INFO, "daemon.drained", "left=%u", left);
		run->result = left ? EXIT_LEFT : 0;
	}
	if (run->daemon && daemon_stop(run->daemon, CALLS_MS)) {
		logm(LOG_WARN, "daemon.calls-left", "words=\"store or index have not answered: it ends without them\"");
		_exit(run->result); /* a worker may never come back, and as after SIGKILL the next start finds what it left */
	}
	loop_stop(run->env->loop);
	return 0;
}

/* Each connection takes one descriptor or two: as many as this user may have, so that a crowd of clients keeps no peer out. */
static void raise_descriptors(void)
{
	struct rlimit limit;

	if (!getrlimit(RLIMIT_NOFILE, &limit)) {
		limit.rlim_cur = limit.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &limit);
	}
}

static int run_daemon(struct run *run)
{
	struct error e = { 0 };
	pthread_t signals;
	sigset_t set;
	int r;

	raise_descriptors();
	(void)signal(SIGPIPE, SIG_IGN); /* who reads the log is gone: that is his affair */
	(void)signal(SIGXFSZ, SIG_IGN); /* a file would be larger than this user may make it: EFBIG says so */
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	pthread_sigmask(SIG_BLOCK, &set, NULL); /* in every thread that follows */
	r = env_real_new(run->config.node, (unsigned)run->config.workers, &run->env, &e);
	if (r) {
		complain(e.text);
		return 1;
	}
	waitplace_init(&run->stop);
	run->stop_task.fn = on_stop;
	if (pthread_create(&signals, NULL, watch_signals, run)) {
		complain("no thread for signals");
		return 1;
	}
	nursery_init(&run->nursery, run->env->loop);
	r = fiber_start(&run->nursery, "main", live, run);
	if (!r)
		r = loop_run(run->env->loop);
	if (r) {
		complain(strerror(-r));
		run->result = 1;
	}
	daemon_free(run->daemon);
	env_real_free(run->env);
	pthread_cancel(signals);
	pthread_join(signals, NULL);
	return run->result;
}

/*
 * For tests: FOREBAY_DIE_AT=POINT[:N] ends the process with SIGKILL when it passes the point for the Nth time; FOREBAY_STOP_AT stops it
 * there, until somebody says SIGCONT. With * for N it does so each time.
 */
static int fate_at = -1, fate;
static bool fate_repeats;
static atomic_uint passes_left = 1;

static void meet_fate(enum point point)
{
	if ((int)point == fate_at && (fate_repeats || atomic_fetch_sub(&passes_left, 1) == 1))
		kill(getpid(), fate);
}

static int listen_for_fate(const char *variable, int number)
{
	char *name = getenv(variable), *count = name ? strchr(name, ':') : NULL;

	if (!name)
		return 0;
	if (count) {
		*count = 0;
		fate_repeats = count[1] == '*';
		passes_left = (unsigned)strtoul(count + 1, NULL, 10);
	}
	fate = number;
	fate_at = point_find(name);
	if (fate_at < 0) {
		fprintf(stderr, "forebayd: %s: there is no point \"%s\"\n", variable, name);
		return 2;
	}
	point_listen(meet_fate);
	return 0;
}

int main(int argc, char **argv)
{
	static struct run run;

	if (log_guard())
		return 1;
	if (read_settings(&run, argc, argv)) {
		complain(run.error.text);
		return EXIT_MISUSED;
	}
	if (listen_for_fate("FOREBAY_DIE_AT", SIGKILL) || listen_for_fate("FOREBAY_STOP_AT", SIGSTOP))
		return EXIT_MISUSED;
	mallopt(M_MMAP_THRESHOLD, LARGE_BYTES);
	mallopt(M_TRIM_THRESHOLD, LARGE_BYTES);
	mallopt(M_TOP_PAD, TOP_PAD_BYTES);
	mallopt(M_ARENA_MAX, 1); /* of several, each keeps what other threads have cached of it */
	log_setup((enum log_level)run.config.log, NULL, NULL);
	log_node(run.config.node);
	int result = run_daemon(&run);
	config_fini(&run.config);
	return result;
}
