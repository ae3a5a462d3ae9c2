/*
 * cli/place.h: the folder below which `forebay up` keeps a cluster.
 *
 *	D/cluster.json		what was asked for, and the port of the node with the meta engine; written last when D is new
 *	D/key			the cluster's key: random, for its owner's eyes only
 *	D/env			for shells: FOREBAY_SOCKET and FOREBAY_HTTP of node 0
 *	D/lock			held while an `up` or `down` works on D
 *	D/store, D/meta		unless the store or the meta engine are elsewhere
 *	D/node-I/		config, socket, http, log, pid, started
 *
 * Configurations are made from cluster.json at each `up`. All paths are absolute.
 */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define PLACE_NODES_MAX 64

struct place {
	char *dir;			  /* absolute */
	bool is_new;			  /* there is no cluster.json yet */
	bool is_made;			  /* the folder is of this place_open() */
	bool has_key;			  /* D/key is there */
	bool made_key;			  /* and is of this place_prepare() */
	bool lacks_index;		  /* D/meta was not there in place_prepare() */
	int lock_fd;			  /* -1: not held */
	uint64_t nodes, port, pool_bytes; /* pool_bytes 0: fitted to the machine at each start */
	char *store, *meta, *cluster;	  /* URLs; the cluster's name */
};

/* Takes the folder's lock, waiting up to @wait_ms for another command to let go of it, and reads cluster.json if there is one.
 * With @create the folder is made. Messages name the folder. */
int place_open(const char *dir, bool create, int wait_ms, struct place *ret, struct error *e);
void place_fini(struct place *place);
/* Says where node @node serves HTTP ("ADDRESS:PORT"): D/node-N/http, and for node 0 in D/env. */
int place_tell_http(const struct place *place, uint64_t node, const char *address, struct error *e);
/* Makes folders, configurations, env and cluster.json. Chooses the port, unless the one at hand is free or a node @runs. */
int place_prepare(struct place *place, bool runs, struct error *e);

/*
 * A first `up` was refused: takes away what it was asked for, so that the next one is a first one, too. Logs stay for whoever looks for the
 * cause. @ret_begun not empty: a node has joined, and the cluster's generation is in the store, there; then all stays, the index belongs
 * to it.
 */
void place_undo(struct place *place, char ret_begun[PATH_MAX]);

char *place_node_path(const struct place *place, uint64_t node,
		      const char *name); /* D/node-N/NAME, or D/node-N for "" */

/* "dir:x" or "lmdb:x" with its path made absolute; other URLs as they are. NULL: no memory. */
char *place_absolute_url(const char *url);
/* Single-quoted for a shell. NULL: no memory. */
char *place_shell_quote(const char *text);
/* Whether @value can stand in a configuration file: in a line of bounded length, nothing that its reader takes for a comment. */
int place_check_value(const char *name, const char *value, struct error *e);
/* What each of @nodes may take: a quarter of the memory that is available divided among them, from 64 MiB to 1 GiB. */
uint64_t place_fit_pool(uint64_t available_bytes, uint64_t nodes);
