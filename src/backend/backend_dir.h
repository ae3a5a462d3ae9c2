/*
 * backend/backend_dir.h: what the files of the directory driver share.
 */
#pragma once

#include "backend/backend.h"

#define BACKEND_DIR_TEMP ".tmp" /* private temporaries; begins with '.', so it is no key */

/* BACKEND_LIST over the files below @dir; in a job. Fills req->out, got and error. 0 or negative. */
int backend_dir_list(struct backend_req *req, struct dir *dir);
