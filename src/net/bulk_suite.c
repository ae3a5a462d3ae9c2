#include "net/bulk_suite.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/hash.h"

static uint64_t dropped(const struct side *side)
{
	struct net_stats stats;

	net_stats(side->conn, &stats);
	return stats.dropped_chunks;
}

/* A raw peer's chunk with the right numbers and bytes for @t. */
static void raw_good_chunk(struct raw *raw, const struct transfer *t, size_t offset, uint32_t len)
{
	raw_chunk(raw, t->net.id, offset, t->net.len, t->net.span + offset, len, 0);
}

/* ---- bytes arrive ---- */

static void transfers_of_every_size_arrive(void **state)
{
	const size_t sizes[] = { 1, 2, 4095, MIB - 1, MIB, MIB + 1, 2 * MIB, 8 * MIB };
	struct bed *bed = *state;
	struct side client = { 0 };

	bed_bulk_pair(bed, &client);
	for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
		struct transfer to, from;

		transfer_init(bed, &to, 100 + i, sizes[i], 0);
		transfer_init(bed, &from, 100 + i, sizes[i], 77 + i);
		transfer_expect(&bed->accepted[0], &to);
		transfer_send(&client, &from);
		drive(bed, to.n_done && from.n_done);
		transfer_assert_equal(&to, &from);
		transfer_fini(&to);
		transfer_fini(&from);
	}
	assert_true(dropped(&bed->accepted[0]) == 0);
	side_close(&client);
}

static void many_transfers_at_once_in_both_directions_arrive(void **state)
{
	enum { EACH = 6 };
	struct bed *bed = *state;
	struct side client = { 0 };
	struct transfer to[2][EACH], from[2][EACH];

	bed_bulk_pair(bed, &client);
	struct side *ends[2] = { &client, &bed->accepted[0] };
	for (int way = 0; way < 2; way++)
		for (uint64_t i = 0; i < EACH; i++) { /* the same ids in both directions */
			size_t len = i % 2 ? 3 * MIB + 17 * i : 1 + 1000 * i;

			transfer_init(bed, &to[way][i], i, len, 0);
			transfer_init(bed, &from[way][i], i, len, 1 + 10 * way + i);
			transfer_expect(ends[way], &to[way][i]);
		}
	for (int i = EACH - 1; i >= 0; i--) {
		transfer_send(ends[1], &from[0][i]);
		transfer_send(ends[0], &from[1][i]);
	}
	for (int way = 0; way < 2; way++)
		for (int i = 0; i < EACH; i++) {
			drive(bed, to[way][i].n_done && from[way][i].n_done);
			transfer_assert_equal(&to[way][i], &from[way][i]);
			transfer_fini(&to[way][i]);
			transfer_fini(&from[way][i]);
		}
	side_close(&client);
}

/* The server's answer, and chunks right behind it, arrive before the client has said net_bulk_start(). */
static void chunks_that_come_before_the_start_wait_for_it(void **state)
{
	struct bed *bed = *state;
	struct side client = { .turns_late = true };
	struct transfer to, from;

	bed_bulk_pair(bed, &client);
	struct side *server = &bed->accepted[0];
	transfer_init(bed, &to, 5, 3 * MIB, 0);
	transfer_init(bed, &from, 5, 3 * MIB, 9);
	transfer_send(server, &from);
	drive(bed, side_received(&client) == 2 * FRAME_HEAD_BYTES); /* answer, and the first chunk's head */
	assert_int_equal(client.n_frames, 1);
	assert_int_equal(net_bulk_start(client.conn), 0);
	transfer_expect(&client, &to);
	drive(bed, to.n_done && from.n_done);
	transfer_assert_equal(&to, &from);
	transfer_fini(&to);
	transfer_fini(&from);
	side_close(&client);
}

