/*
 * base/bytes.h: views borrow and go by value, buffers own. One of each for bytes in the whole tree.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cleanup.h"

struct view {
	const uint8_t *ptr;
	size_t len; /* bytes */
};

struct buf {
	uint8_t *ptr;
	size_t len, cap; /* bytes */
};

struct view view_of(const void *ptr, size_t len);
struct view view_str(const char *text); /* without the final 0; NULL gives the empty view */
struct view view_buf(const struct buf *buf);
bool view_equal(struct view a, struct view b);
int view_compare(struct view a, struct view b); /* memcmp order, then length */
/* The first @len bytes leave @v (fewer if it is shorter) and are returned. */
struct view view_take(struct view *v, size_t len);
/* Strict: no surrogates, no overlong forms, no code point past U+10FFFF. U+0000 is a character like others. */
bool view_is_utf8(struct view v);
char *view_dup(struct view v); /* 0-terminated copy on the heap, or NULL */

void buf_fini(struct buf *buf); /* accepts an all-zero buf; leaves one */
/* Makes room for @more bytes past len. 0 or -ENOMEM, @buf unchanged. */
int buf_reserve(struct buf *buf, size_t more);
int buf_append(struct buf *buf, const void *ptr, size_t len); /* 0 or -ENOMEM; @buf unchanged on failure */
int buf_append_zero(struct buf *buf, size_t len);
int buf_printf(struct buf *buf, const char *format, ...) __attribute__((format(printf, 2, 3))); /* no final 0 kept */
void buf_drop(struct buf *buf, size_t len); /* removes the first @len bytes, of at least as many */

/* Little-endian loads and stores for unaligned places. By shifts, which gcc turns into one load or store: right on every host. */
static inline uint16_t load_le16(const void *p)
{
	const uint8_t *b = p;

	return (uint16_t)(b[0] | b[1] << 8);
}

static inline uint32_t load_le32(const void *p)
{
	const uint8_t *b = p;

	return b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
}

static inline uint64_t load_le64(const void *p)
{
	const uint8_t *b = p;

	return load_le32(b) | (uint64_t)load_le32(b + 4) << 32;
}

static inline void store_le16(void *p, uint16_t v)
{
	uint8_t *b = p;

	b[0] = (uint8_t)v;
	b[1] = (uint8_t)(v >> 8);
}

static inline void store_le32(void *p, uint32_t v)
{
	uint8_t *b = p;

	b[0] = (uint8_t)v;
	b[1] = (uint8_t)(v >> 8);
	b[2] = (uint8_t)(v >> 16);
	b[3] = (uint8_t)(v >> 24);
}

static inline void store_le64(void *p, uint64_t v)
{
	uint8_t *b = p;

	store_le32(b, (uint32_t)v);
	store_le32(b + 4, (uint32_t)(v >> 32));
}

/* Lower-case hex of @len bytes, 0-terminated, into @out of 2 * len + 1. */
void hex_encode(char *out, const void *p, size_t len);
/* And back, from exactly 2 * len characters of @hex; what follows is not looked at. -EINVAL: not lower-case hex. */
int hex_decode(void *out, size_t len, const char *hex);

/* A size as people write it: a number of bytes, or one with K, M, G or T (powers of 1024). -EINVAL. */
int size_parse(const char *text, uint64_t *ret);

/* True if a + b or a * b overflows; else the result in *ret. */
#define add_overflows(a, b, ret) __builtin_add_overflow(a, b, ret)
#define mul_overflows(a, b, ret) __builtin_mul_overflow(a, b, ret)
