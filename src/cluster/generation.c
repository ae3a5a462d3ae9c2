/*
 * cluster/generation.c: the cluster's generation, and that its store is no other's.
 *
 * Whoever joins compares what the index says with what the store holds (claim.c): the index's own claim must be there with its token, else
 * it is another store, or a copy from before it; and no other may be higher, else somebody else has used the store since. Both empty: a
 * new cluster, which the node with the engine begins. Each life of an engine claims the store anew, and looks from then on whether it still
 * has it: one that finds a higher claim that is not its own stops serving the index, for good.
 */
#include "cluster/inside.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/log.h"

#define AGAIN_MS	250 /* a node without an engine waits for the one that has it */
#define LOOK_AGAIN_MS	200 /* for an object that the store does not show yet */
#define CLAIM_TRIES_MAX 100
#define LIVES_KEPT	64   /* claims of former lives: an older copy of the index is known by them */
#define HOLD_LOOK_MS	2000 /* between two looks whether the store is still this engine's; below BACKEND_NAME_LATE_MS */
#define HOLD_ANSWER_MS	60000 /* for the store's answer to one */

_Static_assert(HOLD_LOOK_MS < BACKEND_NAME_LATE_MS, "a rebuild waits so long before it reads what others have made");

/* ---- words ---- */

static const char *where(const struct cluster *cluster)
{
	return cluster->backend->where ? cluster->backend->where : "store";
}

/* The claim of the index is durable before the index has it: without it, this is not the store that the index is of. */
static int no_such_store(struct cluster *cluster, struct claim_at own, struct claim_at highest, struct error *e)
{
	char only[64] = "";

	if (highest.generation)
		(void)snprintf(only, sizeof(only), ", only %s", claim_name(highest).key);
	return error_set(e, -ENODEV,
			 "the index is of generation %" PRIu32
			 ", but the store %s has no object %s%s: is it mounted? It "
			 "is empty, another one, or an older copy. Mount the right one, then start this node again; if "
			 "this one is right, move the index's folder away and run forebay meta rebuild",
			 own.generation, where(cluster), claim_name(own).key, only);
}

static int other_store(struct cluster *cluster, const struct claim *there, struct error *e)
{
	return error_set(
		e, -ENODEV,
		"%s is another store than the index is of, or an older copy of it: its object %s is of cluster %s. Mount "
		"the right one, then start this node again; if this one is right, move the index's folder away "
		"and run forebay meta rebuild",
		where(cluster), claim_name(there->at).key, there->by);
}

static int used_since(struct cluster *cluster, const struct claim *there, struct claim_at own, struct error *e)
{
	struct node_info at;

	cluster_engine(cluster, &at);
	return error_set(
		e, -ERR_EREBUILD,
		"the index is older than the store %s, which another engine has used since: of cluster %s (its object %s; "
		"this index is of %s). A store has one cluster: if the other one runs, use that, or end it; then run "
		"forebay meta rebuild on %s",
		where(cluster), there->by, claim_name(there->at).key, claim_name(own).key,
		*at.name ? at.name : "the node with the index");
}

static int taken_over(struct cluster *cluster, const struct claim *there, struct claim_at own, struct error *e)
{
	return error_set(
		e, -ERR_EREBUILD,
		"the store %s has been taken over by cluster %s: its object %s; this index is of %s. Nothing is read by "
		"it, published or deleted any more. End this cluster; or end the other one, start this one's "
		"nodes again, and run forebay meta rebuild",
		where(cluster), there->by, claim_name(there->at).key, claim_name(own).key);
}

/* ---- comparing ---- */

/* The index's claim is in the store, with its token: else -ENODEV. A name may come late, and another claim may be marked meanwhile. */
static int find_store(struct cluster *cluster, struct mark *ret_mark, struct claim_at *ret_highest,
		      uint64_t deadline_ns, struct error *e)
{
	for (;;) {
		struct mark again = { 0 };
		struct claim claim = { 0 };
		struct error why = { 0 };
		int r = mark_read(cluster, ret_mark, deadline_ns, e);

		if (r)
			return r;
		const struct claim_at own = ret_mark->at;
		if (own.generation)
			r = claim_read(cluster, own, &claim, deadline_ns, &why);
		if (r && r != -ENOENT)
			return error_set(e, r, "%s", why.text);
		int listed = claim_highest(cluster, ret_highest, deadline_ns, e);
		if (listed)
			return listed;
		if (!r && own.generation && !mark_owns(ret_mark, &claim))
			return other_store(cluster, &claim, e);
		if (!r) {
			if (claim_compare(*ret_highest, own) < 0)
				*ret_highest = own;
			return 0;
		}
		r = mark_read(cluster, &again, deadline_ns, e);
		if (r)
			return r;
		if (!claim_compare(again.at, own))
			return no_such_store(cluster, own, *ret_highest, e);
	}
}

