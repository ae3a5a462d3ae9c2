/*
 * group/group.c: the room's life, and joining as a rank's own node does it.
 */
#include "group/group.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "group/load.h"

int group_key(struct buf *out, struct view tenant, struct view group, uint64_t incarnation)
{
	uint8_t le[8];
	int r = buf_append(out, tenant.ptr, tenant.len);

	store_le64(le, incarnation);
	if (!r)
		r = buf_append_zero(out, 1);
	if (!r)
		r = buf_append(out, group.ptr, group.len);
	if (!r && incarnation)
		r = buf_append_zero(out, 1);
	if (!r && incarnation)
		r = buf_append(out, le, sizeof(le));
	return r;
}

static void peer_down(struct peer_watch *watch, const char *node)
{
	struct groups *groups = container_of(watch, struct groups, watch);

	orphan_coordinator_lost(groups, node);
	save_node_lost(groups, node); /* before its ranks: the words name the node */
	coordinator_node_lost(groups, node);
}

int groups_new(struct env *env, struct cluster *cluster, struct store *const *stores, unsigned n_stores,
	       struct bundles *bundles, struct groups **ret)
{
	struct groups *groups = calloc(1, sizeof(*groups));

	CHECK(n_stores && n_stores <= GROUPS_TENANTS_MAX);
	if (groups)
		groups->shares = calloc(n_stores, sizeof(*groups->shares));
	if (!groups || !groups->shares) {
		free(groups);
		return -ENOMEM;
	}
	for (unsigned i = 0; i < n_stores; i++) {
		groups->shares[i].store = stores[i];
		turns_init(&groups->shares[i].turns);
	}
	groups->n_shares = n_stores;
	groups->magic = GROUPS_MAGIC;
	groups->env = env;
	groups->cluster = cluster;
	groups->bundles = bundles;
	do {
		env->ops->random(env, &groups->token, sizeof(groups->token));
	} while (!groups->token);
	nursery_init(&groups->flows, env->loop);
	waitplace_init(&groups->listed);
	map_init(&groups->members);
	map_init(&groups->coordinated);
	map_init(&groups->saves);
	list_init(&groups->msaves);
	coordinator_serve(groups);
	member_serve(groups);
	takeover_serve(groups);
	staged_serve(groups);
	load_serve(groups);
	traces_init(&groups->traces);
	patience_init(&groups->copying);
	trace_serve(groups);
	groups->watch.down = peer_down;
	cluster_watch(cluster, &groups->watch);
	*ret = groups;
	return 0;
}

void groups_stop(struct groups *groups)
{
	cluster_unwatch(&groups->watch);
	coordinator_stop(groups);
	member_stop(groups);
	nursery_fini(&groups->flows);
}

void groups_free(struct groups *groups)
{
	if (!groups)
		return;
	CHECK(nursery_is_empty(&groups->flows));
	map_fini(&groups->members);
	map_fini(&groups->coordinated);
	map_fini(&groups->saves);
	traces_fini(&groups->traces);
	free(groups->shares);
	free(groups);
}

int groups_share(const struct groups *groups, struct view tenant, struct share **ret, struct error *e)
{
	for (unsigned i = 0; i < groups->n_shares; i++) {
		struct share *share = &groups->shares[i];

		if (view_equal(view_str(store_tenant(share->store)), tenant)) {
			*ret = share;
			return 0;
		}
	}
	return error_set(e, -ENOENT, "node %s does not serve tenant %.*s", cluster_node(groups->cluster),
			 (int)(tenant.len < 64 ? tenant.len : 64), (const char *)tenant.ptr);
}

static struct mgroup *mgroup_new(struct groups *groups, struct view tenant, struct view name, uint64_t incarnation)
{
	struct mgroup *group = calloc(1, sizeof(*group));

