/*
 * group/coordinator.c: who coordinates a group, and its ranks.
 *
 * The daemon that holds the lease g/<tenant>/<group> coordinates; it writes its name to gc/<tenant>/<group>, so that others find
 * it. Each run of a job is an incarnation, counted in gi/<tenant>/<group>. A lease that was lost stops new work; what is under way
 * is fenced by the lease's record, which every transaction of the group expects.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/counter.h"
#include "base/log.h"
#include "group/inside.h"

#define RENEW_MS (LEASE_TTL_MS / 3)

struct cgroup *cgroup_get(struct cgroup *group)
{
	group->refs++;
	return group;
}

void cgroup_put(struct cgroup *group)
{
	if (!group || --group->refs)
		return;
	for (struct map_slot *s = map_first(&group->remembered); s; s = map_next(s))
		recipe_put(map_value(s));
	map_fini(&group->remembered);
	steps_fini(&group->steps);
	free(group->tenant);
	free(group->name);
	free(group->run);
	free(group->ranks);
	buf_fini(&group->key);
	buf_fini(&group->lease_key);
	buf_fini(&group->lease_record);
	free(group);
}

CLEANUP_OF(struct cgroup *, cgroup_put);

static int row_key(struct buf *out, const char *kind, struct view tenant, struct view group)
{
	int r = buf_printf(out, "%s/", kind);

	if (!r)
		r = buf_append(out, tenant.ptr, tenant.len);
	if (!r)
		r = buf_append(out, "/", 1);
	if (!r)
		r = buf_append(out, group.ptr, group.len);
	return r;
}

/* META_LEASE, in an epoch above @epoch, or META_RENEW of that one: 0 with its epoch, META_HELD, or an error. */
static int call_lease(struct groups *groups, enum meta_op op, struct view key, uint64_t epoch, uint64_t deadline_ns,
		      uint64_t *ret_epoch, struct error *e)
{
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = meta_req_new(op);
	uint64_t holder;
	int r = req ? meta_put_lease(req, key, groups->token, LEASE_TTL_MS, epoch) : -ENOMEM;

	if (!r)
		r = meta_call_run(cluster_meta(groups->cluster), &req, deadline_ns, e);
	if (r < 0)
		return r;
	int parsed = meta_out_lease(view_buf(&req->out), &holder, ret_epoch);
	return parsed ? parsed : r;
}

/* Asks for the lease. An index that was made again knows no epochs of before, but members do: each of this generation is above those. */
static int ask_lease(struct groups *groups, struct view key, uint64_t deadline_ns, uint64_t *ret_epoch, struct error *e)
{
	uint64_t above = cluster_counts_above(groups->cluster);

	return call_lease(groups, META_LEASE, key, groups->given_back > above ? groups->given_back : above, deadline_ns,
			  ret_epoch, e);
}

/* Whoever coordinates the group next need not look for saves that were left: there are none. */
static void clear_row(struct cgroup *group)
{
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = meta_req_new(META_TXN);
	_cleanup_(buf_fini) struct buf row = { 0 };

	if (req && !row_key(&row, "gc", view_str(group->tenant), view_str(group->name)) &&
	    !meta_txn_expect(req, view_buf(&group->lease_key), view_buf(&group->lease_record)) &&
	    !meta_txn_delete(req, view_buf(&row)))
		(void)meta_call_run(cluster_meta(group->groups->cluster), &req,
				    env_in_ms(group->groups->env, SETTLE_MS), NULL);
}

static void give_lease_back(struct cgroup *group)
{
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = meta_req_new(META_RELEASE);
	struct groups *groups = group->groups;

	count(COUNT_LEASES_GIVEN_BACK, 1);
	if (list_empty(&group->saves))
		clear_row(group);
	if (groups->given_back < group->epoch)
		groups->given_back = group->epoch;
	if (req && !meta_put_lease(req, view_buf(&group->lease_key), groups->token, 0, group->epoch))
		(void)meta_call_run(cluster_meta(groups->cluster), &req, env_in_ms(groups->env, SETTLE_MS), NULL);
}

/* One put under the group's lease. -ERR_ESTALEEPOCH when somebody else holds it by now. */
static int fenced_put(struct cgroup *group, struct view key, struct view value, uint64_t deadline_ns, struct error *e)
{
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = meta_req_new(META_TXN);
	int r = req ? meta_txn_expect(req, view_buf(&group->lease_key), view_buf(&group->lease_record)) : -ENOMEM;

	if (!r)
		r = meta_txn_put(req, key, value);
	if (!r)
		r = meta_call_run(cluster_meta(group->groups->cluster), &req, deadline_ns, e);
	if (r == META_CONFLICT)
		return error_set(e, -ERR_ESTALEEPOCH, "group %s has another coordinator by now", group->name);
	return r;
}

