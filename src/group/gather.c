/*
 * group/gather.c: how the ranks of a group come to one plan for a load. Each node merges what its ranks need and asks the
 * coordinator; that one answers all nodes once all ranks have asked: each block leaves the store once.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "group/load.h"
#include "plan/load.h"

CLEANUP_OF(struct mload *, mload_put);
CLEANUP_OF(struct version *, version_put);

/* ---- the node's side -------------------------------------------------------------------------------------------------- */

void mload_put(struct mload *load)
{
	if (!load || --load->refs)
		return;
	list_remove(&load->link);
	store_expect_end(load->group->share->store);
	mgroup_put(load->group);
	version_put(load->version);
	free(load->needed);
	free(load->source);
	free(load->nodes);
	free(load);
}

static struct mload *mload_new(struct mgroup *group, struct version *version, const struct nth *nth)
{
	struct mload *load = calloc(1, sizeof(*load));

	if (!load)
		return NULL;
	load->refs = 1;
	list_init(&load->link);
	waitplace_init(&load->changed);
	load->nth = *nth;
	group->refs++;
	load->group = group;
	load->version = version_get(version);
	store_expect_begin(group->share->store); /* as long as it lives: peers are told to get blocks from here */
	load->needed = calloc(version->n_blocks + 1, sizeof(*load->needed));
	load->source = calloc(version->n_blocks + 1, sizeof(*load->source));
	if (!load->needed || !load->source) {
		mload_put(load);
		return NULL;
	}
	list_append(&group->loads, &load->link);
	return load;
}

/* All who wait for the plan are told; the last of them lets go of it. */
static void mload_fail(struct mload *load, int code, const char *words)
{
	(void)error_set(&load->error, code, "%s", words);
	load->answered = true;
	wake_all(&load->changed);
}

/* To the coordinator, and through it to the nodes that wait. 0, -ENOMEM. */
static int tell_forgone(const struct mgroup *group, const struct nth *nth, const char *words)
{
	struct buf body = { 0 };
	const struct msg_g_forgo m = { .tenant = view_str(group->tenant),
				       .group = view_str(group->name),
				       .incarnation = group->incarnation,
				       .save_id = nth->save_id,
				       .nth = nth->count,
				       .words = view_str(words),
				       .turn = nth->turn };
	int r = msg_g_forgo_encode(&m, &body);

	if (!r)
		return tell_coordinator(group->groups, group->coordinator, MSG_G_FORGO, &body);
	buf_fini(&body);
	return r;
}

/* This node could not ask: no other's plan will be complete. */
static void give_up(struct mload *load, int code, const char *words)
{
	char text[FORGONE_WORDS_MAX];

	snprintf(text, sizeof(text), "node %s: %s", cluster_node(load->group->groups->cluster), words);
	(void)tell_forgone(load->group, &load->nth, text);
	mload_fail(load, code, words);
}

static int encode_want(const struct mload *load, struct buf *out)
{
	const struct mgroup *group = load->group;
	struct pool *pool = store_pool(group->share->store);
	_cleanup_(list_buf_fini) struct list_buf blocks = { 0 };
	_cleanup_(list_buf_fini) struct list_buf held = { 0 };
	struct msg_g_want want = { .tenant = view_str(group->tenant),
				   .group = view_str(group->name),
				   .incarnation = group->incarnation,
				   .bundle = view_str(load->version->bundle),
				   .version = load->version->number,
				   .nth = load->nth.count,
				   .n_ranks = load->n_ranks,
				   .save_id = load->version->save_id,
				   .turn = load->nth.turn };
	int r = 0;

	for (uint32_t b = 0; !r && b < load->version->n_blocks; b++) {
		const struct version_block *entry = &load->version->blocks[b];
		struct elem_u32 elem = { .v = b };

		if (!load->needed[b] || (entry->flags & BLOCK_HOLE))
			continue;
		r = elem_u32_append(&blocks, &elem);
		struct block *known = r ? NULL : pool_find(pool, &entry->digest);
		if (known)
			r = elem_u32_append(&held, &elem);
		block_unpin(known);
	}
	want.blocks = list_buf_view(&blocks);
	want.held = list_buf_view(&held);
	return r ? r : msg_g_want_encode(&want, out);
}

