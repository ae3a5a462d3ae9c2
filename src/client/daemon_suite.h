/*
 * client/daemon_suite.h: a small daemon in a thread of its own, for tests of the thread shell: real socket, real arenas. It takes saves
 * of one item and gives them back, or misbehaves as the test asks. One connection.
 */
#pragma once

#include <stdatomic.h>
#include <pthread.h>
#include <stdint.h>

#define ARENA_BYTES (4u << 20)

enum manners {
	GOOD,
	SILENT,		/* never says anything */
	OTHER_MAJOR,	/* refuses HELLO */
	HANGS_UP,	/* at SAVE */
	NEVER_CAPTURES, /* grants nothing */
	RUNS_LATE,	/* ends a save since time ran out */
	RAVES,		/* answers LABEL with what is no frame */
	BUSY,		/* has no room to answer ITEMS */
};

struct daemon {
	char dir[64], path[96];
	enum manners manners;
	int listener, fd;
	pthread_t thread;
	int arena_fd[2];
	uint8_t *arena[2]; /* both are written here only to look at them, or to be read */
	uint64_t bytes;	   /* of the item that was saved last */
	uint32_t blocks, filled;
	atomic_uint cancelled, forgone;
};

int daemon_set_up(void **state);    /* listens */
int daemon_tear_down(void **state); /* when the session is over */
void daemon_start(struct daemon *d, enum manners manners);
