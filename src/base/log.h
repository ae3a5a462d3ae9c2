/*
 * base/log.h: structured lines, key=value, to one sink. Library code logs at debug only; the daemon sets level
 * and sink. Before that, warnings and errors go to standard error.
 *
 * An event is "room.what", a name from docs/logs.md (compared with the source by a test), and its values are key=value: save=ID, group=,
 * node=, bundle=, step=, version=, peer=, and last, in quotes, words=. On standard error an event that repeats too often is left out,
 * and how many lines that were is said; a line for which there is no room at once is left out and counted.
 */
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

/* @sink gets whole lines without the newline; NULL: standard error with a time stamp. Call before threads start. */
void log_setup(enum log_level level, void (*sink)(void *arg, enum log_level level, const char *line), void *arg);

/* First of all in a process: a descriptor from 0 to 2 that is closed becomes /dev/null's. Else what is opened next has that number, and words for people
 * are written into it. 0, or -EBADF. */
int log_guard(void);

/* Lines say from now on that they are of @node, right behind the event. It stays the caller's. Call before threads start. */
void log_node(const char *node);

/* logm(LOG_INFO, "save.durable", "save=%s version=%lu", ...): the event's name, then key=value pairs. */
void logm(enum log_level level, const char *event, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* ---- repeats ---- */

#define LOG_WINDOW_S	   10
#define LOG_LINES_A_WINDOW 200 /* of one event; more are counted, not written */
#define LOG_GATE_EVENTS	   64  /* that are told apart; others always pass */

struct log_gate { /* zero before first use */
	struct log_gate_slot {
		const char *event; /* kept: a literal */
		uint64_t since_s, lines;
	} slots[LOG_GATE_EVENTS];
};
/* Whether a line of @event may be written now. *ret_left_out: how many were not, in its window that has just ended. Pure. */
bool log_gate_pass(struct log_gate *gate, const char *event, uint64_t now_s, uint64_t *ret_left_out);
