#include "cli/command.h"

#include <ctype.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "cli/text.h"

#define OPTIONS_MAX 24
#define KEY_SOCKET  0x10000
#define KEY_JSON    0x10001

const char *command_verb = "";

static volatile sig_atomic_t interrupted;

/* ---- command line ---------------------------------------------------------------------------------------------------- */

static error_t take(int key, char *value, struct argp_state *state)
{
	struct command *command = state->input;

	switch (key) {
	case KEY_SOCKET:
		command->socket = value;
		return 0;
	case KEY_JSON:
		command->json = true;
		return 0;
	case ARGP_KEY_ARG:
		return ARGP_ERR_UNKNOWN; /* all of them come at once, as ARGP_KEY_ARGS */
	case ARGP_KEY_ARGS:
		command->arg = state->argv + state->next;
		command->n_args = state->argc - state->next;
		state->next = state->argc;
		return 0;
	case ARGP_KEY_SUCCESS:
		if (command->n_args < command->args_min)
			argp_error(state, "too few arguments; it takes %s", command->args);
		if (command->n_args > command->args_max)
			argp_error(state, "too many arguments, from \"%s\" on", command->arg[command->args_max]);
		return 0;
	default:
		if (!command->option || key >= ARGP_KEY_END)
			return ARGP_ERR_UNKNOWN;
		command->option(command, key, value, state);
		return 0;
	}
}

void command_parse(struct command *command, int argc, char **argv)
{
	static char name[64];
	struct argp_option options[OPTIONS_MAX + 1] = { 0 };
	struct argp argp = { options, take, command->args, command->doc, NULL, NULL, NULL };
	size_t n = 0;

	for (const struct argp_option *o = command->options; o && (o->name || o->doc); o++) {
		CHECK(n < OPTIONS_MAX - 2);
		options[n++] = *o;
	}
	if (command->has_json)
		options[n++] = (struct argp_option){ .name = "json",
						     .key = KEY_JSON,
						     .doc = "print JSON for programs",
						     .group = -1 };
	if (command->has_session)
		options[n++] = (struct argp_option){
			.name = "socket",
			.key = KEY_SOCKET,
			.arg = "PATH",
			.doc = "the node's daemon; default: $FOREBAY_SOCKET, else /run/forebay/socket",
			.group = -1,
		};
	snprintf(name, sizeof(name), "forebay %s", command_verb);
	argv[0] = name;
	argp_err_exit_status = COMMAND_MISUSED;
	argp_parse(&argp, argc, argv, 0, NULL, command);
}

uint64_t command_number(struct argp_state *state, const char *what, const char *text, uint64_t min, uint64_t max)
{
	char *end = NULL;

	errno = 0;
	uint64_t value = isdigit((unsigned char)*text) ? strtoull(text, &end, 10) : 0;
	if (!end || *end || errno || value < min || value > max)
		argp_error(state, "%s: \"%s\" is not allowed; it must be a number from %llu to %llu", what, text,
			   (unsigned long long)min, (unsigned long long)max);
	return value;
}

/* ---- words ----------------------------------------------------------------------------------------------------------- */

static void say(const char *format, va_list args)
{
	char *text = NULL;

	fflush(stdout); /* what was printed before comes before */
	fprintf(stderr, *command_verb ? "forebay: %s: " : "forebay: %s", command_verb);
	if (vasprintf(&text, format, args) >= 0)
		text_print(stderr, text); /* it may hold names that others chose */
	fputc('\n', stderr);
	free(text);
}

int command_fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	say(format, args);
	va_end(args);
	return EXIT_FAILURE;
}

static int fail_call(int code, const char *thing, const char *hint)
{
	const char *words = forebay_error();

	if (!*words)
		words = forebay_error_name(code);
	return command_fail("%s%s%s%s", thing ? thing : "", thing ? ": " : "", words, hint);
}

int command_fail_call(int code, const char *thing)
{
	return fail_call(code, thing, "");
}

int command_fail_index(int code, const char *thing)
{
	return fail_call(code, thing,
			 code == -EHOSTDOWN ? "; `show`, `get` and `verify` of BUNDLE@N work without it" : "");
}

/* ---- session --------------------------------------------------------------------------------------------------------- */

int command_connect(const struct command *command, struct forebay_session **ret)
{
	struct forebay_connect_options options = { .size = sizeof(options), .socket = command->socket };
	int r = forebay_connect(&options, ret);

	return r < 0 ? command_fail_call(r, NULL) : 0;
}

static void note_signal(int number)
{
	interrupted = number;
}

void command_catch_signals(void)
{
	struct sigaction action = { .sa_handler = note_signal };

	sigemptyset(&action.sa_mask);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGHUP, &action, NULL);
}

bool command_interrupted(void)
{
	return interrupted != 0;
}
