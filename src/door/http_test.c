#include "door/http.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/counter.h"
#include "env/fiber.h"

#define PATIENCE_MS 60000

/* A door whose loop runs on a thread of its own, as in a daemon. The test is its client. */
static struct env *env;
static struct door_http *door;
static pthread_t loop_thread;
static struct task go_on, stop;
static struct waitplace ended;
static bool ending;
static int opened;
static struct error open_error;
static const char *address;
static sem_t is_open, hold, held; /* hold: what keeps the loop from its work */
static int ready_result;
static unsigned gauges_set, measured; /* atomic */

static void set_gauges(void *arg)
{
	__atomic_add_fetch(&gauges_set, 1, __ATOMIC_RELAXED);
	count_set(COUNT_PEERS_UP, 41);
}

static void measure(void *arg)
{
	__atomic_add_fetch(&measured, 1, __ATOMIC_RELAXED);
	count_set(COUNT_OPEN_DESCRIPTORS, 42);
}

static int ready(void *arg, uint64_t deadline_ns, struct error *e)
{
	(void)fiber_sleep_until(env_in_ms(env, 1)); /* it may wait */
	return ready_result ? error_set(e, ready_result, "store: it is on fire") : 0;
}

static void on_stop(struct task *task)
{
	ending = true;
	wake_all(&ended);
}

static int live(void *arg)
{
	const struct door_http_options options = { .address = address,
						   .gauges = set_gauges,
						   .measure = measure,
						   .ready = ready };

	opened = door_http_new(env, &options, &door, &open_error);
	sem_post(&is_open);
	while (!opened && !ending)
		(void)wait_at(&ended, FOREVER);
	if (!opened)
		door_http_stop(door);
	loop_stop(env->loop);
	return 0;
}

static void *run_loop(void *arg)
{
	struct nursery nursery;

	nursery_init(&nursery, env->loop);
	if (fiber_start(&nursery, "test", live, NULL) || loop_run(env->loop))
		abort();
	return NULL;
}

static int open_at(const char *at)
{
	struct error e;

	address = at;
	ending = false;
	door = NULL;
	ready_result = 0;
	stop = (struct task){ .fn = on_stop };
	waitplace_init(&ended);
	sem_init(&is_open, 0, 0);
	sem_init(&hold, 0, 0);
	sem_init(&held, 0, 0);
	assert_int_equal(env_real_new("test", 2, &env, &e), 0);
	assert_int_equal(pthread_create(&loop_thread, NULL, run_loop, NULL), 0);
	sem_wait(&is_open);
	return opened;
}

static void close_door(void)
{
	loop_post_remote(env->loop, &stop);
	pthread_join(loop_thread, NULL);
	door_http_free(door);
	env_real_free(env);
}

static int setup(void **state)
{
	return open_at("0");
}

static int teardown(void **state)
{
	close_door();
	return 0;
}

/* ---- the client --------------------------------------------------------------------------------------------------------------- */

static int dial(void)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	assert_true(!strncmp(door_http_address(door), "127.0.0.1:", 10));
	to.sin_port = htons((uint16_t)strtol(door_http_address(door) + 10, NULL, 10));
	assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
	return fd;
}

static void say(int fd, const char *text)
{
	(void)!send(fd, text, strlen(text), MSG_NOSIGNAL);
}

/* All that comes until the door closes; empty when it does so at once. Closes @fd. */
static const char *hear(int fd)
{
	static char text[1 << 17];
	struct pollfd wait = { .fd = fd, .events = POLLIN };
	size_t len = 0;

	while (len < sizeof(text) - 1 && poll(&wait, 1, PATIENCE_MS) == 1) {
		ssize_t n = recv(fd, text + len, sizeof(text) - 1 - len, 0);

		if (n <= 0)
			break;
		len += (size_t)n;
	}
	close(fd);
	text[len] = 0;
	return text;
}

static const char *request(const char *method, const char *path)
{
	char text[256];
	int fd = dial();

	snprintf(text, sizeof(text), "%s %s HTTP/1.1\r\nHost: x\r\n\r\n", method, path);
	say(fd, text);
	return hear(fd);
}

