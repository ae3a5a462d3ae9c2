/*
 * _tensor.h: memory of other libraries, seen as a box of elements. From the buffer protocol, else from DLPack.
 *
 * A tensor_lend() keeps the object, and what it exported, until lent_free(): the memory may be read or written in between, without
 * the GIL too. Nothing is copied and NumPy is not needed. Private to _forebay.c.
 */
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIMS_MAX  8  /* forebay.h's */
#define DTYPE_MAX 32 /* bytes of a tag, likewise */

/* ---- what the headers of older Pythons, and nobody's headers, declare -------------------------------------------------- */

/*
 * The buffer protocol joined the limited API in Python 3.11, with the layout and the exported functions that every version
 * since 3.3 has. Declared here as 3.11 declares it, so that the one extension serves 3.9 and 3.10 too.
 */
#if Py_LIMITED_API + 0 < 0x030b0000
typedef struct {
	void *buf;
	PyObject *obj;
	Py_ssize_t len, itemsize;
	int readonly, ndim;
	char *format;
	Py_ssize_t *shape, *strides, *suboffsets;
	void *internal;
} Py_buffer;

#define PyBUF_WRITABLE	 0x0001
#define PyBUF_RECORDS_RO (0x0010 | 0x0008 | 0x0004) /* strides, shape, format */

PyAPI_FUNC(int) PyObject_CheckBuffer(PyObject *object);
PyAPI_FUNC(int) PyObject_GetBuffer(PyObject *object, Py_buffer *view, int flags);
PyAPI_FUNC(void) PyBuffer_Release(Py_buffer *view);
#endif

/* DLPack 1.1, https://github.com/dmlc/dlpack/blob/v1.1/include/dlpack/dlpack.h: the parts that are read here. */
struct dl_tensor {
	void *data;
	struct {
		int32_t type, id;
	} device;
	int32_t ndim;
	struct {
		uint8_t code, bits;
		uint16_t lanes;
	} dtype;
	int64_t *shape, *strides; /* in elements; strides NULL: contiguous, row-major */
	uint64_t byte_offset;
};
struct dl_versioned {
	uint32_t major, minor;
	void *context;
	void (*deleter)(struct dl_versioned *self);
	uint64_t flags;
	struct dl_tensor tensor;
};
#define DL_READ_ONLY 1u
#define DL_COPIED    2u

enum { DL_CPU = 1, DL_CUDA_HOST = 3, DL_ROCM_HOST = 11 }; /* devices whose memory a CPU reads */
enum { DL_INT, DL_UINT, DL_FLOAT, DL_BFLOAT = 4, DL_COMPLEX, DL_BOOL, DL_FLOAT8_E3M4, DL_CODES = 18 };

/* ---- a box in memory --------------------------------------------------------------------------------------------------- */

struct tensor {
	void *data; /* may be NULL if there are no bytes */
	uint32_t ndim, element_bits;
	uint64_t shape[DIMS_MAX];
	int64_t strides_bytes[DIMS_MAX];
	bool contiguous;	   /* row-major: strides need not be told */
	char dtype[DTYPE_MAX + 1]; /* torch's name; "" if the memory's type has none */
	uint64_t bytes;
};

/* What keeps the memory of one tensor: the object, and the buffer or the DLPack capsule that it exported. */
struct lent {
	struct lent *next;
	PyObject *object, *capsule;
	Py_buffer view; /* view.obj NULL: none */
};

static void lent_free(struct lent *lent)
{
	if (!lent)
		return;
	if (lent->view.obj)
		PyBuffer_Release(&lent->view);
	Py_XDECREF(lent->capsule); /* not renamed to "used_...", so its own destructor ends the export */
	Py_XDECREF(lent->object);
	free(lent);
}

/* "(8, 4)", as Python writes it; cut to fit. */
static const char *shape_text(char *text, size_t size, uint32_t ndim, const uint64_t *shape)
{
	size_t at = (size_t)snprintf(text, size, "(");

	for (uint32_t i = 0; i < ndim && at < size; i++)
		at += (size_t)snprintf(text + at, size - at, "%s%llu", i ? ", " : "", (unsigned long long)shape[i]);
	if (at < size)
		snprintf(text + at, size - at, ndim == 1 ? ",)" : ")");
	return text;
}

