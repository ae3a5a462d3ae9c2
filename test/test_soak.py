"""`make soak`: save after save with the last three kept, a node killed at each 25th; nothing grows.

Three daemons, copies=2, three ranks. Nodes 1 and 2 are killed in turn in the middle of saves; node 0, with the meta engine, lives through all
of it. After each 25 saves the job pauses, and what daemons have resident (anonymous and shared, their pools with it), their
descriptors and threads, the store's bytes, and what is in use of node 0's heap are taken. FOREBAY_SAVES chooses how many saves.

A daemon takes at its start what its heap comes to, so a small leak would stay out of sight in what is resident: hence the heap, too.
"""
import collections
import os
import re
import time

import job
import pytest
from exposition import Exposition, fetch
from training import BUNDLE, Checker, Figures, Training, figures, stored_files

NODES, RANKS, KEEP = 3, 3, 3
LONG = bool(os.environ.get("FOREBAY_LONG"))
SAVES = int(os.environ.get("FOREBAY_SAVES") or (500 if LONG else 200))
KILL_EVERY = 25
FROM = 100  # growth is judged from this save on
POOL = 16 * job.MIB  # small, so that it is full of cache when growth begins to be judged
SLOPE_MAX = 1024  # bytes a save, of what is resident
# Of the heap: 64 traces of saves (`forebay why`) may come late, when node 0 becomes coordinator; freed blocks that threads keep come by and by.
HEAP_SLOPE_MAX = 2048
# Between two samples: pages of the heap that a busier moment touched for good. In short the last sample follows a death.
NOISE = (512 << 10) if LONG else (4 << 20)

Sample = collections.namedtuple("Sample", "step nodes store heap")


def slope(points):
    """Of the line through (x, y) with the least squares."""
    n = len(points)
    x, y = sum(p[0] for p in points) / n, sum(p[1] for p in points) / n
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def rises(series):
    """Bytes a save, from save FROM on: what node 0 has resident, and in use of its heap."""
    judged = [s for s in series if s.step >= FROM]
    return slope([(s.step, s.nodes[0].resident) for s in judged]), slope([(s.step, s.heap) for s in judged])


def print_series(series):
    print("saves  " + " ".join(f"node-{node}: KiB, fds, threads" for node in range(NODES)) + "  store KiB  node-0's heap KiB")
    for s in series:
        row = "".join(f"{f.resident >> 10:12} {f.sockets + f.others:5} {f.threads:3}     " for f in s.nodes)
        print(f"{s.step:5} {row} {s.store >> 10:7} {s.heap >> 10:7}")


def judge(series, by_slope):
    """Nothing has grown. by_slope: there are enough samples for a line; else the last one is compared with the first."""
    judged = [s for s in series if s.step >= FROM]
    resident, heap = rises(series)
    saves = judged[-1].step - judged[0].step
    if by_slope:
        assert resident < SLOPE_MAX, f"node-0 has {resident:.0f} bytes more resident a save"
        assert heap < HEAP_SLOPE_MAX, f"node-0 has {heap:.0f} bytes more of its heap in use a save"
    rise = judged[-1].nodes[0].resident - judged[0].nodes[0].resident
    assert rise < NOISE + SLOPE_MAX * saves, f"node-0 has {rise} bytes more resident after {saves} saves"
    quiet = [s.nodes[0] for s in judged]
    assert len({f.threads for f in quiet}) == 1, "node-0 has other threads"
    # A collection may have a file open just now.
    assert min(f.others for f in quiet[-3:]) <= min(f.others for f in quiet), "node-0 has more descriptors"
    # Who was killed is as large, at the same age, as in its first life.
    for node in range(1, NODES):
        ages = [s.nodes[node].resident for s in series[node - 1 :: NODES - 1]]
        assert max(ages) - ages[0] < NOISE + SLOPE_MAX * (series[-1].step - series[0].step), f"node-{node}: {ages}"


def heap_in_use(cluster):
    """Node 0's, which has had one life only."""
    door = re.search(r" http=(\S+)", (cluster.folder / "node-0" / "log").read_text())[1]
    status, text = fetch(door, "/metrics")
    assert status == 200, text
    return int(Exposition(text)["heap_bytes"])


def soak(training, checker):
    cluster, series = training.cluster, []
    for step in range(KILL_EVERY, SAVES + 1, KILL_EVERY):
        training.go_on()
        training.wait_for(step)
        victim = 1 + step // KILL_EVERY % (NODES - 1)
        cluster.kill(victim)
        cluster.launch(victim)
        training.wait_run()
        training.wait_for(training.newest("captured") + 2)
        training.pause()
        checker.check(store=False)
        nodes = [figures(d.pid) for d in cluster.daemons]  # before the HTTP door starts a thread to answer
        series.append(Sample(training.newest(), nodes, sum(stored_files(cluster).values()), heap_in_use(cluster)))
        if LONG or step in (KILL_EVERY, SAVES):
            checker.check_store()
    return series


def made_up(resident=0, heap=0, others=0, threads=0, killed=0):
    """A series of 500 saves in which so much is added with each save, or with the last sample."""
    steps = range(KILL_EVERY, 501, KILL_EVERY)
    last = steps[-1]
    return [
        Sample(
            step,
            [Figures(20 * job.MIB + resident * step, 10, 15 + others * (step > last - 3 * KILL_EVERY), 5 + threads * (step == last))]
            + [Figures(20 * job.MIB + killed * (step > 400), 10, 15, 5)] * (NODES - 1),
            4 * job.MIB,
            job.MIB + heap * step,
        )
        for step in steps
    ]


def test_slope_of_a_line():
    assert abs(slope([(100, 7), (125, 32), (150, 57)]) - 1) < 1e-9
    assert slope([(1, 5), (2, 5), (9, 5)]) == 0


def test_what_grows_is_found_out():
    judge(made_up(), by_slope=True)
    judge(made_up(resident=1000, heap=2000), by_slope=True)
    for grown in (dict(resident=1100), dict(heap=2100), dict(others=1), dict(threads=1), dict(killed=8 << 20)):
        with pytest.raises(AssertionError, match="more|other|node-1"):
            judge(made_up(**grown), by_slope=True)
    with pytest.raises(AssertionError, match="after 400 saves"):
        judge(made_up(resident=20 << 10), by_slope=False)


def test_nothing_grows(tmp_path):
    began = time.monotonic()
    doors = "http = 127.0.0.1:0\n"
    with job.Cluster(tmp_path / "soak", NODES, pool=POOL, more=doors) as cluster, Training(cluster, RANKS) as training:
        checker = Checker(training, KEEP, listening=3)
        training.wait_for(1)
        cluster.forebay("retain", BUNDLE, "--last", KEEP)
        series = soak(training, checker)
        print_series(series)
        resident, heap = rises(series)
        print(f"{series[-1].step} saves in {time.monotonic() - began:.0f} s: node-0 rises by {resident:.0f} bytes a save from the {FROM}th on, "
              f"what is in use of its heap by {heap:.0f}; store at most {checker.store_ratio:.2f} x live")
        judge(series, by_slope=LONG)
