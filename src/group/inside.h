/*
 * group/inside.h: what the files of this room share. Nothing outside of src/group includes it.
 */
#pragma once

#include "base/map.h"
#include "env/fiber.h"
#include "group/catalog.h"
#include "group/forgone.h"
#include "group/group.h"
#include "group/nth.h"
#include "group/state.h"
#include "group/steps.h"
#include "group/trace.h"
#include "group/turn.h"
#include "plan/save.h"
#include "store/patience.h"

#define GROUPS_MAGIC	   0x73706746
#define SETTLE_MS	   5000 /* for telling a node that a save has failed */
#define LOCATE_RETRY_MS	   100
#define ENGINE_PATIENCE_MS 2000 /* for the engine, before the log says that it is waited for; the wait goes on */

/* Bundles whose last structure a group keeps, on either side: a job may save each step under a name of its own. */
#define REMEMBERED_MAX 8

#define NAMES_IN_ERROR 8 /* ranks that an error names */

#define FAILED_MAX 64 /* saves of which a node remembers that it was told of their failure */

/* How a save ended, for members that did not hear it. */
struct ended_save {
	uint64_t save_id, version, epoch;
	enum save_state state;
	int code;
	char words[160];
};
#define ENDED_MAX 64 /* that a coordinator remembers */

/* What a tenant has of this node: room of its own, and turns of its own to take it in. No tenant waits for another's. */
struct share {
	struct store *store;
	struct turns turns;
};

struct groups {
	uint32_t magic;
	struct env *env;
	struct cluster *cluster;
	struct share *shares;
	unsigned n_shares;
	struct bundles *bundles;
	uint64_t token;		/* this daemon as a holder of leases */
	struct nursery flows;	/* coordinators' saves and leases */
	struct map members;	/* struct mgroup by tenant, group, incarnation */
	struct map coordinated; /* struct cgroup by tenant, group */
	struct map saves;	/* struct msave by save id, once it has one */
	struct list msaves;	/* all struct msave of this node */
	struct {
		uint64_t save_id;
		uint32_t code; /* positive */
	} failed[FAILED_MAX];  /* saves whose failure was told here last */
	unsigned n_failed;     /* ever */
	struct ended_save ended[ENDED_MAX];
	unsigned n_ended; /* ever; the newest overwrites the oldest */
	struct peer_watch watch;
	bool draining; /* nothing new is taken */
	uint64_t
		given_back; /* the highest epoch of a lease that was: a word of that which comes late ends no newer one */
	struct traces traces;
	struct patience copying; /* what blocks from peers take */
	bool listing;		 /* a worker finds what blocks a large load needs */
	struct waitplace listed;
};

/* ---- group.c: keys, notes -------------------------------------------------------------------------------------------------- */

/* -ENOENT: this node does not serve that tenant. */
int groups_share(const struct groups *groups, struct view tenant, struct share **ret, struct error *e);
/* tenant 0 group [0 incarnation]: appended to @out. */
int group_key(struct buf *out, struct view tenant, struct view group, uint64_t incarnation);
#define ENGINE_PLACE_MAX 224
/* Where the meta engine is, for words: "on node N at ADDRESS". */
void engine_place(const struct groups *groups, char ret[ENGINE_PLACE_MAX]);
/* One message to a coordinator from a fiber of its own, that nobody waits for. Consumes @body. 0, -ENOMEM. */
int tell_coordinator(struct groups *groups, const char *node, enum msg_type type, struct buf *body);

/* ---- drain.c ---------------------------------------------------------------------------------------------------------- */

int groups_open(const struct groups *groups, struct error *e); /* 0, or -ESHUTDOWN: this node takes nothing new */

/* ---- coordinator.c --------------------------------------------------------------------------------------------------- */

enum rank_presence { RANK_ABSENT, RANK_HERE, RANK_LOST, RANK_FORGONE };

struct crank {
	enum rank_presence presence;
	char node[NODE_NAME_MAX + 1];
	uint64_t joiner; /* here: its own number; 0: of an older daemon */
	uint32_t n_asks; /* of its, that wait for the others */
	char gone[96];	 /* lost or forgone: how */
};

/* A rank that will not join a run, which may not have begun when that is told. */
struct absentee {
	char run[GROUP_NAME_MAX + 1]; /* "": none */
	uint32_t rank;
	char node[NODE_NAME_MAX + 1], why[96];
};
#define ABSENTEES_MAX 8 /* that a group remembers */

