/*
 * group/needs.h: which bytes of which blocks the boxes of a load need. Pure.
 *
 * Cost: n log n in boxes, pieces and needs, whatever the boxes are (plan/meet.h): for a million of them seconds, so where there are
 * more than a few it is done by a worker.
 */
#pragma once

#include "base/error.h"
#include "bundle/version.h"
#include "wire/message.h"

#define WANTS_MAX	1000000
#define NEEDS_MAX	(1u << 22) /* blocks of one load, each counted for each box that needs it: 128 MiB of memory */
#define NEEDS_STEPS_MAX (1ull << 32) /* to compare boxes with pieces: some ten seconds of a worker */
#define NEEDS_FEW	(1u << 14)   /* wants, pieces and blocks that may be looked at: about a millisecond */

struct need { /* some bytes of a block for one want */
	uint32_t block, want, piece;
	uint64_t offset; /* of the block in the piece's bytes */
};

struct needs {
	struct need *list; /* by place in the store, then block */
	size_t n;
	struct view *names; /* the wants' items, into the version */
	size_t n_wants;
	uint64_t steps; /* taken to compare boxes */
};

/* Would needs_find() look at no more than NEEDS_FEW. */
bool needs_are_few(const struct version *version, struct list_view wants);
/* -E2BIG, -ENOENT, -ERR_EMISMATCH with words, -EPROTO, -ENOMEM. On success *ret is to be given to needs_fini(). */
int needs_find(const struct version *version, struct list_view wants, struct needs *ret, struct error *e);
void needs_fini(struct needs *needs); /* accepts zeroed */
