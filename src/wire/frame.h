/*
 * wire/frame.h: the head of every frame, on sockets of clients and peers alike (docs/formats.md, "Frames").
 *
 * Pure: no I/O. 64 bytes, little-endian. Control frame: head, body. Bulk chunk: head, then payload_bytes of payload, then
 * the payload's CRC32C (4 bytes).
 */
#pragma once

#include <stdint.h>

#include "base/bytes.h"
#include "base/error.h"

#define FRAME_MAGIC	  0x46594246u /* "FBYF" */
#define FRAME_HEAD_BYTES  64
#define FRAME_BODY_MAX	  (1u << 20)
#define FRAME_CHUNK_MAX	  (1u << 20) /* payload of a bulk chunk */
#define FRAME_CRC_BYTES	  4	     /* after a chunk's payload */
#define FRAME_MAJOR	  1
#define FRAME_MAJOR_LEAST 1 /* served too: one less than FRAME_MAJOR from major 2 on; there never was a 0 */
#define FRAME_MINOR	  0

enum frame_flags {
	FRAME_REPLY = 1,  /* answers the request of the same number */
	FRAME_FAILED = 2, /* a reply whose body is a msg_failure */
	FRAME_MORE = 4,	  /* a paged list: more frames of the same request and type follow */
	FRAME_ARENA = 8,  /* a file descriptor came along (unix sockets) */
};

struct frame_head { /* decoded, host order */
	uint8_t major, minor;
	uint16_t type; /* enum msg_type */
	uint32_t flags;
	uint32_t body_bytes;
	uint32_t deadline_ms; /* how long the sender will wait from now; 0: not a request */
	uint64_t request;     /* bulk: the transfer's id */
	uint64_t group;	      /* 0: none. Bulk: offset of the chunk in the transfer */
	uint64_t epoch;	      /* coordinator's epoch of that group. Bulk: length of the whole transfer */
	uint32_t payload_bytes;
	uint32_t generation; /* of the cluster; 0 between a client and its daemon */
	uint32_t body_crc;
};

/* Byte layout (docs/formats.md): magic 4, major 1, minor 1, type 2, flags 4, body_bytes 4, request 8, group 8, epoch 8,
 * deadline_ms 4, payload_bytes 4, generation 4, body_crc 4, zero 4, head_crc 4 (over the 60 bytes before it). Every major
 * keeps magic, major, minor, type, flags, request and head_crc where they are, so that a foreign one can be refused by name.
 * A later minor may use the four zero bytes: they are written as 0 and not looked at.
 *
 * Sizes beyond the limits are the caller's error. */
void frame_encode(const struct frame_head *head, uint8_t out[FRAME_HEAD_BYTES]);
/* 0, -EPROTO (magic, CRC, sizes; words in @e), -ERR_EVERSION (a major that is not ours; head is filled, for the refusal;
 * nothing else in it was looked at). On -EPROTO @ret is untouched. */
int frame_decode(const uint8_t in[FRAME_HEAD_BYTES], struct frame_head *ret, struct error *e);
