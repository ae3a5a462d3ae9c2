/*
 * bundle/inside.h: what the files of this room share. Nobody else includes it.
 */
#pragma once

#include <errno.h>

#include "base/map.h"
#include "bundle/bundle.h"
#include "env/fiber.h"
#include "wire/record.h"

#define TENANT_NAME_MAX	 64	     /* bytes, encoded */
#define ATTRIBUTES_MAX	 (32u << 10) /* bytes of a version's attributes: they stand in its index row, too */
#define VERSIONS_CACHED	 8	     /* opened versions that are kept for the next who opens them */
#define CHANGE_TRIES_MAX 256	     /* of a transaction that others overtake */
#define SLOT_TRIES_MAX	 4096	     /* numbers that others have taken before */
#define SETTLE_MS	 3000  /* past the deadline: to learn how a commit ended, and to index what it published */
#define LOOK_AGAIN_MS	 200   /* for what the store does not show yet */
#define KEY_BYTES	 448   /* the longest key of ours and its final 0 */
#define PREFIX_BYTES	 288   /* "t/<tenant>/b/<bundle>/" and its final 0 */
#define IDLE_MS		 60000 /* a fiber of the background that has nothing to do looks around so often */
#define COLLECT_ROUND_MS 30000 /* between two rounds of collection in the background */
#define LIST_PAGE	 1024  /* keys or rows in one answer */

/*
 * A node that reads a version holds a lease on it in the meta engine, o/<tenant>·<bundle>·<n>·<node>, as long as somebody there has
 * it open. It is asked for again after a third of its time; a daemon that cannot counts as none after two thirds.
 */
#define READER_LEASE_MS 9000
#define READER_TICK_MS	250  /* so soon a version is given back that nobody has open any more */
#define READER_WAIT_MS	1500 /* a deletion waits so long for that */
#define DYING_WAIT_MS	3000 /* an opening, for a deletion that has begun and may be refused */
#define INDEX_WAIT_MS	6000 /* for an index that does not answer; then the store alone is asked */

/* A bundle as every call names it: checked, with the beginning of its keys. Borrows the names. */
struct place {
	struct view tenant, bundle;
	char prefix[PREFIX_BYTES];
};

/* The bundles that the store has, one after the other, whatever the index says. */
struct bundle_walk {
	char prefix[PREFIX_BYTES];     /* "t/", or more of a bundle's keys */
	char key[BACKEND_KEY_MAX + 1]; /* behind it the walk goes on; "": from the beginning */
	struct buf tenant, bundle;
	struct place place; /* where it is; borrows from these */
};

struct bundles {
	uint32_t magic; /* BUNDLES_MAGIC */
	struct env *env;
	struct cluster *cluster;
	struct backend *backend;
	struct list cached; /* struct version, the last used first; each holds one reference */
	unsigned n_cached;
	struct list openings; /* struct opening */

	/* what bundles_start() began */
	bool started;
	struct nursery flows;
	struct waitplace stirred; /* a version was leased, a bundle is to be tended */
	struct list stirring;	  /* struct stirred: bundles that have changed */
	unsigned n_stirring;
	struct map condemned;	      /* by key: struct condemned */
	uint64_t round_ns;	      /* between two rounds of collection */
	uint64_t grace_ns;	      /* of what a published version named, condemned so long ago */
	struct collect_counts counts; /* since the start, for status */
	struct bundle_walk sweep;
	uint64_t sweep_ns; /* when it goes on */
	struct map absent; /* by key: roots that the last collection of a bundle missed, and whether that was told */

	/* where the engine is */
	struct nursery rebuilds; /* at most one */
	bool rebuilding;	 /* now */
	bool half_rebuilt;	 /* one has begun and not come to its end */
	uint64_t given_back;	 /* the highest epoch of a reader's lease that was */
};
#define BUNDLES_MAGIC 0x73646e62

CLEANUP_OF(struct version *, version_put);

/* ---- names.c: pure ---- */

int place_init(struct view tenant, struct view bundle, struct place *ret, struct error *e);

int name_encode(struct view name, size_t max, char *ret);	   /* 0-terminated; bytes, or -ENAMETOOLONG past @max */
int name_decode(struct view part, struct buf *ret);		   /* appends; -EINVAL: no encoding of ours */
int number_decode(struct view text, size_t digits, uint64_t *ret); /* @digits decimal digits; 0: any. -EINVAL */

