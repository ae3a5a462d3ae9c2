/* Each test lives in a fiber of a world, so that it can wait; its claims are checked there. */
#include "sim/world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <errno.h>
#include <string.h>

#include "base/hash.h"

#define LIMIT_NS   (600 * NS_PER_S)
#define TCP_ADDR   "tcp:10.0.0.1:7000"
#define UNIX_ADDR  "unix:/run/b/socket"
#define SEEDS_MANY 60
#define LIST_TEXT  256

struct scene {
	struct world *world;
	struct env *a, *b; /* a connects, b listens */
	struct stream *listener, *near, *far;
	int events, gone;
};

static void count_event(void *arg)
{
	++*(int *)arg;
}

static void pause_ms(struct scene *s, uint64_t ms)
{
	assert_int_equal(fiber_sleep_until(s->world->now_ns + ms * NS_PER_MS), 0);
}

static struct scene scene_new(uint64_t seed, enum weather weather)
{
	struct scene s = { .world = world_new(seed, weather, NULL) };

	s.a = world_env_new(s.world, "a");
	s.b = world_env_new(s.world, "b");
	return s;
}

static void play(uint64_t seed, int (*act)(void *arg))
{
	struct scene s = scene_new(seed, WEATHER_CALM);

	assert_int_equal(world_run(s.world, LIMIT_NS, act, &s), 0);
	world_free(s.world);
}

static void meet(struct scene *s, const char *address)
{
	struct stream_events events = { count_event, &s->events }, none = { 0 };
	int r;

	assert_int_equal(s->b->ops->listen(s->b, address, &none, &s->listener, NULL), 0);
	assert_int_equal(s->a->ops->connect(s->a, address, &events, &s->near), 0);
	assert_int_equal(s->a->ops->stream_status(s->near), -EINPROGRESS);
	while ((r = s->b->ops->accept(s->listener, &none, &s->far)) == -EAGAIN)
		pause_ms(s, 1);
	assert_int_equal(r, 0);
	pause_ms(s, 1);
	assert_int_equal(s->a->ops->stream_status(s->near), 0);
}

static ssize_t send_text(struct stream *stream, struct env *env, const char *text)
{
	struct iovec iov = { (void *)text, strlen(text) };

	return env->ops->send(stream, &iov, 1, NULL);
}

/* Everything that comes within a virtual second, as a string. */
static const char *hear(struct scene *s, struct env *env, struct stream *stream, ssize_t *ret_last)
{
	static char text[256];
	size_t n = 0;

	for (int ms = 0; ms < 1000; ms++) {
		*ret_last = env->ops->recv(stream, text + n, sizeof(text) - 1 - n);
		if (*ret_last > 0)
			n += (size_t)*ret_last;
		else if (*ret_last != -EAGAIN)
			break;
		pause_ms(s, 1);
	}
	text[n] = 0;
	return text;
}

/* ---- streams ---- */

static int act_close(void *arg)
{
	struct scene *s = arg;
	ssize_t last;

	meet(s, TCP_ADDR);
	assert_int_equal(send_text(s->near, s->a, "hello"), 5);
	s->a->ops->close(s->near);
	assert_string_equal(hear(s, s->b, s->far, &last), "hello");
	assert_int_equal(last, 0);
	s->b->ops->close(s->far);
	s->b->ops->close(s->listener);
	assert_int_equal(world_leftovers(s->world), 0);
	return 0;
}

static void bytes_sent_before_close_arrive_before_the_end(void **state)
{
	play(1, act_close);
}