int coordinator_confirm(struct cgroup *group, uint64_t deadline_ns, struct error *e)
{
	struct env *env = group->groups->env;
	_cleanup_(buf_fini) struct buf record = { 0 };
	int r;

	for (;;) {
		record.len = 0;
		*e = (struct error){ 0 };
		r = meta_get(cluster_meta(group->groups->cluster), view_buf(&group->lease_key), &record,
			     env_in_ms(env, SETTLE_MS), e);
		if ((!cluster_is_away(r) && r != -ETIMEDOUT) || env_now(env) >= deadline_ns ||
		    fiber_sleep_until(env_in_ms(env, ENGINE_AWAY_MS)))
			break;
	}
	if (r == -ENOENT || (!r && !view_equal(view_buf(&record), view_buf(&group->lease_record))))
		r = error_set(e, -ERR_ESTALEEPOCH, "group %s has another coordinator by now", group->name);
	return r;
}

static void drop(struct cgroup *group)
{
	struct groups *groups = group->groups;

	group->lost = true;
	load_abandon_all(group, -ERR_ESTALEEPOCH, "the group has another coordinator by now");
	if (map_get(&groups->coordinated, view_buf(&group->key)) == group) {
		map_remove(&groups->coordinated, view_buf(&group->key));
		cgroup_put(group);
	}
	wake_all(&group->changed);
}

static bool is_idle(const struct cgroup *group)
{
	return !group->n_here && !group->recovering && list_empty(&group->saves) && list_empty(&group->loads);
}

/* Overtaken by whom: what is captured goes on there, the rest fails. */
static void end_office(struct cgroup *group)
{
	if (group->lost)
		return;
	count(COUNT_LEASES_LOST, 1);
	logm(LOG_WARN, "group.lease-lost", "group=%s epoch=%" PRIu64, group->name, group->epoch);
	save_abandon_all(group, -ERR_ESTALEEPOCH, "its coordinator lost the group's lease", true);
	drop(group);
}

static int take_over(struct groups *groups, struct view tenant, struct view name, uint64_t epoch, struct cgroup *before,
		     uint64_t deadline_ns, struct error *e);

/*
 * Somebody else had the lease, or the engine has never heard of it: its index was lost, or an older one put in its place. If nobody has it
 * now a new office begins here, over the same ranks: they need not join again. What is under way goes to it as to any successor, for there
 * may have been others in between.
 */
static void begin_again(struct cgroup *group)
{
	struct groups *groups = group->groups;
	uint64_t deadline_ns = env_in_ms(groups->env, RENEW_MS), epoch;

	if (!ask_lease(groups, view_buf(&group->lease_key), deadline_ns, &epoch, NULL))
		(void)take_over(groups, view_str(group->tenant), view_str(group->name), epoch, group, deadline_ns,
				NULL);
}

static int renew(struct cgroup *group)
{
	uint64_t epoch;

	return call_lease(group->groups, META_RENEW, view_buf(&group->lease_key), group->epoch,
			  env_in_ms(group->groups->env, RENEW_MS), &epoch, NULL);
}

/*
 * Renews the lease. While the engine cannot be asked nobody else can get it either, unless this node alone is cut off; then a successor
 * fences this coordinator off at each node and under each slot. So what is under way goes on, and new saves wait at their slot.
 */
static int keep_lease(void *arg)
{
	_cleanup_(cleanup_cgroup_put) struct cgroup *group = arg;
	struct env *env = group->groups->env;
	uint64_t idle_since_ns = 0;
	int r = 0;

	while (!group->lost) {
		r = fiber_sleep_until(env_in_ms(env, RENEW_MS));
		if (r)
			break;
		uint64_t asked_ns = env_now(env);
		r = renew(group);
		if (r == META_HELD)
			break;
		idle_since_ns = is_idle(group) ? (idle_since_ns ? idle_since_ns : asked_ns) : 0;
		if (idle_since_ns && env_now(env) - idle_since_ns > LEASE_TTL_MS * NS_PER_MS) {
			group->lost =
				true; /* who comes meanwhile asks again: the same lease would not be his for long */
			give_lease_back(group);
			drop(group);
			return 0;
		}
	}
	if (r == META_HELD)
		begin_again(group);
	end_office(group);
	return 0;
}

static struct cgroup *cgroup_new(struct groups *groups, struct view tenant, struct view name, uint64_t epoch)
{
	_cleanup_(cleanup_cgroup_put) struct cgroup *group = calloc(1, sizeof(*group));
	struct meta_lease_record record;

