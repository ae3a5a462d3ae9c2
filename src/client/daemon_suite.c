#include "client/daemon_suite.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/check.h"
#include "wire/body.h"
#include "wire/message.h"

#define BLOCK 100000 /* bytes that it grants at once: no multiple of anything */

static bool take_all(int fd, void *to, size_t len)
{
	return recv(fd, to, len, MSG_WAITALL) == (ssize_t)len;
}

static void send_frame(struct daemon *d, unsigned type, uint64_t number, unsigned flags, const struct buf *body,
		       int descriptor)
{
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof(int))] = { 0 };
	struct frame_head head = {
		.major = FRAME_MAJOR,
		.type = (uint16_t)type,
		.flags = flags | (descriptor >= 0 ? FRAME_ARENA : 0),
		.request = number,
		.body_bytes = (uint32_t)body->len,
		.body_crc = crc32c(0, body->ptr, body->len),
	};
	uint8_t raw[FRAME_HEAD_BYTES];
	struct iovec iov[] = { { raw, sizeof(raw) }, { body->ptr, body->len } };
	struct msghdr message = { .msg_iov = iov, .msg_iovlen = 2 };

	frame_encode(&head, raw);
	if (descriptor >= 0) {
		message.msg_control = control;
		message.msg_controllen = sizeof(control);
		struct cmsghdr *c = CMSG_FIRSTHDR(&message);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &descriptor, sizeof(int));
	}
	sendmsg(d->fd, &message, MSG_NOSIGNAL); /* blocking: all or an error, which the next read shows */
}

