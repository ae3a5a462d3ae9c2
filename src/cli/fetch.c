#include "cli/fetch.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/bytes.h"
#include "base/check.h"
#include "cli/command.h"
#include "cli/cut.h"

#define BATCH_BOXES 4096
#define PAGE_ITEMS  512 /* of the item list, asked for at a time */
#define ALIGN_BYTES 64
#define WAIT_MS	    200 /* between looks at command_interrupted() */

struct box {
	size_t item;
	struct cut_box cut;
	size_t at; /* in the batch's memory */
};

struct batch {
	uint8_t *data;
	size_t cap, used;
	struct box *boxes;
	size_t n;
	struct forebay_load *load;
	struct forebay_future *future;
};

/* What the lanes of one fetch() share. */
struct walk {
	struct forebay_version *version;
	const struct fetch_item *items;
	size_t n;
	fetch_sink sink;
	void *arg;
	atomic_size_t next;  /* the first item that no lane has taken */
	atomic_bool stopped; /* a lane has failed */
};

struct lane {
	struct walk *walk;
	unsigned number;
	pthread_t thread;
	struct batch batches[2];
	size_t item; /* that it walks through */
	struct cut cut;
	struct cut_box box;
	bool has_item, has_box; /* box: cut, but not yet in a batch */
	int result;
	struct error error;
};

/* ---- batches --------------------------------------------------------------------------------------------------------- */

static void batch_end(struct batch *batch)
{
	forebay_load_free(batch->load); /* cancels; the memory is not touched after it */
	forebay_future_free(batch->future);
	batch->load = NULL;
	batch->future = NULL;
	batch->used = batch->n = 0;
}

static void batch_fini(struct batch *batch)
{
	batch_end(batch);
	if (batch->data)
		munmap(batch->data, batch->cap);
	free(batch->boxes);
}

static int batch_room(struct batch *batch, size_t bytes)
{
	if (batch->cap >= bytes)
		return 0;
	if (batch->data)
		munmap(batch->data, batch->cap);
	batch->cap = 0;
	batch->data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (batch->data == MAP_FAILED) {
		batch->data = NULL;
		return -ENOMEM;
	}
	(void)madvise(batch->data, bytes, MADV_HUGEPAGE); /* a fault for 2 MiB instead of 512 */
	batch->cap = bytes;
	return 0;
}

static int batch_init(struct batch *batch)
{
	*batch = (struct batch){ .boxes = calloc(BATCH_BOXES, sizeof(*batch->boxes)) };
	return batch->boxes ? batch_room(batch, FETCH_BATCH_BYTES) : -ENOMEM;
}

/* ---- lanes ----------------------------------------------------------------------------------------------------------- */

static bool lane_take_item(struct lane *lane)
{
	size_t i = atomic_fetch_add(&lane->walk->next, 1);
	const struct fetch_item *item = &lane->walk->items[i];

	if (i >= lane->walk->n)
		return false;
	lane->item = i;
	cut_init(&lane->cut, item->ndim, item->shape, item->element_bits, item->bytes, FETCH_BATCH_BYTES);
	return true;
}

static bool lane_peek(struct lane *lane)
{
	while (!lane->has_box) {
		if (!lane->has_item && !lane_take_item(lane))
			return false;
		lane->has_box = lane->has_item = cut_next(&lane->cut, &lane->box);
	}
	return true;
}

/* Takes boxes as long as they fit. */
static int batch_fill(struct batch *batch, struct lane *lane)
{
	while (batch->n < BATCH_BOXES && lane_peek(lane)) {
		struct cut_box *box = &lane->box;
		size_t at = (batch->used + ALIGN_BYTES - 1) & ~(size_t)(ALIGN_BYTES - 1);

		if (at + box->bytes > batch->cap) {
			if (batch->n)
				break;
			int r = batch_room(batch, box->bytes);
			if (r)
				return r;
		}
		batch->boxes[batch->n++] = (struct box){ lane->item, *box, at };
		batch->used = at + box->bytes;
		lane->has_box = false;
	}
	return 0;
}

static int library_error(int r, const char *name, struct error *e)
{
	const char *words = forebay_error();

	words = *words ? words : forebay_error_name(r);
	return name ? error_set(e, r, "%s: %s", name, words) : error_set(e, r, "%s", words);
}

static int batch_submit(struct batch *batch, const struct walk *walk, struct error *e)
{
	int r = batch->used ? forebay_load_begin(walk->version, NULL, &batch->load) : 0;

	if (r < 0)
		return library_error(r, NULL, e);
	for (size_t i = 0; i < batch->n; i++) {
		const struct box *box = &batch->boxes[i];
		const struct fetch_item *item = &walk->items[box->item];
		struct forebay_target target = { .size = sizeof(target),
						 .name = item->name,
						 .dtype = item->dtype,
						 .element_bits = item->element_bits,
						 .ndim = item->ndim,
						 .shape = item->shape,
						 .start = box->cut.start,
						 .count = box->cut.count,
						 .data = batch->data + box->at };

		if (!box->cut.bytes)
			continue;
		r = forebay_load_into(batch->load, &target, 1);
		if (r < 0)
			return library_error(r, item->name, e);
	}
	r = batch->load ? forebay_load_submit(batch->load, &batch->future) : 0;
	return r < 0 ? library_error(r, NULL, e) : 0;
}

static int batch_wait(struct batch *batch, const struct walk *walk, struct error *e)
{
	int r;

	if (!batch->future)
		return 0; /* nothing but items without bytes */
	while ((r = forebay_wait(batch->future, WAIT_MS)) == -ETIMEDOUT && !command_interrupted() && !walk->stopped)
		;
	if (command_interrupted() || r == -ETIMEDOUT)
		return error_set(e, -ECANCELED, "interrupted");
	if (r < 0)
		return error_set(e, r, "%s", forebay_future_error(batch->future));
	return 0;
}

