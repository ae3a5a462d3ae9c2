/*
 * door/seen.c: what those who watch ask for: STATUS and TRACE, of all nodes together.
 *
 * Both are asked when something is wrong. So no node that is down, stopped or slow keeps the answer back for long: the index is asked for
 * the nodes for INDEX_MS, then this node names those that it knows from before; the nodes are asked side by side, each for a second.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/counter.h"
#include "door/inside.h"

#define INDEX_MS   1000	 /* for the index to say who is there */
#define ASK_MS	   1000	 /* for what one node has to say */
#define ASK_ALL_MS 10000 /* for all nodes; those that are left then count as silent */
#define ASK_FIBERS 64	 /* nodes asked at a time */

static struct view tenant_of(const struct session *session)
{
	return view_str(session->door->tenant);
}

/* ---- asking nodes ------------------------------------------------------------------------------------------------------------- */

struct told { /* by a node */
	bool wanted;
	int result;
	struct buf answer;
};

struct asking {
	struct door_native *door;
	const struct node_info *nodes;
	size_t n, next;
	enum msg_type type;
	struct view body;
	uint64_t deadline_ns;
	struct told *told; /* beside nodes */
};

static int ask_some(void *arg)
{
	struct asking *asking = arg;

	while (asking->next < asking->n) {
		size_t i = asking->next++;
		struct told *told = &asking->told[i];
		uint64_t until_ns = env_in_ms(asking->door->env, ASK_MS);

		if (!told->wanted)
			continue;
		told->result = cluster_call(
			asking->door->options.cluster, asking->nodes[i].name, asking->type, asking->body,
			until_ns < asking->deadline_ns ? until_ns : asking->deadline_ns, &told->answer, NULL);
		if (told->result == -ECANCELED)
			return told->result;
	}
	return 0;
}

/* All that are wanted, side by side. Whether one answered stands in its result; the rest is this node's own trouble. */
static int ask_each(struct asking *asking)
{
	uint64_t until_ns = env_in_ms(asking->door->env, ASK_ALL_MS);
	struct nursery nursery;
	int r = 0;

	asking->deadline_ns = until_ns < asking->deadline_ns ? until_ns : asking->deadline_ns;
	nursery_init(&nursery, asking->door->env->loop);
	for (size_t i = 0; !r && i < asking->n && i < ASK_FIBERS; i++) {
		r = fiber_start(&nursery, "ask", ask_some, asking);
		if (r && i)
			break; /* those that run do it all */
	}
	r = nursery_is_empty(&nursery) ? r : nursery_wait(&nursery, asking->deadline_ns);
	nursery_fini(&nursery);
	return r == -ETIMEDOUT ? 0 : r;
}

static struct told *told_new(size_t n)
{
	struct told *told = calloc(n + 1, sizeof(*told));

	for (size_t i = 0; told && i < n; i++)
		told[i].result = -ETIMEDOUT; /* whoever is not asked in time */
	return told;
}

static void told_free(struct told *told, size_t n)
{
	for (size_t i = 0; told && i < n; i++)
		buf_fini(&told[i].answer);
	free(told);
}

/* Who is there, by the index; where that cannot be reached, by what this node knows, and @why says so. */
static int list_nodes(const struct door_native *door, uint64_t deadline_ns, struct node_info **ret, size_t *ret_n,
		      struct error *why)
{
	uint64_t until_ns = env_in_ms(door->env, INDEX_MS);
	int r = cluster_nodes(door->options.cluster, until_ns < deadline_ns ? until_ns : deadline_ns, ret, ret_n, why);

	if (!r || r == -ECANCELED || r == -ENOMEM)
		return r;
	if (!why->code)
		(void)error_set(why, r, "%s", error_meaning(r));
	return cluster_known_nodes(door->options.cluster, ret, ret_n, NULL);
}

/* ---- STATUS --------------------------------------------------------------------------------------------------------------------- */

