#include "client/session.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* ---- forks ---------------------------------------------------------------------------------------------------------------- */

static atomic_uint fork_number; /* how many forks lie between the first process with this library and this one */
static pthread_once_t process_once = PTHREAD_ONCE_INIT;
static int fork_watch_result;

static void in_child(void)
{
	atomic_fetch_add(&fork_number, 1);
}

static void prepare_process(void)
{
	digest_of(
		NULL,
		0); /* BLAKE3 looks at the processor once: before there are threads that would do so at the same time */
	fork_watch_result = -pthread_atfork(NULL, NULL, in_child);
}

bool session_is_foreign(const struct forebay_session *session)
{
	CHECK_MAGIC(session, SESSION_MAGIC);
	return session->fork_number != atomic_load(&fork_number);
}

/* ---- the lock --------------------------------------------------------------------------------------------------------------- */

int session_enter(struct forebay_session *session, struct error *e)
{
	if (session_is_foreign(session))
		return error_set(e, -ERR_EFORKED,
				 "this process was forked from the one that connected: it must connect by itself");
	pthread_mutex_lock(&session->lock);
	return 0;
}

static void rouse_pump(struct forebay_session *session)
{
	const uint64_t one = 1;

	if (session->wake >= 0 && write(session->wake, &one, sizeof(one)) < 0)
		return; /* full: it is roused already */
}

/* False: the socket takes no more now. */
static bool send_all(struct forebay_session *session)
{
	for (;;) {
		struct view out = core_output(session->core);

		if (!out.len || session->socket < 0)
			return true;
		if (session->send_broken) {
			core_sent(session->core, out.len);
			return true;
		}
		ssize_t n = send(session->socket, out.ptr, out.len, MSG_DONTWAIT | MSG_NOSIGNAL);
		if (n >= 0)
			core_sent(session->core, (size_t)n);
		else if (errno == EAGAIN)
			return false;
		else if (errno != EINTR) {
			/* The daemon's last words are still to be read. It may not know yet that they are the last. */
			session->send_broken = true;
			(void)shutdown(session->socket, SHUT_WR);
		}
	}
}

static void flush_all(struct forebay_session *session)
{
	if (!send_all(session))
		rouse_pump(session);
	if (core_has_work(session->core))
		pthread_cond_broadcast(&session->more_work);
}

/*
 * Of a session that is lost the daemon hears at once, whenever the application closes it: others wait for what will not come any more.
 * First nothing touches a span, since the daemon then takes them back.
 */
static void hang_up_if_lost(struct forebay_session *session)
{
	if (session->hung_up || session->socket < 0 || core_n_running(session->core) ||
	    !core_check(session->core, NULL))
		return;
	session->hung_up = true;
	(void)shutdown(session->socket, SHUT_RDWR);
}

/* What may wait goes along with the next request, or as soon as the byte thread has the socket back: within LINGER_US or two. */
void session_flush(struct forebay_session *session)
{
	hang_up_if_lost(session);
	if (core_is_urgent(session->core))
		flush_all(session);
	else if (core_has_work(session->core))
		pthread_cond_broadcast(&session->more_work);
}

void session_leave(struct forebay_session *session)
{
	session_flush(session);
	pthread_mutex_unlock(&session->lock);
}

void session_ref(struct forebay_session *session)
{
	session->refs++;
}

static void session_free(struct forebay_session *session)
{
	core_free(session->core);
	pthread_mutex_destroy(&session->lock);
	pthread_cond_destroy(&session->changed);
	pthread_cond_destroy(&session->more_work);
	pthread_cond_destroy(&session->idle);
	free(session->bytes);
	session->magic = 0;
	free(session->path);
	free(session);
}

void session_unref(struct forebay_session *session)
{
	pthread_mutex_lock(&session->lock);
	bool last = --session->refs == 0;
	pthread_mutex_unlock(&session->lock);
	if (last)
		session_free(session);
}

/* ---- the pump --------------------------------------------------------------------------------------------------------------- */