static int act_window(void *arg)
{
	struct scene *s = arg;
	static uint8_t data[1 << 20], back[1 << 20];
	size_t sent = 0, got = 0;
	ssize_t n = 0;

	for (size_t i = 0; i < sizeof(data); i++)
		data[i] = (uint8_t)(i * 7 + i / 251);
	meet(s, UNIX_ADDR);
	while (sent < sizeof(data)) {
		struct iovec iov[2] = { { data + sent, 1 }, { data + sent + 1, sizeof(data) - sent - 1 } };

		n = s->a->ops->send(s->near, iov, 2, NULL);
		if (n > 0) {
			sent += (size_t)n;
			continue;
		}
		assert_int_equal(n, -EAGAIN);
		assert_true(sent < sizeof(data) / 2 || got);
		int before = s->events;
		pause_ms(s, 10);
		assert_int_equal(s->events, before); /* nobody has read */
		while ((n = s->b->ops->recv(s->far, back + got, sizeof(back) - got)) > 0)
			got += (size_t)n;
		assert_int_equal(got, sent);
		pause_ms(s, 1);
		assert_true(s->events > before);
	}
	pause_ms(s, 10);
	while ((n = s->b->ops->recv(s->far, back + got, sizeof(back) - got)) > 0)
		got += (size_t)n;
	assert_int_equal(got, sizeof(back));
	assert_memory_equal(data, back, sizeof(data));
	return 0;
}

static void a_full_window_says_again_and_room_is_announced(void **state)
{
	play(2, act_window);
}

static int act_cut(void *arg)
{
	struct scene *s = arg;
	ssize_t last;

	meet(s, TCP_ADDR);
	send_text(s->near, s->a, "lost");
	world_cut(s->world, "a", "b");
	hear(s, s->b, s->far, &last);
	assert_int_equal(last, -ECONNRESET);
	hear(s, s->a, s->near, &last);
	assert_int_equal(last, -ECONNRESET);
	assert_int_equal(send_text(s->near, s->a, "x"), -ECONNRESET);
	return 0;
}

static void a_cut_resets_both_ends(void **state)
{
	play(3, act_cut);
}

static int act_silence(void *arg)
{
	struct scene *s = arg;
	ssize_t last;

	meet(s, TCP_ADDR);
	world_silence(s->world, "a", "b", true);
	send_text(s->near, s->a, "late ");
	send_text(s->far, s->b, "other way");
	assert_string_equal(hear(s, s->a, s->near, &last), "other way");
	assert_string_equal(hear(s, s->b, s->far, &last), "");
	send_text(s->near, s->a, "but whole");
	world_silence(s->world, "a", "b", false);
	assert_string_equal(hear(s, s->b, s->far, &last), "late but whole");
	return 0;
}

static void one_direction_can_fall_silent_and_loses_nothing(void **state)
{
	play(4, act_silence);
}

static int act_connect(void *arg)
{
	struct scene *s = arg;
	struct stream_events none = { 0 };
	struct stream *nobody, *second;
	struct error e = { 0 };

	assert_int_equal(s->a->ops->connect(s->a, TCP_ADDR, &none, &nobody), 0);
	pause_ms(s, 1);
	assert_int_equal(s->a->ops->stream_status(nobody), -ECONNREFUSED);
	assert_int_equal(s->b->ops->listen(s->b, "tcp:10.0.0.1:0", &none, &s->listener, NULL), 0);
	const char *address = s->b->ops->address(s->listener);
	assert_string_not_equal(address, "tcp:10.0.0.1:0");
	assert_int_equal(s->a->ops->listen(s->a, address, &none, &second, &e), -EADDRINUSE);
	assert_non_null(strstr(e.text, address));
	world_silence(s->world, "*", "b", true);
	assert_int_equal(s->a->ops->connect(s->a, address, &none, &second), 0);
	pause_ms(s, 30000);
	assert_int_equal(s->a->ops->stream_status(second), -EINPROGRESS);
	world_silence(s->world, "*", "b", false);
	pause_ms(s, 3000);
	assert_int_equal(s->a->ops->stream_status(second), 0);
	return 0;
}

static void connects_are_refused_or_wait_for_a_silent_host(void **state)
{
	play(5, act_connect);
}

