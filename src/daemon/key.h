/*
 * daemon/key.h: the cluster's key, from its file: the same bytes on every node, for nobody else's eyes.
 */
#pragma once

#include <stdbool.h>

#include "base/bytes.h"
#include "base/error.h"

/*
 * The file's bytes without line ends at their end, appended to @ret. Words name the file: it cannot be read, others than its owner and
 * group may read it (or others than its owner write it), it is too short or too long.
 */
int key_read(const char *path, struct buf *ret, struct error *e);
void key_forget(struct buf *key); /* overwrites it */
/* Whether others than this machine's own processes can reach "tcp:ADDRESS:PORT". */
bool key_is_needed(const char *listen);
