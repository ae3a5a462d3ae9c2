/*
 * group/copies.c: from captured to staged: copies, until each block has R holders in R failure domains.
 *
 * In rounds: what is missing is ordered from the nodes that shall hold it, which fetch it from one that does. A node that is lost takes
 * its copies along, so the next round has them made anew elsewhere. A round that neither made a copy nor lost a node is the
 * last: what cannot be had does not hold the save up, it goes to the store all the sooner.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "group/inside.h"
#include "group/sources.h"

static bool holds(const struct block_report *report, size_t node)
{
	for (uint32_t i = 0; i < report->n_holders; i++)
		if (report->holders[i] == node)
			return true;
	return false;
}

void save_add_holder(const struct csave *save, struct block_report *report, size_t node)
{
	if (report->n_holders < PLAN_COPIES_MAX && !save->nodes[node].lost && !holds(report, node))
		report->holders[report->n_holders++] = (uint32_t)node;
}

/* Whoever captured it has it. Where replicas turned out to differ, only the node whose bytes count. */
void save_begin_holders(struct csave *save)
{
	const struct recipe *recipe = save->recipe;

	for (size_t b = 0; b < recipe->plan.n_blocks; b++) {
		const struct save_block *block = &recipe->plan.blocks[b];
		struct block_report *report = &save->reports[b];

		report->n_holders = 0;
		if (report->flags & FILLED_ZERO)
			continue;
		save_add_holder(save, report, recipe->rank_node[report->rank]);
		for (uint32_t k = 0; k < recipe->copies && !report->conflict; k++)
			if (!k || block->holder_rank[k] != SAVE_COPIED)
				save_add_holder(save, report, block->holder[k]);
	}
}

void save_forget_lost(struct csave *save)
{
	for (size_t b = 0; b < save->recipe->plan.n_blocks; b++) {
		struct block_report *report = &save->reports[b];
		uint32_t n = 0;

		for (uint32_t i = 0; i < report->n_holders; i++)
			if (!save->nodes[report->holders[i]].lost)
				report->holders[n++] = report->holders[i];
		report->n_holders = n;
	}
}

static int check_holders(struct csave *save, struct error *e)
{
	save_forget_lost(save);
	for (size_t b = 0; b < save->recipe->plan.n_blocks; b++)
		if (!save->reports[b].n_holders && !(save->reports[b].flags & FILLED_ZERO))
			return save_block_lost(save, b, e);
	return 0;
}

/* ---- a round ---------------------------------------------------------------------------------------------------------- */

struct round {
	struct csave *save;
	struct list_buf *lists; /* per node: elem_g_copy */
	uint64_t *bytes;	/* per node: of these */
	size_t n;		/* copies that are missing and were listed */
	size_t made;
	struct sources sources; /* the nodes that sent them */
};

static bool shares_domain(const struct csave *save, const uint32_t *nodes, uint32_t n, size_t node)
{
	const struct plan_node *plan = save->recipe->plan_nodes;

	for (uint32_t i = 0; i < n; i++)
		if (nodes[i] == node || plan[nodes[i]].domain == plan[node].domain)
			return true;
	return false;
}

/* Who is to hold one more copy beside @taken: a node that the plan named, else the one with the least to receive. SIZE_MAX: nobody. */
static size_t pick_target(const struct round *round, const struct save_block *block, const uint32_t *taken, uint32_t n)
{
	const struct csave *save = round->save;
	size_t best = SIZE_MAX;

	for (uint32_t k = 0; k < save->recipe->copies; k++)
		if (!save->nodes[block->holder[k]].lost && !shares_domain(save, taken, n, block->holder[k]))
			return block->holder[k];
	for (size_t node = 0; node < save->recipe->n_nodes; node++)
		if (!save->nodes[node].lost && !shares_domain(save, taken, n, node) &&
		    (best == SIZE_MAX || round->bytes[node] < round->bytes[best]))
			best = node;
	return best;
}

