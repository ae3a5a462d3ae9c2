/*
 * sim/rank_suite.c: what client processes do. A job is one run of a group: its ranks join, save and load in the same order, each at its own
 * pace, and leave. The operator lists, reads, labels and deletes meanwhile.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "sim/history_suite.h"
#include "sim/inside.h"

#define PACE_MS		 400 /* between two steps, at most */
#define PRESSING_MS	 4   /* where saves press each other */
#define CONNECT_TRIES	 40
#define CONNECT_MS	 500
#define JOIN_MS		 30000
#define CALL_MS		 20000
#define CAPTURED_MS	 620000 /* a gather that does not come together ends by then */
#define STAGED_MS	 1300000
#define DURABLE_MS	 1900000
#define CANCEL_MS	 20
#define CAPTURE_MS	 500
#define POWER_ONCE_IN	 60
#define SCRIBBLE_ONCE_IN 12  /* in a history of which one rank is mad */
#define SCRIBBLE_BYTES	 128 /* has one wrong bit in each so many */
#define PARTS_MAX	 (ITEMS_MOST * BOXES_MAX)

enum step_kind { STEP_SAVE, STEP_LOAD };
struct step {
	enum step_kind kind;
	bool drawn; /* the first rank to come decides what it is about */
	struct attempt *attempt;
};

struct rank {
	struct run *job;
	uint32_t number;
	struct person *person;
	struct client client;
	struct core_group *group;
	struct nursery saves;
};

struct run {
	struct history *h;
	char run[16];
	uint32_t n_ranks, copies;
	bool pressing; /* large saves, fast one after the other, with any policy */
	unsigned n_steps, bundle;
	uint64_t structure, first_step;
	bool must; /* nothing stands in its way: all must succeed */
	struct step steps[STEPS_MAX];
	struct rank ranks[RANKS_MAX];
};

/* ---- saves ---- */

struct part {
	uint8_t *bytes;
	size_t n;
};

struct saving { /* one rank's part of one save */
	struct rank *rank;
	struct attempt *attempt;
	struct core_save *save;
	struct core_future stages[CORE_STAGES];
	struct part parts[PARTS_MAX];
	unsigned n_parts;
	struct nursery later; /* what it does about it beside following it */
	bool cancelled, staged;
	bool under_way; /* when the one node was lost that this history loses */
};

static void fill(struct saving *s)
{
	struct box boxes[BOXES_MAX];

	for (unsigned i = 0; i < s->attempt->n_items; i++) {
		struct item item = truth_item(s->attempt, i, s->rank->number);
		unsigned n = truth_boxes(s->attempt, &item, s->rank->number, boxes);

		for (unsigned b = 0; b < n; b++) {
			struct part *part = &s->parts[s->n_parts++];
			struct error e = { 0 };

			part->n = truth_bytes(&item, &boxes[b]);
			part->bytes = must_alloc(part->n);
			truth_fill(s->attempt, &item, &boxes[b], s->rank->number, part->bytes);
			struct core_item offer = { .name = view_str(item.name),
						   .dtype = view_str("t"),
						   .element_bits = item.bits,
						   .flags = item.flags,
						   .whole = item.whole,
						   .box = boxes[b],
						   .data = part->bytes };
			if (core_save_add(s->save, &offer, &e))
				history_fail(s->rank->job->h, "item %s cannot be offered: %s", item.name, e.text);
		}
	}
}

/* The rank may do with its buffers as it likes. */
static void drop_parts(struct saving *s)
{
	while (s->n_parts) {
		struct part *part = &s->parts[--s->n_parts];

		memset(part->bytes, 0xbb, part->n);
		free(part->bytes);
	}
}

static void save_over(struct saving *s)
{
	struct client *c = &s->rank->client;

	nursery_fini(&s->later);
	for (int i = 0; i < CORE_STAGES; i++)
		core_future_forget(&s->stages[i]);
	core_save_cancel(s->save);
	while (!core_save_is_quiet(s->save) && !core_save_is_over(s->save, CORE_CAPTURED))
		(void)wait_at_shielded(&c->place, env_in_ms(c->env, 1));
	drop_parts(s);
	core_save_drop(s->save);
	client_stir(c);
	free(s);
}

