/*
 * client/error.c: the application's view of failures and of structs that grow.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/session.h"

/* The public codes are base/error.h's: neither changes without the other. */
#define X(name, number, text) \
	_Static_assert((int)FOREBAY_##name == (int)ERR_##name, "FOREBAY_" #name " differs from base/error.h");
ERROR_TABLE(X)
#undef X
_Static_assert(FOREBAY_LOWEST_RANK == ITEM_LOWEST_WINS, "the flag goes as it is");
_Static_assert((int)FOREBAY_CAPTURED == CORE_CAPTURED && (int)FOREBAY_STAGED == CORE_STAGED &&
		       (int)FOREBAY_DURABLE == CORE_DURABLE,
	       "stages go as they are");

static _Thread_local char last_failure[ERROR_TEXT_MAX];

int forebay_abi(void)
{
	return FOREBAY_ABI;
}

const char *forebay_error(void)
{
	return last_failure;
}

const char *forebay_error_name(int code)
{
	return error_name(code);
}

int api_result(int code, const struct error *e)
{
	if (code < 0)
		snprintf(last_failure, sizeof(last_failure), "%s", e && *e->text ? e->text : error_meaning(code));
	return code;
}

int api_fail(int code, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(last_failure, sizeof(last_failure), format, args);
	va_end(args);
	return code;
}

/* ---- structs with a size -------------------------------------------------------------------------------------------------- */

static size_t size_of(const void *s)
{
	size_t size;

	memcpy(&size, s, sizeof(size));
	return size;
}

int api_take(void *to, size_t to_size, const void *from, const char *what, struct error *e)
{
	memset(to, 0, to_size);
	if (!from)
		return 0;
	size_t size = size_of(from);
	if (size < sizeof(size) || size > 65536)
		return error_set(e, -EINVAL, "%s: size is not set: it must be sizeof(%s)", what, what);
	if (size > to_size && !bytes_are_zero((const uint8_t *)from + to_size, size - to_size))
		return error_set(e, -EINVAL,
				 "%s: uses members that this library does not know; it is older than the program",
				 what);
	memcpy(to, from, size < to_size ? size : to_size);
	return 0;
}

void api_give(void *to, const void *from, size_t from_size)
{
	size_t size = size_of(to);
	size_t n = size < from_size ? size : from_size;

	if (n > sizeof(size))
		memcpy((uint8_t *)to + sizeof(size), (const uint8_t *)from + sizeof(size), n - sizeof(size));
}

const void *api_element(const void *array, size_t i)
{
	return (const uint8_t *)array + i * size_of(array);
}

int api_boxes(uint32_t ndim, const uint64_t *shape, const uint64_t *start, const uint64_t *count, struct box *ret_whole,
	      struct box *ret_box, struct error *e)
{
	struct box whole = { .ndim = ndim }, box = { .ndim = ndim };

	if (ndim > BOX_DIMS_MAX)
		return error_set(e, -EINVAL, "%" PRIu32 " dimensions; at most %d are possible", ndim, BOX_DIMS_MAX);
	if (ndim && !shape)
		return error_set(e, -EINVAL, "%" PRIu32 " dimensions, and shape is NULL", ndim);
	if (start && !count)
		return error_set(e, -EINVAL, "start is given, and count is NULL");
	for (uint32_t d = 0; d < ndim; d++) {
		whole.count[d] = shape[d];
		box.start[d] = start ? start[d] : 0;
		box.count[d] = count ? count[d] : shape[d];
		if (box.start[d] > shape[d] || box.count[d] > shape[d] - box.start[d])
			return error_set(e, -EINVAL,
					 "dimension %" PRIu32 ": start %" PRIu64 " and count %" PRIu64
					 " reach out of %" PRIu64,
					 d, box.start[d], box.count[d], shape[d]);
	}
	*ret_whole = whole;
	*ret_box = box;
	return 0;
}

/* ---- attributes --------------------------------------------------------------------------------------------------------- */

void attributes_fini(struct attributes *attributes)
{
	for (size_t i = 0; i < attributes->n; i++) {
		free((char *)attributes->list[i].key);
		free((char *)attributes->list[i].value);
	}
	free(attributes->list);
	*attributes = (struct attributes){ 0 };
}

int attributes_take(struct attributes *attributes, struct list_view list)
{
	struct elem_attribute elem;
	int r;

	*attributes = (struct attributes){ .list = calloc(list.count + 1, sizeof(attributes->list[0])) };
	if (!attributes->list)
		return -ENOMEM;
	while (!(r = elem_attribute_next(&list, &elem))) {
		struct forebay_attribute *a = &attributes->list[attributes->n++];

		a->key = view_dup(elem.key);
		a->value = view_dup(elem.value);
		if (!a->key || !a->value) {
			attributes_fini(attributes);
			return -ENOMEM;
		}
	}
	if (r == 1)
		return 0;
	attributes_fini(attributes);
	return r;
}