static int act_rate(void *arg)
{
	struct scene *s = arg;
	static uint8_t data[65536];
	size_t got = 0;
	ssize_t n;

	sim_env(s->a)->rate_bytes_per_s = 1000000; /* 1 MB/s: 64 KiB need 65 ms */
	meet(s, TCP_ADDR);
	uint64_t start_ns = s->world->now_ns;
	for (size_t sent = 0; got < sizeof(data);) {
		struct iovec iov = { data + sent, sizeof(data) - sent };

		n = sent < sizeof(data) ? s->a->ops->send(s->near, &iov, 1, NULL) : 0;
		sent += n > 0 ? (size_t)n : 0;
		n = s->b->ops->recv(s->far, data, sizeof(data));
		got += n > 0 ? (size_t)n : 0;
		pause_ms(s, 1);
	}
	assert_in_range((s->world->now_ns - start_ns) / NS_PER_MS, 65, 80);
	return 0;
}

static void a_slow_nic_sets_the_pace(void **state)
{
	play(6, act_rate);
}

static int act_order(void *arg)
{
	struct scene *s = arg;
	struct stream_events none = { 0 };
	struct stream *near[8], *far;
	ssize_t last;
	int overtaken = 0;

	assert_int_equal(s->b->ops->listen(s->b, TCP_ADDR, &none, &s->listener, NULL), 0);
	for (int i = 0; i < 8; i++)
		assert_int_equal(s->a->ops->connect(s->a, TCP_ADDR, &none, &near[i]), 0);
	pause_ms(s, 10);
	for (int i = 0; i < 8; i++) {
		send_text(near[i], s->a, (char[]){ (char)('0' + i), 0 });
		send_text(near[i], s->a, "first");
		send_text(near[i], s->a, "second");
	}
	for (int i = 0; i < 8; i++) { /* accepted in the order in which the connects arrived */
		assert_int_equal(s->b->ops->accept(s->listener, &none, &far), 0);
		const char *text = hear(s, s->b, far, &last);
		assert_string_equal(text + 1, "firstsecond");
		overtaken += text[0] != '0' + i;
	}
	assert_true(overtaken);
	return 0;
}

static void streams_overtake_each_other_but_never_themselves(void **state)
{
	play(7, act_order);
}

static int act_arena(void *arg)
{
	struct scene *s = arg;
	struct arena arena, got;
	struct iovec iov = { "here", 4 };
	ssize_t last;

	meet(s, UNIX_ADDR);
	assert_int_equal(s->b->ops->arena_new(s->b, 10000, false, &arena, NULL), 0);
	assert_int_equal(s->b->ops->send(s->far, &iov, 1, &arena), 4);
	assert_int_equal(sim_take_arena(s->near, &got), -EAGAIN);
	assert_string_equal(hear(s, s->a, s->near, &last), "here");
	assert_int_equal(sim_take_arena(s->near, &got), 0);
	assert_int_equal(got.size, 10000);
	got.ptr[9999] = 7;
	assert_int_equal(arena.ptr[9999], 7);
	s->b->ops->arena_free(s->b, &arena);
	got.ptr[0] = 8; /* still mapped here */
	s->a->ops->arena_free(s->a, &got);

	uint32_t uid;
	int32_t pid;
	sim_env(s->a)->uid = 4711;
	s->b->ops->peer(s->far, &uid, &pid);
	assert_int_equal(uid, 4711);
	assert_true(pid > 0);
	return 0;
}

static void an_arena_travels_with_bytes_and_is_shared(void **state)
{
	play(8, act_arena);
}

/* ---- bulk ---- */

struct await_op {
	struct bulk_op op;
	struct await wait;
	uint8_t head[64];
	uint8_t span[300000];
};

static void bulk_start(struct await_op *op, struct stream *stream, struct env *env, bool send)
{
	await_init(&op->wait);
	op->op = (struct bulk_op){ .stream = stream, .send = send, .head = op->head, .head_len = sizeof(op->head) };
	op->op.span = op->span;
	op->op.span_len = sizeof(op->span);
	op->op.done = &op->wait.done;
	env->ops->bulk(&op->op);
}

static struct await_op out, in, second;

