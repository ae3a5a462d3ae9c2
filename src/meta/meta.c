/*
 * meta/meta.c: requests of the meta engine as bytes, and back. Everything decoded here may come from a peer: sizes are
 * checked against what is there, unused bits must be 0, and nothing may follow the end.
 *
 * Layout, little-endian, without padding:
 *	GET in		key
 *	RANGE in	u16 prefix's length, u16 after's length, u32 limit, prefix, after
 *	TXN in		steps: u8 kind, u8 0, u16 key's length, u32 value's length, key, value
 *	LEASE in	u64 holder, u32 ttl_ms, u16 key's length, u16 0, key		(RELEASE: the same, ttl_ms 0)
 *	GET out		value
 *	RANGE out	entries: u16 key's length, u16 0, u32 value's length, key, value
 *	TXN out		nothing, or with META_CONFLICT u32 index of the step
 *	LEASE out	u64 holder, u64 epoch
 */
#include "meta/meta.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "env/fiber.h"

#define RANGE_HEAD 8  /* bytes before the prefix */
#define STEP_HEAD  8  /* before a step's key, or an entry's */
#define LEASE_HEAD 24 /* before a lease's key */
#define LEASE_OUT  16

_Static_assert(sizeof(struct meta_lease_record) == 16, "as it lies on disk");
_Static_assert(STEP_HEAD + META_KEY_MAX + META_VALUE_MAX <= META_REQ_MAX, "every entry fits into an empty answer");

/* ---- requests ---- */

struct meta_req *meta_req_new(enum meta_op op)
{
	struct meta_req *req = calloc(1, sizeof(*req));

	if (!req)
		return NULL;
	req->op = op;
	list_init(&req->link);
	return req;
}

void meta_req_free(struct meta_req *req)
{
	if (!req)
		return;
	buf_fini(&req->in);
	buf_fini(&req->out);
	free(req);
}

static void finish_now(struct task *task)
{
	struct meta_req *req = container_of(task, struct meta_req, job.task);

	req->finish(req);
}

void meta_finish_later(struct meta_req *req, int result)
{
	req->result = result;
	req->job.task = (struct task){ .fn = finish_now };
	loop_post(req->meta->env->loop, &req->job.task);
}

/* ---- the gate ---- */

/* Is there a key that begins with both? */
static bool gate_covers(const struct meta_gate *gate, struct view start)
{
	for (const char *const *at = gate->prefixes; *at; at++) {
		size_t len = strlen(*at);

		len = start.len < len ? start.len : len;
		if (!len || memcmp(start.ptr, *at, len) == 0)
			return true;
	}
	return false;
}

/* What cannot be read the driver refuses. */
static bool gate_touched(const struct meta_gate *gate, const struct meta_req *req)
{
	struct view in = view_buf(&req->in), key = { 0 }, after;
	struct meta_lease lease;
	struct meta_step step;
	uint32_t n;

	switch (req->op) {
	case META_GET:
		return meta_in_key(in, &key) == 0 && gate_covers(gate, key);
	case META_RANGE:
		return meta_in_range(in, &key, &after, &n) == 0 && gate_covers(gate, key);
	case META_TXN:
		while (meta_in_step(&in, &step) == 0)
			if (gate_covers(gate, step.key))
				return true;
		return false;
	default:
		return meta_in_lease(in, &lease) == 0 && gate_covers(gate, lease.key);
	}
}

static bool is_shut(const struct meta_gate *gate, const struct meta_req *req)
{
	bool passes = gate && gate->passes && gate->passes == fiber_self();

	return gate && !passes && req->in.len <= META_REQ_MAX && gate_touched(gate, req);
}

void meta_submit(struct meta *meta, struct meta_req *req)
{
	CHECK_MAGIC(meta, META_MAGIC);
	CHECK(req->finish);
	req->meta = meta;
	req->job = (struct job){ 0 };
	list_init(&req->link);
	req->result = 0;
	req->out.len = 0;
	req->error = (struct error){ 0 };

	if (meta->refusal) {
		req->error = *meta->refusal;
		meta_finish_later(req, meta->refusal->code);
	} else if (is_shut(meta->gate, req)) {
		req->error = meta->gate->why;
		meta_finish_later(req, meta->gate->why.code);
	} else if (req->in.len > META_REQ_MAX) {
		(void)error_set(&req->error, -EINVAL, "a meta request of %zu bytes; the most is %u", req->in.len,
				META_REQ_MAX);
		meta_finish_later(req, -EINVAL);
	} else {
		meta->driver->submit(meta, req);
	}
}

