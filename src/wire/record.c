#include "wire/record.h"

#include <errno.h>
#include <string.h>

#include "base/check.h"

/* Where each field of the head lies. The byte table in docs/formats.md says the same. */
enum {
	AT_MAGIC = 0,
	AT_MAJOR = 4,
	AT_MINOR = 5,
	AT_KIND = 6,
	AT_BODY_BYTES = 8,
	AT_SAVE_ID = 16,
	AT_EPOCH = 24,
	AT_INCARNATION = 32,
	AT_NUMBER = 40,
	AT_GENERATION = 48,
	AT_PART = 52,
	AT_ZERO = 56,
	AT_CRC = 60,
};
static_assert(AT_CRC + 4 == RECORD_HEAD_BYTES, "the head's CRC ends the head");

struct kind {
	const char *name, *magic;
	uint64_t bytes_max;
};

static const struct kind kinds[] = {
#define X(number, kind_name, kind_magic, max) [number] = { .name = #kind_name, .magic = kind_magic, .bytes_max = max },
	RECORD_KINDS(X)
#undef X
};

static bool kind_is_known(unsigned kind)
{
	return kind > 0 && kind < ARRAY_LEN(kinds);
}

const char *record_kind_name(unsigned kind)
{
	return kind_is_known(kind) ? kinds[kind].name : "?";
}

void record_head_encode(const struct record_head *head, uint8_t out[RECORD_HEAD_BYTES])
{
	CHECK(kind_is_known(head->kind));

	memset(out, 0, RECORD_HEAD_BYTES);
	memcpy(out + AT_MAGIC, kinds[head->kind].magic, 4);
	out[AT_MAJOR] = RECORD_MAJOR;
	out[AT_MINOR] = RECORD_MINOR;
	store_le16(out + AT_KIND, (uint16_t)head->kind);
	store_le64(out + AT_BODY_BYTES, head->body_bytes);
	store_le64(out + AT_SAVE_ID, head->save_id);
	store_le64(out + AT_EPOCH, head->epoch);
	store_le64(out + AT_INCARNATION, head->incarnation);
	store_le64(out + AT_NUMBER, head->number);
	store_le32(out + AT_GENERATION, head->generation);
	store_le32(out + AT_PART, head->part);
	store_le32(out + AT_CRC, crc32c(0, out, AT_CRC));
}

/* The order of the checks matters for the words alone: a foreign object is named as such before it is called damaged. */
int record_head_decode(const uint8_t in[RECORD_HEAD_BYTES], struct record_head *ret, struct error *e)
{
	unsigned kind = load_le16(in + AT_KIND);
	uint32_t said = load_le32(in + AT_CRC), is = crc32c(0, in, AT_CRC);

	if (said != is)
		return error_set(e, -ERR_EDAMAGED,
				 "its head is damaged or is not Forebay's: the CRC is %08x, it says %08x", is, said);
	if (in[AT_MAJOR] != RECORD_MAJOR)
		return error_set(e, -ERR_EVERSION, "it has format %u.%u, this side knows %u.x", in[AT_MAJOR],
				 in[AT_MINOR], RECORD_MAJOR);
	if (!kind_is_known(kind) || memcmp(in + AT_MAGIC, kinds[kind].magic, 4) != 0)
		return error_set(e, -ERR_EDAMAGED, "its head says kind %u, and a magic that is not that kind's", kind);
	if (load_le32(in + AT_ZERO))
		return error_set(e, -ERR_EDAMAGED, "its head is not zero where it must be");

	*ret = (struct record_head){
		.kind = (enum record_kind)kind,
		.major = in[AT_MAJOR],
		.minor = in[AT_MINOR],
		.body_bytes = load_le64(in + AT_BODY_BYTES),
		.save_id = load_le64(in + AT_SAVE_ID),
		.epoch = load_le64(in + AT_EPOCH),
		.incarnation = load_le64(in + AT_INCARNATION),
		.number = load_le64(in + AT_NUMBER),
		.generation = load_le32(in + AT_GENERATION),
		.part = load_le32(in + AT_PART),
	};
	return 0;
}

int record_seal(const struct record_head *head, struct view body, struct buf *out)
{
	CHECK(kind_is_known(head->kind) && head->kind != RECORD_PACK);
	struct record_head h = *head;
	uint8_t raw[RECORD_HEAD_BYTES];
	size_t bytes = RECORD_HEAD_BYTES + body.len + RECORD_DIGEST_BYTES;

	if (body.len > kinds[head->kind].bytes_max || bytes > kinds[head->kind].bytes_max)
		return -E2BIG;
	int r = buf_reserve(out, bytes);
	if (r)
		return r;

	size_t start = out->len;
	h.body_bytes = body.len;
	record_head_encode(&h, raw);
	r = buf_append(out, raw, sizeof(raw));
	if (!r)
		r = buf_append(out, body.ptr, body.len);
	CHECK(!r); /* there is room */

	struct digest digest = digest_of(out->ptr + start, out->len - start);
	r = buf_append(out, digest.b, sizeof(digest.b));
	CHECK(!r);
	return 0;
}

