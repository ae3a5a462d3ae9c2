"""Images of a disk that crashed: 200 here, 10,000 by `make crash-disk`."""
import pytest

import crash_disk

IMAGES = 200


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("crash")
    return crash_disk.record_history(folder), f"{folder}/c"


def test_every_image_opens_and_nothing_durable_is_missing(recorded):
    assert crash_disk.try_images(*recorded, IMAGES) == []


@pytest.mark.parametrize("deaf", ["object", "folder", "index"])
def test_a_disk_that_only_pretends_to_sync_is_found_out(recorded, deaf):
    """The harness itself: without that kind of sync something must be missing."""
    assert crash_disk.try_images(*recorded, IMAGES, deaf=(deaf,), enough=1)
