#include "wire/codec.h"

#include <errno.h>
#include <string.h>

int list_view_next(struct list_view *list, struct view *ret_element)
{
	if (!list->count)
		return list->bytes.len ? -EPROTO : 1;
	if (list->bytes.len < 4)
		return -EPROTO;

	uint32_t len = load_le32(list->bytes.ptr);
	if (len > list->bytes.len - 4)
		return -EPROTO;
	view_take(&list->bytes, 4);
	*ret_element = view_take(&list->bytes, len);
	list->count--;
	return 0;
}

struct list_view list_buf_view(const struct list_buf *list)
{
	return (struct list_view){ .count = list->count, .bytes = view_buf(&list->bytes) };
}

void list_buf_fini(struct list_buf *list)
{
	buf_fini(&list->bytes);
	list->count = 0;
}

int put_u8(struct buf *out, const uint8_t *v)
{
	return buf_append(out, v, 1);
}

int put_u32(struct buf *out, const uint32_t *v)
{
	uint8_t le[4];

	store_le32(le, *v);
	return buf_append(out, le, sizeof(le));
}

int put_u64(struct buf *out, const uint64_t *v)
{
	uint8_t le[8];

	store_le64(le, *v);
	return buf_append(out, le, sizeof(le));
}

int put_digest(struct buf *out, const struct digest *v)
{
	return buf_append(out, v->b, DIGEST_BYTES);
}

int put_str(struct buf *out, const struct view *v)
{
	if (v->len > UINT32_MAX)
		return -EOVERFLOW;

	uint32_t len = (uint32_t)v->len;
	int r = put_u32(out, &len);
	return r ? r : buf_append(out, v->ptr, v->len);
}

int put_box(struct buf *out, const struct box *v)
{
	int r = put_u32(out, &v->ndim);

	for (uint32_t i = 0; !r && i < v->ndim; i++)
		r = put_u64(out, &v->start[i]);
	for (uint32_t i = 0; !r && i < v->ndim; i++)
		r = put_u64(out, &v->count[i]);
	return r;
}

int put_list(struct buf *out, const struct list_view *v)
{
	int r = put_u32(out, &v->count);

	return r ? r : put_str(out, &v->bytes);
}

/* True: the value is to be read. False with @ret 0: the body ended at this field's border; -EPROTO: within it. */
static bool take(struct view *in, size_t len, const uint8_t **ret_at, int *ret)
{
	*ret = in->len && in->len < len ? -EPROTO : 0;
	if (in->len < len)
		return false;
	*ret_at = view_take(in, len).ptr;
	return true;
}

int get_u8(struct view *in, uint8_t *ret)
{
	const uint8_t *at;
	int r;

	*ret = take(in, 1, &at, &r) ? *at : 0;
	return r;
}

int get_u32(struct view *in, uint32_t *ret)
{
	const uint8_t *at;
	int r;

	*ret = take(in, 4, &at, &r) ? load_le32(at) : 0;
	return r;
}

int get_u64(struct view *in, uint64_t *ret)
{
	const uint8_t *at;
	int r;

	*ret = take(in, 8, &at, &r) ? load_le64(at) : 0;
	return r;
}

int get_digest(struct view *in, struct digest *ret)
{
	const uint8_t *at;
	int r;

	memset(ret, 0, sizeof(*ret));
	if (take(in, DIGEST_BYTES, &at, &r))
		memcpy(ret->b, at, DIGEST_BYTES);
	return r;
}

int get_str(struct view *in, struct view *ret)
{
	uint32_t len;
	int r = get_u32(in, &len);

	*ret = (struct view){ 0 };
	if (r)
		return r;
	if (len > in->len)
		return -EPROTO;
	*ret = view_take(in, len);
	return 0;
}

int get_box(struct view *in, struct box *ret)
{
	memset(ret, 0, sizeof(*ret));
	int r = get_u32(in, &ret->ndim);
	if (r)
		return r;
	if (ret->ndim > BOX_DIMS_MAX || in->len < 16u * ret->ndim) {
		ret->ndim = 0;
		return -EPROTO;
	}
	for (uint32_t i = 0; !r && i < ret->ndim; i++)
		r = get_u64(in, &ret->start[i]);
	for (uint32_t i = 0; !r && i < ret->ndim; i++)
		r = get_u64(in, &ret->count[i]);
	return r;
}

int get_list(struct view *in, struct list_view *ret)
{
	int r = get_u32(in, &ret->count);

	if (!r)
		r = get_str(in, &ret->bytes);
	if (!r && ret->bytes.len / 4 < ret->count)
		r = -EPROTO; /* each element has at least its length: a count cannot promise more than the bytes hold */
	if (r)
		*ret = (struct list_view){ 0 };
	return r;
}
