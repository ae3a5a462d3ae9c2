"""Groups of ranks on a cluster of four nodes: whole or not at all, any box back, and each fault in the words of its cause."""
import itertools
import json
import mmap
import random
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import forebay
import numpy
import pytest

import job

NODES = 4
LIMIT_S = job.LIMIT_S


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with job.Cluster(tmp_path_factory.mktemp("groups"), NODES) as cluster:
        yield cluster


@pytest.fixture
def bundle(request):
    return job.unique(f"groups/{request.node.originalname[5:60]}")


def noise(size, *seed):
    return random.Random(repr(seed)).randbytes(size)


def versions(cluster, bundle):
    with cluster.connect() as fb:
        try:
            return [v.number for v in fb.versions(bundle)]
        except forebay.Error as error:
            assert error.name == "ENOENT"
            return []


def failed(results, name):
    """The words of all results, each of which must be that error."""
    for result in results:
        assert isinstance(result, forebay.Error) and result.name == name, f"{name} was expected: {results}"
    return [str(result) for result in results]


def save_all(cluster, bundle, step, size, pieces, **options):
    """One save by `size` ranks of pieces(rank); what each got. Stages are waited for in their order."""
    limit = {"coordinator": options.pop("coordinator", None), "name": options.pop("name", None)}

    def body(group, rank):
        with group.save(bundle, step=step, **options) as saving:
            for name, data, more in pieces(rank):
                saving.add(name, data, **more)
        for stage in (saving.captured, saving.staged, saving.durable):
            stage.wait(LIMIT_S)
        return saving.version, saving.stats()

    return job.ranks(cluster, size, body, **limit)


def read(cluster, bundle, version="latest"):
    with cluster.connect(cluster.nodes - 1) as fb, fb.open(bundle, version) as v:
        return {item.name: v.read(item.name) for item in v.items()}


# ---- ranks that die

RANK = """
import sys, time, forebay
socket, name, bundle, rank, size, step, mib, stage = sys.argv[1:]
rank, size, step, mib = map(int, (rank, size, step, mib))
fb = forebay.connect(socket)
group = fb.join(name, run="0", rank=rank, size=size, timeout=60)
print("joined", flush=True)
import random
data = random.Random(rank).randbytes(mib << 20)
if input() == "save":
    with group.save(bundle, step=step) as saving:
        saving.add("x", data, shape=(size * len(data),), start=(rank * len(data),))
    print("offered", flush=True)
    getattr(saving, stage).wait(60)
    print(stage, flush=True)
input()
"""


def processes(cluster, name, bundle, those, size, step, mib=1, stage="captured"):
    return [job.Rank(RANK, cluster.socket(r % NODES), name, bundle, r, size, step, mib, stage) for r in those]


def state_of(cluster, bundle):
    """States of the saves of a bundle, as the nodes that take part say."""
    states = set()
    for node in range(NODES):
        with cluster.connect(node) as fb:
            states |= {s["state"] for s in fb.status()["saves"] if s["bundle"] == bundle}
    return states


