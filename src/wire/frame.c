#include "wire/frame.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"

/* Where each field lies. The byte table in docs/formats.md says the same. */
enum {
	AT_MAGIC = 0,
	AT_MAJOR = 4,
	AT_MINOR = 5,
	AT_TYPE = 6,
	AT_FLAGS = 8,
	AT_BODY_BYTES = 12,
	AT_REQUEST = 16,
	AT_GROUP = 24,
	AT_EPOCH = 32,
	AT_DEADLINE_MS = 40,
	AT_PAYLOAD_BYTES = 44,
	AT_GENERATION = 48,
	AT_BODY_CRC = 52,
	AT_ZERO = 56,
	AT_HEAD_CRC = 60,
};
static_assert(AT_HEAD_CRC + 4 == FRAME_HEAD_BYTES, "the head's CRC ends the head");

void frame_encode(const struct frame_head *head, uint8_t out[FRAME_HEAD_BYTES])
{
	CHECK(head->body_bytes <= FRAME_BODY_MAX && head->payload_bytes <= FRAME_CHUNK_MAX);

	store_le32(out + AT_MAGIC, FRAME_MAGIC);
	out[AT_MAJOR] = head->major;
	out[AT_MINOR] = head->minor;
	store_le16(out + AT_TYPE, head->type);
	store_le32(out + AT_FLAGS, head->flags);
	store_le32(out + AT_BODY_BYTES, head->body_bytes);
	store_le64(out + AT_REQUEST, head->request);
	store_le64(out + AT_GROUP, head->group);
	store_le64(out + AT_EPOCH, head->epoch);
	store_le32(out + AT_DEADLINE_MS, head->deadline_ms);
	store_le32(out + AT_PAYLOAD_BYTES, head->payload_bytes);
	store_le32(out + AT_GENERATION, head->generation);
	store_le32(out + AT_BODY_CRC, head->body_crc);
	store_le32(out + AT_ZERO, 0);
	store_le32(out + AT_HEAD_CRC, crc32c(0, out, AT_HEAD_CRC));
}

static struct frame_head load(const uint8_t *in)
{
	return (struct frame_head){
		.major = in[AT_MAJOR],
		.minor = in[AT_MINOR],
		.type = load_le16(in + AT_TYPE),
		.flags = load_le32(in + AT_FLAGS),
		.body_bytes = load_le32(in + AT_BODY_BYTES),
		.request = load_le64(in + AT_REQUEST),
		.group = load_le64(in + AT_GROUP),
		.epoch = load_le64(in + AT_EPOCH),
		.deadline_ms = load_le32(in + AT_DEADLINE_MS),
		.payload_bytes = load_le32(in + AT_PAYLOAD_BYTES),
		.generation = load_le32(in + AT_GENERATION),
		.body_crc = load_le32(in + AT_BODY_CRC),
	};
}

int frame_decode(const uint8_t in[FRAME_HEAD_BYTES], struct frame_head *ret, struct error *e)
{
	uint32_t magic = load_le32(in + AT_MAGIC);
	uint32_t said = load_le32(in + AT_HEAD_CRC), is = crc32c(0, in, AT_HEAD_CRC);

	if (magic != FRAME_MAGIC)
		return error_set(e, -EPROTO, "not a Forebay frame: it begins with %08x, not %08x", magic, FRAME_MAGIC);
	if (said != is)
		return error_set(e, -EPROTO, "damaged frame head: its CRC is %08x, it says %08x", is, said);

	struct frame_head head = load(in);
	if (head.major < FRAME_MAJOR_LEAST || head.major > FRAME_MAJOR) {
		*ret = head;
		return error_set(e, -ERR_EVERSION, "the other side speaks protocol %u.%u, this side %u to %u",
				 head.major, head.minor, FRAME_MAJOR_LEAST, FRAME_MAJOR);
	}
	if (head.body_bytes > FRAME_BODY_MAX)
		return error_set(e, -EPROTO, "frame of type %u announces a body of %u bytes, at most %u are allowed",
				 head.type, head.body_bytes, FRAME_BODY_MAX);
	if (head.payload_bytes > FRAME_CHUNK_MAX)
		return error_set(e, -EPROTO, "chunk of transfer %llu announces %u bytes, at most %u are allowed",
				 (unsigned long long)head.request, head.payload_bytes, FRAME_CHUNK_MAX);

	*ret = head;
	return 0;
}