int cluster_generations(struct cluster *cluster, uint64_t deadline_ns, uint32_t *ret_engine, uint32_t *ret_backend,
			struct error *e)
{
	CHECK_MAGIC(cluster, CLUSTER_MAGIC);
	struct mark mark = { 0 };
	struct claim_at highest = { 0 };
	int r = find_store(cluster, &mark, &highest, deadline_ns, e);

	if (r)
		return r;
	*ret_engine = mark.at.generation;
	*ret_backend = highest.generation;
	return 0;
}

/* ---- claiming ---- */

static int begin(struct cluster *cluster, struct mark *mark, uint64_t deadline_ns, struct error *e)
{
	const struct claim_at first = { .generation = 1 };
	int r = *mark->engine ? 0 : mark_new_token(cluster, mark->engine, deadline_ns, e);

	if (!r)
		r = claim_put(cluster, first, mark->engine, deadline_ns, e);
	if (r == BACKEND_EXISTS)
		return error_set(
			e, -ERR_EREBUILD,
			"the meta engine is empty, but the store has generation 1 of another: run forebay meta "
			"rebuild on %s",
			cluster->node);
	if (!r)
		r = mark_write(cluster, first, mark->engine, deadline_ns, e);
	if (r)
		return r;
	cluster->held = first;
	cluster->claimed = true;
	return 0;
}

static void forget_life(struct cluster *cluster, struct claim_at at, uint64_t deadline_ns)
{
	if (at.life <= LIVES_KEPT)
		return;
	at.life -= LIVES_KEPT;
	_cleanup_(cleanup_backend_call_free) struct backend_call *call =
		backend_call_new(BACKEND_DELETE, claim_name(at).key);
	if (call)
		(void)backend_call_run(cluster->backend, &call, deadline_ns, NULL);
}

/* A store that cannot be written can be read all the same, and room made in it: then this life goes on under the claim of before. */
static bool is_unwritable(int r)
{
	return r == -ENOSPC || r == -EDQUOT || r == -EROFS;
}

static int go_on_unclaimed(struct cluster *cluster, struct claim_at held, const struct error *why)
{
	logm(LOG_WARN, "cluster.unclaimed", "words=\"%s\"", why->text);
	cluster->held = held;
	cluster->claimed = true;
	return 0;
}

/* A new life of the engine: @held is the highest claim, and this engine's. */
static int claim(struct cluster *cluster, const struct mark *mark, struct claim_at held, uint64_t deadline_ns,
		 struct error *e)
{
	char token[CLAIM_TOKEN_BYTES];
	struct error why = { 0 };
	int r = 0;

	if (claim_compare(held, mark->at)) { /* a start that was cut had put it: power lost now may take it along */
		r = claim_put(cluster, held, mark->engine, deadline_ns, &why);
		if (is_unwritable(r))
			return go_on_unclaimed(cluster, held, &why);
		if (r)
			return error_set(e, r < 0 ? r : -EAGAIN, "%s: %s", claim_name(held).key,
					 r < 0 ? why.text : "another engine claims the store at this moment");
		r = mark_write(cluster, held, mark->engine, deadline_ns, e);
	}
	if (!r)
		r = mark_new_token(cluster, token, deadline_ns, e);
	if (r)
		return r;
	struct claim_at next = { held.generation, held.life + 1 };
	r = claim_put(cluster, next, token, deadline_ns, &why);
	if (r == BACKEND_EXISTS)
		return error_set(e, -EAGAIN, "another engine claims the store %s at this moment: %s is there",
				 where(cluster), claim_name(next).key);
	if (is_unwritable(r))
		return go_on_unclaimed(cluster, held, &why);
	if (!r) {
		r = mark_write(cluster, next, token, deadline_ns, &why);
		forget_life(cluster, next, deadline_ns);
	}
	if (r && !is_unwritable(r))
		return error_set(e, r, "%s", why.text);
	cluster->held = next;
	cluster->claimed = true;
	return 0;
}