/* Derives contiguous and bytes from the shape and the strides. */
static bool tensor_measure(struct tensor *tensor, const char *name)
{
	uint64_t elements = 1, row_bits = tensor->element_bits;
	bool contiguous = true;

	for (uint32_t i = tensor->ndim; i-- > 0;) {
		uint64_t n = tensor->shape[i];

		if (n > 1 && (row_bits % 8 || tensor->strides_bytes[i] != (int64_t)(row_bits / 8)))
			contiguous = false;
		if (__builtin_mul_overflow(elements, n, &elements) ||
		    __builtin_mul_overflow(row_bits, n ? n : 1, &row_bits)) {
			PyErr_Format(PyExc_ValueError, "%s: larger than the address space", name);
			return false;
		}
	}
	tensor->contiguous = contiguous || elements == 0;
	tensor->bytes = elements ? (row_bits + 7) / 8 : 0;
	return true;
}

/* Whether two elements may lie on the same bytes, as torch's expand() makes them. */
static bool tensor_repeats(const struct tensor *tensor)
{
	for (uint32_t i = 0; i < tensor->ndim; i++)
		if (!tensor->contiguous && tensor->strides_bytes[i] == 0 && tensor->shape[i] > 1)
			return true;
	return false;
}

static bool tensor_set_ndim(struct tensor *tensor, const char *name, int ndim)
{
	if (ndim < 0 || ndim > DIMS_MAX) {
		PyErr_Format(PyExc_ValueError, "%s: %d dimensions, at most %d can be stored", name, ndim, DIMS_MAX);
		return false;
	}
	tensor->ndim = (uint32_t)ndim;
	return true;
}

/* ---- element types ----------------------------------------------------------------------------------------------------- */

/* Bits of an element of a type that any framework knows by this name; 0: not one of these, any size is believed. */
static uint32_t dtype_bits(const char *dtype)
{
	static const struct {
		const char *name;
		uint32_t bits;
	} known[] = {
		{ "blob", 8 },	     { "bool", 8 },	    { "int8", 8 },     { "uint8", 8 },	  { "int16", 16 },
		{ "uint16", 16 },    { "int32", 32 },	    { "uint32", 32 },  { "int64", 64 },	  { "uint64", 64 },
		{ "float16", 16 },   { "bfloat16", 16 },    { "float32", 32 }, { "float64", 64 }, { "complex32", 32 },
		{ "complex64", 64 }, { "complex128", 128 },
	};

	for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
		if (!strcmp(known[i].name, dtype))
			return known[i].bits;
	return 0;
}

/* Torch's name of a native type of the struct module's format, e.g. "<f" or "Zd"; "" for others, structures among them. */
static void dtype_of_format(const char *format, uint32_t bits, char *dtype)
{
	const char *kind = NULL, *one = format ? format : "B";

	dtype[0] = 0;
	if (*one && strchr("@=<>!", *one)) {
		one++; /* a foreign one only of single bytes: format_is_swapped() */
	}
	bool complex = *one == 'Z';
	one += complex;
	if (strlen(one) != 1)
		return;

	if (strchr("efd", *one))
		kind = complex ? "complex" : "float";
	else if (complex)
		return;
	else if (strchr("bhilqn", *one))
		kind = "int";
	else if (strchr("BHILQN", *one))
		kind = "uint";
	if (kind)
		snprintf(dtype, DTYPE_MAX + 1, "%s%u", kind, bits);
	else if (*one == '?')
		snprintf(dtype, DTYPE_MAX + 1, "bool");
}

/*
 * Whether elements of more than a byte, a structure's fields among them, have the byte order that is not this machine's: they would be
 * stored, or filled, as other numbers. A mark counts until the next one; what stands between colons is a field's name.
 */
static bool format_is_swapped(const char *format)
{
	static const char *const foreign = __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? ">!" : "<";
	bool is_swapped = false, is_name = false;

	for (const char *c = format ? format : ""; *c; c++) {
		if (*c == ':')
			is_name = !is_name;
		else if (!is_name && strchr("@=<>!^", *c))
			is_swapped = strchr(foreign, *c) != NULL;
		else if (!is_name && is_swapped && strchr("hHiIlLqQnNefdgwuP", *c))
			return true;
	}
	return false;
}

