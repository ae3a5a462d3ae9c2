/*
 * wire/record.h: stored records, packs and index rows: what every object in the store looks like (docs/formats.md, 3 to 5 and 8).
 *
 * An object is a head of 64 bytes (magic of its kind, sizes, who wrote it, CRC32C), a body, and the BLAKE3 of both. A pack is a head of
 * 4 KiB, blocks, an index of block entries and a trailer. Bodies that vary in length are tables of fields under codec.h's
 * rules; encoders, decoders and fuzz targets are made from them.
 *
 * Pure: no I/O; nothing is allocated when decoding, and whatever is given back is a view into the input. Decoders are
 * strict: a byte that no field explains must be zero. What fails a check is -ERR_EDAMAGED with the cause in words (the caller puts
 * the object's key before them); what a later version wrote is -ERR_EVERSION.
 */
#pragma once

#include <assert.h>

#include "base/error.h"
#include "wire/codec.h"

#define RECORD_HEAD_BYTES   64
#define RECORD_DIGEST_BYTES 32
#define RECORD_MAJOR	    1
#define RECORD_MINOR	    0

#define RECORD_SMALL_MAX   4096u       /* bytes of a slot, a label's move, a generation */
#define RECORD_ROOT_MAX	   (1u << 20)  /* bytes of a root or tombstone */
#define RECORD_SEGMENT_MAX (16u << 20) /* bytes of a segment */

/* number, name, magic, bytes of the whole object at most */
#define RECORD_KINDS(X)                            \
	X(1, ROOT, "FBRT", RECORD_ROOT_MAX)        \
	X(2, TOMBSTONE, "FBTS", RECORD_ROOT_MAX)   \
	X(3, SLOT, "FBSL", RECORD_SMALL_MAX)       \
	X(4, LABEL, "FBLB", RECORD_SMALL_MAX)      \
	X(5, GENERATION, "FBGN", RECORD_SMALL_MAX) \
	X(6, ITEMS, "FBIT", RECORD_SEGMENT_MAX)    \
	X(7, BLOCKS, "FBBK", RECORD_SEGMENT_MAX)   \
	X(8, PACK, "FBPK", RECORD_PACK_MAX)        \
	X(9, RULE, "FBRU", RECORD_SMALL_MAX)       \
	X(10, FLOOR, "FBFL", RECORD_SMALL_MAX)

#define PACK_HEAD_BYTES	   4096u
#define PACK_TRAILER_BYTES 64u
#define PACK_NODE_BYTES	   64u /* a node's name with its zeros */
#define PACK_BLOCKS_MAX	   (1u << 20)
#define RECORD_PACK_MAX	   (UINT64_C(2) << 30)
#define PACK_ALIGN	   4096u /* of blocks of PACK_BIG_BYTES and more */
#define PACK_SMALL_ALIGN   64u	 /* of smaller ones, and of the index */
#define PACK_BIG_BYTES	   (64u << 10)

enum record_kind {
#define X(number, name, magic, max) RECORD_##name = number,
	RECORD_KINDS(X)
#undef X
};
const char *record_kind_name(unsigned kind); /* "ROOT", or "?" */

struct record_head { /* decoded, host order */
	enum record_kind kind;
	uint8_t major, minor;
	uint32_t generation;
	uint32_t part;
	uint64_t body_bytes;
	uint64_t save_id, epoch, incarnation, number;
};

/* The head alone; major and minor are this side's. @head->kind is one of the kinds. */
void record_head_encode(const struct record_head *head, uint8_t out[RECORD_HEAD_BYTES]);
/* 0, -ERR_EDAMAGED, -ERR_EVERSION; @ret untouched on failure. Says nothing about what follows the head. */
int record_head_decode(const uint8_t in[RECORD_HEAD_BYTES], struct record_head *ret, struct error *e);