@pytest.mark.parametrize("when", ["before it offers", "while it captures"])
def test_a_killed_rank_fails_the_save_on_all_others(cluster, bundle, when):
    name = job.unique()
    assert job.good(save_all(cluster, bundle, 1, 3, lambda rank: [("x", noise(9, rank), {"shape": (27,), "start": (9 * rank,)})]))
    (victim,) = processes(cluster, name, bundle, [3], 4, 2)
    offered, ended = threading.Barrier(4), threading.Barrier(3)

    def body(group, rank):
        if when == "while it captures":
            offered.wait(LIMIT_S)
        with group.save(bundle, step=2) as saving:
            saving.add("x", noise(job.MIB, rank), shape=(4 * job.MIB,), start=(rank * job.MIB,))
        if when == "before it offers":
            offered.wait(LIMIT_S)
        ends = []
        for stage in (saving.captured, saving.staged, saving.durable):
            with pytest.raises(forebay.Error) as caught:
                stage.wait(LIMIT_S)
            ends.append(caught.value)
        ended.wait(LIMIT_S)  # nobody is told by another's leaving
        return ends

    def kill():
        victim.wait_for("joined")
        if when == "while it captures":
            victim.tell("save")
            victim.wait_for("offered")
            job.until(lambda: "gathering" in state_of(cluster, bundle), "its offer has come")
            victim.signal(signal.SIGSTOP)
            offered.wait(LIMIT_S)
            job.until(lambda: "capturing" in state_of(cluster, bundle), "the others capture")
        else:
            offered.wait(LIMIT_S)
        victim.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with victim:
        results = job.ranks(cluster, 3, body, name=name, join_size=4)
        killer.join(LIMIT_S)
    for ends in job.good(results):
        for words in failed(ends, "FOREBAY_ERANK"):
            assert "rank 3" in words and "node-3" in words
    assert versions(cluster, bundle) == [1]
    job.until(lambda: not state_of(cluster, bundle) & {"gathering", "capturing"}, "every node has heard of its end")


def test_a_job_that_is_killed_after_captured_leaves_a_version(cluster, bundle):
    job_ranks = processes(cluster, job.unique(), bundle, range(4), 4, 7, mib=4)
    for rank in job_ranks:
        rank.wait_for("joined")
        rank.tell("save")
    for rank in job_ranks:
        rank.wait_for("captured")
    for rank in job_ranks:
        rank.kill()
    job.until(lambda: versions(cluster, bundle) == [1], "the version is published")
    expected = b"".join(random.Random(rank).randbytes(4 * job.MIB) for rank in range(4))
    assert read(cluster, bundle) == {"x": expected}
    cluster.forebay("verify", bundle)


# ---- loads of any shape

ROWS, COLUMNS, DEEP = 96, 40, 24  # of 4-byte elements


@pytest.fixture(scope="module")
def eight(cluster):
    """What 8 ranks have saved: an array in rows, one in columns, one in boxes; as lists of rows for comparison."""
    bundle = job.unique("groups/eight")
    whole = {"rows": noise(ROWS * COLUMNS * 4, "r"), "columns": noise(ROWS * COLUMNS * 4, "c"), "boxes": noise(DEEP**3 * 4, "b")}

    def pieces(rank):
        x, y, z = rank // 4, rank // 2 % 2, rank % 2
        half = DEEP // 2
        arrays = {
            "rows": ((ROWS, COLUMNS), (rank * 12, 0), (12, COLUMNS)),
            "columns": ((ROWS, COLUMNS), (0, rank * 5), (ROWS, 5)),
            "boxes": ((DEEP,) * 3, (x * half, y * half, z * half), (half,) * 3),
        }
        result = [("same", whole["rows"][:1000], {})]
        for name, (shape, start, count) in arrays.items():
            box = view(cut(whole[name], shape, start, count), count)
            result.append((name, box, {"shape": shape, "start": start}))
        return result

    assert {r[0] for r in job.good(save_all(cluster, bundle, 1, 8, pieces, copies=2))} == {1}
    return bundle, whole


def cut(data, shape, start, count):
    """The bytes of a box of 4-byte elements, row-major."""
    out = bytearray()
    for index in itertools.product(*(range(s, s + c) for s, c in zip(start[:-1], count[:-1]))):
        at = 0
        for i, n in zip((*index, start[-1]), shape):
            at = at * n + i
        out += data[4 * at : 4 * (at + count[-1])]
    return out


def view(data, shape):
    return memoryview(data).cast("B").cast("f", shape) if all(shape) else memoryview(bytearray()).cast("B")


