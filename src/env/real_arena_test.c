#include "env/real_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#define SIZE 65536

static void an_arena_is_zero_and_all_its_pages_are_there(void **state)
{
	struct fixture *f = *state;
	unsigned char present[SIZE / 4096];
	struct arena a, b;

	assert_int_equal(f->env->ops->arena_new(f->env, SIZE, false, &a, NULL), 0);
	assert_int_equal(f->env->ops->arena_new(f->env, 100, true, &b, NULL), 0);
	assert_int_not_equal(a.id, b.id);
	assert_int_equal(a.size, SIZE);
	assert_int_equal(mincore(a.ptr, SIZE, present), 0);
	for (size_t i = 0; i < sizeof(present); i++)
		assert_int_equal(present[i] & 1, 1);
	for (size_t i = 0; i < SIZE; i++)
		assert_int_equal(a.ptr[i], 0);
	a.ptr[SIZE - 1] = 1;
	b.ptr[99] = 1;
	f->env->ops->arena_free(f->env, &a);
	f->env->ops->arena_free(f->env, &a); /* harmless */
	f->env->ops->arena_free(f->env, &b);
}

/* As a client would open it that was sent the descriptor. */
static int client_fd(const struct arena *arena)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", arena->fd);
	return open(path, O_RDWR | O_CLOEXEC);
}

static void a_reader_s_descriptor_cannot_be_mapped_or_written(void **state)
{
	struct fixture *f = *state;
	struct arena arena;

	assert_int_equal(f->env->ops->arena_new(f->env, SIZE, true, &arena, NULL), 0);
	int reopened = client_fd(&arena);
	int fds[] = { arena.fd, reopened };
	for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
		if (fds[i] < 0)
			continue; /* some kernels refuse to open it at all */
		assert_ptr_equal(mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fds[i], 0), MAP_FAILED);
		assert_int_equal(pwrite(fds[i], "x", 1, 0), -1);
		assert_int_equal(fallocate(fds[i], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), -1);
		uint8_t *map = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, fds[i], 0);
		assert_ptr_not_equal(map, MAP_FAILED);
		assert_int_equal(mprotect(map, SIZE, PROT_READ | PROT_WRITE), -1);
		arena.ptr[5] = (uint8_t)(i + 1); /* our own mapping still writes, and the reader sees it */
		assert_int_equal(map[5], i + 1);
		munmap(map, SIZE);
	}
	if (reopened >= 0)
		close(reopened);
	f->env->ops->arena_free(f->env, &arena);
}

static void no_holder_can_change_the_size_or_the_seals(void **state)
{
	struct fixture *f = *state;

	for (int shared_read = 0; shared_read < 2; shared_read++) {
		struct arena arena;

		assert_int_equal(f->env->ops->arena_new(f->env, SIZE, shared_read, &arena, NULL), 0);
		assert_int_equal(ftruncate(arena.fd, SIZE - 4096), -1);
		assert_int_equal(ftruncate(arena.fd, SIZE + 4096), -1);
		assert_int_equal(pwrite(arena.fd, "x", 1, SIZE), -1);
		assert_int_equal(fallocate(arena.fd, 0, SIZE, 4096), -1);
		assert_int_equal(fcntl(arena.fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
		f->env->ops->arena_free(f->env, &arena);
	}
}

static void a_capture_arena_is_written_by_both_sides(void **state)
{
	struct fixture *f = *state;
	struct arena arena;

	assert_int_equal(f->env->ops->arena_new(f->env, SIZE, false, &arena, NULL), 0);
	uint8_t *map = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, arena.fd, 0);
	assert_ptr_not_equal(map, MAP_FAILED);
	map[0] = 1;
	arena.ptr[1] = 2;
	assert_int_equal(arena.ptr[0], 1);
	assert_int_equal(map[1], 2);
	munmap(map, SIZE);
	f->env->ops->arena_free(f->env, &arena);
}

static void lack_of_memory_is_an_answer_that_names_the_size(void **state)
{
	struct fixture *f = *state;
	struct arena arena = { .id = 77 };
	struct error e;

	assert_int_equal(f->env->ops->arena_new(f->env, (size_t)1 << 62, false, &arena, &e), -ENOMEM);
	assert_non_null(strstr(e.text, "4611686018427387904 bytes"));
	assert_int_equal(arena.id, 77);
	assert_int_equal(f->env->ops->arena_new(f->env, 0, false, &arena, &e), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_FIXTURE(an_arena_is_zero_and_all_its_pages_are_there),
		WITH_FIXTURE(a_reader_s_descriptor_cannot_be_mapped_or_written),
		WITH_FIXTURE(no_holder_can_change_the_size_or_the_seals),
		WITH_FIXTURE(a_capture_arena_is_written_by_both_sides),
		WITH_FIXTURE(lack_of_memory_is_an_answer_that_names_the_size),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
