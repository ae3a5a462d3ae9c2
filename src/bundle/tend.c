/*
 * bundle/tend.c: what a daemon does beside its calls: rules after publications, and collection, round after round, on the daemon that
 * holds the lease for it. And the same at once, for an operator.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/log.h"
#include "bundle/inside.h"

#define STIRRING_MAX	      1024 /* bundles that wait for their rule; the others are met by the next round */
#define TEND_MS		      60000
#define COLLECT_LEASE_MS      10000
#define COLLECT_BUNDLE_MS     60000
#define COLLECT_DELETES_PER_S 200
#define COLLECT_PAUSE_MS      20 /* between two bundles */
#define COLLECT_PASSES_MAX    16 /* of one bundle, at once */
#define COLLECT_KEY	      "x/collect"
#define ANY_BUNDLE	      "-" /* for the rules of names alone */
/*
 * Beside what the index knows to have changed, all that the store has is looked at now and then: a slot or a pack may come late, of which
 * no row tells.
 */
#define SWEEP_BUNDLES 8	      /* in a round */
#define SWEEP_MS      3600000 /* from the end of a sweep to the next */

struct stirred {
	struct list link;
	char *tenant, *bundle;
};

static void stirred_free(struct stirred *stirred)
{
	if (!stirred)
		return;
	free(stirred->tenant);
	free(stirred->bundle);
	free(stirred);
}

CLEANUP_OF(struct stirred *, stirred_free);

static bool is_stirring(const struct bundles *bundles, const struct place *place)
{
	list_each(node, &bundles->stirring) {
		struct stirred *stirred = list_entry(node, struct stirred, link);

		if (view_equal(view_str(stirred->bundle), place->bundle) &&
		    view_equal(view_str(stirred->tenant), place->tenant))
			return true;
	}
	return false;
}

void bundles_stir(struct bundles *bundles, const struct place *place)
{
	_cleanup_(cleanup_stirred_free) struct stirred *stirred = NULL;

	if (!bundles->started || bundles->n_stirring == STIRRING_MAX || is_stirring(bundles, place))
		return;
	stirred = calloc(1, sizeof(*stirred));
	if (!stirred)
		return; /* the next round meets it */
	stirred->tenant = view_dup(place->tenant);
	stirred->bundle = view_dup(place->bundle);
	if (!stirred->tenant || !stirred->bundle)
		return;
	list_append(&bundles->stirring, &stirred->link);
	stirred = NULL;
	bundles->n_stirring++;
	wake_all(&bundles->stirred);
}

void tend_fini(struct bundles *bundles)
{
	list_each(node, &bundles->stirring)
		stirred_free(list_entry(node, struct stirred, link));
	list_init(&bundles->stirring);
	condemned_fini(bundles);
	map_fini(&bundles->absent);
	bundle_walk_fini(&bundles->sweep);
}

static int tend(void *arg)
{
	struct bundles *bundles = arg;
	int r = 0;

	while (!r) {
		if (list_empty(&bundles->stirring)) {
			r = wait_at(&bundles->stirred, env_in_ms(bundles->env, IDLE_MS));
			r = r == -ETIMEDOUT ? 0 : r;
			continue;
		}
		_cleanup_(cleanup_stirred_free) struct stirred *stirred =
			list_entry(bundles->stirring.next, struct stirred, link);
		struct error e = { 0 };
		struct place place;
		uint64_t deleted = 0;

		list_remove(&stirred->link);
		bundles->n_stirring--;
		if (place_init(view_str(stirred->tenant), view_str(stirred->bundle), &place, NULL))
			continue;
		if (rule_apply(bundles, &place, &deleted, env_in_ms(bundles->env, TEND_MS), &e))
			logm(LOG_DEBUG, "bundle.rule-failed", "bundle=%s words=\"%s\"", stirred->bundle, e.text);
		bundles->counts.rule_versions += deleted;
		r = fiber_cancelled() ? -ECANCELED : 0;
	}
	return 0;
}

/* ---- collection ---- */

static void add_counts(struct collect_counts *sum, const struct collect_counts *more)
{
	sum->bundles += more->bundles;
	sum->rule_versions += more->rule_versions;
	sum->slots += more->slots;
	sum->found += more->found;
	sum->freed += more->freed;
	sum->freed_bytes += more->freed_bytes;
	sum->folded += more->folded;
	sum->unclear += more->unclear;
	sum->missing += more->missing;
}

