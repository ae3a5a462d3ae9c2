/*
 * fuzz/version.c: a version out of a root and its segments. Input: u32 length of the root's body, the body, u32 length of the items
 * segment's body, the body, and what is left is the blocks segment's.
 *
 * Segments are sealed, so that their digests are right. A version that is accepted must obey every rule and come back from its own
 * segments.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "bundle/inside.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct view take_body(struct view *in)
{
	if (in->len < 4)
		return view_take(in, in->len);
	size_t len = load_le32(view_take(in, 4).ptr);
	return view_take(in, len < in->len ? len : in->len);
}

/* As a writer would have stored it. */
static int add(struct version *version, enum record_kind kind, uint64_t count, struct view body)
{
	_cleanup_(buf_fini) struct buf object = { 0 };
	const struct record_head head = version_head(version, kind);
	struct rec_segment segment = { .kind = kind, .count = count };

	if (record_seal(&head, body, &object) != 0)
		return -E2BIG;
	segment.digest = record_digest(view_buf(&object));
	return version_add_segment(version, &segment, view_buf(&object), NULL);
}

static void check_again(const struct place *place, const struct version *version)
{
	_cleanup_(segments_fini) struct segments segments = { 0 };
	_cleanup_(buf_fini) struct buf body = { 0 };
	_cleanup_(cleanup_version_put) struct version *back = version_new();
	const struct record_head head = version_head(version, RECORD_ROOT);
	struct rec_root root;

	CHECK(back && segments_encode(version, &segments, NULL) == 0 &&
	      root_encode(place, version, &segments, &body, NULL) == 0 &&
	      rec_root_decode(view_buf(&body), &root) == 0 && version_set_root(back, place, &head, &root, NULL) == 0);
	for (size_t i = 0; i < segments.n; i++) {
		struct rec_segment segment;

		CHECK(rec_segment_next(&root.segments, &segment) == 0 &&
		      version_add_segment(back, &segment, view_buf(&segments.all[i].object), NULL) == 0);
	}
	CHECK(version_finish(back, &root, NULL) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct view in = view_of(data, size);
	struct view root_body = take_body(&in), items_body = take_body(&in);
	_cleanup_(cleanup_version_put) struct version *version = version_new();
	const struct record_head head = { .kind = RECORD_ROOT, .number = 4, .save_id = 7 };
	struct rec_items items = { 0 };
	struct rec_root root;
	struct place place;

	if (!version || rec_root_decode(root_body, &root) != 0 || rec_items_decode(items_body, &items) != 0)
		return 0;
	if (place_init(root.tenant, root.bundle, &place, NULL) != 0 ||
	    version_set_root(version, &place, &head, &root, NULL) != 0)
		return 0;
	if (add(version, RECORD_ITEMS, items.items.count, items_body) != 0 ||
	    add(version, RECORD_BLOCKS, in.len / BLOCK_ENTRY_BYTES, in) != 0 ||
	    version_finish(version, &root, NULL) != 0)
		return 0;
	check_again(&place, version);
	return 0;
}
