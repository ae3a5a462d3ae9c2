#include "net/bed_suite.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"

#define TICK_NS	    (NS_PER_MS / 10)
#define GUARD_BYTES 64
#define GUARD	    0xa5

/* ---- turning the loop ---- */

/* A turn polls last, and by then its tasks may have fulfilled the condition: the tick bounds how long it sleeps. */
static void ticked(struct timer *timer)
{
	struct bed *bed = container_of(timer, struct bed, tick);

	assert_int_equal(timer_arm(bed->loop, timer, env_now(bed->suite->server) + TICK_NS), 0);
}

void bed_turn(struct bed *bed)
{
	assert_int_equal(loop_turn(bed->loop), 0);
}

/* ---- ends of connections ---- */

void side_close(struct side *side)
{
	struct net_conn *conn = TAKE(side->conn);

	side->closed = true;
	side->bed->calling = true;
	net_close(conn);
	side->bed->calling = false;
}

static void side_up(void *arg)
{
	struct side *side = arg;

	assert_false(side->closed || side->is_up);
	side->is_up = true;
	if (side->close_in == CLOSE_IN_UP)
		side_close(side);
}

static void turn_to_bulk(struct side *side)
{
	if (!side->turns_late)
		assert_int_equal(net_bulk_start(side->conn), 0);
}

static void side_frame(void *arg, const struct frame_head *head, struct view body)
{
	struct side *side = arg;

	assert_false(side->closed || side->n_down);
	side->in_order = side->in_order && (!side->n_frames || head->request == side->head.request + 1);
	side->n_frames++;
	side->body_bytes += body.len;
	side->head = *head;
	side->body.len = 0;
	assert_int_equal(buf_append(&side->body, body.ptr, body.len), 0);

	if (side->close_in == CLOSE_IN_FRAME) {
		side_close(side);
		/* The body outlives the connection until this call returns. */
		assert_true(!body.len || !memcmp(side->body.ptr, body.ptr, body.len));
		return;
	}
	if (head->type == TYPE_HELLO && (head->flags & FRAME_REPLY)) {
		turn_to_bulk(side);
	} else if (head->type == TYPE_HELLO && side->answers_hello) {
		const struct frame_head answer = { .type = TYPE_HELLO, .flags = FRAME_REPLY, .request = head->request };

		assert_int_equal(net_send(side->conn, &answer, (struct view){ 0 }, NULL), 0);
		turn_to_bulk(side);
	}
}

static void side_down(void *arg, int reason, const char *words)
{
	struct side *side = arg;

	assert_false(side->closed || side->n_down);
	side->n_down++;
	side->reason = reason;
	snprintf(side->words, sizeof(side->words), "%s", words);
	assert_int_equal(side_send(side, 0, NULL, 0), -ENOTCONN);
	if (side->close_in == CLOSE_IN_DOWN)
		side_close(side);
}

const struct net_events side_events = { .up = side_up, .frame = side_frame, .down = side_down };

static struct net_events events_of(struct side *side)
{
	struct net_events events = side_events;

	events.arg = side;
	return events;
}

void side_connect(struct bed *bed, struct side *side)
{
	const struct net_events events = events_of(side);

	side->bed = bed;
	side->in_order = true;
	assert_int_equal(net_connect(bed->suite->client, bed->address, &events, &side->conn), 0);
}

int side_send(struct side *side, uint64_t request, const void *body, size_t len)
{
	const struct frame_head head = { .type = TYPE_DATA, .request = request };

	return net_send(side->conn, &head, view_of(body, len), NULL);
}

uint64_t side_received(const struct side *side)
{
	struct net_stats stats;

	net_stats(side->conn, &stats);
	return stats.received_bytes;
}

void bed_bulk_pair(struct bed *bed, struct side *client)
{
	const struct frame_head hello = { .type = TYPE_HELLO, .request = 1 };
	unsigned n = bed->n_accepted;

	bed->bulk = true;
	side_connect(bed, client);
	assert_int_equal(net_send(client->conn, &hello, (struct view){ 0 }, NULL), 0);
	drive(bed, client->n_frames == 1 && bed->n_accepted == n + 1);
}

/* ---- the bed ---- */