void bundles_counts(const struct bundles *bundles, struct collect_counts *ret)
{
	*ret = bundles->counts;
}

struct round {
	struct bundles *bundles;
	size_t prefix; /* bytes of a row's key before the names */
	struct view only;
	bool at_once;
	bool sweep; /* bundles that have not changed, too: what was counted of them is not counted again */
	void (*unclear)(void *arg, const char *key);
	void *arg;
	uint64_t deadline_ns;
	struct error *e;
	struct collect_counts counts;
};

/* Until nothing is left to do, at once; else what one pass does. */
static int collect_bundle(struct round *round, const struct place *place, struct collecting *c)
{
	struct bundles *bundles = round->bundles;
	int r = rule_apply(bundles, place, &c->counts.rule_versions, c->deadline_ns, c->e);

	c->counts.bundles = 1;
	if (!r)
		r = collect_pass(c);
	for (int i = 0; round->at_once && r > 0 && i < COLLECT_PASSES_MAX; i++) {
		uint64_t missing = c->counts.missing; /* each pass counts them anew */

		if (r == COLLECT_LATER)
			r = fiber_sleep_until(env_now(bundles->env) + bundles->grace_ns);
		if (r >= 0) {
			c->counts.missing = 0;
			r = collect_pass(c);
		}
		c->counts.missing = missing > c->counts.missing ? missing : c->counts.missing;
	}
	return r < 0 ? r : 0;
}

static int visit(struct round *round, const struct place *place)
{
	struct bundles *bundles = round->bundles;
	struct error e = { 0 };
	struct collecting c = { .bundles = bundles,
				.place = place,
				.thorough = round->at_once,
				.pause_ns = round->at_once ? 0 : 1000 * NS_PER_MS / COLLECT_DELETES_PER_S,
				.deadline_ns = round->at_once ? round->deadline_ns :
								env_in_ms(bundles->env, COLLECT_BUNDLE_MS),
				.e = &e };
	int r = collect_bundle(round, place, &c);

	for (const char *key = (const char *)c.unclear.ptr;
	     round->unclear && key < (const char *)c.unclear.ptr + c.unclear.len; key += strlen(key) + 1)
		round->unclear(round->arg, key);
	buf_fini(&c.unclear);
	if (round->sweep)
		c.counts.unclear = c.counts.missing = 0;
	add_counts(&round->counts, &c.counts);
	add_counts(&bundles->counts, &c.counts);
	if (round->at_once || r == -ECANCELED)
		return r ? error_set(round->e, r, "%s", e.text) : 0;
	if (r)
		logm(LOG_DEBUG, "collect.failed", "bundle=%.*s words=\"%s\"", (int)place->bundle.len,
		     (const char *)place->bundle.ptr, e.text);
	r = lease_hold(bundles, COLLECT_KEY, COLLECT_LEASE_MS, env_in_ms(bundles->env, COLLECT_LEASE_MS), NULL);
	return r ? r : fiber_sleep_until(env_in_ms(bundles->env, COLLECT_PAUSE_MS));
}

/* A bundle that the index has. In the background those that have not changed are passed by. */
static int visit_row(void *arg, struct view key, struct view value)
{
	struct round *round = arg;
	struct row_bundle row;
	struct place place;

	view_take(&key, 2); /* "b/" */
	const uint8_t *end = key.len ? memchr(key.ptr, 0, key.len) : NULL;
	if (!end || row_bundle_decode(value, &row) != 0)
		return 0;
	struct view tenant = view_take(&key, (size_t)(end - key.ptr));
	view_take(&key, 1);
	if ((round->only.len && !view_equal(key, round->only)) || place_init(tenant, key, &place, NULL))
		return 0;
	if (!round->at_once && row.changes == row.collected)
		return 0;
	return visit(round, &place);
}