@pytest.mark.parametrize("size", [1, 3, 7])
def test_what_eight_saved_is_loaded_in_random_boxes(cluster, eight, size):
    bundle, whole = eight
    shapes = {"rows": (ROWS, COLUMNS), "columns": (ROWS, COLUMNS), "boxes": (DEEP,) * 3}

    def body(group, rank):
        dice = random.Random(f"{size} {rank}")
        wanted = []
        for name, shape in [*shapes.items()] * 3:
            start = tuple(dice.randrange(n) for n in shape)
            count = tuple(dice.randint(1, n - s) for s, n in zip(start, shape))
            wanted.append((name, shape, start, count, bytearray(4 * count[0] * count[1] * (count[2] if len(count) > 2 else 1))))
        with group.session.open(bundle, group=group) as version, group.load(version) as load:
            for name, _, start, count, out in wanted:
                load.into(name, view(out, count), start=start)
        for name, shape, start, count, out in wanted:
            assert out == cut(whole[name], shape, start, count), (name, start, count)
        return load.stats()

    job.good(job.ranks(cluster, size, body))


def test_a_process_alone_loads_too(cluster, eight):
    bundle, whole = eight
    assert read(cluster, bundle) == {**whole, "same": whole["rows"][:1000]}


def test_a_target_of_another_shape_or_type_is_untouched(cluster, eight):
    bundle, _ = eight
    with cluster.connect() as fb, fb.open(bundle) as version:
        load = fb.load(version)
        for name, shape, start, code in (
            ("boxes", (DEEP, DEEP), None, "f"),
            ("rows", (ROWS, COLUMNS + 1), None, "f"),
            ("rows", (2, 2), (ROWS - 1, 0), "f"),
            ("rows", (ROWS, COLUMNS), None, "i"),
        ):
            size = 4 * shape[0] * shape[1]
            out = bytearray(b"\xaa" * size)
            with pytest.raises((forebay.Error, ValueError, TypeError)) as caught:
                load.into(name, memoryview(out).cast(code, shape), start=start)
            assert name in str(caught.value)
            assert out == b"\xaa" * size
        load.cancel()


def test_what_is_not_there_is_named(cluster, eight):
    bundle, _ = eight
    with cluster.connect() as fb:
        for bad, version in (("groups/none", "latest"), (bundle, 99), (bundle, "prod")):
            with pytest.raises(forebay.Error) as caught:
                fb.open(bad, version)
            assert caught.value.name == "ENOENT" and (bad if bad != bundle else str(version)) in str(caught.value)
        with fb.open(bundle) as version:
            with pytest.raises(KeyError, match="nothing"):
                version.read("nothing")
            with pytest.raises(forebay.Error, match="nothing") as caught:
                fb.load(version).into("nothing", bytearray(1))
            assert caught.value.name == "ENOENT"


# ---- ranks that do not agree


def refused(cluster, bundle, size, pieces, error, **options):
    """A save that fails on all ranks with that error and leaves what was there; what they were told."""
    before = versions(cluster, bundle)
    words = failed(save_all(cluster, bundle, 99, size, pieces, **options), error)
    assert versions(cluster, bundle) == before
    return words


def test_replicas_that_differ_name_both_ranks(cluster, bundle):
    data = noise(3_000_000, "r")

    def pieces(rank):
        return [("fine", data, {}), ("w", data[:-1] + bytes([rank == 2]), {})]

    for words in refused(cluster, bundle, 3, pieces, "FOREBAY_EREPLICA"):
        assert '"w"' in words and "rank 2" in words and ("rank 0" in words or "rank 1" in words)


def test_boxes_that_overlap_are_refused(cluster, bundle):
    def pieces(rank):
        return [("w", noise(60, rank), {"shape": (100,), "start": (rank * 40,)})]

    for words in refused(cluster, bundle, 2, pieces, "FOREBAY_EOVERLAP"):
        assert words.count(f"step 99 of {bundle}: ") == 1, words
        assert '"w"' in words and "rank 0" in words and "rank 1" in words


