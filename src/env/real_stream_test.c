#include "env/real_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "env/real.h"

/* ---- bytes ---- */

static void assert_bytes_pass(struct fixture *f, struct stream *from, struct stream *to)
{
	const struct env_ops *ops = f->env->ops;
	struct iovec parts[] = { { (char *)"two ", 4 }, { (char *)"parts", 5 } };
	char got[16];
	ssize_t n;

	assert_int_equal(ops->recv(to, got, sizeof(got)), -EAGAIN);
	assert_int_equal(ops->send(from, parts, 2, NULL), 9);
	UNTIL(f, (n = ops->recv(to, got, sizeof(got))) != -EAGAIN);
	assert_int_equal(n, 9);
	assert_memory_equal(got, "two parts", 9);
}

static void bytes_pass_both_ways_over_tcp(void **state)
{
	struct fixture *f = *state;
	struct pair pair;
	uint32_t uid;
	int32_t pid;

	pair_open(f, "tcp:127.0.0.1:0", &pair);
	assert_bytes_pass(f, pair.near, pair.far);
	assert_bytes_pass(f, pair.far, pair.near);
	f->env->ops->peer(pair.far, &uid, &pid);
	assert_int_equal(uid, UINT32_MAX);
	assert_int_equal(pid, 0);
	pair_close(f, &pair);
}

static void bytes_pass_over_tcp_on_ipv6(void **state)
{
	struct fixture *f = *state;
	struct pair pair;
	int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return; /* a kernel without it */
	close(fd);
	pair_open(f, "tcp:[::1]:0", &pair);
	assert_bytes_pass(f, pair.near, pair.far);
	pair_close(f, &pair);
}

static void unix_path(struct fixture *f, const char *name, char address[512])
{
	snprintf(address, 512, "unix:%s/%s", f->dir, name);
}

static void bytes_pass_over_unix_and_the_peer_is_known(void **state)
{
	struct fixture *f = *state;
	char address[512];
	struct pair pair;
	uint32_t uid;
	int32_t pid;

	unix_path(f, "s", address);
	pair_open(f, address, &pair);
	assert_string_equal(f->env->ops->address(pair.listener), address);
	assert_bytes_pass(f, pair.near, pair.far);
	assert_bytes_pass(f, pair.far, pair.near);
	f->env->ops->peer(pair.far, &uid, &pid);
	assert_int_equal(uid, getuid());
	assert_int_equal(pid, getpid());
	pair_close(f, &pair);
}

static void a_unix_path_longer_than_an_address_works(void **state)
{
	struct fixture *f = *state;
	char name[120], path[512], address[512];
	struct pair pair;

	memset(name, 'x', sizeof(name));
	name[sizeof(name) - 1] = 0;
	snprintf(path, sizeof(path), "%s/%s", f->dir, name);
	assert_int_equal(mkdir(path, 0777), 0);
	snprintf(address, sizeof(address), "unix:%s/%s/s", f->dir, name);
	pair_open(f, address, &pair);
	assert_bytes_pass(f, pair.near, pair.far);
	pair_close(f, &pair);
}

static void the_end_of_the_peer_is_the_end_of_the_bytes(void **state)
{
	struct fixture *f = *state;
	const struct env_ops *ops = f->env->ops;
	struct iovec bytes = { (char *)"x", 1 };
	struct pair pair;
	char got[2];
	ssize_t n;

	pair_open(f, "tcp:127.0.0.1:0", &pair);
	ops->close(pair.near);
	pair.near = NULL;
	UNTIL(f, (n = ops->recv(pair.far, got, sizeof(got))) != -EAGAIN);
	assert_int_equal(n, 0);
	UNTIL(f, (n = ops->send(pair.far, &bytes, 1, NULL)) != 1); /* and no SIGPIPE */
	assert_true(n == -EPIPE || n == -ECONNRESET);
	pair_close(f, &pair);
}

