/*
 * sim/kth_run_suite.c: every k, or some, each in a process of its own, on all cores.
 */
#include <argp.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/hash.h"
#include "sim/kth_suite.h"

#define SECONDS_MAX  60 /* of one k, else it hangs */
#define WORKERS_MAX  64
#define FAILURES_MAX 20 /* of a kind that are printed */

static const char *const kind_words[STRIKE_KINDS] = { "memory", "file", "socket" };
static const char *const kind_texts[STRIKE_KINDS] = { "allocations, arenas among them",
						      "calls on files and of the meta engine",
						      "listen, accept, connect, recv, send, bulk, watch" };

struct kth_options {
	const char *kind; /* a word of these, or "all" */
	uint64_t k;	  /* STRIKE_NONE: all, or: */
	uint64_t sample;  /* so many, spread evenly, each at a random place of its stretch; 0: all */
	uint64_t seed;	  /* of these places */
	bool trace;	  /* tells the story of one k */
};

static const char *const end_names[KTH_ENDS] = { "ended well", "ended with named errors", "crashes", "hangs", "leaks",
						 "wrong" };

struct run { /* of one kind */
	enum strike_kind kind;
	uint64_t n_calls, n;
	uint64_t *ks;		    /* n of them */
	struct kth_result *results; /* likewise; shared with the children */
};

static void *share(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	CHECK(p != MAP_FAILED);
	return p;
}

/* ---- processes ---- */

static pid_t start(enum strike_kind kind, uint64_t k, struct kth_result *result)
{
	fflush(NULL);
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (pid)
		return pid;
	struct kth_result own;
	alarm(SECONDS_MAX);
	kth_play(kind, k, NULL, &own);
	*result = own;
	exit(0); /* where a sanitizer finds leaks */
}

static void judge(struct kth_result *result, int status)
{
	if (!status)
		return;
	int number = WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status);
	bool leaks = !WIFSIGNALED(status) && result->seen; /* it had come to its end */

	result->end = leaks ? KTH_LEAK : number == SIGALRM ? KTH_HANG : KTH_CRASH;
	snprintf(result->words, sizeof(result->words), "its process ended with %s %d",
		 WIFSIGNALED(status) ? "signal" : "status", number);
}

static void reap(struct run *run, pid_t *pids, const uint64_t *jobs)
{
	int status;
	pid_t pid = wait(&status);
	unsigned i = 0;

	while (pids[i] != pid)
		i++;
	pids[i] = 0;
	judge(&run->results[jobs[i]], status);
}

static void run_all(struct run *run)
{
	pid_t pids[WORKERS_MAX] = { 0 };
	uint64_t jobs[WORKERS_MAX];
	long cores = sysconf(_SC_NPROCESSORS_ONLN), running = 0;

	cores = cores < 1 ? 1 : cores > WORKERS_MAX ? WORKERS_MAX : cores;
	for (uint64_t job = 0; job < run->n; job++) {
		unsigned at = 0;

		if (running == cores)
			reap(run, pids, jobs), running--;
		while (pids[at])
			at++;
		jobs[at] = job;
		pids[at] = start(run->kind, run->ks[job], &run->results[job]);
		running++;
	}
	for (; running; running--)
		reap(run, pids, jobs);
}

/* ---- which k ---- */

/* How many calls the history makes when none fails. */
static uint64_t count(enum strike_kind kind)
{
	struct kth_result *result = share(sizeof(*result));
	int status;
	pid_t pid = start(kind, STRIKE_NONE, result);

	CHECK(waitpid(pid, &status, 0) == pid);
	judge(result, status);
	if (result->end != KTH_WELL)
		printf("FAILED with no call that fails: %s\n", result->words);
	uint64_t seen = result->end == KTH_WELL ? result->seen : 0;
	munmap(result, sizeof(*result));
	return seen;
}

/* One at a random place of each of so many even stretches. */
static void choose(const struct kth_options *o, struct run *run)
{
	bool one = o->k != STRIKE_NONE, some = o->sample && o->sample < run->n_calls;

	run->n = one ? 1 : some ? o->sample : run->n_calls;
	run->ks = calloc(run->n, sizeof(*run->ks));
	CHECK(run->ks);
	for (uint64_t i = 0; i < run->n; i++) {
		uint64_t from = run->n_calls * i / run->n, to = run->n_calls * (i + 1) / run->n;
		uint64_t salt = o->seed * STRIKE_KINDS + run->kind;

		run->ks[i] = one ? o->k : some ? from + hash64(&i, sizeof(i), salt) % (to - from) : i;
	}
}

