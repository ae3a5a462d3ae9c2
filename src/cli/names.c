#include "cli/names.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "cli/command.h"

int names_split(const char *text, char **ret_bundle, const char **ret_version)
{
	const char *at = strrchr(text, '@');
	size_t len = at ? (size_t)(at - text) : strlen(text);

	if (!len || (at && !at[1]))
		return -EINVAL;
	char *bundle = strndup(text, len);
	if (!bundle)
		return -ENOMEM;
	*ret_bundle = bundle;
	*ret_version = at ? at + 1 : NULL;
	return 0;
}

int names_open(struct forebay_session *session, const char *text, struct forebay_version **ret)
{
	_cleanup_(cleanup_mem) char *bundle = NULL;
	const char *version;

	if (names_split(text, &bundle, &version))
		return command_fail("%s: not of the form BUNDLE[@VERSION]", text);
	int r = forebay_open(session, NULL, bundle, version, ret);
	return r < 0 ? command_fail_call(r, text) : 0;
}

bool names_is_number(const char *text, uint64_t *ret)
{
	char *end = NULL;

	errno = 0;
	uint64_t value = isdigit((unsigned char)*text) ? strtoull(text, &end, 10) : 0;
	if (!end || *end || errno || !value)
		return false;
	*ret = value;
	return true;
}

struct search {
	const char *label;
	uint64_t number;
};

static int compare_label(void *arg, const char *label, uint64_t number)
{
	struct search *search = arg;

	if (strcmp(label, search->label) != 0)
		return 0;
	search->number = number;
	return 1;
}

int names_resolve(struct forebay_session *session, const char *bundle, const char *version, uint64_t *ret)
{
	struct search search = { .label = version };
	uint64_t number = 0;

	if (!version || !strcmp(version, "latest") || names_is_number(version, &number)) {
		*ret = number;
		return 0;
	}
	int r = forebay_list_labels(session, bundle, compare_label, &search);
	if (r < 0)
		return command_fail_index(r, bundle);
	if (!search.number)
		return command_fail("%s@%s: there is no such label", bundle, version);
	*ret = search.number;
	return 0;
}

bool names_is_internal(const char *item)
{
	return item[0] == '~' && item[1] != '=';
}

const char *names_of_item(const char *item)
{
	return item[0] == '~' && item[1] == '=' ? item + NAMES_PREFIX_BYTES : item;
}

char *names_to_item(const char *name)
{
	bool prefixed = !*name || *name == '~';
	size_t len = strlen(name), skip = prefixed ? NAMES_PREFIX_BYTES : 0;
	char *item = malloc(skip + len + 1);

	if (!item)
		return NULL;
	memcpy(item, "~=", skip);
	memcpy(item + skip, name, len + 1);
	return item;
}

bool names_is_path(const char *name)
{
	for (const char *part = name;; part++) {
		size_t len = strcspn(part, "/");
		bool dots = (len == 1 && part[0] == '.') || (len == 2 && part[0] == '.' && part[1] == '.');

		if (!len || dots || len > NAMES_PART_MAX)
			return false;
		part += len;
		if (!*part)
			return true;
	}
}

void names_to_file(const char *name, char *out, size_t size)
{
	size_t n = 0;

	for (; *name && n + 1 < size; name++)
		out[n++] = isalnum((unsigned char)*name) || strchr("._-", *name) ? *name : '_';
	out[n] = 0;
}
