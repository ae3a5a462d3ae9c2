#include "base/log.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

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

void log_node(const char *node)
{
	setup.node = node;
}

/* One write per line, so that lines of several threads never mix. */
static void write_line(enum log_level level, const char *line)
{
	static const char *const names[] = { "error", "warn", "info", "debug" };
	struct timespec now;
	struct tm utc;
	char stamp[32], text[LOG_LINE_MAX + 64];

	clock_gettime(CLOCK_REALTIME, &now);
	gmtime_r(&now.tv_sec, &utc);
	strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%S", &utc);
	snprintf(text, sizeof(text), "%s.%03ldZ %s %s\n", stamp, now.tv_nsec / 1000000, names[level], line);
	fputs(text, stderr);
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

/* A value may come from a peer: a newline in it must not make a second line. Bytes from 0x80 on are UTF-8 and stay. */
static void mask_controls(char *line)
{
	for (; *line; line++)
		if ((unsigned char)*line < 0x20 || *line == 0x7f)
			*line = '?';
}

void logm(enum log_level level, const char *event, const char *format, ...)
{
	char line[LOG_LINE_MAX];
	size_t len;
	va_list args;
	int n;

	if (level > setup.level)
		return;
	count(COUNT_LOG_ERRORS + level, 1);
	n = snprintf(line, sizeof(line), "%s %s%s%s", event, setup.node ? "node=" : "", setup.node ? setup.node : "",
		     setup.node ? " " : "");
	len = n < 0 ? 0 : (size_t)n < sizeof(line) ? (size_t)n : sizeof(line) - 1;
	va_start(args, format);
	n = vsnprintf(line + len, sizeof(line) - len, format, args);
	va_end(args);
	if (n >= 0 && (size_t)n >= sizeof(line) - len)
		memcpy(line + sizeof(line) - sizeof("..."), "...", sizeof("..."));
	if (n <= 0 && len)
		line[len - 1] = 0; /* no values: no blank at the end */
	mask_controls(line);

	if (setup.sink)
		setup.sink(setup.arg, level, line);
	else
		log_stderr(level, event, line);
}
