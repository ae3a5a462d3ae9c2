/*
 * cli/process.h: processes that outlive the command that started them, recognised beyond doubt.
 *
 * A number alone may have been given to another process since. So a folder holds two files: `pid`, the number, for people and
 * scripts; and `started`, the number again with the process's start time and the boot that it belongs to. Only a process that fits
 * all of it and still has its program's name is ours. It is signalled through its pidfd, so it cannot be mistaken in between.
 */
#pragma once

#include <stdint.h>

#define PROCESS_BOOT_ID 37 /* bytes of the kernel's boot id with the final 0 */

struct process {
	int pid;
	uint64_t start_ticks; /* after boot */
	char boot_id[PROCESS_BOOT_ID];
};

/* Starts @argv (a path, then arguments) in a session of its own, with nothing to read and its output appended to @log_path.
 * -errno. */
int process_start(char *const argv[], const char *log_path, struct process *ret);
/* Writes both files into @folder. */
int process_remember(const char *folder, const struct process *process);
/* Reads them. -ENOENT: there are none, or they make no sense. */
int process_recall(const char *folder, struct process *ret);
void process_forget(const char *folder);
/* A pidfd of the process if it still runs program @name, or -ESRCH. */
int process_open(const struct process *process, const char *name);
