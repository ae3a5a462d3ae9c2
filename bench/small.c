/*
 * bench/small.c: what a rank waits when it saves little. 8 nodes x 8 ranks on this machine, 1,000 items of 1 KiB: all the same on
 * every rank; one rank's each, shared out; or 1,000 of each rank's own. Submit to captured of every rank, from when the first of
 * all submits: median and worst over ranks and saves. HINT: same_structure, as every save of a job but its first. The bound
 * is the goal of 10 ms, which is meant for 8 nodes of many cores: here 64 ranks and 8 daemons share this machine's.
 */
#include "bed.h"

#define NODES	       8u
#define RANKS_PER_NODE 8u
#define RANKS	       (NODES * RANKS_PER_NODE)
#define ITEMS	       1000u
#define ITEM_BYTES     1024u
#define SAVES	       10u
#define GOAL_MS	       10.0

enum sharing { SAME, SHARED_OUT, OWN, SHARINGS };
static const char *const sharing_words[SHARINGS] = { "1,000 items, the same on all 64 ranks",
						     "1,000 items, shared out to 64 ranks",
						     "1,000 items of each of 64 ranks" };

struct rank {
	uint32_t number;
	enum sharing sharing;
	struct forebay_session *session;
	struct forebay_group *group;
	uint8_t *data;
	double hinted_ms[SAVES], full_ms, cold_ms;
};

static pthread_barrier_t barrier;
static double began_s; /* of the save under way */

static void add(struct rank *rank, struct forebay_save *save)
{
	struct forebay_item item = { .size = sizeof(item), .ndim = 1, .shape = (uint64_t[]){ ITEM_BYTES } };
	char name[64];

	for (uint32_t i = 0; i < ITEMS; i++) {
		if (rank->sharing == SHARED_OUT && i % RANKS != rank->number)
			continue;
		snprintf(name, sizeof(name), "layer.%u.norm.%u", rank->sharing == OWN ? rank->number : 0, i);
		item.name = name;
		item.data = rank->data + (size_t)i * ITEM_BYTES;
		MUST(forebay_save_add(save, &item, 1));
	}
}

/* Milliseconds from when all may submit until this rank is captured. */
static double save_once(struct rank *rank, uint64_t step, int hinted)
{
	struct forebay_save_options options = { .size = sizeof(options), .same_structure = hinted };
	struct forebay_save *save = NULL;
	char bundle[32];

	snprintf(bundle, sizeof(bundle), "small/%d", (int)rank->sharing);
	bed_noise(rank->data, (size_t)ITEMS * ITEM_BYTES, step * RANKS + (rank->sharing == SAME ? 0 : rank->number));
	MUST(forebay_save_begin(rank->group, bundle, step, &options, &save));
	add(rank, save);
	if (pthread_barrier_wait(&barrier) == PTHREAD_BARRIER_SERIAL_THREAD)
		began_s = now_s();
	pthread_barrier_wait(&barrier);
	MUST(forebay_save_submit(save));
	bed_wait(save, FOREBAY_CAPTURED);
	double took_ms = 1e3 * (now_s() - began_s);
	bed_wait(save, FOREBAY_DURABLE);
	forebay_save_free(save);
	return took_ms;
}

static void *run(void *arg)
{
	struct rank *rank = arg;
	uint64_t step = 1;

	rank->session = bed_connect("small", rank->number / RANKS_PER_NODE, 1);
	for (rank->sharing = SAME; rank->sharing < SHARINGS; rank->sharing++) {
		char name[32];

		snprintf(name, sizeof(name), "small-%d", (int)rank->sharing);
		rank->group = bed_join(rank->session, name, rank->number, RANKS);
		rank->cold_ms = save_once(rank, step++, 0);
		rank->full_ms = save_once(rank, step++, 0);
		for (unsigned s = 0; s < SAVES; s++)
			rank->hinted_ms[s] = save_once(rank, step++, 1);
		pthread_barrier_wait(&barrier); /* the first rank looks at all */
		pthread_barrier_wait(&barrier);
		forebay_group_leave(rank->group);
	}
	forebay_disconnect(rank->session);
	return NULL;
}

static void say(const char *how, enum sharing sharing, double *all_ms, size_t n)
{
	char what[128];

	snprintf(what, sizeof(what), "%s, %s, median", sharing_words[sharing], how);
	bed_time(what, "ms", bed_quantile(all_ms, n, 0.5), GOAL_MS);
	snprintf(what, sizeof(what), "%s, %s, worst", sharing_words[sharing], how);
	bed_time(what, "ms", bed_quantile(all_ms, n, 1), GOAL_MS);
}

static void show(const struct rank *ranks, enum sharing sharing)
{
	static double hinted[RANKS * SAVES], full[RANKS], cold[RANKS];

	for (unsigned r = 0; r < RANKS; r++) {
		memcpy(hinted + r * SAVES, ranks[r].hinted_ms, sizeof(ranks[r].hinted_ms));
		full[r] = ranks[r].full_ms;
		cold[r] = ranks[r].cold_ms;
	}
	say("cold", sharing, cold, RANKS);
	say("full", sharing, full, RANKS);
	say("HINT", sharing, hinted, ARRAY_LEN(hinted));
}

int main(void)
{
	static struct rank ranks[RANKS];
	pthread_t threads[RANKS];

	bed_up("small", NODES, 256 * MIB);
	CHECK(pthread_barrier_init(&barrier, NULL, RANKS + 1) == 0);
	bed_head();
	for (unsigned r = 0; r < RANKS; r++) {
		ranks[r].number = r;
		ranks[r].data = bed_memory((size_t)ITEMS * ITEM_BYTES, r);
		CHECK(pthread_create(&threads[r], NULL, run, &ranks[r]) == 0);
	}
	for (int sharing = 0; sharing < SHARINGS; sharing++) {
		for (unsigned s = 0; s < SAVES + 2; s++) {
			pthread_barrier_wait(&barrier);
			pthread_barrier_wait(&barrier);
		}
		pthread_barrier_wait(&barrier);
		show(ranks, (enum sharing)sharing);
		pthread_barrier_wait(&barrier);
	}
	for (unsigned r = 0; r < RANKS; r++) {
		pthread_join(threads[r], NULL);
		free(ranks[r].data);
	}
	bed_down("small");
	return 0;
}
