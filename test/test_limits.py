"""The limits of docs/limits.md hold, and what is one beyond them is refused in words and changes nothing.

FOREBAY_LONG=1 takes each limit at its full size; the short form is a tenth of it or less. Times are printed, not judged,
but for growth: ten times as many items may take at most 25 times as long.
"""
import mmap
import os
import random
import shutil
import struct
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import forebay
import pytest
from blake3 import blake3

import decode
import job

LONG = bool(os.environ.get("FOREBAY_LONG"))
ATTEMPTS = 3  # of what is measured, each time on a machine that does other things, too
ITEM_COUNTS = (10_000, 100_000, 1_000_000) if LONG else (10_000, 100_000)
VERSIONS = 100_000 if LONG else 1_000
SAVES = 200 if LONG else 150  # of which the first half fills what is bounded: 64 stories of saves that ended
HEAP_NOISE_BYTES = 256 << 10  # pages that a busier moment touched for good: up to 130 KiB were seen, then nothing for hundreds of saves
RANKS = 64
NAME_BYTES, BUNDLE_BYTES, DIMENSIONS = 1024, 200, 8
LONG_LIMIT_S = 900
SAMPLE = 200
LARGE_ITEMS = 100_000 if LONG else 55_000  # of the largest kind: more than a connection queues


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with job.Cluster(tmp_path_factory.mktemp("limits"), 2, pool=1 << 30 if LONG else 256 * job.MIB) as cluster:
        yield cluster


@pytest.fixture
def fb(cluster):
    with cluster.connect() as fb:
        yield fb


@pytest.fixture
def group(fb):
    with fb.join(job.unique(), run="0", rank=0, size=1) as group:
        yield group


class Watch:
    def __init__(self):
        self.laps, self.last = {}, time.monotonic()

    def lap(self, name):
        now = time.monotonic()
        self.laps[name], self.last = now - self.last, now


class Peak:
    """The most memory of its own, beside its pool, that any daemon of a cluster has had so far."""

    def __init__(self, cluster):
        self.cluster, self.bytes, self.over = cluster, 0, threading.Event()
        self.thread = threading.Thread(target=self.watch)

    def look(self):
        for daemon in self.cluster.daemons:
            lines = Path(f"/proc/{daemon.pid}/status").read_text().splitlines()
            self.bytes = max(self.bytes, int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) << 10)

    def watch(self):
        while not self.over.wait(0.02):
            self.look()

    def __enter__(self):
        self.look()
        self.thread.start()
        return self

    def __exit__(self, *exception):
        self.over.set()
        self.thread.join()

    def check(self, n, item_bytes, in_hand):
        """n blocks in flight, and so many lists of n items: 64 MiB, 256 bytes a block, 512 bytes, name and boxes an item."""
        most = 64 * job.MIB + 256 * n + in_hand * n * (512 + item_bytes)
        print(f"a daemon had at most {self.bytes >> 20} MiB of memory; {most >> 20} are promised")
        assert self.bytes <= most


# ---- items ----------------------------------------------------------------------------------------------------------------


def save_and_read(cluster, n, ranks):
    """Saves n items by so many ranks, opens them on the other node, lists them all and reads some. Times by name."""
    bundle, watch = f"items/{n}/{ranks}", Watch()

    def body(group, rank):
        with group.save(bundle, step=1) as saving:
            for i in range(rank, n, ranks):
                saving.add(f"item {i:07}", i.to_bytes(8, "little"))
            rank or watch.lap("offered")
        saving.captured.wait(LONG_LIMIT_S)
        rank or watch.lap("captured")
        saving.durable.wait(LONG_LIMIT_S)
        rank or watch.lap("durable")

    with Peak(cluster) as peak:
        job.good(job.ranks(cluster, ranks, body))
    peak.check(n, 12 + 2 * 16, 3)  # as it was offered, the plan of it, and the version that it becomes
    with cluster.connect(1) as fb:
        watch.lap("")
        version = fb.open(bundle)
        watch.lap("opened")
        names = [item.name for item in version.items()]
        watch.lap("listed")
        assert names == [f"item {i:07}" for i in range(n)]
        watch.lap("")
        chosen = random.Random(n).sample(range(n), SAMPLE)
        out = {i: bytearray(8) for i in chosen}
        with fb.load(version) as load:
            for i, target in out.items():
                load.into(f"item {i:07}", target)
        assert all(target == i.to_bytes(8, "little") for i, target in out.items())
        watch.lap("read")
    return {name: lap for name, lap in watch.laps.items() if name}


