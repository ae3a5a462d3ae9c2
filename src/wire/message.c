#include "wire/message.h"

#include <errno.h>
#include <string.h>

const char *msg_type_name(unsigned type)
{
	switch (type) {
#define X(number, name) \
	case number:    \
		return #name;
		MSG_TYPES(X)
#undef X
	}
	return "?";
}

/* A message without fields must still mention its arguments. */
#define PUT_FIELD(type, name) \
	if (!r)               \
		r = put_##type(out, &m->name);
#define GET_FIELD(type, name) \
	if (!r)               \
		r = get_##type(&body, &ret->name);

#define MSG_DEFINE(name)                                                     \
	int msg_##name##_encode(const struct msg_##name *m, struct buf *out) \
	{                                                                    \
		size_t len = out->len;                                       \
		int r = 0;                                                   \
                                                                             \
		MSG_##name(PUT_FIELD) if (r) out->len = len;                 \
		return r;                                                    \
	}                                                                    \
	int msg_##name##_decode(struct view body, struct msg_##name *ret)    \
	{                                                                    \
		int r = 0;                                                   \
                                                                             \
		MSG_##name(GET_FIELD) return r;                              \
	}
MSG_LIST(MSG_DEFINE)

#undef PUT_FIELD
#undef GET_FIELD
#define PUT_FIELD(type, name) \
	if (!r)               \
		r = put_##type(out, &e->name);
#define GET_FIELD(type, name) \
	if (!r)               \
		r = get_##type(&body, &ret->name);

#define ELEM_DEFINE(name)                                                            \
	int elem_##name##_append(struct list_buf *list, const struct elem_##name *e) \
	{                                                                            \
		struct buf *out = &list->bytes;                                      \
		size_t len = out->len;                                               \
		int r = put_bytes(out, (const uint8_t[4]){ 0 }, 4);                  \
                                                                                     \
		ELEM_##name(PUT_FIELD) if (r)                                        \
		{                                                                    \
			out->len = len;                                              \
			return r;                                                    \
		}                                                                    \
		store_le32(out->ptr + len, (uint32_t)(out->len - len - 4));          \
		list->count++;                                                       \
		return 0;                                                            \
	}                                                                            \
	int elem_##name##_next(struct list_view *list, struct elem_##name *ret)      \
	{                                                                            \
		struct view body;                                                    \
		int r = list_view_next(list, &body);                                 \
                                                                                     \
		ELEM_##name(GET_FIELD) return r;                                     \
	}
ELEM_LIST(ELEM_DEFINE)
