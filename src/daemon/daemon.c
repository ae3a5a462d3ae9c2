#include "daemon/daemon.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "bundle/bundle.h"
#include "cluster/cluster.h"
#include "daemon/watch.h"
#include "door/native.h"
#include "env/fiber.h"
#include "group/group.h"
#include "pool/pool.h"
#include "store/store.h"

#define JOIN_ATTEMPT_MS	   5000
#define JOIN_RETRY_MS	   200
#define REBUILD_TIMEOUT_MS 3600000
#define CHECK_TIMEOUT_MS   600000
#define REQUESTS_MS	   60000

struct daemon {
	struct env *env;
	struct backend *backend;
	struct meta *meta;
	struct pool *pool;
	struct cluster *cluster;
	struct store *store;
	struct bundles *bundles;
	struct groups *groups;
	struct door_native *door;
	struct watch *watch; /* NULL: no HTTP door */
	struct nursery flows;
	bool joined, rebuild;
	struct error why; /* not joined yet */
};

int daemon_ready(const struct daemon *daemon, struct error *e)
{
	if (daemon->joined)
		return 0;
	/* other codes would be taken for an answer: a version that the engine does not know yet is not absent */
	bool own = daemon->why.code == -ERR_EREBUILD || daemon->why.code == -ERR_EVERSION;
	return error_set(e, own ? daemon->why.code : -EAGAIN, "this node has not joined its cluster yet: %s",
			 daemon->why.code ? daemon->why.text : "it is just starting");
}

static int door_ready(void *arg, struct error *e)
{
	return daemon_ready(arg, e);
}

static int rebuild_first(struct daemon *daemon, struct error *e)
{
	struct rebuild_counts counts;
	int r = bundles_rebuild(daemon->bundles, env_in_ms(daemon->env, REBUILD_TIMEOUT_MS), &counts, e);

	if (!r)
		daemon->rebuild = false;
	return r;
}

/* An older copy of the index would be believed by everybody who asks it. Peers' requests wait until it was looked at. */
static int check_index(struct daemon *daemon, struct error *e)
{
	int r = bundles_check_index(daemon->bundles, env_in_ms(daemon->env, CHECK_TIMEOUT_MS), e);

	if (!r || r == -ERR_EREBUILD)
		cluster_meta_open(daemon->cluster, r ? e : NULL);
	return r;
}

/* Tries until it has joined: the node with the engine may start later, or its index may have to be rebuilt first. */
static int join(void *arg)
{
	struct daemon *daemon = arg;
	int last = 0;

	for (;;) {
		struct error e = { 0 }; /* an attempt's own: what it meets on its way is not yet why it failed */
		int r = daemon->rebuild ? rebuild_first(daemon, &e) : 0;

		if (!r && daemon->meta)
			r = check_index(daemon, &e);
		if (!r)
			r = cluster_join(daemon->cluster, env_in_ms(daemon->env, JOIN_ATTEMPT_MS), &e);
		if (!r)
			break;
		if (r == -ECANCELED)
			return r;
		if (!e.code)
			(void)error_set(&e, r, "%s", error_meaning(r));
		daemon->why = e;
		if (r != last)
			logm(LOG_WARN, "daemon.not-joined", "words=\"%s\"", e.text);
		last = r;
		r = fiber_sleep_until(env_in_ms(daemon->env, JOIN_RETRY_MS));
		if (r)
			return r;
	}
	int r = bundles_start(daemon->bundles);
	if (r)
		return r;
	daemon->joined = true;
	logm(LOG_INFO, "daemon.joined", "address=%s generation=%u", cluster_address(daemon->cluster),
	     cluster_generation(daemon->cluster));
	return 0;
}

static int open_watch(struct daemon *daemon, const struct daemon_options *options, struct error *e)
{
	const struct watch_rooms rooms = { .env = daemon->env,
					   .cluster = daemon->cluster,
					   .pool = daemon->pool,
					   .backend = daemon->backend,
					   .bundles = daemon->bundles,
					   .groups = daemon->groups,
					   .door = daemon->door,
					   .tenant = options->tenant,
					   .joined = door_ready,
					   .arg = daemon };

	if (!options->http || !*options->http)
		return 0;
	int r = watch_new(&rooms, options->http, &daemon->watch, e);
	if (!r)
		door_native_tell_http(daemon->door, watch_address(daemon->watch));
	return r;
}