int record_open(struct view object, struct record_head *ret_head, struct view *ret_body, struct error *e)
{
	struct record_head head;

	if (object.len < RECORD_HEAD_BYTES + RECORD_DIGEST_BYTES)
		return error_set(e, -ERR_EDAMAGED, "it has %zu bytes, too few for a record", object.len);
	int r = record_head_decode(object.ptr, &head, e);
	if (r)
		return r;
	if (head.kind == RECORD_PACK)
		return error_set(e, -ERR_EDAMAGED, "it is a pack, not a record");
	if (object.len > kinds[head.kind].bytes_max)
		return error_set(e, -ERR_EDAMAGED, "it has %zu bytes, a %s has at most %llu", object.len,
				 kinds[head.kind].name, (unsigned long long)kinds[head.kind].bytes_max);
	if (head.body_bytes != object.len - RECORD_HEAD_BYTES - RECORD_DIGEST_BYTES)
		return error_set(e, -ERR_EDAMAGED, "it has %zu bytes, its head says a body of %llu", object.len,
				 (unsigned long long)head.body_bytes);

	struct digest is = digest_of(object.ptr, object.len - RECORD_DIGEST_BYTES), said = record_digest(object);
	if (!digest_equal(&is, &said))
		return error_set(e, -ERR_EDAMAGED, "its bytes do not have the digest at its end");

	*ret_head = head;
	*ret_body = view_of(object.ptr + RECORD_HEAD_BYTES, (size_t)head.body_bytes);
	return 0;
}

int record_open_as(struct view object, enum record_kind kind, struct record_head *ret_head, struct view *ret_body,
		   struct error *e)
{
	struct record_head head;
	struct view body;
	int r = record_open(object, &head, &body, e);

	if (r)
		return r;
	if (head.kind != kind)
		return error_set(e, -ERR_EDAMAGED, "it is a %s, not a %s", record_kind_name(head.kind),
				 record_kind_name(kind));
	*ret_head = head;
	*ret_body = body;
	return 0;
}

struct digest record_digest(struct view object)
{
	struct digest digest;

	CHECK(object.len >= RECORD_HEAD_BYTES + RECORD_DIGEST_BYTES);
	memcpy(digest.b, object.ptr + object.len - RECORD_DIGEST_BYTES, RECORD_DIGEST_BYTES);
	return digest;
}

/* ---- fields ---- */

#define PUT_FIELD(type, name) \
	if (!r)               \
		r = put_##type(out, &m->name);
#define GET_FIELD(type, name) \
	if (!r)               \
		r = get_##type(&body, &ret->name);

#define DEFINE_BODY(name, TABLE)                                 \
	int name##_encode(const struct name *m, struct buf *out) \
	{                                                        \
		size_t len = out->len;                           \
		int r = 0;                                       \
                                                                 \
		TABLE(PUT_FIELD)                                 \
		if (r)                                           \
			out->len = len;                          \
		return r;                                        \
	}                                                        \
	int name##_decode(struct view body, struct name *ret)    \
	{                                                        \
		int r = 0;                                       \
                                                                 \
		TABLE(GET_FIELD)                                 \
		return r;                                        \
	}
RECORD_BODIES(DEFINE_BODY)

#define DEFINE_ELEMENT(name, TABLE)                                         \
	int name##_append(struct list_buf *list, const struct name *m)      \
	{                                                                   \
		struct buf *out = &list->bytes;                             \
		size_t len = out->len;                                      \
		int r = buf_append_zero(out, 4);                            \
                                                                            \
		TABLE(PUT_FIELD)                                            \
		if (!r && out->len - len - 4 > UINT32_MAX)                  \
			r = -EOVERFLOW;                                     \
		if (r) {                                                    \
			out->len = len;                                     \
			return r;                                           \
		}                                                           \
		store_le32(out->ptr + len, (uint32_t)(out->len - len - 4)); \
		list->count++;                                              \
		return 0;                                                   \
	}                                                                   \
	int name##_next(struct list_view *list, struct name *ret)           \
	{                                                                   \
		struct view body;                                           \
		int r = list_view_next(list, &body);                        \
                                                                            \
		TABLE(GET_FIELD)                                            \
		return r;                                                   \
	}