	if (!group)
		return NULL;
	group->refs = 1;
	group->groups = groups;
	group->epoch = epoch;
	waitplace_init(&group->changed);
	list_init(&group->saves);
	list_init(&group->loads);
	map_init(&group->remembered);
	steps_init(&group->steps);
	store_le64(record.holder_le, groups->token);
	store_le64(record.epoch_le, epoch);
	group->tenant = view_dup(tenant);
	group->name = view_dup(name);
	if (!group->tenant || !group->name || group_key(&group->key, tenant, name, 0) ||
	    row_key(&group->lease_key, "g", tenant, name) || buf_append(&group->lease_record, &record, sizeof(record)))
		return NULL;
	return TAKE(group);
}

/* A row gc/<tenant>/<group>: whose, and at which epoch (may be NULL). 0, -EPROTO. */
static int decode_row(struct view in, char ret_node[NODE_NAME_MAX + 1], uint64_t *ret_epoch)
{
	struct view node;
	uint64_t epoch;
	int r = get_str(&in, &node);

	if (!r)
		r = get_u64(&in, &epoch);
	if (r || !node.len || node.len > NODE_NAME_MAX)
		return -EPROTO;
	snprintf(ret_node, NODE_NAME_MAX + 1, "%.*s", (int)node.len, node.ptr ? (const char *)node.ptr : "");
	if (ret_epoch)
		*ret_epoch = epoch;
	return 0;
}

/* Without memory for them, or when they were still joining, the ranks join again. */
static void inherit_run(struct cgroup *group, struct cgroup *before)
{
	char *run = before->complete ? strdup(before->run) : NULL;
	struct crank *ranks = run ? calloc(before->size, sizeof(*ranks)) : NULL;

	if (!ranks) {
		free(run);
		return;
	}
	memcpy(ranks, before->ranks, before->size * sizeof(*ranks));
	for (uint32_t i = 0; i < before->size; i++)
		ranks[i].n_asks = 0;
	group->run = run;
	group->ranks = ranks;
	group->size = before->size;
	group->n_here = before->n_here;
	group->incarnation = before->incarnation;
	group->complete = true;
	group->forgone = before->forgone;
	steps_move(&before->steps, &group->steps);
}

/* The lease is ours: makes the group known here, and its coordinator known to all. @before: the office that ends with it; or NULL. */
static int take_over(struct groups *groups, struct view tenant, struct view name, uint64_t epoch, struct cgroup *before,
		     uint64_t deadline_ns, struct error *e)
{
	_cleanup_(buf_fini) struct buf row = { 0 }, value = { 0 };
	_cleanup_(cleanup_cgroup_put) struct cgroup *group = cgroup_new(groups, tenant, name, epoch);
	struct view node = view_str(cluster_node(groups->cluster));
	_cleanup_(buf_fini) struct buf old = { 0 };
	char last[NODE_NAME_MAX + 1];
	uint64_t last_epoch;
	int r = group ? row_key(&row, "gc", tenant, name) : -ENOMEM;

	if (!r)
		r = meta_get(cluster_meta(groups->cluster), view_buf(&row), &old, deadline_ns, e);
	/* a coordinator before us did not go in order: it may have left saves, and an index that was lost does not know; or one of this
	 * node's knows that it has. A row of our own epoch was written by us, and the answer did not come, or by another fiber, which is
	 * not as far yet: what that found there is not known any more */
	bool own = !r && !decode_row(view_buf(&old), last, &last_epoch) && last_epoch == epoch;
	bool lost = r == -ENOENT && cluster_counts_above(groups->cluster);
	bool left = !r || lost || orphan_any(groups, tenant, name);
	if (r == -ENOENT)
		r = 0;
	if (!r)
		r = put_str(&value, &node);
	if (!r)
		r = put_u64(&value, &epoch);
	if (!r)
		r = fenced_put(group, view_buf(&row), view_buf(&value), deadline_ns, e);
	if (r)
		return r;
	struct cgroup *there = map_get(&groups->coordinated, view_buf(&group->key));
	if (there && there != before)
		return 0; /* another fiber of this node was as quick */
	r = fiber_start(&groups->flows, "lease", keep_lease, cgroup_get(group));
	if (r) {
		cgroup_put(group);
		return r;
	}
	if (there) {
		end_office(there);
		inherit_run(group, there);
	}
	r = map_put(&groups->coordinated, view_buf(&group->key), group);
	if (r) {
		group->lost = true;
		return r;
	}
	count(COUNT_LEASES_WON, 1);
	struct cgroup *known = TAKE(group);
	known->recovering = left;
	if (!own)
		(void)decode_row(view_buf(&old), known->before, NULL); /* for words alone */
	if (left && fiber_start(&groups->flows, "takeover", takeover_run, cgroup_get(known))) {
		known->recovering = false; /* no memory: what was left ends at its deadline */
		cgroup_put(known);
	}
	return 0;
}