/* A step is saved once: a second try is good only if the first was skipped, or failed and nobody was told anything else. */
static const struct attempt *first_durable(const struct history *h, const struct attempt *a)
{
	for (unsigned i = 0; i + 1 < a->id; i++)
		if (h->attempts[i]->bundle == a->bundle && h->attempts[i]->step == a->step && h->attempts[i]->durable)
			return h->attempts[i];
	return NULL;
}

/* Where nothing happens but that one node is lost, two copies are enough for what was staged. Its own clients lose their daemon. */
static void check_outlived(struct saving *s, int r)
{
	struct history *h = s->rank->job->h;
	bool theirs = h->lost == (int)h->nodes[s->rank->person->node].domain;

	if (!h->one_loss || !s->staged || theirs)
		return;
	if (!r && s->under_way && h->lost >= 0)
		history_deed(h, DEED_SAVE_OUTLIVED);
	if (r && r != -ERR_EUNINDEXED && r != -ERR_ESUPERSEDED && r != -ERR_EDELETED && r != -ECANCELED)
		history_fail(h, "save %u was staged on %u nodes and is lost with one: %s", s->attempt->id,
			     s->attempt->copies, s->stages[CORE_DURABLE].error.text);
}

/* The machines lose power in the moment in which somebody was told durable. */
static void cut_power(struct history *h)
{
	if (!h->calm && !h->gentle && !h->one_loss && !h->healed && world_random(h->world, POWER_ONCE_IN) == 0)
		history_lose_power(h);
}

static void note_end(struct saving *s, int r)
{
	struct history *h = s->rank->job->h;
	struct attempt *a = s->attempt;

	if (!r) {
		if (truth_lies(a) && (!a->hinted || truth_lie_shows(a)))
			history_fail(h, "save %u is durable, and its replicas differ", a->id);
		truth_published(h, a, core_save_version(s->save), true);
		if (first_durable(h, a))
			history_fail(h, "save %u and save %u of one step are durable", first_durable(h, a)->id, a->id);
		const struct core_stats *stats = core_save_stats(s->save);
		for (size_t i = 0; i < stats->n; i++)
			if (strcmp(stats->stats[i].name, "diverged_blocks") == 0 && stats->stats[i].value)
				history_deed(h, DEED_REPLICA_DIVERGED);
	}
	a->over = true;
	if (r)
		truth_told(h, a, s->rank->person->node, r);
	if (r == -ERR_ECHANGED && !h->scribbled)
		history_fail(h, "save %u: captured bytes have changed, to which nobody has written", a->id);
	check_outlived(s, r);
	history_deed(h, !r && a->policy == POLICY_THROUGH ? DEED_SAVE_THROUGH :
			!r				  ? DEED_SAVE_DURABLE :
			r == -ERR_ESKIPPED		  ? DEED_SAVE_SKIPPED :
			r == -ERR_ESUPERSEDED		  ? DEED_SAVE_SUPERSEDED :
			s->cancelled			  ? DEED_SAVE_CANCELLED :
			r == -ERR_EREPLICA		  ? DEED_REPLICA_REFUSED :
			r == -ERR_ESTEP			  ? DEED_STEP_REFUSED :
			r == -ERR_EPOOL			  ? DEED_POOL_REFUSED :
			r == -ERR_EUNINDEXED		  ? DEED_SAVE_UNINDEXED :
							    DEED_SAVE_FAILED);
	bool expected = !r || s->cancelled || a->again || r == -ERR_EREPLICA || r == -ERR_EPOOL || r == -ERR_ESKIPPED ||
			r == -ERR_ESUPERSEDED; /* truth_told() has looked at these */
	if (r == -ERR_EREPLICA && a->liar < 0 && !a->again)
		history_fail(h, "save %u: equal replicas are called different", a->id);
	if (s->rank->job->must && !expected && r != -ECANCELED)
		history_fail(h, "save %u of rank %u failed although nothing was in its way: %s", a->id, s->rank->number,
			     s->stages[CORE_DURABLE].error.code ? s->stages[CORE_DURABLE].error.text : error_name(r));
}

