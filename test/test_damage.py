"""Damaged bytes: a load gives the right ones or an error that names what was hit, `forebay verify` names every hit, and the
rest of the store and the index are undisturbed.

Each hit has a bundle of its own, of which nothing was read before: daemons are started again between saving and hitting, so
that nothing lies in their memory, and then once for all hits. FOREBAY_LONG=1 takes as many as the product promises.
"""
import json
import os
import random
import shutil
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor

import forebay
import pytest

import job

LONG = bool(os.environ.get("FOREBAY_LONG"))
FLIPS = 1000 if LONG else 60
CUTS = 100 if LONG else 14
INDEX_FLIPS = 1000 if LONG else 24
RECOVERIES = 60 if LONG else 3  # of as many as were refused: each waits some seconds for daemons of before
SAVERS = 4
KINDS = ("pack", "items", "blocks", "root", "slot", "label")
LOADED = ("pack", "items", "blocks", "root")  # what a load reads
HEAD_BYTES, TRAILER_BYTES, ENTRY_BYTES = 4096, 64, 64  # of a pack, docs/formats.md
LARGE = 70_001


def pieces(bundle, step):
    """Blocks in a pack's two sizes and gaps between them, an item of two boxes, a hole, an item without bytes."""
    dice = random.Random(f"{bundle} {step}")
    return [
        ("halves", dice.randbytes(500), {"shape": (900,), "start": (0,)}),
        ("halves", dice.randbytes(400), {"shape": (900,), "start": (500,)}),
        ("large", dice.randbytes(LARGE), {}),
        ("nothing", b"", {}),
        ("small", dice.randbytes(dice.randrange(1, 300)), {}),
        ("zeros", bytes(66_000), {}),
    ]


def expected(bundle, step):
    items = {}
    for name, data, _ in pieces(bundle, step):
        items[name] = items.get(name, b"") + data
    return items


class Store:
    """The files of a cluster's store, by bundle, version and kind."""

    def __init__(self, cluster):
        self.folder = cluster.store

    def key(self, path):
        return str(path.relative_to(self.folder))

    def find(self, bundle, version, kind):
        home = self.folder / "t" / "default" / "b" / bundle.replace("/", "%2F")
        folder = home / "v" / f"{version:020}"
        if kind == "label":
            return home / "l" / "prod" / f"{1:020}"
        if kind in ("root", "slot"):
            return folder / kind
        (segment,) = folder.glob("*-items-0")
        if kind != "pack":
            return segment.with_name(segment.name.replace("items", kind))
        (pack,) = (home / "p").glob(f"{segment.name.partition('-')[0]}-*")
        return pack


def write(path, data):
    path.chmod(0o644)
    path.write_bytes(data)


def flip(path, dice):
    """Changes one byte, as likely in a pack's head, index and trailer as in what lies between. Gives its place."""
    data = bytearray(path.read_bytes())
    at = dice.randrange(len(data))
    if path.parent.name == "p" and dice.random() < 0.5:
        at = dice.choice([dice.randrange(HEAD_BYTES), len(data) - 1 - dice.randrange(TRAILER_BYTES + 4 * ENTRY_BYTES)])
    data[at] ^= dice.randrange(1, 256)
    write(path, data)
    return at


def cut(path, dice):
    data = path.read_bytes()
    length = dice.choice([0, len(data) - 1, dice.randrange(len(data)), dice.randrange(len(data))])
    write(path, data[:length])
    return length


def save_all(cluster, bundles):
    """Two versions in each bundle, of steps 1 and 2; a label at the first."""

    def save_some(first):
        with cluster.connect(first % cluster.nodes) as fb, fb.join(job.unique(), run="0", rank=0, size=1) as group:
            for bundle in bundles[first::SAVERS]:
                for step in (1, 2):
                    assert job.save(group, bundle, step, pieces(bundle, step)).version == step
                fb.label(bundle, "prod", 1)

    with ThreadPoolExecutor(SAVERS) as pool:
        list(pool.map(save_some, range(SAVERS)))


def read(load, version):
    out = {item.name: bytearray(item.nbytes) for item in version.items()}
    for name, target in out.items():
        load.into(name, target)
    load.submit().wait(job.LIMIT_S)
    load.cancel()
    return out


def load_alone(sessions, groups, bundle, number):
    with sessions[0].open(bundle, number) as version:
        return [read(sessions[0].load(version), version)]


def load_together(sessions, groups, bundle, number):
    """Both nodes, each rank all items: what one reads from the store, it passes on."""
    results = [None, None]

    def live(rank):
        try:
            with sessions[rank].open(bundle, number, group=groups[rank]) as version:
                results[rank] = read(groups[rank].load(version), version)
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=live, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def load(how, sessions, groups, bundle, number):
    """What came, of each rank: items, or an error of Forebay."""
    try:
        results = how(sessions, groups, bundle, number)
    except forebay.Error as error:
        results = [error]
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, forebay.Error):
            raise result
    return results


