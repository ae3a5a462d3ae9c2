#include "group/sources.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "group/pace.h"

#define RATE 1000000000 /* that all are planned with, bytes per s: plans know no rates between nodes yet */

void sources_fini(struct sources *sources)
{
	free(sources->seen);
	*sources = (struct sources){ 0 };
}

void sources_saw(struct sources *sources, const struct sighting *sighting)
{
	bool grow = !(sources->n & (sources->n - 1)); /* full at powers of two */
	size_t room = sources->n ? 2 * sources->n : 1;
	void *seen = grow ? reallocarray(sources->seen, room, sizeof(*sources->seen)) : sources->seen;

	if (!seen) {
		sources->missed = true;
		return;
	}
	sources->seen = seen;
	sources->seen[sources->n++] = *sighting;
}

/* A first look makes suspects; a second one leaves out what suspects say of suspects, unless they are good witnesses. */
struct court {
	struct pace pace;
	uint64_t *none; /* that each had done before */
	bool *suspect, *witness;
};

static void judge(const struct sources *sources, struct court *court, bool *ret_slow)
{
	struct pace *pace = &court->pace;

	for (size_t i = 0; i < pace->n; i++)
		pace->nodes[i] = (struct pace_node){ .rate = RATE };
	for (size_t i = 0; i < sources->n; i++) {
		const struct sighting *seen = &sources->seen[i];

		CHECK(seen->of < pace->n && seen->by < pace->n);
		struct pace_node *node = &pace->nodes[seen->of];
		if (court->suspect[seen->by] && court->suspect[seen->of] && !court->witness[seen->by])
			continue;
		node->bytes += seen->bytes;
		node->took_ns = seen->busy_ns > node->took_ns ? seen->busy_ns : node->took_ns;
	}
	for (size_t i = 0; i < pace->n; i++)
		if (pace->nodes[i].took_ns && !pace->nodes[i].bytes)
			pace->nodes[i].bytes = 1; /* whatever was asked of it did not come */
	pace_look(pace, court->none, 0);
	for (size_t i = 0; i < pace->n; i++)
		ret_slow[i] = pace_was_slow(pace, i);
}

void sources_judge(const struct sources *sources, size_t n_nodes, bool *ret_slow)
{
	_cleanup_(cleanup_mem) struct pace_node *nodes = calloc(n_nodes + 1, sizeof(*nodes));
	_cleanup_(cleanup_mem) uint64_t *sorted = calloc(n_nodes + 1, sizeof(*sorted));
	_cleanup_(cleanup_mem) uint64_t *none = calloc(n_nodes + 1, sizeof(*none));
	_cleanup_(cleanup_mem) bool *suspect = calloc(n_nodes + 1, sizeof(*suspect));
	_cleanup_(cleanup_mem) bool *witness = calloc(n_nodes + 1, sizeof(*witness));
	struct court court = { .pace = { .nodes = nodes, .sorted = sorted, .n = n_nodes },
			       .none = none,
			       .suspect = suspect,
			       .witness = witness };

	memset(ret_slow, 0, n_nodes * sizeof(*ret_slow));
	if (sources->missed || !nodes || !sorted || !none || !suspect || !witness)
		return;
	judge(sources, &court, ret_slow);
	memcpy(suspect, ret_slow, n_nodes * sizeof(*suspect));
	for (size_t i = 0; i < sources->n; i++)
		witness[sources->seen[i].by] |= !suspect[sources->seen[i].of];
	judge(sources, &court, ret_slow);
}