	if (!group || groups_share(groups, tenant, &group->share, NULL)) {
		free(group);
		return NULL;
	}
	group->refs = 1;
	group->groups = groups;
	group->incarnation = incarnation;
	list_init(&group->ranks);
	list_init(&group->saves);
	list_init(&group->loads);
	map_init(&group->structures);
	map_init(&group->parts);
	steps_init(&group->refused);
	map_init(&group->lists);
	group->tenant = view_dup(tenant);
	group->name = view_dup(name);
	if (group->tenant && group->name && !group_key(&group->key, tenant, name, incarnation) &&
	    !map_put(&groups->members, view_buf(&group->key), group))
		return group;
	group->refs = 0;
	free(group->tenant);
	free(group->name);
	buf_fini(&group->key);
	free(group);
	return NULL;
}

struct mgroup *mgroup_obtain(struct groups *groups, struct view tenant, struct view name, uint64_t incarnation,
			     const char *coordinator)
{
	_cleanup_(buf_fini) struct buf key = { 0 };

	if (group_key(&key, tenant, name, incarnation))
		return NULL;
	struct mgroup *group = map_get(&groups->members, view_buf(&key));
	if (group) {
		group->refs++;
		return group;
	}
	group = mgroup_new(groups, tenant, name, incarnation);
	if (group)
		snprintf(group->coordinator, sizeof(group->coordinator), "%s", coordinator);
	return group;
}

static int check_join(const struct msg_join *join, struct error *e)
{
	if (!join->group.len || join->group.len > GROUP_NAME_MAX || !view_is_utf8(join->group) ||
	    memchr(join->group.ptr, 0, join->group.len))
		return error_set(e, -EINVAL, "a group's name must be 1 to %d bytes of UTF-8", GROUP_NAME_MAX);
	if (!join->run.len || join->run.len > GROUP_NAME_MAX)
		return error_set(e, -EINVAL, "group %.*s: the run must be 1 to %d bytes", (int)join->group.len,
				 join->group.ptr, GROUP_NAME_MAX);
	if (!join->size || join->size > GROUP_RANKS_MAX)
		return error_set(e, -EINVAL, "group %.*s: a size of %u; 1 to %d is possible", (int)join->group.len,
				 join->group.ptr, join->size, GROUP_RANKS_MAX);
	if (join->rank >= join->size)
		return error_set(e, -EINVAL, "group %.*s: rank %u does not exist in a group of %u",
				 (int)join->group.len, join->group.ptr, join->rank, join->size);
	return 0;
}

static void add_rank(struct mgroup *group, struct rank *rank)
{
	struct list *at = &group->ranks;

	list_each(node, &group->ranks) {
		if (list_entry(node, struct rank, link)->number > rank->number) {
			at = node;
			break;
		}
	}
	list_insert(at, &rank->link);
	group->n_ranks++;
	group->n_gone -= group->n_gone > 0;
}

struct note {
	struct groups *groups;
	char *node;
	enum msg_type type;
	struct buf body;
};

static int send_once(const struct note *note)
{
	return cluster_call(note->groups->cluster, note->node, note->type, view_buf(&note->body),
			    env_in_ms(note->groups->env, SETTLE_MS), NULL, NULL);
}

static int send_note(void *arg)
{
	struct note *note = arg;

	if (send_once(note) == -ERR_ESTALEEPOCH) /* of a rebuild this node may have heard by that refusal alone */
		(void)send_once(note);
	free(note->node);
	buf_fini(&note->body);
	free(note);
	return 0;
}

int tell_coordinator(struct groups *groups, const char *node, enum msg_type type, struct buf *body)
{
	struct note *note = calloc(1, sizeof(*note));
	char *name = strdup(node);

	if (note && name) {
		*note = (struct note){ .groups = groups, .node = name, .type = type, .body = *body };
		*body = (struct buf){ 0 };
		if (!fiber_start(&groups->flows, "note", send_note, note))
			return 0;
		buf_fini(&note->body);
	}
	buf_fini(body); /* untold, the save or load ends at its deadline */
	free(name);
	free(note);
	return -ENOMEM;
}

static void tell_lost(struct groups *groups, const char *coordinator, const struct msg_g_lost *lost)
{
	struct buf body = { 0 };

	if (msg_g_lost_encode(lost, &body))
		buf_fini(&body);
	else
		(void)tell_coordinator(groups, coordinator, MSG_G_LOST, &body);
}

