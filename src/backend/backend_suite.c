/*
 * backend/backend_suite.c: the conformance suite of backends: the promises of backend.h, one test each.
 */
#include "backend/backend_suite.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"

#define PATIENCE_MS 60000
#define BIG_BYTES   (3 * 262144 + 777) /* more than one piece of any driver, and odd */
#define CROWD	    24		       /* requests at the same time */

static struct backend_suite *suite; /* cmocka hands no argument to setup functions */

/* ---- turning the loop ---- */

struct call {
	struct backend_req req;
	bool finished;
};

static void call_finished(struct backend_req *req)
{
	struct call *call = container_of(req, struct call, req);

	CHECK(!call->finished);
	call->finished = true;
	loop_stop(req->backend->env->loop);
}

struct alarm {
	struct timer timer;
	struct loop *loop;
};

static void alarm_rings(struct timer *timer)
{
	loop_stop(container_of(timer, struct alarm, timer)->loop);
}

static void call_wait(struct call *call)
{
	struct env *env = call->req.backend->env;
	uint64_t deadline_ns = env_in_ms(env, PATIENCE_MS);
	struct alarm alarm = { .timer.fn = alarm_rings, .loop = env->loop };

	CHECK(timer_arm(env->loop, &alarm.timer, deadline_ns) == 0);
	while (!call->finished) {
		CHECK(env_now(env) < deadline_ns);
		CHECK(loop_run(env->loop) == 0);
	}
	timer_disarm(env->loop, &alarm.timer);
}

static void call_start(struct backend *backend, struct call *call)
{
	call->finished = false;
	call->req.finish = call_finished;
	backend_submit(backend, &call->req);
	assert_false(call->finished);
}

/* A request's result, its words checked: there are some exactly when it failed, and they agree with it. */
static int call_result(struct call *call)
{
	call_wait(call);
	if (call->req.result < 0) {
		assert_int_equal(call->req.error.code, call->req.result);
		assert_true(strlen(call->req.error.text) > 0);
	} else {
		assert_int_equal(call->req.error.code, 0);
	}
	return call->req.result;
}

static int call_run(struct backend *backend, struct call *call)
{
	call_start(backend, call);
	return call_result(call);
}

int backend_suite_call(struct backend *backend, struct backend_req *req)
{
	struct call *call = calloc(1, sizeof(*call));

	CHECK(call);
	call->req = *req;
	int r = call_run(backend, call);
	*req = call->req;
	free(call);
	return r;
}

static struct call *call_new(enum backend_op op, const char *key)
{
	struct call *call = calloc(1, sizeof(*call));

	CHECK(call);
	call->req.op = op;
	(void)snprintf(call->req.key, sizeof(call->req.key), "%s", key);
	return call;
}

static void call_free(struct call *call)
{
	buf_fini(&call->req.out);
	free(call);
}

CLEANUP_OF(struct call *, call_free);

/* ---- requests in one line ---- */

static struct backend_vec vec_of(const void *p, size_t len)
{
	return (struct backend_vec){ .ptr = p, .len = len, .crc = crc32c(0, p, len) };
}

static int put(struct backend *b, const char *key, const void *p, size_t len, bool if_absent)
{
	_cleanup_(cleanup_call_free) struct call *call = call_new(BACKEND_PUT, key);
	struct backend_vec vec = vec_of(p, len);

	call->req.vec = &vec;
	call->req.n_vec = 1;
	call->req.if_absent = if_absent;
	return call_run(b, call);
}

int backend_suite_put(struct backend *backend, const char *key, const char *text, bool if_absent)
{
	return put(backend, key, text, strlen(text), if_absent);
}

#define put_text backend_suite_put

static int get(struct backend *b, const char *key, uint64_t offset, void *dst, size_t len, size_t *ret_got)
{
	_cleanup_(cleanup_call_free) struct call *call = call_new(BACKEND_GET, key);

	call->req.offset = offset;
	call->req.dst = dst;
	call->req.len = len;
	int r = call_run(b, call);
	*ret_got = call->req.got;
	return r;
}

static int head(struct backend *b, const char *key, uint64_t *ret_size)
{
	_cleanup_(cleanup_call_free) struct call *call = call_new(BACKEND_HEAD, key);
	int r = call_run(b, call);

	*ret_size = call->req.size;
	return r;
}

