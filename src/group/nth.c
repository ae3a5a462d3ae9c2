/*
 * group/nth.c: see the header.
 */
#include "group/nth.h"

#include <stdlib.h>

#include "base/cleanup.h"

void nths_init(struct nths *nths)
{
	nths->turn = 0;
	map_init(&nths->counts);
}

void nths_fini(struct nths *nths)
{
	for (struct map_slot *s = map_first(&nths->counts); s; s = map_next(s))
		free(map_value(s));
	map_fini(&nths->counts);
}

struct nth *nths_of(struct nths *nths, uint64_t save_id)
{
	struct view key = view_of(&save_id, sizeof(save_id));
	struct nth *known = map_get(&nths->counts, key);

	if (known)
		return known;
	_cleanup_(cleanup_mem) struct nth *nth = calloc(1, sizeof(*nth));
	if (!nth || map_put(&nths->counts, key, nth))
		return NULL;
	*nth = (struct nth){ .save_id = save_id, .turn = ++nths->turn };
	if (nths->counts.n > NTH_VERSIONS_MAX)
		free(map_remove(&nths->counts, map_key(map_first(&nths->counts))));
	return TAKE(nth);
}

/* A version that was forgotten meanwhile has a turn that is later by NTH_VERSIONS_MAX or more. */
bool nth_equal(const struct nth *a, const struct nth *b)
{
	uint64_t apart = a->turn < b->turn ? b->turn - a->turn : a->turn - b->turn;

	return a->save_id == b->save_id && a->count == b->count && apart < NTH_VERSIONS_MAX / 2;
}
