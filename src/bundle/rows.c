/*
 * bundle/rows.c: rows of the index, read and changed in transactions that expect what they have read.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "bundle/inside.h"

#define PAUSE_MAX_MS 64

static struct meta *meta_of(struct bundles *bundles)
{
	return cluster_meta(bundles->cluster);
}

int row_damaged(struct error *e, const char *what)
{
	return error_set(e, -ERR_EDAMAGED, "the index's row of %s makes no sense", what);
}

/* ---- reading ---- */

/* 0, ROW_ABSENT, error. */
static int read_row(struct bundles *bundles, const struct row_key *key, struct buf *bytes, uint64_t deadline_ns,
		    struct error *e)
{
	struct error missing = { 0 };

	bytes->len = 0;
	int r = meta_get(meta_of(bundles), row_key_view(key), bytes, deadline_ns, &missing);
	if (r == -ENOENT)
		return ROW_ABSENT;
	return r ? error_set(e, r, "%s", missing.text) : 0;
}

int row_read_bundle(struct bundles *bundles, const struct place *place, struct row_bundle *ret, uint64_t deadline_ns,
		    struct error *e)
{
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	const struct row_key key = bundle_row_key(place->tenant, place->bundle);
	int r = read_row(bundles, &key, &bytes, deadline_ns, e);

	*ret = (struct row_bundle){ 0 };
	if (!r && row_bundle_decode(view_buf(&bytes), ret) != 0)
		r = row_damaged(e, "a bundle");
	return r;
}

int row_read_version(struct bundles *bundles, const struct place *place, uint64_t number, struct buf *bytes,
		     struct row_version *ret, uint64_t deadline_ns, struct error *e)
{
	const struct row_key key = version_row_key(place, number);
	int r = read_row(bundles, &key, bytes, deadline_ns, e);

	*ret = (struct row_version){ 0 };
	if (!r && row_version_decode(view_buf(bytes), ret) != 0)
		r = row_damaged(e, "a version");
	return r;
}

int row_find(struct bundles *bundles, const struct row_key *key, uint64_t deadline_ns, struct error *e)
{
	_cleanup_(buf_fini) struct buf bytes = { 0 };

	return read_row(bundles, key, &bytes, deadline_ns, e);
}

int row_read_label(struct bundles *bundles, const struct place *place, struct view label, struct row_label *ret,
		   uint64_t deadline_ns, struct error *e)
{
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	const struct row_key key = label_row_key(place, label);
	int r = read_row(bundles, &key, &bytes, deadline_ns, e);

	*ret = (struct row_label){ 0 };
	if (!r && row_label_decode(view_buf(&bytes), ret) != 0)
		r = row_damaged(e, "a label");
	return r;
}

/* ---- walks ---- */

/* Reads one page and hands it out. *ret_more: there are rows behind it; @after is then the last one's key. */
static int rows_page(struct bundles *bundles, struct view prefix, struct row_key *after, rows_fn each, void *arg,
		     bool *ret_more, uint64_t deadline_ns, struct error *e)
{
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = meta_req_new(META_RANGE);
	struct view key, value;
	uint32_t n = 0;

	int r = req ? meta_put_range(req, prefix, row_key_view(after), LIST_PAGE) : -ENOMEM;
	if (r)
		return error_set(e, r, "cannot ask for a list of rows");
	r = meta_call_run(meta_of(bundles), &req, deadline_ns, e);
	if (r < 0)
		return r;
	bool cut = r == META_MORE;

	struct view rest = view_buf(&req->out);
	while ((r = meta_out_entry(&rest, &key, &value)) == 0) {
		if (key.len > sizeof(after->bytes))
			return row_damaged(e, "a list");
		memcpy(after->bytes, key.ptr, key.len);
		after->len = key.len;
		n++;
		r = each(arg, key, value);
		if (r)
			return r;
	}
	*ret_more = n > 0 && (cut || n == LIST_PAGE);
	return r == 1 ? 0 : row_damaged(e, "a list");
}

int rows_each(struct bundles *bundles, struct view prefix, struct view after, rows_fn each, void *arg,
	      uint64_t deadline_ns, struct error *e)
{
	struct row_key at = { .len = after.len };
	bool more = true;
	int r = 0;

	CHECK(after.len <= sizeof(at.bytes));
	if (after.len)
		memcpy(at.bytes, after.ptr, after.len);
	while (!r && more)
		r = rows_page(bundles, prefix, &at, each, arg, &more, deadline_ns, e);
	return r;
}