int cluster_raise_generation(struct cluster *cluster, uint64_t deadline_ns, uint32_t *ret, struct error *e)
{
	CHECK_MAGIC(cluster, CLUSTER_MAGIC);
	struct claim_at highest = { 0 };
	struct mark mark = { 0 };
	int r = mark_read(cluster, &mark, deadline_ns, e);

	/* One that was begun and not marked is gone on with, so that whoever looks meanwhile knows all of its objects. */
	if (r == -ERR_EDAMAGED || (!r && (!*mark.engine || !strcmp(mark.engine, mark.token))))
		r = mark_new_token(cluster, mark.engine, deadline_ns, e);
	if (!r)
		r = claim_highest(cluster, &highest, deadline_ns, e);
	if (r)
		return r;
	memcpy(cluster->raised, mark.engine, sizeof(mark.engine));
	highest.life = 0;
	if (highest.generation < cluster->generation)
		highest.generation = cluster->generation;
	for (int i = 0; i < CLAIM_TRIES_MAX && highest.generation < UINT32_MAX; i++) {
		highest.generation++;
		r = claim_put(cluster, highest, mark.engine, deadline_ns, e);
		if (r == BACKEND_EXISTS)
			continue;
		if (!r)
			*ret = highest.generation;
		return r;
	}
	return error_set(e, -EAGAIN, "others raise the generation all the time");
}

int cluster_mark_generation(struct cluster *cluster, uint32_t generation, uint64_t deadline_ns, struct error *e)
{
	CHECK_MAGIC(cluster, CLUSTER_MAGIC);
	CHECK(*cluster->raised);
	return mark_write(cluster, (struct claim_at){ .generation = generation }, cluster->raised, deadline_ns, e);
}

/* ---- joining ---- */

static int must_rebuild(struct cluster *cluster, uint32_t engine, uint32_t backend, struct error *e)
{
	struct node_info at; /* it has just answered, so that its name is known */

	cluster_engine(cluster, &at);
	if (!engine)
		return error_set(e, -ERR_EREBUILD,
				 "the meta engine is empty, but the store has generation %" PRIu32
				 ": run forebay meta rebuild on %s",
				 backend, at.name);
	return error_set(e, -ERR_EREBUILD,
			 "the meta engine is of generation %" PRIu32 ", but the store of %" PRIu32
			 ": run forebay meta rebuild on %s",
			 engine, backend, at.name);
}

/* 0: no claim is higher than the index's, or it is one that this engine has begun. */
static int check_highest(struct cluster *cluster, const struct mark *mark, struct claim_at highest,
			 uint64_t deadline_ns, struct error *e)
{
	struct claim claim = { 0 };

	if (highest.generation > mark->at.generation)
		return must_rebuild(cluster, mark->at.generation, highest.generation, e);
	if (!claim_compare(highest, mark->at))
		return 0;
	int r = claim_read(cluster, highest, &claim, deadline_ns, e);
	return r || mark_owns(mark, &claim) ? r : used_since(cluster, &claim, mark->at, e);
}

static int join(struct cluster *cluster, uint64_t deadline_ns, struct error *e)
{
	struct mark mark = { 0 };
	struct claim_at highest = { 0 };
	int r = find_store(cluster, &mark, &highest, deadline_ns, e);

	if (r)
		return r;
	if (!mark.at.generation && highest.generation <= 1 && !cluster->meta_is_remote)
		r = begin(cluster, &mark, deadline_ns, e);
	else if (!mark.at.generation)
		r = must_rebuild(cluster, 0, highest.generation, e);
	else
		r = check_highest(cluster, &mark, highest, deadline_ns, e);
	if (!r && mark.at.generation) {
		cluster->held = highest;
		if (!cluster->meta_is_remote && !cluster->claimed)
			r = claim(cluster, &mark, highest, deadline_ns, e);
	}
	if (!r)
		cluster->generation = cluster->held.generation;
	return r;
}