def test_types_and_shapes_that_differ_are_refused(cluster, bundle):
    def types(rank):
        return [("w", memoryview(noise(40, 1)).cast("f" if rank else "i"), {})]

    def shapes(rank):
        return [("w", noise(40, rank), {"shape": (80 + rank,), "start": (40 * rank,)})]

    for pieces in (types, shapes):
        for words in refused(cluster, bundle, 2, pieces, "FOREBAY_EMISMATCH"):
            assert '"w"' in words


@pytest.mark.parametrize("odd", [1, 4])  # on a node of its own; beside rank 0
def test_options_that_differ_are_refused_on_all_ranks(cluster, bundle, odd):
    ended = threading.Barrier(5)

    def body(group, rank):
        try:
            job.save(group, bundle, 1, [("w", b"w", {})], copies=2 if rank == odd else 1)
        finally:
            ended.wait(LIMIT_S)  # nobody is told by another's leaving

    for words in failed(job.ranks(cluster, 5, body), "FOREBAY_EMISMATCH"):
        assert "copies" in words
    assert versions(cluster, bundle) == []


def test_a_wrong_size_and_a_rank_twice_are_refused(cluster):
    def join(numbers, sizes, timeout):
        name, ends = job.unique(), [None] * len(numbers)

        def one(i):
            try:
                with cluster.connect(i) as fb:
                    fb.join(name, run="0", rank=numbers[i], size=sizes[i], timeout=timeout)
            except forebay.Error as error:
                ends[i] = error

        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(numbers))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return ends

    def meet(numbers, sizes):
        """How their joins ended; with more time when both were over before they met."""
        for timeout in (2, 8, 32):
            ends = join(numbers, sizes, timeout)
            if {e and e.name for e in ends} != {"ETIMEDOUT"}:
                break
        return ends

    ends = meet([0, 1], [2, 3])
    assert "FOREBAY_EMISMATCH" in [e.name for e in ends if e], ends
    ends = meet([1, 1], [2, 2])
    assert all(e and e.name in ("FOREBAY_ERANK", "ETIMEDOUT") for e in ends), ends
    assert any("rank 1 has joined twice" in str(e) and "node-0" in str(e) and "node-1" in str(e) for e in ends), ends


def promptly(future, words):
    """What the other rank was told, long before its own time is up, and why."""
    with pytest.raises(forebay.Error, match=words) as failure:
        future.result(LIMIT_S)
    assert failure.value.name == "FOREBAY_ERANK", failure.value


def test_a_rank_that_is_refused_its_join_keeps_nobody_waiting(cluster, bundle):
    words = "rank 1 on node node-1 cannot join: one session has at most 256 ranks"
    with cluster.connect(0) as one, cluster.connect(1) as full, ThreadPoolExecutor(16) as pool:
        filled = list(pool.map(lambda i: full.join(f"{bundle}/{i}", run="1", rank=0, size=1, timeout=LIMIT_S), range(256)))
        waiting = pool.submit(one.join, bundle, run="1", rank=0, size=2, timeout=10 * LIMIT_S)
        with pytest.raises(forebay.Error, match="at most 256 ranks") as failure:
            full.join(bundle, run="1", rank=1, size=2, timeout=LIMIT_S)
        assert failure.value.name == "EBUSY"
        promptly(waiting, words)
        with pytest.raises(forebay.Error, match="at most 256 ranks"):  # before anybody of that run has come
            full.join(bundle, run="2", rank=1, size=2, timeout=LIMIT_S)
        promptly(pool.submit(one.join, bundle, run="2", rank=0, size=2, timeout=10 * LIMIT_S), words)
        for group in filled[:2]:
            group.leave()
        both = [pool.submit(fb.join, bundle, run="3", rank=rank, size=2, timeout=LIMIT_S) for rank, fb in enumerate((one, full))]
        for group in both:
            group.result(LIMIT_S).leave()


