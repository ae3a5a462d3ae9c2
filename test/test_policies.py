"""What a save does when a node has no room for it: waits in turn, is skipped on all ranks, or replaces older ones of its group."""
import re
import signal
import threading
import time

import forebay
import pytest

import job

NODES = 3
LIMIT_S = job.LIMIT_S
POOL = 32 * job.MIB  # half of it takes captures:
LARGE = 9 * job.MIB  # two such shares do not fit into a node at once

HOLDER = """
import sys, forebay
socket, name, bundle, mib = sys.argv[1:]
group = forebay.connect(socket).join(name, run="0", rank=1, size=2, timeout=60)
with group.save(bundle, step=1) as saving:
    saving.add("x", b"h" * (int(mib) << 20), shape=(2 * (int(mib) << 20),), start=(int(mib) << 20,))
print("offered", flush=True)
saving.durable.wait(60)
print("durable", flush=True)
input()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with job.Cluster(tmp_path_factory.mktemp("policies"), NODES, POOL) as cluster:
        yield cluster


@pytest.fixture
def bundle(request):
    return job.unique(f"policies/{request.node.originalname[5:50]}")


def numbers(cluster, bundle):
    with cluster.connect() as fb:
        try:
            return {v.step: v.number for v in fb.versions(bundle)}
        except forebay.Error as error:
            assert error.name == "ENOENT"
            return {}


def used(cluster, node):
    """Bytes of the node's pool that are in use, which are never more than it has."""
    with cluster.connect(node) as fb:
        status = fb.status()
        (info,) = [n for n in status["nodes"] if n["name"] == status["node"]]
        assert info["pool_used_bytes"] <= info["pool_bytes"] == POOL
        return info["pool_used_bytes"]


def state_of(cluster, bundle, node=0):
    with cluster.connect(node) as fb:
        return [s["state"] for s in fb.status()["saves"] if s["bundle"] == bundle]


def ends_of(saving):
    """How its three stages end: None, or the error's name."""
    names = []
    for stage in (saving.captured, saving.staged, saving.durable):
        try:
            stage.wait(LIMIT_S)
            names.append(None)
        except forebay.Error as error:
            names.append(error.name)
    return names


class Held:
    """Nodes 0 and 1 each hold a large share of a save that goes on only once release() is called: its second rank is stopped."""

    def __init__(self, cluster):
        self.cluster, self.bundle = cluster, job.unique("policies/held")
        name, mib = job.unique(), LARGE // job.MIB
        self.rank = job.Rank(HOLDER, cluster.socket(1), name, self.bundle, mib)
        self.results = []

        def live():
            with cluster.connect(0) as fb:
                group = fb.join(name, run="0", rank=0, size=2, timeout=LIMIT_S)
                self.rank.wait_for("offered")
                job.until(lambda: state_of(cluster, self.bundle, 1), "its offer has come")
                self.rank.signal(signal.SIGSTOP)
                with group.save(self.bundle, step=1) as saving:
                    saving.add("x", b"g" * LARGE, shape=(2 * LARGE,), start=(0,))
                self.results.append(ends_of(saving))

        self.thread = threading.Thread(target=live)

    def __enter__(self):
        self.thread.start()
        job.until(lambda: "capturing" in state_of(self.cluster, self.bundle), "its room is taken")
        return self

    def release(self):
        self.rank.signal(signal.SIGCONT)
        self.rank.wait_for("durable")
        self.thread.join(LIMIT_S)
        assert self.results == [[None] * 3]

    def __exit__(self, *exception):
        self.rank.signal(signal.SIGCONT)
        self.rank.kill()
        self.thread.join(LIMIT_S)


def body_of(bundle, step, again, **options):
    """A rank that saves a large share, and once more when again() lets it; how it ended each time."""

    def body(group, rank):
        ends = []
        for _ in range(2):
            with group.save(bundle, step=step, **options) as saving:
                saving.add("x", bytes([65 + rank]) * LARGE, shape=(group.size * LARGE,), start=(rank * LARGE,))
            ends.append(ends_of(saving))
            if ends[-1][0] is None:
                break
            again(rank)
        return ends

    return body


