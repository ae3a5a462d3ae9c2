/*
 * net/net_suite.h: what every transport must do, as one set of tests (cmocka). tcp_test.c runs it over the real world, the
 * simulator over its own.
 */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "env/env.h"

#define NET_SUITE_MORE_MAX 16

struct net_suite {
	/* Makes a fresh world of two nodes that reach each other, and fills in the members below. Before each test. */
	void (*open)(struct net_suite *suite);
	/* Every stream is closed and every operation has come back. After each test. */
	void (*close)(struct net_suite *suite);
	struct env *server, *client; /* on one loop; may be the same */
	const char *address;	     /* where the server can listen */
};

/*
 * Runs the suite, and @more tests of the caller's own (at most NET_SUITE_MORE_MAX; NULL, 0: none) on the same bed, as one group.
 * Returns how many failed.
 */
int net_suite_run(const char *name, struct net_suite *suite, const struct CMUnitTest *more, size_t n_more);
