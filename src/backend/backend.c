/*
 * backend/backend.c: what all drivers share: requests are checked here, so that a driver sees none that is malformed.
 */
#include "backend/backend.h"

#include <errno.h>
#include <string.h>

#include "base/check.h"

static bool char_is_valid(char c)
{
	return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
	       c == '%' || c == '-';
}

/* Length of the valid part at the head of @s, which may go on with anything; 0: there is none. */
static size_t part_length(const char *s)
{
	size_t n = 0;

	if (*s == '.') /* covers "." and ".." */
		return 0;
	while (char_is_valid(s[n]))
		n++;
	return n;
}

bool backend_part_is_valid(const char *part)
{
	size_t n = part_length(part);

	return n && !part[n];
}

/* A key, or with @prefix: "" or a key and a '/'. */
static bool path_is_valid(const char *path, bool prefix)
{
	if (strnlen(path, BACKEND_KEY_MAX + 1) > BACKEND_KEY_MAX)
		return false;
	if (prefix && !*path)
		return true;
	for (;;) {
		size_t n = part_length(path);

		if (!n)
			return false;
		path += n;
		if (!*path)
			return !prefix;
		if (*path++ != '/')
			return false;
		if (!*path)
			return prefix;
	}
}

bool backend_key_is_valid(const char *key)
{
	return path_is_valid(key, false);
}

static int check_list(struct backend_req *req)
{
	if (!path_is_valid(req->key, true))
		return error_set(&req->error, -EINVAL, "not a prefix to list: \"%.100s\"", req->key);
	if (strnlen(req->after, sizeof(req->after)) == sizeof(req->after))
		return error_set(&req->error, -EINVAL, "the key to list after is longer than %d bytes",
				 BACKEND_KEY_MAX);
	if (!req->len || req->len > BACKEND_LIST_MAX)
		return error_set(&req->error, -EINVAL, "a list of %zu keys; one answer has 1 to %d", req->len,
				 BACKEND_LIST_MAX);
	return 0;
}

static int check(struct backend_req *req)
{
	switch (req->op) {
	case BACKEND_GET:
	case BACKEND_HEAD:
	case BACKEND_PUT:
	case BACKEND_BEGIN:
	case BACKEND_DELETE:
		if (!backend_key_is_valid(req->key))
			return error_set(&req->error, -EINVAL, "not a key: \"%.100s\"", req->key);
		return 0;
	case BACKEND_PART:
	case BACKEND_COMMIT:
	case BACKEND_ABORT:
		if (!req->upload)
			return error_set(&req->error, -EINVAL, "there is no upload");
		return 0;
	case BACKEND_LIST:
		return check_list(req);
	case BACKEND_PROBE:
		return 0;
	}
	return error_set(&req->error, -ENOSYS, "unknown request %d", (int)req->op);
}

static void finish_now(struct task *task)
{
	struct backend_req *req = container_of(task, struct backend_req, job.task);

	req->finish(req);
}

void backend_finish_later(struct backend_req *req, int result)
{
	req->result = result;
	req->job.task = (struct task){ .fn = finish_now };
	loop_post(req->backend->env->loop, &req->job.task);
}

void backend_submit(struct backend *backend, struct backend_req *req)
{
	CHECK_MAGIC(backend, BACKEND_MAGIC);
	CHECK(req->finish);
	req->backend = backend;
	req->job = (struct job){ 0 };
	req->result = 0;
	req->got = 0;
	if (req->hasher)
		hasher_init(req->hasher);
	req->size = 0;
	req->out.len = 0;
	req->error = (struct error){ 0 };

	int r = check(req);
	if (r)
		backend_finish_later(req, r);
	else
		backend->driver->submit(backend, req);
}

void backend_free(struct backend *backend)
{
	if (!backend)
		return;
	CHECK_MAGIC(backend, BACKEND_MAGIC);
	backend->driver->free(backend);
}
