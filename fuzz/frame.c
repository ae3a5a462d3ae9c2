/* fuzz/frame.c: a frame's head. What is accepted must encode to the same bytes again, and its body, if it came along, must sum. */
#include <stdint.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"
#include "wire/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void decode(const uint8_t raw[FRAME_HEAD_BYTES])
{
	struct frame_head head;
	uint8_t again[FRAME_HEAD_BYTES];
	struct error e = { 0 };

	if (frame_decode(raw, &head, &e) != 0) {
		CHECK(e.code && e.text[0]);
		return;
	}
	CHECK(head.body_bytes <= FRAME_BODY_MAX && head.payload_bytes <= FRAME_CHUNK_MAX);
	frame_encode(&head, again);
	CHECK(memcmp(raw, again, 56) == 0); /* the zero field may hold what a later minor says */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t raw[FRAME_HEAD_BYTES];

	if (size < sizeof(raw))
		return 0;
	decode(data);
	memcpy(raw, data, sizeof(raw)); /* and with a CRC that is right, so that the checks behind it are reached */
	store_le32(raw + 60, crc32c(0, raw, 60));
	decode(raw);
	return 0;
}
