"""Disks that are full, read-only, failing or slow, under the store and under the index; and daemons that end in order.

What must hold: the save in flight fails whole on every rank, naming path, node and cause, or is published; daemons stay up; what was
durable can be read meanwhile; once the disk works again the next save does, without a restart; no temporary is left. A daemon that is
asked to end makes durable what is captured, or says what it leaves.
"""
import errno
import json
import os
import random
import re
import signal
import subprocess
import threading
import time

import forebay
import pytest

import job
import place
import sick

SHARD = 150_000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("disks")
    yield from sick_cluster(folder)


def new_cluster(folder):
    """Two nodes, each with a control of its own."""
    cluster = job.Cluster(folder / "c", 2)
    cluster.sick = [sick.Sick(folder, f"node-{node}") for node in range(2)]
    for node, control in enumerate(cluster.sick):
        cluster.env[node] = control.env()
    return cluster


def sick_cluster(folder):
    with new_cluster(folder) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def healthy(cluster):
    yield
    for control in cluster.sick:
        control.heal()


def pieces(step, rank):
    dice = random.Random(f"{step} {rank}")
    return [("shards", dice.randbytes(SHARD), {"shape": (2 * SHARD,), "start": (rank * SHARD,)})]


def whole(step):
    return b"".join(pieces(step, rank)[0][1] for rank in range(2))


def save(cluster, bundle, step, coordinator=None):
    def body(group, rank):
        return job.save(group, bundle, step, pieces(step, rank)).version

    return job.ranks(cluster, 2, body, coordinator=coordinator)


def can_save_alone(cluster):
    """One rank: of two, one that joined would wait to its deadline for one that was refused a moment before."""
    (result,) = job.ranks(cluster, 1, lambda group, rank: job.save(group, job.unique("alone"), 1, [("a", b"x", {})]).version)
    return result == 1


def assert_reads(cluster, bundle, number, step):
    for node in range(2):
        with cluster.connect(node) as fb, fb.open(bundle, number) as version:
            assert version.read("shards") == whole(step)


def files(cluster):
    """What lies in the store, without the temporaries of calls that failed to remove them."""
    return {str(path.relative_to(cluster.store)) for path in cluster.store.rglob("*") if path.is_file()}


def temporaries(cluster):
    return [name for name in files(cluster) if name.startswith(".tmp/")]


SICKNESSES = {
    "full": (["write", "create", "link", "mkdir"], errno.ENOSPC, "No space left on device"),
    "read-only": (["write", "create", "link", "mkdir", "sync"], errno.EROFS, "Read-only file system"),
    "failing writes": (["write"], errno.EIO, "Input/output error"),
    "failing syncs": (["sync"], errno.EIO, "Input/output error"),
    "failing links": (["link"], errno.EIO, "Input/output error"),
}


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize("sickness", SICKNESSES)
def test_a_sick_store_fails_the_save_whole_and_health_is_enough(cluster, sickness, node):
    kinds, error, words = SICKNESSES[sickness]
    bundle = job.unique("disk")
    assert job.good(save(cluster, bundle, 1)) == [1, 1]
    cluster.sick[node].fail(*kinds, error=error, path=str(cluster.store) + "/")
    results = save(cluster, bundle, 2)
    for result in results:
        assert isinstance(result, forebay.Error) and result.code == error, results
        assert words in str(result) and str(cluster.store) in str(result) and f"node-{node}" in str(result), results
    assert_reads(cluster, bundle, 1, 1)
    assert all(cluster.running(n) for n in range(2))
    cluster.sick[node].heal()
    number, _ = job.good(save(cluster, bundle, 3))
    assert_reads(cluster, bundle, number, 3)
    assert cluster.verify_all()[bundle] == [1, number]


def test_a_deletion_that_finds_no_room_says_what_it_needs_and_deletes_nothing(cluster):
    bundle = job.unique("disk")
    job.good(save(cluster, bundle, 1))
    kinds, error, words = SICKNESSES["full"]
    for sick in cluster.sick:
        sick.fail(*kinds, error=error, path=str(cluster.store) + "/")
    with cluster.connect() as fb:
        with pytest.raises(forebay.Error, match="to delete a version some 4 KiB have to be written first") as caught:
            fb.delete(bundle, 1)
        assert caught.value.code == error and words in str(caught.value) and str(cluster.store) in str(caught.value)
        assert_reads(cluster, bundle, 1, 1)
        for sick in cluster.sick:
            sick.heal()
        fb.delete(bundle, 1)
        assert fb.list(bundle) == []


