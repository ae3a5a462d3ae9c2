/*
 * sim/world.h: a world in which nodes and clients live, made of nothing but a seed.
 *
 * A world has one loop, whose clockwork jumps to the next timer instead of sleeping, and any number of envs: each is the
 * outside (env/env.h) of one process. Streams (sim/stream.c) have rates, delays and faults; files (sim/file.c) forget at
 * a crash what was not synced. Whatever happens is told to the story, line by line, and the story's running hash is the
 * history's name: equal seed, equal code, equal hash, in any process. So nothing here, and nothing in the code
 * under test, may depend on addresses, wall clocks or the order of pointers.
 *
 * All calls belong to the loop's thread; those between two turns of the loop are as good as those from fibers.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "env/env.h"
#include "env/fiber.h"

/*
 * What can go wrong. The number is the most, in millionths per opportunity, that a rough history draws; with 0 it is the
 * history's own act (world_kill and so on) or a consequence of one, and only counted.
 */
/*        name        most    meaning */
#define FAULT_TABLE(X)                                                                         \
	X(CUT, 500, "a stream was cut: both ends see a reset, each at its time")               \
	X(LATE, 5000, "a chunk and all that follow it in its stream came up to 3 s late")      \
	X(SPLIT, 200000, "a call moved fewer bytes than it could have")                        \
	X(WIRE_FLIP, 300, "a bit flipped on a tcp stream")                                     \
	X(REFUSE, 20000, "a connect was refused")                                              \
	X(READ_EIO, 2000, "a read, list or stat failed")                                       \
	X(READ_FLIP, 1000, "a read gave one wrong bit")                                        \
	X(WRITE_EIO, 2000, "a write failed after a part of its bytes")                         \
	X(NO_SPACE, 4000, "ENOSPC")                                                            \
	X(SYNC_EIO, 6000, "a sync failed; what it should have kept is lost at the next crash") \
	X(NAME_EIO, 10000, "link, rename or unlink answered EIO, with or without effect")      \
	X(LINK_TWICE, 20000, "a link was made, and the answer was EEXIST (NFS sent it twice)") \
	X(NAME_LATE, 50000, "a name under 3 s old, made by another env, was not seen (NFS)")   \
	X(SLOW, 3000, "a file call took up to 5 s")                                            \
	X(NO_MEMORY, 50000, "no arena")                                                        \
	X(DEATH_PROCESS, 0, "a process was killed; its machine closed its streams")            \
	X(DEATH_MACHINE, 0, "a machine died: streams fell silent or were reset")               \
	X(BYTES_LOST, 0, "an unsynced write was lost at a crash")                              \
	X(BYTES_TORN, 0, "an unsynced write was kept in part at a crash")                      \
	X(NAME_LOST, 0, "an unsynced change of a name was lost at a crash")                    \
	X(SILENCE, 0, "one direction between two envs fell silent")                            \
	X(ROT, 0, "a stored byte changed")

enum fault {
#define X(name, most, text) FAULT_##name,
	FAULT_TABLE(X)
#undef X
		FAULTS
};

struct faults {
	uint32_t per_million[FAULTS]; /* drawn from the seed, or set by the test */
	uint64_t injected[FAULTS];    /* how often each has happened */
};
extern const char *const fault_names[FAULTS], *const fault_texts[FAULTS];

enum weather { WEATHER_CALM, WEATHER_DRAWN }; /* calm: only what is injected by hand */
enum death { DEATH_DRAWN, DEATH_PROCESS, DEATH_MACHINE };

#define SIM_NAME_BYTES	 32 /* of an env's name, with the final 0 */
#define SIM_PLANNED_MAX	 32 /* faults injected by hand that wait for their opportunity */
#define SIM_SILENCES_MAX 32

