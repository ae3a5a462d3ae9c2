/*
 * meta/meta_suite.c: the conformance suite of meta engines: the promises of meta.h, one test each.
 */
#include "meta/meta_suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#define PATIENCE_MS 60000
#define CROWD	    200	 /* requests at the same time */
#define TTL_MS	    1000 /* of leases here */
#define ANN	    7	 /* two holders */
#define BOB	    UINT64_C(0xfedcba9876543210)

static struct meta_suite *suite; /* cmocka hands no argument to setup functions */
static const struct view absent = { 0 };

CLEANUP_OF(struct meta_req *, meta_req_free);

/* ---- turning the loop ---- */

static void request_finished(struct meta_req *req)
{
	CHECK(!req->arg);
	req->arg = req; /* any pointer: it is over */
	loop_stop(req->meta->env->loop);
}

struct alarm {
	struct timer timer;
	struct loop *loop;
};

static void alarm_rings(struct timer *timer)
{
	loop_stop(container_of(timer, struct alarm, timer)->loop);
}

void meta_suite_start(struct meta *meta, struct meta_req *req)
{
	req->arg = NULL;
	req->finish = request_finished;
	meta_submit(meta, req);
	assert_null(req->arg);
}

int meta_suite_wait(struct meta_req *req)
{
	struct env *env = req->meta->env;
	struct alarm alarm = { .timer.fn = alarm_rings, .loop = env->loop };
	uint64_t deadline_ns = loop_now(env->loop) + PATIENCE_MS * NS_PER_MS;

	CHECK(timer_arm(env->loop, &alarm.timer, deadline_ns) == 0);
	while (!req->arg) {
		CHECK(loop_now(env->loop) < deadline_ns);
		CHECK(loop_run(env->loop) == 0);
	}
	timer_disarm(env->loop, &alarm.timer);

	assert_int_equal(req->error.code, req->result < 0 ? req->result : 0);
	assert_true(req->result >= 0 || strlen(req->error.text) > 0);
	return req->result;
}

static int run(struct meta *meta, struct meta_req *req)
{
	meta_suite_start(meta, req);
	return meta_suite_wait(req);
}

/* ---- requests in one line ---- */

static struct meta_req *new_req(enum meta_op op)
{
	struct meta_req *req = meta_req_new(op);

	CHECK(req);
	return req;
}

static int put(struct meta *meta, struct view key, struct view value)
{
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = new_req(META_TXN);

	assert_int_equal(meta_txn_put(req, key, value), 0);
	return run(meta, req);
}

static int get(struct meta *meta, struct view key, struct buf *ret)
{
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = new_req(META_GET);

	assert_int_equal(meta_put_get(req, key), 0);
	int r = run(meta, req);
	ret->len = 0;
	assert_int_equal(buf_append(ret, req->out.ptr, req->out.len), 0);
	return r;
}

int meta_suite_put(struct meta *meta, const char *key, const char *text)
{
	return put(meta, view_str(key), view_str(text));
}

int meta_suite_get(struct meta *meta, const char *key, char *ret, size_t size)
{
	struct buf value = { 0 };
	int r = get(meta, view_str(key), &value);

	if (!r)
		(void)snprintf(ret, size, "%.*s", (int)value.len, (char *)value.ptr);
	buf_fini(&value);
	return r;
}

static void assert_value(struct meta *meta, const char *key, const char *expected)
{
	char text[256] = "";

	if (expected)
		assert_int_equal(meta_suite_get(meta, key, text, sizeof(text)), 0);
	else
		assert_int_equal(meta_suite_get(meta, key, text, sizeof(text)), -ENOENT);
	assert_string_equal(text, expected ? expected : "");
}

