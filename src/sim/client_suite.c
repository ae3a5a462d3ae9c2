/*
 * sim/client_suite.c: a client process: libforebay's core, whose bytes go through a simulated unix stream and whose work a fiber does.
 * What it reads is compared with the truth.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "sim/history_suite.h"
#include "sim/inside.h"

#define GREET_MS     10000
#define CALL_MS	     20000 /* what a daemon has for a call; it may take SLACK_MS longer */
#define COLLECT_MS   120000
#define SLACK_MS     10000
#define LOAD_MS	     700000
#define WORK_NS	     (300 * NS_PER_US)
#define PAGE	     3		       /* so that lists have several */
#define SLOW_NS	     (200 * NS_PER_MS) /* of a process that gets no core */
#define SLOW_ONCE_IN 50
#define WANTS_MAX    (2 * ITEMS_MOST)
#define UNTOUCHED    0xee

/* ---- the shell ---- */

static void on_ready(void *arg)
{
	wake_all(&((struct client *)arg)->place);
}

void client_stir(struct client *c)
{
	wake_all(&c->place);
}

static int on_arena(void *arg, uint64_t id, uint64_t bytes, bool writable, uint8_t **ret, struct error *e)
{
	struct client *c = arg;
	struct arena arena;

	if (c->n_arenas == ARRAY_LEN(c->arenas) || sim_take_arena(c->stream, &arena))
		return error_set(e, -EPROTO, "an arena was announced and did not come");
	CHECK(arena.size == bytes);
	c->captures |= (unsigned)writable << c->n_arenas;
	c->arenas[c->n_arenas++] = arena;
	*ret = arena.ptr;
	return 0;
}

/* Moves bytes between stream and core, both ways: whether any moved. */
static bool exchange(struct client *c)
{
	static uint8_t bytes[65536]; /* of nobody between two waits */
	struct env *env = c->env;
	ssize_t n = env->ops->recv(c->stream, bytes, sizeof(bytes));
	bool moved = n > 0;

	if (n > 0)
		(void)core_feed(c->core, bytes, (size_t)n, NULL);
	else if (n != -EAGAIN)
		core_lose(c->core, n ? (int)n : -ECONNRESET, "the daemon hung up");
	struct view out = core_output(c->core);
	if (!out.len || core_check(c->core, NULL))
		return moved;
	struct iovec iov = { (void *)out.ptr, out.len };
	n = env->ops->send(c->stream, &iov, 1, NULL);
	if (n > 0)
		core_sent(c->core, (size_t)n);
	return moved || n > 0;
}

static int pump(void *arg)
{
	struct client *c = arg;
	int r = 0;

	while (!r && !core_check(c->core, NULL)) {
		bool moved = exchange(c);

		wake_all(&c->place);
		r = moved ? fiber_cancelled() ? -ECANCELED : 0 : wait_at(&c->place, FOREVER);
	}
	return r;
}

static int hand(void *arg)
{
	struct client *c = arg;
	int r = 0;

	while (!r) {
		struct work *work = core_work_take(c->core);

		if (!work) {
			r = wait_at(&c->place, FOREVER);
			continue;
		}
		c->works++;
		wake_all(&c->place);
		uint64_t most_ns = world_random(c->h->world, c->h->fickle ? 2 : SLOW_ONCE_IN) ? WORK_NS : SLOW_NS;
		r = fiber_sleep_until(env_now(c->env) + world_random(c->h->world, most_ns));
		bool had_time = !r || world_random(c->h->world, 2);
		if (had_time &&
		    !sim_env(c->env)->dead) /* a thread ends with its process, before a daemon hears of it */
			work_run(work);
		core_work_done(c->core, work);
		wake_all(&c->place);
	}
	return r;
}

static void start_threads(struct client *c)
{
	SPARED;
	CHECK(fiber_start(&c->nursery, "pump", pump, c) == 0 && fiber_start(&c->nursery, "hand", hand, c) == 0);
}

/* A test's own, which does not fail. */
static void copy_answer(struct buf *to, const struct buf *answer)
{
	SPARED;
	CHECK(!buf_append(to, answer->ptr, answer->len));
}

