/*
 * sim/kth_suite.h: one fixed history in which one call fails: two nodes start, a job of two ranks with copies=2 saves, saves with a hint,
 * loads as a group, labels, lists, deletes, collects and leaves, and the nodes stop. Every call under test (strike.h) is counted, and
 * the k-th fails. Each step of a rank may end with a named error, which ends the rank, as it would a trainer. Then, in health: the next
 * job saves and loads; whatever was durable is there and right, also once the nodes have started again; and nothing is left.
 *
 *	kth_suite.c	the history
 *	kth_run_suite.c	every k, each in a process of its own
 */
#pragma once

#include <stdint.h>
#include <stdio.h>

#include "sim/strike.h"

enum kth_end { KTH_WELL, KTH_NAMED, KTH_CRASH, KTH_HANG, KTH_LEAK, KTH_WRONG, KTH_ENDS };

struct kth_result {
	enum kth_end end;
	uint64_t seen;	  /* calls */
	bool late;	  /* something ended only by its deadline: a failure, too */
	char words[1024]; /* the first error that somebody was told, or what went wrong */
};

/* Plays the history. @story: where it is told, or NULL. */
void kth_play(enum strike_kind kind, uint64_t k, FILE *story, struct kth_result *ret);

/* forebay-sim --kth. Prints what was tried and how it ended; the exit status. */
int kth_main(int argc, char **argv);

double seconds_now(void); /* of the wall */
