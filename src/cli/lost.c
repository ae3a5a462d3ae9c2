/*
 * cli/lost.c: see the header.
 */
#include "cli/lost.h"

#include <stdio.h>
#include <string.h>

#include "cli/text.h"

#define NS_PER_MS UINT64_C(1000000)

json_t *unheard_json(uint64_t unheard_ms)
{
	return unheard_ms == UINT64_MAX ? json_null() : json_u64(unheard_ms);
}

json_t *index_lost_json(const char *node, const char *address, uint64_t unheard_ms, const char *words)
{
	json_t *lost = json_pack("{s:s, s:s, s:s}", "node", node, "address", address, "words", words);

	json_object_set_new(lost, "unheard_ms", unheard_json(unheard_ms));
	return lost;
}

static void print_member(json_t *lost, const char *key)
{
	const char *text = json_string_value(json_object_get(lost, key));

	text_print(stdout, text ? text : "?");
}

void not_joined_print(json_t *words)
{
	const char *text = json_string_value(words);

	if (!text)
		return;
	text_print(stdout, text);
	printf(".\n");
}

static const char *without(const char *words, const char *prefix)
{
	size_t len = strlen(prefix);

	return strncmp(words, prefix, len) ? words : words + len;
}

/* The cause alone: that the engine cannot be reached, and on which node it is, the line has said. */
static void print_cause(json_t *lost, const char *node)
{
	const char *words = json_string_value(json_object_get(lost, "words"));
	char prefix[300];

	snprintf(prefix, sizeof(prefix), "node %s: ", node ? node : "");
	words = without(words ? words : "?", "the node that serves the index cannot be reached: ");
	text_print(stdout, without(words, prefix));
}

void index_lost_print(json_t *lost, const char *asked)
{
	json_t *unheard = json_object_get(lost, "unheard_ms");
	char time[TEXT_TIME_MAX];

	if (!lost)
		return;
	const char *node = json_string_value(json_object_get(lost, "node"));
	printf("the index cannot be reached: its engine is %s", node && *node ? "on node " : "at ");
	if (node && *node) {
		print_member(lost, "node");
		printf(" at ");
	}
	print_member(lost, "address");
	if (json_is_integer(unheard)) {
		text_time((uint64_t)json_integer_value(unheard) * NS_PER_MS, time);
		printf(", not heard for %s", time);
	} else {
		printf(", never heard");
	}
	printf(" (");
	print_cause(lost, node);
	printf(").\nThe nodes are those that ");
	text_print(stdout, asked);
	printf(" knows from before.\n");
}
