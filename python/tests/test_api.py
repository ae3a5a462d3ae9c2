"""The package forebay on a cluster of two nodes: what goes in comes back, what cannot is refused, nothing hangs or leaks."""
import array
import asyncio
import ctypes
import gc
import pickle
import random
import signal
import struct
import subprocess
import sys
import time
import uuid
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest
import torch

import forebay

LIMIT_S = 60


@pytest.fixture(scope="module")
def fb(sockets):
    with forebay.connect(sockets[0]) as session:
        yield session


@pytest.fixture(scope="module")
def group(fb):
    with fb.join("api", run=str(uuid.uuid4()), rank=0, size=1) as group:
        yield group


@pytest.fixture
def bundle(request):
    return f"api/{request.node.originalname}-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def pair(sockets):
    """Two ranks of one group, each with a session of its own. What only one of them submits stays uncaptured."""
    with ThreadPoolExecutor(2) as pool:
        sessions = [forebay.connect(socket) for socket in sockets]
        run = str(uuid.uuid4())
        joins = [pool.submit(s.join, "pair", run=run, rank=r, size=2, timeout=LIMIT_S) for r, s in enumerate(sessions)]
        yield [join.result() for join in joins]
    for session in sessions:
        session.close()


def put(group, bundle, step=1, **items):
    """Saves whole items in one version; gives its number."""
    with group.save(bundle, step=step) as save:
        for name, data in items.items():
            save.add(name, data)
    save.durable.wait(LIMIT_S)
    return save.version


def get(source, version, **targets):
    with source.load(version) as load:
        for name, out in targets.items():
            load.into(name, out)


class Bytes(bytearray):
    """A blob that can be asked whether anybody holds it."""


# ---- memory of all kinds


NUMPY = "bool int8 uint8 int16 uint16 int32 uint32 int64 uint64 float16 float32 float64 complex64 complex128".split()
TORCH = NUMPY + "bfloat16 complex32 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu".split()
TORCH += ["float4_e2m1fn_x2"]


def test_numpy_types_keep_their_names_and_bytes(fb, group, bundle):
    arrays = {name: numpy.arange(6).reshape(2, 3).astype(name) for name in NUMPY}
    version = fb.open(bundle, put(group, bundle, **arrays))
    for name, data in arrays.items():
        assert version.find(name)[:5] == (name, name, data.itemsize * 8, (2, 3), data.nbytes)
        assert version.read(name) == data.tobytes()
    outs = {name: numpy.zeros_like(data) for name, data in arrays.items()}
    get(group, version, **outs)
    assert all((outs[name] == arrays[name]).all() for name in NUMPY)


def test_torch_types_keep_their_names_and_bytes(fb, group, bundle):
    def bits(name, fill):
        return fill(6 * getattr(torch, name).itemsize, dtype=torch.uint8).view(getattr(torch, name)).view(2, 3)

    tensors = {name: bits(name, torch.ones) for name in TORCH}
    version = fb.open(bundle, put(group, bundle, **tensors))
    outs = {name: bits(name, torch.zeros) for name in TORCH}
    get(group, version, **outs)
    for name, tensor in tensors.items():
        assert version.find(name)[:5] == (name, name, tensor.itemsize * 8, (2, 3), tensor.nbytes)
        assert outs[name].view(torch.uint8).equal(tensor.view(torch.uint8)), name


def test_standard_library_arrays_and_blobs(fb, group, bundle):
    data = {"a": array.array("d", [1, 2]), "m": memoryview(b"xyz"), "b": b"\0\1", "ba": bytearray(b"45"), "e": b""}
    data["c"] = (ctypes.c_int16 * 3)(7, 8, 9)
    version = fb.open(bundle, put(group, bundle, **data))
    found = {item.name: (item.dtype, item.shape) for item in version.items()}
    assert found == {
        "a": ("float64", (2,)), "m": ("uint8", (3,)), "b": ("blob", (2,)), "ba": ("blob", (2,)), "e": ("blob", (0,)),
        "c": ("int16", (3,)),
    }  # fmt: skip
    assert all(version.read(name) == bytes(value) for name, value in data.items())


