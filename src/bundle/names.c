/*
 * bundle/names.c: which names are allowed, and the keys that they become in the store and in the index (docs/formats.md, 3 and 8).
 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "bundle/inside.h"

static_assert(sizeof("t//b//") + TENANT_NAME_MAX + BUNDLE_NAME_MAX <= PREFIX_BYTES, "every prefix fits");
static_assert(PREFIX_BYTES + sizeof("l//") + LABEL_NAME_MAX + 20 <= KEY_BYTES, "a label's move fits");
static_assert(PREFIX_BYTES + sizeof("v//-blocks-") + 20 + 16 + 10 <= KEY_BYTES, "a segment fits");
static_assert(PREFIX_BYTES + sizeof("p/--") + 16 + NODE_NAME_MAX + 10 <= KEY_BYTES, "a pack fits");
static_assert(sizeof("l/") + TENANT_NAME_MAX + BUNDLE_NAME_MAX + LABEL_NAME_MAX + 3 <= META_KEY_MAX,
	      "every row's key fits");
static_assert(sizeof("o/") + TENANT_NAME_MAX + BUNDLE_NAME_MAX + 20 + NODE_NAME_MAX + 3 <= META_KEY_MAX,
	      "a reader's lease fits");

/* ---- encoding ---- */

static bool is_plain(uint8_t c)
{
	return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-' || c == '_' ||
	       c == '.';
}

int name_encode(struct view name, size_t max, char *ret)
{
	static const char digits[] = "0123456789ABCDEF";
	size_t len = 0;

	for (size_t i = 0; i < name.len; i++) {
		uint8_t c = name.ptr[i];
		bool plain = is_plain(c) && !(c == '.' && i == 0); /* a part of a key must not begin with a dot */

		if (len + (plain ? 1 : 3) > max)
			return -ENAMETOOLONG;
		if (plain) {
			ret[len++] = (char)c;
			continue;
		}
		ret[len++] = '%';
		ret[len++] = digits[c >> 4];
		ret[len++] = digits[c & 15];
	}
	ret[len] = 0;
	return (int)len;
}