/* What a peer wrote in arbitrary pieces is taken up wherever the control reader had stopped. */
static void a_first_chunk_in_pieces_is_taken_up(void **state)
{
	struct bed *bed = *state;
	struct side *side;
	struct raw raw;

	for (size_t pieces = 1; pieces < FRAME_HEAD_BYTES; pieces += 9) {
		const struct frame_head hello = { .type = TYPE_HELLO, .request = 1 };
		const struct frame_head chunk = { .request = 4, .epoch = 3, .payload_bytes = 3, .major = FRAME_MAJOR };
		uint8_t bytes[2 * FRAME_HEAD_BYTES], crc[4];
		struct transfer to;

		bed->bulk = false; /* the test turns the connection itself */
		side = raw_connect(bed, &raw);
		raw_frame(bytes, &hello, NULL, 0);
		frame_encode(&chunk, bytes + FRAME_HEAD_BYTES);
		raw_write(&raw, bytes, FRAME_HEAD_BYTES + pieces);
		drive(bed, side_received(side) == FRAME_HEAD_BYTES + pieces);
		assert_int_equal(net_bulk_start(side->conn), 0);
		transfer_init(bed, &to, 4, 3, 0);
		transfer_expect(side, &to);
		raw_write(&raw, bytes + FRAME_HEAD_BYTES + pieces, FRAME_HEAD_BYTES - pieces);
		raw_write(&raw, "abc", 3);
		store_le32(crc, crc32c(0, "abc", 3));
		raw_write(&raw, crc, 4);
		drive(bed, to.n_done);
		assert_int_equal(to.result, 0);
		assert_memory_equal(to.net.span, "abc", 3);
		transfer_fini(&to);
		raw_close(&raw);
		side_close(side);
	}
}

/* The last chunk's transfer ends although the sender says nothing more. */
static void a_transfer_ends_without_waiting_for_the_next_head(void **state)
{
	struct bed *bed = *state;
	struct raw raw;
	struct side *side = raw_connect_bulk(bed, &raw);
	struct transfer to, model;

	transfer_init(bed, &to, 1, 1000, 0);
	transfer_init(bed, &model, 1, 1000, 3);
	transfer_expect(side, &to);
	raw_good_chunk(&raw, &model, 0, 600);
	raw_good_chunk(&raw, &model, 600, 400);
	drive(bed, to.n_done);
	assert_int_equal(to.result, 0);
	assert_memory_equal(to.net.span, model.net.span, 1000);
	transfer_fini(&to);
	transfer_fini(&model);
	raw_close(&raw);
}

/* ---- nobody wants them ---- */

static void chunks_of_unknown_transfers_are_dropped_and_counted(void **state)
{
	struct bed *bed = *state;
	struct side client = { 0 };
	struct transfer unknown, to, from;

	bed_bulk_pair(bed, &client);
	transfer_init(bed, &unknown, 1, 3 * MIB + 5, 1);
	transfer_init(bed, &to, 2, 100, 0);
	transfer_init(bed, &from, 2, 100, 2);
	transfer_expect(&bed->accepted[0], &to);
	transfer_send(&client, &unknown);
	transfer_send(&client, &from);
	drive(bed, to.n_done && from.n_done && unknown.n_done);
	transfer_assert_equal(&to, &from);
	assert_int_equal(unknown.result, 0); /* it was sent */
	assert_true(dropped(&bed->accepted[0]) == 4);
	transfer_fini(&unknown);
	transfer_fini(&to);
	transfer_fini(&from);
	side_close(&client);
}

static void a_transfer_withdrawn_before_it_came_is_dropped(void **state)
{
	struct bed *bed = *state;
	struct side client = { 0 };
	struct transfer to, from, after_to, after_from;

	bed_bulk_pair(bed, &client);
	transfer_init(bed, &to, 1, 2 * MIB, 0);
	transfer_init(bed, &from, 1, 2 * MIB, 1);
	transfer_init(bed, &after_to, 2, 10, 0);
	transfer_init(bed, &after_from, 2, 10, 2);
	transfer_expect(&bed->accepted[0], &to);
	bed->calling = true;
	net_unexpect(&to.net);
	bed->calling = false;
	drive(bed, to.n_done);
	assert_int_equal(to.result, -ECANCELED);
	net_unexpect(&to.net); /* too late: nothing happens */

	transfer_expect(&bed->accepted[0], &after_to);
	transfer_send(&client, &from);
	transfer_send(&client, &after_from);
	drive(bed, after_to.n_done && from.n_done && after_from.n_done);
	transfer_assert_equal(&after_to, &after_from);
	assert_int_equal(to.n_done, 1);
	assert_true(dropped(&bed->accepted[0]) == 2);
	for (size_t i = 0; i < to.net.len; i++)
		assert_int_equal(to.net.span[i], 0);
	transfer_fini(&to);
	transfer_fini(&from);
	transfer_fini(&after_to);
	transfer_fini(&after_from);
	side_close(&client);
}

