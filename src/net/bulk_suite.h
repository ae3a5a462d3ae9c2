/*
 * net/bulk_suite.h: the transport's suite, bulk; net_suite_run() runs it after the control frames.
 */
#pragma once

#include "net/bed_suite.h"

#define BULK_TESTS_MAX 32

size_t bulk_suite_tests(struct CMUnitTest *out); /* fills in up to BULK_TESTS_MAX: how many */
