/*
 * fuzz/stage.h: a node on a stage: its rooms are real, its world is not. Time jumps to the next timer, nobody else can be reached, the
 * store fails every request, and one connection comes in, whose bytes are the input's. For the targets door and peer.
 *
 * An input is a list of frames: type 2, flags 1, how 1, body bytes 2, body; heads and sums are made here, else no input would get past
 * them. How: 1 a wrong sum, 2 of the node's generation, 4 a bulk chunk with the body as its payload.
 */
#pragma once

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/counter.h"
#include "base/log.h"
#include "bundle/bundle.h"
#include "cluster/inside.h"
#include "door/native.h"
#include "env/fiber.h"
#include "group/group.h"
#include "store/store.h"
#include "wire/message.h"

#define STAGE_KEY     "the key of the stage"
#define STAGE_NONCE   0x5a
#define STAGE_TURNS   400 /* of the loop, for the input's requests to come to something */
#define STAGE_STOP    100000
#define STAGE_STREAMS 64
#define STAGE_POOL    (1u << 20)

struct stream {
	struct stream_events events;
	struct list ops; /* bulk that waits for bytes that never come */
	bool speaks;	 /* the one whose bytes are the input's */
};

struct stage {
	struct env env;
	uint64_t now_ns;
	struct buf in; /* what comes in */
	size_t at;
	struct stream streams[STAGE_STREAMS];
	unsigned n_streams;
	bool accepted;
	struct backend backend;
	struct cluster *cluster;
	struct pool *pool;
	struct store *store;
	struct bundles *bundles;
	struct groups *groups;
	struct door_native *door; /* or NULL: peers come in */
	bool stopped;
};

static struct stage stage;

/* ---- the world ---- */

static uint64_t stage_now(struct env *env)
{
	return stage.now_ns;
}

static uint64_t stage_clock(void *arg)
{
	return stage.now_ns;
}

static int stage_poll(void *arg, uint64_t until_ns)
{
	uint64_t most = stage.now_ns + NS_PER_S;

	stage.now_ns = until_ns < most ? (until_ns > stage.now_ns ? until_ns : stage.now_ns) : most;
	return 0;
}

static void stage_wake(void *arg)
{
}

static void stage_random(struct env *env, void *p, size_t len)
{
	memset(p, STAGE_NONCE, len);
}

static void stage_finish(struct task *task)
{
	struct job *job = container_of(task, struct job, task);

	job->finish(job);
}

static int stage_offload(struct env *env, struct job *job)
{
	job->run(job);
	job->task = (struct task){ .fn = stage_finish };
	loop_post(env->loop, &job->task);
	return 0;
}

static int stage_stream(const struct stream_events *events, struct stream **ret)
{
	if (stage.n_streams == STAGE_STREAMS)
		return -EMFILE;
	struct stream *stream = &stage.streams[stage.n_streams++];
	*stream = (struct stream){ .events = *events };
	list_init(&stream->ops);
	*ret = stream;
	return 0;
}

static int stage_listen(struct env *env, const char *address, const struct stream_events *events, struct stream **ret,
			struct error *e)
{
	return stage_stream(events, ret);
}

static int stage_accept(struct stream *listener, const struct stream_events *events, struct stream **ret)
{
	if (stage.accepted || listener != &stage.streams[stage.door ? 1 : 0])
		return -EAGAIN;
	int r = stage_stream(events, ret);
	if (!r)
		(*ret)->speaks = stage.accepted = true;
	return r;
}

static int stage_connect(struct env *env, const char *address, const struct stream_events *events, struct stream **ret)
{
	return stage_stream(events, ret);
}

static int stage_status(struct stream *stream)
{
	return stream->speaks ? 0 : -ECONNREFUSED;
}

static ssize_t stage_recv(struct stream *stream, void *p, size_t len)
{
	size_t left = stream->speaks ? stage.in.len - stage.at : 0;
	size_t n = len < left ? len : left;

	if (!n)
		return -EAGAIN;
	memcpy(p, stage.in.ptr + stage.at, n);
	stage.at += n;
	return (ssize_t)n;
}