@pytest.mark.parametrize("ranks", [1, 2])  # a rank may offer all that a version may have
def test_items_in_a_version(tmp_path, ranks):
    times, steps = {}, [*zip(ITEM_COUNTS, ITEM_COUNTS[1:])]
    slow = []
    for attempt in range(ATTEMPTS):
        for n in ITEM_COUNTS:
            with job.Cluster(tmp_path / f"items-{n}-{attempt}", 2, pool=64 * job.MIB + 256 * n) as cluster:
                laps = save_and_read(cluster, n, ranks)
            print(f"{n:8} items: " + ", ".join(f"{name} {lap:.2f} s" for name, lap in laps.items()), f"({SAMPLE} read)")
            times[n] = {name: min(lap, times[n][name]) if n in times else lap for name, lap in laps.items()}
        slow = [
            f"{name}: {less} to {more} items"
            for less, more in steps
            for name in ("captured", "durable", "opened", "listed")
            if times[more][name] >= 25 * max(times[less][name], 0.5)
        ]
        if not slow:
            break
    assert not slow, (slow, times)


def test_many_boxes_of_one_block_come_as_fast_as_they_are_taken(cluster):
    """What tells of them has more bytes than may wait to be read (64 MiB): the daemon waits for the client's answers."""
    boxes, shape = 420_000, (1,) * (DIMENSIONS - 1) + (4,)
    with cluster.connect() as fb, fb.join("boxes", run="1", rank=0, size=1) as group:
        for name, data in (("filled", b"abcd"), ("hole", bytes(4))):
            with group.save(name, step=1) as saving:
                saving.add("x", memoryview(data).cast("B", shape))
            saving.durable.wait(LONG_LIMIT_S)
            out = bytearray(b"?" * (4 * boxes))
            targets = memoryview(out)
            with fb.open(name, "latest") as version, fb.load(version) as loading:
                for at in range(0, len(out), 4):
                    loading.into("x", targets[at : at + 4].cast("B", shape))
            assert out == data * boxes


def test_a_rank_that_offers_and_wants_more_than_fits_into_many_frames(cluster):
    """The longest names and the most dimensions: 1,340 bytes an item. Then all of them are loaded by one rank, and by two."""
    shape = (1,) * (DIMENSIONS - 1) + (4,)
    names = [f"{i:07}" + "n" * (NAME_BYTES - 7) for i in range(LARGE_ITEMS)]

    def save(group, rank):
        with group.save("items/large", step=1) as saving:
            for i, name in enumerate(names):
                saving.add(name, memoryview(i.to_bytes(4, "little")).cast("B", shape))
        saving.durable.wait(LONG_LIMIT_S)

    def load(group, rank):
        outs = [bytearray(4) for _ in names]
        with group.session.open("items/large", group=group) as version:
            with group.load(version) as loading:
                for name, out in zip(names, outs):
                    loading.into(name, memoryview(out).cast("B", shape))
        assert outs == [i.to_bytes(4, "little") for i in range(LARGE_ITEMS)]

    with job.Cluster(cluster.folder.parent / "large-items", 2) as cluster:
        with Peak(cluster) as peak:
            job.good(job.ranks(cluster, 1, save))
        peak.check(LARGE_ITEMS, NAME_BYTES + 2 * 16 * DIMENSIONS, 4)  # and as it is written
        job.good(job.ranks(cluster, 2, load))


if LONG:

    @pytest.mark.parametrize("ranks", [1, 2])
    def test_more_items_than_a_version_may_have_are_refused(cluster, ranks):
        def body(group, rank):
            with group.save("items/too-many", step=1) as saving:
                for i in range(rank, 1_000_001, ranks):
                    saving.add(f"item {i:07}", b"1")
            saving.durable.wait(LONG_LIMIT_S)

        for error in job.ranks(cluster, ranks, body):
            assert isinstance(error, forebay.Error) and "1000000" in str(error), error


