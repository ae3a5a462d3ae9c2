#include "env/env.h"

#include "env/fiber.h"

struct call {
	struct job job;
	int (*run)(void *arg);
	void *arg;
	int result;
	struct await done;
};

static void call_run(struct job *job)
{
	struct call *call = container_of(job, struct call, job);

	call->result = call->run(call->arg);
}

static void call_finish(struct job *job)
{
	struct call *call = container_of(job, struct call, job);

	call->done.done.fn(&call->done.done, call->result);
}

int env_call(struct env *env, int (*run)(void *arg), void *arg)
{
	struct call call = { .job = { .run = call_run, .finish = call_finish }, .run = run, .arg = arg };

	CHECK_MAGIC(env, ENV_MAGIC);
	CHECK(fiber_running());
	await_init(&call.done);
	int r = env->ops->offload(env, &call.job);
	if (r)
		return r;
	return await_shielded(&call.done);
}
