/*
 * daemon/daemon.h: one node: wires the rooms together, in order, and takes them down in the reverse order. The same for the real
 * daemon (main.c) and the simulated ones (sim/).
 */
#pragma once

#include "backend/backend.h"
#include "base/bytes.h"
#include "base/error.h"
#include "env/env.h"
#include "meta/meta.h"

struct daemon;

/* Whoever connects to the socket is this tenant, and sees nothing of the others. */
struct daemon_tenant {
	const char *name, *socket;
	const uint32_t *users; /* who may connect: kept; n_users 0: whoever may open the socket */
	unsigned n_users;
	uint64_t pool_bytes; /* its own room */
};

struct daemon_options {
	const char *node, *domain, *cluster, *listen;
	const struct daemon_tenant *tenants; /* at least one, at most GROUPS_TENANTS_MAX */
	unsigned n_tenants;
	uint32_t admin;		  /* this user and root may do what concerns all tenants, where there are several */
	struct view key;	  /* the cluster's, which peers prove; empty: they prove nothing */
	struct backend *backend;  /* the daemon's from here on, also when daemon_new fails */
	struct meta *meta;	  /* embedded engine, likewise; NULL: */
	const char *meta_address; /* of the node that has it */
	const char *http;	  /* where those who watch reach it (door/http.h); NULL or "": nowhere */
	bool (*is_stopped)(int32_t pid); /* of a client's process; NULL: none is */
	uint64_t store_rate;
	bool rebuild; /* make the index again from the store before anything else */
};

/* Opens everything; what fails names the setting. *ret is set in any case but -ENOMEM, to be stopped and freed. Begins to join the cluster in a fiber of its own; until that has succeeded, clients
 * are answered why not. */
int daemon_new(struct env *env, const struct daemon_options *options, struct daemon **ret, struct error *e);
/* 0: it has joined; else why not yet, in words. */
int daemon_ready(const struct daemon *daemon, struct error *e);
/*
 * Waits in a fiber, before daemon_stop(): no new groups and saves; what is captured becomes durable until the deadline. Returns how many
 * saves were not, which the log names. Everything else is served as before.
 */
unsigned daemon_drain(struct daemon *daemon, uint64_t deadline_ns);
/*
 * Waits in a fiber: refuses new clients, ends what is under way. -ETIMEDOUT: after that time store or index are still at work on what nobody
 * waits for, and touch the daemon's memory: it is not to be freed, the process just ends.
 */
int daemon_stop(struct daemon *daemon, unsigned patience_ms);
void daemon_free(struct daemon *daemon);		      /* accepts NULL; after daemon_stop() */
struct groups *daemon_groups(const struct daemon *daemon);    /* NULL: not yet; for tests that look inside */
const char *daemon_address(const struct daemon *daemon);      /* where peers reach it, with the port that it got */
const char *daemon_http_address(const struct daemon *daemon); /* likewise, over HTTP; "": nowhere */
