/*
 * cluster/member.c: who belongs to the cluster: records in the meta engine, and what this node remembers of them.
 *
 * A record lies under n/<name>: address str, domain str, incarnation u64, store_rate u64 (wire/codec.h). What was read is
 * kept with the peer, and read again once the peer was noticed to be down, until it is up: it may come back elsewhere.
 */
#include "cluster/inside.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#define DIAL_PATIENCE_MS 200 /* for all of a list's nodes together */
#define RECORD_PREFIX	 "n/"
#define RECORD_KEY_MAX	 (sizeof(RECORD_PREFIX) + NODE_NAME_MAX)
#define RECORDS_A_PAGE	 256
#define ANNOUNCE_MS	 1000 /* for one attempt to say again who this node is, and between two of them */
#define JOIN_ATTEMPTS	 8    /* against another node of the same name that joins at this moment */

struct record {
	struct view address, domain;
	uint64_t incarnation, store_rate;
};

bool node_name_is_valid(const char *name)
{
	size_t len = strnlen(name, NODE_NAME_MAX + 1);

	if (!len || len > NODE_NAME_MAX)
		return false;
	for (const char *c = name; *c; c++)
		if (!(*c >= 'A' && *c <= 'Z') && !(*c >= 'a' && *c <= 'z') && !(*c >= '0' && *c <= '9') && *c != '.' &&
		    *c != '_' && *c != '-')
			return false;
	return true;
}

/* ---- records ---- */

static int record_encode(const struct record *record, struct buf *out)
{
	int r = put_str(out, &record->address);

	if (!r)
		r = put_str(out, &record->domain);
	if (!r)
		r = put_u64(out, &record->incarnation);
	if (!r)
		r = put_u64(out, &record->store_rate);
	return r;
}

static int record_decode(struct view value, struct record *ret)
{
	struct record record;
	int r = get_str(&value, &record.address);

	if (!r)
		r = get_str(&value, &record.domain);
	if (!r)
		r = get_u64(&value, &record.incarnation);
	if (!r)
		r = get_u64(&value, &record.store_rate);
	if (r || record.address.len >= sizeof(((struct peer *)0)->address) || record.domain.len > NODE_NAME_MAX)
		return -EPROTO;
	*ret = record;
	return 0;
}

static void copy_text(char *to, struct view from)
{
	if (from.len)
		memcpy(to, from.ptr, from.len);
	to[from.len] = 0;
}

/* The record says that the peer is so. A running call's peer stays as it is: its link has the old address. */
static void peer_learn(struct peer *peer, const struct record *record)
{
	copy_text(peer->domain, record->domain);
	if (!peer->fixed)
		copy_text(peer->address, record->address);
	peer->store_rate = record->store_rate;
	if (record->incarnation > peer->incarnation) {
		peer->incarnation = record->incarnation;
		if (peer->down)
			peer->heard = 0; /* the watchers know that this life is over */
		peer->down = false;	 /* the new one was not tried yet */
	}
	peer->known = true;
	peer->stale = false;
}

static int peer_learn_named(struct cluster *cluster, const char *name, struct view value, struct peer **ret,
			    struct error *e)
{
	struct record record;
	struct peer *peer = peer_find(cluster, name);

	if (record_decode(value, &record))
		return error_set(e, -EPROTO, "the record of node %s cannot be read", name);
	if (!peer) {
		int r = peer_new(cluster, name, &peer);
		if (r)
			return error_set(e, r, "no room for node %s", name);
	}
	peer_learn(peer, &record);
	*ret = peer;
	return 0;
}

static int record_read(struct cluster *cluster, const char *name, struct buf *ret, uint64_t deadline_ns,
		       struct error *e)
{
	char key[RECORD_KEY_MAX];

	snprintf(key, sizeof(key), RECORD_PREFIX "%s", name);
	return meta_get(cluster->meta, view_str(key), ret, deadline_ns, e);
}

