/*
 * plan/deal.h: whole blocks along fluid shares.
 *
 * A block of a class goes to the pipe in whose share its first byte falls, so a pipe gets more than its share by less than a
 * block. A pipe with shares of many classes would get that much too much from each. So the shares are first made a forest, as
 * Lenstra, Shmoys and Tardos (1990) do: around every cycle of classes and pipes bytes are moved until one share is empty, which
 * changes neither what a class has nor what a pipe carries. In a rooted tree every pipe has one class above it at most, and
 * every class one pipe: that pipe is served last and gets no more than its share. Hence
 *
 *	what a pipe gets < the sum of its shares + the largest block.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "plan/level.h"

struct deal {
	struct share *shares; /* by class, in the order in which they are served */
	size_t n_shares;
	uint32_t *first; /* by class, n_classes + 1, into shares; moves on while blocks are dealt */
	uint64_t *taken; /* by class: bytes of its share at hand that are gone; may exceed it */
};

/* Takes @shares, of which it may change the bytes. 0 or -ENOMEM. */
int deal_init(struct deal *deal, struct shares *shares, size_t n_classes, size_t n_pipes);
void deal_fini(struct deal *deal); /* accepts zeroed */
/* The pipe that gets the class's next block. A class's blocks must not add up to more than its shares. */
uint32_t deal_next(struct deal *deal, uint32_t class, uint64_t bytes);
