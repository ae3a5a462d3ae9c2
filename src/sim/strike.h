/*
 * sim/strike.h: the k-th call of a kind fails, once. Code under test is whatever runs while the strike is armed, but for scopes that are
 * SPARED: what the simulator and its stories allocate for themselves never fails, nor is it counted.
 *
 * A kind's calls come in the same order in each run of one history, up to the one that fails.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"

enum strike_kind { STRIKE_MEMORY, STRIKE_FILE, STRIKE_SOCKET, STRIKE_KINDS };
#define STRIKE_NONE UINT64_MAX /* as k: only counts */

void strike_set(enum strike_kind kind, uint64_t k); /* from 0; not armed yet, and nothing seen */
void strike_arm(bool on);
bool strike_here(enum strike_kind kind); /* counts; does this call fail? */
uint64_t strike_seen(void);		 /* of the kind that was set */
int64_t strike_outstanding(void);	 /* allocations that nobody has freed, where memory_suite.c is linked in */

/* Scope guard of what is not under test. The scope must not wait, since other fibers would be spared, too. */
#define SPARED _cleanup_(strike_unspare) __attribute__((unused)) unsigned strike_spared_here = strike_spare()
unsigned strike_spare(void);
void strike_unspare(unsigned *depth);
