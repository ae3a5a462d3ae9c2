#include "bundle/share.h"

#include <errno.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/map.h"

/* What the new version uses of the parent. */
struct use {
	const struct version *parent;
	struct map known;   /* the parent's first block with that digest */
	bool *counted;	    /* of the parent's blocks */
	uint64_t *in_packs; /* bytes used of each pack */
};

static void use_fini(struct use *use)
{
	map_fini(&use->known);
	free(use->counted);
	free(use->in_packs);
}

static struct view digest_view(const struct digest *digest)
{
	return view_of(digest->b, DIGEST_BYTES);
}

static int use_init(struct use *use, const struct version *parent)
{
	*use = (struct use){ .parent = parent };
	map_init(&use->known);
	use->counted = calloc(parent->n_blocks + 1, sizeof(*use->counted));
	use->in_packs = calloc(parent->n_packs + 1, sizeof(*use->in_packs));
	if (!use->counted || !use->in_packs)
		return -ENOMEM;
	for (size_t i = 0; i < parent->n_blocks; i++) {
		struct version_block *block = &parent->blocks[i];
		int r = block->flags & BLOCK_HOLE ? 0 : map_put(&use->known, digest_view(&block->digest), block);

		if (r == -ENOMEM)
			return r;
	}
	return 0;
}

/* The parent's block that is equal, or SHARE_NOT. */
static uint32_t use_find(const struct use *use, const struct share_block *block)
{
	const struct version_block *same = block->hole ? NULL : map_get(&use->known, digest_view(&block->digest));

	return same && same->bytes == block->bytes ? (uint32_t)(same - use->parent->blocks) : SHARE_NOT;
}

static void use_count(struct use *use, uint32_t number)
{
	const struct version_block *block = &use->parent->blocks[number];

	if (use->counted[number])
		return;
	use->counted[number] = true;
	use->in_packs[block->pack] += block->bytes;
}

int share_with_parent(const struct version *parent, const struct share_block *blocks, size_t n, uint32_t *ret_from)
{
	_cleanup_(use_fini) struct use use;
	int r = use_init(&use, parent);

	if (r)
		return r;
	CHECK(parent->n_blocks < SHARE_NOT);
	for (size_t i = 0; i < n; i++) {
		ret_from[i] = use_find(&use, &blocks[i]);
		if (ret_from[i] != SHARE_NOT)
			use_count(&use, ret_from[i]);
	}
	for (size_t i = 0; i < n; i++) {
		uint32_t pack = ret_from[i] == SHARE_NOT ? 0 : parent->blocks[ret_from[i]].pack;

		if (ret_from[i] != SHARE_NOT && 2 * use.in_packs[pack] <= parent->packs[pack].bytes)
			ret_from[i] = SHARE_NOT;
	}
	return 0;
}
