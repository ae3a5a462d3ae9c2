#include "daemon/key.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/check.h"
#include "net/proof.h"

static void close_file(FILE **file)
{
	if (*file)
		fclose(*file);
}

static int check_mode(const char *path, FILE *file, struct error *e)
{
	struct stat st;

	if (fstat(fileno(file), &st))
		return error_set(e, -errno, "%s: %s", path, strerror(errno));
	if (!S_ISREG(st.st_mode))
		return error_set(e, -EINVAL, "%s: a key is kept in a file", path);
	if (st.st_uid && st.st_uid != geteuid())
		return error_set(
			e, -EACCES,
			"%s: user %u owns it, who can read and change it: a key must be root's or the daemon's own",
			path, st.st_uid);
	if (st.st_mode & (S_IRWXO | S_IWGRP))
		return error_set(
			e, -EACCES,
			"%s: its mode is %04o: a key must not be readable by others, nor writable by its group; "
			"try `chmod 0600`",
			path, st.st_mode & 07777u);
	return 0;
}

int key_read(const char *path, struct buf *ret, struct error *e)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO is not waited for: it is refused below */
	_cleanup_(close_file) FILE *file = fd < 0 ? NULL : fdopen(fd, "r");
	char bytes[PROOF_KEY_MAX + 3]; /* room for a line end, and to see that there is more */

	if (!file) {
		int r = error_set(e, -errno, "%s: %s", path, strerror(errno));

		if (fd >= 0)
			close(fd);
		return r;
	}
	int r = check_mode(path, file, e);
	if (r)
		return r;
	setvbuf(file, NULL, _IONBF, 0); /* no copy of it stays in a buffer */
	size_t len = fread(bytes, 1, sizeof(bytes), file);
	if (ferror(file))
		return error_set(e, -EIO, "%s: it could not be read", path);
	bool more = len == sizeof(bytes);
	while (len && (bytes[len - 1] == '\n' || bytes[len - 1] == '\r'))
		len--;
	if (more || len < PROOF_KEY_MIN || len > PROOF_KEY_MAX)
		r = error_set(e, -EINVAL, "%s: a key has %d to %d bytes; this one has %s%zu", path, PROOF_KEY_MIN,
			      PROOF_KEY_MAX, more ? "at least " : "", len);
	else if (buf_append(ret, bytes, len))
		r = -ENOMEM;
	explicit_bzero(bytes, sizeof(bytes));
	return r;
}

void key_forget(struct buf *key)
{
	if (key->ptr)
		explicit_bzero(key->ptr, key->len);
	buf_fini(key);
}

bool key_is_needed(const char *listen)
{
	static const char *const loopback[] = { "tcp:127.", "tcp:[::1]:" }; /* addresses are numbers */

	for (size_t i = 0; i < ARRAY_LEN(loopback); i++)
		if (!strncmp(listen, loopback[i], strlen(loopback[i])))
			return false;
	return true;
}