void coordinator_overtaken(struct groups *groups, struct view tenant, struct view name, uint64_t epoch)
{
	struct cgroup *group = coordinator_of(groups, tenant, name);

	if (group && group->epoch < epoch)
		end_office(group);
}

/* Who the row says it is: 0, or -EAGAIN when the row is not (yet) that of the lease's holder. */
static int read_coordinator(struct groups *groups, struct view tenant, struct view name, uint64_t epoch,
			    uint64_t deadline_ns, char ret_node[NODE_NAME_MAX + 1], struct error *e)
{
	_cleanup_(buf_fini) struct buf row = { 0 }, value = { 0 };
	char node[NODE_NAME_MAX + 1];
	uint64_t row_epoch;
	int r = row_key(&row, "gc", tenant, name);

	if (!r)
		r = meta_get(cluster_meta(groups->cluster), view_buf(&row), &value, deadline_ns, e);
	if (r)
		return r == -ENOENT ? -EAGAIN : r;
	if (decode_row(view_buf(&value), node, &row_epoch))
		return error_set(e, -ERR_EDAMAGED, "the index row of group %.*s is malformed", (int)name.len, name.ptr);
	if (row_epoch != epoch || !strcmp(node, cluster_node(groups->cluster)))
		return -EAGAIN; /* ours from before a restart: nobody serves it until it expires */
	memcpy(ret_node, node, sizeof(node));
	return 0;
}

struct cgroup *coordinator_of(struct groups *groups, struct view tenant, struct view name)
{
	_cleanup_(buf_fini) struct buf key = { 0 };

	return group_key(&key, tenant, name, 0) ? NULL : map_get(&groups->coordinated, view_buf(&key));
}

struct cgroup *coordinator_find(struct groups *groups, struct view tenant, struct view name, uint64_t incarnation)
{
	struct cgroup *group = coordinator_of(groups, tenant, name);

	return group && group->incarnation == incarnation ? group : NULL;
}

int coordinator_whole(const struct cgroup *group, struct error *e)
{
	for (uint32_t rank = 0; rank < group->size; rank++)
		if (group->ranks[rank].presence >= RANK_LOST)
			return error_set(e, -ERR_ERANK, "rank %u on node %s is gone (%s): a new run must join", rank,
					 group->ranks[rank].node, group->ranks[rank].gone);
	return 0;
}

bool engine_is_silent(int r)
{
	return r == -EHOSTDOWN || r == -ECONNREFUSED || r == -ETIMEDOUT;
}

/* From the first question that is not answered on; an answer ends it. */
static void vigil_begin(struct vigil *vigil, struct env *env)
{
	if (vigil && !vigil->told && !vigil->timer.slot)
		(void)timer_arm(vigil->loop, &vigil->timer, env_in_ms(env, ENGINE_PATIENCE_MS));
}

static void vigil_answered(struct vigil *vigil)
{
	if (vigil)
		timer_disarm(vigil->loop, &vigil->timer);
}

/* One look: 0, -EAGAIN: to be looked for again, at once if this node has become it. */
static int seek_once(struct groups *groups, struct view lease, struct view tenant, struct view name,
		     uint64_t deadline_ns, char ret_node[NODE_NAME_MAX + 1], uint64_t *ret_epoch, struct error *e)
{
	int r = ask_lease(groups, lease, deadline_ns, ret_epoch, e);

	if (r == META_HELD)
		return read_coordinator(groups, tenant, name, *ret_epoch, deadline_ns, ret_node, e);
	if (!r)
		r = take_over(groups, tenant, name, *ret_epoch, NULL, deadline_ns, e);
	return r ? r : -EAGAIN;
}

int coordinator_seek(struct groups *groups, struct view tenant, struct view name, uint64_t deadline_ns,
		     struct vigil *vigil, char ret_node[NODE_NAME_MAX + 1], uint64_t *ret_epoch, struct error *e)
{
	_cleanup_(buf_fini) struct buf lease = { 0 };
	int r = row_key(&lease, "g", tenant, name);

	while (!r) {
		struct cgroup *group = coordinator_of(groups, tenant, name);

		if (group) {
			snprintf(ret_node, NODE_NAME_MAX + 1, "%s", cluster_node(groups->cluster));
			*ret_epoch = group->epoch;
			return 0;
		}
		vigil_begin(vigil, groups->env);
		r = seek_once(groups, view_buf(&lease), tenant, name, deadline_ns, ret_node, ret_epoch, e);
		if (!engine_is_silent(r))
			vigil_answered(vigil);
		if (r != -EAGAIN)
			return r;
		r = 0;
		if (coordinator_of(groups, tenant, name))
			continue;
		if (env_now(groups->env) >= deadline_ns)
			return error_set(e, -EAGAIN, "group %.*s: no coordinator was found in time", (int)name.len,
					 name.ptr);
		r = fiber_sleep_until(env_in_ms(groups->env, LOCATE_RETRY_MS));
	}
	return r;
}

