/*
 * sim/history_suite.c: the life of a cluster from its birth to the last judgement: nodes that die and return, faults as the seed wants
 * them, then a healing, after which everything must be whole.
 */
#include "sim/history_suite.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/log.h"
#include "daemon/daemon.h"
#include "sim/inside.h"

#define HISTORY_NS	 (7200 * NS_PER_S) /* a history that takes longer does not end */
#define POOL_ENOUGH	 (64u << 20)	   /* where all must succeed */
#define READY_MS	 90000		   /* for a healed cluster to be whole again */
#define VERIFY_MS	 60000
#define AWAY_MS		 8000  /* of a dead node, at most */
#define TROUBLE_MS	 1500  /* between two troubles, at most */
#define SLOW_RATE	 60000 /* bytes per s to the store */
#define SLOW_ROOTS	 10
#define KILL_ONCE_IN	 100 /* while ranks capture */
#define ERRAND_ONCE_IN	 2
#define CALL_ONCE_IN	 20
#define STORE		 "/store"
#define KEYS_MAX	 10000
#define REBUILDS_ONCE_IN 4
#define GENTLE_ONCE_IN	 3 /* of those that would be calm */
#define RIVALS_ONCE_IN	 8
#define REFUSED_ONCE_IN	 8
#define PACK_HEAD	 4096

const char *const bundle_names[BUNDLES] = { "job/a", "model" };
const char *const label_names[LABELS] = { "prod", "best" };
const char *const deed_names[DEEDS] = {
#define X(name, text) #name,
	DEED_TABLE(X)
#undef X
};
const char *const deed_texts[DEEDS] = {
#define X(name, text) text,
	DEED_TABLE(X)
#undef X
};

static struct history *now_living; /* for listeners that have no argument */

void history_fail(struct history *h, const char *format, ...)
{
	char words[sizeof(h->failure)];
	va_list ap;

	va_start(ap, format);
	vsnprintf(words, sizeof(words), format, ap);
	va_end(ap);
	world_tell(h->world, NULL, "FAILED: %s", words);
	if (!h->failure[0])
		memcpy(h->failure, words, sizeof(words));
}

void history_deed(struct history *h, enum deed deed)
{
	h->coverage->deeds[deed]++;
}

int history_sleep(struct history *h, uint64_t most_ms)
{
	return fiber_sleep_until(h->world->now_ns + world_random(h->world, most_ms * NS_PER_MS));
}

/* ---- persons ---- */

struct person *person_born(struct history *h, unsigned node)
{
	struct person *person = must_alloc(sizeof(*person));
	char name[SIM_NAME_BYTES];

	snprintf(name, sizeof(name), "p%u", ++h->n_persons);
	person->h = h;
	person->node = node;
	person->env = world_env_new(h->world, name);
	nursery_init(&person->nursery, h->world->loop);
	list_append(&h->persons, &person->link);
	return person;
}

void person_gone(struct person *person)
{
	nursery_fini(&person->nursery);
	world_kill(person->env, DEATH_PROCESS);
	list_remove(&person->link);
	free(person);
}

static void kill_person(struct person *person)
{
	if (sim_env(person->env)->dead)
		return;
	history_deed(person->h, DEED_CLIENT_KILLED);
	world_kill(person->env, DEATH_PROCESS);
	nursery_cancel(&person->nursery);
}

static struct person *some_person(struct history *h)
{
	struct person *found = NULL;
	uint64_t n = 0;

	list_each(at, &h->persons)
		if (world_random(h->world, ++n) == 0)
			found = list_entry(at, struct person, link);
	return found;
}

/* ---- nodes ---- */

static void node_start(struct node *n)
{
	struct history *h = n->h;
	const struct daemon_tenant tenant = { .name = TENANT,
					      .socket = n->socket + strlen("unix:"),
					      .pool_bytes = (h->calm && !h->tight) || h->healed ? POOL_ENOUGH :
												  h->pool_bytes };
	struct daemon_options o = { .node = n->name,
				    .domain = n->domain_name,
				    .cluster = "sim",
				    .key = view_str("the key of the simulated cluster"),
				    .listen = n->listen,
				    .tenants = &tenant,
				    .n_tenants = 1,
				    .rebuild = n->rebuild };
	struct error e = { 0 };
	int r = h->model_store ? model_backend_open(n->env, h->store, &o.backend) :
				 backend_dir_open(n->env, STORE, true, &o.backend, &e);

	if (!r && n->number == 0)
		r = model_meta_open(n->env, h->engine, &o.meta);
	else
		o.meta_address = h->nodes[0].listen;
	if (!r)
		r = daemon_new(n->env, &o, &n->daemon, &e);
	n->up = !r;
	if (r)
		world_tell(h->world, n->env, "does not start: %s", e.text);
}