static int act_bulk(void *arg)
{
	struct scene *s = arg;
	char head[64];
	struct await first;

	meet(s, TCP_ADDR);
	memset(out.span, 'S', sizeof(out.span));
	memcpy(out.head, "first", 6);
	bulk_start(&out, s->near, s->a, true);
	memcpy(second.head, "second", 7);
	bulk_start(&second, s->near, s->a, true);

	await_init(&first);
	struct bulk_op op = { .stream = s->far, .head = (uint8_t *)head, .head_len = 64, .done = &first.done };
	s->b->ops->bulk(&op);
	assert_int_equal(await(&first, FOREVER), 0);
	assert_string_equal(head, "first");
	bulk_start(&in, s->far, s->b, false);
	assert_int_equal(await(&in.wait, FOREVER), 0);
	assert_string_equal(in.head, "second");
	assert_memory_equal(in.span, out.span, sizeof(in.span));
	assert_int_equal(await(&out.wait, FOREVER), 0);
	assert_int_equal(in.op.crc, crc32c(0, out.span, sizeof(out.span)));
	assert_int_equal(out.op.crc, in.op.crc);
	s->a->ops->close(s->near); /* while the second one's span waits for a reader */
	assert_int_equal(await(&second.wait, FOREVER), -ECANCELED);
	return 0;
}

static void bulk_carries_spans_with_their_sums_and_the_next_head(void **state)
{
	play(9, act_bulk);
}

static int act_bulk_flip(void *arg)
{
	struct scene *s = arg;

	meet(s, TCP_ADDR);
	await_init(&out.wait);
	await_init(&in.wait);
	out.op = (struct bulk_op){ .stream = s->near, .send = true, .span = out.span, .span_len = 1000 };
	out.op.done = &out.wait.done;
	in.op = (struct bulk_op){ .stream = s->far, .span = in.span, .span_len = 1000, .done = &in.wait.done };
	world_inject(s->world, FAULT_WIRE_FLIP, "b recv from a");
	s->a->ops->bulk(&out.op);
	s->b->ops->bulk(&in.op);
	assert_int_equal(await(&in.wait, FOREVER), -EBADMSG);
	assert_int_equal(s->world->faults.injected[FAULT_WIRE_FLIP], 1);
	return 0;
}

static void a_bit_flipped_on_the_wire_is_a_bad_message(void **state)
{
	play(10, act_bulk_flip);
}

static int act_bulk_close(void *arg)
{
	struct scene *s = arg;

	meet(s, TCP_ADDR);
	bulk_start(&in, s->far, s->b, false);
	bulk_start(&out, s->near, s->a, true);
	pause_ms(s, 0);
	s->b->ops->close(s->far);
	assert_false(in.wait.finished);
	assert_int_equal(await(&in.wait, FOREVER), -ECANCELED);
	assert_int_equal(await(&out.wait, FOREVER), -ECONNRESET);
	return 0;
}

static void closing_cancels_bulk_later_and_resets_the_other_end(void **state)
{
	play(11, act_bulk_close);
}

/* ---- death ---- */

static int act_kill(void *arg)
{
	struct scene *s = arg;
	struct job job = { 0 };
	struct arena arena;
	char byte;
	ssize_t last;

	meet(s, UNIX_ADDR);
	assert_int_equal(s->b->ops->peer_watch(s->far, count_event, &s->gone), 0);
	bulk_start(&in, s->near, s->a, false);
	send_text(s->far, s->b, "in flight");
	world_kill(s->a, DEATH_PROCESS);
	assert_int_equal(await(&in.wait, FOREVER), -ESHUTDOWN);
	assert_int_equal(s->a->ops->recv(s->near, &byte, 1), -ESHUTDOWN);
	assert_int_equal(send_text(s->near, s->a, "x"), -ESHUTDOWN);
	assert_int_equal(s->a->ops->offload(s->a, &job), -ESHUTDOWN);
	assert_int_equal(s->a->ops->arena_new(s->a, 1, false, &arena, NULL), -ESHUTDOWN);
	hear(s, s->b, s->far, &last);
	assert_true(last == 0 || last == -ECONNRESET);
	assert_int_equal(s->gone, 1);
	s->a->ops->close(s->near);

	struct env *again = world_revive(s->a);
	assert_false(sim_env(again)->dead);
	assert_int_equal(again->ops->connect(again, UNIX_ADDR, &(struct stream_events){ 0 }, &s->near), 0);
	pause_ms(s, 1);
	assert_int_equal(again->ops->stream_status(s->near), 0);
	return 0;
}