int coordinator_locate(struct groups *groups, struct view tenant, struct view name, uint64_t deadline_ns,
		       char ret_node[NODE_NAME_MAX + 1], uint64_t *ret_epoch, struct error *e)
{
	return coordinator_seek(groups, tenant, name, deadline_ns, NULL, ret_node, ret_epoch, e);
}

/* ---- ranks ---------------------------------------------------------------------------------------------------------- */

/* The run's incarnation, from the engine: the recorded one if it is the same run, else the next. */
static int count_run(struct cgroup *group, struct view run, uint64_t deadline_ns, uint64_t *ret, struct error *e)
{
	_cleanup_(buf_fini) struct buf row = { 0 }, old = { 0 }, value = { 0 };
	struct view in, old_run = { 0 };
	uint64_t incarnation = 0;
	int r = row_key(&row, "gi", view_str(group->tenant), view_str(group->name));

	if (r)
		return r;
	r = meta_get(cluster_meta(group->groups->cluster), view_buf(&row), &old, deadline_ns, e);
	if (r && r != -ENOENT)
		return r;
	in = view_buf(&old);
	if (!r && (get_u64(&in, &incarnation) || get_str(&in, &old_run)))
		return error_set(e, -ERR_EDAMAGED, "the incarnation row of group %s is malformed", group->name);
	if (!r && view_equal(old_run, run)) {
		*ret = incarnation;
		return 0;
	}
	uint64_t above =
		cluster_counts_above(group->groups->cluster); /* nodes remember runs that a lost index counted */
	incarnation = (incarnation < above ? above : incarnation) + 1;
	r = put_u64(&value, &incarnation);
	if (!r)
		r = put_str(&value, &run);
	if (!r)
		r = fenced_put(group, view_buf(&row), view_buf(&value), deadline_ns, e);
	if (!r)
		*ret = incarnation;
	return r;
}

/* Those of whom was told before anybody came that they will not. */
static void take_absentees(struct cgroup *group)
{
	for (unsigned i = 0; i < ABSENTEES_MAX; i++) {
		struct absentee *absentee = &group->absentees[i];

		if (!*absentee->run || strcmp(absentee->run, group->run) != 0 || absentee->rank >= group->size)
			continue;
		struct crank *rank = &group->ranks[absentee->rank];
		rank->presence = RANK_FORGONE;
		memcpy(rank->node, absentee->node, sizeof(rank->node));
		memcpy(rank->gone, absentee->why, sizeof(rank->gone));
		*absentee->run = 0;
	}
}

/* Makes @run the group's run, unless it is already. One fiber at a time: others find it done or wait. */
static int enter_run(struct cgroup *group, const struct msg_g_join *join, uint64_t deadline_ns, struct error *e)
{
	uint64_t incarnation = 0;
	int r = 0;

	while (!r && group->entering)
		r = wait_at(&group->changed, deadline_ns);
	if (r || (group->run && view_equal(view_str(group->run), join->run)))
		return r;

	group->entering = true;
	r = count_run(group, join->run, deadline_ns, &incarnation, e);
	group->entering = false;
	char *run = r ? NULL : view_dup(join->run);
	struct crank *ranks = r ? NULL : calloc(join->size, sizeof(*ranks));
	if (!r && run && ranks) {
		if (group->run) {
			save_abandon_all(group, -ERR_ESTALEEPOCH, "a newer run of the group has begun", false);
			load_abandon_all(group, -ERR_ESTALEEPOCH, "a newer run of the group has begun");
		}
		free(group->run);
		free(group->ranks);
		group->run = run;
		group->ranks = ranks;
		group->size = join->size;
		group->n_here = 0;
		group->complete = false;
		group->incarnation = incarnation;
		steps_fini(&group->steps);
		steps_init(&group->steps);
		group->forgone = (struct forgone){ 0 };
		take_absentees(group);
	} else {
		free(run);
		free(ranks);
		r = r ? r : -ENOMEM;
	}
	wake_all(&group->changed);
	return r;
}

