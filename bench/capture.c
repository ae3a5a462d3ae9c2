/*
 * bench/capture.c: how fast ranks get captured: submit to captured of $BENCH_MIB (512) by one rank, and by two that have half
 * of it each, on one node, a thread each. The bound: a plain loop on as many threads that copies, hashes (BLAKE3) and sums
 * (CRC32C) the same bytes, in steps that stay in the cache, into memory that was written before; with HINT, a plain copy.
 *
 * Each round changes all blocks. First save of a session: the arena's pages are not mapped yet; the others go to their best.
 */
#include <blake3.h>
#include <isa-l/crc.h>

#include "bed.h"

#define ROUNDS	     5
#define RANKS_MAX    2
#define PLAIN_STEP   32768u
#define BLOCK_STRIDE 65536u /* a changed word in each */

struct rank {
	uint32_t number, ranks;
	uint8_t *data, *copy;
	uint64_t bytes;
	bool hinted; /* the plain loop only copies */
	struct forebay_session *session;
	struct forebay_group *group;
	struct forebay_save *save;
	uint8_t digest[BLAKE3_OUT_LEN];
	unsigned crc;
};

static void *plain(void *arg)
{
	struct rank *rank = arg;
	blake3_hasher hasher;

	blake3_hasher_init(&hasher);
	for (uint64_t at = 0; at < rank->bytes; at += PLAIN_STEP) {
		memcpy(rank->copy + at, rank->data + at, PLAIN_STEP);
		if (rank->hinted)
			continue;
		blake3_hasher_update(&hasher, rank->copy + at, PLAIN_STEP);
		rank->crc = crc32_iscsi(rank->copy + at, (int)PLAIN_STEP, rank->crc);
	}
	blake3_hasher_finalize(&hasher, rank->digest, sizeof(rank->digest));
	return NULL;
}

/* Seconds: by the clock, and of CPU by ranks and by their daemon. */
struct cost {
	double wall, ranks, daemon;
};

static struct cost cost_now(void)
{
	return (struct cost){ now_s(), cpu_s(), bed_daemon_cpu_s("capture", 0) };
}

static struct cost cost_since(struct cost before)
{
	struct cost now = cost_now();

	return (struct cost){ now.wall - before.wall, now.ranks - before.ranks, now.daemon - before.daemon };
}

static void keep_best(struct cost *best, struct cost cost)
{
	if (!best->wall || cost.wall < best->wall)
		*best = cost;
}

static struct cost run_plain(struct rank *ranks, bool hinted)
{
	for (uint32_t r = 0; r < ranks[0].ranks; r++)
		ranks[r].hinted = hinted;
	struct cost before = cost_now();
	bed_parallel(plain, ranks, sizeof(*ranks), ranks[0].ranks);
	return cost_since(before);
}

static void *join(void *arg)
{
	struct rank *rank = arg;
	char name[32];

	snprintf(name, sizeof(name), "capture-%u", rank->ranks);
	rank->session = bed_connect("capture", 0, 1);
	rank->group = bed_join(rank->session, name, rank->number, rank->ranks);
	return NULL;
}

static void begin(struct rank *rank, uint64_t step, bool hinted)
{
	struct forebay_save_options options = { .size = sizeof(options), .same_structure = hinted };
	struct forebay_item item = { .size = sizeof(item), .ndim = 1, .shape = &rank->bytes, .data = rank->data };
	char bundle[32], name[32];

	for (uint64_t at = 0; at < rank->bytes; at += BLOCK_STRIDE)
		memcpy(rank->data + at, &(uint64_t){ step * 1000003 + at + rank->number }, sizeof(uint64_t));
	snprintf(bundle, sizeof(bundle), "capture/%u", rank->ranks);
	snprintf(name, sizeof(name), "part.%u", rank->number);
	item.name = name;
	MUST(forebay_save_begin(rank->group, bundle, step, &options, &rank->save));
	MUST(forebay_save_add(rank->save, &item, 1));
}

