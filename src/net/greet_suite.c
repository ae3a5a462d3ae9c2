/*
 * Who may come in: greetings between daemons, and every way to break them, on control and on bulk connections alike.
 *
 * An *end* is a daemon's end of a connection. Against it stands another end, or a raw peer that knows the protocol, and in some tests
 * the key, and breaks one rule.
 */
#include "net/greet_suite.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"
#include "net/bed_suite.h"
#include "net/greet.h"
#include "wire/body.h"
#include "wire/message.h"

#define KEY	    "sixteen or more bytes"
#define OTHER_KEY   "another key of some bytes"
#define NOT_SETTLED 99

struct end {
	struct net_conn *conn; /* NULL once closed */
	struct greet_self self;
	struct greeting greeting;
	enum greet_kind kind; /* dialler: as what it comes */
	int result;	      /* of the greeting: NOT_SETTLED, GREET_MET, or why the peer was refused */
	struct error error;
	unsigned n_frames; /* after the greeting */
	int down;	   /* why the connection ended; 0: it has not */
};

static const enum greet_kind kinds[] = { GREET_CONTROL, GREET_BULK };

/* ---- ends ---- */

static void end_settle(struct end *end, int r)
{
	end->result = r;
	if (r == GREET_MET && end->greeting.state == GREET_KNOWN)
		assert_int_equal(greet_welcome(&end->greeting, &end->self), 0);
	if (r == GREET_MET && end->greeting.kind == GREET_BULK)
		assert_int_equal(net_bulk_start(end->conn), 0);
	if (r < 0)
		net_close_when_sent(TAKE(end->conn));
}

static void end_up(void *arg)
{
	struct end *end = arg;

	assert_int_equal(greet_dial(&end->greeting, end->greeting.env, end->conn, &end->self, end->kind, 7), 0);
}

static void end_frame(void *arg, const struct frame_head *head, struct view body)
{
	struct end *end = arg;

	if (end->result != NOT_SETTLED) {
		end->n_frames++;
		return;
	}
	int r = greet_frame(&end->greeting, &end->self, head, body, &end->error);
	if (r)
		end_settle(end, r);
}

static void end_down(void *arg, int reason, const char *words)
{
	struct end *end = arg;

	end->down = reason;
	snprintf(end->error.text, sizeof(end->error.text), "%s", words);
	net_close(TAKE(end->conn));
}

static struct greet_self self_of(const char *node, const char *key)
{
	return (struct greet_self){ .cluster = "c",
				    .node = node,
				    .generation = 3,
				    .incarnation = 5,
				    .key = view_str(key) };
}

static const struct net_events end_events = { .up = end_up, .frame = end_frame, .down = end_down };

static void end_dial(struct bed *bed, struct end *end, enum greet_kind kind, const char *key)
{
	struct net_events events = end_events;

	*end = (struct end){ .self = self_of("n1", key), .kind = kind, .result = NOT_SETTLED };
	end->greeting.env = bed->suite->client;
	events.arg = end;
	assert_int_equal(net_connect(bed->suite->client, bed->address, &events, &end->conn), 0);
}

static void end_host(void *arg, struct net_conn *conn)
{
	struct net_events events = end_events;
	struct end *end = arg;

	end->conn = conn;
	greet_accept(&end->greeting, end->greeting.env, conn);
	events.arg = end;
	net_adopt(conn, &events);
}

/* The next connection that the bed accepts is @end's. */
static void end_await(struct bed *bed, struct end *end, const char *key)
{
	*end = (struct end){ .self = self_of("n2", key), .result = NOT_SETTLED };
	end->greeting.env = bed->suite->server;
	bed->host = end_host;
	bed->host_arg = end;
}

static void end_close(struct end *end)
{
	net_close(TAKE(end->conn));
}

/* ---- a raw peer ---- */

struct words {
	struct buf hello, reply;
	struct proof_words proof;
	uint64_t request;
};

static void words_fini(struct words *words)
{
	buf_fini(&words->hello);
	buf_fini(&words->reply);
}

static struct msg_hello good_hello(enum greet_kind kind)
{
	struct msg_hello m = { .kind = (uint8_t)kind,
			       .major_min = FRAME_MAJOR,
			       .major_max = FRAME_MAJOR,
			       .cluster = view_str("c"),
			       .generation = 3,
			       .node = view_str("n1"),
			       .incarnation = 5 };

