/*
 * cli/text.h: what people read: sizes, names, tables, a progress bar; and JSON for programs.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/cleanup.h"

#define TEXT_SIZE_MAX 16 /* bytes of a size in words with its final 0 */
#define TEXT_TIME_MAX 16 /* of a time */
#define TEXT_RULE_MAX 64 /* of a bundle's rule */

CLEANUP_OF(json_t *, json_decref);

/* "512 B", "1.5 KiB", "90.9 MiB": three digits or so. */
void text_size(uint64_t bytes, char out[TEXT_SIZE_MAX]);
/* "0 ms", "352 us", "12.0 ms", "812 ms", "1.32 s", "75.0 s", "21 min": three digits or so. */
void text_time(uint64_t ns, char out[TEXT_TIME_MAX]);
/* What makes a plural of a word after @n: "s", or nothing. */
const char *text_s(uint64_t n);
/* What a rule keeps: "all", "last 3", "last 3, each 100". Returns @out, or a literal. */
const char *text_rule(uint64_t last, uint64_t every, char out[TEXT_RULE_MAX]);
/* Prints @text with control characters as \xNN, so that a name cannot command the terminal. Returns its width in columns. */
size_t text_print(FILE *out, const char *text);

/* A table whose columns are as wide as their widest cell: the cells are kept until table_print(). */
struct table {
	const char *align; /* a letter per column: 'l' or 'r' */
	char **cells;
	size_t n, cap;
	bool failed; /* no memory for a cell: table_print() says so */
};
void table_init(struct table *table, const char *align);
void table_begin(struct table *table, const char *align,
		 const char *const *heads); /* with its heads; they end with NULL */
void table_fini(struct table *table);
void table_add(struct table *table, const char *cell); /* the next cell, row after row */
void table_addf(struct table *table, const char *format, ...) __attribute__((format(printf, 2, 3)));
void table_add_size(struct table *table, uint64_t bytes);
void table_add_time(struct table *table, uint64_t ns);
int table_print(const struct table *table); /* 0 or -ENOMEM */

/* A number as JSON; one that JSON's readers would take for negative as a string. */
json_t *json_u64(uint64_t value);
uint64_t json_u64_value(const json_t *value); /* back; 0: it is no number */
/* Prints it with sorted keys and a line break, or nothing and -ENOMEM. */
int json_print(json_t *value);

/* A bar on standard error, if that is a terminal: bytes and rate. */
struct progress {
	const char *label;
	uint64_t done, total, begun_ns, drawn_ns;
	bool shown;
};
void progress_begin(struct progress *progress, const char *label, uint64_t total);
void progress_add(struct progress *progress, uint64_t bytes);
void progress_set(struct progress *progress, uint64_t done); /* bytes so far */
/* Instead of the bar: what is waited for, and how long. */
void progress_wait(struct progress *progress, const char *what);
void progress_end(struct progress *progress); /* takes the bar away; any number of times */
uint64_t now_ns(void);			      /* CLOCK_MONOTONIC */
