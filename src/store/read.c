/*
 * store/read.c: a block from the backend. A read that stalls is asked again, into a block of its own; the first right answer wins.
 *
 * A request to the backend cannot be called back: one that nobody waits for any more still writes to its block, whenever it
 * likes. So a block that was given to a read and not filled well by it is given to nobody else.
 */
#include "store/inside.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/counter.h"

#define ASKS 2 /* of one read: the first one, and one more */

struct ask {
	struct race *race;
	struct block *block; /* pinned; NULL: not asked */
	bool over;
	int result;
	struct error error;
};

struct race {
	struct flight *flight;
	const struct source *source;
	uint64_t deadline_ns;
	struct ask asks[ASKS];
	unsigned n_asks;
	struct waitplace news;
	struct nursery nursery;
};

/* What a request writes to, and what it was: both are its own until it ends. */
struct landing {
	struct block *block;
	struct hasher hasher;
};

static void landing_free(void *held)
{
	struct landing *landing = held;

	block_unpin(landing->block);
	free(landing);
}

/* The driver hashes while it reads. */
static struct backend_call *landing_call(const struct ask *ask)
{
	const struct flight *flight = ask->race->flight;
	const struct source *source = ask->race->source;
	_cleanup_(cleanup_backend_call_free) struct backend_call *call = backend_call_new(BACKEND_GET, source->name);
	struct landing *landing = call ? malloc(sizeof(*landing)) : NULL;

	if (!landing)
		return NULL;
	landing->block = ask->block;
	block_pin(ask->block);
	call->release = landing_free;
	call->held = landing;
	call->known = true; /* a root names it */
	call->req.dst = ask->block->ptr;
	call->req.hasher = &landing->hasher;
	call->req.offset = source->offset;
	call->req.len = flight->bytes;
	return TAKE(call);
}

/* Right or not: the bytes that the store gave. */
static int ask_store(struct ask *ask, struct error *e)
{
	struct flight *flight = ask->race->flight;
	const struct source *source = ask->race->source;
	struct store *store = flight->store;
	_cleanup_(cleanup_backend_call_free) struct backend_call *call = landing_call(ask);

	if (!call)
		return error_set(e, -ENOMEM, "%s: no memory to read from it", source->name);
	int r = backend_call_run(store->backend, &call, ask->race->deadline_ns, e);
	if (r < 0)
		return r;
	store->stats.backend_reads++;
	store->stats.backend_bytes += call->req.got;
	count(COUNT_READ_STORE_BLOCKS, 1);
	count(COUNT_READ_STORE_BYTES, call->req.got);
	if (call->req.got == flight->bytes) {
		struct digest digest = hasher_digest(call->req.hasher);

		return flight_judge(flight, &digest, call->req.hasher->crc, source->name, e);
	}
	flight_count_damaged(flight);
	return error_set(e, -ERR_EDAMAGED, "%s: ends within a block of %" PRIu32 " bytes at %" PRIu64, source->name,
			 flight->bytes, source->offset);
}

static int ask_run(void *arg)
{
	struct ask *ask = arg;
	struct race *race = ask->race;
	struct store *store = race->flight->store;
	uint64_t began_ns = env_now(store->env);

	ask->result = ask_store(ask, &ask->error);
	if (!ask->result)
		patience_saw(&store->patience, env_now(store->env) - began_ns);
	ask->over = true;
	wake_all(&race->news);
	return 0;
}

/* Takes the pin of @block over. */
static int race_ask(struct race *race, struct block *block, struct error *e)
{
	struct ask *ask = &race->asks[race->n_asks++];

	ask->race = race;
	ask->block = block;
	int r = fiber_start(&race->nursery, "read", ask_run, ask);
	if (!r)
		return 0;
	ask->over = true;
	ask->result = r;
	return error_set(e, r, "%s: a block cannot be read: %s", race->source->name, error_meaning(r));
}

/* The first read stalls. Whether it is asked again is a matter of the budget, and of room: nobody is kept waiting for that. */
static void race_ask_again(struct race *race)
{
	struct store *store = race->flight->store;
	struct block *block;

	store->stats.stalled++;
	count(COUNT_STALLS, 1);
	if (!list_empty(&store->waiting[POOL_READ]) || !patience_again(&store->patience) ||
	    pool_block_new(store->pool, POOL_READ, race->flight->bytes, &block))
		return;
	store->stats.asked_again++;
	count(COUNT_STALLS_ASKED_AGAIN, 1);
	race_ask(race, block, &race->asks[race->n_asks].error);
}

static struct ask *race_winner(struct race *race)
{
	for (unsigned i = 0; i < race->n_asks; i++)
		if (race->asks[i].over && !race->asks[i].result)
			return &race->asks[i];
	return NULL;
}

static bool race_runs(const struct race *race)
{
	for (unsigned i = 0; i < race->n_asks; i++)
		if (!race->asks[i].over)
			return true;
	return false;
}

/* Until one has won or all have lost. */
static int race_wait(struct race *race)
{
	struct env *env = race->flight->store->env;
	uint64_t limit_ns = env_now(env) + patience_limit_ns(&race->flight->store->patience);
	int r = 0;

	while (!r && !race_winner(race) && race_runs(race)) {
		bool may_stall = race->n_asks < ASKS && limit_ns < race->deadline_ns;

		r = wait_at(&race->news, may_stall ? limit_ns : race->deadline_ns);
		if (r != -ETIMEDOUT || !may_stall)
			continue;
		race_ask_again(race);
		limit_ns = race->deadline_ns; /* if it was not asked, it is not asked later either */
		r = 0;
	}
	return r;
}

/* Losers are left alone; whatever they still write goes to blocks that the pool gives to nobody until they have ended. */
static void race_fini(struct race *race)
{
	nursery_fini(&race->nursery);
	for (unsigned i = 0; i < race->n_asks; i++)
		block_unpin(race->asks[i].block);
}

static int race_lost(const struct race *race, int r, struct error *e)
{
	for (unsigned i = 0; r != -ECANCELED && i < race->n_asks; i++)
		if (race->asks[i].over)
			return error_set(e, race->asks[i].result, "%s", race->asks[i].error.text);
	return error_set(e, r, "get of %s: %s", race->source->name,
			 r == -ETIMEDOUT ? "the store has not answered in time" : "cancelled");
}

int flight_read(struct flight *flight, const struct source *source, struct block **block, uint64_t deadline_ns,
		struct error *e)
{
	_cleanup_(race_fini) struct race race = { .flight = flight, .source = source, .deadline_ns = deadline_ns };
	struct store *store = flight->store;

	waitplace_init(&race.news);
	nursery_init(&race.nursery, store->env->loop);
	patience_asked(&store->patience);
	int r = race_ask(&race, TAKE(*block), e);
	if (r)
		return r;
	r = race_wait(&race);
	struct ask *winner = race_winner(&race);
	if (!winner)
		return race_lost(&race, r, e);
	if (winner != &race.asks[0]) {
		store->stats.second_won++;
		count(COUNT_STALLS_SECOND_WON, 1);
	}
	*block = TAKE(winner->block);
	return 0;
}
