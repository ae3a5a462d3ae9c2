/*
 * backend/backend_suite.h: what every backend must do, as tests that run over any driver.
 *
 * A driver's *_test.c names how to open an empty store and calls backend_suite_run(). The suite turns the loop of the store's
 * env itself, so it must not be called from a fiber.
 */
#pragma once

#include "backend/backend.h"

struct backend_suite {
	const char *name;
	/* Opens a store without any object. 0 or negative. */
	int (*open)(struct backend_suite *suite, struct backend **ret);
	/* Frees it, its env if it has one of its own, and what the objects took. */
	void (*close)(struct backend_suite *suite, struct backend *backend);
};

int backend_suite_run(struct backend_suite *suite); /* how many tests failed */

/* For other tests of a driver: submits, turns the loop until the request is over, gives its result. Aborts after a minute. */
int backend_suite_call(struct backend *backend, struct backend_req *req);
/* The same in one line; @bytes NULL: none. The result. */
int backend_suite_put(struct backend *backend, const char *key, const char *text, bool if_absent);
