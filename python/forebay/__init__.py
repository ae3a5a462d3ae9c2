"""Saves and loads of training state, by all ranks of a job together.

    fb = forebay.connect()                                       # the node's daemon; $FOREBAY_SOCKET
    group = fb.join("job-17", run=f"{run_id}:{restarts}", rank=rank, size=size)

    with group.save("ckpt/llama", step=1200, copies=2) as save:
        save.add("w.0", shard, shape=(8192, 8192), start=(0, 1024))
        save.add("loader", b"...")
    save.captured.wait()                                         # buffers may change
    save.durable.wait()                                          # save.version is published

    with fb.open("ckpt/llama") as latest, group.load(latest) as load:
        load.into("w.0", out, start=(0, 2048))                   # any box, any number of ranks

Arrays are what has the buffer protocol (NumPy, array, memoryview, bytes) or DLPack (torch and others), on the CPU, with any
strides. Shapes and starts count elements. Every object may be used from any thread; calls on one object, futures excepted,
wait for each other. Failures of Forebay raise Error; arguments that make no sense raise ValueError, TypeError or BufferError
and change nothing. Objects end when nobody holds them; after fork() those of the parent answer FOREBAY_EFORKED.
"""
from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import threading
from typing import Any, Callable, Generator, Iterator, List, Mapping, NamedTuple, Sequence

from . import _forebay
from ._forebay import Error

__all__ = ["Bundle", "Entry", "Error", "Future", "Group", "Item", "Load", "Save", "Session", "Version", "connect"]

_CAPTURED, _STAGED, _DURABLE = range(3)  # enum forebay_stage


class Item(NamedTuple):
    """One array of a version, or a blob: dtype "blob", one dimension of bytes."""

    name: str
    dtype: str  # torch's name: "float32", "bfloat16", ...
    element_bits: int
    shape: tuple[int, ...]  # in elements
    nbytes: int
    unsaved_nbytes: int  # of these, what no rank offered; loads of it fail


class Bundle(NamedTuple):
    """A bundle as Session.list() tells of it."""

    name: str
    versions: int  # how many there are
    latest: int  # number of the latest
    keep_last: int  # retain(): so many of the newest stay; 0: all
    keep_every: int  # and those whose number is divisible by it; 0: none for that


class Entry(NamedTuple):
    """A published version as Session.versions() tells of it."""

    number: int
    step: int
    items: int
    bytes: int  # of all items
    stored_bytes: int  # that it added to the store
    attributes: dict[str, str]


def connect(socket: str | os.PathLike | None = None, timeout: float = 10.0) -> Session:
    """Connects to this node's daemon by its socket: a path, else $FOREBAY_SOCKET, else /run/forebay/socket.

    Error: ENOENT, ECONNREFUSED or EACCES for the path, FOREBAY_EVERSION, ETIMEDOUT after `timeout` seconds.
    """
    return Session(_forebay.connect(None if socket is None else os.fspath(socket), timeout))


