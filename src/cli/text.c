#include "cli/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S     UINT64_C(1000000000)
#define DRAW_NS	     (NS_PER_S / 10)
#define BAR_COLUMNS  24
#define COLUMN_SPACE 2

/* ---- sizes and names ------------------------------------------------------------------------------------------------- */

void text_size(uint64_t bytes, char out[TEXT_SIZE_MAX])
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	double value = (double)bytes;
	int unit = 0;

	for (; value >= 1000 && unit < 6; unit++)
		value /= 1024;
	snprintf(out, TEXT_SIZE_MAX, unit && value < 99.95 ? "%.1f %s" : "%.0f %s", value, units[unit]);
}

void text_time(uint64_t ns, char out[TEXT_TIME_MAX])
{
	static const struct {
		double ns;
		const char *name;
	} units[] = { { 60e9, "min" }, { 1e9, "s" }, { 1e6, "ms" }, { 1e3, "us" } };
	size_t unit = ns >= UINT64_C(600000000000) ? 0 : ns >= 999500000 ? 1 : ns >= 999500 || !ns ? 2 : 3;
	double value = (double)ns / units[unit].ns;
	int digits = !unit || !ns || unit == 3 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;

	snprintf(out, TEXT_TIME_MAX, "%.*f %s", digits, value, units[unit].name);
}

const char *text_s(uint64_t n)
{
	return n == 1 ? "" : "s";
}

const char *text_rule(uint64_t last, uint64_t every, char out[TEXT_RULE_MAX])
{
	if (!last)
		return "all";
	int n = snprintf(out, TEXT_RULE_MAX, "last %" PRIu64, last);
	if (every)
		snprintf(out + n, TEXT_RULE_MAX - (size_t)n, ", each %" PRIu64, every);
	return out;
}

/* Also counts alone, with @out NULL. C1 controls, which some terminals obey, are two bytes in UTF-8: c2 80 to c2 9f. */
static size_t print_safe(FILE *out, const char *text)
{
	size_t width = 0;

	for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
		bool c1 = p[0] == 0xc2 && p[1] >= 0x80 && p[1] < 0xa0;

		if (*p < 0x20 || *p == 0x7f || c1) {
			if (out)
				fprintf(out, "\\x%02x", c1 ? p[1] : *p);
			p += c1;
			width += 4;
			continue;
		}
		if (out)
			fputc(*p, out);
		width += (*p & 0xc0) != 0x80; /* one column for each character is near enough */
	}
	return width;
}

size_t text_print(FILE *out, const char *text)
{
	return print_safe(out, text);
}

/* ---- tables ---------------------------------------------------------------------------------------------------------- */

void table_init(struct table *table, const char *align)
{
	*table = (struct table){ .align = align };
}

void table_begin(struct table *table, const char *align, const char *const *heads)
{
	table_init(table, align);
	for (; *heads; heads++)
		table_add(table, *heads);
}

void table_fini(struct table *table)
{
	for (size_t i = 0; i < table->n; i++)
		free(table->cells[i]);
	free(table->cells);
	*table = (struct table){ 0 };
}

void table_add(struct table *table, const char *cell)
{
	if (table->n == table->cap) {
		size_t cap = table->cap ? 2 * table->cap : 64;
		char **cells = reallocarray(table->cells, cap, sizeof(*cells));

		if (!cells) {
			table->failed = true;
			return;
		}
		table->cells = cells;
		table->cap = cap;
	}
	char *copy = strdup(cell);
	if (!copy)
		table->failed = true;
	else
		table->cells[table->n++] = copy;
}

void table_addf(struct table *table, const char *format, ...)
{
	va_list args;
	char *text = NULL;

	va_start(args, format);
	if (vasprintf(&text, format, args) < 0)
		table->failed = true;
	else
		table_add(table, text);
	va_end(args);
	free(text);
}

void table_add_size(struct table *table, uint64_t bytes)
{
	char text[TEXT_SIZE_MAX];

	text_size(bytes, text);
	table_add(table, text);
}