static int delete (struct backend *b, const char *key)
{
	_cleanup_(cleanup_call_free) struct call *call = call_new(BACKEND_DELETE, key);

	return call_run(b, call);
}

static int begin(struct backend *b, const char *key, struct backend_upload **ret)
{
	_cleanup_(cleanup_call_free) struct call *call = call_new(BACKEND_BEGIN, key);
	int r = call_run(b, call);

	assert_true((r == 0) == (call->req.upload != NULL));
	*ret = call->req.upload;
	return r;
}

static int part(struct backend *b, struct backend_upload *upload, uint64_t offset, const void *p, size_t len)
{
	_cleanup_(cleanup_call_free) struct call *call = call_new(BACKEND_PART, "");
	struct backend_vec vec = vec_of(p, len);

	call->req.upload = upload;
	call->req.offset = offset;
	call->req.vec = &vec;
	call->req.n_vec = 1;
	return call_run(b, call);
}

static int commit(struct backend *b, struct backend_upload *upload, size_t size, bool if_absent)
{
	_cleanup_(cleanup_call_free) struct call *call = call_new(BACKEND_COMMIT, "");

	call->req.upload = upload;
	call->req.len = size;
	call->req.if_absent = if_absent;
	int r = call_run(b, call);
	assert_null(call->req.upload);
	return r;
}

static int abort_upload(struct backend *b, struct backend_upload *upload)
{
	_cleanup_(cleanup_call_free) struct call *call = call_new(BACKEND_ABORT, "");

	call->req.upload = upload;
	int r = call_run(b, call);
	assert_null(call->req.upload);
	return r;
}

static void assert_object(struct backend *b, const char *key, const void *p, size_t len)
{
	uint8_t *back = malloc(len + 1);
	size_t got;
	uint64_t size;

	assert_int_equal(head(b, key, &size), 0);
	assert_int_equal(size, len);
	assert_int_equal(get(b, key, 0, back, len + 1, &got), 0);
	assert_int_equal(got, len);
	assert_memory_equal(back, p, len);
	free(back);
}

static void assert_text(struct backend *b, const char *key, const char *text)
{
	assert_object(b, key, text, strlen(text));
}

static void assert_absent(struct backend *b, const char *key)
{
	char c;
	size_t got;
	uint64_t size;

	assert_int_equal(head(b, key, &size), -ENOENT);
	assert_int_equal(get(b, key, 0, &c, 1, &got), -ENOENT);
}

/* All keys under @prefix past @after, in pages of @page, into @ret as one text with a blank after each. */
static void list_all(struct backend *b, const char *prefix, const char *after, size_t page, struct buf *ret)
{
	_cleanup_(cleanup_call_free) struct call *call = call_new(BACKEND_LIST, prefix);

	(void)snprintf(call->req.after, sizeof(call->req.after), "%s", after);
	call->req.len = page;
	ret->len = 0;
	do {
		const char *key;
		size_t n = 0;

		assert_int_equal(call_run(b, call), 0);
		key = (const char *)call->req.out.ptr;
		for (; n < call->req.got; n++, key += strlen(key) + 1) {
			assert_int_equal(buf_printf(ret, "%s ", key), 0);
			memcpy(call->req.after, key, strlen(key) + 1);
		}
		assert_true((const uint8_t *)key == call->req.out.ptr + call->req.out.len);
		assert_true(call->req.got <= page);
	} while (call->req.got == page);
	assert_int_equal(buf_append(ret, "", 1), 0);
}

static void assert_list(struct backend *b, const char *prefix, const char *after, const char *expected)
{
	struct buf keys = { 0 };

	for (size_t page = 1; page <= 1000; page = page * 3 + 1) {
		list_all(b, prefix, after, page, &keys);
		assert_string_equal((char *)keys.ptr, expected);
	}
	buf_fini(&keys);
}

static uint8_t *big_bytes(void)
{
	uint8_t *big = malloc(BIG_BYTES);
	uint64_t x = 88172645463325252;

	CHECK(big);
	for (size_t i = 0; i < BIG_BYTES; i++) {
		x ^= x << 13, x ^= x >> 7, x ^= x << 17;
		big[i] = (uint8_t)x;
	}
	return big;
}

/* ---- objects ---- */

