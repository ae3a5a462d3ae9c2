"""`make namespaces`: daemons that are cut off, one way or both, fall silent, or are stopped; the others go on, and it heals without help.

Three daemons in network namespaces (wires.py), copies=2, three ranks that save all the time. One node is cut off. The group then fails
whole, the ranks of the other nodes within seconds, or when a successor has ended what it had captured; what was staged becomes durable without that node; once the wires are whole the job goes on by
itself, and all that was ever durable is there. A coordinator that was cut off or stopped, and comes back when its successor has
finished, changes nothing. Clusters live side by side: most of the time they wait for a lease to end.
"""
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import forebay
import pytest

import job
import wires
from training import KEEP, Checker, Training

NODES, RANKS = 3, 3
LONG = bool(os.environ.get("FOREBAY_LONG"))
SIDE_BY_SIDE = 6
KEY = b"the key of a cluster with wires"
PACE_MS = "60"  # a job that computes, too: clusters side by side must not starve each other
FAIL_S = 5 + 3  # until every rank knows; the three for a machine under load
TAKEOVER_S = 20  # and then all that is captured has ended under a successor, if it was the coordinator
HEAL_S = 30
STOPPED_S = 60 if LONG else 6  # longer than a lease
CUTS = ["unplug", "refuse", "silence", "mute", "deafen"]
# (how, the node that is cut off, the node that coordinates): a plain one, the coordinator, the one with the meta engine, which may be both.
CASES = [(how, *who) for how in CUTS for who in [(2, 1), (1, 1), (0, 1), (0, 0)]]
SHORT = [("silence", 2, 1), ("mute", 1, 1), ("deafen", 2, 1), ("refuse", 0, 1)]
EARLY = "save-captured"  # no rank was told, nobody keeps the save: it may fail, on all
POINTS = ["save-captured", "save-kept", "save-staged", "slot-put", "slot-open", "segments-durable", "root-next", "root-durable", "index-durable"]


class Bed:
    """A cluster on wires, with a job whose coordinator is the named node."""

    def __init__(self, folder, name, coordinator, make):
        self.wires = make(NODES)
        self.cluster = job.Cluster(folder / name, NODES, key=KEY)
        self.wires.place(self.cluster)
        self.cluster.start()
        with self.cluster.connect(coordinator) as first:  # who joins alone has the group's lease, and keeps it over runs
            first.join("ckpt/a", run="before", rank=0, size=1, timeout=job.LIMIT_S)
            self.training = Training(self.cluster, RANKS, TRAINER_PACE_MS=PACE_MS)
            self.training.__enter__()
            self.training.wait_for(2)
        self.cluster.forebay("retain", "ckpt/a", "--last", KEEP)

    def close(self, *exception):
        self.training.__exit__(*exception)
        self.cluster.__exit__()
        self.wires.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close(*exception)


def failed_ranks(training, lines):
    """Ranks that have failed a save, or are in no run any more, since they had said so many lines."""
    training.hear()
    return [rank for rank in range(RANKS) if any(line.startswith("failed") for line in training.lines[rank][lines[rank] :])]


def live_cut(folder, how, node, coordinator, make=wires.wires):
    """In words: how long everything took."""
    name = f"{how}-{node}-{coordinator}{'' if make is wires.wires else '-stopped'}"
    with Bed(folder, name, coordinator, make) as bed:
        training, cluster = bed.training, bed.cluster
        checker = Checker(training)
        training.wait_for(training.newest() + 3)
        lines = [len(said) for said in training.lines]
        training.told["staged"].clear()
        training.wait_for(training.newest() + 1)
        cut = time.monotonic()
        getattr(bed.wires, how)(node)

        def all_failed():  # a rank at the node itself may wait for news of what it has captured, and then hears them after healing
            return {*failed_ranks(training, lines), node} == {*range(RANKS)}

        try:
            job.until(all_failed, lambda: f"{name}: the other ranks fail: {training.last}", TAKEOVER_S if node == coordinator else FAIL_S)
        except AssertionError:
            if node != 0:  # without the engine what is captured waits for it, to its deadline
                raise
        failed = failed_ranks(training, lines)
        words = [f"{len(failed)} of {RANKS} ranks failed in {time.monotonic() - cut:.1f} s"]
        if node != 0:  # the others have the meta engine, and finish what was staged
            others = [n for n in range(NODES) if n != node]
            job.until(lambda: staged_is_listed(checker, others), lambda: f"{name}: what was staged is durable: {cluster.logs()}", 20)
            words.append(f"what was staged durable in {time.monotonic() - cut:.1f} s")
            before = checker.listed(others)
        healed = time.monotonic()
        bed.wires.heal(node)
        if node != 0:  # what came back has changed nothing; and then the job goes on
            after = checker.listed(others)
            assert {n: s for n, s in after.items() if n in before} == {n: s for n, s in before.items() if n in after}, f"{before} {after}"
        training.wait_run(HEAL_S)
        training.wait_for(training.newest("captured") + 2, limit_s=HEAL_S)
        words.append(f"saving again {time.monotonic() - healed:.1f} s after healing")
        training.pause()
        listed = checker.check()
        checker.check_told(listed, "staged")
        return f"{name}: {', '.join(words)}"


