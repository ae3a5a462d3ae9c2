#include "group/pace.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "env/loop.h"

#define PACE_UNIT 1000000 /* a pace of so much: what was planned */

/* So many bytes in that time, in millionths of the planned rate. */
static uint64_t pace_of(uint64_t bytes, uint64_t took_ns, uint64_t rate)
{
	double pace = took_ns ? (double)bytes * PACE_UNIT * (double)NS_PER_S / (double)took_ns / (double)rate : 0;

	return pace < PACE_UNIT ? (uint64_t)pace : PACE_UNIT;
}

static bool counts(const struct pace_node *node)
{
	return node->rate && node->bytes;
}

static uint64_t pace_now(const struct pace *pace, const struct pace_node *node)
{
	unsigned now = pace->looks % (PACE_LOOKS + 1), then = (pace->looks + 1) % (PACE_LOOKS + 1);

	uint64_t since_ns = pace->at_ns[then] > node->begun_ns ? pace->at_ns[then] : node->begun_ns;

	if (node->took_ns)
		return pace_of(node->bytes, node->took_ns, node->rate);
	if (node->done[now] == node->bytes)
		return pace_of(node->bytes, pace->at_ns[now] - node->begun_ns, node->rate);
	return pace_of(node->done[now] - node->done[then], pace->at_ns[now] - since_ns, node->rate);
}

static int by_pace(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* What half of the other nodes, or more, come to at least; 0: there are none. */
static uint64_t others_pace(const struct pace *pace, const struct pace_node *node)
{
	size_t middle = (pace->n_sorted - 1) / 2; /* of the others, were they alone in the list */

	if (pace->n_sorted < 2)
		return 0;
	return pace->sorted[node->pace <= pace->sorted[middle] ? middle + 1 : middle];
}

void pace_begin(struct pace *pace, size_t i, uint64_t now_ns)
{
	struct pace_node *node = &pace->nodes[i];

	CHECK(i < pace->n);
	node->begun_ns = now_ns;
	node->bytes = node->took_ns = 0;
	node->looks = 0;
	memset(node->done, 0, sizeof(node->done));
}

/* What it has done, at this look. A part of what it had to write may have been taken from it. */
static void note_done(struct pace_node *node, uint64_t done, unsigned before, unsigned now)
{
	for (unsigned i = 0; i <= PACE_LOOKS; i++)
		if (node->done[i] > node->bytes)
			node->done[i] = node->bytes;
	done = done < node->bytes ? done : node->bytes;
	node->done[now] = done > node->done[before] ? done : node->done[before];
	node->looks++;
}

void pace_look(struct pace *pace, const uint64_t *done, uint64_t now_ns)
{
	unsigned before = pace->looks % (PACE_LOOKS + 1), now = (pace->looks + 1) % (PACE_LOOKS + 1);

	if (!pace->looks)
		pace->at_ns[before] = pace->begun_ns;
	pace->looks++;
	pace->at_ns[now] = now_ns;
	pace->n_sorted = 0;
	for (size_t i = 0; i < pace->n; i++) {
		struct pace_node *node = &pace->nodes[i];

		note_done(node, done[i], before, now);
		if (!counts(node))
			continue;
		if (node->took_ns || node->looks >= PACE_LOOKS) {
			node->pace = pace_now(pace, node);
			node->known = true;
		}
		if (node->known)
			pace->sorted[pace->n_sorted++] = node->pace;
	}
	qsort(pace->sorted, pace->n_sorted, sizeof(*pace->sorted), by_pace);
}

bool pace_is_slow(const struct pace *pace, size_t i)
{
	const struct pace_node *node = &pace->nodes[i];

	CHECK(i < pace->n);
	if (node->looks < PACE_LOOKS || !counts(node) || node->took_ns)
		return false;
	return node->pace < others_pace(pace, node) / PACE_PART;
}

bool pace_was_slow(const struct pace *pace, size_t i)
{
	const struct pace_node *node = &pace->nodes[i];

	CHECK(i < pace->n);
	if (!counts(node) || node->took_ns < PACE_LOOKS * PACE_LOOK_MS * NS_PER_MS)
		return false;
	return node->pace < others_pace(pace, node) / PACE_PART;
}

bool pace_is_hopeless(const struct pace *pace, size_t i)
{
	const struct pace_node *node = &pace->nodes[i];
	uint64_t left = node->bytes - node->done[pace->looks % (PACE_LOOKS + 1)];

	if (!pace_is_slow(pace, i))
		return false;
	return !left || (double)left * (double)others_pace(pace, node) > (double)node->bytes * (double)node->pace;
}
