/*
 * forebay status: what the node's daemon sees: the cluster, its nodes, the saves in flight, its counters.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/command.h"
#include "cli/lost.h"
#include "cli/text.h"
#include "cli/verbs.h"

struct status {
	json_t *root, *nodes, *saves, *counters;
	struct table node_table, save_table;
};

static void take_cluster(void *arg, const char *cluster, const char *this_node, uint32_t generation)
{
	struct status *status = arg;

	json_object_set_new(status->root, "cluster", json_string(cluster));
	json_object_set_new(status->root, "node", json_string(this_node));
	json_object_set_new(status->root, "generation", json_integer(generation));
}

static void take_index_lost(void *arg, const char *node, const char *address, uint64_t unheard_ms, const char *words)
{
	struct status *status = arg;

	json_object_set_new(status->root, "index_lost", index_lost_json(node, address, unheard_ms, words));
}

static void take_not_joined(void *arg, const char *words)
{
	struct status *status = arg;

	json_object_set_new(status->root, "not_joined", json_string(words));
}

static void take_node(void *arg, const struct forebay_node_info *node)
{
	struct status *status = arg;
	struct table *table = &status->node_table;
	json_t *object = json_pack("{s:s, s:s, s:s, s:b}", "name", node->name, "address", node->address, "domain",
				   node->domain, "up", node->up);

	json_object_set_new(object, "incarnation", json_u64(node->incarnation));
	json_object_set_new(object, "pool_bytes", json_u64(node->pool_bytes));
	json_object_set_new(object, "pool_used_bytes", json_u64(node->pool_used_bytes));
	json_object_set_new(object, "http", json_string(node->http));
	json_object_set_new(object, "clients", json_u64(node->clients));
	json_object_set_new(object, "clients_stopped", json_u64(node->clients_stopped));
	json_object_set_new(object, "captured_bytes", json_u64(node->captured_bytes));
	json_object_set_new(object, "copied_bytes", json_u64(node->copied_bytes));
	json_object_set_new(object, "uploaded_bytes", json_u64(node->uploaded_bytes));
	json_object_set_new(object, "read_bytes", json_u64(node->read_bytes));
	json_object_set_new(object, "silent", json_boolean(node->silent));
	json_object_set_new(object, "unheard_ms", unheard_json(node->unheard_ms));
	json_array_append_new(status->nodes, object);
	table_add(table, node->name);
	if (node->clients_stopped)
		table_addf(table, "up, %" PRIu32 " stopped", node->clients_stopped);
	else
		table_add(table, !node->up ? "down" : node->silent ? "silent" : "up");
	table_add(table, node->address);
	table_add(table, node->domain);
	table_add_size(table, node->pool_used_bytes);
	table_add_size(table, node->pool_bytes);
}

static void take_save(void *arg, const struct forebay_save_info *save)
{
	struct status *status = arg;
	struct table *table = &status->save_table;
	char id[20];

	snprintf(id, sizeof(id), "%016" PRIx64, save->save);
	json_t *object = json_pack("{s:s, s:s, s:s, s:s}", "save", id, "group", save->group, "bundle", save->bundle,
				   "state", save->state);
	json_object_set_new(object, "step", json_u64(save->step));
	json_object_set_new(object, "bytes", json_u64(save->bytes));
	json_array_append_new(status->saves, object);
	table_add(table, id);
	table_add(table, save->group);
	table_add(table, save->bundle);
	table_addf(table, "%" PRIu64, save->step);
	table_add(table, save->state);
	table_add_size(table, save->bytes);
}

static void take_counter(void *arg, const char *name, uint64_t value)
{
	struct status *status = arg;

	json_object_set_new(status->counters, name, json_u64(value));
}

static const char *text_of(const struct status *status, const char *key)
{
	const char *text = json_string_value(json_object_get(status->root, key));

	return text ? text : "?";
}

static int print_tables(const struct status *status)
{
	const char *name;
	json_t *value;

	printf("cluster ");
	text_print(stdout, text_of(status, "cluster"));
	printf(", generation %" JSON_INTEGER_FORMAT ", seen from ",
	       json_integer_value(json_object_get(status->root, "generation")));
	text_print(stdout, text_of(status, "node"));
	if (!json_integer_value(json_object_get(status->counters, "peers_prove_key")))
		printf("; peers are not authenticated: no key is set");
	putchar('\n');
	not_joined_print(json_object_get(status->root, "not_joined"));
	index_lost_print(json_object_get(status->root, "index_lost"), text_of(status, "node"));
	putchar('\n');
	int r = table_print(&status->node_table);
	if (!r && json_array_size(status->saves)) {
		putchar('\n');
		r = table_print(&status->save_table);
	}
	if (!r && json_object_size(status->counters))
		putchar('\n');
	json_object_foreach(status->counters, name, value)
		printf("%s %" JSON_INTEGER_FORMAT "\n", name, json_integer_value(value));
	return r;
}

static int run(const struct command *command, struct status *status)
{
	static const struct forebay_status_events events = {
		.size = sizeof(events),
		.cluster = take_cluster,
		.node = take_node,
		.save = take_save,
		.counter = take_counter,
		.index_lost = take_index_lost,
		.not_joined = take_not_joined,
	};
	_cleanup_(cleanup_forebay_disconnect) struct forebay_session *session = NULL;

	if (command_connect(command, &session))
		return EXIT_FAILURE;
	int r = forebay_status(session, &events, status);
	if (r < 0)
		return command_fail_call(r, NULL);
	r = command->json ? json_print(status->root) : print_tables(status);
	return r ? command_fail("%s", strerror(-r)) : EXIT_SUCCESS;
}

int verb_status(int argc, char **argv)
{
	static const char *const node_heads[] = { "NODE", "STATE", "ADDRESS", "DOMAIN", "USED", "POOL", NULL };
	static const char *const save_heads[] = { "SAVE", "GROUP", "BUNDLE", "STEP", "STATE", "BYTES", NULL };
	struct command command = {
		.args = "",
		.doc = "Shows the cluster as the node's daemon sees it: its nodes, the saves in flight that this node takes part in, "
		       "and the daemon's counters.",
		.has_session = true,
		.has_json = true,
	};
	struct status status = { .root = json_object(),
				 .nodes = json_array(),
				 .saves = json_array(),
				 .counters = json_object() };

	command_parse(&command, argc, argv);
	json_object_set_new(status.root, "nodes", status.nodes);
	json_object_set_new(status.root, "saves", status.saves);
	json_object_set_new(status.root, "counters", status.counters);
	table_begin(&status.node_table, "llllrr", node_heads);
	table_begin(&status.save_table, "lllrlr", save_heads);
	int result = run(&command, &status);
	table_fini(&status.node_table);
	table_fini(&status.save_table);
	json_decref(status.root);
	return result;
}
