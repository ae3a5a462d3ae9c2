/*
 * door/http.c: the HTTP door, on libmicrohttpd. Its threads touch nothing of the loop's: they post a question and wait for its answer.
 */
#include "door/http.h"

#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/cleanup.h"
#include "base/counter.h"
#include "env/fiber.h"

#define HTTP_MAGIC	  UINT32_C(0x70747468)
#define STACK_BYTES	  (256u << 10) /* sanitizers need more than the usual 64 KiB */
#define LISTEN_QUEUE	  32
#define PORT_DEFAULT_HOST "127.0.0.1"

/* A connection from when it is accepted until it is closed, so that it can be cut off. */
struct guest {
	int fd; /* -1: free */
	uint64_t since_ms;
};

struct door_http {
	uint32_t magic;
	struct env *env;
	struct door_http_options options;
	char address[128];
	struct MHD_Daemon *mhd;
	pthread_mutex_t lock; /* of guests */
	struct guest guests[HTTP_CONNECTIONS_MAX];
	struct nursery nursery; /* questions that wait */
};

/* ---- questions to the loop ------------------------------------------------------------------------------------------------ */

/* Counted: whoever asked may have given up when the loop comes to it. */
struct question {
	unsigned refs; /* atomic */
	struct door_http *door;
	struct task task;
	bool ready; /* /readyz, else the gauges */
	pthread_mutex_t lock;
	pthread_cond_t answered;
	bool done;
	int result;
	struct error error;
};

static void question_put(struct question *q)
{
	if (__atomic_sub_fetch(&q->refs, 1, __ATOMIC_ACQ_REL))
		return;
	pthread_cond_destroy(&q->answered);
	pthread_mutex_destroy(&q->lock);
	free(q);
}

static void question_answer(struct question *q, int result)
{
	pthread_mutex_lock(&q->lock);
	q->result = result;
	q->done = true;
	pthread_cond_signal(&q->answered);
	pthread_mutex_unlock(&q->lock);
	question_put(q);
}

static int look_whether_ready(void *arg)
{
	struct question *q = arg;
	const struct door_http_options *options = &q->door->options;

	question_answer(q, options->ready(options->arg, env_in_ms(q->door->env, HTTP_READY_MS), &q->error));
	return 0;
}

static void on_question(struct task *task)
{
	struct question *q = container_of(task, struct question, task);
	struct door_http *door = q->door;

	if (!q->ready) {
		door->options.gauges(door->options.arg);
		question_answer(q, 0);
		return;
	}
	int r = fiber_start(&door->nursery, "readyz", look_whether_ready, q);
	if (r)
		question_answer(q, error_set(&q->error, r, "the daemon has no fiber free"));
}

static struct question *question_new(struct door_http *door, bool ready)
{
	struct question *q = calloc(1, sizeof(*q));
	pthread_condattr_t attributes;

	if (!q)
		return NULL;
	q->refs = 2; /* the thread's and the loop's */
	q->door = door;
	q->ready = ready;
	q->task.fn = on_question;
	pthread_mutex_init(&q->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&q->answered, &attributes);
	pthread_condattr_destroy(&attributes);
	return q;
}

static struct timespec in_ms(uint64_t ms)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	at.tv_sec += (time_t)(ms / 1000);
	at.tv_nsec += (long)(ms % 1000) * 1000000;
	at.tv_sec += at.tv_nsec / 1000000000;
	at.tv_nsec %= 1000000000;
	return at;
}

/* Asks the loop and waits, on a thread of the door's. */
static int ask(struct door_http *door, bool ready, struct error *e)
{
	uint64_t patience_ms = HTTP_ASK_MS + (ready ? HTTP_READY_MS : 0);
	struct timespec until = in_ms(patience_ms);
	struct question *q = question_new(door, ready);
	int r = 0;

	if (!q)
		return error_set(e, -ENOMEM, "no memory");
	loop_post_remote(door->env->loop, &q->task);
	pthread_mutex_lock(&q->lock);
	while (!q->done && r != ETIMEDOUT)
		r = pthread_cond_timedwait(&q->answered, &q->lock, &until);
	if (q->done)
		r = q->result ? error_set(e, q->result, "%s", q->error.text) : 0;
	else
		r = error_set(e, -ETIMEDOUT, "the daemon's loop has not answered in %llu ms",
			      (unsigned long long)patience_ms);
	pthread_mutex_unlock(&q->lock);
	question_put(q);
	return r;
}

/* ---- answers -------------------------------------------------------------------------------------------------------------- */

static enum MHD_Result answer(struct MHD_Connection *connection, unsigned code, const char *type, struct view text)
{
	struct MHD_Response *response =
		MHD_create_response_from_buffer(text.len, (void *)(uintptr_t)text.ptr, MHD_RESPMEM_MUST_COPY);