/* A chunk is arriving: the span may be written until done, and not after. */
static void a_transfer_withdrawn_inside_a_chunk_waits_for_that_chunk(void **state)
{
	struct bed *bed = *state;
	struct raw raw;
	struct side *side = raw_connect_bulk(bed, &raw);
	struct transfer to, model;
	uint8_t crc[4];

	transfer_init(bed, &to, 1, 3000, 0);
	transfer_init(bed, &model, 1, 3000, 5);
	transfer_expect(side, &to);
	raw_good_chunk(&raw, &model, 0, 1000);
	const struct frame_head second = { .major = FRAME_MAJOR,
					   .request = 1,
					   .group = 1000,
					   .epoch = 3000,
					   .payload_bytes = 1000 };
	uint8_t head[FRAME_HEAD_BYTES];
	frame_encode(&second, head);
	raw_write(&raw, head, sizeof(head));
	raw_write(&raw, model.net.span + 1000, 500);
	drive(bed, to.net.moved == 1000);

	bed->calling = true;
	net_unexpect(&to.net);
	bed->calling = false;
	for (int i = 0; i < 20; i++)
		bed_turn(bed);
	assert_int_equal(to.n_done, 0);
	raw_write(&raw, model.net.span + 1500, 500);
	store_le32(crc, crc32c(0, model.net.span + 1000, 1000));
	raw_write(&raw, crc, 4);
	raw_good_chunk(&raw, &model, 2000, 1000);
	drive(bed, to.n_done && dropped(side) == 1);
	assert_int_equal(to.result, -ECANCELED);
	for (size_t i = 2000; i < 3000; i++)
		assert_int_equal(to.net.span[i], 0);
	transfer_fini(&to);
	transfer_fini(&model);
	raw_close(&raw);
}

/* ---- chunks that do not fit ---- */

static void a_chunk_out_of_bounds_or_order_ends_its_transfer_only(void **state)
{
	enum { LEN = 3000 };
	static const struct {
		uint64_t offset, whole;
		uint32_t len;
	} bad[] = {
		{ 1000, LEN + 1, 1000 },	  /* another length of the whole */
		{ 1000, UINT64_MAX, 1000 },	  /* and a mad one */
		{ 0, LEN, 1000 },		  /* again */
		{ 2000, LEN, 1000 },		  /* a gap */
		{ 1000, LEN, 2001 },		  /* a byte beyond the end */
		{ 1000, LEN, MIB },		  /* far beyond it */
		{ UINT64_MAX - 500, LEN, 1000 },  /* an overflow */
		{ UINT64_MAX - 999, LEN, 1000 },  /* which wraps to 0 */
		{ UINT64_C(1) << 63, LEN, 1000 }, /* before the span */
	};
	struct bed *bed = *state;
	struct raw raw;
	struct side *side = raw_connect_bulk(bed, &raw);
	_cleanup_(cleanup_mem) uint8_t *junk = calloc(1, MIB);

	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct transfer to, model, other, other_model;

		transfer_init(bed, &to, 1 + i, LEN, 0);
		transfer_init(bed, &model, 1 + i, LEN, 4);
		transfer_init(bed, &other, 100 + i, LEN, 0);
		transfer_init(bed, &other_model, 100 + i, LEN, 5);
		transfer_expect(side, &to);
		transfer_expect(side, &other);
		raw_good_chunk(&raw, &other_model, 0, 1500);
		raw_good_chunk(&raw, &model, 0, 1000);
		raw_chunk(&raw, 1 + i, bad[i].offset, bad[i].whole, junk, bad[i].len, 0);
		raw_good_chunk(&raw, &other_model, 1500, 1500);
		drive(bed, to.n_done && other.n_done);
		assert_int_equal(to.result, -EPROTO);
		assert_int_equal(other.result, 0);
		assert_memory_equal(other.net.span, other_model.net.span, LEN);
		assert_memory_equal(to.net.span, model.net.span, 1000);
		for (size_t at = 1000; at < LEN; at++)
			assert_int_equal(to.net.span[at], 0);
		assert_true(dropped(side) == i + 1);
		assert_int_equal(side->n_down, 0);
		transfer_fini(&to);
		transfer_fini(&model);
		transfer_fini(&other);
		transfer_fini(&other_model);
	}
	raw_close(&raw);
}

