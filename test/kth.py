"""The k-th call of a kind fails once, in a real process: an allocation, a file call or a socket call of a daemon or of the command line.

As a program: kth.py [RUNS [SEED]] tries so many and says what it found; kth.py WHO KIND K tries one.
"""
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import forebay

import job
import sick

KINDS = {"memory": ["memory"], "file": sick.FILES, "socket": ["socket"]}
LIMIT_S = 20  # for what must end, in words or not
BUNDLE = "ckpt"


def content(step):
    dice = random.Random(step)
    return {"w": dice.randbytes(90_000), "b": dice.randbytes(200)}


def save(session, step, run):
    with session.join("job", run=run, rank=0, size=1, timeout=LIMIT_S) as group:
        with group.save(BUNDLE, step=step) as saving:
            for name, data in content(step).items():
                saving.add(name, data)
        saving.durable.wait(LIMIT_S)
        return saving.version


def read(session, number, step):
    with session.open(BUNDLE, number) as version:
        found = {item.name: bytearray(item.nbytes) for item in version.items()}
        load = session.load(version)
        for name, data in found.items():
            load.into(name, data)
        load.submit().wait(LIMIT_S)
        assert found == content(step)


def stacks_of(pid):
    """Where a process that hangs is, if there is a debugger to tell."""
    if not shutil.which("gdb"):
        return ""
    command = ["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt 12"]
    return "\n".join(line for line in subprocess.run(command, capture_output=True, text=True).stdout.splitlines() if line[:1] in "#T")


