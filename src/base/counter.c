#include "base/counter.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "base/check.h"

#define NS_PER_SECOND UINT64_C(1000000000)

/* Upper ends of the buckets: a turn of the loop, a request to a disk, and a station of a large save all find their place. */
static const struct {
	uint64_t ns;
	const char *seconds;
} ends[] = {
	{ 100000, "0.0001" },  { 1000000, "0.001" },	{ 5000000, "0.005" }, { 20000000, "0.02" },
	{ 100000000, "0.1" },  { 500000000, "0.5" },	{ 2000000000, "2" },  { 10000000000, "10" },
	{ 60000000000, "60" }, { 300000000000, "300" },
};

struct histogram {
	uint64_t n[ARRAY_LEN(ends) + 1], sum_ns; /* n: of each bucket alone; the last is what exceeds them all */
};

static uint64_t counters[COUNTERS];
static struct histogram histograms[TIMINGS];

enum kind { COUNT, GAUGE, HISTOGRAM };

/* The table's rows: a family, or the series that follow it. */
static const struct row {
	const char *family, *unit, *label, *help;
	enum kind kind;
	int number;
	const char *value;
} rows[] = {
#define FAMILY(name_, kind_, unit_, label_, help_) \
	{ .family = #name_, .kind = kind_, .unit = unit_, .label = label_, .help = help_ },
#define SERIES(number_, value_) { .number = COUNT_##number_, .value = value_ },
#define TIMES(number_, value_)	{ .number = TIME_##number_, .value = value_ },
	COUNTER_TABLE(FAMILY, SERIES, TIMES)
#undef FAMILY
#undef SERIES
#undef TIMES
};

void count(enum counter counter, uint64_t more)
{
	__atomic_fetch_add(&counters[counter], more, __ATOMIC_RELAXED);
}

void count_set(enum counter gauge, uint64_t value)
{
	__atomic_store_n(&counters[gauge], value, __ATOMIC_RELAXED);
}

uint64_t count_value(enum counter counter)
{
	return __atomic_load_n(&counters[counter], __ATOMIC_RELAXED);
}

const char *counter_label(enum counter counter)
{
	bool timed = false;

	for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
		if (rows[i].family)
			timed = rows[i].kind == HISTOGRAM;
		else if (!timed && rows[i].number == (int)counter)
			return rows[i].value;
	}
	return NULL;
}

void count_time(enum timing timing, uint64_t ns)
{
	struct histogram *histogram = &histograms[timing];
	size_t i = 0;

	while (i < ARRAY_LEN(ends) && ns > ends[i].ns)
		i++;
	__atomic_fetch_add(&histogram->n[i], 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&histogram->sum_ns, ns, __ATOMIC_RELAXED);
}

uint64_t count_times(enum timing timing)
{
	uint64_t n = 0;

	for (size_t i = 0; i <= ARRAY_LEN(ends); i++)
		n += __atomic_load_n(&histograms[timing].n[i], __ATOMIC_RELAXED);
	return n;
}

/* ---- the exposition ---- */

static int put_value(struct buf *out, const char *unit, uint64_t value)
{
	if (strcmp(unit, "ns") != 0)
		return buf_printf(out, " %" PRIu64 "\n", value);
	return buf_printf(out, " %" PRIu64 ".%09" PRIu64 "\n", value / NS_PER_SECOND, value % NS_PER_SECOND);
}

static int expose_series(struct buf *out, const struct row *family, const struct row *row)
{
	int r = buf_printf(out, COUNTER_PREFIX "%s", family->family);

	if (!r && family->label)
		r = buf_printf(out, "{%s=\"%s\"}", family->label, row->value);
	return r ? r : put_value(out, family->unit, count_value((enum counter)row->number));
}

/* "LABEL="VALUE"" and what is to follow it in the braces. */
static int put_label(struct buf *out, const struct row *family, const struct row *row, const char *next)
{
	return family->label ? buf_printf(out, "%s=\"%s\"%s", family->label, row->value, next) : 0;
}

static int expose_bucket(struct buf *out, const struct row *family, const struct row *row, const char *end, uint64_t n)
{
	int r = buf_printf(out, COUNTER_PREFIX "%s_bucket{", family->family);

	if (!r)
		r = put_label(out, family, row, ",");
	return r ? r : buf_printf(out, "le=\"%s\"} %" PRIu64 "\n", end, n);
}

static int expose_total(struct buf *out, const struct row *family, const struct row *row, const char *which)
{
	int r = buf_printf(out, COUNTER_PREFIX "%s_%s%s", family->family, which, family->label ? "{" : "");

	return r ? r : put_label(out, family, row, "}");
}

static int expose_histogram(struct buf *out, const struct row *family, const struct row *row)
{
	const struct histogram *histogram = &histograms[row->number];
	uint64_t n = 0; /* the sum of the buckets as they were read, so that the last one and the count agree */
	int r = 0;

	for (size_t i = 0; !r && i <= ARRAY_LEN(ends); i++) {
		n += __atomic_load_n(&histogram->n[i], __ATOMIC_RELAXED);
		r = expose_bucket(out, family, row, i < ARRAY_LEN(ends) ? ends[i].seconds : "+Inf", n);
	}
	if (!r)
		r = expose_total(out, family, row, "sum");
	if (!r)
		r = put_value(out, family->unit, __atomic_load_n(&histogram->sum_ns, __ATOMIC_RELAXED));
	if (!r)
		r = expose_total(out, family, row, "count");
	return r ? r : buf_printf(out, " %" PRIu64 "\n", n);
}

static int expose_family(struct buf *out, const struct row *family)
{
	static const char *const kinds[] = { [COUNT] = "counter", [GAUGE] = "gauge", [HISTOGRAM] = "histogram" };

	return buf_printf(out, "# HELP " COUNTER_PREFIX "%s %s\n# TYPE " COUNTER_PREFIX "%s %s\n", family->family,
			  family->help, family->family, kinds[family->kind]);
}

int counter_expose(struct buf *out)
{
	const struct row *family = NULL;
	int r = 0;

	for (const struct row *row = rows; !r && row < rows + ARRAY_LEN(rows); row++) {
		if (row->family)
			r = expose_family(out, family = row);
		else if (family->kind == HISTOGRAM)
			r = expose_histogram(out, family, row);
		else
			r = expose_series(out, family, row);
	}
	return r;
}
