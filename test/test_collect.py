"""What is kept and what goes: rules, deletion and collection by real daemons, also by ones that die on the way; and life without an index."""
import json
import random
import shutil

import forebay
import pytest

import job

# Of src/base/point.h: those that a deletion, a rule, or a collection passes.
POINTS = ("delete-marked", "delete-tombstone", "delete-unindexed", "rule-put", "collect-found", "collect-deleted", "floor-put",
          "floor-indexed")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with job.Cluster(tmp_path_factory.mktemp("collect"), 2) as cluster:
        yield cluster


def data(bundle, step):
    return random.Random(f"{bundle} {step}").randbytes(100_000)


def save_steps(cluster, bundle, *steps):
    def body(group, rank):
        return [job.save(group, bundle, step, [("data", data(bundle, step), {})]).version for step in steps]

    return job.good(job.ranks(cluster, 1, body))[0]


def numbers(cluster, bundle):
    with cluster.connect() as fb:
        return [version.number for version in fb.versions(bundle)]


def keys(cluster, bundle, part=""):
    folder = cluster.store / "t" / "default" / "b" / bundle.replace("/", "%2F") / part
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def gc(cluster, *words):
    return json.loads(cluster.forebay("gc", "--json", *words))


def test_a_rule_is_shown_applied_and_kept_by_a_rebuild(cluster):
    bundle = "keep/a"
    save_steps(cluster, bundle, *range(1, 9))
    assert cluster.forebay("retain", bundle) == "all\n"
    with cluster.connect() as fb:
        fb.label(bundle, "prod", 2)
        fb.retain(bundle, last=2, every=5)
        (listed,) = fb.list(bundle)
        assert (listed.keep_last, listed.keep_every) == (2, 5)
    job.until(lambda: numbers(cluster, bundle) == [2, 5, 7, 8], lambda: f"versions are {numbers(cluster, bundle)}")
    save_steps(cluster, bundle, 9)
    job.until(lambda: numbers(cluster, bundle) == [2, 5, 8, 9], lambda: f"versions are {numbers(cluster, bundle)}")

    assert cluster.forebay("retain", bundle) == "--last 2 --every 5\n"
    assert "kept: last 2, each 5" in cluster.forebay("ls", bundle)
    assert "kept: last 2, each 5" in cluster.forebay("show", bundle)
    assert json.loads(cluster.forebay("ls", bundle, "--json"))["bundles"][0]["retain"] == {"last": 2, "every": 5}
    before = cluster.forebay("ls", "-r", "--json")
    cluster.forebay("meta", "rebuild")
    cluster.wait_ready()
    assert cluster.forebay("ls", "-r", "--json") == before
    cluster.forebay("retain", bundle, "--all")
    assert cluster.forebay("retain", bundle) == "all\n"


@pytest.mark.parametrize("words", [("--every", "3"), ("--all", "--last", "2"), ("--last", "0")])
def test_a_rule_that_is_none_is_refused(cluster, words):
    refused = cluster.run("retain", "keep/none", *words)
    assert refused.returncode == 2 and refused.stderr


def test_a_version_that_somebody_has_open_is_not_deleted(cluster):
    bundle = "keep/open"
    save_steps(cluster, bundle, 1, 2)
    with cluster.connect(1) as fb:
        version = fb.open(bundle, 1)
        refused = cluster.run("rm", f"{bundle}@1")
        assert refused.returncode == 1 and "read on node node-1" in refused.stderr
        version.close()
        cluster.forebay("rm", f"{bundle}@1")
        with pytest.raises(forebay.Error, match="deleted"):
            fb.open(bundle, 1)


