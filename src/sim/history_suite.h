/*
 * sim/history_suite.h: one seed's life of a cluster: daemons, ranks that save and load, an operator, and what befalls them.
 *
 *	truth_suite.c		what was offered and promised, and the checks of whatever a client sees against it
 *	client_suite.c	a client process: libforebay's core over a simulated unix stream
 *	rank_suite.c	what ranks and the operator do
 *	rebuild_suite.c	the index made again beside all that
 *	rival_suite.c	a second engine on the same store
 *	zombie_suite.c	nodes that are taken for dead, and what a coordinator says that was overtaken
 *	history_suite.c	nodes, faults, the healing and the last judgement
 */
#pragma once

#include "base/box.h"
#include "base/error.h"
#include "base/point.h"
#include "client/core.h"
#include "group/state.h"
#include "sim/models.h"
#include "sim/world.h"

#define NODES_MAX     4
#define RANKS_MAX     6
#define STEPS_MAX     6
#define BUNDLES	      2
#define LABELS	      2
#define ITEMS_MOST    6
#define RULES_MAX     64 /* of a bundle */
#define NUMBERS_MAX   64 /* versions in a bundle */
#define TENANT	      "default"
#define HISTORY_STORE "/store" /* where it is a directory */

/* Counted over all seeds; none may stay at 0. */
#define DEED_TABLE(X)                                                          \
	X(SAVE_DURABLE, "a rank was told durable")                             \
	X(SAVE_FAILED, "a rank was told that a save failed")                   \
	X(SAVE_UNINDEXED, "a save was published but not indexed")              \
	X(SAVE_CANCELLED, "a rank cancelled a save")                           \
	X(REPLICA_REFUSED, "replicas that differ failed a save")               \
	X(REPLICA_DIVERGED, "replicas differed beyond the sample")             \
	X(STEP_REFUSED, "a step was saved twice")                              \
	X(POOL_REFUSED, "a save was larger than a pool")                       \
	X(LOAD_GROUPED, "a grouped load gave what was saved")                  \
	X(LOAD_ALONE, "an ungrouped load gave what was saved")                 \
	X(LOAD_FAILED, "a load failed")                                        \
	X(LABEL_SET, "a label was moved")                                      \
	X(VERSION_DELETED, "a version was deleted")                            \
	X(LISTED, "versions were listed")                                      \
	X(RUN_OVERTAKEN, "a run began while the last one lived")               \
	X(NODE_KILLED, "a node was killed at some time")                       \
	X(NODE_KILLED_AT_POINT, "a node was killed at a point")                \
	X(NODE_STOPPED, "a node was stopped in order")                         \
	X(CLIENT_KILLED, "a client was killed")                                \
	X(STORE_LOST_POWER, "the shared store lost power")                     \
	X(ENGINE_LOST, "the meta engine lost all and was rebuilt")             \
	X(DAMAGE_FOUND, "verify found a rotten byte")                          \
	X(RULE_SET, "a rule of what to keep was set")                          \
	X(RULE_DELETED, "a rule deleted a version")                            \
	X(COLLECTED, "collection freed an object")                             \
	X(FOLDED, "collection folded tombstones into a floor")                 \
	X(HISTORY_CALM, "a history without faults, in which all must succeed") \
	X(NODE_LOST, "one node was lost, and nothing else went wrong")         \
	X(NODE_CUT_OFF, "one node was cut off for a while, and nothing else")  \
	X(SAVE_OUTLIVED, "a save outlived a node that it lay on")              \
	X(SAVE_SKIPPED, "a save was skipped for want of room")                 \
	X(SAVE_SUPERSEDED, "a save was dropped for a newer one")               \
	X(SAVE_THROUGH, "a save went straight to the store")                   \
	X(ZOMBIE_REFUSED, "a node refused a coordinator that was overtaken")   \
	X(NODE_STOOD_STILL, "a node that was cut off stood still, too")        \
	X(DOMAIN_SHARED, "nodes shared a failure domain")                      \
	X(SCRIBBLED, "a rank wrote to what it had captured")                   \
	X(READER_RESPECTED, "a version was not deleted while it was open")     \
	X(PARENT_THREATENED, "somebody wanted to delete the parent of a save") \
	X(REBUILT, "the index was made again while all went on")               \
	X(REBUILD_CUT, "a node was killed while the index was made again")     \
	X(READER_OVER_REBUILD, "a version was open over a rebuild, and kept")  \
	X(MARK_FORGOTTEN, "a rebuild forgot a deletion, and a label was set")  \
	X(ROOT_PUT_BACK, "a root was damaged at a rebuild, and put back")      \
	X(RIVAL_REFUSED, "a second engine, and an older index, were refused")  \
	X(COPY_REFUSED, "a copy of the store was refused")                     \
	X(STORE_TAKEN_OVER, "another cluster took the store, and gave it back")