static void an_object_is_read_back_whole_and_in_ranges(void **state)
{
	struct backend *b = *state;
	_cleanup_(cleanup_mem) uint8_t *big = big_bytes(), *back = malloc(BIG_BYTES);
	const uint64_t offsets[] = { 0, 1, 4095, 262143, 262144, BIG_BYTES - 1 };
	size_t got;

	assert_int_equal(put(b, "t/x/b/one", big, BIG_BYTES, true), 0);
	assert_object(b, "t/x/b/one", big, BIG_BYTES);
	for (size_t i = 0; i < ARRAY_LEN(offsets); i++) {
		size_t len = BIG_BYTES - offsets[i] < 300000 ? BIG_BYTES - offsets[i] : 300000;

		assert_int_equal(get(b, "t/x/b/one", offsets[i], back, len, &got), 0);
		assert_int_equal(got, len);
		assert_memory_equal(back, big + offsets[i], len);
	}
}

static void a_range_past_the_end_is_short_or_empty(void **state)
{
	struct backend *b = *state;
	char back[8];
	size_t got;

	assert_int_equal(put_text(b, "k", "abc", false), 0);
	assert_int_equal(get(b, "k", 1, back, sizeof(back), &got), 0);
	assert_int_equal(got, 2);
	assert_memory_equal(back, "bc", 2);
	assert_int_equal(get(b, "k", 3, back, sizeof(back), &got), 0);
	assert_int_equal(got, 0);
	assert_int_equal(get(b, "k", UINT64_C(1) << 40, back, sizeof(back), &got), 0);
	assert_int_equal(got, 0);
	assert_int_equal(get(b, "k", 0, back, 0, &got), 0);
	assert_int_equal(got, 0);
}

static void an_object_may_be_empty_or_of_many_pieces(void **state)
{
	struct backend *b = *state;
	_cleanup_(cleanup_call_free) struct call *call = call_new(BACKEND_PUT, "pieces");
	const struct backend_vec vec[] = { vec_of("ab", 2), vec_of("", 0), vec_of("c", 1), vec_of("defg", 4) };

	assert_int_equal(put_text(b, "empty", "", true), 0);
	assert_text(b, "empty", "");
	call->req.vec = vec;
	call->req.n_vec = ARRAY_LEN(vec);
	assert_int_equal(call_run(b, call), 0);
	assert_text(b, "pieces", "abcdefg");
}

static void what_is_not_there_is_ENOENT(void **state)
{
	struct backend *b = *state;

	assert_absent(b, "a");
	assert_absent(b, "a/b/c");
	assert_int_equal(put_text(b, "a/b", "x", true), 0);
	assert_absent(b, "a");	   /* a directory, if the driver has such things, is no object */
	assert_absent(b, "a/b/c"); /* nor has an object others below it */
	assert_absent(b, "a/c");
}

static void a_taken_key_is_left_alone_with_if_absent(void **state)
{
	struct backend *b = *state;

	assert_int_equal(put_text(b, "v/1/root", "first", true), 0);
	assert_int_equal(put_text(b, "v/1/root", "other", true), BACKEND_EXISTS);
	assert_int_equal(put_text(b, "v/1/root", "first", true), BACKEND_EXISTS);
	assert_text(b, "v/1/root", "first");
}

static void a_put_without_if_absent_replaces_the_object_whole(void **state)
{
	struct backend *b = *state;

	assert_int_equal(put_text(b, "k/k", "a long object", false), 0);
	assert_int_equal(put_text(b, "k/k", "short", false), 0);
	assert_text(b, "k/k", "short");
	assert_list(b, "", "", "k/k ");
}

static void of_many_writers_with_if_absent_one_wins(void **state)
{
	struct backend *b = *state;
	struct call *calls[CROWD];
	struct backend_vec vec[CROWD];
	char text[CROWD][32];
	int winner = -1;

	for (int i = 0; i < CROWD; i++) {
		(void)snprintf(text[i], sizeof(text[i]), "writer %d", i);
		vec[i] = vec_of(text[i], strlen(text[i]));
		calls[i] = call_new(BACKEND_PUT, "t/x/deep/er/slot");
		calls[i]->req.vec = &vec[i];
		calls[i]->req.n_vec = 1;
		calls[i]->req.if_absent = true;
		call_start(b, calls[i]);
	}
	for (int i = 0; i < CROWD; i++) {
		int r = call_result(calls[i]);

		assert_true(r == 0 || r == BACKEND_EXISTS);
		if (r == 0) {
			assert_int_equal(winner, -1);
			winner = i;
		}
		call_free(calls[i]);
	}
	assert_true(winner >= 0);
	assert_text(b, "t/x/deep/er/slot", text[winner]);
}