static void a_damaged_chunk_ends_its_transfer_and_the_connection(void **state)
{
	struct bed *bed = *state;

	for (uint32_t last = 0; last < 2; last++) {
		struct raw raw;
		struct side *side = raw_connect_bulk(bed, &raw);
		struct transfer to, other, model;
		uint32_t len = last ? 2000 : 1000;
		uint8_t next[FRAME_HEAD_BYTES] = { 0 };

		transfer_init(bed, &to, 1, 2000, 0);
		transfer_init(bed, &other, 2, 2000, 0);
		transfer_init(bed, &model, 1, 2000, 6);
		transfer_expect(side, &to);
		transfer_expect(side, &other);
		raw_chunk(&raw, 1, 0, 2000, model.net.span, len, 1u << 9);
		if (!last) /* the mover may want the next head before it tells */
			raw_write(&raw, next, sizeof(next));
		drive(bed, to.n_done && other.n_done && side->n_down);
		assert_int_equal(to.result, -EBADMSG);
		assert_int_equal(other.result, -ECONNRESET);
		assert_int_equal(side->reason, -EBADMSG);
		assert_non_null(strstr(side->words, "transfer 1 arrived damaged"));
		transfer_fini(&to);
		transfer_fini(&other);
		transfer_fini(&model);
		raw_close(&raw);
	}
}

static void garbage_instead_of_a_chunk_costs_the_connection(void **state)
{
	const struct frame_head frames[] = { { .type = TYPE_DATA, .major = FRAME_MAJOR },
					     { .major = FRAME_MAJOR, .body_bytes = 1, .payload_bytes = 1 } };
	struct bed *bed = *state;

	for (size_t i = 0; i <= ARRAY_LEN(frames); i++) {
		struct raw raw;
		struct side *side = raw_connect_bulk(bed, &raw);
		struct transfer to;
		uint8_t bytes[FRAME_HEAD_BYTES] = { 1, 2, 3 };

		if (i < ARRAY_LEN(frames))
			frame_encode(&frames[i], bytes);
		transfer_init(bed, &to, 1, 2000, 0);
		transfer_expect(side, &to);
		raw_write(&raw, bytes, sizeof(bytes));
		drive(bed, to.n_done && side->n_down);
		assert_int_equal(to.result, -ECONNRESET);
		assert_int_equal(side->reason, -EPROTO);
		transfer_fini(&to);
		raw_close(&raw);
	}
}

/* ---- the end in the middle ---- */

static void losing_the_connection_ends_every_transfer(void **state)
{
	struct bed *bed = *state;
	struct raw raw;
	struct side *side = raw_connect_bulk(bed, &raw);
	struct transfer to, waiting, sent, queued;
	uint8_t some[FRAME_HEAD_BYTES + 700] = { 0 };
	const struct frame_head chunk = { .major = FRAME_MAJOR, .request = 1, .epoch = 2000, .payload_bytes = 1000 };

	transfer_init(bed, &to, 1, 2000, 0);
	transfer_init(bed, &waiting, 2, 2000, 0);
	transfer_init(bed, &sent, 3, 32 * MIB, 7); /* more than buffers hold, to a peer that reads nothing */
	transfer_init(bed, &queued, 4, 10, 8);
	transfer_expect(side, &to);
	transfer_expect(side, &waiting);
	transfer_send(side, &sent);
	transfer_send(side, &queued);
	frame_encode(&chunk, some);
	raw_write(&raw, some, sizeof(some)); /* breaks off inside the payload */
	raw_close(&raw);
	drive(bed, to.n_done && waiting.n_done && sent.n_done && queued.n_done && side->n_down);
	assert_int_equal(to.result, -ECONNRESET);
	assert_int_equal(waiting.result, -ECONNRESET);
	assert_int_equal(sent.result, -ECONNRESET);
	assert_int_equal(queued.result, -ECONNRESET);
	assert_int_equal(side->reason, -ECONNRESET);
	assert_true(sent.net.moved < sent.net.len);
	assert_int_equal(net_expect(side->conn, &to.net), -ENOTCONN);
	assert_int_equal(net_bulk_send(side->conn, &to.net), -ENOTCONN);
	transfer_fini(&to);
	transfer_fini(&waiting);
	transfer_fini(&sent);
	transfer_fini(&queued);
}

