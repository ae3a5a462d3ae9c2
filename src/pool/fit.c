#include "pool/fit.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#define NONE	       UINT32_MAX
#define SECOND_BITS    5  /* FIT_SECOND = 2^5; shorter runs have classes of their own in the first level 0 */
#define FIT_NODES_STEP 64 /* the array of nodes starts with so many, then doubles */
#define FIT_WALK_MAX   64 /* runs looked at in the class of the very size, when all larger classes are empty */

struct fit_node {
	uint64_t start, units;
	uint32_t tag;
	uint32_t before, after; /* neighbours in the range */
	uint32_t prev, next;	/* in the list of a class; next: also in the spare list */
	bool taken;
};

struct class
{
	unsigned first, second;
};

/* The class whose runs are at least as long as its own least length, and which holds runs of @units. */
static struct class class_of(uint64_t units)
{
	if (units < FIT_SECOND)
		return (struct class){ 0, (unsigned)units };

	unsigned log = 63 - (unsigned)__builtin_clzll(units);
	return (struct class){ log - SECOND_BITS + 1, (unsigned)(units >> (log - SECOND_BITS)) & (FIT_SECOND - 1) };
}

/* The least length of a class whose every run holds @units. */
static uint64_t class_round_up(uint64_t units)
{
	if (units < FIT_SECOND)
		return units;

	unsigned log = 63 - (unsigned)__builtin_clzll(units);
	return units + (UINT64_C(1) << (log - SECOND_BITS)) - 1;
}

void fit_init(struct fit *fit)
{
	*fit = (struct fit){ .spare = NONE };
	memset(fit->heads, 0xff, sizeof(fit->heads));
}

void fit_fini(struct fit *fit)
{
	free(fit->nodes);
	fit->nodes = NULL;
	fit->n_nodes = fit->cap_nodes = 0;
}

/* ---- nodes ---- */

static int node_new(struct fit *fit, uint32_t *ret)
{
	if (fit->spare != NONE) {
		*ret = fit->spare;
		fit->spare = fit->nodes[*ret].next;
		return 0;
	}
	if (fit->n_nodes == fit->cap_nodes) {
		uint32_t cap = fit->cap_nodes ? 2 * fit->cap_nodes : FIT_NODES_STEP;
		struct fit_node *nodes = cap < NONE / 2 ? realloc(fit->nodes, cap * sizeof(*nodes)) : NULL;
		if (!nodes)
			return -ENOMEM;
		fit->nodes = nodes;
		fit->cap_nodes = cap;
	}
	*ret = fit->n_nodes++;
	return 0;
}

static void node_free(struct fit *fit, uint32_t i)
{
	fit->nodes[i] = (struct fit_node){ .next = fit->spare };
	fit->spare = i;
}

static void class_insert(struct fit *fit, uint32_t i)
{
	struct fit_node *node = &fit->nodes[i];
	struct class c = class_of(node->units);
	uint32_t *head = &fit->heads[c.first][c.second];

	node->taken = false;
	node->prev = NONE;
	node->next = *head;
	if (*head != NONE)
		fit->nodes[*head].prev = i;
	*head = i;
	fit->first_map |= 1u << c.first;
	fit->second_map[c.first] |= 1u << c.second;
	fit->free_units += node->units;
}

static void class_remove(struct fit *fit, uint32_t i)
{
	struct fit_node *node = &fit->nodes[i];
	struct class c = class_of(node->units);
	uint32_t *head = &fit->heads[c.first][c.second];

	if (node->prev != NONE)
		fit->nodes[node->prev].next = node->next;
	else
		*head = node->next;
	if (node->next != NONE)
		fit->nodes[node->next].prev = node->prev;
	if (*head == NONE) {
		fit->second_map[c.first] &= ~(1u << c.second);
		if (!fit->second_map[c.first])
			fit->first_map &= ~(1u << c.first);
	}
	fit->free_units -= node->units;
}

/* ---- finding room ---- */