/* A rank that has lost its mind, and its node's others with it: no save may be durable with what it wrote, but for a hinted one. */
static void scribble(struct rank *k)
{
	struct history *h = k->job->h;

	if (k->job->must || !h->mad)
		return;
	for (unsigned i = 0; i < k->client.n_arenas; i++)
		for (size_t at = 0; k->client.captures >> i & 1 && at < k->client.arenas[i].size; at += SCRIBBLE_BYTES)
			k->client.arenas[i].ptr[at + world_random(h->world, SCRIBBLE_BYTES)] ^= 1;
	for (unsigned i = 0; i < h->n_attempts; i++)
		h->attempts[i]->scribbled |= !h->attempts[i]->durable;
	h->scribbled = true;
	history_deed(h, DEED_SCRIBBLED);
	world_tell(h->world, k->client.env, "writes all over what it has captured");
}

/* Until the last stage is over. */
static int follow(void *arg)
{
	static const uint64_t limits_ms[CORE_STAGES] = { CAPTURED_MS, STAGED_MS, DURABLE_MS };
	static const char *const names[CORE_STAGES] = { "captured", "staged", "durable" };
	struct saving *s = arg;
	int r = 0;

	for (int stage = 0; stage < CORE_STAGES && !r; stage++) {
		r = client_await(&s->rank->client, &s->stages[stage], limits_ms[stage], names[stage]);
		if (!r)
			world_tell(s->rank->job->h->world, s->rank->client.env, "save %u is %s", s->attempt->id,
				   names[stage]);
		s->staged |= !r && stage == CORE_STAGED;
		s->under_way |= !r && stage == CORE_STAGED && s->rank->job->h->lost < 0;
		if (!r && stage == CORE_CAPTURED) {
			truth_told(s->rank->job->h, s->attempt, s->rank->person->node, 0);
			drop_parts(s);
			if (world_random(s->rank->job->h->world, SCRIBBLE_ONCE_IN) == 0)
				scribble(s->rank);
		}
	}
	if (!fiber_cancelled()) {
		note_end(s, r);
		if (!r)
			cut_power(s->rank->job->h);
	}
	save_over(s);
	return 0;
}

/* At once, or while others capture. */
static int cancel_later(void *arg)
{
	struct saving *s = arg;
	struct history *h = s->rank->job->h;
	struct client *c = &s->rank->client;
	uint64_t works = c->works, until_ns = env_in_ms(c->env, CAPTURE_MS);
	int r = 0;

	while (!r && h->fickle && c->works == works) /* until it has begun to capture, maybe this one */
		r = wait_at(&c->place, until_ns);
	if ((!r || r == -ETIMEDOUT) && world_random(h->world, 2))
		r = history_sleep(h, CANCEL_MS);
	if (r && r != -ETIMEDOUT)
		return r;
	s->cancelled = true;
	s->attempt->disturbed = true;
	core_save_cancel(s->save);
	client_stir(&s->rank->client);
	return 0;
}