/* Appends the object whole to @out: head (body_bytes is taken from @body), body, digest. 0, -E2BIG, -ENOMEM (@out unchanged). Not for packs. */
int record_seal(const struct record_head *head, struct view body, struct buf *out);
/* Checks a whole object, of any kind but a pack. */
int record_open(struct view object, struct record_head *ret_head, struct view *ret_body, struct error *e);
/* The same, and it must be of @kind. */
int record_open_as(struct view object, enum record_kind kind, struct record_head *ret_head, struct view *ret_body,
		   struct error *e);
/* Its last 32 bytes; @object is at least as long as a record without a body. */
struct digest record_digest(struct view object);

/* ---- bodies, elements and index rows: fields in their order -------------------------------------------------------- */

/* clang-format off */
#define REC_root(F)                                                                                          \
	F(str, tenant) F(str, bundle) F(u64, step) F(u64, parent) F(u64, n_items) F(u64, n_pieces)           \
	F(u64, n_blocks) F(u64, bytes) F(u64, stored_bytes) F(list, attributes) F(list, packs) F(list, segments)
#define REC_tombstone(F)  F(str, tenant) F(str, bundle) F(u32, reason) F(list, packs) F(list, segments) F(u32, shared)
#define REC_slot(F)	  F(str, tenant) F(str, bundle) F(u64, parent) F(str, node) F(str, lease)
#define REC_label(F)	  F(str, tenant) F(str, bundle) F(str, label) F(u64, number)
#define REC_generation(F) F(str, cluster) F(str, node) F(u64, life) F(str, token)
#define REC_rule(F)	  F(str, tenant) F(str, bundle) F(u64, keep_last) F(u64, keep_every)
#define REC_floor(F)	  F(str, tenant) F(str, bundle)
#define REC_items(F)	  F(list, items)

#define REC_pack(F)    F(str, key) F(u64, bytes) F(str, node)
#define REC_segment(F) F(str, key) F(u32, kind) F(u64, bytes) F(u64, count) F(digest, digest)
#define REC_item(F)    F(str, name) F(str, dtype) F(u32, element_bits) F(box, whole) F(list, pieces)
#define REC_piece(F)   F(box, box) F(u64, first_block) F(u32, n_blocks)

#define ROW_bundle(F)                                                                                        \
	F(u64, last) F(u64, n_versions) F(u64, latest) F(u64, changes) F(u64, floor) F(u64, rule)            \
	F(u64, keep_last) F(u64, keep_every) F(u64, pending_rule) F(u64, collected)
#define ROW_version(F)                                                                                       \
	F(u64, step) F(u64, n_items) F(u64, bytes) F(u64, stored_bytes) F(u64, save_id) F(u64, epoch)        \
	F(u32, state) F(list, attributes) F(u32, shared) F(u64, mark)
#define ROW_slot(F)	  F(u64, save_id) F(u64, epoch) F(u64, parent) F(str, lease)
#define ROW_label(F)	  F(u64, number) F(u64, move) F(u64, pending_move) F(u64, pending_number)
#define ROW_generation(F) F(u32, generation) F(u64, life) F(str, token)

/* struct's name, its table */
#define RECORD_BODIES(X)                                                                                     \
	X(rec_root, REC_root) X(rec_tombstone, REC_tombstone) X(rec_slot, REC_slot) X(rec_label, REC_label)  \
	X(rec_generation, REC_generation) X(rec_items, REC_items) X(row_bundle, ROW_bundle)                  \
	X(row_version, ROW_version) X(row_slot, ROW_slot) X(row_label, ROW_label)                            \
	X(row_generation, ROW_generation) X(rec_rule, REC_rule) X(rec_floor, REC_floor)
#define RECORD_ELEMENTS(X) X(rec_pack, REC_pack) X(rec_segment, REC_segment) X(rec_item, REC_item) X(rec_piece, REC_piece)
/* clang-format on */

enum tombstone_reason { TOMBSTONE_BURNED = 1, TOMBSTONE_DELETED = 2 };
enum row_state { ROW_LIVE = 1, ROW_DYING = 2 };

