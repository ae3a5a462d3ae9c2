/*
 * bundle/rebuild.c: the index anew from the store alone.
 *
 * Nothing is written until the engine has answered: a generation that only the store has shuts the cluster out. First it rises there, so
 * that an index of before is refused from now on, and a rebuild that was cut is repeated; last the new index is marked with it. Between
 * them all rows go, and each number and label is looked at as index.c and label.c would. Keys of a bundle come in the order floor/, l/,
 * p/, r/, v/; packs are leapt over, numbers below the floor, too.
 *
 * One thing the index knows better than the store: that a version was published whose root is away just now (moved, lost by a file
 * system), or cannot be read. Its slot looks like that of a save that came to nothing, and a tombstone there would cost the version. So the
 * rows of versions are put aside under w/, each until its root was read; what is left of them is in the new index, too, and is named as
 * damage. So with rows of labels, under m/: no move is ever deleted, so one that the index has and the store has not is away, and without it
 * a rule would delete what that label keeps.
 *
 * A half-made index is a lie: a child without its row does not keep its parent, a label without its row does not keep its version. So from
 * before the first row goes until the index is marked its rows are there for nobody but the fiber that makes them: the engine's node, where
 * a rebuild runs whoever asked for it, refuses them to all (cluster_rows_shut()), and goes on to when the rebuild has failed; a start then
 * meets the generations, which differ. To everybody else the engine is away. What is under way meanwhile:
 * - a transaction that was handed in before is committed before the first row goes, as the engine takes them in turn; any other is refused.
 *   One that was prepared before and comes when all is over expects a row that never comes again: counts of changes begin anew, higher
 *   (change_begin());
 * - a deletion behind its mark looks at rows again right before its tombstone, and at the generation behind that (delete_root()); what it
 *   has put by then is seen, since the rebuild waits BACKEND_NAME_LATE_MS before it reads. What a process that was stopped, or a store
 *   that hangs, puts still later deletes late and whole: the row goes with the next who looks, packs by collection alone (delete_objects());
 * - a rule deletes one version at a time, each as any other deletion; collection deletes what no root has named for two passes, which no
 *   rebuild changes; a move of a label that was announced is announced again (try_move());
 * - a publication behind its root indexes the version when the rows are back; a slot without a root is burned;
 * - readers' leases go with the rows: so nobody deletes for as long as it takes to renew them (lease.c, rebuilt_begin()).
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/log.h"
#include "bundle/inside.h"
#include "wire/message.h"

#define CLEAR_BYTES (META_REQ_MAX / 4) /* of a transaction that clears rows; one row more fits, too */

/* What a rebuild clears and makes. */
static const char *const index_prefixes[] = { "b/", "l/", "o/", "s/", "v/", NULL };
static const char before_prefix[] = "w/", labels_before_prefix[] = "m/";

/* A label's moves, as the keys have them, ascending. */
struct moves {
	struct buf label;
	uint64_t *all;
	size_t n;
};

struct rebuild {
	struct bundles *bundles;
	uint64_t deadline_ns;
	struct rebuild_counts counts;
	struct error damaged; /* the first object that had to be left out */
	struct error *e;

	/* the bundle that the keys have come to */
	bool in_bundle;
	struct buf tenant, bundle;
	struct place place;
	struct moves *labels;
	size_t n_labels;
	uint64_t floor, rule; /* the highest k; 0: none */

	/* the number, in it; 0: none */
	uint64_t number;
	bool has_root, has_slot;
};

static void forget_labels(struct rebuild *r)
{
	for (size_t i = 0; i < r->n_labels; i++) {
		buf_fini(&r->labels[i].label);
		free(r->labels[i].all);
	}
	free(r->labels);
	r->labels = NULL;
	r->n_labels = 0;
}

static void rebuild_fini(struct rebuild *r)
{
	forget_labels(r);
	buf_fini(&r->tenant);
	buf_fini(&r->bundle);
}

