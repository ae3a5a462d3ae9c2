"""PyTorch's distributed checkpoints (torch.distributed.checkpoint, "DCP") kept in Forebay.

    writer = ForebayWriter(group, "ckpt/llama", step=1200, copies=2)
    answer = dcp.async_save(state_dict, storage_writer=writer, planner=writer.planner, process_group=saves)
    answer.staging_completion.result()      # captured: buffers may change
    answer.upload_completion.result()       # durable on all ranks
    writer.save.durable.wait()              # this rank knows it, too: writer.save.version is the number

    dcp.load(state_dict, storage_reader=ForebayReader(group, "ckpt/llama", "latest"))

One writer serves one save: DCP awaits the staging future before it plans, and drops replicas from the plans before a
storage layer sees them, so `stage` itself plans, offers all that this rank holds, and submits. See docs/torch.md.
"""
import inspect
import io
import pickle
import sys
import threading
from concurrent.futures import Future
from typing import Any, Callable

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import StorageMeta, TensorProperties
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.distributed.checkpoint.staging import AsyncStager
from torch.distributed.checkpoint.storage import WriteResult
from torch.utils._pytree import tree_map

__all__ = ["ForebayReader", "ForebayWriter"]

LAYOUT = "1"  # of names and blobs, in the version's attribute "torch.dcp"; docs/torch.md, section 4
PLANNER_DATA = "~planner/"  # + rank; no key maps to a name that begins so


def _name(fqn: str) -> str:
    return "~=" + fqn if fqn == "" or fqn.startswith("~") else fqn


class _NamedByBundle:
    """Forebay names a version by bundle and step or number, never by DCP's checkpoint id."""

    def reset(self, checkpoint_id: Any = None) -> None:
        if checkpoint_id is not None:
            raise ValueError(f"checkpoint_id {checkpoint_id!r}: the Forebay bundle given to the constructor is used")

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return False  # a path names no group, so DCP never picks this class by itself


class _StagingFuture(Future):
    """async_save takes a staging future that is done() for a good one, even if it failed; so a failed one is not."""

    def done(self) -> bool:
        return super().done() and self.exception() is None


