#include "net/greet.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "base/check.h"
#include "wire/body.h"
#include "wire/message.h"

#define MOVE(state) (1u << (state))
static const uint8_t moves[GREET_STATES] = {
	[GREET_LISTENS] = MOVE(GREET_ANSWERED) | MOVE(GREET_KNOWN) | MOVE(GREET_OVER),
	[GREET_ASKED] = MOVE(GREET_PROVES) | MOVE(GREET_OVER),
	[GREET_ANSWERED] = MOVE(GREET_KNOWN) | MOVE(GREET_OVER),
	[GREET_PROVES] = MOVE(GREET_OVER),
	[GREET_KNOWN] = MOVE(GREET_OVER),
};

static void greet_move(struct greeting *greeting, enum greet_state to)
{
	CHECK(moves[greeting->state] & MOVE(to));
	greeting->state = to;
	if (to == GREET_OVER || to == GREET_KNOWN)
		net_limit_body(greeting->conn, FRAME_BODY_MAX);
}

static int refuse(struct greeting *greeting, enum counter reason, struct error *e, int code)
{
	greeting->reason = reason;
	return code;
}
#define REFUSE(greeting, why, e, code, ...) refuse(greeting, why, e, error_set(e, code, __VA_ARGS__))

/* ---- what is sent ---- */

static int send_words(const struct greeting *greeting, const struct greet_self *self, unsigned type, unsigned flags,
		      struct view body)
{
	const struct frame_head head = {
		.type = (uint16_t)type,
		.flags = flags,
		.request = greeting->request,
		.deadline_ms = flags & FRAME_REPLY ? 0 : GREET_MS,
		.generation = self ? self->generation : 0,
	};

	return net_send(greeting->conn, &head, body, NULL);
}

/* A nonce of all zeros says that there is none. */
static void nonce_new(struct greeting *greeting, const struct greet_self *self)
{
	if (self->key.len)
		greeting->env->ops->random(greeting->env, greeting->nonce.b, sizeof(greeting->nonce.b));
}

static bool has_nonce(const struct digest *nonce)
{
	return !bytes_are_zero(nonce->b, sizeof(nonce->b));
}

int greet_dial(struct greeting *greeting, struct env *env, struct net_conn *conn, const struct greet_self *self,
	       enum greet_kind kind, uint64_t request)
{
	_cleanup_(buf_fini) struct buf body = { 0 };

	*greeting =
		(struct greeting){ .state = GREET_ASKED, .env = env, .conn = conn, .kind = kind, .request = request };
	net_limit_body(conn, GREET_BODY_MAX);
	net_refuse_bulk(conn);
	nonce_new(greeting, self);
	const struct msg_hello m = {
		.kind = (uint8_t)kind,
		.major_min = FRAME_MAJOR_LEAST,
		.major_max = FRAME_MAJOR,
		.cluster = view_str(self->cluster),
		.generation = self->generation,
		.node = view_str(self->node),
		.incarnation = self->incarnation,
		.nonce = greeting->nonce,
	};
	int r = msg_hello_encode(&m, &body);
	if (r)
		return r;
	greeting->words.hello = digest_of(body.ptr, body.len);
	return send_words(greeting, self, MSG_HELLO, 0, view_buf(&body));
}

void greet_accept(struct greeting *greeting, struct env *env, struct net_conn *conn)
{
	*greeting = (struct greeting){ .state = GREET_LISTENS, .env = env, .conn = conn };
	net_limit_body(conn, GREET_BODY_MAX);
	net_refuse_bulk(conn);
}

static int send_reply(struct greeting *greeting, const struct greet_self *self)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	const struct msg_hello_reply m = {
		.major = FRAME_MAJOR,
		.cluster = view_str(self->cluster),
		.generation = self->generation,
		.node = view_str(self->node),
		.incarnation = self->incarnation,
		.nonce = greeting->nonce,
	};
	int r = msg_hello_reply_encode(&m, &body);

	if (r)
		return r;
	greeting->words.reply = digest_of(body.ptr, body.len);
	return send_words(greeting, self, MSG_HELLO, FRAME_REPLY, view_buf(&body));
}

static int send_proof(struct greeting *greeting, const struct greet_self *self, enum proof_role role, unsigned flags)
{
	_cleanup_(buf_fini) struct buf body = { 0 };
	struct msg_prove m;
	int r = proof_make(self->key, role, &greeting->words, &m.proof);

	if (!r)
		r = msg_prove_encode(&m, &body);
	return r ? r : send_words(greeting, self, MSG_PROVE, flags, view_buf(&body));
}

/* ---- what is heard ---- */

