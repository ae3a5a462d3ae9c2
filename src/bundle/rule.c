/*
 * bundle/rule.c: which versions a bundle keeps. A rule is an object of its own, r/<k>; the highest k is in force.
 *
 * As a label's move, a rule is announced in the bundle's row, put if absent, and taken over into the row. So whoever finds an announced
 * one looks at one key; and the next who sets a rule puts his under that key, and of the two exactly one wins.
 *
 * In force: the newest keep_last versions stay, every version whose number is divisible by keep_every, every labelled one, and what is
 * read or pinned for the time being. keep_last 0: all stay. While one of the newest has no root that can be read, all stay, too.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/log.h"
#include "base/point.h"
#include "bundle/inside.h"

#define RULE_DELETES_MAX 256 /* at a time: a rule on a long series is applied bit by bit */
#define RULE_LOOKS_MAX	 16  /* at what it keeps, before it lets something go */

struct rule {
	uint64_t k, keep_last, keep_every, id;
};

/* 0 or ROW_ABSENT. */
static int read_rule(struct bundles *bundles, const struct place *place, uint64_t k, struct rule *ret,
		     uint64_t deadline_ns, struct error *e)
{
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	struct error missing = { 0 };
	struct record_head head;
	struct rec_rule rec;
	struct view body;
	char key[KEY_BYTES];

	rule_key(place, k, key);
	int r = object_open(bundles, key, RECORD_SMALL_MAX, &bytes, &head, &body, deadline_ns, &missing);
	if (r == -ENOENT)
		return ROW_ABSENT;
	if (r)
		return error_set(e, r, "%s", missing.text);
	if (head.kind != RECORD_RULE || head.number != k || rec_rule_decode(body, &rec) != 0 ||
	    !view_equal(rec.bundle, place->bundle) || !view_equal(rec.tenant, place->tenant))
		return error_set(e, -ERR_EDAMAGED, "%s: it is not the rule that its key says", key);
	r = object_settle(bundles, key, view_buf(&bytes), deadline_ns, e);
	*ret = (struct rule){ .k = k, .keep_last = rec.keep_last, .keep_every = rec.keep_every, .id = head.save_id };
	return r;
}

static int put_rule(struct bundles *bundles, const struct place *place, const struct rule *rule, uint64_t deadline_ns,
		    struct error *e)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	const struct rec_rule rec = { .tenant = place->tenant,
				      .bundle = place->bundle,
				      .keep_last = rule->keep_last,
				      .keep_every = rule->keep_every };
	const struct record_head head = { .kind = RECORD_RULE,
					  .save_id = rule->id,
					  .number = rule->k,
					  .generation = cluster_generation(bundles->cluster) };
	char key[KEY_BYTES];

	if (rec_rule_encode(&rec, &body))
		return no_memory(e);
	rule_key(place, rule->k, key);
	return object_put(bundles, key, &head, view_buf(&body), true, deadline_ns, e);
}

/* Into the row, unless a higher one is there. META_CONFLICT. */
static int try_take(struct bundles *bundles, const struct place *place, const struct rule *rule, uint64_t deadline_ns,
		    struct error *e)
{
	_cleanup_(change_fini) struct change change = { 0 };
	int r = change_begin(bundles, place, NULL, &change, deadline_ns, e);

	if (r)
		return r;
	if (rule->k > change.row.rule) {
		change.row.rule = rule->k;
		change.row.keep_last = rule->keep_last;
		change.row.keep_every = rule->keep_every;
	}
	if (change.row.pending_rule <= change.row.rule)
		change.row.pending_rule = 0;
	return change_commit(&change, deadline_ns, e);
}

/* Until it is there, or a higher one. */
static int take(struct bundles *bundles, const struct place *place, const struct rule *rule, uint64_t deadline_ns,
		struct error *e)
{
	int r = META_CONFLICT;

	for (int i = 0; r == META_CONFLICT; i++) {
		r = change_again(bundles, place, i, e);
		if (!r)
			r = try_take(bundles, place, rule, deadline_ns, e);
	}
	return r;
}

int rule_take(struct bundles *bundles, const struct place *place, uint64_t k, uint64_t deadline_ns, struct error *e)
{
	struct rule rule;
	int r = read_rule(bundles, place, k, &rule, deadline_ns, e);

	if (r)
		return r == ROW_ABSENT ? 0 : r;
	return take(bundles, place, &rule, deadline_ns, e);
}

