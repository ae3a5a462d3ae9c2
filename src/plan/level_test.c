#include "plan/level.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <stdbool.h>
#include <string.h>

#define MB	 UINT64_C(1000000)
#define GB	 UINT64_C(1000000000)
#define NS_PER_S UINT64_C(1000000000)

#define PIPES	7
#define CLASSES 9

typedef unsigned __int128 u128;

struct world {
	struct level_pipe pipes[PIPES];
	struct level_class classes[CLASSES];
	uint32_t named[CLASSES * PIPES];
	struct level_facts facts;
};

static uint64_t next(uint64_t *x)
{
	*x ^= *x << 13, *x ^= *x >> 7, *x ^= *x << 17; /* xorshift64: a fixed seed, so that a failure repeats */
	return *x;
}

static bool may_use(const struct level_class *class, uint32_t pipe)
{
	for (uint32_t i = 0; i < class->n_pipes; i++) {
		if (class->pipes[i] == pipe)
			return true;
	}
	for (uint32_t i = 0; i < class->n_ranges; i++) {
		if (class->ranges[i].from <= pipe && pipe < class->ranges[i].to)
			return true;
	}
	return false;
}

/* Cuts the pipes into runs, each of which is a range, named, or out of reach. */
static void random_class(struct world *w, struct level_class *class, uint32_t *named, uint64_t *x)
{
	uint32_t n_pipes = (uint32_t)w->facts.n_pipes;

	*class = (struct level_class){ .bytes = next(x) % 5 ? next(x) % (next(x) % 2 ? 100 : 3 * GB) : 0,
				       .pipes = named };
	for (uint32_t from = 0, to; from < n_pipes; from = to) {
		uint32_t kind = next(x) % 3;

		to = from + 1 + (uint32_t)(next(x) % (n_pipes - from));
		if (kind == 0 && class->n_ranges < LEVEL_RANGES_MAX)
			class->ranges[class->n_ranges++] = (struct range){ from, to };
		for (uint32_t p = from; p < to && kind == 1; p++)
			named[class->n_pipes++] = p;
	}
}

static void random_world(struct world *w, uint64_t *x)
{
	static const uint64_t extremes[] = { 0, 1, 2, 999999999, UINT64_MAX / 2, UINT64_MAX };
	uint32_t kind = next(x) % 4;

	memset(w, 0, sizeof(*w));
	w->facts = (struct level_facts){ w->pipes, 1 + next(x) % PIPES, w->classes, next(x) % (CLASSES + 1) };
	for (size_t p = 0; p < w->facts.n_pipes; p++) {
		w->pipes[p] = (struct level_pipe){ GB, 0 };
		if (kind == 1)
			w->pipes[p] = (struct level_pipe){ 1 + next(x) % 100, next(x) % 100 };
		if (kind == 2)
			w->pipes[p] = (struct level_pipe){ next(x) % 3 ? next(x) % GB : 0, next(x) % GB };
		if (kind == 3)
			w->pipes[p] = (struct level_pipe){ extremes[next(x) % 6], extremes[next(x) % 6] };
	}
	for (size_t c = 0; c < w->facts.n_classes; c++)
		random_class(w, &w->classes[c], &w->named[c * PIPES], x);
}

static uint64_t capacity(const struct level_pipe *pipe, uint64_t ns)
{
	u128 drained = (u128)pipe->rate * ns / NS_PER_S;

	drained = drained > pipe->queued ? drained - pipe->queued : 0;
	return drained < UINT64_MAX / PIPES ? (uint64_t)drained : UINT64_MAX / PIPES;
}

/* From the dual, over all sets of pipes: what can go to these only takes them at least so long. */
static uint64_t optimum_ns(const struct world *w)
{
	uint64_t worst = 0;

	for (uint32_t set = 1; set < 1u << w->facts.n_pipes; set++) {
		uint64_t bytes = 0, from = worst, to = LEVEL_NS_MAX;

		for (size_t c = 0; c < w->facts.n_classes; c++) {
			bool inside = true;

			for (uint32_t p = 0; p < w->facts.n_pipes; p++)
				inside = inside && !(!(set >> p & 1) && w->pipes[p].rate && may_use(&w->classes[c], p));
			bytes += inside ? w->classes[c].bytes : 0;
		}
		while (bytes && from < to) {
			uint64_t middle = from + (to - from) / 2, room = 0;

			for (uint32_t p = 0; p < w->facts.n_pipes; p++)
				room += set >> p & 1 ? capacity(&w->pipes[p], middle) : 0;
			if (room >= bytes)
				to = middle;
			else
				from = middle + 1;
		}
		worst = from;
	}
	return worst;
}

static bool can_be_filled(const struct world *w)
{
	for (size_t c = 0; c < w->facts.n_classes; c++) {
		bool can = !w->classes[c].bytes;

		for (uint32_t p = 0; p < w->facts.n_pipes; p++)
			can = can || (w->pipes[p].rate && may_use(&w->classes[c], p));
		if (!can)
			return false;
	}
	return true;
}

static void check_shares(const struct world *w, const struct shares *shares, uint64_t level_ns)
{
	uint64_t of_class[CLASSES] = { 0 }, of_pipe[PIPES] = { 0 };
	bool seen[CLASSES][PIPES] = { 0 };

	for (size_t i = 0; i < shares->n; i++) {
		const struct share *share = &shares->list[i];

		assert_true(share->bytes > 0);
		assert_true(w->pipes[share->pipe].rate && may_use(&w->classes[share->class], share->pipe));
		assert_false(seen[share->class][share->pipe]);
		seen[share->class][share->pipe] = true;
		of_class[share->class] += share->bytes;
		of_pipe[share->pipe] += share->bytes;
	}
	for (size_t c = 0; c < w->facts.n_classes; c++)
		assert_int_equal(of_class[c], w->classes[c].bytes);
	for (size_t p = 0; p < w->facts.n_pipes; p++) {
		if (of_pipe[p])
			assert_true(level_end_ns(&w->pipes[p], of_pipe[p]) <= level_ns);
	}
}

