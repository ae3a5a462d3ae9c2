/*
 * group/group.h: grouped saves and loads, as the doors see them. START READING HERE; then save.c (the coordinator's itinerary),
 * member.c (a node's part in it), gather.c and reader.c (loads).
 *
 * A group is the ranks of one job. Each rank is a client of its node's daemon (the *member* side); one daemon, the one that holds
 * the group's lease, is its *coordinator*. Member and coordinator talk by cluster calls only, also when they are the same daemon.
 *
 * What a rank is told (grants, completed stages, blocks to read) goes through its `rank_events`; these never wait.
 */
#pragma once

#include "bundle/bundle.h"
#include "cluster/cluster.h"
#include "store/store.h"
#include "wire/message.h"

#define GROUP_NAME_MAX	   200 /* bytes of UTF-8, also of a run */
#define GROUP_RANKS_MAX	   65536
#define GATHER_TIMEOUT_MS  600000	       /* a rank that has not offered by then fails the save */
#define DRAIN_TIMEOUT_MS   600000	       /* captured to durable; of a save that goes through: a wave */
#define THROUGH_TIMEOUT_MS UINT64_C(604800000) /* all of it: a week */
#define LIFE_TIMEOUT_MS	   (GATHER_TIMEOUT_MS + UINT64_C(3) * DRAIN_TIMEOUT_MS) /* of any other */
#define LEASE_TTL_MS	   5000

struct groups;
struct rank; /* one client's membership in one group */

struct rank_events {
	/* Sends a frame to the client: GRANT, STAGE, BLOCKS, LOAD_END, with the client's number of the save or load.
	 * An empty @body: there was no memory for what is to be said, and who waits for it would wait for ever: the session ends. */
	void (*push)(void *arg, enum msg_type type, uint64_t number, struct view body);
	void *arg;
};

#define GROUPS_TENANTS_MAX 64

/* @stores: of each tenant that this node serves, at least one, at most GROUPS_TENANTS_MAX. */
int groups_new(struct env *env, struct cluster *cluster, struct store *const *stores, unsigned n_stores,
	       struct bundles *bundles, struct groups **ret);
/*
 * Before groups_stop(), waits: takes nothing new from now on (-ESHUTDOWN), fails what is not captured, and lets what is become durable until
 * the deadline. Returns how many saves were not by then, after naming each in the log.
 */
unsigned groups_drain(struct groups *groups, uint64_t deadline_ns);
void groups_stop(struct groups *groups);		  /* waits: saves under way are failed, leases given back */
void groups_free(struct groups *groups);		  /* accepts NULL */
unsigned groups_coordinated(const struct groups *groups); /* how many groups this node coordinates */

/* Waits until every rank of the run has joined. The caller's fiber may be cancelled (the client is gone). */
int group_join(struct groups *groups, struct view tenant, const struct msg_join *join, const struct rank_events *events,
	       uint64_t deadline_ns, struct rank **ret, struct msg_join_reply *ret_reply, struct error *e);
/* The rank left or died (@words says which): a save that it has not captured fails on all ranks, naming it. Frees @rank; no event
 * comes after it. Spans that it could still be writing to are kept until the save is over. */
void group_leave(struct rank *rank, const char *words);

/* This rank's offer of a save (the client's number save->save). Waits until the group has taken it in. */
int group_save(struct rank *rank, const struct msg_save *save, uint64_t deadline_ns, struct msg_save_reply *ret_reply,
	       struct error *e);
/* Blocks that the rank has filled. Malformed or unknown ones fail the save. */
int group_filled(struct rank *rank, const struct msg_filled *filled, struct error *e);
void group_cancel(struct rank *rank, uint64_t number); /* a save */
/* The rank will not offer that step, @words says why or is empty: its save fails on all ranks, whether they have offered or will. */
void group_abandon(struct rank *rank, struct view bundle, uint64_t step, struct view words);
/* It will not take its part in its next load of that version, @words says why: that load ends on all ranks, in which they have asked or
 * will. -ENOMEM: they cannot be told, unless the rank leaves. */
int group_forgo_load(struct rank *rank, const struct version *version, struct view words);
/* A rank of this node will not join that run, @words says why: nor need the others of it wait for that. Waits. */
int group_forgo_join(struct groups *groups, struct view tenant, struct view group, struct view run, uint32_t rank,
		     struct view words, uint64_t deadline_ns, struct error *e);

/*
 * The newest version that the rank's group, this run of it or one before, has staged and not yet published: its blocks are read from
 * memory, from the nodes that hold them. Its number is 0. 0; -ENOENT: none is between staged and durable.
 */
int group_open_staged(struct rank *rank, struct view bundle, uint64_t deadline_ns, struct version **ret,
		      struct error *e);

/*
 * A load: @rank NULL is ungrouped (then @events, else the rank's). Pushes BLOCKS as verified blocks come, until all wants are
 * served, then LOAD_END; the client answers each block by its token. Returns when it has ended. Each load is one fiber of the door.
 *
 * group_load_new() checks the wants against the version. It waits where there are more than a few: loads of one rank are numbered in the
 * order in which it returns, so the caller begins one after the other.
 */
struct reader;
int group_load_new(struct groups *groups, struct rank *rank, const struct rank_events *events, struct version *version,
		   const struct msg_load *load, uint64_t deadline_ns, struct reader **ret, struct error *e);
int group_load_run(struct reader *reader, uint64_t deadline_ns, struct error *e);
void group_load_refuse(struct reader *reader, int code); /* instead: the client is told that it failed */
void group_load_release(struct reader *reader, struct list_view tokens);
void group_load_free(struct reader *reader); /* unpins whatever the client still had */

/* For STATUS: appends elem_save_status of the tenant's saves that this node takes part in. */
int groups_status(struct groups *groups, struct view tenant, struct list_buf *saves);
