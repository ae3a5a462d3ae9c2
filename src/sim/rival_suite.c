/*
 * sim/rival_suite.c: a second engine on the store of the cluster, or the cluster's own on a copy of it. What is documented for each: it is
 * refused, or it takes the store over and the first one stops; in all of them what is durable stays whole.
 */
#include <errno.h>
#include <stdlib.h>

#include "backend/backend.h"
#include "daemon/daemon.h"
#include "sim/history_suite.h"
#include "sim/inside.h"

#define RIVAL_POOL_BYTES (64u << 20)
#define REFUSED_MS	 30000
#define TAKEN_MS	 60000 /* for a rebuild and the claims around it */
#define STOPS_MS	 10000 /* until the first one has noticed: it looks each 2 s */
#define FIRST_MS	 4000
#define LIVES_MS	 5000
#define LOOK_MS		 20

struct rival {
	struct history *h;
	struct env *env;
	struct daemon *daemon;
	struct model_records *engine;
	const struct model_records *store;
};

static const char *const rival_socket = "unix:/run/rival", *const rival_listen = "tcp:10.0.1.0:7000";

static int rival_begin(struct rival *v, const char *cluster, bool rebuild)
{
	const struct daemon_tenant tenant = { .name = TENANT,
					      .socket = rival_socket + 5,
					      .pool_bytes = RIVAL_POOL_BYTES };
	struct daemon_options o = { .node = "rival",
				    .domain = "d0",
				    .cluster = cluster,
				    .key = view_str("the key of the other simulated cluster"),
				    .listen = rival_listen,
				    .tenants = &tenant,
				    .n_tenants = 1,
				    .rebuild = rebuild };
	struct error e = { 0 };

	v->env = world_env_new(v->h->world, "rival");
	int r = v->h->model_store ? model_backend_open(v->env, (struct model_records *)v->store, &o.backend) :
				    backend_dir_open(v->env, HISTORY_STORE, true, &o.backend, &e);
	if (!r)
		r = model_meta_open(v->env, v->engine, &o.meta);
	return r ? r : daemon_new(v->env, &o, &v->daemon, &e);
}

static void rival_end(struct rival *v)
{
	if (v->daemon)
		daemon_stop(v->daemon, STOP_PATIENCE_MS);
	daemon_free(v->daemon);
	world_kill(v->env, DEATH_PROCESS);
	model_records_free(v->engine);
}

/* Until it is ready (0), or says why it will not be: ERR_EREBUILD, ENODEV; -ETIMEDOUT. */
static int rival_await(struct rival *v, uint64_t limit_ms)
{
	uint64_t until_ns = v->h->world->now_ns + limit_ms * NS_PER_MS;
	int r = -EAGAIN;

	while (r == -EAGAIN && v->h->world->now_ns < until_ns) {
		r = daemon_ready(v->daemon, NULL);
		if (r == -EAGAIN && fiber_sleep_until(v->h->world->now_ns + LOOK_MS * NS_PER_MS))
			return -ECANCELED;
	}
	return r == -EAGAIN ? -ETIMEDOUT : r;
}

/* With @engine, which it takes, on @store: it must end so. */
static int expect_refused(struct history *h, struct model_records *engine, const struct model_records *store,
			  const char *cluster, int expected, const char *what)
{
	struct rival v = { .h = h, .engine = engine, .store = store };
	int r = rival_begin(&v, cluster, false);

	if (!r)
		r = rival_await(&v, REFUSED_MS);
	rival_end(&v);
	if (r == expected || r == -ECANCELED)
		return r == -ECANCELED ? r : 0;
	history_fail(h, "%s ends with %s, not %s", what, error_name(r), error_name(expected));
	return -EPROTO;
}

/* ---- in a healthy world ---- */

void rival_remember(struct history *h)
{
	if (!h->rivals)
		return;
	h->old_engine = model_records_copy(h->engine);
	h->old_store = model_records_copy(h->store);
}

void rival_forget(struct history *h)
{
	model_records_free(TAKE(h->old_engine));
	model_records_free(TAKE(h->old_store));
}

/* All of them while the cluster works: it must not notice. */
int rivals_refused(struct history *h)
{
	if (!h->rivals)
		return 0;
	int r = expect_refused(h, model_records_new(h->world), h->store, "another", -ERR_EREBUILD,
			       "a second engine, which is empty,");
	if (!r)
		r = expect_refused(h, TAKE(h->old_engine), h->store, "sim", -ERR_EREBUILD, "an older index");
	if (!r)
		history_deed(h, DEED_RIVAL_REFUSED);
	if (!r && h->model_store) {
		r = expect_refused(h, model_records_copy(h->engine), h->old_store, "sim", -ENODEV,
				   "the index on an older copy of the store");
		if (!r)
			history_deed(h, DEED_COPY_REFUSED);
	}
	return r;
}

static int expect_stopped(struct history *h)
{
	uint64_t until_ns = h->world->now_ns + STOPS_MS * NS_PER_MS;

	while (daemon_ready(h->nodes[0].daemon, NULL) != -ERR_EREBUILD) {
		if (h->world->now_ns > until_ns) {
			history_fail(h, "the store was taken over, and its first engine goes on");
			return -EPROTO;
		}
		int r = fiber_sleep_until(h->world->now_ns + LOOK_MS * NS_PER_MS);
		if (r)
			return r;
	}
	return 0;
}

/* Another cluster makes an index of the store: all is there for it, and the first one stops. */
int rival_takes_over(struct history *h, int (*judge)(struct history *h, const char *socket, struct buf *text),
		     struct buf *text)
{
	struct rival v = { .h = h, .engine = model_records_new(h->world), .store = h->store };
	int r = rival_begin(&v, "another", true);

	if (!r)
		r = rival_await(&v, TAKEN_MS);
	if (r)
		history_fail(h, "another cluster does not take the store over: %s", error_name(r));
	if (!r)
		r = expect_stopped(h);
	if (!r)
		r = judge(h, rival_socket, text);
	rival_end(&v);
	if (!r)
		history_deed(h, DEED_STORE_TAKEN_OVER);
	return r;
}

/* ---- amid all that happens ---- */

static bool anybody_ready(const struct history *h)
{
	for (unsigned i = 0; i < h->n_nodes; i++)
		if (h->nodes[i].up && !daemon_ready(h->nodes[i].daemon, NULL))
			return true;
	return false;
}

/* Whoever ends the other cluster starts the nodes of this one again, and rebuilds. */
static void put_back(struct history *h)
{
	h->half_rebuilt = true;
	for (unsigned i = 0; i < h->n_nodes; i++)
		history_kill_node(h, i);
}

int rival_run(void *arg)
{
	struct history *h = arg;
	struct rival v = { .h = h };
	int r = history_sleep(h, FIRST_MS);

	while (!r && !anybody_ready(h) && !h->healed) /* a store that nobody has is anybody's */
		r = fiber_sleep_until(h->world->now_ns + LOOK_MS * NS_PER_MS);
	if (r || h->healed)
		return 0;
	bool takes = !h->calm && !h->gentle && world_random(h->world, 2);
	v.engine = model_records_new(h->world);
	v.store = h->store;
	r = rival_begin(&v, "another", takes);
	if (!r)
		r = takes ? rival_await(&v, TAKEN_MS) : history_sleep(h, LIVES_MS);
	if (!r && takes)
		r = history_sleep(h, LIVES_MS);
	if (!takes && v.daemon && !daemon_ready(v.daemon, NULL))
		history_fail(h, "a second engine, which is empty, serves a store that has one");
	rival_end(&v);
	if (takes)
		put_back(h);
	return 0;
}