def test_packs_of_a_save_that_failed_go_at_once(cluster):
    """No collection: what a failed save has written elsewhere must not keep a full store full."""
    bundle = job.unique("disk")

    def packs():
        return [name for name in files(cluster) if name.startswith(f"t/default/b/{bundle}/p/")]

    job.good(save(cluster, bundle, 1, coordinator=0))
    kept = set(packs())
    kinds, error, _ = SICKNESSES["full"]
    cluster.sick[1].fail(*kinds, error=error, path=str(cluster.store) + "/")
    assert all(isinstance(result, forebay.Error) and result.code == error for result in save(cluster, bundle, 2, coordinator=0))
    job.until(lambda: set(packs()) == kept, lambda: f"there is {packs()}", 20)  # collection looks each 30 s
    cluster.sick[1].heal()
    assert_reads(cluster, bundle, 1, 1)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_whichever_call_on_the_store_fails_a_save_is_there_or_not(cluster, error):
    """The k-th change on the disk of the coordinator's node fails, for each k of a save."""
    bundle = job.unique("disk")
    before = files(cluster)
    job.good(save(cluster, bundle, 1))
    step, k, durable = 2, 0, [1]
    while True:
        cluster.sick[0].fail(*sick.CHANGES, error=error, after=k, times=1, path=str(cluster.store) + "/")
        results = save(cluster, bundle, step)
        failed = cluster.sick[0].failed
        cluster.sick[0].heal()
        if all(isinstance(result, int) for result in results):
            assert results[0] == results[1]
            durable.append(step)
        else:
            for result in results:
                assert isinstance(result, forebay.Error), results
                assert result.name == "FOREBAY_EUNINDEXED" or result.code == error, results
            if results[0].name == "FOREBAY_EUNINDEXED":
                durable.append(step)
        with cluster.connect() as fb:
            assert [version.step for version in fb.versions(bundle)] == durable, (k, results)
        step, k = step + 1, k + 1
        if not failed:
            break
    assert k > 10
    job.good(save(cluster, bundle, step))
    job.until(lambda: not temporaries(cluster), "no temporary is left")  # those that could not be removed at once, too
    assert len(cluster.verify_all()[bundle]) == len(durable) + 1
    assert before <= files(cluster)


@pytest.mark.parametrize("sickness", ["full", "read-only", "failing writes", "failing syncs"])
def test_a_sick_disk_under_the_index(cluster, sickness):
    kinds, error, words = SICKNESSES[sickness]
    bundle = job.unique("disk")
    assert job.good(save(cluster, bundle, 1)) == [1, 1]
    cluster.sick[0].fail(*kinds, error=error, path=str(cluster.meta) + "/")
    results = save(cluster, bundle, 2)
    assert all(isinstance(result, forebay.Error) and words in str(result) for result in results), results
    assert_reads(cluster, bundle, 1, 1)
    assert all(cluster.running(n) for n in range(2))
    cluster.sick[0].heal()
    job.until(lambda: can_save_alone(cluster), "a save works again")
    number, same = job.good(save(cluster, bundle, 3))
    assert number == same and cluster.verify_all()[bundle][-1] == number


def test_a_slow_store_is_waited_for(cluster):
    bundle = job.unique("disk")
    cluster.sick[1].slow("write", "sync", "link", ms=200, path=str(cluster.store) + "/")
    assert job.good(save(cluster, bundle, 1)) == [1, 1]