/* A group as its coordinator knows it: one run's ranks, the saves and loads under way, and the last plan of each bundle. */
struct cgroup {
	uint32_t refs;
	struct groups *groups;
	char *tenant, *name, *run;
	struct buf key; /* in groups->coordinated */
	struct buf lease_key, lease_record;
	uint64_t epoch, incarnation;
	uint32_t size, n_here;
	struct crank *ranks;
	bool lost;			/* the lease went to somebody else: no new work */
	bool recovering;		/* what the last coordinator left is being looked for */
	char before[NODE_NAME_MAX + 1]; /* that one */
	bool complete;			/* every rank of this run has been here at once */
	bool entering;			/* a fiber counts a new run */
	struct waitplace changed;	/* ranks, joins */
	struct list saves;		/* struct csave */
	struct list loads;		/* struct cload */
	struct map remembered;		/* struct recipe by bundle */
	struct steps steps;		/* of this run */
	struct forgone forgone;		/* likewise */
	struct absentee absentees[ABSENTEES_MAX];
	unsigned n_absentees; /* ever; the newest overwrites the oldest */
};
struct cgroup *cgroup_get(struct cgroup *group);
void cgroup_put(struct cgroup *group); /* accepts NULL */

void coordinator_serve(struct groups *groups); /* registers the calls that members make */
struct cgroup *coordinator_find(struct groups *groups, struct view tenant, struct view name, uint64_t incarnation);
/* The ranks of that node are gone, from all groups. */
void coordinator_node_lost(struct groups *groups, const char *node);
/* 0, or -ERR_ERANK naming a rank of the run that is gone: what waits for all of them would wait in vain. */
int coordinator_whole(const struct cgroup *group, struct error *e);
void coordinator_stop(struct groups *groups);
/* NULL: this node does not coordinate it. */
struct cgroup *coordinator_of(struct groups *groups, struct view tenant, struct view group);
const struct csave *coordinator_save(const struct cgroup *group, uint64_t save_id); /* NULL: not under way here */
/* Is this node still the one that decides? An engine that is away is waited for. -ERR_ESTALEEPOCH: it is not; else why nobody can tell. */
int coordinator_confirm(struct cgroup *group, uint64_t deadline_ns, struct error *e);
const struct ended_save *coordinator_ended(const struct groups *groups, uint64_t save_id); /* NULL: not known */
bool coordinator_knows(const struct cgroup *group, uint64_t save_id); /* under way, or ended lately */
/* The group's lease is somebody else's by now, at @epoch: what this node does for it as its coordinator ends. */
void coordinator_overtaken(struct groups *groups, struct view tenant, struct view group, uint64_t epoch);
/* Has somebody told, once, that the engine does not answer: when @timer, which is the caller's, fires. */
struct vigil {
	struct timer timer;
	struct loop *loop;
	bool told;
};
bool engine_is_silent(int r); /* it failed since the engine does not answer */
/* Becomes the group's coordinator or learns who is: its node's name and the epoch. Waits. -EAGAIN: who has the lease is not there yet, or
 * no more; -ETIMEDOUT, -EHOSTDOWN: the engine does not answer. @vigil may be NULL. */
int coordinator_seek(struct groups *groups, struct view tenant, struct view group, uint64_t deadline_ns,
		     struct vigil *vigil, char ret_node[NODE_NAME_MAX + 1], uint64_t *ret_epoch, struct error *e);
int coordinator_locate(struct groups *groups, struct view tenant, struct view group, uint64_t deadline_ns,
		       char ret_node[NODE_NAME_MAX + 1], uint64_t *ret_epoch, struct error *e);

/* ---- recipe.c -------------------------------------------------------------------------------------------------------- */

/* What a save's structure comes to; kept for the next save of the same structure. Counted; immutable once planned. */
struct recipe {
	uint32_t refs;
	uint64_t structure;   /* of all ranks' lists and of what shapes the plan: nodes, copies */
	struct buf *lists;    /* each rank's items, encoded; the catalog's views point into them */
	uint64_t *structures; /* each rank's */
	uint32_t n_ranks, copies;
	uint32_t block_bytes; /* that pieces are cut into */
	uint64_t room_bytes;  /* in which all of it must lie at once; 0: it need not */
	uint32_t *rank_node;
	char (*nodes)[NODE_NAME_MAX + 1]; /* that the plan numbers, sorted */
	struct plan_node *plan_nodes;
	size_t n_nodes;
	struct catalog catalog;
	struct save_plan plan;
};
#define RATE_UNKNOWN 1000000000 /* bytes per s that a node counts with whose way to the store has no configured rate */
struct recipe *recipe_new(uint32_t n_ranks); /* NULL: no memory */
void recipe_put(struct recipe *recipe);	     /* accepts NULL */
int recipe_set_nodes(struct recipe *recipe, const struct crank *ranks, const struct node_info *infos, size_t n,
		     struct error *e);