static void lose(struct forebay_session *session, int code, const char *words)
{
	struct error e;

	error_set(&e, code, "the daemon at %s %s", session->path, words);
	core_lose(session->core, code, e.text);
}

static void keep_descriptors(struct forebay_session *session, const int *descriptors, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		if (session->n_descriptors < DESCRIPTORS_MAX)
			session->descriptors[session->n_descriptors++] = descriptors[i];
		else
			close(descriptors[i]); /* the arena that misses it will say so */
	}
}

/* Under the lock. False: the conversation is over. */
static bool take_bytes(struct forebay_session *session, const uint8_t *bytes, ssize_t n)
{
	if (n == -EAGAIN || n == -EINTR)
		return true;
	if (n > 0)
		return !core_feed(session->core, bytes, (size_t)n, NULL);
	if (n == 0 || n == -ECONNRESET)
		lose(session, -ECONNRESET, "is gone: the connection ended");
	else
		lose(session, -ECONNRESET, "cannot be read from");
	return false;
}

static void run_some(struct forebay_session *session, struct work **some, unsigned n)
{
	pthread_mutex_unlock(&session->lock);
	for (unsigned i = 0; i < n; i++)
		work_run(some[i]);
	pthread_mutex_lock(&session->lock);
	for (unsigned i = 0; i < n; i++)
		core_work_done(session->core, some[i]);
	if (session->quiet_waiters)
		session_changed(session);
}

/* Little is done here and now, many blocks at a time: the lock costs as much as a small one. */
static void run_little_work(struct forebay_session *session)
{
	struct work *some[LITTLE_MOST];
	unsigned n;

	if (core_work_bytes(session->core) > INLINE_BYTES)
		return;
	do {
		for (n = 0; n < LITTLE_MOST && !session->stopping; n++) {
			some[n] = core_work_take(session->core);
			if (!some[n])
				break;
		}
		if (n)
			run_some(session, some, n);
	} while (n);
}

/*
 * Sends what is there, waits for bytes, for a rouse, or for @timeout_ms (-1: for ever), and takes in what has come. Under the lock
 * but while it waits.
 */
static void pump_once(struct forebay_session *session, int64_t timeout_ms)
{
	struct pollfd fds[] = { { .fd = session->socket, .events = POLLIN },
				{ .fd = session->wake, .events = POLLIN } };
	int descriptors[DESCRIPTORS_MAX];
	unsigned n_descriptors = 0;
	ssize_t n = -EAGAIN;
	uint64_t count;

	if (!send_all(session))
		fds[0].events |= POLLOUT;
	pthread_mutex_unlock(&session->lock);
	poll(fds, ARRAY_LEN(fds), timeout_ms > INT_MAX ? INT_MAX : (int)timeout_ms); /* EINTR is a spurious wake */
	if (fds[1].revents && read(fds[1].fd, &count, sizeof(count)) < 0)
		count = 0; /* somebody's raise was read before */
	if (fds[0].revents)
		n = socket_recv(fds[0].fd, session->bytes, descriptors, &n_descriptors);
	pthread_mutex_lock(&session->lock);
	keep_descriptors(session, descriptors, n_descriptors);
	if (!session->stopping && !take_bytes(session, session->bytes, n))
		session->ended = true;
	run_little_work(session);
	session_flush(session);
}

/* ---- waiting ------------------------------------------------------------------------------------------------------------------ */

static struct timespec time_in(int64_t us)
{
	struct timespec at;

	clock_gettime(CLOCK_MONOTONIC, &at);
	at.tv_sec += us / 1000000;
	at.tv_nsec += us % 1000000 * 1000;
	if (at.tv_nsec >= 1000000000) {
		at.tv_sec++;
		at.tv_nsec -= 1000000000;
	}
	return at;
}

/* Milliseconds until then, rounded up; 0: it is over. */
static int64_t left_ms(const struct timespec *at)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	int64_t ns = (int64_t)(at->tv_sec - now.tv_sec) * 1000000000 + (at->tv_nsec - now.tv_nsec);
	return ns > 0 ? (ns + 999999) / 1000000 : 0;
}