static int open_rooms(struct daemon *daemon, const struct daemon_options *options, struct error *e)
{
	struct cluster_options cluster = { .node = options->node,
					   .domain = options->domain,
					   .listen = options->listen,
					   .cluster_id = options->cluster,
					   .key = options->key,
					   .meta = daemon->meta,
					   .meta_address = options->meta_address,
					   .backend = daemon->backend,
					   .store_rate = options->store_rate };
	struct door_native_options door = { .socket = options->socket,
					    .tenant = options->tenant,
					    .ready = door_ready,
					    .arg = daemon };
	int r = pool_new(daemon->env, options->pool_bytes / 2, options->pool_bytes / 2, &daemon->pool, e);

	if (r)
		return r;
	cluster.pool = daemon->pool;
	r = cluster_new(daemon->env, &cluster, &daemon->cluster, e);
	if (!r && daemon->meta)
		cluster_meta_hold(daemon->cluster);
	if (!r)
		r = store_new(daemon->env, daemon->pool, daemon->cluster, daemon->backend, &daemon->store);
	if (!r)
		r = bundles_new(daemon->env, daemon->cluster, daemon->store, daemon->backend, &daemon->bundles);
	if (!r)
		r = groups_new(daemon->env, daemon->cluster, daemon->store, daemon->bundles, &daemon->groups);
	if (r)
		return r;
	door.cluster = daemon->cluster;
	door.store = daemon->store;
	door.bundles = daemon->bundles;
	door.groups = daemon->groups;
	r = door_native_new(daemon->env, &door, &daemon->door, e);
	if (!r)
		r = open_watch(daemon, options, e);
	return r ? r : fiber_start(&daemon->flows, "join", join, daemon);
}

int daemon_new(struct env *env, const struct daemon_options *options, struct daemon **ret, struct error *e)
{
	struct daemon *daemon = calloc(1, sizeof(*daemon));

	if (!daemon) {
		backend_free(options->backend);
		meta_free(options->meta);
		return -ENOMEM;
	}
	daemon->env = env;
	daemon->backend = options->backend;
	daemon->meta = options->meta;
	daemon->rebuild = options->rebuild;
	nursery_init(&daemon->flows, env->loop);
	*ret = daemon; /* also when it fails: the caller stops and frees it in a fiber */
	return open_rooms(daemon, options, e);
}

unsigned daemon_drain(struct daemon *daemon, uint64_t deadline_ns)
{
	return daemon->groups ? groups_drain(daemon->groups, deadline_ns) : 0;
}

void daemon_stop(struct daemon *daemon)
{
	nursery_fini(&daemon->flows);
	if (daemon->watch)
		watch_stop(daemon->watch);
	if (daemon->door)
		door_native_stop(daemon->door); /* no new work */
	if (daemon->groups)
		groups_stop(daemon->groups);
	bundles_stop(daemon->bundles);
	if (daemon->cluster)
		cluster_stop(daemon->cluster); /* nobody calls any more, nobody is called */
	door_native_free(TAKE(daemon->door));
	groups_free(TAKE(daemon->groups));
	bundles_free(TAKE(daemon->bundles));
	store_free(TAKE(daemon->store));
	calls_drain(daemon->backend, daemon->meta,
		    env_in_ms(daemon->env, REQUESTS_MS)); /* requests that nobody waits for */
}

void daemon_free(struct daemon *daemon)
{
	if (!daemon)
		return;
	watch_free(daemon->watch);
	cluster_free(daemon->cluster);
	pool_free(daemon->pool);
	meta_free(daemon->meta);
	backend_free(daemon->backend);
	free(daemon);
}

const char *daemon_address(const struct daemon *daemon)
{
	return cluster_address(daemon->cluster);
}

const char *daemon_http_address(const struct daemon *daemon)
{
	return daemon->watch ? watch_address(daemon->watch) : "";
}