/* ---- changes ---- */

void change_fini(struct change *change)
{
	meta_req_free(change->req);
	change->req = NULL;
}

/* Times grow to PAUSE_MAX_MS and are taken by chance, so that of many writers none is overtaken for ever. */
int change_pause(struct bundles *bundles, int tries)
{
	uint32_t dice, most = tries < 6 ? 1u << tries : PAUSE_MAX_MS;

	bundles->env->ops->random(bundles->env, &dice, sizeof(dice));
	return fiber_sleep_until(env_in_ms(bundles->env, dice % (most + 1)));
}

int change_again(struct bundles *bundles, const struct place *place, int tries, struct error *e)
{
	if (tries < CHANGE_TRIES_MAX)
		return tries ? change_pause(bundles, tries - 1) : 0;
	return error_set(e, -EAGAIN, "others change bundle %.*s all the time", (int)place->bundle.len,
			 (const char *)place->bundle.ptr);
}

int change_begin(struct bundles *bundles, const struct place *place, const struct fence *fence, struct change *ret,
		 uint64_t deadline_ns, struct error *e)
{
	_cleanup_(buf_fini) struct buf old = { 0 };
	struct change change = {
		.bundles = bundles,
		.key = bundle_row_key(place->tenant, place->bundle),
		.fenced = fence && fence->key.len,
	};

	int r = read_row(bundles, &change.key, &old, deadline_ns, e);
	if (r < 0)
		return r;
	change.exists = r == 0;
	if (!change.exists) /* so that no transaction of before a rebuild meets a row that it has read */
		change.row.changes = (uint64_t)cluster_generation(bundles->cluster) << 32;
	if (change.exists && row_bundle_decode(view_buf(&old), &change.row) != 0)
		return row_damaged(e, "a bundle");

	change.req = meta_req_new(META_TXN);
	r = change.req ? 0 : -ENOMEM;
	if (!r && change.fenced)
		r = meta_txn_expect(change.req, fence->key,
				    fence->record); /* the first: change_commit() knows it by that */
	if (!r)
		r = meta_txn_expect(change.req, row_key_view(&change.key), view_buf(&old));
	if (r) {
		change_fini(&change);
		return error_set(e, r, "cannot make a transaction");
	}
	change_fini(ret); /* of the try before */
	*ret = change;
	return 0;
}

static int put_encoded(struct change *change, const struct row_key *key, int r, const struct buf *value)
{
	return r ? r : meta_txn_put(change->req, row_key_view(key), view_buf(value));
}

int change_put_version(struct change *change, const struct row_key *key, const struct row_version *row)
{
	_cleanup_(buf_fini) struct buf value = { 0 };
	int r = row_version_encode(row, &value);

	return put_encoded(change, key, r, &value);
}

int change_put_slot(struct change *change, const struct row_key *key, const struct row_slot *row)
{
	_cleanup_(buf_fini) struct buf value = { 0 };
	int r = row_slot_encode(row, &value);

	return put_encoded(change, key, r, &value);
}

int change_put_label(struct change *change, const struct row_key *key, const struct row_label *row)
{
	_cleanup_(buf_fini) struct buf value = { 0 };
	int r = row_label_encode(row, &value);

	return put_encoded(change, key, r, &value);
}

int change_commit(struct change *change, uint64_t deadline_ns, struct error *e)
{
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = TAKE(change->req);
	_cleanup_(buf_fini) struct buf value = { 0 };

	change->row.changes++;
	int r = row_bundle_encode(&change->row, &value);
	if (!r)
		r = meta_txn_put(req, row_key_view(&change->key), view_buf(&value));
	if (r)
		return error_set(e, r, "cannot make a transaction");
	r = meta_call_run(meta_of(change->bundles), &req, deadline_ns, e);
	if (r == META_CONFLICT && change->fenced && req->out.len >= 4 && load_le32(req->out.ptr) == 0)
		return error_set(e, -ERR_ESTALEEPOCH, "the group has a newer coordinator");
	return r;
}
