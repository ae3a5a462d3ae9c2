"""What the benches in Python have in common: a cluster of real daemons below $BENCH_DIR, dropped caches, and the one form of a
line: figure, bound of the same run, ratio. 1.00 is as good as the bound, whichever way it counts; see bed.h."""
import os
import subprocess
from pathlib import Path

DIR = Path(os.environ["BENCH_DIR"]).resolve()
FOREBAY = Path("build/forebay").resolve()
MIB = 1 << 20


def setting(name: str, otherwise: int) -> int:
    return int(os.environ.get(name) or otherwise)


def head() -> None:
    print(f"{'':<66} {'figure':>10} {'bound':>10} {'ratio':>6}", flush=True)


def rate(what: str, unit: str, figure: float, bound: float) -> None:
    """The more the better."""
    print(f"{what:<58} {unit:>7} {figure:>10.2f} {bound:>10.2f} {figure / bound:>6.2f}", flush=True)


def duration(what: str, unit: str, figure: float, bound: float) -> None:
    """The less the better."""
    print(f"{what:<58} {unit:>7} {figure:>10.2f} {bound:>10.2f} {bound / figure:>6.2f}", flush=True)


def up(name: str, nodes: int, pool_bytes: int) -> Path:
    """Starts a cluster, or what of it does not run; its folder."""
    words = ["--dir", str(DIR / name), "--nodes", str(nodes), "--pool", str(pool_bytes)]
    subprocess.run([FOREBAY, "up", *words], check=True, stdout=subprocess.DEVNULL)
    return DIR / name


def down(name: str) -> None:
    subprocess.run([FOREBAY, "down", "--dir", str(DIR / name)], check=True, stdout=subprocess.DEVNULL)


def forget(place: Path) -> None:
    """Drops the kernel's cache of a file, or of all files below a folder; they must have been synced."""
    for path in (place, *place.rglob("*")):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
