#include "wire/body.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/check.h"
#include "wire/message.h"

struct part {
	struct list link;
	uint64_t request, deadline_ns;
	uint16_t type;
	bool reply, refused; /* refused: the rest is swallowed */
	bool late;	     /* refused since its time is over: whether a rest comes at all is not known */
	struct buf body;
};

static void part_free(struct body_joiner *joiner, struct part *part)
{
	list_remove(&part->link);
	joiner->n_parts--;
	joiner->bytes -= part->body.len;
	buf_fini(&part->body);
	free(part);
}

void body_joiner_init(struct body_joiner *joiner, size_t bytes_max)
{
	*joiner = (struct body_joiner){ .bytes_max = bytes_max };
	list_init(&joiner->parts);
}

void body_joiner_fini(struct body_joiner *joiner)
{
	while (joiner->n_parts)
		part_free(joiner, list_entry(joiner->parts.next, struct part, link));
}

static struct part *part_find(struct body_joiner *joiner, const struct frame_head *head)
{
	bool reply = head->flags & FRAME_REPLY;

	list_each(node, &joiner->parts) {
		struct part *part = list_entry(node, struct part, link);

		if (part->request == head->request && part->type == head->type && part->reply == reply)
			return part;
	}
	return NULL;
}

static void part_refuse(struct body_joiner *joiner, struct part *part)
{
	part->refused = true;
	joiner->bytes -= part->body.len;
	buf_fini(&part->body);
}

/* Of a body that is forgotten frames may still be on their way: the last of them must not be taken for a body of its own. */
void body_joiner_expire(struct body_joiner *joiner, uint64_t now_ns)
{
	list_each(node, &joiner->parts) {
		struct part *part = list_entry(node, struct part, link);

		if (now_ns <= part->deadline_ns || part->late)
			continue;
		part_refuse(joiner, part);
		part->late = true;
	}
}

/* Room for one body more, if need be that of the oldest late one. */
static bool has_room(struct body_joiner *joiner)
{
	if (joiner->n_parts < BODY_PARTS_MAX)
		return true;
	list_each(node, &joiner->parts) {
		struct part *part = list_entry(node, struct part, link);

		if (!part->late)
			continue;
		part_free(joiner, part);
		return true;
	}
	return false;
}

static struct part *part_new(struct body_joiner *joiner, const struct frame_head *head, uint64_t deadline_ns)
{
	struct part *part = has_room(joiner) ? calloc(1, sizeof(*part)) : NULL;

	if (!part)
		return NULL;
	part->request = head->request;
	part->deadline_ns = deadline_ns;
	part->type = head->type;
	part->reply = head->flags & FRAME_REPLY;
	list_append(&joiner->parts, &part->link);
	joiner->n_parts++;
	return part;
}

static int part_add(struct body_joiner *joiner, struct part *part, struct view piece)
{
	if (part->body.len + piece.len > BODY_MAX)
		return -E2BIG;
	if (joiner->bytes + piece.len > joiner->bytes_max)
		return -EBUSY;
	int r = buf_append(&part->body, piece.ptr, piece.len);
	if (!r)
		joiner->bytes += piece.len;
	return r;
}

int body_join(struct body_joiner *joiner, const struct frame_head *head, uint64_t deadline_ns, struct view piece,
	      struct buf *ret_body)
{
	struct part *part = part_find(joiner, head);
	bool more = head->flags & FRAME_MORE;

	if (!part && !more)
		return buf_append(ret_body, piece.ptr, piece.len);
	if (!part)
		part = part_new(joiner, head, deadline_ns);
	if (!part)
		return -EPROTO;

	bool refused = part->refused;
	int r = refused ? 0 : part_add(joiner, part, piece);
	if (r)
		part_refuse(joiner, part);
	if (more)
		return r ? r : 1;
	if (!r && !refused) {
		*ret_body = part->body;
		joiner->bytes -= part->body.len;
		part->body = (struct buf){ 0 };
	}
	part_free(joiner, part);
	return r ? r : refused;
}

struct view body_cut(struct frame_head *head, struct view *body)
{
	struct view piece = view_take(body, FRAME_BODY_MAX);

	head->flags &= ~(uint32_t)FRAME_MORE;
	if (body->len)
		head->flags |= FRAME_MORE;
	return piece;
}

int body_put_failure(struct buf *body, int code, const char *words)
{
	CHECK(code < 0);
	const struct msg_failure m = { .code = (uint32_t)-code, .words = view_str(words) };

	return msg_failure_encode(&m, body);
}

int body_get_failure(struct view body, struct error *e)
{
	struct msg_failure m;

	if (msg_failure_decode(body, &m) || !m.code || m.code > FAILURE_CODE_MAX)
		return error_set(e, -EPROTO, "the other side's failure cannot be read");
	size_t len = m.words.len < ERROR_TEXT_MAX ? m.words.len : ERROR_TEXT_MAX;
	if (!len)
		return error_set(e, -(int)m.code, "%s", error_meaning(-(int)m.code));
	return error_set(e, -(int)m.code, "%.*s", (int)len, (const char *)m.words.ptr);
}
