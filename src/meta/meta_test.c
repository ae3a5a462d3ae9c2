/*
 * meta/meta_test.c: the encoding of requests and answers. What a peer may send is decoded strictly or refused.
 */
#include "meta/meta.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

CLEANUP_OF(struct meta_req *, meta_req_free);

static struct meta_req *new_req(enum meta_op op)
{
	struct meta_req *req = meta_req_new(op);

	assert_non_null(req);
	return req;
}

static void assert_view(struct view got, const char *expected)
{
	assert_true(view_equal(got, view_str(expected)));
}

static void a_range_comes_back_as_it_was_put(void **state)
{
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = new_req(META_RANGE);
	struct view prefix, after;
	uint32_t limit;

	assert_int_equal(meta_put_range(req, view_str("first"), view_str("one"), 1), 0);
	assert_int_equal(meta_put_range(req, view_str("b/"), view_str("b/17"), 99), 0); /* replaces */
	assert_int_equal(meta_in_range(view_buf(&req->in), &prefix, &after, &limit), 0);
	assert_view(prefix, "b/");
	assert_view(after, "b/17");
	assert_int_equal(limit, 99);
	assert_int_equal(meta_put_range(req, (struct view){ 0 }, (struct view){ 0 }, META_RANGE_MAX), 0);
	assert_int_equal(meta_in_range(view_buf(&req->in), &prefix, &after, &limit), 0);
	assert_int_equal(prefix.len + after.len, 0);
}

static void steps_come_back_as_they_were_put(void **state)
{
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = new_req(META_TXN);
	struct meta_step step;

	assert_int_equal(meta_txn_expect(req, view_str("a"), (struct view){ 0 }), 0);
	assert_int_equal(meta_txn_expect(req, view_str("b"), view_str("")), 0);
	assert_int_equal(meta_txn_put(req, view_str("c"), view_str("value")), 0);
	assert_int_equal(meta_txn_delete(req, view_str("d")), 0);

	struct view rest = view_buf(&req->in);
	assert_int_equal(meta_in_step(&rest, &step), 0);
	assert_int_equal(step.kind, META_EXPECT_ABSENT);
	assert_view(step.key, "a");
	assert_int_equal(meta_in_step(&rest, &step), 0);
	assert_int_equal(step.kind, META_EXPECT_VALUE);
	assert_int_equal(step.value.len, 0);
	assert_int_equal(meta_in_step(&rest, &step), 0);
	assert_int_equal(step.kind, META_PUT);
	assert_view(step.value, "value");
	assert_int_equal(meta_in_step(&rest, &step), 0);
	assert_int_equal(step.kind, META_DELETE);
	assert_view(step.key, "d");
	assert_int_equal(meta_in_step(&rest, &step), 1);
}

static void leases_entries_and_conflicts_come_back_as_they_were_put(void **state)
{
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = new_req(META_LEASE);
	struct meta_lease lease;
	struct view key, value;
	uint64_t holder, epoch;
	uint32_t index;

	assert_int_equal(meta_put_lease(req, view_str("g/1"), UINT64_MAX, META_LEASE_MAX_MS, META_EPOCH_MAX), 0);
	assert_int_equal(meta_in_lease(view_buf(&req->in), &lease), 0);
	assert_view(lease.key, "g/1");
	assert_true(lease.holder == UINT64_MAX);
	assert_true(lease.epoch == META_EPOCH_MAX);
	assert_int_equal(lease.ttl_ms, META_LEASE_MAX_MS);

	assert_int_equal(meta_out_put_lease(&req->out, 3, 4), 0);
	assert_int_equal(meta_out_lease(view_buf(&req->out), &holder, &epoch), 0);
	assert_int_equal(holder, 3);
	assert_int_equal(epoch, 4);
	assert_int_equal(meta_out_put_conflict(&req->out, 70000), 0);
	assert_int_equal(meta_out_conflict(view_buf(&req->out), &index), 0);
	assert_int_equal(index, 70000);

	req->out.len = 0;
	assert_int_equal(meta_out_put_entry(&req->out, view_str("k"), view_str("")), 0);
	assert_int_equal(meta_out_put_entry(&req->out, view_str("l"), view_str("w")), 0);
	struct view rest = view_buf(&req->out);
	assert_int_equal(meta_out_entry(&rest, &key, &value), 0);
	assert_view(key, "k");
	assert_view(value, "");
	assert_int_equal(meta_out_entry(&rest, &key, &value), 0);
	assert_view(value, "w");
	assert_int_equal(meta_out_entry(&rest, &key, &value), 1);
}

