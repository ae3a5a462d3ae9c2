/* The thread shell: libforebay's public calls against a small daemon. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/daemon_suite.h"
#include "client/session.h"
#include "forebay/forebay.h"

/* What the library calls, not that of libc: fails as often as this says. */
static atomic_int sends_that_fail;

__attribute__((visibility("default"))) ssize_t send(int fd, const void *p, size_t len, int flags);

ssize_t send(int fd, const void *p, size_t len, int flags)
{
	int n = atomic_load(&sends_that_fail);

	if (n > 0) {
		atomic_store(&sends_that_fail, n - 1);
		errno = ENOBUFS;
		return -1;
	}
	return sendto(fd, p, len, flags, NULL, 0);
}

#define PATIENCE_MS 60000 /* for what is waited for: longer than a slow machine needs */

static struct forebay_session *open_session(struct daemon *d, enum manners manners)
{
	const struct forebay_connect_options options = { .size = sizeof(options), .socket = d->path, .threads = 3 };
	struct forebay_session *session = NULL;

	daemon_start(d, manners);
	if (forebay_connect(&options, &session))
		fail_msg("%s", forebay_error());
	return session;
}

static struct forebay_group *join(struct forebay_session *session)
{
	const struct forebay_group_options options = { .size = sizeof(options),
						       .name = "g",
						       .run = "r",
						       .rank = 0,
						       .ranks = 1 };
	struct forebay_group *group;

	assert_int_equal(forebay_group_join(session, &options, PATIENCE_MS, &group), 0);
	assert_int_equal(forebay_group_incarnation(group), 2);
	return group;
}

/* ---- saves ------------------------------------------------------------------------------------------------------------------------ */

#define ROWS	400
#define COLUMNS 900

struct matrix {
	int16_t m[COLUMNS][ROWS]; /* stored by columns */
};

static struct matrix *matrix_new(void)
{
	struct matrix *matrix = malloc(sizeof(*matrix));

	for (int i = 0; i < ROWS; i++)
		for (int j = 0; j < COLUMNS; j++)
			matrix->m[j][i] = (int16_t)(i * 31 + j);
	return matrix;
}

static const uint64_t shape[] = { ROWS, COLUMNS };
static const int64_t by_columns[] = { 2, 2 * ROWS };

static struct forebay_save *offer(struct forebay_group *group, const struct matrix *matrix)
{
	const struct forebay_item item = {
		.size = sizeof(item),
		.name = "w",
		.dtype = "int16",
		.element_bits = 16,
		.ndim = 2,
		.shape = shape,
		.data = matrix,
		.strides_bytes = by_columns,
	};
	struct forebay_save *save;

	assert_int_equal(forebay_save_begin(group, "ckpt", 1, NULL, &save), 0);
	assert_int_equal(forebay_save_add(save, &item, 1), 0);
	return save;
}

static struct forebay_future *future_of(struct forebay_save *save, enum forebay_stage stage)
{
	struct forebay_future *future;

	assert_int_equal(forebay_save_future(save, stage, &future), 0);
	return future;
}

