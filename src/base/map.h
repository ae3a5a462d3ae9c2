/*
 * base/map.h: a hash map from bytes to pointers. Iteration is in order of insertion, never of addresses, so that equal
 * histories give equal behaviour. Keys are copied; values are the caller's.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/bytes.h"

struct map_slot;

struct map {
	struct map_slot **buckets;
	size_t n_buckets, n; /* n: entries */
	struct map_slot *first, *last;
};

void map_init(struct map *map);
void map_fini(struct map *map);				    /* values are not touched */
void *map_get(const struct map *map, struct view key);	    /* NULL: not there */
int map_put(struct map *map, struct view key, void *value); /* 0, -EEXIST, -ENOMEM (nothing changed); not NULL */
void *map_remove(struct map *map, struct view key);	    /* the value, or NULL */

/* for (struct map_slot *s = map_first(m); s; s = map_next(s)): the entry at hand may be removed after map_next(). */
struct map_slot *map_first(const struct map *map);
struct map_slot *map_next(const struct map_slot *slot);
struct view map_key(const struct map_slot *slot);
void *map_value(const struct map_slot *slot);