static void what_is_too_large_is_refused_and_changes_nothing(void **state)
{
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = new_req(META_TXN);
	_cleanup_(cleanup_mem) uint8_t *bytes = calloc(1, META_VALUE_MAX + 1);
	struct view key = view_of(bytes, META_KEY_MAX), value = view_of(bytes, META_VALUE_MAX), none = { 0 };

	assert_int_equal(meta_txn_put(req, key, value), 0);
	size_t len = req->in.len;
	key.len++;
	value.len++;
	assert_int_equal(meta_txn_put(req, key, none), -EINVAL);
	assert_int_equal(meta_txn_put(req, none, none), -EINVAL);
	assert_int_equal(meta_txn_put(req, view_str("k"), value), -EINVAL);
	assert_int_equal(meta_txn_expect(req, view_str("k"), value), -EINVAL);
	assert_int_equal(meta_txn_expect(req, view_str("k"), view_of(NULL, 3)), -EINVAL);
	assert_int_equal(meta_txn_delete(req, key), -EINVAL);
	assert_int_equal(meta_put_get(req, key), -EINVAL);
	assert_int_equal(meta_put_get(req, none), -EINVAL);
	assert_int_equal(meta_put_range(req, key, none, 1), -EINVAL);
	assert_int_equal(meta_put_range(req, none, key, 1), -EINVAL);
	assert_int_equal(meta_put_range(req, none, none, 0), -EINVAL);
	assert_int_equal(meta_put_range(req, none, none, META_RANGE_MAX + 1), -EINVAL);
	assert_int_equal(meta_put_lease(req, key, 1, 1, 0), -EINVAL);
	assert_int_equal(meta_put_lease(req, view_str("k"), 0, 1, 0), -EINVAL);
	assert_int_equal(meta_put_lease(req, view_str("k"), 1, META_LEASE_MAX_MS + 1, 0), -EINVAL);
	assert_int_equal(meta_put_lease(req, view_str("k"), 1, 1, (uint64_t)META_EPOCH_MAX + 1), -EINVAL);
	assert_int_equal(req->in.len, len);

	value.len = META_VALUE_MAX;
	while (req->in.len + 8 + 1 + META_VALUE_MAX <= META_REQ_MAX)
		assert_int_equal(meta_txn_put(req, view_str("k"), value), 0);
	assert_int_equal(meta_txn_put(req, view_str("k"), value), -EINVAL);
	while (req->out.len + 8 + 1 + META_VALUE_MAX <= META_REQ_MAX)
		assert_int_equal(meta_out_put_entry(&req->out, view_str("k"), value), 0);
	assert_int_equal(meta_out_put_entry(&req->out, view_str("k"), value), META_MORE);
}

/* ---- malformed bytes ---- */

/* Decodes @bytes as everything. Views that come out lie inside, which the sanitizers see. How much was accepted. */
static unsigned decode_all(struct view bytes)
{
	struct view a = { 0 }, b = { 0 }, rest;
	struct meta_step step = { 0 };
	struct meta_lease lease;
	uint64_t x, y;
	uint32_t n;
	unsigned accepted = 0;

	accepted += !meta_in_key(bytes, &a);
	accepted += !meta_in_range(bytes, &a, &b, &n);
	accepted += !meta_in_lease(bytes, &lease);
	accepted += !meta_out_lease(bytes, &x, &y);
	accepted += !meta_out_conflict(bytes, &n);
	for (rest = bytes; !meta_in_step(&rest, &step); accepted++)
		assert_true(step.key.ptr >= bytes.ptr && step.value.ptr + step.value.len <= bytes.ptr + bytes.len);
	for (rest = bytes; !meta_out_entry(&rest, &a, &b); accepted++)
		assert_true(a.ptr >= bytes.ptr && b.ptr + b.len <= bytes.ptr + bytes.len);
	return accepted;
}

