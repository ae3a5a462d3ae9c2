/*
 * forebay why: how long a save waited and worked, station by station, which of them was the slowest, and who made it so.
 */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "cli/command.h"
#include "cli/names.h"
#include "cli/text.h"
#include "cli/trace.h"
#include "cli/verbs.h"

#define ID_DIGITS    16
#define SILENT_NAMED 8					    /* nodes; the others are counted */
#define NODE_BYTES   63					    /* of a node's name, at most */
#define SILENT_BYTES (SILENT_NAMED * (NODE_BYTES + 2) + 32) /* ", " between them; " and so many more", the final 0 */

struct why {
	struct command command;
	json_t *root, *traces, *silent;
	unsigned printed;
};

/* ---- words ----------------------------------------------------------------------------------------------------------- */

static void print_time(uint64_t ns)
{
	char text[TEXT_TIME_MAX];

	text_time(ns, text);
	fputs(text, stdout);
}

static void print_size(uint64_t bytes)
{
	char text[TEXT_SIZE_MAX];

	text_size(bytes, text);
	fputs(text, stdout);
}

static void print_head(const struct forebay_trace *trace)
{
	printf("save %016" PRIx64 ": step %" PRIu64 " of ", trace->save, trace->step);
	text_print(stdout, trace->bundle);
	printf(", group ");
	text_print(stdout, trace->group);
	printf(", %s", trace->state);
	if (trace->version)
		printf(" as version %" PRIu64, trace->version);
	printf(trace->ended ? " after " : ", under way for ");
	print_time(trace->took_ns);
	printf("\n%" PRIu32 " rank%s on %" PRIu32 " node%s, copies %" PRIu32 ", coordinated by ", trace->ranks,
	       text_s(trace->ranks), trace->nodes, text_s(trace->nodes), trace->copies);
	text_print(stdout, trace->coordinator);
	printf("; offered ");
	print_size(trace->offered_bytes);
	printf(", without replicas ");
	print_size(trace->unique_bytes);
	printf(", stored ");
	print_size(trace->stored_bytes);
	putchar('\n');
	if (*trace->words) {
		printf(trace->code ? "it failed: " : "");
		text_print(stdout, trace->words);
		putchar('\n');
	}
}

/* The bound of a station, where one is known. */
static void add_bound(struct table *table, const struct forebay_trace *trace, const struct forebay_station *station)
{
	char bound[TEXT_TIME_MAX], planned[TEXT_TIME_MAX];

	if (strcmp(station->name, "packs") != 0 || !trace->bound_ns) {
		table_add(table, "");
		return;
	}
	text_time(trace->bound_ns, bound);
	text_time(trace->planned_ns, planned);
	table_addf(table, "at least %s, planned %s", bound, planned);
}

static void add_slowest_hop(struct table *table, const struct forebay_hop *hop)
{
	char rank[32] = "";

	if (!hop) {
		table_add(table, "");
		return;
	}
	if (hop->rank != UINT32_MAX)
		snprintf(rank, sizeof(rank), ", rank %" PRIu32 " last", hop->rank);
	table_addf(table, "%s%s", hop->node, rank);
}

static int print_stations(const struct forebay_trace *trace)
{
	static const char *const heads[] = { "STATION", "AT", "TOOK", "SHARE", "SLOWEST", "BOUND", NULL };
	struct table table;

	table_begin(&table, "lrrrll", heads);
	for (size_t i = 0; i < trace->n_stations; i++) {
		const struct forebay_station *station = &trace->stations[i];

		table_add(&table, station->name);
		table_add_time(&table, station->at_ns);
		table_add_time(&table, station->took_ns);
		table_addf(&table, "%.0f %%",
			   trace->took_ns ? 100.0 * (double)station->took_ns / (double)trace->took_ns : 0.0);
		add_slowest_hop(&table, trace_slowest_hop(trace, station->name));
		add_bound(&table, trace, station);
	}
	int r = table_print(&table);
	table_fini(&table);
	return r;
}

static void add_rate(struct table *table, const struct forebay_hop *hop)
{
	char rate[TEXT_SIZE_MAX];

	if (!hop->bytes || !hop->took_ns) {
		table_add(table, "");
		return;
	}
	text_size((uint64_t)((double)hop->bytes * 1e9 / (double)hop->took_ns), rate);
	table_addf(table, "%s/s", rate);
}

/* The nodes at a station, the slowest first. */
static void add_hops(struct table *table, const struct forebay_trace *trace, const char *station)
{
	size_t n;
	const struct forebay_hop **hops = trace_hops_at(trace, station, &n);

	for (size_t i = 0; i < n; i++) {
		table_add(table, i ? "" : station);
		table_add(table, hops[i]->node);
		table_add_time(table, hops[i]->took_ns);
		table_add_size(table, hops[i]->bytes);
		add_rate(table, hops[i]);
		if (hops[i]->rank == UINT32_MAX)
			table_add(table, "");
		else
			table_addf(table, "%" PRIu32, hops[i]->rank);
	}
	free(hops);
}

static int print_hops(const struct forebay_trace *trace)
{
	static const char *const heads[] = { "STATION", "NODE", "TOOK", "BYTES", "RATE", "LAST RANK", NULL };
	struct table table;

	if (!trace->n_hops)
		return 0;
	table_begin(&table, "llrrrr", heads);
	for (size_t i = 0; i < trace->n_stations; i++)
		add_hops(&table, trace, trace->stations[i].name);
	putchar('\n');
	int r = table_print(&table);
	table_fini(&table);
	return r;
}

