/*
 * sim/truth_suite.c: the reference model. What a save contains follows from a few numbers, so that nothing needs to be kept: each byte of an
 * item is a function of the save, the item and its place. Against that, and against what was promised, whatever a client sees is
 * checked.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "sim/history_suite.h"
#include "sim/inside.h"

#define SAMPLE_PAGE 4096

enum sharding { SHARD, STRIPE, GRID, PAIR, REPLICA, ALONE, BLOB, SHARDINGS };

static uint64_t mix(uint64_t seed, uint64_t n)
{
	uint64_t z = seed + (n + 1) * UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

/* ---- what a save contains ---- */

static uint64_t trait(const struct attempt *a, unsigned item, unsigned n, uint64_t below)
{
	return mix(a->structure, item * 64 + n) % below;
}

bool truth_is_large(const struct attempt *a)
{
	return a->structure % 8 == 0 && a->n_items;
}

static enum sharding sharding_of(const struct attempt *a, unsigned i)
{
	return truth_is_large(a) && i == 0 ? REPLICA : (enum sharding)trait(a, i, 0, SHARDINGS);
}

struct item truth_item(const struct attempt *a, unsigned i, uint32_t rank)
{
	static const uint32_t sizes[] = { 0, 3, 5, 8, 16, 40, 40, 700 }; /* 700 x 40 x 4 bytes: over 64 KiB */
	static const uint32_t bits[] = { 8, 16, 32, 32, 64, 4 };
	struct item item = { .number = i, .bits = bits[trait(a, i, 1, ARRAY_LEN(bits))] };

	snprintf(item.name, sizeof(item.name), "i%02u", i);
	item.whole.ndim = (uint32_t)trait(a, i, 2, 4);
	for (unsigned d = 0; d < item.whole.ndim; d++)
		item.whole.count[d] = sizes[trait(a, i, 3 + d, d == 0 ? ARRAY_LEN(sizes) : ARRAY_LEN(sizes) - 1)];
	if (sharding_of(a, i) == BLOB) {
		item.flags = ITEM_LOWEST_WINS;
		item.bits = 8;
		item.whole = (struct box){ .ndim = 1, .count = { trait(a, i, 6, 3000) * (rank + 1) } };
	}
	if (item.bits == 4 && (item.whole.ndim != 2 || sharding_of(a, i) == GRID || item.whole.count[1] % 2))
		item.bits = 8;
	if (truth_is_large(a) && i == 0) { /* more than the sample looks at */
		item.bits = 8;
		uint64_t kind = a->structure % 64; /* 0: more than a pool has */
		item.whole = (struct box){ .ndim = 1,
					   .count = { !kind		      ? 5000000 :
						      kind == TRUTH_HALF_POOL ? 600000 :
										400000 } };
	}
	bool zero = trait(a, i, 8, 6) == 0;
	item.seed = zero ? 0 : mix(a->changed >> i & 1 ? a->content : a->base, i) | 1;
	if (item.seed && item.flags)
		item.seed += 2 * rank;
	return item;
}

static struct box slice(const struct box *whole, unsigned dim, uint64_t part, uint64_t parts)
{
	struct box box = *whole;
	uint64_t from = whole->count[dim] * part / parts, to = whole->count[dim] * (part + 1) / parts;

	box.start[dim] += from;
	box.count[dim] = to - from;
	return box;
}

unsigned truth_boxes(const struct attempt *a, const struct item *item, uint32_t rank, struct box ret[BOXES_MAX])
{
	enum sharding how = sharding_of(a, item->number);
	uint32_t ranks = a->ranks, rows = ranks % 2 ? 1 : 2;

	if (how == GRID && item->whole.ndim < 2)
		how = SHARD;
	if (!item->whole.ndim && (how == SHARD || how == STRIPE || how == PAIR))
		how = REPLICA;
	ret[0] = item->whole;
	switch (how) {
	case SHARD:
		ret[0] = slice(&item->whole, 0, rank, ranks);
		return 1;
	case STRIPE:
		ret[0] = slice(&item->whole, 0, rank, 2 * ranks);
		ret[1] = slice(&item->whole, 0, rank + ranks, 2 * ranks);
		return box_equal(&ret[0], &ret[1]) ? 1 : 2; /* both are empty */
	case GRID:
		ret[0] = slice(&item->whole, 0, rank % rows, rows);
		ret[0] = slice(&ret[0], 1, rank / rows, ranks / rows);
		return 1;
	case PAIR:
		ret[0] = slice(&item->whole, 0, rank / 2, (ranks + 1) / 2);
		return 1;
	case ALONE:
		return rank == trait(a, item->number, 9, ranks);
	default:
		return 1;
	}
}

uint64_t truth_bytes(const struct item *item, const struct box *box)
{
	uint64_t bytes = 0;

	CHECK(box_bytes(box, item->bits, &bytes) == 0);
	return bytes;
}