def test_no_copies_are_one(fb, group, bundle):
    with group.save(bundle, step=1, copies=0) as save:
        save.add("w", b"1")
    save.durable.wait(LIMIT_S)
    assert fb.open(bundle).read("w") == b"1"


def test_a_given_dtype_is_what_is_stored(fb, group, bundle):
    with group.save(bundle, step=1) as save:
        save.add("bf", numpy.array([0x3F80, 0x4000], numpy.uint16), dtype="bfloat16")
        save.add("own", numpy.zeros(2, [("a", "f4"), ("b", "i4")]), dtype="pair-of-mine")
        save.add("odd", numpy.zeros(2, [(">f", "f4"), ("b", ">i1")]), dtype="name-like-a-format")
    save.durable.wait(LIMIT_S)
    version = fb.open(bundle)
    assert version.find("own")[:5] == ("own", "pair-of-mine", 64, (2,), 16)
    out = torch.zeros(2, dtype=torch.bfloat16)
    same = numpy.zeros(2, numpy.uint16)
    with group.load(version) as load:
        load.into("bf", out)
    assert out.tolist() == [1.0, 2.0]
    with group.load(version) as load:
        load.into("bf", same, dtype="bfloat16")
    assert same.tolist() == [0x3F80, 0x4000]


def test_strides_of_any_sign_are_saved_and_filled_as_they_look(fb, group, bundle):
    whole = numpy.arange(24, dtype=numpy.float32).reshape(4, 6)
    views = {"t": whole.T, "neg": whole[::-1, ::-2], "torch": torch.from_numpy(whole)[:, 1:5:2], "none": whole[:, :0]}
    version = fb.open(bundle, put(group, bundle, **views))
    for name, view in views.items():
        assert version.read(name) == numpy.ascontiguousarray(view).tobytes()
    around = numpy.full((8, 8), -1, numpy.float32)
    get(fb, version, neg=around[6:2:-1, 7:1:-2], torch=torch.from_numpy(around)[:4, 0:2])
    assert (around[6:2:-1, 7:1:-2] == views["neg"]).all() and (around[:4, :2] == views["torch"].numpy()).all()
    around[6:2:-1, 7:1:-2], around[:4, :2] = -1, -1
    assert (around == -1).all()  # nothing else was touched


def test_nothing_and_no_dimensions(fb, group, bundle):
    scalars = {"numpy0": numpy.float64(2.5), "torch0": torch.tensor(7), "array0": numpy.array(3, numpy.int16)}
    version = fb.open(bundle, put(group, bundle, empty=numpy.zeros((0, 5)), **scalars))
    assert version.find("torch0")[:5] == ("torch0", "int64", 64, (), 8)
    assert version.find("empty").shape == (0, 5) and version.read("empty") == b""
    outs = {"numpy0": numpy.array(0.0), "torch0": torch.tensor(0), "array0": numpy.array(0, numpy.int16)}
    get(fb, version, empty=numpy.zeros((0, 5)), **outs)
    assert (outs["numpy0"], outs["torch0"], outs["array0"]) == (2.5, 7, 3)


def test_boxes_of_two_ranks_make_one_item_and_any_box_of_it_is_read(fb, pair, bundle):
    whole = numpy.arange(60, dtype=numpy.int32).reshape(6, 10)
    saves = []
    for rank, group in enumerate(pair):
        with group.save(bundle, step=5, copies=2) as save:
            save.add("w", whole[:, 4 * rank : 4 + 6 * rank], shape=(6, 10), start=(0, 4 * rank))
            save.add("row", whole[0], shape=(10,), start=(0,)) if rank else save.add("row", whole[0])
            save.add("last", whole[6 * (1 - rank) :], shape=(6, 10), start=(6 * (1 - rank), 0))
            save.add("own", b"%d" % rank, lowest_wins=True)
        saves.append(save)
    for save in saves:
        save.staged.wait(LIMIT_S)
        save.durable.wait(LIMIT_S)
    assert saves[0].version == saves[1].version > 0
    version = fb.open(bundle)
    assert (version.step, version.read("own"), version.read("last")) == (5, b"0", whole.tobytes())
    out = numpy.zeros((3, 4), numpy.int32)
    with fb.load(version) as load:
        load.into("w", out, start=(2, 2))
    assert (out == whole[2:5, 2:6]).all()
    outs = [numpy.zeros((6, 5), numpy.int32) for _ in pair]
    loads = [group.load(group.session.open(bundle, group=group)) for group in pair]
    for rank, load in enumerate(loads):
        load.into("w", outs[rank], start=(0, 5 * rank))
    for future in [load.submit() for load in loads]:
        future.wait(LIMIT_S)
    assert (numpy.hstack(outs) == whole).all()


