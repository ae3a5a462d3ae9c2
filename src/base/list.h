/*
 * base/list.h: intrusive doubly linked ring. An initialised node is its own neighbour, so removing twice is harmless.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/check.h"

struct list {
	struct list *prev, *next;
};

static inline void list_init(struct list *l)
{
	l->prev = l->next = l;
}

static inline bool list_empty(const struct list *l)
{
	return l->next == l;
}

/* Puts @node before @at: at a head this appends. */
static inline void list_insert(struct list *at, struct list *node)
{
	node->prev = at->prev;
	node->next = at;
	at->prev->next = node;
	at->prev = node;
}

static inline void list_append(struct list *head, struct list *node)
{
	list_insert(head, node);
}

static inline void list_remove(struct list *node)
{
	node->prev->next = node->next;
	node->next->prev = node->prev;
	list_init(node);
}

/* The first member, removed, or NULL. */
static inline struct list *list_pop(struct list *head)
{
	struct list *node = head->next;

	if (node == head)
		return NULL;
	list_remove(node);
	return node;
}

#define list_entry(node, type, member) container_of(node, type, member)

/* The body may remove the current node. */
#define list_each(node, head)                                                              \
	for (struct list *node = (head)->next, *_next_##node = node->next; node != (head); \
	     node = _next_##node, _next_##node = node->next)
