/* The native door as a client sees it that speaks by hand, with everything behind it real: one node, one store, real sockets. */
#include "door/native.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"
#include "bundle/inside.h"
#include "bundle/shelf_suite.h"
#include "door/inside.h"

#define WAIT_MS 60000 /* for an answer: longer than a slow machine needs */

/* ---- the node ---------------------------------------------------------------------------------------------------------------- */

struct house {
	struct bed *bed;
	struct store *store;
	struct bundles *bundles;
	struct groups *groups;
	struct door_native *door;
	char socket[96];
	bool closed; /* the node is not ready */
};

static struct house house; /* of the story that runs */

static int ready(void *arg, struct error *e)
{
	const struct house *h = arg;

	return h->closed ? error_set(e, -EAGAIN, "the node has not joined yet") : 0;
}

static void house_open(struct house *h, struct bed *bed)
{
	struct cluster *cluster = bed->nodes[0].cluster;
	struct error e;

	*h = (struct house){ .bed = bed };
	snprintf(h->socket, sizeof(h->socket), "%s/socket", bed->dir);
	EXPECT_INT(store_new(bed->env, "local", bed->nodes[0].pool, cluster, bed->backend, &h->store), 0);
	EXPECT_INT(bundles_new(bed->env, cluster, bed->backend, &h->bundles), 0);
	EXPECT_INT(groups_new(bed->env, cluster, &h->store, 1, h->bundles, &h->groups), 0);
	const struct door_native_options options = {
		.socket = h->socket,
		.tenant = "local",
		.alone = true,
		.cluster = cluster,
		.groups = h->groups,
		.bundles = h->bundles,
		.store = h->store,
		.ready = ready,
		.arg = h,
	};
	EXPECT_CALL(door_native_new(bed->env, &options, &h->door, &e), 0, &e);
}

static void house_close(struct house *h)
{
	door_native_stop(h->door);
	EXPECT_INT(door_native_clients(h->door), 0);
	door_native_free(h->door);
	groups_stop(h->groups);
	groups_free(h->groups);
	bundles_free(h->bundles);
	store_free(h->store);
}

/* ---- a client ------------------------------------------------------------------------------------------------------------------ */

struct client {
	int fd;
	uint64_t number;
	struct frame_head head; /* of the frame taken last */
	struct buf body;
	int descriptor; /* that came with it, or -1 */
};

static int dial(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	memcpy(address.sun_path, path, strlen(path) + 1);
	CHECK(connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
	return fd;
}

static void client_open(struct client *c)
{
	*c = (struct client){ .fd = dial(house.socket), .descriptor = -1 };
}

static void client_close(struct client *c)
{
	if (c->fd >= 0)
		close(c->fd);
	if (c->descriptor >= 0)
		close(c->descriptor);
	c->fd = c->descriptor = -1;
	buf_fini(&c->body);
}

/* Lets the node run when the socket takes no more. */
static void put(int fd, const void *bytes, size_t len)
{
	const uint8_t *at = bytes;

	while (len) {
		ssize_t n = send(fd, at, len, MSG_NOSIGNAL | MSG_DONTWAIT);

		CHECK(n > 0 || errno == EAGAIN);
		if (n > 0) {
			at += n;
			len -= (size_t)n;
		} else {
			EXPECT_INT(fiber_sleep_until(env_in_ms(house.bed->env, 1)), 0);
		}
	}
}

static void send_frame(int fd, unsigned type, uint64_t number, unsigned flags, struct view body)
{
	const struct frame_head head = {
		.major = FRAME_MAJOR,
		.type = (uint16_t)type,
		.flags = flags,
		.request = number,
		.deadline_ms = WAIT_MS,
		.body_bytes = (uint32_t)body.len,
		.body_crc = crc32c(0, body.ptr, body.len),
	};
	uint8_t raw[FRAME_HEAD_BYTES];

	frame_encode(&head, raw);
	put(fd, raw, sizeof(raw));
	if (body.len)
		put(fd, body.ptr, body.len);
}

static void say(struct client *c, unsigned type, struct view body)
{
	send_frame(c->fd, type, ++c->number, 0, body);
}

/* Reads exactly @len bytes, letting the node run meanwhile. False: the connection has ended. */
static bool take_bytes(struct client *c, uint8_t *to, size_t len)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))];
	uint64_t deadline = env_in_ms(house.bed->env, WAIT_MS);

	while (len) {
		struct iovec iov = { to, len };
		struct msghdr message = { .msg_iov = &iov,
					  .msg_iovlen = 1,
					  .msg_control = control,
					  .msg_controllen = sizeof(control) };
		ssize_t n = recvmsg(c->fd, &message, MSG_DONTWAIT);

		if (n == 0 || (n < 0 && errno == ECONNRESET))
			return false;
		if (n < 0) {
			EXPECT(errno == EAGAIN && env_now(house.bed->env) < deadline);
			EXPECT_INT(fiber_sleep_until(env_in_ms(house.bed->env, 1)), 0);
			continue;
		}
		struct cmsghdr *with = CMSG_FIRSTHDR(&message);
		if (with && with->cmsg_type == SCM_RIGHTS)
			memcpy(&c->descriptor, CMSG_DATA(with), sizeof(int));
		to += n;
		len -= (size_t)n;
	}
	return true;
}