# ---- what is refused


@pytest.mark.parametrize(
    "error, text, data, options",
    [
        (TypeError, "buffer protocol", object(), {}),
        (TypeError, "buffer protocol", "text", {}),
        (TypeError, "w: .* another byte order", numpy.ones(2, ">f4"), {}),
        (TypeError, "w: .* another byte order", numpy.ones(2, ">f4"), {"dtype": "float32"}),
        (TypeError, "w: .* another byte order", numpy.ones(2, ">i2"), {"dtype": "big-endian"}),
        (TypeError, "w: .* another byte order", numpy.ones(2, ">c8"), {"dtype": "complex64"}),
        (TypeError, "w: .* another byte order", numpy.zeros(2, [("a", "i1"), ("b", ">i4")]), {"dtype": "pair-of-mine"}),
        (TypeError, "w: .* another byte order", (ctypes.c_int32.__ctype_be__ * 2)(1, 2), {"dtype": "int32"}),
        (TypeError, "give dtype", numpy.zeros(2, [("a", "f4"), ("b", "i4")]), {}),
        (ValueError, "bfloat16 has elements of 16 bits, the memory of 32", torch.ones(2), {"dtype": "bfloat16"}),
        (ValueError, r"\(2, 2\) is not the whole of \(4, 4\)", torch.ones(2, 2), {"shape": (4, 4)}),
        (ValueError, "2 dimensions", torch.ones(2, 2), {"shape": (4,)}),
        (ValueError, "2 dimensions", torch.ones(2, 2), {"shape": (4, 4), "start": (0,)}),
        (ValueError, r"start \(-1,\)", torch.ones(2), {"shape": (4,), "start": (-1,)}),
        (ValueError, r"start \(0.5,\)", torch.ones(2), {"shape": (4,), "start": (0.5,)}),
        (ValueError, "9 dimensions", numpy.ones((1,) * 9), {}),
        (BufferError, "meta", torch.ones(2, device="meta"), {}),
        (BufferError, "gradient", torch.ones(2, requires_grad=True), {}),
        (forebay.Error, "w", torch.ones(3), {"shape": (4,), "start": (2,)}),
        (forebay.Error, "dtype", torch.ones(3), {"dtype": "x" * 33}),
    ],
)  # fmt: skip
def test_what_cannot_be_offered_is_refused_and_the_save_goes_on(fb, group, bundle, error, text, data, options):
    with group.save(bundle, step=1) as save:
        save.add("good", b"1")
        with pytest.raises(error, match=text):
            save.add("w", data, **options)
    save.durable.wait(LIMIT_S)
    assert [item.name for item in fb.open(bundle).items()] == ["good"]


@pytest.mark.parametrize("name", ["", "x" * 1025, "nul\0"])
def test_names_that_cannot_be_are_refused(group, bundle, name):
    save = group.save(bundle, step=1)
    with pytest.raises((forebay.Error, ValueError)):
        save.add(name, b"1")
    save.cancel()


