#include "plan/uploads.h"

#include <errno.h>
#include <stdbool.h>

#include "base/check.h"
#include "plan/sets.h"

/* Offers whose bytes may go to the same positions are one class of the fluid problem: its members. */
struct uploads {
	const struct offers *offers;
	struct sets sets; /* of what describe() writes: a class each */
	uint32_t *words;
	struct level_class *classes;
	uint32_t *class_of;		  /* by offer; offers without bytes have none */
	uint32_t *members, *first_member; /* offers, by class; n_classes + 1 */
	struct shares fluid;		  /* by class */
	struct share *sorted;		  /* the same in order of classes */
	uint32_t *first_share;
	uint64_t *untaken, *undealt; /* by position and by offer: bytes of the class at hand, else 0 */
	struct shares shares;	     /* by offer */
};

static void uploads_fini(struct uploads *u)
{
	sets_fini(&u->sets);
	free(u->words);
	free(u->classes);
	free(u->class_of);
	free(u->members);
	free(u->first_member);
	shares_fini(&u->fluid);
	free(u->sorted);
	free(u->first_share);
	free(u->untaken);
	free(u->undealt);
	shares_fini(&u->shares);
}

/* The positions outside the offer's domains, of which there are fewer than PLAN_COPIES_MAX. */
static uint32_t list_foreign(const struct offers *o, const struct offer *offer, struct range *ret)
{
	uint32_t n = 0, from = 0;

	for (uint32_t i = 0; i < offer->n_nodes; i++) {
		struct range own = offers_domain(o, o->nodes[offer->first_node + i].position);

		if (own.from > from)
			ret[n++] = (struct range){ from, own.from };
		from = own.to;
	}
	if (from < o->n_positions)
		ret[n++] = (struct range){ from, (uint32_t)o->n_positions };
	return n;
}

static bool has_whole_domains(const struct offers *o, const struct offer *offer)
{
	uint32_t n = 0, last = UINT32_MAX;

	for (uint32_t i = 0; i < offer->n_nodes; i++) {
		uint32_t position = o->nodes[offer->first_node + i].position;
		struct range domain = offers_domain(o, position);

		n += last == UINT32_MAX || o->domain[position] != o->domain[last] ? domain.to - domain.from : 0;
		last = position;
	}
	return n == offer->n_nodes;
}

#define DESCRIPTION_WORDS (1 + 2 * LEVEL_RANGES_MAX) /* of an offer, beside its positions */

/* The candidates of an offer: the number of ranges, the ranges, then single positions. Returns the number of words. */
static uint32_t describe(const struct offers *o, const struct offer *offer, uint32_t copies, uint32_t *words)
{
	struct range ranges[LEVEL_RANGES_MAX];
	uint32_t n = 0, n_ranges = 0;

	_Static_assert(PLAN_COPIES_MAX <= LEVEL_RANGES_MAX, "fewer domains than copies leave as many gaps as copies");
	if (offer->n_domains < copies && has_whole_domains(o, offer))
		ranges[n_ranges++] = (struct range){ 0, (uint32_t)o->n_positions }; /* own or not: everywhere */
	else if (offer->n_domains < copies)
		n_ranges = list_foreign(o, offer, ranges);
	bool everywhere = n_ranges == 1 && ranges[0].to - ranges[0].from == o->n_positions;

	words[n++] = n_ranges;
	for (uint32_t i = 0; i < n_ranges; i++) {
		words[n++] = ranges[i].from;
		words[n++] = ranges[i].to;
	}
	for (uint32_t i = 0; i < offer->n_nodes && !everywhere; i++)
		words[n++] = o->nodes[offer->first_node + i].position;
	return n;
}

static struct level_class read_description(const struct set *set)
{
	struct level_class class = { .n_ranges = set->items[0] };
	uint32_t n = 1;

	for (uint32_t i = 0; i < class.n_ranges; i++, n += 2)
		class.ranges[i] = (struct range){ set->items[n], set->items[n + 1] };
	class.pipes = set->items + n;
	class.n_pipes = set->n - n;
	return class;
}

static int find_classes(struct uploads *u, uint32_t copies)
{
	const struct offers *o = u->offers;
	size_t n_words = o->n * DESCRIPTION_WORDS;

	for (size_t i = 0; i < o->n; i++)
		n_words += o->list[i].n_nodes;
	u->words = array_new(n_words, sizeof(*u->words));
	u->class_of = array_new(o->n, sizeof(*u->class_of));
	u->classes = array_new(o->n, sizeof(*u->classes));
	u->members = array_new(o->n, sizeof(*u->members));
	u->first_member = array_new(o->n + 2, sizeof(*u->first_member));
	int r = sets_init(&u->sets, o->n);
	if (r || !u->words || !u->class_of || !u->classes || !u->members || !u->first_member)
		return -ENOMEM;

	uint32_t *words = u->words;
	for (size_t i = 0; i < o->n; i++) {
		if (!o->list[i].bytes)
			continue;
		uint32_t n = describe(o, &o->list[i], copies, words);

		u->class_of[i] = sets_id(&u->sets, words, n);
		words += n;
		u->classes[u->class_of[i]].bytes += o->list[i].bytes;
		u->first_member[u->class_of[i] + 2]++;
	}
	for (size_t c = 0; c < u->sets.n; c++) {
		uint64_t bytes = u->classes[c].bytes;

		u->classes[c] = read_description(&u->sets.list[c]);
		u->classes[c].bytes = bytes;
		u->first_member[c + 2] += u->first_member[c + 1];
	}
	for (size_t i = 0; i < o->n; i++) {
		if (o->list[i].bytes)
			u->members[u->first_member[u->class_of[i] + 1]++] = (uint32_t)i;
	}
	return 0;
}