static bool take(struct client *c)
{
	uint8_t raw[FRAME_HEAD_BYTES];

	if (!take_bytes(c, raw, sizeof(raw)))
		return false;
	EXPECT_INT(frame_decode(raw, &c->head, NULL), 0);
	c->body.len = 0;
	EXPECT_INT(buf_append_zero(&c->body, c->head.body_bytes), 0);
	return take_bytes(c, c->body.ptr, c->head.body_bytes);
}

static void expect(struct client *c, unsigned type, unsigned flags)
{
	EXPECT(take(c));
	EXPECT_INT(c->head.type, type);
	EXPECT_INT(c->head.flags & ~FRAME_ARENA, flags);
}

/* The code of a failed answer, whose words contain @words. */
static void expect_failure(struct client *c, int code, const char *words)
{
	struct error e = { 0 };

	EXPECT(take(c));
	EXPECT_INT(c->head.flags, FRAME_REPLY | FRAME_FAILED);
	int r = body_get_failure(view_buf(&c->body), &e);
	if (!strstr(e.text, words))
		fprintf(stderr, "the words were: %s\n", e.text);
	EXPECT_INT(r, code);
	EXPECT(strstr(e.text, words));
}

static void expect_end(struct client *c)
{
	while (take(c))
		;
}

#define ENCODED(name, body, ...)                               \
	do {                                                   \
		const struct msg_##name _m = { __VA_ARGS__ };  \
		EXPECT_INT(msg_##name##_encode(&_m, body), 0); \
	} while (0)

#define ASK(c, type, name, ...)                                \
	do {                                                   \
		_cleanup_(buf_fini) struct buf _asked = { 0 }; \
		ENCODED(name, &_asked, __VA_ARGS__);           \
		say(c, type, view_buf(&_asked));               \
	} while (0)

static void greet(struct client *c)
{
	client_open(c);
	ASK(c, MSG_HELLO, hello, .major_min = FRAME_MAJOR, .major_max = FRAME_MAJOR);
	expect(c, MSG_HELLO, FRAME_REPLY);
	for (int i = 0; i < 2; i++) {
		expect(c, MSG_ARENA, 0);
		close(c->descriptor);
		c->descriptor = -1;
	}
}

/* ---- stories ------------------------------------------------------------------------------------------------------------------- */

static void (*current)(void);

static int play(struct bed *bed)
{
	house_open(&house, bed);
	current();
	house_close(&house);
	return 0;
}

static void run(void **state)
{
	bed_run(state, play);
}

static int set_up(void **state)
{
	current = (void (*)(void)) * state;
	return bed_setup(state);
}

static void hello_is_answered_and_arenas_follow(void)
{
	struct client c;
	struct msg_hello_reply reply;
	struct msg_arena arena;

	client_open(&c);
	ASK(&c, MSG_HELLO, hello, .major_min = FRAME_MAJOR, .major_max = FRAME_MAJOR + 3);
	expect(&c, MSG_HELLO, FRAME_REPLY);
	EXPECT_INT(msg_hello_reply_decode(view_buf(&c.body), &reply), 0);
	EXPECT_INT(reply.major, FRAME_MAJOR);
	EXPECT(view_equal(reply.node, view_str("n0")));
	for (int i = 0; i < 2; i++) {
		expect(&c, MSG_ARENA, 0);
		EXPECT_INT(msg_arena_decode(view_buf(&c.body), &arena), 0);
		EXPECT_INT(arena.writable, i == 0);
		EXPECT_INT(arena.bytes, BED_POOL_BYTES);
		EXPECT(c.descriptor >= 0);
		EXPECT_INT(lseek(c.descriptor, 0, SEEK_END), BED_POOL_BYTES);
		close(c.descriptor);
		c.descriptor = -1;
	}
	client_close(&c);
}

static void another_major_is_refused_naming_both(void)
{
	struct client c;

	client_open(&c);
	ASK(&c, MSG_HELLO, hello, .major_min = 8, .major_max = 9);
	expect_failure(&c, -ERR_EVERSION, "8 to 9");
	EXPECT(!take(&c));
	client_close(&c);
}

static void a_peer_is_refused(void)
{
	struct client c;

	client_open(&c);
	ASK(&c, MSG_HELLO, hello, .kind = 1, .major_min = FRAME_MAJOR, .major_max = FRAME_MAJOR);
	expect_failure(&c, -EPROTO, "clients");
	EXPECT(!take(&c));
	client_close(&c);
}

static void a_session_that_does_not_begin_with_hello_is_refused(void)
{
	struct client c;

	client_open(&c);
	say(&c, MSG_STATUS, (struct view){ 0 });
	expect_failure(&c, -EPROTO, "HELLO");
	EXPECT(!take(&c));
	client_close(&c);
}

static void garbage_costs_its_own_session_only(void)
{
	struct client good, bad;
	uint8_t junk[4096];

	greet(&good);
	greet(&bad);
	bed_fill(junk, sizeof(junk), 3);
	put(bad.fd, junk, sizeof(junk));
	expect_end(&bad);
	say(&good, MSG_PING, (struct view){ 0 });
	expect(&good, MSG_PING, FRAME_REPLY);
	client_close(&good);
	client_close(&bad);
}

static void an_unknown_type_is_answered(void)
{
	struct client c;

	greet(&c);
	say(&c, 4711, view_str("?"));
	expect_failure(&c, -ENOSYS, "4711");
	say(&c, MSG_GRANT, (struct view){ 0 }); /* a daemon's own word */
	expect_failure(&c, -ENOSYS, "GRANT");
	say(&c, MSG_FETCH, (struct view){ 0 }); /* a peer's */
	expect_failure(&c, -ENOSYS, "FETCH");
	client_close(&c);
}

static void an_answer_that_nobody_asked_for_ends_the_session(void)
{
	struct client c;

	greet(&c);
	send_frame(c.fd, MSG_JOIN, 1, FRAME_REPLY, (struct view){ 0 });
	expect_end(&c);
	client_close(&c);
}

static void what_is_not_held_is_not_found(void)
{
	struct client c;

	greet(&c);
	ASK(&c, MSG_SAVE, save, .group = 9, .bundle = view_str("b"));
	expect_failure(&c, -ENOENT, "9");
	ASK(&c, MSG_FILLED, filled, .group = 9);
	expect_failure(&c, -ENOENT, "9");
	ASK(&c, MSG_LOAD, load, .load = 1, .version = 5);
	expect_failure(&c, -ENOENT, "5");
	ASK(&c, MSG_ITEMS, items, .version = 5);
	expect_failure(&c, -ENOENT, "5");
	ASK(&c, MSG_LEAVE, handle, .handle = 5);
	expect_failure(&c, -ENOENT, "5");
	ASK(&c, MSG_CLOSE, handle, .handle = 5); /* closed is closed */
	expect(&c, MSG_CLOSE, FRAME_REPLY);
	ASK(&c, MSG_CANCEL, cancel, .number = 5);
	expect(&c, MSG_CANCEL, FRAME_REPLY);
	ASK(&c, MSG_RELEASE, release, .load = 5);
	say(&c, MSG_PING, (struct view){ 0 }); /* RELEASE is not answered at all */
	expect(&c, MSG_PING, FRAME_REPLY);
	client_close(&c);
}

/* Whatever the bytes: an answer to each, and a daemon that lives. */
static void random_bodies_harm_nobody(void)
{
	static const unsigned types[] = { MSG_JOIN,  MSG_LEAVE, MSG_SAVE, MSG_FILLED, MSG_CANCEL, MSG_OPEN,  MSG_ITEMS,
					  MSG_CLOSE, MSG_LOAD,	MSG_LIST, MSG_LABEL,  MSG_DELETE, MSG_VERIFY };
	struct client c;
	uint8_t body[96];

	greet(&c);
	for (uint64_t round = 0; round < 40; round++) {
		for (size_t i = 0; i < ARRAY_LEN(types); i++) {
			bed_fill(body, sizeof(body), round * 64 + i);
			for (size_t b = 0; b < sizeof(body); b++) /* small numbers make lengths that fit */
				if (body[b] > 16)
					body[b] = 0;
			say(&c, types[i], view_of(body, (size_t)(round * 7 % sizeof(body))));
			EXPECT(take(&c));
			EXPECT_INT(c.head.type, types[i]);
			EXPECT(c.head.flags & FRAME_REPLY);
		}
	}
	client_close(&c);
}

static void a_long_request_comes_in_parts(void)
{
	struct client c;
	_cleanup_(buf_fini) struct buf body = { 0 };

	greet(&c);
	ENCODED(label, &body, .bundle = view_str("no/such"), .label = view_str("prod"), .number = 3);
	send_frame(c.fd, MSG_LABEL, 70, FRAME_MORE, view_of(body.ptr, 5));
	say(&c, MSG_PING, (struct view){ 0 });
	expect(&c, MSG_PING, FRAME_REPLY);
	send_frame(c.fd, MSG_LABEL, 70, 0, view_of(body.ptr + 5, body.len - 5));
	expect_failure(&c, -ENOENT, "no/such");
	EXPECT_INT(c.head.request, 70);
	client_close(&c);
}

/* Each may have 64 MiB, and there are a thousand of them. */
static void who_does_not_read_gives_way_when_all_have_too_much(void)
{
	struct client deaf, good;

	greet(&deaf);
	greet(&good);
	for (int i = 0; i < 20000; i++) /* more than its socket takes */
		say(&deaf, MSG_PING, (struct view){ 0 });
	say(&good, MSG_PING, (struct view){ 0 });
	expect(&good, MSG_PING, FRAME_REPLY);
	EXPECT(house.door->unread > 0);
	house.door->unread += DOOR_ANSWERS_MAX; /* others' */
	say(&good, MSG_PING, (struct view){ 0 });
	expect(&good, MSG_PING, FRAME_REPLY);
	house.door->unread -= DOOR_ANSWERS_MAX;
	expect_end(&deaf);
	EXPECT_INT(house.door->unread, 0);
	say(&good, MSG_PING, (struct view){ 0 });
	expect(&good, MSG_PING, FRAME_REPLY);
	client_close(&deaf);
	client_close(&good);
}

/* It waits for its other rank, which never comes. */
static void ask_pair(struct client *c, uint32_t number)
{
	char name[32];

	snprintf(name, sizeof(name), "pair-%u", number);
	ASK(c, MSG_JOIN, join, .group = view_str(name), .run = view_str("r"), .rank = 0, .size = 2);
}

static void too_many_requests_at_once_are_refused(void)
{
	struct client c;

	greet(&c);
	for (uint32_t i = 0; i <= DOOR_CALLS_MAX; i++)
		ask_pair(&c, i);
	expect_failure(&c, -EBUSY, "under way");
	client_close(&c);
}

/* The session that was made first of those that are there. */
static struct session *first_session(void)
{
	return list_entry(house.door->sessions.next, struct session, link);
}

/* A request that takes a while to end. */
struct slow {
	struct waitplace place;
	bool over;
};

static int be_slow(void *arg)
{
	struct slow *slow = arg;

	while (!slow->over)
		(void)wait_at_shielded(&slow->place, env_in_ms(house.bed->env, WAIT_MS));
	return 0;
}

/* Two pieces come in the same turn, before what the largest held is given back: only that one gives way. */
static void who_gives_way_is_one_and_not_who_comes_next(void)
{
	struct client large, others[2];
	static struct slow slow; /* it is looked at when this story is over */

	slow.over = false;
	waitplace_init(&slow.place);
	greet(&large);
	struct session *session = first_session();
	greet(&others[0]);
	greet(&others[1]);
	session->request_bytes += DOOR_BYTES_MAX;
	house.door->bytes += DOOR_BYTES_MAX;
	EXPECT_INT(fiber_start(&session->nursery, "slow", be_slow, &slow), 0);
	for (int i = 0; i < 2; i++)
		send_frame(others[i].fd, MSG_LABEL, 7, FRAME_MORE, view_str("x"));
	expect_end(&large);
	for (int i = 0; i < 2; i++) {
		say(&others[i], MSG_PING, (struct view){ 0 });
		expect(&others[i], MSG_PING, FRAME_REPLY);
		client_close(&others[i]);
	}
	house.door->bytes -= DOOR_BYTES_MAX;
	slow.over = true;
	wake_all(&slow.place);
	client_close(&large);
}

/* As if its process were another user's. */
static void become(struct session *session, uint32_t uid)
{
	struct door_user *user = calloc(1, sizeof(*user));

	CHECK(user);
	*user = (struct door_user){ .uid = uid, .n_sessions = 1 };
	list_append(&house.door->users, &user->link);
	session->user->n_sessions--;
	session->user = user;
	session->uid = uid;
}

static void hold(struct session *session, uint64_t bytes)
{
	session->request_bytes += bytes;
	house.door->bytes += bytes;
}

/* The other user's client holds the most of all, but the crowd together holds more. */
static void a_crowd_gives_way_before_another_users_client(void)
{
	enum { CROWD = 3 };
	static const unsigned percent[] = { 40, 22, 20, 20 };
	struct client other, crowd[CROWD];
	unsigned n = 0;

	greet(&other);
	for (int i = 0; i < CROWD; i++)
		greet(&crowd[i]);
	become(first_session(), 4711);
	list_each(node, &house.door->sessions)
		hold(list_entry(node, struct session, link), DOOR_BYTES_MAX / 100 * percent[n++]);
	send_frame(crowd[2].fd, MSG_LABEL, 7, FRAME_MORE, view_str("x"));
	expect_end(&crowd[0]);
	house.door->bytes -= DOOR_BYTES_MAX / 100 * percent[1];
	say(&other, MSG_PING, (struct view){ 0 });
	expect(&other, MSG_PING, FRAME_REPLY);
	for (int i = 0; i < CROWD; i++)
		client_close(&crowd[i]);
	client_close(&other);
	house.door->bytes -= DOOR_BYTES_MAX / 100 * (percent[0] + percent[2] + percent[3]);
}

#ifdef __SANITIZE_THREAD__
enum { WAITING = 1 }; /* more fibers than these need more maps of TSan's shadow than a process may have */
#else
enum { WAITING = FIBERS_MAX / DOOR_CALLS_MAX };
#endif

/* Each of their requests waits for ranks that never come, and there are more of them than the daemon has fibers. */
static void a_crowd_that_waits_keeps_nobody_out(void)
{
	struct client *crowd = calloc(WAITING, sizeof(*crowd)), early, late;

	greet(&early);
	for (uint32_t i = 0; i < WAITING; i++) {
		greet(&crowd[i]);
		for (uint32_t k = 0; k < DOOR_CALLS_MAX; k++)
			ask_pair(&crowd[i], i * DOOR_CALLS_MAX + k);
	}
	greet(&late);
	ASK(&early, MSG_JOIN, join, .group = view_str("alone"), .run = view_str("r"), .size = 1);
	expect(&early, MSG_JOIN, FRAME_REPLY);
	ASK(&late, MSG_JOIN, join, .group = view_str("lone"), .run = view_str("r"), .size = 1);
	expect(&late, MSG_JOIN, FRAME_REPLY);
	for (uint32_t i = 0; i < WAITING; i++)
		client_close(&crowd[i]);
	client_close(&early);
	client_close(&late);
	free(crowd);
}

static void a_node_that_is_not_ready_says_why(void)
{
	struct msg_status_reply reply;
	struct client c;

	house.closed = true;
	greet(&c);
	ASK(&c, MSG_LIST, list, .limit = 1);
	expect_failure(&c, -EAGAIN, "not joined");
	say(&c, MSG_STATUS, (struct view){ 0 });
	expect(&c, MSG_STATUS, FRAME_REPLY);
	EXPECT_INT(msg_status_reply_decode(view_buf(&c.body), &reply), 0);
	EXPECT(view_equal(reply.not_joined, view_str("the node has not joined yet")));
	client_close(&c);
}

/* With what the index says; the door waits for that only for a moment. */
static void ask_status(struct client *c, struct msg_status_reply *ret)
{
	do {
		say(c, MSG_STATUS, (struct view){ 0 });
		expect(c, MSG_STATUS, FRAME_REPLY);
		EXPECT_INT(msg_status_reply_decode(view_buf(&c->body), ret), 0);
	} while (ret->index_words.len);
}

static void status_names_the_cluster_its_nodes_and_counters(void)
{
	struct client c;
	struct msg_status_reply reply;

	greet(&c);
	ask_status(&c, &reply);
	EXPECT(view_equal(reply.cluster, view_str("bed")) && view_equal(reply.node, view_str("n0")));
	EXPECT_INT(reply.nodes.count, BED_NODES);
	EXPECT(!reply.not_joined.len);
	EXPECT(reply.counters.count > 10);
	client_close(&c);
}

#define DEAF 120

/* So many nodes at an address that takes connections and never says a word. */
static void add_deaf_nodes(int *ret_listener)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(at);
	char address[64], key[16];

	*ret_listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(bind(*ret_listener, (struct sockaddr *)&at, len) == 0 && listen(*ret_listener, 2 * DEAF) == 0);
	CHECK(getsockname(*ret_listener, (struct sockaddr *)&at, &len) == 0);
	snprintf(address, sizeof(address), "tcp:127.0.0.1:%u", ntohs(at.sin_port));
	struct view words = view_str(address), domain = view_str("d");
	for (unsigned i = 0; i < DEAF; i++) {
		_cleanup_(cleanup_meta_req_free) struct meta_req *req = meta_req_new(META_TXN);
		_cleanup_(buf_fini) struct buf value = { 0 };

		snprintf(key, sizeof(key), "n/deaf-%03u", i);
		CHECK(req && !put_str(&value, &words) && !put_str(&value, &domain));
		const uint64_t incarnation = 1, rate = 0;
		CHECK(!put_u64(&value, &incarnation) && !put_u64(&value, &rate));
		CHECK(!meta_txn_put(req, view_str(key), view_buf(&value)));
		EXPECT_INT(meta_call_run(house.bed->meta, &req, env_in_ms(house.bed->env, WAIT_MS), NULL), 0);
	}
}