def test_gc_frees_what_nothing_needs_and_tells_what_it_does_not_know(cluster):
    for attempt in range(5):  # a round in the background, each 30 s, may come between and do it
        bundle = f"keep/gc{attempt}"
        save_steps(cluster, bundle, 1, 2, 3)
        for number in (1, 2):
            cluster.forebay("rm", f"{bundle}@{number}")
        assert len(keys(cluster, bundle, "p")) == 1
        mine = cluster.store / "t" / "default" / "b" / f"keep%2Fgc{attempt}" / "p" / "mine.txt"
        mine.write_text("not Forebay's")
        counts = gc(cluster, bundle)
        assert counts["packs_missing"] == 0
        assert counts["unclear"] == [str(mine.relative_to(cluster.store))] and mine.exists()
        if counts["tombstones_folded"]:
            break
    assert counts["tombstones_folded"] == 2
    assert [key for key in keys(cluster, bundle, "v") if key.endswith("root")] == [f"{3:020}/root"]
    assert keys(cluster, bundle, "floor") == [f"{3:020}"]
    with cluster.connect() as fb, pytest.raises(forebay.Error, match="deleted"):
        fb.open(bundle, 1)
    cluster.forebay("verify", f"{bundle}@3")


def test_a_pack_that_is_missing_is_an_alarm(cluster):
    bundle = "keep/lost"
    save_steps(cluster, bundle, 1)
    (pack,) = keys(cluster, bundle, "p")
    (cluster.store / "t" / "default" / "b" / "keep%2Flost" / "p" / pack).unlink()
    alarm = cluster.run("gc", bundle)
    assert alarm.returncode == 1 and "missing" in alarm.stderr
    assert "bundle.data-lost" in cluster.logs()
    cluster.forebay("rm", f"{bundle}@1")


def expected_bytes(cluster, bundle, number):
    with cluster.connect() as fb:
        version = fb.open(bundle, number)
        out = bytearray(100_000)
        with fb.load(version) as load:
            load.into("data", out)
        version.close()
    assert bytes(out) == data(bundle, number)


@pytest.mark.parametrize("point", POINTS)
def test_a_collection_that_dies_is_done_again(cluster, point):
    bundle = f"dies/{point}"
    save_steps(cluster, bundle, *range(1, 7))
    cluster.kill(0)
    cluster.start(0, die_at=point)
    for words in (("rm", f"{bundle}@1"), ("rm", f"{bundle}@2"), ("retain", bundle, "--last", "2"), ("gc", bundle)):
        if cluster.run(*words).returncode != 0:
            break
    job.until(lambda: not cluster.running(0), f"{point} is reached")
    cluster.kill(0)
    cluster.start(0)

    left = numbers(cluster, bundle)
    assert left[-2:] == [5, 6] and all(number in (1, 2, 3, 4) for number in left[:-2])
    for number in left:
        expected_bytes(cluster, bundle, number)
    for number in (1, 2):
        cluster.forebay("rm", f"{bundle}@{number}")
    cluster.forebay("retain", bundle, "--last", "2")
    assert gc(cluster, bundle)["packs_missing"] == 0
    assert numbers(cluster, bundle) == [5, 6]
    assert gc(cluster, bundle)["objects_found"] == 0
    assert len(keys(cluster, bundle, "p")) == 2 and len(keys(cluster, bundle, "v")) == 8
    assert keys(cluster, bundle, "floor") == [f"{5:020}"]
    for number in (5, 6):
        expected_bytes(cluster, bundle, number)
    assert save_steps(cluster, bundle, 7) == [7]


@pytest.mark.parametrize("point", ("slot-put", "slot-open", "pack-durable"))
def test_a_put_whose_daemon_dies_leaves_nothing(cluster, tmp_path, point):
    """Nobody joins its group again, and at slot-put the index does not even know the bundle: collection alone ends the slot."""
    bundle = f"put/{point}"
    (tmp_path / "file").write_bytes(data(bundle, 1))
    cluster.kill(1)
    cluster.start(1, die_at=point)
    cluster.wait_ready()
    assert cluster.run("put", bundle, str(tmp_path / "file"), node=1).returncode != 0
    job.until(lambda: not cluster.running(1), f"{point} is reached")
    assert f"v/{1:020}/slot" in keys(cluster, bundle)

    def is_clean():
        gc(cluster, bundle)
        return keys(cluster, bundle) == [f"floor/{2:020}"]

    job.until(is_clean, lambda: f"there is {keys(cluster, bundle)}")
    cluster.kill(1)
    cluster.start(1)
    cluster.wait_ready()
    cluster.forebay("put", bundle, str(tmp_path / "file"), node=1)
    assert numbers(cluster, bundle) == [2]


