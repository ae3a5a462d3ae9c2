/*
 * forebay-sim: runs histories of a simulated cluster, each from its seed and each in a process of its own, so that a crash is one
 * seed's failure. A sample of the seeds runs twice, the second time in a program started anew, and must give the same hash.
 */
#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/error.h"
#include "sim/history.h"

#define AGAIN_EVERY   10  /* seeds: one of so many runs twice */
#define COMPLETE_FROM 200 /* seeds: with so many everything must have been reached */
#define SECONDS_MAX   120 /* of one seed, else it hangs */
#define WORKERS_MAX   64
#define FAILURES_MAX  20 /* that are printed */

struct outcome {
	bool ended;
	uint64_t hash, again;
	char failure[512];
	struct coverage coverage;
};

struct options {
	uint64_t seed, seeds;
	bool one, trace, every;
	int into;	/* the second process: the table's descriptor, */
	uint64_t place; /* and the row there */
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
	case 'f':
		o->seed = strtoull(arg, NULL, 0);
		return 0;
	case 'n':
		o->seeds = strtoull(arg, NULL, 0);
		return 0;
	case 't':
		o->trace = true;
		return 0;
	case 'e':
		o->every = true;
		return 0;
	case 'i':
		o->into = (int)strtol(arg, &arg, 0);
		o->place = strtoull(arg + 1, NULL, 0);
		return 0;
	default:
		return ARGP_ERR_UNKNOWN;
	}
}

static const struct argp_option option_table[] = {
	{ "seed", 's', "SEED", 0, "Run the history of this seed alone", 0 },
	{ "seeds", 'n', "N", 0, "Run N histories (200)", 0 },
	{ "from", 'f', "SEED", 0, "The first of them (0)", 0 },
	{ "trace", 't', NULL, 0, "Print the story", 0 },
	{ "every", 'e', NULL, 0, "Run every seed twice, not one in ten", 0 },
	{ "into", 'i', "FD:ROW", OPTION_HIDDEN, "Where the hash of a second run goes", 0 },
	{ 0 },
};
static const struct argp argp = { option_table, parse_option, NULL, "Simulates Forebay.", NULL, NULL, NULL };

