#include "base/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct thing {
	uint32_t magic;
	char first, second;
};

static void a_check_that_holds_does_nothing(void **state)
{
	struct thing thing = { .magic = 0x7e57 };
	int evaluated = 0;

	CHECK(++evaluated);
	CHECK_MAGIC(&thing, 0x7e57);
	assert_int_equal(evaluated, 1);
}

/* Runs the failing check in a child and returns its status and what it said. */
static int fail_in_child(void (*run)(void), char *ret_text, size_t size)
{
	int pipes[2], status;
	size_t len = 0;
	ssize_t n;

	assert_int_equal(pipe(pipes), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		signal(SIGABRT, SIG_DFL); /* cmocka catches it */
		dup2(pipes[1], STDERR_FILENO);
		run();
		_exit(0);
	}
	close(pipes[1]);
	while ((n = read(pipes[0], ret_text + len, size - 1 - len)) > 0)
		len += (size_t)n;
	ret_text[len] = 0;
	close(pipes[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

static void fail_comparison(void)
{
	CHECK(1 > 2);
}

static void fail_magic(void)
{
	struct thing thing = { .magic = 1 };

	CHECK_MAGIC(&thing, 2);
}

static void a_failed_check_names_its_place_and_aborts(void **state)
{
	char text[4096];
	int status = fail_in_child(fail_comparison, text, sizeof(text));

	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	assert_non_null(strstr(text, "check_test.c:"));
	assert_non_null(strstr(text, "check failed: 1 > 2\n"));
}

static void a_wrong_magic_aborts(void **state)
{
	char text[4096];
	int status = fail_in_child(fail_magic, text, sizeof(text));

	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void a_member_leads_back_to_its_struct(void **state)
{
	struct thing things[3];

	assert_ptr_equal(container_of(&things[1].second, struct thing, second), &things[1]);
	assert_int_equal(ARRAY_LEN(things), 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_check_that_holds_does_nothing),
		cmocka_unit_test(a_failed_check_names_its_place_and_aborts),
		cmocka_unit_test(a_wrong_magic_aborts),
		cmocka_unit_test(a_member_leads_back_to_its_struct),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