static void a_killed_env_fails_every_call_and_its_peers_hear_of_it(void **state)
{
	play(12, act_kill);
}

static bool was_silent, was_reset;

static int act_machine(void *arg)
{
	struct scene *s = arg;
	ssize_t last;

	meet(s, TCP_ADDR);
	world_kill(s->b, DEATH_MACHINE);
	send_text(s->near, s->a, "anybody?");
	hear(s, s->a, s->near, &last);
	if (last == -ECONNRESET) {
		was_reset = true;
		return 0;
	}
	was_silent = true;
	assert_int_equal(last, -EAGAIN);
	world_revive(s->b);
	hear(s, s->a, s->near, &last);
	assert_int_equal(last, -ECONNRESET);
	return 0;
}

static void a_dead_machine_is_silent_or_resets_and_resets_once_it_is_back(void **state)
{
	for (uint64_t seed = 0; seed < SEEDS_MANY; seed++)
		play(seed, act_machine);
	assert_true(was_silent && was_reset);
}

/* ---- files ---- */

static const struct env_ops *ops;
static struct env *where;
static struct dir *dir;

static int put(const char *path, const char *text, bool sync)
{
	struct file *file;
	int r = ops->file_open(dir, path, FILE_WRITE | FILE_READ | FILE_CREATE, &file);

	if (r)
		return r;
	r = ops->file_write(file, 0, text, strlen(text));
	if (!r && sync)
		r = ops->file_sync(file);
	ops->file_close(file);
	return r;
}

static const char *get(const char *path)
{
	static char text[4096];
	struct file *file;
	int r = ops->file_open(dir, path, FILE_READ, &file);

	if (r)
		return error_name(r);
	ssize_t n = ops->file_read(file, 0, text, sizeof(text) - 1);
	ops->file_close(file);
	if (n < 0)
		return error_name((int)n);
	text[n] = 0;
	return text;
}

static void look_at(struct env *env, const char *path)
{
	where = env;
	ops = env->ops;
	assert_int_equal(ops->dir_open(env, path, true, &dir, NULL), 0);
}

/* Runs @job in a worker of @env with `dir` open at @path. */
static int with_files(struct env *env, const char *path, int (*job)(void *arg), void *arg)
{
	look_at(env, path);
	int r = env_call(env, job, arg);
	ops->dir_close(dir);
	return r;
}

static int collect(void *arg, const char *name, bool is_dir)
{
	size_t len = strlen(arg);

	snprintf((char *)arg + len, LIST_TEXT - len, "%s%s ", name, is_dir ? "/" : "");
	return 0;
}

static int job_names(void *arg)
{
	char list[LIST_TEXT] = "";
	struct file_stat st;

	assert_int_equal(ops->mkdirs(dir, "x/y"), 0);
	assert_int_equal(ops->mkdirs(dir, "x/y"), 0);
	assert_int_equal(put("x/two", "2", true), 0);
	assert_int_equal(put("x/ten", "10", true), 0);
	assert_int_equal(ops->link(dir, "x/two", "x/ten"), -EEXIST);
	assert_int_equal(ops->link(dir, "x/two", "x/deux"), 0);
	assert_int_equal(ops->stat(dir, "x/deux", &st), 0);
	assert_int_equal(st.nlink, 2);
	assert_int_equal(ops->rename(dir, "x/deux", "x/ten"), 0);
	assert_string_equal(get("x/ten"), "2");
	assert_int_equal(ops->list(dir, "x", collect, list), 0);
	assert_string_equal(list, "ten two y/ ");
	assert_int_equal(ops->unlink(dir, "x"), -ENOTEMPTY);
	assert_int_equal(ops->unlink(dir, "x/y"), 0);
	assert_int_equal(ops->unlink(dir, "x/none"), -ENOENT);
	assert_int_equal(put("none/file", "", false), -ENOENT);
	assert_int_equal(put("x/two/file", "", false), -ENOTDIR);
	return 0;
}

