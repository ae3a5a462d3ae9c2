/*
 * door/native.h: the daemon's socket for libforebay.
 */
#pragma once

#include "bundle/bundle.h"
#include "cluster/cluster.h"
#include "group/group.h"
#include "store/store.h"

struct door_native;

struct door_native_options {
	const char *socket; /* path; mode 0660 */
	const char *tenant; /* whose data its clients see */
	struct cluster *cluster;
	struct store *store;
	struct bundles *bundles;
	struct groups *groups;
	/* 0, or why requests are not served yet, in words. */
	int (*ready)(void *arg, struct error *e);
	void *arg;
};

/* Listens. Words name the socket: a live owner (-EADDRINUSE), a path that cannot be had. */
int door_native_new(struct env *env, const struct door_native_options *options, struct door_native **ret,
		    struct error *e);
void door_native_stop(struct door_native *door); /* waits: closes every session */
void door_native_free(struct door_native *door); /* accepts NULL */
unsigned door_native_clients(const struct door_native *door);
