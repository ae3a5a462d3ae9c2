/*
 * meta/meta_suite.h: what every meta engine must do, as tests that run over any driver.
 *
 * A driver's *_test.c names how to open an empty engine and calls meta_suite_run(). The suite turns the loop of the engine's
 * env itself, so it must not be called from a fiber.
 */
#pragma once

#include "meta/meta.h"

struct meta_suite {
	const char *name;
	int (*open)(struct meta_suite *suite, struct meta **ret); /* an engine without any record. 0 or negative */
	/* Frees it, its env if it has one of its own, and what the records took. */
	void (*close)(struct meta_suite *suite, struct meta *meta);
	/* Frees the engine and opens it again over the same records. NULL: the driver has no such thing. */
	int (*restart)(struct meta_suite *suite, struct meta **pmeta);
	/* Lets @ms of the env's time pass. */
	void (*pass)(struct meta_suite *suite, struct meta *meta, uint64_t ms);
};

int meta_suite_run(struct meta_suite *suite); /* how many tests failed */

/* For other tests of a driver. Starts @req, whose `finish` and `arg` are taken; then waits for it, a minute at most. */
void meta_suite_start(struct meta *meta, struct meta_req *req);
int meta_suite_wait(struct meta_req *req);
int meta_suite_put(struct meta *meta, const char *key, const char *text); /* the result */
/* 0 and at most @size - 1 bytes of the value, 0-terminated; or the result. */
int meta_suite_get(struct meta *meta, const char *key, char *ret, size_t size);