static void bytes_that_changed_after_their_crc_publish_nothing(void **state)
{
	struct backend *b = *state;
	_cleanup_(cleanup_mem) uint8_t *big = big_bytes();
	_cleanup_(cleanup_call_free) struct call *call = call_new(BACKEND_PUT, "x/changed");
	struct backend_vec vec[2] = { vec_of("head", 4), vec_of(big, BIG_BYTES) };

	big[BIG_BYTES - 1] ^= 1;
	call->req.vec = vec;
	call->req.n_vec = 2;
	assert_int_equal(call_run(b, call), -ERR_ECHANGED);
	assert_absent(b, "x/changed");
	assert_list(b, "", "", "");
}

static void a_malformed_key_is_refused(void **state)
{
	struct backend *b = *state;
	static const char *const bad[] = { "",	   "/",	   "/a",       "a/",   "a//b",	   ".",	  "..",
					   "a/..", "../a", "a/./b",    ".tmp", "a/.tmp/b", "a b", "a\nb",
					   "a\\b", "a*",   "\xc3\xa4", "a:b",  "a+b",	   "~" };
	uint64_t size;

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		assert_false(backend_key_is_valid(bad[i]));
		assert_int_equal(put_text(b, bad[i], "x", false), -EINVAL);
		assert_int_equal(head(b, bad[i], &size), -EINVAL);
		assert_int_equal(delete (b, bad[i]), -EINVAL);
	}
	assert_list(b, "", "", "");
}

static void a_key_of_the_longest_kind_works_and_one_byte_more_does_not(void **state)
{
	struct backend *b = *state;
	_cleanup_(cleanup_call_free) struct call *call = call_new(BACKEND_HEAD, "");
	char key[BACKEND_KEY_MAX + 1];

	for (int i = 0; i < BACKEND_KEY_MAX; i++)
		key[i] = i % 128 == 127 ? '/' : '%';
	key[BACKEND_KEY_MAX - 1] = '-';
	key[BACKEND_KEY_MAX] = 0;
	assert_int_equal(put_text(b, key, "far", true), 0);
	assert_text(b, key, "far");
	assert_int_equal(delete (b, key), 0);

	memset(call->req.key, 'a', sizeof(call->req.key)); /* without its 0 */
	assert_int_equal(call_run(b, call), -EINVAL);
}

/* ---- uploads ---- */

static void parts_in_any_order_make_the_object(void **state)
{
	struct backend *b = *state;
	_cleanup_(cleanup_mem) uint8_t *big = big_bytes();
	struct backend_upload *upload;

	assert_int_equal(begin(b, "p/pack", &upload), 0);
	assert_int_equal(part(b, upload, 500000, big + 500000, BIG_BYTES - 500000), 0);
	assert_int_equal(part(b, upload, 0, big, 7), 0);
	assert_int_equal(part(b, upload, 7, big + 7, 500000 - 7), 0);
	assert_absent(b, "p/pack");
	assert_list(b, "", "", "");
	assert_int_equal(commit(b, upload, BIG_BYTES, true), 0);
	assert_object(b, "p/pack", big, BIG_BYTES);
	assert_list(b, "", "", "p/pack ");
}

static void parts_may_be_under_way_together(void **state)
{
	struct backend *b = *state;
	_cleanup_(cleanup_mem) uint8_t *big = big_bytes();
	const size_t step = BIG_BYTES / CROWD;
	struct call *calls[CROWD];
	struct backend_vec vec[CROWD];
	struct backend_upload *upload;

	assert_int_equal(begin(b, "p/pack", &upload), 0);
	for (int i = 0; i < CROWD; i++) {
		vec[i] = vec_of(big + i * step, step);
		calls[i] = call_new(BACKEND_PART, "");
		calls[i]->req.upload = upload;
		calls[i]->req.offset = i * step;
		calls[i]->req.vec = &vec[i];
		calls[i]->req.n_vec = 1;
		call_start(b, calls[i]);
	}
	for (int i = 0; i < CROWD; i++) {
		assert_int_equal(call_result(calls[i]), 0);
		call_free(calls[i]);
	}
	assert_int_equal(commit(b, upload, CROWD * step, false), 0);
	assert_object(b, "p/pack", big, CROWD * step);
}

