/*
 * group/forgone.c: see the header.
 */
#include "group/forgone.h"

#include <stdio.h>

void forgone_put(struct forgone *forgone, uint64_t save_id, uint64_t nth, struct view words)
{
	if (forgone_find(forgone, save_id, nth))
		return;
	struct forgone_load *load = &forgone->loads[forgone->n++ % FORGONE_MAX];
	size_t len = words.len < FORGONE_WORDS_MAX ? words.len : FORGONE_WORDS_MAX - 1;
	load->save_id = save_id;
	load->nth = nth;
	snprintf(load->words, sizeof(load->words), "%.*s", (int)len, len ? (const char *)words.ptr : "");
}

const char *forgone_find(const struct forgone *forgone, uint64_t save_id, uint64_t nth)
{
	for (unsigned i = 0; nth && i < FORGONE_MAX; i++)
		if (forgone->loads[i].nth == nth && forgone->loads[i].save_id == save_id)
			return forgone->loads[i].words;
	return NULL;
}