static void node_end(struct node *n)
{
	n->up = false;
	nursery_fini(&n->calls);
	nursery_init(&n->calls, n->h->world->loop);
	if (n->daemon)
		daemon_stop(n->daemon, STOP_PATIENCE_MS);
	daemon_free(n->daemon);
	n->daemon = NULL;
}

/* What a rebuild is for. Until one has come to its end, each start asks for it. */
static void lose_engine(struct history *h)
{
	history_deed(h, DEED_ENGINE_LOST);
	world_tell(h->world, NULL, "the engine loses all");
	model_records_free(h->engine);
	h->engine = model_records_new(h->world);
	h->nodes[0].rebuild = true;
}

/* Lives until cancelled: starts the daemon, buries it when it was killed, starts the next one after a while. */
static int node_live(void *arg)
{
	struct node *n = arg;
	struct history *h = n->h;
	int r = 0;

	while (!r) {
		n->env = n->env ? world_revive(n->env) : world_env_new(h->world, n->name);
		sim_env(n->env)->file_rate = h->healed ? 0 : n->file_rate;
		if (n->number == 0 && h->half_rebuilt) {
			n->rebuild = true;
			h->half_rebuilt = h->rebuilds_asked > 0;
		}
		node_start(n);
		while (!n->up && !r && !sim_env(n->env)->dead) {
			node_end(n);
			r = fiber_sleep_until(env_in_ms(n->env, 1000));
			if (!r)
				node_start(n);
		}
		while (!r && !sim_env(n->env)->dead)
			r = wait_at(&n->place, FOREVER);
		if (r && n->daemon && !sim_env(n->env)->dead)
			history_deed(h, DEED_NODE_STOPPED);
		n->rebuild &= !n->daemon || daemon_ready(n->daemon, NULL) != 0;
		node_end(n);
		world_kill(n->env, DEATH_PROCESS);
		if (!r && n->number == 0 && !h->one_loss && world_random(h->world, h->rebuilds ? 3 : 8) == 0) {
			lose_engine(h);
			/* whoever calls for a rebuild is slower than an attribute cache: what NFS hides it would miss */
			r = fiber_sleep_until(env_in_ms(n->env, BACKEND_NAME_LATE_MS));
		}
		if (!r && !h->healed)
			r = history_sleep(h, AWAY_MS);
	}
	return r;
}

static void kill_node(struct node *n, enum deed deed)
{
	struct history *h = n->h;
	bool machine = world_random(h->world, 2);

	if (!n->env || sim_env(n->env)->dead)
		return;
	history_deed(h, deed);
	world_kill(n->env, machine ? DEATH_MACHINE : DEATH_PROCESS);
	wake_all(&n->place);
	if (machine)
		truth_unheard(h, n->number);
	list_each(at, &h->persons) {
		struct person *person = list_entry(at, struct person, link);

		if (machine && person->node == n->number)
			kill_person(person);
	}
}

void history_kill_node(struct history *h, unsigned node)
{
	kill_node(&h->nodes[node], DEED_NODE_KILLED);
}

/* Everywhere at once: a store that forgets while its writers go on as if nothing had happened would be none. */
void history_lose_power(struct history *h)
{
	for (unsigned i = 0; i < h->n_nodes; i++) {
		struct node *n = &h->nodes[i];

		if (!n->env || sim_env(n->env)->dead)
			continue;
		world_kill(n->env, DEATH_MACHINE);
		wake_all(&n->place);
	}
	if (h->model_store)
		return;
	history_deed(h, DEED_STORE_LOST_POWER);
	world_power_loss(h->world, STORE);
}

/*
 * The one misfortune of a history that has no other: a node, and whoever shares its failure domain, is lost, or cut off until a
 * successor has taken over what it did. Not the first, which has the engine: without it all would wait.
 */
static void lose_one(struct history *h)
{
	const struct node *one = world_random(h->world, 2) ? zombie_coordinator(h) : NULL;

	h->lost = (int)(one ? one : &h->nodes[world_random(h->world, h->n_nodes)])->domain;
	bool cut = h->lost != (int)h->nodes[0].domain && world_random(h->world, 2), still = world_random(h->world, 2);

	truth_disturb(h);
	for (unsigned i = 0; i < h->n_nodes; i++) {
		struct node *n = &h->nodes[i];

		if (h->lost != (int)n->domain)
			continue;
		if (cut) {
			history_deed(h, DEED_NODE_CUT_OFF);
			zombie_begin(n, still);
		} else {
			kill_node(n, DEED_NODE_LOST);
		}
	}
}

