#include "daemon/watch.h"

#include <dirent.h>
#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/counter.h"

#define PEER_ASK_MS	1000
#define PEERS_ASKED_MAX 3 /* of those that should be up, until one answers */

/* ---- gauges ----------------------------------------------------------------------------------------------------------------- */

/* Of all tenants together. */
static void set_pools(struct pool *const *pools, unsigned n_pools)
{
	struct pool_stats all = { 0 };

	for (unsigned i = 0; i < n_pools; i++) {
		struct pool_stats stats;

		pool_stats(pools[i], &stats);
		for (int kind = 0; kind < POOL_KINDS; kind++) {
			all.bytes[kind] += stats.bytes[kind];
			all.used_bytes[kind] += stats.used_bytes[kind];
			all.clean_bytes[kind] += stats.clean_bytes[kind];
		}
		all.blocks += stats.blocks;
		all.evictions += stats.evictions;
	}
	for (int kind = 0; kind < POOL_KINDS; kind++) {
		uint64_t taken = all.used_bytes[kind] + all.clean_bytes[kind];

		count_set(COUNT_POOL_CAPTURE_BYTES + kind, all.bytes[kind]);
		count_set(COUNT_POOL_CAPTURE_USED + kind, all.used_bytes[kind]);
		count_set(COUNT_POOL_CAPTURE_CLEAN + kind, all.clean_bytes[kind]);
		count_set(COUNT_POOL_CAPTURE_FREE + kind, all.bytes[kind] > taken ? all.bytes[kind] - taken : 0);
	}
	count_set(COUNT_POOL_BLOCKS, all.blocks);
	count_set(COUNT_POOL_EVICTIONS, all.evictions);
}

_Static_assert(POOL_CAPTURE == 0 && POOL_READ == 1 && POOL_KINDS == 2, "as the series of the arenas follow each other");

/* On the loop. */
static void set_gauges(void *arg)
{
	struct watch *watch = arg;
	const struct watch_rooms *rooms = &watch->rooms;
	unsigned up, down;

	set_pools(rooms->pools, rooms->n_pools);
	cluster_peers(rooms->cluster, &up, &down);
	count_set(COUNT_PEERS_UP, up);
	count_set(COUNT_PEERS_DOWN, down);
	count_set(COUNT_LEASES, groups_coordinated(rooms->groups));
	count_set(COUNT_CLIENTS, door_native_clients(rooms->door));
	count_set(COUNT_GENERATION, cluster_generation(rooms->cluster));
	count_set(COUNT_UP_TIME, env_now(rooms->env) - watch->since_ns);
	pthread_mutex_lock(&watch->lock);
	watch->n_pids = door_native_pids(rooms->door, watch->pids);
	pthread_mutex_unlock(&watch->lock);
}

bool watch_is_stopped(int32_t pid)
{
	char path[64], text[512] = "";

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	FILE *file = fopen(path, "re");
	if (!file)
		return false;
	size_t n = fread(text, 1, sizeof(text) - 1, file);
	fclose(file);
	text[n] = 0;
	const char *end = strrchr(text, ')'); /* of the program's name, which may hold anything */
	return end && end[1] && (end[2] == 'T' || end[2] == 't');
}

static unsigned count_stopped(struct watch *watch)
{
	static _Thread_local int32_t pids[DOOR_SESSIONS_MAX];
	unsigned stopped = 0;

	pthread_mutex_lock(&watch->lock);
	unsigned n = watch->n_pids;
	memcpy(pids, watch->pids, n * sizeof(*pids));
	pthread_mutex_unlock(&watch->lock);
	for (unsigned i = 0; i < n; i++)
		stopped += watch_is_stopped(pids[i]);
	return stopped;
}

static uint64_t count_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	uint64_t n = 0;

	if (!dir)
		return 0;
	for (struct dirent *entry; (entry = readdir(dir));)
		n += *entry->d_name != '.';
	closedir(dir);
	return n - 1; /* the folder's own */
}

