/*
 * sim/scenario_suite.c: plays a script of faults (scenario_suite.h). One fiber goes through its lines; what stands behind `at` is done by the
 * listener to points, in the moment in which some node passes. Nothing else goes wrong; what differs from seed to seed is how long
 * things take, how bytes are cut into chunks, and whether who is killed is a process or a machine.
 */
#include "sim/scenario_suite.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/log.h"
#include "daemon/daemon.h"
#include "sim/inside.h"

#define WORLD_NS      (36000 * NS_PER_S)
#define LOOK_MS	      20
#define LIST_AGAIN_MS 200
#define AGAIN_MS      500
#define CALL_MS	      10000
#define SICK_MS	      1 /* a sick disk is made sick again so often */
#define SICK_FAULTS   8
#define SPLIT	      200000 /* of a million: a call moves fewer bytes than it could have */
#define STORE	      "/store"
#define BUNDLE	      0
#define OFFERS_MAX    64
#define AT_MAX	      8
#define ITEMS	      3 /* of each rank: its shard, what all have, and something small */
#define BOTH_BYTES    50000
#define SMALL_BYTES   8
#define PACK_FRONT    4100 /* a byte of the first block lies here */
#define KEYS_MAX      10000

enum end { END_DURABLE, END_FAILED, END_SKIPPED, END_SUPERSEDED, END_UNINDEXED };
static const char *const end_names[] = { "durable", "failed", "skipped", "superseded", "unindexed" };

struct scene_node {
	struct scene *scene;
	unsigned number;
	char name[SIM_NAME_BYTES], listen[32], socket[32];
	struct env *env;
	struct daemon *daemon;
	struct waitplace place;
	bool wanted;	/* it lives, or will soon; else it ends in order, unless it was killed */
	bool up, apart; /* apart: nothing passes between it and its peers */
	unsigned left;	/* saves that it had to leave when it ended in order */
};

struct actor { /* a rank's process */
	struct scene *scene;
	uint32_t number;
	unsigned node;
	struct env *env;
	struct client client;
	struct core_group *group;
	bool dead;
	int result;
};

struct offer { /* of one rank */
	struct actor *actor;
	unsigned step;
	struct core_save *save;
	struct core_future stages[CORE_STAGES];
	uint8_t *bytes[ITEMS];
	bool excused; /* the rank or its daemon was killed meanwhile */
};

struct scene {
	const struct script *script;
	struct history h; /* what a client needs of one */
	struct world *world;
	struct scene_node nodes[NODES_MAX];
	struct model_records *engine;
	struct nursery flows;
	struct actor actors[RANKS_MAX], first; /* first: whose node coordinates */
	unsigned n_runs, n_persons;
	bool joined;
	struct offer offers[OFFERS_MAX];
	unsigned n_offers;
	struct at {
		const struct script_line *line;
		enum point point;
		unsigned count;
	} at[AT_MAX];
	unsigned n_at;
	bool sick_stores[NODES_MAX], sick_index;
	const struct script_line *line; /* that is being played */
	uint64_t deed_ns, took_ns;
};

static struct scene *now_played; /* for listeners that have no argument */