/* Torch's name of a DLPack type, e.g. "float4_e2m1fn_x2" for two lanes; "" for codes that have none. */
static void dtype_of_dlpack(const struct dl_tensor *dl, char *dtype)
{
	static const char *const plain[] = { "int", "uint", "float", NULL, "bfloat", "complex" };
	static const char *const small[] = {
		"float8_e3m4",	   "float8_e4m3",   "float8_e4m3b11fnuz", "float8_e4m3fn",
		"float8_e4m3fnuz", "float8_e5m2",   "float8_e5m2fnuz",	  "float8_e8m0fnu",
		"float6_e2m3fn",   "float6_e3m2fn", "float4_e2m1fn",
	};
	uint8_t code = dl->dtype.code;
	char lanes[16] = "";

	dtype[0] = 0;
	if (dl->dtype.lanes != 1)
		snprintf(lanes, sizeof(lanes), "_x%u", dl->dtype.lanes);
	if (code == DL_BOOL)
		snprintf(dtype, DTYPE_MAX + 1, "bool%s", lanes);
	else if (code >= DL_FLOAT8_E3M4 && code < DL_CODES)
		snprintf(dtype, DTYPE_MAX + 1, "%s%s", small[code - DL_FLOAT8_E3M4], lanes);
	else if (code <= DL_COMPLEX && plain[code])
		snprintf(dtype, DTYPE_MAX + 1, "%s%u%s", plain[code], dl->dtype.bits, lanes);
}

/* ---- from objects ------------------------------------------------------------------------------------------------------ */

static bool tensor_of_buffer(struct tensor *tensor, const char *name, const Py_buffer *view)
{
	if (!tensor_set_ndim(tensor, name, view->ndim))
		return false;
	if (view->itemsize <= 0 || view->itemsize > UINT32_MAX / 8) {
		PyErr_Format(PyExc_ValueError, "%s: elements of %zd bytes", name, view->itemsize);
		return false;
	}
	if (format_is_swapped(view->format)) {
		PyErr_Format(
			PyExc_TypeError,
			"%s: its elements (format \"%.100s\") have another byte order than this machine: convert them first",
			name, view->format);
		return false;
	}
	tensor->data = view->buf;
	tensor->element_bits = (uint32_t)view->itemsize * 8;
	Py_ssize_t row = view->itemsize; /* bytes; ctypes leaves strides out although we ask for them */
	for (int i = view->ndim; i-- > 0;) {
		tensor->shape[i] = (uint64_t)view->shape[i];
		tensor->strides_bytes[i] = view->strides ? view->strides[i] : row;
		row = (Py_ssize_t)((size_t)row * (size_t)view->shape[i]);
	}
	dtype_of_format(view->format, tensor->element_bits, tensor->dtype);
	return tensor_measure(tensor, name);
}

static bool dlpack_is_on_cpu(const struct dl_tensor *dl, const char *name)
{
	int32_t device = dl->device.type;

	if (device == DL_CPU || device == DL_CUDA_HOST || device == DL_ROCM_HOST)
		return true;
	PyErr_Format(PyExc_BufferError, "%s: lies on a device (DLPack type %d, number %d): copy it to the CPU first",
		     name, (int)device, (int)dl->device.id);
	return false;
}

static bool tensor_of_dlpack(struct tensor *tensor, const char *name, const struct dl_tensor *dl)
{
	if (!dlpack_is_on_cpu(dl, name) || !tensor_set_ndim(tensor, name, dl->ndim))
		return false;

	uint32_t bits = (uint32_t)dl->dtype.bits * dl->dtype.lanes;
	if (!bits) {
		PyErr_Format(PyExc_ValueError, "%s: elements of 0 bits", name);
		return false;
	}
	tensor->data = dl->data ? (char *)dl->data + dl->byte_offset : NULL;
	tensor->element_bits = bits;
	int64_t row = 1; /* elements; may wrap only where tensor_measure() refuses */
	for (int i = dl->ndim; i-- > 0;) {
		if (dl->shape[i] < 0) {
			PyErr_Format(PyExc_ValueError, "%s: a shape that is negative", name);
			return false;
		}
		int64_t stride = dl->strides ? dl->strides[i] : row;
		if (bits % 8 && dl->strides && dl->shape[i] > 1 && stride != row) {
			PyErr_Format(PyExc_BufferError, "%s: elements of %u bits can only be contiguous", name, bits);
			return false;
		}
		tensor->shape[i] = (uint64_t)dl->shape[i];
		tensor->strides_bytes[i] = stride * (int64_t)(bits / 8);
		row = (int64_t)((uint64_t)row * (uint64_t)dl->shape[i]);
	}
	dtype_of_dlpack(dl, tensor->dtype);
	if (!tensor_measure(tensor, name))
		return false;
	tensor->contiguous |= bits % 8 != 0; /* or it was refused above */
	return true;
}

