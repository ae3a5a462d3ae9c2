#include "cli/place.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"

#define PORT_FIRST	20000
#define PORTS		10000
#define PORT_STRIDE	17
#define FOLDER_MODE	0755
#define FILE_MODE	0644
#define KEY_BYTES	32 /* random; the file has them in hex */
#define KEY_MODE	0600
#define LOCK_POLL_MS	50
#define CONFIG_LINE_MAX 199 /* bytes that inih reads as one line */
#define POOL_MIN_BYTES	(UINT64_C(64) << 20)
#define POOL_MAX_BYTES	(UINT64_C(1) << 30)
#define POOL_SHARE	4 /* of the available memory, all nodes together take a quarter */

CLEANUP_OF(json_t *, json_decref);

/* ---- text ------------------------------------------------------------------------------------------------------------ */

static char *format(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static char *format(const char *fmt, ...)
{
	va_list args;
	char *text = NULL;

	va_start(args, fmt);
	int n = vasprintf(&text, fmt, args);
	va_end(args);
	return n < 0 ? NULL : text;
}

/* D/NAME; NULL: no memory. */
static char *place_path(const struct place *place, const char *name)
{
	return format("%s/%s", place->dir, name);
}

char *place_node_path(const struct place *place, uint64_t node, const char *name)
{
	return format("%s/node-%" PRIu64 "%s%s", place->dir, node, *name ? "/" : "", name);
}

static char *absolute(const char *path)
{
	_cleanup_(cleanup_mem) char *here = NULL;

	if (*path == '/')
		return strdup(path);
	here = getcwd(NULL, 0);
	return here ? format("%s/%s", strcmp(here, "/") ? here : "", path) : NULL;
}

char *place_absolute_url(const char *url)
{
	static const char *const schemes[] = { "dir:", "lmdb:" };

	for (int i = 0; i < 2; i++) {
		size_t len = strlen(schemes[i]);

		if (!strncmp(url, schemes[i], len) && url[len]) {
			_cleanup_(cleanup_mem) char *path = absolute(url + len);
			return path ? format("%s%s", schemes[i], path) : NULL;
		}
	}
	return strdup(url);
}

char *place_shell_quote(const char *text)
{
	struct buf out = { 0 };
	int r = buf_append(&out, "'", 1);

	for (; !r && *text; text++)
		r = *text == '\'' ? buf_append(&out, "'\\''", 4) : buf_append(&out, text, 1);
	if (!r)
		r = buf_append(&out, "'", 2); /* with the final 0 */
	if (r)
		buf_fini(&out);
	return (char *)out.ptr;
}

int place_check_value(const char *name, const char *value, struct error *e)
{
	size_t len = strlen(value);

	if (strlen(name) + strlen(" = ") + len > CONFIG_LINE_MAX)
		return error_set(e, -ENAMETOOLONG, "%s: too long for a line of a configuration file", value);
	if (strpbrk(value, "\r\n") || strstr(value, " ;") || strstr(value, "\t;"))
		return error_set(e, -EINVAL, "%s: a line break or \" ;\" cannot stand in a configuration file", value);
	if (len && (strchr(" \t", value[0]) || strchr(" \t", value[len - 1])))
		return error_set(e, -EINVAL, "\"%s\": a space at an end cannot stand in a configuration file", value);
	return 0;
}

uint64_t place_fit_pool(uint64_t available_bytes, uint64_t nodes)
{
	uint64_t fit = available_bytes / POOL_SHARE / nodes;

	fit &= ~(POOL_MIN_BYTES / 64 - 1); /* whole mebibytes */
	return fit < POOL_MIN_BYTES ? POOL_MIN_BYTES : fit > POOL_MAX_BYTES ? POOL_MAX_BYTES : fit;
}

/* ---- the machine ----------------------------------------------------------------------------------------------------- */

static uint64_t read_number(const char *path)
{
	FILE *f = fopen(path, "re");
	unsigned long long value = UINT64_MAX;

	if (f && fscanf(f, "%llu", &value) != 1)
		value = UINT64_MAX; /* "max" */
	if (f)
		fclose(f);
	return value;
}

/* What the kernel deems available, and not more than a container's limit leaves. */
static uint64_t available_memory(void)
{
	FILE *f = fopen("/proc/meminfo", "re");
	uint64_t available = POOL_MAX_BYTES;
	unsigned long long kib;
	char line[256];

	while (f && fgets(line, sizeof(line), f)) {
		if (sscanf(line, "MemAvailable: %llu", &kib) == 1)
			available = kib << 10;
	}
	if (f)
		fclose(f);

	uint64_t limit = read_number("/sys/fs/cgroup/memory.max");
	uint64_t used = read_number("/sys/fs/cgroup/memory.current");
	if (limit != UINT64_MAX && used != UINT64_MAX) {
		uint64_t left = limit > used ? limit - used : 0;
		available = left < available ? left : available;
	}
	return available;
}

/* Binds @port of the loopback interface for a moment. The port, or -errno. */
static int try_port(uint64_t port)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_port = htons((uint16_t)port),
				       .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t len = sizeof(address);
	int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	int r = setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (!r)
		r = bind(fd, (struct sockaddr *)&address, sizeof(address));
	if (!r)
		r = getsockname(fd, (struct sockaddr *)&address, &len);
	r = r ? -errno : ntohs(address.sin_port);
	close(fd);
	return r;
}

