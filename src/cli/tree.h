/*
 * cli/tree.h: the files and folders below the paths that `forebay put` was given.
 *
 * One path that is a folder gives what is in it; several paths, and files, keep the last part of their name. Symbolic links are
 * followed, to files and to folders. What is no file or folder, a link that leads nowhere, and a folder that contains itself are
 * refused by name.
 */
#pragma once

#include <stddef.h>
#include <sys/stat.h>

#include "base/error.h"
#include "cli/files.h"

#define TREE_DEPTH_MAX 128	/* folders in each other */
#define TREE_FILES_MAX 1000000u /* files and folders */

struct tree_file {
	char *name, *path; /* in the bundle; on disk */
	struct stat st;
};

struct tree {
	struct tree_file *files; /* sorted by name, as list.files is */
	size_t n, cap;
	struct files list;
	uint64_t bytes;
};

int tree_read(char *const paths[], size_t n, struct tree *ret, struct error *e);
void tree_fini(struct tree *tree);