static void nodes_that_say_nothing_keep_no_answer_back(void)
{
	struct client c;
	struct msg_status_reply status;
	struct msg_trace_reply trace;
	struct elem_name name;
	struct elem_node node;
	unsigned n = 0, n_deaf = 0;
	int listener;

	add_deaf_nodes(&listener);
	greet(&c);
	do { /* to be answered within WAIT_MS, which is not enough for one after the other; with all whom the index names in time */
		ASK(&c, MSG_TRACE, trace, .save_id = 7);
		expect(&c, MSG_TRACE, FRAME_REPLY);
		EXPECT_INT(msg_trace_reply_decode(view_buf(&c.body), &trace), 0);
	} while (trace.silent.count < DEAF);
	EXPECT_INT(trace.silent.count, DEAF + BED_NODES - 1); /* the bed's others know no groups */
	while (!elem_name_next(&trace.silent, &name))
		n_deaf += name.name.len == strlen("deaf-000");
	EXPECT_INT(n_deaf, DEAF);
	ask_status(&c, &status);
	EXPECT_INT(status.nodes.count, BED_NODES + DEAF);
	while (!elem_node_next(&status.nodes, &node))
		n += !node.silent && node.up;
	EXPECT_INT(n,
		   1); /* itself: the bed's others answer, but not what was asked, so nothing is known of them either */
	client_close(&c);
	close(listener);
}

