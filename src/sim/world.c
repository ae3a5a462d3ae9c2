#include "sim/world.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "sim/inside.h"

#define START_NS      NS_PER_S /* virtual clocks begin here: 0 stays "never" */
#define STORY_LINE    512      /* bytes; longer lines are cut */
#define UNWIND_TURNS  1000000  /* after a history's end: more is a fiber that does not end */
#define WORKERS	      4	       /* jobs at once in a lane; the others wait */
#define RATE_AT_FIRST UINT64_C(1000000000)

static const char worker_name[] = "sim-worker";

const char *const fault_names[FAULTS] = {
#define X(name, most, text) #name,
	FAULT_TABLE(X)
#undef X
};
const char *const fault_texts[FAULTS] = {
#define X(name, most, text) text,
	FAULT_TABLE(X)
#undef X
};

/* ---- dice, story, faults ---- */

void *must_alloc(size_t size)
{
	SPARED;
	void *p = calloc(1, size ? size : 1);

	CHECK(p);
	return p;
}

/* splitmix64 (Steele, Lea, Flood 2014): any state is good, so envs get theirs by hashing. */
static uint64_t roll(uint64_t *dice)
{
	uint64_t z = (*dice += UINT64_C(0x9e3779b97f4a7c15));

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

uint64_t world_random(struct world *w, uint64_t below)
{
	return below ? roll(&w->dice) % below : 0;
}

bool world_chance(struct world *w, uint32_t per_million)
{
	return per_million && world_random(w, 1000000) < per_million;
}

void world_tell(struct world *w, const struct env *who, const char *format, ...)
{
	char line[STORY_LINE];
	int n = snprintf(line, sizeof(line), "%5" PRIu64 ".%09" PRIu64 " %-8s ", w->now_ns / NS_PER_S,
			 w->now_ns % NS_PER_S, who ? who->name : "-");
	va_list ap;

	va_start(ap, format);
	n += vsnprintf(line + n, sizeof(line) - (size_t)n, format, ap);
	va_end(ap);
	w->hash = hash64(line, (size_t)n < sizeof(line) ? (size_t)n : sizeof(line) - 1, w->hash);
	w->events++;
	if (w->story)
		fprintf(w->story, "%s\n", line);
}

/* A quarter of the histories is calm, half has some faults at a tenth of the most, a quarter has most at up to the most. */
static void draw_weather(struct world *w)
{
	static const uint32_t most[FAULTS] = {
#define X(name, number, text) number,
		FAULT_TABLE(X)
#undef X
	};
	uint64_t temper = world_random(w, 4);

	for (int i = 0; i < FAULTS && temper; i++)
		if (world_random(w, 4) < (temper == 3 ? 3 : 2))
			w->faults.per_million[i] = (uint32_t)world_random(w, 1 + most[i] / (temper == 3 ? 1 : 10));
}

static bool take_planned(struct world *w, enum fault fault, const char *place)
{
	for (unsigned i = 0; i < w->n_planned; i++) {
		struct planned *p = &w->planned[i];

		if (p->fault != fault || (p->where && !strstr(place, p->where)))
			continue;
		free(p->where);
		memmove(p, p + 1, (--w->n_planned - i) * sizeof(*p));
		return true;
	}
	return false;
}

bool fault_here(struct sim_env *e, enum fault fault, const char *what, const char *where)
{
	struct world *w = e->world;
	char place[STORY_LINE];

	if (w->n_planned)
		snprintf(place, sizeof(place), "%s %s %s", e->name, what, where);
	if (!take_planned(w, fault, place) && !world_chance(w, w->faults.per_million[fault]))
		return false;
	w->faults.injected[fault]++;
	world_tell(w, &e->env, "FAULT %s: %s %s", fault_names[fault], what, where);
	return true;
}

void world_inject(struct world *w, enum fault fault, const char *where)
{
	CHECK(w->n_planned < SIM_PLANNED_MAX);
	w->planned[w->n_planned++] = (struct planned){ fault, where ? strdup(where) : NULL };
}

/* ---- time ---- */

static uint64_t clock_now(void *arg)
{
	return ((struct world *)arg)->now_ns;
}

/* Nothing comes from outside: until the next timer nothing can happen, and without one nothing ever will. */
static int clock_poll(void *arg, uint64_t until_ns)
{
	struct world *w = arg;
	bool woken = w->woken;

	w->woken = false;
	if (woken || until_ns <= w->now_ns)
		return 0;
	if (until_ns > w->limit_ns || until_ns == FOREVER)
		return until_ns == FOREVER ? -EDEADLK : -ETIME;
	w->now_ns = until_ns;
	w->hash = hash64(&until_ns, sizeof(until_ns), w->hash); /* a timer fires */
	return 0;
}

static void clock_wake(void *arg)
{
	((struct world *)arg)->woken = true;
}

struct run {
	int (*fn)(void *arg);
	void *arg;
	int result;
	bool finished;
};

static int run_history(void *arg)
{
	struct run *run = arg;
	int r = run->fn(run->arg);

	run->result = run->result ? run->result : r;
	run->finished = true;
	return 0;
}

int world_run(struct world *w, uint64_t limit_ns, int (*fn)(void *arg), void *arg)
{
	struct run run = { .fn = fn, .arg = arg };
	struct nursery nursery;

	nursery_init(&nursery, w->loop);
	int r = fiber_start(&nursery, "history", run_history, &run);
	w->limit_ns = limit_ns == FOREVER ? FOREVER : w->now_ns + limit_ns;
	while (!run.finished && !r)
		r = loop_turn(w->loop);
	w->limit_ns = FOREVER;
	if (!run.finished) {
		world_tell(w, NULL, "the history does not end: %s", error_name(r));
		run.result = r;
		nursery_cancel(&nursery);
	}
	for (int turns = 0; !nursery_is_empty(&nursery); turns++) {
		CHECK(turns < UNWIND_TURNS);
		(void)loop_turn(w->loop);
	}
	return run.result;
}

/* ---- envs ---- */

struct sim_env *sim_env(struct env *env)
{
	CHECK_MAGIC(env, ENV_MAGIC);
	return container_of(env, struct sim_env, env);
}

static uint64_t op_now(struct env *env)
{
	return sim_env(env)->world->now_ns;
}

static void op_random(struct env *env, void *p, size_t len)
{
	for (size_t i = 0; i < len; i++)
		((uint8_t *)p)[i] = (uint8_t)(roll(&sim_env(env)->dice) >> 32);
}

struct env *world_env_new(struct world *w, const char *name)
{
	struct sim_env *e = must_alloc(sizeof(*e));

	list_each(node, &w->envs) {
		struct sim_env *other = list_entry(node, struct sim_env, link);

		CHECK(other->dead || strcmp(other->name, name) != 0);
	}
	CHECK((size_t)snprintf(e->name, sizeof(e->name), "%s", name) < sizeof(e->name));
	e->env = (struct env){ ENV_MAGIC, &w->ops, w->loop, e->name };
	e->world = w;
	e->uid = 1000;
	e->pid = (int32_t)++w->serial;
	e->dice = hash64(name, strlen(name), w->seed + (uint64_t)e->pid);
	e->rate_bytes_per_s = RATE_AT_FIRST;
	e->disk = disk_of(w, name);
	nursery_init(&e->workers, w->loop);
	for (unsigned lane = 0; lane < LANES; lane++)
		list_init(&e->lanes[lane].waiting);
	list_append(&w->envs, &e->link);
	world_tell(w, &e->env, "born, pid %d", e->pid);
	return &e->env;
}

void world_kill(struct env *env, enum death how)
{
	struct sim_env *e = sim_env(env);
	struct world *w = e->world;

	if (e->dead)
		return;
	if (how == DEATH_DRAWN)
		how = world_random(w, 2) ? DEATH_PROCESS : DEATH_MACHINE;
	world_tell(w, env, "dies%s", how == DEATH_MACHINE ? " with its machine" : "");
	w->faults.injected[how == DEATH_MACHINE ? FAULT_DEATH_MACHINE : FAULT_DEATH_PROCESS]++;
	e->dead = true;
	e->silent = how == DEATH_MACHINE && world_random(w, 2);
	stream_env_died(e, how == DEATH_PROCESS);
	if (how == DEATH_MACHINE)
		disk_forget(w, e->name, NULL);
}

struct env *world_revive(struct env *dead)
{
	struct sim_env *e = sim_env(dead);

	CHECK(e->dead);
	if (e->silent)
		stream_env_returned(e);
	struct env *env = world_env_new(e->world, e->name);
	sim_env(env)->uid = e->uid;
	sim_env(env)->rate_bytes_per_s = e->rate_bytes_per_s;
	return env;
}

unsigned world_leftovers(const struct world *w)
{
	unsigned n = 0;

	list_each(node, &w->envs)
		n += list_entry(node, struct sim_env, link)->open;
	return n;
}

/* ---- silence ---- */

static bool name_fits(const char *pattern, const char *name)
{
	return strcmp(pattern, "*") == 0 || strcmp(pattern, name) == 0;
}

bool is_silent(const struct world *w, const struct sim_env *from, const struct sim_env *to)
{
	for (unsigned i = 0; i < w->n_silences; i++)
		if (name_fits(w->silences[i].from, from->name) && name_fits(w->silences[i].to, to->name))
			return true;
	return false;
}

void world_silence(struct world *w, const char *from, const char *to, bool on)
{
	struct silence *s = w->silences;

	while (s < w->silences + w->n_silences && (strcmp(s->from, from) || strcmp(s->to, to)))
		s++;
	bool was_on = s < w->silences + w->n_silences;
	if (on == was_on)
		return;
	world_tell(w, NULL, "%s -> %s %s", from, to, on ? "falls silent" : "is heard again");
	if (on) {
		CHECK(w->n_silences < SIM_SILENCES_MAX);
		snprintf(s->from, sizeof(s->from), "%s", from);
		snprintf(s->to, sizeof(s->to), "%s", to);
		w->n_silences++;
		w->faults.injected[FAULT_SILENCE]++;
	} else {
		*s = w->silences[--w->n_silences];
		stream_silence_ended(w);
	}
}

/* ---- jobs: each lane of an env has a few workers, fibers that run jobs one after the other and end when there are none ---- */

bool in_job(void)
{
	return fiber_running() && strcmp(fiber_name(), worker_name) == 0;
}

static void job_finish(struct task *task)
{
	struct job *job = container_of(task, struct job, task);

	job->finish(job);
}

static int work(void *arg)
{
	struct lane_jobs *lane = arg;
	struct list *node;

	while ((node = list_pop(&lane->waiting))) {
		struct job *job = list_entry(node, struct job, link);

		job->run(job);
		job->task = (struct task){ .fn = job_finish };
		loop_post(job->env->loop, &job->task);
	}
	lane->n_workers--;
	return 0;
}

static int op_offload(struct env *env, struct job *job)
{
	SPARED;
	struct sim_env *e = sim_env(env);
	struct lane_jobs *lane = &e->lanes[job->lane];

	CHECK(!in_job());
	if (e->dead)
		return -ESHUTDOWN;
	job->env = env;
	list_append(&lane->waiting, &job->link);
	if (lane->n_workers == WORKERS)
		return 0;
	lane->n_workers++;
	CHECK(fiber_start(&e->workers, worker_name, work, lane) == 0);
	return 0;
}

/* ---- arenas: plain memory, counted, since in this world processes share all of it ---- */

struct sim_arena *arena_find(struct world *w, uint64_t id)
{
	list_each(node, &w->arenas)
		if (list_entry(node, struct sim_arena, link)->id == id)
			return list_entry(node, struct sim_arena, link);
	return NULL;
}

void arena_put(struct sim_arena *a)
{
	if (!a || --a->refs)
		return;
	list_remove(&a->link);
	free(a->ptr);
	free(a);
}

static int op_arena_new(struct env *env, size_t size, bool shared_read, struct arena *ret, struct error *err)
{
	struct sim_env *e = sim_env(env);

	if (e->dead)
		return error_set(err, -ESHUTDOWN, "%s is shut down", e->name);
	if (strike_here(STRIKE_MEMORY) || fault_here(e, FAULT_NO_MEMORY, "arena", ""))
		return error_set(err, -ENOMEM, "no memory for an arena of %zu bytes", size);

	struct sim_arena *a = must_alloc(sizeof(*a));
	*a = (struct sim_arena){ .size = size, .id = ++e->world->serial, .refs = 1 };
	a->ptr = must_alloc(size);
	list_append(&e->world->arenas, &a->link);
	e->open++;
	world_tell(e->world, env, "arena %" PRIu64 " of %zu bytes%s", a->id, size,
		   shared_read ? ", read by others" : "");
	*ret = (struct arena){ a->ptr, size, a->id, -1 };
	return 0;
}

static void op_arena_free(struct env *env, struct arena *arena)
{
	if (!arena->ptr)
		return;
	arena_put(arena_find(sim_env(env)->world, arena->id));
	sim_env(env)->open--;
	*arena = (struct arena){ .fd = -1 };
}

/* ---- the beginning and the end ---- */

struct world *world_new(uint64_t seed, enum weather weather, FILE *story)
{
	struct world *w = must_alloc(sizeof(*w));
	struct clockwork clockwork = { clock_now, clock_poll, clock_wake, w };

	*w = (struct world){ .seed = seed, .dice = seed, .now_ns = START_NS, .limit_ns = FOREVER, .story = story };
	w->ops = (struct env_ops){ .now = op_now, .random = op_random, .offload = op_offload };
	w->ops.arena_new = op_arena_new;
	w->ops.arena_free = op_arena_free;
	stream_ops(&w->ops);
	file_ops(&w->ops);
	list_init(&w->envs);
	list_init(&w->streams);
	list_init(&w->arenas);
	list_init(&w->disks);
	CHECK((w->loop = loop_new(&clockwork)));
	if (weather == WEATHER_DRAWN)
		draw_weather(w);
	world_tell(w, NULL, "seed %" PRIu64, seed);
	return w;
}

static bool jobs_under_way(const struct world *w)
{
	list_each(node, &w->envs)
		if (!nursery_is_empty(&list_entry(node, struct sim_env, link)->workers))
			return true;
	return false;
}

void world_free(struct world *w)
{
	if (!w)
		return;
	list_each(node, &w->envs)
		world_kill(&list_entry(node, struct sim_env, link)->env, DEATH_PROCESS);
	for (int turns = 0; jobs_under_way(w); turns++) {
		CHECK(turns < UNWIND_TURNS);
		(void)loop_turn(w->loop);
	}
	(void)loop_turn(w->loop); /* the last calls of finish() and done */
	loop_free(w->loop);
	stream_free_all(w);
	file_free_all(w);
	while (!list_empty(&w->arenas)) {
		struct sim_arena *a = list_entry(w->arenas.next, struct sim_arena, link);

		a->refs = 1;
		arena_put(a);
	}
	while (!list_empty(&w->envs))
		free(list_entry(list_pop(&w->envs), struct sim_env, link));
	while (w->n_planned)
		free(w->planned[--w->n_planned].where);
	free(w);
}
