/*
 * cli/files.h: item "~files" of a version that `forebay put` made: which items are files, with which modes, and which folders there are.
 *
 *	{"format": 1, "files": {"bin/tool": 493, ...}, "folders": {"bin": 493, ...}}
 *
 * Names are paths as names_is_path() has them; modes are the lower nine permission bits. Pure.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define FILES_FORMAT 1
#define FILES_MODE   0777 /* the bits that are kept */

struct files_entry {
	char *name;
	uint32_t mode;
};

struct files {
	struct files_entry *files, *folders; /* sorted by name */
	size_t n_files, n_folders;
};

void files_fini(struct files *files);
/* JSON on the heap. NULL: no memory, or a name that is not UTF-8. */
char *files_encode(const struct files *files);
/* -EINVAL in words: not of this form, or a name that is no path or leads through a file. */
int files_decode(const char *text, size_t len, struct files *ret, struct error *e);
/* Sorts both lists; -EEXIST naming a path that is there twice, or is a file and part of another's path. */
int files_sort(struct files *files, struct error *e);
/* Adds to one of the lists; @name is copied. */
int files_add(struct files_entry **list, size_t *n, const char *name, uint32_t mode);
