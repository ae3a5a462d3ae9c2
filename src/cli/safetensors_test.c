#include "cli/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t shape_3[] = { 3 }, shape_23[] = { 2, 3 }, shape_24[] = { 2, 4 };

static void a_header_is_padded_so_that_data_begin_at_a_multiple_of_8(void **state)
{
	struct safetensors_tensor tensor = { "w", "float32", 32, 2, shape_23, 24 };

	for (int pad = 0; pad < 9; pad++) {
		struct safetensors_metadata metadata = { "k", &"xxxxxxxx"[8 - pad] };
		struct safetensors_header header;

		assert_int_equal(safetensors_begin(&header, &metadata, 1), 0);
		assert_int_equal(safetensors_add(&header, &tensor), 1);
		assert_int_equal(safetensors_end(&header), 0);
		assert_int_equal(header.json.len % 8, 0);
		assert_int_equal(load_le64(header.json.ptr), header.json.len - 8);
		buf_fini(&header.json);
	}
}

static void tensors_follow_each_other_without_gaps(void **state)
{
	struct safetensors_tensor first = { "a\"b", "bfloat16", 16, 1, shape_3, 6 },
				  second = { "c", "bool", 8, 0, NULL, 1 };
	static const char expect[] =
		"{\"__metadata__\":{},\"a\\\"b\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[0,6]},"
		"\"c\":{\"dtype\":\"BOOL\",\"shape\":[],\"data_offsets\":[6,7]}}";
	struct safetensors_header header;

	assert_int_equal(safetensors_begin(&header, NULL, 0), 0);
	assert_int_equal(safetensors_add(&header, &first), 1);
	assert_int_equal(safetensors_add(&header, &second), 1);
	assert_int_equal(safetensors_end(&header), 0);
	assert_memory_equal(header.json.ptr + 8, expect, strlen(expect));
	buf_fini(&header.json);
}

static void wide_elements_come_first_so_that_all_are_aligned(void **state)
{
	struct safetensors_tensor tensors[] = {
		{ "a", "uint8", 8, 1, shape_3, 3 },
		{ "z", "float64", 64, 0, NULL, 8 },
		{ "c", "float16", 16, 1, shape_3, 6 },
		{ "b", "float16", 16, 1, shape_3, 6 },
	};

	qsort(tensors, 4, sizeof(*tensors), (int (*)(const void *, const void *))safetensors_compare);
	assert_string_equal(tensors[0].name, "z");
	assert_string_equal(tensors[1].name, "b");
	assert_string_equal(tensors[2].name, "c");
	assert_string_equal(tensors[3].name, "a");
}

static void packed_elements_count_in_the_shape(void **state)
{
	struct safetensors_tensor tensor = { "w", "float4_e2m1fn_x2", 8, 2, shape_24, 8 };
	struct safetensors_header header;

	assert_int_equal(safetensors_begin(&header, NULL, 0), 0);
	assert_int_equal(safetensors_add(&header, &tensor), 1);
	assert_int_equal(safetensors_end(&header), 0);
	assert_non_null(memmem(header.json.ptr, header.json.len, "\"F4\",\"shape\":[2,8]", 18));
	buf_fini(&header.json);
}

static void a_dtype_that_the_format_lacks_is_refused_by_name(void **state)
{
	struct safetensors_tensor odd = { "w", "complex128", 128, 0, NULL, 16 },
				  wrong = { "v", "float32", 16, 0, NULL, 2 };
	struct error e = { 0 };

	assert_int_equal(safetensors_check(&odd, &e), -EINVAL);
	assert_non_null(strstr(e.text, "w: safetensors has no dtype for \"complex128\" of 128 bits; --format raw"));
	assert_int_equal(safetensors_check(&wrong, &e), -EINVAL);
}

static void elements_that_do_not_fill_bytes_are_refused(void **state)
{
	struct safetensors_tensor odd = { "w", "float4_e2m1fn", 4, 1, shape_3, 2 },
				  even = { "w", "float4_e2m1fn", 4, 2, shape_24, 4 };
	struct error e = { 0 };

	assert_int_equal(safetensors_check(&odd, &e), -EINVAL);
	assert_int_equal(safetensors_check(&even, &e), 0);
}

static void the_formats_own_name_is_refused(void **state)
{
	struct safetensors_tensor tensor = { "__metadata__", "float32", 32, 0, NULL, 4 };
	struct error e = { 0 };

	assert_int_equal(safetensors_check(&tensor, &e), -EINVAL);
}

static void a_header_ends_before_it_is_too_long(void **state)
{
	enum { NAME_BYTES = 1 << 20 };
	char *name = calloc(1, NAME_BYTES + 1);
	struct safetensors_header header;
	int r = 1;

	assert_non_null(name);
	memset(name, 'n', NAME_BYTES);
	assert_int_equal(safetensors_begin(&header, NULL, 0), 0);
	for (int i = 0; i < 200 && r == 1; i++) {
		struct safetensors_tensor tensor = { name, "float32", 32, 0, NULL, 4 };

		r = safetensors_add(&header, &tensor);
	}
	assert_int_equal(r, 0);
	assert_int_equal(safetensors_end(&header), 0);
	assert_true(header.json.len - 8 <= SAFETENSORS_HEADER_MAX);
	assert_true(header.json.len > SAFETENSORS_HEADER_MAX - 2 * NAME_BYTES);
	assert_int_equal(header.json.len % 8, 0);
	buf_fini(&header.json);
	free(name);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_header_is_padded_so_that_data_begin_at_a_multiple_of_8),
		cmocka_unit_test(tensors_follow_each_other_without_gaps),
		cmocka_unit_test(wide_elements_come_first_so_that_all_are_aligned),
		cmocka_unit_test(packed_elements_count_in_the_shape),
		cmocka_unit_test(a_dtype_that_the_format_lacks_is_refused_by_name),
		cmocka_unit_test(elements_that_do_not_fill_bytes_are_refused),
		cmocka_unit_test(the_formats_own_name_is_refused),
		cmocka_unit_test(a_header_ends_before_it_is_too_long),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
