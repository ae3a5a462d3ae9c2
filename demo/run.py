"""The main job, from an empty folder to restored weights: what `make demo` runs once everything is installed and built.

Starts a cluster of 8 daemons below --dir, trains on 8 ranks (train.py), kills a rank in the middle of a save, kills all
daemons, restores on 8 ranks and on 3, exports, compares everything, prints what each save cost, and cleans up. Exit
status 0 only if every comparison held. Ends only processes that it started, by their process ids.
"""
import argparse
import contextlib
import hashlib
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

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "demo"
NODES = 8
FEWER = 3  # ranks of the second restore
STEPS, SAVE_EVERY = 6, 2
VICTIM = 5  # this rank dies in the save after the last step
COPIES = 2
BUNDLE = "demo/minilm"
MARKER = "made-by-forebay-demo"
JOB_DEADLINE_S = 240
STOP_DEADLINE_S = 20
MIB = 1 << 20


class Failed(Exception):
    """A step of the demo did not do what it must."""


def say(text: str) -> None:
    print(f"[{time.monotonic() - BEGIN:6.1f} s] {text}", flush=True)


def check(holds: bool, claim: str) -> None:
    if not holds:
        raise Failed(claim)
    say(f"   ok: {claim}")


def wait_until(condition, deadline_s: float, what: str) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise Failed(f"{what}: not within {deadline_s:.0f} s")
        time.sleep(0.1)


def runs(pid: int, command: str) -> bool:
    """Whether process `pid` lives and has `command` in its command line; a number may have been given away since."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in "ZX" and command.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill(pid: int, command: str) -> None:
    if runs(pid, command):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def undisturbed():
    """Postpones Ctrl-C: what is being started must be known before it can be ended."""
    arrived = []
    handlers = {n: signal.signal(n, lambda *_: arrived.append(True)) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if arrived:
            raise KeyboardInterrupt


class Cluster:
    """NODES daemons, made and ended by `forebay up` and `forebay down`."""

    def __init__(self, forebay: Path, folder: Path) -> None:
        self._forebay, self.folder = forebay, folder

    def run(self, *words: str, quiet: bool = False) -> subprocess.CompletedProcess:
        """Runs the command line tool against node 0 and shows what it prints."""
        environment = {**os.environ, "FOREBAY_SOCKET": str(self.socket(0))}
        result = subprocess.run(
            [self._forebay, *words], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True, timeout=120,
        )
        if not quiet:
            say(f"   $ forebay {' '.join(words)}")
            print("".join(f"           {line}\n" for line in result.stdout.splitlines()), end="", flush=True)
        return result

    def up(self) -> None:
        with undisturbed():
            result = self.run("up", "--nodes", str(NODES), "--dir", str(self.folder))
        if result.returncode:
            raise Failed("forebay up")

    def down(self) -> None:
        self.run("down", "--dir", str(self.folder), quiet=True)
        for pid in self.pids():
            kill(pid, "forebayd")

    def socket(self, node: int) -> Path:
        return self.folder / f"node-{node}" / "socket"

    def pids(self) -> list[int]:
        return [int(path.read_text()) for path in sorted(self.folder.glob("node-*/pid")) if path.read_text().strip()]

    def kill(self) -> None:
        """SIGKILL to every daemon, as a power cut would."""
        pids = self.pids()
        for pid in pids:
            kill(pid, "forebayd")
        wait_until(lambda: not any(runs(pid, "forebayd") for pid in pids), STOP_DEADLINE_S, "daemons gone")
        say(f"   killed daemons {' '.join(map(str, pids))}")


class Job:
    """One torchrun of train.py."""

    def __init__(self, folder: Path, name: str, ranks: int, *arguments: str) -> None:
        self.report = folder / f"report-{name}"
        self.report.mkdir()
        self._ranks, self._name = ranks, name
        environment = {
            **os.environ,
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "python"), os.environ.get("PYTHONPATH")])),
        }
        with (self.report / "log").open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", "--nnodes=1", f"--nproc-per-node={ranks}",
                 "--master-addr=127.0.0.1", f"--master-port={free_port()}", f"--rdzv-id={uuid.uuid4()}",
                 str(HERE / "train.py"), "--dir", str(folder), "--report", str(self.report), *arguments],
                env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def events(self, event: str, rank: int = 0) -> list[dict]:
        path = self.report / f"rank-{rank}.jsonl"
        text = path.read_text() if path.exists() else ""
        lines = text[: text.rfind("\n") + 1].splitlines()  # the last one may be half written
        return [entry for entry in map(json.loads, lines) if entry["event"] == event]

    def event(self, event: str, rank: int = 0) -> dict:
        entries = self.events(event, rank)
        if not entries:
            raise Failed(f"rank {rank} reported no {event!r}")
        return entries[-1]

    def alive(self) -> bool:
        return self._process.poll() is None

    def wait(self, expect_failure: bool = False) -> None:
        wait_until(lambda: not self.alive(), JOB_DEADLINE_S, f"job {self._name}")
        if (self._process.returncode != 0) != expect_failure:
            print("".join((self.report / "log").read_text().splitlines(keepends=True)[-40:]))
            raise Failed(f"job {self._name}: torchrun ended with status {self._process.returncode}")

    def stop(self) -> None:
        """Ends torchrun and its ranks, whatever they do."""
        pids = [entry["pid"] for rank in range(self._ranks) for entry in self.events("started", rank)]
        if self.alive():
            self._process.terminate()
        for pid in pids:
            kill(pid, "train.py")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_DEADLINE_S)
        if self.alive():
            self._process.kill()
            self._process.wait()


def free_port() -> int:
    """Not one that the kernel gives to connections: it has to be free still when torchrun has started."""
    while True:
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", random.randrange(20000, 30000))) as server:
            return server.getsockname()[1]


# ---- rates of this machine, for the bounds


def copy_hash_rate(session) -> float:
    """Bytes a second at which one rank alone, with one core's worth of work, gets captured: copy, BLAKE3, CRC32C."""
    data = os.urandom(64 * MIB)
    group = session.join("demo-rate", run=str(uuid.uuid4()), rank=0, size=1)
    best = 0.0
    for step in range(3):
        with group.save("demo/rate", step=step) as save:
            save.add("random", data)
            begin = time.monotonic()
        save.captured.wait()
        best = max(best, len(data) / (time.monotonic() - begin))
        save.durable.wait()
    return best