def test_a_rank_that_is_refused_its_part_of_a_load_keeps_nobody_waiting(cluster, bundle):
    words = "rank 1 on node node-1 cannot take part: one session has at most 1024 open versions"
    with cluster.connect(0) as one, cluster.connect(1) as full, ThreadPoolExecutor() as pool:
        joining = [pool.submit(fb.join, bundle, run="1", rank=rank, size=2, timeout=LIMIT_S) for rank, fb in enumerate((one, full))]
        groups = [future.result(LIMIT_S) for future in joining]
        saves = [group.save(bundle, step=1) for group in groups]
        for rank, save in enumerate(saves):
            save.add(f"w{rank}", noise(1000, rank))
            save.submit()
        for save in saves:
            save.durable.wait(LIMIT_S)

        def load(rank):
            out = bytearray(1000)
            with groups[rank].session.open(bundle, group=groups[rank]) as version, groups[rank].load(version) as loading:
                loading.into(f"w{rank}", out)
            return bytes(out)

        opened = [full.open(bundle, 1) for _ in range(1024)]
        for waits_first in (True, False):
            waiting = pool.submit(load, 0) if waits_first else None
            with pytest.raises(forebay.Error, match="at most 1024 open versions"):
                load(1)
            promptly(waiting or pool.submit(load, 0), words)
        for version in opened:
            version.close()
        assert [future.result(LIMIT_S) for future in [pool.submit(load, rank) for rank in range(2)]] == [noise(1000, rank) for rank in range(2)]


def test_a_rank_that_gives_up_its_part_of_a_load_keeps_nobody_waiting(cluster, bundle):
    def body(group, rank):
        job.save(group, bundle, 1, [(f"w{rank}", noise(1000, rank), {})])
        out = bytearray(1000)
        with group.session.open(bundle, group=group) as version:
            with pytest.raises((forebay.Error, KeyError)) as caught, group.load(version) as loading:
                loading.into(f"w{rank}" if rank else "nothing", out)
            with group.load(version) as loading:  # the next one is together again
                loading.into(f"w{rank}", out)
        return str(caught.value), bytes(out)

    (mine, first), (told, second) = job.good(job.ranks(cluster, 2, body, name=job.unique(), run="1"))
    assert "nothing" in mine and "rank 0 on node node-0 cannot take part: the load was cancelled" in told
    assert (first, second) == (noise(1000, 0), noise(1000, 1))


def test_a_step_is_saved_once_in_a_run(cluster, bundle):
    name = job.unique()

    def body(group, rank):
        job.save(group, bundle, 5, [("w", b"w", {})])
        with pytest.raises(forebay.Error) as caught:
            job.save(group, bundle, 5, [("w", b"w", {})])
        assert caught.value.name == "FOREBAY_ESTEP" and "step 5" in str(caught.value)
        return job.save(group, bundle, 6, [("w", b"w", {})]).version

    assert job.good(job.ranks(cluster, 2, body, name=name, run="1")) == [2, 2]
    job.good(job.ranks(cluster, 2, lambda group, rank: job.save(group, bundle, 5, [("w", b"2", {})]), name=name, run="2"))
    assert read(cluster, bundle, 1) == {"w": b"w"} and read(cluster, bundle, 3) == {"w": b"2"}


# ---- pieces of unusual sizes


