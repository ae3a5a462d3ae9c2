/*
 * forebay-sim: runs histories of a simulated cluster, each from its seed and in a process of its own, so that a crash is one seed's
 * failure. One seed in AGAIN_EVERY runs in a second process, whose memory lies elsewhere, and must give the same hash.
 */
#include <argp.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "sim/history_suite.h"
#include "sim/kth_suite.h"
#include "sim/scenario_suite.h"

#define AGAIN_EVERY   10
#define COMPLETE_FROM 500 /* seeds: with so many everything must have been reached */
#define SECONDS_MAX   120 /* of one seed, else it hangs */
#define WORKERS_MAX   64
#define FAILURES_MAX  20 /* that are printed */

struct outcome {
	uint64_t hash, again, took_ns;
	char failure[512];
	struct coverage coverage, again_coverage;
};

struct options {
	uint64_t seed, seeds;
	bool one, trace;
	const char *scenario;
	struct script script; /* of that file */
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
	struct options *o = state->input;

	if (key == 's' || key == 'f')
		o->seed = strtoull(arg, NULL, 0);
	else if (key == 'n')
		o->seeds = strtoull(arg, NULL, 0);
	else if (key == 'c')
		o->scenario = arg;
	else if (key != 't')
		return ARGP_ERR_UNKNOWN;
	o->one |= key == 's';
	o->trace |= key == 't';
	return 0;
}

static const struct argp_option option_table[] = {
	{ "seed", 's', "SEED", 0, "Run the history of this seed alone", 0 },
	{ "seeds", 'n', "N", 0, "Run N histories (500)", 0 },
	{ "from", 'f', "SEED", 0, "The first of them (0)", 0 },
	{ "scenario", 'c', "FILE", 0, "Play this script of faults under each seed", 0 },
	{ "trace", 't', NULL, 0, "Print the story of one seed", 0 },
	{ 0 },
};
static const struct argp argp = {
	option_table, parse_option, NULL, "Simulates Forebay. With --kth first: see --kth --help.", NULL, NULL, NULL
};

static int run_one(const struct options *o, uint64_t seed, FILE *story, struct coverage *coverage, uint64_t *ret_hash,
		   uint64_t *ret_took_ns, char ret_failure[512])
{
	if (o->scenario)
		return scenario_run(&o->script, seed, story, coverage, ret_hash, ret_took_ns, ret_failure);
	return history_run(seed, story, coverage, ret_hash, ret_failure);
}

/* Job numbers below @seeds are first runs, the others second ones. Ends the process. */
static void run_child(const struct options *o, struct outcome *table, uint64_t job)
{
	struct outcome *outcome = &table[job % o->seeds];
	bool again = job >= o->seeds;
	char failure[sizeof(outcome->failure)];

	alarm(SECONDS_MAX);
	void *elsewhere = malloc(again ? 123456 : 1); /* moves all that comes after it */
	(void)run_one(o, o->seed + job % o->seeds, NULL, again ? &outcome->again_coverage : &outcome->coverage,
		      again ? &outcome->again : &outcome->hash, &outcome->took_ns, again ? failure : outcome->failure);
	free(elsewhere);
	exit(0); /* where a leak fails the seed */
}

static void reap(const struct options *o, struct outcome *table, pid_t *pids, const uint64_t *jobs)
{
	int status;
	pid_t pid = wait(&status);
	unsigned i = 0;

	while (pids[i] != pid)
		i++;
	struct outcome *outcome = &table[jobs[i] % o->seeds];
	pids[i] = 0;
	if (status && !outcome->failure[0])
		snprintf(outcome->failure, sizeof(outcome->failure), "its process ended with %s %d",
			 WIFSIGNALED(status) ? "signal" : "status",
			 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

static void run_all(const struct options *o, struct outcome *table)
{
	pid_t pids[WORKERS_MAX] = { 0 };
	uint64_t jobs[WORKERS_MAX];
	long cores = sysconf(_SC_NPROCESSORS_ONLN), running = 0;

	cores = cores < 1 ? 1 : cores > WORKERS_MAX ? WORKERS_MAX : cores;
	for (uint64_t job = 0; job < 2 * o->seeds; job++) {
		unsigned at = 0;

		if (job >= o->seeds && job % o->seeds % AGAIN_EVERY)
			continue;
		if (running == cores)
			reap(o, table, pids, jobs), running--;
		while (pids[at])
			at++;
		jobs[at] = job;
		fflush(NULL);
		pids[at] = fork();
		CHECK(pids[at] >= 0);
		if (!pids[at])
			run_child(o, table, job);
		running++;
	}
	for (; running; running--)
		reap(o, table, pids, jobs);
	for (uint64_t i = 0; i < o->seeds; i += AGAIN_EVERY)
		if (!table[i].failure[0] && table[i].hash != table[i].again)
			snprintf(table[i].failure, sizeof(table[i].failure), "a second process tells another story");
}

static int run_many(const struct options *o)
{
	struct coverage sum = { 0 };
	uint64_t failed = 0;
	double begin = seconds_now();
	struct outcome *table =
		mmap(NULL, o->seeds * sizeof(*table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(table != MAP_FAILED);
	run_all(o, table);
	for (uint64_t i = 0; i < o->seeds; i++)
		for (size_t k = 0; k < sizeof(sum) / sizeof(uint64_t); k++)
			((uint64_t *)&sum)[k] += ((const uint64_t *)&table[i].coverage)[k];
	unsigned missing = o->scenario ? 0 : coverage_print(&sum);
	if (o->scenario)
		recovery_print(&table->took_ns, sizeof(*table), o->seeds);
	for (uint64_t i = 0; i < o->seeds; i++)
		if (table[i].failure[0] && failed++ < FAILURES_MAX)
			printf("FAILED seed %" PRIu64 ": %s\n       replay: forebay-sim --seed %" PRIu64
			       " --trace%s%s\n",
			       o->seed + i, table[i].failure, o->seed + i, o->scenario ? " --scenario " : "",
			       o->scenario ? o->scenario : "");
	printf("%" PRIu64 " histories, %" PRIu64 " failed, %.1f per second%s\n", o->seeds, failed,
	       (double)o->seeds / (seconds_now() - begin),
	       missing && o->seeds >= COMPLETE_FROM ? "; not everything was reached" : "");
	return failed || (missing && o->seeds >= COMPLETE_FROM);
}

static int trace_one(const struct options *o)
{
	struct outcome own = { 0 };
	int r = run_one(o, o->seed, stdout, &own.coverage, &own.hash, &own.took_ns, own.failure);

	printf("seed %" PRIu64 ": %s%s, hash %016" PRIx64 "\n", o->seed, r ? "FAILED: " : "good", own.failure,
	       own.hash);
	return r != 0;
}

int main(int argc, char **argv)
{
	struct options o = { .seeds = 500 };

	if (argc > 1 && strcmp(argv[1], "--kth") == 0)
		return kth_main(argc - 1, argv + 1);
	if (argp_parse(&argp, argc, argv, 0, NULL, &o))
		return 2;
	o.seeds = o.one ? 1 : o.seeds;
	if (o.scenario && !script_read_or_say(o.scenario, &o.script))
		return 2;
	int r = o.scenario && !o.script.simulated ? 0 : o.trace ? trace_one(&o) : run_many(&o);
	script_fini(&o.script);
	return r;
}