void session_changed(struct forebay_session *session)
{
	pthread_cond_broadcast(&session->changed);
	if (session->caller_pumps && !pthread_equal(pthread_self(), session->pump))
		rouse_pump(session); /* it waits at the socket */
}

void session_tell_over(struct forebay_session *session, struct core_future *future)
{
	session->n_waiting -= future->waiters;
	future->waiters = 0;
	session->turns++;
	session_changed(session);
}

/* Somebody else reads. */
static void wait_beside(struct forebay_session *session, struct core_future *future, const struct timespec *at)
{
	session->n_waiting++;
	future->waiters++;
	if (at)
		pthread_cond_timedwait(&session->changed, &session->lock, at);
	else
		pthread_cond_wait(&session->changed, &session->lock);
	if (future->over)
		return;
	session->n_waiting--;
	future->waiters--;
}

/* As the pump, until the future is over or it is time. */
static void wait_pumping(struct forebay_session *session, const struct core_future *future, const struct timespec *at)
{
	int64_t left = -1;

	session->pumped = session->caller_pumps = true;
	session->pump = pthread_self();
	session->turns++;
	while (!future->over && !session->ended && (!at || (left = left_ms(at)) > 0))
		pump_once(session, left);
	session->pumped = session->caller_pumps = false;
	if (session->n_waiting || session->quiet_waiters)
		pthread_cond_broadcast(&session->changed);
	if (session->byte_thread_sleeps)
		pthread_cond_signal(&session->idle);
}

int session_wait(struct forebay_session *session, struct core_future *future, int64_t timeout_ms)
{
	struct timespec deadline, *at = timeout_ms < 0 ? NULL : &deadline;

	if (at)
		deadline = time_in(timeout_ms * 1000);
	session_flush(session);
	while (!future->over) {
		if (at && !left_ms(at))
			return -ETIMEDOUT;
		if (session->pumped || session->ended)
			wait_beside(session, future, at);
		else
			wait_pumping(session, future, at);
	}
	return 0;
}

void session_wait_quiet(struct forebay_session *session, bool (*quiet)(const void *arg), const void *arg)
{
	session_flush(session);
	session->quiet_waiters++;
	while (!quiet(arg))
		pthread_cond_wait(&session->changed, &session->lock);
	session->quiet_waiters--;
}

/* ---- calls -------------------------------------------------------------------------------------------------------------------- */

void session_future_over(struct core_future *future)
{
	session_tell_over(future->arg, future);
}

static uint32_t deadline_of(int64_t timeout_ms)
{
	if (timeout_ms < 0 || timeout_ms >= UINT32_MAX)
		return UINT32_MAX;
	return timeout_ms ? (uint32_t)timeout_ms : 1;
}

int session_call(struct forebay_session *session, enum msg_type type, const struct buf *body, int encoded,
		 int64_t timeout_ms, struct buf *ret_answer, struct error *e)
{
	struct core_call *call = NULL;

	if (encoded)
		return error_set(e, encoded, "no memory for a request");
	int r = session_enter(session, e);
	if (r)
		return r;
	r = core_call_start(session->core, type, view_buf(body), deadline_of(timeout_ms), session_future_over, &call,
			    e);
	if (!r) {
		call->future.arg = session;
		r = session_wait(session, &call->future, timeout_ms < 0 ? -1 : timeout_ms + GRACE_MS);
		if (r)
			error_set(e, r, "the daemon at %s has not answered %s in time", session->path,
				  msg_type_name(type));
	}
	if (!r && call->future.error.code) {
		*e = call->future.error;
		r = e->code;
	} else if (!r) {
		*ret_answer = call->answer;
		call->answer = (struct buf){ 0 };
	}
	core_call_drop(call);
	session_leave(session);
	return r;
}

/* ---- the byte thread -------------------------------------------------------------------------------------------------------- */