def test_a_save_is_skipped_on_all_ranks_and_its_step_may_be_saved_again(cluster, bundle):
    before = used(cluster, 2)
    told = threading.Barrier(3)

    with Held(cluster) as held:

        def again(rank):
            told.wait(LIMIT_S)
            if rank == 0:
                assert numbers(cluster, bundle) == {}
                job.until(lambda: used(cluster, 2) <= before, "what node-2 had made room for is given back")
                held.release()
            told.wait(LIMIT_S)

        ends = job.good(job.ranks(cluster, 3, body_of(bundle, 5, again, policy="skip")))
    assert ends == [[["FOREBAY_ESKIPPED"] * 3, [None] * 3]] * 3
    assert numbers(cluster, bundle) == {5: 1}


def test_the_words_of_a_skipped_save_name_the_node(cluster, bundle):
    with Held(cluster), cluster.connect(1) as fb:
        group = fb.join(job.unique(), run="0", rank=0, size=1, timeout=LIMIT_S)
        with group.save(bundle, step=1, policy="skip") as saving:
            saving.add("x", b"s" * LARGE)
        with pytest.raises(forebay.Error) as caught:
            saving.durable.wait(LIMIT_S)
        assert caught.value.name == "FOREBAY_ESKIPPED" and "node-1 has no room" in str(caught.value)
        assert bundle in str(caught.value) and "step 1" in str(caught.value)
    with cluster.connect(1) as fb:  # and with room it is like any other
        group = fb.join(job.unique(), run="0", rank=0, size=1, timeout=LIMIT_S)
        assert job.save(group, bundle, 2, [("x", b"s" * LARGE, {})], policy="skip").version == 1


def test_replace_drops_no_save_of_another_group(cluster, bundle):
    """It waits for that one, as it does for one of its own that is not captured yet."""
    with Held(cluster) as held, cluster.connect(1) as fb:
        group = fb.join(job.unique(), run="0", rank=0, size=1, timeout=LIMIT_S)
        with group.save(bundle, step=1, policy="replace") as saving:
            saving.add("x", b"s" * LARGE)
        with pytest.raises(TimeoutError):
            saving.captured.wait(0.5)
        assert "reserving" in state_of(cluster, bundle, 1)
        held.release()
        assert ends_of(saving) == [None] * 3


