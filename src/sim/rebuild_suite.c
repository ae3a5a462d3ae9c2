/*
 * sim/rebuild_suite.c: the index is made again while all goes on: somebody reads, others label, delete and list, saves are under way, a
 * node dies in the middle of it, a deletion that was marked before it is held up until it is over.
 */
#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "sim/history_suite.h"
#include "sim/inside.h"

#define REBUILD_MS     60000 /* for its answer */
#define FIRST_MS       3000
#define BETWEEN_MS     3000
#define TIMES_MAX      2
#define MEDDLERS       2
#define MEDDLE_MS      1500
#define KILL_MS	       6000 /* it takes over 4 s, most of which it waits */
#define KILL_ONCE_IN   2
#define HELD_UP_MS     6000
#define DELETE_ONCE_IN 3
#define ROOT_BYTE      100 /* of a record's body */
#define LOOK_AGAIN_MS  20

/* ---- asking for it ---- */

int rebuild_ask(struct client *c)
{
	struct history *h = c->h;
	struct buf body = { 0 };

	h->rebuilds_asked++;
	h->half_rebuilt = true; /* until somebody is told otherwise */
	world_tell(h->world, c->env, "asks for a rebuild");
	int r = client_call(c, MSG_REBUILD, &body, 0, REBUILD_MS, NULL);
	h->rebuilds_asked--;
	if (!r || (r == -ERR_EDAMAGED && h->healed)) {
		history_deed(h, DEED_REBUILT);
		h->half_rebuilt = h->rebuilds_asked > 0;
	}
	return r;
}

/* Its limits pass while it does: it may say that the store, or the engine's node, has not answered it in time. */
static bool has_stood_still(const struct node *n, uint64_t since_ns)
{
	return sim_env(n->env)->stopped_until_ns > since_ns;
}

static int ask(struct history *h)
{
	struct person *person = person_born(h, (unsigned)world_random(h->world, h->n_nodes));
	const struct node *node = &h->nodes[person->node];
	const uint64_t asked_ns = h->world->now_ns;
	struct client c;
	int r = client_begin(&c, h, person->env, node->socket);

	if (!r)
		r = rebuild_ask(&c);
	client_end(&c);
	person_gone(person);
	/* another one that is under way: it is busy with that, or raised the generation above what the asker's node has heard */
	if (r && r != -EBUSY && r != -ERR_ESTALEEPOCH && r != -ECANCELED && h->gentle &&
	    !has_stood_still(node, asked_ns))
		history_fail(h, "a rebuild failed although nothing was in its way: %s", error_name(r));
	return r;
}

/* ---- beside it ---- */

struct amid {
	struct history *h;
	struct nursery nursery;
	bool over;
};

static int await_end(const struct amid *m)
{
	int r = 0;

	while (!r && !m->over)
		r = fiber_sleep_until(m->h->world->now_ns + LOOK_AGAIN_MS * NS_PER_MS);
	return r;
}

/* Somebody else wants it gone, at once, on another node. */
static int delete_elsewhere(struct history *h, const struct person *reader, struct attempt *a)
{
	unsigned other = 1 + (unsigned)world_random(h->world, h->n_nodes - 1);
	struct person *person = person_born(h, (reader->node + other) % h->n_nodes);
	struct client c;
	int r = client_begin(&c, h, person->env, h->nodes[person->node].socket);

	if (!r)
		r = operator_delete(&c, a);
	client_end(&c);
	person_gone(person);
	return r;
}

/* Who has it open keeps it, through a rebuild that forgets who reads. */
static int read_over(struct amid *m, struct client *c, const struct person *person, struct attempt *a)
{
	struct history *h = m->h;
	_cleanup_(buf_fini) struct buf answer = { 0 };
	struct msg_open_reply open;
	char number[24];

	snprintf(number, sizeof(number), "%" PRIu64, a->version);
	int r = client_open(c, a->bundle, number, 0, &answer, &open);
	if (r || truth_seen(c, a->bundle, open.number, open.step, open.attributes) != a)
		return r;
	bool dying = a->dying;
	r = await_end(m);
	if (!r)
		r = delete_elsewhere(h, person, a);
	if (!r && !dying && !a->dying)
		history_deed(h, DEED_READER_OVER_REBUILD);
	if (!r && a->gone_ns && !dying && h->gentle)
		history_fail(h, "version %" PRIu64 " of %s was deleted while it was open over a rebuild", a->version,
			     bundle_names[a->bundle]);
	if (r != -ECANCELED)
		r = client_load(c, NULL, open.handle, a, 0, 0);
	client_close(c, open.handle);
	return r;
}