static void a_full_stream_says_so_and_calls_when_there_is_room(void **state)
{
	struct fixture *f = *state;
	const struct env_ops *ops = f->env->ops;
	static char bytes[65536], got[65536];
	struct iovec part = { bytes, sizeof(bytes) };
	struct pair pair;
	size_t sent = 0, received = 0;
	ssize_t n;

	pair_open(f, "tcp:127.0.0.1:0", &pair);
	while ((n = ops->send(pair.near, &part, 1, NULL)) > 0)
		sent += (size_t)n;
	assert_int_equal(n, -EAGAIN);
	int before = pair.near_ready;
	while (received < sent) {
		UNTIL(f, (n = ops->recv(pair.far, got, sizeof(got))) != -EAGAIN);
		assert_true(n > 0);
		received += (size_t)n;
	}
	UNTIL(f, pair.near_ready > before);
	assert_true(ops->send(pair.near, &part, 1, NULL) > 0);
	pair_close(f, &pair);
}

static void a_connection_that_fails_tells_why(void **state)
{
	struct fixture *f = *state;
	const struct env_ops *ops = f->env->ops;
	char address[512], byte;
	struct stream_events events = { 0 };
	struct stream *listener, *stream;
	int ready = 0;

	assert_int_equal(ops->listen(f->env, "tcp:127.0.0.1:0", NULL, &listener, NULL), 0);
	snprintf(address, sizeof(address), "%s", ops->address(listener));
	ops->close(listener);
	events = (struct stream_events){ count_ready, &ready };
	assert_int_equal(ops->connect(f->env, address, &events, &stream), 0);
	UNTIL(f, ready && ops->stream_status(stream) != -EINPROGRESS);
	assert_int_equal(ops->stream_status(stream), -ECONNREFUSED);
	assert_int_equal(ops->recv(stream, &byte, 1), -ECONNREFUSED);
	ops->close(stream);

	ready = 0;
	unix_path(f, "nobody", address);
	assert_int_equal(ops->connect(f->env, address, &events, &stream), 0);
	UNTIL(f, ready);
	assert_int_equal(ops->stream_status(stream), -ENOENT);
	ops->close(stream);
}

static void what_is_no_address_is_refused(void **state)
{
	static const char *const texts[] = { "",
					     "tcp:",
					     "tcp:1.2.3.4",
					     "tcp:host:1",
					     "tcp:1.2.3.4:",
					     "tcp:1.2.3.4:x",
					     "tcp:1.2.3.4:65536",
					     "tcp:[::1:1",
					     "unix:",
					     "unix:/tmp/",
					     "udp:1.2.3.4:1" };
	struct fixture *f = *state;
	struct stream *stream;
	struct error e;

	for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
		assert_int_equal(f->env->ops->connect(f->env, texts[i], NULL, &stream), -EINVAL);
		assert_int_equal(f->env->ops->listen(f->env, texts[i], NULL, &stream, &e), -EINVAL);
	}
}

static int ready_after_close;
static struct stream *to_close;

static void close_it(struct task *task)
{
	to_close->real->env.ops->close(to_close);
	ready_after_close = 0;
	to_close = NULL;
}

static void a_call_that_was_due_is_forgotten_with_the_stream(void **state)
{
	struct fixture *f = *state;
	const struct env_ops *ops = f->env->ops;
	struct iovec bytes = { (char *)"x", 1 };
	struct stream_events events = { count_ready, &ready_after_close };
	struct task closing = { .fn = close_it };
	struct stream *near;
	struct pair pair;

	pair_open(f, "tcp:127.0.0.1:0", &pair);
	int before = pair.listener_ready;
	assert_int_equal(ops->connect(f->env, ops->address(pair.listener), NULL, &near), 0);
	UNTIL(f, pair.listener_ready > before);
	assert_int_equal(ops->accept(pair.listener, &events, &to_close), 0);
	assert_int_equal(ops->send(near, &bytes, 1, NULL), 1); /* over loopback it is there when send returns */
	loop_post(f->env->loop, &closing);
	loop_post(f->env->loop, &to_close->ready); /* as the poll does */
	UNTIL(f, !to_close && !closing.posted);
	assert_int_equal(ready_after_close, 0);
	ops->close(near);
	pair_close(f, &pair);
}

/* ---- socket files ---- */

static void a_socket_file_is_for_owner_and_group_and_goes_with_its_listener(void **state)
{
	struct fixture *f = *state;
	char address[512];
	struct stream *listener;
	struct stat st;

	unix_path(f, "s", address);
	mode_t before = umask(0077);
	assert_int_equal(f->env->ops->listen(f->env, address, NULL, &listener, NULL), 0);
	umask(before);
	assert_int_equal(stat(address + 5, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0660);
	f->env->ops->close(listener);
	assert_int_equal(stat(address + 5, &st), -1);
}

static int plain_socket(const char *path, bool listening)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(un.sun_path, sizeof(un.sun_path), "%s", path);
	assert_int_equal(bind(fd, (struct sockaddr *)&un, sizeof(un)), 0);
	if (listening)
		assert_int_equal(listen(fd, 1), 0);
	return fd;
}

