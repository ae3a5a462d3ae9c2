#include "env/real_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

struct place {
	struct fixture *fixture;
	const struct env_ops *ops;
	struct dir *dir;
};

static int place_setup(void **state)
{
	struct place *p = calloc(1, sizeof(*p));
	void *fixture = NULL;
	struct error e;
	int r = fixture_setup(&fixture);

	if (r)
		return r;
	p->fixture = fixture;
	p->ops = p->fixture->env->ops;
	*state = p;
	return p->ops->dir_open(p->fixture->env, p->fixture->dir, false, &p->dir, &e);
}

static int place_teardown(void **state)
{
	struct place *p = *state;
	void *fixture = p->fixture;

	p->ops->dir_close(p->dir);
	free(p);
	return fixture_teardown(&fixture);
}

static void write_file(struct place *p, const char *path, const void *bytes, size_t len)
{
	struct file *file;

	assert_int_equal(p->ops->file_open(p->dir, path, FILE_WRITE | FILE_CREATE | FILE_EXCLUSIVE, &file), 0);
	assert_int_equal(p->ops->file_write(file, 0, bytes, len), 0);
	assert_int_equal(p->ops->file_sync(file), 0);
	p->ops->file_close(file);
}

static void what_was_written_is_read_back_and_reads_end_at_the_end(void **state)
{
	struct place *p = *state;
	struct file *file;
	char got[32];
	uint64_t size;

	write_file(p, "f", "0123456789", 10);
	assert_int_equal(p->ops->file_open(p->dir, "f", FILE_READ | FILE_WRITE, &file), 0);
	assert_int_equal(p->ops->file_read(file, 4, got, sizeof(got)), 6);
	assert_memory_equal(got, "456789", 6);
	assert_int_equal(p->ops->file_read(file, 10, got, sizeof(got)), 0);
	assert_int_equal(p->ops->file_write(file, 20, "x", 1), 0);
	assert_int_equal(p->ops->file_size(file, &size), 0);
	assert_int_equal(size, 21);
	p->ops->file_close(file);
}

static void exclusive_creation_refuses_what_is_there(void **state)
{
	struct place *p = *state;
	struct file *file;

	assert_int_equal(p->ops->file_open(p->dir, "f", FILE_READ, &file), -ENOENT);
	write_file(p, "f", "x", 1);
	assert_int_equal(p->ops->file_open(p->dir, "f", FILE_WRITE | FILE_CREATE | FILE_EXCLUSIVE, &file), -EEXIST);
	assert_int_equal(p->ops->file_open(p->dir, "f", FILE_WRITE | FILE_CREATE, &file), 0);
	p->ops->file_close(file);
}

static void paths_cannot_leave_the_directory(void **state)
{
	static const char *const paths[] = { "../f", "a/../../f", "/etc/hostname", "..", "", "a/.." };
	struct place *p = *state;
	struct file *file;
	struct file_stat st;
	char out[128];

	for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
		assert_int_equal(p->ops->file_open(p->dir, paths[i], FILE_READ, &file), -EINVAL);
		assert_int_equal(p->ops->unlink(p->dir, paths[i]), -EINVAL);
		assert_int_equal(p->ops->link(p->dir, "f", paths[i]), -EINVAL);
		assert_int_equal(p->ops->mkdirs(p->dir, paths[i]), -EINVAL);
	}
	snprintf(out, sizeof(out), "%s/out", p->fixture->dir);
	assert_int_equal(symlink("/etc", out), 0);
	assert_int_equal(p->ops->file_open(p->dir, "out/hostname", FILE_READ, &file), -EXDEV);
	assert_int_equal(p->ops->stat(p->dir, "out/hostname", &st), -EXDEV);
	assert_int_equal(p->ops->file_open(p->dir, "..f", FILE_READ, &file), -ENOENT); /* a name like any other */
}

