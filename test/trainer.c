/*
 * test/trainer.c: a rank of a training job that does nothing but save, for tests that kill what is around it.
 *
 *   trainer train FOLDER SOCKET BUNDLE RANK RANKS   saves one step after the other, for ever
 *   trainer check FOLDER SOCKET BUNDLE VERSION RANKS   is this version wholly of its step? exit status 0 or 1
 *
 * Every byte follows from step, item and offset, so whoever reads a version knows whether it is right. Ranks share FOLDER/board: which
 * run is the newest, and where it began. A rank whose save fails leaves, begins the next run or joins it, restores the newest version,
 * checks all of it and goes on behind it. While there is a file FOLDER/pause it saves nothing and has no session.
 *
 * What it was told goes to standard output, a line each: "run R STEP", "captured STEP", "staged STEP", "durable STEP VERSION",
 * "failed STEP ERROR WORDS", "paused". A line "WRONG WORDS" is what must never be.
 *
 * $TRAINER_PACE_MS: so long it computes between two saves. $TRAINER_LIES takes a safeguard of the tests away: "durable" says so of what is captured, "mix" saves rank 1's shard of the step before.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "forebay/forebay.h"

#define SHARD	   30011 /* numbers of a rank's shard: several blocks' worth of nothing round */
#define BOTH	   20021 /* of the replica */
#define LIMIT_MS   60000 /* for whatever is waited for; longer is a hang */
#define JOIN_MS	   3000	 /* then it is looked whether there is a newer run */
#define TICK_NS	   2000000
#define LINE_BYTES 1500
#define HINT_EVERY 3 /* saves of a run without the hint: the first and each third */

enum item { SHARDS, REPLICA, ZEROS, LOWEST, SMALL, ITEMS };
static const char *const names[ITEMS] = { "shards", "replica", "zeros", "lowest", "small" };

struct board {
	_Atomic uint64_t run;		/* the newest */
	_Atomic uint64_t begun;		/* the run of which the next two are */
	_Atomic uint64_t version, step; /* that it restores; version 0: there is none */
	_Atomic uint64_t durable;	/* the highest step of which any rank was told */
};

struct trainer {
	const char *folder, *socket, *bundle;
	uint32_t rank, ranks;
	bool lies_durable, lies_mix;
	uint64_t pace_ms;
	struct board *board;
	struct forebay_session *session;
	struct forebay_group *group;
	uint64_t run;
	uint64_t *data[ITEMS];
};

struct pending {
	struct forebay_save *save;
	struct forebay_future *captured, *staged, *durable;
	uint64_t step;
};

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* One write, so that a line is whole or not there when the process is killed. */
static void say(const char *format, ...)
{
	char line[LINE_BYTES];
	va_list ap;

	va_start(ap, format);
	int n = vsnprintf(line, sizeof(line) - 1, format, ap);
	va_end(ap);
	if (n > (int)sizeof(line) - 2)
		n = (int)sizeof(line) - 2;
	line[n++] = '\n';
	if (write(STDOUT_FILENO, line, (size_t)n) != n)
		exit(3);
}

static uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_BOOTTIME, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void tick(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = TICK_NS }, NULL);
}

/* ---- the bytes of a step ---- */

static uint64_t number_of(uint64_t step, enum item item, uint64_t i)
{
	uint64_t x = step * UINT64_C(0x9e3779b97f4a7c15) + ((uint64_t)item << 56) + i;

	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return item == ZEROS ? 0 : item == SMALL ? step : x ^ (x >> 31);
}

static uint64_t numbers_of(enum item item, uint32_t ranks)
{
	return item == SHARDS || item == ZEROS ? (uint64_t)SHARD * ranks : item == REPLICA ? BOTH : 1;
}

/* Which step has this number there, of those around; for words only. */
static uint64_t step_with(uint64_t number, enum item item, uint64_t i, uint64_t around)
{
	for (uint64_t step = around > 1000 ? around - 1000 : 0; step < around + 1000; step++)
		if (number_of(step, item, i) == number)
			return step;
	return UINT64_MAX;
}

static bool is_right(const uint64_t *data, enum item item, uint64_t n, uint64_t step)
{
	for (uint64_t i = 0; i < n; i++) {
		if (data[i] == number_of(step, item, i))
			continue;
		uint64_t other = step_with(data[i], item, i, step);
		if (other != UINT64_MAX)
			say("WRONG a mix: step %" PRIu64 " has step %" PRIu64 " in %s at %" PRIu64, step, other,
			    names[item], i);
		else
			say("WRONG bytes: step %" PRIu64 ", %s at %" PRIu64, step, names[item], i);
		return false;
	}
	return true;
}

