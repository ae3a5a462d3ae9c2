/*
 * door/native.h: the way in for applications on this node: the protocol of wire/message.h on a unix socket.
 *
 * Parses, checks, hands over to group/, bundle/ and cluster/, and says what comes back; no policy. A session is one connection of one
 * process. It begins with HELLO, after which both arenas of the pool are shared with it, and ends when the connection does, when
 * it breaks the protocol, or when the process ends, whoever else may hold the socket: then its ranks leave their groups with words
 * that say which. Nothing that a client sends harms anybody but itself.
 */
#pragma once

#include "bundle/bundle.h"
#include "cluster/cluster.h"
#include "group/group.h"
#include "store/store.h"

/* Limits of one door, and of one session; beyond them -EBUSY. */
#define DOOR_SESSIONS_MAX	 1024
#define DOOR_SESSIONS_SHARED_MAX 896 /* seven eighths; the rest is for users who have fewer than DOOR_SESSIONS_FEW */
#define DOOR_SESSIONS_FEW	 8
#define DOOR_CALLS_MAX		 256  /* requests under way */
#define DOOR_TELLS_MAX		 4096 /* among them those that a client does not wait for; beyond it the session ends */
#define DOOR_RANKS_MAX		 256
#define DOOR_VERSIONS_MAX	 1024 /* open */
#define DOOR_LOADS_MAX		 256  /* under way, or not yet closed */

struct door_native;

struct door_native_options {
	const char *socket; /* path; mode 0660. Who may open it is one tenant: */
	const char *tenant;
	const uint32_t *users; /* ids of those who may come in: kept; n_users 0: whoever may open the socket */
	unsigned n_users;
	struct door_native *first; /* of this daemon's other tenants; NULL: this is the first door */
	bool alone;		   /* no other tenant is served, nor ever will be */
	uint32_t admin;		   /* this user and root may do what concerns all tenants: so may everybody if alone */
	struct cluster *cluster;
	struct groups *groups;
	struct bundles *bundles;
	struct store *store;
	/* 0, or why nothing but HELLO, PING, STATUS and REBUILD is served yet, in words; NULL: everything is. */
	int (*ready)(void *arg, struct error *e);
	/* Whether that process is stopped; may read what the kernel tells at once. NULL: none is. */
	bool (*is_stopped)(int32_t pid);
	void *arg;
};

/* Listens. Words name the socket: a live owner (-EADDRINUSE), a path that cannot be had. */
int door_native_new(struct env *env, const struct door_native_options *options, struct door_native **ret,
		    struct error *e);
unsigned door_native_clients(const struct door_native *first); /* sessions, of all doors */
unsigned door_native_stopped(const struct door_native *door);  /* of this one's, those whose process is stopped */
/* Their processes; at most DOOR_SESSIONS_MAX. Returns how many. */
unsigned door_native_pids(const struct door_native *first, int32_t pids[DOOR_SESSIONS_MAX]);
void door_native_tell_http(struct door_native *first,
			   const char *address); /* what STATUS tells of it; outlives the door */
void door_native_stop(struct door_native *door); /* waits: nobody comes in any more, and every session has ended */
void door_native_free(struct door_native *door); /* accepts NULL; stopped */