static void assert_code(const char *reply, const char *code)
{
	if (strncmp(reply, "HTTP/1.1 ", 9) != 0 || strncmp(reply + 9, code, 3) != 0)
		fail_msg("%s was expected; the door said: %.300s", code, reply);
}

static bool body_is(const char *reply, const char *body)
{
	const char *at = strstr(reply, "\r\n\r\n");

	return at && !strcmp(at + 4, body);
}

/* ---- what it serves ------------------------------------------------------------------------------------------------------------- */

static void metrics_are_as_they_are_now(void **state)
{
	unsigned before = __atomic_load_n(&gauges_set, __ATOMIC_RELAXED);
	const char *reply = request("GET", "/metrics");

	assert_code(reply, "200");
	assert_non_null(strstr(reply, "Content-Type: text/plain; version=0.0.4"));
	assert_non_null(strstr(reply, "\nforebay_peers{state=\"up\"} 41\n"));
	assert_non_null(strstr(reply, "\nforebay_open_descriptors 42\n"));
	assert_int_equal(__atomic_load_n(&gauges_set, __ATOMIC_RELAXED), before + 1);
}

static void a_head_has_no_body(void **state)
{
	assert_code(request("HEAD", "/metrics"), "200");
	assert_true(body_is(request("HEAD", "/metrics"), ""));
}

static void alive_is_who_answers(void **state)
{
	assert_true(body_is(request("GET", "/healthz"), "alive\n"));
}

static void unready_is_503_with_the_reason(void **state)
{
	const char *reply = request("GET", "/readyz");

	assert_code(reply, "200");
	assert_true(body_is(reply, "ready\n"));
	__atomic_store_n(&ready_result, -EIO, __ATOMIC_SEQ_CST);
	reply = request("GET", "/readyz");
	assert_code(reply, "503");
	assert_true(body_is(reply, "store: it is on fire\n"));
}

static void what_is_not_there_is_404_and_what_would_change_it_405(void **state)
{
	uint64_t absent = count_value(COUNT_HTTP_404), refused = count_value(COUNT_HTTP_405);

	assert_code(request("GET", "/"), "404");
	assert_code(request("GET", "/metrics/"), "404");
	assert_code(request("GET", "/../etc/passwd"), "404");
	assert_code(request("POST", "/metrics"), "405");
	assert_code(request("DELETE", "/nowhere"), "405");
	assert_non_null(strstr(request("PUT", "/healthz"), "Allow: GET, HEAD"));
	assert_int_equal(count_value(COUNT_HTTP_404) - absent, 3);
	assert_int_equal(count_value(COUNT_HTTP_405) - refused, 3);
}

/* ---- who means harm --------------------------------------------------------------------------------------------------------------- */

static void a_head_without_end_costs_its_connection(void **state)
{
	int fd = dial();

	say(fd, "GET /healthz HTTP/1.1\r\n");
	for (int i = 0; i < 2 * HTTP_HEAD_MAX / 32; i++)
		say(fd, "X-Padding: 0123456789abcdefg\r\n");
	const char *reply = hear(fd);
	assert_true(!*reply || !strncmp(reply, "HTTP/1.1 4", 10));
	assert_code(request("GET", "/healthz"), "200");
}

static void garbage_costs_its_connection(void **state)
{
	static const char *const garbage[] = { "\x16\x03\x01\x02",
					       "\r\n\r\n\r\n",
					       "GET\r\n\r\n",
					       "A B C D E\r\n\r\n",
					       "GET /metrics HTTP/9.9\r\n\r\n",
					       "POST /metrics HTTP/1.1\r\nContent-Length: -1\r\n\r\n" };

	for (size_t i = 0; i < ARRAY_LEN(garbage); i++) {
		int fd = dial();

		say(fd, garbage[i]);
		shutdown(fd, SHUT_WR);
		assert_true(strncmp(hear(fd), "HTTP/1.1 200", 12) != 0);
	}
	assert_code(request("GET", "/healthz"), "200");
}

static uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

