"""The same scripts of faults in two worlds: under many seeds in the simulator, and once on real daemons.

test/scenarios/README.md has their grammar. What a script expects is asserted; how long it took is printed.
"""
import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

import job
import scenario

LONG = bool(os.environ.get("FOREBAY_LONG"))
SEEDS = 300 if LONG else 2
LARGE_BYTES, LARGE_SEEDS = 10_000_000, 4  # of a shard: such a script takes seconds a seed
AT_ONCE = 8  # plays that mostly wait for leases
SCRIPTS = [scenario.Script(path) for path in sorted(scenario.FOLDER.glob("*.scn"))]


def names(world):
    """Of the scripts that this world plays; what is only for the long form is simulated in the short one, too, if it is for both."""
    here = [script for script in SCRIPTS if script.world in ("both", world)]
    return [s.path.stem for s in here if LONG or not s.long or (world == "sim" and s.world == "both")]


def simulate(path, *more):
    return subprocess.run([job.BUILD / "forebay-sim", "--scenario", path, *more], capture_output=True, text=True, timeout=1800 if LONG else 280)


@pytest.fixture(scope="module")
def plays(request, tmp_path_factory):
    """All that are asked for, some at a time; each test waits for its own."""
    context = scenario.server()
    wanted = {item.callspec.params.get("name") for item in request.session.items if hasattr(item, "callspec")}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        started = {}
        for script in SCRIPTS:
            if script.path.stem in wanted and script.path.stem in names("real"):
                folder = tmp_path_factory.mktemp("s") / "c"
                started[script.path.stem] = pool.submit(lambda *play: scenario.Play(*play).run(), script, folder, context)
        yield started
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("name", names("real"))
def test_a_script_on_real_daemons(plays, name):
    took_s = plays[name].result()
    print(f"{name}: " + ("nothing to recover from" if took_s is None else f"{took_s:.2f} s from the deed to the end"))


@pytest.mark.parametrize("name", names("sim"))
def test_a_script_in_the_simulator(name):
    (script,) = [script for script in SCRIPTS if script.path.stem == name]
    done = simulate(script.path, "--seeds", str(LARGE_SEEDS if script.bytes >= LARGE_BYTES else SEEDS))
    assert done.returncode == 0, done.stdout + done.stderr
    print(f"{name}: " + re.search(r"^recovery: .*$", done.stdout, re.M)[0])


@pytest.mark.parametrize(
    "line",
    ["save", "save 1 2", "save 0", "kill n3", "kill r3", "at nowhere kill n1", "at save-staged save 1", "at save-staged:0 kill n1", "expect 1",
     "expect 1 durable soon", "fill", "nodes 5", "copies 4", "steps x", "until dawn", "world real", ""],
)  # fmt: skip
def test_a_line_that_makes_no_sense_is_refused(tmp_path, line):
    script = tmp_path / "bad.scn"
    script.write_text(f"# first\nbytes 1000\nsave 1\n{line}\n" if line else "# nothing\n")
    done = simulate(script)
    assert done.returncode == 2 and str(script) in done.stderr and (not line or ":4: " in done.stderr)


def test_a_script_whose_expectation_does_not_come_true_fails(tmp_path):
    script = tmp_path / "wrong.scn"
    script.write_text("copies 1\nat save-staged kill n2\nsave 1\nreached\nexpect 1 durable\n")
    done = simulate(script, "--seeds", "1")
    assert done.returncode == 1 and "wrong.scn:5: rank 0 on n0: step 1 is failed: item" in done.stdout