	if (!response)
		return MHD_NO;
	MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
	MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
	MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
	if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
		MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
	count(code == MHD_HTTP_OK		  ? COUNT_HTTP_200 :
	      code == MHD_HTTP_NOT_FOUND	  ? COUNT_HTTP_404 :
	      code == MHD_HTTP_METHOD_NOT_ALLOWED ? COUNT_HTTP_405 :
						    COUNT_HTTP_503,
	      1);
	enum MHD_Result r = MHD_queue_response(connection, code, response);
	MHD_destroy_response(response);
	return r;
}

static enum MHD_Result answer_words(struct MHD_Connection *connection, unsigned code, const char *words)
{
	char text[ERROR_TEXT_MAX + 2];
	int n = snprintf(text, sizeof(text), "%s\n", words);

	return answer(connection, code, "text/plain; charset=utf-8", view_of(text, (size_t)n));
}

static enum MHD_Result answer_metrics(struct door_http *door, struct MHD_Connection *connection)
{
	_cleanup_(buf_fini) struct buf text = { 0 };
	struct error e = { 0 };

	if (ask(door, false, &e))
		return answer_words(connection, MHD_HTTP_SERVICE_UNAVAILABLE, e.text);
	door->options.measure(door->options.arg);
	if (counter_expose(&text))
		return answer_words(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "no memory");
	return answer(connection, MHD_HTTP_OK, "text/plain; version=0.0.4; charset=utf-8", view_buf(&text));
}

static enum MHD_Result answer_ready(struct door_http *door, struct MHD_Connection *connection)
{
	struct error e = { 0 };
	int r = ask(door, true, &e);

	if (!r)
		return answer_words(connection, MHD_HTTP_OK, "ready");
	return answer_words(connection, MHD_HTTP_SERVICE_UNAVAILABLE, *e.text ? e.text : error_meaning(r));
}

static enum MHD_Result serve(void *arg, struct MHD_Connection *connection, const char *url, const char *method,
			     const char *version, const char *upload, size_t *upload_len, void **context)
{
	struct door_http *door = arg;

	if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
		return answer_words(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD are served");
	if (!strcmp(url, "/metrics"))
		return answer_metrics(door, connection);
	if (!strcmp(url, "/healthz"))
		return answer_words(connection, MHD_HTTP_OK, "alive");
	if (!strcmp(url, "/readyz"))
		return answer_ready(door, connection);
	return answer_words(connection, MHD_HTTP_NOT_FOUND, "there are /metrics, /healthz and /readyz");
}

/* ---- guests --------------------------------------------------------------------------------------------------------------- */

static uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static int connection_fd(struct MHD_Connection *connection)
{
	const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);

	return info ? info->connect_fd : -1;
}

/* One more comes: is there a place, or a guest who has had his time? Such a one is cut off, and its place is free in a moment. */
static enum MHD_Result admit(void *arg, const struct sockaddr *address, socklen_t len)
{
	struct door_http *door = arg;
	uint64_t now = now_ms();
	bool place = false;

	pthread_mutex_lock(&door->lock);
	for (size_t i = 0; i < HTTP_CONNECTIONS_MAX; i++)
		place |= door->guests[i].fd < 0;
	for (size_t i = 0; !place && i < HTTP_CONNECTIONS_MAX; i++)
		if (now - door->guests[i].since_ms > HTTP_WHOLE_MS)
			shutdown(door->guests[i].fd, SHUT_RDWR);
	pthread_mutex_unlock(&door->lock);
	return place ? MHD_YES : MHD_NO;
}

static void note_guest(void *arg, struct MHD_Connection *connection, void **context,
		       enum MHD_ConnectionNotificationCode code)
{
	struct door_http *door = arg;
	bool comes = code == MHD_CONNECTION_NOTIFY_STARTED;
	int fd = connection_fd(connection), wanted = comes ? -1 : fd;

	pthread_mutex_lock(&door->lock);
	for (size_t i = 0; i < HTTP_CONNECTIONS_MAX; i++) {
		if (door->guests[i].fd != wanted)
			continue;
		door->guests[i] = (struct guest){ .fd = comes ? fd : -1, .since_ms = now_ms() };
		break;
	}
	pthread_mutex_unlock(&door->lock);
}

/* ---- life ------------------------------------------------------------------------------------------------------------------ */