/* Where as many wait for their opportunity already as a world keeps, there is trouble enough. */
static void plan_fault(struct history *h, enum fault fault, const char *where)
{
	if (h->world->n_planned < SIM_PLANNED_MAX)
		world_inject(h->world, fault, where);
}

/* ---- listeners ---- */

static void on_point(enum point point)
{
	struct history *h = now_living;

	if (!h)
		return;
	h->coverage->points[point]++;
	world_tell(h->world, NULL, "point %s", point_name(point));
	if (point == POINT_DELETE_MARKED)
		rebuild_at_mark(h);
	if (point == POINT_ROOT_DURABLE && h->rebuilds && !h->gentle && !h->healed &&
	    world_random(h->world, REFUSED_ONCE_IN) == 0)
		plan_fault(h, FAULT_WRITE_EIO, "meta engine");
	if (!h->healed &&
	    (point == POINT_PARENT_SHARED || (point == POINT_SLOT_OPEN && world_random(h->world, ERRAND_ONCE_IN) == 0)))
		CHECK(!fiber_start(&h->errands, "errand", parent_errand, h));
	if (h->calm || h->gentle || h->healed || point != h->point || !h->point_count || --h->point_count)
		return;
	if (h->one_loss) {
		lose_one(h);
		return;
	}
	if (world_random(h->world, 3) == 0)
		history_lose_power(h);
	else
		kill_node(&h->nodes[world_random(h->world, 2) ? 0 : world_random(h->world, h->n_nodes)],
			  DEED_NODE_KILLED_AT_POINT); /* the first has the engine */
	h->point = (enum point)world_random(h->world, POINTS);
	h->point_count = 1 + (unsigned)world_random(h->world, 3);
}

static void on_move(enum save_state from, enum save_state to)
{
	struct history *h = now_living;

	if (!h)
		return;
	h->coverage->moves[from][to]++;
	struct person *person = to == SAVE_CAPTURING && !h->calm && !h->gentle && !h->one_loss && !h->healed &&
						world_random(h->world, KILL_ONCE_IN) == 0 ?
					some_person(h) :
					NULL;
	if (person)
		kill_person(person);
	if ((to == SAVE_CAPTURING || to == SAVE_CAPTURED) && world_random(h->world, CALL_ONCE_IN) == 0)
		zombie_call(h);
}

static void on_log(void *arg, enum log_level level, const char *line)
{
	if (now_living)
		world_tell(now_living->world, NULL, "log: %s", line);
}

/* ---- troubles ---- */

static void inject_fault(struct history *h)
{
	static const enum fault faults[] = { FAULT_READ_FLIP,  FAULT_READ_EIO,	 FAULT_WRITE_EIO, FAULT_NO_SPACE,
					     FAULT_SYNC_EIO,   FAULT_NAME_EIO,	 FAULT_SLOW,	  FAULT_LINK_TWICE,
					     FAULT_NAME_LATE,  FAULT_CUT,	 FAULT_LATE,	  FAULT_WIRE_FLIP,
					     FAULT_LINK_TWICE, FAULT_LINK_TWICE, FAULT_NAME_EIO,  FAULT_NAME_LATE };
	char where[16];

	snprintf(where, sizeof(where), "n%u ", (unsigned)world_random(h->world, h->n_nodes));
	if (world_random(h->world, 4) == 0)
		plan_fault(h, FAULT_READ_FLIP, "/p/"); /* a pack, or a block of it */
	else
		plan_fault(h, faults[world_random(h->world, ARRAY_LEN(faults))], where);
}

static void fall_silent(struct history *h)
{
	const char *a = h->nodes[world_random(h->world, h->n_nodes)].name,
		   *b = h->nodes[world_random(h->world, h->n_nodes)].name;
	unsigned how = (unsigned)world_random(h->world, 4);

	world_silence(h->world, a, how == 0 ? "*" : b, how != 3);
	if (how == 1)
		world_silence(h->world, b, a, true);
}

static void end_silences(struct history *h)
{
	while (h->world->n_silences) {
		struct silence s = h->world->silences[0];

		world_silence(h->world, s.from, s.to, false);
	}
}

static int make_trouble(void *arg)
{
	struct history *h = arg;
	int r = 0;

	while (!r) {
		struct person *person;

		r = history_sleep(h, TROUBLE_MS);
		if (r)
			break;
		switch (world_random(h->world, 12)) {
		case 0:
			kill_node(&h->nodes[world_random(h->world, h->n_nodes)], DEED_NODE_KILLED);
			break;
		case 1:
			person = some_person(h);
			if (person)
				kill_person(person);
			break;
		case 2:
			world_cut(h->world, h->nodes[world_random(h->world, h->n_nodes)].name, "*");
			break;
		case 3:
			fall_silent(h);
			break;
		case 4:
			end_silences(h);
			break;
		case 5:
			if (world_random(h->world, 3) == 0)
				history_lose_power(h);
			break;
		case 6:
			zombie_begin(&h->nodes[world_random(h->world, h->n_nodes)], true);
			break;
		default:
			inject_fault(h);
			inject_fault(h);
			break;
		}
	}
	return r;
}

