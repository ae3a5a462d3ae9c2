#include "base/point.h"

#include <stddef.h>
#include <string.h>

static void (*listener)(enum point point);

static const char *const names[] = {
#define X(name, text) text,
	POINT_TABLE(X)
#undef X
};

const char *point_name(enum point point)
{
	return (unsigned)point < POINTS ? names[point] : "?";
}

int point_find(const char *name)
{
	for (int i = 0; i < POINTS; i++)
		if (!strcmp(names[i], name))
			return i;
	return -1;
}

void point_listen(void (*reached)(enum point point))
{
	listener = reached;
}

void point_reached(enum point point)
{
	if (listener)
		listener(point);
}