static void a_save_is_captured_whatever_its_strides_and_comes_back(void **state)
{
	struct daemon *d = *state;
	struct forebay_session *session = open_session(d, GOOD);
	struct forebay_group *group = join(session);
	struct matrix *matrix = matrix_new(), *back = calloc(1, sizeof(*back));
	struct forebay_save *save = offer(group, matrix);
	struct forebay_future *captured = future_of(save, FOREBAY_CAPTURED),
			      *durable = future_of(save, FOREBAY_DURABLE);
	struct forebay_version *version;
	struct forebay_load *load;
	struct forebay_future *loaded;

	assert_int_equal(forebay_wait(captured, 0), -ETIMEDOUT);
	assert_int_equal(forebay_save_submit(save), 0);
	assert_int_equal(forebay_wait(captured, PATIENCE_MS), 0);
	assert_int_equal(forebay_wait(durable, PATIENCE_MS), 0);
	assert_int_equal(forebay_save_version(save), 41);
	const int16_t *rows = (const int16_t *)d->arena[0];
	for (int i = 0; i < ROWS; i++)
		for (int j = 0; j < COLUMNS; j++)
			assert_int_equal(rows[i * COLUMNS + j], matrix->m[j][i]);

	assert_int_equal(forebay_open(session, group, "ckpt", "latest", &version), 0);
	assert_int_equal(forebay_load_begin(version, NULL, &load), 0);
	struct forebay_target target = { .size = sizeof(target),
					 .name = "w",
					 .dtype = "int8",
					 .ndim = 2,
					 .data = back,
					 .strides_bytes = by_columns };
	assert_int_equal(forebay_load_into(load, &target, 1), -FOREBAY_EMISMATCH);
	assert_non_null(strstr(forebay_error(), "int16"));
	target.dtype = "int16";
	assert_int_equal(forebay_load_into(load, &target, 1), 0);
	assert_int_equal(forebay_load_submit(load, &loaded), 0);
	assert_int_equal(forebay_wait(loaded, PATIENCE_MS), 0);
	assert_memory_equal(back, matrix, sizeof(*back));

	forebay_future_free(loaded);
	forebay_close(version);
	forebay_load_free(load);
	forebay_future_free(captured);
	forebay_save_free(save);
	forebay_group_leave(group);
	forebay_disconnect(session);
	forebay_future_free(durable); /* outlives everything */
	free(matrix);
	free(back);
}

/* Else blocks of an idle client would stay pinned. */
static void what_a_load_held_is_given_back_without_another_call(void **state)
{
	struct daemon *d = *state;
	struct forebay_session *session = open_session(d, GOOD);
	struct matrix *matrix = calloc(1, sizeof(*matrix));
	struct forebay_target target = { .size = sizeof(target), .name = "w", .data = matrix };
	struct forebay_version *version;
	struct forebay_future *loaded;
	struct forebay_load *load;

	d->bytes = sizeof(*matrix);
	assert_int_equal(forebay_open(session, NULL, "ckpt", "latest", &version), 0);
	for (unsigned i = 0; i < 20; i++) {
		assert_int_equal(forebay_load_begin(version, NULL, &load), 0);
		assert_int_equal(forebay_load_into(load, &target, 1), 0);
		assert_int_equal(forebay_load_submit(load, &loaded), 0);
		assert_int_equal(forebay_wait(loaded, PATIENCE_MS), 0);
		forebay_future_free(loaded);
		forebay_load_free(load);
		time_t until = time(NULL) + PATIENCE_MS / 1000;
		while (i % 4 == 0 && d->cancelled != i + 1 && time(NULL) < until)
			sched_yield();
		assert_true(i % 4 || d->cancelled == i + 1);
	}
	forebay_close(version);
	forebay_disconnect(session);
	free(matrix);
}

static void a_futures_descriptor_tells_when_it_is_over(void **state)
{
	struct forebay_session *session = open_session(*state, GOOD);
	struct forebay_group *group = join(session);
	struct matrix *matrix = matrix_new();
	struct forebay_save *save = offer(group, matrix);
	struct forebay_future *future = future_of(save, FOREBAY_DURABLE);
	struct pollfd fd = { .fd = forebay_future_fd(future), .events = POLLIN };

	assert_true(fd.fd >= 0);
	assert_int_equal(poll(&fd, 1, 0), 0);
	assert_int_equal(forebay_wait(future, 20),
			 -ETIMEDOUT); /* reads from the socket, and leaves it to the session's thread */
	assert_int_equal(forebay_save_submit(save), 0);
	assert_int_equal(poll(&fd, 1, PATIENCE_MS), 1);
	assert_int_equal(forebay_wait(future, 0), 0);
	assert_string_equal(forebay_future_error(future), "");
	struct forebay_future *late = future_of(save, FOREBAY_STAGED);
	fd.fd = forebay_future_fd(late);
	assert_int_equal(poll(&fd, 1, 0), 1);
	forebay_future_free(late);
	forebay_future_free(future);
	forebay_save_free(save);
	forebay_group_leave(group);
	forebay_disconnect(session);
	free(matrix);
}

