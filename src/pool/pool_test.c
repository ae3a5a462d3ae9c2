#include "pool/pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define KIB 1024u
#define MIB (1024u * KIB)

/* A world that has nothing but a loop and arenas. */
static uint64_t clock_now(void *arg)
{
	return 0;
}

static int clock_poll(void *arg, uint64_t until_ns)
{
	return 0;
}

static void clock_wake(void *arg)
{
}

static int arenas_left, arenas_alive;

static int arena_new(struct env *env, size_t size, bool shared_read, struct arena *ret, struct error *e)
{
	if (!arenas_left)
		return error_set(e, -ENOMEM, "no arena of %zu bytes", size);
	arenas_left--;
	arenas_alive++;
	*ret = (struct arena){ .ptr = calloc(1, size), .size = size, .id = shared_read ? 2 : 1, .fd = -1 };
	return 0;
}

static void arena_free(struct env *env, struct arena *arena)
{
	free(arena->ptr);
	arenas_alive--;
}

static const struct env_ops ops = { .arena_new = arena_new, .arena_free = arena_free };
static struct env env = { .magic = ENV_MAGIC, .ops = &ops, .name = "test" };
static struct pool *pool;

static int setup(void **state)
{
	const struct clockwork clockwork = { .now = clock_now, .poll = clock_poll, .wake = clock_wake };

	env.loop = loop_new(&clockwork);
	arenas_left = 2;
	return pool_new(&env, 8 * MIB, MIB, &pool, NULL);
}

static int teardown(void **state)
{
	pool_free(pool);
	loop_free(env.loop);
	return arenas_alive;
}

static struct block *new_block(enum pool_kind kind, uint32_t bytes)
{
	struct block *block;

	assert_int_equal(pool_block_new(pool, kind, bytes, &block), 0);
	return block;
}

static void index_as(struct block *block, const char *name)
{
	struct digest digest = digest_of(name, strlen(name));

	assert_int_equal(pool_block_index(block, &digest, 7), 0);
}

static struct block *find(const char *name)
{
	struct digest digest = digest_of(name, strlen(name));

	return pool_find(pool, &digest);
}

/* A clean block in the cache. */
static void cache(enum pool_kind kind, uint32_t bytes, const char *name)
{
	struct block *block = new_block(kind, bytes);

	index_as(block, name);
	pool_block_set_clean(block);
	block_unpin(block);
}

static bool is_cached(const char *name)
{
	struct block *block = find(name);

	block_unpin(block);
	return block;
}

static struct pool_stats stats(void)
{
	struct pool_stats s;

	pool_stats(pool, &s);
	return s;
}

static void sizes_out_of_bounds_are_refused(void **state)
{
	struct pool *other;
	struct block *block;
	struct error e = { 0 };

	assert_int_equal(pool_new(&env, MIB - 1, MIB, &other, &e), -EINVAL);
	assert_non_null(strstr(e.text, "capture arena of 1048575 bytes"));
	assert_int_equal(pool_new(&env, MIB, POOL_ARENA_MAX_BYTES + 1, &other, &e), -EINVAL);
	assert_int_equal(pool_block_new(pool, POOL_READ, 0, &block), -EINVAL);
	assert_int_equal(pool_block_new(pool, POOL_READ, POOL_BLOCK_MAX_BYTES + 1, &block), -EINVAL);
}

static void a_pool_without_its_second_arena_gives_the_first_one_back(void **state)
{
	struct pool *other;

	arenas_left = 1;
	assert_int_equal(pool_new(&env, MIB, MIB, &other, NULL), -ENOMEM);
	assert_int_equal(arenas_alive, 2); /* those of setup */
}

static void a_block_lies_in_the_arena_of_its_kind(void **state)
{
	struct block *a = new_block(POOL_CAPTURE, 100), *b = new_block(POOL_READ, 100 * KIB);

	assert_ptr_equal(a->ptr, pool_arena(pool, POOL_CAPTURE)->ptr + a->offset);
	assert_ptr_equal(b->ptr, pool_arena(pool, POOL_READ)->ptr + b->offset);
	assert_int_equal(pool_arena(pool, POOL_READ)->id, 2);
	assert_int_equal(b->offset % 4096, 0);
	block_unpin(a);
	block_unpin(b);
}

