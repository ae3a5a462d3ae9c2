"""Clusters of real daemons, and jobs on them, for the end-to-end tests.

Cluster starts daemons as children of the test and ends only those. ranks() is a job whose ranks are threads with sessions of
their own; spawn() starts one that is a process, which can be killed. Nothing here sleeps for a fixed time: until() waits.
"""
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import forebay

BUILD = Path(os.environ.get("FOREBAY_BUILD", Path(__file__).resolve().parents[1] / "build"))
LIMIT_S = 60  # for anything that is waited for
MIB = 1 << 20


def until(condition, what, limit_s=LIMIT_S):
    """Calls `condition` until it returns something true, and returns that. what: words, or a call that yields them."""
    deadline = time.monotonic() + limit_s
    while True:
        result = condition()
        if result:
            return result
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what() if callable(what) else what}"
        time.sleep(0.005)


def free_port():
    """Not one that the kernel gives to connections: a daemon that is down for a moment must find its own free again."""
    while True:
        port = random.randrange(20000, 30000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def du(folder):
    """Bytes of all files below `folder`, as du sees them."""
    return sum(f.stat().st_blocks * 512 for f in Path(folder).rglob("*") if f.is_file())


class Cluster:
    """Daemons node-0 (with the meta engine) to node-N below `folder`. As a context it starts them, and kills what is left."""

    def __init__(self, folder, nodes, pool=64 * MIB, key=None, more=""):
        self.folder, self.nodes = Path(folder), nodes
        self.store, self.meta = self.folder / "store", self.folder / "meta"
        self.daemons = [None] * nodes
        self.env = [{} for _ in range(nodes)]  # more of each daemon's environment
        self.inside = [[] for _ in range(nodes)]  # the command that each daemon's command is given to
        port = free_port()
        self.store.mkdir(parents=True)
        for node in range(nodes):
            home = self.folder / f"node-{node}"
            home.mkdir()
            settings = {
                "node": f"node-{node}",
                "cluster": self.folder.name,
                "listen": f"tcp:127.0.0.1:{0 if node else port}",
                "socket": self.socket(node),
                "store": f"dir:{self.store}",
                "meta": f"tcp:127.0.0.1:{port}" if node else f"lmdb:{self.meta}",
                "pool": pool,
            }
            if key:
                (home / "key").write_bytes(key)
                (home / "key").chmod(0o600)
                settings["key"] = home / "key"
            text = "".join(f"{name} = {value}\n" for name, value in settings.items())
            (home / "config").write_text(text + more.format(home=home))

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *exception):
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def socket(self, node):
        return str(self.folder / f"node-{node}" / "socket")

    def connect(self, node=0):
        return forebay.connect(self.socket(node))

    def running(self, node):
        return self.daemons[node] is not None and self.daemons[node].poll() is None

    def launch(self, *nodes, die_at=None):
        """Starts daemons, all by default, and does not wait for them. die_at: the point at which they end themselves."""
        for node in nodes or range(self.nodes):
            home = self.folder / f"node-{node}"
            env = {**os.environ, **self.env[node], **({"FOREBAY_DIE_AT": die_at} if die_at else {})}
            with open(home / "log", "ab") as log:
                command = [*self.inside[node], BUILD / "forebayd", "--config", home / "config"]
                self.daemons[node] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log, env=env)

    def start(self, *nodes, die_at=None):
        self.launch(*nodes, die_at=die_at)
        self.wait_ready()

    def kill(self, *nodes, number=signal.SIGKILL):
        """Ends daemons, all by default, and waits until they are gone."""
        ended = [self.daemons[node] for node in nodes or range(self.nodes) if self.running(node)]
        for daemon in ended:
            daemon.send_signal(number)
        for daemon in ended:
            daemon.wait(LIMIT_S)

    def stop(self):
        self.kill(number=signal.SIGTERM)
        assert all(daemon.returncode == 0 for daemon in self.daemons), self.logs()

    def logs(self):
        return "\n".join((self.folder / f"node-{n}" / "log").read_text(errors="replace")[-4000:] for n in range(self.nodes))

    def views(self):
        """What each daemon says of all nodes; None if one does not answer, or has not joined."""
        views = []
        for node in range(self.nodes):
            assert self.running(node), f"node-{node} has ended:\n{self.logs()}"
            try:
                with self.connect(node) as fb:
                    fb.list()
                    views.append({n["name"]: (n["incarnation"], n["address"], n["up"]) for n in fb.status()["nodes"]})
            except forebay.Error as error:
                self.words = str(error)
                return None
        return views

    def wait_ready(self):
        """Until every daemon serves and sees all others as they are since their last start."""

        views = None

        def agree():
            nonlocal views
            views = self.views()
            if not views or any(view != views[0] for view in views):
                return False
            return len(views[0]) == self.nodes and all(up for _, _, up in views[0].values())

        self.words = ""
        until(agree, lambda: f"all daemons are ready: {self.words} {views}")

    def run(self, *words, node=0, limit_s=LIMIT_S):
        """The command forebay, with its output as text."""
        env = {**os.environ, "FOREBAY_SOCKET": self.socket(node)}
        return subprocess.run([BUILD / "forebay", *map(str, words)], env=env, capture_output=True, text=True, timeout=limit_s)

    def forebay(self, *words, node=0):
        """Its output, when it must succeed."""
        done = self.run(*words, node=node)
        assert done.returncode == 0, f"forebay {' '.join(map(str, words))}: {done.stderr}"
        return done.stdout

    def long(self, *words):
        """The same of a command that has much to do."""
        done = self.run(*words, limit_s=1800)
        assert done.returncode == 0, f"forebay {' '.join(map(str, words))}: {done.stderr}"
        return done.stdout

    def verify_all(self):
        """Every version that is listed verifies; gives their numbers by bundle."""
        bundles = json.loads(self.forebay("ls", "-r", "--json"))["bundles"]
        listed = {b["name"]: [v["number"] for v in b["versions"]] for b in bundles}
        for bundle, numbers in listed.items():
            for number in numbers:
                self.forebay("verify", f"{bundle}@{number}")
        return listed


