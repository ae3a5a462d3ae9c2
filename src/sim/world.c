#include "sim/world.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "sim/inside.h"

#define START_NS      NS_PER_S /* virtual clocks begin here: 0 stays "never" */
#define STORY_LINE    512      /* bytes; longer lines are cut */
#define UNWIND_TURNS  1000000  /* after world_run()'s limit and in world_free(): more is a fiber that does not end */
#define ARENA_ALIGN   4096
#define RATE_AT_FIRST UINT64_C(1000000000)

static const char worker_name[] = "sim-worker";

struct silence {
	struct list link;
	char from[NAME_MAX_BYTES], to[NAME_MAX_BYTES];
};

/* ---- dice, story, faults ---- */

void *must_alloc(size_t size)
{
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
	size_t len = (size_t)n < sizeof(line) ? (size_t)n : sizeof(line) - 1;

	w->hash = hash64(line, len, w->hash);
	w->events++;
	if (w->story)
		fprintf(w->story, "%s\n", line);
}

const char *fault_name(enum fault fault)
{
	static const char *const names[FAULTS] = {
#define X(name, most, text) [FAULT_##name] = #name,
		FAULT_TABLE(X)
#undef X
	};

	CHECK(fault < FAULTS);
	return names[fault];
}

/* A quarter of the histories is calm, half has some faults at a tenth of the most, a quarter has most at up to the most. */
static void draw_weather(struct world *w)
{
	static const uint32_t most[FAULTS] = {
#define X(name, most, text) [FAULT_##name] = most,
		FAULT_TABLE(X)
#undef X
	};
	uint64_t temper = world_random(w, 4);

	for (int i = 0; i < FAULTS && temper; i++)
		if (world_random(w, 4) < (temper == 3 ? 3 : 2))
			w->faults.per_million[i] = (uint32_t)world_random(w, 1 + most[i] / (temper == 3 ? 1 : 10));
}

void fault_count(struct world *w, enum fault fault)
{
	w->faults.injected[fault]++;
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

	snprintf(place, sizeof(place), "%s %s %s", e->name, what, where);
	if (!take_planned(w, fault, place) && !world_chance(w, w->faults.per_million[fault]))
		return false;
	fault_count(w, fault);
	world_tell(w, &e->env, "FAULT %s: %s %s", fault_name(fault), what, where);
	return true;
}

void world_inject(struct world *w, enum fault fault, const char *where)
{
	CHECK(w->n_planned < PLANNED_MAX && fault < FAULTS);
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

	if (w->woken || until_ns <= w->now_ns) {
		w->woken = false;
		return 0;
	}
	if (until_ns == FOREVER)
		return -EDEADLK;
	if (until_ns > w->limit_ns)
		return -ETIME;
	w->now_ns = until_ns;
	w->hash = hash64(&until_ns, sizeof(until_ns), w->hash); /* a timer fires */
	return 0;
}

static void clock_wake(void *arg)
{
	((struct world *)arg)->woken = true;
}

struct world *world_new(uint64_t seed, enum weather weather, FILE *story)
{
	struct world *w = must_alloc(sizeof(*w));
	struct clockwork clockwork = { clock_now, clock_poll, clock_wake, w };

	*w = (struct world){ .seed = seed, .dice = seed, .now_ns = START_NS, .limit_ns = FOREVER, .story = story };
	list_init(&w->envs);
	list_init(&w->streams);
	list_init(&w->arenas);
	list_init(&w->disks);
	list_init(&w->silences);
	w->loop = loop_new(&clockwork);
	CHECK(w->loop);
	if (weather == WEATHER_DRAWN)
		draw_weather(w);
	world_tell(w, NULL, "seed %" PRIu64, seed);
	return w;
}

struct loop *world_loop(struct world *w)
{
	return w->loop;
}

uint64_t world_now(const struct world *w)
{
	return w->now_ns;
}

uint64_t world_hash(const struct world *w)
{
	return w->hash;
}

uint64_t world_events(const struct world *w)
{
	return w->events;
}

struct faults *world_faults(struct world *w)
{
	return &w->faults;
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

	if (run->result == 0)
		run->result = r;
	run->finished = true;
	return 0;
}

int world_run(struct world *w, uint64_t limit_ns, int (*fn)(void *arg), void *arg)
{
	struct run run = { .fn = fn, .arg = arg };
	struct nursery nursery;
	int r = 0;

	nursery_init(&nursery, w->loop);
	r = fiber_start(&nursery, "history", run_history, &run);
	w->limit_ns = limit_ns == FOREVER ? FOREVER : w->now_ns + limit_ns;
	while (!run.finished && !r)
		r = loop_turn(w->loop);
	w->limit_ns = FOREVER;
	if (!run.finished) {
		world_tell(w, NULL, "the history does not end: %s", error_name(r));
		nursery_cancel(&nursery);
		run.result = r;
	}
	for (int turns = 0; !nursery_is_empty(&nursery); turns++) {
		CHECK(turns < UNWIND_TURNS);
		r = loop_turn(w->loop);
	}
	return run.result;
}

