/*
 * base/check.h: assertions that stay on in release. They are for programmers' errors only, never for input, peers or
 * hardware: a failed CHECK prints file, line and expression and aborts.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

_Noreturn void check_failed(const char *file, int line, const char *expression);

#define CHECK(x) ((x) ? (void)0 : check_failed(__FILE__, __LINE__, #x))

/* Long-lived structs begin with `uint32_t magic`; calls between modules check it. */
#define CHECK_MAGIC(p, value)                                                                          \
	({                                                                                             \
		const typeof(*(p)) *_checked = (p); /* a variable: &object is never NULL, gcc warns */ \
		if (!_checked || _checked->magic != (value))                                           \
			check_failed(__FILE__, __LINE__, #p " has magic " #value);                     \
	})

#define container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))
#define ARRAY_LEN(a)			(sizeof(a) / sizeof((a)[0]))
