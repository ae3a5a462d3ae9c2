/*
 * forebay-sim: runs histories of a simulated world, each from its seed, and each a second time in a process of its own,
 * where it must give the same hash.
 *
 * So far the inhabitants are made up: a server appends what its client says to a file and says it again, while the history
 * kills, cuts and silences. The daemon takes their place.
 */
#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "base/error.h"
#include "sim/world.h"

#define ADDRESS	     "tcp:10.0.0.1:7000"
#define HISTORY_NS   (600 * NS_PER_S) /* a history that takes longer does not end */
#define ACTS	     40		      /* of the history, between which time passes */
#define ECHO_WAIT_MS 1000
#define WORDS_BYTES  8192

/* ---- the history ---- */

struct party {
	struct history *history;
	struct env *env;
	struct nursery nursery;
	struct waitplace place; /* woken by every event */
};

struct history {
	struct world *world;
	struct party server, client;
	uint64_t echoes;
};

struct note {
	struct env *env;
	const uint8_t *bytes;
	size_t len;
};

static void party_ready(void *arg)
{
	wake_all(&((struct party *)arg)->place);
}

static struct stream_events events_of(struct party *p)
{
	return (struct stream_events){ party_ready, p };
}

/* Appends and syncs, as a worker does. */
static int write_note(void *arg)
{
	struct note *note = arg;
	const struct env_ops *ops = note->env->ops;
	struct dir *dir;
	struct file *file = NULL;
	uint64_t size;
	int r = ops->dir_open(note->env, "/notes", true, &dir, NULL);

	if (r)
		return r;
	r = ops->file_open(dir, "all", FILE_CREATE | FILE_WRITE, &file);
	if (!r)
		r = ops->file_size(file, &size);
	if (!r)
		r = ops->file_write(file, size, note->bytes, note->len);
	if (!r)
		r = ops->file_sync(file);
	ops->file_close(file);
	ops->dir_close(dir);
	return r;
}

/* Moves all of @len bytes or says why not; waits at most ECHO_WAIT_MS for each step. */
static int move(struct party *p, struct stream *stream, uint8_t *bytes, size_t len, bool send)
{
	while (len) {
		struct iovec iov = { bytes, len };
		ssize_t n = send ? p->env->ops->send(stream, &iov, 1, NULL) : p->env->ops->recv(stream, bytes, len);

		if (n > 0) {
			bytes += n;
			len -= (size_t)n;
			continue;
		}
		int r = n == -EAGAIN ? wait_at(&p->place, env_in_ms(p->env, ECHO_WAIT_MS)) : n ? (int)n : -EPIPE;
		if (r)
			return r;
	}
	return 0;
}

static int serve_one(struct party *p, struct stream *stream)
{
	uint8_t bytes[256];
	int r = 0;

	while (!r) {
		r = move(p, stream, bytes, sizeof(bytes), false);
		if (!r)
			r = env_call(p->env, write_note, &(struct note){ p->env, bytes, sizeof(bytes) });
		if (!r)
			r = move(p, stream, bytes, sizeof(bytes), true);
	}
	p->env->ops->close(stream);
	return r;
}

static int serve(void *arg)
{
	struct party *p = arg;
	struct stream_events events = events_of(p);
	struct stream *listener, *stream;
	int r = p->env->ops->listen(p->env, ADDRESS, &events, &listener, NULL);

	if (r)
		return r;
	while (r != -ECANCELED && r != -ESHUTDOWN) {
		r = p->env->ops->accept(listener, &events, &stream);
		if (r == -EAGAIN)
			r = wait_at(&p->place, FOREVER);
		else if (!r)
			r = serve_one(p, stream);
	}
	p->env->ops->close(listener);
	return 0;
}

/* One connection: until something goes wrong, then the next one is made. */
static int ask(void *arg)
{
	struct party *p = arg;
	struct stream_events events = events_of(p);
	uint8_t said[256], heard[256];
	int r = 0;

	while (r != -ECANCELED && r != -ESHUTDOWN) {
		struct stream *stream;

		r = p->env->ops->connect(p->env, ADDRESS, &events, &stream);
		if (r)
			break;
		while (!r) {
			p->env->ops->random(p->env, said, sizeof(said));
			r = move(p, stream, said, sizeof(said), true);
			if (!r)
				r = move(p, stream, heard, sizeof(heard), false);
			if (!r)
				p->history->echoes++;
		}
		p->env->ops->close(stream);
		if (r != -ECANCELED)
			r = fiber_sleep_until(env_in_ms(p->env, 10));
	}
	return 0;
}