static void *capture(void *arg)
{
	struct rank *rank = arg;

	MUST(forebay_save_submit(rank->save));
	bed_wait(rank->save, FOREBAY_CAPTURED);
	return NULL;
}

static void end(struct rank *rank)
{
	char bundle[32];

	bed_wait(rank->save, FOREBAY_DURABLE);
	snprintf(bundle, sizeof(bundle), "capture/%u", rank->ranks);
	if (!rank->number)
		MUST(forebay_delete(rank->session, bundle, forebay_save_version(rank->save)));
	forebay_save_free(rank->save);
}

static struct cost run_ours(struct rank *ranks, uint64_t step, bool hinted)
{
	for (uint32_t r = 0; r < ranks[0].ranks; r++)
		begin(&ranks[r], step, hinted);
	struct cost before = cost_now();
	bed_parallel(capture, ranks, sizeof(*ranks), ranks[0].ranks);
	struct cost took = cost_since(before);
	for (uint32_t r = ranks[0].ranks; r-- > 0;)
		end(&ranks[r]);
	return took;
}

static void say(uint32_t n_ranks, const char *how, uint64_t bytes, struct cost ours, struct cost plain_loop)
{
	double gib = (double)bytes / (double)GIB;
	char what[128];

	snprintf(what, sizeof(what), "capture, %u rank%s%s", n_ranks, n_ranks > 1 ? "s" : "", how);
	bed_rate(what, "GB/s", (double)bytes / 1e9 / ours.wall, (double)bytes / 1e9 / plain_loop.wall);
	bed_time("  CPU of the ranks", "s/GiB", ours.ranks / gib, plain_loop.ranks / gib);
	bed_time("  CPU of the daemon meanwhile", "s/GiB", ours.daemon / gib, 0);
}

static void bench_hashed(struct rank *ranks, uint64_t bytes, uint64_t *step)
{
	struct cost first = run_ours(ranks, ++*step, false), best = { 0 }, bound = { 0 };

	for (int round = 0; round < ROUNDS; round++) {
		keep_best(&bound, run_plain(ranks, false));
		keep_best(&best, run_ours(ranks, ++*step, false));
	}
	say(ranks[0].ranks, ", first save", bytes, first, bound);
	say(ranks[0].ranks, "", bytes, best, bound);
}

static void bench_hinted(struct rank *ranks, uint64_t bytes, uint64_t *step)
{
	struct cost best = { 0 }, bound = { 0 };

	for (int round = 0; round < ROUNDS; round++) {
		keep_best(&bound, run_plain(ranks, true));
		keep_best(&best, run_ours(ranks, ++*step, true));
	}
	say(ranks[0].ranks, ", HINT", bytes, best, bound);
}

static void bench(uint32_t n_ranks, uint64_t bytes)
{
	struct rank ranks[RANKS_MAX] = { 0 };
	uint64_t step = 0;

	for (uint32_t r = 0; r < n_ranks; r++) {
		ranks[r] = (struct rank){ .number = r, .ranks = n_ranks, .bytes = bytes / n_ranks };
		ranks[r].data = bed_memory(ranks[r].bytes, r + 1);
		ranks[r].copy = bed_memory(ranks[r].bytes, r + 1);
	}
	bed_parallel(join, ranks, sizeof(*ranks), n_ranks);
	bench_hashed(ranks, bytes, &step);
	bench_hinted(ranks, bytes, &step);
	for (uint32_t r = 0; r < n_ranks; r++) {
		forebay_group_leave(ranks[r].group);
		forebay_disconnect(ranks[r].session);
		free(ranks[r].data);
		free(ranks[r].copy);
	}
}

int main(void)
{
	uint64_t bytes = bed_setting("BENCH_MIB", 512) * MIB;

	bed_up("capture", 1, 2 * bytes + bytes / 2);
	printf("%" PRIu64 " MiB; best of %d\n", bytes / MIB, ROUNDS);
	bed_head();
	for (uint32_t n = 1; n <= RANKS_MAX; n++)
		bench(n, bytes);
	bed_down("capture");
	return 0;
}
