/*
 * cli/outdir.h: files that appear in a folder all at once, or not at all.
 *
 * Each file is written under a temporary name beside its own; outdir_finish() renames them all. Until then, and after a failure,
 * what was there before is as it was: temporaries and folders that were made are removed. Symbolic links in the folder are never
 * followed, so nothing is written outside of it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

#define OUTDIR_LANES 4

struct outdir;

/* Opens the folder, making it and its parents. @force: existing files may be replaced. */
int outdir_open(const char *path, bool force, struct outdir **ret, struct error *e);
/* Removes what is not finished; accepts NULL. */
void outdir_free(struct outdir *out);

/* Makes the folder @name (a path inside) and its parents. @mode is set when everything is finished, on a folder that was there before
 * only with @force. */
int outdir_folder(struct outdir *out, const char *name, mode_t mode, struct error *e);
/* Whether the file @name may be made: -EEXIST, -EISDIR, or a part of its path is no folder. Makes nothing. */
int outdir_check(struct outdir *out, const char *name, struct error *e);
/*
 * Begins a file of @bytes, all zero so far; the one before in the same @lane is closed. Several threads may write files at the same
 * time, each in a lane of its own.
 */
int outdir_file(struct outdir *out, unsigned lane, const char *name, mode_t mode, uint64_t bytes, struct error *e);
/* Writes into the lane's file. Pages of zeros are left as holes. */
int outdir_write(struct outdir *out, unsigned lane, uint64_t offset, const void *data, size_t len, struct error *e);
int outdir_finish(struct outdir *out, struct error *e);
