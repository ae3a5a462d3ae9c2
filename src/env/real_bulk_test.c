#include "env/real_fixture.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/hash.h"
#include "env/real.h"

#define HEAD_BYTES 64

/* A bulk operation and what became of it. */
struct move {
	struct bulk_op op;
	struct done done;
	int calls, result;
	uint8_t head[HEAD_BYTES];
};

static int n_done;

static void move_done(struct done *done, int result)
{
	struct move *move = container_of(done, struct move, done);

	move->calls++;
	move->result = result;
	n_done++;
}

static void move_start(struct stream *stream, struct move *move, bool sending, uint8_t *span, size_t span_len)
{
	move->calls = 0;
	move->done.fn = move_done;
	move->op = (struct bulk_op){
		.stream = stream,
		.send = sending,
		.head = move->head,
		.head_len = HEAD_BYTES,
		.span = span,
		.span_len = span_len,
		.done = &move->done,
	};
	stream->real->env.ops->bulk(&move->op);
}

static void fill(uint8_t *p, size_t len, uint64_t seed)
{
	for (size_t i = 0; i < len; i++) {
		seed = seed * 6364136223846793005 + 1442695040888963407;
		p[i] = (uint8_t)(seed >> 56);
	}
}

static int bulk_setup(void **state)
{
	n_done = 0;
	return fixture_setup(state);
}

static uint8_t source[BULK_CHUNK_BYTES], target[BULK_CHUNK_BYTES];

/* As net/ does: first a head alone, then each span with the head of what follows. */
static void assert_span_moves(struct fixture *f, const char *address, size_t len)
{
	static struct move sends[2], receives[2];
	struct pair pair;

	n_done = 0;
	pair_open(f, address, &pair);
	fill(source, len, len);
	memset(target, 0, sizeof(target));
	fill(sends[0].head, HEAD_BYTES, 1);
	fill(sends[1].head, HEAD_BYTES, 2);
	move_start(pair.far, &receives[0], false, NULL, 0);
	move_start(pair.far, &receives[1], false, target, len);
	move_start(pair.near, &sends[0], true, source, len);
	move_start(pair.near, &sends[1], true, NULL, 0);
	assert_int_equal(n_done, 0); /* later, never from within the call */
	UNTIL(f, n_done == 4);

	for (int i = 0; i < 2; i++) {
		assert_int_equal(sends[i].calls, 1);
		assert_int_equal(sends[i].result, 0);
		assert_int_equal(receives[i].calls, 1);
		assert_int_equal(receives[i].result, 0);
		assert_memory_equal(sends[i].head, receives[i].head, HEAD_BYTES);
	}
	if (len) {
		assert_memory_equal(source, target, len);
		assert_int_equal(sends[0].op.crc, crc32c(0, source, len));
		assert_int_equal(receives[1].op.crc, crc32c(0, source, len));
	}
	if (len < sizeof(target))
		assert_int_equal(target[len], 0);
	pair_close(f, &pair);
}

static void spans_of_all_sizes_arrive_whole_between_their_heads(void **state)
{
	static const size_t sizes[] = { 0, 1, 3, 4096, 65535, 65536, 65537, 300000, BULK_CHUNK_BYTES };

	for (size_t i = 0; i < ARRAY_LEN(sizes); i++)
		assert_span_moves(*state, "tcp:127.0.0.1:0", sizes[i]);
}

static void bulk_moves_over_unix_streams_too(void **state)
{
	struct fixture *f = *state;
	char address[128];

	snprintf(address, sizeof(address), "unix:%s/s", f->dir);
	assert_span_moves(f, address, BULK_CHUNK_BYTES);
}

/* A head of its own length, which does not fit into one stage. */
static void a_long_head_moves_like_a_short_one(void **state)
{
	enum { LEN = 200000 };
	struct fixture *f = *state;
	static struct move sending, receiving;
	struct pair pair;

	pair_open(f, "tcp:127.0.0.1:0", &pair);
	fill(source, LEN, 5);
	sending = (struct move){ .done.fn = move_done };
	receiving = (struct move){ .done.fn = move_done };
	sending.op = (struct bulk_op){ .stream = pair.near,
				       .send = true,
				       .head = source,
				       .head_len = LEN,
				       .done = &sending.done };
	receiving.op = (struct bulk_op){ .stream = pair.far, .head = target, .head_len = LEN, .done = &receiving.done };
	f->env->ops->bulk(&receiving.op);
	f->env->ops->bulk(&sending.op);
	UNTIL(f, n_done == 2);
	assert_int_equal(sending.result, 0);
	assert_int_equal(receiving.result, 0);
	assert_memory_equal(source, target, LEN);
	pair_close(f, &pair);
}

static void an_operation_without_bytes_completes(void **state)
{
	struct fixture *f = *state;
	static struct move moves[2];
	struct pair pair;

	pair_open(f, "tcp:127.0.0.1:0", &pair);
	for (int i = 0; i < 2; i++) {
		moves[i] = (struct move){ .done.fn = move_done };
		moves[i].op = (struct bulk_op){ .stream = pair.near, .send = i == 0, .done = &moves[i].done };
		f->env->ops->bulk(&moves[i].op);
	}
	UNTIL(f, n_done == 2);
	assert_int_equal(moves[0].result, 0);
	assert_int_equal(moves[1].result, 0);
	pair_close(f, &pair);
}

