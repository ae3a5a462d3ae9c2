"""The documents: what they say is compared with the source, and what they tell a reader to type is typed."""
import errno
import itertools
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import numpy as np
import pytest

import decode
from place import FOREBAY, ROOT, Cluster

sys.path.insert(0, str(ROOT / "python"))
import forebay  # noqa: E402

DOCS = ROOT / "docs"
UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "ms": 1, "s": 1000, "h": 3600000}


def page(name: str) -> str:
    return (DOCS / name).read_text()


def rows(text: str, columns: int) -> list[list[str]]:
    """Rows of all tables in a page that have so many columns, headings left out."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")] if line.startswith("|") else []
        if len(cells) == columns and not set(line) <= set("|- "):
            found.append(cells)
    return found


# ---- limits.md ------------------------------------------------------------------------------------------------------------------


def constant(name: str, path: str) -> int:
    """The value of a #define that is a number, or shifts, sums and products of numbers."""
    (value,) = re.findall(rf"^#define {name}\s+(.*?)\s*(?:/\*.*)?$", (ROOT / path).read_text(), re.M)
    value = re.sub(r"UINT64_C\((\d+)\)", r"\1", re.sub(r"\b(\d+)[uUlL]+\b", r"\1", value))
    assert re.fullmatch(r"[\d\s()<*+-]+", value), f"{name} in {path} is {value}"
    return eval(value)


LIMITS = [row for row in rows(page("limits.md"), 5) if row[0] != "limit"]


@pytest.mark.parametrize("row", LIMITS, ids=[f"{row[2].strip('`')}-{row[3].strip('`')}" for row in LIMITS])
def test_a_limit_is_what_the_page_says(row):
    _, value, name, path, why = row
    number, _, unit = value.partition(" ")
    base, _, power = number.partition("^")
    assert int(base) ** int(power or 1) * UNITS[unit] == constant(name.strip("`"), path.strip("`"))
    assert why


def test_the_page_of_limits_has_its_tables():
    assert len(LIMITS) > 50


# ---- troubleshooting.md ---------------------------------------------------------------------------------------------------------

TROUBLES = page("troubleshooting.md")
LITERAL = r'"((?:\\.|[^"\\\n])*)"'


def spoken() -> str:
    """All that the programs can say: the literals of the source, those that follow each other joined, conversions blanked."""
    texts = [os.strerror(code) for code in errno.errorcode]
    for path in sorted([*(ROOT / "src").rglob("*.[ch]"), *(ROOT / "python" / "forebay").glob("*.[ch]")]):
        if not path.name.endswith(("_test.c", "_suite.c")):
            source = re.sub(r'"\s*PRI\w+\s*"', "u", path.read_text())  # as in "%" PRIu64 " bytes"
            texts.append(re.sub(r'"\s*"', "", source).replace('\\"', "'"))
    return re.sub(r"\s+", " ", re.sub(r"%[-.*\d]*[hlz]*[a-zX]", " ", "\n".join(texts)))


def test_each_error_code_is_explained_and_no_other():
    table = re.findall(r'^\tX\((E\w+), (\d+), "(.*?)"\)', (ROOT / "src" / "base" / "error.h").read_text(), re.M)
    told = [tuple(row[:3]) for row in rows(TROUBLES, 4) if row[0].startswith("FOREBAY_")]
    assert len(table) > 10
    assert told == [(f"FOREBAY_{name}", number, meaning) for name, number, meaning in table]
    assert not [row[0] for row in rows(TROUBLES, 4) if row[0].startswith("FOREBAY_") and len(row[3]) < 20]


def test_the_public_header_has_the_same_codes():
    (body,) = re.findall(r"enum forebay_code \{(.*?)\}", (ROOT / "include" / "forebay" / "forebay.h").read_text(), re.S)
    number, public = 0, []
    for name, given in re.findall(r"(FOREBAY_E\w+)(?: = (\d+))?", body):
        number = int(given) if given else number + 1
        public.append((name, str(number)))
    assert public == [tuple(row[:2]) for row in rows(TROUBLES, 4) if row[0].startswith("FOREBAY_")]