static int begin_save(struct rank *k, struct step *step)
{
	struct attempt *a = step->attempt;
	_cleanup_(list_buf_fini) struct list_buf attributes = { 0 };
	struct saving *s = must_alloc(sizeof(*s));
	char id[16];

	snprintf(id, sizeof(id), "%u", a->id);
	struct elem_attribute attribute = { view_str("save"), view_str(id) };
	CHECK(!elem_attribute_append(&attributes, &attribute));
	struct core_save_options options = { .bundle = view_str(bundle_names[a->bundle]),
					     .step = a->step,
					     .copies = a->copies,
					     .policy = a->policy,
					     .same_structure = a->hinted,
					     .parent = a->parent,
					     .attributes = list_buf_view(&attributes) };
	*s = (struct saving){ .rank = k, .attempt = a };
	nursery_init(&s->later, k->job->h->world->loop);
	CHECK(!core_save_new(k->group, &options, &s->save, NULL));
	fill(s);
	for (int i = 0; i < CORE_STAGES; i++) {
		core_future_init(&s->stages[i], NULL);
		core_save_attach(s->save, (enum core_stage)i, &s->stages[i]);
	}
	world_tell(k->job->h->world, k->client.env, "offers save %u: step %" PRIu64 " of %s, %u boxes%s", a->id,
		   a->step, bundle_names[a->bundle], s->n_parts, a->hinted ? ", hinted" : "");
	int r = core_save_submit(s->save, NULL);
	if (r) {
		save_over(s);
		return r;
	}
	client_stir(&k->client);
	CHECK(!fiber_start(&k->saves, "follow", follow, s));
	if (!k->job->must && world_random(k->job->h->world, k->job->h->fickle ? 8 : 60) == 0) {
		CHECK(!fiber_start(&s->later, "cancel", cancel_later, s));
	} else if (world_random(k->job->h->world, 2)) { /* trains on once its buffers are free */
		struct core_future captured;

		core_future_init(&captured, NULL);
		core_save_attach(s->save, CORE_CAPTURED, &captured);
		r = client_await(&k->client, &captured, CAPTURED_MS, "captured");
		core_future_forget(&captured);
	}
	return r == -ECANCELED && fiber_cancelled() ? r : 0;
}

/* ---- the ranks of a job ---- */

/* What still lies where ranks captured it. */
static struct attempt *newest_version(struct history *h, unsigned bundle)
{
	for (unsigned i = h->n_attempts; i > 0; i--) {
		struct attempt *a = h->attempts[i - 1];

		if (a->bundle == bundle && a->version && !a->dying && !a->rotten && !a->tainted)
			return a;
	}
	return NULL;
}

/* Some are large, or as good as as large as a small pool, or larger than any. */
static uint64_t draw_structure(const struct run *job)
{
	struct world *w = job->h->world;
	uint64_t structure = world_random(w, UINT64_MAX);

	if (job->pressing)
		return (structure & ~UINT64_C(63)) | TRUTH_HALF_POOL;
	if (world_random(w, 4))
		return structure;
	return structure & ~(world_random(w, 4) ? UINT64_C(7) : UINT64_C(63));
}

/* A published version with the same items, which this save goes on from. */
static void draw_parent(struct history *h, struct attempt *a)
{
	for (unsigned i = h->n_attempts; i > 0; i--) {
		const struct attempt *p = h->attempts[i - 1];

		if (p == a || p->bundle != a->bundle || p->structure != a->structure || !p->version || p->dying ||
		    p->liar >= 0 || p->ranks != a->ranks ||
		    (p->changed & ((UINT64_C(1) << ITEMS_MOST) - 1)) != (UINT64_C(1) << ITEMS_MOST) - 1)
			continue;
		a->parent = p->version;
		a->base = p->content;
		a->changed = world_random(h->world, UINT64_C(1) << ITEMS_MOST);
		return;
	}
}

/* The first rank that comes to a step says what it is about. */
static void draw_step(struct run *job, unsigned i)
{
	struct history *h = job->h;
	struct step *step = &job->steps[i];

	if (step->drawn)
		return;
	step->drawn = true;
	if (step->kind == STEP_LOAD) {
		step->attempt = h->mad ? newest_version(h, job->bundle) : truth_some(h, job->bundle);
		if (step->attempt && job->must)
			step->attempt->wanted = true;
		return;
	}
	bool same = i > 0 && !h->fickle && world_random(h->world, 4) != 0;
	uint64_t number = job->first_step + i;
	bool again = !job->must && i && job->steps[i - 1].kind == STEP_SAVE && world_random(h->world, 10) == 0;
	if (again)
		number = job->steps[i - 1].attempt->step; /* once more: refused, unless it was skipped */
	if (!same)
		job->structure = draw_structure(job);
	step->attempt = truth_attempt(h, job->bundle, number, job->n_ranks, job->structure);
	step->attempt->hinted = same && world_random(h->world, 4) != 0;
	step->attempt->copies = job->copies;
	if (job->pressing || world_random(h->world, 4) == 0)
		step->attempt->policy = h->tight && world_random(h->world, 2) ?
						POLICY_REPLACE :
						(enum save_policy)world_random(h->world, POLICIES);
	step->attempt->again = again;
	if (same && world_random(h->world, 2))
		draw_parent(h, step->attempt);
	if (job->n_ranks > 1 && world_random(h->world, !truth_is_large(step->attempt) ? 12 :
						       job->pressing		      ? 5 :
											2) == 0)
		step->attempt->liar = (int)world_random(h->world, job->n_ranks);
}

