/*
 * forebay.h: grouped saves and loads of training state, for applications. ABI 1.
 *
 * All ranks of a job say together what they write or read; the daemon on each node (forebayd) decides who moves which byte. A save
 * has three futures that are never blurred: captured (the rank may change its buffers), staged (every block lies in DRAM on as
 * many nodes as asked), durable (the version is published in the store).
 *
 * Calls return 0, or a negative errno or -FOREBAY_E... code; forebay_error() gives this thread's last failure in words. Option
 * structs begin with .size = sizeof(struct); zero elsewhere means the default; NULL options are all defaults. timeout_ms: 0
 * polls, -1 waits. A handle may be used from any thread, one call at a time; futures by any number of threads. There are no
 * call-backs on foreign threads: completion is an eventfd. After fork() a session is dead in the child: its calls answer
 * -FOREBAY_EFORKED. Boxes and shapes are in elements, offsets and strides in bytes, all 64-bit, arrays row-major.
 */
#ifndef FOREBAY_FOREBAY_H
#define FOREBAY_FOREBAY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define FOREBAY_ABI 1

/* Forebay's own error codes; calls return them negated. What to do about each: docs/troubleshooting.md. */
enum forebay_code {
	FOREBAY_EREPLICA = 4096,
	FOREBAY_EOVERLAP,
	FOREBAY_ERANK,
	FOREBAY_ENODE,
	FOREBAY_EDAMAGED,
	FOREBAY_ESTALEEPOCH,
	FOREBAY_ESTEP,
	FOREBAY_EUNINDEXED,
	FOREBAY_EDELETED,
	FOREBAY_EFORKED,
	FOREBAY_EVERSION,
	FOREBAY_EMISMATCH,
	FOREBAY_EPOOL,
	FOREBAY_ECHANGED,
	FOREBAY_EREBUILD,
	FOREBAY_ESKIPPED,
	FOREBAY_ESUPERSEDED,
};

enum forebay_stage { FOREBAY_CAPTURED, FOREBAY_STAGED, FOREBAY_DURABLE };

/* The number of the ABI that the loaded library has; compare with FOREBAY_ABI. */
int forebay_abi(void);
/* What this thread's last failed call failed of, in words; "" before the first. Valid until this thread's next failure. */
const char *forebay_error(void);
/* "FOREBAY_EREPLICA", "ENOENT", ... for a code with either sign. */
const char *forebay_error_name(int code);

/* ---- session ---------------------------------------------------------------------------------------------------------- */

struct forebay_session;
struct forebay_connect_options {
	size_t size;
	const char *socket; /* NULL: $FOREBAY_SOCKET, else /run/forebay/socket */
	int timeout_ms;	    /* 0: 10 s */
	unsigned threads;   /* that copy and hash; 0: as many as the process may use cores, at most 4 */
};
/* Connects to the node's daemon. -ENOENT, -ECONNREFUSED, -EACCES with the path in words, -FOREBAY_EVERSION, -ETIMEDOUT. */
int forebay_connect(const struct forebay_connect_options *options, struct forebay_session **ret);
/* Ends the session: saves that are captured go on in the daemon, others and loads are cancelled; returns once no buffer is
 * touched any more. Futures stay valid and fail with -ECONNABORTED. Accepts NULL. */
void forebay_disconnect(struct forebay_session *session);

/* ---- futures ---------------------------------------------------------------------------------------------------------- */

struct forebay_future;
/* Waits: 0 or the operation's failure once it is over; -ETIMEDOUT before. What ended because time ran out is -ETIME. */
int forebay_wait(struct forebay_future *future, int timeout_ms);
/* A descriptor that becomes readable when the future is over; owned by the future; never read from it. */
int forebay_future_fd(struct forebay_future *future);
/* The failure's words, "" if there is none; valid as long as the future. */
const char *forebay_future_error(struct forebay_future *future);
/* Forgets the future, never cancels what it stands for. Accepts NULL. */
void forebay_future_free(struct forebay_future *future);

/* ---- group ------------------------------------------------------------------------------------------------------------ */

struct forebay_group;
struct forebay_group_options {
	size_t size;
	const char *name; /* the job: saves of equal (group, bundle, step) belong together */
	const char *run;  /* opaque, e.g. RUN_ID:RESTART_COUNT; each new run is the group's next incarnation */
	uint32_t rank, ranks;
};
/* Joins; returns when all ranks of the run have joined. -FOREBAY_ERANK naming who is missing or came twice, -ETIMEDOUT. */
int forebay_group_join(struct forebay_session *session, const struct forebay_group_options *options, int timeout_ms,
		       struct forebay_group **ret);