static ssize_t stage_send(struct stream *stream, const struct iovec *iov, int n, const struct arena *arena)
{
	size_t sum = 0;

	for (int i = 0; i < n; i++)
		sum += iov[i].iov_len;
	return (ssize_t)sum;
}

static void stage_peer(struct stream *stream, uint32_t *ret_uid, int32_t *ret_pid)
{
	*ret_uid = 1000;
	*ret_pid = 77;
}

static int stage_watch(struct stream *stream, void (*gone)(void *arg), void *arg)
{
	return 0;
}

static const char *stage_address(struct stream *stream)
{
	return "tcp:127.0.0.1:1";
}

static void op_done(struct task *task)
{
	struct bulk_op *op = container_of(task, struct bulk_op, task);

	op->done->fn(op->done, op->result);
}

static void op_end(struct bulk_op *op, int result)
{
	op->result = result;
	op->task = (struct task){ .fn = op_done };
	loop_post(stage.env.loop, &op->task);
}

static void stage_close(struct stream *stream)
{
	struct list *node;

	while (stream && (node = list_pop(&stream->ops)))
		op_end(list_entry(node, struct bulk_op, link), -ECANCELED);
}

static void stage_bulk(struct bulk_op *op)
{
	size_t crc_len = op->span_len ? FRAME_CRC_BYTES : 0;
	uint8_t crc[FRAME_CRC_BYTES];

	if (op->send) {
		op->crc = crc32c(0, op->span, op->span_len);
		op_end(op, 0);
	} else if (!op->stream->speaks || stage.in.len - stage.at < op->span_len + crc_len + op->head_len) {
		list_append(&op->stream->ops, &op->link);
	} else {
		stage_recv(op->stream, op->span, op->span_len);
		stage_recv(op->stream, crc, crc_len);
		stage_recv(op->stream, op->head, op->head_len);
		op->crc = crc32c(0, op->span, op->span_len);
		op_end(op, crc_len && load_le32(crc) != op->crc ? -EBADMSG : 0);
	}
}

static int stage_arena(struct env *env, size_t size, bool shared_read, struct arena *ret, struct error *e)
{
	static uint64_t ids;

	*ret = (struct arena){ .ptr = calloc(1, size), .size = size, .id = ++ids, .fd = -1 };
	return ret->ptr ? 0 : -ENOMEM;
}

static void stage_arena_free(struct env *env, struct arena *arena)
{
	free(arena->ptr);
}

static const struct env_ops stage_ops = {
	.now = stage_now,
	.random = stage_random,
	.offload = stage_offload,
	.listen = stage_listen,
	.accept = stage_accept,
	.connect = stage_connect,
	.stream_status = stage_status,
	.recv = stage_recv,
	.send = stage_send,
	.peer = stage_peer,
	.peer_watch = stage_watch,
	.address = stage_address,
	.close = stage_close,
	.bulk = stage_bulk,
	.arena_new = stage_arena,
	.arena_free = stage_arena_free,
};

static void stage_submit(struct backend *backend, struct backend_req *req)
{
	backend_finish_later(req, error_set(&req->error, -EIO, "there is no store on a stage"));
}

static void stage_backend_free(struct backend *backend)
{
}

static const struct backend_driver stage_driver = { .name = "stage",
						    .submit = stage_submit,
						    .free = stage_backend_free };

/* ---- what comes in ---- */

static void stage_frame(unsigned type, unsigned flags, unsigned how, struct view body)
{
	const bool chunk = how & 4;
	struct frame_head head = { .major = FRAME_MAJOR,
				   .type = (uint16_t)type,
				   .flags = flags,
				   .request = stage.in.len + 1,
				   .deadline_ms = 1000,
				   .generation = how & 2 ? 1 : 0 };
	uint8_t raw[FRAME_HEAD_BYTES], crc[FRAME_CRC_BYTES];

	head.body_bytes = chunk ? 0 : (uint32_t)body.len;
	head.payload_bytes = chunk ? (uint32_t)body.len : 0;
	head.epoch = chunk ? body.len : 0;
	head.body_crc = crc32c(0, body.ptr, chunk ? 0 : body.len) ^ (how & 1);
	frame_encode(&head, raw);
	store_le32(crc, crc32c(0, body.ptr, body.len));
	CHECK(!buf_append(&stage.in, raw, sizeof(raw)) && !buf_append(&stage.in, body.ptr, body.len));
	if (chunk)
		CHECK(!buf_append(&stage.in, crc, sizeof(crc)));
}

