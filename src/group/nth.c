/*
 * group/nth.c: see the header.
 */
#include "group/nth.h"

#include <stdlib.h>

#include "base/cleanup.h"

void nths_init(struct nths *nths)
{
	map_init(&nths->counts);
}

void nths_fini(struct nths *nths)
{
	for (struct map_slot *s = map_first(&nths->counts); s; s = map_next(s))
		free(map_value(s));
	map_fini(&nths->counts);
}

uint64_t *nths_of(struct nths *nths, uint64_t save_id)
{
	struct view key = view_of(&save_id, sizeof(save_id));
	uint64_t *known = map_get(&nths->counts, key);

	if (known)
		return known;
	_cleanup_(cleanup_mem) uint64_t *count = calloc(1, sizeof(*count));
	if (!count || map_put(&nths->counts, key, count))
		return NULL;
	if (nths->counts.n > NTH_VERSIONS_MAX)
		free(map_remove(&nths->counts, map_key(map_first(&nths->counts))));
	return TAKE(count);
}