	memset(m.nonce.b, 7, sizeof(m.nonce.b));
	return m;
}

static void raw_say(struct raw *raw, unsigned type, unsigned flags, struct view body)
{
	const struct frame_head head = { .type = (uint16_t)type, .flags = flags, .request = 7 };
	uint8_t frame[FRAME_HEAD_BYTES + GREET_BODY_MAX + 1];

	assert_true(body.len <= GREET_BODY_MAX + 1);
	raw_write(raw, frame, raw_frame(frame, &head, body.ptr, body.len));
}

static struct frame_head raw_hear(struct raw *raw, struct buf *body)
{
	uint8_t bytes[FRAME_HEAD_BYTES];
	struct frame_head head;

	raw_read(raw, bytes, sizeof(bytes));
	assert_int_equal(frame_decode(bytes, &head, NULL), 0);
	body->len = 0;
	assert_int_equal(buf_append_zero(body, head.body_bytes), 0);
	if (body->len)
		raw_read(raw, body->ptr, body->len);
	return head;
}

static void raw_hello(struct raw *raw, const struct msg_hello *m, struct words *words)
{
	*words = (struct words){ 0 };
	assert_int_equal(msg_hello_encode(m, &words->hello), 0);
	raw_say(raw, MSG_HELLO, 0, view_buf(&words->hello));
	const struct frame_head head = raw_hear(raw, &words->reply);
	assert_int_equal(head.type, MSG_HELLO);
	assert_int_equal(head.flags, FRAME_REPLY);
	words->proof.hello = digest_of(words->hello.ptr, words->hello.len);
	words->proof.reply = digest_of(words->reply.ptr, words->reply.len);
}

static void raw_prove(struct raw *raw, const struct msg_prove *m)
{
	_cleanup_(buf_fini) struct buf body = { 0 };

	assert_int_equal(msg_prove_encode(m, &body), 0);
	raw_say(raw, MSG_PROVE, 0, view_buf(&body));
}

static struct msg_prove prove(const char *key, enum proof_role role, const struct words *words)
{
	struct msg_prove m;

	assert_int_equal(proof_make(view_str(key), role, &words->proof, &m.proof), 0);
	return m;
}

/* The raw peer is told why, in words with @part, and the connection ends. */
static void expect_refused(struct bed *bed, struct raw *raw, struct end *end, enum counter reason, int code,
			   const char *part)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	struct error e = { 0 };

	const struct frame_head head = raw_hear(raw, &body);
	assert_true(head.flags == (FRAME_REPLY | FRAME_FAILED));
	assert_int_equal(body_get_failure(view_buf(&body), &e), code);
	assert_non_null(strstr(e.text, part));
	drive(bed, raw_ended(raw));
	assert_int_equal(end->result, code);
	assert_int_equal(end->greeting.reason, reason);
	assert_non_null(strstr(end->error.text, part));
	raw_close(raw);
	assert_null(end->conn);
}

/* ---- who comes in ---- */

static void those_with_one_key_meet_on_both_kinds_of_connection(void **state)
{
	struct bed *bed = *state;

	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		struct end dialler, accepter;

		end_await(bed, &accepter, KEY);
		end_dial(bed, &dialler, kinds[i], KEY);
		drive(bed, dialler.result != NOT_SETTLED && accepter.result != NOT_SETTLED);
		assert_int_equal(dialler.result, GREET_MET);
		assert_int_equal(accepter.result, GREET_MET);
		assert_int_equal(accepter.greeting.kind, kinds[i]);
		assert_string_equal(accepter.greeting.peer.node, "n1");
		assert_string_equal(dialler.greeting.peer.node, "n2");
		assert_true(accepter.greeting.peer.incarnation == 5 && dialler.greeting.peer.generation == 3);
		assert_false(digest_equal(&dialler.greeting.nonce, &accepter.greeting.nonce));

		if (kinds[i] == GREET_CONTROL) { /* and now bodies may be as long as ever */
			_cleanup_(buf_fini) struct buf body = { 0 };
			const struct frame_head head = { .type = TYPE_DATA };

			assert_int_equal(buf_append_zero(&body, FRAME_BODY_MAX), 0);
			assert_int_equal(net_send(dialler.conn, &head, view_buf(&body), NULL), 0);
			assert_int_equal(net_send(accepter.conn, &head, view_buf(&body), NULL), 0);
			drive(bed, dialler.n_frames == 1 && accepter.n_frames == 1);
		}
		end_close(&dialler);
		end_close(&accepter);
	}
}