static void stage_frames(struct view input)
{
	while (input.len >= 6) {
		struct view head = view_take(&input, 6);
		struct view body = view_take(&input, load_le16(head.ptr + 4));

		stage_frame(load_le16(head.ptr), head.ptr[2], head.ptr[3], body);
	}
}

/* ---- the play ---- */

static int stage_stop_run(void *arg)
{
	if (stage.door)
		door_native_stop(stage.door);
	groups_stop(stage.groups);
	bundles_stop(stage.bundles);
	cluster_stop(stage.cluster);
	door_native_free(stage.door);
	groups_free(stage.groups);
	bundles_free(stage.bundles);
	store_free(stage.store);
	calls_drain(&stage.backend, NULL, stage.now_ns + NS_PER_S);
	stage.stopped = true;
	return 0;
}

static void stage_open(bool door)
{
	const struct clockwork clockwork = { .now = stage_clock, .poll = stage_poll, .wake = stage_wake };
	struct error e;

	stage = (struct stage){ .now_ns = NS_PER_S };
	stage.env = (struct env){ .magic = ENV_MAGIC, .ops = &stage_ops, .loop = loop_new(&clockwork), .name = "n0" };
	stage.backend = (struct backend){ .magic = BACKEND_MAGIC, .driver = &stage_driver, .env = &stage.env };
	CHECK(stage.env.loop && !pool_new(&stage.env, STAGE_POOL, STAGE_POOL, &stage.pool, &e));
	const struct cluster_options options = { .node = "n0",
						 .listen = "tcp:127.0.0.1:1",
						 .cluster_id = "c",
						 .key = view_str(STAGE_KEY),
						 .meta_address = "tcp:127.0.0.1:2",
						 .backend = &stage.backend };
	CHECK(!cluster_new(&stage.env, &options, &stage.cluster, &e));
	stage.cluster->joined = true;
	stage.cluster->generation = 1;
	stage.cluster->incarnation = 1;
	CHECK(!store_new(&stage.env, "t", stage.pool, stage.cluster, &stage.backend, &stage.store));
	CHECK(!bundles_new(&stage.env, stage.cluster, &stage.backend, &stage.bundles));
	CHECK(!groups_new(&stage.env, stage.cluster, &stage.store, 1, stage.bundles, &stage.groups));
	const struct door_native_options native = { .socket = "s",
						    .tenant = "t",
						    .alone = true,
						    .cluster = stage.cluster,
						    .groups = stage.groups,
						    .bundles = stage.bundles,
						    .store = stage.store };
	if (door)
		CHECK(!door_native_new(&stage.env, &native, &stage.door, &e));
}

/* Everything that the input asked for comes to its end, and the node to its own. */
static void stage_play(void)
{
	struct nursery nursery;

	for (int i = 0; i < STAGE_TURNS; i++)
		CHECK(!loop_turn(stage.env.loop));
	nursery_init(&nursery, stage.env.loop);
	CHECK(!fiber_start(&nursery, "stop", stage_stop_run, NULL));
	for (int i = 0; i < STAGE_STOP && !(stage.stopped && nursery_is_empty(&nursery)); i++)
		CHECK(!loop_turn(stage.env.loop));
	CHECK(stage.stopped);
	cluster_free(stage.cluster);
	pool_free(stage.pool);
	for (int i = 0; i < 16; i++)
		CHECK(!loop_turn(stage.env.loop));
	loop_free(stage.env.loop);
	buf_fini(&stage.in);
}
