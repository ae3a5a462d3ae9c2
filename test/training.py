"""A job of trainer.c's ranks on a cluster of real daemons that are killed, and what must hold when it is quiet again.

Training starts the ranks and reads what they were told. Checker compares that with what is listed, reads every version whole, and measures
the store and the daemons. Each fault that it finds is an AssertionError in words. Nobody here waits without a deadline.
"""
import collections
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import forebay

import job

KEEP = 8  # versions that the rule leaves, so that the store and the checks stay small
BUNDLE = "ckpt/a"
PROGRESS_S = 90  # from the last restart until a save that began after it is durable
ENTRY_BYTES = 64 << 10  # of a version beside its packs: root, slot, segments
QUIET_S = 60
STORY_LINES = 60


class Training:
    """Ranks that are processes, rank i at node i modulo the nodes. A rank that ended is started again by tend()."""

    def __init__(self, cluster, ranks, bundle=BUNDLE, **env):
        self.cluster, self.size, self.bundle = cluster, ranks, bundle
        self.folder = cluster.folder / bundle.replace("/", "-")
        self.folder.mkdir()
        for rank in range(ranks):
            (self.folder / f"rank-{rank}").touch()
        self.env = {**os.environ, **env}
        self.ranks = [None] * ranks
        self.read_bytes = [0] * ranks
        self.told = {stage: collections.OrderedDict() for stage in ("captured", "staged", "durable")}  # step: version or True
        self.failures = collections.Counter()  # by the error's name
        self.runs, self.paused, self.last, self.lines = 0, set(), [""] * ranks, [[] for _ in range(ranks)]

    def __enter__(self):
        self.tend()
        return self

    def __exit__(self, kind, *exception):
        if kind:
            print(self.story())
        for rank in self.ranks:
            if rank:
                rank.kill()
                rank.wait(job.LIMIT_S)

    def story(self):
        """The last words of ranks and daemons, and what is listed: for whoever looks into a failure."""
        parts = []
        for name in [f"{self.folder}/rank-{rank}" for rank in range(self.size)] + [
            f"{self.cluster.folder}/node-{node}/log" for node in range(self.cluster.nodes)
        ]:
            parts += [f"--- {name}", *Path(name).read_text(errors="replace").splitlines()[-STORY_LINES:]]
        if self.cluster.running(0):
            parts += ["--- listed", self.cluster.run("ls", "-r").stdout]
        return "\n".join(parts)

    def _command(self, rank):
        return [job.BUILD / "trainer", "train", self.folder, self.cluster.socket(rank % self.cluster.nodes), self.bundle, rank, self.size]

    def _start(self, rank):
        with open(self.folder / f"rank-{rank}", "ab") as out:
            self.ranks[rank] = subprocess.Popen(list(map(str, self._command(rank))), stdin=subprocess.DEVNULL, stdout=out, env=self.env)

    def tend(self):
        """Starts ranks that are not there, and hears what all have said."""
        for rank, process in enumerate(self.ranks):
            if process and process.poll() is not None:
                self.hear()
                assert process.returncode == -signal.SIGKILL, f"rank {rank} ended with {process.returncode}: {self.last}"
            if not process or process.poll() is not None:
                self.paused.discard(rank)
                self._start(rank)
        self.hear()

    def hear(self):
        for rank in range(self.size):
            with open(self.folder / f"rank-{rank}", "rb") as out:
                out.seek(self.read_bytes[rank])
                whole = out.read().rpartition(b"\n")[0]
            self.read_bytes[rank] += len(whole) + bool(whole)
            for line in whole.decode(errors="replace").splitlines():
                self._hear_line(rank, line)

    def _hear_line(self, rank, line):
        self.last[rank] = line
        self.lines[rank].append(line)
        word, _, rest = line.partition(" ")
        assert word != "WRONG", f"rank {rank}: {rest}"
        if word in self.told:
            step, *version = map(int, rest.split())
            self.told[word][step] = version[0] if version else True
        elif word == "failed":
            self.failures[rest.split()[1]] += 1
        elif word == "run":
            self.runs += 1
        self.paused.discard(rank)
        if word == "paused":
            self.paused.add(rank)

    def newest(self, stage="durable"):
        self.hear()
        return max(self.told[stage], default=0)

    def wait_for(self, step, stage="durable", limit_s=PROGRESS_S):
        def reached():
            self.tend()
            return self.newest(stage) >= step

        job.until(reached, lambda: f"step {step} is {stage}: {self.last}\n{self.cluster.logs()}", limit_s)

    def wait_run(self, limit_s=PROGRESS_S):
        """Until a run has begun after now, and a save of it is durable."""
        runs = self.runs

        def begun():
            self.tend()
            return self.runs >= runs + self.size

        job.until(begun, lambda: f"a new run begins: {self.last}\n{self.cluster.logs()}", limit_s)

    def check_bytes(self, number, step):
        """The version has the bytes of its step."""
        words = ["check", self.folder, self.cluster.socket(number % self.cluster.nodes), self.bundle, number, self.size]
        done = subprocess.run([job.BUILD / "trainer", *map(str, words)], capture_output=True, text=True, timeout=job.LIMIT_S)
        assert done.returncode == 0 and f"right {number} {step}\n" in done.stdout, f"version {number}: {done.stdout}"

    def pause(self):
        """Until no rank has a session, and no daemon a save."""
        (self.folder / "pause").touch()

        def quiet():
            self.tend()
            return len(self.paused) == self.size and not saves(self.cluster)

        job.until(quiet, lambda: f"it is quiet: {self.last} {saves(self.cluster)}\n{self.cluster.logs()}", QUIET_S)

    def go_on(self):
        self.paused.clear()
        (self.folder / "pause").unlink(missing_ok=True)


