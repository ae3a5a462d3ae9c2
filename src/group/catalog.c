#include "group/catalog.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "plan/meet.h"

/*
 * While building, offers are kept in the order in which they came, each with its box, in chains per item; two open hash tables find
 * an item by its name and an item's box by its numbers.
 */
struct raw_offer {
	struct box box;
	uint64_t bytes;
	uint32_t item, rank, index;
};

struct catalog_build {
	struct raw_offer *raw;
	size_t n_raw, raw_room, items_room;
	uint32_t *by_name, *by_box; /* 1 + index; 0: free. Sizes are powers of two, at most half full */
	size_t name_slots, box_slots;
};

static void build_free(struct catalog_build *build)
{
	if (!build)
		return;
	free(build->raw);
	free(build->by_name);
	free(build->by_box);
	free(build);
}

void catalog_fini(struct catalog *catalog)
{
	build_free(catalog->build);
	free(catalog->items);
	free(catalog->uniques);
	free(catalog->offers);
	memset(catalog, 0, sizeof(*catalog));
}

int catalog_begin(struct catalog *catalog)
{
	memset(catalog, 0, sizeof(*catalog));
	catalog->build = calloc(1, sizeof(*catalog->build));
	return catalog->build ? 0 : -ENOMEM;
}

static uint64_t name_hash(const struct catalog *catalog, uint32_t item)
{
	return hash64(catalog->items[item].name.ptr, catalog->items[item].name.len, 0);
}

static uint64_t box_hash(const struct catalog *catalog, uint32_t at)
{
	const struct raw_offer *raw = &catalog->build->raw[at];
	uint64_t h = hash64(raw->box.start, raw->box.ndim * sizeof(uint64_t), raw->item);

	return hash64(raw->box.count, raw->box.ndim * sizeof(uint64_t), h);
}

/* Doubles a table when it is half full: @n entries, each hashed again by @hash. */
static int table_room(const struct catalog *catalog, uint32_t **table, size_t *slots, size_t n,
		      uint64_t (*hash)(const struct catalog *, uint32_t))
{
	if (2 * (n + 1) <= *slots)
		return 0;

	size_t more = *slots ? 2 * *slots : 64;
	uint32_t *grown = calloc(more, sizeof(*grown));
	if (!grown)
		return -ENOMEM;
	for (size_t i = 0; i < *slots; i++) {
		if (!(*table)[i])
			continue;
		size_t at = hash(catalog, (*table)[i] - 1) & (more - 1);
		while (grown[at])
			at = (at + 1) & (more - 1);
		grown[at] = (*table)[i];
	}
	free(*table);
	*table = grown;
	*slots = more;
	return 0;
}

static int array_room(void **array, size_t *room, size_t n, size_t size)
{
	if (n < *room)
		return 0;

	size_t more = *room ? 2 * *room : 64;
	void *grown = reallocarray(*array, more, size);
	if (!grown)
		return -ENOMEM;
	*array = grown;
	*room = more;
	return 0;
}

static int item_check(const struct elem_item *item, uint32_t rank, struct error *e)
{
	int name_len = (int)(item->name.len < 200 ? item->name.len : 200);
	const char *name = (const char *)item->name.ptr;

	if (!item->name.len || item->name.len > 1024 || !view_is_utf8(item->name))
		return error_set(e, -EINVAL, "rank %u: an item's name must be 1 to 1024 bytes of UTF-8, not \"%.*s\"",
				 rank, name_len, name);
	if (!item->dtype.len || item->dtype.len > 32)
		return error_set(e, -EINVAL, "rank %u: item \"%.*s\": its dtype must be a tag of 1 to 32 bytes", rank,
				 name_len, name);
	if (item->whole.ndim != item->box.ndim)
		return error_set(e, -EINVAL, "rank %u: item \"%.*s\": a box of %u dimensions in a shape of %u", rank,
				 name_len, name, item->box.ndim, item->whole.ndim);

	uint64_t bytes;
	int r = box_bytes(&item->whole, item->element_bits, &bytes);
	if (r)
		return error_set(e, r,
				 "rank %u: item \"%.*s\": its elements of %u bits do not fill whole bytes, or overflow",
				 rank, name_len, name, item->element_bits);
	if (!box_inside(&item->box, item->whole.count))
		return error_set(e, -ERANGE, "rank %u: item \"%.*s\": the box lies outside of the shape", rank,
				 name_len, name);
	return 0;
}