static int take_answer(struct mload *load, struct view answer)
{
	struct msg_g_want_reply reply;
	struct elem_name name;
	struct elem_step step;
	int r = msg_g_want_reply_decode(answer, &reply);

	if (r)
		return r;
	load->nodes = calloc(reply.nodes.count + 1, sizeof(*load->nodes));
	if (!load->nodes)
		return -ENOMEM;
	while ((r = elem_name_next(&reply.nodes, &name)) == 0) {
		if (name.name.len > NODE_NAME_MAX)
			return -EPROTO;
		memcpy(load->nodes[load->n_nodes++], name.name.ptr, name.name.len);
	}
	r = r == 1 ? 0 : r;
	while (!r && (r = elem_step_next(&reply.steps, &step)) == 0) {
		if (step.block >= load->version->n_blocks ||
		    (step.source != LOAD_STORE && step.source >= load->n_nodes))
			return -EPROTO;
		load->source[step.block] = step.source;
	}
	return r == 1 ? 0 : r;
}

static int ask(void *arg)
{
	_cleanup_(cleanup_mload_put) struct mload *load = arg;
	struct groups *groups = load->group->groups;
	_cleanup_(buf_fini) struct buf body = { 0 }, answer = { 0 };
	int r = encode_want(load, &body);

	for (size_t b = 0; b < load->version->n_blocks; b++)
		load->source[b] = LOAD_STORE; /* what the plan does not name is held here, or read alone */
	if (!r)
		r = cluster_call(groups->cluster, load->group->coordinator, MSG_G_WANT, view_buf(&body),
				 env_in_ms(groups->env, GATHER_TIMEOUT_MS), &answer, &load->error);
	if (!r)
		r = take_answer(load, view_buf(&answer));
	if (r && !load->error.code)
		(void)error_set(&load->error, r, "asking node %s for the plan of a load: %s", load->group->coordinator,
				error_meaning(r));
	if (r && r != -ERR_ERANK && r != -ECANCELED) /* the coordinator may not know, and others wait */
		(void)tell_forgone(load->group, &load->nth, load->error.text);
	load->answered = true;
	wake_all(&load->changed);
	return 0;
}

int group_forgo_load(struct rank *rank, const struct version *version, struct view why)
{
	struct mgroup *group = rank->group;
	struct nth *nth = nths_of(&rank->loads, version->save_id);
	char words[FORGONE_WORDS_MAX];

	if (!nth)
		return -ENOMEM;
	snprintf(words, sizeof(words), "rank %u on node %s cannot take part: %.*s", rank->number,
		 cluster_node(group->groups->cluster), (int)(why.len < 128 ? why.len : 128),
		 why.len ? (const char *)why.ptr : "");
	nth->count++;
	forgone_put(&group->forgone, nth, view_str(words));
	list_each(node, &group->loads) {
		struct mload *load = list_entry(node, struct mload, link);

		if (nth_equal(&load->nth, nth) && !load->asked && !load->answered)
			mload_fail(load, -ERR_ERANK, words);
	}
	return tell_forgone(group, nth, words);
}

int mload_join(struct rank *rank, struct version *version, const uint32_t *blocks, size_t n, struct mload **ret,
	       struct error *e)
{
	struct mgroup *group = rank->group;
	struct mload *load = NULL;
	struct nth *counted = nths_of(&rank->loads, version->save_id);

	if (!counted)
		return -ENOMEM;
	const struct nth nth = { counted->save_id, counted->count + 1, counted->turn };
	if (group->n_gone)
		return error_set(e, -ERR_ERANK, "a rank of this node has left group %s: a new run must join",
				 group->name);
	list_each(node, &group->loads) {
		struct mload *other = list_entry(node, struct mload, link);

		if (nth_equal(&other->nth, &nth) && !other->asked && !other->answered)
			load = other;
	}
	if (load)
		load->refs++;
	else
		load = mload_new(group, version, &nth);
	if (!load)
		return -ENOMEM;
	/* from here on it counts, however it ends; a refusal before that is made good by group_forgo_load() */
	*counted = nth;
	*ret = load;
	const char *forgone = forgone_find(&group->forgone, &nth);
	if (forgone) {
		mload_fail(load, -ERR_ERANK, forgone);
		return 0;
	}
	for (size_t i = 0; i < n; i++)
		load->needed[blocks[i]] = true;
	load->n_ranks++;
	if (load->n_ranks < mgroup_ranks_due(group))
		return 0;
	load->asked = true;
	load->refs++;
	int r = fiber_start(&group->groups->flows, "want", ask, load);
	if (r) {
		give_up(load, r, "no fiber to ask for the plan of a load");
		mload_put(load);
	}
	return 0;
}