RECORD_ELEMENTS(DEFINE_ELEMENT)

/* ---- block entries ---- */

void block_entry_encode(const struct block_entry *entry, struct block_rec *out)
{
	CHECK(entry->bytes > 0 && entry->bytes <= BLOCK_LOGICAL_MAX);

	memset(out, 0, sizeof(*out));
	store_le32(out->logical, entry->bytes);
	if (entry->hole) {
		out->flags = BLOCK_ENTRY_HOLE;
		store_le32(out->pack, BLOCK_ENTRY_NO_PACK);
		return;
	}
	memcpy(out->digest, entry->digest.b, DIGEST_BYTES);
	store_le32(out->pack, entry->pack);
	store_le64(out->offset, entry->offset);
	store_le32(out->stored, entry->bytes);
	store_le32(out->crc, entry->crc);
}

int block_entry_decode(const struct block_rec *in, struct block_entry *ret, struct error *e)
{
	struct block_entry entry = {
		.offset = load_le64(in->offset),
		.pack = load_le32(in->pack),
		.bytes = load_le32(in->logical),
		.crc = load_le32(in->crc),
		.hole = in->flags & BLOCK_ENTRY_HOLE,
	};
	uint32_t stored = load_le32(in->stored);

	memcpy(entry.digest.b, in->digest, DIGEST_BYTES);
	if (in->codec || (in->flags & ~BLOCK_ENTRY_HOLE) || load_le16(in->key_id))
		return error_set(e, -ERR_EVERSION,
				 "a block has codec %u, flags %u, key %u, which this side does not know", in->codec,
				 in->flags, load_le16(in->key_id));
	if (load_le32(in->spare))
		return error_set(e, -ERR_EDAMAGED, "a block's entry is not zero where it must be");
	if (!entry.bytes || entry.bytes > BLOCK_LOGICAL_MAX)
		return error_set(e, -ERR_EDAMAGED, "a block has %u bytes", entry.bytes);
	if (stored != (entry.hole ? 0 : entry.bytes))
		return error_set(e, -ERR_EDAMAGED, "a block of %u bytes has %u stored", entry.bytes, stored);
	if (entry.hole && (entry.pack != BLOCK_ENTRY_NO_PACK || entry.offset || entry.crc ||
			   !bytes_are_zero(entry.digest.b, DIGEST_BYTES)))
		return error_set(e, -ERR_EDAMAGED, "a hole has a place, a CRC or a digest");

	*ret = entry;
	return 0;
}

/* ---- packs ---- */

void pack_head_encode(const struct record_head *head, const char *node, uint8_t out[PACK_HEAD_BYTES])
{
	size_t len = strlen(node);

	CHECK(head->kind == RECORD_PACK && len < PACK_NODE_BYTES);
	memset(out, 0, PACK_HEAD_BYTES);
	record_head_encode(head, out);
	memcpy(out + RECORD_HEAD_BYTES, node, len);
	store_le32(out + PACK_HEAD_BYTES - 4, crc32c(0, out, PACK_HEAD_BYTES - 4));
}

int pack_head_decode(const uint8_t in[PACK_HEAD_BYTES], struct record_head *ret_head, char ret_node[PACK_NODE_BYTES],
		     struct error *e)
{
	struct record_head head;
	const char *node = (const char *)in + RECORD_HEAD_BYTES;
	const uint8_t *rest = in + RECORD_HEAD_BYTES + PACK_NODE_BYTES;
	size_t node_len = strnlen(node, PACK_NODE_BYTES);

	int r = record_head_decode(in, &head, e);
	if (r)
		return r;
	if (head.kind != RECORD_PACK)
		return error_set(e, -ERR_EDAMAGED, "it is a %s, not a pack", record_kind_name(head.kind));
	if (load_le32(in + PACK_HEAD_BYTES - 4) != crc32c(0, in, PACK_HEAD_BYTES - 4))
		return error_set(e, -ERR_EDAMAGED,
				 "the first 4 KiB are damaged: they do not have the CRC at their end");
	if (node_len == PACK_NODE_BYTES || !bytes_are_zero(node + node_len, PACK_NODE_BYTES - node_len) ||
	    !bytes_are_zero(rest, (size_t)(in + PACK_HEAD_BYTES - 4 - rest)))
		return error_set(e, -ERR_EDAMAGED, "the first 4 KiB are not zero where they must be");

	*ret_head = head;
	memcpy(ret_node, node, PACK_NODE_BYTES);
	return 0;
}