/* Damage is remembered and passed over, so that one flipped bit does not keep everything else away. */
static int pass_over(struct rebuild *r, int failed, const struct error *why)
{
	if (failed != -ERR_EDAMAGED)
		return failed ? error_set(r->e, failed, "%s", why->text) : 0;
	if (!r->damaged.code)
		r->damaged = *why;
	return 0;
}

/* ---- before anything is written ---- */

/* The engine answers, and the store is the one that its index is of. An engine that is damaged here is what a rebuild is for. */
static int find_engine(struct rebuild *r)
{
	struct cluster *cluster = r->bundles->cluster;
	uint64_t until_ns = env_in_ms(r->bundles->env, INDEX_WAIT_MS);
	struct node_info engine;
	struct error why = { 0 };
	uint32_t of_index, of_store;

	cluster_engine(cluster, &engine);
	bool own = !strcmp(engine.name, cluster_node(cluster));
	if (!own && !cluster_generation(cluster))
		return error_set(
			r->e, -EAGAIN,
			"this node has not joined its cluster, and the index is not here: run forebay meta rebuild on "
			"%s at %s",
			*engine.name ? engine.name : "the node", engine.address);
	int failed = cluster_generations(cluster, until_ns < r->deadline_ns ? until_ns : r->deadline_ns, &of_index,
					 &of_store, &why);
	if (!failed || (own && failed == -ERR_EDAMAGED))
		return 0;
	return error_set(r->e, failed, "nothing was rebuilt: %s", why.code ? why.text : error_meaning(failed));
}

/* ---- clearing ---- */

struct clearing {
	struct rebuild *r;
	struct meta_req *req;
};

static int clear_flush(struct clearing *c)
{
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = TAKE(c->req);

	return req ? meta_call_run(cluster_meta(c->r->bundles->cluster), &req, c->r->deadline_ns, c->r->e) : 0;
}

/* The row of a version or a label. A label's that a rebuild has made which failed then is not the one of before. */
static int put_aside(struct clearing *c, struct view key, struct view value)
{
	bool version = key.ptr[0] == 'v', label = key.ptr[0] == 'l';
	struct row_key before = { .len = key.len };

	if (!version && !label)
		return 0;
	memcpy(before.bytes, key.ptr, key.len);
	before.bytes[0] = (uint8_t)(version ? before_prefix[0] : labels_before_prefix[0]);
	int failed = label ? row_find(c->r->bundles, &before, c->r->deadline_ns, NULL) : ROW_ABSENT;
	return failed == ROW_ABSENT ? meta_txn_put(c->req, row_key_view(&before), value) : failed;
}

static int clear_row(void *arg, struct view key, struct view value)
{
	struct clearing *c = arg;

	if (!c->req)
		c->req = meta_req_new(META_TXN);
	int failed = c->req ? meta_txn_delete(c->req, key) : -ENOMEM;
	if (!failed)
		failed = put_aside(c, key, value);
	if (failed)
		return error_set(c->r->e, failed, "cannot make a transaction");
	return c->req->in.len >= CLEAR_BYTES ? clear_flush(c) : 0;
}

static int clear_rows(struct rebuild *r, const char *prefix)
{
	struct clearing c = { .r = r };
	int failed = rows_each(r->bundles, view_str(prefix), (struct view){ 0 }, clear_row, &c, r->deadline_ns, r->e);

	if (!failed)
		failed = clear_flush(&c);
	meta_req_free(c.req);
	return failed;
}

static int clear_index(struct rebuild *r)
{
	int failed = 0;

	for (const char *const *at = index_prefixes; !failed && *at; at++)
		failed = clear_rows(r, *at);
	return failed;
}

/* ---- a number ---- */

