/*
 * sim/coverage_suite.c: what many histories have reached, and how long scripts took, in words for a person.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "sim/history_suite.h"
#include "sim/inside.h"

static unsigned print_row(const char *kind, const char *name, uint64_t n, const char *text)
{
	printf("%-6s %-24s %10" PRIu64 "  %s%s\n", kind, name, n, text, n ? "" : "  <- never");
	return !n;
}

unsigned coverage_print(const struct coverage *c)
{
	unsigned missing = 0;
	char name[64];

	for (int i = 0; i < SAVE_STATES * SAVE_STATES; i++) {
		enum save_state from = (enum save_state)(i / SAVE_STATES), to = (enum save_state)(i % SAVE_STATES);

		snprintf(name, sizeof(name), "%s > %s", save_state_name(from), save_state_name(to));
		if (save_state_may_move(from, to))
			missing += print_row("move", name, c->moves[from][to], "");
	}
	for (int i = 0; i < POINTS; i++)
		missing += print_row("point", point_name((enum point)i), c->points[i], "");
	for (int i = 0; i < FAULTS; i++)
		missing += print_row("fault", fault_names[i], c->faults[i], fault_texts[i]);
	for (int i = 0; i < DEEDS; i++)
		missing += print_row("deed", deed_names[i], c->deeds[i], deed_texts[i]);
	return missing;
}

static int by_value(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

void recovery_print(const uint64_t *took_ns, size_t stride_bytes, uint64_t n)
{
	uint64_t *sorted = must_alloc(n * sizeof(*sorted));

	for (uint64_t i = 0; i < n; i++)
		sorted[i] = *(const uint64_t *)((const char *)took_ns + i * stride_bytes);
	qsort(sorted, n, sizeof(*sorted), by_value);
	printf("recovery: median %.2f s, worst %.2f s\n", (double)sorted[n / 2] / 1e9, (double)sorted[n - 1] / 1e9);
	free(sorted);
}
