/*
 * sim/kth_suite.c: see the header.
 */
#include "sim/kth_suite.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/log.h"
#include "daemon/daemon.h"
#include "sim/history_suite.h"
#include "sim/inside.h"

#define SEED	    1
#define STORE	    "/store"
#define BUNDLE	    0 /* of bundle_names */
#define LABEL	    "best"
#define NODES	    2
#define RANKS	    2
#define STEPS	    8 /* at most: two of the first job, one of each try of the next */
#define TRIES	    3
#define WORLD_NS    (20000 * NS_PER_S)
#define READY_MS    90000
#define JOIN_MS	    60000
#define CALL_MS	    20000
#define COLLECT_MS  120000
#define CAPTURED_MS 620000
#define STAGE_MS    1900000
#define LOAD_MS	    700000
#define QUIET_MS    10000
#define POOL_BYTES  (8u << 20)
#define REPLICA	    5000
#define SHARD	    60000
#define OWN	    200
#define PROMPT_MS   60000 /* who takes longer has waited for a deadline */
#define PARTS	    3	  /* of a rank: its replica, its shard, its own item */

struct kth {
	struct world *world;
	struct history history; /* only what a client needs of one */
	struct coverage coverage;
	struct model_records *engine;
	struct kth_node {
		char name[8], listen[32], socket[32];
		struct env *env;
		struct daemon *daemon;
	} nodes[NODES];
	struct {
		uint64_t version;
		bool durable, dying;
	} saves[STEPS + 1];
	uint64_t labelled;  /* the version; 0: nobody was told so */
	unsigned n_working; /* ranks of the job under way */
	struct waitplace all_done;
	struct kth_result *result;
};

struct kth_rank {
	struct kth *kth;
	uint32_t number;
	const char *run;
	uint64_t first_step;
	bool next; /* of a job after the first */
	struct env *env;
	struct client client;
	struct core_group *group;
	int failed;
};

/* Encodes what a story says: a test's own allocations do not fail. */
#define ENCODE(what, m, body)                   \
	({                                      \
		SPARED;                         \
		msg_##what##_encode((m), body); \
	})

/* ---- what went wrong, and what only failed ---- */

static void __attribute__((format(printf, 3, 4))) went_wrong(struct kth *kth, enum kth_end end, const char *format, ...)
{
	char words[sizeof(kth->result->words)];
	va_list ap;

	va_start(ap, format);
	vsnprintf(words, sizeof(words), format, ap);
	va_end(ap);
	world_tell(kth->world, NULL, "WRONG: %s", words);
	if (kth->result->end > KTH_NAMED)
		return;
	kth->result->end = end;
	memcpy(kth->result->words, words, sizeof(words));
}

/* Somebody was told @r: that has to be an error with a name and words. Returns it. */
static int told(struct kth *kth, const struct env *who, const char *what, int r, const struct error *e)
{
	const char *words = e && e->code ? e->text : error_meaning(r);

	if (!r)
		return 0;
	world_tell(kth->world, who, "is told: %s: %s: %s", what, error_name(r), words);
	if (r > 0 || strcmp(error_name(r), "E?") == 0 || !*words)
		went_wrong(kth, KTH_WRONG, "%s: %s fails with %d, without a name or words", who->name, what, r);
	if (strstr(words, "malformed") || (strlen(words) > 1 && strcmp(words + strlen(words) - 2, ": ") == 0))
		went_wrong(kth, KTH_WRONG, "%s: %s: words that mislead: %s", who->name, what, words);
	if (kth->result->end != KTH_WELL)
		return r;
	kth->result->end = KTH_NAMED;
	snprintf(kth->result->words, sizeof(kth->result->words), "%s: %s: %s: %s", who->name, what, error_name(r),
		 words);
	return r;
}

/* ---- nodes ---- */

