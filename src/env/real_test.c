#include "env/real_fixture.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- workers ---- */

static pthread_t loop_thread;
static atomic_int n_run;
static int n_finished;
static int finished_order[64];

struct numbered {
	struct job job;
	int number;
	int ran_as;
};

static void numbered_run(struct job *job)
{
	struct numbered *numbered = container_of(job, struct numbered, job);

	assert_false(pthread_equal(pthread_self(), loop_thread));
	numbered->ran_as = n_run++;
}

static void numbered_finish(struct job *job)
{
	struct numbered *numbered = container_of(job, struct numbered, job);

	assert_true(pthread_equal(pthread_self(), loop_thread));
	finished_order[n_finished++] = numbered->number;
	free(numbered);
}

static void offload_numbered(struct fixture *f, int number)
{
	struct numbered *numbered = calloc(1, sizeof(*numbered));

	numbered->job = (struct job){ .run = numbered_run, .finish = numbered_finish };
	numbered->number = number;
	assert_int_equal(f->env->ops->offload(f->env, &numbered->job), 0);
}

static void jobs_run_on_workers_and_finish_on_the_loop(void **state)
{
	struct fixture *f = *state;
	bool seen[64] = { false };

	loop_thread = pthread_self();
	n_run = n_finished = 0;
	for (int i = 0; i < 64; i++)
		offload_numbered(f, i);
	assert_int_equal(n_finished, 0);
	UNTIL(f, n_finished == 64);
	assert_int_equal(n_run, 64);
	for (int i = 0; i < 64; i++)
		seen[finished_order[i]] = true;
	for (int i = 0; i < 64; i++)
		assert_true(seen[i]);
}

static void one_worker_takes_jobs_first_come_first_served(void **state)
{
	struct fixture f = { .tick.fn = fixture_tick };

	loop_thread = pthread_self();
	n_run = n_finished = 0;
	assert_int_equal(env_real_new("one", 1, &f.env, NULL), 0);
	for (int i = 0; i < 32; i++)
		offload_numbered(&f, i);
	UNTIL(&f, n_finished == 32);
	for (int i = 0; i < 32; i++)
		assert_int_equal(finished_order[i], i);
	env_real_free(f.env);
}

static void there_must_be_workers(void **state)
{
	struct env *env;
	struct error e;

	assert_int_equal(env_real_new("none", 0, &env, &e), -EINVAL);
	assert_int_equal(env_real_new("many", 100000, &env, &e), -EINVAL);
	assert_non_null(strstr(e.text, "100000"));
}

enum { HUNG = 8 };
static sem_t store_answers; /* posted once for each job */

static void hang(struct job *job)
{
	struct timespec deadline;

	clock_gettime(CLOCK_REALTIME, &deadline);
	deadline.tv_sec += TEST_DEADLINE_MS / 1000;
	while (sem_timedwait(&store_answers, &deadline) && errno == EINTR)
		;
}

static void hung_finish(struct job *job)
{
	n_finished++;
}

static void a_store_that_hangs_holds_up_no_other_work(void **state)
{
	struct fixture *f = *state;
	struct job jobs[HUNG] = { 0 };

	loop_thread = pthread_self();
	n_run = n_finished = 0;
	sem_init(&store_answers, 0, 0);
	for (int i = 0; i < HUNG; i++) {
		jobs[i] = (struct job){ .lane = LANE_STORE, .run = hang, .finish = hung_finish };
		assert_int_equal(f->env->ops->offload(f->env, &jobs[i]), 0);
	}
	offload_numbered(f, HUNG);
	UNTIL(f, n_finished == 1);
	assert_int_equal(n_run, 1);
	for (int i = 0; i < HUNG; i++)
		sem_post(&store_answers);
	UNTIL(f, n_finished == HUNG + 1);
	sem_destroy(&store_answers);
}

static pthread_barrier_t barrier;

static int meet(void *arg)
{
	pthread_barrier_wait(&barrier);
	*(int *)arg += 1;
	return -EIO;
}

static int call_and_tell(void *arg)
{
	struct fixture *f = arg;
	int on_the_stack = 41;

	int r = env_call(f->env, meet, &on_the_stack);
	assert_int_equal(on_the_stack, 42);
	n_finished++;
	return r;
}

/* Two calls that can only end together: so both workers work, and both fibers wait while the loop turns. */
static void env_call_runs_on_a_worker_while_the_loop_goes_on(void **state)
{
	struct fixture *f = *state;
	struct nursery nursery;

	n_finished = 0;
	pthread_barrier_init(&barrier, NULL, 2);
	nursery_init(&nursery, f->env->loop);
	assert_int_equal(fiber_start(&nursery, "a", call_and_tell, f), 0);
	assert_int_equal(fiber_start(&nursery, "b", call_and_tell, f), 0);
	UNTIL(f, n_finished == 2);
	assert_true(nursery_is_empty(&nursery));
	assert_int_equal(nursery.first_error, -EIO);
	pthread_barrier_destroy(&barrier);
}