static int act_names(void *arg)
{
	struct scene *s = arg;

	assert_int_equal(with_files(s->a, "/data", job_names, NULL), 0);
	assert_int_equal(world_leftovers(s->world), 0);
	return 0;
}

static void names_behave_as_in_a_file_system(void **state)
{
	play(20, act_names);
}

static int fates[3]; /* old, new, something of both */

#define OLD_TEXT 3000

static char old_text[OLD_TEXT + 1], new_text[OLD_TEXT + 1];

static int job_before_crash(void *arg)
{
	memset(old_text, 'o', OLD_TEXT);
	memset(new_text, 'n', OLD_TEXT);
	assert_int_equal(put("kept", "kept", true), 0);
	assert_int_equal(put("file", old_text, true), 0);
	assert_int_equal(put("before", "whole", true), 0);
	assert_int_equal(ops->sync_dir(dir, ""), 0);
	assert_int_equal(put("file", new_text, false), 0);
	assert_string_equal(get("file"), new_text);
	assert_int_equal(put("nameless", "x", true), 0);
	assert_int_equal(ops->rename(dir, "before", "after"), 0);
	return 0;
}

static int job_after_crash(void *arg)
{
	assert_string_equal(get("kept"), "kept");
	const char *text = get("file");
	assert_int_equal(strlen(text), OLD_TEXT);
	fates[strcmp(text, old_text) == 0 ? 0 : strcmp(text, new_text) == 0 ? 1 : 2]++;
	bool before = strcmp(get("before"), "whole") == 0, after = strcmp(get("after"), "whole") == 0;
	assert_true(before != after);
	*(bool *)arg = strcmp(get("nameless"), "x") == 0;
	return 0;
}

static int named, nameless;

static int act_crash(void *arg)
{
	struct scene *s = arg;
	bool there;

	assert_int_equal(with_files(s->a, "/data", job_before_crash, NULL), 0);
	world_kill(s->a, DEATH_MACHINE);
	assert_int_equal(with_files(world_revive(s->a), "/data", job_after_crash, &there), 0);
	named += there;
	nameless += !there;
	return 0;
}

static void a_crash_keeps_what_was_synced_and_keeps_loses_or_tears_the_rest(void **state)
{
	for (uint64_t seed = 0; seed < SEEDS_MANY; seed++)
		play(seed, act_crash);
	assert_true(fates[0] && fates[1] && fates[2] && named && nameless);
}

static int job_after_kill(void *arg)
{
	assert_string_equal(get("file"), new_text);
	return 0;
}

static int act_process(void *arg)
{
	struct scene *s = arg;

	assert_int_equal(with_files(s->a, "/data", job_before_crash, NULL), 0);
	world_kill(s->a, DEATH_PROCESS);
	return with_files(world_revive(s->a), "/data", job_after_kill, NULL);
}

static void a_killed_process_leaves_its_unsynced_bytes_in_the_cache(void **state)
{
	play(21, act_process);
}

static int job_failed_sync(void *arg)
{
	struct file *file;

	assert_int_equal(put("file", "old", true), 0);
	assert_int_equal(ops->sync_dir(dir, ""), 0);
	world_inject(arg, FAULT_SYNC_EIO, "a sync /data/file");
	assert_int_equal(put("file", "new", true), -EIO);
	assert_string_equal(get("file"), "new");
	assert_int_equal(ops->file_open(dir, "file", FILE_WRITE, &file), 0);
	assert_int_equal(ops->file_sync(file), 0); /* as on Linux, the second sync knows nothing of the first */
	ops->file_close(file);
	return 0;
}

static int job_old(void *arg)
{
	assert_string_equal(get("file"), "old");
	return 0;
}

static int act_failed_sync(void *arg)
{
	struct scene *s = arg;

	assert_int_equal(with_files(s->a, "/data", job_failed_sync, s->world), 0);
	world_kill(s->a, DEATH_MACHINE);
	return with_files(world_revive(s->a), "/data", job_old, NULL);
}

static void no_later_sync_saves_what_a_failed_sync_lost(void **state)
{
	for (uint64_t seed = 0; seed < 10; seed++)
		play(seed, act_failed_sync);
}

