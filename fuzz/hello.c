/*
 * fuzz/hello.c: greetings, at both ends (net/greet.h). The first byte: 1, this side has a key; 2, it has dialled. Then frames: type 1,
 * flags 1, body bytes 2, body. Nobody proves the key by accident: whoever is met where there is one was let in wrongly.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "net/conn.h"
#include "net/greet.h"
#include "wire/message.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void no_random(struct env *env, void *p, size_t len)
{
	memset(p, 3, len);
}

static uint64_t no_time(void *arg)
{
	return 1;
}

static int no_sleep(void *arg, uint64_t until_ns)
{
	return 0;
}

static void no_wake(void *arg)
{
}

static int feed(struct greeting *greeting, const struct greet_self *self, struct view *input)
{
	struct view head = view_take(input, 4);
	struct view body = view_take(input, load_le16(head.ptr + 2));
	struct frame_head frame = { .type = head.ptr[0],
				    .flags = head.ptr[1],
				    .body_bytes = (uint32_t)body.len,
				    .request = 7 };
	struct error e = { 0 };
	int r = greet_frame(greeting, self, &frame, body, &e);

	CHECK(r >= 0 || *e.text || (frame.flags & FRAME_FAILED)); /* the words of a failed reply are the peer's */
	CHECK(r <= 0 || r == GREET_MET);
	CHECK(r != GREET_MET || !self->key.len);
	CHECK(r != GREET_MET || strnlen(greeting->peer.node, sizeof(greeting->peer.node)) <= GREET_NODE_MAX);
	return r;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const struct env_ops ops = { .random = no_random };
	const struct clockwork clockwork = { .now = no_time, .poll = no_sleep, .wake = no_wake };
	struct env env = { .magic = ENV_MAGIC, .ops = &ops, .loop = loop_new(&clockwork), .name = "n0" };
	struct view input = view_of(data, size);
	unsigned how = size ? *view_take(&input, 1).ptr : 0;
	const struct greet_self self = { .cluster = "c",
					 .node = "n0",
					 .generation = 1,
					 .incarnation = 1,
					 .key = view_str(how & 1 ? "the key of the stage" : NULL) };
	/* Open, and never closed: what is queued on it is freed here. */
	struct net_conn conn = { .magic = CONN_MAGIC, .refs = 1, .state = CONN_OPEN, .env = &env };
	struct greeting greeting;
	struct list *node;
	int r = 0;

	CHECK(env.loop);
	list_init(&conn.out);
	if (how & 2)
		CHECK(!greet_dial(&greeting, &env, &conn, &self, GREET_CONTROL, 7));
	else
		greet_accept(&greeting, &env, &conn);
	while (!r && input.len >= 4)
		r = feed(&greeting, &self, &input);
	task_cancel(&conn.work);
	while ((node = list_pop(&conn.out)))
		free(node); /* a frame begins with its link */
	loop_free(env.loop);
	return 0;
}
