/*
 * Arenas: memory that processes share, sealed so that no holder of its descriptor can change its size or, for readers,
 * its bytes. All pages are taken before an arena is handed out: lack of memory is an answer here, not a SIGBUS later.
 */
#include "env/real.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/memfd.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/cleanup.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8U /* Linux 6.3: nobody may run code from it */
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* Linux 5.1 */
#endif

#define SPARED_BYTES	(128u << 20) /* left for everybody else; also what MemAvailable may be wrong by */
#define STEP_BYTES	((size_t)1 << 30)
#define KERNEL_TEXT_MAX 1024

static int memory_file(const char *name)
{
	unsigned flags = MFD_ALLOW_SEALING | MFD_CLOEXEC;
	int fd = memfd_create(name, flags | MFD_NOEXEC_SEAL);

	if (fd < 0 && errno == EINVAL)
		fd = memfd_create(name, flags);
	return fd;
}

/* The number after @key in a file of the kernel's, or UINT64_MAX if either is not there ("max" is no number, too). */
static uint64_t kernel_number(const char *path, const char *key)
{
	char text[KERNEL_TEXT_MAX];
	_cleanup_(fd_close) int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

	if (n <= 0)
		return UINT64_MAX;
	text[n] = 0;
	char *at = strstr(text, key);
	if (!at)
		return UINT64_MAX;
	at += strlen(key);
	at += strspn(at, " ");
	return *at >= '0' && *at <= '9' ? strtoull(at, NULL, 10) : UINT64_MAX;
}

/*
 * The file system behind memfd has no size of its own: fallocate() goes on until the OOM killer ends it, or somebody
 * else. So it is on us to see that there is room.
 */
static int check_room(size_t bytes, size_t arena_bytes, struct error *e)
{
	uint64_t free_kib = kernel_number("/proc/meminfo", "MemAvailable:");
	uint64_t free_bytes = free_kib < UINT64_MAX / 1024 ? free_kib * 1024 : UINT64_MAX;
	uint64_t limit_bytes = kernel_number("/sys/fs/cgroup/memory.max", ""); /* a container's, version 2 */

	if (limit_bytes < free_bytes)
		free_bytes = limit_bytes;
	if (free_bytes >= SPARED_BYTES && bytes <= free_bytes - SPARED_BYTES)
		return 0;
	return error_set(e, -ENOMEM, "arena of %zu bytes: there is room for only %llu more, and %u MiB must stay free",
			 arena_bytes, (unsigned long long)free_bytes, SPARED_BYTES >> 20);
}

/* Takes the pages, step by step, as others take memory meanwhile. An interrupted fallocate() has given back its step. */
static int take_pages(int fd, size_t size, struct error *e)
{
	int r = check_room(size, size, e);

	if (r)
		return r;
	if (ftruncate(fd, (off_t)size) < 0)
		return error_set(e, -errno, "arena of %zu bytes: ftruncate: %s", size, strerror(errno));
	for (size_t at = 0; at < size; at += STEP_BYTES) {
		size_t step = size - at < STEP_BYTES ? size - at : STEP_BYTES;

		r = check_room(step, size, e);
		if (r)
			return r;
		do
			r = fallocate(fd, 0, (off_t)at, (off_t)step) < 0 ? -errno : 0;
		while (r == -EINTR);
		if (r)
			return error_set(e, r, "arena of %zu bytes: no more memory after %zu: %s", size, at,
					 strerror(-r));
	}
	return 0;
}

/* Enters the pages into our page table: 2.2 us each, better now than on the way of the first save. */
static void fault_in(uint8_t *ptr, size_t size)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	if (madvise(ptr, size, MADV_POPULATE_WRITE) == 0)
		return;
	for (size_t at = 0; at < size; at += page) /* the pages are there and zero: a write changes nothing */
		*(volatile uint8_t *)(ptr + at) = 0;
}

static int arena_seal(int fd, bool shared_read)
{
	int seals = F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL | (shared_read ? F_SEAL_FUTURE_WRITE : 0);

	return fcntl(fd, F_ADD_SEALS, seals) < 0 ? -errno : 0;
}

int real_arena_new(struct env *env, size_t size, bool shared_read, struct arena *ret, struct error *e)
{
	struct real *real = real_of(env);

	if (size == 0 || size > INT64_MAX)
		return error_set(e, -EINVAL, "an arena of %zu bytes cannot be", size);
	_cleanup_(fd_close) int fd = memory_file(shared_read ? "forebay-read" : "forebay-capture");
	if (fd < 0)
		return error_set(e, -errno, "arena of %zu bytes: memfd_create: %s", size, strerror(errno));
	int r = take_pages(fd, size, e);
	if (r)
		return r;

	uint8_t *ptr = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (ptr == MAP_FAILED)
		return error_set(e, -errno, "arena of %zu bytes: mmap: %s", size, strerror(errno));
	fault_in(ptr, size);
	r = arena_seal(fd, shared_read);
	if (r) {
		munmap(ptr, size);
		return error_set(e, r, "arena of %zu bytes: cannot seal it: %s", size, strerror(-r));
	}
	*ret = (struct arena){ .ptr = ptr, .size = size, .id = ++real->last_arena_id, .fd = fd };
	fd = -1;
	return 0;
}

void real_arena_free(struct env *env, struct arena *arena)
{
	if (!arena || !arena->ptr)
		return;
	munmap(arena->ptr, arena->size);
	fd_close(&arena->fd);
	arena->ptr = NULL;
}
