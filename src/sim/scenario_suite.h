/*
 * sim/scenario_suite.h: scripts of faults, test/scenarios/NAME.scn, played in the simulated world under many seeds. The same files are
 * played on real daemons by test/test_scenarios.py; test/scenarios/README.md has their grammar.
 */
#pragma once

#include "sim/history_suite.h"

#define SCRIPT_LINES_MAX 64
#define SCRIPT_WORDS_MAX 16

struct script_line {
	unsigned number; /* in its file */
	unsigned n;
	char *words[SCRIPT_WORDS_MAX + 1]; /* NULL behind the last */
};

struct script {
	const char *path;
	char *text; /* the words lie here */
	bool simulated;
	unsigned n_nodes, n_ranks, coordinator;
	unsigned ranks[RANKS_MAX]; /* the node of each */
	uint32_t copies;
	enum save_policy policy;
	uint64_t item_bytes, pool_bytes, deadline_ms;
	struct script_line lines[SCRIPT_LINES_MAX];
	unsigned n_lines;
};

/* Reads and checks a file: 0, or -EINVAL with line and cause in words, or why it cannot be read. script_fini() it in any case. */
int script_read(const char *path, struct script *ret, struct error *e);
bool script_read_or_say(const char *path, struct script *ret); /* says on stderr why not; nothing is to be freed then */
void script_fini(struct script *script);
/* Plays it once: 0, or what is wrong, also in @ret_failure. *ret_took_ns: from the last deed to the last end that was expected. */
int scenario_run(const struct script *script, uint64_t seed, FILE *story, struct coverage *coverage, uint64_t *ret_hash,
		 uint64_t *ret_took_ns, char ret_failure[512]);