/* @whole: also what concerns all tenants together. */
static void describe_self(const struct door_native *door, bool whole, struct elem_node *node)
{
	struct pool_stats stats;

	pool_stats(store_pool(door->options.store), &stats);
	node->pool_bytes = stats.bytes[POOL_CAPTURE] + stats.bytes[POOL_READ];
	node->pool_used_bytes = stats.used_bytes[POOL_CAPTURE] + stats.used_bytes[POOL_READ];
	node->http = view_str(door->http);
	node->clients = door->n_sessions;
	node->clients_stopped = door_native_stopped(door);
	if (!whole)
		return;
	node->captured_bytes = count_value(COUNT_CAPTURED_BYTES);
	node->copied_bytes = count_value(COUNT_COPIED_BYTES);
	node->uploaded_bytes = count_value(COUNT_UPLOADED_BYTES);
	node->read_bytes = count_value(COUNT_READ_STORE_BYTES) + count_value(COUNT_READ_PEER_BYTES);
}

/* A peer's own word for itself, whose bytes lie in its answer; what cannot be learned stays 0. */
static void take_word(struct told *told, struct elem_node *node)
{
	struct msg_status_reply reply;
	struct elem_node word;

	if (told->result == -EHOSTDOWN || told->result == -ECONNREFUSED)
		node->up = 0;
	if (told->result || msg_status_reply_decode(view_buf(&told->answer), &reply) ||
	    elem_node_next(&reply.nodes, &word)) {
		node->silent = node->up; /* in whatever way: cut off at ASK_ALL_MS, too */
		return;
	}
	const struct elem_node known = *node;
	*node = word;
	node->name = known.name;
	node->address = known.address;
	node->domain = known.domain;
	node->incarnation = known.incarnation;
	node->up = known.up;
	node->unheard_ms = known.unheard_ms;
}

/* A peer asks what this node has to say of itself to a tenant; there need not be such a one here. */
static int serve_peer_status(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
			     struct error *e)
{
	_cleanup_(list_buf_fini) struct list_buf nodes = { 0 };
	const struct door_native *first = arg;
	struct msg_status_reply reply = { .node = view_str(cluster_node(first->options.cluster)) };
	struct elem_node node = { .name = reply.node };
	struct msg_peer_status ask;

	if (msg_peer_status_decode(body, &ask))
		return error_set(e, -EPROTO, "STATUS cannot be read");
	list_each(sibling, (struct list *)&first->siblings) {
		const struct door_native *door = list_entry(sibling, struct door_native, sibling);

		if (view_equal(view_str(door->tenant), ask.tenant))
			describe_self(door, ask.whole, &node);
	}
	int r = elem_node_append(&nodes, &node);
	reply.nodes = list_buf_view(&nodes);
	return r ? r : msg_status_reply_encode(&reply, answer);
}

void seen_serve_peers(struct door_native *first)
{
	cluster_serve(first->options.cluster, MSG_STATUS, serve_peer_status, first);
}

static bool is_self(const struct door_native *door, const struct node_info *node)
{
	return view_equal(view_str(node->name), view_str(cluster_node(door->options.cluster)));
}

/* Asks those that are up for a word of their own, and appends all. */
static int append_asked(struct session *session, const struct node_info *nodes, size_t n, struct told *told,
			uint64_t deadline_ns, struct list_buf *list)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	const struct msg_peer_status ask = { .tenant = tenant_of(session), .whole = session_is_admin(session) };
	struct door_native *door = session->door;
	int r = msg_peer_status_encode(&ask, &body);

	for (size_t i = 0; i < n; i++)
		told[i].wanted = nodes[i].up && !is_self(door, &nodes[i]);
	if (!r)
		r = ask_each(&(struct asking){ .door = door,
					       .nodes = nodes,
					       .n = n,
					       .type = MSG_STATUS,
					       .body = view_buf(&body),
					       .deadline_ns = deadline_ns,
					       .told = told });
	for (size_t i = 0; !r && i < n; i++) {
		struct elem_node elem = {
			.name = view_str(nodes[i].name),
			.address = view_str(nodes[i].address),
			.domain = view_str(nodes[i].domain),
			.incarnation = nodes[i].incarnation,
			.up = nodes[i].up,
			.unheard_ms = nodes[i].unheard_ms,
		};

		if (is_self(door, &nodes[i]))
			describe_self(door, session_is_admin(session), &elem);
		else if (told[i].wanted)
			take_word(&told[i], &elem);
		r = elem_node_append(list, &elem);
	}
	return r;
}