int peer_get(struct cluster *cluster, const char *name, uint64_t deadline_ns, struct peer **ret, struct error *e)
{
	struct peer *peer = peer_find(cluster, name);
	_cleanup_(buf_fini) struct buf value = { 0 };

	if (peer && ((peer->known && !peer->stale && !peer->down) || peer->fixed)) {
		*ret = peer;
		return 0;
	}
	if (!node_name_is_valid(name))
		return error_set(e, -EINVAL, "\"%.80s\" is no name of a node", name);
	bool at_hand = peer && peer->known;
	char own[NODE_NAME_MAX + 1]; /* while it waits, the caller's may become another */
	snprintf(own, sizeof(own), "%s", name);
	uint64_t soon_ns = env_in_ms(cluster->env, RECORD_READ_MS);
	int r = record_read(cluster, own, &value, at_hand && soon_ns < deadline_ns ? soon_ns : deadline_ns, e);
	if (r == -ENOENT)
		return error_set(e, r, "there is no node %s in the cluster", own);
	if (r && (!at_hand || r == -ECANCELED))
		return r;
	if (!r)
		r = peer_learn_named(cluster, own, view_buf(&value), &peer, e);
	else
		r = 0; /* the engine does not answer: what was read before may still be right */
	if (!r)
		*ret = peer;
	return r;
}

/* ---- what users see ---- */

static void info_of_self(const struct cluster *cluster, struct node_info *ret)
{
	*ret = (struct node_info){
		.incarnation = cluster->incarnation,
		.store_rate = cluster->store_rate,
		.up = true,
	};
	memcpy(ret->name, cluster->node, sizeof(ret->name));
	memcpy(ret->domain, cluster->domain, sizeof(ret->domain));
	memcpy(ret->address, cluster->address, sizeof(ret->address));
}

static void info_of_peer(const struct peer *peer, struct node_info *ret)
{
	*ret = (struct node_info){
		.incarnation = peer->incarnation,
		.store_rate = peer->store_rate,
		.up = !peer->down,
		.unheard_ms = peer_unheard_ms(peer),
	};
	memcpy(ret->name, peer->name, sizeof(ret->name));
	memcpy(ret->domain, peer->domain, sizeof(ret->domain));
	memcpy(ret->address, peer->address, sizeof(ret->address));
}

int cluster_node_info(struct cluster *cluster, const char *name, uint64_t deadline_ns, struct node_info *ret,
		      struct error *e)
{
	struct peer *peer;

	CHECK_MAGIC(cluster, CLUSTER_MAGIC);
	if (!strcmp(name, cluster->node)) {
		info_of_self(cluster, ret);
		return 0;
	}
	peer = peer_find(cluster, name);
	if (peer && peer->fixed && !peer->known) { /* its address was configured, the rest stands in its record */
		_cleanup_(buf_fini) struct buf value = { 0 };
		int r = record_read(cluster, name, &value, deadline_ns, e);
		if (!r)
			r = peer_learn_named(cluster, name, view_buf(&value), &peer, e);
		if (r)
			return r;
	}
	int r = peer_get(cluster, name, deadline_ns, &peer, e);
	if (!r)
		info_of_peer(peer, ret);
	return r;
}

static int infos_add(struct cluster *cluster, struct view key, struct view value, struct buf *infos, struct error *e)
{
	struct node_info info;
	struct peer *peer;
	char name[NODE_NAME_MAX + 1];
	size_t prefix = strlen(RECORD_PREFIX);

	if (key.len <= prefix || key.len - prefix > NODE_NAME_MAX)
		return error_set(e, -EPROTO, "a node's name of %zu bytes", key.len);
	copy_text(name, view_of(key.ptr + prefix, key.len - prefix));
	if (!strcmp(name, cluster->node)) {
		info_of_self(cluster, &info);
	} else {
		int r = peer_learn_named(cluster, name, value, &peer, e);
		if (r)
			return r;
		info_of_peer(peer, &info);
		peer_try_again(peer);
	}
	return buf_append(infos, &info, sizeof(info)) ? error_set(e, -ENOMEM, "no memory for a list of nodes") : 0;
}