uint64_t recipe_structure(const struct recipe *recipe);
/* Catalog and plan, on a worker; waits. Errors name items and ranks. */
int recipe_make(struct env *env, struct recipe *recipe, struct error *e);

/* ---- fan.c: one call to many nodes ------------------------------------------------------------------------------------- */

struct fan_call {
	const char *node;
	size_t index; /* the caller's */
	struct buf body, answer;
	int result;
	struct error error;
	bool spare;	  /* it has no ranks: what is lost with it others can hold */
	uint64_t took_ns; /* out, and for whoever traces it: */
	uint64_t bytes;	  /* that the node was to move */
	bool over;	  /* out, while others are still under way */
};
/* Calls all of them at once and waits for all; at the first failure the others are cancelled and it is returned, with the node's
 * name before its words. Bodies are freed by fan_fini(). */
int fan_out(struct groups *groups, enum msg_type type, struct fan_call *calls, size_t n, uint64_t deadline_ns,
	    struct error *e);
/*
 * As fan_out, but nodes that are lost, or do not answer in time, stop nobody: their calls' results say so, by fan_lost(). Any other
 * failure is returned.
 */
int fan_survive(struct groups *groups, enum msg_type type, struct fan_call *calls, size_t n, uint64_t deadline_ns,
		struct error *e);
bool fan_lost(const struct fan_call *call);
/* One of them alone, in this fiber; and its failure in words. */
void fan_one(struct groups *groups, enum msg_type type, struct fan_call *call, uint64_t deadline_ns);
int fan_failed(const struct fan_call *call, struct error *e);
/* As fan_out, but a failure does not stop the others and is not one: for telling everybody something. Who refuses an epoch is told once more. */
void fan_tell(struct groups *groups, enum msg_type type, struct fan_call *calls, size_t n, uint64_t deadline_ns);
struct fan_call *fan_new(size_t n);
void fan_free(struct fan_call *calls, size_t n); /* accepts NULL */

/* ---- member.c: a node's part in saves ---------------------------------------------------------------------------------- */

struct structure { /* a rank's list of items, remembered under its number */
	uint32_t refs, n_items;
	uint64_t hash;
	struct buf items;
};

struct mgroup {
	uint32_t refs;
	struct groups *groups;
	struct share *share; /* its tenant's */
	char *tenant, *name;
	char coordinator[NODE_NAME_MAX + 1]; /* where ranks joined last, */
	uint64_t epoch;			     /* and its epoch */
	struct buf key;
	uint64_t incarnation;
	struct list ranks;	  /* struct rank, in order of their numbers */
	uint32_t n_ranks, n_gone; /* here; gone, and not joined again */
	uint32_t n_expected;	  /* that the coordinator counts here: some may not have heard of it yet */
	struct list saves;	  /* struct msave */
	struct map structures;	  /* struct structure by bundle and rank */
	struct map lists;	  /* struct kept_lists by bundle: what this node keeps for a successor */
	struct map parts;	  /* struct part by bundle: the node's part of the last plan */
	struct steps refused; /* those that failed here: a rank took them back, or wanted them otherwise than others */
	struct list loads;    /* struct mload */
	struct forgone forgone; /* those that a rank of this node does without */
};
/* The node's side of the group in that incarnation, with one reference more; NULL: no memory. */
struct mgroup *mgroup_obtain(struct groups *groups, struct view tenant, struct view name, uint64_t incarnation,
			     const char *coordinator);
void mgroup_put(struct mgroup *group);		       /* accepts NULL */
uint32_t mgroup_ranks_due(const struct mgroup *group); /* whose words are waited for */

#define RANK_MAGIC 0x6b6e7246
struct rank {
	uint32_t magic;
	struct list link;
	struct mgroup *group;
	uint32_t number;
	uint64_t joiner; /* of its G_JOIN */
	struct rank_events events;
	struct nths loads; /* that it has begun or forgone */
};