static void a_block_as_large_as_the_arena_fits_exactly(void **state)
{
	struct block *one = new_block(POOL_CAPTURE, 8 * MIB), *other;

	assert_int_equal(pool_block_new(pool, POOL_CAPTURE, 1, &other), POOL_FULL);
	block_unpin(one);
	block_unpin(new_block(POOL_CAPTURE, 8 * MIB));
}

static void small_blocks_share_a_slab_and_give_it_back(void **state)
{
	struct block *blocks[64];

	for (int i = 0; i < 64; i++)
		blocks[i] = new_block(POOL_READ, 4 * KIB - 63);
	for (int i = 0; i < 64; i++)
		assert_int_equal(blocks[i]->offset / (256 * KIB), blocks[0]->offset / (256 * KIB));

	struct block *rest = new_block(POOL_READ, MIB - 256 * KIB);
	block_unpin(rest);
	for (int i = 0; i < 64; i++)
		block_unpin(blocks[i]);
	block_unpin(new_block(POOL_READ, MIB));
}

static void a_dirty_block_ends_with_its_last_pin(void **state)
{
	struct block *block = new_block(POOL_CAPTURE, 100);

	index_as(block, "a");
	assert_ptr_equal(find("a"), block);
	block_unpin(block);
	assert_ptr_equal(find("a"), block);
	block_unpin(block);
	block_unpin(block);
	assert_null(find("a"));
	assert_int_equal(stats().blocks, 0);
}

static void a_clean_block_without_a_digest_ends_as_well(void **state)
{
	struct block *block = new_block(POOL_CAPTURE, 100);

	pool_block_set_clean(block);
	block_unpin(block);
	assert_int_equal(stats().blocks, 0);
}

static void a_clean_block_stays_as_cache_and_comes_back_pinned(void **state)
{
	cache(POOL_READ, 100 * KIB, "a");
	assert_int_equal(stats().clean_bytes[POOL_READ], 100 * KIB);
	assert_int_equal(stats().used_bytes[POOL_READ], 0);

	struct block *block = find("a");
	assert_int_equal(block->pins, 1);
	assert_int_equal(block->crc, 7);
	assert_int_equal(stats().clean_bytes[POOL_READ], 0);
	assert_int_equal(stats().used_bytes[POOL_READ], 100 * KIB);
	block_unpin(block);
}

static void the_oldest_clean_blocks_leave_when_room_is_needed(void **state)
{
	cache(POOL_READ, 256 * KIB, "a");
	cache(POOL_READ, 256 * KIB, "b");
	cache(POOL_READ, 256 * KIB, "c");
	cache(POOL_READ, 256 * KIB, "d");
	assert_true(is_cached("a")); /* and now the youngest */

	struct block *block = new_block(POOL_READ, 200 * KIB);
	assert_int_equal(stats().evictions, 1);
	assert_false(is_cached("b"));
	assert_true(is_cached("c") && is_cached("d") && is_cached("a"));
	block_unpin(block);
}

static void nothing_leaves_for_a_block_that_cannot_fit_anyway(void **state)
{
	struct block *pinned = new_block(POOL_READ, 256 * KIB), *block;

	cache(POOL_READ, 256 * KIB, "a");
	assert_int_equal(pool_block_new(pool, POOL_READ, MIB, &block), POOL_FULL);
	assert_true(is_cached("a"));
	assert_int_equal(stats().evictions, 0);
	block_unpin(pinned);
}

static void pinned_and_dirty_blocks_never_leave(void **state)
{
	cache(POOL_READ, 512 * KIB, "a");
	struct block *pinned = find("a"), *dirty = new_block(POOL_READ, 512 * KIB), *block;

	assert_int_equal(pool_block_new(pool, POOL_READ, 100, &block), POOL_FULL);
	block_unpin(pinned);
	block = new_block(POOL_READ, 100);
	assert_false(is_cached("a"));
	block_unpin(block);
	block_unpin(dirty);
}

static void the_cache_of_one_kind_does_not_make_room_in_the_other(void **state)
{
	struct block *pinned = new_block(POOL_READ, MIB), *block;

	cache(POOL_CAPTURE, MIB, "a");
	assert_int_equal(pool_block_new(pool, POOL_READ, 100, &block), POOL_FULL);
	assert_true(is_cached("a"));
	block_unpin(pinned);
}