#define SEND(d, type, number, flags, fd, name, ...)             \
	do {                                                    \
		_cleanup_(buf_fini) struct buf _body = { 0 };   \
		const struct msg_##name _m = { __VA_ARGS__ };   \
		CHECK(msg_##name##_encode(&_m, &_body) == 0);   \
		send_frame(d, type, number, flags, &_body, fd); \
	} while (0)

static void greet(struct daemon *d, const struct frame_head *head)
{
	_cleanup_(buf_fini) struct buf words = { 0 };

	if (d->manners == OTHER_MAJOR) {
		body_put_failure(&words, -ERR_EVERSION, "this daemon speaks protocols 7 to 8");
		send_frame(d, MSG_HELLO, head->request, FRAME_REPLY | FRAME_FAILED, &words, -1);
		return;
	}
	SEND(d, MSG_HELLO, head->request, FRAME_REPLY, -1, hello_reply, .major = FRAME_MAJOR, .node = view_str("n0"));
	for (unsigned i = 0; i < 2; i++)
		SEND(d, MSG_ARENA, 0, 0, d->arena_fd[i], arena, .arena = 1 + i, .bytes = ARENA_BYTES,
		     .writable = i == 0);
}

/* Grants the first item, in blocks, to the head of the capture arena. */
static void take_save(struct daemon *d, const struct frame_head *head, struct view body)
{
	_cleanup_(list_buf_fini) struct list_buf grants = { 0 };
	struct elem_item item;
	struct msg_save m;

	CHECK(msg_save_decode(body, &m) == 0 && elem_item_next(&m.items, &item) == 0);
	CHECK(box_bytes(&item.box, item.element_bits, &d->bytes) == 0 && d->bytes <= ARENA_BYTES);
	SEND(d, MSG_SAVE, head->request, FRAME_REPLY, -1, save_reply, .save_id = 1);
	if (d->manners == RUNS_LATE)
		SEND(d, MSG_STAGE, m.save, 0, -1, stage, .code = ETIMEDOUT, .words = view_str("rank 7 is late"));
	if (d->manners == NEVER_CAPTURES || d->manners == RUNS_LATE)
		return;
	d->blocks = d->filled = 0;
	for (uint64_t at = 0; at < d->bytes; at += BLOCK) {
		const struct elem_grant grant = {
			.block = d->blocks++,
			.offset = at,
			.bytes = (uint32_t)(d->bytes - at < BLOCK ? d->bytes - at : BLOCK),
			.arena = 1,
			.arena_offset = at,
		};

		CHECK(elem_grant_append(&grants, &grant) == 0);
	}
	SEND(d, MSG_GRANT, m.save, 0, -1, grant, .last = 1, .grants = list_buf_view(&grants));
}

static void take_filled(struct daemon *d, const struct frame_head *head, struct view body)
{
	const struct buf nothing = { 0 };
	struct elem_filled filled;
	struct msg_filled m;

	CHECK(msg_filled_decode(body, &m) == 0);
	send_frame(d, MSG_FILLED, head->request, FRAME_REPLY, &nothing, -1);
	while (elem_filled_next(&m.filled, &filled) == 0) {
		uint64_t at = (uint64_t)filled.block * BLOCK;
		uint32_t len = (uint32_t)(d->bytes - at < BLOCK ? d->bytes - at : BLOCK);
		struct digest digest = digest_of(d->arena[0] + at, len);

		CHECK(digest_equal(&digest, &filled.digest) && crc32c(0, d->arena[0] + at, len) == filled.crc);
		d->filled++;
	}
	for (uint32_t stage = 0; d->filled == d->blocks && stage < 3; stage++)
		SEND(d, MSG_STAGE, m.save, 0, -1, stage, .stage = stage, .version = stage == 2 ? 41 : 0);
}

static void tell_items(struct daemon *d, const struct frame_head *head)
{
	_cleanup_(list_buf_fini) struct list_buf items = { 0 };
	_cleanup_(buf_fini) struct buf words = { 0 };
	const struct elem_item_info info = {
		.name = view_str("w"),
		.dtype = view_str("int16"),
		.element_bits = 16,
		.whole = { .ndim = 2, .count = { 400, d->bytes / 800 } },
		.bytes = d->bytes,
	};

	if (d->manners == BUSY) {
		CHECK(body_put_failure(&words, -EBUSY, "too many requests") == 0);
		send_frame(d, MSG_ITEMS, head->request, FRAME_REPLY | FRAME_FAILED, &words, -1);
		return;
	}
	CHECK(elem_item_info_append(&items, &info) == 0);
	SEND(d, MSG_ITEMS, head->request, FRAME_REPLY, -1, items_reply, .items = list_buf_view(&items));
}

/* The whole item as one piece, in blocks, from the read arena. */
static void serve_load(struct daemon *d, const struct frame_head *head, struct view body)
{
	_cleanup_(list_buf_fini) struct list_buf blocks = { 0 };
	const struct buf nothing = { 0 };
	struct msg_load m;

	CHECK(msg_load_decode(body, &m) == 0);
	memcpy(d->arena[1], d->arena[0], d->bytes);
	send_frame(d, MSG_LOAD, head->request, FRAME_REPLY, &nothing, -1);
	for (uint64_t at = 0; at < d->bytes; at += BLOCK) {
		const struct elem_block block = {
			.piece = { .ndim = 2, .count = { 400, d->bytes / 800 } },
			.offset = at,
			.bytes = (uint32_t)(d->bytes - at < BLOCK ? d->bytes - at : BLOCK),
			.arena = 2,
			.arena_offset = at,
			.token = 1 + at,
		};

		CHECK(elem_block_append(&blocks, &block) == 0);
	}
	SEND(d, MSG_BLOCKS, m.load, 0, -1, blocks, .blocks = list_buf_view(&blocks));
	SEND(d, MSG_LOAD_END, m.load, 0, -1, load_end, 0);
}

/* False: hangs up. */
static bool serve(struct daemon *d, const struct frame_head *head, struct view body)
{
	const struct buf nothing = { 0 };

	switch (head->type) {
	case MSG_HELLO:
		greet(d, head);
		return true;
	case MSG_JOIN:
		SEND(d, MSG_JOIN, head->request, FRAME_REPLY, -1, join_reply, .handle = 5, .incarnation = 2);
		return true;
	case MSG_SAVE:
		if (d->manners == HANGS_UP)
			return false;
		take_save(d, head, body);
		return true;
	case MSG_FILLED:
		take_filled(d, head, body);
		return true;
	case MSG_OPEN:
		SEND(d, MSG_OPEN, head->request, FRAME_REPLY, -1, open_reply, .handle = 6, .number = 41, .n_items = 1);
		return true;
	case MSG_ITEMS:
		tell_items(d, head);
		return true;
	case MSG_LOAD:
		serve_load(d, head, body);
		return true;
	case MSG_LABEL: {
		_cleanup_(buf_fini) struct buf words = { 0 };
		const uint8_t nonsense[FRAME_HEAD_BYTES] = { 0 };

		if (d->manners == RAVES)
			return send(d->fd, nonsense, sizeof(nonsense), MSG_NOSIGNAL) > 0;
		CHECK(body_put_failure(&words, -EAGAIN, "the label points to version 3") == 0);
		send_frame(d, MSG_LABEL, head->request, FRAME_REPLY | FRAME_FAILED, &words, -1);
		return true;
	}
	default:
		d->cancelled += head->type == MSG_CANCEL;
		d->forgone += head->type == MSG_FORGO;
		send_frame(d, head->type, head->request, FRAME_REPLY, &nothing, -1);
		return true;
	}
}

static void *live(void *arg)
{
	struct daemon *d = arg;
	uint8_t raw[FRAME_HEAD_BYTES], *body = malloc(FRAME_BODY_MAX);
	struct frame_head head;

	d->fd = accept(d->listener, NULL, NULL);
	while (d->fd >= 0 && take_all(d->fd, raw, sizeof(raw))) {
		CHECK(frame_decode(raw, &head, NULL) == 0);
		if (head.body_bytes && !take_all(d->fd, body, head.body_bytes))
			break;
		if (d->manners != SILENT && !serve(d, &head, view_of(body, head.body_bytes)))
			break;
	}
	if (d->fd >= 0)
		close(d->fd);
	free(body);
	return NULL;
}

void daemon_start(struct daemon *d, enum manners manners)
{
	d->manners = manners;
	CHECK(pthread_create(&d->thread, NULL, live, d) == 0);
}

int daemon_set_up(void **state)
{
	struct daemon *d = calloc(1, sizeof(*d));
	struct sockaddr_un address = { .sun_family = AF_UNIX };

	snprintf(d->dir, sizeof(d->dir), "/tmp/forebay-client-XXXXXX");
	CHECK(mkdtemp(d->dir));
	snprintf(d->path, sizeof(d->path), "%s/socket", d->dir);
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", d->path);
	d->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(bind(d->listener, (struct sockaddr *)&address, sizeof(address)) == 0 && listen(d->listener, 8) == 0);
	for (int i = 0; i < 2; i++) {
		d->arena_fd[i] = memfd_create("arena", MFD_CLOEXEC);
		CHECK(ftruncate(d->arena_fd[i], ARENA_BYTES) == 0);
		d->arena[i] = mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, d->arena_fd[i], 0);
	}
	*state = d;
	return 0;
}

int daemon_tear_down(void **state)
{
	struct daemon *d = *state;

	if (d->thread)
		pthread_join(d->thread, NULL);
	for (int i = 0; i < 2; i++) {
		munmap(d->arena[i], ARENA_BYTES);
		close(d->arena_fd[i]);
	}
	close(d->listener);
	unlink(d->path);
	rmdir(d->dir);
	free(d);
	return 0;
}
