/* bundle/verify_test.c: a flipped bit anywhere in the store is found and its object named. */
#include "bundle/bundle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/check.h"
#include "bundle/shelf_suite.h"

static const char bundle[] = SHELF_BUNDLE;

struct findings {
	unsigned n;
	char object[KEY_BYTES]; /* the first */
	char item[64];
	uint64_t block;
	char words[200];
};

static int note(void *arg, const char *object, struct view item, uint64_t block, const char *words)
{
	struct findings *f = arg;

	if (!f->n++) {
		snprintf(f->object, sizeof(f->object), "%s", object);
		snprintf(f->item, sizeof(f->item), "%.*s", (int)item.len, (const char *)item.ptr);
		snprintf(f->words, sizeof(f->words), "%s", words);
		f->block = block;
	}
	return 0;
}

static struct findings verify(struct shelf *shelf, uint64_t number, uint64_t *ret_blocks)
{
	struct findings f = { 0 };
	uint64_t bytes;
	struct error e;

	EXPECT_CALL(bundle_verify(shelf->bundles, tenant(), view_str(bundle), number, bed_deadline(shelf->bed), note,
				  &f, ret_blocks, &bytes, &e),
		    0, &e);
	return f;
}

static off_t object_bytes(struct shelf *shelf, const char *key)
{
	int fd = shelf_open_object(shelf, key);
	off_t size = lseek(fd, 0, SEEK_END);

	close(fd);
	return size;
}

static void remove_object(struct shelf *shelf, const char *key)
{
	struct error e;

	EXPECT_CALL(object_delete(shelf->bundles, key, bed_deadline(shelf->bed), &e), 0, &e);
}

/* ---- keys ---- */

struct keys {
	char all[16][KEY_BYTES];
	unsigned n;
};

static int take(void *arg, const char *key, char *after)
{
	struct keys *keys = arg;

	EXPECT(keys->n < ARRAY_LEN(keys->all));
	snprintf(keys->all[keys->n++], KEY_BYTES, "%s", key);
	return 0;
}

static struct keys all_keys(struct shelf *shelf)
{
	struct keys keys = { .n = 0 };
	struct error e;

	EXPECT_CALL(keys_each(shelf->bundles, "t/local/", take, &keys, bed_deadline(shelf->bed), &e), 0, &e);
	return keys;
}

static const char *pack_of(struct shelf *shelf, unsigned k)
{
	static char key[BACKEND_KEY_MAX + 1];

	EXPECT_INT(pack_key(tenant(), view_str(bundle), 0xabc001, "n0", k, key), 0);
	return key;
}

static void setup(struct shelf *shelf)
{
	struct error e;

	shelf_save(shelf, bundle, 1);
	EXPECT_CALL(label_set(shelf->bundles, tenant(), view_str(bundle), view_str("prod"), 0, 1,
			      bed_deadline(shelf->bed), &e),
		    0, &e);
}

/* ---- claims ---- */

static void a_sound_version_is_clean(struct shelf *shelf, struct shelf *other, struct error *e)
{
	uint64_t blocks;

	setup(shelf);
	struct findings f = verify(other, 1, &blocks);
	EXPECT_INT(f.n, 0);
	EXPECT_INT(blocks, SHELF_BLOCKS - 1);
}

static void expect_found(struct shelf *shelf, const char *key, off_t at, unsigned bit)
{
	uint64_t blocks;

	shelf_flip(shelf, key, at, bit);
	struct findings f = verify(shelf, 1, &blocks);
	if (!f.n || strcmp(f.object, key) != 0) {
		fprintf(stderr, "%s: bit %u of byte %ld: %u found, first in %s\n", key, bit, (long)at, f.n, f.object);
		abort();
	}
	shelf_flip(shelf, key, at, bit);
}

static void a_flip_in_any_record_is_found_and_named(struct shelf *shelf, struct shelf *other, struct error *e)
{
	unsigned records = 0;

	setup(shelf);
	struct keys keys = all_keys(shelf);
	for (unsigned i = 0; i < keys.n; i++) {
		off_t size = object_bytes(shelf, keys.all[i]);

		if (strstr(keys.all[i], "/p/"))
			continue;
		records++;
		for (off_t at = 0; at < size; at += at < 64 ? 3 : 11)
			expect_found(other, keys.all[i], at, (unsigned)at % 8);
	}
	EXPECT_INT(records, 5); /* slot, root, items, blocks, a label's move */
}

static void a_flip_in_any_kind_of_a_packs_bytes_is_found_and_named(struct shelf *shelf, struct shelf *other,
								   struct error *e)
{
	setup(shelf);
	for (unsigned k = 0; k < 2; k++) {
		const char *key = pack_of(shelf, k);
		off_t size = object_bytes(shelf, key), index = size - 64 - 128;

		for (off_t at = 0; at < 4096; at += at < 128 ? 5 : 331) /* head, node, padding */
			expect_found(other, key, at, 1);
		expect_found(other, key, 4092, 7);
		expect_found(other, key, 4096, 0);	/* the first block's first byte */
		expect_found(other, key, index / 2, 3); /* a byte of a block */
		expect_found(other, key, index - 1, 4); /* the gap before the index */
		for (off_t at = index; at < size; at += 3)
			expect_found(other, key, at, 5);
	}
}