static void a_digest_is_known_once_a_kind_and_the_read_arena_is_given_first(void **state)
{
	struct digest digest = digest_of("a", 1);
	struct block *captured = new_block(POOL_CAPTURE, 100), *twin = new_block(POOL_CAPTURE, 100);

	index_as(captured, "a");
	assert_int_equal(pool_block_index(twin, &digest, 7), POOL_KNOWN);
	assert_false(twin->indexed);

	struct block *read = new_block(POOL_READ, 100);
	index_as(read, "a");
	assert_ptr_equal(find("a"), read);
	block_unpin(read);
	block_unpin(read);
	assert_ptr_equal(find("a"), captured);
	block_unpin(captured);
	block_unpin(captured);
	block_unpin(twin);
}

static void a_forgotten_block_is_not_found_and_ends_with_its_pins(void **state)
{
	struct block *block;

	cache(POOL_READ, 100, "a");
	block = find("a");
	pool_block_forget(block);
	assert_null(find("a"));
	assert_int_equal(stats().blocks, 1);
	block_unpin(block);
	assert_int_equal(stats().blocks, 0);

	cache(POOL_READ, 100, "b");
	block = find("b");
	block_unpin(block);
	pool_block_forget(block);
	assert_null(find("b"));
	assert_int_equal(stats().blocks, 0);
}

static int rooms;

static void count_room(void *arg)
{
	rooms++;
}

static void the_listener_is_told_later_and_once_for_many(void **state)
{
	struct block *a = new_block(POOL_READ, 100), *b = new_block(POOL_READ, 100);

	rooms = 0;
	pool_on_room(pool, count_room, NULL);
	block_unpin(a);
	block_unpin(b);
	assert_int_equal(rooms, 0);
	loop_turn(env.loop);
	assert_int_equal(rooms, 1);

	block_unpin(new_block(POOL_READ, 100)); /* and a pool may end before it could tell */
}

static void a_try_in_vain_is_no_news(void **state)
{
	const uint32_t sizes[] = { 400 * KIB, 300 * KIB };
	struct block *low = new_block(POOL_READ, 256 * KIB), *middle = new_block(POOL_READ, 256 * KIB), *blocks[2];

	block_unpin(low);
	loop_turn(env.loop);
	rooms = 0;
	pool_on_room(pool, count_room, NULL);
	assert_int_equal(pool_blocks_new(pool, POOL_READ, sizes, 2, blocks), POOL_FULL);
	loop_turn(env.loop);
	assert_int_equal(rooms, 0);
	assert_int_equal(stats().used_bytes[POOL_READ], 256 * KIB);
	block_unpin(middle);
}

/* ---- property: whatever happens, bytes stay what they were and the sums are right ---- */

#define LIVE 200

struct live {
	struct block *block;
	uint8_t pattern;
	unsigned pins;
};

static uint64_t draw(uint64_t *x)
{
	*x ^= *x << 13, *x ^= *x >> 7, *x ^= *x << 17;
	return *x;
}

static uint32_t draw_size(uint64_t *x)
{
	uint32_t most = 1u << (4 + draw(x) % 17); /* 16 B to 1 MiB */

	return 1 + (uint32_t)(draw(x) % most);
}

static void check_all(const struct live *live, size_t n)
{
	uint64_t used[POOL_KINDS] = { 0 };

	for (size_t i = 0; i < n; i++) {
		const struct block *b = live[i].block;
		uint32_t step = b->bytes < 64 * KIB ? 64 : 4096;

		assert_int_equal(b->pins, live[i].pins);
		assert_int_equal(b->ptr[0], live[i].pattern);
		assert_int_equal(b->ptr[b->bytes / 2], live[i].pattern);
		assert_int_equal(b->ptr[b->bytes - 1], live[i].pattern);
		used[b->kind] += (b->bytes + step - 1) / step * step;
	}
	struct pool_stats s = stats();
	for (int kind = 0; kind < POOL_KINDS; kind++) {
		assert_int_equal(s.used_bytes[kind], used[kind]);
		assert_true(s.used_bytes[kind] + s.clean_bytes[kind] <= s.bytes[kind]);
	}
}