int mload_wait(struct mload *load, uint64_t deadline_ns, struct error *e)
{
	int r = 0;

	while (!r && !load->answered)
		r = wait_at(&load->changed, deadline_ns);
	if (r == -ETIMEDOUT)
		return error_set(e, -ERR_ERANK,
				 "not every rank of group %s asked for its part of version %" PRIu64 " of %s in time",
				 load->group->name, load->version->number, load->version->bundle);
	if (!r && load->error.code)
		return error_set(e, load->error.code, "%s", load->error.text);
	return r;
}

const char *mload_source(const struct mload *load, uint32_t block)
{
	return load->source[block] == LOAD_STORE ? NULL : load->nodes[load->source[block]];
}

void mload_rank_left(const struct rank *rank, const char *words)
{
	char text[ERROR_TEXT_MAX];

	list_each(node, &rank->group->loads) {
		struct mload *load = list_entry(node, struct mload, link);

		snprintf(text, sizeof(text),
			 "rank %u: %.300s; not every rank of its node had asked for its part of version %" PRIu64,
			 rank->number, words, load->version->number);
		if (!load->asked && !load->answered)
			mload_fail(load, -ERR_ERANK, text);
	}
}

/* ---- the coordinator's side ------------------------------------------------------------------------------------------- */

struct cneed { /* what one node needs */
	struct list link;
	char node[NODE_NAME_MAX + 1];
	uint32_t *blocks, *held; /* rising */
	size_t n_blocks, n_held;
};

struct cload {
	uint32_t refs; /* each call that waits for the plan */
	struct list link;
	char *bundle;
	uint64_t version, save_id, nth, incarnation; /* version 0: it was staged when it was opened */
	uint32_t n_ranks;
	struct list needs; /* struct cneed, by node */
	size_t n_nodes;
	bool planned;
	struct load_plan plan;
	struct error error;
	struct waitplace changed;
};

static void cload_put(struct cload *load)
{
	if (!load || --load->refs)
		return;
	list_remove(&load->link);
	list_each(node, &load->needs) {
		struct cneed *need = list_entry(node, struct cneed, link);

		free(need->blocks);
		free(need->held);
		free(need);
	}
	load_plan_fini(&load->plan);
	free(load->bundle);
	free(load);
}

CLEANUP_OF(struct cload *, cload_put);
CLEANUP_OF(struct cgroup *, cgroup_put);

static struct cload *cload_obtain(struct cgroup *group, const struct msg_g_want *want)
{
	list_each(node, &group->loads) {
		struct cload *load = list_entry(node, struct cload, link);

		if (load->save_id == want->save_id && load->nth == want->nth &&
		    load->incarnation == want->incarnation && !load->planned && !load->error.code &&
		    view_equal(view_str(load->bundle), want->bundle)) {
			load->refs++;
			return load;
		}
	}
	struct cload *load = calloc(1, sizeof(*load));
	if (!load)
		return NULL;
	load->refs = 1;
	list_init(&load->needs);
	waitplace_init(&load->changed);
	load->version = want->version;
	load->save_id = want->save_id;
	load->nth = want->nth;
	load->incarnation = want->incarnation;
	load->bundle = view_dup(want->bundle);
	list_init(&load->link);
	if (!load->bundle) {
		cload_put(load);
		return NULL;
	}
	list_append(&group->loads, &load->link);
	return load;
}

static int parse_numbers(struct list_view list, uint32_t **ret, size_t *ret_n)
{
	struct elem_u32 elem;
	int r;

	*ret = calloc(list.count + 1, sizeof(**ret));
	if (!*ret)
		return -ENOMEM;
	while ((r = elem_u32_next(&list, &elem)) == 0) {
		if (*ret_n && elem.v <= (*ret)[*ret_n - 1])
			return -EPROTO;
		(*ret)[(*ret_n)++] = elem.v;
	}
	return r == 1 ? 0 : r;
}

static int add_node(struct cload *load, const char *node, const struct msg_g_want *want)
{
	struct cneed *need = calloc(1, sizeof(*need));
	struct list *at = &load->needs;

	if (!need)
		return -ENOMEM;
	memcpy(need->node, node, strnlen(node, NODE_NAME_MAX));
	list_each(link, &load->needs) {
		if (strcmp(list_entry(link, struct cneed, link)->node, node) > 0) {
			at = link;
			break;
		}
	}
	list_insert(at, &need->link);
	load->n_nodes++;
	load->n_ranks += want->n_ranks;
	int r = parse_numbers(want->blocks, &need->blocks, &need->n_blocks);
	return r ? r : parse_numbers(want->held, &need->held, &need->n_held);
}

