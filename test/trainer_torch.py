"""A rank of a torch job that does nothing but save through torch.distributed.checkpoint; trainer.c says what it prints.

    trainer_torch.py FOLDER SOCKET BUNDLE RANK RANKS RUN PORT

Every tensor follows from step and name. Rank 0 says for all which version to restore and whether to pause. A rank that loses its group
or its daemon ends with exit status 1, and whoever started the ranks starts all of them again with the next run, as torchrun would.
"""
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

import forebay
from forebay.torch import ForebayReader, ForebayWriter

LIMIT_S = 60
NUMBERS = 30_000


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


def tensor_of(step, name):
    dice = torch.Generator().manual_seed(step * 1000 + sum(name.encode()))
    return torch.randint(0, 1 << 60, (NUMBERS,), generator=dice)


def state_of(step, rank):
    """A replica, and what is this rank's own."""
    return {name: tensor_of(step, name) for name in ("both", f"own{rank}")}


def agree(values):
    """Rank 0's numbers."""
    told = torch.tensor(values)
    dist.broadcast(told, 0)
    return told.tolist()


def restore(fb, group, bundle, rank):
    """The step of the newest version, once all of this rank's state was compared."""
    try:
        newest = fb.open(bundle) if rank == 0 else None
        number, step = agree([newest.number, newest.step] if newest else [0, 0])
    except forebay.Error as error:
        if error.name != "ENOENT":
            raise
        number, step = agree([0, 0])
    if number:
        state = {name: torch.zeros_like(tensor) for name, tensor in state_of(step, rank).items()}
        dcp.load(state, storage_reader=ForebayReader(group, bundle, number))
        for name, tensor in state_of(step, rank).items():
            if not torch.equal(state[name], tensor):
                say("WRONG bytes:", name, "of step", step)
    return step


def save(group, bundle, step, rank):
    writer = ForebayWriter(group, bundle, step, copies=2)
    dcp.save(state_of(step, rank), storage_writer=writer, planner=writer.planner)
    say("captured", step)
    say("durable", step, writer.save.version)


def live(folder, socket, bundle, rank, size, run):
    """One session, from a run's begin to a pause."""
    with forebay.connect(socket) as fb, fb.join(bundle, run=run, rank=rank, size=size, timeout=LIMIT_S) as group:
        step = restore(fb, group, bundle, rank)
        say("run", run, step)
        while not agree([(folder / "pause").exists()])[0]:
            step += 1
            save(group, bundle, step, rank)


def main():
    folder, socket, bundle, rank, size, run, port = sys.argv[1:]
    folder, rank, size = Path(folder), int(rank), int(size)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", timedelta(seconds=LIMIT_S), rank=rank, world_size=size)
    pauses = 0
    while True:
        try:
            live(folder, socket, bundle, rank, size, f"{run}.{pauses}")
        except Exception as error:  # of forebay, or of DCP about it
            say("failed", 0, getattr(error, "name", type(error).__name__), str(error).replace("\n", " ")[:300])
            os._exit(1)
        say("paused")
        pauses += 1
        while agree([(folder / "pause").exists()])[0]:
            time.sleep(0.01)


if __name__ == "__main__":
    main()