int client_begin(struct client *c, struct history *h, struct env *env, const char *address)
{
	struct core_events events = { on_arena, c };
	struct stream_events ready = { on_ready, c };
	struct core_future greeted;

	*c = (struct client){ .h = h, .env = env };
	for (unsigned i = 0; i < h->n_nodes; i++)
		c->node = strcmp(h->nodes[i].socket, address) == 0 ? i : c->node;
	waitplace_init(&c->place);
	nursery_init(&c->nursery, env->loop);
	int r = env->ops->connect(env, address, &ready, &c->stream);
	while (!r && (r = env->ops->stream_status(c->stream)) == -EINPROGRESS)
		r = wait_at(&c->place, env_in_ms(env, GREET_MS));
	if (r)
		return r;
	r = core_new(&events, &c->core);
	if (r)
		return r;
	core_future_init(&greeted, NULL);
	core_attach_greeted(c->core, &greeted);
	start_threads(c);
	r = client_await(c, &greeted, GREET_MS, "the greeting");
	core_future_forget(&greeted);
	return r;
}

void client_end(struct client *c)
{
	if (c->core)
		core_lose(c->core, -ECONNABORTED, "the client ends");
	if (c->env)
		nursery_fini(&c->nursery);
	if (c->core)
		core_free(c->core);
	if (c->stream)
		c->env->ops->close(c->stream);
	while (c->n_arenas)
		c->env->ops->arena_free(c->env, &c->arenas[--c->n_arenas]);
	*c = (struct client){ 0 };
}

int client_await(struct client *c, struct core_future *future, uint64_t limit_ms, const char *what)
{
	uint64_t deadline_ns = env_in_ms(c->env, limit_ms);
	int r = 0;

	client_stir(c);
	while (!future->over && !r)
		r = wait_at(&c->place, deadline_ns);
	if (r == -ETIMEDOUT && !sim_env(c->env)->dead) {
		history_fail(c->h, "%s: %s is not over after %" PRIu64 " ms", c->env->name, what, limit_ms);
		core_lose(c->core, -ETIMEDOUT, "it took too long");
	}
	if (r)
		return r;
	if (future->error.code)
		world_tell(c->h->world, c->env, "%s: %s: %s", what, error_name(future->error.code), future->error.text);
	return future->error.code;
}

int client_call(struct client *c, enum msg_type type, struct buf *body, int r, uint32_t deadline_ms, struct buf *answer)
{
	struct core_call *call = NULL;

	CHECK(!r);
	c->asked_ns = env_now(c->env);
	r = core_call_start(c->core, type, view_buf(body), deadline_ms, NULL, &call, NULL);
	buf_fini(body);
	if (r)
		return r;
	r = client_await(c, &call->future, deadline_ms + SLACK_MS, msg_type_name(type));
	if (!r && answer)
		copy_answer(answer, &call->answer);
	core_call_drop(call);
	return r;
}

/* ---- reading ---- */

int client_open(struct client *c, unsigned bundle, const char *spec, uint64_t group, struct buf *answer,
		struct msg_open_reply *ret_open)
{
	struct msg_open open = { view_str(bundle_names[bundle]), view_str(spec), group };
	struct buf body = { 0 };
	int r = client_call(c, MSG_OPEN, &body, msg_open_encode(&open, &body), CALL_MS, answer);

	if (!r)
		CHECK(!msg_open_reply_decode(view_buf(answer), ret_open));
	return r;
}

void client_close(struct client *c, uint64_t handle)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	struct msg_handle m = { handle };

	CHECK(!msg_handle_encode(&m, &body));
	core_tell(c->core, MSG_CLOSE, view_buf(&body));
	client_stir(c);
}

/* What a rank asks for of an item: shares of another number of ranks, a box in the middle, or the whole. */
static struct box wanted(struct history *h, const struct item *item, uint32_t rank, uint32_t ranks)
{
	struct box box = item->whole;

	if (!ranks || item->bits < 8)
		return box;
	if (box.ndim && world_random(h->world, 2)) {
		box.start[0] = box.count[0] * rank / ranks;
		box.count[0] = box.count[0] * (rank + 1) / ranks - box.start[0];
	}
	for (unsigned d = 0; d < box.ndim && world_random(h->world, 2); d++) {
		uint64_t skip = world_random(h->world, box.count[d] + 1);

		box.start[d] += skip;
		box.count[d] = world_random(h->world, box.count[d] - skip + 1);
	}
	return box;
}

struct target {
	struct item item;
	struct box box;
	uint8_t *bytes;
	uint64_t n;
};

