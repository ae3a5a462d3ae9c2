#include "cli/process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <unistd.h>

#define NAME_MAX_BYTES 15 /* of a program's name in /proc/PID/stat */
#define STAT_MAX       1024
#define LOG_MODE       0600 /* it names bundles */

extern char **environ;

static int read_text(const char *path, char *out, size_t size)
{
	FILE *f = fopen(path, "re");

	if (!f)
		return -errno;
	size_t n = fread(out, 1, size - 1, f);
	int r = ferror(f) ? -EIO : 0;
	fclose(f);
	out[n] = 0;
	return r;
}

/* /proc/PID/stat: "pid (name) state ppid ... starttime ...": start time is field 22. The name may hold spaces and brackets. */
static int read_stat(int pid, char name[NAME_MAX_BYTES + 1], char *ret_state, uint64_t *ret_start)
{
	char path[64], text[STAT_MAX];

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	if (read_text(path, text, sizeof(text)))
		return -ESRCH;
	const char *open = strchr(text, '('), *close = strrchr(text, ')');
	if (!open || !close || close < open)
		return -ESRCH;

	size_t len = (size_t)(close - open - 1);
	len = len < NAME_MAX_BYTES ? len : NAME_MAX_BYTES;
	memcpy(name, open + 1, len);
	name[len] = 0;

	const char *at = close + 1;
	*ret_state = at[0] ? at[1] : 'X';
	for (int field = 3; field < 22 && at; field++)
		at = strchr(at + 1, ' ');
	if (!at)
		return -ESRCH;
	*ret_start = strtoull(at + 1, NULL, 10);
	return 0;
}

static int identify(int pid, struct process *ret)
{
	struct process process = { .pid = pid };
	char name[NAME_MAX_BYTES + 1], state;

	if (read_text("/proc/sys/kernel/random/boot_id", process.boot_id, sizeof(process.boot_id)))
		return -ESRCH;
	process.boot_id[strcspn(process.boot_id, "\n")] = 0;
	int r = read_stat(pid, name, &state, &process.start_ticks);
	if (!r)
		*ret = process;
	return r;
}

static int add_actions(posix_spawn_file_actions_t *actions, const char *log_path)
{
	int r = posix_spawn_file_actions_addopen(actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);

	if (!r)
		r = posix_spawn_file_actions_addopen(actions, STDOUT_FILENO, log_path, O_WRONLY | O_CREAT | O_APPEND,
						     LOG_MODE);
	if (!r)
		r = posix_spawn_file_actions_adddup2(actions, STDOUT_FILENO, STDERR_FILENO);
	return r;
}

/* The child begins with default signals, whatever the caller has done to its own. */
static int set_attributes(posix_spawnattr_t *attributes)
{
	sigset_t all, none;

	sigfillset(&all);
	sigemptyset(&none);
	int r = posix_spawnattr_setsigdefault(attributes, &all);
	if (!r)
		r = posix_spawnattr_setsigmask(attributes, &none);
	if (!r)
		r = posix_spawnattr_setflags(attributes,
					     POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
	return r;
}

int process_start(char *const argv[], const char *log_path, struct process *ret)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attributes;
	pid_t pid;

	if (posix_spawn_file_actions_init(&actions))
		return -ENOMEM;
	if (posix_spawnattr_init(&attributes)) {
		posix_spawn_file_actions_destroy(&actions);
		return -ENOMEM;
	}
	int r = add_actions(&actions, log_path);
	if (!r)
		r = set_attributes(&attributes);
	if (!r)
		r = posix_spawn(&pid, argv[0], &actions, &attributes, argv, environ);
	posix_spawnattr_destroy(&attributes);
	posix_spawn_file_actions_destroy(&actions);
	return r ? -r : identify(pid, ret); /* a child that is dead already has its entry until it is waited for */
}

/* Writes beside and renames: a reader sees the old file or the new one. */
static int write_whole(const char *folder, const char *name, const char *text)
{
	char path[PATH_MAX], beside[PATH_MAX];

	if (snprintf(path, sizeof(path), "%s/%s", folder, name) >= PATH_MAX ||
	    snprintf(beside, sizeof(beside), "%s/%s.new", folder, name) >= PATH_MAX)
		return -ENAMETOOLONG;
	FILE *f = fopen(beside, "we");
	if (!f)
		return -errno;
	fputs(text, f);
	bool bad = ferror(f);
	if (fclose(f) || bad || rename(beside, path)) {
		int r = errno ? -errno : -EIO;
		unlink(beside);
		return r;
	}
	return 0;
}

int process_remember(const char *folder, const struct process *process)
{
	char text[128];

	snprintf(text, sizeof(text), "%d %llu %s\n", process->pid, (unsigned long long)process->start_ticks,
		 process->boot_id);
	int r = write_whole(folder, "started", text);
	snprintf(text, sizeof(text), "%d\n", process->pid);
	return r ? r : write_whole(folder, "pid", text);
}

int process_recall(const char *folder, struct process *ret)
{
	char path[PATH_MAX], text[128];
	struct process process = { 0 };
	unsigned long long ticks;

	if (snprintf(path, sizeof(path), "%s/started", folder) >= PATH_MAX || read_text(path, text, sizeof(text)) ||
	    sscanf(text, "%d %llu %36s", &process.pid, &ticks, process.boot_id) != 3 || process.pid <= 0)
		return -ENOENT;
	process.start_ticks = ticks;
	*ret = process;
	return 0;
}

void process_forget(const char *folder)
{
	static const char *const names[] = { "pid", "started" };
	char path[PATH_MAX];

	for (int i = 0; i < 2; i++) {
		if (snprintf(path, sizeof(path), "%s/%s", folder, names[i]) < PATH_MAX)
			unlink(path);
	}
}

/* The first thread may have ended, and threads behind it still hold what the process has open. */
static bool has_ended(int pidfd)
{
	struct pollfd poll_fd = { .fd = pidfd, .events = POLLIN };

	return poll(&poll_fd, 1, 0) == 1;
}

int process_open(const struct process *process, const char *name)
{
	char found[NAME_MAX_BYTES + 1], state;
	struct process now;
	int fd = pidfd_open(process->pid, 0); /* first: what is checked next is what it stands for */

	if (fd < 0)
		return -ESRCH;
	uint64_t ticks;
	if (!identify(process->pid, &now) && !read_stat(process->pid, found, &state, &ticks) && !has_ended(fd) &&
	    now.start_ticks == process->start_ticks && !strcmp(now.boot_id, process->boot_id) &&
	    !strncmp(found, name, NAME_MAX_BYTES))
		return fd;
	close(fd);
	return -ESRCH;
}
