#include "base/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/counter.h"

static char last[3000];
static int lines;
static enum log_level last_level;

static void keep(void *arg, enum log_level level, const char *line)
{
	assert_ptr_equal(arg, &lines);
	snprintf(last, sizeof(last), "%s", line);
	last_level = level;
	lines++;
}

static int set_up(void **state)
{
	lines = 0;
	log_setup(LOG_INFO, keep, &lines);
	return 0;
}

static void a_line_is_the_event_and_its_values(void **state)
{
	logm(LOG_INFO, "save.durable", "save=%s version=%d", "a1", 7);
	assert_string_equal(last, "save.durable save=a1 version=7");
	assert_int_equal(last_level, LOG_INFO);
	assert_int_equal(lines, 1);
}

static void a_node_says_its_name_in_each_line(void **state)
{
	log_node("gpu-7");
	logm(LOG_INFO, "save.durable", "save=%s", "a1");
	assert_string_equal(last, "save.durable node=gpu-7 save=a1");
	logm(LOG_INFO, "loop.late", "%s", "");
	assert_string_equal(last, "loop.late node=gpu-7");
	log_node(NULL);
}

static void an_event_without_values_ends_in_no_blank(void **state)
{
	logm(LOG_WARN, "loop.late", "%s", "");
	assert_string_equal(last, "loop.late");
}

static void lines_below_the_level_are_not_made(void **state)
{
	logm(LOG_DEBUG, "x", "y=%d", 1);
	assert_int_equal(lines, 0);
	logm(LOG_ERROR, "x", "y=%d", 1);
	assert_int_equal(lines, 1);
}

static void control_characters_cannot_forge_a_line(void **state)
{
	logm(LOG_INFO, "peer.name", "name=%s", "a\nb\tc\x1b[1m\x7f\u00fc");
	assert_string_equal(last, "peer.name name=a?b?c?[1m?\u00fc");
}

static void a_name_cannot_forge_a_value(void **state)
{
	const char name[] = "a state=durable words=\"";

	logm(LOG_INFO, "save.end", "bundle=%s group=%.*s state=%s words=\"%s\"", name, 7, name, "failed",
	     "no \"x\" state=ok");
	assert_string_equal(
		last, "save.end bundle=a?state=durable?words=? group=a?state state=failed words=\"no ?x? state=ok\"");
}

static void numbers_are_as_printf_has_them(void **state)
{
	char want[256];
	const char format[] = "a=%d b=%u c=%lu d=%016lx e=%zu f=%llu g=%x h=%ld i=%.*s";

#define VALUES -7, 4000000000u, 18446744073709551615ul, 0xabcul, (size_t)5, 0ull, 255u, -1l, 2, "xyz"
	logm(LOG_INFO, "e", format, VALUES);
	snprintf(want, sizeof(want), "e a=%d b=%u c=%lu d=%016lx e=%zu f=%llu g=%x h=%ld i=%.*s", VALUES);
	assert_string_equal(last, want);
#undef VALUES
}

static void a_long_line_is_cut_and_says_so(void **state)
{
	char value[3000];

	memset(value, 'x', sizeof(value) - 1);
	value[sizeof(value) - 1] = 0;
	logm(LOG_INFO, "e", "v=%s", value);
	assert_true(strlen(last) > 500 && strlen(last) < 2900);
	assert_string_equal(last + strlen(last) - 4, "x...");

	logm(LOG_INFO, value, "v=%d", 1);
	assert_string_equal(last + strlen(last) - 4, "x...");
}

static void without_a_sink_a_line_goes_to_standard_error_with_its_time(void **state)
{
	char text[256] = "";
	FILE *file = tmpfile();
	int saved = dup(STDERR_FILENO);

	assert_non_null(file);
	assert_true(saved >= 0);
	log_setup(LOG_INFO, NULL, NULL);
	assert_true(dup2(fileno(file), STDERR_FILENO) >= 0);
	logm(LOG_WARN, "disk.full", "path=%s", "/x");
	assert_true(dup2(saved, STDERR_FILENO) >= 0);
	close(saved);

	rewind(file);
	assert_non_null(fgets(text, sizeof(text), file));
	assert_int_equal(fgetc(file), EOF);
	fclose(file);
	assert_int_equal(strlen("2026-01-02T03:04:05.678Z"), strcspn(text, " "));
	assert_string_equal(strchr(text, ' '), " warn disk.full path=/x\n");
}