static int daemon_begin(struct kth *kth, unsigned i, struct error *e)
{
	struct kth_node *node = &kth->nodes[i];
	const struct daemon_tenant tenant = { .name = TENANT,
					      .socket = node->socket + strlen("unix:"),
					      .pool_bytes = POOL_BYTES };
	struct daemon_options options = { .node = node->name,
					  .domain = node->name,
					  .cluster = "sim",
					  .key = view_str("the key of the simulated cluster"),
					  .listen = node->listen,
					  .tenants = &tenant,
					  .n_tenants = 1 };
	int r = backend_dir_open(node->env, STORE, true, &options.backend, e);

	if (r)
		return r;
	if (i)
		options.meta_address = kth->nodes[0].listen;
	else
		CHECK(!model_meta_open(node->env, kth->engine, &options.meta));
	return daemon_new(node->env, &options, &node->daemon, e);
}

static void node_stop(struct kth_node *node)
{
	if (node->daemon)
		daemon_stop(node->daemon, STOP_PATIENCE_MS);
	daemon_free(node->daemon);
	node->daemon = NULL;
	world_kill(node->env, DEATH_PROCESS);
}

/* What ends with an error at its start is started again, as a supervisor would. */
static void node_start(struct kth *kth, unsigned i)
{
	struct kth_node *node = &kth->nodes[i];
	int r = -EAGAIN;

	for (unsigned tries = 0; r && tries < TRIES; tries++) {
		struct error e = { 0 };

		node->env = node->env ? world_revive(node->env) : world_env_new(kth->world, node->name);
		r = daemon_begin(kth, i, &e);
		(void)told(kth, node->env, "start", r, &e);
		if (r)
			node_stop(node);
	}
	if (r)
		went_wrong(kth, KTH_WRONG, "%s does not start: %s", node->name, error_name(r));
}

static bool nodes_start(struct kth *kth)
{
	uint64_t deadline_ns = kth->world->now_ns + READY_MS * NS_PER_MS;

	for (unsigned i = 0; i < NODES; i++)
		node_start(kth, i);
	for (unsigned i = 0; i < NODES; i++) {
		struct error e = { 0 };

		while (kth->nodes[i].daemon && daemon_ready(kth->nodes[i].daemon, &e)) {
			if (kth->world->now_ns > deadline_ns) {
				went_wrong(kth, KTH_HANG, "%s does not join: %s", kth->nodes[i].name, e.text);
				return false;
			}
			if (fiber_sleep_until(kth->world->now_ns + 10 * NS_PER_MS))
				return false;
		}
	}
	return kth->nodes[0].daemon && kth->nodes[1].daemon;
}

static void nodes_stop(struct kth *kth)
{
	for (unsigned i = NODES; i-- > 0;)
		node_stop(&kth->nodes[i]);
}

/* ---- what is saved ---- */

struct part {
	char name[16];
	uint64_t whole, start, count;
	uint8_t bytes[SHARD];
};

static void noise(uint8_t *bytes, size_t n, uint64_t seed)
{
	uint64_t x = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;

	for (size_t i = 0; i < n; i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		bytes[i] = (uint8_t)x;
	}
}

/* The parts of @rank at @step. */
static void parts_fill(struct part parts[PARTS], uint64_t step, uint32_t rank)
{
	parts[0] = (struct part){ "replica", REPLICA, 0, REPLICA, { 0 } };
	parts[1] = (struct part){ "shards", (uint64_t)RANKS * SHARD, (uint64_t)rank * SHARD, SHARD, { 0 } };
	parts[2] = (struct part){ "", OWN, 0, OWN, { 0 } };
	snprintf(parts[2].name, sizeof(parts[2].name), "own %u", rank);
	noise(parts[0].bytes, REPLICA, 10 * step);
	noise(parts[1].bytes, SHARD, 10 * step + 1 + rank);
	noise(parts[2].bytes, OWN, 10 * step + 5 + rank);
}

static struct box line(uint64_t start, uint64_t count)
{
	return (struct box){ .ndim = 1, .start = { start }, .count = { count } };
}