/* ---- restoring ---- */

static int load_items(struct forebay_version *version, struct forebay_group *group, uint64_t *data[ITEMS],
		      uint32_t ranks)
{
	struct forebay_load *load;
	struct forebay_future *future = NULL;
	int r = forebay_load_begin(version, group, &load);

	if (r)
		return r;
	for (int item = 0; item < ITEMS && !r; item++) {
		const uint64_t shape[] = { numbers_of((enum item)item, ranks) };
		const struct forebay_target target = { .size = sizeof(target),
						       .name = names[item],
						       .dtype = "uint64",
						       .element_bits = 64,
						       .ndim = 1,
						       .shape = shape,
						       .data = data[item] };
		memset(data[item], 0xa5, shape[0] * sizeof(uint64_t));
		r = forebay_load_into(load, &target, 1);
	}
	if (!r)
		r = forebay_load_submit(load, &future);
	if (!r)
		r = forebay_wait(future, LIMIT_MS);
	if (r)
		say("# load: %s: %s", forebay_error_name(r), future ? forebay_future_error(future) : forebay_error());
	forebay_future_free(future);
	forebay_load_free(load);
	return r;
}

/* Reads all of a version and compares it. 0, an error of Forebay's, or 1: it is wrong, which has been said. */
static int check_version(struct forebay_session *session, struct forebay_group *group, const char *bundle,
			 uint64_t number, uint32_t ranks, uint64_t *ret_step)
{
	char text[32];
	uint64_t *data[ITEMS];
	struct forebay_version *version = NULL;
	struct forebay_version_info info = { .size = sizeof(info) };

	snprintf(text, sizeof(text), "%" PRIu64, number);
	int r = forebay_open(session, group, bundle, text, &version);
	if (r)
		return r;
	for (int item = 0; item < ITEMS; item++)
		data[item] = malloc(numbers_of((enum item)item, ranks) * sizeof(uint64_t));
	r = forebay_version_info(version, &info);
	if (!r)
		r = load_items(version, group, data, ranks);
	for (int item = 0; item < ITEMS && !r; item++)
		r = !is_right(data[item], (enum item)item, numbers_of((enum item)item, ranks), info.step);
	*ret_step = info.step;
	forebay_close(version);
	for (int item = 0; item < ITEMS; item++)
		free(data[item]);
	return r;
}

/* ---- runs ---- */

static bool is_paused(const struct trainer *t)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s/pause", t->folder);
	return access(path, F_OK) == 0;
}

static void raise_durable(struct board *board, uint64_t step)
{
	uint64_t old = atomic_load(&board->durable);

	while (old < step && !atomic_compare_exchange_weak(&board->durable, &old, step))
		;
}

/* What no fault around a job explains. */
static bool is_never_right(int code)
{
	switch (code) {
	case -FOREBAY_EDAMAGED:
	case -FOREBAY_EREPLICA:
	case -FOREBAY_EOVERLAP:
	case -FOREBAY_EMISMATCH:
	case -FOREBAY_ECHANGED:
	case -FOREBAY_EPOOL:
	case -FOREBAY_ESTEP:
	case -EINVAL:
	case -EFAULT:
	case -EBADMSG:
		return true;
	default:
		return false;
	}
}

static int failed(const char *what, uint64_t step, int code, const char *words)
{
	if (is_never_right(code))
		say("WRONG %s of step %" PRIu64 ": %s %s", what, step, forebay_error_name(code), words);
	else
		say("failed %" PRIu64 " %s %s: %s", step, forebay_error_name(code), what, words);
	return code;
}

