#include "plan/tally.h"

#include <errno.h>

#include "base/check.h"

int tally_init(struct tally *tally, size_t n_max)
{
	*tally = (struct tally){ .n_max = n_max };
	tally->load = array_new(n_max, sizeof(*tally->load));
	tally->least = array_new(2 * n_max, sizeof(*tally->least));
	return tally->load && tally->least ? 0 : -ENOMEM;
}

void tally_fini(struct tally *tally)
{
	free(tally->load);
	free(tally->least);
	*tally = (struct tally){ 0 };
}

static uint32_t lesser(const struct tally *tally, uint32_t a, uint32_t b)
{
	if (a == TALLY_NONE || b == TALLY_NONE)
		return a == TALLY_NONE ? b : a;
	if (tally->load[a] != tally->load[b])
		return tally->load[a] < tally->load[b] ? a : b;
	return a < b ? a : b;
}

void tally_start(struct tally *tally, size_t n)
{
	CHECK(n <= tally->n_max);
	tally->n = n;
	for (size_t i = 0; i < n; i++)
		tally->least[n + i] = (uint32_t)i;
	for (size_t i = n; i-- > 1;)
		tally->least[i] = lesser(tally, tally->least[2 * i], tally->least[2 * i + 1]);
}

void tally_add(struct tally *tally, uint32_t place, uint64_t bytes)
{
	tally->load[place] += bytes;
	for (size_t i = (tally->n + place) / 2; i; i /= 2)
		tally->least[i] = lesser(tally, tally->least[2 * i], tally->least[2 * i + 1]);
}

uint32_t tally_least(const struct tally *tally, struct range places)
{
	uint32_t best = TALLY_NONE;

	for (size_t l = places.from + tally->n, r = places.to + tally->n; l < r; l /= 2, r /= 2) {
		if (l & 1)
			best = lesser(tally, best, tally->least[l++]);
		if (r & 1)
			best = lesser(tally, best, tally->least[--r]);
	}
	return best;
}

uint32_t tally_least_outside(const struct tally *tally, const struct range *excluded, size_t n)
{
	uint32_t best = TALLY_NONE, from = 0;

	for (size_t i = 0; i < n; i++) {
		best = lesser(tally, best, tally_least(tally, (struct range){ from, excluded[i].from }));
		from = excluded[i].to;
	}
	return lesser(tally, best, tally_least(tally, (struct range){ from, (uint32_t)tally->n }));
}