static int fill_classes(struct uploads *u, const struct save_facts *facts, uint64_t *ret_bound_ns)
{
	const struct offers *o = u->offers;
	_cleanup_(cleanup_mem) struct level_pipe *pipes = array_new(o->n_positions, sizeof(*pipes));

	if (!pipes)
		return -ENOMEM;
	for (size_t p = 0; p < o->n_positions; p++) {
		const struct plan_node *node = &facts->nodes[o->node[p]];

		pipes[p] = (struct level_pipe){ node->store_rate, node->store_queued };
	}
	struct level_facts level = { pipes, o->n_positions, u->classes, u->sets.n };
	return level_fill(&level, &u->fluid, ret_bound_ns);
}

static int sort_shares(struct uploads *u)
{
	u->sorted = array_new(u->fluid.n, sizeof(*u->sorted));
	u->first_share = array_new(u->sets.n + 2, sizeof(*u->first_share));
	if (!u->sorted || !u->first_share)
		return -ENOMEM;
	for (size_t i = 0; i < u->fluid.n; i++)
		u->first_share[u->fluid.list[i].class + 2]++;
	for (size_t c = 0; c < u->sets.n; c++)
		u->first_share[c + 2] += u->first_share[c + 1];
	for (size_t i = 0; i < u->fluid.n; i++)
		u->sorted[u->first_share[u->fluid.list[i].class + 1]++] = u->fluid.list[i];
	return 0;
}

static void hand_out(struct uploads *u, uint32_t offer, uint32_t position)
{
	uint64_t bytes = u->undealt[offer] < u->untaken[position] ? u->undealt[offer] : u->untaken[position];

	if (!bytes)
		return;
	CHECK(u->shares.n < u->shares.n_max);
	u->shares.list[u->shares.n++] = (struct share){ offer, position, bytes };
	u->undealt[offer] -= bytes;
	u->untaken[position] -= bytes;
}

/* Divides the class's shares among its members: first to their own positions, then the rest as it comes. */
static void divide_class(struct uploads *u, uint32_t class)
{
	const struct offers *o = u->offers;
	uint32_t share = u->first_share[class], share_end = u->first_share[class + 1];
	uint32_t member = u->first_member[class], member_end = u->first_member[class + 1];

	for (uint32_t i = share; i < share_end; i++)
		u->untaken[u->sorted[i].pipe] = u->sorted[i].bytes;
	for (uint32_t i = member; i < member_end; i++) {
		const struct offer *offer = &o->list[u->members[i]];

		u->undealt[u->members[i]] = offer->bytes;
		for (uint32_t k = 0; k < offer->n_nodes && u->undealt[u->members[i]]; k++)
			hand_out(u, u->members[i], o->nodes[offer->first_node + k].position);
	}
	while (share < share_end && member < member_end) {
		hand_out(u, u->members[member], u->sorted[share].pipe);
		if (!u->undealt[u->members[member]])
			member++;
		else
			share++;
	}
	while (share < share_end && !u->untaken[u->sorted[share].pipe])
		share++;
	while (member < member_end && !u->undealt[u->members[member]])
		member++;
	CHECK(share == share_end && member == member_end);
}

static int divide(struct uploads *u)
{
	const struct offers *o = u->offers;

	/* Each pair that is handed out ends a share or a member. */
	u->shares.n_max = u->fluid.n + o->n;
	u->shares.list = array_new(u->shares.n_max, sizeof(*u->shares.list));
	u->untaken = array_new(o->n_positions, sizeof(*u->untaken));
	u->undealt = array_new(o->n, sizeof(*u->undealt));
	if (!u->shares.list || !u->untaken || !u->undealt)
		return -ENOMEM;
	for (uint32_t c = 0; c < u->sets.n; c++)
		divide_class(u, c);
	return 0;
}

int uploads_share(const struct offers *offers, const struct save_facts *facts, struct deal *ret, uint64_t *ret_bound_ns)
{
	_cleanup_(uploads_fini) struct uploads u = { .offers = offers };
	_cleanup_(deal_fini) struct deal deal = { 0 };
	uint64_t bound_ns;

	int r = find_classes(&u, facts->copies);
	if (r)
		return r;
	r = fill_classes(&u, facts, &bound_ns);
	if (r)
		return r;
	r = sort_shares(&u);
	if (r)
		return r;
	r = divide(&u);
	if (r)
		return r;
	r = deal_init(&deal, &u.shares, offers->n, offers->n_positions);
	if (r)
		return r;

	*ret = deal;
	deal = (struct deal){ 0 };
	*ret_bound_ns = bound_ns;
	return 0;
}