/* ---- cluster.json ---------------------------------------------------------------------------------------------------- */

static int take_text(json_t *root, const char *key, char **ret)
{
	const char *text = json_string_value(json_object_get(root, key));

	if (!text)
		return -EINVAL;
	*ret = strdup(text);
	return *ret ? 0 : -ENOMEM;
}

static int take_number(json_t *root, const char *key, uint64_t max, uint64_t *ret)
{
	json_t *number = json_object_get(root, key);
	json_int_t value = json_integer_value(number);

	if (!json_is_integer(number) || value < 0 || (uint64_t)value > max)
		return -EINVAL;
	*ret = (uint64_t)value;
	return 0;
}

static int read_state(struct place *place, struct error *e)
{
	_cleanup_(cleanup_mem) char *path = place_path(place, "cluster.json");
	json_error_t why;

	if (!path)
		return -ENOMEM;
	place->is_new = access(path, F_OK) != 0;
	if (place->is_new)
		return 0;
	_cleanup_(cleanup_json_decref) json_t *root = json_load_file(path, 0, &why);
	if (!root)
		return error_set(e, -EINVAL, "%s:%d: %s", path, why.line, why.text);
	int r = take_number(root, "nodes", PLACE_NODES_MAX, &place->nodes);
	if (!r)
		r = take_number(root, "port", 65535, &place->port);
	if (!r)
		r = take_number(root, "pool_bytes", INT64_MAX, &place->pool_bytes);
	if (!r)
		r = take_text(root, "store", &place->store);
	if (!r)
		r = take_text(root, "meta", &place->meta);
	if (!r)
		r = take_text(root, "cluster", &place->cluster);
	return r ? error_set(e, r, "%s: not as `forebay up` writes it", path) : 0;
}

/* Nobody sees it with another mode than @mode, however briefly. */
static int write_file_mode(const char *path, const char *text, mode_t mode, struct error *e)
{
	_cleanup_(cleanup_mem) char *beside = format("%s.new", path);

	if (!beside)
		return -ENOMEM;
	unlink(beside);
	int fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode & KEY_MODE);
	FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
	if (!f)
		return error_set(e, -errno, "%s: %s", path, strerror(errno));
	fputs(text, f);
	bool bad = ferror(f);
	if (fclose(f) || bad || chmod(beside, mode) || rename(beside, path))
		return error_set(e, -errno, "%s: %s", path, strerror(errno));
	return 0;
}

static int write_file(const char *path, const char *text, struct error *e)
{
	return write_file_mode(path, text, FILE_MODE, e);
}

static int write_state(const struct place *place, struct error *e)
{
	_cleanup_(cleanup_mem) char *path = place_path(place, "cluster.json"), *text = NULL;
	_cleanup_(cleanup_json_decref)
		json_t *root = json_pack("{s:I, s:I, s:I, s:s, s:s, s:s}", "nodes", (json_int_t)place->nodes, "port",
					 (json_int_t)place->port, "pool_bytes", (json_int_t)place->pool_bytes, "store",
					 place->store, "meta", place->meta, "cluster", place->cluster);

	text = root ? json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
	if (!path || !text)
		return error_set(e, -EINVAL, "%s: not valid UTF-8", place->dir);
	return write_file(path, text, e);
}

/* ---- opening --------------------------------------------------------------------------------------------------------- */

static int take_lock(struct place *place, int wait_ms, struct error *e)
{
	_cleanup_(cleanup_mem) char *path = place_path(place, "lock");

	if (!path)
		return -ENOMEM;
	place->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, FILE_MODE);
	if (place->lock_fd < 0)
		return error_set(e, -errno, "%s: %s", path, strerror(errno));
	while (flock(place->lock_fd, LOCK_EX | LOCK_NB)) {
		if (errno != EWOULDBLOCK)
			return error_set(e, -errno, "%s: %s", path, strerror(errno));
		if (wait_ms <= 0)
			return error_set(e, -EBUSY, "%s: another `forebay up` or `forebay down` works on it",
					 place->dir);
		nanosleep(&(struct timespec){ .tv_nsec = LOCK_POLL_MS * 1000000L }, NULL);
		wait_ms -= LOCK_POLL_MS;
	}
	return 0;
}

