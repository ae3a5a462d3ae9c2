#include "wire/frame.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"

static const struct frame_head sample = {
	.major = 1,
	.minor = 0,
	.type = 0x0203,
	.flags = FRAME_REPLY | FRAME_MORE,
	.body_bytes = 0x00040506,
	.request = 0x1112131415161718,
	.group = 0x2122232425262728,
	.epoch = 0x3132333435363738,
	.deadline_ms = 0x41424344,
	.payload_bytes = 0x00051525,
	.generation = 0x61626364,
	.body_crc = 0x71727374,
};

/* Made from the byte table by a program that shares nothing with frame.c. */
static const uint8_t golden[FRAME_HEAD_BYTES] = {
	0x46, 0x42, 0x59, 0x46, 0x01, 0x00, 0x03, 0x02, /* magic, major, minor, type */
	0x05, 0x00, 0x00, 0x00, 0x06, 0x05, 0x04, 0x00, /* flags, body_bytes */
	0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11, /* request */
	0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21, /* group */
	0x38, 0x37, 0x36, 0x35, 0x34, 0x33, 0x32, 0x31, /* epoch */
	0x44, 0x43, 0x42, 0x41, 0x25, 0x15, 0x05, 0x00, /* deadline_ms, payload_bytes */
	0x64, 0x63, 0x62, 0x61, 0x74, 0x73, 0x72, 0x71, /* generation, body_crc */
	0x00, 0x00, 0x00, 0x00, 0xda, 0xf7, 0x6a, 0x89, /* zero, head_crc */
};

/* Changes a little-endian field behind the encoder's back and makes the head's CRC right again. */
static void forge(uint8_t raw[FRAME_HEAD_BYTES], size_t at, uint32_t value, size_t len)
{
	for (size_t i = 0; i < len; i++)
		raw[at + i] = (uint8_t)(value >> (8 * i));
	store_le32(raw + 60, crc32c(0, raw, 60));
}

static void assert_heads_equal(const struct frame_head *a, const struct frame_head *b)
{
	uint8_t x[FRAME_HEAD_BYTES], y[FRAME_HEAD_BYTES];

	frame_encode(a, x);
	frame_encode(b, y);
	assert_memory_equal(x, y, FRAME_HEAD_BYTES);
}

static void a_head_has_the_bytes_of_the_table(void **state)
{
	uint8_t raw[FRAME_HEAD_BYTES];

	frame_encode(&sample, raw);
	assert_memory_equal(raw, golden, sizeof(golden));
}

static void every_field_comes_back(void **state)
{
	struct frame_head head = { 0 };

	assert_int_equal(frame_decode(golden, &head, NULL), 0);
	assert_heads_equal(&head, &sample);
	assert_true(head.request == sample.request && head.group == sample.group && head.epoch == sample.epoch);
	assert_int_equal(head.type, sample.type);
	assert_int_equal(head.payload_bytes, sample.payload_bytes);
}

static void every_single_bit_flip_is_refused_and_changes_nothing(void **state)
{
	for (size_t bit = 0; bit < 8 * FRAME_HEAD_BYTES; bit++) {
		uint8_t raw[FRAME_HEAD_BYTES];
		struct frame_head head = { .type = 77 };
		struct error e = { 0 };

		memcpy(raw, golden, sizeof(raw));
		raw[bit / 8] ^= (uint8_t)(1u << bit % 8);
		assert_int_equal(frame_decode(raw, &head, &e), -EPROTO);
		assert_int_equal(head.type, 77);
		assert_int_equal(e.code, -EPROTO);
	}
}

static void foreign_majors_are_refused_naming_both_sides(void **state)
{
	const uint8_t foreign[] = { 0, FRAME_MAJOR + 1, 255 };

	for (size_t i = 0; i < sizeof(foreign); i++) {
		uint8_t raw[FRAME_HEAD_BYTES];
		struct frame_head head = { 0 };
		struct error e = { 0 };
		char theirs[32];

		memcpy(raw, golden, sizeof(raw));
		forge(raw, 4, foreign[i], 1);
		snprintf(theirs, sizeof(theirs), "protocol %u.0,", foreign[i]);
		assert_int_equal(frame_decode(raw, &head, &e), -ERR_EVERSION);
		assert_non_null(strstr(e.text, theirs));
		assert_non_null(strstr(e.text, "this side 1 to 1"));
		assert_true(head.request == sample.request); /* enough to answer */
		assert_int_equal(head.major, foreign[i]);
	}
}

static void a_foreign_major_is_named_even_if_its_sizes_mean_something_else(void **state)
{
	uint8_t raw[FRAME_HEAD_BYTES];
	struct frame_head head;

	memcpy(raw, golden, sizeof(raw));
	forge(raw, 4, FRAME_MAJOR + 1, 1);
	forge(raw, 12, UINT32_MAX, 4);
	assert_int_equal(frame_decode(raw, &head, NULL), -ERR_EVERSION);
}

static void served_majors_and_any_minor_are_accepted(void **state)
{
	for (unsigned major = FRAME_MAJOR_LEAST; major <= FRAME_MAJOR; major++) {
		uint8_t raw[FRAME_HEAD_BYTES];
		struct frame_head head;

		memcpy(raw, golden, sizeof(raw));
		forge(raw, 4, major, 1);
		forge(raw, 5, 255, 1);
		forge(raw, 56, 0xabcdef01, 4); /* where a later minor may say more */
		assert_int_equal(frame_decode(raw, &head, NULL), 0);
		assert_int_equal(head.minor, 255);
	}
}

static void sizes_beyond_the_limits_are_refused(void **state)
{
	const struct {
		size_t at;
		uint32_t value;
		int result;
	} cases[] = {
		{ 12, FRAME_BODY_MAX, 0 },  { 12, FRAME_BODY_MAX + 1, -EPROTO },  { 12, UINT32_MAX, -EPROTO },
		{ 44, FRAME_CHUNK_MAX, 0 }, { 44, FRAME_CHUNK_MAX + 1, -EPROTO }, { 44, UINT32_MAX, -EPROTO },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint8_t raw[FRAME_HEAD_BYTES];
		struct frame_head head;

		memcpy(raw, golden, sizeof(raw));
		forge(raw, cases[i].at, cases[i].value, 4);
		assert_int_equal(frame_decode(raw, &head, NULL), cases[i].result);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_head_has_the_bytes_of_the_table),
		cmocka_unit_test(every_field_comes_back),
		cmocka_unit_test(every_single_bit_flip_is_refused_and_changes_nothing),
		cmocka_unit_test(foreign_majors_are_refused_naming_both_sides),
		cmocka_unit_test(a_foreign_major_is_named_even_if_its_sizes_mean_something_else),
		cmocka_unit_test(served_majors_and_any_minor_are_accepted),
		cmocka_unit_test(sizes_beyond_the_limits_are_refused),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