int client_load(struct client *c, struct core_group *group, uint64_t handle, const struct attempt *a, uint32_t rank,
		uint32_t ranks)
{
	struct target *targets = must_alloc(WANTS_MAX * sizeof(*targets));
	struct core_load *load = NULL;
	struct core_future future;
	unsigned n = 0;
	int r;

	CHECK(!core_load_new(c->core, group, handle, &load));
	for (unsigned i = 0; i < a->n_items; i++) {
		for (uint64_t times = ranks ? world_random(c->h->world, 3) : 1; times; times--) {
			struct target *t = &targets[n++];

			t->item = truth_item(a, i, 0);
			t->box = wanted(c->h, &t->item, rank, ranks);
			t->n = truth_bytes(&t->item, &t->box);
			t->bytes = must_alloc(t->n);
			memset(t->bytes, UNTOUCHED, t->n);
			struct core_want want = { view_str(t->item.name), t->item.bits, t->box, t->bytes, NULL };
			CHECK(!core_load_add(load, &want, NULL));
		}
	}
	core_future_init(&future, NULL);
	core_load_attach(load, &future);
	r = core_load_submit(load, NULL);
	if (!r)
		r = client_await(c, &future, LOAD_MS, "LOAD");
	for (unsigned i = 0; !r && i < n; i++)
		if (!truth_equals(a, &targets[i].item, &targets[i].box, targets[i].bytes))
			history_fail(c->h, "%s: item %s of version %" PRIu64 " of %s holds other bytes than save %u",
				     c->env->name, targets[i].item.name, a->version, bundle_names[a->bundle], a->id);
	history_deed(c->h, r ? DEED_LOAD_FAILED : group ? DEED_LOAD_GROUPED : DEED_LOAD_ALONE);
	core_future_forget(&future);
	core_load_cancel(load);
	while (!core_load_is_quiet(load)) /* the hand lets go of the targets soon, also when it is killed */
		(void)wait_at_shielded(&c->place, env_in_ms(c->env, 1));
	core_load_drop(load);
	client_stir(c);
	for (unsigned i = 0; i < n; i++)
		free(targets[i].bytes);
	free(targets);
	return r;
}

/* The items of an opened version, page by page, against those of @a. */
static int check_items(struct client *c, uint64_t handle, const struct attempt *a)
{
	char after[16] = "";
	unsigned n = 0;
	int r;

	for (bool more = true; more;) {
		_cleanup_(buf_fini) struct buf body = { 0 }, answer = { 0 };
		struct msg_items m = { handle, { 0 }, view_str(after), PAGE };
		struct msg_items_reply reply;
		struct elem_item_info info;

		r = client_call(c, MSG_ITEMS, &body, msg_items_encode(&m, &body), CALL_MS, &answer);
		if (r)
			return r;
		CHECK(!msg_items_reply_decode(view_buf(&answer), &reply));
		for (more = reply.more; !elem_item_info_next(&reply.items, &info); n++) {
			struct item item = truth_item(a, n, 0);

			if (n >= a->n_items || !view_equal(info.name, view_str(item.name)) ||
			    info.element_bits != item.bits || !box_equal(&info.whole, &item.whole) ||
			    info.bytes != truth_bytes(&item, &item.whole))
				history_fail(c->h, "item %u of version %" PRIu64 " is not that of save %u", n,
					     a->version, a->id);
			snprintf(after, sizeof(after), "%.*s", (int)info.name.len, (const char *)info.name.ptr);
		}
		if (n > a->n_items)
			return 0;
	}
	if (n != a->n_items)
		history_fail(c->h, "version %" PRIu64 " has %u items, save %u has %u", a->version, n, a->id,
			     a->n_items);
	return 0;
}

int client_read(struct client *c, unsigned bundle, const char *spec)
{
	_cleanup_(buf_fini) struct buf answer = { 0 };
	struct msg_open_reply open;
	int r = client_open(c, bundle, spec, 0, &answer, &open);
	const struct attempt *a = r ? NULL : truth_seen(c, bundle, open.number, open.step, open.attributes);

	if (!a)
		return r ? r : -EPROTO;
	r = check_items(c, open.handle, a);
	if (!r)
		r = client_load(c, NULL, open.handle, a, 0, 0);
	if (r == -ERR_EDELETED && (c->h->calm || c->h->gentle))
		history_fail(c->h, "version %" PRIu64 " of %s was deleted while it was open", open.number,
			     bundle_names[bundle]);
	client_close(c, open.handle);
	return r;
}