static void *wait_for(void *arg)
{
	return (void *)(intptr_t)forebay_wait(arg, -1);
}

static void many_threads_wait_for_one_future_and_the_daemon_dies(void **state)
{
	struct forebay_session *session = open_session(*state, HANGS_UP);
	struct forebay_group *group = join(session);
	struct matrix *matrix = matrix_new();
	struct forebay_save *save = offer(group, matrix);
	struct forebay_future *future = future_of(save, FOREBAY_CAPTURED);
	pthread_t threads[4];
	void *result;

	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, wait_for, future), 0);
	assert_int_equal(forebay_save_submit(save), 0);
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], &result);
		assert_int_equal((intptr_t)result, -ECONNRESET);
	}
	assert_non_null(strstr(forebay_future_error(future), "is gone"));
	assert_int_equal(forebay_label(session, "b", "l", 0, 1), -ECONNRESET);
	assert_non_null(strstr(forebay_error(), "is gone"));
	forebay_future_free(future);
	forebay_save_free(save);
	forebay_group_leave(group);
	forebay_disconnect(session);
	free(matrix);
}

static void *label_often(void *arg)
{
	intptr_t wrong = 0;

	for (int i = 0; i < 300; i++)
		wrong += forebay_label(arg, "b", "l", 0, 1) != -EAGAIN;
	return (void *)wrong;
}

/* Now one reads what the others wait for, now the session's thread does. */
static void callers_that_wait_at_the_same_time_all_get_their_answers(void **state)
{
	struct forebay_session *session = open_session(*state, GOOD);
	struct forebay_group *group = join(session);
	struct matrix *matrix = matrix_new();
	struct forebay_save *save = offer(group, matrix);
	struct forebay_future *future = future_of(save, FOREBAY_DURABLE);
	pthread_t threads[4];
	void *result;

	for (int i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, label_often, session), 0);
	assert_int_equal(pthread_create(&threads[3], NULL, wait_for, future), 0);
	assert_int_equal(forebay_save_submit(save), 0);
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], &result);
		assert_int_equal((intptr_t)result, 0);
	}
	forebay_future_free(future);
	forebay_save_free(save);
	forebay_group_leave(group);
	forebay_disconnect(session);
	free(matrix);
}

static bool has_a_pump(struct forebay_session *session)
{
	pthread_mutex_lock(&session->lock);
	bool pumps = session->caller_pumps;
	pthread_mutex_unlock(&session->lock);
	return pumps;
}

struct reader {
	struct forebay_session *session;
	struct forebay_future *future;
};

/* Who has just got an answer finds the socket free and waits there. */
static void *read_for(void *arg)
{
	const struct reader *reader = arg;
	int r;

	do
		forebay_label(reader->session, "b", "l", 0, 1);
	while ((r = forebay_wait(reader->future, 50)) == -ETIMEDOUT);
	return (void *)(intptr_t)r;
}

static void a_session_ends_while_a_caller_reads_from_its_socket(void **state)
{
	struct forebay_session *session = open_session(*state, NEVER_CAPTURES);
	struct forebay_group *group = join(session);
	struct matrix *matrix = matrix_new();
	struct forebay_save *save = offer(group, matrix);
	struct forebay_future *future = future_of(save, FOREBAY_CAPTURED);
	struct reader reader = { session, future };
	pthread_t thread;
	void *result;

	assert_int_equal(forebay_save_submit(save), 0);
	assert_int_equal(pthread_create(&thread, NULL, read_for, &reader), 0);
	for (int left_ms = PATIENCE_MS; left_ms && !has_a_pump(session); left_ms--)
		poll(NULL, 0, 1);
	assert_true(has_a_pump(session));
	forebay_disconnect(session);
	pthread_join(thread, &result);
	assert_int_equal((intptr_t)result, -ECONNABORTED);
	forebay_future_free(future);
	forebay_save_free(save);
	forebay_group_leave(group);
	free(matrix);
}