static struct outcome *map_table(int fd, uint64_t n)
{
	void *table = mmap(NULL, n * sizeof(struct outcome), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	CHECK(table != MAP_FAILED);
	return table;
}

/* What a child does with job number @job: below @seeds the first run of a seed, from there on the second one. */
static void run_child(const struct options *o, struct outcome *table, int fd, uint64_t job)
{
	uint64_t seed = o->seed + job % o->seeds;
	struct outcome *outcome = &table[job % o->seeds];

	alarm(SECONDS_MAX);
	if (job < o->seeds) {
		(void)history_run(seed, NULL, &outcome->coverage, &outcome->hash, outcome->failure);
		outcome->ended = true;
		exit(0); /* a leak fails the seed */
	}
	char number[24], into[40];
	snprintf(number, sizeof(number), "%" PRIu64, seed);
	snprintf(into, sizeof(into), "%d:%" PRIu64, fd, job - o->seeds);
	execl("/proc/self/exe", "forebay-sim", "--seed", number, "--into", into, NULL);
	_exit(127);
}

static void reap(const struct options *o, struct outcome *table, pid_t *pids, uint64_t *jobs, unsigned n)
{
	int status;
	pid_t pid = wait(&status);

	for (unsigned i = 0; i < n; i++) {
		struct outcome *outcome = &table[jobs[i] % o->seeds];

		if (pids[i] != pid)
			continue;
		pids[i] = 0;
		if (status && !outcome->failure[0])
			snprintf(outcome->failure, sizeof(outcome->failure), "%s run: %s %d",
				 jobs[i] < o->seeds ? "the" : "the second", WIFSIGNALED(status) ? "signal" : "exit",
				 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
	}
}

static void run_all(const struct options *o, struct outcome *table, int fd)
{
	uint64_t jobs[WORKERS_MAX], job = 0, every = o->every || o->one ? 1 : AGAIN_EVERY;
	pid_t pids[WORKERS_MAX] = { 0 };
	long cores = sysconf(_SC_NPROCESSORS_ONLN);
	unsigned n = cores < 1 ? 1 : cores > WORKERS_MAX ? WORKERS_MAX : (unsigned)cores, running = 0;

	while (job < 2 * o->seeds || running) {
		if (running == n || job >= 2 * o->seeds) {
			reap(o, table, pids, jobs, n);
			running--;
			continue;
		}
		if (job >= o->seeds && (job - o->seeds) % every) {
			job++;
			continue;
		}
		unsigned at = 0;
		while (pids[at])
			at++;
		jobs[at] = job++;
		fflush(NULL);
		pids[at] = fork();
		CHECK(pids[at] >= 0);
		if (!pids[at])
			run_child(o, table, fd, jobs[at]);
		running++;
	}
	for (uint64_t i = 0; i < o->seeds; i += every)
		if (!table[i].failure[0] && table[i].hash != table[i].again)
			snprintf(table[i].failure, sizeof(table[i].failure), "a second process tells another story");
}

static unsigned print_row(const char *kind, const char *name, uint64_t n, const char *text)
{
	printf("%-6s %-24s %10" PRIu64 "  %s%s\n", kind, name, n, text, n ? "" : "  <- never");
	return !n;
}

/* How often each thing was reached; how many never. */
static unsigned print_coverage(const struct coverage *c)
{
	unsigned missing = 0;
	char name[64];

	for (int from = 0; from < SAVE_STATES; from++) {
		for (int to = 0; to < SAVE_STATES; to++) {
			if (!save_state_may_move(from, to))
				continue;
			snprintf(name, sizeof(name), "%s > %s", save_state_name(from), save_state_name(to));
			missing += print_row("move", name, c->moves[from][to], "");
		}
	}
	for (int i = 0; i < POINTS; i++)
		missing += print_row("point", point_name(i), c->points[i], "");
	for (int i = 0; i < FAULTS; i++)
		missing += print_row("fault", fault_names[i], c->faults[i], fault_texts[i]);
	for (int i = 0; i < DEEDS; i++)
		missing += print_row("deed", deed_names[i], c->deeds[i], deed_texts[i]);
	return missing;
}

static void add_up(struct coverage *sum, const struct coverage *c)
{
	for (size_t i = 0; i < sizeof(*c) / sizeof(uint64_t); i++)
		((uint64_t *)sum)[i] += ((const uint64_t *)c)[i];
}

static double seconds_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static int run_many(const struct options *o)
{
	struct coverage sum = { 0 };
	uint64_t failed = 0;
	double begin = seconds_now();
	int fd = memfd_create("outcomes", 0);

	CHECK(fd >= 0 && ftruncate(fd, (off_t)(o->seeds * sizeof(struct outcome))) == 0);
	struct outcome *table = map_table(fd, o->seeds);
	run_all(o, table, fd);
	for (uint64_t i = 0; i < o->seeds; i++)
		add_up(&sum, &table[i].coverage);
	unsigned missing = print_coverage(&sum);
	for (uint64_t i = 0; i < o->seeds; i++) {
		if (table[i].failure[0] && failed++ < FAILURES_MAX)
			printf("FAILED seed %" PRIu64 ": %s\n       replay: forebay-sim --seed %" PRIu64 " --trace\n",
			       o->seed + i, table[i].failure, o->seed + i);
	}
	double seconds = seconds_now() - begin;
	printf("%" PRIu64 " histories, %" PRIu64 " failed, %.1f per second%s\n", o->seeds, failed,
	       (double)o->seeds / seconds, missing && o->seeds >= COMPLETE_FROM ? "; not everything was reached" : "");
	return failed || (missing && o->seeds >= COMPLETE_FROM);
}

int main(int argc, char **argv)
{
	struct options o = { .seeds = 200, .into = -1 };
	struct outcome own = { 0 };

	if (argp_parse(&argp, argc, argv, 0, NULL, &o))
		return 2;
	if (!o.trace && o.into < 0)
		return run_many(&o);
	int r = history_run(o.seed, o.trace ? stdout : NULL, &own.coverage, &own.hash, own.failure);
	if (o.into >= 0) {
		map_table(o.into, o.place + 1)[o.place].again = own.hash;
		return 0;
	}
	printf("seed %" PRIu64 ": %s%s, hash %016" PRIx64 "\n", o.seed, r ? "FAILED: " : "good", own.failure, own.hash);
	return r != 0;
}