static void link_passes_on_that_the_name_is_taken(void **state)
{
	struct place *p = *state;
	struct file_stat st;

	write_file(p, "a", "abc", 3);
	write_file(p, "b", "b", 1);
	assert_int_equal(p->ops->link(p->dir, "a", "c"), 0);
	assert_int_equal(p->ops->stat(p->dir, "c", &st), 0);
	assert_int_equal(st.nlink, 2);
	assert_int_equal(st.size, 3);
	assert_false(st.is_dir);
	assert_int_equal(p->ops->link(p->dir, "a", "b"), -EEXIST);
	assert_int_equal(p->ops->link(p->dir, "none", "d"), -ENOENT);
	assert_int_equal(p->ops->link(p->dir, "a", "none/d"), -ENOENT);
}

static void rename_replaces_and_unlink_removes_files_and_empty_directories(void **state)
{
	struct place *p = *state;
	struct file_stat st;

	write_file(p, "a", "abc", 3);
	write_file(p, "b", "b", 1);
	assert_int_equal(p->ops->rename(p->dir, "a", "b"), 0);
	assert_int_equal(p->ops->stat(p->dir, "a", &st), -ENOENT);
	assert_int_equal(p->ops->stat(p->dir, "b", &st), 0);
	assert_int_equal(st.size, 3);
	assert_int_equal(p->ops->mkdirs(p->dir, "x/y"), 0);
	assert_int_equal(p->ops->rename(p->dir, "b", "x/y/b"), 0);
	assert_int_equal(p->ops->unlink(p->dir, "x/y"), -ENOTEMPTY);
	assert_int_equal(p->ops->unlink(p->dir, "x/y/b"), 0);
	assert_int_equal(p->ops->unlink(p->dir, "x/y"), 0);
	assert_int_equal(p->ops->unlink(p->dir, "x/y"), -ENOENT);
}

static void mkdirs_makes_parents_and_accepts_what_is_there(void **state)
{
	struct place *p = *state;
	struct file_stat st;

	assert_int_equal(p->ops->mkdirs(p->dir, "a/b/c"), 0);
	assert_int_equal(p->ops->mkdirs(p->dir, "a/b/c"), 0);
	assert_int_equal(p->ops->mkdirs(p->dir, "a/b/d/"), 0);
	assert_int_equal(p->ops->stat(p->dir, "a/b/c", &st), 0);
	assert_true(st.is_dir);
	assert_int_equal(p->ops->stat(p->dir, ".", &st), 0);
	assert_true(st.is_dir);
	write_file(p, "a/f", "x", 1);
	assert_int_equal(p->ops->mkdirs(p->dir, "a/f/c"), -ENOTDIR);
	assert_int_equal(p->ops->mkdirs(p->dir, "a/f"), -ENOTDIR);
}

struct listing {
	char text[256];
	int left;
};

static int add_name(void *arg, const char *name, bool is_dir)
{
	struct listing *listing = arg;
	size_t len = strlen(listing->text);

	snprintf(listing->text + len, sizeof(listing->text) - len, "%s%s ", name, is_dir ? "/" : "");
	return --listing->left == 0;
}

static void list_is_sorted_by_bytes_and_can_be_stopped(void **state)
{
	struct place *p = *state;
	struct listing all = { .left = -1 }, two = { .left = 2 }, empty = { .left = -1 };

	write_file(p, "b", "", 0);
	write_file(p, "Z", "", 0);
	write_file(p, "a.1", "", 0);
	write_file(p, "\xc3\xa4", "", 0);
	assert_int_equal(p->ops->mkdirs(p->dir, "a/sub"), 0);
	assert_int_equal(p->ops->list(p->dir, ".", add_name, &all), 0);
	assert_string_equal(all.text, "Z a/ a.1 b \xc3\xa4 ");
	assert_int_equal(p->ops->list(p->dir, ".", add_name, &two), 0);
	assert_string_equal(two.text, "Z a/ ");
	assert_int_equal(p->ops->list(p->dir, "a/sub", add_name, &empty), 0);
	assert_string_equal(empty.text, "");
	assert_int_equal(p->ops->list(p->dir, "none", add_name, &empty), -ENOENT);
	assert_int_equal(p->ops->list(p->dir, "b", add_name, &empty), -ENOTDIR);
}

