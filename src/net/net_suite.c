/* Control frames, and the life of connections. Bulk: bulk_suite.c. */
#include "net/net_suite.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "net/bed_suite.h"
#include "net/bulk_suite.h"
#include "net/greet_suite.h"

#define BODY_AT	   12 /* offset of body_bytes in a head */
#define PAYLOAD_AT 44
#define MAJOR_AT   4

/* ---- whole frames in, whole frames out ---- */

static void frames_of_no_bytes_and_of_a_mebibyte_arrive(void **state)
{
	struct bed *bed = *state;
	struct side client = { 0 };
	_cleanup_(cleanup_mem) uint8_t *body = malloc(FRAME_BODY_MAX);

	for (size_t i = 0; i < FRAME_BODY_MAX; i++)
		body[i] = (uint8_t)(i * 7 + i / 251);
	side_connect(bed, &client);
	assert_int_equal(side_send(&client, 1, NULL, 0), 0); /* before it is up */
	assert_int_equal(side_send(&client, 2, body, FRAME_BODY_MAX), 0);
	drive(bed, bed->n_accepted == 1 && bed->accepted[0].n_frames == 2);

	struct side *server = &bed->accepted[0];
	assert_true(client.is_up && server->in_order);
	assert_int_equal(server->head.type, TYPE_DATA);
	assert_int_equal(server->body.len, FRAME_BODY_MAX);
	assert_memory_equal(server->body.ptr, body, FRAME_BODY_MAX);

	assert_int_equal(side_send(server, 9, body, FRAME_BODY_MAX), 0);
	assert_int_equal(side_send(server, 10, NULL, 0), 0);
	drive(bed, client.n_frames == 2);
	assert_true(client.in_order && client.body_bytes == FRAME_BODY_MAX && client.body.len == 0);
	side_close(&client);
	buf_fini(&client.body);
}

static void many_frames_arrive_in_order_both_ways(void **state)
{
	enum { FRAMES = 3000 };
	struct bed *bed = *state;
	struct side client = { 0 };
	uint8_t body[2000] = { 5 };
	uint64_t bytes = 0;

	side_connect(bed, &client);
	drive(bed, client.is_up && bed->n_accepted == 1);
	struct side *server = &bed->accepted[0];
	for (unsigned i = 0; i < FRAMES; i++) {
		size_t len = i * 37 % sizeof(body);

		assert_int_equal(side_send(&client, i, body, len), 0);
		assert_int_equal(side_send(server, i, body, len), 0);
		bytes += len;
		if (i % 100 == 0)
			bed_turn(bed);
	}
	drive(bed, client.n_frames == FRAMES && server->n_frames == FRAMES);
	assert_true(client.in_order && server->in_order);
	assert_true(client.body_bytes == bytes && server->body_bytes == bytes);
	assert_true(side_received(server) == bytes + FRAMES * FRAME_HEAD_BYTES);
	side_close(&client);
	buf_fini(&client.body);
}

static void a_frame_may_be_split_at_every_byte(void **state)
{
	struct bed *bed = *state;
	const struct frame_head head = { .type = TYPE_DATA, .request = 3 };
	const char *words = "thirty-seven bytes of body, or so....";
	uint8_t frame[FRAME_HEAD_BYTES + 64];
	size_t len = raw_frame(frame, &head, words, strlen(words));
	struct raw raw;
	struct side *side = raw_connect(bed, &raw);

	for (size_t split = 1; split < len; split++) {
		uint64_t before = side_received(side);

		raw_write(&raw, frame, split);
		drive(bed, side_received(side) == before + split);
		assert_int_equal(side->n_frames, split - 1);
		raw_write(&raw, frame + split, len - split);
		drive(bed, side->n_frames == split);
		assert_memory_equal(side->body.ptr, words, strlen(words));
	}
	raw_close(&raw);
}

