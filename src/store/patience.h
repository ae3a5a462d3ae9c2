/*
 * store/patience.h: how long a read from the store may take before it is asked again, and how often that may be done.
 *
 * The limit follows what reads have taken lately: a store that is slow as a whole is waited for, one read that takes many times as
 * long as its like is not. Each read earns a small part of a second one, so that those who ask again never double a busy store's load.
 *
 * Pure: no clock, no allocation, no I/O.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define PATIENCE_SEEN	  64   /* reads that are remembered */
#define PATIENCE_TIMES	  4    /* the limit is so many times what nine of ten of them took at most, */
#define PATIENCE_FLOOR_MS 500  /* and not less than this: below it a second read costs more than it saves */
#define PATIENCE_FIRST_MS 3000 /* the limit until PATIENCE_FEW reads have been seen */
#define PATIENCE_FEW	  8
#define AGAIN_EVERY	  20 /* reads for one second read: 5 % */
#define AGAIN_MAX	  8  /* second reads that can be saved up */
#define AGAIN_AT_START	  2  /* a node's first reads may stall, too */

struct patience {
	uint64_t took_ns[PATIENCE_SEEN]; /* a ring */
	uint64_t n_seen;
	uint32_t earned; /* in reads: AGAIN_EVERY of them pay for one second read */
};

void patience_init(struct patience *patience);
void patience_saw(struct patience *patience, uint64_t took_ns); /* a read that ended well */
uint64_t patience_limit_ns(const struct patience *patience);
void patience_asked(struct patience *patience); /* a first read begins */
bool patience_again(struct patience *patience); /* May one be asked again? Then that is paid for. */