/* One page; @ret_more with the last key in @after. */
static int infos_page(struct cluster *cluster, uint64_t deadline_ns, struct buf *after, struct buf *infos,
		      bool *ret_more, struct error *e)
{
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = meta_req_new(META_RANGE);
	struct view key = { 0 }, value;
	uint32_t n = 0;
	int r = req ? meta_put_range(req, view_str(RECORD_PREFIX), view_buf(after), RECORDS_A_PAGE) : -ENOMEM;

	if (r)
		return error_set(e, r, "cannot ask for the nodes: %s", error_meaning(r));
	int outcome = meta_call_run(cluster->meta, &req, deadline_ns, e);
	if (outcome < 0)
		return outcome;
	struct view rest = view_buf(&req->out);
	while ((r = meta_out_entry(&rest, &key, &value)) == 0) {
		r = infos_add(cluster, key, value, infos, e);
		if (r)
			return r;
		n++;
	}
	if (r < 0)
		return error_set(e, r, "the list of nodes cannot be read");
	after->len = 0;
	if (buf_append(after, key.ptr, key.len))
		return error_set(e, -ENOMEM, "no memory for a list of nodes");
	*ret_more = n && (outcome == META_MORE || n == RECORDS_A_PAGE);
	return 0;
}

/* Those that were down were just dialled again: gives them a moment, so that a node that has come back counts at once. */
static void await_dialled(struct cluster *cluster, struct node_info *infos, size_t n, uint64_t deadline_ns)
{
	uint64_t patience_ns = env_in_ms(cluster->env, DIAL_PATIENCE_MS);

	for (size_t i = 0; i < n; i++) {
		struct peer *peer = infos[i].up ? NULL : peer_find(cluster, infos[i].name);

		if (!peer)
			continue;
		(void)link_ready(&peer->control, patience_ns < deadline_ns ? patience_ns : deadline_ns, NULL);
		infos[i].up = !peer->down;
	}
}

int cluster_nodes(struct cluster *cluster, uint64_t deadline_ns, struct node_info **ret, size_t *ret_n, struct error *e)
{
	_cleanup_(buf_fini) struct buf infos = { 0 }, after = { 0 };
	bool more = true;

	CHECK_MAGIC(cluster, CLUSTER_MAGIC);
	while (more) {
		int r = infos_page(cluster, deadline_ns, &after, &infos, &more, e);
		if (r)
			return r;
	}
	*ret_n = infos.len / sizeof(**ret);
	*ret = (struct node_info *)TAKE(infos.ptr);
	await_dialled(cluster, *ret, *ret_n, deadline_ns);
	return 0;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(((const struct node_info *)a)->name, ((const struct node_info *)b)->name);
}

int cluster_known_nodes(struct cluster *cluster, struct node_info **ret, size_t *ret_n, struct error *e)
{
	CHECK_MAGIC(cluster, CLUSTER_MAGIC);
	struct peer *meta = cluster->meta_peer;
	struct node_info *infos = calloc(cluster->peers.n + 2, sizeof(*infos));
	size_t n = 0;

	if (!infos)
		return error_set(e, -ENOMEM, "no memory for a list of nodes");
	info_of_self(cluster, &infos[n++]);
	if (meta && *meta->name)
		info_of_peer(meta, &infos[n++]);
	for (struct map_slot *slot = map_first(&cluster->peers); slot; slot = map_next(slot)) {
		struct peer *peer = map_value(slot);

		if (meta && !strcmp(meta->name, peer->name))
			continue;
		info_of_peer(peer, &infos[n++]);
		peer_try_again(peer);
	}
	qsort(infos, n, sizeof(*infos), by_name);
	*ret = infos;
	*ret_n = n;
	return 0;
}

void cluster_engine(const struct cluster *cluster, struct node_info *ret)
{
	CHECK_MAGIC(cluster, CLUSTER_MAGIC);
	if (cluster->meta_peer)
		info_of_peer(cluster->meta_peer, ret);
	else
		info_of_self(cluster, ret);
}

/* ---- joining ---- */

