/*
 * bench/control.c: a control frame there and back between two daemons' worth of process while bulk goes from one to the other as
 * fast as it can: median and 99th of 100. The bound is an echo of 64 bytes over a bare TCP connection between a thread of
 * each process, under the same load. What the load achieves meanwhile is shown, too.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "bed.h"
#include "net/net.h"

#define TRANSFER_BYTES (8u << 20)
#define IN_FLIGHT      4u
#define ECHOES	       4000u
#define WARM	       100u
#define ECHO_BYTES     64u
#define TYPE_ECHO      1
#define TYPE_BULK      2
#define HEAR_BYTES_MAX 64
#define PAUSE_NS       500000 /* between echoes: they are to meet the load, not to be one */

enum phase { FRAMES, BARE, PHASES };

struct piece {
	struct net_transfer transfer;
	struct done done;
	struct side *side;
};

/* The sender, who counts, or the receiver, who echoes: a process each. */
struct side {
	struct env *env;
	bool sends, over;
	struct net_conn *control, *bulk;
	unsigned n_met;
	uint8_t *span;
	struct piece pieces[IN_FLIGHT];
	uint64_t next_id, moved;
	double began_s, asked_s;
	unsigned n_echoes;
	struct timer pause;
	double took_us[PHASES][ECHOES];
	double gb_per_s[PHASES];
	int bare; /* socket */
};

static struct side side;

/* ---- bulk --------------------------------------------------------------------------------------------------------------- */

static void start_piece(struct piece *piece);

static void piece_done(struct done *done, int result)
{
	struct piece *piece = container_of(done, struct piece, done);

	if (side.over || result)
		return;
	side.moved += TRANSFER_BYTES;
	start_piece(piece);
}

/* Both sides count ids alike: transfers complete in order. */
static void start_piece(struct piece *piece)
{
	piece->done.fn = piece_done;
	piece->transfer = (struct net_transfer){ .id = side.next_id++,
						 .span = side.span,
						 .len = TRANSFER_BYTES,
						 .done = &piece->done };
	int r = side.sends ? net_bulk_send(side.bulk, &piece->transfer) : net_expect(side.bulk, &piece->transfer);
	CHECK(!r || side.over || r == -ENOTCONN);
}

static void start_bulk(struct net_conn *conn)
{
	side.bulk = conn;
	side.span = bed_memory(TRANSFER_BYTES, 1);
	CHECK(net_bulk_start(conn) == 0);
	for (unsigned i = 0; i < IN_FLIGHT; i++)
		start_piece(&side.pieces[i]);
}

/* ---- echoes ------------------------------------------------------------------------------------------------------------- */

static void ask(void)
{
	const struct frame_head head = { .type = TYPE_ECHO };

	side.asked_s = now_s();
	CHECK(net_send(side.control, &head, (struct view){ 0 }, NULL) == 0);
}

static void ask_again(struct timer *timer)
{
	ask();
}

static void end_phase(enum phase phase)
{
	side.gb_per_s[phase] = (double)side.moved / 1e9 / (now_s() - side.began_s);
}

static void on_echo(void)
{
	if (side.n_echoes >= WARM)
		side.took_us[FRAMES][side.n_echoes - WARM] = 1e6 * (now_s() - side.asked_s);
	if (++side.n_echoes < WARM + ECHOES) {
		side.pause.fn = ask_again;
		CHECK(timer_arm(side.env->loop, &side.pause, loop_now(side.env->loop) + PAUSE_NS) == 0);
		return;
	}
	end_phase(FRAMES);
	loop_stop(side.env->loop);
}

static void on_frame(void *arg, const struct frame_head *head, struct view body)
{
	struct frame_head answer = { .type = head->type, .flags = FRAME_REPLY };
	struct net_conn *conn = arg ? *(struct net_conn **)arg : NULL;

	CHECK(conn);
	if (!side.sends)
		CHECK(net_send(conn, &answer, (struct view){ 0 }, NULL) == 0);
	if (head->type == TYPE_BULK)
		start_bulk(conn);
	else if (side.sends)
		on_echo();
}

static void on_up(void *arg)
{
	struct net_conn **conn = arg;
	const struct frame_head hello = { .type = conn == &side.bulk ? TYPE_BULK : TYPE_ECHO };

	if (conn == &side.control)
		ask();
	else
		CHECK(net_send(*conn, &hello, (struct view){ 0 }, NULL) == 0);
}

static void on_down(void *arg, int reason, const char *words)
{
	CHECK(!side.sends);
	side.over = true;
	loop_stop(side.env->loop);
}