/* @why: set when the index cannot be reached; what this daemon knows is told all the same. */
static int append_nodes(struct session *session, const struct request *request, struct list_buf *list,
			struct error *why)
{
	struct node_info *nodes = NULL;
	size_t n = 0;
	int r = list_nodes(session->door, request->deadline_ns, &nodes, &n, why);
	struct told *told = r ? NULL : told_new(n);

	if (!r)
		r = told ? append_asked(session, nodes, n, told, request->deadline_ns, list) : -ENOMEM;
	told_free(told, n);
	free(nodes);
	return r;
}

/* How many were turned away, by reason; what never happened is not listed. */
static int append_refusals(struct list_buf *list)
{
	int r = 0;

	for (int counter = COUNT_PEER_GARBAGE; !r && counter <= COUNT_CLIENT_STRANGE; counter++) {
		bool peers = counter < COUNT_CLIENT_GARBAGE;
		char name[64];

		snprintf(name, sizeof(name), "%s_refused_%s", peers ? "peers" : "clients",
			 counter_label((enum counter)counter));
		const struct elem_stat elem = { .name = view_str(name), .value = count_value((enum counter)counter) };
		r = elem.value ? elem_stat_append(list, &elem) : 0;
	}
	return r;
}

static int append_counters(const struct session *session, struct list_buf *list)
{
	const struct door_native *door = session->door;
	struct collect_counts collected = { 0 }; /* of all tenants' bundles */
	struct store_stats store;
	struct pool_stats pool;

	if (session_is_admin(session))
		bundles_counts(door->options.bundles, &collected);
	store_stats(door->options.store, &store);
	pool_stats(store_pool(door->options.store), &pool);
	const struct {
		const char *name;
		uint64_t value;
	} counters[] = {
		{ "pool_capture_bytes", pool.bytes[POOL_CAPTURE] },
		{ "pool_capture_used_bytes", pool.used_bytes[POOL_CAPTURE] },
		{ "pool_capture_clean_bytes", pool.clean_bytes[POOL_CAPTURE] },
		{ "pool_read_bytes", pool.bytes[POOL_READ] },
		{ "pool_read_used_bytes", pool.used_bytes[POOL_READ] },
		{ "pool_read_clean_bytes", pool.clean_bytes[POOL_READ] },
		{ "pool_blocks", pool.blocks },
		{ "pool_evictions", pool.evictions },
		{ "store_hits", store.hits },
		{ "store_peer_fetches", store.peer_fetches },
		{ "store_peer_bytes", store.peer_bytes },
		{ "store_backend_reads", store.backend_reads },
		{ "store_backend_bytes", store.backend_bytes },
		{ "store_damaged_blocks", store.damaged },
		{ "sessions", door->n_sessions },
		{ "rule_deleted_versions", collected.rule_versions },
		{ "collect_burned_slots", collected.slots },
		{ "collect_freed_objects", collected.freed },
		{ "collect_freed_bytes", collected.freed_bytes },
		{ "collect_unclear_objects", collected.unclear },
		{ "collect_missing_packs", collected.missing },
		{ "store_reads_stalled", store.stalled },
		{ "store_reads_again", store.asked_again },
		{ "store_reads_again_won", store.second_won },
		{ "peers_prove_key", cluster_has_key(door->options.cluster) },
	};
	int r = 0;

	for (size_t i = 0; !r && i < sizeof(counters) / sizeof(counters[0]); i++) {
		const struct elem_stat elem = { .name = view_str(counters[i].name), .value = counters[i].value };

		r = elem_stat_append(list, &elem);
	}
	return r || !session_is_admin(session) ? r : append_refusals(list);
}

