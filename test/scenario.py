"""Scripts of faults, test/scenarios/*.scn, played on real daemons. The simulator plays the same files: forebay-sim --scenario FILE.

One thread goes through the lines. A daemon stops itself (FOREBAY_STOP_AT) each time it passes the point that the script's `at` lines name;
a second thread sees that, does what stands there, and lets it go on. Ranks are processes, forked from a server that has the library
loaded, so that they can be killed.
"""
import errno
import multiprocessing
import os
import random
import signal
import threading
import time
from pathlib import Path

import forebay

import job
import sick
import wires

FOLDER = Path(__file__).resolve().parent / "scenarios"
BUNDLE = "job/a"
BOTH_BYTES, SMALL_BYTES = 50_000, 8
PACK_FRONT = 4100  # a byte of a pack's first block lies here
STALL_MS = 1500
ENDS = {"FOREBAY_ESKIPPED": "skipped", "FOREBAY_ESUPERSEDED": "superseded", "FOREBAY_EUNINDEXED": "unindexed"}
NUMBERS = ("nodes", "copies", "bytes", "pool", "deadline")


class Script:
    """A file whose grammar the simulator has checked: settings, then lines of words with their numbers."""

    def __init__(self, path):
        self.path = path
        self.nodes, self.copies, self.bytes, self.pool, self.deadline = 3, 1, 200_000, 16, 60
        self.long = False
        self.policy, self.world, self.coordinator, self.ranks, self.lines = "wait", "both", 1, None, []
        for number, text in enumerate(path.read_text().splitlines(), 1):
            words = text.partition("#")[0].split()
            if words and (self.lines or not self.set(*words)):
                self.lines.append((number, words))
        self.ranks = self.ranks or list(range(self.nodes))
        self.coordinator = min(self.coordinator, self.nodes - 1)
        self.points = {words[1].partition(":")[0] for _, words in self.lines if words[0] == "at"}
        verbs = {word for _, words in self.lines for word in words}
        self.sick = bool(verbs & {"fill", "stall"})
        self.cut = "cut" in verbs

    def set(self, name, *values):
        if name in NUMBERS:
            setattr(self, name, int(values[0]))
        elif name in ("policy", "world"):
            setattr(self, name, values[0])
        elif name == "coordinator":
            self.coordinator = int(values[0][1:])
        elif name == "long":
            self.long = True
        elif name == "ranks":
            self.ranks = [int(value[1:]) for value in values]
        else:
            return False
        return True


def contents(step, n_ranks, shard):
    """The items of a step, whole: what all ranks have, shards, something small."""
    dice = random.Random(step)
    return {"both": dice.randbytes(BOTH_BYTES), "shards": dice.randbytes(n_ranks * shard), "small": dice.randbytes(SMALL_BYTES)}


# ---- ranks -----------------------------------------------------------------------------------------------------------------------


def rank_save(pipe, group, rank, step, n_ranks, shard, options):
    items = contents(step, n_ranks, shard)
    stage = "begin"
    try:
        with group.save(BUNDLE, step=step, **options) as saving:
            saving.add("both", items["both"])
            saving.add("shards", items["shards"][rank * shard :][:shard], shape=(n_ranks * shard,), start=(rank * shard,))
            saving.add("small", items["small"])
        for stage in ("captured", "staged", "durable"):
            getattr(saving, stage).wait()
            pipe.send((step, stage, ""))
    except forebay.Error as error:
        pipe.send((step, ENDS.get(error.name, "failed"), str(error)))