static void items_come_in_pages_and_by_name(void)
{
	struct shelf shelf = { house.bed, house.bundles };
	struct client c;
	struct msg_open_reply opened;
	struct msg_items_reply page;
	struct elem_item_info item;
	_cleanup_(buf_fini) struct buf name = { 0 };
	uint64_t seen = 0;

	shelf_save(&shelf, SHELF_BUNDLE, 5);
	greet(&c);
	ASK(&c, MSG_OPEN, open, .bundle = view_str(SHELF_BUNDLE), .version = view_str("latest"));
	expect(&c, MSG_OPEN, FRAME_REPLY);
	EXPECT_INT(msg_open_reply_decode(view_buf(&c.body), &opened), 0);
	do {
		ASK(&c, MSG_ITEMS, items, .version = opened.handle, .after = view_buf(&name), .limit = 1);
		expect(&c, MSG_ITEMS, FRAME_REPLY);
		EXPECT_INT(msg_items_reply_decode(view_buf(&c.body), &page), 0);
		EXPECT_INT(page.items.count, 1);
		EXPECT_INT(elem_item_info_next(&page.items, &item), 0);
		EXPECT(!seen || view_compare(item.name, view_buf(&name)) > 0);
		name.len = 0;
		EXPECT_INT(buf_append(&name, item.name.ptr, item.name.len), 0);
		seen++;
	} while (page.more);
	EXPECT_INT(seen, opened.n_items);
	ASK(&c, MSG_ITEMS, items, .version = opened.handle, .name = view_buf(&name));
	expect(&c, MSG_ITEMS, FRAME_REPLY);
	ASK(&c, MSG_ITEMS, items, .version = opened.handle, .name = view_str("nothing of that name"));
	expect_failure(&c, -ENOENT, "nothing of that name");
	ASK(&c, MSG_CLOSE, handle, .handle = opened.handle);
	expect(&c, MSG_CLOSE, FRAME_REPLY);
	ASK(&c, MSG_ITEMS, items, .version = opened.handle);
	expect_failure(&c, -ENOENT, "version");
	client_close(&c);
}