void engine_place(const struct groups *groups, char ret[ENGINE_PLACE_MAX])
{
	struct node_info engine;

	cluster_engine(groups->cluster, &engine);
	snprintf(ret, ENGINE_PLACE_MAX, "%s%s%sat %s", *engine.name ? "on node " : "", engine.name,
		 *engine.name ? " " : "", engine.address);
}

/* The engine has not answered whoever looks for the coordinator of @group: -ETIMEDOUT, naming the engine's node. */
static int engine_silent(struct groups *groups, struct view group, const char *found, const struct error *last,
			 struct error *e)
{
	char place[ENGINE_PLACE_MAX];

	engine_place(groups, place);
	return error_set(e, -ETIMEDOUT,
			 "group %.*s: no coordinator %s, since the index has not answered: its engine is %s (%.160s)",
			 (int)group.len, (const char *)group.ptr, found, place,
			 *last->text ? last->text : "no answer so far");
}

struct seeker {
	struct vigil vigil;
	struct groups *groups;
	struct view group;
	struct error last; /* how the last look failed */
};

static void tell_engine_awaited(struct timer *timer)
{
	struct seeker *seeker = container_of(timer, struct seeker, vigil.timer);
	struct error words = { 0 };

	(void)engine_silent(seeker->groups, seeker->group, "is found yet", &seeker->last, &words);
	logm(LOG_WARN, "group.index-awaited", "group=%.*s words=\"%s\"", (int)seeker->group.len,
	     (const char *)seeker->group.ptr, words.text);
	seeker->vigil.told = true;
}

static int seek(struct seeker *seeker, struct view tenant, uint64_t deadline_ns, char ret_node[NODE_NAME_MAX + 1],
		struct error *e)
{
	struct groups *groups = seeker->groups;
	uint64_t epoch;

	for (;;) {
		struct error last = { 0 };
		int r = coordinator_seek(groups, tenant, seeker->group, deadline_ns, &seeker->vigil, ret_node, &epoch,
					 &last);

		bool silent = engine_is_silent(r);
		if (!silent && r != -EAGAIN)
			return r ? error_set(e, r, "%s", last.code ? last.text : error_meaning(r)) : 0;
		seeker->last = last;
		if (env_now(groups->env) >= deadline_ns)
			return silent ? engine_silent(groups, seeker->group, "was found in time", &last, e) :
					error_set(e, -ETIMEDOUT, "%s", last.text);
		r = fiber_sleep_until(env_in_ms(groups->env, LOCATE_RETRY_MS));
		if (r)
			return r;
	}
}

/* As coordinator_locate(), to the deadline; while the engine is away the log says so. */
static int locate_patiently(struct groups *groups, struct view tenant, struct view group, uint64_t deadline_ns,
			    char ret_node[NODE_NAME_MAX + 1], struct error *e)
{
	struct seeker seeker = { .vigil = { .timer.fn = tell_engine_awaited, .loop = groups->env->loop },
				 .groups = groups,
				 .group = group };
	int r = seek(&seeker, tenant, deadline_ns, ret_node, e);

	timer_disarm(groups->env->loop, &seeker.vigil.timer);
	return r;
}

/* Asks whoever coordinates the group; when that one is just going, until its lease has ended and another took it. */
static int ask_coordinator(struct groups *groups, struct view tenant, struct view group, enum msg_type type,
			   struct view body, uint64_t deadline_ns, char ret_node[NODE_NAME_MAX + 1], struct buf *answer,
			   struct error *e)
{
	ret_node[0] = 0;
	for (;;) {
		int r = locate_patiently(groups, tenant, group, deadline_ns, ret_node, e);

		if (!r)
			r = cluster_call(groups->cluster, ret_node, type, body, deadline_ns, answer, e);
		if (!cluster_is_away(r) || env_now(groups->env) >= deadline_ns)
			return r;
		r = fiber_sleep_until(env_in_ms(groups->env, LOCATE_RETRY_MS));
		if (r)
			return r;
	}
}

/*
 * The coordinator may count the rank as here by now, though it is not. Whoever is refused for want of something says so to its group
 * (group_forgo_join()), and is not waited for; another may try again.
 */
