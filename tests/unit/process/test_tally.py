"""Seconds by what they went to: nothing is counted twice, and threads are added up."""

from __future__ import annotations

import threading
import time
from collections import defaultdict

import pytest

from tuner.process import tally
from tuner.process.tally import list_seconds, spent_on


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Count from nothing, with a clock that is set by hand: its first element."""
    monkeypatch.setattr(tally, "_seconds", defaultdict(float))
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def test_what_lies_inside_is_counted_there_alone(clock: list[float]) -> None:
    with spent_on("race"):
        clock[0] += 1.0
        with spent_on("timing"):
            clock[0] += 5.0
            with spent_on("verdicts"):
                clock[0] += 0.5
        clock[0] += 2.0
    with spent_on("timing"):
        clock[0] += 0.25
    assert list_seconds() == {
        "race": 3.0,
        "race/timing": 5.0,
        "race/timing/verdicts": 0.5,
        "timing": 0.25,
    }


def test_a_block_that_raises_counts_too(clock: list[float]) -> None:
    with pytest.raises(ValueError, match="wrong"), spent_on("race"), spent_on("timing"):
        clock[0] += 2.0
        raise ValueError("wrong")
    with spent_on("race"):
        clock[0] += 1.0
    assert list_seconds() == {"race": 1.0, "race/timing": 2.0}


def test_each_thread_has_blocks_of_its_own(clock: list[float]) -> None:
    def other() -> None:
        with spent_on("timing"):
            clock[0] += 1.0

    with spent_on("race"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert list_seconds() == {"race": 1.0, "timing": 1.0}


def test_what_goes_on_is_listed_until_it_ends(clock: list[float]) -> None:
    with spent_on("race"):
        clock[0] += 4.0
        with spent_on("timing"):
            clock[0] += 1.0
            assert tally.waits(0.0) == [("timing", 1.0), ("race", 5.0)]
            assert tally.waits(3.0) == [("race", 5.0)]
    assert tally.waits(0.0) == []


def test_the_longest_of_what_a_process_did_is_told_once() -> None:
    for seconds in (0.5, 12.0, 1.0):
        tally.note_begin(7, "tune-verifier/compute_reference")
        tally.note_end(7, seconds)
    assert tally.take_longest("tune-verifier/compute_reference") == 12.0
    assert tally.take_longest("tune-verifier/compute_reference") == 0.0
