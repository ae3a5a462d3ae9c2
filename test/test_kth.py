"""The k-th allocation, file call or socket call fails once: 20 samples here, 200 by `make kth`, any one by test/kth.py WHO KIND K."""
import pytest

import kth

RUNS = 20


def test_a_call_that_fails_once_is_a_success_or_an_error_in_words():
    wrong, _ = kth.run_many(RUNS, seed=1)
    assert wrong == []


@pytest.mark.parametrize("who", ["daemon", "cli"])
def test_calls_are_counted_where_they_are_made(who):
    """The harness itself: each kind of call is seen."""
    assert all(kth.run(who, kind, -1) > 10 for kind in kth.KINDS)
