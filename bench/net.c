/*
 * bench/net.c: bulk from one process to another over loopback, in chunks of 1 MiB, against a plain socket loop in the same run:
 * GB/s, and CPU seconds per GiB of each side (the kernel does most of a receiver's work on loopback in the sender's time). Both walk
 * over spans of 8 MiB. The plain loop only copies; ours also sums every byte on both sides and sends from a private copy. "plain +
 * CRC" sums on both sides, too, and shows what that alone costs here.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "base/hash.h"
#include "bed.h"
#include "net/net.h"

#define CONNS_MAX      4
#define ROUNDS	       5 /* of each kind, alternating, so that a busy moment hits all alike; the best counts */
#define RUN_BYTES      (UINT64_C(2) << 30)
#define TRANSFER_BYTES (8u << 20)
#define BLOCK_BYTES    (1u << 20)
#define TYPE_HELLO     1
#define ADDRESS_BYTES  64

struct result {
	double gb_per_s, sender_s_per_gib, receiver_s_per_gib;
};

static double cpu_of(const struct rusage *u)
{
	return (double)(u->ru_utime.tv_sec + u->ru_stime.tv_sec) +
	       (double)(u->ru_utime.tv_usec + u->ru_stime.tv_usec) / 1e6;
}

static uint8_t *new_span(size_t len)
{
	return bed_memory(len, 1);
}

/* ---- ours ---- */

struct piece {
	struct net_transfer transfer;
	struct done done;
	struct end *end;
};

/* The sender or the receiver, each with a thread, an env and a mover of its own. */
struct end {
	struct env *env;
	bool sends;
	unsigned n_conns, n_met;
	struct net_conn *conns[CONNS_MAX];
	uint8_t *spans[CONNS_MAX]; /* the connection's transfers all use its one */
	struct piece *pieces;
	size_t n_pieces, n_left;
};

static void piece_done(struct done *done, int result)
{
	struct end *end = container_of(done, struct piece, done)->end;

	CHECK(result == 0);
	if (--end->n_left == 0)
		loop_stop(end->env->loop);
}

static void start_conn(struct end *end, struct net_conn *conn)
{
	unsigned c = 0;

	while (end->conns[c] != conn)
		c++;
	CHECK(net_bulk_start(conn) == 0);
	for (size_t i = c; i < end->n_pieces; i += end->n_conns) {
		struct piece *piece = &end->pieces[i];

		piece->end = end;
		piece->done.fn = piece_done;
		piece->transfer.id = i;
		piece->transfer.span = end->spans[c];
		piece->transfer.len = TRANSFER_BYTES;
		piece->transfer.done = &piece->done;
		CHECK((end->sends ? net_bulk_send(conn, &piece->transfer) : net_expect(conn, &piece->transfer)) == 0);
	}
}

struct link {
	struct end *end;
	struct net_conn *conn;
} links[2 * CONNS_MAX];

static void on_up(void *arg)
{
	const struct frame_head hello = { .type = TYPE_HELLO };
	struct link *link = arg;

	CHECK(net_send(link->conn, &hello, (struct view){ 0 }, NULL) == 0);
}

static void on_frame(void *arg, const struct frame_head *head, struct view body)
{
	const struct frame_head answer = { .type = TYPE_HELLO, .flags = FRAME_REPLY };
	struct link *link = arg;

	if (!link->end->sends)
		CHECK(net_send(link->conn, &answer, (struct view){ 0 }, NULL) == 0);
	start_conn(link->end, link->conn);
}

static void on_down(void *arg, int reason, const char *words)
{
	struct link *link = arg;

	if (link->end->n_left) {
		fprintf(stderr, "lost a connection: %s\n", words);
		abort();
	}
}

static struct net_events events_of(struct link *link)
{
	return (struct net_events){ .up = on_up, .frame = on_frame, .down = on_down, .arg = link };
}

static void on_accepted(void *arg, struct net_conn *conn)
{
	struct end *end = arg;
	unsigned c = end->n_met++;

	links[c] = (struct link){ end, conn };
	end->conns[c] = conn;
	const struct net_events events = events_of(&links[c]);
	net_adopt(conn, &events);
}