# ---- names and dimensions -------------------------------------------------------------------------------------------------


def test_names_of_items(fb, group):
    good = ["x" * NAME_BYTES, "ü" * (NAME_BYTES // 2), "語" * (NAME_BYTES // 3) + "a"]
    with group.save("names/items", step=1) as saving:
        for i, name in enumerate(good):
            saving.add(name, bytes([i]))
        for name in ("x" * (NAME_BYTES + 1), "ü" * (NAME_BYTES // 2) + "a", ""):
            with pytest.raises(forebay.Error, match="1024 bytes") as caught:
                saving.add(name, b"x")
            assert caught.value.name == "EINVAL"
    saving.durable.wait(job.LIMIT_S)
    with fb.open("names/items") as version:
        assert {item.name: version.read(item.name) for item in version.items()} == {
            name: bytes([i]) for i, name in enumerate(good)
        }
        with pytest.raises(KeyError):
            version.find("x" * (NAME_BYTES - 1))


def refused(fb, group, bundle, words):
    """Such a name is refused at every door, and by then nothing was made."""
    before = fb.list()
    with pytest.raises(forebay.Error, match=words):
        with group.save(bundle, step=1) as saving:
            saving.add("x", b"x")
        saving.durable.wait(job.LIMIT_S)
    for call in (fb.open, fb.versions, fb.labels, lambda name: fb.delete(name, 1), lambda name: fb.label(name, "l", 1)):
        with pytest.raises(forebay.Error, match=words):
            call(bundle)
    assert fb.list() == before


def test_names_of_bundles(fb, group):
    """Each byte that is not a letter, digit, -, _ or . counts three."""
    good = ["b" * BUNDLE_BYTES, "/".join(["b"] * 50) + "bbb", "ü" * 33 + "bb"]
    for step, bundle in enumerate(good):
        encoded = sum(1 if byte in b"b" else 3 for byte in bundle.encode())
        assert encoded == BUNDLE_BYTES
        job.save(group, bundle, step, [("x", bundle.encode(), {})])
        fb.label(bundle, "l" * 100, 1)
        assert fb.open(bundle, "l" * 100).read("x") == bundle.encode()
        refused(fb, group, bundle + "b", "200")
    with pytest.raises(forebay.Error, match="100"):
        fb.label(good[0], "l" * 101, 1)


@pytest.mark.parametrize(
    "bundle", ["", "..", "a/../b", "a/./b", "/a", "a/", "a//b", "a\nb", "a\x00b", "a\x7fb", "\x1b[31m", "a\u0085b"]
)
def test_bundles_of_such_names_are_refused(fb, group, bundle):
    before = fb.list()
    with pytest.raises((forebay.Error, ValueError)):
        with group.save(bundle, step=random.getrandbits(40)) as saving:
            saving.add("x", b"x")
        saving.durable.wait(job.LIMIT_S)
    with pytest.raises((forebay.Error, ValueError)):
        fb.open(bundle)
    assert fb.list() == before


def test_dimensions(fb, group):
    shape = (2, 1, 3, 1, 2, 1, 2, 1)
    data = bytes(range(24))
    with group.save("dimensions", step=1) as saving:
        saving.add("eight", memoryview(data).cast("B", shape))
        with pytest.raises((forebay.Error, ValueError), match="8"):
            saving.add("nine", memoryview(data).cast("B", shape + (1,)))
    saving.durable.wait(job.LIMIT_S)
    with fb.open("dimensions") as version:
        assert [(item.name, item.shape) for item in version.items()] == [("eight", shape)]
        assert len(shape) == DIMENSIONS and version.read("eight") == data
        out = bytearray(3)
        with fb.load(version) as load:
            load.into("eight", memoryview(out).cast("B", (1, 1, 3, 1, 1, 1, 1, 1)), start=(1, 0, 0, 0, 1, 0, 1, 0))
        assert bytes(out) == bytes(memoryview(data)[12 + 3 : 24 : 4])


# ---- large pieces ---------------------------------------------------------------------------------------------------------


if LONG:

    def test_a_piece_of_more_than_four_gibibytes(memory):
        """Saved whole and loaded whole; nearly all of it zeros, which take room in the pool while they are looked at, no more."""
        size, watch = (1 << 32) + 3 * job.MIB + 5, Watch()
        marks = {0: 1, (1 << 31) + 3: 2, (1 << 32) - 1: 3, 1 << 32: 4, size - 1: 5}
        private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # pages that are only read are all the same one
        with job.Cluster(memory / "large", 1, pool=2 * size + 16 * job.MIB) as cluster, cluster.connect() as fb:
            watch.lap("")
            with mmap.mmap(-1, size, private) as data, fb.join("j", run="0", rank=0, size=1) as group:
                for at, value in marks.items():
                    data[at] = value
                saved = job.save(group, "large", 1, [("x", data, {})], limit_s=LONG_LIMIT_S).stats()
            watch.lap("saved")
            assert saved["offered_bytes"] == size and saved["stored_bytes"] <= 4 * 8 * job.MIB
            with fb.open("large") as version, mmap.mmap(-1, size, private) as out:
                assert version.find("x").nbytes == size
                tail = bytearray(job.MIB + 5)
                with fb.load(version) as load:
                    load.into("x", tail, start=(size - len(tail),))
                assert tail == bytes(len(tail) - 1) + b"\5"
                watch.lap("its end loaded")
                with fb.load(version) as load:
                    load.into("x", out)
                watch.lap("loaded whole")
                assert {at: out[at] for at in marks} == marks
                for at, value in marks.items():
                    out[at] = 0
                assert all(out[at : at + job.MIB].count(0) == len(out[at : at + job.MIB]) for at in range(0, size, job.MIB))
            cluster.forebay("verify", "large")
        print(f"{size} bytes: " + ", ".join(f"{name} {lap:.1f} s" for name, lap in watch.laps.items() if name))


# ---- one beyond -----------------------------------------------------------------------------------------------------------

BEYOND = {
    "a group's name": (lambda fb, group: fb.join("j" * 201, run="0", rank=0, size=1, timeout=5), "200"),
    "a run's name": (lambda fb, group: fb.join("j", run="r" * 201, rank=0, size=1, timeout=5), "200"),
    "ranks of a group": (lambda fb, group: fb.join("j", run="0", rank=0, size=65_537, timeout=5), "65536"),
    "copies": (lambda fb, group: job.save(group, "beyond", 1, [("x", b"x", {})], copies=4), "3"),
    "attributes": (lambda fb, group: job.save(group, "beyond", 2, [("x", b"x", {})], attributes={"a": "b" * (32 << 10)}), "attributes"),
    "a type's tag": (lambda fb, group: job.save(group, "beyond", 3, [("x", b"x", {"dtype": "t" * 33})]), "32 bytes"),
    "bytes of an item": (lambda fb, group: job.save(group, "beyond", 4, [("x", b"x", {"shape": (1 << 63, 2), "start": (0, 0)})]), "x"),
    "a label": (lambda fb, group: fb.label("beyond", "l" * 101, 1), "100"),
}


@pytest.mark.parametrize("what", BEYOND)
def test_what_goes_beyond_a_limit_is_refused_in_words_and_leaves_nothing(fb, group, what):
    before = fb.list()
    call, words = BEYOND[what]
    with pytest.raises((forebay.Error, ValueError), match=words):
        call(fb, group)
    assert fb.list() == before
    job.save(group, job.unique("beyond"), 9, [("x", b"x", {})])  # the group and the session are as good as before


# ---- ranks ----------------------------------------------------------------------------------------------------------------


RANKS_SOURCE = """
import os, random, sys
import forebay

def live(socket, rank, size, shard):
    dice = random.Random(7)
    shards = [dice.randbytes(shard) for _ in range(size)]
    same = dice.randbytes(100_000)
    with forebay.connect(socket) as fb, fb.join("many", run="0", rank=rank, size=size, timeout=60) as group:
        for step in range(2):
            with group.save("ranks", step=step, same_structure=step > 0) as saving:
                saving.add("all", same)
                saving.add("shards", shards[rank - step], shape=(size * shard,), start=(rank * shard,))
                saving.add(f"own/{rank}", bytes([rank, step]))
            saving.durable.wait(60)
        out, same_out, other = bytearray(shard), bytearray(100_000), (rank + 1) % size
        with fb.open("ranks", group=group) as version, group.load(version) as load:
            load.into("shards", out, start=(other * shard,))
            load.into("all", same_out)
        assert out == shards[other - 1] and same_out == same, rank

socket, size, shard = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
children = {}
for rank in range(size):
    pid = os.fork()
    if not pid:
        live(socket, rank, size, shard)
        os._exit(0)
    children[pid] = rank
failed = []
while children:
    pid, status = os.wait()
    rank = children.pop(pid)
    failed += [rank] if status else []
print("failed:", sorted(failed), flush=True)
"""


def test_many_ranks_on_one_node(cluster):
    """Each a process: a replica, a shard, a value, twice, the second time hinted; then each reads what its neighbour saved."""
    with job.Cluster(cluster.folder.parent / "one-node", 1) as node:
        with job.Rank(RANKS_SOURCE, node.socket(0), RANKS, 5_003) as ranks:
            ranks.wait_for("failed: []")
        with node.connect() as fb:
            assert len(fb.open("ranks")) == RANKS + 2
            assert [v.step for v in fb.versions("ranks")] == [0, 1]
            assert fb.open("ranks").read(f"own/{RANKS - 1}") == bytes([RANKS - 1, 1])


# ---- what stays -----------------------------------------------------------------------------------------------------------


def figures(pid):
    """Resident bytes beside what is shared, descriptors, threads."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    rss = (int(status["RssAnon"].split()[0]) + int(status["RssFile"].split()[0])) << 10
    return rss, len(os.listdir(f"/proc/{pid}/fd")), int(status["Threads"])


def test_a_daemon_does_not_grow_with_saves(tmp_path):
    """From the half on, when its pool is full of what has become cache. A bundle of a few versions, whose list does not grow."""
    with job.Cluster(tmp_path / "growth", 2, pool=4 * job.MIB) as cluster:
        with cluster.connect(0) as a, cluster.connect(1) as b, ThreadPoolExecutor(2) as pool:
            name = job.unique()
            groups = list(pool.map(lambda s: s[1].join(name, run="0", rank=s[0], size=2), enumerate((a, b))))

            def save(group, step):
                data = random.Random(step).randbytes(150_000)  # both ranks', stored once
                return job.save(group, "growth", step, [("x", data, {}), (f"own/{group.rank}", data[: 50_000 + group.rank], {})]).version

            def saves(steps):
                for step in steps:
                    (number,) = set(pool.map(lambda group: save(group, step), groups))
                    if number > 5:
                        a.delete("growth", number - 5)

            saves(range(SAVES // 2))
            before = [figures(daemon.pid) for daemon in cluster.daemons]
            saves(range(SAVES // 2, SAVES))

            def after():
                return [figures(daemon.pid) for daemon in cluster.daemons]

            def settled():  # one may look after the store just now
                return all(new[1] <= old[1] and new[2] <= old[2] for old, new in zip(before, after()))

            job.until(settled, lambda: f"descriptors and threads are as many as they were: {before}, {after()}")
            pairs = list(zip(before, after()))
    for old, new in pairs:
        saves = SAVES - SAVES // 2
        print(f"{(new[0] - old[0]) / saves:.0f} bytes a save; {old[0] >> 10} to {new[0] >> 10} KiB, descriptors {old[1]} to {new[1]}")
        assert new[0] - old[0] < HEAP_NOISE_BYTES + 1024 * saves


@pytest.fixture
def memory():
    """A folder in memory, where a sync costs nothing."""
    folder = Path(tempfile.mkdtemp(prefix="fb-", dir="/dev/shm"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_many_versions_in_an_index(memory):
    """Saved by several groups at once, in one bundle of half of them and others of a hundred. Lists come in pages."""
    half, watch = VERSIONS // 2, Watch()
    bundles = ["many"] + [f"few/{i:04}" for i in range(half // 100)]
    with job.Cluster(memory / "versions", 1) as cluster, cluster.connect() as fb:

        def fill(worker):
            with cluster.connect() as own, own.join(job.unique(), run="0", rank=0, size=1) as group:
                pending = []
                for step in range(worker, VERSIONS, 8):
                    bundle = "many" if step < half else bundles[1 + (step - half) // 100]
                    with group.save(bundle, step=step) as saving:
                        saving.add("x", bytes(8))  # nothing to be stored
                    pending.append(saving)
                    if len(pending) == 8:
                        pending.pop(0).durable.wait(job.LIMIT_S)
                for saving in pending:
                    saving.durable.wait(job.LIMIT_S)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(fill, range(8)))
        watch.lap(f"{VERSIONS} versions saved")
        listed = fb.list()
        watch.lap(f"{len(bundles)} bundles listed")
        assert [b.name for b in listed] == sorted(bundles) and sum(b.versions for b in listed) == VERSIONS
        watch.lap("")
        entries = fb.versions("many")
        watch.lap(f"{half} versions of one bundle listed")
        assert [e.number for e in entries] == list(range(1, half + 1)) and {e.step for e in entries} == set(range(half))
        watch.lap("")
        assert fb.open("many").number == half
        watch.lap("latest opened")
    print(", ".join(f"{name} {lap:.3f} s" for name, lap in watch.laps.items() if name))


def stored(kind, number, body):
    """A record as docs/formats.md has it."""
    head = decode.MAGIC[kind] + struct.pack("<BBHQQQQQIII", 1, 0, kind, len(body), 0x100000 + number, 0, 0, number, 1, 0, 0)
    raw = head + struct.pack("<I", decode.crc32c(head)) + body
    return raw + blake3(raw).digest()


def text(value):
    return struct.pack("<I", len(value)) + value.encode()


def store_versions(store, bundle, n):
    """Slots and roots of versions without items, as their coordinators would have left them."""
    names, empty = text("default") + text(bundle), struct.pack("<II", 0, 0)
    for number in range(1, n + 1):
        folder = store / "t" / "default" / "b" / bundle.replace("/", "%2F") / "v" / f"{number:020}"
        folder.mkdir(parents=True)
        (folder / "slot").write_bytes(stored(decode.SLOT, number, names + struct.pack("<Q", 0) + text("node-0") + text("")))
        root = names + struct.pack("<7Q", number, 0, 0, 0, 0, 0, 0) + 3 * empty
        (folder / "root").write_bytes(stored(decode.ROOT, number, root))


def test_an_index_of_many_versions_is_made_again_and_looked_at(memory):
    """From a store that lies there without an index; then at each start, and by a collection."""
    half, watch = VERSIONS // 2, Watch()
    bundles = ["many"] + [f"few/{i:04}" for i in range(half // 100)]
    with job.Cluster(memory / "again", 1) as cluster:
        cluster.stop()
        (cluster.store / "g" / "2").write_bytes(b"another life's")
        for bundle in bundles:
            store_versions(cluster.store, bundle, half if bundle == "many" else 100)
        cluster.launch()
        job.until(lambda: "forebay meta rebuild" in cluster.run("ls").stderr, "the index is refused")
        watch.lap("")
        assert cluster.long("meta", "rebuild") == f"{len(bundles)} bundles, {VERSIONS} versions, 0 labels\n"
        cluster.wait_ready()
        watch.lap(f"index of {VERSIONS} versions rebuilt")
        cluster.stop()
        watch.lap("")
        cluster.start()
        watch.lap("started again")
        cluster.long("gc")
        watch.lap("collected")
        with cluster.connect() as fb:
            assert sum(b.versions for b in fb.list()) == VERSIONS and fb.open("many").number == half
    print(", ".join(f"{name} {lap:.3f} s" for name, lap in watch.laps.items() if name))