static int job_faults(void *arg)
{
	struct world *w = arg;
	struct file_stat st;

	assert_int_equal(put("file", "text", true), 0);
	world_inject(w, FAULT_NO_SPACE, "write /data/other");
	assert_int_equal(put("file", "text", true), 0);
	assert_int_equal(put("other", "text", true), -ENOSPC);
	assert_int_equal(put("other", "text", true), 0);
	world_inject(w, FAULT_LINK_TWICE, NULL);
	assert_int_equal(ops->link(dir, "file", "twin"), -EEXIST);
	assert_int_equal(ops->stat(dir, "twin", &st), 0);
	assert_int_equal(st.nlink, 2);
	world_inject(w, FAULT_READ_FLIP, NULL);
	assert_string_not_equal(get("file"), "text");
	assert_string_equal(get("file"), "text");
	assert_int_equal(world_rot(where, "/data/file", 0), 0);
	assert_string_equal(get("file"), "uext");
	world_inject(w, FAULT_READ_EIO, NULL);
	assert_string_equal(get("file"), "EIO");
	return 0;
}

static int act_faults(void *arg)
{
	struct scene *s = arg;

	assert_int_equal(with_files(s->a, "/data", job_faults, s->world), 0);
	assert_int_equal(s->world->faults.injected[FAULT_NO_SPACE], 1);
	assert_int_equal(s->world->faults.injected[FAULT_ROT], 1);
	return 0;
}

static void a_fault_by_hand_strikes_once_and_where_it_was_aimed(void **state)
{
	play(22, act_faults);
}

static int job_share(void *arg)
{
	return put("from-a", "shared", false);
}

static int job_see(void *arg)
{
	world_inject(arg, FAULT_NAME_LATE, "/store/from-a");
	world_inject(arg, FAULT_NAME_LATE, "from-a");
	const char *text = get("from-a");
	if (strcmp(text, "ENOENT") == 0)
		text = get("from-a");
	return strcmp(text, "shared") ? -ENOENT : 0;
}

static int act_share(void *arg)
{
	struct scene *s = arg;

	world_share(s->world, "/store");
	assert_int_equal(with_files(s->a, "/store/x", job_share, NULL), 0);
	assert_int_equal(with_files(s->a, "/private", job_share, NULL), 0);
	assert_int_equal(with_files(s->b, "/store/x", job_see, s->world), 0);
	assert_int_equal(s->world->faults.injected[FAULT_NAME_LATE], 1);
	assert_int_equal(with_files(s->b, "/private", job_see, s->world), -ENOENT);
	return 0;
}

static void a_shared_disk_is_seen_by_all_and_a_private_one_by_its_owner(void **state)
{
	play(23, act_share);
}

static int dead_results;

static int job_slow(void *arg)
{
	int r = put("file", "new", true);

	dead_results += r == -ESHUTDOWN;
	return r;
}

struct orphan {
	struct job job;
	bool finished;
};

static void orphan_run(struct job *job)
{
	(void)job_slow(NULL);
}

static void orphan_finish(struct job *job)
{
	container_of(job, struct orphan, job)->finished = true;
}

static int act_kill_job(void *arg)
{
	struct scene *s = arg;
	struct orphan jobs[6] = { 0 }; /* two more than workers */

	look_at(s->a, "/data");
	for (int i = 0; i < 6; i++) {
		jobs[i].job = (struct job){ .run = orphan_run, .finish = orphan_finish };
		assert_int_equal(ops->offload(where, &jobs[i].job), 0);
	}
	pause_ms(s, 0);
	world_kill(s->a, DEATH_PROCESS);
	pause_ms(s, 10);
	for (int i = 0; i < 6; i++)
		assert_true(jobs[i].finished);
	assert_int_equal(dead_results, 6);
	ops->dir_close(dir);
	return 0;
}

static void jobs_of_a_dead_env_fail_and_still_finish(void **state)
{
	play(24, act_kill_job);
}

/* ---- determinism ---- */

/* Both ends talk, write what they hear, and now and then something dies: as rough as the seed has it. */
static int job_diary(void *arg)
{
	(void)put("diary", arg, true);
	return 0;
}

