/*
 * net/bed_suite.h: the test bed of the transport's suite: a listener, connections that note what happens to them, a raw peer
 * that sends any bytes it likes, and transfers with their spans. Nothing here sleeps: drive() turns the loop until a
 * condition holds, and fails the test when it does not within DRIVE_MS.
 */
#pragma once

#include "net/net.h"
#include "net/net_suite.h"

#define DRIVE_MS 30000
#define SIDES	 8
#define MIB	 (1u << 20)

enum { TYPE_HELLO = 1, TYPE_DATA = 2 };
enum close_in { CLOSE_NEVER, CLOSE_IN_UP, CLOSE_IN_FRAME, CLOSE_IN_DOWN };

struct bed;

/* One end of a connection, and what happened at it. */
struct side {
	struct bed *bed;
	struct net_conn *conn; /* NULL once closed */
	bool closed, is_up;
	unsigned n_down;
	int reason;
	char words[256];
	unsigned n_frames;
	uint64_t body_bytes;	/* of all frames */
	struct frame_head head; /* of the last frame */
	struct buf body;
	bool in_order; /* each frame's request was one more than the last one's */
	enum close_in close_in;
	bool answers_hello; /* and then turns to bulk */
	bool turns_late;    /* does not turn to bulk by itself */
};

struct bed {
	struct net_suite *suite;
	struct loop *loop;
	struct net_listener *listener;
	char address[256];
	struct side accepted[SIDES]; /* server's ends, in the order of their coming */
	unsigned n_accepted;
	bool refuse, deaf;				/* close what comes; close the listener as well */
	bool bulk;					/* accepted ends answer a HELLO and turn to bulk */
	void (*host)(void *arg, struct net_conn *conn); /* takes what comes next, once; NULL: it becomes a side */
	void *host_arg;
	struct timer tick;
	bool calling; /* a call into net is under way: no transfer may complete */
};

int bed_open(void **state);
int bed_close(void **state);
void bed_turn(struct bed *bed); /* of the loop */

#define drive(bed, condition)                                                                \
	do {                                                                                 \
		uint64_t _until_ns = env_in_ms((bed)->suite->server, DRIVE_MS);              \
		bool _holds;                                                                 \
		while (!(_holds = (condition)) && env_now((bed)->suite->server) < _until_ns) \
			bed_turn(bed);                                                       \
		_assert_true(_holds, #condition, __FILE__, __LINE__);                        \
	} while (0)

extern const struct net_events side_events; /* but for arg */
void side_connect(struct bed *bed, struct side *side);
void side_close(struct side *side);
int side_send(struct side *side, uint64_t request, const void *body, size_t len);
uint64_t side_received(const struct side *side); /* bytes */
/* A pair of bulk connections, introduced as daemons do it. */
void bed_bulk_pair(struct bed *bed, struct side *client);

/* ---- a peer without manners ---- */

struct raw {
	struct bed *bed;
	struct stream *stream;
};
struct side *raw_connect(struct bed *bed, struct raw *raw); /* the server's end */
struct side *raw_connect_bulk(struct bed *bed, struct raw *raw);
void raw_close(struct raw *raw);
void raw_write(struct raw *raw, const void *p, size_t len);
void raw_read(struct raw *raw, void *p, size_t len);
bool raw_write_fails(struct raw *raw); /* tries a byte */
bool raw_ended(struct raw *raw);       /* nothing is left to read, and nothing will come */
/* A frame with its head, in @out of at least FRAME_HEAD_BYTES + len: how long it is. */
size_t raw_frame(uint8_t *out, const struct frame_head *head, const void *body, size_t len);
void raw_forge(uint8_t raw_head[FRAME_HEAD_BYTES], size_t at, uint32_t value, size_t len); /* and a right CRC again */
/* A chunk as a sender would put it, or nearly: @crc_flip is xored into its CRC. */
void raw_chunk(struct raw *raw, uint64_t id, uint64_t offset, uint64_t whole, const void *p, uint32_t len,
	       uint32_t crc_flip);

/* ---- transfers ---- */

struct transfer {
	struct net_transfer net;
	struct done done;
	struct bed *bed;
	unsigned n_done;
	int result;
	struct side *closes; /* in done */
	uint8_t *memory;     /* span between two guards */
};
void transfer_init(struct bed *bed, struct transfer *t, uint64_t id, size_t len, uint64_t seed); /* seed 0: zeros */
void transfer_fini(struct transfer *t);								 /* checks the guards */
void transfer_expect(struct side *side, struct transfer *t);
void transfer_send(struct side *side, struct transfer *t);
void transfer_assert_equal(const struct transfer *a, const struct transfer *b); /* bytes and CRCs, both done with 0 */
