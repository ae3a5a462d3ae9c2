/*
 * bundle/bundle.h: names under which immutable versions are published, and the protocol that makes a version exist.
 *
 * Authority is the backend alone; the meta engine holds leases, open slots and an index that can be rebuilt. Keys (tenant and bundle
 * encoded, docs/formats.md), below t/<tenant>/b/<bundle>/:
 *	v/<n>/slot		the right to publish n: save id, epoch, parent	put-if-absent
 *	v/<n>/root		makes the version exist, or a tombstone		put-if-absent: THE commit point
 *	v/<n>/<save>-items-<k>, v/<n>/<save>-blocks-<k>				segments
 *	p/<save>-<node>-<k>							packs
 *	l/<label>/<k>		a label's k-th move				put-if-absent; the highest k wins
 * and beside the tenants: g/<n>, the cluster's generations.
 *
 * Publication, in this order, each step durable before the next: slot, packs, segments, root, index. A root present means
 * published. Every function waits in its fiber, has a deadline and may be called by any daemon.
 */
#pragma once

#include "backend/backend.h"
#include "bundle/version.h"
#include "cluster/cluster.h"
#include "store/store.h"

#define BUNDLE_NAME_MAX 200 /* bytes, encoded ('/' as %2F) */
#define LABEL_NAME_MAX	100 /* bytes; a label is not a decimal number, nor "latest", nor "staged" */

struct bundles;

int bundles_new(struct env *env, struct cluster *cluster, struct backend *backend, struct bundles **ret);
/*
 * Begins what a daemon does beside its calls, once it has joined: leases on what is open here, rules applied after publications, and,
 * on the daemon that wins the lease for it, collection.
 */
int bundles_start(struct bundles *bundles);
void bundles_stop(struct bundles *bundles); /* waits; accepts NULL and what was not started */
void bundles_free(struct bundles *bundles); /* accepts NULL; stopped */

/* 0, or -EINVAL naming what is wrong: empty parts, "..", ".", control characters, invalid UTF-8, too long. */
int bundle_name_check(struct view name, struct error *e);
int label_name_check(struct view name, struct error *e);

/* ---- writing ---- */

/* What proves that the writer still is its group's coordinator: the lease's key and the exact record under it; empty: ungrouped. */
struct fence {
	struct view key, record;
	uint64_t epoch;
};

struct slot {
	char *tenant, *bundle;
	uint64_t number, save_id, epoch, parent;
	uint32_t generation; /* when it was opened */
	bool pinned; /* the parent was there when the slot was opened, and stays until it has ended: its packs may be named */
};
void slot_fini(struct slot *slot); /* frees memory only; accepts zeroed */

/*
 * May a save name @parent? -ENOENT: the bundle never gave that number. One that it gave may be gone: rules delete versions while
 * their children are being saved, and then nothing is shared.
 */
int slot_parent_check(struct bundles *bundles, struct view tenant, struct view bundle, uint64_t parent,
		      uint64_t deadline_ns, struct error *e);
/*
 * Opens the next free number: put-if-absent in the backend, then one meta transaction under @fence. -ERR_ESTALEEPOCH. @slot: zeroed,
 * or as a try before has left it. Where it fails and has a number, a slot of this save may lie under that, or come yet: it is tried
 * again, or given up.
 */
int slot_open(struct bundles *bundles, struct view tenant, struct view bundle, uint64_t save_id, uint64_t parent,
	      const struct fence *fence, uint64_t deadline_ns, struct slot *slot, struct error *e);
/* What slot_open() may have left is put again, and burned, unless the number is somebody else's. */
int slot_give_up(struct bundles *bundles, const struct slot *slot, const struct fence *fence, uint64_t deadline_ns,
		 struct error *e);
/* Tombstone under the root's key. 0 also when it is burned already; -EEXIST: the root is there, the version is published. */
int slot_burn(struct bundles *bundles, const struct slot *slot, uint64_t deadline_ns, struct error *e);

/*
 * For a successor: settles every slot that was opened for the save @save_id, those with a row and number @kept (0: none is known). A slot
 * without a root is burned. *ret_number: what the save was published as, 0: it was not, and under none of these will be. -ERR_EDELETED: @kept is below the
 * floor: whether it was published first is not known any more.
 */