void root_key(const struct place *place, uint64_t number, char ret[KEY_BYTES]);
void slot_key(const struct place *place, uint64_t number, char ret[KEY_BYTES]);
void label_key(const struct place *place, struct view label, uint64_t move, char ret[KEY_BYTES]);
void rule_key(const struct place *place, uint64_t k, char ret[KEY_BYTES]);
void floor_key(const struct place *place, uint64_t number, char ret[KEY_BYTES]);
void segment_key(const struct place *place, const struct record_head *head, char ret[KEY_BYTES]);

/* Keys of index rows: names as they are, ended by a zero byte. */
struct row_key {
	uint8_t bytes[META_KEY_MAX];
	size_t len;
};
struct row_key bundle_row_key(struct view tenant, struct view bundle);
struct row_key version_row_key(const struct place *place, uint64_t number);
struct row_key before_row_key(const struct place *place, uint64_t number); /* of an index that a rebuild has cleared */
struct row_key slot_row_key(const struct place *place, uint64_t number);
struct row_key label_row_key(const struct place *place, struct view label);
struct row_key rows_prefix(char kind,
			   const struct place *place); /* of all versions ('v'), slots ('s') or labels ('l') */
struct row_key tenant_prefix(char kind, struct view tenant);
struct row_key readers_prefix(const struct place *place, uint64_t number);
struct row_key reader_row_key(const struct place *place, uint64_t number, const char *node);
static inline struct view row_key_view(const struct row_key *key)
{
	return view_of(key->bytes, key->len);
}

/* ---- version.c, segment.c: pure ---- */

/* Every rule that a version obeys (docs/formats.md, 4), before it is written and after it was read. @code on failure. */
int version_check(const struct version *version, int code, struct error *e);

/* A segment as an object, ready to be put. */
struct segment {
	struct record_head head;
	uint64_t count;
	struct buf object;
};
struct segments {
	struct segment *all;
	size_t n;
};
void segments_fini(struct segments *segments);
/* Items, then blocks. -E2BIG naming the item that fits into none, -ENOMEM. */
int segments_encode(const struct version *version, struct segments *ret, struct error *e);
/* The root's body: packs and segments by keys that are relative to the bundle. */
int root_encode(const struct place *place, const struct version *version, const struct segments *segments,
		struct buf *ret, struct error *e);

/* Fills a new version from a root: all but items, pieces and blocks. @place: where it was found, which it must say too. */
int version_set_root(struct version *version, const struct place *place, const struct record_head *head,
		     const struct rec_root *root, struct error *e);
/* Appends what a segment holds. The segments come in the root's order; version_finish() then binds names and checks all. */
int version_add_segment(struct version *version, const struct rec_segment *segment, struct view object,
			struct error *e);
int version_finish(struct version *version, const struct rec_root *root, struct error *e);
struct record_head version_head(const struct version *version, enum record_kind kind);

int save_of_key(const char *key, uint64_t *ret); /* pack.c: the save id in a pack's or segment's key; -EINVAL */

/* ---- object.c: records in the store ---- */

/* Reads the object @key whole and opens it. -ENOENT; -ERR_EDAMAGED naming the key. Views into @bytes, which it replaces. */
int object_open(struct bundles *bundles, const char *key, size_t max, struct buf *bytes, struct record_head *ret_head,
		struct view *ret_body, uint64_t deadline_ns, struct error *e);
/* Seals and puts: 0, BACKEND_EXISTS (only with @if_absent), error. */
int object_put(struct bundles *bundles, const char *key, const struct record_head *head, struct view body,
	       bool if_absent, uint64_t deadline_ns, struct error *e);
/* Makes sure that what was read from @key lasts: reading promises less than a put that finds the key taken. */
int object_settle(struct bundles *bundles, const char *key, struct view bytes, uint64_t deadline_ns, struct error *e);
int object_delete(struct bundles *bundles, const char *key, uint64_t deadline_ns, struct error *e);
/* @len bytes at @offset, fewer at the object's end. Replaces @ret. */
int object_range(struct bundles *bundles, const char *key, uint64_t offset, size_t len, struct buf *ret,
		 uint64_t deadline_ns, struct error *e);

/*
 * Calls @each(arg, key, after) for the keys that begin with @prefix, in order; non-zero stops and is returned. @each may put
 * a later key into @after (BACKEND_KEY_MAX + 1 bytes), so that the walk leaps there, and then returns KEYS_LEAP.
 */
enum { KEYS_LEAP = 1 };
typedef int (*keys_fn)(void *arg, const char *key, char *after);
int keys_each(struct bundles *bundles, const char *prefix, keys_fn each, void *arg, uint64_t deadline_ns,
	      struct error *e);

