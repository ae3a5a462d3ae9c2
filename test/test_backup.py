"""docs/backup.md: its commands copy a store while it is saved to and deleted from, and a cluster is restored from the copy."""
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from place import ROOT, Cluster

sys.path.insert(0, str(ROOT / "python"))
import forebay  # noqa: E402

(COMMANDS,) = re.findall(r"^```sh\n(.*?)^```", (ROOT / "docs" / "backup.md").read_text(), re.M | re.S)
BUNDLES = ("ckpt/a", "p", "v")  # some are named as parts of keys are
LIMIT_S = 60


@pytest.fixture
def restored(make_folder) -> Iterator[Cluster]:
    own = Cluster(make_folder() / "restored")
    try:
        yield own
    finally:
        own.end()


def data(bundle: str, number: int) -> bytes:
    return f"{bundle} {number} ".encode() * 20_000


class Busy(threading.Thread):
    """Saves to a bundle, labels, and deletes the oldest but one, all the time."""

    def __init__(self, cluster: Cluster, bundle: str) -> None:
        super().__init__()
        self.cluster, self.bundle, self.durable, self.deleted = cluster, bundle, 0, {0}
        self.over, self.rounds, self.error = threading.Event(), threading.Semaphore(0), None

    def run(self) -> None:
        try:
            with forebay.connect(str(self.cluster.socket())) as fb:
                with fb.join(f"busy {self.bundle}", run="1", rank=0, size=1) as group:
                    while not self.over.is_set():
                        self.round(fb, group)
        except Exception as error:  # noqa: BLE001
            self.error = error
        self.rounds.release(1000)

    def round(self, fb: forebay.Session, group: forebay.Group) -> None:
        number = self.durable + 1
        with group.save(self.bundle, step=number) as saving:
            saving.add("data", data(self.bundle, number))
        saving.durable.wait(LIMIT_S)
        self.durable = saving.version
        fb.label(self.bundle, "p", number)
        if number > 4:
            self.deleted.add(number - 3)  # from now on it may be gone
            try:
                fb.delete(self.bundle, number - 3)
            except forebay.Error as error:
                assert error.name == "EBUSY" and "backup" in str(error), error
        self.rounds.release()

    def wait(self, rounds: int) -> None:
        for _ in range(rounds):
            assert self.rounds.acquire(timeout=LIMIT_S)
        assert not self.error, self.error


def copy(store: object, to: object, commands: str = COMMANDS) -> None:
    done = subprocess.run(["bash", "-euc", commands], env={**os.environ, "STORE": str(store), "COPY": str(to)},
                          capture_output=True, text=True, timeout=LIMIT_S)  # fmt: skip
    assert not done.returncode, done.stderr


def restore(cluster: Cluster, store: object) -> dict[str, dict]:
    """A cluster on that store, its index rebuilt: its bundles by name."""
    assert "forebay meta rebuild" in cluster.up(2, "--store", f"dir:{store}", status=1).stderr
    cluster.run("meta", "rebuild")
    return {bundle["name"]: bundle for bundle in json.loads(cluster.run("ls", "-r", "--json").stdout)["bundles"]}


def test_a_store_that_is_copied_while_it_is_used_is_restored_whole(cluster, restored):
    cluster.up(2)
    store, to = cluster.folder / "store", restored.folder.parent / "copy"
    jobs = [Busy(cluster, bundle) for bundle in BUNDLES]
    for job in jobs:
        job.start()
    try:
        for _ in range(2):  # the second time into the same folder
            for job in jobs:
                job.wait(6)
            before = {}
            for job in jobs:  # the newest goes in, however long it takes
                number = before[job.bundle] = job.durable
                cluster.run("label", job.bundle, "backup", number)
            copy(store, to)
            gone = {job.bundle: set(job.deleted) for job in jobs}
    finally:
        for job in jobs:
            job.over.set()
            job.join(LIMIT_S)
    assert not [job.error for job in jobs if job.error]
    bundles = restore(restored, to)
    with forebay.connect(str(restored.socket())) as fb:
        for bundle in BUNDLES:
            numbers = {version["number"] for version in bundles[bundle]["versions"]}
            assert set(range(1, before[bundle] + 1)) - gone[bundle] <= numbers
            assert bundles[bundle]["labels"]["backup"] == before[bundle] and before[bundle] in numbers, (bundles[bundle], before)
            for number in numbers:
                with fb.open(bundle, number) as version:
                    assert version.read("data") == data(bundle, number)
            restored.run("verify", f"{bundle}@{max(numbers)}")
        restored.run("gc")
        counters = fb.status()["counters"]
        assert not counters["collect_missing_packs"] and not counters["collect_unclear_objects"], counters
    cluster.run("verify", f"{BUNDLES[0]}@latest")  # and the first goes on with its own


def test_a_copy_that_is_put_in_place_is_told_by_an_engine_that_was_started_since(cluster):
    cluster.up(1)
    with forebay.connect(str(cluster.socket())) as fb, fb.join("g", run="1", rank=0, size=1) as group:
        with group.save("m", step=1) as saving:
            saving.add("data", data("m", 1))
        saving.durable.wait(LIMIT_S)
    copy(cluster.folder / "store", cluster.folder / "copy")
    cluster.down()
    cluster.up()
    cluster.down()
    (cluster.folder / "store").rename(cluster.folder / "right")
    shutil.copytree(cluster.folder / "copy", cluster.folder / "store")
    assert "an older copy" in cluster.up(status=1).stderr
    (cluster.folder / "meta").rename(cluster.folder / "old-meta")
    assert "forebay meta rebuild" in cluster.up(status=1).stderr
    cluster.run("meta", "rebuild")
    with forebay.connect(str(cluster.socket())) as fb:
        assert fb.open("m", 1).read("data") == data("m", 1)