static void sync_dir_takes_directories_only(void **state)
{
	struct place *p = *state;

	write_file(p, "f", "x", 1);
	assert_int_equal(p->ops->mkdirs(p->dir, "a"), 0);
	assert_int_equal(p->ops->sync_dir(p->dir, "a"), 0);
	assert_int_equal(p->ops->sync_dir(p->dir, "."), 0);
	assert_int_equal(p->ops->sync_dir(p->dir, "f"), -ENOTDIR);
	assert_int_equal(p->ops->sync_dir(p->dir, "none"), -ENOENT);
}

static void dir_open_makes_the_path_only_when_asked(void **state)
{
	struct place *p = *state;
	struct dir *dir;
	struct error e;
	char path[128];

	snprintf(path, sizeof(path), "%s/deep/er/", p->fixture->dir);
	assert_int_equal(p->ops->dir_open(p->fixture->env, path, false, &dir, &e), -ENOENT);
	assert_non_null(strstr(e.text, path));
	assert_int_equal(p->ops->dir_open(p->fixture->env, path, true, &dir, &e), 0);
	p->ops->dir_close(dir);
	p->ops->dir_close(NULL);
	write_file(p, "f", "", 0);
	snprintf(path, sizeof(path), "%s/f", p->fixture->dir);
	assert_int_equal(p->ops->dir_open(p->fixture->env, path, true, &dir, &e), -ENOTDIR);
}

static void an_error_of_the_device_is_passed_on(void **state)
{
	struct place *p = *state;
	struct dir *dev;
	struct file *full;

	assert_int_equal(p->ops->dir_open(p->fixture->env, "/dev", false, &dev, NULL), 0);
	assert_int_equal(p->ops->file_open(dev, "full", FILE_WRITE, &full), 0);
	assert_int_equal(p->ops->file_write(full, 0, "x", 1), -ENOSPC);
	p->ops->file_close(full);
	p->ops->dir_close(dev);
}

static void what_is_made_is_for_its_owner_alone(void **state)
{
	struct place *p = *state;
	struct stat st;
	struct dir *dir;
	char path[128];
	mode_t before = umask(0);

	assert_int_equal(p->ops->mkdirs(p->dir, "t/red"), 0);
	write_file(p, "t/red/f", "x", 1);
	snprintf(path, sizeof(path), "%s/new", p->fixture->dir);
	assert_int_equal(p->ops->dir_open(p->fixture->env, path, true, &dir, NULL), 0);
	umask(before);
	p->ops->dir_close(dir);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0700);
	snprintf(path, sizeof(path), "%s/t/red", p->fixture->dir);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0700);
	snprintf(path, sizeof(path), "%s/t/red/f", p->fixture->dir);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
}

static void a_fifo_in_a_files_place_is_no_file_and_is_not_waited_for(void **state)
{
	struct place *p = *state;
	struct file *file;
	char path[128];

	snprintf(path, sizeof(path), "%s/fifo", p->fixture->dir);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(p->ops->file_open(p->dir, "fifo", FILE_READ, &file), -ENXIO);
	assert_int_equal(p->ops->file_open(p->dir, "fifo", FILE_WRITE, &file), -ENXIO);
	assert_int_equal(p->ops->file_open(p->dir, "fifo", FILE_READ | FILE_WRITE, &file), -ENXIO);
}

#define PLACE(name) cmocka_unit_test_setup_teardown(name, place_setup, place_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		PLACE(what_was_written_is_read_back_and_reads_end_at_the_end),
		PLACE(exclusive_creation_refuses_what_is_there),
		PLACE(paths_cannot_leave_the_directory),
		PLACE(link_passes_on_that_the_name_is_taken),
		PLACE(rename_replaces_and_unlink_removes_files_and_empty_directories),
		PLACE(mkdirs_makes_parents_and_accepts_what_is_there),
		PLACE(list_is_sorted_by_bytes_and_can_be_stopped),
		PLACE(sync_dir_takes_directories_only),
		PLACE(dir_open_makes_the_path_only_when_asked),
		PLACE(an_error_of_the_device_is_passed_on),
		PLACE(what_is_made_is_for_its_owner_alone),
		PLACE(a_fifo_in_a_files_place_is_no_file_and_is_not_waited_for),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