/* Rank 0 says which version the run restores; the others wait for that. */
static int begin_run(struct trainer *t, uint64_t *ret_step)
{
	struct board *board = t->board;
	uint64_t end = now_ms() + LIMIT_MS, told = atomic_load(&board->durable);

	if (t->rank == 0) {
		struct forebay_version *version = NULL;
		struct forebay_version_info info = { .size = sizeof(info) };
		int r = forebay_open(t->session, t->group, t->bundle, NULL, &version);
		if (r && (r != -ENOENT || told))
			return failed("open", told, r, forebay_error());
		if (!r)
			(void)forebay_version_info(version, &info);
		atomic_store(&board->step, info.step);
		atomic_store(&board->version, r ? 0 : info.number);
		atomic_store(&board->begun, t->run);
		forebay_close(version);
	}
	while (atomic_load(&board->begun) != t->run) {
		if (atomic_load(&board->run) != t->run || now_ms() > end)
			return -ESTALE;
		tick();
	}
	uint64_t step = 0;
	uint64_t version = atomic_load(&board->version);
	int r = version ? check_version(t->session, t->group, t->bundle, version, t->ranks, &step) : 0;
	if (r < 0)
		return failed("restore", step, r, forebay_error());
	if (r)
		exit(1);
	if (step < told) {
		say("WRONG lost: the newest version %" PRIu64 " is step %" PRIu64 ", a rank was told of %" PRIu64,
		    version, step, told);
		exit(1);
	}
	say("run %" PRIu64 " %" PRIu64, t->run, step);
	*ret_step = step + 1;
	return 0;
}

/* Connects and joins the newest run. */
static int join_run(struct trainer *t)
{
	const struct forebay_connect_options options = { .size = sizeof(options),
							 .socket = t->socket,
							 .timeout_ms = JOIN_MS,
							 .threads = 1 };
	char run[32];

	t->run = atomic_load(&t->board->run);
	snprintf(run, sizeof(run), "%" PRIu64, t->run);
	int r = forebay_connect(&options, &t->session);
	if (r)
		return r;
	const struct forebay_group_options group = { .size = sizeof(group),
						     .name = t->bundle,
						     .run = run,
						     .rank = t->rank,
						     .ranks = t->ranks };
	r = forebay_group_join(t->session, &group, JOIN_MS, &t->group);
	if (r && is_never_right(r))
		say("WRONG join: %s %s", forebay_error_name(r), forebay_error());
	return r;
}

static void leave_run(struct trainer *t)
{
	forebay_group_leave(t->group);
	forebay_disconnect(t->session);
	t->group = NULL;
	t->session = NULL;
}

/* ---- a save ---- */

static int add_items(struct trainer *t, struct forebay_save *save, uint64_t step)
{
	int r = 0;

	for (int item = 0; item < ITEMS && !r; item++) {
		const uint64_t shape[] = { numbers_of((enum item)item, t->ranks) };
		bool sharded = item == SHARDS || item == ZEROS;
		const uint64_t start[] = { sharded ? (uint64_t)SHARD * t->rank : 0 };
		const uint64_t count[] = { sharded ? SHARD : shape[0] };
		uint64_t bytes_of = item == SHARDS && t->rank == 1 && t->lies_mix ? step - 1 : step;
		for (uint64_t i = 0; i < count[0]; i++)
			t->data[item][i] = number_of(bytes_of, (enum item)item, start[0] + i);
		if (item == LOWEST && t->rank > 0)
			t->data[item][0] = t->rank; /* which nobody may see */
		const struct forebay_item offered = { .size = sizeof(offered),
						      .name = names[item],
						      .dtype = "uint64",
						      .element_bits = 64,
						      .ndim = 1,
						      .shape = shape,
						      .start = start,
						      .count = count,
						      .data = t->data[item],
						      .flags = item == LOWEST ? FOREBAY_LOWEST_RANK : 0 };
		r = forebay_save_add(save, &offered, 1);
	}
	return r;
}

static int save_begin(struct trainer *t, uint64_t step, bool hint, struct pending *ret)
{
	const struct forebay_save_options options = { .size = sizeof(options), .copies = 2, .same_structure = hint };
	struct pending p = { .step = step };
	int r = forebay_save_begin(t->group, t->bundle, step, &options, &p.save);

	if (!r)
		r = forebay_save_future(p.save, FOREBAY_CAPTURED, &p.captured);
	if (!r)
		r = forebay_save_future(p.save, FOREBAY_STAGED, &p.staged);
	if (!r)
		r = forebay_save_future(p.save, FOREBAY_DURABLE, &p.durable);
	if (!r)
		r = add_items(t, p.save, step);
	if (!r)
		r = forebay_save_submit(p.save);
	*ret = p;
	return r ? failed("begin", step, r, forebay_error()) : 0;
}

static void pending_free(struct pending *p)
{
	forebay_future_free(p->captured);
	forebay_future_free(p->staged);
	forebay_future_free(p->durable);
	forebay_save_free(p->save);
	*p = (struct pending){ 0 };
}

