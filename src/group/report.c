/*
 * group/report.c: what a node tells its coordinator of what its ranks captured: of each block once, for all ranks that agree, and what
 * others say beside it. Replicas of a node are thus compared where they are, those of several nodes by the coordinator.
 */
#include <errno.h>
#include <stdlib.h>

#include "group/member.h"

static int by_block_and_mode(const void *a, const void *b, void *arg)
{
	const uint32_t i = *(const uint32_t *)a, k = *(const uint32_t *)b;
	const struct part_block *blocks = arg, *x = &blocks[i], *y = &blocks[k];

	if (x->block != y->block)
		return x->block < y->block ? -1 : 1;
	if (x->mode != y->mode)
		return x->mode < y->mode ? -1 : 1; /* CAPTURE_COPY is the first */
	return (i > k) - (i < k);
}

int part_order(struct part *part)
{
	part->order = calloc(part->n_blocks + 1, sizeof(*part->order));
	if (!part->order)
		return -ENOMEM;
	for (size_t i = 0; i < part->n_blocks; i++)
		part->order[i] = (uint32_t)i;
	qsort_r(part->order, part->n_blocks, sizeof(*part->order), by_block_and_mode, part->blocks);
	return 0;
}

/* The first place in the order whose block is not below @block. */
static size_t find_block(const struct part *part, uint32_t block)
{
	size_t low = 0, high = part->n_blocks;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (part->blocks[part->order[middle]].block < block)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static int add_report(const struct msave *save, size_t place, struct list_buf *list)
{
	const struct mblock *block = &save->blocks[place];
	const struct elem_g_filled filled = { .block = save->part->blocks[place].block,
					      .rank = save->part->blocks[place].rank,
					      .crc = block->crc,
					      .flags = block->flags,
					      .sample = block->sample,
					      .digest = block->digest };

	return elem_g_filled_append(list, &filled);
}

static bool says_the_same(const struct mblock *a, const struct mblock *b)
{
	return a->sample == b->sample && digest_equal(&a->digest, &b->digest);
}

int report_answer(const struct msave *save, uint32_t first, uint32_t last, struct buf *answer)
{
	const struct part *part = save->part;
	_cleanup_(list_buf_fini) struct list_buf list = { 0 };
	struct msg_g_capture_reply reply = { .last_rank = save->last_rank };
	const struct mblock *told = NULL; /* what was said first of the block @of */
	uint32_t of = 0;
	int r = 0;

	for (size_t i = find_block(part, first); !r && i < part->n_blocks; i++) {
		const struct part_block *planned = &part->blocks[part->order[i]];
		const struct mblock *block = &save->blocks[part->order[i]];
		bool is_copy = planned->mode == CAPTURE_COPY;

		if (planned->block >= last)
			break;
		if (!block->filled)
			continue;
		reply.bytes += is_copy ? planned->bytes : 0;
		if (told && of == planned->block && !is_copy && says_the_same(told, block))
			continue;
		r = add_report(save, part->order[i], &list);
		if (!told || of != planned->block)
			told = block;
		of = planned->block;
	}
	reply.filled = list_buf_view(&list);
	return r ? r : msg_g_capture_reply_encode(&reply, answer);
}