static void a_hole_or_another_size_fails_the_commit(void **state)
{
	struct backend *b = *state;
	struct backend_upload *upload;

	assert_int_equal(begin(b, "hole", &upload), 0);
	assert_int_equal(part(b, upload, 0, "abc", 3), 0);
	assert_int_equal(part(b, upload, 4, "efg", 3), 0);
	assert_int_equal(commit(b, upload, 7, false), -EINVAL);

	assert_int_equal(begin(b, "short", &upload), 0);
	assert_int_equal(part(b, upload, 0, "abc", 3), 0);
	assert_int_equal(commit(b, upload, 4, false), -EINVAL);

	assert_int_equal(begin(b, "long", &upload), 0);
	assert_int_equal(part(b, upload, 0, "abc", 3), 0);
	assert_int_equal(commit(b, upload, 2, false), -EINVAL);
	assert_list(b, "", "", "");
}

static void a_part_that_failed_can_be_sent_again(void **state)
{
	struct backend *b = *state;
	_cleanup_(cleanup_call_free) struct call *call = call_new(BACKEND_PART, "");
	struct backend_vec wrong = { .ptr = "xyz", .len = 3, .crc = 1 };
	struct backend_upload *upload;

	assert_int_equal(begin(b, "again", &upload), 0);
	call->req.upload = upload;
	call->req.vec = &wrong;
	call->req.n_vec = 1;
	assert_int_equal(call_run(b, call), -ERR_ECHANGED);
	assert_int_equal(part(b, upload, 0, "abc", 3), 0);
	assert_int_equal(commit(b, upload, 3, true), 0);
	assert_text(b, "again", "abc");
}

static void a_part_that_failed_and_was_not_sent_again_fails_the_commit(void **state)
{
	struct backend *b = *state;
	_cleanup_(cleanup_call_free) struct call *call = call_new(BACKEND_PART, "");
	struct backend_vec wrong = { .ptr = "xyz", .len = 3, .crc = 1 };
	struct backend_upload *upload;

	assert_int_equal(begin(b, "not-again", &upload), 0);
	call->req.upload = upload;
	call->req.vec = &wrong;
	call->req.n_vec = 1;
	assert_int_equal(call_run(b, call), -ERR_ECHANGED);
	assert_int_equal(commit(b, upload, 3, true), -EINVAL);
	assert_absent(b, "not-again");
}

static void an_upload_may_stay_empty_or_be_given_back(void **state)
{
	struct backend *b = *state;
	struct backend_upload *upload;

	assert_int_equal(begin(b, "u/empty", &upload), 0);
	assert_int_equal(commit(b, upload, 0, true), 0);
	assert_text(b, "u/empty", "");
	assert_int_equal(begin(b, "u/aborted", &upload), 0);
	assert_int_equal(part(b, upload, 0, "abc", 3), 0);
	assert_int_equal(abort_upload(b, upload), 0);
	assert_list(b, "", "", "u/empty ");
}

static void of_two_uploads_of_a_key_the_first_committed_wins(void **state)
{
	struct backend *b = *state;
	struct backend_upload *one, *two, *three;

	assert_int_equal(begin(b, "race", &one), 0);
	assert_int_equal(begin(b, "race", &two), 0);
	assert_int_equal(begin(b, "race", &three), 0);
	assert_int_equal(part(b, one, 0, "one", 3), 0);
	assert_int_equal(part(b, two, 0, "two", 3), 0);
	assert_int_equal(part(b, three, 0, "three", 5), 0);
	assert_int_equal(commit(b, two, 3, true), 0);
	assert_int_equal(commit(b, one, 3, true), BACKEND_EXISTS);
	assert_text(b, "race", "two");
	assert_int_equal(commit(b, three, 5, false), 0);
	assert_text(b, "race", "three");
}

/* ---- lists ---- */