/* The facts, block by block of the version: walks all nodes' rising lists in step. */
struct fact_lists {
	struct load_block *blocks;
	uint32_t *number; /* which block of the version each is */
	uint32_t *nodes_of;
	size_t n_blocks, n_nodes_of;
};

static uint32_t count_run(struct fact_lists *facts, const struct cload *load, uint32_t block, size_t *at, bool held)
{
	uint32_t node = 0, n = 0;

	list_each(link, &load->needs) {
		const struct cneed *need = list_entry(link, struct cneed, link);
		const uint32_t *list = held ? need->held : need->blocks;
		size_t len = held ? need->n_held : need->n_blocks;

		if (at[node] < len && list[at[node]] == block) {
			at[node]++;
			facts->nodes_of[facts->n_nodes_of++] = node;
			n++;
		}
		node++;
	}
	return n;
}

static int list_facts(const struct cload *load, const struct version *version, struct fact_lists *facts)
{
	_cleanup_(cleanup_mem) size_t *at = calloc(2 * load->n_nodes + 1, sizeof(*at));
	size_t total = 0;

	list_each(link, &load->needs)
		total += list_entry(link, struct cneed, link)->n_blocks + list_entry(link, struct cneed, link)->n_held;
	facts->blocks = calloc(version->n_blocks + 1, sizeof(*facts->blocks));
	facts->number = calloc(version->n_blocks + 1, sizeof(*facts->number));
	facts->nodes_of = calloc(total + 1, sizeof(*facts->nodes_of));
	if (!at || !facts->blocks || !facts->number || !facts->nodes_of)
		return -ENOMEM;
	for (uint32_t b = 0; b < version->n_blocks; b++) {
		struct load_block block = { .bytes = version->blocks[b].bytes,
					    .first_needer = (uint32_t)facts->n_nodes_of };

		block.n_needers = count_run(facts, load, b, at, false);
		block.first_holder = (uint32_t)facts->n_nodes_of;
		block.n_holders = count_run(facts, load, b, at + load->n_nodes, true);
		if (!block.n_needers)
			continue;
		facts->number[facts->n_blocks] = b;
		facts->blocks[facts->n_blocks++] = block;
	}
	return 0;
}

static int make_plan(struct cload *load, const struct version *version, struct error *e)
{
	_cleanup_(cleanup_mem) struct plan_node *nodes = calloc(load->n_nodes + 1, sizeof(*nodes));
	struct fact_lists lists = { 0 };
	int r = nodes ? list_facts(load, version, &lists) : -ENOMEM;
	struct load_facts facts = { .nodes = nodes,
				    .n_nodes = load->n_nodes,
				    .blocks = lists.blocks,
				    .n_blocks = lists.n_blocks,
				    .nodes_of = lists.nodes_of,
				    .n_nodes_of = lists.n_nodes_of };

	for (size_t i = 0; nodes && i < load->n_nodes; i++)
		nodes[i].store_rate = NS_PER_S; /* equal for all: reading rates are not leased yet */
	if (!r)
		r = plan_load(&facts, &load->plan);
	if (r == LOAD_NO_RATE)
		r = error_set(e, -ERR_ENODE, "no node can read from the store");
	for (size_t i = 0; !r && i < load->plan.n_steps; i++)
		load->plan.steps[i].block = lists.number[load->plan.steps[i].block];
	free(lists.blocks);
	free(lists.number);
	free(lists.nodes_of);
	return r;
}

static int encode_steps(const struct cload *load, const char *node, struct buf *answer)
{
	_cleanup_(list_buf_fini) struct list_buf nodes = { 0 };
	_cleanup_(list_buf_fini) struct list_buf steps = { 0 };
	struct msg_g_want_reply reply;
	uint32_t number = 0, own = UINT32_MAX;
	int r = 0;

	list_each(link, &load->needs) {
		const struct cneed *need = list_entry(link, struct cneed, link);
		struct elem_name name = { .name = view_str(need->node) };

		if (!strcmp(need->node, node))
			own = number;
		number++;
		if (!r)
			r = elem_name_append(&nodes, &name);
	}
	for (size_t i = 0; !r && i < load->plan.n_steps; i++) {
		struct elem_step step = { .block = load->plan.steps[i].block, .source = load->plan.steps[i].source };

		if (load->plan.steps[i].node == own)
			r = elem_step_append(&steps, &step);
	}
	reply.nodes = list_buf_view(&nodes);
	reply.steps = list_buf_view(&steps);
	return r ? r : msg_g_want_reply_encode(&reply, answer);
}

