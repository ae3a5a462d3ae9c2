/*
 * A space is an arena with what is known of it: room in pages, room in slabs (ranges of 256 KiB taken from the pages, tagged
 * with the page node to give back), the index of its blocks and its clean cache, oldest first.
 *
 * Invariant: a block is either pinned, or indexed, clean and in the cache's list; there is nothing else.
 */
#include "pool/pool.h"

#include <errno.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/map.h"
#include "pool/fit.h"

#define POOL_MAGIC  UINT32_C(0x6c6f6f70)
#define PAGE_BYTES  4096u
#define SMALL_BYTES 65536u /* smaller blocks lie in slabs */
#define SLAB_BYTES  (256u << 10)
#define SLAB_UNIT   64u

struct space {
	struct arena arena;
	struct fit pages, slabs;
	struct map index;
	struct list clean;
	uint64_t used_bytes, clean_bytes; /* of room, so rounded up to pages or units */
};

struct pool {
	uint32_t magic;
	struct env *env;
	struct space spaces[POOL_KINDS];
	uint64_t n_blocks, n_evictions;
	struct task room_task;
	void (*room)(void *arg);
	void *room_arg;
};

static struct view digest_view(const struct digest *digest)
{
	return view_of(digest->b, sizeof(digest->b));
}

static struct space *space_of(const struct block *block)
{
	return &block->pool->spaces[block->kind];
}

/* ---- room ---- */

static uint64_t room_of(uint32_t bytes)
{
	uint64_t step = bytes < SMALL_BYTES ? SLAB_UNIT : PAGE_BYTES;

	return (bytes + step - 1) / step * step;
}

static int slab_add(struct space *space)
{
	uint32_t node;
	int r = fit_take(&space->pages, SLAB_BYTES / PAGE_BYTES, &node);

	if (r)
		return r;
	uint64_t offset = fit_start(&space->pages, node) * PAGE_BYTES;
	r = fit_add(&space->slabs, offset / SLAB_UNIT, SLAB_BYTES / SLAB_UNIT, node);
	if (r)
		fit_give(&space->pages, node);
	return r;
}

/* 0, FIT_FULL, -ENOMEM. */
static int room_take(struct space *space, uint32_t bytes, uint32_t *ret_place, uint64_t *ret_offset)
{
	int r;

	if (bytes < SMALL_BYTES) {
		uint64_t units = room_of(bytes) / SLAB_UNIT;

		r = fit_take(&space->slabs, units, ret_place);
		if (r == FIT_FULL) {
			r = slab_add(space);
			if (!r)
				r = fit_take(&space->slabs, units, ret_place);
		}
		if (!r)
			*ret_offset = fit_start(&space->slabs, *ret_place) * SLAB_UNIT;
	} else {
		r = fit_take(&space->pages, room_of(bytes) / PAGE_BYTES, ret_place);
		if (!r)
			*ret_offset = fit_start(&space->pages, *ret_place) * PAGE_BYTES;
	}
	return r;
}

static void room_give(struct space *space, uint32_t bytes, uint32_t place)
{
	if (bytes >= SMALL_BYTES) {
		fit_give(&space->pages, place);
		return;
	}
	uint32_t page_node = fit_tag(&space->slabs, place);
	uint32_t node = fit_give(&space->slabs, place);
	if (fit_is_whole(&space->slabs, node)) {
		fit_remove(&space->slabs, node);
		fit_give(&space->pages, page_node);
	}
}

/* ---- the pool ---- */

static void room_fired(struct task *task)
{
	struct pool *pool = container_of(task, struct pool, room_task);

	if (pool->room)
		pool->room(pool->room_arg);
}

static void room_came(struct pool *pool)
{
	if (pool->room)
		loop_post(pool->env->loop, &pool->room_task);
}