/* ---- ranks --------------------------------------------------------------------------------------------------------------------- */

static void ask_join(struct client *c, uint32_t rank, uint32_t size)
{
	ASK(c, MSG_JOIN, join, .group = view_str("job"), .run = view_str("r1"), .rank = rank, .size = size);
}

static uint64_t take_join(struct client *c)
{
	struct msg_join_reply reply;

	expect(c, MSG_JOIN, FRAME_REPLY);
	EXPECT_INT(msg_join_reply_decode(view_buf(&c->body), &reply), 0);
	return reply.handle;
}

static void a_rank_leaves_once(void)
{
	struct client c;

	greet(&c);
	ask_join(&c, 0, 1);
	uint64_t handle = take_join(&c);
	ASK(&c, MSG_LEAVE, handle, .handle = handle);
	expect(&c, MSG_LEAVE, FRAME_REPLY);
	ASK(&c, MSG_LEAVE, handle, .handle = handle);
	expect_failure(&c, -ENOENT, "group");
	client_close(&c);
}

/* Rank 0 offers a save that rank 1 never will; how that fails tells how rank 1 ended. */
static void expect_lost(struct client *c, uint64_t handle, const char *words)
{
	struct msg_stage m;

	ASK(c, MSG_SAVE, save, .group = handle, .save = 1, .bundle = view_str("ckpt"), .step = 1, .copies = 1);
	do {
		EXPECT(take(c));
	} while (c->head.type != MSG_STAGE);
	EXPECT_INT(msg_stage_decode(view_buf(&c->body), &m), 0);
	EXPECT_INT(m.code, ERR_ERANK);
	_cleanup_(cleanup_mem) char *text = view_dup(m.words);
	if (!strstr(text, words))
		fprintf(stderr, "the words were: %s\n", text);
	EXPECT(strstr(text, words));
}

