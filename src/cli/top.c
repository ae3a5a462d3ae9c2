/*
 * forebay top: nodes and saves as they are now, each second anew, with the rates of that second.
 *
 * A picture is a JSON object; tables are printed from it, and rates are its differences to the picture before.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/check.h"
#include "cli/command.h"
#include "cli/lost.h"
#include "cli/text.h"
#include "cli/trace.h"
#include "cli/verbs.h"

#define REFRESH_MS 1000
#define STEP_MS	   50 /* in which it looks whether it was interrupted */
#define CLEAR	   "\033[H\033[J"

static const char *const counters[] = { "captured", "copied", "uploaded", "read", NULL };

struct top {
	struct command command;
	bool once;
	json_t *before, *now; /* pictures; before: NULL at first */
	uint64_t before_ns, now_ns;
};

enum { KEY_ONCE = 'o' };

static const struct argp_option options[] = {
	{ "once", KEY_ONCE, NULL, 0, "one picture, of one second, and no more", 0 },
	{ 0 },
};

static void take_option(struct command *command, int key, char *value, struct argp_state *state)
{
	struct top *top = container_of(command, struct top, command);

	top->once = true;
}

/* ---- a picture ------------------------------------------------------------------------------------------------------- */

static void take_cluster(void *arg, const char *cluster, const char *this_node, uint32_t generation)
{
	json_t *picture = arg;

	json_object_set_new(picture, "cluster", json_string(cluster));
	json_object_set_new(picture, "node", json_string(this_node));
	json_object_set_new(picture, "generation", json_integer(generation));
}

static void take_node(void *arg, const struct forebay_node_info *node)
{
	json_t *object = json_pack("{s:s, s:b, s:b}", "name", node->name, "up", node->up, "silent", node->silent);
	const struct {
		const char *name;
		uint64_t value;
	} figures[] = {
		{ "clients", node->clients },
		{ "pool_bytes", node->pool_bytes },
		{ "pool_used_bytes", node->pool_used_bytes },
		{ "captured_bytes", node->captured_bytes },
		{ "copied_bytes", node->copied_bytes },
		{ "uploaded_bytes", node->uploaded_bytes },
		{ "clients_stopped", node->clients_stopped },
		{ "read_bytes", node->read_bytes },
		{ "incarnation", node->incarnation },
	};

	for (size_t i = 0; i < sizeof(figures) / sizeof(*figures); i++)
		json_object_set_new(object, figures[i].name, json_u64(figures[i].value));
	json_array_append_new(json_object_get(arg, "nodes"), object);
}

static void take_index_lost(void *arg, const char *node, const char *address, uint64_t unheard_ms, const char *words)
{
	json_object_set_new(arg, "index_lost", index_lost_json(node, address, unheard_ms, words));
}

static void take_not_joined(void *arg, const char *words)
{
	json_object_set_new(arg, "not_joined", json_string(words));
}

static void take_trace(void *arg, const struct forebay_trace *trace)
{
	const struct forebay_station *at = trace_last_station(trace);
	json_t *object = trace_json(trace);
	double seconds = (double)trace->took_ns / 1e9;

	json_object_set_new(object, "station", json_string(at ? at->name : ""));
	json_object_set_new(object, "station_ns", json_u64(at ? at->took_ns : 0));
	json_object_set_new(object, "bytes_per_s",
			    json_u64(seconds > 0 ? (uint64_t)((double)trace->unique_bytes / seconds) : 0));
	json_array_append_new(json_object_get(arg, "saves"), object);
}

static void take_silent(void *arg, const char *node)
{
	json_array_append_new(json_object_get(arg, "silent"), json_string(node));
}