static int save_offer(struct core_save *save, const struct part parts[PARTS], struct error *e)
{
	int r = 0;

	for (unsigned i = 0; !r && i < PARTS; i++) {
		const struct part *part = &parts[i];
		struct core_item item = { .name = view_str(part->name),
					  .dtype = view_str("u8"),
					  .element_bits = 8,
					  .whole = line(0, part->whole),
					  .box = line(part->start, part->count),
					  .data = part->bytes };

		r = core_save_add(save, &item, e);
	}
	return r ? r : core_save_submit(save, e);
}

static int save_follow(struct kth_rank *k, struct core_save *save)
{
	static const char *const names[CORE_STAGES] = { "captured", "staged", "durable" };
	int r = 0;

	for (int stage = 0; stage < CORE_STAGES && !r; stage++) {
		struct core_future future;

		core_future_init(&future, NULL);
		core_save_attach(save, (enum core_stage)stage, &future);
		r = client_await(&k->client, &future, stage ? STAGE_MS : CAPTURED_MS, names[stage]);
		(void)told(k->kth, k->env, names[stage], r, &future.error);
		core_future_forget(&future);
	}
	return r;
}

static void await_quiet(struct kth_rank *k, bool (*quiet)(const void *thing), const void *thing, const char *what)
{
	uint64_t deadline_ns = env_in_ms(k->env, QUIET_MS);

	while (!quiet(thing)) {
		CHECK(env_now(k->env) < deadline_ns && what); /* it would be freed under the hands of its work */
		(void)wait_at_shielded(&k->client.place, env_in_ms(k->env, 1));
	}
}

static bool save_is_quiet(const void *save)
{
	return core_save_is_quiet(save) || core_save_is_over(save, CORE_CAPTURED);
}

static bool load_is_quiet(const void *load)
{
	return core_load_is_quiet(load);
}

static int save(struct kth_rank *k, uint64_t step, bool hinted)
{
	_cleanup_(cleanup_mem) struct part *parts = must_alloc(PARTS * sizeof(*parts));
	struct core_save_options options = { .bundle = view_str(bundle_names[BUNDLE]),
					     .step = step,
					     .copies = 2,
					     .same_structure = hinted };
	struct core_save *save = NULL;
	struct error e = { 0 };

	parts_fill(parts, step, k->number);
	int r = core_save_new(k->group, &options, &save, &e);
	client_stir(&k->client);
	if (r)
		return told(k->kth, k->env, "save", r, &e);
	r = save_offer(save, parts, &e);
	r = r ? told(k->kth, k->env, "offer", r, &e) : save_follow(k, save);
	if (!r) {
		k->kth->saves[step].version = core_save_version(save);
		k->kth->saves[step].durable = true;
		world_tell(k->kth->world, k->env, "step %" PRIu64 " is durable: version %" PRIu64, step,
			   k->kth->saves[step].version);
	}
	core_save_cancel(save);
	client_stir(&k->client);
	await_quiet(k, save_is_quiet, save, "a save");
	core_save_drop(save);
	client_stir(&k->client);
	return r;
}

/* ---- what is read ---- */

static int load_want(struct core_load *load, struct part parts[PARTS], struct error *e)
{
	int r = 0;

	for (unsigned i = 0; !r && i < PARTS; i++) {
		struct part *part = &parts[i];
		struct core_want want = { view_str(part->name), 8, line(part->start, part->count), part->bytes, NULL };

		memset(part->bytes, 0xee, part->count);
		r = core_load_add(load, &want, e);
	}
	return r ? r : core_load_submit(load, e);
}