@pytest.mark.parametrize(
    "error, text, out, options",
    [
        (forebay.Error, r"(?s)4, 3.*3, 4|3, 4.*4, 3", numpy.full((4, 3), 7, numpy.float32), {}),
        (forebay.Error, "float", numpy.full((3, 4), 7, numpy.int32), {}),
        (TypeError, "w: .* another byte order", numpy.full((3, 4), 7, ">f4"), {}),
        (TypeError, "w: .* another byte order", numpy.full((3, 4), 7, ">f4"), {"dtype": "float32"}),
        (forebay.Error, "w", numpy.full((3, 4), 7, numpy.float64), {}),
        (forebay.Error, "w", numpy.full(12, 7, numpy.float32), {}),
        (forebay.Error, "w", numpy.full((2, 2), 7, numpy.float32), {"start": (2, 0)}),
        (ValueError, "2 dimensions", numpy.full((2, 2), 7, numpy.float32), {"start": (2,)}),
        (ValueError, "share memory", torch.full((4,), 7.0).expand(3, 4), {}),
        (ValueError, r"bytearray of 4 bytes for the 48 of float32 \(3, 4\)", bytearray(b"7777"), {}),
        (BufferError, "written", b"7" * 48, {}),
        (TypeError, "buffer protocol", None, {}),
    ],
)  # fmt: skip
def test_a_target_that_does_not_fit_is_refused_untouched(fb, group, bundle, error, text, out, options):
    version = fb.open(bundle, put(group, bundle, w=numpy.ones((3, 4), numpy.float32), good=b"yes"))
    before, good = bytes(out) if isinstance(out, (bytes, bytearray)) else str(out), bytearray(3)
    with group.load(version) as load:
        load.into("good", good)
        with pytest.raises(error, match=text):
            load.into("w", out, **options)
    assert good == b"yes"
    assert (bytes(out) if isinstance(out, (bytes, bytearray)) else str(out)) == before


def test_a_read_only_target_is_refused(fb, group, bundle):
    version = fb.open(bundle, put(group, bundle, w=numpy.ones(3)))
    out = numpy.zeros(3)
    out.flags.writeable = False
    load = fb.load(version)
    with pytest.raises(BufferError, match="w: "):
        load.into("w", out)


class Packed:
    """Speaks DLPack 1 for another array, with flags or a device of our own."""

    def __init__(self, inner, flags=0, device=None, newest=True):
        self._inner, self._flags, self._device, self._newest = inner, flags, device, newest

    def __dlpack__(self, **options):
        if not self._newest and options:
            raise TypeError("unexpected keyword argument")
        capsule = self._inner.__dlpack__(**options)
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        at = pointer(capsule, b"dltensor_versioned" if self._newest else b"dltensor")
        if self._newest:
            ctypes.c_uint64.from_address(at + 24).value |= self._flags
        if self._device:
            ctypes.c_int32.from_address(at + (32 if self._newest else 0) + 8).value = self._device
        return capsule


@pytest.mark.parametrize("newest", [False, True])
def test_dlpack_old_and_new(fb, group, bundle, newest):
    version = fb.open(bundle, put(group, bundle, w=Packed(torch.arange(3), newest=newest)))
    out = torch.zeros(3, dtype=torch.int64)
    get(fb, version, w=Packed(out, newest=newest))
    assert out.tolist() == [0, 1, 2]
    assert put(group, bundle, step=2, w=Packed(torch.arange(3), device=3)) == version.number + 1  # pinned: as good as CPU
    with pytest.raises(BufferError, match="w: lies on a device"):
        put(group, bundle, step=3, w=Packed(torch.arange(3), device=2))
    load = fb.load(version)
    for flags in (1, 2):
        with pytest.raises(BufferError, match="w: the target is read-only"):
            load.into("w", Packed(out, flags=flags))


# ---- futures


def test_stages_come_in_their_order(group, bundle):
    save = group.save(bundle, step=1)
    save.add("w", b"1")
    assert save.version == 0
    captured, durable = save.captured, save.durable
    assert not captured.done() and not durable.done()
    save.submit()
    durable.wait(LIMIT_S)
    assert captured.done() and save.staged.done() and durable.done() and save.version == 1
    assert all(isinstance(value, int) for value in save.stats().values())


def test_many_threads_wait_for_one_future(pair, bundle):
    saves = [group.save(bundle, step=1) for group in pair]
    future = saves[0].durable
    with ThreadPoolExecutor(8) as pool:
        waits = [pool.submit(future.wait, LIMIT_S) for _ in range(8)]
        for save in saves:
            save.add("w", b"1")
            save.submit()
        assert [wait.result(LIMIT_S) for wait in waits] == [None] * 8