static void without_a_key_all_come_in_and_nothing_is_proven(void **state)
{
	struct bed *bed = *state;

	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		struct end dialler, accepter;

		end_await(bed, &accepter, NULL);
		end_dial(bed, &dialler, kinds[i], NULL);
		drive(bed, dialler.result == GREET_MET && accepter.result == GREET_MET);
		assert_true(bytes_are_zero(dialler.greeting.nonce.b, DIGEST_BYTES));
		end_close(&dialler);
		end_close(&accepter);
	}
}

/* ---- who does not ---- */

static void keys_that_differ_or_lack_are_refused_on_both_sides(void **state)
{
	static const struct {
		const char *dials, *accepts;
		enum counter reason;
		bool by_dialler; /* it refuses; else the accepter does, and says so */
	} all[] = {
		{ KEY, OTHER_KEY, COUNT_PEER_PROOF, false },
		{ NULL, KEY, COUNT_PEER_UNPROVEN, false },
		{ KEY, NULL, COUNT_PEER_UNPROVEN, true },
	};
	struct bed *bed = *state;

	for (size_t i = 0; i < ARRAY_LEN(all) * ARRAY_LEN(kinds); i++) {
		const typeof(all[0]) *now = &all[i / ARRAY_LEN(kinds)];
		struct end dialler, accepter;

		end_await(bed, &accepter, now->accepts);
		end_dial(bed, &dialler, kinds[i % ARRAY_LEN(kinds)], now->dials);
		drive(bed, dialler.result != NOT_SETTLED);
		assert_int_equal(dialler.result, -EACCES);
		if (now->by_dialler) {
			assert_int_equal(dialler.greeting.reason, now->reason);
		} else {
			assert_int_equal(accepter.result, -EACCES);
			assert_int_equal(accepter.greeting.reason, now->reason);
		}
		drive(bed, !accepter.conn || accepter.down);
		end_close(&accepter);
	}
}

static void what_was_said_on_another_connection_proves_nothing(void **state)
{
	struct bed *bed = *state;

	for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
		const struct msg_hello hello = good_hello(kinds[i]);
		_cleanup_(words_fini) struct words first = { 0 }, second = { 0 };
		_cleanup_(buf_fini) struct buf body = { 0 };
		struct end end, again;
		struct raw raw;

		end_await(bed, &end, KEY);
		raw_connect(bed, &raw);
		raw_hello(&raw, &hello, &first);
		const struct msg_prove proof = prove(KEY, PROOF_DIALS, &first);
		raw_prove(&raw, &proof);
		assert_int_equal(raw_hear(&raw, &body).flags, FRAME_REPLY);
		assert_int_equal(end.result, GREET_MET);
		end_close(&end);
		raw_close(&raw);

		end_await(bed, &again, KEY); /* the same words again */
		raw_connect(bed, &raw);
		raw_hello(&raw, &hello, &second);
		assert_true(view_equal(view_buf(&first.hello), view_buf(&second.hello)));
		raw_prove(&raw, &proof);
		expect_refused(bed, &raw, &again, COUNT_PEER_PROOF, -EACCES, "does not prove the key");
	}
}

/* What a proof is bound to: its role, and every byte of both greetings. */
static void a_proof_of_something_else_is_refused(void **state)
{
	enum twist { TWIST_ROLE, TWIST_KIND, TWIST_NODE, TWIST_INCARNATION, TWIST_REPLY, TWIST_NONE_AT_ALL, TWISTS };
	struct bed *bed = *state;

	for (int twist = 0; twist < TWISTS; twist++) {
		_cleanup_(words_fini) struct words words = { 0 };
		_cleanup_(buf_fini) struct buf body = { 0 };
		struct msg_hello hello = good_hello(GREET_CONTROL);
		struct end end;
		struct raw raw;

		end_await(bed, &end, KEY);
		raw_connect(bed, &raw);
		raw_hello(&raw, &hello, &words);
		hello.kind = twist == TWIST_KIND ? GREET_BULK : hello.kind;
		hello.node = twist == TWIST_NODE ? view_str("n3") : hello.node;
		hello.incarnation += twist == TWIST_INCARNATION;
		assert_int_equal(msg_hello_encode(&hello, &body), 0);
		words.proof.hello = digest_of(body.ptr, body.len);
		words.proof.reply.b[0] ^= twist == TWIST_REPLY;
		struct msg_prove proof = prove(KEY, twist == TWIST_ROLE ? PROOF_ACCEPTS : PROOF_DIALS, &words);
		if (twist == TWIST_NONE_AT_ALL)
			memset(&proof, 0, sizeof(proof));
		raw_prove(&raw, &proof);
		expect_refused(bed, &raw, &end, COUNT_PEER_PROOF, -EACCES, "does not prove the key");
	}
}