/* Loads what @rank offered at @step, and compares. */
static int load(struct kth_rank *k, uint64_t handle, bool grouped, uint64_t step, uint32_t rank)
{
	_cleanup_(cleanup_mem) struct part *parts = must_alloc(2 * PARTS * sizeof(*parts));
	struct core_load *load = NULL;
	struct core_future future;
	struct error e = { 0 };
	int r = core_load_new(k->client.core, grouped ? k->group : NULL, handle, &load);

	client_stir(&k->client);
	if (r)
		return told(k->kth, k->env, "load", r, NULL);
	parts_fill(parts, step, rank);
	parts_fill(parts + PARTS, step, rank);
	core_future_init(&future, NULL);
	core_load_attach(load, &future);
	r = load_want(load, parts, &e);
	if (!r) {
		r = client_await(&k->client, &future, LOAD_MS, "load");
		e = future.error;
	}
	(void)told(k->kth, k->env, "load", r, &e);
	core_future_forget(&future);
	core_load_cancel(load);
	client_stir(&k->client);
	await_quiet(k, load_is_quiet, load, "a load");
	core_load_drop(load);
	client_stir(&k->client);
	for (unsigned i = 0; !r && i < PARTS; i++)
		if (memcmp(parts[i].bytes, parts[PARTS + i].bytes, parts[i].count) != 0)
			went_wrong(k->kth, KTH_WRONG, "%s: %s of step %" PRIu64 " has other bytes", k->env->name,
				   parts[i].name, step);
	return r;
}

/* Takes @body. */
static int call(struct kth_rank *k, enum msg_type type, struct buf *body, int encoded, uint32_t deadline_ms,
		struct buf *answer)
{
	return told(k->kth, k->env, msg_type_name(type),
		    client_call(&k->client, type, body, encoded, deadline_ms, answer), NULL);
}

static const struct error *refusal(int r, struct error *e)
{
	(void)error_set(e, r, "%s", error_meaning(r));
	return e;
}

static int open_version(struct kth_rank *k, const char *spec, bool grouped, struct msg_open_reply *ret)
{
	_cleanup_(buf_fini) struct buf body = { 0 }, answer = { 0 };
	struct error e = { 0 };
	struct msg_open m = { view_str(bundle_names[BUNDLE]), view_str(spec),
			      grouped ? core_group_handle(k->group) : 0 };
	int r = call(k, MSG_OPEN, &body, ENCODE(open, &m, &body), CALL_MS, &answer);

	if (r && grouped) { /* as forebay_open() does */
		core_forgo_open(k->group, &m, refusal(r, &e));
		client_stir(&k->client);
	}
	if (r)
		return r;
	CHECK(!msg_open_reply_decode(view_buf(&answer), ret));
	ret->attributes = (struct list_view){ 0 }; /* lay in the answer */
	return 0;
}

static void close_version(struct kth_rank *k, uint64_t handle)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	struct msg_handle m = { handle };

	CHECK(!ENCODE(handle, &m, &body));
	core_tell(k->client.core, MSG_CLOSE, view_buf(&body));
	client_stir(&k->client);
}

static int load_latest(struct kth_rank *k, uint64_t step)
{
	struct msg_open_reply open;
	int r = open_version(k, "latest", true, &open);

	if (r)
		return r;
	if (open.step != step && k->kth->saves[step].durable)
		went_wrong(k->kth, KTH_WRONG, "latest is step %" PRIu64 " and not %" PRIu64, open.step, step);
	r = load(k, open.handle, true, open.step, (k->number + 1) % RANKS);
	close_version(k, open.handle);
	return r;
}

/* ---- the operator ---- */

static int label(struct kth_rank *k, uint64_t number)
{
	struct msg_label m = { view_str(bundle_names[BUNDLE]), view_str(LABEL), UINT64_MAX, number };
	struct buf body = { 0 };
	int r = call(k, MSG_LABEL, &body, ENCODE(label, &m, &body), CALL_MS, NULL);

	if (!r)
		k->kth->labelled = number;
	return r;
}

static int delete_step(struct kth_rank *k, uint64_t step)
{
	struct msg_delete m = { .bundle = view_str(bundle_names[BUNDLE]), .number = k->kth->saves[step].version };
	struct buf body = { 0 };

	k->kth->saves[step].dying = true;
	return call(k, MSG_DELETE, &body, ENCODE(delete, &m, &body), CALL_MS, NULL);
}

