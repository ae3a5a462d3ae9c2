/*
 * cli/source.h: the bytes of files that `forebay put` offers, in memory until they are captured.
 *
 * Files up to SOURCE_COPY_MAX are read, and must be the same before and after. Larger ones are mapped, so that they are never in
 * memory whole; source_check() says after capture whether they have stayed the same meanwhile. A mapped file that gets shorter would
 * kill whoever touches the missing pages (SIGBUS): a handler names the file and ends the process, which makes the save fail as a
 * whole before it is captured, so that nothing is published.
 */
#pragma once

#include <stddef.h>

#include "base/error.h"
#include "cli/text.h"
#include "cli/tree.h"

#define SOURCE_COPY_MAX (1 << 20) /* bytes */

struct source {
	const struct tree_file *file;
	void *data; /* NULL: no bytes */
	size_t len;
	bool mapped;
};

/* Opens all files of the tree: *ret is an array of as many. The progress counts bytes that are read. */
int sources_open(const struct tree *tree, struct progress *progress, struct source **ret, struct error *e);
/* Whether all are still what they were: their size, and when they were changed. */
int sources_check(const struct source *sources, size_t n, struct error *e);
void sources_free(struct source *sources, size_t n);
