/*
 * sim/memory_suite.c: what the linker puts in the place of malloc() and its kin (--wrap, see meson.build) in the simulator and its tests, so
 * that an allocation of the code under test can fail. Counts what is allocated and not freed: at the end of a world nothing is.
 */
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/strike.h"

static _Atomic int64_t outstanding; /* a simulated world has one thread, other tests with this file have more */

int64_t strike_outstanding(void)
{
	return atomic_load_explicit(&outstanding, memory_order_relaxed);
}

static void count_more(int64_t n)
{
	atomic_fetch_add_explicit(&outstanding, n, memory_order_relaxed);
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);
void *__real_reallocarray(void *p, size_t n, size_t size);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t len);
void __real_free(void *p);

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);
void *__wrap_reallocarray(void *p, size_t n, size_t size);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t len);
int __wrap_asprintf(char **ret, const char *format, ...);
int __wrap___asprintf_chk(char **ret, int flag, const char *format, ...);
void __wrap_free(void *p);

static void *counted(void *p)
{
	count_more(p != NULL);
	return p;
}

void *__wrap_malloc(size_t size)
{
	return strike_here(STRIKE_MEMORY) ? NULL : counted(__real_malloc(size));
}

void *__wrap_calloc(size_t n, size_t size)
{
	return strike_here(STRIKE_MEMORY) ? NULL : counted(__real_calloc(n, size));
}

void *__wrap_realloc(void *p, size_t size)
{
	if (strike_here(STRIKE_MEMORY))
		return NULL;
	void *moved = __real_realloc(p, size);
	count_more(moved && !p);
	return moved;
}

void *__wrap_reallocarray(void *p, size_t n, size_t size)
{
	if (strike_here(STRIKE_MEMORY))
		return NULL;
	void *moved = __real_reallocarray(p, n, size);
	count_more(moved && !p);
	return moved;
}

char *__wrap_strdup(const char *text)
{
	return strike_here(STRIKE_MEMORY) ? NULL : counted(__real_strdup(text));
}

char *__wrap_strndup(const char *text, size_t len)
{
	return strike_here(STRIKE_MEMORY) ? NULL : counted(__real_strndup(text, len));
}

static int print(char **ret, const char *format, va_list ap)
{
	int n = strike_here(STRIKE_MEMORY) ? -1 : vasprintf(ret, format, ap);

	count_more(n >= 0);
	return n;
}

int __wrap_asprintf(char **ret, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	int n = print(ret, format, ap);
	va_end(ap);
	return n;
}

/* What asprintf() is under _FORTIFY_SOURCE. */
int __wrap___asprintf_chk(char **ret, int flag, const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	int n = print(ret, format, ap);
	va_end(ap);
	return n;
}

void __wrap_free(void *p)
{
	count_more(-(p != NULL));
	__real_free(p);
}