def test_replace_drops_undurable_saves_alone_and_the_last_is_durable(cluster, bundle):
    """Saves follow each other as fast as they are captured, until one has been dropped for a newer one."""
    watch, peaks = threading.Event(), []

    def look():
        while not watch.is_set():
            peaks.append(max(used(cluster, node) for node in range(NODES)))

    def body(group, rank):
        savings, deadline = [], time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            with group.save(bundle, step=len(savings), policy="replace") as saving:
                saving.add("x", bytes([rank, len(savings) % 251]) * (LARGE // 2), shape=(2 * LARGE,), start=(rank * LARGE,))
            savings.append(saving)
            saving.captured.wait(LIMIT_S)
            dropped[rank] += len(savings) > 1 and savings[-2].durable.done() and savings[-2].version == 0
            turn.wait(LIMIT_S)
            stop = sum(dropped) > 0
            turn.wait(LIMIT_S)  # both ranks have looked
            if stop:
                break
        return [ends_of(s) for s in savings]

    dropped, turn = [0, 0], threading.Barrier(2)
    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        one, other = job.good(job.ranks(cluster, 2, body))
    finally:
        watch.set()
        watcher.join(LIMIT_S)
    assert one == other and sum(dropped) > 0
    superseded = [step for step, ends in enumerate(one) if ends[2] is not None]
    assert superseded and len(one) - 1 not in superseded
    for step in superseded:
        assert one[step] in ([None, None, "FOREBAY_ESUPERSEDED"], [None, "FOREBAY_ESUPERSEDED", "FOREBAY_ESUPERSEDED"])
    assert sorted(numbers(cluster, bundle)) == [s for s in range(len(one)) if s not in superseded]
    cluster.forebay("verify", bundle)
    assert peaks and max(peaks) <= POOL


def test_a_group_that_saves_all_the_time_does_not_starve_another_one(cluster, bundle):
    """Each save takes more than half of the room; those of the first group are all there before the other's comes."""
    busy = 8
    with Held(cluster) as held, cluster.connect(0) as one, cluster.connect(0) as two:
        first = one.join(job.unique(), run="0", rank=0, size=1, timeout=LIMIT_S)
        other = two.join(job.unique(), run="0", rank=0, size=1, timeout=LIMIT_S)
        data, savings = b"f" * LARGE, []
        for step in range(busy):
            with first.save(bundle, step=step) as saving:
                saving.add("x", data)
            savings.append(saving)
            job.until(lambda: state_of(cluster, bundle).count("reserving") == len(savings), "it waits for its turn")
        with other.save(bundle + "-other", step=0) as late:
            late.add("x", data)
        job.until(lambda: state_of(cluster, bundle + "-other") == ["reserving"], "it waits for its turn")
        held.release()
        assert all(ends_of(saving) == [None] * 3 for saving in [late, *savings])
    log = (cluster.folder / "node-0" / "log").read_text()
    ends = re.findall(rf" save\.end .* bundle={re.escape(bundle)}(-other)? ", log)  # each makes room for the next
    assert len(ends) == busy + 1 and ends.index("-other") <= 2, ends  # the one that had the turn, and one more


def test_copies_that_a_node_can_never_receive_are_refused_with_the_numbers(tmp_path):
    cluster = job.Cluster(tmp_path / "copies", 2, POOL)
    small = cluster.folder / "node-1" / "config"
    small.write_text(small.read_text().replace(f"pool = {POOL}", f"pool = {8 * job.MIB}"))
    with cluster, cluster.connect(0) as fb:
        group = fb.join(job.unique(), run="0", rank=0, size=1, timeout=LIMIT_S)
        for policy in ("wait", "skip", "replace"):
            with group.save("copied", step=1 + len(policy), copies=2, policy=policy) as saving:
                saving.add("x", b"c" * LARGE)
            with pytest.raises(forebay.Error) as caught:
                saving.captured.wait(LIMIT_S)
            assert caught.value.name == "FOREBAY_EPOOL"
            for word in ("node-1", "to receive", str(LARGE), str(4 * job.MIB)):
                assert word in str(caught.value)
        assert job.save(group, "copied", 9, [("x", b"c" * LARGE, {})], copies=1).version == 1


# ---- straight to the store, in waves


def pattern(rank, size):
    """Bytes that differ in every block, some of them zero."""
    unit = b"".join(bytes([rank + 1, i % 251, i // 251 % 251, 7]) * 16384 for i in range(size // 65536))
    return unit[: size // 2] + bytes(size // 8) + unit[size // 2 + size // 8 :]


@pytest.fixture(scope="module")
def narrow(tmp_path_factory):
    """Three nodes with the smallest pool that there is: 2 MiB take captures."""
    with job.Cluster(tmp_path_factory.mktemp("narrow"), NODES, 4 * job.MIB) as cluster:
        yield cluster


def test_what_goes_through_is_larger_than_all_pools(narrow, bundle):
    size = 24 * job.MIB
    peaks = []

    def body(group, rank):
        with group.save(bundle, step=1, policy="through") as saving:
            saving.add("x", pattern(rank, size), shape=(3 * size,), start=(rank * size,))
            saving.add("same", b"replica" * 99999)
            saving.add(f"small/{rank}", b"s" * 77)
        while not saving.durable.done():
            with narrow.connect(rank) as fb:
                status = fb.status()
            (info,) = [n for n in status["nodes"] if n["name"] == status["node"]]
            peaks.append(info["pool_used_bytes"])
            assert saving.staged.done() <= saving.captured.done()
        return ends_of(saving), saving.version

    assert job.good(job.ranks(narrow, 3, body)) == [([None] * 3, 1)] * 3
    assert 0 < max(peaks) <= 4 * job.MIB
    with narrow.connect(1) as fb, fb.open(bundle) as version:
        assert version.read("x") == b"".join(pattern(rank, size) for rank in range(3))
        assert version.read("same") == b"replica" * 99999
        assert version.read("small/2") == b"s" * 77
    narrow.forebay("verify", bundle)


def test_put_of_any_size_works_on_any_pool(narrow, bundle, tmp_path):
    source = tmp_path / "large"
    source.write_bytes(pattern(9, 40 * job.MIB))
    assert narrow.forebay("put", bundle, source) == "1\n"
    narrow.forebay("get", bundle, tmp_path / "back")
    assert (tmp_path / "back" / "large").read_bytes() == source.read_bytes()
    refused = narrow.run("put", "--copies", 2, bundle, source)  # all of it in memory can never fit
    assert refused.returncode == 1 and "its pool has 2097152 for that" in refused.stderr


def test_replicas_that_differ_in_a_late_wave_fail_on_all_ranks_and_nothing_stays(narrow, bundle):
    size = 16 * job.MIB

    def body(group, rank):
        data = bytearray(pattern(1, size))
        data[-1] ^= rank
        with group.save(bundle, step=1, policy="through") as saving:
            saving.add("x", data)
        return ends_of(saving)

    assert job.good(job.ranks(narrow, 2, body)) == [["FOREBAY_EREPLICA"] * 3] * 2
    assert numbers(narrow, bundle) == {}
    with narrow.connect(0) as fb:
        group = fb.join(job.unique(), run="0", rank=0, size=1, timeout=LIMIT_S)
        assert job.save(group, bundle, 2, [("x", b"next", {})]).version > 0
    narrow.forebay("verify", bundle)


def test_two_groups_go_through_at_once_beside_one_that_waits(narrow, bundle):
    size = 8 * job.MIB

    def live(policy, name, ends):
        def body(group, rank):
            for step in range(3):
                with group.save(bundle + name, step=step, policy=policy) as saving:
                    saving.add("x", pattern(rank, size if policy == "through" else job.MIB // 2))
                ends.append(ends_of(saving))

        return threading.Thread(target=lambda: job.good(job.ranks(narrow, 1, body)))

    ends = []
    threads = [live("through", "-a", ends), live("through", "-b", ends), live("wait", "-c", ends)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert ends == [[None] * 3] * 9
    for name in ("-a", "-b", "-c"):
        assert sorted(numbers(narrow, bundle + name)) == [0, 1, 2]


def test_a_rank_that_is_killed_fails_what_goes_through(narrow, bundle):
    mib = 64
    source = HOLDER.replace("step=1)", 'step=1, policy="through")')
    name = job.unique()
    with job.Rank(source, narrow.socket(1), name, bundle, mib) as rank, narrow.connect(0) as fb:
        group = fb.join(name, run="0", rank=0, size=2, timeout=LIMIT_S)
        rank.wait_for("offered")
        with group.save(bundle, step=1, policy="through") as saving:
            saving.add("x", bytes([5]) * (mib << 20), shape=(2 * mib << 20,), start=(0,))
        job.until(lambda: "capturing" in state_of(narrow, bundle) or saving.captured.done(), "it has begun")
        rank.kill()
        ends = ends_of(saving)
    assert ends in ([["FOREBAY_ERANK"] * 3, [None] * 3])  # the last: all was captured before
    assert bool(numbers(narrow, bundle)) == (ends == [None] * 3)
    with narrow.connect(0) as fb:
        group = fb.join(job.unique(), run="0", rank=0, size=1, timeout=LIMIT_S)
        assert job.save(group, bundle, 2, [("x", b"n" * job.MIB, {})]).version > 0
