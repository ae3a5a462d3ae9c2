/*
 * cli/names.h: names of versions on the command line, of items, and of files.
 *
 * Items whose name begins with '~' are internal: they describe the others. A user's own name that is empty or begins with '~' is
 * stored with "~=" in front, as forebay.torch does it, so the two never meet.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "forebay/forebay.h"

#define NAMES_FILES	   "~files" /* what `forebay put` says of its files: cli/files.h */
#define NAMES_ITEM_MAX	   1024
#define NAMES_PART_MAX	   255 /* bytes of a file's own name */
#define NAMES_PREFIX_BYTES 2   /* "~=" */

/* "BUNDLE" or "BUNDLE@VERSION": the bundle on the heap; the version points into @text, NULL if there is none. -EINVAL: one is empty. */
int names_split(const char *text, char **ret_bundle, const char **ret_version);
/* Opens the version that "BUNDLE[@VERSION]" names; EXIT_FAILURE, and it is said why. */
int names_open(struct forebay_session *session, const char *text, struct forebay_version **ret);
/* "number", "label" or "latest" (NULL too) to a number, without opening it; 0 for the latest. EXIT_FAILURE, and it is said why. */
int names_resolve(struct forebay_session *session, const char *bundle, const char *version, uint64_t *ret);
/* A decimal number above 0. */
bool names_is_number(const char *text, uint64_t *ret);

bool names_is_internal(const char *item);
/* The user's name of an item that is not internal. */
const char *names_of_item(const char *item);
/* The item's name for a user's, on the heap; NULL: no memory. */
char *names_to_item(const char *name);

/* Whether @name is a relative path that stays where it is put: parts separated by single '/', none empty, "." or "..", none longer
 * than a file's name may be. */
bool names_is_path(const char *name);
/* @name with everything but letters, digits, '.', '_' and '-' replaced by '_', cut to @size - 1 bytes. */
void names_to_file(const char *name, char *out, size_t size);