static void a_closed_session_says_so(void)
{
	struct client first, second;

	greet(&first);
	greet(&second);
	ask_join(&first, 0, 2);
	ask_join(&second, 1, 2);
	uint64_t handle = take_join(&first);
	take_join(&second);
	client_close(&second);
	expect_lost(&first, handle, "it closed its session");
	client_close(&first);
}

/* In a process of its own: joins as rank 1, then says so on @ready and sleeps until it is killed. */
static void be_rank_1(const char *path, int ready_fd)
{
	_cleanup_(buf_fini) struct buf hello = { 0 }, join = { 0 };
	uint8_t bytes[4096]; /* a fiber's stack is small */
	int fd = dial(path);

	ENCODED(hello, &hello, .major_min = FRAME_MAJOR, .major_max = FRAME_MAJOR);
	ENCODED(join, &join, .group = view_str("job"), .run = view_str("r1"), .rank = 1, .size = 2);
	send_frame(fd, MSG_HELLO, 1, 0, view_buf(&hello));
	send_frame(fd, MSG_JOIN, 2, 0, view_buf(&join));
	CHECK(write(ready_fd, "", 1) == 1);
	while (recv(fd, bytes, sizeof(bytes), 0) > 0)
		;
	_exit(0);
}

static void a_killed_process_is_named(void)
{
	struct client first;
	char words[64];
	int pipe_fds[2];

	CHECK(pipe(pipe_fds) == 0);
	pid_t pid = fork();
	if (!pid)
		be_rank_1(house.socket, pipe_fds[1]);
	greet(&first);
	ask_join(&first, 0, 2);
	uint64_t handle = take_join(&first);
	CHECK(kill(pid, SIGKILL) == 0);
	snprintf(words, sizeof(words), "its process %d ended", (int)pid);
	expect_lost(&first, handle, words);
	CHECK(waitpid(pid, NULL, 0) == pid);
	close(pipe_fds[0]);
	close(pipe_fds[1]);
	client_close(&first);
}

