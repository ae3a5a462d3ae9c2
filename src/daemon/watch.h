/*
 * daemon/watch.h: what those who watch a daemon see: its gauges, whether it is ready, and the HTTP door that tells both.
 */
#pragma once

#include <pthread.h>

#include "bundle/bundle.h"
#include "cluster/cluster.h"
#include "door/http.h"
#include "door/native.h"
#include "group/group.h"

#define READY_KEPT_MS 1000 /* an answer of /readyz is given again for so long: it costs a write to the store */

struct watch_rooms {
	struct env *env;
	struct cluster *cluster;
	struct pool *const *pools; /* kept */
	unsigned n_pools;
	struct backend *backend;
	struct bundles *bundles;
	struct groups *groups;
	struct door_native *door; /* the first */
	const char *tenant;
	int (*joined)(void *arg, struct error *e); /* 0, or why this node has not joined yet */
	void *arg;
};

struct watch {
	struct watch_rooms rooms;
	struct door_http *http;
	uint64_t since_ns;

	pthread_mutex_t lock; /* of pids, which the loop writes and the door's threads read */
	int32_t pids[DOOR_SESSIONS_MAX];
	unsigned n_pids;

	bool checked, checking;
	uint64_t checked_ns;
	struct waitplace settled;
	int result;
	struct error why;
};

/* By a signal, or by a debugger. Reads /proc. */
bool watch_is_stopped(int32_t pid);
/* Opens the door at @address. */
int watch_new(const struct watch_rooms *rooms, const char *address, struct watch **ret, struct error *e);
const char *watch_address(const struct watch *watch); /* "ADDRESS:PORT" */
/* 0, or in words what this node cannot use: it has not joined, no peer, meta engine, store, index. Waits in a fiber. */
int watch_ready(struct watch *watch, uint64_t deadline_ns, struct error *e);
void watch_stop(struct watch *watch); /* waits; before the rooms are stopped */
void watch_free(struct watch *watch); /* accepts NULL; stopped */