/* A slot without a root ends here: its writer, should it live, finds the tombstone. */
static int burn_open_slot(struct rebuild *r, struct error *why)
{
	_cleanup_(slot_fini) struct slot slot = { .number = r->number };
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	struct record_head head = { 0 };
	struct view body;
	char key[KEY_BYTES];

	slot_key(&r->place, r->number, key);
	int failed = object_open(r->bundles, key, RECORD_SMALL_MAX, &bytes, &head, &body, r->deadline_ns, why);
	if (failed && failed != -ERR_EDAMAGED) /* a damaged slot is burned without its names */
		return failed;
	slot.save_id = head.save_id;
	slot.epoch = head.epoch;
	slot.tenant = view_dup(r->place.tenant);
	slot.bundle = view_dup(r->place.bundle);
	if (!slot.tenant || !slot.bundle)
		return no_memory(why);
	failed = slot_burn(r->bundles, &slot, r->deadline_ns, why);
	return failed == -EEXIST ? 0 : failed; /* its writer was faster: published */
}

static int finish_number(struct rebuild *r)
{
	struct error why = { 0 };
	enum root_state state = ROOT_NONE;
	int failed = 0;

	if (!r->number || (!r->has_root && !r->has_slot)) {
		r->number = 0; /* segments alone: of a save that never came to publish */
		return 0;
	}
	const struct row_key before = before_row_key(&r->place, r->number);
	if (!r->has_root)
		failed = row_find(r->bundles, &before, r->deadline_ns, &why);
	if (failed == ROW_ABSENT)
		failed = burn_open_slot(r, &why);
	if (!failed)
		failed = index_version(r->bundles, &r->place, r->number, false, &state, r->deadline_ns, &why);
	if (!failed && state == ROOT_PUBLISHED)
		r->counts.versions++;
	r->number = 0;
	return pass_over(r, failed, &why);
}

static int take_version_key(struct rebuild *r, struct view rest)
{
	struct view digits = view_take(&rest, 20);
	uint64_t number;

	if (number_decode(digits, 20, &number) != 0 || !number || !view_equal(view_take(&rest, 1), view_str("/")))
		return 0; /* no key of ours */
	if (number < r->floor)
		return 0;
	if (number != r->number) {
		int failed = finish_number(r);
		if (failed)
			return failed;
		r->number = number;
		r->has_root = r->has_slot = false;
	}
	r->has_root = r->has_root || view_equal(rest, view_str("root"));
	r->has_slot = r->has_slot || view_equal(rest, view_str("slot"));
	return 0;
}

/* ---- versions that the index of before had ---- */

static int try_keep(struct rebuild *r, const struct place *place, uint64_t number, const struct row_version *row)
{
	_cleanup_(change_fini) struct change change = { 0 };
	const struct row_key key = version_row_key(place, number);
	int failed = change_begin(r->bundles, place, NULL, &change, r->deadline_ns, r->e);

	if (failed)
		return failed;
	change.row.n_versions++;
	if (number > change.row.latest)
		change.row.latest = number;
	if (number > change.row.last)
		change.row.last = number;
	failed = change_put_version(&change, &key, row);
	return failed ? failed : change_commit(&change, r->deadline_ns, r->e);
}

/* The root is not there, or damaged: the row is as it was, but for what a rebuild makes of every one. */
static int keep_version(struct rebuild *r, const struct place *place, uint64_t number, struct row_version *row)
{
	int failed = META_CONFLICT;

	row->state = ROW_LIVE;
	row->mark = 0;
	row->shared = 1;
	for (int i = 0; failed == META_CONFLICT; i++) {
		failed = change_again(r->bundles, place, i, r->e);
		if (!failed)
			failed = try_keep(r, place, number, row);
	}
	return failed;
}

static void name_missing(struct rebuild *r, const struct place *place, uint64_t number)
{
	struct error why = { 0 };
	char key[KEY_BYTES];

	root_key(place, number, key);
	(void)pass_over(r,
			error_set(&why, -ERR_EDAMAGED, "%s is not there, and the index had version %" PRIu64 " of %.*s",
				  key, number, (int)place->bundle.len, (const char *)place->bundle.ptr),
			&why);
}

/* A name and the zero byte behind it off @key; empty: there is none. */
static struct view take_name(struct view *key)
{
	const uint8_t *end = key->len ? memchr(key->ptr, 0, key->len) : NULL;
	struct view name = view_take(key, end ? (size_t)(end - key->ptr) : 0);

