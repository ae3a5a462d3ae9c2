"""A disk that crashes: what a daemon did to its disk is recorded once (sick.c); from the record images are cut, as a loss of power at any
moment could leave them: what was not synced is kept, lost, or torn at 512 bytes, names until their directory was synced.

As a program: crash_disk.py [IMAGES [SEED]] cuts so many images, opens each with a daemon, and says what it found.
"""
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import forebay

import job
import sick

SECTOR = 512
RECORD = struct.Struct("<IIQQQII")
MARK = 255  # a record of our own: what was promised by then, as JSON
LOST, KEPT, DRAWN = range(3)
OPEN_LIMIT_S = 30


def read_records(path):
    bytes_ = Path(path).read_bytes()
    at, found = 0, []
    while at < len(bytes_):
        kind, arg, inode, offset, n_data, n_path, n_other = RECORD.unpack_from(bytes_, at)
        at += RECORD.size
        name = os.fsdecode(bytes_[at : at + n_path])
        other = os.fsdecode(bytes_[at + n_path : at + n_path + n_other])
        at += n_path + n_other
        found.append((kind if kind == MARK else sick.KINDS[kind], arg, inode, offset, name, other, bytes_[at : at + n_data]))
        at += n_data
    return found


def mark(path, promise):
    text = json.dumps(promise).encode()
    with open(path, "ab") as file:  # one write: whole, after what is there
        file.write(RECORD.pack(MARK, 0, 0, 0, 0, len(text), 0) + text)


class File:
    def __init__(self):
        self.synced, self.pending, self.mark = bytearray(), [], 0

    def write(self, target, offset, data):
        if len(target) < offset + len(data):
            target.extend(bytes(offset + len(data) - len(target)))
        target[offset : offset + len(data)] = data

    def apply(self, target, change):
        offset, data = change
        if data is None:
            del target[offset:]
            target.extend(bytes(offset - len(target)))
        else:
            self.write(target, offset, data)

    def sync(self):
        for change in self.pending[: self.mark]:
            self.apply(self.synced, change)
        del self.pending[: self.mark]
        self.mark = 0

    def after_crash(self, dice, fate, in_flight=None):
        if fate == LOST:
            return bytes(self.synced)
        found = bytearray(self.synced)
        for offset, data in self.pending + ([in_flight] if in_flight else []):
            if data is None or fate == KEPT:
                if fate == KEPT or dice.random() < 0.5:
                    self.apply(found, (offset, data))
                continue
            torn = dice.random()
            for at in range(0, len(data), SECTOR):  # all of it, nothing, or sector by sector
                if torn < 0.25 or (torn < 0.75 and dice.random() < 0.5):
                    self.write(found, offset + at, data[at : at + SECTOR])
        return bytes(found)


class Folder:
    def __init__(self):
        self.now, self.synced, self.pending, self.mark = {}, {}, [], 0

    def change(self, deed, name, what):
        if what is None:
            self.now.pop(name, None)
        else:
            self.now[name] = what
        self.pending.append((deed, name, what))

    def apply(self, target, change):
        _, name, what = change
        if what is None:
            target.pop(name, None)
        else:
            target[name] = what

    def sync(self):
        for change in self.pending[: self.mark]:
            self.apply(self.synced, change)
        del self.pending[: self.mark]
        self.mark = 0

    def after_crash(self, salt, fate):
        found = dict(self.synced)
        for change in self.pending:
            if fate == KEPT or (fate == DRAWN and random.Random(f"{salt} {change[0]}").random() < 0.5):
                self.apply(found, change)
        return found