/* ---- the healing ---- */

static void heal(struct history *h)
{
	struct world *w = h->world;

	world_tell(w, NULL, "the healing begins");
	memset(w->faults.per_million, 0, sizeof(w->faults.per_million));
	while (w->n_planned)
		free(w->planned[--w->n_planned].where);
	end_silences(h);
	h->healed = true;
}

static void start_nodes(struct history *h)
{
	for (unsigned i = 0; i < h->n_nodes; i++)
		CHECK(!fiber_start(&h->flows, "node", node_live, &h->nodes[i]));
}

static int wait_ready(struct history *h)
{
	uint64_t deadline_ns = h->world->now_ns + READY_MS * NS_PER_MS;

	for (unsigned i = 0; i < h->n_nodes; i++) {
		struct error e = { 0 };

		while (!h->nodes[i].up || daemon_ready(h->nodes[i].daemon, &e)) {
			if (h->world->now_ns > deadline_ns) {
				history_fail(h, "%s does not join after %d ms in a healthy world: %s", h->nodes[i].name,
					     READY_MS, e.text);
				return -ETIMEDOUT;
			}
			int r = fiber_sleep_until(h->world->now_ns + 50 * NS_PER_MS);
			if (r)
				return r;
		}
	}
	return 0;
}

/* Everything stops and starts again. @power: the machines lose it, instead of stopping in order. */
static int restart(struct history *h, bool power)
{
	if (power)
		history_lose_power(h);
	nursery_fini(&h->flows);
	nursery_init(&h->flows, h->world->loop);
	start_nodes(h);
	return wait_ready(h);
}

/* ---- the last judgement ---- */

/* Reads and verifies every version that is listed through @node; appends what was listed to @text. */
static int judge_bundle(struct client *c, unsigned bundle, struct buf *text)
{
	struct history *h = c->h;
	int r = client_list(c, bundle, text);

	for (unsigned i = 0; i < h->n_attempts && !r; i++) {
		struct attempt *a = h->attempts[i];
		_cleanup_(buf_fini) struct buf body = { 0 }, answer = { 0 };
		struct msg_verify m = { view_str(bundle_names[bundle]), a->version };
		struct msg_verify_reply reply;
		char spec[24];

		if (a->bundle != bundle || !a->version)
			continue;
		snprintf(spec, sizeof(spec), "%" PRIu64, a->version);
		r = client_read(c, bundle, spec);
		bool absent = r == -ENOENT || r == -ERR_EDELETED;
		if (absent && truth_may_go(h, a)) {
			if (!a->dying)
				history_deed(h, DEED_RULE_DELETED);
			a->dying = true;
			a->gone_ns = h->world->now_ns;
			r = 0;
			continue;
		}
		if (r && (a->rotten || a->tainted))
			r = 0;
		if (r)
			history_fail(h, "version %s of %s (save %u) cannot be read in a healthy world: %s", spec,
				     bundle_names[bundle], a->id, error_name(r));
		if (!r)
			r = client_call(c, MSG_VERIFY, &body, msg_verify_encode(&m, &body), VERIFY_MS, &answer);
		if (r)
			return r;
		CHECK(!msg_verify_reply_decode(view_buf(&answer), &reply));
		if (reply.damages.count && a->rotten)
			history_deed(h, DEED_DAMAGE_FOUND);
		if (!a->tainted && (reply.damages.count > 0) != a->rotten)
			history_fail(h, "verify of version %s of %s finds %u damages, and %s", spec,
				     bundle_names[bundle], reply.damages.count,
				     a->rotten ? "a byte is rotten" : "nothing was done to it");
	}
	return r;
}

/* Each label leads where it was set last; where that is not known, to one of those to which it may have been. */
static int judge_labels(struct client *c, unsigned bundle)
{
	int r = 0;

	for (unsigned label = 0; !r && label < LABELS; label++)
		r = operator_open_label(c, bundle, label);
	return r;
}