	view_take(key, 1);
	return name;
}

/* One row that was put aside, and not met since. */
static int settle_before(void *arg, struct view key, struct view value)
{
	struct rebuild *r = arg;
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	struct error why = { 0 };
	struct row_version row, now;
	enum root_state state;
	struct place place;
	uint64_t number;

	view_take(&key, strlen(before_prefix));
	struct view tenant = take_name(&key), bundle = take_name(&key);
	if (row_version_decode(value, &row) != 0 || number_decode(key, 20, &number) != 0 ||
	    place_init(tenant, bundle, &place, NULL) != 0)
		return 0; /* a damaged index */

	int failed = row_read_version(r->bundles, &place, number, &bytes, &now, r->deadline_ns, r->e);
	if (failed != ROW_ABSENT)
		return failed;
	failed = index_version(r->bundles, &place, number, false, &state, r->deadline_ns, &why);
	if (failed && failed != -ERR_EDAMAGED) /* what is damaged was named when its key came */
		return error_set(r->e, failed, "%s", why.text);
	if (!failed && state != ROOT_NONE)
		return 0;
	if (!failed)
		name_missing(r, &place, number);
	return keep_version(r, &place, number, &row);
}

static int settle_all_before(struct rebuild *r, struct view prefix)
{
	return rows_each(r->bundles, prefix, (struct view){ 0 }, settle_before, r, r->deadline_ns, r->e);
}

/* ---- labels ---- */

static int take_label_key(struct rebuild *r, struct view rest)
{
	const uint8_t *slash = memchr(rest.ptr, '/', rest.len);
	_cleanup_(buf_fini) struct buf label = { 0 };
	uint64_t move;

	if (!slash)
		return 0;
	struct view part = view_take(&rest, (size_t)(slash - rest.ptr));
	view_take(&rest, 1);
	if (number_decode(rest, 20, &move) != 0 || name_decode(part, &label) != 0 ||
	    label_name_check(view_buf(&label), NULL) != 0)
		return 0; /* no key of ours */

	struct moves *last = r->n_labels ? &r->labels[r->n_labels - 1] : NULL;
	if (!last || !view_equal(view_buf(&last->label), view_buf(&label))) {
		struct moves *more = reallocarray(r->labels, r->n_labels + 1, sizeof(*more));

		if (!more)
			return no_memory(r->e);
		r->labels = more;
		last = &more[r->n_labels++];
		*last = (struct moves){ .label = label };
		label = (struct buf){ 0 };
	}
	uint64_t *all = reallocarray(last->all, last->n + 1, sizeof(*all));
	if (!all)
		return no_memory(r->e);
	last->all = all;
	all[last->n++] = move;
	return 0;
}

/* ---- labels that the index of before had ---- */

static int try_keep_label(struct rebuild *r, const struct place *place, struct view label, const struct row_label *row)
{
	_cleanup_(change_fini) struct change change = { 0 };
	const struct row_key key = label_row_key(place, label);
	int failed = change_begin(r->bundles, place, NULL, &change, r->deadline_ns, r->e);

	if (!failed)
		failed = change_put_label(&change, &key, row);
	return failed ? failed : change_commit(&change, r->deadline_ns, r->e);
}

static int keep_label(struct rebuild *r, const struct place *place, struct view label, const struct row_label *row)
{
	struct error why = { 0 };
	int failed = META_CONFLICT;
	char key[KEY_BYTES];

	for (int i = 0; failed == META_CONFLICT; i++) {
		failed = change_again(r->bundles, place, i, r->e);
		if (!failed)
			failed = try_keep_label(r, place, label, row);
	}
	if (failed)
		return failed;
	label_key(place, label, row->move, key);
	return pass_over(r, error_set(&why, -ERR_EDAMAGED, "%s is not there, and the index had it", key), &why);
}

