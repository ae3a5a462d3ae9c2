/* fuzz/pack.c: a pack's head, trailer and index, as they lie and with their sums made right. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "wire/record.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void decode(const uint8_t *pack, size_t size)
{
	struct record_head head;
	char node[PACK_NODE_BYTES];
	struct pack_trailer trailer;
	uint8_t again[PACK_HEAD_BYTES];

	if (pack_head_decode(pack, &head, node, NULL) == 0 && head.minor == RECORD_MINOR) {
		pack_head_encode(&head, node, again);
		CHECK(memcmp(again, pack, sizeof(again)) == 0);
	}
	const uint8_t *last = pack + size - PACK_TRAILER_BYTES;
	if (pack_trailer_decode(last, size, &trailer, NULL) != 0)
		return;
	pack_trailer_encode(&trailer, again);
	CHECK(memcmp(again, last, PACK_TRAILER_BYTES) == 0);

	struct view index = view_of(pack + trailer.index_offset, (size_t)trailer.n * BLOCK_ENTRY_BYTES);
	CHECK(index.ptr + index.len == last);
	pack_index_check(index, &trailer, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < PACK_HEAD_BYTES + PACK_TRAILER_BYTES)
		return 0;
	decode(data, size);

	_cleanup_(cleanup_mem) uint8_t *forged = malloc(size);
	if (!forged)
		return 0;
	memcpy(forged, data, size);
	uint8_t *last = forged + size - PACK_TRAILER_BYTES;
	uint64_t index_offset = load_le64(last + 32);
	if (index_offset < (uint64_t)(last - forged)) {
		struct digest digest = digest_of(forged + index_offset, (size_t)(last - forged) - index_offset);
		memcpy(last, digest.b, DIGEST_BYTES);
	}
	store_le32(last + 60, crc32c(0, last, 60));
	store_le32(forged + 60, crc32c(0, forged, 60));
	store_le32(forged + PACK_HEAD_BYTES - 4, crc32c(0, forged, PACK_HEAD_BYTES - 4));
	decode(forged, size);
	return 0;
}