def test_empty_pieces_and_items(cluster, bundle):
    """Shards are empty where there are more ranks than rows; some ranks have nothing at all."""

    def pieces(rank):
        rows = numpy.frombuffer(noise(12, rank), "float32").reshape(1, 3) if rank < 2 else numpy.zeros((0, 3), "float32")
        result = [("w", rows, {"shape": (2, 3), "start": (min(rank, 2), 0)})]
        if rank != 1:
            part = noise(10, 0) if rank == 3 else b""
            result += [("blob", b"", {}), ("part", part, {"shape": (10,), "start": (10 - len(part),)})]
        return result

    assert job.good(save_all(cluster, bundle, 1, 4, pieces))
    expected = {"w": noise(12, 0) + noise(12, 1), "blob": b"", "part": noise(10, 0)}
    assert read(cluster, bundle) == expected

    def body(group, rank):
        with group.session.open(bundle, group=group) as version, group.load(version) as load:
            out = bytearray(10 * (rank % 2))
            load.into("part", out, start=(0 if rank % 2 else 5,))
            load.into("blob", bytearray())
        return bytes(out)

    assert job.good(job.ranks(cluster, 3, body)) == [b"", expected["part"], b""]
    assert job.good(save_all(cluster, bundle, 2, 2, lambda rank: []))  # nothing at all
    assert read(cluster, bundle) == {}
    cluster.forebay("verify", bundle)


def test_an_item_that_no_rank_saved_whole_shows_what_is_missing(cluster, bundle):
    """It is published, since a shape does not say that all of it is anybody's; what is there loads, what is not is named."""

    def pieces(rank):
        row = numpy.full((1, 100), rank + 1, "uint8")
        return [("rows", row, {"shape": (4, 100), "start": (2 * rank, 0)}), (f"own/{rank}", b"x", {})]

    job.good(save_all(cluster, bundle, 1, 2, pieces))
    words = {line.split()[0]: line.split()[-3:] for line in cluster.forebay("show", bundle).splitlines() if line}
    assert words["rows"] == ["200", "of", "400"] and words["own/0"][-1] == "1" and "of" not in words["own/0"]
    shown = json.loads(cluster.forebay("show", bundle, "--json"))["items"]
    assert {item["name"]: item["unsaved_bytes"] for item in shown} == {"rows": 200, "own/0": 0, "own/1": 0}
    with cluster.connect() as fb, fb.open(bundle) as version:
        assert version.find("rows").unsaved_nbytes == 200
        row = bytearray(100)
        with fb.load(version) as load:
            load.into("rows", memoryview(row).cast("B", (1, 100)), start=(2, 0))
        assert row == b"\2" * 100
        with pytest.raises(forebay.Error, match='"rows".* 400 bytes .* 200.*no rank') as caught:
            version.read("rows")
        assert caught.value.name == "FOREBAY_EMISMATCH"
    cluster.forebay("verify", bundle)


def test_an_item_of_more_than_four_gibibytes(cluster, bundle):
    """Of which the ranks offer what lies far apart."""
    size, part = (1 << 40) + 5, 100_003
    starts = [0, (1 << 32) - 7, (1 << 32) + part, size - part]
    pieces = lambda rank: [("big", noise(part, rank), {"shape": (size,), "start": (starts[rank],)})]
    job.good(save_all(cluster, bundle, 1, 4, pieces))
    with cluster.connect() as fb, fb.open(bundle) as version:
        assert version.find("big").nbytes == size
        outs = [bytearray(1000) for _ in starts]
        with fb.load(version) as load:
            for start, out in zip(starts, outs):
                load.into("big", out, start=(start + 99,))
        assert outs == [noise(part, rank)[99:1099] for rank in range(4)]


def test_a_piece_of_more_than_four_gibibytes_is_counted_rightly(cluster, bundle):
    """It does not fit here: what is asked for and what there is are told in numbers."""
    size = (4 << 30) + 3 * job.MIB
    with mmap.mmap(-1, size) as data:
        for words in refused(cluster, bundle, 1, lambda rank: [("big", data, {})], "FOREBAY_EPOOL"):
            assert str(size) in words and str(32 * job.MIB) in words


# ---- zeros, hints, copies, room


def state(rank, size, full):
    """A model that all have, and an optimizer's state in shards: zero, or filled."""
    model = noise(2_000_000, "model")
    shard = noise(700_000, rank, full) if full else bytes(700_000)
    adam = ("adam", shard, {"shape": (size * 700_000,), "start": (rank * 700_000,)})
    return [("model", model, {}), adam, ("step", bytes([full]), {})]