static int fail(struct scene *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int fail(struct scene *s, const char *format, ...)
{
	char words[400];
	va_list ap;

	va_start(ap, format);
	vsnprintf(words, sizeof(words), format, ap);
	va_end(ap);
	history_fail(&s->h, "%s:%u: %s", s->script->path, s->line ? s->line->number : 0, words);
	return -EBADMSG;
}

static struct env *new_person(struct scene *s)
{
	char name[SIM_NAME_BYTES];

	snprintf(name, sizeof(name), "p%u", ++s->n_persons);
	return world_env_new(s->world, name);
}

static uint64_t deadline_of(const struct scene *s)
{
	return s->world->now_ns + s->script->deadline_ms * NS_PER_MS;
}

static int look_again(struct scene *s)
{
	return fiber_sleep_until(s->world->now_ns + LOOK_MS * NS_PER_MS);
}

/* ---- nodes ---- */

static int node_start(struct scene_node *n)
{
	struct scene *s = n->scene;
	const struct daemon_tenant tenant = { .name = TENANT,
					      .socket = n->socket + strlen("unix:"),
					      .pool_bytes = s->script->pool_bytes };
	struct daemon_options o = { .node = n->name,
				    .domain = n->name,
				    .cluster = "sim",
				    .key = view_str("the key of the simulated cluster"),
				    .listen = n->listen,
				    .tenants = &tenant,
				    .n_tenants = 1 };
	struct error e = { 0 };
	int r = backend_dir_open(n->env, STORE, true, &o.backend, &e);

	if (!r && n->number == 0)
		r = model_meta_open(n->env, s->engine, &o.meta);
	else
		o.meta_address = s->nodes[0].listen;
	if (!r)
		r = daemon_new(n->env, &o, &n->daemon, &e);
	if (r)
		world_tell(s->world, n->env, "does not start: %s", e.text);
	n->up = !r;
	return r;
}

static void node_end(struct scene_node *n)
{
	n->up = false;
	if (n->daemon)
		daemon_stop(n->daemon, STOP_PATIENCE_MS);
	daemon_free(n->daemon);
	n->daemon = NULL;
	world_kill(n->env, DEATH_PROCESS);
}

/* One life: until it is killed, or ends in order. */
static int node_once(struct scene_node *n)
{
	int r = 0;

	n->env = n->env ? world_revive(n->env) : world_env_new(n->scene->world, n->name);
	while (node_start(n) && !r && n->wanted && !sim_env(n->env)->dead) {
		daemon_free(TAKE(n->daemon));
		r = fiber_sleep_until(env_in_ms(n->env, AGAIN_MS));
	}
	while (!r && n->wanted && !sim_env(n->env)->dead)
		r = wait_at(&n->place, FOREVER);
	if (!r && n->daemon && !sim_env(n->env)->dead)
		n->left = daemon_drain(n->daemon, env_in_ms(n->env, n->scene->script->deadline_ms));
	node_end(n);
	return r;
}

static int node_live(void *arg)
{
	struct scene_node *n = arg;
	int r = 0;

	while (!r) {
		while (!n->wanted && !r)
			r = wait_at(&n->place, FOREVER);
		if (!r)
			r = node_once(n);
	}
	return r;
}

static void set_apart(struct scene_node *n, bool apart)
{
	world_silence(n->scene->world, n->name, "*", apart);
	world_silence(n->scene->world, "*", n->name, apart);
	n->apart = apart;
}

static bool is_ready(const struct scene_node *n)
{
	return n->up && !sim_env(n->env)->dead && !daemon_ready(n->daemon, NULL);
}

/* ---- ranks ---- */

static void excuse(struct scene *s, const struct actor *actor)
{
	for (unsigned i = 0; i < s->n_offers; i++)
		if (s->offers[i].actor == actor)
			s->offers[i].excused = true;
}

static void actor_kill(struct actor *actor)
{
	excuse(actor->scene, actor);
	if (!actor->env || actor->dead)
		return;
	actor->dead = true;
	world_kill(actor->env, DEATH_PROCESS);
}

static int actor_connect(struct actor *actor)
{
	struct scene *s = actor->scene;
	uint64_t deadline_ns = deadline_of(s);
	int r;

	for (;;) {
		r = client_begin(&actor->client, &s->h, actor->env, s->nodes[actor->node].socket);
		if (!r || r == -ECANCELED || s->world->now_ns > deadline_ns)
			return r;
		client_end(&actor->client);
		(void)fiber_sleep_until(env_in_ms(actor->env, AGAIN_MS));
	}
}

static int actor_join(struct actor *actor, const char *run, uint32_t rank, uint32_t n_ranks)
{
	_cleanup_(buf_fini) struct buf body = { 0 }, answer = { 0 };
	struct msg_join m = { view_str("job"), view_str(run), rank, n_ranks };
	struct msg_join_reply reply;
	int r = actor_connect(actor);

	if (!r)
		r = client_call(&actor->client, MSG_JOIN, &body, msg_join_encode(&m, &body),
				(uint32_t)actor->scene->script->deadline_ms, &answer);
	if (!r)
		CHECK(!msg_join_reply_decode(view_buf(&answer), &reply) &&
		      !core_group_new(actor->client.core, &reply, &actor->group));
	return r;
}

static int join_run(void *arg)
{
	struct actor *actor = arg;
	char run[16];

	snprintf(run, sizeof(run), "run-%u", actor->scene->n_runs);
	actor->result = actor_join(actor, run, actor->number, actor->scene->script->n_ranks);
	return 0;
}

static void actor_begin(struct scene *s, struct actor *actor, uint32_t number, unsigned node)
{
	*actor = (struct actor){ .scene = s, .number = number, .node = node, .env = new_person(s) };
}

static void offer_drop(struct offer *o)
{
	struct client *c = &o->actor->client;

	for (int i = 0; i < CORE_STAGES; i++)
		core_future_forget(&o->stages[i]);
	core_save_cancel(o->save);
	client_stir(c);
	while (!core_save_is_quiet(o->save) && !core_save_is_over(o->save, CORE_CAPTURED))
		(void)wait_at_shielded(&c->place, env_in_ms(c->env, 1));
	core_save_drop(o->save);
	client_stir(c);
	for (int i = 0; i < ITEMS; i++)
		free(o->bytes[i]);
}

static void actor_end(struct actor *actor)
{
	if (!actor->env)
		return;
	if (actor->client.core && !core_check(actor->client.core, NULL) && actor->dead)
		core_lose(actor->client.core, -ESHUTDOWN, "the rank was killed");
	for (unsigned i = 0; i < actor->scene->n_offers; i++) {
		struct offer *o = &actor->scene->offers[i];

		if (o->actor == actor && o->save)
			offer_drop(o), o->save = NULL;
	}
	if (actor->group) {
		core_group_leave(actor->group);
		client_stir(&actor->client);
		(void)fiber_sleep_until(env_in_ms(actor->env, 1)); /* its last words leave */
	}
	client_end(&actor->client);
	world_kill(actor->env, DEATH_PROCESS);
	actor->env = NULL;
}

static void end_actors(struct scene *s)
{
	for (uint32_t i = 0; i < s->script->n_ranks; i++)
		actor_end(&s->actors[i]);
	s->n_offers = 0;
	s->joined = false;
}

/* The next run of the job; before the first one its coordinator is made known by who joins alone and keeps the lease. */
static int begin_run(struct scene *s)
{
	struct nursery joining;
	int r = 0;

	if (!s->n_runs++) {
		actor_begin(s, &s->first, 0, s->script->coordinator);
		r = actor_join(&s->first, "before", 0, 1);
	}
	nursery_init(&joining, s->world->loop);
	for (uint32_t i = 0; !r && i < s->script->n_ranks; i++) {
		actor_begin(s, &s->actors[i], i, s->script->ranks[i]);
		r = fiber_start(&joining, "join", join_run, &s->actors[i]);
	}
	if (!r)
		r = nursery_wait(&joining, FOREVER);
	nursery_fini(&joining);
	for (uint32_t i = 0; !r && i < s->script->n_ranks; i++)
		r = s->actors[i].result;
	s->joined = true;
	return r ? fail(s, "the job does not come together: %s", error_name(r)) : 0;
}

/* ---- what is saved ---- */

static struct box line_box(uint64_t start, uint64_t count)
{
	return (struct box){ .ndim = 1, .start = { start }, .count = { count } };
}

struct content {
	const char *name;
	uint64_t whole, start, count;
};

static struct content content_of(const struct script *script, unsigned item, uint32_t rank)
{
	const struct content contents[ITEMS] = {
		{ "both", BOTH_BYTES, 0, BOTH_BYTES },
		{ "shards", script->n_ranks * script->item_bytes, rank * script->item_bytes, script->item_bytes },
		{ "small", SMALL_BYTES, 0, SMALL_BYTES },
	};
	return contents[item];
}

static void fill_content(uint8_t *bytes, unsigned step, unsigned item, uint64_t start, uint64_t count)
{
	uint64_t x = 0;

	for (uint64_t i = start; i < start + count; i++) {
		if (i == start || i % 8 == 0) {
			x = (i / 8 + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ (step * 8 + item);
			x = (x ^ (x >> 31)) * UINT64_C(0xbf58476d1ce4e5b9);
		}
		bytes[i - start] = (uint8_t)(x >> 8 * (i % 8));
	}
}

static int offer_begin(struct scene *s, struct actor *actor, unsigned step)
{
	struct offer *o = &s->offers[s->n_offers++];
	struct core_save_options options = { .bundle = view_str(bundle_names[BUNDLE]),
					     .step = step,
					     .copies = s->script->copies,
					     .policy = s->script->policy };

	CHECK(s->n_offers <= OFFERS_MAX);
	*o = (struct offer){ .actor = actor, .step = step };
	CHECK(!core_save_new(actor->group, &options, &o->save, NULL));
	for (unsigned i = 0; i < ITEMS; i++) {
		struct content content = content_of(s->script, i, actor->number);

		o->bytes[i] = must_alloc(content.count);
		fill_content(o->bytes[i], step, i, content.start, content.count);
		struct core_item item = { .name = view_str(content.name),
					  .dtype = view_str("u8"),
					  .element_bits = 8,
					  .whole = line_box(0, content.whole),
					  .box = line_box(content.start, content.count),
					  .data = o->bytes[i] };
		CHECK(!core_save_add(o->save, &item, NULL));
	}
	for (int i = 0; i < CORE_STAGES; i++) {
		core_future_init(&o->stages[i], NULL);
		core_save_attach(o->save, (enum core_stage)i, &o->stages[i]);
	}
	int r = core_save_submit(o->save, NULL);
	client_stir(&actor->client);
	return r;
}

static int do_save(struct scene *s, const struct script_line *line)
{
	int r = s->joined ? 0 : begin_run(s);

	for (uint32_t i = 0; !r && i < s->script->n_ranks; i++)
		if (!s->actors[i].dead)
			r = offer_begin(s, &s->actors[i], (unsigned)strtoul(line->words[1], NULL, 10));
	return r && r != -EBADMSG ? fail(s, "it cannot be offered: %s", error_name(r)) : r;
}

/* ---- what is expected of a save ---- */

static enum end end_of(int code)
{
	return !code			? END_DURABLE :
	       code == -ERR_ESKIPPED	? END_SKIPPED :
	       code == -ERR_ESUPERSEDED ? END_SUPERSEDED :
	       code == -ERR_EUNINDEXED	? END_UNINDEXED :
					  END_FAILED;
}

/* The first failure of its stages up to @last; the words are in that future. */
static int await_stages(struct scene *s, struct offer *o, enum core_stage last, const struct error **ret_error)
{
	static const char *const names[CORE_STAGES] = { "captured", "staged", "durable" };
	int r = 0;

	for (int i = 0; !r && i <= (int)last; i++) {
		*ret_error = &o->stages[i].error;
		r = client_await(&o->actor->client, &o->stages[i], s->script->deadline_ms, names[i]);
	}
	return r;
}

static int check_end(struct scene *s, struct offer *o, const struct script_line *line)
{
	const struct error *error = NULL;
	int r = await_stages(s, o, CORE_DURABLE, &error);

	if (s->h.failure[0])
		return -EBADMSG;
	if (o->excused)
		return 0; /* meanwhile */
	if (strcmp(end_names[end_of(r)], line->words[2]) != 0)
		return fail(s, "rank %u on %s: step %u is %s: %s", o->actor->number, s->nodes[o->actor->node].name,
			    o->step, end_names[end_of(r)], error->text);
	for (unsigned i = 3; i < line->n; i++)
		if (!strstr(error->text, line->words[i]))
			return fail(s, "rank %u: \"%s\" is not said in: %s", o->actor->number, line->words[i],
				    error->text);
	return 0;
}

/* What was done at a point is mended by now. */
static void note_recovery(struct scene *s)
{
	uint64_t took_ns = s->deed_ns ? s->world->now_ns - s->deed_ns : 0;

	s->took_ns = took_ns > s->took_ns ? took_ns : s->took_ns;
	s->deed_ns = 0;
}

static int do_expect(struct scene *s, const struct script_line *line)
{
	unsigned step = (unsigned)strtoul(line->words[1], NULL, 10), living = 0;
	int r = 0;

	for (unsigned i = 0; !r && i < s->n_offers; i++) {
		if (s->offers[i].step != step || s->offers[i].excused)
			continue;
		r = check_end(s, &s->offers[i], line);
		living += !s->offers[i].excused;
	}
	note_recovery(s);
	return r ? r : living ? 0 : fail(s, "no rank that offered step %u lives", step);
}

static int do_stage(struct scene *s, const struct script_line *line)
{
	enum core_stage stage = strcmp(line->words[0], "staged") ? CORE_CAPTURED : CORE_STAGED;
	int r = 0;

	for (unsigned i = 0; !r && i < s->n_offers; i++) {
		struct offer *o = &s->offers[i];
		const struct error *error = NULL;

		if (o->step == strtoul(line->words[1], NULL, 10) && !o->excused)
			r = await_stages(s, o, stage, &error);
		if (r && !s->h.failure[0])
			return fail(s, "rank %u: step %u failed: %s", o->actor->number, o->step, error->text);
	}
	return r;
}

/* ---- what is listed and read ---- */

static int load_version(struct scene *s, struct client *c, uint64_t number, unsigned step)
{
	uint8_t *got[ITEMS], *expected[ITEMS];
	_cleanup_(buf_fini) struct buf answer = { 0 };
	struct msg_open_reply open;
	struct core_load *load = NULL;
	struct core_future future;
	char spec[24];

	snprintf(spec, sizeof(spec), "%" PRIu64, number);
	int r = client_open(c, BUNDLE, spec, 0, &answer, &open);
	if (r)
		return r;
	CHECK(!core_load_new(c->core, NULL, open.handle, &load));
	for (unsigned i = 0; i < ITEMS; i++) {
		struct content content = content_of(s->script, i, 0);

		got[i] = must_alloc(content.whole);
		expected[i] = must_alloc(content.whole);
		fill_content(expected[i], step, i, 0, content.whole);
		struct core_want want = { view_str(content.name), 8, line_box(0, content.whole), got[i], NULL };
		CHECK(!core_load_add(load, &want, NULL));
	}
	core_future_init(&future, NULL);
	core_load_attach(load, &future);
	r = core_load_submit(load, NULL);
	if (!r)
		r = client_await(c, &future, s->script->deadline_ms, "a load");
	core_future_forget(&future);
	core_load_cancel(load);
	while (!core_load_is_quiet(load))
		(void)wait_at_shielded(&c->place, env_in_ms(c->env, 1));
	core_load_drop(load);
	client_stir(c);
	for (unsigned i = 0; i < ITEMS; i++) {
		if (!r && memcmp(got[i], expected[i], content_of(s->script, i, 0).whole) != 0)
			r = fail(s, "item %s of version %" PRIu64 ", step %u, has other bytes",
				 content_of(s->script, i, 0).name, number, step);
		free(got[i]);
		free(expected[i]);
	}
	return r;
}

static int verify_version(struct scene *s, struct client *c, uint64_t number)
{
	_cleanup_(buf_fini) struct buf body = { 0 }, answer = { 0 };
	struct msg_verify m = { view_str(bundle_names[BUNDLE]), number };
	struct msg_verify_reply reply;
	int r = client_call(c, MSG_VERIFY, &body, msg_verify_encode(&m, &body), (uint32_t)s->script->deadline_ms,
			    &answer);

	if (r)
		return r;
	CHECK(!msg_verify_reply_decode(view_buf(&answer), &reply));
	return reply.damages.count ? fail(s, "verify finds damage in version %" PRIu64, number) : 0;
}

struct listing {
	uint64_t numbers[SCRIPT_WORDS_MAX];
	unsigned steps[SCRIPT_WORDS_MAX], n;
};

static int list_versions(struct client *c, struct listing *ret)
{
	_cleanup_(buf_fini) struct buf body = { 0 }, answer = { 0 };
	struct msg_list m = { .bundle = view_str(bundle_names[BUNDLE]), .limit = SCRIPT_WORDS_MAX };
	struct msg_list_reply reply;
	struct elem_version version;
	int r = client_call(c, MSG_LIST, &body, msg_list_encode(&m, &body), CALL_MS, &answer);

	ret->n = 0;
	if (r)
		return r == -ENOENT ? 0 : r; /* no such bundle */
	CHECK(!msg_list_reply_decode(view_buf(&answer), &reply));
	while (ret->n < SCRIPT_WORDS_MAX && !elem_version_next(&reply.versions, &version)) {
		ret->numbers[ret->n] = version.number;
		ret->steps[ret->n++] = (unsigned)version.step;
	}
	return 0;
}

static bool are_steps(const struct listing *listing, const struct script_line *line)
{
	if (listing->n != line->n - 1)
		return false;
	for (unsigned i = 0; i < listing->n; i++)
		if (listing->steps[i] != strtoul(line->words[i + 1], NULL, 10))
			return false;
	return true;
}

/* One look through one node. @line: of the steps that shall be listed; NULL: the newest version is read alone. */
static int look_through(struct scene *s, const struct scene_node *n, const struct script_line *line,
			struct listing *listing)
{
	struct env *env = new_person(s);
	struct client c;
	int r = client_begin(&c, &s->h, env, n->socket);

	listing->n = 0;
	if (!r)
		r = list_versions(&c, listing);
	bool good = !line || are_steps(listing, line);
	for (unsigned i = line || !listing->n ? 0 : listing->n - 1; !r && good && i < listing->n; i++) {
		r = load_version(s, &c, listing->numbers[i], listing->steps[i]);
		if (!r && line)
			r = verify_version(s, &c, listing->numbers[i]);
	}
	client_end(&c);
	world_kill(env, DEATH_PROCESS);
	return r ? r : good ? 0 : -EAGAIN;
}

/* On every node that lives: until it says so, or the deadline has passed. */
static int do_steps(struct scene *s, const struct script_line *line)
{
	uint64_t deadline_ns = deadline_of(s);
	int r = 0;

	for (unsigned i = 0; !r && i < s->script->n_nodes; i++) {
		const struct scene_node *n = &s->nodes[i];
		struct listing listing;

		if (!n->wanted || n->apart)
			continue;
		while ((r = look_through(s, n, line, &listing)) && !s->h.failure[0]) {
			if (s->world->now_ns < deadline_ns && r != -ECANCELED) {
				(void)fiber_sleep_until(s->world->now_ns + LIST_AGAIN_MS * NS_PER_MS);
				continue;
			}
			return fail(s, "%s lists %u versions, the last of step %u: %s", n->name, listing.n,
				    listing.n ? listing.steps[listing.n - 1] : 0, error_name(r));
		}
	}
	note_recovery(s);
	return r;
}

/* Right bytes, or the error that stands there, and then on every node. */
static int do_load(struct scene *s, const struct script_line *line)
{
	for (unsigned i = 0; i < s->script->n_nodes; i++) {
		const struct scene_node *n = &s->nodes[i];
		struct listing listing;

		if (!n->wanted || n->apart)
			continue;
		int r = look_through(s, n, NULL, &listing);
		if (s->h.failure[0])
			return -EBADMSG;
		if ((r != 0) != (line->n > 1) || (line->n > 2 && !strstr(error_name(r), line->words[2])))
			return fail(s, "%s: a load ends with %s", n->name, error_name(r));
	}
	return 0;
}

/* ---- deeds ---- */

static struct scene_node *node_named(struct scene *s, const char *word)
{
	return &s->nodes[word[1] - '0'];
}

static void kill_node(struct scene *s, struct scene_node *n)
{
	bool machine = world_random(s->world, 2);

	n->wanted = false;
	if (!n->env || sim_env(n->env)->dead)
		return;
	world_kill(n->env, machine ? DEATH_MACHINE : DEATH_PROCESS);
	wake_all(&n->place);
	for (uint32_t i = 0; i < s->script->n_ranks; i++) {
		if (s->actors[i].node != n->number)
			continue;
		excuse(s, &s->actors[i]);
		if (machine)
			actor_kill(&s->actors[i]);
	}
}

/* So many of the node's next calls in that place go wrong. */
static void make_sick(struct scene *s, const struct scene_node *n, enum fault fault, const char *place)
{
	char where[64];
	unsigned n_now = 0;

	snprintf(where, sizeof(where), "%s %s", n->name, place);
	for (unsigned i = 0; i < s->world->n_planned; i++)
		n_now += !strcmp(s->world->planned[i].where, where);
	while (n_now++ < SICK_FAULTS && s->world->n_planned < SIM_PLANNED_MAX)
		world_inject(s->world, fault, where);
}

static void be_sick(struct scene *s)
{
	for (unsigned i = 0; i < s->script->n_nodes; i++)
		if (s->sick_stores[i])
			make_sick(s, &s->nodes[i], FAULT_NO_SPACE, "write " STORE);
	if (s->sick_index)
		make_sick(s, &s->nodes[0], FAULT_WRITE_EIO, "meta");
}

static void do_deed(struct scene *s, const struct script_line *line, unsigned at)
{
	const char *verb = line->words[at], *whom = line->words[at + 1];
	struct scene_node *n = whom && *whom == 'n' ? node_named(s, whom) : NULL;

	world_tell(s->world, NULL, "line %u: %s %s", line->number, verb, whom ? whom : "");
	if (!strcmp(verb, "kill") && n)
		kill_node(s, n);
	else if (!strcmp(verb, "kill"))
		actor_kill(&s->actors[whom[1] - '0']);
	else if (!strcmp(verb, "start"))
		n->wanted = true;
	else if (!strcmp(verb, "term"))
		n->wanted = false;
	else if (!strcmp(verb, "stop") || !strcmp(verb, "cut"))
		set_apart(n, true);
	else if (!strcmp(verb, "continue") || !strcmp(verb, "heal"))
		set_apart(n, false);
	else if (!strcmp(verb, "fill")) {
		*(n ? &s->sick_stores[n->number] : &s->sick_index) = true;
		be_sick(s);
	} else if (!strcmp(verb, "free"))
		memset(s->sick_stores, 0, sizeof(s->sick_stores)), s->sick_index = false;
	else if (!strcmp(verb, "stall"))
		make_sick(s, n, FAULT_SLOW, "read " STORE), make_sick(s, n, FAULT_SLOW, "write " STORE);
	if (n)
		wake_all(&n->place);
}

static void on_point(enum point point)
{
	struct scene *s = now_played;

	if (!s)
		return;
	s->h.coverage->points[point]++;
	world_tell(s->world, NULL, "point %s", point_name(point));
	for (unsigned i = 0; i < s->n_at; i++) {
		struct at *at = &s->at[i];

		if (at->point == point && at->count && !--at->count) {
			do_deed(s, at->line, 2);
			s->deed_ns = s->world->now_ns;
		}
	}
}

/* Disks that are full stay so. */
static int stay_sick(void *arg)
{
	struct scene *s = arg;
	int r = 0;

	while (!r) {
		be_sick(s);
		r = fiber_sleep_until(s->world->now_ns + SICK_MS * NS_PER_MS);
	}
	return r;
}

static void forget_sickness(struct world *w)
{
	while (w->n_planned)
		free(w->planned[--w->n_planned].where);
}

static void wake_lister(struct backend_req *req)
{
	wake_all(req->dst);
}

/* A byte of each pack changes on the disk. */
static int do_rot(struct scene *s)
{
	struct backend_req *req = must_alloc(sizeof(*req));
	struct env *env = new_person(s);
	struct backend *backend;
	struct waitplace place;
	unsigned n = 0;

	CHECK(!backend_dir_open(env, STORE, true, &backend, NULL));
	waitplace_init(&place);
	*req = (struct backend_req){ .op = BACKEND_LIST, .len = KEYS_MAX, .dst = &place, .finish = wake_lister };
	snprintf(req->key, sizeof(req->key), "t/");
	backend_submit(backend, req);
	(void)wait_at_shielded(&place, FOREVER);
	for (const char *at = (char *)req->out.ptr; at < (char *)req->out.ptr + req->out.len; at += strlen(at) + 1) {
		char path[BACKEND_KEY_MAX + 16];

		snprintf(path, sizeof(path), STORE "/%s", at);
		n += strstr(at, "/p/") && !world_rot(env, path, PACK_FRONT);
	}
	buf_fini(&req->out);
	free(req);
	backend_free(backend);
	world_kill(env, DEATH_PROCESS);
	return n ? 0 : fail(s, "there is no pack that could rot");
}

/* ---- the play ---- */

static int do_reached(struct scene *s)
{
	uint64_t deadline_ns = deadline_of(s);

	for (unsigned i = 0; i < s->n_at; i++)
		while (s->at[i].count) {
			if (s->world->now_ns > deadline_ns)
				return fail(s, "%s is not reached", s->at[i].line->words[1]);
			int r = look_again(s);
			if (r)
				return r;
		}
	s->n_at = 0;
	return 0;
}

static int do_ready(struct scene *s)
{
	uint64_t deadline_ns = deadline_of(s);

	for (unsigned i = 0; i < s->script->n_nodes; i++)
		while (s->nodes[i].wanted && !s->nodes[i].apart && !is_ready(&s->nodes[i])) {
			if (s->world->now_ns > deadline_ns)
				return fail(s, "%s is not ready", s->nodes[i].name);
			int r = look_again(s);
			if (r)
				return r;
		}
	return 0;
}

static int do_gone(struct scene *s, const struct scene_node *n)
{
	uint64_t deadline_ns = deadline_of(s);

	while (n->up) {
		int r = s->world->now_ns > deadline_ns ? fail(s, "%s does not end", n->name) : look_again(s);

		if (r)
			return r;
	}
	return n->left ? fail(s, "%s left %u saves behind", n->name, n->left) : 0;
}

static int do_at(struct scene *s, const struct script_line *line)
{
	const char *count = strchr(line->words[1], ':');
	char name[64];

	snprintf(name, sizeof(name), "%.*s", (int)strcspn(line->words[1], ":"), line->words[1]);
	CHECK(s->n_at < AT_MAX);
	s->at[s->n_at++] = (struct at){ .line = line,
					.point = (enum point)point_find(name),
					.count = count ? (unsigned)strtoul(count + 1, NULL, 10) : 1 };
	return 0;
}

static int do_run(struct scene *s)
{
	for (uint32_t i = 0; i < s->script->n_ranks; i++)
		actor_kill(&s->actors[i]);
	end_actors(s);
	return begin_run(s);
}

static int play_line(struct scene *s, const struct script_line *line)
{
	const char *verb = line->words[0];

	s->line = line;
	if (!strcmp(verb, "at"))
		return do_at(s, line);
	if (!strcmp(verb, "save"))
		return do_save(s, line);
	if (!strcmp(verb, "captured") || !strcmp(verb, "staged"))
		return do_stage(s, line);
	if (!strcmp(verb, "expect"))
		return do_expect(s, line);
	if (!strcmp(verb, "reached"))
		return do_reached(s);
	if (!strcmp(verb, "run"))
		return do_run(s);
	if (!strcmp(verb, "ready"))
		return do_ready(s);
	if (!strcmp(verb, "steps"))
		return do_steps(s, line);
	if (!strcmp(verb, "load"))
		return do_load(s, line);
	if (!strcmp(verb, "gone"))
		return do_gone(s, node_named(s, line->words[1]));
	if (!strcmp(verb, "rot"))
		return do_rot(s);
	do_deed(s, line, 0);
	if (!strcmp(verb, "free"))
		forget_sickness(s->world);
	return 0;
}

static int play(void *arg)
{
	struct scene *s = arg;

	nursery_init(&s->flows, s->world->loop);
	for (unsigned i = 0; i < s->script->n_nodes; i++) {
		s->nodes[i].wanted = true;
		CHECK(!fiber_start(&s->flows, "node", node_live, &s->nodes[i]));
	}
	CHECK(!fiber_start(&s->flows, "sick", stay_sick, s));
	int r = do_ready(s);
	for (unsigned i = 0; i < s->script->n_lines && !r; i++)
		r = play_line(s, &s->script->lines[i]);
	forget_sickness(s->world);
	for (unsigned i = 0; i < s->script->n_nodes; i++)
		set_apart(&s->nodes[i], false);
	end_actors(s);
	actor_end(&s->first);
	nursery_fini(&s->flows);
	return r;
}

static void on_log(void *arg, enum log_level level, const char *line)
{
	if (now_played)
		world_tell(now_played->world, NULL, "log: %s", line);
}

static struct scene *scene_new(const struct script *script, uint64_t seed, FILE *story, struct coverage *coverage)
{
	struct scene *s = must_alloc(sizeof(*s));

	s->script = script;
	s->world = world_new(seed, WEATHER_CALM, story);
	s->world->faults.per_million[FAULT_SPLIT] = seed % 2 ? SPLIT : 0;
	s->h.world = s->world;
	s->h.coverage = coverage;
	s->engine = model_records_new(s->world);
	world_share(s->world, STORE);
	for (unsigned i = 0; i < script->n_nodes; i++) {
		struct scene_node *n = &s->nodes[i];

		n->scene = s;
		n->number = i;
		waitplace_init(&n->place);
		snprintf(n->name, sizeof(n->name), "n%u", i);
		snprintf(n->listen, sizeof(n->listen), "tcp:10.0.0.%u:7000", i);
		snprintf(n->socket, sizeof(n->socket), "unix:/run/n%u", i);
	}
	return s;
}

int scenario_run(const struct script *script, uint64_t seed, FILE *story, struct coverage *coverage, uint64_t *ret_hash,
		 uint64_t *ret_took_ns, char ret_failure[512])
{
	struct scene *s = scene_new(script, seed, story, coverage);

	now_played = s;
	log_setup(LOG_DEBUG, on_log, NULL);
	point_listen(on_point);
	int r = world_run(s->world, WORLD_NS, play, s);
	unsigned left = world_leftovers(s->world);
	if (r)
		(void)fail(s, "it ended with %s", error_name(r));
	if (left)
		(void)fail(s, "%u streams, files or arenas are left over", left);
	now_played = NULL;
	*ret_hash = s->world->hash;
	*ret_took_ns = s->took_ns;
	memcpy(ret_failure, s->h.failure, sizeof(s->h.failure));
	r = s->h.failure[0] ? -EBADMSG : 0;
	world_free(s->world);
	model_records_free(s->engine);
	free(s);
	return r;
}