def test_what_the_parent_has_is_written_again_only_when_little_of_it_is_left(cluster):
    bundle, items = "keep/child", 10

    def save(step, parent, changed):
        def body(group, rank):
            for i in changed:
                state[i] = random.Random(f"{step} {i}").randbytes(100_000)
            pieces = [(f"w{i}", state[i], {}) for i in range(items)]
            return job.save(group, bundle, step, pieces, parent=parent).version

        return job.good(job.ranks(cluster, 1, body))[0]

    def check(number):
        out = [bytearray(100_000) for _ in range(items)]
        with cluster.connect(1) as fb:
            version = fb.open(bundle, number)
            with fb.load(version) as load:
                for i in range(items):
                    load.into(f"w{i}", out[i])
            version.close()
        assert [bytes(o) for o in out] == state
        cluster.forebay("verify", f"{bundle}@{number}")

    state = [None] * items
    assert save(1, 0, range(items)) == 1
    whole = job.du(cluster.store)
    assert save(2, 1, [3]) == 2
    assert job.du(cluster.store) - whole < 200_000  # one of ten
    check(2)
    cluster.forebay("rm", f"{bundle}@1")
    assert gc(cluster, bundle)["packs_missing"] == 0
    check(2)
    assert save(3, 2, range(1, 7)) == 3  # of the first pack four of ten are left: less than half
    check(3)
    cluster.forebay("rm", f"{bundle}@2")
    gc(cluster, bundle)
    check(3)
    assert len(keys(cluster, bundle, "p")) == 1


def test_without_the_index_versions_are_read_from_the_store(cluster):
    bundle = "keep/alone"
    save_steps(cluster, bundle, 1, 2)
    with cluster.connect(1) as fb:
        fb.label(bundle, "prod", 1)
        opened = fb.open(bundle, 1)
        cluster.kill(0)
        out = bytearray(100_000)
        with fb.load(opened) as load:
            load.into("data", out)
        assert bytes(out) == data(bundle, 1)
        shown = json.loads(cluster.forebay("show", f"{bundle}@2", "--json", node=1))
        assert (shown["number"], shown["unindexed"]) == (2, True)
        for spec, number in (("latest", 2), ("prod", 1)):
            assert json.loads(cluster.forebay("show", f"{bundle}@{spec}", "--json", node=1))["number"] == number
        assert cluster.run("rm", f"{bundle}@2", node=1).returncode == 1
    cluster.start(0)
    cluster.wait_ready()
    assert json.loads(cluster.forebay("show", f"{bundle}@2", "--json", node=1))["unindexed"] is False


def test_an_older_copy_of_the_index_is_refused_until_a_rebuild(cluster):
    bundle = "keep/older"
    save_steps(cluster, bundle, 1)
    cluster.stop()
    copy = cluster.meta.with_name("older")
    shutil.copytree(cluster.meta, copy)
    cluster.launch()
    cluster.wait_ready()
    save_steps(cluster, bundle, 2)
    before = cluster.forebay("ls", "-r", "--json")
    cluster.stop()
    shutil.rmtree(cluster.meta)
    copy.rename(cluster.meta)
    cluster.launch()
    for node in range(2):
        job.until(lambda: "older than the store" in cluster.run("ls", node=node).stderr, "the older index is refused")
    cluster.forebay("status")
    cluster.forebay("meta", "rebuild")
    cluster.wait_ready()
    assert cluster.forebay("ls", "-r", "--json") == before
    assert save_steps(cluster, bundle, 3) == [3]