static void env_call_is_not_cut_short_by_cancellation(void **state)
{
	struct fixture *f = *state;
	struct nursery nursery;

	n_finished = 0;
	pthread_barrier_init(&barrier, NULL, 2);
	nursery_init(&nursery, f->env->loop);
	assert_int_equal(fiber_start(&nursery, "a", call_and_tell, f), 0);
	assert_int_equal(fiber_start(&nursery, "b", call_and_tell, f), 0);
	nursery_cancel(&nursery);
	UNTIL(f, n_finished == 2);
	pthread_barrier_destroy(&barrier);
}

/* ---- clock, sleep, random ---- */

static bool fired;

static void note_firing(struct timer *timer)
{
	fired = true;
}

static void stop_loop(struct timer *timer)
{
	loop_stop(container_of(timer, struct fixture, tick)->env->loop);
}

static void a_timer_never_fires_early(void **state)
{
	struct fixture *f = *state;
	struct timer timer = { .fn = note_firing };
	uint64_t at_ns = env_in_ms(f->env, 3);

	fired = false;
	f->tick.fn = stop_loop;
	assert_int_equal(timer_arm(f->env->loop, &timer, at_ns), 0);
	assert_int_equal(timer_arm(f->env->loop, &f->tick, at_ns), 0);
	assert_int_equal(loop_run(f->env->loop), 0);
	assert_true(fired);
	assert_true(env_now(f->env) >= at_ns);
}

static void time_does_not_run_backwards(void **state)
{
	struct fixture *f = *state;
	uint64_t last = env_now(f->env);

	for (int i = 0; i < 1000; i++) {
		uint64_t now = env_now(f->env);

		assert_true(now >= last);
		last = now;
	}
}

static void random_bytes_differ(void **state)
{
	struct fixture *f = *state;
	uint8_t a[300] = { 0 }, b[300] = { 0 };

	f->env->ops->random(f->env, a, sizeof(a));
	f->env->ops->random(f->env, b, sizeof(b));
	assert_memory_not_equal(a, b, sizeof(a));
}

static void sigmask_run(struct job *job)
{
	sigset_t set;

	pthread_sigmask(SIG_BLOCK, NULL, &set);
	n_run = sigismember(&set, SIGTERM) && sigismember(&set, SIGINT);
}

static void sigmask_finish(struct job *job)
{
	n_finished = 1;
}

static void threads_leave_signals_to_the_daemon(void **state)
{
	struct fixture *f = *state;
	struct job job = { .run = sigmask_run, .finish = sigmask_finish };

	n_finished = 0;
	assert_int_equal(f->env->ops->offload(f->env, &job), 0);
	UNTIL(f, n_finished);
	assert_int_equal(n_run, 1);
}

struct stopper {
	struct timer timer;
	struct loop *loop;
};

static void stopper_fired(struct timer *timer)
{
	loop_stop(container_of(timer, struct stopper, timer)->loop);
}

/* What a container's filter answers to a call that is younger than it is. */
static bool forbid(long number)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)number, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog filter = { .len = sizeof(code) / sizeof(code[0]), .filter = code };

	return !prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && !prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

/* 0: an env sleeps and wakes. */
static int sleep_once(void)
{
	struct stopper stop = { .timer.fn = stopper_fired };
	struct env *env;

	if (env_real_new("filtered", 1, &env, NULL))
		return 1;
	stop.loop = env->loop;
	int r = timer_arm(env->loop, &stop.timer, env_in_ms(env, 2)) || loop_run(env->loop) ? 2 : 0;
	if (!r)
		env_real_free(env);
	return r;
}

static void a_filter_that_does_not_know_the_finer_sleep_does_not_stop_the_loop(void **state)
{
	int status;
	pid_t child = fork();

	if (!child)
		_exit(forbid(SYS_epoll_pwait2) ? sleep_once() : 77);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == 77)
		skip();
	assert_int_equal(WEXITSTATUS(status), 0);
}

static void an_env_without_a_past_can_be_freed(void **state)
{
	struct env *env;

	assert_int_equal(env_real_new("short", 4, &env, NULL), 0);
	assert_string_equal(env->name, "short");
	env_real_free(env);
	env_real_free(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH_FIXTURE(jobs_run_on_workers_and_finish_on_the_loop),
		WITH_FIXTURE(a_store_that_hangs_holds_up_no_other_work),
		cmocka_unit_test(one_worker_takes_jobs_first_come_first_served),
		cmocka_unit_test(there_must_be_workers),
		WITH_FIXTURE(env_call_runs_on_a_worker_while_the_loop_goes_on),
		WITH_FIXTURE(env_call_is_not_cut_short_by_cancellation),
		WITH_FIXTURE(a_timer_never_fires_early),
		WITH_FIXTURE(time_does_not_run_backwards),
		WITH_FIXTURE(random_bytes_differ),
		WITH_FIXTURE(threads_leave_signals_to_the_daemon),
		cmocka_unit_test(a_filter_that_does_not_know_the_finer_sleep_does_not_stop_the_loop),
		cmocka_unit_test(an_env_without_a_past_can_be_freed),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