static void stopping_ends_sessions_with_joins_under_way(void)
{
	struct client c;

	greet(&c);
	ask_join(&c, 0, 2);
	say(&c, MSG_PING, (struct view){ 0 });
	expect(&c, MSG_PING, FRAME_REPLY);
	door_native_stop(house.door);
	EXPECT_INT(door_native_clients(house.door), 0);
	expect_end(&c);
	client_close(&c);
}

#define STORY(f)                                         \
	{                                                \
#f, run, set_up, bed_teardown, (void *)f \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
		STORY(hello_is_answered_and_arenas_follow),
		STORY(another_major_is_refused_naming_both),
		STORY(a_peer_is_refused),
		STORY(a_session_that_does_not_begin_with_hello_is_refused),
		STORY(garbage_costs_its_own_session_only),
		STORY(an_unknown_type_is_answered),
		STORY(an_answer_that_nobody_asked_for_ends_the_session),
		STORY(what_is_not_held_is_not_found),
		STORY(random_bodies_harm_nobody),
		STORY(a_long_request_comes_in_parts),
		STORY(too_many_requests_at_once_are_refused),
		STORY(who_gives_way_is_one_and_not_who_comes_next),
		STORY(who_does_not_read_gives_way_when_all_have_too_much),
		STORY(a_crowd_that_waits_keeps_nobody_out),
		STORY(a_crowd_gives_way_before_another_users_client),
		STORY(a_node_that_is_not_ready_says_why),
		STORY(status_names_the_cluster_its_nodes_and_counters),
		STORY(nodes_that_say_nothing_keep_no_answer_back),
		STORY(items_come_in_pages_and_by_name),
		STORY(a_rank_leaves_once),
		STORY(a_closed_session_says_so),
		STORY(a_killed_process_is_named),
		STORY(stopping_ends_sessions_with_joins_under_way),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