class Disk:
    """Lives through a record. deaf: syncs that it only pretends to do: "object", "folder", "index"; for testing the harness."""

    def __init__(self, root, deaf=()):
        self.root, self.tree, self.inodes, self.deeds, self.deaf = root.rstrip("/"), Folder(), {}, 0, deaf

    def walk(self, path):
        """(folder, name) of a path below the root; folders on the way that the record comes to later are made."""
        folder, parts = self.tree, path[len(self.root) :].strip("/").split("/")
        for part in parts[:-1]:
            if not isinstance(folder.now.get(part), Folder):
                folder.change(self.deed(), part, Folder())
            folder = folder.now[part]
        return folder, parts[-1]

    def deed(self):
        self.deeds += 1
        return self.deeds

    def is_deaf(self, path, what):
        return what in self.deaf and (what == "folder" or ("/meta/" in path) == (what == "index"))

    def kind_of(self, path):
        return "index" if "/meta/" in path else "object"

    def take(self, record):
        kind, arg, inode, offset, path, other, data = record
        if kind == MARK or re.fullmatch(r"/node-\d+/log", path[len(self.root) :]):  # open before the daemon began; nobody reads it again
            return
        folder, name = self.walk(path)
        there = folder.now.get(name) if name else self.tree
        if kind == "create":
            if not isinstance(there, File):
                there = File()
                folder.change(self.deed(), name, there)
            self.inodes[inode] = there
        elif kind == "write" or kind == "truncate":
            file = self.inodes.get(inode)
            change = (offset, data if kind == "write" else None)
            if arg and not self.is_deaf(path, self.kind_of(path)):  # synced by itself, and only this
                file.apply(file.synced, change)
            else:
                file.pending.append(change)
        elif kind == "sync":
            what = there if isinstance(there, Folder) else self.inodes.get(inode)  # numbers are used again
            if self.is_deaf(path, self.kind_of(path) if isinstance(what, File) else "folder") or not what:
                return
            if arg:
                what.sync()
            else:
                what.mark = len(what.pending)
        elif kind == "mkdir":
            if not isinstance(there, Folder):
                folder.change(self.deed(), name, Folder())
        elif kind == "link" or kind == "rename":
            deed = self.deed()
            target, new = self.walk(other)
            target.change(deed, new, there)
            if kind == "rename":
                folder.change(deed, name, None)
        elif kind == "unlink":
            folder.change(self.deed(), name, None)

    def image(self, folder, seed, following=None):
        """Writes what a crash now could leave; `following`: the next record, which may be half done."""
        dice = random.Random(seed)
        fate = dice.choice((LOST, KEPT, DRAWN, DRAWN, DRAWN))
        flying = None
        if following and following[0] == "write":
            flying = (self.inodes.get(following[2]), (following[3], following[6]))

        def put(place, what):
            if isinstance(what, File):
                place.write_bytes(what.after_crash(dice, fate, flying[1] if flying and flying[0] is what else None))
                return
            place.mkdir(exist_ok=True)
            for name, inner in sorted(what.after_crash(seed, fate).items()):
                put(place / name, inner)

        put(Path(folder), self.tree)


# ---- the history ---------------------------------------------------------------------------------------------------------------------

BUNDLES = ("ckpt/a", "model")


def content(bundle, step):
    dice = random.Random(f"{bundle} {step}")
    return {"w": dice.randbytes(40_000 + 997 * (step % 20)), "b": dice.randbytes(300), "zero": bytes(70_000)}


def save(fb, bundle, step):
    with fb.join(f"job {bundle} {step}", run="0", rank=0, size=1) as group:
        with group.save(bundle, step=step) as saving:
            for name, data in content(bundle, step).items():
                saving.add(name, data)
        saving.durable.wait(job.LIMIT_S)
    return saving.version


def move_index(cluster, control, promise):
    """A sync of the index fails once: the daemon goes on with a new file."""
    control.fail("sync", times=1, path=str(cluster.meta) + "/")

    def has_moved():
        step = random.randrange(100, 1 << 30)
        try:
            with cluster.connect() as fb:
                promise["versions"]["model"][str(save(fb, "model", step))] = step
        except forebay.Error:
            pass
        return "meta.index-moved" in cluster.logs()

    job.until(has_moved, "the index has moved")


def record_history(folder, steps=8):
    """A daemon saves, labels, deletes, is killed and comes back, and its index moves. Gives the record's path."""
    folder = Path(folder)
    record = folder / "record"
    cluster = job.Cluster(folder / "c", 1)
    control = sick.Sick(folder)
    cluster.env[0] = control.env(SICK_RECORD=str(record), SICK_PREFIX=str(folder / "c") + "/")
    promise = {"versions": {bundle: {} for bundle in BUNDLES}, "deleted": {bundle: [] for bundle in BUNDLES}, "labels": [None]}
    with cluster:
        for step in range(1, steps + 1):
            with cluster.connect() as fb:
                for bundle in BUNDLES:
                    promise["versions"][bundle][str(save(fb, bundle, step))] = step
                    mark(record, promise)
                if step % 2 == 0:
                    number = fb.versions("model")[-1].number
                    promise["labels"].append(number)  # from here on it may be the one
                    mark(record, promise)
                    fb.label("model", "prod", number)
                    promise["labels"] = [number]
                    mark(record, promise)
                if step % 3 == 0:
                    del promise["versions"]["ckpt/a"][str(step - 1)]  # neither promised nor denied until it is answered
                    mark(record, promise)
                    fb.delete("ckpt/a", step - 1)
                    promise["deleted"]["ckpt/a"].append(step - 1)
                    mark(record, promise)
            if step == steps // 2:
                cluster.kill()
                cluster.start()
            if step == steps - 2:
                move_index(cluster, control, promise)
                mark(record, promise)
    return record


# ---- opening an image ------------------------------------------------------------------------------------------------------------------


