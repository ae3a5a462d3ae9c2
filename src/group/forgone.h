/*
 * group/forgone.h: grouped loads that a rank will not take its part in, so that whoever comes for his later is told at once. Pure.
 *
 * Without memory of its own, since it is needed when there is none. The oldest are forgotten beyond a limit; who comes for one of those
 * waits to his deadline.
 */
#pragma once

#include "base/bytes.h"
#include "group/nth.h"

#define FORGONE_MAX	  16  /* of one run, on its coordinator and on each node */
#define FORGONE_WORDS_MAX 256 /* bytes with the final 0 */

struct forgone { /* zeroed: none */
	struct forgone_load {
		struct nth nth; /* counts from 1 on; 0: none */
		char words[FORGONE_WORDS_MAX];
	} loads[FORGONE_MAX];
	unsigned n; /* ever */
};

/* The first words stay. */
void forgone_put(struct forgone *forgone, const struct nth *nth, struct view words);
const char *forgone_find(const struct forgone *forgone, const struct nth *nth); /* the words, or NULL */