/* Inline: where @n is a constant it is one load or store, and most of a history's bytes come by here. */
static inline bool piece(const void *from, uint8_t *p, size_t n, bool compare)
{
	if (compare)
		return memcmp(p, from, n) == 0;
	memcpy(p, from, n);
	return true;
}

/* Bytes [@offset, @offset + @n) of an item, with a bit of the byte at @lie flipped: written to @p, or compared with it. */
static bool content(uint64_t seed, uint64_t lie, uint64_t offset, uint8_t *p, size_t n, bool compare)
{
	while (n) {
		uint64_t word = seed ? mix(seed, offset / 8) : 0;
		size_t skip = offset % 8, part = 8 - skip < n ? 8 - skip : n;

		if (lie / 8 == offset / 8)
			((uint8_t *)&word)[lie % 8] ^= 1;
		if (part < 8 ? !piece((uint8_t *)&word + skip, p, part, compare) : !piece(&word, p, 8, compare))
			return false;
		p += part;
		offset += part;
		n -= part;
	}
	return true;
}

static bool content_box(const struct item *item, const struct box *box, uint64_t lie, uint8_t *bytes, bool compare)
{
	struct box_walk walk;
	uint64_t at, part, n;
	bool equal = true;

	if (!truth_bytes(item, box))
		return true;
	CHECK(box_walk_init(&walk, &item->whole, box, item->bits) == 0);
	while (equal && box_walk_next(&walk, &at, &part, &n))
		equal = content(item->seed, lie, at, bytes + part, n, compare);
	return equal;
}

/* Where the liar's replica differs, in items that all ranks offer whole: past the first page, which every sample has. */
static uint64_t lie_of(const struct attempt *a, const struct item *item)
{
	uint64_t n = truth_bytes(item, &item->whole);

	if (a->liar < 0 || a->ranks < 2 || sharding_of(a, item->number) != REPLICA || !n)
		return UINT64_MAX;
	return n > 5000 ? 4096 + mix(a->content, 99) % (n - 4999) : n / 2;
}

bool truth_lies(const struct attempt *a)
{
	bool lies = false;

	for (unsigned i = 0; i < a->n_items; i++) {
		struct item item = truth_item(a, i, 0);

		lies |= lie_of(a, &item) != UINT64_MAX;
	}
	return lies;
}

/* Every sample has the first page. */
bool truth_lie_shows(const struct attempt *a)
{
	bool shows = false;

	for (unsigned i = 0; i < a->n_items; i++) {
		struct item item = truth_item(a, i, 0);

		shows |= lie_of(a, &item) < SAMPLE_PAGE;
	}
	return shows;
}

void truth_fill(const struct attempt *a, const struct item *item, const struct box *box, uint32_t rank, uint8_t *bytes)
{
	(void)content_box(item, box, (int)rank == a->liar ? lie_of(a, item) : UINT64_MAX, bytes, false);
}

/* With a hint nobody may have looked at the liar's byte: then it may have been published, and so may what was written to captured bytes. */
bool truth_equals(const struct attempt *a, const struct item *item, const struct box *box, const uint8_t *bytes)
{
	return content_box(item, box, UINT64_MAX, (uint8_t *)bytes, true) || (a->hinted && a->scribbled) ||
	       (a->hinted && content_box(item, box, lie_of(a, item), (uint8_t *)bytes, true));
}

/* ---- what was promised ---- */

bool truth_may_go(const struct history *h, const struct attempt *a)
{
	uint64_t newer = 0;

	if (a->dying)
		return true;
	for (unsigned i = 0; i < LABELS; i++)
		if (h->labels[a->bundle][i].n == 1 && h->labels[a->bundle][i].possible[0] == a->version)
			return false;
	for (unsigned i = 0; i < h->n_attempts; i++) /* one that nobody knows the end of may be there */
		newer += h->attempts[i]->bundle == a->bundle &&
			 (!h->attempts[i]->version || h->attempts[i]->version > a->version);
	for (unsigned i = 0; i < h->n_rules[a->bundle]; i++) {
		uint64_t every = h->rules[a->bundle][i].every;

		if (newer >= h->rules[a->bundle][i].last && (!every || a->version % every))
			return true;
	}
	return false;
}

struct attempt *truth_attempt(struct history *h, unsigned bundle, uint64_t step, uint32_t ranks, uint64_t structure)
{
	struct attempt *a = must_alloc(sizeof(*a));

	*a = (struct attempt){ .id = h->n_attempts + 1,
			       .bundle = bundle,
			       .step = step,
			       .ranks = ranks,
			       .structure = structure,
			       .content = world_random(h->world, UINT64_MAX),
			       .changed = UINT64_MAX,
			       .liar = -1 };
	a->n_items = (uint32_t)(mix(structure, 1000) % (ITEMS_MOST + 1));
	a->copies = 1;
	h->attempts = reallocarray(h->attempts, a->id, sizeof(*h->attempts));
	CHECK(h->attempts);
	return h->attempts[h->n_attempts++] = a;
}

