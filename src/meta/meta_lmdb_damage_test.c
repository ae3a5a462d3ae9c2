/*
 * meta/meta_lmdb_damage_test.c: bytes that flip, files that were cut, and the check that finds them.
 */
#include "meta/lmdb_fixture.h"

/* ---- damage ---- */

#define RECORDS	    300
#define LIFE_ROUNDS 100

/* An index with small and large values, on more than one level, with a list of free pages. Its file is returned. */
static struct buf good_index(void)
{
	struct meta *meta = open_index();
	struct buf file = { 0 };
	char key[16], text[4000];

	for (int round = 0; round < 3; round++)
		for (int i = 0; i < RECORDS; i += 10) {
			struct meta_req *req = meta_req_new(META_TXN);

			for (int k = i; k < i + 10; k++) {
				(void)snprintf(key, sizeof(key), "key-%06d", k);
				memset(text, 'a' + k % 26, sizeof(text));
				size_t len = k % 10 == 5 ? sizeof(text) : 20;
				assert_int_equal(meta_txn_put(req, view_str(key), view_of(text, len)), 0);
			}
			meta_suite_start(meta, req);
			assert_int_equal(meta_suite_wait(req), 0);
			meta_req_free(req);
		}
	meta_free(meta);

	int fd = open(below("index/data.mdb"), O_RDONLY | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(buf_append_zero(&file, 1u << 20), 0);
	ssize_t n = pread(fd, file.ptr, file.len, 0);
	assert_true(n > 100000);
	file.len = (size_t)n;
	close(fd);
	return file;
}

static void write_index(const struct buf *file, size_t len)
{
	int fd = open(below("index/data.mdb"), O_WRONLY | O_TRUNC | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, file->ptr, len, 0), len);
	close(fd);
}

static uint8_t *find(struct buf *file, const char *text)
{
	uint8_t *at = memmem(file->ptr, file->len, text, strlen(text));

	assert_non_null(at);
	return at;
}

static void a_file_that_is_no_index_or_has_no_head_is_EDAMAGED(void **state)
{
	struct buf file = good_index();
	struct buf other = { 0 };

	assert_int_equal(buf_append_zero(&other, 100000), 0);
	write_index(&other, other.len);
	assert_refused("index", -ERR_EDAMAGED, "head");
	write_index(&file, 100);
	assert_refused("index", -ERR_EDAMAGED, "head");
	write_index(&file, 4096 + 100);
	assert_refused("index", -ERR_EDAMAGED, "head");
	memset(file.ptr + 40, 0, 4); /* the page size, by which LMDB divides */
	write_index(&file, file.len);
	assert_refused("index", -ERR_EDAMAGED, "head");
	buf_fini(&file);
	buf_fini(&other);
}

static void a_file_that_was_cut_is_EDAMAGED_and_nobody_crashes(void **state)
{
	struct buf file = good_index();

	for (size_t len = 3 * 4096; len < 100000; len += 4096 * 3 + 512) {
		write_index(&file, len);
		assert_refused("index", -ERR_EDAMAGED, "index");
	}
	buf_fini(&file);
}

static void a_flipped_byte_in_a_value_is_found_when_the_index_is_opened(void **state)
{
	struct buf file = good_index();
	size_t flipped = 0;

	/* Copies of the record lie on pages that were replaced since; all of them are flipped. */
	for (uint8_t *at = file.ptr; (at = memmem(at, file.len - (size_t)(at - file.ptr), "key-000123", 10));
	     at += 10, flipped++)
		at[18] ^= 4;
	assert_true(flipped > 0);
	write_index(&file, file.len);
	assert_refused("index", -ERR_EDAMAGED, "its records");
	buf_fini(&file);
}

