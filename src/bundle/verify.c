/*
 * bundle/verify.c: reads everything of a version from the store and compares: slot, root, segments, packs whole, and the moves of the
 * bundle's labels. A damaged object is reported and does not end the walk; what cannot be read at all ends it.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "bundle/inside.h"

#define WINDOW_BYTES (8u << 20)	 /* read at a time; a block fits */
#define GAP_BYTES    (64u << 10) /* of a gap, looked at at a time */
#define INLINE_BYTES (64u << 10) /* hashed on the loop; more goes to a worker */

enum { FOUND_DAMAGE = 1 }; /* of the steps below: reported; go on with the next object */

/* Where a block of the version lies in a pack. */
struct spot {
	uint64_t offset;
	uint64_t block; /* in the version */
};

struct verify {
	struct bundles *bundles;
	const struct place *place;
	uint64_t number, deadline_ns;
	int (*report)(void *arg, const char *object, struct view item, uint64_t block, const char *words);
	void *arg;
	struct version *version;
	bool whole; /* version has its items and blocks */
	uint64_t blocks, bytes;
	struct error *e;
};

/* ---- reports ---- */

/* The item that has block @block; empty: it is not known. */
static struct view item_of(const struct verify *v, uint64_t block)
{
	const struct version *version = v->version;
	size_t low = 0, high = version->n_items;

	if (!v->whole || block >= version->n_blocks)
		return (struct view){ 0 };
	while (low <
	       high) { /* the first item whose pieces end behind the block; items without pieces end where they begin */
		size_t middle = low + (high - low) / 2;
		const struct version_item *item = &version->items[middle];
		uint32_t pieces = item->first_piece + item->n_pieces;
		const struct version_piece *last = pieces ? &version->pieces[pieces - 1] : NULL;

		if (!last || last->first_block + last->n_blocks <= block)
			low = middle + 1;
		else
			high = middle;
	}
	return low < version->n_items ? version->items[low].name : (struct view){ 0 };
}

static int damage(struct verify *v, const char *object, uint64_t block, const char *words)
{
	int r = v->report(v->arg, object, item_of(v, block), block, words);

	return r < 0 ? r : FOUND_DAMAGE;
}

/* What a check has said: damage is reported, anything else is passed on. */
static int judge(struct verify *v, const char *object, int r, const struct error *why)
{
	if (r == -ERR_EDAMAGED)
		return damage(v, object, UINT64_MAX, why->text);
	return r < 0 ? error_set(v->e, r, "%s", why->text) : r;
}

/* ---- records ---- */

/* Reads an object whole. */
static int read_object(struct verify *v, const char *key, size_t max, struct buf *bytes)
{
	struct error why = { 0 };

	bytes->len = 0;
	int r = backend_read_known(v->bundles->backend, key, max, bytes, v->deadline_ns, &why);
	if (r == -ENOENT)
		return damage(v, key, UINT64_MAX, "it is missing");
	if (r == -EFBIG)
		return damage(v, key, UINT64_MAX, "it is longer than it may be");
	v->bytes += bytes->len;
	return r ? error_set(v->e, r, "%s", why.text) : 0;
}

static int read_record(struct verify *v, const char *key, size_t max, enum record_kind kind, uint64_t number,
		       struct buf *bytes, struct record_head *head, struct view *body)
{
	struct error why = { 0 };
	int r = read_object(v, key, max, bytes);

	if (r)
		return r;
	r = judge(v, key, record_open_as(view_buf(bytes), kind, head, body, &why), &why);
	if (!r && head->number != number)
		r = damage(v, key, UINT64_MAX, "it is sound, but of another number");
	return r;
}

static int verify_slot(struct verify *v)
{
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	struct record_head head;
	struct rec_slot rec;
	struct view body;
	char key[KEY_BYTES];

	slot_key(v->place, v->number, key);
	int r = read_record(v, key, RECORD_SMALL_MAX, RECORD_SLOT, v->number, &bytes, &head, &body);
	if (r)
		return r;
	if (rec_slot_decode(body, &rec) || head.save_id != v->version->save_id || head.epoch != v->version->epoch)
		return damage(v, key, UINT64_MAX, "it is not the slot of this version");
	return 0;
}