def test_what_a_node_with_a_slow_store_has_to_write_is_written_by_the_other(cluster):
    bundle = job.unique("slow")
    part = 8 << 20
    data = [random.Random(rank).randbytes(part) for rank in range(2)]
    cluster.sick[1].slow("write", ms=2000, path=str(cluster.store) + "/")  # of 256 KiB each: 64 s for its pack
    begun = time.monotonic()

    def body(group, rank):
        return job.save(group, bundle, 1, [("parts", data[rank], {"shape": (2 * part,), "start": (rank * part,)})], copies=2).stats()

    stats = job.good(job.ranks(cluster, 2, body))
    took_s = time.monotonic() - begun
    assert [s["slow_nodes"] for s in stats] == [1, 1]
    assert took_s < 40, took_s
    assert "save.node-slow" in cluster.logs() and "peer=node-1" in cluster.logs()
    assert "slow: node node-1" in cluster.forebay("why", f"{bundle}@1")
    cluster.sick[1].heal()
    with cluster.connect(0) as fb, fb.open(bundle, 1) as version:
        assert version.read("parts") == b"".join(data)


THROUGH_STATIONS = ["gather", "plan", "reserve", "slot", "capture", "verdict", "packs", "segments", "root", "index", "told"]


def test_why_of_a_save_through_a_slow_store_names_the_storing(cluster):
    bundle, part = job.unique("through"), 12 << 20  # a wave is a quarter of a capture arena of 32 MiB
    data = [random.Random(rank).randbytes(part) for rank in range(2)]
    for control in cluster.sick:
        control.slow("sync", ms=250, path=f"{cluster.store}/")  # once for each node's pack of a wave

    def body(group, rank):
        pieces = [("parts", data[rank], {"shape": (2 * part,), "start": (rank * part,)})]
        return job.save(group, bundle, 1, pieces, policy="through").version

    job.good(job.ranks(cluster, 2, body))
    (told,) = json.loads(cluster.forebay("why", f"{bundle}@1", "--json"))["saves"]
    by_name = {station["station"]: station for station in told["stations"]}
    assert list(by_name) == THROUGH_STATIONS
    at = [station["at_ns"] for station in told["stations"]]
    assert at == sorted(at)
    assert sum(station["took_ns"] for station in told["stations"]) == pytest.approx(told["took_ns"], abs=1e6)
    assert by_name["packs"]["took_ns"] > 250e6 > by_name["verdict"]["took_ns"], told
    assert sum(hop["bytes"] for hop in by_name["packs"]["nodes"]) >= 2 * part
    assert not by_name["verdict"]["nodes"]


# ---- at a moment of the save -------------------------------------------------------------------------------------------------------

# What a save comes to when the disk gets sick at that point, on the node that coordinates it and has the index. slot-put: before the root,
# and the next to be written is a row of the index; root-next: before the root, all else is in the store; root-durable: after it.
MOMENTS = {
    ("store", "root-next"): {"full": "fails", "read-only": "fails", "failing": "fails", "slow": "durable"},
    ("store", "root-durable"): {"full": "durable", "read-only": "durable", "failing": "unindexed", "slow": "durable"},
    ("index", "slot-put"): {"full": "fails", "read-only": "fails", "failing": "fails", "slow": "durable"},
    ("index", "root-next"): {"full": "unindexed", "read-only": "unindexed", "failing": "unindexed", "slow": "durable"},
    ("index", "root-durable"): {"full": "unindexed", "read-only": "unindexed", "failing": "unindexed", "slow": "durable"},
}
TROUBLES = {
    "full": (["write", "create", "link", "mkdir"], errno.ENOSPC),
    "read-only": (sick.CHANGES, errno.EROFS),
    "failing": (["read", *sick.CHANGES], errno.EIO),
    "slow": (["read", "write", "sync", "link"], 0),
}
SLOW_MS = 30


class Halting:
    """Two nodes that halt at one point whenever they pass it, and go on at once; before that a deed is done there, once, if one is set."""

    def __init__(self, cluster, point):
        self.cluster, self.point, self.deed, self.over = cluster, point, None, False
        for env in cluster.env:
            env["FOREBAY_STOP_AT"] = f"{point}:*"
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self):
        while not self.over:
            for daemon in filter(None, self.cluster.daemons):
                if self._has_stopped(daemon.pid):
                    deed, self.deed = self.deed, None
                    if deed:
                        deed()
                    daemon.send_signal(signal.SIGCONT)
            time.sleep(0.001)

    @staticmethod
    def _has_stopped(pid):
        try:
            return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG) is not None
        except ChildProcessError:
            return False

    def end(self):
        self.over = True
        self.thread.join(job.LIMIT_S)


