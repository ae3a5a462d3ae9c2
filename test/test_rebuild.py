"""The index is lost and made again from the store alone: what was listed is listed again, byte for byte."""
import json
import random
import shutil
import threading

import forebay
import pytest

import job

# bundle: steps of its versions, numbers that are deleted at the end, labels by the numbers that they moved over; 0: removed
STORY = {
    "ckpt/llama": ([10, 20, 30, 40], [2], {"prod": [1, 3], "best": [2, 4, 1], "old": [2, 0]}),
    "ckpt/tiny": ([1], [], {}),
    "models/a.b-c_d": ([5, 6], [1], {"prod": [2], "again": [1, 0, 2, 0]}),
    "models/gone": ([1, 2], [1, 2], {"label": [2, 0]}),
    "models/last gone": ([1, 2, 3], [3], {"first": [1]}),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with job.Cluster(tmp_path_factory.mktemp("rebuild"), 2) as cluster:
        yield cluster


def data(bundle, step):
    return random.Random(f"{bundle} {step}").randbytes(100_000 + step)


def save_one(cluster, bundle, step):
    def body(group, rank):
        attributes = {"by": "test", "step": str(step)}
        return job.save(group, bundle, step, [("data", data(bundle, step), {})], attributes=attributes).version

    return job.good(job.ranks(cluster, 2, body))[0]


def tell_story(cluster):
    with cluster.connect(1) as fb:
        for bundle, (steps, deleted, labels) in STORY.items():
            for number, step in enumerate(steps, 1):
                assert save_one(cluster, bundle, step) == number
            for label, numbers in labels.items():
                for number in numbers:
                    fb.label(bundle, label, number)
            for number in deleted:
                fb.delete(bundle, number)


def test_the_index_is_made_again_from_the_store(cluster):
    tell_story(cluster)
    before = cluster.forebay("ls", "-r", "--json")
    assert {b["name"]: b["labels"] for b in json.loads(before)["bundles"] if b["versions"]} == {
        "ckpt/llama": {"prod": 3, "best": 1},
        "ckpt/tiny": {},
        "models/a.b-c_d": {"prod": 2},
        "models/last gone": {"first": 1},
    }
    store = job.du(cluster.store)

    cluster.stop()
    shutil.rmtree(cluster.meta)
    cluster.launch()
    for node in range(2):  # no half answers, but how to go on
        job.until(lambda: "forebay meta rebuild" in refused(cluster, node), lambda: f"words: {refused(cluster, node)}")
    listing = cluster.run("ls", "-r")
    assert listing.returncode != 0 and "forebay meta rebuild" in listing.stderr and not listing.stdout

    cluster.forebay("meta", "rebuild")
    cluster.wait_ready()
    for node in range(2):
        assert cluster.forebay("ls", "-r", "--json", node=node) == before
    with cluster.connect() as fb:
        generation = fb.status()["generation"]
        assert generation > 1
        for bundle, (steps, deleted, _) in STORY.items():
            for number, step in enumerate(steps, 1):
                if number in deleted:
                    with pytest.raises(forebay.Error) as caught:
                        fb.open(bundle, number)
                    assert caught.value.name in ("FOREBAY_EDELETED", "ENOENT")
                else:
                    with fb.open(bundle, number) as version:
                        assert version.read("data") == data(bundle, step)
    cluster.verify_all()

    cluster.forebay("meta", "rebuild")  # a second one changes nothing that is listed
    cluster.wait_ready()
    assert cluster.forebay("ls", "-r", "--json") == before
    assert job.du(cluster.store) <= store + job.MIB // 4

    for bundle, (steps, _, _) in STORY.items():  # numbers are never given twice
        assert save_one(cluster, bundle, 100) == len(steps) + 1
    with cluster.connect() as fb:
        fb.label("ckpt/llama", "prod", 5, expect=3)
        assert fb.labels("ckpt/llama") == {"prod": 5, "best": 1}
    last = cluster.forebay("ls", "-r", "--json")
    cluster.kill()
    cluster.start()
    assert cluster.forebay("ls", "-r", "--json") == last


def test_a_store_that_is_not_mounted_is_refused(tmp_path):
    """An empty folder where the disk was: what is put there would be called durable, and lie under the mount."""
    with job.Cluster(tmp_path, 2) as cluster:
        save_one(cluster, "ckpt", 1)
        before = cluster.forebay("ls", "-r", "--json")
        cluster.stop()
        disk = cluster.store.rename(tmp_path / "disk")
        cluster.store.mkdir()
        cluster.launch()
        for node in range(2):
            job.until(lambda: "is it mounted?" in refused(cluster, node), lambda: f"words: {refused(cluster, node)}")
            assert f"the store {cluster.store} has no object g/1" in refused(cluster, node)
            with cluster.connect(node) as fb:
                status = fb.status()
            assert status["generation"] == 0 and "is it mounted?" in status["not_joined"]
        assert "this node has not joined its cluster yet: " in cluster.forebay("status")
        assert "is it mounted?" in json.loads(cluster.forebay("status", "--json"))["not_joined"]
        assert "is it mounted?" in cluster.forebay("top", "--once")
        rebuilding = cluster.run("meta", "rebuild")
        assert rebuilding.returncode != 0 and "is it mounted?" in rebuilding.stderr
        cluster.kill()
        assert not [path for path in cluster.store.rglob("*") if path.is_file()]
        shutil.rmtree(cluster.store)
        disk.rename(cluster.store)
        cluster.start()
        assert cluster.forebay("ls", "-r", "--json") == before
        cluster.verify_all()


def test_a_rebuild_without_the_engine_changes_nothing(tmp_path):
    with job.Cluster(tmp_path, 2) as cluster:
        save_one(cluster, "ckpt", 1)
        before = cluster.forebay("ls", "-r", "--json")
        cluster.kill(0)
        for _ in range(2):
            rebuilding = cluster.run("meta", "rebuild", node=1)
            assert rebuilding.returncode != 0 and "nothing was rebuilt: " in rebuilding.stderr
        cluster.kill(1)
        cluster.launch(1)
        job.until(lambda: cluster.run("meta", "rebuild", node=1).returncode != 0, "node-1 answers")
        assert [path.name for path in (cluster.store / "g").iterdir()] == ["1"]
        cluster.start(0)
        for node in range(2):
            assert cluster.forebay("ls", "-r", "--json", node=node) == before


def test_nodes_that_go_on_are_found_in_an_index_that_was_lost_and_made_again(tmp_path):
    with job.Cluster(tmp_path, 3) as cluster:
        cluster.kill(0)
        cluster.start(0)  # in its second life: the others remember that one
        assert save_one(cluster, "ckpt", 1) == 1
        cluster.kill(0)
        shutil.rmtree(cluster.meta)
        cluster.launch(0)
        job.until(lambda: "forebay meta rebuild" in refused(cluster, 0), "node-0 asks for a rebuild")
        cluster.forebay("meta", "rebuild")
        cluster.wait_ready()  # each node sees all three, though two were not started anew
        assert save_one(cluster, "ckpt", 2) == 2
        listing = cluster.forebay("ls", "--json")
        for node in range(1, 3):
            assert cluster.forebay("ls", "--json", node=node) == listing


def test_a_job_that_stays_joined_saves_on_over_an_index_that_was_lost_and_made_again(tmp_path):
    with job.Cluster(tmp_path, 3) as cluster:
        halt = threading.Barrier(3, timeout=job.LIMIT_S)
        versions = {1: [], 2: []}

        def live(node):
            with cluster.connect(node) as fb:
                group = fb.join("job", run="0", rank=node - 1, size=2, timeout=job.LIMIT_S)
                for step in (1, 2, 3):
                    item = ("data", data("ckpt", step), {})
                    versions[node].append(job.save(group, "ckpt", step, [item], copies=2).version)
                    if step == 1:
                        halt.wait()
                        halt.wait()

        ranks = [threading.Thread(target=live, args=(node,)) for node in versions]
        for rank in ranks:
            rank.start()
        halt.wait()
        cluster.kill(0)
        shutil.rmtree(cluster.meta)
        cluster.launch(0)
        job.until(lambda: "forebay meta rebuild" in refused(cluster, 0), "node-0 asks for a rebuild")
        cluster.forebay("meta", "rebuild")
        cluster.wait_ready()
        halt.wait()  # the group's lease, of which the index knows nothing, has not been asked for again
        for rank in ranks:
            rank.join()
        assert versions[1] == versions[2] and len(versions[1]) == 3  # in the same run, nobody joined again
        (listed,) = json.loads(cluster.forebay("ls", "-r", "--json"))["bundles"]
        assert versions[1] == sorted(version["number"] for version in listed["versions"])
        cluster.verify_all()


def test_a_grandparents_packs_outlive_a_rebuild_and_its_deletion(tmp_path):
    """Between them there was a version that nothing tells of any more, once it is deleted."""
    with job.Cluster(tmp_path, 1) as cluster:
        items = {f"i{k}": random.Random(k).randbytes(200_000) for k in range(8)}
        with cluster.connect() as fb:
            for step in range(1, 4):
                items["i0"] = random.Random(f"i0 {step}").randbytes(200_000)
                pieces = [(name, data, {}) for name, data in items.items()]
                body = lambda group, rank: job.save(group, "m", step, pieces, parent=step - 1).version
                assert job.good(job.ranks(cluster, 1, body)) == [step]
            fb.delete("m", 2)
            cluster.forebay("meta", "rebuild")
            job.until(lambda: deleted(fb, "m", 1), "it is deleted behind the rebuild")
            with fb.open("m", 3) as version:
                assert all(version.read(name) == data for name, data in items.items())
        assert "clean" in cluster.forebay("verify", "m@3")


def deleted(fb, bundle, number):
    try:
        fb.delete(bundle, number)
    except forebay.Error as error:
        assert error.name in ("EAGAIN", "EBUSY"), error
        return False
    return True


def refused(cluster, node):
    """The words with which a client is refused."""
    try:
        with cluster.connect(node) as fb:
            fb.list()
    except forebay.Error as error:
        return str(error)
    raise AssertionError("a client was served without an index")
