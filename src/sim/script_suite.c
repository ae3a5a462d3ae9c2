/*
 * sim/script_suite.c: reads scripts of faults. Whatever does not make sense is refused here, with its line, so that who plays them need not
 * look.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "sim/inside.h"
#include "sim/scenario_suite.h"

#define TEXT_MAX      16384
#define ITEM_BYTES    200000
#define POOL_BYTES    (16u << 20)
#define DEADLINE_S    60
#define DEADLINE_MOST 3600
#define STEP_MOST     99
#define MIB	      (UINT64_C(1) << 20)

static const char *const policies[POLICIES] = { "wait", "skip", "replace", "through" };

/* Arguments: n a node, r a rank, p a point (with a count), s a step, d a deed, e an end, . any word; * any number of the last. */
static const struct {
	const char *verb, *arguments;
	bool deed; /* may stand after `at` */
} verbs[] = {
	{ "at", "pd", false },	   { "save", "s", false },   { "captured", "s", false }, { "staged", "s", false },
	{ "expect", "se", false }, { "reached", "", false }, { "run", "", false },	 { "ready", "", false },
	{ "steps", "s*", false },  { "gone", "n", false },   { "load", ".*", false },	 { "kill", "o", true },
	{ "start", "n", true },	   { "stop", "n", true },    { "continue", "n", true },	 { "term", "n", true },
	{ "cut", "n", true },	   { "heal", "n", true },    { "fill", "f", true },	 { "free", "", true },
	{ "rot", "", false },	   { "stall", "n", true },
};

static int number_in(const char *word, uint64_t most, uint64_t *ret)
{
	char *end;

	if (*word < '0' || *word > '9')
		return -EINVAL;
	*ret = strtoull(word, &end, 10);
	return *end || *ret > most ? -EINVAL : 0;
}

static bool is_numbered(const char *word, char letter, unsigned below)
{
	uint64_t n;

	return word[0] == letter && strlen(word) == 2 && !number_in(word + 1, below - 1, &n);
}

static bool is_point(const char *word)
{
	char name[64];
	const char *count = strchr(word, ':');
	uint64_t n = 1;

	snprintf(name, sizeof(name), "%.*s", (int)strcspn(word, ":"), word);
	return point_find(name) >= 0 && (!count || (!number_in(count + 1, 1000, &n) && n));
}

static bool is_end(const struct script_line *line, unsigned at)
{
	static const char *const ends[] = { "durable", "skipped", "superseded", "unindexed" };

	if (line->n > at && !strcmp(line->words[at], "failed"))
		return true; /* words follow, which its error must contain */
	for (unsigned i = 0; i < ARRAY_LEN(ends); i++)
		if (line->n == at + 1 && !strcmp(line->words[at], ends[i]))
			return true;
	return false;
}

static bool fits(const struct script *script, const struct script_line *line, unsigned at, bool deed);

static bool argument_fits(const struct script *script, const struct script_line *line, unsigned at, char kind)
{
	const char *word = line->words[at];
	uint64_t step;

	switch (kind) {
	case 'n':
		return is_numbered(word, 'n', script->n_nodes);
	case 'o':
		return is_numbered(word, 'n', script->n_nodes) || is_numbered(word, 'r', script->n_ranks);
	case 'p':
		return is_point(word);
	case 's':
		return !number_in(word, STEP_MOST, &step) && step;
	case 'f':
		return !strcmp(word, "index") || is_numbered(word, 'n', script->n_nodes);
	default:
		return true;
	}
}

/* Whether the words from @at on are a verb with its arguments. */
static bool fits(const struct script *script, const struct script_line *line, unsigned at, bool deed)
{
	const char *kinds = NULL;

	for (unsigned i = 0; i < ARRAY_LEN(verbs); i++)
		if (at < line->n && !strcmp(line->words[at], verbs[i].verb) && (!deed || verbs[i].deed))
			kinds = verbs[i].arguments;
	for (at++; kinds && *kinds; at++) {
		if (*kinds == 'd')
			return fits(script, line, at, true); /* once: no deed has one */
		if (*kinds == 'e')
			return is_end(line, at);
		if (kinds[1] == '*' && at == line->n)
			return true;
		if (at >= line->n || !argument_fits(script, line, at, *kinds))
			return false;
		kinds += kinds[1] != '*';
	}
	return kinds && at == line->n;
}

/* ---- settings ---- */

static int set_ranks(struct script *script, const struct script_line *line)
{
	script->n_ranks = 0;
	for (unsigned i = 1; i < line->n; i++) {
		if (script->n_ranks == RANKS_MAX || !is_numbered(line->words[i], 'n', script->n_nodes))
			return -EINVAL;
		script->ranks[script->n_ranks++] = (unsigned)(line->words[i][1] - '0');
	}
	return script->n_ranks ? 0 : -EINVAL;
}