static void random_histories_keep_bytes_and_sums(void **state)
{
	uint64_t x = 88172645463325252, names = 0;
	struct live live[LIVE];
	size_t n = 0;
	unsigned full = 0;

	for (int round = 0; round < 20000; round++) {
		uint64_t dice = draw(&x) % 100;

		if (dice < 50 && n < LIVE) {
			enum pool_kind kind = draw(&x) % POOL_KINDS;
			struct block *block;
			int r = pool_block_new(pool, kind, draw_size(&x), &block);

			if (r == POOL_FULL) {
				full++;
				continue;
			}
			assert_int_equal(r, 0);
			live[n] = (struct live){ .block = block, .pattern = (uint8_t)draw(&x), .pins = 1 };
			memset(block->ptr, live[n].pattern, block->bytes);
			n++;
		} else if (dice < 70 && n) {
			struct live *l = &live[draw(&x) % n];

			if (!l->block->indexed) {
				struct digest digest = digest_of(&names, sizeof(names));
				names++;
				assert_int_equal(pool_block_index(l->block, &digest, 0), 0);
			}
			pool_block_set_clean(l->block);
		} else if (dice < 75 && names) {
			uint64_t name = draw(&x) % names;
			struct digest digest = digest_of(&name, sizeof(name));
			struct block *block = pool_find(pool, &digest);
			size_t i = 0;

			while (block && i < n && live[i].block != block)
				i++;
			if (block && i < n)
				live[i].pins++;
			else if (block && n < LIVE)
				live[n++] = (struct live){ .block = block, .pattern = block->ptr[0], .pins = 1 };
			else
				block_unpin(block);
		} else if (n) {
			size_t i = draw(&x) % n;

			block_unpin(live[i].block);
			if (!--live[i].pins)
				live[i] = live[--n];
		}
		if (round % 16 == 0)
			check_all(live, n);
	}
	while (n)
		for (n--; live[n].pins; live[n].pins--)
			block_unpin(live[n].block);

	assert_true(full > 100 && stats().evictions > 100); /* the history was rough enough */
	block_unpin(new_block(POOL_CAPTURE, 8 * MIB));
	block_unpin(new_block(POOL_READ, MIB));
	assert_int_equal(stats().blocks, 0);
}

/* ---- property: a share that an empty arena holds gets its room once nothing is pinned, whatever has been before ---- */

static void blocks_come_all_or_none(void **state)
{
	const uint32_t sizes[] = { 512 * KIB, 256 * KIB, 256 * KIB };
	struct block *pinned = new_block(POOL_READ, 100), *blocks[3];

	assert_int_equal(pool_blocks_new(pool, POOL_READ, sizes, 3, blocks), POOL_FULL);
	assert_int_equal(stats().blocks, 1);
	block_unpin(pinned);
	assert_int_equal(pool_blocks_new(pool, POOL_READ, sizes, 3, blocks), 0);
	for (int i = 0; i < 3; i++)
		block_unpin(blocks[i]);
	assert_int_equal(stats().used_bytes[POOL_READ], 0);
}

static void the_room_of_small_blocks_counts_whole_slabs(void **state)
{
	const uint32_t sizes[] = { 100 * KIB + 1, 60 * KIB, 60 * KIB, 60 * KIB, 60 * KIB, 60 * KIB }, wrong = 0;
	uint64_t room;

	assert_int_equal(pool_room_of(sizes, 6, &room), 0);
	assert_int_equal(room, 104 * KIB + 2 * 256 * KIB);
	assert_int_equal(pool_room_of(&wrong, 1, &room), -EINVAL);
}

/* Each try of the first round alone would leave its own blocks in between: 6 and 5 pages around the cached 4. */
static void blocks_that_stood_around_the_cache_are_placed_again(void **state)
{
	const uint32_t sizes[] = { 96 * 4 * KIB, 80 * 4 * KIB, 80 * 4 * KIB };
	struct block *blocks[3], *low = new_block(POOL_READ, 96 * 4 * KIB);

	cache(POOL_READ, 64 * 4 * KIB, "middle");
	block_unpin(low);
	assert_int_equal(pool_blocks_new(pool, POOL_READ, sizes, 3, blocks), 0);
	assert_false(is_cached("middle"));
	for (int i = 0; i < 3; i++)
		block_unpin(blocks[i]);
}