static int collect(struct kth_rank *k)
{
	const struct msg_collect m = { 0 };
	struct buf body = { 0 };

	return call(k, MSG_COLLECT, &body, ENCODE(collect, &m, &body), COLLECT_MS, NULL);
}

/* Lists: *@ret_listed has the bit of each step, and whatever is durable must be there. */
static int list(struct kth_rank *k, struct buf *answer, struct msg_list_reply *ret)
{
	struct kth *kth = k->kth;
	struct buf body = { 0 };
	struct msg_list m = { .bundle = view_str(bundle_names[BUNDLE]), .limit = 100 };
	uint64_t listed = 0;
	struct elem_version version;
	struct elem_label named;
	bool found = false;
	int r = call(k, MSG_LIST, &body, ENCODE(list, &m, &body), CALL_MS, answer);

	if (r)
		return r;
	CHECK(!msg_list_reply_decode(view_buf(answer), ret));
	struct msg_list_reply reply = *ret;
	while (!elem_version_next(&reply.versions, &version)) {
		if (version.step > STEPS)
			went_wrong(kth, KTH_WRONG, "step %" PRIu64 " is listed", version.step);
		else
			listed |= UINT64_C(1) << version.step;
	}
	while (!elem_label_next(&reply.labels, &named))
		found |= named.number == kth->labelled && view_equal(named.label, view_str(LABEL));
	for (unsigned step = 1; step <= STEPS; step++)
		if (kth->saves[step].durable && !kth->saves[step].dying && !(listed >> step & 1))
			went_wrong(kth, KTH_WRONG, "step %u was durable and is not listed", step);
	if (kth->labelled && !found)
		went_wrong(kth, KTH_WRONG, "the label was set and is not listed");
	return 0;
}

static int verify(struct kth_rank *k, uint64_t number)
{
	_cleanup_(buf_fini) struct buf body = { 0 }, answer = { 0 };
	struct msg_verify m = { view_str(bundle_names[BUNDLE]), number };
	struct msg_verify_reply reply;
	int r = call(k, MSG_VERIFY, &body, ENCODE(verify, &m, &body), COLLECT_MS, &answer);

	if (r)
		return r;
	CHECK(!msg_verify_reply_decode(view_buf(&answer), &reply));
	if (reply.damages.count)
		went_wrong(k->kth, KTH_WRONG, "verify of version %" PRIu64 " finds %u damages", number,
			   reply.damages.count);
	return 0;
}

/* In health: each version that is listed is whole and right, and each durable one is listed. */
static int judge(struct kth_rank *k)
{
	_cleanup_(buf_fini) struct buf answer = { 0 };
	struct msg_list_reply reply;
	struct elem_version version;
	int r = list(k, &answer, &reply);

	while (!r && !elem_version_next(&reply.versions, &version)) {
		struct msg_open_reply open;
		char spec[24];

		snprintf(spec, sizeof(spec), "%" PRIu64, version.number);
		r = open_version(k, spec, false, &open);
		for (uint32_t rank = 0; !r && rank < RANKS; rank++)
			r = load(k, open.handle, false, version.step, rank);
		if (!r)
			close_version(k, open.handle);
		if (!r)
			r = verify(k, version.number);
	}
	return r;
}

/* ---- jobs ---- */

static int join(struct kth_rank *k)
{
	_cleanup_(buf_fini) struct buf body = { 0 }, answer = { 0 };
	struct msg_join m = { view_str("kth"), view_str(k->run), k->number, RANKS };
	struct msg_join_reply reply;
	struct error e = { 0 };
	int r = call(k, MSG_JOIN, &body, ENCODE(join, &m, &body), JOIN_MS, &answer);

	if (r) { /* as forebay_group_join() does */
		core_forgo_join(k->client.core, &m, refusal(r, &e));
		client_stir(&k->client);
		return r;
	}
	CHECK(!msg_join_reply_decode(view_buf(&answer), &reply));
	r = core_group_new(k->client.core, &reply, &k->group);
	client_stir(&k->client);
	return told(k->kth, k->env, "join", r, NULL);
}