/* ---- envs ---- */

struct sim_env *sim_env(struct env *env)
{
	CHECK_MAGIC(env, ENV_MAGIC);
	return container_of(env, struct sim_env, env);
}

bool world_is_dead(const struct env *env)
{
	return sim_env((struct env *)env)->dead;
}

static uint64_t env_op_now(struct env *env)
{
	return sim_env(env)->world->now_ns;
}

static void env_op_random(struct env *env, void *p, size_t len)
{
	uint8_t *out = p;

	for (size_t i = 0; i < len; i++)
		out[i] = (uint8_t)(roll(&sim_env(env)->dice) >> 32);
}

static struct sim_env *env_find(struct world *w, const char *name)
{
	list_each(node, &w->envs) {
		struct sim_env *e = list_entry(node, struct sim_env, link);

		if (!e->dead && strcmp(e->name, name) == 0)
			return e;
	}
	return NULL;
}

static struct disk *disk_of(struct world *w, const char *name)
{
	list_each(node, &w->disks) {
		struct disk *disk = list_entry(node, struct disk, link);

		if (!disk->shared && strcmp(disk->name, name) == 0)
			return disk;
	}
	return disk_new(w, name, false);
}

static int arena_op_new(struct env *env, size_t size, bool shared_read, struct arena *ret, struct error *err);
static void arena_op_free(struct env *env, struct arena *arena);
static int offload(struct env *env, struct job *job);

struct env *world_env_new(struct world *w, const char *name)
{
	struct sim_env *e = must_alloc(sizeof(*e));

	CHECK(strlen(name) < sizeof(e->name) && !env_find(w, name));
	memcpy(e->name, name, strlen(name) + 1);
	w->ops.now = env_op_now;
	w->ops.random = env_op_random;
	w->ops.offload = offload;
	w->ops.arena_new = arena_op_new;
	w->ops.arena_free = arena_op_free;
	stream_ops(&w->ops);
	file_ops(&w->ops);
	e->env = (struct env){ ENV_MAGIC, &w->ops, w->loop, e->name };
	e->world = w;
	e->uid = 1000;
	e->pid = (int32_t)++w->serial;
	e->dice = hash64(name, strlen(name), w->seed + (uint64_t)e->pid);
	e->rate_bytes_per_s = RATE_AT_FIRST;
	e->disk = disk_of(w, name);
	nursery_init(&e->workers, w->loop);
	list_init(&e->jobs);
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
	fault_count(w, how == DEATH_MACHINE ? FAULT_DEATH_MACHINE : FAULT_DEATH_PROCESS);
	e->dead = true;
	e->silent = how == DEATH_MACHINE && world_random(w, 2);
	stream_env_died(e, how == DEATH_PROCESS);
	if (how == DEATH_MACHINE)
		disk_forget(w, e, NULL);
}

struct env *world_revive(struct env *dead)
{
	struct sim_env *e = sim_env(dead);

	CHECK(e->dead);
	if (e->silent) {
		e->silent = false;
		stream_env_returned(e);
	}
	struct env *env = world_env_new(e->world, e->name);
	sim_env(env)->uid = e->uid;
	sim_env(env)->rate_bytes_per_s = e->rate_bytes_per_s;
	return env;
}

void world_set_user(struct env *env, uint32_t uid)
{
	sim_env(env)->uid = uid;
}

void world_set_rate(struct env *env, uint64_t nic_bytes_per_s)
{
	CHECK(nic_bytes_per_s);
	sim_env(env)->rate_bytes_per_s = nic_bytes_per_s;
}

static bool name_fits(const char *pattern, const char *name)
{
	return strcmp(pattern, "*") == 0 || strcmp(pattern, name) == 0;
}

bool is_silent(const struct world *w, const struct sim_env *from, const struct sim_env *to)
{
	list_each(node, &w->silences) {
		struct silence *s = list_entry(node, struct silence, link);

		if (name_fits(s->from, from->name) && name_fits(s->to, to->name))
			return true;
	}
	return false;
}

void world_silence(struct world *w, const char *from, const char *to, bool on)
{
	world_tell(w, NULL, "%s -> %s %s", from, to, on ? "falls silent" : "is heard again");
	if (on) {
		struct silence *s = must_alloc(sizeof(*s));

		CHECK(strlen(from) < sizeof(s->from) && strlen(to) < sizeof(s->to));
		strcpy(s->from, from);
		strcpy(s->to, to);
		list_append(&w->silences, &s->link);
		fault_count(w, FAULT_SILENCE);
		return;
	}
	list_each(node, &w->silences) {
		struct silence *s = list_entry(node, struct silence, link);

		if (strcmp(s->from, from) || strcmp(s->to, to))
			continue;
		list_remove(node);
		free(s);
	}
	stream_silence_ended(w);
}

