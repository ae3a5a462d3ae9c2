#include "cluster/inside.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/counter.h"
#include "base/log.h"

#define QUIET_MS 1000 /* between two looks whether everything has ended */

/* ---- generations ---- */

void generation_seen(struct cluster *cluster, uint32_t generation)
{
	if (cluster->joined && generation > cluster->generation)
		cluster->generation = generation;
	member_announce(cluster);
}

/*
 * Before it has joined a node knows no generation: it may ask the meta engine, with generation 0, and nothing else. So an engine
 * that lost its memory does not serve the ones that remember more.
 */
int fence_check(struct cluster *cluster, unsigned type, uint32_t generation, struct error *e)
{
	generation_seen(cluster, generation);
	if (type == MSG_META && !generation)
		return 0;
	if (!cluster->joined)
		return error_set(e, -EAGAIN, "node %s has not joined the cluster yet", cluster->node);
	if (generation < cluster->generation)
		return error_set(e, -ERR_ESTALEEPOCH,
				 "the cluster is in generation %" PRIu32 ", the caller in %" PRIu32,
				 cluster->generation, generation);
	return 0;
}

uint32_t cluster_generation(const struct cluster *cluster)
{
	CHECK_MAGIC(cluster, CLUSTER_MAGIC);
	return cluster->generation;
}

uint64_t cluster_counts_above(const struct cluster *cluster)
{
	CHECK_MAGIC(cluster, CLUSTER_MAGIC);
	return cluster->generation ? (uint64_t)(cluster->generation - 1) << 32 : 0;
}

void cluster_set_generation(struct cluster *cluster, uint32_t generation)
{
	CHECK_MAGIC(cluster, CLUSTER_MAGIC);
	if (generation > cluster->generation)
		cluster->generation = generation;
}

/* ---- greeting ---- */

struct greet_self greet_self_of(const struct cluster *cluster)
{
	return (struct greet_self){
		.cluster = cluster->id,
		.node = cluster->node,
		.generation = cluster->generation,
		.incarnation = cluster->incarnation,
		.key = view_buf(&cluster->key),
	};
}

void peer_refuse(struct cluster *cluster, enum counter reason, const char *words)
{
	count(reason, 1);
	logm(LOG_WARN, "peer.refused", "reason=%s words=\"%s\"", counter_label(reason), words);
}

/* ---- watches ---- */

/* A watcher may take itself, or others, off the list; each is told once. */
static void tell_of(struct cluster *cluster, struct peer *peer)
{
	struct list todo, *node;

	if (!peer || !peer->news)
		return;
	peer->news = false;
	list_init(&todo);
	while ((node = list_pop(&cluster->watches)))
		list_append(&todo, node);
	while ((node = list_pop(&todo))) {
		struct peer_watch *watch = list_entry(node, struct peer_watch, link);

		list_append(&cluster->watches, node);
		watch->down(watch, peer->name);
	}
}

static void tell_news(struct task *task)
{
	struct cluster *cluster = container_of(task, struct cluster, news);

	tell_of(cluster, cluster->meta_peer);
	for (struct map_slot *slot = map_first(&cluster->peers); slot; slot = map_next(slot))
		tell_of(cluster, map_value(slot));
}

void cluster_watch(struct cluster *cluster, struct peer_watch *watch)
{
	CHECK_MAGIC(cluster, CLUSTER_MAGIC);
	list_append(&cluster->watches, &watch->link);
}

void cluster_unwatch(struct peer_watch *watch)
{
	list_remove(&watch->link);
}

/* ---- calls ---- */

void cluster_serve(struct cluster *cluster, enum msg_type type, cluster_serve_fn serve, void *arg)
{
	CHECK_MAGIC(cluster, CLUSTER_MAGIC);
	CHECK(type < MSG_TYPES_MAX && !cluster->handlers[type].serve);
	cluster->handlers[type] = (struct handler){ serve, arg };
}

/* @own: the caller's buffer, which holds @body and may be taken; or NULL. */
static int call_self(struct cluster *cluster, enum msg_type type, struct view body, struct buf *own,
		     uint64_t deadline_ns, struct buf *ret_answer, struct error *e)
{
	_cleanup_(buf_fini) struct buf copy = { 0 };

	if (!own && buf_append(&copy, body.ptr, body.len))
		return error_set(e, -ENOMEM, "no memory for a call");
	return serve_self(cluster, type, own ? own : &copy, deadline_ns, ret_answer, e);
}

