"""Programs on a sick machine: the other side of sick.c, which says what each field means."""
import errno
import mmap
import os
import struct
from pathlib import Path

BUILD = Path(os.environ.get("FOREBAY_BUILD", Path(__file__).resolve().parents[1] / "build"))
KINDS = ["memory", "open", "create", "write", "read", "sync", "link", "rename", "unlink", "mkdir", "truncate", "stat", "list", "socket"]
CHANGES = ["write", "sync", "link", "rename", "unlink", "mkdir", "truncate", "create"]
FILES = KINDS[1:-1]
CONTROL = struct.Struct("<IiiiIIII1024s")
CONTROL_BYTES = 4096
MANY = 1 << 30


class Sick:
    """The control of one process: make it, start the program with env(), then call fail() and heal() while it runs."""

    def __init__(self, folder, name="sick"):
        self.path = Path(folder) / name
        self.path.write_bytes(bytes(CONTROL_BYTES))
        with open(self.path, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), CONTROL_BYTES)

    def env(self, **more):
        return {"LD_PRELOAD": str(BUILD / "sick.so"), "SICK": str(self.path), **more}

    def _set(self, kinds, error=0, after=0, times=-1, slow_ms=0, path=""):
        mask = sum(1 << KINDS.index(kind) for kind in kinds)
        fields = CONTROL.pack(0, error, after, times, slow_ms, 0, 0, 0, os.fsencode(path))
        self.map[0:4] = bytes(4)  # nothing is meant while the rest changes
        self.map[4 : len(fields)] = fields[4:]
        self.map[0:4] = struct.pack("<I", mask)

    def fail(self, *kinds, error=errno.EIO, after=0, times=-1, path=""):
        """Calls of these kinds on paths that contain `path` fail: after so many that do not, so many. error -1: what fits the kind."""
        self._set(kinds, error, after, times, 0, path)

    def slow(self, *kinds, ms, path=""):
        self._set(kinds, slow_ms=ms, path=path)

    def count(self, *kinds, path=""):
        """Only counts them."""
        self._set(kinds, path=path)

    def heal(self):
        self._set(())

    @property
    def seen(self):
        return CONTROL.unpack_from(self.map)[5]

    @property
    def failed(self):
        return CONTROL.unpack_from(self.map)[6]