static void frames_that_are_read_ahead_arrive_whole_and_in_order(void **state)
{
	static const size_t lens[] = { 0, 10, 4000, 4032, 4095, 4096, 4097, 20000 };
	enum { FRAMES = 64, PIECE = 3001 };
	static uint8_t stream[FRAMES * (FRAME_HEAD_BYTES + 20000)], body[20000];
	struct bed *bed = *state;
	uint64_t bytes = 0;
	size_t end = 0;
	struct raw raw;
	struct side *side = raw_connect(bed, &raw);

	net_refuse_bulk(side->conn);
	net_read_ahead(side->conn);
	for (unsigned i = 0; i < FRAMES; i++) {
		const struct frame_head head = { .type = TYPE_DATA, .request = i };
		size_t len = lens[i * 5 % ARRAY_LEN(lens)];

		memset(body, (int)i, len);
		end += raw_frame(stream + end, &head, body, len);
		bytes += len;
	}
	for (size_t at = 0; at < end; at += PIECE) {
		size_t n = end - at < PIECE ? end - at : PIECE;

		raw_write(&raw, stream + at, n);
		if (at % 2)
			drive(bed, side_received(side) == at + n);
	}
	drive(bed, side->n_frames == FRAMES);
	assert_true(side->in_order && side->body_bytes == bytes);
	assert_true(side_received(side) == end);
	assert_memory_equal(side->body.ptr, body, side->head.body_bytes);
	raw_write(&raw, stream, FRAME_HEAD_BYTES - 1);
	raw_close(&raw);
	drive(bed, side->n_down);
	assert_non_null(strstr(side->words, "in the middle of a frame"));
}

static void hearing_a_peer_is_noted(void **state)
{
	struct bed *bed = *state;
	struct side client = { 0 };

	side_connect(bed, &client);
	drive(bed, bed->n_accepted == 1);
	struct side *server = &bed->accepted[0];
	uint64_t before_ns = net_last_heard_ns(server->conn), sent_ns = env_now(bed->suite->client);

	assert_true(before_ns <= sent_ns);
	assert_int_equal(side_send(&client, 1, NULL, 0), 0);
	drive(bed, server->n_frames == 1);
	assert_true(net_last_heard_ns(server->conn) >= sent_ns);
	side_close(&client);
}

/* ---- garbage ---- */

struct garbage {
	const char *name;
	size_t at; /* a field of the head to change; its CRC is mended */
	uint32_t value;
	size_t flip_at; /* or a byte to flip; nothing is mended */
	int reason;
	const char *words;
};

static void garbage_costs_the_connection_and_no_frame_is_seen(void **state)
{
	static const struct garbage all[] = {
		{ "magic", .at = 0, .value = 0x20544547, .reason = -EPROTO, .words = "not a Forebay frame" },
		{ "head", .flip_at = 17, .reason = -EPROTO, .words = "damaged frame head" },
		{ "body", .flip_at = FRAME_HEAD_BYTES + 3, .reason = -EBADMSG, .words = "damaged body" },
		{ "oversize", .at = BODY_AT, .value = FRAME_BODY_MAX + 1, .reason = -EPROTO, .words = "1048577 bytes" },
		{ "oversize", .at = BODY_AT, .value = UINT32_MAX, .reason = -EPROTO, .words = "4294967295 bytes" },
		{ "chunk", .at = PAYLOAD_AT, .value = FRAME_CHUNK_MAX + 1, .reason = -EPROTO,
		  .words = "1048577 bytes" },
		{ "both", .at = PAYLOAD_AT, .value = 5, .reason = -EPROTO, .words = "both a body and a chunk" },
	};
	const struct frame_head head = { .type = TYPE_DATA, .request = 3 };
	struct bed *bed = *state;

	for (size_t i = 0; i < ARRAY_LEN(all); i++) {
		uint8_t frame[FRAME_HEAD_BYTES + 8];
		size_t len = raw_frame(frame, &head, "whatever", 8);
		struct raw raw;
		struct side *side = raw_connect(bed, &raw);

		raw_write(&raw, frame, len); /* a good one first: it is seen */
		if (all[i].flip_at)
			frame[all[i].flip_at] ^= 0x10;
		else
			raw_forge(frame, all[i].at, all[i].value, 4);
		raw_write(&raw, frame, len);
		drive(bed, side->n_down);
		assert_int_equal(side->n_frames, 1);
		assert_int_equal(side->reason, all[i].reason);
		assert_non_null(strstr(side->words, all[i].words));
		side_close(side);
		drive(bed, raw_ended(&raw));
		raw_close(&raw);
	}
}

