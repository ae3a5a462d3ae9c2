#include "net/refusal.h"

#include <inttypes.h>

#include "base/check.h"
#include "base/counter.h"
#include "base/log.h"
#include "env/loop.h"

#define TELL_AGAIN_MS UINT64_C(60000)

const char *const refusal_names[REFUSALS] = {
#define X(reason, name, help) [REFUSAL_##reason] = name,
	REFUSAL_TABLE(X)
#undef X
};

#define X(reason, name, help)                                                                             \
	_Static_assert((int)COUNT_REFUSED_##reason - (int)COUNT_REFUSED_GARBAGE == (int)REFUSAL_##reason, \
		       "in the order of the reasons");
REFUSAL_TABLE(X)
#undef X

void refusal_note(struct refusals *refusals, const char *at, enum refusal reason, uint64_t now_ns, const char *words)
{
	CHECK(reason < REFUSALS);
	uint64_t *told_ns = &refusals->told_ns[reason];

	refusals->counts[reason]++;
	count(COUNT_REFUSED_GARBAGE + reason, 1);
	if (*told_ns && now_ns < *told_ns + TELL_AGAIN_MS * NS_PER_MS)
		return;
	*told_ns = now_ns ? now_ns : 1;
	logm(LOG_WARN, "refused", "at=%s reason=%s times=%" PRIu64 " words=\"%s\"", at, refusal_names[reason],
	     refusals->counts[reason], words);
}