static int plan_when_complete(struct cgroup *group, struct cload *load, const struct msg_g_want *want,
			      uint64_t deadline_ns)
{
	_cleanup_(cleanup_version_put) struct version *version = NULL;
	char spec[24];
	struct error e = { 0 };
	uint64_t number = load->version;
	int r = number ? 0 : staged_find(group, load->save_id, &version, &number);

	snprintf(spec, sizeof(spec), "%" PRIu64, number);
	if (!r && !version)
		r = bundle_open(group->groups->bundles, want->tenant, want->bundle, view_str(spec), deadline_ns,
				&version, &e);
	if (!r)
		r = make_plan(load, version, &e);
	if (r)
		(void)error_set(&load->error, r, "%s", e.code ? e.text : error_meaning(r));
	load->planned = !r;
	wake_all(&load->changed);
	return 0;
}

static int serve_want(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
		      struct error *e)
{
	struct groups *groups = arg;
	struct msg_g_want want;
	int r = msg_g_want_decode(body, &want);

	if (r)
		return error_set(e, -EPROTO, "malformed G_WANT from %s", from);
	struct cgroup *found = coordinator_find(groups, want.tenant, want.group, want.incarnation);
	if (!found)
		return error_set(e, -ERR_ESTALEEPOCH,
				 "group %.*s: its incarnation %" PRIu64 " is over, or has another coordinator",
				 (int)want.group.len, want.group.ptr, want.incarnation);
	_cleanup_(cleanup_cgroup_put) struct cgroup *group = cgroup_get(found);
	r = coordinator_whole(group, e); /* it would wait for a rank that never asks */
	if (r)
		return r;
	const char *forgone = forgone_find(&group->forgone, &(struct nth){ want.save_id, want.nth, want.turn });
	if (forgone)
		return error_set(e, -ERR_ERANK, "%s", forgone);
	_cleanup_(cleanup_cload_put) struct cload *load = cload_obtain(group, &want);
	r = load ? add_node(load, from, &want) : -ENOMEM;
	if (r)
		return r;
	if (load->n_ranks >= group->size)
		r = plan_when_complete(group, load, &want, deadline_ns);
	while (!r && !load->planned && !load->error.code)
		r = wait_at(&load->changed, deadline_ns);
	if (!r && load->error.code)
		return error_set(e, load->error.code, "%s", load->error.text);
	return r ? r : encode_steps(load, from, answer);
}

static void cload_fail(struct cload *load, int code, const char *words)
{
	if (load->planned || load->error.code)
		return;
	(void)error_set(&load->error, code, "%s", words);
	wake_all(&load->changed);
}

static int serve_forgo(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
		       struct error *e)
{
	struct msg_g_forgo forgo;

	if (msg_g_forgo_decode(body, &forgo))
		return error_set(e, -EPROTO, "malformed G_FORGO from %s", from);
	struct cgroup *group = coordinator_find(arg, forgo.tenant, forgo.group, forgo.incarnation);
	if (!group)
		return 0; /* that run is over */
	const struct nth nth = { forgo.save_id, forgo.nth, forgo.turn };
	forgone_put(&group->forgone, &nth, forgo.words);
	const char *words = forgone_find(&group->forgone, &nth);
	list_each(node, &group->loads) {
		struct cload *load = list_entry(node, struct cload, link);

		if (words && load->save_id == forgo.save_id && load->nth == forgo.nth &&
		    load->incarnation == forgo.incarnation)
			cload_fail(load, -ERR_ERANK, words);
	}
	return 0;
}

void load_rank_lost(struct cgroup *group, uint32_t rank, const char *words)
{
	char text[ERROR_TEXT_MAX];

	list_each(node, &group->loads) {
		struct cload *load = list_entry(node, struct cload, link);

		snprintf(text, sizeof(text), "rank %u: %.300s; it had not asked for its part of version %" PRIu64, rank,
			 words, load->version);
		cload_fail(load, -ERR_ERANK, text);
	}
}

void load_abandon_all(struct cgroup *group, int code, const char *words)
{
	list_each(node, &group->loads)
		cload_fail(list_entry(node, struct cload, link), code, words);
}

void load_serve(struct groups *groups)
{
	cluster_serve(groups->cluster, MSG_G_WANT, serve_want, groups);
	cluster_serve(groups->cluster, MSG_G_FORGO, serve_forgo, groups);
}
