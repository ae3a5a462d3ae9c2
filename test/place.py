"""Clusters of real daemons below temporary folders, for end-to-end tests. However a test ends, its daemons end with it.

Not in conftest.py: tests of several folders run in one pytest, where that name is the last one's.
"""
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BUILD = Path(os.environ.get("FOREBAY_BUILD", ROOT / "build"))
FOREBAY = BUILD / "forebay"
POOL = "64M"  # half of it takes captures
SHARED_POOL = "192M"
RUN_LIMIT_S = 90
END_LIMIT_S = 30


def wait_until(condition: Callable[[], object], limit_s: float, what: str) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {limit_s} s"
        time.sleep(0.02)


def runs(pid: int, name: str = "forebayd") -> bool:
    """Whether process `pid` lives and is program `name`; a number may have been given away since."""
    try:
        begin, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        return rest.split()[0] not in "ZX" and begin.partition("(")[2] == name
    except OSError:
        return False


class Cluster:
    """A folder for `forebay up` and the like."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def socket(self, node: int = 0) -> Path:
        return self.folder / f"node-{node}" / "socket"

    def environment(self) -> dict[str, str]:
        return {**os.environ, "FOREBAY_SOCKET": str(self.socket())}

    def run(self, *words: object, status: int | None = 0, **options: object) -> subprocess.CompletedProcess:
        """Runs `forebay WORDS` against node 0; fails unless it exits with `status` (None: any)."""
        command = [str(FOREBAY), *map(str, words)]
        options = {"env": self.environment(), "timeout": RUN_LIMIT_S, **options}
        result = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, **options)
        if status is not None:
            assert result.returncode == status, f"{command}: exit {result.returncode}\n{result.stdout}{result.stderr}"
        return result

    def up(self, nodes: int | None = None, *words: object, pool: str = POOL, **more: object) -> subprocess.CompletedProcess:
        count = [] if nodes is None else ["--nodes", nodes]
        return self.run("up", "--dir", self.folder, "--pool", pool, *count, *words, **more)

    def down(self) -> subprocess.CompletedProcess:
        return self.run("down", "--dir", self.folder)

    def pids(self) -> list[int]:
        """Of daemons that were started and not ended by `down`, in order of nodes."""
        files = sorted(self.folder.glob("node-*/pid"), key=lambda path: int(path.parent.name.partition("-")[2]))
        return [int(path.read_text()) for path in files]

    def daemons(self) -> list[int]:
        """All that live with a configuration in the folder, whatever their pid files say."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and runs(int(entry.name)):
                try:
                    command = (entry / "cmdline").read_bytes()
                except OSError:
                    continue
                if os.fsencode(f"{self.folder}/node-") in command:
                    found.append(int(entry.name))
        return found

    def kill(self, *nodes: int) -> None:
        """SIGKILL to these nodes' daemons, or to all, as a power cut would."""
        pids = [pid for node, pid in enumerate(self.pids()) if not nodes or node in nodes]
        for pid in pids:
            if runs(pid):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(map(runs, pids)), END_LIMIT_S, "killed daemons gone")

    def end(self) -> None:
        for pid in self.daemons():
            os.kill(pid, signal.SIGCONT)
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.daemons(), END_LIMIT_S, "daemons gone")


@pytest.fixture(scope="session")
def make_folder() -> Iterator[Callable[[], Path]]:
    """Makes folders with short paths: that of a socket has 107 bytes."""
    made = []

    def make() -> Path:
        made.append(Path(tempfile.mkdtemp(prefix="fb-")).resolve())
        return made[-1]

    yield make
    for folder in made:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def cluster(make_folder: Callable[[], Path]) -> Iterator[Cluster]:
    """A folder of its own, with nothing in it yet."""
    own = Cluster(make_folder() / "cluster")
    try:
        yield own
    finally:
        own.end()


@pytest.fixture(scope="module")
def running(make_folder: Callable[[], Path]) -> Iterator[Cluster]:
    """Two nodes, shared by the tests of a module: each takes bundles of its own."""
    shared = Cluster(make_folder() / "cluster")
    try:
        shared.up(2, pool=SHARED_POOL)
        yield shared
    finally:
        shared.end()
