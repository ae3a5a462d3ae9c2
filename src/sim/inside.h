/*
 * sim/inside.h: what world.c, stream.c and file.c share. Nobody else includes it.
 */
#pragma once

#include "base/list.h"
#include "base/map.h"
#include "sim/world.h"

#define NAME_MAX_BYTES 32
#define PLANNED_MAX    32 /* faults injected by hand that wait for their opportunity */
#define WORKERS	       4  /* jobs at once in an env; the others wait */
#define NS_PER_US      UINT64_C(1000)

struct world {
	uint64_t seed, dice, now_ns, limit_ns, hash, events, serial;
	bool woken;
	FILE *story;
	struct loop *loop;
	struct env_ops ops;
	struct faults faults;
	struct planned {
		enum fault fault;
		char *where;
	} planned[PLANNED_MAX];
	unsigned n_planned;
	struct list envs, streams, arenas, disks, silences;
};

struct disk {
	struct list link;
	char *name; /* an env's name, or the prefix of a shared disk */
	bool shared;
	struct inode *root;
	struct list inodes; /* in the order in which they were made */
	uint64_t free_ns;   /* when it has moved the bytes that it was given so far */
};

struct sim_env {
	struct env env;
	struct list link;
	struct world *world;
	char name[NAME_MAX_BYTES];
	bool dead, silent; /* silent: as a dead machine is, until its successor answers with resets */
	uint32_t uid;
	int32_t pid;
	uint64_t dice;
	uint64_t rate_bytes_per_s, out_free_ns, in_free_ns;
	struct disk *disk;
	unsigned open; /* files and directories */
	struct nursery workers;
	unsigned n_workers;
	struct list jobs;
};

struct sim_arena {
	struct list link;
	struct sim_env *owner;
	uint8_t *ptr;
	size_t size;
	uint64_t id;
	unsigned refs; /* who has it, and chunks that carry it */
};

void *must_alloc(size_t size); /* zeroed; aborts without memory */
struct sim_env *sim_env(struct env *env);
struct sim_arena *arena_find(struct world *world, uint64_t id);
void arena_put(struct sim_arena *arena);

/* Does @fault happen here? Tells it and counts it if so. @where, @format: the place, for world_inject(). */
bool fault_here(struct sim_env *env, enum fault fault, const char *what, const char *where);
void fault_count(struct world *world, enum fault fault);
bool in_job(void);

/* stream.c */
void stream_ops(struct env_ops *ops);
void stream_env_died(struct sim_env *env, bool orderly);
void stream_env_returned(struct sim_env *env);
void stream_silence_ended(struct world *world);
void stream_free_all(struct world *world);
unsigned stream_count(const struct world *world, const struct sim_env *env);

/* file.c */
void file_ops(struct env_ops *ops);
struct disk *disk_new(struct world *world, const char *name, bool shared);
void disk_forget(struct world *world, const struct sim_env *writer, const struct disk *disk); /* NULL: any */
void file_free_all(struct world *world);
bool is_silent(const struct world *world, const struct sim_env *from, const struct sim_env *to);