static int verify_move(void *arg, const char *key, char *after)
{
	struct verify *v = arg;
	_cleanup_(buf_fini) struct buf bytes = { 0 }, label = { 0 };
	const char *name = key + strlen(v->place->prefix) + 2, *slash = strchr(name, '/');
	struct record_head head;
	struct rec_label rec;
	struct view body;
	uint64_t number;

	if (!slash || name_decode(view_of(name, (size_t)(slash - name)), &label) ||
	    number_decode(view_str(slash + 1), 20, &number))
		return 0; /* no key of ours */
	int r = read_record(v, key, RECORD_SMALL_MAX, RECORD_LABEL, number, &bytes, &head, &body);
	if (!r && (rec_label_decode(body, &rec) || !view_equal(rec.label, view_buf(&label)) ||
		   !view_equal(rec.bundle, v->place->bundle)))
		r = damage(v, key, UINT64_MAX, "it is the move of another label");
	return r < 0 ? r : 0;
}

static int verify_labels(struct verify *v)
{
	char prefix[KEY_BYTES];

	(void)snprintf(prefix, sizeof(prefix), "%sl/", v->place->prefix);
	return keys_each(v->bundles, prefix, verify_move, v, v->deadline_ns, v->e);
}

/* ---- root and segments ---- */

static int verify_segment(struct verify *v, const char *root, const struct rec_segment *segment)
{
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	struct error why = { 0 };
	char key[KEY_BYTES];
	int len = snprintf(key, sizeof(key), "%s%.*s", v->place->prefix, (int)segment->key.len,
			   (const char *)segment->key.ptr);

	if (len < 0 || (size_t)len >= sizeof(key) || segment->bytes > RECORD_SEGMENT_MAX)
		return damage(v, root, UINT64_MAX, "it names a segment that cannot be");
	int r = read_object(v, key, (size_t)segment->bytes, &bytes);
	return r ? r : judge(v, key, segment_decode(v->bundles, v->version, segment, view_buf(&bytes), &why), &why);
}

static int verify_segments(struct verify *v, const char *key, const struct rec_root *root)
{
	struct list_view list = root->segments;
	struct rec_segment segment;
	struct error why = { 0 };
	bool sound = true;
	int r;

	while ((r = rec_segment_next(&list, &segment)) == 0) {
		r = verify_segment(v, key, &segment);
		if (r < 0)
			return r;
		sound = sound && !r;
	}
	if (r == -EPROTO)
		return damage(v, key, UINT64_MAX, "its list of segments makes no sense");
	if (!sound)
		return FOUND_DAMAGE;
	r = judge(v, key, version_complete(v->bundles, v->version, root, &why), &why);
	v->whole = r == 0;
	return r;
}

static bool is_indexed(const struct verify *v)
{
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	struct row_version row;

	return row_read_version(v->bundles, v->place, v->number, &bytes, &row, v->deadline_ns, NULL) == 0 &&
	       row.state == ROW_LIVE;
}

/* FOUND_DAMAGE: the root is not to be used. */
static int verify_root(struct verify *v, struct root_object *object)
{
	struct error why = { 0 };
	char key[KEY_BYTES];

	root_key(v->place, v->number, key);
	int r = judge(v, key, root_read(v->bundles, v->place, v->number, object, v->deadline_ns, &why), &why);
	if (r)
		return r;
	if (object->state == ROOT_DELETED)
		return error_set(v->e, -ERR_EDELETED, "version %" PRIu64 " was deleted", v->number);
	if (object->state == ROOT_NONE && is_indexed(v))
		return damage(v, key, UINT64_MAX, "it is missing");
	if (object->state != ROOT_PUBLISHED)
		return error_set(v->e, -ENOENT, "bundle %.*s has no version %" PRIu64, (int)v->place->bundle.len,
				 (const char *)v->place->bundle.ptr, v->number);
	v->bytes += object->bytes.len;
	return judge(v, key, version_set_root(v->version, v->place, &object->head, &object->root, &why), &why);
}

/* ---- packs ---- */

struct scan {
	struct verify *v;
	const struct version_pack *pack;
	struct buf window;
	uint64_t window_offset;
	struct spot *spots; /* of the version's blocks in this pack, by offset; of those at one place the first */
	size_t n_spots;
	struct block_entry *entries; /* what lies where, by offset */
	size_t n_entries;
	uint64_t index_offset;
	uint64_t save_id; /* in its key */
	bool shared; /* of another save, the parent's or one before: it has blocks that this version need not have */
};

