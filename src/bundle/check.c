/*
 * bundle/check.c: is the index as new as the store? An engine whose files were put back from an older copy, of the same generation, does
 * not know what was published since. Three things rise and are in both: a bundle's numbers, the moves of each label, and its rules. So
 * of each bundle only what comes behind the index's last of each is asked for, not all that there is.
 *
 * A slot without a root may be behind: its writer can have died before its row, or have burned it since it could not be recorded. A version
 * cannot, since its slot's row was durable before; nor can a move or a rule that the index did not announce.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "bundle/inside.h"

struct checking {
	struct bundles *bundles;
	uint64_t deadline_ns;
	struct error *e;
	struct bundle_walk walk;
	struct row_bundle row;
	char at[BACKEND_KEY_MAX + 1]; /* in the bundle that it has come to */
};

static int older(struct checking *c, const char *key)
{
	return error_set(c->e, -ERR_EREBUILD,
			 "the index is older than the store: it does not know %s; run forebay meta rebuild on %s", key,
			 cluster_node(c->bundles->cluster));
}

static bool begins(const char *key, const char *prefix)
{
	return strncmp(key, prefix, strlen(prefix)) == 0;
}

static bool ends(const char *key, const char *end)
{
	size_t n = strlen(key), m = strlen(end);

	return n >= m && strcmp(key + n - m, end) == 0;
}

/* 1: what lies under the root of the number that @digits begins with is a tombstone of a slot that was burned. 0: anything else. */
static int is_burned(struct checking *c, const char *digits)
{
	_cleanup_(root_object_fini) struct root_object object = { 0 };
	uint64_t number;

	if (strlen(digits) < 20 || number_decode(view_of(digits, 20), 20, &number))
		return 0;
	int r = root_read(c->bundles, &c->walk.place, number, &object, c->deadline_ns, c->e);
	return r ? r : object.state == ROOT_BURNED;
}

/* Behind the last number no root. Keys of slots are few: one that was never recorded for each crash. */
static int check_numbers(struct checking *c)
{
	char prefix[KEY_BYTES], *key = c->at;

	(void)snprintf(prefix, sizeof(prefix), "%sv/", c->walk.place.prefix);
	(void)snprintf(key, sizeof(c->at), "%s%020" PRIu64 "/~", prefix, c->row.last);
	for (;;) {
		int r = key_next(c->bundles, prefix, key, key, c->deadline_ns, c->e);

		if (r || !*key)
			return r;
		if (ends(key, "/root")) {
			r = is_burned(c, key + strlen(prefix));
			if (r <= 0)
				return r ? r : older(c, key);
		}
	}
}

static int check_rules(struct checking *c)
{
	char prefix[KEY_BYTES], *key = c->at;
	uint64_t known = c->row.pending_rule > c->row.rule ? c->row.pending_rule : c->row.rule;

	(void)snprintf(prefix, sizeof(prefix), "%sr/", c->walk.place.prefix);
	rule_key(&c->walk.place, known, key);
	int r = key_next(c->bundles, prefix, key, key, c->deadline_ns, c->e);
	return r || !*key ? r : older(c, key);
}

/* Each label's moves: the highest known, then on to the next label. */
static int check_labels(struct checking *c)
{
	char prefix[KEY_BYTES], at[KEY_BYTES], *key = c->at;

	(void)snprintf(prefix, sizeof(prefix), "%sl/", c->walk.place.prefix);
	int r = key_next(c->bundles, prefix, "", key, c->deadline_ns, c->e);
	while (!r && *key) {
		_cleanup_(buf_fini) struct buf label = { 0 };
		const char *part = key + strlen(prefix), *slash = strchr(part, '/');
		struct row_label row = { 0 };

		if (slash && name_decode(view_of(part, (size_t)(slash - part)), &label) == 0 &&
		    label_name_check(view_buf(&label), NULL) == 0) {
			r = row_read_label(c->bundles, &c->walk.place, view_buf(&label), &row, c->deadline_ns, c->e);
			if (r < 0)
				return r;
			label_key(&c->walk.place, view_buf(&label), row.pending_move ? row.pending_move : row.move, at);
			r = key_next(c->bundles, prefix, at, key, c->deadline_ns, c->e);
			if (!r && begins(key, prefix) && strncmp(key, at, strlen(at) - 20) == 0)
				return older(c, key);
		} else {
			r = key_next(c->bundles, prefix, key, key, c->deadline_ns, c->e); /* no key of ours */
		}
	}
	return r;
}

static int check_bundle(struct checking *c)
{
	int r = row_read_bundle(c->bundles, &c->walk.place, &c->row, c->deadline_ns, c->e);

	if (r >= 0)
		r = check_numbers(c);
	if (!r)
		r = check_rules(c);
	return r ? r : check_labels(c);
}

int bundles_check_index(struct bundles *bundles, uint64_t deadline_ns, struct error *e)
{
	CHECK_MAGIC(bundles, BUNDLES_MAGIC);
	_cleanup_(buf_fini) struct buf generation = { 0 };
	struct error absent = { 0 };
	int r = meta_get(cluster_meta(bundles->cluster), view_str(CLUSTER_GENERATION_KEY), &generation, deadline_ns,
			 &absent);

	if (r)
		return r == -ENOENT ? 0 : error_set(e, r, "%s", absent.text);
	_cleanup_(cleanup_mem) struct checking *c = calloc(1, sizeof(*c));
	if (!c)
		return no_memory(e);
	*c = (struct checking){ .bundles = bundles, .deadline_ns = deadline_ns, .e = e };
	(void)snprintf(c->walk.prefix, sizeof(c->walk.prefix), "t/");
	while (!(r = bundle_walk_next(bundles, &c->walk, deadline_ns, e)) && !(r = check_bundle(c)))
		;
	bundle_walk_fini(&c->walk);
	return r == WALK_ENDED ? 0 : r;
}