/* ---- lists ---- */

struct promised { /* when a list was asked for */
	const struct attempt *a;
	bool listed;
};

static void note_version(struct client *c, unsigned bundle, const struct elem_version *v, struct promised *promised,
			 unsigned n, struct buf *text)
{
	struct attempt *a = truth_seen(c, bundle, v->number, v->step, v->attributes);

	for (unsigned i = 0; a && i < n; i++)
		promised[i].listed |= promised[i].a == a;
	if (a && v->n_items != a->n_items)
		history_fail(c->h, "version %" PRIu64 " is listed with %" PRIu64 " items", v->number, v->n_items);
	CHECK(!buf_printf(
		text,
		"%s %" PRIu64 " step %" PRIu64 " save %u, %" PRIu64 " items, %" PRIu64 " bytes, stored %" PRIu64 "\n",
		bundle_names[bundle], v->number, v->step, a ? a->id : 0, v->n_items, v->bytes, v->stored_bytes));
}

int client_list(struct client *c, unsigned bundle, struct buf *text)
{
	struct history *h = c->h;
	struct promised *promised = must_alloc(h->n_attempts * sizeof(*promised));
	uint64_t after = 0;
	unsigned n = 0;
	int r = 0;

	for (unsigned i = 0; i < h->n_attempts; i++)
		if (h->attempts[i]->bundle == bundle && h->attempts[i]->durable && !truth_may_go(h, h->attempts[i]))
			promised[n++].a = h->attempts[i];
	for (bool more = true; more && !r;) {
		_cleanup_(buf_fini) struct buf body = { 0 }, answer = { 0 };
		struct msg_list m = { .bundle = view_str(bundle_names[bundle]), .after_number = after, .limit = PAGE };
		struct msg_list_reply reply;
		struct elem_version version;
		struct elem_label label;

		r = client_call(c, MSG_LIST, &body, msg_list_encode(&m, &body), CALL_MS, &answer);
		if (r)
			break;
		CHECK(!msg_list_reply_decode(view_buf(&answer), &reply));
		more = reply.more;
		while (!elem_version_next(&reply.versions, &version)) {
			note_version(c, bundle, &version, promised, n, text);
			after = version.number;
		}
		while (!elem_label_next(&reply.labels, &label))
			CHECK(!buf_printf(text, "%s %.*s -> %" PRIu64 "\n", bundle_names[bundle], (int)label.label.len,
					  (const char *)label.label.ptr, label.number));
	}
	if (r == -ENOENT) /* no such bundle */
		r = 0;
	for (unsigned i = 0; !r && i < n; i++)
		if (!promised[i].listed && !truth_may_go(h, promised[i].a))
			history_fail(h, "durable version %" PRIu64 " of %s is not listed", promised[i].a->version,
				     bundle_names[bundle]);
	free(promised);
	return r;
}

int client_collect(struct client *c, uint64_t *ret_unclear)
{
	struct history *h = c->h;
	_cleanup_(buf_fini) struct buf body = { 0 }, answer = { 0 };
	const struct msg_collect m = { 0 };
	struct msg_collect_reply reply;
	struct elem_stat figure;
	struct elem_name key;
	int r = client_call(c, MSG_COLLECT, &body, msg_collect_encode(&m, &body), COLLECT_MS, &answer);

	if (r)
		return r;
	CHECK(!msg_collect_reply_decode(view_buf(&answer), &reply));
	while (!elem_name_next(&reply.unclear, &key))
		world_tell(h->world, NULL, "not understood: %.*s", (int)key.name.len, (const char *)key.name.ptr);
	while (!elem_stat_next(&reply.counts, &figure)) {
		if (figure.value && view_equal(figure.name, view_str("packs_missing")))
			history_fail(h, "%" PRIu64 " packs of versions are missing", figure.value);
		if (view_equal(figure.name, view_str("objects_unclear")))
			*ret_unclear = figure.value;
		if (figure.value && view_equal(figure.name, view_str("objects_freed")))
			history_deed(h, DEED_COLLECTED);
		if (figure.value && view_equal(figure.name, view_str("tombstones_folded")))
			history_deed(h, DEED_FOLDED);
	}
	return 0;
}