/* Keys (with their values after a '=') with @prefix past @after, in pages of @limit, as one text. */
static void range_all(struct meta *meta, const char *prefix, const char *after, uint32_t limit, struct buf *ret)
{
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = new_req(META_RANGE);
	_cleanup_(buf_fini) struct buf last = { 0 };
	uint32_t n = limit;
	int r = META_MORE;

	ret->len = 0;
	assert_int_equal(buf_append(&last, after, strlen(after)), 0);
	while (n == limit || r == META_MORE) {
		struct view rest, key, value;

		assert_int_equal(meta_put_range(req, view_str(prefix), view_buf(&last), limit), 0);
		r = run(meta, req);
		assert_true(r == 0 || r == META_MORE);
		rest = view_buf(&req->out);
		for (n = 0; !meta_out_entry(&rest, &key, &value); n++) {
			assert_int_equal(buf_printf(ret, "%.*s=%.*s ", (int)key.len, (const char *)key.ptr,
						    value.len < 20 ? (int)value.len : 20, (const char *)value.ptr),
					 0);
			last.len = 0;
			assert_int_equal(buf_append(&last, key.ptr, key.len), 0);
		}
		assert_int_equal(rest.len, 0);
		assert_true(n <= limit);
		assert_true(r != META_MORE || (n > 0 && n < limit));
	}
	assert_int_equal(buf_append(ret, "", 1), 0);
}

static void assert_range(struct meta *meta, const char *prefix, const char *after, const char *expected)
{
	_cleanup_(buf_fini) struct buf all = { 0 };

	for (uint32_t limit = 1; limit <= META_RANGE_MAX; limit = limit * 5 + 1) {
		range_all(meta, prefix, after, limit, &all);
		assert_string_equal((char *)all.ptr, expected);
	}
}

/* ---- records ---- */

static void what_was_put_is_read_back(void **state)
{
	struct meta *meta = *state;
	_cleanup_(cleanup_mem) uint8_t *bytes = malloc(META_VALUE_MAX);
	_cleanup_(buf_fini) struct buf back = { 0 };
	const size_t sizes[] = { 0, 1, 16, 1000, 4000, 4096, 8190, META_VALUE_MAX };
	uint8_t key[META_KEY_MAX];

	for (size_t i = 0; i < META_VALUE_MAX; i++)
		bytes[i] = (uint8_t)(i * i >> 7);
	for (size_t i = 0; i < META_KEY_MAX; i++)
		key[i] = (uint8_t)(255 - i); /* any bytes, 0 too */
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		struct view k = view_of(key, i ? META_KEY_MAX - i * 50 : META_KEY_MAX), v = view_of(bytes, sizes[i]);

		assert_int_equal(put(meta, k, v), 0);
		assert_int_equal(get(meta, k, &back), 0);
		assert_true(view_equal(view_buf(&back), v));
	}
	assert_int_equal(put(meta, view_of(key, META_KEY_MAX), view_str("another")), 0);
	assert_int_equal(get(meta, view_of(key, META_KEY_MAX), &back), 0);
	assert_true(view_equal(view_buf(&back), view_str("another")));
}

static void a_key_that_is_not_there_is_ENOENT(void **state)
{
	struct meta *meta = *state;

	assert_value(meta, "a", NULL);
	assert_int_equal(meta_suite_put(meta, "ab", "1"), 0);
	assert_value(meta, "a", NULL);
	assert_value(meta, "abc", NULL);
	assert_value(meta, "ab", "1");
}

static void a_conflict_changes_nothing_and_names_the_first_step(void **state)
{
	struct meta *meta = *state;
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = new_req(META_TXN);
	uint32_t index;

	assert_int_equal(meta_suite_put(meta, "a", "1"), 0);
	assert_int_equal(meta_txn_put(req, view_str("b"), view_str("2")), 0);
	assert_int_equal(meta_txn_expect(req, view_str("a"), view_str("1")), 0);
	assert_int_equal(meta_txn_expect(req, view_str("a"), view_str("2")), 0);
	assert_int_equal(meta_txn_expect(req, view_str("a"), absent), 0);
	assert_int_equal(meta_txn_delete(req, view_str("a")), 0);
	assert_int_equal(run(meta, req), META_CONFLICT);
	assert_int_equal(meta_out_conflict(view_buf(&req->out), &index), 0);
	assert_int_equal(index, 2);
	assert_value(meta, "a", "1");
	assert_value(meta, "b", NULL);
}