static void closing_ends_every_transfer_later(void **state)
{
	struct bed *bed = *state;
	struct raw raw;
	struct side *side = raw_connect_bulk(bed, &raw);
	struct transfer to, waiting, sent;
	uint8_t some[FRAME_HEAD_BYTES + 700] = { 0 };
	const struct frame_head chunk = { .major = FRAME_MAJOR, .request = 1, .epoch = 2000, .payload_bytes = 1000 };

	transfer_init(bed, &to, 1, 2000, 0);
	transfer_init(bed, &waiting, 2, 2000, 0);
	transfer_init(bed, &sent, 3, 32 * MIB, 7);
	transfer_expect(side, &to);
	transfer_expect(side, &waiting);
	transfer_send(side, &sent);
	frame_encode(&chunk, some);
	raw_write(&raw, some, sizeof(some));
	drive(bed, side_received(side) >= 2 * FRAME_HEAD_BYTES);
	side_close(side); /* transfer_done() asserts that it is not called within */
	net_unexpect(&waiting.net);
	drive(bed, to.n_done && waiting.n_done && sent.n_done);
	assert_int_equal(to.result, -ECANCELED);
	assert_int_equal(waiting.result, -ECANCELED);
	assert_int_equal(sent.result, -ECANCELED);
	transfer_fini(&to);
	transfer_fini(&waiting);
	transfer_fini(&sent);
	raw_close(&raw);
}

static void closing_in_a_completion(void **state)
{
	struct bed *bed = *state;
	struct side client = { 0 };
	struct transfer to, from, later_to, later_from;

	bed_bulk_pair(bed, &client);
	transfer_init(bed, &to, 1, MIB + 1, 0);
	transfer_init(bed, &from, 1, MIB + 1, 1);
	transfer_init(bed, &later_to, 2, 9 * MIB, 0);
	transfer_init(bed, &later_from, 2, 9 * MIB, 2);
	to.closes = &bed->accepted[0];
	transfer_expect(&bed->accepted[0], &to);
	transfer_expect(&bed->accepted[0], &later_to);
	transfer_send(&client, &from);
	transfer_send(&client, &later_from);
	drive(bed, to.n_done && from.n_done && later_to.n_done && later_from.n_done && client.n_down);
	transfer_assert_equal(&to, &from);
	assert_int_equal(later_to.result, -ECANCELED);
	transfer_fini(&to);
	transfer_fini(&from);
	transfer_fini(&later_to);
	transfer_fini(&later_from);
	side_close(&client);
}

static void transfers_beyond_the_limits_are_refused(void **state)
{
	struct bed *bed = *state;
	struct side client = { 0 };
	struct transfer t, twin;

	bed_bulk_pair(bed, &client);
	transfer_init(bed, &t, 1, 10, 0);
	transfer_init(bed, &twin, 1, 10, 0);
	t.net.len = 0;
	assert_int_equal(net_expect(client.conn, &t.net), -EINVAL);
	assert_int_equal(net_bulk_send(client.conn, &t.net), -EINVAL);
	t.net.len = (size_t)UINT32_MAX + 1;
	assert_int_equal(net_expect(client.conn, &t.net), -EINVAL);
	assert_int_equal(net_bulk_send(client.conn, &t.net), -EINVAL);
	t.net.len = 10;
	transfer_expect(&client, &t);
	assert_int_equal(net_expect(client.conn, &twin.net), -EEXIST);
	side_close(&client);
	drive(bed, t.n_done);
	assert_int_equal(twin.n_done, 0);
	transfer_fini(&t);
	transfer_fini(&twin);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, bed_open, bed_close)

size_t bulk_suite_tests(struct CMUnitTest *out)
{
	const struct CMUnitTest tests[] = {
		TEST(transfers_of_every_size_arrive),
		TEST(many_transfers_at_once_in_both_directions_arrive),
		TEST(chunks_that_come_before_the_start_wait_for_it),
		TEST(a_first_chunk_in_pieces_is_taken_up),
		TEST(a_transfer_ends_without_waiting_for_the_next_head),
		TEST(chunks_of_unknown_transfers_are_dropped_and_counted),
		TEST(a_transfer_withdrawn_before_it_came_is_dropped),
		TEST(a_transfer_withdrawn_inside_a_chunk_waits_for_that_chunk),
		TEST(a_chunk_out_of_bounds_or_order_ends_its_transfer_only),
		TEST(a_damaged_chunk_ends_its_transfer_and_the_connection),
		TEST(garbage_instead_of_a_chunk_costs_the_connection),
		TEST(losing_the_connection_ends_every_transfer),
		TEST(closing_ends_every_transfer_later),
		TEST(closing_in_a_completion),
		TEST(transfers_beyond_the_limits_are_refused),
	};

	CHECK(ARRAY_LEN(tests) <= BULK_TESTS_MAX);
	memcpy(out, tests, sizeof(tests));
	return ARRAY_LEN(tests);
}