static bool node_fits(struct view node)
{
	return node.len && node.len <= GREET_NODE_MAX;
}

static void note_peer(struct greeting *greeting, struct view node, uint32_t generation, uint64_t incarnation)
{
	greeting->peer = (struct greet_peer){ .generation = generation, .incarnation = incarnation };
	memcpy(greeting->peer.node, node.ptr, node.len);
}

static int shown(struct view text)
{
	return (int)(text.len < GREET_NODE_MAX ? text.len : GREET_NODE_MAX);
}

static int hello_check(struct greeting *greeting, const struct greet_self *self, const struct msg_hello *m,
		       struct error *e)
{
	if (m->major_min > FRAME_MAJOR || m->major_max < FRAME_MAJOR_LEAST)
		return REFUSE(greeting, COUNT_PEER_VERSION, e, -ERR_EVERSION,
			      "node %s speaks protocols %d to %d, you speak %" PRIu32 " to %" PRIu32, self->node,
			      FRAME_MAJOR_LEAST, FRAME_MAJOR, m->major_min, m->major_max);
	if (m->kind != GREET_CONTROL && m->kind != GREET_BULK)
		return REFUSE(greeting, COUNT_PEER_HELLO, e, -EPROTO, "HELLO of kind %d: here peers are spoken to",
			      m->kind);
	if (!node_fits(m->node))
		return REFUSE(greeting, COUNT_PEER_NAME, e, -EPROTO, "a node's name of %zu bytes", m->node.len);
	if (!view_equal(m->cluster, view_str(self->cluster)))
		return REFUSE(greeting, COUNT_PEER_CLUSTER, e, -EPERM, "node %s belongs to cluster %s, you to %.*s",
			      self->node, self->cluster, shown(m->cluster), (const char *)m->cluster.ptr);
	if (self->key.len && !has_nonce(&m->nonce))
		return REFUSE(
			greeting, COUNT_PEER_UNPROVEN, e, -EACCES,
			"node %s admits only peers that prove the cluster's key; node %.*s brings no challenge: it "
			"has no key, or is of an older release",
			self->node, shown(m->node), (const char *)m->node.ptr);
	return 0;
}

static int on_hello(struct greeting *greeting, const struct greet_self *self, struct view body, struct error *e)
{
	struct msg_hello m;

	if (msg_hello_decode(body, &m))
		return REFUSE(greeting, COUNT_PEER_HELLO, e, -EPROTO, "a HELLO that cannot be read");
	int r = hello_check(greeting, self, &m, e);
	if (r)
		return r;
	greeting->kind = m.kind;
	note_peer(greeting, m.node, m.generation, m.incarnation);
	if (!self->key.len) {
		greet_move(greeting, GREET_KNOWN);
		return GREET_MET;
	}
	greeting->words.hello = digest_of(body.ptr, body.len);
	nonce_new(greeting, self);
	r = send_reply(greeting, self);
	if (r)
		return REFUSE(greeting, COUNT_PEER_LIMIT, e, r, "no reply to HELLO: %s", error_meaning(r));
	greet_move(greeting, GREET_ANSWERED);
	return 0;
}

static int check_proof(struct greeting *greeting, const struct greet_self *self, enum proof_role role, struct view body,
		       struct error *e)
{
	struct msg_prove m;

	if (msg_prove_decode(body, &m))
		return REFUSE(greeting, COUNT_PEER_PROOF, e, -EPROTO, "a proof that cannot be read");
	int r = proof_check(self->key, role, &greeting->words, &m.proof);
	if (r == PROOF_WRONG)
		return REFUSE(greeting, COUNT_PEER_PROOF, e, -EACCES,
			      "whoever calls itself node %.*s does not prove the key of cluster %s",
			      (int)strnlen(greeting->peer.node, GREET_NODE_MAX), greeting->peer.node, self->cluster);
	return r ? REFUSE(greeting, COUNT_PEER_LIMIT, e, r, "no memory to check a proof") : 0;
}

static int accepter_frame(struct greeting *greeting, const struct greet_self *self, const struct frame_head *head,
			  struct view body, struct error *e)
{
	unsigned due = greeting->state == GREET_LISTENS ? MSG_HELLO : MSG_PROVE;

	greeting->request = head->request;
	greeting->type = head->type;
	if (head->type != due || head->flags)
		return REFUSE(greeting, COUNT_PEER_HELLO, e, -EPROTO,
			      due == MSG_HELLO ? "a connection begins with HELLO" : "after HELLO comes a proof");
	if (due == MSG_HELLO)
		return on_hello(greeting, self, body, e);
	int r = check_proof(greeting, self, PROOF_DIALS, body, e);
	if (r)
		return r;
	greet_move(greeting, GREET_KNOWN);
	return GREET_MET;
}