int place_open(const char *dir, bool create, int wait_ms, struct place *ret, struct error *e)
{
	struct place place = { .lock_fd = -1 };
	struct stat st;

	place.is_made = create && !mkdir(dir, FOLDER_MODE);
	if (create && !place.is_made && errno != EEXIST)
		return error_set(e, -errno, "%s: %s", dir, strerror(errno));
	if (stat(dir, &st))
		return error_set(e, -errno, "%s: %s", dir, strerror(errno));
	if (!S_ISDIR(st.st_mode))
		return error_set(e, -ENOTDIR, "%s: not a folder", dir);
	place.dir = realpath(dir, NULL);
	int r = place.dir ? take_lock(&place, wait_ms, e) : error_set(e, -errno, "%s: %s", dir, strerror(errno));
	if (!r)
		r = read_state(&place, e);
	if (r)
		place_fini(&place);
	else
		*ret = place;
	return r;
}

void place_fini(struct place *place)
{
	if (place->lock_fd >= 0)
		close(place->lock_fd);
	free(place->dir);
	free(place->store);
	free(place->meta);
	free(place->cluster);
	*place = (struct place){ .lock_fd = -1 };
}

/* ---- preparing ------------------------------------------------------------------------------------------------------- */

/* A name that another cluster on this machine does not have: daemons of another one are refused. */
static int fill_in(struct place *place)
{
	uint32_t random = 0;

	if (!place->cluster) {
		(void)!getrandom(&random, sizeof(random), 0);
		place->cluster = format("up-%08x", random);
	}
	if (!place->store)
		place->store = format("dir:%s/store", place->dir);
	if (!place->meta)
		place->meta = format("lmdb:%s/meta", place->dir);
	return place->cluster && place->store && place->meta ? 0 : -ENOMEM;
}

static int make_folder(char *path, struct error *e)
{
	if (!path)
		return -ENOMEM;
	int r = mkdir(path, FOLDER_MODE) && errno != EEXIST ? -errno : 0;
	return r ? error_set(e, r, "%s: %s", path, strerror(-r)) : 0;
}

/*
 * A free port below those that the kernel gives to outgoing connections: while node 0 is down, nobody's connection may come to sit on
 * its port. Which one is tried first differs from process to process.
 */
static int find_port(void)
{
	int port = -EADDRINUSE;

	for (int i = 0; i < PORTS && port < 0; i++)
		port = try_port((uint64_t)(PORT_FIRST + ((long)getpid() * PORT_STRIDE + i) % PORTS));
	return port;
}

/* The cluster's key, made once. A cluster that runs without one goes on so until it has been down. */
static int make_key(struct place *place, bool runs, struct error *e)
{
	_cleanup_(cleanup_mem) char *path = place_path(place, "key");
	char text[2 * KEY_BYTES + 2];
	uint8_t key[KEY_BYTES];

	if (!path)
		return -ENOMEM;
	place->has_key = access(path, F_OK) == 0;
	if (place->has_key || runs)
		return 0;
	if (getrandom(key, sizeof(key), 0) != sizeof(key))
		return error_set(e, -EIO, "%s: no randomness to make a key of", path);
	hex_encode(text, key, sizeof(key));
	memcpy(text + 2 * KEY_BYTES, "\n", 2);
	int r = write_file_mode(path, text, KEY_MODE, e);
	explicit_bzero(key, sizeof(key));
	explicit_bzero(text, sizeof(text));
	place->has_key = place->made_key = !r;
	return r;
}

static int write_config(const struct place *place, uint64_t node, struct error *e)
{
	_cleanup_(cleanup_mem) char *folder = place_node_path(place, node, ""),
				    *path = place_node_path(place, node, "config");
	_cleanup_(cleanup_mem) char *sock = place_node_path(place, node, "socket"), *text = NULL, *meta = NULL;
	_cleanup_(cleanup_mem) char *key = place->has_key ? format("key = %s/key\n", place->dir) : strdup("");
	bool embedded = !strncmp(place->meta, "lmdb:", 5);
	uint64_t pool = place->pool_bytes ? place->pool_bytes : place_fit_pool(available_memory(), place->nodes);

	int r = make_folder(folder, e);
	if (r)
		return r;
	meta = embedded && node ? format("tcp:127.0.0.1:%" PRIu64, place->port) : strdup(place->meta);
	if (!path || !sock || !meta || !key)
		return -ENOMEM;
	if (strlen(sock) >= sizeof(((struct sockaddr_un *)NULL)->sun_path))
		return error_set(e, -ENAMETOOLONG,
				 "%s: %zu bytes; a socket's path has at most %zu: choose a shorter --dir", sock,
				 strlen(sock), sizeof(((struct sockaddr_un *)NULL)->sun_path) - 1);
	r = place_check_value("socket", sock, e);
	if (!r)
		r = place_check_value("store", place->store, e);
	if (!r)
		r = place_check_value("meta", meta, e);
	if (r)
		return r;
	text = format("# Made by `forebay up` from ../cluster.json at each start.\n"
		      "node = node-%" PRIu64 "\ncluster = %s\n%slisten = tcp:127.0.0.1:%" PRIu64 "\n"
		      "socket = %s\nstore = %s\nmeta = %s\npool = %" PRIu64 "\nhttp = 127.0.0.1:0\n",
		      node, place->cluster, key, node ? 0 : place->port, sock, place->store, meta, pool);
	return text ? write_file(path, text, e) : -ENOMEM;
}