static int await(struct forebay_future *future, const char *stage, uint64_t step)
{
	int r = forebay_wait(future, LIMIT_MS);

	if (r == -ETIMEDOUT)
		say("WRONG hang: step %" PRIu64 " is not %s after %d ms", step, stage, LIMIT_MS);
	else if (r)
		failed(stage, step, r, forebay_future_error(future));
	return r;
}

static int await_durable(struct trainer *t, struct pending *p)
{
	if (!p->save)
		return 0;
	int r = await(p->durable, "durable", p->step);
	if (!r || r == -FOREBAY_EUNINDEXED) {
		raise_durable(t->board, p->step);
		say("durable %" PRIu64 " %" PRIu64, p->step, forebay_save_version(p->save));
	}
	pending_free(p);
	return r;
}

/* Saves until something fails, or there is a pause. One save is on its way to the store while the next is captured. */
static void live_run(struct trainer *t, uint64_t step)
{
	struct pending last = { 0 }, now = { 0 };
	uint64_t first = step;
	int r = 0;

	while (!r && !is_paused(t) && atomic_load(&t->board->run) == t->run) {
		for (uint64_t end = now_ms() + t->pace_ms; now_ms() < end;)
			tick();
		r = save_begin(t, step, (step - first) % HINT_EVERY != 0, &now);
		if (!r)
			r = await(now.captured, "captured", step);
		if (!r)
			say("captured %" PRIu64, step);
		if (!r && t->lies_durable)
			say("durable %" PRIu64 " 0", step);
		if (r)
			break;
		r = await_durable(t, &last);
		last = now;
		now = (struct pending){ 0 };
		int staged = await(last.staged, "staged", step);
		if (!staged)
			say("staged %" PRIu64, step);
		r = r ? r : staged;
		step++;
	}
	pending_free(&now);
	(void)await_durable(t, &last);
}

static void train(struct trainer *t)
{
	t->run = atomic_load(&t->board->run);
	for (;;) {
		/* Whoever comes, or comes back, begins a new run, unless another has: the one that it was in has come to its end. */
		uint64_t run = t->run, step = 0;

		atomic_compare_exchange_strong(&t->board->run, &run, run + 1);
		if (is_paused(t)) {
			say("paused");
			while (is_paused(t))
				tick();
		}
		while (join_run(t)) {
			leave_run(t);
			tick();
		}
		if (!begin_run(t, &step))
			live_run(t, step);
		leave_run(t);
	}
}

static struct board *board_map(const char *folder)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s/board", folder);
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	if (fd < 0 || ftruncate(fd, sizeof(struct board)))
		exit(3);
	void *map = mmap(NULL, sizeof(struct board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (map == MAP_FAILED)
		exit(3);
	return map;
}

static int check(const struct trainer *t, uint64_t number)
{
	const struct forebay_connect_options options = { .size = sizeof(options), .socket = t->socket };
	struct forebay_session *session = NULL;
	uint64_t step = 0;
	int r = forebay_connect(&options, &session);

	if (!r)
		r = check_version(session, NULL, t->bundle, number, t->ranks, &step);
	if (r < 0)
		say("WRONG version %" PRIu64 ": %s %s", number, forebay_error_name(r), forebay_error());
	else if (!r)
		say("right %" PRIu64 " %" PRIu64, number, step);
	forebay_disconnect(session);
	return r ? 1 : 0;
}

int main(int argc, char **argv)
{
	if (argc != 7) {
		fprintf(stderr, "trainer train|check FOLDER SOCKET BUNDLE RANK|VERSION RANKS\n");
		return 2;
	}
	const char *lies = getenv("TRAINER_LIES"), *pace = getenv("TRAINER_PACE_MS");
	uint64_t which = strtoull(argv[5], NULL, 10);
	struct trainer t = { .folder = argv[2],
			     .socket = argv[3],
			     .bundle = argv[4],
			     .rank = (uint32_t)which,
			     .ranks = (uint32_t)strtoul(argv[6], NULL, 10),
			     .lies_durable = lies && !strcmp(lies, "durable"),
			     .lies_mix = lies && !strcmp(lies, "mix"),
			     .pace_ms = pace ? strtoull(pace, NULL, 10) : 0 };

	if (!strcmp(argv[1], "check"))
		return check(&t, which);
	t.board = board_map(t.folder);
	for (int item = 0; item < ITEMS; item++)
		t.data[item] = malloc((SHARD + BOTH) * sizeof(uint64_t));
	train(&t);
}