static int reply_check(struct greeting *greeting, const struct greet_self *self, const struct msg_hello_reply *m,
		       struct error *e)
{
	if (m->major < FRAME_MAJOR_LEAST || m->major > FRAME_MAJOR)
		return REFUSE(greeting, COUNT_PEER_VERSION, e, -ERR_EVERSION,
			      "it speaks protocol %" PRIu32 ", this node %d", m->major, FRAME_MAJOR);
	if (!node_fits(m->node))
		return REFUSE(greeting, COUNT_PEER_NAME, e, -EPROTO, "it has a name of %zu bytes", m->node.len);
	if (!view_equal(m->cluster, view_str(self->cluster)))
		return REFUSE(greeting, COUNT_PEER_CLUSTER, e, -EHOSTDOWN,
			      "there answers a node of cluster %.*s, not of %s", shown(m->cluster),
			      (const char *)m->cluster.ptr, self->cluster);
	if (self->key.len && !has_nonce(&m->nonce))
		return REFUSE(greeting, COUNT_PEER_UNPROVEN, e, -EACCES,
			      "it proves no key, as this node would: it has none, or is of an older release");
	if (!self->key.len && has_nonce(&m->nonce))
		return REFUSE(greeting, COUNT_PEER_UNPROVEN, e, -EACCES,
			      "it asks for a proof, and this node has no key");
	return 0;
}

static int on_reply(struct greeting *greeting, const struct greet_self *self, struct view body, struct error *e)
{
	struct msg_hello_reply m;

	if (msg_hello_reply_decode(body, &m))
		return REFUSE(greeting, COUNT_PEER_HELLO, e, -EPROTO, "its greeting cannot be read");
	int r = reply_check(greeting, self, &m, e);
	if (r)
		return r;
	note_peer(greeting, m.node, m.generation, m.incarnation);
	if (!self->key.len) {
		greet_move(greeting, GREET_OVER);
		return GREET_MET;
	}
	greeting->words.reply = digest_of(body.ptr, body.len);
	r = send_proof(greeting, self, PROOF_DIALS, 0);
	if (r)
		return REFUSE(greeting, COUNT_PEER_LIMIT, e, r, "no proof can be sent: %s", error_meaning(r));
	greet_move(greeting, GREET_PROVES);
	return 0;
}

static int dialler_frame(struct greeting *greeting, const struct greet_self *self, const struct frame_head *head,
			 struct view body, struct error *e)
{
	unsigned due = greeting->state == GREET_ASKED ? MSG_HELLO : MSG_PROVE;

	if (head->type != due || !(head->flags & FRAME_REPLY) || (head->flags & FRAME_MORE) ||
	    head->request != greeting->request)
		return REFUSE(greeting, COUNT_PEER_HELLO, e, -EPROTO, "it answered %s with %s", msg_type_name(due),
			      msg_type_name(head->type));
	if (head->flags & FRAME_FAILED)
		return refuse(greeting, COUNT_PEER_HELLO, e, body_get_failure(body, e));
	if (due == MSG_HELLO)
		return on_reply(greeting, self, body, e);
	int r = check_proof(greeting, self, PROOF_ACCEPTS, body, e);
	if (r)
		return r;
	greet_move(greeting, GREET_OVER);
	return GREET_MET;
}

int greet_frame(struct greeting *greeting, const struct greet_self *self, const struct frame_head *head,
		struct view body, struct error *e)
{
	struct error own = { 0 };

	CHECK(greeting->state < GREET_KNOWN);
	if (greeting->state == GREET_ASKED || greeting->state == GREET_PROVES)
		return dialler_frame(greeting, self, head, body, e);
	int r = accepter_frame(greeting, self, head, body, &own);
	if (r < 0) {
		greet_refuse(greeting, r, own.text);
		error_set(e, r, "%s", own.text);
	}
	return r;
}

int greet_welcome(struct greeting *greeting, const struct greet_self *self)
{
	CHECK(greeting->state == GREET_KNOWN);
	greet_move(greeting, GREET_OVER);
	return self->key.len ? send_proof(greeting, self, PROOF_ACCEPTS, FRAME_REPLY) : send_reply(greeting, self);
}

void greet_refuse(struct greeting *greeting, int code, const char *words)
{
	_cleanup_(buf_fini) struct buf body = { 0 };

	greet_move(greeting, GREET_OVER);
	if (!body_put_failure(&body, code, words))
		(void)send_words(greeting, NULL, greeting->type, FRAME_REPLY | FRAME_FAILED, view_buf(&body));
}
