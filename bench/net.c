/*
 * bench/net.c: bulk over loopback in chunks of 1 MiB, against a plain socket loop in the same run: GB/s, the ratio, and CPU
 * seconds per GiB of both ends together. Both walk over spans of 8 MiB. The plain loop only copies; ours also sums every byte on both sides and sends from
 * a private copy. "plain + CRC" sums on both sides, too, and shows what that alone costs here.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/hash.h"
#include "net/net.h"

#define CONNS_MAX      4
#define ROUNDS	       5 /* of each kind, alternating, so that a busy moment hits all alike; the median counts */
#define RUN_BYTES      (UINT64_C(2) << 30)
#define TRANSFER_BYTES (8u << 20)
#define BLOCK_BYTES    (1u << 20)
#define GIB	       (1024.0 * 1024 * 1024)
#define TYPE_HELLO     1

struct result {
	double gb_per_s, cpu_s_per_gib;
};

static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double cpu_s(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void *must(void *p)
{
	CHECK(p);
	return p;
}

static uint8_t *new_span(size_t len)
{
	return memset(must(malloc(len)), 0x5a, len); /* written: no page faults while it counts */
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
	const char *address;
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

static void *run_sender(void *arg)
{
	struct end *end = arg;

	for (unsigned c = 0; c < end->n_conns; c++) {
		struct link *link = &links[CONNS_MAX + c];
		const struct net_events events = events_of(link);

		link->end = end;
		CHECK(net_connect(end->env, end->address, &events, &link->conn) == 0);
		end->conns[c] = link->conn;
	}
	CHECK(loop_run(end->env->loop) == 0);
	return NULL;
}

static void run_ours(unsigned n_conns)
{
	struct end sender, receiver;
	struct net_listener *listener;
	struct error e;
	pthread_t thread;

	end_init(&receiver, n_conns, false);
	end_init(&sender, n_conns, true);
	CHECK(net_listen(receiver.env, "tcp:127.0.0.1:0", on_accepted, &receiver, &listener, &e) == 0);
	sender.address = net_listener_address(listener);
	CHECK(pthread_create(&thread, NULL, run_sender, &sender) == 0);
	CHECK(loop_run(receiver.env->loop) == 0);
	pthread_join(thread, NULL);
	net_listener_close(listener);
	end_fini(&sender);
	end_fini(&receiver);
}

/* ---- a plain loop ---- */

struct plain {
	pthread_t sender, receiver;
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

static void run_plain(unsigned n_conns, bool sums)
{
	struct plain all[CONNS_MAX];

	for (unsigned c = 0; c < n_conns; c++) {
		all[c] = (struct plain){ .bytes = RUN_BYTES / n_conns, .sums = sums };
		tcp_pair(all[c].fds);
	}
	for (unsigned c = 0; c < n_conns; c++) {
		CHECK(pthread_create(&all[c].sender, NULL, plain_send, &all[c]) == 0);
		CHECK(pthread_create(&all[c].receiver, NULL, plain_receive, &all[c]) == 0);
	}
	for (unsigned c = 0; c < n_conns; c++) {
		pthread_join(all[c].sender, NULL);
		pthread_join(all[c].receiver, NULL);
		close(all[c].fds[0]);
		close(all[c].fds[1]);
	}
}

/* ---- both ---- */

enum kind { PLAIN, PLAIN_CRC, OURS, KINDS };
static const char *const kind_names[KINDS] = { "plain", "plain + CRC", "net" };

static struct result measure(enum kind kind, unsigned n_conns)
{
	double began_s = now_s(), cpu_began_s = cpu_s();

	if (kind == OURS)
		run_ours(n_conns);
	else
		run_plain(n_conns, kind == PLAIN_CRC);
	return (struct result){ (double)RUN_BYTES / 1e9 / (now_s() - began_s),
				(cpu_s() - cpu_began_s) / ((double)RUN_BYTES / GIB) };
}

static int by_speed(const void *a, const void *b)
{
	const struct result *x = a, *y = b;

	return (x->gb_per_s > y->gb_per_s) - (x->gb_per_s < y->gb_per_s);
}

int main(void)
{
	const unsigned conns[] = { 1, CONNS_MAX };

	printf("%u MiB a run, transfers of %u MiB in chunks of 1 MiB; median of %d\n", (unsigned)(RUN_BYTES >> 20),
	       TRANSFER_BYTES >> 20, ROUNDS);
	printf("%-12s %12s %8s %10s %12s\n", "", "connections", "GB/s", "of plain", "CPU s/GiB");
	for (size_t i = 0; i < ARRAY_LEN(conns); i++) {
		struct result results[KINDS][ROUNDS];

		for (int round = 0; round < ROUNDS; round++)
			for (int kind = 0; kind < KINDS; kind++)
				results[kind][round] = measure(kind, conns[i]);
		for (int kind = 0; kind < KINDS; kind++)
			qsort(results[kind], ROUNDS, sizeof(results[kind][0]), by_speed);
		for (int kind = 0; kind < KINDS; kind++) {
			const struct result *median = &results[kind][ROUNDS / 2];

			printf("%-12s %12u %8.2f %9.0f%% %12.2f\n", kind_names[kind], conns[i], median->gb_per_s,
			       100 * median->gb_per_s / results[PLAIN][ROUNDS / 2].gb_per_s, median->cpu_s_per_gib);
		}
	}
	return 0;
}