/* Else whoever waits in steps would take it for one that is not over, and go on without end. */
static void a_future_that_ended_since_time_ran_out_is_over(void **state)
{
	struct forebay_session *session = open_session(*state, RUNS_LATE);
	struct forebay_group *group = join(session);
	struct matrix *matrix = matrix_new();
	struct forebay_save *save = offer(group, matrix);
	struct forebay_future *future = future_of(save, FOREBAY_DURABLE);

	assert_int_equal(forebay_save_submit(save), 0);
	assert_int_equal(forebay_wait(future, -1), -ETIME);
	assert_int_equal(forebay_wait(future, 0), -ETIME);
	assert_string_equal(forebay_future_error(future), "rank 7 is late");
	forebay_future_free(future);
	forebay_save_free(save);
	forebay_group_leave(group);
	forebay_disconnect(session);
	free(matrix);
}

static void a_request_that_could_not_be_sent_ends_the_session_in_words(void **state)
{
	struct forebay_session *session = open_session(*state, GOOD);
	struct forebay_group *group = join(session);
	struct matrix *matrix = matrix_new();
	struct forebay_save *save = offer(group, matrix);
	struct forebay_future *future = future_of(save, FOREBAY_CAPTURED);

	atomic_store(&sends_that_fail, 1);
	assert_int_equal(forebay_save_submit(save), 0);
	assert_int_equal(forebay_wait(future, PATIENCE_MS), -ECONNRESET); /* it never came, so no answer will */
	assert_non_null(strstr(forebay_future_error(future), "the connection ended"));
	forebay_future_free(future);
	forebay_save_free(save);
	forebay_group_leave(group);
	forebay_disconnect(session);
	free(matrix);
}

/* The daemon's thread returns when the connection has ended. */
static bool sees_end(struct daemon *d)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += PATIENCE_MS / 1000;
	if (pthread_timedjoin_np(d->thread, NULL, &until))
		return false;
	d->thread = 0;
	return true;
}

/* The application may keep it as long as it likes, and other ranks wait for this one. */
static void a_session_that_is_lost_hangs_up_before_it_is_closed(void **state)
{
	struct daemon *d = *state;
	struct forebay_session *session = open_session(d, RAVES);

	assert_int_equal(forebay_label(session, "b", "l", 0, 1), -EPROTO);
	bool ended = sees_end(d);
	forebay_disconnect(session);
	assert_true(ended);
}

/* As when there is no memory for a message that the daemon must get. */
static void a_session_that_an_own_call_has_lost_hangs_up_too(void **state)
{
	struct daemon *d = *state;
	struct forebay_session *session = open_session(d, GOOD);

	assert_int_equal(session_enter(session, NULL), 0);
	core_lose(session->core, -ENOMEM, "no memory for a message to the daemon");
	session_leave(session);
	bool ended = sees_end(d);
	assert_int_equal(forebay_label(session, "b", "l", 0, 1), -ENOMEM);
	forebay_disconnect(session);
	assert_true(ended);
}

/* The other ranks have asked for their part, and know nothing of this one's want of room. */
static void a_load_without_room_for_its_targets_is_forgone(void **state)
{
	struct daemon *d = *state;
	struct forebay_session *session = open_session(d, BUSY);
	struct forebay_group *group = join(session);
	struct forebay_version *version;
	struct forebay_load *load;
	uint8_t byte;
	const struct forebay_target target = { .size = sizeof(target), .name = "w", .data = &byte };

	assert_int_equal(forebay_open(session, group, "ckpt", "latest", &version), 0);
	assert_int_equal(forebay_load_begin(version, group, &load), 0);
	assert_int_equal(forebay_load_into(load, &target, 1), -EBUSY);
	assert_string_equal(forebay_error(), "too many requests");
	assert_int_equal(forebay_label(session, "b", "l", 0, 1), -EAGAIN);
	unsigned before = d->forgone; /* it may be tried again */
	forebay_load_free(load);
	assert_int_equal(forebay_label(session, "b", "l", 0, 1), -EAGAIN);
	forebay_close(version);
	forebay_group_leave(group);
	forebay_disconnect(session);
	assert_int_equal(before, 0);
	assert_int_equal(d->forgone, 1);
}