void meta_free(struct meta *meta)
{
	if (!meta)
		return;
	CHECK_MAGIC(meta, META_MAGIC);
	meta->driver->free(meta);
}

/* ---- encoding of `in` ---- */

static bool key_is_sane(struct view key)
{
	return key.len >= 1 && key.len <= META_KEY_MAX;
}

/* Appends @head, @a and @b to @buf whole or not at all. */
static int append_three(struct buf *buf, struct view head, struct view a, struct view b)
{
	int r = buf_reserve(buf, head.len + a.len + b.len);

	if (r)
		return r;
	CHECK(!buf_append(buf, head.ptr, head.len) && !buf_append(buf, a.ptr, a.len) && !buf_append(buf, b.ptr, b.len));
	return 0;
}

/* As append_three, to an emptied @buf. */
static int replace_three(struct buf *buf, struct view head, struct view a, struct view b)
{
	size_t len = buf->len;
	int r;

	buf->len = 0;
	r = append_three(buf, head, a, b);
	if (r)
		buf->len = len;
	return r;
}

int meta_put_get(struct meta_req *req, struct view key)
{
	const struct view none = { 0 };

	return key_is_sane(key) ? replace_three(&req->in, none, key, none) : -EINVAL;
}

int meta_put_range(struct meta_req *req, struct view prefix, struct view after, uint32_t limit)
{
	uint8_t head[RANGE_HEAD];

	if (prefix.len > META_KEY_MAX || after.len > META_KEY_MAX || !limit || limit > META_RANGE_MAX)
		return -EINVAL;
	store_le16(head, (uint16_t)prefix.len);
	store_le16(head + 2, (uint16_t)after.len);
	store_le32(head + 4, limit);
	return replace_three(&req->in, view_of(head, sizeof(head)), prefix, after);
}

static int put_step(struct meta_req *req, enum meta_step_kind kind, struct view key, struct view value)
{
	uint8_t head[STEP_HEAD] = { (uint8_t)kind };

	if (!key_is_sane(key) || value.len > META_VALUE_MAX ||
	    req->in.len + STEP_HEAD + key.len + value.len > META_REQ_MAX)
		return -EINVAL;
	store_le16(head + 2, (uint16_t)key.len);
	store_le32(head + 4, (uint32_t)value.len);
	return append_three(&req->in, view_of(head, sizeof(head)), key, value);
}

int meta_txn_expect(struct meta_req *req, struct view key, struct view value)
{
	if (!value.ptr && value.len)
		return -EINVAL;
	return put_step(req, value.ptr ? META_EXPECT_VALUE : META_EXPECT_ABSENT, key, value);
}

int meta_txn_put(struct meta_req *req, struct view key, struct view value)
{
	return put_step(req, META_PUT, key, value);
}

int meta_txn_delete(struct meta_req *req, struct view key)
{
	return put_step(req, META_DELETE, key, (struct view){ 0 });
}

int meta_put_lease(struct meta_req *req, struct view key, uint64_t holder, uint32_t ttl_ms, uint64_t epoch)
{
	uint8_t head[LEASE_HEAD] = { 0 };

	if (!key_is_sane(key) || !holder || ttl_ms > META_LEASE_MAX_MS || epoch > META_EPOCH_MAX)
		return -EINVAL;
	store_le64(head, holder);
	store_le64(head + 16, epoch);
	store_le32(head + 8, ttl_ms);
	store_le16(head + 12, (uint16_t)key.len);
	return replace_three(&req->in, view_of(head, sizeof(head)), key, (struct view){ 0 });
}

/* ---- decoding of `in` ---- */

int meta_in_key(struct view in, struct view *ret_key)
{
	if (!key_is_sane(in))
		return -EPROTO;
	*ret_key = in;
	return 0;
}

int meta_in_range(struct view in, struct view *ret_prefix, struct view *ret_after, uint32_t *ret_limit)
{
	struct view head = view_take(&in, RANGE_HEAD);

	if (head.len < RANGE_HEAD)
		return -EPROTO;
	size_t prefix_len = load_le16(head.ptr), after_len = load_le16(head.ptr + 2);
	uint32_t limit = load_le32(head.ptr + 4);
	if (prefix_len > META_KEY_MAX || after_len > META_KEY_MAX || in.len != prefix_len + after_len || !limit ||
	    limit > META_RANGE_MAX)
		return -EPROTO;
	*ret_prefix = view_take(&in, prefix_len);
	*ret_after = in;
	*ret_limit = limit;
	return 0;
}

