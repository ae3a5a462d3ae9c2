/*
 * base/point.h: named points of the protocol. Code passes them; a test or the simulator listens: it counts what was reached, or
 * ends the process there. Without a listener a point costs one load and one branch.
 */
#pragma once

/*        name            where it stands */
#define POINT_TABLE(X)                                                                                    \
	X(SAVE_PLANNED, "save-planned")		/* the plan is made, no byte has moved */                 \
	X(SAVE_CAPTURED, "save-captured")	/* all have captured, no rank was told */                 \
	X(SAVE_STAGED, "save-staged")		/* R copies, no rank was told */                          \
	X(SLOT_PUT, "slot-put")			/* the slot object is there, no index row */              \
	X(SLOT_OPEN, "slot-open")		/* and its row */                                         \
	X(PACK_BEGUN, "pack-begun")		/* an upload has begun */                                 \
	X(PACK_PART, "pack-part")		/* a part of it is written */                             \
	X(PACK_WRITTEN, "pack-written")		/* all parts, not committed */                            \
	X(PACK_DURABLE, "pack-durable")		/* committed */                                           \
	X(SEGMENTS_DURABLE, "segments-durable") /* all segments are there */                              \
	X(ROOT_NEXT, "root-next")		/* all but the root */                                    \
	X(ROOT_DURABLE, "root-durable")		/* published, not indexed */                              \
	X(INDEX_DURABLE, "index-durable")	/* indexed, no rank was told */                           \
	X(SAVE_TOLD, "save-told")		/* the ranks know */                                      \
	X(OBJECT_LINKED, "object-linked")	/* an object has its name, the directory is not synced */ \
	X(DELETE_MARKED, "delete-marked")	/* a version is dying in the index */                     \
	X(DELETE_TOMBSTONE, "delete-tombstone") /* its tombstone is there, its row, too */                \
	X(DELETE_UNINDEXED, "delete-unindexed") /* its row is gone, its objects are there */              \
	X(RULE_PUT, "rule-put")			/* a rule's object is there, the row is older */          \
	X(COLLECT_FOUND, "collect-found")	/* what is to go is known, nothing is gone */             \
	X(COLLECT_DELETED, "collect-deleted")	/* one object of it is gone */                            \
	X(FLOOR_PUT, "floor-put")		/* the floor's object is there, the row is older */       \
	X(PARENT_SHARED, "parent-shared")	/* some blocks take their places in the parent's packs */ \
	X(FLOOR_INDEXED, "floor-indexed")	/* and the row; the tombstones below are there */         \
	X(SAVE_KEPT, "save-kept")		/* a successor could finish the save */                   \
	X(SAVE_RESUMED, "save-resumed")		/* a successor goes on with a save */                     \
	X(NODE_SLOW, "node-slow")		/* a node is found to write far less than others */

enum point {
#define X(name, text) POINT_##name,
	POINT_TABLE(X)
#undef X
		POINTS
};

const char *point_name(enum point point);
int point_find(const char *name); /* -1: there is none */

/* @reached is called at each point, on whatever thread passes it; NULL: nobody listens. Set before threads start. */
void point_listen(void (*reached)(enum point point));
void point_reached(enum point point);
