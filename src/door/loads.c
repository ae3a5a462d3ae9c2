/*
 * door/loads.c: a client's loads. Each is a fiber of the session: it runs the reader, then keeps it until the client says that it is
 * done with every span (CANCEL), or is gone.
 */
#include "door/session.h"

#include <errno.h>
#include <stdlib.h>

#define LOAD_TIMEOUT_MS 3600000

struct load {
	struct reader *reader;
	struct nursery flow; /* runs the reader; cancelled by the client's CANCEL */
	struct waitplace changed;
	uint64_t deadline_ns;
	bool closed;
};

static int run_reader(void *arg)
{
	struct load *load = arg;
	struct error e = { 0 };

	(void)group_load_run(load->reader, load->deadline_ns, &e); /* the client hears of it by LOAD_END */
	return 0;
}

static void live(struct load *load)
{
	int r = fiber_start(&load->flow, "load", run_reader, load);

	if (!r)
		r = nursery_wait(&load->flow, load->deadline_ns);
	while (!r && !load->closed)
		r = wait_at(&load->changed, load->deadline_ns);
	nursery_fini(&load->flow);
}

int serve_load(struct request *request, struct view body, uint64_t deadline_ns, struct buf *answer, struct error *e)
{
	struct session *session = request->session;
	const struct door_native_options *options = &session->door->options;
	struct load load = { .deadline_ns = env_in_ms(session->door->env, LOAD_TIMEOUT_MS) };
	struct frame_head head = { .type = MSG_LOAD, .request = request->head.request, .flags = FRAME_REPLY };
	struct rank_events events;
	struct msg_load m;
	int r = msg_load_decode(body, &m);

	if (r || !m.load)
		return error_set(e, -EPROTO, "malformed LOAD");
	struct rank *rank = m.group ? map_get(&session->ranks, number_key(&m.group)) : NULL;
	struct version *version = map_get(&session->versions, number_key(&m.version));
	if (!version || (m.group && !rank))
		return error_set(e, -EBADF, "the load's version or group is not open in this session");
	r = group_load_new(options->groups, rank, session_events(session, &events), version, &m, &load.reader, e);
	if (r)
		return r;
	nursery_init(&load.flow, session->door->env->loop);
	waitplace_init(&load.changed);
	r = handle_new(session, &session->loads, &load, &m.load);
	if (r) {
		group_load_free(load.reader);
		return error_set(e, r, "load %lu is under way already, or there are too many", (unsigned long)m.load);
	}
	session_send(session, &head, (struct view){ 0 }); /* now, not at the load's end */
	request->head.request = 0;
	live(&load);
	map_remove(&session->loads, number_key(&m.load));
	group_load_free(load.reader);
	return 0;
}

int serve_release(struct request *request, struct view body, uint64_t deadline_ns, struct buf *answer, struct error *e)
{
	struct msg_release m;

	if (msg_release_decode(body, &m))
		return error_set(e, -EPROTO, "malformed RELEASE");
	struct load *load = map_get(&request->session->loads, number_key(&m.load));
	if (load)
		group_load_release(load->reader, m.tokens);
	return 0;
}

void load_cancel(struct session *session, uint64_t number)
{
	struct load *load = map_get(&session->loads, number_key(&number));

	if (!load)
		return;
	load->closed = true;
	nursery_cancel(&load->flow);
	wake_all(&load->changed);
}
