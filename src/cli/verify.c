/*
 * forebay verify: reads a version whole from the store and compares everything with its digests.
 *
 * Exit status: 0 clean, 1 damage was found (and named), 2 it could not run.
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
	json_t *damages;
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

static int print_json(struct verify *verify, const char *bundle, uint64_t bytes)
{
	_cleanup_(cleanup_json_decref)
		json_t *root = json_pack("{s:s, s:O}", "bundle", bundle, "damages", verify->damages);

	json_object_set_new(root, "bytes", json_u64(bytes));
	return json_print(root);
}

static int run(struct verify *verify)
{
	_cleanup_(cleanup_forebay_disconnect) struct forebay_session *session = NULL;
	_cleanup_(cleanup_mem) char *bundle = NULL;
	const char *text = verify->command.arg[0], *version;
	uint64_t number, bytes = 0;
	char size[TEXT_SIZE_MAX];

	if (names_split(text, &bundle, &version)) {
		command_fail("%s: not of the form BUNDLE[@VERSION]", text);
		return COULD_NOT_RUN;
	}
	if (command_connect(&verify->command, &session) || names_resolve(session, bundle, version, &number))
		return COULD_NOT_RUN;
	int found = forebay_verify(session, bundle, number, take_damage, verify, &bytes);
	if (found < 0) {
		command_fail_index(found, text);
		return COULD_NOT_RUN;
	}
	if (verify->command.json && print_json(verify, bundle, bytes)) {
		command_fail("%s", strerror(ENOMEM));
		return COULD_NOT_RUN;
	}
	text_size(bytes, size);
	if (!verify->command.json && found)
		printf("%s: %d damage%s in %s\n", text, found, text_s((uint64_t)found), size);
	else if (!verify->command.json)
		printf("%s: clean, %s read\n", text, size);
	return found ? DAMAGED : CLEAN;
}

int verb_verify(int argc, char **argv)
{
	struct verify verify = {
		.command = {
			.args = "BUNDLE[@VERSION]",
			.doc = "Reads a version whole from the store and compares every block, and every other byte, with its digest.\v"
			       "Exit status: 0 clean, 1 damage was found and is named, 2 it could not run.",
			.args_min = 1,
			.args_max = 1,
			.has_session = true,
			.has_json = true,
		},
	};

	command_parse(&verify.command, argc, argv);
	verify.damages = json_array();
	int status = run(&verify);
	json_decref(verify.damages);
	return status;
}