static int operate(struct kth_rank *k)
{
	_cleanup_(buf_fini) struct buf answer = { 0 };
	struct msg_list_reply reply;
	const struct kth *kth = k->kth;

	if (kth->saves[2].durable)
		(void)label(k, kth->saves[2].version);
	(void)list(k, &answer, &reply);
	if (kth->saves[1].durable)
		(void)delete_step(k, 1);
	return collect(k);
}

/* Goes on after an error, as a trainer may. */
static int first_job(struct kth_rank *k)
{
	(void)save(k, k->first_step, false);
	(void)save(k, k->first_step + 1, true);
	int r = load_latest(k, k->first_step + 1);

	return k->number ? r : operate(k);
}

static int next_job(struct kth_rank *k)
{
	int r = save(k, k->first_step, false);

	if (!r)
		r = load_latest(k, k->first_step);
	return r || k->number ? r : judge(k);
}

static bool core_lost(const struct kth_rank *k)
{
	return !k->client.core || core_check(k->client.core, NULL);
}

static int await_all(struct kth_rank *k)
{
	int r = 0;

	while (!r && k->kth->n_working)
		r = wait_at(&k->kth->all_done, FOREVER);
	return r;
}

static int rank_live(void *arg)
{
	struct kth_rank *k = arg;
	int r = client_begin(&k->client, &k->kth->history, k->env, k->kth->nodes[k->number % NODES].socket);

	(void)told(k->kth, k->env, "connect", r, NULL);
	if (!r)
		r = join(k);
	if (!r)
		r = k->next ? next_job(k) : first_job(k);
	k->failed = r;
	if (!--k->kth->n_working)
		wake_all(&k->kth->all_done);
	if (r && !core_lost(k)) /* a failed rank stays, so that nobody learns of its failure by its leave */
		r = await_all(k);
	if (k->group) {
		core_group_leave(k->group);
		client_stir(&k->client);
		(void)fiber_sleep_until(env_in_ms(k->env, 1)); /* its last words leave */
	}
	client_end(&k->client);
	world_kill(k->env, DEATH_PROCESS);
	return 0;
}

static void start_rank(struct nursery *nursery, int (*live)(void *arg), struct kth_rank *rank)
{
	SPARED;
	CHECK(!fiber_start(nursery, "rank", live, rank));
}

/* 0, or how the first rank failed. */
static int job_play(struct kth *kth, const char *run, uint64_t first_step, bool next)
{
	struct kth_rank ranks[RANKS];
	struct nursery nursery;
	char name[SIM_NAME_BYTES];

	nursery_init(&nursery, kth->world->loop);
	waitplace_init(&kth->all_done);
	kth->n_working = RANKS;
	for (uint32_t i = 0; i < RANKS; i++) {
		snprintf(name, sizeof(name), "%s-%u", run, i);
		ranks[i] = (struct kth_rank){ .kth = kth,
					      .number = i,
					      .run = run,
					      .first_step = first_step,
					      .next = next };
		ranks[i].env = world_env_new(kth->world, name);
		start_rank(&nursery, rank_live, &ranks[i]);
	}
	(void)nursery_wait(&nursery, FOREVER); /* each wait of theirs has its limit */
	nursery_fini(&nursery);
	return ranks[0].failed ? ranks[0].failed : ranks[1].failed;
}

/* One client on each node, one after the other. */
static int judge_live(void *arg)
{
	struct kth_rank *k = arg;
	int r = client_begin(&k->client, &k->kth->history, k->env, k->kth->nodes[k->number].socket);

	k->failed = told(k->kth, k->env, "connect", r, NULL);
	if (!r)
		k->failed = judge(k);
	client_end(&k->client);
	world_kill(k->env, DEATH_PROCESS);
	return 0;
}