static int load_step(struct rank *k, const struct attempt *a)
{
	_cleanup_(buf_fini) struct buf answer = { 0 };
	struct msg_open_reply open;
	char number[24];

	if (!a)
		return 0;
	snprintf(number, sizeof(number), "%" PRIu64, a->version);
	int r = client_open(&k->client, a->bundle, number, core_group_handle(k->group), &answer, &open);
	if (r)
		return truth_may_go(k->job->h, a) && (r == -ENOENT || r == -ERR_EDELETED || a->dying) ? 0 : r;
	if (truth_seen(&k->client, a->bundle, open.number, open.step, open.attributes) != a)
		return -EPROTO;
	if (world_random(k->job->h->world, 3))
		scribble(k); /* others may want it from this node's memory */
	r = client_load(&k->client, k->group, open.handle, a, k->number, k->job->n_ranks);
	if (r == -ERR_EDELETED && (k->job->h->calm || k->job->h->gentle))
		history_fail(k->job->h, "version %" PRIu64 " of %s was deleted while it was open", open.number,
			     bundle_names[a->bundle]);
	return r && a->dying ? 0 : r;
}

static int connect_somehow(struct rank *k)
{
	struct history *h = k->job->h;
	int r = -EAGAIN;

	for (int tries = 0; r && r != -ECANCELED && r != -ESHUTDOWN && tries < CONNECT_TRIES; tries++) {
		if (tries) {
			client_end(&k->client);
			r = fiber_sleep_until(env_in_ms(k->person->env, CONNECT_MS));
			if (r)
				break;
		}
		r = client_begin(&k->client, h, k->person->env, h->nodes[k->person->node].socket);
	}
	return r;
}

static int join(struct rank *k)
{
	_cleanup_(buf_fini) struct buf body = { 0 }, answer = { 0 };
	struct msg_join m = { view_str("job"), view_str(k->job->run), k->number, k->job->n_ranks };
	struct msg_join_reply reply;
	int r = client_call(&k->client, MSG_JOIN, &body, msg_join_encode(&m, &body), JOIN_MS, &answer);

	if (!r)
		CHECK(!msg_join_reply_decode(view_buf(&answer), &reply) &&
		      !core_group_new(k->client.core, &reply, &k->group));
	return r;
}

static int walk_steps(struct rank *k)
{
	struct run *job = k->job;
	int r = connect_somehow(k);

	if (!r)
		r = join(k);
	for (unsigned i = 0; !r && i < job->n_steps; i++) {
		r = history_sleep(job->h, job->pressing || job->h->fickle ? PRESSING_MS : PACE_MS);
		if (r)
			break;
		draw_step(job, i);
		r = job->steps[i].kind == STEP_SAVE ? begin_save(k, &job->steps[i]) :
						      load_step(k, job->steps[i].attempt);
		if (r && !job->must && r != -ECANCELED && !core_check(k->client.core, NULL) &&
		    world_random(job->h->world, 2))
			r = 0; /* tries to go on */
	}
	if (!r)
		r = nursery_wait(&k->saves, FOREVER); /* each has its limit */
	return r;
}