static void a_transaction_whose_expectations_hold_does_all_its_steps(void **state)
{
	struct meta *meta = *state;
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = new_req(META_TXN);

	assert_int_equal(meta_suite_put(meta, "gone", "1"), 0);
	assert_int_equal(meta_suite_put(meta, "empty", ""), 0);
	assert_int_equal(meta_txn_expect(req, view_str("gone"), view_str("1")), 0);
	assert_int_equal(meta_txn_expect(req, view_str("empty"), view_str("")), 0);
	assert_int_equal(meta_txn_expect(req, view_str("never"), absent), 0);
	assert_int_equal(meta_txn_delete(req, view_str("gone")), 0);
	assert_int_equal(meta_txn_delete(req, view_str("never")), 0);
	assert_int_equal(meta_txn_put(req, view_str("x"), view_str("first")), 0);
	assert_int_equal(meta_txn_put(req, view_str("x"), view_str("last")), 0);
	assert_int_equal(meta_txn_put(req, view_str("y"), view_str("y")), 0);
	assert_int_equal(meta_txn_delete(req, view_str("y")), 0);
	assert_int_equal(meta_txn_expect(req, view_str("x"), absent), 0); /* about what was there before */
	assert_int_equal(run(meta, req), 0);
	assert_int_equal(req->out.len, 0);
	assert_range(meta, "", "", "empty= x=last ");
}

static void an_empty_value_is_not_absence(void **state)
{
	struct meta *meta = *state;
	_cleanup_(cleanup_meta_req_free) struct meta_req *one = new_req(META_TXN), *two = new_req(META_TXN);

	assert_int_equal(meta_txn_expect(one, view_str("a"), view_str("")), 0);
	assert_int_equal(run(meta, one), META_CONFLICT);
	assert_int_equal(meta_suite_put(meta, "a", ""), 0);
	assert_int_equal(run(meta, one), 0);
	assert_int_equal(meta_txn_expect(two, view_str("a"), absent), 0);
	assert_int_equal(run(meta, two), META_CONFLICT);
}

static void a_transaction_without_steps_succeeds(void **state)
{
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = new_req(META_TXN);

	assert_int_equal(run(*state, req), 0);
}

static void of_many_that_expect_absence_one_wins(void **state)
{
	struct meta *meta = *state;
	struct meta_req *reqs[CROWD];
	char text[CROWD][32];
	int winner = -1;

	for (int i = 0; i < CROWD; i++) {
		(void)snprintf(text[i], sizeof(text[i]), "writer %d", i);
		reqs[i] = new_req(META_TXN);
		assert_int_equal(meta_txn_expect(reqs[i], view_str("slot"), absent), 0);
		assert_int_equal(meta_txn_put(reqs[i], view_str("slot"), view_str(text[i])), 0);
		meta_suite_start(meta, reqs[i]);
	}
	for (int i = 0; i < CROWD; i++) {
		int r = meta_suite_wait(reqs[i]);

		assert_true(r == META_CONFLICT || (r == 0 && winner == -1));
		winner = r == 0 ? i : winner;
		meta_req_free(reqs[i]);
	}
	assert_true(winner >= 0);
	assert_value(meta, "slot", text[winner]);
}

