/*
 * fuzz/record.c: stored records, their bodies, elements and index rows. Input that begins with "FB" is an object; else its first
 * byte chooses a decoder for the rest, so that bodies are reached without a digest that fits.
 *
 * What is decoded must survive encoding and decoding.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "wire/record.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define BODY(name, TABLE)                                               \
	static void fuzz_##name(struct view body)                       \
	{                                                               \
		_cleanup_(buf_fini) struct buf first = { 0 };           \
		_cleanup_(buf_fini) struct buf second = { 0 };          \
		struct name m;                                          \
                                                                        \
		if (name##_decode(body, &m) != 0)                       \
			return;                                         \
		CHECK(name##_encode(&m, &first) == 0);                  \
		CHECK(name##_decode(view_buf(&first), &m) == 0);        \
		CHECK(name##_encode(&m, &second) == 0);                 \
		CHECK(view_equal(view_buf(&first), view_buf(&second))); \
	}
RECORD_BODIES(BODY)

#define ELEMENT(name, TABLE)                                          \
	static void fuzz_##name(struct view body)                     \
	{                                                             \
		_cleanup_(list_buf_fini) struct list_buf out = { 0 }; \
		struct list_view list;                                \
		struct name e;                                        \
                                                                      \
		if (get_list(&body, &list) != 0)                      \
			return;                                       \
		while (name##_next(&list, &e) == 0)                   \
			CHECK(name##_append(&out, &e) == 0);          \
	}
RECORD_ELEMENTS(ELEMENT)

static void fuzz_entry(struct view body)
{
	struct block_rec again;
	struct block_entry entry;

	if (body.len < BLOCK_ENTRY_BYTES || block_entry_decode((const struct block_rec *)body.ptr, &entry, NULL) != 0)
		return;
	block_entry_encode(&entry, &again);
	CHECK(memcmp(&again, body.ptr, sizeof(again)) == 0);
}

static void fuzz_object(struct view object)
{
	_cleanup_(buf_fini) struct buf again = { 0 };
	struct record_head head;
	struct view body;
	struct error e = { 0 };

	if (record_open(object, &head, &body, &e) != 0) {
		CHECK(e.code && e.text[0]);
		return;
	}
	if (head.minor == RECORD_MINOR) {
		CHECK(record_seal(&head, body, &again) == 0);
		CHECK(view_equal(view_buf(&again), object));
	}
}

/* The object with head CRC and digest made right: what a buggy writer could have stored. */
static void fuzz_forged(struct view object)
{
	_cleanup_(cleanup_mem) uint8_t *forged = malloc(object.len);

	if (!forged || object.len < RECORD_HEAD_BYTES + RECORD_DIGEST_BYTES)
		return;
	memcpy(forged, object.ptr, object.len);
	store_le32(forged + 60, crc32c(0, forged, 60));
	struct digest digest = digest_of(forged, object.len - RECORD_DIGEST_BYTES);
	memcpy(forged + object.len - RECORD_DIGEST_BYTES, digest.b, DIGEST_BYTES);
	fuzz_object(view_of(forged, object.len));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const decoders[])(struct view body) = {
#define X(name, TABLE) fuzz_##name,
		RECORD_BODIES(X) RECORD_ELEMENTS(X)
#undef X
			fuzz_entry,
	};

	if (!size)
		return 0;
	if (size > 2 && data[0] == 'F' && data[1] == 'B') {
		fuzz_object(view_of(data, size));
		fuzz_forged(view_of(data, size));
		return 0;
	}
	decoders[data[0] % ARRAY_LEN(decoders)](view_of(data + 1, size - 1));
	return 0;
}