def judge(results, bundle, step, key, must_fail, item=None):
    """Right bytes, or an error that names bundle, version and object, and where it can the item and its block."""
    failures = [result for result in results if isinstance(result, forebay.Error)]
    for result in results:
        if result not in failures:
            assert result == expected(bundle, step)
    assert not must_fail or failures, f"{key} is damaged, and nobody was told"
    for error in failures:
        words = str(error)
        assert error.name == "FOREBAY_EDAMAGED", words
        assert bundle in words and f"version {step}" in words and key in words, words
        if item:
            assert f'item "{item}" block ' in words, words
    return bool(failures)


def verify(cluster, bundle, number):
    """The damages that are found in a version, by `forebay verify`."""
    done = cluster.run("verify", f"{bundle}@{number}", "--json")
    assert done.returncode in (0, 1), done.stderr
    damages = json.loads(done.stdout)["damages"]
    assert (done.returncode == 1) == bool(damages)
    return damages


def hit_in_pack(data, at, bundle, step):
    """The item whose block has the byte at `at` of a pack, or None."""
    return next((name for name, part, _ in pieces(bundle, step) if name != "zeros" and part
                 and 0 <= at - data.find(part) < len(part) and data.find(part) >= HEAD_BYTES), None)  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with job.Cluster(tmp_path_factory.mktemp("damage"), 2) as cluster:
        yield cluster


def enter(cluster):
    sessions = [cluster.connect(node) for node in range(2)]
    name = job.unique()
    with ThreadPoolExecutor(2) as pool:
        join = lambda rank: sessions[rank].join(name, run="0", rank=rank, size=2, timeout=job.LIMIT_S)  # noqa: E731
        return sessions, list(pool.map(join, range(2)))


def restart(cluster):
    cluster.stop()
    cluster.start()


def check_hits(cluster, hits):
    """hits: (bundle, kind, damage). Damages each bundle in step 1 or 2, loads it, and verifies it and the version beside."""
    store = Store(cluster)
    save_all(cluster, [bundle for bundle, _, _ in hits])
    restart(cluster)
    sessions, groups = enter(cluster)
    found, told = [], 0
    for i, (bundle, kind, damage) in enumerate(hits):
        dice = random.Random(f"{bundle} damage")
        step = 1 if kind == "label" else dice.choice((1, 2))
        path = store.find(bundle, step, kind)
        before = path.read_bytes()
        at = damage(path, dice)
        item = hit_in_pack(before, at, bundle, step) if kind == "pack" and damage is flip else None
        must_fail = kind in LOADED[1:] or item is not None
        may_fail = must_fail or (kind == "pack" and damage is cut)
        how = (load_alone, load_together)[i % 2]
        failed = judge(load(how, sessions, groups, bundle, step), bundle, step, store.key(path), must_fail, item)
        assert may_fail or not failed, f"{store.key(path)} at {at}: nobody needed it"
        told += failed
        other = 3 - step
        assert not judge(load(how, sessions, groups, bundle, other), bundle, other, "", False)
        found.append((bundle, step, kind, store.key(path), at, item))

    def verify_hit(hit):
        bundle, step, kind, key, at, item = hit
        damages = verify(cluster, bundle, step)
        assert {d["object"] for d in damages} == {key}, (key, at, damages)
        assert not item or item in {d["item"] for d in damages}, (key, at, damages)
        beside = verify(cluster, bundle, 3 - step)
        assert {d["object"] for d in beside} == ({key} if kind == "label" else set()), beside

    with ThreadPoolExecutor(SAVERS) as pool:
        list(pool.map(verify_hit, found))
    for session in sessions:
        session.close()
    return told


def test_one_byte_flipped_anywhere_is_never_a_wrong_answer(cluster):
    dice = random.Random(1)
    kinds = [dice.choice(KINDS + ("pack", "pack")) for _ in range(FLIPS)]
    told = check_hits(cluster, [(f"flip/{i}", kind, flip) for i, kind in enumerate(kinds)])
    print(f"{FLIPS} flips, {told} loads failed in words")


def test_objects_that_end_early_are_never_a_wrong_answer(cluster):
    dice = random.Random(2)
    kinds = [KINDS[i] if i < len(KINDS) else dice.choice(KINDS) for i in range(CUTS)]
    told = check_hits(cluster, [(f"cut/{i}", kind, cut) for i, kind in enumerate(kinds)])
    print(f"{CUTS} cuts, {told} loads failed in words")


@pytest.mark.parametrize("kind", LOADED)
def test_two_objects_swapped_are_both_named(cluster, kind):
    bundle, store = f"swap/{kind}", Store(cluster)
    save_all(cluster, [bundle])
    restart(cluster)
    paths = [store.find(bundle, step, kind) for step in (1, 2)]
    contents = [path.read_bytes() for path in paths]
    for path, content in zip(paths, reversed(contents)):
        write(path, content)
    sessions, groups = enter(cluster)
    for step, path in zip((1, 2), paths):
        for how in (load_alone, load_together):
            assert judge(load(how, sessions, groups, bundle, step), bundle, step, store.key(path), True)
        assert {d["object"] for d in verify(cluster, bundle, step)} == {store.key(path)}


