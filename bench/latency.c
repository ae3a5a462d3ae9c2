/*
 * bench/latency.c: one rank asks its daemon for little: a load of one 64 KiB block that the node holds (median, 99th of 100), and
 * a status. The bound is an echo over a unix socket between two processes, of 64 bytes, and for the block a copy of it
 * besides: what asking another process costs at all.
 */
#include <sys/socket.h>

#include "bed.h"

#define BLOCK_BYTES 65536u
#define GETS	    5000u
#define WARM	    200u
#define ECHO_BYTES  64u

static double took_us[GETS];

static void echo_back(int fd)
{
	uint8_t message[ECHO_BYTES];

	while (recv(fd, message, sizeof(message), MSG_WAITALL) == sizeof(message))
		CHECK(send(fd, message, sizeof(message), MSG_NOSIGNAL) == sizeof(message));
	_exit(0);
}

/* Fills took_us with echoes, and a copy of @copy_bytes after each. */
static void echo(size_t copy_bytes)
{
	uint8_t message[ECHO_BYTES] = { 0 };
	uint8_t *from = bed_memory(BLOCK_BYTES, 1), *to = bed_memory(BLOCK_BYTES, 2);
	int fds[2];

	CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
	pid_t pid = fork();
	CHECK(pid >= 0);
	if (!pid) {
		close(fds[0]);
		echo_back(fds[1]);
	}
	close(fds[1]);
	for (unsigned i = 0; i < WARM + GETS; i++) {
		double began = now_s();

		CHECK(send(fds[0], message, sizeof(message), MSG_NOSIGNAL) == sizeof(message));
		CHECK(recv(fds[0], message, sizeof(message), MSG_WAITALL) == sizeof(message));
		memcpy(to, from, copy_bytes);
		if (i >= WARM)
			took_us[i - WARM] = 1e6 * (now_s() - began);
	}
	close(fds[0]);
	CHECK(waitpid(pid, NULL, 0) == pid);
	free(from);
	free(to);
}

static void get(struct forebay_version *version, uint8_t *to)
{
	struct forebay_target target = { .size = sizeof(target), .name = "block", .data = to };
	struct forebay_load *load = NULL;
	struct forebay_future *future = NULL;

	MUST(forebay_load_begin(version, NULL, &load));
	MUST(forebay_load_into(load, &target, 1));
	MUST(forebay_load_submit(load, &future));
	if (forebay_wait(future, BED_DEADLINE_MS)) {
		fprintf(stderr, "a load: %s\n", forebay_future_error(future));
		abort();
	}
	forebay_future_free(future);
	forebay_load_free(load);
}

static void save_block(struct forebay_session *session, const uint8_t *data)
{
	struct forebay_group *group = bed_join(session, "latency", 0, 1);
	struct forebay_item item = { .size = sizeof(item),
				     .name = "block",
				     .ndim = 1,
				     .shape = (uint64_t[]){ BLOCK_BYTES },
				     .data = data };
	struct forebay_save *save = NULL;

	MUST(forebay_save_begin(group, "latency", 1, NULL, &save));
	MUST(forebay_save_add(save, &item, 1));
	MUST(forebay_save_submit(save));
	bed_wait(save, FOREBAY_DURABLE);
	forebay_save_free(save);
	forebay_group_leave(group);
}

static void time_gets(struct forebay_session *session)
{
	uint8_t *data = bed_memory(BLOCK_BYTES, 3), *to = bed_memory(BLOCK_BYTES, 4);
	struct forebay_version *version = NULL;

	save_block(session, data);
	MUST(forebay_open(session, NULL, "latency", NULL, &version));
	for (unsigned i = 0; i < WARM + GETS; i++) {
		double began = now_s();

		get(version, to);
		if (i >= WARM)
			took_us[i - WARM] = 1e6 * (now_s() - began);
	}
	CHECK(!memcmp(data, to, BLOCK_BYTES));
	forebay_close(version);
	free(data);
	free(to);
}

static void time_statuses(struct forebay_session *session)
{
	const struct forebay_status_events events = { .size = sizeof(events) };

	for (unsigned i = 0; i < WARM + GETS; i++) {
		double began = now_s();

		MUST(forebay_status(session, &events, NULL));
		if (i >= WARM)
			took_us[i - WARM] = 1e6 * (now_s() - began);
	}
}

int main(void)
{
	bed_up("latency", 1, 256 * MIB);
	echo(BLOCK_BYTES);
	double get_p50 = bed_quantile(took_us, GETS, 0.5), get_p99 = bed_quantile(took_us, GETS, 0.99);
	echo(0);
	double status_p50 = bed_quantile(took_us, GETS, 0.5);
	struct forebay_session *session = bed_connect("latency", 0, 1);
	bed_head();
	time_gets(session);
	bed_time("get of a cached block of 64 KiB, median", "us", bed_quantile(took_us, GETS, 0.5), get_p50);
	bed_time("get of a cached block of 64 KiB, P99", "us", bed_quantile(took_us, GETS, 0.99), get_p99);
	time_statuses(session);
	bed_time("status, median", "us", bed_quantile(took_us, GETS, 0.5), status_p50);
	forebay_disconnect(session);
	bed_down("latency");
	return 0;
}