static void bed_accepted(void *arg, struct net_conn *conn)
{
	struct bed *bed = arg;

	if (bed->deaf) {
		net_listener_close(bed->listener);
		bed->listener = NULL;
	}
	if (bed->refuse) {
		net_close(conn);
		bed->n_accepted++;
		return;
	}
	if (bed->host) {
		TAKE(bed->host)(bed->host_arg, conn);
		return;
	}
	assert_true(bed->n_accepted < SIDES);
	struct side *side = &bed->accepted[bed->n_accepted++];
	const struct net_events events = events_of(side);

	*side = (struct side){ .bed = bed, .conn = conn, .is_up = true, .in_order = true, .answers_hello = bed->bulk };
	net_adopt(conn, &events);
}

static struct net_suite *suite_of(void **state)
{
	return *state;
}

int bed_open(void **state)
{
	struct net_suite *suite = suite_of(state);
	struct bed *bed = calloc(1, sizeof(*bed));
	struct error e;

	assert_non_null(bed);
	suite->open(suite);
	bed->suite = suite;
	bed->loop = suite->server->loop;
	bed->tick.fn = ticked;
	ticked(&bed->tick);
	assert_ptr_equal(bed->loop, suite->client->loop);
	int r = net_listen(suite->server, suite->address, bed_accepted, bed, &bed->listener, &e);
	if (r)
		fail_msg("%s", e.text);
	snprintf(bed->address, sizeof(bed->address), "%s", net_listener_address(bed->listener));
	*state = bed;
	return 0;
}

int bed_close(void **state)
{
	struct bed *bed = *state;

	for (unsigned i = 0; i < SIDES; i++) {
		if (bed->accepted[i].conn)
			side_close(&bed->accepted[i]);
		buf_fini(&bed->accepted[i].body);
	}
	net_listener_close(bed->listener);
	timer_disarm(bed->loop, &bed->tick);
	bed->suite->close(bed->suite);
	*state = bed->suite;
	free(bed);
	return 0;
}

/* ---- a peer without manners ---- */

static void raw_ready(void *arg)
{
}

struct side *raw_connect(struct bed *bed, struct raw *raw)
{
	const struct stream_events ready = { .ready = raw_ready };
	unsigned n = bed->n_accepted;

	raw->bed = bed;
	assert_int_equal(bed->suite->client->ops->connect(bed->suite->client, bed->address, &ready, &raw->stream), 0);
	bool hosted = bed->host;
	drive(bed, bed->suite->client->ops->stream_status(raw->stream) == 0 &&
			   (hosted ? !bed->host : bed->n_accepted == n + 1));
	return hosted ? NULL : &bed->accepted[n];
}

struct side *raw_connect_bulk(struct bed *bed, struct raw *raw)
{
	const struct frame_head hello = { .type = TYPE_HELLO, .request = 7 };
	uint8_t frame[FRAME_HEAD_BYTES];

	bed->bulk = true;
	struct side *side = raw_connect(bed, raw);
	raw_write(raw, frame, raw_frame(frame, &hello, NULL, 0));
	raw_read(raw, frame, sizeof(frame));
	return side;
}

void raw_close(struct raw *raw)
{
	raw->bed->suite->client->ops->close(raw->stream);
	raw->stream = NULL;
}

/* Moves what goes; true once all has. Only an answer of -EAGAIN promises an event. */
static bool raw_move(struct raw *raw, bool write, struct iovec *left)
{
	const struct env_ops *ops = raw->bed->suite->client->ops;

	while (left->iov_len) {
		ssize_t n = write ? ops->send(raw->stream, left, 1, NULL) :
				    ops->recv(raw->stream, left->iov_base, left->iov_len);

		if (n == -EAGAIN)
			return false;
		assert_true(n > 0);
		left->iov_base = (uint8_t *)left->iov_base + n;
		left->iov_len -= (size_t)n;
	}
	return true;
}

void raw_write(struct raw *raw, const void *p, size_t len)
{
	struct iovec left = { (void *)p, len };

	drive(raw->bed, raw_move(raw, true, &left));
}

void raw_read(struct raw *raw, void *p, size_t len)
{
	struct iovec left = { p, len };

	drive(raw->bed, raw_move(raw, false, &left));
}

