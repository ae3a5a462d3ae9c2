/*
 * meta/meta_lmdb_test.c: the suite over LMDB, directly and through a remote; how it batches, and to whom an index belongs.
 */
#include "meta/lmdb_fixture.h"

#include <signal.h>
#include <sys/wait.h>

/* ---- the suite, directly ---- */

static int suite_open(struct meta_suite *suite, struct meta **ret)
{
	if (setup(NULL))
		return -EIO;
	return meta_lmdb_open(env, below("index"), ret, NULL);
}

static void suite_close(struct meta_suite *suite, struct meta *meta)
{
	meta_free(meta);
	assert_int_equal(teardown(NULL), 0);
}

static int suite_restart(struct meta_suite *suite, struct meta **pmeta)
{
	meta_free(*pmeta);
	*pmeta = NULL;
	return meta_lmdb_open(env, below("index"), pmeta, NULL);
}

static void suite_pass(struct meta_suite *suite, struct meta *meta, uint64_t ms)
{
	skew_ns += ms * NS_PER_MS;
}

/* ---- the suite, through a remote: every request is copied to the engine, and its answer back ---- */

static struct meta *served;

static void served_finished(struct meta_req *inner)
{
	struct meta_req *outer = inner->arg;

	meta_remote_answer(outer, inner->result, view_buf(&inner->out));
	meta_req_free(inner);
}

static void serve(void *arg, struct meta_req *outer)
{
	struct meta_req *inner = meta_req_new(outer->op);

	CHECK(inner && buf_append(&inner->in, outer->in.ptr, outer->in.len) == 0);
	inner->arg = outer;
	inner->finish = served_finished;
	meta_submit(served, inner);
}

static int remote_open(struct meta_suite *suite, struct meta **ret)
{
	const struct meta_remote_call call = { .send = serve };
	int r = suite_open(suite, &served);

	return r ? r : meta_remote_new(env, &call, ret);
}

static void remote_close(struct meta_suite *suite, struct meta *meta)
{
	meta_free(meta);
	suite_close(suite, served);
}

static int remote_restart(struct meta_suite *suite, struct meta **pmeta)
{
	return suite_restart(suite, &served);
}

/* ---- batches ---- */

static size_t commits_so_far(struct meta *meta)
{
	MDB_envinfo info;

	assert_int_equal(mdb_env_info(container_of(meta, struct lmdb, meta)->db, &info), 0);
	return info.me_last_txnid;
}

static void many_requests_share_few_commits(void **state)
{
	struct meta *meta = open_index();
	struct meta_req *reqs[3 * META_BATCH_MAX];
	size_t before = commits_so_far(meta);

	for (size_t i = 0; i < ARRAY_LEN(reqs); i++) {
		reqs[i] = meta_req_new(META_TXN);
		assert_int_equal(meta_txn_put(reqs[i], view_of(&i, sizeof(i)), view_str("x")), 0);
		meta_suite_start(meta, reqs[i]);
	}
	for (size_t i = 0; i < ARRAY_LEN(reqs); i++) {
		assert_int_equal(meta_suite_wait(reqs[i]), 0);
		meta_req_free(reqs[i]);
	}
	assert_true(commits_so_far(meta) - before <= 4); /* the first went alone, the others in full batches */
	meta_free(meta);
}

static void a_renewed_lease_costs_no_commit(void **state)
{
	struct meta *meta = open_index();
	struct meta_req *req = meta_req_new(META_LEASE);

	assert_int_equal(meta_put_lease(req, view_str("l"), 7, 1000, 0), 0);
	meta_suite_start(meta, req);
	assert_int_equal(meta_suite_wait(req), 0);
	size_t before = commits_so_far(meta);
	meta_suite_start(meta, req);
	assert_int_equal(meta_suite_wait(req), 0);
	assert_int_equal(commits_so_far(meta), before);
	meta_req_free(req);
	meta_free(meta);
}

/* The outcome, for a lease of a second. */
static int ask_for_lease(struct meta *meta, const char *key, uint64_t asker)
{
	struct meta_req *req = meta_req_new(META_LEASE);

	assert_int_equal(meta_put_lease(req, view_str(key), asker, 1000, 0), 0);
	meta_suite_start(meta, req);
	int r = meta_suite_wait(req);
	meta_req_free(req);
	return r;
}

static size_t leases_remembered(struct meta *meta)
{
	return container_of(meta, struct lmdb, meta)->leases.n;
}

static void leases_that_have_ended_are_forgotten_and_no_others(void **state)
{
	enum { LIVING = 100, ENDED = 1000, AT_A_TIME = 20 };
	struct meta *meta = open_index();
	char key[32];

	skew_ns += META_LEASE_MAX_MS * NS_PER_MS;
	for (int i = 0; i < ENDED; i++) {
		(void)snprintf(key, sizeof(key), "version/%d", i);
		assert_int_equal(ask_for_lease(meta, key, 1), 0);
		if (i % AT_A_TIME)
			continue;
		skew_ns += 600 * NS_PER_MS;
		for (int k = 0; k < LIVING; k++) { /* renewed before they end */
			(void)snprintf(key, sizeof(key), "group/%d", k);
			assert_int_equal(ask_for_lease(meta, key, 1), 0);
		}
		assert_true(leases_remembered(meta) <= 2 * (LIVING + 2 * AT_A_TIME) + META_LEASES_FEW + 1);
	}
	for (int k = 0; k < LIVING; k++) {
		(void)snprintf(key, sizeof(key), "group/%d", k);
		assert_int_equal(ask_for_lease(meta, key, 2), META_HELD);
	}
	assert_int_equal(ask_for_lease(meta, "version/0", 2), 0);
	meta_free(meta);
}