#define BYTE_MS 50 /* each sends one so often, so that none of them is idle */

static void guests_who_never_finish_keep_nobody_out_for_long(void **state)
{
	int slow[HTTP_CONNECTIONS_MAX];
	struct pollfd hung_up[HTTP_CONNECTIONS_MAX];
	uint64_t deadline_ms = now_ms() + HTTP_WHOLE_MS + PATIENCE_MS;
	const char *reply = "";

	for (size_t i = 0; i < ARRAY_LEN(slow); i++) {
		slow[i] = dial();
		hung_up[i] = (struct pollfd){ .fd = slow[i], .events = POLLIN };
		say(slow[i], "GET /healthz HTTP/1.1\r\nX: ");
	}
	while (strncmp(reply, "HTTP/1.1 200", 12) != 0) {
		assert_true(now_ms() < deadline_ms);
		for (size_t i = 0; i < ARRAY_LEN(slow); i++)
			say(slow[i], "x");
		(void)poll(hung_up, ARRAY_LEN(hung_up), BYTE_MS);
		reply = request("GET", "/healthz");
	}
	for (size_t i = 0; i < ARRAY_LEN(slow); i++)
		close(slow[i]);
}

static void hold_loop(struct task *task)
{
	sem_post(&held);
	sem_wait(&hold);
}

static void a_loop_that_hangs_is_told_and_healthz_still_answers(void **state)
{
	go_on = (struct task){ .fn = hold_loop };
	loop_post_remote(env->loop, &go_on);
	sem_wait(&held);
	const char *reply = request("GET", "/metrics");
	assert_code(reply, "503");
	assert_non_null(strstr(reply, "the daemon's loop has not answered in 2000 ms"));
	assert_code(request("GET", "/healthz"), "200");
	sem_post(&hold);
	assert_code(request("GET", "/metrics"), "200"); /* and what nobody waited for did no harm */
}

/* ---- addresses ----------------------------------------------------------------------------------------------------------------------- */

static void closing_ends_a_connection_that_waits(void **state)
{
	assert_int_equal(open_at("127.0.0.1:0"), 0);
	int fd = dial();
	say(fd, "GET /he");
	close_door();
	assert_string_equal(hear(fd), "");
}

static void an_address_that_cannot_be_had_is_named(void **state)
{
	static const struct {
		const char *address, *words;
	} cases[] = {
		{ "localhost:1", "http: \"localhost:1\" is not allowed; it must be PORT or ADDRESS:PORT, in numbers" },
		{ ":80", "http: \":80\" is not allowed" },
		{ "1.2.3.4:http", "http: \"1.2.3.4:http\" is not allowed" },
		{ "192.0.2.1:0", "http: cannot listen on 192.0.2.1:0: Cannot assign requested address" },
	};

	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		assert_true(open_at(cases[i].address) < 0);
		assert_true(!strncmp(open_error.text, cases[i].words, strlen(cases[i].words)));
		pthread_join(loop_thread, NULL);
		env_real_free(env);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(metrics_are_as_they_are_now, setup, teardown),
		cmocka_unit_test_setup_teardown(a_head_has_no_body, setup, teardown),
		cmocka_unit_test_setup_teardown(alive_is_who_answers, setup, teardown),
		cmocka_unit_test_setup_teardown(unready_is_503_with_the_reason, setup, teardown),
		cmocka_unit_test_setup_teardown(what_is_not_there_is_404_and_what_would_change_it_405, setup, teardown),
		cmocka_unit_test_setup_teardown(a_head_without_end_costs_its_connection, setup, teardown),
		cmocka_unit_test_setup_teardown(garbage_costs_its_connection, setup, teardown),
		cmocka_unit_test_setup_teardown(guests_who_never_finish_keep_nobody_out_for_long, setup, teardown),
		cmocka_unit_test_setup_teardown(a_loop_that_hangs_is_told_and_healthz_still_answers, setup, teardown),
		cmocka_unit_test(closing_ends_a_connection_that_waits),
		cmocka_unit_test(an_address_that_cannot_be_had_is_named),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