def test_codes_that_the_page_names_are_codes():
    own = set(re.findall(r"^\| (FOREBAY_E\w+)", TROUBLES, re.M))
    known = own | set(errno.errorcode.values())
    assert not {code for code in re.findall(r"\b(?:FOREBAY_)?E[A-Z0-9]{3,}\b", TROUBLES)} - known - {"ERROR_TABLE"}


def test_words_that_the_page_quotes_are_said_in_the_source():
    said = spoken()
    quoted = [words for n in (2, 3) for row in rows(TROUBLES, n) for words in re.findall(r"`([^`]+)`", row[0])]
    fragments = [f.strip(" ,:;") for text in quoted for f in re.split(r"\.\.\.|\b[A-Z0-9]+\b|[()\":]", text)]
    fragments = [f for f in fragments if len(f.split()) > 1]
    assert len(quoted) > 50 and len(fragments) > 50
    assert not [f for f in fragments if f not in said], [f for f in fragments if f not in said]


# ---- metrics.md ----------------------------------------------------------------------------------------------------------------


def metrics() -> list[list[str]]:
    """COUNTER_TABLE as the page's rows: name, kind, unit, label and its values, help."""
    source = (ROOT / "src" / "base" / "counter.h").read_text().replace("\\\n", " ")
    table = source[source.index("#define COUNTER_TABLE") : source.index("#define COUNTER_NOTHING")]
    calls = re.findall(r'(FAMILY|SERIES|TIMES)\(((?:"[^"]*"|[^()"])*)\)', table)
    kinds = {"COUNT": "counter", "GAUGE": "gauge", "HISTOGRAM": "histogram"}
    found = []
    for what, arguments in calls:
        words = [word.strip().strip('"') for word in re.findall(r'"[^"]*"|[^,"]+', arguments) if word.strip()]
        if what == "FAMILY":
            name, kind, unit, label, text = words
            unit = {"ns": "seconds"}.get(unit, unit)
            found.append([f"`forebay_{name}`", kinds[kind], unit, "" if label == "NULL" else f"{label}: ", text])
        elif len(words) == 2 and words[1] != "NULL":
            found[-1][3] += ("" if found[-1][3].endswith(": ") else ", ") + words[1]
    return found


def test_the_page_of_metrics_is_the_table_of_the_source():
    assert len(metrics()) > 30
    assert [row for row in rows(page("metrics.md"), 5) if row[0] != "name"] == metrics()


# ---- logs.md -------------------------------------------------------------------------------------------------------------------


def events() -> list[list[str]]:
    """Each event of the source: its name, its levels, its values in their order."""
    found = {}
    for path in sorted((ROOT / "src").rglob("*.c")):
        if path.name.endswith(("_test.c", "_suite.c")) or path.name == "log.c":
            continue
        source = re.sub(r'"\s*PRI\w+\s*"?', "", path.read_text())
        for levels, name, values in re.findall(r'\blogm\(([^"]*?),\s*"([^"]+)",\s*((?:"(?:\\.|[^"\\])*"\s*)+)', source):
            assert name not in found, f"{name} is said at two places"
            said = [level.lower() for level in re.findall(r"LOG_(\w+)", levels)]
            found[name] = [f"`{name}`", ", ".join(said), ", ".join(re.findall(r"(\w+)=", values))]
    return [found[name] for name in sorted(found)]


def test_each_event_of_the_log_is_in_its_page_and_no_other():
    told = [row for row in rows(page("logs.md"), 4) if row[0] != "event"]
    assert len(told) > 5
    assert sorted(row[:3] for row in told if row[0] != "`log.left-out`") == events()
    assert not [row for row in told if len(row[3]) < 20]


# ---- formats.md -----------------------------------------------------------------------------------------------------------------

RANKS = 3