static int judge_at(struct history *h, const char *socket, struct buf *text)
{
	struct person *person = person_born(h, 0);
	struct client c;
	int r = client_begin(&c, h, person->env, socket);

	for (unsigned bundle = 0; bundle < BUNDLES && !r; bundle++) {
		r = judge_bundle(&c, bundle, text);
		if (!r)
			r = judge_labels(&c, bundle);
	}
	client_end(&c);
	person_gone(person);
	if (r)
		history_fail(h, "%s does not serve in a healthy world: %s", socket, error_name(r));
	return r;
}

static int judge(struct history *h, unsigned node, struct buf *text)
{
	return judge_at(h, h->nodes[node].socket, text);
}

static void wake_lister(struct backend_req *req)
{
	wake_all(req->dst);
}

/* All keys of the store, as 0-terminated strings. */
static int list_store(struct history *h, struct env *env, struct buf *ret)
{
	struct backend *backend;
	struct waitplace place;
	struct backend_req *req = must_alloc(sizeof(*req));
	int r = h->model_store ? model_backend_open(env, h->store, &backend) :
				 backend_dir_open(env, STORE, true, &backend, NULL);

	CHECK(!r);
	waitplace_init(&place);
	*req = (struct backend_req){ .op = BACKEND_LIST, .len = KEYS_MAX, .dst = &place, .finish = wake_lister };
	snprintf(req->key, sizeof(req->key), "t/");
	backend_submit(backend, req);
	(void)wait_at_shielded(&place, FOREVER);
	r = req->result;
	*ret = req->out;
	free(req);
	backend_free(backend);
	return r;
}

static bool has_key(const struct buf *keys, const char *key)
{
	for (const char *at = (char *)keys->ptr; at < (char *)keys->ptr + keys->len; at += strlen(at) + 1)
		if (strcmp(at, key) == 0)
			return true;
	return false;
}

/* Where nobody saves each slot has come to an end by now: a root or a tombstone. */
static void judge_slots(struct history *h, const char *when)
{
	struct person *person = person_born(h, 0);
	_cleanup_(buf_fini) struct buf keys = { 0 };
	char root[BACKEND_KEY_MAX + 8];
	int r = list_store(h, person->env, &keys);

	if (r)
		history_fail(h, "the store cannot be listed: %s", error_name(r));
	for (const char *at = (char *)keys.ptr; !r && at < (char *)keys.ptr + keys.len; at += strlen(at) + 1) {
		size_t n = strlen(at);

		if (n < 5 || strcmp(at + n - 5, "/slot") != 0)
			continue;
		snprintf(root, sizeof(root), "%.*sroot", (int)(n - 4), at);
		if (!has_key(&keys, root))
			history_fail(h, "%s has no root after %s", at, when);
	}
	person_gone(person);
}

struct reading {
	struct backend_req req;
	struct waitplace place;
	uint8_t bytes[8192];
};

static void wake_reader(struct backend_req *req)
{
	wake_all(&container_of(req, struct reading, req)->place);
}

/* Is the pack named in that root? A save that lost a node, or its coordinator, has left packs that no version names. */
static bool is_named(struct env *env, const char *root, const char *pack)
{
	_cleanup_(cleanup_mem) struct reading *reading = must_alloc(sizeof(*reading));
	struct backend *backend;

	*reading = (struct reading){ .req = { .op = BACKEND_GET, .finish = wake_reader } };
	reading->req.dst = reading->bytes;
	reading->req.len = sizeof(reading->bytes);
	snprintf(reading->req.key, sizeof(reading->req.key), "%.*s", BACKEND_KEY_MAX, root);
	waitplace_init(&reading->place);
	CHECK(!backend_dir_open(env, STORE, true, &backend, NULL));
	backend_submit(backend, &reading->req);
	(void)wait_at_shielded(&reading->place, FOREVER);
	backend_free(backend);
	return reading->req.result >= 0 && memmem(reading->bytes, reading->req.got, pack, strlen(pack));
}

static bool is_root(const char *key)
{
	const char *number = strstr(key, "/v/");

	return number && strlen(number) >= 28 && strcmp(number + 23, "/root") == 0;
}

/* Which version's root the key is; NULL: one of which nobody has been told yet. */
static struct attempt *attempt_of(struct history *h, const char *root)
{
	return truth_version(h, strstr(root, "/b/job") == NULL, strtoull(strstr(root, "/v/") + 3, NULL, 10));
}

static bool is_of_save(const struct buf *keys, const char *root, const char *pack)
{
	char prefix[BACKEND_KEY_MAX + 32];

	snprintf(prefix, sizeof(prefix), "%.*s/%.16s-", (int)(strlen(root) - 5), root, strstr(pack, "/p/") + 3);
	for (const char *at = (char *)keys->ptr; at < (char *)keys->ptr + keys->len; at += strlen(at) + 1)
		if (strncmp(at, prefix, strlen(prefix)) == 0)
			return true;
	return false;
}