enum { NOT_A_SETTING = 1 };

static int set(struct script *script, const struct script_line *line)
{
	const char *name = line->words[0], *word = line->n > 1 ? line->words[1] : "";
	uint64_t n = 0;

	if (!strcmp(name, "ranks"))
		return set_ranks(script, line);
	if (!strcmp(name, "long") && line->n == 1)
		return 0; /* of no interest here */
	bool is_number = line->n == 2 && !number_in(word, UINT32_MAX, &n) && n;
	if (!strcmp(name, "nodes") && is_number && n <= NODES_MAX) {
		script->n_nodes = script->n_ranks = (unsigned)n;
		script->coordinator = n > 1;
		return 0;
	}
	if (!strcmp(name, "world") && line->n == 2) {
		script->simulated = strcmp(word, "real") != 0;
		return script->simulated && strcmp(word, "sim") != 0 ? -EINVAL : 0;
	}
	if (!strcmp(name, "coordinator") && line->n == 2 && is_numbered(word, 'n', script->n_nodes)) {
		script->coordinator = (unsigned)(word[1] - '0');
		return 0;
	}
	for (unsigned i = 0; !strcmp(name, "policy") && i < POLICIES; i++)
		if (!strcmp(word, policies[i])) {
			script->policy = (enum save_policy)i;
			return 0;
		}
	if (!strcmp(name, "copies") && is_number && n <= 3)
		script->copies = (uint32_t)n;
	else if (!strcmp(name, "bytes") && is_number)
		script->item_bytes = n;
	else if (!strcmp(name, "pool") && is_number)
		script->pool_bytes = n * MIB;
	else if (!strcmp(name, "deadline") && is_number && n <= DEADLINE_MOST)
		script->deadline_ms = n * 1000;
	else
		return NOT_A_SETTING;
	return 0;
}

/* ---- the file ---- */

static int take_line(struct script *script, char *text, unsigned number, struct error *e)
{
	struct script_line line = { .number = number };
	char *rest = text, *word;

	text[strcspn(text, "#")] = 0;
	while ((word = strsep(&rest, " \t"))) {
		if (!*word)
			continue;
		if (line.n == SCRIPT_WORDS_MAX)
			return error_set(e, -EINVAL, "%s:%u: more than %d words", script->path, number,
					 SCRIPT_WORDS_MAX);
		line.words[line.n++] = word;
	}
	if (!line.n)
		return 0;
	int r = script->n_lines ? NOT_A_SETTING : set(script, &line);
	if (r == NOT_A_SETTING)
		r = fits(script, &line, 0, false) ? 0 : -EINVAL;
	else if (!r)
		return 0;
	if (r)
		return error_set(e, r, "%s:%u: \"%s ...\" is no setting or verb with such arguments here", script->path,
				 number, line.words[0]);
	if (script->n_lines == SCRIPT_LINES_MAX)
		return error_set(e, -EINVAL, "%s: more than %d lines", script->path, SCRIPT_LINES_MAX);
	script->lines[script->n_lines++] = line;
	return 0;
}

int script_read(const char *path, struct script *ret, struct error *e)
{
	FILE *file = fopen(path, "r");
	unsigned number = 0;
	int r = 0;

	*ret = (struct script){ .path = path,
				.simulated = true,
				.n_nodes = 3,
				.n_ranks = 3,
				.ranks = { 0, 1, 2, 3 },
				.coordinator = 1,
				.copies = 1,
				.item_bytes = ITEM_BYTES,
				.pool_bytes = POOL_BYTES,
				.deadline_ms = DEADLINE_S * 1000 };
	if (!file)
		return error_set(e, -errno, "%s: %s", path, strerror(errno));
	ret->text = must_alloc(TEXT_MAX);
	size_t n = fread(ret->text, 1, TEXT_MAX - 1, file);
	fclose(file);
	if (n == TEXT_MAX - 1)
		return error_set(e, -EINVAL, "%s: over %d bytes", path, TEXT_MAX - 1);
	for (char *rest = ret->text, *line; !r && (line = strsep(&rest, "\n"));)
		r = take_line(ret, line, ++number, e);
	if (!r && !ret->n_lines)
		r = error_set(e, -EINVAL, "%s: nothing happens in it", path);
	return r;
}

bool script_read_or_say(const char *path, struct script *ret)
{
	struct error e = { 0 };

	if (!script_read(path, ret, &e))
		return true;
	fprintf(stderr, "forebay-sim: %s\n", e.text);
	script_fini(ret);
	return false;
}

void script_fini(struct script *script)
{
	free(script->text);
	script->text = NULL;
}