static int on_status(struct session *session, const struct request *request, struct buf *answer, struct error *e)
{
	const struct door_native_options *options = &session->door->options;
	_cleanup_(list_buf_fini) struct list_buf nodes = { 0 };
	_cleanup_(list_buf_fini) struct list_buf saves = { 0 };
	_cleanup_(list_buf_fini) struct list_buf counters = { 0 };
	struct node_info engine;
	struct error why = { 0 }, not_joined = { 0 };
	int r = append_nodes(session, request, &nodes, &why);

	if (!r)
		r = groups_status(options->groups, tenant_of(session), &saves);
	if (!r)
		r = append_counters(session, &counters);
	cluster_engine(options->cluster, &engine);
	if (options->ready)
		(void)options->ready(options->arg, &not_joined);
	const struct msg_status_reply reply = {
		.node = view_str(cluster_node(options->cluster)),
		.cluster = view_str(cluster_id(options->cluster)),
		.generation = cluster_generation(options->cluster),
		.nodes = list_buf_view(&nodes),
		.saves = list_buf_view(&saves),
		.counters = list_buf_view(&counters),
		.index_words = view_str(why.text),
		.index_node = view_str(engine.name),
		.index_address = view_str(engine.address),
		.index_unheard_ms = engine.unheard_ms,
		.not_joined = view_str(not_joined.text),
	};
	return r ? r : msg_status_reply_encode(&reply, answer);
}

/* ---- TRACE ---------------------------------------------------------------------------------------------------------------------- */

/* What the nodes know of them, appended; those that did not answer are named. */
static int append_told(const struct node_info *nodes, size_t n, const struct told *told, struct list_buf *traces,
		       struct list_buf *silent)
{
	int r = 0;

	for (size_t i = 0; !r && i < n; i++) {
		const struct elem_name name = { .name = view_str(nodes[i].name) };
		struct msg_trace_reply reply;

		if (told[i].result || msg_trace_reply_decode(view_buf(&told[i].answer), &reply)) {
			r = elem_name_append(silent, &name);
			continue;
		}
		r = buf_append(&traces->bytes, reply.traces.bytes.ptr, reply.traces.bytes.len);
		if (!r)
			traces->count += reply.traces.count;
	}
	return r;
}

/* Any node may have coordinated the save, or have taken it over: all are asked. */
static int ask_all(struct door_native *door, const struct request *request, struct view body, struct list_buf *traces,
		   struct list_buf *silent)
{
	struct node_info *nodes = NULL;
	struct error why = { 0 };
	size_t n = 0;
	int r = list_nodes(door, request->deadline_ns, &nodes, &n, &why);
	struct told *told = r ? NULL : told_new(n);

	if (!r && !told)
		r = -ENOMEM;
	for (size_t i = 0; !r && i < n; i++)
		told[i].wanted = nodes[i].up;
	if (!r)
		r = ask_each(&(struct asking){ .door = door,
					       .nodes = nodes,
					       .n = n,
					       .type = MSG_G_TRACE,
					       .body = body,
					       .deadline_ns = request->deadline_ns,
					       .told = told });
	if (!r)
		r = append_told(nodes, n, told, traces, silent);
	told_free(told, n);
	free(nodes);
	return r;
}

static int on_trace(struct session *session, const struct request *request, struct buf *answer, struct error *e)
{
	_cleanup_(list_buf_fini) struct list_buf traces = { 0 };
	_cleanup_(list_buf_fini) struct list_buf silent = { 0 };
	_cleanup_(buf_fini) struct buf body = { 0 };
	struct msg_trace m;

	if (msg_trace_decode(view_buf(&request->body), &m))
		return request_malformed(request, e);
	const struct msg_g_trace ask = { .tenant = tenant_of(session),
					 .save_id = m.save_id,
					 .bundle = m.bundle,
					 .version = m.version };
	int r = msg_g_trace_encode(&ask, &body);
	if (!r)
		r = ask_all(session->door, request, view_buf(&body), &traces, &silent);
	const struct msg_trace_reply reply = { .traces = list_buf_view(&traces), .silent = list_buf_view(&silent) };
	return r ? r : msg_trace_reply_encode(&reply, answer);
}

handler_fn seen_handler(enum msg_type type)
{
	return type == MSG_STATUS ? on_status : type == MSG_TRACE ? on_trace : NULL;
}
