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

#define ROUNDS	     3
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

static double run_plain(struct rank *ranks, bool hinted)
{
	for (uint32_t r = 0; r < ranks[0].ranks; r++)
		ranks[r].hinted = hinted;
	double began = now_s();
	bed_parallel(plain, ranks, sizeof(*ranks), ranks[0].ranks);
	return now_s() - began;
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

static double run_ours(struct rank *ranks, uint64_t step, bool hinted)
{
	for (uint32_t r = 0; r < ranks[0].ranks; r++)
		begin(&ranks[r], step, hinted);
	double began = now_s();
	bed_parallel(capture, ranks, sizeof(*ranks), ranks[0].ranks);
	double took = now_s() - began;
	for (uint32_t r = ranks[0].ranks; r-- > 0;)
		end(&ranks[r]);
	return took;
}

static void bench(uint32_t n_ranks, uint64_t bytes)
{
	struct rank ranks[RANKS_MAX] = { 0 };
	char what[128];
	uint64_t step = 0;

	for (uint32_t r = 0; r < n_ranks; r++) {
		ranks[r] = (struct rank){ .number = r, .ranks = n_ranks, .bytes = bytes / n_ranks };
		ranks[r].data = bed_memory(ranks[r].bytes, r + 1);
		ranks[r].copy = bed_memory(ranks[r].bytes, r + 1);
	}
	bed_parallel(join, ranks, sizeof(*ranks), n_ranks);
	for (int hinted = 0; hinted < 2; hinted++) {
		double bound = run_plain(ranks, hinted), best = 0;

		for (int round = 0; round < ROUNDS + !hinted; round++) {
			double ours = run_ours(ranks, ++step, hinted), theirs = run_plain(ranks, hinted);

			bound = theirs < bound ? theirs : bound;
			if (!round && !hinted) {
				snprintf(what, sizeof(what), "capture, %u rank%s, first save", n_ranks,
					 n_ranks > 1 ? "s" : "");
				bed_rate(what, "GB/s", (double)bytes / 1e9 / ours, (double)bytes / 1e9 / bound);
				continue;
			}
			best = best > 0 && best < ours ? best : ours;
		}
		snprintf(what, sizeof(what), "capture, %u rank%s%s", n_ranks, n_ranks > 1 ? "s" : "",
			 hinted ? ", HINT" : "");
		bed_rate(what, "GB/s", (double)bytes / 1e9 / best, (double)bytes / 1e9 / bound);
	}
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