static bool sends_slowly(const struct csave *save, uint32_t node)
{
	return save->nodes[node].slow & SLOW_SENDS;
}

/* A holder beside @but to ask for it: one that is not known to send slowly, if there is one. UINT32_MAX: none. */
static uint32_t pick_source(const struct csave *save, const struct block_report *report, uint32_t but)
{
	uint32_t found = UINT32_MAX;

	for (uint32_t i = 0; i < report->n_holders; i++) {
		uint32_t node = report->holders[i];

		if (node != but && (found == UINT32_MAX || (sends_slowly(save, found) && !sends_slowly(save, node))))
			found = node;
	}
	return found;
}

static int list_block(struct round *round, size_t b)
{
	struct csave *save = round->save;
	const struct save_block *block = &save->recipe->plan.blocks[b];
	const struct block_report *report = &save->reports[b];
	uint32_t taken[PLAN_COPIES_MAX], n = report->n_holders;
	int r = 0;

	memcpy(taken, report->holders, sizeof(taken));
	while (!r && n && n < save->recipe->copies) {
		uint32_t from = pick_source(save, report, UINT32_MAX);
		struct elem_g_copy copy = { .block = (uint32_t)b,
					    .digest = report->digest,
					    .bytes = block->bytes,
					    .crc = report->crc,
					    .from = from,
					    .other = pick_source(save, report, from) + 1 }; /* none: 0 */
		size_t node = pick_target(round, block, taken, n);

		if (node == SIZE_MAX)
			break;
		r = elem_g_copy_append(&round->lists[node], &copy);
		round->bytes[node] += block->bytes;
		round->n++;
		taken[n++] = (uint32_t)node;
	}
	return r;
}

static int encode_order(const struct csave *save, const struct list_buf *names, const struct list_buf *list,
			struct buf *out)
{
	struct msg_g_copy copy = { .save_id = save->save_id,
				   .nodes = list_buf_view(names),
				   .blocks = list_buf_view(list),
				   .epoch = save->group->epoch,
				   .tenant = view_str(save->group->tenant),
				   .group = view_str(save->group->name),
				   .incarnation = save->incarnation,
				   .bundle = view_str(save->bundle),
				   .step = save->step };

	return msg_g_copy_encode(&copy, out);
}

/* What @by says of those that sent it copies. */
static int take_sources(const struct csave *save, size_t by, struct list_view list, struct sources *sources,
			struct error *e)
{
	const struct recipe *recipe = save->recipe;
	struct elem_g_source elem;
	int r;

	while ((r = elem_g_source_next(&list, &elem)) == 0) {
		const struct sighting seen = { (uint32_t)by, elem.node, elem.bytes, elem.busy_ns };

		if (elem.node >= recipe->n_nodes)
			return error_set(e, -EPROTO, "node %s had copies from node number %u of %zu", recipe->nodes[by],
					 elem.node, recipe->n_nodes);
		sources_saw(sources, &seen);
	}
	return r;
}

static int take_made(struct csave *save, size_t node, struct list_view made, size_t *n_made, struct error *e)
{
	const struct recipe *recipe = save->recipe;
	struct elem_u32 number;
	int r;

	while ((r = elem_u32_next(&made, &number)) == 0) {
		if (number.v >= recipe->plan.n_blocks)
			return error_set(e, -EPROTO, "node %s copied block %u of %zu", recipe->nodes[node], number.v,
					 recipe->plan.n_blocks);
		struct block_report *report = &save->reports[number.v];

		if (holds(report, node))
			continue;
		++*n_made;
		save->sent_bytes += recipe->plan.blocks[number.v].bytes;
		save_add_holder(save, report, node);
	}
	return r;
}

int copies_take(struct csave *save, size_t node, struct view answer, struct sources *sources, size_t *n_made,
		struct error *e)
{
	struct msg_g_copy_reply reply;
	struct error why = { 0 };
	int r = msg_g_copy_reply_decode(answer, &reply);

