"""One rank of the demo's training job; run.py starts the ranks with torchrun. See README.md in this folder.

Parameters are replicated over the ranks, gradients are averaged, and AdamW's state is sharded by rows. Every other step
the whole state is saved through torch.distributed.checkpoint with Forebay's adapter. Everything that a rank computes
follows from its parameters, its optimizer state and the loader's position, one thread, so a restored run repeats the
uninterrupted one bit for bit.

What happened goes to REPORT/rank-<rank>.jsonl, one JSON object a line.
"""
import argparse
import ctypes
import hashlib
import json
import os
import signal
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tokenizers import Tokenizer
from torch.distributed.tensor import DTensor, Shard, init_device_mesh
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

import forebay
from encoder import Encoder, weights_dir
from forebay.torch import ForebayReader, ForebayWriter

BUNDLE = "demo/minilm"
TEXTS = Path("/usr/share/common-licenses")  # on every Debian: some 50,000 words of careful English
PAIRS = 4  # per rank and step
LENGTH = 24  # tokens of one side of a pair, with [CLS] and [SEP]
TEMPERATURE = 0.05
LEARNING_RATE = 5e-5


class Report:
    """Appends events of this rank to its file."""

    def __init__(self, folder: Path, rank: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = (folder / f"rank-{rank}.jsonl").open("a", buffering=1)
        self._begin = time.monotonic()

    def __call__(self, event: str, **facts: object) -> None:
        at = round(time.monotonic() - self._begin, 3)
        self._file.write(json.dumps({"event": event, "at_s": at, **facts}) + "\n")


class Loader:
    """Pairs of neighbouring stretches of real text. `position` counts pairs that all ranks together have consumed."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size, self.position = rank, size, 0
        tokenizer = Tokenizer.from_file(str(weights_dir() / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        files = sorted(path for path in TEXTS.iterdir() if path.is_file() and not path.is_symlink())
        if not files:
            raise FileNotFoundError(f"{TEXTS}: no text to train on")
        ids = [i for path in files for i in tokenizer.encode(path.read_text("latin-1"), add_special_tokens=False).ids]
        side = LENGTH - 2
        sides = torch.tensor(ids[: len(ids) // (2 * side) * 2 * side]).view(-1, side)
        first, last = (torch.full((len(sides), 1), tokenizer.token_to_id(t)) for t in ("[CLS]", "[SEP]"))
        self._pairs = torch.cat([first, sides, last], dim=1).view(-1, 2, LENGTH)

    def next(self) -> torch.Tensor:
        """This rank's next batch, (PAIRS, 2, LENGTH) int64."""
        start = self.position + self._rank * PAIRS
        self.position += self._size * PAIRS
        return self._pairs[torch.arange(start, start + PAIRS) % len(self._pairs)]


def unpack(parts: torch.Tensor, tensors: list[torch.Tensor]) -> None:
    """Fills `tensors` from parts (ranks, N): each rank's rows of all of them, in order, as Shard(0) cuts them."""
    for rank, flat in enumerate(parts):
        at = 0
        for tensor in tensors:
            rows = -(-tensor.shape[0] // len(parts))  # all ranks' alike, but the last ones have fewer or none
            part = tensor[rank * rows : (rank + 1) * rows]
            part.copy_(flat[at : at + part.numel()].view_as(part))
            at += part.numel()


class ShardedAdamW:
    """AdamW over replicated parameters: each rank keeps the state of, and updates, its rows of every parameter.

    The state exists from the start, all zero. A parameter of fewer rows than ranks leaves some with empty shards.
    """

    def __init__(self, model: torch.nn.Module, rank: int, size: int) -> None:
        self._mesh = init_device_mesh("cpu", (size,))
        self._size = size
        self._parameters = dict(model.named_parameters())
        count = sum(p.numel() for p in self._parameters.values())
        self._gradients = torch.zeros(count)  # one buffer, so that one all-reduce averages all
        self._shards = {}
        at = 0
        for name, p in self._parameters.items():
            p.grad = self._gradients[at : at + p.numel()].view_as(p)
            at += p.numel()
            (rows, *_), (start, *_) = compute_local_shape_and_global_offset(p.shape, self._mesh, [Shard(0)])
            shard = p.detach()[start : start + rows]
            shard.grad = p.grad[start : start + rows]
            self._shards[name] = shard
        self._inner = torch.optim.AdamW(self._shards.values(), lr=LEARNING_RATE)
        for shard in self._shards.values():
            zeros = {"exp_avg": torch.zeros_like(shard), "exp_avg_sq": torch.zeros_like(shard)}
            self._inner.state[shard] = {"step": torch.tensor(0.0), **zeros}
        mine = sum(shard.numel() for shard in self._shards.values())
        longest = torch.tensor(mine)
        dist.all_reduce(longest, dist.ReduceOp.MAX)
        self._send = torch.zeros(int(longest))
        self._received = torch.zeros(size * len(self._send))

    def zero_grad(self) -> None:
        self._gradients.zero_()

    def step(self) -> None:
        """Averages the gradients, updates this rank's rows, and gives them to all."""
        dist.all_reduce(self._gradients)
        self._gradients /= self._size
        self._inner.step()
        own = torch.cat([shard.reshape(-1) for shard in self._shards.values()])
        self._send[: len(own)] = own
        dist.all_gather_into_tensor(self._received, self._send)
        unpack(self._received.view(self._size, -1), [p.detach() for p in self._parameters.values()])

    def state_dict(self) -> dict[str, dict[str, torch.Tensor]]:
        """{parameter: {"step": (), "exp_avg": DTensor, "exp_avg_sq": DTensor}}; shares memory with the optimizer."""
        return {name: self._state(name) for name in self._parameters}

    def _state(self, name: str) -> dict[str, torch.Tensor]:
        p, state = self._parameters[name], self._inner.state[self._shards[name]]

        def whole(shard: torch.Tensor) -> DTensor:
            return DTensor.from_local(
                shard, self._mesh, [Shard(0)], run_check=False, shape=p.shape, stride=p.stride()
            )

        return {"step": state["step"], "exp_avg": whole(state["exp_avg"]), "exp_avg_sq": whole(state["exp_avg_sq"])}


class HaltingPlanner(dcp.DefaultSavePlanner):
    """Stops for good, half way through what this rank offers, and says so in `marker`: the driver kills us there."""

    def __init__(self, marker: Path, after: int) -> None:
        super().__init__()
        self._marker, self._left = marker, after

    def resolve_data(self, write_item):
        self._left -= 1
        if self._left == 0:
            self._marker.write_text(str(os.getpid()))
            while True:
                signal.pause()
        return super().resolve_data(write_item)


def memory_of(tensor: torch.Tensor):
    """The bytes of a contiguous tensor, without a copy."""
    return (ctypes.c_char * (tensor.numel() * tensor.element_size())).from_address(tensor.data_ptr())


def sha256(tensor: torch.Tensor) -> str:
    tensor = tensor.detach().contiguous()
    return hashlib.sha256(memory_of(tensor) if tensor.numel() else b"").hexdigest()


def flatten(state: dict, prefix: str = "") -> dict[str, torch.Tensor]:
    """All tensors of a state dict by dotted name."""
    tensors = {}
    for key, value in state.items():
        if isinstance(value, dict):
            tensors |= flatten(value, f"{prefix}{key}.")
        elif isinstance(value, torch.Tensor):
            tensors[prefix + key] = value
    return tensors


class Watch(threading.Thread):
    """Notes when each future of a save completed, in seconds since `begin`; ends at the first failure."""

    def __init__(self, save: object, begin: float) -> None:
        super().__init__(name="watch", daemon=True)
        self._save, self._begin = save, begin
        self.seconds: dict[str, float] = {}
        self.start()

    def run(self) -> None:
        try:
            for stage in ("captured", "staged", "durable"):
                getattr(self._save, stage).wait()
                self.seconds[f"{stage}_s"] = time.monotonic() - self._begin
        except forebay.Error:
            pass  # reported by whoever waits for the save itself


class Trainer:
    def __init__(self, args: argparse.Namespace) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.args = args
        self.report = Report(args.report, self.rank)
        run = f"{os.environ['TORCHELASTIC_RUN_ID']}:{os.environ['TORCHELASTIC_RESTART_COUNT']}"
        self.session = forebay.connect(str(args.dir / f"node-{self.rank}" / "socket"))
        self.group = self.session.join(f"demo-{self.size}", run=run, rank=self.rank, size=self.size)
        self.saving = dist.new_group(backend="gloo")  # an asynchronous save's collectives run beside the trainer's
        torch.manual_seed(0)
        self.model = Encoder()
        self.optimizer = ShardedAdamW(self.model, self.rank, self.size)
        self.loader = Loader(self.rank, self.size)
        self.steps = 0
        self._writer, self._saved = None, None
        self._parent: set[str] = set()  # digests of the pieces of the save before

    def state_dict(self) -> dict:
        progress = {"steps": self.steps, "position": self.loader.position}
        return {"model": self.model.state_dict(), "optim": self.optimizer.state_dict(), "progress": progress}

    def step(self) -> None:
        self.optimizer.zero_grad()
        batch = self.loader.next()
        a, b = self.model(batch.view(-1, LENGTH)).view(PAIRS, 2, -1).unbind(1)
        loss = torch.nn.functional.cross_entropy(a @ b.T / TEMPERATURE, torch.arange(PAIRS))
        loss.backward()
        if self._writer:
            self.wait_captured()  # only now are the saved buffers written again
        self.optimizer.step()
        self.steps += 1
        self.report("step", step=self.steps, loss=loss.item().hex(), shown=loss.item())

    def save(self) -> None:
        """Begins the next save; an earlier one is awaited first, since both use the same process group."""
        self.wait_durable()
        step = self.steps
        state = self.state_dict()
        self.report("offered", step=step, **self.count(state))
        self.digest(state, "saved")
        planner = None
        if self.args.halt == f"{self.rank}:{step}":
            planner = HaltingPlanner(self.args.report / "halted", after=len(flatten(state)) // 2)
        options = {"copies": self.args.copies, "same_structure": step > 0}
        self._writer = ForebayWriter(self.group, BUNDLE, step, planner, **options)
        dist.barrier()
        begin = time.monotonic()
        self._saved = dcp.async_save(state, storage_writer=self._writer, process_group=self.saving)
        self._stalled = time.monotonic() - begin
        self._watch = Watch(self._writer.save, begin)

    def wait_captured(self) -> None:
        begin = time.monotonic()
        self._saved.staging_completion.result()
        self._stalled += time.monotonic() - begin

    def wait_durable(self) -> None:
        """Ends the save that is under way, if any, and reports it."""
        if not self._writer:
            return
        writer, self._writer = self._writer, None
        self._saved.staging_completion.result()
        self._saved.upload_completion.result()
        self._watch.join()
        dist.barrier()
        facts = {"version": writer.save.version, "stalled_s": self._stalled, **self._watch.seconds}
        store_bytes = disk_usage(self.args.dir / "store")
        self.report("durable", step=writer.step, **facts, stats=writer.save.stats(), store_bytes=store_bytes)

    def restore(self) -> None:
        state = self.state_dict()
        reader = ForebayReader(self.group, BUNDLE, self.args.version)
        begin = time.monotonic()
        dcp.load(state, storage_reader=reader, process_group=self.saving)
        seconds = time.monotonic() - begin
        self.steps, self.loader.position = state["progress"]["steps"], state["progress"]["position"]
        self.report("restored", version=reader.version, step=self.steps, seconds=seconds)
        self.digest(state, "restored")

    def digest(self, state: dict, event: str) -> None:
        """Reports SHA-256 of every whole tensor. All ranks send their shards, rank 0 hashes and writes."""
        tensors = flatten(state)
        shards = {name: t for name, t in tensors.items() if isinstance(t, DTensor)}
        own = torch.cat([t.to_local().reshape(-1) for t in shards.values()])
        longest = torch.tensor(own.numel())
        dist.all_reduce(longest, dist.ReduceOp.MAX)
        parts = torch.empty(self.size, int(longest)) if self.rank == 0 else None
        own = torch.nn.functional.pad(own, (0, int(longest) - own.numel()))
        dist.gather(own, list(parts) if self.rank == 0 else None)
        if self.rank == 0:
            whole = {name: torch.empty(t.shape) for name, t in shards.items()}
            unpack(parts, list(whole.values()))
            self.report(event, step=self.steps, digests={name: sha256(t) for name, t in (tensors | whole).items()})

    def count(self, state: dict) -> dict[str, int]:
        """Bytes that the ranks offer together, and those of them that a store must grow by: pieces that differ from one
        another, from zero, and from those of the save before. Tensors only; other objects are a few kilobytes."""
        own = {}
        offered = 0
        for t in flatten(state).values():
            t = t.to_local() if isinstance(t, DTensor) else t
            offered += t.nbytes
            own[sha256(t)] = t.nbytes if t.count_nonzero() else 0
        everyone: list = [None] * self.size
        dist.all_gather_object(everyone, (offered, own))
        pieces = {digest: size for _, part in everyone for digest, size in part.items()}
        unique = sum(size for digest, size in pieces.items() if digest not in self._parent)
        self._parent = set(pieces)
        return {"offered_bytes": sum(offered for offered, _ in everyone), "unique_bytes": unique}


def disk_usage(folder: Path) -> int:
    """Bytes on disk below `folder`, as du counts them."""
    return sum(os.lstat(os.path.join(path, name)).st_blocks * 512 for path, _, names in os.walk(folder) for name in names)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, required=True, help="what `forebay up` was given")
    parser.add_argument("--report", type=Path, required=True, help="folder for what happened")
    parser.add_argument("--version", help="restore this version first: a number or latest")
    parser.add_argument("--steps", type=int, default=0, help="train so many steps")
    parser.add_argument("--save-every", type=int, default=0, help="save before the first step, and every so many")
    parser.add_argument("--copies", type=int, default=2)
    parser.add_argument("--halt", default="", metavar="RANK:STEP", help="stop that rank in the middle of that save")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo")
    trainer = Trainer(args)
    trainer.report("started", pid=os.getpid())
    if args.version:
        trainer.restore()
    else:
        trainer.model.load_pretrained()
    try:
        if args.save_every:
            trainer.save()
        for _ in range(args.steps):
            trainer.step()
            if args.save_every and trainer.steps % args.save_every == 0:
                if args.halt.endswith(f":{trainer.steps}"):
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun ends all ranks when one dies: report first
                trainer.save()
        trainer.wait_durable()
    except forebay.Error as error:
        trainer.report("failed", step=trainer.steps, error=str(error))
        os._exit(3)  # a peer is dead: leaving the process group would wait for it
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