static void a_damaged_block_is_named_with_its_item(struct shelf *shelf, struct shelf *other, struct error *e)
{
	_cleanup_(cleanup_version_put) struct version *version = NULL;
	uint64_t blocks;
	static const char *const items[] = { "bias", "weight", "weight", "weight" };

	setup(shelf);
	EXPECT_CALL(bundle_open(shelf->bundles, tenant(), view_str(bundle), view_str("1"), bed_deadline(shelf->bed),
				&version, e),
		    0, e);
	for (size_t i = 0; i + 1 < SHELF_BLOCKS; i++) {
		const struct version_block *block = &version->blocks[i];
		const char *key = version->packs[block->pack].key;

		shelf_flip(shelf, key, (off_t)block->pack_offset + block->bytes - 1, 2);
		struct findings f = verify(other, 1, &blocks);
		EXPECT_INT(f.n, 1);
		EXPECT_INT(f.block, i);
		EXPECT_INT(strcmp(f.item, items[i]), 0);
		EXPECT_INT(strcmp(f.object, key), 0);
		EXPECT_INT(blocks, SHELF_BLOCKS - 1); /* the others were looked at, too */
		shelf_flip(shelf, key, (off_t)block->pack_offset + block->bytes - 1, 2);
	}
}

static void behind_a_damaged_index_blocks_are_still_checked(struct shelf *shelf, struct shelf *other, struct error *e)
{
	uint64_t blocks;

	setup(shelf);
	const char *key = pack_of(shelf, 1);
	shelf_flip(shelf, key, object_bytes(shelf, key) - 100, 0);
	struct findings f = verify(other, 1, &blocks);
	EXPECT_INT(f.n, 1);
	EXPECT_INT(blocks, SHELF_BLOCKS - 1);
	shelf_flip(shelf, key, 5000, 0);
	f = verify(other, 1, &blocks);
	EXPECT_INT(f.n, 2);
}

static void whatever_is_missing_or_cut_is_named(struct shelf *shelf, struct shelf *other, struct error *e)
{
	static const char *const parts[] = { "/slot", "-items-0", "-blocks-0", "n0-0", "n0-1" };
	uint64_t blocks;

	for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
		uint64_t number = shelf_save(shelf, bundle, i + 1);
		struct keys keys = all_keys(shelf);
		const char *key = NULL;

		for (unsigned k = 0; k < keys.n; k++) {
			if (strstr(keys.all[k], parts[i]))
				key = keys.all[k];
		}
		EXPECT(key);
		remove_object(shelf, key);
		struct findings f = verify(other, number, &blocks);
		EXPECT(f.n >= 1);
		EXPECT_INT(strcmp(f.object, key), 0);
		EXPECT(strstr(f.words, "missing"));
		EXPECT_CALL(
			version_delete(shelf->bundles, tenant(), view_str(bundle), number, bed_deadline(shelf->bed), e),
			0, e);
	}
}

static void a_damaged_version_does_not_open_and_the_object_is_named(struct shelf *shelf, struct shelf *other,
								    struct error *e)
{
	setup(shelf);
	struct keys keys = all_keys(shelf);
	for (unsigned i = 0; i < keys.n; i++) {
		_cleanup_(cleanup_version_put) struct version *version = NULL;

		if (!strstr(keys.all[i], "/root") && !strstr(keys.all[i], "-items-") &&
		    !strstr(keys.all[i], "-blocks-"))
			continue;
		shelf_flip(shelf, keys.all[i], 70, 0);
		EXPECT_CALL(bundle_open(other->bundles, tenant(), view_str(bundle), view_str("1"),
					bed_deadline(shelf->bed), &version, e),
			    -ERR_EDAMAGED, e);
		EXPECT(strstr(e->text, keys.all[i]));
		shelf_flip(shelf, keys.all[i], 70, 0);
	}
}

static void a_version_that_is_not_there_cannot_be_verified(struct shelf *shelf, struct shelf *other, struct error *e)
{
	struct findings f = { 0 };
	uint64_t blocks, bytes;

	shelf_save(shelf, bundle, 1);
	EXPECT_CALL(bundle_verify(other->bundles, tenant(), view_str(bundle), 2, bed_deadline(shelf->bed), note, &f,
				  &blocks, &bytes, e),
		    -ENOENT, e);
	EXPECT_CALL(version_delete(shelf->bundles, tenant(), view_str(bundle), 1, bed_deadline(shelf->bed), e), 0, e);
	EXPECT_CALL(bundle_verify(other->bundles, tenant(), view_str(bundle), 1, bed_deadline(shelf->bed), note, &f,
				  &blocks, &bytes, e),
		    -ERR_EDELETED, e);
	EXPECT_INT(f.n, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		SHELF_STORY(a_sound_version_is_clean),
		SHELF_STORY(a_flip_in_any_record_is_found_and_named),
		SHELF_STORY(a_flip_in_any_kind_of_a_packs_bytes_is_found_and_named),
		SHELF_STORY(a_damaged_block_is_named_with_its_item),
		SHELF_STORY(behind_a_damaged_index_blocks_are_still_checked),
		SHELF_STORY(whatever_is_missing_or_cut_is_named),
		SHELF_STORY(a_damaged_version_does_not_open_and_the_object_is_named),
		SHELF_STORY(a_version_that_is_not_there_cannot_be_verified),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