static int missing_error(const struct cgroup *group, int code, struct error *e)
{
	_cleanup_(buf_fini) struct buf names = { 0 };
	unsigned missing = 0;

	for (uint32_t i = 0; i < group->size; i++) {
		if (group->ranks[i].presence == RANK_HERE)
			continue;
		if (missing++ < NAMES_IN_ERROR)
			(void)buf_printf(&names, "%s%u", missing > 1 ? ", " : "", i);
	}
	return error_set(e, code, "group %s: %u of %u ranks did not join in time: %.*s%s", group->name, missing,
			 group->size, (int)names.len, names.ptr, missing > NAMES_IN_ERROR ? ", ..." : "");
}

/* 0, or -ERR_ERANK naming a rank that will not come to this run. */
static int check_coming(const struct cgroup *group, struct error *e)
{
	for (uint32_t i = 0; i < group->size; i++)
		if (group->ranks[i].presence == RANK_FORGONE)
			return error_set(e, -ERR_ERANK, "group %s: rank %u on node %s cannot join: %s", group->name, i,
					 group->ranks[i].node, group->ranks[i].gone);
	return 0;
}

static int wait_for_all(struct cgroup *group, uint64_t incarnation, uint64_t deadline_ns, struct error *e)
{
	while (!group->lost && group->incarnation == incarnation && !group->complete) {
		int r = check_coming(group, e);

		if (!r)
			r = wait_at(&group->changed, deadline_ns);
		if (r == -ETIMEDOUT)
			return missing_error(group, -ERR_ERANK, e);
		if (r)
			return r;
	}
	if (group->lost)
		return error_set(e, -EAGAIN, "group %s: another coordinator takes over", group->name);
	if (group->incarnation != incarnation)
		return error_set(e, -ERR_ESTALEEPOCH, "group %s: a newer run has begun", group->name);
	return 0;
}

static void enter_rank(struct cgroup *group, struct crank *rank, const struct msg_g_join *join)
{
	rank->presence = RANK_HERE;
	rank->joiner = join->joiner;
	memcpy(rank->node, join->node.ptr, join->node.len);
	rank->node[join->node.len] = 0;
	group->complete = ++group->n_here == group->size || group->complete;
	wake_all(&group->changed);
}

/* NULL, with -EAGAIN in @e: this node does not coordinate the group, or not for much longer. */
static struct cgroup *find_in_office(struct groups *groups, struct view tenant, struct view name, struct error *e)
{
	struct cgroup *group = coordinator_of(groups, tenant, name);

	if (group && !group->lost)
		return group;
	(void)error_set(e, -EAGAIN, "this node does not coordinate group %.*s", (int)name.len, name.ptr);
	return NULL;
}

static int serve_join(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
		      struct error *e)
{
	struct groups *groups = arg;
	struct msg_g_join join;
	int r = msg_g_join_decode(body, &join);

	if (r || join.node.len > NODE_NAME_MAX || join.rank >= join.size || join.size > GROUP_RANKS_MAX)
		return error_set(e, -EPROTO, "malformed G_JOIN from %s", from);
	struct cgroup *found = find_in_office(groups, join.tenant, join.group, e);
	if (!found || groups_open(groups, e))
		return -EAGAIN; /* the caller asks again, until the lease is free */
	_cleanup_(cleanup_cgroup_put) struct cgroup *group = cgroup_get(found);

	r = enter_run(group, &join, deadline_ns, e);
	if (r)
		return r;
	if (join.size != group->size)
		return error_set(e, -ERR_EMISMATCH, "group %s: rank %u says that there are %u ranks, others say %u",
				 group->name, join.rank, join.size, group->size);
	struct crank *rank = &group->ranks[join.rank];
	bool again = rank->presence == RANK_HERE && join.joiner && join.joiner == rank->joiner;
	if (rank->presence == RANK_HERE && !again)
		return error_set(e, -ERR_ERANK, "group %s: rank %u has joined twice, from node %s and node %.*s",
				 group->name, join.rank, rank->node, (int)join.node.len, join.node.ptr);
	if (!again)
		enter_rank(group, rank, &join);

	/* a little before the caller gives up, so that it hears who is missing */
	uint64_t incarnation = group->incarnation, now_ns = env_now(groups->env);
	uint64_t patience_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
	rank->n_asks++;
	r = wait_for_all(group, incarnation, deadline_ns - patience_ns / 10, e);
	rank = group->incarnation == incarnation ? &group->ranks[join.rank] : NULL; /* another run has others */
	if (rank)
		rank->n_asks--;
	if (r && rank && !rank->n_asks && rank->presence == RANK_HERE) {
		rank->presence = RANK_ABSENT;
		group->n_here--;
	}
	if (r)
		return r;
	struct msg_join_reply reply = { .incarnation = incarnation, .epoch = group->epoch };
	for (uint32_t i = 0; i < group->size; i++)
		reply.here += group->ranks[i].presence == RANK_HERE && !strcmp(group->ranks[i].node, from);
	return msg_join_reply_encode(&reply, answer);
}