/* Cuts "PORT", "HOST:PORT" or "[HOST]:PORT" into its parts. */
static int parse_address(const char *text, char host[64], char port[8], struct error *e)
{
	const char *colon = strrchr(text, ':'), *begin = text;
	size_t len = colon ? (size_t)(colon - text) : 0;

	if (len >= 2 && text[0] == '[' && text[len - 1] == ']') {
		begin++;
		len -= 2;
	}
	if ((colon && !len) || len >= 64 || strlen(colon ? colon + 1 : text) >= 8)
		return error_set(e, -EINVAL, "http: \"%s\" is not allowed; it must be PORT or ADDRESS:PORT", text);
	snprintf(host, 64, "%.*s", colon ? (int)len : (int)strlen(PORT_DEFAULT_HOST),
		 colon ? begin : PORT_DEFAULT_HOST);
	snprintf(port, 8, "%s", colon ? colon + 1 : text);
	return 0;
}

static int listen_on(const struct addrinfo *info)
{
	int on = 1, fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	if (fd < 0)
		return -errno;
	(void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (!bind(fd, info->ai_addr, info->ai_addrlen) && !listen(fd, LISTEN_QUEUE))
		return fd;
	int r = -errno;
	close(fd);
	return r;
}

static int open_socket(const char *text, int *ret_fd, struct error *e)
{
	const struct addrinfo hints = { .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE,
					.ai_socktype = SOCK_STREAM };
	struct addrinfo *info = NULL;
	char host[64], port[8];
	int r = parse_address(text, host, port, e);

	if (r)
		return r;
	if (getaddrinfo(host, port, &hints, &info))
		return error_set(e, -EINVAL, "http: \"%s\" is not allowed; it must be PORT or ADDRESS:PORT, in numbers",
				 text);
	int fd = listen_on(info);
	freeaddrinfo(info);
	if (fd < 0)
		return error_set(e, fd, "http: cannot listen on %s: %s", text, strerror(-fd));
	*ret_fd = fd;
	return 0;
}

static void read_address(int fd, char *out, size_t size)
{
	struct sockaddr_storage address;
	socklen_t len = sizeof(address);
	char host[64], port[8];

	if (getsockname(fd, (struct sockaddr *)&address, &len) ||
	    getnameinfo((struct sockaddr *)&address, len, host, sizeof(host), port, sizeof(port),
			NI_NUMERICHOST | NI_NUMERICSERV))
		return;
	snprintf(out, size, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
}

static int start(struct door_http *door, int fd)
{
	door->mhd = MHD_start_daemon(
		MHD_USE_THREAD_PER_CONNECTION | MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL | MHD_USE_ITC, 0, admit,
		door, serve, door, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
		(unsigned)(2 * HTTP_CONNECTIONS_MAX), /* admit() decides before it comes to that */
		MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)HTTP_IDLE_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
		(size_t)HTTP_HEAD_MAX, MHD_OPTION_THREAD_STACK_SIZE, (size_t)STACK_BYTES, MHD_OPTION_NOTIFY_CONNECTION,
		note_guest, door, MHD_OPTION_END);
	return door->mhd ? 0 : -EAGAIN;
}

int door_http_new(struct env *env, const struct door_http_options *options, struct door_http **ret, struct error *e)
{
	int fd = -1, r = open_socket(options->address, &fd, e);

	if (r)
		return r;
	struct door_http *door = calloc(1, sizeof(*door));
	if (!door) {
		close(fd);
		return error_set(e, -ENOMEM, "no memory for the HTTP door");
	}
	door->magic = HTTP_MAGIC;
	door->env = env;
	door->options = *options;
	door->options.address = NULL; /* the caller's */
	for (size_t i = 0; i < HTTP_CONNECTIONS_MAX; i++)
		door->guests[i].fd = -1;
	pthread_mutex_init(&door->lock, NULL);
	nursery_init(&door->nursery, env->loop);
	read_address(fd, door->address, sizeof(door->address));
	r = start(door, fd);
	if (r) { /* whether the socket was closed is not said: the process is about to end */
		door_http_free(door);
		return error_set(e, r, "http: its thread does not start");
	}
	*ret = door;
	return 0;
}

const char *door_http_address(const struct door_http *door)
{
	return door->address;
}

/* On a worker: it joins threads, and some of them may wait for the loop. */
static int stop_on_worker(void *arg)
{
	struct door_http *door = arg;

	MHD_stop_daemon(TAKE(door->mhd));
	return 0;
}

void door_http_stop(struct door_http *door)
{
	CHECK_MAGIC(door, HTTP_MAGIC);
	if (door->mhd)
		(void)env_call(door->env, stop_on_worker, door);
	nursery_fini(&door->nursery); /* what was asked and nobody waits for any more */
}

void door_http_free(struct door_http *door)
{
	if (!door)
		return;
	CHECK_MAGIC(door, HTTP_MAGIC);
	CHECK(!door->mhd && nursery_is_empty(&door->nursery));
	pthread_mutex_destroy(&door->lock);
	door->magic = 0;
	free(door);
}
