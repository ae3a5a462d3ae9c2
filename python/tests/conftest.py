"""A cluster of two nodes on this machine, shared by the tests that ask for it."""
import os
import subprocess
from pathlib import Path

import pytest

FOREBAY = Path(os.environ.get("FOREBAY_BUILD", Path(__file__).resolve().parents[2] / "build")) / "forebay"
NODES = 2


@pytest.fixture(scope="session")
def sockets(tmp_path_factory):
    """Paths of the sockets of the two nodes."""
    folder = tmp_path_factory.mktemp("n")  # short: the path of a socket has 107 bytes
    subprocess.run([FOREBAY, "up", "--nodes", str(NODES), "--dir", folder], check=True, stdout=subprocess.DEVNULL)
    yield [str(folder / f"node-{node}" / "socket") for node in range(NODES)]
    subprocess.run([FOREBAY, "down", "--dir", folder], check=True, stdout=subprocess.DEVNULL)
