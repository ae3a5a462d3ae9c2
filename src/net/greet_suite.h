/*
 * net/greet_suite.h: the tests of greetings, as a part of net_suite.c's.
 */
#pragma once

#include "net/net_suite.h"

#define GREET_TESTS_MAX 16

size_t greet_suite_tests(struct CMUnitTest *out); /* how many */