static void handles_outlive_the_session(void **state)
{
	struct daemon *d = *state;
	struct forebay_session *session = open_session(d, NEVER_CAPTURES);
	struct forebay_group *group = join(session);
	struct matrix *matrix = matrix_new();
	struct forebay_save *save = offer(group, matrix);
	struct forebay_future *future = future_of(save, FOREBAY_CAPTURED);

	assert_int_equal(forebay_save_submit(save), 0);
	forebay_disconnect(session);
	assert_int_equal(forebay_wait(future, -1), -ECONNABORTED);
	assert_int_equal(forebay_save_begin(group, "b", 2, NULL, &save), -ECONNABORTED);
	forebay_save_free(save);
	forebay_group_leave(group);
	forebay_future_free(future);
	free(matrix);
}

static void freeing_a_save_that_is_not_captured_cancels_it(void **state)
{
	struct daemon *d = *state;
	struct forebay_session *session = open_session(d, NEVER_CAPTURES);
	struct forebay_group *group = join(session);
	struct matrix *matrix = matrix_new();
	struct forebay_save *save = offer(group, matrix);

	assert_int_equal(forebay_save_submit(save), 0);
	forebay_save_free(save);
	free(matrix); /* nobody touches it any more */
	forebay_group_leave(group);
	assert_int_equal(forebay_label(session, "b", "l", 0, 1),
			 -EAGAIN); /* behind CANCEL, which waits for SAVE's answer */
	assert_string_equal(forebay_error(), "the label points to version 3");
	forebay_disconnect(session);
	pthread_join(d->thread, NULL);
	d->thread = 0;
	assert_int_equal(d->cancelled, 1);
}