def test_a_wait_ends_at_its_time_and_at_a_signal(pair, bundle):
    with pair[0].save(bundle, step=1) as save:
        save.add("w", b"1")
    for timeout in (0, 0.05, 0.25):
        with pytest.raises(TimeoutError):
            save.captured.wait(timeout)

    def interrupt(*args):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            save.durable.wait()
    finally:
        signal.signal(signal.SIGALRM, before)
    save.cancel()
    with pytest.raises(forebay.Error):
        save.captured.wait(LIMIT_S)


def test_a_signal_ends_a_join_that_waits_for_others(sockets):
    def interrupt(*args):
        raise KeyboardInterrupt

    session = forebay.connect(sockets[0])
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            session.join("alone", run=str(uuid.uuid4()), rank=0, size=2, timeout=2)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_join_without_the_others_ends_at_its_time(sockets):
    with forebay.connect(sockets[0]) as session:
        with pytest.raises(forebay.Error) as caught:
            session.join("missing", run=str(uuid.uuid4()), rank=0, size=2, timeout=0.5)
        assert caught.value.name in ("FOREBAY_ERANK", "ETIMEDOUT")
        assert session.status()["node"]


def test_futures_are_awaited_by_several_tasks(pair, bundle):
    async def main():
        saves = [group.save(bundle, step=1) for group in pair]
        future = saves[0].durable
        tasks = [asyncio.ensure_future(future) for _ in range(3)]
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(future, 0.01)  # cancels the waiting, not the save
        for save in saves:
            save.add("w", b"1")
            save.submit()
        await asyncio.wait_for(asyncio.gather(*tasks, saves[1].captured), LIMIT_S)
        await future
        return saves[0].version

    assert asyncio.run(main()) == 1


def test_a_failure_reaches_every_waiter_with_its_code(pair, bundle):
    for rank, group in enumerate(pair):
        with group.save(bundle, step=1) as save:
            save.add("odd.one", b"%d" % rank)

    async def wait():
        await save.captured

    for act in (lambda: save.durable.wait(LIMIT_S), lambda: asyncio.run(wait())):
        with pytest.raises(forebay.Error, match="odd.one") as caught:
            act()
        assert caught.value.name == "FOREBAY_EREPLICA" and caught.value.code > 0
    assert save.version == 0


def test_an_exception_in_the_block_cancels(fb, group, bundle):
    with pytest.raises(ZeroDivisionError):
        with group.save(bundle, step=1) as save:
            save.add("w", b"1")
            1 / 0
    with group.save(bundle, step=1) as later:  # a step is saved once in a run, well or not
        later.add("w", b"1")
    for future in (save.captured, save.staged, save.durable, later.durable):
        with pytest.raises(forebay.Error, match="cancel") as caught:
            future.wait(LIMIT_S)
        assert caught.value.name == "ECANCELED"
    with pytest.raises(forebay.Error, match=bundle):
        fb.open(bundle)


def test_what_was_cancelled_before_submit_says_so(fb, bundle):
    with fb.join("api/cancel", run=bundle, rank=0, size=1) as group:
        version = fb.open(bundle, put(group, bundle, w=b"1"))
        cancelled, left = group.save(bundle, step=2), group.save(bundle, step=3)
        load = group.load(version)
        cancelled.cancel()
    for call in (cancelled.submit, lambda: cancelled.add("w", b"1"), left.submit, lambda: left.add("w", b"1"), load.submit,
                 lambda: load.into("w", bytearray(1))):  # fmt: skip
        with pytest.raises(forebay.Error, match="was cancelled") as caught:
            call()
        assert caught.value.name == "ECANCELED"


def test_one_ranks_cancel_fails_all(pair, bundle):
    saves = [group.save(bundle, step=1) for group in pair]
    for save in saves:
        save.add("w", b"1")
    saves[0].submit()
    saves[0].cancel()
    saves[1].submit()
    for save in saves:
        with pytest.raises(forebay.Error, match="rank 0 cancelled"):
            save.captured.wait(LIMIT_S)