void member_serve(struct groups *groups); /* registers the calls that coordinators make */
void member_rank_left(struct rank *rank, const char *words);
void member_stop(struct groups *groups);

/* ---- orphan.c: saves of this node whose coordinator is gone ----------------------------------------------------------------- */

void orphan_coordinator_lost(struct groups *groups, const char *node);
bool orphan_any(const struct groups *groups, struct view tenant, struct view group);
/* The save's coordinator, on this node, was overtaken: the members here look for the one who finishes it. */
void orphan_overtaken(struct groups *groups, uint64_t save_id);

/* ---- a save, as the coordinator knows it --------------------------------------------------------------------------------- */

/* What the nodes reported of one block of the plan. */
struct block_report {
	struct digest digest;
	uint32_t crc, flags;
	uint64_t sample;
	uint32_t rank;		 /* that reported it first */
	bool reported, conflict; /* conflict: two ranks' bytes differ */
	uint32_t other;		 /* the rank that differs */
	/* once captured: nodes of the recipe whose verified copies of it count; none of a hole */
	uint32_t holders[PLAN_COPIES_MAX], n_holders;
};

/* Bits: at what a node is far behind the others. Packs are not given to it if another can have them, copies not asked of it likewise. */
enum slow_way {
	SLOW_WRITES = 1,
	SLOW_SENDS = 2,
};

struct node_state {
	char why[160]; /* it is lost */
	bool lost;     /* left out from here on, whatever becomes of it */
	bool joined;   /* holds copies that the plan did not name */
	bool keeps;    /* what a successor needs */
	unsigned slow; /* of enum slow_way */
};

struct csave {
	uint32_t refs;
	struct list link; /* in cgroup.saves */
	struct cgroup *group;
	char *bundle;
	uint64_t step, save_id, parent, incarnation;
	uint32_t copies, policy, flags;
	struct buf attributes; /* encoded elements, of rank 0 */
	uint32_t n_attributes;
	enum save_state state;
	struct recipe *recipe; /* while gathering: lists and structures of its own; then maybe the remembered one */
	bool remembered;
	struct crank *ranks; /* as they were when it began */
	bool *offered;
	uint32_t n_offered;
	struct waitplace changed;
	struct nursery flow;	       /* holds the itinerary; cancelled to stop it */
	int failed;		       /* why it was stopped from outside */
	bool root_due;		       /* the root may be put any moment: it is not dropped any more */
	bool ending;		       /* nothing stops it any more */
	struct error error;	       /* why it was, or how it ended */
	struct error run_error;	       /* of the itinerary: when it is stopped, that of the call that was cut short */
	struct block_report *reports;  /* one per block of the plan */
	struct node_state *nodes;      /* one per node of the recipe, once it is planned */
	unsigned n_lost, n_slow;       /* nodes of these */
	bool resumed;		       /* taken over from a coordinator that is gone */
	bool short_of_copies;	       /* fewer than R holders are to be had: staged comes with durable */
	struct publishing *publishing; /* publish.c's */
	uint64_t arena_bytes;	       /* for captures, on the node that has the least, */
	uint64_t arenas_bytes;	       /* and on all that have ranks together */
	struct slot slot;
	bool slot_open, slot_burned;
	uint64_t kept_slot; /* of a resumed save: that its last coordinator opened; 0: none that was told */
	uint64_t version, sent_bytes, stored_bytes, diverged_blocks, hole_bytes;
	uint64_t begun_ns, at_ns[SAVE_STATES]; /* when it entered each state */
	struct trace *trace;		       /* NULL: there was no memory for one */
};
struct csave *csave_new(struct cgroup *group, struct view bundle, uint32_t n_ranks); /* gathering; NULL: no memory */
void csave_put(struct csave *save);						     /* accepts NULL */

/* ---- offer.c: how saves begin, and what stops them ------------------------------------------------------------------------ */