def test_zero_state_stores_nothing_and_its_plan_serves_the_next_save(cluster, bundle):
    def body(group, rank):
        stats = []
        for full in range(4):
            saving = job.save(group, bundle, full, state(rank, 4, full), same_structure=full > 0, copies=2)
            stats.append(saving.stats())
        return stats

    before = job.du(cluster.store)
    stats = job.good(job.ranks(cluster, 4, body))[0]
    assert [s["plan_reused"] for s in stats] == [0, 1, 1, 1]
    assert stats[0]["stored_bytes"] < 2_100_000 and stats[0]["hole_bytes"] >= 4 * 700_000
    assert stats[1]["stored_bytes"] >= 4 * 700_000
    for full in range(4):
        adam = b"".join(noise(700_000, rank, full) if full else bytes(700_000) for rank in range(4))
        assert read(cluster, bundle, full + 1) == {"model": noise(2_000_000, "model"), "adam": adam, "step": bytes([full])}
    unique = 4 * 2_000_000 + 3 * 4 * 700_000
    assert job.du(cluster.store) - before <= 1.01 * unique + 4 * job.MIB
    cluster.forebay("verify", bundle)


def test_zeros_are_zeros_where_the_pool_held_other_bytes(cluster, bundle):
    """They are not written into their room, so what was there before must not come back."""
    whole = 20 * job.MIB
    for step in range(4):  # until each byte of the pool has been used
        job.good(save_all(cluster, bundle, step, 1, lambda rank: [("x", noise(whole, step), {})]))
    with mmap.mmap(-1, whole) as data:
        data[whole - 1] = 1
        saved = job.good(save_all(cluster, bundle, 4, 1, lambda rank: [("x", data, {})]))
    assert saved[0][1]["hole_bytes"] == 16 * job.MIB
    assert read(cluster, bundle) == {"x": bytes(whole - 1) + b"\1"}
    cluster.forebay("verify", bundle)


def test_a_save_grows_the_store_by_its_unique_bytes(cluster, bundle):
    shard = 5_000_000
    for step, copies in ((1, 1), (2, 3)):
        before = job.du(cluster.store)
        pieces = lambda rank: [
            ("same", noise(3 * shard, step), {}),
            ("own", noise(shard, step, rank), {"shape": (4 * shard,), "start": (rank * shard,)}),
            *((f"small/{i}", noise(1000 + i, step, i), {}) for i in range(50)),
        ]
        job.good(save_all(cluster, bundle, step, 4, pieces, copies=copies))
        unique = 7 * shard + sum(1000 + i for i in range(50))
        assert unique <= job.du(cluster.store) - before <= 1.01 * unique + job.MIB


def test_a_hint_that_does_not_hold_is_refused_for_differing_replicas(cluster, bundle):
    """The samples differ, the group falls back to full hashing, and that finds the two ranks."""

    def body(group, rank):
        job.save(group, bundle, 1, [("w", noise(1_000_000, 1), {})])
        saving = group.save(bundle, step=2, same_structure=True)
        saving.add("w", noise(1_000_000, 2, rank == 1))
        saving.submit()
        for stage in (saving.captured, saving.durable):
            with pytest.raises(forebay.Error) as caught:
                stage.wait(LIMIT_S)
            assert caught.value.name == "FOREBAY_EREPLICA"
            assert "rank 1" in str(caught.value) and '"w"' in str(caught.value)
        return job.save(group, bundle, 3, [("w", noise(1_000_000, 3), {})], same_structure=True).version

    numbers = job.good(job.ranks(cluster, 3, body))
    assert versions(cluster, bundle) == [1, numbers[0]]
    assert read(cluster, bundle) == {"w": noise(1_000_000, 3)}