/* One row that was put aside: its last move should be in the store. */
static int settle_label_before(void *arg, struct view key, struct view value)
{
	struct rebuild *r = arg;
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	struct row_label row, now;
	struct row_version version;
	struct place place;

	view_take(&key, strlen(labels_before_prefix));
	struct view tenant = take_name(&key), bundle = take_name(&key);
	if (row_label_decode(value, &row) != 0 || label_name_check(key, NULL) != 0 ||
	    place_init(tenant, bundle, &place, NULL) != 0)
		return 0; /* a damaged index */

	int failed = row_read_label(r->bundles, &place, key, &now, r->deadline_ns, r->e);
	if (failed < 0 || (!failed && now.move >= row.move) || !row.move)
		return failed < 0 ? failed : 0;
	failed = row.number ? row_read_version(r->bundles, &place, row.number, &bytes, &version, r->deadline_ns, r->e) :
			      0;
	if (failed)
		return failed < 0 ? failed : 0; /* it has been deleted since */
	row.pending_move = row.pending_number = 0;
	return keep_label(r, &place, key, &row);
}

static int settle_all_labels_before(struct rebuild *r, struct view prefix)
{
	return rows_each(r->bundles, prefix, (struct view){ 0 }, settle_label_before, r, r->deadline_ns, r->e);
}

/* ---- a bundle ---- */

/* Before the numbers: nothing below the floor is indexed, and no number below it is given any more. */
static int set_floor(struct rebuild *r)
{
	int failed = META_CONFLICT;

	for (int i = 0; failed == META_CONFLICT; i++) {
		_cleanup_(change_fini) struct change change = { 0 };

		failed = change_again(r->bundles, &r->place, i, r->e);
		if (!failed)
			failed = change_begin(r->bundles, &r->place, NULL, &change, r->deadline_ns, r->e);
		if (failed)
			return failed;
		change.row.floor = r->floor;
		change.row.last = change.row.last < r->floor - 1 ? r->floor - 1 : change.row.last;
		failed = change_commit(&change, r->deadline_ns, r->e);
	}
	return failed;
}

static int take_floor_key(struct rebuild *r, struct view digits)
{
	uint64_t number;

	if (number_decode(digits, 20, &number) != 0 || number <= r->floor)
		return 0;
	r->floor = number;
	return set_floor(r);
}

/* *ret_all: none is damaged. */
static int finish_labels(struct rebuild *r, bool *ret_all)
{
	int failed = 0;

	*ret_all = true;
	for (size_t i = 0; !failed && i < r->n_labels; i++) {
		const struct moves *moves = &r->labels[i];
		struct error why = { 0 };
		bool set = false;

		failed = label_rebuild(r->bundles, &r->place, view_buf(&moves->label), moves->all, moves->n, &set,
				       r->deadline_ns, &why);
		r->counts.labels += set;
		*ret_all &= failed != -ERR_EDAMAGED;
		failed = pass_over(r, failed, &why);
	}
	return failed;
}

/* The version that a damaged label keeps is not known: then all stay, until somebody sets a rule again. */
static int finish_rule(struct rebuild *r, bool all_labels)
{
	struct error why = { 0 };
	int failed = all_labels ? rule_take(r->bundles, &r->place, r->rule, r->deadline_ns, &why) : -ERR_EDAMAGED;
	bool rests = failed == -ERR_EDAMAGED;

	failed = pass_over(r, failed, &why); /* of a label it is remembered already */
	return rests ? rule_rest(r->bundles, &r->place, r->rule, r->deadline_ns, r->e) : failed;
}

static int finish_bundle(struct rebuild *r)
{
	struct row_bundle row;
	bool all_labels;

	if (!r->in_bundle)
		return 0;
	const struct row_key before = rows_prefix(before_prefix[0], &r->place);
	const struct row_key labels_before = rows_prefix(labels_before_prefix[0], &r->place);
	int failed = finish_number(r);
	if (!failed) /* a label may point there */
		failed = settle_all_before(r, row_key_view(&before));
	if (!failed)
		failed = finish_labels(r, &all_labels);
	if (!failed)
		failed = settle_all_labels_before(r, row_key_view(&labels_before));
	if (!failed && r->rule)
		failed = finish_rule(r, all_labels);
	if (!failed) {
		failed = row_read_bundle(r->bundles, &r->place, &row, r->deadline_ns, r->e);
		r->counts.bundles += failed >= 0 && row.n_versions > 0;
	}
	r->in_bundle = false;
	r->floor = r->rule = 0;
	forget_labels(r);
	return failed < 0 ? failed : 0;
}

