/*
 * plan/order.h: sorting by small numbers, in linear time.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define ORDER_TURNS (1u << 16)

/*
 * Writes those of 0 .. n - 1 whose key is under @n_keys to @ret, in order of their keys; equal keys stay in order of numbers.
 * 0 or -ENOMEM.
 */
int order_by(const uint32_t *keys, size_t n, size_t n_keys, uint32_t *ret);

/*
 * The turn, under ORDER_TURNS, of something that begins after @done of @all bytes of its queue. Things of many queues, ordered
 * by their turns, come as if all queues were worked off at the same time and ended together.
 */
static inline uint32_t order_turn(uint64_t done, uint64_t all)
{
	return (uint32_t)((unsigned __int128)done * ORDER_TURNS / all);
}
