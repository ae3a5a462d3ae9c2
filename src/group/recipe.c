/*
 * group/recipe.c: from all ranks' lists to a catalog and a plan; kept for the next save of the same structure.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "group/inside.h"

#define OFFERED_ROOM_TIMES 64 /* what room there is. More is refused before it is planned: a plan takes memory, too */

struct recipe *recipe_new(uint32_t n_ranks)
{
	struct recipe *recipe = calloc(1, sizeof(*recipe));

	if (!recipe)
		return NULL;
	recipe->refs = 1;
	recipe->n_ranks = n_ranks;
	recipe->lists = calloc(n_ranks, sizeof(*recipe->lists));
	recipe->structures = calloc(n_ranks, sizeof(*recipe->structures));
	recipe->rank_node = calloc(n_ranks, sizeof(*recipe->rank_node));
	if (!recipe->lists || !recipe->structures || !recipe->rank_node) {
		recipe_put(recipe);
		return NULL;
	}
	return recipe;
}

void recipe_put(struct recipe *recipe)
{
	if (!recipe || --recipe->refs)
		return;
	save_plan_fini(&recipe->plan);
	catalog_fini(&recipe->catalog);
	for (uint32_t i = 0; recipe->lists && i < recipe->n_ranks; i++)
		buf_fini(&recipe->lists[i]);
	free(recipe->lists);
	free(recipe->structures);
	free(recipe->rank_node);
	free(recipe->nodes);
	free(recipe->plan_nodes);
	free(recipe);
}

static int by_text(const void *a, const void *b)
{
	return strcmp(a, b);
}

/* Numbers the failure domains in order of their names. */
static int number_domains(struct recipe *recipe, const struct node_info *infos, const uint32_t *picked)
{
	char(*domains)[NODE_NAME_MAX + 1] = calloc(recipe->n_nodes, sizeof(*domains));
	size_t n = 0;

	if (!domains)
		return -ENOMEM;
	for (size_t i = 0; i < recipe->n_nodes; i++)
		memcpy(domains[i], infos[picked[i]].domain, sizeof(*domains));
	qsort(domains, recipe->n_nodes, sizeof(*domains), by_text);
	for (size_t i = 0; i < recipe->n_nodes; i++)
		if (!n || strcmp(domains[n - 1], domains[i]) != 0)
			memmove(domains[n++], domains[i], sizeof(*domains));
	for (size_t i = 0; i < recipe->n_nodes; i++) {
		char *at = bsearch(infos[picked[i]].domain, domains, n, sizeof(*domains), by_text);

		recipe->plan_nodes[i].domain = (uint32_t)((at - domains[0]) / (ptrdiff_t)sizeof(*domains));
	}
	free(domains);
	return 0;
}

/* Takes the nodes that are up, and those of the ranks in any case: a rank that speaks to us lives. */
int recipe_set_nodes(struct recipe *recipe, const struct crank *ranks, const struct node_info *infos, size_t n,
		     struct error *e)
{
	_cleanup_(cleanup_mem) uint32_t *picked = calloc(n + 1, sizeof(*picked));

	recipe->nodes = calloc(n + 1, sizeof(*recipe->nodes));
	recipe->plan_nodes = calloc(n + 1, sizeof(*recipe->plan_nodes));
	if (!picked || !recipe->nodes || !recipe->plan_nodes)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++) {
		bool wanted = infos[i].up;

		for (uint32_t rank = 0; !wanted && rank < recipe->n_ranks; rank++)
			wanted = !strcmp(ranks[rank].node, infos[i].name);
		if (!wanted)
			continue;
		memcpy(recipe->nodes[recipe->n_nodes], infos[i].name, sizeof(*recipe->nodes));
		/* one field, not the struct: its padding is hashed, too */
		recipe->plan_nodes[recipe->n_nodes].store_rate = infos[i].store_rate ? infos[i].store_rate :
										       RATE_UNKNOWN;
		picked[recipe->n_nodes++] = (uint32_t)i;
	}
	for (uint32_t rank = 0; rank < recipe->n_ranks; rank++) {
		const char *at =
			bsearch(ranks[rank].node, recipe->nodes, recipe->n_nodes, sizeof(*recipe->nodes), by_text);

		if (!at)
			return error_set(e, -ERR_ENODE, "node %s of rank %u is not a member of the cluster",
					 ranks[rank].node, rank);
		recipe->rank_node[rank] = (uint32_t)((at - recipe->nodes[0]) / (ptrdiff_t)sizeof(*recipe->nodes));
	}
	return number_domains(recipe, infos, picked);
}

