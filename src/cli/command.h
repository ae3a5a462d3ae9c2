/*
 * cli/command.h: what all verbs share: options and arguments, a session with the node's daemon, and words for failures.
 *
 * A verb is a function of argc and argv that returns the exit status: EXIT_SUCCESS, EXIT_FAILURE (1) after it has said why, or
 * COMMAND_MISUSED. It describes its command line in a struct command and begins with command_parse(). Everything that it says
 * about failures goes through command_fail(), one line on standard error: "forebay: put: PATH: what happened".
 */
#pragma once

#include <argp.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/cleanup.h"
#include "forebay/forebay.h"

enum {
	COMMAND_MISUSED = 2, /* exit status when the command line makes no sense */
};

struct command {
	const char *args;		   /* of the usage line, e.g. "BUNDLE[@VERSION] DIR" */
	const char *doc;		   /* what it does; what follows a '\v' comes behind the options */
	const struct argp_option *options; /* own ones, the last one all zero; NULL: none */
	/* Takes one of them; may call argp_error(). Its int argument options go through command_number(). */
	void (*option)(struct command *command, int key, char *value, struct argp_state *state);
	int args_min, args_max; /* of arguments that are no options; args_max 0 with args "": none */
	bool has_session, has_json;

	/* Set by command_parse(). */
	const char *socket; /* NULL: the library's default */
	bool json;
	char **arg;
	int n_args;
};

/* Reads the command line. Help and misuse do not return: they exit with 0 and COMMAND_MISUSED. */
void command_parse(struct command *command, int argc, char **argv);
/* A decimal number in [min, max], or argp_error() naming @what. */
uint64_t command_number(struct argp_state *state, const char *what, const char *text, uint64_t min, uint64_t max);

/* The verb's name in messages; main() sets it. */
extern const char *command_verb;
/* Says why on standard error. Returns EXIT_FAILURE, so that `return command_fail(...)` reads well. */
int command_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same for a library call that failed with @code on @thing (NULL: none): in the library's words. */
int command_fail_call(int code, const char *thing);
/* And for a call that the index alone can answer: if its node is away, what works all the same. */
int command_fail_index(int code, const char *thing);

/* 0, or EXIT_FAILURE and it is said why. */
int command_connect(const struct command *command, struct forebay_session **ret);
CLEANUP_OF(struct forebay_session *, forebay_disconnect);
CLEANUP_OF(struct forebay_version *, forebay_close);
CLEANUP_OF(struct forebay_group *, forebay_group_leave);
CLEANUP_OF(struct forebay_save *, forebay_save_free);
CLEANUP_OF(struct forebay_load *, forebay_load_free);
CLEANUP_OF(struct forebay_future *, forebay_future_free);

/* From here on SIGINT, SIGTERM and SIGHUP only set what command_interrupted() tells, so that a verb can clean up. */
void command_catch_signals(void);
bool command_interrupted(void);