/* The incarnation that this run became, from 1. */
uint64_t forebay_group_incarnation(const struct forebay_group *group);
/* Leaves and frees; saves under way go on as far as they do not need this rank. Accepts NULL. */
void forebay_group_leave(struct forebay_group *group);

/* ---- save ------------------------------------------------------------------------------------------------------------- */

/* One box of an item. The bytes must not change between save_submit and captured. */
struct forebay_item {
	size_t size;
	const char *name;	       /* 1..1024 bytes of UTF-8 */
	const char *dtype;	       /* a tag of up to 32 bytes, e.g. "float32"; NULL: "blob" */
	uint32_t element_bits, ndim;   /* bits: 0 is 8; ndim: up to 8 */
	const uint64_t *shape;	       /* of the whole item; ndim numbers */
	const uint64_t *start, *count; /* the box; NULL: the whole item. A zero count is legal: nothing of it */
	const void *data;	       /* of the box; may be NULL if it has no bytes */
	const int64_t *strides_bytes;  /* of data; NULL: contiguous, row-major */
	uint32_t flags;		       /* FOREBAY_LOWEST_RANK */
};
/* Every rank offers a value of its own under this name; the lowest rank's is saved, the others are not looked at. */
#define FOREBAY_LOWEST_RANK 1u

struct forebay_attribute {
	const char *key, *value;
};
struct forebay_save_options {
	size_t size;
	uint32_t copies; /* DRAM copies before staged: 1..3; 0: 1 */
	/*
	 * When a node of the group has no room for its share: NULL or "wait" waits for it. "skip" ends the save at once: its three
	 * futures end with -FOREBAY_ESKIPPED, on all ranks; the step may be saved again. "replace" drops the oldest save of this group
	 * that is captured and not durable, whose futures end with -FOREBAY_ESUPERSEDED, and so on; it waits if there is none.
	 * "through" goes straight to the store, in waves: it may be larger than the pools are, nothing of it stays in memory, whatever
	 * copies says, and staged is over together with durable.
	 */
	const char *policy;
	int same_structure; /* hint: names, boxes, dtypes and order are as in this group's last save of the bundle */
	/* Version that this one continues; 0: none. It may have been deleted since; one that never was ends the save with -ENOENT,
	 * before any byte moves. */
	uint64_t parent;
	const struct forebay_attribute *attributes; /* kept with the version; rank 0's count */
	size_t n_attributes;
};
struct forebay_save;
/* Begins this rank's part of the save of @step. Nothing is sent before forebay_save_submit(). */
int forebay_save_begin(struct forebay_group *group, const char *bundle, uint64_t step,
		       const struct forebay_save_options *options, struct forebay_save **ret);
/* Offers boxes. Names, shapes and options are copied, data is borrowed until captured. -EINVAL, -FOREBAY_EMISMATCH in words. */
int forebay_save_add(struct forebay_save *save, const struct forebay_item *items, size_t n);
/* Hands the offer to the group's gather; returns at once. -ECANCELED, here and in save_add: it was cancelled before. */
int forebay_save_submit(struct forebay_save *save);
/* A future for a stage; any number of them, before or after submit. */
int forebay_save_future(struct forebay_save *save, enum forebay_stage stage, struct forebay_future **ret);
/* The version's number once durable is over without failure; 0 before. */
uint64_t forebay_save_version(const struct forebay_save *save);
/* Calls @each for every figure of the save known so far: bytes, milliseconds, ratios (names end in their unit). */
int forebay_save_stats(struct forebay_save *save, void (*each)(void *arg, const char *name, uint64_t value), void *arg);
/* Fails the save on all ranks unless all have captured. Each later save of the step in this run ends with -ECANCELED, on all ranks. */
int forebay_save_cancel(struct forebay_save *save);
/* Frees the handle once no buffer is touched; cancels an unsubmitted or uncaptured save; a captured one goes on. Accepts NULL. */
void forebay_save_free(struct forebay_save *save);

/* ---- versions --------------------------------------------------------------------------------------------------------- */

struct forebay_version;
struct forebay_version_info {
	size_t size;
	const char *bundle;
	uint64_t number, step, items, bytes;
	const struct forebay_attribute *attributes;
	size_t n_attributes;
	int unindexed; /* the index did not answer: opened by what the store alone says */
};
/* Opens a version; @version is a decimal number, a label or "latest" (NULL too); or "staged": the newest that @group, in this run or one
 * before, has staged, read from the nodes' memory, with number 0 while it is not durable; the latest when there is none. @group may be NULL. -ENOENT,
 * -FOREBAY_EDELETED, -FOREBAY_EDAMAGED, naming what. */
int forebay_open(struct forebay_session *session, struct forebay_group *group, const char *bundle, const char *version,
		 struct forebay_version **ret);