/* Equal numbers: equal lists on equal nodes, so the plan serves again. */
uint64_t recipe_structure(const struct recipe *recipe)
{
	uint64_t h = hash64(recipe->structures, recipe->n_ranks * sizeof(*recipe->structures), recipe->copies);

	h = hash64(&recipe->block_bytes, sizeof(recipe->block_bytes), h);
	h = hash64(recipe->rank_node, recipe->n_ranks * sizeof(*recipe->rank_node), h);
	h = hash64(recipe->nodes, recipe->n_nodes * sizeof(*recipe->nodes), h);
	return hash64(recipe->plan_nodes, recipe->n_nodes * sizeof(*recipe->plan_nodes), h);
}

static int plan_error(const struct recipe *recipe, int outcome, struct error *e)
{
	if (outcome == SAVE_NO_DOMAINS)
		return error_set(e, -ERR_ENODE,
				 "%u copies need %u failure domains; the %zu nodes that are up have fewer",
				 recipe->copies, recipe->copies, recipe->n_nodes);
	if (outcome == -E2BIG)
		return error_set(e, -E2BIG, "%" PRIu64 " bytes in blocks of %u: a save has at most %u blocks",
				 recipe->catalog.unique_bytes, recipe->block_bytes, PLAN_BLOCKS_MAX);
	if (outcome == SAVE_NO_RATE)
		return error_set(e, -ERR_ENODE, "no node that could hold the bytes has a way to the store");
	return outcome;
}

static int run_plan(struct recipe *recipe, struct error *e)
{
	const struct catalog *catalog = &recipe->catalog;
	_cleanup_(cleanup_mem) struct save_unique *uniques = calloc(catalog->n_uniques + 1, sizeof(*uniques));
	_cleanup_(cleanup_mem) uint32_t *offers = calloc(catalog->n_offers + 1, sizeof(*offers));

	if (!uniques || !offers)
		return -ENOMEM;
	for (size_t i = 0; i < catalog->n_uniques; i++)
		uniques[i] = (struct save_unique){ .bytes = catalog->uniques[i].bytes,
						   .first_rank = catalog->uniques[i].first_offer,
						   .n_ranks = catalog->uniques[i].n_offers };
	for (size_t i = 0; i < catalog->n_offers; i++)
		offers[i] = catalog->offers[i].rank;
	struct save_facts facts = {
		.nodes = recipe->plan_nodes,
		.n_nodes = recipe->n_nodes,
		.rank_node = recipe->rank_node,
		.n_ranks = recipe->n_ranks,
		.uniques = uniques,
		.n_uniques = catalog->n_uniques,
		.offers = offers,
		.n_offers = catalog->n_offers,
		.copies = recipe->copies,
		.block_bytes = recipe->block_bytes,
	};
	return plan_error(recipe, plan_save(&facts, &recipe->plan), e);
}

/* One rank twice on the same box: the planner wants each rank once, and the application surely did not mean it. */
static int check_twice(const struct catalog *catalog, struct error *e)
{
	for (size_t u = 0; u < catalog->n_uniques; u++) {
		const struct catalog_unique *unique = &catalog->uniques[u];
		const struct catalog_offer *offer = &catalog->offers[unique->first_offer];

		for (uint32_t i = 1; i < unique->n_offers; i++)
			if (offer[i].rank == offer[i - 1].rank)
				return error_set(e, -EEXIST, "item \"%.*s\": rank %u offers the same box twice",
						 (int)catalog->items[unique->item].name.len,
						 catalog->items[unique->item].name.ptr, offer[i].rank);
	}
	return 0;
}

/* What is a little too large its node refuses by name (admit.c). */
static int check_room(const struct recipe *recipe, struct error *e)
{
	uint64_t bytes = recipe->catalog.unique_bytes;

	if (!recipe->room_bytes || bytes / OFFERED_ROOM_TIMES <= recipe->room_bytes)
		return 0;
	return error_set(e, -ERR_EPOOL,
			 "%" PRIu64 " bytes to capture; the pools of its ranks' nodes have %" PRIu64
			 " together for that",
			 bytes, recipe->room_bytes);
}

struct planning {
	struct recipe *recipe;
	struct error *e;
};

static int plan_on_worker(void *arg)
{
	struct planning *planning = arg;
	struct recipe *recipe = planning->recipe;
	int r = catalog_begin(&recipe->catalog);

	for (uint32_t rank = 0; !r && rank < recipe->n_ranks; rank++) {
		struct view bytes = view_buf(&recipe->lists[rank]);
		struct list_view items;

		r = get_list(&bytes, &items);
		if (!r)
			r = catalog_add(&recipe->catalog, rank, items, planning->e);
	}
	if (!r)
		r = catalog_finish(&recipe->catalog, planning->e);
	if (!r)
		r = check_twice(&recipe->catalog, planning->e);
	if (!r)
		r = check_room(recipe, planning->e);
	return r ? r : run_plan(recipe, planning->e);
}

int recipe_make(struct env *env, struct recipe *recipe, struct error *e)
{
	struct planning planning = { .recipe = recipe, .e = e };

	return env_call(env, plan_on_worker, &planning);
}