static void requests_that_travel_together_have_each_its_own_outcome(void **state)
{
	struct meta *meta = *state;
	struct meta_req *reqs[CROWD];
	char key[32];

	assert_int_equal(meta_suite_put(meta, "taken", "x"), 0);
	for (int i = 0; i < CROWD; i++) {
		(void)snprintf(key, sizeof(key), "k%03d", i);
		reqs[i] = new_req(META_TXN);
		if (i % 3 == 1) {
			assert_int_equal(meta_txn_expect(reqs[i], view_str("taken"), absent), 0);
		} else if (i % 3 == 2) {
			assert_int_equal(buf_append(&reqs[i]->in, "\x09rubbish", 8), 0);
			reqs[i]->in.ptr[1] = 1;
		}
		if (i % 3 != 2)
			assert_int_equal(meta_txn_put(reqs[i], view_str(key), view_str(key)), 0);
		meta_suite_start(meta, reqs[i]);
	}
	for (int i = 0; i < CROWD; i++) {
		assert_int_equal(meta_suite_wait(reqs[i]), i % 3 == 0 ? 0 : i % 3 == 1 ? META_CONFLICT : -EPROTO);
		(void)snprintf(key, sizeof(key), "k%03d", i);
		assert_value(meta, key, i % 3 == 0 ? key : NULL);
		meta_req_free(reqs[i]);
	}
}

static void malformed_requests_are_EPROTO_and_change_nothing(void **state)
{
	struct meta *meta = *state;
	const enum meta_op ops[] = { META_GET, META_RANGE, META_TXN, META_LEASE, META_RELEASE, META_RENEW };

	for (size_t i = 0; i < ARRAY_LEN(ops); i++) {
		_cleanup_(cleanup_meta_req_free) struct meta_req *req = new_req(ops[i]);

		if (ops[i] != META_TXN) /* which is fine when empty */
			assert_int_equal(run(meta, req), -EPROTO);
		assert_int_equal(buf_append_zero(&req->in, META_KEY_MAX + 1), 0);
		assert_int_equal(run(meta, req), -EPROTO);
	}
	assert_range(meta, "", "", "");
}

/* ---- ranges ---- */

static void a_range_is_in_byte_order_and_bounded_by_prefix_and_after(void **state)
{
	struct meta *meta = *state;
	static const char *const keys[] = { "b", "a/2", "a/10", "a", "a0", "a/1", "c/\xff", "\xff", "a/1/x" };

	for (size_t i = 0; i < ARRAY_LEN(keys); i++)
		assert_int_equal(meta_suite_put(meta, keys[i], ""), 0);
	assert_range(meta, "", "", "a= a/1= a/1/x= a/10= a/2= a0= b= c/\xff= \xff= ");
	assert_range(meta, "a/", "", "a/1= a/1/x= a/10= a/2= ");
	assert_range(meta, "a/", "a/1", "a/1/x= a/10= a/2= ");
	assert_range(meta, "a/", "a/11", "a/2= ");
	assert_range(meta, "a/", "a/2", "");
	assert_range(meta, "a/", "b", "");
	assert_range(meta, "a/", "A", "a/1= a/1/x= a/10= a/2= ");
	assert_range(meta, "a/3", "", "");
	assert_range(meta, "c/", "", "c/\xff= ");
	assert_range(meta, "\xff", "", "\xff= ");
	assert_range(meta, "", "\xff", "");
}

static void a_range_is_empty_where_nothing_is(void **state)
{
	assert_range(*state, "", "", "");
	assert_range(*state, "x/", "", "");
}

static void a_range_of_large_values_comes_in_several_answers(void **state)
{
	struct meta *meta = *state;
	_cleanup_(cleanup_mem) char *large = malloc(META_VALUE_MAX);
	_cleanup_(buf_fini) struct buf all = { 0 }, expected = { 0 };

	memset(large, 'v', META_VALUE_MAX);
	for (int i = 0; i < 40; i++) { /* 2.6 MB */
		char key[16];

		(void)snprintf(key, sizeof(key), "%02d", i);
		assert_int_equal(put(meta, view_str(key), view_of(large, META_VALUE_MAX)), 0);
		assert_int_equal(buf_printf(&expected, "%s=vvvvvvvvvvvvvvvvvvvv ", key), 0);
	}
	assert_int_equal(buf_append(&expected, "", 1), 0);
	range_all(meta, "", "", META_RANGE_MAX, &all);
	assert_string_equal((char *)all.ptr, (char *)expected.ptr);
}

