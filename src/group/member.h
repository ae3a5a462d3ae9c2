/*
 * group/member.h: a node's part in a save: what its ranks offered, the blocks that it holds for it. Shared by member.c (life),
 * stage.c (what is told of it), capture.c (grants and what ranks report) and holder.c (hashing, copies, packs).
 */
#pragma once

#include "group/inside.h"

struct part_want {
	uint32_t bytes, place;
};
struct part_room {		  /* in one arena */
	uint32_t *bytes, *places; /* the blocks that need room, the largest first, and where they stand in the part */
	size_t n;
	uint64_t sum_bytes, room_bytes; /* room: with what is rounded up */
};

struct part_block { /* one block of one rank, as the plan has it */
	uint64_t offset;
	uint32_t block, rank, item, bytes, mode;
};
struct part_receive {
	uint32_t block, bytes;
};

/* The node's part of a plan; counted, immutable, kept for the next save of the same structure. */
struct part {
	uint32_t refs;
	uint64_t plan;
	struct part_block *blocks; /* by rank, then block */
	uint32_t *order; /* their places by block; of one block's, first that which is captured, then by rank */
	struct part_receive *receives; /* by block */
	size_t n_blocks, n_receives;
	struct part_room rooms[POOL_KINDS];
};
void part_put(struct part *part); /* accepts NULL */
/* Once its lists are there: 0, -ENOMEM. */
int part_count_room(struct part *part);
int part_order(struct part *part);

struct mblock {		     /* beside part.blocks */
	struct block *block; /* pinned; NULL: a check, or a hole */
	struct digest digest;
	uint64_t sample;
	uint32_t crc, flags;
	bool filled;
};

struct moffer { /* one local rank's */
	struct list link;
	struct rank *rank; /* NULL: it is gone */
	uint32_t number;
	uint64_t client_save; /* the client's number for it */
	struct structure *structure;
	size_t first, n;    /* its blocks in the part */
	size_t outstanding; /* granted, not reported */
	bool quiet;	    /* it said that it touches no span any more */
};

struct extra { /* a copy that the plan did not name */
	uint32_t block;
	struct block *copy; /* pinned */
};

/* What a successor of the coordinator needs, and what is the same in every save of a structure; counted. */
struct kept_lists {
	uint32_t refs;
	uint64_t structure;
	struct buf ranks, places, rank_node; /* lists as they came */
};
void kept_lists_put(struct kept_lists *lists); /* accepts NULL */

struct msave {
	uint32_t refs; /* the lists have one; each fiber that works on its blocks */
	struct list link, group_link;
	struct groups *groups;
	struct mgroup *group;
	char *bundle;
	char coordinator[NODE_NAME_MAX + 1];
	uint64_t step, save_id, parent, epoch; /* epoch: the highest of a coordinator that spoke of it */
	uint32_t copies, policy, flags;
	struct buf attributes;
	uint32_t n_attributes;
	enum save_state state;
	struct list offers; /* struct moffer, by number */
	uint32_t n_offers;
	bool sent;   /* the merged offer is with the coordinator; or the node only holds copies */
	bool orphan; /* captured, and its coordinator is gone */
	bool hinted;
	struct part *part;
	struct mblock *blocks;
	struct block **received; /* beside part.receives; pinned */
	bool asking;		 /* a G_RESERVE of it is under way */
	bool admitted;		 /* blocks and received have their room */
	uint32_t last_rank;	 /* that reported what it captured */
	bool reported; /* all that was to be captured here is, and the coordinator knows: the verdict is its */
	bool waves;    /* and only some of them at a time */
	struct turn turn;
	struct extra *extras;
	size_t n_extras;
	struct buf kept; /* a G_KEEP's body without its lists; those are in: */
	struct kept_lists *kept_lists;
	struct list packings; /* holder.c's: packs that are being written here */
	uint64_t kept_slot;   /* the number that its coordinator opened; 0: none yet */
	struct waitplace changed;
	struct error error; /* why it failed */
};
void msave_put(struct msave *save); /* accepts NULL */
struct msave *msave_new(struct mgroup *group, struct view bundle, uint64_t step, const char *coordinator);
/* Of a node without ranks in it: it only holds copies. @body says of which save. */
struct msave *msave_new_holder(struct groups *groups, struct view tenant, struct view group, uint64_t incarnation,
			       struct view bundle, uint64_t step, const char *coordinator);