def _in_thread(call: Callable, *args: Any) -> Any:
    """Calls in a thread of its own, so that Ctrl-C ends a long wait here; what the call yields then is dropped."""
    future: concurrent.futures.Future = concurrent.futures.Future()

    def run() -> None:
        try:
            future.set_result(call(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="forebay-join", daemon=True).start()
    return future.result()


class Session:
    """A connection to the node's daemon. As a context it closes itself."""

    def __init__(self, handle: _forebay.Handle):
        self._handle = handle

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the session with all that was made from it. Captured saves go on, others and loads are cancelled.

        Returns once no buffer is touched any more. Futures that are not over fail with ECONNABORTED.
        """
        self._handle.close()

    def join(self, name: str, run: str, rank: int, size: int, timeout: float | None = 600.0) -> Group:
        """Joins the group of job `name` as one of `size` ranks; returns when all ranks of the run have joined.

        run     tells one start of the job from the next, e.g. f"{run_id}:{restart_count}"; alike on all ranks

        Error: FOREBAY_ERANK naming ranks that are missing or came twice; ETIMEDOUT after `timeout` seconds.
        """
        handle = _in_thread(_forebay.group_join, self._handle, name, run, rank, size, timeout)
        return Group(handle, self, name, rank, size)

    def open(self, bundle: str, version: int | str = "latest", group: Group | None = None) -> Version:
        """Opens a version: a number, a label, "latest", or "staged".

        group   if it is to be loaded by that group

        "staged" is the newest version that `group`, in this run or one before, has staged: it is read from the nodes' memory, and its
        number is 0 while it is not durable. When none is between staged and durable, it is the latest.

        Error: ENOENT, FOREBAY_EDELETED, FOREBAY_EDAMAGED.
        """
        member = None if group is None else group._handle
        return Version(_forebay.open(self._handle, member, bundle, str(version)))

    def load(self, version: Version) -> Load:
        """Begins a load by this process alone."""
        return Load(version, None)

    def list(self, prefix: str = "") -> List[Bundle]:
        """The bundles whose names begin with `prefix`, by name."""
        return [Bundle(*record) for record in _forebay.list_bundles(self._handle, prefix)]

    def versions(self, bundle: str) -> List[Entry]:
        """The published versions of a bundle, by number. Error: ENOENT if there is no such bundle."""
        return [Entry(*record) for record in _forebay.list_versions(self._handle, bundle)]

    def labels(self, bundle: str) -> dict[str, int]:
        """The labels of a bundle, and the numbers of their versions."""
        return _forebay.list_labels(self._handle, bundle)

    def label(self, bundle: str, label: str, number: int, expect: int | None = None) -> None:
        """Points `label` to version `number`; 0 removes it.

        expect  only if the label now points to that version, 0: if it does not exist

        Error: EAGAIN if it points elsewhere, ENOENT if there is no such version.
        """
        _forebay.label(self._handle, bundle, label, number, expect)

    def delete(self, bundle: str, number: int) -> None:
        """Deletes a version for good. Error: EBUSY naming a label that points to it or a node that reads it, ENOENT."""
        _forebay.delete(self._handle, bundle, number)

    def retain(self, bundle: str, last: int, every: int = 0) -> None:
        """Keeps the newest `last` versions of a bundle, those whose number is divisible by `every`, and all that have a label.

        The others are deleted after each publication. last=0 keeps all. Error: ENOENT, EINVAL.
        """
        _forebay.retain(self._handle, bundle, last, every)

    def status(self) -> dict[str, Any]:
        """What the daemon sees: "cluster", "node", "generation", and

        "nodes"     dicts of name, address, domain, incarnation, pool_bytes, pool_used_bytes, up
        "saves"     dicts of save, group, bundle, state, step, bytes: those that the node takes part in
        "counters"  numbers by name

        and, when the index cannot be reached, so that the nodes are those that the daemon knows from before:
        "index_lost"  a dict of node, address, unheard_ms (None: never heard), words: the node with the engine, and why

        and, when the node has not joined its cluster yet, so that it serves nothing else:
        "not_joined"  why, in words
        """
        return _forebay.status(self._handle)


class Group:
    """This rank's membership in the group of a job: what is saved and loaded through it, all ranks do together."""

    def __init__(self, handle: _forebay.Handle, session: Session, name: str, rank: int, size: int):
        self._handle, self.session = handle, session
        self.name, self.rank, self.size = name, rank, size
        self.incarnation: int = _forebay.group_incarnation(handle)  # of the group, from 1; each run is the next

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *exception: object) -> None:
        self.leave()

    def __repr__(self) -> str:
        return f"<forebay.Group {self.name} rank {self.rank} of {self.size}>"

    def leave(self) -> None:
        """Leaves. Saves under way go on as far as they do not need this rank."""
        self._handle.close()

    def save(
        self,
        bundle: str,
        step: int,
        copies: int = 1,
        policy: str | None = "wait",
        same_structure: bool = False,
        attributes: Mapping[str, str] | None = None,
        parent: int = 0,
    ) -> Save:
        """Begins this rank's part of the next version of `bundle`. Ranks are matched by bundle and step.

        A step is saved once in a run, well or not: after cancel(), or an exception in the `with` block of any rank, each later save of
        the step in this run ends with ECANCELED on all ranks, after other failures with theirs. Take the next step, or join with a new
        run. Only a step that was skipped may be saved again.

        copies          nodes that must hold each block before staged: 1 to 3; 0 is 1
        policy          when a node has no room: "wait" for it; "skip" the save, which ends with FOREBAY_ESKIPPED on all ranks; or
                        "replace" the oldest save of the group that is not durable yet, which ends with FOREBAY_ESUPERSEDED.
                        "through" goes straight to the store, however large: nothing stays in memory, staged comes with durable
        same_structure  a hint: names, boxes, dtypes and their order are as in this group's last save of the bundle
        attributes      strings by strings, kept with the version; rank 0's count
        parent          number of the version that this one continues; 0: none. It may have been deleted since; one that never was
                        ends the save with ENOENT, before any byte moves
        """
        pairs = tuple((attributes or {}).items())
        return Save(_forebay.save_begin(self._handle, bundle, step, copies, policy, same_structure, parent, pairs))

    def load(self, version: Version) -> Load:
        """Begins this rank's part of the group's next load of `version`: every byte leaves the store once."""
        return Load(version, self)