static void a_thousand_records_are_listed_after_random_puts_and_deletes(void **state)
{
	struct meta *meta = *state;
	_cleanup_(buf_fini) struct buf expected = { 0 };
	bool present[1000] = { false };
	uint64_t x = 88172645463325252;

	for (int round = 0; round < 40; round++) {
		_cleanup_(cleanup_meta_req_free) struct meta_req *req = new_req(META_TXN);

		for (int i = 0; i < 200; i++) {
			char key[8];

			x ^= x << 13, x ^= x >> 7, x ^= x << 17;
			int k = (int)(x % 1000);
			present[k] = x >> 40 & 3;
			(void)snprintf(key, sizeof(key), "%03d", k);
			assert_int_equal(present[k] ? meta_txn_put(req, view_str(key), view_str(key)) :
						      meta_txn_delete(req, view_str(key)),
					 0);
		}
		assert_int_equal(run(meta, req), 0);
	}
	for (int k = 0; k < 1000; k++)
		if (present[k])
			assert_int_equal(buf_printf(&expected, "%03d=%03d ", k, k), 0);
	assert_int_equal(buf_append(&expected, "", 1), 0);
	assert_range(meta, "", "", (char *)expected.ptr);
}

/* ---- leases ---- */

/* @epoch: which it shall be above, or which is renewed. */
static int ask(struct meta *meta, enum meta_op op, const char *key, uint64_t asker, uint64_t epoch,
	       uint64_t *ret_holder, uint64_t *ret_epoch)
{
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = new_req(op);

	assert_int_equal(meta_put_lease(req, view_str(key), asker, TTL_MS, epoch), 0);
	int r = run(meta, req);
	if (r >= 0)
		assert_int_equal(meta_out_lease(view_buf(&req->out), ret_holder, ret_epoch), 0);
	return r;
}

static int lease(struct meta *meta, const char *key, uint64_t asker, uint64_t *ret_holder, uint64_t *ret_epoch)
{
	return ask(meta, META_LEASE, key, asker, 0, ret_holder, ret_epoch);
}

static void release(struct meta *meta, const char *key, uint64_t asker, uint64_t epoch)
{
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = new_req(META_RELEASE);

	assert_int_equal(meta_put_lease(req, view_str(key), asker, 0, epoch), 0);
	assert_int_equal(run(meta, req), 0);
	assert_int_equal(req->out.len, 0);
}

static void assert_granted(struct meta *meta, uint64_t asker, uint64_t expected_epoch)
{
	uint64_t holder, epoch;

	assert_int_equal(lease(meta, "l", asker, &holder, &epoch), 0);
	assert_true(holder == asker);
	assert_true(epoch == expected_epoch);
}

static void assert_held(struct meta *meta, uint64_t asker, uint64_t expected_holder, uint64_t expected_epoch)
{
	uint64_t holder, epoch;

	assert_int_equal(lease(meta, "l", asker, &holder, &epoch), META_HELD);
	assert_true(holder == expected_holder);
	assert_true(epoch == expected_epoch);
}

static void pass(struct meta *meta, uint64_t ms)
{
	suite->pass(suite, meta, ms);
}

static void a_lease_is_held_by_one_and_its_renewal_keeps_the_epoch(void **state)
{
	struct meta *meta = *state;

	assert_granted(meta, ANN, 1);
	assert_held(meta, BOB, ANN, 1);
	assert_granted(meta, ANN, 1);
	for (int i = 0; i < 5; i++) {
		pass(meta, TTL_MS / 2);
		assert_granted(meta, ANN, 1);
		assert_held(meta, BOB, ANN, 1);
	}
}