/* The item of that name: its index, made when it is new. */
static int find_item(struct catalog *catalog, const struct elem_item *item, uint32_t rank, uint32_t *ret, bool *ret_new)
{
	struct catalog_build *build = catalog->build;
	int r = table_room(catalog, &build->by_name, &build->name_slots, catalog->n_items, name_hash);

	if (!r)
		r = array_room((void **)&catalog->items, &build->items_room, catalog->n_items, sizeof(*catalog->items));
	if (r)
		return r;

	size_t at = hash64(item->name.ptr, item->name.len, 0) & (build->name_slots - 1);
	for (; build->by_name[at]; at = (at + 1) & (build->name_slots - 1)) {
		if (view_equal(catalog->items[build->by_name[at] - 1].name, item->name)) {
			*ret = build->by_name[at] - 1;
			*ret_new = false;
			return 0;
		}
	}
	*ret = (uint32_t)catalog->n_items;
	*ret_new = true;
	catalog->items[catalog->n_items++] = (struct catalog_item){
		.name = item->name,
		.dtype = item->dtype,
		.element_bits = item->element_bits,
		.flags = item->flags,
		.rank = rank,
		.whole = item->whole,
	};
	build->by_name[at] = (uint32_t)catalog->n_items;
	return 0;
}

static int item_fits(const struct catalog_item *known, const struct elem_item *item, uint32_t rank, struct error *e)
{
	const char *what = NULL;

	if (!view_equal(known->dtype, item->dtype) || known->element_bits != item->element_bits)
		what = "dtype";
	else if (!box_equal(&known->whole, &item->whole))
		what = "shape";
	else if (known->flags != item->flags)
		what = "flags";
	if (!what)
		return 0;
	return error_set(e, -ERR_EMISMATCH, "item \"%.*s\": its %s differs between rank %u and rank %u",
			 (int)known->name.len, known->name.ptr, what, known->rank, rank);
}

static int add_box(struct catalog *catalog, uint32_t item, const struct elem_item *elem, uint32_t rank, uint32_t index)
{
	struct catalog_build *build = catalog->build;
	int r = array_room((void **)&build->raw, &build->raw_room, build->n_raw, sizeof(*build->raw));

	if (!r)
		r = table_room(catalog, &build->by_box, &build->box_slots, build->n_raw, box_hash);
	if (r)
		return r;

	uint32_t self = (uint32_t)build->n_raw;
	struct raw_offer *raw = &build->raw[self];
	*raw = (struct raw_offer){ .box = elem->box, .item = item, .rank = rank, .index = index };
	r = box_bytes(&elem->box, elem->element_bits, &raw->bytes);
	if (r)
		return r;
	build->n_raw++;
	catalog->offered_bytes += raw->bytes;

	size_t at = box_hash(catalog, self) & (build->box_slots - 1);
	for (; build->by_box[at]; at = (at + 1) & (build->box_slots - 1)) {
		const struct raw_offer *other = &build->raw[build->by_box[at] - 1];

		if (other->item == item && box_equal(&other->box, &raw->box))
			return 0;
	}
	build->by_box[at] = self + 1;
	catalog->n_uniques++;
	catalog->unique_bytes += raw->bytes;
	return 0;
}

int catalog_add(struct catalog *catalog, uint32_t rank, struct list_view items, struct error *e)
{
	struct elem_item elem;
	int r;

	for (uint32_t index = 0; (r = elem_item_next(&items, &elem)) == 0; index++) {
		uint32_t item;
		bool is_new;

		r = item_check(&elem, rank, e);
		if (r)
			return r;
		r = find_item(catalog, &elem, rank, &item, &is_new);
		if (r)
			return r;
		const struct catalog_item *known = &catalog->items[item];
		if (!is_new && (elem.flags & known->flags & ITEM_LOWEST_WINS) && known->rank < rank)
			continue;
		r = is_new ? 0 : item_fits(known, &elem, rank, e);
		if (r)
			return r;
		if (catalog->n_items > CATALOG_ITEMS_MAX || catalog->build->n_raw >= CATALOG_BOXES_MAX)
			return error_set(e, -E2BIG, "more than %d items or %d boxes in one save", CATALOG_ITEMS_MAX,
					 CATALOG_BOXES_MAX);
		r = add_box(catalog, item, &elem, rank, index);
		if (r)
			return r;
	}
	return r == 1 ? 0 : error_set(e, r, "rank %u: its list of items is malformed", rank);
}