/* 0; META_CONFLICT: somebody else wrote it meanwhile. */
static int record_write(struct cluster *cluster, struct view old, uint64_t incarnation, uint64_t deadline_ns,
			struct error *e)
{
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = meta_req_new(META_TXN);
	_cleanup_(buf_fini) struct buf value = { 0 };
	const struct record record = {
		.address = view_str(cluster->address),
		.domain = view_str(cluster->domain),
		.incarnation = incarnation,
		.store_rate = cluster->store_rate,
	};
	char key[RECORD_KEY_MAX];

	snprintf(key, sizeof(key), RECORD_PREFIX "%s", cluster->node);
	int r = req ? record_encode(&record, &value) : -ENOMEM;
	if (!r)
		r = meta_txn_expect(req, view_str(key), old);
	if (!r)
		r = meta_txn_put(req, view_str(key), view_buf(&value));
	if (r)
		return error_set(e, r, "the record of node %s cannot be written: %s", cluster->node, error_meaning(r));
	return meta_call_run(cluster->meta, &req, deadline_ns, e);
}

static uint64_t next_incarnation(const struct cluster *cluster, uint64_t last)
{
	uint64_t above = cluster_counts_above(cluster);

	return (last < above ? above : last) + 1;
}

/* The bytes that are there, and what they say; both stay empty if there are none. */
static int read_own_record(struct cluster *cluster, struct buf *ret_bytes, struct record *ret, uint64_t deadline_ns,
			   struct error *e)
{
	int r = record_read(cluster, cluster->node, ret_bytes, deadline_ns, e);

	if (r)
		return r == -ENOENT ? 0 : r;
	if (record_decode(view_buf(ret_bytes), ret))
		return error_set(e, -EPROTO, "the record of node %s cannot be read", cluster->node);
	return 0;
}

int member_join(struct cluster *cluster, uint64_t deadline_ns, struct error *e)
{
	for (int i = 0; i < JOIN_ATTEMPTS; i++) {
		_cleanup_(buf_fini) struct buf value = { 0 };
		struct record record = { 0 };
		int r = read_own_record(cluster, &value, &record, deadline_ns, e);

		if (r)
			return r;
		uint64_t incarnation = next_incarnation(cluster, record.incarnation);
		r = record_write(cluster, view_buf(&value), incarnation, deadline_ns, e);
		if (r < 0)
			return r;
		if (!r) {
			cluster->incarnation = incarnation;
			if (cluster->backend)
				cluster->backend->incarnation = cluster->incarnation;
			return 0;
		}
	}
	return error_set(e, -EBUSY, "another node called %s joins at the same time", cluster->node);
}

/* 0: the index has this life of the node, or a later one. */
static int record_again(struct cluster *cluster, uint64_t deadline_ns, struct error *e)
{
	_cleanup_(buf_fini) struct buf value = { 0 };
	struct record record = { 0 };
	int r = read_own_record(cluster, &value, &record, deadline_ns, e);

	if (r)
		return r;
	if (record.incarnation >= cluster->incarnation)
		return 0;
	r = record_write(cluster, view_buf(&value), cluster->incarnation, deadline_ns, e);
	return r > 0 ? -EAGAIN : r;
}

static int announce_run(void *arg)
{
	struct cluster *cluster = arg;
	int r = 0;

	while (!r && cluster->announced < cluster->generation) {
		uint32_t generation = cluster->generation;
		struct error e = { 0 };

		if (!record_again(cluster, env_in_ms(cluster->env, ANNOUNCE_MS), &e))
			cluster->announced = generation;
		else
			r = fiber_sleep_until(env_in_ms(cluster->env, ANNOUNCE_MS));
	}
	cluster->announcing = false;
	return 0;
}

/* Without memory for it: the next frame that is heard tries again. */
void member_announce(struct cluster *cluster)
{
	if (!cluster->joined || cluster->stopping || cluster->announcing || cluster->announced >= cluster->generation)
		return;
	cluster->announcing = !fiber_start(&cluster->nursery, "announce", announce_run, cluster);
}