/* @http NULL: not known yet. */
static int write_env(const struct place *place, const char *http, struct error *e)
{
	_cleanup_(cleanup_mem) char *path = place_path(place, "env"), *sock = place_node_path(place, 0, "socket");
	_cleanup_(cleanup_mem) char *quoted = sock ? place_shell_quote(sock) : NULL, *text = NULL;

	text = quoted ? format("export FOREBAY_SOCKET=%s\n%s%s%s", quoted, http ? "export FOREBAY_HTTP=" : "",
			       http ? http : "", http ? "\n" : "") :
			NULL;
	return path && text ? write_file(path, text, e) : -ENOMEM;
}

int place_tell_http(const struct place *place, uint64_t node, const char *address, struct error *e)
{
	_cleanup_(cleanup_mem) char *path = place_node_path(place, node, "http"), *text = format("%s\n", address);
	int r = path && text ? write_file(path, text, e) : -ENOMEM;

	return r || node ? r : write_env(place, address, e);
}

int place_prepare(struct place *place, bool runs, struct error *e)
{
	_cleanup_(cleanup_mem) char *store = place_path(place, "store"), *store_url = NULL;
	_cleanup_(cleanup_mem) char *index = place_path(place, "meta");
	int r = fill_in(place);

	store_url = store ? format("dir:%s", store) : NULL;
	if (r || !store_url || !index)
		return -ENOMEM;
	place->lacks_index = access(index, F_OK) != 0;
	if (!strcmp(place->store, store_url))
		r = make_folder(store, e);
	if (!r && !(place->port && (runs || try_port(place->port) > 0))) {
		int port = find_port();

		r = port < 0 ? error_set(e, port, "no port of 127.0.0.1 is free: %s", strerror(-port)) : 0;
		place->port = r ? 0 : (uint64_t)port;
	}
	if (!r)
		r = make_key(place, runs, e);
	for (uint64_t node = 0; !r && node < place->nodes; node++)
		r = write_config(place, node, e);
	if (!r)
		r = write_env(place, NULL, e);
	return r ? r : write_state(place, e);
}

/* ---- undoing --------------------------------------------------------------------------------------------------------- */

static void drop_file(char *path)
{
	if (path)
		(void)unlink(path);
	free(path);
}

/* Unless something is in it. */
static void drop_folder(char *path)
{
	if (path)
		(void)rmdir(path);
	free(path);
}

/* With all files in it. */
static void drop_index(char *path)
{
	DIR *folder = path ? opendir(path) : NULL;

	for (struct dirent *entry; folder && (entry = readdir(folder));)
		drop_file(format("%s/%s", path, entry->d_name));
	if (folder)
		closedir(folder);
	drop_folder(path);
}

static bool is_folder_store(const struct place *place)
{
	return place->store && !strncmp(place->store, "dir:", 4);
}

void place_undo(struct place *place, char ret_begun[PATH_MAX])
{
	static const char *const files[] = { "config", "http", "pid", "started", "socket" };

	*ret_begun = 0;
	if (is_folder_store(
		    place)) { /* without an allocation that could fail: what has begun must not be taken for nothing */
		snprintf(ret_begun, PATH_MAX, "%s/g", place->store + 4);
		if (!access(ret_begun, F_OK))
			return;
		*ret_begun = 0;
	}
	drop_file(place_path(place, "cluster.json"));
	drop_file(place_path(place, "env"));
	if (place->made_key)
		drop_file(place_path(place, "key"));
	for (uint64_t node = 0; node < place->nodes; node++) {
		for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
			drop_file(place_node_path(place, node, files[i]));
		drop_folder(place_node_path(place, node, ""));
	}
	if (place->lacks_index && is_folder_store(place))
		drop_index(place_path(place, "meta"));
	drop_folder(place_path(place, "store/.tmp"));
	drop_folder(place_path(place, "store"));
	if (!place->is_made)
		return;
	drop_file(place_path(place, "lock"));
	(void)rmdir(place->dir); /* another `up` that waits for the lock finds nothing, and says so */
}
