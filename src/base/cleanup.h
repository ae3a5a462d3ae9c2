/*
 * base/cleanup.h: scope guards. What a scope owns is given back when it ends, on every path; TAKE() moves it out.
 */
#pragma once

#include <stddef.h>

#define _cleanup_(fn) __attribute__((cleanup(fn)))

/* Moves the pointer out of @p and leaves NULL behind, so that the scope's guard does nothing. */
#define TAKE(p)                       \
	({                            \
		typeof(p) *_p = &(p); \
		typeof(p) _v = *_p;   \
		*_p = NULL;           \
		_v;                   \
	})

/*
 * Declares cleanup_<fn>() as a guard for pointers that @fn frees; @fn accepts NULL. CLEANUP_OF(struct x *, x_free);
 * and then _cleanup_(cleanup_x_free) struct x *x = ...;
 */
#define CLEANUP_OF(type, fn)                     \
	static inline void cleanup_##fn(type *p) \
	{                                        \
		fn(*p);                          \
	}                                        \
	struct cleanup_##fn##_needs_a_semicolon

/* Guard for memory of malloc(): _cleanup_(cleanup_mem) char *p = ...; */
void cleanup_mem(void *p);