static void every_cut_and_every_longer_form_is_refused(void **state)
{
	_cleanup_(cleanup_meta_req_free) struct meta_req *range = new_req(META_RANGE), *lease = new_req(META_LEASE);
	_cleanup_(cleanup_meta_req_free) struct meta_req *txn = new_req(META_TXN);
	struct meta_lease got;
	struct view a, b;
	struct meta_step step;
	uint32_t n;

	assert_int_equal(meta_put_range(range, view_str("pre"), view_str("after"), 5), 0);
	assert_int_equal(meta_put_lease(lease, view_str("key"), 1, 1, 0), 0);
	assert_int_equal(meta_txn_put(txn, view_str("key"), view_str("value")), 0);
	for (size_t len = 0; len < range->in.len; len++)
		assert_int_equal(meta_in_range(view_of(range->in.ptr, len), &a, &b, &n), -EPROTO);
	for (size_t len = 0; len < lease->in.len; len++)
		assert_int_equal(meta_in_lease(view_of(lease->in.ptr, len), &got), -EPROTO);
	for (size_t len = 1; len < txn->in.len; len++) {
		struct view rest = view_of(txn->in.ptr, len);

		assert_int_equal(meta_in_step(&rest, &step), -EPROTO);
		assert_int_equal(rest.len, len);
	}
	assert_int_equal(buf_append_zero(&range->in, 1), 0);
	assert_int_equal(meta_in_range(view_buf(&range->in), &a, &b, &n), -EPROTO);
	assert_int_equal(buf_append_zero(&lease->in, 1), 0);
	assert_int_equal(meta_in_lease(view_buf(&lease->in), &got), -EPROTO);
}

static void a_step_of_an_unknown_kind_or_with_a_value_out_of_place_is_refused(void **state)
{
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = new_req(META_TXN);
	struct meta_step step;

	assert_int_equal(meta_txn_put(req, view_str("key"), view_str("value")), 0);
	for (int kind = 0; kind < 256; kind++) {
		struct view rest = view_buf(&req->in);
		bool fine = kind == META_PUT || kind == META_EXPECT_VALUE;

		req->in.ptr[0] = (uint8_t)kind;
		assert_int_equal(meta_in_step(&rest, &step), fine ? 0 : -EPROTO);
	}
}

static void random_bytes_and_flips_never_reach_outside(void **state)
{
	_cleanup_(cleanup_meta_req_free) struct meta_req *txn = new_req(META_TXN);
	uint64_t x = 88172645463325252;
	unsigned accepted = 0;

	for (int i = 0; i < 10; i++)
		assert_int_equal(meta_txn_put(txn, view_str("some key"), view_str("some value")), 0);
	for (int round = 0; round < 100000; round++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		size_t len = x % (txn->in.len + 1);
		uint8_t *exact = malloc(len + !len); /* so that the sanitizers know where it ends */

		memcpy(exact, txn->in.ptr, len);
		if (len) {
			exact[(x >> 10) % len] ^= (uint8_t)(x >> 24);
			exact[(x >> 32) % (len < 8 ? len : 8)] ^= (uint8_t)(1 << (x >> 40 & 7));
		}
		accepted += decode_all(view_of(exact, len));
		free(exact);
	}
	assert_true(accepted > 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_range_comes_back_as_it_was_put),
		cmocka_unit_test(steps_come_back_as_they_were_put),
		cmocka_unit_test(leases_entries_and_conflicts_come_back_as_they_were_put),
		cmocka_unit_test(what_is_too_large_is_refused_and_changes_nothing),
		cmocka_unit_test(every_cut_and_every_longer_form_is_refused),
		cmocka_unit_test(a_step_of_an_unknown_kind_or_with_a_value_out_of_place_is_refused),
		cmocka_unit_test(random_bytes_and_flips_never_reach_outside),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
