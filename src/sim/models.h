/*
 * sim/models.h: model drivers, which stand in for drivers of foreign things: an object store as S3 is one, a meta engine as LMDB
 * is one. What they hold belongs to the world and outlives any node; what a driver would forget at a restart, they forget.
 */
#pragma once

#include "backend/backend.h"
#include "meta/meta.h"
#include "sim/world.h"

struct model_records; /* sorted by key: objects, or rows */

struct model_records *model_records_new(struct world *world);
struct model_records *model_records_copy(const struct model_records *records);
void model_records_free(struct model_records *records); /* accepts NULL; no driver over it is open */

/* The store as @env reaches it: delayed, sometimes failing, sometimes answering long after it has acted. */
int model_backend_open(struct env *env, struct model_records *records, struct backend **ret);
/* The engine in @env's process: leases' ends are forgotten when it is opened anew, records are not. */
int model_meta_open(struct env *env, struct model_records *records, struct meta **ret);
