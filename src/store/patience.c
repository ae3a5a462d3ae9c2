#include "store/patience.h"

#include <stdlib.h>
#include <string.h>

#include "env/loop.h"

void patience_init(struct patience *patience)
{
	*patience = (struct patience){ .earned = AGAIN_AT_START * AGAIN_EVERY };
}

void patience_saw(struct patience *patience, uint64_t took_ns)
{
	patience->took_ns[patience->n_seen++ % PATIENCE_SEEN] = took_ns;
}

static int by_size(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

uint64_t patience_limit_ns(const struct patience *patience)
{
	size_t n = patience->n_seen < PATIENCE_SEEN ? (size_t)patience->n_seen : PATIENCE_SEEN;
	uint64_t sorted[PATIENCE_SEEN], floor_ns = PATIENCE_FLOOR_MS * NS_PER_MS;

	if (n < PATIENCE_FEW)
		return PATIENCE_FIRST_MS * NS_PER_MS;
	memcpy(sorted, patience->took_ns, n * sizeof(*sorted));
	qsort(sorted, n, sizeof(*sorted), by_size);
	uint64_t usual_ns = sorted[(n - 1) * 9 / 10];
	if (usual_ns > UINT64_MAX / PATIENCE_TIMES)
		return UINT64_MAX;
	return usual_ns * PATIENCE_TIMES > floor_ns ? usual_ns * PATIENCE_TIMES : floor_ns;
}

void patience_asked(struct patience *patience)
{
	if (patience->earned < AGAIN_MAX * AGAIN_EVERY)
		patience->earned++;
}

bool patience_again(struct patience *patience)
{
	if (patience->earned < AGAIN_EVERY)
		return false;
	patience->earned -= AGAIN_EVERY;
	return true;
}