class TorchTraining(Training):
    """A job of trainer_torch.py's ranks: when one ends, all do, and the next run begins."""

    run = 0

    def tend(self):
        self.hear()
        if all(rank and rank.poll() is None for rank in self.ranks):
            return
        for rank in filter(None, self.ranks):
            rank.kill()
            rank.wait(job.LIMIT_S)
        self.hear()
        self.run, self.port = self.run + 1, job.free_port()
        self.paused.clear()
        for rank in range(self.size):
            self._start(rank)

    def _command(self, rank):
        script = Path(__file__).with_name("trainer_torch.py")
        return [sys.executable, script, self.folder, self.cluster.socket(rank % self.cluster.nodes), self.bundle, rank, self.size, self.run, self.port]

    def check_bytes(self, number, step):
        from trainer_torch import state_of  # noqa: PLC0415: torch takes seconds to load

        with self.cluster.connect(number % self.cluster.nodes) as fb, fb.open(self.bundle, number) as version:
            for rank in range(self.size):
                for name, tensor in state_of(step, rank).items():
                    assert version.read(name) == tensor.numpy().tobytes(), f"version {number}: {name} is not of step {step}"


def saves(cluster):
    """Saves that any daemon takes part in."""
    found = []
    for node in range(cluster.nodes):
        if cluster.running(node):
            try:
                with cluster.connect(node) as fb:
                    found += [(node, save) for save in fb.status()["saves"]]
            except forebay.Error as error:
                found.append((node, str(error)))
    return found


Figures = collections.namedtuple("Figures", "resident sockets others threads")