def arrays() -> dict[str, np.ndarray]:
    """Of every kind that the page tells apart: large, small, without bytes, without dimensions, equal, zero, of odd types."""
    random = np.random.default_rng(1)
    big = random.integers(0, 256, (6, 5, 4096), np.uint8)
    return {
        "big": big,
        "big again": big.copy(),
        "w": random.random((12, 10), np.float32),
        "zeros": np.zeros((3, 70000), np.float32),
        "half zeros": np.concatenate([np.zeros(8 << 20, np.uint8), random.integers(0, 256, 1000, np.uint8)]),
        "mask": random.random(9) < 0.5,
        "scalar": np.array(17, np.int64),
        "nothing": np.zeros((0, 4), np.float16),
        "cube": random.random((3, 6, 7)),
        "ünïcode/name": np.arange(5, dtype=np.uint16),
        **{f"small.{i:03}": random.random(i, np.float32) for i in range(40)},
    }


def columns(rank: int, n: int) -> slice:
    return slice(n * rank // RANKS, n * (rank + 1) // RANKS)


def save_by_ranks(cluster: Cluster, bundle: str, step: int, items: dict[str, np.ndarray]) -> int:
    """Matrices cut by columns, cubes by their middle dimension, "small" ones held by every rank, the rest dealt out."""

    def part(rank: int) -> int:
        with forebay.connect(str(cluster.socket(rank % 2))) as session:
            with session.join("documents", run=f"{bundle}:{step}", rank=rank, size=RANKS, timeout=30) as group:
                with group.save(bundle, step=step, copies=2, attributes={"by": "a test"}) as save:
                    for at, (name, value) in enumerate(items.items()):
                        cut = columns(rank, value.shape[1]) if value.ndim > 1 else None
                        if cut is not None:
                            save.add(name, value[:, cut], shape=value.shape, start=(0, cut.start, 0)[: value.ndim])
                        elif name.startswith("small") or at % RANKS == rank:
                            save.add(name, value)
                save.durable.wait(60)
                return save.version

    with ThreadPoolExecutor(RANKS) as ranks:
        return set(ranks.map(part, range(RANKS))).pop()


@pytest.fixture(scope="module")
def store(running: Cluster) -> Path:
    """A store in which all has happened that leaves something: saves, files, labels, a deletion, a save that failed."""
    assert save_by_ranks(running, "ckpt/a.b", 1, arrays()) == 1
    assert save_by_ranks(running, "ckpt/a.b", 2, {"w": np.ones(3)}) == 2
    running.run("put", ".hidden/ü", ROOT / "docs" / "man", "--attribute", "k=v")
    running.run("label", "ckpt/a.b", "prod/é", 2)
    running.run("label", "ckpt/a.b", "prod/é", 1)
    running.run("rm", "ckpt/a.b@2")
    return running.folder / "store"


def test_a_reader_made_from_the_page_gets_the_tensors_back(store):
    version = decode.Version(store, "ckpt/a.b", 1)
    assert (version.step, version.parent, version.attributes) == (1, 0, {"by": "a test"})
    assert version.items.keys() == arrays().keys()
    for name, value in arrays().items():
        item = version.items[name]
        assert (item.dtype, item.element_bits, item.shape) == (value.dtype.name, value.itemsize * 8, value.shape)
        assert version.read(name) == value.tobytes(), name
    assert len({piece.start for piece in version.items["cube"].pieces}) == RANKS
    assert any(block.hole for block in version.blocks) and len(version.packs) == 2
    assert version.stored_bytes < arrays()["big"].nbytes + (128 << 10)  # equal tensors once, zeros not at all


def test_a_reader_made_from_the_page_gets_files_back(store):
    version = decode.Version(store, ".hidden/ü", 1)
    for path in (ROOT / "docs" / "man").iterdir():
        assert version.read(path.name) == path.read_bytes()


def test_the_page_explains_every_object_of_a_store(store):
    base = "t/default/b/ckpt%2Fa.b"
    found = decode.survey(store)
    assert re.fullmatch(r"generation 1, life 0 of \S+ by node-0", found["g/1"]) and found[f"{base}/v/{2:020}/root"] == "deleted of 2"
    assert found[f"{base}/l/prod%2F%C3%A9/{2:020}"] == "label prod/é to 1"
    assert not [key for key in found if key.startswith(f"{base}/v/{2:020}/") and key.endswith("-0")]
    assert "t/default/b/%2Ehidden%2F%C3%BC/v/00000000000000000001/slot" in found
    with pytest.raises(decode.Damage, match="deleted"):
        decode.Version(store, "ckpt/a.b", 2)


def test_a_reader_made_from_the_page_sees_every_flipped_bit(store, tmp_path):
    random = Random(7)
    copy = tmp_path / "store"
    shutil.copytree(store, copy, ignore=lambda folder, names: [n for n in names if n in ("ckpt%2Fa.b", ".tmp")])
    objects = [path for path in sorted(copy.rglob("*")) if path.is_file()]
    places = [(path, at) for path in objects for at in random.sample(range(path.stat().st_size), 25)]
    for path, at in places:
        good = path.read_bytes()
        path.write_bytes(good[:at] + bytes([good[at] ^ 1 << random.randrange(8)]) + good[at + 1 :])
        with pytest.raises(decode.Damage):
            decode.describe(str(path.relative_to(copy)), path.read_bytes())
        path.write_bytes(good)
    assert len(objects) == 6 and decode.Version(copy, ".hidden/ü", 1).n_items > 10


# ---- promises.md ----------------------------------------------------------------------------------------------------------------


def shown_by(text: str) -> list[str]:
    """What the last columns of the page's tables name."""
    cells = [row[2] for row in rows(text, 3) if row[2] != "shown by"]
    assert all(re.fullmatch(r"(`[\w.-]+`|[A-Z_]+)(, (`[\w.-]+`|[A-Z_]+))*", cell) for cell in cells), cells
    return [word.strip("`") for cell in cells for word in cell.split(", ")]


def is_test(name: str) -> bool:
    if name.endswith(".scn"):
        return (ROOT / "test" / "scenarios" / name).is_file()
    if name.isupper():
        return f"\tX({name}, " in (ROOT / "src" / "sim" / "history_suite.h").read_text()
    patterns = ["test/*.py", "python/tests/*.py"] if name.startswith("test_") else ["src/*/*_test.c", "src/*/*_suite.c"]
    head = rf"^\s*(?:async )?def {name}\(" if name.startswith("test_") else rf"cmocka_unit_test\w*\({name}\b|^static \w+ {name}\("
    return any(re.search(head, path.read_text(), re.M) for pattern in patterns for path in ROOT.glob(pattern))


def test_each_promise_is_shown_by_a_test_that_exists():
    named = shown_by(page("promises.md"))
    assert len(named) > 60 and not [name for name in named if not is_test(name)]


def test_each_script_of_faults_shows_a_promise():
    assert {path.name for path in (ROOT / "test" / "scenarios").glob("*.scn")} <= set(shown_by(page("promises.md")))


@pytest.mark.parametrize("name", ["none.scn", "test_nothing_of_the_kind", "nothing_of_the_kind", "NOTHING_OF_THE_KIND"])
def test_a_promise_without_a_test_is_found_out(name):
    assert not is_test(name)


# ---- tour.md --------------------------------------------------------------------------------------------------------------------

TOUR = page("tour.md")
TOUR_LIMIT_S = 800
END_OF_COMMAND = "\x01"  # no output has it


def tour_steps() -> list[tuple[str, str]]:
    """Commands and the output that the page shows, in the page's order."""
    steps = []
    for block in re.findall(r"^```console\n(.*?)^```", TOUR, re.M | re.S):
        assert block.startswith("$ ")
        for step in re.split(r"^\$ ", block, flags=re.M)[1:]:
            command, _, output = step.partition("\n")
            steps.append((command, output))
    return steps


def looks_like(shown: str, output: str) -> bool:
    """Whether `output` is what the page shows: "..." stands for anything; blanks count as one, those at ends of lines not at all."""
    shown, output = (re.sub(r" +", " ", re.sub(r" +$", "", text, flags=re.M)).strip() for text in (shown, output))
    return re.fullmatch(".*".join(map(re.escape, shown.split("..."))), output, re.S) is not None


@pytest.mark.parametrize(
    ("shown", "output", "same"),
    [("a ... c", "a b c", True), ("a  b", "a      b", True), ("a\n...\nd\n", "a\nb\nc\nd\n", True), ("a", "ab", False),
     ("a\n", "", False), ("", "a", False), ("", "", True)],
)  # fmt: skip
def test_outputs_are_compared_as_the_tour_says(shown, output, same):
    assert looks_like(shown, output) == same


def test_the_tour_can_be_walked(make_folder):
    folder = make_folder()
    for name, program in re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", TOUR, re.M | re.S):
        (folder / name).write_text(program)
    steps = tour_steps()
    script = "".join(f"{command}\nprintf '{END_OF_COMMAND}%d{END_OF_COMMAND}' $?\n" for command, _ in steps)
    path = f"{FOREBAY.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"}
    try:
        result = subprocess.run(
            ["bash", "-c", script], cwd=folder, env=environment, timeout=TOUR_LIMIT_S, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
    finally:
        Cluster(folder / "fb").end()
    parts = result.stdout.split(END_OF_COMMAND)
    answers = list(zip(parts[0::2], parts[1::2]))
    assert len(steps) > 50 and len(answers) == len(steps)
    wrong = [
        f"$ {command}\n{output}[exit {status}]\n--- the page shows\n{shown}"
        for (command, shown), (output, status) in zip(steps, answers)
        if status != "0" or not looks_like(shown.replace("/tmp/tour", str(folder)), output)
    ]
    assert not wrong, "\n".join(wrong)


# ---- field-troubles.md ----------------------------------------------------------------------------------------------------------

ENDED = 60  # seconds in which a daemon says why it cannot start
WARM_SAVES, MORE_SAVES = 25, 25
GROWTH_BYTES = 8192  # a save, at most
LAPS = 3  # what leaks grows in each


@pytest.mark.parametrize("name", ["field-troubles.md", "edges.md"])
def test_each_test_that_the_page_names_exists(name):
    named = re.findall(r"`((?:test|[a-z]+)_[a-z0-9_]{8,})`", page(name))
    files = [*ROOT.glob("test/*.py"), *ROOT.glob("python/tests/*.py"), *ROOT.glob("src/*/*_test.c"), *ROOT.glob("src/*/*_suite.c")]
    known = set(re.findall(r"\w+", "\n".join(path.read_text() for path in files)))
    assert len(named) > 40 and not [name for name in named if name not in known]


@pytest.fixture
def small_disk(make_folder) -> Iterator[list[str]]:
    """A command's beginning under which a tmpfs of 3 MiB lies at its last word, for that command and its children."""
    place = make_folder()
    inside = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    yield [*inside, "sh", "-c", 'mount -t tmpfs -o size=3M tmpfs "$0" && exec "$@"', str(place)]


def test_a_full_store_fails_the_save_and_nothing_else(cluster, small_disk, tmp_path):
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(Random(1).randbytes(1 << 20))
    large.write_bytes(Random(2).randbytes(5 << 19))
    up = ["up", "--dir", cluster.folder, "--nodes", "2", "--pool", "64M", "--store", f"dir:{small_disk[-1]}"]
    subprocess.run([*small_disk, FOREBAY, *map(str, up)], check=True, stdout=subprocess.DEVNULL)
    cluster.run("put", "a", small)
    with forebay.connect(str(cluster.socket())) as fb, fb.join("full", run="1", rank=0, size=1) as group:
        with group.save("a", step=2) as save:
            save.add("large", large.read_bytes())
        save.captured.wait(30)
        with pytest.raises(forebay.Error, match=f"{small_disk[-1]}.*No space left on device") as failure:
            save.durable.wait(30)
        assert failure.value.name == "ENOSPC" and save.version == 0
    assert [version["number"] for version in json.loads(cluster.run("ls", "a", "--json").stdout)["bundles"][0]["versions"]] == [1]
    assert "clean" in cluster.run("verify", "a").stdout
    cluster.run("put", "a", small)  # there is room for it again
    assert "No space left" in cluster.run("put", "a", large, status=1).stderr
    assert len(cluster.daemons()) == 2


def test_a_store_that_was_copied_by_hand_is_whole(running, store, cluster):
    copy = cluster.folder.parent / "copy"
    subprocess.run(["cp", "-r", store, copy], check=True)
    cluster.up(1, "--store", f"dir:{copy}", "--rebuild")
    assert cluster.run("ls", "-r", "--json").stdout == running.run("ls", "-r", "--json").stdout
    assert "clean" in cluster.run("verify", "ckpt/a.b@prod/é").stdout


def state_of(pid: int) -> tuple[int, int, int]:
    """Descriptors, threads, and bytes of anonymous memory of a process."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return len(os.listdir(f"/proc/{pid}/fd")), int(status["Threads"]), int(status["RssAnon"].split()[0]) << 10


def test_many_saves_leave_no_descriptor_thread_or_memory(running):
    """Not again and again, that is: somebody may knock at a daemon's doors once, for whom it has a thread for a while."""
    pids, steps = [*running.pids(), os.getpid()], itertools.count()
    with forebay.connect(str(running.socket())) as fb, fb.join("many", run="1", rank=0, size=1) as group:

        def save_some(n: int) -> None:
            for step in itertools.islice(steps, n):
                with group.save("many", step=step, copies=2) as save:
                    save.add("x", np.full(3000, step))
                save.durable.wait(60)

        def grown() -> list:
            before = [state_of(pid) for pid in pids]
            save_some(MORE_SAVES)
            pairs = zip(before, [state_of(pid) for pid in pids])
            most = (0, 0, GROWTH_BYTES * MORE_SAVES)
            return [pair for pair in pairs if any(is_now - was > more for was, is_now, more in zip(*pair, most))]

        save_some(WARM_SAVES)
        laps = [grown()]
        while laps[-1] and len(laps) < LAPS:
            laps.append(grown())
    assert not laps[-1], laps


def test_no_locked_memory_is_needed(cluster, tmp_path):
    lock = (resource.RLIMIT_MEMLOCK, (0, 0))
    cluster.up(1, preexec_fn=lambda: resource.setrlimit(*lock))
    cluster.run("put", "a", ROOT / "docs", preexec_fn=lambda: resource.setrlimit(*lock))
    assert "clean" in cluster.run("verify", "a").stdout


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [("store", "dir:/no/store", "store: /no/store: .*No such file or directory"), ("meta", "lmdb:/no/meta/m", "/no/meta/m"),
     ("meta", "lmdb:/proc/m", "/proc/m"), ("socket", "/no/folder/s", "/no/folder"), ("socket", "/proc/s", "/proc/s"),
     ("listen", "tcp:127.0.0.1:{port}", "tcp:127.0.0.1:{port}: cannot listen: Address already in use"),
     ("listen", "tcp:192.0.2.1:7400", "listen: tcp:192.0.2.1:7400 is not on loopback: .* set key to its file"),
     ("listen", "tcp:127.0.0.300:7400", "127.0.0.300"), ("listen", "tcp:lo:7400", "lo"),
     ("listen", "tcp:^lo,docker", "listen"), ("pool", "1M", "pool: 1048576 bytes are too few"),
     ("pool", "3000G", "room for only|Cannot allocate|at most")],
)  # fmt: skip
def test_a_daemon_that_lacks_something_says_so_and_ends(tmp_path, setting, value, words):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (tmp_path / "store").mkdir()
        settings = {"store": f"dir:{tmp_path}/store", "meta": f"lmdb:{tmp_path}/meta", "socket": str(tmp_path / "socket"), "pool": "8M"}
        settings[setting] = value.format(port=port)
        flags = [word for name, given in settings.items() for word in (f"--{name}", given)]
        result = subprocess.run([FOREBAY.parent / "forebayd", *flags], capture_output=True, text=True, timeout=ENDED)
    assert result.returncode in (1, 2) and re.search(words.format(port=port), result.stderr), result.stderr
    assert not (tmp_path / "socket").exists()


def test_a_client_outlives_its_daemon(cluster):
    cluster.up(1)
    with forebay.connect(str(cluster.socket())) as old:
        assert old.list() == []
        cluster.kill()
        with pytest.raises(forebay.Error, match="is gone"):
            old.list()
        with pytest.raises(forebay.Error, match="nobody listens there|is gone"):
            forebay.connect(str(cluster.socket()))
        cluster.up()
        with pytest.raises(forebay.Error, match="is gone"):
            old.list()
        with forebay.connect(str(cluster.socket())) as new:
            assert new.list() == []