/* It will not be heard of again in this run, nor wait for: a new run must join. */
static void lose_rank(struct cgroup *group, uint32_t number, const char *how)
{
	struct crank *rank = &group->ranks[number];

	rank->presence = RANK_LOST;
	snprintf(rank->gone, sizeof(rank->gone), "%s", how);
	group->n_here--;
	save_rank_lost(group, number, rank->gone);
	load_rank_lost(group, number, rank->gone);
	wake_all(&group->changed);
}

void coordinator_node_lost(struct groups *groups, const char *node)
{
	for (struct map_slot *s = map_first(&groups->coordinated); s; s = map_next(s)) {
		struct cgroup *group = map_value(s);

		for (uint32_t i = 0; i < group->size; i++)
			if (group->ranks[i].presence == RANK_HERE && !strcmp(group->ranks[i].node, node))
				lose_rank(group, i, "its node was lost");
	}
}

/* Does the message mean the rank that is here, and not one that has joined since? */
static bool means(const struct msg_g_lost *lost, const char *from, const struct crank *rank)
{
	return rank->presence == RANK_HERE && !strcmp(rank->node, from) &&
	       (lost->joiner == rank->joiner || (!lost->joiner && !lost->forgone));
}

/* It was refused on its own node, before it was here or just when it came. One that is here has joined since that was said. */
static void forgo_rank(struct cgroup *group, const struct msg_g_lost *lost, const char *from, const char *words)
{
	bool current = group->run && view_equal(view_str(group->run), lost->run) && lost->rank < group->size;
	struct crank *rank = current ? &group->ranks[lost->rank] : NULL;

	if (rank && rank->presence == RANK_HERE && !means(lost, from, rank))
		return;
	if (rank && rank->presence == RANK_HERE)
		lose_rank(group, lost->rank, words);
	if (rank) {
		rank->presence = RANK_FORGONE;
		snprintf(rank->node, sizeof(rank->node), "%s", from);
		snprintf(rank->gone, sizeof(rank->gone), "%s", words);
		wake_all(&group->changed);
		return;
	}
	if (!lost->run.len || lost->run.len > GROUP_NAME_MAX)
		return;
	struct absentee *absentee = NULL;
	for (unsigned i = 0; !absentee && i < ABSENTEES_MAX; i++)
		if (group->absentees[i].rank == lost->rank && view_equal(view_str(group->absentees[i].run), lost->run))
			absentee = &group->absentees[i]; /* its node and its client say it both */
	if (!absentee)
		absentee = &group->absentees[group->n_absentees++ % ABSENTEES_MAX];
	*absentee = (struct absentee){ .rank = lost->rank };
	memcpy(absentee->run, lost->run.ptr, lost->run.len);
	snprintf(absentee->node, sizeof(absentee->node), "%s", from);
	snprintf(absentee->why, sizeof(absentee->why), "%s", words);
}

static int serve_lost(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
		      struct error *e)
{
	struct groups *groups = arg;
	struct msg_g_lost lost;
	int r = msg_g_lost_decode(body, &lost);

	if (r)
		return error_set(e, -EPROTO, "malformed G_LOST from %s", from);
	struct cgroup *group = find_in_office(groups, lost.tenant, lost.group, e);
	if (lost.forgone) {
		_cleanup_(cleanup_mem) char *why = view_dup(lost.words);

		if (!group)
			return -EAGAIN;
		forgo_rank(group, &lost, from, why && *why ? why : "it was refused");
		return 0;
	}
	bool same_run = group && (lost.incarnation ? group->incarnation == lost.incarnation :
						     group->run && view_equal(view_str(group->run), lost.run));
	if (!same_run || lost.rank >= group->size || !means(&lost, from, &group->ranks[lost.rank]))
		return 0; /* an older run, or told already */
	_cleanup_(cleanup_mem) char *words = view_dup(lost.words);
	lose_rank(group, lost.rank, words && *words ? words : "it left");
	return 0;
}

static int serve_offer(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
		       struct error *e)
{
	struct groups *groups = arg;
	struct msg_g_offer offer;
	struct msg_save_reply reply = { 0 };
	int r = msg_g_offer_decode(body, &offer);

	if (r)
		return error_set(e, -EPROTO, "malformed G_OFFER from %s", from);
	struct cgroup *group = coordinator_find(groups, offer.tenant, offer.group, offer.incarnation);
	if (!group)
		return error_set(e, -ERR_ESTALEEPOCH,
				 "group %.*s: its incarnation %lu is over, or has another coordinator",
				 (int)offer.group.len, offer.group.ptr, (unsigned long)offer.incarnation);
	r = save_offer(group, &offer, &reply, e);
	return r ? r : msg_save_reply_encode(&reply, answer);
}

