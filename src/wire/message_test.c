#include "wire/message.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

/* @path: made from the page by fuzz/corpus.py. */
static void assert_golden(const char *path, const struct buf *body)
{
	uint8_t file[512];
	FILE *f = fopen(path, "rb");

	assert_non_null(f);
	size_t n = fread(file, 1, sizeof(file), f);
	fclose(f);
	assert_int_equal(n, body->len + 1); /* the fuzz target's byte that names the message */
	assert_memory_equal(file + 1, body->ptr, body->len);
}

static void a_message_has_the_bytes_of_its_table(void **state)
{
	_cleanup_(list_buf_fini) struct list_buf items = { 0 };
	_cleanup_(list_buf_fini) struct list_buf attributes = { 0 };
	_cleanup_(buf_fini) struct buf body = { 0 };
	const struct elem_item item = {
		.name = view_str("w.0"),
		.dtype = view_str("float16"),
		.element_bits = 16,
		.whole = { .ndim = 2, .count = { 4, 4 } },
		.box = { .ndim = 2, .start = { 2, 0 }, .count = { 2, 4 } },
	};
	const struct elem_attribute attribute = { .key = view_str("k"), .value = view_str("v") };

	assert_int_equal(elem_item_append(&items, &item), 0);
	assert_int_equal(elem_attribute_append(&attributes, &attribute), 0);
	const struct msg_save save = {
		.group = 1,
		.save = 2,
		.bundle = view_str("ckpt/llama"),
		.step = 1200,
		.copies = 2,
		.flags = SAVE_SAME_STRUCTURE,
		.parent = 3,
		.attributes = list_buf_view(&attributes),
		.structure = UINT64_C(0x1122334455667788),
		.n_items = 1,
		.items = list_buf_view(&items),
	};
	assert_int_equal(msg_save_encode(&save, &body), 0);

	assert_golden("fuzz/corpus/messages/golden-save", &body);
}

static void a_report_of_a_capture_has_the_bytes_of_its_table(void **state)
{
	_cleanup_(list_buf_fini) struct list_buf list = { 0 };
	_cleanup_(buf_fini) struct buf body = { 0 };
	struct elem_g_filled first = { .block = 1, .crc = 7 }, other = { .block = 1, .rank = 5, .crc = 8, .flags = 1 };

	memset(first.digest.b, 3, DIGEST_BYTES);
	memset(other.digest.b, 4, DIGEST_BYTES);
	other.sample = 9;
	assert_int_equal(elem_g_filled_append(&list, &first), 0);
	assert_int_equal(elem_g_filled_append(&list, &other), 0);
	const struct msg_g_capture_reply reply = { .filled = list_buf_view(&list), .bytes = 64, .last_rank = 5 };
	assert_int_equal(msg_g_capture_reply_encode(&reply, &body), 0);
	assert_golden("fuzz/corpus/messages/golden-capture-reply", &body);
}

static void elements_come_back_in_order_and_then_the_end(void **state)
{
	_cleanup_(list_buf_fini) struct list_buf list = { 0 };
	struct elem_stat stat;

	for (uint64_t i = 0; i < 3; i++) {
		const struct elem_stat in = { .name = view_str("bytes"), .value = i };

		assert_int_equal(elem_stat_append(&list, &in), 0);
	}
	struct list_view view = list_buf_view(&list);
	for (uint64_t i = 0; i < 3; i++) {
		assert_int_equal(elem_stat_next(&view, &stat), 0);
		assert_true(stat.value == i && view_equal(stat.name, view_str("bytes")));
	}
	assert_int_equal(elem_stat_next(&view, &stat), 1);
}

static void an_older_writers_shorter_body_reads_as_zero_and_a_newer_ones_longer_body_is_taken(void **state)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	const struct msg_stage stage = { .stage = 2, .code = 0, .words = view_str(""), .version = 17, .save_id = 99 };
	struct msg_stage got;

	assert_int_equal(msg_stage_encode(&stage, &body), 0);
	assert_int_equal(msg_stage_decode(view_of(body.ptr, 12), &got), 0); /* stage, code and words alone */
	assert_true(got.stage == 2 && got.version == 0 && got.save_id == 0 && got.stats.count == 0);

	assert_int_equal(buf_append(&body, "later", 5), 0);
	assert_int_equal(msg_stage_decode(view_buf(&body), &got), 0);
	assert_true(got.version == 17 && got.save_id == 99);
}

static void types_have_names_and_strangers_have_none(void **state)
{
	assert_string_equal(msg_type_name(MSG_HELLO), "HELLO");
	assert_string_equal(msg_type_name(MSG_G_STAGE), "G_STAGE");
	assert_string_equal(msg_type_name(9999), "?");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_message_has_the_bytes_of_its_table),
		cmocka_unit_test(a_report_of_a_capture_has_the_bytes_of_its_table),
		cmocka_unit_test(elements_come_back_in_order_and_then_the_end),
		cmocka_unit_test(an_older_writers_shorter_body_reads_as_zero_and_a_newer_ones_longer_body_is_taken),
		cmocka_unit_test(types_have_names_and_strangers_have_none),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