static int rank_live(void *arg)
{
	struct rank *k = arg;
	struct run *job = k->job;

	nursery_init(&k->saves, job->h->world->loop);
	int r = walk_steps(k);
	if (r && job->must)
		history_fail(job->h, "rank %u of %s failed although nothing was in its way: %s", k->number, job->run,
			     error_name(r));
	if (k->client.core && !core_check(k->client.core, NULL) && sim_env(k->person->env)->dead)
		core_lose(k->client.core, -ESHUTDOWN, "the client was killed");
	nursery_fini(&k->saves);
	if (k->group) {
		core_group_leave(k->group);
		client_stir(&k->client);
		(void)fiber_sleep_until(env_in_ms(k->person->env, 1)); /* its last words leave */
	}
	client_end(&k->client);
	return 0;
}

static void draw_job(struct run *job, struct history *h, bool must)
{
	struct world *w = h->world;

	job->h = h;
	job->must = must;
	truth_disturb(h);
	snprintf(job->run, sizeof(job->run), "run-%u", ++h->n_runs);
	job->n_ranks = 1 + (uint32_t)world_random(w, RANKS_MAX);
	job->pressing = (world_random(w, 3) == 0 && !h->fickle) || (h->tight && !h->healed);
	job->n_steps = job->pressing || h->fickle ? STEPS_MAX : 1 + (unsigned)world_random(w, STEPS_MAX);
	job->bundle = (unsigned)world_random(w, BUNDLES);
	job->first_step = 10 * h->n_runs;
	job->copies = 1 + (uint32_t)world_random(w, h->n_domains < 3 ? h->n_domains : 3);
	if (h->one_loss && job->copies < 2)
		job->copies = 2;
	if (h->mad && !must)
		job->copies = 1; /* so that loads take from where it was captured */
	for (unsigned i = 0; i < job->n_steps; i++)
		job->steps[i].kind = job->pressing || h->fickle || world_random(w, 3) ? STEP_SAVE : STEP_LOAD;
	for (unsigned i = 0; i < job->n_steps && h->mad; i++)
		job->steps[i].kind = i % 2 ? STEP_LOAD : STEP_SAVE;
	if (must)
		job->steps[0].kind = STEP_SAVE;
}

int job_run(struct history *h, bool must)
{
	struct run *job = must_alloc(sizeof(*job));

	draw_job(job, h, must);
	world_tell(h->world, NULL, "%s begins: %u ranks, %u steps, %u copies", job->run, job->n_ranks, job->n_steps,
		   job->copies);
	for (uint32_t i = 0; i < job->n_ranks; i++) {
		struct rank *k = &job->ranks[i];

		*k = (struct rank){ .job = job, .number = i };
		k->person = person_born(h, (unsigned)world_random(h->world, h->n_nodes));
		CHECK(!fiber_start(&k->person->nursery, "rank", rank_live, k));
	}
	for (uint32_t i = 0; i < job->n_ranks; i++) {
		(void)nursery_wait(&job->ranks[i].person->nursery, FOREVER);
		person_gone(job->ranks[i].person);
	}
	world_tell(h->world, NULL, "%s is over", job->run);
	free(job);
	return 0;
}

/* ---- the operator ---- */

static bool may_have(const struct history *h, unsigned bundle, unsigned label, uint64_t number)
{
	for (unsigned i = 0; i < h->labels[bundle][label].n; i++)
		if (h->labels[bundle][label].possible[i] == number)
			return true;
	return false;
}

int operator_label(struct client *c, unsigned bundle, unsigned label, uint64_t number)
{
	struct history *h = c->h;
	const struct attempt *a = number ? truth_version(h, bundle, number) : NULL;
	typeof(h->labels[0][0]) *known = &h->labels[bundle][label];
	struct msg_label m = { view_str(bundle_names[bundle]), view_str(label_names[label]), UINT64_MAX, number };
	struct buf body = { 0 };
	bool sure = known->n <= 1;

	if (known->n == NUMBERS_MAX)
		return 0;
	if (!known->n)
		known->possible[known->n++] = 0;
	if (!may_have(h, bundle, label, m.number))
		known->possible[known->n++] = m.number;
	int r = client_call(c, MSG_LABEL, &body, msg_label_encode(&m, &body), CALL_MS, NULL);
	if (!r) {
		history_deed(h, DEED_LABEL_SET);
		known->possible[0] = sure ? m.number : known->possible[0];
		known->n = sure ? 1 : known->n;
	}
	bool dying = r == -ERR_EDELETED && a && truth_may_go(h, a); /* a rule is about to delete it */
	return r == -ENOENT || dying ? 0 : r;
}