static void a_foreign_major_is_refused_and_shown_ours(void **state)
{
	const struct frame_head head = { .type = TYPE_HELLO, .request = 1234 };
	struct bed *bed = *state;
	uint8_t frame[FRAME_HEAD_BYTES];
	struct frame_head answer;
	struct raw raw;
	struct side *side = raw_connect(bed, &raw);

	raw_frame(frame, &head, NULL, 0);
	raw_forge(frame, MAJOR_AT, FRAME_MAJOR + 1, 1);
	raw_write(&raw, frame, sizeof(frame));
	drive(bed, side->n_down);
	assert_int_equal(side->reason, -ERR_EVERSION);
	assert_non_null(strstr(side->words, "2.0"));
	assert_non_null(strstr(side->words, "1 to 1"));
	assert_int_equal(side->n_frames, 0);
	side_close(side);

	raw_read(&raw, frame, sizeof(frame));
	assert_int_equal(frame_decode(frame, &answer, NULL), 0);
	assert_int_equal(answer.type, TYPE_HELLO);
	assert_int_equal(answer.flags, FRAME_REPLY | FRAME_FAILED);
	assert_true(answer.request == 1234);
	drive(bed, raw_ended(&raw));
	raw_close(&raw);
}

static void a_foreign_reply_is_not_answered(void **state)
{
	const struct frame_head head = { .type = TYPE_HELLO, .flags = FRAME_REPLY, .request = 1234 };
	struct bed *bed = *state;
	uint8_t frame[FRAME_HEAD_BYTES];
	struct raw raw;
	struct side *side = raw_connect(bed, &raw);

	raw_frame(frame, &head, NULL, 0);
	raw_forge(frame, MAJOR_AT, FRAME_MAJOR + 1, 1);
	raw_write(&raw, frame, sizeof(frame));
	drive(bed, side->n_down);
	assert_int_equal(side->reason, -ERR_EVERSION);
	side_close(side);
	drive(bed, raw_ended(&raw)); /* without a byte */
	raw_close(&raw);
}

/* ---- back-pressure ---- */

static void a_full_queue_is_refused_and_recovers(void **state)
{
	struct bed *bed = *state;
	_cleanup_(cleanup_mem) uint8_t *body = calloc(1, FRAME_BODY_MAX);
	_cleanup_(cleanup_mem) uint8_t *sink = malloc(FRAME_BODY_MAX);
	struct raw raw;
	struct side *side = raw_connect(bed, &raw); /* reads nothing for now */
	size_t queued = 0;
	int r;

	while ((r = side_send(side, queued, body, FRAME_BODY_MAX)) == 0)
		queued++;
	assert_int_equal(r, -ENOBUFS);
	assert_in_range(queued, NET_SEND_QUEUE_MAX / MIB - 2, NET_SEND_QUEUE_MAX / MIB);
	assert_int_equal(side_send(side, queued, body, FRAME_BODY_MAX), -ENOBUFS);

	for (size_t i = 0; i < queued; i++) { /* in order and whole, though some were refused */
		uint8_t raw_head[FRAME_HEAD_BYTES];
		struct frame_head head;

		raw_read(&raw, raw_head, sizeof(raw_head));
		assert_int_equal(frame_decode(raw_head, &head, NULL), 0);
		assert_true(head.request == i && head.body_bytes == FRAME_BODY_MAX);
		raw_read(&raw, sink, FRAME_BODY_MAX);
	}
	assert_int_equal(side_send(side, queued, body, FRAME_BODY_MAX), 0);
	raw_read(&raw, sink, FRAME_HEAD_BYTES);
	raw_read(&raw, sink, FRAME_BODY_MAX);
	assert_int_equal(side->n_down, 0);
	raw_close(&raw);
}

/* ---- the end ---- */

static void a_peer_that_hangs_up_ends_the_connection_once(void **state)
{
	struct bed *bed = *state;
	struct side client = { 0 };

	side_connect(bed, &client);
	drive(bed, client.is_up && bed->n_accepted == 1);
	side_close(&bed->accepted[0]);
	drive(bed, client.n_down);
	assert_int_equal(client.reason, -ECONNRESET);
	side_close(&client);
}

