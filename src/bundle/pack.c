/*
 * bundle/pack.c: packs: where blocks lie in one, and writing one (docs/formats.md, 5).
 *
 * A pack is written as an upload of parts, some at the same time. The driver copies and sums each piece of it, so a block that was changed after
 * its capture fails the pack and nothing appears under its key. A part cannot be called back; so everything that parts
 * touch, pins of blocks included, belongs to a counted image, which lives until the last of them is over and then gives back
 * the upload that nobody committed.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/counter.h"
#include "base/point.h"
#include "bundle/inside.h"

#define PART_BYTES    (8u << 20) /* a part is ended at the first border behind so many */
#define PARTS_AT_ONCE 4

static uint64_t align_up(uint64_t offset, uint64_t align)
{
	return (offset + align - 1) / align * align;
}

static uint32_t align_of(uint32_t bytes)
{
	return bytes >= PACK_BIG_BYTES ? PACK_ALIGN : PACK_SMALL_ALIGN;
}

void pack_layout(const uint32_t *bytes, size_t n, uint64_t *ret_offsets, uint64_t *ret_index_offset)
{
	uint64_t at = PACK_HEAD_BYTES;

	for (int small = 0; small < 2; small++) {
		for (size_t i = 0; i < n; i++) {
			if ((bytes[i] < PACK_BIG_BYTES) != small)
				continue;
			ret_offsets[i] = align_up(at, align_of(bytes[i]));
			at = ret_offsets[i] + bytes[i];
		}
	}
	*ret_index_offset = align_up(at, PACK_SMALL_ALIGN);
}

uint64_t pack_size(uint64_t index_offset, size_t n)
{
	return index_offset + (uint64_t)n * BLOCK_ENTRY_BYTES + PACK_TRAILER_BYTES;
}

/* ---- the image: a pack as pieces of memory ---- */

struct part {
	uint64_t offset;
	size_t first_vec, n_vec;
};

struct image {
	unsigned refs;
	struct backend *backend;
	struct backend_upload *upload; /* begun and not committed */
	struct backend_req abort;
	struct pack_put *puts; /* sorted by offset; their blocks are pinned */
	size_t n;
	struct backend_vec *vecs;
	size_t n_vec;
	struct part *parts;
	size_t n_parts;
	struct block_rec *index;
	uint64_t bytes; /* of the whole pack */
	struct backend_gauge gauge;
	uint8_t head[PACK_HEAD_BYTES], trailer[PACK_TRAILER_BYTES];
};

static const uint8_t zeros[PACK_ALIGN]; /* no gap is longer */

static void image_unpin(struct image *image)
{
	for (size_t i = 0; image->puts && i < image->n; i++)
		block_unpin(image->puts[i].block);
	image->n = 0;
}

static void image_free(struct image *image)
{
	free(image->puts);
	free(image->vecs);
	free(image->parts);
	free(image->index);
	free(image);
}

static void image_aborted(struct backend_req *req)
{
	req->backend->n_abandoned--;
	image_free(container_of(req, struct image, abort));
}

static void image_put(void *held)
{
	struct image *image = held;

	if (!image || --image->refs)
		return;
	image_unpin(image);
	if (!image->upload) {
		image_free(image);
		return;
	}
	image->abort.op = BACKEND_ABORT;
	image->abort.upload = TAKE(image->upload);
	image->abort.finish = image_aborted;
	image->backend->n_abandoned++; /* who shuts the backend down waits for it */
	backend_submit(image->backend, &image->abort);
}

static struct image *image_get(struct image *image)
{
	image->refs++;
	return image;
}

CLEANUP_OF(struct image *, image_put);

