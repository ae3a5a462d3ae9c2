"""One store belongs to one cluster: another's, an older copy of its own, and a second engine on it are told by name, and nothing is lost."""
import os
import shutil
import sys
from collections.abc import Iterator

import pytest

from place import ROOT, Cluster, wait_until

sys.path.insert(0, str(ROOT / "python"))
import forebay  # noqa: E402

LOOK_LIMIT_S = 60  # for an engine to see that its store is another's: it looks each 2 s


@pytest.fixture
def other(make_folder) -> Iterator[Cluster]:
    """A second folder for `forebay up`."""
    own = Cluster(make_folder() / "other")
    try:
        yield own
    finally:
        own.end()


def save(cluster: Cluster, bundle: str, step: int, data: bytes, **more: object) -> int:
    with forebay.connect(str(cluster.socket())) as session:
        with session.join(f"test-{bundle}", run=os.urandom(8).hex(), rank=0, size=1) as group:
            with group.save(bundle, step=step, **more) as saving:
                saving.add("data", data)
            saving.durable.wait(60)
            return saving.version


def read(cluster: Cluster, bundle: str, version: int) -> bytes:
    with forebay.connect(str(cluster.socket())) as session:
        return bytes(session.open(bundle, version).read("data"))


def data(whose: str, step: int) -> bytes:
    return f"{whose} {step} ".encode() * 10_000


def refusal(cluster: Cluster, *words: object) -> str:
    return cluster.run(*words, status=None).stderr


def test_a_store_of_another_cluster_is_not_taken_for_the_own_one(cluster, other):
    for each, whose in ((cluster, "a"), (other, "b")):
        each.up(2)
        for step in (1, 2):
            save(each, "m", step, data(whose, step))
        each.down()
    (cluster.folder / "store").rename(cluster.folder / "right")
    shutil.copytree(other.folder / "store", cluster.folder / "store")
    error = cluster.up(status=1).stderr
    assert f"{cluster.folder}/store is another store than the index is of, or an older copy of it" in error
    assert not cluster.daemons()
    shutil.rmtree(cluster.folder / "store")
    (cluster.folder / "right").rename(cluster.folder / "store")
    cluster.up()
    assert [read(cluster, "m", n) for n in (1, 2)] == [data("a", n) for n in (1, 2)]


def test_an_older_copy_of_the_store_is_not_joined(cluster):
    cluster.up(1)
    save(cluster, "m", 1, data("a", 1))
    cluster.down()
    shutil.copytree(cluster.folder / "store", cluster.folder / "old")
    cluster.up()
    save(cluster, "m", 2, data("a", 2))
    cluster.down()
    (cluster.folder / "store").rename(cluster.folder / "new")
    (cluster.folder / "old").rename(cluster.folder / "store")
    error = cluster.up(status=1).stderr
    assert "has no object g/1.1, only g/1: is it mounted?" in error and "an older copy" in error
    assert not (cluster.folder / "store" / "g" / "1.1").exists()
    (cluster.folder / "store").rename(cluster.folder / "old")
    (cluster.folder / "new").rename(cluster.folder / "store")
    cluster.up()
    assert [read(cluster, "m", n) for n in (1, 2)] == [data("a", n) for n in (1, 2)]


def test_a_cluster_whose_store_another_has_taken_over_stops_and_says_so(cluster, other):
    cluster.up(2)
    save(cluster, "m", 1, data("a", 1))
    error = other.up(1, "--store", f"dir:{cluster.folder}/store", status=1).stderr
    assert "the store has generation 1 of another" in error
    assert save(cluster, "m", 2, data("a", 2)) == 2  # who only tried has not taken it
    other.run("meta", "rebuild")
    for node in range(2):
        def is_told(node: int = node) -> bool:
            environment = {**cluster.environment(), "FOREBAY_SOCKET": str(cluster.socket(node))}
            return "has been taken over by cluster" in cluster.run("ls", status=None, env=environment).stderr

        wait_until(is_told, LOOK_LIMIT_S, f"node {node} says so")
    with pytest.raises(forebay.Error, match="has been taken over by cluster") as caught:
        save(cluster, "m", 3, data("a", 3), parent=1)
    assert caught.value.name == "FOREBAY_EREBUILD"
    for words in (("rm", "m@1"), ("gc",), ("label", "m", "prod", 1)):
        assert "has been taken over by cluster" in refusal(cluster, *words)
    assert "cluster.store-taken" in (cluster.folder / "node-0" / "log").read_text()
    assert [read(other, "m", n) for n in (1, 2)] == [data("a", n) for n in (1, 2)]
    assert save(other, "m", 9, data("b", 9)) == 3
    other.down()

    cluster.down()  # and back: the other one has ended
    assert "older than the store" in cluster.up(status=1).stderr
    cluster.run("meta", "rebuild")
    assert read(cluster, "m", 3) == data("b", 9)


def copy_place(cluster: Cluster, other: Cluster) -> None:
    """Another folder for `up`, with a copy of the index, on the same store."""
    shutil.copytree(cluster.folder / "meta", other.folder / "meta")
    shutil.copy(cluster.folder / "key", other.folder / "key")
    text = (cluster.folder / "cluster.json").read_text()
    (other.folder / "cluster.json").write_text(text.replace(f"lmdb:{cluster.folder}/", f"lmdb:{other.folder}/"))


def test_a_copied_index_is_no_second_engine_of_a_store(cluster, other):
    cluster.up(1)
    save(cluster, "m", 1, data("a", 1))
    cluster.down()
    other.folder.mkdir()
    copy_place(cluster, other)
    cluster.up()
    error = other.up(status=1).stderr
    assert "which another engine has used since" in error and "(its object g/1.1; this index is of g/1)" in error
    assert "another engine has used" in refusal(other, "rm", "m@1")
    assert save(cluster, "m", 2, data("a", 2)) == 2
    other.down()


def test_an_engine_stops_when_a_copy_of_its_index_is_started(cluster, other):
    cluster.up(1)
    save(cluster, "m", 1, data("a", 1))
    other.folder.mkdir()
    copy_place(cluster, other)  # nothing is written to it at this moment
    other.up()
    wait_until(lambda: "has been taken over by cluster" in refusal(cluster, "rm", "m@1"), LOOK_LIMIT_S, "the first stops")
    with pytest.raises(forebay.Error, match="has been taken over by cluster"):
        save(cluster, "m", 2, data("a", 2))
    assert save(other, "m", 2, data("b", 2)) == 2
    assert read(other, "m", 1) == data("a", 1)
