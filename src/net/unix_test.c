/* The transport over unix sockets, and what only these have: descriptors, known peers, watched processes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/check.h"
#include "net/bed_suite.h"

static char unix_address[128];

static void world_open(struct net_suite *suite)
{
	struct error e;
	int r = env_real_new("unix-test", 1, &suite->server, &e);

	if (r)
		fail_msg("%s", e.text);
	suite->client = suite->server;
}

static void world_close(struct net_suite *suite)
{
	env_real_free(suite->server);
}

struct catch
{
	int socket, fd; /* fd: a descriptor that came along, or -1 */
	uint8_t bytes[FRAME_HEAD_BYTES];
	size_t have;
};

/* Reads on until a head is whole, as a client does that wants to know which frame its descriptor came with. */
static bool caught_head(struct catch *catch)
{
	char control[CMSG_SPACE(sizeof(int))];
	struct iovec iov = { catch->bytes + catch->have, FRAME_HEAD_BYTES - catch->have };
	struct msghdr message = { .msg_iov = &iov,
				  .msg_iovlen = 1,
				  .msg_control = control,
				  .msg_controllen = sizeof(control) };
	ssize_t n = recvmsg(catch->socket, &message, MSG_DONTWAIT);

	if (n <= 0)
		return false;
	struct cmsghdr *head = CMSG_FIRSTHDR(&message);
	if (head && head->cmsg_type == SCM_RIGHTS)
		memcpy(&catch->fd, CMSG_DATA(head), sizeof(int));
	catch->have += (size_t)n;
	return catch->have == FRAME_HEAD_BYTES;
}

static void an_arena_goes_along_with_its_frame(void **state)
{
	struct bed *bed = *state;
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	const struct frame_head head = { .type = 48, .request = 1 };
	struct arena arena = { .fd = memfd_create("arena", MFD_CLOEXEC) };
	struct frame_head got;
	struct stat sent_stat, got_stat;
	struct catch catch = { .socket = socket(AF_UNIX, SOCK_STREAM, 0), .fd = -1 };

	snprintf(address.sun_path, sizeof(address.sun_path), "%s", bed->address + strlen("unix:"));
	assert_int_equal(connect(catch.socket, (struct sockaddr *)&address, sizeof(address)), 0);
	drive(bed, bed->n_accepted == 1);
	struct side *side = &bed->accepted[0];
	assert_int_equal(side_send(side, 0, NULL, 0), 0);
	assert_int_equal(net_send(side->conn, &head, (struct view){ 0 }, &arena), 0);
	assert_int_equal(side_send(side, 2, NULL, 0), 0);

	drive(bed, caught_head(&catch)); /* the frame before it comes without */
	assert_int_equal(catch.fd, -1);
	catch.have = 0;
	drive(bed, caught_head(&catch));
	assert_int_equal(frame_decode(catch.bytes, &got, NULL), 0);
	assert_int_equal(got.type, 48);
	assert_int_equal(got.flags, FRAME_ARENA);
	assert_true(catch.fd >= 0);
	assert_int_equal(fstat(arena.fd, &sent_stat), 0);
	assert_int_equal(fstat(catch.fd, &got_stat), 0);
	assert_true(sent_stat.st_ino == got_stat.st_ino && sent_stat.st_dev == got_stat.st_dev);
	close(catch.fd);
	close(catch.socket);
	close(arena.fd);
}

static void the_peer_of_a_unix_connection_is_known(void **state)
{
	struct bed *bed = *state;
	struct side client = { 0 };
	uint32_t uid;
	int32_t pid;

	side_connect(bed, &client);
	drive(bed, bed->n_accepted == 1);
	net_peer(bed->accepted[0].conn, &uid, &pid);
	assert_int_equal(uid, getuid());
	assert_int_equal(pid, getpid());
	side_close(&client);
}

/* A unix stream refuses bytes at once when its peer is gone, while many frames still lie there to be read. */
static void words_that_came_before_the_break_are_read(void **state)
{
	enum { FRAMES = 100 };
	struct bed *bed = *state;
	uint8_t frame[FRAME_HEAD_BYTES];
	struct raw raw;
	struct side *side = raw_connect(bed, &raw);

	for (unsigned i = 0; i < FRAMES; i++) {
		const struct frame_head head = { .type = TYPE_DATA, .request = i };

		raw_write(&raw, frame, raw_frame(frame, &head, NULL, 0));
	}
	raw_close(&raw);
	assert_int_equal(side_send(side, 1, NULL, 0), 0);
	drive(bed, side->n_down);
	assert_int_equal(side->n_frames, FRAMES);
	assert_true(side->in_order);
	assert_int_equal(side->reason, -ECONNRESET);
}

/* Not in the simulator, whose time stands still while tasks are ready. */
struct busy {
	struct task task;
	struct bed *bed;
};

static void busy_run(struct task *task)
{
	loop_post(container_of(task, struct busy, task)->bed->loop, task);
}

static void frames_leave_also_when_somebody_is_always_ready_to_run(void **state)
{
	struct bed *bed = *state;
	struct busy busy = { .task.fn = busy_run, .bed = bed };
	struct side client = { 0 };

	side_connect(bed, &client);
	drive(bed, bed->n_accepted == 1 && client.is_up);
	loop_post(bed->loop, &busy.task);
	for (unsigned i = 0; i < 10; i++) {
		assert_int_equal(side_send(&client, i, NULL, 0), 0);
		drive(bed, bed->accepted[0].n_frames == i + 1);
	}
	task_cancel(&busy.task);
	side_close(&client);
}

static void note_gone(void *arg)
{
	*(bool *)arg = true;
}

/* A forked child holds the socket open: the connection stays, the watch tells of the process that made it. */
static void a_watch_tells_when_the_peers_process_ends(void **state)
{
	struct bed *bed = *state;
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	bool gone = false;
	int go[2];

	assert_int_equal(pipe(go), 0);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", bed->address + strlen("unix:"));
	pid_t child = fork();
	if (child == 0) {
		char byte;
		int fd = socket(AF_UNIX, SOCK_STREAM, 0);

		close(go[1]);
		if (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0)
			_exit(1);
		_exit((int)read(go[0], &byte, 1));
	}
	close(go[0]);
	drive(bed, bed->n_accepted == 1);
	assert_int_equal(net_peer_watch(bed->accepted[0].conn, note_gone, &gone), 0);
	assert_false(gone);
	close(go[1]);
	drive(bed, gone && bed->accepted[0].n_down);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, bed_open, bed_close)

int main(void)
{
	static struct net_suite suite = { .open = world_open, .close = world_close, .address = unix_address };
	char dir[] = "/tmp/forebay-net-XXXXXX";
	const struct CMUnitTest more[] = {
		TEST(an_arena_goes_along_with_its_frame),
		TEST(words_that_came_before_the_break_are_read),
		TEST(frames_leave_also_when_somebody_is_always_ready_to_run),
		TEST(the_peer_of_a_unix_connection_is_known),
		TEST(a_watch_tells_when_the_peers_process_ends),
	};

	CHECK(mkdtemp(dir));
	snprintf(unix_address, sizeof(unix_address), "unix:%s/socket", dir);
	int failed = net_suite_run("net over unix sockets", &suite, more, ARRAY_LEN(more));
	rmdir(dir);
	return failed;
}
