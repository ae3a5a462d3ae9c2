/*
 * group/fan.c: one call to many nodes at once, each in a fiber of a nursery.
 */
#include <errno.h>
#include <stdlib.h>

#include "group/inside.h"

struct fan {
	struct groups *groups;
	enum msg_type type;
	uint64_t deadline_ns;
	struct nursery nursery;
	bool strict;   /* the first failure stops the others, */
	bool survives; /* but not that of a node that is lost */
	struct fan_call *first_failed;
};

struct fan_branch {
	struct fan *fan;
	struct fan_call *call;
};

bool fan_lost(const struct fan_call *call)
{
	return call->result == -EHOSTDOWN || call->result == -ETIMEDOUT;
}

void fan_one(struct groups *groups, enum msg_type type, struct fan_call *call, uint64_t deadline_ns)
{
	uint64_t begun_ns = env_now(groups->env);

	call->result = cluster_call(groups->cluster, call->node, type, view_buf(&call->body), deadline_ns,
				    &call->answer, &call->error);
	call->took_ns = env_now(groups->env) - begun_ns;
	call->over = true;
}

int fan_failed(const struct fan_call *call, struct error *e)
{
	if (call->result == -EHOSTDOWN)
		return error_set(e, -ERR_ENODE, "node %s was lost: %s", call->node, call->error.text);
	return error_set(e, call->result, "node %s: %s", call->node,
			 call->error.code ? call->error.text : error_meaning(call->result));
}

static int run_branch(void *arg)
{
	struct fan_branch *branch = arg;
	struct fan *fan = branch->fan;
	struct fan_call *call = branch->call;

	fan_one(fan->groups, fan->type, call, fan->deadline_ns);
	if (!fan->strict &&
	    call->result == -ERR_ESTALEEPOCH) { /* of a rebuild this node may have heard by that refusal alone */
		call->error = (struct error){ 0 };
		fan_one(fan->groups, fan->type, call, fan->deadline_ns);
	}
	if (call->spare && call->result == -ENOENT)
		call->result = -EHOSTDOWN; /* it was started anew */
	if ((fan->survives || call->spare) && fan_lost(call))
		return 0;
	if (call->result < 0 && !fan->first_failed) { /* later ones: cancelled because of it */
		fan->first_failed = call;
		if (fan->strict)
			nursery_cancel(&fan->nursery);
	}
	return 0;
}

static int fan_run(struct fan *fan, struct fan_call *calls, size_t n)
{
	struct fan_branch *branches = calloc(n + 1, sizeof(*branches));
	int r = branches ? 0 : -ENOMEM;

	nursery_init(&fan->nursery, fan->groups->env->loop);
	for (size_t i = 0; !r && i < n; i++) {
		branches[i] = (struct fan_branch){ .fan = fan, .call = &calls[i] };
		r = fiber_start(&fan->nursery, "fan", run_branch, &branches[i]);
	}
	if (!r)
		r = nursery_wait(&fan->nursery, fan->deadline_ns + NS_PER_S);
	nursery_fini(&fan->nursery);
	free(branches);
	return r;
}

static int run_strictly(struct fan *fan, struct fan_call *calls, size_t n, struct error *e)
{
	int r = fan_run(fan, calls, n);

	return r || !fan->first_failed ? r : fan_failed(fan->first_failed, e);
}

int fan_out(struct groups *groups, enum msg_type type, struct fan_call *calls, size_t n, uint64_t deadline_ns,
	    struct error *e)
{
	struct fan fan = { .groups = groups, .type = type, .deadline_ns = deadline_ns, .strict = true };

	return run_strictly(&fan, calls, n, e);
}

int fan_survive(struct groups *groups, enum msg_type type, struct fan_call *calls, size_t n, uint64_t deadline_ns,
		struct error *e)
{
	struct fan fan = { .groups = groups,
			   .type = type,
			   .deadline_ns = deadline_ns,
			   .strict = true,
			   .survives = true };

	return run_strictly(&fan, calls, n, e);
}

void fan_tell(struct groups *groups, enum msg_type type, struct fan_call *calls, size_t n, uint64_t deadline_ns)
{
	struct fan fan = { .groups = groups, .type = type, .deadline_ns = deadline_ns };

	(void)fan_run(&fan, calls, n);
}

struct fan_call *fan_new(size_t n)
{
	return calloc(n + 1, sizeof(struct fan_call));
}

void fan_free(struct fan_call *calls, size_t n)
{
	for (size_t i = 0; calls && i < n; i++) {
		buf_fini(&calls[i].body);
		buf_fini(&calls[i].answer);
	}
	free(calls);
}