static void an_ended_lease_is_free_soon_after_the_opening_too(void **state)
{
	struct meta *meta = open_index();
	char key[32];

	for (int i = 0; i < 3 * META_LEASES_FEW; i++) {
		(void)snprintf(key, sizeof(key), "version/%d", i);
		assert_int_equal(ask_for_lease(meta, key, 1), 0);
	}
	skew_ns += 1200 * NS_PER_MS;
	for (int i = 0; i < 3 * META_LEASES_FEW; i++) {
		(void)snprintf(key, sizeof(key), "another/%d", i);
		assert_int_equal(ask_for_lease(meta, key, 1), 0);
	}
	for (int i = 0; i < 3 * META_LEASES_FEW; i++) {
		(void)snprintf(key, sizeof(key), "version/%d", i);
		assert_int_equal(ask_for_lease(meta, key, 2),
				 0); /* forgotten, it would count as held for ten seconds */
	}
	meta_free(meta);
}

/* ---- opening ---- */

static void a_missing_parent_or_a_file_in_the_way_is_refused_by_name(void **state)
{
	int fd = open(below("file"), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	close(fd);
	assert_refused("no/index", -ENOENT, "no/index");
	assert_refused("file", -ENOTDIR, "file");
	assert_refused("file/index", -ENOTDIR, "file/index");
}

static void an_index_has_one_owner_and_is_free_when_it_has_gone(void **state)
{
	struct meta *meta = open_index();
	char pid[32];

	(void)snprintf(pid, sizeof(pid), "pid %ld", (long)getpid());
	assert_refused("index", -EBUSY, pid);
	assert_int_equal(meta_suite_put(meta, "a", "1"), 0);
	meta_free(meta);
	meta_free(open_index());
}

/* Commits, says so, and waits to be killed, which is how a daemon may end at any time. */
static void child_commits(int say_fd)
{
	if (env_start() || meta_suite_put(open_index(), "a", "from a process that was killed") ||
	    write(say_fd, "x", 1) != 1)
		_exit(1);
	pause();
}

static void what_a_killed_process_committed_is_there_and_its_index_was_its_own(void **state)
{
	int fds[2], status;
	char c, text[64];

	assert_int_equal(pipe(fds), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (!pid)
		child_commits(fds[1]);
	assert_int_equal(read(fds[0], &c, 1), 1);
	assert_int_equal(env_start(), 0);
	assert_refused("index", -EBUSY, "pid ");
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	close(fds[0]);
	close(fds[1]);

	struct meta *meta = open_index();
	assert_int_equal(meta_suite_get(meta, "a", text, sizeof(text)), 0);
	assert_string_equal(text, "from a process that was killed");
	assert_int_equal(meta_suite_put(meta, "b", "goes on"), 0);
	meta_free(meta);
}

static void as_nobody(int (*fn)(void))
{
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (!pid) {
		if (!geteuid() && (setgid(65534) || setuid(65534)))
			_exit(2);
		_exit(fn());
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

static int open_is_EACCES(void)
{
	struct meta *meta;
	struct error e = { 0 };
	int r = env_start();

	if (r || meta_lmdb_open(env, below("index"), &meta, &e) != -EACCES || !strstr(e.text, root))
		return 3;
	env_real_free(env);
	return 0;
}

static void a_directory_that_may_not_be_written_is_EACCES(void **state)
{
	assert_int_equal(chmod(root, 0555), 0);
	as_nobody(open_is_EACCES);
	assert_int_equal(chmod(root, 0755), 0);
	assert_int_equal(mkdir(below("index"), 0555), 0);
	as_nobody(open_is_EACCES);
}

int main(void)
{
	struct meta_suite direct = {
		.name = "meta_lmdb over the suite",
		.open = suite_open,
		.close = suite_close,
		.restart = suite_restart,
		.pass = suite_pass,
	};
	struct meta_suite remote = {
		.name = "meta_remote over the suite",
		.open = remote_open,
		.close = remote_close,
		.restart = remote_restart,
		.pass = suite_pass,
	};
	const struct CMUnitTest tests[] = {
		claim(many_requests_share_few_commits),
		claim(a_renewed_lease_costs_no_commit),
		claim(leases_that_have_ended_are_forgotten_and_no_others),
		claim(an_ended_lease_is_free_soon_after_the_opening_too),
		claim(a_missing_parent_or_a_file_in_the_way_is_refused_by_name),
		claim(an_index_has_one_owner_and_is_free_when_it_has_gone),
		claim_alone(what_a_killed_process_committed_is_there_and_its_index_was_its_own),
		claim_alone(a_directory_that_may_not_be_written_is_EACCES),
	};
	log_setup(LOG_ERROR, count_told, NULL);
	int failed = meta_suite_run(&direct) + meta_suite_run(&remote);

	return failed + cmocka_run_group_tests_name("meta_lmdb", tests, NULL, NULL);
}