/* What a step and an entry have in common: a byte, a 0, both lengths, key, value. @rest stays on failure. */
static int take_pair(struct view *rest, uint8_t *ret_first, struct view *ret_key, struct view *ret_value)
{
	struct view left = *rest, head = view_take(&left, STEP_HEAD);

	if (head.len < STEP_HEAD || head.ptr[1])
		return -EPROTO;
	size_t key_len = load_le16(head.ptr + 2);
	uint32_t value_len = load_le32(head.ptr + 4);
	if (!key_len || key_len > META_KEY_MAX || value_len > META_VALUE_MAX || left.len < key_len + value_len)
		return -EPROTO;
	*ret_first = head.ptr[0];
	*ret_key = view_take(&left, key_len);
	*ret_value = view_take(&left, value_len);
	*rest = left;
	return 0;
}

int meta_in_step(struct view *rest, struct meta_step *ret)
{
	struct view left = *rest;
	struct meta_step step;
	uint8_t kind;

	if (!rest->len)
		return 1;
	int r = take_pair(&left, &kind, &step.key, &step.value);
	if (r)
		return r;
	if (kind < META_EXPECT_ABSENT || kind > META_DELETE)
		return -EPROTO;
	step.kind = (enum meta_step_kind)kind;
	if (step.value.len && (step.kind == META_EXPECT_ABSENT || step.kind == META_DELETE))
		return -EPROTO;
	*ret = step;
	*rest = left;
	return 0;
}

int meta_in_lease(struct view in, struct meta_lease *ret)
{
	struct view head = view_take(&in, LEASE_HEAD);

	if (head.len < LEASE_HEAD || load_le16(head.ptr + 14))
		return -EPROTO;
	const struct meta_lease lease = { .key = in,
					  .holder = load_le64(head.ptr),
					  .epoch = load_le64(head.ptr + 16),
					  .ttl_ms = load_le32(head.ptr + 8) };
	if (!lease.holder || lease.epoch > META_EPOCH_MAX || lease.ttl_ms > META_LEASE_MAX_MS ||
	    load_le16(head.ptr + 12) != in.len || !key_is_sane(in))
		return -EPROTO;
	*ret = lease;
	return 0;
}

/* ---- `out` ---- */

int meta_out_put_entry(struct buf *out, struct view key, struct view value)
{
	uint8_t head[STEP_HEAD] = { 0 };

	CHECK(key_is_sane(key) && value.len <= META_VALUE_MAX);
	if (out->len + STEP_HEAD + key.len + value.len > META_REQ_MAX)
		return META_MORE;
	store_le16(head + 2, (uint16_t)key.len);
	store_le32(head + 4, (uint32_t)value.len);
	return append_three(out, view_of(head, sizeof(head)), key, value);
}

int meta_out_entry(struct view *rest, struct view *ret_key, struct view *ret_value)
{
	struct view left = *rest, key, value;
	uint8_t zero;

	if (!rest->len)
		return 1;
	int r = take_pair(&left, &zero, &key, &value);
	if (r || zero)
		return -EPROTO;
	*ret_key = key;
	*ret_value = value;
	*rest = left;
	return 0;
}

int meta_out_put_lease(struct buf *out, uint64_t holder, uint64_t epoch)
{
	uint8_t bytes[LEASE_OUT];
	const struct view none = { 0 };

	store_le64(bytes, holder);
	store_le64(bytes + 8, epoch);
	return replace_three(out, view_of(bytes, sizeof(bytes)), none, none);
}

int meta_out_lease(struct view out, uint64_t *ret_holder, uint64_t *ret_epoch)
{
	if (out.len != LEASE_OUT)
		return -EPROTO;
	*ret_holder = load_le64(out.ptr);
	*ret_epoch = load_le64(out.ptr + 8);
	return 0;
}

int meta_out_put_conflict(struct buf *out, uint32_t index)
{
	uint8_t bytes[4];
	const struct view none = { 0 };

	store_le32(bytes, index);
	return replace_three(out, view_of(bytes, sizeof(bytes)), none, none);
}

int meta_out_conflict(struct view out, uint32_t *ret_index)
{
	if (out.len != 4)
		return -EPROTO;
	*ret_index = load_le32(out.ptr);
	return 0;
}