static void a_peer_that_dies_inside_a_frame_is_told_apart(void **state)
{
	const struct frame_head head = { .type = TYPE_DATA };
	struct bed *bed = *state;
	uint8_t frame[FRAME_HEAD_BYTES + 100] = { 0 };
	const size_t cuts[] = { 1, FRAME_HEAD_BYTES, FRAME_HEAD_BYTES + 99 };

	raw_frame(frame, &head, (uint8_t[100]){ 0 }, 100);
	for (size_t i = 0; i < ARRAY_LEN(cuts); i++) {
		struct raw raw;
		struct side *side = raw_connect(bed, &raw);

		raw_write(&raw, frame, cuts[i]);
		raw_close(&raw);
		drive(bed, side->n_down);
		assert_int_equal(side->reason, -ECONNRESET);
		assert_non_null(strstr(side->words, "in the middle of a frame"));
		assert_int_equal(side->n_frames, 0);
	}
}

static void nobody_there_is_told_as_an_end(void **state)
{
	struct bed *bed = *state;
	struct side client = { .bed = bed };
	struct net_events events = side_events;

	net_listener_close(bed->listener);
	bed->listener = NULL;
	events.arg = &client;
	assert_int_equal(net_connect(bed->suite->client, bed->address, &events, &client.conn), 0);
	drive(bed, client.n_down);
	assert_false(client.is_up);
	assert_true(client.reason < 0);
	assert_non_null(strstr(client.words, "cannot connect"));
	side_close(&client);
}

static void an_address_that_is_none_is_refused(void **state)
{
	struct bed *bed = *state;
	struct side client = { .bed = bed };
	struct net_events events = side_events;
	struct net_listener *listener = NULL;
	struct error e = { 0 };

	assert_int_equal(net_connect(bed->suite->client, "pigeon:7", &events, &client.conn), -EINVAL);
	assert_int_equal(net_listen(bed->suite->server, "pigeon:7", NULL, NULL, &listener, &e), -EINVAL);
	assert_null(listener);
	assert_non_null(strstr(e.text, "pigeon:7"));
}

static void last_words_arrive_before_the_end(void **state)
{
	struct bed *bed = *state;
	struct side client = { 0 };
	_cleanup_(cleanup_mem) uint8_t *body = calloc(1, FRAME_BODY_MAX);

	side_connect(bed, &client);
	drive(bed, client.is_up && bed->n_accepted == 1);
	struct side *server = &bed->accepted[0];
	for (unsigned i = 0; i < 8; i++)
		assert_int_equal(side_send(server, i, body, FRAME_BODY_MAX), 0);
	net_close_when_sent(TAKE(server->conn));
	server->closed = true;
	drive(bed, client.n_down);
	assert_true(client.n_frames == 8 && client.in_order);
	side_close(&client);
	buf_fini(&client.body);
}

static void last_words_to_a_deaf_peer_end_in_time(void **state)
{
	struct bed *bed = *state;
	_cleanup_(cleanup_mem) uint8_t *body = calloc(1, FRAME_BODY_MAX);
	struct raw raw;
	struct side *side = raw_connect(bed, &raw); /* reads nothing */
	bool gone = false;

	for (unsigned i = 0; i < 32; i++)
		assert_int_equal(side_send(side, i, body, FRAME_BODY_MAX), 0);
	net_close_when_sent(TAKE(side->conn));
	side->closed = true;
	drive(bed, gone || (gone = raw_write_fails(&raw)));
	raw_close(&raw);
}

/* ---- closing in call-backs: the bed asserts that no event follows ---- */

static void closing_in_up(void **state)
{
	struct bed *bed = *state;
	struct side client = { .close_in = CLOSE_IN_UP };

	side_connect(bed, &client);
	assert_int_equal(side_send(&client, 1, "lost", 4), 0);
	drive(bed, client.closed && bed->n_accepted == 1 && bed->accepted[0].n_down);
}

