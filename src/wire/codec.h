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

#include "base/box.h"
#include "base/bytes.h"
#include "base/hash.h"

struct list_view {
	uint32_t count;
	struct view bytes;
};

/* The next element's bytes: 0, 1 at the end, -EPROTO. */
int list_view_next(struct list_view *list, struct view *ret_element);

/* A list being built: elements are appended by the generated <name>_append(). Zeroed is valid. */
struct list_buf {
	uint32_t count;
	struct buf bytes;
};
struct list_view list_buf_view(const struct list_buf *list);
void list_buf_fini(struct list_buf *list);

/* One function per field type; the schema's macros call them. Encoders: 0, -ENOMEM, -EOVERFLOW. */
int put_u8(struct buf *out, const uint8_t *v);
int put_u32(struct buf *out, const uint32_t *v);
int put_u64(struct buf *out, const uint64_t *v);
int put_digest(struct buf *out, const struct digest *v);
int put_str(struct buf *out, const struct view *v);
int put_box(struct buf *out, const struct box *v);
int put_list(struct buf *out, const struct list_view *v);
/* Decoders take their bytes off @in: 0, -EPROTO. With @in empty they give zero. */
int get_u8(struct view *in, uint8_t *ret);
int get_u32(struct view *in, uint32_t *ret);
int get_u64(struct view *in, uint64_t *ret);
int get_digest(struct view *in, struct digest *ret);
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
