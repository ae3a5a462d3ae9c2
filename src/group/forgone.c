/*
 * group/forgone.c: see the header.
 */
#include "group/forgone.h"

#include <stdio.h>

void forgone_put(struct forgone *forgone, const struct nth *nth, struct view words)
{
	if (forgone_find(forgone, nth))
		return;
	struct forgone_load *load = &forgone->loads[forgone->n++ % FORGONE_MAX];
	size_t len = words.len < FORGONE_WORDS_MAX ? words.len : FORGONE_WORDS_MAX - 1;
	load->nth = *nth;
	snprintf(load->words, sizeof(load->words), "%.*s", (int)len, len ? (const char *)words.ptr : "");
}

const char *forgone_find(const struct forgone *forgone, const struct nth *nth)
{
	for (unsigned i = 0; nth->count && i < FORGONE_MAX; i++)
		if (nth_equal(&forgone->loads[i].nth, nth))
			return forgone->loads[i].words;
	return NULL;
}
