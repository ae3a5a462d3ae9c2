"""`make soak`: save after save with the last three kept, a node killed at each 25th; nothing grows.

Three daemons, copies=2, three ranks. Nodes 1 and 2 are killed in turn in the middle of saves; node 0, with the meta engine, lives through all
of it. After each 25 saves the job pauses, and what daemons have resident (anonymous and shared, their pools with it), their
descriptors and threads, and the store's bytes are taken. FOREBAY_SAVES chooses how many saves.
"""
import os
import time

import job
from training import BUNDLE, Checker, Training, figures, stored_files

NODES, RANKS, KEEP = 3, 3, 3
LONG = bool(os.environ.get("FOREBAY_LONG"))
SAVES = int(os.environ.get("FOREBAY_SAVES") or (1000 if LONG else 200))
KILL_EVERY = 25
FROM = 100  # growth is judged from this save on
POOL = 16 * job.MIB  # small, so that it is full of cache when growth begins to be judged
SLOPE_MAX = 1024  # bytes a save
# Between two samples: pages of the heap that a busier moment touched for good. In short the last sample follows a death.
NOISE = (512 << 10) if LONG else (4 << 20)


def slope(points):
    """Of the line through (x, y) with the least squares."""
    n = len(points)
    x, y = sum(p[0] for p in points) / n, sum(p[1] for p in points) / n
    return sum((a - x) * (b - y) for a, b in points) / sum((a - x) ** 2 for a, _ in points)


def print_series(series):
    print("saves  " + " ".join(f"node-{node}: KiB, fds, threads" for node in range(NODES)) + "  store KiB")
    for step, nodes, store in series:
        row = "".join(f"{f.resident >> 10:12} {f.sockets + f.others:5} {f.threads:3}     " for f in nodes)
        print(f"{step:5} {row} {store >> 10:7}")


def soak(training, checker):
    """The series: (saves, figures of each node, bytes of the store)."""
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
        series.append((training.newest(), [figures(d.pid) for d in cluster.daemons], sum(stored_files(cluster).values())))
        if LONG or step in (KILL_EVERY, SAVES):
            checker.check_store()
    return series


def test_slope_of_a_line():
    assert abs(slope([(100, 7), (125, 32), (150, 57)]) - 1) < 1e-9
    assert slope([(1, 5), (2, 5), (9, 5)]) == 0


def test_nothing_grows(tmp_path):
    began = time.monotonic()
    with job.Cluster(tmp_path / "soak", NODES, pool=POOL) as cluster, Training(cluster, RANKS) as training:
        checker = Checker(training, KEEP)
        training.wait_for(1)
        cluster.forebay("retain", BUNDLE, "--last", KEEP)
        series = soak(training, checker)
        print_series(series)

        judged = [(step, nodes[0].resident) for step, nodes, _ in series if step >= FROM]
        rise = slope(judged)
        print(f"{series[-1][0]} saves in {time.monotonic() - began:.0f} s: node-0 {rise:.0f} bytes a save from {judged[0][0]} on; "
              f"store at most {checker.store_ratio:.2f} x live")
        assert rise < SLOPE_MAX if LONG else judged[-1][1] - judged[0][1] < NOISE + SLOPE_MAX * (judged[-1][0] - judged[0][0])
        quiet = [nodes[0] for step, nodes, _ in series if step >= FROM]
        assert len({f.threads for f in quiet}) == 1
        assert min(f.others for f in quiet[-3:]) <= min(f.others for f in quiet)  # a collection may have a file open just now
        # Who was killed is as large, at the same age, as in its first life.
        for node in range(1, NODES):
            ages = [nodes[node].resident for step, nodes, _ in series[node - 1 :: NODES - 1]]
            assert max(ages) - ages[0] < NOISE + SLOPE_MAX * (series[-1][0] - series[0][0]), ages