static int larger_first(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x < y) - (x > y);
}

/* Sizes that just fit: drawn until the next one would not. */
static size_t draw_share(uint64_t *x, uint64_t arena_bytes, uint32_t *sizes, size_t most)
{
	size_t n = 0;
	uint64_t room;

	while (n < most) {
		sizes[n++] = draw_size(x);
		qsort(sizes, n, sizeof(*sizes), larger_first);
		assert_int_equal(pool_room_of(sizes, n, &room), 0);
		if (room > arena_bytes)
			break;
	}
	size_t drop = room > arena_bytes ? draw(x) % n : n; /* any of them, then those that still do not fit */
	while (room > arena_bytes) {
		memmove(sizes + drop, sizes + drop + 1, (--n - drop) * sizeof(*sizes));
		drop = n ? draw(x) % n : 0;
		assert_int_equal(pool_room_of(sizes, n, &room), 0);
	}
	return n;
}

/* Blocks of all sizes come and go, some stay as cache. */
static void roughen(uint64_t *x, enum pool_kind kind, uint64_t *names)
{
	struct block *live[LIVE];
	size_t n = 0;

	for (int round = 0; round < 200; round++) {
		size_t i = n ? draw(x) % n : 0;

		if (n < LIVE && draw(x) % 3) {
			if (pool_block_new(pool, kind, draw_size(x), &live[n]))
				continue;
			struct digest digest = digest_of(names, sizeof(*names));
			++*names;
			assert_int_equal(pool_block_index(live[n], &digest, 0), 0);
			if (draw(x) % 2)
				pool_block_set_clean(live[n]);
			n++;
		} else if (n) {
			block_unpin(live[i]);
			live[i] = live[--n];
		}
	}
	while (n)
		block_unpin(live[--n]);
}

static void what_an_empty_arena_holds_fits_once_nothing_is_pinned(void **state)
{
	uint64_t x = 88172645463325252, names = 0;
	uint32_t sizes[LIVE];
	struct block *blocks[LIVE];
	unsigned cached = 0;

	for (int round = 0; round < 300; round++) {
		enum pool_kind kind = draw(&x) % POOL_KINDS;
		size_t n = draw_share(&x, stats().bytes[kind], sizes, LIVE);

		roughen(&x, kind, &names);
		cached += stats().clean_bytes[kind] > 0;
		assert_int_equal(pool_blocks_new(pool, kind, sizes, n, blocks), 0);
		while (n)
			block_unpin(blocks[--n]);
	}
	assert_true(cached > 200); /* the arenas were not empty before */
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(sizes_out_of_bounds_are_refused),
		TEST(a_pool_without_its_second_arena_gives_the_first_one_back),
		TEST(a_block_lies_in_the_arena_of_its_kind),
		TEST(a_block_as_large_as_the_arena_fits_exactly),
		TEST(small_blocks_share_a_slab_and_give_it_back),
		TEST(a_dirty_block_ends_with_its_last_pin),
		TEST(a_clean_block_without_a_digest_ends_as_well),
		TEST(a_clean_block_stays_as_cache_and_comes_back_pinned),
		TEST(the_oldest_clean_blocks_leave_when_room_is_needed),
		TEST(nothing_leaves_for_a_block_that_cannot_fit_anyway),
		TEST(pinned_and_dirty_blocks_never_leave),
		TEST(the_cache_of_one_kind_does_not_make_room_in_the_other),
		TEST(a_digest_is_known_once_a_kind_and_the_read_arena_is_given_first),
		TEST(a_forgotten_block_is_not_found_and_ends_with_its_pins),
		TEST(the_listener_is_told_later_and_once_for_many),
		TEST(a_try_in_vain_is_no_news),
		TEST(blocks_come_all_or_none),
		TEST(the_room_of_small_blocks_counts_whole_slabs),
		TEST(blocks_that_stood_around_the_cache_are_placed_again),
		TEST(what_an_empty_arena_holds_fits_once_nothing_is_pinned),
		TEST(random_histories_keep_bytes_and_sums),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