/* The first key behind @after that begins with @prefix; "" if there is none. @ret may be @after. */
int key_next(struct bundles *bundles, const char *prefix, const char *after, char ret[BACKEND_KEY_MAX + 1],
	     uint64_t deadline_ns, struct error *e);

void bundle_walk_fini(struct bundle_walk *walk); /* accepts zeroed; not the walk itself */
/* 0; WALK_ENDED; negative. What is no bundle of ours is passed by. */
enum { WALK_ENDED = 1 };
int bundle_walk_next(struct bundles *bundles, struct bundle_walk *walk, uint64_t deadline_ns, struct error *e);

/* What lies under a version's root key. */
enum root_state {
	ROOT_NONE,
	ROOT_PUBLISHED,
	ROOT_BURNED,
	ROOT_DELETED,
	ROOT_FOLDED, /* of index_version() alone: the number is below the floor, whatever lies there */
};
struct root_object {
	enum root_state state;
	struct buf bytes;
	struct record_head head;
	struct rec_root root;	   /* PUBLISHED */
	struct rec_tombstone tomb; /* BURNED, DELETED */
};
void root_object_fini(struct root_object *object);
/* 0 also for ROOT_NONE; -ERR_EDAMAGED; errors of the store. @ret: zeroed or used before. */
int root_read(struct bundles *bundles, const struct place *place, uint64_t number, struct root_object *ret,
	      uint64_t deadline_ns, struct error *e);
/* Where something lies for sure, or may: looks again until the store must show it. ROOT_NONE is then an answer all the same. */
int root_read_known(struct bundles *bundles, const struct place *place, uint64_t number, struct root_object *ret,
		    uint64_t deadline_ns, struct error *e);

/* ---- rows.c: the index in the meta engine ---- */

/*
 * A transaction on a bundle's rows. Each expects the bundle's own row as it was read and rises its count of changes, so that of two
 * at the same time one is told to look again. What was read between begin and commit is still true at the commit, when every
 * writer of it does the same.
 */
struct change {
	struct bundles *bundles;
	struct row_key key;
	struct meta_req *req;
	struct row_bundle row; /* as read; what commit writes */
	bool fenced, exists;   /* exists: there was a row */
};
/* Reads the bundle's row; @fence may be NULL or empty. */
int change_begin(struct bundles *bundles, const struct place *place, const struct fence *fence, struct change *ret,
		 uint64_t deadline_ns, struct error *e);
/* 0; META_CONFLICT: begin again; -ERR_ESTALEEPOCH: the fence's record has changed. The change is over either way. */
int change_commit(struct change *change, uint64_t deadline_ns, struct error *e);
void change_fini(struct change *change);
int change_pause(struct bundles *bundles, int tries); /* waits a little before the next try; 0, -ECANCELED */
/*
 * Whether to begin once more, before each try of a change, the first being number 0: 0, after a pause for all but that one; -EAGAIN:
 * CHANGE_TRIES_MAX were not enough; -ECANCELED.
 */
int change_again(struct bundles *bundles, const struct place *place, int tries, struct error *e);

/* Encodes a row and adds its put to the change. */
int change_put_version(struct change *change, const struct row_key *key, const struct row_version *row);
int change_put_slot(struct change *change, const struct row_key *key, const struct row_slot *row);
int change_put_label(struct change *change, const struct row_key *key, const struct row_label *row);

/* Reads one row. 0; ROW_ABSENT with @ret zeroed; error. Views into @bytes, which it replaces. */
enum { ROW_ABSENT = 1 };
int row_read_bundle(struct bundles *bundles, const struct place *place, struct row_bundle *ret, uint64_t deadline_ns,
		    struct error *e);
int row_read_version(struct bundles *bundles, const struct place *place, uint64_t number, struct buf *bytes,
		     struct row_version *ret, uint64_t deadline_ns, struct error *e);
/* Whether there is one: 0 or ROW_ABSENT. */
int row_find(struct bundles *bundles, const struct row_key *key, uint64_t deadline_ns, struct error *e);
int row_read_label(struct bundles *bundles, const struct place *place, struct view label, struct row_label *ret,
		   uint64_t deadline_ns, struct error *e);

/* Calls @each for the rows that begin with @prefix and come after @after; non-zero stops and is returned. @each may wait. */
typedef int (*rows_fn)(void *arg, struct view key, struct view value);
int rows_each(struct bundles *bundles, struct view prefix, struct view after, rows_fn each, void *arg,
	      uint64_t deadline_ns, struct error *e);
