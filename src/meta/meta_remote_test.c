/*
 * meta/meta_remote_test.c: answers that no engine would give. (The suite runs over a remote in meta_lmdb_test.c.)
 */
#include "meta/meta.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <errno.h>
#include <string.h>

#include "base/check.h"

static int n_finished;

static void finished(struct meta_req *req)
{
	n_finished++;
}

static void hold(void *arg, struct meta_req *req) /* the test answers */
{
	*(struct meta_req **)arg = req;
}

/* What a caller gets when the engine answers @result and @len bytes. */
static int answered(enum meta_op op, int result, size_t len)
{
	static const uint8_t bytes[META_REQ_MAX + 1];
	struct meta_req *held = NULL, *req = meta_req_new(op);
	struct meta_remote_call call = { .send = hold, .arg = &held };
	struct meta *meta;

	assert_int_equal(meta_remote_new(NULL, &call, &meta), 0);
	req->finish = finished;
	n_finished = 0;
	meta_submit(meta, req);
	assert_ptr_equal(held, req);
	assert_int_equal(n_finished, 0);
	meta_remote_answer(req, result, view_of(bytes, len));
	assert_int_equal(n_finished, 1);
	int r = req->result;
	assert_int_equal(req->error.code, r < 0 ? r : 0);
	assert_int_equal(req->out.len, r < 0 ? 0 : len);
	meta_req_free(req);
	meta_free(meta);
	return r;
}

static void right_answers_are_passed_on(void **state)
{
	assert_int_equal(answered(META_GET, 0, 0), 0);
	assert_int_equal(answered(META_GET, 0, META_VALUE_MAX), 0);
	assert_int_equal(answered(META_GET, -ENOENT, 0), -ENOENT);
	assert_int_equal(answered(META_RANGE, META_MORE, 500), META_MORE);
	assert_int_equal(answered(META_TXN, 0, 0), 0);
	assert_int_equal(answered(META_TXN, META_CONFLICT, 4), META_CONFLICT);
	assert_int_equal(answered(META_LEASE, META_HELD, 16), META_HELD);
	assert_int_equal(answered(META_RELEASE, 0, 0), 0);
	assert_int_equal(answered(META_RELEASE, -ERR_EDAMAGED, 7), -ERR_EDAMAGED);
}

static void answers_that_no_engine_gives_are_EPROTO(void **state)
{
	assert_int_equal(answered(META_GET, META_HELD, 16), -EPROTO);
	assert_int_equal(answered(META_GET, 0, META_VALUE_MAX + 1), -EPROTO);
	assert_int_equal(answered(META_RANGE, META_CONFLICT, 4), -EPROTO);
	assert_int_equal(answered(META_RANGE, 0, META_REQ_MAX + 1), -EPROTO);
	assert_int_equal(answered(META_TXN, 0, 1), -EPROTO);
	assert_int_equal(answered(META_TXN, META_CONFLICT, 0), -EPROTO);
	assert_int_equal(answered(META_LEASE, 0, 15), -EPROTO);
	assert_int_equal(answered(META_LEASE, META_MORE, 16), -EPROTO);
	assert_int_equal(answered(META_RELEASE, 0, 16), -EPROTO);
	assert_int_equal(answered((enum meta_op)99, 0, 0), -EPROTO);
}

static void a_failure_without_words_gets_some(void **state)
{
	struct meta_req *held = NULL, *req = meta_req_new(META_GET);
	struct meta_remote_call call = { .send = hold, .arg = &held };
	struct meta *meta;

	assert_int_equal(meta_remote_new(NULL, &call, &meta), 0);
	req->finish = finished;
	meta_submit(meta, req);
	meta_remote_answer(req, -ENOSPC, (struct view){ 0 });
	assert_non_null(strstr(req->error.text, "another node"));

	meta_submit(meta, req);
	(void)error_set(&req->error, -EIO, "n2's own words");
	meta_remote_answer(req, -EIO, (struct view){ 0 });
	assert_string_equal(req->error.text, "n2's own words");
	meta_req_free(req);
	meta_free(meta);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(right_answers_are_passed_on),
		cmocka_unit_test(answers_that_no_engine_gives_are_EPROTO),
		cmocka_unit_test(a_failure_without_words_gets_some),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