static int set_label(struct client *c, unsigned bundle, const struct attempt *a)
{
	struct history *h = c->h;
	unsigned label = (unsigned)world_random(h->world, LABELS);

	return operator_label(c, bundle, label, a && world_random(h->world, 6) ? a->version : 0);
}

int operator_open_label(struct client *c, unsigned bundle, unsigned label)
{
	_cleanup_(buf_fini) struct buf answer = { 0 };
	struct msg_open_reply open;
	int r = client_open(c, bundle, label_names[label], 0, &answer, &open);

	if (!r && truth_seen(c, bundle, open.number, open.step, open.attributes) &&
	    !may_have(c->h, bundle, label, open.number))
		history_fail(c->h, "label %s of %s leads to version %" PRIu64 ", to which it was never set",
			     label_names[label], bundle_names[bundle], open.number);
	if (r == -ENOENT && c->h->labels[bundle][label].n && !may_have(c->h, bundle, label, 0))
		history_fail(c->h, "label %s of %s is not there", label_names[label], bundle_names[bundle]);
	return r == -ENOENT ? 0 : r;
}

int operator_delete(struct client *c, struct attempt *a)
{
	struct history *h = c->h;
	struct msg_delete m = { 0 };
	struct buf body = { 0 };

	if (!a || a->wanted)
		return 0;
	m.bundle = view_str(bundle_names[a->bundle]);
	m.number = a->version;
	a->dying = true;
	h->deleting = a;
	h->deleting_node = c->node;
	int r = client_call(c, MSG_DELETE, &body, msg_delete_encode(&m, &body), CALL_MS, NULL);
	h->deleting = NULL;
	if (!r) {
		a->gone_ns = h->world->now_ns;
		history_deed(h, DEED_VERSION_DELETED);
	}
	if (r == -EBUSY)
		a->dying = false;
	return r == -EBUSY ? 0 : r;
}

/* Deletes a version that it has open itself: refused, and what was opened can be read to its end. */
static int delete_held(struct client *c, struct attempt *a)
{
	struct history *h = c->h;
	_cleanup_(buf_fini) struct buf answer = { 0 };
	struct msg_open_reply open;
	char number[24];
	uint64_t unclear;

	if (!a || a->wanted)
		return 0;
	snprintf(number, sizeof(number), "%" PRIu64, a->version);
	int r = client_open(c, a->bundle, number, 0, &answer, &open);
	if (r)
		return truth_may_go(h, a) && (r == -ENOENT || r == -ERR_EDELETED) ? 0 : r;
	if (truth_seen(c, a->bundle, open.number, open.step, open.attributes) != a)
		return -EPROTO;
	bool dying = a->dying;
	r = operator_delete(c, a);
	bool quiet = h->calm || h->gentle || (h->one_loss && h->lost < 0);
	if (!r && !dying && !a->dying)
		history_deed(h, DEED_READER_RESPECTED);
	if (!r && a->gone_ns && quiet)
		history_fail(h, "version %" PRIu64 " of %s was deleted while it was open", a->version,
			     bundle_names[a->bundle]);
	if (!r)
		r = client_collect(c, &unclear);
	if (!r)
		r = client_load(c, NULL, open.handle, a, 0, 0);
	client_close(c, open.handle);
	return r == -ERR_EDELETED && !quiet ? 0 : r;
}

/* The parent of a save that all have captured and nobody knows the end of. */
static struct attempt *wanted_parent(const struct history *h)
{
	for (unsigned i = h->n_attempts; i > 0; i--) {
		const struct attempt *a = h->attempts[i - 1];

		if (a->parent && a->captured && !a->over)
			return truth_version((struct history *)h, a->bundle, a->parent);
	}
	return NULL;
}

