#include "cli/source.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/command.h"

/* What the handler of SIGBUS looks at; set before any mapped byte is read. */
static const struct source *watched;
static size_t n_watched;

static void write_text(const char *text)
{
	(void)!write(STDERR_FILENO, text, strlen(text));
}

/* Only calls that are safe in a handler. The session ends with the process: the daemon fails the save. */
static void on_bus_error(int number, siginfo_t *info, void *context)
{
	const char *at = info->si_addr;

	for (size_t i = 0; i < n_watched; i++) {
		const char *begin = watched[i].data;

		if (watched[i].mapped && at >= begin && at < begin + watched[i].len) {
			write_text("forebay: put: ");
			write_text(watched[i].file->path);
			write_text(
				": it became shorter, or could not be read, while it was being stored; nothing was published\n");
			_exit(EXIT_FAILURE);
		}
	}
	signal(number, SIG_DFL); /* not ours: let it happen again */
}

static void watch(const struct source *sources, size_t n)
{
	struct sigaction action = { .sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO };

	watched = sources;
	n_watched = n;
	sigemptyset(&action.sa_mask);
	sigaction(SIGBUS, &action, NULL);
}

static bool same_time(const struct timespec *a, const struct timespec *b)
{
	return a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec;
}

static bool same(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
	       same_time(&a->st_mtim, &b->st_mtim) && same_time(&a->st_ctim, &b->st_ctim);
}

static int changed(const struct tree_file *file, struct error *e)
{
	return error_set(e, -EAGAIN, "%s: it changed while it was being read", file->path);
}

static int read_whole(int fd, struct source *source, struct error *e)
{
	const struct tree_file *file = source->file;
	struct stat st;
	size_t got = 0;

	source->data = malloc(source->len);
	if (!source->data)
		return error_set(e, -ENOMEM, "%s: %s", file->path, strerror(ENOMEM));
	while (got < source->len) {
		ssize_t n = pread(fd, (char *)source->data + got, source->len - got, (off_t)got);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return error_set(e, -errno, "%s: %s", file->path, strerror(errno));
		if (!n)
			return changed(file, e);
		got += (size_t)n;
	}
	if (fstat(fd, &st) || !same(&st, &file->st))
		return changed(file, e);
	return 0;
}

static int map_whole(int fd, struct source *source, struct error *e)
{
	void *data = mmap(NULL, source->len, PROT_READ, MAP_PRIVATE, fd, 0);

	if (data == MAP_FAILED)
		return error_set(e, -errno, "%s: %s", source->file->path, strerror(errno));
	(void)madvise(data, source->len, MADV_SEQUENTIAL);
	source->data = data;
	source->mapped = true;
	return 0;
}

static int open_source(struct source *source, struct error *e)
{
	const struct tree_file *file = source->file;
	/* Not blocking: the name may belong to a FIFO by now. */
	int fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct stat st;

	if (fd < 0)
		return error_set(e, -errno, "%s: %s", file->path, strerror(errno));
	int r = fstat(fd, &st) || !same(&st, &file->st) ? changed(file, e) : 0;
	source->len = (size_t)file->st.st_size;
	if (!r && source->len)
		r = source->len <= SOURCE_COPY_MAX ? read_whole(fd, source, e) : map_whole(fd, source, e);
	close(fd);
	return r;
}

int sources_open(const struct tree *tree, struct progress *progress, struct source **ret, struct error *e)
{
	struct source *sources = calloc(tree->n + 1, sizeof(*sources));
	int r = sources ? 0 : -ENOMEM;

	for (size_t i = 0; !r && i < tree->n; i++) {
		sources[i].file = &tree->files[i];
		r = open_source(&sources[i], e);
		if (!r)
			progress_add(progress, sources[i].len);
	}
	if (r) {
		sources_free(sources, tree->n);
		return r;
	}
	watch(sources, tree->n);
	*ret = sources;
	return 0;
}

int sources_check(const struct source *sources, size_t n, struct error *e)
{
	for (size_t i = 0; i < n; i++) {
		const struct tree_file *file = sources[i].file;
		struct stat st;

		if (!sources[i].mapped)
			continue;
		if (stat(file->path, &st))
			return error_set(e, -errno, "%s: it vanished while it was being stored", file->path);
		if (!same(&st, &file->st))
			return error_set(e, -EAGAIN, "%s: it changed while it was being stored", file->path);
	}
	return 0;
}

void sources_free(struct source *sources, size_t n)
{
	if (watched == sources)
		n_watched = 0;
	for (size_t i = 0; sources && i < n; i++) {
		if (sources[i].mapped)
			munmap(sources[i].data, sources[i].len);
		else
			free(sources[i].data);
	}
	free(sources);
}
