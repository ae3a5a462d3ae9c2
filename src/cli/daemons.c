#include "cli/daemons.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/pidfd.h>

#include "cli/text.h"

#define KILL_MS	  10000
#define NS_PER_MS 1000000

/* Signals those that are still there and waits for them. Returns how many are left. */
static int end_by(const struct daemons *daemons, int signal_number, int timeout_ms)
{
	uint64_t deadline = now_ns() + (uint64_t)timeout_ms * NS_PER_MS;
	int left = 0;

	for (size_t i = 0; i < daemons->n; i++)
		(void)pidfd_send_signal(daemons->pidfd[i], signal_number, NULL, 0); /* ESRCH: gone already */
	for (size_t i = 0; i < daemons->n; i++) {
		struct pollfd fd = { .fd = daemons->pidfd[i], .events = POLLIN };
		int r;

		do {
			uint64_t now = now_ns();
			r = poll(&fd, 1, now < deadline ? (int)((deadline - now) / NS_PER_MS) + 1 : 0);
		} while (r < 0 && errno == EINTR);
		left += r <= 0;
	}
	return left;
}

int daemons_end(const struct daemons *daemons, int term_ms)
{
	int killed = end_by(daemons, SIGTERM, term_ms);

	if (killed && end_by(daemons, SIGKILL, KILL_MS))
		return -EBUSY;
	return killed;
}