static int call(struct cluster *cluster, const char *node, enum msg_type type, struct view body, struct buf *own,
		uint64_t deadline_ns, struct buf *ret_answer, struct error *e)
{
	struct peer *peer;

	if (body.len > CALL_BODY_MAX)
		return error_set(e, -E2BIG, "%s of %zu bytes: a call has at most %u", msg_type_name(type), body.len,
				 CALL_BODY_MAX);
	if (cluster->stopping)
		return error_set(e, -ESHUTDOWN, "this node is stopping");
	if (!strcmp(node, cluster->node))
		return call_self(cluster, type, body, own, deadline_ns, ret_answer, e);
	int r = peer_get(cluster, node, deadline_ns, &peer, e);
	return r ? r : peer_call(peer, type, body, deadline_ns, ret_answer, e);
}

static enum counter counter_of_failure(int code)
{
	switch (code) {
	case -ETIMEDOUT:
		return COUNT_CALLS_TIMED_OUT;
	case -EHOSTDOWN:
		return COUNT_CALLS_HOST_DOWN;
	case -ECANCELED:
		return COUNT_CALLS_CANCELLED;
	case -ERR_ESTALEEPOCH:
		return COUNT_CALLS_STALE;
	default:
		return COUNT_CALLS_OTHER;
	}
}

static int call_counted(struct cluster *cluster, const char *node, enum msg_type type, struct view body,
			struct buf *own, uint64_t deadline_ns, struct buf *ret_answer, struct error *e)
{
	CHECK_MAGIC(cluster, CLUSTER_MAGIC);
	int r = call(cluster, node, type, body, own, deadline_ns, ret_answer, e);

	count(COUNT_CALLS, 1);
	if (r < 0)
		count(counter_of_failure(r), 1);
	return r;
}

int cluster_call(struct cluster *cluster, const char *node, enum msg_type type, struct view body, uint64_t deadline_ns,
		 struct buf *ret_answer, struct error *e)
{
	return call_counted(cluster, node, type, body, NULL, deadline_ns, ret_answer, e);
}

int cluster_call_take(struct cluster *cluster, const char *node, enum msg_type type, struct buf *body,
		      uint64_t deadline_ns, struct buf *ret_answer, struct error *e)
{
	int r = call_counted(cluster, node, type, view_buf(body), body, deadline_ns, ret_answer, e);

	buf_fini(body);
	return r;
}

void cluster_peers(const struct cluster *cluster, unsigned *ret_up, unsigned *ret_down)
{
	const struct peer *meta = cluster->meta_peer;
	unsigned up = meta && meta->control.state == LINK_UP, down = meta && meta->down;

	CHECK_MAGIC(cluster, CLUSTER_MAGIC);
	for (struct map_slot *slot = map_first(&cluster->peers); slot; slot = map_next(slot)) {
		const struct peer *peer = map_value(slot);

		up += peer->control.state == LINK_UP;
		down += peer->down;
	}
	*ret_up = up;
	*ret_down = down;
}

/* ---- life ---- */

static int copy_name(char to[NODE_NAME_MAX + 1], const char *name, const char *what, struct error *e)
{
	if (!node_name_is_valid(name))
		return error_set(e, -EINVAL, "\"%.80s\" is no name of a %s: 1 to %d of A-Z a-z 0-9 . _ -", name, what,
				 NODE_NAME_MAX);
	snprintf(to, NODE_NAME_MAX + 1, "%s", name);
	return 0;
}

static int open_engine(struct cluster *cluster, const struct cluster_options *options, struct error *e)
{
	CHECK(!options->meta != !options->meta_address);
	if (options->meta_address)
		return meta_peer_open(cluster, options->meta_address, e);
	cluster->meta = options->meta;
	cluster_serve(cluster, MSG_META, meta_serve, cluster);
	return 0;
}

static int listen_to_peers(struct cluster *cluster, const char *address, struct error *e)
{
	int r = net_listen(cluster->env, address, serve_accepted, cluster, &cluster->listener, e);

	if (r)
		return r;
	const char *real = net_listener_address(cluster->listener);
	if (strlen(real) >= sizeof(cluster->address))
		return error_set(e, -EINVAL, "address of %zu bytes: %.60s...", strlen(real), real);
	memcpy(cluster->address, real, strlen(real) + 1);
	return 0;
}