/* Fills @ret, whose pointers live as long as the version. */
int forebay_version_info(const struct forebay_version *version, struct forebay_version_info *ret);
struct forebay_item_info {
	size_t size;
	const char *name, *dtype;
	uint32_t element_bits, ndim;
	uint64_t shape[8];
	uint64_t bytes;
	uint64_t
		unsaved_bytes; /* of these, what no rank offered: an item may be saved in part, and loads of the rest fail */
};
/* The item of that name; strings live as long as the version. -ENOENT. */
int forebay_version_find(struct forebay_version *version, const char *name, struct forebay_item_info *ret);
/* Up to @n items with names greater than @after (NULL: from the first) in byte order; *ret_n fewer than @n: the end. Strings live
 * until the next call of this function on the version. */
int forebay_version_items(struct forebay_version *version, const char *after, struct forebay_item_info *items, size_t n,
			  size_t *ret_n);
/* Closes; loads under way keep what they need. Accepts NULL. */
void forebay_close(struct forebay_version *version);

/* ---- load ------------------------------------------------------------------------------------------------------------- */

struct forebay_target {
	size_t size;
	const char *name, *dtype;      /* dtype NULL: not compared */
	uint32_t element_bits, ndim;   /* bits 0: not compared */
	const uint64_t *shape;	       /* of the whole item; NULL: not compared */
	const uint64_t *start, *count; /* the wanted box; NULL: the whole item */
	void *data;
	const int64_t *strides_bytes; /* NULL: contiguous, row-major */
};
struct forebay_load;
/* Begins a load of boxes of @version; with @group it is this rank's part of the group's next load of that version, in which every
 * byte leaves the store once. */
int forebay_load_begin(struct forebay_version *version, struct forebay_group *group, struct forebay_load **ret);
/* Names boxes and where they go. A target whose name, dtype or shape does not fit is refused here, untouched: -ENOENT,
 * -FOREBAY_EMISMATCH. */
int forebay_load_into(struct forebay_load *load, const struct forebay_target *targets, size_t n);
/* Starts it. The future is over when every target is filled with verified bytes, or at the first failure. */
int forebay_load_submit(struct forebay_load *load, struct forebay_future **ret);
/* As forebay_save_stats(). */
int forebay_load_stats(struct forebay_load *load, void (*each)(void *arg, const char *name, uint64_t value), void *arg);
/* Cancels what is not over; returns once targets are untouched. What was not submitted ends the group's load for its other ranks, too.
 * Accepts NULL. */
void forebay_load_free(struct forebay_load *load);

/* ---- names ------------------------------------------------------------------------------------------------------------ */

struct forebay_bundle_info {
	size_t size;
	const char *name;
	uint64_t versions, latest;
	uint64_t keep_last, keep_every; /* forebay_retain(); keep_last 0: all stay */
};
/* Calls @each for each bundle with that prefix, in byte order; it returns non-zero to stop. */
int forebay_list_bundles(struct forebay_session *session, const char *prefix,
			 int (*each)(void *arg, const struct forebay_bundle_info *info), void *arg);
struct forebay_version_entry {
	size_t size;
	uint64_t number, step, items, bytes, stored_bytes;
	const struct forebay_attribute *attributes;
	size_t n_attributes;
};
/* Calls @each for each published version of the bundle, in order of numbers. -ENOENT: no such bundle. */
int forebay_list_versions(struct forebay_session *session, const char *bundle,
			  int (*each)(void *arg, const struct forebay_version_entry *entry), void *arg);
/* Calls @each for each label of the bundle, in byte order. */
int forebay_list_labels(struct forebay_session *session, const char *bundle,
			int (*each)(void *arg, const char *label, uint64_t number), void *arg);
#define FOREBAY_LABEL_ANY UINT64_MAX
/* Points @label to version @number (0: removes it) if it now points to @expect (0: exists not; FOREBAY_LABEL_ANY). -EAGAIN:
 * it pointed elsewhere; -ENOENT: no such version. */
int forebay_label(struct forebay_session *session, const char *bundle, const char *label, uint64_t expect,
		  uint64_t number);
/* Deletes a version for good; 0 also when it was deleted before. -EBUSY: a label points to it, a node reads it, or a save under way has it
 * as its parent (named); -ENOENT. */
int forebay_delete(struct forebay_session *session, const char *bundle, uint64_t number);
/* Sets which versions of the bundle stay: the newest @keep_last, those whose number is divisible by @keep_every (0: none for that), and
 * all that have a label. Both 0: all stay. Others are deleted after each publication. -EINVAL, -ENOENT. */
int forebay_retain(struct forebay_session *session, const char *bundle, uint64_t keep_last, uint64_t keep_every);

/* ---- administration (the command line uses it) ----------------------------------------------------------------------- */