static void the_level_is_the_smallest_at_which_everything_fits(void **state)
{
	uint64_t x = 88172645463325252;

	for (int round = 0; round < 20000; round++) {
		struct shares shares = { 0 };
		uint64_t level_ns = 7;
		struct world w;

		random_world(&w, &x);
		int r = level_fill(&w.facts, &shares, &level_ns);
		assert_int_equal(r, can_be_filled(&w) ? 0 : LEVEL_NO_RATE);
		if (r) {
			assert_int_equal(level_ns, 7);
			assert_null(shares.list);
			continue;
		}
		assert_int_equal(level_ns, optimum_ns(&w));
		check_shares(&w, &shares, level_ns);
		shares_fini(&shares);
	}
}

/* No pipe ends later than another to which a class could move its bytes, but for nanoseconds: then no level can sink. */
static void no_class_could_move_to_a_pipe_that_ends_earlier(void **state)
{
	uint64_t x = 362436069362436069;

	for (int round = 0; round < 5000; round++) {
		uint64_t carried[PIPES] = { 0 }, level_ns, end_ns[PIPES];
		struct shares shares = { 0 };
		struct world w;

		random_world(&w, &x);
		for (size_t p = 0; p < w.facts.n_pipes; p++)
			w.pipes[p] = (struct level_pipe){ GB * (1 + next(&x) % 3), next(&x) % 2 * next(&x) % GB };
		if (level_fill(&w.facts, &shares, &level_ns))
			continue;
		for (size_t i = 0; i < shares.n; i++)
			carried[shares.list[i].pipe] += shares.list[i].bytes;
		for (size_t p = 0; p < w.facts.n_pipes; p++)
			end_ns[p] = level_end_ns(&w.pipes[p], carried[p]);
		for (size_t i = 0; i < shares.n; i++) {
			for (uint32_t p = 0; p < w.facts.n_pipes; p++) {
				if (may_use(&w.classes[shares.list[i].class], p))
					assert_true(end_ns[shares.list[i].pipe] <= end_ns[p] + 2 * PIPES);
			}
		}
		shares_fini(&shares);
	}
}

static void times_past_the_end_are_shown_as_the_end(void **state)
{
	struct level_pipe slow[] = { { 1, 0 }, { 1, UINT64_MAX } };
	uint32_t both[] = { 0, 1 };
	struct level_class class = { .bytes = UINT64_C(1) << 61, .pipes = both, .n_pipes = 2 };
	struct level_facts facts = { slow, 2, &class, 1 };
	struct shares shares = { 0 };
	uint64_t level_ns;

	assert_int_equal(level_end_ns(&slow[1], 1), LEVEL_NS_MAX);
	assert_int_equal(level_fill(&facts, &shares, &level_ns), 0);
	assert_int_equal(level_ns, LEVEL_NS_MAX);
	shares_fini(&shares);
}

static void named_pipes_are_preferred_to_ranges(void **state)
{
	struct level_pipe pipes[64];
	struct level_class classes[64];
	uint32_t named[64];
	struct shares shares = { 0 };
	uint64_t level_ns;

	for (uint32_t i = 0; i < 64; i++) {
		pipes[i] = (struct level_pipe){ GB, 0 };
		named[i] = i;
		classes[i] = (struct level_class){ .bytes = GB, .pipes = &named[i], .n_pipes = 1 };
		classes[i].n_ranges = 2;
		classes[i].ranges[0] = (struct range){ 0, i };
		classes[i].ranges[1] = (struct range){ i + 1, 64 };
	}
	assert_int_equal(level_fill(&(struct level_facts){ pipes, 64, classes, 64 }, &shares, &level_ns), 0);
	assert_int_equal(level_ns, NS_PER_S);
	for (size_t i = 0; i < shares.n; i++)
		assert_int_equal(shares.list[i].class, shares.list[i].pipe);
	shares_fini(&shares);
}

/* A chain in which every pipe ends at a time of its own: as many parts as pipes. */
static void a_long_chain_of_levels_is_solved(void **state)
{
	enum { N = 2000 };
	static struct level_pipe pipes[N + 1];
	static struct level_class classes[N];
	static uint32_t named[2 * N];
	struct shares shares = { 0 };
	uint64_t level_ns, carried[N + 1] = { 0 };

	for (uint32_t i = 0; i <= N; i++)
		pipes[i] = (struct level_pipe){ GB, 0 };
	for (uint32_t i = 0; i < N; i++) {
		named[2 * i] = i;
		named[2 * i + 1] = i + 1;
		classes[i] = (struct level_class){ .bytes = (i + 1) * MB, .pipes = &named[2 * i], .n_pipes = 2 };
	}
	assert_int_equal(level_fill(&(struct level_facts){ pipes, N + 1, classes, N }, &shares, &level_ns), 0);
	for (size_t i = 0; i < shares.n; i++)
		carried[shares.list[i].pipe] += shares.list[i].bytes;
	for (uint32_t i = 0; i <= N; i++)
		assert_true(level_end_ns(&pipes[i], carried[i]) <= level_ns);
	shares_fini(&shares);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_level_is_the_smallest_at_which_everything_fits),
		cmocka_unit_test(no_class_could_move_to_a_pipe_that_ends_earlier),
		cmocka_unit_test(times_past_the_end_are_shown_as_the_end),
		cmocka_unit_test(named_pipes_are_preferred_to_ranges),
		cmocka_unit_test(a_long_chain_of_levels_is_solved),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