/* ---- the command ---- */

/* Nobody has to wait for a rank that was refused: it, or its node, says so. */
static bool is_bad(const struct kth_result *result)
{
	return result->end > KTH_NAMED || result->late;
}

/* How many were neither good nor named, or late. */
static uint64_t print(const struct run *run, double seconds)
{
	uint64_t ends[KTH_ENDS] = { 0 }, bad = 0, late = 0;
	const char *word = kind_words[run->kind];

	for (uint64_t i = 0; i < run->n; i++) {
		const struct kth_result *r = &run->results[i];

		ends[r->end]++;
		late += r->late;
		if (is_bad(r) && bad++ < FAILURES_MAX)
			printf("FAILED %s %" PRIu64 " %s: %s\n       replay: forebay-sim --kth %s --k %" PRIu64
			       " --trace\n",
			       word, run->ks[i], r->end > KTH_NAMED ? end_names[r->end] : "ended by a deadline only",
			       r->words, word, run->ks[i]);
	}
	printf("%s (%s): %" PRIu64 " calls, %" PRIu64 " tried", word, kind_texts[run->kind], run->n_calls, run->n);
	for (int end = 0; end < KTH_ENDS; end++)
		printf(", %" PRIu64 " %s", ends[end], end_names[end]);
	printf("; %" PRIu64 " by a deadline; %.1f s\n", late, seconds);
	return bad;
}

double seconds_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static bool run_kind(const struct kth_options *o, enum strike_kind kind)
{
	struct run run = { .kind = kind, .n_calls = count(kind) };
	double begin = seconds_now();

	if (!run.n_calls)
		return false;
	choose(o, &run);
	run.results = share(run.n * sizeof(*run.results));
	run_all(&run);
	uint64_t bad = print(&run, seconds_now() - begin);
	munmap(run.results, run.n * sizeof(*run.results));
	free(run.ks);
	return !bad;
}

static int tell_one(enum strike_kind kind, uint64_t k)
{
	struct kth_result result;

	kth_play(kind, k, stdout, &result);
	printf("%s %" PRIu64 ": %s%s: %s\n", kind_words[kind], k, end_names[result.end],
	       result.late ? ", by a deadline only" : "", result.words);
	return is_bad(&result);
}

static int run_kinds(const struct kth_options *o)
{
	bool good = true, known = false;

	if (o->sample)
		printf("k drawn by seed %" PRIu64 "\n", o->seed);
	for (int kind = 0; kind < STRIKE_KINDS; kind++) {
		if (strcmp(o->kind, "all") != 0 && strcmp(o->kind, kind_words[kind]) != 0)
			continue;
		known = true;
		if (o->trace)
			return tell_one((enum strike_kind)kind, o->k);
		good = run_kind(o, (enum strike_kind)kind) && good;
	}
	if (!known)
		fprintf(stderr, "%s: no kind of calls: memory, file, socket, all\n", o->kind);
	return !known ? 2 : !good;
}

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
	struct kth_options *o = state->input;

	if (key == ARGP_KEY_ARG && !state->arg_num)
		o->kind = arg;
	else if (key == 'k')
		o->k = strtoull(arg, NULL, 0);
	else if (key == 'n')
		o->sample = strtoull(arg, NULL, 0);
	else if (key == 's')
		o->seed = strtoull(arg, NULL, 0);
	else if (key == 't')
		o->trace = true;
	else
		return ARGP_ERR_UNKNOWN;
	return 0;
}

int kth_main(int argc, char **argv)
{
	static const struct argp_option options[] = {
		{ "k", 'k', "K", 0, "This call alone", 0 },
		{ "sample", 'n', "N", 0, "N calls of each kind, spread evenly", 0 },
		{ "seed", 's', "SEED", 0, "Draws them (0)", 0 },
		{ "trace", 't', NULL, 0, "Print the story of one k", 0 },
		{ 0 },
	};
	static const struct argp argp = { options,
					  parse_option,
					  "memory|file|socket|all",
					  "Lets the k-th call of a kind fail, once, for every k.",
					  NULL,
					  NULL,
					  NULL };
	struct kth_options o = { .kind = "all", .k = STRIKE_NONE };

	return argp_parse(&argp, argc, argv, 0, NULL, &o) ? 2 : run_kinds(&o);
}