int slot_settle(struct bundles *bundles, struct view tenant, struct view bundle, uint64_t save_id, uint64_t kept,
		uint64_t deadline_ns, uint64_t *ret_number, struct error *e);

/*
 * Writes segments, root and index entry for @version (its packs are durable already). 0: published and indexed;
 * -ERR_EUNINDEXED: published, the index entry is missing (it is mended by the next open, label or list of the bundle);
 * -ERR_ESTALEEPOCH: somebody else settled the slot (burned it). Time-outs and collisions are settled by putting the root again and
 * reading it; after any other failure slot_burn() tells whether it was published (-EEXIST).
 */
int slot_publish(struct bundles *bundles, const struct slot *slot, struct version *version, const struct fence *fence,
		 uint64_t deadline_ns, struct error *e);

/* A pack on its way: blocks pinned by the caller until this returns. Written whole by this node, durable on return. */
struct pack_put {
	struct block *block;
	uint64_t offset; /* from pack_layout() */
};
/* Pure: offsets of blocks in a pack (4 KiB steps for 64 KiB and more, then 64-byte steps), and where its index begins. */
void pack_layout(const uint32_t *bytes, size_t n, uint64_t *ret_offsets, uint64_t *ret_index_offset);
uint64_t pack_size(uint64_t index_offset, size_t n);
/* "t/.../p/<save>-<node>-<k>" into @ret. */
int pack_key(struct view tenant, struct view bundle, uint64_t save_id, const char *node, uint64_t k,
	     char ret[BACKEND_KEY_MAX + 1]);
/* How far pack_write() is, while it runs; zeroed before. */
struct pack_watch {
	const struct image *image; /* pack.c's; NULL: it does not run */
};
uint64_t
pack_watch_bytes(const struct pack_watch *watch); /* that the store has taken; what had to be sent twice counts twice */
/* @number: of the slot, open by then. @watch may be NULL. */
int pack_write(struct bundles *bundles, const char *key, uint64_t number, const struct pack_put *puts, size_t n,
	       struct pack_watch *watch, uint64_t deadline_ns, struct error *e);

/* Of a save that failed, by who named it: nobody else uses the name, and no root names it, nor ever will. */
int pack_forget(struct bundles *bundles, const char *key, uint64_t deadline_ns, struct error *e);

/* ---- reading ---- */

/*
 * Opens a version: @spec is a decimal number, a label or "latest" (the highest published). Reads root and segments, all checked.
 * The result is shared and counted: version_put() gives it back. -ENOENT naming what is missing; -ERR_EDELETED; -ERR_EDAMAGED
 * naming the object.
 */
int bundle_open(struct bundles *bundles, struct view tenant, struct view bundle, struct view spec, uint64_t deadline_ns,
		struct version **ret, struct error *e);

/* ---- names ---- */
struct bundle_entry {
	char *name;
	uint64_t n_versions, latest, keep_last, keep_every; /* keep_last 0: there is no rule */
};
struct version_entry {
	uint64_t number, step, n_items, bytes, stored_bytes, save_id;
	struct buf attributes; /* elem_attribute list bytes */
	uint32_t n_attributes;
};
struct label_entry {
	char *label;
	uint64_t number;
};
/* Pages in byte order of names / order of numbers; *ret_more: there are more. The caller frees with the *_entries_free. */
int bundle_list(struct bundles *bundles, struct view tenant, struct view prefix, struct view after, uint32_t limit,
		uint64_t deadline_ns, struct bundle_entry **ret, size_t *ret_n, bool *ret_more, struct error *e);
int version_list(struct bundles *bundles, struct view tenant, struct view bundle, uint64_t after, uint32_t limit,
		 uint64_t deadline_ns, struct version_entry **ret, size_t *ret_n, bool *ret_more, struct error *e);
int label_list(struct bundles *bundles, struct view tenant, struct view bundle, uint64_t deadline_ns,
	       struct label_entry **ret, size_t *ret_n, struct error *e);
