/*
 * wire/codec.h: how fields become bytes. Pure; strict; no allocation when decoding.
 *
 * A message body and a list element are fields one after the other, little-endian, without padding:
 *	u8, u32, u64	1, 4, 8 bytes
 *	digest		32 bytes
 *	str		u32 length, then the bytes (UTF-8 where the field is a name; checked by whoever uses it)
 *	box		u32 ndim (0..8), then ndim times start u64, then ndim times count u64
 *	list		u32 count, u32 bytes, then the elements, each with a u32 length before it
 * The reader accepts a body that ends at a field's border (an older writer: the rest reads as zero or empty) and ignores bytes
 * after the last field that it knows (a newer one). A body that ends within a field is -EPROTO.
 *
 * Decoded strings and lists are views into the body.
 */
#pragma once

#include <errno.h>
#include <string.h>

#include "base/box.h"
#include "base/bytes.h"
#include "base/hash.h"

struct list_view {
	uint32_t count;
	struct view bytes;
};

/* The next element's bytes: 0, 1 at the end, -EPROTO. */
static inline int list_view_next(struct list_view *list, struct view *ret_element)
{
	if (!list->count)
		return list->bytes.len ? -EPROTO : 1;
	if (list->bytes.len < 4)
		return -EPROTO;

	uint32_t len = load_le32(list->bytes.ptr);
	if (len > list->bytes.len - 4)
		return -EPROTO;
	*ret_element = (struct view){ .ptr = list->bytes.ptr + 4, .len = len };
	list->bytes.ptr += 4 + len;
	list->bytes.len -= 4 + len;
	list->count--;
	return 0;
}

/* A list being built: elements are appended by the generated <name>_append(). Zeroed is valid. */
struct list_buf {
	uint32_t count;
	struct buf bytes;
};
struct list_view list_buf_view(const struct list_buf *list);
void list_buf_fini(struct list_buf *list);

/*
 * One function per field type; the schema's macros call them. Encoders: 0, -ENOMEM, -EOVERFLOW. Decoders take their bytes off @in: 0,
 * -EPROTO; with @in empty they give zero. Those of fixed size are inline: a save of small items is a hundred thousand of them.
 */
static inline int put_bytes(struct buf *out, const void *p, size_t len)
{
	int r = out->cap - out->len < len ? buf_reserve(out, len) : 0;

	if (r)
		return r;
	memcpy(out->ptr + out->len, p, len);
	out->len += len;
	return 0;
}

static inline int put_u8(struct buf *out, const uint8_t *v)
{
	return put_bytes(out, v, 1);
}

static inline int put_u32(struct buf *out, const uint32_t *v)
{
	uint8_t le[4];

	store_le32(le, *v);
	return put_bytes(out, le, sizeof(le));
}

static inline int put_u64(struct buf *out, const uint64_t *v)
{
	uint8_t le[8];

	store_le64(le, *v);
	return put_bytes(out, le, sizeof(le));
}

static inline int put_digest(struct buf *out, const struct digest *v)
{
	return put_bytes(out, v->b, DIGEST_BYTES);
}

int put_str(struct buf *out, const struct view *v);
int put_box(struct buf *out, const struct box *v);
int put_list(struct buf *out, const struct list_view *v);

/* True: the value is to be read. False with @ret 0: the body ended at this field's border; -EPROTO: within it. */
static inline bool field_take(struct view *in, size_t len, const uint8_t **ret_at, int *ret)
{
	*ret = in->len && in->len < len ? -EPROTO : 0;
	if (in->len < len)
		return false;
	*ret_at = in->ptr;
	in->ptr += len;
	in->len -= len;
	return true;
}

static inline int get_u8(struct view *in, uint8_t *ret)
{
	const uint8_t *at;
	int r;

	*ret = field_take(in, 1, &at, &r) ? *at : 0;
	return r;
}

static inline int get_u32(struct view *in, uint32_t *ret)
{
	const uint8_t *at;
	int r;

	*ret = field_take(in, 4, &at, &r) ? load_le32(at) : 0;
	return r;
}

static inline int get_u64(struct view *in, uint64_t *ret)
{
	const uint8_t *at;
	int r;

	*ret = field_take(in, 8, &at, &r) ? load_le64(at) : 0;
	return r;
}

static inline int get_digest(struct view *in, struct digest *ret)
{
	const uint8_t *at;
	int r;

	memset(ret, 0, sizeof(*ret));
	if (field_take(in, DIGEST_BYTES, &at, &r))
		memcpy(ret->b, at, DIGEST_BYTES);
	return r;
}

int get_str(struct view *in, struct view *ret);
int get_box(struct view *in, struct box *ret);
int get_list(struct view *in, struct list_view *ret);

/* The fields' C types. */
typedef uint8_t field_u8;
typedef uint32_t field_u32;
typedef uint64_t field_u64;
typedef struct digest field_digest;
typedef struct view field_str;
typedef struct box field_box;
typedef struct list_view field_list;
