#include "sim/strike.h"

#include "base/check.h"

static struct {
	enum strike_kind kind;
	uint64_t k, seen;
	unsigned spared; /* scopes within scopes */
	bool armed;
} strike = { .k = STRIKE_NONE };

void strike_set(enum strike_kind kind, uint64_t k)
{
	strike.kind = kind;
	strike.k = k;
	strike.seen = 0;
	strike.armed = false;
}

void strike_arm(bool on)
{
	strike.armed = on;
}

/* A place for a debugger to stop at. */
static __attribute__((noinline)) bool fall(void)
{
	__asm__ volatile("");
	return true;
}

bool strike_here(enum strike_kind kind)
{
	if (!strike.armed || strike.spared || kind != strike.kind)
		return false;
	return strike.seen++ == strike.k && fall();
}

uint64_t strike_seen(void)
{
	return strike.seen;
}

unsigned strike_spare(void)
{
	return ++strike.spared;
}

void strike_unspare(unsigned *depth)
{
	CHECK(strike.spared == *depth); /* nobody has waited in the scope */
	strike.spared--;
}