static void nobody_waits_for_who_does_not_read_the_log(void **state)
{
	uint64_t before = count_value(COUNT_LOG_SUPPRESSED);
	int saved = dup(STDERR_FILENO), ends[2];

	assert_true(saved >= 0);
	assert_int_equal(pipe(ends), 0);
	assert_true(fcntl(ends[1], F_SETPIPE_SZ, 4096) >= 0);
	log_setup(LOG_INFO, NULL, NULL);
	assert_true(dup2(ends[1], STDERR_FILENO) >= 0);
	for (int i = 0; i < 150; i++)
		logm(LOG_WARN, "disk.full", "path=%s", "/a/path/that/is/not/too/short");
	assert_true(dup2(saved, STDERR_FILENO) >= 0);
	close(saved);
	close(ends[0]);
	close(ends[1]);
	assert_true(count_value(COUNT_LOG_SUPPRESSED) > before);
}

static void a_closed_standard_descriptor_is_nobodys_file(void **state)
{
	struct stat null, now;
	int saved = dup(STDERR_FILENO);

	assert_true(saved >= 0);
	close(STDERR_FILENO);
	int r = log_guard(), told = fstat(STDERR_FILENO, &now);
	assert_true(dup2(saved, STDERR_FILENO) >= 0);
	close(saved);
	assert_int_equal(r, 0);
	assert_int_equal(told, 0);
	assert_int_equal(stat("/dev/null", &null), 0);
	assert_int_equal(now.st_rdev, null.st_rdev);
}

static void an_event_that_repeats_too_often_is_left_out_and_then_said(void **state)
{
	struct log_gate gate = { 0 };
	uint64_t left_out;

	for (int i = 0; i < LOG_LINES_A_WINDOW; i++)
		assert_true(log_gate_pass(&gate, "a.flood", 100, &left_out));
	for (int i = 0; i < 7; i++)
		assert_false(log_gate_pass(&gate, "a.flood", 100 + LOG_WINDOW_S - 1, &left_out));
	assert_true(log_gate_pass(&gate, "another", 100, &left_out));
	assert_int_equal(left_out, 0);
	assert_true(log_gate_pass(&gate, "a.flood", 100 + LOG_WINDOW_S, &left_out));
	assert_int_equal(left_out, 7);
	assert_true(log_gate_pass(&gate, "a.flood", 100 + 2 * LOG_WINDOW_S, &left_out));
	assert_int_equal(left_out, 0);
}

static void events_beyond_the_table_always_pass(void **state)
{
	static char names[LOG_GATE_EVENTS + 1][8];
	struct log_gate gate = { 0 };
	uint64_t left_out;

	for (int i = 0; i <= LOG_GATE_EVENTS; i++) {
		snprintf(names[i], sizeof(names[i]), "e%d", i);
		assert_true(log_gate_pass(&gate, names[i], 1, &left_out));
	}
	for (int i = 0; i < 2 * LOG_LINES_A_WINDOW; i++)
		assert_true(log_gate_pass(&gate, names[LOG_GATE_EVENTS], 1, &left_out));
}

static void lines_are_counted_by_level(void **state)
{
	uint64_t warnings = count_value(COUNT_LOG_WARNINGS), debugs = count_value(COUNT_LOG_DEBUGS);

	logm(LOG_WARN, "x", "y=%d", 1);
	logm(LOG_DEBUG, "x", "y=%d", 1); /* below the level */
	assert_int_equal(count_value(COUNT_LOG_WARNINGS) - warnings, 1);
	assert_int_equal(count_value(COUNT_LOG_DEBUGS) - debugs, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(a_line_is_the_event_and_its_values, set_up),
		cmocka_unit_test_setup(a_node_says_its_name_in_each_line, set_up),
		cmocka_unit_test_setup(an_event_without_values_ends_in_no_blank, set_up),
		cmocka_unit_test_setup(lines_below_the_level_are_not_made, set_up),
		cmocka_unit_test_setup(control_characters_cannot_forge_a_line, set_up),
		cmocka_unit_test_setup(a_name_cannot_forge_a_value, set_up),
		cmocka_unit_test_setup(numbers_are_as_printf_has_them, set_up),
		cmocka_unit_test_setup(a_long_line_is_cut_and_says_so, set_up),
		cmocka_unit_test_setup(without_a_sink_a_line_goes_to_standard_error_with_its_time, set_up),
		cmocka_unit_test(nobody_waits_for_who_does_not_read_the_log),
		cmocka_unit_test(a_closed_standard_descriptor_is_nobodys_file),
		cmocka_unit_test(an_event_that_repeats_too_often_is_left_out_and_then_said),
		cmocka_unit_test(events_beyond_the_table_always_pass),
		cmocka_unit_test_setup(lines_are_counted_by_level, set_up),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
