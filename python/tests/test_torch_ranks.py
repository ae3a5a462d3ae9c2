"""The DCP adapter over several ranks: every scenario is run by the same few processes, since starting torch is slow.

As a program this file is one rank of them: test_torch_ranks.py ACT FOLDER, with RANK, WORLD_SIZE and RUN in the environment.
"""
import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh

import forebay
from forebay.torch import ForebayReader, ForebayWriter

ROOT = Path(__file__).resolve().parents[2]
FOREBAY = Path(os.environ.get("FOREBAY_BUILD", ROOT / "build")) / "forebay"
NODES, SAVERS = 4, 4
LIMIT_S = 300
PROMPT_S = 30  # a failure must reach all ranks well before the group's deadline of 600 s
SHAPES = {
    "even": (8, 4), "uneven": (13, 3), "short": (6,), "single": (1, 5), "fewer": (2, 3), "none": (0, 3), "prime": (7, 11, 5),
    "scalar": (1,),
}  # fmt: skip


# ---- one rank


def state_dict(mesh, fill):
    """Replicated, sharded by each dimension, and object entries; the same on any number of ranks."""
    generator = torch.Generator().manual_seed(1)
    state = {"objects": {"position": 17 if fill else 0, "names": ["a"] if fill else []}, "replicated": {}, "sharded": {}}
    for name, shape in SHAPES.items():
        whole = torch.randn(shape, generator=generator)
        state["replicated"][name] = whole.clone() if fill else torch.full(shape, 7.0)
        for dim in range(len(shape)):
            # src_data_rank=None: each rank cuts its own part, nothing is sent
            shards = distribute_tensor(whole, mesh, [Shard(dim)], src_data_rank=None)
            if not fill:
                shards.to_local().fill_(7.0)
            state["sharded"][f"{name}-{dim}"] = shards
        state["replicated"][f"{name}-dtensor"] = distribute_tensor(whole, mesh, [Replicate()], src_data_rank=None)
    return state


def differing(a, b, path=""):
    """Names of leaves of `a` that are not equal to those of `b`, this rank's parts."""
    if isinstance(a, dict):
        return [name for key in a for name in differing(a[key], b[key], f"{path}/{key}")]
    if isinstance(a, DTensor):
        a, b = a.to_local(), b.to_local()
    equal = a.equal(b) if isinstance(a, torch.Tensor) else a == b
    return [] if equal else [path]


def failure_of(act):
    """(type, text, seconds) of what `act` raises, None if nothing."""
    begin = time.monotonic()
    try:
        act()
    except BaseException as error:
        return type(error).__name__, str(error), time.monotonic() - begin
    return None


class Rank:
    def __init__(self, folder):
        self.rank, self.size, run = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["RUN"]
        # They meet in a file: a port that was free may be some connection's by the time torch has started.
        dist.init_process_group("gloo", init_method=f"file://{folder}/meet-{run}", rank=self.rank, world_size=self.size)
        session = forebay.connect(str(folder / f"node-{self.rank % NODES}" / "socket"))
        self.group = session.join("ranks", run=run, rank=self.rank, size=self.size)
        self.mesh = init_device_mesh("cpu", (self.size,))
        self.saves = dist.new_group(backend="gloo")
        self.found = {}

    def writer(self, bundle, step, **options):
        return ForebayWriter(self.group, bundle, step, **options)

    def save(self):
        state = state_dict(self.mesh, True)
        writer = self.writer("ranks/state", 1)
        dcp.save(state, storage_writer=writer, planner=writer.planner)
        # A23: wherever save has returned, every rank finds the version.
        latest = self.group.session.open("ranks/state", "latest").number
        writer.save.durable.wait()  # DCP told this rank; its own daemon may be about to
        self.found["seen"] = [writer.save.version, latest]

        writer = self.writer("ranks/state", 2, copies=2, same_structure=True)
        answer = dcp.async_save(state, storage_writer=writer, process_group=self.saves)
        answer.staging_completion.result()
        answer.upload_completion.result()
        writer.save.durable.wait()
        self.found["async"] = writer.save.version

        writer = self.writer("ranks/objects", 1)
        dcp.save({"rank": self.rank}, storage_writer=writer, planner=writer.planner)

        self.found["divergence"] = failure_of(self.diverge)
        self.found["refusal"] = failure_of(self.refuse_on_one_rank)

    def diverge(self):
        answer = dcp.async_save(
            {"w": torch.full((64,), float(self.rank == 2))},
            storage_writer=self.writer("ranks/state", 3),
            process_group=self.saves,
        )
        self.found["staging"] = failure_of(answer.staging_completion.result)
        answer.upload_completion.result()

    def refuse_on_one_rank(self):
        w = torch.eye(3)
        writer = self.writer("ranks/state", 4)
        dcp.save({"w": w.to_sparse() if self.rank == 1 else w}, storage_writer=writer, planner=writer.planner)

    def load(self):
        state = state_dict(self.mesh, False)
        reader = ForebayReader(self.group, "ranks/state")
        dcp.load(state, storage_reader=reader)
        self.found["version"] = reader.version
        self.found["differing"] = differing(state, state_dict(self.mesh, True))

        target = {"rank": -1}
        dcp.load(target, storage_reader=ForebayReader(self.group, "ranks/objects"))
        self.found["object"] = target["rank"]

        wrong = {"replicated": {"even": torch.full((8, 5 if self.rank == self.size - 1 else 4), 7.0)}}
        self.found["wrong"] = failure_of(lambda: dcp.load(wrong, storage_reader=ForebayReader(self.group, "ranks/state")))
        self.found["untouched"] = bool((wrong["replicated"]["even"] == 7.0).all())

        mixed = ForebayReader(self.group, "ranks/state", 1 + self.rank % 2)
        self.found["mixed"] = failure_of(lambda: dcp.load(state_dict(self.mesh, False), storage_reader=mixed))


