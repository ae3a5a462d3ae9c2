#include "base/hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

#define BIG_BYTES 300000 /* some steps of the hasher, and more than the sampled pages */

/* xorshift64: a fixed seed, so that a failure repeats */
static uint64_t draw(uint64_t *x)
{
	*x ^= *x << 13, *x ^= *x >> 7, *x ^= *x << 17;
	return *x;
}

static uint8_t *big;

static int set_up(void **state)
{
	uint64_t x = 88172645463325252;

	big = malloc(BIG_BYTES);
	for (size_t i = 0; big && i < BIG_BYTES; i++)
		big[i] = (uint8_t)draw(&x);
	return big ? 0 : -1;
}

static int tear_down(void **state)
{
	free(big);
	return 0;
}

static void assert_digest(struct digest digest, const char *hex)
{
	char text[2 * DIGEST_BYTES + 1];

	hex_encode(text, digest.b, sizeof(digest.b));
	assert_string_equal(text, hex);
}

/* The first two of BLAKE3's official test_vectors.json, and one from its paper's reference code. */
static void digests_are_blake3(void **state)
{
	assert_digest(digest_of(NULL, 0), "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262");
	assert_digest(digest_of("\0", 1), "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213");
	assert_digest(digest_of("abc", 3), "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85");
}

static void digests_are_equal_when_all_bytes_are(void **state)
{
	struct digest a = digest_of("a", 1), b = a;

	assert_true(digest_equal(&a, &b));
	b.b[DIGEST_BYTES - 1] ^= 1;
	assert_false(digest_equal(&a, &b));
}

/* The check value of the CRC catalogue, and the examples of RFC 3720, B.4. */
static void crc_is_castagnolis(void **state)
{
	uint8_t b[32];

	assert_true(crc32c(0, "123456789", 9) == 0xe3069283);
	assert_true(crc32c(0, NULL, 0) == 0);
	memset(b, 0, sizeof(b));
	assert_true(crc32c(0, b, sizeof(b)) == 0x8a9136aa);
	memset(b, 0xff, sizeof(b));
	assert_true(crc32c(0, b, sizeof(b)) == 0x62a8ab43);
	for (int i = 0; i < 32; i++)
		b[i] = (uint8_t)i;
	assert_true(crc32c(0, b, sizeof(b)) == 0x46dd794e);
	for (int i = 0; i < 32; i++)
		b[i] = (uint8_t)(31 - i);
	assert_true(crc32c(0, b, sizeof(b)) == 0x113fdb5c);
}

static void crc_of_pieces_is_that_of_the_whole_fed_or_combined(void **state)
{
	uint64_t x = 88172645463325252;

	for (int round = 0; round < 2000; round++) {
		size_t len = draw(&x) % 5000, cut = draw(&x) % (len + 1);
		uint32_t whole = crc32c(0, big, len), a = crc32c(0, big, cut);

		assert_true(crc32c(a, big + cut, len - cut) == whole);
		assert_true(crc32c_combine(a, crc32c(0, big + cut, len - cut), len - cut) == whole);
	}
}

static void combining_is_associative_at_any_length(void **state)
{
	uint64_t x = 88172645463325252;

	for (int round = 0; round < 2000; round++) {
		uint32_t a = (uint32_t)draw(&x), b = (uint32_t)draw(&x), c = (uint32_t)draw(&x);
		uint64_t len_b = draw(&x) >> 1, len_c = draw(&x) >> (1 + draw(&x) % 60);

		assert_true(crc32c_combine(crc32c_combine(a, b, len_b), c, len_c) ==
			    crc32c_combine(a, crc32c_combine(b, c, len_c), len_b + len_c));
		assert_true(crc32c_combine(a, 0, 0) == a);
	}
}

static void one_bit_anywhere_is_not_zero(void **state)
{
	uint8_t b[200] = { 0 };

	for (size_t len = 0; len <= 100; len++)
		for (size_t from = 0; from < 20; from += 3) {
			assert_true(bytes_are_zero(b + from, len));
			for (size_t i = 0; i < len; i++) {
				b[from + i] = 0x80;
				assert_false(bytes_are_zero(b + from, len));
				b[from + i] = 0;
			}
			b[from + len] = 1; /* just past the end */
			assert_true(bytes_are_zero(b + from, len));
			b[from + len] = 0;
		}
	assert_true(bytes_are_zero(NULL, 0));
}

static void assert_hashed(const struct hasher *h, const void *p, size_t len)
{
	struct digest got = hasher_digest(h), expected = digest_of(p, len);

	assert_true(digest_equal(&got, &expected));
	assert_true(h->crc == crc32c(0, p, len));
	assert_int_equal(h->zero, bytes_are_zero(p, len));
	assert_int_equal(h->bytes, len);
}