/* Leaves the socket to callers. Returns when none has come for a moment: one that waits long, and then leaves, says so. */
static void stand_by(struct forebay_session *session)
{
	const struct timespec at = time_in(LINGER_US);
	uint64_t turn = session->turns;

	pthread_cond_timedwait(&session->idle, &session->lock, &at);
	if (session->pumped && session->turns == turn && !session->stopping) {
		session->byte_thread_sleeps = true;
		pthread_cond_wait(&session->idle, &session->lock);
		session->byte_thread_sleeps = false;
	}
}

static void *byte_thread(void *arg)
{
	struct forebay_session *session = arg;
	uint64_t seen = 0;

	pthread_mutex_lock(&session->lock);
	while (!session->stopping && !session->ended) {
		if (session->pumped || (session->turns != seen && !session->n_waiting)) {
			seen = session->turns;
			stand_by(session);
			continue;
		}
		session->pumped = true;
		pump_once(session, -1);
		session->pumped = false;
	}
	pthread_mutex_unlock(&session->lock);
	return NULL;
}

/* ---- copiers ------------------------------------------------------------------------------------------------------------------ */

static void *copy_thread(void *arg)
{
	struct forebay_session *session = arg;

	pthread_mutex_lock(&session->lock);
	while (!session->stopping) {
		struct work *work = core_work_take(session->core);

		if (!work) {
			pthread_cond_wait(&session->more_work, &session->lock);
			continue;
		}
		run_some(session, &work, 1);
		flush_all(session);
		hang_up_if_lost(session);
	}
	pthread_mutex_unlock(&session->lock);
	return NULL;
}

/* ---- life --------------------------------------------------------------------------------------------------------------------- */

