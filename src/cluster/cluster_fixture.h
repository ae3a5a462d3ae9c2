/*
 * cluster/cluster_fixture.h: what the tests of calls and those of generations share: a node that says back what it hears.
 */
#pragma once

#include "cluster/cluster.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <string.h>

#include "base/check.h"
#include "cluster/bed_suite.h"
#include "cluster/inside.h"

#define MSG_ECHO MSG_G_JOIN /* any type that the cluster does not serve itself */

#define TEST(name)     cmocka_unit_test_setup_teardown(name, bed_setup, bed_teardown)
#define TEST_NEW(name) cmocka_unit_test_setup_teardown(name, bed_setup_new, bed_teardown)

static inline struct cluster *at(struct bed *bed, int i)
{
	return bed->nodes[i].cluster;
}

static inline int echo(void *arg, const char *from, struct view body, uint64_t deadline_ns, struct buf *answer,
		       struct error *e)
{
	EXPECT_INT(buf_printf(answer, "%s:", from), 0);
	EXPECT_INT(buf_append(answer, body.ptr, body.len), 0);
	return 0;
}

static inline void serve_echo(struct bed *bed, int i)
{
	cluster_serve(at(bed, i), MSG_ECHO, echo, NULL);
}

static inline void expect_echo(struct bed *bed, int from, int to, const char *text)
{
	_cleanup_(buf_fini) struct buf answer = { 0 };
	char expected[200];
	struct error e;

	snprintf(expected, sizeof(expected), "before:%s:%s", bed->nodes[from].name, text);
	EXPECT_INT(buf_append(&answer, "before:", 7), 0);
	EXPECT_CALL(cluster_call(at(bed, from), bed->nodes[to].name, MSG_ECHO, view_str(text), bed_deadline(bed),
				 &answer, &e),
		    0, &e);
	EXPECT(view_equal(view_buf(&answer), view_str(expected)));
}