/* An accepter without the key: it answers with a nonce, and then with what it was sent, or with anything. */
static void a_dialler_believes_nobody_that_cannot_prove_either(void **state)
{
	struct bed *bed = *state;

	for (unsigned i = 0; i < 2 * ARRAY_LEN(kinds); i++) {
		bool reflects = i % 2;
		_cleanup_(buf_fini) struct buf reply = { 0 };
		const struct msg_hello_reply m = { .major = FRAME_MAJOR,
						   .cluster = view_str("c"),
						   .node = view_str("n2"),
						   .nonce = { { 9 } } };
		struct end dialler;

		end_dial(bed, &dialler, kinds[i / 2], KEY);
		drive(bed, bed->n_accepted == 1 && bed->accepted[0].n_frames == 1);
		struct side *impostor = &bed->accepted[0];
		assert_int_equal(msg_hello_reply_encode(&m, &reply), 0);
		const struct frame_head head = { .type = MSG_HELLO, .flags = FRAME_REPLY, .request = 7 };
		assert_int_equal(net_send(impostor->conn, &head, view_buf(&reply), NULL), 0);
		drive(bed, impostor->n_frames == 2);
		assert_int_equal(impostor->head.type, MSG_PROVE);

		const struct frame_head last = { .type = MSG_PROVE, .flags = FRAME_REPLY, .request = 7 };
		if (!reflects)
			memset(impostor->body.ptr, 1, impostor->body.len);
		assert_int_equal(net_send(impostor->conn, &last, view_buf(&impostor->body), NULL), 0);
		drive(bed, dialler.result != NOT_SETTLED);
		assert_int_equal(dialler.result, -EACCES);
		assert_int_equal(dialler.greeting.reason, COUNT_PEER_PROOF);
		drive(bed, impostor->n_down);
		side_close(impostor);
		buf_fini(&impostor->body);
		bed->n_accepted = 0;
	}
}

static struct view long_name(void)
{
	static uint8_t name[GREET_NODE_MAX + 1];

	memset(name, 'n', sizeof(name));
	return view_of(name, sizeof(name));
}

static void a_hello_that_is_none_is_refused_by_reason(void **state)
{
	enum flaw {
		FLAW_MAJOR,
		FLAW_OLD_MAJOR,
		FLAW_KIND,
		FLAW_CLUSTER,
		FLAW_LONG_NODE,
		FLAW_NO_NODE,
		FLAW_NO_NONCE,
		FLAW_CUT,
		FLAWS
	};
	static const struct {
		enum counter reason;
		int code;
		const char *words;
	} all[FLAWS] = {
		[FLAW_MAJOR] = { COUNT_PEER_VERSION, -ERR_EVERSION, "protocols 1 to 1, you speak 8 to 9" },
		[FLAW_OLD_MAJOR] = { COUNT_PEER_VERSION, -ERR_EVERSION, "you speak 0 to 0" },
		[FLAW_KIND] = { COUNT_PEER_HELLO, -EPROTO, "here peers are spoken to" },
		[FLAW_CLUSTER] = { COUNT_PEER_CLUSTER, -EPERM, "belongs to cluster c, you to d" },
		[FLAW_LONG_NODE] = { COUNT_PEER_NAME, -EPROTO, "name of 64 bytes" },
		[FLAW_NO_NODE] = { COUNT_PEER_NAME, -EPROTO, "name of 0 bytes" },
		[FLAW_NO_NONCE] = { COUNT_PEER_UNPROVEN, -EACCES, "brings no challenge" },
		[FLAW_CUT] = { COUNT_PEER_HELLO, -EPROTO, "cannot be read" },
	};
	struct bed *bed = *state;

	for (int flaw = 0; flaw < FLAWS; flaw++) {
		_cleanup_(buf_fini) struct buf body = { 0 };
		struct msg_hello m = good_hello(GREET_CONTROL);
		struct end end;
		struct raw raw;

		if (flaw == FLAW_MAJOR)
			m.major_min = 8, m.major_max = 9;
		if (flaw == FLAW_OLD_MAJOR)
			m.major_min = m.major_max = 0;
		m.kind = flaw == FLAW_KIND ? 0 : m.kind;
		m.cluster = flaw == FLAW_CLUSTER ? view_str("d") : m.cluster;
		m.node = flaw == FLAW_LONG_NODE ? long_name() : flaw == FLAW_NO_NODE ? view_str("") : m.node;
		if (flaw == FLAW_NO_NONCE)
			m.nonce = (struct digest){ { 0 } };
		assert_int_equal(msg_hello_encode(&m, &body), 0);
		body.len -= flaw == FLAW_CUT; /* within the nonce */

		end_await(bed, &end, KEY);
		raw_connect(bed, &raw);
		raw_say(&raw, MSG_HELLO, 0, view_buf(&body));
		expect_refused(bed, &raw, &end, all[flaw].reason, all[flaw].code, all[flaw].words);
	}
}