static void scan_fini(struct scan *scan)
{
	buf_fini(&scan->window);
	free(scan->spots);
	free(scan->entries);
}

static int pack_damage(struct scan *scan, uint64_t block, const char *words)
{
	return damage(scan->v, scan->pack->key, block, words);
}

/*
 * Bytes [offset, offset + len) of the pack, len at most WINDOW_BYTES; read ahead. A window is always taken whole: a block of that size is
 * mapped for itself, and leaves nothing behind in the heap.
 */
static int need(struct scan *scan, uint64_t offset, size_t len, const uint8_t **ret)
{
	struct verify *v = scan->v;

	if (offset < scan->window_offset || offset + len > scan->window_offset + scan->window.len) {
		struct error why = { 0 };
		int r = object_range(v->bundles, scan->pack->key, offset, WINDOW_BYTES, &scan->window, v->deadline_ns,
				     &why);

		if (r)
			return r == -ENOENT ? pack_damage(scan, UINT64_MAX, "it is missing") :
					      error_set(v->e, r, "%s", why.text);
		scan->window_offset = offset;
		if (scan->window.len < len)
			return pack_damage(scan, UINT64_MAX, "it is shorter than the root says");
	}
	*ret = scan->window.ptr + (offset - scan->window_offset);
	return 0;
}

static int verify_gap(struct scan *scan, uint64_t from, uint64_t to)
{
	for (uint64_t at = from, n; at < to; at += n) {
		const uint8_t *bytes;

		n = to - at < GAP_BYTES ? to - at : GAP_BYTES;
		int r = need(scan, at, (size_t)n, &bytes);
		if (r)
			return r;
		scan->v->bytes += n;
		if (!bytes_are_zero(bytes, (size_t)n)) {
			char words[80];

			(void)snprintf(words, sizeof(words), "not zero in the gap at %" PRIu64, at);
			return pack_damage(scan, UINT64_MAX, words);
		}
	}
	return 0;
}

struct hashing {
	const uint8_t *bytes;
	size_t len;
	struct digest digest;
	uint32_t crc;
};

static int hash_job(void *arg)
{
	struct hashing *job = arg;

	job->digest = digest_of(job->bytes, job->len);
	job->crc = crc32c(0, job->bytes, job->len);
	return 0;
}

static int verify_block(struct scan *scan, const struct block_entry *entry, uint64_t number)
{
	struct verify *v = scan->v;
	struct hashing job = { .len = entry->bytes };
	char words[80];

	int r = need(scan, entry->offset, entry->bytes, &job.bytes);
	if (r)
		return r;
	r = job.len <= INLINE_BYTES ? hash_job(&job) : env_call(v->bundles->env, hash_job, &job);
	if (r)
		return error_set(v->e, r, "cannot hash");
	v->blocks++;
	v->bytes += entry->bytes;
	if (digest_equal(&job.digest, &entry->digest) && job.crc == entry->crc)
		return 0;
	(void)snprintf(words, sizeof(words), "the %" PRIu32 " bytes at %" PRIu64 " do not have their digest",
		       entry->bytes, entry->offset);
	return pack_damage(scan, number, words);
}

/* The spot at @offset, or NULL. Entries and spots are both sorted; @next walks along. */
static const struct spot *spot_at(const struct scan *scan, size_t *next, uint64_t offset)
{
	while (*next < scan->n_spots && scan->spots[*next].offset < offset)
		++*next;
	return *next < scan->n_spots && scan->spots[*next].offset == offset ? &scan->spots[*next] : NULL;
}

static bool entry_is_block(const struct block_entry *entry, const struct version_block *block)
{
	return digest_equal(&entry->digest, &block->digest) && entry->bytes == block->bytes && entry->crc == block->crc;
}