/* Signals are for the application's threads. */
static int start_thread(pthread_t *ret, void *(*run)(void *arg), void *arg)
{
	sigset_t all, before;
	pthread_attr_t attr;

	sigfillset(&all);
	/* these are the thread's own doing: an application may handle those of its mapped files */
	sigdelset(&all, SIGBUS);
	sigdelset(&all, SIGSEGV);
	int r = pthread_attr_init(&attr);
	if (r)
		return -r;
	pthread_attr_setstacksize(&attr, THREAD_STACK);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	r = pthread_create(ret, &attr, run, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	return -r;
}

static unsigned default_threads(void)
{
	cpu_set_t cores;

	if (sched_getaffinity(0, sizeof(cores), &cores))
		return 1;
	unsigned n = (unsigned)CPU_COUNT(&cores);
	return n < 1 ? 1 : n > COPY_THREADS ? COPY_THREADS : n;
}

static struct forebay_session *session_new(const char *path)
{
	const struct core_events events = { .arena = socket_map_arena };
	struct forebay_session *session = calloc(1, sizeof(*session));
	struct core_events own = events;
	pthread_condattr_t attr;

	if (!session)
		return NULL;
	own.arg = session;
	session->path = strdup(path);
	session->bytes = malloc(RECV_BYTES);
	if (!session->path || !session->bytes || core_new(&own, &session->core)) {
		free(session->path);
		free(session->bytes);
		free(session);
		return NULL;
	}
	session->magic = SESSION_MAGIC;
	session->refs = 1;
	session->fork_number = atomic_load(&fork_number);
	session->socket = session->wake = -1;
	pthread_mutex_init(&session->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&session->changed, &attr);
	pthread_cond_init(&session->idle, &attr);
	pthread_condattr_destroy(&attr);
	pthread_cond_init(&session->more_work, NULL);
	return session;
}

static int start_threads(struct forebay_session *session, unsigned n, struct error *e)
{
	int r;

	session->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	r = session->wake < 0 ? -errno : start_thread(&session->byte_thread, byte_thread, session);
	session->byte_thread_runs = !r;
	while (!r && session->n_copy_threads < n) {
		r = start_thread(&session->copy_threads[session->n_copy_threads], copy_thread, session);
		if (!r)
			session->n_copy_threads++;
	}
	return r ? error_set(e, r, "cannot start threads: %s", error_meaning(r)) : 0;
}

static int wait_greeted(struct forebay_session *session, int timeout_ms, struct error *e)
{
	struct core_future greeted;

	core_future_init(&greeted, session_future_over);
	greeted.arg = session;
	pthread_mutex_lock(&session->lock);
	core_attach_greeted(session->core, &greeted);
	int r = session_wait(session, &greeted, timeout_ms);
	core_future_forget(&greeted);
	session_leave(session);
	if (r)
		return error_set(e, r, "the daemon at %s has not answered in %d ms", session->path, timeout_ms);
	if (greeted.error.code)
		*e = greeted.error;
	return greeted.error.code;
}

static const char *socket_path(const struct forebay_connect_options *options)
{
	const char *path = options->socket ? options->socket : getenv("FOREBAY_SOCKET");

	return path && *path ? path : DEFAULT_SOCKET;
}

static int connect_session(struct forebay_session *session, const struct forebay_connect_options *options,
			   struct error *e)
{
	int timeout_ms = options->timeout_ms ? options->timeout_ms : CONNECT_MS;
	unsigned n = options->threads ? options->threads : default_threads();
	int r = socket_connect(session->path, timeout_ms, &session->socket, e);

	if (!r)
		r = start_threads(session, n, e);
	return r ? r : wait_greeted(session, timeout_ms, e);
}

int forebay_connect(const struct forebay_connect_options *options, struct forebay_session **ret)
{
	struct forebay_connect_options own;
	struct error e = { 0 };

	pthread_once(&process_once, prepare_process);
	int r = fork_watch_result ? fork_watch_result :
				    api_take(&own, sizeof(own), options, "struct forebay_connect_options", &e);
	if (r)
		return api_result(r, &e);
	if (own.threads > COPY_THREADS_MAX || own.timeout_ms < 0)
		return api_fail(-EINVAL, "connect: %u threads and %d ms; at most %d threads, and no negative time",
				own.threads, own.timeout_ms, COPY_THREADS_MAX);
	struct forebay_session *session = session_new(socket_path(&own));
	if (!session)
		return api_fail(-ENOMEM, "no memory for a session");
	r = connect_session(session, &own, &e);
	if (r) {
		forebay_disconnect(session);
		return api_result(r, &e);
	}
	*ret = session;
	return 0;
}

/* Sends what is waiting, within reason. */
static void drain(struct forebay_session *session)
{
	for (int left_ms = LAST_WORDS_MS; left_ms > 0 && !send_all(session); left_ms -= 10) {
		struct pollfd fd = { .fd = session->socket, .events = POLLOUT };

		pthread_mutex_unlock(&session->lock);
		poll(&fd, 1, 10);
		pthread_mutex_lock(&session->lock);
	}
}

/* No work, and no caller at the socket: the byte thread is joined, callers are not. */
static bool is_left_alone(const void *arg)
{
	const struct forebay_session *session = arg;

	return !core_n_running(session->core) && !session->caller_pumps;
}

static void stop_threads(struct forebay_session *session)
{
	pthread_mutex_lock(&session->lock);
	session->stopping = true;
	rouse_pump(session);
	pthread_cond_broadcast(&session->more_work);
	pthread_cond_broadcast(&session->idle);
	pthread_mutex_unlock(&session->lock);
	if (session->byte_thread_runs)
		pthread_join(session->byte_thread, NULL);
	for (unsigned i = 0; i < session->n_copy_threads; i++)
		pthread_join(session->copy_threads[i], NULL);
}

void forebay_disconnect(struct forebay_session *session)
{
	if (!session || session_enter(session, NULL))
		return;
	drain(session);
	core_lose(session->core, -ECONNABORTED, "the session was disconnected");
	session_wait_quiet(session, is_left_alone, session);
	pthread_mutex_unlock(&session->lock);
	stop_threads(session);

	pthread_mutex_lock(&session->lock);
	socket_unmap_arenas(session);
	if (session->socket >= 0)
		close(session->socket);
	if (session->wake >= 0)
		close(session->wake);
	session->socket = session->wake = -1;
	pthread_mutex_unlock(&session->lock);
	session_unref(session);
}