def loopback_rate() -> float:
    """Bytes a second over one TCP connection on the loopback interface, in messages of 1 MiB."""
    total, message = 512 * MIB, bytearray(MIB)

    def send() -> None:
        with socket.create_connection(server.getsockname()) as out:
            for _ in range(total // len(message)):
                out.sendall(message)

    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = threading.Thread(target=send)
        sender.start()
        received, buffer = 0, bytearray(MIB)
        connection, _ = server.accept()
        begin = time.monotonic()
        with connection:
            while n := connection.recv_into(buffer):
                received += n
        sender.join()
    return received / (time.monotonic() - begin)


def disk_rate(folder: Path) -> float:
    """Bytes a second of writing 256 MiB in pieces of 8 MiB and an fsync."""
    path, piece = folder / "rate", os.urandom(8 * MIB)
    begin = time.monotonic()
    with path.open("wb", buffering=0) as file:
        for _ in range(32):
            file.write(piece)
        os.fsync(file.fileno())
    rate = 32 * len(piece) / (time.monotonic() - begin)
    path.unlink()
    return rate


# ---- the steps


def train(job: Job) -> dict[int, dict[str, str]]:
    """Steps 2 and 3: trains, kills VICTIM in its last save. Returns the digests of each save by step."""
    marker = job.report / "halted"
    shown = 0

    def halted() -> bool:
        nonlocal shown
        for entry in job.events("step")[shown:]:
            say(f"   step {entry['step']}: loss {entry['shown']:.4f}")
            shown += 1
        return not job.alive() or (marker.exists() and marker.read_text() != "")

    wait_until(halted, JOB_DEADLINE_S, "training")
    if not job.alive():
        job.wait()
        raise Failed("training ended before the rank was killed")
    pid = int(marker.read_text())
    say(f"3. rank {VICTIM} has offered half of its part of the save of step {STEPS}: SIGKILL to process {pid}")
    kill(pid, "train.py")
    job.wait(expect_failure=True)
    survivor = 0 if VICTIM else 1
    check(True, f"rank {survivor} was told: {job.event('failed', survivor)['error']}")
    return {entry["step"]: entry["digests"] for entry in job.events("saved")}


def compare_restored(job: Job, digests: dict[str, str], number: int, step: int) -> None:
    restored, found = job.events("restored")
    check(restored["version"] == number and restored["step"] == step, f"restored version {number}, step {step}")
    wrong = [name for name, digest in digests.items() if found["digests"].get(name) != digest]
    check(not wrong and len(found["digests"]) == len(digests), f"all {len(digests)} tensors equal by SHA-256 {wrong[:3]}")


def compare_losses(ran: Job, repeated: Job, step: int) -> None:
    for rank in range(NODES):
        before = {entry["step"]: entry["loss"] for entry in ran.events("step", rank)}
        after = {entry["step"]: entry["loss"] for entry in repeated.events("step", rank)}
        same = after and all(before[step] == loss for step, loss in after.items())
        if not same:
            raise Failed(f"rank {rank}: losses {after} are not those of the uninterrupted run {before}")
    check(True, f"losses of the next steps, {', '.join(map(str, sorted(after)))}, are equal bit for bit on {NODES} ranks")


def compare_export(cluster: Cluster, number: int, digests: dict[str, str]) -> None:
    from safetensors import safe_open

    folder = cluster.folder / "export"
    result = cluster.run("export", f"{BUNDLE}@{number}", str(folder), "--format", "safetensors")
    check(result.returncode == 0, "exported")
    equal = 0
    for path in sorted(folder.rglob("*.safetensors")):
        with safe_open(str(path), "pt") as file:
            for name in set(file.keys()) & set(digests):
                if sha256(file.get_tensor(name)) != digests[name]:
                    raise Failed(f"{path.name}: {name} differs from what was saved")
                equal += 1
    check(equal == len(digests), f"the safetensors library reads {equal} tensors of {len(digests)}, equal by SHA-256")


def sha256(tensor) -> str:
    import ctypes

    tensor = tensor.contiguous()
    memory = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr()) if tensor.nbytes else b""
    return hashlib.sha256(memory).hexdigest()


