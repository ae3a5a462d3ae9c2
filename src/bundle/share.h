/*
 * bundle/share.h: which blocks of a new version need not be written again, since its parent has them. Pure.
 *
 * A pack of the parent is named only by a version that uses over half of it. So of every pack in the store more than half is alive in
 * some version, unless none names it, whatever the history was: the store holds less than twice what lives, and no pack is ever
 * written anew.
 */
#pragma once

#include "bundle/version.h"

#define SHARE_NOT UINT32_MAX

/* A block of the new version; a hole has nothing to share. */
struct share_block {
	struct digest digest;
	uint32_t bytes;
	bool hole;
};

/*
 * For each of @blocks the number of the parent's block whose place it takes, or SHARE_NOT: it is written. Blocks that are equal get the same
 * answer. @parent: pinned by the slot that is being written (slot.pinned); with fewer than 2^32 blocks. Waits for nothing. 0, -ENOMEM.
 */
int share_with_parent(const struct version *parent, const struct share_block *blocks, size_t n, uint32_t *ret_from);