static int space_init(struct env *env, struct space *space, uint64_t bytes, bool shared_read, struct error *e)
{
	size_t size = (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
	int r = env->ops->arena_new(env, size, shared_read, &space->arena, e);

	if (r)
		return r;
	r = fit_add(&space->pages, 0, size / PAGE_BYTES, 0);
	return r ? error_set(e, r, "no memory for the pool's tables") : 0;
}

int pool_new(struct env *env, uint64_t capture_bytes, uint64_t read_bytes, struct pool **ret, struct error *e)
{
	const uint64_t bytes[POOL_KINDS] = { [POOL_CAPTURE] = capture_bytes, [POOL_READ] = read_bytes };
	const char *names[POOL_KINDS] = { [POOL_CAPTURE] = "capture", [POOL_READ] = "read" };

	CHECK_MAGIC(env, ENV_MAGIC);
	for (int kind = 0; kind < POOL_KINDS; kind++)
		if (bytes[kind] < POOL_ARENA_MIN_BYTES || bytes[kind] > POOL_ARENA_MAX_BYTES)
			return error_set(e, -EINVAL, "%s arena of %llu bytes: it has at least %u and at most %llu",
					 names[kind], (unsigned long long)bytes[kind], POOL_ARENA_MIN_BYTES,
					 (unsigned long long)POOL_ARENA_MAX_BYTES);

	struct pool *pool = calloc(1, sizeof(*pool));
	if (!pool)
		return error_set(e, -ENOMEM, "no memory for a pool");
	*pool = (struct pool){ .magic = POOL_MAGIC, .env = env, .room_task.fn = room_fired };
	for (int kind = 0; kind < POOL_KINDS; kind++) {
		struct space *space = &pool->spaces[kind];

		fit_init(&space->pages);
		fit_init(&space->slabs);
		map_init(&space->index);
		list_init(&space->clean);
	}
	for (int kind = 0; kind < POOL_KINDS; kind++) {
		int r = space_init(env, &pool->spaces[kind], bytes[kind], kind == POOL_READ, e);
		if (r) {
			pool_free(pool);
			return r;
		}
	}
	*ret = pool;
	return 0;
}

const struct arena *pool_arena(const struct pool *pool, enum pool_kind kind)
{
	CHECK_MAGIC(pool, POOL_MAGIC);
	return &pool->spaces[kind].arena;
}

void pool_on_room(struct pool *pool, void (*room)(void *arg), void *arg)
{
	CHECK_MAGIC(pool, POOL_MAGIC);
	pool->room = room;
	pool->room_arg = arg;
}

void pool_stats(const struct pool *pool, struct pool_stats *ret)
{
	CHECK_MAGIC(pool, POOL_MAGIC);
	*ret = (struct pool_stats){ .blocks = pool->n_blocks, .evictions = pool->n_evictions };
	for (int kind = 0; kind < POOL_KINDS; kind++) {
		const struct space *space = &pool->spaces[kind];

		ret->bytes[kind] = space->arena.size;
		ret->used_bytes[kind] = space->used_bytes;
		ret->clean_bytes[kind] = space->clean_bytes;
	}
}

/* ---- blocks ---- */

static void unindex(struct block *block)
{
	if (!block->indexed)
		return;
	CHECK(map_remove(&space_of(block)->index, digest_view(&block->digest)) == block);
	block->indexed = false;
}

/* @block is in nobody's account any more. */
static void block_free(struct block *block)
{
	struct pool *pool = block->pool;

	CHECK(block->pins == 0 && list_empty(&block->lru));
	unindex(block);
	room_give(space_of(block), block->bytes, block->place);
	pool->n_blocks--;
	block->magic = 0;
	free(block);
}

static void cache_remove(struct block *block)
{
	struct space *space = space_of(block);

	list_remove(&block->lru);
	space->clean_bytes -= room_of(block->bytes);
}

void pool_free(struct pool *pool)
{
	if (!pool)
		return;
	CHECK_MAGIC(pool, POOL_MAGIC);
	task_cancel(&pool->room_task);
	for (int kind = 0; kind < POOL_KINDS; kind++) {
		struct space *space = &pool->spaces[kind];

		list_each(node, &space->clean) {
			struct block *block = list_entry(node, struct block, lru);

			cache_remove(block);
			block_free(block);
		}
		CHECK(space->used_bytes == 0); /* else a block is pinned */
		map_fini(&space->index);
		fit_fini(&space->pages);
		fit_fini(&space->slabs);
		if (space->arena.ptr)
			pool->env->ops->arena_free(pool->env, &space->arena);
	}
	CHECK(pool->n_blocks == 0);
	pool->magic = 0;
	free(pool);
}

/*
 * Room for @bytes, at the cost of the oldest clean blocks. Nothing leaves when it could not suffice; fragments may still make
 * it fail after some have left.
 */
static int room_make(struct pool *pool, struct space *space, uint32_t bytes, uint32_t *ret_place, uint64_t *ret_offset)
{
	if (space->used_bytes + room_of(bytes) > space->arena.size)
		return POOL_FULL;
	for (;;) {
		int r = room_take(space, bytes, ret_place, ret_offset);
		if (r != FIT_FULL)
			return r;
		if (list_empty(&space->clean))
			return POOL_FULL;

		struct block *oldest = list_entry(space->clean.next, struct block, lru);
		cache_remove(oldest);
		block_free(oldest);
		pool->n_evictions++;
	}
}

int pool_block_new(struct pool *pool, enum pool_kind kind, uint32_t bytes, struct block **ret)
{
	CHECK_MAGIC(pool, POOL_MAGIC);
	CHECK(kind < POOL_KINDS);
	if (!bytes || bytes > POOL_BLOCK_MAX_BYTES)
		return -EINVAL;

	struct space *space = &pool->spaces[kind];
	struct block *block = calloc(1, sizeof(*block));
	if (!block)
		return -ENOMEM;
	int r = room_make(pool, space, bytes, &block->place, &block->offset);
	if (r) {
		free(block);
		return r;
	}
	block->magic = BLOCK_MAGIC;
	block->pool = pool;
	block->kind = kind;
	block->bytes = bytes;
	block->ptr = space->arena.ptr + block->offset;
	block->pins = 1;
	list_init(&block->lru);
	space->used_bytes += room_of(bytes);
	pool->n_blocks++;
	*ret = block;
	return 0;
}

/* Nobody is told: who tries again whenever room comes would do so without end. */
static void take_back(struct block *block)
{
	space_of(block)->used_bytes -= room_of(block->bytes);
	block->pins = 0;
	block_free(block);
}

static int blocks_try(struct pool *pool, enum pool_kind kind, const uint32_t *bytes, size_t n, struct block **ret)
{
	size_t at = 0;
	int r = 0;

	while (at < n && !(r = pool_block_new(pool, kind, bytes[at], &ret[at])))
		at++;
	while (r && at)
		take_back(ret[--at]);
	return r;
}

/*
 * A first try may fail by what it has itself placed between cached blocks, of which none is left by then: a second one finds all that is
 * not pinned in one piece. Into an arena without pins the blocks go one behind the other, as in pool_room_of().
 */
int pool_blocks_new(struct pool *pool, enum pool_kind kind, const uint32_t *bytes, size_t n, struct block **ret)
{
	uint64_t room = 0;

	CHECK_MAGIC(pool, POOL_MAGIC);
	CHECK(kind < POOL_KINDS);
	for (size_t i = 0; i < n; i++) {
		if (!bytes[i] || bytes[i] > POOL_BLOCK_MAX_BYTES)
			return -EINVAL;
		room += room_of(bytes[i]);
	}
	if (room > pool->spaces[kind].arena.size - pool->spaces[kind].used_bytes)
		return POOL_FULL; /* and nothing leaves the cache for it */
	int r = blocks_try(pool, kind, bytes, n, ret);
	return r == POOL_FULL ? blocks_try(pool, kind, bytes, n, ret) : r;
}

int pool_room_of(const uint32_t *bytes, size_t n, uint64_t *ret_room_bytes)
{
	struct space *space = calloc(1, sizeof(*space)); /* an arena without end */
	uint64_t offset;
	uint32_t place;

	if (!space)
		return -ENOMEM;
	fit_init(&space->pages);
	fit_init(&space->slabs);
	int r = fit_add(&space->pages, 0, FIT_UNITS_MAX - 1, 0);
	for (size_t i = 0; !r && i < n; i++)
		r = bytes[i] && bytes[i] <= POOL_BLOCK_MAX_BYTES ? room_take(space, bytes[i], &place, &offset) :
								   -EINVAL;
	if (!r)
		*ret_room_bytes = (FIT_UNITS_MAX - 1 - space->pages.free_units) * PAGE_BYTES;
	fit_fini(&space->pages);
	fit_fini(&space->slabs);
	free(space);
	return r == FIT_FULL ? -EINVAL : r;
}

int pool_block_index(struct block *block, const struct digest *digest, uint32_t crc)
{
	CHECK_MAGIC(block, BLOCK_MAGIC);
	CHECK(block->pins > 0 && !block->indexed);

	int r = map_put(&space_of(block)->index, digest_view(digest), block);
	if (r)
		return r == -EEXIST ? POOL_KNOWN : r;
	block->digest = *digest;
	block->crc = crc;
	block->indexed = true;
	return 0;
}

void pool_block_set_clean(struct block *block)
{
	CHECK_MAGIC(block, BLOCK_MAGIC);
	block->clean = true;
}

struct block *pool_find(struct pool *pool, const struct digest *digest)
{
	CHECK_MAGIC(pool, POOL_MAGIC);
	struct block *block = map_get(&pool->spaces[POOL_READ].index, digest_view(digest));
	if (!block)
		block = map_get(&pool->spaces[POOL_CAPTURE].index, digest_view(digest));
	if (block)
		block_pin(block);
	return block;
}

void block_pin(struct block *block)
{
	CHECK_MAGIC(block, BLOCK_MAGIC);
	CHECK(block->pins < UINT32_MAX);
	if (block->pins++)
		return;
	cache_remove(block);
	space_of(block)->used_bytes += room_of(block->bytes);
}

void block_unpin(struct block *block)
{
	if (!block)
		return;
	CHECK_MAGIC(block, BLOCK_MAGIC);
	CHECK(block->pins > 0);
	if (--block->pins)
		return;

	struct pool *pool = block->pool;
	struct space *space = space_of(block);
	space->used_bytes -= room_of(block->bytes);
	if (block->indexed && block->clean) {
		list_append(&space->clean, &block->lru);
		space->clean_bytes += room_of(block->bytes);
	} else {
		block_free(block);
	}
	room_came(pool);
}

void pool_block_forget(struct block *block)
{
	CHECK_MAGIC(block, BLOCK_MAGIC);
	unindex(block);
	if (block->pins)
		return;

	struct pool *pool = block->pool;
	cache_remove(block);
	block_free(block);
	room_came(pool);
}
