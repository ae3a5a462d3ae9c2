/*
 * cli/fetch.h: reads items of a version in batches of bounded memory: while one is handed over, the next is on its way.
 *
 * Items are dealt to *lanes*, threads that each read and hand over one item after the other: a file system lets one thread at a time
 * write to a file, and one thread is slower than the daemon. With one lane all items come in order, from the caller's thread.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "forebay/forebay.h"

#define FETCH_LANES 4 /* at most */
#define FETCH_BATCH_BYTES \
	(UINT64_C(16) << 20) /* two of them a lane; more only for one item with elements that are no whole bytes */

struct fetch_item {
	const char *name, *dtype;
	uint32_t element_bits, ndim;
	uint64_t shape[8], bytes;
};

/*
 * Takes @len bytes at @offset of item number @item. Within an item offsets rise, and all comes from the same lane; an item without
 * bytes comes once with none. Lanes run at the same time. 0 goes on.
 */
typedef int (*fetch_sink)(void *arg, unsigned lane, size_t item, uint64_t offset, const uint8_t *data, size_t len,
			  struct error *e);

/* 0; what @sink returned first; or why the load failed. -ECANCELED: command_interrupted(). @lanes: 1 to FETCH_LANES. */
int fetch(struct forebay_version *version, const struct fetch_item *items, size_t n, unsigned lanes, fetch_sink sink,
	  void *arg, struct error *e);

/* All items of the version, in byte order of their names. Their strings are copies. */
struct fetch_list {
	struct fetch_item *items;
	size_t n, cap;
};
int fetch_list_read(struct forebay_version *version, struct fetch_list *ret, struct error *e);
void fetch_list_fini(struct fetch_list *list);
/* Keeps what @keep says, in the same order. */
void fetch_list_filter(struct fetch_list *list, int (*keep)(void *arg, const struct fetch_item *item), void *arg);