static void another_is_granted_the_next_epoch_once_the_lease_ran_out(void **state)
{
	struct meta *meta = *state;

	assert_granted(meta, ANN, 1);
	pass(meta, TTL_MS + 10); /* run out for the holder; the granter waits 1.1 of it */
	assert_held(meta, BOB, ANN, 1);
	pass(meta, TTL_MS / 10);
	assert_granted(meta, BOB, 2);
	assert_held(meta, ANN, BOB, 2);
}

static void a_late_renewal_keeps_the_epoch_if_nobody_came_between(void **state)
{
	struct meta *meta = *state;

	assert_granted(meta, ANN, 1);
	pass(meta, 10 * TTL_MS);
	assert_granted(meta, ANN, 1);
	assert_held(meta, BOB, ANN, 1);
}

static void a_released_lease_is_free_at_once_and_the_epoch_goes_on(void **state)
{
	struct meta *meta = *state;

	release(meta, "l", ANN, 1); /* nobody has it: nothing happens */
	assert_granted(meta, ANN, 1);
	release(meta, "l", BOB, 1); /* somebody else has it */
	assert_held(meta, BOB, ANN, 1);
	release(meta, "l", ANN, 1);
	release(meta, "l", ANN, 1);
	assert_granted(meta, BOB, 2);
	release(meta, "l", BOB, 2);
	assert_granted(meta, BOB, 3);
}

static void a_release_that_comes_late_does_not_end_a_newer_lease_of_the_same_holder(void **state)
{
	struct meta *meta = *state;
	uint64_t holder, epoch;

	assert_granted(meta, ANN, 1);
	release(meta, "l", ANN, 1);
	assert_granted(meta, ANN, 2);
	release(meta, "l", ANN, 1);
	assert_held(meta, BOB, ANN, 2);

	/* whoever does not know whether it was released asks for an epoch above that one */
	assert_int_equal(ask(meta, META_LEASE, "l", ANN, 2, &holder, &epoch), 0);
	assert_int_equal(epoch, 3);
	release(meta, "l", ANN, 2);
	assert_held(meta, BOB, ANN, 3);
}

static void a_grant_is_above_what_is_asked_for_and_above_every_one_before(void **state)
{
	struct meta *meta = *state;
	uint64_t holder, epoch, above = UINT64_C(1) << 32;

	assert_int_equal(ask(meta, META_LEASE, "l", ANN, above, &holder, &epoch), 0);
	assert_true(epoch == above + 1);
	assert_int_equal(ask(meta, META_LEASE, "l", ANN, above, &holder, &epoch), 0);
	assert_true(epoch == above + 1); /* above it already */
	assert_int_equal(ask(meta, META_LEASE, "l", BOB, 2 * above, &holder, &epoch), META_HELD);
	assert_true(holder == ANN && epoch == above + 1);
	assert_int_equal(ask(meta, META_LEASE, "l", ANN, 2 * above, &holder, &epoch), 0);
	assert_true(epoch == 2 * above + 1);
	release(meta, "l", ANN, epoch);
	assert_granted(meta, BOB, 2 * above + 2);
}

static void who_renews_is_granted_nothing_that_he_has_not(void **state)
{
	struct meta *meta = *state;
	uint64_t holder, epoch;

	assert_int_equal(ask(meta, META_RENEW, "l", ANN, 1, &holder, &epoch), META_HELD);
	assert_true(!holder && !epoch); /* as in an engine that was lost */
	assert_granted(meta, ANN, 1);
	pass(meta, 10 * TTL_MS);
	assert_int_equal(ask(meta, META_RENEW, "l", ANN, 1, &holder, &epoch), 0);
	assert_true(holder == ANN && epoch == 1);
	assert_held(meta, BOB, ANN, 1); /* for so long, too */
	assert_int_equal(ask(meta, META_RENEW, "l", ANN, 2, &holder, &epoch), META_HELD);
	assert_int_equal(ask(meta, META_RENEW, "l", BOB, 1, &holder, &epoch), META_HELD);
	assert_true(holder == ANN && epoch == 1);
	pass(meta, 2 * TTL_MS);
	assert_granted(meta, BOB, 2);
	assert_int_equal(ask(meta, META_RENEW, "l", ANN, 1, &holder, &epoch), META_HELD);
	assert_true(holder == BOB && epoch == 2);
	release(meta, "l", BOB, 2);
	assert_int_equal(ask(meta, META_RENEW, "l", BOB, 2, &holder, &epoch), META_HELD);
	assert_true(!holder && epoch == 2);
}