/* Is the pack named by a version of which nobody has been told yet? What becomes of that one could not be judged. */
static bool is_named_by_unknown(struct history *h, struct env *env, const struct buf *keys, const char *pack)
{
	for (const char *at = (char *)keys->ptr; at < (char *)keys->ptr + keys->len; at += strlen(at) + 1)
		if (is_root(at) && !attempt_of(h, at) && is_named(env, at, pack))
			return true;
	return false;
}

/* Flips a bit of a pack that belongs to a version, on the disk. Later versions may name it, too. */
static void rot_pack(struct history *h)
{
	struct person *person = person_born(h, 0);
	_cleanup_(buf_fini) struct buf keys = { 0 };
	char path[BACKEND_KEY_MAX + 16];
	const char *end, *found = NULL;
	uint64_t n = 0;
	bool done = false;

	if (h->model_store || list_store(h, person->env, &keys)) {
		person_gone(person);
		return;
	}
	end = (char *)keys.ptr + keys.len;
	for (const char *at = (char *)keys.ptr; at < end; at += strlen(at) + 1)
		if (strstr(at, "/p/") && world_random(h->world, ++n) == 0)
			found = at;
	snprintf(path, sizeof(path), STORE "/%s", found ? found : "");
	if (found && is_named_by_unknown(h, person->env, &keys, strstr(found, "/p/") + 3))
		found = NULL;
	for (const char *at = (char *)keys.ptr; found && at < end; at += strlen(at) + 1) {
		if (!is_root(at) || !is_named(person->env, at, strstr(found, "/p/") + 3))
			continue;
		struct attempt *a = attempt_of(h, at);
		if (!done)
			done = !world_rot(person->env, path, PACK_HEAD + world_random(h->world, 2000)) ||
			       !world_rot(person->env, path, world_random(h->world, PACK_HEAD));
		if (is_of_save(&keys, at, found))
			a->rotten |= done;
		else
			a->tainted |= done;
	}
	person_gone(person);
}

/* Makes the index anew, from nothing. */
static int rebuild(struct history *h)
{
	nursery_fini(&h->flows);
	nursery_init(&h->flows, h->world->loop);
	lose_engine(h);
	start_nodes(h);
	return wait_ready(h);
}

static uint64_t object_bytes(struct backend *backend, const char *key)
{
	struct backend_req *req = must_alloc(sizeof(*req));
	struct waitplace place;

	waitplace_init(&place);
	*req = (struct backend_req){ .op = BACKEND_HEAD, .dst = &place, .finish = wake_lister };
	snprintf(req->key, sizeof(req->key), "%s", key);
	backend_submit(backend, req);
	(void)wait_at_shielded(&place, FOREVER);
	uint64_t bytes = req->result ? 0 : req->size;
	free(req);
	return bytes;
}

/* Bytes of all packs in the store. */
static uint64_t pack_bytes(struct history *h, struct env *env)
{
	_cleanup_(buf_fini) struct buf keys = { 0 };
	struct backend *backend;
	uint64_t sum = 0;

	if (list_store(h, env, &keys))
		return 0;
	CHECK(!(h->model_store ? model_backend_open(env, h->store, &backend) :
				 backend_dir_open(env, STORE, true, &backend, NULL)));
	for (const char *at = (char *)keys.ptr; at < (char *)keys.ptr + keys.len; at += strlen(at) + 1) {
		if (strstr(at, "/p/"))
			sum += object_bytes(backend, at);
	}
	backend_free(backend);
	return sum;
}

static int live_bytes(struct client *c, uint64_t *ret)
{
	int r = 0;

	for (unsigned bundle = 0; !r && bundle < BUNDLES; bundle++) {
		_cleanup_(buf_fini) struct buf body = { 0 }, answer = { 0 };
		struct msg_list m = { .bundle = view_str(bundle_names[bundle]) };
		struct msg_list_reply reply;
		struct elem_version version;

		r = client_call(c, MSG_LIST, &body, msg_list_encode(&m, &body), VERIFY_MS, &answer);
		if (r == -ENOENT) {
			r = 0;
			continue;
		}
		if (!r)
			CHECK(!msg_list_reply_decode(view_buf(&answer), &reply));
		while (!r && !elem_version_next(&reply.versions, &version))
			*ret += version.stored_bytes;
	}
	return r;
}

/*
 * After a collection the store holds no pack that no version names; one that several name counts for each of them. And of what is named
 * more than half is used (bundle/share.h): so it is less than twice what lives, without the pack a node that is promised beside it.
 */