def main():
    act, folder = sys.argv[1], Path(sys.argv[2])
    torch.set_num_threads(1)
    rank = Rank(folder)
    getattr(rank, act)()
    (folder / f"found-{act}-{rank.size}-{rank.rank}").write_text(json.dumps(rank.found))
    dist.barrier()
    dist.destroy_process_group()
    # Meshes and DTensors keep gloo's threads past their group's end, and they may abort the interpreter's (pytorch#179291): once
    # in some thousand ranks "terminate called without an active exception". How ours ends is in test_api.py.
    os._exit(0)


# ---- the tests


def run_ranks(folder, act, size):
    """Runs `act` on `size` ranks; what each found."""
    common = {
        **os.environ, "WORLD_SIZE": str(size), "RUN": str(uuid.uuid4()), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    ranks = [
        subprocess.Popen([sys.executable, __file__, act, folder], env={**common, "RANK": str(rank)}) for rank in range(size)
    ]
    try:
        statuses = [rank.wait(LIMIT_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert statuses == [0] * size
    return [json.loads((folder / f"found-{act}-{size}-{rank}").read_text()) for rank in range(size)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("r")
    subprocess.run([FOREBAY, "up", "--nodes", str(NODES), "--dir", folder], check=True, stdout=subprocess.DEVNULL)
    yield folder
    subprocess.run([FOREBAY, "down", "--dir", folder], check=True, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def saved(folder):
    return run_ranks(folder, "save", SAVERS)


def test_a_returned_save_is_seen_by_every_rank(saved):
    assert [found["seen"] for found in saved] == [[1, 1]] * SAVERS


def test_an_asynchronous_save_publishes_the_next_version(saved):
    assert [found["async"] for found in saved] == [2] * SAVERS


def test_replicas_that_differ_fail_both_futures_on_all_ranks(saved):
    for found in saved:
        for kind, text, seconds in (found["staging"], found["divergence"]):
            assert kind == "Error" and "w" in text and seconds < PROMPT_S


def test_a_refusal_on_one_rank_fails_all_at_once(saved):
    for found in saved:
        kind, text, seconds = found["refusal"]
        assert kind == "CheckpointException" and "w: float32" in text and seconds < PROMPT_S


@pytest.mark.parametrize("size", [4, 3, 1, 7])
def test_any_number_of_ranks_loads_what_four_saved(folder, saved, size):
    for rank, found in enumerate(run_ranks(folder, "load", size)):
        assert found["differing"] == [] and found["version"] == 2
        assert found["object"] == 0  # the lowest rank's
        assert "8, 4" in found["wrong"][1] and "8, 5" in found["wrong"][1] and found["untouched"]
        assert size == 1 or "ranks opened versions [1, 2]" in found["mixed"][1]


if __name__ == "__main__":
    main()