def staged_is_listed(checker, nodes):
    """What was staged is listed by these nodes."""
    try:
        checker.check_told(checker.listed(nodes), "staged")
    except (AssertionError, forebay.Error):
        return False
    return True


# ---- a coordinator that is stopped -----------------------------------------------------------------------------------------


def stored(cluster):
    """Every object below the bundle, with its bytes."""
    return {str(f.relative_to(cluster.store)): f.read_bytes() for f in (cluster.store / "t").rglob("*") if f.is_file()}


def live_stop(folder, point):
    """Node 1 coordinates and stops at the point of step 2; its successor ends the save; then it goes on, and changes nothing."""
    cluster = job.Cluster(folder / point, NODES)
    with cluster:

        def save(group, step):
            return job.save(group, "stop", step, [(f"own/{group.rank}", f"{step} {group.rank}".encode() * 20000, {})], copies=2).version

        assert job.good(job.ranks(cluster, RANKS, lambda group, rank: save(group, 1))) == [1] * RANKS
        cluster.kill(1)
        cluster.env[1] = {"FOREBAY_STOP_AT": point}
        cluster.start(1)
        with ThreadPoolExecutor(1) as pool:
            told = pool.submit(job.ranks, cluster, RANKS, lambda group, rank: save(group, 2), coordinator=1)
            job.until(lambda: state(cluster.daemons[1].pid) == "T", f"node-1 stops at {point}")
            stopped = time.monotonic()
            with cluster.connect(0) as fb:

                def listing():
                    return [(v.number, v.step) for v in fb.versions("stop")]

                def ended():
                    return not others_save(cluster) and (EARLY == point or [step for _, step in listing()] == [1, 2])

                job.until(ended, f"{point}: a successor ends the save", 30)
                took_s = time.monotonic() - stopped
                job.until(lambda: time.monotonic() > stopped + STOPPED_S, "it was stopped for long enough", STOPPED_S + 1)
                before, objects = listing(), stored(cluster)
                cluster.daemons[1].send_signal(signal.SIGCONT)
                results = told.result()
                cluster.wait_ready()
                job.until(lambda: not others_save(cluster, range(NODES)), "the zombie has ended its save", 30)
                assert listing() == before, f"{point}: {before} {listing()}"
                now = stored(cluster)
                assert {k: v for k, v in now.items() if k in objects} == objects, f"{point}: objects have changed"
                for rank in (0, 2):
                    assert results[rank] == before[-1][0] or EARLY == point and isinstance(results[rank], forebay.Error), f"{point}: {results}"
            more = sorted(k for k in now if k not in objects)
            number = job.good(job.ranks(cluster, RANKS, lambda group, rank: save(group, 3)))[0]
            assert cluster.verify_all()["stop"] == [*(n for n, _ in before), number]
            cluster.forebay("gc")
            assert not [key for key in stored(cluster) if key in more and "/p/" in key], "packs that no version names"
            return f"{point}: {len(before) - 1} saves ended by a successor in {took_s:.1f} s; rank 1 was told {results[1]!r}; left by the zombie: {more or 'nothing'}"


def others_save(cluster, nodes=(0, 2)):
    found = []
    for node in nodes:
        with cluster.connect(node) as fb:
            found += fb.status()["saves"]
    return found


def state(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


# ---- all of them ------------------------------------------------------------------------------------------------------------


def stopped_instead(nodes):
    return wires.Frozen("so that this way is tried, too")


LIVES = {f"cut:{how}-{node}-{coordinator}": (live_cut, how, node, coordinator) for how, node, coordinator in (CASES if LONG else SHORT)}
LIVES["cut:without-namespaces"] = (live_cut, "silence", 2, 1, stopped_instead)
LIVES |= {f"stop:{point}": (live_stop, point) for point in (POINTS if LONG else POINTS[2::2])}


@pytest.fixture(scope="module")
def lives(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cut")
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        yield {name: pool.submit(live, folder, *case) for name, (live, *case) in LIVES.items()}


@pytest.mark.parametrize("name", LIVES)
def test_what_is_cut_off_or_stopped_harms_nobody(lives, name):
    print(f"\n{lives[name].result()}", flush=True)
