/*
 * daemon/config.h: what an administrator sets, by file (INI: section-less or [forebayd], then [tenant NAME]) and by flags; flags win.
 *
 * CONFIG_TABLE is the one list: it yields the struct, the parser, `forebayd --help`, and the table of the manual page.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

#define CONFIG_TEXT_MAX 4096 /* bytes of a value */

/*        name        kind  default                help */
#define CONFIG_TABLE(X)                                                                                            \
	X(node, TEXT, "", "this node's name: letters, digits, '.', '_', '-'; default: the host's name")            \
	X(domain, TEXT, "", "its failure domain: copies lie in different ones; default: the node's name")          \
	X(cluster, TEXT, "forebay", "the cluster's name; daemons of another are refused")                          \
	X(key, TEXT, "",                                                                                           \
	  "the file with the cluster's key, which peers prove to each other; without one listen is on loopback")   \
	X(listen, TEXT, "tcp:127.0.0.1:0",                                                                         \
	  "where peers reach it: tcp:ADDRESS:PORT on the compute network; port 0 picks one")                       \
	X(socket, TEXT, "/run/forebay/socket", "the socket for clients on this node, mode 0660")                   \
	X(tenant, TEXT, "default", "whose data clients of the socket see")                                         \
	X(users, USERS, "", "numbers of the users who may connect to it; default: whoever may open the socket")    \
	X(store, TEXT, "", "the store behind: dir:PATH, on a file system that all nodes share")                    \
	X(meta, TEXT, "", "the meta engine: lmdb:PATH on one node, tcp:ADDRESS:PORT of that node on the others")   \
	X(pool, SIZE, "1G", "DRAM for captures and cache, taken at start: bytes, or with K, M, G, T")              \
	X(http, TEXT, "",                                                                                          \
	  "where /metrics, /healthz and /readyz are served: PORT on 127.0.0.1, or ADDRESS:PORT; default: nowhere") \
	X(store_rate, SIZE, "0", "bytes per second of this node's way to the store; 0: equal on all nodes")        \
	X(workers, COUNT, "0",                                                                                     \
	  "threads that hash, and as many again for the store; 0: one per core, at least 2, at most 16")           \
	X(log, LEVEL, "info", "error, warn, info or debug")                                                        \
	X(drain_ms, MILLIS, "60000", "how long SIGTERM waits until what is captured is durable; 0: not at all")

#define CONFIG_TENANTS_MAX 63  /* beside the one of `socket` */
#define CONFIG_USERS_MAX   256 /* of one tenant */

struct config_users {
	uint32_t *ids; /* NULL: n is 0 */
	unsigned n;
};

/* A section [tenant NAME]. */
struct config_tenant {
	char *name, *socket;
	struct config_users users;
	uint64_t pool;
};

#define CONFIG_FIELD_TEXT   char *
#define CONFIG_FIELD_SIZE   uint64_t
#define CONFIG_FIELD_COUNT  uint64_t
#define CONFIG_FIELD_LEVEL  uint64_t
#define CONFIG_FIELD_MILLIS uint64_t
#define CONFIG_FIELD_USERS  struct config_users

struct config {
#define X(name, kind, value, help) CONFIG_FIELD_##kind name;
	CONFIG_TABLE(X)
#undef X
	struct config_tenant *tenants; /* beside the one that the settings above speak of */
	unsigned n_tenants;
};

/* All defaults. */
int config_init(struct config *config);
void config_fini(struct config *config);
/* One setting; -EINVAL with words: what is allowed. */
int config_set(struct config *config, const char *name, const char *value, struct error *e);
/* A whole file; errors begin with "FILE:LINE: ". */
int config_read(struct config *config, const char *path, struct error *e);
/* Completes defaults that depend on the machine, checks what belongs together. Errors name the setting. */
int config_check(struct config *config, struct error *e);

struct config_entry {
	const char *name, *value, *help; /* value: the default */
};
extern const struct config_entry config_entries[]; /* ends with name NULL */