#define CHUNKS	    16
#define CHUNK_BYTES 100000

static void many_operations_go_in_order_and_both_ways_at_once(void **state)
{
	struct fixture *f = *state;
	static struct move sends[2][CHUNKS], receives[2][CHUNKS];
	static uint8_t from[2][CHUNKS][CHUNK_BYTES], to[2][CHUNKS][CHUNK_BYTES];
	struct pair pair;

	pair_open(f, "tcp:127.0.0.1:0", &pair);
	for (int way = 0; way < 2; way++) {
		struct stream *near = way ? pair.far : pair.near, *far = way ? pair.near : pair.far;
		static struct move first[2];

		move_start(far, &first[way], false, NULL, 0);
		for (int i = 0; i < CHUNKS; i++) {
			fill(from[way][i], CHUNK_BYTES, (uint64_t)(way * CHUNKS + i));
			move_start(near, &sends[way][i], true, from[way][i], CHUNK_BYTES);
			/* The last one's next head never comes, so it asks for none. */
			move_start(far, &receives[way][i], false, to[way][i], CHUNK_BYTES);
		}
	}
	UNTIL(f, n_done == 2 * (1 + CHUNKS + CHUNKS - 1));
	for (int way = 0; way < 2; way++) {
		for (int i = 0; i < CHUNKS - 1; i++) {
			assert_int_equal(receives[way][i].result, 0);
			assert_memory_equal(from[way][i], to[way][i], CHUNK_BYTES);
		}
	}
	n_done = 0;
	pair_close(f, &pair);
	UNTIL(f, n_done == 2);
	int last = receives[0][CHUNKS - 1].result; /* it waited for that head, and its peer was closed first */
	assert_true(last == -ECANCELED || last == -ECONNRESET);
}

/* ---- corruption ---- */

/* The far end is a plain socket, so that the test can say anything. */
static int plain_end(struct fixture *f, struct stream **ret)
{
	int ends[2];
	struct pair pair;

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
	pair_open(f, "tcp:127.0.0.1:0", &pair);
	assert_int_equal(dup2(ends[0], pair.near->fd), pair.near->fd); /* takes the connection's place */
	close(ends[0]);
	f->env->ops->close(pair.far);
	f->env->ops->close(pair.listener);
	*ret = pair.near;
	return ends[1];
}

static void put(int fd, const void *p, size_t len)
{
	assert_int_equal(write(fd, p, len), (ssize_t)len);
}

static void a_wrong_sum_is_told_and_the_stream_goes_on(void **state)
{
	struct fixture *f = *state;
	static struct move bad, good;
	uint8_t head[HEAD_BYTES] = { 7 }, sum[4];
	struct stream *stream;
	int end = plain_end(f, &stream);

	fill(source, 1000, 1);
	store_le32(sum, crc32c(0, source, 1000) ^ 1);
	put(end, source, 1000);
	put(end, sum, 4);
	put(end, head, HEAD_BYTES);
	store_le32(sum, crc32c(0, source, 1000));
	put(end, source, 1000);
	put(end, sum, 4);
	put(end, head, HEAD_BYTES);

	move_start(stream, &bad, false, target, 1000);
	move_start(stream, &good, false, target, 1000);
	UNTIL(f, n_done == 2);
	assert_int_equal(bad.result, -EBADMSG);
	assert_int_equal(good.result, 0);
	assert_int_equal(good.head[0], 7);
	f->env->ops->close(stream);
	close(end);
}

static void what_is_sent_is_head_span_and_sum(void **state)
{
	struct fixture *f = *state;
	static struct move sending;
	static uint8_t got[HEAD_BYTES + 1000 + 4];
	struct stream *stream;
	int end = plain_end(f, &stream);

	fill(source, 1000, 3);
	fill(sending.head, HEAD_BYTES, 4);
	move_start(stream, &sending, true, source, 1000);
	UNTIL(f, n_done == 1);
	assert_int_equal(recv(end, got, sizeof(got), MSG_WAITALL), sizeof(got));
	assert_memory_equal(got, sending.head, HEAD_BYTES);
	assert_memory_equal(got + HEAD_BYTES, source, 1000);
	assert_int_equal(load_le32(got + HEAD_BYTES + 1000), crc32c(0, source, 1000));
	f->env->ops->close(stream);
	close(end);
}

#ifndef __SANITIZE_THREAD__ /* the race is the point */
static atomic_bool writing;

static void *keep_writing(void *arg)
{
	for (uint8_t i = 0; writing; i++)
		for (size_t at = 0; at < sizeof(source); at += 64)
			((volatile uint8_t *)source)[at] = i;
	return NULL;
}