def test_a_cancelled_load_leaves_its_target(fb, group, bundle):
    version = fb.open(bundle, put(group, bundle, w=b"new"))
    out = bytearray(b"old")
    with pytest.raises(ZeroDivisionError):
        with fb.load(version) as load:
            load.into("w", out)
            1 / 0
    assert out == b"old"


# ---- names


def test_versions_carry_what_they_were_saved_with(fb, group, bundle):
    first = put(group, bundle, w=b"1")
    with group.save(bundle, step=9, parent=first, attributes={"k": "v", "ä": ""}, same_structure=True) as save:
        save.add("w", b"2")
    save.durable.wait(LIMIT_S)
    version = fb.open(bundle, save.version)
    assert (version.bundle, version.number, version.step) == (bundle, first + 1, 9)
    assert version.attributes == {"k": "v", "ä": ""} and len(version) == 1 and version.nbytes == 1
    entries = fb.versions(bundle)
    assert [(e.number, e.step, e.items, e.bytes) for e in entries] == [(first, 1, 1, 1), (first + 1, 9, 1, 1)]
    assert entries[1].attributes == version.attributes
    assert fb.list(bundle) == [(bundle, 2, first + 1, 0, 0)] and fb.list("no/such") == []


def test_a_parent_that_never_was_is_refused_by_name(fb, group, bundle):
    first = put(group, bundle, w=b"1")
    with group.save(bundle, step=9, parent=99) as save:
        save.add("w", b"2")
    for stage in (save.captured, save.staged, save.durable):
        with pytest.raises(forebay.Error, match=f"bundle {bundle} has no version 99, which was named as the parent") as caught:
            stage.wait(LIMIT_S)
        assert caught.value.name == "ENOENT"
    with group.save(bundle, step=10, parent=first) as save:
        save.add("w", b"2")
    save.durable.wait(LIMIT_S)
    fb.delete(bundle, first)
    with group.save(bundle, step=11, parent=first) as save:  # a rule may delete it at any time: that fails no save
        save.add("w", b"3")
    save.durable.wait(LIMIT_S)


def test_items_come_in_pages_by_name(fb, group, bundle):
    names = [f"layer.{i}" for i in range(700)]
    version = fb.open(bundle, put(group, bundle, **{name: name.encode() for name in names}))
    assert [item.name for item in version.items()] == sorted(names)
    assert version.read("layer.699") == b"layer.699"
    with pytest.raises(KeyError):
        version.find("layer.700")
    with pytest.raises(KeyError):
        version.read("layer.700")


def test_labels_and_deletion(fb, group, bundle):
    numbers = [put(group, bundle, step=step, w=b"%d" % step) for step in range(3)]
    fb.label(bundle, "prod", numbers[0], expect=0)
    fb.label(bundle, "prod", numbers[1], expect=numbers[0])
    with pytest.raises(forebay.Error) as caught:
        fb.label(bundle, "prod", numbers[2], expect=numbers[0])
    assert caught.value.name == "EAGAIN"
    fb.label(bundle, "test", numbers[2])
    assert fb.labels(bundle) == {"prod": numbers[1], "test": numbers[2]}
    assert fb.open(bundle, "prod").read("w") == b"1"
    with pytest.raises(forebay.Error, match="prod") as caught:
        fb.delete(bundle, numbers[1])
    assert caught.value.name == "EBUSY"
    fb.label(bundle, "prod", 0)
    fb.delete(bundle, numbers[1])
    with pytest.raises(forebay.Error) as caught:
        fb.open(bundle, numbers[1])
    assert caught.value.name == "FOREBAY_EDELETED"
    assert [entry.number for entry in fb.versions(bundle)] == [numbers[0], numbers[2]]


def test_what_does_not_exist_is_named(fb, tmp_path):
    with pytest.raises(forebay.Error, match="no/such") as caught:
        fb.open("no/such")
    assert (caught.value.name, caught.value.code) == ("ENOENT", 2)
    with pytest.raises(forebay.Error, match=str(tmp_path)) as caught:
        forebay.connect(tmp_path / "socket")
    assert caught.value.name == "ENOENT"