void table_add_time(struct table *table, uint64_t ns)
{
	char text[TEXT_TIME_MAX];

	text_time(ns, text);
	table_add(table, text);
}

int table_print(const struct table *table)
{
	size_t columns = strlen(table->align);
	_cleanup_(cleanup_mem) size_t *widths = calloc(columns, sizeof(*widths));

	if (table->failed || !widths)
		return -ENOMEM;
	for (size_t i = 0; i < table->n; i++) {
		size_t width = print_safe(NULL, table->cells[i]);
		widths[i % columns] = width > widths[i % columns] ? width : widths[i % columns];
	}
	for (size_t i = 0; i < table->n; i++) {
		size_t column = i % columns, space = widths[column] - print_safe(NULL, table->cells[i]);
		bool right = table->align[column] == 'r', last = column + 1 == columns;

		printf("%*s", right ? (int)space : 0, "");
		text_print(stdout, table->cells[i]);
		printf("%*s%s", right || last ? 0 : (int)space, "", last ? "\n" : "");
		if (!last)
			printf("%*s", COLUMN_SPACE, "");
	}
	return 0;
}

/* ---- JSON ------------------------------------------------------------------------------------------------------------ */

json_t *json_u64(uint64_t value)
{
	char text[24];

	if (value <= INT64_MAX)
		return json_integer((json_int_t)value);
	snprintf(text, sizeof(text), "%" PRIu64, value);
	return json_string(text);
}

uint64_t json_u64_value(const json_t *value)
{
	const char *text = json_string_value(value);

	return text ? strtoull(text, NULL, 10) : (uint64_t)json_integer_value(value);
}

int json_print(json_t *value)
{
	_cleanup_(cleanup_mem) char *text =
		value ? json_dumps(value, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_ENCODE_ANY) : NULL;

	if (!text)
		return -ENOMEM;
	puts(text);
	return 0;
}

/* ---- progress -------------------------------------------------------------------------------------------------------- */

uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

static void draw(struct progress *p, uint64_t now)
{
	char done[TEXT_SIZE_MAX], total[TEXT_SIZE_MAX], rate[TEXT_SIZE_MAX];
	double seconds = (double)(now - p->begun_ns) / NS_PER_S;
	double part = p->total ? (double)p->done / (double)p->total : 1;
	int filled = (int)(part * BAR_COLUMNS);

	text_size(p->done, done);
	text_size(p->total, total);
	text_size(seconds > 0 ? (uint64_t)((double)p->done / seconds) : 0, rate);
	fprintf(stderr, "\r%s [", p->label);
	for (int i = 0; i < BAR_COLUMNS; i++)
		fputc(i < filled ? '#' : '.', stderr);
	fprintf(stderr, "] %3.0f %%  %s of %s  %s/s\033[K", part * 100, done, total, rate);
	fflush(stderr);
	p->drawn_ns = now;
}

void progress_begin(struct progress *progress, const char *label, uint64_t total)
{
	uint64_t now = now_ns();

	*progress = (struct progress){ .label = label, .total = total, .begun_ns = now, .drawn_ns = now };
	progress->shown = isatty(STDERR_FILENO);
}

static bool is_due(const struct progress *progress, uint64_t now)
{
	return progress->shown && now - progress->drawn_ns >= DRAW_NS;
}

void progress_set(struct progress *progress, uint64_t done)
{
	uint64_t now = now_ns();

	progress->done = done;
	if (is_due(progress, now))
		draw(progress, now);
}

void progress_add(struct progress *progress, uint64_t bytes)
{
	progress_set(progress, progress->done + bytes);
}

void progress_wait(struct progress *progress, const char *what)
{
	uint64_t now = now_ns();

	if (!is_due(progress, now))
		return;
	fprintf(stderr, "\r%s: %s, %.1f s\033[K", progress->label, what, (double)(now - progress->begun_ns) / NS_PER_S);
	fflush(stderr);
	progress->drawn_ns = now;
}

void progress_end(struct progress *progress)
{
	if (progress->shown)
		fprintf(stderr, "\r\033[K");
	progress->shown = false;
}
