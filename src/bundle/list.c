/*
 * bundle/list.c: what there is, read from the index, after what others left behind was mended.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "bundle/inside.h"

enum { PAGE_FULL = 1 }; /* of the collectors: there is one more */

/* An array that collects entries of @size bytes, at most @limit. */
struct page {
	uint8_t *entries;
	size_t n, size, limit;
	size_t prefix; /* bytes of a row's key before the name */
	struct error *e;
};

/* A zeroed entry at the end; NULL: no memory. */
static void *page_add(struct page *page)
{
	if (!(page->n & (page->n - 1))) {
		uint8_t *more = reallocarray(page->entries, page->n ? 2 * page->n : 1, page->size);

		if (!more)
			return NULL;
		page->entries = more;
	}
	void *entry = page->entries + page->n++ * page->size;
	return memset(entry, 0, page->size);
}

/* ---- bundles ---- */

void bundle_entries_free(struct bundle_entry *entries, size_t n)
{
	for (size_t i = 0; i < n; i++)
		free(entries[i].name);
	free(entries);
}

static int collect_bundle(void *arg, struct view key, struct view value)
{
	struct page *page = arg;
	struct row_bundle row;

	if (row_bundle_decode(value, &row) != 0)
		return row_damaged(page->e, "a bundle");
	if (!row.n_versions)
		return 0; /* slots alone, or all deleted */
	if (page->n == page->limit)
		return PAGE_FULL;
	view_take(&key, page->prefix);
	struct bundle_entry *entry = page_add(page);
	if (!entry)
		return no_memory(page->e);
	*entry = (struct bundle_entry){ .name = view_dup(key),
					.n_versions = row.n_versions,
					.latest = row.latest,
					.keep_last = row.keep_last,
					.keep_every = row.keep_every };
	return entry->name ? 0 : no_memory(page->e);
}

int bundle_list(struct bundles *bundles, struct view tenant, struct view prefix, struct view after, uint32_t limit,
		uint64_t deadline_ns, struct bundle_entry **ret, size_t *ret_n, bool *ret_more, struct error *e)
{
	CHECK_MAGIC(bundles, BUNDLES_MAGIC);
	struct page page = { .size = sizeof(struct bundle_entry), .limit = limit, .e = e };
	struct place place;

	int r = place_init(tenant, view_str("-"), &place, e); /* checks the tenant's name */
	if (r)
		return r;
	if (prefix.len > BUNDLE_NAME_MAX || after.len > BUNDLE_NAME_MAX)
		return error_set(e, -EINVAL, "a bundle's name has at most %d bytes", BUNDLE_NAME_MAX);
	index_mend_tenant(bundles, tenant, deadline_ns);

	const struct row_key from = bundle_row_key(tenant, prefix), behind = bundle_row_key(tenant, after);
	page.prefix = from.len - prefix.len;
	r = rows_each(bundles, row_key_view(&from), after.len ? row_key_view(&behind) : (struct view){ 0 },
		      collect_bundle, &page, deadline_ns, e);
	if (r < 0) {
		bundle_entries_free((struct bundle_entry *)page.entries, page.n);
		return r;
	}
	*ret = (struct bundle_entry *)page.entries;
	*ret_n = page.n;
	*ret_more = r == PAGE_FULL;
	return 0;
}

/* ---- versions ---- */

void version_entries_free(struct version_entry *entries, size_t n)
{
	for (size_t i = 0; i < n; i++)
		buf_fini(&entries[i].attributes);
	free(entries);
}

static int collect_version(void *arg, struct view key, struct view value)
{
	struct page *page = arg;
	struct row_version row;
	uint64_t number;

	view_take(&key, page->prefix);
	if (number_decode(key, 20, &number) != 0 || row_version_decode(value, &row) != 0)
		return row_damaged(page->e, "a version");
	if (row.state != ROW_LIVE)
		return 0;
	if (page->n == page->limit)
		return PAGE_FULL;
	struct version_entry *entry = page_add(page);
	if (!entry)
		return no_memory(page->e);
	*entry = (struct version_entry){ .number = number,
					 .step = row.step,
					 .n_items = row.n_items,
					 .bytes = row.bytes,
					 .stored_bytes = row.stored_bytes,
					 .save_id = row.save_id,
					 .n_attributes = row.attributes.count };
	return buf_append(&entry->attributes, row.attributes.bytes.ptr, row.attributes.bytes.len) ? no_memory(page->e) :
												    0;
}

int version_list(struct bundles *bundles, struct view tenant, struct view bundle, uint64_t after, uint32_t limit,
		 uint64_t deadline_ns, struct version_entry **ret, size_t *ret_n, bool *ret_more, struct error *e)
{
	CHECK_MAGIC(bundles, BUNDLES_MAGIC);
	struct page page = { .size = sizeof(struct version_entry), .limit = limit, .e = e };
	struct place place;

	int r = place_init(tenant, bundle, &place, e);
	if (r)
		return r;
	index_mend(bundles, &place, deadline_ns);

	const struct row_key prefix = rows_prefix('v', &place), behind = version_row_key(&place, after);
	page.prefix = prefix.len;
	r = rows_each(bundles, row_key_view(&prefix), row_key_view(&behind), collect_version, &page, deadline_ns, e);
	if (r < 0) {
		version_entries_free((struct version_entry *)page.entries, page.n);
		return r;
	}
	*ret = (struct version_entry *)page.entries;
	*ret_n = page.n;
	*ret_more = r == PAGE_FULL;
	return 0;
}

/* ---- labels ---- */

void label_entries_free(struct label_entry *entries, size_t n)
{
	for (size_t i = 0; i < n; i++)
		free(entries[i].label);
	free(entries);
}

static int collect_label(void *arg, struct view key, struct view value)
{
	struct page *page = arg;
	struct row_label row;

	view_take(&key, page->prefix);
	if (row_label_decode(value, &row) != 0)
		return row_damaged(page->e, "a label");
	if (!row.number)
		return 0; /* removed; the row remembers the last move */
	struct label_entry *entry = page_add(page);
	if (!entry)
		return no_memory(page->e);
	*entry = (struct label_entry){ .label = view_dup(key), .number = row.number };
	return entry->label ? 0 : no_memory(page->e);
}

int label_list(struct bundles *bundles, struct view tenant, struct view bundle, uint64_t deadline_ns,
	       struct label_entry **ret, size_t *ret_n, struct error *e)
{
	CHECK_MAGIC(bundles, BUNDLES_MAGIC);
	struct page page = { .size = sizeof(struct label_entry), .e = e };
	struct place place;

	int r = place_init(tenant, bundle, &place, e);
	if (r)
		return r;
	index_mend(bundles, &place, deadline_ns);

	const struct row_key prefix = rows_prefix('l', &place);
	page.prefix = prefix.len;
	r = rows_each(bundles, row_key_view(&prefix), (struct view){ 0 }, collect_label, &page, deadline_ns, e);
	if (r < 0) {
		label_entries_free((struct label_entry *)page.entries, page.n);
		return r;
	}
	*ret = (struct label_entry *)page.entries;
	*ret_n = page.n;
	return 0;
}