/* ---- finishing: sort items by name, offers by item, box and rank; then uniques are runs ---- */

static int by_name(const void *a, const void *b, void *arg)
{
	const struct catalog_item *items = arg;

	return view_compare(items[*(const uint32_t *)a].name, items[*(const uint32_t *)b].name);
}

static int box_compare(const struct box *a, const struct box *b)
{
	for (uint32_t i = 0; i < a->ndim; i++)
		if (a->start[i] != b->start[i])
			return a->start[i] < b->start[i] ? -1 : 1;
	for (uint32_t i = 0; i < a->ndim; i++)
		if (a->count[i] != b->count[i])
			return a->count[i] < b->count[i] ? -1 : 1;
	return 0;
}

static int by_item_and_box(const void *a, const void *b)
{
	const struct raw_offer *x = a, *y = b;

	if (x->item != y->item)
		return x->item < y->item ? -1 : 1;
	int c = box_compare(&x->box, &y->box);
	if (c)
		return c;
	if (x->rank != y->rank)
		return x->rank < y->rank ? -1 : 1;
	return x->index < y->index ? -1 : 1;
}

/* Renumbers items so that they are in order of their names; offers follow. */
static int sort_items(struct catalog *catalog)
{
	struct catalog_build *build = catalog->build;
	size_t n = catalog->n_items;
	uint32_t *order = calloc(n + 1, sizeof(*order)), *place = calloc(n + 1, sizeof(*place));
	struct catalog_item *sorted = calloc(n + 1, sizeof(*sorted));
	int r = order && place && sorted ? 0 : -ENOMEM;

	if (!r) {
		for (uint32_t i = 0; i < n; i++)
			order[i] = i;
		qsort_r(order, n, sizeof(*order), by_name, catalog->items);
		for (uint32_t i = 0; i < n; i++) {
			sorted[i] = catalog->items[order[i]];
			place[order[i]] = i;
		}
		for (size_t i = 0; i < build->n_raw; i++)
			build->raw[i].item = place[build->raw[i].item];
		free(catalog->items);
		catalog->items = sorted;
		sorted = NULL;
	}
	free(order);
	free(place);
	free(sorted);
	return r;
}

static int overlap_error(const struct catalog *catalog, const struct catalog_unique *a, const struct catalog_unique *b,
			 struct error *e)
{
	const struct view *name = &catalog->items[a->item].name;

	return error_set(e, -ERR_EOVERLAP,
			 "item \"%.*s\": the boxes of rank %u and rank %u overlap without being equal", (int)name->len,
			 name->ptr, catalog->offers[a->first_offer].rank, catalog->offers[b->first_offer].rank);
}

/*
 * Refuses overlaps among an item's boxes by a sweep along one dimension: sorted by start, each box is compared with those
 * before it that reach beyond its start. The dimension is the one in which the boxes have the most different starts, since a
 * sharding cuts there; then few boxes are open at once. Boxes with equal start and count in every dimension were merged. Where more
 * than a few are open all the time (a fine grid, or somebody who wants to keep this node busy), meet() finds out, which is
 * slower where few are, and never quadratic.
 */
#define OPEN_FEW 64 /* comparisons a box */

struct sweep {
	const struct catalog_unique *unique;
	uint64_t start, end;
};

static int by_start(const void *a, const void *b)
{
	const struct sweep *x = a, *y = b;

	if (x->start != y->start)
		return x->start < y->start ? -1 : 1;
	return x->unique < y->unique ? -1 : 1;
}

static size_t distinct_starts(struct sweep *sweep, const struct catalog_unique *uniques, size_t n, uint32_t dim)
{
	size_t distinct = n > 0;

	for (size_t i = 0; i < n; i++)
		sweep[i] = (struct sweep){ .unique = &uniques[i],
					   .start = uniques[i].box.start[dim],
					   .end = uniques[i].box.start[dim] + uniques[i].box.count[dim] };
	qsort(sweep, n, sizeof(*sweep), by_start);
	for (size_t i = 1; i < n; i++)
		distinct += sweep[i].start != sweep[i - 1].start;
	return distinct;
}

struct pair {
	uint32_t a, b;
};

/* Each box meets itself. */
static int note_pair(void *arg, uint32_t a, uint32_t b)
{
	struct pair *pair = arg;

	*pair = (struct pair){ a, b };
	return a != b ? -ERR_EOVERLAP : 0;
}