def test_a_hint_after_another_structure_is_no_harm(cluster, bundle):
    def body(group, rank):
        job.save(group, bundle, 1, state(rank, 3, 1))
        changed = [("other", noise(500_000, rank), {"shape": (3 * 500_000,), "start": (rank * 500_000,)}), ("model", b"m", {})]
        return job.save(group, bundle, 2, changed, same_structure=True).version

    assert job.good(job.ranks(cluster, 3, body)) == [2] * 3
    assert read(cluster, bundle) == {"other": b"".join(noise(500_000, rank) for rank in range(3)), "model": b"m"}


def test_twelve_bundles_take_turns_with_one_structure_each(cluster, bundle):
    """More than are remembered: a hint that finds nothing remembered is no harm, one that finds something serves."""
    names = [f"{bundle}/{i}" for i in range(12)]

    def value(i, turn, rank):
        return noise(70_000 + i, i, turn, rank)

    def save(group, rank, i, turn):
        size = 70_000 + i
        piece = ("w", value(i, turn, rank), {"shape": (3 * size,), "start": (rank * size,)})
        return job.save(group, names[i], turn, [piece], same_structure=turn > 0)

    def body(group, rank):
        for turn in range(3):
            for i in range(12):
                save(group, rank, i, turn)
        again = [save(group, rank, 0, turn) for turn in range(3, 5)]
        assert again[1].stats()["plan_reused"]

    job.good(job.ranks(cluster, 3, body))
    for i, name in enumerate(names):
        for turn in range(3):
            assert read(cluster, name, turn + 1) == {"w": b"".join(value(i, turn, rank) for rank in range(3))}


def test_groups_that_fill_the_pool_several_times_all_become_durable(tmp_path_factory):
    """Five of 24 MiB, of which a pool of 64 MiB captures one at a time; two steps each, offered at once."""
    size, groups = 12 * job.MIB, 5
    with job.Cluster(tmp_path_factory.mktemp("five"), 1, pool=64 * job.MIB) as cluster:
        started = threading.Barrier(groups)

        def work(i):
            def body(group, rank):
                if not rank:
                    started.wait(LIMIT_S)
                for step in range(2):
                    piece = ("w", noise(size, i, step, rank), {"shape": (2 * size,), "start": (rank * size,)})
                    job.save(group, f"five/{i}", step, [piece])

            return job.ranks(cluster, 2, body)

        with ThreadPoolExecutor(groups) as pool:
            for results in pool.map(work, range(groups)):
                job.good(results)
        for i in range(groups):
            assert read(cluster, f"five/{i}") == {"w": noise(size, i, 1, 0) + noise(size, i, 1, 1)}
        assert cluster.running(0)


def test_a_small_pool_and_a_single_node_are_refused_in_clear_words(tmp_path_factory):
    with job.Cluster(tmp_path_factory.mktemp("small"), 1, pool=32 * job.MIB) as cluster:
        good = lambda rank: [("w", noise(4 * job.MIB, rank), {"shape": (8 * job.MIB,), "start": (rank * 4 * job.MIB,)})]
        large = lambda rank: [("w", noise(12 * job.MIB, rank), {"shape": (24 * job.MIB,), "start": (rank * 12 * job.MIB,)})]
        expected = {"w": noise(4 * job.MIB, 0) + noise(4 * job.MIB, 1)}
        bundle = "small"
        job.good(save_all(cluster, bundle, 1, 2, good))
        for words in refused(cluster, bundle, 2, large, "FOREBAY_EPOOL"):
            assert str(24 * job.MIB) in words and str(16 * job.MIB) in words and "node-0" in words
        for words in refused(cluster, bundle, 2, good, "FOREBAY_ENODE", copies=2):
            assert "2 copies" in words and words.count(f"step 99 of {bundle}: ") == 1, words
        assert read(cluster, bundle) == expected
        for step in range(2, 6):  # more than fits at once: published blocks make room
            job.good(save_all(cluster, bundle, step, 2, good))
        assert read(cluster, bundle) == expected
        assert cluster.running(0)