static int judge_space(struct history *h)
{
	struct person *person = person_born(h, 0);
	uint64_t live = 0, unclear = 0, stored;
	struct client c;
	int r = client_begin(&c, h, person->env, h->nodes[0].socket);

	if (!r)
		r = client_collect(&c, &unclear);
	if (!r)
		r = live_bytes(&c, &live);
	client_end(&c);
	if (!r && unclear)
		history_fail(h, "collection does not understand %" PRIu64 " objects, and all are ours", unclear);
	if (r)
		history_fail(h, "n0 does not collect in a healthy world: %s", error_name(r));
	if (!r)
		judge_slots(h, "a collection");
	stored = r ? 0 : pack_bytes(h, person->env);
	if (!r && stored > live)
		history_fail(h, "the store has %" PRIu64 " bytes of packs, versions name %" PRIu64, stored, live);
	person_gone(person);
	return r;
}

static int judge_all(struct history *h)
{
	_cleanup_(buf_fini) struct buf before = { 0 }, after = { 0 }, there = { 0 };

	rival_remember(h);
	int r = restart(h, world_random(h->world, 2));
	if (!r)
		r = rivals_refused(h);
	if (!r && h->rebuilds && !h->model_store)
		r = rebuild_beside_damage(h);
	if (!r && world_random(h->world, 4) == 0)
		rot_pack(h);
	for (unsigned i = 0; i < h->n_nodes && !r; i++) {
		buf_fini(&before);
		r = judge(h, i, &before);
	}
	if (!r)
		r = job_run(h, true); /* the next save works */
	if (!r)
		r = judge_space(h); /* also: no rule is left to be applied while the two listings are made */
	buf_fini(&before);
	if (!r)
		r = judge(h, 0, &before);
	if (!r && h->rivals)
		r = rival_takes_over(h, judge_at, &there);
	if (!r && h->rivals && !view_equal(view_buf(&before), view_buf(&there)))
		history_fail(h, "another cluster's index differs: %.*s -- before: %.*s", (int)there.len,
			     (char *)there.ptr, (int)before.len, (char *)before.ptr);
	if (!r)
		r = rebuild(h);
	if (!r)
		r = judge(h, (unsigned)world_random(h->world, h->n_nodes), &after);
	if (!r && !view_equal(view_buf(&before), view_buf(&after)))
		history_fail(h, "the rebuilt index differs: %.*s -- before: %.*s", (int)after.len, (char *)after.ptr,
			     (int)before.len, (char *)before.ptr);
	if (!r)
		judge_slots(h, "a rebuild");
	return r;
}

/* ---- a whole history ---- */

static int run_job(void *arg)
{
	return job_run(arg, false);
}

/* Runs of the job, one after the other; sometimes the next begins while the last one still lives. */
static int run_jobs(struct history *h)
{
	struct nursery jobs;
	int r = 0;

	nursery_init(&jobs, h->world->loop);
	for (uint64_t n = 1 + world_random(h->world, 3); n && !r; n--) {
		if (h->calm) {
			r = job_run(h, true);
			continue;
		}
		CHECK(!fiber_start(&jobs, "job", run_job, h));
		if (world_random(h->world, 4) == 0) {
			history_deed(h, DEED_RUN_OVERTAKEN);
			r = history_sleep(h, 1000);
		} else {
			r = nursery_wait(&jobs, FOREVER);
		}
	}
	if (!r)
		r = nursery_wait(&jobs, FOREVER);
	nursery_fini(&jobs);
	return r;
}

static int live(void *arg)
{
	struct history *h = arg;
	struct nursery troubles, rebuilds;
	int r = 0;

	nursery_init(&h->flows, h->world->loop);
	nursery_init(&h->errands, h->world->loop);
	nursery_init(&troubles, h->world->loop);
	nursery_init(&rebuilds, h->world->loop);
	start_nodes(h);
	if (h->calm || h->gentle || h->one_loss || world_random(h->world, 4))
		r = wait_ready(h);
	if (!h->calm && !h->gentle && !h->one_loss)
		CHECK(!fiber_start(&troubles, "trouble", make_trouble, h));
	if (!r)
		CHECK(!fiber_start(&troubles, "operator", operator_run, h));
	if (h->rebuilds)
		CHECK(!fiber_start(&rebuilds, "rebuilder", rebuilder_run, h));
	if (h->rivals)
		CHECK(!fiber_start(&rebuilds, "rival", rival_run, h));
	if (!r)
		r = run_jobs(h);
	if (!r)
		r = nursery_wait(&rebuilds, FOREVER);
	nursery_fini(&rebuilds);
	nursery_fini(&troubles);
	nursery_fini(&h->errands);
	heal(h);
	if (!r)
		r = judge_all(h);
	nursery_fini(&h->flows);
	return r;
}

