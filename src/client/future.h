/*
 * client/future.h: a future of the application, for those that hand it out.
 */
#pragma once

#include "client/session.h"

struct forebay_future {
	struct core_future core; /* to be attached; under the session's lock */
	struct forebay_session *session;
	int event; /* an eventfd from the first question for it on; else -1 */
};
struct forebay_future *future_new(struct forebay_session *session); /* under the lock; NULL: no memory */