def unique(stem="job"):
    return f"{stem}-{uuid.uuid4().hex[:12]}"


def ranks(cluster, size, body, name=None, run="0", coordinator=None, join_size=None):
    """Runs body(group, rank) as each of `size` ranks, rank i at node i modulo the nodes. A list: what each returned or raised.

    coordinator: the node that shall coordinate the group; by default who comes first. join_size: what ranks say that the size is.
    """
    name = name or unique()
    results = [None] * size
    first = None
    if coordinator is not None:  # who joins alone has the group's lease, and keeps it over runs
        first = cluster.connect(coordinator)
        first.join(name, run="before", rank=0, size=1, timeout=LIMIT_S)

    def live(rank):
        try:
            with cluster.connect(rank % cluster.nodes) as fb:
                group = fb.join(name, run=run, rank=rank, size=join_size or size, timeout=LIMIT_S)
                results[rank] = body(group, rank)
        except BaseException as error:
            results[rank] = error

    threads = [threading.Thread(target=live, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if first:
        first.close()
    return results


def good(results):
    """The results, none of which may be a failure."""
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def save(group, bundle, step, pieces, limit_s=LIMIT_S, **options):
    """Saves (name, data, {more arguments of add}) and waits until it is durable. Gives the finished save."""
    with group.save(bundle, step=step, **options) as saving:
        for name, data, more in pieces:
            saving.add(name, data, **more)
    saving.durable.wait(limit_s)
    return saving


class Rank:
    """A rank that is a process: it runs `source` with sys.argv[1:] = words. What it prints can be waited for, line by line."""

    def __init__(self, source, *words):
        command = [sys.executable, "-c", source, *map(str, words)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines = []
        self.reader = threading.Thread(target=lambda: self.lines.extend(map(str.strip, self._read())), daemon=True)
        self.reader.start()

    def _read(self):
        return iter(self.process.stdout.readline, "")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.kill()

    def wait_for(self, line):
        def seen():
            return line in self.lines or self.process.poll() is not None

        until(seen, f'the rank prints "{line}"')
        until(lambda: line in self.lines or not self.reader.is_alive(), "its last words")
        assert line in self.lines, f"the rank has ended: {self.lines}"

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.process.kill()
        self.process.wait(LIMIT_S)
