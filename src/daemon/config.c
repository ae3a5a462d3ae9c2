#include "daemon/config.h"

#include <ctype.h>
#include <errno.h>
#include <ini.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/check.h"
#include "base/cleanup.h"
#include "base/log.h"
#include "daemon/key.h"

#define NAME_MAX_BYTES	  63
#define WORKERS_MAX	  64
#define MILLIS_MAX	  3600000 /* an hour */
#define POOL_MIN_BYTES	  (UINT64_C(4) << 20)
#define TENANT_SECTION	  "tenant "
#define TENANT_POOL_BYTES (UINT64_C(1) << 30) /* by default, as of the first */

const struct config_entry config_entries[] = {
#define X(name, kind, value, help) { #name, value, help },
	CONFIG_TABLE(X)
#undef X
		{ NULL, NULL, NULL },
};

/* ---- one value of each kind ------------------------------------------------------------------------------------------- */

static int parse_TEXT(const char *text, char **ret, const char **ret_allowed)
{
	char *copy = strdup(text);

	*ret_allowed = "text";
	if (!copy)
		return -ENOMEM;
	free(*ret);
	*ret = copy;
	return 0;
}

static int parse_SIZE(const char *text, uint64_t *ret, const char **ret_allowed)
{
	*ret_allowed = "a number of bytes, or one with K, M, G or T (powers of 1024)";
	return size_parse(text, ret);
}

static int parse_number(const char *text, uint64_t most, uint64_t *ret)
{
	char *end;

	if (!isdigit((unsigned char)*text))
		return -EINVAL;
	errno = 0;
	uint64_t value = strtoull(text, &end, 10);
	if (errno || *end || value > most)
		return -EINVAL;
	*ret = value;
	return 0;
}

static int parse_COUNT(const char *text, uint64_t *ret, const char **ret_allowed)
{
	*ret_allowed = "a number up to 64";
	return parse_number(text, WORKERS_MAX, ret);
}

static int parse_MILLIS(const char *text, uint64_t *ret, const char **ret_allowed)
{
	*ret_allowed = "a number of milliseconds up to 3600000";
	return parse_number(text, MILLIS_MAX, ret);
}

static int parse_LEVEL(const char *text, uint64_t *ret, const char **ret_allowed)
{
	static const char *const
		levels[] = { [LOG_ERROR] = "error", [LOG_WARN] = "warn", [LOG_INFO] = "info", [LOG_DEBUG] = "debug" };

	*ret_allowed = "error, warn, info or debug";
	for (size_t i = 0; i < ARRAY_LEN(levels); i++) {
		if (!strcmp(text, levels[i])) {
			*ret = i;
			return 0;
		}
	}
	return -EINVAL;
}

/* Numbers with commas or spaces between them. An empty list would keep nobody out: whoever writes one does not mean that. */
static int parse_USERS(const char *text, struct config_users *ret, const char **ret_allowed)
{
	_cleanup_(cleanup_mem) uint32_t *ids = calloc(CONFIG_USERS_MAX, sizeof(*ids));
	unsigned n = 0;

	*ret_allowed = "1 to 256 numbers of users, with spaces or commas between them";
	if (!ids)
		return -ENOMEM;
	for (text += strspn(text, " ,\t"); *text; text += strspn(text, " ,\t")) {
		char *end;
		unsigned long long id = isdigit((unsigned char)*text) ? strtoull(text, &end, 10) : UINT64_MAX;

		if (id >= UINT32_MAX || n == CONFIG_USERS_MAX || (*end && !strchr(" ,\t", *end)))
			return -EINVAL;
		ids[n++] = (uint32_t)id;
		text = end;
	}
	if (!n)
		return -EINVAL;
	free(ret->ids);
	*ret = (struct config_users){ .ids = TAKE(ids), .n = n };
	return 0;
}