int generation_join(struct cluster *cluster, uint64_t deadline_ns, struct error *e)
{
	cluster->generation =
		0; /* one that a try before has read may be overtaken: calls with it would be fenced for ever */
	for (;;) {
		int r = join(cluster, deadline_ns, e);

		if (r != -ERR_EREBUILD || !cluster->meta_is_remote)
			return r;
		uint64_t again_ns = env_in_ms(cluster->env, AGAIN_MS); /* the engine's node may be about to begin */
		if (again_ns >= deadline_ns || fiber_sleep_until(again_ns))
			return r;
	}
}

/* ---- holding ---- */

/* A claim is higher than the one that was seen last: of a later life of this engine, of a rebuild of its own, or another's. */
static int judge(struct cluster *cluster, struct claim_at highest, uint64_t deadline_ns, struct error *e)
{
	struct claim claim = { 0 };
	struct mark mark = { 0 };
	int r = claim_read(cluster, highest, &claim, deadline_ns, e);

	if (!r)
		r = mark_read(cluster, &mark, deadline_ns, e);
	if (r)
		return r;
	if (!mark_owns(&mark, &claim)) {
		(void)taken_over(cluster, &claim, mark.at, e);
		return HOLD_TAKEN;
	}
	if (claim_compare(highest, cluster->held) > 0)
		cluster->held = highest;
	return 0;
}

/* The engine's node believes its index no more, nor does anybody who asks it. */
static void give_up(struct cluster *cluster, const struct error *why)
{
	if (cluster->meta_is_remote || cluster->taken.code)
		return;
	cluster->taken = *why;
	cluster->meta->refusal = &cluster->taken;
	logm(LOG_ERROR, "cluster.store-taken", "words=\"%s\"", why->text);
}

static int look(struct cluster *cluster, uint64_t deadline_ns, struct error *e)
{
	struct claim_at highest = { 0 };
	int r = claim_highest(cluster, &highest, deadline_ns, e);

	if (r)
		return r;
	int above = claim_compare(highest, cluster->held);
	return above > 0 ? judge(cluster, highest, deadline_ns, e) : above < 0 ? HOLD_MISSING : 0;
}

int cluster_hold(struct cluster *cluster, uint64_t deadline_ns, struct error *e)
{
	CHECK_MAGIC(cluster, CLUSTER_MAGIC);
	uint64_t shown_ns = env_in_ms(cluster->env, BACKEND_NAME_LATE_MS);
	struct error why = { 0 };

	if (!cluster->joined)
		return 0; /* a rebuild's node, which has the highest claim itself */
	int r = cluster->taken.code ? HOLD_TAKEN : look(cluster, deadline_ns, &why);
	while (r == HOLD_MISSING && env_now(cluster->env) < shown_ns) {
		uint64_t again_ns = env_in_ms(cluster->env, LOOK_AGAIN_MS);

		if (again_ns >= deadline_ns)
			break;
		r = fiber_sleep_until(again_ns);
		r = r ? error_set(&why, r, "the store's claims: cancelled") : look(cluster, deadline_ns, &why);
	}
	if (r == HOLD_TAKEN) {
		give_up(cluster, &why);
		return error_set(e, -ERR_EREBUILD, "%s", cluster->taken.code ? cluster->taken.text : why.text);
	}
	if (r == HOLD_MISSING)
		return error_set(e, -ENODEV, "the store %s has no object %s any more: is it still mounted?",
				 where(cluster), claim_name(cluster->held).key);
	return r ? error_set(e, r, "%s", why.text) : 0;
}

int cluster_taken(const struct cluster *cluster, struct error *e)
{
	CHECK_MAGIC(cluster, CLUSTER_MAGIC);
	return cluster->taken.code ? error_set(e, cluster->taken.code, "%s", cluster->taken.text) : 0;
}

int hold_keep(void *arg)
{
	struct cluster *cluster = arg;
	int r = 0;

	while (!r && !cluster->taken.code) {
		r = fiber_sleep_until(env_in_ms(cluster->env, HOLD_LOOK_MS));
		if (!r && cluster_hold(cluster, env_in_ms(cluster->env, HOLD_ANSWER_MS), NULL) == -ECANCELED)
			r = -ECANCELED;
	}
	return 0;
}
