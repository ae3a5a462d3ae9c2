"""A job that was restarted opens what its last run has staged, while the store still takes its time.

The store of both nodes is slow: its syncs take until the test has seen enough, so a save is staged long before it is durable.
"""
import random

import forebay
import pytest

import job
from test_disks import sick_cluster

SLOW_MS = job.LIMIT_S * 1000
SHARD = 300_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    yield from sick_cluster(tmp_path_factory.mktemp("staged"))


def pieces(step, rank):
    dice = random.Random(f"{step} {rank}")
    return [
        ("shards", dice.randbytes(SHARD), {"shape": (2 * SHARD,), "start": (rank * SHARD,)}),
        ("both", random.Random(step).randbytes(100_000), {}),
        ("zero", bytes(200_000), {}),
        ("step", step.to_bytes(8, "little"), {}),
    ]


def expected(step):
    first, second = pieces(step, 0), pieces(step, 1)
    return {"shards": first[0][1] + second[0][1], "both": first[1][1], "zero": first[2][1], "step": first[3][1]}


class Slow:
    def __init__(self, cluster):
        self.cluster = cluster

    def __enter__(self):
        for control in self.cluster.sick:
            control.slow("sync", ms=SLOW_MS, path=str(self.cluster.store) + "/.tmp")

    def __exit__(self, *exception):
        for control in self.cluster.sick:
            control.heal()


def begin(group, bundle, step, rank, **options):
    with group.save(bundle, step=step, **options) as saving:
        for name, data, more in pieces(step, rank):
            saving.add(name, data, **more)
    return saving


@pytest.mark.parametrize("copies", [1, 2])
def test_the_next_run_loads_what_is_staged_from_memory(cluster, copies):
    bundle, name = job.unique("staged"), job.unique()

    def first(group, rank):
        job.save(group, bundle, 1, pieces(1, rank), copies=copies)
        with Slow(cluster):
            saving = begin(group, bundle, 2, rank, copies=copies)
            saving.staged.wait(job.LIMIT_S)
            got, alone = restart(rank)
        saving.durable.wait(job.LIMIT_S)
        return got, alone, saving.version

    def restart(rank):
        with cluster.connect(rank) as fb:
            group = fb.join(name, run="1", rank=rank, size=2, timeout=job.LIMIT_S)
            with fb.open(bundle, "staged", group) as version:
                assert (version.number, version.step) == (0, 2)
                assert [item.name for item in version.items()] == sorted(expected(2))
                got = {item: bytearray(len(data)) for item, data in expected(2).items()}
                with group.load(version) as load:
                    for item, target in got.items():
                        load.into(item, target)
                return got, {item: version.read(item) for item in got}

    for got, alone, number in job.good(job.ranks(cluster, 2, first, name=name)):
        assert number == 2
        assert got == expected(2) and alone == expected(2)

    def afterwards(group, rank):  # nothing is between staged and durable: the newest
        with cluster.connect(rank) as fb:
            mine = fb.join(name, run="3", rank=rank, size=2, timeout=job.LIMIT_S)
            with fb.open(bundle, "staged", mine) as version:
                return version.number

    assert job.good(job.ranks(cluster, 2, afterwards, name=name, run="2")) == [2, 2]


def test_a_staged_version_needs_a_rank_of_its_group(cluster):
    bundle = job.unique("staged")
    with cluster.connect() as fb:
        with pytest.raises(forebay.Error, match="by a rank of the group that saves it"):
            fb.open(bundle, "staged")
        group = fb.join(job.unique(), run="0", rank=0, size=1, timeout=job.LIMIT_S)
        with pytest.raises(forebay.Error) as caught:
            fb.open(bundle, "staged", group)
        assert caught.value.name == "ENOENT"


def test_a_store_that_hangs_holds_up_neither_captures_nor_the_index(cluster):
    """More calls than the daemon has workers hang in the store; hashes, copies and the index have workers of their own."""
    n_hung = 20  # beyond the 16 workers that a daemon has at most
    control = cluster.sick[0]
    with cluster.connect() as fb:
        job.good(job.ranks(cluster, 1, lambda group, rank: job.save(group, "before", 1, [("a", b"x", {})]).version))
        control.slow("create", ms=3_600_000, path=f"{cluster.store}/.tmp")
        groups = [fb.join(job.unique(), run="0", rank=0, size=1, timeout=job.LIMIT_S) for _ in range(n_hung + 1)]
        hung = [begin(group, job.unique("hung"), 1, 0) for group in groups[:n_hung]]
        job.until(lambda: control.seen >= 2, "no call hangs in the store")
        saving = begin(groups[n_hung], job.unique("hung"), 1, 0)
        saving.captured.wait(job.LIMIT_S)
        saving.staged.wait(job.LIMIT_S)
        assert "before" in [bundle.name for bundle in fb.list()]
        control.heal()
        for each in (*hung, saving):
            each.durable.wait(job.LIMIT_S)