static void party_start(struct party *p, const char *name, int (*fn)(void *arg))
{
	p->env = p->env ? world_revive(p->env) : world_env_new(p->history->world, name);
	waitplace_init(&p->place);
	nursery_init(&p->nursery, p->env->loop);
	CHECK(fiber_start(&p->nursery, name, fn, p) == 0);
}

static void party_end(struct party *p, enum death how)
{
	world_kill(p->env, how);
	nursery_fini(&p->nursery);
}

static int live(void *arg)
{
	struct history *h = arg;
	struct world *w = h->world;

	h->server.history = h->client.history = h;
	party_start(&h->server, "server", serve);
	party_start(&h->client, "client", ask);
	for (int act = 0; act < ACTS; act++) {
		bool on = world_random(w, 2);

		(void)fiber_sleep_until(w->now_ns + world_random(w, 200 * NS_PER_MS));
		switch (world_random(w, 12)) {
		case 0:
			party_end(&h->server, DEATH_DRAWN);
			party_start(&h->server, "server", serve);
			break;
		case 1:
			party_end(&h->client, DEATH_DRAWN);
			party_start(&h->client, "client", ask);
			break;
		case 2:
			world_cut(w, "server", "client");
			break;
		case 3:
			world_silence(w, "server", "client", on);
			break;
		case 4:
			world_silence(w, "client", "server", on);
			break;
		default:
			break;
		}
	}
	party_end(&h->server, DEATH_PROCESS);
	party_end(&h->client, DEATH_PROCESS);
	return 0;
}

/* ---- the program ---- */

struct options {
	uint64_t seed, seeds;
	bool one, trace, hashes;
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
	struct options *o = state->input;

	switch (key) {
	case 's':
		o->seed = strtoull(arg, NULL, 0);
		o->seeds = 1;
		o->one = true;
		return 0;
	case 'n':
		o->seeds = strtoull(arg, NULL, 0);
		return 0;
	case 't':
		o->trace = true;
		return 0;
	case 'h':
		o->hashes = true;
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp_option option_table[] = {
	{ "seed", 's', "SEED", 0, "Run the history of this seed alone", 0 },
	{ "seeds", 'n', "N", 0, "Run the histories of seeds 0 to N-1 (200)", 0 },
	{ "trace", 't', NULL, 0, "Print the story", 0 },
	{ "hashes", 'h', NULL, OPTION_HIDDEN, "Print hashes only: what the second process does", 0 },
	{ 0 },
};
static const struct argp argp = { option_table, parse_option, NULL, "Simulates Forebay.", NULL, NULL, NULL };

static FILE *start_second(const struct options *o)
{
	char command[128];

	snprintf(command, sizeof(command), "exec /proc/%d/exe --hashes %s %" PRIu64, (int)getpid(),
		 o->one ? "--seed" : "--seeds", o->one ? o->seed : o->seeds);
	return popen(command, "r");
}

static int run_seed(const struct options *o, uint64_t seed, struct faults *total, uint64_t *ret_hash)
{
	struct history h = { .world = world_new(seed, WEATHER_DRAWN, o->trace ? stdout : NULL) };
	int r = world_run(h.world, HISTORY_NS, live, &h);
	unsigned left = world_leftovers(h.world);

	*ret_hash = h.world->hash;
	for (int i = 0; i < FAULTS; i++)
		total->injected[i] += h.world->faults.injected[i];
	if (r || left)
		fprintf(stderr, "seed %" PRIu64 ": %s, %u things left over\n", seed, r ? error_name(r) : "ended", left);
	world_free(h.world);
	return r || left;
}

int main(int argc, char **argv)
{
	struct options o = { .seeds = 200 };
	struct faults total = { 0 };
	uint64_t hash, again, failed = 0;

	if (argp_parse(&argp, argc, argv, 0, NULL, &o))
		return 2;
	FILE *second = o.hashes ? NULL : start_second(&o);
	for (uint64_t seed = o.seed; seed < o.seed + o.seeds; seed++) {
		bool bad = run_seed(&o, seed, &total, &hash);

		if (o.hashes)
			printf("%016" PRIx64 "\n", hash);
		else if (!second || fscanf(second, "%" SCNx64, &again) != 1 || again != hash) {
			fprintf(stderr, "seed %" PRIu64 ": a second process tells another story\n", seed);
			bad = true;
		}
		failed += bad;
	}
	if (o.hashes)
		return failed != 0;
	for (int i = 0; i < FAULTS; i++)
		printf("%-14s %10" PRIu64 "\n", fault_names[i], total.injected[i]);
	printf("%" PRIu64 " histories, %" PRIu64 " failed\n", o.seeds, failed);
	failed += second ? pclose(second) != 0 : 1;
	return failed != 0;
}