static int act_story(void *arg)
{
	struct scene *s = arg;
	struct stream_events none = { 0 };
	char text[32];

	(void)s->b->ops->listen(s->b, TCP_ADDR, &none, &s->listener, NULL);
	(void)s->a->ops->connect(s->a, TCP_ADDR, &none, &s->near);
	for (int i = 0; i < 20; i++) {
		s->a->ops->random(s->a, text, 8);
		(void)send_text(s->near, s->a, "ping");
		(void)with_files(s->b, "/b", job_diary, (char[]){ (char)('0' + i), 0 });
		if (world_chance(s->world, 50000)) {
			world_kill(s->b, DEATH_DRAWN);
			s->b = world_revive(s->b);
		}
		pause_ms(s, world_random(s->world, 50));
	}
	return 0;
}

static uint64_t story_hash(uint64_t seed)
{
	struct scene s = scene_new(seed, WEATHER_DRAWN);

	assert_int_equal(world_run(s.world, LIMIT_NS, act_story, &s), 0);
	uint64_t hash = s.world->hash;
	world_free(s.world);
	return hash;
}

static void equal_seeds_give_equal_stories_and_others_do_not(void **state)
{
	for (uint64_t seed = 0; seed < SEEDS_MANY; seed++) {
		uint64_t hash = story_hash(seed);

		assert_true(hash == story_hash(seed));
		assert_true(hash != story_hash(seed + 1000));
	}
}

static int act_stuck(void *arg)
{
	struct waitplace place;

	waitplace_init(&place);
	return wait_at(&place, FOREVER);
}

static int act_late(void *arg)
{
	return fiber_sleep_until(FOREVER - 1);
}

static void a_history_that_cannot_end_is_told_from_one_that_does_not(void **state)
{
	struct scene s = scene_new(1, WEATHER_CALM);

	assert_int_equal(world_run(s.world, LIMIT_NS, act_stuck, NULL), -EDEADLK);
	assert_int_equal(world_run(s.world, LIMIT_NS, act_late, NULL), -ETIME);
	world_free(s.world);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bytes_sent_before_close_arrive_before_the_end),
		cmocka_unit_test(a_full_window_says_again_and_room_is_announced),
		cmocka_unit_test(a_cut_resets_both_ends),
		cmocka_unit_test(one_direction_can_fall_silent_and_loses_nothing),
		cmocka_unit_test(connects_are_refused_or_wait_for_a_silent_host),
		cmocka_unit_test(a_slow_nic_sets_the_pace),
		cmocka_unit_test(streams_overtake_each_other_but_never_themselves),
		cmocka_unit_test(an_arena_travels_with_bytes_and_is_shared),
		cmocka_unit_test(bulk_carries_spans_with_their_sums_and_the_next_head),
		cmocka_unit_test(a_bit_flipped_on_the_wire_is_a_bad_message),
		cmocka_unit_test(closing_cancels_bulk_later_and_resets_the_other_end),
		cmocka_unit_test(a_killed_env_fails_every_call_and_its_peers_hear_of_it),
		cmocka_unit_test(a_dead_machine_is_silent_or_resets_and_resets_once_it_is_back),
		cmocka_unit_test(names_behave_as_in_a_file_system),
		cmocka_unit_test(a_crash_keeps_what_was_synced_and_keeps_loses_or_tears_the_rest),
		cmocka_unit_test(a_killed_process_leaves_its_unsynced_bytes_in_the_cache),
		cmocka_unit_test(no_later_sync_saves_what_a_failed_sync_lost),
		cmocka_unit_test(a_fault_by_hand_strikes_once_and_where_it_was_aimed),
		cmocka_unit_test(a_shared_disk_is_seen_by_all_and_a_private_one_by_its_owner),
		cmocka_unit_test(jobs_of_a_dead_env_fail_and_still_finish),
		cmocka_unit_test(equal_seeds_give_equal_stories_and_others_do_not),
		cmocka_unit_test(a_history_that_cannot_end_is_told_from_one_that_does_not),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