static void end_init(struct end *end, unsigned n_conns, bool sends)
{
	struct error e;

	*end = (struct end){ .sends = sends, .n_conns = n_conns };
	end->n_pieces = end->n_left = RUN_BYTES / TRANSFER_BYTES;
	end->pieces = must(calloc(end->n_pieces, sizeof(*end->pieces)));
	for (unsigned c = 0; c < n_conns; c++)
		end->spans[c] = new_span(TRANSFER_BYTES);
	CHECK(env_real_new("bench", 1, &end->env, &e) == 0);
}

static void end_fini(struct end *end)
{
	for (unsigned c = 0; c < end->n_conns; c++)
		net_close(end->conns[c]);
	env_real_free(end->env);
	for (unsigned c = 0; c < end->n_conns; c++)
		free(end->spans[c]);
	free(end->pieces);
}

/* Closes once the receiver has all: it says so by closing @hear. */
static void run_sender(const char *address, unsigned n_conns, int hear)
{
	struct end sender;

	end_init(&sender, n_conns, true);
	for (unsigned c = 0; c < n_conns; c++) {
		struct link *link = &links[CONNS_MAX + c];
		const struct net_events events = events_of(link);

		link->end = &sender;
		CHECK(net_connect(sender.env, address, &events, &link->conn) == 0);
		sender.conns[c] = link->conn;
	}
	CHECK(loop_run(sender.env->loop) == 0);
	CHECK(write(hear, "", 1) == 1);
	CHECK(read(hear, &(char){ 0 }, 1) == 0);
	end_fini(&sender);
}

/* The sender's process, which waits for the address; the receiver has to start its threads after the fork. */
static pid_t fork_sender(unsigned n_conns, int *ret_to)
{
	char address[ADDRESS_BYTES];
	int fds[2];

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
	pid_t pid = fork();
	CHECK(pid >= 0);
	close(fds[pid ? 0 : 1]);
	if (!pid) {
		CHECK(recv(fds[0], address, sizeof(address), MSG_WAITALL) == sizeof(address));
		run_sender(address, n_conns, fds[0]);
		_exit(0);
	}
	*ret_to = fds[1];
	return pid;
}

static pid_t run_ours(unsigned n_conns, double *ret_began_s)
{
	struct net_listener *listener;
	char address[ADDRESS_BYTES] = "";
	struct end receiver;
	struct error e;
	int to;
	pid_t pid = fork_sender(n_conns, &to);

	end_init(&receiver, n_conns, false);
	CHECK(net_listen(receiver.env, "tcp:127.0.0.1:0", on_accepted, &receiver, &listener, &e) == 0);
	snprintf(address, sizeof(address), "%s", net_listener_address(listener));
	*ret_began_s = now_s();
	CHECK(write(to, address, sizeof(address)) == sizeof(address));
	CHECK(loop_run(receiver.env->loop) == 0);
	CHECK(read(to, &(char){ 0 }, 1) == 1); /* it has completed everything, too */
	close(to);
	net_listener_close(listener);
	end_fini(&receiver);
	return pid;
}

/* ---- a plain loop ---- */

struct plain {
	int fds[2];
	uint64_t bytes;
	bool sums;
	uint32_t crc;
};

static void *plain_send(void *arg)
{
	struct plain *p = arg;
	uint8_t *span = new_span(TRANSFER_BYTES);
	uint32_t crc = 0;

	for (uint64_t at = 0; at < p->bytes; at += BLOCK_BYTES) {
		uint8_t *block = span + at % TRANSFER_BYTES;

		if (p->sums)
			crc = crc32c(crc, block, BLOCK_BYTES);
		for (size_t sent = 0; sent < BLOCK_BYTES;) {
			ssize_t n = send(p->fds[0], block + sent, BLOCK_BYTES - sent, MSG_NOSIGNAL);

			CHECK(n > 0);
			sent += (size_t)n;
		}
	}
	free(span);
	p->crc += crc;
	return NULL;
}

static void *plain_receive(void *arg)
{
	struct plain *p = arg;
	uint8_t *span = new_span(TRANSFER_BYTES);
	uint32_t crc = 0;

	for (uint64_t at = 0; at < p->bytes; at += BLOCK_BYTES) {
		uint8_t *block = span + at % TRANSFER_BYTES;

		CHECK(recv(p->fds[1], block, BLOCK_BYTES, MSG_WAITALL) == BLOCK_BYTES);
		if (p->sums)
			crc = crc32c(crc, block, BLOCK_BYTES);
	}
	free(span);
	CHECK(!p->sums || crc);
	return NULL;
}