static void a_byte_that_flips_under_an_open_index_is_EDAMAGED_for_its_key_alone(void **state)
{
	struct meta *meta = open_index();
	char text[64];

	assert_int_equal(meta_suite_put(meta, "a", "good"), 0);
	assert_int_equal(meta_suite_put(meta, "b", "will be flipped"), 0);
	struct buf file = { 0 };
	int fd = open(below("index/data.mdb"), O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(buf_append_zero(&file, 1u << 20), 0);
	assert_true(pread(fd, file.ptr, file.len, 0) > 0);
	off_t at = find(&file, "will be flipped") - file.ptr;
	assert_int_equal(pwrite(fd, "W", 1, at), 1);
	close(fd);
	buf_fini(&file);

	assert_int_equal(meta_suite_get(meta, "b", text, sizeof(text)), -ERR_EDAMAGED);
	assert_int_equal(meta_suite_get(meta, "a", text, sizeof(text)), 0);
	struct meta_req *req = meta_req_new(META_TXN);
	assert_int_equal(meta_txn_expect(req, view_str("b"), view_str("will be flipped")), 0);
	meta_suite_start(meta, req);
	assert_int_equal(meta_suite_wait(req), -ERR_EDAMAGED);
	meta_req_free(req);
	assert_int_equal(meta_suite_put(meta, "b", "mended"), 0);
	assert_int_equal(meta_suite_get(meta, "b", text, sizeof(text)), 0);
	assert_string_equal(text, "mended");
	meta_free(meta);
}

/* Reads everything: each value is right or the answer is EDAMAGED. */
static void assert_never_wrong(struct meta *meta)
{
	char key[16], text[64];

	for (int k = 0; k < RECORDS; k++) {
		(void)snprintf(key, sizeof(key), "key-%06d", k);
		int r = meta_suite_get(meta, key, text, sizeof(text));
		if (r == -ERR_EDAMAGED)
			continue;
		assert_int_equal(r, 0);
		for (int i = 0; i < 20; i++)
			assert_int_equal(text[i], 'a' + k % 26);
	}
}

static void random_damage_is_never_a_crash_nor_a_wrong_answer(void **state)
{
	struct buf good = good_index();
	uint64_t x = 88172645463325252;
	int refused = 0;

	for (int round = 0; round < 1000; round++) {
		struct buf bad = { 0 };
		struct meta *meta;
		struct error e;

		assert_int_equal(buf_append(&bad, good.ptr, good.len), 0);
		for (int i = 0; i < 1 + round % 50; i++) {
			x ^= x << 13, x ^= x >> 7, x ^= x << 17;
			/* Past both heads. Often near the beginning of a page, where LMDB keeps its own. */
			size_t at = 2 * 4096 + (x >> 8) % (bad.len - 2 * 4096);
			if (x & 1)
				at = at / 4096 * 4096 + at % 64;
			bad.ptr[at] ^= (uint8_t)(1u << (x >> 60 & 7));
		}
		write_index(&bad, bad.len);
		buf_fini(&bad);
		int r = meta_lmdb_open(env, below("index"), &meta, &e);
		assert_true(r == 0 || r == -ERR_EDAMAGED);
		refused += r != 0;
		if (r)
			continue;
		assert_never_wrong(meta);
		meta_free(meta);
	}
	assert_true(refused > 50);
	buf_fini(&good);
}

static void an_index_that_lived_long_is_found_whole_each_time(void **state)
{
	_cleanup_(cleanup_mem) uint8_t *bytes = calloc(1, META_VALUE_MAX);
	struct meta *meta = open_index();
	uint64_t x = 88172645463325252;

	for (int round = 0; round < LIFE_ROUNDS; round++) {
		struct meta_req *req = meta_req_new(META_TXN);
		int r = 0;

		for (int i = 0; i < 60 && !r; i++) {
			char key[META_KEY_MAX + 1];

			x ^= x << 13, x ^= x >> 7, x ^= x << 17;
			(void)snprintf(key, sizeof(key), "%0*d", 3 + (int)(x % 7 * 50), (int)(x >> 8 & 1023));
			if (x >> 20 & 1)
				r = meta_txn_delete(req, view_str(key));
			else /* some fill pages of their own, which -EINVAL may say is too much for one request */
				r = meta_txn_put(req, view_str(key),
						 view_of(bytes, (x >> 30) % (x >> 21 & 7 ? 300 : META_VALUE_MAX)));
		}
		meta_suite_start(meta, req);
		assert_int_equal(meta_suite_wait(req), 0);
		meta_req_free(req);
		if (round % 10 == 9) {
			meta_free(meta);
			meta = open_index();
		}
	}
	meta_free(meta);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		claim(a_file_that_is_no_index_or_has_no_head_is_EDAMAGED),
		claim(a_file_that_was_cut_is_EDAMAGED_and_nobody_crashes),
		claim(a_flipped_byte_in_a_value_is_found_when_the_index_is_opened),
		claim(a_byte_that_flips_under_an_open_index_is_EDAMAGED_for_its_key_alone),
		claim(an_index_that_lived_long_is_found_whole_each_time),
		claim(random_damage_is_never_a_crash_nor_a_wrong_answer),
	};
	log_setup(LOG_ERROR, count_told, NULL); /* disks fail here all the time */
	return cmocka_run_group_tests_name("meta_lmdb and damage", tests, NULL, NULL);
}
