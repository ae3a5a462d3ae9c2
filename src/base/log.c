#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "base/counter.h"

#define LOG_LINE_MAX 1024 /* on a fiber's stack, twice; bytes with the final 0; longer lines are cut and end in "..." */

_Static_assert((int)COUNT_LOG_DEBUGS - (int)COUNT_LOG_ERRORS == (int)LOG_DEBUG,
	       "a counter for each level, in their order");

static struct {
	enum log_level level;
	void (*sink)(void *arg, enum log_level level, const char *line);
	void *arg;
	const char *node;
} setup = { .level = LOG_WARN }; /* written once, before threads start */

void log_setup(enum log_level level, void (*sink)(void *arg, enum log_level level, const char *line), void *arg)
{
	setup.level = level;
	setup.sink = sink;
	setup.arg = arg;
}

bool log_gate_pass(struct log_gate *gate, const char *event, uint64_t now_s, uint64_t *ret_left_out)
{
	struct log_gate_slot *slot = NULL;

	for (size_t i = 0; !slot && i < LOG_GATE_EVENTS; i++)
		if (!gate->slots[i].event || !strcmp(gate->slots[i].event, event))
			slot = &gate->slots[i];
	*ret_left_out = 0;
	if (!slot)
		return true;
	if (!slot->event || now_s - slot->since_s >= LOG_WINDOW_S) {
		*ret_left_out = slot->lines > LOG_LINES_A_WINDOW ? slot->lines - LOG_LINES_A_WINDOW : 0;
		*slot = (struct log_gate_slot){ .event = event, .since_s = now_s };
	}
	return ++slot->lines <= LOG_LINES_A_WINDOW;
}

int log_guard(void)
{
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_WRONLY : O_RDONLY) != fd)
			return -EBADF;
	return 0;
}

void log_node(const char *node)
{
	setup.node = node;
}

/* One write per line, so that lines of several threads never mix. */
static void write_line(enum log_level level, const char *line)
{
	static const char *const names[] = { "error", "warn", "info", "debug" };
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	struct timespec now;
	struct tm utc;
	char stamp[32], text[LOG_LINE_MAX + 64];

	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &utc);
	strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%S", &utc);
	int len = snprintf(text, sizeof(text), "%s.%03ldZ %s %s\n", stamp, now.tv_nsec / 1000000, names[level], line);
	struct pollfd out = { .fd = STDERR_FILENO, .events = POLLOUT };

	/* who reads the log may have stopped, or be gone: nobody waits for him. A pipe with room takes a line (PIPE_BUF) at once */
	pthread_mutex_lock(&lock);
	if (poll(&out, 1, 0) != 1 || !(out.revents & POLLOUT) || write(STDERR_FILENO, text, (size_t)len) < 0)
		count(COUNT_LOG_SUPPRESSED, 1);
	pthread_mutex_unlock(&lock);
}

static void log_stderr(enum log_level level, const char *event, const char *line)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static struct log_gate gate;
	struct timespec now;
	char text[128];
	uint64_t left_out = 0;
	bool passes = true;

	if (level != LOG_DEBUG) { /* who asks for those wants all of them */
		clock_gettime(CLOCK_MONOTONIC, &now);
		pthread_mutex_lock(&lock);
		passes = log_gate_pass(&gate, event, (uint64_t)now.tv_sec, &left_out);
		pthread_mutex_unlock(&lock);
	}
	if (left_out) {
		snprintf(text, sizeof(text), "log.left-out of=%.60s lines=%llu", event, (unsigned long long)left_out);
		write_line(LOG_WARN, text);
	}
	if (passes)
		write_line(level, line);
	else
		count(COUNT_LOG_SUPPRESSED, 1);
}

/* ---- values ---- */

struct line {
	char *text; /* of LOG_LINE_MAX bytes */
	size_t len; /* that it would have */
};

static void put_byte(struct line *line, char c)
{
	if (line->len < LOG_LINE_MAX - 1)
		line->text[line->len] = c;
	line->len++;
}

/*
 * A value may come from a client or a peer: a newline in it must not make a second line, nor a blank or a quote a second value. Bytes from
 * 0x80 on are UTF-8 and stay.
 */
static void put_value(struct line *line, const char *value, size_t len, bool in_quotes)
{
	for (size_t i = 0; i < len && value[i]; i++) {
		bool bad = (unsigned char)value[i] < 0x20 || value[i] == 0x7f || value[i] == '"' ||
			   (value[i] == ' ' && !in_quotes);

		put_byte(line, bad ? '?' : value[i]);
	}
}

static uint64_t take_number(const char *length, va_list *args)
{
	if (*length == 'l' || *length == 'z' || *length == 'j')
		return length[1] == 'l' ? va_arg(*args, unsigned long long) : va_arg(*args, unsigned long);
	return va_arg(*args, unsigned);
}

/* One of %s %.*s %d %u %x, with l, ll or z, and a width of zeros as in %016lx; at its end. That is all that events need. */
static const char *put_conversion(struct line *line, const char *at, bool in_quotes, va_list *args)
{
	char number[72];
	bool is_given = !strncmp(at, ".*", 2);
	int most = is_given ? va_arg(*args, int) : INT_MAX, width = 0;

	for (at += is_given ? 2 : 0; *at >= '0' && *at <= '9'; at++)
		width = 10 * width + (*at - '0');
	const char *length = at;
	at += strspn(at, "lzj");
	if (*at == 's') {
		put_value(line, va_arg(*args, const char *), most > 0 ? (size_t)most : 0, in_quotes);
		return at;
	}
	CHECK(width < 64 && *at && strchr("dux", *at));
	uint64_t value = take_number(length, args);
	if (*at == 'd')
		snprintf(number, sizeof(number), "%" PRId64, at == length ? (int)value : (int64_t)value);
	else
		snprintf(number, sizeof(number), *at == 'x' ? "%0*" PRIx64 : "%0*" PRIu64, width ? width : 1, value);
	put_value(line, number, sizeof(number), in_quotes);
	return at;
}

static void put_values(struct line *line, const char *format, va_list *args)
{
	bool in_quotes = false;

	for (const char *at = format; *at; at++) {
		in_quotes ^= *at == '"';
		if (*at == '%')
			at = put_conversion(line, at + 1, in_quotes, args);
		else
			put_byte(line, *at);
	}
}

void logm(enum log_level level, const char *event, const char *format, ...)
{
	char text[LOG_LINE_MAX];
	struct line line = { .text = text };
	va_list args;

	if (level > setup.level)
		return;
	count(COUNT_LOG_ERRORS + level, 1);
	put_value(&line, event, LOG_LINE_MAX, false);
	if (setup.node) {
		put_value(&line, " node=", LOG_LINE_MAX, true);
		put_value(&line, setup.node, LOG_LINE_MAX, false);
	}
	size_t begin = line.len;
	put_byte(&line, ' ');
	va_start(args, format);
	put_values(&line, format, &args);
	va_end(args);
	if (line.len == begin + 1)
		line.len--; /* no values: no blank at the end */
	if (line.len > LOG_LINE_MAX - 1) {
		line.len = LOG_LINE_MAX - 1;
		memcpy(text + LOG_LINE_MAX - sizeof("..."), "...", sizeof("..."));
	}
	text[line.len] = 0;

	if (setup.sink)
		setup.sink(setup.arg, level, text);
	else
		log_stderr(level, event, text);
}