/* NULL, and it is said why. */
static json_t *look(struct forebay_session *session)
{
	static const struct forebay_status_events events = {
		.size = sizeof(events),
		.cluster = take_cluster,
		.node = take_node,
		.index_lost = take_index_lost,
		.not_joined = take_not_joined,
	};
	json_t *picture = json_pack("{s:[], s:[], s:[]}", "nodes", "saves", "silent");
	int r = picture ? forebay_status(session, &events, picture) : -ENOMEM;

	if (r >= 0)
		r = forebay_trace(session, 0, NULL, 0, take_trace, take_silent, picture);
	if (r >= 0)
		return picture;
	json_decref(picture);
	command_fail_call(r, NULL);
	return NULL;
}

static json_t *find_node(json_t *picture, const char *name)
{
	json_t *node;
	size_t i;

	json_array_foreach(json_object_get(picture, "nodes"), i, node)
	{
		if (!strcmp(json_string_value(json_object_get(node, "name")), name))
			return node;
	}
	return NULL;
}

static uint64_t number_of(json_t *object, const char *key)
{
	json_int_t value = json_integer_value(json_object_get(object, key));

	return value > 0 ? (uint64_t)value : 0;
}

/* "captured_per_s" and the like in each node; another life of a node began at 0. */
static void add_rates(struct top *top)
{
	double seconds = (double)(top->now_ns - top->before_ns) / 1e9;
	json_t *node;
	size_t i;

	json_array_foreach(json_object_get(top->now, "nodes"), i, node)
	{
		json_t *old = find_node(top->before, json_string_value(json_object_get(node, "name")));
		bool same = number_of(old, "incarnation") == number_of(node, "incarnation");

		for (const char *const *name = counters; *name; name++) {
			char total[32], rate[32];

			snprintf(total, sizeof(total), "%s_bytes", *name);
			snprintf(rate, sizeof(rate), "%s_bytes_per_s", *name);
			uint64_t is = number_of(node, total), was = same ? number_of(old, total) : 0;
			json_object_set_new(node, rate,
					    json_u64(is > was ? (uint64_t)((double)(is - was) / seconds) : 0));
		}
	}
}

/* ---- tables ------------------------------------------------------------------------------------------------------------- */

static const char *text_of(json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text ? text : "";
}

static int print_nodes(json_t *picture)
{
	static const char *const heads[] = { "NODE",	   "STATE",    "CLIENTS",    "STOPPED", "USED", "POOL",
					     "CAPTURED/S", "COPIED/S", "UPLOADED/S", "READ/S",	NULL };
	struct table table;
	json_t *node;
	size_t i;

	table_begin(&table, "llrrrrrrrr", heads);
	json_array_foreach(json_object_get(picture, "nodes"), i, node)
	{
		table_add(&table, text_of(node, "name"));
		bool up = json_is_true(json_object_get(node, "up")),
		     silent = json_is_true(json_object_get(node, "silent"));
		table_add(&table, !up ? "down" : silent ? "silent" : "up");
		table_addf(&table, "%" PRIu64, number_of(node, "clients"));
		table_addf(&table, "%" PRIu64, number_of(node, "clients_stopped"));
		table_add_size(&table, number_of(node, "pool_used_bytes"));
		table_add_size(&table, number_of(node, "pool_bytes"));
		for (const char *const *name = counters; *name; name++) {
			char rate[32];

			snprintf(rate, sizeof(rate), "%s_bytes_per_s", *name);
			table_add_size(&table, number_of(node, rate));
		}
	}
	int r = table_print(&table);
	table_fini(&table);
	return r;
}

static void add_save(struct table *table, json_t *save)
{
	uint64_t bound_ns = number_of(save, "upload_bound_ns");
	char rate[TEXT_SIZE_MAX];

	table_add(table, text_of(save, "save"));
	table_add(table, text_of(save, "group"));
	table_add(table, text_of(save, "bundle"));
	table_addf(table, "%" PRIu64, number_of(save, "step"));
	table_add(table, text_of(save, "state"));
	table_add_size(table, number_of(save, "unique_bytes"));
	table_add_time(table, number_of(save, "took_ns"));
	text_size(number_of(save, "bytes_per_s"), rate);
	table_addf(table, "%s/s", rate);
	if (bound_ns)
		table_add_time(table, bound_ns);
	else
		table_add(table, "");
	table_add(table, text_of(save, "station"));
	table_add_time(table, number_of(save, "station_ns"));
	table_add(table, text_of(save, "slowest"));
}