/* ---- jobs: each env has a few workers, fibers that run jobs one after the other and end when there are none ---- */

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
	struct sim_env *e = arg;
	struct list *node;

	while ((node = list_pop(&e->jobs))) {
		struct job *job = list_entry(node, struct job, link);

		job->run(job);
		job->task = (struct task){ .fn = job_finish };
		loop_post(e->world->loop, &job->task);
	}
	e->n_workers--;
	return 0;
}

static int offload(struct env *env, struct job *job)
{
	struct sim_env *e = sim_env(env);

	CHECK(!in_job());
	if (e->dead)
		return -ESHUTDOWN;
	job->env = env;
	list_append(&e->jobs, &job->link);
	if (e->n_workers < WORKERS) {
		int r = fiber_start(&e->workers, worker_name, work, e);

		CHECK(r == 0);
		e->n_workers++;
	}
	return 0;
}

/* ---- arenas: plain memory, counted, since in this world processes share all of it ---- */

struct sim_arena *arena_find(struct world *w, uint64_t id)
{
	list_each(node, &w->arenas) {
		struct sim_arena *a = list_entry(node, struct sim_arena, link);

		if (a->id == id)
			return a;
	}
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

static int arena_op_new(struct env *env, size_t size, bool shared_read, struct arena *ret, struct error *err)
{
	struct sim_env *e = sim_env(env);

	if (e->dead)
		return error_set(err, -ESHUTDOWN, "%s is shut down", e->name);
	if (fault_here(e, FAULT_NO_MEMORY, "arena", ""))
		return error_set(err, -ENOMEM, "no memory for an arena of %zu bytes", size);

	struct sim_arena *a = must_alloc(sizeof(*a));
	size_t room = (size + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
	*a = (struct sim_arena){ .owner = e, .size = size, .id = ++e->world->serial, .refs = 1 };
	a->ptr = aligned_alloc(ARENA_ALIGN, room);
	CHECK(a->ptr);
	memset(a->ptr, 0, room);
	list_append(&e->world->arenas, &a->link);
	world_tell(e->world, env, "arena %" PRIu64 " of %zu bytes%s", a->id, size,
		   shared_read ? ", read by others" : "");
	*ret = (struct arena){ a->ptr, size, a->id, -1 };
	return 0;
}

static void arena_op_free(struct env *env, struct arena *arena)
{
	struct sim_arena *a = arena->ptr ? arena_find(sim_env(env)->world, arena->id) : NULL;

	CHECK(a || !arena->ptr);
	arena_put(a);
	*arena = (struct arena){ .fd = -1 };
}

/* ---- the end ---- */

unsigned world_leftovers(const struct world *w, const struct env *env)
{
	const struct sim_env *only = env ? sim_env((struct env *)env) : NULL;
	unsigned n = stream_count(w, only);

	list_each(node, &w->envs) {
		struct sim_env *e = list_entry(node, struct sim_env, link);

		n += !only || only == e ? e->open : 0;
	}
	list_each(node, &w->arenas) {
		struct sim_arena *a = list_entry(node, struct sim_arena, link);

		n += !only || only == a->owner;
	}
	return n;
}

static bool jobs_under_way(const struct world *w)
{
	list_each(node, &w->envs) {
		if (!nursery_is_empty(&list_entry(node, struct sim_env, link)->workers))
			return true;
	}
	return false;
}

static void free_list(struct list *head, size_t offset)
{
	struct list *node;

	while ((node = list_pop(head)))
		free((char *)node - offset);
}

void world_free(struct world *w)
{
	if (!w)
		return;
	list_each(node, &w->envs)
		world_kill(&list_entry(node, struct sim_env, link)->env, DEATH_PROCESS);
	for (int turns = 0; jobs_under_way(w); turns++)
		CHECK(turns < UNWIND_TURNS && loop_turn(w->loop) == 0);

	stream_free_all(w);
	(void)loop_turn(w->loop); /* the last finish() and done calls; -EDEADLK is as it should be */
	loop_free(w->loop);
	file_free_all(w);
	list_each(node, &w->arenas) {
		struct sim_arena *a = list_entry(node, struct sim_arena, link);

		a->refs = 1;
		arena_put(a);
	}
	free_list(&w->envs, offsetof(struct sim_env, link));
	free_list(&w->silences, offsetof(struct silence, link));
	while (w->n_planned)
		free(w->planned[--w->n_planned].where);
	free(w);
}
