"""torch.distributed.checkpoint beside us: the demo's state (all-MiniLM-L6-v2 replicated, AdamW's moments sharded) on 8 ranks, saved
and loaded by torch's own FileSystemWriter and FileSystemReader and by our adapter, on the same disk, in turns, in one run.

A time is the slowest rank's, from a barrier; best of $BENCH_ROUNDS (5). Blocked: how long the trainer stands still: until dcp.save
returns; with dcp.async_save until it returns and, for ours, until what was offered is captured, so that buffers may change.
End: the checkpoint is whole on disk (both fsync). The bound of each line is torch's own time.

This file is the driver, and, started by torchrun, a rank.
"""
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import bed

ROOT = Path(__file__).resolve().parent.parent
RANKS = 8
ROUNDS = bed.setting("BENCH_ROUNDS", 5)
POOL = 256 * bed.MIB
BUNDLE = "bench/dcp"
DEADLINE_S = 400

# ---- a rank


class Rank:
    def __init__(self) -> None:
        import torch
        import torch.distributed as dist

        import forebay
        from encoder import Encoder
        from train import ShardedAdamW

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.rank = dist.get_rank()
        self.session = forebay.connect(str(bed.DIR / "dcp" / f"node-{self.rank}" / "socket"))
        self.group = self.session.join("dcp", run=os.environ["TORCHELASTIC_RUN_ID"], rank=self.rank, size=RANKS)
        torch.manual_seed(0)
        self.model = Encoder()
        self.model.load_pretrained()
        self.optimizer = ShardedAdamW(self.model, self.rank, RANKS)
        self.step, self.best = 0, {}

    def state(self) -> dict:
        return {"model": self.model.state_dict(), "optim": self.optimizer.state_dict(), "progress": {"steps": self.step}}

    def change(self) -> None:
        """As a step of training would: every tensor becomes another."""
        import torch

        self.step += 1
        with torch.no_grad():
            for tensor in self.model.parameters():
                tensor.mul_(1.001)
            for state in self.optimizer.state_dict().values():
                for name in ("exp_avg", "exp_avg_sq"):
                    state[name].to_local().normal_()

    def note(self, name: str, begin: float) -> None:
        """The slowest rank's seconds since `begin`."""
        import torch
        import torch.distributed as dist

        took = torch.tensor(time.monotonic() - begin)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        self.best[name] = min(float(took), self.best.get(name, float(took)))

    def begin(self) -> float:
        import torch.distributed as dist

        dist.barrier()
        return time.monotonic()

    def stock(self, asynchronous: bool) -> None:
        import torch.distributed.checkpoint as dcp

        self.change()
        state, writer = self.state(), dcp.FileSystemWriter(self.path("save"))
        begin = self.begin()
        if asynchronous:
            over = dcp.async_save(state, storage_writer=writer)
            blocked = time.monotonic()
            over.result()
            end = time.monotonic()
            self.note("stock async blocked", begin + (time.monotonic() - blocked))
            self.note("stock async end", begin + (time.monotonic() - end))
        else:
            dcp.save(state, storage_writer=writer)
            self.note("stock save", begin)

    def ours(self, asynchronous: bool, hint: bool) -> None:
        import torch.distributed.checkpoint as dcp

        from forebay.torch import ForebayWriter

        self.change()
        name = "ours hint" if hint else "ours"
        state, writer = self.state(), ForebayWriter(self.group, BUNDLE, self.step, same_structure=hint)
        begin = self.begin()
        if asynchronous:
            over = dcp.async_save(state, storage_writer=writer)
            over.staging_completion.result()
            blocked = time.monotonic()
            over.upload_completion.result()
            end = time.monotonic()
            self.note(f"{name} async blocked", begin + (time.monotonic() - blocked))
            self.note(f"{name} async end", begin + (time.monotonic() - end))
        else:
            dcp.save(state, storage_writer=writer, planner=writer.planner)
            self.note(f"{name} save", begin)

    def path(self, name: str) -> Path:
        return bed.DIR / f"stock-{name}"

    def save_all(self) -> None:
        self.ours(False, False)  # the group's first: there is no structure yet to hint at
        for _ in range(ROUNDS):
            self.stock(False)
            self.ours(False, False)
            self.ours(False, True)
            self.stock(True)
            self.ours(True, False)
            self.ours(True, True)
        self.load("pool")

    def load(self, how: str) -> None:
        import torch.distributed.checkpoint as dcp

        from forebay.torch import ForebayReader

        readers = {"ours": ForebayReader(self.group, BUNDLE), "stock": dcp.FileSystemReader(self.path("save"))}
        for name, reader in readers.items():
            state = self.state()
            begin = self.begin()
            dcp.load(state, storage_reader=reader)
            self.note(f"{name} load {how}", begin)

    def lines(self, saving: bool) -> None:
        def line(what: str, ours: str, stock: str) -> None:
            bed.duration(what, "ms", 1e3 * self.best[ours], 1e3 * self.best[stock])

        if not saving:
            return line("dcp.load, daemons started anew, disk", "ours load disk", "stock load disk")
        for name, words in (("ours", ""), ("ours hint", ", HINT")):
            line(f"dcp.save{words}: blocked until the end", f"{name} save", "stock save")
            line(f"dcp.async_save{words}: blocked", f"{name} async blocked", "stock async blocked")
            line(f"dcp.async_save{words}: to the end", f"{name} async end", "stock async end")
        line("dcp.load after the save (pools; torch: warm cache)", "ours load pool", "stock load pool")


def run_rank(what: str) -> None:
    import torch.distributed as dist

    rank = Rank()
    if what == "save":
        rank.save_all()
    else:
        rank.load("disk")
    if rank.rank == 0:
        rank.lines(what == "save")
    dist.barrier()
    dist.destroy_process_group()


# ---- the driver


def run_job(what: str) -> None:
    environment = {
        **os.environ,
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
        "PYTHONPATH": os.pathsep.join(str(ROOT / folder) for folder in ("python", "demo", "bench")),
    }
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}",
         f"--rdzv-id={uuid.uuid4()}", __file__, what],
        env=environment, check=True, timeout=DEADLINE_S,
    )  # fmt: skip


def main() -> None:
    bed.up("dcp", RANKS, POOL)
    bed.head()
    run_job("save")
    bed.down("dcp")
    bed.up("dcp", RANKS, POOL)
    bed.forget(bed.DIR)
    run_job("load")
    bed.down("dcp")


if __name__ == "__main__":
    run_rank(sys.argv[1]) if len(sys.argv) > 1 else main()