void bundle_entries_free(struct bundle_entry *entries, size_t n);
void version_entries_free(struct version_entry *entries, size_t n);
void label_entries_free(struct label_entry *entries, size_t n);

/* @expect: the label's number now, 0 none, UINT64_MAX whatever. @number 0 removes it. -EAGAIN: it was another (named). */
int label_set(struct bundles *bundles, struct view tenant, struct view bundle, struct view label, uint64_t expect,
	      uint64_t number, uint64_t deadline_ns, struct error *e);
/*
 * -EBUSY naming the label that holds it, the node that reads it, or an open save whose parent it is. -EAGAIN: it is read, and another node
 * goes on with its deletion when it is not any more. Repeatable at any point. Its segments
 * and, unless other versions may name them, its packs are gone at once; the rest is collection's.
 */
int version_delete(struct bundles *bundles, struct view tenant, struct view bundle, uint64_t number,
		   uint64_t deadline_ns, struct error *e);

/*
 * Sets which versions the bundle keeps: the newest @keep_last, those whose number is divisible by @keep_every (0: none for that), and all
 * that have a label. Both 0: all. Applied after each publication, in the background, and by collection. -EINVAL, -ENOENT.
 */
int bundle_retain(struct bundles *bundles, struct view tenant, struct view bundle, uint64_t keep_last,
		  uint64_t keep_every, uint64_t deadline_ns, struct error *e);

/* ---- collection ---- */
struct collect_counts {
	uint64_t bundles;	/* looked at */
	uint64_t rule_versions; /* deleted by rules */
	uint64_t slots;		/* of dead coordinators, burned */
	uint64_t found;		/* objects that nothing needs */
	uint64_t freed, freed_bytes;
	uint64_t folded;  /* tombstones that went into a floor */
	uint64_t unclear; /* objects that are not understood, and stay */
	uint64_t missing; /* packs that a version names and that are not there: data is lost */
};
/*
 * Collects the tenant's bundles now, or that one (@bundle not empty): applies rules, ends slots of dead coordinators, frees what nothing
 * needs. Waits for readers' leases of what was deleted a moment ago. @unclear is called for each object that is not understood.
 */
int bundles_collect(struct bundles *bundles, struct view tenant, struct view bundle, uint64_t deadline_ns,
		    void (*unclear)(void *arg, const char *key), void *arg, struct collect_counts *ret,
		    struct error *e);
void bundles_counts(const struct bundles *bundles, struct collect_counts *ret); /* of this daemon, since it started */

/*
 * Is the index at least as new as the store? Before joining, on the node with the engine. -ERR_EREBUILD naming the first key that it
 * does not know; 0 also when there is no index yet, which joining tells.
 */
int bundles_check_index(struct bundles *bundles, uint64_t deadline_ns, struct error *e);

/*
 * Reads everything of the version from the backend and compares: root, segments, packs with their heads, paddings, indexes and
 * every block. @report is called for each damage: the object's key, the item's name (empty: not known), the block's number
 * (UINT64_MAX: not known), and words. 0 even when damage was found; negative: it could not run.
 */
int bundle_verify(struct bundles *bundles, struct view tenant, struct view bundle, uint64_t number,
		  uint64_t deadline_ns,
		  int (*report)(void *arg, const char *object, struct view item, uint64_t block, const char *words),
		  void *arg, uint64_t *ret_blocks, uint64_t *ret_bytes, struct error *e);

/*
 * Builds the index anew from the backend alone: raises the generation, burns slots without a root, indexes every root, takes the
 * highest move of each label. Repeatable at any point; the node with the engine need not have joined. -ERR_EDAMAGED naming the first
 * damaged object: it was left out, everything else is indexed, @ret is filled. Nothing is written when the engine cannot be reached, or
 * the store is not the index's (-ENODEV: not mounted).
 */
struct rebuild_counts {
	uint64_t bundles, versions, labels;
	uint32_t generation;
};
int bundles_rebuild(struct bundles *bundles, uint64_t deadline_ns, struct rebuild_counts *ret, struct error *e);
int rebuild_counts_encode(const struct rebuild_counts *counts,
			  struct buf *out); /* as the answer to REBUILD. 0, -ENOMEM */