/* ---- the receiver ------------------------------------------------------------------------------------------------------- */

static void on_accepted(void *arg, struct net_conn *conn)
{
	static struct net_conn *met[2];
	const struct net_events events = { .frame = on_frame, .down = on_down, .arg = &met[side.n_met] };

	CHECK(side.n_met < ARRAY_LEN(met));
	met[side.n_met++] = conn;
	net_adopt(conn, &events);
}

static void *echo_bare(void *arg)
{
	uint8_t message[ECHO_BYTES];

	while (recv(side.bare, message, sizeof(message), MSG_WAITALL) == sizeof(message))
		CHECK(send(side.bare, message, sizeof(message), MSG_NOSIGNAL) == sizeof(message));
	return NULL;
}

static void receive(int tell)
{
	struct net_listener *listener;
	char address[HEAR_BYTES_MAX] = "";
	struct error e;
	pthread_t thread;

	CHECK(env_real_new("receiver", 1, &side.env, &e) == 0);
	CHECK(net_listen(side.env, "tcp:127.0.0.1:0", on_accepted, NULL, &listener, &e) == 0);
	snprintf(address, sizeof(address), "%s", net_listener_address(listener));
	CHECK(write(tell, address, sizeof(address)) == sizeof(address));
	CHECK(pthread_create(&thread, NULL, echo_bare, NULL) == 0);
	CHECK(loop_run(side.env->loop) == 0);
	_exit(0);
}

/* ---- the sender --------------------------------------------------------------------------------------------------------- */

static void *ask_bare(void *arg)
{
	uint8_t message[ECHO_BYTES] = { 0 };

	side.moved = 0;
	side.began_s = now_s();
	for (unsigned i = 0; i < WARM + ECHOES; i++) {
		nanosleep(&(struct timespec){ .tv_nsec = PAUSE_NS }, NULL);
		double began = now_s();

		CHECK(send(side.bare, message, sizeof(message), MSG_NOSIGNAL) == sizeof(message));
		CHECK(recv(side.bare, message, sizeof(message), MSG_WAITALL) == sizeof(message));
		if (i >= WARM)
			side.took_us[BARE][i - WARM] = 1e6 * (now_s() - began);
	}
	end_phase(BARE);
	loop_stop(side.env->loop);
	return NULL;
}

static void count(const char *address)
{
	const struct net_events events[] = {
		{ .up = on_up, .frame = on_frame, .down = on_down, .arg = &side.bulk },
		{ .up = on_up, .frame = on_frame, .down = on_down, .arg = &side.control }
	};
	pthread_t thread;
	struct error e;

	side.sends = true;
	CHECK(env_real_new("sender", 1, &side.env, &e) == 0);
	CHECK(net_connect(side.env, address, &events[0], &side.bulk) == 0);
	CHECK(net_connect(side.env, address, &events[1], &side.control) == 0);
	side.began_s = now_s();
	CHECK(loop_run(side.env->loop) == 0);
	CHECK(pthread_create(&thread, NULL, ask_bare, NULL) == 0);
	CHECK(loop_run(side.env->loop) == 0);
	pthread_join(thread, NULL);
}

/* ---- both --------------------------------------------------------------------------------------------------------------- */

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
	for (int i = 0; i < 2; i++)
		CHECK(setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &(int){ 1 }, sizeof(int)) == 0);
}

int main(void)
{
	char address[HEAR_BYTES_MAX];
	int tell[2], bare[2];

	CHECK(pipe(tell) == 0);
	tcp_pair(bare);
	pid_t pid = fork();
	CHECK(pid >= 0);
	side.bare = bare[!pid];
	close(bare[!!pid]);
	if (!pid)
		receive(tell[1]);
	CHECK(read(tell[0], address, sizeof(address)) == sizeof(address));
	count(address);
	printf("bulk meanwhile: %.2f GB/s under frames, %.2f GB/s under echoes\n", side.gb_per_s[FRAMES],
	       side.gb_per_s[BARE]);
	bed_head();
	bed_time("control frame there and back under bulk load, median", "us",
		 bed_quantile(side.took_us[FRAMES], ECHOES, 0.5), bed_quantile(side.took_us[BARE], ECHOES, 0.5));
	bed_time("control frame there and back under bulk load, P99", "us",
		 bed_quantile(side.took_us[FRAMES], ECHOES, 0.99), bed_quantile(side.took_us[BARE], ECHOES, 0.99));
	fflush(stdout);
	close(side.bare);
	_exit(0); /* the receiver ends when its connections do */
}