	if (!r)
		r = take_sources(save, node, reply.sources, sources, &why);
	if (r == 1)
		r = take_made(save, node, reply.made, n_made, &why);
	if (r == 1)
		return 0;
	return why.code ? error_set(e, r, "%s", why.text) :
			  error_set(e, r, "node %s: malformed answer to G_COPY", save->recipe->nodes[node]);
}

static void name_slow_sources(struct round *round)
{
	struct csave *save = round->save;
	size_t n = save->recipe->n_nodes;
	_cleanup_(cleanup_mem) bool *slow = calloc(n + 1, sizeof(*slow));

	if (slow)
		sources_judge(&round->sources, n, slow);
	for (size_t node = 0; slow && node < n; node++)
		if (slow[node])
			save_name_slow(save, node, SLOW_SENDS, "it sends copies far more slowly than others");
}

static int order(struct round *round, struct error *e)
{
	struct csave *save = round->save;
	const struct recipe *recipe = save->recipe;
	struct groups *groups = save->group->groups;
	struct fan_call *calls = fan_new(recipe->n_nodes);
	struct list_buf names = { 0 };
	size_t n = 0;
	int r = calls ? save_list_nodes(save, &names) : -ENOMEM;

	for (size_t node = 0; !r && node < recipe->n_nodes; node++) {
		if (!round->lists[node].count)
			continue;
		save->nodes[node].joined |= !save_takes_part(save, node);
		calls[n].node = recipe->nodes[node];
		calls[n].index = node;
		calls[n].bytes = round->bytes[node];
		r = encode_order(save, &names, &round->lists[node], &calls[n++].body);
	}
	if (!r)
		r = fan_survive(groups, MSG_G_COPY, calls, n, env_in_ms(groups->env, DRAIN_TIMEOUT_MS), e);
	trace_calls(save, STATION_COPY, calls, n);
	save_lose_called(save, calls, n);
	for (size_t i = 0; !r && i < n; i++)
		if (!calls[i].result)
			r = copies_take(save, calls[i].index, view_buf(&calls[i].answer), &round->sources, &round->made,
					e);
	if (!r)
		name_slow_sources(round);
	list_buf_fini(&names);
	fan_free(calls, n);
	return r;
}

static int run_round(struct round *round, struct error *e)
{
	struct csave *save = round->save;
	size_t n_nodes = save->recipe->n_nodes;
	int r;

	round->n = round->made = 0;
	round->lists = calloc(n_nodes + 1, sizeof(*round->lists));
	round->bytes = calloc(n_nodes + 1, sizeof(*round->bytes));
	r = round->lists && round->bytes ? check_holders(save, e) : -ENOMEM;
	for (size_t b = 0; !r && b < save->recipe->plan.n_blocks; b++)
		r = list_block(round, b);
	if (!r && round->n)
		r = order(round, e);
	for (size_t node = 0; round->lists && node < n_nodes; node++)
		list_buf_fini(&round->lists[node]);
	free(round->lists);
	free(round->bytes);
	sources_fini(&round->sources);
	return r;
}

static bool is_short(const struct csave *save)
{
	for (size_t b = 0; b < save->recipe->plan.n_blocks; b++)
		if (save->reports[b].n_holders < save->recipe->copies && !(save->reports[b].flags & FILLED_ZERO))
			return true;
	return false;
}

int save_copy(struct csave *save, struct error *e)
{
	struct round round = { .save = save };
	unsigned lost;
	int r;

	do {
		lost = save->n_lost;
		r = run_round(&round, e);
	} while (!r && round.n && (round.made || save->n_lost != lost));
	if (r)
		return r;
	save->short_of_copies = is_short(save);
	if (save->short_of_copies)
		logm(LOG_WARN, "save.short-of-copies",
		     "save=%016" PRIx64 " group=%s bundle=%s step=%" PRIu64 " copies=%u", save->save_id,
		     save->group->name, save->bundle, save->step, save->copies);
	return 0;
}
