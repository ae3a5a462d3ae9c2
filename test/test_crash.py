"""Daemons that end by SIGKILL at each named point of publication: a version is wholly there or not at all.

A job of two ranks saves step 1, then step 2, in which one node (or both) dies at the point. Daemons are started again. What is
listed then is whole and agrees with what the ranks were told; the next save works and clears up what the dead one left.
"""
import os
import random
import re
from concurrent.futures import ThreadPoolExecutor

import forebay
import pytest

import job

# The points of src/base/point.h, and the steps that are there after the next save: with step 2, without it, or either.
LOST, PUBLISHED, EITHER = [1, 3], [1, 2, 3], None
POINTS = {
    "save-planned": LOST,
    "save-captured": LOST,
    "save-kept": LOST,
    "save-staged": LOST,
    "slot-put": LOST,
    "slot-open": LOST,
    "pack-begun": LOST,
    "pack-part": LOST,
    "pack-written": LOST,
    "pack-durable": LOST,
    "segments-durable": LOST,
    "root-next": LOST,
    "root-durable": PUBLISHED,
    "index-durable": PUBLISHED,
    "save-told": PUBLISHED,
    "object-linked": EITHER,  # of the coordinator: its slot, pack, segments, root, one each round
}
UPLOADERS = ("pack-begun", "pack-part", "pack-written", "pack-durable")
ROUNDS = 5
LONG = bool(os.environ.get("FOREBAY_LONG"))
# In short one round of each point, of either node: a successor has to wait for the lease of the one that died, after a restart of the
# engine for ten seconds.
CASES = [(point, round_) for i, point in enumerate(POINTS) for round_ in (range(ROUNDS) if LONG else [0 if i % 4 == 0 else 1])]
SHARD = 200_003
BUNDLE = "ckpt/a"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with job.Cluster(tmp_path_factory.mktemp("crash"), 2) as cluster:
        yield cluster


def pieces(bundle, step, rank):
    """Replicas, shards, something small, and zeros; other bytes in each step."""
    dice = random.Random(f"{bundle} {step}")
    both = dice.randbytes(300_000)
    shards = [dice.randbytes(SHARD) for _ in range(2)]
    return [
        ("both", both, {}),
        ("shards", shards[rank], {"shape": (2 * SHARD,), "start": (rank * SHARD,)}),
        ("small", step.to_bytes(8, "little"), {}),
        ("zero", bytes(SHARD), {"shape": (2 * SHARD,), "start": (rank * SHARD,)}),
    ]


def expected(bundle, step):
    parts = [pieces(bundle, step, rank) for rank in range(2)]
    return {
        "both": parts[0][0][1],
        "shards": parts[0][1][1] + parts[1][1][1],
        "small": parts[0][2][1],
        "zero": bytes(2 * SHARD),
    }


def save_step(cluster, bundle, step, coordinator=None):
    def body(group, rank):
        return job.save(group, bundle, step, pieces(bundle, step, rank)).version

    return job.ranks(cluster, 2, body, coordinator=coordinator)


def listed(cluster, bundle):
    """The versions: (number, step)."""
    with cluster.connect() as fb:
        return [(v.number, v.step) for v in fb.versions(bundle)]


def check_versions(cluster, bundle, versions):
    """All are clean and listed at both nodes, and `latest` is the last of them; its bytes are those of its step."""
    for node in range(2):
        with cluster.connect(node) as fb:
            assert [(v.number, v.step) for v in fb.versions(bundle)] == versions
            with fb.open(bundle) as version:
                assert (version.number, version.step) == versions[-1]
                assert {item.name: version.read(item.name) for item in version.items()} == expected(bundle, version.step)
    for number, _ in versions:
        cluster.forebay("verify", f"{bundle}@{number}")


def die(cluster, point, round_, bundle):
    """Saves step 2, in which the victims die at the point. What the ranks were told."""
    victims = [(0,), (1,), (0,), (1,), (0, 1)][round_]
    coordinator = victims[0] if point not in UPLOADERS else [0, 0, 1, 1, 0][round_]
    count = round_ + 1 if point == "object-linked" else 1
    cluster.kill(*victims)
    cluster.start(*victims, die_at=f"{point}:{count}")
    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(save_step, cluster, bundle, 2, coordinator)
        job.until(lambda: not all(map(cluster.running, victims)), f"{point} is reached")
        reached = [node for node in victims if not cluster.running(node)]
        assert all(cluster.daemons[node].returncode == -9 for node in reached)
        cluster.kill(*victims)
        cluster.start(*victims)  # the meta engine is one of them: who survived waits for it
        return told.result()


@pytest.mark.parametrize("point, round_", CASES)
def test_a_save_that_dies(cluster, point, round_):
    bundle = job.unique(f"crash/{point}")
    assert job.good(save_step(cluster, bundle, 1)) == [1, 1]
    told = die(cluster, point, round_, bundle)

    published = False  # as the ranks know
    for words in told:
        if isinstance(words, forebay.Error):
            published |= words.name == "FOREBAY_EUNINDEXED"
            assert re.search(r"\bnode-[01]\b", str(words)), f"{words.name}: {words} names no node"
        else:
            assert words == 2
            published = True
    before = listed(cluster, bundle)
    assert before == [(1, 1), (2, 2)] or before == [(1, 1)] and not published
    check_versions(cluster, bundle, before)

    number, _ = job.good(save_step(cluster, bundle, 3))
    after = listed(cluster, bundle)
    assert after[: len(before)] == before and after[-1] == (number, 3)
    steps = [step for _, step in after]
    assert steps == POINTS[point] or not POINTS[point] and steps in (LOST, PUBLISHED)
    check_versions(cluster, bundle, after)