int row_damaged(struct error *e, const char *what); /* -ERR_EDAMAGED: a row that makes no sense */

/* ---- index.c: what the index says, against what the store holds ---- */

/*
 * Looks under a version's root key and makes the index say the same: a root becomes a row, under a tombstone the rows go.
 * Repeatable, by anybody. Where nothing lies there yet, nothing changes. @settled: the caller knows that what lies there lasts.
 */
int index_version(struct bundles *bundles, const struct place *place, uint64_t number, bool settled,
		  enum root_state *ret, uint64_t deadline_ns, struct error *e);
/*
 * Finishes what others left behind in a bundle: index_version() of each number with a slot's row, deletions that have begun, moves of
 * labels. Failures are left for the next who looks.
 */
void index_mend(struct bundles *bundles, const struct place *place, uint64_t deadline_ns);
void index_mend_tenant(struct bundles *bundles, struct view tenant, uint64_t deadline_ns); /* without the labels */

/*
 * Ends the slot of a save whose coordinator is over: indexes its root, or burns it. One of a coordinator that may live is left, and so
 * is one that no lease stands for. @lease, @epoch: of the slot's row or object. 0; 1: it was burned here; negative.
 */
int slot_settle_dead(struct bundles *bundles, const struct place *place, uint64_t number, const struct row_slot *row,
		     uint64_t deadline_ns, struct error *e);
/* The same of one whose coordinator is known to be over. */
int slot_end(struct bundles *bundles, const struct place *place, uint64_t number, const struct row_slot *row,
	     uint64_t deadline_ns, struct error *e);

/* ---- lease.c ---- */

/* Is whoever coordinated in @epoch under that lease out of it for good? 1, 0: it may live, negative. */
int lease_is_over(struct bundles *bundles, struct view lease, uint64_t epoch, uint64_t deadline_ns, struct error *e);
/* This node reads: 0, or why it has no lease. *@lease is its epoch; before, 0 or that of the one that is held. Not needed again for
 * READER_LEASE_MS / 3. */
int reader_begin(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t *lease,
		 uint64_t deadline_ns, struct error *e);
void reader_end(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t lease,
		uint64_t deadline_ns);
/* -EBUSY naming the node that reads it; 0; errors. Takes away what readers of before have left. */
int readers_check(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t deadline_ns,
		  struct error *e);
/*
 * A rebuild has forgotten who reads what: until every node has asked again for its leases readers_check() says -EBUSY of all versions.
 * rebuilt_await(): waits until that is over; 0, -EBUSY: not by the deadline, errors.
 */
int rebuilt_begin(struct bundles *bundles, uint64_t deadline_ns, struct error *e);
int rebuilt_await(struct bundles *bundles, uint64_t deadline_ns, struct error *e);
int readers_forget(struct bundles *bundles, struct change *change, const struct place *place, uint64_t number,
		   uint64_t deadline_ns, struct error *e); /* their rows go with the change */
/* Holds a lease for background work: 0, META_HELD, error. */
int lease_hold(struct bundles *bundles, const char *key, uint32_t ttl_ms, uint64_t deadline_ns, struct error *e);
int readers_keep(void *bundles); /* a fiber: asks again for the leases of what is open, gives back the others */
void readers_stop(struct bundles *bundles); /* gives all back, when nobody opens any more */

/* ---- label.c ---- */

/* Takes the label's move under way over, if its object is there. */
int label_apply(struct bundles *bundles, const struct place *place, struct view label, uint64_t deadline_ns,
		struct error *e);
/* Ends a move under way for good: whoever began it has made it, or never will. */
int label_settle(struct bundles *bundles, const struct place *place, struct view label, uint64_t deadline_ns,
		 struct error *e);

/*
 * The row of a label from its @n moves, ascending, at least one, after the versions have their rows. -ERR_EDAMAGED: the last that would count
 * cannot be read; the label is not set then, and can be.
 */
int label_rebuild(struct bundles *bundles, const struct place *place, struct view label, const uint64_t *moves,
		  size_t n, bool *ret_set, uint64_t deadline_ns, struct error *e);

/* ---- publish.c: its steps, apart for tests of crashes between them ---- */

int publish_segments(struct bundles *bundles, const struct place *place, struct segments *segments,
		     uint64_t deadline_ns, struct error *e);