class Image:
    """A daemon over an image in `folder`, which has been made as folder/store and folder/meta."""

    def __init__(self, folder, rebuild=False):
        self.folder = Path(folder)
        self.socket = str(self.folder / "socket")
        flags = {"node": "node-0", "cluster": "c", "listen": "tcp:127.0.0.1:0", "socket": self.socket, "pool": "8M"}
        flags |= {"store": f"dir:{self.folder}/store", "meta": f"lmdb:{self.folder}/meta", "drain_ms": "0", "workers": "2"}
        command = [sick.BUILD / "forebayd", *(word for name, value in flags.items() for word in (f"--{name}", value))]
        self.log = open(self.folder / "log", "ab")
        self.process = subprocess.Popen(command + ["--rebuild"] * rebuild, stdin=subprocess.DEVNULL, stderr=self.log)

    def __enter__(self):
        deadline = time.monotonic() + OPEN_LIMIT_S
        while True:
            assert self.process.poll() is None, f"does not start: {self.words()}"
            try:
                session = forebay.connect(self.socket)
                session.list()
                self.session = session
                return session
            except forebay.Error as error:
                assert error.name != "FOREBAY_EREBUILD", f"asks for a rebuild: {error}"
                assert time.monotonic() < deadline, f"is not ready: {error}: {self.words()}"
                time.sleep(0.002)

    def __exit__(self, *exception):
        self.process.kill()
        self.process.wait()
        self.log.close()
        if hasattr(self, "session"):
            self.session.close()

    def words(self):
        return (self.folder / "log").read_text(errors="replace")[-500:]


def judge(session, promise):
    """What a user finds: nothing that was promised is missing, nothing that was deleted is back, nothing is half."""
    for bundle in BUNDLES:
        try:
            found = {version.number: version.step for version in session.versions(bundle)}
        except forebay.Error as error:
            assert error.name == "ENOENT", error  # nothing was saved yet
            found = {}
        for number, step in promise["versions"][bundle].items():
            assert found.get(int(number)) == step, f"version {number} of {bundle}, step {step}, is missing: {found}"
        for number in promise["deleted"][bundle]:
            assert number not in found, f"version {number} of {bundle} is back"
        for number, step in found.items():
            with session.open(bundle, number) as version:
                bytes_ = {item.name: bytes(version.read(item.name)) for item in version.items()}
            assert bytes_ == content(bundle, step), f"version {number} of {bundle} is not what was saved"
    if promise["labels"] == [None]:
        return
    found = session.labels("model").get("prod")
    assert found in promise["labels"], f"prod is {found}, not one of {promise['labels']}"


def try_image(folder, records, cut, disk, promise, seed):
    """Cuts the image and opens it. None, or what is wrong with it."""
    folder = Path(folder)
    try:
        disk.image(folder, seed, records[cut] if cut < len(records) else None)
        for name in ("store", "meta"):
            (folder / name).mkdir(exist_ok=True)
        with Image(folder) as session:
            judge(session, promise)
            if seed % 10 == 0:
                save(session, "model", 1000)
        if seed % 100 == 5:  # the same from the store alone; seconds, since it waits until names that come late are there
            with Image(folder, rebuild=True) as session:
                judge(session, promise)
    except (AssertionError, forebay.Error) as error:
        return f"image cut before record {cut} with seed {seed}: {error}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return None


def try_images(record, root, n, seed=0, deaf=(), enough=20):
    """`n` images, in the order of their cuts. What was wrong, in words; stops when that is enough."""
    records = read_records(record)
    first = next(i for i, r in enumerate(records) if r[0] == MARK)
    dice = random.Random(seed)
    cuts = sorted(dice.randrange(first + 1, len(records) + 1) for _ in range(n))
    disk, promise, at, wrong = Disk(root, deaf), None, 0, []
    (disk.tree.change(0, "store", Folder()), disk.tree.change(0, "meta", Folder()))
    disk.tree.mark = 2
    disk.tree.sync()
    base = tempfile.mkdtemp(prefix="fb-image-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
    try:
        for i, cut in enumerate(cuts):
            for entry in records[at:cut]:
                disk.take(entry)
                promise = json.loads(entry[4]) if entry[0] == MARK else promise
            at = cut
            words = try_image(f"{base}/{i}", records, cut, disk, promise, seed * n + i)
            wrong += [words] if words else []
            if len(wrong) >= enough:
                break
    finally:
        shutil.rmtree(base, ignore_errors=True)
    return wrong


def main():
    n, seed = (list(map(int, sys.argv[1:])) + [10_000, 0][len(sys.argv) - 1 :])[:2]
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fb-crash-") as folder:
        record = record_history(folder)
        records = len(read_records(record))
        wrong = try_images(record, f"{folder}/c", n, seed)
    for words in wrong:
        print(words)
    print(f"{n} images of {records} records: {len(wrong)} wrong, {time.monotonic() - begin:.0f} s")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