def table(job: Job, rates: dict[str, float], store_before: int) -> None:
    """What each save cost. A bound is the time that its bytes need at this machine's rates, all cores at work."""
    cores = min(NODES, len(os.sched_getaffinity(0)))
    offers = {entry["step"]: entry for entry in job.events("offered")}
    print("\n  megabytes (10^6), seconds; bound: at " + ", ".join(f"{k} {v / 1e9:.2f} GB/s" for k, v in rates.items()))
    print("  step  offered   unique captured     sent    grown | captured  bound |  staged  bound | durable  bound")
    growth_ok = True
    for entries in zip(*(job.events("durable", rank) for rank in range(NODES))):
        first, step = entries[0], entries[0]["step"]
        offered, unique = offers[step]["offered_bytes"], offers[step]["unique_bytes"]
        captured = sum(e["stats"].get("captured_bytes", 0) for e in entries)  # each rank's own
        sent = entries[0]["stats"].get("sent_bytes", 0)  # the group's: every rank is told the same
        grown, store_before = first["store_bytes"] - store_before, first["store_bytes"]
        growth_ok &= grown <= 1.01 * unique + MIB
        hashed = captured if first["stats"].get("plan_reused") else offered  # without the hint every rank hashes all it offers
        bounds = {"captured": hashed / (rates["copy+hash"] * cores)}
        bounds["staged"] = max(bounds["captured"], sent / rates["loopback"])
        bounds["durable"] = max(bounds["staged"], grown / rates["disk"])
        line = f"  {step:4}" + "".join(f"{n / 1e6:9.1f}" for n in (offered, unique, captured, sent, grown))
        for stage, bound in bounds.items():
            line += f" | {max(e[f'{stage}_s'] for e in entries):7.2f}{bound:7.2f}"
        print(line)
    print(flush=True)
    check(growth_ok, "the store grew by at most 1.01 x unique + 1 MiB in each save")


