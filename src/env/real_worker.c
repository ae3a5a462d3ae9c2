/*
 * Workers: a fixed number of threads that take the jobs of one lane, first come, first served. What bounds the queue is who fills it.
 */
#include "env/real.h"

#include <errno.h>

static void *worker_run(void *arg)
{
	struct workers *workers = arg;

	pthread_mutex_lock(&workers->lock);
	for (;;) {
		struct list *node = list_pop(&workers->queue);

		if (!node) {
			if (workers->stop)
				break;
			pthread_cond_wait(&workers->more, &workers->lock);
			continue;
		}
		pthread_mutex_unlock(&workers->lock);

		struct job *job = list_entry(node, struct job, link);
		job->run(job);
		loop_post_remote(job->env->loop, &job->task);

		pthread_mutex_lock(&workers->lock);
	}
	pthread_mutex_unlock(&workers->lock);
	return NULL;
}

int workers_start(struct workers *workers, const char *name, unsigned n)
{
	list_init(&workers->queue);
	pthread_mutex_init(&workers->lock, NULL);
	pthread_cond_init(&workers->more, NULL);
	for (; workers->n < n; workers->n++) {
		int r = thread_start(&workers->threads[workers->n], name, worker_run, workers);
		if (r)
			return r;
	}
	return 0;
}

void workers_stop(struct workers *workers)
{
	CHECK(workers->n_jobs == 0);
	if (!workers->queue.next)
		return;

	pthread_mutex_lock(&workers->lock);
	workers->stop = true;
	pthread_cond_broadcast(&workers->more);
	pthread_mutex_unlock(&workers->lock);
	while (workers->n > 0)
		pthread_join(workers->threads[--workers->n], NULL);
	pthread_cond_destroy(&workers->more);
	pthread_mutex_destroy(&workers->lock);
}

static void job_finished(struct task *task)
{
	struct job *job = container_of(task, struct job, task);

	real_of(job->env)->workers[job->lane].n_jobs--;
	job->finish(job);
}

int real_offload(struct env *env, struct job *job)
{
	struct workers *workers = &real_of(env)->workers[job->lane];

	job->env = env;
	job->task.fn = job_finished;
	workers->n_jobs++;
	pthread_mutex_lock(&workers->lock);
	list_append(&workers->queue, &job->link);
	pthread_cond_signal(&workers->more);
	pthread_mutex_unlock(&workers->lock);
	return 0;
}