static void a_forked_process_must_connect_by_itself(void **state)
{
	struct forebay_session *session = open_session(*state, GOOD);
	struct forebay_group *group = join(session);
	int status;

	pid_t pid = fork();
	if (!pid) {
		struct forebay_save *save;
		int r = forebay_save_begin(group, "b", 1, NULL, &save);
		bool said = strstr(forebay_error(), "forked");

		forebay_group_leave(group);
		forebay_disconnect(session);
		_exit(r == -FOREBAY_EFORKED && said ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(forebay_label(session, "b", "l", 0, 1), -EAGAIN); /* the parent goes on */
	forebay_group_leave(group);
	forebay_disconnect(session);
}

/* ---- connecting -------------------------------------------------------------------------------------------------------------------- */

static void no_daemon_is_said_with_the_path(void **state)
{
	struct daemon *d = *state;
	struct forebay_connect_options options = { .size = sizeof(options),
						   .socket = "/tmp/forebay-client-nothing/socket" };
	struct forebay_session *session;

	assert_int_equal(forebay_connect(&options, &session), -ENOENT);
	assert_non_null(strstr(forebay_error(), options.socket));
	close(d->listener);
	d->listener = -1;
	options.socket = d->path;
	assert_int_equal(forebay_connect(&options, &session), -ECONNREFUSED);
	assert_non_null(strstr(forebay_error(), d->path));
}

static void a_daemon_of_another_protocol_is_refused_in_its_words(void **state)
{
	struct daemon *d = *state;
	const struct forebay_connect_options options = { .size = sizeof(options), .socket = d->path };
	struct forebay_session *session;

	daemon_start(d, OTHER_MAJOR);
	assert_int_equal(forebay_connect(&options, &session), -FOREBAY_EVERSION);
	assert_string_equal(forebay_error(), "this daemon speaks protocols 7 to 8");
}

static void a_daemon_that_says_nothing_is_given_up(void **state)
{
	struct daemon *d = *state;
	const struct forebay_connect_options options = { .size = sizeof(options), .socket = d->path, .timeout_ms = 50 };
	struct forebay_session *session;

	daemon_start(d, SILENT);
	assert_int_equal(forebay_connect(&options, &session), -ETIMEDOUT);
}

static void options_of_another_age_are_understood_or_refused(void **state)
{
	struct {
		struct forebay_connect_options options;
		uint64_t more;
	} newer = { .options = { .size = sizeof(newer), .socket = "/nowhere/at/all" } };
	struct forebay_connect_options none = { 0 };
	struct forebay_session *session;

	assert_int_equal(forebay_connect(&newer.options, &session), -ENOENT); /* what it does not know is zero */
	newer.more = 1;
	assert_int_equal(forebay_connect(&newer.options, &session), -EINVAL);
	assert_int_equal(forebay_connect(&none, &session), -EINVAL);
	assert_non_null(strstr(forebay_error(), "size is not set"));
	newer.options.size = sizeof(size_t) + sizeof(char *); /* as an older program has it */
	assert_int_equal(forebay_connect(&newer.options, &session), -ENOENT);
}

static void wrong_arguments_are_named(void **state)
{
	struct forebay_session *session = open_session(*state, GOOD);
	struct forebay_group *group = join(session);
	struct forebay_save *save;
	const struct forebay_save_options options = { .size = sizeof(options), .copies = 9 };
	const uint64_t start[] = { 399, 0 }, count[] = { 2, 1 };
	struct forebay_item item = { .size = sizeof(item),
				     .name = "w",
				     .ndim = 2,
				     .shape = shape,
				     .start = start,
				     .count = count,
				     .data = group };

	assert_int_equal(forebay_save_begin(group, "b", 1, &options, &save), -EINVAL);
	assert_non_null(strstr(forebay_error(), "9 copies"));
	assert_int_equal(forebay_save_begin(group, "b", 1, NULL, &save), 0);
	assert_int_equal(forebay_save_add(save, &item, 1), -EINVAL);
	assert_non_null(strstr(forebay_error(), "\"w\": dimension 0"));
	item.ndim = 9;
	assert_int_equal(forebay_save_add(save, &item, 1), -EINVAL);
	item = (struct forebay_item){ .size = sizeof(item), .name = "w", .ndim = 2, .shape = shape };
	assert_int_equal(forebay_save_add(save, &item, 1), -EINVAL);
	assert_non_null(strstr(forebay_error(), "data is NULL"));
	item.name = NULL;
	assert_int_equal(forebay_save_add(save, &item, 1), -EINVAL);
	forebay_save_free(save);
	forebay_group_leave(group);
	forebay_disconnect(session);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, daemon_set_up, daemon_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_save_is_captured_whatever_its_strides_and_comes_back),
		TEST(what_a_load_held_is_given_back_without_another_call),
		TEST(a_futures_descriptor_tells_when_it_is_over),
		TEST(many_threads_wait_for_one_future_and_the_daemon_dies),
		TEST(callers_that_wait_at_the_same_time_all_get_their_answers),
		TEST(a_session_ends_while_a_caller_reads_from_its_socket),
		TEST(a_future_that_ended_since_time_ran_out_is_over),
		TEST(a_request_that_could_not_be_sent_ends_the_session_in_words),
		TEST(a_session_that_is_lost_hangs_up_before_it_is_closed),
		TEST(a_session_that_an_own_call_has_lost_hangs_up_too),
		TEST(a_load_without_room_for_its_targets_is_forgone),
		TEST(handles_outlive_the_session),
		TEST(freeing_a_save_that_is_not_captured_cancels_it),
		TEST(a_forked_process_must_connect_by_itself),
		TEST(no_daemon_is_said_with_the_path),
		TEST(a_daemon_of_another_protocol_is_refused_in_its_words),
		TEST(a_daemon_that_says_nothing_is_given_up),
		TEST(options_of_another_age_are_understood_or_refused),
		TEST(wrong_arguments_are_named),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