class Save:
    """A save under way. As a context it submits itself, or cancels itself if an exception ends the block.

    Memory that was added must not change until captured is over; it is kept so long, whoever else drops it.
    """

    def __init__(self, handle: _forebay.Handle):
        self._handle = handle
        self._submitted = False

    def __enter__(self) -> Save:
        return self

    def __exit__(self, kind: type | None, *exception: object) -> None:
        if kind is not None:
            with contextlib.suppress(Error):  # the block's exception is the one to tell of
                self.cancel()
        elif not self._submitted:
            self.submit()

    def add(
        self,
        name: str,
        data: Any,
        shape: Sequence[int] | None = None,
        start: Sequence[int] | None = None,
        dtype: str | None = None,
        lowest_wins: bool = False,
    ) -> None:
        """Offers a box of item `name`; its shape is the data's.

        data         an array in this machine's byte order; bytes and bytearray are blobs
        shape        of the whole item; by default the data is the whole
        start        where the box begins in the item; equal boxes of several ranks are replicas and must be equal
        dtype        the tag that is stored, of up to 32 bytes; by default torch's name for the elements of the data
        lowest_wins  every rank offers a value of its own; the lowest rank's is saved

        ValueError, TypeError, BufferError, or Error (EINVAL, FOREBAY_EMISMATCH), naming the item; nothing is offered then.
        """
        _forebay.save_add(self._handle, name, data, shape, start, dtype, lowest_wins)

    def submit(self) -> None:
        """Hands the offer to the group; returns at once. A context does it at its end, unless it is done."""
        _forebay.save_submit(self._handle)
        self._submitted = True

    def cancel(self) -> None:
        """Fails the save on all ranks, unless all have captured."""
        _forebay.save_cancel(self._handle)

    @property
    def captured(self) -> Future:
        """Over when the memory that was added may change."""
        return Future(_forebay.save_future(self._handle, _CAPTURED), self)

    @property
    def staged(self) -> Future:
        """Over when every block is in the memory of `copies` nodes."""
        return Future(_forebay.save_future(self._handle, _STAGED), self)

    @property
    def durable(self) -> Future:
        """Over when the version is published."""
        return Future(_forebay.save_future(self._handle, _DURABLE), self)

    @property
    def version(self) -> int:
        """The version's number, once durable is over without failure; 0 before."""
        return _forebay.save_version(self._handle)

    def stats(self) -> dict[str, int]:
        """The save's figures known so far; names end in their unit."""
        return _forebay.save_stats(self._handle)