enum deed {
#define X(name, text) DEED_##name,
	DEED_TABLE(X)
#undef X
		DEEDS
};

struct history;
struct client;

struct coverage {
	uint64_t moves[SAVE_STATES][SAVE_STATES], points[POINTS], deeds[DEEDS], faults[FAULTS];
};

/* ---- coverage_suite.c: on stdout ---- */

unsigned coverage_print(const struct coverage *c); /* how often each thing was reached; how many never */
/* How long @n plays of a script took, from its last deed at a point to the end that it expects; the numbers lie @stride_bytes apart. */
void recovery_print(const uint64_t *took_ns, size_t stride_bytes, uint64_t n);

/* ---- truth_suite.c ---- */

struct attempt {     /* a save, as its ranks offer it: what it contains follows from these numbers alone */
	unsigned id; /* from 1; the version's attribute "save" */
	unsigned bundle;
	uint32_t ranks, copies, n_items;
	enum save_policy policy;
	uint64_t step, structure, content;
	uint64_t parent, base,
		changed;    /* items whose bit is not set have the content of the parent, whose content is base */
	bool hinted, again; /* again: its step was offered before */
	int liar;	    /* the rank whose replica has another byte; -1: none */
	uint64_t version;   /* 0: not known to be published */
	bool durable;	    /* somebody was told so */
	bool captured;	    /* and so on */
	bool skipped;
	bool unskipped; /* a rank was told that it ended otherwise */
	uint32_t
		superseded; /* the nodes (bits) of ranks that were told so, but those whose machine was lost with them */
	bool dropped;	    /* and nothing else can have had to do with it */
	bool over;	    /* a rank was told its end */
	bool disturbed; /* a run that began, a rank that cancelled, or a node that was lost may have had to do with its end */
	bool scribbled;	  /* some rank wrote to captured bytes before it was known to be durable */
	bool shown;	  /* somebody saw it */
	bool dying;	  /* deletion was asked for */
	uint64_t gone_ns; /* when it was confirmed; 0: it was not */
	bool wanted;	  /* ranks are about to load it: nobody deletes it */
	bool rotten;	  /* a stored byte was changed */
	bool tainted;	  /* it names a pack of another version in which that was done: maybe in a block of its own */
};

struct item {
	char name[8];
	unsigned number;
	uint32_t bits, flags;
	struct box whole;
	uint64_t seed; /* 0: all zero */
};
#define BOXES_MAX 2 /* of one item on one rank */

struct attempt *truth_attempt(struct history *h, unsigned bundle, uint64_t step, uint32_t ranks, uint64_t structure);
struct attempt *truth_version(struct history *h, unsigned bundle, uint64_t number); /* NULL: not known */
struct attempt *truth_some(struct history *h, unsigned bundle); /* one that should be there, whole; NULL */
#define TRUTH_HALF_POOL 32		      /* structure % 64: two such saves do not fit into a small pool at once */
bool truth_is_large(const struct attempt *a); /* its first item is a replica of which samples see a part */
/* May it be gone by now: by a deletion that was asked for, or by a rule that was set? */
bool truth_may_go(const struct history *h, const struct attempt *a);
bool truth_lies(const struct attempt *a);      /* replicas differ */
bool truth_lie_shows(const struct attempt *a); /* where every sample looks */
/* The item as @rank offers it, and its boxes there: how many. */
struct item truth_item(const struct attempt *a, unsigned i, uint32_t rank);
unsigned truth_boxes(const struct attempt *a, const struct item *item, uint32_t rank, struct box ret[BOXES_MAX]);
uint64_t truth_bytes(const struct item *item, const struct box *box);
void truth_fill(const struct attempt *a, const struct item *item, const struct box *box, uint32_t rank, uint8_t *bytes);
bool truth_equals(const struct attempt *a, const struct item *item, const struct box *box, const uint8_t *bytes);
/* The client learned of a version by its last call: the attempt that it is, or NULL after saying what is wrong. */
struct attempt *truth_seen(struct client *c, unsigned bundle, uint64_t number, uint64_t step,
			   struct list_view attributes);
