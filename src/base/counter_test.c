#include "base/counter.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct buf text;

static int tear_down(void **state)
{
	buf_fini(&text);
	return 0;
}

static char *expose(void)
{
	text.len = 0;
	assert_int_equal(counter_expose(&text), 0);
	assert_int_equal(buf_append_zero(&text, 1), 0);
	return (char *)text.ptr;
}

/* The value in the line that begins with @series and a blank, or -1. */
static double value_of(const char *series)
{
	char *lines = expose(), *at = lines;
	size_t len = strlen(series);

	for (; at; at = strchr(at, '\n')) {
		at += *at == '\n';
		if (!strncmp(at, series, len) && at[len] == ' ')
			return strtod(at + len, NULL);
	}
	return -1;
}

static void a_counter_rises_by_what_is_counted(void **state)
{
	double before = value_of("forebay_calls_total");

	count(COUNT_CALLS, 3);
	count(COUNT_CALLS, 4);
	assert_true(value_of("forebay_calls_total") == before + 7);
}

static void a_gauge_is_what_was_set_last(void **state)
{
	count_set(COUNT_PEERS_UP, 7);
	count_set(COUNT_PEERS_UP, 5);
	assert_true(value_of("forebay_peers{state=\"up\"}") == 5);
}

static void nanoseconds_are_shown_in_seconds(void **state)
{
	count_set(COUNT_UP_TIME, 12000000345);
	assert_non_null(strstr(expose(), "\nforebay_up_seconds 12.000000345\n"));
}

static void a_time_falls_into_its_bucket_and_all_above(void **state)
{
	count_time(TIME_STORE_LIST, 5000000); /* an end belongs to its bucket */
	count_time(TIME_STORE_LIST, 5000001);
	count_time(TIME_STORE_LIST, 999000000000);
	assert_int_equal(count_times(TIME_STORE_LIST), 3);
	assert_true(value_of("forebay_store_request_seconds_bucket{operation=\"list\",le=\"0.001\"}") == 0);
	assert_true(value_of("forebay_store_request_seconds_bucket{operation=\"list\",le=\"0.005\"}") == 1);
	assert_true(value_of("forebay_store_request_seconds_bucket{operation=\"list\",le=\"0.02\"}") == 2);
	assert_true(value_of("forebay_store_request_seconds_bucket{operation=\"list\",le=\"300\"}") == 2);
	assert_true(value_of("forebay_store_request_seconds_bucket{operation=\"list\",le=\"+Inf\"}") == 3);
	assert_true(value_of("forebay_store_request_seconds_count{operation=\"list\"}") == 3);
	assert_true(value_of("forebay_store_request_seconds_sum{operation=\"list\"}") == 999.010000001);
}

static void a_histogram_without_a_label_has_plain_sums(void **state)
{
	count_time(TIME_LOOP_TURN, 1000);
	assert_true(value_of("forebay_loop_turn_seconds_count") == 1);
	assert_true(value_of("forebay_loop_turn_seconds_bucket{le=\"0.0001\"}") == 1);
}

static void assert_name(const char *name, size_t len)
{
	assert_true(len > strlen(COUNTER_PREFIX) && !strncmp(name, COUNTER_PREFIX, strlen(COUNTER_PREFIX)));
	for (size_t i = 0; i < len; i++)
		assert_true(islower((unsigned char)name[i]) || name[i] == '_');
}

/* Names as Prometheus wants them: what only rises ends in _total, a unit that is a unit is said, no family comes twice. */
static void every_family_has_its_help_its_type_and_a_series(void **state)
{
	char *rest = expose(), *line, family[100] = "", help[100] = "";
	bool has_series = true;

	while ((line = strsep(&rest, "\n")) && *line) {
		size_t len = strcspn(line, " {");

		if (!strncmp(line, "# HELP ", 7)) {
			char again[128];

			assert_true(has_series);
			assert_int_equal(sscanf(line + 7, "%99s", help), 1);
			assert_name(help, strlen(help));
			assert_true(strlen(line) > 7 + strlen(help) + 10);
			assert_int_equal(line[strlen(line) - 1], '.');
			snprintf(again, sizeof(again), "\n# HELP %s ", help);
			assert_true(!rest || !strstr(rest, again));
			has_series = false;
		} else if (!strncmp(line, "# TYPE ", 7)) {
			char kind[20];

			assert_int_equal(sscanf(line + 7, "%99s %19s", family, kind), 2);
			assert_string_equal(family, help);
			bool total = strlen(family) > 6 && !strcmp(family + strlen(family) - 6, "_total");
			assert_true(total == !strcmp(kind, "counter"));
		} else {
			assert_name(line, len);
			assert_true(!strncmp(line, family, strlen(family)));
			has_series = true;
		}
	}
	assert_true(has_series);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_counter_rises_by_what_is_counted),
		cmocka_unit_test(a_gauge_is_what_was_set_last),
		cmocka_unit_test(nanoseconds_are_shown_in_seconds),
		cmocka_unit_test(a_time_falls_into_its_bucket_and_all_above),
		cmocka_unit_test(a_histogram_without_a_label_has_plain_sums),
		cmocka_unit_test(every_family_has_its_help_its_type_and_a_series),
	};
	return cmocka_run_group_tests(tests, NULL, tear_down);
}