int rule_rest(struct bundles *bundles, const struct place *place, uint64_t k, uint64_t deadline_ns, struct error *e)
{
	const struct rule rule = { .k = k };

	return take(bundles, place, &rule, deadline_ns, e);
}

/* Which k is to be put next: announced by now, by us or by somebody before us. META_CONFLICT. */
static int announce(struct bundles *bundles, const struct place *place, uint64_t *ret_k, uint64_t deadline_ns,
		    struct error *e)
{
	_cleanup_(change_fini) struct change change = { 0 };
	int r = change_begin(bundles, place, NULL, &change, deadline_ns, e);

	if (r)
		return r;
	if (!change.exists || !change.row.last)
		return error_set(e, -ENOENT, "there is no bundle %.*s", (int)place->bundle.len,
				 (const char *)place->bundle.ptr);
	*ret_k = change.row.pending_rule ? change.row.pending_rule : change.row.rule + 1;
	if (change.row.pending_rule)
		return 0;
	change.row.pending_rule = *ret_k;
	return change_commit(&change, deadline_ns, e);
}

/* META_CONFLICT: another's rule came first. */
static int try_set(struct bundles *bundles, const struct place *place, struct rule *rule, uint64_t deadline_ns,
		   struct error *e)
{
	struct rule there;
	int r = announce(bundles, place, &rule->k, deadline_ns, e);

	if (!r)
		r = put_rule(bundles, place, rule, deadline_ns, e);
	if (r < 0 || r == META_CONFLICT)
		return r; /* BACKEND_EXISTS is the same number: somebody has put one, ours by a try before, or another's */
	point_reached(POINT_RULE_PUT);
	r = rule_take(bundles, place, rule->k, deadline_ns, e);
	if (!r)
		r = read_rule(bundles, place, rule->k, &there, deadline_ns, e);
	if (r)
		return r < 0 ? r : META_CONFLICT;
	return there.id == rule->id ? 0 : META_CONFLICT;
}

int bundle_retain(struct bundles *bundles, struct view tenant, struct view bundle, uint64_t keep_last,
		  uint64_t keep_every, uint64_t deadline_ns, struct error *e)
{
	CHECK_MAGIC(bundles, BUNDLES_MAGIC);
	struct rule rule = { .keep_last = keep_last, .keep_every = keep_every };
	struct place place;

	int r = place_init(tenant, bundle, &place, e);
	if (r)
		return r;
	if (!keep_last && keep_every)
		return error_set(e, -EINVAL, "a rule keeps at least the last version: each %" PRIu64 "th alone is none",
				 keep_every);
	bundles->env->ops->random(bundles->env, &rule.id, sizeof(rule.id));
	r = META_CONFLICT;
	for (int i = 0; r == META_CONFLICT; i++) {
		r = change_again(bundles, &place, i, e);
		if (!r)
			r = try_set(bundles, &place, &rule, deadline_ns, e);
	}
	bundles_stir(bundles, &place);
	return r;
}

/* ---- applying ---- */

struct numbers {
	uint64_t *all;
	size_t n, prefix;
	struct error *e;
};

static void numbers_fini(struct numbers *numbers)
{
	free(numbers->all);
}

static int numbers_add(struct numbers *numbers, uint64_t number)
{
	if (!(numbers->n & (numbers->n - 1))) {
		uint64_t *more = reallocarray(numbers->all, numbers->n ? 2 * numbers->n : 1, sizeof(*more));

		if (!more)
			return no_memory(numbers->e);
		numbers->all = more;
	}
	numbers->all[numbers->n++] = number;
	return 0;
}

static int take_live(void *arg, struct view key, struct view value)
{
	struct numbers *numbers = arg;
	struct row_version row;
	uint64_t number;

	view_take(&key, numbers->prefix);
	if (number_decode(key, 20, &number) != 0 || row_version_decode(value, &row) != 0)
		return row_damaged(numbers->e, "a version");
	return row.state == ROW_LIVE ? numbers_add(numbers, number) : 0;
}

static int take_labelled(void *arg, struct view key, struct view value)
{
	struct numbers *numbers = arg;
	struct row_label row;

	if (row_label_decode(value, &row) != 0)
		return row_damaged(numbers->e, "a label");
	return row.number ? numbers_add(numbers, row.number) : 0;
}

