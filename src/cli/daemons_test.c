#include "cli/daemons.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <sys/pidfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/check.h"

#define SHORT_MS 1000
#define LONG_MS	 60000

/* A process that ends at once when it is told to, or that is stopped and hears nothing. */
static pid_t child_new(bool stopped, struct daemons *daemons)
{
	pid_t pid = fork();

	CHECK(pid >= 0);
	if (!pid)
		for (;;)
			pause();
	if (stopped) {
		siginfo_t info;

		assert_int_equal(kill(pid, SIGSTOP), 0);
		assert_int_equal(waitid(P_PID, (id_t)pid, &info, WSTOPPED), 0);
	}
	daemons->pidfd[daemons->n] = pidfd_open(pid, 0);
	assert_true(daemons->pidfd[daemons->n++] >= 0);
	return pid;
}

static int signal_of(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status));
	return WTERMSIG(status);
}

static void close_all(const struct daemons *daemons)
{
	for (size_t i = 0; i < daemons->n; i++)
		close(daemons->pidfd[i]);
}

static void who_does_not_listen_is_killed_and_counted(void **state)
{
	struct daemons daemons = { 0 };
	pid_t deaf = child_new(true, &daemons), good = child_new(false, &daemons);

	assert_int_equal(daemons_end(&daemons, SHORT_MS), 1);
	assert_int_equal(signal_of(deaf), SIGKILL);
	assert_int_equal(signal_of(good), SIGTERM);
	close_all(&daemons);
}

static void who_has_ended_is_not_waited_for(void **state)
{
	struct daemons daemons = { 0 };
	pid_t first = child_new(false, &daemons), second = child_new(false, &daemons);

	assert_int_equal(kill(first, SIGKILL), 0);
	assert_int_equal(signal_of(first), SIGKILL);
	assert_int_equal(daemons_end(&daemons, LONG_MS), 0);
	assert_int_equal(signal_of(second), SIGTERM);
	close_all(&daemons);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(who_does_not_listen_is_killed_and_counted),
		cmocka_unit_test(who_has_ended_is_not_waited_for),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