int save_offer(struct cgroup *group, const struct msg_g_offer *offer, struct msg_save_reply *ret, struct error *e);
/* A rank cancelled it, maybe before anybody offered. Too late once all have captured: -EALREADY. */
int save_fail(struct cgroup *group, struct view bundle, uint64_t step, int code, const char *words);
/* Fails the saves of @group that need @rank and have not captured it. */
void save_rank_lost(struct cgroup *group, uint32_t rank, const char *words);
void save_node_lost(struct groups *groups, const char *node);
void save_stop(struct csave *save, int code, const char *words); /* unless it is over */
/* Stops saves that are not captured yet, or all. */
void save_abandon_all(struct cgroup *group, int code, const char *words, bool captured_too);
/* Ranks that come to its step later are told why it failed; a step that was skipped may be saved again. */
void save_mark_failed(const struct csave *save, int code);
/*
 * Room for @save on @node: drops the oldest save of its group that is captured, has not begun to publish and holds something there,
 * and waits for its end; *@ret_dropped false: there is none. 0, -ETIMEDOUT, -ECANCELED.
 */
int save_make_way(struct csave *save, const char *node, bool *ret_dropped, struct error *e);

/* The list with that number of nodes' names: list_buf_fini() it. */
int save_list_nodes(const struct csave *save, struct list_buf *names);
/* A node is left out of the save from here on: it is dead, silent, or another than before. */
void save_lose_node(struct csave *save, size_t node, const char *why);
void save_lose_called(struct csave *save, const struct fan_call *calls, size_t n); /* those that are lost */
/* A node is far behind the others at that: it is named in the log, once for each way, and to the ranks. One that is lost is not slow. */
void save_name_slow(struct csave *save, size_t node, enum slow_way way, const char *words);
/* -ERR_ENODE naming the node and the item: the last copy of @block is lost. */
int save_block_lost(const struct csave *save, size_t block, struct error *e);

/* ---- copies.c: until each block has R holders ------------------------------------------------------------------------------ */

/* From what was reported: whose copies count. */
void save_begin_holders(struct csave *save);
/* The node has a copy that counts, unless it is lost, or counts already. */
void save_add_holder(const struct csave *save, struct block_report *report, size_t node);
void save_forget_lost(struct csave *save); /* among the holders */
/*
 * What @node answers that was ordered to make copies: of which blocks, so many that are new, and who sent them. -EPROTO naming the node when
 * that cannot be.
 */
struct sources;
int copies_take(struct csave *save, size_t node, struct view answer, struct sources *sources, size_t *n_made,
		struct error *e);
/* Has copies made, again where a holder is lost, until each block has R holders, or as many as can be had (short_of_copies). */
int save_copy(struct csave *save, struct error *e);

/* ---- keep.c: what a successor needs to finish a save lies on other nodes before anybody is told `staged` ------------------- */

int save_keep(struct csave *save, struct error *e);
/* Tells the keepers which slot was opened: before anything can lie under its root's key. */
int save_keep_slot(struct csave *save, struct error *e);
int save_encode_keep(const struct csave *save, struct buf *out); /* whole */
/* The other way: a recipe, planned again (waits), and what was captured. -EPROTO. */
int keep_take_recipe(struct env *env, const struct msg_g_keep *keep, struct recipe *recipe, struct error *e);
int keep_take_reports(const struct msg_g_keep *keep, const struct recipe *recipe, struct block_report *reports);
void keep_serve(struct groups *groups);

/* ---- takeover.c: a successor finishes what the last coordinator left -------------------------------------------------------- */

int takeover_run(void *group); /* a fiber; takes over a reference */
void takeover_serve(struct groups *groups);
/* Of a resumed save: where its blocks are, and what became of the slot that was opened for it: *ret_published, as save->version. */
int takeover_find_holders(struct csave *save, bool *ret_published, struct error *e);

/* ---- staged.c: versions that are not durable yet ----------------------------------------------------------------------------- */

/* The save as a version without packs, for loads of it: the blocks' sizes. NULL with @ret_number, not 0: durable as that one. */
int staged_find(struct cgroup *group, uint64_t save_id, struct version **ret, uint64_t *ret_number);
void staged_serve(struct groups *groups);

/* ---- save.c: the itinerary ----------------------------------------------------------------------------------------------- */

int save_planned(struct csave *save); /* its recipe has a plan: makes room for what nodes report */
int save_life(void *arg);	      /* a fiber: the whole life of a struct csave, whose reference it takes over */
void save_enter(struct csave *save, enum save_state state);
int save_reach(struct csave *save, enum save_state state, struct error *e); /* and tells all nodes */
void save_remember(struct csave *save); /* its plan was good for a capture: the next save may start from it */
uint64_t save_drain_deadline(const struct csave *save);
/* Lets the ranks capture the blocks from @first to before @last. -ERR_EREPLICA when replicas differ, unless @hinted. */
int save_capture_blocks(struct csave *save, uint32_t first, uint32_t last, struct error *e);
/* Does @node, of the recipe, have ranks or hold something? The others never hear of the save. */
bool save_takes_part(const struct csave *save, size_t node);