void truth_published(struct history *h, struct attempt *a, uint64_t number, bool durable);
/* Its ranks, and what they are told, are no measure any more of what the nodes should have done: all saves so far. */
void truth_disturb(struct history *h);
bool truth_quiet(const struct history *h, const struct attempt *a); /* nothing has happened that it could fail by */
/* A rank of @node was told that it is captured (0), or how it ended: what all its ranks are told must go together. */
void truth_told(struct history *h, struct attempt *a, unsigned node, int r);
/* A machine is lost with its ranks: a successor need not keep to what only they have heard. */
void truth_unheard(struct history *h, unsigned node);

/* ---- client_suite.c ---- */

struct client {
	struct history *h;
	struct env *env;
	struct core *core;
	struct stream *stream;
	unsigned node;		/* whose daemon it is */
	struct waitplace place; /* woken by whatever happens */
	struct nursery nursery;
	struct arena arenas[4];
	unsigned n_arenas, captures; /* captures: which of them the daemon lets it write to */
	uint64_t asked_ns;	     /* when its last call began */
	uint64_t works;		     /* that it has begun: captures, mostly */
};
/* Connects to a node and greets: 0, or why not. Either way end it. */
int client_begin(struct client *c, struct history *h, struct env *env, const char *address);
void client_end(struct client *c);  /* waits, shielded; its loads, saves and groups are dropped by now */
void client_stir(struct client *c); /* after calls on its core */
/* The future's result. @limit_ms: if it is not over by then, the history has failed. -ECANCELED: the client was killed. */
int client_await(struct client *c, struct core_future *future, uint64_t limit_ms, const char *what);
/* Takes @body, encoded with the result @r. */
int client_call(struct client *c, enum msg_type type, struct buf *body, int r, uint32_t deadline_ms,
		struct buf *answer);
/* A label or a number in @spec; fills @ret_open, whose views lie in @answer. */
int client_open(struct client *c, unsigned bundle, const char *spec, uint64_t group, struct buf *answer,
		struct msg_open_reply *ret_open);
/* Loads boxes of @a and compares: as rank @rank of @ranks, or whole when @ranks is 0. */
int client_load(struct client *c, struct core_group *group, uint64_t handle, const struct attempt *a, uint32_t rank,
		uint32_t ranks);
void client_close(struct client *c, uint64_t handle);
/* Looks at the whole version: items, bytes. @a: what it must be. */
int client_read(struct client *c, unsigned bundle, const char *spec);
int client_list(struct client *c, unsigned bundle, struct buf *ret_text); /* checks; appends all that it says */

/* Collects now: what it found and freed is noted; packs that are missing fail the history. @ret_unclear: objects that were not understood. */
int client_collect(struct client *c, uint64_t *ret_unclear);

/* ---- rank_suite.c ---- */

int job_run(struct history *h, bool must); /* one run of a job: waits until its ranks are gone */
int operator_run(void *history);	   /* until cancelled */
int parent_errand(void *history);	   /* somebody wants to delete the parent of a save that is under way */
/* What an operator may do, each one call: what is refused by right, and was noted as such, is good. */
int operator_deed(struct client *c); /* any */
int operator_delete(struct client *c, struct attempt *a);
int operator_label(struct client *c, unsigned bundle, unsigned label, uint64_t number);
int operator_open_label(struct client *c, unsigned bundle, unsigned label);

/* ---- rebuild_suite.c ---- */

int rebuild_ask(struct client *c);	 /* `meta rebuild` */
int rebuilder_run(void *history);	 /* asks for it now and then, while others do what they do */
void rebuild_at_mark(struct history *h); /* a deletion is marked: maybe it is held up over a rebuild */
int rebuild_beside_damage(
	struct history *h); /* in a healthy world: a root is damaged, its parent deleted, and it is put back */

/* ---- rival_suite.c ---- */