static int print_saves(json_t *picture)
{
	static const char *const heads[] = { "SAVE", "GROUP", "BUNDLE",	 "STEP", "STATE",   "BYTES", "TOOK",
					     "RATE", "BOUND", "STATION", "FOR",	 "SLOWEST", NULL };
	json_t *saves = json_object_get(picture, "saves"), *save;
	struct table table;
	size_t i;

	if (!json_array_size(saves))
		return 0;
	table_begin(&table, "lllrlrrrrlrl", heads);
	json_array_foreach(saves, i, save) add_save(&table, save);
	putchar('\n');
	int r = table_print(&table);
	table_fini(&table);
	return r;
}

static int print_picture(json_t *picture)
{
	json_t *name;
	size_t i;

	printf("cluster ");
	text_print(stdout, text_of(picture, "cluster"));
	printf(", generation %" PRIu64 ", seen from ", number_of(picture, "generation"));
	text_print(stdout, text_of(picture, "node"));
	json_array_foreach(json_object_get(picture, "silent"), i, name)
	{
		printf(i ? ", " : "; no answer from ");
		text_print(stdout, json_string_value(name));
	}
	putchar('\n');
	not_joined_print(json_object_get(picture, "not_joined"));
	index_lost_print(json_object_get(picture, "index_lost"), text_of(picture, "node"));
	putchar('\n');
	int r = print_nodes(picture);
	return r ? r : print_saves(picture);
}

/* ---- each second ------------------------------------------------------------------------------------------------------- */

static void wait_a_second(void)
{
	for (int ms = 0; ms < REFRESH_MS && !command_interrupted(); ms += STEP_MS)
		nanosleep(&(struct timespec){ .tv_nsec = STEP_MS * 1000000L }, NULL);
}

static int show(struct top *top, bool first)
{
	bool clear = !top->once && !top->command.json && isatty(STDOUT_FILENO);
	int r;

	add_rates(top);
	if (clear)
		fputs(CLEAR, stdout);
	else if (!first && !top->command.json)
		putchar('\n');
	if (top->command.json && !top->once)
		r = json_dumpf(top->now, stdout, JSON_COMPACT | JSON_SORT_KEYS) || putchar('\n') < 0 ? -EIO : 0;
	else
		r = top->command.json ? json_print(top->now) : print_picture(top->now);
	if (!r && (fflush(stdout) || ferror(stdout)))
		r = -errno;
	return r ? command_fail("%s", strerror(-r)) : 0;
}

static int run(struct top *top)
{
	_cleanup_(cleanup_forebay_disconnect) struct forebay_session *session = NULL;
	int r = command_connect(&top->command, &session);

	command_catch_signals();
	for (unsigned pictures = 0; !r; pictures++) {
		if (pictures)
			wait_a_second();
		if (command_interrupted())
			break;
		json_decref(top->before);
		top->before = top->now;
		top->before_ns = top->now_ns;
		top->now = look(session);
		top->now_ns = now_ns();
		if (!top->now)
			return EXIT_FAILURE;
		if (pictures)
			r = show(top, pictures == 1);
		if (pictures && top->once)
			break;
	}
	return r;
}

int verb_top(int argc, char **argv)
{
	struct top top = {
		.command = {
			.args = "",
			.doc = "Shows nodes, their pools and what they move, and saves under way or just over, each second anew until it is "
			       "interrupted. With --json, a line each second.",
			.options = options,
			.option = take_option,
			.has_session = true,
			.has_json = true,
		},
	};

	command_parse(&top.command, argc, argv);
	int result = run(&top);
	json_decref(top.before);
	json_decref(top.now);
	return result;
}
