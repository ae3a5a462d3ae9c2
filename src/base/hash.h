/*
 * base/hash.h: the three hashes and the fused pass of a capture.
 *
 * BLAKE3 (32 bytes) is identity: equal digests mean equal bytes. CRC32C guards a move between two memories. XXH3
 * samples. All are pure and thread-safe.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DIGEST_BYTES 32

struct digest {
	uint8_t b[DIGEST_BYTES];
};

struct digest digest_of(const void *p, size_t len);
bool digest_equal(const struct digest *a, const struct digest *b);

/* CRC-32C (Castagnoli, reflected, as in RFC 3720); start with crc 0, feed pieces in order. */
uint32_t crc32c(uint32_t crc, const void *p, size_t len);
/* The CRC of A||B from crc(A), crc(B) and B's length in bytes (zlib's method since 1.2.12); about 1 us. */
uint32_t crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t len_b);

bool bytes_are_zero(const void *p, size_t len);

/*
 * Incremental digest, CRC and zero test over pieces, in one pass over the memory. Pieces may have any length, but under
 * some KiB BLAKE3 runs at a fraction of its speed: gather short rows with memcpy and feed the result in larger pieces.
 */
struct hasher {
	_Alignas(16) uint8_t state[1920]; /* a blake3_hasher, asserted to fit in hash.c */
	uint32_t crc;
	bool zero;	/* every byte so far was 0 */
	uint64_t bytes; /* so far */
};
void hasher_init(struct hasher *h);
void hasher_update(struct hasher *h, const void *p, size_t len);
/* Copy and update, in cache-sized steps. Hashes what arrived at @dst, so the source may change meanwhile. */
void hasher_copy(struct hasher *h, void *dst, const void *src, size_t len);
struct digest hasher_digest(const struct hasher *h); /* of all so far; updates may go on */

/*
 * XXH3-64 over up to 64 pages of 4 KiB spread evenly over the bytes (all of them when there are fewer), first and last
 * included. Equal on every machine: nodes compare it.
 */
uint64_t sample_fingerprint(const void *p, size_t len);
uint64_t hash64(const void *p, size_t len, uint64_t seed); /* XXH3-64: for tables and fingerprints of structures */