class ForebayWriter(_NamedByBundle, dcp.StorageWriter, AsyncStager):
    """Saves one state dict as the next version of `bundle`; a StorageWriter and an AsyncStager in one.

    group       forebay group whose ranks are those of DCP's process group
    step        the trainer's step; the ranks of one save are matched by (bundle, step)
    planner     by default DefaultSavePlanner(); dcp.save must be given the same one: planner=writer.planner
    options     as for group.save: copies, policy, same_structure, attributes

    `save` is the forebay save: captured, staged, durable, stats(). Waits raise forebay.Error; what cannot be stored
    raises ValueError, naming the key.
    """

    def __init__(self, group: Any, bundle: str, step: int, planner: dcp.SavePlanner | None = None, **options: Any):
        self._group, self.bundle, self.step = group, bundle, step
        self._options = options | {"attributes": (options.get("attributes") or {}) | {"torch.dcp": LAYOUT}}
        self.planner = planner or dcp.DefaultSavePlanner()
        self.save: Any = None
        self._offered: dict[Any, dcp.WriteItem] = {}
        self._written = False

    # AsyncStager: called by dcp.async_save in the trainer's thread, before DCP plans

    def stage(self, state_dict: dict[str, Any], **kwargs: Any) -> Future:
        """Plans, offers and submits `state_dict`; the future gives it back, in new containers, once captured."""
        _refuse_process_checkpointer()
        frozen = tree_map(lambda leaf: leaf, state_dict)  # DCP plans on it again, beside the trainer

        def plan() -> dcp.SavePlan:
            self.planner.set_up_planner(frozen, is_coordinator=self._group.rank == 0)
            return self.planner.create_local_plan()

        self._offer(plan)
        staged = _StagingFuture()

        def settle() -> None:
            try:
                self.save.captured.wait()
                staged.set_result(frozen)
            except BaseException as error:
                staged.set_exception(error)

        threading.Thread(target=settle, name="forebay-captured", daemon=True).start()
        return staged

    # StorageWriter: called by dcp.save; after dcp.async_save, in its executor's thread

    def storage_meta(self) -> StorageMeta:
        # The first hook of dcp.save. Emptied here, our planner resolves data only if DCP sets it up for this save.
        if self.save is None:
            self.planner.set_up_planner({})
        return StorageMeta(checkpoint_id=self.bundle, save_id=str(self.step))

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        pass

    def prepare_local_plan(self, plan: dcp.SavePlan) -> dcp.SavePlan:
        if self._written:
            raise RuntimeError(f"{self.bundle} step {self.step} was saved: a ForebayWriter serves one save")
        if self.save is None:
            self._offer(lambda: plan)
        elif plan.usable and {item.index: item for item in plan.items} != self._offered:
            raise ValueError(f"{self.bundle} step {self.step}: DCP's plan differs from the one offered by stage()")
        return plan

    def prepare_global_plan(self, plans: list[dcp.SavePlan]) -> list[dcp.SavePlan]:
        return plans

    def write_data(self, plan: dcp.SavePlan, planner: dcp.SavePlanner) -> torch.futures.Future[list[WriteResult]]:
        for item in plan.items:
            if item.index not in self._offered:
                raise ValueError(f"{item.index.fqn}: in the global plan, but this rank's local plan did not offer it")
        self.save.captured.wait()
        self._written = True
        return _completed([WriteResult(item.index, item.tensor_storage_size() or 0, None) for item in plan.items])

    def finish(self, metadata: dcp.Metadata, results: list[list[WriteResult]]) -> None:
        self.save.durable.wait()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("a ForebayWriter stays in its process: AsyncCheckpointerType.PROCESS is not supported")

    def _offer(self, make_plan: Callable[[], dcp.SavePlan]) -> None:
        """Offers all items of this rank's plan and submits. A failure cancels, so that no other rank waits for us."""
        if self.save is not None:
            raise RuntimeError(f"{self.bundle} step {self.step} was offered: a ForebayWriter serves one save")
        with self._group.save(self.bundle, step=self.step, **self._options) as self.save:
            plan = make_plan()
            plan = plan if plan.usable else self.planner.plan  # a caching planner sends no unchanged plan
            self._offered = {item.index: item for item in plan.items}
            for item in plan.items:
                self._add(item)
            self.save.add(f"{PLANNER_DATA}{self._group.rank}", pickle.dumps(plan.planner_data))

    def _add(self, item: dcp.WriteItem) -> None:
        fqn = item.index.fqn
        try:
            data = self.planner.resolve_data(item)
        except (KeyError, ValueError) as error:
            raise ValueError(f"{fqn}: not in the writer's planner; dcp.save needs planner=writer.planner") from error
        if item.type == WriteItemType.BYTE_IO:
            return self.save.add(_name(fqn), data.getvalue(), lowest_wins=True)
        shape, start = tuple(item.tensor_data.size), tuple(item.tensor_data.chunk.offsets)
        dtype = str(data.dtype).removeprefix("torch.")
        try:
            plain = data.detach().resolve_conj().resolve_neg().cpu()
            self.save.add(_name(fqn), plain, shape=shape, start=start, dtype=dtype)
        except (BufferError, RuntimeError) as error:  # sparse, quantized: no plain memory to offer
            raise ValueError(f"{fqn}: {dtype}, {data.layout}: cannot be offered: {error}") from error