def rank_live(pipe, socket, name, run, rank, size, limit_s):
    """A rank's process: joins, then saves what it is told to."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        session = connect(socket, limit_s)
        group = session.join(name, run=run, rank=rank, size=size, timeout=limit_s)
    except forebay.Error as error:
        pipe.send((0, "failed", str(error)))
        return
    pipe.send((0, "joined", ""))
    try:
        while True:
            words = pipe.recv()
            threading.Thread(target=rank_save, args=(pipe, group, rank, *words), daemon=True).start()
    except EOFError:
        os._exit(0)


def connect(socket, limit_s):
    deadline = time.monotonic() + limit_s
    while True:
        try:
            return forebay.connect(socket)
        except forebay.Error:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def server():
    """Of processes that have all modules loaded."""
    here = str(Path(__file__).resolve().parent)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if here not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([here, *paths])
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["scenario"])
    return context


class Actor:
    """A rank's process, seen from here: what it said of each step, in order."""

    def __init__(self, context, *arguments):
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=rank_live, args=(theirs, *arguments), daemon=True)
        self.process.start()
        theirs.close()
        self.said, self.excused = {}, set()
        self.changed = threading.Condition()
        threading.Thread(target=self._hear, daemon=True).start()

    def _hear(self):
        try:
            while True:
                step, what, words = self.pipe.recv()
                with self.changed:
                    self.said.setdefault(step, []).append((what, words))
                    self.changed.notify_all()
        except (EOFError, OSError):
            pass

    def save(self, step, *arguments):
        self.said[step] = []
        self.pipe.send((step, *arguments))

    def hear(self, step, wanted, limit_s):
        """The first of `wanted` that it says of a step, with the words; None: its daemon or it was killed meanwhile."""
        deadline = time.monotonic() + limit_s
        with self.changed:
            while step not in self.excused:
                for what, words in self.said.get(step, []):
                    if what in wanted:
                        return what, words
                assert time.monotonic() < deadline, f"a rank says nothing of step {step} in {limit_s} s: {self.said}"
                self.changed.wait(0.1)
        return None

    def excuse(self):
        with self.changed:
            self.excused |= set(self.said)
            self.changed.notify_all()

    def kill(self):
        self.excuse()
        self.process.kill()
        self.process.join(job.LIMIT_S)
        self.pipe.close()


# ---- the play --------------------------------------------------------------------------------------------------------------------

ENDED = ("durable", "failed", "skipped", "superseded", "unindexed")