static int check_many(struct catalog *catalog, const struct catalog_item *item, struct error *e)
{
	const struct catalog_unique *uniques = &catalog->uniques[item->first_unique];
	const struct meet_boxes boxes = { &uniques->box, sizeof(*uniques), item->n_uniques };
	struct pair pair = { 0 };
	uint64_t left = CATALOG_STEPS_MAX > catalog->steps ? CATALOG_STEPS_MAX - catalog->steps : 0, before = left;
	int r = meet(&boxes, &boxes, &left, note_pair, &pair);

	catalog->steps += before - left;
	if (r == MEET_TOO_LONG)
		return error_set(
			e, -E2BIG,
			"item \"%.*s\": its %u boxes lie so that more than %llu steps are needed to compare them",
			(int)item->name.len, item->name.ptr, item->n_uniques, CATALOG_STEPS_MAX);
	return r == -ERR_EOVERLAP ? overlap_error(catalog, &uniques[pair.a], &uniques[pair.b], e) : r;
}

static int check_overlaps(struct catalog *catalog, const struct catalog_item *item, struct sweep *sweep,
			  struct error *e)
{
	const struct catalog_unique *uniques = &catalog->uniques[item->first_unique];
	size_t n = item->n_uniques, most = 0;
	uint64_t compared = 0;
	uint32_t best = 0;
	struct box common;

	if (n < 2)
		return 0; /* a scalar has one box */
	for (uint32_t dim = 0; dim < item->whole.ndim; dim++) {
		size_t distinct = distinct_starts(sweep, uniques, n, dim);

		if (distinct > most)
			most = distinct, best = dim;
	}
	distinct_starts(sweep, uniques, n, best);

	size_t open = 0; /* sweep[0..open) is compacted to the boxes that still reach beyond the current start */
	for (size_t i = 0; i < n; i++) {
		struct sweep current = sweep[i];
		size_t kept = 0;

		compared += open;
		if (compared > (uint64_t)OPEN_FEW * n)
			return check_many(catalog, item, e);
		for (size_t j = 0; j < open; j++) {
			if (sweep[j].end <= current.start)
				continue;
			if (box_intersect(&sweep[j].unique->box, &current.unique->box, &common))
				return overlap_error(catalog, sweep[j].unique, current.unique, e);
			sweep[kept++] = sweep[j];
		}
		sweep[kept++] = current;
		open = kept;
	}
	catalog->steps += compared;
	return 0;
}

static void collect_uniques(struct catalog *catalog)
{
	const struct catalog_build *build = catalog->build;
	size_t n = 0;

	for (size_t i = 0; i < build->n_raw; i++) {
		const struct raw_offer *raw = &build->raw[i];
		bool same = i && raw->item == raw[-1].item && box_equal(&raw->box, &raw[-1].box);

		if (!same) {
			struct catalog_item *item = &catalog->items[raw->item];

			if (!item->n_uniques++)
				item->first_unique = (uint32_t)n;
			catalog->uniques[n++] = (struct catalog_unique){ .box = raw->box,
									 .item = raw->item,
									 .bytes = raw->bytes,
									 .first_offer = (uint32_t)i };
		}
		catalog->uniques[n - 1].n_offers++;
		catalog->offers[i] = (struct catalog_offer){ .rank = raw->rank, .item = raw->index };
	}
	catalog->n_offers = build->n_raw;
	catalog->n_uniques = n;
}

int catalog_finish(struct catalog *catalog, struct error *e)
{
	struct catalog_build *build = catalog->build;
	int r = sort_items(catalog);

	if (r)
		return r;
	if (build->n_raw)
		qsort(build->raw, build->n_raw, sizeof(*build->raw), by_item_and_box);
	catalog->uniques = calloc(catalog->n_uniques + 1, sizeof(*catalog->uniques));
	catalog->offers = calloc(build->n_raw + 1, sizeof(*catalog->offers));
	struct sweep *sweep = calloc(catalog->n_uniques + 1, sizeof(*sweep));
	if (!catalog->uniques || !catalog->offers || !sweep) {
		free(sweep);
		return -ENOMEM;
	}
	collect_uniques(catalog);
	for (size_t i = 0; !r && i < catalog->n_items; i++)
		r = check_overlaps(catalog, &catalog->items[i], sweep, e);
	free(sweep);
	build_free(build);
	catalog->build = NULL;
	return r;
}