static void print_verdict(const struct forebay_trace *trace)
{
	const struct forebay_station *slowest = trace_slowest_station(trace);
	const struct forebay_hop *hop = slowest ? trace_slowest_hop(trace, slowest->name) : NULL;

	if (!slowest)
		return;
	printf("\nslowest: %s, ", slowest->name);
	print_time(slowest->took_ns);
	printf(" of ");
	print_time(trace->took_ns);
	if (hop) {
		printf("; node ");
		text_print(stdout, hop->node);
		printf(" took ");
		print_time(hop->took_ns);
	}
	if (hop && hop->rank != UINT32_MAX)
		printf(strcmp(slowest->name, "gather") ? ", rank %" PRIu32 " was its last" :
							 ": rank %" PRIu32 " offered last",
		       hop->rank);
	putchar('\n');
}

/* ---- what is asked --------------------------------------------------------------------------------------------------- */

static void take_trace(void *arg, const struct forebay_trace *trace)
{
	struct why *why = arg;

	json_array_append_new(why->traces, trace_json(trace));
	if (why->command.json)
		return;
	if (why->printed++)
		putchar('\n');
	print_head(trace);
	putchar('\n');
	if (print_stations(trace) || print_hops(trace))
		command_fail("%s", strerror(ENOMEM));
	print_verdict(trace);
}

static void take_silent(void *arg, const char *node)
{
	struct why *why = arg;

	json_array_append_new(why->silent, json_string(node));
}

/* 16 hexadecimal digits are the id of a save. */
static bool is_save_id(const char *text, uint64_t *ret)
{
	uint8_t raw[ID_DIGITS / 2];

	if (strlen(text) != ID_DIGITS || hex_decode(raw, sizeof(raw), text))
		return false;
	*ret = 0;
	for (size_t i = 0; i < sizeof(raw); i++)
		*ret = *ret << 8 | raw[i];
	return *ret != 0;
}

static bool is_number(const char *text, uint64_t *ret)
{
	char *end = NULL;

	errno = 0;
	*ret = text && isdigit((unsigned char)*text) ? strtoull(text, &end, 10) : 0;
	return *ret && !*end && !errno;
}

/*
 * "BUNDLE[@VERSION]" to bundle and number. A label and `latest` are opened; a number is taken as it is, so that nodes that know of it tell
 * it also when the index is away or the version deleted.
 */
static int find_version(struct forebay_session *session, const char *text, char **ret_bundle, uint64_t *ret_number)
{
	_cleanup_(cleanup_forebay_close) struct forebay_version *version = NULL;
	struct forebay_version_info info = { .size = sizeof(info) };
	const char *spec;

	if (names_split(text, ret_bundle, &spec))
		return EXIT_FAILURE;
	if (is_number(spec, ret_number))
		return 0;
	if (names_open(session, text, &version))
		return EXIT_FAILURE;
	int r = forebay_version_info(version, &info);
	if (r < 0)
		return command_fail_call(r, text);
	*ret_number = info.number;
	return 0;
}

/* "node-3, node-7" and so on, for a message; names of nodes have no strange characters. */
static void list_silent(const struct why *why, char *out, size_t size)
{
	size_t n = json_array_size(why->silent), len = 0;

	*out = 0;
	for (size_t i = 0; i < n && i < SILENT_NAMED && len < size; i++)
		len += (size_t)snprintf(out + len, size - len, "%s%s", i ? ", " : "",
					json_string_value(json_array_get(why->silent, i)));
	if (n > SILENT_NAMED && len < size)
		snprintf(out + len, size - len, " and %zu more", n - SILENT_NAMED);
}

static int say_unknown(const struct why *why, const char *what)
{
	char names[SILENT_BYTES];

	list_silent(why, names, sizeof(names));
	if (*names)
		return command_fail("%s: no node that answers knows of it; no answer from %s", what, names);
	return command_fail("%s: no node knows of it: of saves that have ended, coordinators remember the last alone",
			    what);
}

static int run(struct why *why)
{
	_cleanup_(cleanup_forebay_disconnect) struct forebay_session *session = NULL;
	_cleanup_(cleanup_mem) char *bundle = NULL;
	const char *what = why->command.arg[0];
	uint64_t save = 0, number = 0;

	if (command_connect(&why->command, &session))
		return EXIT_FAILURE;
	if (!is_save_id(what, &save) && find_version(session, what, &bundle, &number))
		return EXIT_FAILURE;
	int r = forebay_trace(session, save, bundle, number, take_trace, take_silent, why);
	if (r < 0)
		return command_fail_call(r, what);
	if (!r)
		return say_unknown(why, what);
	char names[SILENT_BYTES];
	list_silent(why, names, sizeof(names));
	if (*names && !why->command.json)
		fprintf(stderr, "no answer from %s, which may know more\n", names);
	r = why->command.json ? json_print(why->root) : 0;
	return r ? command_fail("%s", strerror(-r)) : EXIT_SUCCESS;
}

int verb_why(int argc, char **argv)
{
	struct why why = {
		.command = {
			.args = "SAVE",
			.doc = "Shows how long a save waited and worked, station by station, and which was the slowest. SAVE is the id that "
			       "`status`, the log and a save's figures have, or BUNDLE@VERSION of what it published.",
			.args_min = 1,
			.args_max = 1,
			.has_session = true,
			.has_json = true,
		},
		.root = json_object(),
		.traces = json_array(),
		.silent = json_array(),
	};

	command_parse(&why.command, argc, argv);
	json_object_set_new(why.root, "saves", why.traces);
	json_object_set_new(why.root, "silent", why.silent);
	int result = run(&why);
	json_decref(why.root);
	return result;
}