int config_set(struct config *config, const char *name, const char *value, struct error *e)
{
	const char *allowed = "";
	int r = -ENOENT;

	if (strlen(value) > CONFIG_TEXT_MAX)
		return error_set(e, -EINVAL, "%s: more than %d bytes", name, CONFIG_TEXT_MAX);
#define X(setting, kind, value_unused, help)         \
	if (r == -ENOENT && !strcmp(name, #setting)) \
		r = parse_##kind(value, &config->setting, &allowed);
	CONFIG_TABLE(X)
#undef X
	if (r == -ENOENT) {
		_cleanup_(cleanup_mem) char *names = NULL;
		size_t size = 0;
		FILE *list = open_memstream(&names, &size);

		for (const struct config_entry *entry = config_entries; list && entry->name; entry++)
			fprintf(list, "%s%s", entry == config_entries ? "" : ", ", entry->name);
		if (list)
			fclose(list);
		return error_set(e, -EINVAL, "there is no setting \"%s\"; there are %s", name, names ? names : "");
	}
	if (r == -EINVAL)
		return error_set(e, r, "%s: \"%s\" is not allowed; it must be %s", name, value, allowed);
	return r;
}

int config_init(struct config *config)
{
	int r = 0;

	memset(config, 0, sizeof(*config));
	for (const struct config_entry *entry = config_entries; !r && entry->name; entry++)
		if (strcmp(entry->name, "users") != 0) /* by default there is no list */
			r = config_set(config, entry->name, entry->value, NULL);
	return r;
}

static void free_TEXT(char **text)
{
	free(*text);
	*text = NULL;
}

static void free_SIZE(uint64_t *value)
{
	*value = 0;
}

static void free_USERS(struct config_users *users)
{
	free(users->ids);
	*users = (struct config_users){ 0 };
}

static void free_tenant(struct config_tenant *tenant)
{
	free_TEXT(&tenant->name);
	free_TEXT(&tenant->socket);
	free_USERS(&tenant->users);
}

#define free_COUNT  free_SIZE
#define free_LEVEL  free_SIZE
#define free_MILLIS free_SIZE

void config_fini(struct config *config)
{
#define X(name, kind, value, help) free_##kind(&config->name);
	CONFIG_TABLE(X)
#undef X
	for (unsigned i = 0; i < config->n_tenants; i++)
		free_tenant(&config->tenants[i]);
	free(config->tenants);
	config->tenants = NULL;
	config->n_tenants = 0;
}

/* ---- sections of tenants ------------------------------------------------------------------------------------------------ */

/* The tenant of that name, with its defaults when it is new. */
static int tenant_find(struct config *config, const char *name, struct config_tenant **ret, struct error *e)
{
	for (unsigned i = 0; i < config->n_tenants; i++) {
		*ret = &config->tenants[i];
		if (!strcmp((*ret)->name, name))
			return 0;
	}
	if (config->n_tenants == CONFIG_TENANTS_MAX)
		return error_set(e, -E2BIG, "more than %d sections of tenants", CONFIG_TENANTS_MAX);
	if (!config->tenants)
		config->tenants = calloc(CONFIG_TENANTS_MAX, sizeof(*config->tenants));
	if (!config->tenants)
		return -ENOMEM;
	struct config_tenant *tenant = &config->tenants[config->n_tenants];
	*tenant = (struct config_tenant){ .name = strdup(name), .socket = strdup(""), .pool = TENANT_POOL_BYTES };
	if (!tenant->name || !tenant->socket) {
		free_tenant(tenant);
		return -ENOMEM;
	}
	config->n_tenants++;
	*ret = tenant;
	return 0;
}

static int tenant_set(struct config *config, const char *section, const char *name, const char *value, struct error *e)
{
	const char *allowed = "";
	struct config_tenant *tenant;
	int r = tenant_find(config, section, &tenant, e);

	if (r)
		return r;
	if (!strcmp(name, "socket"))
		r = parse_TEXT(value, &tenant->socket, &allowed);
	else if (!strcmp(name, "users"))
		r = parse_USERS(value, &tenant->users, &allowed);
	else if (!strcmp(name, "pool"))
		r = parse_SIZE(value, &tenant->pool, &allowed);
	else
		return error_set(e, -EINVAL, "a tenant has no setting \"%s\"; there are socket, users, pool", name);
	if (r == -EINVAL)
		return error_set(e, r, "%s: \"%s\" is not allowed; it must be %s", name, value, allowed);
	return r;
}

/* ---- the file ----------------------------------------------------------------------------------------------------------- */

struct reading {
	struct config *config;
	FILE *file;
	int line; /* inih tells no line numbers to its handler: we count as it reads */
	int failed_line;
	struct error error;
};

static char *read_line(char *out, int size, void *arg)
{
	struct reading *reading = arg;
	char *line = fgets(out, size, reading->file);

	if (!line)
		return NULL;
	reading->line++;
	if (strlen(line) + 1 < (size_t)size || line[size - 2] == '\n')
		return line;
	int next = fgetc(reading->file); /* a line as long as the buffer leaves its end behind */
	if (next == '\n' || next == EOF)
		return line;
	if (!reading->failed_line) {
		reading->failed_line = reading->line;
		(void)error_set(&reading->error, -EINVAL,
				"the line has more than %d bytes; give such a setting by its flag", size - 1);
	}
	return NULL;
}

static int take_setting(void *arg, const char *section, const char *name, const char *value)
{
	struct reading *reading = arg;
	int r = 0;

	if (reading->failed_line)
		return 0;
	bool of_tenant = !strncmp(section, TENANT_SECTION, strlen(TENANT_SECTION));

	if (of_tenant)
		r = tenant_set(reading->config, section + strlen(TENANT_SECTION), name, value ? value : "",
			       &reading->error);
	else if (*section && strcmp(section, "forebayd") != 0)
		r = error_set(&reading->error, -EINVAL,
			      "section [%s] is not known; there are only [forebayd] and [tenant NAME]", section);
	if (!r && !of_tenant)
		r = config_set(reading->config, name, value ? value : "", &reading->error);
	if (r)
		reading->failed_line = reading->line;
	return !r;
}

int config_read(struct config *config, const char *path, struct error *e)
{
	struct reading reading = { .config = config, .file = fopen(path, "re") };

	if (!reading.file)
		return error_set(e, -errno, "%s: %s", path, strerror(errno));
	int bad_line = ini_parse_stream(read_line, &reading, take_setting, &reading);
	bool unread = ferror(reading.file);
	fclose(reading.file);

	if (reading.failed_line)
		return error_set(e, reading.error.code, "%s:%d: %s", path, reading.failed_line, reading.error.text);
	if (bad_line > 0)
		return error_set(e, -EINVAL, "%s:%d: not a line of the form \"name = value\"", path, bad_line);
	if (bad_line < 0 || unread)
		return error_set(e, -EIO, "%s: it could not be read", path);
	return 0;
}

/* ---- what belongs together ---------------------------------------------------------------------------------------------- */

static int check_name(const char *setting, const char *name, struct error *e)
{
	size_t len = strlen(name);
	bool good = len && len <= NAME_MAX_BYTES;

	for (size_t i = 0; good && i < len; i++)
		good = isalnum((unsigned char)name[i]) || strchr("._-", name[i]);
	if (good && name[0] != '.')
		return 0;
	return error_set(
		e, -EINVAL,
		"%s: \"%s\" is not allowed; it must be 1 to %d letters, digits, '.', '_' or '-', not beginning with '.'",
		setting, name, NAME_MAX_BYTES);
}

static int begins(const char *text, const char *prefix)
{
	return !strncmp(text, prefix, strlen(prefix)) && text[strlen(prefix)];
}

static int fill_in(struct config *config)
{
	char host[256];

	if (!*config->node) {
		if (gethostname(host, sizeof(host)))
			return -errno;
		host[sizeof(host) - 1] = 0;
		free(config->node);
		config->node = strdup(host);
	}
	if (config->node && !*config->domain) {
		free(config->domain);
		config->domain = strdup(config->node);
	}
	if (!config->workers) {
		long cores = sysconf(_SC_NPROCESSORS_ONLN);

		config->workers = cores < 2 ? 2 : cores > 16 ? 16 : (uint64_t)cores;
	}
	return config->node && config->domain ? 0 : -ENOMEM;
}

static int check_pool(const char *whose, uint64_t pool, struct error *e)
{
	if (pool >= POOL_MIN_BYTES)
		return 0;
	return error_set(e, -EINVAL, "%spool: %llu bytes are too few; at least %llu", whose, (unsigned long long)pool,
			 (unsigned long long)POOL_MIN_BYTES);
}

static int check_tenant(const struct config *config, unsigned i, struct error *e)
{
	const struct config_tenant *tenant = &config->tenants[i];
	int r = check_name("tenant", tenant->name, e);

	if (!r && !*tenant->socket)
		r = error_set(e, -EINVAL, "tenant %s: socket: a path is needed", tenant->name);
	if (!r && !strcmp(tenant->name, config->tenant))
		r = error_set(e, -EINVAL, "tenant %s: it has the socket %s already", tenant->name, config->socket);
	if (!r && !strcmp(tenant->socket, config->socket))
		r = error_set(e, -EINVAL, "tenant %s: %s is the socket of tenant %s", tenant->name, tenant->socket,
			      config->tenant);
	for (unsigned k = 0; !r && k < i; k++)
		if (!strcmp(tenant->socket, config->tenants[k].socket))
			r = error_set(e, -EINVAL, "tenant %s: %s is the socket of tenant %s", tenant->name,
				      tenant->socket, config->tenants[k].name);
	if (r)
		return r;
	char whose[NAME_MAX_BYTES + 16];
	snprintf(whose, sizeof(whose), "tenant %s: ", tenant->name);
	return check_pool(whose, tenant->pool, e);
}

int config_check(struct config *config, struct error *e)
{
	int r = fill_in(config);

	if (!r)
		r = check_name("node", config->node, e);
	if (!r)
		r = check_name("domain", config->domain, e);
	if (!r)
		r = check_name("cluster", config->cluster, e);
	if (!r)
		r = check_name("tenant", config->tenant, e);
	if (r)
		return r;
	if (!begins(config->store, "dir:"))
		return error_set(e, -EINVAL, "store: \"%s\" is not allowed; it must be dir:PATH", config->store);
	if (!begins(config->meta, "lmdb:") && !begins(config->meta, "tcp:"))
		return error_set(
			e, -EINVAL,
			"meta: \"%s\" is not allowed; it must be lmdb:PATH, or tcp:ADDRESS:PORT of the node that has it",
			config->meta);
	if (!begins(config->listen, "tcp:"))
		return error_set(e, -EINVAL, "listen: \"%s\" is not allowed; it must be tcp:ADDRESS:PORT",
				 config->listen);
	if (!*config->key && key_is_needed(config->listen))
		return error_set(
			e, -EINVAL,
			"listen: %s is not on loopback: there peers have to prove the cluster's key; set key to "
			"its file",
			config->listen);
	if (!*config->socket)
		return error_set(e, -EINVAL, "socket: a path is needed");
	r = check_pool("", config->pool, e);
	for (unsigned k = 0; !r && k < config->n_tenants; k++)
		r = check_tenant(config, k, e);
	return r;
}
