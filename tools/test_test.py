"""What tools/test makes of a program's status and output."""
import importlib.machinery
import importlib.util
import time
from pathlib import Path

loader = importlib.machinery.SourceFileLoader("tools_test", str(Path(__file__).resolve().parent / "test"))
runner = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
loader.exec_module(runner)


def test_each_function_counts():
    assert runner.judge(0, "1..2\nok 1 - a\nok 2 - b\n# ok - tests\n") == (2, [])


def test_a_failed_function_is_named():
    assert runner.judge(1, "1..2\nok 1 - a\nnot ok 2 - b\n# 0x1 != 0x2\n# not ok - tests\n") == (1, ["b"])


def test_functions_that_did_not_run_are_failures():
    assert runner.judge(0, "1..3\nok 1 - a\n") == (1, ["2 tests of the program did not run"])


def test_a_crash_after_the_last_function_is_a_failure():
    assert runner.judge(-6, "1..1\nok 1 - a\n") == (1, ["killed by SIGABRT"])


def test_a_program_without_tests_is_a_failure():
    assert runner.judge(0, "1..0\n") == (0, ["the program holds no test"])


def test_any_other_program_is_one_test_by_its_status():
    assert runner.judge(0, "hello\n") == (1, [])
    assert runner.judge(3, "hello\n") == (0, ["exit status 3"])


def test_a_program_past_its_limit_is_stopped_with_its_children():
    status, output, seconds = runner.run(["sh", "-c", "sleep 100 & echo $!; wait"], 0.3)
    assert status is None and seconds < 10 and "stopped at its limit" in output
    child = Path("/proc") / output.split()[0] / "stat"
    end = time.monotonic() + 10
    while child.exists() and child.read_text().split()[2] != "Z":
        assert time.monotonic() < end, "the child still runs"