enum {
	AT_INDEX_DIGEST = 0,
	AT_INDEX_OFFSET = 32,
	AT_PACK_BYTES = 40,
	AT_N = 48,
	AT_TRAILER_MAGIC = 52,
	AT_TRAILER_ZERO = 56,
	AT_TRAILER_CRC = 60,
};
static_assert(AT_TRAILER_CRC + 4 == PACK_TRAILER_BYTES, "the trailer's CRC ends the trailer");
static const char trailer_magic[] = "FBPT";

void pack_trailer_encode(const struct pack_trailer *trailer, uint8_t out[PACK_TRAILER_BYTES])
{
	CHECK(trailer->n <= PACK_BLOCKS_MAX && trailer->pack_bytes <= RECORD_PACK_MAX);

	memset(out, 0, PACK_TRAILER_BYTES);
	memcpy(out + AT_INDEX_DIGEST, trailer->index.b, DIGEST_BYTES);
	store_le64(out + AT_INDEX_OFFSET, trailer->index_offset);
	store_le64(out + AT_PACK_BYTES, trailer->pack_bytes);
	store_le32(out + AT_N, trailer->n);
	memcpy(out + AT_TRAILER_MAGIC, trailer_magic, 4);
	store_le32(out + AT_TRAILER_CRC, crc32c(0, out, AT_TRAILER_CRC));
}

int pack_trailer_decode(const uint8_t in[PACK_TRAILER_BYTES], uint64_t pack_bytes, struct pack_trailer *ret,
			struct error *e)
{
	struct pack_trailer trailer = {
		.index_offset = load_le64(in + AT_INDEX_OFFSET),
		.pack_bytes = load_le64(in + AT_PACK_BYTES),
		.n = load_le32(in + AT_N),
	};

	if (load_le32(in + AT_TRAILER_CRC) != crc32c(0, in, AT_TRAILER_CRC))
		return error_set(e, -ERR_EDAMAGED, "its trailer is damaged: it does not have the CRC at its end");
	if (memcmp(in + AT_TRAILER_MAGIC, trailer_magic, 4) != 0 || load_le32(in + AT_TRAILER_ZERO))
		return error_set(e, -ERR_EDAMAGED, "its last 64 bytes are no trailer");
	if (trailer.pack_bytes != pack_bytes || pack_bytes > RECORD_PACK_MAX)
		return error_set(e, -ERR_EDAMAGED, "it has %llu bytes, its trailer says %llu",
				 (unsigned long long)pack_bytes, (unsigned long long)trailer.pack_bytes);
	if (trailer.n > PACK_BLOCKS_MAX || trailer.index_offset < PACK_HEAD_BYTES ||
	    trailer.index_offset > pack_bytes || trailer.index_offset % PACK_SMALL_ALIGN ||
	    trailer.index_offset + (uint64_t)trailer.n * BLOCK_ENTRY_BYTES + PACK_TRAILER_BYTES != pack_bytes)
		return error_set(e, -ERR_EDAMAGED, "its trailer says %u blocks and an index at %llu, which do not fit",
				 trailer.n, (unsigned long long)trailer.index_offset);

	memcpy(trailer.index.b, in + AT_INDEX_DIGEST, DIGEST_BYTES);
	*ret = trailer;
	return 0;
}

int pack_index_check(struct view index, const struct pack_trailer *trailer, struct error *e)
{
	uint64_t end = PACK_HEAD_BYTES;

	if (index.len != (uint64_t)trailer->n * BLOCK_ENTRY_BYTES)
		return error_set(e, -ERR_EDAMAGED, "its index has %zu bytes for %u blocks", index.len, trailer->n);
	struct digest is = digest_of(index.ptr, index.len);
	if (!digest_equal(&is, &trailer->index))
		return error_set(e, -ERR_EDAMAGED, "its index does not have the digest in the trailer");

	for (uint32_t i = 0; i < trailer->n; i++) {
		struct block_entry entry;
		int r = block_entry_decode((const struct block_rec *)(index.ptr + (size_t)i * BLOCK_ENTRY_BYTES),
					   &entry, e);

		if (r)
			return r;
		uint32_t align = entry.bytes >= PACK_BIG_BYTES ? PACK_ALIGN : PACK_SMALL_ALIGN;
		if (entry.hole || entry.pack || entry.offset % align || entry.offset < end ||
		    entry.offset > trailer->index_offset || entry.bytes > trailer->index_offset - entry.offset)
			return error_set(e, -ERR_EDAMAGED,
					 "block %u of its index lies at %llu with %u bytes, which cannot be", i,
					 (unsigned long long)entry.offset, entry.bytes);
		end = entry.offset + entry.bytes;
	}
	return 0;
}