int publish_root(struct bundles *bundles, const struct place *place, const struct version *version,
		 const struct segments *segments, uint64_t deadline_ns, struct error *e);
int publish_index(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t deadline_ns,
		  struct error *e);

/* ---- delete.c: its steps; between the second and the third index_version() takes the rows away ---- */

enum { DELETE_TAKEN_OVER = 4, DELETE_NOT_BEGUN = 5 }; /* not among the outcomes of a transaction */
/* Marks it dying, as @mark's. 0; DELETE_TAKEN_OVER: somebody had begun; -EBUSY, -ENOENT. */
int delete_begin(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t mark,
		 uint64_t deadline_ns, struct error *e);
/* version_delete() for rule @rule: DELETE_NOT_BEGUN when another one is in force by now. 0: for somebody who wants it. */
int delete_for_rule(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t rule,
		    uint64_t deadline_ns, struct error *e);
/* Goes on with what somebody has begun, if he has not taken it back; -EBUSY: it is still read. */
int delete_resume(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t deadline_ns,
		  struct error *e);
int delete_root(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t deadline_ns,
		struct error *e);
void delete_objects(struct bundles *bundles, const struct place *place, uint64_t number, uint64_t deadline_ns);

/* ---- rule.c ---- */

/* Takes rule @k over into the bundle's row, if its object is there. */
int rule_take(struct bundles *bundles, const struct place *place, uint64_t k, uint64_t deadline_ns, struct error *e);
/* As if rule @k kept all: what it says, or what it must spare, cannot be read. */
int rule_rest(struct bundles *bundles, const struct place *place, uint64_t k, uint64_t deadline_ns, struct error *e);
/* Deletes what the rule in force does not keep, so much at a time. */
int rule_apply(struct bundles *bundles, const struct place *place, uint64_t *ret_deleted, uint64_t deadline_ns,
	       struct error *e);

/* ---- collect.c ---- */

/*
 * One pass: looks, deletes what was found dead by a pass before (that of a deleted version: so long before as a reader's lease lasts),
 * and remembers the rest. 0: nothing is left to do; COLLECT_AGAIN: there is, now; COLLECT_LATER: when its time has come; negative.
 */
enum { COLLECT_AGAIN = 1, COLLECT_LATER = 2 };
struct collecting {
	struct bundles *bundles;
	const struct place *place;
	uint64_t pause_ns;	/* between two deletions */
	bool thorough;		/* folds few tombstones, too */
	uint64_t held_ns;	/* when the store was last seen to be this cluster's; 0: never */
	char absent[KEY_BYTES]; /* the last scan's */
	struct buf unclear;	/* keys, each ended by a zero byte: what the last pass did not understand */
	uint64_t deadline_ns;
	struct error *e;
	struct collect_counts counts; /* added to, but for unclear: what the last pass found */
};
int collect_pass(struct collecting *c);
void condemned_fini(struct bundles *bundles);
/* The highest floor in the store. */
int floor_read(struct bundles *bundles, const struct place *place, uint64_t deadline_ns, uint64_t *ret,
	       struct error *e);

/* ---- rebuild.c ---- */

void rebuild_serve(struct bundles *bundles); /* those that other nodes ask for */

/* ---- tend.c ---- */

/* The bundle has changed: its rule is applied in a while. */
void bundles_stir(struct bundles *bundles, const struct place *place);
void tend_fini(struct bundles *bundles);
/* Collects the next few bundles that the store has, whether the index knows that there is something or not. 0; negative. */
int tend_sweep(struct bundles *bundles);

/* ---- open.c ---- */

/* version_add_segment() and version_finish() on a worker: a large version is seconds of hashing and checking. */
int segment_decode(struct bundles *bundles, struct version *version, const struct rec_segment *segment,
		   struct view object, struct error *e);
int version_complete(struct bundles *bundles, struct version *version, const struct rec_root *root, struct error *e);

/* Somebody is about to open a version, and counts on its lease, which its last reader has not given back yet. */
struct opening {
	struct list link;
	const struct place *place;
	uint64_t number;
};
void opening_begin(struct bundles *bundles, const struct place *place, uint64_t number, struct opening *opening);
void opening_end(struct opening *opening);
bool is_opening(const struct bundles *bundles, const struct place *place, uint64_t number);

void cache_add(struct bundles *bundles, struct version *version);
void cache_drop(struct bundles *bundles, const struct place *place, uint64_t number);

static inline int no_memory(struct error *e)
{
	return error_set(e, -ENOMEM, "no memory");
}
