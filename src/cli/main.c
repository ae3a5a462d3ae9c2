/*
 * forebay: the command line. Finds the verb and hands over; each verb is a file of its own.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/log.h"
#include "cli/command.h"
#include "cli/verbs.h"

#define PROGRAM_VERSION "0.1.0"

static const struct verb {
	const char *name, *summary;
	int (*run)(int argc, char **argv);
} verbs[] = {
#define X(name, summary) { #name, summary, verb_##name },
	VERB_TABLE(X)
#undef X
};

static void print_help(FILE *out)
{
	fprintf(out, "Usage: forebay VERB [OPTION...] [ARGUMENT...]\n\n");
	for (size_t i = 0; i < ARRAY_LEN(verbs); i++)
		fprintf(out, "  %-8s %s\n", verbs[i].name, verbs[i].summary);
	fprintf(out, "\n`forebay VERB --help` says more; so does the manual page forebay-VERB(1).\n");
}

static const struct verb *find_verb(const char *name)
{
	for (size_t i = 0; i < ARRAY_LEN(verbs); i++) {
		if (!strcmp(verbs[i].name, name))
			return &verbs[i];
	}
	return NULL;
}

/* What was printed may still fail to arrive, on a full disk for example. */
static int close_output(int status)
{
	bool bad = ferror(stdout);

	if (fclose(stdout) || bad)
		return command_fail("standard output: %s", strerror(errno));
	return status;
}

int main(int argc, char **argv)
{
	const char *word = argc > 1 ? argv[1] : "";
	const struct verb *verb = find_verb(word);

	if (log_guard())
		return EXIT_FAILURE;
	setvbuf(stderr, NULL, _IOLBF, BUFSIZ); /* a line in one write: others may write to it, too */
	if (verb) {
		command_verb = verb->name;
		return close_output(verb->run(argc - 1, argv + 1));
	}
	if (!strcmp(word, "--help") || !strcmp(word, "-?") || !strcmp(word, "help")) {
		print_help(stdout);
		return close_output(EXIT_SUCCESS);
	}
	if (!strcmp(word, "--version") || !strcmp(word, "-V")) {
		printf("forebay %s, ABI %d\n", PROGRAM_VERSION, forebay_abi());
		return close_output(EXIT_SUCCESS);
	}
	if (*word)
		command_fail("there is no verb \"%s\"", word);
	print_help(stderr);
	return COMMAND_MISUSED;
}
