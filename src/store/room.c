/*
 * store/room.c: waiting for room in the pool, first come first served in each arena.
 *
 * Only the head of a queue tries. So a large block is not starved by small ones, and each piece of room that comes free wakes one.
 */
#include "store/inside.h"

#include <errno.h>
#include <inttypes.h>

#include "base/check.h"

#define ROOM_LOOK_MS 200 /* so often who waits looks whether it is still wanted */

static const char *const kind_names[POOL_KINDS] = { [POOL_CAPTURE] = "capture", [POOL_READ] = "read" };

struct waiter {
	struct list link;
	struct list *queue;
	struct waitplace place;
};

static void wake_head(struct list *queue)
{
	if (!list_empty(queue))
		wake_all(&list_entry(queue->next, struct waiter, link)->place);
}

void room_came(void *arg)
{
	struct store *store = arg;

	for (int kind = 0; kind < POOL_KINDS; kind++)
		wake_head(&store->waiting[kind]);
}

/* Whoever leaves makes another one the head, who may fit though this one did not. */
static void waiter_leave(struct waiter *waiter)
{
	list_remove(&waiter->link);
	wake_head(waiter->queue);
}

static int no_room(struct store *store, enum pool_kind kind, uint64_t bytes, int r, struct error *e)
{
	struct pool_stats s;

	pool_stats(store->pool, &s);
	if (r == -ETIMEDOUT)
		return error_set(e, r,
				 "no room for %" PRIu64 " bytes in time: %" PRIu64 " of the %" PRIu64
				 " bytes of the %s arena are in use",
				 bytes, s.used_bytes[kind], s.bytes[kind], kind_names[kind]);
	return error_set(e, r, "no room for %" PRIu64 " bytes in the %s arena: %s", bytes, kind_names[kind],
			 error_meaning(r));
}

static bool is_wanted(const struct room_ask *ask)
{
	return !ask->wanted || ask->wanted(ask->arg);
}

static int wait_for_room(struct store *store, const struct room_ask *ask, uint64_t deadline_ns, struct block **ret)
{
	struct list *queue = &store->waiting[ask->kind];
	_cleanup_(waiter_leave) struct waiter waiter = { .queue = queue };
	uint64_t look_ns;
	int r;

	waitplace_init(&waiter.place);
	list_insert(ask->first ? queue->next : queue, &waiter.link);
	do {
		r = queue->next == &waiter.link ? pool_blocks_new(store->pool, ask->kind, ask->bytes, ask->n, ret) :
						  POOL_FULL;
		if (r != POOL_FULL)
			return r;
		look_ns = env_in_ms(store->env, ROOM_LOOK_MS);
		r = wait_at(&waiter.place, look_ns < deadline_ns ? look_ns : deadline_ns);
		if (r == -ETIMEDOUT && deadline_ns > look_ns)
			r = 0;
		if (!r && !is_wanted(ask))
			r = -ECANCELED;
	} while (!r);
	return r;
}

int store_blocks_new(struct store *store, const struct room_ask *ask, uint64_t deadline_ns, struct block **ret,
		     struct error *e)
{
	uint64_t bytes = 0;

	CHECK_MAGIC(store, STORE_MAGIC);
	CHECK(ask->kind < POOL_KINDS);
	for (size_t i = 0; i < ask->n; i++)
		bytes += ask->bytes[i];
	int r = wait_for_room(store, ask, deadline_ns, ret);
	return r ? no_room(store, ask->kind, bytes, r, e) : 0;
}

int store_block_new(struct store *store, enum pool_kind kind, uint32_t bytes, uint64_t deadline_ns, struct block **ret,
		    struct error *e)
{
	struct room_ask ask = { .kind = kind, .bytes = &bytes, .n = 1 };

	CHECK_MAGIC(store, STORE_MAGIC);
	CHECK(kind < POOL_KINDS);
	uint64_t most = pool_arena(store->pool, kind)->size;
	if (bytes <= POOL_BLOCK_MAX_BYTES && bytes > most)
		return error_set(e, -ERR_EPOOL, "a block of %" PRIu32 " bytes can never fit: the %s arena has %" PRIu64,
				 bytes, kind_names[kind], most);
	return store_blocks_new(store, &ask, deadline_ns, ret, e);
}
