#include "daemon/daemon.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
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

struct daemon {
	struct env *env;
	struct backend *backend;
	struct meta *meta;
	/* Of each tenant, as far as they are open. */
	struct pool *pools[GROUPS_TENANTS_MAX];
	struct store *stores[GROUPS_TENANTS_MAX];
	struct door_native *doors[GROUPS_TENANTS_MAX];
	unsigned n_pools, n_stores, n_doors;
	struct cluster *cluster;
	struct bundles *bundles;
	struct groups *groups;
	struct watch *watch; /* NULL: no HTTP door */
	struct nursery flows;
	bool joined, rebuild;
	struct error why; /* not joined yet */
};

struct groups *daemon_groups(const struct daemon *daemon)
{
	return daemon->groups;
}

int daemon_ready(const struct daemon *daemon, struct error *e)
{
	if (daemon->joined)
		return cluster_taken(daemon->cluster, e);
	/* other codes would be taken for an answer: a version that the engine does not know yet is not absent */
	bool own = daemon->why.code == -ERR_EREBUILD || daemon->why.code == -ERR_EVERSION ||
		   daemon->why.code == -ENODEV;
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
	uint32_t of_index, of_store;
	int r = cluster_generations(daemon->cluster, env_in_ms(daemon->env, JOIN_ATTEMPT_MS), &of_index, &of_store, e);

	if (!r)
		r = bundles_check_index(daemon->bundles, env_in_ms(daemon->env, CHECK_TIMEOUT_MS), e);
	if (!r || r == -ERR_EREBUILD)
		cluster_meta_open(daemon->cluster, r ? e : NULL);
	else if (r == -ENODEV) /* not of this store; whoever asks finds so himself */
		cluster_meta_open(daemon->cluster, NULL);
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
					   .pools = daemon->pools,
					   .n_pools = daemon->n_pools,
					   .backend = daemon->backend,
					   .bundles = daemon->bundles,
					   .groups = daemon->groups,
					   .door = daemon->doors[0],
					   .tenant = options->tenants[0].name,
					   .joined = door_ready,
					   .arg = daemon };

	if (!options->http || !*options->http)
		return 0;
	int r = watch_new(&rooms, options->http, &daemon->watch, e);
	if (!r)
		door_native_tell_http(daemon->doors[0], watch_address(daemon->watch));
	return r;
}

static int open_pools(struct daemon *daemon, const struct daemon_options *options, struct error *e)
{
	for (unsigned i = 0; i < options->n_tenants; i++) {
		uint64_t half = options->tenants[i].pool_bytes / 2;
		int r = pool_new(daemon->env, half, half, &daemon->pools[i], e);

		if (r)
			return r;
		daemon->n_pools++;
	}
	return 0;
}

static int open_stores(struct daemon *daemon, const struct daemon_options *options)
{
	for (unsigned i = 0; i < options->n_tenants; i++) {
		int r = store_new(daemon->env, options->tenants[i].name, daemon->pools[i], daemon->cluster,
				  daemon->backend, &daemon->stores[i]);

		if (r)
			return r;
		daemon->n_stores++;
	}
	return 0;
}

static int open_doors(struct daemon *daemon, const struct daemon_options *options, struct error *e)
{
	for (unsigned i = 0; i < options->n_tenants; i++) {
		const struct daemon_tenant *tenant = &options->tenants[i];
		const struct door_native_options door = { .socket = tenant->socket,
							  .tenant = tenant->name,
							  .users = tenant->users,
							  .n_users = tenant->n_users,
							  .first = i ? daemon->doors[0] : NULL,
							  .alone = options->n_tenants == 1,
							  .admin = options->admin,
							  .cluster = daemon->cluster,
							  .store = daemon->stores[i],
							  .bundles = daemon->bundles,
							  .groups = daemon->groups,
							  .ready = door_ready,
							  .is_stopped = options->is_stopped,
							  .arg = daemon };
		int r = door_native_new(daemon->env, &door, &daemon->doors[i], e);

		if (r)
			return r;
		daemon->n_doors++;
	}
	return 0;
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
	int r = open_pools(daemon, options, e);

	if (!r)
		r = cluster_new(daemon->env, &cluster, &daemon->cluster, e);
	if (!r && daemon->meta)
		cluster_meta_hold(daemon->cluster);
	if (!r)
		r = open_stores(daemon, options);
	if (!r)
		r = bundles_new(daemon->env, daemon->cluster, daemon->backend, &daemon->bundles);
	if (!r)
		r = groups_new(daemon->env, daemon->cluster, daemon->stores, daemon->n_stores, daemon->bundles,
			       &daemon->groups);
	if (!r)
		r = open_doors(daemon, options, e);
	if (!r)
		r = open_watch(daemon, options, e);
	return r ? r : fiber_start(&daemon->flows, "join", join, daemon);
}

int daemon_new(struct env *env, const struct daemon_options *options, struct daemon **ret, struct error *e)
{
	struct daemon *daemon = calloc(1, sizeof(*daemon));

	CHECK(options->n_tenants && options->n_tenants <= GROUPS_TENANTS_MAX);
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

int daemon_stop(struct daemon *daemon, unsigned patience_ms)
{
	nursery_fini(&daemon->flows);
	if (daemon->watch)
		watch_stop(daemon->watch);
	for (unsigned i = 0; i < daemon->n_doors; i++)
		door_native_stop(daemon->doors[i]); /* no new work */
	if (daemon->groups)
		groups_stop(daemon->groups);
	bundles_stop(daemon->bundles);
	if (daemon->cluster)
		cluster_stop(daemon->cluster); /* nobody calls any more, nobody is called */
	while (daemon->n_doors)
		door_native_free(daemon->doors[--daemon->n_doors]);
	groups_free(TAKE(daemon->groups));
	bundles_free(TAKE(daemon->bundles));
	while (daemon->n_stores)
		store_free(daemon->stores[--daemon->n_stores]);
	return calls_drain(daemon->backend, daemon->meta,
			   env_in_ms(daemon->env, patience_ms)); /* requests that nobody waits for */
}

void daemon_free(struct daemon *daemon)
{
	if (!daemon)
		return;
	watch_free(daemon->watch);
	cluster_free(daemon->cluster);
	while (daemon->n_pools)
		pool_free(daemon->pools[--daemon->n_pools]);
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