/* "t/<tenant>/b/<bundle>/" off @key; *ret_rest: what follows. -EINVAL: it does not begin so. */
static int take_prefix(struct view key, struct buf *tenant, struct buf *bundle, struct view *ret_rest)
{
	struct view parts[4];

	for (int i = 0; i < 4; i++) {
		const uint8_t *slash = key.len ? memchr(key.ptr, '/', key.len) : NULL;

		if (!slash)
			return -EINVAL;
		parts[i] = view_take(&key, (size_t)(slash - key.ptr));
		view_take(&key, 1);
	}
	if (!view_equal(parts[0], view_str("t")) || !view_equal(parts[2], view_str("b")))
		return -EINVAL;
	tenant->len = bundle->len = 0;
	*ret_rest = key;
	int r = name_decode(parts[1], tenant);
	return r ? r : name_decode(parts[3], bundle);
}

static int enter_bundle(struct rebuild *r, const char *key, struct view *ret_rest)
{
	size_t prefix = strlen(r->place.prefix);

	if (r->in_bundle && strncmp(key, r->place.prefix, prefix) == 0) {
		*ret_rest = view_str(key + prefix);
		return 0;
	}
	int failed = finish_bundle(r);
	if (failed)
		return failed;
	failed = take_prefix(view_str(key), &r->tenant, &r->bundle, ret_rest);
	if (!failed)
		failed = place_init(view_buf(&r->tenant), view_buf(&r->bundle), &r->place, NULL);
	r->in_bundle = failed == 0;
	return failed == -ENOMEM ? no_memory(r->e) : 0;
}

static int take_key(void *arg, const char *key, char *after)
{
	struct rebuild *r = arg;
	struct view rest;
	uint64_t k;
	int failed = enter_bundle(r, key, &rest);

	if (failed || !r->in_bundle)
		return failed;
	if (rest.len == 26 && memcmp(rest.ptr, "floor/", 6) == 0)
		return take_floor_key(r, view_of(rest.ptr + 6, 20));
	if (rest.len < 2 || rest.ptr[1] != '/')
		return 0;
	uint8_t kind = rest.ptr[0];
	view_take(&rest, 2);
	if (kind == 'v')
		return take_version_key(r, rest);
	if (kind == 'l')
		return take_label_key(r, rest);
	if (kind == 'r' && number_decode(rest, 20, &k) == 0 && k > r->rule)
		r->rule = k;
	if (kind == 'p') {
		(void)snprintf(after, BACKEND_KEY_MAX + 1, "%sp0",
			       r->place.prefix); /* behind all that begin with "p/" */
		return KEYS_LEAP;
	}
	return 0;
}

/* From the store, with the rows to itself. */
static int make_index(struct rebuild *r, uint32_t generation)
{
	struct bundles *bundles = r->bundles;

	cluster_set_generation(bundles->cluster, generation);
	/* older writers are fenced off by now; what they made last, a shared file system may show only after a while */
	int failed = fiber_sleep_until(env_in_ms(bundles->env, BACKEND_NAME_LATE_MS));
	if (failed)
		return error_set(r->e, failed, "it was cancelled");
	failed = clear_index(r);
	if (!failed)
		failed = keys_each(bundles, "t/", take_key, r, r->deadline_ns, r->e);
	if (!failed)
		failed = finish_bundle(r);
	if (!failed) /* bundles of which the store has nothing */
		failed = settle_all_before(r, view_str(before_prefix));
	if (!failed)
		failed = settle_all_labels_before(r, view_str(labels_before_prefix));
	if (!failed)
		failed = clear_rows(r, before_prefix);
	if (!failed)
		failed = clear_rows(r, labels_before_prefix);
	if (!failed)
		failed = rebuilt_begin(bundles, r->deadline_ns, r->e);
	return failed ? failed : cluster_mark_generation(bundles->cluster, generation, r->deadline_ns, r->e);
}

