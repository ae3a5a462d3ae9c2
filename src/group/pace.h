/*
 * group/pace.h: which of the nodes that write packs are slow: alive, but far behind what was planned for them. Pure.
 *
 * A node's pace is what it writes against the rate that the plan counted with. It is compared with the pace of the others that write
 * at the same time, or have written: so a store that is slow for all makes no node slow, and planned rates that nobody knows
 * are good enough. A pace is taken over the last PACE_LOOKS looks; what has no byte left to write, but is not durable, by its whole time.
 * A node that had written all and is given more begins anew: until it has been looked at so often again, what it came to before counts.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PACE_LOOK_MS 500 /* between two looks */
#define PACE_LOOKS   4	 /* a pace is taken over so many of them: 2 s */
#define PACE_PART    4	 /* slow: under one part of so many of what others come to */

struct pace_node {
	uint64_t
		rate; /* that the plan counts with, bytes per s; 0: it is not looked at, nor are others compared with it */
	uint64_t bytes;		       /* that it has to write; 0 likewise */
	uint64_t done[PACE_LOOKS + 1]; /* of these, at the last looks: a ring */
	uint64_t begun_ns;
	uint64_t took_ns; /* all was durable after that time; 0: not yet */
	uint64_t pace;	  /* in millionths of the rate; at most all of it */
	unsigned looks;	  /* since it began */
	bool known;	  /* the pace is: it has ended once, or was looked at often enough */
};

struct pace {
	struct pace_node *nodes; /* the caller's, as is: */
	uint64_t *sorted;	 /* room for n: the paces at the last look */
	size_t n, n_sorted;
	uint64_t begun_ns;
	uint64_t at_ns[PACE_LOOKS + 1]; /* of the last looks: a ring */
	unsigned looks;			/* so far */
};

/*
 * It begins to write, the first time or anew; how much, the caller says in its bytes, from then on: 0 until the next look that knows of it, so
 * that one which is under way does not take what it had done before for a part of it.
 */
void pace_begin(struct pace *pace, size_t node, uint64_t now_ns);
/* A look at @now_ns: @done per node, which never falls here, whatever the nodes say. */
void pace_look(struct pace *pace, const uint64_t *done, uint64_t now_ns);
/* What was seen so far says that it is slow. */
bool pace_is_slow(const struct pace *pace, size_t node);
/* And that others, at their pace, would have written all of it anew before it has written the rest. */
bool pace_is_hopeless(const struct pace *pace, size_t node);
/* Of one that has ended: it took so many looks or longer, and far longer than others for what it had to do. */
bool pace_was_slow(const struct pace *pace, size_t node);