class Future:
    """The end of a stage. Any number of threads may wait, and asyncio tasks may await it; dropping it cancels nothing."""

    def __init__(self, future: _forebay.Future, owner: Save | Load):
        self._future, self._owner = future, owner  # which goes on as long as somebody may wait for it

    def wait(self, timeout: float | None = None) -> None:
        """Returns when it is over. Error if it failed; TimeoutError if it is not over after `timeout` seconds."""
        self._future.wait(timeout)

    def done(self) -> bool:
        """Whether it is over, well or not."""
        return self._future.done()

    def __await__(self) -> Generator[Any, None, None]:
        if not self.done():
            loop = asyncio.get_running_loop()
            over = loop.create_future()
            fd = os.dup(self._future.fileno())  # a loop has one reader for a descriptor, and several tasks may await us
            loop.add_reader(fd, lambda: over.done() or over.set_result(None))
            try:
                yield from over
            finally:
                loop.remove_reader(fd)
                os.close(fd)
        self.wait(0)


class Version:
    """A published version of a bundle: bundle, number, step, nbytes, attributes. As a context it closes itself."""

    def __init__(self, handle: _forebay.Handle):
        self._handle = handle
        self.bundle, self.number, self.step, self._items, self.nbytes, self.attributes = _forebay.version_info(handle)

    def __enter__(self) -> Version:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self._items

    def __repr__(self) -> str:
        return f"<forebay.Version {self.number} of {self.bundle}>"

    def items(self) -> Iterator[Item]:
        """All items, by name. They are fetched in pages."""
        page = _forebay.version_items(self._handle, None)
        while page:
            yield from (Item(*record) for record in page)
            page = _forebay.version_items(self._handle, page[-1][0])

    def find(self, name: str) -> Item:
        """The item of that name, or KeyError."""
        try:
            return Item(*_forebay.version_find(self._handle, name))
        except Error as error:
            if error.name == "ENOENT":
                raise KeyError(name) from error
            raise

    def read(self, name: str) -> bytes:
        """All bytes of an item, row-major; loaded by this process alone. KeyError if there is none."""
        out = bytearray(self.find(name).nbytes)
        with Load(self, None) as load:
            load.into(name, out)
        return bytes(out)

    def close(self) -> None:
        """Closes. Loads under way keep what they need."""
        self._handle.close()


class Load:
    """A load under way. As a context it submits itself and waits; an exception in the block cancels it."""

    def __init__(self, version: Version, group: Group | None):
        self._handle = _forebay.load_begin(version._handle, None if group is None else group._handle)
        self._over: _forebay.Future | None = None

    def __enter__(self) -> Load:
        return self

    def __exit__(self, kind: type | None, *exception: object) -> None:
        try:
            if kind is None:
                self.submit().wait()
        except BaseException:
            self.cancel()
            raise
        if kind is not None:
            self.cancel()

    def into(self, name: str, out: Any, start: Sequence[int] | None = None, dtype: str | None = None) -> None:
        """Asks for a box of item `name`, of the shape of `out`, to be put there.

        out     a writable array with any strides; a bytearray takes all bytes of the item, whatever its type
        start   where the box begins in the item; by default `out` takes the whole
        dtype   what the elements of `out` stand for, e.g. "bfloat16" in an array of uint16; it must be the item's

        Error (ENOENT; FOREBAY_EMISMATCH naming both shapes), ValueError, TypeError or BufferError; `out` is then untouched.
        """
        _forebay.load_into(self._handle, name, out, start, dtype)

    def submit(self) -> Future:
        """Starts it. The future is over when every target is filled with verified bytes, or at the first failure."""
        if self._over is None:
            self._over = _forebay.load_submit(self._handle)
        return Future(self._over, self)

    def cancel(self) -> None:
        """Cancels it, unless it is over; returns once no target is touched any more."""
        self._handle.close()

    def stats(self) -> dict[str, int]:
        """The load's figures known so far; names end in their unit."""
        return _forebay.load_stats(self._handle)