static void pieces_hash_as_the_whole_and_arrive_whole(void **state)
{
	_cleanup_(cleanup_mem) uint8_t *copy = malloc(BIG_BYTES);
	uint64_t x = 88172645463325252;

	for (int round = 0; round < 60; round++) {
		size_t piece_max = 1 + draw(&x) % (round % 2 ? 3000 : 150000), len = 0;
		struct hasher h;

		memset(copy, 0xee, BIG_BYTES);
		hasher_init(&h);
		while (len < BIG_BYTES) {
			size_t n = draw(&x) % (piece_max + 1);

			n = n < BIG_BYTES - len ? n : BIG_BYTES - len;
			if (x >> 63) {
				hasher_update(&h, big + len, n);
				memcpy(copy + len, big + len, n);
			} else {
				hasher_copy(&h, copy + len, big + len, n);
			}
			len += n;
		}
		assert_hashed(&h, big, BIG_BYTES);
		assert_memory_equal(copy, big, BIG_BYTES);
	}
}

static void a_digest_on_the_way_disturbs_nothing(void **state)
{
	struct hasher h;

	hasher_init(&h);
	assert_hashed(&h, NULL, 0);
	hasher_update(&h, NULL, 0);
	hasher_copy(&h, NULL, NULL, 0);
	assert_hashed(&h, NULL, 0);
	hasher_update(&h, big, 1500);
	assert_hashed(&h, big, 1500);
	hasher_update(&h, big + 1500, 98500);
	assert_hashed(&h, big, 100000);
}

static void zeros_are_zero_until_one_byte_is_not(void **state)
{
	_cleanup_(cleanup_mem) uint8_t *zeros = calloc(1, BIG_BYTES);
	_cleanup_(cleanup_mem) uint8_t *copy = malloc(BIG_BYTES);
	struct hasher h;

	hasher_init(&h);
	hasher_copy(&h, copy, zeros, BIG_BYTES);
	assert_true(h.zero);
	assert_hashed(&h, zeros, BIG_BYTES);

	for (size_t at = 0; at < BIG_BYTES; at += 33333) {
		zeros[at] = 1;
		hasher_init(&h);
		hasher_copy(&h, copy, zeros, at);
		assert_true(h.zero);
		hasher_copy(&h, copy, zeros + at, BIG_BYTES - at);
		assert_false(h.zero);
		zeros[at] = 0;
		hasher_update(&h, zeros, BIG_BYTES);
		assert_false(h.zero);
	}
}

/* The values of XXH3's own sanity test for no bytes, and of this function when it was made: peers compare them. */
static void fingerprints_stay_what_they_were(void **state)
{
	assert_true(hash64(NULL, 0, 0) == UINT64_C(0x2d06800538d394c2));
	assert_true(sample_fingerprint(big, 1000) == UINT64_C(0xbb29f33cd97a784b));
	assert_true(sample_fingerprint(big, BIG_BYTES) == UINT64_C(0x1e2598e70c37dc10));
}

static void a_fingerprint_of_few_pages_sees_every_byte(void **state)
{
	for (size_t len = 1; len <= 64 * 4096; len = len * 3 + 1) {
		uint64_t before = sample_fingerprint(big, len);

		for (size_t i = 0; i < len; i += 1 + len / 50) {
			big[i] ^= 1;
			assert_true(sample_fingerprint(big, len) != before);
			big[i] ^= 1;
		}
	}
}

static void a_fingerprint_of_many_pages_sees_both_ends_and_spread_pages(void **state)
{
	uint64_t before = sample_fingerprint(big, BIG_BYTES);
	size_t seen = 0, tried = 0;

	for (size_t i = 0; i < BIG_BYTES; i += 997, tried++) {
		big[i] ^= 1;
		seen += sample_fingerprint(big, BIG_BYTES) != before;
		big[i] ^= 1;
	}
	assert_true(seen * 100 / tried >= 85 && seen * 100 / tried <= 90); /* 64 * 4096 / BIG_BYTES is 87 % */

	for (int end = 0; end < 2; end++) {
		uint8_t *p = end ? big + BIG_BYTES - 1 : big;

		*p ^= 1;
		assert_true(sample_fingerprint(big, BIG_BYTES) != before);
		*p ^= 1;
	}
	assert_true(sample_fingerprint(big, BIG_BYTES - 1) != before);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(digests_are_blake3),
		cmocka_unit_test(digests_are_equal_when_all_bytes_are),
		cmocka_unit_test(crc_is_castagnolis),
		cmocka_unit_test(crc_of_pieces_is_that_of_the_whole_fed_or_combined),
		cmocka_unit_test(combining_is_associative_at_any_length),
		cmocka_unit_test(one_bit_anywhere_is_not_zero),
		cmocka_unit_test(pieces_hash_as_the_whole_and_arrive_whole),
		cmocka_unit_test(a_digest_on_the_way_disturbs_nothing),
		cmocka_unit_test(zeros_are_zero_until_one_byte_is_not),
		cmocka_unit_test(fingerprints_stay_what_they_were),
		cmocka_unit_test(a_fingerprint_of_few_pages_sees_every_byte),
		cmocka_unit_test(a_fingerprint_of_many_pages_sees_both_ends_and_spread_pages),
	};
	return cmocka_run_group_tests(tests, set_up, tear_down);
}