static void closing_in_frame(void **state)
{
	struct bed *bed = *state;
	struct side client = { .close_in = CLOSE_IN_FRAME };

	side_connect(bed, &client);
	drive(bed, client.is_up && bed->n_accepted == 1);
	struct side *server = &bed->accepted[0];
	for (unsigned i = 0; i < 10; i++)
		assert_int_equal(side_send(server, i, "once", 4), 0);
	drive(bed, server->n_down);
	assert_int_equal(client.n_frames, 1);
	buf_fini(&client.body);
}

static void closing_in_down(void **state)
{
	struct bed *bed = *state;
	struct side client = { .close_in = CLOSE_IN_DOWN };

	side_connect(bed, &client);
	drive(bed, client.is_up && bed->n_accepted == 1);
	side_close(&bed->accepted[0]);
	drive(bed, client.closed);
	assert_int_equal(client.n_down, 1);
}

static void closing_what_was_just_accepted_and_its_listener(void **state)
{
	struct bed *bed = *state;
	struct side client = { 0 };

	bed->refuse = bed->deaf = true;
	side_connect(bed, &client);
	drive(bed, client.n_down);
	assert_int_equal(bed->n_accepted, 1);
	assert_null(bed->listener);
	bed->n_accepted = 0;
	side_close(&client);
}

static void closing_before_it_is_up(void **state)
{
	struct bed *bed = *state;
	struct side client = { 0 };

	side_connect(bed, &client);
	side_close(&client);
	net_close(NULL);
	net_close_when_sent(NULL);
	net_listener_close(NULL);
}

static void a_connection_can_change_hands(void **state)
{
	struct bed *bed = *state;
	struct side client = { 0 }, heir = { .bed = bed, .in_order = true };
	struct net_events events = side_events;

	side_connect(bed, &client);
	assert_int_equal(side_send(&client, 1, NULL, 0), 0);
	drive(bed, bed->n_accepted == 1 && bed->accepted[0].n_frames == 1);
	events.arg = &heir;
	heir.conn = TAKE(bed->accepted[0].conn);
	bed->accepted[0].closed = true;
	net_adopt(heir.conn, &events);
	assert_int_equal(side_send(&client, 2, NULL, 0), 0);
	drive(bed, heir.n_frames == 1);
	side_close(&heir);
	side_close(&client);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, bed_open, bed_close)

int net_suite_run(const char *name, struct net_suite *suite, const struct CMUnitTest *more, size_t n_more)
{
	struct CMUnitTest control[] = {
		TEST(frames_of_no_bytes_and_of_a_mebibyte_arrive),
		TEST(many_frames_arrive_in_order_both_ways),
		TEST(a_frame_may_be_split_at_every_byte),
		TEST(frames_that_are_read_ahead_arrive_whole_and_in_order),
		TEST(hearing_a_peer_is_noted),
		TEST(garbage_costs_the_connection_and_no_frame_is_seen),
		TEST(a_foreign_major_is_refused_and_shown_ours),
		TEST(a_foreign_reply_is_not_answered),
		TEST(a_full_queue_is_refused_and_recovers),
		TEST(a_peer_that_hangs_up_ends_the_connection_once),
		TEST(a_peer_that_dies_inside_a_frame_is_told_apart),
		TEST(nobody_there_is_told_as_an_end),
		TEST(an_address_that_is_none_is_refused),
		TEST(last_words_arrive_before_the_end),
		TEST(last_words_to_a_deaf_peer_end_in_time),
		TEST(closing_in_up),
		TEST(closing_in_frame),
		TEST(closing_in_down),
		TEST(closing_what_was_just_accepted_and_its_listener),
		TEST(closing_before_it_is_up),
		TEST(a_connection_can_change_hands),
	};
	struct CMUnitTest tests[ARRAY_LEN(control) + BULK_TESTS_MAX + GREET_TESTS_MAX + NET_SUITE_MORE_MAX];
	size_t n = ARRAY_LEN(control);

	memcpy(tests, control, sizeof(control));
	n += bulk_suite_tests(tests + n);
	n += greet_suite_tests(tests + n);
	for (size_t i = 0; i < n_more && i < NET_SUITE_MORE_MAX; i++)
		tests[n++] = more[i];
	for (size_t i = 0; i < n; i++)
		tests[i].initial_state = suite;
	return _cmocka_run_group_tests(name, tests, n, NULL, NULL);
}
