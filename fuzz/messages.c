/*
 * fuzz/messages.c: every message and every list element. The first byte is the message's number in MSG_LIST, then comes its body.
 *
 * What is decoded must survive encoding and decoding: the second encoding equals the first. Elements of every table are then read
 * from the body as if it were a list of them.
 */
#include <stdint.h>
#include <string.h>

#include "base/check.h"
#include "wire/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_equal(const struct buf *a, const struct buf *b)
{
	CHECK(view_equal(view_buf(a), view_buf(b)));
}

#define MESSAGE(name)                                                  \
	static void fuzz_msg_##name(struct view body)                  \
	{                                                              \
		_cleanup_(buf_fini) struct buf first = { 0 };          \
		_cleanup_(buf_fini) struct buf second = { 0 };         \
		struct msg_##name m;                                   \
                                                                       \
		if (msg_##name##_decode(body, &m) != 0)                \
			return;                                        \
		CHECK(msg_##name##_encode(&m, &first) == 0);           \
		CHECK(msg_##name##_decode(view_buf(&first), &m) == 0); \
		CHECK(msg_##name##_encode(&m, &second) == 0);          \
		check_equal(&first, &second);                          \
	}
MSG_LIST(MESSAGE)

#define ELEMENT(name)                                                 \
	static void fuzz_elem_##name(struct list_view list)           \
	{                                                             \
		_cleanup_(list_buf_fini) struct list_buf out = { 0 }; \
		struct elem_##name e;                                 \
                                                                      \
		while (elem_##name##_next(&list, &e) == 0)            \
			CHECK(elem_##name##_append(&out, &e) == 0);   \
	}
ELEM_LIST(ELEMENT)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const messages[])(struct view body) = {
#define X(name) fuzz_msg_##name,
		MSG_LIST(X)
#undef X
	};
	struct list_view list;

	if (!size)
		return 0;
	struct view body = view_of(data + 1, size - 1);
	messages[data[0] % ARRAY_LEN(messages)](body);

	if (get_list(&body, &list) != 0)
		return 0;
#define X(name) fuzz_elem_##name(list);
	ELEM_LIST(X)
#undef X
	return 0;
}