/* ---- tell.c ---------------------------------------------------------------------------------------------------------------- */

/*
 * Tells every node that takes part that the save has come to @stage, or with @code how it ended. @must: a node that refuses fails it, and
 * one that does not answer is lost to it; else it is tried some times, and the others are told all the same.
 */
int save_tell(struct csave *save, enum save_state stage, int code, const char *words, bool must, struct error *e);

/* ---- publish.c ------------------------------------------------------------------------------------------------------------- */

/* Items and pieces of the catalog; the blocks' number. */
int publish_fill_items(const struct recipe *recipe, struct version *version);
/* Opens the slot, has the packs uploaded, publishes. From SAVE_STAGED to SAVE_DURABLE. */
int save_publish(struct csave *save, uint64_t deadline_ns, struct error *e);
/* The same in parts, for a save that goes through: the slot; then blocks of the plan, each once; then the root. */
int save_publish_begin(struct csave *save, uint64_t deadline_ns, struct error *e);
int save_publish_blocks(struct csave *save, size_t first, size_t last, uint64_t deadline_ns, struct error *e);
int save_publish_end(struct csave *save, uint64_t deadline_ns, struct error *e);
void publishing_free(struct publishing *publishing); /* accepts NULL */
void save_give_up_slot(const struct csave *save);    /* that it was opening when it failed, if any */
void save_forget_packs(const struct csave *save);    /* of a save that failed: what nobody will ever name is deleted */

/* ---- packs.c: which blocks are written, by which node, in which packs ------------------------------------------------------ */

struct packs;
struct packs *packs_new(struct csave *save, struct version *version); /* both outlive it; NULL: no memory */
void packs_free(struct packs *packs);				      /* accepts NULL */
/* Has the blocks from @first to before @last written; each once. When a node is lost or slow, by others that hold the same. */
int packs_write(struct packs *packs, size_t first, size_t last, uint64_t deadline_ns, struct error *e);
/* Deletes what was written, and may be; what fails is collection's. 0, -ECANCELED. */
int packs_forget(struct packs *packs, uint64_t deadline_ns);
int packs_list(struct packs *packs); /* in the version, with the places of its blocks: when all are written */

/* ---- watch.c: packs under way, of which a slow node's are taken back --------------------------------------------------------- */

struct upload {
	struct fan_call call; /* G_UPLOAD. index: the node's; bytes: the pack's */
	size_t pack;	      /* the caller's */
	bool may_move;	      /* others could write it */
	bool given_up;	      /* out: it was taken back, and its node is slow */
	struct uploads *all;  /* watch.c's, as the rest: */
	uint64_t begun_ns;
	unsigned batch; /* of its node */
	bool told;
};
struct uploads;
void upload_free(struct upload *upload);			       /* accepts NULL */
struct uploads *uploads_new(struct csave *save, uint64_t deadline_ns); /* NULL: no memory */
void uploads_free(struct uploads *uploads);			       /* stops what is under way */
/* It is under way then; taken over whatever comes back. */
int uploads_begin(struct uploads *uploads, struct upload **upload);
/*
 * Waits for one that ends: *@ret, which stays theirs; NULL: none is under way any more. That its node was lost is in its call, any other
 * failure is returned, with the node's name before its words.
 */
int uploads_next(struct uploads *uploads, struct upload **ret, struct error *e);

/* ---- through.c ------------------------------------------------------------------------------------------------------------- */

/* What pieces of the save are cut into, so that some waves of blocks fit into the smallest pool. */
uint32_t save_block_bytes(const struct csave *save);
/* Captures and stores it, wave after wave; from SAVE_RESERVING, with all parts at the nodes, to SAVE_DURABLE. */
int save_go_through(struct csave *save, struct error *e);

/* ---- gather.c ---------------------------------------------------------------------------------------------------------- */

void load_serve(struct groups *groups); /* registers the call that members make */
/* Ends the loads of @group that have no plan yet. */
void load_rank_lost(struct cgroup *group, uint32_t rank, const char *words);
void load_abandon_all(struct cgroup *group, int code, const char *words);