static int serve_fail(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
		      struct error *e)
{
	struct groups *groups = arg;
	struct msg_g_stage fail;
	int r = msg_g_stage_decode(body, &fail);

	if (r || !fail.code || fail.code > INT32_MAX)
		return error_set(e, -EPROTO, "malformed G_FAIL from %s", from);
	struct cgroup *group = coordinator_find(groups, fail.tenant, fail.group, fail.incarnation);
	_cleanup_(cleanup_mem) char *words = view_dup(fail.words);
	if (!group)
		return 0;
	return save_fail(group, fail.bundle, fail.step, -(int)fail.code, words ? words : "a rank cancelled it");
}

const struct csave *coordinator_save(const struct cgroup *group, uint64_t save_id)
{
	list_each(node, &group->saves) {
		const struct csave *save = list_entry(node, struct csave, link);

		if (save->save_id == save_id)
			return save;
	}
	return NULL;
}

const struct ended_save *coordinator_ended(const struct groups *groups, uint64_t save_id)
{
	for (size_t i = 0; save_id && i < ENDED_MAX; i++)
		if (groups->ended[i].save_id == save_id)
			return &groups->ended[i];
	return NULL;
}

bool coordinator_knows(const struct cgroup *group, uint64_t save_id)
{
	const struct ended_save *ended = coordinator_ended(group->groups, save_id);

	return coordinator_save(group, save_id) || (ended && ended->code != -ERR_ESTALEEPOCH);
}

/* It goes on without what that node holds of it. */
static bool leaves_out(const struct csave *save, const char *node)
{
	for (size_t i = 0; save->nodes && i < save->recipe->n_nodes; i++)
		if (save->nodes[i].lost && !strcmp(save->recipe->nodes[i], node))
			return true;
	return false;
}

/* Under way here, or ended lately. -ENOENT; -EAGAIN: this node does not coordinate the group (any more). */
static int find_end(struct groups *groups, const char *from, const struct msg_g_ask *ask, struct msg_g_end *ret)
{
	const struct cgroup *group = coordinator_of(groups, ask->tenant, ask->group);
	const struct csave *save = group ? coordinator_save(group, ask->save_id) : NULL;

	if (save) {
		*ret = (struct msg_g_end){ .stage = save->state < SAVE_DURABLE ? save->state : SAVE_STAGED,
					   .code = leaves_out(save, from) ? ERR_ENODE : 0 };
		return 0;
	}
	const struct ended_save *ended = coordinator_ended(groups, ask->save_id);
	/* overtaken, and coordinator again since then: it is not known yet; not since then: this office, too, is somebody else's by now */
	if (ended && (!group || ended->code != -ERR_ESTALEEPOCH || ended->epoch == group->epoch)) {
		*ret = (struct msg_g_end){ .stage = ended->state,
					   .code = (uint32_t)-ended->code,
					   .words = view_str(ended->words),
					   .version = ended->version };
		return 0;
	}
	*ret = (struct msg_g_end){ 0 };
	return !group ? -EAGAIN : group->recovering ? 0 : -ENOENT;
}

static int serve_ask(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
		     struct error *e)
{
	struct msg_g_ask ask;
	struct msg_g_end end;
	int r = msg_g_ask_decode(body, &ask);

	if (r)
		return error_set(e, r, "malformed G_ASK from %s", from);
	r = find_end(arg, from, &ask, &end);
	if (r)
		return error_set(e, r, "save %016" PRIx64 " is not under way here", ask.save_id);
	return msg_g_end_encode(&end, answer);
}

void coordinator_serve(struct groups *groups)
{
	cluster_serve(groups->cluster, MSG_G_ASK, serve_ask, groups);
	cluster_serve(groups->cluster, MSG_G_FAIL, serve_fail, groups);
	cluster_serve(groups->cluster, MSG_G_JOIN, serve_join, groups);
	cluster_serve(groups->cluster, MSG_G_LOST, serve_lost, groups);
	cluster_serve(groups->cluster, MSG_G_OFFER, serve_offer, groups);
}

void coordinator_stop(struct groups *groups)
{
	struct map_slot *slot;

	while ((slot = map_first(&groups->coordinated))) {
		_cleanup_(cleanup_cgroup_put) struct cgroup *group = cgroup_get(map_value(slot));

		save_abandon_all(group, -ESHUTDOWN, "its coordinator shuts down", false);
		/* what is captured and was not drained in time goes on under a successor, if other nodes hold it */
		save_abandon_all(group, -ERR_ESTALEEPOCH, "its coordinator shuts down", true);
		drop(group);
		give_lease_back(group);
	}
}
