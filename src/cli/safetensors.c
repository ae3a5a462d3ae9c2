#include "cli/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/cleanup.h"

#define LENGTH_BYTES 8
#define ALIGN_BYTES  8

/* Two names for one dtype: torch's, and where it differs the format's own. A packed dtype has @packed elements to a byte. */
static const struct dtype {
	const char *tag;
	uint32_t bits, packed;
	const char *name;
} dtypes[] = {
	{ "bool", 8, 1, "BOOL" },
	{ "uint8", 8, 1, "U8" },
	{ "int8", 8, 1, "I8" },
	{ "uint16", 16, 1, "U16" },
	{ "int16", 16, 1, "I16" },
	{ "uint32", 32, 1, "U32" },
	{ "int32", 32, 1, "I32" },
	{ "uint64", 64, 1, "U64" },
	{ "int64", 64, 1, "I64" },
	{ "float16", 16, 1, "F16" },
	{ "bfloat16", 16, 1, "BF16" },
	{ "float32", 32, 1, "F32" },
	{ "float64", 64, 1, "F64" },
	{ "complex64", 64, 1, "C64" },
	{ "float8_e4m3fn", 8, 1, "F8_E4M3" },
	{ "float8_e5m2", 8, 1, "F8_E5M2" },
	{ "float8_e8m0fnu", 8, 1, "F8_E8M0" },
	{ "float8_e4m3fnuz", 8, 1, "F8_E4M3FNUZ" },
	{ "float8_e5m2fnuz", 8, 1, "F8_E5M2FNUZ" },
	{ "float4_e2m1fn_x2", 8, 2, "F4" },
	{ "float4_e2m1fn", 4, 1, "F4" },
	{ "float6_e2m3fn", 6, 1, "F6_E2M3" },
	{ "float6_e3m2fn", 6, 1, "F6_E3M2" },
};

static const struct dtype *find_dtype(const char *tag, uint32_t bits)
{
	for (size_t i = 0; i < ARRAY_LEN(dtypes); i++) {
		if (!strcmp(dtypes[i].tag, tag) && dtypes[i].bits == bits)
			return &dtypes[i];
	}
	return NULL;
}

const char *safetensors_dtype(const char *dtype, uint32_t element_bits)
{
	const struct dtype *found = find_dtype(dtype, element_bits);

	return found ? found->name : NULL;
}

int safetensors_check(const struct safetensors_tensor *tensor, struct error *e)
{
	const struct dtype *dtype = find_dtype(tensor->dtype, tensor->element_bits);
	uint64_t elements = 1;

	if (!dtype)
		return error_set(e, -EINVAL,
				 "%s: safetensors has no dtype for \"%s\" of %u bits; --format raw exports any item",
				 tensor->name, tensor->dtype, tensor->element_bits);
	if (!strcmp(tensor->name, "__metadata__"))
		return error_set(e, -EINVAL,
				 "%s: safetensors keeps this name for itself; --format raw exports any item",
				 tensor->name);
	for (uint32_t d = 0; d < tensor->ndim; d++)
		elements *= tensor->shape[d];
	if (elements % 8 && elements * tensor->element_bits % 8)
		return error_set(e, -EINVAL, "%s: its %" PRIu64 " elements of %u bits do not fill whole bytes",
				 tensor->name, elements, tensor->element_bits);
	if (dtype->packed > 1 && !tensor->ndim)
		return error_set(e, -EINVAL, "%s: %s without a dimension; --format raw exports any item", tensor->name,
				 tensor->dtype);
	return 0;
}

int safetensors_compare(const struct safetensors_tensor *a, const struct safetensors_tensor *b)
{
	if (a->element_bits != b->element_bits)
		return a->element_bits > b->element_bits ? -1 : 1;
	return strcmp(a->name, b->name);
}

static int append_string(struct buf *out, const char *text)
{
	json_t *string = json_string(text);
	char *quoted = string ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
	int r = quoted ? buf_append(out, quoted, strlen(quoted)) : -ENOMEM;

	json_decref(string);
	free(quoted);
	return r;
}

int safetensors_begin(struct safetensors_header *header, const struct safetensors_metadata *metadata, size_t n)
{
	*header = (struct safetensors_header){ 0 };
	int r = buf_append_zero(&header->json, LENGTH_BYTES);

	if (!r)
		r = buf_printf(&header->json, "{\"__metadata__\":{");
	for (size_t i = 0; !r && i < n; i++) {
		r = i ? buf_append(&header->json, ",", 1) : 0;
		if (!r)
			r = append_string(&header->json, metadata[i].key);
		if (!r)
			r = buf_append(&header->json, ":", 1);
		if (!r)
			r = append_string(&header->json, metadata[i].value);
	}
	return r ? r : buf_append(&header->json, "}", 1);
}

static int append_tensor(struct buf *json, const struct safetensors_tensor *tensor, uint64_t offset)
{
	const struct dtype *dtype = find_dtype(tensor->dtype, tensor->element_bits);
	int r = buf_append(json, ",", 1);

	CHECK(dtype);
	if (!r)
		r = append_string(json, tensor->name);
	if (!r)
		r = buf_printf(json, ":{\"dtype\":\"%s\",\"shape\":[", dtype->name);
	for (uint32_t d = 0; !r && d < tensor->ndim; d++) {
		bool last = d + 1 == tensor->ndim;
		r = buf_printf(json, "%" PRIu64 "%s", tensor->shape[d] * (last ? dtype->packed : 1), last ? "" : ",");
	}
	return r ? r :
		   buf_printf(json, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", offset, offset + tensor->bytes);
}

int safetensors_add(struct safetensors_header *header, const struct safetensors_tensor *tensor)
{
	size_t before = header->json.len;
	int r = append_tensor(&header->json, tensor, header->offset);

	if (r)
		return r;
	if (header->json.len - LENGTH_BYTES + 1 + ALIGN_BYTES > SAFETENSORS_HEADER_MAX) {
		header->json.len = before;
		return 0;
	}
	header->offset += tensor->bytes;
	return 1;
}

int safetensors_end(struct safetensors_header *header)
{
	int r = buf_append(&header->json, "}", 1);

	while (!r && header->json.len % ALIGN_BYTES)
		r = buf_append(&header->json, " ", 1);
	if (!r)
		store_le64(header->json.ptr, header->json.len - LENGTH_BYTES);
	return r;
}