int parent_errand(void *arg)
{
	struct history *h = arg;
	struct attempt *a = wanted_parent(h);

	if (!a || a->dying)
		return 0;
	struct person *person = person_born(h, (unsigned)world_random(h->world, h->n_nodes));
	struct client c;
	int r = client_begin(&c, h, person->env, h->nodes[person->node].socket);

	if (!r)
		r = operator_delete(&c, a);
	history_deed(h, DEED_PARENT_THREATENED);
	client_end(&c);
	person_gone(person);
	return 0;
}

/* Reads a version, by number or as the latest one; a durable one is there. */
static int read_one(struct client *c, const struct attempt *a)
{
	char spec[24] = "latest";

	if (!a)
		return 0;
	bool durable = a->durable, latest = world_random(c->h->world, 3) == 0;
	if (!latest)
		snprintf(spec, sizeof(spec), "%" PRIu64, a->version);
	int r = client_read(c, a->bundle, spec);
	bool absent = r == -ENOENT || (r == -ERR_EDELETED && !latest); /* the latest may just be on its way out */
	if (absent && durable && !truth_may_go(c->h, a))
		history_fail(c->h, "version %" PRIu64 " of %s was durable and is not found as %s", a->version,
			     bundle_names[a->bundle], spec);
	return r == -ENOENT || r == -ERR_EDELETED ? 0 : r;
}

static int set_rule(struct client *c, unsigned bundle)
{
	struct history *h = c->h;
	struct msg_retain m = { view_str(bundle_names[bundle]), 1 + world_random(h->world, 4),
				world_random(h->world, 2) ? 0 : 2 + world_random(h->world, 2) };
	unsigned n = h->n_rules[bundle];
	struct buf body = { 0 };

	if (n == RULES_MAX)
		return 0;
	h->rules[bundle][n].last = m.keep_last;
	h->rules[bundle][n].every = m.keep_every;
	h->n_rules[bundle]++;
	int r = client_call(c, MSG_RETAIN, &body, msg_retain_encode(&m, &body), CALL_MS, NULL);
	if (!r)
		history_deed(h, DEED_RULE_SET);
	return r == -ENOENT ? 0 : r;
}

int operator_deed(struct client *c)
{
	struct history *h = c->h;
	unsigned bundle = (unsigned)world_random(h->world, BUNDLES);
	struct attempt *a = truth_some(h, bundle);
	_cleanup_(buf_fini) struct buf text = { 0 };
	uint64_t unclear;
	int r = 0;

	switch (world_random(h->world, 10)) {
	case 0:
	case 1:
		r = client_list(c, bundle, &text);
		if (!r)
			history_deed(h, DEED_LISTED);
		return r;
	case 2:
		return set_label(c, bundle, a);
	case 3:
		return operator_open_label(c, bundle, (unsigned)world_random(h->world, LABELS));
	case 4:
		return world_random(h->world, 2) ? operator_delete(c, a) : delete_held(c, a);
	case 5:
		return h->ruled ? set_rule(c, bundle) : read_one(c, a);
	case 6:
		return client_collect(c, &unclear);
	default:
		return read_one(c, a);
	}
}

static int operator_live(void *arg)
{
	struct person *person = arg;
	struct history *h = person->h;
	struct client c;
	int r = client_begin(&c, h, person->env, h->nodes[person->node].socket);

	for (unsigned i = 0; !r && i < 10; i++) {
		r = history_sleep(h, 2 * PACE_MS);
		if (!r)
			r = operator_deed(&c);
		if (r && r != -ECANCELED && h->calm)
			history_fail(h, "the operator failed although nothing was in its way: %s", error_name(r));
		if (r != -ECANCELED && !core_check(c.core, NULL))
			r = 0;
	}
	client_end(&c);
	return 0;
}

int operator_run(void *arg)
{
	struct history *h = arg;
	int r = 0;

	while (!r) {
		struct person *person = person_born(h, (unsigned)world_random(h->world, h->n_nodes));

		CHECK(!fiber_start(&person->nursery, "operator", operator_live, person));
		(void)nursery_wait(&person->nursery, FOREVER);
		person_gone(person);
		r = history_sleep(h, PACE_MS);
	}
	return r;
}