static void tcp_pair(int fds[2])
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	CHECK(bind(listener, (struct sockaddr *)&address, len) == 0 && listen(listener, 1) == 0);
	CHECK(getsockname(listener, (struct sockaddr *)&address, &len) == 0);
	fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(connect(fds[0], (struct sockaddr *)&address, len) == 0);
	fds[1] = accept(listener, NULL, NULL);
	CHECK(fds[1] >= 0);
	close(listener);
}

static void run_plain_side(struct plain *all, unsigned n_conns, bool sends)
{
	bed_parallel(sends ? plain_send : plain_receive, all, sizeof(*all), n_conns);
}

static pid_t run_plain(unsigned n_conns, bool sums, double *ret_began_s)
{
	struct plain all[CONNS_MAX];

	for (unsigned c = 0; c < n_conns; c++) {
		all[c] = (struct plain){ .bytes = RUN_BYTES / n_conns, .sums = sums };
		tcp_pair(all[c].fds);
	}
	*ret_began_s = now_s();
	pid_t pid = fork();
	CHECK(pid >= 0);
	run_plain_side(all, n_conns, !pid);
	if (!pid)
		_exit(0);
	for (unsigned c = 0; c < n_conns; c++) {
		close(all[c].fds[0]);
		close(all[c].fds[1]);
	}
	return pid;
}

/* ---- both ---- */

enum kind { PLAIN, PLAIN_CRC, OURS, KINDS };
static const char *const kind_names[KINDS] = { "plain socket loop", "plain socket loop with CRC32C", "our bulk" };

static struct result measure(enum kind kind, unsigned n_conns)
{
	struct rusage before, after, sender;
	double began_s;

	getrusage(RUSAGE_SELF, &before);
	pid_t pid = kind == OURS ? run_ours(n_conns, &began_s) : run_plain(n_conns, kind == PLAIN_CRC, &began_s);
	double took_s = now_s() - began_s, gib = (double)RUN_BYTES / (double)GIB;
	getrusage(RUSAGE_SELF, &after);
	CHECK(wait4(pid, NULL, 0, &sender) == pid);
	return (struct result){ (double)RUN_BYTES / 1e9 / took_s, cpu_of(&sender) / gib,
				(cpu_of(&after) - cpu_of(&before)) / gib };
}

static int by_speed(const void *a, const void *b)
{
	const struct result *x = a, *y = b;

	return (x->gb_per_s > y->gb_per_s) - (x->gb_per_s < y->gb_per_s);
}

static void bench(unsigned n_conns)
{
	struct result results[KINDS][ROUNDS];
	char what[128];

	for (int round = 0; round < ROUNDS; round++)
		for (int kind = 0; kind < KINDS; kind++)
			results[kind][round] = measure((enum kind)kind, n_conns);
	for (int kind = 0; kind < KINDS; kind++)
		qsort(results[kind], ROUNDS, sizeof(results[kind][0]), by_speed);
	const struct result *plain = &results[PLAIN][ROUNDS - 1];
	for (int kind = PLAIN_CRC; kind < KINDS; kind++) {
		const struct result *best = &results[kind][ROUNDS - 1];

		snprintf(what, sizeof(what), "%s, %u connection%s", kind_names[kind], n_conns, n_conns > 1 ? "s" : "");
		bed_rate(what, "GB/s", best->gb_per_s, plain->gb_per_s);
		bed_time("  its sender", "s/GiB", best->sender_s_per_gib, plain->sender_s_per_gib);
		bed_time("  its receiver", "s/GiB", best->receiver_s_per_gib, plain->receiver_s_per_gib);
	}
}

int main(void)
{
	printf("%u MiB a run, transfers of %u MiB in chunks of 1 MiB; best of %d; bound: plain socket loop\n",
	       (unsigned)(RUN_BYTES >> 20), TRANSFER_BYTES >> 20, ROUNDS);
	bed_head();
	bench(1);
	bench(CONNS_MAX);
	return 0;
}