struct world {
	uint64_t seed, now_ns;
	uint64_t hash, events; /* of the story so far: its hash, its lines */
	struct loop *loop;
	struct faults faults;
	/* The rest is the world's own. */
	uint64_t dice, limit_ns, serial;
	bool woken;
	FILE *story;
	struct env_ops ops;
	struct planned {
		enum fault fault;
		char *where;
	} planned[SIM_PLANNED_MAX];
	struct silence {
		char from[SIM_NAME_BYTES], to[SIM_NAME_BYTES];
	} silences[SIM_SILENCES_MAX];
	unsigned n_planned, n_silences;
	struct list envs, streams, arenas, disks;
};

struct sim_env {
	struct env env;
	struct world *world;
	bool dead;
	uint32_t uid;		   /* may be set: as peers on unix streams see it; 1000 at first */
	uint64_t rate_bytes_per_s; /* may be set: of its NIC, each direction; 1 GB/s at first */
	uint64_t file_rate; /* may be set: bytes per s of its files, shared disks' too; 0: as fast as the disk is */
	unsigned open;	    /* streams, files, directories and arenas that it has not given back */
	/* The rest is the world's own. */
	struct list link;
	char name[SIM_NAME_BYTES];
	bool silent;		   /* as a dead machine is, until its successor answers with resets */
	uint64_t stopped_until_ns; /* may be set: until then its file calls wait */
	int32_t pid;
	uint64_t dice, out_free_ns, in_free_ns, file_free_ns;
	struct disk *disk;
	struct nursery workers;
	struct lane_jobs {
		unsigned n_workers;
		struct list waiting;
	} lanes[LANES];
};

/* Never NULL: a world without memory is of no use, so it aborts. @story: where the readable story goes, or NULL. */
struct world *world_new(uint64_t seed, enum weather weather, FILE *story);
/* Kills every env, lets the jobs under way end, frees all. Fibers and timers of the code under test must be gone. */
void world_free(struct world *world);
/*
 * Runs @fn(@arg) in a fiber and turns the loop until it has returned: its result. -EDEADLK: nothing would ever have happened
 * any more, -ETIME: virtual time passed @limit_ns after the start; then the fiber was cancelled and has unwound.
 */
int world_run(struct world *world, uint64_t limit_ns, int (*fn)(void *arg), void *arg);

/* The seed's dice, for histories and models: a number below @below (0 gives 0); true in @per_million of 10^6 cases. */
uint64_t world_random(struct world *world, uint64_t below);
bool world_chance(struct world *world, uint32_t per_million);
/* A line of the story, hashed as well. @who: an env or NULL. */
void world_tell(struct world *world, const struct env *who, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* The next opportunity for @fault in a place that contains @where (NULL: any), as in "n1 write /store/x", takes it. */
void world_inject(struct world *world, enum fault fault, const char *where);

/* ---- envs: names are unique among the living; streams and disks know an env by its name ---- */
struct env *world_env_new(struct world *world, const char *name);
struct sim_env *sim_env(struct env *env);
/*
 * Ends @env as its peers and its disk will see it. Its own code goes on with an env in which every call fails with -ESHUTDOWN,
 * and unwinds. The struct stays valid until world_free(). Killing a dead env does nothing.
 */
void world_kill(struct env *env, enum death how);
struct env *world_revive(struct env *dead); /* a new env of this name, over the same disk */
/* Nothing passes from @from to @to (names, or "*") on tcp streams until the silence ends; then all of it does. */
void world_silence(struct world *world, const char *from, const char *to, bool on);
void world_cut(struct world *world, const char *a, const char *b); /* every stream from @a to @b, unix too; or "*" */
unsigned world_leftovers(const struct world *world);		   /* the sum of all `open` */

/* ---- disks: paths that begin with a shared prefix lie on one disk for all envs, the others on the env's own ---- */
void world_share(struct world *world, const char *prefix);
void world_power_loss(struct world *world, const char *prefix);	   /* forgets what anybody has not synced there */
int world_rot(struct env *env, const char *path, uint64_t offset); /* flips a stored bit. 0, -ENOENT, -ERANGE */

/* What a client gets along with bytes: the arena that came with what recv() gave so far. 0 or -EAGAIN. arena_free() it. */
int sim_take_arena(struct stream *stream, struct arena *ret);
