#include "wire/codec.h"

#include <errno.h>
#include <string.h>

struct list_view list_buf_view(const struct list_buf *list)
{
	return (struct list_view){ .count = list->count, .bytes = view_buf(&list->bytes) };
}

void list_buf_fini(struct list_buf *list)
{
	buf_fini(&list->bytes);
	list->count = 0;
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