class ForebayReader(_NamedByBundle, dcp.StorageReader):
    """Reads one version of `bundle` into a state dict, whatever the number of ranks that saved it.

    source      forebay group (all its ranks load together), or a session (this process alone)
    version     number, label or "latest"; ranks that find different versions all fail

    Raises forebay.Error, and ValueError for a target that does not fit, naming key and both shapes. Targets are then
    untouched.
    """

    def __init__(self, source: Any, bundle: str, version: int | str = "latest") -> None:
        self.bundle, self._asked = bundle, version
        self._group = source if hasattr(source, "incarnation") else None
        self._session = source.session if self._group else source
        self.version = 0  # number of the version, once opened

    def read_metadata(self) -> dcp.Metadata:
        """Rebuilds DCP's Metadata: each tensor as one chunk, since any box of it can be read."""
        self._version = self._session.open(self.bundle, self._asked, group=self._group)
        self.version, layout = self._version.number, self._version.attributes.get("torch.dcp")
        if layout != LAYOUT:
            raise ValueError(f"{self.bundle} version {self.version}: torch.dcp layout {layout}, not {LAYOUT}")
        entries: dict[str, Any] = {}
        blobs: dict[int, bytearray] = {}
        for item in self._version.items():
            key, size = item.name.removeprefix("~="), torch.Size(item.shape)
            if item.name.startswith(PLANNER_DATA):
                blobs[int(item.name.removeprefix(PLANNER_DATA))] = bytearray(item.nbytes)
            elif item.dtype == "blob":
                entries[key] = dcp.BytesStorageMetadata()
            else:
                properties = TensorProperties(dtype=getattr(torch, item.dtype, None))
                whole = dcp.ChunkStorageMetadata(torch.Size([0] * len(size)), size)
                entries[key] = dcp.TensorStorageMetadata(properties, size, [whole])
        with self._session.load(self._version) as load:
            for rank, blob in blobs.items():
                load.into(f"{PLANNER_DATA}{rank}", blob)
        return dcp.Metadata(entries, planner_data=_merge([pickle.loads(blobs[rank]) for rank in sorted(blobs)]))

    def set_up_storage_reader(self, metadata: dcp.Metadata, is_coordinator: bool) -> None:
        pass

    def prepare_local_plan(self, plan: dcp.LoadPlan) -> dcp.LoadPlan:
        plan.storage_data = self.version
        return plan

    def prepare_global_plan(self, plans: list[dcp.LoadPlan]) -> list[dcp.LoadPlan]:
        numbers = sorted({plan.storage_data for plan in plans})
        if len(numbers) > 1:
            raise ValueError(f"{self.bundle} {self._asked}: ranks opened versions {numbers}; open one by number")
        return plans

    def read_data(self, plan: dcp.LoadPlan, planner: dcp.LoadPlanner) -> torch.futures.Future[None]:
        filled = []
        # Targets are checked inside the load: a refusal cancels it, so that no other rank waits for this one.
        with (self._group or self._session).load(self._version) as load:
            for read in plan.items:
                item = self._version.find(_name(read.storage_index.fqn))
                if read.type == LoadItemType.BYTE_IO:
                    target, buffer, start = None, bytearray(item.nbytes), (0,)
                else:
                    target = planner.resolve_tensor(read)
                    buffer, start = _fit(read, item, target)
                load.into(item.name, buffer, start=start)
                filled.append((read, target, buffer))
        for read, target, buffer in filled:
            if read.type == LoadItemType.BYTE_IO:
                planner.load_bytes(read, io.BytesIO(buffer))
            else:
                if buffer.data_ptr() != target.data_ptr():
                    target.detach().copy_(buffer)  # another device or dtype, as stock DCP does
                planner.commit_tensor(read, target)
        self._version.close()
        return _completed(None)


def _completed(value: Any) -> torch.futures.Future:
    future: torch.futures.Future = torch.futures.Future()
    future.set_result(value)
    return future


def _fit(read: dcp.ReadItem, item: Any, target: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    """What the load fills, and where its box starts in the item: `target` itself, strides and all, or CPU memory of
    the saved dtype to copy from. ValueError if they do not fit."""
    start = tuple(a + b for a, b in zip(read.storage_index.offset, read.storage_offsets))
    outside = any(a + n > whole for a, n, whole in zip(start, read.lengths, item.shape))
    if len(start) != len(item.shape) or outside or target.shape != read.lengths:
        box = f"a box of {tuple(read.lengths)} at {start} for a target of {tuple(target.shape)}"
        raise ValueError(f"{item.name}: saved shape {tuple(item.shape)} does not fit {box}")
    if any(stride == 0 and size > 1 for stride, size in zip(target.stride(), target.shape)):
        raise ValueError(f"{item.name}: elements of the target share memory (strides {target.stride()})")
    if (dtype := getattr(torch, item.dtype, None)) is None:
        raise ValueError(f"{item.name}: saved dtype {item.dtype} is unknown to torch {torch.__version__}")
    if target.device.type == "cpu" and target.dtype == dtype and not target.is_conj() and not target.is_neg():
        return target.detach(), start
    return torch.empty(target.shape, dtype=dtype), start


def _merge(planner_data: list[Any]) -> Any:
    """The ranks' planner data as DefaultSavePlanner merges it (key -> path), refusing paths that disagree."""
    if not all(isinstance(data, dict) for data in planner_data):
        return planner_data
    merged: dict[Any, Any] = {}
    for fqn, path in [pair for data in planner_data for pair in data.items()]:
        if merged.setdefault(fqn, path) != path:
            raise ValueError(f"{fqn}: ranks saved different entries under this key: {merged[fqn]} and {path}")
    return merged


def _refuse_process_checkpointer() -> None:
    """Raises if we were called by async_save(async_checkpointer_type=PROCESS), which stage() is not told."""
    code, frame = inspect.unwrap(dcp.async_save).__code__, sys._getframe()
    while frame := frame.f_back:
        if frame.f_code is code and frame.f_locals["async_checkpointer_type"].value != "thread":
            raise ValueError("Forebay saves from the trainer's process: use AsyncCheckpointerType.THREAD")