class Play:
    """One script on a cluster of its own."""

    def __init__(self, script, folder, context):
        assert len(script.points) < 2, f"{script.path}: a daemon halts at one point only, not at {script.points}"
        self.script, self.context, self.limit_s = script, context, script.deadline
        self.cluster = job.Cluster(folder, script.nodes, pool=script.pool * job.MIB, key=random.randbytes(32))
        self.sick, self.wires = [], None
        if script.cut:
            self.wires = wires.wires(script.nodes)
            self.wires.place(self.cluster)
        for node in range(script.nodes):
            if script.sick:
                self.sick.append(sick.Sick(self.cluster.folder, f"sick-{node}"))
                self.cluster.env[node].update(self.sick[node].env())
            for point in script.points:
                self.cluster.env[node]["FOREBAY_STOP_AT"] = f"{point}:*"
        self.group = job.unique()
        self.runs, self.actors, self.first = 0, [], None
        self.armed = []  # [passes left, line, words]
        self.wanted, self.stopped, self.apart = set(), set(), set()
        self.deed_at, self.took_s, self.over, self.broken = None, None, False, None

    def run(self):
        """Seconds from the last deed at a point to the end that was expected then; None: there was none."""
        watcher = threading.Thread(target=self.watch, daemon=True)
        line = "start"
        try:
            watcher.start()
            self.wanted = set(range(self.script.nodes))
            self.cluster.start()
            for number, words in self.script.lines:
                line = f"{self.script.path.name}:{number}: {' '.join(words)}"
                self.play(number, words)
        except (AssertionError, forebay.Error) as error:
            raise AssertionError(f"{line}: {error}\n{self.cluster.logs()}") from error
        finally:
            self.over = True
            watcher.join(job.LIMIT_S)
            for actor in self.actors + ([self.first] if self.first else []):
                actor.kill()
            self.cluster.__exit__()
            if self.wires:
                self.wires.close()
        return self.took_s

    def play(self, number, words):
        verb, *more = words
        if verb == "at":
            point, _, count = more[0].partition(":")
            self.armed.append([int(count or 1), number, more[1:]])
        elif hasattr(self, f"do_{verb}"):
            getattr(self, f"do_{verb}")(*more)
        else:
            self.deed(*words)

    def watch(self):
        """Lets daemons that halted at the point go on, after what is to be done there."""
        while not self.over:
            for node, daemon in enumerate(self.cluster.daemons):
                if daemon and node not in self.stopped and self.has_stopped(daemon.pid):
                    self.pass_point()
                    if node not in self.stopped and self.cluster.running(node):
                        daemon.send_signal(signal.SIGCONT)
            time.sleep(0.001)

    def has_stopped(self, pid):
        try:
            return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG) is not None
        except ChildProcessError:
            return False

    def pass_point(self):
        for armed in self.armed:
            armed[0] -= 1
            if armed[0] == 0:
                try:
                    self.deed(*armed[2])
                except Exception as error:  # the other thread shall hear of it
                    self.broken = error
                self.deed_at = time.monotonic()

    # ---- deeds

    def deed(self, verb, whom="", *_):
        node = int(whom[1:]) if whom.startswith("n") else None
        daemon = self.cluster.daemons[node] if node is not None else None
        if verb == "kill" and node is None:
            self.actors[int(whom[1:])].kill()
        elif verb == "kill":
            self.wanted.discard(node)
            for actor, place in zip(self.actors, self.script.ranks):
                if place == node:
                    actor.excuse()
            daemon.kill()
        elif verb == "start":
            self.cluster.kill(node)  # waits until the last one is gone
            self.wanted.add(node)
            self.cluster.launch(node)
        elif verb == "term":
            self.wanted.discard(node)
            daemon.send_signal(signal.SIGTERM)
        elif verb == "stop":
            self.stopped.add(node)
            self.apart.add(node)
            daemon.send_signal(signal.SIGSTOP)
        elif verb == "continue":
            daemon.send_signal(signal.SIGCONT)
            self.stopped.discard(node)
            self.apart.discard(node)
        elif verb == "cut":
            self.apart.add(node)
            if isinstance(self.wires, wires.Frozen):
                self.stopped.add(node)
            self.wires.silence(node)
        elif verb == "heal":
            self.wires.heal(node)
            self.stopped.discard(node)
            self.apart.discard(node)
        elif verb == "fill":
            path = self.cluster.meta if whom == "index" else self.cluster.store
            self.sick[node or 0].fail("write", "create", "link", "mkdir", error=errno.ENOSPC, path=f"{path}/")
        elif verb == "stall":
            self.sick[node].slow("read", "write", ms=STALL_MS, path=f"{self.cluster.store}/")
        elif verb == "free":
            for control in self.sick:
                control.heal()
        else:
            raise AssertionError(f"\"{verb}\" is not known")

    def do_rot(self):
        packs = [path for path in self.cluster.store.rglob("*") if path.parent.name == "p" and path.is_file()]
        assert packs
        for path in packs:
            with open(path, "r+b") as file:
                file.seek(PACK_FRONT)
                byte = file.read(1)
                file.seek(PACK_FRONT)
                file.write(bytes([byte[0] ^ 1]))

    # ---- the job

    def begin(self, node, run, rank, size):
        return Actor(self.context, self.cluster.socket(node), self.group, run, rank, size, self.limit_s)

    def joined(self, actors):
        for actor in actors:
            what, words = actor.hear(0, ("joined", "failed"), self.limit_s)
            assert what == "joined", words

    def do_run(self):
        for actor in self.actors:
            actor.kill()
        if not self.runs:
            self.first = self.begin(self.script.coordinator, "before", 0, 1)
            self.joined([self.first])
        self.runs += 1
        self.actors = [self.begin(node, str(self.runs), i, len(self.script.ranks)) for i, node in enumerate(self.script.ranks)]
        self.joined(self.actors)

    def do_save(self, step):
        if not self.actors:
            self.do_run()
        options = {"copies": self.script.copies, "policy": self.script.policy}
        for actor in self.actors:
            if actor.process.is_alive():
                actor.save(int(step), len(self.actors), self.script.bytes, options)

    def do_captured(self, step, stage="captured"):
        for actor in self.offered(step):
            what, words = actor.hear(int(step), (stage, *ENDED[1:]), self.limit_s) or (stage, "")
            assert what == stage, words

    def do_staged(self, step):
        self.do_captured(step, "staged")

    def offered(self, step):
        return [actor for actor in self.actors if int(step) in actor.said and int(step) not in actor.excused]

    def do_expect(self, step, end, *words):
        living = 0
        for actor in self.offered(step):
            what, said = actor.hear(int(step), ENDED, self.limit_s) or (None, "")
            living += what is not None
            assert what in (None, end), f"{what}: {said}"
            for word in words if what else ():
                word = f"node-{word[1:]}" if word[0] == "n" and word[1:].isdigit() else word
                assert word in said, said
        assert living, "no rank lives that offered it"
        self.note_recovery()

    def note_recovery(self):
        if self.deed_at:
            self.took_s = max(self.took_s or 0, time.monotonic() - self.deed_at)
        self.deed_at = None

    # ---- the cluster

    def do_reached(self):
        job.until(lambda: all(armed[0] <= 0 for armed in self.armed), "the point is reached", self.limit_s)
        assert not self.broken, repr(self.broken)
        self.armed = []

    def living(self):
        return sorted(self.wanted - self.apart)

    def do_ready(self):
        def views():
            found = []
            for node in self.living():
                assert self.cluster.running(node), f"node-{node} has ended"
                try:
                    with self.cluster.connect(node) as fb:
                        fb.list()
                        found.append({n["name"]: (n["incarnation"], n["up"]) for n in fb.status()["nodes"]})
                except forebay.Error:
                    return None
            return all(view == found[0] and sum(up for _, up in view.values()) == len(found) for view in found)

        job.until(views, "all nodes are ready", self.limit_s)

    def do_gone(self, whom):
        daemon = self.cluster.daemons[int(whom[1:])]
        job.until(lambda: daemon.poll() is not None, f"{whom} ends", self.limit_s)
        assert daemon.returncode == 0, f"{whom} ended with {daemon.returncode}"

    def read(self, fb, entry):
        with fb.open(BUNDLE, entry.number) as version:
            whole = contents(entry.step, len(self.script.ranks), self.script.bytes)
            assert {item.name: version.read(item.name) for item in version.items()} == whole, f"step {entry.step} has other bytes"

    def do_steps(self, *steps):
        """On every node that lives, as soon as it says so: they are listed, have the bytes that were offered, and verify."""
        for node in self.living():
            seen = None

            def agrees():
                nonlocal seen
                try:
                    with self.cluster.connect(node) as fb:
                        entries = fb.versions(BUNDLE)
                        seen = [entry.step for entry in entries]
                        if seen != list(map(int, steps)):
                            return False
                        for entry in entries:
                            self.read(fb, entry)
                        return entries
                except forebay.Error as error:
                    seen = str(error)
                    return False

            entries = job.until(agrees, lambda: f"node-{node} lists steps {steps}: {seen}", self.limit_s)
        self.note_recovery()
        for entry in entries:
            self.cluster.forebay("verify", f"{BUNDLE}@{entry.number}", node=node)

    def do_load(self, end="", *words):
        for node in self.living():
            with self.cluster.connect(node) as fb:
                said = ""
                try:
                    self.read(fb, fb.versions(BUNDLE)[-1])
                except forebay.Error as error:
                    said = error.name
                assert bool(said) == (end == "failed") and all(word in said for word in words), f"node-{node}: {said}"