class Trial:
    """A cluster of one node below `folder`, whose daemon or whose command line is sick."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.control = sick.Sick(folder)
        self.cluster = job.Cluster(self.folder / "c", 1)
        self.durable, self.attempts = {}, 0

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.cluster.__exit__()

    def attempt(self, what, *args):
        """Calls it: what it returned, or None if it failed in words. A call that lasts too long is a failure of ours."""
        begin = time.monotonic()
        try:
            return what(*args)
        except forebay.Error as error:
            self.words = str(error)
            assert error.name != "ETIMEDOUT" or time.monotonic() - begin < LIMIT_S, f"{what.__name__} hangs: {error}"
            assert self.words and error.name != "E?", f"{what.__name__}: {error!r} says nothing"
            return None

    def save(self):
        self.attempts += 1
        step = self.attempts
        with self.cluster.connect() as session:
            number = save(session, step, f"run {step}")
            self.durable[number] = step
            return number

    def check(self):
        with self.cluster.connect() as session:
            listed = {version.number: version.step for version in session.versions(BUNDLE)} if self.durable else {}
            for number, step in self.durable.items():
                assert listed.get(number) == step, f"version {number} is missing: {listed}"
                read(session, number, step)

    # ---- a sick daemon ----

    def await_daemon(self):
        """True once it is ready; False when it has said that it cannot start."""
        deadline = time.monotonic() + LIMIT_S
        while self.cluster.running(0):
            try:
                with self.cluster.connect() as session:
                    session.list()
                    return True
            except forebay.Error as error:
                assert time.monotonic() < deadline, f"the daemon is not ready: {error}\n{self.cluster.logs()}"
                time.sleep(0.01)
        assert self.cluster.daemons[0].returncode in (1, 2), f"the daemon ended with {self.cluster.daemons[0].returncode}\n{self.cluster.logs()}"
        assert "forebayd: " in self.cluster.logs(), "it ended without a word"
        return False

    def end_daemon(self):
        self.cluster.daemons[0].send_signal(signal.SIGTERM)
        try:
            status = self.cluster.daemons[0].wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the daemon does not end\n{self.cluster.logs()}") from None
        assert status in (0, 3), f"the daemon ended with {status}\n{self.cluster.logs()}"

    def daemon(self, kind, k):
        """Gives how many calls there were, and whether one failed."""
        self.control.fail(*KINDS[kind], error=-1, after=k, times=1) if k >= 0 else self.control.count(*KINDS[kind])
        self.cluster.env[0] = self.control.env()
        self.cluster.launch()
        if self.await_daemon():
            for _ in range(2):
                self.attempt(self.save)
            self.attempt(self.check)
            assert self.cluster.running(0), f"the daemon has died: {self.cluster.daemons[0].returncode}\n{self.cluster.logs()}"
            seen = self.control.seen, self.control.failed
            assert self.attempt(self.save) or self.attempt(self.save), f"nothing works any more: {self.words}\n{self.cluster.logs()}"
            self.end_daemon()
        else:
            seen = self.control.seen, self.control.failed
        self.cluster.env[0] = {}
        self.cluster.start()
        self.check()
        assert self.save()
        return seen

    # ---- a sick command ----

    def command(self, *words, status=(0, 1)):
        env = {**os.environ, "FOREBAY_SOCKET": self.cluster.socket(0), **self.control.env()}
        command = [sick.BUILD / "forebay", *map(str, words)]
        with open(self.folder / "stdout", "w") as out, open(self.folder / "stderr", "w") as err:
            done = subprocess.Popen(command, env=env, stdout=out, stderr=err, stdin=subprocess.DEVNULL)
        try:
            done.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            stacks = stacks_of(done.pid)
            done.kill()
            done.wait()
            raise AssertionError(f"forebay {words[0]} hangs\n{stacks}") from None
        done.stderr = (self.folder / "stderr").read_text()
        assert done.returncode in status, f"forebay {words[0]}: exit {done.returncode}: {done.stderr}"
        if done.returncode:
            assert "forebay" in done.stderr, f"forebay {words[0]} fails without a word"
        return done

    def cli(self, kind, k):
        source, out = self.folder / "source", self.folder / "out"
        source.mkdir()
        for name, data in content(1).items():
            (source / name).write_bytes(data)
        self.cluster.start()
        counted = 0
        for words in (("put", "files", source), ("get", "files", out), ("ls", "-r"), ("verify", "files")):
            if k >= 0:
                self.control.fail(*KINDS[kind], error=-1, after=max(0, k - counted), times=int(counted <= k))
            else:
                self.control.count(*KINDS[kind])
            done = self.command(*words, status=(0, 1, 2) if words[0] == "verify" else (0, 1))
            counted += self.control.seen
            self.control.heal()
            if done.returncode:  # again, in health
                shutil.rmtree(out, ignore_errors=True) if words[0] == "get" else None
                self.command(*words, status=(0,))
        assert {path.name: path.read_bytes() for path in out.rglob("*") if path.is_file()} == content(1)
        assert self.cluster.running(0)
        return counted, k >= 0


def run(who, kind, k):
    """None, or what went wrong. k -1: counts the calls only, and gives their number."""
    with tempfile.TemporaryDirectory(prefix="fb-kth-") as folder, Trial(folder) as trial:
        try:
            seen, _ = getattr(trial, who)(kind, k)
            return seen if k < 0 else None
        except (AssertionError, forebay.Error, TimeoutError, subprocess.SubprocessError) as error:
            return f"{who} {kind} {k}: {type(error).__name__}: {error}" if k >= 0 else 0


def run_many(runs, seed=0, enough=20):
    """Evenly over who and kind, each at random calls. What went wrong."""
    dice = random.Random(seed)
    places = [(who, kind) for who in ("daemon", "cli") for kind in KINDS]
    counts = {place: run(*place, -1) for place in places}
    assert all(counts.values()), f"not every kind of call was counted: {counts}"
    wrong = []
    for i in range(runs):
        place = places[i % len(places)]
        words = run(*place, dice.randrange(counts[place]))
        wrong += [words] if words else []
        if len(wrong) >= enough:
            break
    return wrong, counts


def main():
    if len(sys.argv) == 4:
        wrong = run(sys.argv[1], sys.argv[2], int(sys.argv[3]))
        print(wrong or "good")
        return bool(wrong)
    runs, seed = (list(map(int, sys.argv[1:])) + [200, 0][len(sys.argv) - 1 :])[:2]
    begin = time.monotonic()
    wrong, counts = run_many(runs, seed)
    for words in wrong:
        print(words)
    print(f"calls: {', '.join(f'{who} {kind} {n}' for (who, kind), n in counts.items())}")
    print(f"{runs} failing calls: {len(wrong)} wrong, {time.monotonic() - begin:.0f} s")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