static void a_span_that_changes_while_it_is_sent_carries_the_sum_of_what_was_sent(void **state)
{
	enum { ROUNDS = 20 };
	struct fixture *f = *state;
	static struct move sends[ROUNDS], receives[ROUNDS], first;
	struct pair pair;
	pthread_t writer;

	pair_open(f, "tcp:127.0.0.1:0", &pair);
	writing = true;
	assert_int_equal(pthread_create(&writer, NULL, keep_writing, NULL), 0);
	move_start(pair.far, &first, false, NULL, 0);
	for (int i = 0; i < ROUNDS; i++) {
		move_start(pair.near, &sends[i], true, source, sizeof(source));
		move_start(pair.far, &receives[i], false, target, sizeof(target));
	}
	UNTIL(f, n_done == 2 * ROUNDS); /* the last receive waits for a head */
	writing = false;
	pthread_join(writer, NULL);
	for (int i = 0; i < ROUNDS - 1; i++)
		assert_int_equal(receives[i].result, 0);
	pair_close(f, &pair);
	UNTIL(f, n_done == 2 * ROUNDS + 1);
}
#endif

/* ---- the end ---- */

static void close_in_the_middle_cancels_both_ways_and_touches_nothing_more(void **state)
{
	enum { N = 3 };
	struct fixture *f = *state;
	static struct move sends[N], receives[N];
	struct stream *stream;
	int end = plain_end(f, &stream);

	memset(target, 1, sizeof(target));
	put(end, source, 1000); /* of a span of 1 MiB */
	for (int i = 0; i < N; i++) {
		move_start(stream, &receives[i], false, target, sizeof(target));
		move_start(stream, &sends[i], true, source, sizeof(source)); /* which nobody reads */
	}
	UNTIL(f, n_done == 0);
	f->env->ops->close(stream);
	UNTIL(f, n_done == 2 * N);
	for (int i = 0; i < N; i++) {
		assert_int_equal(sends[i].calls, 1);
		assert_int_equal(sends[i].result, -ECANCELED);
		assert_int_equal(receives[i].calls, 1);
		assert_int_equal(receives[i].result, -ECANCELED);
	}
	assert_int_equal(send(end, source, 1, MSG_NOSIGNAL), -1); /* the mover has closed the socket, too */
	assert_int_equal(errno, EPIPE);
	close(end);
}

static void a_stream_that_carried_bulk_can_be_closed_idle(void **state)
{
	struct fixture *f = *state;

	assert_span_moves(f, "tcp:127.0.0.1:0", 10);
	assert_span_moves(f, "tcp:127.0.0.1:0", 10);
}

static void the_peer_s_end_fails_what_waits_and_what_comes_later(void **state)
{
	struct fixture *f = *state;
	static struct move now, queued, later, sending;
	struct stream *stream;
	int end = plain_end(f, &stream);

	move_start(stream, &now, false, target, 1000);
	move_start(stream, &queued, false, target, 1000);
	put(end, source, 999);
	close(end);
	UNTIL(f, n_done == 2);
	assert_int_equal(now.result, -ECONNRESET);
	assert_int_equal(queued.result, -ECONNRESET);
	move_start(stream, &later, false, target, 1000);
	move_start(stream, &sending, true, source, 1000);
	UNTIL(f, n_done == 4);
	assert_int_equal(later.result, -ECONNRESET);
	assert_true(sending.result == -EPIPE || sending.result == -ECONNRESET);
	f->env->ops->close(stream);
}

static struct stream *to_close;

static void close_done(struct done *done, int result)
{
	move_done(done, result);
	to_close->real->env.ops->close(to_close);
}

static void a_completion_may_close_the_stream(void **state)
{
	struct fixture *f = *state;
	static struct move first, second;
	uint8_t head[HEAD_BYTES] = { 0 };
	int end = plain_end(f, &to_close);

	move_start(to_close, &first, false, NULL, 0);
	move_start(to_close, &second, false, NULL, 0);
	first.done.fn = close_done;
	put(end, head, HEAD_BYTES);
	UNTIL(f, n_done == 2);
	assert_int_equal(first.result, 0);
	assert_int_equal(second.result, -ECANCELED);
	close(end);
}

#define BULK(name) cmocka_unit_test_setup_teardown(name, bulk_setup, fixture_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		BULK(spans_of_all_sizes_arrive_whole_between_their_heads),
		BULK(bulk_moves_over_unix_streams_too),
		BULK(a_long_head_moves_like_a_short_one),
		BULK(an_operation_without_bytes_completes),
		BULK(many_operations_go_in_order_and_both_ways_at_once),
		BULK(a_wrong_sum_is_told_and_the_stream_goes_on),
		BULK(what_is_sent_is_head_span_and_sum),
#ifndef __SANITIZE_THREAD__
		BULK(a_span_that_changes_while_it_is_sent_carries_the_sum_of_what_was_sent),
#endif
		BULK(close_in_the_middle_cancels_both_ways_and_touches_nothing_more),
		BULK(a_stream_that_carried_bulk_can_be_closed_idle),
		BULK(the_peer_s_end_fails_what_waits_and_what_comes_later),
		BULK(a_completion_may_close_the_stream),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
