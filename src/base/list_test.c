#include "base/list.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdint.h>

struct item {
	int number;
	struct list node;
};

static struct item items[5];

static void fill(struct list *head)
{
	list_init(head);
	for (int i = 0; i < 5; i++) {
		items[i].number = i;
		list_append(head, &items[i].node);
	}
}

static void a_list_is_walked_in_the_order_of_appending(void **state)
{
	struct list head;
	int n = 0;

	fill(&head);
	list_each(node, &head)
		assert_int_equal(list_entry(node, struct item, node)->number, n++);
	assert_int_equal(n, 5);
}

static void inserting_puts_a_node_before_another(void **state)
{
	struct list head;
	struct item extra = { .number = 9 };

	fill(&head);
	list_insert(&items[0].node, &extra.node);
	assert_ptr_equal(head.next, &extra.node);
	assert_ptr_equal(extra.node.next, &items[0].node);
}

static void the_node_at_hand_may_be_removed(void **state)
{
	struct list head;
	int left = 0;

	fill(&head);
	list_each(node, &head)
		if (list_entry(node, struct item, node)->number % 2 == 0)
			list_remove(node);
	list_each(node, &head)
		left += list_entry(node, struct item, node)->number;
	assert_int_equal(left, 1 + 3);
}

static void removing_twice_is_harmless(void **state)
{
	struct list head;

	fill(&head);
	list_remove(&items[2].node);
	list_remove(&items[2].node);
	assert_true(list_empty(&items[2].node));
	assert_ptr_equal(items[1].node.next, &items[3].node);
	assert_ptr_equal(items[3].node.prev, &items[1].node);
}

static void popping_empties_the_list_from_the_front(void **state)
{
	struct list head;

	fill(&head);
	for (int i = 0; i < 5; i++)
		assert_ptr_equal(list_pop(&head), &items[i].node);
	assert_null(list_pop(&head));
	assert_true(list_empty(&head));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_list_is_walked_in_the_order_of_appending),
		cmocka_unit_test(inserting_puts_a_node_before_another),
		cmocka_unit_test(the_node_at_hand_may_be_removed),
		cmocka_unit_test(removing_twice_is_harmless),
		cmocka_unit_test(popping_empties_the_list_from_the_front),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
