/*
 * cli/lost.h: what `status` and `top` say when the node that they ask cannot reach the index, or has not joined its cluster.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>

json_t *unheard_json(uint64_t unheard_ms); /* null: it was never heard */
json_t *index_lost_json(const char *node, const char *address, uint64_t unheard_ms, const char *words);
/* A line for people, or nothing when @words is NULL. */
void not_joined_print(json_t *words);
/* A line for people, or nothing when @lost is NULL. @asked: the node that says so. */
void index_lost_print(json_t *lost, const char *asked);