static int read_amid(void *arg)
{
	struct amid *m = arg;
	struct history *h = m->h;
	struct attempt *a = truth_some(h, (unsigned)world_random(h->world, BUNDLES));

	if (!a || a->wanted)
		return 0;
	struct person *person = person_born(h, (unsigned)world_random(h->world, h->n_nodes));
	struct client c;
	if (!client_begin(&c, h, person->env, h->nodes[person->node].socket))
		(void)read_over(m, &c, person, a);
	client_end(&c);
	person_gone(person);
	return 0;
}

static int meddle(void *arg)
{
	struct amid *m = arg;
	struct history *h = m->h;
	struct person *person = person_born(h, (unsigned)world_random(h->world, h->n_nodes));
	struct client c;
	int r = client_begin(&c, h, person->env, h->nodes[person->node].socket);

	while (!r && !m->over) {
		r = history_sleep(h, MEDDLE_MS);
		if (!r)
			r = operator_deed(&c);
		if (r != -ECANCELED && !core_check(c.core, NULL))
			r = 0; /* the index is away, for one */
	}
	client_end(&c);
	person_gone(person);
	return 0;
}

static int kill_amid(void *arg)
{
	struct amid *m = arg;
	struct history *h = m->h;

	if (!history_sleep(h, KILL_MS) && !m->over) {
		history_deed(h, DEED_REBUILD_CUT);
		history_kill_node(h, world_random(h->world, 2) ? 0 : (unsigned)world_random(h->world, h->n_nodes));
	}
	return 0;
}

static int rebuild_amid(struct history *h)
{
	struct amid m = { .h = h };

	nursery_init(&m.nursery, h->world->loop);
	CHECK(!fiber_start(&m.nursery, "reader", read_amid, &m));
	for (int i = 0; i < MEDDLERS; i++)
		CHECK(!fiber_start(&m.nursery, "meddler", meddle, &m));
	if (!h->gentle && world_random(h->world, KILL_ONCE_IN) == 0)
		CHECK(!fiber_start(&m.nursery, "killer", kill_amid, &m));
	int r = history_sleep(h, MEDDLE_MS);
	if (!r)
		(void)ask(h);
	m.over = true;
	if (!r)
		r = nursery_wait(&m.nursery, FOREVER); /* each call has its limit */
	nursery_fini(&m.nursery);
	return r;
}

/* Somebody begins to delete a version, and is held up behind the mark (rebuild_at_mark()). */
static int delete_amid(struct history *h)
{
	struct attempt *a = truth_some(h, (unsigned)world_random(h->world, BUNDLES));
	struct person *person = person_born(h, 1 + (unsigned)world_random(h->world, h->n_nodes - 1));
	struct client c;

	if (!client_begin(&c, h, person->env, h->nodes[person->node].socket))
		(void)operator_delete(&c, a);
	client_end(&c);
	person_gone(person);
	return fiber_cancelled() ? -ECANCELED : 0;
}

int rebuilder_run(void *arg)
{
	struct history *h = arg;
	int r = history_sleep(h, FIRST_MS);

	for (uint64_t n = 1 + world_random(h->world, TIMES_MAX); !r && n; n--) {
		r = world_random(h->world, DELETE_ONCE_IN) ? rebuild_amid(h) : delete_amid(h);
		if (!r)
			r = history_sleep(h, BETWEEN_MS);
	}
	return 0;
}

/* ---- a mark that is forgotten ---- */

/* Whoever labels the version now does not know that somebody had begun to delete it. */
static int label_forgotten(struct client *c, struct attempt *a)
{
	unsigned label = (unsigned)world_random(c->h->world, LABELS);
	int r = rebuild_ask(c);

	if (!r)
		r = operator_label(c, a->bundle, label, a->version);
	if (!r && c->h->labels[a->bundle][label].n == 1) {
		history_deed(c->h, DEED_MARK_FORGOTTEN);
		r = fiber_sleep_until(env_in_ms(c->env, HELD_UP_MS));
		if (!r)
			r = operator_open_label(c, a->bundle, label);
	}
	return r;
}