struct forebay_damage {
	size_t size;
	const char *object, *item, *words; /* item "": not known */
	uint64_t block;			   /* UINT64_MAX: not known */
};
/* Reads the version whole from the store and compares everything with its digests; @each is called for each damage. Returns the
 * number of damages, or a negative code when it could not run. @number 0: the latest. */
int forebay_verify(struct forebay_session *session, const char *bundle, uint64_t number,
		   void (*each)(void *arg, const struct forebay_damage *damage), void *arg, uint64_t *ret_bytes);
struct forebay_node_info {
	size_t size;
	const char *name, *address, *domain;
	uint64_t incarnation, pool_bytes, pool_used_bytes;
	int up;
	const char *http; /* where /metrics is served; "": nowhere, or not known */
	uint32_t clients; /* sessions */
	/* Since the daemon began: what it has captured, copied from others, written to the store, read from store and peers. */
	uint64_t captured_bytes, copied_bytes, uploaded_bytes, read_bytes;
	uint32_t clients_stopped; /* of the sessions: their process is stopped, and keeps what it holds of the pool */
	int silent;		  /* up, but it has not said anything of itself in time: what it alone knows is 0 */
	uint64_t unheard_ms; /* since anything came from it to the node that was asked; UINT64_MAX: nothing ever did */
};
struct forebay_save_info {
	size_t size;
	uint64_t save;
	const char *group, *bundle, *state;
	uint64_t step, bytes;
};
struct forebay_status_events {
	size_t size;
	void (*cluster)(void *arg, const char *cluster, const char *this_node, uint32_t generation);
	void (*node)(void *arg, const struct forebay_node_info *node);
	void (*save)(void *arg, const struct forebay_save_info *save);
	void (*counter)(void *arg, const char *name, uint64_t value);
	/* The index cannot be reached, and why; the nodes are those that the daemon knows from before. @node has the engine: "" as long as
	 * it was never met; @unheard_ms as above. */
	void (*index_lost)(void *arg, const char *node, const char *address, uint64_t unheard_ms, const char *words);
	void (*not_joined)(void *arg, const char *words); /* why this node serves nothing else yet */
};
/* What the node's daemon sees: the cluster, its nodes, the saves that it takes part in, its counters. NULL members are skipped.
 * Whatever else is down: within a few seconds. -ETIMEDOUT after 15 s: this daemon itself does not answer. */
int forebay_status(struct forebay_session *session, const struct forebay_status_events *events, void *arg);
struct forebay_collect_events {
	size_t size;
	void (*figure)(void *arg, const char *name,
		       uint64_t value);		     /* what was found and freed; names end in their unit */
	void (*unclear)(void *arg, const char *key); /* an object below a bundle that nothing explains: it stays */
};
/* Collects now: applies rules, burns slots of dead coordinators, frees objects that nothing needs, in one bundle or (NULL) in all. NULL
 * members are skipped. */
int forebay_collect(struct forebay_session *session, const char *bundle, const struct forebay_collect_events *events,
		    void *arg);
struct forebay_station {
	const char *name;	 /* "gather", ..., in the order in which a save comes to them */
	uint64_t at_ns, took_ns; /* since it began; how long it was there, so far */
};
struct forebay_hop {
	const char *station, *node; /* what that node did at that station */
	uint64_t took_ns, bytes;
	uint32_t rank; /* the last one to be done; UINT32_MAX: none is known */
};
struct forebay_trace {
	size_t size;
	uint64_t save;
	const char *coordinator, *group, *bundle, *state, *words; /* words: why it failed */
	uint64_t step, version;					  /* version 0: it has none yet */
	int code, ended;
	uint32_t ranks, nodes, copies;
	uint64_t offered_bytes, unique_bytes, stored_bytes;
	uint64_t took_ns;
	uint64_t bound_ns, planned_ns; /* of the uploads: no plan takes less, and the one that was made; 0: not known */
	const struct forebay_station *stations;
	size_t n_stations;
	const struct forebay_hop *hops;
	size_t n_hops;
};
/* How saves went, station by station: the one with id @save; or, with 0, those that published version @number of @bundle; or, with
 * @bundle NULL, those under way and just over. Coordinators remember the last that ended, some dozens. @each is called for each of them;
 * @silent (may be NULL) for each node that did not answer and may know more. Returns how many there were, or a negative code. */
int forebay_trace(struct forebay_session *session, uint64_t save, const char *bundle, uint64_t number,
		  void (*each)(void *arg, const struct forebay_trace *trace),
		  void (*silent)(void *arg, const char *node), void *arg);
/* Builds the index again from the store alone. */
int forebay_meta_rebuild(struct forebay_session *session, uint64_t *ret_bundles, uint64_t *ret_versions,
			 uint64_t *ret_labels);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