static int by_number(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static void numbers_sort(struct numbers *numbers)
{
	if (numbers->n)
		qsort(numbers->all, numbers->n, sizeof(*numbers->all), by_number);
}

/* Of sorted ones. */
static bool has(const struct numbers *numbers, uint64_t number)
{
	return numbers->n && bsearch(&number, numbers->all, numbers->n, sizeof(number), by_number);
}

static int read_numbers(struct bundles *bundles, const struct place *place, char kind, rows_fn each,
			struct numbers *numbers, uint64_t deadline_ns, struct error *e)
{
	const struct row_key prefix = rows_prefix(kind, place);

	numbers->prefix = prefix.len;
	numbers->e = e;
	return rows_each(bundles, row_key_view(&prefix), (struct view){ 0 }, each, numbers, deadline_ns, e);
}

/* What is read, labelled or pinned just now, or is gone already, is passed by; what is damaged, too, and told in the end. DELETE_NOT_BEGUN. */
static int delete_by_rule(struct bundles *bundles, const struct place *place, uint64_t number,
			  const struct row_bundle *row, uint64_t *deleted, struct error *damaged, uint64_t deadline_ns,
			  struct error *e)
{
	struct error why = { 0 };
	int r = delete_for_rule(bundles, place, number, row->rule, deadline_ns, &why);

	if (!r) {
		logm(LOG_INFO, "bundle.rule-deleted", "bundle=%.*s version=%" PRIu64, (int)place->bundle.len,
		     (const char *)place->bundle.ptr, number);
		++*deleted;
	}
	if (r == -ERR_EDAMAGED && !damaged->code)
		*damaged = why;
	if (r == -EBUSY || r == -EAGAIN || r == -ENOENT || r == -ERR_EDAMAGED)
		return 0;
	return r >= 0 ? r : error_set(e, r, "%s", why.code ? why.text : error_meaning(r));
}

enum { RULE_RESTS = 1 };

/*
 * The newest are there, as far as a few of them tell. Where one is not, nothing goes: a store that is an older copy lacks just these, and
 * what can be read would go for what cannot.
 */
static int check_kept(struct bundles *bundles, const struct place *place, const struct numbers *live,
		      uint64_t keep_last, uint64_t deadline_ns, struct error *e)
{
	uint64_t n = keep_last < RULE_LOOKS_MAX ? keep_last : RULE_LOOKS_MAX;

	for (size_t i = live->n; i > 0 && live->n - i < n; i--) {
		_cleanup_(root_object_fini) struct root_object object = { 0 };
		int r = root_read(bundles, place, live->all[i - 1], &object, deadline_ns, e);

		if (r || object.state == ROOT_NONE)
			return r ? r : RULE_RESTS;
	}
	return 0;
}

int rule_apply(struct bundles *bundles, const struct place *place, uint64_t *ret_deleted, uint64_t deadline_ns,
	       struct error *e)
{
	_cleanup_(numbers_fini) struct numbers live = { 0 }, labelled = { 0 };
	struct row_bundle row;
	uint64_t deleted = 0;
	struct error damaged = { 0 };

	int r = row_read_bundle(bundles, place, &row, deadline_ns, e);
	if (r || !row.keep_last || row.n_versions <= row.keep_last) {
		*ret_deleted = 0;
		return r < 0 ? r : 0;
	}
	r = read_numbers(bundles, place, 'v', take_live, &live, deadline_ns, e);
	if (!r)
		r = read_numbers(bundles, place, 'l', take_labelled, &labelled, deadline_ns, e);
	numbers_sort(&labelled);
	if (!r && live.n > row.keep_last)
		r = check_kept(bundles, place, &live, row.keep_last, deadline_ns, e);
	for (size_t i = 0; !r && i + row.keep_last < live.n && deleted < RULE_DELETES_MAX; i++) {
		uint64_t number = live.all[i];

		if ((row.keep_every && number % row.keep_every == 0) || has(&labelled, number))
			continue;
		r = delete_by_rule(bundles, place, number, &row, &deleted, &damaged, deadline_ns, e);
	}
	*ret_deleted = deleted;
	if (r > 0) /* another rule has come, or it rests */
		r = 0;
	return r || !damaged.code ? r : error_set(e, damaged.code, "%s", damaged.text);
}