static int batch_hand_over(const struct batch *batch, const struct lane *lane, struct error *e)
{
	const struct walk *walk = lane->walk;

	for (size_t i = 0; i < batch->n; i++) {
		const struct box *box = &batch->boxes[i];
		int r = walk->sink(walk->arg, lane->number, box->item, box->cut.offset, batch->data + box->at,
				   box->cut.bytes, e);

		if (r)
			return r;
	}
	return 0;
}

static int lane_start_next(struct lane *lane, struct batch *batch, struct error *e)
{
	int r = batch_fill(batch, lane);

	if (r)
		return error_set(e, r, "no memory for a batch");
	return batch->n ? batch_submit(batch, lane->walk, e) : 0;
}

static int lane_walk(struct lane *lane, struct error *e)
{
	struct batch *batches = lane->batches;
	int now = 0, r = batch_init(&batches[0]);

	if (!r)
		r = batch_init(&batches[1]);
	if (r)
		return error_set(e, r, "no memory for a batch");
	r = lane_start_next(lane, &batches[now], e);
	for (; !r && batches[now].n && !lane->walk->stopped; now = !now) {
		r = lane_start_next(lane, &batches[!now], e);
		if (!r)
			r = batch_wait(&batches[now], lane->walk, e);
		if (!r)
			r = batch_hand_over(&batches[now], lane, e);
		batch_end(&batches[now]);
	}
	return r;
}

static void *lane_run(void *arg)
{
	struct lane *lane = arg;

	lane->result = lane_walk(lane, &lane->error);
	if (lane->result && atomic_exchange(&lane->walk->stopped, true))
		lane->result = 0; /* another one failed before; that is what is told */
	batch_fini(&lane->batches[0]);
	batch_fini(&lane->batches[1]);
	return NULL;
}

/* ---- the walk -------------------------------------------------------------------------------------------------------- */

int fetch(struct forebay_version *version, const struct fetch_item *items, size_t n, unsigned lanes, fetch_sink sink,
	  void *arg, struct error *e)
{
	struct walk walk = { .version = version, .items = items, .n = n, .sink = sink, .arg = arg };
	struct lane all[FETCH_LANES] = { 0 };
	unsigned started = 0;
	int r = 0;

	CHECK(lanes && lanes <= FETCH_LANES);
	for (unsigned i = 0; i < lanes; i++)
		all[i] = (struct lane){ .walk = &walk, .number = i };
	while (started + 1 < lanes && started + 1 < n) {
		if (pthread_create(&all[started + 1].thread, NULL, lane_run, &all[started + 1]))
			break; /* fewer do it, too */
		started++;
	}
	lane_run(&all[0]);
	for (unsigned i = 0; i <= started; i++) {
		if (i)
			pthread_join(all[i].thread, NULL);
		if (!all[i].result)
			continue;
		r = all[i].result;
		*e = all[i].error;
	}
	return r;
}

/* ---- the list -------------------------------------------------------------------------------------------------------- */

static int list_add(struct fetch_list *list, const struct forebay_item_info *info)
{
	if (list->n == list->cap) {
		size_t cap = list->cap ? 2 * list->cap : 256;
		struct fetch_item *items = reallocarray(list->items, cap, sizeof(*items));

		if (!items)
			return -ENOMEM;
		list->items = items;
		list->cap = cap;
	}
	struct fetch_item *item = &list->items[list->n];
	*item = (struct fetch_item){ .name = strdup(info->name),
				     .dtype = strdup(info->dtype),
				     .element_bits = info->element_bits,
				     .ndim = info->ndim,
				     .bytes = info->bytes };
	memcpy(item->shape, info->shape, sizeof(item->shape));
	list->n++;
	return item->name && item->dtype ? 0 : -ENOMEM;
}

int fetch_list_read(struct forebay_version *version, struct fetch_list *ret, struct error *e)
{
	_cleanup_(cleanup_mem) struct forebay_item_info *page = calloc(PAGE_ITEMS, sizeof(*page));
	struct fetch_list list = { 0 };
	size_t n = PAGE_ITEMS;
	int r = page ? 0 : -ENOMEM;

	while (!r && n == PAGE_ITEMS) {
		const char *after = list.n ? list.items[list.n - 1].name : NULL;

		for (size_t i = 0; i < PAGE_ITEMS; i++)
			page[i].size = sizeof(*page);
		r = forebay_version_items(version, after, page, PAGE_ITEMS, &n);
		if (r < 0)
			(void)library_error(r, NULL, e);
		for (size_t i = 0; r >= 0 && i < n; i++)
			r = list_add(&list, &page[i]);
		r = r < 0 ? r : 0;
	}
	if (r) {
		fetch_list_fini(&list);
		return e->code ? r : error_set(e, r, "no memory for the list of items");
	}
	*ret = list;
	return 0;
}

static void item_fini(struct fetch_item *item)
{
	free((char *)item->name);
	free((char *)item->dtype);
}

void fetch_list_fini(struct fetch_list *list)
{
	for (size_t i = 0; i < list->n; i++)
		item_fini(&list->items[i]);
	free(list->items);
	*list = (struct fetch_list){ 0 };
}

void fetch_list_filter(struct fetch_list *list, int (*keep)(void *arg, const struct fetch_item *item), void *arg)
{
	size_t n = 0;

	for (size_t i = 0; i < list->n; i++) {
		if (keep(arg, &list->items[i]))
			list->items[n++] = list->items[i];
		else
			item_fini(&list->items[i]);
	}
	list->n = n;
}
