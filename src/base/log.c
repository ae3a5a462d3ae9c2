#include "base/log.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#define LOG_LINE_MAX 1024 /* on a fiber's stack, twice; bytes with the final 0; longer lines are cut and end in "..." */

static struct {
	enum log_level level;
	void (*sink)(void *arg, enum log_level level, const char *line);
	void *arg;
} setup = { .level = LOG_WARN }; /* written once, before threads start */

void log_setup(enum log_level level, void (*sink)(void *arg, enum log_level level, const char *line), void *arg)
{
	setup.level = level;
	setup.sink = sink;
	setup.arg = arg;
}

/* One write per line, so that lines of several threads never mix. */
static void log_stderr(enum log_level level, const char *line)
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
	n = snprintf(line, sizeof(line), "%s ", event);
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
		log_stderr(level, line);
}
