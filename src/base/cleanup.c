#include "base/cleanup.h"

#include <stdlib.h>
#include <string.h>

void cleanup_mem(void *p)
{
	void *mem;

	/* @p points to a pointer of any type; copied, because reading a char * as a void * breaks the aliasing rules. */
	memcpy(&mem, p, sizeof(mem));
	free(mem);
}