def demo(cluster: Cluster, jobs: list[Job]) -> None:
    import forebay

    def job(name: str, ranks: int, *arguments: str) -> Job:
        with undisturbed():
            jobs.append(Job(cluster.folder, name, ranks, *arguments))
        return jobs[-1]

    say(f"1. {NODES} daemons, embedded meta engine, directory store, all below {cluster.folder}")
    cluster.up()
    session = forebay.connect(str(cluster.socket(0)))
    rates = {"copy+hash": copy_hash_rate(session), "loopback": loopback_rate(), "disk": disk_rate(cluster.folder)}
    del session
    store_before = disk_usage(cluster.folder / "store")

    say(f"2. {NODES} ranks train all-MiniLM-L6-v2 for {STEPS} steps, saving every {SAVE_EVERY}nd")
    training = job(
        "train", NODES, "--steps", str(STEPS), "--save-every", str(SAVE_EVERY), "--copies", str(COPIES),
        "--halt", f"{VICTIM}:{STEPS}",
    )  # fmt: skip
    digests = train(training)
    last = training.event("durable")
    number, step = last["version"], last["step"]
    cluster.run("ls", "-r", BUNDLE)
    session = forebay.connect(str(cluster.socket(0)))
    latest = session.open(BUNDLE, "latest")
    check((latest.number, latest.step) == (number, step), f"latest is version {number}, of step {step}")
    latest.close()
    del session
    check(cluster.run("verify", f"{BUNDLE}@{number}").returncode == 0, "it is whole")

    say("4. SIGKILL to all daemons; start them again; restore")
    cluster.kill()
    cluster.up()
    again = job("restore-8", NODES, "--version", "latest", "--steps", str(STEPS - step))
    again.wait()
    say(f"   on {NODES} ranks in {again.events('restored')[0]['seconds']:.2f} s")
    compare_restored(again, digests[step], number, step)
    compare_losses(training, again, step)
    fewer = job("restore-3", FEWER, "--version", "latest")
    fewer.wait()
    say(f"   on {FEWER} ranks in {fewer.events('restored')[0]['seconds']:.2f} s")
    compare_restored(fewer, digests[step], number, step)

    say("5. export to safetensors")
    compare_export(cluster, number, digests[step])

    say("6. what the saves cost")
    table(training, rates, store_before)


def disk_usage(folder: Path) -> int:
    """Bytes on disk below `folder`, as du counts them."""
    return sum(os.lstat(os.path.join(path, name)).st_blocks * 512 for path, _, names in os.walk(folder) for name in names)


def find_forebay(given: str | None) -> Path:
    found = [Path(given)] if given else [p for p in sorted((ROOT / "build").rglob("forebay")) if p.is_file()]
    if not found or not os.access(found[0], os.X_OK):
        raise SystemExit("forebay: command line tool not found; build first, or pass --forebay PATH")
    return found[0].resolve()


def clean(cluster: Cluster) -> None:
    """Ends what an earlier or this run left below the folder, and removes it. Touches no folder that the demo did not make."""
    if not cluster.folder.exists():
        return
    if not (cluster.folder / MARKER).exists():
        raise SystemExit(f"{cluster.folder}: not made by the demo; move it away or pass --dir")
    cluster.down()
    shutil.rmtree(cluster.folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", type=Path, default=ROOT / "demo-run")
    parser.add_argument("--forebay", help="the command line tool; by default the one below build/")
    parser.add_argument("--keep", action="store_true", help="leave the folder, without its daemons, for a look")
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT / "python"))
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background jobs are born deaf to Ctrl-C
        signal.signal(number, signal.default_int_handler)
    cluster, jobs = Cluster(find_forebay(args.forebay), args.dir.resolve()), []
    clean(cluster)
    cluster.folder.mkdir(parents=True)
    (cluster.folder / MARKER).touch()
    status = 1
    try:
        demo(cluster, jobs)
        status = 0
    except Failed as failure:
        say(f"FAILED: {failure}")
    except KeyboardInterrupt:
        say("interrupted")
        status = 130
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not leave anything running
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for job in jobs:
            job.stop()
        if args.keep:
            cluster.down()
        else:
            clean(cluster)
    say("done: everything as it must be, and nothing left running" if status == 0 else "ended")
    return status


BEGIN = time.monotonic()
if __name__ == "__main__":
    raise SystemExit(main())