int cluster_new(struct env *env, const struct cluster_options *options, struct cluster **ret, struct error *e)
{
	struct cluster *cluster = calloc(1, sizeof(*cluster));

	CHECK_MAGIC(env, ENV_MAGIC);
	if (!cluster)
		return error_set(e, -ENOMEM, "no memory for the cluster");
	*cluster = (struct cluster){
		.magic = CLUSTER_MAGIC,
		.env = env,
		.store_rate = options->store_rate,
		.backend = options->backend,
		.news.fn = tell_news,
	};
	map_init(&cluster->peers);
	list_init(&cluster->watches);
	list_init(&cluster->incoming);
	list_init(&cluster->unsent);
	list_init(&cluster->block_sources);
	nursery_init(&cluster->nursery, env->loop);
	waitplace_init(&cluster->quiet);
	waitplace_init(&cluster->meta_opened);
	cluster_serve(cluster, MSG_FETCH, fetch_serve, cluster);

	int r = buf_append(&cluster->key, options->key.ptr, options->key.len);
	if (!r && options->key.len && (options->key.len < PROOF_KEY_MIN || options->key.len > PROOF_KEY_MAX))
		r = error_set(e, -EINVAL, "a cluster's key has %d to %d bytes, not %zu", PROOF_KEY_MIN, PROOF_KEY_MAX,
			      options->key.len);
	if (!r)
		r = copy_name(cluster->node, options->node, "node", e);
	if (!r)
		r = copy_name(cluster->domain, options->domain ? options->domain : options->node, "failure domain", e);
	if (!r)
		r = copy_name(cluster->id, options->cluster_id, "cluster", e);
	if (!r)
		r = open_engine(cluster, options, e);
	if (!r)
		r = listen_to_peers(cluster, options->listen, e);
	if (r) {
		cluster_free(cluster);
		return r;
	}
	*ret = cluster;
	return 0;
}

int cluster_join(struct cluster *cluster, uint64_t deadline_ns, struct error *e)
{
	CHECK_MAGIC(cluster, CLUSTER_MAGIC);
	CHECK(!cluster->joined);
	int r = generation_join(cluster, deadline_ns, e);
	if (!r)
		r = member_join(cluster, deadline_ns, e);
	if (!r && !cluster->meta_is_remote)
		r = fiber_start(&cluster->nursery, "hold", hold_keep, cluster);
	if (r)
		return r;
	cluster->joined = true;
	cluster->announced = cluster->generation;
	if (cluster->meta_peer) /* it greeted as nobody in particular */
		peer_close(cluster->meta_peer, -EHOSTDOWN, "this node has just joined");
	return 0;
}

static bool is_quiet(const struct cluster *cluster)
{
	return list_empty(&cluster->incoming) && !cluster->n_sendings;
}

void cluster_stop(struct cluster *cluster)
{
	CHECK_MAGIC(cluster, CLUSTER_MAGIC);
	cluster->stopping = true;
	net_listener_close(TAKE(cluster->listener));
	task_cancel(&cluster->news);
	if (cluster->meta_peer)
		peer_close(cluster->meta_peer, -ESHUTDOWN, "this node is stopping");
	for (struct map_slot *slot = map_first(&cluster->peers); slot; slot = map_next(slot))
		peer_close(map_value(slot), -ESHUTDOWN, "this node is stopping");
	list_each(node, &cluster->incoming)
		incoming_end(list_entry(node, struct incoming, link));
	nursery_fini(&cluster->nursery);
	meta_peer_stop(cluster);
	while (!is_quiet(cluster))
		wait_at_shielded(&cluster->quiet, env_in_ms(cluster->env, QUIET_MS));
}

void cluster_free(struct cluster *cluster)
{
	if (!cluster)
		return;
	CHECK_MAGIC(cluster, CLUSTER_MAGIC);
	CHECK(is_quiet(cluster) && nursery_is_empty(&cluster->nursery));
	task_cancel(&cluster->news);
	task_cancel(&cluster->unsent_task);
	net_listener_close(cluster->listener);
	while (cluster->peers.n) {
		struct map_slot *slot = map_first(&cluster->peers);
		struct peer *peer = map_value(slot);

		map_remove(&cluster->peers, map_key(slot));
		peer_free(peer);
	}
	map_fini(&cluster->peers);
	peer_free(cluster->meta_peer);
	if (cluster->meta_is_remote) {
		meta_free(cluster->meta);
	} else if (cluster->meta) {
		cluster->meta->gate = NULL;
		cluster->meta->refusal = NULL;
	}
	if (cluster->key.ptr)
		explicit_bzero(cluster->key.ptr, cluster->key.len);
	buf_fini(&cluster->key);
	cluster->magic = 0;
	free(cluster);
}

/* ---- questions ---- */

struct meta *cluster_meta(struct cluster *cluster)
{
	CHECK_MAGIC(cluster, CLUSTER_MAGIC);
	return cluster->meta;
}

const char *cluster_node(const struct cluster *cluster)
{
	CHECK_MAGIC(cluster, CLUSTER_MAGIC);
	return cluster->node;
}

const char *cluster_address(const struct cluster *cluster)
{
	CHECK_MAGIC(cluster, CLUSTER_MAGIC);
	return cluster->address;
}

const char *cluster_id(const struct cluster *cluster)
{
	CHECK_MAGIC(cluster, CLUSTER_MAGIC);
	return cluster->id;
}

uint64_t cluster_incarnation(const struct cluster *cluster)
{
	CHECK_MAGIC(cluster, CLUSTER_MAGIC);
	return cluster->incarnation;
}

bool cluster_has_key(const struct cluster *cluster)
{
	CHECK_MAGIC(cluster, CLUSTER_MAGIC);
	return cluster->key.len;
}