static void take_join_back(struct groups *groups, const char *coordinator, const struct msg_g_join *join, int code)
{
	bool forgone = code == -ENOMEM || code == -ENOBUFS || code == -EBUSY;

	tell_lost(groups, coordinator,
		  &(struct msg_g_lost){ .tenant = join->tenant,
					.group = join->group,
					.run = join->run,
					.rank = join->rank,
					.words = view_str(forgone ? error_meaning(code) : "it went while it joined"),
					.forgone = forgone,
					.joiner = join->joiner });
}

int group_join(struct groups *groups, struct view tenant, const struct msg_join *join, const struct rank_events *events,
	       uint64_t deadline_ns, struct rank **ret, struct msg_join_reply *ret_reply, struct error *e)
{
	_cleanup_(cleanup_mem) struct rank *rank = calloc(1, sizeof(*rank));
	_cleanup_(buf_fini) struct buf body = { 0 }, answer = { 0 };
	char node[NODE_NAME_MAX + 1] = "";
	int r = rank ? check_join(join, e) : -ENOMEM;

	if (!r)
		r = groups_open(groups, e);
	if (r)
		return r;
	struct msg_g_join ask = { .tenant = tenant,
				  .group = join->group,
				  .run = join->run,
				  .rank = join->rank,
				  .size = join->size,
				  .node = view_str(cluster_node(groups->cluster)) };
	do {
		groups->env->ops->random(groups->env, &ask.joiner, sizeof(ask.joiner));
	} while (!ask.joiner);
	r = msg_g_join_encode(&ask, &body);
	if (!r)
		r = ask_coordinator(groups, tenant, join->group, MSG_G_JOIN, view_buf(&body), deadline_ns, node,
				    &answer, e);
	if (!r)
		r = msg_join_reply_decode(view_buf(&answer), ret_reply);
	struct mgroup *group = NULL;
	if (!r)
		group = mgroup_obtain(groups, tenant, join->group, ret_reply->incarnation, node);
	if (!r && !group)
		r = -ENOMEM;
	if (r && *node)
		take_join_back(groups, node, &ask, r);
	if (r)
		return r;

	if (ret_reply->epoch >= group->epoch) {
		group->epoch = ret_reply->epoch;
		snprintf(group->coordinator, sizeof(group->coordinator), "%s", node);
	}
	group->n_expected = ret_reply->here;
	rank->magic = RANK_MAGIC;
	rank->group = group;
	rank->number = join->rank;
	rank->joiner = ask.joiner;
	rank->events = *events;
	nths_init(&rank->loads);
	add_rank(group, rank);
	*ret = TAKE(rank);
	return 0;
}

int group_forgo_join(struct groups *groups, struct view tenant, struct view group, struct view run, uint32_t rank,
		     struct view words, uint64_t deadline_ns, struct error *e)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	char node[NODE_NAME_MAX + 1];
	const struct msg_g_lost lost = { .tenant = tenant,
					 .group = group,
					 .run = run,
					 .rank = rank,
					 .words = words,
					 .forgone = 1 };
	int r = check_join(&(struct msg_join){ group, run, rank, GROUP_RANKS_MAX }, e);

	if (!r)
		r = groups_open(groups, e);
	if (!r)
		r = msg_g_lost_encode(&lost, &body);
	return r ? r : ask_coordinator(groups, tenant, group, MSG_G_LOST, view_buf(&body), deadline_ns, node, NULL, e);
}

void group_leave(struct rank *rank, const char *words)
{
	CHECK_MAGIC(rank, RANK_MAGIC);
	list_remove(&rank->link);
	rank->group->n_ranks--;
	rank->group->n_gone++;
	member_rank_left(rank, words);
	mload_rank_left(rank, words);
	tell_lost(rank->group->groups, rank->group->coordinator,
		  &(struct msg_g_lost){ .tenant = view_str(rank->group->tenant),
					.group = view_str(rank->group->name),
					.incarnation = rank->group->incarnation,
					.rank = rank->number,
					.words = view_str(words),
					.joiner = rank->joiner });
	nths_fini(&rank->loads);
	rank->magic = 0;
	mgroup_put(rank->group);
	free(rank);
}