def test_objects_that_are_gone_are_named(cluster):
    """Side by side, since a daemon believes only after some seconds that an object is not there."""
    kinds, store = (*LOADED, "slot"), Store(cluster)
    save_all(cluster, [f"gone/{kind}" for kind in kinds])
    restart(cluster)
    sessions, groups = enter(cluster)

    def lose(kind):
        bundle = f"gone/{kind}"
        path = store.find(bundle, 2, kind)
        path.unlink()
        results = load(load_alone, sessions, groups, bundle, 2)
        assert judge(results, bundle, 2, store.key(path), kind in LOADED) == (kind in LOADED)
        assert {d["object"] for d in verify(cluster, bundle, 2)} == {store.key(path)}
        assert not judge(load(load_alone, sessions, groups, bundle, 1), bundle, 1, "", False)
        assert not verify(cluster, bundle, 1)

    with ThreadPoolExecutor(len(kinds)) as pool:
        list(pool.map(lose, kinds))


# ---- the index ------------------------------------------------------------------------------------------------------------

OLDEST, NEWEST = 1, 3


@pytest.fixture
def indexed():
    """A cluster of one node, stopped, and copies of its store and index as they are then. In memory, where a sync costs nothing."""
    with tempfile.TemporaryDirectory(prefix="fb-", dir="/dev/shm") as folder, job.Cluster(f"{folder}/index", 1) as cluster:
        with cluster.connect() as fb, fb.join("job", run="0", rank=0, size=1) as group:
            for i in range(6):
                for step in range(OLDEST, NEWEST + 1):
                    options = {"attributes": {"number": f"{i} " * 700}}  # so that the index has more than a page or two
                    job.save(group, f"index/{i}", step, pieces(f"index/{i}", step), **options)
                fb.label(f"index/{i}", "prod", 2)
                fb.delete(f"index/{i}", OLDEST)
        cluster.stop()
        for name in ("store", "meta"):
            shutil.copytree(cluster.folder / name, cluster.folder / f"sound-{name}")
        yield cluster


def put_back(cluster, name):
    shutil.rmtree(cluster.folder / name)
    shutil.copytree(cluster.folder / f"sound-{name}", cluster.folder / name)


def index_answers(cluster):
    """Everything that the index says, and what is found by it."""
    with cluster.connect() as fb:
        bundles = fb.list()
        listed = [(b, fb.versions(b.name), fb.labels(b.name)) for b in bundles]
        found = [fb.open(bundle.name, spec).number for bundle in bundles for spec in ("latest", "prod", NEWEST)]
        return listed, found


def try_index(cluster):
    """What the daemon answers, once it says that it serves; or in which words it refuses."""
    (cluster.folder / "node-0" / "log").write_text("")
    cluster.launch()
    words = ""

    def serves():
        nonlocal words
        if not cluster.running(0):
            return True
        try:
            with cluster.connect() as fb:
                fb.list()
            return True
        except forebay.Error as error:
            words = str(error)
            return "rebuild" in words or error.name == "FOREBAY_EDAMAGED"

    job.until(serves, lambda: f"the daemon serves, or says why not: {words}")
    if not cluster.running(0):
        assert cluster.daemons[0].returncode == 1, cluster.logs()
        return None, cluster.logs()
    try:
        return index_answers(cluster), ""
    except forebay.Error as error:
        return None, str(error)


def recover(cluster):
    """As an administrator would, who has read the words."""
    if not cluster.running(0):
        shutil.rmtree(cluster.folder / "meta")
        cluster.launch()
    job.until(lambda: cluster.run("meta", "rebuild").returncode == 0, "the index is rebuilt")
    job.until(lambda: cluster.run("ls").returncode == 0, "the daemon serves")


def test_no_flip_in_the_index_gives_a_wrong_answer(indexed):
    dice = random.Random(3)
    index = indexed.folder / "sound-meta" / "data.mdb"
    sound = index.read_bytes()
    used = [at for at in range(0, len(sound), 16) if any(sound[at : at + 16])]
    expect, words = try_index(indexed)
    assert expect, words
    indexed.stop()
    refused = {}
    for i in range(INDEX_FLIPS):
        put_back(indexed, "meta")
        at = dice.choice(used) + dice.randrange(16) if i % 4 else dice.randrange(len(sound))
        data = bytearray(sound)
        data[at] ^= dice.randrange(1, 256)
        (indexed.meta / "data.mdb").write_bytes(data)
        answers, words = try_index(indexed)
        assert answers in (None, expect), f"byte {at}"
        if answers is None:
            clear = (f"the index in {indexed.meta}", "damaged", "forebay meta rebuild")
            assert any(part in words for part in clear), (at, words)
            refused[at] = words
            if len(refused) <= RECOVERIES:
                recover(indexed)
                assert index_answers(indexed) == expect, f"byte {at}"
        indexed.kill()
        put_back(indexed, "store")
    print(f"{INDEX_FLIPS} flips in the index: {len(refused)} refused, the others harmless")
    assert refused