static int verify_entries(struct scan *scan)
{
	const struct verify *v = scan->v;
	uint64_t end = PACK_HEAD_BYTES;
	size_t next = 0, matched = 0;
	int r = 0;

	for (size_t i = 0; r >= 0 && i < scan->n_entries; i++) {
		const struct block_entry *entry = &scan->entries[i];
		const struct spot *spot = spot_at(scan, &next, entry->offset);
		uint64_t number = spot ? spot->block : UINT64_MAX;

		r = verify_gap(scan, end, entry->offset);
		if (r >= 0)
			r = verify_block(scan, entry, number);
		bool known = spot && entry_is_block(entry, &v->version->blocks[number]);
		if (r >= 0 && v->whole && !known && (spot || !scan->shared))
			r = pack_damage(scan, number, "its index has a block that the version has not");
		matched += spot != NULL;
		end = entry->offset + entry->bytes;
	}
	if (r >= 0)
		r = verify_gap(scan, end, scan->index_offset);
	if (r >= 0 && v->whole && matched < scan->n_spots)
		r = pack_damage(scan, UINT64_MAX, "the version has blocks in it that its index has not");
	return r;
}

static int by_offset(const void *a, const void *b)
{
	const struct spot *x = a, *y = b;

	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	return (x->block > y->block) - (x->block < y->block);
}

static int find_spots(struct scan *scan)
{
	const struct version *version = scan->v->version;
	uint32_t pack = (uint32_t)(scan->pack - version->packs);
	size_t n = 0, kept = 0;

	if (!scan->v->whole)
		return 0;
	for (size_t i = 0; i < version->n_blocks; i++)
		n += version->blocks[i].pack == pack;
	scan->spots = calloc(n + 1, sizeof(*scan->spots));
	if (!scan->spots)
		return no_memory(scan->v->e);
	for (size_t i = 0; i < version->n_blocks; i++) {
		if (version->blocks[i].pack == pack)
			scan->spots[scan->n_spots++] = (struct spot){ version->blocks[i].pack_offset, i };
	}
	qsort(scan->spots, n, sizeof(*scan->spots), by_offset);
	for (size_t i = 0; i < n; i++) {
		if (!kept || scan->spots[kept - 1].offset != scan->spots[i].offset)
			scan->spots[kept++] = scan->spots[i];
	}
	scan->n_spots = kept;
	return 0;
}

/* What lies where, according to the pack's own index. */
static int take_index(struct scan *scan)
{
	struct pack_trailer trailer;
	struct error why = { 0 };
	_cleanup_(buf_fini) struct buf index = { 0 };
	struct verify *v = scan->v;
	const uint8_t *raw;

	int r = need(scan, scan->pack->bytes - PACK_TRAILER_BYTES, PACK_TRAILER_BYTES, &raw);
	if (!r)
		r = judge(v, scan->pack->key, pack_trailer_decode(raw, scan->pack->bytes, &trailer, &why), &why);
	if (r)
		return r;
	const size_t len = (size_t)trailer.n * BLOCK_ENTRY_BYTES;
	r = object_range(v->bundles, scan->pack->key, trailer.index_offset, len, &index, v->deadline_ns, v->e);
	if (!r)
		r = judge(v, scan->pack->key, pack_index_check(view_buf(&index), &trailer, &why), &why);
	if (r)
		return r;

	scan->entries = calloc(trailer.n + 1, sizeof(*scan->entries));
	if (!scan->entries)
		return no_memory(v->e);
	for (size_t i = 0; i < trailer.n; i++)
		CHECK(block_entry_decode((const struct block_rec *)(index.ptr + i * BLOCK_ENTRY_BYTES),
					 &scan->entries[i], NULL) == 0);
	scan->n_entries = trailer.n;
	scan->index_offset = trailer.index_offset;
	v->bytes += len + PACK_TRAILER_BYTES;
	return 0;
}

/* The same according to the version, where the pack's index is damaged: its blocks may still be sound. */
static int take_spots(struct scan *scan)
{
	const struct version *version = scan->v->version;

	scan->entries = calloc(scan->n_spots + 1, sizeof(*scan->entries));
	if (!scan->entries)
		return no_memory(scan->v->e);
	scan->index_offset = PACK_HEAD_BYTES;
	for (size_t i = 0; i < scan->n_spots; i++) {
		const struct version_block *block = &version->blocks[scan->spots[i].block];

		scan->entries[i] = (struct block_entry){ .digest = block->digest,
							 .offset = block->pack_offset,
							 .bytes = block->bytes,
							 .crc = block->crc };
		scan->index_offset = block->pack_offset + block->bytes;
	}
	scan->n_entries = scan->n_spots;
	return 0;
}