def test_status_tells_of_both_nodes(fb):
    status = fb.status()
    assert len(status["nodes"]) == 2 and all(node["up"] for node in status["nodes"])
    assert status["node"] in [node["name"] for node in status["nodes"]]
    assert isinstance(status["saves"], list) and all(isinstance(v, int) for v in status["counters"].values())


@pytest.mark.parametrize("call", [
    lambda g: g.save("b", step=-1), lambda g: g.save("b", step="1"), lambda g: g.save("b", step=1 << 64),
    lambda g: g.save("b", step=1, attributes={"a": 1}), lambda g: g.save(b"b", step=1), lambda g: g.save("b", 1, copies=4),
    lambda g: g.save("", 1), lambda g: g.save("b", 1, policy="hope"), lambda g: g.session.open("b", ""),
    lambda g: g.session.join("g", run="r", rank=2, size=2, timeout=1), lambda g: g.session.join("g", "r", 0, 0, 1),
    lambda g: g.load(g), lambda g: g.session.list(None), lambda g: g.session.delete("b", "1"),
])  # fmt: skip
def test_arguments_that_make_no_sense_are_refused(group, call):
    with pytest.raises((forebay.Error, ValueError, TypeError, OverflowError, AttributeError)):
        call(group)


def test_errors_survive_pickling():
    with pytest.raises(forebay.Error) as caught:
        forebay.connect("/no/such/socket")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert type(copy) is forebay.Error and str(copy) == str(caught.value) and "/no/such/socket" in str(copy)
    assert (copy.code, copy.name) == (2, "ENOENT")
    plain = pickle.loads(pickle.dumps(forebay.Error("words")))
    assert (str(plain), plain.code, plain.name) == ("words", 0, "")


# ---- lives


def test_offered_memory_is_held_until_captured(pair, bundle):
    data = Bytes(b"1234")
    held = weakref.ref(data)
    with pair[0].save(bundle, step=1) as save:
        save.add("w", data)
    del save, data  # all that the caller had
    gc.collect()
    assert held() is not None
    with pair[1].save(bundle, step=1) as other:
        other.add("w", b"1234")
    other.durable.wait(LIMIT_S)
    assert pair[0].session.open(bundle).read("w") == b"1234"
    deadline = time.monotonic() + LIMIT_S
    while held() is not None:  # the session's own thread lets go of it
        assert time.monotonic() < deadline
        gc.collect()


def test_memory_is_let_go_once_captured_and_loaded(fb, group, bundle):
    data, out = Bytes(b"1234"), Bytes(b"....")
    held = [weakref.ref(data), weakref.ref(out)]
    with group.save(bundle, step=1) as save:
        save.add("w", data)
    del data
    save.captured.wait(LIMIT_S)
    assert held[0]() is None
    save.durable.wait(LIMIT_S)
    with group.load(fb.open(bundle)) as load:
        load.into("w", out)
    assert out == b"1234"
    del out
    assert held[1]() is None and load.stats() is not None


def test_what_is_not_submitted_is_let_go(fb, group, bundle):
    data = Bytes(b"1234")
    held = weakref.ref(data)
    cancelled, dropped = group.save(bundle, step=1), group.save(bundle, step=2)
    cancelled.add("w", data)
    dropped.add("w", data)
    cancelled.cancel()
    del data, dropped
    assert held() is None


@pytest.mark.parametrize("seed", range(8))
def test_objects_die_in_any_order(sockets, bundle, seed):
    def make():
        fb = forebay.connect(sockets[0])
        group = fb.join("any", run=str(uuid.uuid4()), rank=0, size=1)
        save = group.save(f"api/any-{uuid.uuid4()}", step=1)
        save.add("w", bytes(1 << 16))
        save.submit()
        durable = save.durable
        durable.wait(LIMIT_S)
        unsubmitted = group.save(bundle, step=1)
        unsubmitted.add("w", bytes(10))
        flying = group.save(bundle, step=2)
        flying.add("w", bytes(1 << 20))
        flying.submit()
        version = fb.open(fb.list("api/any-")[0].name)
        load = group.load(version)
        load.into("w", bytearray(1 << 16))
        return [fb, group, save, durable, unsubmitted, flying, flying.captured, version, load, load.submit()]

    objects = make()
    random.Random(seed).shuffle(objects)
    while objects:
        objects.pop()
        if seed % 2:
            gc.collect()


