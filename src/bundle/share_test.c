/* bundle/share_test.c: what a version takes from its parent, and what then is in the store after any history. */
#include "bundle/share.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS	 40  /* of a version */
#define PACKS	 4   /* that a version writes at most */
#define HISTORY	 400 /* versions one after the other */
#define KEPT	 3
#define OVERHEAD 4160 /* head and trailer of a pack */
#define NAMED_MAX \
	64 /* packs of a version: it uses over half of each, so they are fewer than its blocks and those that it writes */

static uint64_t dice_state;

static uint64_t dice(uint64_t below)
{
	dice_state = dice_state * UINT64_C(6364136223846793005) + 1442695040888963407u;
	return (dice_state >> 33) % below;
}

/* Content number @n: a digest that is its own, and a size that follows from it. */
static struct share_block content(uint64_t n)
{
	struct share_block block = { .bytes = 1000 + (uint32_t)(n * 7919 % 100000), .hole = n == 0 };

	memcpy(block.digest.b, &n, sizeof(n));
	return block;
}

static struct version *version_of(const struct share_block *blocks, size_t n, const uint32_t *packs,
				  const uint64_t *pack_bytes, size_t n_packs)
{
	struct version *version = version_new();

	assert_non_null(version);
	version->blocks = calloc(n + 1, sizeof(*version->blocks));
	version->packs = calloc(n_packs + 1, sizeof(*version->packs));
	assert_true(version->blocks && version->packs);
	for (size_t i = 0; i < n; i++)
		version->blocks[i] = (struct version_block){ .digest = blocks[i].digest,
							     .bytes = blocks[i].bytes,
							     .pack = packs[i],
							     .flags = blocks[i].hole ? BLOCK_HOLE : 0 };
	for (size_t i = 0; i < n_packs; i++)
		version->packs[i].bytes = pack_bytes[i];
	version->n_blocks = n;
	version->n_packs = n_packs;
	return version;
}

static void a_pack_is_shared_from_more_than_half_on(void **state)
{
	struct share_block blocks[4] = { content(1), content(2), content(3), content(4) };
	const uint32_t packs[4] = { 0, 0, 1, 1 };
	uint32_t from[3];

	blocks[0].bytes = blocks[1].bytes = blocks[2].bytes = 1000;
	blocks[3].bytes = 500;
	struct version *parent = version_of(blocks, 4, packs, (uint64_t[]){ 2000, 1500 }, 2);
	struct share_block child[3] = { blocks[2], blocks[0], content(9) };
	assert_int_equal(share_with_parent(parent, child, 3, from), 0);
	assert_int_equal(from[0], 2);	      /* 1000 of 1500 */
	assert_int_equal(from[1], SHARE_NOT); /* 1000 of 2000 is half, not more */
	assert_int_equal(from[2], SHARE_NOT);
	version_put(parent);
}

static void equal_blocks_count_once_and_holes_and_other_sizes_never(void **state)
{
	struct share_block blocks[3] = { content(1), content(2), content(0) };
	const uint32_t packs[3] = { 0, 0, UINT32_MAX };
	uint32_t from[4];

	blocks[0].bytes = 400;
	blocks[1].bytes = 600;
	struct version *parent = version_of(blocks, 3, packs, (uint64_t[]){ 1000 }, 1);
	struct share_block twice[4] = { blocks[0], blocks[0], blocks[0], content(0) };
	assert_int_equal(share_with_parent(parent, twice, 4, from), 0);
	for (int i = 0; i < 4; i++)
		assert_int_equal(from[i], SHARE_NOT);
	struct share_block other[2] = { blocks[1], blocks[0] };
	other[1].bytes++;
	assert_int_equal(share_with_parent(parent, other, 2, from), 0);
	assert_int_equal(from[0], 1);
	assert_int_equal(from[1], SHARE_NOT);
	version_put(parent);
}

/* ---- histories ---- */

struct stored { /* a pack, and who names it */
	uint64_t bytes;
	unsigned id;
};

struct made {
	struct version *version;
	unsigned packs[NAMED_MAX]; /* ids, as version->packs */
	bool live;
};

struct sum {
	uint64_t stored, used; /* bytes of packs that a version names; of their blocks that one needs */
	unsigned n;
};

/* Bytes of the blocks in that pack which versions that live need. */
static uint64_t used_of(const struct made *const *live, unsigned n, unsigned id, bool *seen, uint64_t n_contents)
{
	uint64_t used = 0;

	memset(seen, 0, n_contents);
	for (unsigned i = 0; i < n; i++) {
		for (size_t b = 0; b < live[i]->version->n_blocks; b++) {
			const struct version_block *block = &live[i]->version->blocks[b];
			uint64_t number;

			if (block->flags & BLOCK_HOLE || live[i]->packs[block->pack] != id)
				continue;
			memcpy(&number, block->digest.b, sizeof(number));
			used += seen[number] ? 0 : block->bytes;
			seen[number] = true;
		}
	}
	return used;
}

static bool names(const struct made *made, unsigned id)
{
	for (size_t k = 0; k < made->version->n_packs; k++)
		if (made->packs[k] == id)
			return true;
	return false;
}

