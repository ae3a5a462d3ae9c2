/*
 * group/steps.h: what a run's steps have come to, so that each is saved once and whoever comes late to one that failed is told why. Pure.
 *
 * A run may take millions of steps: the oldest are forgotten beyond a limit, and might then be saved again. No rank is that late.
 */
#pragma once

#include "base/error.h"
#include "base/list.h"
#include "base/map.h"

#define STEPS_REMEMBERED_MAX 4096 /* of one run, on its coordinator, and of those that failed on each node */

struct step {
	struct list link;
	struct buf key; /* bundle 0 step */
	int code;	/* 0: it is saved, or being saved; else it failed, */
	char *words;	/* NULL: there was no memory for them */
};

struct steps {
	struct map map;	   /* struct step */
	struct list order; /* the oldest first */
};

void steps_init(struct steps *steps);
void steps_fini(struct steps *steps);
void steps_move(struct steps *from, struct steps *to); /* @to has none; then @from has none */
/* 0; the code and the words of a step that failed; -ERR_ESTEP, of one that is claimed; -ENOMEM. */
int steps_check(const struct steps *steps, struct view bundle, uint64_t step, struct error *e);
/* As steps_check(), and the step is claimed. */
int steps_claim(struct steps *steps, struct view bundle, uint64_t step, struct error *e);
/* It failed, whether it was claimed or not; the first reason stays. Without memory for it nothing is remembered. */
void steps_fail(struct steps *steps, struct view bundle, uint64_t step, int code, const char *words);
/* It may be claimed again. */
void steps_forget(struct steps *steps, struct view bundle, uint64_t step);