def test_a_closed_session_ends_what_was_made_from_it(sockets, bundle):
    fb = forebay.connect(sockets[1])
    group = fb.join("closed", run=str(uuid.uuid4()), rank=0, size=1)
    version = fb.open(bundle, put(group, bundle, w=b"1"))
    save, load = group.save(bundle, step=2), fb.load(version)
    save.add("w", b"2")
    future = save.durable
    fb.close()
    fb.close()
    with pytest.raises(forebay.Error):
        future.wait(LIMIT_S)
    calls = [save.submit, lambda: save.add("x", b""), lambda: load.into("w", bytearray(1)), lambda: version.read("w")]
    for call in calls + [lambda: group.save(bundle, step=3), fb.status, lambda: fb.load(version)]:
        with pytest.raises(forebay.Error, match="closed"):
            call()
    for thing in (group.leave, version.close, load.cancel):
        thing()


def test_one_session_serves_many_threads(fb, group, bundle):
    version = fb.open(bundle, put(group, bundle, w=b"1234", **{f"x{i}": b"1" for i in range(300)}))

    def work(seed):
        for i in range(20):
            assert version.read("w") == b"1234"
            assert len(list(version.items())) == 301 and fb.status()["nodes"]
            assert fb.open(bundle).find(f"x{(i + seed) % 300}").nbytes == 1
        return True

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(6)))


PROLOGUE = """
import forebay, os, sys, uuid
fb = forebay.connect(sys.argv[1])
group = fb.join("child", run=str(uuid.uuid4()), rank=0, size=1)
bundle = f"api/child-{uuid.uuid4()}"
save = group.save(bundle, step=1)
save.add("w", bytearray(1 << 20))
"""


def run_program(sockets, text):
    """Runs a program of its own; what it printed. It must end well, in time."""
    done = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", PROLOGUE + text, sockets[0]], timeout=LIMIT_S, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("end", [
    "", "save.submit()", "save.submit(); save.durable.wait(); version = fb.open(bundle); load = fb.load(version)",
    "save.submit(); fb.me = fb; fb.future = save.durable", "sys.save = save; save.submit(); sys.exit()",
    "import threading; save2 = group.save(bundle, step=2); threading.Thread(target=save2.durable.wait, daemon=True).start()",
    "import atexit; atexit.register(save.submit)", "fb.close()", "group.leave(); save.cancel()",
])  # fmt: skip
def test_the_interpreter_ends_with_anything_left_open(sockets, end):
    run_program(sockets, end)


def test_memory_is_held_while_a_session_closes_in_another_thread(sockets):
    """Its copiers are still at work on the save when this thread lets go of what is over."""
    run_program(sockets, """
import numpy, threading
slow = group.save(bundle, step=2)
slow.add("w", numpy.ones(56 << 20, numpy.uint8)[::2])  # byte by byte; once let go it is unmapped
slow.submit()
while not slow.stats().get("captured_bytes"):
    pass
closing = threading.Thread(target=fb.close)
closing.start()
while closing.is_alive():
    forebay.connect(sys.argv[1]).close()
""")


def test_a_forked_child_is_told_so_and_can_connect_anew(sockets):
    printed = run_program(sockets, """
save.submit()
durable = save.durable
durable.wait()
version = fb.open(bundle)
if not (child := os.fork()):
    calls = [fb.status, lambda: group.save("b", 1), durable.wait, durable.done, lambda: version.find("w"), lambda: save.version]
    for call in calls + [fb.close, lambda: fb.load(version), lambda: save.captured]:
        try:
            call()
        except forebay.Error as error:
            print(error.name)
    del fb, group, save, durable, version, calls, call
    print(len(forebay.connect(sys.argv[1]).open(bundle).read("w")))
    sys.stdout.flush()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert len(version.read("w")) == 1 << 20  # the parent goes on
""")
    assert printed.split() == ["FOREBAY_EFORKED"] * 9 + [str(1 << 20)]
