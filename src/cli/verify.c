/*
 * forebay verify: reads a version, or all there are, whole from the store and compares everything with its digests.
 *
 * Exit status: 0 clean, 1 damage was found (and named), 2 it could not run. Of all: the damage counts, whatever else could not run.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/command.h"
#include "cli/names.h"
#include "cli/text.h"
#include "cli/verbs.h"

enum { CLEAN = 0, DAMAGED = 1, COULD_NOT_RUN = 2 };

struct verify {
	struct command command;
	json_t *damages; /* of one version */
	bool lost;	 /* the session has ended: nothing more can be asked */
};

static void take_damage(void *arg, const struct forebay_damage *damage)
{
	struct verify *verify = arg;

	if (verify->command.json) {
		json_t *object = json_pack("{s:s, s:s, s:s}", "object", damage->object, "item", damage->item, "words",
					   damage->words);

		if (damage->block != UINT64_MAX)
			json_object_set_new(object, "block", json_u64(damage->block));
		json_array_append_new(verify->damages, object);
		return;
	}
	text_print(stdout, damage->object);
	if (*damage->item) {
		printf(": item ");
		text_print(stdout, damage->item);
	}
	if (damage->block != UINT64_MAX)
		printf(": block %" PRIu64, damage->block);
	printf(": ");
	text_print(stdout, damage->words);
	putchar('\n');
}

static json_t *json_of(const struct verify *verify, const char *bundle, uint64_t bytes)
{
	json_t *object = json_pack("{s:s, s:O}", "bundle", bundle, "damages", verify->damages);

	json_object_set_new(object, "bytes", json_u64(bytes));
	return object;
}

/* @what: the version as people name it. @ret_bytes: as far as it was read. CLEAN or DAMAGED, or a negative error that is not told yet. */
static int verify_one(struct verify *verify, struct forebay_session *session, const char *what, const char *bundle,
		      uint64_t number, uint64_t *ret_bytes)
{
	char size[TEXT_SIZE_MAX];
	int found = forebay_verify(session, bundle, number, take_damage, verify, ret_bytes);

	if (found < 0)
		return found;
	if (!verify->command.json) {
		text_size(*ret_bytes, size);
		text_print(stdout, what);
		if (found)
			printf(": %d damage%s in %s\n", found, text_s((uint64_t)found), size);
		else
			printf(": clean, %s read\n", size);
	}
	return found ? DAMAGED : CLEAN;
}

static int print_json(json_t *root)
{
	int r = json_print(root);

	if (r)
		command_fail("%s", strerror(-r));
	return r;
}

/* ---- one ------------------------------------------------------------------------------------------------------------- */

static int run_one(struct verify *verify, struct forebay_session *session, const char *text)
{
	_cleanup_(cleanup_mem) char *bundle = NULL;
	const char *version;
	uint64_t number, bytes = 0;

	if (names_split(text, &bundle, &version)) {
		command_fail("%s: not of the form BUNDLE[@VERSION]", text);
		return COULD_NOT_RUN;
	}
	if (names_resolve(session, bundle, version, &number))
		return COULD_NOT_RUN;
	int status = verify_one(verify, session, text, bundle, number, &bytes);
	if (status < 0) {
		command_fail_index(status, text);
		return COULD_NOT_RUN;
	}
	if (verify->command.json) {
		_cleanup_(cleanup_json_decref) json_t *root = json_of(verify, bundle, bytes);

		if (print_json(root))
			return COULD_NOT_RUN;
	}
	return status;
}

/* ---- all ------------------------------------------------------------------------------------------------------------- */

static int take_bundle(void *arg, const struct forebay_bundle_info *info)
{
	json_array_append_new(arg, json_string(info->name));
	return 0;
}

static int take_version(void *arg, const struct forebay_version_entry *entry)
{
	json_array_append_new(arg, json_u64(entry->number));
	return 0;
}

/* Deleted meanwhile: nothing is left that could be damaged. */
static bool is_gone(int r)
{
	return r == -ENOENT || r == -FOREBAY_EDELETED;
}

/* What it came to so far, and what it comes to with another version: damage before all else. */
static int worse(int a, int b)
{
	return a == DAMAGED || b == DAMAGED ? DAMAGED : a > b ? a : b;
}

/* Says why it could not be done, unless there is nothing left to do. */
static int could_not(struct verify *verify, int r, const char *what)
{
	if (is_gone(r))
		return CLEAN;
	verify->lost = r == -ECONNRESET || r == -ENOTCONN;
	command_fail_index(r, what);
	return COULD_NOT_RUN;
}

static int run_version(struct verify *verify, struct forebay_session *session, const char *bundle, uint64_t number,
		       json_t *told)
{
	_cleanup_(cleanup_mem) char *what = NULL;
	uint64_t bytes = 0;

	if (asprintf(&what, "%s@%" PRIu64, bundle, number) < 0) {
		what = NULL;
		command_fail("%s", strerror(ENOMEM));
		return COULD_NOT_RUN;
	}
	json_decref(verify->damages);
	verify->damages = json_array();
	int status = verify_one(verify, session, what, bundle, number, &bytes);
	if (status < 0)
		return could_not(verify, status, what);
	if (verify->command.json) {
		json_t *object = json_of(verify, bundle, bytes);

		json_object_set_new(object, "number", json_u64(number));
		json_array_append_new(told, object);
	}
	return status;
}

static int run_bundle(struct verify *verify, struct forebay_session *session, const char *bundle, json_t *told)
{
	_cleanup_(cleanup_json_decref) json_t *numbers = json_array();
	int r = forebay_list_versions(session, bundle, take_version, numbers), status = CLEAN;

	if (r < 0)
		return could_not(verify, r, bundle);
	for (size_t i = 0; i < json_array_size(numbers) && !verify->lost; i++)
		status = worse(status,
			       run_version(verify, session, bundle, json_u64_value(json_array_get(numbers, i)), told));
	return status;
}

static int run_all(struct verify *verify, struct forebay_session *session)
{
	_cleanup_(cleanup_json_decref) json_t *root = json_object(), *bundles = json_array();
	json_t *told = json_array();
	int r = forebay_list_bundles(session, "", take_bundle, bundles), status = CLEAN;

	json_object_set_new(root, "versions", told);
	if (r < 0)
		return could_not(verify, r, NULL);
	for (size_t i = 0; i < json_array_size(bundles) && !verify->lost; i++)
		status =
			worse(status, run_bundle(verify, session, json_string_value(json_array_get(bundles, i)), told));
	return verify->command.json && print_json(root) ? COULD_NOT_RUN : status;
}

int verb_verify(int argc, char **argv)
{
	struct verify verify = {
		.command = {
			.args = "[BUNDLE[@VERSION]]",
			.doc = "Reads a version whole from the store and compares every block, and every other byte, with its digest; "
			       "without an argument all versions of all bundles, one after the other.\v"
			       "Exit status: 0 clean, 1 damage was found and is named, 2 it could not run.",
			.args_max = 1,
			.has_session = true,
			.has_json = true,
		},
	};
	_cleanup_(cleanup_forebay_disconnect) struct forebay_session *session = NULL;

	command_parse(&verify.command, argc, argv);
	if (command_connect(&verify.command, &session))
		return COULD_NOT_RUN;
	verify.damages = json_array();
	int status = verify.command.n_args ? run_one(&verify, session, verify.command.arg[0]) :
					     run_all(&verify, session);
	json_decref(verify.damages);
	return status;
}