int rival_run(void *history);		/* a second engine comes amid all that happens; in the end it is gone */
void rival_remember(struct history *h); /* what index and store are, before another life of the engine */
void rival_forget(struct history *h);
int rivals_refused(struct history *h); /* those of before, and an empty one */
/* In a healthy world: the other cluster is judged. Then the first one is to be started again, with a rebuild. */
int rival_takes_over(struct history *h, int (*judge)(struct history *h, const char *socket, struct buf *text),
		     struct buf *text);

/* ---- zombie_suite.c ---- */

struct node;

/* Nobody hears it for a while. With @still what it asks of the store happens later, too. */
void zombie_begin(struct node *n, bool still);
const struct node *zombie_coordinator(struct history *h); /* a node that coordinates; NULL: none */
/* Of the saves that are under way some node is called by a coordinator that is over: it must refuse. */
void zombie_call(struct history *h);

/* ---- history_suite.c ---- */

struct node {
	struct history *h;
	unsigned number, domain;
	char name[SIM_NAME_BYTES], listen[32], socket[32], domain_name[8];
	struct env *env;
	struct daemon *daemon;
	bool up, rebuild;
	uint64_t file_rate;	/* bytes per s of its way to the store; 0: as all others */
	struct waitplace place; /* woken when it was killed */
	struct nursery calls;	/* zombie_suite.c's, by its cluster */
};

struct person { /* a client process that may be killed */
	struct history *h;
	struct list link;
	struct env *env;
	unsigned node;
	struct nursery nursery;
};

struct history {
	struct world *world;
	struct coverage *coverage;
	char failure[512]; /* the first */
	bool calm;	   /* nothing is done to it: all must succeed */
	bool rivals;	   /* others want its store */
	bool rebuilds;	   /* somebody asks for rebuilds */
	bool gentle;	   /* and nothing else is done to it: who reads is respected, what fails does so for them */
	bool tight;	   /* and pools are small: saves press each other */
	bool mad;	   /* ranks write to what they have captured */
	bool fickle;	   /* ranks are slow, and cancel what others capture */
	bool one_loss;	   /* one node is lost, once: with two copies what was staged becomes durable */
	int lost;	   /* the domain of that node; -1: none yet */
	bool healed;
	struct node nodes[NODES_MAX];
	unsigned n_nodes, n_domains, n_runs, n_persons, serial;
	bool model_store;
	uint64_t pool_bytes;
	struct model_records *store, *engine;
	struct model_records *old_store, *old_engine; /* rival_remember() */
	struct nursery flows;
	struct nursery errands; /* of persons, until the healing */
	struct list persons;
	enum point point; /* where a node dies, the count-th time it is reached */
	unsigned point_count;
	struct attempt **attempts;
	unsigned n_attempts;
	struct {
		uint64_t possible[NUMBERS_MAX]; /* numbers that it may have; the first is certain if n is 1 */
		unsigned n;
	} labels[BUNDLES][LABELS];
	struct {
		uint64_t last, every;
	} rules[BUNDLES][RULES_MAX]; /* that may have been in force at some time */
	unsigned n_rules[BUNDLES];
	bool ruled; /* the operator of this history sets rules */
	bool scribbled;
	uint64_t staged_structure;
	unsigned rebuilds_asked;  /* that are under way */
	bool half_rebuilt;	  /* maybe: the next start must ask for one */
	struct attempt *deleting; /* somebody asks for it at this moment */
	struct attempt *held_up;  /* a deletion of it is marked, and goes on when a rebuild is over */
	unsigned deleting_node;
};

extern const char *const bundle_names[BUNDLES], *const label_names[LABELS], *const deed_names[DEEDS],
										    *const deed_texts[DEEDS];

void history_fail(struct history *h, const char *format, ...) __attribute__((format(printf, 2, 3)));
void history_deed(struct history *h, enum deed deed);
void history_lose_power(struct history *h);
void history_kill_node(struct history *h, unsigned node);
int history_sleep(struct history *h, uint64_t most_ms); /* a random time */
struct person *person_born(struct history *h, unsigned node);
void person_gone(struct person *person); /* waits, shielded */
/* 0, or what is wrong, also in @ret_failure. @ret_hash: of its story. */
int history_run(uint64_t seed, FILE *story, struct coverage *coverage, uint64_t *ret_hash, char ret_failure[512]);