struct msave *msave_by_id(struct groups *groups, uint64_t save_id);
int msave_set_id(struct msave *save, uint64_t save_id);
/* The save of a coordinator's call, one reference more. NULL with words: not here, failed, or of an older coordinator (@ret_code). */
struct msave *msave_held(struct groups *groups, uint64_t save_id, uint64_t epoch, const char *from, int *ret_code,
			 struct error *e);
int msave_wait_while(struct msave *save, bool (*pending)(const struct msave *save),
		     uint64_t timeout_ms); /* 0, -ETIMEDOUT, -ECANCELED */
/* Its coordinator is @node from now on. */
void msave_adopt(struct msave *save, const char *node, uint64_t epoch);
/* Waits for the end of a save that is sent: asks its coordinator when nothing is heard, and looks for another when it is gone. 0, -ECANCELED. */
int orphan_watch(struct msave *save);
/* Ends the save here: tells the ranks, wakes who waits. Its blocks go once nobody can touch them. */
void msave_fail(struct msave *save, int code, const char *words);
/* Tells the ranks here the state that it has come to; @from: the figures, or why it failed. */
void msave_push_stage(struct msave *save, const struct msg_g_stage *from);
/* It has come to that state, captured or staged; the ranks here are told. */
void msave_reach(struct msave *save, enum save_state state, const struct msg_g_stage *from);
/* Of a captured or staged one: its blocks are clean cache from now on. */
void msave_end_durable(struct msave *save, const struct msg_g_stage *stage);
/* Lets go of an ended save once no rank can touch its spans. */
void msave_settled(struct msave *save);
/* Because of a rank of this node: the coordinator fails the save on all ranks, those that offered and those that will. */
void tell_failed(const struct mgroup *group, struct view bundle, uint64_t step, int code, const char *words);
struct moffer *msave_offer_of(struct msave *save, const struct rank *rank);

/* The checked contents of a block of this save are known: indexes it, or takes the pool's equal block instead. */
int msave_index(struct block **block, const struct digest *digest, uint32_t crc);

/* Outcomes of msave_admit() beside 0 and negative errno. */
enum {
	ADMIT_FULL = 1, /* no room on these terms, why in the words; a save that queues keeps its turn, until it ends */
};
struct admit_terms {
	bool queue;	  /* waits for its turn; else it must be free */
	uint32_t room_ms; /* then waits so long for room */
};
/* Waits. Room for all of the save's part, or none of it. -ERR_EPOOL: it can never fit. May be called again after ADMIT_FULL. */
int msave_admit(struct msave *save, const struct admit_terms *terms, uint64_t deadline_ns, struct error *e);
/*
 * A save that goes through takes no room at first, but a wave of blocks at a time: those from @first to before @last, which give their
 * room back once they are stored.
 */
int msave_begin_waves(struct msave *save);
int msave_admit_wave(struct msave *save, uint32_t first, uint32_t last, uint64_t deadline_ns, struct error *e);
void msave_release_wave(struct msave *save, uint32_t first, uint32_t last);
/* The rank's blocks of a wave, as places in the part. */
void moffer_range(const struct msave *save, const struct moffer *offer, uint32_t first, uint32_t last,
		  size_t *ret_begin, size_t *ret_end);
void msave_end_turn(struct msave *save); /* it has it no more, or does not wait for it */

void capture_serve(struct groups *groups);
void holder_serve(struct groups *groups);
void stage_serve(struct groups *groups);
/* msg_g_capture_reply: what is known of the blocks from @first to before @last, each thing once */
int report_answer(const struct msave *save, uint32_t first, uint32_t last, struct buf *answer);
