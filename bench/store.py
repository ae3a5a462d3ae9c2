"""To the store and back: $BENCH_MIB (1024) by one rank to durable, and read again; `forebay put` and `forebay get` of the same.

Bounds, all on the same disk: a plain program that writes the same bytes from memory and fsyncs; that reads them into memory;
that copies files and fsyncs them (put); that copies files and does not, as get does not. Each ours and theirs alternate; best of
$BENCH_ROUNDS (3). Loads come from a daemon that was started anew, so that its pool is empty: once with the kernel's cache of
the files dropped (disk), once with it warm.
"""
import os
import shutil
import subprocess
import time
from pathlib import Path

import bed
import forebay

BYTES = bed.setting("BENCH_MIB", 1024) * bed.MIB
ROUNDS = bed.setting("BENCH_ROUNDS", 3)
FILES = 4
PIECE = 8 * bed.MIB
POOL = 2 * BYTES + BYTES // 2


def timed(work, *arguments) -> float:
    begin = time.monotonic()
    work(*arguments)
    return time.monotonic() - begin


# ---- the plain program


def write_plain(path: Path, data: memoryview) -> None:
    with path.open("wb", buffering=0) as file:
        for at in range(0, len(data), PIECE):
            file.write(data[at : at + PIECE])
        os.fsync(file.fileno())


def read_plain(path: Path, out: memoryview) -> None:
    with path.open("rb", buffering=0) as file:
        at = 0
        while n := file.readinto(out[at : at + PIECE]):
            at += n


def copy_plain(source: Path, target: Path, sync: bool) -> None:
    target.mkdir()
    piece = memoryview(bytearray(PIECE))
    for path in sorted(source.iterdir()):
        with path.open("rb", buffering=0) as come, (target / path.name).open("wb", buffering=0) as go:
            while n := come.readinto(piece):
                go.write(piece[:n])
            if sync:
                os.fsync(go.fileno())


# ---- ours


class Cluster:
    def __init__(self) -> None:
        self.restart()
        self.step = 0

    def restart(self) -> None:
        """With an empty pool."""
        if hasattr(self, "session"):
            self.session.close()
            bed.down("store")
        self.folder = bed.up("store", 1, POOL)
        self.session = forebay.connect(self.folder / "node-0" / "socket")

    def save(self, data: memoryview) -> dict[str, float]:
        """Seconds from submit to each stage."""
        self.step += 1
        group = self.session.join("store", run=str(self.step), rank=0, size=1)
        with group.save("store", step=self.step) as save:
            save.add("bytes", data)
            begin = time.monotonic()
        took = {}
        for stage in ("captured", "durable"):
            getattr(save, stage).wait()
            took[stage] = time.monotonic() - begin
        self.version = save.version
        return took

    def load(self, out: memoryview) -> None:
        with self.session.open("store", self.version) as version, self.session.load(version) as load:
            load.into("bytes", out)

    def run(self, *words: str) -> str:
        environment = {**os.environ, "FOREBAY_SOCKET": str(self.folder / "node-0" / "socket")}
        return subprocess.run([bed.FOREBAY, *words], env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout


def best(of: dict[str, float], name: str, seconds: float) -> None:
    of[name] = min(seconds, of.get(name, seconds))


def line(what: str, ours: float, theirs: float) -> None:
    bed.rate(what, "GB/s", BYTES / 1e9 / ours, BYTES / 1e9 / theirs)


def bench_memory(cluster: Cluster) -> None:
    data, out, path, took = memoryview(bytearray(os.urandom(BYTES))), memoryview(bytearray(BYTES)), bed.DIR / "plain", {}
    for n in range(ROUNDS):
        for at in range(0, BYTES, 65536):
            data[at : at + 8] = (n * BYTES + at).to_bytes(8, "little")
        for stage, seconds in cluster.save(data).items():
            best(took, stage, seconds)
        best(took, "write", timed(write_plain, path, data))
        for cache in ("disk", "warm"):
            cluster.restart()
            if cache == "disk":
                bed.forget(cluster.folder / "store")
            best(took, f"load {cache}", timed(cluster.load, out))
            assert out == data
            if cache == "disk":
                bed.forget(path)
            best(took, f"read {cache}", timed(read_plain, path, out))
        best(took, "load pool", timed(cluster.load, out))
        cluster.session.delete("store", cluster.version)
        path.unlink()
    line("save, submit to durable; bound write + fsync", took["durable"], took["write"])
    line("load from disk; bound read from disk", took["load disk"], took["read disk"])
    line("load, the kernel's cache warm; bound read of the same", took["load warm"], took["read warm"])
    line("load again, in the node's pool; bound read, cache warm", took["load pool"], took["read warm"])


def bench_files(cluster: Cluster) -> None:
    source, target, took = bed.DIR / "files", bed.DIR / "target", {}
    source.mkdir()
    for n in range(FILES):
        write_plain(source / f"file-{n}", memoryview(os.urandom(BYTES // FILES)))
    for _ in range(ROUNDS):
        begin = time.monotonic()
        version = cluster.run("put", "files", str(source)).strip()
        best(took, "put", time.monotonic() - begin)
        best(took, "copy+fsync", timed(copy_plain, source, target, True))
        shutil.rmtree(target)
        cluster.restart()
        best(took, "get", timed(cluster.run, "get", "files", str(target)))
        assert all((target / p.name).read_bytes() == p.read_bytes() for p in source.iterdir())
        shutil.rmtree(target)
        best(took, "copy", timed(copy_plain, source, target, False))
        shutil.rmtree(target)
        cluster.run("rm", f"files@{version}")
        os.sync()
    line("put of 4 files to durable; bound copy + fsync", took["put"], took["copy+fsync"])
    line("get of 4 files, empty pool, warm cache; bound copy", took["get"], took["copy"])


if __name__ == "__main__":
    print(f"{BYTES // bed.MIB} MiB; best of {ROUNDS}")
    bed.head()
    cluster = Cluster()
    bench_memory(cluster)
    bench_files(cluster)
    bed.down("store")