static void leases_under_different_keys_do_not_touch_each_other(void **state)
{
	struct meta *meta = *state;
	uint64_t holder, epoch;

	assert_granted(meta, ANN, 1);
	assert_int_equal(lease(meta, "l/2", BOB, &holder, &epoch), 0);
	assert_int_equal(epoch, 1);
	assert_held(meta, BOB, ANN, 1);
}

static void of_many_askers_one_gets_the_lease_and_all_hear_who(void **state)
{
	struct meta *meta = *state;
	struct meta_req *reqs[CROWD];
	int granted = 0;

	for (int i = 0; i < CROWD; i++) {
		reqs[i] = new_req(META_LEASE);
		assert_int_equal(meta_put_lease(reqs[i], view_str("l"), (uint64_t)i + 1, TTL_MS, 0), 0);
		meta_suite_start(meta, reqs[i]);
	}
	uint64_t first_holder = 0;
	for (int i = 0; i < CROWD; i++) {
		uint64_t holder, epoch;
		int r = meta_suite_wait(reqs[i]);

		assert_true(r == 0 || r == META_HELD);
		assert_int_equal(meta_out_lease(view_buf(&reqs[i]->out), &holder, &epoch), 0);
		assert_int_equal(epoch, 1);
		assert_true(!first_holder || holder == first_holder);
		assert_true((r == 0) == (holder == (uint64_t)i + 1));
		first_holder = holder;
		granted += r == 0;
		meta_req_free(reqs[i]);
	}
	assert_int_equal(granted, 1);
}

static void a_transaction_that_expects_the_record_fences_out_an_overtaken_holder(void **state)
{
	struct meta *meta = *state;
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = new_req(META_TXN);
	_cleanup_(buf_fini) struct buf record = { 0 };
	struct meta_lease_record expected;

	assert_granted(meta, ANN, 1);
	assert_int_equal(get(meta, view_str("l"), &record), 0);
	store_le64(expected.holder_le, ANN);
	store_le64(expected.epoch_le, 1);
	assert_true(view_equal(view_buf(&record), view_of(&expected, sizeof(expected))));
	assert_int_equal(meta_txn_expect(req, view_str("l"), view_buf(&record)), 0);
	assert_int_equal(meta_txn_put(req, view_str("by"), view_str("ann")), 0);
	assert_int_equal(run(meta, req), 0);
	pass(meta, 2 * TTL_MS);
	assert_int_equal(run(meta, req), 0); /* run out, but nobody else has it: a renewal would succeed as well */
	assert_granted(meta, BOB, 2);
	assert_int_equal(run(meta, req), META_CONFLICT);

	release(meta, "l", BOB, 2);
	store_le64(expected.holder_le, 0);
	store_le64(expected.epoch_le, 2);
	assert_int_equal(get(meta, view_str("l"), &record), 0);
	assert_true(view_equal(view_buf(&record), view_of(&expected, sizeof(expected))));
}

static void what_is_no_lease_is_not_taken_for_one(void **state)
{
	struct meta *meta = *state;
	_cleanup_(cleanup_meta_req_free) struct meta_req *req = new_req(META_LEASE);
	uint64_t holder, epoch;

	assert_int_equal(meta_suite_put(meta, "l", "text"), 0);
	assert_int_equal(lease(meta, "l", ANN, &holder, &epoch), -EINVAL);
	assert_value(meta, "l", "text");
	assert_int_equal(meta_put_lease(req, view_str("m"), ANN, 0, 0), 0); /* a release's time to live */
	assert_int_equal(run(meta, req), -EINVAL);
}