static void a_list_is_in_byte_order_across_directories(void **state)
{
	struct backend *b = *state;
	static const char *const keys[] = { "a/b",  "a-b",   "a.b",   "a%b/c",	 "a0",	 "A",
					    "a-/z", "a/b-c", "a/c/d", "a-b-c/x", "ab/a", "_" };

	for (size_t i = 0; i < ARRAY_LEN(keys); i++)
		assert_int_equal(put_text(b, keys[i], keys[i], true), 0);
	assert_list(b, "", "", "A _ a%b/c a-/z a-b a-b-c/x a.b a/b a/b-c a/c/d a0 ab/a ");
	assert_list(b, "a/", "", "a/b a/b-c a/c/d ");
	assert_list(b, "a/c/", "", "a/c/d ");
	assert_list(b, "", "a/b", "a/b-c a/c/d a0 ab/a ");
	assert_list(b, "", "a-", "a-/z a-b a-b-c/x a.b a/b a/b-c a/c/d a0 ab/a ");
	assert_list(b, "", "a.zzz/9", "a/b a/b-c a/c/d a0 ab/a ");
	assert_list(b, "a/", "a/c/", "a/c/d ");
	assert_list(b, "a/", "a/c/d", "");
	assert_list(b, "a/", "Z", "a/b a/b-c a/c/d ");
	assert_list(b, "a/", "b", "");
}

static void a_list_of_nothing_is_empty(void **state)
{
	struct backend *b = *state;

	assert_list(b, "", "", "");
	assert_list(b, "a/b/", "", "");
	assert_int_equal(put_text(b, "a/b", "x", true), 0);
	assert_list(b, "a/b/", "", "");
	assert_list(b, "a/bb/", "", "");
	assert_int_equal(delete (b, "a/b"), 0);
	assert_list(b, "", "", "");
}

static void a_prefix_that_is_no_whole_path_is_refused(void **state)
{
	struct backend *b = *state;
	static const char *const bad[] = { "a", "/", "a//", "../", "a/.b/" };

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		_cleanup_(cleanup_call_free) struct call *call = call_new(BACKEND_LIST, bad[i]);

		call->req.len = 10;
		assert_int_equal(call_run(b, call), -EINVAL);
	}
	_cleanup_(cleanup_call_free) struct call *none = call_new(BACKEND_LIST, "");
	assert_int_equal(call_run(b, none), -EINVAL); /* len 0 could never tell the end */
}

static int by_bytes(const void *a, const void *b)
{
	return strcmp(a, b);
}

/* Short names over few characters, so that they collide, nest and straddle '/' in every way. */
static void a_list_agrees_with_sorting_for_random_keys(void **state)
{
	struct backend *b = *state;
	static const char letters[] = "%-.0a";
	enum { N = 150 };
	char keys[N][32];
	struct buf expected = { 0 }, keys_of_page = { 0 };
	uint64_t x = 88172645463325252;

	for (int i = 0; i < N; i++) {
		size_t n = 0;

		for (int parts = 0; parts < 3; parts++) {
			keys[i][n++] = 'a'; /* parts must not begin with '.' */
			for (x ^= x << 13, x ^= x >> 7, x ^= x << 17; n < 10 * (size_t)(parts + 1) && (x >> n) % 3; n++)
				keys[i][n] = letters[(x >> (n + 7)) % 5];
			keys[i][n++] = parts < 2 ? '/' : 0;
		}
		int r = put_text(b, keys[i], "", true);
		assert_true(r == 0 || r == BACKEND_EXISTS);
	}
	qsort(keys, N, sizeof(keys[0]), by_bytes);
	for (int i = 0; i < N; i++)
		if (!i || strcmp(keys[i], keys[i - 1]) != 0)
			assert_int_equal(buf_printf(&expected, "%s ", keys[i]), 0);
	assert_int_equal(buf_append(&expected, "", 1), 0);
	for (size_t page = 1; page < 2 * N; page += 37) {
		list_all(b, "", "", page, &keys_of_page);
		assert_string_equal((char *)keys_of_page.ptr, (char *)expected.ptr);
	}
	buf_fini(&expected);
	buf_fini(&keys_of_page);
}

/* ---- deleting, probing, crowds ---- */

static void a_deleted_key_is_gone_and_may_come_back(void **state)
{
	struct backend *b = *state;

	assert_int_equal(put_text(b, "d/e/f", "1", true), 0);
	assert_int_equal(put_text(b, "d/g", "2", true), 0);
	assert_int_equal(delete (b, "d/e/f"), 0);
	assert_absent(b, "d/e/f");
	assert_int_equal(delete (b, "d/e/f"), 0);
	assert_int_equal(delete (b, "d/e"), 0);
	assert_int_equal(delete (b, "d"), 0); /* no object, so nothing goes */
	assert_int_equal(delete (b, "never/was"), 0);
	assert_int_equal(delete (b, "d/g/h"), 0);
	assert_list(b, "", "", "d/g ");
	assert_int_equal(put_text(b, "d/e/f", "3", true), 0);
	assert_text(b, "d/e/f", "3");
}