static uint64_t resident_bytes(void)
{
	FILE *file = fopen("/proc/self/statm", "re");
	unsigned long long pages = 0;

	if (file && fscanf(file, "%*u %llu", &pages) != 1)
		pages = 0;
	if (file)
		fclose(file);
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t heap_bytes(void)
{
	struct mallinfo2 info = mallinfo2();

	return (uint64_t)info.uordblks + info.hblkhd;
}

/* On a thread of the door's. */
static void measure(void *arg)
{
	count_set(COUNT_CLIENTS_STOPPED, count_stopped(arg));
	count_set(COUNT_OPEN_DESCRIPTORS, count_descriptors());
	count_set(COUNT_RESIDENT_BYTES, resident_bytes());
	count_set(COUNT_HEAP_BYTES, heap_bytes());
}

/* ---- readiness -------------------------------------------------------------------------------------------------------------- */

/* At least one of the other nodes answers, if there are any: one that is lost is no reason to call all others useless. */
static int check_peers(struct watch *watch, const struct node_info *nodes, size_t n, struct error *e)
{
	struct cluster *cluster = watch->rooms.cluster;
	struct error why = { 0 };
	unsigned asked = 0;

	for (size_t i = 0; i < n && asked < PEERS_ASKED_MAX; i++) {
		if (!nodes[i].up || !strcmp(nodes[i].name, cluster_node(cluster)))
			continue;
		_cleanup_(buf_fini) struct buf answer = { 0 };
		int r = cluster_call(cluster, nodes[i].name, MSG_STATUS, (struct view){ 0 },
				     env_in_ms(watch->rooms.env, PEER_ASK_MS), &answer, &why);

		if (!r)
			return 0;
		if (r == -ECANCELED)
			return r;
		asked++;
	}
	if (n <= 1)
		return 0;
	return error_set(e, -EHOSTDOWN, "peers: none of the %zu other nodes answers%s%.200s", n - 1, asked ? ": " : "",
			 asked ? why.text : "");
}

static int check_nodes(struct watch *watch, uint64_t deadline_ns, struct error *e)
{
	struct node_info *nodes = NULL;
	size_t n = 0;
	int r = cluster_nodes(watch->rooms.cluster, deadline_ns, &nodes, &n, e);

	if (r)
		(void)error_prefix(e, "meta engine");
	else
		r = check_peers(watch, nodes, n, e);
	free(nodes);
	return r;
}

static int check_store(struct watch *watch, uint64_t deadline_ns, struct error *e)
{
	_cleanup_(cleanup_backend_call_free) struct backend_call *call = backend_call_new(BACKEND_PROBE, "");
	int r = call ? backend_call_run(watch->rooms.backend, &call, deadline_ns, e) : -ENOMEM;

	if (r < 0)
		(void)error_prefix(e, "store");
	return r < 0 ? r : 0;
}

static int check_index(struct watch *watch, uint64_t deadline_ns, struct error *e)
{
	const struct view nothing = { 0 };
	struct bundle_entry *entries = NULL;
	size_t n = 0;
	bool more;
	int r = bundle_list(watch->rooms.bundles, view_str(watch->rooms.tenant), nothing, nothing, 1, deadline_ns,
			    &entries, &n, &more, e);

	bundle_entries_free(entries, n);
	if (r)
		(void)error_prefix(e, "index");
	return r;
}

static int check_all(struct watch *watch, uint64_t deadline_ns, struct error *e)
{
	int r = watch->rooms.joined(watch->rooms.arg, e);

	if (!r)
		r = check_nodes(watch, deadline_ns, e);
	if (!r)
		r = check_store(watch, deadline_ns, e);
	return r ? r : check_index(watch, deadline_ns, e);
}

static int tell_why(const struct watch *watch, struct error *e)
{
	return watch->result ? error_set(e, watch->result, "%s", watch->why.text) : 0;
}

int watch_ready(struct watch *watch, uint64_t deadline_ns, struct error *e)
{
	struct env *env = watch->rooms.env;

	while (watch->checking) {
		int r = wait_at(&watch->settled, deadline_ns);
		if (r)
			return error_set(e, r, "%s", error_meaning(r));
	}
	if (watch->checked && env_now(env) - watch->checked_ns < READY_KEPT_MS * NS_PER_MS)
		return tell_why(watch, e);
	watch->checking = true;
	memset(&watch->why, 0, sizeof(watch->why));
	watch->result = check_all(watch, deadline_ns, &watch->why);
	if (watch->result && !*watch->why.text)
		(void)error_set(&watch->why, watch->result, "%s", error_meaning(watch->result));
	watch->checked = watch->result != -ECANCELED;
	watch->checked_ns = env_now(env);
	watch->checking = false;
	wake_all(&watch->settled);
	return tell_why(watch, e);
}

static int is_ready(void *arg, uint64_t deadline_ns, struct error *e)
{
	return watch_ready(arg, deadline_ns, e);
}

/* ---- life ------------------------------------------------------------------------------------------------------------------- */

int watch_new(const struct watch_rooms *rooms, const char *address, struct watch **ret, struct error *e)
{
	struct watch *watch = calloc(1, sizeof(*watch));
	const struct door_http_options options = { .address = address,
						   .gauges = set_gauges,
						   .measure = measure,
						   .ready = is_ready,
						   .arg = watch };

	if (!watch)
		return error_set(e, -ENOMEM, "no memory for the HTTP door");
	watch->rooms = *rooms;
	watch->since_ns = env_now(rooms->env);
	waitplace_init(&watch->settled);
	pthread_mutex_init(&watch->lock, NULL);
	int r = door_http_new(rooms->env, &options, &watch->http, e);
	if (r) {
		watch_free(watch);
		return r;
	}
	*ret = watch;
	return 0;
}

const char *watch_address(const struct watch *watch)
{
	return door_http_address(watch->http);
}

void watch_stop(struct watch *watch)
{
	if (watch->http)
		door_http_stop(watch->http);
}

void watch_free(struct watch *watch)
{
	if (!watch)
		return;
	door_http_free(watch->http);
	pthread_mutex_destroy(&watch->lock);
	free(watch);
}