/* ---- restarts ---- */

static void restart(void **state)
{
	if (!suite->restart)
		skip();
	struct meta *meta = *state;
	assert_int_equal(suite->restart(suite, &meta), 0);
	*state = meta;
}

static void records_outlive_a_restart(void **state)
{
	assert_int_equal(meta_suite_put(*state, "a", "1"), 0);
	assert_int_equal(meta_suite_put(*state, "b", ""), 0);
	restart(state);
	assert_range(*state, "", "", "a=1 b= ");
}

static void after_a_restart_the_recorded_holder_counts_as_holding_for_the_longest_lease(void **state)
{
	assert_granted(*state, ANN, 1);
	restart(state);
	assert_held(*state, BOB, ANN, 1);
	pass(*state, META_LEASE_MAX_MS - 1000);
	assert_held(*state, BOB, ANN, 1);
	pass(*state, 1000);
	assert_granted(*state, BOB, 2);
}

static void after_a_restart_the_holder_may_renew_and_then_holds_as_before(void **state)
{
	assert_granted(*state, ANN, 1);
	restart(state);
	assert_granted(*state, ANN, 1);
	pass(*state, TTL_MS + TTL_MS / 10);
	assert_granted(*state, BOB, 2);
}

static void after_a_restart_a_released_lease_is_free(void **state)
{
	assert_granted(*state, ANN, 1);
	release(*state, "l", ANN, 1);
	restart(state);
	assert_granted(*state, BOB, 2);
}

static int setup(void **state)
{
	struct meta *meta;
	int r = suite->open(suite, &meta);

	*state = meta;
	return r;
}

static int teardown(void **state)
{
	suite->close(suite, *state);
	return 0;
}

#define claim(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int meta_suite_run(struct meta_suite *of)
{
	const struct CMUnitTest tests[] = {
		claim(what_was_put_is_read_back),
		claim(a_key_that_is_not_there_is_ENOENT),
		claim(a_conflict_changes_nothing_and_names_the_first_step),
		claim(a_transaction_whose_expectations_hold_does_all_its_steps),
		claim(an_empty_value_is_not_absence),
		claim(a_transaction_without_steps_succeeds),
		claim(of_many_that_expect_absence_one_wins),
		claim(requests_that_travel_together_have_each_its_own_outcome),
		claim(malformed_requests_are_EPROTO_and_change_nothing),
		claim(a_range_is_in_byte_order_and_bounded_by_prefix_and_after),
		claim(a_range_is_empty_where_nothing_is),
		claim(a_range_of_large_values_comes_in_several_answers),
		claim(a_thousand_records_are_listed_after_random_puts_and_deletes),
		claim(a_lease_is_held_by_one_and_its_renewal_keeps_the_epoch),
		claim(another_is_granted_the_next_epoch_once_the_lease_ran_out),
		claim(a_late_renewal_keeps_the_epoch_if_nobody_came_between),
		claim(a_released_lease_is_free_at_once_and_the_epoch_goes_on),
		claim(a_release_that_comes_late_does_not_end_a_newer_lease_of_the_same_holder),
		claim(a_grant_is_above_what_is_asked_for_and_above_every_one_before),
		claim(who_renews_is_granted_nothing_that_he_has_not),
		claim(leases_under_different_keys_do_not_touch_each_other),
		claim(of_many_askers_one_gets_the_lease_and_all_hear_who),
		claim(a_transaction_that_expects_the_record_fences_out_an_overtaken_holder),
		claim(what_is_no_lease_is_not_taken_for_one),
		claim(records_outlive_a_restart),
		claim(after_a_restart_the_recorded_holder_counts_as_holding_for_the_longest_lease),
		claim(after_a_restart_the_holder_may_renew_and_then_holds_as_before),
		claim(after_a_restart_a_released_lease_is_free),
	};

	suite = of;
	return cmocka_run_group_tests_name(of->name, tests, NULL, NULL);
}