/* _encode() appends to @out: 0, -ENOMEM, -EOVERFLOW, @out unchanged on failure. _decode(): 0, -EPROTO; views into @body. */
#define RECORD_FIELD(type, name) field_##type name;
#define RECORD_DECLARE_BODY(name, TABLE)                          \
	struct name {                                             \
		TABLE(RECORD_FIELD)                               \
	};                                                        \
	int name##_encode(const struct name *m, struct buf *out); \
	int name##_decode(struct view body, struct name *ret);
/* _append() as _encode(). _next(): the list's next element: 0, 1 at the end, -EPROTO. */
#define RECORD_DECLARE_ELEMENT(name, TABLE)                             \
	struct name {                                                   \
		TABLE(RECORD_FIELD)                                     \
	};                                                              \
	int name##_append(struct list_buf *list, const struct name *e); \
	int name##_next(struct list_view *list, struct name *ret);
RECORD_BODIES(RECORD_DECLARE_BODY)
RECORD_ELEMENTS(RECORD_DECLARE_ELEMENT)

/* ---- block entries -------------------------------------------------------------------------------------------------- */

#define BLOCK_ENTRY_BYTES   64
#define BLOCK_ENTRY_HOLE    1 /* flag: every byte is zero, nothing is stored */
#define BLOCK_ENTRY_NO_PACK UINT32_MAX
#define BLOCK_LOGICAL_MAX   (8u << 20) /* bytes of a block */

struct block_rec {
	uint8_t digest[DIGEST_BYTES];
	uint8_t pack[4], offset[8], logical[4], stored[4], crc[4];
	uint8_t codec, flags;
	uint8_t key_id[2], spare[4];
};
static_assert(sizeof(struct block_rec) == BLOCK_ENTRY_BYTES, "docs/formats.md, block entry");
static_assert(offsetof(struct block_rec, pack) == 32 && offsetof(struct block_rec, offset) == 36, "docs/formats.md");
static_assert(offsetof(struct block_rec, logical) == 44 && offsetof(struct block_rec, stored) == 48, "docs/formats.md");
static_assert(offsetof(struct block_rec, crc) == 52 && offsetof(struct block_rec, codec) == 56, "docs/formats.md");
static_assert(offsetof(struct block_rec, flags) == 57 && offsetof(struct block_rec, key_id) == 58, "docs/formats.md");
static_assert(offsetof(struct block_rec, spare) == 60, "docs/formats.md");

struct block_entry { /* decoded. A hole: only bytes and hole are looked at */
	struct digest digest;
	uint64_t offset;
	uint32_t pack;
	uint32_t bytes; /* logical and, as there is no codec yet, stored */
	uint32_t crc;
	bool hole;
};
void block_entry_encode(const struct block_entry *entry, struct block_rec *out);
int block_entry_decode(const struct block_rec *in, struct block_entry *ret, struct error *e);

/* ---- packs ----------------------------------------------------------------------------------------------------------- */

/* @node: at most PACK_NODE_BYTES - 1 bytes. head->kind is PACK, head->body_bytes: pack_body_bytes(). */
void pack_head_encode(const struct record_head *head, const char *node, uint8_t out[PACK_HEAD_BYTES]);
int pack_head_decode(const uint8_t in[PACK_HEAD_BYTES], struct record_head *ret_head, char ret_node[PACK_NODE_BYTES],
		     struct error *e);
static inline uint64_t pack_body_bytes(uint64_t pack_bytes)
{
	return pack_bytes - RECORD_HEAD_BYTES - PACK_TRAILER_BYTES;
}

struct pack_trailer {
	struct digest index; /* BLAKE3 of the index */
	uint64_t index_offset, pack_bytes;
	uint32_t n;
};
void pack_trailer_encode(const struct pack_trailer *trailer, uint8_t out[PACK_TRAILER_BYTES]);
/* @pack_bytes: what the store says the object's size is. */
int pack_trailer_decode(const uint8_t in[PACK_TRAILER_BYTES], uint64_t pack_bytes, struct pack_trailer *ret,
			struct error *e);
/* Digest and number of entries as the trailer says, each entry sound, aligned, behind the one before it and before the index. */
int pack_index_check(struct view index, const struct pack_trailer *trailer, struct error *e);