/* A capsule of @object, which has __dlpack__; of DLPack 1 where the object knows it, since only that tells what is read-only. */
static PyObject *dlpack_export(PyObject *object)
{
	PyObject *method = PyObject_GetAttrString(object, "__dlpack__");
	PyObject *none = PyTuple_New(0), *newest = Py_BuildValue("{s(ii)}", "max_version", 1, 0), *capsule = NULL;

	if (method && none && newest) {
		capsule = PyObject_Call(method, none, newest);
		if (!capsule && PyErr_ExceptionMatches(PyExc_TypeError)) {
			PyErr_Clear();
			capsule = PyObject_Call(method, none, NULL);
		}
	}
	Py_XDECREF(newest);
	Py_XDECREF(none);
	Py_XDECREF(method);
	return capsule;
}

static const struct dl_tensor *dlpack_tensor(PyObject *capsule, const char *name, bool writable)
{
	if (PyCapsule_IsValid(capsule, "dltensor"))
		return PyCapsule_GetPointer(capsule, "dltensor"); /* the tensor is the managed one's first member */
	if (!PyCapsule_IsValid(capsule, "dltensor_versioned")) {
		PyErr_Format(PyExc_BufferError, "%s: __dlpack__() gave no DLPack capsule", name);
		return NULL;
	}

	const struct dl_versioned *versioned = PyCapsule_GetPointer(capsule, "dltensor_versioned");
	if (versioned->major != 1) {
		PyErr_Format(PyExc_BufferError, "%s: DLPack %u, only 1 is known", name, versioned->major);
		return NULL;
	}
	if (writable && versioned->flags & (DL_READ_ONLY | DL_COPIED)) {
		PyErr_Format(PyExc_BufferError, "%s: the target is read-only", name);
		return NULL;
	}
	return &versioned->tensor;
}

static bool lend_buffer(struct lent *lent, const char *name, bool writable, struct tensor *tensor)
{
	if (!PyObject_GetBuffer(lent->object, &lent->view, PyBUF_RECORDS_RO | (writable ? PyBUF_WRITABLE : 0)))
		return tensor_of_buffer(tensor, name, &lent->view);
	if (writable && (PyErr_ExceptionMatches(PyExc_BufferError) || PyErr_ExceptionMatches(PyExc_ValueError)))
		PyErr_Format(PyExc_BufferError, "%s: the target cannot be written in place: %R", name,
			     (PyObject *)Py_TYPE(lent->object));
	return false;
}

static bool lend_dlpack(struct lent *lent, const char *name, bool writable, struct tensor *tensor)
{
	lent->capsule = dlpack_export(lent->object);
	if (!lent->capsule)
		return false;
	const struct dl_tensor *dl = dlpack_tensor(lent->capsule, name, writable);
	return dl && tensor_of_dlpack(tensor, name, dl);
}

/*
 * The memory of @object, item @name in errors, as a tensor: of bytes and bytearray as a blob. Runs the object's own code, so
 * hold no lock. NULL with an exception: TypeError if it exports nothing, ValueError, BufferError, or the object's own.
 */
static struct lent *tensor_lend(PyObject *object, const char *name, bool writable, struct tensor *ret)
{
	struct tensor tensor = { 0 };
	struct lent *lent = calloc(1, sizeof(*lent));
	bool good = false;

	if (!lent) {
		PyErr_NoMemory();
		return NULL;
	}
	Py_INCREF(object);
	lent->object = object;
	if (PyObject_CheckBuffer(object))
		good = lend_buffer(lent, name, writable, &tensor);
	else if (PyObject_HasAttrString(object, "__dlpack__"))
		good = lend_dlpack(lent, name, writable, &tensor);
	else
		PyErr_Format(PyExc_TypeError, "%s: %R has neither the buffer protocol nor __dlpack__", name,
			     (PyObject *)Py_TYPE(object));
	if (!good) {
		lent_free(lent);
		return NULL;
	}
	if (PyBytes_Check(object) || PyByteArray_Check(object))
		snprintf(tensor.dtype, sizeof(tensor.dtype), "blob");
	*ret = tensor;
	return lent;
}