@pytest.fixture
def halting(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("moments")
    cluster = new_cluster(folder)
    halting = Halting(cluster, request.param)
    try:
        with cluster:
            yield halting
    finally:
        halting.end()


def make_sick(cluster, disk, trouble, node=0):
    kinds, error = TROUBLES[trouble]
    path = f"{cluster.store if disk == 'store' else cluster.meta}/"
    if error:
        cluster.sick[node].fail(*kinds, error=error, path=path)
    else:
        cluster.sick[node].slow(*kinds, ms=SLOW_MS, path=path)


def assert_ended(results, end, trouble, number):
    """All ranks alike, and in words."""
    if end == "durable":
        assert results == [number, number]
        return
    error = TROUBLES[trouble][1]
    for result in results:
        assert isinstance(result, forebay.Error), results
        assert os.strerror(error) in str(result) and "node-0" in str(result), results
        if end == "fails":
            assert result.code == error, results
        else:
            assert result.name == "FOREBAY_EUNINDEXED" and f"version {number} is published, but not in the index yet" in str(result), results


def listed(cluster, bundle, node=0):
    bundles = json.loads(cluster.forebay("ls", "-r", "--json", node=node))["bundles"]
    return [version["number"] for entry in bundles if entry["name"] == bundle for version in entry["versions"]]


def assert_serves(cluster, bundle, wanted, steps, nodes=(0, 1)):
    """On these nodes: versions `wanted` are listed, read by number, label and as the latest, and verify. steps: by number."""
    for node in nodes:
        assert listed(cluster, bundle, node) == wanted
        with cluster.connect(node) as fb:
            for name in [*wanted, "prod", "latest"]:
                with fb.open(bundle, name) as version:
                    number = {"prod": 1, "latest": wanted[-1]}.get(name, name)
                    assert version.read("shards") == whole(steps[number]), (node, name)
        for number in wanted:
            cluster.forebay("verify", f"{bundle}@{number}", node=node)


def assert_reads_what_it_has(cluster, bundle, step, words):
    """Of node 0, which cannot read the store: what its own rank saved is in its memory, and read. The rest it may have from elsewhere, else
    the error names the object."""
    own = memoryview(bytearray(SHARD))
    with cluster.connect(0) as fb, fb.open(bundle, 1) as version:
        with fb.load(version) as load:
            load.into("shards", own, start=(0,), dtype="blob")
        assert own == whole(step)[:SHARD]
        try:
            assert version.read("shards") == whole(step)
        except forebay.Error as error:
            assert words in str(error) and f"/b/{bundle}/" in str(error)


def next_save_works(cluster, bundle, step, coordinator=0):
    job.until(lambda: can_save_alone(cluster), "a save works again")  # the index is moved once a second at most
    return job.good(save(cluster, bundle, step, coordinator))[0]


CELLS = [(point, disk, trouble, end) for (disk, point), ends in MOMENTS.items() for trouble, end in ends.items()]


@pytest.mark.parametrize(("halting", "disk", "trouble", "end"), CELLS, indirect=["halting"], ids=map("-".join, CELLS))
def test_a_disk_that_gets_sick_at_a_moment(halting, disk, trouble, end):
    cluster, bundle = halting.cluster, job.unique("moment")
    job.good(save(cluster, bundle, 1, coordinator=0))
    cluster.forebay("label", bundle, "prod", 1)
    halting.deed = lambda: make_sick(cluster, disk, trouble)
    results = save(cluster, bundle, 2, coordinator=0)
    assert not halting.deed, "the point is not passed"
    assert_ended(results, end, trouble, 2)
    assert all(cluster.running(node) for node in range(2))
    blind = disk == "store" and trouble == "failing"
    if not blind:
        assert_serves(cluster, bundle, [1, 2] if end == "durable" else [1], {1: 1, 2: 2})
    else:
        there = [1] if end == "fails" else [1, 2]  # a node that can read the store mends the index at once
        assert_serves(cluster, bundle, there, {1: 1, 2: 2}, nodes=[1])
        assert_reads_what_it_has(cluster, bundle, 1, "Input/output error")
    if end == "unindexed":
        with cluster.connect(1) as fb, fb.open(bundle, 2) as version:  # who knows the number reads it
            assert version.read("shards") == whole(2)
        cluster.forebay("verify", f"{bundle}@2", node=1)
    cluster.sick[0].heal()
    if end == "unindexed":
        job.until(lambda: listed(cluster, bundle) == [1, 2], "it is listed")
    number = next_save_works(cluster, bundle, 3)
    assert_serves(cluster, bundle, [1, number] if end == "fails" else [1, 2, number], {1: 1, 2: 2, number: 3})
    job.until(lambda: not temporaries(cluster), "no temporary is left")


@pytest.mark.parametrize("halting", ["root-durable"], indirect=True)
@pytest.mark.parametrize("trouble", ["full", "read-only", "failing"])
def test_a_sick_index_of_another_node_leaves_a_version_that_a_rebuild_lists(halting, trouble):
    cluster, bundle = halting.cluster, job.unique("moment")
    job.good(save(cluster, bundle, 1, coordinator=1))
    halting.deed = lambda: make_sick(cluster, "index", trouble)
    results = save(cluster, bundle, 2, coordinator=1)
    assert_ended(results, "unindexed", trouble, 2)
    cluster.forebay("status")
    cluster.sick[0].heal()
    job.until(lambda: can_save_alone(cluster), "the index is written again")
    cluster.forebay("meta", "rebuild")
    number = job.good(save(cluster, bundle, 3))[0]
    assert listed(cluster, bundle) == [1, 2, number]


# ---- SIGTERM -----------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def own(tmp_path_factory):
    """Two nodes that a test may end."""
    yield from sick_cluster(tmp_path_factory.mktemp("drain"))


class Saving:
    """A job of two ranks that saves one step; each rank says when it is captured, and then how it ended."""

    def __init__(self, cluster, coordinator, bundle="ckpt", step=2):
        self.captured = threading.Semaphore(0)

        def body(group, rank):
            with group.save(bundle, step=step) as saving:
                for name, data, more in pieces(step, rank):
                    saving.add(name, data, **more)
            saving.captured.wait(job.LIMIT_S)
            self.captured.release()
            saving.durable.wait(job.LIMIT_S)
            return saving.version

        def live():
            self.results = job.ranks(cluster, 2, body, coordinator=coordinator)

        self.thread = threading.Thread(target=live)
        self.thread.start()
        for _ in range(2):
            assert self.captured.acquire(timeout=job.LIMIT_S)

    def end(self):
        self.thread.join(job.LIMIT_S)
        return self.results


def terminate(cluster, node):
    cluster.daemons[node].send_signal(signal.SIGTERM)
    cluster.daemons[node].wait(job.LIMIT_S)
    return cluster.daemons[node].returncode


def log_of(cluster, node):
    return (cluster.folder / f"node-{node}" / "log").read_text()


@pytest.mark.parametrize("node", [0, 1])
@pytest.mark.parametrize("coordinator", [0, 1])
def test_what_is_captured_becomes_durable_before_a_daemon_ends(own, node, coordinator):
    job.good(save(own, "ckpt", 1))
    for control in own.sick:
        control.slow("write", "sync", ms=30, path=str(own.store) + "/")
    saving = Saving(own, coordinator)
    assert terminate(own, node) == 0, own.logs()
    assert saving.end() == [2, 2]
    assert re.search("daemon.drained .*left=0", log_of(own, node))
    own.start(node)
    assert own.verify_all() == {"ckpt": [1, 2]}


def test_a_daemon_that_ends_takes_nothing_new_and_says_so(own):
    for control in own.sick:
        control.slow("write", "sync", ms=job.LIMIT_S * 1000, path=str(own.store) + "/")
    with own.connect(1) as other:
        group = other.join("other", run="0", rank=0, size=1)
        saving = Saving(own, 0)
        own.daemons[1].send_signal(signal.SIGTERM)
        job.until(lambda: "daemon.stopping" in log_of(own, 1), "it drains")
        with pytest.raises(forebay.Error, match="node-1 shuts down and takes nothing new") as failure:
            job.save(group, "new", 1, [("a", b"x", {})])
        assert failure.value.name == "ESHUTDOWN"
        with own.connect(1) as late, pytest.raises(forebay.Error, match="node-1 shuts down"):
            late.join("late", run="0", rank=0, size=1)
        assert own.running(1)
        for control in own.sick:
            control.heal()
    assert saving.end() == [2, 2] or saving.results == [1, 1]
    own.daemons[1].wait(job.LIMIT_S)
    assert own.daemons[1].returncode == 0


def test_what_cannot_become_durable_in_time_is_named(own):
    config = own.folder / "node-0" / "config"
    config.write_text(config.read_text() + "drain_ms = 100\n")
    own.kill(0)
    own.start(0)
    job.good(save(own, "ckpt", 1))
    own.sick[0].slow("sync", ms=200, path=str(own.store) + "/")
    saving = Saving(own, 0)
    assert terminate(own, 0) == 3
    log = log_of(own, 0)
    assert re.search("save.left .*bundle=ckpt step=2 state=", log) and re.search("daemon.drained .*left=1", log)
    own.sick[0].heal()
    own.start(0)  # it has the meta engine, for which a successor waits; its blocks are lost
    assert all(isinstance(result, forebay.Error) for result in saving.end())
    assert own.verify_all()["ckpt"][0] == 1


def test_a_daemon_ends_although_its_store_does_not_answer(own):
    """In a time that is bounded, and in order: nothing that a worker is still at is freed below it."""
    config = own.folder / "node-0" / "config"
    config.write_text(config.read_text() + "drain_ms = 100\n")
    own.kill(0)
    own.start(0)
    job.good(save(own, "ckpt", 1))
    own.sick[0].slow("write", "sync", ms=job.LIMIT_S * 2000, path=str(own.store) + "/")
    saving = Saving(own, 0)
    assert terminate(own, 0) == 3, own.logs()
    assert "daemon.calls-left" in log_of(own, 0)
    own.sick[0].heal()
    own.start(0)
    assert all(isinstance(result, forebay.Error) for result in saving.end())
    assert own.verify_all()["ckpt"][0] == 1


def test_a_second_signal_ends_at_once(own):
    own.sick[0].slow("sync", ms=job.LIMIT_S * 1000, path=str(own.store) + "/")
    saving = Saving(own, 0)
    own.daemons[0].send_signal(signal.SIGTERM)
    job.until(lambda: "daemon.stopping" in log_of(own, 0), "it drains")
    own.daemons[0].send_signal(signal.SIGTERM)
    assert own.daemons[0].wait(job.LIMIT_S / 3) == 128 + signal.SIGTERM
    own.sick[0].heal()
    own.start(0)  # it has the meta engine, for which a successor waits; its blocks are lost
    assert all(isinstance(result, forebay.Error) for result in saving.end())


def test_peers_hear_of_an_end_at_once(own):
    assert terminate(own, 1) == 0
    job.until(lambda: not dict((n["name"], n["up"]) for n in status(own))["node-1"], "node-0 knows", 2)


def status(cluster):
    with cluster.connect() as fb:
        return fb.status()["nodes"]


def test_down_waits_for_what_is_captured(make_folder, tmp_path):
    control = sick.Sick(tmp_path)
    mine = place.Cluster(make_folder() / "c")
    try:
        mine.up(2, env={**mine.environment(), **control.env()})
        control.slow("sync", ms=250, path="/store/")
        file = tmp_path / "file"
        file.write_bytes(random.Random(1).randbytes(SHARD))
        put = subprocess.Popen([place.FOREBAY, "put", "a", file], env=mine.environment(), stdout=subprocess.DEVNULL)

        def is_captured():
            with forebay.connect(str(mine.socket())) as fb:
                return any(one["state"] in ("captured", "staged") for one in fb.status()["saves"])

        job.until(is_captured, "it is captured")
        assert "ended 2 daemons\n" in mine.down().stdout
        assert put.wait(job.LIMIT_S) == 0
        control.heal()
        mine.up()
        assert "clean" in mine.run("verify", "a").stdout
    finally:
        mine.end()