def figures(pid):
    """Resident bytes, anonymous and shared (its pool, too), descriptors of sockets and others, threads."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    resident = sum(int(status[name].split()[0]) << 10 for name in ("RssAnon", "RssShmem"))
    links = descriptors(pid)
    return Figures(resident, links.pop("socket:[N]", 0), sum(links.values()), int(status["Threads"]))


class Checker:
    """Of one Training. Versions that were read whole once are only verified later on."""

    def __init__(self, training, keep=KEEP, listening=2):
        self.training, self.cluster, self.keep = training, training.cluster, keep
        self.listening = listening  # sockets of a daemon: for clients, for peers
        self.first = {}  # figures of each daemon's life when it was quiet for the first time, by pid
        self.most = Figures(0, 0, 0, 0)
        self.store_ratio = 0.0

    def listed(self, nodes=None):
        """{number: step}, the same on all nodes. The rule may not have been applied to all of them yet."""
        views = []

        def settled():
            views.clear()
            for node in range(self.cluster.nodes) if nodes is None else nodes:
                with self.cluster.connect(node) as fb:
                    views.append({v.number: v.step for v in fb.versions(self.training.bundle)})
            return all(view == views[0] for view in views)

        job.until(settled, lambda: f"nodes list the same versions: {views}", QUIET_S)
        return views[0]

    def check_told(self, listed, stage="durable"):
        """What a rank was told to be durable is there, unless so many newer ones are."""
        for step, number in self.training.told[stage].items():
            if step in listed.values():
                continue
            newer = [n for n in listed if n > number] if number is not True else [s for s in listed.values() if s > step]
            assert len(newer) >= self.keep, f"step {step}, version {number}, was {stage} and is lost: {listed}"

    def check_whole(self, listed):
        """Each version that is listed has the bytes of its step, and verifies; unless the rule has deleted it meanwhile."""
        for number, step in listed.items():
            try:
                self._check_version(number, step)
            except (AssertionError, forebay.Error):
                if number in self.listed():
                    raise

    def _check_version(self, number, step):
        t = self.training
        t.check_bytes(number, step)
        verified = self.cluster.run("verify", f"{t.bundle}@{number}")
        assert verified.returncode == 0, f"verify {number}: {verified.stdout}{verified.stderr}"

    def check_store(self):
        """After a collection: at most twice what is live, and a pack of each node."""
        counts = json.loads(self.cluster.forebay("gc", "--json"))
        assert counts["packs_missing"] == 0 and not counts["unclear"], counts
        with self.cluster.connect() as fb:
            stored = [v.stored_bytes for v in fb.versions(self.training.bundle)]
        files = stored_files(self.cluster)
        used = sum(files.values())
        pack = max((size for f, size in files.items() if f.parent.name == "p"), default=0)
        bound = 2 * sum(stored) + pack * self.cluster.nodes + ENTRY_BYTES * len(stored)
        self.store_ratio = max(self.store_ratio, used / max(1, sum(stored)))
        assert used <= bound, f"the store has {used} bytes, may have {bound}: {len(stored)} versions of {sum(stored)} bytes; {counts}"
        # A rule may be putting a tombstone just now.
        job.until(lambda: not temporaries(self.cluster), lambda: f"no temporaries are left: {temporaries(self.cluster)}", QUIET_S)

    def check_daemons(self):
        """No daemon has more descriptors or threads than when it was quiet for the first time, and no more sockets than it needs."""
        sockets = self.listening + 4 * (self.cluster.nodes - 1)  # with each peer control and bulk, from either side
        for node, daemon in enumerate(self.cluster.daemons):
            first = self.first.setdefault(daemon.pid, figures(daemon.pid))

            now = first

            def settled():
                nonlocal now
                now = figures(daemon.pid)
                return now.sockets <= sockets and now.others <= first.others and now.threads <= first.threads

            job.until(settled, lambda: f"node-{node} grew: {first} {now} {descriptors(daemon.pid)}", QUIET_S)
            self.most = Figures(*map(max, self.most, now))

    def check(self, store=True):
        """All of it; the job is paused. After the engine's start a collection waits for ten seconds, hence store=False."""
        self.cluster.wait_ready()
        listed = self.listed()
        self.check_told(listed)
        self.check_whole(listed)
        if store:
            self.check_store()
        self.check_daemons()
        return listed


def stored_files(cluster):
    """{path: bytes} of all files of the store, but for those that go meanwhile."""
    files = {}
    for path in cluster.store.rglob("*"):
        try:
            if path.is_file():
                files[path] = path.stat().st_size
        except FileNotFoundError:
            pass
    return files


def temporaries(cluster):
    return [f.name for f in stored_files(cluster) if f.parent.name == ".tmp"]


def descriptors(pid):
    """What a process has open, and how many of each, for words."""
    links = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            links.append(re.sub(r"\d{4,}", "N", os.readlink(f"/proc/{pid}/fd/{fd}")))
        except OSError:
            pass
    return dict(collections.Counter(links))