static int half_rebuilt(struct bundles *bundles, char *words, size_t bytes)
{
	return snprintf(words, bytes, "the index is half rebuilt: run forebay meta rebuild again on %s",
			cluster_node(bundles->cluster));
}

/* Shuts the rows, and opens them when they are whole. */
static int rebuild_shut(struct rebuild *r, uint32_t *ret_generation)
{
	struct bundles *bundles = r->bundles;
	struct error raised = { 0 };
	char half[128];

	(void)half_rebuilt(bundles, half, sizeof(half));
	cluster_rows_shut(bundles->cluster, index_prefixes, true, "the index is being rebuilt");
	int failed = cluster_raise_generation(bundles->cluster, r->deadline_ns, ret_generation, r->e);
	if (failed && !bundles->half_rebuilt) { /* nothing has gone yet */
		cluster_rows_open(bundles->cluster);
		return failed;
	}
	bundles->half_rebuilt = true;
	if (!failed)
		failed = make_index(r, *ret_generation);
	if (!failed) {
		bundles->half_rebuilt = false;
		cluster_rows_open(bundles->cluster);
		return 0;
	}
	cluster_rows_shut(bundles->cluster, index_prefixes, false, half);
	if (r->e && r->e->code)
		raised = *r->e;
	return error_set(r->e, failed, "%s; what stopped it: %s", half,
			 raised.code ? raised.text : error_meaning(failed));
}

/* An engine that cannot write should say so while the old index is whole. */
static int try_engine(struct rebuild *r)
{
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = meta_req_new(META_TXN);
	_cleanup_(buf_fini) struct buf value = { 0 };
	struct meta *meta = cluster_meta(r->bundles->cluster);
	struct error why = { 0 };
	int failed = meta_get(meta, view_str(CLUSTER_GENERATION_KEY), &value, r->deadline_ns, NULL);

	if (failed)
		return 0; /* empty, or damaged */
	failed = req ? meta_txn_put(req, view_str(CLUSTER_GENERATION_KEY), view_buf(&value)) : -ENOMEM;
	if (!failed)
		failed = meta_call_run(meta, &req, r->deadline_ns, &why);
	if (!failed)
		return 0;
	return error_set(r->e, failed, "nothing was rebuilt: %s", why.code ? why.text : error_meaning(failed));
}

static int rebuild_run(struct bundles *bundles, uint64_t deadline_ns, struct rebuild_counts *ret, struct error *e)
{
	_cleanup_(rebuild_fini) struct rebuild r = { .bundles = bundles, .deadline_ns = deadline_ns, .e = e };
	uint32_t generation = 0;

	int failed = find_engine(&r);
	if (!failed)
		failed = try_engine(&r);
	if (!failed)
		failed = rebuild_shut(&r, &generation);
	if (failed)
		return failed;

	r.counts.generation = generation;
	*ret = r.counts;
	if (r.damaged.code)
		return error_set(e, -ERR_EDAMAGED, "the index is rebuilt, but for this: %s", r.damaged.text);
	return 0;
}

/* ---- on the engine's node ---- */

/* One rebuild. It is no part of the request for it: half an index serves nobody, so it goes on when its asker is interrupted or cut off. */
struct undertaking {
	struct bundles *bundles;
	uint64_t deadline_ns;
	struct rebuild_counts counts;
	struct error e;
	int result;
	bool is_over, is_left; /* is_left: nobody waits for it any more */
	struct waitplace ended;
};