/* Bundles that the store alone has: of the writer of the first slot nothing came into the index. */
static int visit_unknown(struct round *round, const struct place *place)
{
	_cleanup_(cleanup_mem) struct bundle_walk *walk = calloc(1, sizeof(*walk));
	struct row_bundle row;
	int r = 0;

	if (!walk)
		return no_memory(round->e);
	/* of the tenant's, "t/<tenant>/b/": without the name that stands for all */
	(void)snprintf(walk->prefix, sizeof(walk->prefix), "%.*s",
		       (int)strlen(place->prefix) - (round->only.len ? 0 : (int)strlen(ANY_BUNDLE "/")), place->prefix);
	while (!r && !(r = bundle_walk_next(round->bundles, walk, round->deadline_ns, round->e))) {
		r = row_read_bundle(round->bundles, &walk->place, &row, round->deadline_ns, round->e);
		if (r == ROW_ABSENT)
			r = visit(round, &walk->place);
	}
	bundle_walk_fini(walk);
	return r == WALK_ENDED ? 0 : r;
}

int tend_sweep(struct bundles *bundles)
{
	struct round round = { .bundles = bundles, .sweep = true };
	int r = 0;

	if (env_now(bundles->env) < bundles->sweep_ns)
		return 0;
	for (int i = 0; !r && i < SWEEP_BUNDLES; i++) {
		r = bundle_walk_next(bundles, &bundles->sweep, env_in_ms(bundles->env, COLLECT_BUNDLE_MS), NULL);
		if (!r)
			r = visit(&round, &bundles->sweep.place);
	}
	if (r == WALK_ENDED) {
		bundles->sweep.key[0] = 0;
		bundles->sweep_ns = env_in_ms(bundles->env, SWEEP_MS);
		r = 0;
	}
	return r;
}

int bundles_collect(struct bundles *bundles, struct view tenant, struct view bundle, uint64_t deadline_ns,
		    void (*unclear)(void *arg, const char *key), void *arg, struct collect_counts *ret, struct error *e)
{
	CHECK_MAGIC(bundles, BUNDLES_MAGIC);
	struct round round = { .bundles = bundles,
			       .only = bundle,
			       .at_once = true,
			       .unclear = unclear,
			       .arg = arg,
			       .deadline_ns = deadline_ns,
			       .e = e };
	const struct row_key prefix = tenant_prefix('b', tenant);
	struct place place;

	int r = place_init(tenant, bundle.len ? bundle : view_str(ANY_BUNDLE), &place, e); /* checks the names */
	if (r)
		return r;
	r = rows_each(bundles, row_key_view(&prefix), (struct view){ 0 }, visit_row, &round, deadline_ns, e);
	if (!r)
		r = visit_unknown(&round, &place);
	if (!r && bundle.len && !round.counts.bundles)
		r = error_set(e, -ENOENT, "there is no bundle %.*s", (int)bundle.len, (const char *)bundle.ptr);
	if (!r)
		*ret = round.counts;
	return r;
}

static int collect_rounds(void *arg)
{
	struct bundles *bundles = arg;
	int r = fiber_sleep_until(env_now(bundles->env) + bundles->round_ns);

	while (!r) {
		struct round round = { .bundles = bundles };
		uint64_t deadline_ns = env_in_ms(bundles->env, COLLECT_LEASE_MS);

		if (lease_hold(bundles, COLLECT_KEY, COLLECT_LEASE_MS, deadline_ns, NULL) == 0 &&
		    rows_each(bundles, view_str("b/"), (struct view){ 0 }, visit_row, &round,
			      env_in_ms(bundles->env, COLLECT_BUNDLE_MS), NULL) == 0)
			(void)tend_sweep(bundles);
		r = fiber_sleep_until(env_now(bundles->env) + bundles->round_ns);
	}
	return 0;
}

/* ---- starting ---- */

int bundles_start(struct bundles *bundles)
{
	CHECK_MAGIC(bundles, BUNDLES_MAGIC);
	if (bundles->started)
		return 0;
	nursery_init(&bundles->flows, bundles->env->loop);
	bundles->started = true;
	int r = fiber_start(&bundles->flows, "readers", readers_keep, bundles);
	if (!r)
		r = fiber_start(&bundles->flows, "rules", tend, bundles);
	if (!r)
		r = fiber_start(&bundles->flows, "collect", collect_rounds, bundles);
	return r;
}

void bundles_stop(struct bundles *bundles)
{
	if (!bundles)
		return;
	nursery_fini(&bundles->rebuilds);
	if (!bundles->started)
		return;
	nursery_fini(&bundles->flows);
	readers_stop(bundles);
	bundles->started = false;
}