bool raw_write_fails(struct raw *raw)
{
	struct iovec byte = { "", 1 };
	ssize_t n = raw->bed->suite->client->ops->send(raw->stream, &byte, 1, NULL);

	return n < 0 && n != -EAGAIN;
}

bool raw_ended(struct raw *raw)
{
	uint8_t byte;
	ssize_t n = raw->bed->suite->client->ops->recv(raw->stream, &byte, 1);

	assert_true(n <= 0);
	return n != -EAGAIN;
}

size_t raw_frame(uint8_t *out, const struct frame_head *head, const void *body, size_t len)
{
	struct frame_head full = *head;

	full.major = FRAME_MAJOR;
	full.body_bytes = (uint32_t)len;
	full.body_crc = crc32c(0, body, len);
	frame_encode(&full, out);
	if (len)
		memcpy(out + FRAME_HEAD_BYTES, body, len);
	return FRAME_HEAD_BYTES + len;
}

void raw_forge(uint8_t raw_head[FRAME_HEAD_BYTES], size_t at, uint32_t value, size_t len)
{
	for (size_t i = 0; i < len; i++)
		raw_head[at + i] = (uint8_t)(value >> (8 * i));
	store_le32(raw_head + 60, crc32c(0, raw_head, 60));
}

void raw_chunk(struct raw *raw, uint64_t id, uint64_t offset, uint64_t whole, const void *p, uint32_t len,
	       uint32_t crc_flip)
{
	const struct frame_head head = { .major = FRAME_MAJOR,
					 .request = id,
					 .group = offset,
					 .epoch = whole,
					 .payload_bytes = len };
	uint8_t bytes[FRAME_HEAD_BYTES];

	frame_encode(&head, bytes);
	raw_write(raw, bytes, sizeof(bytes));
	raw_write(raw, p, len);
	store_le32(bytes, crc32c(0, p, len) ^ crc_flip);
	raw_write(raw, bytes, FRAME_CRC_BYTES);
}

/* ---- transfers ---- */

static void transfer_done(struct done *done, int result)
{
	struct transfer *t = container_of(done, struct transfer, done);

	assert_false(t->bed->calling);
	t->n_done++;
	t->result = result;
	if (t->closes)
		side_close(t->closes);
}

void transfer_init(struct bed *bed, struct transfer *t, uint64_t id, size_t len, uint64_t seed)
{
	*t = (struct transfer){ .bed = bed, .done.fn = transfer_done };
	t->memory = malloc(len + 2 * GUARD_BYTES);
	assert_non_null(t->memory);
	memset(t->memory, GUARD, len + 2 * GUARD_BYTES);
	t->net = (struct net_transfer){ .id = id, .span = t->memory + GUARD_BYTES, .len = len, .done = &t->done };
	for (size_t i = 0; i < len; i++) {
		seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
		t->net.span[i] = (uint8_t)seed;
	}
}

void transfer_fini(struct transfer *t)
{
	for (size_t i = 0; i < GUARD_BYTES; i++) {
		assert_int_equal(t->memory[i], GUARD);
		assert_int_equal(t->net.span[t->net.len + i], GUARD);
	}
	free(t->memory);
}

void transfer_expect(struct side *side, struct transfer *t)
{
	side->bed->calling = true;
	assert_int_equal(net_expect(side->conn, &t->net), 0);
	side->bed->calling = false;
}

void transfer_send(struct side *side, struct transfer *t)
{
	side->bed->calling = true;
	assert_int_equal(net_bulk_send(side->conn, &t->net), 0);
	side->bed->calling = false;
}

void transfer_assert_equal(const struct transfer *a, const struct transfer *b)
{
	assert_int_equal(a->n_done, 1);
	assert_int_equal(b->n_done, 1);
	assert_int_equal(a->result, 0);
	assert_int_equal(b->result, 0);
	assert_true(a->net.len == b->net.len && a->net.moved == a->net.len && b->net.moved == b->net.len);
	assert_true(memcmp(a->net.span, b->net.span, a->net.len) == 0);
	assert_int_equal(a->net.crc, crc32c(0, a->net.span, a->net.len));
	assert_int_equal(b->net.crc, a->net.crc);
}
