/*
 * cli/daemons.h: ending daemons that are known by their pidfds.
 */
#pragma once

#include <stddef.h>

#include "cli/place.h"

#define DAEMON_NAME	"forebayd"
#define DAEMONS_TERM_MS 70000 /* a daemon drains for a minute, unless it is set otherwise */

struct daemons {
	int pidfd[PLACE_NODES_MAX];
	size_t n;
};

/* SIGTERM to all, up to @term_ms for them to drain and end in order, then SIGKILL to the rest. Returns how many of them that took; -EBUSY if
 * one is still there after all. */
int daemons_end(const struct daemons *daemons, int term_ms);