static int by_offset(const void *a, const void *b)
{
	const struct pack_put *x = a, *y = b;

	return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Offsets came from another daemon: they must be what a layout gives. */
static int check_puts(const struct image *image, uint64_t *ret_index_offset, const char *key, struct error *e)
{
	uint64_t end = PACK_HEAD_BYTES;

	for (size_t i = 0; i < image->n; i++) {
		const struct pack_put *put = &image->puts[i];
		uint64_t least = align_up(end, align_of(put->block->bytes));

		CHECK_MAGIC(put->block, BLOCK_MAGIC);
		CHECK(put->block->indexed);
		if (put->offset != least)
			return error_set(e, -EINVAL,
					 "%s: block %zu is to lie at %" PRIu64 ", where a pack has %" PRIu64, key, i,
					 put->offset, least);
		end = put->offset + put->block->bytes;
	}
	*ret_index_offset = align_up(end, PACK_SMALL_ALIGN);
	if (pack_size(*ret_index_offset, image->n) > RECORD_PACK_MAX)
		return error_set(e, -E2BIG, "%s would have more than %" PRIu64 " bytes", key,
				 (uint64_t)RECORD_PACK_MAX);
	return 0;
}

static void make_ends(struct image *image, const struct record_head *head, const char *node, uint64_t index_offset)
{
	struct record_head h = *head;

	image->bytes = pack_size(index_offset, image->n);
	for (size_t i = 0; i < image->n; i++) {
		const struct block *block = image->puts[i].block;
		const struct block_entry entry = { .digest = block->digest,
						   .offset = image->puts[i].offset,
						   .bytes = block->bytes,
						   .crc = block->crc };

		block_entry_encode(&entry, &image->index[i]);
	}
	h.body_bytes = pack_body_bytes(image->bytes);
	pack_head_encode(&h, node, image->head);

	const size_t index_bytes = image->n * sizeof(*image->index);
	const struct pack_trailer trailer = { .index = digest_of(image->index, index_bytes),
					      .index_offset = index_offset,
					      .pack_bytes = image->bytes,
					      .n = (uint32_t)image->n };
	pack_trailer_encode(&trailer, image->trailer);
}

/* A piece of the pack, behind those before it; begins a part when the last one is full. Returns the offset behind it. */
static uint64_t add_vec(struct image *image, uint64_t at, const void *ptr, size_t len, uint32_t crc)
{
	struct part *part = image->n_parts ? &image->parts[image->n_parts - 1] : NULL;

	if (!len)
		return at;
	if (!part || at - part->offset >= PART_BYTES) {
		part = &image->parts[image->n_parts++];
		*part = (struct part){ .offset = at, .first_vec = image->n_vec };
	}
	part->n_vec++;
	image->vecs[image->n_vec++] = (struct backend_vec){ ptr, len, crc };
	return at + len;
}

static uint64_t add_own(struct image *image, uint64_t at, const void *ptr, size_t len)
{
	return add_vec(image, at, ptr, len, crc32c(0, ptr, len));
}

static void cut(struct image *image, uint64_t index_offset)
{
	uint64_t at = add_own(image, 0, image->head, sizeof(image->head));

	for (size_t i = 0; i < image->n; i++) {
		const struct pack_put *put = &image->puts[i];

		at = add_own(image, at, zeros, (size_t)(put->offset - at));
		at = add_vec(image, at, put->block->ptr, put->block->bytes, put->block->crc);
	}
	at = add_own(image, at, zeros, (size_t)(index_offset - at));
	at = add_own(image, at, image->index, image->n * sizeof(*image->index));
	at = add_own(image, at, image->trailer, sizeof(image->trailer));
	CHECK(at == image->bytes);
}

static int image_new(struct bundles *bundles, const char *key, const struct record_head *head,
		     const struct pack_put *puts, size_t n, struct image **ret, struct error *e)
{
	_cleanup_(cleanup_image_put) struct image *image = calloc(1, sizeof(*image));
	uint64_t index_offset = 0;

	if (!image)
		return no_memory(e);
	image->refs = 1;
	image->backend = bundles->backend;
	image->vecs = calloc(2 * n + 4, sizeof(*image->vecs));
	image->parts = calloc(2 * n + 4, sizeof(*image->parts));
	image->index = calloc(n + 1, sizeof(*image->index));
	image->puts = calloc(n + 1, sizeof(*image->puts));
	if (!image->vecs || !image->parts || !image->index || !image->puts)
		return no_memory(e);
	if (n)
		memcpy(image->puts, puts, n * sizeof(*puts));
	for (image->n = 0; image->n < n; image->n++)
		block_pin(image->puts[image->n].block);
	qsort(image->puts, n, sizeof(*image->puts), by_offset);

	int r = check_puts(image, &index_offset, key, e);
	if (r)
		return r;
	make_ends(image, head, cluster_node(bundles->cluster), index_offset);
	cut(image, index_offset);
	*ret = TAKE(image);
	return 0;
}

/* ---- writing ---- */

static struct backend_call *image_call(struct image *image, enum backend_op op, const char *key)
{
	struct backend_call *call = backend_call_new(op, key);

	if (!call)
		return NULL;
	call->release = image_put;
	call->held = image_get(image);
	return call;
}

struct writer {
	struct image *image;
	const char *key;
	size_t next; /* part */
	uint64_t deadline_ns;
	struct error error; /* the first */
};

static int write_part(struct writer *w, const struct part *part, struct error *e)
{
	_cleanup_(cleanup_backend_call_free) struct backend_call *call = image_call(w->image, BACKEND_PART, w->key);

	if (!call)
		return no_memory(e);
	call->req.upload = w->image->upload;
	call->req.offset = part->offset;
	call->req.vec = w->image->vecs + part->first_vec;
	call->req.n_vec = part->n_vec;
	call->req.gauge = &w->image->gauge;
	int r = backend_call_run(w->image->backend, &call, w->deadline_ns, e);
	if (!r)
		point_reached(POINT_PACK_PART);
	return r;
}

/* One of some fibers that take parts in turn. */
static int write_lane(void *arg)
{
	struct writer *w = arg;
	int r = 0;

	while (!r && w->next < w->image->n_parts && !w->error.code) {
		struct error e = { 0 };

		r = write_part(w, &w->image->parts[w->next++], &e);
		if (r && !w->error.code)
			(void)error_set(&w->error, r, "%s", e.text);
	}
	return r;
}

static int write_parts(struct bundles *bundles, struct writer *w, struct error *e)
{
	_cleanup_(nursery_fini) struct nursery nursery = { 0 };
	int r = 0;

	nursery_init(&nursery, bundles->env->loop);
	for (size_t i = 0; !r && i < PARTS_AT_ONCE && i < w->image->n_parts; i++)
		r = fiber_start(&nursery, "pack", write_lane, w);
	if (r)
		return error_set(e, r, "%s: no fiber to write it", w->key);
	r = nursery_wait(&nursery, w->deadline_ns);
	if (w->error.code)
		return error_set(e, w->error.code, "%s", w->error.text);
	return r ? error_set(e, r, "%s: its parts were not written in time", w->key) : 0;
}

/* The key is taken: by a try before, if what lies there has the same index. */
static int check_present(struct bundles *bundles, const struct image *image, const char *key, uint64_t deadline_ns,
			 struct error *e)
{
	_cleanup_(buf_fini) struct buf there = { 0 };
	int r = object_range(bundles, key, image->bytes - PACK_TRAILER_BYTES, PACK_TRAILER_BYTES + 1, &there,
			     deadline_ns, e);

	if (r)
		return r;
	if (!view_equal(view_buf(&there), view_of(image->trailer, PACK_TRAILER_BYTES)))
		return error_set(e, -EEXIST, "%s is there with other contents", key);
	return 0;
}

static int commit(struct bundles *bundles, struct image *image, const char *key, uint64_t deadline_ns, struct error *e)
{
	_cleanup_(cleanup_backend_call_free) struct backend_call *call = image_call(image, BACKEND_COMMIT, key);

	if (!call)
		return no_memory(e);
	call->req.upload = TAKE(image->upload); /* gone after it, whatever the result */
	call->req.len = image->bytes;
	call->req.if_absent = true;
	int r = backend_call_run(bundles->backend, &call, deadline_ns, e);
	return r == BACKEND_EXISTS ? check_present(bundles, image, key, deadline_ns, e) : r;
}

static int begin(struct bundles *bundles, struct image *image, const char *key, uint64_t deadline_ns, struct error *e)
{
	_cleanup_(cleanup_backend_call_free) struct backend_call *call = backend_call_new(BACKEND_BEGIN, key);

	if (!call)
		return no_memory(e);
	int r = backend_call_run(bundles->backend, &call, deadline_ns, e);
	if (!r)
		image->upload = TAKE(call->req.upload);
	return r;
}

/* Without parts under way the upload is given back before the caller goes on; else by the last of them, which ends soon. */
static void give_up(struct bundles *bundles, struct image *image, const char *key)
{
	_cleanup_(cleanup_backend_call_free) struct backend_call *call = NULL;

	atomic_store_explicit(&image->gauge.stop, true, memory_order_relaxed);
	if (!image->upload || image->refs > 1)
		return;
	call = image_call(image, BACKEND_ABORT, key);
	if (!call)
		return;
	call->req.upload = TAKE(image->upload);
	(void)backend_call_run(bundles->backend, &call, env_in_ms(bundles->env, SETTLE_MS), NULL);
}

/* The save id in "t/.../p/<save>-<node>-<k>". */
int save_of_key(const char *key, uint64_t *ret)
{
	const char *name = strrchr(key, '/');
	uint8_t raw[8];

	if (!name || strlen(name) < 1 + 16 || hex_decode(raw, sizeof(raw), name + 1) != 0)
		return -EINVAL;
	*ret = 0;
	for (size_t i = 0; i < sizeof(raw); i++)
		*ret = *ret << 8 | raw[i];
	return 0;
}

uint64_t pack_watch_bytes(const struct pack_watch *watch)
{
	return watch->image ? atomic_load_explicit(&watch->image->gauge.moved, memory_order_relaxed) : 0;
}

static int write_image(struct bundles *bundles, struct image *image, const char *key, uint64_t deadline_ns,
		       struct error *e)
{
	struct writer writer = { .image = image, .key = key, .deadline_ns = deadline_ns };
	int r = begin(bundles, image, key, deadline_ns, e);

	if (!r)
		point_reached(POINT_PACK_BEGUN);
	if (!r)
		r = write_parts(bundles, &writer, e);
	if (r) {
		give_up(bundles, image, key);
		return r;
	}
	point_reached(POINT_PACK_WRITTEN);
	r = commit(bundles, image, key, deadline_ns, e);
	if (!r)
		point_reached(POINT_PACK_DURABLE);
	count(COUNT_UPLOADED_BYTES, r ? 0 : image->bytes);
	return r;
}

int pack_write(struct bundles *bundles, const char *key, uint64_t number, const struct pack_put *puts, size_t n,
	       struct pack_watch *watch, uint64_t deadline_ns, struct error *e)
{
	CHECK_MAGIC(bundles, BUNDLES_MAGIC);
	_cleanup_(cleanup_image_put) struct image *image = NULL;
	struct record_head head = { .kind = RECORD_PACK,
				    .number = number,
				    .generation = cluster_generation(bundles->cluster) };

	if (n > PACK_BLOCKS_MAX)
		return error_set(e, -E2BIG, "%s: %zu blocks, a pack has at most %u", key, n, PACK_BLOCKS_MAX);
	if (save_of_key(key, &head.save_id))
		return error_set(e, -EINVAL, "%s is no pack's key", key);
	int r = image_new(bundles, key, &head, puts, n, &image, e);
	if (r)
		return r;
	if (watch)
		watch->image = image;
	r = write_image(bundles, image, key, deadline_ns, e);
	if (watch)
		watch->image = NULL;
	return r;
}

int pack_forget(struct bundles *bundles, const char *key, uint64_t deadline_ns, struct error *e)
{
	CHECK_MAGIC(bundles, BUNDLES_MAGIC);
	return object_delete(bundles, key, deadline_ns, e);
}
