"""What those who watch a cluster see: metrics that move by the right amounts, and readiness that says what is wrong."""
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from exposition import Exposition, address, fetch, scrape
from place import BUILD, FOREBAY, ROOT, Cluster, wait_until

sys.path.insert(0, str(ROOT / "python"))
import forebay  # noqa: E402
import job  # noqa: E402

MIB = 1 << 20
NODES = 3
LIMIT_S = 30
SOON_S = 20  # for what has to be answered without the index: 8 s at most on an idle machine. Who waits for the index waits 30


@pytest.fixture(scope="module")
def three(make_folder) -> Iterator[Cluster]:
    own = Cluster(make_folder() / "cluster")
    try:
        own.up(NODES)
        yield own
    finally:
        own.end()


class Moves:
    """How far each series has moved since this was made, all nodes together."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.before = [scrape(cluster.folder, node) for node in range(NODES)]

    def __call__(self, *names: str) -> list[float]:
        now = [scrape(self.cluster.folder, node) for node in range(NODES)]
        return [sum(a[name] - b[name] for a, b in zip(now, self.before)) for name in names]


def save(cluster: Cluster, bundle: str, items: dict[str, bytes], copies: int = 1, step: int = 1, node: int = 0) -> int:
    with forebay.connect(cluster.socket(node)) as fb, fb.join(bundle, run=f"r{step}", rank=0, size=1) as group:
        with group.save(bundle, step=step, copies=copies) as one:
            for name, data in items.items():
                one.add(name, data)
        one.durable.wait(LIMIT_S)
        return one.version


def load(cluster: Cluster, bundle: str, names: list[str], node: int) -> list[bytes]:
    with forebay.connect(cluster.socket(node)) as fb, fb.open(bundle) as version:
        return [version.read(name) for name in names]


# ---- metrics ---------------------------------------------------------------------------------------------------------------------


def test_a_save_moves_each_counter_by_what_it_did(three):
    noise, moved = os.urandom(3 * MIB), Moves(three)
    version = save(three, "moves", {"noise": noise, "again": noise[:MIB], "zeros": bytes(2 * MIB)}, copies=2)
    assert version == 1
    assert moved("saves_begun_total", *(f'save_states_total{{state="{s}"}}' for s in ("planned", "capturing", "captured", "staged"))) == [1] * 5
    assert moved(*(f'saves_ended_total{{outcome="{o}"}}' for o in ("durable", "unindexed", "failed"))) == [1, 0, 0]
    for station in ("gather", "plan", "reserve", "capture", "stage", "publish"):
        assert moved(f'save_station_seconds_count{{station="{station}"}}') == [1], station
    offered, unique, holes, stored = moved(*(f'save_bytes_total{{what="{w}"}}' for w in ("offered", "unique", "holes", "stored")))
    assert (offered, unique, holes) == (6 * MIB, 6 * MIB, 2 * MIB)
    assert moved("captured_bytes_total", "copied_bytes_total") == [4 * MIB, 4 * MIB]
    (uploaded,) = moved("uploaded_bytes_total")
    assert 4 * MIB <= uploaded < 4 * MIB + 64 * 1024 and stored <= uploaded
    assert moved("blocks_refused_total", "store_errors_total", "meta_errors_total", 'frames_refused_total{reason="damaged"}') == [0] * 4
    roots, slots, begun, committed = moved(*(f'store_request_seconds_count{{operation="{o}"}}' for o in ("put", "head", "begin", "commit")))
    assert roots >= 2 and begun == committed >= 1 and slots >= 0
    assert moved('meta_requests_total{operation="transaction"}')[0] >= 2
    assert sum(scrape(three.folder, node)["leases"] for node in range(NODES)) >= 1


def test_a_load_is_counted_where_its_bytes_came_from(three):
    data = os.urandom(2 * MIB)
    save(three, "loads", {"w": data}, node=0)
    moved = Moves(three)
    assert load(three, "loads", ["w"], node=1) == [data]
    store, peer, pool = moved(*(f'read_bytes_total{{source="{s}"}}' for s in ("store", "peer", "pool")))
    assert store + peer == 2 * MIB
    assert moved("blocks_verified_total")[0] >= 1
    assert load(three, "loads", ["w"], node=1) == [data]
    assert moved('read_bytes_total{source="store"}', 'read_bytes_total{source="peer"}') == [store, peer]
    assert moved('read_bytes_total{source="pool"}')[0] >= pool + 2 * MIB


def test_a_save_that_fails_is_counted_as_such(three):
    moved = Moves(three)
    with forebay.connect(three.socket()) as fb, fb.join("fails", run="1", rank=0, size=1) as group:
        first = group.save("fails", step=1)
        first.add("w", os.urandom(1000), shape=(2000,), start=(0,))
        first.add("w", os.urandom(1000), shape=(2000,), start=(500,))
        with pytest.raises(forebay.Error, match="overlap"):
            first.submit()
            first.captured.wait(LIMIT_S)
    wait_until(lambda: moved('saves_ended_total{outcome="failed"}') == [1], LIMIT_S, "the save has failed")
    assert moved("saves_begun_total", 'saves_ended_total{outcome="durable"}') == [1, 0]
    assert moved('log_lines_total{level="warn"}')[0] >= len(re.findall(r" warn save\.end .* group=fails ", all_logs(three))) == 1


def test_clients_come_stop_and_go(three):
    def clients(which: str) -> Callable[[], float]:
        return lambda: scrape(three.folder, 2)[which]

    before = clients("clients")()
    code = "import forebay, sys; fb = forebay.connect(); print('here', flush=True); sys.stdin.read()"
    env = {**os.environ, "FOREBAY_SOCKET": str(three.socket(2)), "PYTHONPATH": str(ROOT / "python")}
    child = subprocess.Popen([sys.executable, "-c", code], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "here\n"
        assert clients("clients")() == before + 1 and clients("clients_stopped")() == 0
        child.send_signal(signal.SIGSTOP)
        wait_until(lambda: clients("clients_stopped")() == 1, LIMIT_S, "it is stopped")

        def told() -> dict[str, int]:
            return {node["name"]: node["clients_stopped"] for node in json.loads(three.run("status", "--json").stdout)["nodes"]}

        wait_until(lambda: told() == {"node-0": 0, "node-1": 0, "node-2": 1}, LIMIT_S, "node-0 has heard of it")
        wait_until(lambda: re.search("^node-2 +up, 1 stopped ", three.run("status").stdout, re.M), LIMIT_S, "node-0 says so")
        assert clients("clients")() == before + 1
        child.send_signal(signal.SIGCONT)
        wait_until(lambda: clients("clients_stopped")() == 0, LIMIT_S, "it goes on")
    finally:
        child.kill()
        child.wait()
    wait_until(lambda: clients("clients")() == before, LIMIT_S, "it is gone")


def test_garbage_on_the_socket_is_counted(three):
    moved = Moves(three)
    for _ in range(3):
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(LIMIT_S)
            s.connect(str(three.socket(1)))
            s.sendall(b"GET / HTTP/1.1\r\n\r\n".ljust(64, b"\0"))  # as long as a frame's head
            assert s.recv(1) == b""
    assert moved('frames_refused_total{reason="malformed"}', 'frames_refused_total{reason="version"}') == [3, 0]


def test_gauges_say_what_there_is(three):
    got = scrape(three.folder, 0)
    for arena in ("capture", "read"):
        size, used, clean, free = (got[f'pool_{what}{{arena="{arena}"}}'] for what in ("bytes", "used_bytes", "clean_bytes", "free_bytes"))
        assert size == 32 * MIB and used + clean + free == size
    pid = three.pids()[0]
    assert got["open_descriptors"] == pytest.approx(len(os.listdir(f"/proc/{pid}/fd")), abs=4)
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    assert got["resident_bytes"] == pytest.approx(resident, rel=0.05)
    assert MIB // 4 < got["heap_bytes"] < resident
    assert got["generation"] == 1 and got["up_seconds"] > 0 and got["loop_turn_seconds_count"] > 0
    assert got['http_requests_total{code="200"}'] >= 1


def test_each_name_of_the_page_is_served_and_no_other(three):
    page = (ROOT / "docs" / "metrics.md").read_text()
    named = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `forebay_")}
    assert named == set(scrape(three.folder, 0).kinds)


def test_the_reader_is_strict():
    good = '# HELP forebay_a Words.\n# TYPE forebay_a counter\nforebay_a{k="v"} 1\n'
    assert Exposition(good)['a{k="v"}'] == 1
    for bad in (
        good[:-1],
        good + 'forebay_a{k="v"} 2\n',
        good + "forebay_b 1\n",
        good.replace("counter", "rate"),
        good.replace(" 1", " -1"),
        good.replace(" 1", " x"),
        good.replace("# TYPE forebay_a counter\n", ""),
        good.replace(" Words.", " "),
        good.replace('"v"', "v"),
        '# HELP forebay_h W.\n# TYPE forebay_h histogram\nforebay_h_bucket{le="1"} 2\nforebay_h_bucket{le="+Inf"} 1\nforebay_h_sum 1\nforebay_h_count 1\n',
        '# HELP forebay_h W.\n# TYPE forebay_h histogram\nforebay_h_bucket{le="1"} 1\nforebay_h_sum 1\nforebay_h_count 1\n',
    ):
        with pytest.raises((AssertionError, KeyError, ValueError)):
            Exposition(bad)


# ---- readiness --------------------------------------------------------------------------------------------------------------------


def becomes(cluster: Cluster, node: int, status: int, words: str) -> None:
    seen: list[object] = []

    def is_it() -> bool:
        seen[:] = fetch(address(cluster.folder, node), "/readyz")
        return seen[0] == status and words in seen[1]

    try:
        wait_until(is_it, LIMIT_S, "readiness")
    except AssertionError:
        raise AssertionError(f"{status} with {words!r} was expected, the last answer was {seen}") from None


def test_a_node_is_ready_while_all_that_it_needs_is_there(cluster):
    cluster.up(NODES)
    for node in range(NODES):
        assert fetch(address(cluster.folder, node), "/readyz") == (200, "ready\n")
        assert fetch(address(cluster.folder, node), "/healthz") == (200, "alive\n")

    temporaries = cluster.folder / "store" / ".tmp"
    temporaries.rename(cluster.folder / "elsewhere")
    temporaries.write_text("not a folder: nothing can be written")
    becomes(cluster, 1, 503, "store: ")
    temporaries.unlink()
    (cluster.folder / "elsewhere").rename(temporaries)
    becomes(cluster, 1, 200, "ready")

    os.kill(cluster.pids()[0], signal.SIGSTOP)  # the node with the meta engine
    becomes(cluster, 1, 503, "meta engine: ")
    assert fetch(address(cluster.folder, 1), "/healthz")[0] == 200
    os.kill(cluster.pids()[0], signal.SIGCONT)
    becomes(cluster, 1, 200, "ready")

    before = scrape(cluster.folder, 0)["peers_lost_total"]
    cluster.kill(2)
    becomes(cluster, 0, 200, "ready")  # one that is lost does not make the others useless
    cluster.kill(1)
    becomes(cluster, 0, 503, "peers: none of the 2 other nodes answers")
    got = scrape(cluster.folder, 0)
    assert (got['peers{state="up"}'], got['peers{state="down"}'], got["peers_lost_total"] - before) == (0, 2, 2)
    cluster.up()
    becomes(cluster, 0, 200, "ready")


def test_a_session_whose_daemon_is_stopped_hears_soon_that_its_status_does_not_come(cluster):
    cluster.up(1)
    with forebay.connect(cluster.socket(0)) as session:
        os.kill(cluster.pids()[0], signal.SIGSTOP)
        try:
            begin = time.monotonic()
            with pytest.raises(forebay.Error) as caught:
                session.status()
        finally:
            os.kill(cluster.pids()[0], signal.SIGCONT)
        assert caught.value.name == "ETIMEDOUT" and time.monotonic() - begin < LIMIT_S
        assert session.status()["nodes"]  # the session lives on


def test_a_node_whose_index_is_missing_says_so(cluster):
    cluster.up(1)
    cluster.down()
    for path in (cluster.folder / "meta").iterdir():
        path.unlink()
    cluster.up(status=1)
    log = (cluster.folder / "node-0" / "log").read_text()
    where = [word for word in log.split() if word.startswith("http=127.")][-1].removeprefix("http=")
    status, words = fetch(where, "/readyz")
    assert status == 503 and "forebay meta rebuild" in words
    cluster.run("meta", "rebuild")
    wait_until(lambda: fetch(where, "/readyz") == (200, "ready\n"), LIMIT_S, "ready")


def test_up_keeps_the_addresses(three):
    env = (three.folder / "env").read_text()
    assert f"export FOREBAY_HTTP={address(three.folder, 0)}\n" in env
    assert len({address(three.folder, node) for node in range(NODES)}) == NODES
    nodes = json.loads(three.run("status", "--json").stdout)["nodes"]
    assert [node["http"] for node in nodes] == [address(three.folder, node) for node in range(NODES)]


def test_an_address_that_cannot_be_is_refused_in_words(three, make_folder):
    config = make_folder() / "config"
    config.write_text((three.folder / "node-1" / "config").read_text().replace("node-1/socket", "node-1/another").replace("node = node-1", "node = other"))
    result = subprocess.run([BUILD / "forebayd", "--config", config, "--http", "everywhere"], capture_output=True, text=True, timeout=LIMIT_S)
    assert result.returncode == 1
    assert 'forebayd: http: "everywhere" is not allowed; it must be PORT or ADDRESS:PORT' in result.stderr


# ---- why and top --------------------------------------------------------------------------------------------------------------------

STATIONS = ["gather", "plan", "reserve", "capture", "verdict", "copy", "keep", "staged", "slot", "packs", "segments", "root", "index", "told"]


def wait_until_some(look: Callable[[], list], what: str) -> list:
    found: list = []

    def some() -> bool:
        found[:] = look()
        return bool(found)

    wait_until(some, LIMIT_S, what)
    return found


def why(cluster: Cluster, what: str, node: int = 0) -> dict:
    env = {**cluster.environment(), "FOREBAY_SOCKET": str(cluster.socket(node))}

    def ask() -> list[dict]:
        told = json.loads(cluster.run("why", what, "--json", env=env).stdout)
        return [] if told["silent"] else told["saves"]  # a node that is busy may not answer within a second

    (one,) = wait_until_some(ask, "all nodes answer")
    return one


def under_way(cluster: Cluster, bundle: str) -> list[dict]:
    now = json.loads(cluster.run("top", "--once", "--json").stdout)
    return [save for save in now["saves"] if save["bundle"] == bundle and not save["ended"]]


def test_why_names_the_rank_that_all_waited_for(three):
    with forebay.connect(three.socket(0)) as a, forebay.connect(three.socket(1)) as b, ThreadPoolExecutor() as pool:
        late = pool.submit(b.join, "waits", run="1", rank=1, size=2)
        first, second = a.join("waits", run="1", rank=0, size=2), late.result(LIMIT_S)
        saves = [group.save("waits", step=7, copies=2) for group in (first, second)]
        for rank, one in enumerate(saves):
            one.add(f"w{rank}", os.urandom(MIB))
        saves[0].submit()
        (seen,) = wait_until_some(lambda: under_way(three, "waits"), "the save is seen under way")
        begun = time.monotonic()  # it gathers by now, since some time
        assert (seen["state"], seen["station"], seen["slowest"]) == ("gathering", "gather", "gather")
        assert seen["step"] == 7 and seen["ranks"] == 2
        assert [save["state"] for save in under_way(three, "waits")] == ["gathering"]
        waited_ns = int((time.monotonic() - begun) * 1e9)
        saves[1].submit()
        for one in saves:
            one.durable.wait(LIMIT_S)
        version = saves[0].version
        id_of_save = seen["save"]

    wait_until(lambda: why(three, id_of_save)["ended"], LIMIT_S, "all were told")
    told = why(three, id_of_save)
    assert told == why(three, f"waits@{version}", node=2) == why(three, "waits", node=1)
    assert told["state"] == "durable" and told["version"] == version and told["ended"] and told["copies"] == 2
    assert told["slowest"] == "gather" and told["unique_bytes"] == told["offered_bytes"] == 2 * MIB <= told["stored_bytes"]
    stations = told["stations"]
    assert [station["station"] for station in stations] == STATIONS
    assert [station["at_ns"] for station in stations] == sorted(station["at_ns"] for station in stations)
    assert sum(station["took_ns"] for station in stations) == pytest.approx(told["took_ns"], abs=1e6)
    by_name = {station["station"]: station for station in stations}
    assert by_name["gather"]["took_ns"] >= waited_ns
    (last,) = by_name["gather"]["nodes"]
    assert last["node"] == "node-1" and last["last_rank"] == 1
    assert {(hop["node"], hop["bytes"], hop["last_rank"]) for hop in by_name["capture"]["nodes"]} == {("node-0", MIB, 0), ("node-1", MIB, 1)}
    assert sum(hop["bytes"] for hop in by_name["copy"]["nodes"]) == 2 * MIB
    assert sum(hop["bytes"] for hop in by_name["packs"]["nodes"]) >= 2 * MIB

    shown = three.run("why", id_of_save).stdout
    assert re.search(r"^slowest: gather, .* of .*; node node-1 took .*: rank 1 offered last$", shown, re.M), shown
    assert re.search(rf"^save {id_of_save}: step 7 of waits, group waits, durable as version {version} after ", shown), shown


def test_why_tells_of_a_save_that_failed_and_where_it_was(three):
    with forebay.connect(three.socket()) as fb, fb.join("breaks", run="1", rank=0, size=1) as group:
        one = group.save("breaks", step=1)
        one.add("w", os.urandom(1000), shape=(2000,), start=(0,))
        one.add("w", os.urandom(1000), shape=(2000,), start=(500,))
        with pytest.raises(forebay.Error, match="overlap"):
            one.submit()
            one.captured.wait(LIMIT_S)
    log = wait_until_some(lambda: re.findall(r"save\.end .*save=(\w+) group=breaks .*state=failed", all_logs(three)), "it ended")
    wait_until(lambda: why(three, log[0])["ended"], LIMIT_S, "all were told")
    told = why(three, log[0])
    assert told["state"] == "failed" and "overlap" in told["words"] and told["version"] == 0
    assert [station["station"] for station in told["stations"]] == ["gather", "plan"]
    assert "it failed: " in three.run("why", log[0]).stdout


def test_why_after_the_coordinator_was_lost_is_told_by_its_successor(make_folder):
    with job.Cluster(make_folder() / "c", 3) as cluster, ExitStack() as sessions:
        cluster.kill(1)
        cluster.start(1, die_at="save-staged")
        coordinator = sessions.enter_context(cluster.connect(1))
        coordinator.join("lost", run="before", rank=0, size=1, timeout=LIMIT_S)
        ends = [sessions.enter_context(cluster.connect(node)) for node in (0, 2)]
        with ThreadPoolExecutor() as pool:
            joining = [pool.submit(fb.join, "lost", run="1", rank=rank, size=2, timeout=LIMIT_S) for rank, fb in enumerate(ends)]
            groups = [one.result(LIMIT_S) for one in joining]
        saves = [group.save("lost", step=7, copies=2) for group in groups]
        for rank, one in enumerate(saves):
            one.add(f"w{rank}", os.urandom(MIB))
            one.submit()
        for one in saves:
            one.durable.wait(LIMIT_S)
        log = [(cluster.folder / f"node-{node}" / "log").read_text() for node in (0, 2)]
        (resumed,) = [(node, found) for node, text in zip((0, 2), log) for found in re.findall(r"save\.resumed .*save=(\w+) group=lost", text)]
        successor, id_of_save = resumed

        def told(what, node=0):
            return json.loads(cluster.forebay("why", what, "--json", node=node))

        wait_until(lambda: told(id_of_save)["saves"][0]["ended"], LIMIT_S, "all were told")
        for what in (id_of_save, "lost", "lost@1"):
            for node in (0, 2):
                assert told(what, node) == told(id_of_save), what
        (one,) = told(id_of_save)["saves"]
        assert (one["coordinator"], one["state"], one["version"], one["step"], one["ranks"]) == (f"node-{successor}", "durable", 1, 7, 2)
        assert one["unique_bytes"] == 2 * MIB <= one["stored_bytes"]
        stations = one["stations"]
        assert [station["station"] for station in stations] == ["takeover", "copy", "keep", "staged", "slot", "packs", "segments", "root", "index", "told"]
        at = [station["at_ns"] for station in stations]
        assert at == sorted(at)
        assert sum(station["took_ns"] for station in stations) == pytest.approx(one["took_ns"], abs=1e6)
        (packs,) = [station for station in stations if station["station"] == "packs"]
        assert sum(hop["bytes"] for hop in packs["nodes"]) >= 2 * MIB and {hop["node"] for hop in packs["nodes"]} <= {"node-0", "node-2"}
        cluster.start(1)
        assert told(id_of_save, node=1)["saves"] == [one]  # and the lost one's remembers nothing


def all_logs(cluster: Cluster) -> str:
    return "".join((cluster.folder / f"node-{node}" / "log").read_text() for node in range(NODES))


def test_why_of_what_is_not_there_says_so(three):
    assert "no node knows of it" in three.run("why", "0123456789abcdef", status=1).stderr
    assert "nowhere" in three.run("why", "nowhere@3", status=1).stderr
    assert three.run("why", status=2).stderr


def test_top_shows_what_moves(three):
    top = subprocess.Popen([FOREBAY, "top", "--json"], env=three.environment(), stdout=subprocess.PIPE, text=True)
    try:
        picture = json.loads(top.stdout.readline())
        assert [node["name"] for node in picture["nodes"]] == ["node-0", "node-1", "node-2"]
        assert sum(node["captured_bytes_per_s"] for node in picture["nodes"]) == 0
        before = sum(node["captured_bytes"] for node in picture["nodes"])
        save(three, "tops", {"w": os.urandom(5 * MIB)})
        while True:  # each second a line, and this test has a time-out
            picture = json.loads(top.stdout.readline())
            if sum(node["captured_bytes"] for node in picture["nodes"]) == before + 5 * MIB:
                break
        assert 0 < sum(node["captured_bytes_per_s"] for node in picture["nodes"]) < 5 * MIB * 1.2
        while True:
            (shown,) = [one for one in picture["saves"] if one["bundle"] == "tops"]
            if shown["state"] == "durable":
                break
            picture = json.loads(top.stdout.readline())
        assert shown["bytes_per_s"] > 0 and shown["unique_bytes"] == 5 * MIB
        top.send_signal(signal.SIGINT)
        assert top.wait(LIMIT_S) == 0
    finally:
        top.kill()
        top.wait()


def test_top_once_is_plain(three):
    shown = three.run("top", "--once").stdout
    assert "\033" not in shown and re.search(r"^NODE +STATE +CLIENTS +STOPPED +USED +POOL +CAPTURED/S", shown, re.M)
    assert len(re.findall(r"^node-\d +up ", shown, re.M)) == NODES


def ask_soon(cluster: Cluster, *words: str) -> str:
    """Of node 1, whatever has become of node 0."""
    begun = time.monotonic()
    shown = cluster.run(*words, "--socket", cluster.socket(1)).stdout
    assert time.monotonic() - begun < SOON_S, words
    return shown


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_status_top_and_why_answer_without_the_index(cluster, how):
    cluster.up(NODES)
    assert "index_lost" not in json.loads(ask_soon(cluster, "status", "--json"))
    with ExitStack() as sessions:
        ends = [sessions.enter_context(forebay.connect(cluster.socket(node))) for node in (1, 2)]
        with ThreadPoolExecutor() as pool:
            joining = [pool.submit(fb.join, "away", run="1", rank=rank, size=2, timeout=LIMIT_S) for rank, fb in enumerate(ends)]
            groups = [one.result(LIMIT_S) for one in joining]

        def offer(rank, step):
            one = groups[rank].save("away", step=step)
            one.add(f"w{rank}", os.urandom(MIB))
            one.submit()
            return one

        for one in [offer(rank, 1) for rank in range(2)]:
            one.durable.wait(LIMIT_S)
        half = offer(0, 2)
        engine = cluster.pids()[0]
        os.kill(engine, how)
        wait_until(lambda: not json.loads(ask_soon(cluster, "status", "--json"))["nodes"][0]["up"], LIMIT_S, "node-0 is down")

        shown = json.loads(ask_soon(cluster, "status", "--json"))
        lost = shown["index_lost"]
        assert lost["node"] == "node-0" and lost["address"].startswith("tcp:") and lost["words"] and lost["unheard_ms"] < 60_000
        assert [(node["name"], node["up"], node["silent"]) for node in shown["nodes"]] == [
            ("node-0", False, False), ("node-1", True, False), ("node-2", True, False)]  # fmt: skip
        assert all(node["pool_bytes"] for node in shown["nodes"][1:])
        assert [(save["bundle"], save["step"], save["state"]) for save in shown["saves"]] == [("away", 2, "gathering")]
        assert ends[0].status()["index_lost"]["node"] == "node-0"
        table = ask_soon(cluster, "status")
        assert re.search(r"^the index cannot be reached: its engine is on node node-0 at tcp:\S+, not heard for [\d.]+ m?s \(", table, re.M)
        assert table.partition("\n\n")[0].count("node-0") == 1, table  # once is enough
        assert re.search(r"^node-0 +down ", table, re.M) and re.search(r"^node-2 +up ", table, re.M)
        top = ask_soon(cluster, "top", "--once")
        assert "the index cannot be reached" in top and re.search(r"^node-0 +down ", top, re.M) and " away " in top
        why = json.loads(ask_soon(cluster, "why", "away@1", "--json"))
        assert [save["step"] for save in why["saves"]] == [1] and why["silent"] == ["node-0"]

        if how == signal.SIGSTOP:
            os.kill(engine, signal.SIGCONT)
        else:
            cluster.up()
        offer(1, 2)
        half.durable.wait(2 * LIMIT_S)
        wait_until(lambda: "index_lost" not in ends[0].status(), LIMIT_S, "the index is back")


def test_a_daemon_without_files_to_open_says_so_and_takes_who_waits_later(cluster):
    cluster.up(1)
    (pid,) = cluster.pids()
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    lines = lambda: [one for one in (cluster.folder / "node-0" / "log").read_text().splitlines() if " net.not-accepted " in one]  # noqa: E731
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, before[1]))
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(cluster.run, "ls")
        wait_until(lines, LIMIT_S, "the log")
        assert "Too many open files" in lines()[0] and f"address=unix:{cluster.socket()} " in lines()[0] and not waiting.done()
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        waiting.result(LIMIT_S)
    assert len(lines()) == 1


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_without_the_index_verbs_say_so_soon_and_what_works_all_the_same(cluster, how, tmp_path):
    (tmp_path / "one").write_bytes(os.urandom(MIB))
    cluster.up(NODES)
    cluster.run("put", "kept", tmp_path / "one")
    ask_soon(cluster, "ls")
    os.kill(cluster.pids()[0], how)
    wait_until(lambda: not json.loads(ask_soon(cluster, "status", "--json"))["nodes"][0]["up"], LIMIT_S, "node-0 is down")
    for words in (["ls"], ["ls", "kept"], ["gc"], ["rm", "kept@1"], ["label", "kept", "prod", "1"], ["retain", "kept", "--last", "2"], ["verify", "kept"]):
        begun = time.monotonic()
        failed = cluster.run(*words, "--socket", cluster.socket(1), status=None)
        assert failed.returncode == (2 if words[0] == "verify" else 1) and time.monotonic() - begun < SOON_S, words
        assert "the node that serves the index cannot be reached: node node-0: " in failed.stderr, words
        assert "`show`, `get` and `verify` of BUNDLE@N work without it" in failed.stderr and len(failed.stderr.splitlines()) == 1, words
    assert "the index is unavailable" in ask_soon(cluster, "show", "kept@1")
    assert "clean" in ask_soon(cluster, "verify", "kept@1")
    ask_soon(cluster, "get", "kept", str(tmp_path / "out"))


def test_a_node_that_could_not_join_yet_says_what_it_waits_for(cluster):
    cluster.up(2)
    cluster.kill()
    config = cluster.folder / "node-1" / "config"
    with open(cluster.folder / "log", "w") as log, subprocess.Popen([BUILD / "forebayd", "--config", config], stderr=log) as daemon:
        try:
            asked = ["status", "--json", "--socket", cluster.socket(1)]
            wait_until(lambda: cluster.run(*asked, status=None).returncode == 0, LIMIT_S, "it serves")
            shown = json.loads(ask_soon(cluster, "status", "--json"))
            assert [node["name"] for node in shown["nodes"]] == ["node-1"]
            assert (shown["index_lost"]["node"], shown["index_lost"]["unheard_ms"]) == ("", None)
            line = re.compile(r"^the index cannot be reached: its engine is at tcp:\S+, never heard \(.*Connection refused", re.M)
            assert line.search(ask_soon(cluster, "status"))
            assert line.search(ask_soon(cluster, "top", "--once"))
        finally:
            daemon.kill()


def test_a_join_without_the_index_ends_in_time_and_names_the_engines_node(cluster):
    cluster.up(2)
    cluster.kill(0)
    with forebay.connect(cluster.socket(1)) as fb, pytest.raises(forebay.Error, match="engine is on node node-0 at tcp:") as failure:
        begun = time.monotonic()
        fb.join("early", run="1", rank=0, size=1, timeout=4)
    assert failure.value.name == "ETIMEDOUT" and time.monotonic() - begun < SOON_S
    (line,) = [line for line in (cluster.folder / "node-1" / "log").read_text().splitlines() if "group.index-awaited" in line]
    assert "group=early" in line and "node node-0" in line
    cluster.up()
    with forebay.connect(cluster.socket(1)) as fb, fb.join("early", run="1", rank=0, size=1, timeout=LIMIT_S):
        pass


# ---- standard descriptors -------------------------------------------------------------------------------------------------

STDERR = {
    "whose reader is gone": "r, w = os.pipe(); os.dup2(w, 2)",
    "whose reader does not read": "r, w = os.pipe(); fcntl.fcntl(w, fcntl.F_SETPIPE_SZ, 4096); os.set_inheritable(r, True); os.dup2(w, 2)",
    "that is full": "os.dup2(os.open('/dev/full', os.O_WRONLY), 2)",
    "that is closed, as the others are": "os.close(0); os.close(1); os.close(2)",
}


@pytest.mark.parametrize("what", STDERR)
def test_a_daemon_outlives_a_standard_error(tmp_path, what):
    source = f"import fcntl, os, sys; {STDERR[what]}; os.execv(sys.argv[1], sys.argv[1:])"
    cluster = job.Cluster(tmp_path / "c", 1, more="log = debug\n")
    cluster.inside[0] = [sys.executable, "-c", source]
    with cluster:
        with cluster.connect() as fb, fb.join("g", run="0", rank=0, size=1) as group:
            for step in range(1, 40):
                assert job.save(group, "m", step, [("x", b"x", {})]).version == step
        folder = f"/proc/{cluster.daemons[0].pid}/fd"
        ends = [os.readlink(f"{folder}/{fd}") for fd in range(3)]
        assert all(end.startswith(("/", "pipe:")) for end in ends), ends
        assert cluster.running(0)


def test_a_file_that_may_not_be_so_large_is_said_in_words(tmp_path):
    cluster = job.Cluster(tmp_path / "c", 1)
    cluster.inside[0] = ["prlimit", "--fsize=2000000:2000000"]
    cluster.launch()
    try:
        assert cluster.daemons[0].wait(LIMIT_S) == 1
        assert "File too large" in cluster.logs()
    finally:
        cluster.kill()
