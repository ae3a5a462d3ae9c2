/* bundle/check_test.c: an index that is older than the store is noticed. */
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		SHELF_STORY(an_index_older_than_the_store_is_noticed),
		SHELF_STORY(a_slot_that_was_never_recorded_is_not_an_older_index),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