static int undertake(void *arg)
{
	struct undertaking *u = arg;

	u->result = rebuild_run(u->bundles, u->deadline_ns, &u->counts, &u->e);
	u->bundles->rebuilding = false;
	u->is_over = true;
	wake_all(&u->ended);
	if (!u->is_left)
		return 0;
	logm(LOG_WARN, "rebuild.ended", "versions=%" PRIu64 " words=\"%s\"", u->counts.versions, u->e.text);
	free(u);
	return 0;
}

static int wait_for_end(struct undertaking *u, uint64_t deadline_ns, struct rebuild_counts *ret, struct error *e)
{
	int r = 0;

	while (!u->is_over && !r)
		r = wait_at(&u->ended, deadline_ns);
	if (!u->is_over) {
		u->is_left = true;
		return r;
	}
	r = u->result;
	if (!r || r == -ERR_EDAMAGED)
		*ret = u->counts;
	if (u->e.code && e)
		*e = u->e;
	free(u);
	return r;
}

static int rebuild_here(struct bundles *bundles, uint64_t deadline_ns, struct rebuild_counts *ret, struct error *e)
{
	if (bundles->rebuilding)
		return error_set(e, -EBUSY, "the index is being rebuilt already");
	struct undertaking *u = calloc(1, sizeof(*u));
	if (!u)
		return error_set(e, -ENOMEM, "no memory for a rebuild");
	u->bundles = bundles;
	u->deadline_ns = deadline_ns;
	waitplace_init(&u->ended);
	int r = fiber_start(&bundles->rebuilds, "rebuild", undertake, u);
	if (r) {
		free(u);
		return error_set(e, r, "a rebuild does not begin: %s", error_meaning(r));
	}
	bundles->rebuilding = true;
	return wait_for_end(u, deadline_ns, ret, e);
}

int rebuild_counts_encode(const struct rebuild_counts *counts, struct buf *out)
{
	const struct msg_rebuild_reply reply = {
		.bundles = counts->bundles,
		.versions = counts->versions,
		.labels = counts->labels,
		.generation = counts->generation,
	};

	return msg_rebuild_reply_encode(&reply, out);
}

static int serve_rebuild(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
			 struct error *e)
{
	struct rebuild_counts counts;
	int r = rebuild_here(arg, deadline_ns, &counts, e);

	return r ? r : rebuild_counts_encode(&counts, answer);
}

void rebuild_serve(struct bundles *bundles)
{
	struct node_info engine;

	cluster_engine(bundles->cluster, &engine);
	if (!strcmp(engine.name, cluster_node(bundles->cluster)))
		cluster_serve(bundles->cluster, MSG_REBUILD, serve_rebuild, bundles);
}

static int rebuild_there(struct bundles *bundles, const char *node, uint64_t deadline_ns, struct rebuild_counts *ret,
			 struct error *e)
{
	_cleanup_(buf_fini) struct buf answer = { 0 };
	struct msg_rebuild_reply reply;
	int r = cluster_call(bundles->cluster, node, MSG_REBUILD, (struct view){ 0 }, deadline_ns, &answer, e);

	if (r)
		return r;
	if (msg_rebuild_reply_decode(view_buf(&answer), &reply))
		return error_set(e, -EPROTO, "node %s answers to a rebuild what cannot be read", node);
	*ret = (struct rebuild_counts){ reply.bundles, reply.versions, reply.labels, reply.generation };
	return 0;
}

int bundles_rebuild(struct bundles *bundles, uint64_t deadline_ns, struct rebuild_counts *ret, struct error *e)
{
	CHECK_MAGIC(bundles, BUNDLES_MAGIC);
	struct rebuild r = { .bundles = bundles, .deadline_ns = deadline_ns, .e = e };
	struct node_info engine;

	cluster_engine(bundles->cluster, &engine);
	if (!strcmp(engine.name, cluster_node(bundles->cluster)))
		return rebuild_here(bundles, deadline_ns, ret, e);
	int failed = find_engine(&r); /* by which its name is known */
	if (failed)
		return failed;
	cluster_engine(bundles->cluster, &engine);
	return rebuild_there(bundles, engine.name, deadline_ns, ret, e);
}
