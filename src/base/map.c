#include "base/map.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"

#define MAP_BUCKETS_MIN 8 /* a power of two, as all counts of buckets are */

struct map_slot {
	struct map_slot *chain;	      /* next in the bucket */
	struct map_slot *prev, *next; /* in order of insertion */
	uint64_t hash;
	void *value;
	size_t key_len; /* bytes */
	uint8_t key[];
};

static uint64_t hash_key(struct view key)
{
	return hash64(key.ptr, key.len, 0);
}

/* The link that points to @key's slot, or the end of its chain. The map has buckets. */
static struct map_slot **find_link(const struct map *map, struct view key, uint64_t hash)
{
	struct map_slot **link = &map->buckets[hash & (map->n_buckets - 1)];

	while (*link && ((*link)->hash != hash || !view_equal(map_key(*link), key)))
		link = &(*link)->chain;
	return link;
}

/* Doubles the buckets; at most one entry a bucket on average keeps the chains short. */
static int grow(struct map *map)
{
	size_t n_buckets = map->n_buckets ? 2 * map->n_buckets : MAP_BUCKETS_MIN;
	struct map_slot **buckets = calloc(n_buckets, sizeof(struct map_slot *));

	if (!buckets)
		return -ENOMEM;
	for (struct map_slot *slot = map->first; slot; slot = slot->next) {
		struct map_slot **bucket = &buckets[slot->hash & (n_buckets - 1)];

		slot->chain = *bucket;
		*bucket = slot;
	}
	free(map->buckets);
	map->buckets = buckets;
	map->n_buckets = n_buckets;
	return 0;
}

static struct map_slot *slot_new(struct view key, uint64_t hash, void *value)
{
	size_t size_bytes;
	struct map_slot *slot;

	if (add_overflows(sizeof(*slot), key.len, &size_bytes))
		return NULL;
	slot = calloc(1, size_bytes);
	if (!slot)
		return NULL;
	slot->hash = hash;
	slot->value = value;
	slot->key_len = key.len;
	if (key.len)
		memcpy(slot->key, key.ptr, key.len);
	return slot;
}

void map_init(struct map *map)
{
	*map = (struct map){ 0 };
}

void map_fini(struct map *map)
{
	if (!map)
		return;
	for (struct map_slot *slot = map->first, *next; slot; slot = next) {
		next = slot->next;
		free(slot);
	}
	free(map->buckets);
	map_init(map);
}

void *map_get(const struct map *map, struct view key)
{
	if (!map->n)
		return NULL;

	struct map_slot *slot = *find_link(map, key, hash_key(key));
	return slot ? slot->value : NULL;
}

int map_put(struct map *map, struct view key, void *value)
{
	uint64_t hash = hash_key(key);
	struct map_slot *slot, **link;

	CHECK(value);
	if (map->n && *find_link(map, key, hash))
		return -EEXIST;
	if (map->n == map->n_buckets) {
		int r = grow(map);

		if (r)
			return r;
	}
	slot = slot_new(key, hash, value);
	if (!slot)
		return -ENOMEM;

	link = &map->buckets[hash & (map->n_buckets - 1)];
	slot->chain = *link;
	*link = slot;
	slot->prev = map->last;
	*(map->last ? &map->last->next : &map->first) = slot;
	map->last = slot;
	map->n++;
	return 0;
}

void *map_remove(struct map *map, struct view key)
{
	struct map_slot *slot, **link;
	void *value;

	if (!map->n)
		return NULL;
	link = find_link(map, key, hash_key(key));
	slot = *link;
	if (!slot)
		return NULL;

	*link = slot->chain;
	*(slot->prev ? &slot->prev->next : &map->first) = slot->next;
	*(slot->next ? &slot->next->prev : &map->last) = slot->prev;
	map->n--;
	value = slot->value;
	free(slot);
	return value;
}

struct map_slot *map_first(const struct map *map)
{
	return map->first;
}

struct map_slot *map_next(const struct map_slot *slot)
{
	return slot->next;
}

struct view map_key(const struct map_slot *slot)
{
	return view_of(slot->key, slot->key_len);
}

void *map_value(const struct map_slot *slot)
{
	return slot->value;
}
