#include "base/bytes.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"

#define BUF_CAP_MIN 64 /* bytes; the first allocation of a buffer */

struct view view_of(const void *ptr, size_t len)
{
	return (struct view){ .ptr = ptr, .len = len };
}

struct view view_str(const char *text)
{
	return view_of(text, text ? strlen(text) : 0);
}

struct view view_buf(const struct buf *buf)
{
	return view_of(buf->ptr, buf->len);
}

bool view_equal(struct view a, struct view b)
{
	return a.len == b.len && (!a.len || !memcmp(a.ptr, b.ptr, a.len));
}

int view_compare(struct view a, struct view b)
{
	size_t common = a.len < b.len ? a.len : b.len;
	int order = common ? memcmp(a.ptr, b.ptr, common) : 0;

	if (order)
		return order < 0 ? -1 : 1;
	return (a.len > b.len) - (a.len < b.len);
}

struct view view_take(struct view *v, size_t len)
{
	struct view head = view_of(v->ptr, len < v->len ? len : v->len);

	if (head.len) /* the empty view may have no pointer to move */
		v->ptr += head.len;
	v->len -= head.len;
	return head;
}

/*
 * Length of the well-formed UTF-8 character that @v (not empty) begins with, or 0. The second byte's range depends on
 * the first: Unicode 15, table 3-7; this is what keeps out overlong forms, surrogates and all past U+10FFFF.
 */
static size_t utf8_character(struct view v)
{
	uint8_t lead = v.ptr[0], low = 0x80, high = 0xbf;
	size_t len;

	if (lead < 0x80)
		return 1;
	if (lead < 0xc2 || lead > 0xf4)
		return 0;
	len = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
	if (len > v.len)
		return 0;

	if (lead == 0xe0)
		low = 0xa0;
	else if (lead == 0xed)
		high = 0x9f;
	else if (lead == 0xf0)
		low = 0x90;
	else if (lead == 0xf4)
		high = 0x8f;
	if (v.ptr[1] < low || v.ptr[1] > high)
		return 0;
	for (size_t i = 2; i < len; i++)
		if ((v.ptr[i] & 0xc0) != 0x80)
			return 0;
	return len;
}

bool view_is_utf8(struct view v)
{
	while (v.len) {
		size_t len = utf8_character(v);

		if (!len)
			return false;
		view_take(&v, len);
	}
	return true;
}

char *view_dup(struct view v)
{
	char *text = v.len < SIZE_MAX ? malloc(v.len + 1) : NULL;

	if (!text)
		return NULL;
	if (v.len)
		memcpy(text, v.ptr, v.len);
	text[v.len] = 0;
	return text;
}

void buf_fini(struct buf *buf)
{
	if (!buf)
		return;
	free(buf->ptr);
	*buf = (struct buf){ 0 };
}

int buf_reserve(struct buf *buf, size_t more)
{
	size_t need, cap;
	uint8_t *ptr;

	if (buf->cap - buf->len >= more)
		return 0;
	if (add_overflows(buf->len, more, &need) || need > PTRDIFF_MAX)
		return -ENOMEM;

	/* By half, so that n appends cost O(n); need is below 2^63, so the sum cannot overflow. */
	cap = buf->cap + buf->cap / 2;
	if (cap < BUF_CAP_MIN)
		cap = BUF_CAP_MIN;
	if (cap < need)
		cap = need;
	ptr = realloc(buf->ptr, cap);
	if (!ptr)
		return -ENOMEM;
	buf->ptr = ptr;
	buf->cap = cap;
	return 0;
}

int buf_append(struct buf *buf, const void *ptr, size_t len)
{
	int r = buf_reserve(buf, len);

	if (r)
		return r;
	if (len)
		memcpy(buf->ptr + buf->len, ptr, len);
	buf->len += len;
	return 0;
}

int buf_append_zero(struct buf *buf, size_t len)
{
	int r = buf_reserve(buf, len);

	if (r)
		return r;
	if (len)
		memset(buf->ptr + buf->len, 0, len);
	buf->len += len;
	return 0;
}

int buf_printf(struct buf *buf, const char *format, ...)
{
	va_list args;
	int n, r;

	va_start(args, format);
	n = vsnprintf(NULL, 0, format, args);
	va_end(args);
	if (n < 0)
		return -EINVAL;

	r = buf_reserve(buf, (size_t)n + 1); /* vsnprintf insists on its final 0 */
	if (r)
		return r;
	va_start(args, format);
	n = vsnprintf((char *)buf->ptr + buf->len, (size_t)n + 1, format, args);
	va_end(args);
	CHECK(n >= 0);
	buf->len += (size_t)n;
	return 0;
}

void buf_drop(struct buf *buf, size_t len)
{
	CHECK(len <= buf->len);
	buf->len -= len;
	if (len && buf->len)
		memmove(buf->ptr, buf->ptr + len, buf->len);
}

void hex_encode(char *out, const void *p, size_t len)
{
	static const char digits[] = "0123456789abcdef";
	const uint8_t *b = p;

	for (size_t i = 0; i < len; i++) {
		out[2 * i] = digits[b[i] >> 4];
		out[2 * i + 1] = digits[b[i] & 15];
	}
	out[2 * len] = 0;
}

/* The digit's value, or -1. Upper case is refused: one value has one spelling, so names can be compared as text. */
static int hex_value(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return -1;
}

int hex_decode(void *out, size_t len, const char *hex)
{
	uint8_t *b = out;

	for (size_t i = 0; i < 2 * len; i++) /* first look at all: @out stays untouched on failure */
		if (hex_value(hex[i]) < 0)
			return -EINVAL;
	for (size_t i = 0; i < len; i++)
		b[i] = (uint8_t)(hex_value(hex[2 * i]) * 16 + hex_value(hex[2 * i + 1]));
	return 0;
}

int size_parse(const char *text, uint64_t *ret)
{
	static const char units[] = "KMGT";
	char *end;

	if (!isdigit((unsigned char)*text))
		return -EINVAL;
	errno = 0;
	uint64_t value = strtoull(text, &end, 10);
	const char *unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
	unsigned shift = unit ? 10 * (unsigned)(unit - units + 1) : 0;
	if (errno || (*end && (!unit || end[1])) || value > UINT64_MAX >> shift)
		return -EINVAL;
	*ret = value << shift;
	return 0;
}