/* A run of a class all of whose runs hold @units, or NONE. */
static uint32_t find_sure(const struct fit *fit, uint64_t units)
{
	uint64_t least = class_round_up(units);

	if (least >= FIT_UNITS_MAX)
		return NONE;
	struct class c = class_of(least);
	uint32_t map = fit->second_map[c.first] & (~0u << c.second);
	if (!map) {
		uint32_t above = c.first + 1 < FIT_FIRST ? fit->first_map & (~0u << (c.first + 1)) : 0;
		if (!above)
			return NONE;
		c.first = (unsigned)__builtin_ctz(above);
		map = fit->second_map[c.first];
	}
	return fit->heads[c.first][__builtin_ctz(map)];
}

/* A run of the class of @units itself, some of which are too short. Without it a nearly full space would refuse what fits. */
static uint32_t find_tight(const struct fit *fit, uint64_t units)
{
	struct class c = class_of(units);
	uint32_t i = fit->heads[c.first][c.second];

	for (int walked = 0; i != NONE && walked < FIT_WALK_MAX; walked++, i = fit->nodes[i].next)
		if (fit->nodes[i].units >= units)
			return i;
	return NONE;
}

int fit_add(struct fit *fit, uint64_t start, uint64_t units, uint32_t tag)
{
	uint32_t i;

	if (!units || units >= FIT_UNITS_MAX)
		return -EINVAL;
	int r = node_new(fit, &i);
	if (r)
		return r;
	fit->nodes[i] = (struct fit_node){ .start = start, .units = units, .tag = tag, .before = NONE, .after = NONE };
	class_insert(fit, i);
	return 0;
}

/* The units of @i beyond the first @units become a free run of their own. */
static int split(struct fit *fit, uint32_t i, uint64_t units)
{
	uint32_t j;
	int r = node_new(fit, &j);

	if (r)
		return r;
	struct fit_node *node = &fit->nodes[i], *rest = &fit->nodes[j];
	class_remove(fit, i);
	*rest = (struct fit_node){
		.start = node->start + units,
		.units = node->units - units,
		.tag = node->tag,
		.before = i,
		.after = node->after,
	};
	if (rest->after != NONE)
		fit->nodes[rest->after].before = j;
	node->after = j;
	node->units = units;
	class_insert(fit, j);
	return 0;
}

int fit_take(struct fit *fit, uint64_t units, uint32_t *ret_node)
{
	CHECK(units > 0);
	if (units >= FIT_UNITS_MAX)
		return FIT_FULL;
	uint32_t i = find_sure(fit, units);
	if (i == NONE)
		i = find_tight(fit, units);
	if (i == NONE)
		return FIT_FULL;

	if (fit->nodes[i].units > units) {
		int r = split(fit, i, units);
		if (r)
			return r;
	} else {
		class_remove(fit, i);
	}
	fit->nodes[i].taken = true;
	*ret_node = i;
	return 0;
}

uint64_t fit_start(const struct fit *fit, uint32_t node)
{
	CHECK(node < fit->n_nodes);
	return fit->nodes[node].start;
}

uint32_t fit_tag(const struct fit *fit, uint32_t node)
{
	CHECK(node < fit->n_nodes);
	return fit->nodes[node].tag;
}

/* @j, which lies right after @i, becomes part of it. Neither is in a class. */
static void merge(struct fit *fit, uint32_t i, uint32_t j)
{
	struct fit_node *node = &fit->nodes[i], *rest = &fit->nodes[j];

	CHECK(node->start + node->units == rest->start);
	node->units += rest->units;
	node->after = rest->after;
	if (node->after != NONE)
		fit->nodes[node->after].before = i;
	node_free(fit, j);
}

uint32_t fit_give(struct fit *fit, uint32_t i)
{
	CHECK(i < fit->n_nodes && fit->nodes[i].taken);

	uint32_t after = fit->nodes[i].after, before = fit->nodes[i].before;
	if (after != NONE && !fit->nodes[after].taken) {
		class_remove(fit, after);
		merge(fit, i, after);
	}
	if (before != NONE && !fit->nodes[before].taken) {
		class_remove(fit, before);
		merge(fit, before, i);
		i = before;
	}
	class_insert(fit, i);
	return i;
}

bool fit_is_whole(const struct fit *fit, uint32_t node)
{
	CHECK(node < fit->n_nodes);
	const struct fit_node *n = &fit->nodes[node];
	return !n->taken && n->before == NONE && n->after == NONE;
}

void fit_remove(struct fit *fit, uint32_t node)
{
	CHECK(fit_is_whole(fit, node));
	class_remove(fit, node);
	node_free(fit, node);
}