static struct sum sum_up(const struct made *all, unsigned n, const struct stored *packs, unsigned n_packs,
			 uint64_t n_contents)
{
	const struct made *live[HISTORY];
	bool *seen = calloc(n_contents, sizeof(*seen));
	struct sum sum = { 0 };
	unsigned n_live = 0;

	assert_non_null(seen);
	for (unsigned i = 0; i < n; i++)
		if (all[i].live)
			live[n_live++] = &all[i];
	for (unsigned p = 0; p < n_packs; p++) {
		bool named = false;

		for (unsigned i = 0; i < n_live; i++)
			named |= names(live[i], packs[p].id);
		if (!named)
			continue;
		sum.n++;
		sum.stored += packs[p].bytes;
		sum.used += used_of(live, n_live, packs[p].id, seen, n_contents);
	}
	free(seen);
	return sum;
}

/* Makes the next version of @contents: what the parent gives is named, the rest dealt out to new packs. */
static void make(struct made *ret, const struct made *parent, const uint64_t *contents, struct stored *packs,
		 unsigned *n_packs)
{
	struct share_block blocks[BLOCKS];
	uint32_t from[BLOCKS], at[BLOCKS];
	uint64_t bytes[NAMED_MAX] = { 0 };
	unsigned n = (unsigned)1 + (unsigned)dice(PACKS), used = n;
	int named[NAMED_MAX];

	memset(named, -1, sizeof(named));
	for (unsigned i = 0; i < BLOCKS; i++) {
		blocks[i] = content(contents[i]);
		from[i] = SHARE_NOT;
	}
	if (parent)
		assert_int_equal(share_with_parent(parent->version, blocks, BLOCKS, from), 0);
	for (unsigned k = 0; k < n; k++) {
		ret->packs[k] = packs[*n_packs + k].id = *n_packs + k;
		bytes[k] = OVERHEAD;
	}
	for (unsigned i = 0; i < BLOCKS; i++) {
		at[i] = (uint32_t)dice(n);
		for (unsigned before = 0; before < i; before++)
			if (from[i] == SHARE_NOT && contents[before] == contents[i])
				at[i] = at[before];
		bool first = true;
		for (unsigned before = 0; before < i; before++)
			first &= contents[before] != contents[i];
		if (blocks[i].hole)
			at[i] = UINT32_MAX;
		else if (from[i] == SHARE_NOT)
			bytes[at[i]] += first ? blocks[i].bytes : 0;
		if (from[i] == SHARE_NOT)
			continue;
		assert_true(parent && !blocks[i].hole);
		uint32_t theirs = parent->version->blocks[from[i]].pack;
		assert_memory_equal(&parent->version->blocks[from[i]].digest, &blocks[i].digest, DIGEST_BYTES);
		if (named[theirs] < 0) {
			named[theirs] = (int)used;
			ret->packs[used] = parent->packs[theirs];
			bytes[used++] = parent->version->packs[theirs].bytes;
		}
		at[i] = (uint32_t)named[theirs];
	}
	for (unsigned k = 0; k < n; k++)
		packs[*n_packs + k].bytes = bytes[k];
	*n_packs += n;
	ret->version = version_of(blocks, BLOCKS, at, bytes, used);
	ret->live = true;
}

static void after_any_history_the_packs_that_are_named_have_at_most_twice_the_bytes_that_are_used(void **state)
{
	for (uint64_t seed = 1; seed <= 20; seed++) {
		struct made *all = calloc(HISTORY, sizeof(*all));
		struct stored *packs = calloc(HISTORY * PACKS, sizeof(*packs));
		uint64_t contents[BLOCKS], next = 1, change = 1 + seed % BLOCKS;
		unsigned n_packs = 0, shared = 0;

		assert_true(all && packs);
		dice_state = seed;
		for (unsigned i = 0; i < BLOCKS; i++)
			contents[i] = next++;
		for (unsigned i = 0; i < HISTORY; i++) {
			for (uint64_t k = 0; k < dice(change + 1); k++)
				contents[dice(BLOCKS)] = dice(10) ? next++ : dice(next);
			make(&all[i], i && all[i - 1].live ? &all[i - 1] : NULL, contents, packs, &n_packs);
			shared += all[i].version->n_packs > PACKS;
			if (i >= KEPT && dice(20))
				all[i - KEPT].live = false;
			if (dice(15) == 0)
				all[dice(i + 1)].live = false;
			struct sum sum = sum_up(all, i + 1, packs, n_packs, next);
			assert_true(sum.stored <= 2 * sum.used + sum.n * OVERHEAD);
		}
		assert_true(shared || change > BLOCKS / 2);
		for (unsigned i = 0; i < HISTORY; i++)
			version_put(all[i].version);
		free(all);
		free(packs);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_pack_is_shared_from_more_than_half_on),
		cmocka_unit_test(equal_blocks_count_once_and_holes_and_other_sizes_never),
		cmocka_unit_test(after_any_history_the_packs_that_are_named_have_at_most_twice_the_bytes_that_are_used),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