struct attempt *truth_version(struct history *h, unsigned bundle, uint64_t number)
{
	for (unsigned i = 0; i < h->n_attempts; i++)
		if (h->attempts[i]->bundle == bundle && h->attempts[i]->version == number)
			return h->attempts[i];
	return NULL;
}

struct attempt *truth_some(struct history *h, unsigned bundle)
{
	struct attempt *found = NULL;
	unsigned n = 0;

	for (unsigned i = 0; i < h->n_attempts; i++) {
		struct attempt *a = h->attempts[i];

		if (a->bundle == bundle && a->version && !a->dying && !a->rotten && !a->tainted &&
		    world_random(h->world, ++n) == 0)
			found = a;
	}
	return found;
}

/* A later save of the job that may drop others. */
static bool may_be_replaced(const struct history *h, const struct attempt *a)
{
	for (unsigned i = a->id; i < h->n_attempts; i++)
		if (h->attempts[i]->policy == POLICY_REPLACE)
			return true;
	return false;
}

void truth_disturb(struct history *h)
{
	for (unsigned i = 0; i < h->n_attempts; i++)
		h->attempts[i]->disturbed = true;
}

bool truth_quiet(const struct history *h, const struct attempt *a)
{
	return h->calm || (h->one_loss && h->lost < 0 && !a->disturbed && !a->again);
}

void truth_told(struct history *h, struct attempt *a, unsigned node, int r)
{
	if (a->again && r == -ERR_ESUPERSEDED)
		return; /* of the save of that step before: it is told why that one failed */
	a->unskipped |= r && r != -ERR_ESKIPPED;
	a->captured |= r == 0;
	a->skipped |= r == -ERR_ESKIPPED;
	a->superseded |= (uint32_t)(r == -ERR_ESUPERSEDED) << node;
	if (a->skipped && (a->captured || a->version || a->policy != POLICY_SKIP))
		history_fail(h, "save %u was skipped, and %s", a->id,
			     a->version	 ? "is published" :
			     a->captured ? "a rank was told captured" :
					   "never wanted to be");
	if (a->skipped && a->unskipped && truth_quiet(h, a))
		history_fail(h, "save %u was skipped, and not all of its ranks were told so", a->id);
	a->dropped |= a->superseded && truth_quiet(h, a);
	if (a->superseded && (a->durable || !may_be_replaced(h, a) || (a->version && a->dropped)))
		history_fail(h, "save %u was dropped, and %s", a->id,
			     a->durable ? "was durable" :
			     a->version ? "is published" :
					  "there is no newer one");
}

void truth_unheard(struct history *h, unsigned node)
{
	for (unsigned i = 0; i < h->n_attempts; i++)
		h->attempts[i]->superseded &= ~(UINT32_C(1) << node);
}

void truth_published(struct history *h, struct attempt *a, uint64_t number, bool durable)
{
	struct attempt *other = truth_version(h, a->bundle, number);

	if (!number || (other && other != a) || (a->version && a->version != number))
		history_fail(h, "save %u is version %" PRIu64 ", which is %s%u; it was %" PRIu64 " before", a->id,
			     number, other ? "save " : "no save: ", other ? other->id : 0, a->version);
	a->version = number;
	a->durable |= durable;
	if (a->skipped || (a->superseded && (durable || a->dropped)))
		history_fail(h, "save %u is version %" PRIu64 ", and a rank was told that it was %s", a->id, number,
			     a->skipped ? "skipped" : "dropped");
}

struct attempt *truth_seen(struct client *c, unsigned bundle, uint64_t number, uint64_t step,
			   struct list_view attributes)
{
	struct history *h = c->h;
	struct elem_attribute attribute;
	unsigned id = 0;

	while (!elem_attribute_next(&attributes, &attribute))
		if (view_equal(attribute.key, view_str("save")) && attribute.value.len < 8)
			for (size_t i = 0; i < attribute.value.len; i++)
				id = id * 10 + attribute.value.ptr[i] - '0';
	struct attempt *a = id && id <= h->n_attempts ? h->attempts[id - 1] : NULL;
	if (!a || a->bundle != bundle || a->step != step) {
		history_fail(h, "version %" PRIu64 " of %s, step %" PRIu64 ", is of save %u, which was another", number,
			     bundle_names[bundle], step, id);
		return NULL;
	}
	if (a->gone_ns && a->gone_ns < c->asked_ns)
		history_fail(h, "version %" PRIu64 " of %s was deleted, and is seen", number, bundle_names[bundle]);
	truth_published(h, a, number, false);
	a->shown = true;
	return a;
}