static void a_dead_owner_s_socket_is_replaced(void **state)
{
	struct fixture *f = *state;
	char address[512];
	struct pair pair;

	unix_path(f, "s", address);
	close(plain_socket(address + 5, true));
	pair_open(f, address, &pair);
	assert_bytes_pass(f, pair.near, pair.far);
	pair_close(f, &pair);
}

static void a_live_owner_is_never_pushed_aside(void **state)
{
	struct fixture *f = *state;
	char address[512], pid[32];
	struct stream *second;
	struct pair pair;
	struct error e;

	unix_path(f, "s", address);
	pair_open(f, address, &pair);
	assert_int_equal(f->env->ops->listen(f->env, address, NULL, &second, &e), -EADDRINUSE);
	snprintf(pid, sizeof(pid), "%d", getpid());
	assert_non_null(strstr(e.text, pid));
	assert_non_null(strstr(e.text, address));
	assert_bytes_pass(f, pair.near, pair.far);
	assert_int_equal(access(address + 5, F_OK), 0);
	pair_close(f, &pair);
}

static void a_plain_file_at_the_path_is_refused_and_kept(void **state)
{
	struct fixture *f = *state;
	char address[512];
	struct stream *stream;
	struct stat st;
	struct error e;

	unix_path(f, "s", address);
	close(open(address + 5, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	assert_int_equal(f->env->ops->listen(f->env, address, NULL, &stream, &e), -EEXIST);
	assert_int_equal(stat(address + 5, &st), 0);
	assert_true(S_ISREG(st.st_mode));
}

static void closing_leaves_a_successor_s_socket_alone(void **state)
{
	struct fixture *f = *state;
	char address[512];
	struct stream *listener;

	unix_path(f, "s", address);
	assert_int_equal(f->env->ops->listen(f->env, address, NULL, &listener, NULL), 0);
	assert_int_equal(unlink(address + 5), 0); /* somebody's mistake */
	int successor = plain_socket(address + 5, true);
	f->env->ops->close(listener);
	assert_int_equal(access(address + 5, F_OK), 0);
	close(successor);
}

static void a_tcp_port_in_use_is_refused_by_name(void **state)
{
	struct fixture *f = *state;
	struct stream *first, *second;
	struct error e;

	assert_int_equal(f->env->ops->listen(f->env, "tcp:127.0.0.1:0", NULL, &first, NULL), 0);
	assert_int_equal(f->env->ops->listen(f->env, f->env->ops->address(first), NULL, &second, &e), -EADDRINUSE);
	assert_non_null(strstr(e.text, f->env->ops->address(first)));
	f->env->ops->close(first);
}

/* ---- descriptors ---- */

static int plain_connect(const char *path)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(un.sun_path, sizeof(un.sun_path), "%s", path);
	if (connect(fd, (struct sockaddr *)&un, sizeof(un)) < 0) {
		close(fd);
		return -1;
	}
	return fd;
}

/* Receives a byte, and the descriptor that came with it or -1. */
static int receive_fd(int socket)
{
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	char byte;
	struct iovec iov = { &byte, 1 };
	struct msghdr message = {
		.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	int fd;

	assert_int_equal(recvmsg(socket, &message, MSG_CMSG_CLOEXEC), 1);
	const struct cmsghdr *head = CMSG_FIRSTHDR(&message);
	if (!head)
		return -1;
	memcpy(&fd, CMSG_DATA(head), sizeof(fd));
	return fd;
}

static void an_arena_travels_with_the_first_byte(void **state)
{
	struct fixture *f = *state;
	const struct env_ops *ops = f->env->ops;
	struct iovec bytes = { (char *)"xyz", 3 };
	struct stream *listener, *stream;
	struct arena arena;
	char address[512];
	int ready = 0;
	struct stream_events events = { count_ready, &ready };

	unix_path(f, "s", address);
	assert_int_equal(ops->listen(f->env, address, &events, &listener, NULL), 0);
	int client = plain_connect(address + 5);
	UNTIL(f, ready);
	assert_int_equal(ops->accept(listener, NULL, &stream), 0);
	assert_int_equal(ops->arena_new(f->env, 4096, false, &arena, NULL), 0);
	assert_int_equal(ops->send(stream, &bytes, 1, &arena), 3);

	int fd = receive_fd(client);
	assert_true(fd >= 0);
	uint8_t *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(map, MAP_FAILED);
	map[17] = 99;
	assert_int_equal(arena.ptr[17], 99);
	assert_int_equal(receive_fd(client), -1);

	munmap(map, 4096);
	close(fd);
	close(client);
	ops->arena_free(f->env, &arena);
	ops->close(stream);
	ops->close(listener);
}

/* ---- the end of a peer's process ---- */

static int deaths;

static void count_death(void *arg)
{
	++*(int *)arg;
}

/*
 * A client in a process of its own: connects when told by a byte on `go`, leaves a child behind that holds the socket
 * until `hold` is closed, and ends when told by a second byte.
 */
struct client {
	pid_t pid;
	int go, hold;
};

static void client_run(const char *path, int go, int hold)
{
	char byte;

	if (read(go, &byte, 1) != 1)
		_exit(1);
	if (plain_connect(path) < 0)
		_exit(2);
	pid_t child = fork();
	if (child == 0) {
		close(go);
		if (read(hold, &byte, 1) != 0)
			_exit(3);
		_exit(0);
	}
	if (read(go, &byte, 1) != 1)
		_exit(4);
	_exit(0);
}

/* To be called before there are threads. */
static struct client client_fork(const char *path)
{
	int go[2], hold[2];

	assert_int_equal(pipe2(go, O_CLOEXEC), 0);
	assert_int_equal(pipe2(hold, O_CLOEXEC), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		close(go[1]);
		close(hold[1]);
		client_run(path, go[0], hold[0]);
	}
	close(go[0]);
	close(hold[0]);
	return (struct client){ pid, go[1], hold[1] };
}

struct watched {
	struct fixture *fixture;
	struct client client;
	struct stream *listener, *stream;
	int ready;
};

static int watched_setup(void **state)
{
	struct watched *w = calloc(1, sizeof(*w));
	char path[64];

	snprintf(path, sizeof(path), "/tmp/forebay-peer-%d", getpid());
	w->client = client_fork(path);
	deaths = 0;
	void *fixture = NULL;
	int r = fixture_setup(&fixture);
	w->fixture = fixture;
	*state = w;
	return r;
}

static int watched_teardown(void **state)
{
	struct watched *w = *state;
	void *fixture = w->fixture;

	free(w);
	return fixture_teardown(&fixture);
}

static void watched_open(struct watched *w)
{
	const struct env_ops *ops = w->fixture->env->ops;
	struct stream_events events = { count_ready, &w->ready };
	char address[512];

	snprintf(address, sizeof(address), "unix:/tmp/forebay-peer-%d", getpid());
	assert_int_equal(ops->listen(w->fixture->env, address, &events, &w->listener, NULL), 0);
	assert_int_equal(write(w->client.go, "x", 1), 1);
	UNTIL(w->fixture, w->ready);
	assert_int_equal(ops->accept(w->listener, &events, &w->stream), 0);
}

static void client_end(struct watched *w)
{
	int status;

	assert_int_equal(write(w->client.go, "x", 1), 1);
	assert_int_equal(waitpid(w->client.pid, &status, 0), w->client.pid);
	assert_int_equal(status, 0);
	close(w->client.go);
}

static void watched_close(struct watched *w)
{
	const struct env_ops *ops = w->fixture->env->ops;
	char byte;
	ssize_t n;

	close(w->client.hold);
	UNTIL(w->fixture, (n = ops->recv(w->stream, &byte, 1)) != -EAGAIN); /* the last holder is gone */
	assert_int_equal(n, 0);
	ops->close(w->stream);
	ops->close(w->listener);
}

static void a_peer_s_death_is_told_though_its_child_holds_the_socket(void **state)
{
	struct watched *w = *state;
	const struct env_ops *ops = w->fixture->env->ops;
	uint32_t uid;
	int32_t pid;
	char byte;

	watched_open(w);
	ops->peer(w->stream, &uid, &pid);
	assert_int_equal(pid, w->client.pid);
	assert_int_equal(ops->peer_watch(w->stream, count_death, &deaths), 0);
	assert_int_equal(deaths, 0);
	client_end(w);
	UNTIL(w->fixture, deaths);
	assert_int_equal(ops->recv(w->stream, &byte, 1), -EAGAIN);
	watched_close(w);
	assert_int_equal(deaths, 1);
}

static void a_peer_that_was_dead_before_the_watch_is_told_too(void **state)
{
	struct watched *w = *state;

	watched_open(w);
	client_end(w);
	assert_int_equal(w->fixture->env->ops->peer_watch(w->stream, count_death, &deaths), 0);
	assert_int_equal(deaths, 0); /* later, not from within the call */
	UNTIL(w->fixture, deaths);
	watched_close(w);
	assert_int_equal(deaths, 1);
}

static void a_closed_stream_tells_no_death(void **state)
{
	struct watched *w = *state;
	const struct env_ops *ops = w->fixture->env->ops;

	watched_open(w);
	assert_int_equal(ops->peer_watch(w->stream, count_death, &deaths), 0);
	ops->close(w->stream);
	client_end(w);
	w->ready = 0;
	int again = plain_connect(ops->address(w->listener) + 5);
	UNTIL(w->fixture, w->ready); /* the loop has polled since */
	assert_int_equal(deaths, 0);
	close(again);
	close(w->client.hold);
	ops->close(w->listener);
}

static void without_a_pidfd_from_the_socket_the_number_and_the_start_time_tell(void **state)
{
	struct watched *w = *state;
	int fd = -1;

	watched_open(w);
	assert_int_equal(peer_pidfd_by_number(w->stream, &fd), 0);
	assert_true(fd >= 0);
	close(fd);
	uint64_t since_ns = w->stream->since_ns;
	w->stream->since_ns = 1; /* as if the connection were older than the process that has its number */
	assert_int_equal(peer_pidfd_by_number(w->stream, &fd), -ESRCH);
	w->stream->since_ns = since_ns;
	client_end(w);
	assert_int_equal(peer_pidfd_by_number(w->stream, &fd), -ESRCH);
	watched_close(w);
}

static void tcp_peers_cannot_be_watched(void **state)
{
	struct fixture *f = *state;
	struct pair pair;

	pair_open(f, "tcp:127.0.0.1:0", &pair);
	assert_int_equal(f->env->ops->peer_watch(pair.far, count_death, &deaths), -EOPNOTSUPP);
	pair_close(f, &pair);
}

#define WATCHED(name) cmocka_unit_test_setup_teardown(name, watched_setup, watched_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_FIXTURE(bytes_pass_both_ways_over_tcp),
		WITH_FIXTURE(bytes_pass_over_tcp_on_ipv6),
		WITH_FIXTURE(bytes_pass_over_unix_and_the_peer_is_known),
		WITH_FIXTURE(a_unix_path_longer_than_an_address_works),
		WITH_FIXTURE(the_end_of_the_peer_is_the_end_of_the_bytes),
		WITH_FIXTURE(a_full_stream_says_so_and_calls_when_there_is_room),
		WITH_FIXTURE(a_connection_that_fails_tells_why),
		WITH_FIXTURE(what_is_no_address_is_refused),
		WITH_FIXTURE(a_call_that_was_due_is_forgotten_with_the_stream),
		WITH_FIXTURE(a_socket_file_is_for_owner_and_group_and_goes_with_its_listener),
		WITH_FIXTURE(a_dead_owner_s_socket_is_replaced),
		WITH_FIXTURE(a_live_owner_is_never_pushed_aside),
		WITH_FIXTURE(a_plain_file_at_the_path_is_refused_and_kept),
		WITH_FIXTURE(closing_leaves_a_successor_s_socket_alone),
		WITH_FIXTURE(a_tcp_port_in_use_is_refused_by_name),
		WITH_FIXTURE(an_arena_travels_with_the_first_byte),
		WATCHED(a_peer_s_death_is_told_though_its_child_holds_the_socket),
		WATCHED(a_peer_that_was_dead_before_the_watch_is_told_too),
		WATCHED(a_closed_stream_tells_no_death),
		WATCHED(without_a_pidfd_from_the_socket_the_number_and_the_start_time_tell),
		WITH_FIXTURE(tcp_peers_cannot_be_watched),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
