/*
 * base/log.h: structured lines, key=value, to one sink. Library code logs at debug only; the daemon sets level
 * and sink. Before that, warnings and errors go to standard error.
 */
#pragma once

#include <stdarg.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

/* @sink gets whole lines without the newline; NULL: standard error with a time stamp. Call before threads start. */
void log_setup(enum log_level level, void (*sink)(void *arg, enum log_level level, const char *line), void *arg);

/* logm(LOG_INFO, "save.durable", "save=%s version=%lu", ...): the event's name, then key=value pairs. */
void logm(enum log_level level, const char *event, const char *format, ...) __attribute__((format(printf, 3, 4)));