static void deleting_beside_does_not_hurt_putting(void **state)
{
	struct backend *b = *state;
	struct call *puts[CROWD], *deletes[CROWD];
	struct backend_vec vec = vec_of("x", 1);

	for (int round = 0; round < 4; round++) {
		char key[64];

		for (int i = 0; i < CROWD; i++) {
			(void)snprintf(key, sizeof(key), "n/m/%d/%d", i % 3, i);
			puts[i] = call_new(BACKEND_PUT, key);
			puts[i]->req.vec = &vec;
			puts[i]->req.n_vec = 1;
			puts[i]->req.if_absent = true;
			(void)snprintf(key, sizeof(key), "n/m/%d/other%d", i % 3, i);
			deletes[i] = call_new(BACKEND_DELETE, key);
			call_start(b, deletes[i]);
			call_start(b, puts[i]);
		}
		for (int i = 0; i < CROWD; i++) {
			assert_int_equal(call_result(puts[i]), 0);
			assert_int_equal(call_result(deletes[i]), 0);
		}
		for (int i = 0; i < CROWD; i++) {
			assert_text(b, puts[i]->req.key, "x");
			assert_int_equal(delete (b, puts[i]->req.key), 0);
			call_free(puts[i]);
			call_free(deletes[i]);
		}
		assert_list(b, "", "", "");
	}
}

static void a_probe_finds_a_working_store_and_leaves_nothing(void **state)
{
	struct backend *b = *state;
	_cleanup_(cleanup_call_free) struct call *call = call_new(BACKEND_PROBE, "");

	assert_int_equal(call_run(b, call), 0);
	assert_int_equal(call_run(b, call), 0);
	assert_list(b, "", "", "");
}

static void a_request_without_an_upload_is_refused(void **state)
{
	struct backend *b = *state;

	assert_int_equal(part(b, NULL, 0, "x", 1), -EINVAL);
	assert_int_equal(commit(b, NULL, 0, false), -EINVAL);
	assert_int_equal(abort_upload(b, NULL), -EINVAL);
}

static int setup(void **state)
{
	struct backend *backend;
	int r = suite->open(suite, &backend);

	*state = backend;
	return r;
}

static int teardown(void **state)
{
	suite->close(suite, *state);
	return 0;
}

#define claim(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int backend_suite_run(struct backend_suite *of)
{
	const struct CMUnitTest tests[] = {
		claim(an_object_is_read_back_whole_and_in_ranges),
		claim(a_range_past_the_end_is_short_or_empty),
		claim(an_object_may_be_empty_or_of_many_pieces),
		claim(what_is_not_there_is_ENOENT),
		claim(a_taken_key_is_left_alone_with_if_absent),
		claim(a_put_without_if_absent_replaces_the_object_whole),
		claim(of_many_writers_with_if_absent_one_wins),
		claim(bytes_that_changed_after_their_crc_publish_nothing),
		claim(a_malformed_key_is_refused),
		claim(a_key_of_the_longest_kind_works_and_one_byte_more_does_not),
		claim(parts_in_any_order_make_the_object),
		claim(parts_may_be_under_way_together),
		claim(a_hole_or_another_size_fails_the_commit),
		claim(a_part_that_failed_can_be_sent_again),
		claim(a_part_that_failed_and_was_not_sent_again_fails_the_commit),
		claim(an_upload_may_stay_empty_or_be_given_back),
		claim(of_two_uploads_of_a_key_the_first_committed_wins),
		claim(a_list_is_in_byte_order_across_directories),
		claim(a_list_of_nothing_is_empty),
		claim(a_prefix_that_is_no_whole_path_is_refused),
		claim(a_list_agrees_with_sorting_for_random_keys),
		claim(a_deleted_key_is_gone_and_may_come_back),
		claim(deleting_beside_does_not_hurt_putting),
		claim(a_probe_finds_a_working_store_and_leaves_nothing),
		claim(a_request_without_an_upload_is_refused),
	};

	suite = of;
	return cmocka_run_group_tests_name(of->name, tests, NULL, NULL);
}
