/* bundle/check_test.c: an index that is older than the store is noticed, and one that means another save. */
#include "bundle/ends_fixture.h"

static void expect_index(struct shelf *shelf, int want, struct error *e)
{
	EXPECT_CALL(bundles_check_index(shelf->bundles, deadline(shelf), e), want, e);
	EXPECT(!want || strstr(e->text, "older than the store"));
}

static void an_index_older_than_the_store_is_noticed(struct shelf *shelf, struct shelf *other, struct error *e)
{
	struct place at = place();
	struct row_bundle old, now;

	expect_index(shelf, 0, e);
	shelf_save(shelf, bundle, 1);
	EXPECT_CALL(label_set(shelf->bundles, tenant(), view_str(bundle), view_str("prod"), 0, 1, deadline(shelf), e),
		    0, e);
	EXPECT_INT(row_read_bundle(shelf->bundles, &at, &old, deadline(shelf), e), 0);
	shelf_save(shelf, bundle, 2);
	expect_index(shelf, 0, e);
	EXPECT_INT(row_read_bundle(shelf->bundles, &at, &now, deadline(shelf), e), 0);
	set_row(shelf, &old); /* version 2 is not known */
	expect_index(shelf, -ERR_EREBUILD, e);
	EXPECT(strstr(e->text, "00000000000000000002/root"));
	set_row(shelf, &now);
	expect_index(shelf, 0, e);

	EXPECT_CALL(retain(shelf, 4, 0, e), 0, e);
	expect_index(shelf, 0, e);
	EXPECT_INT(row_read_bundle(shelf->bundles, &at, &now, deadline(shelf), e), 0);
	old = now;
	old.rule = 0;
	set_row(shelf, &old); /* nor the rule */
	expect_index(shelf, -ERR_EREBUILD, e);
	set_row(shelf, &now);
	expect_index(shelf, 0, e);

	_cleanup_(change_fini) struct change change = { 0 };
	const struct row_key label = label_row_key(&at, view_str("prod"));
	EXPECT_CALL(change_begin(shelf->bundles, &at, NULL, &change, deadline(shelf), e), 0, e);
	EXPECT_INT(meta_txn_delete(change.req, row_key_view(&label)), 0);
	EXPECT_CALL(change_commit(&change, deadline(shelf), e), 0, e);
	expect_index(shelf, -ERR_EREBUILD, e); /* nor the label's move */
	EXPECT(strstr(e->text, "/l/prod/"));
}

static void a_slot_that_was_never_recorded_is_not_an_older_index(struct shelf *shelf, struct shelf *other,
								 struct error *e)
{
	struct place at = place();
	struct row_bundle old;

	shelf_save(shelf, bundle, 1);
	EXPECT_INT(row_read_bundle(shelf->bundles, &at, &old, deadline(shelf), e), 0);
	open_slot(shelf, 0x100, 0, NULL);
	set_row(shelf, &old);
	expect_index(shelf, 0, e);
	_cleanup_(slot_fini) struct slot slot = { .tenant = view_dup(at.tenant),
						  .bundle = view_dup(at.bundle),
						  .number = old.last + 1,
						  .save_id = 0x100 };
	EXPECT_CALL(slot_burn(shelf->bundles, &slot, deadline(shelf), e), 0, e);
	set_row(shelf, &old); /* its writer could not record it, and burned it */
	expect_index(shelf, 0, e);
	shelf_save(shelf, "a/new one", 1);
	shelf_save(shelf, "zz", 1);
	expect_index(other, 0, e);
}

static void set_save_id(struct shelf *shelf, uint64_t number, uint64_t save_id)
{
	_cleanup_(change_fini) struct change change = { 0 };
	_cleanup_(buf_fini) struct buf bytes = { 0 };
	struct place at = place();
	const struct row_key key = version_row_key(&at, number);
	struct row_version row;
	struct error e;

	EXPECT_CALL(change_begin(shelf->bundles, &at, NULL, &change, deadline(shelf), &e), 0, &e);
	EXPECT_INT(row_read_version(shelf->bundles, &at, number, &bytes, &row, deadline(shelf), &e), 0);
	row.save_id = save_id;
	EXPECT_INT(change_put_version(&change, &key, &row), 0);
	EXPECT_CALL(change_commit(&change, deadline(shelf), &e), 0, &e);
}

/* A number that was given twice, to two copies of a store: which of them lies here the index does not say, but which it means. */
static void a_root_of_another_save_than_the_index_has_is_not_opened(struct shelf *shelf, struct shelf *other,
								    struct error *e)
{
	_cleanup_(cleanup_version_put) struct version *version = NULL;
	uint64_t save_id;

	shelf_save(shelf, bundle, 1);
	EXPECT_CALL(open_it(shelf, "1", &version, e), 0, e);
	save_id = version->save_id;
	set_save_id(shelf, 1, 0x100);
	for (int i = 0; i < 2; i++) { /* a node that has it at hand, and one that has never seen it */
		struct version *none = NULL;

		EXPECT_CALL(open_it(i ? other : shelf, "1", &none, e), -ERR_EDAMAGED, e);
		EXPECT(strstr(e->text, "ckpt/a b version 1: ") &&
		       strstr(e->text, "00000000000000000001/root is of save ") &&
		       strstr(e->text, "but the index has save 0000000000000100"));
		EXPECT(!none);
	}
	set_save_id(shelf, 1, save_id);
	EXPECT_INT(shelf_compare(shelf, bundle, "1", 1), 0);
	EXPECT_INT(shelf_compare(other, bundle, "1", 1), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		SHELF_STORY(an_index_older_than_the_store_is_noticed),
		SHELF_STORY(a_slot_that_was_never_recorded_is_not_an_older_index),
		SHELF_STORY(a_root_of_another_save_than_the_index_has_is_not_opened),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