static void nothing_else_is_served_before_the_proof(void **state)
{
	static const struct {
		unsigned type, flags;
		bool after_hello;
	} all[] = {
		{ MSG_META, 0, false },
		{ MSG_PING, 0, false },
		{ MSG_PROVE, 0, false },
		{ MSG_HELLO, FRAME_REPLY, false },
		{ MSG_HELLO, FRAME_MORE, false },
		{ MSG_META, 0, true },
		{ MSG_PING, 0, true },
		{ MSG_HELLO, 0, true },
		{ MSG_PROVE, FRAME_MORE, true },
	};
	struct bed *bed = *state;

	for (size_t i = 0; i < ARRAY_LEN(all); i++) {
		const struct msg_hello hello = good_hello(GREET_CONTROL);
		_cleanup_(words_fini) struct words words = { 0 };
		_cleanup_(buf_fini) struct buf body = { 0 };
		struct end end;
		struct raw raw;

		end_await(bed, &end, KEY);
		raw_connect(bed, &raw);
		if (all[i].after_hello)
			raw_hello(&raw, &hello, &words);
		assert_int_equal(msg_hello_encode(&hello, &body), 0);
		raw_say(&raw, all[i].type, all[i].flags, view_buf(&body));
		expect_refused(bed, &raw, &end, COUNT_PEER_HELLO, -EPROTO, all[i].after_hello ? "a proof" : "HELLO");
	}
}

static void a_stranger_has_no_long_words(void **state)
{
	const uint8_t zeros[GREET_BODY_MAX + 1] = { 0 };
	struct bed *bed = *state;
	struct end end;
	struct raw raw;

	end_await(bed, &end, KEY);
	raw_connect(bed, &raw);
	raw_say(&raw, MSG_HELLO, 0, view_of(zeros, sizeof(zeros)));
	drive(bed, end.down);
	assert_int_equal(end.down, -EPROTO);
	assert_int_equal(end.result, NOT_SETTLED);
	assert_non_null(strstr(end.error.text, "1025 bytes, so far 1024 are allowed"));
	raw_close(&raw);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, bed_open, bed_close)

size_t greet_suite_tests(struct CMUnitTest *out)
{
	const struct CMUnitTest tests[] = {
		TEST(those_with_one_key_meet_on_both_kinds_of_connection),
		TEST(without_a_key_all_come_in_and_nothing_is_proven),
		TEST(keys_that_differ_or_lack_are_refused_on_both_sides),
		TEST(what_was_said_on_another_connection_proves_nothing),
		TEST(a_proof_of_something_else_is_refused),
		TEST(a_dialler_believes_nobody_that_cannot_prove_either),
		TEST(a_hello_that_is_none_is_refused_by_reason),
		TEST(nothing_else_is_served_before_the_proof),
		TEST(a_stranger_has_no_long_words),
	};

	static_assert(ARRAY_LEN(tests) <= GREET_TESTS_MAX, "there is room for all");
	memcpy(out, tests, sizeof(tests));
	return ARRAY_LEN(tests);
}
