/*
 * meta/meta_lmdb_read.c: answers out of a read transaction.
 *
 * A record is its key and {CRC32C of key and value, value}. LMDB sums nothing itself, so what comes out of its tree is doubted:
 * sizes before they are used, order, sums. What no sum can show, a record that the tree does not lead to any more, is looked
 * for when the index is opened (meta_lmdb_check.c).
 */
#include "meta/meta_lmdb.h"

#include <string.h>

#include "base/hash.h"

/* ---- records ---- */

static struct view view_of_val(const MDB_val *val)
{
	return view_of(val->mv_data, val->mv_size);
}

int lmdb_record_value(struct view key, struct view rest, struct view *ret)
{
	if (rest.len < LMDB_RECORD_HEAD || rest.len > LMDB_RECORD_HEAD + META_VALUE_MAX)
		return MDB_CORRUPTED;
	uint32_t crc = load_le32(view_take(&rest, LMDB_RECORD_HEAD).ptr);
	if (crc32c(crc32c(0, key.ptr, key.len), rest.ptr, rest.len) != crc)
		return MDB_CORRUPTED;
	*ret = rest;
	return 0;
}

int lmdb_get(struct lmdb *l, MDB_txn *txn, struct view key, struct view *ret)
{
	MDB_val k = { .mv_size = key.len, .mv_data = (void *)key.ptr }, data;
	int rc = mdb_get(txn, l->dbi, &k, &data);

	return rc ? rc : lmdb_record_value(key, view_of_val(&data), ret);
}

/* ---- a read transaction and what is done in it ---- */

struct reading {
	struct lmdb *l;
	struct meta_req *req;
	MDB_txn *txn;
	MDB_cursor *cursor;
	int outcome; /* of the request, when LMDB had nothing against it */
};

static int read_txn(struct lmdb *l, struct meta_req *req, int (*fn)(void *arg), int *ret_outcome)
{
	struct reading reading = { .l = l, .req = req };
	int rc = l->db ? mdb_txn_begin(l->db, NULL, MDB_RDONLY, &reading.txn) : MDB_PANIC;

	if (rc)
		return rc;
	rc = lmdb_guarded(fn, &reading);
	if (reading.cursor)
		mdb_cursor_close(reading.cursor);
	mdb_txn_abort(reading.txn);
	*ret_outcome = reading.outcome;
	return rc;
}

static int answer(struct lmdb *l, struct meta_req *req, int (*fn)(void *arg), const char *doing)
{
	int outcome = 0;

	(void)pthread_rwlock_rdlock(&l->swap); /* EAGAIN: more readers than workers; EDEADLK: not here */
	int rc = read_txn(l, req, fn, &outcome);
	(void)pthread_rwlock_unlock(&l->swap);

	if (rc)
		return lmdb_fail(l, &req->error, rc, doing);
	if (outcome < 0 && !req->error.code)
		return error_set(&req->error, outcome, "the index in %s, %s: %s", l->path, doing,
				 error_meaning(outcome));
	return outcome;
}

static int get(void *arg)
{
	struct reading *reading = arg;
	struct view key, value;

	reading->outcome = meta_in_key(view_buf(&reading->req->in), &key);
	if (reading->outcome)
		return 0;
	int rc = lmdb_get(reading->l, reading->txn, key, &value);
	if (rc)
		return rc;
	reading->outcome = buf_append(&reading->req->out, value.ptr, value.len);
	return 0;
}

int lmdb_answer_get(struct lmdb *l, struct meta_req *req)
{
	return answer(l, req, get, "get");
}

/* ---- ranges ---- */

static bool begins_with(struct view key, struct view prefix)
{
	return key.len >= prefix.len && (!prefix.len || memcmp(key.ptr, prefix.ptr, prefix.len) == 0);
}

/* To the first record with @prefix that is past @after (empty: none is excluded). */
static int range_begin(struct reading *reading, struct view prefix, struct view after, MDB_val *key, MDB_val *data)
{
	struct view from = view_compare(prefix, after) > 0 ? prefix : after;

	*key = (MDB_val){ .mv_size = from.len, .mv_data = (void *)from.ptr };
	int rc = mdb_cursor_get(reading->cursor, key, data, from.len ? MDB_SET_RANGE : MDB_FIRST);
	if (!rc && after.len && view_equal(view_of_val(key), after))
		rc = mdb_cursor_get(reading->cursor, key, data, MDB_NEXT);
	return rc;
}

static int range(void *arg)
{
	struct reading *reading = arg;
	struct view prefix, after, last = { 0 };
	MDB_val key, data;
	uint32_t limit;

	reading->outcome = meta_in_range(view_buf(&reading->req->in), &prefix, &after, &limit);
	if (reading->outcome)
		return 0;
	int rc = mdb_cursor_open(reading->txn, reading->l->dbi, &reading->cursor);
	if (!rc)
		rc = range_begin(reading, prefix, after, &key, &data);
	for (uint32_t n = 0; !rc && begins_with(view_of_val(&key), prefix); n++) {
		struct view k = view_of_val(&key), value;

		if (n == limit)
			return 0;
		if (!k.len || k.len > META_KEY_MAX || view_compare(k, last) <= 0 ||
		    lmdb_record_value(k, view_of_val(&data), &value))
			return MDB_CORRUPTED;
		reading->outcome = meta_out_put_entry(&reading->req->out, k, value);
		if (reading->outcome)
			return 0;
		last = k;
		rc = mdb_cursor_get(reading->cursor, &key, &data, MDB_NEXT);
	}
	return rc == MDB_NOTFOUND ? 0 : rc;
}

int lmdb_answer_range(struct lmdb *l, struct meta_req *req)
{
	return answer(l, req, range, "range");
}
