#include "base/hash.h"

#include <blake3.h>
#include <isa-l/crc.h>
#include <string.h>
#include <xxhash.h>

#include "base/bytes.h"

#define STEP_BYTES	  32768	     /* of one pass: source and copy together stay in a core's private cache */
#define CRC_CALL_BYTES	  (1u << 30) /* isa-l counts in int */
#define SAMPLE_PAGE_BYTES 4096
#define SAMPLE_PAGES	  64
#define CRC32C_POLYNOMIAL 0x82f63b78u /* 0x1edc6f41 with its bits reversed: x^0 is the highest bit */

_Static_assert(sizeof(blake3_hasher) <= sizeof(((struct hasher *)0)->state), "hasher.state is too small");
_Static_assert(_Alignof(blake3_hasher) <= 16, "hasher.state is not aligned enough");
_Static_assert(DIGEST_BYTES == BLAKE3_OUT_LEN, "a digest is a BLAKE3 hash");

struct digest digest_of(const void *p, size_t len)
{
	struct digest digest;
	blake3_hasher state;

	blake3_hasher_init(&state);
	blake3_hasher_update(&state, p, len);
	blake3_hasher_finalize(&state, digest.b, sizeof(digest.b));
	return digest;
}

bool digest_equal(const struct digest *a, const struct digest *b)
{
	return !memcmp(a->b, b->b, DIGEST_BYTES);
}

/* isa-l inverts neither the start nor the end; the standard inverts both, which also makes pieces chain from 0. */
uint32_t crc32c(uint32_t crc, const void *p, size_t len)
{
	uint8_t *at = (uint8_t *)p; /* isa-l's prototype lacks the const; it only reads */

	crc = ~crc;
	while (len) {
		size_t n = len < CRC_CALL_BYTES ? len : CRC_CALL_BYTES;

		crc = crc32_iscsi(at, (int)n, crc);
		at += n;
		len -= n;
	}
	return ~crc;
}

/* a(x) * b(x) modulo the CRC's polynomial, bits reversed; as multmodp() in zlib's crc32.c. */
static uint32_t multiply_modulo(uint32_t a, uint32_t b)
{
	uint32_t product = 0;

	for (uint32_t bit = UINT32_C(1) << 31; bit; bit >>= 1) {
		if (a & bit)
			product ^= b;
		b = b & 1 ? b >> 1 ^ CRC32C_POLYNOMIAL : b >> 1;
	}
	return product;
}

/* Appending n bytes multiplies crc(A) by x^(8n), by repeated squaring; then B's bits add, and the inversions cancel. */
uint32_t crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t len_b)
{
	uint32_t power = UINT32_C(1) << (31 - 8); /* x^8: one byte */

	for (; len_b; len_b >>= 1) {
		if (len_b & 1)
			crc_a = multiply_modulo(power, crc_a);
		power = multiply_modulo(power, power);
	}
	return crc_a ^ crc_b;
}

/* The first 16 bytes by hand, then each byte against the one 16 before it: memcmp is vectorised (CCAN's memeqzero). */
bool bytes_are_zero(const void *p, size_t len)
{
	const uint8_t *b = p;

	for (size_t i = 0; i < 16; i++) {
		if (i == len)
			return true;
		if (b[i])
			return false;
	}
	return !memcmp(b, b + 16, len - 16);
}

/* Only the code of BLAKE3 reads or writes the bytes of state, all of it through this type. */
static blake3_hasher *blake3_of(const struct hasher *h)
{
	return (blake3_hasher *)h->state;
}

void hasher_init(struct hasher *h)
{
	blake3_hasher_init(blake3_of(h));
	h->crc = 0;
	h->zero = true;
	h->bytes = 0;
}

static void hasher_step(struct hasher *h, const uint8_t *p, size_t len)
{
	blake3_hasher_update(blake3_of(h), p, len);
	h->crc = crc32c(h->crc, p, len);
	h->zero = h->zero && bytes_are_zero(p, len);
	h->bytes += len;
}

/*
 * Bytes until the next multiple of STEP_BYTES since hasher_init(): BLAKE3 hashes an aligned step as one subtree, 16
 * chunks at a time, and a shifted one in ever smaller subtrees.
 */
static size_t step_len(const struct hasher *h, size_t left)
{
	size_t room = STEP_BYTES - h->bytes % STEP_BYTES;

	return left < room ? left : room;
}

void hasher_update(struct hasher *h, const void *p, size_t len)
{
	const uint8_t *at = p;

	for (size_t n; len; at += n, len -= n) {
		n = step_len(h, len);
		hasher_step(h, at, n);
	}
}

/* Hashes the copy, not the source: the digest holds for what was kept, even if the source changes meanwhile. */
void hasher_copy(struct hasher *h, void *dst, const void *src, size_t len)
{
	const uint8_t *from = src;
	uint8_t *to = dst;

	for (size_t n; len; from += n, to += n, len -= n) {
		n = step_len(h, len);
		memcpy(to, from, n);
		hasher_step(h, to, n);
	}
}

struct digest hasher_digest(const struct hasher *h)
{
	struct digest digest;

	blake3_hasher_finalize(blake3_of(h), digest.b, sizeof(digest.b));
	return digest;
}

/*
 * Page i of n begins at i * (len - page) / (n - 1), so first and last bytes are among them; the result hashes the
 * pages' hashes in order, seeded with the length. Part of the protocol: ranks on different nodes compare it.
 */
uint64_t sample_fingerprint(const void *p, size_t len)
{
	const size_t gaps = SAMPLE_PAGES - 1;
	uint8_t hashes[SAMPLE_PAGES * sizeof(uint64_t)];
	const uint8_t *b = p;

	if (len <= (size_t)SAMPLE_PAGES * SAMPLE_PAGE_BYTES)
		return hash64(p, len, len);

	size_t span = len - SAMPLE_PAGE_BYTES;
	for (size_t i = 0; i < SAMPLE_PAGES; i++) {
		size_t at = i * (span / gaps) + i * (span % gaps) / gaps; /* i * span alone may overflow */

		store_le64(hashes + i * sizeof(uint64_t), hash64(b + at, SAMPLE_PAGE_BYTES, 0));
	}
	return hash64(hashes, sizeof(hashes), len);
}

uint64_t hash64(const void *p, size_t len, uint64_t seed)
{
	return XXH3_64bits_withSeed(p, len, seed);
}