static int verify_head(struct scan *scan)
{
	struct verify *v = scan->v;
	struct record_head head;
	char node[PACK_NODE_BYTES];
	struct error why = { 0 };
	const uint8_t *raw;

	int r = need(scan, 0, PACK_HEAD_BYTES, &raw);
	if (!r)
		r = judge(v, scan->pack->key, pack_head_decode(raw, &head, node, &why), &why);
	if (r)
		return r;
	v->bytes += PACK_HEAD_BYTES;
	if (head.save_id != scan->save_id || strcmp(node, scan->pack->node) != 0 ||
	    head.body_bytes != pack_body_bytes(scan->pack->bytes))
		return pack_damage(scan, UINT64_MAX, "it is the pack of another save or node");
	return 0;
}

/* FOUND_DAMAGE: it has not the size that the root says, or is not there. */
static int verify_size(struct scan *scan)
{
	struct verify *v = scan->v;
	struct error why = { 0 };
	_cleanup_(cleanup_backend_call_free) struct backend_call *call =
		backend_call_new(BACKEND_HEAD, scan->pack->key);
	char words[80];

	if (!call)
		return no_memory(v->e);
	int r = backend_call_run(v->bundles->backend, &call, v->deadline_ns, &why);
	if (r == -ENOENT)
		return pack_damage(scan, UINT64_MAX, "it is missing");
	if (r)
		return error_set(v->e, r, "%s", why.text);
	if (call->req.size == scan->pack->bytes)
		return 0;
	(void)snprintf(words, sizeof(words), "it has %" PRIu64 " bytes, the root says %" PRIu64, call->req.size,
		       scan->pack->bytes);
	return pack_damage(scan, UINT64_MAX, words);
}

static int verify_pack(struct verify *v, const struct version_pack *pack)
{
	_cleanup_(scan_fini) struct scan scan = { .v = v, .pack = pack };

	if (pack->bytes < PACK_HEAD_BYTES + PACK_TRAILER_BYTES)
		return damage(v, pack->key, UINT64_MAX, "the root says a size that cannot be");
	if (save_of_key(pack->key, &scan.save_id))
		return damage(v, pack->key, UINT64_MAX, "the root says a key that cannot be");
	scan.shared = scan.save_id != v->version->save_id;
	int r = verify_size(&scan);
	if (r)
		return r;
	r = verify_head(&scan);
	if (r >= 0)
		r = find_spots(&scan);
	if (r >= 0)
		r = take_index(&scan);
	if (r == FOUND_DAMAGE)
		r = take_spots(&scan);
	return r < 0 ? r : verify_entries(&scan);
}

/* ---- all ---- */

static int verify_all(struct verify *v)
{
	_cleanup_(root_object_fini) struct root_object object = { 0 };
	char key[KEY_BYTES];
	int r = verify_labels(v);

	if (!r)
		r = verify_root(v, &object);
	if (r)
		return r < 0 ? r : 0;
	r = verify_slot(v);
	root_key(v->place, v->number, key);
	if (r >= 0)
		r = verify_segments(v, key, &object.root);
	for (size_t i = 0; r >= 0 && i < v->version->n_packs; i++)
		r = verify_pack(v, &v->version->packs[i]);
	return r < 0 ? r : 0;
}

int bundle_verify(struct bundles *bundles, struct view tenant, struct view bundle, uint64_t number,
		  uint64_t deadline_ns,
		  int (*report)(void *arg, const char *object, struct view item, uint64_t block, const char *words),
		  void *arg, uint64_t *ret_blocks, uint64_t *ret_bytes, struct error *e)
{
	CHECK_MAGIC(bundles, BUNDLES_MAGIC);
	_cleanup_(cleanup_version_put) struct version *version = version_new();
	struct place place;
	struct verify v = { .bundles = bundles,
			    .place = &place,
			    .number = number,
			    .deadline_ns = deadline_ns,
			    .report = report,
			    .arg = arg,
			    .version = version,
			    .e = e };

	if (!version)
		return no_memory(e);
	int r = place_init(tenant, bundle, &place, e);
	if (!r)
		r = verify_all(&v);
	if (r)
		return r;
	*ret_blocks = v.blocks;
	*ret_bytes = v.bytes;
	return 0;
}