static void judge_all(struct kth *kth)
{
	for (uint32_t i = 0; i < NODES; i++) {
		struct kth_rank judge = { .kth = kth, .number = i };
		struct nursery nursery;
		char name[SIM_NAME_BYTES];

		snprintf(name, sizeof(name), "judge-%u", i);
		judge.env = world_env_new(kth->world, name);
		nursery_init(&nursery, kth->world->loop);
		start_rank(&nursery, judge_live, &judge);
		(void)nursery_wait(&nursery, FOREVER);
		nursery_fini(&nursery);
		if (judge.failed)
			went_wrong(kth, KTH_WRONG, "n%u does not serve after its restart: %s", i,
				   error_name(judge.failed));
	}
}

/* ---- the history ---- */

/* The next job works: peers may need a moment to find each other again, but no more. */
static void play_next(struct kth *kth)
{
	int r = -EAGAIN;

	for (unsigned tries = 0; r && tries < TRIES; tries++) {
		static const char *const runs[TRIES] = { "next", "again", "last" };

		if (tries && fiber_sleep_until(kth->world->now_ns + 5 * NS_PER_S))
			break;
		r = job_play(kth, runs[tries], 3 + tries, true);
	}
	if (r)
		went_wrong(kth, KTH_WRONG, "the next job fails: %s", error_name(r));
}

static int live(void *arg)
{
	struct kth *kth = arg;

	strike_arm(true);
	bool up = nodes_start(kth);
	uint64_t begun_ns = kth->world->now_ns;
	if (up)
		(void)job_play(kth, "first", 1, false);
	kth->result->late = kth->world->now_ns - begun_ns > PROMPT_MS * NS_PER_MS;
	strike_arm(false);
	if (up)
		play_next(kth);
	strike_arm(true);
	nodes_stop(kth);
	strike_arm(false);
	if (up && nodes_start(kth))
		judge_all(kth);
	nodes_stop(kth);
	return 0;
}

static void on_log(void *arg, enum log_level level, const char *text)
{
	world_tell(arg, NULL, "log: %s", text);
}

void kth_play(enum strike_kind kind, uint64_t k, FILE *story, struct kth_result *ret)
{
	int64_t before = strike_outstanding();
	struct kth kth = { .world = world_new(SEED, WEATHER_CALM, story), .result = ret };

	*ret = (struct kth_result){ .end = KTH_WELL };
	log_setup(LOG_DEBUG, on_log, kth.world);
	kth.history.world = kth.world;
	kth.history.coverage = &kth.coverage;
	kth.engine = model_records_new(kth.world);
	world_share(kth.world, STORE);
	for (unsigned i = 0; i < NODES; i++) {
		snprintf(kth.nodes[i].name, sizeof(kth.nodes[i].name), "n%u", i);
		snprintf(kth.nodes[i].listen, sizeof(kth.nodes[i].listen), "tcp:10.0.0.%u:7000", i);
		snprintf(kth.nodes[i].socket, sizeof(kth.nodes[i].socket), "unix:/run/n%u", i);
	}
	strike_set(kind, k);
	int r = world_run(kth.world, WORLD_NS, live, &kth);
	ret->seen = strike_seen();
	if (r)
		went_wrong(&kth, KTH_HANG, "the history ends with %s", error_name(r));
	if (kth.history.failure[0])
		went_wrong(&kth, KTH_HANG, "%s", kth.history.failure);
	if (world_leftovers(kth.world))
		went_wrong(&kth, KTH_LEAK, "%u streams, files or arenas are left over", world_leftovers(kth.world));
	if (k != STRIKE_NONE && ret->seen <= k)
		went_wrong(&kth, KTH_WRONG, "there were only %" PRIu64 " calls", ret->seen);
	model_records_free(kth.engine);
	world_free(kth.world);
	kth.world = NULL;
	log_setup(LOG_DEBUG, NULL, NULL);
	int64_t left = strike_outstanding() - before;
	if (left && ret->end <= KTH_NAMED) {
		ret->end = KTH_LEAK;
		snprintf(ret->words, sizeof(ret->words), "%" PRId64 " allocations are never freed", left);
	}
}
