/*
 * sim/inside.h: what the files of the simulator share. Nobody else includes it.
 */
#pragma once

#include "base/list.h"
#include "sim/strike.h"
#include "sim/world.h"

#define STOP_PATIENCE_MS 60000 /* of daemon_stop(): no simulated call takes longer */

#define NS_PER_US UINT64_C(1000)

struct sim_arena {
	struct list link;
	uint8_t *ptr;
	size_t size;
	uint64_t id;
	unsigned refs; /* who has it, and chunks that carry it */
};

void *must_alloc(size_t size); /* zeroed; aborts without memory */
bool in_job(void);
struct sim_arena *arena_find(struct world *world, uint64_t id);
void arena_put(struct sim_arena *arena); /* accepts NULL */
bool is_silent(const struct world *world, const struct sim_env *from, const struct sim_env *to);

/* Does @fault happen here? If so it is told and counted. @what and @where name the place, for world_inject(). */
bool fault_here(struct sim_env *env, enum fault fault, const char *what, const char *where);

void stream_ops(struct env_ops *ops);
void stream_env_died(struct sim_env *env, bool orderly);
void stream_env_returned(struct sim_env *env);
void stream_silence_ended(struct world *world);
void stream_free_all(struct world *world);

void file_ops(struct env_ops *ops);
struct disk *disk_of(struct world *world, const char *name);			    /* an env's own; made when new */
void disk_forget(struct world *world, const char *writer, const struct disk *disk); /* NULL: any */
void file_free_all(struct world *world);