static int forget_mark(void *arg)
{
	struct history *h = arg;
	struct person *person = person_born(h, 0);
	struct client c;

	if (!client_begin(&c, h, person->env, h->nodes[0].socket))
		(void)label_forgotten(&c, h->held_up);
	client_end(&c);
	person_gone(person);
	h->held_up = NULL;
	return 0;
}

/* A deletion has its mark: its node stands still until a rebuild is over. Not the engine's, which makes the rebuild. */
void rebuild_at_mark(struct history *h)
{
	struct node *n = &h->nodes[h->deleting_node];

	if (!h->rebuilds || h->healed || !h->deleting || h->held_up || !n->number || sim_env(n->env)->dead)
		return;
	h->held_up = h->deleting;
	world_tell(h->world, n->env, "is stopped");
	sim_env(n->env)->stopped_until_ns = h->world->now_ns + HELD_UP_MS * NS_PER_MS;
	CHECK(!fiber_start(&h->errands, "forgetful", forget_mark, h));
}

/* ---- a root that cannot be read, in a healthy world, and is put back ---- */

static bool is_there(const struct attempt *a)
{
	return a && a->version && !a->dying && !a->rotten && !a->tainted;
}

/* One with a parent; if there is none, one of which nobody knows any more, when its root is damaged, that it has no parent. */
static struct attempt *some_child(struct history *h, struct attempt **ret_parent)
{
	struct attempt *found = NULL;

	for (unsigned i = 0; i < h->n_attempts; i++) {
		struct attempt *a = h->attempts[i];
		struct attempt *parent =
			a->version ? truth_version(h, a->bundle, a->parent ? a->parent : a->version - 1) : NULL;

		if (!is_there(a) || !is_there(parent) || (found && !a->parent))
			continue;
		found = a;
		*ret_parent = parent;
	}
	return found;
}

static int expect(struct history *h, int r, int expected, const char *what)
{
	if (r == expected)
		return 0;
	history_fail(h, "%s beside a damaged root ends with %s, not %s", what, error_name(r), error_name(expected));
	return -EPROTO;
}

/* A rule may have deleted it, and its tombstone be there. */
static bool opens(struct client *c, const struct attempt *a)
{
	_cleanup_(buf_fini) struct buf answer = { 0 };
	struct msg_open_reply open;
	char number[24];

	snprintf(number, sizeof(number), "%" PRIu64, a->version);
	if (client_open(c, a->bundle, number, 0, &answer, &open))
		return false;
	client_close(c, open.handle);
	return true;
}

static int walk_damage(struct client *c, struct attempt *child, struct attempt *parent)
{
	struct history *h = c->h;
	uint64_t unclear;
	char path[128];

	snprintf(path, sizeof(path), HISTORY_STORE "/t/" TENANT "/b/%s/v/%020" PRIu64 "/root",
		 child->bundle ? "model" : "job%2Fa", child->version);
	if (!opens(c, child) || world_rot(c->env, path, ROOT_BYTE))
		return 0;
	int r = expect(h, rebuild_ask(c), -ERR_EDAMAGED, "a rebuild");
	if (!r)
		r = operator_delete(c, parent);
	if (!r)
		r = client_collect(c, &unclear);
	r = r == -ERR_EDAMAGED ? 0 : r; /* it says which root it is */
	CHECK(!world_rot(c->env, path, ROOT_BYTE));
	if (!r && parent->gone_ns)
		history_deed(h, DEED_ROOT_PUT_BACK);
	return r ? r : expect(h, rebuild_ask(c), 0, "the second rebuild");
}

int rebuild_beside_damage(struct history *h)
{
	struct attempt *parent = NULL, *child = some_child(h, &parent);

	if (!child)
		return 0;
	struct person *person = person_born(h, (unsigned)world_random(h->world, h->n_nodes));
	struct client c;
	int r = client_begin(&c, h, person->env, h->nodes[person->node].socket);

	if (!r)
		r = walk_damage(&c, child, parent);
	client_end(&c);
	person_gone(person);
	if (r)
		history_fail(h, "beside a damaged root a healthy world does not serve: %s", error_name(r));
	return r;
}