static int digit_value(uint8_t c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* The next byte of a name off @part; -1: that is no encoding of ours. */
static int decode_byte(struct view *part, bool first)
{
	struct view taken = view_take(part, 1);
	uint8_t c = taken.ptr[0];

	if (c != '%')
		return is_plain(c) && !(first && c == '.') ? c : -1;
	if (part->len < 2)
		return -1;
	int high = digit_value(part->ptr[0]), low = digit_value(part->ptr[1]);
	if (high < 0 || low < 0)
		return -1;
	view_take(part, 2);
	c = (uint8_t)(high << 4 | low);
	return is_plain(c) && !(first && c == '.') ? -1 : c; /* one encoding for each name */
}

int name_decode(struct view part, struct buf *ret)
{
	size_t len = ret->len;

	while (part.len) {
		int c = decode_byte(&part, ret->len == len);
		uint8_t byte = (uint8_t)c;
		int r = c < 0 ? -EINVAL : buf_append(ret, &byte, 1);

		if (r) {
			ret->len = len;
			return r;
		}
	}
	return ret->len > len ? 0 : -EINVAL;
}

int number_decode(struct view text, size_t digits, uint64_t *ret)
{
	uint64_t number = 0;

	if (!text.len || (digits && text.len != digits))
		return -EINVAL;
	for (size_t i = 0; i < text.len; i++) {
		uint8_t c = text.ptr[i];

		if (c < '0' || c > '9' || mul_overflows(number, UINT64_C(10), &number) ||
		    add_overflows(number, (uint64_t)(c - '0'), &number))
			return -EINVAL;
	}
	*ret = number;
	return 0;
}

/* ---- checks ---- */

static int name_check(struct view name, const char *what, size_t max, struct error *e)
{
	char encoded[BUNDLE_NAME_MAX + 1];

	if (!name.len)
		return error_set(e, -EINVAL, "the %s's name is empty", what);
	if (!view_is_utf8(name))
		return error_set(e, -EINVAL, "the %s's name is not valid UTF-8", what);
	for (size_t i = 0; i < name.len; i++) {
		bool c1 = name.ptr[i] == 0xc2 && name.ptr[i + 1] < 0xa0; /* it is UTF-8: one byte more is there */

		if (name.ptr[i] < 0x20 || name.ptr[i] == 0x7f || c1)
			return error_set(e, -EINVAL, "the %s's name has a control character at byte %zu", what, i);
	}
	CHECK(max < sizeof(encoded));
	if (name_encode(name, max, encoded) < 0)
		return error_set(
			e, -EINVAL,
			"the %s's name is longer than %zu bytes (all but letters, digits, '-', '_', '.' count as 3): %.*s",
			what, max, (int)name.len, (const char *)name.ptr);
	return 0;
}

int bundle_name_check(struct view name, struct error *e)
{
	int r = name_check(name, "bundle", BUNDLE_NAME_MAX, e);

	for (struct view rest = name; !r && rest.len;) {
		const uint8_t *slash = memchr(rest.ptr, '/', rest.len);
		struct view part = view_take(&rest, slash ? (size_t)(slash - rest.ptr) : rest.len);
		bool last = !slash;

		view_take(&rest, 1);
		if (!part.len || (!last && !rest.len))
			return error_set(e, -EINVAL, "the bundle's name has an empty part: %.*s", (int)name.len,
					 (const char *)name.ptr);
		if (view_equal(part, view_str(".")) || view_equal(part, view_str("..")))
			return error_set(e, -EINVAL, "the bundle's name has a part \"%.*s\": %.*s", (int)part.len,
					 (const char *)part.ptr, (int)name.len, (const char *)name.ptr);
	}
	return r;
}

int label_name_check(struct view name, struct error *e)
{
	bool decimal = name.len > 0;
	int r = name_check(name, "label", LABEL_NAME_MAX, e);

	if (r)
		return r;
	for (size_t i = 0; i < name.len; i++)
		decimal = decimal && name.ptr[i] >= '0' && name.ptr[i] <= '9';
	if (decimal)
		return error_set(e, -EINVAL, "a label cannot be a number: %.*s", (int)name.len, (const char *)name.ptr);
	if (view_equal(name, view_str("latest")) || view_equal(name, view_str("staged")))
		return error_set(e, -EINVAL, "the label %.*s cannot be set", (int)name.len, (const char *)name.ptr);
	return 0;
}

int place_init(struct view tenant, struct view bundle, struct place *ret, struct error *e)
{
	struct place place = { .tenant = tenant, .bundle = bundle };
	char t[TENANT_NAME_MAX + 1], b[BUNDLE_NAME_MAX + 1];
	int r = name_check(tenant, "tenant", TENANT_NAME_MAX, e);

	if (!r)
		r = bundle_name_check(bundle, e);
	if (r)
		return r;
	CHECK(name_encode(tenant, TENANT_NAME_MAX, t) > 0 && name_encode(bundle, BUNDLE_NAME_MAX, b) > 0);
	(void)snprintf(place.prefix, sizeof(place.prefix), "t/%s/b/%s/", t, b);
	*ret = place;
	return 0;
}

/* ---- keys in the store ---- */

void root_key(const struct place *place, uint64_t number, char ret[KEY_BYTES])
{
	(void)snprintf(ret, KEY_BYTES, "%sv/%020" PRIu64 "/root", place->prefix, number);
}

void slot_key(const struct place *place, uint64_t number, char ret[KEY_BYTES])
{
	(void)snprintf(ret, KEY_BYTES, "%sv/%020" PRIu64 "/slot", place->prefix, number);
}

void label_key(const struct place *place, struct view label, uint64_t move, char ret[KEY_BYTES])
{
	char l[LABEL_NAME_MAX + 1];

	CHECK(name_encode(label, LABEL_NAME_MAX, l) > 0);
	(void)snprintf(ret, KEY_BYTES, "%sl/%s/%020" PRIu64, place->prefix, l, move);
}

void rule_key(const struct place *place, uint64_t k, char ret[KEY_BYTES])
{
	(void)snprintf(ret, KEY_BYTES, "%sr/%020" PRIu64, place->prefix, k);
}

void floor_key(const struct place *place, uint64_t number, char ret[KEY_BYTES])
{
	(void)snprintf(ret, KEY_BYTES, "%sfloor/%020" PRIu64, place->prefix, number);
}

void segment_key(const struct place *place, const struct record_head *head, char ret[KEY_BYTES])
{
	(void)snprintf(ret, KEY_BYTES, "%sv/%020" PRIu64 "/%016" PRIx64 "-%s-%" PRIu32, place->prefix, head->number,
		       head->save_id, head->kind == RECORD_ITEMS ? "items" : "blocks", head->part);
}

int pack_key(struct view tenant, struct view bundle, uint64_t save_id, const char *node, uint64_t k,
	     char ret[BACKEND_KEY_MAX + 1])
{
	struct place place;

	if (place_init(tenant, bundle, &place, NULL) || !*node || strlen(node) > NODE_NAME_MAX || strchr(node, '/'))
		return -EINVAL;
	(void)snprintf(ret, BACKEND_KEY_MAX + 1, "%sp/%016" PRIx64 "-%s-%" PRIu64, place.prefix, save_id, node, k);
	return backend_key_is_valid(ret) ? 0 : -EINVAL;
}

/* ---- keys of rows ---- */

static void add_bytes(struct row_key *key, struct view bytes)
{
	CHECK(bytes.len < sizeof(key->bytes) - key->len); /* names were checked; asserted above */
	if (bytes.len)
		memcpy(key->bytes + key->len, bytes.ptr, bytes.len);
	key->len += bytes.len;
}

/* The name and the zero byte that ends it. */
static void add_name(struct row_key *key, struct view name)
{
	add_bytes(key, name);
	add_bytes(key, view_of("", 1));
}

static void add_number(struct row_key *key, uint64_t number)
{
	char digits[21];

	(void)snprintf(digits, sizeof(digits), "%020" PRIu64, number);
	add_bytes(key, view_str(digits));
}

struct row_key tenant_prefix(char kind, struct view tenant)
{
	struct row_key key = { .bytes = { (uint8_t)kind, '/' }, .len = 2 };

	add_name(&key, tenant);
	return key;
}

struct row_key bundle_row_key(struct view tenant, struct view bundle)
{
	struct row_key key = tenant_prefix('b', tenant);

	add_bytes(&key, bundle);
	return key;
}

struct row_key rows_prefix(char kind, const struct place *place)
{
	struct row_key key = tenant_prefix(kind, place->tenant);

	add_name(&key, place->bundle);
	return key;
}

struct row_key version_row_key(const struct place *place, uint64_t number)
{
	struct row_key key = rows_prefix('v', place);

	add_number(&key, number);
	return key;
}

struct row_key before_row_key(const struct place *place, uint64_t number)
{
	struct row_key key = rows_prefix('w', place);

	add_number(&key, number);
	return key;
}

struct row_key slot_row_key(const struct place *place, uint64_t number)
{
	struct row_key key = rows_prefix('s', place);

	add_number(&key, number);
	return key;
}

struct row_key label_row_key(const struct place *place, struct view label)
{
	struct row_key key = rows_prefix('l', place);

	add_bytes(&key, label);
	return key;
}

struct row_key readers_prefix(const struct place *place, uint64_t number)
{
	struct row_key key = rows_prefix('o', place);

	add_number(&key, number);
	add_bytes(&key, view_of("", 1));
	return key;
}

struct row_key reader_row_key(const struct place *place, uint64_t number, const char *node)
{
	struct row_key key = readers_prefix(place, number);

	add_bytes(&key, view_str(node));
	return key;
}