/* Of its own dice: so histories without rebuilds and rivals are as they were. */
static void draw_others(struct history *h)
{
	const uint64_t n = h->world->seed * UINT64_C(0x9e3779b97f4a7c15) >> 40;

	h->rivals = !h->one_loss && n / 12 % RIVALS_ONCE_IN == 0;
	h->rebuilds = !h->one_loss && n % (h->calm ? GENTLE_ONCE_IN : REBUILDS_ONCE_IN) == 0;
	h->gentle = h->calm && h->rebuilds;
	h->calm = h->calm && !h->rebuilds;
}

static void draw_history(struct history *h)
{
	struct world *w = h->world;
	uint64_t faults = 0;

	h->one_loss = world_random(w, 5) == 0;
	h->lost = -1;
	if (h->one_loss)
		memset(w->faults.per_million, 0, sizeof(w->faults.per_million));
	for (int i = 0; i < FAULTS; i++)
		faults += w->faults.per_million[i];
	h->calm = !faults && !h->one_loss && world_random(w, 2);
	h->tight = h->calm && world_random(w, 2);
	h->mad = !h->calm && !h->one_loss && world_random(w, 6) == 0;
	h->fickle = !h->calm && !h->one_loss && !h->mad && world_random(w, 6) == 0;
	h->n_nodes = 2 + (unsigned)world_random(w, NODES_MAX - 1);
	h->model_store = world_random(w, 3) == 0;
	h->pool_bytes = (2u << 20) << world_random(w, 3);
	h->store = model_records_new(w);
	h->engine = model_records_new(w);
	world_share(w, STORE);
	list_init(&h->persons);
	for (unsigned i = 0; i < h->n_nodes; i++) {
		struct node *n = &h->nodes[i];

		n->h = h;
		n->number = i;
		n->domain = i >= 2 && world_random(w, 3) == 0 ? h->nodes[world_random(w, i)].domain : h->n_domains++;
		nursery_init(&n->calls, w->loop);
		snprintf(n->domain_name, sizeof(n->domain_name), "d%u", n->domain);
		waitplace_init(&n->place);
		snprintf(n->name, sizeof(n->name), "n%u", i);
		snprintf(n->listen, sizeof(n->listen), "tcp:10.0.0.%u:7000", i);
		snprintf(n->socket, sizeof(n->socket), "unix:/run/n%u", i);
	}
	if (!h->calm && world_random(w, 4) == 0)
		h->nodes[world_random(w, h->n_nodes)].file_rate = SLOW_RATE + world_random(w, SLOW_RATE);
	if (h->n_domains < h->n_nodes)
		history_deed(h, DEED_DOMAIN_SHARED);
	h->ruled = world_random(w, 2);
	h->point = (enum point)world_random(w, h->one_loss ? POINT_SAVE_TOLD : POINTS);
	if (h->one_loss && world_random(w, 4) == 0)
		h->point = POINT_ROOT_NEXT; /* who is cut off here, and goes on, puts a root late */
	h->point_count = 1 + (unsigned)world_random(w, 3);
	for (int i = 0; i < SLOW_ROOTS && h->tight; i++)
		world_inject(w, FAULT_SLOW, "/v/0"); /* the end of a save takes long: others want its room */
	draw_others(h);
	if (h->calm)
		history_deed(h, DEED_HISTORY_CALM);
}

int history_run(uint64_t seed, FILE *story, struct coverage *coverage, uint64_t *ret_hash, char ret_failure[512])
{
	struct history h = { .world = world_new(seed, WEATHER_DRAWN, story), .coverage = coverage };

	now_living = &h;
	log_setup(LOG_DEBUG, on_log, NULL);
	point_listen(on_point);
	save_state_on_move(on_move);
	draw_history(&h);
	int r = world_run(h.world, HISTORY_NS, live, &h);
	unsigned left = world_leftovers(h.world);
	if (r)
		history_fail(&h, "it ended with %s", error_name(r));
	if (left || !list_empty(&h.persons))
		history_fail(&h, "%u streams, files or arenas are left over", left);
	now_living = NULL;
	for (int i = 0; i < FAULTS; i++)
		coverage->faults[i] += h.world->faults.injected[i];
	*ret_hash = h.world->hash;
	memcpy(ret_failure, h.failure, sizeof(h.failure));
	world_free(h.world);
	model_records_free(h.store);
	model_records_free(h.engine);
	rival_forget(&h);
	for (unsigned i = 0; i < h.n_attempts; i++)
		free(h.attempts[i]);
	free(h.attempts);
	return h.failure[0] ? -EBADMSG : 0;
}
